"""Dead-letter exchanges: for messages that are rejected, expire, are displaced from a ring, or find no room.

    x-dead-letter-exchange       the exchange, looked up when a message dies; if it is missing, the message is dropped
    x-dead-letter-routing-key    the routing key that the message gets; by default it keeps its own
    x-dead-letter-strategy       at-most-once, or at-least-once: see below

The message is addressed to that exchange, no longer expires, and its headers describe its death. It is moved as to an
alternate exchange (`router`): it leaves its queue when it is on the disk at its destination. A crash in between leaves
it in both places, never in none. Queues that it would reach in an automatic cycle do not get it. If a queue has both,
its alternate exchange gets its messages only when the queue is deleted.

    no room there    a message is dropped, and this is logged. But if the full queue is declared so, it is sent on to
                     that queue's dead-letter exchange (`MAX_REFUSALS`); and without x-overflow, a rejected message
                     stays, and its consumer gets the error
    a failed disk    the message stays on its queue, and is available after a restart

With the strategy at-least-once, for quorum queues that refuse publishers when they are full, a message that would be
dropped stays on its queue, acquired: there is no such exchange, no queue or only a cycle, no room, or too long a
header. It is tried again every `RETRY_SECONDS`, and is available after a restart. Its consumer gets no error.

The headers of a death:

    x-death              a list of maps, the latest death first; deaths on the same queue for the same reason are one
                         entry, which counts them and keeps the time and the keys of the first
        count            number of deaths, an int64
        reason           rejected, expired, maxlen or delivery_limit
        queue            the queue where it died
        time             when it died first, in seconds since 1970
        last-time        when it died last; absent if that is `time`. RabbitMQ has it only in AMQP 1.0
        exchange         the exchange that it was published to
        routing-keys     the routing key, in a list, and those of its header CC
        original-expiration    its own time to live in milliseconds, as text; only if it had one
    x-first-death-reason, -queue, -exchange    of its first death: never changed
    x-last-death-reason, -queue, -exchange     of its latest death

A client can send these headers as well; malformed entries are ignored. If the header of a message has no room for all
of them, they are shortened in steps (`SHORTER`): by the keys of the header CC in all entries, by the oldest entries
that no longer matter for cycles, then, for a rejected message, completely.

A message is in an automatic cycle if it would reach a queue where it has died before, without a rejection since.

Source: RabbitMQ, "Dead Letter Exchanges"; "Quorum Queues" (at-least-once dead lettering).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import (
    HeaderTooLargeError,
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    QueueOverflowError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.matching import STEPS_PER_MESSAGE
from qstore.broker.model.exchanges.route import Alternate, Routed
from qstore.broker.model.message import BCC, CC, Message, selected_keys
from qstore.broker.model.queues.entry import ACQUIRED, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import INT64, LIST, MAP, STR16, TYPES, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick


_LOG: Final = log_of("Model")

_LOGGED_EVERY: Final = 60.0  # seconds

X_DEATH: Final = "x-death"
LAST_TIME: Final = "last-time"
TTL: Final = "original-expiration"
NAMED: Final = tuple(
    f"x-{which}-death-{name}" for which in ("first", "last") for name in ("reason", "queue", "exchange")
)
"""The headers of the first and the latest death."""

REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"

Changes: TypeAlias = dict[str, TypedValue | None]
"""Headers to set; None for those to remove."""

_KEYS: Final = "routing-keys"
_DATETIME: Final = TYPES["datetime"]

PLAIN_HEADER: Final = 1024
"""Bytes of a dead message's header beyond which each one counts as a step of routing: some 0.4 µs for short values."""

MAX_REFUSALS: Final = 32
"""Maximum number of full queues that refuse a dead message one after the other; each makes its headers longer."""

RETRY_SECONDS: Final = 10.0
"""How often messages that must not be dropped are tried again."""

MAX_RETRIED: Final = 100
"""Of these in one turn, roughly."""

Done = Callable[[Exception | None], None]
Put = Callable[[Message, Alternate], None]


