"""message.resume: a sender that was interrupted within a message goes on where it was."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_0_10.message import MAX_HEADER_BYTES
from qstore.broker.protocols.amqp_0_10.session_registry import MAX_KEPT
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import FRAME, encode_command_frames
from tests.broker.protocols.opening import started
from tests.broker.protocols.world import Client, World, header

MESSAGE: Final = "m-1"
ROOM: Final = 10_000
CONTENT: Final = os.urandom(10 * ROOM)
TTL: Final = 60_000


def interrupted(client: Client, frames: int, content: bytes = CONTENT, *, ends: bool = True, **delivery: Any) -> None:
    """Send the first `frames` frames of a message's content, and lose the connection."""
    properties = {"routing_key": "q", "resume_id": MESSAGE, "resume_ttl": TTL} | delivery
    head = header({"correlation_id": b"first"}, **properties)
    payload = encode_command("message.transfer", destination="")
    found = encode_command_frames(1, payload, head, content, ROOM + FRAME.size)
    client.send(b"".join(found[: 2 + frames]))
    if ends:
        client.machine.closed()
        client.world.run()


def offset(client: Client, resume_id: str = MESSAGE) -> int:
    return int(client.call("message.resume", destination="", resume_id=resume_id)["offset"] or 0)


def send(client: Client, content: bytes, resume_id: str = MESSAGE) -> None:
    client.publish("q", content, resume_id=resume_id, resume_ttl=TTL)
    client.sync()


def bodies(world: World) -> list[bytes]:
    return [bytes(entry.message.body) for entry in world.broker.default_host.queues["q"].entries()]


def declared(world: World, **values: Any) -> Client:
    client = world.open_client(**values)
    client.declare("q")
    return client


def test_the_rest_follows() -> None:
    world = World()
    interrupted(declared(world), 4)
    client = world.open_client()
    assert offset(client) == 4 * ROOM
    send(client, CONTENT[4 * ROOM :])
    client.subscribe("q")
    (delivery,) = client.deliveries
    assert delivery.body == CONTENT
    assert b"first" in delivery.header, "the header is that of the first part"
    assert offset(client) == 0, "nothing is left of it"
    assert len(world.sessions.interrupted) == 0


@given(st.lists(st.integers(1, 4), max_size=4))
def test_a_message_interrupted_any_number_of_times(parts: list[int]) -> None:
    world = World()
    declared(world).machine.closed()
    at = 0
    for frames in parts:
        client = world.open_client()
        assert offset(client) == at
        interrupted(client, frames, CONTENT[at:] + bytes(20 * ROOM))
        at = min(at + frames * ROOM, len(CONTENT) + 20 * ROOM)
    client = world.open_client()
    assert offset(client) == at
    send(client, b"the end")
    whole = CONTENT + bytes(20 * ROOM)
    assert bodies(world) == [whole[:at] + b"the end"]


def test_transfer_without_resume_query_is_sent_whole() -> None:
    world = World()
    interrupted(declared(world), 4)
    client = world.open_client()
    send(client, CONTENT)
    assert bodies(world) == [CONTENT]
    assert offset(client) == 0


def test_an_id_that_is_not_known_is_at_0() -> None:
    client = declared(World())
    assert offset(client, "never seen") == 0
    send(client, CONTENT, "never seen")
    assert bodies(client.world) == [CONTENT]


def test_a_destination_that_is_not_there() -> None:
    client = declared(World())
    client.command("message.resume", destination="nowhere", resume_id=MESSAGE)
    assert client.failure()[0] == ErrorCode.NOT_FOUND


def test_it_is_the_users_own() -> None:
    world = World()
    interrupted(declared(world), 4)
    other = started(world.connect(), "PLAIN", b"\0somebody\0x")
    other.control("connection.tune-ok")
    other.control("connection.open")
    other.attach(b"other")
    assert offset(other) == 0
    assert offset(world.open_client()) == 4 * ROOM


