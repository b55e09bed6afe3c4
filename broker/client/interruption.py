"""A signal within the client."""

from __future__ import annotations

from broker.client.errors import MessagingError


class InterruptedByLoss(MessagingError):  # noqa: N818 (no error: nobody outside sees it)
    """The connection was lost while a command was under way. What was to be done is done again on the next one."""
