"""Sessions that are suspended and resumed: what they keep, who may have them, and when they are over."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode, ErrorCode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from tests.broker.protocols.opening import started
from tests.broker.protocols.world import CREDIT, MESSAGES, WINDOW, Client, World, header

NAME = b"session"


def resumed(world: World, before: Client, *, on: int = 1, **values: Any) -> Client:
    """Another connection that has attached the session, and goes on where the client before has stopped."""
    client = world.open_client(name=None)
    client.attach(NAME, on=on, point=before.sent[1], **values)
    return client


def suspended(client: Client, way: str) -> None:
    """The connection is lost, or the client detaches."""
    if way == "lost":
        client.machine.closed()
    else:
        client.control("session.detach", on=1, name=NAME)
        client.sync()
        assert client.of("session.detached")[-1]["code"] == DetachCode.NORMAL


def accepted(client: Client, *numbers: int, on: int = 1) -> None:
    client.command("message.accept", on=on, transfers=tuple((number, number) for number in numbers))
    client.sync()


# ---- what is kept ----


@pytest.mark.parametrize("way", ["lost", "detached"])
def test_deliveries_stay_the_sessions_and_can_be_settled_after_it_is_resumed(way: str) -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.subscribe("q", messages=2)
    assert client.take() == [b"1", b"2"]
    transfers = list(client.session().deliveries.unsettled)
    assert len(transfers) == 2
    client.control("session.completed", on=1, commands=tuple((each, each) for each in transfers), timely_reply=False)
    client.sync()
    suspended(client, way)
    other = world.open_client(name=b"other")
    other.subscribe("q")
    assert other.take() == [b"3"], "what the session has is not for others"
    back = resumed(world, client)
    assert back.take() == [], "the client has said that it has them"
    accepted(back, *transfers)
    assert world.broker.default_host.queues["q"].acquired_count == 1


@pytest.mark.parametrize("way", ["lost", "detached"])
def test_unconfirmed_commands_are_sent_again_under_the_same_number(way: str) -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.subscribe("q", messages=3)
    numbers = [each.number for each in _deliveries(client)]
    client.control("session.confirmed", on=1, commands=((numbers[0], numbers[0]),))
    client.sync()
    suspended(client, way)
    back = resumed(world, client)
    again = _deliveries(back)
    assert [(each.number, each.body) for each in again] == [(numbers[1], b"2"), (numbers[2], b"3")]
    assert not any(each.properties.get("redelivered") for each in again)
    accepted(back, *numbers)
    assert world.broker.default_host.queues["q"].message_count == 0


def _deliveries(client: Client) -> list[Any]:
    client.sync()
    found = list(client.deliveries)
    client.deliveries.clear()
    return found


@pytest.mark.parametrize("mode", [CREDIT, WINDOW])
def test_credit_is_kept(mode: int) -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.subscribe("q", messages=3, mode=mode)
    client.publish("q", b"1")
    assert client.take() == [b"1"]
    client.machine.closed()
    other = world.open_client(name=b"other")
    other.publish("q", b"2", b"3", b"4", b"5")
    other.sync()
    assert world.broker.default_host.queues["q"].acquired_count == 1, "nothing is delivered to one that is away"
    back = resumed(world, client)
    assert back.take() == [b"1", b"2", b"3"]
    back.flow("q", MESSAGES, 1)
    assert back.take() == [b"4"]


def test_a_transaction_is_kept_and_can_be_committed() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.publish("q", b"before")
    client.command("tx.select")
    client.subscribe("q", messages=1)
    (delivery,) = _deliveries(client)
    accepted(client, delivery.number)
    client.publish("q", b"new")
    client.sync()
    client.machine.closed()
    world.run()
    queue = world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (1, 1)
    back = resumed(world, client)
    back.command("tx.commit")
    back.sync()
    assert [entry.message.body for entry in queue.available()] == [b"new"]
    assert queue.message_count == 1


def test_exclusive_queues_are_kept() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("mine", exclusive=True, auto_delete=True)
    client.machine.closed()
    world.run()
    assert "mine" in world.broker.default_host.queues
    other = world.open_client(name=b"other")
    other.command("queue.delete", queue="mine")
    assert other.failure()[0] == ErrorCode.RESOURCE_LOCKED
    back = resumed(world, client)
    back.publish("mine", b"x")
    back.subscribe("mine")
    assert back.take() == [b"x"]


def test_a_result_that_was_on_its_way_comes_again() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    number = client.command("queue.query", queue="q")
    world.run()
    client.machine.closed()  # before it was read
    back = resumed(world, client)
    assert back.results[number]["queue"] == "q"


@pytest.mark.parametrize("point", ["as before", "all again"])
def test_repeated_commands_are_executed_once(point: str) -> None:
    world = World()
    client = world.open_client(timeout=60)
    number = client.declare("q")
    client.publish("q", b"1", b"2")
    client.sync()
    client.machine.closed()
    back = world.open_client(name=None)
    if point == "all again":
        back.attach(NAME, point=number)
        back.declare("q")
        back.publish("q", b"1", b"2")
    else:
        back.attach(NAME, point=client.sent[1])
    back.publish("q", b"3")
    back.sync()
    assert [entry.message.body for entry in world.broker.default_host.queues["q"].entries()] == [b"1", b"2", b"3"]


def test_a_message_that_was_begun_is_sent_again_from_its_beginning() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    content = bytes(200_000)
    payload = encode_command("message.transfer", destination="")
    frames = encode_command_frames(1, payload, header(routing_key="q"), content, 65535)
    client.send(b"".join(frames[:-1]))
    client.machine.closed()
    assert world.connections.budget.used == 0
    back = resumed(world, client)
    back.publish("q", content)
    back.sync()
    (entry,) = world.broker.default_host.queues["q"].entries()
    assert bytes(entry.message.body) == content


def test_more_sessions_of_one_connection_and_only_some_are_kept() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.attach(b"other", on=2)
    client.declare("q")
    client.publish("q", b"1", b"2")
    client.subscribe("q", messages=1)
    client.command("message.subscribe", on=2, queue="q", destination="d")
    client.flow("d", 1, 0xFFFFFFFF, on=2)
    client.flow("d", 0, 1, on=2)
    assert sorted(client.take()) == [b"1", b"2"]
    client.machine.closed()
    world.run()
    assert world.broker.default_host.queues["q"].acquired_count == 1
    assert world.sessions.find(client.machine.user, client.machine.virtual_host, b"other") is None


# ---- the controls that go with it ----


def test_expected_says_that_a_session_is_new_or_which_command_is_next() -> None:
    world = World()
    client = world.open_client(name=None)
    client.control("session.attach", on=1, name=NAME)
    client.control("session.request-timeout", on=1, timeout=60)
    client.control("session.flush", on=1, expected=True)
    client.sync()
    assert not client.of("session.expected")[-1]["commands"]
    client.control("session.command-point", on=1, command_id=7, command_offset=0)
    client.sent[1] = 7
    client.declare("q")
    client.machine.closed()
    back = world.open_client(name=None)
    back.control("session.attach", on=1, name=NAME)
    back.control("session.flush", on=1, expected=True, completed=True)
    back.sync()
    assert back.of("session.expected")[-1]["commands"] == ((8, 8),)
    assert back.of("session.completed")[-1]["commands"] == ((7, 7),)


def test_every_attachment_begins_with_command_point() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.machine.closed()
    back = world.open_client(name=None)
    back.control("session.attach", on=4, name=NAME)
    back.publish("q", b"which number has it?", on=4)
    back.sync()
    assert [(each["name"], each["code"]) for each in back.of("session.detached")] == [(NAME, DetachCode.UNKNOWN_IDS)]
    assert back.close_code() is None
    assert world.broker.default_host.queues["q"].message_count == 0
    back.attach(NAME, on=4, point=client.sent[1])
    back.publish("q", b"this one", on=4)
    back.sync()
    assert world.broker.default_host.queues["q"].message_count == 1


def test_a_stream_that_leaves_out_commands_cannot_go_on() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.machine.closed()
    back = world.open_client(name=None)
    back.attach(NAME, point=client.sent[1] + 1)
    assert back.close_code() == CloseCode.FRAMING_ERROR


def test_skipped_commands_are_a_gap() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.machine.closed()
    back = resumed(world, client)
    first = client.sent[1]
    back.control("session.gap", on=1, commands=((first, first + 4),))
    back.sent[1] = first + 5
    number = back.publish("q", b"x")[0]
    back.sync()
    assert number in back.completed
    assert set(range(first, first + 5)) <= back.completed


def test_a_timeout_is_asked_for_again_and_given_up() -> None:
    world = World(BrokerSettings(auth=False, session_timeout_max_seconds=100))
    client = world.open_client(timeout=60)
    client.control("session.request-timeout", on=1)
    client.sync()
    assert client.of("session.timeout")[-1] == {"timeout": 100}, "left out: as long as may be"
    client.control("session.request-timeout", on=1, timeout=0)
    client.sync()
    assert client.of("session.timeout")[-1] == {"timeout": 0}
    client.machine.closed()
    assert len(world.sessions) == 0


def test_a_session_that_could_not_keep_all_it_sent_is_not_resumed_for_a_new_timeout() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.publish("q", *[bytes(1 << 20)] * 40)
    client.subscribe("q")
    client.sync()
    client.control("session.request-timeout", on=1, timeout=60)
    client.sync()
    client.machine.closed()
    world.run()
    assert len(world.sessions) == 0
    queue = world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.acquired_count) == (40, 0)


def test_a_message_of_any_size_can_be_sent_again() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    content = bytes(40 << 20)
    client.publish("q", content)
    client.subscribe("q", messages=1)
    client.sync()
    client.machine.closed()
    back = resumed(world, client)
    assert back.take() == [content]


# ---- who may have it ----


def test_another_user_does_not_get_it() -> None:
    world = World()
    owner = _user(world, b"\0owner\0x")
    owner.attach(NAME, timeout=60)
    owner.declare("mine", exclusive=True)
    owner.machine.closed()
    thief = _user(world, b"\0thief\0x")
    thief.attach(NAME, force=True)
    thief.command("queue.delete", queue="mine")
    assert thief.failure()[0] == ErrorCode.RESOURCE_LOCKED
    assert len(world.sessions) >= 1
    back = _user(world, b"\0owner\0x")
    back.attach(NAME, point=owner.sent[1])
    back.publish("mine", b"x")
    back.sync()
    assert world.broker.default_host.queues["mine"].message_count == 1


def _user(world: World, response: bytes) -> Client:
    client = started(world.connect(), "PLAIN", response)
    client.control("connection.tune-ok")
    client.control("connection.open")
    return client


def test_by_force_it_goes_over_with_all_it_has() -> None:
    world = World()
    first = world.open_client(timeout=60)
    first.declare("q")
    first.publish("q", b"1", b"2")
    first.subscribe("q", messages=1)
    (delivery,) = _deliveries(first)
    second = resumed(world, first, on=5, force=True)
    first.sync()
    assert [(each["name"], each["code"]) for each in first.of("session.detached")] == [(NAME, DetachCode.SESSION_BUSY)]
    assert [(each.number, each.body) for each in _deliveries(second)] == [(delivery.number, b"1")]
    accepted(second, delivery.number, on=5)
    assert world.broker.default_host.queues["q"].message_count == 1
    accepted(first, delivery.number)
    first.publish("q", b"late")
    first.sync()
    assert len(first.of("session.detached")) == 1, "it was told"
    assert world.broker.default_host.queues["q"].message_count == 1
    first.attach(b"new")
    first.publish("q", b"of a new session")
    first.sync()
    assert world.broker.default_host.queues["q"].message_count == 2


# ---- when it is over ----


def test_when_its_time_is_over_all_is_given_back() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("mine", exclusive=True, auto_delete=True)
    client.declare("q")
    client.publish("q", b"1")
    client.subscribe("q")
    assert client.take() == [b"1"]
    client.machine.closed()
    world.sessions.on_timer(world.now + 59)
    world.run()
    assert world.broker.default_host.queues["q"].acquired_count == 1
    world.sessions.on_timer(world.now + 60)
    world.run()
    assert "mine" not in world.broker.default_host.queues
    other = world.open_client(name=b"other")
    other.subscribe("q")
    (delivery,) = _deliveries(other)
    assert delivery.properties["redelivered"]


def test_one_that_was_resumed_is_not_over_when_its_first_time_is() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.machine.closed()
    back = resumed(world, client)
    world.sessions.on_timer(world.now + 1000)
    back.declare("q")
    assert "q" in world.broker.default_host.queues


def test_when_the_broker_stops_it_is_over() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("mine", exclusive=True, auto_delete=True)
    client.machine.closed()
    world.sessions.close()
    world.run()
    assert len(world.sessions) == 0
    assert "mine" not in world.broker.default_host.queues


# ---- channels ----


def test_attaching_an_attached_session_changes_nothing() -> None:
    """Rule idempotence of session.attach."""
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.control("session.attach", on=1, name=NAME)
    client.publish("q", b"x")
    client.sync()
    assert client.names().count("session.attached") == 2
    assert client.of("session.detached") == []
    assert world.broker.default_host.queues["q"].message_count == 1


@pytest.mark.parametrize("what", ["command", "begun", "control"])
def test_a_channel_that_was_never_attached(what: str) -> None:
    world = World()
    client = world.open_client()
    for _ in range(3):
        if what == "command":
            client.command("execution.sync", on=9)
        elif what == "control":
            client.control("session.flush", on=9, completed=True)
        else:
            payload = encode_command("message.transfer", destination="")
            client.send(b"".join(encode_command_frames(9, payload, b"", bytes(100_000), 65535)))
    client.sync()
    found = [(on, values["code"]) for on, name, values in client.controls if name == "session.detached"]
    assert found == [(9, DetachCode.NOT_ATTACHED)], "it is said once"
    client.attach(b"now", on=9)
    client.declare("q", on=9)
    assert "q" in world.broker.default_host.queues


def test_a_channel_whose_session_the_client_has_detached() -> None:
    world = World()
    client = world.open_client()
    client.control("session.detach", on=1, name=NAME)
    client.command("execution.sync")
    client.sync()
    assert [each["code"] for each in client.of("session.detached")] == [DetachCode.NORMAL, DetachCode.NOT_ATTACHED]
    assert client.close_code() is None


# ---- sessions that another connection takes over while a command is under way ----


def test_all_connections_go_on_when_the_command_is_done() -> None:
    """A session that is taken over twice during a declaration: the connection in the middle is read again, too."""
    world = World()
    clients = [world.open_client(name=None) for _ in range(3)]
    clients[0].attach(b"wanted", timeout=60)
    clients[0].command("queue.declare", queue="q")
    for client in clients[1:]:
        client.control("session.attach", on=1, name=b"wanted", force=True)
    assert [client.machine.is_paused for client in clients] == [True] * 3
    world.run()
    assert [client.machine.is_paused for client in clients] == [False] * 3
    for number, client in enumerate(clients):
        client.attach(b"%d" % number, on=2)
        assert client.call("queue.query", on=2, queue="q")["queue"] == "q"
