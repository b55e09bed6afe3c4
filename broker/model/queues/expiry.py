"""Expiry: when messages leave their queue, and when unused queues are deleted.

Messages:

    at the head    within milliseconds, even without consumers. The head is the first available message, of each level
                   on a priority queue, of each group with message groups; messages after it that expire earlier stay
                   until it is gone
    elsewhere      when a consumer reaches them, or at the purge interval (`expire_in_turns`)

Either way they leave in turns of a few milliseconds, whatever their number.

A broker has one timer, for the queue whose head expires first. A queue's head is looked at after each dispatch, which
is the only cost for queues whose head does not expire. The head is unknown among messages that selectors passed over,
and on priority and group queues after many that consumers hold or many of other groups: these leave at the purge
interval.

A TTL of 0 is for consumers that wait for the message: it expires once it has been offered to them, in the same tick or,
if it is stored, after its flush (`NO_TIME`, `NO_TIME_STORED`).

Queues (`IdleQueues`): auto-delete queues with a timeout, and those with `x-expires`. The timeout starts when the last
consumer or the owner is gone, each time that happens. The code that takes due queues checks whether they are still
unused. If the broker stops before the timeout is over, the queue stays after the restart until it has been used again,
because it is unknown whether it ever was. That of a link of AMQP 1.0 was (`OF_SUBSCRIPTION`): its timeout starts again.

Source: RabbitMQ, "Time-To-Live and Expiration".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.queues.entry import AVAILABLE, GONE, OUT
from qstore.broker.model.residency.stretch import Stretch

if TYPE_CHECKING:
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.fifo import Fifo
    from qstore.broker.model.queues.queue import Queue


RESOLUTION: Final = 0.001
"""Least seconds between two calls of the timer."""

NO_TIME: Final = 0.01
NO_TIME_STORED: Final = 0.1
"""Seconds that a message with a TTL of 0 may be on a queue."""

MAX_AT_ONCE: Final = 1000
"""Messages that leave in one turn, roughly: a few milliseconds."""

_COST_OF_MOVE: Final = 5  # of a message that moves to a dead-letter exchange, relative to one that only leaves
_COST_OF_QUEUE: Final = 5  # of examining a queue, likewise

_MAX_WAIT: Final = 60.0  # seconds: the clock may be adjusted
_SPARE: Final = 64  # outdated entries of the heap, beyond the number of current ones


class Expiries:
    """The queues whose head expires.

    Args:
        clock: seconds since 1970.
        call_later: schedules a function after a delay in seconds; None: nothing expires by itself.
    """

    def __init__(
        self, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], Any] | None
    ) -> None:
        self._clock, self._call_later = clock, call_later
        self._numbers = count(1)
        self._watched: dict[Queue, tuple[float, int]] = {}  # when its head expires, and its number in the heap
        self._heap: list[tuple[float, int]] = []  # these, and some outdated ones
        self._queues: dict[int, Queue] = {}  # by number: the heap must not reference a deleted queue
        self._timer, self._timer_at = 0, inf

    def __len__(self) -> int:
        return len(self._queues)

    def look(self, queue: Queue) -> None:
        """Watch the head of a queue that was dispatched, if it expires."""
        due = next_expiry(queue.order)
        if due and self._call_later is not None:
            known = self._watched.get(queue)
            if known is None or due < known[0]:
                self._watch(queue, due)
                self._start_timer()

    def forget(self, queue: Queue) -> None:
        """Forget a queue that was deleted."""
        known = self._watched.pop(queue, None)
        if known is not None:
            del self._queues[known[1]]
            self._tidy()

    def stop(self) -> None:
        """Stop expiring messages: the broker shuts down."""
        self._call_later = None

    def _watch(self, queue: Queue, due: float) -> None:
        known = self._watched.get(queue)
        if known is not None:
            del self._queues[known[1]]
        number = next(self._numbers)
        self._watched[queue] = due, number
        self._queues[number] = queue
        heappush(self._heap, (due, number))
        self._tidy()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._queues) + _SPARE:
            self._heap = [each for each in self._heap if each[1] in self._queues]
            heapify(self._heap)

    def _start_timer(self) -> None:
        heap = self._heap
        while heap and heap[0][1] not in self._queues:
            heappop(heap)
        if heap and heap[0][0] < self._timer_at and self._call_later is not None:
            self._timer_at, self._timer = heap[0][0], self._timer + 1
            timer = self._timer
            wait = min(max(self._timer_at - self._clock(), RESOLUTION), _MAX_WAIT)
            self._call_later(wait, lambda: self._ring(timer))

    def _ring(self, timer: int) -> None:
        if timer != self._timer or self._call_later is None:  # another timer was started since
            return
        self._timer_at = inf
        heap, now, left = self._heap, self._clock(), MAX_AT_ONCE
        while heap and heap[0][0] <= now and left > 0:
            queue = self._queues.pop(heappop(heap)[1], None)
            if queue is None:
                continue
            del self._watched[queue]
            if not queue.is_deleted:
                at, spent = expire_heads(queue, now, left)
                left -= spent + _COST_OF_QUEUE
                if at:
                    self._watch(queue, at)
        self._start_timer()


def next_expiry(order: Fifo) -> float:
    """When a head of a queue expires, in seconds since 1970; 0.0 if none does."""
    first = 0.0
    for head in order.heads():
        if head.state == AVAILABLE:
            due = head.message.expires_at
        else:
            due = head.first_expiry if isinstance(head, Stretch) else 0.0
        if due and (not first or due < first):
            first = due
    return first


def expire_heads(queue: Queue, now: float, most: int = MAX_AT_ONCE) -> tuple[float, int]:
    """Remove messages from the heads of a queue that have expired.

    Args:
        queue: the queue.
        now: seconds since 1970.
        most: roughly, what that may cost: this number of messages, or fewer if they move.

    Returns:
        When to look again, 0.0 for never; and the cost.
    """
    order, spent = queue.order, 0
    cost = 1 if queue.dead_letter is None else _COST_OF_MOVE
    while True:
        due = next_expiry(order)
        if not 0 < due <= now or spent >= most:
            break
        before = spent
        for head in order.heads():
            for entry in order.within(head) if head.state == OUT else (head,):
                if entry.state == AVAILABLE and 0 < entry.message.expires_at <= now:
                    spent += max(cost, queue.drop_expired(entry))
                    if spent >= most:
                        break
            if spent >= most:
                break
        if spent == before:  # the noted expiry is out of date
            due = 0.0
            break
    if spent:
        queue.mark_ready()
    return due, spent


def expire_in_turns(queues: Iterable[Queue], now: float) -> Iterator[int]:
    """Remove all available messages that have expired, as work in turns. Yields how many, for each turn."""
    left, removed = MAX_AT_ONCE, 0
    for queue in queues:
        order, cost = queue.order, 1 if queue.dead_letter is None else _COST_OF_MOVE
        last: Entry | None = None  # the last one left on the queue, up to the position examined
        passed_to, is_over = 0, False
        left -= _COST_OF_QUEUE
        while not is_over:
            is_over, before = True, removed
            for part in () if queue.is_deleted else order.parts(last):
                if left <= 0:
                    is_over = False
                    break
                if part.position <= passed_to:
                    continue
                left -= 1
                passed_to = part.position
                if part.state != OUT:
                    if part.state == AVAILABLE and 0 < part.message.expires_at <= now:
                        left -= max(cost, queue.drop_expired(part))
                        removed += 1
                    last = last if part.state == GONE else part
                elif isinstance(part, Stretch) and 0 < part.first_expiry <= now:
                    for entry in order.within(part):
                        if entry.state == AVAILABLE and 0 < entry.message.expires_at <= now:
                            left -= max(cost, queue.drop_expired(entry))
                            removed += 1
            if removed > before:
                queue.mark_ready()
            if left <= 0:
                yield removed
                left, removed = MAX_AT_ONCE, 0
    yield removed


class IdleQueues:
    """The queues whose timeout is running.

    Args:
        monotonic: seconds of a monotonic clock: no queue may be deleted because the time of day was adjusted.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: dict[Queue, float] = {}
        self._next = inf  # nothing is due before this time

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._until

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, queue: Queue) -> None:
        """Start the timeout of a queue: its `auto_delete_seconds`, from now on."""
        until = self._until[queue] = self._monotonic() + queue.auto_delete_seconds
        self._next = min(self._next, until)

    def used(self, queue: Queue) -> None:
        """Restart the timeout of a queue that begins or ceases to be used, if it expires."""
        if queue.expires_seconds:
            until = self._until[queue] = self._monotonic() + queue.expires_seconds
            self._next = min(self._next, until)

    def keeps(self, queue: Queue) -> bool:
        """Whether an unused queue stays for now: its timeout has restarted, or it is kept until it is empty."""
        if queue.is_kept_until_empty:
            if not queue.is_empty:
                self.begin(queue)
            elif not queue.auto_delete_seconds:
                return False
        return queue in self._until

    def forget(self, queue: Queue) -> None:
        """Forget a queue that was deleted."""
        self._until.pop(queue, None)

    def take_due(self) -> list[Queue]:
        """Remove and return the queues whose timeout is over."""
        now = self._monotonic()
        if now < self._next:
            return []
        due = [queue for queue, until in self._until.items() if until <= now]
        for queue in due:
            del self._until[queue]
        self._next = min(self._until.values(), default=inf)
        return due
