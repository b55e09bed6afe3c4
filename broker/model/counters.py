"""Counters: those of a queue since it was created or recovered, and numbers with their high and low water marks.

Only a few are incremented per message: enqueues, dequeues, acquires. Others are derived: the depth is enqueues minus
dequeues; messages held by consumers are acquires minus releases and dequeues. Nearly all messages on durable queues are
persistent, and hardly any on other queues: so only atypical messages are counted, whose persistence differs from the
queue's durability.

A message counts as enqueued once it has its position, even while it waits for the disk or for a commit; if the commit
fails it counts as dequeued. Messages recovered at a start count as enqueued then.

Source: qpidd, Queue.cpp and the class Queue of the QMF schema, which define the counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qstore.formats.kernels import count_bodies
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue
    from qstore.formats.kernels.bodies import Bodies

MESSAGE_SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""The upper bounds of the classes of message sizes, in bytes, as RabbitMQ 4 has them (rabbit_msg_size_metrics.erl);
there is one more above them."""


class MessageSizes:
    """How large the messages are that publishers have sent: a histogram, of one protocol.

    What is counted are the bytes of the body; of AMQP 1.0 those of all sections. Consecutive messages of one size are
    counted by one call, at the latest half a second after the first (`protocols/assembly`).

    Attributes:
        bytes: of all messages.
        counts: messages in each class of `MESSAGE_SIZES`.
    """

    __slots__ = ("bytes", "counts")

    def __init__(self) -> None:
        self.bytes = 0
        self.counts = [0] * (len(MESSAGE_SIZES) + 1)

    def add(self, size: int, count: int) -> None:
        """Count messages of one size."""
        self.bytes += size * count
        self.counts[bisect_left(MESSAGE_SIZES, size)] += count

    def add_run(self, bodies: Bodies, count: int) -> None:
        """Count the first `count` of the bodies of a run."""
        if bodies.is_even:
            self.add(bodies.largest, count)
            return
        self.bytes += bodies.size(0, count)
        below, last = 0, bisect_left(MESSAGE_SIZES, bodies.largest)
        for each in range(bisect_left(MESSAGE_SIZES, bodies.smallest), last):
            found = count_bodies(bodies.starts, bodies.gap, count, MESSAGE_SIZES[each])
            self.counts[each] += found - below
            below = found
        self.counts[last] += count - below

    @property
    def messages(self) -> int:
        """Their number."""
        return sum(self.counts)

    def by_bound(self) -> dict[str, int]:
        """Messages by the largest size of their class."""
        return dict(zip((*map(str, MESSAGE_SIZES), "inf"), self.counts, strict=True))


