"""Queues as their declarations want them: each is a `Queue`, and has the parts that its arguments ask for.

part           what it decides                                 without it
-------------  ----------------------------------------------  ----------------------------------
`fifo`         which message is next: the first that came      (each queue has an order)
`limits`       what becomes of a message that is one too many  the queue holds all that comes
`eligibility`  which messages the queue takes                  it takes every message

Where messages are kept while they wait is no part yet: all are in memory, each held by its entry. An order makes the
entries, so one that pages messages out makes entries whose `message` reads them again. The queue itself asks a message
that is on it only for its size and expiry, and at a commit whether it takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.model.memory import MESSAGE_OVERHEAD
from broker.model.queues.arguments import NO_ARGUMENTS, REJECT, QueueArguments
from broker.model.queues.eligibility import NoLocal
from broker.model.queues.fifo import Fifo
from broker.model.queues.limits import Reject
from broker.model.queues.queue import Queue
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.store_protocol import Store
    from broker.model.turn import Turn

_NO_LOCAL: Final = NoLocal()


class QueueFactory:
    """Makes the queues of one broker.

    Args:
        turn: serves them.
        store: what keeps durable ones; None if nothing is kept.
        max_bytes: bytes that a queue holds at most if it does not say. What it says itself counts headers and content,
            as in qpidd; this counts what messages take in memory.
        clock: seconds since 1970.
    """

    def __init__(self, turn: Turn, store: Store | None, max_bytes: int, clock: Callable[[], float]) -> None:
        self._turn, self._store, self._max_bytes, self._clock = turn, store, max_bytes, clock

    def make(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: TypedMap,
        asked: QueueArguments = NO_ARGUMENTS,
        journal: Any = None,
    ) -> Queue:
        """A queue as its declaration wants it; `asked` is what its arguments say, `journal` what the store made."""
        queue = Queue(
            name,
            self._turn,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
            store=None if journal is None else self._store,
            journal=journal,
            order=Fifo(),
            limit=_limit(asked, self._max_bytes),
            eligibility=_NO_LOCAL if asked.no_local else None,
            clock=self._clock,
        )
        queue.auto_delete_seconds = asked.auto_delete_seconds
        return queue


def _limit(asked: QueueArguments, max_bytes: int) -> Reject | None:
    max_messages, overhead = 0, MESSAGE_OVERHEAD
    if asked.policy == REJECT:
        max_messages = asked.most_messages
        if asked.most_bytes is not None:
            max_bytes, overhead = asked.most_bytes, 0
    if not max_messages and not max_bytes:
        return None
    return Reject(max_messages=max_messages, max_bytes=max_bytes, overhead=overhead)
