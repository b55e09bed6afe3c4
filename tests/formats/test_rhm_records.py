"""Journal records: round trips, qpidd's own bytes, and bytes that are not records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.checksum import independent_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry, padded
from qstore.formats.rhm.records import (
    COMMIT_DECISION,
    EXTERNAL,
    LAST_OF_FLUSH,
    LAYOUTS,
    MOVED,
    OVERWRITE_INDICATOR,
    RECORD_KINDS,
    SEAL,
    TRANSIENT,
    Kind,
    RecordHeader,
    decode_header,
    decode_record,
    decode_tail,
    encode_header,
    encode_record,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
FLAGS = [0, OVERWRITE_INDICATOR, TRANSIENT, EXTERNAL, MOVED, LAST_OF_FLUSH, SEAL, COMMIT_DECISION]


@st.composite
def whole_records(draw: st.DrawFn) -> tuple[RecordHeader, bytes, bytes, int]:
    """Header, xid, data, salt of a legal record."""
    version = draw(st.sampled_from([1, 2]))
    kind = draw(st.sampled_from(sorted(RECORD_KINDS)))
    salt = draw(U64) if version == 2 else 0
    if kind is Kind.FILLER and version == 1:
        return RecordHeader(kind, 1, 0, blocks=1), b"", b"", salt
    fields: dict[str, Any] = {"rid": draw(U64), "flags": draw(st.sampled_from(FLAGS))}
    if version == 2:
        fields["flush"] = draw(U32)
    if kind is Kind.FILLER:
        return RecordHeader(kind, 2, blocks=draw(st.integers(1, 64)), **fields), b"", b"", salt
    xid = draw(st.binary(max_size=80) if kind in (Kind.ENQUEUE, Kind.DEQUEUE) else st.binary(min_size=1, max_size=80))
    data = b""
    if kind is Kind.ENQUEUE:
        data = draw(st.binary(max_size=300))
        fields["data_size"] = len(data)
        if version == 1 and fields["flags"] & EXTERNAL:
            data, fields["data_size"] = b"", draw(U64)
    if kind is Kind.DEQUEUE:
        fields["dequeued_rid"] = draw(U64)
    return RecordHeader(kind, version, xid_size=len(xid), **fields), xid, data, salt


@given(whole_records(), st.integers(0, 3))
def test_round_trip(record: tuple[RecordHeader, bytes, bytes, int], blocks_before: int) -> None:
    header, xid, data, salt = record
    encoded = encode_record(header, xid, data, salt=salt)
    assert len(encoded) == header.size
    assert header.size % BLOCK_SIZE == 0
    offset = blocks_before * BLOCK_SIZE
    assert decode_record(bytes(offset) + encoded + b"junk", offset, salt=salt) == (header, xid, data)


@given(whole_records())
def test_padding_is_0xff(record: tuple[RecordHeader, bytes, bytes, int]) -> None:
    header, xid, data, salt = record
    encoded = encode_record(header, xid, data, salt=salt)
    used = header.tail_offset + (12 if header.has_tail else 0)
    assert encoded[used:] == b"\xff" * (len(encoded) - used)


@given(whole_records(), st.data())
def test_version_2_notices_every_flipped_bit(
    record: tuple[RecordHeader, bytes, bytes, int], data: st.DataObject
) -> None:
    header, xid, body, salt = record
    if header.version != 2:
        return
    encoded = bytearray(encode_record(header, xid, body, salt=salt))
    bit = data.draw(st.integers(0, (header.tail_offset + 12) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    if header.kind is Kind.FILLER and bit // 8 == 4:
        # Any filler that does not say version 2 is one of version 1, for the journal's reader to refuse.
        assert decode_header(bytes(encoded)).version == 1
        return
    with pytest.raises(RhmError):
        decode_record(bytes(encoded), salt=salt)


@given(whole_records(), U64)
def test_version_2_needs_the_salt(record: tuple[RecordHeader, bytes, bytes, int], other: int) -> None:
    header, xid, body, salt = record
    if header.version != 2 or other == salt:
        return
    with pytest.raises(RhmError, match="does not match"):
        decode_record(encode_record(header, xid, body, salt=salt), salt=other)


@given(whole_records(), st.data())
def test_every_truncation_is_reported(record: tuple[RecordHeader, bytes, bytes, int], data: st.DataObject) -> None:
    header, xid, body, salt = record
    encoded = encode_record(header, xid, body, salt=salt)
    used = header.tail_offset + (12 if header.has_tail else 0)
    # Of a version-1 filler the magic is all that counts, but the eight common bytes are read at once.
    least = 8 if header.kind is Kind.FILLER and header.version == 1 else used
    with pytest.raises(RhmError, match="truncated"):
        decode_record(encoded[: data.draw(st.integers(0, least - 1))], salt=salt)


@given(st.binary(max_size=200), st.integers(0, 210))
@example(b"RHMe\x01\0\0\0" + b"\xff" * 24 + bytes(200), 0)
@example(b"RHMe\x02\0\0\0" + b"\xff" * 24 + bytes(200), 0)
@example(b"RHMx\x02\0\0\0" + bytes(16) + b"\xff" * 8, 0)
@example(b"RHMd\x01\0\0\0" + b"\xff" * 24, 0)
@example(b"RHMc\x01\0\0\0" + b"\xff" * 16, 0)
def test_hostile_bytes_give_an_error_or_a_value(content: bytes, offset: int) -> None:
    for decode in (decode_header, decode_record, decode_tail):
        error = error_of(decode, content, offset)
        assert error is None or offset <= error.offset <= max(offset, len(content))


def error_of(decode: Callable[[bytes, int], object], content: bytes, offset: int) -> RhmError | None:
    try:
        decode(content, offset)
    except RhmError as error:
        return error
    return None


@given(st.sampled_from(sorted(RECORD_KINDS)), st.sampled_from([1, 2]), st.binary(min_size=26, max_size=60))
def test_hostile_headers_have_a_size_without_allocating(kind: Kind, version: int, rest: bytes) -> None:
    content = struct.pack("<IBB", kind, version, 0) + rest
    try:
        header = decode_header(content)
    except RhmError:
        return
    assert header.size >= BLOCK_SIZE
    if not (kind is Kind.FILLER and version == 1):
        assert encode_header(header) == content[: header.header_size]


@pytest.mark.parametrize("version", [0, 3, 255])
@pytest.mark.parametrize("kind", sorted(RECORD_KINDS - {Kind.FILLER}))
def test_unknown_version_is_refused_by_its_number(kind: Kind, version: int) -> None:
    content = struct.pack("<IBBH", kind, version, 0, 0) + bytes(120)
    with pytest.raises(RhmError, match=f"unsupported journal version {version} in {kind.label} record"):
        decode_header(content)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (bytes(128), "unwritten space"),
        (b"eMHR\x01\x01" + bytes(122), "big-endian writer"),
        (b"RHMe\x01\x01" + bytes(122), "big-endian writer"),
        (b"RHMe\x02\x07" + bytes(122), "byte 5 of enqueue record should be 0, is 7"),
        (b"RHMf\x01\x00" + bytes(122), "file header where a record should be"),
        (b"RHMz\x01\x00" + bytes(122), "no record here"),
        (b"RHMc\x01\x00" + bytes(122), "commit record without an xid"),
        (b"RHMa\x02\x00" + bytes(122), "abort record without an xid"),
        (b"RHMx\x02\x00" + bytes(122), "filler that covers no block"),
        (struct.pack("<IBBHQIIQ", Kind.COMMIT, 2, 0, 0, 1, 3, 1, 9) + bytes(96), "last header field is not 0"),
        (struct.pack("<IBBHQIIQ", Kind.FILLER, 2, 0, 0, 1, 3, 1, 9) + bytes(96), "has an xid"),
    ],
)
def test_invalid_record_error_names_the_problem(content: bytes, what: str) -> None:
    with pytest.raises(RhmError, match=what) as caught:
        decode_header(bytes(128) + content, 128)
    assert caught.value.offset == 128


# ---- formats/rhm/README.md, 10: bytes of a compiled qpidd ----

XID = bytes.fromhex("0100000000000000a1615f9fc8b4485ba194ea047a430e7c")


def test_vector_enqueue() -> None:
    message = bytes.fromhex(
        "0000006b"
        "0b01001d00010001000000000401010101000a616d712e646972656374"
        "0302004e0001000100000000"
        "0000002604031401000263310a746578742f706c61696e0000000f000000010161310000000000000001"
        "000000140401180307020a616d712e646972656374026b31"
        "68656c6c6f"
    )  # fmt: skip
    assert len(message) == 0x74
    header = RecordHeader(Kind.ENQUEUE, 1, 0, rid=1, data_size=0x74)
    expected = (
        bytes.fromhex("52484d65010000000100000000000000 00000000000000007400000000000000")
        + message
        + bytes.fromhex("adb7b29a0100000000000000")
    ).ljust(0x100, b"\xff")
    assert encode_record(header, b"", message) == expected
    assert decode_record(expected) == (header, b"", message)


def test_vector_filler() -> None:
    filler = RecordHeader(Kind.FILLER, 1, 0, blocks=1)
    assert encode_record(filler) == b"RHMx" + b"\xff" * 124
    assert decode_record(b"RHMx" + b"\xff" * 124) == (filler, b"", b"")


def test_vector_transactional_enqueue_header() -> None:
    content = bytes.fromhex("52484d650100000005000000000000001800000000000000 3400000000000000")
    header = RecordHeader(Kind.ENQUEUE, 1, 0, rid=5, xid_size=0x18, data_size=0x34)
    assert decode_header(content) == header
    assert encode_header(header) == content
    assert header.size == padded(32 + 0x18 + 0x34 + 12)


def test_vector_commit() -> None:
    content = bytes.fromhex("52484d6301000000 0800000000000000 1800000000000000")
    content += XID + bytes.fromhex("adb7b29c0800000000000000")
    header = RecordHeader(Kind.COMMIT, 1, 0, rid=8, xid_size=24)
    assert encode_record(header, XID) == content.ljust(128, b"\xff")
    assert decode_record(content) == (header, XID, b"")


def test_vector_distributed_dequeue() -> None:
    xid = bytes.fromhex("0604070000000009 03676964 03626964")
    content = bytes.fromhex("52484d6401000000 0c00000000000000 0100000000000000 1000000000000000")
    content += xid + bytes.fromhex("adb7b29b0c00000000000000")
    header = RecordHeader(Kind.DEQUEUE, 1, 0, rid=12, xid_size=16, dequeued_rid=1)
    assert encode_record(header, xid) == content.ljust(128, b"\xff")
    assert decode_record(content) == (header, xid, b"")


def test_vector_abort_tail_and_plain_dequeue() -> None:
    abort = encode_record(RecordHeader(Kind.ABORT, 1, 1, rid=3, xid_size=1), b"x")
    assert abort[25:37] == bytes.fromhex("adb7b29e0300000000000000")
    dequeue = encode_record(RecordHeader(Kind.DEQUEUE, 1, 1, rid=3, dequeued_rid=2))
    assert dequeue == struct.pack("<IBBHQQQ", Kind.DEQUEUE, 1, 0, 1, 3, 2, 0).ljust(128, b"\xff")


def test_version_2_checksum_is_over_data_xid_header_salt() -> None:
    header = RecordHeader(Kind.ENQUEUE, 2, MOVED, rid=9, xid_size=3, data_size=5, flush=70_000)
    encoded = encode_record(header, b"xid", b"hello", salt=0x0102030405060708)
    head = struct.pack("<4sBBHQIIQ", b"RHMe", 2, 0, 0x40, 9, 3, 70_000, 5)
    crc = independent_crc32c(b"hello" + b"xid" + head + bytes.fromhex("0807060504030201"), 0)
    assert encoded == (head + b"xid" + b"hello" + struct.pack("<IQ", crc, 9)).ljust(128, b"\xff")


def test_layouts_are_the_sizes_that_they_say() -> None:
    for (_, kind), layout in LAYOUTS.items():
        common = 4 if not layout.fields else 8
        assert layout.size == common + layout.rest.size, kind


def test_geometry() -> None:
    geometry = Geometry.from_pages(8, 24)
    assert (geometry.file_size, geometry.capacity) == (1_573_376, 8 * 24 * 65536)
    for files, data_size in ((0, 512), (1, 0), (1, 511), (1, 640), (4, -512)):
        with pytest.raises(ValueError, match=r"a (journal|data area)"):
            Geometry(files, data_size)
