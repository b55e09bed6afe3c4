"""Values of every type that a field of AMQP 0-10 has, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from qstore.formats.amqp_0_10.commands import COMMANDS, encode_result
from qstore.formats.amqp_0_10.structs import BranchId, PackedStruct, ReplyTo
from tests.formats.test_amqp_0_10_types import ARRAYS, MAPS

_TEXT = st.text(max_size=20) | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_RAW = st.binary(max_size=20)


def _uint(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def _ranges(bits: int) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(_uint(bits), _uint(bits)), max_size=5).map(tuple)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "uint8": _uint(8),
    "uint16": _uint(16),
    "uint32": _uint(32),
    "uint64": _uint(64),
    "datetime": _uint(64),
    "sequence-no": _uint(32),
    "uuid": st.uuids(),
    "str8": _TEXT,
    "str16": _TEXT,
    "vbin8": _RAW,
    "vbin16": _RAW,
    "vbin32": _RAW,
    "map": MAPS,
    "array": ARRAYS,
    "str16-array": st.lists(_TEXT, max_size=3).map(tuple),
    "amqp-host-array": st.lists(_TEXT, max_size=3).map(tuple),
    "sequence-set": _ranges(32),
    "byte-ranges": _ranges(64),
    "reply-to": st.builds(ReplyTo, _maybe(_TEXT), _maybe(_TEXT)),
    "xid": st.builds(BranchId, _maybe(_uint(32)), _maybe(_RAW), _maybe(_RAW)),
    "struct32": st.sampled_from([b"", encode_result("queue.query", queue="q", message_count=3)]),
}

RESULTS = sorted({command.result for command in COMMANDS if command.result is not None})


def fields_of(packed: PackedStruct) -> st.SearchStrategy[dict[str, Any]]:
    """Every field of a struct with a value or without one, as decoding gives them."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, type_name in packed.fields:
        values = BY_TYPE[type_name]
        fields[name] = values if type_name == "bit" or not packed.pack else _maybe(values)
    return st.fixed_dictionaries(fields)
