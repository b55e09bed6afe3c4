"""Reply codes of AMQP 0-9-1: why a channel or a connection is closed, or a message is returned; errors of encodings.

Source: the AMQP 0-9-1 specification as XML, `<constant>` elements with a class; the specification's text for NO_ROUTE.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from qstore.formats.errors import FormatError


class ReplyCode(IntEnum):
    """reply-code of connection.close, channel.close and basic.return."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


#: Codes that close the connection (hard errors); the others close the channel.
HARD_ERRORS: Final = frozenset(
    code for code in ReplyCode if code in (ReplyCode.CONNECTION_FORCED, ReplyCode.INVALID_PATH) or code > 500
)


# ---- errors ----


class Amqp091Error(FormatError):
    """Bytes that are not AMQP 0-9-1, or a value that its AMQP 0-9-1 type cannot carry (then the offset is 0)."""

    format_name = "AMQP 0-9-1"


class MissingClassError(Amqp091Error):
    """A method of a class that is specified and not implemented."""


class ContentClassError(Amqp091Error):
    """A content header of another class than the method before it."""
