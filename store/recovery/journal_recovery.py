"""Recovers one journal: shared by a start, the tools that read a store, and a resize.

    open     `recover_directory`; callers with an open journal begin with the walk
    walk     over all records, into an enqueue map and a transaction map (`journal.recovery`)
    check    damage met by the walk, contradictions, and differences from the last clean close (`damage_of`)

Nothing is resolved yet: the outcome of open transactions depends on the transaction prepared list, which is recovered
first (`RecoveredJournal.prepared`), and on the caller. Nothing here writes.

The ends of a journal. At its end there may be a torn record or flush. If nothing was ever written after the end, bytes
that are not a record may be left by a torn write, or by a damaged record: there is no way to distinguish them. But a
version-2 store that was closed cleanly ends each journal with a seal. A linearstore journal gives the files at its head
back as soon as no message in them is needed: it removes the link, and then the file. A file without a link, but with
outstanding messages, has lost its link.

Contradictions. A dequeue of a missing message, and the end of a transaction that is not open, are normal if the
journal's beginning is missing: a ring overwrites it, a line gives it back. If everything ever written still exists,
they are not; and in no case can a message be dequeued by an older record, since record ids are from one counter, or
twice. A plain dequeue has no tail and no checksum outside of version 2: the very last record may be a torn one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import FIRST_FLUSH_OFFSET
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import RESTART_GAP, RID, RID_OFFSET
from qstore.formats.rhm.records import Kind
from qstore.formats.wording import plural, printable
from qstore.formats.zeros import is_zero
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.journal.directory import data_path, open_journal
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import Line, LinearFile
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.records import RecordSink
from qstore.store.journal.recovery import Entry, JournalRecovery, Unfounded
from qstore.store.journal.ring.files import Ring, RingFile
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.index import JournalIndex
from qstore.store.recovery.prepared import PreparedTransaction, prepared_in

# ---- progress ----

#: Receives a function that makes the text, such as "reading ...".
ReportProgress: TypeAlias = Callable[[Callable[[], str]], None]


def no_report(_make_text: Callable[[], str]) -> None:
    """Report no progress."""


class StartProgress:
    """The progress of a start that reads journals, for the log and the service manager.

    A start of millions of messages takes seconds to minutes. The broker passes a function that decides how often the
    progress is reported, and makes the text only then.

    Args:
        report: reports the progress.

    Attributes:
        journals: number of journals.
    """

    __slots__ = ("_found", "_number", "_report", "journals")

    def __init__(self, report: ReportProgress = no_report) -> None:
        self._report = report
        self.journals = self._number = self._found = 0

    def begin(self) -> None:
        """The next journal is being opened."""
        self._number += 1
        self._report(lambda: f"opening journal {self._number:,} of {self.journals:,}")

    def walked(self, name: str, place: int, size: int, recovery: JournalRecovery) -> None:
        """A journal of `size` bytes is read up to the log offset `place`."""

        def text() -> str:
            found, percent = self._found + len(recovery.messages), 100 * place // max(1, size)
            which = f'{self._number:,} of {self.journals:,}, "{printable(name)}"'
            return f"reading journal {which}: {percent} %; {plural(found, 'message')} so far"

        self._report(text)

    def ended(self, recovery: JournalRecovery) -> None:
        """A journal is read."""
        self._found += len(recovery.messages)

    def preparing(self, number: int, count: int, name: str) -> None:
        """A journal is being made ready for new records."""
        self._report(lambda: f'preparing journal {number:,} of {count:,}, "{printable(name)}"')

    def converting(self, number: int, count: int, name: str) -> None:
        """A queue of a version-1 store is being converted."""
        self._report(lambda: f'converting queue {number:,} of {count:,}, "{printable(name)}"')

    def rebuilding(self, path: str) -> None:
        """A damaged journal is being rebuilt."""
        self._report(lambda: f"rebuilding {printable(path)}")


# ---- recovery ----


class RecoveredJournal(NamedTuple):
    """A journal that was read from end to end.

    Attributes:
        journal: the journal, open for reading.
        recovery: the result of the walk; nothing of it is resolved.
        end: where the walk ended; None if it has no readable record.
        damage: everything that is wrong with it.
        notices: one line each from reading it, for the user, about things that are not damage.
        end_notices: the same, about its end.
    """

    journal: Journal
    recovery: JournalRecovery
    end: JournalEnd | None
    damage: list[Damage]
    notices: list[str]
    end_notices: list[str]

    @property
    def messages(self) -> int:
        """Messages in it, those that open transactions enqueue included. Use it before it is resolved."""
        return messages_in(self.recovery)

    @property
    def flush(self) -> int:
        """Number of its last flush; 0 if nothing was ever written, or nothing is readable."""
        return 0 if self.end is None else self.end.flush

    def prepared(self) -> list[PreparedTransaction]:
        """Of the prepared list: its open transactions, and their outcomes. Raises OSError."""
        return prepared_in(self.journal, self.recovery)


def recover_directory(
    disk: Disk,
    path: str,
    name: str,
    closing: Closing,
    progress: StartProgress | None = None,
    names: Sequence[str] | None = None,
    index: JournalIndex | None = None,
) -> RecoveredJournal:
    """Open and recover the journal in a directory. Its files are closed again if it cannot be read.

    Args:
        disk: reads it.
        path: its directory.
        name: the queue's, or "TplStore".
        closing: the record of its closing.
        progress: reports how far the walk is.
        names: the names in the directory, if they are known.
        index: its index, if there is one: what it describes is not read, unless anything is unusual.

    Raises:
        NotAJournalError: there is no journal.
        OSError: it cannot be read.
    """
    journal = open_journal(disk, path, name, names)
    try:
        if index is not None:
            found = recover_by_index(journal, closing, index, progress)
            if found is not None:
                return found
            journal.close()
            journal = open_journal(disk, path, name, names)
        return recover_journal(journal, closing, progress=progress)
    except BaseException:
        journal.close()
        raise


def recover_journal(
    journal: Journal, closing: Closing, *, if_readable: bool = False, progress: StartProgress | None = None
) -> RecoveredJournal:
    """Recover an open journal.

    Args:
        journal: the journal.
        closing: the record of its closing.
        if_readable: report it as damage, and not as an error, if the system refuses to continue reading.
        progress: reports how far the walk is.

    Raises:
        OSError: it cannot be read.
    """
    recovery = JournalRecovery()
    if if_readable:
        end = walk_readable(journal, recovery)
    elif progress is None:
        end = journal.walk(recovery)
    else:
        size = journal.stream.size
        end = journal.walk(recovery, progress=lambda place: progress.walked(journal.name, place, size, recovery))
        progress.ended(recovery)
    damage = damage_of(journal, recovery, end, closing)
    end_notices: list[str] = []
    if end is not None and end.torn:
        end_notices.append(torn_tail(journal, end))
    if end is not None and not damage:
        end_notices.extend(unexplained_end(journal, end))
    notices = list(journal.notices)
    journal.notices.clear()
    return RecoveredJournal(journal, recovery, end, damage, notices, end_notices)


def recover_by_index(
    journal: Journal, closing: Closing, index: JournalIndex, progress: StartProgress | None = None
) -> RecoveredJournal | None:
    """Recover an open journal from its index and the records after that; None if only a scan tells what is there.

    Then the journal was read in parts: open it again for the scan.

    Raises:
        OSError: it cannot be read.
    """
    messages = index.messages(journal)
    if messages is None:
        return None
    recovery = JournalRecovery(messages)
    begin, place = ((at - messages.base) * BLOCK_SIZE for at in (index.header.begin, index.header.place))
    size = journal.stream.size
    if not 0 <= begin < place <= size:
        return None
    tell = None if progress is None else (lambda at: progress.walked(journal.name, at, size, recovery))
    end = journal.walk_on(index.header.flush, begin, place, index.header.last_rid, recovery, tell)
    if end is None or messages.is_odd or recovery.unfounded_count or any(recovery.open_without_target()):
        return None
    if not messages.are_there() or damage_of(journal, recovery, end, closing):
        return None
    if progress is not None:
        progress.ended(recovery)
    end_notices = [torn_tail(journal, end)] if end.torn else []
    end_notices.extend(unexplained_end(journal, end))
    notices = list(journal.notices)
    journal.notices.clear()
    return RecoveredJournal(journal, recovery, end, [], notices, end_notices)


def walk_readable(journal: Journal, sink: RecordSink, *, every_record: bool = False) -> JournalEnd | None:
    """As `journal.walk`, but if the system refuses to continue reading, that is damage and the end of the journal."""
    try:
        return journal.walk(sink, every_record=every_record)
    except OSError as error:
        if error.filename is None:
            raise
        kind, reason = DamageKind.JOURNAL_BREAKS_OFF, error.strerror
        sink.damaged(Damage(str(error.filename), None, None, kind, reason=reason))
        return None


def messages_in(recovery: JournalRecovery) -> int:
    """Messages that a walk found, those that open transactions enqueue included; nothing of it is resolved."""
    return len(recovery.messages) + sum(each.enqueues for each in recovery.transactions)


def damage_of(journal: Journal, recovery: JournalRecovery, end: JournalEnd | None, closing: Closing) -> list[Damage]:
    """Everything that is wrong with a journal after a walk: the same rule for all readers.

    Args:
        journal: the journal.
        recovery: the result of the walk, its open transactions not yet resolved.
        end: where the walk ended; None if it has no readable record.
        closing: the record of its closing.
    """
    found = [*journal.damage, *recovery.damage, *contradictions(journal, recovery, end)]
    otherwise = list(closing.contradicted(journal, end, messages_in(recovery)))
    if end is not None and not found and not otherwise and closing.is_clean:
        otherwise.extend(missing_seal(journal, end))
    return found + otherwise


# ---- the ends ----


def torn_tail(journal: Journal, end: JournalEnd) -> str:
    """The notice for a journal whose last record or flush was torn by a crash."""
    file, offset = journal.stream.locate(min(end.place, journal.stream.size - 1))
    record = f" of record 0x{end.rid:x}" if end.rid is not None else ""
    if journal.is_single_file and end.rid is not None:
        return f"{file.path}: the record 0x{end.rid:x} at 0x{offset:x} is incomplete in this file; it is omitted"
    return f"{file.path}: torn tail{record} at 0x{offset:x}: {end.what}; recovery cuts it off"


def unexplained_end(journal: Journal, end: JournalEnd) -> Iterator[str]:
    """A notice, if there are bytes after the end of a journal where there should be none."""
    if end.torn or journal.format is JournalFormat.LINEAR or not journal.holds_everything:
        return
    if not is_zero(journal.stream.read(end.place, BLOCK_SIZE)):
        file, offset = journal.stream.locate(end.place)
        yield (
            f"{file.path}: the journal ends at 0x{offset:x}, but data follows that is not a valid record ({end.what}): "
            "the remains of a torn write, or a damaged record, which is lost"
        )


def missing_seal(journal: Journal, end: JournalEnd) -> Iterator[Damage]:
    """Damage, if a version-2 journal of a cleanly closed store, otherwise sound, does not end with a seal."""
    if journal.format is not JournalFormat.VERSION_2 or end.sealed:
        return
    files = journal.files
    if end.place < journal.stream.size:
        file, offset = journal.stream.locate(end.place)
        yield Damage(file.path, offset, end.rid, DamageKind.SEAL_MISSING, problem=end.what)
    else:
        assert isinstance(files, Ring)
        number = files.numbers[(files.place(files.files[-1]) + 1) % len(files.numbers)]
        path = data_path(journal.path, journal.base_name, number)
        yield Damage(path, files.geometry.header_size, None, DamageKind.SEAL_MISSING, problem=end.what)


def unlinked_head(journal: Journal, recovery: JournalRecovery) -> tuple[list[Damage], list[str]]:
    """Damage and notices about files at a line's head without a link; to be called after resolving transactions."""
    damage: list[Damage] = []
    notices: list[str] = []
    line = journal.files
    if not isinstance(line, Line) or not line.unlinked_head:
        return damage, notices
    needed = [place for _, place, _ in recovery.messages.in_place_order()][:1]
    needed += [each.place for transaction in recovery.transactions for each in transaction]
    first_needed = min(needed, default=journal.stream.size) // journal.stream.data_size
    for index, file in enumerate(line.files):
        if file.path not in line.unlinked_head:
            continue
        if index < first_needed:
            notices.append(f"{file.path}: file {file.number} was given back by its journal, but is not in the pool yet")
        else:
            damage.append(Damage(file.path, None, None, DamageKind.FILE_WITHOUT_LINK, Effect.READ_SINCE_NEEDED))
    return damage, notices


# ---- contradictions ----

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
