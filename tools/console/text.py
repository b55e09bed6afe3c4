r"""Untrusted text made safe to show, and names as text that can be converted back to their bytes.

A queue, exchange or key is bytes; most are UTF-8 and are shown unchanged. A byte that is not UTF-8 is written
`\xNN`, and to keep this reversible a backslash before an x is itself written `\x5c`.

Characters that control a terminal or are invisible (control characters, directional marks, halves of UTF-16 pairs) are
written `\xNN`, `\uNNNN` or `\UNNNNNNNN`. Which characters these are differs by output:

    printable   console and standard error: control characters and directional marks; names stay reversible
    sentence    the same for a text in which names are escaped already: its backslashes stay as they are
    visible     HTML reports: everything unprintable; cut after `MAX_TEXT` characters
    one_line    the drop-ins for Apache's tools: control characters only, because names are written as their bytes
"""

from __future__ import annotations

import re
from typing import Any, Final

MAX_TEXT: Final = 500  # characters of a name or an example that a report shows

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"\\x([0-9a-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_CONTROL_ONLY: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


# ---- text for display ----


def printable(text: str, limit: int | None = None) -> str:
    """Text without control characters and lone surrogates, cut to `limit` characters.

    The full name of a queue or exchange of a virtual host has a slash in it (`formats.broker_records.topology`).
    """
    if text.count("\x1f") == 1:
        text = text.replace("\x1f", "/")
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return _CONTROL.sub(_escaped, escape_name(text))


def sentence(text: str) -> str:
    """A text of notices, damage and errors as `printable`, but with the backslashes of names that are escaped in it."""
    text = text.replace("\x1f", "/")
    return _CONTROL.sub(_escaped, text if text.isascii() else _SURROGATE.sub(_escape_surrogate, text))


def visible(text: str) -> str:
    """The text with all characters visible; marked as cut if it is longer than `MAX_TEXT`."""
    if len(text) > MAX_TEXT:
        return f"{visible(text[:MAX_TEXT])}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(ord(each)) for each in text)


def one_line(text: str) -> str:
    r"""Text without control characters; the separators U+2028 and U+2029 are written `\x2028` and `\x2029`."""
    return _CONTROL_ONLY.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _escaped(found: re.Match[str]) -> str:
    return _escape(ord(found[0]))


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# ---- reversible names ----


def escape_name(name: str) -> str:
    r"""A name with surrogate escapes as plain text; `unescape_name` is the inverse."""
    if "\\x" in name:
        name = name.replace("\\x", "\\x5cx")
    return name if name.isascii() else _SURROGATE.sub(_escape_surrogate, name)


def _escape_surrogate(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        return _escape(code)
    # Half a UTF-16 pair cannot result from decoding bytes as UTF-8: shown as its own three bytes.
    return "".join(map(_escape, found[0].encode("utf-8", "surrogatepass")))


def unescape_name(text: str) -> str:
    """The name, with surrogate escapes, from which `escape_name` made `text`; bytes of a command line stay."""
    parts = _ESCAPE.split(text)
    octets = bytearray()
    for index, part in enumerate(parts):
        octets += bytes([int(part, 16)]) if index % 2 else _octets(part)
    return octets.decode("utf-8", "surrogateescape")


def _octets(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a UTF-16 pair
        return text.encode("utf-8", "surrogatepass")


def escape_names(value: Any) -> Any:
    """A JSON value with the keys of objects escaped, and with strings that JSON encoders reject escaped."""
    if isinstance(value, dict):
        return {escape_name(key): escape_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [escape_names(entry) for entry in value]
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return escape_name(value)
    return value
