"""Which sessions a connection has: attach, detach, busy, by force, and how long they are kept."""

from __future__ import annotations

import pytest

from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode
from tests.broker.protocols.opening import started, tuned
from tests.broker.protocols.world import Client, World

FRAMING = CloseCode.FRAMING_ERROR


def detached(client: Client) -> list[tuple[int, bytes, int]]:
    client.sync()
    return [
        (channel, values["name"], values["code"])
        for channel, name, values in client.controls
        if name == "session.detached"
    ]


def test_attach_and_detach() -> None:
    client = World().open_client(name=b"one")
    assert client.names()[-2:] == ["session.attached", "session.command-point"]
    client.control("session.detach", on=1, name=b"one")
    assert detached(client) == [(1, b"one", DetachCode.NORMAL)]
    assert len(client.world.sessions) == 0


def test_a_session_that_a_link_of_qpidd_begins_without_being_asked() -> None:
    client = World().open_client(name=None)
    client.control("session.attached", on=1, name=b"pushes")
    client.sync()
    assert client.names()[-1] == "session.command-point"
    assert "session.attached" not in client.names()
    client.control("session.attached", on=1, name=b"pushes")
    client.control("session.command-point", on=1, command_id=0, command_offset=0)
    client.declare("q")
    client.publish("q", b"m")
    client.sync()
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_several_sessions_of_one_connection() -> None:
    client = World().open_client(name=b"one")
    client.attach(b"two", on=7)
    client.declare("q")
    client.publish("q", b"m", on=7)
    client.sync()
    assert len(client.world.sessions) == 2
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_a_channel_that_is_in_use() -> None:
    client = World().open_client(name=b"one")
    client.control("session.attach", on=1, name=b"two")
    assert detached(client) == [(1, b"two", DetachCode.TRANSPORT_BUSY)]
    client.declare("q")
    assert "q" in client.world.broker.default_host.queues


def test_a_session_that_is_attached_elsewhere() -> None:
    world = World()
    first, second = world.open_client(name=b"one"), world.open_client(name=None)
    second.control("session.attach", on=3, name=b"one")
    assert detached(second) == [(3, b"one", DetachCode.SESSION_BUSY)]
    assert first.session(b"one").connection is first.machine


@pytest.mark.parametrize("timeout", [0, 60])
def test_attach_by_force(timeout: int) -> None:
    world = World()
    first, second = world.open_client(name=b"one", timeout=timeout), world.open_client(name=None)
    session = first.session(b"one")
    second.attach(b"one", on=3, force=True)
    assert detached(first) == [(1, b"one", DetachCode.SESSION_BUSY)]
    assert second.session(b"one").connection is second.machine
    assert (second.session(b"one") is session) == bool(timeout)
    first.publish("q", b"late")
    first.control("session.flush", on=1)
    first.sync()
    assert first.close_code() is None


def test_detach_without_attachment_is_answered_not_attached() -> None:
    client = World().open_client(name=b"one")
    client.control("session.detach", on=2, name=b"two")
    client.control("session.detach", on=1, name=b"other")
    assert detached(client) == [(2, b"two", DetachCode.NOT_ATTACHED), (1, b"other", DetachCode.NOT_ATTACHED)]


def test_users_have_names_of_their_own() -> None:
    world = World()
    for user in (b"\0a\0x", b"\0b\0x"):
        client = started(world.connect(), "PLAIN", user)
        client.control("connection.tune-ok")
        client.control("connection.open")
        client.attach(b"same")
    assert len(world.sessions) == 2


def test_a_channel_beyond_the_last() -> None:
    client = tuned(World().connect(), channel_max=4)
    client.attach(b"last", on=4)
    client.control("session.attach", on=5, name=b"beyond")
    assert client.close_code() == FRAMING


def test_a_session_that_was_detached_is_kept_for_its_timeout() -> None:
    world = World(BrokerSettings(auth=False, session_timeout_max_seconds=50, max_detached_sessions=2))
    client = world.open_client(name=b"one", timeout=1000)
    assert client.of("session.timeout") == [{"timeout": 50}]
    client.machine.closed()
    world.sessions.on_timer(world.now + 49)
    assert len(world.sessions) == 1
    world.sessions.on_timer(world.now + 50)
    assert len(world.sessions) == 0


def test_detached_sessions_are_limited() -> None:
    world = World(BrokerSettings(auth=False, max_detached_sessions=2))
    for name in (b"1", b"2", b"3"):
        world.open_client(name=name, timeout=60).machine.closed()
    assert world.sessions.find("anonymous@QPID", world.broker.default_host, b"1") is None
    assert len(world.sessions) == 2


def test_nothing_is_detached_after_the_broker_has_closed_the_connection() -> None:
    """What the client has sent in the meantime is not an error of its session, not even a command before its point."""
    client = World().open_client(name=None)
    client.control("session.attach", on=1, name=b"late")
    client.machine.force_close("the broker is shutting down")
    client.control("session.command-point", on=1, command_id=0, command_offset=0)
    client.declare("q")
    client.declare("q", on=2)
    assert client.close_code() == CloseCode.CONNECTION_FORCED
    assert client.names()[-1] == "connection.close"
    client.control("connection.close-ok")
    assert client.machine.is_closed
    assert len(client.world.sessions) == 0
