"""The error of broker records."""

from __future__ import annotations

from qstore.formats.errors import FormatError


class BrokerRecordError(FormatError):
    """Bytes that are not the expected record, or a record that cannot be encoded (then the offset is 0)."""

    format_name = "broker record"
