"""A store without a disk, which the test tells what is synced and when; an event loop that a test ticks by hand; and
consumers that say what they got.

Appends are kept by journal, in order. `flush` and `commit` wait in `waiting` until the test calls `complete`, or are
done at once with `is_immediate`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from qstore.broker.model.broker import Broker
from qstore.broker.model.message import Message, MessagesRead, RestoreMessage
from qstore.broker.model.queues.arguments import read_arguments
from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.store_protocol import Alike, Done, Refused, RunsRead
from qstore.broker.settings import BrokerSettings
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.values import EMPTY_MAP, TypedMap
from tests.broker.wired_broker import PlainMessage
from tests.support.bodies import read_runs

AT_ONCE: Final = 5  # messages of a run that are appended by one call


class FakeError(Exception):
    """What the store raises by design."""


class FakeFullError(FakeError):
    """No room."""


class FakeFailedError(FakeError):
    """The journal's disk has failed."""


class FakeJournal:
    """The journal of one queue.

    Attributes:
        live: record id -> data of the messages that are enqueued.
        synced: record ids, of messages and of removed messages, whose record is on the disk.
        is_full, has_failed: what the next append says.
        away: record ids of what is out of the broker's memory.
        unreadable: record ids of what cannot be read.
    """

    def __init__(self, name: str, queue_id: int) -> None:
        self.name, self.queue_id = name, queue_id
        self.live: dict[int, bytes] = {}
        self.unsynced_rids: list[int] = []
        self.synced: set[int] = set()
        self.is_full = self.has_failed = self.is_tight = False
        self.transaction_enqueues = 0
        self.bound, self.unsynced = 1 << 20, 0
        self.away: set[int] = set()
        self.unreadable: set[int] = set()

    def load(self, rid: int) -> bytes:
        if rid in self.unreadable:
            raise FakeError(f"record {rid} cannot be read")
        return self.live[rid]

    def check(self, *, is_enqueue: bool = True) -> None:
        if self.has_failed:
            raise FakeFailedError(f"the disk of {self.name} has failed")
        if self.is_full and is_enqueue:
            raise FakeFullError(f'Enqueue capacity threshold exceeded on queue "{self.name}"')


_Places = list[tuple[FakeJournal, int]]


class Waiting(NamedTuple):
    """What waits for the disk."""

    journals: list[FakeJournal]
    rids: list[list[int]]
    done: Done


class FakeLarge(NamedTuple):
    """A transaction that is appended in portions."""

    xid: bytes
    user: str
    enqueued: _Places
    dequeued: _Places


def _waiting(journals: Iterable[FakeJournal], done: Done) -> Waiting:
    chosen = list(dict.fromkeys(journals))
    return Waiting(chosen, [list(journal.unsynced_rids) for journal in chosen], done)


