"""The words of ACL rules, as tables: permissions, properties, and the lookups that the broker makes.

Actions and objects are those of the model (`Action`, `ObjectType`). A rule has an effect only if a lookup passes
its action and object with all of its properties; rules are therefore checked against `LOOKUPS`, which the
manual lists. A limit is passed as one value (`queuemaxsize`), and compared with one or two properties of a rule.

Sources: Qpid C++ Broker Book, tables 1.12 to 1.16 and the list of lookups in 1.5.2.5; MRG 2 Messaging User Guide, 10.2
(maxqueuesize, maxqueuecount, passive); Qpid wiki, "v2 ACL file format" (virtualhost, route), "Andrew Kennedy's
Proposal For ACL v3" (owner, temporary).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from qstore.broker.model.authorization import Action, ObjectType
from qstore.formats.named_tuple import NamedTuple

ALL: Final = "all"
MAX_NUMBER: Final = (1 << 63) - 1
MAX_QUOTA: Final = 65_530

_A, _O = Action, ObjectType


class Permission(Enum):
    """The decision of a rule; the value is its name in rules."""

    ALLOW = "allow"
    ALLOW_LOG = "allow-log"
    DENY = "deny"
    DENY_LOG = "deny-log"

    @property
    def allows(self) -> bool:
        """Whether the operation may be performed."""
        return self in (Permission.ALLOW, Permission.ALLOW_LOG)

    @property
    def logs(self) -> bool:
        """Whether it is logged, and raises an event."""
        return self in (Permission.ALLOW_LOG, Permission.DENY_LOG)

    @property
    def reverse(self) -> Permission:
        """The decision of an allowing rule where a limit is exceeded."""
        return {Permission.ALLOW: Permission.DENY, Permission.ALLOW_LOG: Permission.DENY_LOG}.get(self, self)


class Kind(Enum):
    """The type of a property's value, and its comparison."""

    TEXT = "text"  # as it is, or up to a `*` at its end
    FLAG = "flag"  # true or false
    POLICY = "policy"  # one of POLICIES
    KEY = "key"  # a pattern, as of a topic exchange
    KEY_PREFIX = "key prefix"  # as TEXT; only of version 1
    LOWER = "lower"  # a number, at least this
    UPPER = "upper"  # a number, at most this; 0 for no limit
    HOST = "host"  # an address, a name, two of them for a range, or all


class Property(NamedTuple):
    """A property of rules.

    Attributes:
        name: its name in rules.
        kind: the type of its value.
        asked: the name of the value that lookups pass for it.
        is_unlimited_at_zero: of a number: whether 0 means no limit, and so exceeds every upper one.
    """

    name: str
    kind: Kind
    asked: str
    is_unlimited_at_zero: bool = False

    @property
    def is_limit(self) -> bool:
        """Whether it bounds a number."""
        return self.kind in (Kind.LOWER, Kind.UPPER)


def _texts(kind: Kind, names: str) -> tuple[Property, ...]:
    return tuple(Property(name, kind, name) for name in names.split())


def _limits(name: str, *, is_unlimited_at_zero: bool = False) -> tuple[Property, ...]:
    return (
        Property(f"{name}lowerlimit", Kind.LOWER, name),
        Property(f"{name}upperlimit", Kind.UPPER, name, is_unlimited_at_zero),
    )


#: Name -> property.
PROPERTIES: Final[Mapping[str, Property]] = {
    each.name: each
    for each in (
        *_texts(Kind.TEXT, "name alternate exchangename owner queuename schemaclass schemapackage type"),
        *_texts(Kind.FLAG, "autodelete durable exclusive paging temporary"),
        *_texts(Kind.POLICY, "policytype"),
        *_texts(Kind.KEY, "routingkey"),
        *_texts(Kind.HOST, "host"),
        *_limits("queuemaxsize", is_unlimited_at_zero=True),
        *_limits("queuemaxcount", is_unlimited_at_zero=True),
        *_limits("filemaxsize"),
        *_limits("filemaxcount"),
        *_limits("pages"),
        *_limits("pagefactor"),
    )
}

