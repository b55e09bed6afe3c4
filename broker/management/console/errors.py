"""The errors of a console, besides those of its connection.

MessagingError             of the client: the connection, its session
ManagementError
NoAgentError       the broker has no management by QMF version 2
NoAnswerError      no answer came in time
NoObjectError      no object, or no class, has this name
AgentError         the agent has refused a request, with its code and text
AnswerError        an answer is not what the protocol says, or is too large
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qstore.broker.client.errors import MessagingError


class ManagementError(MessagingError):
    """Base class of a console's errors. The text is one line for the user."""


class NoAgentError(ManagementError):
    """The broker has no management by QMF version 2."""


class NoAnswerError(ManagementError):
    """No answer came in time."""


class NoObjectError(ManagementError):
    """No object, or no class, has this name."""


class AgentError(ManagementError):
    """The agent has refused a request.

    Attributes:
        code: its number for the reason; 0 if it gave none.
        values: all that it tells.
    """

    def __init__(self, text: str, code: int = 0, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.values = {} if values is None else values


class AnswerError(ManagementError):
    """An answer is not what the protocol says, or is too large."""
