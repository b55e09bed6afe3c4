"""A whole store on a simulated disk, beside a model of what may be found in it after a crash.

A `StoreLife` is one process's time with the store: it opens it, holds what it finds against the model, does work under
a seed and keeps the model. `store_matrix` kills it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.records import COMPRESSED
from qstore.formats.values import EMPTY_MAP, typed_map
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError, StoreError
from qstore.store.key_value import CatalogueError
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.transactions import Dequeue, Enqueue, LargeTransaction
from qstore.store.log_lines import Level, LogLine
from qstore.store.sync.driver import SyncDriver
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_model import (
    BindingModel,
    Branch,
    BrokenPromiseError,
    ExchangeModel,
    Fate,
    Message,
    Model,
    Operation,
    QueueModel,
    require,
)
from tests.faults.store_simulation import PATH, TinyParameters, look, names_in, simulated_environment

GEOMETRIES: Final = (Geometry(4, 4096), Geometry(6, 2048), Geometry(4, 2048))
XIDS: Final = (b"branch-a", b"branch-b", b"branch-c" * 20)
_MAX_QUEUES: Final = 4
_MAX_TURNS: Final = 2000


class StoreLife:
    """One process's time with the store.

    Args:
        disk: where it is.
        model: what may be found.
        rng: decides everything.
        must_be_clean: it was closed cleanly, and nobody has opened it since.
        faults: whether the disk fails, so that errors are no surprise.
        driver: makes the sync driver, if it is a special one.
        is_damaged: whether somebody damaged its catalogue, which must be told and cost nothing; None if nobody knows.

    Raises:
        BrokenPromiseError: it may not be as it is.
    """

    parameters: ClassVar = TinyParameters()
    looks: ClassVar = False
    """Whether it is looked after now and then, as a broker does every second."""

    def __init__(
        self,
        disk: SimulatedDisk,
        model: Model,
        rng: random.Random,
        *,
        must_be_clean: bool = False,
        faults: bool = False,
        driver: Callable[[], SyncDriver] | None = None,
        is_damaged: bool | None = False,
    ) -> None:
        self.disk, self.rng, self.faults = disk, rng, faults
        self.lines: list[LogLine] = []
        self.asked = self.answered = self.refused = self.compressed = self.ended_large = 0
        self.errors: list[Exception] = []
        environment = simulated_environment(disk, rng, driver)
        try:
            self.store = MessageStore.open(environment, PATH, self.parameters, "test", log=self.lines.append)
        except StoreError as error:
            require(faults, f"the store cannot be opened: {error}")
            raise
        told = [line.text for line in self.lines if line.level in (Level.CRITICAL, Level.WARNING)]
        if faults:  # a start reserves record ids, and records how far it is synced: it says what it cannot write
            unwritten = ("the second copy of the topology cannot be written", "it cannot be recorded how far the store")
            told = [text for text in told if not any(each in text for each in unwritten)]
        told = [text for text in told if not any(_is_about(text, queue) for queue in model.queues.values())]
        orphans = len(names_in(self.store, "orphans")) - model.orphans
        require(is_damaged is not False or len(told) <= orphans, f"damage is reported: {told}")
        require(not is_damaged or bool(told), "a damaged catalogue is not reported")
        found = look(self.store)
        model.check(found, must_be_clean=must_be_clean)
        first = self.store._ids.next
        require(first > model.highest_rid, f"record id {first} was given out before")
        self.model = model.after(found)
        for queue in self.model.queues.values():
            assert queue.number is not None
            queue.journal = self.store.journals[queue.number]

    # ---- what is asked, and what is answered ----

    def _ask(self, answered: Callable[[Exception | None], None]) -> Done:
        """A callback that is called once."""
        self.asked += 1
        calls = []

        def done(error: Exception | None) -> None:
            calls.append(error)
            require(len(calls) == 1, "called back twice")
            self.answered += 1
            if error is not None:
                is_full = isinstance(error, JournalFullError)  # the prepared list
                require(self.faults or is_full, f"an error without a cause: {error!r}")
                self.errors.append(error)
            answered(error)

        return done

    def quiesce(self) -> None:
        """Until everything is answered."""
        for _ in range(_MAX_TURNS):
            self.store.start()
            self.store.collect(None)
            if self.asked == self.answered and self.store._flusher.is_idle:
                self.highest()
                return
        raise BrokenPromiseError("somebody is never called back")

    def highest(self) -> None:
        """Note the highest record id that may be in use."""
        self.model.highest_rid = max(self.model.highest_rid, self.store._ids.next - 1)

    # ---- work ----

    def work(self, steps: int) -> None:
        """Some steps, by chance."""
        deeds = self.deeds()
        chosen = self.rng.choices([deed for deed, _ in deeds], [weight for _, weight in deeds], k=steps)
        for deed in chosen:
            deed()

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What is done, and how often."""
        deeds: list[tuple[Callable[[], object], int]] = [
            (self.create_queue, 3),
            (self.delete_queue, 1),
            (self.change_topology, 2),
            (self.enqueue, 14),
            (self.dequeue, 10),
            (self.purge, 1),
            (self.transaction, 6),
            (self.prepare, 5),
            (self.decide, 6),
            (self.load, 1),
            (self.flush, 8),
            (self.store.start, 3),
            (self.store.collect, 8),
            (self.quiesce, 2),
        ]
        if self.parameters.auto_expand:
            deeds += [(self.store.look, 8), (self.enqueue, 14)]
        if self.looks:
            deeds += [(self.store.look, 20)]
        return deeds

    @property
    def grown(self) -> int:
        """How often a journal grew or shrank."""
        return sum(" files now, " in line.text for line in self.lines)

    def queues(self) -> list[QueueModel]:
        """The queues that take messages."""
        return [queue for queue in self.model.queues.values() if queue.is_certain and queue.journal is not None]

    def some_queues(self) -> list[QueueModel]:
        """One queue, or a few."""
        queues = self.queues()
        return self.rng.sample(queues, min(len(queues), self.rng.choice((1, 1, 2, 3))))

    def message(self) -> bytes:
        """Data that was never used."""
        head = b"%d:" % self.model.unique()
        return head + b"." * self.rng.choice((0, 20, 70, 200, 500))

    # ---- topology ----

    def create_queue(self) -> None:
        """Ask for a queue."""
        if len(self.model.queues) >= _MAX_QUEUES:
            return
        queue = QueueModel(f"queue-{self.model.unique()}")
        self.model.queues[queue.name] = queue

        def made(journal: QueueJournal | None, error: Exception | None) -> None:
            if journal is not None:
                queue.number, queue.journal, queue.is_certain = journal.queue_id, journal, True
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.create_queue(self.declared(queue.name), self.rng.choice(GEOMETRIES), made)

    def declared(self, name: str) -> Queue:
        """The record of a new queue."""
        return Queue(name)

    def delete_queue(self) -> None:
        """Ask for the end of a queue."""
        queues = self.queues()
        if len(queues) < 2:
            return
        queue = self.rng.choice(queues)
        queue.is_certain, queue.is_deleting = False, True
        assert queue.journal is not None

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                del self.model.queues[queue.name]
                self.model.left = sum("cannot be removed" in line.text for line in self.lines)
                for binding in list(self.model.bindings.values()):
                    if binding.queue is queue:
                        del self.model.bindings[binding.key]
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_queue(queue.journal, deleted)

    def change_topology(self) -> None:
        """Ask for an exchange or a binding, or for the end of one."""
        self.rng.choice((self.create_exchange, self.delete_exchange, self.bind, self.bind, self.unbind))()

    def create_exchange(self) -> None:
        """Ask for an exchange."""
        exchange = ExchangeModel(f"exchange-{self.model.unique()}")
        self.model.exchanges[exchange.name] = exchange

        def made(number: int | None, error: Exception | None) -> None:
            exchange.number, exchange.is_certain = number, error is None
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.create_exchange(Exchange(exchange.name, durable=True, type="topic"), made)

    def delete_exchange(self) -> None:
        """Ask for the end of an exchange."""
        exchanges = [each for each in self.model.exchanges.values() if each.is_certain]
        if len(exchanges) < 2:
            return
        exchange = self.rng.choice(exchanges)
        exchange.is_certain = False
        assert exchange.number is not None

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                del self.model.exchanges[exchange.name]
                for binding in list(self.model.bindings.values()):
                    if binding.exchange is exchange:
                        del self.model.bindings[binding.key]
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_exchange(exchange.number, deleted)

    def bind(self) -> None:
        """Ask for a binding."""
        exchanges, queues = [each for each in self.model.exchanges.values() if each.is_certain], self.queues()
        if not exchanges or not queues:
            return
        binding = BindingModel(f"key-{self.model.unique()}", self.rng.choice(queues), self.rng.choice(exchanges))
        self.model.bindings[binding.key] = binding

        def made(entry: object, error: Exception | None) -> None:
            if binding.key in self.model.bindings:
                binding.entry, binding.is_certain = entry, error is None
            done(error)

        done = self._ask(lambda _: None)
        assert binding.queue.number is not None
        assert binding.exchange.number is not None
        record = Binding(binding.queue.number, binding.queue.name, binding.key)
        self.store.changes.create_binding(binding.exchange.number, record, made)

    def unbind(self) -> None:
        """Ask for the end of a binding that this life made."""
        bindings = [each for each in self.model.bindings.values() if each.is_certain and each.entry is not None]
        bindings = [each for each in bindings if each.queue.is_certain and each.exchange.is_certain]
        if not bindings:
            return
        binding = self.rng.choice(bindings)
        binding.is_certain = False

        def deleted(_: None, error: Exception | None) -> None:
            if error is None:
                self.model.bindings.pop(binding.key, None)
            done(error)

        done = self._ask(lambda _: None)
        self.store.changes.delete_binding(binding.entry, deleted)  # type: ignore[arg-type]

    # ---- messages ----

    def _append(self, work: dict[QueueModel, Operation], append: Callable[[], Sequence[int]]) -> bool:
        """Append to journals: what is appended may be found from the beginning of the call."""
        for queue, operation in work.items():
            queue.pending.append(operation)
        return self._appended(work, append)

    def _appended(self, work: dict[QueueModel, Operation], append: Callable[[], Sequence[int]]) -> bool:
        try:
            rids = list(append())
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            for queue, operation in work.items():
                if queue.pending and queue.pending[-1] is operation:
                    queue.pending.pop()
            return False
        messages = [message for operation in work.values() for message in operation.enqueues]
        for message, rid in zip(messages, rids, strict=True):
            message.rid = rid
        for operation_queue, operation in work.items():
            for message in operation.dequeues:
                del operation_queue.available[message.data]
        self.highest()
        return True

    def _refused(self, error: Exception) -> None:
        self.refused += 1
        if isinstance(error, JournalFailedError | CatalogueError):
            require(self.faults, f"an error without a cause: {error!r}")
            self.errors.append(error)

    def enqueue(self) -> None:
        """A message for one queue or several."""
        queues, data = self.some_queues(), self.message()
        if not queues:
            return
        work = {queue: Operation([Message(data)]) for queue in queues}
        journals = [journal_of(queue) for queue in queues]
        parts, crc = (data[:3], data[3:]), data_crc((data,))
        if len(queues) == 1:
            done = self._append(work, lambda: [self.store.append.enqueue(journals[0], parts, len(data), crc)])
        else:
            done = self._append(work, lambda: self.store.append.enqueue_all(journals, parts, len(data), crc))
        for queue, operation in work.items() if done else ():
            queue.available[data] = operation.enqueues[0]

    def dequeue(self) -> None:
        """Some messages of a queue go."""
        for queue in self.some_queues()[:1]:
            messages = list(queue.available.values())
            for message in self.rng.sample(messages, min(len(messages), self.rng.randint(1, 4))):
                self._dequeue(queue, message)

    def _dequeue(self, queue: QueueModel, message: Message) -> None:
        assert message.rid is not None
        rid = message.rid

        def append() -> Sequence[int]:
            self.store.append.dequeue(journal_of(queue), rid)
            return ()

        self._append({queue: Operation((), [message])}, append)

    def purge(self) -> None:
        """All messages of a queue go."""
        for queue in self.some_queues()[:1]:
            messages = list(queue.available.values())
            operations = [Operation((), [message]) for message in messages]
            queue.pending += operations
            done = self._ask(partial(settle, queue, queue.position))
            rids = [message.rid for message in messages if message.rid is not None]
            try:
                self.store.purge(journal_of(queue), rids, done)
            except (JournalError, CatalogueError) as error:
                self.asked -= 1
                self._refused(error)
                live = journal_of(queue).writer.live
                queue.pending = [each for each in queue.pending if each not in operations or not is_live(each, live)]
            queue.available.clear()

    def load(self) -> None:
        """Read messages back."""
        self.quiesce()
        for queue in self.queues():
            for data, message in queue.available.items():
                if message.rid is not None and journal_of(queue).writer.failure is None:
                    require(journal_of(queue).load(message.rid) == data, "a message is not what it was")

    def flush(self) -> None:
        """Ask when all that was appended to some queues is on the disk."""
        queues = self.some_queues()
        marks = {queue: queue.position for queue in queues}

        def synced(error: Exception | None) -> None:
            for queue, mark in marks.items():
                if error is None:
                    queue.settle(mark)

        self.store.flush([journal_of(queue) for queue in queues], self._ask(synced))

    # ---- transactions ----

    def _work(self) -> tuple[dict[QueueModel, Operation], list[Enqueue], list[Dequeue]]:
        """What a transaction does."""
        work: dict[QueueModel, Operation] = {}
        enqueues, dequeues = [], []
        for queue in self.some_queues():
            messages = [Message(self.message()) for _ in range(self.rng.randint(0, 2))]
            available = list(queue.available.values())
            going = self.rng.sample(available, min(len(available), self.rng.randint(0, 2)))
            if messages or going:
                work[queue] = Operation(messages, going)
            for message in messages:
                data = message.data
                enqueues.append((journal_of(queue), [((data,), len(data), data_crc((data,)))]))
            dequeues += [(journal_of(queue), message.rid) for message in going if message.rid is not None]
        return work, enqueues, dequeues

    def transaction(self) -> None:
        """A local transaction over one queue or several."""
        work, enqueues, dequeues = self._work()
        if len(work) <= 1:
            for queue, operation in work.items():
                done = self._ask(partial(settle, queue, queue.position + 1))
                if not self._append(work, partial(self.store.transactions.commit, enqueues, dequeues, done)):
                    self.asked -= 1
                else:
                    queue.available.update((message.data, message) for message in operation.enqueues)
            return
        branch = Branch(b"", work, {Fate.COMMITTED, Fate.ABORTED})
        self._branch(branch, {Fate.COMMITTED}, partial(self.store.transactions.commit, enqueues, dequeues))

    def prepare(self) -> None:
        """A distributed transaction."""
        xid = self.rng.choice(XIDS)
        if any(branch.xid == xid for branch in self.model.branches):
            return
        work, enqueues, dequeues = self._work()
        branch = Branch(xid, work, {Fate.IN_DOUBT, Fate.ABORTED})
        self._branch(branch, {Fate.IN_DOUBT}, partial(self.store.transactions.prepare, xid, enqueues, dequeues))

    def _branch(self, branch: Branch, fates: set[Fate], append: Callable[[Done], Sequence[int]]) -> None:
        self.model.branches.append(branch)

        def answered(error: Exception | None) -> None:
            if error is None:
                self._settled(branch, fates)
            elif self._list_is_sound():
                self._settled(branch, {Fate.ABORTED})

        done = self._ask(answered)
        if not self._appended(branch.work, lambda: append(done)):
            self.asked -= 1
            self.model.branches.remove(branch)

    def _list_is_sound(self) -> bool:
        return self.store.failure is None and self.store.prepared_list.writer.failure is None

    def _settled(self, branch: Branch, fates: set[Fate]) -> None:
        """The fate of a branch is known."""
        branch.fates = fates
        if fates == {Fate.IN_DOUBT}:
            for queue, position in branch.positions.items():
                queue.settle(position)
        else:
            self.model.seal(branch, *fates)

    def decide(self) -> None:
        """Commit or abort a branch that is prepared."""
        branches = [branch for branch in self.model.branches if branch.fates == {Fate.IN_DOUBT}]
        if not branches:
            return
        branch = self.rng.choice(branches)
        fate = self.rng.choice((Fate.COMMITTED, Fate.ABORTED))
        branch.fates = {Fate.IN_DOUBT, fate}

        def answered(error: Exception | None) -> None:
            if error is None:
                self._settled(branch, {fate})

        transactions = self.store.transactions
        decide = transactions.commit_prepared if fate is Fate.COMMITTED else transactions.abort_prepared
        done = self._ask(answered)
        try:
            decide(branch.xid, done)
        except (JournalError, StoreError, CatalogueError) as error:
            require(self.faults, f"an error without a cause: {error!r}")
            self.asked -= 1
            branch.fates = {Fate.IN_DOUBT}

    # ---- the end ----

    def close(self) -> None:
        """Close cleanly, after some messages were delivered."""
        delivered: dict[int, set[int]] = {}
        for queue in self.queues():
            rids = [message.rid for message in queue.available.values() if message.rid is not None]
            assert queue.number is not None
            delivered[queue.number] = set(self.rng.sample(rids, self.rng.randint(0, len(rids))))
        self.model.delivered = delivered
        self.model.is_closed = self.store.close(delivered)
        require(self.asked == self.answered, "closed before somebody was called back")
        require(self.model.is_closed or self.faults, "a close that is not clean")


