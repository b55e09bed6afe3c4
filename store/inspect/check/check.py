"""One check of one store: recovery, and everything that it skips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from qstore.store.damage import Damage
from qstore.store.disk import Disk
from qstore.store.inspect.check.file_times import times_out_of_order
from qstore.store.inspect.check.messages import false_transients, message_damage
from qstore.store.inspect.check.pools import check_pools
from qstore.store.inspect.check.second_pass import second_pass
from qstore.store.inspect.layout import StoreKind
from qstore.store.inspect.measure import Measurement, measure
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore, RecoveredTransaction
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import Outcome

QUEUE, PREPARED_LIST, ORPHAN = "queue", "prepared-list", "orphan"


class JournalCheck(NamedTuple):
    """One journal, checked.

    Attributes:
        role: a queue's, the transaction prepared list, or an orphan.
        queue: the recovered queue.
        journal: the journal; None for a queue that has lost its own.
        measurement: its content and how full it is; None if it could not be read.
        open_transactions: number of transactions that it leaves open.
        damage: number of damages in its files.
    """

    role: str
    queue: RecoveredQueue
    journal: Journal | None
    measurement: Measurement | None
    open_transactions: int
    damage: int

    @property
    def records(self) -> int:
        """Number of records read: enqueues, dequeues, commits and aborts."""
        recovery = self.queue.recovery
        if recovery is None:
            return 0
        return recovery.enqueues + recovery.dequeues + recovery.commits + recovery.aborts


class StoreCheck(NamedTuple):
    """A store, checked.

    Attributes:
        store: the store.
        journals: its journals: the prepared list, the queues', orphans.
        transactions: the open ones.
        damage: everything that a crash does not explain.
        notices: one line each: normal results of a crash, and information for the user.
    """

    store: OfflineStore
    journals: list[JournalCheck]
    transactions: list[RecoveredTransaction]
    damage: list[Damage]
    notices: list[str]

    @property
    def records(self) -> int:
        """Number of records read in all journals."""
        return sum(journal.records for journal in self.journals)


def check_store(
    disk: Disk,
    store: OfflineStore,
    *,
    paranoid: bool = False,
    stage: Callable[[str, int], None] = lambda _what, _bytes: None,
) -> StoreCheck:
    """Verify everything in a store.

    Args:
        disk: reads it.
        store: an opened store; it is recovered here.
        paranoid: read every journal a second time, with different code, decode each outstanding message's header, and
            restore its content if that is compressed.
        stage: called with the name of each stage, and the number of bytes that it will read.
    """
    stage("checking journals", store.size)
    recovered = store.recover()
    damage, notices = store.damage, store.notices
    with_roles = _with_roles(recovered)
    if paranoid:
        stage("second pass", store.size)
    outcomes = {transaction.xid: transaction.outcome for transaction in recovered.transactions}
    for role, queue in with_roles:
        if queue.journal is not None:
            header_damage, header_notices = times_out_of_order(queue.journal)
            damage.extend(header_damage)
            notices.extend(header_notices)
            damage.extend(_beyond_recovery(role, queue, outcomes, paranoid=paranoid))
    if store.pool is not None and store.layout.kind is StoreKind.LINEAR:
        pool_damage, pool_notices = check_pools(disk, store.pool, store.all_journals())
        damage.extend(pool_damage)
        notices.extend(pool_notices)
    found_in = _count_by_journal(damage, with_roles)
    journals = [_checked(role, queue, found_in) for role, queue in with_roles]
    for _, queue in with_roles:
        if queue.journal is not None:
            queue.journal.close()
    return StoreCheck(store, journals, recovered.transactions, damage, notices)


def _with_roles(recovered: RecoveredStore) -> list[tuple[str, RecoveredQueue]]:
    prepared = [] if recovered.prepared_list is None else [(PREPARED_LIST, recovered.prepared_list)]
    return [
        *prepared,
        *((QUEUE, queue) for queue in recovered.queues),
        *((ORPHAN, queue) for queue in recovered.orphans),
    ]


def _beyond_recovery(
    role: str, queue: RecoveredQueue, outcomes: Mapping[bytes, Outcome], *, paranoid: bool
) -> list[Damage]:
    """The damage in one journal's outstanding messages, and of a second pass."""
    assert queue.journal is not None
    found = list(false_transients(queue, is_prepared_list=role == PREPARED_LIST))
    if role != PREPARED_LIST and (paranoid or queue.journal.format is JournalFormat.VERSION_1):
        found.extend(message_damage(queue, decode=paranoid))
    if paranoid:
        found.extend(second_pass(queue, None if role == PREPARED_LIST else outcomes))
    return found


def _count_by_journal(damage: list[Damage], with_roles: list[tuple[str, RecoveredQueue]]) -> Counter[str]:
    """The number of damages that name a journal's directory, or one of its files."""
    owner: dict[str, str] = {}
    for _, queue in with_roles:
        if queue.journal is not None:
            owner[queue.journal.path] = queue.journal.path
            owner.update((file.path, queue.journal.path) for file in queue.journal.files.files)
    counts: Counter[str] = Counter()
    for entry in damage:
        above = entry.file.rpartition("/")[0]
        counts[owner.get(entry.file) or owner.get(above, "")] += 1
    return counts


def _checked(role: str, queue: RecoveredQueue, found_in: Counter[str]) -> JournalCheck:
    journal, recovery = queue.journal, queue.recovery
    if journal is None or recovery is None:
        return JournalCheck(role, queue, None, None, 0, 0)
    is_list = role == PREPARED_LIST
    still_open = len(recovery.transactions) if is_list else len(recovery.left_open)
    try:
        measurement: Measurement | None = measure(journal, recovery, queue.end, is_prepared_list=is_list)
    except OSError:
        measurement = None  # a file can no longer be opened, which the first pass has reported
    return JournalCheck(role, queue, journal, measurement, still_open, found_in[journal.path])
