"""The files of a linearstore: those of its partitions, and those of one journal in the order of their numbers.

The pool (formats/qls/README.md, 3.4). A journal's directory holds links to the files that it took, and the links are
absolute: on another machine, or in a copy, they point nowhere or, worse, into another store. So a link's file is looked
up by its name, which is a UUID, among the taken files of the store itself. A crash between taking a file and linking
it, or between removing a link and giving the file back, leaves a taken file that no journal links. A file that was
written to and belongs in the middle or at the end of its journal's line is different: its link was lost.

The line. It has no info file: each header names the journal's queue and the file's number. qpidd omits a file with an
unreadable header, and does not detect a missing file. This code reads such a file with the data derived from its
records, and a file with a wrong number at the position that its record ids show.

If a number is missing between others, a file was lost, or a restart skipped the number (formats/qls/README.md, 4): the
walk over the records shows which, since the records are contiguous in the second case.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import gt
from typing import Final

from qstore.formats.errors import QlsError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import (
    DATA_OFFSET,
    FILE_HEADER_SIZE,
    FileHeader,
    decode_file_header,
    header_oddities,
    linear_geometry,
    looks_reset,
)
from qstore.formats.qls.records import MAGIC_PREFIX, MAGICS, SECTOR_SIZE, RecordHeader, decode_record
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind, is_padding
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, ReadableFile
from qstore.store.journal.files import JournalFile, JournalFormat, OrderedFiles

# ---- the pool ----

PARTITION_NAME: Final = re.compile(r"p[0-9]{3}")
_POOL_NAME: Final = re.compile(r"(?P<kib>[0-9]{1,9})k")
_FILE_NAME: Final = re.compile(r".{36}\.jrnl", re.DOTALL)
KIB: Final = 1024


def linear_file_names(names: Iterable[str]) -> list[str]:
    """The names in a directory that a linearstore takes for journal files."""
    return [name for name in names if _FILE_NAME.fullmatch(name)]


def pool_data_size(path: str) -> int | None:
    """Bytes of a taken file's data area according to its pool's directory name; None if it is not in a pool."""
    directory, _, in_use = posixpath.dirname(path).rpartition("/")
    found = _POOL_NAME.fullmatch(posixpath.basename(directory)) if in_use == "in_use" else None
    return None if found is None else int(found["kib"]) * KIB


class PooledFile(NamedTuple):
    """A file of a pool.

    Attributes:
        path: where it is.
        partition: number of its partition.
        file_size: size in bytes according to its pool's directory name.
    """

    path: str
    partition: int
    file_size: int


@dataclass(slots=True)
class FilePool:
    """The files of a store's partitions, by name.

    Attributes:
        taken: those in the `in_use` directories.
        linked: the names of those that a journal's directory links to, or holds itself.
        waiting: the unused files in the pools.
        returned: files being returned to a pool.
        damage: directories that could not be listed.
    """

    taken: dict[str, PooledFile] = field(default_factory=dict)
    linked: set[str] = field(default_factory=set)
    waiting: list[PooledFile] = field(default_factory=list)
    returned: list[PooledFile] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


def read_file_pool(disk: Disk, root: str) -> FilePool:
    """List the partitions of the linearstore whose directory is `root`; no file is opened."""
    pool = FilePool()
    for partition in _names(disk, root, pool):
        if not PARTITION_NAME.fullmatch(partition) or not _is_directory(disk, posixpath.join(root, partition), pool):
            continue
        above = posixpath.join(root, partition, "efp")
        for size in _names(disk, above, pool) if _is_directory(disk, above, pool) else ():
            found = _POOL_NAME.fullmatch(size)
            if found is not None:
                file_size = int(found["kib"]) * KIB + FILE_HEADER_SIZE
                _read_one(disk, posixpath.join(above, size), int(partition[1:]), file_size, pool)
    return pool


def _read_one(disk: Disk, directory: str, partition: int, file_size: int, pool: FilePool) -> None:
    def files(below: str) -> Iterator[tuple[str, PooledFile]]:
        where = posixpath.join(directory, below) if below else directory
        if _is_directory(disk, where, pool):
            for name in linear_file_names(_names(disk, where, pool)):
                yield name, PooledFile(posixpath.join(where, name), partition, file_size)

    pool.waiting.extend(file for _, file in files(""))
    pool.returned.extend(file for _, file in files("returned"))
    for name, file in files("in_use"):
        first = pool.taken.setdefault(name, file)
        if first is not file:
            kind, partition = DamageKind.POOL_FILE_TWICE, first.partition
            pool.damage.append(Damage(file.path, None, None, kind, partition=partition))


def _is_directory(disk: Disk, path: str, pool: FilePool) -> bool:
    try:
        return disk.is_directory(path)
    except OSError as error:
        kind, effect = DamageKind.PATH_UNREADABLE, Effect.POOL_FILES_NOT_FOUND
        pool.damage.append(Damage(path, None, None, kind, effect, reason=error.strerror))
        return False


def _names(disk: Disk, directory: str, pool: FilePool) -> list[str]:
    try:
        return disk.names(directory)
    except OSError as error:
        kind, effect = DamageKind.DIRECTORY_UNREADABLE, Effect.POOL_FILES_NOT_FOUND
        pool.damage.append(Damage(directory, None, None, kind, effect, reason=error.strerror))
        return []


# ---- one file ----

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
        missing: the damage to report if files before it were lost; only of a file whose number is not the next one.
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


# ---- the line ----

_ALIKE: Final = 8  # maximum of differing bits if one serial is a corrupted copy of the other


@dataclass(slots=True)
class Line(OrderedFiles[LinearFile]):
    """The files of a line, the lowest number first.

    Attributes:
        queue_name: the journal's queue according to the headers; empty if none names one.
        unlinked_head: paths of unlinked files at the head: given back, unless messages in them are needed.
        notices: one line each for the user, about things that are not damage.
    """

    queue_name: str = ""
    unlinked_head: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


def read_line(
    disk: Disk,
    paths: Sequence[str],
    directory: str,
    queue_name: str | None,
    unlinked: Sequence[str] = (),
    queues: Collection[str] = (),
    waiting: Sequence[str] = (),
) -> Line:
    """Read the headers of a journal's files and put the files in order.

    Args:
        disk: reads them.
        paths: the files, in any order.
        directory: the journal's directory, for reporting missing files.
        queue_name: the journal's queue; None to use that of most files.
        unlinked: files that no journal links, though their headers name this queue.
        queues: the names of the store's queues.
        waiting: files in the pool, though their headers name this queue.
    """
    damage: list[Damage] = []
    notices: list[str] = []
    found = [entry for path in paths if (entry := read_linear_file(disk, path, damage)) is not None]
    if queue_name is None:
        names = Counter(entry.header.queue_name for entry in found if entry.header is not None)
        queue_name = names.most_common(1)[0][0] if names else ""
    own = _own(found, queue_name, queues, damage)
    head: set[str] = set()
    own += _adopted(disk, own, unlinked, head, damage, notices)
    own += _taken_for_free(disk, own, waiting, damage)
    data_size = _data_size(own)
    for entry in own:
        _check_size(entry, data_size, damage)
    files = _in_order(own, damage)
    _trust_records(files, {entry.path: entry.record_serial for entry in own}, damage, notices)
    _mark_gaps(files, directory)
    geometry = linear_geometry(max(len(files), 1), data_size)
    return Line(JournalFormat.LINEAR, geometry, files, damage, queue_name, head, notices)


def _own(found: Sequence[FoundFile], queue_name: str, queues: Collection[str], damage: list[Damage]) -> list[FoundFile]:
    """The queue's files: by the name in the header, or if that is no other queue's, by the number."""
    own = [entry for entry in found if entry.header is None or entry.header.queue_name == queue_name]
    numbers = {entry.header.file_number for entry in own if entry.header is not None}
    for entry in found:
        if entry.header is None or entry.header.queue_name == queue_name:
            continue
        name, number = entry.header.queue_name, entry.header.file_number
        fits = not numbers or (number not in numbers and min(numbers) - 1 <= number <= max(numbers) + 1)
        effect = Effect.BELONGS_ELSEWHERE
        if fits and name not in queues:
            effect = Effect.READ_BY_NUMBER
            own.append(entry)
        damage.append(
            Damage(entry.path, 72, None, DamageKind.FILE_OF_OTHER_QUEUE, effect, recorded=name, queue=queue_name)
        )
    return own


def _adopted(
    disk: Disk,
    own: Sequence[FoundFile],
    unlinked: Sequence[str],
    head: set[str],
    damage: list[Damage],
    notices: list[str],
) -> list[FoundFile]:
    """The unlinked files that belong to the line.

    One in the middle or at the end has lost its link. Paths at the head, where files are given back, go to `head`:
    the walk over the records shows whether messages in them are needed.
    """
    found = [entry for path in unlinked if (entry := read_linear_file(disk, path, damage)) is not None]
    numbers = {entry.header.file_number for entry in own if entry.header is not None}
    lowest = min(numbers, default=0)
    adopted = []
    for entry in sorted(found, key=_number, reverse=True):
        number = _number(entry)
        if number in numbers:
            damage.append(Damage(entry.path, None, None, DamageKind.FILE_NUMBER_TWICE, number=number))
            continue
        if numbers and number > lowest:
            damage.append(Damage(entry.path, None, None, DamageKind.FILE_WITHOUT_LINK))
        elif not numbers or number == lowest - 1:
            lowest = number
            head.add(entry.path)
        elif number:
            notices.append(f"{entry.path}: file {number} was given back by its journal, but is not in the pool yet")
            continue
        adopted.append(entry)
    return adopted


def _taken_for_free(
    disk: Disk, own: Sequence[FoundFile], waiting: Sequence[str], damage: list[Damage]
) -> list[FoundFile]:
    """The files in the pool that are newer than the line: a journal never gives its last files back.

    Older ones were given back, and their headers are not reset yet; perhaps by a deleted queue of the same name.
    """
    newest = max((_age(entry) for entry in own if entry.header is not None), default=(0, 0, 0, 0))
    found = [entry for path in waiting if (entry := read_linear_file(disk, path, [])) is not None]
    later = [entry for entry in found if all(map(gt, _age(entry)[:2], newest)) and _age(entry)[2:] >= newest[2:]]
    damage.extend(Damage(entry.path, None, None, DamageKind.FILE_IN_POOL) for entry in later)
    return later


def _age(entry: FoundFile) -> tuple[int, int, int, int]:
    """Number, first record id and time of a file: each increases along a line."""
    header = entry.header
    return (0, 0, 0, 0) if header is None else (header.file_number, entry.first_rid, header.seconds, header.nanoseconds)


def _data_size(entries: Sequence[FoundFile]) -> int:
    """The size of the data area that most headers, file sizes and pool names agree on."""
    sizes: Counter[int] = Counter()
    for entry in entries:
        pooled = pool_data_size(entry.path)
        if pooled is not None:
            sizes[pooled] += 1
        whole = (entry.size - FILE_HEADER_SIZE) // SECTOR_SIZE * SECTOR_SIZE
        if whole >= SECTOR_SIZE:
            sizes[whole] += 1
        if entry.header is not None:
            sizes[entry.header.data_size] += 1
    return sizes.most_common(1)[0][0] if sizes else SECTOR_SIZE


def _check_size(entry: FoundFile, data_size: int, damage: list[Damage]) -> None:
    file_size = data_size + FILE_HEADER_SIZE
    if entry.size != file_size:
        kind, size = DamageKind.FILE_SIZE, entry.size
        effect = Effect.RECORDS_BEYOND_END_LOST if size < file_size else Effect.EXCESS_NOT_READ
        damage.append(Damage(entry.path, min(size, file_size), None, kind, effect, size=size, expected=file_size))
    if entry.header is not None and entry.header.data_size != data_size:
        recorded = entry.header.data_size
        damage.append(Damage(entry.path, 32, None, DamageKind.FILE_DATA_SIZE, recorded=recorded, size=data_size))


def _in_order(entries: Sequence[FoundFile], damage: list[Damage]) -> list[LinearFile]:
    """The files by number; those whose numbers are lost, taken or out of order by their record ids."""
    homeless = [entry for entry in entries if entry.header is None]
    numbered: dict[int, list[FoundFile]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.first_rid, entry.path)):
        if entry.header is not None:
            numbered.setdefault(entry.header.file_number, []).append(entry)
    alike = {number: _without_copies(numbered[number], damage) for number in sorted(numbered)}
    placed: list[LinearFile] = []
    for number, files in alike.items():
        entry = _owner(number, alike)
        homeless.extend(file for file in files if file is not entry)
        placed.append(LinearFile(number, entry.path, entry.size, entry.header, entry.serial, entry.first_rid))
    _take_misnumbered(placed, homeless)
    for entry in sorted(homeless, key=lambda entry: entry.first_rid):
        _place_by_rid(placed, entry, damage)
    return placed


def _owner(number: int, alike: Mapping[int, Sequence[FoundFile]]) -> FoundFile:
    """Of several files with one number, oldest first, the one that fits between its neighbours.

    If more than one fits, the newer one is the next file if only that is missing in the line; otherwise the older one
    is the previous file if that is missing.
    """
    if len(alike[number]) == 1:
        return alike[number][0]
    before = max((file.first_rid for other, files in alike.items() if other < number for file in files[:1]), default=0)
    after = [files[-1].first_rid for other, files in alike.items() if other > number]
    fitting = [
        file for file in alike[number] if before <= file.first_rid and not (after and file.first_rid > after[0])
    ] or alike[number]
    is_next_lost = number + 1 not in alike and bool(after)
    return fitting[0 if number - 1 in alike or number == 1 or is_next_lost else -1]


def _number(entry: FoundFile) -> int:
    return 0 if entry.header is None else entry.header.file_number


def _take_misnumbered(placed: list[LinearFile], homeless: list[FoundFile]) -> None:
    """Take out the one file whose record ids do not fit its number, and without which no other number is missing.

    Of two candidates, this is the one with the higher number: numbers start at 1 and increase by 1.
    """
    falls = [index for index in range(1, len(placed)) if placed[index - 1].first_rid > placed[index].first_rid]
    if len(falls) not in (1, 2) or not _missing(placed):
        return  # all fit, or several do not; or the numbers are right, and a header's record id is wrong
    for index in sorted({near for fall in falls for near in (fall - 1, fall)}, reverse=True):
        file, others = placed[index], placed[:index] + placed[index + 1 :]
        if any(before.first_rid > after.first_rid for before, after in pairwise(others)):
            continue
        earlier = sum(other.first_rid <= file.first_rid for other in others)
        is_hole = 0 < earlier < len(others) and others[earlier - 1].number + 2 == others[earlier].number
        if _missing(others) == is_hole and (earlier or others[0].number > 1):
            placed.remove(file)
            homeless.append(FoundFile(file.path, file.size, file.header, file.serial or 0, None, file.first_rid))
            return


def _missing(files: Sequence[LinearFile]) -> int:
    """Number of missing file numbers between those of the files."""
    return files[-1].number - files[0].number + 1 - len(files)


def _place_by_rid(placed: list[LinearFile], entry: FoundFile, damage: list[Damage]) -> None:
    """Insert a file after the last one whose records are older, preferably at a missing number."""
    before = [index for index, file in enumerate(placed) if file.first_rid <= entry.first_rid]
    index = before[-1] + 1 if before else 0
    next_number = placed[0].number if placed else 2
    number = placed[index - 1].number + 1 if index else next_number - 1
    if entry.header is not None:
        recorded = entry.header.file_number
        damage.append(Damage(entry.path, 64, None, DamageKind.FILE_OUT_OF_PLACE, recorded=recorded, number=number))
    placed.insert(index, LinearFile(number, entry.path, entry.size, entry.header, entry.serial, entry.first_rid))


def _without_copies(alike: Sequence[FoundFile], damage: list[Damage]) -> list[FoundFile]:
    """Files with one number, without copies of the same file."""
    kept: dict[int, FoundFile] = {}
    for entry in alike:
        first = kept.setdefault(entry.serial, entry)
        if first is not entry:
            number = _number(entry)
            damage.append(Damage(entry.path, None, None, DamageKind.FILE_SECOND_COPY, number=number, first=first.path))
    return list(kept.values())


def _trust_records(
    files: Sequence[LinearFile], record_serials: Mapping[str, int | None], damage: list[Damage], notices: list[str]
) -> None:
    """Decide between header and records if the first record has another serial than the header.

    In the last file it may be left from the file's previous use, if nothing was written after the new header; unless
    the two serials are so similar that the header must be corrupted.
    """
    for index, file in enumerate(files):
        found = record_serials[file.path]
        if file.header is None or found is None or found == file.header.serial:
            continue
        mismatch = Damage(file.path, 8, None, DamageKind.FILE_SERIAL, recorded=file.header.serial, found=found)
        if index < len(files) - 1 or (found ^ file.header.serial).bit_count() <= _ALIKE:
            damage.append(mismatch)
            file.serial = found
        else:
            notices.append(f"{file.path}: {mismatch.what}: its records are from a previous use and are not read")


def _mark_gaps(files: Sequence[LinearFile], directory: str) -> None:
    """Mark each file before which numbers are missing."""
    for earlier, later in pairwise(files):
        missing = later.number - earlier.number - 1
        first, last = earlier.number + 1, later.number - 1
        if missing == 1:
            later.missing = Damage(directory, None, None, DamageKind.FILE_MISSING, first=first)
        elif missing > 1:
            later.missing = Damage(directory, None, None, DamageKind.FILES_MISSING, first=first, last=last)
