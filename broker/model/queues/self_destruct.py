"""Queues that are deleted when a message exceeds their limit.

The message is enqueued, and the queue is then deleted as by a client: its messages, this one included, go to the
alternate exchange if there is one, and are lost otherwise.

Source: Qpid C++ Broker Book, 1.5 (policytype of the ACL's properties).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qstore.broker.model.queues.displacement import Displacement, Displacing
from qstore.broker.model.queues.entry import Entry

if TYPE_CHECKING:
    from qstore.broker.model.queues.limits import Limit


class SelfDestruct(Displacement):
    """Has the queue deleted once it exceeds its limit.

    Args:
        limit: the limit; it is not the queue's, which refuses no message.
        delete: has the queue deleted soon.
    """

    __slots__ = ("_delete", "_is_asked", "_limit")

    def __init__(self, limit: Limit, delete: Callable[[], None]) -> None:
        self._limit, self._delete = limit, delete
        self._is_asked = False

    def recovered(self, queue: Displacing) -> None:
        """A queue that was not deleted before a crash is deleted with the next message."""

    def arrived(self, queue: Displacing, entry: Entry) -> None:  # noqa: ARG002
        """Have the queue deleted if it exceeds its limit."""
        if not self._is_asked and self._limit.is_exceeded(queue.message_count, queue.message_bytes):
            self._is_asked = True
            self._delete()
