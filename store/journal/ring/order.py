"""Which file of a journal is the oldest: the order in which a ring of files was written.

Version 1. Each lap round the ring inverts the overwrite indicator, so the first files with the same indicator are of
the new lap, and those after them of the old one. If a header is lost or wrong, qpidd gives up. Here every possible
rotation is scored against all known facts, and the one with the lowest score is chosen:

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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from qstore.formats.rhm.file_header import FileHeader
from qstore.formats.rhm.geometry import MAX_FILES
from qstore.formats.rhm.headers import RESTART_GAP
from qstore.store.damage import Damage
from qstore.store.damage_kinds import DamageKind
from qstore.store.journal.files import JournalFile

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
    # Of the files that one flush entered, the last one: the next file was entered by another flush.
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
    """The rotation that most files fit, and those files. Of two, the one with the newer files: most strays are old."""
    best, chosen = (0, 0, 1), (0, list[RingFile]())
    for rotation in _rotations(written):
        fitting = _fitting(written, rotation)
        newest = max((file.header.first_flush for file in fitting if file.header is not None), default=0)
        if (found := (len(fitting), newest, -rotation)) > best or not chosen[1]:
            best, chosen = found, (rotation, fitting)
    return _rotated(written, chosen[0]), chosen[1]


def _rotations(written: Sequence[RingFile]) -> Sequence[int]:
    """The rotations to compare: of a large ring only where the flush numbers turn back, the largest steps first."""
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
    """The files that fit: those from `rotation` on have one overwrite indicator, the others the other; flushes rise."""
    rows = []
    for old in (0, 1):
        laps = [*((file, old) for file in written[rotation:]), *((file, 1 - old) for file in written[:rotation])]
        rows.append(_rising([file for file, lap in laps if file.header and file.header.overwrite_indicator == lap]))
    return max(rows, key=len)


def _rising(files: Sequence[RingFile]) -> list[RingFile]:
    """The longest sequence of files whose first flush numbers do not decrease; files without a header are omitted.

    Of several, the one whose files come first. For each length there are the files with which such a sequence of that
    length can end, in order: their numbers decrease.
    """
    ends: list[list[int]] = []  # for each length, of these files the numbers, negated, so that they ascend ...
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
    """The files up to the last one that was written: a file with an all-zero header between written ones was used."""
    last = max((place for place, file in enumerate(files) if file.used), default=-1)
    return files[: last + 1]
