"""The exchange types, and the standard exchanges.

    type       class             standard exchanges
    -------    ---------------   ----------------------------------------------
    direct     DirectExchange    amq.direct, and the default exchange, named ""
    topic      TopicExchange     amq.topic
    fanout     FanoutExchange    amq.fanout
    headers    HeadersExchange   amq.match
    replication  ReplicationExchange

The four named ones are durable if there is a store, and stored like others, as in qpidd
(formats/broker_records/README.md, 4.3); the default exchange is not. Source: AMQP 0-10, class exchange, required-types
and required-instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import NotFoundError
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.exchanges.topic import TopicExchange

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue

#: Type name -> class, for all types that can be declared.
EXCHANGE_TYPES: Final[Mapping[str, type[Exchange]]] = MappingProxyType(
    {
        DirectExchange.type_name: DirectExchange,
        TopicExchange.type_name: TopicExchange,
        FanoutExchange.type_name: FanoutExchange,
        HeadersExchange.type_name: HeadersExchange,
        ReplicationExchange.type_name: ReplicationExchange,
    }
)

#: Name -> type name of the standard exchanges, in the order of their numbers in qpidd's store.
STANDARD_EXCHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
)

HEADERS_NAMES: Final = ("amq.match", "amq.headers")
"""The standard headers exchange: its name, and its name for clients of RabbitMQ."""

#: The exchanges of the management agent.
MANAGEMENT_EXCHANGES: Final = ("qmf.default.direct", "qmf.default.topic", "qpid.management")

#: Exchanges that clients cannot delete.
PROTECTED_EXCHANGES: Final = frozenset({*STANDARD_EXCHANGES, *MANAGEMENT_EXCHANGES})


def exchange_type(type_name: str) -> type[Exchange]:
    """The class of an exchange type.

    Raises:
        NotFoundError: there is no such type.
    """
    found = EXCHANGE_TYPES.get(type_name)
    if found is None:
        raise NotFoundError(f"Exchange type not implemented: {type_name}")
    return found


def join_host(exchange: Exchange, host: str, queues: Mapping[str, Queue]) -> None:
    """Make a new exchange one of a virtual host, whose queues it finds by name, if its type needs that."""
    exchange.host = host
    if isinstance(exchange, ReplicationExchange):
        exchange.replica.queues = queues
