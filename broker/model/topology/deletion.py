"""How a queue goes.

    1. it leaves the broker's queues and all exchanges: no message comes any more
    2. its messages, those that consumers hold included, move to the alternate exchange: each is kept there before it
       leaves the queue, and one that no queue wants is dropped
    3. its consumers are taken off, and it is marked as deleted: nothing is appended to its journal any more
    4. the store deletes it, with its journal and bindings: from here on it is gone for good
    5. its consumers are told

If 2 or 4 fails, everything is as it was before, but for the messages that have moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.model.errors import InternalError, ModelError
from broker.model.exchanges.default import DefaultExchange
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding
from broker.model.queues.counters import QueueTotals, sum_of
from broker.model.queues.entry import Entry
from broker.model.queues.queue import Queue
from broker.model.topology.kept_wiring import KeptWiring

if TYPE_CHECKING:
    from broker.model.queues.queue import Alternate
    from broker.model.router import Router

#: So many messages move at once; then others have their turn.
MOVED_AT_ONCE: Final = 1000


class QueueRemoval:
    """Removes the queues of one broker.

    Args:
        queues: name -> queue.
        exchanges: name -> exchange.
        router: moves messages.
        kept: what the store keeps.

    Attributes:
        leaving: queues that are being deleted.
        deleted: what those have counted that are, as if their last messages had been dequeued.
        abandoned: messages that have gone with their queue.
        abandoned_moved: messages that went to the alternate exchange of their queue instead.
    """

    def __init__(
        self, queues: dict[str, Queue], exchanges: Mapping[str, Exchange], router: Router, kept: KeptWiring
    ) -> None:
        self._queues, self._exchanges, self._router, self._kept = queues, exchanges, router, kept
        self.leaving: dict[Queue, None] = {}
        self.deleted = QueueTotals()
        self.abandoned = self.abandoned_moved = 0

    async def remove(self, queue: Queue) -> list[Exchange]:
        """Remove a queue. Returns the exchanges that it was bound to.

        Raises:
            ResourceLimitExceededError: there is no room for its messages where they are to go.
            InternalError: the store fails.
        """
        left = self._leave(queue)
        try:
            if queue.alternate is not None:
                await self._move_messages(queue, queue.alternate)
            await self._delete(queue)
        except BaseException:
            self._return(queue, left)
            raise
        del self.leaving[queue]
        self.abandoned += queue.message_count
        self.deleted = sum_of((self.deleted, queue.totals.emptied()))
        return list(left)

    # ---- exchanges ----

    def _leave(self, queue: Queue) -> dict[Exchange, list[Binding]]:
        self.leaving[queue] = None
        del self._queues[queue.name]
        self._default.forget(queue.name)
        left = ((exchange, exchange.unbind_queue(queue)) for exchange in self._exchanges.values())
        return {exchange: bindings for exchange, bindings in left if bindings}

    def _return(self, queue: Queue, left: dict[Exchange, list[Binding]]) -> None:
        del self.leaving[queue]
        self._queues[queue.name] = queue
        self._default.binding_count.set(len(self._queues))
        for exchange, bindings in left.items():
            for binding in bindings:
                exchange.add(binding)

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
                raise failures.pop(0)  # an error that is kept by a frame that it has passed would stay, with the queue
            await asyncio.sleep(0)

    async def _move(self, queue: Queue, entries: list[Entry], exchange: Alternate) -> list[ModelError]:
        """Move messages. What fails stays, and so does all that would come after it."""
        failures: list[ModelError] = []
        acquired: set[Entry] = set()  # here, and not by a consumer, who keeps what cannot be moved
        moving: list[tuple[Entry, asyncio.Future[Exception | None]]] = []
        for entry in entries:
            if queue.acquire(entry, is_consumed=False):
                acquired.add(entry)
            moved: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            try:
                self._router.move(queue, entry, exchange, partial(_resolve, moved))
            except ModelError as error:
                if entry in acquired:
                    queue.release(entry, is_redelivered=False)
                failures.append(_told(error))
                break
            moving.append((entry, moved))
        for entry, moved in moving:
            failure = await moved
            if failure is not None:
                if entry in acquired:
                    queue.release(entry, is_redelivered=False)
                failures.append(_told(failure))
            else:
                self.abandoned_moved += 1
        return failures

    # ---- the queue ----

    async def _delete(self, queue: Queue) -> None:
        exclusive = queue.exclusive_consumer
        consumers = queue.deleted()
        try:
            await self._kept.delete_queue(queue)
        except BaseException:
            queue.is_deleted = False
            for consumer in consumers:
                queue.add_consumer(consumer)
                queue.wake(consumer)
            queue.exclusive_consumer = exclusive
            raise
        for consumer in consumers:
            consumer.queue_deleted()


def _told(error: Exception) -> ModelError:
    """What whoever asked is told: one that has passed no frame yet, for this one is kept."""
    return type(error)(str(error)) if isinstance(error, ModelError) else InternalError(str(error))


def _resolve(moved: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not moved.done():
        moved.set_result(error)
