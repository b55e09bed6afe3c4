"""The files of one ring: their headers read, and put in order of writing.

qpidd gives up on a header that it cannot read; here the header is reported as damaged, and the position of its file is
derived from its number, its records and its neighbours (`order`), so that its records are still searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.file_header import (
    LOGICAL_NUMBER_OFFSET,
    FileHeader,
    decode_header_sector,
    header_oddities,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import (
    OVERWRITE_INDICATOR,
    RECORD_KINDS,
    TAIL,
    TAIL_SIZE,
    Kind,
    RecordHeader,
    decode_header,
    decode_record,
    decode_tail,
    is_padding,
    version_1_check,
)
from qstore.formats.zeros import is_zero
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk, OsFile, ReadableFile
from qstore.store.journal.files import OrderedFiles
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.ring.order import (
    RingFile,
    order_by_flush,
    order_by_indicator,
    wasted_files,
)
from qstore.store.journal.ring.owner import by_number, leave_out_strangers, tell_zeros

_READ_WHOLE: Final = 1 << 16  # bytes of a file that is read at once for the same: it takes less than so many sectors
_SECTORS_PROBED: Final = 64  # read from a file without a header to decide whether it was ever written
_RECORD_PROBE: Final = 4096  # bytes from a file's first record searched for a record that shows its lap ...
_LOST_HEADER_PROBE: Final = 1 << 20  # ... and in a file whose header does not state that offset


@dataclass(slots=True)
class Ring(OrderedFiles[RingFile]):
    """The files of a ring in order of writing, oldest first.

    Attributes:
        wasted: version 2: files that are skipped, because a torn flush had entered them (`order`).
        free: version 2: files that are skipped, because the last of them is a boundary.
        lacks_creation_header: version 2: whether a file lacks even the header written at its creation.
        numbers: the numbers of all files, in the order of the ring.
        has_changed: version 2: whether files were ever added, or removed.
    """

    wasted: list[RingFile] = field(default_factory=list)
    free: list[RingFile] = field(default_factory=list)
    lacks_creation_header: bool = False
    numbers: Sequence[int] = ()
    has_changed: bool = False

    def place(self, file: RingFile) -> int:
        """The position of a file in the ring."""
        return self.numbers.index(file.number)


def read_ring(
    disk: Disk,
    paths: Sequence[str],
    geometry: Geometry,
    info: JournalInfo | None = None,
    numbers: Sequence[int] | None = None,
) -> Ring:
    """Read the headers of a journal's files, `paths` in the order of the ring, and put the files in order of writing.

    Args:
        disk: reads the files.
        paths: the files; a single one is accepted with any number in its header.
        geometry: their number and size.
        info: the info file's version, queue and incarnation; without it the majority of the files decides.
        numbers: the numbers of the files in the same order; 0, 1, 2 and so on by default.
    """
    damage: list[Damage] = []
    numbers = range(len(paths)) if numbers is None else numbers
    files = [_read_file(disk, number, path, geometry, damage) for number, path in zip(numbers, paths, strict=True)]
    version = _version(files, info)
    has_changed = info is not None and info.has_changed_ring
    has_creation_headers = info is not None and info.creation_headers
    lacks_one = has_creation_headers and any(file.is_blank for file in files)
    if version is None:
        tell_zeros(files, damage, has_creation_headers=has_creation_headers)
        used = [file for file in files if file.used]
        return Ring(
            None, geometry, used, damage, lacks_creation_header=lacks_one, numbers=numbers, has_changed=has_changed
        )
    if version == 2:
        damage = [
            entry.with_effect(Effect.SALT_LOST) if entry.effect is Effect.PLACED_BY_NUMBER else entry
            for entry in damage
        ]
    if version == 2:
        _forget_torn_headers(files, damage)
    leave_out_strangers(files, version, info, damage)
    placed = by_number(files, damage)
    tell_zeros(placed, damage, has_creation_headers=has_creation_headers)
    wasted: list[RingFile] = []
    if version == 2:
        wasted = [file for file in wasted_files(placed) if not _holds_later_flush(disk, file)]
        skipped = {id(file) for file in wasted}
        placed = [file for file in placed if id(file) not in skipped]
    ordered = order_by_indicator(placed, damage) if version == 1 else order_by_flush(placed, damage)
    free = ordered[: 1 + max((at for at, file in enumerate(ordered) if file.is_boundary), default=-1)]
    ordered = ordered[len(free) :]
    return Ring(JournalFormat(version), geometry, ordered, damage, wasted, free, lacks_one, numbers, has_changed)


def _forget_torn_headers(files: Sequence[RingFile], damage: list[Damage]) -> None:
    """Reset version-2 files whose first header was torn: data is written only after the header is synced."""
    for file in files:
        if file.torn_header is not None:
            damage[:] = [
                entry for entry in damage if entry.file != file.path or entry.offset != file.torn_header.offset
            ]
            file.used = False


def _version(files: Sequence[RingFile], info: JournalInfo | None) -> int | None:
    versions = Counter(file.header.version for file in files if file.header is not None)
    if info is not None and info.version in versions:
        return info.version
    if versions:
        return versions.most_common(1)[0][0]
    # All headers are lost. In version 2 so are the salts; in version 1 the records still show their lap.
    if any(file.record_indicator is not None for file in files):
        return 1
    return 2 if info is not None and info.version == 2 and any(file.used for file in files) else None


# ---- one file ----


def _read_file(disk: Disk, number: int, path: str, geometry: Geometry, damage: list[Damage]) -> RingFile:
    try:
        opened = disk.open(path)
    except OSError as error:
        kind, files, reason = DamageKind.FILE_CANNOT_BE_OPENED, geometry.files, error.strerror or str(error)
        damage.append(Damage(path, None, None, kind, number=number, files=files, reason=reason))
        return RingFile(number, path, -1, None, used=True)
    try:
        return _examine(opened, number, path, geometry, damage)
    finally:
        opened.close()


def _examine(opened: ReadableFile, number: int, path: str, geometry: Geometry, damage: list[Damage]) -> RingFile:
    if opened.size != geometry.file_size:
        size, expected = opened.size, geometry.file_size
        effect = Effect.RECORDS_BEYOND_END_LOST if size < expected else Effect.EXCESS_NOT_READ
        kind = DamageKind.FILE_SIZE
        damage.append(Damage(path, min(size, expected), None, kind, effect, size=size, expected=expected))
    file = RingFile(number, path, opened.size, None, used=True)
    try:
        sector = opened.read(0, FILE_HEADER_SIZE)
        told = decode_header_sector(sector)
        file.header, file.entered_again = told.header, told.was_entered_again
    except RhmError as error:
        if opened.size >= FILE_HEADER_SIZE:  # otherwise its size is reported
            kind = DamageKind.FILE_HEADER_CHECKSUM if error.fails_checksum else DamageKind.FILE_HEADER_BROKEN
            entry = Damage(path, error.offset, None, kind, problem=error.what)
            if _is_blank(opened):
                file.torn_header = entry
            damage.append(entry)
    except OSError as error:
        reason = error.strerror or str(error)
        damage.append(Damage(path, 0, None, DamageKind.FILE_HEADER_UNREADABLE, reason=reason))
    else:
        if file.header is None:
            file.used, file.is_blank = _has_data(opened), not told.has_creation_header
            if file.used:
                damage.append(Damage(path, 0, None, DamageKind.FILE_HEADER_MISSING))
            return _with_indicator(opened, file, geometry)
        for offset, problem in header_oddities(sector):
            # If the header's two numbers differ, the one that differs from the file name is wrong.
            if offset != LOGICAL_NUMBER_OFFSET or file.header.logical_number != number:
                damage.append(Damage(path, offset, None, DamageKind.FILE_HEADER_ODD, problem=problem))
        file.goes_with_header = file.header.file_number == number or _records_go_with(opened, file.header)
    return _with_indicator(opened, file, geometry)


def _with_indicator(opened: ReadableFile, file: RingFile, geometry: Geometry) -> RingFile:
    if file.used and (file.header is None or file.header.version == 1):
        file.record_indicator = _record_indicator(opened, file, geometry)
    return file


def _records_go_with(opened: ReadableFile, header: FileHeader) -> bool:
    """Whether the first record belongs to the file that the header describes.

    In version 2 it verifies with the header's salt, or begins elsewhere, where it cannot be checked. In version 1 it is
    the one that the header names, or follows the tail of that one.
    """
    begin = header.first_record_offset
    if not DATA_OFFSET <= begin < opened.size:
        return header.version == 2
    try:
        if header.version == 1 and begin > DATA_OFFSET:
            before = opened.read(begin - BLOCK_SIZE - TAIL_SIZE, BLOCK_SIZE + TAIL_SIZE)
            return any(TAIL.pack(version_1_check(kind), header.rid) in before for kind in RECORD_KINDS)
        first = decode_header(opened.read(begin, BLOCK_SIZE))
        if header.version == 1:
            return first.rid == header.rid
        if first.size <= min(opened.size - begin, _LOST_HEADER_PROBE):
            decode_record(opened.read(begin, first.size), salt=header.salt)
    except (RhmError, OSError):
        return False
    return True


def _holds_later_flush(disk: Disk, file: RingFile) -> bool:
    """Whether a good record of a later flush than the header's follows it without a break."""
    header = file.header
    assert header is not None
    place = header.first_record_offset
    try:
        opened = disk.open(file.path)
    except OSError:
        return True
    try:
        while DATA_OFFSET <= place < opened.size:
            size = decode_header(opened.read(place, BLOCK_SIZE)).size
            record, _, _ = decode_record(opened.read(place, min(size, opened.size - place)), salt=header.salt)
            if record.flush != header.first_flush & 0xFFFFFFFF:
                return True
            place += size
    except (RhmError, OSError):
        pass
    finally:
        opened.close()
    return False


