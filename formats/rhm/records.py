"""Records: enqueue, dequeue, commit, abort, filler, and their tails, decoded and encoded in both versions.

`LAYOUTS` has the tables of formats/rhm/README.md, 2.4 to 2.6 and 8.3, as data; everything below is derived from it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, padded
from qstore.formats.zeros import is_zero

MAGIC_PREFIX: Final = b"RHM"  # common beginning of all magics


class Kind(IntEnum):
    """A record's type: the value is its magic, "RHM?" read as a little-endian number."""

    FILE = 0x664D4852
    ENQUEUE = 0x654D4852
    DEQUEUE = 0x644D4852
    COMMIT = 0x634D4852
    ABORT = 0x614D4852
    FILLER = 0x784D4852

    @property
    def label(self) -> str:
        """The kind's name in lower case, as tools print it."""
        return self.name.lower()


OVERWRITE_INDICATOR: Final = 0x0001
TRANSIENT: Final = 0x0010  # of an enqueue
COMMIT_DECISION: Final = 0x0010  # of a dequeue in the transaction prepared list
EXTERNAL: Final = 0x0020
MOVED: Final = 0x0040
COMPRESSED: Final = 0x0080
LAST_OF_FLUSH: Final = 0x0100
SEAL: Final = 0x0200
BOUNDARY: Final = 0x0400  # of a file header

TAIL_SIZE: Final = 12
MAX_HEADER_SIZE: Final = 32
PADDING: Final = b"\xff"

COMMON = struct.Struct("<IBBH")  # magic, version, endian flag, flags
TAIL = struct.Struct("<IQ")  # version 1: the magic inverted, version 2: CRC-32C; then the rid
SALT = struct.Struct("<Q")

RECORD_KINDS: Final = frozenset({Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT, Kind.FILLER})
VERSIONS: Final = (1, 2)


class Layout(NamedTuple):
    """The fields that follow the common eight bytes of a header, and the whole header's size in bytes."""

    fields: tuple[str, ...]
    rest: struct.Struct
    size: int


_VERSION_2 = struct.Struct("<QIIQ")

LAYOUTS: Final[dict[tuple[int, Kind], Layout]] = {
    (1, Kind.ENQUEUE): Layout(("rid", "xid_size", "data_size"), struct.Struct("<QQQ"), 32),
    (1, Kind.DEQUEUE): Layout(("rid", "dequeued_rid", "xid_size"), struct.Struct("<QQQ"), 32),
    (1, Kind.COMMIT): Layout(("rid", "xid_size"), struct.Struct("<QQ"), 24),
    (1, Kind.ABORT): Layout(("rid", "xid_size"), struct.Struct("<QQ"), 24),
    (1, Kind.FILLER): Layout((), struct.Struct("<"), 4),
    (2, Kind.ENQUEUE): Layout(("rid", "xid_size", "flush", "data_size"), _VERSION_2, 32),
    (2, Kind.DEQUEUE): Layout(("rid", "xid_size", "flush", "dequeued_rid"), _VERSION_2, 32),
    (2, Kind.COMMIT): Layout(("rid", "xid_size", "flush", "zero"), _VERSION_2, 32),
    (2, Kind.ABORT): Layout(("rid", "xid_size", "flush", "zero"), _VERSION_2, 32),
    (2, Kind.FILLER): Layout(("rid", "xid_size", "flush", "blocks"), _VERSION_2, 32),
}


class RecordHeader(NamedTuple):
    """One decoded record header.

    Attributes:
        kind: the record's type.
        version: 1 or 2.
        flags: the 16 flag bits.
        rid: record id.
        xid_size: bytes of transaction id that follow the header.
        data_size: bytes of data that follow the xid. An external record has the size but not the data.
        dequeued_rid: of a dequeue, the rid of the enqueue that it removes.
        flush: low 32 bits of the number of the flush that wrote it; 0 in version 1.
        blocks: of a filler, the blocks it covers.
    """

    kind: Kind
    version: int
    flags: int
    rid: int = 0
    xid_size: int = 0
    data_size: int = 0
    dequeued_rid: int = 0
    flush: int = 0
    blocks: int = 0

    @property
    def header_size(self) -> int:
        """Bytes before the xid."""
        return LAYOUTS[self.version, self.kind].size

    @property
    def stored_size(self) -> int:
        """Bytes of data that are actually in the record."""
        return 0 if self.flags & EXTERNAL and self.version == 1 else self.data_size

    @property
    def has_tail(self) -> bool:
        """Whether a tail follows: in version 1 neither a plain dequeue nor a filler has one."""
        if self.version == 2 or self.kind is Kind.ENQUEUE:
            return True
        return self.kind is not Kind.FILLER and self.xid_size > 0

    @property
    def tail_offset(self) -> int:
        """Bytes from the record's beginning to its tail."""
        return self.header_size + self.xid_size + self.stored_size

    @property
    def size(self) -> int:
        """Bytes on disk, with padding: a multiple of the block size."""
        if self.kind is Kind.FILLER:
            return self.blocks * BLOCK_SIZE
        return padded(self.tail_offset + (TAIL_SIZE if self.has_tail else 0))


