"""The times in the headers of a journal's files, which a writer creates one after another.

Decreasing times are not damage: a clock may have been set. But if the record ids in the headers of a legacystore, which
has no other evidence, decrease with them, a file from an earlier lap, or from another journal, was put there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from qstore.formats.qls.file_header import FileHeader as LinearHeader
from qstore.formats.rhm.file_header import RID_OFFSET
from qstore.formats.rhm.file_header import FileHeader as RingHeader
from qstore.store.damage import Damage, DamageKind
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.journal import Journal

_HOW: Final = {
    DamageKind.HEADER_OLDER: "older than that of the previous file",
    DamageKind.HEADER_NEWER: "newer than that of the next file",
}


class _Stamp(NamedTuple):
    """The creation time of a file's header: by the clock, in seconds and nanoseconds, and by the current record id."""

    path: str
    time: tuple[int, int]
    rid: int


def times_out_of_order(journal: Journal) -> tuple[list[Damage], list[str]]:
    """Damage and notices about headers whose times do not fit between those of the other files."""
    damage: list[Damage] = []
    notices: list[str] = []
    stamps = [_stamp(file) for file in journal.files.files if file.header is not None]
    for stamp, other, kind in _misfits(stamps):
        seconds = abs(stamp.time[0] - other.time[0])
        by_rid = stamp.rid < other.rid if stamp.time < other.time else stamp.rid > other.rid
        if by_rid and journal.format is JournalFormat.VERSION_1:
            damage.append(Damage(stamp.path, RID_OFFSET, None, kind, seconds=seconds, recorded=stamp.rid))
        else:
            notices.append(
                f"{stamp.path}: file header is {_HOW[kind]}, by {seconds} s; "
                "the clock was set, or the header was altered; this has no effect"
            )
    return damage, notices


def _stamp(file: JournalFile[Any]) -> _Stamp:
    header: RingHeader | LinearHeader | None = file.header
    assert header is not None
    return _Stamp(file.path, (header.seconds, header.nanoseconds), header.rid)


def _misfits(stamps: Sequence[_Stamp]) -> Iterator[tuple[_Stamp, _Stamp, DamageKind]]:
    """The stamps that do not fit, each with the neighbour that it contradicts, and how."""
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
    """The indexes of the longest non-decreasing sequence of times; among equals, the one with later first times.

    So of two stamps of which either would have to be dropped, it is the second: files are more often too old than new.
    """
    ends: list[tuple[int, int]] = []  # backwards: for each length the latest first time of a sequence
    first: list[int] = []  # its index
    following: dict[int, int] = {}  # for each stamp the next one in the longest sequence that it begins
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
