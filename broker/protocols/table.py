"""The protocols that the broker speaks, selected by the first bytes that a client sends.

Each has a row: its name, its headers of eight bytes, and a factory for its connections. A client with another header is
identified in the log (`foreign_client`), and answered with the header of the first protocol that is offered, as every
version of AMQP requires; then the connection is closed. So are clients of other protocols.

An AMQP client begins with eight bytes, the last four of which give the protocol and version, in an order that differs
between versions:

    AMQP 0-8, 0-9      "AMQP" 1 1 major minor
    AMQP 0-9-1         "AMQP" 0 major minor revision
    AMQP 0-10          "AMQP" class instance major minor
    AMQP 1.0           "AMQP" id major minor revision; id 0 plain, 2 TLS, 3 SASL
    TLS                22, a record of kind handshake, then its version, of which the first byte is 3
    HTTP               a method

Source: AMQP 0-9-1, section 4.2.2; 0-10, transport, version negotiation; 1.0, transport, section 2.2; RFC 8446, section
5.1; RFC 9110, section 9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.model.broker import Broker
from qstore.broker.model.events import Event, UserDeleted
from qstore.broker.protocols.amqp_0_9_1.connection import (
    Amqp08Connection,
    Amqp08PublishedConnection,
    Amqp09Connection,
    Amqp091Connections,
    ServerConnection,
)
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections
from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections
from qstore.broker.protocols.broker_connection import Connections
from qstore.broker.protocols.machine import DetachedSession
from qstore.broker.security.authentication import Authentication
from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER as AMQP_0_9_1_HEADER
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, SASL_HEADER
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.federation.interlinks import Interlinks

HEADER_BYTES: Final = 8


class ProtocolRow(NamedTuple):
    """A protocol.

    Attributes:
        name: its name in the log.
        version: its name in the option `--protocols`.
        headers: the protocol headers that select it; the first is the answer to those of others.
        make: creates its `Connections` from the broker and the authentication.
    """

    name: str
    version: str
    headers: tuple[bytes, ...]
    make: Callable[[Broker, Authentication], Connections]


def _older(version: str, connection: type[ServerConnection]) -> ProtocolRow:
    """A row of an older version of AMQP 0-9-1."""
    make = partial(Amqp091Connections, connection=connection)
    return ProtocolRow(connection.protocol, version, (connection.protocol_header,), make)


#: The supported protocols; the first is the preferred one.
TABLE: Final[tuple[ProtocolRow, ...]] = (
    ProtocolRow("AMQP 0-10", "0-10", (AMQP_0_10_HEADER,), Amqp010Connections),
    ProtocolRow("AMQP 0-9-1", "0-9-1", (AMQP_0_9_1_HEADER,), Amqp091Connections),
    ProtocolRow("AMQP 1.0", "1.0", (SASL_HEADER, AMQP_HEADER), Amqp10Connections),
    _older("0-9", Amqp09Connection),
    _older("0-8", Amqp08Connection),
    _older("0-8", Amqp08PublishedConnection),
)


VERSIONS: Final = tuple(dict.fromkeys(row.version for row in TABLE))


class Protocols:
    """The protocols of one broker: those that its settings offer.

    Args:
        broker: the model.
        authentication: how clients log in.

    Attributes:
        links: for links to other brokers.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        offered = broker.settings.protocols or VERSIONS
        rows = [each for each in TABLE if each.version in offered]
        self._all = [each.make(broker, authentication) for each in rows]
        self._by_header = {header: made for each, made in zip(rows, self._all, strict=True) for header in each.headers}
        links = self._by_header.get(AMQP_0_10_HEADER)
        self.links = links if isinstance(links, Amqp010Connections) else Amqp010Connections(broker, authentication)
        self.names = ", ".join(dict.fromkeys(each.name for each in rows))
        self.answer = rows[0].headers[0]
        broker.events.listen(self._heard, UserDeleted)

    def find(self, begin: bytes) -> Connections | None:
        """The connections of the protocol that begins with these bytes; None if it is not supported."""
        return self._by_header.get(begin[:HEADER_BYTES])

    @staticmethod
    def is_decided(begin: bytes) -> bool:
        """Whether these bytes are enough to select the protocol."""
        return len(begin) >= HEADER_BYTES or not any(each.headers[0].startswith(begin[:4]) for each in TABLE)

    def lead_to(self, interlinks: Interlinks) -> None:
        """Have links of AMQP 1.0 lead to these domains."""
        for each in self._all:
            if isinstance(each, Amqp10Connections):
                each.interlinks = interlinks

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        for each in self._all:
            each.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions of all protocols that wait to be attached again."""
        return [session for each in self._all for session in each.detached_sessions()]

    def _heard(self, event: Event) -> None:
        """What a deleted user has left must not hold messages, nor be there for a new user of that name."""
        if isinstance(event, UserDeleted):
            for each in self._all:
                each.user_deleted(event.user)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages, over all protocols."""
        return sum(each.unfinished_bytes for each in self._all)

    def close(self) -> None:
        """The broker stops."""
        for each in self._all:
            each.close()


_HEADERS: Final = {
    b"AMQP\x01\x01\x08\x00": "an AMQP 0-8 client",
    b"AMQP\x01\x01\x00\x09": "an AMQP 0-9 client",
    b"AMQP\x01\x01\x09\x01": "an AMQP 0-8 client",
    b"AMQP\x00\x00\x09\x01": "an AMQP 0-9-1 client",
    b"AMQP\x00\x01\x00\x00": "an AMQP 1.0 client",
    b"AMQP\x02\x01\x00\x00": "an AMQP 1.0 client that requests TLS",
    b"AMQP\x03\x01\x00\x00": "an AMQP 1.0 client that requests SASL",
}
TLS_HELLO: Final = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
_HTTP: Final = tuple(
    method + b" "
    for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI")
)


def foreign_client(begin: bytes) -> str:
    """A description of the client, with an article, by its first bytes: eight, or all that it has sent."""
    named = _HEADERS.get(begin)
    if named is not None:
        return named
    if begin.startswith(TLS_HELLO):
        return "a TLS client"
    if begin.startswith(_HTTP):
        return "an HTTP client"
    if begin.startswith(b"AMQP"):
        return f"a client of an unknown AMQP version (header {begin.hex(' ')})"
    return f"a client of an unknown protocol (first bytes {begin!a})"
