"""What consumers need of their channel and its connection: the bases of both.

They are classes and not protocols because each message that is delivered uses many of their attributes, which compiled
modules read directly only from a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

from qstore.broker.model.caller import Publisher
from qstore.broker.model.content import Buffer
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.tick import Tick
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage


class DeliveringConnection(ABC):
    """A connection that messages are sent to.

    Attributes:
        output: buffers to be sent.
        room: bytes that may be sent before yielding to other connections.
        can_send: whether the socket accepts messages.
        max_payload: bytes of a frame's payload, as negotiated.
        publisher: identifies messages published over it.
        tick: of the broker.
        frames_sent, messages_sent: those put into `output`.
    """

    __slots__ = ("can_send", "frames_sent", "max_payload", "messages_sent", "output", "publisher", "room", "tick")

    output: list[Buffer]
    room: int
    can_send: bool
    max_payload: int
    publisher: Publisher
    tick: Tick
    frames_sent: int
    messages_sent: int

    @abstractmethod
    def has_output(self) -> None:
        """Output was added to `output`."""


class Delivery(NamedTuple):
    """A message that was delivered and waits to be acknowledged.

    Attributes:
        queue, entry: the message.
        consumer: its consumer; None for basic.get.
    """

    queue: Queue
    entry: Entry
    consumer: Any


ConnectionT_co = TypeVar("ConnectionT_co", bound=DeliveringConnection, covariant=True)


class DeliveringChannel(ABC, Generic[ConnectionT_co]):
    """A channel that messages are sent on.

    Attributes:
        number: the channel's number.
        connection: its connection.
        can_send: whether messages may be sent: it is open, flows, sends no stream, and the socket accepts them.
        credit: messages that may be delivered to all its consumers together before some are acknowledged.
        last_tag: the last delivery tag.
        unsettled: delivery tag -> delivery, until it is acknowledged, in ascending order.
    """

    __slots__ = ("can_send", "connection", "credit", "last_tag", "number", "unsettled")

    number: int
    connection: ConnectionT_co
    can_send: bool
    credit: int
    last_tag: int
    unsettled: dict[int, Delivery]

    @property
    @abstractmethod
    def can_answer(self) -> bool:
        """Whether a method with content may be sent: as `can_send`, whatever the client has said with channel.flow."""

    @abstractmethod
    def dequeue(self, queue: Queue, entry: Entry) -> None:
        """Dequeue a message that was delivered and needs no acknowledgement."""

    @abstractmethod
    def look_again(self, error: Exception | None = None) -> None:
        """See at the end of the tick whether basic.get can be answered, and which confirms are due."""

    @abstractmethod
    def send_content(self, method: bytes, message: BasicMessage) -> None:
        """Send a method with content in as many frames as it needs, in portions if it is large."""

    @abstractmethod
    def consumer_lost(self, consumer: Any) -> None:
        """The queue of a consumer was deleted."""
