"""What a queue requires of its consumers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from qstore.broker.model.queues.entry import Entry

REFUSED: Final = 0  # it cannot take this message now, and is not ready until it wakes the queue
TAKEN: Final = 1  # it took the message, and is ready for more
TAKEN_LAST: Final = 2  # it took the message, and is not ready until it wakes the queue
NOT_FOR_ME: Final = 3  # it can never take this message, but is ready for the next; other kinds may take this one


class Consumer(Protocol):
    """A consumer of a queue.

    Attributes:
        acquires: whether it is a taker; otherwise it is a browser.
        cursor: the next entry for a browser; maintained by the queue.
        is_waiting: whether it is ready for messages; maintained by the queue.
    """

    acquires: bool
    cursor: Entry
    is_waiting: bool

    @property
    def kind(self) -> Hashable:
        """Equal for consumers that can take the same messages: if one of them declines a message, all would."""

    @property
    def has_credit(self) -> bool:
        """Whether it can take a message now."""

    def deliver(self, entry: Entry) -> int:
        """Offer the message of `entry`. Returns REFUSED, TAKEN, TAKEN_LAST or NOT_FOR_ME."""

    def queue_deleted(self) -> None:
        """The queue was deleted."""
