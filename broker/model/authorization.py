"""Authorization: whether a caller may perform an operation. Checked once, inside each operation, for every protocol.

    action      object      name and properties
    ----------  ----------  --------------------------------------------------------------------------------------
    ACCESS      QUEUE       its name; when an existing queue is declared again, the fields of the declaration
    ACCESS      EXCHANGE    its name; likewise; for a query about a binding, `queuename` and `routingkey`
    CREATE      QUEUE       its name; `durable`, `autodelete`, `exclusive`, `alternate` and its arguments
    CREATE      EXCHANGE    its name; `type`, `durable`, `autodelete`, `alternate`
    DELETE      QUEUE       its name; `durable`, `autodelete`, `exclusive`, `alternate`
    DELETE      EXCHANGE    its name; `type`, `durable`, `alternate`
    BIND        EXCHANGE    its name; `queuename`, `routingkey`
    UNBIND      EXCHANGE    its name; `queuename`, `routingkey`
    PUBLISH     EXCHANGE    its name; `routingkey`
    CONSUME     QUEUE       its name
    MOVE        QUEUE       its name; `queuename`, the destination
    PURGE       QUEUE       its name
    REROUTE     QUEUE       its name; `exchangename`

A broker without an authorizer allows everything. Messages are checked only if the authorizer has rules for publishing
(`checks_publish`); without such rules there is no cost per message.

Sources: Qpid C++ Broker Book, 1.5.2 (the names) and table 1.16 (the lookups); MRG 2 Messaging User Guide, 10.2.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    REROUTE = "reroute"
    UNBIND = "unbind"


class ObjectType(Enum):
    """The kind of object an operation acts on; the value is its name in rules."""

    EXCHANGE = "exchange"
    QUEUE = "queue"


class Authorizer(Protocol):
    """Decides whether an operation is allowed."""

    @property
    def checks_publish(self) -> bool:
        """Whether any message may be refused. Read once, when the broker starts to listen."""

    def allows(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        """Whether the caller may perform the operation. Never called for the broker itself."""


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


ALLOW_ALL: Final = AllowAll()


class Authorization:
    """Checks operations of one broker against its authorizer.

    Attributes:
        authorizer: makes the decision.
    """

    def __init__(self, authorizer: Authorizer = ALLOW_ALL) -> None:
        self.authorizer = authorizer

    def check(self, caller: Caller, action: Action, object_type: ObjectType, name: str, **properties: object) -> None:
        """Raise UnauthorizedError unless the caller may do this. `properties` are those of the table above."""
        if caller is BROKER or self.authorizer.allows(caller, action, object_type, name, properties):
            return
        what = f'{action.value} {object_type.value} "{name}"'
        raise UnauthorizedError(f"{caller.user} is not allowed to {what}")
