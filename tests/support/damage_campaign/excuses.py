"""Damage that the bytes of a store cannot show, by the list in tools/README.md, and whether a damage is of that kind.

An excuse is proved of the one damage, from the undamaged store's records and from the bytes that have changed: it is
not enough that a format has a weakness. Each is bound to words of that list, which a test looks for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.bdb.writer import encode_empty_log
from qstore.formats.qls.records import RecordHeader as LinearHeader
from qstore.formats.rhm.records import TAIL_SIZE, Kind
from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import open_store
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from tests.support.damage_campaign.damage import Damaged, DamageKind, FileKind
from tests.support.damage_campaign.stores import LEGACYSTORE, QSTORE, CampaignStore

#: What tools/README.md says, in "What no check can detect".
CONTENT: Final = "A legacystore has no checksums"
PLAIN_DEQUEUE: Final = "A linearstore's plain dequeues have no checksum"
END: Final = "The end of a journal"
PAGES: Final = "Berkeley DB's pages have no checksums"
GONE_BACK: Final = "all files were replaced by older copies together"
MADE_BY_TOOL: Final = (
    "in a store that one of these tools created, whose log is empty, that one was, or that two were exchanged"
)
EXCUSES: Final = (CONTENT, PLAIN_DEQUEUE, END, PAGES, GONE_BACK, MADE_BY_TOOL)

_DATABASES: Final = ("rhm/dat", "qls/dat2")
_DATABASE_PAGE: Final = 4096  # bytes, of qpidd's files and ours; the first page is metadata
_PAGE_HEADER: Final = 26  # bytes at the beginning of every other
_IN_PLACE: Final = frozenset({DamageKind.FLIP, DamageKind.SECTORS, DamageKind.GARBAGE})

_HEADER: Final = 512  # bytes of a ring's file header
_RID, _TARGET_END = 8, 24  # of a plain dequeue's header: its record id and that of what it removes
_LINEAR_RID, _LINEAR_TARGET_END = 16, 32
_AT_THE_END: Final = frozenset(
    {
        DamageKind.FLIP,
        DamageKind.SECTORS,
        DamageKind.ZEROED,
        DamageKind.ZEROED_ALL,
        DamageKind.GARBAGE,
        DamageKind.OLDER,
        DamageKind.OLDER_ALL,
    }
)


class _Extent(NamedTuple):
    """Bytes of a file, its path below the store."""

    file: str
    begin: int
    end: int


class _Record(NamedTuple):
    """A record of the undamaged store: its header, and where its bytes are up to the tail's end."""

    header: RecordHeader
    extents: list[_Extent]
    guarded: list[_Extent]


class _Records:
    """Collects every record of a journal."""

    def __init__(self, journal: Journal, root: str) -> None:
        self._stream, self._root = journal.stream, root
        self.found: list[_Record] = []

    def record(self, header: RecordHeader, place: int, _xid: bytes) -> None:
        end = header.tail_offset + TAIL_SIZE if header.has_tail else header.header_size
        guarded = [each for begin, stop in _guarded(header, end) for each in self._pieces(place + begin, place + stop)]
        self.found.append(_Record(header, list(self._pieces(place, place + end)), guarded))

    def enqueue(self, *_: Any) -> None:
        raise AssertionError("every record goes to `record`")

    dequeue = enqueue

    def damaged(self, damage: Any) -> None:
        raise AssertionError(f"the store was damaged before: {damage}")

    def _pieces(self, place: int, end: int) -> Iterator[_Extent]:
        while place < end:
            file, offset = self._stream.locate(place)
            stop = min(end, place - place % self._stream.data_size + self._stream.data_size)
            yield _Extent(_below(self._root, file.path), offset, offset + stop - place)
            place = stop


def _guarded(header: RecordHeader, end: int) -> list[tuple[int, int]]:
    """The parts of a record in which a change is seen: all of it where there is a checksum."""
    is_plain_dequeue = header.kind is Kind.DEQUEUE and not header.has_tail
    if isinstance(header, LinearHeader):
        return [(0, _LINEAR_RID), (_LINEAR_TARGET_END, end)] if is_plain_dequeue else [(0, end)]
    if header.version == 2:
        return [(0, end)]
    if is_plain_dequeue:
        return [(0, _RID), (_TARGET_END, end)]
    return [(0, header.header_size), (header.tail_offset, end)] if header.has_tail else [(0, end)]


