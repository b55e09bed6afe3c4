"""The error of this format."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class RhmError(FormatError):
    """Bytes that are not a journal record, file header or info file."""

    format_name = "journal"
