"""Threshold alerts: events that tell that a queue fills up.

    queueThresholdExceeded         a message was added, and the queue has reached the threshold in messages or in bytes;
                                   at most once in `repeat_gap` seconds, and nothing is made up for when these are over
    queueThresholdCrossedUpward    the queue has reached the threshold in messages or in bytes
    queueThresholdCrossedDownward  later, it is down to the lower thresholds of both

The thresholds are arguments of the declaration; by default a percentage of the queue's capacity. The lower threshold of
a measure is half of the upper one, unless one below that is given.

Sources: MRG 2 Messaging User Guide, 3 (queue threshold alerts); qpidd, ThresholdAlerts.cpp (the lower thresholds); the
QMF schema of qpidd's broker. That one upward and one downward event cover both measures follows the Guide: one alert
for the condition that occurs first. In qpidd each measure has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from qstore.broker.model.events import (
    Event,
    QueueThresholdCrossedDownward,
    QueueThresholdCrossedUpward,
    QueueThresholdExceeded,
)
from qstore.broker.model.queues.capacity import Capacity

REPEAT_GAP: Final = 60
"""Seconds between two alerts of a queue whose declaration does not say."""


class AlertArguments(NamedTuple):
    """The thresholds that a declaration gives; None for those that it does not.

    Attributes:
        count_up, size_up: in messages, and in bytes of headers and content.
        count_down, size_down: the lower thresholds.
        repeat_gap: seconds.
    """

    count_up: int | None = None
    size_up: int | None = None
    count_down: int | None = None
    size_down: int | None = None
    repeat_gap: int = REPEAT_GAP


class AlertThresholds(NamedTuple):
    """The thresholds of one queue; 0 disables the measure.

    Attributes:
        count_up, size_up, count_down, size_down, repeat_gap: as in `AlertArguments`.
        overhead: bytes added for each message.
    """

    count_up: int = 0
    size_up: int = 0
    count_down: int = 0
    size_down: int = 0
    repeat_gap: int = REPEAT_GAP
    overhead: int = 0


def alert_thresholds(given: AlertArguments, capacity: Capacity, percent: int) -> AlertThresholds | None:
    """The thresholds of a queue; None for a queue without alerts. `percent` of its capacity is the default."""
    count, size = capacity.percent(percent)
    count = count if given.count_up is None else given.count_up
    size = size if given.size_up is None else given.size_up
    if not count and not size:
        return None
    downs = _lower(count, given.count_down), _lower(size, given.size_down)
    return AlertThresholds(count, size, *downs, given.repeat_gap, capacity.overhead if given.size_up is None else 0)


def _lower(upper: int, given: int | None) -> int:
    return given if given and given < upper else upper // 2


class Alerts:
    """The alerts of one queue.

    Args:
        thresholds: its thresholds.
        emit: passes an event to the listeners.
        monotonic: seconds of a monotonic clock.

    Attributes:
        thresholds: as above.
        is_above: whether the last crossing was upward.
    """

    __slots__ = ("_emit", "_last", "_monotonic", "is_above", "thresholds")

    def __init__(
        self, thresholds: AlertThresholds, emit: Callable[[Event], None], monotonic: Callable[[], float]
    ) -> None:
        self.thresholds = thresholds
        self.is_above = False
        self._emit, self._monotonic = emit, monotonic
        self._last: float | None = None  # when the last alert was raised

    def rise(self, name: str, count: int, size: int) -> None:
        """The queue `name` has grown to `count` messages with `size` bytes of headers and content."""
        limits = self.thresholds
        if not (0 < limits.count_up <= count or 0 < limits.size_up <= size + limits.overhead * count):
            return
        was_above, self.is_above = self.is_above, True
        now, last = self._monotonic(), self._last
        if last is None or now - last >= limits.repeat_gap:
            self._last = now
            self._emit(QueueThresholdExceeded(name, count, size))
        if not was_above:
            self._emit(QueueThresholdCrossedUpward(name, count, size))

    def fall(self, name: str, count: int, size: int) -> None:
        """As `rise`, after a message has left the queue."""
        limits = self.thresholds
        if (not limits.count_up or count <= limits.count_down) and (
            not limits.size_up or size + limits.overhead * count <= limits.size_down
        ):
            self.is_above = False
            self._emit(QueueThresholdCrossedDownward(name, count, size))
