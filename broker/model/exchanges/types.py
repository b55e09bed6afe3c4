"""The exchange types, and the standard exchanges.

    type       class             standard exchanges
    -------    ---------------   ----------------------------------------------
    direct     DirectExchange    amq.direct, and the default exchange, named ""
    topic      TopicExchange     amq.topic
    fanout     FanoutExchange    amq.fanout
    headers    HeadersExchange   amq.match
    replication  ReplicationExchange
    x-delayed-message  one of those in `delayed`

The four named ones are durable if there is a store, and stored like others, as in qpidd
(formats/broker_records/README.md, 4.3); the default exchange is not. Source: AMQP 0-10, class exchange, required-types
and required-instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from qstore.broker.model.arguments import DELAYED_TYPE
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.broker.model.exchanges.delayed import DELAYED, delayed_type
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange, Receiver
from qstore.broker.model.exchanges.failover import FAILOVER
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue

#: Type name -> class, for all types that can be declared but `DELAYED`, which has several.
EXCHANGE_TYPES: Final[Mapping[str, type[Exchange]]] = MappingProxyType(
    {
        DirectExchange.type_name: DirectExchange,
        TopicExchange.type_name: TopicExchange,
        FanoutExchange.type_name: FanoutExchange,
        HeadersExchange.type_name: HeadersExchange,
        ReplicationExchange.type_name: ReplicationExchange,
    }
)

TYPE_NAMES: Final = frozenset((*EXCHANGE_TYPES, DELAYED))
"""The names of all types that can be declared."""

#: Name -> type name of the standard exchanges, in the order of their numbers in qpidd's store.
STANDARD_EXCHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
)

HEADERS_NAMES: Final = ("amq.match", "amq.headers")
"""The standard headers exchange: its name, and its name for clients of RabbitMQ."""

#: The exchanges of the management agent.
MANAGEMENT_EXCHANGES: Final = ("qmf.default.direct", "qmf.default.topic", "qpid.management")

#: Exchanges that clients cannot delete.
PROTECTED_EXCHANGES: Final = frozenset({*STANDARD_EXCHANGES, *MANAGEMENT_EXCHANGES, FAILOVER})


def exchange_type(type_name: str, arguments: TypedMap = EMPTY_MAP) -> type[Exchange]:
    """The class of an exchange of a type, declared with these arguments.

    Raises:
        NotFoundError: there is no such type.
        InvalidArgumentError: the type needs other arguments.
    """
    if type_name == DELAYED:
        return delayed_type(arguments)
    if arguments.get(DELAYED_TYPE) is not None:
        raise InvalidArgumentError(f"{DELAYED_TYPE} is for exchanges of type {DELAYED}: this one delays nothing")
    found = EXCHANGE_TYPES.get(type_name)
    if found is None:
        raise NotFoundError(f"Exchange type not implemented: {type_name}")
    return found


def join_host(exchange: Exchange, host: str, queues: Mapping[str, Queue], schedule: Receiver) -> None:
    """Make a new exchange one of a virtual host.

    Args:
        exchange: the exchange.
        host: the name of the host.
        queues: its queues by name, if the type needs them.
        schedule: takes the messages of a delayed exchange that wait.
    """
    exchange.host = host
    if exchange.type_name == DELAYED:
        exchange.receiver = schedule
        exchange.look_again()
    if isinstance(exchange, ReplicationExchange):
        exchange.replica.queues = queues
