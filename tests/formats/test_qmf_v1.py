"""QMF version 1: the bytes of its types and messages, as the documents have them, and whatever else arrives."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.qmf.v1 import (
    BY_CODE,
    EMPTY,
    FIELDS,
    MAGIC,
    QMF_TYPES,
    Embedded,
    ObjectId,
    QmfError,
    decode,
    decode_message,
    encode,
    encode_message,
    typed,
)
from qstore.formats.values import TypedMap, typed_map

_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

BYTES: list[tuple[str, Any, bytes]] = [
    ("uint8", 7, b"\x07"),
    ("uint16", 0x102, b"\x01\x02"),
    ("uint32", 1, b"\0\0\0\1"),
    ("uint64", 1, b"\0\0\0\0\0\0\0\1"),
    ("int8", -1, b"\xff"),
    ("int64", -2, b"\xff" * 7 + b"\xfe"),
    ("absTime", 5, b"\0\0\0\0\0\0\0\5"),
    ("sstr", "ab", b"\2ab"),
    ("lstr", "ä", b"\0\2\xc3\xa4"),
    ("bool", True, b"\1"),
    ("double", 1.0, b"\x3f\xf0" + bytes(6)),
    ("uuid", _ID, _ID.bytes),
    ("objId", ObjectId(0, 3, 1, 10, 99), bytes.fromhex("000300001000000a") + struct.pack(">Q", 99)),
    ("map", typed_map({"a": "b"}), b"\0\0\0\x0a\0\0\0\1\1a\x95\0\1b"),
    ("list", (), b"\0\0\0\4\0\0\0\0"),
    ("array", (("uint8", 1), ("uint8", 2)), b"\0\0\0\7\0\0\0\2\1\1\2"),
    ("array", (), b"\0\0\0\4\0\0\0\0"),
    ("object", ("uint16", 9), b"\2\0\x09"),
]


@pytest.mark.parametrize(("kind", "value", "raw"), BYTES)
def test_bytes_of_each_type(kind: str, value: Any, raw: bytes) -> None:
    assert encode(kind, value) == raw
    assert decode(kind, b"?" + raw + b"!", 1) == (value, 1 + len(raw))
    for cut in range(len(raw)):
        with pytest.raises(QmfError):
            decode(kind, raw[:cut], 0)


def test_codes_are_those_of_the_document() -> None:
    codes = {each.name: each.code for each in QMF_TYPES.values()}
    assert codes == {
        "uint8": 1, "uint16": 2, "uint32": 3, "uint64": 4, "sstr": 6, "lstr": 7, "absTime": 8, "deltaTime": 9,
        "objId": 10, "bool": 11, "float": 12, "double": 13, "uuid": 14, "map": 15, "int8": 16, "int16": 17,
        "int32": 18, "int64": 19, "object": 20, "list": 21, "array": 22,
    }  # fmt: skip
    assert len(BY_CODE) == len(QMF_TYPES)
    for kind, value in EMPTY.items():
        assert decode(kind, encode(kind, value), 0)[0] == value


def test_values_that_do_not_fit_are_the_nearest_and_text_is_cut() -> None:
    assert encode("uint8", 300) == b"\xff"
    assert encode("uint32", -1) == bytes(4)
    assert encode("sstr", "ä" * 200) == b"\xfe" + "ä".encode() * 127
    assert decode("sstr", encode("sstr", "\udcff"), 0) == ("\udcff", 2)
    assert typed("uint16", 1 << 20).value == 0xFFFF
    assert encode("object", Embedded("p", "c", _ID.bytes, b"\x01")) == b"\x14\1p\1c" + _ID.bytes + b"\x01"
    with pytest.raises(QmfError):
        decode("object", b"\x14\1p\1c" + _ID.bytes, 0)  # only its schema tells what it has


@pytest.mark.parametrize(
    ("kind", "value"), [("uint8", "x"), ("map", 7), ("uuid", "x"), ("array", (("uint8", 1), ("bool", True)))]
)
def test_value_unfit_for_its_type_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(QmfError):
        encode(kind, value)


def test_deep_and_large_values_are_refused() -> None:
    deep = ("uint8", 1)
    for _ in range(20):
        deep = ("object", deep)  # type: ignore[assignment]
    with pytest.raises(QmfError):
        encode("object", deep)
    with pytest.raises(QmfError):
        decode("array", b"\0\0\0\x09" + b"\xff\xff\xff\xff\x01" + bytes(4), 0)
    with pytest.raises(QmfError):
        decode("array", b"\0\0\0\x06\0\0\0\1\x05\0", 0)  # there is no type 5
    nested = encode("array", (("uint8", 1),))
    for _ in range(20):
        nested = (5 + len(nested)).to_bytes(4) + b"\0\0\0\1\x16" + nested
    with pytest.raises(QmfError, match="too deep"):
        decode("array", nested, 0)


@pytest.mark.parametrize(
    "raw",
    [
        "00000007 00000001 01 05 06",  # ends before its size
        "00000005 00000001 01 05",  # ends after its size
        "00000009 00000000 15",  # an empty one beyond the end
        "00000000 00000000",  # no room for its count
    ],
)
def test_arrays_that_do_not_have_their_size_are_refused(raw: str) -> None:
    with pytest.raises(QmfError):
        decode("array", bytes.fromhex(raw), 0)


def test_object_ids() -> None:
    found = ObjectId(0, 12, 1, 34, 56)
    assert str(found) == "0-12-1-34-56"
    assert ObjectId.parse(str(found)) == found
    assert ObjectId.decode(found.encoded()) == found
    for text in ("", "1-2-3-4", "a-0-0-0-0", "0-0-0-0--1", "0-0-0-0-" + "9" * 30):
        assert ObjectId.parse(text) is None


# ---- messages ----


def test_bytes_of_messages() -> None:
    header = lambda opcode, sequence=0: b"AM2" + opcode + struct.pack(">I", sequence)  # noqa: E731
    assert encode_message("B", 0) == header(b"B")
    assert encode_message("b", 0, _ID) == header(b"b") + _ID.bytes
    assert encode_message("h", 0, 5) == header(b"h") + struct.pack(">Q", 5)
    assert encode_message("z", 9, 3, "no") == header(b"z", 9) + b"\0\0\0\3\2no"
    assert encode_message("q", 1, 2, "p", "c", _ID.bytes) == header(b"q", 1) + b"\2\1p\1c" + _ID.bytes
    assert encode_message("A", 1, "l", _ID, 0, 7) == header(b"A", 1) + b"\1l" + _ID.bytes + b"\0\0\0\0\0\0\0\7"
    assert encode_message("m", 1, 0, "OK", rest=b"!") == header(b"m", 1) + b"\0\0\0\0\0\2OK!"
    body = encode_message("P", 4) + encode_message("Q", 5, "org.example")
    first = decode_message(body)
    second = decode_message(body, first.end)
    assert (first.opcode, first.sequence, second.opcode, second.fields) == ("P", 4, "Q", {"package": "org.example"})
    assert second.end == len(body)


def test_every_opcode_of_the_document_is_there() -> None:
    assert set(FIELDS) == set("BbPpQqSsAaxzhcigeGMm")


@given(st.binary(max_size=80), st.sampled_from([*FIELDS, "?"]))
def test_any_bytes_are_a_message_or_refused(content: bytes, opcode: str) -> None:
    for body in (content, MAGIC + opcode.encode() + bytes(4) + content):
        try:
            found = decode_message(body)
        except QmfError:
            continue
        values = [found.fields[name] for name, _ in FIELDS[found.opcode]]
        if not any(isinstance(each, TypedMap) for each in values):
            assert encode_message(found.opcode, found.sequence, *values, rest=body[found.end :]) == body


@pytest.mark.parametrize(
    ("kind", "value"), [("float", 1e300), ("uint32", float("inf")), ("object", "ab"), ("array", (("nonsense", 1),))]
)
def test_what_a_type_cannot_carry_is_an_error_of_the_format(kind: str, value: object) -> None:
    with pytest.raises(QmfError):
        encode(kind, value)
