"""What a binding of a headers exchange asks of a message's headers.

The binding's arguments say it: `x-match` is "all" or "any", and every other name that does not begin with "x-" is that
of a header which must be there, with the same value; a void value asks only that it is there. With "any" one of them is
enough, so a binding without any never matches; with "all" and none, it matches everything.

Values are the same by what they are, not by how they travel:

    integers of any width             by number; they are never the same as a boolean, a float or a text
    float, double                     by number
    text of any encoding, vbin*       by text: clients send text as either
    void                              only to be there
    map, list, array                  item by item
    all others                        by type and value

Source: AMQP 0-10, class exchange, type headers; `x-match` is required in the seeds, and by qpidd,
which answers internal-error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.model.errors import InternalError
from formats.values import TypedArray, TypedMap, TypedValue

_MATCH: Final = "x-match"
_IGNORED: Final = "x-"
_PRESENT: Final = ("NoneType", None)


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a binding asks for. Two of them are equal if they ask for the same.

    Attributes:
        is_all: whether all headers have to match; if not, one.
        headers: name -> value, as `comparable` makes it.
    """

    is_all: bool
    headers: Mapping[str, Hashable]

    def match(self, headers: Mapping[str, Hashable]) -> bool:
        """Whether a message with these headers, all as `comparable` makes them, is asked for."""
        for name, wanted in self.headers.items():
            found = headers.get(name)
            is_match = found is not None and wanted in (_PRESENT, found)
            if is_match is not self.is_all:
                return is_match
        return self.is_all


def parse_criteria(arguments: TypedMap) -> Criteria:
    """What a binding with these arguments asks for.

    Raises:
        InternalError: `x-match` is missing, or neither "all" nor "any".
    """
    values = dict(arguments.entries)
    match = comparable(values.pop(_MATCH, None))
    if match not in (comparable("all"), comparable("any")):
        raise InternalError(f'a binding to a headers exchange needs the argument {_MATCH}, "all" or "any"')
    headers = {name: comparable(typed) for name, typed in values.items() if not name.startswith(_IGNORED)}
    return Criteria(match == comparable("all"), headers)


def comparable(value: Any) -> Hashable:
    """A value in a form that is equal, and of equal hash, for values that are the same."""
    match value:
        case TypedValue():
            return comparable(value.value)
        case TypedArray():
            return comparable(value.values)
        case str():
            return "text", value.encode("utf-8", "surrogatepass")
        case bytes():
            return "text", value
        case TypedMap():
            return comparable(dict(value.entries))
        case Mapping():
            return "map", frozenset((name, comparable(item)) for name, item in value.items())
        case list() | tuple():
            return "list", tuple(map(comparable, value))
    return type(value).__name__, value
