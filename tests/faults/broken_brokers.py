"""Brokers that are broken on purpose, each in one place, to show that the crash matrix finds it.

Each is a context in which the broker's code is changed: what a plausible slip would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from qstore.broker.model.broker import Broker
from qstore.broker.model.completion import CompletionLedger, Runs
from qstore.broker.model.errors import ModelError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.message import Message
from qstore.broker.model.queues.barriers import NO_LIMIT, Barrier, Barriers
from qstore.broker.model.queues.entry import ACQUIRED, RUN, Entry
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency import sources
from qstore.broker.model.residency.page_file import PageFile
from qstore.broker.model.residency.references import Reference, References
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.sources import JournalSource, Loaded
from qstore.broker.model.residency.stretch import Stretch
from qstore.broker.model.router import Router
from qstore.broker.model.run import MessageRun, RunEntry
from qstore.broker.model.tick import Tick
from qstore.broker.model.topology.changes import TopologyStorage
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.model.transactions.planned import Planned, Rids
from qstore.broker.protocols.amqp_0_9_1 import acknowledgements
from qstore.broker.protocols.amqp_0_9_1.acknowledgements import Confirms
from qstore.broker.protocols.amqp_1_0 import links
from qstore.broker.protocols.amqp_1_0 import session as links_session
from qstore.broker.protocols.amqp_1_0.links import OutgoingLink
from qstore.broker.protocols.amqp_1_0.message import SectionMessage
from qstore.broker.protocols.amqp_1_0.session import Offsets, Session
from qstore.broker.protocols.amqp_1_0.transactions import OpenTransaction, Transactions
from qstore.broker.protocols.consumer import HeldRun, numbers_among
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.page_file import Extent
from qstore.store.journal.write.flushes import Step
from qstore.store.journal.write.live_records import RestingRecords
from qstore.store.journal.write.storage import JournalStorage
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import Done as StoreDone
from qstore.store.live.queue_journal import QueueJournal
from tests.faults.broker_process import tiny_portions
from tests.support.bodies import joined

_sound_publish = Router.publish
_sound_hold_run = CompletionLedger.hold_run
_sound_dequeue_run = Queue.dequeue_run
_sound_hold = Fifo.hold
_sound_unfold_run = Fifo.unfold_run
_sound_skip = RunEntry.skip
_sound_stored_form = MessageRun.stored_form
_sound_dequeue = Queue.dequeue
_sound_when_synced = MessageStore.when_synced
_sound_lower = Barriers.lower
_sound_release = Queue.release
_sound_commit = LocalTransaction.commit
_sound_read = JournalSource._read
_sound_fold = Residency._fold
_sound_unfold = Fifo.unfold
_sound_messages = PageFile._messages
_sound_fetched = References._fetched
_sound_confirms = Confirms.__init__
_sound_apply = Session.apply
_sound_ids = Offsets.ids
_sound_retire = Transactions.retire


def _publish_completed(self: Router, message: Message, exchange: Exchange) -> bool:
    """A transfer is completed, whether its records are synced or not."""
    _sound_publish(self, message, exchange)
    return False


def _publish_to_one(self: Router, message: Message, exchange: Exchange) -> bool:
    """A transfer to several queues waits for nothing: only that to a single one does."""
    return _sound_publish(self, message, exchange) and len(self.route(message, exchange).queues) == 1


def _dequeue_completed(self: Queue, entry: Entry) -> bool:
    """An accept is completed, whether its dequeue is synced or not."""
    _sound_dequeue(self, entry)
    return False


def _dequeue_forgotten(self: Queue, entry: Entry) -> bool:
    """What is accepted stays in the journal."""
    self.remove(entry)
    return False


def _add_at_once(self: Queue, message: Message, rid: int) -> Entry:
    """A message is offered to consumers before its record is synced."""
    entry = self.add(message, rid)
    self._tick.written[self] = None
    self._tick.journals[self.journal] = None
    return entry


def _lower_all(self: Barriers, barrier: Barrier) -> None:
    """When one flush is done all that is on the queue is offered, also what waits for the next."""
    _sound_lower(self, barrier)
    self.limit = NO_LIMIT


def _move_at_once(
    self: Router, queue: Queue, entry: Entry, exchange: Exchange, done: Callable[[Exception | None], None]
) -> None:
    """A message leaves its queue before it is synced where it goes."""
    self.publish(entry.message, exchange)
    queue.dequeue(entry)
    self._tick.when_synced(done)


def _drop_rejected(
    self: Router, queue: Queue, entry: Entry, exchange: Exchange, done: Callable[[Exception | None], None]
) -> None:
    """A message that is rejected leaves its queue, and does not go anywhere."""
    queue.dequeue(entry)
    self._tick.when_synced(done)


def _write_one_by_one(
    self: LocalTransaction, planned: Planned, reported: Callable[[Exception | None], None]
) -> Rids | None:
    """A transaction's records are written as if there was none."""
    store, tick = self._store, self._tick
    assert store is not None
    rids: Rids = {}
    is_written = False
    for queue, messages in planned.published.items():
        for message in messages:
            stores = queue.stores(message)
            rid = store.append.enqueue(queue.journal, *message.stored_form()) if stores else 0
            rids.setdefault(queue, []).append(rid)
            if stores:
                is_written = True
                tick.journals[queue.journal] = None
    for queue, entry in planned.accepted:
        if entry.rid:
            store.append.dequeue(queue.journal, entry.rid)
            is_written = True
            tick.journals[queue.journal] = None
    if not is_written:
        return None
    tick.transactions_under_way += 1
    tick.when_synced(reported)
    return rids


