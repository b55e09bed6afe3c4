"""All connections that speak AMQP 0-9-1."""

from __future__ import annotations

import time

from qstore.broker.model.broker import Broker
from qstore.broker.protocols.amqp_0_9_1.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_9_1.shared import Shared
from qstore.broker.protocols.amqp_0_9_1.traced_connection import TracedConnection
from qstore.broker.protocols.frame_log import is_tracing
from qstore.broker.protocols.machine import DetachedSession, Host, Peer
from qstore.broker.security.authentication import Authentication


class Amqp091Connections:
    """The AMQP 0-9-1 connections of one broker, with their shared state.

    Args:
        broker: the model.
        authentication: how clients log in.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._authentication, self._shared = authentication, Shared(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        make = TracedConnection if is_tracing() else ServerConnection
        return make(host, self._shared, self._authentication, peer, time.monotonic)

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        self._shared.failed_logins.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """None: channels end with their connection."""
        return []

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages."""
        return self._shared.budget.used

    def close(self) -> None:
        """The broker stops: nothing outlives a connection."""
