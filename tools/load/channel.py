"""What is done on a channel, in the words of no protocol; a protocol has one class for it.

A channel is a channel of AMQP 0-9-1, or a session of the others, with a publisher, a consumer, or neither. Calls return
at once, and the functions that they are given are called with the error, or with None.

    publisher    `publish_to` says where; `encode` makes the bytes of a message, which `put` sends as often as there is
                 `room`; the broker's answers go to `ConfirmOwner`
    consumer     `consume` begins; messages go to `DeliveryOwner`, those that are alike together; `accept` settles
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from qstore.formats.kernels.bodies import Bodies
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.load.loop import Line

Done = Callable[[Exception | None], None]
"""Gets the error of a call, or None."""


class Queue(NamedTuple):
    """A queue to declare.

    Attributes:
        name: its name.
        durable, exclusive, auto_delete: as in AMQP.
        arguments: its arguments.
    """

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = {}


class Route(NamedTuple):
    """Where messages are sent: an exchange, empty for the default one, and a routing key."""

    exchange: str
    key: str


class Style(NamedTuple):
    """What messages are like.

    Attributes:
        persistent: whether a durable queue stores them.
        headers: application headers.
        priority: None for none.
    """

    persistent: bool = False
    headers: Mapping[str, Any] = {}
    priority: int | None = None


class Encoded(NamedTuple):
    """A message, ready to be sent.

    Attributes:
        data: its bytes, as the protocol sends them or as `put` needs them.
        body_at: where in them the body begins.
        route: the number of its route.
    """

    data: bytes
    body_at: int
    route: int

    def with_beginning(self, beginning: bytes) -> Encoded:
        """The same message, whose body begins with other bytes."""
        at = self.body_at
        return self._replace(data=b"".join((self.data[:at], beginning, self.data[at + len(beginning) :])))


class ConfirmOwner(Protocol):
    """Hears of the messages that a channel has published."""

    def on_confirmed(self, count: int, *, is_accepted: bool) -> None:
        """The broker has taken, or refused, so many messages."""

    def on_returned(self) -> None:
        """A message could not be routed; it counts as confirmed, too."""

    def on_room(self) -> None:
        """There may be room for more."""


class DeliveryOwner(Protocol):
    """Hears of the messages that a channel receives. They are numbered from 0 or 1 up, with gaps in 0-10."""

    def on_message(self, number: int, body: bytes) -> None:
        """A message was received."""

    def on_messages(self, first: int, bodies: Bodies, skipped: int) -> None:
        """Messages were received that differ only in their bodies.

        Args:
            first: the number of the first; those of the others follow.
            bodies: their bodies.
            skipped: bytes before the content of each body.
        """


class LoadChannel(ABC):
    """A channel.

    Args:
        line: its connection, which is open.

    Attributes:
        line: as above.
        confirms: hears of published messages.
        deliveries: hears of received ones.
        joins: whether messages to several routes can be sent as one piece.
    """

    joins = True

    def __init__(self, line: Line) -> None:
        self.line = line
        self.confirms: ConfirmOwner | None = None
        self.deliveries: DeliveryOwner | None = None

    @abstractmethod
    def open(self, done: Done) -> None:
        """Open it."""

    @abstractmethod
    def close(self, done: Done) -> None:
        """Close it."""

    # ---- topology ----

    @abstractmethod
    def declare_queue(self, queue: Queue, done: Done) -> None:
        """Declare a queue."""

    @abstractmethod
    def check_queue(self, name: str, done: Done) -> None:
        """See whether a queue exists."""

    @abstractmethod
    def purge_queue(self, name: str, done: Done) -> None:
        """Remove the messages of a queue."""

    @abstractmethod
    def delete_queue(self, name: str, done: Done) -> None:
        """Delete a queue."""

    @abstractmethod
    def bind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """Bind a queue to an exchange."""

    @abstractmethod
    def unbind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """Undo it."""

    # ---- publishing ----

    @abstractmethod
    def publish_to(self, routes: Sequence[Route], *, confirms: bool, done: Done) -> None:
        """Begin to publish; `confirms`: whether the broker confirms messages."""

    @abstractmethod
    def encode(self, route: int, body: bytes, style: Style) -> Encoded:
        """Encode a message to a route, by its number. Raises MessagingError or FormatError."""

    @abstractmethod
    def room(self, route: int) -> int:
        """How many messages the broker takes now."""

    @abstractmethod
    def put(self, message: Encoded, times: int, each: int = 1) -> None:
        """Send a message several times, no more than there is room.

        Args:
            message: the message; or several joined, to several routes, if the channel `joins`.
            times: how often.
            each: how many they are.
        """

    # ---- consuming ----

    @abstractmethod
    def consume(self, queue: str, prefetch: int, *, acknowledges: bool, done: Done, limit: int = 0) -> None:
        """Begin to consume.

        Args:
            queue: the queue.
            prefetch: unsettled messages at most; 0 for no limit.
            acknowledges: whether messages are to be accepted.
            done: as of all calls.
            limit: messages in all, which the broker keeps to; 0 for no limit. Only AMQP 0-10 has it.
        """

    @abstractmethod
    def accept(self, first: int, last: int) -> None:
        """Accept all messages with these numbers."""

    @abstractmethod
    def cancel(self, done: Done) -> None:
        """End the consumer."""

    # ---- transactions ----

    @abstractmethod
    def select_transactions(self, done: Done) -> None:
        """Publish and accept in transactions from now on."""

    @abstractmethod
    def commit(self, done: Done) -> None:
        """Commit the transaction."""
