"""A message: the fields that routing and queues need, and the bytes as received.

A message never changes once it is read: it may be on many queues, which share the object. State that
differs per queue (its position, whether it was delivered before) is in the queue's `Entry`. Each protocol has a
subclass that keeps the message in that protocol's encoding, so that it is stored and delivered as received.

For a consumer that speaks another protocol the message is converted from its `properties` and its content, which are
decoded only on demand. The result is cached (`converted`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, INT64, TypedMap, TypedValue

CC: Final = "CC"
BCC: Final = "BCC"

CORRELATION_ID_HEADER: Final = "x-amqp-correlation-id"
"""The header of a reply with a correlation id of a type that the reply's protocol cannot keep."""

MAX_KEYS: Final = 1_000
"""Keys in one of these headers."""

_MIN_PIECE: Final = 16 * 1024  # bytes; smaller pieces are joined
_MAX_JOINED: Final = 0xFFFF - 12  # bytes up to which small pieces are joined: the payload of one frame

MessageId: TypeAlias = str | bytes | int | UUID


#: A message as it is appended to a journal: its bytes in parts, their number, and the store's checksum of them.
StoredForm: TypeAlias = tuple[Sequence[bytes], int, int]


class RestoreMessage(Protocol):
    """Decodes stored messages."""

    def __call__(self, data: bytes, begin: int = 0, end: int = -1, /) -> Message:
        """Decode a stored message: the bytes from `begin` to `end`, or to the end of `data` if that is -1.

        Raises:
            BrokerRecordError: it cannot be decoded.
        """


MessagesRead: TypeAlias = "Callable[[list[Message | Exception]], None]"
"""Gets messages that a store has read and decoded, with the error in place of each that failed."""


