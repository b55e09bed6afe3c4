"""Conversations with faults in them, and what a broker may have made of them.

`damaged` makes bytes of a conversation's frames, with faults. `named_in` reads what was sent, and tells which queues,
exchanges and sessions the broker may have made of it: whoever runs conversations can clean up after them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from qstore.formats.amqp_0_10.commands import decode_command, decode_control
from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.frames import COMMAND, CONTROL, FRAME, PROTOCOL_HEADER, WHOLE


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


Login = tuple[str, bytes]
"""A mechanism, and the response that says who one is."""


class Named(NamedTuple):
    """What the broker may have made because of what was sent, and how much of it can be read.

    Attributes:
        queues, exchanges: their names.
        sessions: how those whose they are log in, with their names.
        frames: that begin as frames do.
        commands: that are whole and sound.
    """

    queues: set[str]
    exchanges: set[str]
    sessions: set[tuple[Login, bytes]]
    frames: int
    commands: int


def named_in(sent: bytes) -> Named:
    """Read what was sent, up to where no frame can begin. What the broker would not take may be among it."""
    named, offset, frames, commands = Named(set(), set(), set(), 0, 0), len(PROTOCOL_HEADER), 0, 0
    logins: set[Login] = set()
    names: set[bytes] = set()
    while len(sent) - offset >= FRAME.size:
        flags, segment_type, size, *_ = FRAME.unpack_from(sent, offset)
        payload = sent[offset + FRAME.size : offset + size]
        offset += size
        if size < FRAME.size or offset > len(sent):
            break
        frames += 1
        if segment_type == COMMAND:
            commands += _note(payload, named)
        elif segment_type == CONTROL and flags & WHOLE == WHOLE:
            _note_control(payload, logins, names)
    named.sessions.update(product(logins, names))
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


def _note_control(payload: bytes, logins: set[Login], names: set[bytes]) -> None:
    try:
        control, values = decode_control(payload)
    except Amqp010Error:
        return
    if control.name == "session.attach":
        names.add(values["name"] or b"")
    elif control.name == "connection.start-ok":
        mechanism, response = values["mechanism"], values["response"] or b""
        if mechanism == "ANONYMOUS" or (mechanism == "PLAIN" and response):
            logins.add((mechanism, response))