@pytest.mark.parametrize("delivery", [{"resume_ttl": 0}, {"resume_ttl": None}, {"resume_id": None}])
def test_only_resumable_messages_are_kept(delivery: dict[str, Any]) -> None:
    world = World()
    interrupted(declared(world), 4, **delivery)
    assert offset(world.open_client()) == 0


def test_a_message_without_content_so_far() -> None:
    world = World()
    interrupted(declared(world), 0)
    assert offset(world.open_client()) == 0


def test_a_session_that_is_detached_is_an_interruption_too() -> None:
    world = World()
    client = declared(world)
    interrupted(client, 4, ends=False)
    client.control("session.detach", on=1, name=b"session")
    client.attach(b"again")
    assert offset(client) == 4 * ROOM


def test_it_is_kept_for_its_time() -> None:
    world = World()
    interrupted(declared(world), 4, resume_ttl=5_000)
    world.sessions.on_timer(world.now + 4)
    assert offset(world.open_client()) == 4 * ROOM
    world.sessions.on_timer(world.now + 5)
    assert offset(world.open_client(name=b"later")) == 0


def test_unfinished_messages_are_bounded_in_bytes() -> None:
    settings = BrokerSettings(auth=False, max_message_bytes=5 * ROOM, max_unfinished_bytes=5 * ROOM)
    world = World(settings)
    declared(world).machine.closed()
    for number in range(4):
        interrupted(world.open_client(), 2, resume_id=str(number))
    client = world.open_client()
    assert [offset(client, str(number)) for number in range(4)] == [0, 0, 2 * ROOM, 2 * ROOM]
    assert world.connections.budget.used == 0


def test_unfinished_messages_are_bounded_in_number() -> None:
    world = World()
    declared(world).machine.closed()
    for number in range(MAX_KEPT + 2):
        client = world.open_client(name=b"%d" % number)
        interrupted(client, 1, resume_id=str(number))
    assert len(world.sessions.interrupted) == MAX_KEPT
    assert offset(world.open_client(), "1") == 0
    assert offset(world.open_client(name=b"last"), "2") == ROOM


def test_a_message_that_gets_too_large() -> None:
    world = World(BrokerSettings(auth=False, max_message_bytes=5 * ROOM))
    interrupted(declared(world), 4)
    client = world.open_client()
    assert offset(client) == 4 * ROOM
    send(client, bytes(2 * ROOM))
    assert client.failure()[0] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert bodies(world) == []


def test_a_connection_that_ends_after_an_unreadable_header() -> None:
    world = World()
    client = declared(world)
    payload = encode_command("message.transfer", destination="")
    frames = encode_command_frames(1, payload, b"\0\0\0\x09\x04\x01\xff\xff", CONTENT, ROOM + FRAME.size)
    client.send(b"".join(frames[:4]))
    client.machine.closed()
    assert len(world.sessions.interrupted) == 0


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, 0xFFFF - FRAME.size])
def test_a_header_that_a_journal_cannot_hold_is_not_kept(size: int) -> None:
    world = World()
    client = declared(world)
    world.durable_queue("d")
    head = header(routing_key="d", delivery_mode=2, resume_id=MESSAGE, resume_ttl=TTL)
    head += (size - len(head) - 4).to_bytes(4, "big") + b"\x7f\xff" + bytes(size - len(head) - 6)
    payload = encode_command("message.transfer", destination="")
    frames = encode_command_frames(1, payload, head, CONTENT, 0xFFFF)
    client.send(b"".join(frames[:3]))
    client.machine.closed()
    client = world.open_client()
    at = offset(client)
    assert bool(at) == (size == MAX_HEADER_BYTES)
    client.publish("d", CONTENT[at:], delivery_mode=2, resume_id=MESSAGE, resume_ttl=TTL)
    client.sync()
    assert [bytes(each.message.body) for each in world.broker.default_host.queues["d"].entries()] == [CONTENT]
