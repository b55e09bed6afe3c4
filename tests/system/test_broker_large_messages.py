"""Memory of a live broker for a large message: its content once, and little besides."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.processes import memory_of
from tests.support.raw_peer import RawPeer, checksum_of, publish_large, receive_large
from tests.support.running_broker import BrokerMaker

_ALLOWED: Final = 64 << 20
"""Bytes that the broker may hold besides the content: twice what a measurement has shown."""


@pytest.mark.parametrize("size", [256 << 20, pytest.param(1 << 30, marks=pytest.mark.soak)])
def test_memory_of_one_large_message(make_broker: BrokerMaker, size: int) -> None:
    broker = make_broker("--max-message-size", str(size + (1 << 20)), "--default-queue-limit", "0").start()
    with RawPeer(broker.port) as publisher, RawPeer(broker.port) as consumer:
        publisher.declare("large", durable=False)
        base = memory_of(broker.pid, "VmHWM")
        publish_large(publisher, "large", size)
        publisher.sync()
        consumer.subscribe("large")
        assert receive_large(consumer) == checksum_of(size)
        most = memory_of(broker.pid, "VmHWM")
        print(f"{size >> 20} MiB: the broker held {(most - base) >> 20} MiB more, {most >> 20} MiB in all")
        assert most - base <= size + _ALLOWED
        consumer.call("message.accept", transfers=((0, 0),))
        assert publisher.message_count("large") == 0
        publisher.end()
        consumer.end()
