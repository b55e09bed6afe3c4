"""The error of this format."""

from __future__ import annotations

from formats.errors import FormatError


class RhmError(FormatError):
    """Bytes that are no journal record, file header or info file."""

    format_name = "journal"
