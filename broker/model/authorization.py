"""Authorization: whether a caller may perform an operation. Checked once, inside each operation, for every protocol.

    action      object      name and properties
    ----------  ----------  --------------------------------------------------------------------------------------
    ACCESS      BROKER      none: the timestamp setting is read
    ACCESS      QUEUE       its name; for a passive declaration, the properties of the queue
    ACCESS      EXCHANGE    its name; likewise; for a query about a binding, `queuename` and `routingkey`
    ACCESS      METHOD      its name; `schemapackage` and `schemaclass` of the object that has it
    ACCESS      QUERY       the name of the object; `schemaclass`; one of them may be empty
    ACCESS      VIRTUAL_HOST its name: to connect to it, if it is not the default one
    ACCESS      TRANSACTION the owner of the branch, empty if unknown: to list another user's branch
    CREATE      CONNECTION  no name; `host`, the client's address. The user is empty before authentication
    CREATE      QUEUE       its name; its properties (`queue_properties`), even if it already exists
    CREATE      EXCHANGE    its name; `type`, `durable`, `autodelete`, `alternate`, likewise
    CREATE      LINK        none
    DELETE      QUEUE       its name; its properties; none if it does not exist
    DELETE      EXCHANGE    its name; `type`, `durable`, `alternate`; none if it does not exist
    BIND        EXCHANGE    its name; `queuename`, `routingkey`
    UNBIND      EXCHANGE    its name; `queuename`, `routingkey`
    PUBLISH     EXCHANGE    its name; `routingkey` (`check_publish`)
    CONSUME     QUEUE       its name
    MOVE        QUEUE       its name; `queuename`, the destination
    REDIRECT    QUEUE       its name; `queuename`, the destination
    PURGE       QUEUE       its name
    REROUTE     QUEUE       its name; `exchangename`
    UPDATE      BROKER      none: to change the timestamp setting or the log, or to stop the broker
    UPDATE      TRANSACTION the owner of the branch, likewise: to join, prepare, commit or roll back another user's
                            branch, or set its timeout

Everything that the broker publishes, moves or deletes on behalf of a user is authorized as that user, with the actual
exchange and routing key of the message:

    at execution         if the message is known by then: `check_publish`
    at a declaration     if messages are forwarded later, perhaps after a restart, with keys that are not known yet:
                         `check_forwarding` requires permission for every key that a pattern matches. The creator of
                         the queue, exchange or binding is responsible for all messages forwarded by it, of all
                         publishers

`tests/broker/test_acl_roads.py` has the table of all paths to a queue, and the check that authorizes each.

If possible, a caller is checked before the object is looked up, so that errors do not reveal to unauthorized users
whether an object exists.

A broker without an authorizer allows everything. Messages are checked only if the authorizer has rules for publishing
(`checks_publish`); without such rules there is no cost per message. A publisher caches its permissions until the rules
change (`changed`).

Sources: Qpid C++ Broker Book, 1.5.2 (the names) and table 1.16 (the lookups); MRG 2 Messaging User Guide, 10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import UnauthorizedError


class Action(Enum):
    """An operation; the value is its name in rules."""

    ACCESS = "access"
    BIND = "bind"
    CONSUME = "consume"
    CREATE = "create"
    DELETE = "delete"
    MOVE = "move"
    PUBLISH = "publish"
    PURGE = "purge"
    REDIRECT = "redirect"
    REROUTE = "reroute"
    UNBIND = "unbind"
    UPDATE = "update"


class ObjectType(Enum):
    """The kind of object an operation acts on; the value is its name in rules."""

    BROKER = "broker"
    CONNECTION = "connection"
    EXCHANGE = "exchange"
    LINK = "link"
    METHOD = "method"
    QUERY = "query"
    QUEUE = "queue"
    TRANSACTION = "transaction"
    VIRTUAL_HOST = "virtualhost"


EVERY_KEY: Final = "#"
"""The pattern that every routing key matches."""


class Publishing(Enum):
    """Whether a message may be published, and whether the answer holds for later ones."""

    REFUSED = "refused"
    ONCE = "once"
    ALWAYS = "always"


class Authorizer(Protocol):
    """Decides whether an operation is allowed."""

    @property
    def checks_publish(self) -> bool:
        """Whether any message may be refused. May change when the rules do."""

    def allows(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        """Whether the caller may perform the operation. Never called for the broker itself."""

    def publishing(self, caller: Caller, exchange: str, routing_key: str) -> Publishing:
        """Whether the caller may publish to an exchange with a routing key."""

    def allows_forwarding(self, caller: Caller, exchange: str, pattern: str) -> bool:
        """Whether the caller may publish to an exchange with every routing key that a topic pattern matches."""


class AllowAll:
    """Allows every operation."""

    @property
    def checks_publish(self) -> bool:
        """False: no message is refused."""
        return False

    def allows(
        self, _caller: Caller, _action: Action, _object_type: ObjectType, _name: str, _properties: Mapping[str, object]
    ) -> bool:
        """Always True."""
        return True

    def publishing(self, _caller: Caller, _exchange: str, _routing_key: str) -> Publishing:
        """Always."""
        return Publishing.ALWAYS

    def allows_forwarding(self, _caller: Caller, _exchange: str, _pattern: str) -> bool:
        """Always True."""
        return True


ALLOW_ALL: Final = AllowAll()


class Firewall(Protocol):
    """Decides from which hosts clients may connect (`security/firewall`)."""

    def admits(self, host: str, name: str, vhost: str) -> bool:
        """Whether a client may open a virtual host; `name` is empty if that of its host is not known."""

    def admits_somewhere(self, host: str, name: str) -> bool:
        """Whether there is a virtual host that a client may open."""

    def needs_name(self, host: str) -> bool:
        """Whether the name of its host may decide."""


class Authorization:
    """Checks operations of one broker against its authorizer.

    Attributes:
        authorizer: makes the decision.
        firewall: decides from which hosts clients may connect; None for all.
        changed: called when the authorizer's rules have changed.
    """

    def __init__(self, authorizer: Authorizer = ALLOW_ALL) -> None:
        self.authorizer = authorizer
        self.firewall: Firewall | None = None
        self.changed: Callable[[], None] = lambda: None

    @property
    def is_on(self) -> bool:
        """Whether any operation can be refused."""
        return self.authorizer is not ALLOW_ALL

    def check(self, caller: Caller, action: Action, object_type: ObjectType, name: str, **properties: object) -> None:
        """Raise UnauthorizedError unless the caller may do this. `properties` are those of the table above."""
        if caller is BROKER or self.authorizer.allows(caller, action, object_type, name, properties):
            return
        raise _refused(caller, action, object_type, name)

    def check_publish(self, caller: Caller, exchange: str, routing_key: str) -> bool:
        """Raise UnauthorizedError unless the caller may publish. Returns whether this holds until the rules change."""
        authorizer = self.authorizer
        if not authorizer.checks_publish or caller is BROKER:
            return True
        publishing = authorizer.publishing(caller, exchange, routing_key)
        if publishing is Publishing.REFUSED:
            raise _refused(caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange)
        return publishing is Publishing.ALWAYS

    def check_forwarding(self, caller: Caller, exchange: str, pattern: str, purpose: str) -> None:
        """Raise UnauthorizedError unless the caller may publish with every routing key that a topic pattern matches.

        Args:
            caller: the user who declares that messages are forwarded.
            exchange: the exchange that gets them.
            pattern: matches the keys that they may have.
            purpose: the declaration that forwards them, for the error: "as ... requires".
        """
        authorizer = self.authorizer
        if not authorizer.checks_publish or caller is BROKER or authorizer.allows_forwarding(caller, exchange, pattern):
            return
        keys = "every routing key" if pattern == EVERY_KEY else f'every routing key that "{pattern}" matches'
        refused = _refused(caller, Action.PUBLISH, ObjectType.EXCHANGE, exchange)
        raise UnauthorizedError(f"{refused} with {keys}, as {purpose} requires")


def _refused(caller: Caller, action: Action, object_type: ObjectType, name: str) -> UnauthorizedError:
    what = f"{action.value} {object_type.value}" + (f' "{name}"' if name else "")
    return UnauthorizedError(f"{caller.user} is not allowed to {what}")
