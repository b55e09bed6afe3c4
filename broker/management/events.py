"""Events for consoles: a table of the classes in the schema, and the broker's event that raises each.

    event(PACKAGE, NAME, SEVERITY, ARGUMENTS, RAISED_BY)

    ARGUMENTS   names, in the order of the fields of the broker's event; their types are in `ARGUMENTS` by package
    RAISED_BY   the broker's event (`model.events`); None for one that is never raised here

The severity is also a part of the routing key, and a number, as in syslog.

Sources: the QMF schemas of qpidd; a test holds the table against them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from qstore.broker.management.schema import PACKAGE, Argument
from qstore.broker.model import events
from qstore.broker.model.events import Event
from qstore.formats.named_tuple import NamedTuple

_LEGACY: Final = "org.apache.qpid.legacystore"
_HA: Final = "org.apache.qpid.ha"
_ACL: Final = "org.apache.qpid.acl"
_OWN: Final = "qstore"

Timed: TypeAlias = tuple[Event, float]
"""An event, and when it was raised, in seconds since 1970."""

#: Severity in the schema -> its number, and its part of a routing key.
SEVERITIES: Final = {
    "emerg": (0, "emerg"),
    "alert": (1, "alert"),
    "crit": (2, "crit"),
    "error": (3, "error"),
    "warn": (4, "warn"),
    "notice": (5, "note"),
    "inform": (6, "info"),
    "debug": (7, "debug"),
}

#: Package -> argument of its events -> type and description.
ARGUMENTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    PACKAGE: {
        "altEx": ("sstr", "Name of the alternate exchange"),
        "args": ("map", "Supplemental arguments or parameters supplied"),
        "autoDel": ("bool", "Created object is automatically deleted when no longer in use"),
        "dest": ("sstr", "Destination tag for a subscription"),
        "disp": (
            "sstr",
            "Disposition of a declaration: 'created' if object was created, 'existing' if object already existed",
        ),
        "durable": ("bool", "Created object is durable"),
        "exName": ("sstr", "Name of an exchange"),
        "exType": ("sstr", "Type of an exchange"),
        "excl": ("bool", "Created object is exclusive for the use of the owner only"),
        "key": ("lstr", "Key text used for routing or binding"),
        "qName": ("sstr", "Name of a queue"),
        "reason": ("lstr", "Reason for a failure"),
        "rhost": ("sstr", "Address (i.e. DNS name, IP address, etc.) of a remotely connected host"),
        "user": ("sstr", "Authentication identity"),
        "qTarget": ("sstr", "Redirect target queue"),
        "msgDepth": ("count64", "Current size of queue in messages"),
        "byteDepth": ("count64", "Current size of queue in bytes"),
        "properties": ("map", "optional identifying information sent by the remote"),
    },
    _LEGACY: {
        "autoExpand": ("bool", "Journal auto-expand enabled"),
        "fileSize": ("uint32", "Journal file size in bytes"),
        "jrnlId": ("sstr", "Journal Id"),
        "numEnq": ("uint32", "Number of recovered enqueues"),
        "numFiles": ("uint16", "Number of journal files"),
        "numTxn": ("uint32", "Number of recovered transactions"),
        "numTxnDeq": ("uint32", "Number of recovered transactional dequeues"),
        "numTxnEnq": ("uint32", "Number of recovered transactional enqueues"),
        "what": ("sstr", "Description of event"),
    },
    _ACL: {
        "action": ("sstr", ""),
        "arguments": ("map", ""),
        "objectName": ("sstr", ""),
        "objectType": ("sstr", ""),
        "reason": ("lstr", ""),
        "userId": ("sstr", ""),
        "clientAddr": ("sstr", ""),
        "queueName": ("sstr", ""),
    },
    _OWN: {
        "rhost": ("sstr", "Address of the client that has changed it"),
        "user": ("sstr", "Authentication identity"),
        "kind": ("sstr", "user, permission, topic-permission, policy or operator-policy"),
        "name": ("sstr", "Its name"),
        "what": ("sstr", "added, changed, set or deleted"),
        "qName": ("sstr", "Name of a queue"),
        "byteSize": ("count64", "Size of a message in bytes"),
        "threshold": ("count64", "Size above which an alert is raised"),
        "age": ("count64", "Milliseconds since the oldest message arrived"),
        "policy": ("sstr", "disconnect, delete or cycle"),
        "msgDepth": ("count64", "Current size of queue in messages"),
        "byteDepth": ("count64", "Current size of queue in bytes"),
    },
    _HA: {
        "members": ("list", "List of broker information maps"),
    },
}


class EventClass(NamedTuple):
    """A class of events.

    Attributes:
        package, name: its name.
        severity: as in the schema.
        arguments: its arguments, in the order of the event's first fields.
        raised_by: the broker's event; None if it is never raised.
        hash: identifies the class as it is here.
    """

    package: str
    name: str
    severity: str
    arguments: tuple[Argument, ...]
    raised_by: type[Event] | None
    hash: UUID

    def values(self, event: Event) -> Iterator[Any]:
        """The values of its arguments. A boolean as text says whether the object is new (`disp`)."""
        for argument, value in zip(self.arguments, event, strict=False):  # fields after these are for others
            if argument.type == "sstr" and isinstance(value, bool):
                yield "created" if value else "existing"
            else:
                yield value

    @property
    def number(self) -> int:
        """The severity as a number."""
        return SEVERITIES[self.severity][0]

    @property
    def word(self) -> str:
        """The severity as a part of a routing key."""
        return SEVERITIES[self.severity][1]


def event(package: str, name: str, severity: str, arguments: str, raised_by: type[Event] | None) -> EventClass:
    """A row of the table."""
    known = ARGUMENTS[package]
    found = tuple(
        Argument(each, known[each][0].replace("count", "uint"), "", known[each][1]) for each in arguments.split()
    )
    identity = (package, name, severity, tuple((each.name, each.type) for each in found))
    digest = hashlib.md5(repr(identity).encode(), usedforsecurity=False).digest()
    return EventClass(package, name, severity, found, raised_by, UUID(bytes=digest))


EVENT_CLASSES: Final = (
    event(PACKAGE, "clientConnect", "inform", "rhost user properties", events.ClientConnect),
    event(PACKAGE, "clientConnectFail", "warn", "rhost user reason properties", events.ClientConnectFail),
    event(PACKAGE, "clientDisconnect", "inform", "rhost user properties", events.ClientDisconnect),
    event(PACKAGE, "brokerLinkUp", "inform", "rhost", events.BrokerLinkUp),
    event(PACKAGE, "brokerLinkDown", "warn", "rhost", events.BrokerLinkDown),
    event(
        PACKAGE, "queueDeclare", "inform", "rhost user qName durable excl autoDel altEx args disp", events.QueueDeclare
    ),
    event(PACKAGE, "queueDelete", "inform", "rhost user qName", events.QueueDelete),
    event(
        PACKAGE,
        "exchangeDeclare",
        "inform",
        "rhost user exName exType altEx durable autoDel args disp",
        events.ExchangeDeclare,
    ),
    event(PACKAGE, "exchangeDelete", "inform", "rhost user exName", events.ExchangeDelete),
    event(PACKAGE, "bind", "inform", "rhost user exName qName key args", events.Bind),
    event(PACKAGE, "unbind", "inform", "rhost user exName qName key", events.Unbind),
    event(PACKAGE, "subscribe", "inform", "rhost user qName dest excl args", events.Subscribe),
    event(PACKAGE, "unsubscribe", "inform", "rhost user dest", events.Unsubscribe),
    event(
        PACKAGE, "queueThresholdCrossedUpward", "inform", "qName msgDepth byteDepth", events.QueueThresholdCrossedUpward
    ),
    event(
        PACKAGE,
        "queueThresholdCrossedDownward",
        "inform",
        "qName msgDepth byteDepth",
        events.QueueThresholdCrossedDownward,
    ),
    event(PACKAGE, "queueRedirect", "inform", "qName qTarget", events.QueueRedirect),
    event(PACKAGE, "queueRedirectCancelled", "inform", "qName qTarget", events.QueueRedirectCancelled),
    event(PACKAGE, "queueThresholdExceeded", "warn", "qName msgDepth byteDepth", events.QueueThresholdExceeded),
    event(_LEGACY, "enqThresholdExceeded", "warn", "jrnlId what", events.JournalEnqThresholdExceeded),
    event(_LEGACY, "created", "notice", "jrnlId fileSize numFiles", events.JournalCreated),
    event(_LEGACY, "full", "error", "jrnlId what", events.JournalFull),
    event(
        _LEGACY,
        "recovered",
        "notice",
        "jrnlId fileSize numFiles numEnq numTxn numTxnEnq numTxnDeq",
        events.JournalRecovered,
    ),
    event(_ACL, "allow", "inform", "userId action objectType objectName arguments", events.Allow),
    event(_ACL, "deny", "notice", "userId action objectType objectName arguments", events.Deny),
    event(_ACL, "connectionDeny", "notice", "userId clientAddr", events.ConnectionDeny),
    event(_ACL, "queueQuotaDeny", "notice", "userId queueName", events.QueueQuotaDeny),
    event(_OWN, "accessChanged", "notice", "rhost user kind name what", events.AccessChanged),
    event(_OWN, "queueMessageTooLarge", "warn", "qName byteSize threshold", events.QueueMessageTooLarge),
    event(_OWN, "queueMessageTooOld", "warn", "qName age msgDepth", events.QueueMessageTooOld),
    event(_OWN, "queueConsumerTooSlow", "warn", "qName policy msgDepth byteDepth", events.QueueConsumerTooSlow),
    event(_ACL, "fileLoaded", "inform", "userId", events.FileLoaded),
    event(_ACL, "fileLoadFailed", "error", "userId reason", events.FileLoadFailed),
    event(_HA, "membersUpdate", "inform", "members", None),
)

#: Event of the broker -> its class.
EVENTS: Final[Mapping[type[Event], EventClass]] = {
    each.raised_by: each for each in EVENT_CLASSES if each.raised_by is not None
}
