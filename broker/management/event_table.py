"""The events of the QMF schema: how each of the broker's events is called there, with its arguments and severity.

This broker does not raise those of links and redirected queues (`NOT_RAISED`), since it has neither.

Source: the QMF schema of qpidd's broker, its events. A declaration's `disp` is whether the object is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from qstore.broker.model import events
from qstore.broker.model.events import Event

_NAMESPACE: Final = UUID("c2a3f2c0-52d0-5c7e-a1a5-6d4a0b9e8f02")


class Severity(IntEnum):
    """How severe an event is; the value is that of syslog."""

    ERROR = 3
    WARN = 4
    NOTICE = 5
    INFORM = 6

    @property
    def word(self) -> str:
        """Its part of a routing key."""
        return _WORDS[self]


_WORDS: Final = {Severity.ERROR: "error", Severity.WARN: "warn", Severity.NOTICE: "notice", Severity.INFORM: "info"}


class EventClass(NamedTuple):
    """A class of events.

    Attributes:
        name: its name in the schema.
        arguments: the names of its arguments, in the order of the event's fields.
        severity: how severe it is.
        hash: identifies the class as it is here.
    """

    name: str
    arguments: tuple[str, ...]
    severity: Severity
    hash: UUID


def _event(kind: type[Event], arguments: str, severity: Severity) -> EventClass:
    return _class_of(kind.__name__[0].lower() + kind.__name__[1:], arguments, severity)


def _class_of(name: str, arguments: str, severity: Severity) -> EventClass:
    return EventClass(name, tuple(arguments.split()), severity, uuid5(_NAMESPACE, f"{name}: {arguments}"))


#: Event of the broker -> its class.
EVENTS: Final[Mapping[type[Event], EventClass]] = {
    kind: _event(kind, arguments, severity)
    for kind, arguments, severity in (
        (events.QueueDeclare, "rhost user qName durable excl autoDel altEx args disp", Severity.INFORM),
        (events.QueueDelete, "rhost user qName", Severity.INFORM),
        (events.ExchangeDeclare, "rhost user exName exType altEx durable autoDel args disp", Severity.INFORM),
        (events.ExchangeDelete, "rhost user exName", Severity.INFORM),
        (events.Bind, "rhost user exName qName key args", Severity.INFORM),
        (events.Unbind, "rhost user exName qName key", Severity.INFORM),
        (events.Subscribe, "rhost user qName dest excl args", Severity.INFORM),
        (events.Unsubscribe, "rhost user dest", Severity.INFORM),
        (events.ClientConnect, "rhost user properties", Severity.INFORM),
        (events.ClientConnectFail, "rhost user reason properties", Severity.WARN),
        (events.ClientDisconnect, "rhost user properties", Severity.INFORM),
        (events.QueueThresholdExceeded, "qName msgDepth byteDepth", Severity.WARN),
        (events.QueueThresholdCrossedUpward, "qName msgDepth byteDepth", Severity.INFORM),
        (events.QueueThresholdCrossedDownward, "qName msgDepth byteDepth", Severity.INFORM),
    )
}

#: Classes of events that consoles are told of, and that are never raised.
NOT_RAISED: Final = tuple(
    _class_of(name, arguments, severity)
    for name, arguments, severity in (
        ("brokerLinkUp", "rhost", Severity.INFORM),
        ("brokerLinkDown", "rhost", Severity.WARN),
        ("queueRedirect", "qName qTarget", Severity.INFORM),
        ("queueRedirectCancelled", "qName qTarget", Severity.INFORM),
    )
)
