"""A local transaction: what a session publishes and accepts between two commits.

Until `commit` nothing of it happens: messages that are published are on no queue, and messages that are accepted stay
acquired. At commit everything is checked first, then all that durable queues keep is written as one transaction of the
store; messages are put on their queues at once, behind barriers that are lowered when the commit is on the disk. Until
then nobody sees them.

If the store then says that nobody knows whether the commit is on the disk, what it keeps stays where it is, unseen,
until a restart tells; what nobody keeps is as if the transaction had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.sent_messages import SentMessages
from broker.model.memory import MESSAGE_OVERHEAD
from broker.model.message import Message
from broker.model.queues.barriers import Barrier
from broker.model.queues.entry import ACQUIRED, LEAVING, Entry
from broker.model.queues.queue import Queue, Routed

if TYPE_CHECKING:
    from broker.model.memory import MemoryCeiling
    from broker.model.router import Router
    from broker.model.store_protocol import Store
    from broker.model.turn import Turn

Done = Callable[[ModelError | None], None]


class LocalTransaction:
    """One transaction.

    Args:
        router: finds the queues that messages go to.
        store: what keeps durable messages; None if nothing is kept.
        turn: is told which journals were written to.
        ceiling: is told how the transaction grows.
        max_bytes: memory that the messages published in it take, at most; 0 for no limit.

    Attributes:
        memory: bytes that they take now.
    """

    __slots__ = (
        "__weakref__", "_accepted", "_ceiling", "_max_bytes", "_published", "_router", "_sent", "_store", "_turn",
        "memory",
    )  # fmt: skip

    def __init__(self, router: Router, store: Store | None, turn: Turn, ceiling: MemoryCeiling, max_bytes: int) -> None:
        self._router, self._store, self._turn = router, store, turn
        self._ceiling, self._max_bytes = ceiling, max_bytes
        self._published: list[tuple[Message, Sequence[Queue]]] = []
        self._sent: dict[int, SentMessages] = {}  # place in `_published` -> what its exchange does with it at commit
        self._accepted: dict[Entry, Queue] = {}
        self.memory = 0

    def publish(self, message: Message, exchange: Exchange) -> None:
        """Publish a message at commit, to the queues to which it is routed now.

        Raises:
            ResourceLimitExceededError: the transaction is too large.
        """
        self.publish_to(message, exchange, self._router.route(message, exchange))

    def publish_to(self, message: Message, exchange: Exchange, route: Routed) -> None:
        """As `publish`, by a route that was found before. The message counts as routed, whatever becomes of it."""
        size = message.size + MESSAGE_OVERHEAD
        self.memory += size
        self._ceiling.grown += size
        if self._max_bytes and self.memory > self._max_bytes:
            raise ResourceLimitExceededError(f"a transaction of more than {self._max_bytes} bytes")
        if exchange.sent is not None:
            self._sent[len(self._published)] = exchange.sent
        self._published.append((message, route.queues))
        self._router.count(message, route)

    def accept(self, queue: Queue, entry: Entry) -> None:
        """Dequeue an acquired message at commit."""
        self._accepted[entry] = queue

    def withdraw(self, entry: Entry) -> None:
        """The message is not accepted after all, if it was."""
        self._accepted.pop(entry, None)

    def commit(self, done: Done) -> None:
        """Do all of it.

        Args:
            done: called when it is done and on the disk, or with the error because of which nobody can say.

        Raises:
            ModelError: it cannot be done, and nothing was.
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
            if not queue.is_deleted and entry.state == ACQUIRED
        ]
        self._check_room(published)
        added: list[tuple[Queue, Entry]] = []
        barriers: list[tuple[Queue, Barrier]] = []

        def committed(error: Exception | None) -> None:
            for queue, entry in added:
                _end_publishing(queue, entry, error)
            for queue, entry in accepted:
                _end_accepting(queue, entry, error)
            for queue, barrier in barriers:
                queue.lower(barrier)
            done(None if error is None else InternalError(f"the transaction may be committed or not: {error}"))

        rids = iter(self._write(published, accepted, committed))
        barriers += [(queue, queue.raise_barrier_at_end()) for queue in dict.fromkeys(queue for _, queue in published)]
        for message, queue in published:
            added.append((queue, queue.add_uncommitted(message, next(rids) if queue.keeps(message) else 0)))
        for _, entry in accepted:
            entry.state = LEAVING
        for place, sent in self._sent.items():
            sent.keep(self._published[place][0])
        if not self._is_written(published, accepted):
            committed(None)

    def _check_room(self, published: list[tuple[Message, Queue]]) -> None:
        wanted: dict[Queue, list[int]] = {}
        for message, queue in published:
            wanted.setdefault(queue, []).append(message.size)
        for queue, sizes in wanted.items():
            queue.check_room_for(len(sizes), sum(sizes))

    def _is_written(self, published: list[tuple[Message, Queue]], accepted: list[tuple[Queue, Entry]]) -> bool:
        return any(queue.keeps(message) for message, queue in published) or any(entry.rid for _, entry in accepted)

    def _write(
        self,
        published: list[tuple[Message, Queue]],
        accepted: list[tuple[Queue, Entry]],
        committed: Callable[[Exception | None], None],
    ) -> list[int]:
        """Write what is kept. Returns the record ids of the messages that are."""
        store = self._store
        if store is None or not self._is_written(published, accepted):
            return []
        enqueues = [
            store.transaction_enqueue(queue.journal, *message.stored_form())
            for message, queue in published
            if queue.keeps(message)
        ]
        dequeues = [store.transaction_dequeue(queue.journal, entry.rid) for queue, entry in accepted if entry.rid]
        try:
            rids = store.transactions.commit(enqueues, dequeues, committed)
        except store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        except store.errors as error:
            raise InternalError(str(error)) from error
        turn = self._turn
        for message, queue in published:
            if queue.keeps(message):
                turn.journals[queue.journal] = None
        for queue, entry in accepted:
            if entry.rid:
                turn.journals[queue.journal] = None
        turn.schedule()
        return rids


def _end_publishing(queue: Queue, entry: Entry, error: Exception | None) -> None:
    """A message that was published is on its queue; with an error it is not, or nobody can say."""
    if error is None:
        queue.commit(entry)
    elif not entry.rid:
        queue.withdraw(entry)


def _end_accepting(queue: Queue, entry: Entry, error: Exception | None) -> None:
    """A message that was accepted is gone; with an error it is not, or nobody can say."""
    if queue.is_deleted:
        return
    if error is None:
        queue.counters.txn_dequeued(entry.message.size)
        queue.remove(entry)
    elif not entry.rid:
        entry.state = ACQUIRED
        queue.release(entry, is_redelivered=True)
