"""A message: what routing and queues need to know of it, beside the bytes that came.

A message never changes once it was read: it may be on many queues, and is the same object on all of them. What is
different for each queue (its place, whether it was delivered before) is the queue's `Entry`. Each protocol has a
subclass that keeps the message as that protocol encodes it, so that it is stored and delivered as it came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.content import Content


class StoredForm(NamedTuple):
    """A message as it is appended to a journal.

    Attributes:
        parts: its bytes.
        size: how many they are.
        crc: their checksum, as the store makes it.
    """

    parts: Sequence[bytes]
    size: int
    crc: int


class Handling(NamedTuple):
    """What few messages ask for, and few queues look at: one object for all messages of a publisher that ask the same.

    Attributes:
        publisher: stands for the connection that it came over; None where that is not known, as after a restart.
        priority: 0 to 9; 4 where nothing was said.
        is_immediate: no queue is to have it unless a consumer can take it now.
        discards_unroutable: if no queue wants it, its exchange's alternate exchange is not to get it either.
    """

    publisher: object | None = None
    priority: int = 4
    is_immediate: bool = False
    discards_unroutable: bool = False


#: Of a message that asks for nothing.
PLAIN_HANDLING: Final = Handling()


class Message(ABC):
    """A message.

    Attributes:
        exchange: the exchange that it was sent to; empty for the default one.
        routing_key: what it was sent with.
        body: its content.
        size: bytes of its header and content, as a queue counts them. Source: qpidd counts likewise.
        is_persistent: whether a durable queue keeps it on disk.
        handling: what it asks for besides.
        expires_at: seconds since 1970 at which nobody is to get it any more; 0.0 for never.
    """

    __slots__ = ("body", "exchange", "expires_at", "handling", "is_persistent", "routing_key", "size")

    exchange: str
    routing_key: str
    body: Content
    size: int
    is_persistent: bool
    handling: Handling
    expires_at: float

    @abstractmethod
    def stored_form(self) -> StoredForm:
        """What a journal keeps of it."""

    @abstractmethod
    def application_headers(self) -> Mapping[str, object]:
        """Its headers as plain values; empty where they cannot be read."""

    @abstractmethod
    def with_number(self, name: str, number: int) -> Message:
        """The same message with the header `name`, an int64, in place of one that it may have.

        Raises:
            InvalidArgumentError: its headers cannot be read.
        """
