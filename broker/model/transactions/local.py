"""A local transaction: the messages that a session publishes and accepts between two commits.

Nothing takes effect before `commit`: published messages are on no queue, and accepted messages stay acquired. Commit
first checks everything, then writes the records of all durable queues as one transaction of the store. The messages are
enqueued at once, after barriers that are lowered when the commit is on the disk. Until then they are not delivered.
Neither they nor the commit wait for queues that flow control has stopped (`flow_control`).

If the store reports that the outcome of a commit is unknown, stored messages stay in place, undelivered, until the next
start determines the outcome; for messages that are not stored, the transaction is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qstore.broker.model.errors import InternalError, ModelError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.sent_messages import SentMessages
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import Message
from qstore.broker.model.queues.alternate import Routed
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.entry import ACQUIRED, GONE, LEAVING, MOVING, Entry
from qstore.broker.model.queues.queue import Queue

if TYPE_CHECKING:
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick

Done = Callable[[ModelError | None], None]


class LocalTransaction:
    """One transaction.

    Args:
        router: finds the queues for messages.
        store: persists durable messages; None without persistence.
        tick: records which journals were written to.
        ceiling: counts the growth of the transaction.
        max_bytes: memory that the messages published in it may take; 0 for no limit.

    Attributes:
        memory: bytes that they take now.
    """

    __slots__ = (
        "_accepted", "_ceiling", "_max_bytes", "_published", "_router", "_sent", "_store", "_tick",
        "memory",
    )  # fmt: skip

    def __init__(self, router: Router, store: Store | None, tick: Tick, ceiling: MemoryCeiling, max_bytes: int) -> None:
        self._router, self._store, self._tick = router, store, tick
        self._ceiling, self._max_bytes = ceiling, max_bytes
        self._published: list[tuple[Message, Sequence[Queue]]] = []
        self._sent: dict[int, SentMessages] = {}  # index in `_published` -> its exchange's numbering
        self._accepted: dict[Entry, Queue] = {}
        self.memory = 0

    def publish(self, message: Message, exchange: Exchange) -> None:
        """Publish a message at commit, to the queues that it is routed to now.

        Raises:
            ResourceLimitExceededError: the transaction is too large.
        """
        self.publish_to(message, exchange, self._router.route(message, exchange))

    def publish_to(self, message: Message, exchange: Exchange, route: Routed[Queue]) -> None:
        """As `publish`, with a known route. The message is counted as routed even if the transaction fails."""
        size = message.size + MESSAGE_OVERHEAD
        self.memory += size
        self._ceiling.grown += size
        if self._max_bytes and self.memory > self._max_bytes:
            raise ResourceLimitExceededError(f"the transaction is larger than {self._max_bytes} bytes")
        if exchange.sent is not None:
            self._sent[len(self._published)] = exchange.sent
        self._published.append((message, route.queues))
        self._router.count(message, route)

    def accept(self, queue: Queue, entry: Entry) -> None:
        """Dequeue an acquired message at commit."""
        self._accepted[entry] = queue

    def withdraw(self, entry: Entry) -> None:
        """Cancel the acceptance of a message, if it was accepted."""
        self._accepted.pop(entry, None)

    def commit(self, done: Done) -> None:
        """Commit the transaction.

        Args:
            done: called when it is on the disk, or with an error if the outcome is unknown.

        Raises:
            ModelError: it cannot be committed, and nothing was changed.
        """
        for place, sent in self._sent.items():
            message, queues = self._published[place]
            self._published[place] = sent.number(message), queues
        published = [
            (message, queue) for message, queues in self._published for queue in queues if not queue.is_deleted
        ]
        accepted = [
            (queue, entry)
            for entry, queue in self._accepted.items()
            if not queue.is_deleted and entry.state in (ACQUIRED, MOVING)
        ]
        self._check_room(published)
        self._check_deletions()
        added: list[tuple[Queue, Entry]] = []
        barriers: list[tuple[Queue, Barrier]] = []

        def committed(error: Exception | None) -> None:
            for queue, entry in added:
                _end_publishing(queue, entry, error)
            for queue, entry in accepted:
                _end_accepting(queue, entry, error)
            for queue, barrier in barriers:
                queue.lower(barrier)
            done(None if error is None else InternalError(f"the outcome of the transaction is unknown: {error}"))

        rids = self._write(published, accepted, committed)
        each_queue = dict.fromkeys([queue for _, queue in published])
        barriers += [(queue, queue.raise_barrier_at_end()) for queue in each_queue]
        for number, (message, queue) in enumerate(published):
            added.append((queue, queue.add_uncommitted(message, rids[number] if rids else 0)))
        for queue in each_queue:
            queue.watch.update(queue)
        for _, entry in accepted:
            entry.state = LEAVING
        for place, sent in self._sent.items():
            sent.keep(self._published[place][0])
        if rids is None:
            committed(None)

    def _check_deletions(self) -> None:
        """Refuse to accept stored messages that leave with their deleted queue: a crash could bring back only these.

        Raises:
            ResourceDeletedError: the store is deleting the queue of such a message, or it was just moved from there.
        """
        for entry, queue in self._accepted.items():
            is_leaving = queue.deletion is not None and entry.rid and entry.state == ACQUIRED
            if is_leaving or (entry.state == GONE and self._router.is_moving(entry)):
                raise ResourceDeletedError(f"Queue {queue.name} is being deleted, with messages of the transaction")

    def _check_room(self, published: list[tuple[Message, Queue]]) -> None:
        wanted: dict[Queue, list[int]] = {}
        for message, queue in published:
            wanted.setdefault(queue, []).append(message.size)
        for queue, sizes in wanted.items():
            queue.check_room_for(len(sizes), sum(sizes))

    def _write(
        self,
        published: list[tuple[Message, Queue]],
        accepted: list[tuple[Queue, Entry]],
        committed: Callable[[Exception | None], None],
    ) -> list[int] | None:
        """Write the records of durable queues.

        Returns:
            The record id of each published message, 0 if it is not stored; None if nothing was written.
        """
        store = self._store
        if store is None:
            return None
        enqueues: list[tuple[Any, Sequence[bytes], int, int]] = []
        is_stored: list[bool] = []
        journals = self._tick.journals
        for message, queue in published:
            stores = queue.stores(message)
            is_stored.append(stores)
            if stores:
                parts, size, crc = message.stored_form()
                enqueues.append((queue.journal, parts, size, crc))
        dequeues = [(queue.journal, entry.rid) for queue, entry in accepted if entry.rid]
        if not enqueues and not dequeues:
            return None
        try:
            written = store.transactions.commit(enqueues, dequeues, committed)
        except store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        except store.errors as error:
            raise InternalError(str(error)) from error
        for journal, _, _, _ in enqueues:
            journals[journal] = None
        for journal, _ in dequeues:
            journals[journal] = None
        self._tick.is_urgent = True
        self._tick.schedule()
        if len(written) == len(published):
            return written
        rids = iter(written)
        return [next(rids) if stores else 0 for stores in is_stored]


def _end_publishing(queue: Queue, entry: Entry, error: Exception | None) -> None:
    """Commit a published message; after an error withdraw it, unless it is stored: then the outcome is unknown."""
    if error is None:
        queue.commit(entry)
    elif not entry.rid:
        queue.withdraw(entry)


def _end_accepting(queue: Queue, entry: Entry, error: Exception | None) -> None:
    """Remove an accepted message; after an error release it, unless it is stored: then the outcome is unknown."""
    if queue.is_gone:
        return
    if error is None:
        queue.counters.txn_dequeued(entry.message.size)
        queue.remove(entry)
    elif not entry.rid:
        entry.state = ACQUIRED
        queue.release(entry, is_redelivered=True)
