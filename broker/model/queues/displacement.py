"""Messages that leave a queue because another one arrives: the part that ring and last value queues have in common.

The new message is enqueued first, and then the displaced ones are dequeued: all records are in one flush, and a crash
that cuts it short leaves too many messages, never too few. The next start displaces them then (`recovered`).

A message published in a transaction displaces others when its commit is on the disk. If a consumer holds a displaced
message, it is gone from the queue nevertheless: what the consumer does with it has no effect any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from qstore.broker.model.errors import InternalError
from qstore.broker.model.queues.counters import QueueCounters
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry


class Displacing(Protocol):
    """A queue, as the parts that displace its messages see it.

    Attributes:
        counters: count displaced messages.
        uncommitted, uncommitted_bytes: messages on the queue whose transaction is not committed yet.
        is_deleted: as of `Queue`.
    """

    is_deleted: bool
    counters: QueueCounters
    uncommitted: int
    uncommitted_bytes: int

    @property
    def message_count(self) -> int:
        """Messages on the queue, including those that consumers hold."""

    @property
    def message_bytes(self) -> int:
        """Bytes of their headers and content."""

    def entries(self) -> Iterator[Entry]:
        """All entries, in order; the one yielded last may be removed during iteration."""

    def is_browsed(self, entry: Entry) -> bool:
        """Whether a browser has seen the message, or passed it."""

    @property
    def moving_steps(self) -> int:
        """How many steps it has taken so far to find where messages go that leave it."""

    def do_in_turns(self, work: Iterator[None]) -> None:
        """Do work in turns of the event loop."""

    def acquire(self, entry: Entry, *, is_consumed: bool = True) -> bool:
        """Acquire an entry."""

    def dequeue(self, entry: Entry) -> bool:
        """Dequeue an acquired message. Raises InternalError."""


class Displacement:
    """Decides which messages an arriving one displaces; the base class displaces none."""

    __slots__ = ()

    @property
    def refers_to_entries(self) -> bool:
        """Whether it keeps references to entries of available messages: then these must stay in memory."""
        return False

    def arrived(self, queue: Displacing, entry: Entry) -> None:  # noqa: ARG002
        """A message was enqueued, and may be delivered once it is on the disk. By default as `recovered`."""
        self.recovered(queue)

    def recovered(self, queue: Displacing) -> None:
        """Displace what has no place on the queue. After a start it has all the messages that the store had."""

    def released(self, queue: Displacing, entry: Entry) -> None:
        """A consumer has released a message."""

    def withdrawn(self, entry: Entry) -> None:
        """A message that has not arrived, because its transaction has failed, is about to be removed."""

    def removed(self, entry: Entry) -> None:
        """A message has left the queue, for whatever reason."""

    def displace(self, queue: Displacing, entry: Entry) -> bool:
        """Dequeue a message, if it is available or held by a consumer. Returns whether it is gone.

        If its journal cannot be written it is not delivered any more, and is there again after the next start.
        """
        if entry.state == AVAILABLE:
            queue.acquire(entry, is_consumed=False)
        elif entry.state != ACQUIRED:
            return False
        with contextlib.suppress(InternalError):
            queue.dequeue(entry)
            return True
        return False
