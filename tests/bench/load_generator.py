"""Load for a broker, from a process of its own: it publishes, consumes and accepts as fast as the broker lets it.

    python -m tests.bench.load_generator PORT --queues 8 --size 1024 --durable --seconds 5 --broker-pid PID

For each queue there is one connection that publishes and one that consumes. All that can be made before is made
before: a publisher sends the same hundred transfers again and again, of which the last asks for completion, and never
has more than the window's messages unconfirmed; a consumer with a window of the same credit counts deliveries by
comparing their first frame with the first one that it saw, and accepts and completes what one read brought with two
frames. Publishers also wait while a queue holds ten windows, so that what is measured goes on for ever.

The result is one JSON object on the standard output, see `Result`. With --echo the peer is a server that sends back
what it gets (`load_reference`), and what came back is counted; with --latency one message at a time is published,
and the time to its completion is taken.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Final, Protocol

import click
import orjson

from qstore.formats.amqp_0_10.commands import encode_control
from qstore.formats.amqp_0_10.frames import CONTROL, FRAME, LAST_FRAME, LAST_SEGMENT, encode_control_frame
from tests.support.processes import children_of
from tests.support.raw_peer import RawPeer, transfer_frames
from tests.support.running_broker import cpu_seconds

CHUNK: Final = 100
"""Transfers in one piece of a publisher."""
_RECEIVE: Final = 512 << 10
BACKLOG: Final = 10
_WARM_UP_SECONDS: Final = 1.0
_COMPLETED: Final = b"\x02\x0a"
_TIMELY_REPLY: Final = 2
_TRANSFER: Final = b"\x04\x01"
_TICK_SECONDS: Final = 0.002
MARK: Final = b"number: "
"""Prefix of a body that has room for a number after it (`backlog`)."""
NUMBER: Final = struct.Struct(">Q")
_pairs_in = struct.Struct(">II").iter_unpack
# A whole message.accept of one range, and a whole session.completed of one range, on channel 1.
_ACCEPT: Final = FRAME.pack(15, 1, 28, 0, 1, 1, 0) + b"\x04\x02\x01\x00\x01\x00\x00\x08"
_COMPLETE: Final = FRAME.pack(15, 0, 26, 0, 0, 1, 0) + b"\x02\x0a\x01\x00\x00\x08"
_pack_settled = struct.Struct(f">{len(_ACCEPT)}sII{len(_COMPLETE)}sII").pack


@dataclass(slots=True)
class Result:
    """What was measured.

    Attributes:
        messages: consumed (or echoed) while the clock ran.
        seconds: that it ran.
        broker_cpu, helper_cpu, generator_cpu: seconds of processor time; helpers are what the broker has started.
        latencies: median and 99th percentile in milliseconds, only with --latency.
    """

    messages: int = 0
    seconds: float = 0.0
    broker_cpu: float = 0.0
    helper_cpu: float = 0.0
    generator_cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)


class Link(Protocol):
    """One connection in the loop."""

    socket: socket.socket

    def read(self) -> None:
        """Take what came in."""

    def write(self) -> None:
        """Send what may be sent."""


class Counted(Protocol):
    """Counts the messages that were taken from a queue."""

    count: int


class Publisher:
    """Keeps up to a window of messages unconfirmed, and up to ten in the queue that `consumer` takes from.

    Attributes:
        sent: id of the next command; some of those before may not be in the socket yet.
        completed: id of the first command that the broker has not completed.
        end: nothing is sent from this id on.
    """

    def __init__(self, peer: RawPeer, queue: str, size: int, durable: bool, window: int, consumer: Counted) -> None:
        one, last = (
            transfer_frames(queue, body_of(size), durable=durable, sync=sync, frame_limit=peer.frame_limit)
            for sync in (False, True)
        )
        self.socket = peer.socket
        self._chunk = bytearray(one * (CHUNK - 1) + last)
        self._stride = len(one)
        self._rest = memoryview(b"")
        self._reply = b""
        self.sent = self.completed = self._base = peer.sent
        self.end = 1 << 62
        self._window = window
        self._left = b""
        self._consumer = consumer

    def write(self) -> None:
        """Send while there is room in the window and in the socket."""
        taken = self._base + self._consumer.count
        limit = min(self.completed + self._window, taken + BACKLOG * self._window, self.end) - CHUNK
        while self._rest or self.sent <= limit:
            if not self._rest:
                self._rest = memoryview(self._reply + self._next_chunk() if self._reply else self._next_chunk())
                self._reply = b""
                self.sent += CHUNK
            try:
                self._rest = self._rest[self.socket.send(self._rest) :]
            except BlockingIOError:
                return

    def _next_chunk(self) -> bytearray:
        """The transfers that are sent next."""
        return self._chunk

    def read(self) -> None:
        """Take completions."""
        data = self._left + self.socket.recv(_RECEIVE)
        assert len(data) > len(self._left), "the broker has hung up"
        offset, end = 0, len(data)
        while end - offset >= FRAME.size:
            size = data[offset + 2] << 8 | data[offset + 3]
            if end - offset < size:
                break
            assert data[offset + 1] == CONTROL, f"the broker says {data[offset : offset + size]!r}"
            if data[offset + 12 : offset + 14] == _COMPLETED:
                self._note_completed(data[offset + 14], data[offset + 18 : offset + size])
            offset += size
        self._left = data[offset:]

    def _note_completed(self, flags: int, ranges: bytes) -> None:
        for first, last in _pairs_in(ranges):
            if first <= self.completed <= last:
                self.completed = last + 1
        if flags & _TIMELY_REPLY:
            known = encode_control("session.known-completed", commands=((0, self.completed - 1),))
            self._reply = encode_control_frame(1, known)


class Consumer:
    """Counts deliveries, and accepts them.

    Attributes:
        count: of all deliveries.
    """

    def __init__(self, peer: RawPeer) -> None:
        self.socket = peer.socket
        self.count = 0
        self._settled = 0
        self._left = b""
        self._head = b""  # what the first frame of each delivery begins with, and the bytes of a whole delivery
        self._stride = 0

    def read(self) -> None:
        """Count what came in."""
        data = self._left + self.socket.recv(_RECEIVE)
        assert len(data) > len(self._left), "the broker has hung up"
        offset, further = -1, 0
        while further > offset:
            offset, further = further, self._advance(data, further)
        self._left = data[offset:]

    def _advance(self, data: bytes, offset: int) -> int:
        """Past all deliveries that follow, and one control; no further where what follows is not there yet."""
        if not self._stride:
            self._learn(data, offset)
        head, stride, count = self._head, self._stride, self.count
        begin, last, starts = offset, len(data) - stride, data.startswith
        while stride and offset <= last and starts(head, offset):
            offset += stride
            count += 1
        self.count = count
        self._look_at(data, begin, offset)
        if len(data) - offset >= FRAME.size:
            size = data[offset + 2] << 8 | data[offset + 3]
            if data[offset + 1] == CONTROL:
                return offset + size if len(data) - offset >= size else offset
            assert data[offset + 12 : offset + 14] in (b"", _TRANSFER[:1], _TRANSFER), data[offset : offset + size]
        return offset

    def _look_at(self, data: bytes, begin: int, end: int) -> None:
        """These are whole deliveries, one after the other."""

    def _learn(self, data: bytes, begin: int) -> None:
        """What a delivery looks like, if a whole one is there."""
        end = begin
        while len(data) - end >= FRAME.size and data[begin + 1] != CONTROL:
            flags = data[end]
            end += data[end + 2] << 8 | data[end + 3]
            if flags & LAST_SEGMENT and flags & LAST_FRAME:
                self._head, self._stride = data[begin : begin + 14], end - begin
                return

    def write(self) -> None:
        """Accept and complete what was counted."""
        if self.count > self._settled:
            ids = (self._settled, self.count - 1)
            settlement = _pack_settled(_ACCEPT, *ids, _COMPLETE, 0, self.count - 1)
            try:
                assert self.socket.send(settlement) == len(settlement)
            except BlockingIOError:
                return
            self._settled = self.count


def body_of(size: int) -> bytes:
    """A body of `size` bytes."""
    return (MARK + NUMBER.pack(0)).ljust(size, b"x")[:size]


class Echo:
    """Sends the bytes of messages to a server that sends them back, up to a window of them at a time."""

    def __init__(self, port: int, size: int, durable: bool, window: int) -> None:
        one = transfer_frames("queue-0", b"x" * size, durable=durable)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._chunk = memoryview(one * CHUNK)
        self._rest = self._chunk[:0]
        self._each = len(one)
        self._sent = self._got = 0
        self._window = window * len(one)

    @property
    def count(self) -> int:
        """Messages that came back."""
        return self._got // self._each

    def write(self) -> None:
        """Send while there is room in the window and in the socket."""
        while self._rest or self._sent - self._got + len(self._chunk) <= self._window:
            if not self._rest:
                self._rest = self._chunk
                self._sent += len(self._chunk)
            try:
                self._rest = self._rest[self.socket.send(self._rest) :]
            except BlockingIOError:
                return

    def read(self) -> None:
        """Count what came back."""
        more = len(self.socket.recv(_RECEIVE))
        assert more, "the server has hung up"
        self._got += more


# ---- measuring ----


def connect(port: int, queues: int, size: int, durable: bool, window: int) -> tuple[list[Publisher], list[Consumer]]:
    """The connections, each with its session; the queues are declared."""
    publishers, consumers = [], []
    for number in range(queues):
        queue = f"{'durable' if durable else 'transient'}-{number}"
        taking, sending = RawPeer(port), RawPeer(port)
        taking.declare(queue, durable=durable)
        taking.subscribe(queue, messages=window)
        consumers.append(Consumer(taking))
        publishers.append(Publisher(sending, queue, size, durable, window, consumers[-1]))
    return publishers, consumers


def run(links: Sequence[Link], counters: Sequence[Consumer | Echo], seconds: float, pid: int) -> Result:
    """Drive all connections; what is counted after the warm-up."""
    selector = selectors.DefaultSelector()
    for link in links:
        link.socket.setblocking(False)
        selector.register(link.socket, selectors.EVENT_READ, link)
    clocks: list[tuple[float, int, float, float, float]] = []
    for end in (time.perf_counter() + _WARM_UP_SECONDS, time.perf_counter() + _WARM_UP_SECONDS + seconds):
        while time.perf_counter() < end:
            for link in links:
                link.write()
            for key, _ in selector.select(_TICK_SECONDS):
                key.data.read()
        helpers = sum(map(cpu_seconds, children_of(pid)))
        count = sum(counter.count for counter in counters)
        clocks.append((time.perf_counter(), count, cpu_seconds(pid), helpers, time.process_time()))
    began, ended = clocks
    took, messages, broker, helper, own = (after - before for before, after in zip(began, ended, strict=True))
    return Result(int(messages), took, broker, helper, own)


def _latencies(port: int, size: int, seconds: float) -> Result:
    """One durable message after the other, each completed before the next."""
    with RawPeer(port) as peer:
        peer.declare("alone")
        frames = [peer.transfer_frames("alone", b"x" * size, sync=True)]
        took: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            (number,) = peer.publish_all(frames)
            peer.wait_for(number)
            took.append((time.perf_counter() - began) * 1000)
            if len(took) % 1000 == 0:
                peer.call("queue.purge", queue="alone")
        hundredths = quantiles(took, n=100)
        return Result(messages=len(took), seconds=seconds, latencies=[hundredths[49], hundredths[98]])


@click.command()
@click.argument("port", type=int)
@click.option("--queues", default=1, show_default=True, help="Queues, each with a publisher and a consumer.")
@click.option("--size", default=100, show_default=True, help="Bytes of a message's body.")
@click.option("--durable", is_flag=True, help="Durable queues and messages.")
@click.option("--seconds", default=5.0, show_default=True, help="How long is measured, after a second of warm-up.")
@click.option("--window", default=1000, show_default=True, help="Unconfirmed messages, and the consumers' credit.")
@click.option("--broker-pid", default=0, help="The process whose processor time is taken; this one without it.")
@click.option("--echo", is_flag=True, help="The peer sends back what it gets.")
@click.option("--latency", is_flag=True, help="One message at a time.")
def main(
    port: int,
    queues: int,
    size: int,
    durable: bool,
    seconds: float,
    window: int,
    broker_pid: int,
    echo: bool,
    latency: bool,
) -> None:
    """Print one JSON object."""
    if latency:
        result = _latencies(port, size, seconds)
    elif echo:
        echoes = [Echo(port, size, durable, window) for _ in range(queues)]
        result = run(echoes, echoes, seconds, broker_pid or os.getpid())
    else:
        publishers, consumers = connect(port, queues, size, durable, window)
        result = run([*publishers, *consumers], consumers, seconds, broker_pid or os.getpid())
    print(orjson.dumps(asdict(result)).decode())


if __name__ == "__main__":
    main()
