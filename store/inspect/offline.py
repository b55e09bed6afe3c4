"""A store that is not running, read as recovery would read it, and never written to.

The order is qpidd's own (formats/broker_records/README.md, 4.6): the prepared list first, then each queue's journal,
resolved through it. Bodies stay on disk; only the index of each journal and the topology are kept in memory.

A queue in the catalogue has its journal; a journal without an entry in the catalogue is an orphan. If the catalogue is
lost or may be incomplete, each journal counts as a queue, named by its info file.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import Queue, decode_queue
from qstore.formats.wording import plural
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.inspect.in_use import in_use_notice
from qstore.store.inspect.layout import StoreKind, StoreLayout, UnusableInputError, find_layout
from qstore.store.inspect.opening import open_journals
from qstore.store.inspect.surroundings import read_surroundings
from qstore.store.journal.directory import PUSHED_DOWN, NotAJournalError
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.records import RecordSink
from qstore.store.journal.recovery import LIVE, JournalRecovery, Outcome, OutstandingRecord
from qstore.store.journal.write.storage import is_withdrawn
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_journal, unlinked_head, walk_readable
from qstore.store.recovery.prepared import PreparedTransaction
from qstore.store.unfinished import Unfinished, unfinished_journals


class RecoveredQueue(NamedTuple):
    """A queue and the content that recovery keeps of its journal.

    Attributes:
        name: the queue's name.
        record: its record; None if no catalogue has it.
        journal: its journal; None if it has none.
        recovery: the recovered index of the journal; None without a journal.
        end: where the journal ends; None if nothing was ever written.
    """

    name: str
    record: Queue | None
    journal: Journal | None
    recovery: JournalRecovery | None
    end: JournalEnd | None

    @property
    def deliverable(self) -> int:
        """Number of messages to be offered to consumers; those in doubt do not count."""
        return 0 if self.recovery is None else self.recovery.messages.count(LIVE)

    def outstanding(self) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the queue's order."""
        if self.recovery is None or self.journal is None:
            return iter(())
        return self.recovery.outstanding(self.journal.format)


class RecoveredTransaction(NamedTuple):
    """A transaction that was open when the store was last in use.

    Attributes:
        xid: its id.
        outcome: how recovery resolves it.
        two_phase: distributed or local, according to the prepared list; None if unknown.
        enqueues, dequeues: its undecided records in the queues' journals; None if no journal was read.
        resolved_from: its outcome before a manual decision; None without one.
        user: the user that started it; empty if unknown.
    """

    xid: bytes
    outcome: Outcome
    two_phase: bool | None
    enqueues: int | None
    dequeues: int | None
    resolved_from: Outcome | None = None
    user: str = ""


class Decisions(NamedTuple):
    """Manual decisions about transactions that recovery itself leaves undecided.

    Attributes:
        outcomes: of single transactions, in doubt or never prepared: COMMITTING or ABORTING.
        in_doubt: of all others that are in doubt.
    """

    outcomes: Mapping[bytes, Outcome] = {}
    in_doubt: Outcome = Outcome.IN_DOUBT


_NO_DECISIONS: Final = Decisions()


class _OpenTransactions:
    """The open transactions of a whole store, and their outcomes.

    Args:
        prepared: those in the prepared list.
        decisions: manual decisions about undecided ones.
    """

    def __init__(self, prepared: list[PreparedTransaction], decisions: Decisions) -> None:
        self._found = {transaction.xid: transaction.outcome for transaction in prepared}
        self._two_phase = {transaction.xid: transaction.two_phase for transaction in prepared}
        self._users = {transaction.xid: transaction.user for transaction in prepared}
        self._order: dict[bytes, Outcome] = {}
        self._outcomes = dict(decisions.outcomes)
        for xid, outcome in self._found.items():
            decided = decisions.outcomes.get(xid, decisions.in_doubt)
            self._outcomes[xid] = self._order[xid] = decided if outcome is Outcome.IN_DOUBT else outcome
        self._enqueues: Counter[bytes] = Counter()
        self._dequeues: Counter[bytes] = Counter()

    def resolve(self, recovery: JournalRecovery) -> None:
        """Apply the outcomes to one journal's open transactions."""
        for transaction in recovery.resolve(self._outcomes):
            self._order.setdefault(transaction.xid, transaction.outcome)
            self._enqueues[transaction.xid] += transaction.enqueues
            self._dequeues[transaction.xid] += transaction.dequeues

    def all(self, *, counted: bool) -> list[RecoveredTransaction]:
        """The transactions; `counted`: whether any queue's journal was read."""
        return [
            RecoveredTransaction(
                xid,
                outcome,
                self._two_phase.get(xid),
                self._enqueues[xid] if counted else None,
                self._dequeues[xid] if counted else None,
                found if (found := self._found.get(xid, Outcome.UNPREPARED)) is not outcome else None,
                self._users.get(xid, ""),
            )
            for xid, outcome in self._order.items()
        ]


