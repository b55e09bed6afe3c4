"""Producer flow control: publishers to a queue that fills up wait until it has drained.

    on     when the queue has more messages, or more bytes, than the stop threshold
    off    when it has fewer messages and fewer bytes than the resume thresholds

The message is enqueued in both states. While flow control is on, the command that published it is not completed. It is
completed when, for each queue that the message was put on, flow control is off, or the message has left the queue, or
the queue was deleted; and when its records are on the disk. The broker reads on meanwhile: a publisher may have as many
commands uncompleted as its own capacity allows, and a queue can exceed the stop threshold by the capacities of all its
publishers. A command that waits for all before it (execution.sync) waits for these as well. If publishers wait for
longer than a moment, the log says so, once (`StoppedQueues`).

Messages published in a transaction count when it is committed, but neither they nor the commit wait, as in qpidd: a
client may have to commit the removals that make room before it can go on.

The thresholds of a queue are arguments of its declaration. A measure without a stop threshold gets percentages of the
queue's capacity, unless the queue drops messages or is deleted at its limit; a stop threshold of 0 disables the
measure. Without a resume threshold the default applies, but at most the stop threshold.

Sources: Qpid C++ Broker Book, 1.8; MRG 2 Messaging User Guide, 3 (producer flow control); qpidd, QueueFlowLimit.cpp
(thresholds of 0, messages that leave, transactions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from qstore.broker.log.budget import LogBudget
from qstore.broker.log.logs import INFO, NOTICE, WARNING, log_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.capacity import Capacity
from qstore.formats.wording import plural

if TYPE_CHECKING:
    from qstore.broker.model.tick import Tick

_LOG: Final = log_of("Model")

TOLD_AFTER: Final = 1.0
TOLD_EVERY: Final = 60.0
"""Seconds for which publishers wait before the log tells it, and between two such lines about one queue."""


class FlowArguments(NamedTuple):
    """The thresholds that a declaration gives; None for those that it does not.

    Attributes:
        stop_count, resume_count: in messages.
        stop_size, resume_size: in bytes of headers and content.
        sizes: the arguments that these two were given with.
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
    half = 50  # default stop thresholds are rounded to the nearest number
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
    """The stopped queues of one broker, and the lines of the log about those whose publishers wait.

    Flow control may stop a queue many times a second. So a stop is logged only when publishers have waited for
    TOLD_AFTER seconds, and for one queue at most once in TOLD_EVERY seconds.
    """

    def __init__(self) -> None:
        self._since: dict[FlowControl, float | None] = {}  # when `look` has seen them first
        self._budget = LogBudget(_LOG, WARNING, "queues whose publishers wait")

    def __len__(self) -> int:
        return len(self._since)

    def add(self, flow: FlowControl) -> None:
        """A queue is stopped."""
        self._since[flow] = None

    def remove(self, flow: FlowControl) -> None:
        """A queue is no longer stopped, or was deleted."""
        self._since.pop(flow, None)

    def look(self, now: float) -> None:
        """Log the queues that stay stopped. To be called about twice a second with the time of a monotonic clock."""
        self._budget.on_timer(now)
        for flow, since in self._since.items():
            if since is None:
                self._since[flow] = now
            elif now - since >= TOLD_AFTER and flow.must_be_told(now):
                flow.told_at, flow.is_told = now, True
                self._budget.write(now, "%s. %s", flow.reason, flow.remedy)


