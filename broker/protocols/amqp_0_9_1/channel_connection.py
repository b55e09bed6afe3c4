"""The connection of a channel, as the channel sees it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.flow_control import FlowControl
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_9_1.delivering import DeliveringConnection
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing
from qstore.broker.protocols.streams import Stream


class ChannelConnection(DeliveringConnection):
    """The connection of a channel, as the channel sees it.

    Attributes:
        user, peer: the user and the client's address.
        publishing: decodes messages.
        capabilities: those of the client's capabilities that it has.
        adjusts_consumers: whether its basic.qos changes running consumers, too (`capabilities`).
        streams: channel -> stream of its large messages.
    """

    __slots__ = ("adjusts_consumers", "capabilities", "peer", "publishing", "streams", "user")

    user: str
    peer: str
    publishing: Publishing
    capabilities: frozenset[str]
    adjusts_consumers: bool
    streams: dict[int, Stream]

    @property
    @abstractmethod
    def has_consumers(self) -> bool:
        """Whether any of its channels has consumers."""

    @property
    def remote_host(self) -> str:
        """Address and port of the client."""
        return self.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`."""
        return self.publisher.connection.actor

    @abstractmethod
    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine, and call `done` with its error, or None."""

    @abstractmethod
    def pause(self) -> None:
        """Buffer input from now on, until as many calls of `unpause`."""

    @abstractmethod
    def unpause(self) -> None:
        """Take back one call of `pause`; after the last, process the buffered input."""

    @abstractmethod
    def fail(self, channel: Any, error: Exception, payload: bytes = b"") -> None:
        """A method of a channel has failed: close the channel, or the connection."""

    @abstractmethod
    def publisher_waits(self, flow: FlowControl) -> None:
        """A message waits, since its queue is stopped: its confirm, or the next messages if nobody waits for that."""

    @abstractmethod
    def publisher_goes_on(self, count: int = 1) -> None:
        """So many of these messages wait no longer."""

    @abstractmethod
    def own(self, queue: Queue) -> None:
        """A queue was declared exclusive to this connection."""

    @abstractmethod
    def channel_closed(self, channel: Any) -> None:
        """The client closes a channel."""

    @abstractmethod
    def leave(self, queue: Queue) -> None:
        """A queue has lost a consumer: delete it if it is auto-delete and unused."""
