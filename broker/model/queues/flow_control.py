"""Producer flow control and threshold alerts: both depend on the depth of a queue.

Producer flow control: publishers to a queue that fills up wait until it has drained.

    on     when the queue has more messages, or more bytes, than the stop threshold
    off    when it has fewer messages and fewer bytes than the resume thresholds

The message is enqueued in both states. While flow control is on, the command that published it is not completed. It is
completed when, for each queue that the message was put on, flow control is off, or the message has left the queue, or
the queue was deleted; and when its records are on the disk. The broker continues to read: a publisher may have as many
commands uncompleted as its own capacity allows, and a queue can exceed the stop threshold by the capacities of all its
publishers. A command that waits for all before it (execution.sync) waits for these as well. If publishers wait for
more than a moment, the broker logs it once (`StoppedQueues`).

Messages published in a transaction count when it is committed, but neither they nor the commit wait, as in qpidd: a
client may have to commit the removals that make room before it can continue.

The thresholds of a queue are arguments of its declaration. A measure without a stop threshold gets percentages of the
queue's capacity, unless the queue drops messages or is deleted at its limit; a stop threshold of 0 disables the
measure. Without a resume threshold the default applies, but at most the stop threshold.

Threshold alerts: events that say that a queue fills up.

    queueThresholdExceeded         a message was added, and the queue has reached the threshold in messages or in bytes;
                                   at most once in `repeat_gap` seconds; skipped ones are not sent later
    queueThresholdCrossedUpward    the queue has reached the threshold in messages or in bytes
    queueThresholdCrossedDownward  later, it is down to the lower thresholds of both

These thresholds are arguments of the declaration, too; by default a percentage of the queue's capacity. The lower
threshold of a measure is half of the upper one, unless a lower one is given. As in the Guide, one upward and one
downward event cover both measures: one alert for the condition that occurs first. In qpidd each measure has its own.

Most messages must not pay for any of this. So the watch of a queue (`DepthWatch`) computes two marks, for the totals of
messages and bytes ever enqueued: up to them no threshold can be crossed, even if no message leaves. Beyond a mark the
queue calls `risen`, which checks the depth and sets new marks. At a low depth that happens once in thousands of
messages. While the queue is above a threshold, every message is checked, including those that leave (`is_high`).

Sources: Qpid C++ Broker Book, 1.8; MRG 2 Messaging User Guide, 3 (producer flow control, queue threshold alerts);
qpidd, QueueFlowLimit.cpp (thresholds of 0, messages that leave, transactions) and ThresholdAlerts.cpp (the lower
thresholds); the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from qstore.broker.log.logs import INFO, NOTICE, WARNING, LogBudget, log_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.events import (
    Event,
    QueueOverfull,
    QueueThresholdCrossedDownward,
    QueueThresholdCrossedUpward,
    QueueThresholdExceeded,
    QueueUnderfull,
)
from qstore.broker.model.queues.entry import GONE, Entry
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural

if TYPE_CHECKING:
    from qstore.broker.model.queues.limits import Capacity
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.tick import Tick

_LOG: Final = log_of("Model")

LOGGED_AFTER: Final = 1.0
LOGGED_EVERY: Final = 60.0
"""Seconds that publishers wait before it is logged, and between two such log lines about one queue."""

REPEAT_GAP: Final = 60
"""Seconds between two alerts of a queue whose declaration has no gap."""

NEVER: Final = 1 << 61
"""A mark that is never reached, small enough for the compiler's fast integers."""


class FlowArguments(NamedTuple):
    """The thresholds that a declaration gives; None for those that it does not.

    Attributes:
        stop_count, resume_count: in messages.
        stop_size, resume_size: in bytes of headers and content.
        sizes: the names of the arguments that gave these two.
    """

    stop_count: int | None = None
    resume_count: int | None = None
    stop_size: int | None = None
    resume_size: int | None = None
    sizes: tuple[str, str] = ("qpid.flow_stop_size", "qpid.flow_resume_size")


class FlowDefaults(NamedTuple):
    """The broker's default thresholds, in percent of a queue's capacity; 0 for none."""

    stop_percent: int = 0
    resume_percent: int = 0


class FlowThresholds(NamedTuple):
    """The thresholds of one queue; a stop threshold of 0 disables the measure.

    Attributes:
        stop_count, resume_count: in messages.
        stop_bytes, resume_bytes: in bytes of headers and content.
        overhead: bytes added for each message.
    """

    stop_count: int = 0
    resume_count: int = 0
    stop_bytes: int = 0
    resume_bytes: int = 0
    overhead: int = 0


