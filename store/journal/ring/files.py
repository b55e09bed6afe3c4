"""The files of one ring: reads their headers, checks them against each other, and puts them in order of writing.

qpidd gives up on a header that it cannot read; here the header is reported as damaged, and the position of its file is
derived from its number, its records and its neighbours, so that its records are still searched.

Identity. A header's number may be wrong, or the header may be another file's; whole files may have been swapped, which
their headers show; or a file may be a copy of another one, or from another journal. A file that does not belong to the
ring is omitted: reading it would bring back messages that were consumed long ago or were never in this queue.

Order: which file is the oldest.

Version 1. Each lap round the ring inverts the overwrite indicator, so the first files with the same indicator are of
the new lap, and those after them of the old one. If a header is lost or wrong, every possible rotation is scored
against all known facts, and the one with the lowest score is chosen:

    2  a header whose indicator is that of the other lap
    3  records of the new lap in a file that would be of the old one; records of the old lap in a file that would be
       of the new one and has no header
    1  records of the old lap in a file whose header is of the new one: the crash came after the header was written
    2  a header older than that of the previous file

Version 2. First flush numbers increase from file to file. If one flush entered several files, including from the last
to the first, the overwrite indicator distinguishes the laps. If no rotation fits, the one that fits most files is
chosen.

Version 2: a flush that a crash tore may have entered files whose content is worthless. Everything before them in that
flush was lost, and the next run continued before them, with higher numbers. Such a wasted file comes after the newest
one; its header is of the same lap, with a number between the oldest's and the newest's, and no record of a later flush
follows it. Nothing in it is live, or it would not have been entered, so it is skipped. If the torn flush was the
journal's first, the oldest file was entered again too, and has the higher number.

A file whose header and records fit neither case is of another lap, restored by mistake; it is omitted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import (
    FILE_NUMBER_OFFSETS,
    LOGICAL_NUMBER_OFFSET,
    FileHeader,
    decode_header_sector,
    header_oddities,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, MAX_FILES, Geometry
from qstore.formats.rhm.headers import RESTART_GAP
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
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, OsFile, ReadableFile
from qstore.store.journal.files import JournalFile, JournalFormat, OrderedFiles

_FIRST_BLOCK: Final = 4096  # bytes: a file system knows of its blocks whether they were written, not of sectors
_READ_WHOLE: Final = 1 << 17  # files up to this many bytes are read whole instead: cheaper than that many sectors
_SECTORS_PROBED: Final = 64  # read from a file without a header to decide whether it was ever written
_RECORD_PROBE: Final = 4096  # bytes from a file's first record searched for a record that shows its lap ...
_LOST_HEADER_PROBE: Final = 1 << 20  # ... and in a file whose header does not state that offset

_UNTRUE_HEADER = _TURNED_BACK = 2
_UNTRUE_RECORDS = 3
_NOT_YET_WRITTEN = 1


@dataclass(slots=True)
class RingFile(JournalFile[FileHeader]):
    """One file of a ring.

    Attributes:
        used: whether it was ever written, as far as known.
        goes_with_header: whether its records belong to its header, as far as known.
        record_indicator: version 1: the overwrite indicator of the first record found in it.
        overwrite_indicator: version 1: the indicator that its records should have; None if unknown.
        torn_header: what is wrong with the header of a file without any records.
        entered_again: version 2: whether it was entered more than once in its lap.
        is_blank: whether it has no header at all, not even the one written at its creation.
    """

    used: bool
    goes_with_header: bool = True
    record_indicator: int | None = None
    overwrite_indicator: int | None = None
    torn_header: Damage | None = None
    entered_again: bool = False
    is_blank: bool = False

    @property
    def is_boundary(self) -> bool:
        """Version 2: whether nothing in it, and nothing written before it, belongs to the journal."""
        return self.header is not None and self.header.is_boundary

    def leave_out(self) -> None:
        """Read nothing from the file, since its content does not belong here."""
        self.header, self.size, self.record_indicator = None, -1, None


@dataclass(slots=True)
class Ring(OrderedFiles[RingFile]):
    """The files of a ring in order of writing, oldest first.

    Attributes:
        wasted: version 2: files that are skipped, because a torn flush had entered them.
        free: version 2: files that are skipped, because the last of them is a boundary.
        lacks_creation_header: version 2: whether a file lacks even the header written at its creation.
        numbers: the numbers of all files, in the order of the ring.
        has_changed: version 2: whether files were ever added, or removed.
        is_whole: whether each of its files exists with the right size.
    """

    wasted: list[RingFile] = field(default_factory=list)
    free: list[RingFile] = field(default_factory=list)
    lacks_creation_header: bool = False
    numbers: Sequence[int] = ()
    has_changed: bool = False
    is_whole: bool = True

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
    is_whole = all(file.size == geometry.file_size for file in files)
    version = _version(files, info)
    has_changed = info is not None and info.has_changed_ring
    has_creation_headers = info is not None and info.creation_headers
    lacks_one = has_creation_headers and any(file.is_blank for file in files)
    if version is None:
        report_zeros(files, damage, has_creation_headers=has_creation_headers)
        used = [file for file in files if file.used]
        return Ring(None, geometry, used, damage, [], [], lacks_one, numbers, has_changed, is_whole)
    if version == 2:
        damage = [
            entry.with_effect(Effect.SALT_LOST) if entry.effect is Effect.PLACED_BY_NUMBER else entry
            for entry in damage
        ]
    if version == 2:
        _forget_torn_headers(files, damage)
    leave_out_strangers(files, version, info, damage)
    placed = by_number(files, damage)
    report_zeros(placed, damage, has_creation_headers=has_creation_headers)
    wasted: list[RingFile] = []
    if version == 2:
        wasted = [file for file in wasted_files(placed) if not _holds_later_flush(disk, file)]
        skipped = {id(file) for file in wasted}
        placed = [file for file in placed if id(file) not in skipped]
    ordered = order_by_indicator(placed, damage) if version == 1 else order_by_flush(placed, damage)
    free = ordered[: 1 + max((at for at, file in enumerate(ordered) if file.is_boundary), default=-1)]
    ordered = ordered[len(free) :]
    return Ring(
        JournalFormat(version), geometry, ordered, damage, wasted, free, lacks_one, numbers, has_changed, is_whole
    )


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
    if isinstance(opened, OsFile):
        opened.will_be_sampled()
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
        block = _first_block(opened)
        sector = block[:FILE_HEADER_SIZE]
        decoded = decode_header_sector(sector)
        file.header, file.entered_again = decoded.header, decoded.was_entered_again
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
            file.used, file.is_blank = _has_data(opened, block), not decoded.has_creation_header
            if file.used:
                damage.append(Damage(path, 0, None, DamageKind.FILE_HEADER_MISSING))
            return _with_indicator(opened, file, geometry)
        for offset, problem in header_oddities(sector, file.header):
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
    """Whether nothing was written yet after the header, where writing begins."""
    try:
        return is_zero(opened.read(DATA_OFFSET, FILE_HEADER_SIZE))
    except OSError:
        return False


def _first_block(opened: ReadableFile) -> bytes:
    """The first block of a file, or at least its header: of a file that was never written, nothing else is read."""
    try:
        return opened.read(0, _FIRST_BLOCK)
    except OSError:  # of which not all can be read
        return opened.read(0, FILE_HEADER_SIZE)


def _has_data(opened: ReadableFile, block: bytes) -> bool:
    """Whether a file with an all-zero header holds data: reads a small file whole, samples of sectors of others.

    What the file system reports as never written is skipped: for idle queues all but the block with the header. A part
    that it reports as data does not make it so for the rest.

    Args:
        opened: the file.
        block: its first block, or what can be read of that.
    """
    size = opened.size
    try:
        if not is_zero(block, DATA_OFFSET) or len(block) < min(_FIRST_BLOCK, size):
            return True
        at = _data_from(opened, _FIRST_BLOCK)
        if at >= size:
            return False
        if size <= _READ_WHOLE:
            return not is_zero(opened.read(0, size), DATA_OFFSET)
        step = max(FILE_HEADER_SIZE, size // _SECTORS_PROBED // FILE_HEADER_SIZE * FILE_HEADER_SIZE)
        while at < size:
            sample = max(step, at // step * step)
            if not is_zero(opened.read(sample, FILE_HEADER_SIZE)):
                return True
            at = _data_from(opened, sample + step)
    except OSError:
        return True
    return False


def _data_from(opened: ReadableFile, offset: int) -> int:
    """Where data may begin, at `offset` or after it; the file's size, or more, if there is none."""
    return opened.data_from(offset) if isinstance(opened, OsFile) else offset


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


