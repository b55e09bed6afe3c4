"""The client's state machines, fed with output of a broker and with invalid input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client.amqp_0_10.links import number_ranges
from qstore.broker.client.amqp_0_10.machine import WireConnection, WireSession
from qstore.broker.client.errors import (
    AuthenticationError,
    ConnectionClosedError,
    HeartbeatError,
    MessagingError,
    SessionError,
)
from qstore.broker.client.message import Message, encode_message
from qstore.broker.client.options import ConnectionOptions
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.sasl.table import Credentials
from qstore.formats.amqp_0_10.commands import encode_command, encode_control, encode_result
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_command_frames, encode_control_frame
from qstore.formats.kernels.bodies import Bodies


class Owner:
    """Records its calls."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, int]] = []
        self.transfers: list[tuple[int, str, bytes, bytes]] = []

    def on_settled(self, first: int, last: int) -> None:
        self.settled.append((first, last))

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        self.transfers.append((number, destination, header, body))


def control(control_name: str, /, **values: Any) -> bytes:
    return encode_control_frame(0, encode_control(control_name, **values))


def command(name: str, header: bytes | None = None, body: bytes = b"", **values: Any) -> bytes:
    return b"".join(encode_command_frames(0, encode_command(name, **values), header, body, 4096))


HEADER, BODY = encode_message(Message("x" * 9000, properties={"a": 1}), "key", None)
GREETING = [
    PROTOCOL_HEADER,
    control("connection.start", mechanisms=("ANONYMOUS", "PLAIN"), locales=("en_US",)),
    control("connection.tune", channel_max=10, max_frame_size=4096, heartbeat_max=120),
    control("connection.open-ok"),
]
SESSION = [
    control("session.attached", name=b"s"),
    control("session.command-point", command_id=0, command_offset=0),
    command("message.transfer", HEADER, BODY, destination="d"),
    command("execution.result", command_id=0, value=encode_result("queue.query", queue="q")),
    control("session.completed", commands=((0, 1),)),
    control("session.flush", completed=True),
    command("execution.exception", error_code=404, description="gone"),
    control("session.detached", name=b"s", code=0),
]


def connected(heartbeat: int = 0) -> WireConnection:
    wire = WireConnection(ConnectionOptions(heartbeat=heartbeat), Credentials(), lambda: None)
    for data in GREETING:
        wire.receive(data)
    assert wire.phase is Phase.OPEN
    return wire


def attached(owner: Owner) -> tuple[WireConnection, WireSession]:
    wire = connected()
    session = wire.begin_session(b"s", owner)
    for data in SESSION[:2]:
        wire.receive(data)
    assert session.is_usable
    return wire, session


def test_a_session() -> None:
    owner = Owner()
    wire, session = attached(owner)
    numbers = [session.send("queue.query", queue="q"), session.send("execution.sync", sync=True)]
    assert numbers == [0, 1]
    for data in SESSION[2:6]:
        wire.receive(data)
    assert owner.transfers == [(0, "d", HEADER, BODY)]
    assert session.results[0]["queue"] == "q"
    assert owner.settled == [(0, 1)]
    assert session.done.below == 2
    wire.receive(SESSION[4])  # told again
    assert owner.settled == [(0, 1)]
    wire.receive(SESSION[6] + SESSION[7])
    assert isinstance(session.failure, SessionError)
    assert (session.failure.code, str(session.failure)) == (404, "not-found: gone")
    assert not wire.sessions
    assert wire.failure is None


def test_messages_are_completed_only_once_fetched() -> None:
    wire, session = attached(Owner())
    wire.receive(SESSION[2] + SESSION[3])
    assert session.ledger.done.below == 0
    session.ledger.complete([[0, 0]])
    assert session.ledger.done.below == 2


