"""One JSON object per line."""

from __future__ import annotations

from typing import Any, BinaryIO

from orjson import OPT_APPEND_NEWLINE, dumps

from qstore.tools.console.text import escape_name, escape_names

_BATCH = 1 << 18  # bytes buffered before a write

# A name that contains a literal `\x` must be escaped; in JSON text its backslash is doubled. Most lines have no
# backslash, and a single byte is found much faster than a string.
_BACKSLASH = 0x5C
_SUSPECT = b"\\\\x"


class JsonLines:
    """Prints objects as JSON lines.

    Args:
        stream: the output.
    """

    max_body: int | None = None

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # One bytearray, because keeping the lines as separate objects costs the allocator four times as much as
        # creating them.
        self._gathered = bytearray()

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        try:
            line = dumps(fields, option=OPT_APPEND_NEWLINE)
            if _BACKSLASH in line and _SUSPECT in line:
                line = escaped_line(fields)
        except TypeError:
            line = escaped_line(fields)
        self._gathered += line
        if len(self._gathered) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self._stream.write(self._gathered)
        self._stream.flush()
        self._gathered = bytearray()


# Fields that contain names.
_NAMES = frozenset(
    {
        "name",
        "queue",
        "exchange",
        "routing_key",
        "key",
        "stored_key",
        "alternate_exchange",
        "link",
        "source",
        "destination",
        "file",
    }
)

# Fields that contain nested objects with names in them.
_OBJECTS = frozenset({"message", "properties", "reply_to"})


def escaped_line(fields: dict[str, Any]) -> bytes:
    """The line with all names escaped."""
    return dumps(escape_fields(fields), option=OPT_APPEND_NEWLINE)


def escape_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The object with all names escaped."""
    plain: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _OBJECTS and isinstance(value, dict):
            plain[key] = escape_fields(value)
        else:
            named = key in _NAMES and isinstance(value, str)
            plain[escape_name(key)] = escape_name(value) if named else escape_names(value)
    return plain
