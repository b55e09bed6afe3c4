"""From the header segments of transfers to messages, for one connection.

Most of what one publisher sends has the same delivery-properties, which are read once and remembered, for each exchange
that it sends to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, TypeAlias

from broker.model.content import Content
from broker.model.message import Handling
from broker.protocols.amqp_0_10.transfer import (
    MOST_HEADER_BYTES,
    DeliveryProperties,
    TransferMessage,
    read_delivery_properties,
    split_header,
    with_property,
)
from formats.amqp_0_10.errors import Amqp010Error

_REMEMBERED: Final = 2048
_MOST_REMEMBERED_BYTES: Final = 512  # of one: what is larger is rare, and not worth its room
_struct_size: Final = struct.Struct(">I").unpack_from
_NOTHING: Final[Mapping[bytes, Any]] = {}

TakeInterrupted: TypeAlias = Callable[[str, Content | None], tuple[bytes, Content] | None]
"""Given a resume-id, and the content that came with it: the header and content of the message that was interrupted, all
of it; None if what came is the whole."""


def _nothing_interrupted(_resume_id: str, _body: Content | None) -> None:
    """Every transfer is whole."""


class TransferReader:
    """Reads the headers of messages that come in.

    Remembers the delivery-properties that came lately, for each exchange.

    Args:
        publisher: what the messages are known by as those of one connection.
        checks_user_ids: whether a message may only have the user's own id.
        checks_publish: whether the broker's authorizer is asked about each message.

    Attributes:
        publisher, checks_user_ids, checks_publish: as above.
        take_interrupted: see `TakeInterrupted`.
        has_rare: whether something of each message is to be looked at before it is published: its user id, whether it
            may be published, or, since one such has come, whether it is immediate, or whether there is memory for it
            (`watch_memory`).
        is_memory_short: whether memory is short, so that each message may be one too many.
        has_published: whether a message has come since then.
    """

    __slots__ = (
        "_handlings", "_has_checks", "_has_immediate", "_remembered", "_room", "checks_publish", "checks_user_ids",
        "has_published", "has_rare", "is_memory_short", "publisher", "take_interrupted",
    )  # fmt: skip

    def __init__(
        self, publisher: object | None = None, *, checks_user_ids: bool = False, checks_publish: bool = False
    ) -> None:
        self.publisher = publisher
        self.checks_user_ids, self.checks_publish = checks_user_ids, checks_publish
        self._has_checks = self.has_rare = checks_user_ids or checks_publish
        self._has_immediate = self.is_memory_short = self.has_published = False
        self.take_interrupted: TakeInterrupted = _nothing_interrupted
        self._handlings: dict[Handling, Handling] = {}
        self._remembered: dict[str, dict[bytes, DeliveryProperties]] = {}
        self._room = _REMEMBERED

    def read(self, header: bytes, body: Content | None, exchange: str, clock: Callable[[], float]) -> TransferMessage:
        """The message of a transfer to `exchange`.

        Args:
            header: the payload of its header segment; empty where there was none.
            body: its content; None where it has no body segment.
            exchange: the transfer's destination.
            clock: gives seconds since 1970.

        Raises:
            Amqp010Error: the header is not what it should be.
            ResourceLimitExceededError: it ends a message that was interrupted, and that is too large now.
        """
        if len(header) > MOST_HEADER_BYTES:
            raise Amqp010Error(f"a header of {len(header)} bytes; {MOST_HEADER_BYTES} are the most")
        remembered = self._remembered.get(exchange, _NOTHING)
        given, others = split_header(header)
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
                    properties = self._read_properties(given, exchange)
        if properties.ttl is None:
            expires_at = float(properties.expiration)
            return TransferMessage(properties.encoded + others, body, exchange, properties, expires_at)
        expires_at = clock() + properties.ttl / 1000
        encoded = with_property(properties.encoded, "expiration", ceil(expires_at))
        return TransferMessage(encoded + others, body, exchange, properties, expires_at)

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory is short, or ample again."""
        self.is_memory_short, self.has_published = is_short, False
        self.has_rare = is_short or self._has_checks or self._has_immediate

    def _read_properties(self, given: bytes, exchange: str) -> DeliveryProperties:
        properties = read_delivery_properties(given, exchange)
        handling = properties.handling._replace(publisher=self.publisher)
        self._has_immediate = self._has_immediate or handling.is_immediate
        self.has_rare = self.has_rare or handling.is_immediate
        return properties._replace(handling=self._handlings.setdefault(handling, handling))

    def _remember(self, exchange: str, given: bytes, properties: DeliveryProperties) -> None:
        if len(given) > _MOST_REMEMBERED_BYTES:
            return
        if not self._room:
            self._remembered.clear()
            self._room = _REMEMBERED
        self._room -= 1
        self._remembered.setdefault(exchange, {})[given] = properties


class TimestampingReader(TransferReader):
    """A reader that writes into each message when it came, in seconds since 1970, whatever its sender has said.

    Source: AMQP 0-10, delivery-properties, timestamp; qpidd's option enable-timestamp.
    """

    __slots__ = ("_second", "_stamped")

    def __init__(
        self, publisher: object | None = None, *, checks_user_ids: bool = False, checks_publish: bool = False
    ) -> None:
        super().__init__(publisher, checks_user_ids=checks_user_ids, checks_publish=checks_publish)
        self._second = 0
        self._stamped: dict[bytes, bytes] = {}  # delivery-properties as read -> with the time, within one second

    def read(self, header: bytes, body: Content | None, exchange: str, clock: Callable[[], float]) -> TransferMessage:
        """As `TransferReader.read`, and with the time."""
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
            if size <= _MOST_REMEMBERED_BYTES:
                self._stamped[given] = stamped
        message.header = stamped + message.header[size:]
        message.size += len(stamped) - size
        return message
