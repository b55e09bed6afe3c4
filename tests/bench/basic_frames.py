"""Frames of AMQP 0-9-1 that benchmarks make before they measure: a queue, the size of its deliveries, and acks."""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.amqp_0_9_1.frames import METHOD, OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import encode_header
from tests.support.basic_peer import PERSISTENT, BasicPeer

QUEUE: Final = "bench"
_TAG: Final = "c"
ACK: Final = struct.Struct(">BHIHHQBB")  # the frame of a whole basic.ack
_BASIC: Final = 60  # class
_ACK_METHOD: Final = 80
_END: Final = 0xCE


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


def percentiles(latencies: list[float]) -> list[float]:
    """Median, 99th and 99.9th percentile."""
    ordered = sorted(latencies)
    return [ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99, 0.999)]
