"""Objects and events in the form of version 1: their values in the order of the schema, without names.

An object begins with the presence of its optional properties: a bit for each, the first one the lowest, in as many
bytes as are needed; absent ones are left out. A value that a class must have and an object has not is the empty one of
its type.

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19895-19958).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qstore.broker.management.objects.element import Reference
from qstore.formats.qmf.v1.messages import encode_message
from qstore.formats.qmf.v1.object_id import ObjectId
from qstore.formats.qmf.v1.types import EMPTY, encode
from qstore.formats.values import typed_value

if TYPE_CHECKING:
    from qstore.broker.management.events import EventClass
    from qstore.broker.management.objects.element import Argument, ManagedClass
    from qstore.broker.management.registry import Known
    from qstore.broker.model.events import Event

IdOf = Callable[[str], ObjectId]
"""The id of an object with this name."""


def object_message(
    opcode: str,
    sequence: int,
    of: ManagedClass,
    known: Known,
    values: tuple[Sequence[Any], Sequence[Any]],
    id_of: IdOf,
    *,
    times: tuple[float, float],
) -> bytes:
    """An object: its properties (c), its statistics (i), or both (g).

    Args:
        opcode: of the message.
        sequence: of the message.
        of: its class.
        known: what is known of it.
        values: its properties and statistics.
        id_of: finds the ids of other objects.
        times: when it was looked at and when it was deleted, in seconds since 1970; 0 for not.

    Raises:
        QmfError: a value cannot be carried.
    """
    parts = []
    if opcode != "i":
        parts.append(_presence(of, values[0]))
        for row, value in zip(of.properties, values[0], strict=True):
            if value is not None or not row.is_optional:
                parts.append(_value(row.type, value, id_of))
    if opcode != "c":
        parts += [_value(row.type, value, id_of) for row, value in zip(of.statistics, values[1], strict=True)]
    key = of.package, of.name, of.hash.bytes
    sampled, deleted = times
    return encode_message(
        opcode, sequence, *key, _ns(sampled), _ns(known.created), _ns(deleted), known.id, rest=b"".join(parts)
    )


def _presence(of: ManagedClass, values: Sequence[Any]) -> bytes:
    present = [value is not None for row, value in zip(of.properties, values, strict=True) if row.is_optional]
    bits = sum(1 << at for at, is_there in enumerate(present) if is_there)
    return bits.to_bytes((len(present) + 7) // 8, "little")


def _value(kind: str, value: Any, id_of: IdOf) -> bytes:
    if value is None:
        value = EMPTY[kind]
    elif isinstance(value, Reference):
        value = id_of(value.name)
    return encode(kind, value)


def event_message(of: EventClass, event: Event, now: float) -> bytes:
    """An event. Raises QmfError: a value cannot be carried."""
    rest = b"".join(
        encode(argument.type, value) for argument, value in zip(of.arguments, of.values(event), strict=True)
    )
    return encode_message("e", 0, of.package, of.name, of.hash.bytes, _ns(now), of.number, rest=rest)


def results(arguments: Iterable[Argument], values: dict[str, Any]) -> bytes:
    """The results of a method. Raises QmfError: a value cannot be carried."""
    found = ((each.type, values.get(each.name, EMPTY[each.type])) for each in arguments if "O" in each.direction)
    return b"".join(
        encode(kind, typed_value(value).value if isinstance(value, dict | list) else value) for kind, value in found
    )


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
