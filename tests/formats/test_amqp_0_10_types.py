"""The types and maps of AMQP 0-10: the specification's codes and widths, round trips, hostile bytes, plain values."""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10.maps import (
    MAX_DEPTH,
    TooManyValuesError,
    check_amount,
    decode_map,
    encode_map,
    encode_value,
    read_value,
)
from qstore.formats.amqp_0_10.types import BY_CODE, BY_NAME, TABLE, Amqp010Error, code_of, wire_type_of
from qstore.formats.plain import plain_bytes, plain_map, plain_typed_value
from qstore.formats.values import (
    EMPTY_MAP,
    TYPES,
    TypedArray,
    TypedMap,
    TypedValue,
    UntypedValueError,
    typed_map,
    typed_value,
)
from tests.formats.plain_tables import decode_plain_map, map_types
from tests.support.coded import NESTED, amount_of, coded, coded_array
from tests.support.profiles import examples

# name, code, width (fixed) or width of the size prefix (variable), as the specification's XML has them
SPECIFIED = """
bin8 0x00 fixed 1; int8 0x01 fixed 1; uint8 0x02 fixed 1; char 0x04 fixed 1; boolean 0x08 fixed 1;
bin16 0x10 fixed 2; int16 0x11 fixed 2; uint16 0x12 fixed 2;
bin32 0x20 fixed 4; int32 0x21 fixed 4; uint32 0x22 fixed 4; float 0x23 fixed 4; char-utf32 0x27 fixed 4;
sequence-no - fixed 4;
bin64 0x30 fixed 8; int64 0x31 fixed 8; uint64 0x32 fixed 8; double 0x33 fixed 8; datetime 0x38 fixed 8;
bin128 0x40 fixed 16; uuid 0x48 fixed 16; bin256 0x50 fixed 32; bin512 0x60 fixed 64; bin1024 0x70 fixed 128;
vbin8 0x80 variable 1; str8-latin 0x84 variable 1; str8 0x85 variable 1; str8-utf16 0x86 variable 1;
vbin16 0x90 variable 2; str16-latin 0x94 variable 2; str16 0x95 variable 2; str16-utf16 0x96 variable 2;
byte-ranges - variable 2; sequence-set - variable 2;
vbin32 0xa0 variable 4; map 0xa8 variable 4; list 0xa9 variable 4; array 0xaa variable 4; struct32 0xab variable 4;
bin40 0xc0 fixed 5; dec32 0xc8 fixed 5; bin72 0xd0 fixed 9; dec64 0xd8 fixed 9;
void 0xf0 fixed 0; bit 0xf1 fixed 0
"""

SCALAR_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "char": st.sampled_from("aZ0 é€"),
    "boolean": st.booleans(),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "char-utf32": st.characters(exclude_categories=["Cs"]),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "double": st.floats(allow_nan=False),
    "datetime": st.integers(0, 2**64 - 1),
    "uuid": st.uuids(),
    "str8-latin": st.text("abc é€\n", max_size=20),
    "str16-latin": st.text("abc é€\n", max_size=20),
    "str8": st.text(max_size=20),
    "str16": st.text(max_size=20),
    "str8-utf16": st.text(max_size=20),
    "str16-utf16": st.text(max_size=20),
    "dec32": st.builds(lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-(2**31), 2**31 - 1),
                       st.integers(0, 255)),
    "dec64": st.builds(lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-(2**63), 2**63 - 1),
                       st.integers(0, 255)),
    "void": st.none(),
    "bit": st.just(True),
}  # fmt: skip


def scalar_of(code: int) -> st.SearchStrategy[Any]:
    wire_type = BY_CODE[code]
    assert wire_type is not None
    if wire_type.name in SCALAR_VALUES:
        return SCALAR_VALUES[wire_type.name]
    width = wire_type.fixed
    return st.binary(max_size=30) if width is None else st.binary(min_size=width, max_size=width)


