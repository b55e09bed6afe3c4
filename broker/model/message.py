"""A message: what routing and queues need to know of it, beside the bytes that came.

A message never changes once it was read: it may be on many queues, and is the same object on all of them. What is
different for each queue (its place, whether it was delivered before) is the queue's `Entry`. Each protocol has a
subclass that keeps the message as that protocol encodes it, so that it is stored and delivered as it came.

A consumer that speaks another protocol gets the message converted: from its `properties` and its content, which are
read only when somebody asks. What was converted once is kept (`converted`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from formats.values import EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from broker.model.content import Content


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


_MessageT = TypeVar("_MessageT", bound="Message")


class ReplyAddress(NamedTuple):
    """Where an answer goes to."""

    exchange: str
    routing_key: str


class Properties(NamedTuple):
    """What a message tells those who receive it, whatever protocol it came in. What it does not say is None.

    Attributes:
        message_id, correlation_id: text, bytes, a uuid.UUID or an int, as the sender chose.
        user_id, app_id: bytes.
        reply_to: see `ReplyAddress`.
        content_type: MIME type; `amqp/map` and `amqp/list` where the content is a typed value.
        content_encoding: MIME encoding.
        subject: what it is about.
        headers: the application's own.
    """

    message_id: object = None
    correlation_id: object = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    reply_to: ReplyAddress | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    subject: str | None = None
    headers: TypedMap = EMPTY_MAP


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

    __slots__ = (
        "_converted", "body", "exchange", "expires_at", "handling", "is_persistent", "routing_key", "size",
    )  # fmt: skip

    _converted: dict[object, Message | None]  # by the function that converts; absent until the first is asked for

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
    def headers(self) -> TypedMap:
        """The application's headers; empty where they cannot be read."""

    @abstractmethod
    def properties(self) -> Properties:
        """What it says of itself, headers included; as much of it as can be read."""

    def content(self) -> Content | TypedValue:
        """Its content as a consumer of any protocol may have it: bytes, or a value.

        Raises:
            BrokerRecordError: it cannot be read.
        """
        return self.body

    def converted(self, convert: Callable[[Message], _MessageT | None]) -> _MessageT | None:
        """The message in another protocol's form, which `convert` makes when it is first asked for.

        None: it has none.
        """
        try:
            known = self._converted
        except AttributeError:
            known = self._converted = {}
        if convert not in known:
            known[convert] = convert(self)
        return known[convert]  # type: ignore[return-value]  # what this function has made

    @abstractmethod
    def with_number(self, name: str, number: int) -> Message:
        """The same message with the header `name`, an int64, in place of one that it may have.

        Raises:
            InvalidArgumentError: its headers cannot be read.
        """
