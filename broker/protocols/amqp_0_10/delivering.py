"""What subscriptions need of their session and its connection: the bases of the broker's ends of both.

They are classes and not protocols because each message that is delivered uses many of their attributes, which compiled
modules read directly only from a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from qstore.broker.model.queues.entry import Entry
from qstore.broker.protocols.amqp_0_10.connection import Connection
from qstore.broker.protocols.amqp_0_10.session import Session
from qstore.broker.protocols.amqp_0_10.streaming import StreamingSession
from qstore.broker.protocols.budget import Budget
from qstore.broker.protocols.streams import Stream

SessionT = TypeVar("SessionT", bound=Session)


class DeliveringConnection(Connection[SessionT]):
    """A connection that messages are sent to.

    Attributes:
        room: bytes that may be sent before yielding to other connections.
        can_send: whether the socket accepts messages.
        streams: channel -> stream of its session's large messages.
    """

    __slots__ = ("can_send", "room", "streams")

    def __init__(self, max_message_bytes: int, budget: Budget, room: int) -> None:
        super().__init__(max_message_bytes, budget)
        self.room = room
        self.can_send = True
        self.streams: dict[int, Stream] = {}


ConnectionT_co = TypeVar("ConnectionT_co", bound=DeliveringConnection[Any], covariant=True)


class DeliveringSession(StreamingSession[ConnectionT_co], ABC):
    """A session with subscriptions.

    Attributes:
        can_send: whether the connection accepts messages; if not, subscriptions are woken when it does.
        is_failed: whether the session has ended.
        max_plain_bytes: the size up to which header and body each fit one frame.
        clock: seconds since 1970.
    """

    __slots__ = ("can_send", "clock", "is_failed", "max_plain_bytes")

    def __init__(self, name: bytes, clock: Callable[[], float]) -> None:
        super().__init__(name)
        self.clock = clock
        self.can_send = self.is_failed = False
        self.max_plain_bytes = 0

    @property
    @abstractmethod
    def publisher(self) -> object:
        """Identifies messages published over its connection."""

    @abstractmethod
    def delivered(self, number: int, subscription: Any, entry: Entry, size: int) -> None:
        """Record the delivery of a message to one of its subscriptions."""

    @abstractmethod
    def subscription_lost(self, subscription: Any) -> None:
        """The queue of a subscription was deleted."""
