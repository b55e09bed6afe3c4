"""Hostile clients: the broker goes on serving, or ends the connection or session as the protocol says.

Conversations are made of all controls and commands, with fields that make sense or not, and then damaged: bits, bytes
and frames are flipped, cut off, doubled and swapped. After each the broker has to serve a well-behaved client.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.connection import Phase
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.commands import COMMANDS, CONTROLS, Command, encode_command, encode_control
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_command_frames, encode_control_frame
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.world import Client, World, header
from tests.support.profiles import examples

MAX_MESSAGE: Final = 50_000
SETTINGS: Final = BrokerSettings(
    auth=False, max_message_bytes=MAX_MESSAGE, max_detached_sessions=3, queue_limit_bytes=20_000, max_channels=4
)
NUMBERS: Final = (0, 1, 2, 3, 7, 200)
NAMES: Final = ("q", "q", "q", "p", "d", "", "amq.direct", "amq.topic", "amq.match", "topic", "é" * 60)
COMMAND_IDS: Final = (0, 1, 2, 3, 5, 9, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF)
MAPS: Final = (EMPTY_MAP, typed_map({"x-match": "all", "a": 1}), typed_map({"x-match": "any", "b": "c"}))

FIELDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "str8": st.sampled_from(NAMES),
    "str16": st.sampled_from(NAMES),
    "uint8": st.sampled_from((0, 0, 1, 1, 2, 255)),
    "uint16": st.sampled_from((0, 1, 4096, 65535)),
    "uint32": st.sampled_from((0, 1, 2, 1000, 0xFFFF_FFFF)),
    "uint64": st.sampled_from((0, 1, 0xFFFF_FFFF_FFFF_FFFF)),
    "bit": st.booleans(),
    "vbin16": st.sampled_from((b"s", b"s", b"t", b"")),
    "vbin32": st.sampled_from((b"", b"\0a\0b", b"x" * 300)),
    "map": st.sampled_from(MAPS),
    "sequence-no": st.sampled_from(COMMAND_IDS),
    "sequence-set": st.lists(st.tuples(st.sampled_from(COMMAND_IDS), st.sampled_from(COMMAND_IDS)), max_size=4).map(
        tuple
    ),
}


def fields(command: Command) -> st.SearchStrategy[dict[str, Any]]:
    known = {field.name: FIELDS[field.type_name] for field in command.packed.fields if field.type_name in FIELDS}
    return st.fixed_dictionaries({}, optional=known)


HEADERS: Final = st.sampled_from(
    [
        header(routing_key="q"),
        header(routing_key="q", delivery_mode=2, priority=9),
        header(routing_key="q", ttl=(1 << 64) - 1),
        header(routing_key="q", expiration=(1 << 64) - 1),
        header({"application_headers": MAPS[1]}, routing_key="a.b", ttl=0),
        b"\0\0\0\x04\x7f\x7f\0\0",
        b"",
    ]
)
CHANNELS: Final = st.sampled_from((0, 1, 1, 1, 2, 9))


class Frames(bytes):
    """Frames, which a report of a failure shows only in part."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} bytes: {self[:200].hex()}>"


@st.composite
def frames_of(draw: st.DrawFn) -> bytes:
    """A control or a command."""
    channel = draw(CHANNELS)
    if draw(st.integers(0, 3)) == 0:
        control = draw(st.sampled_from([each for each in CONTROLS if each.name.startswith("session.")]))
        return Frames(encode_control_frame(channel, encode_control(control.name, **draw(fields(control)))))
    command = draw(st.sampled_from((*COMMANDS, *USUAL)))
    payload = encode_command(command.name, **draw(fields(command)))
    if command.name != "message.transfer":
        return Frames(b"".join(encode_command_frames(channel, payload, None, b"", 4096)))
    body = bytes(draw(st.sampled_from((0, 3, 5000, 60_000))))
    return Frames(
        b"".join(encode_command_frames(channel, payload, draw(HEADERS), body, draw(st.sampled_from((64, 65535)))))
    )


USUAL: Final = tuple(each for each in COMMANDS if each.name.startswith("message.") or each.name == "tx.commit") * 3


def opened() -> list[bytes]:
    """What opens a connection, attaches a session, makes a queue and subscribes to it."""
    controls: list[tuple[int, str, dict[str, Any]]] = [
        (0, "connection.start-ok", {"client_properties": {}, "mechanism": "ANONYMOUS", "locale": "en_US"}),
        (0, "connection.tune-ok", {"max_frame_size": 65535, "heartbeat": 0}),
        (0, "connection.open", {"virtual_host": ""}),
        (1, "session.attach", {"name": b"s"}),
        (1, "session.request-timeout", {"timeout": 60}),
        (1, "session.command-point", {"command_id": 0, "command_offset": 0}),
    ]
    commands: list[tuple[str, dict[str, Any]]] = [
        ("queue.declare", {"queue": "q", "alternate_exchange": "amq.fanout"}),
        ("exchange.declare", {"exchange": "topic", "type": "topic"}),
        ("exchange.bind", {"queue": "q", "exchange": "amq.match", "arguments": MAPS[1]}),
        ("message.subscribe", {"queue": "q", "destination": "d"}),
        ("message.flow", {"destination": "d", "unit": 0, "value": 5}),
        ("message.flow", {"destination": "d", "unit": 1, "value": 0xFFFF_FFFF}),
    ]
    found = [PROTOCOL_HEADER]
    found += [encode_control_frame(on, encode_control(name, **values)) for on, name, values in controls]
    found += [
        b"".join(encode_command_frames(1, encode_command(name, **values), None, b"", 65535))
        for name, values in commands
    ]
    return found


