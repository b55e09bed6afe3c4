"""The arguments of a method, which a console has given in any type, and the filter of messages among them.

    filter    {filter_type: header_match_str, filter_params: {header_key: KEY, header_value: VALUE}}

Source: the QMF schema of qpidd's broker; qpidd, Queue.cpp (the filter).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.management.objects.element import Arguments
from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.values import TypedMap, TypedValue
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

_TRUE: Final = ("true", "yes", "1", "on")
_MAX_NAME: Final = 255

Wants: TypeAlias = "Callable[[Message], bool]"


def text(arguments: Arguments, name: str) -> str:
    """A text; empty if it is not given. Raises InvalidArgumentError."""
    value = arguments.get(name, "")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise InvalidArgumentError(f"the argument {printable(name)} is no text")
    return value


def flag(arguments: Arguments, name: str) -> bool:
    """A flag, which some consoles send as text; False if it is not given."""
    value = arguments.get(name, False)
    if isinstance(value, str | bytes):
        return text(arguments, name).lower() in _TRUE
    return bool(value)


def count(arguments: Arguments, name: str) -> int:
    """A number from 0; 0 if it is not given. Raises InvalidArgumentError."""
    value = arguments.get(name, 0)
    if type(value) is not int or value < 0:
        raise InvalidArgumentError(f"the argument {printable(name)} is no number from 0")
    return value


def numbers(arguments: Arguments, name: str) -> list[int]:
    """A list of numbers from 0; empty if it is not given. Raises InvalidArgumentError."""
    value = arguments.get(name, ())
    given = value if isinstance(value, list | tuple) else (None,)
    plain_values = [each.value if isinstance(each, TypedValue) else each for each in given]
    found = [each for each in plain_values if type(each) is int and each >= 0]
    if len(found) < len(plain_values):
        raise InvalidArgumentError(f"the argument {printable(name)} is no list of numbers from 0")
    return found


def table(arguments: Arguments, name: str) -> TypedMap:
    """A map; empty if it is not given. Raises InvalidArgumentError."""
    value = arguments.get(name)
    if value is None:
        return TypedMap()
    if not isinstance(value, TypedMap):
        raise InvalidArgumentError(f"the argument {printable(name)} is no map")
    return value


def plain(values: TypedMap) -> dict[str, Any]:
    """The values of a map, without their types."""
    return {name: typed.value for name, typed in values.entries}


def wants(arguments: Arguments) -> Wants | None:
    """Which messages the filter selects; None for all. Raises InvalidArgumentError."""
    given = plain(table(arguments, "filter"))
    if not given:
        return None
    if text(given, "filter_type") != "header_match_str":
        raise InvalidArgumentError("the filter has another type than header_match_str")
    parameters = plain(table(given, "filter_params"))
    if not {"header_key", "header_value"} <= parameters.keys():
        raise InvalidArgumentError("the filter has no filter_params with header_key and header_value")
    key, value = text(parameters, "header_key"), text(parameters, "header_value")
    return lambda message: message.header_text(key) == value
