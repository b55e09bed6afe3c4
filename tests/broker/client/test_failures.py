"""Connections that cannot be made, are lost, stall, and are made again."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qstore.broker.client import (
    AuthenticationError,
    ConnectError,
    Connection,
    ConnectionClosedError,
    ConnectionFailedError,
    ConnectionRedirected,
    Empty,
    HeartbeatError,
    Message,
    NotFound,
    Timeout,
    TransactionAborted,
    TransactionUnknown,
)
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, encode_frame
from qstore.formats.amqp_1_0.values import Value
from tests.broker.client.faces import Face, only_0_10
from tests.support.processes import PATIENCE_SECONDS, stop_process
from tests.support.running_broker import RunningBroker

QUEUE = "work; {create: always, node: {durable: true}}"
RECONNECT = {"reconnect": True, "reconnect_interval_min": 0.01, "reconnect_interval_max": 0.1}


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Something that listens and answers one connection: with these bytes, or by closing it. Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                if answer is not None:
                    accepted.recv(100)
                    accepted.sendall(answer)
                    accepted.shutdown(socket.SHUT_WR)
                    while accepted.recv(100):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@contextmanager
def stopped(broker: RunningBroker) -> Iterator[None]:
    """The broker does nothing meanwhile."""
    stop_process(broker.pid)
    try:
        yield
    finally:
        if broker.is_running():
            os.kill(broker.pid, signal.SIGCONT)


def kill_and_start(broker: RunningBroker) -> None:
    """Kill the broker and start it on the same port."""
    broker.kill()
    broker.start()


# ------------------------------------------------------------------------------------------- connecting


def test_connection_refused_is_a_connect_error(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}: connection refused"):
        face.connect(f"127.0.0.1:{port}")
    with pytest.raises(ConnectError, match="refused"):
        face.connect(f"127.0.0.1:{port}", reconnect=True, reconnect_limit=3, reconnect_interval=0.01)
    with pytest.raises(ConnectError, match="refused"):
        face.connect(f"127.0.0.1:{port}", reconnect=True, reconnect_timeout=0.05)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"AMQP\x01\x01\x00\x09", "does not speak AMQP 0-10"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak AMQP 0-10"),
        (b"AMQP\x01\x01\x00\x0a" + bytes(12), "frame"),
        (b"AMQP\x01\x01\x00\x0a", "lost"),
        (None, "lost"),
    ],
)
@only_0_10
def test_not_a_broker(face: Face, answer: bytes | None, what: str) -> None:
    with server(answer) as url, pytest.raises(ConnectError, match=what):
        face.connect(url, connect_timeout=PATIENCE_SECONDS)


def redirection(listener: socket.socket, *, is_late: bool) -> None:
    """Redirect one client of AMQP 1.0 at once, or when it begins a session."""
    place = (("network-host", "string", "elsewhere"), ("port", "ushort", 7))
    info = tuple((Value("symbol", name), Value(kind, value)) for name, kind, value in place)
    error = Composite("error", {"condition": "amqp:connection:redirect", "info": info})
    opened = encode_frame(0, encode_composite("open", {"container_id": "b"}))
    closed = encode_frame(0, encode_composite("close", {"error": error}))
    accepted, _ = listener.accept()
    with accepted:
        accepted.recv(10_000)
        accepted.sendall(AMQP_HEADER + opened)
        if is_late:
            accepted.recv(10_000)
        accepted.sendall(closed)
        while accepted.recv(10_000):
            pass


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("reconnect", [False, True])
def test_a_redirection_is_reported_and_not_followed(reconnect: bool, is_late: bool) -> None:
    options: dict[str, Any] = {"protocol": "amqp1.0", "sasl_mechanisms": "NONE", "reconnect": reconnect}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=redirection, args=(listener,), kwargs={"is_late": is_late})
        thread.start()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionRedirected, match="redirected to elsewhere:7") as raised:
            Connection.establish(url, connect_timeout=PATIENCE_SECONDS, **options).session()
        thread.join()
    assert (raised.value.host, raised.value.port) == ("elsewhere", 7)


def test_a_broker_that_says_nothing(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectError, match=r"within 0\.05 seconds"):
            face.connect(url, connect_timeout=0.05)


def test_another_place_is_tried(face: Face, broker: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    connection = face.connect(f"127.0.0.1:{port},127.0.0.1:{broker.port}")
    connection.session().sync()
    connection = face.connect(f"127.0.0.1:{port}", reconnect_urls=[f"127.0.0.1:{broker.port}"])
    connection.session().sync()


def test_mechanisms(face: Face, broker: RunningBroker) -> None:
    face.connect(f"me/secret@127.0.0.1:{broker.port}").session().sync()
    face.connect(f"127.0.0.1:{broker.port}", sasl_mechanisms="ANONYMOUS").session().sync()
    with pytest.raises(AuthenticationError, match="ANONYMOUS"):
        face.connect(f"127.0.0.1:{broker.port}", sasl_mechanisms="GSSAPI")


# --------------------------------------------------------------------------------------------- waiting


def test_capacity_and_timeouts(face: Face, broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{broker.port}").session()
    sender = session.sender("#", capacity=3)
    with stopped(broker):
        for number in range(3):
            sender.send(number.to_bytes(1, "big"), sync=False)
        assert (sender.unsettled(), sender.available()) == (3, 0)
        with pytest.raises(Timeout):
            sender.send("one too many", sync=False, timeout=0.05)
        with pytest.raises(Timeout):
            sender.sync(timeout=0.05)
    sender.sync()
    with stopped(broker), pytest.raises(Timeout, match="not completed"):
        sender.send("sent all the same", timeout=0.05)
    sender.sync()
    assert sender.unsettled() == 0


def test_heartbeats_find_a_broker_that_stands_still(face: Face, broker: RunningBroker) -> None:
    receiver = face.connect(f"127.0.0.1:{broker.port}", heartbeat=1).session().receiver("#")
    with pytest.raises(Empty):
        receiver.fetch(timeout=3)  # while both ends send heartbeats
    with stopped(broker), pytest.raises(HeartbeatError):
        receiver.fetch()


def test_without_reconnect_all_fails(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(f"127.0.0.1:{own_broker.port}")
    session = connection.session()
    sender, receiver = session.sender(QUEUE), session.receiver("work")
    own_broker.kill()
    with pytest.raises(ConnectionFailedError, match="lost"):
        receiver.fetch()
    with pytest.raises(ConnectionFailedError):
        sender.send("x")
    with pytest.raises(ConnectionFailedError):
        session.acknowledge()
    with pytest.raises(ConnectionFailedError):
        connection.session()
    assert not connection.is_open
    connection.close()
    with pytest.raises(ConnectionClosedError):
        connection.session()


def test_a_closed_connection_is_reported(face: Face, own_broker: RunningBroker) -> None:
    receiver = face.connect(f"127.0.0.1:{own_broker.port}").session().receiver(QUEUE)
    own_broker.stop()
    with pytest.raises(ConnectionFailedError):
        receiver.fetch()


# ---------------------------------------------------------------------------------------- reconnecting


def test_messages_survive_a_kill(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session()
    sender, receiver = session.sender(QUEUE), session.receiver("work", capacity=10)
    sender.send(Message("0", durable=True))
    with stopped(own_broker):
        for number in range(1, 50):
            sender.send(Message(str(number), durable=True), sync=False)
        assert sender.unsettled() == 49
        own_broker.kill()
    own_broker.start()
    messages = []
    while len({message.content for message in messages}) < 50:
        messages.append(receiver.fetch(timeout=PATIENCE_SECONDS))
    numbers = [int(message.content) for message in messages]
    assert sorted(set(numbers)) == list(range(50))
    # "0" may have waited here, from before the kill; then it comes twice.
    assert all(message.redelivered for message in messages if message.content != "0")
    assert messages[numbers.index(0, 1) if numbers.count(0) > 1 else 0].redelivered
    sender.sync()
    session.acknowledge()
    kill_and_start(own_broker)
    with pytest.raises(Empty):
        receiver.fetch(timeout=0.5)


def test_acknowledging_a_message_from_before_has_no_effect(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session()
    sender, receiver = session.sender(QUEUE), session.receiver("work")
    sender.send(Message("a", durable=True))
    before = receiver.fetch(timeout=PATIENCE_SECONDS)
    kill_and_start(own_broker)
    after = receiver.fetch(timeout=PATIENCE_SECONDS)
    session.acknowledge(before)
    assert (after.content, after.redelivered) == ("a", True)
    session.release(after)
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "a"
    session.acknowledge()


def test_transactions_do_not_survive(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session(transactional=True)
    sender, receiver = session.sender(QUEUE), session.receiver("work")
    sender.send(Message("a", durable=True))
    session.commit()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "a"
    session.acknowledge()
    sender.send(Message("lost", durable=True))
    kill_and_start(own_broker)
    sender.send(Message("lost, too", durable=True))
    with pytest.raises(TransactionAborted):
        session.commit()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "a"
    sender.send(Message("b", durable=True))
    session.acknowledge()
    session.commit()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "b"
    with pytest.raises(Empty):
        receiver.fetch(timeout=0)


def test_unanswered_commit_has_an_unknown_outcome(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session(transactional=True)
    sender = session.sender(QUEUE)
    sender.send(Message("perhaps", durable=True))
    stop_process(own_broker.pid)
    killer = threading.Timer(0.2, kill_and_start, [own_broker])
    killer.start()
    with pytest.raises(TransactionUnknown):
        session.commit()
    killer.join()
    session.rollback()
    sender.send(Message("after", durable=True))
    session.commit()


def test_a_node_that_is_gone_fails_its_link_only(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session()
    durable = session.sender(QUEUE)
    session.sender("passing; {create: always}")
    sender, receiver = session.sender("passing"), session.receiver("passing; {create: sender}")
    kill_and_start(own_broker)
    durable.send(Message("x", durable=True))
    assert session.receiver("work").fetch(timeout=PATIENCE_SECONDS).content == "x"
    session.sync()
    del sender
    with pytest.raises(Empty):
        receiver.fetch(timeout=0)


def test_a_receiver_whose_queue_is_gone(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT).session()
    other = face.connect(f"127.0.0.1:{own_broker.port}").session()
    other.sender("passing; {create: always}")
    receiver = session.receiver("passing")
    kill_and_start(own_broker)
    with pytest.raises(NotFound):
        receiver.fetch(timeout=PATIENCE_SECONDS)
    session.sender(QUEUE).send("the session goes on")


def test_reconnecting_is_given_up(face: Face, own_broker: RunningBroker) -> None:
    options = RECONNECT | {"reconnect_limit": 2}
    receiver = face.connect(f"127.0.0.1:{own_broker.port}", **options).session().receiver("#")
    own_broker.kill()
    with pytest.raises(ConnectError, match="refused"):
        receiver.fetch()


def test_closing_while_reconnecting(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(f"127.0.0.1:{own_broker.port}", **RECONNECT)
    session = connection.session()
    sender = session.sender("#")
    with stopped(own_broker):
        sender.send("x", sync=False)
        own_broker.kill()
    with pytest.raises(Timeout):
        sender.sync(timeout=0.1)
    with pytest.raises(ConnectionFailedError, match="1 message to"):
        connection.close()
    with pytest.raises(ConnectionClosedError):
        connection.session()


# --------------------------------------------------------------------------------------------- threads


def test_threads_share_a_connection(broker: RunningBroker) -> None:
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        receiver = session.receiver("#", capacity=10)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(receiver.fetch().content for _ in range(400)))
        thread.start()
        senders = [
            threading.Thread(target=_send_hundred, args=(connection, receiver.address, number)) for number in range(4)
        ]
        for each in senders:
            each.start()
        for each in (*senders, thread):
            each.join()
        assert sorted(found) == sorted(f"{sender}-{number}" for sender in range(4) for number in range(100))
        for sender in range(4):
            own = [content for content in found if content.startswith(f"{sender}-")]
            assert own == [f"{sender}-{number}" for number in range(100)]


def _send_hundred(connection: Connection, address: str, number: int) -> None:
    session = connection.session()
    sender = session.sender(address, capacity=7)
    for each in range(100):
        sender.send(f"{number}-{each}", sync=each % 10 == 0)
    session.close()


def test_a_broker_that_ignores_credit(broker: RunningBroker) -> None:
    with Connection(f"127.0.0.1:{broker.port}") as sending:
        sender = sending.session().sender("uncredited; {create: always}")
        receiving = Connection.establish(f"127.0.0.1:{broker.port}")
        receiver = receiving.session().receiver("uncredited", capacity=10)
        receiver._core.most_incoming = 2
        for _ in range(5):
            sender.send("x", sync=False)
        sender.sync()
        core, driver = receiving._core, receiving._driver
        assert driver.run(driver.wait(lambda: core.failure is not None, driver.now() + PATIENCE_SECONDS))
        with pytest.raises(ConnectionFailedError, match="more messages than it has credit for"):
            receiver.fetch(0)
        assert not receiving.is_open
        receiving.close(0)


def test_zero_reconnection_attempts() -> None:
    with pytest.raises(ConnectError):
        Connection.establish("127.0.0.1:1", reconnect=True, reconnect_limit=0)
