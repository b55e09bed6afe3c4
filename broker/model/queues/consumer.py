"""What a queue needs of those who take its messages, or look at them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from broker.model.queues.entry import Entry

REFUSED: Final = 0  # it cannot take this one now, and is not to be asked again until it says so
TAKEN: Final = 1  # it has it, and can take more
TAKEN_LAST: Final = 2  # it has it, and can take no more until it says so
NOT_FOR_ME: Final = 3  # it can never take this one; it goes on with the next, and consumers of other kinds may have it


class Consumer(Protocol):
    """One who is offered messages.

    Attributes:
        acquires: whether it takes messages; one that does not only looks on.
        cursor: the next entry that one who looks on has to see; the queue keeps it.
        is_waiting: whether the queue has it among those who can take messages; the queue keeps it.
    """

    acquires: bool
    cursor: Entry
    is_waiting: bool

    @property
    def kind(self) -> Hashable:
        """The same for consumers that can take the same messages: what one of them declines, the others do as well."""

    @property
    def has_credit(self) -> bool:
        """Whether it can take a message now."""

    def deliver(self, entry: Entry) -> int:
        """Take the message of `entry`. Returns REFUSED, TAKEN, TAKEN_LAST or NOT_FOR_ME."""

    def queue_deleted(self) -> None:
        """The queue is gone."""
