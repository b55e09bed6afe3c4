"""A store that nobody runs, read as recovery would read it, and never written to.

The way is qpidd's own (formats/broker_records/README.md, 4.6): the prepared list first, then each queue's journal,
resolved through it. Bodies stay on disk; what is kept in memory is the index of each journal and the wiring.

A queue that the catalogue names has its journal; a journal that no catalogue names is an orphan. Where the catalogue
is lost or may be incomplete, each journal counts as a queue, named by its info file.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.wiring import Queue, decode_queue
from formats.wording import plural
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.disk import Disk
from store.inspect.in_use import in_use_notice
from store.inspect.layout import StoreKind, StoreLayout, UnusableInputError, find_layout
from store.inspect.opening import open_journals
from store.inspect.surroundings import read_surroundings
from store.journal.directory import PUSHED_DOWN, NotAJournalError
from store.journal.enqueue_map import LIVE
from store.journal.journal import Journal
from store.journal.reader import JournalEnd
from store.journal.records import RecordSink
from store.journal.recovery import JournalRecovery, Outcome, OutstandingRecord
from store.journal.write.storage import is_withdrawn
from store.recovery.ends import unlinked_head
from store.recovery.journal_recovery import RecoveredJournal, recover_journal, walk_readable
from store.recovery.prepared import PreparedTransaction
from store.unfinished import Unfinished, unfinished_journals


class RecoveredQueue(NamedTuple):
    """A queue and what recovery keeps of its journal.

    Attributes:
        name: the queue's name.
        record: its record; None where no catalogue tells it.
        journal: its journal; None if it has none.
        recovery: the index of what the journal leaves behind; None without a journal.
        end: where the journal ends; None if nothing was ever written.
    """

    name: str
    record: Queue | None
    journal: Journal | None
    recovery: JournalRecovery | None
    end: JournalEnd | None

    @property
    def deliverable(self) -> int:
        """Messages that consumers will be offered: those in doubt do not count."""
        return 0 if self.recovery is None else self.recovery.messages.count(LIVE)

    def outstanding(self) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the queue's order."""
        if self.recovery is None or self.journal is None:
            return iter(())
        return self.recovery.outstanding(self.journal.format)


class RecoveredTransaction(NamedTuple):
    """A transaction that was open when the store was left.

    Attributes:
        xid: its id.
        outcome: what recovery does with it.
        two_phase: distributed or local, as the prepared list says; None where it says nothing.
        enqueues, dequeues: its records that are still undecided in the queues' journals; None where none was read.
        resolved_from: what it was before somebody decided it; None where nobody did.
    """

    xid: bytes
    outcome: Outcome
    two_phase: bool | None
    enqueues: int | None
    dequeues: int | None
    resolved_from: Outcome | None = None


class Decisions(NamedTuple):
    """What somebody decides of transactions that recovery itself leaves undecided.

    Attributes:
        outcomes: of single transactions, in doubt or never prepared: COMMITTING or ABORTING.
        in_doubt: of all others that are in doubt.
    """

    outcomes: Mapping[bytes, Outcome] = {}
    in_doubt: Outcome = Outcome.IN_DOUBT


_NO_DECISIONS: Final = Decisions()


class _OpenTransactions:
    """The transactions that are open anywhere in a store, and what becomes of them.

    Args:
        prepared: those that the prepared list has.
        decisions: what somebody decides of those that are undecided.
    """

    def __init__(self, prepared: list[PreparedTransaction], decisions: Decisions) -> None:
        self._found = {transaction.xid: transaction.outcome for transaction in prepared}
        self._two_phase = {transaction.xid: transaction.two_phase for transaction in prepared}
        self._order: dict[bytes, Outcome] = {}
        self._outcomes = dict(decisions.outcomes)
        for xid, outcome in self._found.items():
            decided = decisions.outcomes.get(xid, decisions.in_doubt)
            self._outcomes[xid] = self._order[xid] = decided if outcome is Outcome.IN_DOUBT else outcome
        self._enqueues: Counter[bytes] = Counter()
        self._dequeues: Counter[bytes] = Counter()

    def resolve(self, recovery: JournalRecovery) -> None:
        """Apply the outcomes to what one journal leaves open."""
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
            )
            for xid, outcome in self._order.items()
        ]