# ---- identity ----


def leave_out_strangers(
    files: Sequence[RingFile], version: int, info: JournalInfo | None, damage: list[Damage]
) -> None:
    """Omit files of another version, or (version 2) of another queue or incarnation.

    Args:
        files: the files of the ring.
        version: the journal's.
        info: the content of the info file; without it the majority of the files decides.
        damage: receives the damage found.
    """
    identities = Counter(owner_of(file.header) for file in files if file.header and file.header.version == version)
    own = (info.queue_id, info.incarnation) if info is not None else None
    trusted = own if own in identities else next(iter(dict(identities.most_common(1))), None)
    for file in files:
        if file.header is None:
            continue
        if file.header.version != version:
            recorded = file.header.version
            found = Damage(file.path, 0, None, DamageKind.FILE_OF_OTHER_VERSION, recorded=recorded, version=version)
        elif trusted is not None and owner_of(file.header) != trusted:
            found = _of_other_incarnation(file.path, file.header, trusted)
        else:
            continue
        damage.append(found)
        file.leave_out()


def owner_of(header: FileHeader) -> tuple[int, int]:
    """Version 2: queue id and incarnation."""
    return header.queue_id, header.incarnation


def _of_other_incarnation(path: str, header: FileHeader, trusted: tuple[int, int]) -> Damage:
    return Damage(
        path,
        0,
        None,
        DamageKind.FILE_OF_OTHER_INCARNATION,
        recorded_queue=header.queue_id,
        recorded_incarnation=header.incarnation,
        queue=trusted[0],
        incarnation=trusted[1],
    )


