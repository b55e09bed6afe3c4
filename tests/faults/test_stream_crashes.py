"""Streams on a simulated disk: brokers are killed at the calls that change it, while messages arrive and leave.

What was confirmed is there, each message has the offset that it had, nothing is missing between the first and the last,
nothing has left that retention had not chosen, and no name is ahead of what its consumer has accepted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from unittest.mock import patch

import pytest

from qstore.broker.model import streams
from qstore.broker.model.queues import composition, stream_log
from qstore.broker.model.queues.consumers import TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.queues.stream_log import StreamLog
from qstore.broker.model.run import MessageRun
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import Planted, Simulator, require
from tests.faults.test_displacement_crashes import Publisher
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs")

START: Final = 1_700_000_000.0
ROOMY: Final = Geometry(12, 8192)
MOST: Final = 60  # messages that the publisher lets gather
ARGUMENTS: Final = {"x-queue-type": "stream", "x-max-length-bytes": 300}
NAME: Final = "worker"


@contextmanager
def tiny_segments() -> Iterator[None]:
    """Segments have 4 messages, and their marks are stored soon."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(stream_log, "MAX_MESSAGES", 4))
        stack.enter_context(patch.object(composition, "MIN_SEGMENT", 64))
        stack.enter_context(patch.object(composition, "STREAM_CACHE_BYTES", 200))
        stack.enter_context(patch.object(streams, "MARKS_EVERY", 3.0))
        stack.enter_context(patch.object(streams, "MAX_MARKS", 4))
        yield


@dataclass
class Promises:
    """What the next life may find.

    Attributes:
        now: seconds since 1970.
        bodies: offset -> the body of the message that got it.
        begin: the stream begins there at the latest.
        end: it ends there at the soonest.
        accepted: the offset that the name may have at most.
    """

    now: float = START
    bodies: dict[int, bytes] = field(default_factory=dict)
    begin: int = 0
    end: int = 0
    accepted: int = 0


class StreamPublisher(Publisher):
    """Publishes numbered messages to the stream."""

    def publish(self) -> None:
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": "s"})
        payload = encode_command("message.transfer", accept_mode=1)
        self._command_of.append(self.send_payload(payload, header, b"%d" % self.published))
        self.published += 1


class Worker:
    """A consumer with a name."""

    kind = "all"
    destination = "worker"

    def __init__(self) -> None:
        self.acquires, self.is_waiting, self.has_credit = True, False, True
        self.cursor: Any = None
        self.arguments = typed_map({"x-stream-offset": "first", "x-stream-consumer-name": NAME})
        self.held: list[Entry] = []

    def deliver(self, entry: Entry) -> int:
        self.held.append(entry)
        return TAKEN if len(self.held) < 6 else TAKEN_LAST

    def room_for(self, _run: MessageRun) -> int:
        return 0

    def deliver_run(self, _run: object) -> int:
        raise AssertionError("a run")

    def queue_deleted(self) -> None:
        """It stays."""


