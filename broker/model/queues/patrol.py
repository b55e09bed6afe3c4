"""Watches queues for what only time shows: messages that grow old, and consumers that do not keep up.

    qpid.alert_message_age          milliseconds: an alert is raised if the oldest message is older
    x-qpid-maximum-message-age      another name for it
    qpid.alert_message_size         bytes: an alert is raised for each message that is larger
    qpid.slow_consumer_count        messages, bytes of headers and content, and milliseconds of the oldest message: a
    qpid.slow_consumer_size         queue that has more is too much for its consumers, and its policy is applied
    qpid.slow_consumer_age
    qpid.slow_consumer_policy       disconnect   the sessions of its consumers are closed, with error 506, by AMQP 1.0
                                                 the links: "Consuming too slow."
                                    delete       likewise, and the queue is deleted, unless it is durable
                                    cycle        its oldest messages are removed until it is below the thresholds;
                                                 those that consumers hold stay
    qpid.slow_consumer_delete_durable   with `delete`, durable queues are deleted, too

A queue without consumers is left alone, but for `cycle`: a durable subscription whose consumer is away is not slow.
Each alert of a queue comes at most once in its `qpid.alert_repeat_gap`; each time that a policy is applied there is an
alert, too.

When a message arrived is not kept with it. Instead a queue that needs it has samples: at which time its next position
was which. So ages are exact to a twentieth of the threshold, and to the interval of `look`; they begin anew with a
start of the broker. Only queues with one of these arguments are looked at.

Sources: Qpid Java Broker: "Slow Consumer Disconnect", "Topic Configuration" (the policies), virtualhosts.xml (alerts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import InternalError, ResourceLimitExceededError
from qstore.broker.model.events import Event, QueueConsumerTooSlow, QueueMessageTooLarge, QueueMessageTooOld
from qstore.broker.model.queues.flow_control import REPEAT_GAP
from qstore.broker.model.queues.limits import Displacement
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue

DISCONNECT: Final = "disconnect"
DELETE: Final = "delete"
CYCLE: Final = "cycle"
SLOW_POLICIES: Final = (DISCONNECT, DELETE, CYCLE)

TOO_SLOW: Final = "Consuming too slow."

LOOKED_AT_ONCE: Final = 500
"""Queues that are looked at in one turn: about a millisecond."""

COST_OF_ALERT: Final = 50
"""An event takes as long as looking at so many queues: some 0.1 ms."""

REMOVED_AT_ONCE: Final = 200
"""Messages of a queue that `cycle` removes in one turn."""

FAILED_AT_ONCE: Final = 20
"""Consumers of a queue that are too slow and are told so in one turn."""

SAMPLES: Final = 50
"""Samples within the shorter of the thresholds."""

MAX_SAMPLES: Final = 100
"""Of a queue; then every second one is dropped."""


class PatrolArguments(NamedTuple):
    """What a declaration asks for; 0 for no threshold.

    Attributes:
        message_size: bytes.
        message_age: seconds.
        slow_policy: one of `SLOW_POLICIES`; empty for none.
        slow_count, slow_size, slow_age: messages, bytes and seconds.
        deletes_durable: as above.
        repeat_gap: seconds between two alerts.
    """

    message_size: int = 0
    message_age: float = 0.0
    slow_policy: str = ""
    slow_count: int = 0
    slow_size: int = 0
    slow_age: float = 0.0
    deletes_durable: bool = False
    repeat_gap: int = REPEAT_GAP

    @property
    def needs_time(self) -> bool:
        """Whether the queue is looked at again and again."""
        return self.message_age > 0 or bool(self.slow_policy)


class LargeMessages(Displacement):
    """Raises the alerts for large messages on one queue.

    Args:
        size: bytes of headers and content above which a message is large.
        repeat_gap: seconds between two alerts.
        emit: passes an event to the listeners.
        monotonic: seconds of a monotonic clock.
    """

    __slots__ = ("_emit", "_gap", "_last", "_monotonic", "_size")

    def __init__(
        self, size: int, repeat_gap: int, emit: Callable[[Event], None], monotonic: Callable[[], float]
    ) -> None:
        self._size, self._gap, self._emit, self._monotonic = size, repeat_gap, emit, monotonic
        self._last = -inf

    def arrived(self, queue: Queue, entry: Entry) -> None:
        """Look at the size of a message."""
        size = entry.message.size
        if size > self._size:
            now = self._monotonic()
            if now - self._last >= self._gap:
                self._last = now
                self._emit(QueueMessageTooLarge(queue.name, size, self._size))


class _Watched:
    """One queue on patrol.

    Attributes:
        queue, wanted: the queue, and what its declaration asks for.
        alerted_at: when it raised its last alert.
        is_busy: whether its policy is being applied.
    """

    __slots__ = ("_samples", "_step", "alerted_at", "is_busy", "queue", "wanted")

    def __init__(self, queue: Queue, wanted: PatrolArguments) -> None:
        self.queue, self.wanted, self.alerted_at, self.is_busy = queue, wanted, -inf, False
        self._samples: deque[tuple[float, int]] = deque()  # when, and the next position then
        ages = [age for age in (wanted.message_age, wanted.slow_age) if age]
        self._step = min(ages) / SAMPLES if ages else inf

    def age(self, now: float) -> float:
        """Seconds that the oldest message has been on the queue at least; 0.0 if it is not known."""
        samples, following = self._samples, self.queue.next_position
        if self._step == inf:
            return 0.0
        if not samples or now - samples[-1][0] >= self._step:
            samples.append((now, following))
            if len(samples) > MAX_SAMPLES:
                samples = self._samples = deque(islice(samples, 0, None, 2))
        oldest = self.queue.oldest_position
        while samples and samples[0][1] <= oldest:
            samples.popleft()
        return now - samples[0][0] if samples and oldest < following else 0.0

    def before(self, moment: float) -> int:
        """The position before which all messages arrived before a moment."""
        return max((position for at, position in self._samples if at <= moment), default=0)


class Patrol:
    """Watches the queues of one broker.

    Args:
        emit: passes an event to the listeners.
        monotonic: seconds of a monotonic clock.

    Attributes:
        delete: begins to delete a queue.
    """

    def __init__(self, emit: Callable[[Event], None], monotonic: Callable[[], float]) -> None:
        self._emit, self._monotonic = emit, monotonic
        self._watched: dict[Queue, _Watched] = {}
        self.delete: Callable[[Queue], None] = lambda _queue: None

    def __len__(self) -> int:
        return len(self._watched)

    def large_messages(self, wanted: PatrolArguments) -> LargeMessages:
        """What raises the alerts for large messages on a queue."""
        return LargeMessages(wanted.message_size, wanted.repeat_gap, self._emit, self._monotonic)

    def watch(self, queue: Queue, wanted: PatrolArguments) -> None:
        """Look at a queue from now on, if its declaration asks for it."""
        if wanted.needs_time:
            self._watched[queue] = _Watched(queue, wanted)

    def look(self) -> Iterator[None]:
        """Look at all of them once, in turns. Call it about once a second."""
        left = LOOKED_AT_ONCE
        for watched in list(self._watched.values()):
            left -= 1
            if watched.queue.is_deleted:
                self._watched.pop(watched.queue, None)
            elif self._look_at(watched):
                left -= COST_OF_ALERT
            if left <= 0:
                yield
                left = LOOKED_AT_ONCE

    def _look_at(self, watched: _Watched) -> bool:
        """Look at one queue. Returns whether there was an alert."""
        queue, wanted, now = watched.queue, watched.wanted, self._monotonic()
        age = watched.age(now)
        is_old = 0 < wanted.message_age < age and now - watched.alerted_at >= wanted.repeat_gap
        if is_old:
            watched.alerted_at = now
            self._emit(QueueMessageTooOld(queue.name, int(age * 1000), queue.message_count))
        is_slow = bool(wanted.slow_policy) and not watched.is_busy and self._is_slow(watched, age, now)
        return is_old or is_slow

    def _is_slow(self, watched: _Watched, age: float, now: float) -> bool:
        """Apply the policy of a queue if there is too much for its consumers. Returns whether it was applied."""
        queue, wanted = watched.queue, watched.wanted
        count, size = queue.message_count, queue.message_bytes
        if not (0 < wanted.slow_count < count or 0 < wanted.slow_size < size or 0 < wanted.slow_age < age):
            return False
        if wanted.slow_policy == CYCLE:
            work = self._cycle(watched, count, size, now)
        else:
            work = self._fail(queue, wanted) if queue.consumer_count else None
        if work is None:
            return False
        self._emit(QueueConsumerTooSlow(queue.name, wanted.slow_policy, count, size))
        watched.is_busy = True
        queue.do_in_turns(_applied(watched, work))
        return True

    def _fail(self, queue: Queue, wanted: PatrolArguments) -> Iterator[None]:
        """Tell the consumers of a queue that they are too slow, and delete it if that is wanted, as work in turns."""
        for number, consumer in enumerate(queue.consumers, 1):
            consumer.fail(ResourceLimitExceededError(TOO_SLOW))
            if not number % FAILED_AT_ONCE:
                yield
        is_wanted = wanted.slow_policy == DELETE and (not queue.durable or wanted.deletes_durable)
        if is_wanted and not queue.is_deleted:  # meanwhile, and another one may have its name
            self.delete(queue)

    @staticmethod
    def _cycle(watched: _Watched, count: int, size: int, now: float) -> Iterator[None] | None:
        """What removes the oldest messages of a queue; None if there is nothing to remove."""
        queue, wanted = watched.queue, watched.wanted
        excess = max(0, count - wanted.slow_count) if wanted.slow_count else 0
        if wanted.slow_size and size > wanted.slow_size:
            excess = max(excess, ceil((size - wanted.slow_size) * count / size))
        end = watched.before(now - wanted.slow_age) if wanted.slow_age else 0
        if not queue.available_count or not (excess or _count_before(queue, end)):
            return None
        return _removed(queue, excess, end)


def _applied(watched: _Watched, work: Iterator[None]) -> Iterator[None]:
    """The work of a policy, and a note that it is done."""
    try:
        yield from work
    finally:
        watched.is_busy = False


def _removed(queue: Queue, count: int, end: int) -> Iterator[None]:
    """Remove the oldest messages of a queue, and all before a position, as work in turns."""
    removed = 1
    while removed and not queue.is_deleted:
        at_once = min(count, REMOVED_AT_ONCE) or _count_before(queue, end)
        try:
            removed = queue.purge(at_once, None if count else end)[0] if at_once else 0
        except InternalError:
            return
        count -= min(count, removed)
        yield


def _count_before(queue: Queue, end: int) -> int:
    """How many of the next available messages are before a position, at most `REMOVED_AT_ONCE`."""
    return sum(entry.position < end for entry in islice(queue.available(), REMOVED_AT_ONCE))
