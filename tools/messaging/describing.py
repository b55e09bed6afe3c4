"""Messages as `spout` and `drain` print them, and the format of `drain --print`.

A format is text with `%(M)s` for the message, `%(M.content)s` for one of its attributes (`ATTRIBUTES`), and
`%(M.properties[NAME])s` for one of its properties or of the entries of a map. `r` instead of `s` prints it quoted.
"""

from __future__ import annotations

import re
from typing import Any, Final

from qstore.broker.client import Message, MessagingError
from qstore.tools.management.amounts import plain

#: What a format may name, in the order in which a message is described.
ATTRIBUTES: Final = (
    "id", "subject", "user_id", "reply_to", "correlation_id", "durable", "priority", "ttl", "redelivered", "properties",
    "content_type", "content",
)  # fmt: skip
_PATH: Final = re.compile(r"M((?:\.[a-z_]+)?)((?:\[[^\[\]]+\])*)")
_KEY: Final = re.compile(r"\[([^\[\]]+)\]")


class PrintFormatError(MessagingError):
    """A format cannot be used."""


def described(message: Message) -> str:
    """A message on one line."""
    found = []
    for name in ATTRIBUTES:
        value = getattr(message, name)
        if value is None or value is False or (name == "properties" and not value):
            continue
        if name == "content_type" and value in ("text/plain", "amqp/map", "amqp/list"):
            continue
        if name != "content" or value not in ("", b""):
            found.append(f"{name}={value!r}")
    return f"Message({', '.join(found)})"


def message_json(message: Message) -> dict[str, Any]:
    """A message as JSON."""
    return {"kind": "message", **{name: plain(getattr(message, name)) for name in ATTRIBUTES}}


class _Values:
    """What a format may name of one message."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __str__(self) -> str:
        return described(self._message)

    def __getitem__(self, path: str) -> Any:
        found = _PATH.fullmatch(path)
        name = "" if found is None else found[1].removeprefix(".")
        if found is None or (name and name not in ATTRIBUTES):
            raise PrintFormatError(f"the format has {path!r}; it may have M, or M. with one of {', '.join(ATTRIBUTES)}")
        value: Any = getattr(self._message, name) if name else described(self._message)
        for key in _KEY.findall(found[2]):
            value = value.get(key.strip("'\"")) if isinstance(value, dict) else None
        return value


def formatted(message: Message, pattern: str) -> str:
    """A message in a format.

    Raises:
        PrintFormatError: the format is invalid.
    """
    try:
        return pattern % _Values(message)
    except (ValueError, TypeError) as error:
        raise PrintFormatError(f"the format {pattern!r} cannot be used: {error}") from None