class CompressingLife(StoreLife):
    """One in which every other queue compresses its messages."""

    def message(self) -> bytes:
        """Data that was never used: a header with its size, and content that can be compressed."""
        head = b"%d:" % self.model.unique()
        return struct.pack(">I", len(head)) + head + b"." * self.rng.choice((0, 20, 300, 500, 900))

    def declared(self, name: str) -> Queue:
        """The record of a new queue."""
        return Queue(name, typed_map({"qpid.compress": "zstd"}) if name[-1] in "13579" else EMPTY_MAP)

    def close(self) -> None:
        """Close the store, after counting the compressed messages in it."""
        self.quiesce()
        for journal in map(journal_of, self.queues()):
            self.compressed += sum(bool(journal.stored(rid)[0].flags & COMPRESSED) for rid in self.messages_of(journal))
        super().close()

    def messages_of(self, journal: QueueJournal) -> list[int]:
        """The messages in a journal, without the dequeues of open transactions."""
        escorts = {rid for each in journal.writer.transactions.values() for rid in each.dequeues.values()}
        return [rid for rid in journal.writer.live if rid not in escorts]


class LargeWork:
    """A large transaction that is under way.

    Attributes:
        handle: the store's.
        xid: of a distributed one.
        queues: those that it is about.
        work: for each of them the messages that it has added, and those that it has removed.
    """

    def __init__(self, handle: LargeTransaction, xid: bytes, queues: list[QueueModel]) -> None:
        self.handle, self.xid, self.queues = handle, xid, queues
        self.work: dict[QueueModel, tuple[list[Message], list[Message]]] = {}

    def take(self, queue: QueueModel, added: list[Message], removed: list[Message]) -> None:
        """A portion was appended."""
        if added or removed:
            of_queue = self.work.setdefault(queue, ([], []))
            of_queue[0].extend(added)
            of_queue[1].extend(removed)

    def give_back(self) -> None:
        """What it has removed may be dequeued."""
        for queue, (_, removed) in self.work.items():
            queue.available.update((message.data, message) for message in removed)


