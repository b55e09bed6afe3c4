"""Flow control by queue depth with real brokers: publishers that honour completion wait and are not refused, and what
was held back by a broker that is killed was never confirmed, and is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import pika
import pytest

from qstore import Connection, Message
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.tools.messaging import StallWatch
from tests.support.fork_server import ROOT
from tests.support.processes import PATIENCE_SECONDS
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


def _consume(peer: RawPeer, count: int) -> None:
    """Take the messages of a flood, in order."""
    peer.subscribe("q", messages=100)
    for number in range(count):
        (delivery,) = peer.take(1)
        assert int(delivery.body[:6]) == number
        peer.accept([delivery])
    peer.sync()


@pytest.mark.parametrize("protocol", ["amqp0-10", "amqp1.0"])
def test_senders_of_the_client_are_held_to_the_rate_of_their_session(make_broker: BrokerMaker, protocol: str) -> None:
    """As fast as they can in a burst of 100, and then 100 a second: 200 messages take a second, and no message less."""
    broker = make_broker("--max-session-rate", "100").start()
    began = time.monotonic()
    with Connection(f"127.0.0.1:{broker.port}", protocol=protocol) as connection:
        session = connection.session()
        sender = session.sender("q; {create: always}", capacity=1_000)
        for number in range(200):
            sender.send(Message(b"%d" % number), sync=False)
        sender.sync()
        taken = time.monotonic() - began
        other = connection.session().sender("other; {create: always}")
        other.send(Message(b"x"))
        receiver = session.receiver("q", capacity=200)
        assert [receiver.fetch(timeout=PATIENCE_SECONDS).content for _ in range(200)] == [b"%d" % n for n in range(200)]
    assert taken > 0.9, "100 messages after the burst: a slow machine only makes it longer"


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_without_limits_exceeds_memory_and_default_limit(make_broker: BrokerMaker, durable: bool) -> None:
    """130 MB, more than qpidd's limit and twice as much as messages may take of memory."""
    broker, count = make_broker("--broker-memory", "64M").start(), 1300
    with Connection(f"127.0.0.1:{broker.port}") as connection, connection.session() as session:
        node = "{create: always, node: {durable: %s}}" % ("true" if durable else "false")
        sender = session.sender(f"q; {node}", capacity=50)
        for number in range(count):
            sender.send(Message(b"%06d" % number + b"x" * 100_000, durable=durable), sync=False)
        sender.sync(PATIENCE_SECONDS)
    with RawPeer(broker.port) as peer:
        assert peer.message_count("q") == count
        _consume(peer, count)
        peer.end()
    assert "Publishers to queue" not in broker.log_text()


def test_a_flood_on_a_queue_with_the_limit_of_qpidd(make_broker: BrokerMaker) -> None:
    """130 MB through a queue of 100 MiB: the sender waits at 80 %, and all comes."""
    broker, count, capacity = make_broker("--default-queue-limit", "100M").start(), 1300, 50
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
        _consume(peer, count)
        assert peer.message_count("q") == 0
    flood.join()


def test_a_blocked_sender_and_the_log_name_the_reason(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        peer.declare("big", arguments=_STOP)
        peer.end()
    command = [sys.executable, "-m", "qstore.tools.qpid_send", "-b", f"127.0.0.1:{broker.port}", "-a", "big"]
    command += ["--messages", "20", "--durable", "yes", "--content-size", "1024", "--capacity", "5"]
    sender = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert sender.stderr is not None
        reported = sender.stderr.readline()
        assert reported.startswith(
            "qpid-send: waiting for 5 s: the broker has confirmed 3 messages, and none of 5 more. Flow control makes "
            'publishers to queue "big" wait, which has 8 messages with '
        )
        with RawPeer(broker.port) as peer:
            peer.subscribe("big")
            for _ in range(20):
                peer.accept(peer.take(1), sync=True)
            peer.sync()
            peer.end()
        assert sender.wait(PATIENCE_SECONDS) == 0
    finally:
        sender.kill()
        sender.communicate()
    lines = [line for line in broker.log_text().splitlines() if "Publishers to queue" in line]
    assert len(lines) == 1
    assert "[Model] warning" in lines[0]
    assert '"big" wait: it has 4 messages, above its flow control threshold of 3. They continue below 2 m' in lines[0]
    assert broker.has_logged('Queue "big": publishers are resumed')


def test_a_sender_says_that_it_waits_if_the_broker_does_not_answer(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    reported: list[str] = []
    watching = partial(StallWatch, "test", show=reported.append, after=0.5)
    with Connection(f"127.0.0.1:{broker.port}") as connection, watching(connection) as stalls:
        sender = stalls.add(connection.session().sender("q; {create: always}", capacity=3))
        sender.send(Message(b"x"))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            sender.send(Message(b"x"), sync=False)
            _wait_until(lambda: reported)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        _wait_until(lambda: len(reported) == 2)
    waits, goes_on = reported
    assert waits.startswith("test: waiting for 0.5 s: the broker has confirmed 1 message, and none of 1 more. A queue")
    assert goes_on.startswith("test: the broker confirms messages again after ")


def _wait_until(is_done: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("confirms", [True, False])
def test_pika_gets_connection_blocked(make_broker: BrokerMaker, confirms: bool) -> None:
    broker = make_broker().start()
    reported: list[str] = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        connection.add_on_connection_blocked_callback(lambda _, frame: reported.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda _, _frame: reported.append("unblocked"))
        channel = connection.channel()
        channel.queue_declare("q", arguments=_STOP)
        if confirms:
            drained = threading.Timer(1.0, _drain, (broker.port, "q"))
            channel.confirm_delivery()
            drained.start()
            for _ in range(4):  # the fourth is confirmed when the queue was drained
                channel.basic_publish("", "q", b"x")
            drained.join()
        else:
            for _ in range(6):
                channel.basic_publish("", "q", b"x")
            _process_until(connection, lambda: reported)
            _drain(broker.port, "q")
        _process_until(connection, lambda: len(reported) == 2)
    reason = 'Publishers to queue "q" wait: it has 4 messages, above its flow control threshold of 3'
    assert reported == [reason, "unblocked"]


def _process_until(connection: pika.BlockingConnection, is_done: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        assert time.monotonic() < end
        connection.process_data_events(0.1)


def _drain(port: int, queue: str) -> None:
    """Purge a queue."""
    with RawPeer(port) as peer:
        peer.send_command("queue.purge", queue=queue)
        peer.sync()
        peer.end()


def test_a_client_that_waits_for_nothing_is_refused(make_broker: BrokerMaker) -> None:
    broker = make_broker("--default-queue-limit", "100000").start()
    with RawPeer(broker.port) as peer:
        peer.declare("q", durable=False)
        for _ in range(200):
            peer.publish("q", b"x" * 1000, durable=False)
        with pytest.raises(SessionEndedError, match="Maximum depth exceeded"):
            peer.sync()


def test_held_back_messages_survive_a_killed_broker(make_broker: BrokerMaker) -> None:
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
