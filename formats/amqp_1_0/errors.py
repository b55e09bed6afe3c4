"""The error of AMQP 1.0 encodings."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class Amqp10Error(FormatError):
    """Bytes that are not AMQP 1.0."""

    format_name = "AMQP 1.0"