class DeadLetters:
    """Moves the dead messages of one virtual host.

    Args:
        exchanges: name -> exchange.
        router: moves messages.
        tick: the broker's.
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.
        call_later: schedules a function after a delay in seconds; None: nothing is tried again by itself.

    Attributes:
        monotonic: as above.
    """

    def __init__(
        self,
        exchanges: Mapping[str, Exchange],
        router: Router,
        tick: Tick,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any] | None,
    ) -> None:
        self._exchanges, self._router, self._tick = exchanges, router, tick
        self.now, self.monotonic, self._call_later = clock, monotonic, call_later
        self._kept: deque[tuple[Queue, Entry, str]] = deque()  # messages to try again, and the reasons of their deaths
        self._is_waiting = False  # for the timer

    def to(self, exchange: str, routing_key: str | None, *, is_at_least_once: bool) -> QueueDeadLetter:
        """The mover of a queue's dead messages; `routing_key` None for the message's own key."""
        return QueueDeadLetter(self, exchange, routing_key, is_at_least_once=is_at_least_once)

    def stop(self) -> None:
        """Try nothing again: the broker shuts down."""
        self._call_later = None

    def steps_of(self, exchange: str) -> int:
        """Steps taken so far to route messages in an exchange; 0 if there is no such exchange."""
        found = self._exchanges.get(exchange)
        return 0 if found is None else found.steps

    def move(self, queue: Queue, entry: Entry, reason: str, to: QueueDeadLetter, done: Done) -> None:
        """Move an acquired message to an exchange, with the headers of its death.

        Args:
            queue: its queue.
            entry: the message.
            reason: the reason for its death.
            to: its destination.
            done: called when it has left its queue for good, or with the error that prevents it.

        Raises:
            InvalidArgumentError: its header has no room for those of its death.
            NotFoundError: it must not be dropped, and there is no such exchange, or no queue for it.
            ModelError: see `Router.publish`; it is then still acquired.
        """
        if entry.state != ACQUIRED:  # being moved, or gone
            self._router.move(queue, entry, self._exchanges[""], done)
            return
        put = partial(self._move_to, queue, entry, done, MAX_REFUSALS)
        if not self._send(entry.message.whole(), queue, reason, to, put, is_kept=to.is_at_least_once):
            if to.is_at_least_once:
                raise NotFoundError(f'exchange "{to.exchange}" does not exist')
            self.leave(queue, entry, done)

    def move_at_least_once(self, queue: Queue, entry: Entry, reason: str, to: QueueDeadLetter, done: Done) -> None:
        """As `move`, but a message that cannot be moved stays acquired and is tried again; `done` is called at once."""
        try:
            self.move(queue, entry, reason, to, partial(self._moved, queue, entry, reason, to, done))
        except (ModelError, MemoryError) as error:
            self._keep(queue, entry, reason, to, error.with_traceback(None))
            done(None)

    def _moved(
        self, queue: Queue, entry: Entry, reason: str, to: QueueDeadLetter, done: Done, error: Exception | None
    ) -> None:
        if error is not None and entry.state == ACQUIRED and not queue.is_deleted:
            self._keep(queue, entry, reason, to, error)
            error = None
        done(error)

    def _keep(self, queue: Queue, entry: Entry, reason: str, to: QueueDeadLetter, error: Exception) -> None:
        self._kept.append((queue, entry, reason))
        to.log_kept(queue, error)
        self._start_timer()

    def _start_timer(self) -> None:
        if self._kept and not self._is_waiting and self._call_later is not None:
            self._is_waiting = True
            self._call_later(RETRY_SECONDS, self._ring)

    def _ring(self) -> None:
        self._is_waiting = False
        if self._call_later is not None and not self._tick.turns.has(self):
            self._tick.turns.do(self, self._try_again(len(self._kept)))

    def _try_again(self, count: int) -> Iterator[None]:
        left = MAX_RETRIED
        for _ in range(count):
            queue, entry, reason = self._kept.popleft()
            to = queue.dead_letter
            left -= 1
            if not queue.is_deleted and entry.state == ACQUIRED:
                if to is not None:
                    left -= to.try_again(queue, entry, reason)
                else:  # meanwhile, by a policy
                    with contextlib.suppress(InternalError):
                        self.leave(queue, entry, _ignore)
            if left <= 0:
                self._tick.schedule()
                yield
                left = MAX_RETRIED
        self._tick.schedule()
        self._start_timer()

    def leave(self, queue: Queue, entry: Entry, done: Done) -> None:
        """Dequeue a dead message without moving it."""
        if queue.dequeue(entry):
            self._tick.when_synced(done)
        else:
            done(None)

    def _move_to(
        self, queue: Queue, entry: Entry, done: Done, most: int, dead: Message, destination: Alternate
    ) -> None:
        moved = done if most < 2 else partial(self._was_moved, queue, entry, done, most, dead)
        self._router.move(queue, entry, destination, moved, dead)

    def _was_moved(
        self, queue: Queue, entry: Entry, done: Done, most: int, dead: Message, error: Exception | None
    ) -> None:
        """If a full queue has refused it in a later turn (`router.Fanout`), send it on as `_send` does."""
        if isinstance(error, QueueOverflowError) and error.is_dead and entry.state == ACQUIRED and not queue.is_deleted:
            own, to = queue.dead_letter, error.queue.dead_letter
            is_kept = own is not None and own.is_at_least_once
            if isinstance(to, QueueDeadLetter):
                try:
                    put = partial(self._move_to, queue, entry, done, most - 1)
                    if not self._send(dead, error.queue, MAXLEN, to, put, is_kept=is_kept):
                        if is_kept:
                            raise NotFoundError(f'exchange "{to.exchange}" does not exist')
                        self.leave(queue, entry, done)
                except (ModelError, MemoryError) as failure:
                    error = failure.with_traceback(None)
                else:
                    return
        done(error)

    def refused(self, queue: Queue, message: Message, to: QueueDeadLetter) -> None:
        """Put a message that a full queue has refused on the queues of an exchange, with the headers of its death.

        Raises:
            ModelError, MemoryError: it is on no queue.
        """
        self._send(message, queue, MAXLEN, to, self._put, is_kept=False)

    def _put(self, dead: Message, destination: Alternate) -> None:
        route = self._router.route(dead, destination)
        self._router.put(dead, route.queues)
        self._router.count(dead, route)

    def _send(
        self, message: Message, queue: Queue, reason: str, to: QueueDeadLetter, put: Put, *, is_kept: bool
    ) -> bool:
        """Put a dead message on the queues of its destination; a full queue declared so sends it on as a further death.

        Args:
            message: the message as it died.
            queue: the queue where it died.
            reason: the reason for its death.
            to: its destination.
            put: puts it on the queues of an exchange, or raises an error.
            is_kept: whether it must not be dropped.

        Returns:
            False if there is no such exchange.

        Raises:
            NotFoundError: it must not be dropped, and there is no queue for it.
            ModelError, MemoryError: it is on no queue.
        """
        for _ in range(MAX_REFUSALS):
            exchange = self._exchanges.get(to.exchange)
            if exchange is None:
                return False
            message, deaths = self._died(message, queue, reason, exchange, to)
            destination: Alternate = exchange
            if reason != REJECTED or is_kept:
                deaths = [] if reason == REJECTED else deaths
                destination = _WithoutCycles(self._router, exchange, deaths, to, is_kept=is_kept)
            try:
                put(message, destination)
            except QueueOverflowError as error:
                queue, reason = error.queue, MAXLEN
                if not error.is_dead or not isinstance(queue.dead_letter, QueueDeadLetter):
                    raise
                to = queue.dead_letter
            else:
                return True
        raise QueueOverflowError(f"{MAX_REFUSALS} full queues in a row have refused it", queue, is_dead=False)

    def _died(
        self, message: Message, queue: Queue, reason: str, exchange: Exchange, to: QueueDeadLetter
    ) -> tuple[Message, list[TypedMap]]:
        """The message as sent to an exchange, with the given key or its own ones, and the entries of its x-death.

        Making the headers takes some 30 µs; those of the next message are often the same
        (`tests/bench/bench_turns`).
        """
        now, likeness = int(self.now()), message.likeness
        case = (likeness, reason, queue.name, exchange.name, now)
        if likeness is not None and to.last_case == case:
            assert to.last_dead is not None
            return message.readdressed_as(to.last_dead), to.last_deaths
        dead, deaths = self._died_alone(message, queue, reason, exchange, to.routing_key, now)
        to.header_steps += max(0, dead.size - len(dead.body) - PLAIN_HEADER)
        if likeness is not None:
            to.last_case, to.last_dead, to.last_deaths = case, dead.bodiless(), deaths
        return dead, deaths

    @staticmethod
    def _died_alone(
        message: Message, queue: Queue, reason: str, exchange: Exchange, routing_key: str | None, now: int
    ) -> tuple[Message, list[TypedMap]]:
        properties = message.properties()
        headers = properties.headers
        has_further = bool(message.under_further_keys())
        shown = selected_keys(headers, CC) if has_further else ()
        keys = message.routing_key, *shown
        died = Death(reason, queue.name, message.exchange, keys, now, properties.ttl)
        changes, deaths = headers_after(headers, died)
        if has_further and routing_key is not None:
            changes |= {CC: None, BCC: None}
        key = message.routing_key if routing_key is None else routing_key
        return _readdressed(message, exchange.name, key, changes), deaths


