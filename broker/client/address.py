r"""Parsing and formatting of address strings: `name [ "/" subject ] [ ";" options ]`.

    name, subject   text up to the next "/" or ";", without leading and trailing spaces, or quoted text. A subject
                    may contain further slashes.
    options         a map: `{ key : value , ... }`. Keys are words or quoted text.
    value           a map, a list `[ value , ... ]`, quoted text, or a word. The words true and false (in any
                    case) are booleans; a word that reads as a number is one; any other word is text.
    word            characters other than space and  ' " { } [ ] , : ;
    quoted text     in ' or ", with the escapes \\ \' \" \/ \b \f \n \r \t \xHH \uHHHH

Sources: Qpid C++ Broker Book, 1.6.2.1 (LVQ); MRG 2 Messaging User Guide, 3 (priorities, alerts); and examples of the
Qpid Messaging API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from qstore.broker.client.errors import AddressError

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value]"

#: Maximum nesting of maps and lists, the same as in formats.amqp_0_10.
MAX_DEPTH: Final = 32

_match_space: Final = re.compile(r"\s*").match
_match_word: Final = re.compile(r"""[^\s'"{}\[\],:;]+""").match
_match_integer: Final = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_match_number: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]{1,3})?").fullmatch
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_HEX_DIGITS: Final = {"x": 2, "u": 4}
_is_hex: Final = re.compile(r"[0-9a-fA-F]+").fullmatch


class Address(NamedTuple):
    """A parsed address, with uninterpreted options.

    Attributes:
        name: the name of the queue or exchange.
        subject: None if the address has none.
        options: the map after the semicolon.
    """

    name: str
    subject: str | None = None
    options: dict[str, Value] = {}  # noqa: RUF012 (never changed: an address is a value)

    def __str__(self) -> str:
        return format_address(self)


class _Reader:
    """A position in the text of an address."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, what: str, position: int | None = None) -> AddressError:
        return AddressError(what, self.text, self.position if position is None else position)

    def peek(self) -> str:
        """Skip spaces, and return the next character; "" at the end."""
        found = _match_space(self.text, self.position)
        assert found is not None
        self.position = found.end()
        return self.text[self.position : self.position + 1]

    def take(self, expected: str) -> bool:
        """Skip `expected` if it is the next character. Returns whether it was."""
        if self.peek() != expected:
            return False
        self.position += 1
        return True

    def read_part(self, stops: str) -> str:
        """A name or subject, up to one of `stops`."""
        if self.peek() in ("'", '"'):
            return self.read_quoted()
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in stops:
            self.position += 1
        return self.text[start : self.position].rstrip()

    def read_quoted(self) -> str:
        start, quote = self.position, self.text[self.position]
        self.position += 1
        parts: list[str] = []
        while True:
            if self.position >= len(self.text):
                raise self.error(f"missing closing {quote}", start)
            character = self.text[self.position]
            self.position += 1
            if character == quote:
                return "".join(parts)
            parts.append(self.read_escape() if character == "\\" else character)

    def read_escape(self) -> str:
        character = self.text[self.position : self.position + 1]
        self.position += 1
        if character in _ESCAPES:
            return _ESCAPES[character]
        width = _HEX_DIGITS.get(character, 0)
        digits = self.text[self.position : self.position + width]
        if not width or len(digits) < width or not _is_hex(digits):
            raise self.error(f"unknown escape \\{character}{digits}", self.position - 2)
        self.position += width
        return chr(int(digits, 16))

    def read_word(self, what: str) -> str:
        found = _match_word(self.text, self.position)
        if found is None:
            raise self.error(f"missing {what}")
        self.position = found.end()
        return found[0]

    def read_map(self, depth: int) -> dict[str, Value]:
        start = self.position
        self.check_depth(depth)
        self.position += 1
        entries: dict[str, Value] = {}
        while not self.take("}"):
            if entries and not self.take(","):
                raise self.unclosed("map", "}", start)
            if entries and self.take("}"):
                break
            position = self.position
            key = self.read_quoted() if self.peek() in ("'", '"') else self.read_word("option name")
            if key in entries:
                raise self.error(f"duplicate option {key!r}", position)
            if not self.take(":"):
                raise self.error(f"missing colon after {key!r}")
            entries[key] = self.read_value(depth)
        return entries

    def read_list(self, depth: int) -> list[Value]:
        start = self.position
        self.check_depth(depth)
        self.position += 1
        values: list[Value] = []
        while not self.take("]"):
            if values and not self.take(","):
                raise self.unclosed("list", "]", start)
            if values and self.take("]"):
                break
            values.append(self.read_value(depth))
        return values

    def unclosed(self, what: str, end: str, start: int) -> AddressError:
        if self.peek():
            return self.error(f"expected a comma or {end} in the {what} that begins at {start}")
        return self.error(f"missing {end} of the {what} that begins at {start}")

    def check_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise self.error(f"maps and lists are nested more than {MAX_DEPTH} deep")

    def read_value(self, depth: int) -> Value:
        match self.peek():
            case "{":
                return self.read_map(depth + 1)
            case "[":
                return self.read_list(depth + 1)
            case "'" | '"':
                return self.read_quoted()
        return word_value(self.read_word("value"))


def word_value(word: str) -> str | int | float | bool:
    """The value of an unquoted word: a boolean, a number, or the word itself."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if _match_integer(word):
        return int(word)
    return float(word) if _match_number(word) else word


