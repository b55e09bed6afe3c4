"""The types of exchange, and the exchanges that every broker has.

    type       class             there from the start
    -------    ---------------   ----------------------------------------------
    direct     DirectExchange    amq.direct, and the default exchange, named ""
    topic      TopicExchange     amq.topic
    fanout     FanoutExchange    amq.fanout
    headers    HeadersExchange   amq.match

The four are durable where there is a store, and stored like others, as in qpidd
(formats/broker_records/README.md, 4.3); the default exchange is not. Source: AMQP 0-10, class exchange, required-types
and required-instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.model.errors import NotFoundError
from broker.model.exchanges.direct import DirectExchange
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.fanout import FanoutExchange
from broker.model.exchanges.headers import HeadersExchange
from broker.model.exchanges.topic import TopicExchange

#: Type name -> class, for all types that can be declared.
EXCHANGE_TYPES: Final[Mapping[str, type[Exchange]]] = MappingProxyType(
    {
        DirectExchange.type_name: DirectExchange,
        TopicExchange.type_name: TopicExchange,
        FanoutExchange.type_name: FanoutExchange,
        HeadersExchange.type_name: HeadersExchange,
    }
)

#: Name -> type name of the exchanges that are there from the start; in this order qpidd numbers them in its store.
STANDARD_EXCHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
)


def exchange_type(type_name: str) -> type[Exchange]:
    """The class of a type of exchange.

    Raises:
        NotFoundError: there is no such type.
    """
    found = EXCHANGE_TYPES.get(type_name)
    if found is None:
        raise NotFoundError(f"Exchange type not implemented: {type_name}")
    return found