def _readdressed(message: Message, exchange: str, key: str, changes: Changes) -> Message:
    """The message as sent to an exchange, with as many of the headers of its death as fit.

    Raises:
        InvalidArgumentError: it has no room for those that it needs, or it cannot be changed at all.
    """
    for shorter in SHORTER:
        try:
            return message.readdressed(exchange, key, changes)
        except HeaderTooLargeError as error:
            changes = shorter(changes, error.excess)
    return message.readdressed(exchange, key, changes)


class QueueDeadLetter:
    """Moves the dead messages of one queue.

    Attributes:
        exchange: name of the exchange.
        routing_key: their new key; None to keep their own.
        is_at_least_once: whether each of them stays on its queue until another one has it.
        header_steps: what it has cost so far to make long headers, as steps of an exchange.
        last_case, last_dead, last_deaths: a cache: the case for which headers were made last, a message with them, and
            the entries of its x-death.
    """

    __slots__ = (
        "_dropped", "_has_warned", "_letters", "_logged_at", "exchange", "header_steps", "is_at_least_once",
        "last_case", "last_dead", "last_deaths", "routing_key",
    )  # fmt: skip

    def __init__(self, letters: DeadLetters, exchange: str, routing_key: str | None, *, is_at_least_once: bool) -> None:
        self._letters, self.exchange, self.routing_key = letters, exchange, routing_key
        self.is_at_least_once = is_at_least_once
        self._has_warned, self._dropped, self._logged_at = False, 0, -_LOGGED_EVERY
        self.header_steps = 0
        self.last_case: Hashable = None
        self.last_dead: Message | None = None
        self.last_deaths: list[TypedMap] = []

    @property
    def steps(self) -> int:
        """Steps taken so far to route messages in its exchange, and to make their headers."""
        return self._letters.steps_of(self.exchange) + self.header_steps

    def reject(self, queue: Queue, entry: Entry, done: Done) -> None:
        """Move a message that a consumer has rejected.

        Args:
            queue: its queue.
            entry: the message.
            done: called when it has left its queue for good, or with the error that prevents it.

        Raises:
            ModelError: it cannot be moved, and is still acquired.
        """
        if self.is_at_least_once:
            self._letters.move_at_least_once(queue, entry, REJECTED, self, done)
            return
        try:
            self._letters.move(queue, entry, REJECTED, self, partial(self._rejected, queue, entry, done))
        except (QueueOverflowError, InvalidArgumentError) as error:
            self._letters.leave(queue, entry, done)
            self._was_dropped(queue, error)

    def _rejected(self, queue: Queue, entry: Entry, done: Done, error: Exception | None) -> None:
        """Drop a rejected message if a full queue has refused it in a later turn (`router.Fanout`)."""
        if isinstance(error, QueueOverflowError) and entry.state == ACQUIRED:
            self._letters.leave(queue, entry, done)
            self._was_dropped(queue, error)
        else:
            done(error)

    def _moved(self, queue: Queue, entry: Entry, error: Exception | None) -> None:
        """Likewise, drop one that has expired or was displaced; after another error it stays acquired."""
        if isinstance(error, ResourceLimitExceededError) and entry.state == ACQUIRED and not queue.is_deleted:
            with contextlib.suppress(InternalError):
                queue.dequeue(entry)
            self._was_dropped(queue, error)

    def expire(self, queue: Queue, entry: Entry) -> int:
        """Move a message that has expired; drop it if there is no room for it.

        Returns:
            The cost: 1, or the number of messages that could have been moved while it was routed.

        Raises:
            InternalError: it stays acquired, because a journal cannot be written.
        """
        if self.is_at_least_once:
            return self.try_again(queue, entry, EXPIRED)
        before = self.steps
        try:
            self._letters.move(queue, entry, EXPIRED, self, partial(self._moved, queue, entry))
        except (ResourceLimitExceededError, InvalidArgumentError) as error:
            queue.dequeue(entry)
            self._was_dropped(queue, error)
        return 1 + (self.steps - before) // STEPS_PER_MESSAGE

    def try_again(self, queue: Queue, entry: Entry, reason: str) -> int:
        """Move a message at least once. Returns the cost, as `expire`."""
        before = self.steps
        self._letters.move_at_least_once(queue, entry, reason, self, _ignore)
        return 1 + (self.steps - before) // STEPS_PER_MESSAGE

    def exceed(self, queue: Queue, entry: Entry) -> None:
        """Move a message that has returned too often; drop it if there is no room for it.

        Raises:
            InternalError: it stays acquired, because a journal cannot be written.
        """
        if self.is_at_least_once:
            self.try_again(queue, entry, DELIVERY_LIMIT)
            return
        try:
            self._letters.move(queue, entry, DELIVERY_LIMIT, self, partial(self._moved, queue, entry))
        except (ResourceLimitExceededError, InvalidArgumentError) as error:
            queue.dequeue(entry)
            self._was_dropped(queue, error)

    def overflow(self, queue: Queue, message: Message) -> None:
        """Send on a message that a full queue has refused; drop it if there is no room for it."""
        try:
            self._letters.refused(queue, message, self)
        except (ModelError, MemoryError) as error:
            self._was_dropped(queue, error)

    def displace(self, queue: Queue, entry: Entry) -> bool:
        """Move the oldest message of a full ring. Returns False if it is still acquired: there is no room for it."""
        try:
            self._letters.move(queue, entry, MAXLEN, self, partial(self._moved, queue, entry))
        except (ModelError, MemoryError) as error:
            self._was_dropped(queue, error)
            return False
        return True

    def _was_dropped(self, queue: Queue, error: Exception) -> None:
        """Log, at intervals, that messages which cannot be sent there are dropped."""
        self._dropped += 1
        now = self._letters.monotonic()
        if now - self._logged_at >= _LOGGED_EVERY:
            self._logged_at = now
            text = 'Queue "%s": %s dropped that cannot be sent to the dead-letter exchange "%s": %s'
            count = self._dropped
            _LOG.warning(
                text, queue.name, "1 message was" if count == 1 else f"{count} messages were", self.exchange, error
            )
            self._dropped = 0

    def log_kept(self, queue: Queue, error: Exception) -> None:
        """Log, at intervals, that a message stays because it cannot be sent there."""
        now = self._letters.monotonic()
        if now - self._logged_at >= _LOGGED_EVERY:
            self._logged_at = now
            text = 'Queue "%s": dead messages stay until the dead-letter exchange "%s" takes them: %s'
            _LOG.warning(text, queue.name, self.exchange, error)

    def found_cycle(self, queue: Queue) -> None:
        """Log once that messages which would return to `queue` in a cycle are dropped."""
        if not self._has_warned:
            self._has_warned = True
            text = 'Queue "%s": messages that return to it in a cycle of dead-letter exchanges, by "%s", are dropped'
            _LOG.warning(text, queue.name, self.exchange)


