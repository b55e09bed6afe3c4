"""One JSON object a line."""

from __future__ import annotations

from typing import Any, BinaryIO

import orjson

from tools.names import escape_name, escape_names

_BATCH = 1 << 18  # bytes gathered before they are written

# A name that holds a literal `\x` must be escaped; in JSON text its backslash is doubled.
_SUSPECT = b"\\\\x"


class JsonLines:
    """Prints objects as JSON lines.

    Args:
        stream: where to.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._size = 0

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        try:
            line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
            if _SUSPECT in line:
                line = _escaped(fields)
        except TypeError:
            line = _escaped(fields)
        self._lines.append(line)
        self._size += len(line)
        if self._size >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        self._stream.write(b"".join(self._lines))
        self._stream.flush()
        self._lines.clear()
        self._size = 0


_NAMES = frozenset(
    {"name", "queue", "exchange", "routing_key", "key", "alternate_exchange", "link", "source", "destination", "file"}
)


def _escaped(fields: dict[str, Any]) -> bytes:
    """The line with each name escaped."""
    plain = {
        key: escape_name(value) if key in _NAMES and isinstance(value, str) else escape_names(value)
        for key, value in fields.items()
    }
    return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)