def _commit_at_once(self: LocalTransaction, done: Callable[[ModelError | None], None]) -> None:
    """A commit is completed before its commit point is on the disk."""
    _sound_commit(self, lambda error: None)
    done(None)


def _release_at_the_end(self: Queue, entry: Entry, *, is_redelivered: bool) -> None:
    """Released messages go to the end of the queue."""
    _sound_release(self, entry, is_redelivered=is_redelivered)
    self.remove(entry)
    self.add(entry.message, entry.rid).is_redelivered = entry.is_redelivered


def _release_unmarked(self: Queue, entry: Entry, *, is_redelivered: bool) -> None:
    """What a session had when it ended is not marked."""
    _sound_release(self, entry, is_redelivered=False)


def _nothing_delivered(self: Queue) -> list[int]:
    """A clean close does not record what had been delivered."""
    return []


def _everything_delivered(self: Queue) -> list[int]:
    """At a clean close everything is said to have been delivered."""
    return [each.rid for each in self.entries() if each.rid]


async def _binding_not_kept(self: TopologyStorage, exchange: Exchange, binding: Binding) -> None:
    """Bindings are not kept."""


async def _not_waited_for(
    self: TopologyStorage, ask: Callable[[Callable[[Any, Exception | None], None]], None]
) -> None:
    """What is deleted is said to be before the store has it."""
    ask(lambda made, error: None)


@contextmanager
def _no_alternates() -> Iterator[None]:
    """Alternate exchanges are not found again."""
    sound = Broker.recover

    def recover(self: Broker, restore: Callable[[bytes], Message]) -> None:
        sound(self, restore)
        for queue in self.default_host.queues.values():
            queue.alternate = None

    with patch.object(Broker, "recover", recover):
        yield


def _not_held(_self: CompletionLedger, _number: int) -> None:
    """What waits for the disk is completed with all that does not."""


def _complete_all(self: CompletionLedger, _runs: Runs) -> None:
    """The end of one flush completes what waits for others."""
    self.done.add(self.done.below, self.processed - 1)


def _lingering_completed(
    self: MessageStore, journals: Iterable[QueueJournal], done: StoreDone, *, is_urgent: bool = True
) -> None:
    """Commands that wait for lingering records are completed at once."""
    _sound_when_synced(self, journals if is_urgent else (), done, is_urgent=is_urgent)


def _written(self: JournalStorage, step: Step) -> None:
    self.write(step)


