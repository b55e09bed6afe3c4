"""File headers of the linearstore journal."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.errors import QlsError
from qstore.formats.qls.file_header import (
    FILE_HEADER_SIZE,
    MAX_NAME_SIZE,
    FileHeader,
    decode_file_header,
    encode_file_header,
    header_oddities,
    linear_geometry,
)
from tests.support.fixtures import LINEAR_STORES, StoreOpener
from tests.support.linear_builder import LinearBuilder, reset_file

U64 = st.integers(0, 2**64 - 1)
U16 = st.integers(0, 2**16 - 1)
NAMES = st.binary(max_size=300).map(lambda name: name.decode("utf-8", "surrogateescape"))
HEADERS = st.builds(
    lambda **fields: FileHeader(**fields),  # of a named tuple, the other fields would be generated as well
    serial=U64,
    rid=U64,
    partition=U16,
    data_size=st.integers(1, 1 << 30).map(lambda sectors: sectors * 4096),
    first_record_offset=U64,
    seconds=U64,
    nanoseconds=U64,
    file_number=U64,
    queue_name=NAMES,
    flags=U16,
)
PLAIN = FileHeader(7, 1, 1, 2048 << 10, 0x1000, 1_700_000_000, 5, 1, "q1")


def changed(offset: int, content: bytes, header: FileHeader = PLAIN) -> bytes:
    sector = encode_file_header(header)
    return sector[:offset] + content + sector[offset + len(content) :]


@given(HEADERS)
def test_round_trip(header: FileHeader) -> None:
    sector = encode_file_header(header)
    assert len(sector) == FILE_HEADER_SIZE
    assert decode_file_header(sector) == header
    assert not sector[74 + len(header.queue_name.encode("utf-8", "surrogateescape")) :].strip(b"\0")


def test_vector() -> None:
    """formats/qls/README.md, 8, file 1 of queue q1; serial and time are not given there."""
    content = bytes.fromhex(
        "514c5366 0200 0000 8877665544332211 0100000000000000"
        "0100 0100 00000000 0008000000000000 0010000000000000"
        "00f1536500000000 0500000000000000 0100000000000000 0200"
    )  # fmt: skip
    header = PLAIN._replace(serial=0x1122334455667788)
    assert decode_file_header(content + b"q1") == header
    assert encode_file_header(header) == (content + b"q1").ljust(4096, b"\0")
    assert header.file_size == 2_101_248


def test_the_longest_name() -> None:
    header = PLAIN._replace(queue_name="n" * MAX_NAME_SIZE)
    sector = encode_file_header(header)
    assert sector.endswith(b"nn")
    assert decode_file_header(sector) == header
    with pytest.raises(AssertionError):
        encode_file_header(PLAIN._replace(queue_name="n" * (MAX_NAME_SIZE + 1)))


@pytest.mark.parametrize("name", ["", "q\0", "\udcff", "é/ä", "\x1b[2J"])
def test_names_are_bytes(name: str) -> None:
    assert decode_file_header(encode_file_header(PLAIN._replace(queue_name=name))).queue_name == name


# ---- reset headers ----


def test_a_pooled_file_is_reset() -> None:
    header = decode_file_header(reset_file(512, 3))
    assert header.is_reset
    assert (header.data_size, header.partition, header.header_sectors) == (512 << 10, 3, 1)


@pytest.mark.parametrize("field", ["serial", "rid", "seconds", "nanoseconds", "file_number"])
def test_a_single_field_that_is_not_zero_marks_a_header_as_used(field: str) -> None:
    reset = decode_file_header(reset_file())
    assert not reset._replace(**{field: 1}).is_reset  # type: ignore[arg-type]
    assert not reset._replace(queue_name="q").is_reset
    assert reset._replace(first_record_offset=0x1000).is_reset  # the reset leaves it as it was


# ---- bytes that are no file header ----


@pytest.mark.parametrize(
    ("content", "offset", "what"),
    [
        (b"", 0, "truncated file header"),
        (b"QLSf", 4, "truncated file header"),
        (changed(0, b"")[:73], 73, "truncated file header"),
        (bytes(4096), 0, "not a file header: magic 0x00000000"),
        (changed(0, b"QLSe"), 0, "not a file header: magic 0x65534c51"),
        (changed(0, b"RHMf"), 0, "not a file header: magic 0x664d4852"),
        (changed(0, b"fSLQ"), 0, "not a file header: magic 0x514c5366"),
        (changed(4, b"\1\0"), 4, "unsupported journal version 1 in file header"),
        (changed(4, b"\2\1"), 4, "unsupported journal version 258 in file header"),
        (changed(24, b"\0"), 24, "a file header of 0 sectors instead of 1"),
        (changed(25, b"\1"), 24, "a file header of 257 sectors instead of 1"),
        (changed(32, bytes(8)), 32, "file header has a data size of 0 KiB"),
        (changed(32, b"\1\0"), 32, "file header has a data size of 1 KiB"),
        (changed(32, struct.pack("<Q", (1 << 32) + 4)), 32, "file header has a data size of 4294967300 KiB"),
        (changed(32, b"\xff" * 8), 32, "file header has a data size of 18446744073709551615 KiB"),
        (changed(72, struct.pack("<H", 4023)), 72, "file header has a queue name of 4,023 bytes"),
        (changed(72, b"\xff\xff"), 72, "file header has a queue name of 65,535 bytes"),
        (changed(0, b"")[:75], 72, "file header has a queue name of 2 bytes"),
    ],
)
def test_invalid_header_error_names_problem_and_offset(content: bytes, offset: int, what: str) -> None:
    with pytest.raises(QlsError) as caught:
        decode_file_header(content)
    assert (caught.value.what, caught.value.offset) == (what, offset)


@given(st.binary(max_size=200), st.sampled_from([b"", b"QLSf\2\0", changed(0, b"")[:72], changed(0, b"")[:32]]))
@example(b"", changed(0, b"")[:74] + b"\xff\xfe")
def test_hostile_bytes(content: bytes, begin: bytes) -> None:
    sector = begin + content
    try:
        header = decode_file_header(sector)
    except QlsError:
        return
    assert encode_file_header(header)[:28] == sector[:28]
    assert header.file_size <= 4 << 40 | 4096
    for offset, what in header_oddities(sector):
        assert offset <= len(sector)
        assert what


@given(HEADERS, st.integers(0, 74 * 8 - 1))
def test_a_flipped_bit_gives_an_error_or_another_header(header: FileHeader, bit: int) -> None:
    sector = bytearray(encode_file_header(header))
    sector[bit // 8] ^= 1 << bit % 8
    try:
        flipped = decode_file_header(bytes(sector))
    except QlsError:
        return
    # Only the reserved field is not read.
    assert flipped != header or 28 <= bit // 8 < 32


# ---- what is not as qpidd writes it ----


def test_oddities() -> None:
    assert header_oddities(encode_file_header(PLAIN)) == []
    assert header_oddities(reset_file()[:4096]) == []
    padded_by_python = reset_file()[:74] + b"\xff" * 4022  # the original's pool tool
    assert header_oddities(padded_by_python) == []


@pytest.mark.parametrize(
    ("offset", "content", "at", "what"),
    [
        (6, b"\x10", 6, "unknown flags 0x0010"),
        (28, b"\1", 28, "reserved field of the file header is 0x00000001"),
        (31, b"\x80", 28, "reserved field of the file header is 0x80000000"),
        (56, struct.pack("<Q", 1_000_000_000), 56, "file header's time has 1000000000 nanoseconds"),
        (76, b"x", 76, "not padded with zeros"),
        (4095, b"\xff", 76, "not padded with zeros"),
    ],
)
def test_each_oddity(offset: int, content: bytes, at: int, what: str) -> None:
    ((where, found),) = header_oddities(changed(offset, content))
    assert where == at
    assert what in found


# ---- what a real qpidd wrote ----


@pytest.mark.parametrize("name", LINEAR_STORES)
def test_all_headers_that_qpidd_wrote(open_fixture: StoreOpener, name: str) -> None:
    written, reset = 0, 0
    for path in (open_fixture(name).path / "qls").glob("p*/efp/**/*.jrnl"):
        sector = path.read_bytes()[:4096]
        header = decode_file_header(sector)
        assert encode_file_header(header) == sector
        assert header_oddities(sector) == []
        assert header.file_size == path.stat().st_size
        assert f"p{header.partition:03d}/efp/{header.data_size >> 10}k/" in str(path)
        reset += header.is_reset
        written += not header.is_reset and header.file_number > 0
    assert (written, reset) == FILES[name]


#: Files that were written to, and files that were not.
FILES = {
    "linear-a-clean": (10, 1),
    "linear-b-crash1": (6, 0),
    "linear-c-localtx": (3, 0),
    "linear-c-midcommit1": (2, 0),
    "linear-c-midcommit3": (5, 0),
    "linear-d-dtx": (4, 0),
    "linear-e-wrap-clean": (28, 0),
}


# ---- what the builder of tests writes ----


def test_first_record_offsets() -> None:
    """formats/qls/README.md, 3.2: of a file that is entered by a new record, by the rest of one, or filled by one."""
    builder = LinearBuilder("q", data_size=4, first_number=7, partition=2)
    blocks = 32  # in a file
    for rid, size in enumerate([blocks, blocks + 3, 2 * blocks - 3, 3 * blocks + 1], start=1):
        builder.enqueue(rid, b"d" * (size * 128 - 64))
    headers = builder.headers
    assert [header.first_record_offset for header in headers] == [0x1000, 0x1000, 0x1180, 0, 0x1000, 0, 0, 0x1080]
    assert [header.rid for header in headers] == [1, 2, 2, 3, 4, 4, 4, 4]
    assert [header.file_number for header in headers] == list(range(7, 15))
    assert len({header.serial for header in headers}) == 8
    assert {(header.partition, header.queue_name) for header in headers} == {(2, "q")}
    assert [(record.file, record.offset) for record in builder.records] == [
        (0, 0x1000),
        (1, 0x1000),
        (2, 0x1180),
        (4, 0x1000),
    ]
    assert [decode_file_header(file) for file in builder.files()] == headers


def test_headers_are_values() -> None:
    with pytest.raises(AttributeError):
        PLAIN.rid = 3  # type: ignore[misc]


def test_linear_geometry() -> None:
    geometry = linear_geometry(3, 8192)
    assert (geometry.files, geometry.file_size, geometry.capacity) == (3, 12288, 24576)
