"""Watches the depth of one queue for its thresholds: flow control and alerts.

Most messages must not pay for it. So the watch computes two marks, for the messages and the bytes that were ever
enqueued: up to them no threshold can be crossed, whether or not messages leave. The queue compares, and calls `risen`
beyond them, which looks at the depth and sets new marks. With a low depth that happens once in thousands of messages.
While the queue is above a threshold, every message is looked at, also those that leave (`is_high`).
"""

from __future__ import annotations

from typing import Final, Protocol

from qstore.broker.model.queues.alerts import Alerts
from qstore.broker.model.queues.entry import GONE, Entry
from qstore.broker.model.queues.flow_control import FlowControl, Stop

NEVER: Final = 1 << 61
"""A mark that is not reached; small enough for the compiler's fast integers."""


class Watched(Protocol):
    """The depth of a queue, as its watch sees it.

    Attributes:
        name: the queue's name.
        messages_enqueued, messages_dequeued: messages enqueued and dequeued so far.
        bytes_enqueued, bytes_dequeued: their headers and content.
    """

    name: str
    messages_enqueued: int
    messages_dequeued: int
    bytes_enqueued: int
    bytes_dequeued: int


class DepthWatch:
    """The watch of one queue.

    Args:
        stops: gets each stopped queue that a message is put on. The publisher takes it from there.
        flow: flow control; None without it.
        alerts: None without alerts.

    Attributes:
        flow, alerts: as above.
        count_mark, bytes_mark: numbers of enqueued messages and bytes beyond which `risen` must be called.
        is_high: `fallen` must be called for each message that leaves.
    """

    __slots__ = ("_stops", "alerts", "bytes_mark", "count_mark", "flow", "is_high")

    def __init__(self, stops: list[Stop], flow: FlowControl | None = None, alerts: Alerts | None = None) -> None:
        self._stops, self.flow, self.alerts = stops, flow, alerts
        self.is_high = False
        self._set_marks(0, 0, 0, 0)

    @property
    def is_stopped(self) -> bool:
        """Whether flow control is on."""
        return self.flow is not None and self.flow.is_stopped

    @property
    def stopped_count(self) -> int:
        """How often flow control went on."""
        return 0 if self.flow is None else self.flow.stopped_count

    def risen(self, queue: Watched, entry: Entry) -> bool:
        """A publisher has put a message on the queue. Returns whether it must wait, and then adds to its `stops`."""
        self.update(queue)
        if self.flow is None or not self.flow.is_stopped or entry.state == GONE:  # displaced at once
            return False
        self._stops.append((self.flow, entry.position))
        return True

    def update(self, queue: Watched) -> None:
        """Messages were put on the queue, and nobody waits for it."""
        count = queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued
        if self.flow is not None:
            self.flow.rise(queue.name, count, size)
        self._set_marks(queue.messages_enqueued, queue.bytes_enqueued, count, size)
        if self.alerts is not None:
            self.alerts.rise(queue.name, count, size)
            if self.alerts.is_above:
                self._look_at_each()

    def fallen(self, queue: Watched, entry: Entry) -> None:
        """A message has left the queue."""
        count = queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued
        if self.flow is not None and self.flow.is_stopped:
            self.flow.fall(queue.name, count, size, entry.position)
        if self.alerts is not None and self.alerts.is_above:
            self.alerts.fall(queue.name, count, size)
        self._set_marks(queue.messages_enqueued, queue.bytes_enqueued, count, size)

    def release(self) -> None:
        """The queue was deleted: let its publishers go."""
        if self.flow is not None:
            self.flow.release()

    def _look_at_each(self) -> None:
        self.is_high = True
        self.count_mark = self.bytes_mark = -1

    def _set_marks(self, enqueued: int, bytes_enqueued: int, count: int, size: int) -> None:
        """Set the marks for a queue with `count` messages and `size` bytes, of those ever enqueued."""
        flow, alerts = self.flow, self.alerts
        if (flow is not None and flow.is_stopped) or (alerts is not None and alerts.is_above):
            self._look_at_each()
            return
        messages = bytes_ = NEVER  # that may be added
        if flow is not None:
            messages, bytes_ = _room(
                flow.thresholds.stop_count - count if flow.thresholds.stop_count else NEVER,
                flow.thresholds.stop_bytes - size if flow.thresholds.stop_bytes else NEVER,
                flow.thresholds.overhead,
                count,
            )
        if alerts is not None:
            room = _room(
                alerts.thresholds.count_up - 1 - count if alerts.thresholds.count_up else NEVER,
                alerts.thresholds.size_up - 1 - size if alerts.thresholds.size_up else NEVER,
                alerts.thresholds.overhead,
                count,
            )
            messages, bytes_ = min(messages, room[0]), min(bytes_, room[1])
        self.is_high = False
        self.count_mark = min(enqueued + messages, NEVER)
        self.bytes_mark = min(bytes_enqueued + bytes_, NEVER)


def _room(messages: int, size: int, overhead: int, count: int) -> tuple[int, int]:
    """The messages and bytes that may be added before a threshold.

    Args:
        messages: of them, that are left to the threshold; NEVER without one.
        size: bytes of headers and content that are left, likewise.
        overhead: bytes that the threshold in bytes adds for each message: they and the content get half of the room.
        count: messages on the queue.
    """
    if not overhead or size == NEVER:
        return messages, size
    left = size - overhead * count
    return min(messages, left // (2 * overhead)), left // 2
