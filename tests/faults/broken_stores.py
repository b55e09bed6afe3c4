"""Stores that are broken on purpose, each in one place, to show that the crash matrix finds it.

Each is a context in which the store's code is changed: what a plausible slip would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.close_record import ClosedJournal
from qstore.formats.rhm.jinf import JournalInfo
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.commit import Flusher
from qstore.store.live.journal_stock import JournalStock
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.topology_changes import Changes
from qstore.store.live.transactions import (
    CommitGroup,
    Dequeue,
    Enqueue,
    LargeTransaction,
    Transactions,
    admit,
    append,
    collect,
)
from qstore.store.recovery.close_record import closed_journal
from tests.faults.simulated_disk import SimulatedDisk


def _make_journals(self: JournalStock, *arguments: Any) -> list[tuple[str, JournalInfo]]:
    """The names of the journals' directories are not synced."""
    sync = SimulatedDisk.sync_directory

    def not_theirs(disk: SimulatedDisk, path: str) -> None:
        if not path.endswith("/jrnl"):
            sync(disk, path)

    with patch.object(SimulatedDisk, "sync_directory", not_theirs):
        return _sound_make_journals(self, *arguments)


_sound_make_journals = JournalStock._make


def _delete_queue(self: Changes, journal: QueueJournal, done: Callable[[None, Exception | None], None]) -> None:
    """The journal is removed before the catalogue says so."""
    delete = self._catalogue.delete_queue

    def removed_first(number: int) -> None:
        if number == journal.queue_id:
            remove_journal(self._environment.disk, journal.directory)
            self._environment.disk.make_directory(journal.directory)
        delete(number)

    self._catalogue = _Instead(self._catalogue, delete_queue=removed_first)  # type: ignore[assignment]
    _sound_delete_queue(self, journal, done)


_sound_delete_queue = Changes.delete_queue


class _Instead:
    """Something with some of its methods replaced."""

    def __init__(self, sound: object, **methods: Callable[..., object]) -> None:
        self.__dict__.update(methods)
        self._sound = sound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)


def _when_synced(self: Flusher, journals: Iterable[QueueJournal], done: Done, *, is_urgent: bool = True) -> None:
    """Waiters for the disk are called before it is done."""
    self._due.append((done, None))


def _commit_without_list(
    self: Transactions, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done
) -> list[int]:
    """The commits follow the records in each journal, whether those of the others are on the disk or not."""
    xid, journals, rids = _appended(self, enqueues, dequeues)
    self._outcomes(xid, journals, commits=True)
    self._flusher.when_synced(journals, done)
    return rids


def _appended(
    self: Transactions, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]
) -> tuple[bytes, list[QueueJournal], list[int]]:
    """A transaction's records are in the journals. Its xid, the journals, and the messages' ids."""
    xid = b"%24d" % self._appender.take_id()
    count, ids = self._take_ids(enqueues, dequeues)
    parts = collect(enqueues, dequeues, ids)
    admit(self._appender, xid, parts)
    append(self._appender, xid, parts)
    return xid, list(parts), ids[:count]


def _commit_listed_first(
    self: Transactions, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done
) -> list[int]:
    """The prepared list has the transaction, and says that it commits, before its records are on the disk."""
    xid, journals, rids = _appended(self, enqueues, dequeues)
    self._written(xid, None, journals, done, None)
    return rids


def _listed_after_commits(
    self: Transactions,
    xid: bytes,
    branch: object,
    journals: list[QueueJournal],
    done: Done,
    error: Exception | None,
    *,
    count: int = 1,
) -> None:
    """The prepared list has a local transaction only when the commits are in the journals."""
    if branch is not None or error is not None:
        _sound_written(self, xid, branch, journals, done, error, count=count)  # type: ignore[arg-type]
        return
    self._outcomes(xid, journals, commits=True)

    def ended(_: Exception | None) -> None:
        rid, kind, prepared = self._appender.take_id(), b"\0", self._list
        enqueue = partial(prepared.writer.enqueue_in, xid, rid, (kind,), len(kind), extend_crc32c(0, kind))
        self._appender.with_room(prepared, enqueue)
        self._forget(xid, commits=True)
        self._flusher.when_synced((prepared,), done)
        self._flusher.start()

    self._flusher.when_synced(journals, ended)
    self._flusher.start()


_sound_written = Transactions._written


