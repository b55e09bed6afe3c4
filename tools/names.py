r"""Names as text that can be turned back into their bytes.

A queue, exchange or key is bytes; most are UTF-8 and are shown as they are. A byte that is not UTF-8 is written
`\xNN`, and so that this stays reversible a backslash that stands before an x is itself written `\x5c`.
"""

from __future__ import annotations

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def escape_name(name: str) -> str:
    r"""A name with surrogate escapes as plain text; `unescape_name` turns it back."""
    if "\\x" in name:
        name = name.replace("\\x", "\\x5cx")
    return name if name.isascii() else _SURROGATE.sub(_escape_byte, name)


def _escape_byte(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    # Half a UTF-16 pair cannot come from bytes that were decoded as UTF-8: shown as its own three bytes.
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def unescape_name(text: str) -> str:
    """The name, with surrogate escapes, that `escape_name` turned into `text`."""
    parts = _ESCAPE.split(text)
    octets = bytearray()
    for index, part in enumerate(parts):
        octets += bytes([int(part, 16)]) if index % 2 else part.encode()
    return octets.decode("utf-8", "surrogateescape")


def escape_names(value: Any) -> Any:
    """A JSON value in which the keys of objects are escaped, and such text as no JSON writer would take."""
    if isinstance(value, dict):
        return {escape_name(key): escape_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [escape_names(entry) for entry in value]
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return escape_name(value)
    return value
