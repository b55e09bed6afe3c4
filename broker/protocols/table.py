"""The protocols that the broker speaks, selected by the first bytes that a client sends.

Each has a row: its name, its header of eight bytes, and a factory for its connections. A client with another header is
identified in the log, and answered with the header of the first protocol that is offered, as every version of AMQP
requires (`detection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from qstore.broker.model.broker import Broker
from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections
from qstore.broker.protocols.machine import DetachedSession, Host, Machine, Peer
from qstore.broker.security.authentication import Authentication
from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER as AMQP_0_9_1_HEADER
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER

HEADER_BYTES: Final = 8


class Connections(Protocol):
    """The connections of one protocol, with their shared state."""

    def connect(self, host: Host, peer: Peer) -> Machine:
        """Create the machine of a new connection."""

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions that wait to be attached again."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages."""

    def close(self) -> None:
        """The broker stops: end everything that outlives a connection."""


class ProtocolRow(NamedTuple):
    """A protocol.

    Attributes:
        name: its name in the log.
        version: the same for the option `--protocols`.
        header: its protocol header.
        make: creates its `Connections` from the broker and the authentication.
    """

    name: str
    version: str
    header: bytes
    make: Callable[[Broker, Authentication], Connections]


#: The supported protocols; the first is the preferred one.
TABLE: Final[tuple[ProtocolRow, ...]] = (
    ProtocolRow("AMQP 0-10", "0-10", AMQP_0_10_HEADER, Amqp010Connections),
    ProtocolRow("AMQP 0-9-1", "0-9-1", AMQP_0_9_1_HEADER, Amqp091Connections),
)


VERSIONS: Final = tuple(row.version for row in TABLE)


class Protocols:
    """The protocols of one broker: those that its settings offer.

    Args:
        broker: the model.
        authentication: how clients log in.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        offered = broker.settings.protocols or VERSIONS
        rows = [each for each in TABLE if each.version in offered]
        self._by_header = {each.header: each.make(broker, authentication) for each in rows}
        self.names = ", ".join(each.name for each in rows)
        self.answer = rows[0].header

    def find(self, begin: bytes) -> Connections | None:
        """The connections of the protocol that begins with these bytes; None if it is not supported."""
        return self._by_header.get(begin[:HEADER_BYTES])

    @staticmethod
    def is_decided(begin: bytes) -> bool:
        """Whether these bytes are enough to select the protocol."""
        return len(begin) >= HEADER_BYTES or not any(each.header.startswith(begin[:4]) for each in TABLE)

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        for each in self._by_header.values():
            each.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions of all protocols that wait to be attached again."""
        return [session for each in self._by_header.values() for session in each.detached_sessions()]

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages, over all protocols."""
        return sum(each.unfinished_bytes for each in self._by_header.values())

    def close(self) -> None:
        """The broker stops."""
        for each in self._by_header.values():
            each.close()
