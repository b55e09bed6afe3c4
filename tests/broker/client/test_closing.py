"""Closing returns only when the broker has confirmed everything, and otherwise reports what is left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from qstore.broker.client import (
    AcknowledgeUnknown,
    Connection,
    ConnectionFailedError,
    Empty,
    Message,
    MessagingError,
    NotFound,
    SessionError,
    Timeout,
    aio,
)
from tests.broker.client.faces import Face, only_0_10
from tests.broker.client.test_failures import QUEUE, RECONNECT, kill_and_start, stopped
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.support.running_broker import RunningBroker

DELETED = "work; {create: always, delete: always, node: {durable: true}}"


def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


def kill_noticed(broker: RunningBroker, session: Any) -> None:
    """Kill the broker; the client has noticed when this returns."""
    broker.kill()
    with pytest.raises(ConnectionFailedError):
        session.sync()


@contextmanager
def restarted_soon(broker: RunningBroker) -> Iterator[None]:
    """The broker is killed now, and started again a moment later."""
    broker.kill()
    starter = threading.Timer(0.3, broker.start)
    starter.start()
    try:
        yield
    finally:
        starter.join()


def exists(broker: RunningBroker, name: str) -> bool:
    """Whether the broker has a queue or exchange of that name."""
    with Connection(url(broker)) as connection:
        try:
            connection.session().sender(name)
        except NotFound:
            return False
        return True


# ---------------------------------------------------------------------------------- a connection that is dead


@pytest.mark.parametrize(("link", "is_noticed"), today([*product(["sender", "receiver"], [True, False])], 2))
@only_0_10
def test_a_node_that_was_not_deleted(face: Face, own_broker: RunningBroker, link: str, is_noticed: bool) -> None:
    session = face.connect(url(own_broker)).session()
    made = getattr(session, link)(DELETED)
    if is_noticed:
        kill_noticed(own_broker, session)
    else:
        own_broker.kill()
    with pytest.raises(ConnectionFailedError):
        made.close()
    own_broker.start()
    assert exists(own_broker, "work")


@pytest.mark.parametrize(("what", "is_noticed"), today([*product(["session", "connection"], [True, False])], 2))
@only_0_10
def test_close_fails_if_its_deletion_cannot_be_done(
    face: Face, own_broker: RunningBroker, what: str, is_noticed: bool
) -> None:
    connection = face.connect(url(own_broker))
    session = connection.session()
    session.receiver(DELETED)
    if is_noticed:
        kill_noticed(own_broker, session)
    else:
        own_broker.kill()
    with pytest.raises(ConnectionFailedError):
        {"session": session, "connection": connection}[what].close()
    connection.close(timeout=0)


@pytest.mark.parametrize("link", ["sender", "receiver"])
@only_0_10
def test_bindings_that_were_not_removed(face: Face, own_broker: RunningBroker, link: str) -> None:
    session = face.connect(url(own_broker)).session()
    bindings = "link: {x-bindings: [{exchange: amq.direct, key: k}]}"
    made = getattr(session, link)(f"work; {{create: always, node: {{durable: true}}, {bindings}}}")
    kill_noticed(own_broker, session)
    with pytest.raises(ConnectionFailedError):
        made.close()


@only_0_10
def test_a_subscription_queue_that_was_not_deleted(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(url(own_broker)).session()
    kept = "link: {x-declare: {auto-delete: false, exclusive: false}}"
    receivers = [session.receiver(f"amq.topic; {{{kept}}}"), session.receiver("amq.topic")]
    kill_noticed(own_broker, session)
    with pytest.raises(ConnectionFailedError):
        receivers[0].close()
    receivers[1].close()  # the broker deletes that one itself


@pytest.mark.parametrize("what", ["sender", "session", "connection"])
def test_messages_that_were_not_confirmed(face: Face, own_broker: RunningBroker, what: str) -> None:
    connection = face.connect(url(own_broker))
    session = connection.session()
    sender = session.sender(QUEUE)
    with stopped(own_broker):
        for number in range(2):
            sender.send(Message(str(number), durable=True), sync=False)
        own_broker.kill()
    with pytest.raises(ConnectionFailedError):
        sender.sync()
    with pytest.raises(ConnectionFailedError, match="lost" if what == "sender" else "2 messages to 'work'|lost"):
        {"sender": sender, "session": session, "connection": connection}[what].close()


@only_0_10
def test_closing_a_connection_reports_unsettled_work(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(url(own_broker))
    session = connection.session()
    sender = session.sender(DELETED)
    with stopped(own_broker):
        sender.send(Message("x", durable=True), sync=False)
        own_broker.kill()
    with pytest.raises(ConnectionFailedError):
        sender.sync()
    with pytest.raises(ConnectionFailedError, match="1 message to 'work' not confirmed, 'work' not deleted"):
        connection.close()
    assert not connection.is_open
    connection.close()  # that has been said


def test_nothing_left_to_do(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(url(own_broker))
    session = connection.session()
    sender, receiver = session.sender(QUEUE), session.receiver("work", capacity=5)
    sender.send(Message("x", durable=True))
    kill_noticed(own_broker, session)
    for each in (sender, receiver, session, connection, sender, receiver, session):
        each.close()


def test_an_acknowledgement_that_was_not_confirmed(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(url(own_broker))
    session = connection.session()
    session.sender(QUEUE).send(Message("x", durable=True))
    session.receiver("work").fetch(timeout=PATIENCE_SECONDS)
    with stopped(own_broker):
        session.acknowledge(sync=False)
        own_broker.kill()
    with pytest.raises(ConnectionFailedError):
        session.close()
    own_broker.start()
    again = face.connect(url(own_broker)).session()
    assert again.receiver("work").fetch(timeout=PATIENCE_SECONDS).content == "x"


def test_a_session_is_closed_when_acknowledgements_are_done(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(url(own_broker)).session()
    sender, receiver = session.sender(QUEUE), session.receiver("work", capacity=100)
    for _ in range(100):
        sender.send(Message("x", durable=True), sync=False)
    for _ in range(100):
        session.acknowledge(receiver.fetch(timeout=PATIENCE_SECONDS), sync=False)
    session.close()
    kill_and_start(own_broker)
    with pytest.raises(Empty):
        face.connect(url(own_broker)).session().receiver("work").fetch(timeout=0)


def test_closing_within_a_time(face: Face, broker: RunningBroker) -> None:
    connection = face.connect(url(broker))
    sender = connection.session().sender("#")
    with stopped(broker):
        sender.send("x", sync=False)
        with pytest.raises(Timeout, match="1 message"):
            connection.close(timeout=0.1)
    assert not connection.is_open


# --------------------------------------------------------------------------------- a session that the broker ended


@pytest.mark.parametrize("what", ["sender", "session", "connection"])
@only_0_10
def test_messages_that_were_refused(face: Face, broker: RunningBroker, what: str) -> None:
    connection = face.connect(url(broker))
    session, other = connection.session(), connection.session()
    limit = "node: {x-declare: {arguments: {'qpid.max_count': 1}}}"
    sender = session.sender(f"q-{uuid.uuid4()}; {{create: always, {limit}}}")
    for number in range(3):
        with contextlib.suppress(SessionError):  # the broker may have refused one before the last is sent
            sender.send(str(number), sync=False)
    other.sync()
    with pytest.raises(SessionError, match="resource-limit-exceeded"):
        session.sync()  # the client knows that the session has ended
    with pytest.raises(SessionError, match="resource-limit-exceeded"):
        {"sender": sender, "session": session, "connection": connection}[what].close()
    if what == "connection":
        assert not connection.is_open
        with pytest.raises(MessagingError):
            other.sync()
    else:
        other.sync()


# ------------------------------------------------------------------------------------------ context managers


def test_leaving_a_block(own_broker: RunningBroker) -> None:
    def send() -> None:
        with Connection(url(own_broker)) as connection:
            sender = connection.session().sender(QUEUE)
            with stopped(own_broker):
                sender.send(Message("x", durable=True), sync=False)
                own_broker.kill()

    with pytest.raises(ConnectionFailedError):
        send()


def test_leaving_a_block_of_asyncio(own_broker: RunningBroker) -> None:
    async def send() -> None:
        async with aio.Connection(url(own_broker)) as connection:
            sender = await (await connection.session()).sender(QUEUE)
            with stopped(own_broker):
                await sender.send(Message("x", durable=True), sync=False)
                own_broker.kill()

    with pytest.raises(ConnectionFailedError):
        asyncio.run(send())


def test_an_error_in_a_block_is_the_one_that_is_seen(own_broker: RunningBroker) -> None:
    def fail() -> None:
        with Connection(url(own_broker), **RECONNECT) as connection, connection.session() as session:
            session.sender(DELETED)
            own_broker.kill()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_an_error_in_a_block_of_asyncio_is_the_one_that_is_seen(own_broker: RunningBroker) -> None:
    async def fail() -> None:
        async with aio.Connection(url(own_broker), **RECONNECT) as connection, await connection.session() as session:
            await session.sender(DELETED)
            own_broker.kill()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


# ---------------------------------------------------------------------------------------------- reconnecting


@pytest.mark.parametrize("what", ["sender", "receiver", "session"])
@only_0_10
def test_deleting_waits_for_the_next_connection(face: Face, own_broker: RunningBroker, what: str) -> None:
    session = face.connect(url(own_broker), **RECONNECT).session()
    made = {
        "sender": lambda: session.sender(DELETED),
        "receiver": lambda: session.receiver(DELETED),
        "session": lambda: (session.sender(DELETED), session)[1],
    }[what]()
    with restarted_soon(own_broker):
        made.close()
    assert not exists(own_broker, "work")


def test_messages_are_sent_again_before_a_sender_is_closed(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(url(own_broker), **RECONNECT).session()
    sender = session.sender(QUEUE)
    with stopped(own_broker):
        sender.send(Message("x", durable=True), sync=False)
        with restarted_soon(own_broker):
            sender.close()
    kill_and_start(own_broker)
    assert session.receiver("work").fetch(timeout=PATIENCE_SECONDS).content == "x"
    session.acknowledge()


def test_closing_a_connection_that_is_being_made_again(face: Face, own_broker: RunningBroker) -> None:
    connection = face.connect(url(own_broker), **RECONNECT)
    sender = connection.session().sender(QUEUE)
    with stopped(own_broker):
        sender.send("x", sync=False)
        own_broker.kill()
    with pytest.raises(Timeout):
        sender.sync(timeout=0.1)
    with pytest.raises(ConnectionFailedError, match="1 message to 'work' not confirmed"):
        connection.close()


def test_unconfirmed_acknowledgements_are_of_unknown_outcome(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(url(own_broker), **RECONNECT).session()
    sender, receiver = session.sender(QUEUE), session.receiver("work")
    sender.send(Message("x", durable=True))
    receiver.fetch(timeout=PATIENCE_SECONDS)
    with stopped(own_broker):
        session.acknowledge(sync=False)
        own_broker.kill()
    own_broker.start()
    with pytest.raises(AcknowledgeUnknown, match="may be redelivered"):
        session.sync()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "x"
    killer = threading.Timer(0.2, kill_and_start, [own_broker])
    with stopped(own_broker):
        killer.start()
        with pytest.raises(AcknowledgeUnknown):
            session.acknowledge()
        killer.join()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "x"
    session.acknowledge()
    session.sync()


def test_released_messages_are_released_by_a_loss_as_well(face: Face, own_broker: RunningBroker) -> None:
    session = face.connect(url(own_broker), **RECONNECT).session()
    sender, receiver = session.sender(QUEUE), session.receiver("work")
    sender.send(Message("x", durable=True))
    receiver.fetch(timeout=PATIENCE_SECONDS)
    with stopped(own_broker):
        session.release(sync=False)
        own_broker.kill()
    own_broker.start()
    session.sync()
    assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "x"
    session.acknowledge()


@pytest.mark.parametrize("what", ["send", "sync", "close", "session.sync", "session.close"])
def test_a_message_to_a_queue_that_is_gone(face: Face, own_broker: RunningBroker, what: str) -> None:
    face.connect(url(own_broker)).session().sender("passing; {create: always}")  # transient: the broker forgets it
    session = face.connect(url(own_broker), **RECONNECT).session()
    sender = session.sender("passing; {create: receiver}")
    killer = threading.Timer(0.2, kill_and_start, [own_broker])
    with stopped(own_broker):
        if what != "send":
            sender.send("x", sync=False)
        killer.start()
        call = {
            "send": lambda: sender.send("x"),
            "sync": sender.sync,
            "close": sender.close,
            "session.sync": session.sync,
            "session.close": session.close,
        }[what]
        with pytest.raises(NotFound, match="passing"):
            call()
        killer.join()
