"""Which messages a queue takes at all.

    no-local    none that comes over the connection of whoever owns it: the session to which it is exclusive, or else
                its exclusive consumer

What is dropped was routed all the same: it goes to no alternate exchange. A message is known as its publisher's for as
long as it lives in this broker, also when it comes by way of another queue that was deleted; after a restart nobody
knows. In a transaction it has a place on the queue until the commit. A queue that takes every message has none.

Source: inventory 003_001, section 3 (no-local).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.message import Message
    from broker.queues.queue import Queue


class NoLocal:
    """Drops what the queue's owner publishes."""

    __slots__ = ()

    @staticmethod
    def admits(queue: Queue, message: Message) -> bool:
        """Whether the message does not come over the connection of whoever owns the queue now."""
        publisher = message.handling.publisher
        owner = queue.owner if queue.owner is not None else queue.exclusive_consumer
        return publisher is None or owner is None or getattr(owner, "publisher", None) is not publisher