def _is_blank(opened: ReadableFile) -> bool:
    """Whether nothing was written after the header yet, where writing begins."""
    try:
        return is_zero(opened.read(DATA_OFFSET, FILE_HEADER_SIZE))
    except OSError:
        return False


def _has_data(opened: ReadableFile) -> bool:
    """Whether a file with an all-zero header holds data: a small file is read, of others sectors throughout.

    Not those of which the file system says that they were never written: of idle queues nearly all.
    """
    step = max(FILE_HEADER_SIZE, opened.size // _SECTORS_PROBED // FILE_HEADER_SIZE * FILE_HEADER_SIZE)
    try:
        if opened.size <= _READ_WHOLE:
            return not is_zero(opened.read(0, opened.size), DATA_OFFSET)
        if not is_zero(opened.read(DATA_OFFSET, FILE_HEADER_SIZE)):
            return True
        if isinstance(opened, OsFile) and opened.is_unwritten(step):
            return False
        return not all(is_zero(opened.read(offset, FILE_HEADER_SIZE)) for offset in range(step, opened.size, step))
    except OSError:
        return True


def _record_indicator(opened: ReadableFile, file: RingFile, geometry: Geometry) -> int | None:
    """The overwrite indicator of the first record in the file that its tail, or padding, confirms."""
    begin, length = DATA_OFFSET, _LOST_HEADER_PROBE
    if file.header is not None and file.goes_with_header:
        first = file.first_record(geometry)
        if first is None:
            return None
        begin, length = DATA_OFFSET + first, _RECORD_PROBE
    end = min(begin + length, opened.size, geometry.file_size)
    for offset in range(begin, end, BLOCK_SIZE):
        try:
            block = opened.read(offset, BLOCK_SIZE)
            header = decode_header(block)
            if header.version == 1 and header.kind is not Kind.FILLER and _is_whole(opened, offset, header, block):
                return header.flags & OVERWRITE_INDICATOR
        except (RhmError, OSError):
            continue
    return None


def _is_whole(opened: ReadableFile, offset: int, header: RecordHeader, block: bytes) -> bool:
    if not header.has_tail:
        return is_padding(block[header.header_size :])
    tail = offset + header.tail_offset
    if tail + TAIL_SIZE > opened.size:
        return False
    return decode_tail(opened.read(tail, TAIL_SIZE), 0) == (version_1_check(header.kind), header.rid)