class FlowControl:
    """The flow control of one queue.

    Args:
        thresholds: its thresholds.
        stopped: has the stopped queues of the broker; None for a queue without one.

    Attributes:
        thresholds: as above.
        is_stopped: whether it is on.
        stopped_count: how often it went on.
        is_told: whether the log has a line about the present stop.
        told_at: when a stop was logged last.
    """

    __slots__ = (
        "_depth", "_held", "_name", "_stopped", "is_stopped", "is_told", "stopped_count", "thresholds", "told_at",
    )  # fmt: skip

    def __init__(self, thresholds: FlowThresholds, stopped: StoppedQueues | None = None) -> None:
        self.thresholds = thresholds
        self.is_stopped = self.is_told = False
        self.stopped_count = 0
        self.told_at = -inf
        self._stopped = stopped
        self._name, self._depth = "", (0, 0)  # at the last stop
        self._held: dict[int, tuple[HeldTransfers, int]] = {}  # position of a message -> its transfer

    def must_be_told(self, now: float) -> bool:
        """Whether publishers wait, and a line about that is due."""
        return bool(self._held) and not self.is_told and now - self.told_at >= TOLD_EVERY

    @property
    def reason(self) -> str:
        """Why publishers wait, in words for them and the log."""
        limits, (count, size) = self.thresholds, self._depth
        if 0 < limits.stop_count < count:
            what = f"{count:,} messages, above its flow control threshold of {limits.stop_count:,}"
        else:
            held = f"{size + limits.overhead * count:,} bytes in {plural(count, 'message')}"
            what = f"{held}, above its flow control threshold of {limits.stop_bytes:,} bytes"
        return f'Publishers to queue "{self._name}" wait: it has {what}'

    @property
    def remedy(self) -> str:
        """What makes publishers go on, in words for the log."""
        limits = self.thresholds
        below = [f"{limits.resume_count:,} messages"] if limits.stop_count else []
        if limits.stop_bytes:
            below.append(f"{limits.resume_bytes:,} bytes")
        option = "--default-queue-limit" if limits.overhead else "the limit or the thresholds of the queue"
        return f"They go on below {' and '.join(below)}: consume or purge messages, or raise {option}"

    def rise(self, name: str, count: int, size: int) -> None:
        """The queue `name` has grown to `count` messages with `size` bytes of headers and content."""
        limits = self.thresholds
        if self.is_stopped or not (
            0 < limits.stop_count < count or 0 < limits.stop_bytes < size + limits.overhead * count
        ):
            return
        self.is_stopped = True
        self.stopped_count += 1
        self._name, self._depth = name, (count, size)
        if self._stopped is not None:
            self._stopped.add(self)
        _LOG.info('Queue "%s": publishers are stopped at %d messages, %d bytes', name, count, size)

    def fall(self, name: str, count: int, size: int, position: int) -> None:
        """As `rise`, after the message at `position` has left the queue."""
        limits = self.thresholds
        if (not limits.stop_count or count < limits.resume_count) and (
            not limits.stop_bytes or size + limits.overhead * count < limits.resume_bytes
        ):
            level = NOTICE if self.is_told else INFO
            self.is_stopped = self.is_told = False
            _LOG.log(level, 'Queue "%s": publishers are resumed at %d messages, %d bytes', name, count, size)
            self.release()
        elif position in self._held:
            transfers, number = self._held.pop(position)
            transfers.let_go(number)

    def hold(self, position: int, transfers: HeldTransfers, number: int) -> None:
        """Let a transfer wait that has put its message at `position`."""
        self._held[position] = transfers, number

    def release(self) -> None:
        """Let all transfers go: flow control is off, or the queue was deleted."""
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
    """

    __slots__ = ("_done", "_waiting")

    def __init__(self, done: Callable[[int, Exception | None], None]) -> None:
        self._done = done
        self._waiting: dict[int, int] = {}  # number -> how many queues and flushes it waits for

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, number: int, stops: Iterable[Stop], tick: Tick | None) -> None:
        """Let a transfer wait for these queues, and for the records of this tick if `tick` is given."""
        count = 0
        for flow, position in stops:
            flow.hold(position, self, number)
            count += 1
        if tick is not None:
            tick.when_synced(partial(self._synced, number))
            count += 1
        self._waiting[number] = count

    def let_go(self, number: int) -> None:
        """A queue does not hold the transfer any more."""
        left = self._waiting.get(number, 0) - 1
        if left > 0:
            self._waiting[number] = left
        elif left == 0:
            del self._waiting[number]
            self._done(number, None)

    def _synced(self, number: int, error: Exception | None) -> None:
        if error is None:
            self.let_go(number)
        elif self._waiting.pop(number, 0):
            self._done(number, error)

    def drop(self) -> None:
        """The publisher has gone."""
        self._waiting.clear()
        self._done = _ignore


def _ignore(_number: int, _error: Exception | None) -> None:
    """For a publisher that has gone."""
