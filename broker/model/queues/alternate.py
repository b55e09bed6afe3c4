"""What a queue's alternate exchange is to the queue, and to those that move its messages there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

_QueueT_co = TypeVar("_QueueT_co", covariant=True)


class Routed(Protocol[_QueueT_co]):
    """The result of routing a message."""

    @property
    def queues(self) -> Sequence[_QueueT_co]:
        """The queues, each once."""

    def count(self, size: int) -> None:
        """Count a message of `size` bytes."""


class Alternate(Protocol[_QueueT_co]):
    """An alternate exchange of a queue: gets rejected messages, and those left when the queue is deleted."""

    name: str

    @property
    def steps(self) -> int:
        """How many steps finding the queues for messages has taken so far."""

    @property
    def alternate(self) -> Alternate[_QueueT_co] | None:
        """The exchange for messages that match no queue here."""

    def route(self, message: Message) -> Routed[_QueueT_co]:
        """The queues for a message."""
