"""The files of one linearstore journal: their headers read, and put in the order of their numbers.

A line has no info file. Each header names the journal's queue and the file's number. qpidd omits a file whose header it
cannot read and does not detect that one is missing. Here such a file is read nevertheless, and so is one whose number
is wrong: its record ids show its position among the others.

If a number is missing between others, a file was lost, or a restart skipped the number (formats/qls/README.md, 4): the
walk over the records shows which, since the records are contiguous in the second case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import gt
from typing import Final

from qstore.formats.qls.file_header import FILE_HEADER_SIZE, linear_geometry
from qstore.formats.qls.records import SECTOR_SIZE
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk
from qstore.store.journal.files import OrderedFiles
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.line.file import FoundFile, LinearFile, read_linear_file
from qstore.store.journal.line.pool import pool_data_size

_ALIKE: Final = 8  # maximum of differing bits if one serial is a corrupted copy of the other


@dataclass(slots=True)
class Line(OrderedFiles[LinearFile]):
    """The files of a line, the lowest number first.

    Attributes:
        queue_name: the journal's queue according to the headers; empty if none names one.
        unlinked_head: paths of files at the head that no journal links: given back, unless messages in them are needed.
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
    _believe_records(files, {entry.path: entry.record_serial for entry in own}, damage, notices)
    _tell_gaps(files, directory)
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

    One in the middle or at the end has lost its link. Paths at the head, where files are given back, go into `head`:
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


# ---- sizes ----


def _data_size(entries: Sequence[FoundFile]) -> int:
    """The size of data area on which most headers, file sizes and pool names agree."""
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


# ---- the order ----


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


def _without_copies(alike: Sequence[FoundFile], damage: list[Damage]) -> list[FoundFile]:
    """Files with one number, without copies of the same file."""
    kept: dict[int, FoundFile] = {}
    for entry in alike:
        first = kept.setdefault(entry.serial, entry)
        if first is not entry:
            number = _number(entry)
            damage.append(Damage(entry.path, None, None, DamageKind.FILE_SECOND_COPY, number=number, first=first.path))
    return list(kept.values())


def _number(entry: FoundFile) -> int:
    return 0 if entry.header is None else entry.header.file_number


def _take_misnumbered(placed: list[LinearFile], homeless: list[FoundFile]) -> None:
    """The one file that does not fit where its number puts it, by its record ids, and leaves no other number missing.

    Of two candidates, the one with the higher number: numbers start at 1 and increase by 1.
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


def _believe_records(
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


def _tell_gaps(files: Sequence[LinearFile], directory: str) -> None:
    """Mark each file before which numbers are missing."""
    for earlier, later in pairwise(files):
        missing = later.number - earlier.number - 1
        first, last = earlier.number + 1, later.number - 1
        if missing == 1:
            later.missing = Damage(directory, None, None, DamageKind.FILE_MISSING, first=first)
        elif missing > 1:
            later.missing = Damage(directory, None, None, DamageKind.FILES_MISSING, first=first, last=last)
