"""Recovers one journal: shared by a start, the tools that read a store, and a resize.

    open     `recover_directory`; callers with an open journal begin with the walk
    walk     over all records, into an enqueue map and a transaction map (`journal.recovery`)
    check    damage met by the walk, contradictions, and differences from the last clean close (`damage_of`)

Nothing is resolved yet: the outcome of open transactions depends on the transaction prepared list, which is recovered
first (`RecoveredJournal.prepared`), and on the caller. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.records import RecordSink
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.contradictions import contradictions
from qstore.store.recovery.ends import missing_seal, torn_tail, unexplained_end
from qstore.store.recovery.prepared import PreparedTransaction, prepared_in
from qstore.store.recovery.progress import StartProgress


@dataclass(frozen=True, slots=True)
class RecoveredJournal:
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
    disk: Disk, path: str, name: str, closing: Closing, progress: StartProgress | None = None
) -> RecoveredJournal:
    """Open and recover the journal in a directory. Its files are closed again if it cannot be read.

    Args:
        disk: reads it.
        path: its directory.
        name: the queue's, or "TplStore".
        closing: how the store was closed.
        progress: is told how far the walk is.

    Raises:
        NotAJournalError: there is no journal.
        OSError: it cannot be read.
    """
    journal = open_journal(disk, path, name)
    try:
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
        closing: how the store was closed.
        if_readable: report it as damage, and not as an error, if the system refuses to continue reading.
        progress: is told how far the walk is.

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
        closing: how the store was closed.
    """
    found = [*journal.damage, *recovery.damage, *contradictions(journal, recovery, end)]
    otherwise = list(closing.contradicted(journal, end, messages_in(recovery)))
    if end is not None and not found and not otherwise and closing.is_clean:
        otherwise.extend(missing_seal(journal, end))
    return found + otherwise
