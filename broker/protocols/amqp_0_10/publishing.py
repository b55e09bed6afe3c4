"""Decodes the header segments of transfers into messages, for one connection.

Most messages of a publisher have the same delivery-properties; these are decoded once and cached, for each exchange
that it publishes to. Messages whose whole header equals that of the previous message share it and its stored form; or
that of another recent message, as when a publisher serves several queues in turn. While all headers differ, recent ones
are seldom searched.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, Self, TypeAlias

from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.message import Content, Handling, Message
from qstore.broker.protocols.amqp_0_10.message import (
    MAX_HEADER_BYTES,
    DeliveryProperties,
    TransferMessage,
    check_header_amount,
    read_delivery_properties,
    split_header,
    user_id_of,
    with_property,
    without_times,
)
from qstore.broker.protocols.message import SharedHead
from qstore.broker.protocols.publishing import PublishChecks
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.kernels.bodies import SizeField, are_equal_but
from qstore.formats.values import MAX_VALUES

_REMEMBERED: Final = 2048
_MAX_REMEMBERED_BYTES: Final = 512  # of a cached entry: larger ones are rare
_struct_size: Final = struct.Struct(">I").unpack_from
_NOTHING: Final[Mapping[bytes, Any]] = {}
_RECENT: Final = 8  # headers, besides that of the previous message
_PAUSE: Final = 256  # after this many different headers, recent ones are not searched for as many messages

TakeInterrupted: TypeAlias = Callable[[str, Content | None], tuple[bytes, Content] | None]
"""Given a resume-id and the content of a transfer: header and content of the completed message; None if the transfer is
the complete message."""


def nothing_interrupted(_resume_id: str, _body: Content | None) -> None:
    """Every transfer is a complete message."""


class _Known:
    """A header without times that was decoded.

    Attributes:
        given: the header as received.
        exchange: the exchange of its message.
        properties: its decoded content.
        header: the header as kept.
        head: created for the second message with this header.
    """

    __slots__ = ("exchange", "given", "head", "header", "properties")

    def __init__(self, given: bytes, exchange: str, properties: DeliveryProperties, header: bytes) -> None:
        self.given, self.exchange, self.properties, self.header = given, exchange, properties, header
        self.head: SharedHead | None = None


class TransferReader(PublishChecks):
    """Decodes the headers of received messages.

    Caches recently received delivery-properties, for each exchange.

    Args:
        publisher: identifies the connection as the messages' publisher.
        checks_user_ids, checks_publish: as in `PublishChecks`, whose flag is `immediate`.

    Attributes:
        publisher: as above.
        take_interrupted: see `TakeInterrupted`.
    """

    __slots__ = (
        "_handlings", "_last", "_pause", "_recent", "_remembered", "_room", "publisher", "take_interrupted",
    )  # fmt: skip

    def __init__(
        self, publisher: object | None = None, *, checks_user_ids: bool = False, checks_publish: bool = False
    ) -> None:
        super().__init__(checks_user_ids=checks_user_ids, checks_publish=checks_publish)
        self.publisher = publisher
        self.take_interrupted: TakeInterrupted = nothing_interrupted
        self._handlings: dict[Handling, Handling] = {}
        self._remembered: dict[str, dict[bytes, DeliveryProperties]] = {}
        self._room = _REMEMBERED
        self._last: _Known | None = None  # the header of the last message that has no times
        self._recent: dict[bytes, _Known] = {}  # and some earlier ones, by the bytes received
        self._pause = 0  # messages until they are searched again

    @classmethod
    def continuing(cls, other: TransferReader) -> Self:
        """A reader that continues another one of the same connection."""
        reader = cls(other.publisher, checks_user_ids=other.checks_user_ids, checks_publish=other.checks_publish)
        reader.take_interrupted, reader.has_published = other.take_interrupted, other.has_published
        reader.is_memory_short, reader.has_rare = other.is_memory_short, other.has_rare
        reader.has_flags, reader.has_rates, reader.tracer = other.has_flags, other.has_rates, other.tracer
        return reader

    def user_id_of(self, message: Message) -> str | None:
        """As `PublishChecks.user_id_of`."""
        assert isinstance(message, TransferMessage)
        return user_id_of(message.header)

    def foreign_user_id(self, user_id: str, user: str) -> Exception:  # noqa: ARG002 – for other protocols
        """As `PublishChecks.foreign_user_id`."""
        return UnauthorizedError(f"the message's user id {user_id!r} is not that of the connection")

    def read(self, header: bytes, body: Content | None, exchange: str, clock: Callable[[], float]) -> TransferMessage:
        """The message of a transfer to `exchange`.

        Args:
            header: the payload of its header segment; empty if there is none.
            body: its content; None if it has no body segment.
            exchange: the transfer's destination.
            clock: returns seconds since 1970.

        Raises:
            Amqp010Error: the header is not valid.
            ResourceLimitExceededError: it has too many headers, or it completes an interrupted message, which is too
                large.
        """
        last = self._last
        if last is not None and body is not None:
            if header != last.given or exchange != last.exchange:
                last = self._find_recent(header, exchange)
            if last is not None:
                if last.head is None:
                    last.head = SharedHead()
                return TransferMessage(last.header, body, exchange, last.properties, 0.0, last.head)
        if len(header) > MAX_HEADER_BYTES:
            raise Amqp010Error(f"a header of {len(header)} bytes is larger than {MAX_HEADER_BYTES}")
        if len(header) > MAX_VALUES:
            check_header_amount(header)
        remembered = self._remembered.get(exchange, _NOTHING)
        given, others = split_header(header)
        given, times = without_times(given)
        properties = remembered.get(given)
        if properties is None:
            properties = self._read_properties(given, exchange)
            if properties.resume_id is None:
                self._remember(exchange, given, properties)
            else:
                whole = self.take_interrupted(properties.resume_id, body)
                if whole is not None:
                    header, body = whole
                    given, others = split_header(header)
                    given, times = without_times(given)
                    properties = self._read_properties(given, exchange)
        encoded, expiration = properties.encoded, properties.expiration
        if times is not None:
            encoded, expiration = times.put_into(encoded), times.expiration
        if properties.ttl is None:
            kept = encoded + others
            if times is None and properties.resume_id is None:
                self._last = _Known(header, exchange, properties, kept)
                if not self._pause:
                    self._keep_recent(self._last)
            return TransferMessage(kept, body, exchange, properties, float(expiration))
        expires_at = clock() + properties.ttl / 1000
        encoded = with_property(encoded, "expiration", ceil(expires_at))
        return TransferMessage(encoded + others, body, exchange, properties, expires_at)

    def is_last(self, header: bytes, exchange: str) -> bool:
        """Whether the last message that `template` knows had this header and went to this exchange."""
        last = self._last
        return last is not None and header == last.given and exchange == last.exchange

    def template(self, header: bytes, exchange: str, field: SizeField | None) -> TransferMessage | None:
        """The last message without its content, if it had this header and went to this exchange; else None.

        The headers may differ in `field`.
        """
        last = self._last
        if last is None or exchange != last.exchange or not are_equal_but(field, header, last.given):
            return None
        if last.head is None:
            last.head = SharedHead()
        return TransferMessage(last.header, b"", exchange, last.properties, 0.0, last.head)

    def _find_recent(self, header: bytes, exchange: str) -> _Known | None:
        if self._pause:
            self._pause -= 1
            return None
        known = self._recent.get(header)
        if known is None or known.exchange != exchange:
            return None
        self._last = known
        return known

    def _keep_recent(self, known: _Known) -> None:
        if len(known.given) > _MAX_REMEMBERED_BYTES:
            return
        if len(self._recent) == _RECENT:
            self._recent.clear()
            self._pause = _PAUSE
        self._recent[known.given] = known

    def _read_properties(self, given: bytes, exchange: str) -> DeliveryProperties:
        properties = read_delivery_properties(given, exchange)
        handling = properties.handling._replace(publisher=self.publisher)
        if handling.is_immediate:
            self.watch_flags()
        return properties._replace(handling=self._handlings.setdefault(handling, handling))

    def _remember(self, exchange: str, given: bytes, properties: DeliveryProperties) -> None:
        if len(given) > _MAX_REMEMBERED_BYTES:
            return
        if not self._room:
            self._remembered.clear()
            self._room = _REMEMBERED
        self._room -= 1
        self._remembered.setdefault(exchange, {})[given] = properties


class TimestampingReader(TransferReader):
    """A reader that sets each message's timestamp to its time of arrival, in seconds since 1970.

    Source: AMQP 0-10, delivery-properties, timestamp; qpidd's option enable-timestamp.
    """

    __slots__ = ("_second", "_stamped")

    def __init__(
        self, publisher: object | None = None, *, checks_user_ids: bool = False, checks_publish: bool = False
    ) -> None:
        super().__init__(publisher, checks_user_ids=checks_user_ids, checks_publish=checks_publish)
        self._second = 0
        self._stamped: dict[bytes, bytes] = {}  # delivery-properties -> the same with the current second

    def template(self, header: bytes, exchange: str, field: SizeField | None) -> TransferMessage | None:  # noqa: ARG002
        """As `TransferReader.template`: messages differ in their timestamps."""
        return None

    def read(self, header: bytes, body: Content | None, exchange: str, clock: Callable[[], float]) -> TransferMessage:
        """As `TransferReader.read`, with the timestamp."""
        message = super().read(header, body, exchange, clock)
        second = int(clock())
        if second != self._second or len(self._stamped) >= _REMEMBERED:
            self._second = second
            self._stamped.clear()
        size = 4 + _struct_size(message.header, 0)[0]
        given = message.header[:size]
        stamped = self._stamped.get(given)
        if stamped is None:
            stamped = with_property(given, "timestamp", second)
            if size <= _MAX_REMEMBERED_BYTES:
                self._stamped[given] = stamped
        message.header, message.head = stamped + message.header[size:], None
        message.size += len(stamped) - size
        return message
