"""Commands that fail: the exception that ends the session, and the state of everything else."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.errors import ModelError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.protocols.amqp_0_10.server_session import code_of
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode, ErrorCode
from qstore.formats.amqp_0_10.commands import COMMAND_BY_CODE, COMMANDS, encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from qstore.formats.amqp_0_10.structs import BranchId
from qstore.formats.values import typed_map
from tests.broker.protocols.world import CREDIT, Client, World, header

NOT_FOUND = ErrorCode.NOT_FOUND
NOT_ALLOWED = ErrorCode.NOT_ALLOWED
LOCKED = ErrorCode.RESOURCE_LOCKED
PRECONDITION = ErrorCode.PRECONDITION_FAILED
INVALID = ErrorCode.INVALID_ARGUMENT
ILLEGAL = ErrorCode.ILLEGAL_ARGUMENT
STATE = ErrorCode.ILLEGAL_STATE
NOT_IMPLEMENTED = ErrorCode.NOT_IMPLEMENTED

FAILURES: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("message.transfer", {"destination": "nowhere"}, NOT_FOUND),
    ("message.transfer", {"destination": "", "header": b"\0\0\0\x09\x04\x01\0\0"}, INVALID),
    ("message.subscribe", {"queue": "gone", "destination": "d"}, NOT_FOUND),
    ("message.subscribe", {"destination": "d"}, ILLEGAL),
    ("message.subscribe", {"queue": "q", "destination": "used"}, NOT_ALLOWED),
    ("message.subscribe", {"queue": "q", "destination": "d", "accept_mode": 2}, INVALID),
    ("message.subscribe", {"queue": "q", "destination": "d", "acquire_mode": 2}, INVALID),
    ("message.subscribe", {"queue": "q", "destination": "d", "exclusive": True}, LOCKED),
    (
        "message.subscribe",
        {"queue": "q", "destination": "d", "arguments": typed_map({"x-apache-selector": "a = "})},
        INVALID,
    ),
    ("message.subscribe", {"queue": "alone", "destination": "d"}, LOCKED),
    ("message.subscribe", {"queue": "others", "destination": "d"}, LOCKED),
    ("message.cancel", {"destination": "d"}, NOT_FOUND),
    ("message.cancel", {}, NOT_FOUND),
    ("message.flow", {"destination": "d", "unit": 0, "value": 1}, NOT_FOUND),
    ("message.flow", {"destination": "used", "unit": 2, "value": 1}, INVALID),
    ("message.set-flow-mode", {"destination": "d", "flow_mode": 0}, NOT_FOUND),
    ("message.set-flow-mode", {"destination": "used", "flow_mode": 2}, INVALID),
    ("message.flush", {"destination": "d"}, NOT_FOUND),
    ("message.stop", {"destination": "d"}, NOT_FOUND),
    ("message.resume", {"destination": "used", "resume_id": "x"}, NOT_FOUND),
    ("message.resume", {}, ILLEGAL),
    ("queue.purge", {"queue": "gone"}, NOT_FOUND),
    ("queue.purge", {"queue": "others"}, LOCKED),
    ("queue.purge", {}, ILLEGAL),
    ("tx.commit", {}, STATE),
    ("tx.rollback", {}, STATE),
    ("queue.declare", {"queue": "gone", "passive": True}, NOT_FOUND),
    ("queue.declare", {"queue": "amq.mine"}, NOT_ALLOWED),
    ("queue.declare", {"queue": "others"}, LOCKED),
    ("queue.declare", {"queue": "new", "alternate_exchange": "nowhere"}, NOT_FOUND),
    ("queue.declare", {"queue": "q", "alternate_exchange": "amq.fanout"}, NOT_ALLOWED),
    ("queue.delete", {"queue": "gone"}, NOT_FOUND),
    ("queue.delete", {"queue": "q", "if_unused": True}, PRECONDITION),
    ("queue.delete", {"queue": "q", "if_empty": True}, PRECONDITION),
    ("queue.delete", {"queue": "others"}, LOCKED),
    ("exchange.declare", {"exchange": "new", "type": "strange"}, NOT_FOUND),
    ("exchange.declare", {"exchange": "amq.mine", "type": "direct"}, NOT_ALLOWED),
    ("exchange.declare", {"exchange": "amq.topic", "type": "direct"}, NOT_ALLOWED),
    ("exchange.declare", {"exchange": "gone", "passive": True}, NOT_FOUND),
    ("exchange.declare", {"exchange": "new", "type": "direct", "alternate_exchange": "nowhere"}, NOT_FOUND),
    ("exchange.delete", {"exchange": "gone"}, NOT_FOUND),
    ("exchange.delete", {"exchange": "amq.direct"}, NOT_ALLOWED),
    ("exchange.delete", {"exchange": "bound", "if_unused": True}, PRECONDITION),
    ("exchange.bind", {"queue": "gone", "exchange": "amq.direct", "binding_key": "k"}, NOT_FOUND),
    ("exchange.bind", {"queue": "q", "exchange": "nowhere", "binding_key": "k"}, NOT_FOUND),
    ("exchange.bind", {"queue": "others", "exchange": "amq.direct", "binding_key": "k"}, LOCKED),
    ("exchange.unbind", {"queue": "q", "exchange": "bound", "binding_key": "other"}, NOT_FOUND),
    ("exchange.unbind", {"queue": "q", "exchange": "nowhere", "binding_key": "k"}, NOT_FOUND),
    ("dtx.forget", {"xid": BranchId(1, b"global", b"branch")}, NOT_IMPLEMENTED),
    ("file.qos", {}, NOT_IMPLEMENTED),
    ("stream.qos", {}, NOT_IMPLEMENTED),
]


def furnished() -> tuple[World, Client]:
    """A broker with queues of every kind, and a client with a subscription `used` on the queue `q`."""
    world = World()
    other = world.open_client(name=b"other")
    other.declare("others", exclusive=True)
    client = world.open_client()
    for queue in ("q", "alone"):
        client.declare(queue)
    client.command("exchange.declare", exchange="bound", type="direct")
    client.command("exchange.bind", queue="q", exchange="bound", binding_key="k")
    client.publish("q", b"message")
    client.command("message.subscribe", queue="q", destination="used")
    other.command("message.subscribe", queue="alone", destination="d", exclusive=True)
    client.sync()
    assert (client.exceptions, other.exceptions) == ([], [])
    return world, client


@pytest.mark.parametrize(
    ("name", "values", "code"), FAILURES, ids=[f"{name} {values or ''}" for name, values, _ in FAILURES]
)
def test_failed_command_raises_and_ends_the_session(name: str, values: dict[str, Any], code: ErrorCode) -> None:
    world, client = furnished()
    before = client.command("execution.sync")
    failing = client.command(name, **values)
    after = client.command("queue.declare", queue="after")
    assert client.failure() == (code, failing)
    (exception,) = client.exceptions
    command = COMMAND_BY_CODE[exception["class_code"] << 8 | exception["command_code"]]
    assert command.name == name
    assert exception["description"]
    assert before in client.completed
    assert not {failing, after} & client.completed
    assert "after" not in world.broker.default_host.queues
    assert world.broker.default_host.queues["q"].consumer_count == 0, "the session has ended"
    client.control("session.detached", on=1, name=b"session", code=0)
    client.attach(b"session")
    client.declare("after")
    assert "after" in world.broker.default_host.queues


def test_every_error_of_the_model_has_a_number() -> None:
    codes = {code_of(kind("")) for kind in ModelError.__subclasses__()}
    assert codes == set(ErrorCode)


def test_commands_of_a_class_that_does_not_exist() -> None:
    client = World().open_client()
    client.send(b"".join(encode_command_frames(1, b"\x63\x01\x01\x00\x00\x00", None, b"", 65535)))
    assert client.failure() == (NOT_IMPLEMENTED, 0)


@pytest.mark.parametrize("payload", [b"", b"\x08", b"\x08\x01"])
def test_a_command_that_is_cut_off_ends_the_session_or_the_connection(payload: bytes) -> None:
    client = World().open_client()
    client.send(b"".join(encode_command_frames(1, payload, None, b"", 65535)))
    client.sync()
    assert client.exceptions or client.close_code() == CloseCode.FRAMING_ERROR


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_cut_off_or_with_all_fields_left_out(command: Any) -> None:
    whole = encode_command(command.name)
    for size in range(2, len(whole) + 1):
        client = World().open_client()
        client.send(b"".join(encode_command_frames(1, whole[:size], None, b"", 65535)))
        client.sync()
        if size < len(whole):
            assert client.exceptions or client.close_code() == CloseCode.FRAMING_ERROR
        else:
            assert client.close_code() is None


def test_a_queue_that_is_full() -> None:
    client = World(BrokerSettings(auth=False, queue_limit_bytes=MESSAGE_OVERHEAD + 100)).open_client()
    client.declare("q")
    client.publish("q", bytes(60))
    (number,) = client.publish("q", bytes(60))
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_a_message_that_is_too_large() -> None:
    client = World(BrokerSettings(auth=False, max_message_bytes=200_000)).open_client()
    client.declare("q")
    client.publish("q", bytes(190_000))
    (number,) = client.publish("q", bytes(210_000))
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert client.machine._assembler.pending_bytes == 0
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_frames_of_no_session_take_no_room_from_others() -> None:
    client = World(BrokerSettings(auth=False, max_message_bytes=50_000)).open_client()
    client.declare("q")
    payload = encode_command("message.transfer")
    client.send(b"".join(encode_command_frames(9, payload, b"", bytes(45_000), 4096)[:-1]))
    client.send(b"".join(encode_command_frames(1, payload, header(routing_key="q"), bytes(45_000), 4096)))
    client.sync()
    assert client.exceptions == []
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_a_message_in_anothers_name() -> None:
    client = World(BrokerSettings(auth=True)).open_client()
    client.declare("q")
    for name in (b"anonymous", b"anonymous@QPID"):
        client.command("message.transfer", header=header({"user_id": name}, routing_key="q"), body=b"x")
    client.sync()
    assert client.world.broker.default_host.queues["q"].message_count == 2
    number = client.command("message.transfer", header=header({"user_id": b"anna"}, routing_key="q"), body=b"x")
    assert client.failure() == (ErrorCode.UNAUTHORIZED_ACCESS, number)


@pytest.mark.parametrize("has_credit", [True, False])
def test_the_queue_of_a_subscription_is_deleted(has_credit: bool) -> None:
    """A consumer with credit gets the error at once, one without credit when it grants some."""
    world, client = furnished()
    other = world.open_client(name=b"deleter")

    def give_credit() -> None:
        for unit in (0, 1):
            client.command("message.flow", destination="used", unit=unit, value=500)

    if has_credit:
        give_credit()
    other.command("queue.delete", queue="q")
    client.sync()
    if not has_credit:
        assert not client.exceptions
        give_credit()
    assert client.failure() == (ErrorCode.RESOURCE_DELETED, None)
    assert other.exceptions == []


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_subscription_wants_messages_while_its_queue_is_being_deleted(is_deleted: bool) -> None:
    """The client gets no answer before the outcome is certain."""
    world, client = furnished()
    queue = world.broker.default_host.queues["q"]
    queue.begin_deletion()
    for unit in (0, 1):
        client.command("message.flow", destination="used", unit=unit, value=500)
    client.sync()
    assert not client.exceptions
    if is_deleted:
        for consumer in queue.end_deletion():
            consumer.queue_deleted()
        assert client.failure() == (ErrorCode.RESOURCE_DELETED, None)
    else:
        queue.undo_deletion()
        client.command("message.transfer", header=header(routing_key="q"), body=b"x")
        client.sync()
        assert [each.body for each in client.deliveries] == [b"message", b"x"]


def test_a_session_whose_queue_was_deleted_while_it_was_detached() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    client.subscribe("q")
    client.machine.closed()
    world.open_client(name=b"deleter").command("queue.delete", queue="q")
    world.run()
    back = world.open_client(name=None)
    back.attach(b"session", point=client.sent[1])
    back.declare("again")
    assert "again" in world.broker.default_host.queues
    assert back.exceptions == []


def test_messages_of_a_failed_session_are_redelivered() -> None:
    client = World().open_client()
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.subscribe("q", mode=CREDIT, messages=2)
    assert client.take() == [b"1", b"2"]
    client.command("message.cancel", destination="unknown")
    client.failure()
    queue = client.world.broker.default_host.queues["q"]
    assert [(entry.message.body, entry.is_redelivered) for entry in queue.available()] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]
    assert queue.acquired_count == 0


def test_a_failed_session_of_a_client_that_never_answers_takes_nothing_more() -> None:
    client = World().open_client()
    client.declare("q")
    client.command("message.cancel", destination="unknown")
    client.failure()
    client.publish("q", b"late")
    client.control("session.flush", on=1, completed=True)
    client.control("session.attach", on=1, name=b"other")
    client.sync()
    assert client.of("session.detached")[-1]["code"] == DetachCode.TRANSPORT_BUSY
    assert client.world.broker.default_host.queues["q"].message_count == 0
    assert client.close_code() is None


def test_a_declaration_that_fails_when_its_session_is_gone() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.command("queue.declare", queue="amq.mine")
    client.machine.closed()
    world.run()
    back = world.open_client(timeout=60)
    back.declare("q")
    assert "q" in world.broker.default_host.queues


def test_a_session_is_transactional_once() -> None:
    client = World().open_client()
    client.command("tx.select")
    number = client.command("tx.select")
    assert client.failure() == (STATE, number)


def test_a_transaction_that_is_too_large() -> None:
    client = World(BrokerSettings(auth=False, queue_limit_bytes=MESSAGE_OVERHEAD + 100)).open_client()
    client.declare("q")
    client.command("tx.select")
    client.publish("q", bytes(60))
    (number,) = client.publish("q", bytes(60))
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert client.world.broker.default_host.queues["q"].message_count == 0


def test_arguments_are_kept() -> None:
    client = World().open_client()
    client.declare("q", arguments=typed_map({"any": 1}))
    assert client.call("queue.query", queue="q")["arguments"] == typed_map({"any": 1})


# ---- incomplete messages: those that wait for room, and those whose sender has stalled ----

LARGE = 430_000
SIZES = BrokerSettings(auth=False, max_unfinished_bytes=900_000, max_message_bytes=500_000)


def two_senders() -> tuple[World, list[Client], list[list[bytes]]]:
    """Two connections, and the frames of a large message for each."""
    world = World(SIZES)
    clients = [world.open_client(name=name) for name in (b"first", b"second")]
    clients[0].declare("q")
    payload = encode_command("message.transfer")
    frames = [list(encode_command_frames(1, payload, header(routing_key="q"), bytes(LARGE), 4096)) for _ in clients]
    return world, clients, frames


def pass_time(world: World, seconds: int) -> None:
    for _ in range(2 * seconds):
        world.now += 0.5
        for machine in world.machines:
            machine.on_timer(world.now)
        world.run()


def test_a_large_message_waits_until_another_is_complete() -> None:
    world, clients, frames = two_senders()
    clients[0].send(b"".join(frames[0][:-1]))
    clients[1].send(b"".join(frames[1]))
    world.run()
    assert clients[1].machine.is_paused
    assert world.broker.default_host.queues["q"].message_count == 0
    clients[0].send(frames[0][-1])
    world.run()
    assert world.broker.default_host.queues["q"].message_count == 2
    assert not clients[1].machine.is_paused
    assert world.connections.budget.used == 0


def test_a_stalled_message_is_refused_while_another_waits() -> None:
    world, clients, frames = two_senders()
    clients[0].send(b"".join(frames[0][:-1]))
    clients[1].send(b"".join(frames[1]))
    pass_time(world, 12)
    assert clients[0].failure()[0] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert "stalled" in clients[0].exceptions[0]["description"]
    clients[1].sync()
    assert not clients[1].exceptions
    assert world.broker.default_host.queues["q"].message_count == 1
