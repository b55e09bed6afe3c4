"""What a queued message costs in the memory of a live broker, beyond its content."""

from __future__ import annotations

from typing import Final

from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker

_MESSAGES: Final = 200_000
_CONTENT: Final = 100
_ALLOWED: Final = 600
"""Bytes for each message, of all that the process holds."""


def test_memory_of_a_queued_transient_message(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        peer.declare("deep", durable=False)
        frames = [peer.transfer_frames("deep", b"x" * _CONTENT, durable=False, sync=True)] * 500
        _publish(peer, frames, 5_000)  # what is made once is made now
        peer.call("queue.purge", queue="deep")
        base = broker.resident_bytes()
        _publish(peer, frames, _MESSAGES)
        assert peer.message_count("deep") == _MESSAGES
        each = (broker.resident_bytes() - base) / _MESSAGES
        print(f"{each:.0f} bytes of memory for each queued message of {_CONTENT} bytes")
        assert each - _CONTENT <= _ALLOWED
        peer.call("queue.purge", queue="deep")
        assert peer.message_count("deep") == 0
        _publish(peer, frames, _MESSAGES)  # what was freed is used again
        assert (broker.resident_bytes() - base) / _MESSAGES - _CONTENT <= _ALLOWED * 1.2
        peer.end()


def _publish(peer: RawPeer, frames: list[bytes], count: int) -> None:
    """So many messages, some thousand unconfirmed at a time."""
    for _ in range(0, count, len(frames)):
        numbers = peer.publish_all(frames)
        while peer.completed.below < numbers.start - 2_000:
            peer.process()
    peer.sync()