def _first_waited_for(
    self: MessageStore, journals: Iterable[QueueJournal], done: StoreDone, *, is_urgent: bool = True
) -> None:
    """Commands that wait for lingering records of several journals are completed when the first is synced."""
    chosen = list(journals)
    _sound_when_synced(self, chosen if is_urgent else chosen[:1], done, is_urgent=is_urgent)


BROKEN: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "transfer completed before the sync": partial(patch.object, Router, "publish", _publish_completed),
    "transfer to several queues completed before the sync": partial(patch.object, Router, "publish", _publish_to_one),
    "accept completed before the sync": partial(patch.object, Queue, "dequeue", _dequeue_completed),
    "commands completed before the sync": partial(patch.object, CompletionLedger, "hold", _not_held),
    "commands completed with an earlier flush": partial(patch.object, CompletionLedger, "complete", _complete_all),
    "accept completed while its record lingers": partial(
        patch.object, MessageStore, "when_synced", _lingering_completed
    ),
    "accepts of several queues completed with the first": partial(
        patch.object, MessageStore, "when_synced", _first_waited_for
    ),
    "accept not kept": partial(patch.object, Queue, "dequeue", _dequeue_forgotten),
    "offered before the sync": partial(patch.object, Queue, "add_held", _add_at_once),
    "offered with an earlier flush": partial(patch.object, Barriers, "lower", _lower_all),
    "moved before the destination is synced": partial(patch.object, Router, "move", _move_at_once),
    "rejected and not moved": partial(patch.object, Router, "move", _drop_rejected),
    "transaction in single records": partial(patch.object, LocalTransaction, "_write", _write_one_by_one),
    "commit completed before the sync": partial(patch.object, LocalTransaction, "commit", _commit_at_once),
    "completed by an idle loop that does not sync": partial(patch.object, JournalStorage, "write_synced", _written),
    "released to the end": partial(patch.object, Queue, "release", _release_at_the_end),
    "released without a mark": partial(patch.object, Queue, "release", _release_unmarked),
    "delivered messages not saved": partial(patch.object, Queue, "delivered_rids", _nothing_delivered),
    "all saved as delivered": partial(patch.object, Queue, "delivered_rids", _everything_delivered),
    "binding not kept": partial(patch.object, TopologyStorage, "create_binding", _binding_not_kept),
    "deletion completed before the store has it": partial(patch.object, TopologyStorage, "_run", _not_waited_for),
    "alternate exchange forgotten": _no_alternates,
}
"""Name -> the context in which a broker is broken so."""


# ---- messages out of memory ----


def _read_one_for_all(
    self: JournalSource, keys: Sequence[int], done: Callable[[Loaded], None], found: Sequence[bytes | Exception]
) -> None:
    """The first message of a stretch comes back in place of all."""
    _sound_read(self, keys, done, [found[0]] * len(found))


def _fold_without_the_last(self: Residency, run: list[Entry]) -> int:
    """The last message of a stretch leaves its queue with its entry, and is not in the stretch."""
    freed = _sound_fold(self, run[:-1]) if len(run) > 1 else 0
    if freed:
        self._order.remove(run[-1])
    return freed


def _unfold_behind_the_cursor(self: Fifo, stretch: Entry, entries: Sequence[Entry]) -> None:
    """What comes back was passed by the cursor."""
    is_next = self.cursor is stretch
    _sound_unfold(self, stretch, entries)
    if is_next:
        self.cursor = entries[-1].next


def _nothing_marked(self: Stretch) -> list[int]:
    """A clean close does not record which of the paged messages had been delivered."""
    return []


def _none_to_copy(self: RestingRecords, end: int) -> tuple[list[tuple[int, int]], int]:
    """Compaction does not see records of messages that are out."""
    return [], -1


def _another_of_the_page(self: PageFile, first: int, indices: Sequence[int], extent: Extent | str) -> Loaded:
    """The messages of an extent of a paging file come back in another order."""
    return _sound_messages(self, first, indices, extent)[::-1]


def _exchanged(self: References, entries: list[tuple[Entry, Reference]], messages: Loaded) -> None:
    """Messages that were read ahead are given to other entries."""
    _sound_fetched(self, entries, messages[::-1])


