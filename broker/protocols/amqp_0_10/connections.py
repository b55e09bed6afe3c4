"""All connections that speak AMQP 0-10, and the sessions that may outlive them."""

from __future__ import annotations

import time

from broker.model.broker import Broker
from broker.protocols.amqp_0_10 import traced_connection
from broker.protocols.amqp_0_10.server_connection import ServerConnection
from broker.protocols.amqp_0_10.session_registry import SessionRegistry
from broker.protocols.amqp_0_10.traced_connection import TracedConnection
from broker.protocols.machine import Host, Peer
from broker.security.authentication import Authentication


class Amqp010Connections:
    """What they have in common.

    Args:
        broker: the model.
        authentication: how clients log in.

    Attributes:
        sessions: all of them.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._broker, self._authentication = broker, authentication
        self.sessions = SessionRegistry(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """The machine of a new connection."""
        make = TracedConnection if traced_connection.is_wanted() else ServerConnection
        return make(
            host,
            self.sessions,
            self._broker.turn,
            self._broker.settings,
            self._authentication,
            is_local=peer.is_local,
            now=time.monotonic,
            refusal=peer.refusal,
            peer=peer.address,
        )

    def tick(self, now: float) -> None:
        """Some time has gone by."""
        self.sessions.tick(now)

    @property
    def unfinished_bytes(self) -> int:
        """What has come of messages of which only a part has."""
        return self.sessions.budget.used + self.sessions.interrupted.used

    def close(self) -> None:
        """The broker ends: so do the sessions."""
        self.sessions.close()