#: Old name of a property -> its name.
OLD_PROPERTIES: Final[Mapping[str, str]] = {
    "maxqueuesize": "queuemaxsizeupperlimit",
    "maxqueuecount": "queuemaxcountupperlimit",
}

EVERY: Final = "everyroutingkey"
"""The name under which a lookup passes a pattern: it is about all routing keys that match. No rule has it."""

NEVER_ASKED: Final = frozenset(("passive", "nolocal", "noack", "nowait", "internal"))
"""Properties of older manuals: a rule that has one never matches."""
OLD_OBJECTS: Final = frozenset(("route", "topic", "object", "user", "log", "config"))
"""Objects of older manuals, likewise."""
OLD_ACTIONS: Final = frozenset(("connect", "execute", "admin"))
"""Actions of older manuals, likewise."""

#: Value of the property policytype -> how lookups pass it.
POLICIES: Final[Mapping[str, str]] = {
    "ring": "ring",
    "self-destruct": "self-destruct",
    "reject": "reject",
    "ring_strict": "ring_strict",
    "ring-strict": "ring_strict",
    "flow_to_disk": "flow_to_disk",
    "flow-to-disk": "flow_to_disk",
}


#: Name of a value in a request -> its name in lookups.
ASKED: Final[Mapping[str, str]] = {
    **{each.name: each.asked for each in PROPERTIES.values()},
    **{each.asked: each.asked for each in PROPERTIES.values()},
    "maxqueuesize": "queuemaxsize",
    "maxqueuecount": "queuemaxcount",
    "maxfilesize": "filemaxsize",
    "maxfilecount": "filemaxcount",
    "maxpages": "pages",
    "maxpagefactor": "pagefactor",
    EVERY: EVERY,
}


class Lookup(NamedTuple):
    """A lookup of the broker.

    Attributes:
        event: its occasion.
        action, object_type: the operation.
        asked: the names of the values that are passed.
    """

    event: str
    action: Action
    object_type: ObjectType
    asked: frozenset[str]


def _lookup(event: str, action: Action, object_type: ObjectType, asked: str) -> Lookup:
    return Lookup(event, action, object_type, frozenset(asked.split()))


_EXCHANGE: Final = "name type alternate durable autodelete"
_LIMITS: Final = "policytype queuemaxsize queuemaxcount"
_OWN: Final = "temporary owner"
"""Properties of version 3 of the file, which qpidd does not know."""
_QUEUE: Final = f"name alternate durable exclusive autodelete {_OWN} {_LIMITS}"
_BINDING: Final = "name queuename routingkey"