def parse_address(text: str) -> Address:
    """Parse an address string.

    Raises:
        AddressError: it has a syntax error, with its position.
    """
    reader = _Reader(text)
    name = reader.read_part("/;")
    subject = reader.read_part(";") if reader.take("/") else None
    options: dict[str, Value] = {}
    if reader.take(";") and reader.peek():
        if reader.peek() != "{":
            raise reader.error("options must begin with {")
        options = reader.read_map(0)
    if reader.peek():
        raise reader.error(f"unexpected {reader.peek()!r}")
    if not name:
        raise reader.error("missing name", 0)
    return Address(name, subject, options)


def parse_map(text: str) -> dict[str, Value]:
    """Parse a map, such as connection options: `{reconnect: true}`; "" is an empty map.

    Raises:
        AddressError: it has a syntax error, with its position.
    """
    reader = _Reader(text)
    if not reader.peek():
        return {}
    if reader.peek() != "{":
        raise reader.error("options must begin with {")
    options = reader.read_map(0)
    if reader.peek():
        raise reader.error(f"unexpected {reader.peek()!r}")
    return options


# ----------------------------------------------------------------------------------------------- formatting


def format_address(address: Address) -> str:
    """The address as a string that parses to the same address."""
    parts = [_format_part(address.name, "/;")]
    if address.subject is not None:
        parts.append("/" + _format_part(address.subject, ";"))
    if address.options:
        parts.append("; " + format_value(address.options))
    return "".join(parts)


def queue_address(name: str, options: Mapping[str, Any] | None = None) -> str:
    """The address of a queue that exists, whatever its name is: a "#" in it is no unique id (see `resolution`)."""
    return format_address(Address(name, None, {"create": "never", "node": {"type": "queue"}, **(options or {})}))


def format_value(value: Any) -> str:
    """An option's value as text; also used to print properties."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_format_text(str(key))}:{format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if isinstance(value, bytes):
        return _format_text(value.decode("utf-8", "backslashreplace"))
    return _format_text(value) if isinstance(value, str) else str(value)


def _format_part(text: str, stops: str) -> str:
    plain = text and text == text.strip() and text[0] not in "'\"" and not any(stop in text for stop in stops)
    return text if plain else _quote(text)


def _format_text(text: str) -> str:
    found = _match_word(text)
    plain = found is not None and found.end() == len(text) and isinstance(word_value(text), str)
    return text if plain else _quote(text)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