def _never_notified(self: References, entries: list[tuple[Entry, Reference]], messages: Loaded) -> None:
    """The queue is not dispatched again when what its consumers await is there."""
    with patch.object(Queue, "mark_ready", lambda _queue: None):
        _sound_fetched(self, entries, messages)


BROKEN_PAGING: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "one message read back for all": partial(patch.object, JournalSource, "_read", _read_one_for_all),
    "a message lost when it goes out": partial(patch.object, Residency, "_fold", _fold_without_the_last),
    "passed by when it comes back": partial(patch.object, Fifo, "unfold", _unfold_behind_the_cursor),
    "not marked where it is out": partial(patch.object, Stretch, "redelivered", _nothing_marked),
    "compaction without what is out": partial(patch.object, RestingRecords, "before", _none_to_copy),
    "another message of the paging file": partial(patch.object, PageFile, "_messages", _another_of_the_page),
    "read ahead for another entry": partial(patch.object, References, "_fetched", _exchanged),
    "not dispatched when it was read ahead": partial(patch.object, References, "_fetched", _never_notified),
}
"""The same for brokers whose messages go out of memory."""


def _never_holds(self: Confirms, channel: int) -> None:
    """A confirm does not wait for the disk."""
    _sound_confirms(self, channel)
    self.ledger = _Eager(1)


class _Eager(CompletionLedger):
    def hold(self, _number: int) -> None:
        """Nothing waits."""


def _acknowledge_in_memory(_tick: Tick, acquired: Iterable[tuple[Queue, Entry]], _done: object) -> None:
    """What is acknowledged stays in the journal."""
    for queue, entry in acquired:
        if entry.state == ACQUIRED:
            queue.remove(entry)


def _requeue_unmarked(acquired: Iterable[tuple[Queue, Entry]], *, is_redelivered: bool) -> None:
    """Messages come back as if they never had been delivered."""
    assert is_redelivered
    for queue, entry in acquired:
        if not queue.is_gone:
            queue.release(entry, is_redelivered=False)


# ---- runs ----


def _dequeue_one_more(self: Queue, run: RunEntry, count: int) -> bool:
    """The journal loses the message after those that are settled, too."""
    after = run.rid + count
    is_written = _sound_dequeue_run(self, run, count)
    if run.count and run.rid:
        self._append.dequeue_run(self.journal, after, 1)  # type: ignore[union-attr]
    return is_written


def _dequeue_one_less(self: Queue, run: RunEntry, count: int) -> bool:
    """The journal keeps the first of those that are settled."""
    if run.rid and count > 1:
        rid, run.rid = run.rid, run.rid + 1
        self._append.dequeue_run(self.journal, run.rid, count - 1)  # type: ignore[union-attr]
        self._tick.journals[self.journal] = True
        run.rid = rid
        self._remove_first(run, count)
        return True
    return _sound_dequeue_run(self, run, count)


def _hold_and_lose_one(self: Fifo, run: RunEntry, count: int) -> RunEntry:
    """A slice loses its tail: the next one begins a message later."""
    held = _sound_hold(self, run, count)
    if held is not run and run.count > 1:
        run.skip(1)
    return held


def _skip_without_records(self: RunEntry, count: int) -> None:
    """What is left of a run has the record ids of what has gone."""
    rid = self.rid
    _sound_skip(self, count)
    self.rid = rid


def _form_without_size(self: MessageRun) -> tuple[bytes, SizeField | None, Bodies]:
    """The stored header of each message of a run gives the size of another's body."""
    head, _, bodies = _sound_stored_form(self)
    return head, None, bodies


def _run_not_held(_self: CompletionLedger, _first: int, _last: int) -> None:
    """The messages of a run are completed whether they are synced or not."""


def _unfold_as_available(self: Fifo, run: RunEntry) -> Entry:
    """What a consumer holds is available again as soon as something looks at it."""
    run.state = RUN
    return _sound_unfold_run(self, run)


