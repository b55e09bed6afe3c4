"""A request of a console, in either version: its arguments, and the errors that it is answered with.

    status  meaning                 error
    ------  ----------------------  -----------------------------------------------------------
    0       OK
    1       unknown object          `UnknownObjectError`
    2       unknown method          `UnknownMethodError`
    3       not implemented         NotImplementedByBrokerError
    4       invalid parameter       NotFoundError, InvalidArgumentError, PreconditionFailedError
    6       forbidden               `ForbiddenError`
    7       exception               all others

The text of an UnauthorizedError begins with `unauthorized-access: `, as that of qpidd does.

Methods that select messages have an argument `filter`:

    {filter_type: header_match_str, filter_params: {header_key: KEY, header_value: VALUE}}

Sources: Qpid wiki, "QMF Protocol" (seed 004, lines 20030-20043); the QMF schema of qpidd's broker; qpidd, Queue.cpp
(the filter).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    UnauthorizedError,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, TypedValue
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.caller import Publisher
    from qstore.broker.model.message import Message, MessageId, ReplyAddress


class Request(NamedTuple):
    """A request, without its operation.

    Attributes:
        caller: who has sent it.
        reply_to: where its reply goes; None if it is not answered.
        correlation_id: of its reply.
        typed_id: the same as the client has sent it, if that was not bytes; else None.
    """

    caller: Publisher
    reply_to: ReplyAddress | None
    correlation_id: bytes | None
    typed_id: MessageId | None = None


# ---- errors ----

OK, UNKNOWN_OBJECT, UNKNOWN_METHOD, NOT_IMPLEMENTED, INVALID_PARAMETER, FORBIDDEN, EXCEPTION = 0, 1, 2, 3, 4, 6, 7


class UnknownObjectError(NotFoundError):
    """There is no such object."""


class UnknownMethodError(NotFoundError):
    """The class has no such method."""


class ForbiddenError(UnauthorizedError):
    """The caller may not call this method, whatever it does."""


_STATUS: Final = (
    (UnknownObjectError, UNKNOWN_OBJECT),
    (UnknownMethodError, UNKNOWN_METHOD),
    (NotImplementedByBrokerError, NOT_IMPLEMENTED),
    (NotFoundError, INVALID_PARAMETER),
    (InvalidArgumentError, INVALID_PARAMETER),
    (PreconditionFailedError, INVALID_PARAMETER),
    (ForbiddenError, FORBIDDEN),
)


def status_of(error: ModelError) -> int:
    """The status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), EXCEPTION)


def text_of(error: ModelError) -> str:
    """The text of an error."""
    return f"unauthorized-access: {error}" if type(error) is UnauthorizedError else str(error)


# ---- arguments ----

_TRUE: Final = ("true", "yes", "1", "on")
Wants: TypeAlias = "Callable[[Message], bool]"


class Arguments(dict[str, Any]):
    """The arguments of a method by name, which consoles send in any type: each is converted to the type in the schema.

    The readers raise InvalidArgumentError.
    """

    def text(self, name: str) -> str:
        """A string; empty if it is not given."""
        value = self.get(name, "")
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise InvalidArgumentError(f"the argument {printable(name)} must be a string")
        return value

    def flag(self, name: str) -> bool:
        """A boolean, which some consoles send as text; False if it is not given."""
        value = self.get(name, False)
        if isinstance(value, str | bytes):
            return self.text(name).lower() in _TRUE
        return bool(value)

    def count(self, name: str) -> int:
        """An integer from 0; 0 if it is not given."""
        value = self.get(name, 0)
        if type(value) is not int or value < 0:
            raise InvalidArgumentError(f"the argument {printable(name)} must be an integer from 0")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of integers from 0; empty if it is not given."""
        values = self._list(name)
        found = [each for each in values if type(each) is int and each >= 0]
        if len(found) < len(values):
            raise InvalidArgumentError(f"the argument {printable(name)} must be a list of integers from 0")
        return found

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty if it is not given."""
        values = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in self._list(name)]
        found = [each for each in values if isinstance(each, str)]
        if len(found) < len(values):
            raise InvalidArgumentError(f"the argument {printable(name)} must be a list of texts")
        return found

    def _list(self, name: str) -> list[Any]:
        value = self.get(name, ())
        given = value if isinstance(value, list | tuple) and not hasattr(value, "_fields") else (None,)
        return [each.value if isinstance(each, TypedValue) else each for each in given]

    def typed_map(self, name: str) -> TypedMap:
        """A map with the types of its values; empty if it is not given."""
        value = self.get(name)
        if value is None:
            return TypedMap()
        if not isinstance(value, TypedMap):
            raise InvalidArgumentError(f"the argument {printable(name)} must be a map")
        return value

    def map(self, name: str) -> Arguments:
        """A map, whose values are read likewise; empty if it is not given."""
        return Arguments({key: typed.value for key, typed in self.typed_map(name).entries})

    def filter(self) -> Wants | None:
        """Which messages the argument `filter` selects; None for all."""
        given = self.map("filter")
        if not given:
            return None
        if given.text("filter_type") != "header_match_str":
            raise InvalidArgumentError("the only filter_type is header_match_str")
        parameters = given.map("filter_params")
        if not {"header_key", "header_value"} <= parameters.keys():
            raise InvalidArgumentError("the filter needs filter_params with header_key and header_value")
        key, value = parameters.text("header_key"), parameters.text("header_value")
        return lambda message: message.header_text(key) == value