def by_number(files: Sequence[RingFile], damage: list[Damage]) -> list[RingFile]:
    """The files of a ring in its order, by their numbers, which may differ from those in their names."""
    if len(files) == 1:
        return list(files)  # the name of a single file is not significant
    for file in files:
        _trust_second_number(file, damage)
    numbers = [file.number for file in files]
    places = {file.number: file for file in files if file.header is not None and _number(file) == file.number}
    moved = [file for file in files if file.header is not None and _number(file) != file.number]
    known = set(numbers)
    all_go = all(file.goes_with_header for file in moved)
    for file in moved:
        assert file.header is not None
        number, version = _number(file), file.header.version
        if number not in known or not (file.goes_with_header if version == 2 else all_go):
            effect = Effect.SALT_NOT_TRUSTED if version == 2 else Effect.NAME_TRUSTED_ONLY
            file.header = None
        elif number in places:
            effect = Effect.NUMBER_TAKEN
            file.leave_out()
        else:
            effect = Effect.HEADER_TRUSTED
            places[number] = file
        offset, kind = FILE_NUMBER_OFFSETS[version], DamageKind.FILE_NUMBER
        damage.append(Damage(file.path, offset, None, kind, effect, recorded=number, number=file.number))
    rest = [file for file in files if places.get(_number(file)) is not file]
    for file in list(rest):
        if places.setdefault(file.number, file) is file:
            rest.remove(file)
    free = [number for number in numbers if number not in places]
    places.update(dict(zip(free, rest, strict=True)))
    return [places[number] for number in numbers]


def _number(file: RingFile) -> int:
    return file.number if file.header is None else file.header.file_number


def _trust_second_number(file: RingFile, damage: list[Damage]) -> None:
    """Version 1 has the number twice in the header: if the second one agrees with the name, the first is wrong."""
    header = file.header
    if header is None or header.version != 1 or header.file_number == file.number:
        return
    if header.logical_number != file.number:
        return
    kind, recorded = DamageKind.FILE_NUMBERS_DIFFER, header.file_number
    damage.append(Damage(file.path, FILE_NUMBER_OFFSETS[1], None, kind, recorded=recorded, number=file.number))
    file.header = header._replace(file_number=file.number)


