"""The errors of AMQP 0-9-1 encodings."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class Amqp091Error(FormatError):
    """Bytes that are not AMQP 0-9-1, or a value that its AMQP 0-9-1 type cannot carry (then the offset is 0)."""

    format_name = "AMQP 0-9-1"


class ContentClassError(Amqp091Error):
    """A content header of another class than the method before it."""
