"""One end of a session: completion, and what controls make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.session import MAX_REPLAY_BYTES, Session, State, detach_reason
from qstore.formats.amqp_0_10.commands import decode_command, decode_control
from qstore.formats.amqp_0_10.frames import CONTROL, FRAME, decode_frame

BITS = 1 << 32


class Pipe:
    """A transport that keeps what is sent."""

    def __init__(self, max_frame: int = 65535) -> None:
        self.max_frame = max_frame
        self.output: list[bytes] = []
        self.frames_sent = self.messages_sent = 0

    def has_output(self) -> None:
        """It is taken when the test asks for it."""

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """The controls and commands that were sent, each of one frame."""
        data, at, found = b"".join(self.output), 0, []
        self.output.clear()
        while at < len(data):
            frame = decode_frame(data, at, self.max_frame)
            assert frame is not None
            at += FRAME.size + len(frame.payload)
            if frame.segment_type == CONTROL:
                control, values = decode_control(frame.payload)
                found.append((control.name, values))
            else:
                command, _, values = decode_command(frame.payload)
                found.append((command.name, values))
        return found


class Ended(Session):
    """A session that keeps what the peer has completed."""

    def __init__(self, pipe: Pipe, *, grants: int = 60) -> None:
        super().__init__(b"name", 1, pipe)
        self.by_peer: list[tuple[int, int]] = []
        self.grants = grants
        self.pipe = pipe

    def on_peer_completed(self, first: int, last: int) -> None:
        self.by_peer.append((first, last))

    def grant_timeout(self, seconds: int) -> int:
        return min(seconds, self.grants)


def make(*, point: int = 0, max_frame: int = 65535, timeout: int = 0) -> Ended:
    """A session that is attached, whose peer begins at `point`."""
    session = Ended(Pipe(max_frame))
    session.attached()
    if timeout:
        session.on_control("session.request-timeout", {"timeout": timeout})
    session.on_control("session.command-point", {"command_id": point, "command_offset": 0})
    session.pipe.take()
    return session


def come(session: Session, count: int = 1) -> list[int]:
    return [session.begin_command() for _ in range(count)]


def told(session: Ended) -> list[tuple[int, int]]:
    """The completions that the peer has got."""
    session.send_completed()
    found = session.pipe.take()
    assert [name for name, _ in found] in (["session.completed"], [])
    return list(found[0][1]["commands"]) if found else []


# ---- completion ----


def test_command_not_held_is_completed_on_settling() -> None:
    session = make()
    assert come(session, 3) == [0, 1, 2]
    assert told(session) == []
    assert session.complete_received() == []
    assert told(session) == [(0, 2)]


def test_held_command_is_completed_on_release() -> None:
    session = make()
    for number in come(session, 10):
        if number in (2, 3, 7):
            session.ledger.hold(number)
    runs = session.complete_received()
    assert runs == [[2, 3], [7, 7]]
    assert told(session) == [(0, 1), (4, 6), (8, 9)]
    session.ledger.complete([[7, 7]])
    assert told(session) == [(0, 1), (4, 9)]
    session.ledger.complete([[2, 3]])
    assert told(session) == [(0, 9)]


@pytest.mark.parametrize("max_frame", [4096, 65535])
def test_no_more_ranges_than_a_frame_holds(max_frame: int) -> None:
    session = make(max_frame=max_frame)
    for number in come(session, 30_000):
        if number % 2:
            session.ledger.hold(number)
    runs = session.complete_received()
    assert len(told(session)) in (509, 8189)
    session.on_control("session.flush", {"expected": False, "confirmed": True, "completed": True})
    assert [name for name, _ in session.pipe.take()] == ["session.confirmed", "session.completed"]
    session.ledger.complete(runs)
    assert told(session) == [(0, 29_999)]


def test_known_completed_is_requested_for_gaps_and_sent_on_request() -> None:
    session = make()
    come(session)
    session.ledger.hold(0)
    come(session)
    session.complete_received()
    session.send_completed()
    assert session.pipe.take()[0][1]["timely_reply"]
    session.ledger.complete([[0, 0]])
    session.send_completed()
    assert not session.pipe.take()[0][1]["timely_reply"]
    session.on_control("session.known-completed", {"commands": ((0, 1),)})
    assert told(session) == []
    session.send("execution.sync")
    session.pipe.take()
    session.on_control("session.completed", {"commands": ((0, 0),), "timely_reply": True})
    assert session.pipe.take() == [("session.known-completed", {"commands": ((0, 0),)})]


# ---- controls ----


def test_flush_is_answered_with_the_requested_ranges() -> None:
    session = make()
    come(session, 2)
    session.complete_received()
    come(session)
    session.on_control("session.flush", {"expected": True, "confirmed": True, "completed": True})
    assert [(name, values["commands"]) for name, values in session.pipe.take()] == [
        ("session.expected", ((3, 3),)),
        ("session.confirmed", ((0, 1),)),
        ("session.completed", ((0, 1),)),
    ]


def test_a_command_before_command_point() -> None:
    session = Ended(Pipe())
    session.attached()
    with pytest.raises(FramingError, match="before command-point"):
        session.begin_command()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("session.command-point", {"command_id": 6, "command_offset": 0}),
        ("session.command-point", {"command_id": 5, "command_offset": 1}),
        ("session.gap", {"commands": ((6, 7),)}),
        ("session.completed", {"commands": ((0, 2),), "timely_reply": False}),
        ("session.completed", {"commands": ((0, 2), (0, 1)), "timely_reply": False}),
        ("session.confirmed", {"commands": ((2, 2),)}),
    ],
)
def test_controls_that_make_no_sense(name: str, values: dict[str, Any]) -> None:
    """Five commands have come, and two were sent."""
    session = make()
    come(session, 5)
    session.send("execution.sync")
    session.send("execution.sync")
    with pytest.raises(FramingError):
        session.on_control(name, values)


@pytest.mark.parametrize(
    "name",
    [
        "session.command-point",
        "session.completed",
        "session.confirmed",
        "session.known-completed",
        "session.expected",
        "session.flush",
        "session.gap",
        "session.request-timeout",
        "session.timeout",
    ],
)
def test_controls_with_all_fields_left_out(name: str) -> None:
    session = make()
    fields = ("command_id", "command_offset", "commands", "fragments", "timeout")
    bits = ("timely_reply", "expected", "confirmed", "completed")
    session.on_control(name, dict.fromkeys(fields) | dict.fromkeys(bits, False))
    assert session.received == 0


def test_a_gap_counts_as_received_and_completed() -> None:
    session = make()
    come(session, 2)
    session.on_control("session.gap", {"commands": ((1, 4),)})
    assert come(session) == [5]
    session.complete_received()
    assert told(session) == [(0, 5)]


def test_the_stream_may_begin_anywhere_and_wraps() -> None:
    session = make(point=BITS - 2)
    assert len(set(come(session, 4))) == 4
    session.complete_received()
    assert told(session) == [(BITS - 2, 1)]
    session.on_control("session.known-completed", {"commands": ((BITS - 2, 1),)})
    assert told(session) == []


def test_repeated_command_is_skipped_even_before_settling() -> None:
    session = make()
    come(session, 3)
    session.complete_received()
    assert come(session, 2) == [3, 4]
    session.ledger.hold(4)
    session.on_control("session.command-point", {"command_id": 1, "command_offset": 0})
    assert come(session, 2) == [-1, -1]
    assert session.complete_received() == [[4, 4]]
    assert come(session, 3) == [-1, -1, 5]
    session.complete_received()
    assert told(session) == [(0, 3), (5, 5)]


def test_a_stream_that_continues_where_it_was_though_sending_again_had_not_come_so_far() -> None:
    session = make()
    come(session, 3)
    session.complete_received()
    session.on_control("session.command-point", {"command_id": 0, "command_offset": 0})
    assert come(session) == [-1]
    session.on_control("session.flush", {"expected": True, "confirmed": False, "completed": False})
    assert session.pipe.take() == [("session.expected", {"commands": ((3, 3),), "fragments": None})]
    session.on_control("session.command-point", {"command_id": 3, "command_offset": 0})
    assert come(session) == [3]


def test_a_timeout_is_granted_as_far_as_may_be() -> None:
    session = make()
    session.on_control("session.request-timeout", {"timeout": 1000})
    assert session.pipe.take() == [("session.timeout", {"timeout": 60})]
    assert (session.timeout, session.is_resumable) == (60, True)
    session.on_control("session.timeout", {"timeout": 4_000_000_000})
    assert session.timeout == 60
    session.on_control("session.request-timeout", {"timeout": 0})
    assert (session.timeout, session.is_resumable) == (0, False)
    session.on_control("session.request-timeout", {"timeout": None})
    assert (session.timeout, session.is_resumable) == (60, True), "left out: as long as may be"


# ---- sending, and sending again ----


def again(session: Ended, *changes: Callable[[], None]) -> list[tuple[str, Any]]:
    """Detach, do something, attach again: what is sent then."""
    session.detached()
    for change in changes:
        change()
    session.reattach(2, session.pipe)
    session.pipe.take()
    session.attached()
    return [
        (name.partition(".")[2], values.get("command_id", values.get("destination", values.get("commands"))))
        for name, values in session.pipe.take()
    ]


def send(session: Ended, *names: str) -> None:
    for name in names:
        session.send("message.stop", destination=name)


def test_replay_sends_incomplete_commands_and_gaps() -> None:
    session = make(timeout=10)
    send(session, "a", "b", "c", "d", "e")
    session.on_control("session.completed", {"commands": ((0, 0), (2, 2), (4, 4)), "timely_reply": False})
    assert session.by_peer == [(0, 0), (2, 2), (4, 4)]
    assert again(session) == [
        ("command-point", 1),
        ("stop", "b"),
        ("gap", ((2, 2),)),
        ("stop", "d"),
        ("gap", ((4, 4),)),
    ]


def test_commands_sent_while_detached_go_out_on_attach() -> None:
    session = make(timeout=10)
    send(session, "a")
    assert again(session, lambda: send(session, "b")) == [("command-point", 0), ("stop", "a"), ("stop", "b")]


@pytest.mark.parametrize("name", ["session.confirmed", "session.expected"])
def test_commands_received_by_the_peer_are_not_replayed(name: str) -> None:
    session = make(timeout=10)
    send(session, "a", "b", "c")
    ranges = ((0, 1),) if name == "session.confirmed" else ((2, 2),)
    session.on_control(name, {"commands": ranges})
    assert session.by_peer == []
    assert again(session) == [("command-point", 2), ("stop", "c")]


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=12))
def test_confirmed_commands_leave_the_replay_buffer(pairs: list[tuple[int, int]]) -> None:
    session = make(timeout=10)
    send(session, *map(str, range(20)))
    ranges = tuple((min(pair), max(pair)) for pair in pairs)
    session.on_control("session.confirmed", {"commands": ranges})
    named = {number for first, last in ranges for number in range(first, last + 1)}
    assert [each.number for each in session._replay] == [number for number in range(20) if number not in named]
    assert session._replay.size == sum(each.size for each in session._replay)


def test_nothing_is_kept_without_a_timeout() -> None:
    session = make()
    send(session, "a", "b")
    assert again(session) == [("command-point", 2)]


def test_replay_buffer_is_bounded() -> None:
    session = make(timeout=10)
    for _ in range(3):
        session.send_payload(b"x" * 100, b"", bytes(MAX_REPLAY_BYTES // 2))
    assert not session.is_resumable
    assert not session._replay


def test_detach() -> None:
    session = make()
    session.detach()
    assert session.pipe.take() == [("session.detach", {"name": b"name"})]
    assert session.state is State.DETACHING
    session.detach()
    send(session, "late")
    assert session.pipe.take() == []
    session.detached()
    assert session.transport is None
    assert detach_reason(1) == "session busy"
    assert detach_reason(77) == "code 77"
