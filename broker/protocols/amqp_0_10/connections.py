"""All connections that speak AMQP 0-10, and the sessions that may outlive them."""

from __future__ import annotations

import time

from qstore.broker.model.broker import Broker
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_10.session_registry import SessionRegistry
from qstore.broker.protocols.amqp_0_10.traced_connection import TracedConnection
from qstore.broker.protocols.frame_log import is_tracing
from qstore.broker.protocols.machine import DetachedSession, Host, Peer
from qstore.broker.security.authentication import Authentication


class Amqp010Connections:
    """The AMQP 0-10 connections of one broker, with their shared state.

    Args:
        broker: the model.
        authentication: how clients log in.

    Attributes:
        sessions: all sessions.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._broker, self._authentication = broker, authentication
        self.sessions = SessionRegistry(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        make = TracedConnection if is_tracing() else ServerConnection
        return make(
            host,
            self.sessions,
            self._broker.tick,
            self._broker.settings,
            self._authentication,
            link=peer.link,
            now=time.monotonic,
            refusal=peer.refusal,
            peer=peer.address,
        )

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        self.sessions.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions that wait to be attached again."""
        return self.sessions.list_detached(time.monotonic)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete and interrupted messages."""
        return self.sessions.budget.used + self.sessions.interrupted.used

    def close(self) -> None:
        """The broker stops: end all sessions."""
        self.sessions.close()
