"""What a queue has counted since it is there.

Few numbers are added to for every message: what has come, what is gone, how often one was acquired. The others are
found from them: what is there is what has come and is not gone; what consumers hold is what was acquired, and neither
came back nor is gone. Nearly all messages of a durable queue are persistent, and hardly any of another: so what is
counted is messages that are unlike their queue.

A message counts as enqueued as soon as it has its place, also if that waits for the disk or for a commit; if the commit
fails it has been dequeued again. What a queue has when the broker starts was enqueued then.

Source: qpidd, Queue.cpp and the class Queue of the QMF schema, which say what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class QueueTotals(NamedTuple):
    """What a queue has counted; of several queues, or of a broker, the sums.

    Attributes:
        messages_enqueued, messages_dequeued, bytes_enqueued, bytes_dequeued: what has come and gone.
        persistent_*: likewise, of persistent messages alone.
        txn_*: likewise, of messages that came and went by transactions.
        acquires: how often a consumer has got a message.
        releases: how often a message that was acquired was put back.
        expired, refused, rejected, purged: messages that were discarded: after their time, since the queue was full, by
            a consumer that rejected them, by a purge.
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

    @property
    def messages(self) -> int:
        """How many messages are there."""
        return self.messages_enqueued - self.messages_dequeued

    @property
    def bytes(self) -> int:
        """Their headers and content."""
        return self.bytes_enqueued - self.bytes_dequeued

    def emptied(self) -> QueueTotals:
        """As if all that is there were dequeued: the queue is deleted."""
        return self._replace(
            messages_dequeued=self.messages_enqueued,
            bytes_dequeued=self.bytes_enqueued,
            persistent_messages_dequeued=self.persistent_messages_enqueued,
            persistent_bytes_dequeued=self.persistent_bytes_enqueued,
        )


def sum_of(totals: Iterable[QueueTotals]) -> QueueTotals:
    """The sums of what several queues, one at least, have counted."""
    return QueueTotals(*map(sum, zip(*totals, strict=True)))


class QueueCounters:
    """What a queue counts, beside what it needs to know anyway.

    Attributes:
        unlike_enqueued, unlike_enqueued_bytes, unlike_dequeued, unlike_dequeued_bytes: messages that are persistent on
            a queue that is not durable, or the other way round.
        txn_messages_enqueued, txn_messages_dequeued, txn_bytes_enqueued, txn_bytes_dequeued, releases, expired,
            rejected, purged: as in `QueueTotals`.
        own_acquires: messages that the broker has acquired itself, to remove them.
        withdrawn: messages that were removed and that nobody had acquired: their transaction has failed.
    """

    __slots__ = (
        "expired", "own_acquires", "purged", "rejected", "releases", "txn_bytes_dequeued", "txn_bytes_enqueued",
        "txn_messages_dequeued", "txn_messages_enqueued", "unlike_dequeued", "unlike_dequeued_bytes",
        "unlike_enqueued", "unlike_enqueued_bytes", "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.unlike_enqueued = self.unlike_enqueued_bytes = 0
        self.unlike_dequeued = self.unlike_dequeued_bytes = 0
        self.txn_messages_enqueued = self.txn_bytes_enqueued = 0
        self.txn_messages_dequeued = self.txn_bytes_dequeued = 0
        self.own_acquires = self.releases = self.withdrawn = 0
        self.expired = self.rejected = self.purged = 0

    def unlike_came(self, size: int) -> None:
        """A message of `size` bytes has come that is unlike its queue."""
        self.unlike_enqueued += 1
        self.unlike_enqueued_bytes += size

    def unlike_went(self, size: int) -> None:
        """It is gone."""
        self.unlike_dequeued += 1
        self.unlike_dequeued_bytes += size

    def txn_enqueued(self, size: int) -> None:
        """A transaction that brought a message of `size` bytes is committed."""
        self.txn_messages_enqueued += 1
        self.txn_bytes_enqueued += size

    def txn_dequeued(self, size: int) -> None:
        """A transaction that accepted a message of `size` bytes is committed."""
        self.txn_messages_dequeued += 1
        self.txn_bytes_dequeued += size

    def totals(
        self, come: tuple[int, int], gone: tuple[int, int], acquired: int, refused: int, *, is_durable: bool
    ) -> QueueTotals:
        """All that the queue has counted.

        Args:
            come: messages that have come, and their bytes.
            gone: those that are gone, and theirs.
            acquired: how often a message was acquired.
            refused: messages that there was no room for.
            is_durable: whether the queue is.
        """
        messages, size = come
        messages_gone, size_gone = gone
        persistent = self.unlike_enqueued, self.unlike_dequeued, self.unlike_enqueued_bytes, self.unlike_dequeued_bytes
        if is_durable:
            persistent = (
                messages - self.unlike_enqueued, messages_gone - self.unlike_dequeued,
                size - self.unlike_enqueued_bytes, size_gone - self.unlike_dequeued_bytes,
            )  # fmt: skip
        return QueueTotals(
            messages, messages_gone, size, size_gone, *persistent,
            txn_messages_enqueued=self.txn_messages_enqueued, txn_messages_dequeued=self.txn_messages_dequeued,
            txn_bytes_enqueued=self.txn_bytes_enqueued, txn_bytes_dequeued=self.txn_bytes_dequeued,
            acquires=acquired - self.own_acquires, releases=self.releases,
            expired=self.expired, refused=refused, rejected=self.rejected, purged=self.purged,
        )  # fmt: skip
