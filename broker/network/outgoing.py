"""Connections that the broker itself opens, for its links to other brokers.

A socket that is connected is served like that of a client (`socket_connection`): same backpressure, same timeouts, and
it counts as one of the connections that the broker has. Only its machine is made at once, and not found by the first
bytes. The name is looked up by the event loop; connecting, with the TLS handshake, has the time that a client has to
open its connection (`--max-negotiate-time`).

TLS: the other broker's certificate must be valid for the name of its host, by the authorities of `--ssl-ca`; without
that option by those of the system. The broker shows its own certificate, if it has one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from qstore.broker.federation.link import Remote
from qstore.broker.network.socket_connection import Accepts, Outgoing, SocketConnection
from qstore.broker.protocols.machine import Host, Machine
from qstore.broker.security.tls import TlsConfigurationError, client_context, tls_reason

if TYPE_CHECKING:
    from qstore.broker.network.clients import Clients
    from qstore.broker.network.server import Work


class OutgoingAttempt:
    """One attempt, and then its connection."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self.task: asyncio.Task[None] | None = None
        self.connection: SocketConnection | None = None
        self._is_over = False

    def ended(self, reason: str) -> None:
        """It has failed, or the connection has ended. Only the first reason counts."""
        if not self._is_over:
            self._is_over = True
            self._lost(reason)

    def abort(self) -> None:
        """As `Attempt.abort`."""
        self._is_over = True
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.shut_down("the link is closed")


class OutgoingConnections:
    """Connects the broker to others.

    Args:
        clients: all connections of the broker.
        work: runs slow work.
    """

    def __init__(self, clients: Clients, work: Work) -> None:
        self._clients, self._work = clients, work
        self._attempts: set[asyncio.Task[None]] = set()

    def connect(self, remote: Remote, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> OutgoingAttempt:
        """As `Network.connect`."""
        attempt = OutgoingAttempt(lost)
        task = attempt.task = self._clients.loop.create_task(self._connect(remote, make, attempt))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)
        return attempt

    async def _connect(self, remote: Remote, make: Callable[[Host], Machine], attempt: OutgoingAttempt) -> None:
        settings, loop = self._clients.settings, self._clients.loop
        begun: list[SocketConnection] = []

        def begin() -> SocketConnection:
            outgoing = Outgoing(make, attempt.ended, is_encrypted=remote.transport == "ssl")
            begun.append(SocketConnection(self._clients, self._work, Accepts(), outgoing))
            return begun[0]

        try:
            context: ssl.SSLContext | None = None
            if remote.transport == "ssl":
                context = client_context(settings.tls)
            async with asyncio.timeout(settings.negotiate_seconds):
                server_name = None if context is None else remote.host
                _, attempt.connection = await loop.create_connection(
                    begin, remote.host, remote.port, ssl=context, server_hostname=server_name
                )
        except TimeoutError:
            attempt.ended("Connection timed out")
        except ssl.SSLError as error:
            attempt.ended(f"TLS: {tls_reason(error)}")
        except TlsConfigurationError as error:
            attempt.ended(str(error))
        except OSError as error:
            attempt.ended(_reason(error))
        except (UnicodeError, ValueError) as error:  # the name of a host that cannot be one
            attempt.ended(f"{remote.host!a} is not the name of a host: {error}")
        finally:
            attempt.task = None
            if attempt.connection is None:
                # Cancelled or too late when the socket was connected already: asyncio's loop calls `connection_lost`
                # then, uvloop closes the socket without doing so.
                for connection in begun:
                    connection.abort()
                    connection.connection_lost(None)


def _reason(error: OSError) -> str:
    """Why a connection failed, in the system's words."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