BROKEN_RUNS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "one more dequeued than settled": partial(patch.object, Queue, "dequeue_run", _dequeue_one_more),
    "the first of those settled not dequeued": partial(patch.object, Queue, "dequeue_run", _dequeue_one_less),
    "a message lost between two slices": partial(patch.object, Fifo, "hold", _hold_and_lose_one),
    "record ids of what has gone": partial(patch.object, RunEntry, "skip", _skip_without_records),
    "completed before the sync": partial(patch.object, CompletionLedger, "hold_run", _run_not_held),
    "headers with the size of another body": partial(patch.object, MessageRun, "stored_form", _form_without_size),
    "held messages available": partial(patch.object, Fifo, "unfold_run", _unfold_as_available),
}
"""The same where runs are concerned."""


# ---- runs that are read back ----

_sound_read_run = sources.read_run
_sound_parts = Stretch.parts
_sound_run_entries = Residency._run_entries


def _without_first_body(first: Message, bodies: Bodies) -> MessageRun:
    """Each message has the body of the one after it, and the last one that of another."""
    moved = [bodies.body(number % bodies.count) for number in range(1, bodies.count + 1)]
    return _sound_read_run(first, joined(moved))


def _parts_without_their_last(self: Stretch, first: int, end: int) -> list[tuple[int, int]]:
    """A run that is read back loses its last message."""
    return [(begin, until - (until - begin > 1)) for begin, until in _sound_parts(self, first, end)]


def _parts_as_if_new(_self: Stretch, first: int, end: int) -> list[tuple[int, int]]:
    """Nobody looks at the gaps and the marks of a stretch."""
    return [(first, end)]


def _records_of_the_next(self: Residency, stretch: Stretch, first: int, run: MessageRun) -> list[Entry]:
    """The record ids of a run that is read back begin with that of the second message."""
    entries = _sound_run_entries(self, stretch, first, run)
    for entry in entries:
        if isinstance(entry, RunEntry):
            entry.rid += 1
    return entries


def _without_marks(self: Residency, stretch: Stretch, first: int, run: MessageRun) -> list[Entry]:
    """A run that is read back has forgotten that it was delivered before."""
    entries = _sound_run_entries(self, stretch, first, run)
    for entry in entries:
        if isinstance(entry, RunEntry):
            entry.is_redelivered = False
    return entries


@contextmanager
def _long_stretches(target: Any, name: str, broken: object) -> Iterator[None]:
    """With stretches that are long enough for runs."""
    with tiny_portions(12), patch.object(target, name, broken):
        yield


BROKEN_RUNS_READ: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "bodies of the messages after them": partial(_long_stretches, sources, "read_run", _without_first_body),
    "a run without its last message": partial(_long_stretches, Stretch, "parts", _parts_without_their_last),
    "runs over what is not alike": partial(_long_stretches, Stretch, "parts", _parts_as_if_new),
    "records of the messages after them": partial(_long_stretches, Residency, "_run_entries", _records_of_the_next),
    "marks of a run forgotten": partial(_long_stretches, Residency, "_run_entries", _without_marks),
}
"""The same where runs are read back."""


def _first_half_held(self: CompletionLedger, first: int, last: int) -> None:
    _sound_hold_run(self, first, (first + last) // 2)


BROKEN_SORTING: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "only the first half held": partial(patch.object, CompletionLedger, "hold_run", _first_half_held),
}
"""The same where messages are sorted by their queue, and confirmed by the numbers with which they were sent."""


BROKEN_BASIC: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "confirmed before the sync": partial(patch.object, Confirms, "__init__", _never_holds),
    "acknowledged in memory only": partial(patch.object, acknowledgements, "accept", _acknowledge_in_memory),
    "given back without a mark": partial(patch.object, acknowledgements, "release", _requeue_unmarked),
}
"""The same where AMQP 0-9-1 is concerned."""


def _accepted_in_memory(self: Session, _number: int, *, is_stored: bool) -> None:
    """A message is accepted, whether its record is synced or not."""