def report_zeros(placed: Sequence[RingFile], damage: list[Damage], *, has_creation_headers: bool) -> None:
    """Report files that seem never written although a later one was, and files that are all zeros.

    Args:
        placed: the files of the ring by number.
        damage: receives the damage found.
        has_creation_headers: whether each file was created with a header, so that even one never entered has one.
    """
    last = max((place for place, file in enumerate(placed) if file.header is not None), default=0)
    for place, file in enumerate(placed):
        if file.used:
            continue
        if place < last:
            kind = DamageKind.FILE_ALL_ZEROS if file.is_blank else DamageKind.FILE_EMPTY
            damage.append(Damage(file.path, 0, None, kind, later=placed[last].number))
            file.leave_out()
        elif has_creation_headers and file.is_blank:
            damage.append(Damage(file.path, 0, None, DamageKind.CREATION_HEADER_MISSING))


# ---- order ----


def order_by_indicator(files: list[RingFile], damage: list[Damage]) -> list[RingFile]:
    """Version 1: the files that were written, the old lap's first; contradicting headers are reported."""
    written = _written(files)
    rotation, new = min(
        ((rotation, new) for rotation in range(1, len(written) + 1) for new in (0, 1)),
        key=lambda lap: _contradictions(written, *lap),
    )
    for index, file in enumerate(written):
        file.overwrite_indicator = new if index < rotation else 1 - new
        if file.header is None or file.header.overwrite_indicator == file.overwrite_indicator:
            continue
        recorded = file.header.overwrite_indicator
        kind = DamageKind.OVERWRITE_INDICATOR
        if file.record_indicator == recorded:
            kind = DamageKind.FILE_OF_OTHER_LAP
            file.leave_out()
        damage.append(Damage(file.path, 6, None, kind, recorded=recorded))
    return _rotated(written, rotation)


def _contradictions(written: Sequence[RingFile], rotation: int, new: int) -> tuple[int, int]:
    """Scores of the assumption that the first `rotation` files are the new lap, with indicator `new`: all, headers."""
    headers = records = 0
    for index, file in enumerate(written):
        expected = new if index < rotation else 1 - new
        known = file.header is not None
        if file.header is not None and file.header.overwrite_indicator != expected:
            headers += _UNTRUE_HEADER
        if file.record_indicator == 1 - expected:
            records += _NOT_YET_WRITTEN if index < rotation and known else _UNTRUE_RECORDS
    ordered = [file.header for file in _rotated(written, rotation) if file.header is not None]
    turned_back = sum(
        _TURNED_BACK
        for earlier, later in pairwise(ordered)
        if (earlier.seconds, earlier.nanoseconds) > (later.seconds, later.nanoseconds)
    )
    return headers + records + turned_back, headers


def _rotated(written: Sequence[RingFile], rotation: int) -> list[RingFile]:
    return [*written[rotation:], *written[:rotation]]


def order_by_flush(files: list[RingFile], damage: list[Damage]) -> list[RingFile]:
    """Version 2: the files that were written, the one with the lowest first flush number first."""
    written = _written(files)
    headers = [(place, file.header) for place, file in enumerate(written) if file.header is not None]
    if not headers:
        return written
    first_flush = min(header.first_flush for _, header in headers)
    tied = [(place, header.overwrite_indicator) for place, header in headers if header.first_flush == first_flush]
    oldest = next((place for place, indicator in tied if indicator != tied[0][1]), tied[0][0])
    if _all_fit(written, oldest):
        return _rotated(written, oldest)
    ordered, fitting = _rotated(written, oldest), _fitting(written, oldest)
    if len(fitting) < len(headers):
        ordered, fitting = _most_fitting(written)
    for file in ordered:
        if file.header is not None and file not in fitting:
            damage.append(Damage(file.path, 8, None, DamageKind.FIRST_FLUSH, recorded=file.header.first_flush))
            file.leave_out()
    return ordered