CODES = [code for code, wire_type in enumerate(BY_CODE) if wire_type is not None]
SCALAR_CODES = [code for code in CODES if code not in (0xA8, 0xA9, 0xAA)]
NAMES = st.text(max_size=12) | st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
SCALARS = st.sampled_from(SCALAR_CODES).flatmap(lambda code: st.builds(coded, st.just(code), scalar_of(code)))
ARRAYS = st.sampled_from(SCALAR_CODES).flatmap(
    lambda code: st.builds(coded_array, st.just(code), st.lists(scalar_of(code), max_size=4).map(tuple))
)


def _map_of(values: st.SearchStrategy[TypedValue]) -> st.SearchStrategy[TypedMap]:
    entries = st.lists(st.tuples(NAMES, values), max_size=4).map(lambda pairs: TypedMap(tuple(pairs)))
    return entries | st.just(TypedMap(bare=True))


TYPED = st.recursive(
    SCALARS | ARRAYS.map(lambda array: coded(0xAA, array)),
    lambda inner: (
        _map_of(inner).map(lambda table: coded(0xA8, table))
        | st.lists(inner, max_size=4).map(lambda values: coded(0xA9, tuple(values)))
    ),
    max_leaves=12,
)
MAPS = _map_of(TYPED)

ONE_OF_EACH = TypedMap(
    (
        ("bin8", coded(0x00, b"\xff")),
        ("char", coded(0x04, "€")),
        ("boolean", coded(0x08, True)),
        ("float", coded(0x23, math.inf)),
        ("double", coded(0x33, -1.25)),
        ("char-utf32", coded(0x27, "\U0001f600")),
        ("datetime", coded(0x38, 1_700_000_000)),
        ("uuid", coded(0x48, uuid.UUID("009d81a8-a354-5f1a-a533-f41953f85ed6"))),
        ("vbin8", coded(0x80, b"line\n")),
        ("vbin16", coded(0x90, b"\x00text")),
        ("vbin32", coded(0xA0, b"\xff\x00")),
        ("str8-latin", coded(0x84, "5 €")),
        ("str16", coded(0x95, "euro \x01")),
        ("not text", coded(0x95, b"caf\xe9")),
        ("str16-utf16", coded(0x96, "ü")),
        ("map", coded(0xA8, TypedMap((("a", coded(0x31, -1)),)))),
        ("list", coded(0xA9, (coded(0x12, 7), coded(0xF0, None)))),
        ("array", coded(0xAA, coded_array(0x95, ("x", "y")))),
        ("struct32", coded(0xAB, b"ab")),
        ("dec32", coded(0xC8, Decimal("-1.50"))),
        ("bit", coded(0xF1, True)),
        ("0x03", coded(0x03, b"A")),
    )
)


def test_the_table_is_the_specification() -> None:
    rows = [row.split() for row in SPECIFIED.split(";")]
    assert len(rows) == len(TABLE)
    for (name, code, kind, width), wire_type in zip(rows, TABLE, strict=True):
        assert wire_type.name == name
        assert wire_type.code == (None if code == "-" else int(code, 16))
        assert wire_type.fixed == (int(width) if kind == "fixed" else None)
        assert wire_type.prefix == (int(width) if kind == "variable" else 0)


def test_a_code_that_is_not_in_the_table_has_the_width_of_its_nibble() -> None:
    by_nibble = {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128, 0xC: 5, 0xD: 9, 0xF: 0}
    for code, wire_type in enumerate(BY_CODE):
        if code >> 4 in (0xB, 0xE):
            assert wire_type is None
        else:
            assert wire_type is not None
            assert wire_type.fixed == by_nibble.get(code >> 4)
            assert wire_type.prefix == {8: 1, 9: 2, 0xA: 4}.get(code >> 4, 0)
            assert code_of(wire_type.name) == code


@given(MAPS)
def test_maps_come_back_as_they_were(table: TypedMap) -> None:
    encoded = encode_map(table)
    assert decode_map(encoded) == table
    assert encode_map(decode_map(encoded)) == encoded


