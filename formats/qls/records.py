"""Records of a linearstore journal: enqueue, dequeue, commit, abort, filler, and their tails, decoded and encoded.

The kinds and their letters are those of the legacystore; headers, tails and checksum are different.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import adler32

from qstore.formats.errors import QlsError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, padded
from qstore.formats.rhm.records import EXTERNAL, PADDING, Kind

VERSION: Final = 2
SECTOR_SIZE: Final = 4096

MAGIC_PREFIX: Final = b"QLS"  # common beginning of all magics

#: Kind -> magic, "QLS?" read as a little-endian number.
MAGICS: Final = {kind: int.from_bytes(MAGIC_PREFIX + bytes([kind >> 24]), "little") for kind in Kind}
_KINDS: Final = {magic: kind for kind, magic in MAGICS.items() if kind is not Kind.FILE}

COMMON: Final = struct.Struct("<IHHQQ")  # magic, version, flags, serial, rid
TAIL: Final = struct.Struct("<IIQQ")  # the magic inverted, Adler-32, serial, rid
TAIL_SIZE: Final = TAIL.size
#: Magic, version and flags as one number, serial, rid, then the fields of an enqueue or dequeue.
HEADER: Final = struct.Struct("<QQQQQ")
#: Flags, xid size and data size of an enqueue.
ENQUEUE_SIZES: Final = struct.Struct("<6xH16xQQ")
_MAGIC: Final = struct.Struct("<I")
_ONE: Final = struct.Struct("<Q")
_TWO: Final = struct.Struct("<QQ")

#: Size of each kind's header in bytes.
HEADER_SIZES: Final = {Kind.ENQUEUE: 40, Kind.DEQUEUE: 40, Kind.COMMIT: 32, Kind.ABORT: 32, Kind.FILLER: 4}
MAX_HEADER_SIZE: Final = 40

_ADLER_BASE: Final = 65521


def word(kind: Kind) -> int:
    """Magic, version and no flags as one number: the first eight bytes of a header, except a filler's."""
    return MAGICS[kind] | VERSION << 32


class RecordHeader(NamedTuple):
    """One decoded record header.

    Attributes:
        kind: the record's type.
        flags: the 16 flag bits.
        serial: that of the file that contains the header.
        rid: record id.
        xid_size: bytes of transaction id that follow the header.
        data_size: bytes of data that follow the xid. An external record has the size but not the data.
        dequeued_rid: of a dequeue, the rid of the enqueue that it removes.
    """

    kind: Kind
    flags: int = 0
    serial: int = 0
    rid: int = 0
    xid_size: int = 0
    data_size: int = 0
    dequeued_rid: int = 0

    @property
    def header_size(self) -> int:
        """Bytes before the xid."""
        return HEADER_SIZES[self.kind]

    @property
    def stored_size(self) -> int:
        """Bytes of data that are actually in the record."""
        return 0 if self.flags & EXTERNAL and self.kind is Kind.ENQUEUE else self.data_size

    @property
    def has_tail(self) -> bool:
        """Whether a tail follows: neither a plain dequeue nor a filler has one."""
        return self.kind is Kind.ENQUEUE or (self.kind is not Kind.FILLER and self.xid_size > 0)

    @property
    def tail_offset(self) -> int:
        """Bytes from the record's beginning to its tail."""
        return self.header_size + self.xid_size + self.stored_size

    @property
    def size(self) -> int:
        """Bytes on disk, with padding: a multiple of the block size."""
        if self.kind is Kind.FILLER:
            return BLOCK_SIZE
        return padded(self.tail_offset + (TAIL_SIZE if self.has_tail else 0))


class Tail(NamedTuple):
    """A decoded tail: the magic inverted, the checksum, the serial, the rid."""

    magic: int
    checksum: int
    serial: int
    rid: int

    def goes_with(self, header: RecordHeader) -> bool:
        """Whether kind and rid match the record; serial and checksum are not compared."""
        return self.magic == MAGICS[header.kind] ^ 0xFFFFFFFF and self.rid == header.rid