class _WithoutCycles:
    """An exchange without the queues that a message would reach in a cycle.

    Args:
        router: routes, also by alternate exchanges.
        exchange: the exchange.
        deaths: the message's deaths.
        to: logs cycles.
        is_kept: whether the message must not be dropped.
    """

    __slots__ = ("_deaths", "_exchange", "_is_kept", "_router", "_to", "alternate", "name")

    def __init__(
        self, router: Router, exchange: Exchange, deaths: Sequence[TypedMap], to: QueueDeadLetter, *, is_kept: bool
    ) -> None:
        self._router, self._exchange, self._deaths, self._to = router, exchange, deaths, to
        self._is_kept = is_kept
        self.name = exchange.name
        self.alternate: Alternate | None = None  # already considered by `route`

    @property
    def steps(self) -> int:
        """The exchange's."""
        return self._exchange.steps

    def route(self, message: Message) -> Routed:
        """The queues for a message. Raises NotFoundError if it must not be dropped, and there is none."""
        route = self._router.route(message, self._exchange)
        queues: list[Queue] = []
        for queue in route.queues:
            if is_cycle(queue.name, self._deaths):
                self._to.found_cycle(queue)
            else:
                queues.append(queue)
        if self._is_kept and not queues:
            raise NotFoundError(f'exchange "{self.name}" has no queue for routing key "{message.routing_key}"')
        return route if len(queues) == len(route.queues) else _Fewer(route, queues)


