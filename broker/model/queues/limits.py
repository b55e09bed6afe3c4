"""The limit of a queue, and what happens to a message that exceeds it: the policy.

    reject                 the message is refused: its publisher gets resource-limit-exceeded
    ring, ring_strict      the oldest messages are discarded to make room for it (`ring`)
    self-destruct          the queue is deleted (`self_destruct`)
    flow_to_disk           messages leave memory; they are refused only if they cannot (`DiskLimit`)
    reject-publish, reject-publish-dlx    as reject, but only a publisher with confirms is told (`OverflowLimit`)

A queue without a limit has no such object. Sources: Qpid C++ Broker Book, 1.2.1.1; MRG 2 Messaging User Guide, 3.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import QueueOverflowError, ResourceLimitExceededError

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.depth import Depth
    from qstore.broker.model.residency.residency import Residency

_RETRY_SECONDS: Final = 1.0


class Limit:
    """Refuses messages beyond the limit.

    Args:
        max_messages: messages on the queue, including those that consumers hold; 0 for no limit.
        max_bytes: their bytes; 0 for no limit.
        overhead: bytes added for each message.

    Attributes:
        max_messages, max_bytes: as above, `sys.maxsize` for no limit.
        overhead: as above.
        refused: number of messages refused.
    """

    __slots__ = ("max_bytes", "max_messages", "overhead", "refused")

    def __init__(self, *, max_messages: int = 0, max_bytes: int = 0, overhead: int = 0) -> None:
        self.max_messages, self.max_bytes = max_messages or sys.maxsize, max_bytes or sys.maxsize
        self.overhead = overhead
        self.refused = 0

    def is_exceeded(self, count: int, size: int) -> bool:
        """Whether `count` messages with `size` bytes of headers and content are beyond the limit."""
        return count > self.max_messages or size + self.overhead * count > self.max_bytes

    def check(self, queue: Depth, message: Message) -> None:
        """Raise ResourceLimitExceededError if the queue has no room for the message."""
        overhead, count = self.overhead, queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued + message.size + overhead * count + overhead
        if size > self.max_bytes or count >= self.max_messages:
            self.check_all(queue, 1, message.size)

    def check_all(self, queue: Depth, count: int, size: int) -> None:
        """As `check`, for `count` messages with `size` bytes of headers and content."""
        counted = self.counted(queue)
        if counted + count > self.max_messages:
            self.refused += count
            used = f"{counted} of {self.max_messages} messages are on it"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {used}')
        held = queue.message_bytes + self.overhead * queue.message_count
        if held + size + self.overhead * count > self.max_bytes:
            self.refused += count
            used = f"{held} of {self.max_bytes} bytes are used"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {used}')

    def counted(self, queue: Depth) -> int:
        """Messages on the queue that count for the number of messages."""
        return queue.message_count


class OverflowLimit(Limit):
    """Refuses messages beyond the limit, as x-overflow asks (`classic_arguments`).

    As in RabbitMQ, messages that consumers hold do not count for the number of messages.

    Args:
        max_messages, max_bytes, overhead: as of `Limit`.
        is_dead: whether a refused message goes to the dead-letter exchange of the queue.
    """

    __slots__ = ("_is_dead",)

    def __init__(self, *, max_messages: int, max_bytes: int, overhead: int, is_dead: bool) -> None:
        super().__init__(max_messages=max_messages, max_bytes=max_bytes, overhead=overhead)
        self._is_dead = is_dead

    def counted(self, queue: Depth) -> int:
        """As `Limit.counted`: without those that consumers hold."""
        return queue.available_count + queue.uncommitted

    def check_all(self, queue: Depth, count: int, size: int) -> None:
        """As `Limit.check_all`. Raises QueueOverflowError."""
        try:
            super().check_all(queue, count, size)
        except ResourceLimitExceededError as error:
            raise QueueOverflowError(str(error), queue, is_dead=self._is_dead) from None


class DiskLimit(Limit):
    """Lets messages beyond the limit leave memory, and refuses them only while they cannot.

    In memory remain as many bytes as the limit says; if it says a number of messages, that many of average size.

    Args:
        residency: lets them leave memory.
        max_messages, max_bytes: as of `Limit`.
    """

    __slots__ = ("_residency", "_retry_at")

    def __init__(self, residency: Residency, *, max_messages: int = 0, max_bytes: int = 0) -> None:
        super().__init__(max_messages=max_messages, max_bytes=max_bytes)
        self._residency, self._retry_at = residency, 0.0

    def check(self, queue: Depth, message: Message) -> None:
        """As `Limit.check`, while messages cannot leave memory; and follow the average size."""
        residency = self._residency
        count = queue.message_count - residency.messages_out + residency.messages_in
        if count > self.max_messages:
            residency.budget = min(residency.budget, queue.memory * self.max_messages // count)
        if residency.has_failed:
            self.check_all(queue, 1, message.size)

    def check_all(self, queue: Depth, count: int, size: int) -> None:
        """As `check`, for `count` messages with `size` bytes of headers and content."""
        if self._residency.has_failed and not self._has_recovered():
            super().check_all(queue, count, size)

    def _has_recovered(self) -> bool:
        """Try again from time to time whether messages can leave memory."""
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_SECONDS
        self._residency.keep_within_budget()
        return not self._residency.has_failed