def flow_thresholds(
    name: str, given: FlowArguments, capacity: Capacity, defaults: FlowDefaults
) -> FlowThresholds | None:
    """The thresholds of the queue `name`; None for a queue without flow control.

    Raises:
        InvalidArgumentError: a resume threshold is above the stop threshold, or that is above the capacity.
    """
    half = 50  # percent: default stop thresholds are rounded to nearest
    stop_count = (capacity.messages * defaults.stop_percent + half) // 100
    stop_bytes = (capacity.bytes * defaults.stop_percent + half) // 100
    resume_count, resume_bytes = capacity.percent(defaults.resume_percent)
    counts = "qpid.flow_stop_count", "qpid.flow_resume_count"
    count = _pair(name, counts, (given.stop_count, given.resume_count), (stop_count, resume_count), capacity.messages)
    size = _pair(name, given.sizes, (given.stop_size, given.resume_size), (stop_bytes, resume_bytes), capacity.bytes)
    if not count[0] and not size[0]:
        return None
    is_of_limit = size[0] and given.stop_size is None
    return FlowThresholds(*count, *size, capacity.overhead if is_of_limit else 0)


def _pair(
    name: str,
    arguments: tuple[str, str],
    given: tuple[int | None, int | None],
    defaults: tuple[int, int],
    capacity: int,
) -> tuple[int, int]:
    """The stop and resume thresholds of one measure. Raises InvalidArgumentError."""
    stop = defaults[0] if given[0] is None else given[0]
    if stop == 0:
        return 0, 0
    resume = given[1] if given[1] is not None else min(defaults[1], stop)
    if resume > stop:
        text = f"{arguments[1]} {resume} is above {arguments[0]} {stop}"
        raise InvalidArgumentError(f'queue "{name}": {text}')
    if capacity and stop > capacity:
        text = f"{arguments[0]} {stop} is above the limit of the queue, {capacity}"
        raise InvalidArgumentError(f'queue "{name}": {text}')
    return stop, resume or stop


class StoppedQueues:
    """The stopped queues of one broker; logs those whose publishers wait.

    Flow control may stop a queue many times a second, so a stop is logged only when publishers have waited for
    LOGGED_AFTER seconds, and for one queue at most once in LOGGED_EVERY seconds.

    Args:
        emit: passes an event to the listeners; None for queues without a broker.
    """

    def __init__(self, emit: Callable[[Event], None] | None = None) -> None:
        self.emit = emit
        self._since: dict[FlowControl, float | None] = {}  # when `look` first saw them
        self._budget = LogBudget(_LOG, WARNING, "queues whose publishers wait")

    def __len__(self) -> int:
        return len(self._since)

    def add(self, flow: FlowControl) -> None:
        """Add a stopped queue."""
        self._since[flow] = None

    def remove(self, flow: FlowControl) -> None:
        """Remove a queue that is no longer stopped, or was deleted."""
        self._since.pop(flow, None)

    def look(self, now: float) -> None:
        """Log the queues that stay stopped. Call it about twice a second with the time of a monotonic clock."""
        self._budget.on_timer(now)
        for flow, since in self._since.items():
            if since is None:
                self._since[flow] = now
            elif now - since >= LOGGED_AFTER and flow.is_log_due(now):
                flow.logged_at, flow.is_logged = now, True
                self._budget.write(now, "%s. %s", flow.reason, flow.remedy)