def decode_header(buffer: bytes, offset: int = 0) -> RecordHeader:
    """The record header at `offset`.

    Raises:
        QlsError: this is no record header: too few bytes, an unknown magic or version, or sizes that contradict the
            kind.
    """
    try:
        (magic,) = _MAGIC.unpack_from(buffer, offset)
    except struct.error:
        raise QlsError("truncated record header", offset) from None
    kind = _KINDS.get(magic)
    if kind is None:
        raise QlsError(_no_record(magic), offset)
    if kind is Kind.FILLER:
        return RecordHeader(kind)  # only the magic of a filler is defined
    try:
        _, version, flags, serial, rid = COMMON.unpack_from(buffer, offset)
        if version != VERSION:
            raise QlsError(f"unsupported journal version {version} in {kind.label} record", offset)
        if kind is Kind.ENQUEUE:
            xid_size, data_size = _TWO.unpack_from(buffer, offset + COMMON.size)
            return RecordHeader(kind, flags, serial, rid, xid_size, data_size)
        if kind is Kind.DEQUEUE:
            dequeued_rid, xid_size = _TWO.unpack_from(buffer, offset + COMMON.size)
            return RecordHeader(kind, flags, serial, rid, xid_size, dequeued_rid=dequeued_rid)
        (xid_size,) = _ONE.unpack_from(buffer, offset + COMMON.size)
    except struct.error:
        raise QlsError(f"truncated {kind.label} record header", offset) from None
    if xid_size == 0:
        raise QlsError(f"{kind.label} record without an xid", offset)
    return RecordHeader(kind, flags, serial, rid, xid_size)


def _no_record(magic: int) -> str:
    if magic == 0:
        return "unwritten space"
    if magic == MAGICS[Kind.FILE]:
        return "a file header where a record should be"
    return f"no record here: magic 0x{magic:08x}"


def decode_tail(buffer: bytes, offset: int = 0) -> Tail:
    """The tail at `offset`.

    Raises:
        QlsError: fewer than 24 bytes are left.
    """
    try:
        return Tail._make(TAIL.unpack_from(buffer, offset))
    except struct.error:
        raise QlsError("truncated record tail", offset) from None


def encode_header(header: RecordHeader) -> bytes:
    """The bytes of a record header, without xid, data, tail and padding."""
    if header.kind is Kind.FILLER:
        return _MAGIC.pack(MAGICS[header.kind])
    common = COMMON.pack(MAGICS[header.kind], VERSION, header.flags, header.serial, header.rid)
    if header.kind is Kind.ENQUEUE:
        return common + _TWO.pack(header.xid_size, header.data_size)
    if header.kind is Kind.DEQUEUE:
        return common + _TWO.pack(header.dequeued_rid, header.xid_size)
    return common + _ONE.pack(header.xid_size)


def encode_record(header: RecordHeader, xid: bytes = b"", data: bytes = b"") -> bytes:
    """A whole record, padded with 0xff to blocks; `xid_size` is that of `xid`, `data_size` that of `data`."""
    assert header.xid_size == len(xid)
    assert header.stored_size == len(data)
    content = encode_header(header) + xid + data
    if header.has_tail:
        content += TAIL.pack(MAGICS[header.kind] ^ 0xFFFFFFFF, adler32(content), header.serial, header.rid)
    return content.ljust(padded(len(content)), PADDING)


def decode_record(buffer: bytes, offset: int = 0) -> tuple[RecordHeader, bytes, bytes]:
    """The whole record at `offset`, verified: header, xid, data.

    Raises:
        QlsError: as `decode_header`; or the record is longer than the buffer, or its tail does not match it.
    """
    header = decode_header(buffer, offset)
    end = offset + header.tail_offset
    if end + (TAIL_SIZE if header.has_tail else 0) > len(buffer):
        raise QlsError(f"truncated {header.kind.label} record", offset)
    if header.has_tail:
        tail = decode_tail(buffer, end)
        if not tail.goes_with(header) or tail.serial != header.serial:
            raise QlsError(f"tail of {header.kind.label} record does not match it", end)
        if tail.checksum != adler32(memoryview(buffer)[offset:end]):
            raise QlsError(f"{header.kind.label} record fails its checksum", end + 4)
    data_at = offset + header.header_size + header.xid_size
    return header, bytes(buffer[offset + header.header_size : data_at]), bytes(buffer[data_at:end])


def combined_adler32(first: int, second: int, second_size: int) -> int:
    """The Adler-32 of the concatenation of two pieces, from those of each and the size of the second.

    It identifies a tail that covers only the part after its writer had to wait (formats/qls/README.md, 6): combined
    with the record's beginning, which ends where a page of the writer's cache does, at a sector, it yields the checksum
    of the whole.
    """
    low = ((first & 0xFFFF) + (second & 0xFFFF) - 1) % _ADLER_BASE
    high = ((first >> 16) + (second >> 16) + second_size * ((first & 0xFFFF) - 1)) % _ADLER_BASE
    return high << 16 | low
