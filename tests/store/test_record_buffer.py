"""The bytes of a write batch, beside the encoder of single records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FIXED_SIZE, record_blocks, word
from qstore.formats.rhm.records import (
    LAST_OF_FLUSH,
    MOVED,
    PADDING,
    SALT,
    Kind,
    RecordHeader,
    decode_record,
    encode_record,
)
from qstore.store.journal.write.flushes import RecordBuffer, part_of

_U32 = st.one_of(st.integers(0, 3), st.integers(0, (1 << 32) - 1), st.integers((1 << 31) - 2, (1 << 31) + 1))
_U64 = st.one_of(st.integers(1, 3), st.integers(1, (1 << 64) - 1), st.integers((1 << 62) - 2, (1 << 62) + 1))


@st.composite
def _records(draw: st.DrawFn) -> tuple[RecordHeader, bytes, list[bytes]]:
    """A record: header, xid, and data in parts."""
    kind = draw(st.sampled_from([Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.FILLER]))
    parts = [bytes([index]) * draw(_SIZES) for index in range(draw(st.integers(0, 3)))] if kind is Kind.ENQUEUE else []
    xid = b"" if kind is Kind.FILLER else draw(st.binary(min_size=kind is Kind.COMMIT, max_size=40))
    header = RecordHeader(
        kind,
        2,
        draw(st.sampled_from([0, MOVED])),
        0 if kind is Kind.FILLER else draw(_U64),
        len(xid),
        sum(map(len, parts)),
        draw(_U64) if kind is Kind.DEQUEUE else 0,
        draw(_U32),
        draw(st.integers(1, 40)) if kind is Kind.FILLER else 0,
    )
    return header, xid, parts


_SIZES = st.one_of(st.integers(0, 300), st.sampled_from([8191, 8192, 20_000, 70_000]))


def _append(buffer: RecordBuffer, header: RecordHeader, xid: bytes, parts: list[bytes], salt: int) -> None:
    data, size = b"".join(parts), header.data_size
    blocks = header.blocks or record_blocks(size, len(xid))
    datum = header.blocks or (header.dequeued_rid if header.kind is Kind.DEQUEUE else size)
    padding = blocks * BLOCK_SIZE - FIXED_SIZE - len(xid) - size
    given_parts = parts if header.rid & 1 else tuple(parts)
    first, crc = word(header.kind, 2, header.flags), extend_crc32c(0, data)
    buffer.append(first, header.rid, xid, header.flush, datum, given_parts, size, crc, SALT.pack(salt), padding)


@given(st.lists(_records(), min_size=1, max_size=6), st.integers(0, (1 << 64) - 1), st.integers(1, 3), st.booleans())
def test_records_are_those_of_the_encoder(
    records: list[tuple[RecordHeader, bytes, list[bytes]]], salt: int, flushes: int, is_compiled: bool
) -> None:
    """All records of a flush, the last of them flagged; and so are those of the next flushes of the same buffer."""
    buffer = RecordBuffer(is_compiled=is_compiled)
    for _ in range(flushes):
        assert buffer.is_empty
        wanted = b""
        for number, (header, xid, parts) in enumerate(records, 1):
            _append(buffer, header, xid, parts, salt)
            assert not buffer.is_empty
            flags = header.flags | (LAST_OF_FLUSH if number == len(records) else 0)
            wanted += encode_record(header._replace(flags=flags), xid, b"".join(parts), salt=salt)
        unflagged = buffer.part(0, 1 << 30)
        buffer.flag_last()
        assert buffer.part(0, 1 << 30) == wanted
        for offset in range(0, len(wanted), 100):
            assert buffer.part(offset, 333) == wanted[offset : offset + 333]
        assert len(unflagged) == len(wanted)
        assert unflagged != wanted
        assert b"".join(buffer.take()) == wanted
        buffer.free()


def test_long_data_is_not_copied() -> None:
    """What is written are the very objects that hold the data."""
    buffer, data = RecordBuffer(), bytes(10_000)
    header = RecordHeader(Kind.ENQUEUE, 2, 0, 7, data_size=len(data))
    _append(buffer, header, b"", [data], 1)
    _append(buffer, header._replace(rid=8), b"", [data], 1)
    buffer.flag_last()
    pieces = buffer.take()
    assert sum(piece is data for piece in pieces) == 2
    assert decode_record(b"".join(pieces), salt=1)[2] == data


def test_short_records_are_joined_in_stretches() -> None:
    """However long a flush is, its buffer stays small, and its pieces are few."""
    buffer, data = RecordBuffer(), bytes(1000)
    header = RecordHeader(Kind.ENQUEUE, 2, 0, 7, data_size=len(data))
    for _ in range(1000):
        _append(buffer, header, b"", [data], 1)
    pieces = buffer.take()
    assert max(map(len, pieces)) < 67_000
    assert len(pieces) == -(-1000 * 1152 // 66_000)
    assert pieces[0].endswith(PADDING)


def test_a_part_of_many_pieces_is_that_of_the_joined_bytes_without_joining_them() -> None:
    pieces = [b"abc", b"", b"defgh", b"i"]
    whole = b"".join(pieces)
    for offset in range(len(whole) + 1):
        for size in range(len(whole) + 2):
            assert part_of(pieces, offset, size) == whole[offset : offset + size]
    assert part_of([b"one", pieces[2]], 3, 5) == pieces[2]
