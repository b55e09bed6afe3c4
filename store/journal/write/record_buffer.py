"""The bytes of a write batch: version-2 records, encoded one after another.

Short records are encoded into one buffer, field by field, and long data is kept as it comes, between two stretches of
the buffer: it is not copied before it is written. The fields are those of HEADER_2 and TAIL (`formats.rhm`).

The last record of a flush is flagged when the flush is closed. A CRC is linear, and the flag is at the same distance
from the end of what every record's CRC covers, which is its data, xid, header and salt in this order: so the flag
changes each CRC by the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import u8

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FLAGS_SHIFT, HEADER_2, PADDINGS
from qstore.formats.rhm.record_checksums import RecordChecksums
from qstore.formats.rhm.records import LAST_OF_FLUSH, PADDING, SALT, TAIL, Kind

_LONG: Final = 8 * 1024  # bytes of data that are not copied
_FULL: Final = 64 * 1024  # bytes in the buffer from which on it is emptied before the next record
_EMBEDDED: Final = 256  # bytes that a BytesWriter has room for without an allocation

_HEADER_SIZE: Final = HEADER_2.size
_XID_SIZE_OFFSET: Final = 16
_DATUM_OFFSET: Final = 24
_FLAG_OFFSET: Final = FLAGS_SHIFT // 8 + 1  # of the byte that has the flag
_FLAG: Final = LAST_OF_FLUSH >> 8
assert (HEADER_2.format, TAIL.format) == ("<QQIIQ", "<IQ")

_IS_COMPILED: Final = not __file__.endswith(".py")
_PADDINGS: Final = PADDINGS  # compiled code reaches them faster here

_SIGN: Final = 1 << 31
_MAX_SMALL: Final = (1 << 62) - 1

_COVERED: Final = _HEADER_SIZE + SALT.size
_FLAG_IN_CRC: Final = extend_crc32c(0, bytes(_COVERED)) ^ extend_crc32c(
    0, bytes(_FLAG_OFFSET) + bytes([_FLAG]) + bytes(_COVERED - _FLAG_OFFSET - 1)
)


class RecordBuffer:
    """The records of one flush.

    Args:
        is_compiled: whether numbers are written one by one: fast in compiled code, and slower than `struct` in others.

    Attributes:
        is_empty: whether there are none.
    """

    __slots__ = ("_checksums", "_head", "_is_compiled", "_is_large", "_last", "_pieces", "_writer", "is_empty")

    def __init__(self, *, is_compiled: bool = _IS_COMPILED) -> None:
        self._is_compiled = is_compiled
        self._writer, self._checksums = BytesWriter(), RecordChecksums()
        self._pieces: list[bytes] = []  # what precedes the content of the writer
        self._last = 0  # offset in the writer of the last record
        self._head = -1  # index of the piece that has the header of the last record, if it is long
        self._is_large = False
        self.is_empty = True

    def append(
        self,
        first: int,
        rid: int,
        xid: bytes,
        flush: int,
        datum: int,
        parts: Sequence[bytes],
        size: int,
        crc: int,
        salt: bytes,
        padding: int,
    ) -> None:
        """Append a record.

        Args:
            first: the first word of its header: kind, version and flags.
            rid: its record id.
            xid: its transaction's id; empty for none.
            flush: the low half of its flush's number.
            datum: the last field of its header.
            parts: its data.
            size: bytes of all parts.
            crc: their `data_crc`.
            salt: the salt of the file in which it begins.
            padding: bytes of padding.
        """
        writer, xid_size = self._writer, len(xid)
        self.is_empty = False
        if size >= _LONG or len(writer) >= _FULL:
            self._spill()
        self._last, self._head = len(writer), -1
        if self._is_compiled:
            check = self._checksums.check(first, rid, xid, flush, datum, crc, salt)
            if rid > _MAX_SMALL or datum > _MAX_SMALL:
                rid, datum = _as_signed(rid), _as_signed(datum)
            write_i64_le(writer, first)
            write_i64_le(writer, rid)
            write_i32_le(writer, xid_size)
            write_i32_le(writer, (flush ^ _SIGN) - _SIGN)
            write_i64_le(writer, datum)
            if xid_size:
                writer.write(xid)
        else:
            head = HEADER_2.pack(first, rid, xid_size, flush, datum)
            check = extend_crc32c(crc, xid + head + salt)
            writer.write(head + xid)
        if size >= _LONG:
            self._head = len(self._pieces)
            self._spill()
            self._pieces += parts
        elif isinstance(parts, tuple):  # a loop that costs less
            in_tuple: tuple[bytes, ...] = parts
            for part in in_tuple:
                writer.write(part)
        else:
            for part in parts:
                writer.write(part)
        after = _PADDINGS[padding] if padding < BLOCK_SIZE else PADDING * padding
        if self._is_compiled:
            write_i32_le(writer, (check ^ _SIGN) - _SIGN)
            write_i64_le(writer, rid)
            writer.write(after)
        else:
            writer.write(TAIL.pack(check, rid) + after)

    def _spill(self) -> None:
        """Empty the writer."""
        writer = self._writer
        if len(writer):
            self._pieces.append(writer.getvalue())
            writer.truncate(0)
            self._is_large = True

    def flag_last(self) -> None:
        """Flag the last record as the last of its flush."""
        writer, begin, tail = self._writer, self._last, 0
        if self._head >= 0:  # its tail begins the writer
            head = bytearray(self._pieces[self._head])
            head[_FLAG_OFFSET] |= _FLAG
            self._pieces[self._head] = bytes(head)
        else:
            tail = begin + _HEADER_SIZE + self._field(begin + _XID_SIZE_OFFSET, 4)
            if self._field(begin, 4) == Kind.ENQUEUE:
                tail += self._field(begin + _DATUM_OFFSET, 8)
            writer[begin + _FLAG_OFFSET] |= _FLAG
        crc = self._field(tail, 4) ^ _FLAG_IN_CRC
        for at in range(4):
            writer[tail + at] = u8(crc >> 8 * at & 0xFF)

    def _field(self, begin: int, size: int) -> int:
        """An integer in the writer."""
        writer, value = self._writer, 0
        for at in range(size):
            value |= int(writer[begin + at]) << 8 * at
        return value

    def content(self) -> bytes:
        """The bytes of all records so far."""
        return b"".join([*self._pieces, self._writer.getvalue()])

    def take(self) -> list[bytes]:
        """The bytes of all records, in pieces. There are none then."""
        pieces, writer = self._pieces, self._writer
        if len(writer) > _EMBEDDED:
            self._is_large = True
        pieces.append(writer.getvalue())
        writer.truncate(0)
        self._pieces, self.is_empty = [], True
        return pieces

    def free(self) -> None:
        """Free the memory of the empty buffer: the journal may rest."""
        if self._is_large and self.is_empty:
            self._writer, self._is_large = BytesWriter(), False


def _as_signed(value: int) -> int:
    """The signed 64-bit integer with the same bits."""
    return value - (1 << 64) if value >> 63 else value