def _below(root: str, path: str) -> str:
    return os.path.relpath(os.path.realpath(path), root)


def excuse(damaged: Damaged) -> str | None:
    """Why a damage cannot be detected, in the words of tools/README.md; None if it can."""
    root = os.path.realpath(damaged.store.path)
    changed = _Changes(Path(root), damaged.path)
    if damaged.file_kind is FileKind.CATALOGUE:
        return None if damaged.store.format == QSTORE else _of_berkeley(damaged, changed)
    journals = _journals(damaged, root)
    hit = [(records, [changed.touches(each.extents) for each in records]) for records in journals]
    of_format = CONTENT if damaged.store.format == LEGACYSTORE else PLAIN_DEQUEUE
    if not any(changed.touches(each.guarded) for records in journals for each in records):
        return of_format if any(any(marks) for _, marks in hit) else None
    if damaged.kind in _AT_THE_END and all(_is_an_end(records, marks) for records, marks in hit):
        return None if damaged.store.format == QSTORE and _is_on_record(damaged.store) else END
    return None


def _is_on_record(store: CampaignStore) -> bool:
    """Version 2: whether the store still records what was at the ends of its journals.

    A clean close tells all that there was then; and a store that lived has recorded how far it was synced when the copy
    was made. The others were not.
    """
    return store.clean or bool(store.older)


def _of_berkeley(damaged: Damaged, changed: _Changes) -> str | None:
    """The excuse for damage to Berkeley DB's files."""
    (directory,) = (damaged.store.path / name for name in _DATABASES if (damaged.store.path / name).is_dir())
    logs = sorted(directory.glob("log.*"))
    is_made_by_tool = [log.read_bytes() for log in logs] == [encode_empty_log()]
    if damaged.kind is DamageKind.OLDER_ALL:
        return GONE_BACK
    if damaged.kind in (DamageKind.OLDER, DamageKind.SWAPPED):
        return MADE_BY_TOOL if is_made_by_tool else None
    places = list(changed.places(_below(os.path.realpath(damaged.store.path), str(directory))))
    is_in_items = all(
        file.endswith(".db") and at >= _DATABASE_PAGE and at % _DATABASE_PAGE >= _PAGE_HEADER for file, at in places
    )
    return PAGES if damaged.kind in _IN_PLACE and is_in_items else None


def _journals(damaged: Damaged, root: str) -> list[list[_Record]]:
    store = open_store(OsDisk(), str(damaged.store.path))
    found = []
    for journal in store.all_journals():
        records = _Records(journal, root)
        journal.walk(records, every_record=True)
        journal.close()
        found.append(records.found)
    return found


def _is_an_end(records: list[_Record], hit: list[bool]) -> bool:
    """Whether nothing that shows that the journal went on is left behind the first record that was hit."""
    if True not in hit:
        return True
    first = hit.index(True)
    for record, is_hit in zip(records[first:], hit[first:], strict=True):
        if is_hit:
            continue
        header = record.header
        if isinstance(header, LinearHeader) or header.version == 1:
            if header.kind is not Kind.FILLER:
                return False
        elif header.flush > records[first].header.flush:  # of the flush that was torn nothing counts
            return False
    return True


class _Changes:
    """What is not as it was, byte by byte."""

    def __init__(self, before: Path, after: Path) -> None:
        self._before, self._after = before, after
        self._contents: dict[str, tuple[bytes, bytes]] = {}

    def touches(self, extents: list[_Extent]) -> bool:
        """Whether any of these bytes has changed, or can be verified no more because its file's header has."""
        return any(self._differs(each.file, each.begin, each.end) for each in extents)

    def places(self, directory: str) -> Iterator[tuple[str, int]]:
        """The files, and offsets in them, of the bytes in a directory that have changed."""
        for path in sorted((self._before / directory).iterdir()):
            file = f"{directory}/{path.name}"
            before, after = _read(path), _read(self._after / file)
            if before != after:
                length = max(len(before), len(after))
                yield from ((file, at) for at in range(length) if before[at : at + 1] != after[at : at + 1])

    def _differs(self, file: str, begin: int, end: int) -> bool:
        if file not in self._contents:
            self._contents[file] = _read(self._before / file), _read(self._after / file)
        before, after = self._contents[file]
        return before[begin:end] != after[begin:end] or before[:_HEADER] != after[:_HEADER]


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