class FakeStore:
    """The store; it has its own appends and transactions.

    Attributes:
        waiting: flushes and commits that are not on the disk, oldest first.
        flushed: the journals that each urgent waiter waits for.
        patient: those that wait, and not urgently, oldest first.
        prepared: xid -> the messages that the branch removes, and those that it adds.
        refuses_decisions: whether outcomes of prepared branches cannot be written.
        is_immediate: whether what is waited for is on the disk within `drained`.
        may_block: of each `drained`, whether it may wait for the disk.
        reads: what is being read, oldest first: `reads.pop(0)()` completes it; with `is_immediate` nothing ever is.
        closed_with: what `close` was told.
        counted: record id -> how often that message has returned, as it was noted.
        portions: how many messages each portion of a large transaction adds and removes.
        holds_portions: whether the next portion waits until the one before is on the disk.
        aborted: how many large transactions were aborted.
    """

    errors = (FakeError,)
    full_error = FakeFullError
    failed_error = FakeFailedError

    def __init__(self) -> None:
        self.append = self.transactions = self
        self.waiting: list[Waiting] = []
        self.reads: list[Callable[[], None]] = []
        self.flushed: list[list[FakeJournal]] = []
        self.prepared: dict[bytes, tuple[_Places, _Places]] = {}
        self.users: dict[bytes, str] = {}
        self.is_immediate = self.refuses_decisions = False
        self.may_block: list[bool] = []
        self.patient: list[Waiting] = []
        self.aborted = 0
        self.portions: list[tuple[int, int]] = []
        self.holds_portions = False
        self.closed_with: dict[int, list[int]] | None = None
        self.counted: dict[int, int] = {}
        self._next_rid = 1
        self._queues = 0

    def journal(self, name: str) -> FakeJournal:
        self._queues += 1
        return FakeJournal(name, self._queues)

    def crc(self, parts: Iterable[bytes]) -> int:
        return zlib.crc32(b"".join(parts))

    # ---- appends ----

    def _append(self, journal: FakeJournal, data: bytes) -> int:
        rid, self._next_rid = self._next_rid, self._next_rid + 1
        journal.live[rid] = data
        journal.unsynced_rids.append(rid)
        return rid

    def enqueue(self, journal: FakeJournal, parts: Sequence[bytes], size: int, crc: int) -> int:
        data = b"".join(parts)
        assert (size, crc) == (len(data), self.crc(parts))
        journal.check()
        return self._append(journal, data)

    def enqueue_all(self, journals: Sequence[FakeJournal], parts: Sequence[bytes], size: int, crc: int) -> list[int]:
        for journal in journals:
            journal.check()
        return [self.enqueue(journal, parts, size, crc) for journal in journals]

    def enqueue_run(
        self,
        journal: FakeJournal,
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        first: int,
        count: int,
    ) -> tuple[int, int]:
        """A few of them, so that the caller comes again."""
        assert first + count <= bodies.count
        journal.check()
        several = min(count, AT_ONCE)
        messages = [bodies.message(head, field, number) for number in range(first, first + several)]
        rids = [self._append(journal, b"".join(message)) for message in messages]
        return rids[0], several

    def enqueue_run_to_all(self, *_run: object) -> tuple[list[int], int]:
        """The caller has to append them one by one."""
        return [], 0

    def dequeue_run(self, journal: FakeJournal, target: int, count: int) -> int:
        """As `enqueue_run`; up to the first that is not there."""
        self.dequeue(journal, target)
        for several in range(1, min(count, AT_ONCE)):
            if journal.live.pop(target + several, None) is None:
                return several
        return min(count, AT_ONCE)

    def dequeue(self, journal: FakeJournal, target: int) -> None:
        journal.check(is_enqueue=False)
        del journal.live[target]  # or it was never there

    # ---- reading back ----

    def read(
        self,
        journal: FakeJournal,
        rids: Sequence[int],
        decode: RestoreMessage,
        done: MessagesRead,
    ) -> None:
        def read() -> None:
            done([self._loaded(journal, rid, decode) for rid in rids])

        if self.is_immediate:
            read()
        else:
            self.reads.append(read)

    def read_runs(
        self, journal: FakeJournal, rids: Sequence[int], decode: RestoreMessage, alike: Alike, done: RunsRead
    ) -> None:
        def read() -> None:
            done(list(read_runs(rids, journal.load, decode, alike, AT_ONCE)))

        if self.is_immediate:
            read()
        else:
            self.reads.append(read)

    def _loaded(self, journal: FakeJournal, rid: int, decode: RestoreMessage) -> Message | Exception:
        try:
            data = b"before " + journal.load(rid) + b" after"
            return decode(data, 7, len(data) - 6)
        except (FakeError, KeyError, BrokerRecordError) as error:
            return error

    def will_read(self, journal: FakeJournal, rids: Sequence[int]) -> None:
        assert set(rids) <= journal.live.keys()

    def put_away(self, journal: FakeJournal, rids: Sequence[int]) -> None:
        assert list(rids) == sorted(rids)
        journal.away.update(rids)

    # ---- transactions ----

    def commit(
        self,
        enqueues: Sequence[tuple[FakeJournal, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[FakeJournal, int]],
        done: Done,
    ) -> list[int]:
        for journal, messages in enqueues:
            assert messages
            assert all(size == sum(map(len, parts)) for parts, size, _ in messages)
            journal.check()
        for journal, _ in dequeues:
            journal.check(is_enqueue=False)
        rids = [self._append(journal, b"".join(parts)) for journal, messages in enqueues for parts, _, _ in messages]
        for journal, rid in dequeues:
            del journal.live[rid]
        self._wait([each[0] for each in (*enqueues, *dequeues)], done)
        return rids

    def prepare(
        self,
        xid: bytes,
        enqueues: Sequence[tuple[FakeJournal, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[FakeJournal, int]],
        done: Done,
        user: str,
    ) -> list[int]:
        assert xid not in self.prepared
        self.users[xid] = user
        rids = self.commit(enqueues, (), done)
        self.prepared[xid] = (
            [(journal, rid) for journal, rid in dequeues],
            list(zip([journal for journal, messages in enqueues for _ in messages], rids, strict=True)),
        )
        return rids

    def begin_large(self, xid: bytes = b"", user: str = "") -> FakeLarge:
        assert xid not in self.prepared
        return FakeLarge(xid, user, [], [])

    def append_portion(
        self,
        large: FakeLarge,
        enqueues: Sequence[tuple[FakeJournal, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[FakeJournal, int]],
    ) -> list[int]:
        for journal, messages in enqueues:
            assert messages
            assert all(size == sum(map(len, parts)) for parts, size, _ in messages)
            journal.check()
        for journal, rid in dequeues:
            journal.check(is_enqueue=False)
            assert rid in journal.live
            assert (journal, rid) not in large.dequeued
        self.portions.append((sum(len(messages) for _, messages in enqueues), len(dequeues)))
        rids = [self._append(journal, b"".join(parts)) for journal, messages in enqueues for parts, _, _ in messages]
        large.enqueued.extend(zip([journal for journal, messages in enqueues for _ in messages], rids, strict=True))
        large.dequeued.extend(dequeues)
        return rids

    def when_written(self, large: FakeLarge, then: Callable[[], None]) -> None:
        if self.holds_portions:
            self._wait([journal for journal, _ in large.enqueued], lambda _: then())
        else:
            then()

    def end_large(self, large: FakeLarge, done: Done) -> None:
        journals = [journal for journal, _ in (*large.enqueued, *large.dequeued)]
        for journal in dict.fromkeys(journals):
            journal.check(is_enqueue=False)
        if large.xid:
            self.users[large.xid] = large.user
            self.prepared[large.xid] = large.dequeued, large.enqueued
        else:
            for journal, rid in large.dequeued:
                del journal.live[rid]
        self._wait(journals, done)

    def abort_large(self, large: FakeLarge, done: Callable[[], None]) -> None:
        for journal, rid in large.enqueued:
            del journal.live[rid]
        self.aborted += 1
        done()

    def commit_prepared(self, xid: bytes, done: Done) -> None:
        self._decide(xid, done, commits=True)

    def abort_prepared(self, xid: bytes, done: Done) -> None:
        self._decide(xid, done, commits=False)

    def _decide(self, xid: bytes, done: Done, *, commits: bool) -> None:
        if self.refuses_decisions:
            raise FakeFailedError("the disk of the prepared list has failed")
        dequeued, enqueued = self.prepared.pop(xid)
        for journal, rid in dequeued if commits else enqueued:
            del journal.live[rid]
        self._wait([], done)

    @property
    def in_doubt(self) -> list[bytes]:
        return list(self.prepared)

    def user_of(self, xid: bytes) -> str:
        return self.users.get(xid, "")

    # ---- the disk ----

    def when_synced(self, journals: Iterable[FakeJournal], done: Done, *, is_urgent: bool = True) -> None:
        chosen = list(journals)
        if is_urgent:
            self.flushed.append(chosen)
            self._wait(chosen, done)
        else:
            self.patient.append(_waiting(chosen, done))

    def drained(self, *, is_idle: bool = False, is_urgent: bool = False) -> None:
        self.may_block.append(is_idle)
        if is_urgent:
            self.linger_no_longer()
        while self.is_immediate and self.waiting:
            self.complete()

    def linger_no_longer(self) -> None:
        """Those that wait, and not urgently, do so urgently from now on, as after some milliseconds."""
        self.flushed += [waiting.journals for waiting in self.patient]
        self.waiting += self.patient
        self.patient.clear()

    def _wait(self, journals: list[FakeJournal], done: Done) -> None:
        self.waiting.append(_waiting(journals, done))

    def complete(self, index: int = 0, error: Exception | None = None) -> None:
        """One of those that wait is on the disk, or never will be."""
        journals, rids, done = self.waiting.pop(index)
        if error is None:
            for journal, synced in zip(journals, rids, strict=True):
                journal.synced.update(synced)
                journal.unsynced_rids = [rid for rid in journal.unsynced_rids if rid not in journal.synced]
        done(error)

    def returned(self, _journal: FakeJournal, rid: int, count: int | None) -> None:
        if count is None:
            self.counted.pop(rid, None)
        else:
            self.counted[rid] = count

    def on_refusal(self, refused: Refused) -> None:
        self.refused = refused

    def fileno(self) -> int:
        return -1

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        self.closed_with = {number: list(rids) for number, rids in (delivered or {}).items()}
        return True


class HandTurned:
    """`call_soon` of an event loop that a test ticks."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, function: Callable[[], None]) -> None:
        self.calls.append(function)

    def run(self) -> None:
        """Until nothing is to be done."""
        for _ in range(1000):
            if not self.calls:
                return
            self.calls.pop(0)()
        raise AssertionError("it comes to no end")


class Model:
    """A broker on a fake store, whose queues are made at once.

    Attributes:
        now: seconds of the monotonic clock, which the time of day follows.
        stepped: seconds by which the time of day was set.
        timers: what is to be called after some seconds, if it has timers.
    """

    def __init__(self, settings: BrokerSettings | None = None, *, has_timers: bool = False) -> None:
        self.store, self.loop = FakeStore(), HandTurned()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now, self.stepped = 1000.0, 0.0
        store: Any = self.store
        self.broker = Broker(
            settings or BrokerSettings(),
            store,
            self.loop,
            lambda: self.now + self.stepped,
            (lambda seconds, callback: self.timers.append((seconds, callback))) if has_timers else None,
            lambda: self.now,
        )
        self.tick = self.broker.tick

    def queue(self, name: str, *, durable: bool = False, arguments: TypedMap = EMPTY_MAP) -> Queue:
        queue = self.broker.queue_factory.make(
            self.broker.default_host,
            name,
            durable=durable,
            auto_delete=False,
            arguments=arguments,
            parsed=read_arguments(arguments),
            journal=self.store.journal(name) if durable else None,
        )
        self.broker.default_host.queues[name] = queue
        return queue

    def message(self, key: str, body: bytes, *, persistent: bool = True, expires_at: float = 0.0) -> PlainMessage:
        store: Any = self.store
        message = PlainMessage(key, body, persistent=persistent, store=store)
        message.expires_at = expires_at
        return message

    def publish(self, key: str, *bodies: bytes, persistent: bool = True, exchange: str = "") -> list[bool]:
        """Publish messages in the tick that lasts; whether each waits for the disk."""
        target = self.broker.default_host.exchanges[exchange]
        return [self.broker.router.publish(self.message(key, body, persistent=persistent), target) for body in bodies]

    def run(self) -> None:
        """The tick's end, and all that follows."""
        self.tick.schedule()
        self.loop.run()

    def sync(self) -> None:
        """Until all is on the disk."""
        self.run()
        self.store.linger_no_longer()
        while self.store.waiting:
            self.store.complete()
            self.run()
            self.store.linger_no_longer()

    def consumer(self, queue: Queue, credit: int = 1 << 30, **options: Any) -> Recorder:
        """One more consumer, which the next tick serves."""
        recorder = Recorder(queue, credit, **options)
        queue.add_consumer(recorder)
        queue.wake(recorder)
        return recorder


class Recorder:
    """A consumer that keeps what it gets.

    Attributes:
        credit: messages that it still takes.
        entries: what it got, in order.
        wants: says which messages are for it.
        on_delivery: called with each entry that it takes.
    """

    cursor: Entry

    def __init__(
        self,
        queue: Queue,
        credit: int,
        *,
        acquires: bool = True,
        wants: Callable[[Entry], bool] = lambda _: True,
        on_delivery: Callable[[Entry], object] | None = None,
    ) -> None:
        self.queue, self.credit, self.acquires, self.wants = queue, credit, acquires, wants
        self.is_waiting = self.is_notified = False
        self.entries: list[Entry] = []
        self.on_delivery: Callable[[Entry], object] = on_delivery or self.entries.append

    @property
    def bodies(self) -> list[bytes]:
        return [entry.message.body for entry in self.entries]

    @property
    def kind(self) -> object:
        return self.wants

    @property
    def has_credit(self) -> bool:
        return self.credit > 0

    def deliver(self, entry: Entry) -> int:
        if not self.credit:
            return REFUSED
        if not self.wants(entry):
            return NOT_FOR_ME
        self.credit -= 1
        self.on_delivery(entry)
        return TAKEN if self.credit else TAKEN_LAST

    def give(self, credit: int) -> None:
        """More credit; the next tick serves it."""
        self.credit += credit
        self.queue.wake(self)

    def queue_deleted(self) -> None:
        self.is_notified = True

    def fail(self, error: Exception) -> None:
        raise error
