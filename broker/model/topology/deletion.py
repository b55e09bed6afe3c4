"""Deleting a queue.

    1. it is removed from the broker's queues and, in portions, from all exchanges: no message is routed to it any more
    2. its messages, including those that consumers hold, move to the alternate exchange: each is stored there before it
       leaves the queue; unroutable ones are dropped
    3. its consumers are removed, and it is marked as deleted: nothing is appended to its journal any more, and an
       accept of one of its messages waits for 4, since until then a crash would bring the message back
    4. the store deletes it with its journal and bindings: this is the commit point
    5. its consumers are notified

Its remaining messages in memory are freed in turns (`Queue.dissolve`). If 2 or 4 fails, everything is restored, except
messages already moved. If 4 is cancelled, nothing is restored: the store may still be deleting the queue, and nothing
may be appended to its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from qstore.broker.model.counters import QueueTotals, sum_of
from qstore.broker.model.errors import InternalError, ModelError
from qstore.broker.model.exchanges.default import DefaultExchange
from qstore.broker.model.exchanges.exchange import Exchange, refresh
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.topology.changes import TopologyStorage

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.route import Alternate
    from qstore.broker.model.router import Router

#: Messages moved before yielding to other work.
DELETED_AT_ONCE: Final = 40
"""Queues whose deletion is begun in one turn, because they are no longer used: each takes some 0.15 ms."""

MOVED_AT_ONCE: Final = 1000


#: Bindings created or removed before yielding to other work: about a millisecond.
BINDINGS_AT_ONCE: Final = 500

#: Consumers of a deleted queue that are notified before yielding to other work: some 3 ms.
NOTIFIED_AT_ONCE: Final = 300


class QueueRemoval:
    """Deletes the queues of one virtual host.

    Args:
        queues: name -> queue.
        exchanges: name -> exchange.
        router: moves messages.
        storage: stores the topology.

    Attributes:
        leaving: queues that are being deleted.
        deleted: counters of deleted queues, with their last messages counted as dequeued.
        abandoned: messages deleted with their queue.
        abandoned_moved: messages moved to the alternate exchange of their queue instead.
        leaves: called with each queue before it is deleted.
    """

    def __init__(
        self, queues: dict[str, Queue], exchanges: Mapping[str, Exchange], router: Router, storage: TopologyStorage
    ) -> None:
        self._queues, self._exchanges, self._router, self._storage = queues, exchanges, router, storage
        self.leaving: dict[Queue, None] = {}
        self.deleted = QueueTotals()
        self.abandoned = self.abandoned_moved = 0
        self.leaves: Callable[[Queue], None] = lambda _: None

    async def remove(self, queue: Queue) -> dict[Exchange, list[Binding]]:
        """Delete a queue. Returns the exchanges that it was bound to, and its bindings.

        Raises:
            ResourceLimitExceededError: there is no room for its messages at their destination.
            InternalError: the store fails.
        """
        self.leaves(queue)
        left: dict[Exchange, list[Binding]] = {}
        try:
            await self._unroute(queue, left)
            if queue.alternate is not None:
                await self._move_messages(queue, queue.alternate)
            await self._delete(queue)
        except BaseException:
            if queue.deletion is None:  # otherwise the store may still be deleting the queue
                self._restore(queue, left)
            raise
        del self.leaving[queue]
        queue.dissolve()
        self.abandoned += queue.message_count
        self.deleted = sum_of((self.deleted, queue.totals.emptied()))
        return left

    # ---- exchanges ----

    async def _unroute(self, queue: Queue, left: dict[Exchange, list[Binding]]) -> None:
        """Take the queue out of all exchanges, and add its bindings to `left`."""
        self.leaving[queue] = None
        del self._queues[queue.name]
        self._default.forget(queue.name)
        for exchange in list(queue.bound_to):
            bindings = await unbind_all(exchange, queue)
            if bindings:
                left[exchange] = bindings

    def _restore(self, queue: Queue, left: dict[Exchange, list[Binding]]) -> None:
        del self.leaving[queue]
        self._queues[queue.name] = queue
        self._default.binding_count.set(len(self._queues))
        for exchange, bindings in left.items():
            for binding in bindings:
                exchange.add(binding)
        if any(exchange.selectors for exchange in left):
            refresh(self._exchanges.values())

    @property
    def _default(self) -> DefaultExchange:
        default = self._exchanges[""]
        assert isinstance(default, DefaultExchange)
        return default

    # ---- messages ----

    async def _move_messages(self, queue: Queue, exchange: Alternate) -> None:
        while entries := list(islice(queue.outstanding(), MOVED_AT_ONCE)):
            failures = await self._move(queue, entries, exchange)
            if failures:
                raise failures.pop(0)  # popped: a reference in this frame would keep the error and the queue alive
            await asyncio.sleep(0)

    async def _move(self, queue: Queue, entries: list[Entry], exchange: Alternate) -> list[ModelError]:
        """Move messages. A message that cannot be moved stays, and so do all after it."""
        failures: list[ModelError] = []
        acquired: set[Entry] = set()  # by this function: consumers keep messages that cannot be moved
        moving: list[tuple[Entry, asyncio.Future[Exception | None]]] = []
        before = exchange.steps
        for entry in entries:
            if queue.acquire(entry, is_consumed=False):
                acquired.add(entry)
            moved: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            try:
                self._router.move(queue, entry, exchange, partial(_resolve, moved))
            except ModelError as error:
                if entry in acquired:
                    queue.release(entry, is_redelivered=False, was_delivered=False)
                failures.append(_without_traceback(error))
                break
            moving.append((entry, moved))
            if exchange.steps - before > MAX_STEPS:
                break  # the others are moved in the next portion
        for entry, moved in moving:
            failure = await moved
            if failure is not None:
                if entry in acquired:
                    queue.release(entry, is_redelivered=False, was_delivered=False)
                failures.append(_without_traceback(failure))
            else:
                self.abandoned_moved += 1
        return failures

    # ---- the queue ----

    async def _delete(self, queue: Queue) -> None:
        queue.begin_deletion()
        try:
            await self._storage.delete_queue(queue)
        except ModelError:
            queue.undo_deletion()
            raise
        for number, consumer in enumerate(queue.end_deletion(), 1):
            consumer.queue_deleted()
            if not number % NOTIFIED_AT_ONCE:
                await asyncio.sleep(0)


async def unbind_all(exchange: Exchange, queue: Queue) -> list[Binding]:
    """Remove and return all bindings of a queue to an exchange, in portions."""
    bindings = exchange.bindings_of(queue)
    async for binding in in_portions(bindings):
        exchange.remove(binding)
    return bindings


async def in_portions(bindings: Iterable[Binding]) -> AsyncIterator[Binding]:
    """The same bindings; yields to other work after each portion."""
    for number, binding in enumerate(bindings, 1):
        yield binding
        if not number % BINDINGS_AT_ONCE:
            await asyncio.sleep(0)


def _without_traceback(error: Exception) -> ModelError:
    """The error for the caller: a new one without traceback, because it is stored for a while."""
    return type(error)(str(error)) if isinstance(error, ModelError) else InternalError(str(error))


def _resolve(moved: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not moved.done():
        moved.set_result(error)