def limits_hold(client: Client) -> None:
    machine = client.machine
    assembler = machine._assembler
    assert 0 <= assembler.pending_bytes <= MAX_MESSAGE
    assert len(assembler._rest) < 1 << 16 or machine.is_paused or machine.phase is Phase.CLOSED
    assert len(machine.sessions) <= 4
    assert len(client.world.sessions) <= 4 + 3
    for queue in client.world.broker.default_host.queues.values():
        assert 0 <= queue.acquired_count <= queue.message_count
        assert queue.message_bytes <= 20_000


def ends_as_it_should(client: Client) -> None:
    """A connection that the broker has ended says why; so does a session."""
    client.sync()
    if client.host.is_closed and "connection.close-ok" not in client.names() and client.all:
        closes = client.of("connection.close")
        asked = client.machine.close_code == 0 and not closes  # close-ok that nobody asked for
        assert asked or (len(closes) == 1 and closes[0]["reply_code"] and closes[0]["reply_text"])
    ended = client.names().count("session.detach")
    assert ended == len(client.exceptions)


def still_serves(world: World) -> None:
    client = world.open_client(name=b"well-behaved")
    client.declare("of its own", exclusive=True)
    client.publish("of its own", b"1", b"2")
    client.subscribe("of its own")
    assert client.take() == [b"1", b"2"]
    client.command("message.accept", transfers=((0, 1),))
    client.sync()
    assert client.exceptions == []
    assert world.broker.default_host.queues["of its own"].message_count == 0


def converse(pieces: Iterable[bytes]) -> Client:
    """Bytes come piece by piece, each in a tick of its own; some are lost connections (None)."""
    world = World(SETTINGS)
    client = world.connect()
    for piece in pieces:
        client.send(piece)
        world.run()
        limits_hold(client)
    ends_as_it_should(client)
    client.machine.closed()
    world.run()
    world.sessions.on_timer(world.now + 1_000_000)
    world.run()
    assert len(world.sessions) == 0
    for queue in world.broker.default_host.queues.values():
        assert queue.acquired_count == 0
        assert queue.consumer_count == 0
        assert queue.owner is None
    still_serves(world)
    return client


@examples(400)
@given(st.lists(frames_of(), max_size=25), st.booleans())
def test_any_controls_and_commands(frames: list[bytes], at_once: bool) -> None:
    pieces = opened() + frames
    converse([b"".join(pieces)] if at_once else pieces)


MUTATIONS: Final = st.lists(
    st.tuples(
        st.sampled_from(("flip", "set", "cut", "double", "swap", "drop", "insert")),
        st.integers(0, 10_000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def damaged(pieces: list[bytes], mutations: list[tuple[str, int, int]]) -> list[bytes]:
    """The conversation after these accidents, each to one piece, or to the byte at a place in one."""
    pieces = list(pieces)
    for kind, place, value in mutations:
        index = place % len(pieces)
        piece = bytearray(pieces[index])
        at = value % max(1, min(len(piece), 40))
        if kind == "flip" and piece:
            piece[at] ^= 1 << (place // len(pieces) % 8)
        elif kind == "set" and piece:
            piece[at] = place // len(pieces) % 256
        elif kind == "cut":
            del piece[at:]
        elif kind == "insert":
            piece[at:at] = bytes((value,)) * (place % 5)
        elif kind == "double":
            piece += bytes(piece)
        elif kind == "swap":
            other = value % len(pieces)
            piece, pieces[other] = bytearray(pieces[other]), bytes(piece)
        else:
            piece.clear()
        pieces[index] = bytes(piece)
    return pieces


@examples(600)
@given(st.lists(frames_of(), max_size=12), MUTATIONS, st.booleans())
def test_damaged_conversations(frames: list[bytes], mutations: list[tuple[str, int, int]], at_once: bool) -> None:
    pieces = damaged(opened() + frames, mutations)
    converse([b"".join(pieces)] if at_once else pieces)


@examples(200)
@given(st.binary(max_size=400), st.integers(0, 20))
def test_noise_after_any_part_of_a_conversation(noise: bytes, count: int) -> None:
    converse([*opened()[:count], noise])


def test_memory_held_for_one_connection_is_bounded() -> None:
    """Commands that are begun and never ended, on every channel there is, before and after `open`."""
    frame = bytearray(encode_command_frames(1, b"\x04\x01" + bytes(1000), None, b"", 65535)[0])
    frame[0] = 8 | 2  # the first frame of the first segment, and more to come
    client = World(SETTINGS).connect()
    for piece in opened():
        client.send(piece)
        client.world.run()
    tracemalloc.start()
    try:
        for channel in range(5000):
            frame[6:8] = channel.to_bytes(2, "big")
            client.send(bytes(frame))
        client.world.run()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 5000 * 700 + MAX_MESSAGE
    assert client.machine.phase is Phase.OPEN
