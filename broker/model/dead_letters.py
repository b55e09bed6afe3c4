"""Dead-letter exchanges: where messages go that are rejected, expire, are displaced from a ring, or have no room.

    x-dead-letter-exchange       the exchange, looked for when a message dies; a missing one drops the message
    x-dead-letter-routing-key    the routing key that the message gets; by default it keeps its own

The message is addressed to that exchange, does not expire any more, and its headers tell of its death
(`death_headers`). It is moved as to an alternate exchange (`router`): it leaves its queue when it is on the disk where
it goes. A crash in between leaves it at both places, never at none. Queues that it would reach in an automatic cycle do
not get it. The alternate exchange of a queue gets its messages only when the queue is deleted, if it has a dead-letter
exchange as well.

    no room there    a message is dropped, and the log says so. But if the full queue asks for that, it goes on to where
                     its own dead letters go (`MAX_REFUSALS`); and where nobody has asked for x-overflow, one that was
                     rejected stays, and its consumer is told
    a failed disk    the message stays on its queue, and is there after the next start

Source: RabbitMQ, "Dead Letter Exchanges".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.death_headers import (
    EXPIRED,
    MAXLEN,
    REJECTED,
    SHORTER,
    Changes,
    Death,
    headers_after,
    is_cycle,
)
from qstore.broker.model.errors import (
    HeaderTooLargeError,
    InvalidArgumentError,
    ModelError,
    QueueOverflowError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Alternate, Routed
from qstore.broker.model.exchanges.topic_index import STEPS_PER_MESSAGE
from qstore.broker.model.message import Message
from qstore.broker.model.queues.entry import ACQUIRED, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.sender_keys import BCC, CC, selected_keys
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick

_LOG: Final = log_of("Model")

_TOLD_EVERY: Final = 60.0  # seconds

MAX_REFUSALS: Final = 32
"""Full queues that refuse a dead message one after the other; each makes its headers longer."""

Done = Callable[[Exception | None], None]
Put = Callable[[Message, Alternate], None]


class DeadLetters:
    """Moves the dead messages of one broker.

    Args:
        exchanges: name -> exchange.
        router: moves messages.
        tick: of the broker.
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.

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
    ) -> None:
        self._exchanges, self._router, self._tick = exchanges, router, tick
        self.now, self.monotonic = clock, monotonic

    def to(self, exchange: str, routing_key: str | None) -> QueueDeadLetter:
        """What a queue does with its dead messages that has these arguments; None for the message's own key."""
        return QueueDeadLetter(self, exchange, routing_key)

    def steps_of(self, exchange: str) -> int:
        """How many steps finding the queues for messages has taken so far in an exchange; 0 if there is none."""
        found = self._exchanges.get(exchange)
        return 0 if found is None else found.steps

    def move(self, queue: Queue, entry: Entry, reason: str, to: QueueDeadLetter, done: Done) -> None:
        """Move an acquired message to an exchange, with the headers of its death.

        Args:
            queue: its queue.
            entry: the message.
            reason: of its death.
            to: where it goes.
            done: called when it has left its queue for good, or with the error that prevents it.

        Raises:
            InvalidArgumentError: its headers have no room for what has to be told of its death.
            ModelError: see `Router.publish`. Then it is still acquired.
        """
        if entry.state != ACQUIRED:  # it is on its way, or gone
            self._router.move(queue, entry, self._exchanges[""], done)
            return
        put = partial(self._move_to, queue, entry, done)
        if not self._send(entry.message.whole(), queue, reason, to, put):
            self.leave(queue, entry, done)

    def leave(self, queue: Queue, entry: Entry, done: Done) -> None:
        """A dead message leaves its queue, and goes nowhere."""
        if queue.dequeue(entry):
            self._tick.when_synced(done)
        else:
            done(None)

    def _move_to(self, queue: Queue, entry: Entry, done: Done, dead: Message, destination: Alternate) -> None:
        self._router.move(queue, entry, destination, done, dead)

    def refused(self, queue: Queue, message: Message, to: QueueDeadLetter) -> None:
        """Put a message that a full queue has refused on the queues of an exchange, with the headers of its death.

        Raises:
            ModelError, MemoryError: it is on no queue.
        """
        self._send(message, queue, MAXLEN, to, self._put)

    def _put(self, dead: Message, destination: Alternate) -> None:
        route = self._router.route(dead, destination)
        self._router.put(dead, route.queues)
        self._router.count(dead, route)

    def _send(self, message: Message, queue: Queue, reason: str, to: QueueDeadLetter, put: Put) -> bool:
        """Put a dead message where it goes; from a full queue that asks for that it goes on, with one more death.

        Args:
            message: the message as it died.
            queue: where it died.
            reason: of its death.
            to: where it goes.
            put: puts it on the queues of an exchange, or raises an error.

        Returns:
            False if there is no such exchange.

        Raises:
            ModelError, MemoryError: it is on no queue.
        """
        for _ in range(MAX_REFUSALS):
            exchange = self._exchanges.get(to.exchange)
            if exchange is None:
                return False
            message, deaths = self._died(message, queue, reason, exchange, to)
            destination: Alternate = exchange
            if reason != REJECTED:
                destination = _WithoutCycles(self._router, exchange, deaths, to)
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
        """The message as it goes to an exchange, with that key or its own ones, and the entries of its x-death.

        It costs some 30 microseconds to make the headers of one; those of the next are often the same
        (`tests/bench/bench_turns`).
        """
        now, likeness = int(self.now()), message.likeness
        case = (likeness, reason, queue.name, exchange.name, now)
        if likeness is not None and to.last_case == case:
            assert to.last_dead is not None
            return message.readdressed_as(to.last_dead), to.last_deaths
        dead, deaths = self._died_alone(message, queue, reason, exchange, to.routing_key, now)
        if likeness is not None:
            to.last_case, to.last_dead, to.last_deaths = case, dead.bodiless(), deaths
        return dead, deaths

    @staticmethod
    def _died_alone(
        message: Message, queue: Queue, reason: str, exchange: Exchange, routing_key: str | None, now: int
    ) -> tuple[Message, list[TypedMap]]:
        headers = message.headers()
        has_further = bool(message.under_further_keys())
        shown = selected_keys(headers, CC) if has_further else ()
        keys = message.routing_key, *shown
        died = Death(reason, queue.name, message.exchange, keys, now, message.properties().ttl)
        changes, deaths = headers_after(headers, died)
        if has_further and routing_key is not None:
            changes |= {CC: None, BCC: None}
        key = message.routing_key if routing_key is None else routing_key
        return _readdressed(message, exchange.name, key, changes), deaths


