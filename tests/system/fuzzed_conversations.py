"""Conversations of AMQP 0-10 made by a seed, with faults in them: what a hostile client might send.

A conversation is a list of frames, from the protocol header on; it waits for no answer. There are two channels, a
session on each that is attached, detached and resumed, and the things that clients do with a few queues and exchanges,
the same for all peers so that they get into each other's way. Now and then any control or command of the
specification's table comes, with fields of the right types and no sense.

`damaged` makes bytes of a conversation's frames, with faults. `named_in` reads what was sent, and says which queues,
exchanges and sessions the broker may have made of it, so that a test can clean up.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_0_10.commands import (
    COMMANDS,
    CONTROLS,
    Command,
    decode_command,
    decode_control,
    encode_command,
    encode_control,
    encode_result,
)
from qstore.formats.amqp_0_10.frames import (
    COMMAND,
    CONTROL,
    FRAME,
    PROTOCOL_HEADER,
    WHOLE,
    encode_command_frames,
    encode_control_frame,
)
from qstore.formats.amqp_0_10.structs import (
    DELIVERY_PROPERTIES,
    MESSAGE_PROPERTIES,
    BranchId,
    PackedStruct,
    ReplyTo,
    encode_struct,
)
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error
from tests.support.coded import coded_array

QUEUES: Final = ("q0", "q1", "q2", "q3", "d0", "d1", "d2")
"""Those that begin with d are durable."""
OWN_EXCHANGES: Final = {"x0": "topic", "x1": "headers", "x2": "fanout", "x3": "direct"}
EXCHANGES: Final = ("amq.direct", "amq.topic", "amq.fanout", "amq.match", "", *OWN_EXCHANGES)
ALTERNATES: Final = {"q1": "amq.fanout", "d1": "amq.topic", "x1": "amq.direct"}
KEYS: Final = ("q0", "q1", "d0", "a.b", "a.#", "*.b", "#", "")
TYPES: Final = ("direct", "topic", "fanout", "headers", "xml", "")
DESTINATIONS: Final = ("s0", "s1", "s2")
_NAMES: Final = (*QUEUES, *EXCHANGES, *KEYS, *DESTINATIONS, *TYPES, "é" * 60, "\udcff", "\0", "amq.none")
NUMBERS: Final = (0, 1, 2, 3, 5, 8, 100, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF)
_BITS: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "datetime": 64, "sequence-no": 32}
_ARGUMENTS: Final = (
    *("qpid.max_count", "qpid.max_size", "qpid.policy_type", "no-local", "qpid.auto_delete_timeout", "qpid.priorities"),
    *("qpid.exclusive-binding", "qpid.msg_sequence", "qpid.ive", "x-match", "qpid.last_value_queue_key", "a", "b"),
    *("qpid.browse-only", "qpid.group_header_key", "x-qpid-priorities", "qpid.trace.id", "qpid.trace.exclude"),
    *("qpid.alert_count", "qpid.alert_size", "qpid.paging", "alternate-exchange", "x-qpid-minimum-alert-repeat-gap"),
)
_ARGUMENT_VALUES: Final = (
    *(0, 1, 3, -1, 50, 10_000, 1 << 40, "all", "any", "reject", "ring", "ring_strict", "flow_to_disk", "self_destruct"),
    *("", "a", "12", b"\xff", 1.5, None, True, False, {"a": 1}, ["a", 1], "amq.direct"),
)


class Values:
    """Values of every type that a field has: mostly those that others use too, else any."""

    def __init__(self, source: random.Random) -> None:
        self.source = source

    def name(self) -> str:
        return self.source.choice(_NAMES)

    def number(self, bits: int) -> int:
        if self.source.random() < 0.7:
            return self.source.choice(NUMBERS) & ((1 << bits) - 1)
        return self.source.getrandbits(bits)

    def ranges(self, bits: int) -> tuple[tuple[int, int], ...]:
        return tuple((self.number(bits), self.number(bits)) for _ in range(self.source.randrange(4)))

    def raw(self) -> bytes:
        return self.source.choice((b"", b"f0", b"f1", b"\0a\0b", self.source.randbytes(20)))

    def table(self) -> dict[str, Any]:
        """Arguments that mean something, with values that may."""
        chosen = self.source.sample(_ARGUMENTS, self.source.choice((0, 0, 1, 2)))
        return {name: self.source.choice(_ARGUMENT_VALUES) for name in chosen}

    def of_type(self, type_name: str) -> Any:
        if type_name == "bit":
            return self.source.random() < 0.5
        if type_name in _BITS:
            return self.number(_BITS[type_name])
        return _MAKERS[type_name](self)

    def fields(self, packed: PackedStruct) -> dict[str, Any]:
        """Each field, or not where the struct can do without."""
        return {
            field.name: self.of_type(field.type_name)
            for field in packed.fields
            if not packed.pack or self.source.random() < 0.8
        }

    def body(self) -> bytes:
        return self.source.randbytes(16) * self.source.choice(
            (0, 1, 1, 4, 4, 60, 60, 300, self.source.choice((1, 5000)))
        )


def _names(values: Values) -> tuple[str, ...]:
    return tuple(values.name() for _ in range(values.source.randrange(3)))


_RESULTS: Final = (b"", encode_result("queue.query", queue="q0", message_count=3))
_MAKERS: Final[dict[str, Callable[[Values], Any]]] = {
    "uuid": lambda values: uuid.UUID(int=values.source.getrandbits(128)),
    "str8": Values.name,
    "str16": Values.name,
    "vbin8": Values.raw,
    "vbin16": Values.raw,
    "vbin32": Values.raw,
    "map": Values.table,
    "array": lambda values: coded_array(
        BY_NAME["str16"].code, tuple(name.encode("utf-8", "surrogateescape") for name in _names(values))
    ),
    "str16-array": _names,
    "amqp-host-array": _names,
    "sequence-set": lambda values: values.ranges(32),
    "byte-ranges": lambda values: values.ranges(64),
    "reply-to": lambda values: ReplyTo(values.name(), values.name()),
    "xid": lambda values: BranchId(values.number(32), values.raw(), values.raw()),
    "struct32": lambda values: values.source.choice(_RESULTS),
}


# ---- conversations ----


FRAME_LIMIT: Final = 65_535
_TIMEOUT_SECONDS: Final = 2
"""So long a session is asked to be kept."""
_ANYTHING: Final = tuple(command for command in COMMANDS if command.name != "message.transfer")
_SESSION_CONTROLS: Final = tuple(control for control in CONTROLS if control.name.startswith("session."))


class Conversation:
    """What one client sends.

    Args:
        source: of all chances.
        nonsense: how many of its commands are any, with fields that mean nothing; from 0 to 1.
        steps: how many things it does after it has opened the connection.

    Attributes:
        frames: what it sends, a piece for each control and command.
    """

    def __init__(self, source: random.Random, nonsense: float, steps: int) -> None:
        self.source, self.values = source, Values(source)
        self.frames: list[bytes] = []
        self._sessions = {1: f"f{source.randrange(4)}".encode(), 2: f"g{source.randrange(4)}".encode()}
        self._sent = {1: 0, 2: 0}
        self._destinations: dict[int, set[str]] = {1: set(), 2: set()}
        self._declared = ["amq.direct", "amq.topic", "amq.fanout", "amq.match"]
        self._open()
        for _ in range(steps):
            if source.random() < nonsense:
                self._anything()
            else:
                source.choices(_STEPS, _WEIGHTS)[0](self, source.choice((1, 1, 1, 2)))
        if source.random() < 0.3:
            self._control(0, "connection.close", reply_code=200, reply_text="")

    # ---- the connection and its sessions ----

    def _open(self) -> None:
        heartbeat = self.source.choice((0, 0, 0, 1))
        mechanism, response = self.source.choice((("ANONYMOUS", b""), ("PLAIN", b"\0guest\0guest")))
        self.frames.append(PROTOCOL_HEADER)
        self._control(0, "connection.start-ok", mechanism=mechanism, response=response, locale="en_US")
        self._control(0, "connection.tune-ok", channel_max=9, max_frame_size=FRAME_LIMIT, heartbeat=heartbeat)
        self._control(0, "connection.open", virtual_host="")
        self._attach(1)
        self._attach(2)
        for _ in range(self.source.randrange(4)):
            self._declare_queue(1)
            self._declare_exchange(1)

    def _attach(self, channel: int) -> None:
        """Attach it. Where it goes on, its commands begin again: those that were handled are passed over."""
        self._control(channel, "session.attach", name=self._sessions[channel], force=self.source.random() < 0.5)
        self._control(channel, "session.request-timeout", timeout=self.source.choice((0, _TIMEOUT_SECONDS)))
        begin = self.source.choice((0, self._sent[channel]))
        self._control(channel, "session.command-point", command_id=begin, command_offset=0)
        self._destinations[channel].clear()
        if self.source.random() < 0.3:
            self._command(channel, "tx.select")

    def _detach(self, channel: int) -> None:
        self._control(channel, "session.detach", name=self._sessions[channel])
        self._attach(channel)

    def _confirm(self, channel: int) -> None:
        """What a session says of commands that came: completed, and what it knows of the broker's saying so."""
        kind = self.source.randrange(4)
        if kind == 0:
            self._control(channel, "session.flush", completed=True, confirmed=True, expected=self.source.random() < 0.5)
        elif kind == 1:
            self._control(channel, "session.completed", commands=((0, self.source.randrange(9)),), timely_reply=True)
        elif kind == 2:
            self._control(channel, "session.known-completed", commands=((0, self.source.randrange(9)),))
        else:
            self._command(channel, "execution.sync")

    # ---- queues and exchanges ----

    def _declare_queue(self, channel: int) -> None:
        queue = self.source.choice(QUEUES)
        self._command(
            channel,
            "queue.declare",
            queue=queue,
            durable=queue.startswith("d"),
            exclusive=self.source.random() < 0.05,
            auto_delete=self.source.random() < 0.2,
            passive=self.source.random() < 0.05,
            alternate_exchange=self._alternate_of(queue),
            arguments=self.values.table() if self.source.random() < 0.5 else {},
        )

    def _alternate_of(self, name: str) -> str | None:
        """Mostly the same one: another one is an error where the queue or exchange is there."""
        return self.source.choice(EXCHANGES) if self.source.random() < 0.1 else ALTERNATES.get(name)

    def _declare_exchange(self, channel: int) -> None:
        exchange = self.source.choice(list(OWN_EXCHANGES))
        self._command(
            channel,
            "exchange.declare",
            exchange=exchange,
            type=self.source.choice(TYPES) if self.source.random() < 0.05 else OWN_EXCHANGES[exchange],
            durable=self.source.random() < 0.3,
            auto_delete=self.source.random() < 0.2,
            alternate_exchange=self._alternate_of(exchange),
            arguments=self.values.table() if self.source.random() < 0.5 else {},
        )
        self._declared.append(exchange)

    def _bind(self, channel: int) -> None:
        bound = {
            "queue": self.source.choice(QUEUES),
            "exchange": self.source.choice(self._declared),
            "binding_key": self.source.choice(KEYS),
        }
        if self.source.random() < 0.1:
            self._command(channel, "exchange.unbind", **bound)
        else:
            self._command(channel, "exchange.bind", **bound, arguments={"x-match": "any", "a": 1} | self.values.table())

    def _ask(self, channel: int) -> None:
        name = self.source.choice(("queue.query", "exchange.query", "exchange.bound"))
        self._command(channel, name, **self.values.fields(_BY_NAME[name].packed))

    def _remove(self, channel: int) -> None:
        name = self.source.choice(("queue.purge", "queue.delete", "exchange.delete"))
        if name == "exchange.delete":
            self._command(channel, name, exchange=self.source.choice(self._declared))
        else:
            self._command(channel, name, queue=self.source.choice(QUEUES))

    # ---- messages ----

    def _publish(self, channel: int) -> None:
        for _ in range(self.source.choice((1, 1, 5, 40))):
            fields = {
                "routing_key": self.source.choice(KEYS),
                "delivery_mode": self.source.choice((1, 2)),
                "priority": self.source.choice((None, 0, 9)),
                "ttl": self.source.choice((None, None, None, 0, 1, 1000, (1 << 64) - 1)),
                "discard_unroutable": self.source.random() < 0.7,
            }
            header = encode_struct(DELIVERY_PROPERTIES, fields)
            if self.source.random() < 0.5:
                header += encode_struct(MESSAGE_PROPERTIES, {"application_headers": {"a": 1, "n": "text"}})
            elif self.source.random() < 0.1:
                header = encode_struct(DELIVERY_PROPERTIES, self.values.fields(DELIVERY_PROPERTIES))
                header += encode_struct(MESSAGE_PROPERTIES, self.values.fields(MESSAGE_PROPERTIES))
            exchange, body = self.source.choice(["", *self._declared]), self.values.body()
            payload = encode_command("message.transfer", destination=exchange, accept_mode=1, acquire_mode=0)
            limit = self.source.choice((FRAME_LIMIT, FRAME_LIMIT, 4096, 200))
            self._send(channel, b"".join(encode_command_frames(channel, payload, header, body, limit)))

    def _subscribe(self, channel: int) -> None:
        destination = self.source.choice(DESTINATIONS)
        if destination in self._destinations[channel] and self.source.random() < 0.9:
            self._command(channel, "message.cancel", destination=destination)
        self._destinations[channel].add(destination)
        self._command(
            channel,
            "message.subscribe",
            queue=self.source.choice(QUEUES),
            destination=destination,
            accept_mode=self.source.choice((0, 0, 1)),
            acquire_mode=self.source.choice((0, 0, 1)),
            exclusive=self.source.random() < 0.1,
            arguments=self.values.table(),
        )
        self._credit(channel, destination)

    def _credit(self, channel: int, destination: str | None = None) -> None:
        chosen = destination or self._destination(channel)
        self._command(channel, "message.set-flow-mode", destination=chosen, flow_mode=self.source.choice((0, 1)))
        self._command(channel, "message.flow", destination=chosen, unit=1, value=0xFFFF_FFFF)
        self._command(channel, "message.flow", destination=chosen, unit=0, value=self.source.choice(NUMBERS))

    def _destination(self, channel: int) -> str:
        """Mostly one that is there."""
        there = sorted(self._destinations[channel])
        return self.source.choice(there if there and self.source.random() < 0.95 else DESTINATIONS)

    def _subscribed(self, channel: int) -> None:
        name, destination = self.source.choice(("message.stop", "message.flush")), self._destination(channel)
        self._command(channel, name, destination=destination)

    def _settle(self, channel: int) -> None:
        first = self.source.randrange(20)
        transfers = ((first, first + self.source.choice((0, 3, 100))),)
        name = self.source.choice(("message.accept",) * 3 + ("message.release", "message.reject", "message.acquire"))
        more = {"code": 0, "text": "no"} if name == "message.reject" else {}
        self._command(channel, name, transfers=transfers, **more)

    def _transact(self, channel: int) -> None:
        self._command(channel, self.source.choice(("tx.commit", "tx.commit", "tx.rollback")))

    # ---- anything ----

    def _anything(self) -> None:
        """Any control or command of a session; rarely of the connection, which mostly ends it."""
        channel = self.source.choice((0, 1, 1, 1, 2, 2, 9))
        chance = self.source.random()
        if chance < 0.2:
            chosen = self.source.choice(CONTROLS if chance < 0.01 else _SESSION_CONTROLS)
            self._control(channel, chosen.name, **self.values.fields(chosen.packed))
        else:
            command = self.source.choice(_ANYTHING)
            self._command(channel, command.name, **self.values.fields(command.packed))

    def _control(self, channel: int, name: str, /, **values: Any) -> None:
        self.frames.append(encode_control_frame(channel, encode_control(name, **values)))

    def _command(self, channel: int, name: str, /, **values: Any) -> None:
        payload = encode_command(name, sync=self.source.random() < 0.2, **values)
        self._send(channel, b"".join(encode_command_frames(channel, payload, None, None, FRAME_LIMIT)))

    def _send(self, channel: int, frames: bytes) -> None:
        self.frames.append(frames)
        if channel in self._sent:
            self._sent[channel] += 1


_BY_NAME: Final[dict[str, Command]] = {command.name: command for command in COMMANDS}
_STEPS, _WEIGHTS = zip(
    (Conversation._publish, 8),
    (Conversation._declare_queue, 4),
    (Conversation._subscribe, 4),
    (Conversation._settle, 4),
    (Conversation._bind, 3),
    (Conversation._credit, 2),
    (Conversation._confirm, 2),
    (Conversation._transact, 1),
    (Conversation._declare_exchange, 2),
    (Conversation._subscribed, 1),
    (Conversation._ask, 1),
    (Conversation._remove, 1),
    (Conversation._detach, 2),
    strict=True,
)


# ---- faults, and what a broker may have made of them ----


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
