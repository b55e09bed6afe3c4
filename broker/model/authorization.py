"""Whether a caller may do what it asks for: asked once, inside each operation of the model, for every protocol.

    action      object      name and properties
    ----------  ----------  --------------------------------------------------------------------------------------
    ACCESS      QUEUE       its name; for a declaration of one that is there, what the declaration says
    ACCESS      EXCHANGE    its name; likewise; for a question about a binding, `queuename` and `routingkey`
    CREATE      QUEUE       its name; `durable`, `autodelete`, `exclusive`, `alternate` and its arguments
    CREATE      EXCHANGE    its name; `type`, `durable`, `autodelete`, `alternate`
    DELETE      QUEUE       its name; `durable`, `autodelete`, `exclusive`, `alternate`
    DELETE      EXCHANGE    its name; `type`, `durable`, `alternate`
    BIND        EXCHANGE    its name; `queuename`, `routingkey`
    UNBIND      EXCHANGE    its name; `queuename`, `routingkey`
    PUBLISH     EXCHANGE    its name; `routingkey`
    CONSUME     QUEUE       its name
    PURGE       QUEUE       its name

Without an authorizer of its own a broker allows everything. Messages are checked only if the authorizer says that it
has rules for them (`checks_publish`): a broker without such rules does nothing for a single message.

Sources: Qpid C++ Broker Book, 1.5.2 (the names) and table 1.16 (the lookups); MRG 2 Messaging User Guide, 10.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Protocol

from broker.model.caller import BROKER, Caller
from broker.model.errors import UnauthorizedError


class Action(Enum):
    """What is to be done; the value is its name in rules."""

    ACCESS = "access"
    BIND = "bind"
    CONSUME = "consume"
    CREATE = "create"
    DELETE = "delete"
    PUBLISH = "publish"
    PURGE = "purge"
    UNBIND = "unbind"


class ObjectType(Enum):
    """What it is to be done to; the value is its name in rules."""

    EXCHANGE = "exchange"
    QUEUE = "queue"


class Authorizer(Protocol):
    """Decides."""

    @property
    def checks_publish(self) -> bool:
        """Whether any message may be refused; asked when a broker begins to listen."""

    def allows(
        self, caller: Caller, action: Action, object_type: ObjectType, name: str, properties: Mapping[str, object]
    ) -> bool:
        """Whether the caller may. It is never asked about the broker itself."""


class AllowAll:
    """Everybody may do everything."""

    @property
    def checks_publish(self) -> bool:
        """No."""
        return False

    def allows(
        self, _caller: Caller, _action: Action, _object_type: ObjectType, _name: str, _properties: Mapping[str, object]
    ) -> bool:
        """Yes."""
        return True


ALLOW_ALL: Final = AllowAll()


class Authorization:
    """Where a broker's operations ask.

    Attributes:
        authorizer: decides.
    """

    def __init__(self, authorizer: Authorizer = ALLOW_ALL) -> None:
        self.authorizer = authorizer

    def check(self, caller: Caller, action: Action, object_type: ObjectType, name: str, **properties: object) -> None:
        """Raises UnauthorizedError if the caller may not do that. `properties` are those of the table above."""
        if caller is BROKER or self.authorizer.allows(caller, action, object_type, name, properties):
            return
        what = f'{action.value} {object_type.value} "{name}"'
        raise UnauthorizedError(f"{caller.user} is not allowed to {what}")
