"""The protocols that the broker speaks, found by the first bytes that a client sends.

Each has a row: its name, its header of eight bytes, and what makes the connections that speak it. A client that begins
otherwise is named in the log, and answered with the header of the first row, as every version of AMQP asks for
(`detection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from broker.model.broker import Broker
from broker.protocols.amqp_0_10.connections import Amqp010Connections
from broker.protocols.machine import Host, Machine, Peer
from broker.security.authentication import Authentication
from formats.amqp_0_10.frames import PROTOCOL_HEADER as AMQP_0_10_HEADER

HEADER_BYTES: Final = 8


class Connections(Protocol):
    """All connections of one protocol: what they have in common."""

    def connect(self, host: Host, peer: Peer) -> Machine:
        """The machine of a new one."""

    def tick(self, now: float) -> None:
        """Some time has gone by, in seconds of a clock that does not go back."""

    @property
    def unfinished_bytes(self) -> int:
        """What has come of messages of which only a part has."""

    def close(self) -> None:
        """The broker ends: end what outlives a connection."""


class Spoken(NamedTuple):
    """A protocol.

    Attributes:
        name: as the log has it.
        header: what a client that speaks it begins with.
        make: makes its `Connections`, of a broker and the ways to log in.
    """

    name: str
    header: bytes
    make: Callable[[Broker, Authentication], Connections]


#: What the broker speaks, best first.
TABLE: Final = (Spoken("AMQP 0-10", AMQP_0_10_HEADER, Amqp010Connections),)


class Protocols:
    """The protocols of one broker.

    Args:
        broker: the model.
        authentication: how clients log in.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._by_header = {each.header: each.make(broker, authentication) for each in TABLE}
        self.names = ", ".join(each.name for each in TABLE)
        self.answer = TABLE[0].header

    def find(self, begin: bytes) -> Connections | None:
        """Those of a client that begins so; None for a protocol that is not spoken."""
        return self._by_header.get(begin[:HEADER_BYTES])

    @staticmethod
    def is_decided(begin: bytes) -> bool:
        """Whether a client that begins so has said what it speaks."""
        return len(begin) >= HEADER_BYTES or not any(each.header.startswith(begin[:4]) for each in TABLE)

    def tick(self, now: float) -> None:
        """Some time has gone by."""
        for each in self._by_header.values():
            each.tick(now)

    @property
    def unfinished_bytes(self) -> int:
        """What has come of messages of which only a part has."""
        return sum(each.unfinished_bytes for each in self._by_header.values())

    def close(self) -> None:
        """The broker ends."""
        for each in self._by_header.values():
            each.close()