class LargeContent:
    """The content of a message in the pieces in which it arrived, larger than one frame. Immutable; no piece is empty.

    Content that spans many frames is never joined: the pieces are stored as received, and sent or written one by one.
    So a message of any size takes its content's size in memory once. Small pieces cost more than their bytes,
    and a peer may send pieces of any size: they are collected into larger ones (`IncomingContent`).

    Args:
        pieces: its bytes, in order.
        size: total bytes.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: tuple[bytes, ...], size: int) -> None:
        self.pieces, self._size = pieces, size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """The content as one copy."""
        return b"".join(self.pieces)


Content: TypeAlias = bytes | LargeContent
Buffer: TypeAlias = bytes | memoryview


def pieces_of(content: Content) -> tuple[bytes, ...]:
    """The pieces of content of either kind."""
    return (content,) if isinstance(content, bytes) else content.pieces


def content_of(pieces: Sequence[bytes]) -> Content:
    """The content consisting of these pieces, none of which is empty. Content that fits one frame is joined."""
    size = sum(map(len, pieces))
    if size <= _MAX_JOINED or len(pieces) == 1:
        return b"".join(pieces)
    return LargeContent(tuple(pieces), size)


class IncomingContent:
    """Content that is being received.

    Attributes:
        size: bytes received so far.
    """

    __slots__ = ("_pieces", "_small", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._small = bytearray()

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        self.size += len(piece)
        small = self._small
        if small and len(small) + len(piece) > _MAX_JOINED:
            self._keep_small()
        if len(piece) >= _MIN_PIECE and not self._small:
            self._pieces.append(piece)
        else:
            self._small += piece

    def _keep_small(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()

    def content(self) -> Content:
        """The content received so far; more may be added afterwards."""
        if not self._pieces:
            return bytes(self._small)
        self._keep_small()
        return content_of(self._pieces)


class Handling(NamedTuple):
    """Rarely used delivery options. All messages of a publisher with the same options share one object.

    Attributes:
        publisher: identifies the publishing connection; None if unknown, as after a restart.
        priority: 0 to 9, 4 by default; of AMQP 0-9-1: 0 to 255, 0 by default.
        is_immediate: no queue takes the message unless a consumer can take it now.
        discards_unroutable: an unroutable message is not sent to the exchange's alternate exchange.
    """

    publisher: object | None = None
    priority: int = 4
    is_immediate: bool = False
    discards_unroutable: bool = False


#: Default options.
PLAIN_HANDLING: Final = Handling()


_MessageT = TypeVar("_MessageT", bound="Message")


class ReplyAddress(NamedTuple):
    """The exchange and routing key for replies."""

    exchange: str
    routing_key: str


class Properties(NamedTuple):
    """A message's properties, independent of its protocol. Absent ones are None.

    Attributes:
        message_id, correlation_id: as the sender chose.
        user_id, app_id: bytes.
        reply_to: see `ReplyAddress`.
        content_type: MIME type; `amqp/map` and `amqp/list` where the content is a typed value.
        content_encoding: MIME encoding.
        subject: the subject.
        created_at: seconds since 1970.
        ttl: milliseconds that the message lives, as the sender chose.
        headers: application headers.
        to: the address that the sender has given the message; not all protocols have it.
    """

    message_id: MessageId | None = None
    correlation_id: MessageId | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    reply_to: ReplyAddress | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    subject: str | None = None
    created_at: float | None = None
    ttl: int | None = None
    headers: TypedMap = EMPTY_MAP
    to: str | None = None


class NewMessage(NamedTuple):
    """A message that the broker itself publishes.

    Attributes:
        routing_key: its routing key.
        headers: its application headers.
        is_persistent: whether a durable queue stores it on disk.
        content: bytes, a map or a list; None for no content.
        exchange: the exchange that it is published to.
        app_id, correlation_id: as in `Properties`.
        expires_at: seconds since 1970 after which it is not delivered; 0.0 for never.
        reply_to: where answers go; None for nowhere.
    """

    routing_key: str
    headers: TypedMap
    is_persistent: bool = False
    content: TypedValue | bytes | None = None
    exchange: str = ""
    app_id: bytes | None = None
    correlation_id: bytes | None = None
    expires_at: float = 0.0
    reply_to: ReplyAddress | None = None


class Message:
    """A message.

    Attributes:
        exchange: the exchange it was published to; empty for the default exchange.
        routing_key: the key it was published with.
        body: its content.
        size: bytes of header and content, as queues count them. Source: qpidd counts likewise.
        is_persistent: whether a durable queue stores it on disk.
        handling: further delivery options.
        expires_at: seconds since 1970 after which it is not delivered; 0.0 for never.
    """

    __slots__ = (
        "_converted", "body", "exchange", "expires_at", "handling", "is_persistent", "routing_key", "size",
    )  # fmt: skip

    _converted: dict[object, Message | None]  # key: converting function; unset until the first conversion

    exchange: str
    routing_key: str
    body: Content
    size: int
    is_persistent: bool
    handling: Handling
    expires_at: float

    @property
    def was_redelivered(self) -> bool:
        """Whether it arrived with the mark of a message that was delivered before, as over a federation link."""
        return False

    def whole(self) -> Message:
        """The message itself; read back from the disk if this is the placeholder of a message out of memory.

        Raises:
            InternalError: it cannot be read.
        """
        return self

    def under_further_keys(self) -> Sequence[Message]:
        """The message under each of its further keys (`selected_keys`), to route it. Most messages have none."""
        return ()

    @abstractmethod
    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores."""

    def stored_parts(self) -> tuple[Sequence[bytes], int]:
        """The same bytes and their number, for callers that do not need the checksum."""
        parts, size, _ = self.stored_form()
        return parts, size

    @abstractmethod
    def headers(self) -> TypedMap:
        """The application headers; empty if they cannot be decoded."""

    def raw_headers(self) -> bytes:
        """Bytes with its application headers as they arrived, among others; empty if it has none to look at."""
        return b""

    @property
    def header_bytes(self) -> bytes:
        """Its header as its protocol sends it; empty for a message of none."""
        return b""

    def patch(self, at: int, data: bytes) -> None:
        """Overwrite bytes of its header; it was made by `with_body`, and nobody else has it."""
        raise NotImplementedError(f"{self!r} has no header of a protocol")

    def header_text(self, name: str) -> str | None:
        """The value of an application header, as text; None without the header."""
        typed = self.headers().get(name)
        if typed is None:
            return None
        value = typed.value
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    @abstractmethod
    def properties(self) -> Properties:
        """The properties, including headers; those that can be decoded."""

    def content(self) -> Content | TypedValue:
        """The content for a consumer of any protocol: bytes, or a typed value.

        Raises:
            BrokerRecordError: it cannot be decoded.
        """
        return self.body

    def readable_content(self) -> Content | str:
        """The content if it is bytes or text; empty if it is another value, or cannot be decoded."""
        try:
            content = self.content()
        except BrokerRecordError:
            return b""
        value = content.value if isinstance(content, TypedValue) else content
        return value if isinstance(value, bytes | LargeContent | str) else b""

    def converted(self, convert: Callable[[Message], _MessageT | None]) -> _MessageT | None:
        """The message in another protocol's form: the cached result of `convert`.

        None if it has no such form.
        """
        try:
            known = self._converted
        except AttributeError:
            known = self._converted = {}
        if convert not in known:
            known[convert] = convert(self)
        return known[convert]  # type: ignore[return-value]  # a result of this function

    def with_number(self, name: str, number: int) -> Message:
        """A copy of the message with the header `name` set to an int64. Raises as `with_headers`."""
        return self.with_headers({name: TypedValue(INT64, number)})

    def expiring_at(self, moment: float) -> Message:  # noqa: ARG002 – for subclasses
        """A copy of the message that expires at that time, in seconds since 1970, and is stored with it.

        Returns the message itself if its encoding cannot be changed.
        """
        return self

    @abstractmethod
    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> Message:
        """A copy for another exchange and routing key, which does not expire; `changes` as for `with_headers`.

        Headers that cannot be decoded are lost.

        Raises:
            HeaderTooLargeError: its header would be too large.
            InvalidArgumentError: its encoding cannot be changed.
        """

    def with_body(self, body: bytes, field: SizeField | None) -> Message:
        """The message of a run (`model.run`) with this content; this one has what they have in common.

        `field` is the field in its header that gives the size of the body; None if its header is right.
        """
        raise NotImplementedError(f"{self!r} is not of a run")

    @property
    def size_field(self) -> SizeField | None:
        """The field in its header that gives the size of its body; None if there is none."""
        return None

    def contents_of(self, bodies: Bodies, lead: bytes) -> Bodies | None:  # noqa: ARG002 – for subclasses
        """The contents of messages like it, as bytes for other protocols; None if each has to be converted by itself.

        Args:
            bodies: their bodies, all of the same size.
            lead: what the content of each begins with, before its body.
        """
        return None

    def head_in(self, data: bytes, begin: int, end: int) -> bytes | None:  # noqa: ARG002 – for subclasses
        """The bytes before its body in the stored data that it was decoded from, with its header at their end.

        Messages with the same bytes there, but for the size of the body, can be in one run with it. In AMQP 1.0 the
        first of its content are among them (`MessageRun.lead`). None if there can be no others.

        Args:
            data: has the stored data.
            begin: where that begins.
            end: where it ends.
        """
        return None

    def stored_head(self, body_size: int) -> bytes:
        """The stored data before the body of each message of a run, with this header at their end.

        Args:
            body_size: bytes of each body, for a message whose header has no field for it; else of the largest.
        """
        raise NotImplementedError(f"{self!r} is not of a run")

    @property
    def likeness(self) -> Hashable:
        """Equal for messages whose `readdressed` copies differ only in their bodies; None if there are none such."""
        return None

    def readdressed_as(self, other: Message) -> Message:
        """As `readdressed`, given `other`, the copy of a message with an equal `likeness`.

        Messages of one publisher often have equal headers, which then are decoded and encoded only once.
        """
        raise NotImplementedError(f"{other!r} cannot be readdressed like this message")

    def bodiless(self) -> Message:
        """A copy without the body, to keep for `readdressed_as`."""
        raise NotImplementedError(f"{self!r} has no likeness")

    @abstractmethod
    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> Message:
        """A copy of the message with some application headers set, or removed where the value is None.

        Raises:
            InvalidArgumentError: its headers cannot be decoded.
        """


