"""Which messages a queue takes at all.

    no-local    all but those that come over its owner's connection: the owner is the session to which the queue is
                exclusive, or else its exclusive consumer

What is dropped was routed all the same: it goes to no alternate exchange. A message is known as its publisher's for as
long as it lives in this broker, also when it comes by way of another queue that was deleted; after a restart that is
not known. In a transaction it has a place on the queue until the commit. A queue that takes every message has none.

Source: MRG 2 Messaging User Guide, 3 (no-local).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.model.message import Message
    from broker.model.queues.consumer import Consumer


class Owned(Protocol):
    """Who has a queue alone.

    Attributes:
        owner: the session to which it is exclusive; None if there is none.
        exclusive_consumer: likewise, its consumer.
    """

    owner: object | None
    exclusive_consumer: Consumer | None


class NoLocal:
    """Drops what the queue's owner publishes."""

    __slots__ = ()

    @staticmethod
    def admits(queue: Owned, message: Message) -> bool:
        """Whether the message came over another connection than that of the queue's present owner."""
        publisher = message.handling.publisher
        owner = queue.owner if queue.owner is not None else queue.exclusive_consumer
        return publisher is None or owner is None or getattr(owner, "publisher", None) is not publisher
