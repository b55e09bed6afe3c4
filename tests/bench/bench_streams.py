"""What three consumers of one stream cost the broker, compared with one alone.

    python -m tests.bench.bench_streams --messages 200000 --size 16 --rounds 3

A stream is filled over AMQP 0-9-1. Then, in pairs, one consumer reads it from the beginning, and three do so at once,
from connections of their own. Printed are deliveries per second, and the broker's processor time for a delivery; then
the median of the ratios of the pairs: with 1, each of three consumers costs what one alone does. Also what the stream
takes of the broker's memory, and how long a start takes.
"""

from __future__ import annotations

import argparse
import selectors
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from qstore.formats.amqp_0_9_1.frames import OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.values import INT64, TypedMap, TypedValue
from tests.bench.basic_frames import pack_ack
from tests.support.basic_peer import BasicPeer
from tests.support.running_broker import RunningBroker

_STREAM: Final = "stream"
_CHUNK: Final = 500  # messages that are sent at once
_WINDOW: Final = 2_000
_RECEIVE: Final = 512 << 10


def fill(port: int, count: int, size: int) -> None:
    """Declare the stream, and publish so many messages, in chunks of which each waits for its confirms."""
    peer = BasicPeer(port)
    peer.call("queue.declare", queue=_STREAM, durable=True, arguments={"x-queue-type": "stream"})
    peer.call("confirm.select")
    chunk = peer.message(_STREAM, b"x" * size) * _CHUNK
    for end in range(_CHUNK, count + 1, _CHUNK):
        peer.socket.sendall(chunk)
        confirmed = 0
        while confirmed < end:
            confirmed = peer.expect("basic.ack").values["delivery_tag"]
    peer.socket.close()


class Consumer:
    """Counts deliveries by their bytes, and acknowledges them.

    Attributes:
        count: of all deliveries.
    """

    def __init__(self, port: int, size: int) -> None:
        peer = BasicPeer(port)
        headers = TypedMap((("x-stream-offset", TypedValue(INT64, 1)),))
        deliver = encode_method("basic.deliver", consumer_tag="c", delivery_tag=1, routing_key=_STREAM)
        header = encode_header(size, Properties(delivery_mode=2, headers=headers))
        self._stride = 3 * OVERHEAD + len(deliver) + len(header) + size
        self.socket, self.count, self._bytes = peer.socket, 0, 0
        peer.call("basic.qos", prefetch_count=_WINDOW)
        arguments = {"x-stream-offset": "first"}
        peer.send("basic.consume", queue=_STREAM, consumer_tag="c", nowait=True, arguments=arguments)

    def read(self) -> None:
        """Count and acknowledge what came in."""
        more = len(self.socket.recv(_RECEIVE))
        assert more, "the broker has hung up"
        self._bytes += more
        count = self._bytes // self._stride
        if count > self.count:
            self.count = count
            self.socket.sendall(pack_ack(count, multiple=True))


def consume(broker: RunningBroker, consumers: int, count: int, size: int) -> tuple[float, float]:
    """Have so many consumers read all. Returns deliveries per second, and the broker's seconds for one."""
    began, before = time.monotonic(), broker.cpu_seconds()
    readers = [Consumer(broker.port, size) for _ in range(consumers)]
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        while any(reader.count < count for reader in readers):
            for key, _ in selector.select():
                key.data.read()
    seconds, used = time.monotonic() - began, broker.cpu_seconds() - before
    for reader in readers:
        assert reader.count == count
        reader.socket.close()
    return consumers * count / seconds, used / (consumers * count)


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description="What consumers of a stream cost.")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    count = given.messages // _CHUNK * _CHUNK
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        broker = RunningBroker(Path(directory)).start()
        try:
            empty = broker.resident_bytes()
            began, before = time.monotonic(), broker.cpu_seconds()
            fill(broker.port, count, given.size)
            seconds, used = time.monotonic() - began, broker.cpu_seconds() - before
            print(f"publish     {count / seconds:>9,.0f}/s   processor: {used / count * 1e6:.2f} us")
            ratios = []
            for _ in range(given.rounds):
                costs = []
                for consumers in (1, 3):
                    rate, cost = consume(broker, consumers, count, given.size)
                    costs.append(cost)
                    print(
                        f"{consumers} consumers {rate:>9,.0f}/s   processor: {cost * 1e6:.2f} us a delivery", flush=True
                    )
                ratios.append(costs[0] / costs[1])
            print(f"each of three has {statistics.median(ratios):.2f} of the rate of one alone, by processor time")
            print(f"memory: {(broker.resident_bytes() - empty) / count:.1f} bytes a message, with what was read last")
            broker.kill()
            before = time.monotonic()
            broker.start()
            print(f"a start after a kill took {time.monotonic() - before:.1f} s; ", end="")
            print(f"{(broker.resident_bytes() - empty) / count:.1f} bytes of memory a message")
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
