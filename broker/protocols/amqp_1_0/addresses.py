"""Addresses of nodes: those of qpidd and those of RabbitMQ 4, at the same time.

    address                   node
    ------------------------  -----------------------------------------------------------------------------------
    /queues/NAME              the queue                                                    (RabbitMQ, version 2)
    /exchanges/NAME/KEY       the exchange, with this routing key                                    (likewise)
    /exchanges/NAME           the exchange, with an empty routing key                                (likewise)
    NAME                      the queue of that name, or else the exchange                              (qpidd)
    NAME/KEY                  the exchange of that name, with this routing key or binding key       (likewise)

In RabbitMQ's form the names are percent-encoded, and a link from an exchange does not exist. In qpidd's form a name is
taken as it is, and one with slashes may be that of a queue or an exchange as a whole; the capabilities `queue` and
`topic` of a terminus say what is meant if there are both. A message to an exchange without a key is routed by its
subject.

Source: RabbitMQ, "AMQP 1.0", address format version 2; docs/amqp-1.0.txt of Qpid C++.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.broker.model.exchanges.types import HEADERS_NAMES

if TYPE_CHECKING:
    from qstore.broker.model.virtual_host import VirtualHost

QUEUES: Final = "/queues/"
EXCHANGES: Final = "/exchanges/"
IS_QUEUE: Final = "queue"
IS_TOPIC: Final = "topic"

_MAX_SHOWN: Final = 256
_is_encoded: Final = re.compile("(?:[^%]|%[0-9A-Fa-f]{2})*").fullmatch


class NodeKind(Enum):
    """What an address is that of."""

    QUEUE = auto()
    EXCHANGE = auto()


class Node(NamedTuple):
    """What an address means.

    Attributes:
        kind: its kind.
        name: the name of the queue or exchange.
        key: the key in the address; None if it has none.
        is_strict: whether the address is in RabbitMQ's form.
    """

    kind: NodeKind
    name: str
    key: str | None = None
    is_strict: bool = False


def decoded(text: str) -> str:
    """A name that is percent-encoded. Raises InvalidArgumentError."""
    if not _is_encoded(text):
        raise InvalidArgumentError(f"{text[:_MAX_SHOWN]!a} is not percent-encoded")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{text[:_MAX_SHOWN]!a} is not valid UTF-8, percent-encoded") from None


def strict_node(address: str) -> Node | None:
    """The node of an address in RabbitMQ's form; None if it is not in that form. Raises InvalidArgumentError."""
    if address.startswith(QUEUES):
        parts = address.removeprefix(QUEUES).split("/")
        if len(parts) == 1 and parts[0]:
            return Node(NodeKind.QUEUE, decoded(parts[0]), None, True)
    elif address.startswith(EXCHANGES):
        parts = address.removeprefix(EXCHANGES).split("/")
        if len(parts) <= 2 and parts[0]:
            return Node(NodeKind.EXCHANGE, _own_name(decoded(parts[0])), decoded("".join(parts[1:])), True)
    else:
        return None
    raise InvalidArgumentError(f"address {address[:_MAX_SHOWN]!a} is neither /queues/NAME nor /exchanges/NAME[/KEY]")


def _own_name(exchange: str) -> str:
    """The broker's name of an exchange: RabbitMQ has two names for its standard headers exchange."""
    own, other = HEADERS_NAMES
    return own if exchange == other else exchange


def node_of(host: VirtualHost, address: str, capabilities: Collection[str] = ()) -> Node | None:
    """The node of an address in a virtual host; None if there is none.

    Raises:
        InvalidArgumentError: no node can have this address.
        NotFoundError: an address in RabbitMQ's form names a queue or an exchange that does not exist.
    """
    node = strict_node(address)
    if node is not None:
        return _existing(host, node)
    wants_topic = IS_TOPIC in capabilities and IS_QUEUE not in capabilities
    if address in host.queues and not (wants_topic and address in host.exchanges):
        return Node(NodeKind.QUEUE, address)
    if IS_QUEUE in capabilities and not wants_topic:
        return None
    name = _own_name(address)
    if name and name in host.exchanges:
        return Node(NodeKind.EXCHANGE, name)
    name, slash, key = address.partition("/")
    name = _own_name(name)
    return Node(NodeKind.EXCHANGE, name, key) if slash and name and name in host.exchanges else None


def _existing(host: VirtualHost, node: Node) -> Node:
    """The same node. Raises NotFoundError if it does not exist."""
    kind, where = ("queue", host.queues) if node.kind is NodeKind.QUEUE else ("exchange", host.exchanges)
    if node.name not in where:
        raise NotFoundError(f"no {kind} '{node.name}' in vhost '{host.name}'", kind=kind, name=node.name)
    return node


def target_of(host: VirtualHost, address: str) -> Node | None:
    """The node of the address of a message; None if there is none. Raises as `node_of`.

    An address in RabbitMQ's form may name a queue that does not exist: then its message is unroutable.
    """
    node = strict_node(address)
    return node_of(host, address) if node is None else node
