"""A new message from NAME=VALUE words."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from qstore.store.importing.intake import ImportedMessage
from qstore.tools.interchange.message_lines import read_message
from qstore.tools.store_shell.words import ShellError

_MAX_FILE: Final = 256 << 20  # bytes of a body from a file
_TOP: Final = ("routing_key", "exchange", "message_id")
_NUMBERS: Final = ("priority",)
_PROPERTIES: Final = ("content_type", "content_encoding", "correlation_id", "user_id", "app_id")
_TIMES: Final = ("ttl", "expiration", "timestamp")
_HEADER: Final = "header."


def message_of(queue: str, words: Sequence[str]) -> ImportedMessage:
    """The message that words describe.

    Raises:
        ShellError: a word is not NAME=VALUE, or a name is not known.
        InterchangeError: a value is not valid.
        OSError: the file with the body cannot be read.
    """
    fields: dict[str, Any] = {"queue": queue, "routing_key": queue, "properties": {}, "headers": {}}
    has_body = False
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ShellError(f"{word!r} is not NAME=VALUE, such as body=hello")
        has_body = has_body or name in ("body", "file")
        _set(fields, name, value)
    if not has_body:
        raise ShellError("a message has a body: body=TEXT, or file=PATH")
    return read_message(fields, b"")


def _set(fields: dict[str, Any], name: str, value: str) -> None:
    if name == "body" or name in _TOP:
        fields[name] = value
    elif name == "file":
        fields["body_base64"] = base64.b64encode(_content(value)).decode()
    elif name in _NUMBERS:
        fields[name] = _number(name, value)
    elif name in _PROPERTIES:
        fields["properties"][name] = value
    elif name in _TIMES:
        fields["properties"][name] = _number(name, value)
    elif name == "reply_to":
        exchange, _, key = value.rpartition("/")
        fields["properties"]["reply_to"] = {"exchange": exchange, "routing_key": key}
    elif name.startswith(_HEADER) and len(name) > len(_HEADER):
        fields["headers"][name.removeprefix(_HEADER)] = _plain(value)
    else:
        raise ShellError(f"a message has no field {name!r}; help inject tells which there are")


def _content(path: str) -> bytes:
    try:
        file = Path(path).expanduser()
    except RuntimeError:  # of a user that does not exist
        file = Path(path)
    with file.open("rb") as opened:
        content = opened.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise ShellError(f"{path}: more than {_MAX_FILE:,} bytes; qstore-import brings large messages into a store")
    return content


def _number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise ShellError(f"{name} is a number, not {value!r}")
    return int(value)


def _plain(value: str) -> Any:
    """A header: true, false, a number, or a text, also in double quotes."""
    if value in ("true", "false"):
        return value == "true"
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 18:
        return int(value)
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value
