"""A message as a selector sees it: headers and properties, decoded once, at the first use.

The work of selectors is counted: consumers with expensive selectors must let others be served in between.

    type of a header         value in a selector
    -----------------------  --------------------------------------------------------
    boolean                  boolean
    integer, datetime        exact number; approximate if it exceeds 64 bits with sign
    float, double, decimal   approximate number
    text, binary             string: binary is decoded as UTF-8, since clients send strings as binary
    all others, or absent    NULL

Source: the types are those that qpidd compares; Apache Qpid C++, Selector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qstore.broker.model.errors import InternalError
from qstore.formats.values import Family, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.message import Message, Properties

#: A value in a selector; None is NULL.
Value = bool | int | float | str | None

_Result = TypeVar("_Result")

_MAX_EXACT: Final = (1 << 63) - 1
_MIN_EXACT: Final = -(1 << 63)
_DECODING: Final = 4  # a decoded byte counts as much as this many compared ones


def fitting(number: int) -> int | float:
    """An exact number of 64 bits with sign; a larger one becomes approximate."""
    return number if _MIN_EXACT <= number <= _MAX_EXACT else float(number)


def as_string(value: str | bytes) -> str:
    """Text, or bytes that hold text."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def as_value(typed: TypedValue) -> Value:
    """The value of a header."""
    family, value = typed.type.family, typed.value
    if family is Family.TEXT or family is Family.BINARY:
        return as_string(value)
    if family is Family.INTEGER or family is Family.TIME:
        return fitting(value)
    if family is Family.BOOLEAN:
        return bool(value)
    if family is Family.FLOAT or family is Family.DECIMAL:
        return float(value)
    return None


class Candidate:
    """A message that selectors are evaluated for.

    Attributes:
        message: the message.
        is_redelivered: whether its delivery would be marked as redelivered.
        work: characters that selectors have read of it and of their own text: each takes up to 0.1 µs.
    """

    __slots__ = ("_headers", "_properties", "_values", "is_redelivered", "message", "work")

    def __init__(self, message: Message, *, is_redelivered: bool) -> None:
        self.message, self.is_redelivered = message, is_redelivered
        self._properties: Properties | None = None
        self._headers: dict[str, TypedValue] | None = None
        self._values: dict[object, Any] = {}  # header, or function of `memoized` -> its value
        self.work = 0

    @property
    def properties(self) -> Properties:
        """Its properties."""
        if self._properties is None:
            self._count_decoding()
            self._properties = self.message.properties()
        return self._properties

    def memoized(self, get: Callable[[Candidate], _Result]) -> _Result:
        """The result of a function of it, which is called only once."""
        values = self._values
        if get not in values:
            values[get] = get(self)
        result: _Result = values[get]
        return result

    def header(self, name: str) -> Value:
        """The value of an application header; None if it is absent."""
        values = self._values
        if name in values:
            known: Value = values[name]
            return known
        headers = self._headers
        if headers is None:
            if self._properties is None:
                self._count_decoding()
                found = self.message.headers()
            else:
                found = self._properties.headers
            headers = self._headers = dict(found.entries)
        typed = headers.get(name)
        value = values[name] = None if typed is None else as_value(typed)
        return value

    def _count_decoding(self) -> None:
        with contextlib.suppress(InternalError):  # a message that cannot be read back has no headers
            self.message = self.message.whole()
        message = self.message
        self.work += _DECODING * (message.size - len(message.body))


class LastCandidate:
    """The candidate examined last: the consumers of a queue examine a message one after the other."""

    __slots__ = ("_candidate",)

    def __init__(self) -> None:
        self._candidate: Candidate | None = None

    def of(self, message: Message, *, is_redelivered: bool) -> Candidate:
        """The candidate for a message."""
        candidate = self._candidate
        if candidate is None or candidate.message is not message or candidate.is_redelivered is not is_redelivered:
            candidate = self._candidate = Candidate(message, is_redelivered=is_redelivered)
        return candidate

    def forget(self) -> None:
        """Drop the reference to the message, which was taken."""
        self._candidate = None
