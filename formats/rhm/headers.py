"""Record headers for loops that read or write many of them: one number, then the fields.

The first eight bytes of a header (magic, version, endian flag, flags) are one little-endian number, the *word*, so that
one comparison checks kind, version and flags. Structs and offsets are derived from the table in `records`.

`RecordChecksums` calculates the check words of many version-2 records, without a call of a CRC function for each. A
check word is the CRC-32C of a record's data, continued over its xid, header and the file's salt
(`records.version_2_check`). In a run of records of one flush and one transaction the headers differ in kind, record id
and last field only. A CRC is linear: the effect of a byte depends on the byte and on how many bytes follow, not on
the others. So the check word is the exclusive or of

    the CRC of xid, header and salt, with zeros for the fields that differ     computed once for a run
    the effect of the CRC of the data, as the four bytes before the xid        looked up
    the effect of each byte of these fields                                    looked up

Row k of the table has the effect of each value of a byte on a CRC if k bytes follow it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMMON, LAYOUTS, PADDING, SALT, TAIL_SIZE, Kind

FLAGS_SHIFT: Final = 48  # of a word
_VERSION_SHIFT: Final = 32
MAGIC_MASK: Final = 0xFFFFFFFF

#: Version 1: word, rid, and of an enqueue xid size and data size, of a dequeue the message's rid and xid size.
HEADER_1: Final = struct.Struct("<Q" + LAYOUTS[1, Kind.ENQUEUE].rest.format[1:])
#: Version 2: word, rid, xid size, flush, and the last field, which depends on the kind.
HEADER_2: Final = struct.Struct("<Q" + LAYOUTS[2, Kind.ENQUEUE].rest.format[1:])
assert all(HEADER_1.size == LAYOUTS[1, kind].size for kind in (Kind.ENQUEUE, Kind.DEQUEUE))
assert all(HEADER_2.size == layout.size for (version, _), layout in LAYOUTS.items() if version == 2)

RID: Final = struct.Struct("<Q")
RID_OFFSET: Final = COMMON.size
FLUSH: Final = struct.Struct("<I")
FLUSH_OFFSET: Final = 20  # version 2

#: Flags, xid size and data size of an enqueue, by version.
ENQUEUE_SIZES: Final = {1: struct.Struct("<6xH8xQQ"), 2: struct.Struct("<6xH8xI4xQ")}

#: Version 2: minimum number of flush numbers that are skipped when a journal is continued after a restart.
RESTART_GAP: Final = 65536

# ---- sizes of version-2 records ----

FIXED_SIZE: Final = HEADER_2.size + TAIL_SIZE  # bytes of a record without xid, data and padding
BLOCK_SHIFT: Final = 7
ROUND_UP: Final = FIXED_SIZE + BLOCK_SIZE - 1  # (this + xid size + data size) >> BLOCK_SHIFT: the record's blocks
PADDINGS: Final = tuple(PADDING * count for count in range(BLOCK_SIZE))
assert 1 << BLOCK_SHIFT == BLOCK_SIZE


def word(kind: Kind, version: int, flags: int = 0) -> int:
    """The first eight bytes of a header as one number."""
    return kind | version << _VERSION_SHIFT | flags << FLAGS_SHIFT


def record_blocks(size: int, xid_size: int = 0) -> int:
    """Blocks of a version-2 record with `size` bytes of data."""
    return (ROUND_UP + xid_size + size) >> BLOCK_SHIFT


def data_crc(parts: Iterable[bytes]) -> int:
    """The checksum of a message's data, computed once for all version-2 journals that store the message."""
    crc = 0
    for part in parts:
        crc = extend_crc32c(crc, part)
    return crc


# ---- check words of many records ----

_COVERED: Final = HEADER_2.size + SALT.size  # bytes that the CRC covers after the xid
_MAX_XID: Final = 256  # bytes of an xid that the table is made for: those of brokers have at most 140
assert (HEADER_2.format, SALT.format) == ("<QQIIQ", "<Q")
_WORD_ROW: Final = _COVERED - 1  # bytes that follow the first byte of the header's first word,
_RID_ROW: Final = _WORD_ROW - 8  # of its record id,
_FLUSH_ROW: Final = _RID_ROW - 12  # of its flush's number,
_DATUM_ROW: Final = _RID_ROW - 16  # and of its last field


