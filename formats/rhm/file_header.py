"""The header of a journal file: its first sector (formats/rhm/README.md, 2.3, 8.1 and 8.2)."""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.formats.rhm.records import BOUNDARY, COMMON, OVERWRITE_INDICATOR, PADDING, Kind, is_padding

VERSION_1 = struct.Struct("<IBBHQHHIQQII")
VERSION_2 = struct.Struct("<IBBHQQQQIHHQI")
CRC = struct.Struct("<I")
assert VERSION_1.size == 48
assert VERSION_2.size == 60

DEFAULT_FLUSH_ALIGNMENT: Final = 512
SLOT_SIZE: Final = 256  # version 2: a file's header sector has two slots for its header
SLOTS: Final = FILE_HEADER_SIZE // SLOT_SIZE
CREATION_SLOT: Final = 1  # slot of a file's creation header, until it is entered for the second time

#: Offset of the file number in a header of each version; it is twice in version 1.
FILE_NUMBER_OFFSETS: Final = {1: 16, 2: 44}
LOGICAL_NUMBER_OFFSET: Final = 18
RID_OFFSET: Final = 8  # version 1
FIRST_FLUSH_OFFSET: Final = 8  # version 2
#: Offset of the field with the first record's offset.
FIRST_RECORD_OFFSETS: Final = {1: 24, 2: 16}


class FileHeader(NamedTuple):
    """The content of the header sector of a journal file.

    Attributes:
        version: 1 or 2.
        overwrite_indicator: 0 or 1; inverted with each lap around the ring.
        file_number: position of the file in the ring, from 0.
        first_record_offset: bytes from the file's start to the first record header; 0 if none begins here.
        seconds, nanoseconds: when the header was created.
        rid: version 1: record id of the record being written when the header was created.
        logical_number: version 1: the logical file number; equal to `file_number` in every file seen.
        first_flush: version 2: number of the flush that wrote this header.
        salt: version 2: random number in the checksum of each record that begins in this file.
        queue_id: version 2: the number of the journal's queue.
        incarnation: version 2: how often that queue's journal was rebuilt.
        flush_alignment: version 2: bytes to which each flush is padded.
        slot: version 2: which of the two slots of the sector contains the header.
        is_boundary: version 2: whether nothing in this file, and nothing written before it, belongs to the journal.
    """

    version: int
    overwrite_indicator: int
    file_number: int
    first_record_offset: int
    seconds: int = 0
    nanoseconds: int = 0
    rid: int = 0
    logical_number: int = 0
    first_flush: int = 0
    salt: int = 0
    queue_id: int = 0
    incarnation: int = 0
    flush_alignment: int = DEFAULT_FLUSH_ALIGNMENT
    slot: int = 0
    is_boundary: bool = False

    @property
    def is_creation(self) -> bool:
        """Version 2: whether it is the header with which the file was created."""
        return self.slot == CREATION_SLOT and self.first_flush == 0


class HeaderSector(NamedTuple):
    """The content of the first sector of a journal file.

    Attributes:
        header: the file header; None if the file was never written.
        was_entered_again: version 2: whether the file was entered twice in one lap: it has two headers with the same
            overwrite indicator.
        has_creation_header: version 2: whether it still has the header with which the file was created.
    """

    header: FileHeader | None
    was_entered_again: bool = False
    has_creation_header: bool = False


def decode_file_header(sector: bytes) -> FileHeader | None:
    """The file header in the first sector of a file: see `decode_header_sector`."""
    return decode_header_sector(sector).header


def decode_header_sector(sector: bytes) -> HeaderSector:
    """Decode the first sector of a file.

    Of a version-2 sector's two headers the one with the higher flush number is returned, of two with the same number
    the boundary; a torn one is ignored, and so is a creation header.

    Raises:
        RhmError: the sector is short, has no file header, an unknown version, or a wrong checksum.
    """
    second = _second_header(sector)
    is_new = second is not None and second.is_creation
    try:
        first = _decode_slot(sector, 0)
    except RhmError:
        if second is None or is_new:
            raise
        return HeaderSector(second)
    if first is None or second is None or is_new:
        return HeaderSector(first or (None if is_new else second), has_creation_header=is_new)
    newer = max(second, first, key=lambda header: (header.first_flush, header.is_boundary))
    has_boundary = first.is_boundary or second.is_boundary
    return HeaderSector(newer, not has_boundary and first.overwrite_indicator == second.overwrite_indicator)


def _second_header(sector: bytes) -> FileHeader | None:
    """The header in the second slot of a version-2 sector, if it is valid."""
    try:
        header = _decode_slot(sector, 1)
    except RhmError:
        return None
    return header if header is not None and header.version == 2 else None


def _decode_slot(sector: bytes, slot: int) -> FileHeader | None:
    content = sector[slot * SLOT_SIZE :]
    try:
        magic, version, endian, _ = COMMON.unpack_from(content)
    except struct.error:
        raise RhmError("truncated file header") from None
    if magic == 0:
        return None
    if magic != Kind.FILE:
        if magic == int.from_bytes(b"fMHR", "little"):
            raise RhmError("file header of a big-endian writer")
        raise RhmError(f"not a file header: magic 0x{magic:08x}")
    if version not in (1, 2):
        raise RhmError(f"unsupported journal version {version} in file header", 4)
    if endian:
        raise RhmError(f"byte 5 of file header should be 0, is {endian}", 5)
    return _decode_version_1(content) if version == 1 else _decode_version_2(content, slot)


