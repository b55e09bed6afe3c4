"""The error of AMQP 0-10 encodings."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class Amqp010Error(FormatError):
    """Bytes that are not AMQP 0-10, or a value that its AMQP 0-10 type cannot carry (then the offset is 0)."""

    format_name = "AMQP 0-10"