def wasted_files(placed: list[RingFile]) -> list[RingFile]:
    """Version 2: the files after the newest one that a torn flush may have entered (see the module's docstring)."""
    written = _written(placed)
    numbers = [-1 if file.header is None else file.header.first_flush for file in written]
    highest = max(numbers, default=-1)
    # The last of the files that one flush entered: the next file was entered by another flush.
    ends = [at for at, number in enumerate(numbers) if number == highest > numbers[(at + 1) % len(numbers)]]
    newest = written[ends[0]].header if len(ends) == 1 else None
    wasted: list[RingFile] = []
    after = [*range(ends[0] + 1, len(written)), *range(ends[0])] if newest is not None else []
    for at in after:
        header = written[at].header
        if newest is None or header is None or header.first_flush + RESTART_GAP > highest + 1:
            break
        if header.overwrite_indicator != newest.overwrite_indicator ^ (at < ends[0]):
            break
        wasted.append(written[at])
    passed = {id(file) for file in wasted}
    rest = [at for at, file in enumerate(written) if id(file) not in passed and file.header is not None]
    at_oldest = min(rest, key=lambda at: numbers[at], default=-1)
    if at_oldest < 0 or (at_oldest == 0 and written[at_oldest].entered_again):
        return wasted
    first = numbers[at_oldest]
    if first < highest and any(file.header is not None and file.header.first_flush < first for file in wasted):
        return []
    return wasted


def _most_fitting(written: Sequence[RingFile]) -> tuple[list[RingFile], list[RingFile]]:
    """The rotation that most files fit, and those files. Of two, the one with newer files: most stray files are old."""
    best, chosen = (0, 0, 1), (0, list[RingFile]())
    for rotation in _rotations(written):
        fitting = _fitting(written, rotation)
        newest = max((file.header.first_flush for file in fitting if file.header is not None), default=0)
        if (found := (len(fitting), newest, -rotation)) > best or not chosen[1]:
            best, chosen = found, (rotation, fitting)
    return _rotated(written, chosen[0]), chosen[1]


def _rotations(written: Sequence[RingFile]) -> Sequence[int]:
    """The rotations to compare; in a large ring only those where the flush numbers decrease, largest steps first."""
    if len(written) <= MAX_FILES:
        return range(len(written))
    flushes = [(at, file.header.first_flush) for at, file in enumerate(written) if file.header is not None]
    steps = sorted((later - earlier, at) for (_, earlier), (at, later) in pairwise(flushes) if later < earlier)
    return sorted({0, *(at for _, at in steps[: MAX_FILES // 4])})


def _all_fit(written: Sequence[RingFile], rotation: int) -> bool:
    """Whether all files with a header fit, as `_fitting` finds them; a ring may have very many."""
    last, first = 0, None
    for at, file in enumerate(_rotated(written, rotation)):
        if file.header is None:
            continue
        indicator = file.header.overwrite_indicator ^ (at >= len(written) - rotation)
        first = indicator if first is None else first
        if indicator != first or file.header.first_flush < last:
            return False
        last = file.header.first_flush
    return True


def _fitting(written: Sequence[RingFile], rotation: int) -> list[RingFile]:
    """The files that fit: all from `rotation` on have one overwrite indicator, all others the other; flushes ascend."""
    rows = []
    for old in (0, 1):
        laps = [*((file, old) for file in written[rotation:]), *((file, 1 - old) for file in written[:rotation])]
        rows.append(_rising([file for file, lap in laps if file.header and file.header.overwrite_indicator == lap]))
    return max(rows, key=len)


def _rising(files: Sequence[RingFile]) -> list[RingFile]:
    """The longest sequence of files whose first flush numbers do not decrease; files without a header are omitted.

    Of several, the one whose files come first. For each length, the search keeps the files that such a sequence of that
    length can end with, in order: their numbers decrease.
    """
    ends: list[list[int]] = []  # for each length, the negated numbers of these files, which ascend ...
    at: list[list[int]] = []  # ... and their positions
    before: list[int] = []  # position -> that of the previous file in the sequence; -1 for none
    for position, file in enumerate(files):
        before.append(-1)
        if file.header is None:
            continue
        flush = file.header.first_flush
        length = bisect_right(ends, flush, key=lambda numbers: -numbers[-1])
        if length:
            before[position] = at[length - 1][bisect_left(ends[length - 1], -flush)]
        if length == len(ends):
            ends.append([])
            at.append([])
        ends[length].append(-flush)
        at[length].append(position)
    row: list[RingFile] = []
    last = at[-1][0] if at else -1
    while last >= 0:
        row.append(files[last])
        last = before[last]
    return row[::-1]


def _written(files: list[RingFile]) -> list[RingFile]:
    """The files up to the last written one: one with an all-zero header between written files was used, too."""
    last = max((place for place, file in enumerate(files) if file.used), default=-1)
    return files[: last + 1]
