"""Sends the messages of QMF version 2: replies, events, what has changed, and heartbeats.

    agent.ind.data.PACKAGE.CLASS.VENDOR.PRODUCT.INSTANCE               objects that have changed
    agent.ind.event.PACKAGE.EVENT.SEVERITY.VENDOR.PRODUCT.INSTANCE     an event
    agent.ind.heartbeat.VENDOR.PRODUCT.INSTANCE                        a heartbeat, which expires after two intervals

These are the keys on qmf.default.topic; a dot within a part is written `_`. Nothing is encoded for which no queue is
bound.

Sources: Qpid wiki, "QMF Map Message Protocol" (seed 004, lines 19258-19551); qpidd, ManagementAgent.cpp (keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.outbox import TOPIC
from qstore.broker.management.qmf2 import content
from qstore.broker.model.message import NewMessage
from qstore.formats.values import typed_map, typed_value

if TYPE_CHECKING:
    from qstore.broker.management.events import EventClass, Timed
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import ManagedClass
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.request import Request
    from qstore.broker.model.caller import Caller

VENDOR, PRODUCT = "apache.org", "qpidd"
_APP_ID: Final = b"qmf2"
_EVENTS: Final = 25
"""In one message."""


class Sender:
    """Sends the messages of one agent.

    Args:
        managed: the broker.
        outbox: puts them on queues.

    Attributes:
        name: the agent's name.
    """

    def __init__(self, managed: ManagedBroker, outbox: Outbox) -> None:
        self._managed, self._outbox = managed, outbox
        instance = managed.identity.instance
        self.name = f"{VENDOR}:{PRODUCT}:{instance}"
        self._suffix = f"{_part(VENDOR)}.{PRODUCT}.{instance}"

    def attributes(self) -> dict[str, Any]:
        """Who the agent is."""
        managed = self._managed
        return {
            "_vendor": VENDOR,
            "_product": PRODUCT,
            "_instance": str(managed.identity.instance),
            "_name": self.name,
            "_timestamp": content.nanoseconds(managed.broker.clock()),
            "_heartbeat_interval": managed.interval,
            "_epoch": managed.identity.starts,
        }

    def reply(
        self,
        request: Request,
        opcode: str,
        values: Mapping[str, Any] | Sequence[Any],
        *,
        kind: str = "",
        is_partial: bool = False,
    ) -> None:
        """Send a reply, if anybody waits for it."""
        if request.reply_to is None:
            return
        headers: dict[str, Any] = {"method": "indication" if opcode == "_exception" else "response"}
        if kind:
            headers["qmf.content"] = kind
        if is_partial:
            headers["partial"] = None
        self._send(
            request.reply_to.exchange, request.reply_to.routing_key, opcode, values, headers,
            correlation_id=request.correlation_id, reply_for=request.caller,
        )  # fmt: skip

    # ---- unasked ----

    def publish_events(self, of: EventClass, events: Sequence[Timed]) -> None:
        """Publish events of a class, if anybody is bound for them."""
        key = f"agent.ind.event.{_part(of.package)}.{of.name}.{of.word}.{self._suffix}"
        if not self._outbox.is_heard(TOPIC, key):
            return
        headers = {"method": "indication", "qmf.content": "_event"}
        for at in range(0, len(events), _EVENTS):
            told = [content.event_data(of, event, raised) for event, raised in events[at : at + _EVENTS]]
            self._send(TOPIC, key, "_data_indication", told, headers)

    def data_key(self, of: ManagedClass) -> str:
        """The key under which the objects of a class are published."""
        return f"agent.ind.data.{_part(of.package)}.{of.name}.{self._suffix}"

    def publish_data(self, key: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """Publish objects that have changed."""
        headers = {"method": "indication", "qmf.content": "_data"}
        self._send(TOPIC, key, "_data_indication", objects, headers)

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if anybody is bound for it."""
        key = f"agent.ind.heartbeat.{self._suffix}"
        if self._outbox.is_heard(TOPIC, key):
            values, expires_at = {"_values": self.attributes()}, now + 2 * self._managed.interval
            headers = {"method": "indication"}
            self._send(TOPIC, key, "_agent_heartbeat_indication", values, headers, expires_at=expires_at)

    def _send(
        self,
        exchange: str,
        key: str,
        opcode: str,
        values: Mapping[str, Any] | Sequence[Any],
        headers: Mapping[str, Any],
        *,
        correlation_id: bytes | None = None,
        expires_at: float = 0.0,
        reply_for: Caller | None = None,
    ) -> None:
        new = NewMessage(
            key,
            typed_map({"qmf.opcode": opcode, "qmf.agent": self.name, **headers}),
            content=typed_value(values),
            exchange=exchange,
            app_id=_APP_ID,
            correlation_id=correlation_id,
            expires_at=expires_at,
        )
        self._outbox.send(new, reply_for=reply_for)


def _part(name: str) -> str:
    """A name as a part of a routing key."""
    return name.replace(".", "_")
