"""Builds queues from their declarations: each is a `Queue` with the parts that its arguments ask for.

part           decides                                         without it
-------------  ----------------------------------------------  ----------------------------------
`fifo`         which message is next: the oldest               (each queue has an order)
`limits`       what happens to a message beyond the limit      the queue has no limit
`eligibility`  which messages the queue accepts                it accepts every message

Residency is not a part yet: all waiting messages are in memory, each referenced by its entry. An order creates the
entries, so one that pages messages out can create entries whose `message` reads them back. The queue itself uses only
the size and expiry of a message on it, and at a commit its eligibility.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.arguments import NO_ARGUMENTS, REJECT, QueueArguments
from qstore.broker.model.queues.eligibility import NoLocal
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.limits import Reject
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick

_NO_LOCAL: Final = NoLocal()


class QueueFactory:
    """Creates the queues of one broker.

    Args:
        tick: dispatches them.
        store: persists durable ones; None without persistence.
        max_bytes: limit in bytes for queues that declare none. A declared limit counts headers and content, as in
            qpidd; this one counts memory.
        clock: seconds since 1970.
    """

    def __init__(self, tick: Tick, store: Store | None, max_bytes: int, clock: Callable[[], float]) -> None:
        self._tick, self._store, self._max_bytes, self._clock = tick, store, max_bytes, clock

    def make(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: TypedMap,
        parsed: QueueArguments = NO_ARGUMENTS,
        journal: Any = None,
    ) -> Queue:
        """Create a queue; `parsed` are its parsed arguments, `journal` its journal in the store."""
        queue = Queue(
            name,
            self._tick,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
            store=None if journal is None else self._store,
            journal=journal,
            order=Fifo(),
            limit=_limit(parsed, self._max_bytes),
            eligibility=_NO_LOCAL if parsed.no_local else None,
            clock=self._clock,
        )
        queue.auto_delete_seconds = parsed.auto_delete_seconds
        return queue


def _limit(parsed: QueueArguments, max_bytes: int) -> Reject | None:
    max_messages, overhead = 0, MESSAGE_OVERHEAD
    if parsed.policy == REJECT:
        max_messages = parsed.max_messages
        if parsed.max_bytes is not None:
            max_bytes, overhead = parsed.max_bytes, 0
    if not max_messages and not max_bytes:
        return None
    return Reject(max_messages=max_messages, max_bytes=max_bytes, overhead=overhead)
