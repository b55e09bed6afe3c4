"""Sends the messages of QMF version 1: replies, and on the exchange qpid.management what is published unasked.

    console.obj.1.0.PACKAGE.CLASS       objects that have changed
    console.event.1.0.PACKAGE.EVENT     an event
    console.heartbeat.1.0               a heartbeat
    schema.package                      packages and classes of attached agents that are new
    agent.1.BANK                        to an attached agent

Nothing is encoded for which no queue is bound. Several messages go into one AMQP message, up to `MAX_BYTES`.

`qmf.console` takes the header `qmf.agent` for the name of an agent of version 2, and drops events and updates that have
it. That is right if the agent speaks version 2, too: the console gets them so, and would see everything twice. If it
does not (`mgmt-qmf2=no`), the messages have no application headers, as those of qpidd.

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19553-20121).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from qstore.broker.management.outbox import VERSION_1
from qstore.broker.management.qmf1.content import event_message
from qstore.broker.model.message import NewMessage
from qstore.formats.qmf.v1.messages import encode_message
from qstore.formats.qmf.v1.types import QmfError
from qstore.formats.values import EMPTY_MAP, typed_map

if TYPE_CHECKING:
    from qstore.broker.management.events import EventClass, Timed
    from qstore.broker.management.objects.element import ManagedClass
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.request import Request
    from qstore.broker.model.caller import Caller

MAX_BYTES: Final = 60_000
SCHEMA_KEY: Final = "schema.package"
_BANKS: Final = "1.0"


class Sender:
    """Sends the messages of one agent.

    Args:
        outbox: puts them on queues.
        name: the agent's name in version 2; empty if it does not speak that.
    """

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox = outbox
        self._headers = typed_map({"qmf.agent": name}) if name else EMPTY_MAP

    def reply(self, request: Request, messages: Iterable[bytes]) -> None:
        """Send replies, if anybody waits for them."""
        if request.reply_to is not None:
            for content in messages:
                self._send(request.reply_to.exchange, request.reply_to.routing_key, content, request.caller)

    def publish(self, key: str, content: bytes) -> None:
        """Publish one or more messages."""
        self._send(VERSION_1, key, content)

    def is_heard(self, key: str) -> bool:
        """Whether a queue is bound for a key."""
        return self._outbox.is_heard(VERSION_1, key)

    @staticmethod
    def data_key(of: ManagedClass) -> str:
        """The key under which the objects of a class are published."""
        return f"console.obj.{_BANKS}.{of.package}.{of.name}"

    def publish_events(self, of: EventClass, events: Iterable[Timed]) -> None:
        """Publish events of a class, if anybody is bound for them."""
        key, batch = f"console.event.{_BANKS}.{of.package}.{of.name}", Batch()
        if not self.is_heard(key):
            return
        for event, raised in events:
            with suppress(QmfError):
                if full := batch.add(event_message(of, event, raised)):
                    self.publish(key, full)
        if rest := batch.take():
            self.publish(key, rest)

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if anybody is bound for it."""
        key = f"console.heartbeat.{_BANKS}"
        if self.is_heard(key):
            self.publish(key, encode_message("h", 0, max(0, round(now * 1e9))))

    def _send(self, exchange: str, key: str, content: bytes, reply_for: Caller | None = None) -> None:
        new = NewMessage(key, self._headers, content=content, exchange=exchange)
        self._outbox.send(new, reply_for=reply_for)


class Batch:
    """Messages that are collected into one body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> bytes:
        """Add a message. Returns the body that is full without it; empty if none is."""
        full = b""
        if self._size + len(message) > MAX_BYTES:
            full = self.take()
        self._parts.append(message)
        self._size += len(message)
        return full

    def take(self) -> bytes:
        """The body; empty if there is none."""
        body = b"".join(self._parts)
        self._parts, self._size = [], 0
        return body
