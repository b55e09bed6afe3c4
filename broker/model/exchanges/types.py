"""The exchange types, and the standard exchanges.

    type                class                       standard exchanges
    ----------------    -------------------------   ------------------------------------------
    direct              DirectExchange              amq.direct, and the default exchange, named ""
    topic               TopicExchange               amq.topic
    fanout              FanoutExchange              amq.fanout
    headers             HeadersExchange             amq.match
    xml                 XmlExchange
    replication         ReplicationExchange
    x-consistent-hash   one of two, by arguments
    x-delayed-message   one of those in `delayed`
    x-modulus-hash      ModulusHashExchange
    x-local-random      LocalRandomExchange
    x-random            RandomExchange
    x-recent-history    RecentHistoryExchange
    others              PluggedExchange, for the entry points of the group `qstore.exchanges`

The four named ones are durable if there is a store, and stored like others, as in qpidd
(formats/broker_records/README.md, 4.3); the default exchange is not. Source: AMQP 0-10, class exchange, required-types
and required-instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from qstore.broker.model.arguments import DELAYED_TYPE, HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH
from qstore.broker.model.errors import NotFoundError
from qstore.broker.model.exchanges.delayed import DELAYED, delayed_type, routing_type_in
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.dividing import (
    CONSISTENT_HASH,
    LocalRandomExchange,
    ModulusHashExchange,
    RandomExchange,
    consistent_hash_type,
)
from qstore.broker.model.exchanges.exchange import Exchange, Receiver
from qstore.broker.model.exchanges.failover import FAILOVER
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.history import RECENT_HISTORY, recent_history_type
from qstore.broker.model.exchanges.plugged import (
    PluggedExchange,
    load_plugged,
    make_plugged,
    plugged_names,
)
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.replication.events import CopySeal

#: Type name -> class, for all types that have one.
EXCHANGE_TYPES: Final[Mapping[str, type[Exchange]]] = MappingProxyType(
    {
        each.kind: each
        for each in (
            DirectExchange, TopicExchange, FanoutExchange, HeadersExchange, ReplicationExchange, ModulusHashExchange,
            RandomExchange, LocalRandomExchange,
        )
    }
)  # fmt: skip

XML: Final = "xml"


def _xml_type(arguments: TypedMap) -> type[Exchange]:
    """As `xml.xml_type`, which few brokers need: it is imported with the first exchange of that type."""
    from qstore.broker.model.exchanges.xml import xml_type

    return xml_type(arguments)


#: Type name -> the class for arguments, for all types whose arguments matter. These raise InvalidArgumentError.
_BY_ARGUMENTS: Final[Mapping[str, Callable[[TypedMap], type[Exchange]]]] = MappingProxyType(
    {
        CONSISTENT_HASH: consistent_hash_type, DELAYED: delayed_type, RECENT_HISTORY: recent_history_type,
        XML: _xml_type,
    }
)  # fmt: skip

#: Argument -> the only type of exchange for which it means anything.
_ONLY_FOR: Final = MappingProxyType(
    {
        DELAYED_TYPE: DELAYED, HASH_HEADER: CONSISTENT_HASH, HASH_PROPERTY: CONSISTENT_HASH,
        HISTORY_LENGTH: RECENT_HISTORY,
    }
)  # fmt: skip

TYPE_NAMES: Final = frozenset((*EXCHANGE_TYPES, *_BY_ARGUMENTS))
"""The names of all types that can be declared without a plug-in."""

#: Name -> type name of the standard exchanges, in the order of their numbers in qpidd's store.
STANDARD_EXCHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
)

HEADERS_NAMES: Final = ("amq.match", "amq.headers")
"""The standard headers exchange: its name, and its name for clients of RabbitMQ."""

#: The exchanges of the management agent: versions 2 and 1 of QMF, and AMQP Management.
MANAGEMENT_EXCHANGES: Final = ("qmf.default.direct", "qmf.default.topic", "qpid.management", "$management")

#: Exchanges that clients cannot delete.
PROTECTED_EXCHANGES: Final = frozenset({*STANDARD_EXCHANGES, *MANAGEMENT_EXCHANGES, FAILOVER})


def is_type(name: str) -> bool:
    """Whether exchanges of this type can be declared."""
    return name in TYPE_NAMES or name in plugged_names()


def must_load(type_name: str) -> bool:
    """Whether exchanges of this type need something that is imported for them."""
    return type_name == XML or (type_name not in TYPE_NAMES and type_name in plugged_names())


def load_type(type_name: str) -> None:
    """Import what exchanges of this type need: that takes long, and is done outside of the event loop."""
    if type_name == XML:
        from qstore.broker.model import xquery  # not needed by most brokers

        if xquery.is_available():
            xquery.load()
    elif must_load(type_name):
        load_plugged(type_name)


def exchange_type(type_name: str, arguments: TypedMap = EMPTY_MAP) -> Callable[..., Exchange]:
    """What makes an exchange of a type, declared with these arguments: its class, or as called like one.

    Raises:
        NotFoundError: there is no such type.
        InvalidArgumentError: the type needs other arguments.
    """
    by_arguments = _BY_ARGUMENTS.get(type_name)
    if by_arguments is not None:
        return by_arguments(arguments)
    found = EXCHANGE_TYPES.get(type_name)
    if found is not None:
        return found
    if type_name in plugged_names():
        return partial(PluggedExchange, type_name, make_plugged(type_name, arguments))
    raise NotFoundError(f"Exchange type not implemented: {type_name}")


def misplaced(type_name: str, arguments: TypedMap) -> list[tuple[str, str]]:
    """The arguments that have no effect on an exchange of this type: each name, and the type on which it has one."""
    types = {type_name, routing_type_in(arguments) if type_name == DELAYED else type_name}
    if type_name not in TYPE_NAMES:
        return []
    return [(name, _ONLY_FOR[name]) for name in arguments if name in _ONLY_FOR and _ONLY_FOR[name] not in types]


def join_host(exchange: Exchange, host: str, queues: Mapping[str, Queue], schedule: Receiver, seal: CopySeal) -> None:
    """Make a new exchange one of a virtual host.

    Args:
        exchange: the exchange.
        host: the name of the host.
        queues: its queues by name, if the type needs them.
        schedule: takes the messages of a delayed exchange that wait.
        seal: makes and reads the header of copies of replicated messages.
    """
    exchange.host = host
    if exchange.type_name == DELAYED:
        exchange.receiver = schedule
        exchange.look_again()
    if isinstance(exchange, ReplicationExchange):
        exchange.replica.join(queues, seal)
