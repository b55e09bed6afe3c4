"""Scheduled delivery: messages that wait for their delivery time before they are routed.

    x-opt-delivery-time     AMQP 1.0, a message-annotation: milliseconds since 1970; to any exchange or queue
    x-opt-delivery-delay    likewise: milliseconds from the arrival on; without effect beside the other one
    x-delay                 any protocol, a header: milliseconds from the arrival on; only to exchanges of type
                            x-delayed-message (`exchanges/delayed`)

Such a message is put on a queue of its virtual host, `WAITING`, as on any other one: it is in its journal before it is
confirmed, its content can leave memory, and a restart finds it. There is at most one such queue in a host; it is
exclusive to the schedule, so that no client can use it, and policies do not apply to it. It exists from the first
message or exchange on that needs it.

When a message is due, it is routed by its exchange and its key as if it was published then: with the bindings of that
time, alternate exchanges, limits and TTLs of its queues. It moves as to a dead-letter exchange (`router`): it leaves
the schedule when it is on the disk at its destination, so a crash in between leaves it in both places, never in none.

    not due yet        it waits. Delivery times are times of day: if the clock is set, messages wait until the new time
    no such exchange   it is dropped, and this is logged
    not permitted      its publisher may not publish there any more: likewise
    no queue           it is dropped, as an unroutable message is; no publisher is notified
    no room            it is tried again after 1, 2, 4 ... 60 seconds, whatever the clock; others are not held up
    a failed disk      likewise

While it waits, a message has headers with what it needs later:

    x-qstore-publisher    its publisher, who needs the permission to publish when it is delivered
    x-qstore-expires      when it expires, in milliseconds since 1970. By x-delay the time to live begins at the
                          delivery, as in RabbitMQ; by an annotation at the arrival. No message expires while it waits:
                          one that is late expires on its queue

Both are removed on delivery, and x-delay becomes negative, as in RabbitMQ; the annotations stay. Many messages that are
due together are delivered in turns, each when the last one is on the disk.

Sources: RabbitMQ, rabbitmq_delayed_message_exchange; the annotations of Apache Qpid JMS and ActiveMQ Artemis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.caller import Client, Publisher
from qstore.broker.model.errors import InternalError, ModelError, UnauthorizedError
from qstore.broker.model.exchanges.matching import STEPS_PER_MESSAGE
from qstore.broker.model.message import Message
from qstore.broker.model.queues.due import DueTimes
from qstore.broker.model.settlement import MOVED_AT_ONCE
from qstore.formats.values import INT64, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.exchanges.exchange import Exchange, Put
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.router import Fanout, Router
    from qstore.broker.model.tick import Portion, Resume, Tick

_LOG: Final = log_of("Model")

DELAY: Final = "x-delay"
PUBLISHER: Final = "x-qstore-publisher"
EXPIRES: Final = "x-qstore-expires"

ARGUMENTS: Final = TypedMap(
    tuple((name, TypedValue(INT64, 0)) for name in ("qpid.max_size", "qpid.flow_stop_size", "qpid.flow_stop_count"))
)
"""The arguments of the queue: it has no limit but that of the disk, and memory its ceiling."""

MAX_TIME: Final = 1 << 53
"""Milliseconds of the latest delivery time, and of the longest delay: 285,000 years."""

_SIGNED: Final = frozenset(("int8", "int16", "int32", "int64"))
_MAX_WAIT: Final = 60.0  # seconds: the clock may be set
_LEAST_WAIT: Final = 0.001
_MAX_RETRY: Final = 60.0
_MAX_DOUBLINGS: Final = 6
_LOGGED_EVERY: Final = 60.0


class Schedule:
    """The messages of one virtual host that wait for their delivery time: the receiver of its delayed exchanges.

    Args:
        host: the name of the host.
        exchanges: name -> exchange.
        router: moves messages.
        tick: the broker's.
        authorization: checks whether publishers may still publish.
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.
        call_later: schedules a function after a delay in seconds; None: nothing is delivered by itself.

    Attributes:
        queue: the queue of waiting messages; None as long as there is none. Set by the factory of queues.
        due_times: when they are due.
        queues: the queue as the route of a waiting message.
    """

    def __init__(
        self,
        host: str,
        exchanges: Mapping[str, Exchange],
        router: Router,
        tick: Tick,
        authorization: Authorization,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any] | None,
    ) -> None:
        self._host, self._exchanges, self._router, self._tick = host, exchanges, router, tick
        self._authorization, self._clock, self._monotonic, self._call_later = (
            authorization,
            clock,
            monotonic,
            call_later,
        )
        self._timer, self._timer_at = 0, inf  # when it rings, on the monotonic clock
        self._again: list[tuple[float, int, Entry]] = []  # those that are tried again: when, on that clock; a heap
        self._tries: dict[Entry, int] = {}  # those for which there was no room
        self._dropped, self._logged_at = 0, -_LOGGED_EVERY
        self.queue: Queue | None = None
        self.due_times = DueTimes(self._start_timer)

    # ---- as the route of waiting messages ----

    @property
    def queues(self) -> Sequence[Queue]:
        """As `Routed.queues`."""
        return () if self.queue is None else (self.queue,)

    def count(self, size: int) -> None:
        """As `Routed.count`: a message counts for its exchange when it is delivered."""

    # ---- as the receiver of delayed exchanges ----

    def takes(self, message: Message) -> bool:
        """As `Receiver.takes`: whether it has a delay."""
        return _delay_of(message) > 0

    def keeps_nothing(self, message: Message) -> bool:  # noqa: ARG002
        """As `Receiver.keeps_nothing`."""
        return False

    def receive(
        self,
        message: Message,
        put: Put,
        authorization: Authorization,  # noqa: ARG002 – asked again when it is due
    ) -> bool | Fanout:
        """As `Receiver.receive`."""
        waiting, queues = self.placed(message)
        return put(waiting, queues)

    def check_transaction(self) -> None:
        """As `Receiver.check_transaction`: it takes messages in transactions."""

    def placed(self, message: Message) -> tuple[Message, Sequence[Queue]]:
        """As `Receiver.placed`."""
        now, delay = self._clock(), _delay_of(message) / 1000
        end = message.expires_at + delay if message.expires_at else 0.0
        return self.waiting(message, now + delay, end), self.queues

    # ---- waiting ----

    def waiting(self, message: Message, due: float, expires_at: float) -> Message:
        """A published message as it waits.

        Args:
            message: the message.
            due: when it is to be delivered, in seconds since 1970.
            expires_at: when it expires, likewise; 0.0 for never.

        Raises:
            InvalidArgumentError: its headers cannot be changed.
        """
        publisher = message.handling.publisher
        user = publisher.user if isinstance(publisher, Publisher) else ""
        changes = {
            EXPIRES: TypedValue(INT64, min(ceil(expires_at * 1000), MAX_TIME)) if expires_at else None,
            PUBLISHER: TypedValue(STR16, user) if user else None,
        }
        return message.with_headers(changes).expiring_at(due)

    # ---- delivery ----

    def stop(self) -> None:
        """Deliver nothing any more: the broker shuts down."""
        self._call_later = None

    def _start_timer(self) -> None:
        due, now = self.due_times.first, self._monotonic()
        at = now + due - self._clock() if due else inf
        if self._again:
            at = min(at, self._again[0][0])
        if at == inf or at >= self._timer_at or self._call_later is None or self._tick.turns.has(self):
            return
        wait = min(max(at - now, _LEAST_WAIT), _MAX_WAIT)
        self._timer_at, self._timer = now + wait, self._timer + 1
        self._call_later(wait, partial(self._ring, self._timer))

    def _ring(self, timer: int) -> None:
        if timer == self._timer and self._call_later is not None:  # else another timer was started since
            self._timer_at = inf
            self.deliver()

    def deliver(self) -> None:
        """Deliver the messages that are due, in turns."""
        if not self._tick.turns.has(self):
            self._tick.turns.do(self, self._deliver_due())

    def _deliver_due(self) -> Iterator[Portion]:
        left, is_stored = MOVED_AT_ONCE, False
        while self.queue is not None and not self.queue.is_deleted:
            entry = self._next()
            if entry is None:
                break
            is_stored = is_stored or entry.rid != 0
            left -= self._deliver(self.queue, entry)
            if left <= 0:
                yield self._until_synced if is_stored else None
                left, is_stored = MOVED_AT_ONCE, False
        self._tick.when_synced(self._turned)  # the timer is started when these turns have ended

    def _next(self) -> Entry | None:
        if self._again and self._again[0][0] <= self._monotonic():
            return heappop(self._again)[2]
        return self.due_times.take(self._clock())

    def _until_synced(self, resume: Resume) -> None:
        self._tick.when_synced(lambda _error: resume())

    def _turned(self, _error: Exception | None) -> None:
        if self.queue is not None and self.queue.is_deleted:
            self.queue = None
            self.due_times.clear()
            self._again.clear()
            self._tries.clear()
        self._start_timer()

    def _deliver(self, queue: Queue, entry: Entry) -> int:
        """Deliver a message. Returns the cost: 1, or the number of messages that could have been moved meanwhile."""
        if not queue.acquire(entry, is_consumed=False):
            return 1
        steps = 0
        try:
            message = entry.message.whole()
            exchange = self._exchanges.get(message.exchange)
            if exchange is None:
                self._drop(queue, entry, f'exchange "{message.exchange}" does not exist any more')
                return 1
            headers, before = message.headers(), exchange.steps
            self._check(message, headers)
            due = _delivered(message, headers, is_delayed=exchange.receiver is self)
            sent = exchange.sent
            if sent is not None:
                due = sent.number(due)
            self._router.move(queue, entry, exchange, partial(self._moved, queue, entry), due)
            if sent is not None:
                sent.keep(due)
            steps = exchange.steps - before
        except UnauthorizedError as error:
            self._drop(queue, entry, str(error))
        except (ModelError, MemoryError) as error:
            self._moved(queue, entry, error.with_traceback(None))
        return 1 + steps // STEPS_PER_MESSAGE

    def _check(self, message: Message, headers: TypedMap) -> None:
        """Raise UnauthorizedError if the publisher of a message may not publish it now."""
        typed = headers.get(PUBLISHER)
        if typed is None or not self._authorization.is_on:
            return
        caller = Client(str(typed.value), "", f"mng:{typed.value}(scheduled)", self._host)
        for each in (message, *message.under_further_keys()):
            self._authorization.check_publish(caller, message.exchange, each.routing_key)

    def _moved(self, queue: Queue, entry: Entry, error: Exception | None) -> None:
        """A message has left the schedule; after an error it is tried again later."""
        if error is None:
            self._tries.pop(entry, None)
            return
        if queue.is_deleted:
            return
        tries = self._tries.get(entry, 0)
        if not tries:
            _LOG.info('Virtual host "%s": a scheduled message is tried again: %s', self._host, error)
        self._tries[entry] = tries + 1
        queue.release(entry, is_redelivered=False, was_delivered=False)
        at = self._monotonic() + min(2.0 ** min(tries, _MAX_DOUBLINGS), _MAX_RETRY)
        heappush(self._again, (at, entry.position, entry))
        self._start_timer()

    def _drop(self, queue: Queue, entry: Entry, why: str) -> None:
        """Dequeue a message that cannot be delivered, and log this at intervals; if that fails, try again later."""
        try:
            queue.dequeue(entry)
        except InternalError as error:
            self._moved(queue, entry, error.with_traceback(None))
            return
        self._tries.pop(entry, None)
        self._dropped += 1
        now = self._monotonic()
        if now - self._logged_at >= _LOGGED_EVERY:
            what = "1 scheduled message was" if self._dropped == 1 else f"{self._dropped} scheduled messages were"
            _LOG.warning('Virtual host "%s": %s dropped: %s', self._host, what, why)
            self._logged_at, self._dropped = now, 0


def _delay_of(message: Message) -> int:
    """The milliseconds in its header x-delay; 0 if there is none, or it is not a number."""
    typed = message.headers().get(DELAY)
    value = None if typed is None else typed.value
    return min(value, MAX_TIME) if isinstance(value, int) and not isinstance(value, bool) else 0


def _delivered(message: Message, headers: TypedMap, *, is_delayed: bool) -> Message:
    """A message that has waited, as it is delivered; `is_delayed` by its header x-delay."""
    changes: dict[str, TypedValue | None] = {PUBLISHER: None, EXPIRES: None}
    if is_delayed and (delay := _delay_of(message)) > 0:
        typed = headers.get(DELAY)
        assert typed is not None
        changes[DELAY] = TypedValue(typed.type if typed.type.name in _SIGNED else INT64, -delay)
    end = headers.get(EXPIRES)
    if end is not None and isinstance(end.value, int):
        return message.with_headers(changes).expiring_at(end.value / 1000)
    return message.readdressed(message.exchange, message.routing_key, changes)