def _decode_version_1(sector: bytes) -> FileHeader:
    if len(sector) < VERSION_1.size:
        raise RhmError("truncated file header", len(sector))
    _, version, _, flags, rid, number, logical, _, offset, seconds, nanoseconds, _ = VERSION_1.unpack_from(sector)
    return FileHeader(
        version=version,
        overwrite_indicator=flags & OVERWRITE_INDICATOR,
        file_number=number,
        first_record_offset=offset,
        seconds=seconds,
        nanoseconds=nanoseconds,
        rid=rid,
        logical_number=logical,
    )


def _decode_version_2(sector: bytes, slot: int) -> FileHeader:
    if len(sector) < VERSION_2.size + CRC.size:
        raise RhmError("truncated file header", len(sector))
    (crc,) = CRC.unpack_from(sector, VERSION_2.size)
    if crc != extend_crc32c(0, bytes(sector[: VERSION_2.size])):
        raise RhmError("file header fails its checksum", VERSION_2.size, fails_checksum=True)
    values = VERSION_2.unpack_from(sector)
    _, version, _, flags, flush, offset, salt, queue, incarnation, number, alignment, seconds, nanoseconds = values
    return FileHeader(
        version=version,
        overwrite_indicator=flags & OVERWRITE_INDICATOR,
        file_number=number,
        first_record_offset=offset,
        seconds=seconds,
        nanoseconds=nanoseconds,
        first_flush=flush,
        salt=salt,
        queue_id=queue,
        incarnation=incarnation,
        flush_alignment=alignment,
        slot=slot,
        is_boundary=bool(flags & BOUNDARY),
    )


def other_slot(slot: int) -> int:
    """The slot for the next header of a version-2 file whose present one is in `slot`."""
    return (slot + 1) % SLOTS


def encode_header_slot(header: FileHeader) -> bytes:
    """A version-2 header for one of the two slots of a sector, without padding."""
    return encode_file_header(header)[: VERSION_2.size + CRC.size]


def encode_file_header(header: FileHeader) -> bytes:
    """The whole first sector of a file, padded with 0xff; in version 2 with one header."""
    flags = header.overwrite_indicator | (BOUNDARY if header.is_boundary else 0)
    if header.version == 1:
        sector = VERSION_1.pack(
            Kind.FILE, 1, 0, flags, header.rid, header.file_number, header.logical_number, 0,
            header.first_record_offset, header.seconds, header.nanoseconds, 0,
        )  # fmt: skip
    else:
        sector = VERSION_2.pack(
            Kind.FILE, 2, 0, flags, header.first_flush, header.first_record_offset, header.salt, header.queue_id,
            header.incarnation, header.file_number, header.flush_alignment, header.seconds, header.nanoseconds,
        )  # fmt: skip
        sector += CRC.pack(extend_crc32c(0, sector))
    return sector.ljust(FILE_HEADER_SIZE, PADDING)


def header_oddities(sector: bytes, header: FileHeader | None = None) -> list[tuple[int, str]]:
    """Fields of a decodable header's sector that its writer would write differently, but that are not used.

    Args:
        sector: the sector.
        header: what `decode_file_header` returns for it, if that is known.

    Returns:
        For each such field its offset and one line about it.
    """
    is_new = header is not None and header.version == 2
    if not is_new and sector[4] == 1 and _second_header(sector) is None:
        found, rest, end = _version_1_oddities(sector), VERSION_1.size, FILE_HEADER_SIZE
    else:
        header = header if is_new else decode_file_header(sector)
        begin = 0 if header is None else header.slot * SLOT_SIZE
        # The other half of the sector contains an older header, or a torn one.
        found, rest, end = [], begin + VERSION_2.size + CRC.size, begin + SLOT_SIZE
    if not is_padding(sector[rest:end]):
        found.append((rest, "file header's sector is not padded with 0xff"))
    return found


def _version_1_oddities(sector: bytes) -> list[tuple[int, str]]:
    _, _, _, flags, _, number, logical, reserved, _, _, nanoseconds, end = VERSION_1.unpack_from(sector)
    unknown = flags & ~OVERWRITE_INDICATOR
    numbers = f"file header's logical number {logical} is not its number {number}"
    checks = (
        (6, unknown, f"file header with unknown flags 0x{unknown:04x}"),
        (LOGICAL_NUMBER_OFFSET, logical != number, numbers),
        (20, reserved, f"reserved field of the file header is 0x{reserved:08x} instead of 0"),
        (40, nanoseconds >= 1_000_000_000, f"file header's time has {nanoseconds} nanoseconds"),
        (44, end, f"last field of the file header is 0x{end:08x} instead of 0"),
    )
    return [(offset, what) for offset, wrong, what in checks if wrong]
