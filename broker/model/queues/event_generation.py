"""Queue events: a listener is told which messages are enqueued on a queue and, if asked for, which are dequeued.

    qpid.queue_event_generation   the listener is told
    ----------------------------  --------------------------------
    1                             of enqueued messages
    2                             of enqueued and dequeued messages

A message published in a transaction counts as enqueued at its commit. Messages that a start recovers are not told
again.

Sources: Qpid C++ Broker Book, 1.7.1.4; MRG Messaging User Guide, queue state replication.
"""

from __future__ import annotations

from typing import Protocol

from qstore.broker.model.queues.displacement import Displacement, Displacing
from qstore.broker.model.queues.entry import Entry


class QueueListener(Protocol):
    """Is told of messages."""

    def enqueued(self, queue: str, entry: Entry) -> None:
        """A message was enqueued on the queue with this name."""

    def dequeued(self, queue: str, entry: Entry) -> None:
        """It was dequeued."""


class QueueEvents:
    """The events of all queues of a broker.

    Attributes:
        listener: is told of them; None if there is none.
    """

    __slots__ = ("listener",)

    def __init__(self) -> None:
        self.listener: QueueListener | None = None


class EventGeneration(Displacement):
    """Tells the listener of one queue's messages; displaces none.

    Args:
        name: the name of the queue.
        events: has the listener.
        tells_dequeues: whether it is told of dequeued messages too.
    """

    __slots__ = ("_events", "_name", "_tells_dequeues", "_withdrawn")

    def __init__(self, name: str, events: QueueEvents, *, tells_dequeues: bool) -> None:
        self._name, self._events, self._tells_dequeues = name, events, tells_dequeues
        self._withdrawn: Entry | None = None  # is about to be removed

    def arrived(self, queue: Displacing, entry: Entry) -> None:  # noqa: ARG002
        """Tell that a message was enqueued."""
        if self._events.listener is not None:
            self._events.listener.enqueued(self._name, entry)

    def recovered(self, queue: Displacing) -> None:
        """Messages of before the start were told then."""

    def withdrawn(self, entry: Entry) -> None:
        """The message was never told, so its removal is not either."""
        self._withdrawn = entry

    def removed(self, entry: Entry) -> None:
        """Tell that a message was dequeued."""
        was_withdrawn, self._withdrawn = entry is self._withdrawn, None
        if self._tells_dequeues and not was_withdrawn and self._events.listener is not None:
            self._events.listener.dequeued(self._name, entry)
