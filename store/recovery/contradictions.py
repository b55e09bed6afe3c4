"""Contradictions between a journal's records: ids used twice, records that refer to missing messages or transactions.

A dequeue of a missing message, and the end of a transaction that is not open, are normal if the journal's beginning is
missing: a ring overwrites it, a line gives it back. If everything ever written still exists, they are not; and in no
case can a message be dequeued by an older record, since record ids come from one counter, or twice.

A plain dequeue has no tail and no checksum outside of version 2: the very last record may be a torn one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from qstore.formats.rhm.file_header import FIRST_FLUSH_OFFSET
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import RESTART_GAP, RID, RID_OFFSET
from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage, DamageKind
from qstore.store.journal.directory import data_path
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import LinearFile
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import Entry, JournalRecovery, Unfounded
from qstore.store.journal.ring.files import RingFile

_SEVERAL: Final = 2  # a single one may be a damaged dequeue


def contradictions(journal: Journal, recovery: JournalRecovery, end: JournalEnd | None) -> list[Damage]:
    """The contradictions in a journal that was walked up to `end`."""
    duplicates, count = recovery.open_duplicates()
    duplicates = recovery.messages.duplicates + duplicates
    count += recovery.messages.duplicate_count
    return [
        *_duplicates(journal, duplicates, count),
        *_lost_files(journal, recovery),
        *_lost_flushes(journal, end),
        *_unfounded(journal, recovery, end, has_duplicates=count > 0),
    ]


def _duplicates(journal: Journal, duplicates: Sequence[Entry], count: int) -> Iterator[Damage]:
    for duplicate in duplicates:
        file, offset = journal.stream.locate(duplicate.place)
        yield Damage(file.path, offset, duplicate.rid, DamageKind.RID_TWICE)
    more = count - len(duplicates)
    if more:
        yield Damage(journal.path, None, None, DamageKind.MORE_RIDS_TWICE, records=more)


def _lost_files(journal: Journal, recovery: JournalRecovery) -> Iterator[Damage]:
    """Files missing in a line, if later records dequeue messages that must have been in them.

    A number alone may be missing though no file is (formats/qls/README.md, 4).
    """
    line: list[LinearFile] = [file for file in journal.files.files if isinstance(file, LinearFile)]
    for earlier, later in pairwise(line):
        missing = later.gap_before()
        if missing is None or recovery.damage:
            continue
        within = range(earlier.first_rid, later.first_rid)
        if sum(each.kind is Kind.DEQUEUE and each.dequeued_rid in within for each in recovery.unfounded) >= _SEVERAL:
            yield missing


def _lost_flushes(journal: Journal, end: JournalEnd | None) -> Iterator[Damage]:
    """Version 2: a file that was entered by a later flush than one that can follow the journal's last record.

    A torn flush may have entered it: the one after the last record's, or the first after a restart, with a much higher
    number.
    """
    if end is None or journal.format is not JournalFormat.VERSION_2:
        return
    headers = [(file.path, file.header) for file in journal.files.files if isinstance(file, RingFile)]
    for path, header in headers:
        if header is not None and end.flush + 1 < header.first_flush < end.flush + RESTART_GAP:
            kind, recorded, last = DamageKind.FLUSHES_LOST, header.first_flush, end.flush
            yield Damage(path, FIRST_FLUSH_OFFSET, None, kind, recorded=recorded, last=last)
            return


def _unfounded(
    journal: Journal, recovery: JournalRecovery, end: JournalEnd | None, *, has_duplicates: bool
) -> Iterator[Damage]:
    last_place = -1 if end is None else end.place - BLOCK_SIZE
    # These records may refer to something that other damage removed, or that recovery ignores.
    whole = not (recovery.damage or journal.damage or recovery.transients or has_duplicates)
    all_there = whole and journal.holds_everything
    lost = _lost_beginning(journal, recovery.unfounded) if all_there else None
    if lost is not None:
        all_there = False
        yield lost
    recorded = 0
    for record in (*recovery.unfounded, *recovery.open_without_target()):
        is_contradiction = all_there or (whole and record.again) or _is_impossible(record)
        if not is_contradiction or (record.place == last_place and not record.xid):
            continue
        recorded += 1
        yield _contradiction(journal, record)
    more = recovery.unfounded_count - len(recovery.unfounded)
    if more and all_there and recorded:
        yield Damage(journal.path, None, None, DamageKind.MORE_UNFOUNDED, records=more)


def _is_impossible(record: Unfounded) -> bool:
    return record.kind is Kind.DEQUEUE and not record.xid and record.dequeued_rid >= record.rid


def _lost_beginning(journal: Journal, unfounded: Sequence[Unfounded]) -> Damage | None:
    """A ring whose last files seem never written, though several dequeued messages were older than all its records.

    So it had wrapped, and the files that are all zeros now held its oldest records.
    """
    files = journal.files
    first = files.files[0].first_record(files.geometry)
    if journal.format is JournalFormat.LINEAR or first is None:
        return None
    (first_rid,) = RID.unpack(journal.stream.read(first + RID_OFFSET, RID.size))
    older = sum(record.kind is Kind.DEQUEUE and record.dequeued_rid < first_rid for record in unfounded)
    if older < _SEVERAL:
        return None
    path = data_path(journal.path, journal.base_name, len(files.files))
    return Damage(path, 0, None, DamageKind.BEGINNING_LOST, messages=older)


def _contradiction(journal: Journal, record: Unfounded) -> Damage:
    """The damage of a record that refers to something missing."""
    file, offset = journal.stream.locate(record.place)
    if record.kind is Kind.DEQUEUE:
        kind = DamageKind.DEQUEUED_TWICE if record.again else DamageKind.DEQUEUED_NOT_THERE
        return Damage(file.path, offset, record.rid, kind, target=record.dequeued_rid)
    name, xid = record.kind.label, record.xid.hex()
    return Damage(file.path, offset, record.rid, DamageKind.TRANSACTION_NOT_OPEN, record=name, xid=xid)