def _one_more(ranges: list[tuple[int, int]], among: Any, end: int) -> Iterator[int]:
    """A disposition settles one delivery more than it names."""
    return numbers_among([(first, last + 1) for first, last in ranges], among, end)


def _one_more_accepted(self: Offsets, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The outcome of one message is reported for the next, too."""
    for begin, end in _sound_ids(self, first, last):
        yield begin, end + 1


def _released_as_accepted(
    self: Session, acquired: Any, state: Composite, done: Callable[[Exception | None], None]
) -> None:
    """What is released is dequeued."""
    _sound_apply(self, acquired, Composite("accepted", {}) if state.name == "released" else state, done)


def _settled_at_once(self: Session, _settled: Any, done: Callable[[Exception | None], None]) -> None:
    """The broker settles a delivery before its dequeue is synced."""
    done(None)


def _retired_at_once(self: Transactions, fields: Any, numbers: Iterable[int], *, is_settled: bool) -> None:
    """What is accepted in a transaction is dequeued before the commit."""
    taken = list(numbers)
    _sound_retire(self, fields, taken, is_settled=is_settled)
    for number in taken:
        delivery = self._session.unsettled[number]
        delivery.link.queue.dequeue(delivery.entry)


def _kept_after_rollback(self: Transactions, transaction: OpenTransaction, done: Callable[[], None]) -> None:
    """A rollback commits what was published."""
    self._end(transaction)
    transaction.work.accepted.clear()
    transaction.work.commit(lambda _: None)
    self._undo(transaction, has_failed=False, done=done)


BROKEN_LINKS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "accepted before the disk": partial(patch.object, Session, "hold", _accepted_in_memory),
    "one delivery more than the range": partial(patch.object, links_session, "numbers_among", _one_more),
    "one message more accepted": partial(patch.object, Offsets, "ids", _one_more_accepted),
    "released counted as accepted": partial(patch.object, Session, "apply", _released_as_accepted),
    "settled before the disk": partial(patch.object, Session, "_when", _settled_at_once),
    "released without a mark": partial(patch.object, links_session, "_counts", lambda _: False),
    "discharged before the disk": partial(patch.object, LocalTransaction, "commit", _commit_at_once),
    "retired before the commit": partial(patch.object, Transactions, "retire", _retired_at_once),
    "published by a rollback": partial(patch.object, Transactions, "_roll_back", _kept_after_rollback),
}
"""The same where AMQP 1.0 is concerned."""


# ---- runs of AMQP 1.0 ----

_sound_deliveries = links.write_deliveries
_sound_sections = OutgoingLink._sections_of_run
_sound_accept = links_session.accept


def _ids_of_the_next(*arguments: Any) -> bytes:
    """Each message of a run has the delivery-id of the next one."""
    *others, first = arguments
    return _sound_deliveries(*others, first + 1)


def _sections_as_if_new(self: OutgoingLink, message: SectionMessage, *, is_redelivered: bool) -> bytes:
    """A run is not marked as delivered before."""
    return _sound_sections(self, message, is_redelivered=False)


def _held_by_another_number(queue: Queue, entry: RunEntry, consumer: Any, first: int) -> HeldRun:
    """A run is known by the number after that of its first message."""
    return HeldRun(queue, entry, consumer, first + 1)


def _accept_without_last_of_run(tick: Tick, acquired: Any, done: Callable[[Exception | None], None]) -> Any:
    """Of a part of a run that is accepted, the last one stays."""
    for _, entry in acquired:
        if isinstance(entry, RunEntry) and entry.count > 1:
            entry.count -= 1
    return _sound_accept(tick, acquired, done)


BROKEN_LINKS_RUNS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "delivery-ids of the next ones": partial(_long_stretches, links, "write_deliveries", _ids_of_the_next),
    "marks of a run left out": partial(_long_stretches, OutgoingLink, "_sections_of_run", _sections_as_if_new),
    "held by another number": partial(_long_stretches, links, "HeldRun", _held_by_another_number),
    "accepted without its last": partial(_long_stretches, links_session, "accept", _accept_without_last_of_run),
}
"""The same where AMQP 1.0 delivers runs."""
