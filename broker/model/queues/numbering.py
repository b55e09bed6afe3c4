"""Numbers messages on their queue: consumers find the number, an int64 from 1, in a header that the declaration names.

A gap shows that messages were discarded, as by a ring. The number is not stored: a start numbers the messages that are
left from 1, as in qpidd. It differs from the number that an exchange gives (`qpid.msg_sequence`), which is stored.
"""

from __future__ import annotations

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import Message


def numbered(message: Message, header: str, number: int) -> Message:
    """The message with its number; without it, if its headers cannot be decoded."""
    try:
        return message.with_number(header, number)
    except InvalidArgumentError:
        return message
