"""Queues as their declarations want them: each is a `Queue`, and has the parts that its arguments ask for.

part           what it decides                                 without it
-------------  ----------------------------------------------  ----------------------------------
`limits`       what becomes of a message that is one too many  the queue holds all that comes
`eligibility`  which messages the queue takes                  it takes every message
"""

from __future__ import annotations

from typing import Any, Final

from broker.model.memory import MESSAGE_OVERHEAD
from broker.model.queues.arguments import REJECT, QueueArguments
from broker.model.queues.eligibility import NoLocal
from broker.model.queues.limits import Reject
from broker.model.queues.queue import Queue

_NO_LOCAL: Final = NoLocal()


def make_queue(name: str, turn: Any, asked: QueueArguments, max_bytes: int, **named: Any) -> Queue:
    """A queue as its declaration wants it.

    Args:
        name: its name.
        turn: serves it.
        asked: what the arguments of the declaration say.
        max_bytes: bytes that a queue holds at most if it does not say. What it says itself counts headers and content,
            as in qpidd; this counts what messages take in memory.
        named: all else that `Queue` has.
    """
    eligibility = _NO_LOCAL if asked.no_local else None
    queue = Queue(name, turn, limit=_limit(asked, max_bytes), eligibility=eligibility, **named)
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
