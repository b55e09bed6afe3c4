"""The header of a linearstore journal file: its first sector (formats/qls/README.md, 2)."""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.errors import QlsError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.records import MAGICS, VERSION
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.records import Kind

FILE_HEADER_SIZE: Final = 4096
DATA_OFFSET: Final = FILE_HEADER_SIZE
KIB: Final = 1024

FIELDS: Final = struct.Struct("<IHHQQHHIQQQQQH")
FIRST_RECORD_OFFSET: Final = 40  # offset of the field with the first record's offset
NAME_OFFSET: Final = FIELDS.size
assert NAME_OFFSET == 74
MAX_NAME_SIZE: Final = FILE_HEADER_SIZE - NAME_OFFSET
_MAX_DATA_SIZE: Final = 1 << 32  # KiB: far more than any file system supports


class FileHeader(NamedTuple):
    """The content of the header sector of a linearstore journal file.

    Attributes:
        serial: random number of this use of the file; its records carry it. 0 in a reset header.
        rid: record id of the record being written when the header was created.
        partition: number of the partition from whose pool the file was taken.
        data_size: bytes of data area.
        first_record_offset: bytes from the file's start to the first record header; 0 if none begins here.
        seconds, nanoseconds: when the header was created.
        file_number: position of the file in its journal, from 1; 0 in a reset header.
        queue_name: bytes that are not UTF-8 as surrogate escapes; empty in a reset header.
        header_sectors: sectors of the header: 1.
        flags: 0.
    """

    serial: int
    rid: int
    partition: int
    data_size: int
    first_record_offset: int
    seconds: int
    nanoseconds: int
    file_number: int
    queue_name: str
    header_sectors: int = 1
    flags: int = 0

    @property
    def is_reset(self) -> bool:
        """Whether the file is waiting in the pool, or was taken from it but not yet written."""
        return not (self.serial or self.rid or self.seconds or self.nanoseconds or self.file_number or self.queue_name)

    @property
    def file_size(self) -> int:
        """Expected size of the whole file in bytes."""
        return self.data_size + FILE_HEADER_SIZE


def decode_file_header(sector: bytes) -> FileHeader:
    """Decode the file header in the first sector of a file; also a reset one.

    Raises:
        QlsError: the sector is short, is not a file header, has an unknown version, or contradicts itself.
    """
    if len(sector) < NAME_OFFSET:
        raise QlsError("truncated file header", len(sector))
    (
        magic, version, flags, serial, rid, sectors, partition, _, kib, first, seconds, nanoseconds, number, name_size,
    ) = FIELDS.unpack_from(sector)  # fmt: skip
    if magic != MAGICS[Kind.FILE]:
        raise QlsError(f"not a file header: magic 0x{magic:08x}")
    if version != VERSION:
        raise QlsError(f"unsupported journal version {version} in file header", 4)
    if sectors != 1:
        raise QlsError(f"a file header of {sectors} sectors instead of 1", 24)
    if not 0 < kib <= _MAX_DATA_SIZE or kib % (FILE_HEADER_SIZE // KIB):
        raise QlsError(f"file header has a data size of {kib} KiB", 32)
    if name_size > min(MAX_NAME_SIZE, len(sector) - NAME_OFFSET):
        raise QlsError(f"file header has a queue name of {name_size:,} bytes", 72)
    name = bytes(sector[NAME_OFFSET : NAME_OFFSET + name_size])
    return FileHeader(
        serial=serial,
        rid=rid,
        partition=partition,
        data_size=kib * KIB,
        first_record_offset=first,
        seconds=seconds,
        nanoseconds=nanoseconds,
        file_number=number,
        queue_name=name.decode("utf-8", "surrogateescape"),
        header_sectors=sectors,
        flags=flags,
    )


def encode_file_header(header: FileHeader) -> bytes:
    """The whole first sector of a file, padded with zeros."""
    name = header.queue_name.encode("utf-8", "surrogateescape")
    assert len(name) <= MAX_NAME_SIZE
    fields = FIELDS.pack(
        MAGICS[Kind.FILE], VERSION, header.flags, header.serial, header.rid, header.header_sectors, header.partition,
        0, header.data_size // KIB, header.first_record_offset, header.seconds, header.nanoseconds, header.file_number,
        len(name),
    )  # fmt: skip
    return (fields + name).ljust(FILE_HEADER_SIZE, b"\0")


def linear_geometry(files: int, data_size: int) -> Geometry:
    """The geometry of a line of `files` files with `data_size` bytes of data area each."""
    return Geometry(files, data_size, FILE_HEADER_SIZE)


def looks_reset(sector: bytes) -> bool:
    """Whether a header that cannot be decoded (a bit error in its magic, say) is otherwise that of a reset file."""
    if len(sector) < FILE_HEADER_SIZE:
        return False
    _, version, _, serial, rid, _, _, _, kib, _, seconds, nanoseconds, number, name_size = FIELDS.unpack_from(sector)
    return version == VERSION and kib > 0 and not (serial or rid or seconds or nanoseconds or number or name_size)


def header_oddities(sector: bytes) -> list[tuple[int, str]]:
    """Fields of a decodable header's sector that qpidd would write differently, but that are not used.

    Returns:
        For each such field its offset and one line about it.
    """
    _, _, flags, _, _, _, _, reserved, _, _, _, nanoseconds, _, name_size = FIELDS.unpack_from(sector)
    checks = (
        (6, flags, f"file header with unknown flags 0x{flags:04x}"),
        (28, reserved, f"reserved field of the file header is 0x{reserved:08x} instead of 0"),
        (56, nanoseconds >= 1_000_000_000, f"file header's time has {nanoseconds} nanoseconds"),
    )
    found = [(offset, what) for offset, wrong, what in checks if wrong]
    rest = NAME_OFFSET + name_size
    if sector[rest:].strip(b"\0") and sector[rest:].strip(b"\xff"):
        found.append((rest, "file header's sector is not padded with zeros"))
    return found
