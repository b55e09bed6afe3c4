"""Linearstore records: round trips, bytes that a real qpidd wrote, bytes that are not records, continued checksums."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from zlib import adler32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.errors import QlsError
from qstore.formats.qls.file_header import DATA_OFFSET, KIB, FileHeader, decode_file_header
from qstore.formats.qls.records import (
    HEADER_SIZES,
    MAGICS,
    MAX_HEADER_SIZE,
    SECTOR_SIZE,
    TAIL_SIZE,
    RecordHeader,
    Tail,
    combined_adler32,
    decode_header,
    decode_record,
    decode_tail,
    encode_header,
    encode_record,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE, padded
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind
from tests.support.fixtures import LINEAR_STORES, StoreOpener
from tests.support.linear_builder import LinearBuilder

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
FLAGS = [0, TRANSIENT, EXTERNAL, TRANSIENT | EXTERNAL, COMMIT_DECISION]
KINDS: Final = sorted(HEADER_SIZES)
WITH_HEADER: Final = [kind for kind in KINDS if kind is not Kind.FILLER]

Whole = tuple[RecordHeader, bytes, bytes]


@st.composite
def whole_records(draw: st.DrawFn) -> Whole:
    """Header, xid, data of a legal record."""
    kind = draw(st.sampled_from(KINDS))
    if kind is Kind.FILLER:
        return RecordHeader(kind), b"", b""
    fields: dict[str, Any] = {"rid": draw(U64), "serial": draw(U64), "flags": draw(st.sampled_from(FLAGS))}
    least = 1 if kind in (Kind.COMMIT, Kind.ABORT) else 0
    xid, data = draw(st.binary(min_size=least, max_size=80)), b""
    if kind is Kind.ENQUEUE:
        data = draw(st.binary(max_size=300))
        fields["data_size"] = len(data)
        if fields["flags"] & EXTERNAL:
            data, fields["data_size"] = b"", draw(U64)
    if kind is Kind.DEQUEUE:
        fields["dequeued_rid"] = draw(U64)
    return RecordHeader(kind, xid_size=len(xid), **fields), xid, data


def used(header: RecordHeader) -> int:
    """Bytes that mean something."""
    return header.tail_offset + (TAIL_SIZE if header.has_tail else 0)


# ---- round trips ----


@given(whole_records(), st.integers(0, 3))
def test_round_trip(record: Whole, blocks_before: int) -> None:
    header, xid, data = record
    encoded = encode_record(header, xid, data)
    assert len(encoded) == header.size
    assert header.size % BLOCK_SIZE == 0
    offset = blocks_before * BLOCK_SIZE
    assert decode_record(bytes(offset) + encoded + b"junk", offset) == (header, xid, data)


@given(whole_records())
def test_padding_is_0xff(record: Whole) -> None:
    header, _, _ = record
    encoded = encode_record(*record)
    assert encoded[used(header) :] == b"\xff" * (len(encoded) - used(header))
    assert len(encoded) - used(header) < BLOCK_SIZE


@given(whole_records())
def test_tail_matches_the_table(record: Whole) -> None:
    header, xid, data = record
    encoded = encode_record(header, xid, data)
    if not header.has_tail:
        assert header.tail_offset == HEADER_SIZES[header.kind]
        return
    end = header.tail_offset
    inverted = bytes(0xFF - byte for byte in encoded[:4])
    expected = struct.pack("<4sIQQ", inverted, adler32(encoded[:end]), header.serial, header.rid)
    assert encoded[end : end + 24] == expected
    tail = decode_tail(encoded, end)
    assert tail == Tail(*struct.unpack("<IIQQ", expected))
    assert tail.goes_with(header)
    assert not tail.goes_with(header._replace(rid=header.rid ^ 1))
    other = Kind.ABORT if header.kind is not Kind.ABORT else Kind.COMMIT
    assert not tail.goes_with(header._replace(kind=other))


TO_PLAIN: Final = {Kind.ENQUEUE: 24, Kind.DEQUEUE: 32 * 8}  # the bit, or the first bit of a size, that makes it one


@given(whole_records(), st.integers(0, 2**16))
@example((RecordHeader(Kind.DEQUEUE, xid_size=2), b"\0\0", b""), TO_PLAIN[Kind.DEQUEUE] + 1)
@example((RecordHeader(Kind.ENQUEUE), b"", b""), TO_PLAIN[Kind.ENQUEUE])
@example((RecordHeader(Kind.ENQUEUE, xid_size=1), b"x", b""), TO_PLAIN[Kind.ENQUEUE])
def test_every_flipped_bit_is_noticed(record: Whole, bit: int) -> None:
    """But in a plain dequeue, which has no checksum, beyond magic and version; and in a filler, beyond its magic.

    One bit makes an enqueue without data a plain dequeue, and so it does a transactional dequeue whose xid's size has
    that bit alone. A journal's reader sees neither, but by the padding (`qstore-check --paranoid`).
    """
    header, _, _ = record
    protected = used(header)
    if not header.has_tail:
        protected = 4 if header.kind is Kind.FILLER else 6
    encoded = bytearray(encode_record(*record))
    bit %= protected * 8
    encoded[bit // 8] ^= 1 << bit % 8
    into_plain = not header.data_size and bit == TO_PLAIN.get(header.kind)
    if header.kind is Kind.DEQUEUE:
        into_plain = bit >= TO_PLAIN[header.kind] and header.xid_size == 1 << bit - TO_PLAIN[header.kind]
    if header.has_tail and into_plain:
        plain = decode_header(bytes(encoded))
        assert (plain.kind, plain.has_tail) == (Kind.DEQUEUE, False)
        return
    with pytest.raises(QlsError):
        decode_record(bytes(encoded))


@given(whole_records(), st.data())
def test_every_truncation_is_reported(record: Whole, data: st.DataObject) -> None:
    header, _, _ = record
    size = data.draw(st.integers(0, used(header) - 1))
    with pytest.raises(QlsError, match="truncated"):
        decode_record(encode_record(*record)[:size])


# ---- bytes that are not records ----


def error_of(decode: Callable[[bytes, int], object], content: bytes, offset: int) -> QlsError | None:
    try:
        decode(content, offset)
    except QlsError as error:
        return error
    return None


@given(st.binary(max_size=200), st.integers(0, 210))
@example(b"QLSe\x02\0\0\0" + b"\xff" * 32 + bytes(200), 0)
@example(b"QLSe\x02\0\x20\0" + b"\xff" * 32 + bytes(200), 0)
@example(b"QLSd\x02\0\0\0" + b"\xff" * 32 + bytes(200), 0)
@example(b"QLSc\x02\0\0\0" + b"\xff" * 24, 0)
@example(b"QLSx", 0)
def test_hostile_bytes_give_an_error_or_a_value(content: bytes, offset: int) -> None:
    for decode in (decode_header, decode_record, decode_tail):
        error = error_of(decode, content, offset)
        assert error is None or offset <= error.offset <= max(offset, len(content))


@given(st.sampled_from(KINDS), st.integers(0, 2**16 - 1), st.binary(min_size=32, max_size=60))
def test_hostile_headers_have_a_size_without_allocating(kind: Kind, flags: int, rest: bytes) -> None:
    content = struct.pack("<IHH", MAGICS[kind], 2, flags) + rest
    if kind in (Kind.COMMIT, Kind.ABORT) and not any(content[24:32]):
        with pytest.raises(QlsError, match="without an xid"):
            decode_header(content)
        return
    header = decode_header(content)
    assert header.kind is kind
    assert header.size >= BLOCK_SIZE
    assert encode_header(header) == content[: header.header_size]
    assert header.header_size <= MAX_HEADER_SIZE


@pytest.mark.parametrize("version", [0, 1, 3, 0x102, 0xFFFF])
@pytest.mark.parametrize("kind", WITH_HEADER)
def test_unknown_version_is_refused_by_its_number(kind: Kind, version: int) -> None:
    content = struct.pack("<IHH", MAGICS[kind], version, 0) + bytes(120)
    with pytest.raises(QlsError, match=f"unsupported journal version {version} in {kind.label} record"):
        decode_header(content)


ENQUEUE: Final = encode_record(RecordHeader(Kind.ENQUEUE, 0, 5, 6, 1, 3), b"x", b"abc")  # tail at 44


def changed(offset: int, content: bytes) -> bytes:
    return ENQUEUE[:offset] + content + ENQUEUE[offset + len(content) :]


@pytest.mark.parametrize(
    ("content", "offset", "what"),
    [
        (b"", 0, "truncated record header"),
        (b"QLS", 0, "truncated record header"),
        (bytes(128), 0, "unwritten space"),
        (b"eSLQ" + bytes(124), 0, "no record here: magic 0x514c5365"),
        (b"RHMe" + bytes(124), 0, "no record here: magic 0x654d4852"),
        (b"QLSz" + bytes(124), 0, "no record here: magic 0x7a534c51"),
        (b"QLSf\2\0" + bytes(122), 0, "a file header where a record should be"),
        (b"QLSc\2\0" + bytes(122), 0, "commit record without an xid"),
        (b"QLSa\2\0" + bytes(122), 0, "abort record without an xid"),
        (b"QLSe\2\0" + bytes(33), 0, "truncated enqueue record header"),
        (b"QLSd\2\0" + bytes(33), 0, "truncated dequeue record header"),
        (b"QLSc\2\0" + bytes(25), 0, "truncated commit record header"),
        (b"QLSa\2\0" + bytes(17), 0, "truncated abort record header"),
        (ENQUEUE[:67], 0, "truncated enqueue record"),
        (changed(24, b"\xff" * 8), 0, "truncated enqueue record"),
        (changed(32, b"\xff" * 8), 0, "truncated enqueue record"),
        (changed(44, b"z"), 44, "tail of enqueue record does not match it"),
        (changed(52, b"z"), 44, "tail of enqueue record does not match it"),
        (changed(60, b"z"), 44, "tail of enqueue record does not match it"),
        (changed(8, b"z"), 44, "tail of enqueue record does not match it"),
        (changed(48, b"z"), 48, "enqueue record fails its checksum"),
        (changed(40, b"z"), 48, "enqueue record fails its checksum"),
        (changed(43, b"z"), 48, "enqueue record fails its checksum"),
    ],
)
def test_invalid_record_error_names_problem_and_offset(content: bytes, offset: int, what: str) -> None:
    with pytest.raises(QlsError) as caught:
        decode_record(bytes(128) + content, 128)
    assert (caught.value.what, caught.value.offset) == (what, 128 + offset)
    assert str(caught.value).startswith(f"linearstore journal: {what} (at offset ")


def test_truncated_tail() -> None:
    with pytest.raises(QlsError, match="truncated record tail"):
        decode_tail(bytes(40), 17)


@pytest.mark.parametrize(
    ("header", "tail", "size"),
    [
        (RecordHeader(Kind.ENQUEUE), 40, 128),
        (RecordHeader(Kind.ENQUEUE, data_size=64), 104, 128),
        (RecordHeader(Kind.ENQUEUE, data_size=65), 105, 256),
        (RecordHeader(Kind.ENQUEUE, EXTERNAL, data_size=1 << 60), 40, 128),
        (RecordHeader(Kind.ENQUEUE, EXTERNAL, xid_size=64, data_size=1 << 60), 104, 128),
        (RecordHeader(Kind.DEQUEUE), 40, 128),
        (RecordHeader(Kind.DEQUEUE, EXTERNAL, xid_size=65), 105, 256),
        (RecordHeader(Kind.COMMIT, xid_size=72), 104, 128),
        (RecordHeader(Kind.ABORT, xid_size=73), 105, 256),
        (RecordHeader(Kind.FILLER), 4, 128),
        (RecordHeader(Kind.ENQUEUE, xid_size=2**64 - 1, data_size=2**64 - 1), 38 + (1 << 65), padded((1 << 65) + 62)),
    ],
)
def test_sizes(header: RecordHeader, tail: int, size: int) -> None:
    assert (header.tail_offset, header.size) == (tail, size)


# ---- formats/qls/README.md, 2 and 8 ----


def test_vectors() -> None:
    """Page 17: magic, version and flags of a header, and the tail of a first message."""
    header = RecordHeader(Kind.ENQUEUE, 0, 0x1122334455667788, 1, 0, 5)
    encoded = encode_record(header, b"", b"hello")
    assert encoded[:40] == bytes.fromhex(
        "514c5365 0200 0000 8877665544332211 0100000000000000 0000000000000000 0500000000000000"
    )
    assert encoded[45:49] == bytes.fromhex("aeb3ac9a")
    assert encoded[53:69] == bytes.fromhex("8877665544332211 0100000000000000")
    assert decode_tail(bytes.fromhex("aeb3ac9a 2e158659 8877665544332211 0100000000000000")) == Tail(
        0x9AACB3AE, 0x5986152E, 0x1122334455667788, 1
    )


def test_magics() -> None:
    letters = {
        Kind.FILE: "f",
        Kind.ENQUEUE: "e",
        Kind.DEQUEUE: "d",
        Kind.COMMIT: "c",
        Kind.ABORT: "a",
        Kind.FILLER: "x",
    }
    assert {kind: magic.to_bytes(4, "little") for kind, magic in MAGICS.items()} == {
        kind: f"QLS{letter}".encode() for kind, letter in letters.items()
    }


def test_layouts() -> None:
    dequeue = encode_record(RecordHeader(Kind.DEQUEUE, 0x10, 7, 3, 1, dequeued_rid=2), b"x")
    assert dequeue[:41] == struct.pack("<4sHHQQQQ", b"QLSd", 2, 0x10, 7, 3, 2, 1) + b"x"
    abort = encode_record(RecordHeader(Kind.ABORT, 0, 7, 3, 1), b"x")
    assert abort[:33] == struct.pack("<4sHHQQQ", b"QLSa", 2, 0, 7, 3, 1) + b"x"
    assert encode_record(RecordHeader(Kind.FILLER)) == b"QLSx" + b"\xff" * 124
    assert decode_record(b"QLSx" + bytes(124)) == (RecordHeader(Kind.FILLER), b"", b"")


# ---- what a real qpidd wrote ----


def written_journals(opened: StoreOpener, name: str) -> dict[str, list[tuple[FileHeader, bytes]]]:
    """Queue name → header and data area of its files, in order of their numbers."""
    journals: dict[str, list[tuple[FileHeader, bytes]]] = {}
    for path in (opened(name).path / "qls").glob("p*/efp/*/in_use/*.jrnl"):
        content = path.read_bytes()
        header = decode_file_header(content[:DATA_OFFSET])
        assert len(content) == header.file_size
        if not header.is_reset:
            journals.setdefault(header.queue_name, []).append((header, content[DATA_OFFSET:]))
    for files in journals.values():
        files.sort(key=lambda file: file[0].file_number)
    return journals


#: Enqueues, dequeues, commits, aborts in each store: qpidd's own qpid-qls-analyze counts the same.
COUNTS: Final = {
    "linear-a-clean": (154, 78, 0, 0),
    "linear-b-crash1": (1637, 199, 0, 0),
    "linear-c-localtx": (39, 9, 5, 0),
    "linear-c-midcommit1": (312, 0, 0, 0),
    "linear-c-midcommit3": (2501, 26, 3, 0),
    "linear-d-dtx": (54, 14, 4, 2),
    "linear-e-wrap-clean": (411, 461, 0, 0),
}


#: Where the records of a journal end: the first bytes that are no record of its own.
ENDS: Final = {
    "linear-c-midcommit1": "tail of enqueue record does not match it",  # torn by a crash
    "linear-e-wrap-clean": "a record of the file's former life",
}


def own_records(files: list[tuple[FileHeader, bytes]]) -> tuple[list[Whole], str]:
    """The records of one journal, and what stands behind the last."""
    stream = b"".join(data for _, data in files)
    data_size, place = files[0][0].data_size, files[0][0].first_record_offset - DATA_OFFSET
    records: list[Whole] = []
    while place < len(stream):
        try:
            header, xid, data = decode_record(stream, place)
        except QlsError as error:
            return records, error.what
        if header.kind is not Kind.FILLER and header.serial != files[place // data_size][0].serial:
            return records, "a record of the file's former life"
        assert encode_record(header, xid, data) == stream[place : place + header.size]
        records.append((header, xid, data))
        place += header.size
    return records, "the end of the file"


@pytest.mark.parametrize("name", LINEAR_STORES)
def test_all_records_that_qpidd_wrote_decode(open_fixture: StoreOpener, name: str) -> None:
    """And laid out anew, each journal's files begin where qpidd's headers say."""
    counts: Counter[Kind] = Counter()
    ends = set()
    for queue_name, files in written_journals(open_fixture, name).items():
        records, end = own_records(files)
        ends.add(end)
        counts.update(header.kind for header, _, _ in records)
        first = files[0][0]
        if end.startswith("tail of") or first.first_record_offset != DATA_OFFSET:
            continue  # its last file may begin behind the torn record; its first file's beginning is gone
        rebuilt = LinearBuilder(queue_name, first.data_size // KIB, first.file_number)
        for record in records:
            rebuilt.append(*record)
        reported = [(header.first_record_offset, header.rid, header.file_number) for header, _ in files]
        assert [(head.first_record_offset, head.rid, head.file_number) for head in rebuilt.headers] == reported
    assert ends <= {"unwritten space", ENDS.get(name)}
    assert tuple(counts[kind] for kind in (Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT)) == COUNTS[name]


# ---- checksums of records that were continued ----


@given(st.binary(max_size=300), st.binary(max_size=300))
@example(b"", b"")
@example(b"\xff" * 6000, b"\xff" * 70_000)
def test_combined_adler32(first: bytes, second: bytes) -> None:
    assert combined_adler32(adler32(first), adler32(second), len(second)) == adler32(first + second)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_combined_adler32_of_many_pieces(pieces: list[bytes]) -> None:
    checksum = adler32(b"")
    for piece in pieces:
        checksum = combined_adler32(checksum, adler32(piece), len(piece))
    assert checksum == adler32(b"".join(pieces))


@given(U32, U32, U64)
def test_combined_adler32_of_forged_numbers_is_a_checksum(first: int, second: int, size: int) -> None:
    combined = combined_adler32(first, second, size)
    assert combined & 0xFFFF < 65521
    assert combined >> 16 < 65521


def test_a_continued_record_fails_its_own_checksum() -> None:
    """As the builder writes it; the tail has the serial of the file in which the writer waited."""
    builder = LinearBuilder("q", data_size=4)
    placed = builder.enqueue(1, b"d" * 9000, waited_at=SECTOR_SIZE)
    stream = b"".join(file[DATA_OFFSET:] for file in builder.files())
    with pytest.raises(QlsError, match="tail of enqueue record does not match it"):
        decode_record(stream)
    end = placed.header.tail_offset
    tail = decode_tail(stream, end)
    assert tail.goes_with(placed.header)
    assert tail.serial == builder.headers[1].serial
    whole = adler32(stream[:end])
    sectors = range(SECTOR_SIZE, end, SECTOR_SIZE)
    fitting = [at for at in sectors if combined_adler32(adler32(stream[:at]), tail.checksum, end - at) == whole]
    assert fitting == [SECTOR_SIZE]
