"""Load of AMQP 0-9-1 for any broker of that protocol, from a process of its own.

    python -m tests.bench.basic_load PORT --size 1024 --seconds 5 --broker-pid PID [--rate 1000]

As `load_generator`, whose loop it uses: one connection publishes persistent messages in confirm mode to a durable
queue, with at most a window of them unconfirmed, and one consumes with as many unacknowledged, and acknowledges what
one read brought with one basic.ack. All that can be made before is made before. Deliveries of one queue have one size,
so they are counted by their bytes.

With --rate so many messages a second are published, each with the time at which it was due in its body; what is told
is how long after that it was delivered: the median, 99th and 99.9th percentile, in milliseconds. A message that
the generator sends late counts from when it was due.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import struct
import time
from dataclasses import asdict
from typing import Final

import click
import orjson

from qstore.formats.amqp_0_9_1.frames import METHOD, OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import encode_header
from tests.bench.load_generator import BACKLOG, CHUNK, Counted, Result, run
from tests.support.basic_peer import PERSISTENT, BasicPeer

QUEUE: Final = "bench"
_TAG: Final = "c"
_RECEIVE: Final = 512 << 10
ACK: Final = struct.Struct(">BHIHHQBB")  # the frame of a whole basic.ack
_BASIC: Final = 60  # class
_ACK_METHOD: Final = 80
_END: Final = 0xCE
_DUE: Final = struct.Struct(">d")
_LATE_SECONDS: Final = 5.0  # how long is waited for the last messages


def declare(peer: BasicPeer) -> None:
    """Declare the queue, without what another run has left in it."""
    peer.call("queue.delete", queue=QUEUE)
    peer.call("queue.declare", queue=QUEUE, durable=True)


def delivery_size(size: int) -> int:
    """Bytes of the frames of a delivery."""
    deliver = encode_method("basic.deliver", consumer_tag=_TAG, delivery_tag=1, routing_key=QUEUE)
    header = encode_header(size, PERSISTENT)
    return 3 * OVERHEAD + len(deliver) + len(header) + size


def pack_ack(tag: int, *, multiple: bool) -> bytes:
    """The frame of a basic.ack."""
    return ACK.pack(METHOD, 1, 13, _BASIC, _ACK_METHOD, tag, multiple, _END)


class Publisher:
    """Keeps up to a window of messages unconfirmed, and up to ten in the queue that `consumer` takes from.

    Attributes:
        confirmed: messages that the broker has confirmed.
    """

    def __init__(self, peer: BasicPeer, size: int, window: int, consumer: Counted) -> None:
        peer.call("confirm.select")
        self.socket, self._window, self._consumer = peer.socket, window, consumer
        self._chunk = memoryview(peer.message(QUEUE, b"x" * size) * CHUNK)
        self._rest = self._chunk[:0]
        self._sent = self.confirmed = 0
        self._singly: set[int] = set()
        self._left = b""

    def write(self) -> None:
        """Send while there is room in the window and in the socket."""
        limit = min(self.confirmed + self._window, self._consumer.count + BACKLOG * self._window) - CHUNK
        while self._rest or self._sent <= limit:
            if not self._rest:
                self._rest = self._chunk
                self._sent += CHUNK
            try:
                self._rest = self._rest[self.socket.send(self._rest) :]
            except BlockingIOError:
                return

    def read(self) -> None:
        """Take confirms."""
        data = self._left + self.socket.recv(_RECEIVE)
        assert len(data) > len(self._left), "the broker has hung up"
        whole = len(data) // ACK.size * ACK.size
        for _, _, size, number, method, tag, multiple, end in ACK.iter_unpack(data[:whole]):
            assert (size, number, method, end) == (13, _BASIC, _ACK_METHOD, _END), "not a confirm"
            self._note(tag, multiple=multiple)
        self._left = data[whole:]

    def _note(self, tag: int, *, multiple: bool) -> None:
        if multiple:
            self.confirmed = max(self.confirmed, tag)
        else:  # brokers may confirm in any order
            self._singly.add(tag)
        while self._singly and self.confirmed + 1 in self._singly:
            self.confirmed += 1
            self._singly.discard(self.confirmed)


class Consumer:
    """Counts deliveries by their bytes, and acknowledges them.

    Attributes:
        count: of all deliveries.
    """

    def __init__(self, peer: BasicPeer, size: int, window: int) -> None:
        self.socket = peer.socket
        self.count = self._settled = self._bytes = 0
        self._stride = delivery_size(size)
        peer.call("basic.qos", prefetch_count=window)
        peer.call("basic.consume", queue=QUEUE, consumer_tag=_TAG)

    def read(self) -> None:
        """Count what came in."""
        more = len(self.socket.recv(_RECEIVE))
        assert more, "the broker has hung up"
        self._bytes += more
        self.count = self._bytes // self._stride

    def write(self) -> None:
        """Acknowledge what was counted."""
        if self.count > self._settled:
            ack = pack_ack(self.count, multiple=True)
            try:
                assert self.socket.send(ack) == len(ack)
            except BlockingIOError:
                return
            self._settled = self.count


class TimedConsumer(Consumer):
    """Takes from each body when the message was due.

    Attributes:
        latencies: in seconds, in order of delivery.
    """

    def __init__(self, peer: BasicPeer, size: int, window: int) -> None:
        super().__init__(peer, size, window)
        self._due = self._stride - 1 - size  # where the body begins
        self._left = b""
        self.latencies: list[float] = []

    def read(self) -> None:
        """Take what came in."""
        data = self._left + self.socket.recv(_RECEIVE)
        assert len(data) > len(self._left), "the broker has hung up"
        now, stride = time.perf_counter(), self._stride
        whole = len(data) // stride * stride
        for offset in range(self._due, whole, stride):
            self.latencies.append(now - _DUE.unpack_from(data, offset)[0])
        self._left = data[whole:]
        self.count += whole // stride


def _paced(port: int, size: int, seconds: float, window: int, rate: float) -> list[float]:
    """Publish at a rate. Returns the latencies of the messages after the first second, in milliseconds."""
    taking, sending = BasicPeer(port), BasicPeer(port)
    declare(taking)
    consumer = TimedConsumer(taking, size, window)
    confirms = Publisher(sending, size, window, consumer)
    head, tail = sending.message(QUEUE, b"\0" * size)[: -1 - size], b"x" * (size - _DUE.size) + bytes((_END,))
    selector = selectors.SelectSelector()  # others wait for whole milliseconds
    for link in (consumer, confirms):
        link.socket.setblocking(False)
        selector.register(link.socket, selectors.EVENT_READ, link)
    warm_up, total = int(rate), int(rate * (seconds + 1))
    begin, sent, end = time.perf_counter(), 0, 0.0
    rest = memoryview(b"")
    while consumer.count < total:
        now = time.perf_counter()
        due = min(int((now - begin) * rate) + 1, total)
        if not rest and due > sent:
            rest = memoryview(b"".join(head + _DUE.pack(begin + number / rate) + tail for number in range(sent, due)))
            sent, end = due, now + _LATE_SECONDS
        if rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[sending.socket.send(rest) :]
        if sent == total and now > end:
            raise click.ClickException(f"{total - consumer.count} messages have not come")
        pause = 0.0 if rest else max(0.0, begin + sent / rate - time.perf_counter())
        for key, _ in selector.select(min(pause, 0.05)):
            key.data.read()
        consumer.write()
    return [latency * 1000 for latency in consumer.latencies[warm_up:]]


def percentiles(latencies: list[float]) -> list[float]:
    """Median, 99th and 99.9th percentile."""
    ordered = sorted(latencies)
    return [ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99, 0.999)]


@click.command()
@click.argument("port", type=int)
@click.option("--size", default=1024, show_default=True, help="Bytes of a message's body, from 8.")
@click.option("--seconds", default=5.0, show_default=True, help="How long is measured, after a second of warm-up.")
@click.option("--window", default=1000, show_default=True, help="Unconfirmed messages, and the consumer's prefetch.")
@click.option("--broker-pid", default=0, help="The process whose processor time is taken; this one without it.")
@click.option("--rate", default=0.0, help="Messages a second; as many as possible without it.")
def main(port: int, size: int, seconds: float, window: int, broker_pid: int, rate: float) -> None:
    """Print one JSON object."""
    if rate:
        latencies = _paced(port, size, seconds, window, rate)
        result = Result(messages=len(latencies), seconds=seconds, latencies=percentiles(latencies))
    else:
        taking, sending = BasicPeer(port), BasicPeer(port)
        declare(taking)
        consumer = Consumer(taking, size, window)
        publisher = Publisher(sending, size, window, consumer)
        result = run([publisher, consumer], [consumer], seconds, broker_pid or os.getpid())
    print(orjson.dumps(asdict(result)).decode())


if __name__ == "__main__":
    main()