#: Number of a lookup, counted from 1 -> the lookup. The numbers are those of the manual; those from 36 on are this
#: broker's own. The name of a transaction is that of its user.
LOOKUPS: Final[Mapping[int, Lookup]] = dict(
    enumerate(
        (
            _lookup("User querying message timestamp setting", _A.ACCESS, _O.BROKER, ""),
            _lookup("AMQP 0-10 protocol received 'query'", _A.ACCESS, _O.EXCHANGE, "name"),
            _lookup("AMQP 0-10 query binding", _A.ACCESS, _O.EXCHANGE, _BINDING),
            _lookup("AMQP 0-10 exchange declare", _A.ACCESS, _O.EXCHANGE, _EXCHANGE),
            _lookup("AMQP 1.0 exchange access", _A.ACCESS, _O.EXCHANGE, "name type durable"),
            _lookup("AMQP 1.0 node resolution", _A.ACCESS, _O.EXCHANGE, "name"),
            _lookup("Management method request", _A.ACCESS, _O.METHOD, "name schemapackage schemaclass"),
            _lookup("Management agent method request", _A.ACCESS, _O.METHOD, "name schemapackage schemaclass"),
            _lookup("Management agent query", _A.ACCESS, _O.QUERY, "name schemaclass"),
            _lookup("QMF 'query queue' method", _A.ACCESS, _O.QUEUE, "name"),
            _lookup("AMQP 0-10 query", _A.ACCESS, _O.QUEUE, "name"),
            _lookup("AMQP 0-10 queue declare", _A.ACCESS, _O.QUEUE, _QUEUE),
            _lookup("AMQP 1.0 queue access", _A.ACCESS, _O.QUEUE, _QUEUE),
            _lookup("AMQP 1.0 node resolution", _A.ACCESS, _O.QUEUE, "name"),
            _lookup("AMQP 0-10 or QMF bind request", _A.BIND, _O.EXCHANGE, _BINDING),
            _lookup("AMQP 1.0 new outgoing link from exchange", _A.BIND, _O.EXCHANGE, _BINDING),
            _lookup("AMQP 0-10 subscribe request", _A.CONSUME, _O.QUEUE, "name"),
            _lookup("AMQP 1.0 new outgoing link from queue", _A.CONSUME, _O.QUEUE, "name"),
            _lookup("TCP/IP connection creation", _A.CREATE, _O.CONNECTION, "host"),
            _lookup("Create exchange", _A.CREATE, _O.EXCHANGE, _EXCHANGE),
            _lookup("Interbroker link creation", _A.CREATE, _O.LINK, ""),
            _lookup("Interbroker link creation", _A.CREATE, _O.LINK, ""),
            _lookup(
                "Create queue",
                _A.CREATE,
                _O.QUEUE,
                f"{_QUEUE} paging pages pagefactor filemaxsize filemaxcount",
            ),
            _lookup("Delete exchange", _A.DELETE, _O.EXCHANGE, "name type alternate durable"),
            _lookup(
                "Delete queue",
                _A.DELETE,
                _O.QUEUE,
                f"name alternate durable exclusive autodelete {_OWN} policytype",
            ),
            _lookup("Management 'move queue' request", _A.MOVE, _O.QUEUE, "name queuename"),
            _lookup("AMQP 0-10 received message processing", _A.PUBLISH, _O.EXCHANGE, "name routingkey"),
            _lookup("AMQP 1.0 establish sender link to queue", _A.PUBLISH, _O.EXCHANGE, "routingkey"),
            _lookup("AMQP 1.0 received message processing", _A.PUBLISH, _O.EXCHANGE, "name routingkey"),
            _lookup("Management 'purge queue' request", _A.PURGE, _O.QUEUE, "name"),
            _lookup("Management 'purge queue' request", _A.PURGE, _O.QUEUE, "name"),
            _lookup("Management 'redirect queue' request", _A.REDIRECT, _O.QUEUE, "name queuename"),
            _lookup("Management 'reroute queue' request", _A.REROUTE, _O.QUEUE, "name exchangename"),
            _lookup("Management 'unbind exchange' request", _A.UNBIND, _O.EXCHANGE, _BINDING),
            _lookup("User modifying message timestamp setting", _A.UPDATE, _O.BROKER, ""),
            _lookup("AMQP 0-10 listing of another user's branch", _A.ACCESS, _O.TRANSACTION, "name"),
            _lookup("Use of another user's branch", _A.UPDATE, _O.TRANSACTION, "name"),
            _lookup("Declaration that forwards messages", _A.PUBLISH, _O.EXCHANGE, "name routingkey"),
            _lookup("Opening a virtual host other than /", _A.ACCESS, _O.VIRTUAL_HOST, "name"),
        ),
        1,
    )
)


def lookups_for(action: Action | None, object_type: ObjectType | None) -> dict[int, Lookup]:
    """The lookups for an action and an object; None for all of them."""
    return {
        number: each
        for number, each in LOOKUPS.items()
        if action in (None, each.action) and object_type in (None, each.object_type)
    }


def asked_values(given: Mapping[str, str]) -> dict[str, str]:
    """The values of a lookup, under the names of lookups. Raises ValueError: there is no such property."""
    unknown = [each for each in given if each not in ASKED]
    if unknown:
        raise ValueError(f'Unknown ACL property "{unknown[0][:64]}"')
    return {ASKED[each]: value for each, value in given.items()}
