"""A durable queue whose journal is full to its threshold refuses a message, loses none, and goes on when drained."""

from __future__ import annotations

import pytest

from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker

_SMALL = ("--auto-expand", "no", "--num-jfiles", "4", "--jfile-size-pgs", "1")
_RESOURCE_LIMIT_EXCEEDED = 506


def _fill(port: int, queue: str, size: int) -> tuple[int, int, SessionEndedError]:
    """Publish until the session is ended: messages sent, and completed; and how it ended."""
    with RawPeer(port) as peer:
        try:
            for number in range(10_000):
                peer.publish(queue, b"%06d" % number + b"x" * size, sync=True)
                while peer.process(0) or peer.sent - peer.completed.below > 20:
                    pass
        except SessionEndedError as ended:
            return peer.sent, sum(number in peer.completed for number in range(peer.sent)), ended
    raise AssertionError("the journal is never full")


def test_refusals_lose_no_message(make_broker: BrokerMaker) -> None:
    broker = make_broker(*_SMALL).start()
    with RawPeer(broker.port) as peer:
        peer.declare("full")
        peer.declare("other")
        peer.end()
    sent, completed, ended = _fill(broker.port, "full", 1000)
    assert ended.code == _RESOURCE_LIMIT_EXCEEDED
    assert 'Enqueue capacity threshold exceeded on queue "full"' in ended.text
    # The smallest ring holds 252 KiB; with its header a message takes nine blocks of 128 bytes, and 80 % may be filled.
    assert 120 < completed < 180
    assert completed < sent <= completed + 21
    with RawPeer(broker.port) as peer:  # other queues do not mind
        peer.publish("other", b"x")
        peer.sync()
        held = peer.message_count("full")
    assert completed <= held <= sent
    broker.kill()
    broker.start()
    with RawPeer(broker.port) as peer:
        assert peer.message_count("full") == held
        peer.subscribe("full")
        deliveries = peer.take(held)
        assert [int(delivery.body[:6]) for delivery in deliveries] == list(range(held))
        peer.accept(deliveries, sync=True)
        peer.sync()
        assert peer.message_count("full") == 0
        for number in range(completed // 2):
            peer.publish("full", b"%06d" % number + b"x" * 1000)
        peer.sync()
        assert [int(delivery.body[:6]) for delivery in peer.take(completed // 2)] == list(range(completed // 2))
        peer.end()


def test_continues_while_it_is_drained(make_broker: BrokerMaker) -> None:
    """Refused, a bit drained, and full again: many laps around the smallest ring, and no message is lost or doubled."""
    broker = make_broker(*_SMALL).start()
    with RawPeer(broker.port) as peer:
        peer.declare("full")
        peer.end()
    for _ in range(6):
        _, completed, ended = _fill(broker.port, "full", 2000)
        assert ended.code == _RESOURCE_LIMIT_EXCEEDED
        with RawPeer(broker.port) as peer:
            held = peer.message_count("full")
            assert held >= completed
            peer.subscribe("full", messages=held - 5, window=False)
            taken = peer.take(held - 5)
            assert len({delivery.number for delivery in taken}) == held - 5
            peer.accept(taken, sync=True)
            peer.sync()
            assert peer.message_count("full") == 5
            peer.end()
    assert broker.stop() == 0


def test_a_transaction_that_does_not_fit_is_not_done_at_all(make_broker: BrokerMaker) -> None:
    broker = make_broker(*_SMALL).start()
    with RawPeer(broker.port) as peer:
        peer.declare("full")
        peer.declare("roomy", arguments={"qpid.file_count": 8, "qpid.file_size": 24})
        peer.call("tx.select")
        for number in range(400):
            peer.publish("roomy", b"%d" % number)
            peer.publish("full", b"x" * 1000)
        with pytest.raises(SessionEndedError) as ended:
            peer.call("tx.commit")
    assert ended.value.code == _RESOURCE_LIMIT_EXCEEDED
    for _ in range(2):
        with RawPeer(broker.port) as peer:
            assert [peer.message_count(queue) for queue in ("full", "roomy")] == [0, 0]
            peer.end()
        broker.kill()
        broker.start()
