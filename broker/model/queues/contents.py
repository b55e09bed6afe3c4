"""The messages on a queue, to read: the base of `Queue`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qstore.broker.model.queues.barriers import NO_LIMIT, Barrier, Barriers
from qstore.broker.model.queues.depth import Depth
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, LEAVING, MOVING, Entry
from qstore.broker.model.residency.stretch import Stretch

if TYPE_CHECKING:
    from qstore.broker.model.queues.depth_watch import DepthWatch
    from qstore.broker.model.queues.fifo import Fifo


class Contents(Depth):
    """The messages on a queue.

    Args:
        name, durable, watch: as of `Depth`.
        order: the order of messages.
        created_at: when the queue was created or recovered, in seconds since 1970.

    Attributes:
        created_at: as above.
        is_early: whether a message is delivered before its record is on the disk (`deliver_before_sync`).
        redirect_peer: the queue that gets the messages for this one; None if they are put on it (`redirection`).
        is_redirect_source: whether it is the source of this redirection.
    """

    __slots__ = ("_barriers", "_order", "_unsynced", "created_at", "is_early", "is_redirect_source", "redirect_peer")

    def __init__(
        self, name: str, order: Fifo, *, durable: bool, watch: DepthWatch | None = None, created_at: float = 0.0
    ) -> None:
        super().__init__(name, durable=durable, watch=watch)
        self._order, self.created_at = order, created_at
        self._unsynced = Barriers()
        self._barriers = self._unsynced  # those that delivery stops at
        self.is_early = False
        self.redirect_peer: Any = None
        self.is_redirect_source = False

    @property
    def order(self) -> Fifo:
        """The order of its messages."""
        return self._order

    @property
    def next_position(self) -> int:
        """The position of the next message."""
        return self._order.next_position

    def deliver_before_sync(self) -> None:
        """Deliver a message while its record is written: only those of transactions wait for the disk.

        Called before there are any.
        """
        self._barriers = Barriers()
        self.is_early = True

    @property
    def is_held(self) -> bool:
        """Whether messages on it cannot be delivered before something is on the disk."""
        return self._barriers.limit != NO_LIMIT

    def raise_barrier(self) -> Barrier:
        """Block delivery of the entries held so far until `lower` is called with this barrier."""
        return self._unsynced.raise_held()

    def raise_barrier_at_end(self) -> Barrier:
        """Block delivery of entries added from now on until `lower` is called with this barrier."""
        barrier = self._unsynced.raise_at(self._order.next_position)
        if self.is_early:
            self._barriers.share(barrier)
        return barrier

    def lower_barrier(self, barrier: Barrier) -> None:
        """The records that this barrier waits for are on the disk."""
        self._unsynced.lower(barrier)
        if self.is_early:
            self._barriers.lower(barrier)

    def entries(self) -> Iterator[Entry]:
        """All entries, in order; the one yielded last may be removed during iteration."""
        return iter(self._order)

    def available(self) -> Iterator[Entry]:
        """The available entries."""
        for entry in self._order:
            if entry.state == AVAILABLE:
                yield entry

    def outstanding(self) -> Iterator[Entry]:
        """The entries that are available, or acquired and not settled."""
        for entry in self._order:
            if entry.state in (AVAILABLE, ACQUIRED):
                yield entry

    def delivered_rids(self) -> array[int]:
        """Record ids of messages that were delivered, to be recovered as redelivered."""
        held = (ACQUIRED, LEAVING, MOVING)
        rids = array("Q")
        for part in self._order.parts():
            if isinstance(part, Stretch):
                if part.is_stored:
                    rids.extend(part.redelivered())
            elif part.rid and (part.is_redelivered or part.state in held):
                rids.append(part.rid)
        return rids
