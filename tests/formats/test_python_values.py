"""Maps and lists as Python values: what the exact reader reads, and what it refuses."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10.maps import (
    MAX_DEPTH,
    decode_map,
    encode_map,
    encode_value,
    python_list,
    python_map,
    python_value,
    read_value,
)
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error
from qstore.formats.values import ARRAY, DEC64, LIST, MAP, TYPES, TypedArray, TypedMap, TypedValue
from tests.support.profiles import examples


def _of(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[TypedValue]:
    return values.map(lambda value: TypedValue(TYPES[name], value))


_BITS = {f"{sign}int{bits}": (bits, sign) for bits in (8, 16, 32, 64) for sign in ("", "u")}
_TEXT = st.text(max_size=8) | st.just(b"\xff\xfe")
_LEAVES = st.one_of(
    *(
        _of(name, st.integers(0, 2**bits - 1) if sign else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for name, (bits, sign) in _BITS.items()
    ),
    _of("boolean", st.booleans()),
    _of("void", st.none()),
    _of("double", st.floats(allow_nan=False)),
    _of("str8", _TEXT),
    _of("str16", _TEXT),
    _of("vbin32", st.binary(max_size=8)),
    _of("uuid", st.uuids()),
    _of("datetime", st.integers(0, 2**64 - 1)),
    st.just(TypedValue(DEC64, Decimal("1.50"))),
    st.just(TypedValue(ARRAY, TypedArray(TYPES["uint16"], (1, 2)))),
    st.just(TypedValue(MAP, TypedMap(bare=True))),
)
_NAMES = st.text(max_size=6) | st.just("\udcff")
VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda values: TypedValue(LIST, tuple(values)))
        | st.lists(st.tuples(_NAMES, inner), max_size=4).map(lambda entries: TypedValue(MAP, TypedMap(tuple(entries))))
    ),
    max_leaves=12,
)
MAPS = st.lists(st.tuples(_NAMES, VALUES), max_size=5).map(lambda entries: TypedMap(tuple(entries)))


def exact_list(raw: bytes) -> list[Any]:
    value, end = read_value(BY_NAME["list"], raw, 0, len(raw))
    if end != len(raw):
        raise Amqp010Error("more", end)
    return [python_value(each) for each in value]


def exact_map(raw: bytes) -> dict[str, Any]:
    return {name: python_value(each) for name, each in decode_map(raw).entries}


@given(MAPS)
def test_a_map_is_read_as_the_exact_reader_reads_it(table: TypedMap) -> None:
    raw = encode_map(table)
    assert python_map(raw) == exact_map(raw)


@given(st.lists(VALUES, max_size=5))
def test_a_list_is_read_as_the_exact_reader_reads_it(values: list[TypedValue]) -> None:
    raw = encode_value(BY_NAME["list"], tuple(values))
    assert python_list(raw) == exact_list(raw) == [python_value(each) for each in values]


@given(MAPS, st.data())
@examples(400)
def test_changed_bytes_are_refused_where_the_exact_reader_refuses_them(table: TypedMap, data: st.DataObject) -> None:
    changed = bytearray(encode_map(table))
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=3)):
        changed[at] = data.draw(st.sampled_from([0, 1, 4, 0x32, 0x95, 0xA8, 0xA9, 0xAA, 0xFF]))
    raw = bytes(changed[: data.draw(st.integers(0, len(changed)))] if data.draw(st.booleans()) else changed)
    for fast, exact in ((python_map, exact_map), (python_list, exact_list)):
        try:
            expected: Any = exact(raw)
        except Amqp010Error:
            with pytest.raises(Amqp010Error):
                fast(raw)
        else:
            assert repr(fast(raw)) == repr(expected)  # which NaN equals, too


@given(st.binary(max_size=60))
@examples(400)
def test_any_bytes_are_a_map_or_refused(raw: bytes) -> None:
    try:
        python_map(raw)
    except Amqp010Error:
        with pytest.raises(Amqp010Error):
            decode_map(raw)


def test_excessive_size_claim_is_refused_at_once() -> None:
    for raw in (b"\0\0\0\4\xff\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\5\xff\xff\xff\xff\0", b""):
        with pytest.raises(Amqp010Error):
            python_map(raw)
        with pytest.raises(Amqp010Error):
            python_list(raw)


def test_deep_nesting_is_refused() -> None:
    inner = b"\0\0\0\0"
    for _ in range(MAX_DEPTH + 1):
        body = b"\0\0\0\1\xa9" + inner
        inner = len(body).to_bytes(4, "big") + body
    with pytest.raises(Amqp010Error, match="nested more than"):
        python_list(inner)


def test_of_repeated_names_the_last_counts() -> None:
    number = TYPES["uint8"]
    table = TypedMap((("a", TypedValue(number, 1)), ("a", TypedValue(number, 2))))
    assert python_map(encode_map(table)) == {"a": 2}


def test_identifiers_are_uuids() -> None:
    one = uuid.uuid4()
    assert python_map(encode_map(TypedMap((("id", TypedValue(TYPES["uuid"], one)),)))) == {"id": one}
