"""The error that every format raises.

Each format has one subclass of `FormatError`, and raises nothing else for bytes it cannot read, however they
were truncated, flipped or forged.
"""

from __future__ import annotations


class FormatError(ValueError):
    """Bytes that violate their format.

    Attributes:
        what: the defect, in one line.
        offset: where, in bytes from the start of the buffer.
        fails_checksum: whether the cause is a wrong checksum.
    """

    format_name = "format"

    def __init__(self, what: str, offset: int = 0, *, fails_checksum: bool = False) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset
        self.fails_checksum = fails_checksum

    def __str__(self) -> str:
        return f"{self.format_name}: {self.what} (at offset {self.offset})"


class RhmError(FormatError):
    """Bytes that are not a journal record, file header or info file."""

    format_name = "journal"


class QlsError(FormatError):
    """Bytes that are not a linearstore journal."""

    format_name = "linearstore journal"


class BrokerRecordError(FormatError):
    """Bytes that are not the expected record, or a record that cannot be encoded (then the offset is 0)."""

    format_name = "broker record"
