"""The check words of many version-2 records, without a call of a CRC function for each.

A check word is the CRC-32C of a record's data, continued over its xid, header and the file's salt
(`records.version_2_check`). In a run of records of one flush and one transaction the headers differ in kind, record id
and last field only. A CRC is linear: what a byte changes in it depends on the byte and on how many bytes follow, not on
the others. So the check word is the exclusive or of

    the CRC of xid, header and salt, with zeros for the fields that differ     computed once for a run
    what the CRC of the data changes in it, as the four bytes before the xid   looked up
    what each byte of these fields changes in it                               looked up

Row k of the table has what each value of a byte changes in a CRC if k bytes follow it.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.headers import HEADER_2
from qstore.formats.rhm.records import SALT

_EXTEND: Final = extend_crc32c  # compiled code reaches it faster here
_COVERED: Final = HEADER_2.size + SALT.size  # bytes that the CRC covers after the xid
_MAX_XID: Final = 256  # bytes of an xid that the table is made for: those of brokers have at most 140
assert (HEADER_2.format, SALT.format) == ("<QQIIQ", "<Q")
_WORD_ROW: Final = _COVERED - 1  # bytes that follow the first byte of the header's first word,
_RID_ROW: Final = _WORD_ROW - 8  # of its record id,
_DATUM_ROW: Final = _RID_ROW - 16  # and of its last field


class RecordChecksums:
    """Calculates check words; fast for records of one flush, file and transaction."""

    __slots__ = ("_base", "_flush", "_of_word", "_salt", "_table", "_word", "_xid")

    def __init__(self) -> None:
        self._xid, self._salt, self._flush = b"", b"", -1  # of the run
        self._base = 0
        self._word = self._of_word = 0  # the last first word of a header, and what it changes
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
            return _EXTEND(crc, xid + HEADER_2.pack(word, rid, size, flush, datum) + salt)
        if xid is not self._xid or flush != self._flush or salt is not self._salt:
            self._begin_run(xid, flush, salt)
        if word != self._word:
            self._word, self._of_word = word, self._of_field(word, _WORD_ROW)
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
        size = len(xid)
        if len(self._table) < (_COVERED + size) << 8:
            self._table = _TABLES.of(_COVERED + size)
        self._xid, self._flush, self._salt = xid, flush, salt
        self._base = _EXTEND(0, xid + HEADER_2.pack(0, 0, size, flush, 0) + salt)

    def _of_field(self, value: int, row: int) -> int:
        """What eight bytes change, the first of which is followed by `row` bytes."""
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
        """That of so many rows, or more."""
        if len(self._table) < count << 8:
            zero = _EXTEND(0, b"\0")
            first = [_EXTEND(0, bytes([value])) ^ zero for value in range(256)]
            rows = list(first)
            while len(rows) < count << 8:
                rows += [value >> 8 ^ first[value & 0xFF] for value in rows[-256:]]
            self._table = vec[i64](rows)
        return self._table


_TABLES: Final = _Tables()
