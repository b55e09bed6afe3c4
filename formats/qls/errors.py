"""The error of this format."""

from __future__ import annotations

from formats.errors import FormatError


class QlsError(FormatError):
    """Bytes that are no linearstore journal."""

    format_name = "linearstore journal"