def _nobody(_layout: StoreLayout) -> None:
    """No process is looked for."""


class OfflineStore:
    """A store, a journal or a journal file, opened for reading.

    Attributes:
        layout: what was found at the path.
        wiring: queues, exchanges and so on; None where only a journal was named, or the catalogue is lost.
        prepared_list: the transaction prepared list's journal; None if there is none.
        journals: the queues' journals.
        kept_aside: version 2: journals that no queue has, which a start of the broker has kept aside.
        rid_high_water: version 2: the first record id that the catalogue has not reserved; None where nothing tells it.
        closing: version 2: how the store was closed.
        holder: the process that has the store open; None if none is known to.
        pool: the files of a linearstore's partitions; None for the other stores.
        damage: what is wrong, as far as it was looked at.
        orphaned: those among it that are orphans, which recovery leaves out.
        notices: one line each: what a user should know, and no damage.
    """

    def __init__(self, disk: Disk, layout: StoreLayout, holder: int | None = None) -> None:
        self._disk, self.layout = disk, layout
        self.damage: list[Damage] = list(layout.damage)
        self.notices: list[str] = list(layout.notices)
        self.holder = holder
        if holder is not None:
            self.notices.append(in_use_notice(layout, holder))
        surroundings = read_surroundings(disk, layout, is_open=holder is not None)
        self.wiring = surroundings.wiring
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
        self._misses_prepared_list = 0 in self.closing.journals and layout.prepared_list is None
        self.kept_aside = opened.orphans
        self._quarantine = opened.quarantine
        self._orphans: list[Journal] = []
        self.orphaned: list[Damage] = []

    def close(self) -> None:
        """Let all files go."""
        for journal in (*self.all_journals(), *self.kept_aside, *self._quarantine):
            journal.close()

    def all_journals(self) -> list[Journal]:
        """The prepared list, if there is one, then the queues' journals."""
        return [*([self.prepared_list] if self.prepared_list is not None else []), *self.journals]

    def named_journals(self) -> list[Journal]:
        """The journals at the path that was named; of a single journal's store the prepared list is not one of them."""
        if self.layout.kind in (StoreKind.JOURNAL, StoreKind.FILE) and self.journals:
            return self.journals
        return self.all_journals()

    def queue_names(self) -> set[str]:
        """The names of all queues, whether the catalogue or a journal tells them; and that of the prepared list."""
        names = {journal.name for journal in self.all_journals()}
        if self.wiring is not None:
            names.update(queue.record.name for queue in self.wiring.queues.values())
        return names

    @property
    def closed_cleanly(self) -> bool:
        """Version 2: whether the STORE file says so."""
        return self.closing.is_clean

    @property
    def size(self) -> int:
        """Bytes in the used files of the journals."""
        return sum(journal.stream.size for journal in self.all_journals())

    def queues(self) -> list[tuple[str, Queue | None, Journal | None]]:
        """Each queue's name, record and journal, as recovery would have them, without walking the journals."""
        return list(self._match())

    def unfinished(self) -> dict[str, Unfinished]:
        """The journals, by path, that are what a kill leaves of work on the store: nothing is missed with them."""
        if self.layout.kind is not StoreKind.VERSION_2:
            return {}
        wiring = self.wiring
        if wiring is None or not wiring.complete or wiring.damage:
            return unfinished_journals(self.journals, None)
        known = {str(queue.journal_id) for queue in wiring.queues.values()}
        used = {each.path for each in self.journals if self._journal_key(each) in known}
        return unfinished_journals(self.journals, used)

    # ---- recovery ----

    def recover(self, decisions: Decisions = _NO_DECISIONS) -> RecoveredStore:
        """Walk every journal, resolve what is open, and match queues and journals."""
        prepared_list, prepared = self._recover_prepared_list()
        open_now = _OpenTransactions(prepared, decisions)
        queues = []
        for name, record, journal in self._match():
            if journal is None:
                queues.append(RecoveredQueue(name, record, None, None, None))
                continue
            found = self._recover_journal(journal, open_now)
            queues.append(RecoveredQueue(name, record, journal, found.recovery, found.end))
        if self.wiring is not None and self.wiring.complete and not self.wiring.damage:
            catalogue = self.layout.catalogue or self.layout.path
            self.damage.extend(self.closing.lost_queues(catalogue, self.wiring.queues.keys()))
        self.notices.extend(self._unfinished_journal(*each) for each in self.unfinished().items())
        orphans = [self._recover_orphan(each, open_now) for each in (*self._orphans, *self.kept_aside)]
        for journal in self._quarantine:
            self.notices.append(self._quarantined(journal))
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
                "at hand; they count as never prepared"
            )
        return RecoveredStore(self, queues, transactions, prepared_list, orphans)

    def _has_no_prepared_list(self) -> bool:
        """Whether there is none at hand. A linearstore's has at least one file, since the last is never given back."""
        journal = self.prepared_list
        if journal is None:
            return True
        return self.layout.kind is StoreKind.LINEAR and not journal.files.files and not journal.damage

    def _is_blank_legacy_list(self, prepared_list: RecoveredQueue | None) -> bool:
        """Whether a legacystore's list is all zeros. qpidd writes to it with the first transaction that it commits.

        One that qpid-store-resize made anew, which leaves the old one in `bak`, is blank if it held nothing.
        """
        if self.layout.kind is not StoreKind.LEGACY or prepared_list is None or prepared_list.journal is None:
            return False
        if self._disk.is_directory(posixpath.join(prepared_list.journal.path, PUSHED_DOWN)):
            return False
        return prepared_list.end is None and not prepared_list.journal.damage

    def _should_have_prepared_list(self, transactions: list[RecoveredTransaction]) -> bool:
        """Version 2 makes the list with the store. qpidd makes it when a transaction is first prepared.

        Journals without a store may have had one: what is open in them is not known to be unprepared.
        """
        return self.layout.kind in (StoreKind.VERSION_2, StoreKind.LOOSE) and bool(transactions)

    def _recover_journal(self, journal: Journal, open_now: _OpenTransactions | None) -> RecoveredJournal:
        """Walk a journal and, but for the prepared list itself, resolve what it leaves open."""
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
        """Walk a journal. What is wrong with it counts for nothing yet."""
        recovered = recover_journal(journal, self.closing, if_readable=True)
        self.notices.extend(recovered.notices)
        return recovered

    def _recover_orphan(self, journal: Journal, open_now: _OpenTransactions) -> RecoveredQueue:
        """An orphan that holds messages is a loss; an empty one is none, and neither is a journal that was replaced."""
        recovered = self._recover_journal(journal, open_now)
        recovery = recovered.recovery
        count, queue = len(recovery.messages), self._replaced_by(journal)
        if queue is not None:
            text = f'another journal of queue "{queue}", with {plural(count, "message")}, which is not in use'
            self.notices.append(f"{journal.path}: {text}; remove it when it is not needed any more")
            recovery = JournalRecovery()
        elif count:
            own = Effect.ORPHAN_KEPT_ASIDE if journal in self.kept_aside else Effect.ORPHAN_NOT_KNOWN
            effect = own if self.layout.kind is StoreKind.VERSION_2 else Effect.ORPHAN_LEFT_OUT
            kind, name = DamageKind.ORPHANED_JOURNAL, journal.name
            damage = Damage(journal.path, None, None, kind, effect, queue=name, messages=count)
            self.orphaned.append(damage)
            self.damage.append(damage)
        else:
            what = f'journal of queue "{journal.name}", which the catalogue does not know'
            self.notices.append(f"{journal.path}: {what}; it is empty and left out")
        return RecoveredQueue(journal.name, None, journal, recovery, recovered.end)

    def _replaced_by(self, journal: Journal) -> str | None:
        """The queue whose journal this was, or was to be, if it has another one; None if there is none."""
        if self.layout.kind is not StoreKind.VERSION_2 or self.wiring is None or journal.info is None:
            return None
        queue, incarnation = self.wiring.queues.get(journal.info.queue_id), journal.info.incarnation
        if queue is None:
            return None
        own = [each.info for each in self.journals if posixpath.basename(each.path) == str(queue.journal_id)]
        is_other = any(info is not None and info.incarnation != incarnation for info in own)
        return queue.record.name if is_other else None

    def _unfinished_journal(self, path: str, state: Unfinished) -> str:
        """What a kill left of work on a journal. One that was replaced because it was damaged is told as such."""
        if state is Unfinished.REPLACED_JOURNAL:
            (journal,) = [each for each in self.journals if each.path == path]
            if self._read(journal).damage:
                state = Unfinished.REPAIRED_JOURNAL
        return state.notice(path)

    def _quarantined(self, journal: Journal) -> str:
        """A reminder of a damaged journal that is kept as it was: its loss was told when it was built anew."""
        recovery = JournalRecovery()
        self.walk(journal, recovery)
        return (
            f'{journal.path}: a damaged journal of queue "{journal.name}", kept as it was; '
            f"{plural(len(recovery.messages), 'message')} can be read in it, as in the journal that was built of it: "
            f"qstore-recover {journal.path} DEST shows what was lost; remove it when it is not needed any more"
        )

    def walk(self, journal: Journal, sink: RecordSink, *, every_record: bool = False) -> JournalEnd | None:
        """As `walk_readable`; what the journal has to say goes to the store's notices."""
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
        """Each queue with its journal; what is left over on either side is reported."""
        journals: dict[str, Journal] = {}
        unfinished = self.unfinished()
        for journal in self.journals:
            if journal.path in unfinished:
                continue
            first = journals.setdefault(self._journal_key(journal), journal)
            if journal.path.startswith(first.path + "/"):
                self.notices.append(f"{journal.path}: an older copy of the journal above it, as resizing leaves it")
            elif first is not journal:
                self.damage.append(Damage(journal.path, None, None, DamageKind.SECOND_JOURNAL, queue=journal.name))
        wiring = self.wiring
        if wiring is not None:
            for queue in wiring.queues.values():
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
            if wiring is None or not wiring.complete or wiring.damage:
                yield journal.name, self.record_in_info(journal), journal
            else:
                self._orphans.append(journal)

    def _is_out_of_reach(self, key: str) -> bool:
        """Whether a queue's journal may be there, in a directory that cannot be looked into: which is told already."""
        return any(posixpath.basename(damage.file) in (key, "jrnl") for damage in self.layout.damage)

    def _journal_key(self, journal: Journal) -> str:
        if self.layout.kind is StoreKind.VERSION_2 and self.wiring is not None:
            return posixpath.basename(journal.path)
        return journal.name

    def record_in_info(self, journal: Journal) -> Queue | None:
        """The queue's record that a journal of version 2 has in its info file; None if there is none."""
        if journal.info is None or not journal.info.queue_record:
            return None
        try:
            return decode_queue(journal.info.queue_record)
        except BrokerRecordError as error:
            kind = DamageKind.INFO_FILE_QUEUE_RECORD
            self.damage.append(Damage(journal.path, None, None, kind, problem=error.what))
            return None


class RecoveredStore(NamedTuple):
    """What recovery makes of a store.

    Attributes:
        store: what was read; its `damage` and `notices` are complete now.
        queues: the queues, by id where a catalogue tells them.
        transactions: those that were open.
        prepared_list: the transaction prepared list; None if there is none.
        orphans: journals that a catalogue should know and does not: recovery leaves them out. What a crash leaves of
            queues that were being made or deleted is not among them.
    """

    store: OfflineStore
    queues: list[RecoveredQueue]
    transactions: list[RecoveredTransaction]
    prepared_list: RecoveredQueue | None
    orphans: list[RecoveredQueue]


def open_store(disk: Disk, path: str, find_holder: Callable[[StoreLayout], int | None] = _nobody) -> OfflineStore:
    """Open whatever is at `path`.

    Args:
        disk: reads it.
        path: as a person names it.
        find_holder: finds the process that has a store open, as `in_use.holder_of_store` does.

    Raises:
        UnusableInputError: nothing that could be read as a store.
        OSError: it cannot be read.
    """
    layout = find_layout(disk, path)
    try:
        return OfflineStore(disk, layout, find_holder(layout))
    except NotAJournalError as error:
        raise UnusableInputError(str(error)) from None
