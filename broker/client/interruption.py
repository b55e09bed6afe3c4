"""An internal exception of the client."""

from __future__ import annotations

from qstore.broker.client.errors import MessagingError


class InterruptedByLoss(MessagingError):  # noqa: N818 (internal, never seen by the application)
    """The connection was lost during a command; the operation is repeated on the next connection."""