def _nobody(_layout: StoreLayout) -> None:
    """Never find a holder."""


class OfflineStore:
    """A store, a journal or a journal file, opened for reading.

    Attributes:
        layout: what was found at the path.
        topology: queues, exchanges and so on; None if only a journal was given, or the catalogue is lost.
        prepared_list: the transaction prepared list's journal; None if there is none.
        journals: the queues' journals.
        kept_aside: version 2: journals that no queue has, which a start of the broker has moved aside.
        rid_high_water: version 2: the first record id that the catalogue has not reserved; None if unknown.
        closing: version 2: how the store was closed.
        holder: the process that has the store open; None if none is known.
        pool: the files of a linearstore's partitions; None for the other stores.
        damage: the damage found so far.
        orphaned: the part of it about orphans, which recovery omits.
        notices: one line each for the user, about things that are not damage.
    """

    def __init__(self, disk: Disk, layout: StoreLayout, holder: int | None = None) -> None:
        self._disk, self.layout = disk, layout
        self.damage: list[Damage] = list(layout.damage)
        self.notices: list[str] = list(layout.notices)
        self.holder = holder
        if holder is not None:
            self.notices.append(in_use_notice(layout, holder))
        surroundings = read_surroundings(disk, layout, is_open=holder is not None)
        self.topology = surroundings.topology
        self.rid_high_water = surroundings.rid_high_water
        self.closing = surroundings.closing
        self.damage.extend(surroundings.damage)
        self.notices.extend(surroundings.notices)
        opened = open_journals(disk, layout)
        self.prepared_list = opened.prepared_list
        self.journals = opened.journals
        self.pool = opened.pool
        self.damage.extend(opened.damage)
        self.notices.extend(opened.notices)
        self._misses_prepared_list = self.closing.has_prepared_list and layout.prepared_list is None
        self.kept_aside = opened.orphans
        self._quarantine = opened.quarantine
        self._orphans: list[Journal] = []
        self.orphaned: list[Damage] = []

    def close(self) -> None:
        """Close all files."""
        for journal in (*self.all_journals(), *self.kept_aside, *self._quarantine):
            journal.close()

    def all_journals(self) -> list[Journal]:
        """The prepared list, if there is one, then the queues' journals."""
        return [*([self.prepared_list] if self.prepared_list is not None else []), *self.journals]

    def named_journals(self) -> list[Journal]:
        """The journals at the given path; for a single journal without the prepared list of its store."""
        if self.layout.kind in (StoreKind.JOURNAL, StoreKind.FILE) and self.journals:
            return self.journals
        return self.all_journals()

    def queue_names(self) -> set[str]:
        """The names of all queues, from the catalogue or a journal; and that of the prepared list."""
        names = {journal.name for journal in self.all_journals()}
        if self.topology is not None:
            names.update(queue.record.name for queue in self.topology.queues.values())
        return names

    @property
    def closed_cleanly(self) -> bool:
        """Version 2: whether the STORE file states a clean close."""
        return self.closing.is_clean

    @property
    def size(self) -> int:
        """Bytes in the used files of the journals."""
        return sum(journal.stream.size for journal in self.all_journals())

    def queues(self) -> list[tuple[str, Queue | None, Journal | None]]:
        """Each queue's name, record and journal, as recovery would match them, without walking the journals."""
        return list(self._match())

    def unfinished(self) -> dict[str, Unfinished]:
        """The journals, by path, left from interrupted work on the store: their content is not needed."""
        if self.layout.kind is not StoreKind.VERSION_2:
            return {}
        topology = self.topology
        if topology is None or not topology.complete or topology.damage:
            return unfinished_journals(self.journals, None)
        known = {str(queue.journal_id) for queue in topology.queues.values()}
        used = {each.path for each in self.journals if self._journal_key(each) in known}
        return unfinished_journals(self.journals, used)

    # ---- recovery ----

    def recover(self, decisions: Decisions = _NO_DECISIONS) -> RecoveredStore:
        """Walk every journal, resolve open transactions, and match queues and journals."""
        prepared_list, prepared = self._recover_prepared_list()
        open_now = _OpenTransactions(prepared, decisions)
        queues = []
        for name, record, journal in self._match():
            if journal is None:
                queues.append(RecoveredQueue(name, record, None, None, None))
                continue
            found = self._recover_journal(journal, open_now)
            queues.append(RecoveredQueue(name, record, journal, found.recovery, found.end))
        if self.topology is not None and self.topology.complete and not self.topology.damage:
            catalogue = self.layout.catalogue or self.layout.path
            self.damage.extend(self.closing.lost_queues(catalogue, self.topology.queues.keys()))
        self.notices.extend(self._unfinished_journal(*each) for each in self.unfinished().items())
        orphans = [self._recover_orphan(each, open_now) for each in (*self._orphans, *self.kept_aside)]
        for journal in self._quarantine:
            self.notices.append(self._quarantined(journal))
        self.damage.extend(self._reserved_too_few(prepared_list, queues, orphans))
        transactions = open_now.all(counted=bool(self.journals))
        commits = sum(queue.recovery.commits for queue in queues if queue.recovery is not None)
        whole = self.layout.kind in (StoreKind.LEGACY, StoreKind.LINEAR, StoreKind.VERSION_2, StoreKind.LOOSE)
        if self._has_no_prepared_list() and whole and (commits or self._should_have_prepared_list(transactions)):
            self.damage.append(Damage(self.layout.path, None, None, DamageKind.PREPARED_LIST_NEEDED))
        elif commits and self._is_blank_legacy_list(prepared_list):
            path = self.layout.path if self.prepared_list is None else self.prepared_list.path
            self.damage.append(Damage(path, None, None, DamageKind.PREPARED_LIST_BLANK))
        elif self._misses_prepared_list:
            self.damage.append(Damage(self.layout.path, None, None, DamageKind.PREPARED_LIST_GONE))
        elif self.prepared_list is None and transactions:
            self.notices.append(
                f"{self.layout.path}: {plural(len(transactions), 'open transaction')} and no transaction prepared list "
                "was found; they are treated as never prepared"
            )
        return RecoveredStore(self, queues, transactions, prepared_list, orphans)

    def _reserved_too_few(
        self, prepared_list: RecoveredQueue | None, queues: list[RecoveredQueue], orphans: list[RecoveredQueue]
    ) -> Iterator[Damage]:
        """Version 2: record ids come from blocks reserved in the catalogue, so none can be beyond them."""
        reserved = self.rid_high_water
        if reserved is None or (self.topology is not None and self.topology.damage):
            return  # a damaged catalogue may have lost the reservation too
        everything = (*queues, *orphans) if prepared_list is None else (prepared_list, *queues, *orphans)
        highest = max((each.recovery.highest_rid for each in everything if each.recovery is not None), default=0)
        if highest and highest >= reserved:  # 0 is not a valid id: a new store has neither
            path, kind = self.layout.catalogue or "", DamageKind.RIDS_BEYOND_RESERVED
            yield Damage(path, None, highest, kind, highest=highest, reserved=reserved)

    def _has_no_prepared_list(self) -> bool:
        """Whether the list is missing. A linearstore's has at least one file, since the last is never given back."""
        journal = self.prepared_list
        if journal is None:
            return True
        return self.layout.kind is StoreKind.LINEAR and not journal.files.files and not journal.damage

    def _is_blank_legacy_list(self, prepared_list: RecoveredQueue | None) -> bool:
        """Whether a legacystore's list is all zeros. qpidd writes to it when it first commits a transaction.

        One that qpid-store-resize rebuilt, leaving the old one in `bak`, is blank if it was empty.
        """
        if self.layout.kind is not StoreKind.LEGACY or prepared_list is None or prepared_list.journal is None:
            return False
        if self._disk.is_directory(posixpath.join(prepared_list.journal.path, PUSHED_DOWN)):
            return False
        return prepared_list.end is None and not prepared_list.journal.damage

    def _should_have_prepared_list(self, transactions: list[RecoveredTransaction]) -> bool:
        """Whether there should be a list: version 2 creates it with the store, qpidd when one is first prepared.

        Journals without a store may have had one: their open transactions are not known to be unprepared.
        """
        return self.layout.kind in (StoreKind.VERSION_2, StoreKind.LOOSE) and bool(transactions)

    def _recover_journal(self, journal: Journal, open_now: _OpenTransactions | None) -> RecoveredJournal:
        """Walk a journal and, except for the prepared list itself, resolve its open transactions."""
        recovered = self._read(journal)
        self.damage.extend(recovered.damage)
        self.notices.extend(recovered.end_notices)
        if open_now is not None:
            open_now.resolve(recovered.recovery)
        damage, notices = unlinked_head(journal, recovered.recovery)
        self.damage.extend(damage)
        self.notices.extend(notices)
        return recovered

    def _read(self, journal: Journal) -> RecoveredJournal:
        """Walk a journal without reporting its damage yet."""
        recovered = recover_journal(journal, self.closing, if_readable=True)
        self.notices.extend(recovered.notices)
        return recovered

    def _recover_orphan(self, journal: Journal, open_now: _OpenTransactions) -> RecoveredQueue:
        """An orphan with messages is a loss; an empty one is not, and neither is a journal that was replaced."""
        recovered = self._recover_journal(journal, open_now)
        recovery = recovered.recovery
        count, queue = len(recovery.messages), self._replaced_by(journal)
        if queue is not None:
            text = f'unused second journal of queue "{queue}", with {plural(count, "message")}'
            self.notices.append(f"{journal.path}: {text}; remove it when it is no longer needed")
            recovery = JournalRecovery()
        elif count:
            own = Effect.ORPHAN_KEPT_ASIDE if journal in self.kept_aside else Effect.ORPHAN_NOT_KNOWN
            effect = own if self.layout.kind is StoreKind.VERSION_2 else Effect.ORPHAN_LEFT_OUT
            kind, name = DamageKind.ORPHANED_JOURNAL, journal.name
            damage = Damage(journal.path, None, None, kind, effect, queue=name, messages=count)
            self.orphaned.append(damage)
            self.damage.append(damage)
        elif self.layout.kind is StoreKind.VERSION_2 and recovered.flush and journal not in self.kept_aside:
            # Only a queue in the catalogue gets records, and a deleted one has its mark.
            self.damage.append(Damage(journal.path, None, None, DamageKind.EMPTY_QUEUE_GONE, queue=journal.name))
        else:
            what = f'journal of queue "{journal.name}", which is not in the catalogue'
            self.notices.append(f"{journal.path}: {what}; it is empty and omitted")
        return RecoveredQueue(journal.name, None, journal, recovery, recovered.end)

    def _replaced_by(self, journal: Journal) -> str | None:
        """The queue whose journal this was, or was to be, if it has another one; None if there is none."""
        if self.layout.kind is not StoreKind.VERSION_2 or self.topology is None or journal.info is None:
            return None
        queue, incarnation = self.topology.queues.get(journal.info.queue_id), journal.info.incarnation
        if queue is None:
            return None
        own = [each.info for each in self.journals if posixpath.basename(each.path) == str(queue.journal_id)]
        is_other = any(info is not None and info.incarnation != incarnation for info in own)
        return queue.record.name if is_other else None

    def _unfinished_journal(self, path: str, state: Unfinished) -> str:
        """Describe the remains of interrupted work on a journal; one replaced because of damage is reported as such."""
        if state is Unfinished.REPLACED_JOURNAL:
            (journal,) = [each for each in self.journals if each.path == path]
            if self._read(journal).damage:
                state = Unfinished.REPAIRED_JOURNAL
        return state.notice(path)

    def _quarantined(self, journal: Journal) -> str:
        """A reminder of a quarantined journal: its loss was reported when it was rebuilt."""
        recovery = JournalRecovery()
        self.walk(journal, recovery)
        return (
            f'{journal.path}: quarantined damaged journal of queue "{journal.name}"; '
            f"{plural(len(recovery.messages), 'message')} can be read from it, as from the journal built from it: "
            f"run qstore-recover {journal.path} DEST to see what was lost; remove it when it is no longer needed"
        )

    def walk(self, journal: Journal, sink: RecordSink, *, every_record: bool = False) -> JournalEnd | None:
        """As `walk_readable`; the journal's notices are added to the store's."""
        end = walk_readable(journal, sink, every_record=every_record)
        self.notices.extend(journal.notices)
        journal.notices.clear()
        return end

    def _recover_prepared_list(self) -> tuple[RecoveredQueue | None, list[PreparedTransaction]]:
        journal = self.prepared_list
        if journal is None:
            return None, []
        recovered = self._recover_journal(journal, None)
        queue = RecoveredQueue(journal.name, None, journal, recovered.recovery, recovered.end)
        return queue, recovered.prepared()

    # ---- queues and their journals ----

    def _match(self) -> Iterator[tuple[str, Queue | None, Journal | None]]:
        """Each queue with its journal; unmatched ones on either side are reported."""
        journals: dict[str, Journal] = {}
        unfinished = self.unfinished()
        for journal in self.journals:
            if journal.path in unfinished:
                continue
            first = journals.setdefault(self._journal_key(journal), journal)
            if journal.path.startswith(first.path + "/"):
                self.notices.append(f"{journal.path}: an older copy of the journal above it, left by resizing")
            elif first is not journal:
                self.damage.append(Damage(journal.path, None, None, DamageKind.SECOND_JOURNAL, queue=journal.name))
        topology = self.topology
        if topology is not None:
            for queue in topology.queues.values():
                key = queue.record.name if queue.journal_id is None else str(queue.journal_id)
                own = journals.pop(key, None)
                path = posixpath.join(posixpath.dirname(self.layout.catalogue or ""), "jrnl", key)
                if own is None and self.layout.catalogue is not None and is_withdrawn(self._disk, path):
                    self.notices.append(Unfinished.WITHDRAWN_JOURNAL.notice(path))
                elif own is None and not self._is_out_of_reach(key):
                    kind, name = DamageKind.QUEUE_WITHOUT_JOURNAL, queue.record.name
                    self.damage.append(Damage(self.layout.path, None, None, kind, queue=name))
                yield queue.record.name, queue.record, own
        for journal in journals.values():
            if topology is None or not topology.complete or topology.damage:
                yield journal.name, self.record_in_info(journal), journal
            else:
                self._orphans.append(journal)

    def _is_out_of_reach(self, key: str) -> bool:
        """Whether a queue's journal may be in a directory that cannot be listed, which is already reported."""
        return any(posixpath.basename(damage.file) in (key, "jrnl") for damage in self.layout.damage)

    def _journal_key(self, journal: Journal) -> str:
        if self.layout.kind is StoreKind.VERSION_2 and self.topology is not None:
            return posixpath.basename(journal.path)
        return journal.name

    def record_in_info(self, journal: Journal) -> Queue | None:
        """The queue's record in the info file of a version-2 journal; None if there is none."""
        if journal.info is None or not journal.info.queue_record:
            return None
        try:
            return decode_queue(journal.info.queue_record)
        except BrokerRecordError as error:
            kind = DamageKind.INFO_FILE_QUEUE_RECORD
            self.damage.append(Damage(journal.path, None, None, kind, problem=error.what))
            return None


class RecoveredStore(NamedTuple):
    """The result of recovering a store.

    Attributes:
        store: the store; its `damage` and `notices` are complete now.
        queues: the queues, by id if a catalogue has them.
        transactions: the transactions that were open.
        prepared_list: the transaction prepared list; None if there is none.
        orphans: journals that should be in a catalogue and are not: recovery omits them. Those left from interrupted
            creations and deletions of queues are not among them.
    """

    store: OfflineStore
    queues: list[RecoveredQueue]
    transactions: list[RecoveredTransaction]
    prepared_list: RecoveredQueue | None
    orphans: list[RecoveredQueue]


def open_store(disk: Disk, path: str, find_holder: Callable[[StoreLayout], int | None] = _nobody) -> OfflineStore:
    """Open a store, journal or file at `path`.

    Args:
        disk: reads it.
        path: as given by the user.
        find_holder: finds the process that has a store open, as `in_use.holder_of_store` does.

    Raises:
        UnusableInputError: nothing that can be read as a store.
        OSError: it cannot be read.
    """
    layout = find_layout(disk, path)
    try:
        return OfflineStore(disk, layout, find_holder(layout))
    except NotAJournalError as error:
        raise UnusableInputError(str(error)) from None