def decode_header(buffer: bytes, offset: int = 0) -> RecordHeader:
    """The record header at `offset`.

    Raises:
        RhmError: this is no record header: too few bytes, an unknown magic, an unknown version (by its number), a
            writer of the other byte order, or sizes that contradict the record's kind.
    """
    try:
        magic, version, endian, flags = COMMON.unpack_from(buffer, offset)
    except struct.error:
        raise RhmError("truncated record header", offset) from None
    kind = _record_kind(magic, offset)
    if kind is Kind.FILLER and version != 2:
        return RecordHeader(kind, 1, 0, blocks=1)  # only the magic of a version-1 filler is defined
    if version not in VERSIONS:
        raise RhmError(f"unsupported journal version {version} in {kind.label} record", offset)
    if endian:
        what = "is that of a big-endian writer" if version == 1 else f"should be 0, is {endian}"
        raise RhmError(f"byte 5 of {kind.label} record {what}", offset)
    layout = LAYOUTS[version, kind]
    try:
        values = layout.rest.unpack_from(buffer, offset + COMMON.size)
    except struct.error:
        raise RhmError(f"truncated {kind.label} record header", offset) from None
    fields = dict(zip(layout.fields, values, strict=True))
    zero = fields.pop("zero", 0)
    header = RecordHeader(kind, version, flags, **fields)
    _check_sizes(header, zero, offset)
    return header


def _record_kind(magic: int, offset: int) -> Kind:
    try:
        kind = Kind(magic)
    except ValueError:
        raise RhmError(_unknown_magic(magic), offset) from None
    if kind is Kind.FILE:
        raise RhmError("a file header where a record should be", offset)
    return kind


def _unknown_magic(magic: int) -> str:
    if magic == 0:
        return "unwritten space"
    if magic >> 8 == int.from_bytes(b"MHR", "little"):
        return "a record of a big-endian writer"
    return f"no record here: magic 0x{magic:08x}"


def _check_sizes(header: RecordHeader, zero: int, offset: int) -> None:
    if header.kind in (Kind.COMMIT, Kind.ABORT) and header.xid_size == 0:
        raise RhmError(f"{header.kind.label} record without an xid", offset)
    if header.kind is Kind.FILLER and (header.blocks == 0 or header.xid_size):
        raise RhmError("filler that covers no blocks or has an xid", offset)
    if zero:
        raise RhmError(f"{header.kind.label} record whose last header field is not 0", offset)


def decode_tail(buffer: bytes, offset: int) -> tuple[int, int]:
    """The check word and the rid of the tail at `offset`.

    Raises:
        RhmError: fewer than 12 bytes are left.
    """
    try:
        check, rid = TAIL.unpack_from(buffer, offset)
    except struct.error:
        raise RhmError("truncated record tail", offset) from None
    return check, rid


def version_1_check(kind: Kind) -> int:
    """The check word of a version-1 tail: the record's magic inverted."""
    return kind ^ 0xFFFFFFFF


def is_padding(content: bytes) -> bool:
    """Whether the rest of a block is padding: 0xff, or zeros as written by qpidd's resize tool."""
    return not content.strip(PADDING) or is_zero(content)


def version_2_check(header: bytes, xid: bytes, data_crc: int, salt: int) -> int:
    """The check word of a version-2 tail: `data_crc`, the data's own CRC-32C, continued over xid, header, salt."""
    return extend_crc32c(data_crc, xid + header + SALT.pack(salt))


def encode_header(header: RecordHeader) -> bytes:
    """The bytes of a record header, without xid, data, tail and padding."""
    layout = LAYOUTS[header.version, header.kind]
    if header.kind is Kind.FILLER and header.version == 1:
        return struct.pack("<I", header.kind)
    values = [0 if field == "zero" else getattr(header, field) for field in layout.fields]
    return COMMON.pack(header.kind, header.version, 0, header.flags) + layout.rest.pack(*values)


def encode_record(header: RecordHeader, xid: bytes = b"", data: bytes = b"", *, salt: int = 0) -> bytes:
    """A whole record, padded with 0xff to blocks.

    Args:
        header: its header; `xid_size` is that of `xid`, and `data_size` that of `data` unless external.
        xid: transaction id.
        data: of an enqueue, the data.
        salt: version 2: the salt of the file in which the record begins.
    """
    assert header.xid_size == len(xid)
    assert header.stored_size == len(data)
    head = encode_header(header)
    parts = [head, xid, data]
    if header.has_tail:
        if header.version == 1:
            check = version_1_check(header.kind)
        else:
            check = version_2_check(head, xid, extend_crc32c(0, data), salt)
        parts.append(TAIL.pack(check, header.rid))
    record = b"".join(parts)
    return record.ljust(header.size, PADDING)


def decode_record(buffer: bytes, offset: int = 0, *, salt: int = 0) -> tuple[RecordHeader, bytes, bytes]:
    """The whole record at `offset`, verified: header, xid, data.

    Raises:
        RhmError: as `decode_header`; or the record is longer than the buffer, or its tail does not match it.
    """
    header = decode_header(buffer, offset)
    end = offset + header.tail_offset
    if end + (TAIL_SIZE if header.has_tail else 0) > len(buffer):
        raise RhmError(f"truncated {header.kind.label} record", offset)
    xid_at = offset + header.header_size
    data_at = xid_at + header.xid_size
    xid, data = bytes(buffer[xid_at:data_at]), bytes(buffer[data_at:end])
    if header.has_tail:
        check, rid = decode_tail(buffer, end)
        if header.version == 1:
            expected = version_1_check(header.kind)
        else:
            head = bytes(buffer[offset:xid_at])
            expected = version_2_check(head, xid, extend_crc32c(0, data), salt)
        if check != expected:
            raise RhmError(f"tail of {header.kind.label} record does not match it", end)
        if rid != header.rid:
            raise RhmError(f"tail has rid 0x{rid:x}, header has 0x{header.rid:x}", end + 4)
    return header, xid, data
