"""The times in the headers of a journal's files, which a writer makes one after another.

Times that run back are no damage: a clock may have been set. But where the record ids in the headers of a legacystore,
which has nothing else to show it, run back with them, a file of an earlier lap, or of another journal, was put there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from formats.qls.file_header import FileHeader as LinearHeader
from formats.rhm.file_header import RID_OFFSET
from formats.rhm.file_header import FileHeader as RingHeader
from store.damage import Damage
from store.damage_kinds import DamageKind
from store.journal.files import JournalFile
from store.journal.format import JournalFormat
from store.journal.journal import Journal

_HOW: Final = {
    DamageKind.HEADER_OLDER: "older than that of the file before it",
    DamageKind.HEADER_NEWER: "newer than that of the file after it",
}


class _Stamp(NamedTuple):
    """When a file's header was made: by the clock, in seconds and nanoseconds, and by the record that was written."""

    path: str
    time: tuple[int, int]
    rid: int


def times_out_of_order(journal: Journal) -> tuple[list[Damage], list[str]]:
    """Damage and notices about the headers whose times do not fit between those of the other files."""
    damage: list[Damage] = []
    notices: list[str] = []
    stamps = [_stamp(file) for file in journal.files.files if file.header is not None]
    for stamp, other, kind in _misfits(stamps):
        seconds = abs(stamp.time[0] - other.time[0])
        by_rid = stamp.rid < other.rid if stamp.time < other.time else stamp.rid > other.rid
        if by_rid and journal.format is JournalFormat.VERSION_1:
            damage.append(Damage(stamp.path, RID_OFFSET, None, kind, seconds=seconds, told=stamp.rid))
        else:
            notices.append(
                f"{stamp.path}: file header is {_HOW[kind]}, by {seconds} s; "
                "the clock was set, or the header altered; nothing depends on it"
            )
    return damage, notices


def _stamp(file: JournalFile[Any]) -> _Stamp:
    header: RingHeader | LinearHeader | None = file.header
    assert header is not None
    return _Stamp(file.path, (header.seconds, header.nanoseconds), header.rid)


def _misfits(stamps: Sequence[_Stamp]) -> Iterator[tuple[_Stamp, _Stamp, DamageKind]]:
    """The stamps that do not fit among the others, each with the neighbour that it contradicts, and how."""
    fitting = _rising(stamps)
    earlier: _Stamp | None = None
    for index, stamp in enumerate(stamps):
        if fitting and fitting[0] == index:
            earlier = stamps[fitting.pop(0)]
        elif earlier is not None and stamp.time < earlier.time:
            yield stamp, earlier, DamageKind.HEADER_OLDER
        else:
            yield stamp, stamps[fitting[0]], DamageKind.HEADER_NEWER


def _rising(stamps: Sequence[_Stamp]) -> list[int]:
    """The indexes of the most stamps whose times do not run back; of rows as long the one that begins with later times.

    So of two stamps of which either would have to go, it is the second: a file is more often too old than too new.
    """
    ends: list[tuple[int, int]] = []  # backwards: of the rows of so many stamps the latest time that one begins with
    first: list[int] = []  # the index of that
    following: dict[int, int] = {}  # for each stamp the one after it in the longest row that it begins
    for index in reversed(range(len(stamps))):
        seconds, nanoseconds = stamps[index].time
        length = bisect_right(ends, (-seconds, -nanoseconds))
        if length:
            following[index] = first[length - 1]
        ends[length : length + 1] = [(-seconds, -nanoseconds)]
        first[length : length + 1] = [index]
    row = first[-1:]
    while row and row[-1] in following:
        row.append(following[row[-1]])
    return row
