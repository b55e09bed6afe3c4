"""The words of a command: conditions of a query, arguments of a method."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qstore.broker.client import AddressError, MessagingError
from qstore.broker.client.address import parse_map, word_value
from qstore.broker.management.console import Argument, Method

_CONDITION: Final = re.compile(r"([A-Za-z_]\w*)(!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)
_OPERATORS: Final = {"=": "eq", "!=": "ne", ">": "gt", ">=": "ge", "<": "lt", "<=": "le", "~": "re_match"}
_FLAGS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class WordError(MessagingError):
    """A word of a command is not what it should be."""


def is_condition(word: str) -> bool:
    """Whether a word is NAME OPERATOR VALUE without spaces."""
    return _CONDITION.fullmatch(word) is not None


def condition(words: Sequence[str]) -> list[Any] | None:
    """The condition of a query: each of the words holds; None if there are none.

    Raises:
        WordError: a word is not NAME=VALUE, or with another of != > >= < <= ~.
    """
    conditions: list[Any] = []
    for word in words:
        found = _CONDITION.fullmatch(word)
        if found is None:
            raise WordError(f"{word!r} is not NAME=VALUE, or with != > >= < <= ~ instead of =")
        name, operator, text = found.groups()
        value = text if operator == "~" else word_value(text)
        conditions.append([_OPERATORS[operator], name, ["quote", value] if isinstance(value, str) else value])
    return ["and", *conditions] if conditions else None


def method_arguments(method: Method | None, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a method: values in the order of the schema, or NAME=VALUE in any order.

    Args:
        method: the method; None if its schema is not known.
        words: the arguments.

    Raises:
        WordError: there are too many, or one is not of its type.
    """
    wanted = {} if method is None else {each.name: each for each in method.arguments if each.direction != "O"}
    left = list(wanted)
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and (name in wanted or method is None):
            found[name] = _value(text, wanted.get(name))
            left = [each for each in left if each != name]
        elif left:
            name = left.pop(0)
            found[name] = _value(word, wanted[name])
        elif method is None:
            raise WordError(f"the schema is not known, so {word!r} should be NAME=VALUE")
        else:
            raise WordError(f"{method.name} has only {len(wanted)} arguments: {', '.join(wanted) or 'none'}")
    return found


def _number(text: str) -> int:
    return int(text, 0)


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError
    return _FLAGS[text.lower()]


def _map(text: str) -> Any:
    return parse_map(text)


def _list(text: str) -> Any:
    value = parse_map(f"{{value: {text}}}")["value"]
    if not isinstance(value, list):
        raise ValueError
    return value


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        [
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "count8",
            "count16",
            "count32",
            "count64",
            "absTime",
            "deltaTime",
            "timestamp",
            "duration",
            "int",
        ],
        _number,
    ),
    "float": float,
    "double": float,
    "bool": _flag,
    "uuid": uuid.UUID,
    "map": _map,
    "list": _list,
    "array": _list,
    "sstr": str,
    "lstr": str,
    "string": str,
}


def _value(text: str, argument: Argument | None) -> Any:
    if argument is None:
        return _map(text) if text.startswith("{") else word_value(text)
    read = _READERS.get(argument.type, word_value)
    try:
        return read(text)
    except (ValueError, AddressError):
        raise WordError(f"the argument {argument.name} is {argument.type}, not {text!r}") from None
