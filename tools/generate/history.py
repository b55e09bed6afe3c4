"""The history of one queue: messages are published, singly or in transactions, some are consumed, and some remain.

Whether a message remains or is consumed is decided when it is published. Those to be consumed wait in a backlog whose
length rises and falls, as if consumers were absent for a while; they are taken from its front, and sometimes from
slightly behind it. In the end it is empty. Then transactions in doubt are added: each enqueues messages and locks
others.

If a journal refuses a message, and the number of messages is given, consumers take the oldest ones, including those
that were meant to remain; otherwise the queue's history ends. A remaining message takes 16 bytes of memory, in addition
to the memory of the journal's writer.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.errors import JournalFullError
from qstore.tools.generate.fleet import (
    IN_DOUBT_RECORDS,
    FleetSpec,
    MessageFactory,
    QueuePlan,
    StoreFormat,
    queue_source,
)
from qstore.tools.generate.ring_journals import GeneratedJournal

_MAX_GROUP: Final = 8  # messages of a transaction
_MAX_IN_FLUSH: Final = 32  # records
_FLUSH_BYTES: Final = 1 << 20
_MAX_BACKLOG: Final = 5000  # messages
_BACKLOG_SHARE: Final = 8  # the backlog is at most one in this many of all messages
_JITTER: Final = 0.1  # share of the messages that are taken out of order
_JITTER_SPAN: Final = 8
_TAKEN_AT_ONCE: Final = 16  # messages, if a journal is full; and at least one in eight of all
_MAX_TURNS: Final = 40  # of consuming, per message
_RECORD_BYTES: Final = 64 + BLOCK_SIZE // 2  # of a record except its data, on average
_SIZE_BITS: Final = 25  # of a message's body; the place of the message is above
_SAMPLES: Final = 16


class Waiting(NamedTuple):
    """A message on the queue: its record id, and its place and body's size packed."""

    rid: int
    packed: int


class _RunEndError(Exception):
    """The journal cannot accept the next operation."""


@dataclass(slots=True)
class _Transaction:
    """An open transaction: its enqueues and dequeues."""

    xid: bytes
    sent: list[Waiting] = field(default_factory=list)
    taken: list[Waiting] = field(default_factory=list)


