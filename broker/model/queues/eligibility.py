"""Eligibility: which messages a queue accepts.

    no-local    all except those published over its owner's connection: the owner is the session to which the queue is
                exclusive, or else its exclusive consumer
    filter      those that a selector selects (qpid.filter)

A message that is dropped counts as routed: it is not sent to an alternate exchange. The publisher of a message is known
as long as this broker runs, even if the message moved from another, deleted queue; after a restart it is unknown. In a
transaction such a message takes a place on the queue until the commit. A queue that accepts every message has no such
object.

Sources: MRG 2 Messaging User Guide, 3 (no-local); Apache Qpid C++, Queue (qpid.filter).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.selectors.selector import Selector

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumer import Consumer


class Owned(Protocol):
    """The exclusive owner of a queue.

    Attributes:
        owner: the session to which it is exclusive; None if there is none.
        exclusive_consumer: likewise, its consumer.
    """

    owner: object | None
    exclusive_consumer: Consumer | None


class Eligibility(Protocol):
    """Which messages a queue accepts."""

    def admits(self, queue: Owned, message: Message) -> bool:
        """Whether the queue accepts the message."""


class NoLocal:
    """Drops messages published by the queue's owner."""

    __slots__ = ()

    @staticmethod
    def admits(queue: Owned, message: Message) -> bool:
        """Whether the message was published over a connection other than that of the queue's present owner."""
        publisher = message.handling.publisher
        owner = queue.owner if queue.owner is not None else queue.exclusive_consumer
        return publisher is None or owner is None or getattr(owner, "publisher", None) is not publisher


class Filtering:
    """Drops messages that a selector does not select.

    Args:
        selector: the selector.
        other: decides as well; None if nothing else does.
    """

    __slots__ = ("_other", "_selector")

    def __init__(self, selector: Selector, other: Eligibility | None = None) -> None:
        self._selector, self._other = selector, other

    def admits(self, queue: Owned, message: Message) -> bool:
        """Whether the selector selects the message, and the other part accepts it."""
        if self._other is not None and not self._other.admits(queue, message):
            return False
        return self._selector.matches(Candidate(message, is_redelivered=False))
