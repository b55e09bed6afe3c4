"""The listening sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast

from qstore.broker.log.logs import log_of
from qstore.broker.model.memory import MemoryCeiling
from qstore.broker.network.socket_connection import Accepts
from qstore.formats.named_tuple import NamedTuple

_LOG: Final = log_of("Network")


class _Refused(asyncio.Protocol):
    """A connection for which there is no memory."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


_REFUSED: Final = _Refused()


class _Listener(NamedTuple):
    """The sockets of one interface.

    Attributes:
        server: the event loop's.
        connect: makes a connection's protocol.
    """

    server: asyncio.Server
    connect: Callable[[], asyncio.Protocol]

    @property
    def descriptors(self) -> list[int]:
        """The sockets' descriptors."""
        return [each.fileno() for each in self.server.sockets]


class Listeners:
    """Listens on every interface.

    While there is no memory for a connection, it is refused. If an allocation fails in uvloop itself, it does not call
    `uv_accept`, and libuv stops watching the socket: no client can connect there until the socket is opened again.

    Args:
        loop: the event loop.
        memory: gets reports of failed allocations.
        interfaces: names or addresses.
        backlog: connections of a socket that may wait for being accepted.

    Attributes:
        ports: those listened on, one for each address.
        transports: port -> its transports: TCP, TCP/SSL, or both.
        may_be_stuck: the event loop has reported that an allocation failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, memory: MemoryCeiling, interfaces: Sequence[str], backlog: int
    ) -> None:
        self._loop, self._memory, self._interfaces, self._backlog = loop, memory, interfaces, backlog
        self._listeners: list[_Listener] = []
        self._accepted = 0
        self._accepted_before = 0  # when `look` was called last
        self._waiting: set[int] = set()  # descriptors on which connections waited then
        self._reopening: asyncio.Task[None] | None = None
        self.ports: list[int] = []
        self.transports: dict[int, str] = {}
        self.may_be_stuck = False

    async def listen(self, port: int, accepts: Accepts, connect: Callable[[], asyncio.Protocol]) -> None:
        """Listen on a port of every interface; 0: on one that is free.

        Args:
            port: its number.
            accepts: its clients.
            connect: makes a connection's protocol.

        Raises:
            OSError: an address cannot be used. Nothing is listened on then.
        """
        ports: list[int] = []
        servers: list[asyncio.Server] = []
        for interface in self._interfaces:
            try:
                server = await self._loop.create_server(
                    partial(self._connect, connect), interface, port, backlog=self._backlog
                )
            except OSError as error:
                if ports and _is_unavailable(error):
                    _LOG.info("Not listening on %s: %s", interface, error)
                    continue  # a host without IPv6
                self.close()
                raise
            servers.append(server)
            self._listeners.append(_Listener(server, connect))
            ports.extend(each.getsockname()[1] for each in server.sockets)
            port = port or ports[0]
        transports = (("TCP", accepts.plain), ("TCP/SSL", accepts.tls is not None))
        self.transports |= dict.fromkeys(ports, ", ".join(name for name, is_on in transports if is_on))
        self.ports += ports
        _log_listening(servers, accepts)

    def _connect(self, connect: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        self._accepted += 1
        try:
            return connect()
        except MemoryError:
            self._memory.exhausted("A new connection")
            return _REFUSED

    def look(self) -> None:
        """Reopen the sockets if the event loop may have stopped accepting connections; called at intervals.

        Not before there is memory again: if it ran out meanwhile, the event loop's new handles would be undefined.
        """
        if not self._listeners or self._memory.is_exhausted:
            return
        poll = select.poll()
        for each in self._listeners:
            for descriptor in each.descriptors:
                poll.register(descriptor, select.POLLIN)
        waiting = {descriptor for descriptor, _ in poll.poll(0)}
        stuck = waiting & self._waiting if self._accepted == self._accepted_before else set()
        self._waiting, self._accepted_before = waiting, self._accepted
        if (stuck or self.may_be_stuck) and self._reopening is None:
            self._reopening = self._loop.create_task(self._reopen())
            self.may_be_stuck = False

    async def _reopen(self) -> None:
        """Listen on the same sockets with new handles of the event loop, which accept the connections pending there."""
        try:
            for listener in list(self._listeners):
                for descriptor in listener.descriptors:
                    own = socket.socket(fileno=os.dup(descriptor))
                    connect = partial(self._connect, listener.connect)
                    try:
                        server = await self._loop.create_server(connect, sock=own, backlog=self._backlog)
                    except BaseException:
                        own.detach()  # its handle may close it, too: then another file would be closed
                        raise
                    self._listeners.append(_Listener(server, listener.connect))
                listener.server.close()
                self._listeners.remove(listener)
            _LOG.info("Listening sockets reopened, since a failed allocation may have stopped accepting")
        except MemoryError:
            self._memory.exhausted("A listener")
        except OSError as error:
            _LOG.error("Cannot reopen the listening sockets; new clients may be unable to connect: %s", error)
        finally:
            self._reopening = None

    def close(self) -> None:
        """Close the sockets: no client can connect any more."""
        if self._reopening is not None:
            self._reopening.cancel()
        for listener in self._listeners:
            listener.server.close()
        self._listeners.clear()


def _log_listening(servers: list[asyncio.Server], accepts: Accepts) -> None:
    """Log the addresses, one line per port. The text up to the port is qpidd's."""
    addresses: dict[int, list[str]] = {}
    for name in (each.getsockname() for server in servers for each in server.sockets):
        addresses.setdefault(name[1], []).append(name[0])
    for port, hosts in addresses.items():
        is_loopback = all(ipaddress.ip_address(host).is_loopback for host in hosts)
        only = "; the loopback interface only, see --interface" if is_loopback else ""
        what = "Listening" if accepts.plain else "Listening for SSL connections"
        both = "; with and without TLS" if accepts.plain and accepts.tls is not None else ""
        _LOG.notice("%s on TCP/TCP6 port %d (%s%s%s)", what, port, ", ".join(hosts), both, only)


def _is_unavailable(error: OSError) -> bool:
    return isinstance(error, socket.gaierror) or error.errno in (97, 99)  # EAFNOSUPPORT, EADDRNOTAVAIL