class QueueHistory:
    """The history of one queue.

    Args:
        spec: the fleet's request.
        store: number of the store.
        plan: the queue's plan.
        journal: the journal to write.
        factory: creates its messages.
        rids: allocates record ids.

    Attributes:
        counts: what was done.
        samples: records from which one can be damaged, if planned.
        flushes: number of flushes.
        last_flush: place where the last flush begins.
        last_ended: the last transaction that was ended, and whether it was committed; None if there is none.
        open_enqueues, open_dequeues: xid of a transaction in doubt -> number of its messages in this queue.
    """

    def __init__(
        self,
        spec: FleetSpec,
        store: int,
        plan: QueuePlan,
        journal: GeneratedJournal,
        factory: MessageFactory,
        rids: Callable[[], int],
    ) -> None:
        self._spec, self._plan, self._journal, self._factory, self._rids = spec, plan, journal, factory, rids
        self._source = queue_source(spec, store, plan.number, "life")
        self._chance = queue_source(spec, store, plan.number, "samples")
        self._size = spec.sizes.sampler(queue_source(spec, store, plan.number, "sizes"))
        self._process = queue_source(spec, store, plan.number, "xids").randbytes(16)
        self._kept_rids, self._kept = array("Q"), array("Q")
        self._kept_head = 0  # those before it were dequeued after all
        self._backlog: deque[Waiting] = deque()
        self._locked: dict[int, bytes] = {}
        self._in_doubt: list[tuple[Waiting, bytes]] = []
        self._place = self._bytes = self._unflushed = self._end_of_flush = 0
        self._until_flush = 1
        self._allowed = 0  # messages of the backlog that consumers currently leave
        self._transactions = 0
        self.counts = Counts()
        self.samples: list[Sample] = []
        self.flushes = 0
        self.last_flush = 0
        self.last_ended: tuple[bytes, bool] | None = None
        self.open_enqueues: dict[bytes, int] = {}
        self.open_dequeues: dict[bytes, int] = {}

    # ---- the whole history ----

    def run(self) -> None:
        """Execute the history. Raises OSError."""
        group = self._group_chance()
        random_number = self._source.random
        try:
            while not self._is_enough():
                if random_number() < group:
                    self._transaction()
                else:
                    self._message()
                self._consume()
                self._flush_if_due()
        except _RunEndError:
            pass
        self._drain()
        for xid in self._plan.in_doubt:
            self._leave_in_doubt(xid)
        self._flush()

    def live(self) -> Iterator[LiveMessage]:
        """The messages that remain at the end, in the order of their record ids."""
        kept = (
            (self._kept_rids[at], self._kept[at], self._locked.get(self._kept_rids[at], b""))
            for at in range(self._kept_head, len(self._kept_rids))
        )
        left = sorted((rid, packed, b"") for rid, packed in self._backlog)
        opened = sorted((each.rid, each.packed, xid) for each, xid in self._in_doubt)
        open_rids = {each.rid for each, _ in self._in_doubt}
        for rid, packed, xid in heapq.merge(kept, left, opened):
            state = IN_DOUBT_ENQUEUE if rid in open_rids else IN_DOUBT_DEQUEUE if xid else OUTSTANDING
            yield LiveMessage(rid, state, packed >> _SIZE_BITS, packed & ((1 << _SIZE_BITS) - 1), xid)

    def _group_chance(self) -> float:
        """The probability of a transaction as the next operation, for the requested share of messages in one."""
        share, mean = self._spec.transactions, (_MAX_GROUP + 1) / 2
        return share / (share + (1 - share) * mean)

    def _is_enough(self) -> bool:
        if self._plan.messages is not None:
            return self._place >= self._plan.messages
        return self._bytes + len(self._backlog) * BLOCK_SIZE >= self._plan.room

    # ---- sending ----

    def _message(self) -> None:
        sent = self._send(b"")
        if sent is not None:
            self._arrived(sent)

    def _send(self, xid: bytes) -> Waiting | None:
        """Send a message; None if a message of an open transaction is refused."""
        size, place = self._size(), self._place
        data = self._factory.message(place, size)
        for _ in range(_MAX_TURNS):
            rid = self._rids()
            try:
                at = self._journal.enqueue(rid, data, xid)
            except JournalFullError:
                self.counts.refused += 1
                if xid:
                    return None
                self._make_room()
                continue
            self._place += 1
            self.counts.sent += 1
            grown = len(data) + _RECORD_BYTES
            self._bytes += grown
            self._unflushed += grown
            self._until_flush -= 1
            if self._plan.damage is not None:
                self._sample(Sample(at, rid, len(data), self.flushes))
            return Waiting(rid, place << _SIZE_BITS | size)
        raise _RunEndError

    def _sample(self, record: Sample) -> None:
        """Keep some of the records, each as likely as any other."""
        if len(self.samples) < _SAMPLES:
            self.samples.append(record)
        elif (at := int(self._chance.random() * self.counts.sent)) < _SAMPLES:
            self.samples[at] = record

    def _arrived(self, message: Waiting) -> None:
        """A message was enqueued: it remains, or waits to be consumed."""
        is_first_of_line = self._spec.format is StoreFormat.LINEARSTORE and not message.packed >> _SIZE_BITS
        if self._source.random() < self._spec.dequeued and not is_first_of_line:
            self._backlog.append(message)
        else:
            self._kept_rids.append(message.rid)
            self._kept.append(message.packed)

    # ---- consuming ----

    def _consume(self) -> None:
        """Consume the part of the backlog above its present limit."""
        backlog, source = self._backlog, self._source
        excess = len(backlog) - self._allowed
        while excess > 0 and backlog:
            excess -= 1
            if source.random() < _JITTER:
                backlog.rotate(-1 - int(source.random() * min(_JITTER_SPAN, len(backlog))))
                self._take(backlog.pop())
                # Skipped messages are at the end now, and go back to the front.
                self._restore_order()
            else:
                self._take(backlog.popleft())

    def _restore_order(self) -> None:
        backlog = self._backlog
        while len(backlog) > 1 and backlog[-1].rid < backlog[0].rid:
            backlog.rotate(1)

    def _allowed_backlog(self) -> int:
        """The present limit of the backlog: a few waves of different heights over the queue's life."""
        expected = self._plan.expected
        maximum = min(_MAX_BACKLOG, expected // _BACKLOG_SHARE)
        progress = self._place / expected
        wave = 1.0 - math.cos(progress * 8 * math.pi)
        return int(maximum * wave * (0.6 + 0.4 * math.sin(progress * 3)) / 2)

    def _take(self, message: Waiting) -> None:
        """Dequeue a message outside transactions."""
        try:
            self._journal.dequeue(self._rids(), message.rid, b"")
        except JournalFullError:
            self.counts.refused += 1
            self._backlog.appendleft(message)
            raise _RunEndError from None
        self.counts.taken += 1
        self._bytes += BLOCK_SIZE
        self._until_flush -= 1

    def _make_room(self) -> None:
        """The journal is full: consume the oldest messages if the number of messages is given, otherwise end."""
        if self._plan.messages is None:
            raise _RunEndError
        kept = len(self._kept_rids) - self._kept_head
        count = max(_TAKEN_AT_ONCE, (kept + len(self._backlog)) // 8)
        for _ in range(count):
            oldest_kept = self._kept_rids[self._kept_head] if self._kept_head < len(self._kept_rids) else None
            if self._backlog and (oldest_kept is None or self._backlog[0].rid < oldest_kept):
                self._take(self._backlog.popleft())
            elif oldest_kept is not None:
                # First counted as consumed: those that `_take` cannot take go back to the backlog's front, which is
                # older.
                self._kept_head += 1
                self._take(Waiting(oldest_kept, self._kept[self._kept_head - 1]))
        self._flush()

    def _drain(self) -> None:
        """Consume the remaining backlog, as far as the journal accepts it."""
        try:
            while self._backlog:
                self._take(self._backlog.popleft())
                self._flush_if_due()
        except _RunEndError:
            pass

    # ---- transactions ----

    def _transaction(self) -> None:
        """A local transaction with some enqueues and some dequeues, which is committed or aborted."""
        source = self._source
        self._transactions += 1
        transaction = _Transaction(self._transactions.to_bytes(8, "little") + self._process)
        count = source.randint(1, _MAX_GROUP)
        if self._plan.messages is not None:
            count = min(count, self._plan.messages - self._place)
        for _ in range(count):
            sent = self._send(transaction.xid)
            if sent is None:
                break
            transaction.sent.append(sent)
        takes = min(len(self._backlog), int(source.random() * count))
        while takes > len(transaction.taken) and self._take_in(transaction):
            pass
        if transaction.sent or transaction.taken:
            self._end(transaction, commit=source.random() >= self._spec.aborted)
        if len(transaction.sent) < count:
            self._make_room()

    def _take_in(self, transaction: _Transaction) -> bool:
        message = self._backlog[0]
        try:
            self._journal.dequeue(self._rids(), message.rid, transaction.xid)
        except JournalFullError:
            return False
        transaction.taken.append(self._backlog.popleft())
        self._bytes += BLOCK_SIZE
        return True

    def _end(self, transaction: _Transaction, *, commit: bool) -> None:
        try:
            self._journal.finish_transaction(self._rids(), transaction.xid, commit=commit)
        except JournalFullError:
            self.counts.refused += 1
            self._undo(transaction)  # never prepared: recovery drops it
            raise _RunEndError from None
        self._bytes += BLOCK_SIZE
        self.last_ended = transaction.xid, commit
        if not commit:
            self.counts.aborts += 1
            self._undo(transaction)
            return
        self.counts.commits += 1
        self.counts.taken += len(transaction.taken)
        for message in transaction.sent:
            self._arrived(message)

    def _undo(self, transaction: _Transaction) -> None:
        self.counts.rolled_back += len(transaction.sent)
        self._backlog.extendleft(reversed(transaction.taken))

    def _leave_in_doubt(self, xid: bytes) -> None:
        """A distributed transaction with a few operations that is never ended."""
        source = self._source
        for _ in range(source.randint(1, IN_DOUBT_RECORDS)):
            sent = self._send(xid)
            if sent is None:
                break
            self._in_doubt.append((sent, xid))
            self.open_enqueues[xid] = self.open_enqueues.get(xid, 0) + 1
        at = len(self._kept_rids) - 1
        for _ in range(source.randint(0, IN_DOUBT_RECORDS)):
            while at >= self._kept_head and self._kept_rids[at] in self._locked:
                at -= 1
            if at < self._kept_head:
                return
            try:
                self._journal.dequeue(self._rids(), self._kept_rids[at], xid)
            except JournalFullError:
                return
            self._locked[self._kept_rids[at]] = xid
            self.open_dequeues[xid] = self.open_dequeues.get(xid, 0) + 1

    # ---- flushes ----

    def _flush_if_due(self) -> None:
        if self._until_flush <= 0 or self._unflushed >= _FLUSH_BYTES:
            self._flush()
            self._until_flush = self._source.randint(1, _MAX_IN_FLUSH)
            self._allowed = self._allowed_backlog()

    def _flush(self) -> None:
        if self._journal.end == self._end_of_flush:
            return
        self._journal.flush()
        self._unflushed = 0
        self.flushes += 1
        self.last_flush, self._end_of_flush = self._end_of_flush, self._journal.end


# ---- the result of a queue's history ----

OUTSTANDING: Final = "outstanding"
IN_DOUBT_ENQUEUE: Final = "in-doubt-enqueue"
IN_DOUBT_DEQUEUE: Final = "in-doubt-dequeue"


class LiveMessage(NamedTuple):
    """A message that remains at the end.

    Attributes:
        rid: its record id.
        state: "outstanding", "in-doubt-enqueue" or "in-doubt-dequeue".
        place: in the order of publishing, from 0.
        size: size of its body in bytes.
        xid: the transaction in doubt; empty if there is none.
    """

    rid: int
    state: str
    place: int
    size: int
    xid: bytes


class Sample(NamedTuple):
    """The record of a message: its place, its record id, its data's size, and how many flushes came before it."""

    place: int
    rid: int
    size: int
    flush: int


@dataclass(slots=True)
class Counts:
    """Number of operations on a queue.

    Attributes:
        sent: messages that were enqueued, in transactions or not.
        taken: messages that were dequeued permanently.
        rolled_back: messages of transactions that were aborted.
        commits, aborts: ended transactions.
        refused: how often the journal had no space.
    """

    sent: int = 0
    taken: int = 0
    rolled_back: int = 0
    commits: int = 0
    aborts: int = 0
    refused: int = 0
