"""Processor time of the broker for each message of AMQP 0-9-1, of this checkout and of another one, in pairs.

    python -m tests.bench.bench_checkouts [--against CHECKOUT] [--pairs N] [--rounds N] [LOAD ...]

    publish-16      one publisher without confirms, 16 B, to a queue without consumers
    confirm-16      likewise with confirms, at most 1,000 of them outstanding; confirm-1k with 1 KiB
    through-16      one publisher with confirms, one consumer that acknowledges every 100 messages; through-1k: 1 KiB
    fanout-20       one publisher without confirms, 16 B, to 20 queues over a fanout exchange; 20 consumers without
                    acknowledgements. What counts is a delivered message
    fanout-20-1k    likewise, 1 KiB, with confirms and acknowledgements
    clients-20      20 publishers with confirms, 1 KiB, each to a queue of its own; 20 consumers that acknowledge
    mixed-20        likewise, but each publisher uses all queues in turns

All queues are durable, and all messages persistent. The clients do as little as they can: they send frames that were
made before, and count the bytes of deliveries. Both brokers run at the same time, each on an empty data directory; a
burst goes through one, then through the other, and the next pair begins with the other (`bench_pairs`). Told are the
median of each, and the median of the ratios of the pairs, this checkout to the other one, with its 95 % interval.

Compiled: name the `build/compiled` of two checkouts, and run it from that of this one.
"""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click

from qstore.formats.amqp_0_9_1.frames import OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import encode_header
from tests.bench.basic_frames import ACK, pack_ack
from tests.bench.bench_pairs import estimate, processor_ns
from tests.support.basic_peer import PERSISTENT, BasicPeer
from tests.support.running_broker import ROOT, RunningBroker

_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")
_TAG: Final = "c"
_CHUNK: Final = 100  # messages that are sent at once
_RECEIVE: Final = 1 << 20
_SEND_BYTES: Final = 256 << 10
_WINDOW: Final = 1_000
_PREFETCH: Final = 1_000
_EXCHANGE: Final = "fan"


class Load(NamedTuple):
    """What a burst is.

    Attributes:
        size: bytes of a body.
        publishers, queues: how many there are; a publisher has a queue of its own.
        messages: of each publisher in one burst.
        confirms, consumes, acknowledges: whether there are confirms, consumers, acknowledgements.
        is_fanout: whether each message goes to all queues.
        is_mixed: whether a publisher uses all queues in turns.
    """

    size: int = 16
    publishers: int = 1
    queues: int = 1
    messages: int = 50_000
    confirms: bool = False
    consumes: bool = True
    acknowledges: bool = False
    is_fanout: bool = False
    is_mixed: bool = False

    @property
    def counted(self) -> int:
        """The messages of a burst whose time is told."""
        return self.publishers * self.messages * (self.queues if self.is_fanout else 1)


LOADS: Final = {
    "publish-16": Load(messages=100_000, consumes=False),
    "confirm-16": Load(messages=100_000, confirms=True, consumes=False),
    "confirm-1k": Load(1024, messages=20_000, confirms=True, consumes=False),
    "through-16": Load(confirms=True, acknowledges=True),
    "through-1k": Load(1024, messages=20_000, confirms=True, acknowledges=True),
    "fanout-20": Load(queues=20, messages=10_000, is_fanout=True),
    "fanout-20-1k": Load(1024, queues=20, messages=2_000, confirms=True, acknowledges=True, is_fanout=True),
    "clients-20": Load(1024, 20, 20, messages=1_500, confirms=True, acknowledges=True),
    "mixed-20": Load(1024, 20, 20, messages=1_500, confirms=True, acknowledges=True, is_mixed=True),
}


class _Link:
    """A connection whose output is sent as the socket takes it."""

    def __init__(self, peer: BasicPeer) -> None:
        self.socket: socket.socket = peer.socket
        self.socket.setblocking(False)
        self._output = memoryview(b"")
        self._buffer = bytearray(_RECEIVE)

    @property
    def is_sending(self) -> bool:
        """Whether some output is left."""
        return bool(self._output)

    def _send(self, data: bytes) -> None:
        self._output = memoryview(data)
        self.flush()

    def flush(self) -> None:
        """Send output as far as the socket takes it."""
        try:
            self._output = self._output[self.socket.send(self._output) :]
        except BlockingIOError:
            return

    def _receive(self) -> int:
        count = self.socket.recv_into(self._buffer)
        assert count, "the broker has closed the connection"
        return count