class _Fewer:
    """A route with fewer queues, which is counted like the whole one."""

    __slots__ = ("_route", "queues")

    def __init__(self, route: Routed, queues: Sequence[Queue]) -> None:
        self._route, self.queues = route, queues

    def count(self, size: int) -> None:
        """Count a message of `size` bytes."""
        self._route.count(size)


def _ignore(_error: Exception | None) -> None:
    """Nothing to do: what cannot be moved was noted before."""


# ---- the headers of a death ----


class Death(NamedTuple):
    """One death of a message.

    Attributes:
        reason: REJECTED, EXPIRED or MAXLEN.
        queue, exchange, routing_keys: its queue, and the exchange and keys that it was published with.
        time: seconds since 1970.
        ttl: its own time to live in milliseconds; None if it had none.
    """

    reason: str
    queue: str
    exchange: str
    routing_keys: tuple[str, ...]
    time: int
    ttl: int | None = None


def deaths_of(headers: TypedMap) -> list[TypedMap]:
    """The entries of x-death, the latest first."""
    typed = headers.get(X_DEATH)
    if typed is None or not isinstance(typed.value, tuple):
        return []
    return [each.value for each in typed.value if isinstance(each, TypedValue) and isinstance(each.value, TypedMap)]


def headers_after(headers: TypedMap, death: Death) -> tuple[Changes, list[TypedMap]]:
    """The headers to set when a message dies, and the entries of its x-death then."""
    before = deaths_of(headers)
    alike = [each for each in before if _is_at(each, death.queue) and _text(each, "reason") == death.reason]
    latest = _again(alike[0], death.time) if alike else _entry(death)
    deaths = [latest, *(each for each in before if each not in alike)]
    changes = _with_deaths({}, deaths)
    if not before:
        changes |= _named("first", death)
    return changes | _named("last", death), deaths


