"""The messages of QMF version 1: what each consists of.

    'AM2' | u8 opcode | u32 sequence | the fields of the opcode (`FIELDS`) | what follows them

A reply has the sequence of its request; what was not asked for has 0. A body of an AMQP message can have several of
these messages.

    opcode  what                    follows its fields
    ------  ----------------------  ----------------------------------------------------------------------------
    B b     broker request, reply
    P p     packages
    Q q     classes of a package
    S s     schema of a class       s: the schema (`schema`)
    A a     attach an agent
    x       a console was added
    z       completion of a request
    h       heartbeat
    c i g   an object: its          the presence of its optional properties, and the values. c has its properties, i its
            values                  statistics, g both
    e       event                   its arguments, in the order of the schema
    G       query
    M m     method call, result     the arguments, in the order of the schema: M those with the direction I and IO, m
                                    those with O and IO, if the status is 0

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19553-20121).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qstore.formats.qmf.v1.types import QmfError, decode, encode

MAGIC: Final = b"AM2"
_HEADER: Final = struct.Struct(">3scI")
_KEY: Final = (("package", "sstr"), ("class", "sstr"), ("hash", "bin128"))
_KEY_WITH_KIND: Final = (("kind", "uint8"), *_KEY)
_OBJECT: Final = (*_KEY, ("sampled", "absTime"), ("created", "absTime"), ("deleted", "absTime"), ("object", "objId"))
TABLE, EVENT = 1, 2
"""The kinds of classes: of objects, of events."""

#: Opcode -> its fields: name and type.
FIELDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "B": (),
    "b": (("broker", "uuid"),),
    "P": (),
    "p": (("package", "sstr"),),
    "Q": (("package", "sstr"),),
    "q": _KEY_WITH_KIND,
    "S": _KEY,
    "s": _KEY_WITH_KIND,
    "A": (("label", "sstr"), ("system", "uuid"), ("broker_bank", "uint32"), ("agent_bank", "uint32")),
    "a": (("broker_bank", "uint32"), ("agent_bank", "uint32")),
    "x": (),
    "z": (("status", "uint32"), ("text", "sstr")),
    "h": (("timestamp", "absTime"),),
    "c": _OBJECT,
    "i": _OBJECT,
    "g": _OBJECT,
    "e": (*_KEY, ("timestamp", "absTime"), ("severity", "uint8")),
    "G": (("query", "map"),),
    "M": (("object", "objId"), *_KEY, ("method", "sstr")),
    "m": (("status", "uint32"), ("text", "lstr")),
}


class Message(NamedTuple):
    """A message.

    Attributes:
        opcode, sequence: its header.
        fields: name -> value.
        end: where the fields end, and what follows them begins.
    """

    opcode: str
    sequence: int
    fields: dict[str, Any]
    end: int


def encode_message(opcode: str, sequence: int, *values: Any, rest: bytes = b"") -> bytes:
    """The bytes of a message.

    Args:
        opcode: what it is.
        sequence: that of its request, or 0.
        values: of its fields.
        rest: what follows them.

    Raises:
        QmfError: a field cannot carry its value.
    """
    fields = zip(FIELDS[opcode], values, strict=True)
    header = _HEADER.pack(MAGIC, opcode.encode(), sequence & 0xFFFFFFFF)
    return b"".join((header, *(encode(kind, value) for (_, kind), value in fields), rest))


def decode_message(buffer: bytes, offset: int = 0) -> Message:
    """The message at an offset.

    Raises:
        QmfError: there is none, or its opcode is unknown.
    """
    try:
        magic, code, sequence = _HEADER.unpack_from(buffer, offset)
    except struct.error:
        raise QmfError("a message is cut in its header", offset) from None
    opcode = code.decode("latin-1")
    if magic != MAGIC or opcode not in FIELDS:
        raise QmfError("no message of version 1, or one with an unknown opcode", offset)
    at, values = offset + _HEADER.size, {}
    for name, kind in FIELDS[opcode]:
        values[name], at = decode(kind, buffer, at)
    return Message(opcode, sequence, values, at)
