"""Clients that do not read, consumers that stand still, a disk that stands still: the broker's memory stays bounded.

What a queue holds counts as its content; beyond that the tests allow `_ALLOWED` more, for hundreds of megabytes that a
broker without back-pressure would gather.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from tests.support.processes import PATIENCE_SECONDS, children_of, stop_process
from tests.support.raw_peer import PeerGoneError, RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker

_ALLOWED: Final = 48 << 20
_QUIET: Final = 1.0
"""A socket that takes nothing for so long is one that the broker does not read any more."""


def _send_until_blocked(peer: RawPeer, piece: bytes, most: int) -> int:
    """Send `piece` again and again until the broker reads no more, or `most` bytes are sent; the bytes sent.

    What comes in stays in the socket. The last piece may be cut: the connection is of no more use then.
    """
    sent = 0
    peer.socket.settimeout(_QUIET)
    try:
        while sent < most:
            sent += peer.socket.send(piece[sent % len(piece) :])
    except TimeoutError:
        pass
    finally:
        peer.socket.settimeout(PATIENCE_SECONDS)
    return sent


def _still_serves(broker: RunningBroker) -> None:
    """Another client gets through."""
    with RawPeer(broker.port) as peer:
        peer.declare("canary", durable=False, auto_delete=True)
        peer.publish("canary", b"still alive", durable=False)
        peer.subscribe("canary")
        (delivery,) = peer.take(1)
        assert delivery.body == b"still alive"
        peer.accept([delivery])
        peer.end()


def test_a_client_that_does_not_read_its_results(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port, receive_buffer=64 << 10) as peer:
        peer.declare("asked", durable=False)
        base = broker.resident_bytes()
        query = peer.command_frames("queue.query", queue="asked", sync=True)
        sent = _send_until_blocked(peer, query * 500, 64 << 20)
        assert sent < 64 << 20, "the broker reads on without end"
        assert broker.resident_bytes() - base < _ALLOWED
        _still_serves(broker)
    _still_serves(broker)


def test_consumers_that_do_not_read(make_broker: BrokerMaker) -> None:
    """Twenty browsers with unlimited credit on the same 20 MB: unread, they would be 400 MB of buffers."""
    broker = make_broker().start()
    stuck: list[RawPeer] = []
    try:
        with RawPeer(broker.port) as peer:
            peer.declare("large", durable=False)
            for number in range(1_000):
                peer.publish("large", b"%08d" % number + b"x" * 20_000, durable=False, sync=number % 50 == 49)
                peer.process(0)
            peer.sync()
            base = broker.resident_bytes()
            for _ in range(20):
                stuck.append(RawPeer(broker.port, receive_buffer=64 << 10))
                stuck[-1].subscribe("large", acquire_mode=1, accept_mode=1)
            time.sleep(_QUIET)
            assert broker.resident_bytes() - base < _ALLOWED
            _still_serves(broker)
            # What they left in their sockets they can still have, all of it.
            late = stuck[0]
            assert [int(delivery.body[:8]) for delivery in late.take(1_000)] == list(range(1_000))
            peer.end()
    finally:
        for each in stuck:
            each.close()
    _still_serves(broker)


def test_a_consumer_that_stands_still_does_not_hold_up_another(make_broker: BrokerMaker) -> None:
    """It keeps what was sent to it; the rest goes to the one that takes, and all of it comes when the first is gone."""
    broker = make_broker().start()
    with RawPeer(broker.port, receive_buffer=64 << 10) as stuck, RawPeer(broker.port) as peer:
        peer.declare("shared", durable=False)
        stuck.subscribe("shared")
        stuck.sync()
        got: set[int] = set()
        base = broker.resident_bytes()
        for number in range(2_000):
            peer.publish("shared", b"%08d" % number + b"x" * 10_000, durable=False, sync=number % 50 == 49)
            peer.process(0)
        peer.sync()
        assert broker.resident_bytes() - base < 20_000_000 + _ALLOWED
        peer.subscribe("shared", messages=100)
        stuck.close()
        while len(got) < 2_000:
            deliveries = peer.take(1)
            deliveries += [peer.deliveries.popleft() for _ in range(len(peer.deliveries))]
            got.update(int(delivery.body[:8]) for delivery in deliveries)
            peer.accept(deliveries)
        assert got == set(range(2_000))
        peer.end()


def test_a_disk_that_stands_still(make_broker: BrokerMaker) -> None:
    """Durable messages come in while nothing is synced: the broker stops reading, and goes on when the disk does.

    They are for two queues in turns: what only one journal waits for the broker may sync by itself, without the process
    that stands still here. What is completed all the same is content that the queues hold.
    """
    broker = make_broker("--sync", "process", "--num-jfiles", "16", "--jfile-size-pgs", "128").start()
    (helper,) = children_of(broker.pid)
    with RawPeer(broker.port) as peer:
        pair = [peer.transfer_frames(queue, b"x" * 50_000) for queue in ("slow", "still")]
        piece, size = b"".join(pair), len(pair[0])
        for queue in ("slow", "still"):
            peer.declare(queue)
        first = peer.sent
        base = broker.resident_bytes()
        stop_process(helper)
        try:
            most = 100 << 20
            sent = _send_until_blocked(peer, piece, most)
            while peer.process(0.1):
                pass
            completed = (peer.completed.below - first) * size
            assert completed < sent < most, "the broker takes durable messages without end while the disk stands still"
            assert broker.resident_bytes() - base < completed + _ALLOWED
            _still_serves(broker)
        finally:
            os.kill(helper, signal.SIGCONT)
        peer.send_bytes(piece[sent % len(piece) :] if sent % len(piece) else b"")
        pairs = -(-sent // len(piece))
        peer.sent += 2 * pairs
        peer.sync()
        assert [peer.message_count(queue) for queue in ("slow", "still")] == [pairs, pairs]
    assert broker.stop() == 0


def test_a_publisher_faster_than_the_disk(make_broker: BrokerMaker) -> None:
    """Hundreds of megabytes go through a durable queue; memory follows what the queue holds, not what went through."""
    broker = make_broker("--num-jfiles", "16", "--jfile-size-pgs", "64").start()
    most_held = 16 << 20
    with RawPeer(broker.port) as publisher, RawPeer(broker.port) as consumer:
        publisher.declare("fast")
        consumer.subscribe("fast", messages=200)
        piece = publisher.transfer_frames("fast", b"x" * 16_000, sync=True)
        base = peak = broker.resident_bytes()
        got = sent = 0
        while got < 8_000:
            if sent < 8_000 and (sent - got) * 16_000 < most_held:
                publisher.publish_all([piece] * 50)
                sent += 50
            publisher.process(0)
            consumer.process(0.001)
            deliveries = [consumer.deliveries.popleft() for _ in range(len(consumer.deliveries))]
            if deliveries:
                consumer.accept(deliveries)
                got += len(deliveries)
            peak = max(peak, broker.resident_bytes())
        assert peak - base < most_held + _ALLOWED
        publisher.sync()
        consumer.sync()
        assert publisher.message_count("fast") == 0


def test_a_peer_that_vanishes_while_the_broker_writes(make_broker: BrokerMaker) -> None:
    """Fifty consumers reset their connections amid what is sent to them: nothing is lost, nothing is held."""
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        peer.declare("wanted", durable=False)
        for number in range(500):
            peer.publish("wanted", b"%08d" % number + b"x" * 5_000, durable=False)
        peer.sync()
        files = broker.open_files()
        for _ in range(50):
            victim = RawPeer(broker.port, receive_buffer=8 << 10)
            victim.subscribe("wanted")
            try:
                victim.process()
            except PeerGoneError:
                raise AssertionError(broker.log_text()) from None
            victim.close()
        end = time.monotonic() + PATIENCE_SECONDS
        while broker.open_files() > files and time.monotonic() < end:
            time.sleep(0.02)
        assert peer.message_count("wanted") == 500
        peer.subscribe("wanted")
        deliveries = peer.take(500)
        assert [int(delivery.body[:8]) for delivery in deliveries] == list(range(500))
        peer.accept(deliveries)
        peer.sync()
        assert broker.open_files() <= files + 2
        peer.end()
