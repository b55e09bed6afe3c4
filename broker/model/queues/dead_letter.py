"""Where the dead messages of a queue go, as the queue sees it: `broker.model.dead_letters` is the implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.entry import Entry

_QueueT = TypeVar("_QueueT", contravariant=True)


class DeadLetter(Protocol[_QueueT]):
    """Moves the acquired messages of a queue to its dead-letter exchange."""

    @property
    def steps(self) -> int:
        """How many steps finding the queues of messages has taken so far in its exchange."""

    def reject(self, queue: _QueueT, entry: Entry, done: Callable[[Exception | None], None]) -> None:
        """Move a message that a consumer has rejected.

        Args:
            queue: its queue.
            entry: the message.
            done: called when it has left its queue for good, or with the error that prevents it.

        Raises:
            ModelError: it cannot be moved, and is still acquired.
        """

    def expire(self, queue: _QueueT, entry: Entry) -> int:
        """Move a message that has expired; where there is no room for it, it is dropped.

        Returns:
            What that has cost: 1, or as many messages as could have been moved in the time that its routing took.

        Raises:
            InternalError: it stays acquired, because a journal cannot be written.
        """

    def displace(self, queue: _QueueT, entry: Entry) -> bool:
        """Move the oldest message of a full ring. Returns False if it is still acquired: there is no room for it."""

    def overflow(self, queue: _QueueT, message: Message) -> None:
        """Put a message there that a full queue has refused; where there is no room for it, it is dropped."""
