"""The recent-history exchange: routes to all bound queues, and offers its latest messages to each new binding.

    x-recent-history-length      argument of the exchange: how many messages it keeps, 20 by default
    x-recent-history-no-store    header of a message with the value true: it is routed, and not kept

They are kept on a queue of the exchange's own (`history_name`), a ring: a message is put there in the same step as on
the queues that it is routed to, and in a transaction with it. The queue of a durable exchange is durable: what is
persistent survives a restart, and is confirmed when it is on the disk. No client can use it, and it ends with the
exchange. Only messages that a client publishes to the exchange are kept, also those that no queue gets.

A new binding is offered what is kept, the oldest first, before any later message. Exchanges cannot be bound to it, nor
it to them.

Source: the plug-in rabbitmq_recent_history_exchange (behaviour), where the history ends with the broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from qstore.broker.model.arguments import HISTORY_LENGTH, INITIAL_VALUE, SEQUENCE, is_switched_on, shown
from qstore.broker.model.errors import InternalError, InvalidArgumentError
from qstore.broker.model.exchanges.exchange import SentMessages
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.queues.due import HISTORY
from qstore.formats.values import INT64, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue

RECENT_HISTORY: Final = "x-recent-history"
NO_STORE: Final = "x-recent-history-no-store"

LENGTH: Final = 20
MAX_LENGTH: Final = 500
"""Messages that can be kept: offering them to a binding takes some 10 ms, in turns."""

_MAX_NAME: Final = 255  # bytes


class History(SentMessages):
    """The messages that one exchange keeps.

    Args:
        arguments: the exchange's.

    Attributes:
        queue: where they are; None until it is made.
    """

    __slots__ = ("queue",)

    def __init__(self, arguments: TypedMap) -> None:
        numbers, keeps_last = is_switched_on(arguments, SEQUENCE), is_switched_on(arguments, INITIAL_VALUE)
        super().__init__(numbers=numbers, keeps_last=keeps_last)
        self.queue: Queue | None = None

    def keeping(self, message: Message, queues: Sequence[Queue]) -> Sequence[Queue]:
        """As `SentMessages.keeping`: the queue of the history, too."""
        if self.queue is None or self.queue.is_deleted:
            return queues
        typed = message.headers().get(NO_STORE)
        return queues if typed is not None and typed.value is True else (*queues, self.queue)

    def offered(self, after: int = -1) -> Iterator[tuple[int, Message]]:
        """As `SentMessages.offered`; a message that cannot be read from the disk is missing."""
        for entry in () if self.queue is None else self.queue.available():
            if entry.position > after:
                with contextlib.suppress(InternalError):
                    yield entry.position, entry.message.whole()


class RecentHistoryExchange(FanoutExchange):
    """An exchange of type x-recent-history.

    Attributes:
        history: what it keeps.
    """

    kind: ClassVar[str] = RECENT_HISTORY
    routes_as: ClassVar[str] = "fanout"

    __slots__ = ("history",)

    def _set_up(self) -> None:
        super()._set_up()
        self.sent = self.history = History(self.arguments)
        self.look_again()


def recent_history_type(arguments: TypedMap) -> type[Exchange]:
    """The class of an exchange with these arguments. Raises InvalidArgumentError: they are not valid."""
    length_in(arguments)
    return RecentHistoryExchange


def length_in(arguments: TypedMap) -> int:
    """How many messages an exchange with these arguments keeps. Raises InvalidArgumentError."""
    typed = arguments.get(HISTORY_LENGTH)
    if typed is None:
        return LENGTH
    length = typed.value
    if not isinstance(length, int) or isinstance(length, bool) or not 0 < length <= MAX_LENGTH:
        raise InvalidArgumentError(f"{HISTORY_LENGTH} is {shown(length)}, not a number from 1 to {MAX_LENGTH}")
    return length


def history_name(exchange: str) -> str:
    """The name of the queue of an exchange. Raises InvalidArgumentError: it would be too long."""
    name = HISTORY + exchange
    if len(name.encode()) > _MAX_NAME:
        raise InvalidArgumentError(
            f'the name of the exchange is too long for the queue of its history, "{HISTORY}{exchange}"'
        )
    return name


def history_arguments(arguments: TypedMap) -> TypedMap:
    """The arguments of the queue of an exchange with these arguments: a ring, limited by the number of messages.

    It is full as a rule, and raises no alerts.
    """
    return TypedMap(
        (
            ("qpid.policy_type", TypedValue(STR16, "ring")),
            ("qpid.max_count", TypedValue(INT64, length_in(arguments))),
            ("qpid.max_size", TypedValue(INT64, 0)),
            ("qpid.alert_count", TypedValue(INT64, 0)),
            ("qpid.alert_size", TypedValue(INT64, 0)),
        )
    )