@given(MAPS)
def test_fast_path_matches_the_typed_values(table: TypedMap) -> None:
    assert decode_plain_map(encode_map(table)) == (plain_map(table), map_types(table))


@given(st.sampled_from(["byte-ranges", "sequence-set"]), st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2)))
def test_ranges_come_back_as_they_were(name: str, ranges: list[tuple[int, int]]) -> None:
    encoded = encode_value(BY_NAME[name], tuple(ranges))
    assert read_value(BY_NAME[name], encoded, 0, len(encoded)) == (tuple(ranges), len(encoded))


def test_ranges_that_are_not_whole_pairs_are_refused() -> None:
    with pytest.raises(Amqp010Error, match="complete pairs"):
        read_value(BY_NAME["sequence-set"], b"\0\x05abcde", 0, 7)


def _read_both(encoded: bytes) -> tuple[Any, Any]:
    """What the typed and the fast reader make of the same bytes, None for a refusal; anything else raised is a bug."""
    return _read_or_refuse(decode_map, encoded), _read_or_refuse(decode_plain_map, encoded)


def _read_or_refuse(decode: Callable[[bytes], Any], encoded: bytes) -> Any:
    try:
        return decode(encoded)
    except Amqp010Error as error:
        offset = error.offset
    assert 0 <= offset <= len(encoded)
    return None


