"""Errors of a client, by what they close: its channel, or its connection; and the codes of the model's errors.

    UnauthorizedError              403 access-refused
    NotAllowedError                403 access-refused: reserved names, standard exchanges, as RabbitMQ answers
    NotFoundError                  404 not-found
    ResourceDeletedError           404 not-found
    ResourceLockedError            405 resource-locked
    PreconditionFailedError        406 precondition-failed
    IllegalArgumentError           406 precondition-failed
    InvalidArgumentError           406 precondition-failed
    HeaderTooLargeError            406 precondition-failed
    NotImplementedByBrokerError    406 precondition-failed: an argument requests an unsupported feature
    ResourceLimitExceededError     406 precondition-failed; for a published message 311 content-too-large
    errors.QueueOverflowError             the same; without confirms, the publisher is not notified
    RoutingLimitError              406 precondition-failed
    IllegalStateError              406 precondition-failed
    CommandInvalidError            406 precondition-failed
    InternalError                  541 internal-error; closes the connection, all others close the channel

    Amqp091Error                   501 frame-error: a frame that cannot be decoded; closes the connection, and so does
    ContentClassError              505 unexpected-frame

Source: the AMQP 0-9-1 specification as XML, `<constant>`; RabbitMQ, "Channels" and "Queues" (which codes its clients
expect).
"""

from __future__ import annotations

from typing import Final

from qstore.broker.model import errors
from qstore.broker.protocols.assembly import ProtocolError
from qstore.formats.amqp_0_9_1.codes import (
    HARD_ERRORS,
    Amqp091Error,
    ContentClassError,
    MissingClassError,
    ReplyCode,
)
from qstore.formats.amqp_0_9_1.methods import AMQP_0_9_1, Version, encode_method

_MAX_TEXT: Final = 255


class CodedError(ProtocolError):
    """An error that is reported to the client with a reply code.

    Args:
        code: the reply code.
        text: the reason.
    """

    def __init__(self, code: ReplyCode, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def reply_text(self) -> str:
        """The text that is sent: the code's name first, as RabbitMQ's clients expect."""
        return f"{self.code.name} - {self}"


class SoftError(CodedError):
    """A soft error: the channel is closed."""


class HardError(CodedError):
    """A hard error: the connection is closed."""


def encode_close(method: str, code: int, text: str, payload: bytes, version: Version = AMQP_0_9_1) -> bytes:
    """channel.close or connection.close, with class and method of the payload that caused it."""
    short = text.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")
    class_id, method_id = int.from_bytes(payload[:2]), int.from_bytes(payload[2:4])
    return encode_method(method, version, reply_code=code, reply_text=short, class_id=class_id, method_id=method_id)


_CODES: Final[dict[type[errors.ModelError], ReplyCode]] = {
    errors.UnauthorizedError: ReplyCode.ACCESS_REFUSED,
    errors.NotAllowedError: ReplyCode.ACCESS_REFUSED,
    errors.NotFoundError: ReplyCode.NOT_FOUND,
    errors.ResourceDeletedError: ReplyCode.NOT_FOUND,
    errors.ResourceLockedError: ReplyCode.RESOURCE_LOCKED,
    errors.PreconditionFailedError: ReplyCode.PRECONDITION_FAILED,
    errors.IllegalArgumentError: ReplyCode.PRECONDITION_FAILED,
    errors.InvalidArgumentError: ReplyCode.PRECONDITION_FAILED,
    errors.HeaderTooLargeError: ReplyCode.PRECONDITION_FAILED,
    errors.NotImplementedByBrokerError: ReplyCode.PRECONDITION_FAILED,
    errors.ResourceLimitExceededError: ReplyCode.PRECONDITION_FAILED,
    errors.QueueOverflowError: ReplyCode.PRECONDITION_FAILED,
    errors.RoutingLimitError: ReplyCode.PRECONDITION_FAILED,
    errors.IllegalStateError: ReplyCode.PRECONDITION_FAILED,
    errors.CommandInvalidError: ReplyCode.PRECONDITION_FAILED,
    errors.InternalError: ReplyCode.INTERNAL_ERROR,
}


_OLDER_CODES: Final[dict[type[errors.ModelError], ReplyCode]] = {
    **_CODES,
    errors.NotAllowedError: ReplyCode.NOT_ALLOWED,
}


def malformed(error: Exception) -> HardError:
    """The error for input that cannot be decoded."""
    if isinstance(error, MissingClassError):
        return HardError(ReplyCode.NOT_IMPLEMENTED, str(error))
    is_unexpected = isinstance(error, ContentClassError)
    return HardError(ReplyCode.UNEXPECTED_FRAME if is_unexpected else ReplyCode.FRAME_ERROR, str(error))


def missing(kind: str, name: str, vhost: str) -> SoftError:
    """The error for a queue or exchange that does not exist in a virtual host."""
    return SoftError(ReplyCode.NOT_FOUND, f"no {kind} '{name}' in vhost '{vhost}'")


def locked(name: str, vhost: str) -> SoftError:
    """The error for a queue that belongs to another connection, or cannot become exclusive."""
    why = "it belongs to another connection, or was declared without exclusive"
    return SoftError(
        ReplyCode.RESOURCE_LOCKED, f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}': {why}"
    )


def coded_error(error: Exception, vhost: str, version: Version = AMQP_0_9_1) -> CodedError:
    """The error that a client of a virtual host gets for an error of the model or the store."""
    if isinstance(error, CodedError):
        return error
    if isinstance(error, Amqp091Error):
        return malformed(error)
    if isinstance(error, errors.NotFoundError) and error.kind:
        return missing(error.kind, error.name, vhost)
    codes = _OLDER_CODES if version.is_older else _CODES
    code = codes[type(error)] if isinstance(error, errors.ModelError) else ReplyCode.INTERNAL_ERROR
    return (HardError if code in HARD_ERRORS else SoftError)(code, str(error))


def refusal_of(error: Exception) -> Exception | None:
    """The error that closes the channel after a message without a confirm; None if the message is dropped."""
    if isinstance(error, errors.QueueOverflowError):
        return None
    if isinstance(error, errors.ResourceLimitExceededError) and not isinstance(error, errors.RoutingLimitError):
        return SoftError(ReplyCode.CONTENT_TOO_LARGE, str(error))
    return error
