"""The criteria of a headers exchange's binding.

They are in the binding's arguments: `x-match` is "all" or "any", and every other name that does not begin with "x-" is
that of a required header, with the same value; a void value only requires the header to be present. With "any" one
header is enough, so a binding without any never matches; with "all" and none, it matches everything.

Values are compared by meaning, not by encoding:

    integers of any width             by number; never equal to a boolean, a float or a text
    float, double                     by number
    text of any encoding, vbin*       as text: clients send text as either
    void                              matches any value
    map, list, array                  item by item
    all others                        by type and value

Source: AMQP 0-10, class exchange, type headers; `x-match` is required as in qpidd, which answers internal-error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qstore.broker.model.arguments import MATCH
from qstore.broker.model.errors import InternalError
from qstore.formats.values import TypedArray, TypedMap, TypedValue

_IGNORED: Final = "x-"
PRESENT: Final = ("NoneType", None)
"""The wanted value of a header that only has to be present."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of a binding. Equal if they match the same messages.

    Attributes:
        is_all: whether all headers must match, or any one.
        headers: name -> value in the form of `comparable`.
    """

    is_all: bool
    headers: Mapping[str, Hashable]

    def match(self, headers: Mapping[str, Hashable]) -> bool:
        """Whether a message with these headers matches; their values are in the form of `comparable`."""
        for name, wanted in self.headers.items():
            found = headers.get(name)
            is_match = found is not None and wanted in (PRESENT, found)
            if is_match is not self.is_all:
                return is_match
        return self.is_all


def parse_criteria(arguments: TypedMap) -> Criteria:
    """The criteria of a binding with these arguments.

    Raises:
        InternalError: `x-match` is missing, or neither "all" nor "any".
    """
    values = dict(arguments.entries)
    match = comparable(values.pop(MATCH, None))
    if match not in (comparable("all"), comparable("any")):
        raise InternalError(f'a binding to a headers exchange needs the argument {MATCH} with value "all" or "any"')
    headers = {name: comparable(typed) for name, typed in values.items() if not name.startswith(_IGNORED)}
    return Criteria(match == comparable("all"), headers)


def comparable(value: Any) -> Hashable:
    """A hashable form of a value that is equal for equal values."""
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
