"""Flow control by queue depth with real brokers: publishers that honour completion wait and are not refused, and what
was held back by a broker that is killed was never confirmed, and is not lost."""

from __future__ import annotations

import threading
from typing import Final

import pytest

from qstore import Connection, Message
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from tests.support.raw_peer import RawPeer, SessionEndedError
from tests.support.running_broker import BrokerMaker

_STOP: Final = {"qpid.flow_stop_count": 3, "qpid.flow_resume_count": 2}
_QUIET: Final = 0.3


def _flood(port: int, queue: str, *, count: int, size: int, capacity: int) -> threading.Thread:
    """A client that sends as fast as it may."""

    def send() -> None:
        with Connection(f"127.0.0.1:{port}") as connection, connection.session() as session:
            sender = session.sender(queue, capacity=capacity)
            for number in range(count):
                sender.send(Message(b"%06d" % number + b"x" * size), sync=False)
            sender.sync()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_flood_on_a_queue_with_the_default_limit(make_broker: BrokerMaker) -> None:
    """130 MB through a queue of 100 MiB: the sender waits at 80 %, and all comes."""
    broker, count, capacity = make_broker().start(), 1300, 50
    with RawPeer(broker.port) as peer:
        peer.declare("q", durable=False)
        flood = _flood(broker.port, "q", count=count, size=100_000, capacity=capacity)
        before = -1
        while before < (now := peer.message_count("q")):  # until nothing comes any more
            before = now
            flood.join(_QUIET)
        assert flood.is_alive()
        stopped_at = 1 + (80 << 20) // (100_006 + MESSAGE_OVERHEAD)  # header not counted
        assert stopped_at - 5 < now - capacity <= stopped_at
        peer.subscribe("q", messages=100)
        for number in range(count):
            (delivery,) = peer.take(1)
            assert int(delivery.body[:6]) == number
            peer.accept([delivery])
        peer.sync()
        assert peer.message_count("q") == 0
    flood.join()


def test_a_client_that_waits_for_nothing_is_refused(make_broker: BrokerMaker) -> None:
    broker = make_broker("--default-queue-limit", "100000").start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", durable=False)
        for _ in range(200):
            peer.publish("q", b"x" * 1000, durable=False)
        with pytest.raises(SessionEndedError, match="Maximum depth exceeded"):
            peer.sync()


def test_what_was_held_back_by_a_killed_broker(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer, RawPeer(broker.port) as other:
        peer.declare("q", arguments=_STOP)
        numbers = [peer.publish("q", b"%d" % number) for number in range(6)]
        peer.wait_for(numbers[2])
        while peer.process(_QUIET):
            pass
        assert [number in peer.completed for number in numbers] == [True] * 3 + [False] * 3
        assert other.message_count("q") == 6
        broker.kill()
    broker.start()
    with RawPeer(broker.port) as peer, RawPeer(broker.port) as other:
        held = peer.publish("q", b"6")
        while peer.process(_QUIET):
            pass
        assert held not in peer.completed
        other.subscribe("q")
        deliveries = other.take(7)
        assert [delivery.body for delivery in deliveries] == [b"%d" % number for number in range(7)]
        other.accept(deliveries, sync=True)
        peer.wait_for(held)


def test_options(make_broker: BrokerMaker) -> None:
    """Without defaults a full queue refuses at once; what a queue asks for counts nevertheless."""
    none = ("--default-flow-stop-threshold", "0", "--default-flow-resume-threshold", "0")
    broker = make_broker(*none, "--default-event-threshold-ratio", "50").start()
    with RawPeer(broker.port) as peer:
        peer.declare("plain", durable=False, arguments={"qpid.max_count": 10})
        peer.declare("asked", durable=False, arguments={"qpid.max_count": 10, **_STOP})
        numbers = [peer.publish("plain", b"x", durable=False) for _ in range(10)]
        peer.wait_for(numbers[-1])
        numbers = [peer.publish("asked", b"x", durable=False) for _ in range(4)]
        peer.wait_for(numbers[2])
        while peer.process(_QUIET):
            pass
        assert numbers[3] not in peer.completed
    assert 'Queue "plain" has reached its alert threshold: 5 messages' in broker.log_text()