class FlowControl:
    """The flow control of one queue.

    Args:
        thresholds: its thresholds.
        stopped: the stopped queues of the broker; None for a queue without a broker.
        host: the virtual host.

    Attributes:
        thresholds: as above.
        is_stopped: whether it is on.
        stopped_count: how often it was switched on.
        is_logged: whether the present stop has been logged.
        logged_at: when a stop was logged last.
    """

    __slots__ = (
        "_depth",
        "_held",
        "_host",
        "_is_by_count",
        "_name",
        "_stopped",
        "is_logged",
        "is_stopped",
        "logged_at",
        "stopped_count",
        "thresholds",
    )  # fmt: skip

    def __init__(
        self, thresholds: FlowThresholds, stopped: StoppedQueues | None = None, host: str = DEFAULT_HOST
    ) -> None:
        self.thresholds, self._host = thresholds, host
        self.is_stopped = self.is_logged = False
        self.stopped_count = 0
        self.logged_at = -inf
        self._stopped = stopped
        self._name, self._depth = "", (0, 0)  # at the last stop
        self._is_by_count = False  # the threshold that was exceeded then
        self._held: dict[int, tuple[HeldTransfers, int]] = {}  # position -> its transfer

    def is_log_due(self, now: float) -> bool:
        """Whether publishers wait and logging that is due."""
        return bool(self._held) and not self.is_logged and now - self.logged_at >= LOGGED_EVERY

    @property
    def reason(self) -> str:
        """Why publishers wait, as text for them and the log."""
        limits, (count, size) = self.thresholds, self._depth
        if 0 < limits.stop_count < count:
            what = f"{count:,} messages, above its flow control threshold of {limits.stop_count:,}"
        else:
            held = f"{size + limits.overhead * count:,} bytes in {plural(count, 'message')}"
            what = f"{held}, above its flow control threshold of {limits.stop_bytes:,} bytes"
        return f'Publishers to queue "{self._name}" wait: it has {what}'

    @property
    def remedy(self) -> str:
        """How publishers can continue, as text for the log."""
        limits = self.thresholds
        below = [plural(limits.resume_count, "message")] if limits.stop_count else []
        if limits.stop_bytes:
            below.append(f"{limits.resume_bytes:,} bytes")
        option = "--default-queue-limit" if limits.overhead else "the limit or the thresholds of the queue"
        return f"They continue below {' and '.join(below)}: consume or purge messages, or raise {option}"

    def rise(self, name: str, count: int, size: int) -> None:
        """Handle growth of the queue `name` to `count` messages with `size` bytes of headers and content."""
        limits = self.thresholds
        if self.is_stopped or not (
            0 < limits.stop_count < count or 0 < limits.stop_bytes < size + limits.overhead * count
        ):
            return
        self.is_stopped = True
        self.stopped_count += 1
        self._name, self._depth = name, (count, size)
        self._is_by_count = 0 < limits.stop_count < count
        if self._stopped is not None:
            self._stopped.add(self)
        _LOG.info('Queue "%s": publishers are stopped at %s, %s', name, plural(count, "message"), plural(size, "byte"))
        self._tell(QueueOverfull, count, size, (limits.stop_count, limits.stop_bytes))

    def fall(self, name: str, count: int, size: int, position: int) -> None:
        """As `rise`, after the message at `position` has left the queue."""
        limits = self.thresholds
        if (not limits.stop_count or count < limits.resume_count) and (
            not limits.stop_bytes or size + limits.overhead * count < limits.resume_bytes
        ):
            level = NOTICE if self.is_logged else INFO
            self.is_stopped = self.is_logged = False
            held = f"{plural(count, 'message')}, {plural(size, 'byte')}"
            _LOG.log(level, 'Queue "%s": publishers are resumed at %s', name, held)
            self._tell(QueueUnderfull, count, size, (limits.resume_count, limits.resume_bytes))
            self.release()
        elif position in self._held:
            transfers, number = self._held.pop(position)
            transfers.let_go(number)

    def _tell(
        self, event: type[QueueOverfull | QueueUnderfull], count: int, size: int, thresholds: tuple[int, int]
    ) -> None:
        if self._stopped is not None and self._stopped.emit is not None:
            if self._is_by_count:
                self._stopped.emit(event(self._name, self._host, "messages", count, thresholds[0]))
            else:
                depth = size + self.thresholds.overhead * count
                self._stopped.emit(event(self._name, self._host, "bytes", depth, thresholds[1]))

    @property
    def name(self) -> str:
        """The name of the queue, once it was stopped."""
        return self._name

    def hold(self, position: int, transfers: HeldTransfers, number: int) -> None:
        """Hold a transfer whose message is at `position`."""
        self._held[position] = transfers, number

    def release(self) -> None:
        """Release all transfers: flow control is off, or the queue was deleted."""
        if self._stopped is not None:
            self._stopped.remove(self)
        held, self._held = self._held, {}
        for transfers, number in held.values():
            transfers.let_go(number)


Stop: TypeAlias = tuple[FlowControl, int]
"""A stopped queue's flow control, and the position of a message that was put on that queue."""


