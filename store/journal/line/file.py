"""One file of a linearstore journal: its header, or if that is wrong or lost, the data derived from its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from qstore.formats.qls.errors import QlsError
from qstore.formats.qls.file_header import (
    DATA_OFFSET,
    FILE_HEADER_SIZE,
    FileHeader,
    decode_file_header,
    header_oddities,
    looks_reset,
)
from qstore.formats.qls.records import MAGIC_PREFIX, MAGICS, RecordHeader, decode_record
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind, is_padding
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk, ReadableFile
from qstore.store.journal.files import JournalFile

_PROBE: Final = 1 << 20  # bytes of a file that are searched for records
_FIRST_PROBE: Final = 4096  # bytes in which most first records end
_WITNESSES: Final = 3  # records whose serial is read
_LOST: Final = Effect.PLACE_UNKNOWN
_FILLER: Final = MAGICS[Kind.FILLER].to_bytes(4, "little")


@dataclass(slots=True)
class LinearFile(JournalFile[FileHeader]):
    """One file of a line.

    Attributes:
        serial: the serial of its records; None if neither header nor records show it.
        first_rid: the lowest record id that can be in it, from its header or its first record.
        missing: of a file whose number is not the next one, the damage to report if files before it were lost.
    """

    serial: int | None = None
    first_rid: int = 0
    missing: Damage | None = None

    def gap_before(self) -> Damage | None:
        """The damage to report if files before this one were lost."""
        return self.missing


class FoundFile(NamedTuple):
    """A file that was written to, as found on disk.

    Attributes:
        path: where it is.
        size: its size in bytes.
        header: its header; None if it is lost.
        serial: the serial according to the header; without a header that of the first record.
        record_serial: the serial of the first records, if it differs from the header's; None if unknown.
        first_rid: the lowest record id that can be in it.
    """

    path: str
    size: int
    header: FileHeader | None
    serial: int
    record_serial: int | None
    first_rid: int


def read_linear_file(disk: Disk, path: str, damage: list[Damage]) -> FoundFile | None:
    """Read a file's header; None if the file was never written to, or is not recognizable."""
    try:
        opened = disk.open(path)
    except OSError as error:
        reason = error.strerror or str(error)
        damage.append(Damage(path, None, None, DamageKind.LINEAR_FILE_CANNOT_BE_OPENED, reason=reason))
        return None
    try:
        return _examine(opened, path, damage)
    finally:
        opened.close()


def _examine(opened: ReadableFile, path: str, damage: list[Damage]) -> FoundFile | None:
    sector = b""
    try:
        sector = opened.read(0, FILE_HEADER_SIZE)
        header = decode_file_header(sector)
    except QlsError as error:
        if looks_reset(sector):
            damage.append(Damage(path, error.offset, None, DamageKind.FILE_HEADER_HALF_RESET, problem=error.what))
            return None
        broken = Damage(path, error.offset, None, DamageKind.FILE_HEADER_BROKEN, _LOST, problem=error.what)
        return _without_header(opened, broken, damage)
    except OSError as error:
        reason = error.strerror or str(error)
        unreadable = Damage(path, 0, None, DamageKind.FILE_HEADER_UNREADABLE, _LOST, reason=reason)
        return _without_header(opened, unreadable, damage)
    if header.is_reset:
        return None
    if not header.file_number:
        return _without_header(opened, Damage(path, 64, None, DamageKind.FILE_NUMBER_MISSING, _LOST), damage)
    for offset, problem in header_oddities(sector):
        damage.append(Damage(path, offset, None, DamageKind.FILE_HEADER_ODD, problem=problem))
    return FoundFile(path, opened.size, header, header.serial, _first_serial(opened, header), header.rid)


def _without_header(opened: ReadableFile, lost: Damage, damage: list[Damage]) -> FoundFile | None:
    """A file without its header, from its records; `lost` is the damage to the header."""
    try:
        content = opened.read(0, min(opened.size, DATA_OFFSET + _PROBE))
    except OSError:
        content = b""
    first = _first_good_record(content)
    if first is None:
        damage.append(lost)
        return None
    # The file's own records come before those left from its previous use.
    damage.append(lost.with_effect(Effect.PLACED_BY_RECORDS))
    return FoundFile(lost.file, opened.size, None, first.serial, first.serial, first.rid)


def _first_good_record(content: bytes) -> RecordHeader | None:
    """The first record in a file, whatever offset the file's header states."""
    for offset in range(DATA_OFFSET, len(content), BLOCK_SIZE):
        if content.startswith(MAGIC_PREFIX, offset) and (header := _record_at(content, offset)) is not None:
            return header
    return None


def _record_at(content: bytes, offset: int) -> RecordHeader | None:
    """The record at `offset`, if its checksum matches; a plain dequeue, which has none, if it is padded correctly."""
    try:
        header, _, _ = decode_record(content, offset)
    except QlsError:
        return None
    if header.kind is Kind.FILLER:
        return None
    if not header.has_tail and not is_padding(content[offset + header.header_size : offset + BLOCK_SIZE]):
        return None
    return header


def _first_serial(opened: ReadableFile, header: FileHeader) -> int | None:
    """The serial of the first records in the file, if it is not the header's; None if unknown.

    A single plain dequeue, which has no checksum, proves nothing.
    """
    begin = header.first_record_offset
    if not DATA_OFFSET <= begin < opened.size or begin % BLOCK_SIZE:
        return None
    try:
        content = opened.read(begin, min(_FIRST_PROBE, opened.size - begin))
        first = _record_at(content, 0)
        if content.startswith(MAGIC_PREFIX) and (first is None or first.serial != header.serial):
            content = opened.read(begin, min(_PROBE, opened.size - begin))
    except OSError:
        return None
    found: list[RecordHeader] = []
    offset = 0
    while len(found) < _WITNESSES:
        if content.startswith(_FILLER, offset):
            offset += BLOCK_SIZE  # padding of a flush
            continue
        record = _record_at(content, offset)
        if record is None:
            break
        if record.serial == header.serial:
            return None
        found.append(record)
        offset += record.size
    if len(found) < _WITNESSES and not any(record.has_tail for record in found):
        return None
    ((serial, _),) = Counter(record.serial for record in found).most_common(1)
    return serial


def queue_name_of(disk: Disk, path: str) -> str | None:
    """The queue that a journal file's header names; None if it is unreadable or names none."""
    try:
        opened = disk.open(path)
    except OSError:
        return None
    try:
        return decode_file_header(opened.read(0, FILE_HEADER_SIZE)).queue_name or None
    except (QlsError, OSError):
        return None
    finally:
        opened.close()