def with_own_keys(changes: Changes, _excess: int) -> Changes:
    """The same headers, but only the first routing key of each death, without those of CC."""
    return _with_deaths(changes, [_with_first_key(each) for each in _deaths_in(changes)])


def without_oldest(changes: Changes, excess: int) -> Changes:
    """The same headers without the oldest deaths: enough of them to save `excess` bytes, if possible.

    The latest rejection and those after it stay.
    """
    deaths = _deaths_in(changes)
    reasons = [_text(each, "reason") for each in deaths]
    least = reasons.index(REJECTED) + 1 if REJECTED in reasons else len(deaths)
    while excess > 0 and len(deaths) > least:
        excess -= _least_size(deaths.pop())
    return _with_deaths(changes, deaths)


def without_deaths(changes: Changes, _excess: int) -> Changes:
    """None of these headers, if the latest death is a rejection, which ends any automatic cycle."""
    deaths = _deaths_in(changes)
    if not deaths or _text(deaths[0], "reason") != REJECTED:
        return changes
    return dict.fromkeys(changes)


SHORTER: Final[tuple[Callable[[Changes, int], Changes], ...]] = (with_own_keys, without_oldest, without_deaths)
"""Make the headers of a death shorter, one after the other.

Args:
    changes: the headers to set, and those to remove.
    excess: bytes by which the message's header is too long.
"""