class HeldTransfers:
    """The transfers of one publisher that wait for stopped queues.

    Args:
        done: called with a transfer's number when it is complete, and with the error if it cannot be written.
        changed: called with the name of a queue when the publisher begins to wait, and with an empty one when nothing
            of it waits any more.
    """

    __slots__ = ("_changed", "_done", "_waiting")

    def __init__(
        self, done: Callable[[int, Exception | None], None], changed: Callable[[str], None] | None = None
    ) -> None:
        self._done, self._changed = done, changed or _ignore_change
        self._waiting: dict[int, int] = {}  # number -> count of queues and flushes it waits for

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, number: int, stops: Iterable[Stop], tick: Tick | None) -> None:
        """Hold a transfer for these queues, and for the records of this tick if `tick` is given."""
        count = 0
        for flow, position in stops:
            if not count and not self._waiting:
                self._changed(flow.name)
            flow.hold(position, self, number)
            count += 1
        if tick is not None:
            tick.when_synced(partial(self._synced, number))
            count += 1
        self._waiting[number] = count

    def let_go(self, number: int) -> None:
        """Release a transfer from one of its queues."""
        left = self._waiting.get(number, 0) - 1
        if left > 0:
            self._waiting[number] = left
        elif left == 0:
            del self._waiting[number]
            if not self._waiting:
                self._changed("")
            self._done(number, None)

    def _synced(self, number: int, error: Exception | None) -> None:
        if error is None:
            self.let_go(number)
        elif self._waiting.pop(number, 0):
            if not self._waiting:
                self._changed("")
            self._done(number, error)

    def drop(self) -> None:
        """Drop all transfers: the publisher has gone."""
        self._waiting.clear()
        self._done, self._changed = _ignore, _ignore_change


def _ignore(_number: int, _error: Exception | None) -> None:
    """Nothing to do: the publisher has gone."""


def _ignore_change(_queue: str) -> None:
    """Nothing to do: likewise, or nobody wants to know."""


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
        """Handle growth of the queue `name` to `count` messages with `size` bytes of headers and content."""
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


class DepthWatch:
    """The watch of one queue.

    Args:
        stops: collects the stopped queues that a message is put on; the publisher takes them from there.
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
        """How often flow control was switched on."""
        return 0 if self.flow is None else self.flow.stopped_count

    def risen(self, queue: Queue, entry: Entry) -> bool:
        """Handle a published message. Returns whether its publisher must wait, and then adds to `stops`."""
        self.update(queue)
        if self.flow is None or not self.flow.is_stopped or entry.state == GONE:  # displaced at once
            return False
        self._stops.append((self.flow, entry.position))
        return True

    def update(self, queue: Queue) -> None:
        """Handle messages put on the queue without a publisher that waits."""
        count = queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued
        if self.flow is not None:
            self.flow.rise(queue.name, count, size)
        self._set_marks(queue.messages_enqueued, queue.bytes_enqueued, count, size)
        if self.alerts is not None:
            self.alerts.rise(queue.name, count, size)
            if self.alerts.is_above:
                self._look_at_each()

    def fallen(self, queue: Queue, entry: Entry) -> None:
        """Handle a message that has left the queue."""
        self.sunk(queue, entry.position)

    def sunk(self, queue: Queue, position: int = -1) -> None:
        """Handle messages that have left the queue: one at a position, or -1 for several for which nobody waits."""
        count = queue.messages_enqueued - queue.messages_dequeued
        size = queue.bytes_enqueued - queue.bytes_dequeued
        if self.flow is not None and self.flow.is_stopped:
            self.flow.fall(queue.name, count, size, position)
        if self.alerts is not None and self.alerts.is_above:
            self.alerts.fall(queue.name, count, size)
        self._set_marks(queue.messages_enqueued, queue.bytes_enqueued, count, size)

    def change(self, queue: Queue, other: DepthWatch) -> None:
        """Use the thresholds of another watch from now on."""
        flow, alerts = self.flow, self.alerts
        if flow is None:
            self.flow = other.flow
        elif other.flow is None:
            flow.is_stopped = flow.is_logged = False
            flow.release()
            self.flow = None
        else:
            flow.thresholds = other.flow.thresholds
        if alerts is None or other.alerts is None:
            self.alerts = other.alerts
        else:
            alerts.thresholds = other.alerts.thresholds
        self.sunk(queue)
        self.update(queue)

    def release(self) -> None:
        """Release the publishers of a queue that was deleted."""
        if self.flow is not None:
            self.flow.release()

    def _look_at_each(self) -> None:
        self.is_high = True
        self.count_mark = self.bytes_mark = -1

    def _set_marks(self, enqueued: int, bytes_enqueued: int, count: int, size: int) -> None:
        """Set the marks for a queue with `count` messages and `size` bytes left of all ever enqueued."""
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
        messages: messages left to the threshold; NEVER without one.
        size: bytes of headers and content left, likewise.
        overhead: bytes that the threshold in bytes adds for each message: it and the content get half of the room each.
        count: messages on the queue.
    """
    if not overhead or size == NEVER:
        return messages, size
    left = size - overhead * count
    return min(messages, left // (2 * overhead)), left // 2
