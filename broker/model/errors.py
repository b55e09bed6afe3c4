"""Errors of the model, independent of the protocol: each protocol maps them to its own codes.

The text is one line for the caller and names the object concerned.
"""

from __future__ import annotations

from typing import Any


class ModelError(Exception):
    """An operation of the model failed. The subclasses give the reason."""


class UnauthorizedError(ModelError):
    """The caller is not allowed to perform the operation."""


class NotFoundError(ModelError):
    """The object does not exist.

    Args:
        text: the reason.
        kind, name: of the missing queue or exchange; empty for other objects.
    """

    def __init__(self, text: str, *, kind: str = "", name: str = "") -> None:
        super().__init__(text)
        self.kind, self.name = kind, name


class ResourceLockedError(ModelError):
    """The object is exclusive to another caller."""


class PreconditionFailedError(ModelError):
    """A condition of the request (if-empty, if-unused) does not hold."""


class ResourceDeletedError(ModelError):
    """The object was deleted while it was in use."""


class IllegalStateError(ModelError):
    """The operation is not valid in the current state."""


class CommandInvalidError(ModelError):
    """The request contradicts itself, or lacks a required earlier request."""


class ResourceLimitExceededError(ModelError):
    """A limit is reached."""


class QueueOverflowError(ResourceLimitExceededError):
    """A queue declared with x-overflow is full: publishers without confirms get no answer.

    Args:
        text: the reason.
        queue: the queue.
        is_dead: whether the message goes to the dead-letter exchange of the queue.
    """

    def __init__(self, text: str, queue: Any, *, is_dead: bool) -> None:
        super().__init__(text)
        self.queue, self.is_dead = queue, is_dead


class RoutingLimitError(ResourceLimitExceededError):
    """Routing a message takes too many steps."""


class NotAllowedError(ModelError):
    """The operation is never allowed."""


class IllegalArgumentError(ModelError):
    """An argument's value is not valid."""


class NotImplementedByBrokerError(ModelError):
    """The operation or option exists, but this broker does not implement it."""


class InternalError(ModelError):
    """The broker failed, for example because its disk did."""


class InvalidArgumentError(ModelError):
    """An argument is missing or malformed."""


class HeaderTooLargeError(InvalidArgumentError):
    """A message's header would become too large.

    Args:
        size, limit: its bytes, and their maximum.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the header of the message would have {size} bytes; the limit is {limit}")
        self.excess = size - limit
