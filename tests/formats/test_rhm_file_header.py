"""File headers of the journal in both versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import independent_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import (
    SLOT_SIZE,
    FileHeader,
    decode_file_header,
    decode_header_sector,
    encode_file_header,
    encode_header_slot,
    header_oddities,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 2**16 - 1)
COMMON = {
    "overwrite_indicator": st.integers(0, 1),
    "file_number": U16,
    "first_record_offset": U64,
    "seconds": U64,
    "nanoseconds": U32,
}


def header_of(**fields: int) -> FileHeader:
    """A header of these fields; `st.builds` would generate the others of a named tuple as well."""
    return FileHeader(**fields)


HEADERS_1 = st.builds(header_of, version=st.just(1), rid=U64, logical_number=U16, **COMMON)
HEADERS_2 = st.builds(
    header_of,
    version=st.just(2),
    first_flush=U64,
    salt=U64,
    queue_id=U64,
    incarnation=U32,
    flush_alignment=U16,
    **COMMON,
)


@given(HEADERS_1 | HEADERS_2)
def test_round_trip(header: FileHeader) -> None:
    sector = encode_file_header(header)
    assert len(sector) == 512
    assert decode_file_header(sector) == header
    assert sector[64:] == b"\xff" * 448


def test_vector() -> None:
    """formats/rhm/README.md, 10, file 0 of queue q1."""
    content = bytes.fromhex(
        "52484d6601000000 0100000000000000"
        "0000 0000 00000000 0002000000000000"
        "3b64006b00000000 076ea00c 00000000"
    )  # fmt: skip
    header = FileHeader(1, 0, 0, 0x200, seconds=0x6B00643B, nanoseconds=0x0CA06E07, rid=1)
    assert decode_file_header(content) == header
    assert encode_file_header(header) == content.ljust(512, b"\xff")


def test_version_2_layout() -> None:
    header = FileHeader(2, 1, 3, 0x280, 5, 6, first_flush=7, salt=8, queue_id=9, incarnation=10, flush_alignment=4096)
    sector = encode_file_header(header)
    fields = bytes.fromhex(
        "52484d66 02 00 0100  0700000000000000 8002000000000000 0800000000000000 0900000000000000"
        "0a000000 0300 0010 0500000000000000 06000000"
    )
    crc = independent_crc32c(fields, 0).to_bytes(4, "little")
    assert sector == (fields + crc).ljust(512, b"\xff")


@given(HEADERS_2, st.integers(0, 64 * 8 - 1))
def test_version_2_notices_every_flipped_bit(header: FileHeader, bit: int) -> None:
    sector = bytearray(encode_file_header(header))
    sector[bit // 8] ^= 1 << bit % 8
    if sector[4] == 1 or not any(sector[:4]):  # it became one of version 1, or unwritten, and is read as such
        return
    with pytest.raises(RhmError):
        decode_file_header(bytes(sector))


def test_never_written() -> None:
    assert decode_file_header(bytes(512)) is None


@given(HEADERS_2, st.integers(0, 511), st.binary(max_size=2))
def test_oddities_are_the_same_if_the_header_is_known(header: FileHeader, at: int, content: bytes) -> None:
    sector = bytearray(encode_file_header(header))
    sector[at : at + len(content)] = content
    sector = sector[:512].ljust(512, b"\xff")
    try:
        known = decode_file_header(bytes(sector))
    except RhmError:
        return
    assert header_oddities(bytes(sector), known) == header_oddities(bytes(sector))


CREATION = FileHeader(2, 0, 3, 0, 5, 6, queue_id=9, incarnation=10, slot=1)


def sector_of(first: FileHeader | None, second: FileHeader) -> bytes:
    """A header sector with headers in both places."""
    begin = bytes(SLOT_SIZE) if first is None else encode_header_slot(first).ljust(SLOT_SIZE, b"\0")
    return (begin + encode_header_slot(second)).ljust(512, b"\0")


def test_a_creation_header_says_that_the_file_was_never_entered() -> None:
    sector = sector_of(None, CREATION)
    assert decode_file_header(sector) is None
    assert decode_header_sector(sector).has_creation_header
    assert not decode_header_sector(bytes(512)).has_creation_header
    assert header_oddities(sector) == []


def test_the_first_header_beside_a_creation_header() -> None:
    entered = FileHeader(2, 0, 3, 0x200, 5, 6, first_flush=7, salt=8, queue_id=9, incarnation=10)
    sector = bytearray(sector_of(entered, CREATION))
    assert decode_file_header(bytes(sector)) == entered
    assert not decode_header_sector(bytes(sector)).was_entered_again
    assert header_oddities(bytes(sector)) == []
    sector[20] ^= 1  # torn: the file is what it was, but a creation header is no other lap's
    with pytest.raises(RhmError, match="fails its checksum"):
        decode_file_header(bytes(sector))


def test_the_second_header_takes_the_place_of_the_creation_header() -> None:
    first = FileHeader(2, 0, 3, 0x200, 5, 6, first_flush=7, salt=8, queue_id=9, incarnation=10)
    second = first._replace(overwrite_indicator=1, first_flush=70, slot=1)
    sector = sector_of(first, second)
    assert decode_file_header(sector) == second
    assert not decode_header_sector(sector).has_creation_header


@given(st.binary(max_size=80), st.sampled_from([b"", b"RHMf\1\0", b"RHMf\2\0", b"fMHR\1\1"]))
def test_hostile_bytes(content: bytes, begin: bytes) -> None:
    sector = begin + content
    try:
        header = decode_file_header(sector)
    except RhmError:
        return
    # What is accepted is unwritten, or says what it is.
    assert sector[:4] == (bytes(4) if header is None else b"RHMf")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "truncated file header"),
        (b"RHMf", "truncated file header"),
        (b"RHMf\1\0\0\0" + bytes(39), "truncated file header"),
        (b"RHMf\2\0\0\0" + bytes(55), "truncated file header"),
        (b"fMHR\1\1\0\0" + bytes(504), "big-endian writer"),
        (b"RHMf\3\0\0\0" + bytes(504), "unsupported journal version 3 in file header"),
        (b"RHMf\0\0\0\0" + bytes(504), "unsupported journal version 0 in file header"),
        (b"RHMf\1\1\0\0" + bytes(504), "byte 5 of file header should be 0, is 1"),
        (b"RHMe\1\0\0\0" + bytes(504), "not a file header: magic 0x654d4852"),
        (b"RHMf\2\0\0\0" + bytes(504), "fails its checksum"),
    ],
)
def test_invalid_header_error_names_the_problem(content: bytes, what: str) -> None:
    with pytest.raises(RhmError, match=what):
        decode_file_header(content)


def test_headers_are_values() -> None:
    header = FileHeader(1, 0, 0, 0x200)
    with pytest.raises(AttributeError):
        header.rid = 3  # type: ignore[misc]
