"""The AMQP 0-10 codes (execution.error-code) of the model's errors."""

from __future__ import annotations

from typing import Final

from qstore.broker.model import errors
from qstore.formats.amqp_0_10.codes import ErrorCode

_CODES: Final[dict[type[errors.ModelError], ErrorCode]] = {
    errors.UnauthorizedError: ErrorCode.UNAUTHORIZED_ACCESS,
    errors.NotFoundError: ErrorCode.NOT_FOUND,
    errors.ResourceLockedError: ErrorCode.RESOURCE_LOCKED,
    errors.PreconditionFailedError: ErrorCode.PRECONDITION_FAILED,
    errors.ResourceDeletedError: ErrorCode.RESOURCE_DELETED,
    errors.IllegalStateError: ErrorCode.ILLEGAL_STATE,
    errors.CommandInvalidError: ErrorCode.COMMAND_INVALID,
    errors.ResourceLimitExceededError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.QueueOverflowError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.RoutingLimitError: ErrorCode.RESOURCE_LIMIT_EXCEEDED,
    errors.NotAllowedError: ErrorCode.NOT_ALLOWED,
    errors.IllegalArgumentError: ErrorCode.ILLEGAL_ARGUMENT,
    errors.NotImplementedByBrokerError: ErrorCode.NOT_IMPLEMENTED,
    errors.InternalError: ErrorCode.INTERNAL_ERROR,
    errors.InvalidArgumentError: ErrorCode.INVALID_ARGUMENT,
    errors.HeaderTooLargeError: ErrorCode.INVALID_ARGUMENT,
}


def code_of(error: errors.ModelError) -> ErrorCode:
    """The code of an error."""
    return _CODES[type(error)]
