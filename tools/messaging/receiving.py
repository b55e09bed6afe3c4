"""Printing of received messages, and checks of their sequence numbers, for `qpid-receive`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qstore.broker.client import Message, MessagingError
from qstore.broker.client.address import format_value
from qstore.tools.messaging.sending import SEQUENCE


class SequenceError(MessagingError):
    """A message is out of sequence, missing or duplicated."""


class SequenceTracker:
    """Checks the property "sn" of messages, which a sender counts up from 1."""

    def __init__(self) -> None:
        self._last = 0

    def is_duplicate(self, message: Message) -> bool:
        """Whether a message with this sequence number or a higher one was received before.

        Raises:
            SequenceError: it has no sequence number.
        """
        number = self._number(message)
        if number <= self._last:
            return True
        self._last = number
        return False

    def check_next(self, message: Message) -> None:
        """Check that a message has the next sequence number.

        Raises:
            SequenceError: it has another number, or none.
        """
        number = self._number(message)
        if number != self._last + 1:
            raise SequenceError(f"message out of sequence: received {number}, expected {self._last + 1}")
        self._last = number

    def _number(self, message: Message) -> int:
        number = message.properties.get(SEQUENCE)
        if not isinstance(number, int):
            raise SequenceError(f'a message has no sequence number in the property "{SEQUENCE}"')
        return number


def header_lines(message: Message) -> Iterator[str]:
    """A message's headers and properties as lines, with an empty line at the end."""
    named: list[tuple[str, Any]] = [
        ("Subject", message.subject),
        ("ReplyTo", message.reply_to),
        ("MessageId", message.id),
        ("CorrelationId", message.correlation_id),
        ("UserId", message.user_id),
        ("TTL", None if message.ttl is None else round(message.ttl * 1000)),
        ("Priority", message.priority),
        ("ContentType", message.content_type),
        ("Durable", "true" if message.durable else None),
        ("Redelivered", "true" if message.redelivered else None),
    ]
    for name, value in named:
        if value:
            yield f"{name}: {value}"
    yield f"Properties: {format_value(message.properties)}"
    yield ""


def content_bytes(message: Message) -> bytes:
    """A message's content as printed: text and bytes unchanged, maps and lists in the syntax of addresses."""
    content = message.content
    if isinstance(content, (dict, list)):
        return format_value(content).encode("utf-8", "surrogateescape")
    return message.body