def _deaths_in(changes: Changes) -> list[TypedMap]:
    return deaths_of(TypedMap(tuple((name, each) for name, each in changes.items() if each is not None)))


def _with_deaths(changes: Changes, deaths: Iterable[TypedMap]) -> Changes:
    return {**changes, X_DEATH: TypedValue(LIST, tuple(TypedValue(MAP, each) for each in deaths))}


def _with_first_key(entry: TypedMap) -> TypedMap:
    return TypedMap(tuple((name, _first(typed) if name == _KEYS else typed) for name, typed in entry.entries))


def _first(typed: TypedValue) -> TypedValue:
    return TypedValue(LIST, typed.value[:1]) if isinstance(typed.value, tuple) else typed


def _least_size(entry: TypedMap) -> int:
    """A lower bound of an entry's encoded bytes: those of its names and strings."""
    texts = [typed.value for _, typed in entry.entries if isinstance(typed.value, (str, bytes))]
    return sum(2 + len(each) for each in (*texts, *entry))


def is_cycle(queue: str, deaths: Iterable[TypedMap]) -> bool:
    """Whether a message with these deaths has returned to a queue without having been rejected."""
    for each in deaths:
        if _text(each, "reason") == REJECTED:
            return False
        if _is_at(each, queue):
            return True
    return False


def _named(which: str, death: Death) -> Changes:
    values = {"reason": death.reason, "queue": death.queue, "exchange": death.exchange}
    return {f"x-{which}-death-{name}": TypedValue(STR16, value) for name, value in values.items()}


def _entry(death: Death) -> TypedMap:
    entries = [
        ("count", TypedValue(INT64, 1)),
        ("reason", TypedValue(STR16, death.reason)),
        ("queue", TypedValue(STR16, death.queue)),
        ("time", TypedValue(_DATETIME, death.time)),
        ("exchange", TypedValue(STR16, death.exchange)),
        (_KEYS, TypedValue(LIST, tuple(TypedValue(STR16, key) for key in death.routing_keys))),
    ]
    if death.ttl is not None:
        entries.append((TTL, TypedValue(STR16, str(death.ttl))))
    return TypedMap(tuple(entries))


def _again(entry: TypedMap, time: int) -> TypedMap:
    """An entry with one more death, at a time."""
    typed, first = entry.get("count"), entry.get("time")
    count = typed.value if typed is not None and isinstance(typed.value, int) else 1
    entries = [("count", TypedValue(INT64, min(max(count, 0), (1 << 63) - 2) + 1))]
    entries += [each for each in entry.entries if each[0] not in ("count", LAST_TIME)]
    if first is None or first.value != time:
        entries.append((LAST_TIME, TypedValue(_DATETIME, time)))
    return TypedMap(tuple(entries))


def _is_at(entry: TypedMap, queue: str) -> bool:
    return _text(entry, "queue") == queue


def _text(entry: TypedMap, name: str) -> str | None:
    typed = entry.get(name)
    if typed is None:
        return None
    value = typed.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None
