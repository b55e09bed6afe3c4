"""The protocols that the broker speaks, selected by the first bytes that a client sends.

Each has a row: its name, its headers of eight bytes, and a factory for its connections. The factory imports the modules
of the protocol, for its first client, or soon after the broker has begun to listen (`Protocols.load`), so that they are
there before the installation can change. A client with another header is identified in the log (`foreign_client`), and
answered with the header of the first protocol that is offered, as every version of AMQP requires; then the connection
is closed. So are clients of other protocols.

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

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.log.logs import log_of
from qstore.broker.model.events import Event, UserDeleted
from qstore.formats.amqp_0_9_1.frames import HEADER_0_8, HEADER_0_8_PUBLISHED, HEADER_0_9
from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER as AMQP_0_9_1_HEADER
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, SASL_HEADER
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.federation.interlinks import Interlinks
    from qstore.broker.model.broker import Broker
    from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections
    from qstore.broker.protocols.broker_connection import Connections
    from qstore.broker.protocols.machine import DetachedSession
    from qstore.broker.security.authentication import Authentication

_LOG: Final = log_of("Protocol")

HEADER_BYTES: Final = 8


class ProtocolRow(NamedTuple):
    """A protocol.

    Attributes:
        name: its name in the log.
        version: its name in the option `--protocols`.
        headers: the protocol headers that select it; the first is the answer to those of others.
        make: creates its `Connections` from the broker and the authentication. Raises ImportError.
    """

    name: str
    version: str
    headers: tuple[bytes, ...]
    make: Callable[[Broker, Authentication], Connections]


def _make_0_10(broker: Broker, authentication: Authentication) -> Amqp010Connections:
    from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections

    return Amqp010Connections(broker, authentication)


def _make_0_9_1(broker: Broker, authentication: Authentication) -> Connections:
    from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections

    return Amqp091Connections(broker, authentication)


def _make_0_9(broker: Broker, authentication: Authentication) -> Connections:
    from qstore.broker.protocols.amqp_0_9_1.connection import Amqp09Connection, Amqp091Connections

    return Amqp091Connections(broker, authentication, Amqp09Connection)


def _make_0_8(broker: Broker, authentication: Authentication) -> Connections:
    from qstore.broker.protocols.amqp_0_9_1.connection import Amqp08Connection, Amqp091Connections

    return Amqp091Connections(broker, authentication, Amqp08Connection)


def _make_0_8_published(broker: Broker, authentication: Authentication) -> Connections:
    from qstore.broker.protocols.amqp_0_9_1.connection import Amqp08PublishedConnection, Amqp091Connections

    return Amqp091Connections(broker, authentication, Amqp08PublishedConnection)


def _make_1_0(broker: Broker, authentication: Authentication) -> Connections:
    from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections

    return Amqp10Connections(broker, authentication)


#: The supported protocols; the first is the preferred one.
TABLE: Final[tuple[ProtocolRow, ...]] = (
    ProtocolRow("AMQP 0-10", "0-10", (AMQP_0_10_HEADER,), _make_0_10),
    ProtocolRow("AMQP 0-9-1", "0-9-1", (AMQP_0_9_1_HEADER,), _make_0_9_1),
    ProtocolRow("AMQP 1.0", "1.0", (SASL_HEADER, AMQP_HEADER), _make_1_0),
    ProtocolRow("AMQP 0-9", "0-9", (HEADER_0_9,), _make_0_9),
    ProtocolRow("AMQP 0-8", "0-8", (HEADER_0_8,), _make_0_8),
    ProtocolRow("AMQP 0-8", "0-8", (HEADER_0_8_PUBLISHED,), _make_0_8_published),
)


VERSIONS: Final = tuple(dict.fromkeys(row.version for row in TABLE))


class Protocols:
    """The protocols of one broker: those that its settings offer.

    Args:
        broker: the model.
        authentication: how clients log in.

    Attributes:
        begins: called before the first client is served, unless that is over.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._broker, self._authentication = broker, authentication
        offered = broker.settings.protocols or VERSIONS
        self._rows = [each for each in TABLE if each.version in offered]
        self._by_header = {header: row for row in self._rows for header in row.headers}
        self._made: dict[ProtocolRow, Connections | None] = {}  # None: cannot be loaded
        self._links: Amqp010Connections | None = None
        self._interlinks: Interlinks | None = None
        self.begins: Callable[[], None] | None = None
        self.names = ", ".join(dict.fromkeys(each.name for each in self._rows))
        self.answer = self._rows[0].headers[0]
        broker.events.listen(self._heard)

    def find(self, begin: bytes) -> Connections | None:
        """The connections of the protocol that begins with these bytes; None if it is not supported."""
        if self.begins is not None:
            self.begins()
        row = self._by_header.get(begin[:HEADER_BYTES])
        return None if row is None else self._connections(row)

    def load(self) -> Iterator[None]:
        """Import what is offered, in turns."""
        for row in self._rows:
            self._connections(row)
            yield

    def _connections(self, row: ProtocolRow) -> Connections | None:
        """The connections of a protocol; None if its modules cannot be imported."""
        if row in self._made:
            return self._made[row]
        try:
            made: Connections | None = row.make(self._broker, self._authentication)
        except ImportError as error:
            text = "Clients of %s are refused, since a module cannot be imported: %s; install qstore again"
            _LOG.critical(text, row.name, printable(str(error)))
            made = None
        self._made[row] = made
        if made is not None and self._interlinks is not None:
            made.lead_to(self._interlinks)
        return made

    @property
    def links(self) -> Amqp010Connections:
        """For links to other brokers. Raises ImportError."""
        if self._links is None:
            from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections

            row = self._by_header.get(AMQP_0_10_HEADER)
            found = None if row is None else self._connections(row)
            if not isinstance(found, Amqp010Connections):
                found = Amqp010Connections(self._broker, self._authentication)
            self._links = found
        return self._links

    @staticmethod
    def is_decided(begin: bytes) -> bool:
        """Whether these bytes are enough to select the protocol."""
        return len(begin) >= HEADER_BYTES or not any(each.headers[0].startswith(begin[:4]) for each in TABLE)

    def lead_to(self, interlinks: Interlinks) -> None:
        """Have links of AMQP 1.0 lead to these domains."""
        self._interlinks = interlinks
        for each in self._loaded:
            each.lead_to(interlinks)

    @property
    def _loaded(self) -> list[Connections]:
        return [each for each in self._made.values() if each is not None]

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        for each in self._loaded:
            each.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions of all protocols that wait to be attached again."""
        return [session for each in self._loaded for session in each.detached_sessions()]

    def _heard(self, event: Event) -> None:
        """What a deleted user has left must not hold messages, nor be there for a new user of that name."""
        if isinstance(event, UserDeleted):
            for each in self._loaded:
                each.user_deleted(event.user)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages, over all protocols."""
        return sum(each.unfinished_bytes for each in self._loaded)

    def close(self) -> None:
        """The broker stops."""
        for each in self._loaded:
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