def _readdressed(message: Message, exchange: str, key: str, changes: Changes) -> Message:
    """The message as it goes to an exchange, with as many of the headers of its death as there is room for.

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
    """Where the dead messages of one queue go.

    Attributes:
        exchange: name of the exchange.
        routing_key: the key that they get; None for their own.
        last_case, last_dead, last_deaths: of which messages the headers were made last, one of them as it has left, and
            the entries of its x-death.
    """

    __slots__ = (
        "_dropped", "_has_warned", "_letters", "_told_at", "exchange", "last_case", "last_dead", "last_deaths",
        "routing_key",
    )  # fmt: skip

    def __init__(self, letters: DeadLetters, exchange: str, routing_key: str | None) -> None:
        self._letters, self.exchange, self.routing_key = letters, exchange, routing_key
        self._has_warned, self._dropped, self._told_at = False, 0, -_TOLD_EVERY
        self.last_case: Hashable = None
        self.last_dead: Message | None = None
        self.last_deaths: list[TypedMap] = []

    @property
    def steps(self) -> int:
        """As of `DeadLetter`."""
        return self._letters.steps_of(self.exchange)

    def reject(self, queue: Queue, entry: Entry, done: Done) -> None:
        """As `DeadLetter.reject`."""
        try:
            self._letters.move(queue, entry, REJECTED, self, done)
        except (QueueOverflowError, InvalidArgumentError) as error:
            self._letters.leave(queue, entry, done)
            self._was_dropped(queue, error)

    def expire(self, queue: Queue, entry: Entry) -> int:
        """As `DeadLetter.expire`."""
        before = self.steps
        try:
            self._letters.move(queue, entry, EXPIRED, self, _ignore)
        except (ResourceLimitExceededError, InvalidArgumentError) as error:
            queue.dequeue(entry)
            self._was_dropped(queue, error)
        return 1 + (self.steps - before) // STEPS_PER_MESSAGE

    def overflow(self, queue: Queue, message: Message) -> None:
        """As `DeadLetter.overflow`."""
        try:
            self._letters.refused(queue, message, self)
        except (ModelError, MemoryError) as error:
            self._was_dropped(queue, error)

    def displace(self, queue: Queue, entry: Entry) -> bool:
        """As `DeadLetter.displace`."""
        try:
            self._letters.move(queue, entry, MAXLEN, self, _ignore)
        except (ModelError, MemoryError) as error:
            self._was_dropped(queue, error)
            return False
        return True

    def _was_dropped(self, queue: Queue, error: Exception) -> None:
        """A message is dropped that cannot go there: this is logged now and then."""
        self._dropped += 1
        now = self._letters.monotonic()
        if now - self._told_at >= _TOLD_EVERY:
            self._told_at = now
            text = 'Queue "%s": %s dropped, which cannot go to the dead-letter exchange "%s": %s'
            count = self._dropped
            _LOG.warning(
                text, queue.name, "1 message was" if count == 1 else f"{count} messages were", self.exchange, error
            )
            self._dropped = 0

    def found_cycle(self, queue: Queue) -> None:
        """A message has come back to `queue`, and does not get there: this is logged once."""
        if not self._has_warned:
            self._has_warned = True
            text = 'Queue "%s": messages are dropped that come back to it in a cycle of dead-letter exchanges, by "%s"'
            _LOG.warning(text, queue.name, self.exchange)


class _WithoutCycles:
    """An exchange, without the queues that a message would reach in a cycle.

    Args:
        router: asks the alternate exchange, too.
        exchange: the exchange.
        deaths: of the message.
        to: is told of cycles.
    """

    __slots__ = ("_deaths", "_exchange", "_router", "_to", "alternate", "name")

    def __init__(self, router: Router, exchange: Exchange, deaths: Sequence[TypedMap], to: QueueDeadLetter) -> None:
        self._router, self._exchange, self._deaths, self._to = router, exchange, deaths, to
        self.name = exchange.name
        self.alternate: Alternate | None = None  # `route` has asked it

    @property
    def steps(self) -> int:
        """As of the exchange."""
        return self._exchange.steps

    def route(self, message: Message) -> Routed:
        """The queues for a message."""
        route = self._router.route(message, self._exchange)
        queues: list[Queue] = []
        for queue in route.queues:
            if is_cycle(queue.name, self._deaths):
                self._to.found_cycle(queue)
            else:
                queues.append(queue)
        return route if len(queues) == len(route.queues) else _Fewer(route, queues)


class _Fewer:
    """A route with fewer queues, which counts as the whole one."""

    __slots__ = ("_route", "queues")

    def __init__(self, route: Routed, queues: Sequence[Queue]) -> None:
        self._route, self.queues = route, queues

    def count(self, size: int) -> None:
        """Count a message of `size` bytes."""
        self._route.count(size)


def _ignore(_error: Exception | None) -> None:
    """A message that cannot leave its queue stays acquired, and is there after the next start."""