class _Publisher(_Link):
    """Sends messages, and reads their confirms."""

    def __init__(self, peer: BasicPeer, load: Load, keys: Sequence[str]) -> None:
        if load.confirms:
            peer.call("confirm.select")
        exchange = _EXCHANGE if load.is_fanout else ""
        messages = [peer.message(key, bytes(load.size), exchange=exchange) for key in keys]
        self._chunk = b"".join(messages[number % len(messages)] for number in range(_CHUNK))
        self._chunks = max(1, _SEND_BYTES // len(self._chunk))
        self._confirms, self._left = load.confirms, b""
        self.sent = self.confirmed = self.end = 0
        super().__init__(peer)

    def work(self) -> None:
        """Send what may be sent."""
        if self._output:
            self.flush()
        while not self._output and self.sent < self.end:
            count = min(self._chunks, (self.end - self.sent) // _CHUNK)
            if self._confirms:
                count = min(count, (_WINDOW - (self.sent - self.confirmed)) // _CHUNK)
            if count <= 0:
                return
            self.sent += count * _CHUNK
            self._send(self._chunk * count)

    def read(self) -> None:
        """Take confirms."""
        data = self._left + bytes(memoryview(self._buffer)[: self._receive()])
        whole = len(data) // ACK.size
        self._left = data[whole * ACK.size :]
        if whole:
            *_, tag, _, _ = ACK.unpack_from(data, (whole - 1) * ACK.size)
            assert tag <= self.sent
            self.confirmed = max(self.confirmed, tag)

    @property
    def is_done(self) -> bool:
        """Whether the burst was sent and confirmed."""
        return not self._output and self.sent >= self.end and (not self._confirms or self.confirmed >= self.end)


class _Consumer(_Link):
    """Counts deliveries, and acknowledges them."""

    def __init__(self, peer: BasicPeer, load: Load, queue: str) -> None:
        exchange, key = (_EXCHANGE, "") if load.is_fanout else ("", queue)
        deliver = encode_method("basic.deliver", consumer_tag=_TAG, delivery_tag=1, exchange=exchange, routing_key=key)
        self._size = 3 * OVERHEAD + len(deliver) + len(encode_header(load.size, PERSISTENT)) + load.size
        if load.acknowledges:
            peer.call("basic.qos", prefetch_count=_PREFETCH)
        peer.call("basic.consume", queue=queue, consumer_tag=_TAG, no_ack=not load.acknowledges)
        self._acknowledges, self._bytes, self._acknowledged = load.acknowledges, 0, 0
        super().__init__(peer)

    @property
    def count(self) -> int:
        """Messages so far."""
        return self._bytes // self._size

    def work(self) -> None:
        """Send output that is left."""
        if self._output:
            self.flush()

    def read(self) -> None:
        """Take deliveries."""
        self._bytes += self._receive()
        if self._acknowledges and not self._output:
            count = self.count // _CHUNK * _CHUNK
            if count > self._acknowledged:
                self._acknowledged = count
                self._send(pack_ack(count, multiple=True))


class Side:
    """One broker, with its clients."""

    def __init__(self, broker: RunningBroker, load: Load) -> None:
        self._broker, self._load = broker, load
        self._control = control = BasicPeer(broker.port)
        self._queues = [f"bench-{number:02}" for number in range(load.queues)]
        if load.is_fanout:
            control.call("exchange.declare", exchange=_EXCHANGE, type="fanout", durable=True)
        for queue in self._queues:
            control.call("queue.declare", queue=queue, durable=True)
            if load.is_fanout:
                control.call("queue.bind", queue=queue, exchange=_EXCHANGE)
        self._consumers = [_Consumer(BasicPeer(broker.port), load, queue) for queue in self._queues if load.consumes]
        self._publishers = []
        for number in range(load.publishers):
            keys = [""] if load.is_fanout else self._queues if load.is_mixed else [self._queues[number]]
            self._publishers.append(_Publisher(BasicPeer(broker.port), load, keys))
        self._selector = selectors.DefaultSelector()
        for link in (*self._publishers, *self._consumers):
            self._selector.register(link.socket, selectors.EVENT_READ, link)

    def burst(self) -> float:
        """Send a burst, and wait for its confirms and deliveries. Microseconds for each message."""
        load, publishers, consumers, selector = self._load, self._publishers, self._consumers, self._selector
        before = processor_ns(self._broker.pid)
        wanted = sum(each.count for each in consumers) + load.counted
        for publisher in publishers:
            publisher.end += load.messages
        waits: dict[_Link, int] = dict.fromkeys((*publishers, *consumers), selectors.EVENT_READ)
        while not (
            all(each.is_done for each in publishers)
            and (not consumers or sum(each.count for each in consumers) >= wanted)
        ):
            for link in waits:
                link.work()  # type: ignore[attr-defined]
                mask = selectors.EVENT_READ | selectors.EVENT_WRITE if link.is_sending else selectors.EVENT_READ
                if waits[link] != mask:
                    waits[link] = mask
                    selector.modify(link.socket, mask, link)
            for key, events in selector.select(1.0):
                if events & selectors.EVENT_READ:
                    key.data.read()
        for link, mask in waits.items():
            if mask != selectors.EVENT_READ:
                selector.modify(link.socket, selectors.EVENT_READ, link)
        if not consumers:  # the broker has read everything when it answers a last request on each connection
            self._settle()
        took = processor_ns(self._broker.pid) - before
        if not consumers:
            for queue in self._queues:
                self._control.call("queue.purge", queue=queue)
        return took / 1000 / load.counted

    def _settle(self) -> None:
        expected = self._load.messages * self._load.publishers
        while sum(self._depth(queue) for queue in self._queues) < expected:
            pass

    def _depth(self, queue: str) -> int:
        depth: int = self._control.call("queue.declare", queue=queue, passive=True).values["message_count"]
        return depth


@contextmanager
def sides(checkouts: Sequence[Path], load: Load, options: Sequence[str], directory: Path) -> Iterator[list[Side]]:
    """Brokers of checkouts on empty data directories, warmed up."""
    with ExitStack() as opened:
        found = []
        for checkout in checkouts:
            name = opened.enter_context(tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory))
            broker = RunningBroker(Path(name), *_OPTIONS, *options)
            broker.runner, broker.environment = ("-P",), {"PYTHONPATH": str(checkout)}
            opened.callback(broker.close)
            found.append(Side(broker.start(), load))
        for side in found:
            side.burst()
        yield found


def one_round(both: Sequence[Side], pairs: int) -> list[list[float]]:
    """Pairs of bursts: microseconds for each message, of each side."""
    found: list[list[float]] = []
    for number in range(pairs):
        ordered = both if number % 2 else both[::-1]
        took = [side.burst() for side in ordered]
        found.append(took if number % 2 else took[::-1])
    return found


@click.command()
@click.argument("loads", nargs=-1, type=click.Choice(list(LOADS)))
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--pairs", default=8, show_default=True, help="In one round.")
@click.option("--rounds", default=2, show_default=True, help="Each with new brokers.")
@click.option("--options", default="", help="Options of the brokers.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(tempfile.gettempdir()))
def main(loads: tuple[str, ...], against: Path | None, pairs: int, rounds: int, options: str, directory: Path) -> None:
    """Measure the brokers of this checkout and another one in pairs."""
    checkouts = [ROOT] if against is None else [ROOT, against.resolve()]
    for name in loads or LOADS:
        found: list[list[float]] = []
        for _ in range(rounds):
            with sides(checkouts, LOADS[name], options.split(), directory) as both:
                found += one_round(both, pairs)
        line = f"{name:14s} {median(each[0] for each in found):8.3f} µs"
        if against is not None:
            ratio = estimate([each[0] / each[1] for each in found])
            other = median(each[1] for each in found)
            line += f"   other {other:8.3f} µs   ratio {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        click.echo(f"{line}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
