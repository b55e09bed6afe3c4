"""The error of this format."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class QlsError(FormatError):
    """Bytes that are not a linearstore journal."""

    format_name = "linearstore journal"
