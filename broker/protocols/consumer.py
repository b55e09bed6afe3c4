"""A consumer of a queue that sends messages to its client: the part common to all protocols.

A protocol's `deliver` handles every outgoing message: it adds the frames of a message to the connection's output. The
frame headers are prepared once for each length of header and body. A message takes its own size plus `COST_OF_MESSAGE`
from the connection's `room`.

The window depends on the protocol: credit in messages (and bytes), which settling or completing a delivery returns.
When the session ends, unsettled messages return to their queues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import ACQUIRED, Entry
from qstore.broker.model.settlement import AT_ONCE, release_in_turns
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.tick import Turns

_HEADS_KEPT: Final = 1024


class SendingConsumer(ABC):
    """A consumer.

    Args:
        destination: its name in its session.
        queue: the queue that it consumes.
        acquires: whether it acquires messages, or browses them.
        is_accepting: whether messages are dequeued only when the client accepts them.
        arguments: the client's arguments.

    Attributes:
        acquires, cursor, is_waiting: as in `Consumer`.
        destination, queue, is_accepting, is_windowed, arguments: as in `ManagedSubscription`.
    """

    __slots__ = (
        "_body_heads", "_heads", "acquires", "arguments", "cursor", "destination", "is_accepting", "is_waiting",
        "is_windowed", "queue",
    )  # fmt: skip
    __deletable__ = ("cursor",)  # for the compiler

    cursor: Entry

    def __init__(
        self, destination: str, queue: Queue, *, acquires: bool, is_accepting: bool, arguments: TypedMap
    ) -> None:
        self.destination, self.queue, self.arguments = destination, queue, arguments
        self.acquires, self.is_accepting = acquires, is_accepting
        self.is_waiting, self.is_windowed = False, True
        self._heads: dict[int, bytes] = {}  # by size of the header
        self._body_heads: dict[int, bytes] = {}  # by size of the body

    @abstractmethod
    def encode_head(self, length: int) -> bytes:
        """The bytes before a header of `length` bytes."""

    @abstractmethod
    def encode_body_head(self, length: int) -> bytes:
        """The bytes between header and body, before a body of `length` bytes."""

    def make_head(self, length: int) -> bytes:
        """As `encode_head`, cached for later messages."""
        head = self.encode_head(length)
        if len(self._heads) < _HEADS_KEPT:
            self._heads[length] = head
        return head

    def make_body_head(self, length: int) -> bytes:
        """As `encode_body_head`, cached for later messages."""
        head = self.encode_body_head(length)
        if len(self._body_heads) < _HEADS_KEPT:
            self._body_heads[length] = head
        return head

    def forget_heads(self) -> None:
        """Clear the caches: the session has another channel."""
        self._heads.clear()
        self._body_heads.clear()


def give_back(owner: object, turns: Turns, count: int, held: Iterator[tuple[Queue, Entry]]) -> None:
    """Make the messages held by a client available again, marked as redelivered, because its session ends.

    Args:
        owner: the session.
        turns: releases many messages in turns, after earlier work of the session.
        count: the number of messages.
        held: the messages.
    """
    if count > AT_ONCE or turns.has(owner):
        turns.do(owner, release_in_turns(held, is_redelivered=True))
        return
    for queue, entry in held:
        if not queue.is_gone and entry.state == ACQUIRED:
            queue.release(entry, is_redelivered=True)