class _Runs:
    """Records runs of messages."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, bytes, list[bytes]]] = []

    def on_transfers(self, first: int, header: bytes, bodies: Bodies) -> None:
        self.runs.append((first, header, [bodies.body(number) for number in range(bodies.count)]))


@pytest.mark.parametrize("has_owner", [True, False])
def test_messages_that_differ_only_in_their_bodies_come_together(has_owner: bool) -> None:
    owner, runs = Owner(), _Runs()
    wire, session = attached(owner)
    session.run_owner = runs if has_owner else None
    contents = [b"%04d" % number for number in range(100)]
    header = encode_message(Message(contents[0]), "key", None)[0]
    wire.receive(b"".join(command("message.transfer", header, each, destination="d") for each in contents))
    singles = [(number, body) for number, _, _, body in owner.transfers]
    together = [(first + place, body) for first, _, bodies in runs.runs for place, body in enumerate(bodies)]
    assert sorted(singles + together) == list(enumerate(contents))
    assert bool(together) is has_owner
    assert session.ledger.done.below == 0  # all are held until they are completed
    session.ledger.complete([[0, 99]])
    session.complete_received()
    assert session.ledger.done.below == 100


def test_messages_encoded_once_are_sent_as_if_one_by_one() -> None:
    payload = encode_command("message.transfer", destination="amq.topic")
    sent = []
    for is_encoded in (False, True):
        wire, session = attached(Owner())
        wire.take_output()
        if is_encoded:
            frames = b"".join(encode_command_frames(session.channel, payload, HEADER, BODY, wire.max_frame))
            assert session.send_encoded(frames * 3, 3) == 0
        else:
            for _ in range(3):
                session.send_payload(payload, HEADER, BODY)
        sent.append((wire.take_output(), session.sent, session.encoded, wire.messages_sent))
    assert sent[0] == sent[1]


def test_failures_have_distinct_error_types() -> None:
    wire = WireConnection(ConnectionOptions(), Credentials(), lambda: None)
    wire.receive(GREETING[0] + GREETING[1])
    wire.receive(control("connection.close", reply_code=320, reply_text="go away"))
    assert isinstance(wire.failure, AuthenticationError)
    owner = Owner()
    wire, session = attached(owner)
    wire.receive(control("connection.close", reply_code=320, reply_text="good night"))
    assert isinstance(wire.failure, ConnectionClosedError)
    assert "good night" in str(wire.failure)
    assert session.failure is wire.failure


def test_a_requested_close_is_not_a_failure() -> None:
    wire = connected()
    wire.close()
    wire.receive(control("connection.close-ok"))
    assert (wire.phase, wire.failure) == (Phase.CLOSED, None)


def test_heartbeats() -> None:
    wire = connected(heartbeat=10)
    wire.take_output()
    for now in range(1, 12):
        wire.on_timer(float(now))
    assert wire.take_output()
    wire.on_timer(40.0)
    assert isinstance(wire.failure, HeartbeatError)


def test_channels_end() -> None:
    wire = connected()
    for number in range(11):
        wire.begin_session(b"%d" % number, Owner())
    with pytest.raises(SessionError, match="11 channels"):
        wire.begin_session(b"one too many", Owner())


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [
        ([], ()),
        ([0], ((0, 0),)),
        ([1, 2, 3, 5, 7, 8], ((1, 3), (5, 5), (7, 8))),
        ([0xFFFFFFFF, 1 << 32], ((0xFFFFFFFF, 0),)),
    ],
)
def test_ranges(numbers: list[int], ranges: tuple[tuple[int, int], ...]) -> None:
    assert number_ranges(numbers) == ranges


@given(st.data())
def test_damaged_bytes_end_the_connection_or_pass(data: st.DataObject) -> None:
    wire = WireConnection(ConnectionOptions(), Credentials("me", "secret"), lambda: None)
    greeting, session = bytearray(b"".join(GREETING)), bytearray(b"".join(SESSION))
    victim = data.draw(st.sampled_from([greeting, session]))
    for _ in range(data.draw(st.integers(1, 3))):
        victim[data.draw(st.integers(0, len(victim) - 1))] ^= data.draw(st.integers(1, 255))
    wire.receive(bytes(greeting))
    if wire.phase is Phase.OPEN:
        own = wire.begin_session(b"s", Owner())
        wire.receive(bytes(session))
        assert own.failure is None or isinstance(own.failure, MessagingError)
    assert wire.failure is None or isinstance(wire.failure, MessagingError)
    assert (wire.phase is Phase.CLOSED) == (wire.failure is not None)
    assert "secret" not in str(wire.failure)
