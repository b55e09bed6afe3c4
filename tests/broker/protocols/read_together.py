"""Brokers whose clients' messages are read together, and become runs, or one by one: what must be the same in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.run import RunEntry
from tests.broker.protocols.world import World

QUEUES: Final = ("d", "t")  # a durable one, a transient one


def runs_on(queue: Queue) -> list[tuple[int, int]]:
    """State and length of the runs on a queue."""
    return [(part.state, part.count) for part in queue.order.parts() if isinstance(part, RunEntry)]


def bodies(count: int, size: int = 4, begin: int = 0, spread: int = 0) -> list[bytes]:
    """Different bodies of `size` bytes, and up to `spread` more."""
    return [number.to_bytes(size) + b"." * (number * 7 % (spread + 1)) for number in range(begin, begin + count)]


class Side:
    """A broker with a durable queue, on the disk that waits, and a client that a subclass makes.

    Args:
        reads_together: whether many messages are read at once.
        most_of_run: messages that the store takes at once.
    """

    client: Any

    def __init__(self, *, reads_together: bool, most_of_run: int = 1_000_000) -> None:
        self.reads_together = reads_together
        self.world = World()
        self.world.store.most_of_run = most_of_run
        self.world.store.reads_runs = reads_together
        self.world.paged_queue("d")

    def queue(self, name: str) -> Queue:
        return self.world.broker.default_host.queues[name]

    def send(self, frames: list[bytes]) -> None:
        """Send what is read together, or one after the other."""
        for data in [b"".join(frames)] if self.reads_together else frames:
            self.client.send(data)

    def page_out(self) -> None:
        """The messages of the durable queue leave memory, as far as they can."""
        residency = self.queue("d").residency
        assert residency is not None
        residency.relieve(1 << 40, is_urgent=True)

    def rest(self) -> None:
        """Until everything is on the disk, delivered and answered."""
        self.client.sync()
        while self.world.store.flushes:
            self.world.store.end_flush()
            self.client.sync()

    def state(self) -> dict[str, Any]:
        """Everything that can be seen, without looking at single messages."""
        self.client.machine.on_timer(self.world.now)  # sizes are counted then
        return {
            "queues": {
                name: (
                    queue.message_count,
                    queue.message_bytes,
                    queue.available_count,
                    queue.totals._replace(messages_out=0, messages_in=0, bytes_out=0, bytes_in=0),
                )
                for name, queue in self.world.broker.default_host.queues.items()
            },
            "sizes": {
                protocol: (sizes.bytes, sizes.counts) for protocol, sizes in self.world.broker.message_sizes.items()
            },
            "enqueued": self.world.store.enqueued,
            "dequeued": sorted(self.world.store.dequeued),
        }

    def messages(self, name: str) -> list[tuple[int, bytes, int, bool, int]]:
        """All messages on a queue, each looked at."""
        return [
            (entry.position, bytes(entry.message.whole().body), entry.rid, entry.is_redelivered, entry.state)
            for entry in self.queue(name).entries()
        ]


class Script:
    """Does to one side, by name, what another script does to the other."""

    def __init__(self, side: Any) -> None:
        self.side, self.client = side, side.client
        self.published = 0

    def do(self, operation: tuple[Any, ...]) -> object:
        name, *values = operation
        method: Callable[..., object] = getattr(self, name.replace(" ", "_"))
        return method(*values)

    def look(self, queue: str) -> object:
        return self.side.messages(queue)

    def rest(self) -> None:
        self.side.rest()

    def page_out(self) -> None:
        self.side.page_out()

    def tick(self) -> None:
        self.client.sync()


def assert_alike(scripts: tuple[Script, Script], operations: Iterable[tuple[Any, ...]]) -> None:
    """Do the same to both sides, and compare all that can be seen."""
    for operation in operations:
        together, singly = (script.do(operation) for script in scripts)
        assert together == singly
    for script in scripts:
        script.rest()
    together, singly = (script.side.state() for script in scripts)
    assert together == singly
    for name in QUEUES:
        together, singly = (script.side.messages(name) for script in scripts)
        assert together == singly
