"""What every protocol does with published messages: checks, of which most need none; rates; those not done at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.model.events import PublisherHeld, PublisherReleased
from qstore.broker.model.queues.flow_control import HeldTransfers
from qstore.broker.model.run import MIN_RUN

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.completion import CompletionLedger
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.flow_control import Stop
    from qstore.broker.model.router import Fanout
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.tracing import Tracer
    from qstore.formats.kernels.bodies import Bodies

_REMEMBERED: Final = 2048

_BURST: Final = 300
"""Messages that a session may publish at once, unless its rate is lower: the first credit of qpidd."""

_BURST_SECONDS: Final = 0.1
"""The burst of higher rates, in seconds of the rate: it must outlast a delay of the timer."""

_PAUSE_SECONDS: Final = 0.01
"""The shortest pause of input, but for very high rates."""

_TIMER_SECONDS: Final = 0.001
"""The shortest wait for credit: timers are no finer, and rounding must not make one of no length."""


class PublishChecks:
    """The checks of one connection's messages.

    Args:
        checks_user_ids: whether a message's user id must be the user's own.
        checks_publish: whether the broker's authorizer checks each message.

    Attributes:
        checks_user_ids, checks_publish: as above.
        allowed: exchanges and routing keys to which the user may publish, as long as the rules do not change.
        has_rare: whether messages need any check: of the user id, by the authorizer, of memory (`watch_memory`), of a
            flag that few messages have (`has_flags`), of the rate (`limit_rate`), or whether they are sampled
            (`trace_by`).
        is_memory_short: whether memory is short, so that each message must be checked against the ceiling.
        has_published: whether a message was published since then.
        has_flags: whether a message with a flag that has to be checked was received.
        has_rates: whether its sessions have a `SessionRate`.
        tracer: traces sampled messages; None for none.
    """

    __slots__ = (
        "allowed", "checks_publish", "checks_user_ids", "has_flags", "has_published", "has_rare", "has_rates",
        "is_memory_short", "tracer",
    )  # fmt: skip

    def __init__(self, *, checks_user_ids: bool, checks_publish: bool) -> None:
        self.checks_user_ids, self.checks_publish = checks_user_ids, checks_publish
        self.allowed: set[tuple[str, str]] = set()
        self.is_memory_short = self.has_published = self.has_flags = self.has_rates = False
        self.has_rare = checks_user_ids or checks_publish
        self.tracer: Tracer | None = None

    @abstractmethod
    def user_id_of(self, message: Message) -> str | None:
        """The user id of a message that was just read; None or empty if it has none."""

    @abstractmethod
    def foreign_user_id(self, user_id: str, user: str) -> Exception:
        """The error for a message whose user id is not the user's own."""

    def check(
        self, message: Message, exchange: Exchange, broker: Broker, caller: Caller, *, in_transaction: bool
    ) -> None:
        """Check a message, if `has_rare`.

        Raises:
            ModelError, or the protocol's own error: it must not be published.
        """
        if self.is_memory_short and (exchange.receiver is None or not exchange.receiver.keeps_nothing(message)):
            self.has_published = True
            broker.check_memory(message, exchange, in_transaction=in_transaction)
        if self.checks_user_ids:
            self.check_user_id(message, caller)
        if self.checks_publish:
            further = [each.routing_key for each in message.under_further_keys()]
            for key in (message.routing_key, *further):
                target = message.exchange, key
                if target not in self.allowed and broker.authorization.check_publish(caller, *target):
                    if len(self.allowed) >= _REMEMBERED:
                        self.allowed.clear()
                    self.allowed.add(target)
        if self.tracer is not None and self.tracer.samples(message):
            self.tracer.published(message, exchange, caller)

    def check_user_id(self, message: Message, caller: Caller) -> None:
        """Raise ModelError, or the protocol's own error, if a message has the id of another user."""
        user_id = self.user_id_of(message)
        if user_id and user_id not in (caller.user, caller.user.rpartition("@")[0]):
            raise self.foreign_user_id(user_id, caller.user)

    def covers(self, message: Message) -> bool:
        """Whether messages that differ in nothing but the body from one that was checked need no `check`.

        Those with a user id are always checked, since the message that they are like may have been refused for it.
        """
        if self.is_memory_short or self.has_flags or (self.checks_user_ids and self.user_id_of(message)):
            return False
        if self.tracer is not None and self.tracer.samples(message):
            return False
        return not self.checks_publish or (message.exchange, message.routing_key) in self.allowed

    def trust_user_ids(self) -> None:
        """Accept messages with any user id: they are those of another broker's users, which has checked them."""
        self.checks_user_ids = False
        self._update()

    def watch_rules(self, *, checks_publish: bool) -> None:
        """Handle a change of the authorizer's rules, which may or may not check messages."""
        self.allowed.clear()
        self.checks_publish = checks_publish
        self._update()

    def watch_memory(self, *, is_short: bool) -> None:
        """Set whether memory is short."""
        self.is_memory_short, self.has_published = is_short, False
        self._update()

    def watch_flags(self) -> None:
        """Check messages for flags: one with a flag that has to be checked was received."""
        self.has_flags = self.has_rare = True

    def limit_rate(self) -> None:
        """Have each message counted by its session."""
        self.has_rates = self.has_rare = True

    def trace_by(self, tracer: Tracer | None) -> None:
        """Have sampled messages traced."""
        self.tracer = tracer
        self._update()

    def _update(self) -> None:
        checks = self.checks_user_ids or self.checks_publish or self.has_rates
        self.has_rare = checks or self.is_memory_short or self.has_flags or self.tracer is not None