def _forgotten_too_early(
    self: Transactions,
    xid: bytes,
    journals: list[QueueJournal],
    branch: object,
    then: Callable[[], None],
    *,
    commits: bool,
) -> None:
    """The prepared list forgets a transaction before the journals have its outcome on the disk."""
    self._forget(xid, commits=commits)
    self._branches.pop(xid, None)
    self._flusher.start()
    self._outcomes(xid, journals, commits=commits)
    self._flusher.start()
    then()


def _committed_before_others(self: Transactions, large: LargeTransaction, done: Done) -> None:
    """A large transaction is committed in each of its journals apart."""
    journals = list(large.journals)
    if large.branch is None:
        self._outcomes(large.xid, journals, commits=True)
        self._flusher.when_synced(journals, done)
    else:
        _sound_end_large(self, large, done)


_sound_end_large = Transactions.end_large


def _removed_by_the_portion(
    self: Transactions, large: LargeTransaction, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]
) -> list[int]:
    """What a large transaction dequeues is dequeued at once."""
    rids = _sound_append_portion(self, large, enqueues, ())
    for journal, rid in dequeues:
        self._appender.dequeue(journal, rid)
    return rids


_sound_append_portion = Transactions.append_portion


def _not_undone(self: Transactions, large: LargeTransaction, done: Callable[[], None]) -> None:
    """A large transaction that is given up is committed."""
    self._outcomes(large.xid, list(large.journals), commits=True)
    done()


def _not_waited_for(self: Transactions, xid: bytes, branch: object) -> None:
    """The xid of a branch comes again, though the prepared list still says what became of the old one."""
    self._branches.pop(xid, None)


def _one_xid() -> AbstractContextManager[object]:
    """All branches have the same xid, one after the other."""
    stack = ExitStack()
    stack.enter_context(patch.object(Transactions, "_forget_now", _not_waited_for))
    stack.enter_context(patch("tests.faults.store_simulation.XIDS", (b"branch",)))
    return stack


def _reserve_rids(self: Catalogue, above: int = 0) -> range:
    """Record ids go on from the highest one that is found: nothing is written."""
    taken: dict[object, int] = self._taken  # type: ignore[assignment]
    start = taken.get("rids", above + 1)
    taken["rids"] = start + 64
    return range(start, start + 64)


def _mark_only_clean(self: StoreDirectory, store_id: Any, *, clean: bool, close_record: bool = False) -> None:
    """The mark of a clean close is never taken away."""
    if clean or not self._disk.is_file(self.part("STORE")):
        _sound_mark(self, store_id, clean=clean, close_record=close_record)


_sound_mark = StoreDirectory.mark


def _closed_with_highest_flush(journal: QueueJournal) -> ClosedJournal:
    """A clean close records the highest flush number that is known, though a torn flush left only its file header."""
    return closed_journal(journal)._replace(flush=journal.writer.synced)


BROKEN: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "directory not synced": partial(patch.object, JournalStock, "_make", _make_journals),
    "journal removed before its queue": partial(patch.object, Changes, "delete_queue", _delete_queue),
    "completion before sync": partial(patch.object, Flusher, "when_synced", _when_synced),
    "commit before the records of others": partial(patch.object, Transactions, "commit", _commit_without_list),
    "list before the records": partial(patch.object, Transactions, "commit", _commit_listed_first),
    "list after the commits": partial(patch.object, Transactions, "_written", _listed_after_commits),
    "a group that stays open": partial(patch.object, CommitGroup, "is_open", property(lambda _: True)),
    "forgotten before the outcomes": partial(patch.object, Transactions, "_end", _forgotten_too_early),
    "xid again before it is forgotten": _one_xid,
    "record ids not reserved": partial(patch.object, Catalogue, "reserve_rids", _reserve_rids),
    "highest flush recorded": partial(
        patch, "qstore.store.live.message_store.closed_journal", _closed_with_highest_flush
    ),
    "clean mark not taken away": partial(patch.object, StoreDirectory, "mark", _mark_only_clean),
}
"""Name -> the context in which a store is broken so."""

BROKEN_LARGE: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "commits apart": partial(patch.object, Transactions, "end_large", _committed_before_others),
    "dequeued by the portion": partial(patch.object, Transactions, "append_portion", _removed_by_the_portion),
    "given up and committed": partial(patch.object, Transactions, "abort_large", _not_undone),
}
"""Likewise, where large transactions are written."""