@examples(400)
@given(st.data())
def test_hostile_maps_are_read_or_refused_by_both_readers_alike(data: st.DataObject) -> None:
    encoded = bytearray(encode_map(data.draw(MAPS)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] = data.draw(st.integers(0, 255))
    hostile = bytes(encoded[: data.draw(st.integers(len(encoded) // 2, len(encoded)))])
    typed, fast = _read_both(hostile)
    assert (typed is None) == (fast is None)
    if typed is not None:
        assert str(fast) == str((plain_map(typed), map_types(typed)))


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for hostile in (raw, struct.pack(">I", len(raw)) + raw, struct.pack(">IIB", len(raw) + 5, 1, 0) + raw):
        typed, fast = _read_both(hostile)
        assert (typed is None) == (fast is None)


@pytest.mark.parametrize("cut", range(len(encode_map(ONE_OF_EACH))))
def test_every_truncation_is_refused(cut: int) -> None:
    assert _read_both(encode_map(ONE_OF_EACH)[:cut]) == (None, None)


def _nest(container: int, depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        inner = {
            0xA8: b"\0\0\0\1" + b"\1n" + b"\xa8" + value,
            0xA9: b"\0\0\0\1" + b"\xa9" + value,
            0xAA: b"\xaa\0\0\0\1" + value,
        }[container]
        value = (struct.pack(">I", len(inner)) + inner) if value else b"\0\0\0\0"
    entry = b"\1x" + bytes([container]) + value
    return struct.pack(">II", 4 + len(entry), 1) + entry


@pytest.mark.parametrize("container", [0xA8, 0xA9, 0xAA])
def test_nesting_is_limited(container: int) -> None:
    typed, fast = _read_both(_nest(container, MAX_DEPTH - 1))
    assert typed is not None
    assert fast is not None
    assert encode_map(typed) is not None
    for depth in (MAX_DEPTH, 5000):
        assert _read_both(_nest(container, depth)) == (None, None)


@pytest.mark.parametrize("code", [0xF0, 0xF1, 0xF7])
def test_values_that_take_no_bytes_cannot_be_claimed_by_the_billion(code: int) -> None:
    for count, allowed in ((16, True), (17, False), (2**32 - 1, False)):
        array = struct.pack(">IBI", 5, code, count)
        typed, fast = _read_both(struct.pack(">II", 7 + len(array), 1) + b"\1a\xaa" + array)
        assert (typed is not None, fast is not None) == (allowed, allowed)


def test_empty_containers() -> None:
    assert encode_map(EMPTY_MAP) == bytes.fromhex("0000000400000000")
    assert decode_map(bytes(4)) == TypedMap(bare=True)
    assert encode_map(decode_map(bytes(4))) == bytes(4)
    assert decode_plain_map(bytes(4)) == ({}, {})
    typed, fast = _read_both(bytes.fromhex("00000012 00000002 016c a9 00000000 0161 aa 00000000".replace(" ", "")))
    assert typed == TypedMap((("l", coded(0xA9, ())), ("a", coded(0xAA, coded_array(0xF0, ())))))
    assert fast == ({"l": [], "a": []}, {"l": "list", "a": "array"})


def test_names_that_are_not_utf8_or_repeated_are_kept() -> None:
    encoded = bytes.fromhex("0000000e 00000002 02ffe9 02 01 02ffe9 02 02".replace(" ", ""))
    table = decode_map(encoded)
    assert list(table) == ["\udcff\udce9"] * 2
    assert table.get("\udcff\udce9") == coded(0x02, 2)
    assert table.get("none") is None
    assert encode_map(table) == encoded


def test_plain_values() -> None:
    plain = plain_map(ONE_OF_EACH)
    assert plain == {
        "bin8": "ff",
        "char": "€",
        "boolean": True,
        "float": "Infinity",
        "double": -1.25,
        "char-utf32": "\U0001f600",
        "datetime": 1_700_000_000,
        "uuid": "009d81a8-a354-5f1a-a533-f41953f85ed6",
        "vbin8": "line\n",
        "vbin16": "0074657874",
        "vbin32": "ff00",
        "str8-latin": "5 €",
        "str16": "euro \x01",
        "not text": "636166e9",
        "str16-utf16": "ü",
        "map": {"a": -1},
        "list": [7, None],
        "array": ["x", "y"],
        "struct32": "6162",
        "dec32": "-1.50",
        "bit": True,
        "0x03": "A",
    }
    assert map_types(ONE_OF_EACH)["not text"] == "str16"
    assert map_types(ONE_OF_EACH)["0x03"] == "0x03"
    assert json.loads(orjson.dumps(plain)) == plain


@pytest.mark.parametrize(("number", "plain"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
@pytest.mark.parametrize("code", [0x23, 0x33])
def test_floats_that_json_does_not_have(code: int, number: float, plain: str) -> None:
    assert plain_typed_value(coded(code, number)) == plain
    assert decode_plain_map(encode_map(TypedMap((("f", coded(code, number)),))))[0] == {"f": plain}


@pytest.mark.parametrize("raw", [b"\x00", b"a\x1fb", b"\x0b", b"\xff"])
def test_bytes_that_are_no_text_are_hex(raw: bytes) -> None:
    assert plain_bytes(raw) == raw.hex()


def test_python_values_get_the_types_that_a_broker_gives_them() -> None:
    table = typed_map(
        {"t": "x", "b": b"x", "long": b"x" * 65536, "i": -1, "big": 2**63, "f": 1.5, "y": True, "n": None,
         "m": {"k": 1}, "l": [1, "x"], "u": uuid.UUID(int=1), "kept": coded(0x01, 1), "map": EMPTY_MAP}
    )  # fmt: skip
    assert [wire_type_of(typed.type).code for _, typed in table.entries] == [
        0x95, 0x90, 0xA0, 0x31, 0x32, 0x33, 0x08, 0xF0, 0xA8, 0xA9, 0x48, 0x01, 0xA8
    ]  # fmt: skip
    assert decode_map(encode_map(table)) == table
    with pytest.raises(UntypedValueError, match="set"):
        typed_value({1, 2})


@pytest.mark.parametrize(
    "typed",
    [
        coded(0x02, 256),
        coded(0x31, 2**63),
        coded(0x31, "1"),
        coded(0x04, "ab"),
        coded(0x84, "\U0001f600"),
        coded(0x85, "x" * 256),
        coded(0x95, "\ud800"),
        coded(0x90, 7),
        coded(0x48, b"short"),
        coded(0xC8, Decimal(2**31)),
        coded(0xC8, Decimal("1E-256")),
        coded(0xC8, Decimal("1E+999999")),
        coded(0xC8, Decimal("NaN")),
        coded(0xA8, 1),
        coded(0xA9, (1,)),
        coded(0xAA, coded_array(0x300, (1,))),
        coded(0xB0, b""),
        coded(0x100, 1),
        coded(0xA8, TypedMap((("x" * 256, coded(0xF0, None)),))),
        coded(0xA8, TypedMap((("\ud800", coded(0xF0, None)),))),
    ],
)
def test_value_out_of_range_for_its_type_is_refused(typed: TypedValue) -> None:
    with pytest.raises(Amqp010Error):
        encode_map(TypedMap((("x", typed),)))


@given(st.dictionaries(st.text("abc", max_size=3), NESTED, max_size=5))
def test_values_are_counted_without_being_decoded(values: dict[str, Any]) -> None:
    raw, amount = encode_map(typed_map(values)), amount_of(values)
    assert check_amount(BY_NAME["map"], raw, 0, len(raw), amount) == 0
    if amount:
        with pytest.raises(TooManyValuesError):
            check_amount(BY_NAME["map"], raw, 0, len(raw), amount - 1)


@pytest.mark.parametrize(
    ("array", "amount"),
    [
        (coded_array(0x11, (1, 2)), 2),
        (coded_array(0xA8, (TypedMap(bare=True), typed_map({"a": 1, "b": (2, 3)}))), 6),
        (coded_array(0xA9, ((), (coded(0xF0, None), coded(0xF0, None)))), 4),
        (coded_array(0xAA, (coded_array(0x01, (1, 2, 3)), coded_array(0x85, ("a",)))), 6),
    ],
)
def test_values_of_arrays_are_counted(array: TypedArray, amount: int) -> None:
    raw = encode_value(BY_NAME["array"], array)
    assert check_amount(BY_NAME["array"], raw, 0, len(raw), amount) == 0
    with pytest.raises(TooManyValuesError):
        check_amount(BY_NAME["array"], raw, 0, len(raw), amount - 1)


def test_a_count_of_more_values_than_there_are_is_refused() -> None:
    for name, raw in (("list", "00000005 00000002 f0"), ("map", "00000007 00000002 0161 f0")):
        data = bytes.fromhex(raw)
        with pytest.raises(Amqp010Error):
            check_amount(BY_NAME[name], data, 0, len(data), 100)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: coded(0xA8, TypedMap((("k", inner),))),
        lambda inner: coded(0xA9, (inner,)),
        lambda inner: TypedValue(TYPES["array"], TypedArray(inner.type, (inner.value,))),
    ],
)
def test_values_that_are_nested_too_deep_cannot_be_written(wrap: Callable[[TypedValue], TypedValue]) -> None:
    value = coded(0xA9, ())
    for _ in range(MAX_DEPTH - 2):
        value = wrap(value)
    assert decode_map(encode_map(TypedMap((("x", value),)))) == TypedMap((("x", value),))
    for _ in range(2):
        value = wrap(value)
    with pytest.raises(Amqp010Error, match="nested more than"):
        encode_map(TypedMap((("x", value),)))


def test_short_text_that_is_not_utf8_is_hex() -> None:
    raw = encode_map(TypedMap((("x", coded(0x85, "ab")),))).replace(b"ab", b"\xff\xfe")
    assert decode_plain_map(raw)[0] == {"x": "fffe"}


def test_only_types_have_codes() -> None:
    assert {code_of(name) for name in ("0x03", "uint8", "map")} == {0x03, 0x02, 0xA8}
    for name in ("nothing", "0x100"):
        with pytest.raises(Amqp010Error, match="no type code"):
            code_of(name)
