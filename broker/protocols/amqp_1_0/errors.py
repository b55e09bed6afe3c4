"""Errors of a client, by what they end: a link, a session or the connection; and the conditions of the model's errors.

    UnauthorizedError              amqp:unauthorized-access
    NotAllowedError                amqp:not-allowed
    NotFoundError                  amqp:not-found
    ResourceDeletedError           amqp:resource-deleted
    ResourceLockedError            amqp:resource-locked
    PreconditionFailedError        amqp:precondition-failed
    IllegalArgumentError           amqp:invalid-field
    InvalidArgumentError           amqp:invalid-field
    HeaderTooLargeError            amqp:resource-limit-exceeded
    NotImplementedByBrokerError    amqp:not-implemented
    ResourceLimitExceededError     amqp:resource-limit-exceeded, and so are the errors derived from it
    IllegalStateError              amqp:illegal-state
    CommandInvalidError            amqp:invalid-field
    InternalError                  amqp:internal-error

    Amqp10Error                    amqp:decode-error: bytes that cannot be decoded
    FieldError                     amqp:invalid-field: a field that is missing, or has a value that it cannot have

An error of the model ends the link that it concerns, or is the outcome of a message. What cannot be decoded ends the
connection; an invalid field likewise.

Source: the AMQP 1.0 specification as XML, part "transport", section 2.8.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from qstore.broker.model import errors
from qstore.broker.protocols.assembly import ProtocolError
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import Composite, FieldError
from qstore.formats.errors import FormatError

_MAX_TEXT: Final = 1024


class Ends(Enum):
    """What an error ends."""

    LINK = auto()
    SESSION = auto()
    CONNECTION = auto()


class ConditionError(ProtocolError):
    """An error that is sent to the client with its condition.

    Args:
        condition: the condition.
        text: the description.
        ends: what it ends.
    """

    def __init__(self, condition: Condition, text: str, ends: Ends = Ends.LINK) -> None:
        super().__init__(text)
        self.condition, self.ends = condition, ends


_CONDITIONS: Final[dict[type[errors.ModelError], Condition]] = {
    errors.UnauthorizedError: Condition.UNAUTHORIZED_ACCESS,
    errors.NotAllowedError: Condition.NOT_ALLOWED,
    errors.NotFoundError: Condition.NOT_FOUND,
    errors.ResourceDeletedError: Condition.RESOURCE_DELETED,
    errors.ResourceLockedError: Condition.RESOURCE_LOCKED,
    errors.PreconditionFailedError: Condition.PRECONDITION_FAILED,
    errors.IllegalArgumentError: Condition.INVALID_FIELD,
    errors.InvalidArgumentError: Condition.INVALID_FIELD,
    errors.HeaderTooLargeError: Condition.RESOURCE_LIMIT_EXCEEDED,
    errors.NotImplementedByBrokerError: Condition.NOT_IMPLEMENTED,
    errors.ResourceLimitExceededError: Condition.RESOURCE_LIMIT_EXCEEDED,
    errors.QueueOverflowError: Condition.RESOURCE_LIMIT_EXCEEDED,
    errors.RoutingLimitError: Condition.RESOURCE_LIMIT_EXCEEDED,
    errors.IllegalStateError: Condition.ILLEGAL_STATE,
    errors.CommandInvalidError: Condition.INVALID_FIELD,
    errors.InternalError: Condition.INTERNAL_ERROR,
}


def condition_of(error: Exception) -> Condition:
    """The condition of an error."""
    if isinstance(error, ConditionError):
        return error.condition
    if isinstance(error, FormatError):
        return Condition.INVALID_FIELD if isinstance(error, FieldError) else Condition.DECODE_ERROR
    if isinstance(error, errors.ModelError):
        return _CONDITIONS[type(error)]
    return Condition.INTERNAL_ERROR


def error_value(error: Exception) -> Composite:
    """An error as it is sent."""
    return Composite("error", {"condition": str(condition_of(error)), "description": str(error)[:_MAX_TEXT]})
