"""What can go wrong in the model, whatever the protocol: each protocol has its own numbers for these.

The text is one line, for whoever asked; it names what it is about.
"""

from __future__ import annotations


class ModelError(Exception):
    """Something that was asked of the model cannot be done. The classes below say why."""


class UnauthorizedError(ModelError):
    """Whoever asks may not."""


class NotFoundError(ModelError):
    """It does not exist."""


class ResourceLockedError(ModelError):
    """Somebody else has it for himself."""


class PreconditionFailedError(ModelError):
    """It was to be done only under a condition that does not hold."""


class ResourceDeletedError(ModelError):
    """It was deleted while it was in use."""


class IllegalStateError(ModelError):
    """It makes no sense at this point."""


class ResourceLimitExceededError(ModelError):
    """There is no room for it."""


class NotAllowedError(ModelError):
    """It is never allowed."""


class IllegalArgumentError(ModelError):
    """An argument's value makes no sense."""


class NotImplementedByBrokerError(ModelError):
    """It exists, but not here."""


class InternalError(ModelError):
    """The broker cannot do what it should: its disk fails, or the like."""


class InvalidArgumentError(ModelError):
    """An argument is missing or not of the right form."""