class LargeLife(StoreLife):
    """One with transactions that are appended in portions, while everything else goes on; an event loop watches it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._soon: list[Callable[[], None]] = []
        self.store.is_watched(self._soon.append)
        self.large: LargeWork | None = None

    def deeds(self) -> list[tuple[Callable[[], object], int]]:
        """What is done, and how often."""
        return [*super().deeds(), (self.begin_large, 20), (self.go_on, 60), (self.iterate, 20)]

    def iterate(self) -> None:
        """One iteration of the event loop."""
        soon = self._soon[:]
        self._soon.clear()
        for function in soon:
            function()

    def quiesce(self) -> None:
        """Until everything is answered; the large transaction stays open."""
        for _ in range(_MAX_TURNS):
            self.iterate()
            self.store.start()
            self.store.collect(None)
            if self.asked == self.answered and self.store._flusher.is_idle and not self._soon:
                self.highest()
                return
        raise BrokenPromiseError("somebody is never called back")

    def close(self) -> None:
        """Close the store, after everybody was called back."""
        self.quiesce()
        super().close()

    def begin_large(self) -> None:
        """Begin a large transaction."""
        queues = self.some_queues()
        xid = self.rng.choice((b"", b"", *XIDS))
        is_taken = xid and any(branch.xid == xid for branch in self.model.branches)
        if self.large is not None or not queues or is_taken:
            return
        try:
            handle = self.store.transactions.begin_large(xid)
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            return
        self.large = LargeWork(handle, xid, queues)

    def go_on(self) -> None:
        """A portion of it, or its end."""
        large, chance = self.large, self.rng.random()
        if large is None:
            return
        is_there = all(queue.is_certain for queue in large.queues)
        if is_there and chance < 0.7:
            self._portion(large)
        elif is_there and chance < 0.9:
            self._end_large(large)
        else:
            self._abort_large(large)

    def _portion(self, large: LargeWork) -> None:
        enqueues, dequeues = [], []
        parts: list[tuple[QueueModel, list[Message], list[Message]]] = []
        for queue in large.queues:
            added = [Message(self.message()) for _ in range(self.rng.randint(0, 3))]
            available = list(queue.available.values())
            removed = self.rng.sample(available, min(len(available), self.rng.randint(0, 3)))
            parts.append((queue, added, removed))
            forms = [((message.data,), len(message.data), data_crc((message.data,))) for message in added]
            if forms:
                enqueues.append((journal_of(queue), forms))
            dequeues += [(journal_of(queue), message.rid) for message in removed if message.rid is not None]
        transactions = self.store.transactions
        try:
            rids = transactions.append_portion(large.handle, enqueues, dequeues)
        except (JournalError, CatalogueError, StoreError) as error:
            self._refused(error)
            self._abort_large(large)
            return
        for message, rid in zip([each for _, added, _ in parts for each in added], rids, strict=True):
            message.rid = rid
        for queue, added, removed in parts:
            large.take(queue, added, removed)
            for message in removed:
                del queue.available[message.data]
        self.highest()
        transactions.when_written(large.handle, lambda: None)

    def _end_large(self, large: LargeWork) -> None:
        self.large = None
        self.ended_large += 1
        large.give_back()  # `_appended` takes it
        work = {queue: Operation(added, removed) for queue, (added, removed) in large.work.items()}
        rids = [message.rid or 0 for operation in work.values() for message in operation.enqueues]

        def end(done: Done) -> Sequence[int]:
            try:
                self.store.transactions.end_large(large.handle, done)
            except (JournalError, CatalogueError, StoreError):
                self.large = large
                raise
            return rids

        if large.xid:
            self._branch(Branch(large.xid, work, {Fate.IN_DOUBT, Fate.ABORTED}), {Fate.IN_DOUBT}, end)
        elif len(work) > 1:
            self._branch(Branch(b"", work, {Fate.COMMITTED, Fate.ABORTED}), {Fate.COMMITTED}, end)
        else:
            answered = [partial(settle, queue, queue.position + 1) for queue in work]
            done = self._ask(lambda error: [each(error) for each in answered])  # type: ignore[arg-type, return-value]
            if not self._append(work, partial(end, done)):
                self.asked -= 1
            else:
                for queue, operation in work.items():
                    queue.available.update((message.data, message) for message in operation.enqueues)
        if self.large is not None:
            for operation_queue, (_, removed) in large.work.items():
                for message in removed:
                    operation_queue.available.pop(message.data, None)
            self._abort_large(large)

    def _abort_large(self, large: LargeWork) -> None:
        self.large = None
        done = self._ask(lambda _: large.give_back())
        self.store.transactions.abort_large(large.handle, lambda: done(None))


def is_live(dequeue: Operation, live: Container[int]) -> bool:
    """Whether the message of a dequeue is still there."""
    return dequeue.dequeues[0].rid in live


def settle(queue: QueueModel, position: int, error: Exception | None) -> None:
    """What was appended to a queue is on the disk, or not."""
    if error is None:
        queue.settle(position)


def journal_of(queue: QueueModel) -> QueueJournal:
    """The journal of a queue that is there."""
    assert queue.journal is not None
    return queue.journal


class GrowingLife(StoreLife):
    """A store whose journals grow, and give files back as soon as they do not need them."""

    parameters = TinyParameters(auto_expand=True)


def _is_about(text: str, queue: QueueModel) -> bool:
    """Whether a start tells that the catalogue lacks a queue whose deletion has failed: it may have been written."""
    has_failed = queue.is_deleting and not queue.is_certain
    names = (f'queue "{queue.name}" is not in the catalogue', f"catalogue: queue {queue.number} is missing")
    return has_failed and any(name in text for name in names)
