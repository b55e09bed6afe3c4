"""Producer flow control: publishers to a queue that fills up wait until it has drained.

    on     when the queue has more messages, or more bytes, than the stop threshold
    off    when it has fewer messages and fewer bytes than the resume thresholds

The message is enqueued in both states. While flow control is on, the command that published it is not completed. It is
completed when, for each queue that the message was put on, flow control is off, or the message has left the queue, or
the queue was deleted; and when its records are on the disk. The broker reads on meanwhile: a publisher may have as many
commands uncompleted as its own capacity allows, and a queue can exceed the stop threshold by the capacities of all its
publishers. A command that waits for all before it (execution.sync) waits for these as well.

Messages published in a transaction count when it is committed, but neither they nor the commit wait, as in qpidd: a
client may have to commit the removals that make room before it can go on.

The thresholds of a queue are arguments of its declaration. A measure without a stop threshold gets percentages of the
queue's capacity, unless the queue drops messages or is deleted at its limit; a stop threshold of 0 disables the
measure. Without a resume threshold the default applies, but at most the stop threshold.

Sources: Qpid C++ Broker Book, 1.8; MRG 2 Messaging User Guide, 3 (producer flow control); qpidd, QueueFlowLimit.cpp
(thresholds of 0, messages that leave, transactions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.capacity import Capacity

_LOG: Final = log_of("Model")


class FlowArguments(NamedTuple):
    """The thresholds that a declaration gives; None for those that it does not.

    Attributes:
        stop_count, resume_count: in messages.
        stop_size, resume_size: in bytes of headers and content.
    """

    stop_count: int | None = None
    resume_count: int | None = None
    stop_size: int | None = None
    resume_size: int | None = None


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
    count = _pair(name, "count", (given.stop_count, given.resume_count), (stop_count, resume_count), capacity.messages)
    size = _pair(name, "size", (given.stop_size, given.resume_size), (stop_bytes, resume_bytes), capacity.bytes)
    if not count[0] and not size[0]:
        return None
    is_of_limit = size[0] and given.stop_size is None
    return FlowThresholds(*count, *size, capacity.overhead if is_of_limit else 0)


def _pair(
    name: str, unit: str, given: tuple[int | None, int | None], defaults: tuple[int, int], capacity: int
) -> tuple[int, int]:
    """The stop and resume thresholds of one measure. Raises InvalidArgumentError."""
    stop = defaults[0] if given[0] is None else given[0]
    if stop == 0:
        return 0, 0
    resume = given[1] if given[1] is not None else min(defaults[1], stop)
    if resume > stop:
        text = f"qpid.flow_resume_{unit} {resume} is above qpid.flow_stop_{unit} {stop}"
        raise InvalidArgumentError(f'queue "{name}": {text}')
    if capacity and stop > capacity:
        text = f"qpid.flow_stop_{unit} {stop} is above the limit of the queue, {capacity}"
        raise InvalidArgumentError(f'queue "{name}": {text}')
    return stop, resume or stop


class FlowControl:
    """The flow control of one queue.

    Args:
        thresholds: its thresholds.

    Attributes:
        thresholds: as above.
        is_stopped: whether it is on.
        stopped_count: how often it went on.
    """

    __slots__ = ("_held", "is_stopped", "stopped_count", "thresholds")

    def __init__(self, thresholds: FlowThresholds) -> None:
        self.thresholds = thresholds
        self.is_stopped = False
        self.stopped_count = 0
        self._held: dict[int, HeldTransfer] = {}  # position of a message on the queue -> its transfer

    def rise(self, name: str, count: int, size: int) -> None:
        """The queue `name` has grown to `count` messages with `size` bytes of headers and content."""
        limits = self.thresholds
        if self.is_stopped or not (
            0 < limits.stop_count < count or 0 < limits.stop_bytes < size + limits.overhead * count
        ):
            return
        self.is_stopped = True
        self.stopped_count += 1
        _LOG.info('Queue "%s": publishers are stopped at %d messages, %d bytes', name, count, size)

    def fall(self, name: str, count: int, size: int, position: int) -> None:
        """As `rise`, after the message at `position` has left the queue."""
        limits = self.thresholds
        if (not limits.stop_count or count < limits.resume_count) and (
            not limits.stop_bytes or size + limits.overhead * count < limits.resume_bytes
        ):
            self.is_stopped = False
            _LOG.info('Queue "%s": publishers are resumed at %d messages, %d bytes', name, count, size)
            self.release()
        elif position in self._held:
            self._held.pop(position).let_go(self)

    def hold(self, position: int, transfer: HeldTransfer) -> None:
        """Let a transfer wait that has put its message at `position`."""
        self._held[position] = transfer

    def forget(self, position: int) -> None:
        """The transfer of the message at `position` does not wait any more."""
        self._held.pop(position, None)

    def release(self) -> None:
        """Let all transfers go: flow control is off, or the queue was deleted."""
        held, self._held = self._held, {}
        for transfer in held.values():
            transfer.let_go(self)


Stop: TypeAlias = tuple[FlowControl, int]
"""A stopped queue's flow control, and the position of a message that was put on that queue."""


class HeldTransfer:
    """A command whose message is on stopped queues: it waits for them, and for the disk.

    Args:
        stops: the stopped queues.
        done: called when the command is complete, or with the error for which it cannot be.
    """

    __slots__ = ("_done", "_is_synced", "_places")

    def __init__(self, stops: list[Stop], done: Callable[[Exception | None], None]) -> None:
        self._done = done
        self._is_synced = False
        self._places = dict(stops)
        for flow, position in stops:
            flow.hold(position, self)

    def let_go(self, flow: FlowControl) -> None:
        """A queue does not hold it any more."""
        del self._places[flow]
        if self._is_synced and not self._places:
            self._done(None)

    def synced(self, error: Exception | None) -> None:
        """Its records are on the disk, or could not be written."""
        self._is_synced = True
        if error is None and self._places:
            return
        done = self._done
        self.drop()
        done(error)

    def drop(self) -> None:
        """Nobody waits for the command any more."""
        for flow, position in self._places.items():
            flow.forget(position)
        self._places.clear()
        self._done = _ignore


def _ignore(_error: Exception | None) -> None:
    """For a command that nobody waits for."""
