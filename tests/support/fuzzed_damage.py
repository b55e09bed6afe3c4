"""Conversations with faults in them, and what a broker may have made of them.

`damaged` makes bytes of a conversation's frames, with faults. `named_in` reads what was sent as the broker does, and
tells which queues, exchanges and sessions it may have made: whoever runs conversations can clean up after them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from formats.amqp_0_10.commands import decode_command, decode_control
from formats.amqp_0_10.errors import Amqp010Error
from formats.amqp_0_10.frames import COMMAND, CONTROL, FRAME, PROTOCOL_HEADER, WHOLE, decode_frame


def damaged(source: random.Random, frames: Sequence[bytes], other: Sequence[bytes]) -> bytes:
    """The bytes of a conversation after one to four accidents. `other` is what a piece may come from instead."""
    pieces = list(frames)
    for _ in range(source.randint(1, 4)):
        source.choice(_ACCIDENTS)(source, pieces, source.randrange(len(pieces)), other)
    return b"".join(pieces)


def _flip(source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    piece = bytearray(pieces[at])
    for _ in range(source.choice((1, 1, 3)) if piece else 0):
        piece[source.randrange(min(len(piece), 64))] ^= 1 << source.randrange(8)
    pieces[at] = bytes(piece)


def _cut(source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    pieces[at] = pieces[at][: source.randrange(len(pieces[at]) + 1)]


def _splice(source: random.Random, pieces: list[bytes], at: int, other: Sequence[bytes]) -> None:
    start = source.randrange(len(other))
    pieces[at:at] = other[start : start + source.randint(1, 10)]


def _repeat(source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    pieces[at:at] = pieces[at : at + source.randint(1, 5)] * source.choice((1, 1, 20))


def _swap(source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    with_whom = source.randrange(len(pieces))
    pieces[at], pieces[with_whom] = pieces[with_whom], pieces[at]


def _leave_out(_source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    pieces[at] = b""


def _forge(source: random.Random, pieces: list[bytes], at: int, _other: Sequence[bytes]) -> None:
    """A size: the frame's, or any that may stand in it."""
    piece, forged = pieces[at], source.choice((b"\0\0", b"\xff\xff", b"\x7f\xff", b"\0\x0c", b"\0\x0b", b"\x10\0"))
    place = source.choice((2, source.randrange(max(1, min(len(piece), 80)))))
    pieces[at] = (piece[:place] + forged + piece[place + 2 :])[: len(piece)]


_ACCIDENTS: Final = (_flip, _flip, _cut, _splice, _repeat, _swap, _leave_out, _forge)

# ---- what was said there ----


class Named(NamedTuple):
    """What the broker may have made because of what was sent, and how much of it can be read.

    Attributes:
        queues, exchanges, sessions: their names.
        frames: that begin as frames do.
        commands: that are whole and sound.
    """

    queues: set[str]
    exchanges: set[str]
    sessions: set[bytes]
    frames: int
    commands: int


def named_in(sent: bytes) -> Named:
    """Read what was sent until no frame begins like that, as the broker does."""
    named, offset, frames, commands = Named(set(), set(), set(), 0, 0), len(PROTOCOL_HEADER), 0, 0
    try:
        while (frame := decode_frame(sent, offset)) is not None:
            offset += FRAME.size + len(frame.payload)
            frames += 1
            commands += frame.segment_type == COMMAND and _note(frame.payload, named)
            if frame.segment_type == CONTROL and frame.flags == WHOLE and frame.payload[:2] == b"\x02\x01":
                named.sessions.add(decode_control(frame.payload)[1]["name"] or b"")
    except Amqp010Error:
        pass
    return named._replace(frames=frames, commands=commands)


def _note(payload: bytes, named: Named) -> bool:
    try:
        command, _, values = decode_command(payload)
    except Amqp010Error:
        return False
    if command.name == "queue.declare":
        named.queues.add(values["queue"] or "")
    elif command.name == "exchange.declare":
        named.exchanges.add(values["exchange"] or "")
    return True