def tell_held(broker: Broker, caller: Caller, queue: str) -> None:
    """Emit that a publisher waits for a queue, or if the name is empty, that it does not wait any more."""
    broker.events.emit(PublisherHeld(queue) if queue else PublisherReleased(), caller)


class Throttled(Protocol):
    """A connection whose input can be paused."""

    def pause(self) -> None:
        """Buffer input until `unpause` was called as many times."""

    def unpause(self) -> None:
        """Undo one call of `pause`."""


class SessionRate:
    """How many messages a second one session may publish: a token bucket.

        reading    a session without tokens pauses the input of its connection until it has some again. Input in front
                   of which messages wait is delayed as well, whatever its channel
        credit     a client of AMQP 0-10 that announces `qpid.session_flow` gets its tokens in advance, as the credit of
                   message.flow for the empty destination, and waits by itself; its other input is not delayed. If it
                   exceeds the credit, its input is paused as well

    Args:
        rate: messages a second, at least 1.
        monotonic: seconds of a monotonic clock.
        call_later: schedules a function after a delay in seconds.

    Attributes:
        rate: as above.

    Source: qpidd before 0.15, `RateFlowcontrol` and `SessionState`.
    """

    __slots__ = (
        "_burst", "_call_later", "_credit", "_give", "_is_timed", "_monotonic", "_pause", "_since", "_tokens", "rate",
    )  # fmt: skip

    def __init__(
        self,
        rate: int,
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.rate, self._monotonic, self._call_later = rate, monotonic, call_later
        self._burst = max(1, min(rate, _BURST), int(rate * _BURST_SECONDS))
        self._pause = max(1.0, min(self._burst / 2, rate * _PAUSE_SECONDS))  # tokens that end a pause
        self._tokens, self._since = float(self._burst), monotonic()
        self._credit = 0  # tokens that the client has
        self._give: Callable[[int], None] | None = None
        self._is_timed = False  # whether credit is given by a timer

    @property
    def credit(self) -> int:
        """Messages that may be published now: the client has credit for them, or they would not pause the input."""
        return self._credit + max(0, int(self._refilled()))

    def limited(self, bodies: Bodies) -> Bodies | None:
        """The first ones of a run that may be published now; None if they are too few for a run."""
        count = self.credit
        return None if count < MIN_RUN else bodies if count >= bodies.count else bodies.beginning(count)

    def take(self, count: int, connection: Throttled) -> None:
        """Count messages that were received over a connection."""
        given = min(count, self._credit)
        self._credit -= given
        tokens = self._tokens = self._refilled() - (count - given)
        if self._give is not None:
            self._give_credit()
        if tokens < 1 and (given < count or self._give is None):
            connection.pause()
            self._call_later((self._pause - tokens) / self.rate, connection.unpause)

    def begin_credit(self, give: Callable[[int], None]) -> None:
        """Give the client its messages as credit; `give` is called with numbers of messages."""
        self._tokens, self._credit = min(self._burst, self._refilled() + self._credit), 0
        self._give = give
        self._give_credit()

    def end_credit(self) -> None:
        """The client is gone: credit is kept for the session."""
        self._tokens, self._credit = min(self._burst, self._refilled() + self._credit), 0
        self._give = None

    def _refilled(self) -> float:
        """The tokens that there are now."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self.rate)
        self._since = now
        return self._tokens

    def _give_credit(self) -> None:
        """Give credit if the client has used half of it: at once if there is enough, or later."""
        if self._give is None or 2 * self._credit > self._burst:
            return
        tokens, least = self._refilled(), max(1, self._burst // 4)
        if tokens >= least:
            count = int(tokens)
            self._tokens -= count
            self._credit += count
            self._give(count)
        elif not self._is_timed:
            self._is_timed = True
            self._call_later(max((least - tokens) / self.rate, _TIMER_SECONDS), self._ring)

    def _ring(self) -> None:
        self._is_timed = False
        self._give_credit()


class HeldMessages:
    """The messages of one publisher that the router has left undone: its number waits in the completion ledger.

        stopped queues    flow control is on: it waits until they have drained
        fanout            the message is put on many queues in turns: it waits for that, and so does later input

    Args:
        broker: the model.
        ledger: the publisher's numbers.
        wait_for: pauses the publisher's input until an owner's work in turns is done.
        done: called with a number when its message is done, or with the error if it is refused.
        caller: the publisher.
    """

    __slots__ = ("_broker", "_done", "_is_dropped", "_ledger", "_transfers", "_wait_for")

    def __init__(
        self,
        broker: Broker,
        ledger: CompletionLedger,
        wait_for: Callable[[object], None],
        done: Callable[[int, Exception | None], None],
        caller: Caller,
    ) -> None:
        self._broker, self._ledger, self._wait_for, self._done = broker, ledger, wait_for, done
        self._transfers = HeldTransfers(done, partial(tell_held, broker, caller))
        self._is_dropped = False

    def hold(self, number: int, *, is_stored: bool) -> None:
        """Hold the number of the message that the router has just published.

        Args:
            number: the number.
            is_stored: whether records may have been written for it.
        """
        router = self._broker.router
        stops, fanout = router.stops, router.take_fanout()
        self._ledger.postpone(number)
        if fanout is not None:
            self._wait_for(router)
            fanout.when_done(partial(self._fanned_out, number, fanout))
        else:
            self._hold(number, stops, self._broker.tick if is_stored else None)
        stops.clear()

    def _hold(self, number: int, stops: list[Stop], tick: Tick | None) -> None:
        self._transfers.hold(number, stops, tick)

    def _fanned_out(self, number: int, fanout: Fanout, error: Exception | None) -> None:
        """A message is on its many queues, or cannot be put on all of them."""
        if self._is_dropped:
            return
        if error is None and fanout.stops:
            self._hold(number, fanout.stops, None)
        else:
            self._done(number, error)

    def drop(self) -> None:
        """Forget all of them: the publisher has gone."""
        self._is_dropped = True
        self._transfers.drop()
