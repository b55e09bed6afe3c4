"""The files of one linearstore journal: their headers read, and put in the order of their numbers.

A line has no info file. Each header names the journal's queue and the file's number; files are taken from the head of
the line only, so a number that is missing between others is a file that was lost. qpidd leaves out a file whose header
it cannot read and does not see that one is missing. Here such a file is read all the same, and so is one whose number
is wrong: its record ids tell where among the others it belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from formats.qls.file_header import FILE_HEADER_SIZE, linear_geometry
from formats.qls.records import SECTOR_SIZE
from store.damage import Damage
from store.disk import Disk
from store.journal.files import OrderedFiles
from store.journal.format import JournalFormat
from store.journal.linear_file import LOST, FoundFile, LinearFile, read_linear_file


@dataclass(slots=True)
class Line(OrderedFiles[LinearFile]):
    """The files of a line, that with the lowest number first.

    Attributes:
        queue_name: whose journal it is, as the headers say; empty if none does.
        notices: one line each: what a user should know, and no damage.
    """

    queue_name: str = ""
    notices: list[str] = field(default_factory=list)


def read_line(
    disk: Disk, paths: Sequence[str], directory: str, queue_name: str | None, unlinked: Sequence[str] = ()
) -> Line:
    """Read the headers of a journal's files and put the files in order.

    Args:
        disk: where to read.
        paths: the files, in any order.
        directory: the journal's directory, for what is missing from it.
        queue_name: whose journal it is; None to take that of most files.
        unlinked: files that no journal links, though their headers name this queue.
    """
    damage: list[Damage] = []
    notices: list[str] = []
    found = [entry for path in paths if (entry := read_linear_file(disk, path, damage)) is not None]
    if queue_name is None:
        names = Counter(entry.header.queue_name for entry in found if entry.header is not None)
        queue_name = names.most_common(1)[0][0] if names else ""
    own = [entry for entry in found if _is_own(entry, queue_name, damage)]
    own += _adopted(disk, own, unlinked, damage, notices)
    data_size = _data_size(own)
    for entry in own:
        _check_size(entry, data_size, damage)
    files = _with_gaps(_in_order(own, damage), directory, damage)
    geometry = linear_geometry(max(len(files), 1), data_size)
    return Line(JournalFormat.LINEAR, geometry, files, damage, queue_name, notices)


def _is_own(entry: FoundFile, queue_name: str, damage: list[Damage]) -> bool:
    if entry.header is None or entry.header.queue_name == queue_name:
        return True
    what = f'file of queue "{entry.header.queue_name}" in the journal of queue "{queue_name}"'
    damage.append(Damage(entry.path, 72, None, what, "its records belong elsewhere and are not read"))
    return False


def _adopted(
    disk: Disk, own: Sequence[FoundFile], unlinked: Sequence[str], damage: list[Damage], notices: list[str]
) -> list[FoundFile]:
    """The unlinked files that belong into the line: those that no crash can have left behind."""
    numbers = {entry.header.file_number for entry in own if entry.header is not None}
    adopted = []
    for path in unlinked:
        entry = read_linear_file(disk, path, damage)
        if entry is None or entry.header is None:
            continue
        number = entry.header.file_number
        if number in numbers or (numbers and number < min(numbers)):
            notices.append(f"{path}: file {number}, which its journal had given back, was on its way to the pool")
            continue
        damage.append(Damage(path, None, None, "the journal's directory has no link to it", "it is read in its place"))
        adopted.append(entry)
    return adopted


# ---- sizes ----


def _data_size(entries: Sequence[FoundFile]) -> int:
    """The size of data area that headers and files themselves agree on most."""
    sizes: Counter[int] = Counter()
    for entry in entries:
        whole = (entry.size - FILE_HEADER_SIZE) // SECTOR_SIZE * SECTOR_SIZE
        if whole >= SECTOR_SIZE:
            sizes[whole] += 1
        if entry.header is not None:
            sizes[entry.header.data_size] += 1
    return sizes.most_common(1)[0][0] if sizes else SECTOR_SIZE


def _check_size(entry: FoundFile, data_size: int, damage: list[Damage]) -> None:
    file_size = data_size + FILE_HEADER_SIZE
    if entry.size != file_size:
        what = f"file has {entry.size} bytes, the journal's geometry says {file_size}"
        consequence = "records beyond its end are lost" if entry.size < file_size else "the excess is not read"
        damage.append(Damage(entry.path, min(entry.size, file_size), None, what, consequence))
    if entry.header is not None and entry.header.data_size != data_size:
        what = f"file header tells {entry.header.data_size} bytes of data area, the journal's other sizes {data_size}"
        damage.append(Damage(entry.path, 32, None, what, "the header is not believed"))


# ---- the order ----


def _in_order(entries: Sequence[FoundFile], damage: list[Damage]) -> list[LinearFile]:
    """The files by number; those whose numbers are lost, taken or out of place by their record ids."""
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
    """Of several files that claim a number, oldest first, the one that fits between its neighbours.

    If more than one does, the older is the file before, if that is missing.
    """
    if len(alike[number]) == 1:
        return alike[number][0]
    before = max((file.first_rid for other, files in alike.items() if other < number for file in files[:1]), default=0)
    after = [files[-1].first_rid for other, files in alike.items() if other > number]
    fitting = [
        file for file in alike[number] if before <= file.first_rid and not (after and file.first_rid > after[0])
    ] or alike[number]
    return fitting[0 if number - 1 in alike or number == 1 else -1]


def _without_copies(alike: Sequence[FoundFile], damage: list[Damage]) -> list[FoundFile]:
    """Files with one number, without copies of the same file."""
    kept: dict[int, FoundFile] = {}
    for entry in alike:
        first = kept.setdefault(entry.serial, entry)
        if first is not entry:
            number = _number(entry)
            damage.append(
                Damage(entry.path, None, None, f"a second copy of file {number}, {first.path}", "it is not read")
            )
    return list(kept.values())


def _number(entry: FoundFile) -> int:
    return 0 if entry.header is None else entry.header.file_number


def _take_misnumbered(placed: list[LinearFile], homeless: list[FoundFile]) -> None:
    """A file that does not fit where its number puts it, while its record ids fit where one number is missing."""
    for index, file in enumerate(placed):
        others = placed[:index] + placed[index + 1 :]
        earlier, later = placed[:index][-1:], placed[index + 1 :][:1]
        fits = all(other.first_rid <= file.first_rid for other in earlier) and all(
            file.first_rid <= other.first_rid for other in later
        )
        belongs = any(
            before.number + 2 == after.number and before.first_rid <= file.first_rid <= after.first_rid
            for before, after in pairwise(others)
        )
        if belongs and not fits:
            placed.remove(file)
            homeless.append(FoundFile(file.path, file.size, file.header, file.serial or 0, file.first_rid))
            return


def _place_by_rid(placed: list[LinearFile], entry: FoundFile, damage: list[Damage]) -> None:
    """Put a file behind the last one whose records are older; a missing number there is preferred."""
    before = [index for index, file in enumerate(placed) if file.first_rid <= entry.first_rid]
    index = before[-1] + 1 if before else 0
    next_number = placed[0].number if placed else 2
    number = placed[index - 1].number + 1 if index else next_number - 1
    if entry.header is not None:
        what = f"file number {entry.header.file_number} contradicts the other files"
        consequence = f"by its record ids the file is read as number {number}"
        damage.append(Damage(entry.path, 64, None, what, consequence))
    placed.insert(index, LinearFile(number, entry.path, entry.size, entry.header, entry.serial, entry.first_rid))


def _with_gaps(files: list[LinearFile], directory: str, damage: list[Damage]) -> list[LinearFile]:
    """An empty file for each stretch of missing numbers, so that no record seems to go on behind it."""
    complete = files[:1]
    for earlier, later in pairwise(files):
        missing = later.number - earlier.number - 1
        if missing > 0:
            first = earlier.number + 1
            what = f"file {first} is missing" if missing == 1 else f"files {first} to {later.number - 1} are missing"
            lost = LOST if missing == 1 else "records that stood in them are lost"
            damage.append(Damage(directory, None, None, what, lost))
            complete.append(LinearFile(first, directory, -1, None))
        complete.append(later)
    return complete
