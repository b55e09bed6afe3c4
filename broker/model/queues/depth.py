"""How much is on a queue, and its counters: the base of `Queue`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.counters import QueueCounters, QueueTotals
from qstore.broker.model.queues.depth_watch import DepthWatch

if TYPE_CHECKING:
    from qstore.broker.model.residency.residency import Residency


class Depth:
    """The messages on a queue, including those that consumers hold, in numbers.

    Attributes:
        name: the queue's name.
        durable: whether it survives a restart.
        messages_enqueued, messages_dequeued: messages enqueued and dequeued so far.
        bytes_enqueued, bytes_dequeued: their headers and content.
        counters: its other counters (`totals`).
        watch: what follows from the depth: flow control and alerts (`depth_watch`); by default nothing.
        uncommitted, uncommitted_bytes: those on the queue whose transaction is not committed yet.
        residency: which of them are in memory (`residency`); None if all are, always.
    """

    __slots__ = (
        "_acquired", "bytes_dequeued", "bytes_enqueued", "counters", "durable", "messages_dequeued",
        "messages_enqueued", "name", "residency", "uncommitted", "uncommitted_bytes", "watch",
    )  # fmt: skip

    def __init__(self, name: str, *, durable: bool, watch: DepthWatch | None = None) -> None:
        self.name, self.durable = name, durable
        self.watch = DepthWatch([]) if watch is None else watch
        self.messages_enqueued = self.messages_dequeued = self.bytes_enqueued = self.bytes_dequeued = 0
        self.counters = QueueCounters()
        self._acquired = 0  # how often an entry became ACQUIRED
        self.uncommitted = self.uncommitted_bytes = 0
        self.residency: Residency | None = None

    @property
    def message_count(self) -> int:
        """Messages on the queue, including those that consumers hold."""
        return self.messages_enqueued - self.messages_dequeued

    @property
    def message_bytes(self) -> int:
        """Bytes of their headers and content."""
        return self.bytes_enqueued - self.bytes_dequeued

    @property
    def acquired_count(self) -> int:
        """Messages held by consumers or transactions."""
        counters = self.counters
        return self._acquired + counters.withdrawn - counters.releases - self.messages_dequeued

    @property
    def available_count(self) -> int:
        """Messages that are available, or only wait for the disk."""
        return self.message_count - self.acquired_count - self.uncommitted

    @property
    def totals(self) -> QueueTotals:
        """All its counters."""
        enqueued, dequeued = (
            (self.messages_enqueued, self.bytes_enqueued),
            (self.messages_dequeued, self.bytes_dequeued),
        )
        totals = self.counters.totals(enqueued, dequeued, self._acquired, self.refused, is_durable=self.durable)
        out = self.residency
        if out is None:
            return totals
        return totals._replace(
            messages_out=out.messages_out, messages_in=out.messages_in, bytes_out=out.bytes_out, bytes_in=out.bytes_in
        )

    @property
    def refused(self) -> int:
        """Number of messages that its limit has refused."""
        return 0

    @property
    def memory(self) -> int:
        """Bytes of memory taken by its messages, as counted for the memory ceiling."""
        size = self.message_bytes + MESSAGE_OVERHEAD * self.message_count
        return size if self.residency is None else size - self.residency.memory_out

    @property
    def is_empty(self) -> bool:
        """Whether no message is on it."""
        return self.message_count == 0
