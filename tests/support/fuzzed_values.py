"""Values of all types that fields of AMQP 0-10 have, chosen by a seed: shared names, numbers at the edges, anything."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, Final

from qstore.formats.amqp_0_10.commands import encode_result
from qstore.formats.amqp_0_10.structs import BranchId, PackedStruct, ReplyTo
from qstore.formats.amqp_0_10.types import BY_NAME
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
