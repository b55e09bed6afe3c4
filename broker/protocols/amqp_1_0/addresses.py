"""Addresses of nodes: those of qpidd and those of RabbitMQ 4, at the same time.

    address                   node
    ------------------------  -----------------------------------------------------------------------------------
    /queues/NAME              the queue                                                    (RabbitMQ, version 2)
    /exchanges/NAME/KEY       the exchange, with this routing key                                    (likewise)
    /exchanges/NAME           the exchange, with an empty routing key                                (likewise)
    NAME                      the queue of that name, or else the exchange                              (qpidd)
    NAME/KEY                  the exchange of that name, with this routing key or binding key       (likewise)
    amqp://HOST/ADDRESS       what the address is that of; so with amqps:                       (Azure's clients)

In RabbitMQ's form the names are percent-encoded, and a link from an exchange does not exist. In qpidd's form a name is
taken as it is, and one with slashes may be that of a queue or an exchange as a whole; the capabilities `queue` and
`topic` of a terminus say what is meant if there are both. Without them the name of a management exchange means the
exchange, even if there is a queue of that name: the user who declared the queue would otherwise get requests to
management, which may contain passwords. A message to an exchange without a key is routed by its subject.

Source: RabbitMQ, "AMQP 1.0", address format version 2; docs/amqp-1.0.txt of Qpid C++.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError
from qstore.broker.model.exchanges.types import HEADERS_NAMES, MANAGEMENT_EXCHANGES
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.protocols.amqp_1_0.session import Session

QUEUES: Final = "/queues/"
EXCHANGES: Final = "/exchanges/"
IS_QUEUE: Final = "queue"
IS_TOPIC: Final = "topic"

_MAX_SHOWN: Final = 256
_in_url: Final = re.compile("amqps?://[^/]*/(.+)", re.DOTALL).fullmatch
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


def without_url(address: str) -> str:
    """The address in a URL; any other one as it is."""
    found = _in_url(address)
    if found is None:
        return address
    path = f"/{found[1]}"
    return path if path.startswith((QUEUES, EXCHANGES)) else found[1]


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
    if address not in host.queues:
        address = without_url(address)
    node = strict_node(address)
    if node is not None:
        return _existing(host, node)
    wants_topic = IS_TOPIC in capabilities and IS_QUEUE not in capabilities
    is_queue = _is_queue(host, address) and not (wants_topic and address in host.exchanges)
    if is_queue and (IS_QUEUE in capabilities or not _is_of_management(host, address)):
        return Node(NodeKind.QUEUE, address)
    if IS_QUEUE in capabilities and not wants_topic:
        return None
    name = _own_name(address)
    if name and name in host.exchanges:
        return Node(NodeKind.EXCHANGE, name)
    name, slash, key = address.partition("/")
    name = _own_name(name)
    return Node(NodeKind.EXCHANGE, name, key) if slash and name and name in host.exchanges else None


def check_access(session: Session, address: str, capabilities: Collection[str] = ()) -> None:
    """Check that a user may access what an address may mean, whether or not that exists.

    Without a capability or another sign of its kind, both a queue and an exchange are meant.

    Raises:
        UnauthorizedError: the user may not.
        InvalidArgumentError: no node can have this address.
    """
    authorization, host = session.broker.authorization, session.virtual_host
    if not authorization.is_on:
        return
    if address not in host.queues:
        address = without_url(address)
    node = strict_node(address)
    may_be_queue, may_be_exchange, name = True, True, address
    if node is not None:
        may_be_queue, may_be_exchange, name = node.kind is NodeKind.QUEUE, node.kind is NodeKind.EXCHANGE, node.name
    elif (IS_QUEUE in capabilities) is not (IS_TOPIC in capabilities):
        may_be_queue, may_be_exchange = IS_QUEUE in capabilities, IS_TOPIC in capabilities
    if node is None and may_be_exchange and not (address in host.queues or _own_name(address) in host.exchanges):
        exchange, slash, _ = address.partition("/")
        if slash and _own_name(exchange) in host.exchanges:
            may_be_queue, name = False, exchange
    if may_be_exchange:
        authorization.check(session, Action.ACCESS, ObjectType.EXCHANGE, _own_name(name))
    if may_be_queue:
        authorization.check(session, Action.ACCESS, ObjectType.QUEUE, name)


def _is_queue(host: VirtualHost, name: str) -> bool:
    """Whether there is a queue with that name, or a requester gets direct replies there."""
    return name in host.queues or name in host.replies.queues


def _is_of_management(host: VirtualHost, address: str) -> bool:
    """Whether an address in qpidd's form is that of an exchange of management."""
    name = address.partition("/")[0]
    return name in MANAGEMENT_EXCHANGES and name in host.exchanges


def reply_text(exchange: str, key: str) -> str:
    """The address of an exchange, or of a queue if that is empty: in qpidd's form, if that cannot mean another one."""
    text = "/".join(filter(None, (exchange, key)))
    if "/" not in exchange and text == without_url(text) and not text.startswith((QUEUES, EXCHANGES)):
        return text
    names = "/".join(quote(each, safe="", errors="replace") for each in (exchange, key) if each)
    return f"{EXCHANGES if exchange else QUEUES}{names}"


def _existing(host: VirtualHost, node: Node) -> Node:
    """The same node. Raises NotFoundError if it does not exist."""
    is_queue = node.kind is NodeKind.QUEUE
    kind = "queue" if is_queue else "exchange"
    if not (_is_queue(host, node.name) if is_queue else node.name in host.exchanges):
        raise NotFoundError(f"no {kind} '{node.name}' in vhost '{host.name}'", kind=kind, name=node.name)
    return node


def target_of(host: VirtualHost, address: str) -> Node | None:
    """The node of the address of a message; None if there is none. Raises as `node_of`.

    An address in RabbitMQ's form may name a queue that does not exist: then its message is unroutable.
    """
    node = strict_node(without_url(address))
    return node_of(host, address) if node is None else node