MakeMessage: TypeAlias = Callable[[NewMessage], Message]
"""Encodes a message that the broker itself publishes."""


def selected_keys(headers: TypedMap, name: str) -> tuple[str, ...]:
    """The sender-selected routing keys of a message: those in its header CC or BCC.

        CC     a list of strings: the message is also routed by each of them; consumers see the header
        BCC    likewise, but removed before delivery

    A queue gets the message once, however many of its keys lead there, and delivers it with the key of its publication.
    Elements that are not strings are ignored, as in RabbitMQ. Source: RabbitMQ, "Sender-selected Distribution".

    Raises:
        InvalidArgumentError: the header is not a list, or too long.
    """
    typed = headers.get(name)
    if typed is None:
        return ()
    if not isinstance(typed.value, tuple):
        raise InvalidArgumentError(f"invalid message: header '{name}' is of type {typed.type.name}, not a list of keys")
    if len(typed.value) > MAX_KEYS:
        raise InvalidArgumentError(f"invalid message: header '{name}' has more than {MAX_KEYS} keys")
    keys = (_key(each) for each in typed.value)
    return tuple(key for key in keys if key is not None)


def _key(element: object) -> str | None:
    if not isinstance(element, TypedValue):
        return None
    value = element.value
    return value if isinstance(value, str) else None
