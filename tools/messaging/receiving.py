"""What `qpid-receive` makes of messages: printed, and checked against their sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.client import Message, MessagingError
from broker.client.address import format_value
from tools.messaging.sending import SEQUENCE


class SequenceError(MessagingError):
    """Messages came otherwise than they were told to come."""


class SequenceTracker:
    """Looks at the "sn" of messages, which one sender counts up from 1."""

    def __init__(self) -> None:
        self._last = 0

    def is_duplicate(self, message: Message) -> bool:
        """Whether a message of that number, or of a later one, came before.

        Raises:
            SequenceError: it has no number.
        """
        number = self._number(message)
        if number <= self._last:
            return True
        self._last = number
        return False

    def check_next(self, message: Message) -> None:
        """Take note that a message came, which must be the one after the one before.

        Raises:
            SequenceError: it is not, or has no number.
        """
        number = self._number(message)
        if number != self._last + 1:
            raise SequenceError(f"message {number} came where {self._last + 1} should have come")
        self._last = number

    def _number(self, message: Message) -> int:
        number = message.properties.get(SEQUENCE)
        if not isinstance(number, int):
            raise SequenceError(f'a message has no number in the property "{SEQUENCE}"')
        return number


def header_lines(message: Message) -> Iterator[str]:
    """What a message says beside its content, in lines; an empty one at the end."""
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
    """A message's content as it is printed: text and bytes as they are, maps and lists as in an address."""
    content = message.content
    if isinstance(content, (dict, list)):
        return format_value(content).encode("utf-8", "surrogateescape")
    return message.body
