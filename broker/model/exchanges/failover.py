"""The exchange `amq.failover`: tells clients at which addresses they find this broker, or one in its place.

Each queue that is bound to it, with any key, gets a message at once, and another one whenever the addresses change.
The message has no content, and one header, `amq.failover`: an array of URLs, such as `amqp:tcp:one:5672,tcp:two:5672`.
Without addresses there is no message.

Clients trust these addresses, so nobody else can have a message routed there: what is published to it, or comes from an
exchange that is bound to it or whose alternate exchange it is, is dropped.

Source: qpidd, FailoverExchange.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import INITIAL_VALUE
from qstore.broker.model.errors import ModelError
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.message import MakeMessage, NewMessage
from qstore.formats.values import ARRAY, INT32, STR16, TypedArray, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.exchanges.exchange import Put
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue

_LOG: Final = log_of("Broker")

FAILOVER: Final = "amq.failover"
"""The name of the exchange, of its type, and of the header."""


class _Nothing:
    """Takes all published messages, and drops them."""

    def takes(self, message: Message) -> bool:  # noqa: ARG002
        """True."""
        return True

    def keeps_nothing(self, message: Message) -> bool:  # noqa: ARG002
        """True."""
        return True

    def check_transaction(self) -> None:
        """Nothing to check."""

    def placed(self, message: Message) -> tuple[Message, Sequence[Queue]]:
        """On no queue."""
        return message, ()

    def receive(self, message: Message, put: Put, authorization: Authorization) -> bool:  # noqa: ARG002
        """Drop the message."""
        return False


class FailoverExchange(FanoutExchange):
    """The exchange; `sent` keeps the last message for later bindings."""

    kind: ClassVar[str] = FAILOVER

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FAILOVER, arguments=TypedMap(((INITIAL_VALUE, TypedValue(INT32, 1)),)))
        self.receiver = _Nothing()

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002
        """No binding: only `KnownHosts` sends messages to its queues."""
        return ()

    def _another(self) -> Exchange:
        return FanoutExchange(self.name)


class KnownHosts:
    """The addresses of one broker, as its clients know them.

    Args:
        broker: the broker, which gets the exchange.
        make_message: encodes messages.

    Attributes:
        url: a URL with the addresses; empty if none are announced.
        exchange: the exchange.
    """

    def __init__(self, broker: Broker, make_message: MakeMessage) -> None:
        self._broker, self._make_message = broker, make_message
        self.url = ""
        self.exchange = FailoverExchange()
        broker.default_host.exchanges[FAILOVER] = self.exchange
        self.announce(broker.settings.known_hosts)

    def announce(self, url: str) -> bool:
        """Announce other addresses, to all clients that listen. Returns whether they differ from those before."""
        if url == self.url:
            return False
        self.url = self._broker.known_hosts = url
        sent = self.exchange.sent
        assert sent is not None
        if not url:
            sent.last = None
            return True
        urls = TypedValue(ARRAY, TypedArray(STR16, (url,)))
        message = self._make_message(NewMessage(FAILOVER, TypedMap(((FAILOVER, urls),)), exchange=FAILOVER))
        sent.keep(message)
        for queue in list(self.exchange.bound_queues):
            try:
                self._broker.router.put(message, (queue,))
            except (ModelError, MemoryError) as error:
                _LOG.warning('Queue "%s" did not get the addresses of this broker: %s', queue.name, error)
        self._broker.tick.schedule()
        return True