class RecordChecksums:
    """Calculates check words; fast for records of one flush, file and transaction."""

    __slots__ = (
        "_base",
        "_flush",
        "_of_other",
        "_of_run",
        "_of_word",
        "_other",
        "_salt",
        "_table",
        "_word",
        "_xid",
    )

    def __init__(self) -> None:
        self._xid, self._salt, self._flush = b"", b"", -1  # of the run
        self._of_run = self._base = 0  # without its flush's number, and with it
        self._word = self._of_word = 0  # the last first word of a header, and its effect
        self._other = self._of_other = 0  # likewise, the one before: a filler follows a lone message
        self._table: vec[i64] = vec[i64]()

    def check(self, word: int, rid: int, xid: bytes, flush: int, datum: int, crc: int, salt: bytes) -> int:
        """The check word of a record.

        Args:
            word: the first word of its header.
            rid: its record id.
            xid: its transaction's id; empty for none.
            flush: the low half of its flush's number.
            datum: the last field of its header.
            crc: the CRC-32C of its data.
            salt: the salt of its file, as bytes.
        """
        size = len(xid)
        if size > _MAX_XID:
            return extend_crc32c(crc, xid + HEADER_2.pack(word, rid, size, flush, datum) + salt)
        if xid is not self._xid or flush != self._flush or salt is not self._salt:
            self._begin_run(xid, flush, salt)
        if word != self._word:
            effect = self._of_other if word == self._other else self._of_field(word, _WORD_ROW)
            self._other, self._of_other = self._word, self._of_word
            self._word, self._of_word = word, effect
        table = self._table
        row: i64 = (size + _WORD_ROW) << 8
        before: i64 = crc
        found: i64 = table[row + (before & 0xFF)] ^ table[row - 0x100 + (before >> 8 & 0xFF)]
        found ^= table[row - 0x200 + (before >> 16 & 0xFF)] ^ table[row - 0x300 + (before >> 24 & 0xFF)]
        if rid >> 32 or datum >> 32:
            return (
                int(found)
                ^ self._base
                ^ self._of_word
                ^ self._of_field(rid, _RID_ROW)
                ^ self._of_field(datum, _DATUM_ROW)
            )
        low: i64 = rid
        row = _RID_ROW << 8
        found ^= table[row + (low & 0xFF)] ^ table[row - 0x100 + (low >> 8 & 0xFF)]
        found ^= table[row - 0x200 + (low >> 16 & 0xFF)] ^ table[row - 0x300 + (low >> 24)]
        low = datum
        row = _DATUM_ROW << 8
        found ^= table[row + (low & 0xFF)] ^ table[row - 0x100 + (low >> 8 & 0xFF)]
        found ^= table[row - 0x200 + (low >> 16 & 0xFF)] ^ table[row - 0x300 + (low >> 24)]
        return int(found) ^ self._base ^ self._of_word

    def _begin_run(self, xid: bytes, flush: int, salt: bytes) -> None:
        if xid is not self._xid or salt is not self._salt or self._flush < 0:
            size = len(xid)
            if len(self._table) < (_COVERED + size) << 8:
                self._table = _TABLES.of(_COVERED + size)
            self._xid, self._salt = xid, salt
            self._of_run = extend_crc32c(0, xid + HEADER_2.pack(0, 0, size, 0, 0) + salt)
        self._flush = flush
        self._base = self._of_run ^ self._of_field(flush, _FLUSH_ROW)

    def _of_field(self, value: int, row: int) -> int:
        """The effect of eight bytes, the first of which is followed by `row` bytes."""
        table, found = self._table, 0
        while value:
            found ^= int(table[(row << 8) + (value & 0xFF)])
            value >>= 8
            row -= 1
        return found


class _Tables:
    """The table, shared by all: made when it is needed, as long as it is needed."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: vec[i64] = vec[i64]()

    def of(self, count: int) -> vec[i64]:
        """The table, with `count` rows or more."""
        if len(self._table) < count << 8:
            zero = extend_crc32c(0, b"\0")
            first = [extend_crc32c(0, bytes([value])) ^ zero for value in range(256)]
            rows = list(first)
            while len(rows) < count << 8:
                rows += [value >> 8 ^ first[value & 0xFF] for value in rows[-256:]]
            self._table = vec[i64](rows)
        return self._table


_TABLES: Final = _Tables()