class QueueTotals(NamedTuple):
    """The counters of a queue; for several queues, or a broker, the sums.

    Attributes:
        messages_enqueued, messages_dequeued, bytes_enqueued, bytes_dequeued: all messages.
        persistent_*: likewise, persistent messages only.
        txn_*: likewise, messages enqueued and dequeued by transactions.
        acquires: number of acquisitions by consumers.
        releases: number of releases of acquired messages.
        expired, refused, rejected, purged: messages that expired, that a full queue refused, that a consumer rejected,
            that a purge removed.
        discarded, replaced: messages that made room on a ring queue, and messages replaced by a newer value.
        rerouted: messages that management has moved to an exchange.
        messages_out, messages_in, bytes_out, bytes_in: messages moved out of memory to the disk, and those that have
            come back or left the queue (`residency`).
    """

    messages_enqueued: int = 0
    messages_dequeued: int = 0
    bytes_enqueued: int = 0
    bytes_dequeued: int = 0
    persistent_messages_enqueued: int = 0
    persistent_messages_dequeued: int = 0
    persistent_bytes_enqueued: int = 0
    persistent_bytes_dequeued: int = 0
    txn_messages_enqueued: int = 0
    txn_messages_dequeued: int = 0
    txn_bytes_enqueued: int = 0
    txn_bytes_dequeued: int = 0
    acquires: int = 0
    releases: int = 0
    expired: int = 0
    refused: int = 0
    rejected: int = 0
    purged: int = 0
    discarded: int = 0
    replaced: int = 0
    rerouted: int = 0
    messages_out: int = 0
    messages_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    @property
    def messages(self) -> int:
        """The current depth in messages."""
        return self.messages_enqueued - self.messages_dequeued

    @property
    def bytes(self) -> int:
        """The current depth in bytes of headers and content."""
        return self.bytes_enqueued - self.bytes_dequeued

    @property
    def messages_on_disk(self) -> int:
        """Messages that are out of memory now."""
        return self.messages_out - self.messages_in

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of their headers and content."""
        return self.bytes_out - self.bytes_in

    def emptied(self) -> QueueTotals:
        """The totals with all remaining messages counted as dequeued, because the queue was deleted."""
        return self._replace(
            messages_dequeued=self.messages_enqueued,
            bytes_dequeued=self.bytes_enqueued,
            persistent_messages_dequeued=self.persistent_messages_enqueued,
            persistent_bytes_dequeued=self.persistent_bytes_enqueued,
            messages_in=self.messages_out,
            bytes_in=self.bytes_out,
        )


def difference_of(totals: QueueTotals, less: QueueTotals) -> QueueTotals:
    """Summed counters without those of some of the queues."""
    return QueueTotals(*(one - other for one, other in zip(totals, less, strict=True)))


def sum_of(totals: Iterable[QueueTotals]) -> QueueTotals:
    """The sums of the counters of one or more queues."""
    return QueueTotals(*map(sum, zip(*totals, strict=True)))


class QueueCounters:
    """The counters of a queue that its other state does not provide.

    Attributes:
        atypical_enqueued, atypical_enqueued_bytes, atypical_dequeued, atypical_dequeued_bytes: persistent messages on a
            queue that is not durable, or the reverse.
        txn_messages_enqueued, txn_messages_dequeued, txn_bytes_enqueued, txn_bytes_dequeued, releases, expired,
            rejected, purged, discarded, replaced, rerouted: as in `QueueTotals`.
        internal_acquires: messages acquired by the broker itself, in order to remove them.
        withdrawn: messages removed without being acquired, because their transaction failed.
        enqueuing, dequeuing: the transactions that enqueue and dequeue messages; None before the first.
    """

    __slots__ = (
        "atypical_dequeued",
        "atypical_dequeued_bytes",
        "atypical_enqueued",
        "atypical_enqueued_bytes",
        "dequeuing",
        "discarded",
        "enqueuing",
        "expired",
        "internal_acquires",
        "purged",
        "rejected",
        "releases",
        "replaced",
        "rerouted",
        "txn_bytes_dequeued",
        "txn_bytes_enqueued",
        "txn_messages_dequeued",
        "txn_messages_enqueued",
        "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.atypical_enqueued = self.atypical_enqueued_bytes = 0
        self.atypical_dequeued = self.atypical_dequeued_bytes = 0
        self.txn_messages_enqueued = self.txn_bytes_enqueued = 0
        self.txn_messages_dequeued = self.txn_bytes_dequeued = 0
        self.internal_acquires = self.releases = self.withdrawn = 0
        self.expired = self.rejected = self.purged = self.discarded = self.replaced = self.rerouted = 0
        self.enqueuing: TransactionCounts | None = None
        self.dequeuing: TransactionCounts | None = None

    def atypical_enqueue(self, size: int, count: int = 1) -> None:
        """Count the enqueue of atypical messages of `size` bytes each."""
        self.atypical_enqueued += count
        self.atypical_enqueued_bytes += size

    def atypical_dequeue(self, size: int, count: int = 1) -> None:
        """Count the dequeue of atypical messages of `size` bytes each."""
        self.atypical_dequeued += count
        self.atypical_dequeued_bytes += size

    def txn_enqueued(self, size: int) -> None:
        """Count a message of `size` bytes enqueued by a committed transaction."""
        self.txn_messages_enqueued += 1
        self.txn_bytes_enqueued += size

    def txn_dequeued(self, size: int) -> None:
        """Count a message of `size` bytes dequeued by a committed transaction."""
        self.txn_messages_dequeued += 1
        self.txn_bytes_dequeued += size

    def enqueue_begun(self) -> None:
        """Count a transaction that enqueues its first message."""
        if self.enqueuing is None:
            self.enqueuing = TransactionCounts()
        self.enqueuing.begun()

    def dequeue_begun(self) -> None:
        """Count a transaction that dequeues its first message."""
        if self.dequeuing is None:
            self.dequeuing = TransactionCounts()
        self.dequeuing.begun()

    def totals(
        self, enqueued: tuple[int, int], dequeued: tuple[int, int], acquired: int, refused: int, *, is_durable: bool
    ) -> QueueTotals:
        """All counters of the queue.

        Args:
            enqueued: messages enqueued, and their bytes.
            dequeued: messages dequeued, and their bytes.
            acquired: number of acquisitions.
            refused: messages refused by the limit.
            is_durable: whether the queue is durable.
        """
        messages, size = enqueued
        messages_dequeued, size_dequeued = dequeued
        persistent = (
            self.atypical_enqueued,
            self.atypical_dequeued,
            self.atypical_enqueued_bytes,
            self.atypical_dequeued_bytes,
        )
        if is_durable:
            persistent = (
                messages - self.atypical_enqueued, messages_dequeued - self.atypical_dequeued,
                size - self.atypical_enqueued_bytes, size_dequeued - self.atypical_dequeued_bytes,
            )  # fmt: skip
        return QueueTotals(
            messages, messages_dequeued, size, size_dequeued, *persistent,
            txn_messages_enqueued=self.txn_messages_enqueued, txn_messages_dequeued=self.txn_messages_dequeued,
            txn_bytes_enqueued=self.txn_bytes_enqueued, txn_bytes_dequeued=self.txn_bytes_dequeued,
            acquires=acquired - self.internal_acquires, releases=self.releases,
            expired=self.expired, refused=refused, rejected=self.rejected, purged=self.purged,
            discarded=self.discarded, replaced=self.replaced, rerouted=self.rerouted,
        )  # fmt: skip


class Watermark:
    """A number with its low and high water marks.

    Args:
        value: the number.
        low, high: the marks so far; None for the number.

    Attributes:
        value: the number.
        low, high: its lowest and highest value since the interval began.
    """

    __slots__ = ("high", "low", "value")

    def __init__(self, value: int = 0, low: int | None = None, high: int | None = None) -> None:
        self.value = value
        self.low = value if low is None else min(low, value)
        self.high = value if high is None else max(high, value)

    def __repr__(self) -> str:
        return f"<{self.value}, {self.low} to {self.high}>"

    def set(self, value: int) -> None:
        """Set the number."""
        self.value = value
        if value > self.high:
            self.high = value
        elif value < self.low:
            self.low = value

    def change(self, difference: int) -> None:
        """Add `difference` to the number."""
        self.set(self.value + difference)

    def begin_interval(self) -> None:
        """Reset the marks to the current value."""
        self.low = self.high = self.value


class TransactionCounts:
    """The transactions that enqueue messages on one queue, or dequeue them, local and distributed ones.

    Attributes:
        starts: those that have published to the queue, or accepted a message of it, so far.
        commits, rejects: those of them that were committed, and that were rolled back or have failed.
        pending: the others, among them branches that are prepared.
    """

    __slots__ = ("commits", "pending", "rejects", "starts")

    def __init__(self) -> None:
        self.starts = self.commits = self.rejects = 0
        self.pending = Watermark()

    def begun(self) -> None:
        """Count another one."""
        self.starts += 1
        self.pending.change(1)

    def ended(self, *, is_committed: bool) -> None:
        """Count the end of one."""
        if is_committed:
            self.commits += 1
        else:
            self.rejects += 1
        self.pending.change(-1)


class QueueMarks:
    """The high and low water marks of a queue: its messages, their bytes, and the messages that consumers hold.

    They are noted when the queue is dispatched, once for everything that a tick has brought, not for each message: what
    has left the queue since the last time has left before the rest arrived, unless messages displace others.

    Attributes:
        low, high, bytes_low, bytes_high, held_low, held_high: the marks, as far as they were noted. The queue itself
            notes `held_high`, after its dispatch.
    """

    __slots__ = (
        "_bytes_enqueued", "_enqueued", "bytes_high", "bytes_low", "held_high", "held_low", "high", "low",
    )  # fmt: skip

    def __init__(self) -> None:
        self.low = self.high = self.bytes_low = self.bytes_high = self.held_low = self.held_high = 0
        self._enqueued = self._bytes_enqueued = 0

    def arrived(self, queue: Queue) -> None:
        """Note the queue before it is dispatched."""
        enqueued, size = queue.messages_enqueued, queue.bytes_enqueued
        dequeued, size_out = queue.messages_dequeued, queue.bytes_dequeued
        if enqueued - dequeued > self.high:
            self.high = enqueued - dequeued
        if size - size_out > self.bytes_high:
            self.bytes_high = size - size_out
        before, size_before = (enqueued, size) if queue.displacements else (self._enqueued, self._bytes_enqueued)
        if before - dequeued < self.low:
            self.low = max(0, before - dequeued)
        if size_before - size_out < self.bytes_low:
            self.bytes_low = max(0, size_before - size_out)
        self._enqueued, self._bytes_enqueued = enqueued, size
        held = queue.acquired_count
        if held < self.held_low:
            self.held_low = held

    def begin_interval(self, queue: Queue) -> None:
        """Reset the marks to what is on the queue now."""
        self.low = self.high = queue.message_count
        self.bytes_low = self.bytes_high = queue.message_bytes
        self.held_low = self.held_high = queue.acquired_count
        self._enqueued, self._bytes_enqueued = queue.messages_enqueued, queue.bytes_enqueued
