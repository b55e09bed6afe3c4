"""A request of a console, in either version, and how the errors of the model are told.

    status  what                    error
    ------  ----------------------  -----------------------------------------------------------
    0       OK
    1       unknown object
    2       unknown method          `UnknownMethodError`
    3       not implemented         NotImplementedByBrokerError
    4       invalid parameter       NotFoundError, InvalidArgumentError, PreconditionFailedError
    6       forbidden               `ForbiddenError`
    7       exception               all others

The text of an UnauthorizedError begins with `unauthorized-access: `, as that of qpidd does.

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 20030-20043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.message import ReplyAddress

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
    """The status of what has failed."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), EXCEPTION)


def text_of(error: ModelError) -> str:
    """The text of what has failed."""
    return f"unauthorized-access: {error}" if type(error) is UnauthorizedError else str(error)


class Request(NamedTuple):
    """A request, without what it asks for.

    Attributes:
        caller: who has sent it.
        reply_to: where its reply goes; None if nobody waits for it.
        correlation_id: of its reply.
    """

    caller: Caller
    reply_to: ReplyAddress | None
    correlation_id: bytes | None
