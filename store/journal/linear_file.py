"""One file of a linearstore journal: its header, or where that lies or is lost, what its records say instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from formats.qls.errors import QlsError
from formats.qls.file_header import DATA_OFFSET, FILE_HEADER_SIZE, FileHeader, decode_file_header, header_oddities
from formats.qls.records import decode_record
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import Kind
from store.damage import Damage
from store.disk import Disk, ReadableFile
from store.journal.files import JournalFile

_PROBE: Final = 1 << 20  # bytes of a file that are searched for a record
LOST: Final = "records that stood in it are lost"
_IGNORED: Final = "none: nothing is read from it"


@dataclass(slots=True)
class LinearFile(JournalFile[FileHeader]):
    """One file of a line.

    Attributes:
        serial: what its records carry; None if neither header nor records tell it.
        first_rid: the lowest record id that can be in it, by its header or its first record.
    """

    serial: int | None = None
    first_rid: int = 0


class FoundFile(NamedTuple):
    """A file that was written to, as it was found.

    Attributes:
        path: where it is.
        size: bytes that it has.
        header: its header; None if it is lost.
        serial: what its records carry.
        first_rid: the lowest record id that can be in it.
    """

    path: str
    size: int
    header: FileHeader | None
    serial: int
    first_rid: int


def read_linear_file(disk: Disk, path: str, damage: list[Damage]) -> FoundFile | None:
    """Read a file's header; None if the file was never written to, or nothing tells what it is."""
    try:
        opened = disk.open(path)
    except OSError as error:
        damage.append(Damage(path, None, None, f"file cannot be opened: {error.strerror or error}", LOST))
        return None
    try:
        return _examine(opened, path, damage)
    finally:
        opened.close()


def _examine(opened: ReadableFile, path: str, damage: list[Damage]) -> FoundFile | None:
    try:
        sector = opened.read(0, FILE_HEADER_SIZE)
        header = decode_file_header(sector)
    except QlsError as error:
        return _without_header(opened, path, error.what, error.offset, damage)
    except OSError as error:
        return _without_header(opened, path, f"file header cannot be read: {error.strerror or error}", 0, damage)
    if header.is_reset:
        return None
    if not header.file_number:
        return _without_header(opened, path, "file header without a file number", 64, damage)
    for offset, what in header_oddities(sector):
        damage.append(Damage(path, offset, None, what, _IGNORED))
    return FoundFile(path, opened.size, header, _serial(opened, path, header, damage), header.rid)


def _without_header(opened: ReadableFile, path: str, what: str, offset: int, damage: list[Damage]) -> FoundFile | None:
    first = _first_record(opened)
    if first is None:
        damage.append(Damage(path, offset, None, what, "nothing tells the file's place; " + LOST))
        return None
    damage.append(Damage(path, offset, None, what, "its records tell the file's place"))
    return FoundFile(path, opened.size, None, *first)


def _first_record(opened: ReadableFile) -> tuple[int, int] | None:
    """Serial and rid of the first record whose checksum holds."""
    try:
        content = opened.read(0, min(opened.size, DATA_OFFSET + _PROBE))
    except OSError:
        return None
    for offset in range(DATA_OFFSET, len(content), BLOCK_SIZE):
        if content.startswith(b"QLS", offset) and (found := _record_at(content, offset)) is not None:
            return found
    return None


def _record_at(content: bytes, offset: int) -> tuple[int, int] | None:
    """Serial and rid of the record at `offset`, if it is one whose checksum holds."""
    try:
        header, _, _ = decode_record(content, offset)
    except QlsError:
        return None
    return (header.serial, header.rid) if header.kind is not Kind.FILLER and header.has_tail else None


def _serial(opened: ReadableFile, path: str, header: FileHeader, damage: list[Damage]) -> int:
    """The serial of the file's records, which is the header's unless the first record proves it wrong.

    What the file's former life left behind has another serial too, but lower record ids than the header's.
    """
    begin = header.first_record_offset
    if not DATA_OFFSET <= begin < opened.size or begin % BLOCK_SIZE:
        return header.serial
    try:
        found = _record_at(opened.read(begin, min(_PROBE, opened.size - begin)), 0)
    except OSError:
        return header.serial
    if found is None or found[0] == header.serial or found[1] < header.rid:
        return header.serial
    what = f"file header tells serial 0x{header.serial:x}, the records have 0x{found[0]:x}"
    damage.append(Damage(path, 8, None, what, "the records' serial is taken"))
    return found[0]


def queue_name_of(disk: Disk, path: str) -> str | None:
    """The queue that a journal file's header names; None if it cannot be read, or names none."""
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
