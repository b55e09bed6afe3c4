"""What every protocol does with published messages: the checks, of which most need none; and those not done at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.flow_control import HeldTransfers

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

_REMEMBERED: Final = 2048


class PublishChecks(ABC):
    """The checks of one connection's messages.

    Args:
        checks_user_ids: whether a message's user id must be the user's own.
        checks_publish: whether the broker's authorizer checks each message.

    Attributes:
        checks_user_ids, checks_publish: as above.
        allowed: exchanges and routing keys to which the user may publish, as long as the rules do not change.
        has_rare: whether messages need any check: of the user id, by the authorizer, of memory (`watch_memory`), of a
            flag that few messages have (`has_flags`), or whether they are sampled (`trace_by`).
        is_memory_short: whether memory is short, so that each message must be checked against the ceiling.
        has_published: whether a message was published since then.
        has_flags: whether a message with a flag that has to be checked was received.
        tracer: traces sampled messages; None for none.
    """

    __slots__ = (
        "allowed", "checks_publish", "checks_user_ids", "has_flags", "has_published", "has_rare", "is_memory_short",
        "tracer",
    )  # fmt: skip

    def __init__(self, *, checks_user_ids: bool, checks_publish: bool) -> None:
        self.checks_user_ids, self.checks_publish = checks_user_ids, checks_publish
        self.allowed: set[tuple[str, str]] = set()
        self.is_memory_short = self.has_published = self.has_flags = False
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
            user_id = self.user_id_of(message)
            if user_id and user_id not in (caller.user, caller.user.rpartition("@")[0]):
                raise self.foreign_user_id(user_id, caller.user)
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

    def covers(self, message: Message) -> bool:
        """Whether messages that differ in nothing but the body from one that was checked need no `check`."""
        if self.is_memory_short or self.checks_user_ids or self.has_flags:
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

    def trace_by(self, tracer: Tracer | None) -> None:
        """Have sampled messages traced."""
        self.tracer = tracer
        self._update()

    def _update(self) -> None:
        checks = self.checks_user_ids or self.checks_publish
        self.has_rare = checks or self.is_memory_short or self.has_flags or self.tracer is not None


class HeldMessages:
    """The messages of one publisher that the router has left undone: its number waits in the completion ledger.

        stopped queues    flow control is on: it waits until they have drained
        fanout            the message is put on many queues in turns: it waits for that, and so does later input

    Args:
        broker: the model.
        ledger: the publisher's numbers.
        wait_for: pauses the publisher's input until an owner's work in turns is done.
        done: called with a number when its message is done, or with the error if it is refused.
    """

    __slots__ = ("_broker", "_done", "_is_dropped", "_ledger", "_transfers", "_wait_for")

    def __init__(
        self,
        broker: Broker,
        ledger: CompletionLedger,
        wait_for: Callable[[object], None],
        done: Callable[[int, Exception | None], None],
    ) -> None:
        self._broker, self._ledger, self._wait_for, self._done = broker, ledger, wait_for, done
        self._transfers = HeldTransfers(done)
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