class StreamLife:
    """One process, a publisher, and a consumer with a name."""

    def __init__(
        self, disk: SimulatedDisk, promises: Promises | None, rng: random.Random, *, must_be_clean: bool
    ) -> None:
        known = promises or Promises()
        self.rng, self.bodies, self.now = rng, dict(known.bodies), [known.now]
        self.begin, self.end, self.accepted = known.begin, known.end, known.accepted
        self.dropped = self.publishers = 0
        self.process = BrokerProcess(
            disk, rng, lambda: self.now[0], lambda: None, must_be_clean=must_be_clean, pages=rng.random() < 0.5
        )
        self.process.store.geometry = ROOMY
        self._publisher: StreamPublisher | None = None
        self._first = 0  # offset of the publisher's first message
        self._worker = Worker()
        try:
            if self.end or "s" in self.process.broker.default_host.queues:
                self._check()
        except BaseException:
            self.process.discard()
            raise

    @property
    def stream(self) -> Stream:
        queue = self.process.broker.default_host.queues["s"]
        assert isinstance(queue, Stream)
        return queue

    def _check(self) -> None:
        require("s" in self.process.broker.default_host.queues, "the stream is gone")
        log = self.stream.log
        found: dict[int, bytes] = {}
        for segment in log.segments:
            require(segment.first == (max(found) + 1 if found else log.begin), f"a gap before {segment.first}")
            for number, message in enumerate(self.stream._source.load(segment.rids)):
                assert message is not None
                found[segment.first + number] = bytes(message.body)
        end = max(found) + 1 if found else log.end
        require(log.begin <= self.begin or not self.bodies, f"it begins at {log.begin}, after {self.begin}")
        require(end >= self.end, f"it ends at {end}: {self.end} messages were confirmed")
        for offset, body in found.items():
            require(self.bodies.get(offset) == body, f"{body!r} has offset {offset}: {self.bodies.get(offset)!r}")
        self.bodies = {offset: body for offset, body in self.bodies.items() if offset < end}
        self.end, self.begin = end, log.begin
        tracked = self.stream.tracked.get(NAME)
        require(tracked is None or tracked.offset <= max(self.accepted, log.begin), "the name is ahead")

    # ---- work ----

    def work(self, steps: int) -> None:
        if self._publisher is None:
            self._begin()
        process = self.process
        deeds = [
            (self.publish, 40), (process.tick, 40), (process.collect, 30), (self.consume, 15), (self.look, 10),
            (self.pass_time, 10),
        ]  # fmt: skip
        for deed in self.rng.choices([deed for deed, _ in deeds], [weight for _, weight in deeds], k=steps):
            deed()
            self._note()

    def _begin(self) -> None:
        publisher = self._publisher = StreamPublisher(self.process, in_transactions=False)
        publisher.send("queue.declare", queue="s", durable=True, arguments=typed_map(ARGUMENTS))
        publisher.wire.carry()
        self.process.settle()
        self._first = self.stream.log.end
        self.stream.add_consumer(self._worker)

    def publish(self) -> None:
        """Some messages, which come over at once."""
        assert self._publisher is not None
        for _ in range(self.rng.choice((1, 1, 3, 8))):
            if self.stream.message_count + self._publisher.published < MOST + self.stream.log.end - self._first:
                number = self._publisher.published
                self.bodies[self._first + number] = b"%d" % number
                self._publisher.publish()
        self._publisher.wire.carry()

    def _note(self) -> None:
        """What is confirmed."""
        assert self._publisher is not None
        self.end = max(self.end, self._first + self._publisher.stored)
        tracked = self.stream.tracked[NAME]
        self.accepted = max(self.accepted, tracked.offset)
        self.begin = max(self.begin, self.stream.log.begin)

    def consume(self) -> None:
        """The consumer accepts some of what it has."""
        worker, stream = self._worker, self.stream
        stream.wake(worker)
        stream.dispatch()
        self.rng.shuffle(worker.held)
        for _ in range(self.rng.randint(0, len(worker.held))):
            stream.accepted(worker.held.pop())

    def look(self) -> None:
        """As the server does twice a second."""
        work = self.process.broker.streams.look()
        if work is not None:
            self.begin = max(self.begin, self.stream.to_drop())
            self.dropped += 1
            self.process.run(work, lambda _: None)

    def pass_time(self) -> None:
        self.now[0] += 1.0

    # ---- the end ----

    def promises(self) -> Promises:
        return Promises(self.now[0], dict(self.bodies), self.begin, self.end, self.accepted)

    def stop(self) -> bool:
        if self._publisher is not None:
            self.process.settle()
            self._note()
            self.begin = max(self.begin, self.stream.to_drop())
        require(self.process.stop(), "a stop that is not clean")
        return True

    def discard(self) -> None:
        self.process.discard()


@dataclass(kw_only=True)
class StreamCrashes(Simulator):
    """Counted are `dropped`, how often messages had to leave, and `messages`."""

    steps: ClassVar = 160
    stops: ClassVar = 0.5
    steps_again: ClassVar = 40

    def start(
        self, disk: SimulatedDisk, promises: Promises | None, rng: random.Random, *, must_be_clean: bool
    ) -> StreamLife:
        return StreamLife(disk, promises, rng, must_be_clean=must_be_clean)

    def seen(self, life: StreamLife) -> None:  # type: ignore[override]
        self.counts["dropped"] += life.begin
        self.counts["messages"] += life.end


@replaces
def test_offsets_and_what_was_confirmed_survive_kills() -> None:
    crashes = StreamCrashes(share=0.05)
    with tiny_segments():
        crashes.run_all(seeds_of_the_day(12))
    assert crashes.kill_points > 100
    assert crashes.counts["dropped"] > 100
    assert crashes.counts["messages"] > 500


# ---- bugs planted on purpose ----


def _unmarked() -> Any:
    """Messages leave before the mark of the first that stays is stored."""
    before = streams.Streams._look_at

    def look_at(self: Any, stream: Stream, known: Any, plan: Any) -> None:
        before(self, stream, known, plan)
        plan.marks.clear()

    return patch.object(streams.Streams, "_look_at", look_at)


def _uncounted() -> Any:
    """A restart begins at 0."""
    return patch.object(StreamLog, "restore", lambda _self, _marks, _now: None)


BUGS: Final = {"unmarked": _unmarked, "uncounted": _uncounted}
PLANTED: Final = Planted(BUGS, lambda _: StreamCrashes(share=0.1), range(10), {})


@replaces
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    with tiny_segments():
        assert PLANTED.is_found(name)
