"""The schema of a class as consoles of version 1 read it; consoles of version 2 ask for it in this form as well.

    class    u16 properties | u16 statistics | u16 methods | a map for each property and statistic | for each method a
             map, and one for each of its arguments
    event    u16 arguments | a map for each argument

    map      of                      keys
    -------  ----------------------  ------------------------------------------------------------
             property                name, type, access, index, optional; unit, desc, refPackage, refClass
             statistic               name, type; unit, desc
             method                  name, argCount; desc
             argument                name, type, and of a method dir (I, O, IO); desc

    access   1 read, set when created; 2 read and written; 3 read

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19748-19881).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.objects.names import PACKAGE
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.qmf.v1.types import QMF_TYPES
from qstore.formats.values import TYPES, TypedValue, typed_map

if TYPE_CHECKING:
    from qstore.broker.management.events import EventClass
    from qstore.broker.management.objects.element import Argument, ManagedClass, Property, Statistic

_ACCESS: Final = {"RC": 1, "RW": 2, "RO": 3}
_UINT8: Final = TYPES["uint8"]


@cache
def class_schema(of: ManagedClass) -> bytes:
    """The schema of a class of objects."""
    parts = [struct.pack(">HHH", len(of.properties), len(of.statistics), len(of.methods))]
    parts += [_map(_property(each, of.package)) for each in of.properties]
    parts += [_map(_statistic(each)) for each in of.statistics]
    for method in of.methods.values():
        parts.append(_map({"name": method.name, "argCount": _small(len(method.arguments)), "desc": method.description}))
        parts += [_map(_argument(each)) for each in method.arguments]
    return b"".join(parts)


@cache
def event_schema(of: EventClass) -> bytes:
    """The schema of a class of events."""
    maps = [_map(_argument(each)) for each in of.arguments]
    return struct.pack(">H", len(maps)) + b"".join(maps)


def _small(value: int) -> TypedValue:
    return TypedValue(_UINT8, value)


def _type(name: str) -> TypedValue:
    return _small(QMF_TYPES[name].code)


def _property(of: Property, package: str) -> dict[str, Any]:
    reference = {}
    if of.references:
        own, _, name = of.references.rpartition(":")
        other, _, short = name.rpartition(".")
        reference = {"refPackage": own or (PACKAGE if other == "qpid" else package), "refClass": short.lower()}
    return {
        "name": of.name,
        "type": _type(of.type),
        "access": _small(_ACCESS[of.access]),
        "index": _small(of.is_index),
        "optional": _small(of.is_optional),
        "unit": of.unit,
        "desc": of.description,
        **reference,
    }


def _statistic(of: Statistic) -> dict[str, Any]:
    return {"name": of.name, "type": _type(of.type), "unit": of.unit, "desc": of.description}


def _argument(of: Argument) -> dict[str, Any]:
    return {"name": of.name, "type": _type(of.type), "dir": of.direction, "desc": of.description}


def _map(fields: dict[str, Any]) -> bytes:
    """Without texts that are empty."""
    return encode_map(typed_map({name: value for name, value in fields.items() if value != ""}))
