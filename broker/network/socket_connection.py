"""One client's socket: connects asyncio with the protocol's connection, a state machine without I/O.

Backpressure: a socket is not read while there is any reason for it (`stop_reading`); data that was already read waits
in the machine. `server` lists the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import select
import socket
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from qstore.broker.log.logs import DEBUG, INFO, log_of
from qstore.broker.model.errors import ModelError
from qstore.broker.model.memory import State
from qstore.broker.network.clients import Clients, network_of
from qstore.broker.network.login_checks import LoginCheck
from qstore.broker.network.tls_layer import TlsLayer
from qstore.broker.network.websocket_layer import REQUEST, WebSocketLayer
from qstore.broker.protocols.machine import Host, Machine, Peer
from qstore.broker.protocols.table import HEADER_BYTES, TLS_HELLO, foreign_client
from qstore.broker.security.authentication import PeerSecurity
from qstore.broker.security.sasl.exchange import Answer, PasswordCheck
from qstore.broker.security.tls import ServerContexts, TlsSession, certificate_user
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.network.server import Work


_LOG: Final = log_of("Network")

_FULL_READ: Final = 64 * 1024  # bytes of a read that has likely left more in the socket
_HIGH_WATER: Final = 1024 * 1024  # unsent bytes of a socket at which the machine stops sending
_LINGER_SECONDS: Final = 10.0  # for a client to read the remaining data of a closed connection
_REFUSAL_SECONDS: Final = 5.0  # for a client beyond the connection limit to read its refusal
_HOSTS_KEPT: Final = 1024  # clients come again and again
_write: Final = os.write  # compiled, this is a C variable
_MAX_REFUSED: Final = 64  # refusals in progress; further clients are disconnected without one


class Accepts(NamedTuple):
    """The clients that a listener accepts.

    Attributes:
        plain: whether connections without TLS.
        tls: the certificate, if connections with TLS.
    """

    plain: bool = True
    tls: ServerContexts | None = None


class Outgoing(NamedTuple):
    """A connection that the broker opens itself (`outgoing`).

    Attributes:
        make: makes its machine.
        lost: called once with the reason when it has ended.
        is_encrypted: whether the transport has a layer of TLS.
        is_listed: whether management shows it; not if it leads to this broker (`direct`), which shows the other end.
    """

    make: Callable[[Host], Machine]
    lost: Callable[[str], None]
    is_encrypted: bool
    is_listed: bool = True


class SocketConnection(asyncio.Protocol):
    """One socket and its protocol machine.

    Args:
        clients: all clients of the server.
        work: runs slow work.
        accepts: the clients that its listener accepts.
        outgoing: if the broker opens the connection itself.
    """

    def __init__(self, clients: Clients, work: Work, accepts: Accepts, outgoing: Outgoing | None = None) -> None:
        self._clients, self._work, self._accepts, self._outgoing = clients, work, accepts, outgoing
        self._transport: asyncio.Transport | None = None
        self._socket = -1  # its descriptor
        self._descriptor = -1  # the same, of a socket without TLS
        self._machine: Machine | None = None
        self._first_bytes = b""  # data received before the protocol is known
        self._reasons: set[object] = set()  # reasons for not reading
        self._opened = time.monotonic()
        self._closed = 0.0
        self._unsent = 0
        self._is_catching_up = self._is_counted = self._awaits_name = False
        self._host = self._network = ""
        self._peer = Peer("", PeerSecurity(is_local=False))
        self._login: LoginCheck | None = None

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        clients = self._clients
        peer = transport.get_extra_info("peername")
        address = _shown(peer)
        host = self._host = str(peer[0]) if peer else ""
        self._network = network_of(host)
        if self._outgoing is not None:
            self._begin_outgoing(
                self._outgoing, Peer(address, PeerSecurity(is_local=bool(peer) and _is_loopback(host)))
            )
            return
        user = str(transport.get_extra_info("internal_user") or "")
        if not user and not clients.admits(host, address):
            self._transport.abort()
            return
        refusal = clients.refusal(host, address)
        if refusal:
            if len(clients.refused) >= _MAX_REFUSED:
                self._transport.abort()
                return
            clients.refused[self] = None
            clients.loop.call_later(_REFUSAL_SECONDS, self.abort)
        else:
            clients.connections[self] = None
            clients.half_open.add(self._network, self)
            self._is_counted = True
            _LOG.debug("Client %s: connected", address)
        self._set_up_socket()
        security = PeerSecurity(is_local=bool(peer) and _is_loopback(host), is_encrypted=bool(user), internal_user=user)
        self._peer = Peer(address, security, refusal)
        if not user and clients.needs_name(host):
            self._awaits_name = True
            self.stop_reading(clients.host_names)
            clients.host_names.look_up(host, self._named)

    def _named(self, name: str) -> None:
        """The name of the client's host is known, or it is known that there is none: the firewall decides."""
        if self._transport is None or self._transport.is_closing():
            return
        self._awaits_name = False
        if not self._clients.admits_named(self._host, name, self._peer.address):
            self.abort()
            return
        self._peer = self._peer._replace(host_name=name)
        self.resume_reading(self._clients.host_names)
        if self._first_bytes:
            self.data_received(b"")

    def _set_up_socket(self) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        own = self._transport.get_extra_info("socket")
        if not self._clients.settings.tcp_nodelay:  # the event loop has set it
            with contextlib.suppress(OSError):
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        self._socket = self._descriptor = own.fileno()

    def _begin_outgoing(self, outgoing: Outgoing, peer: Peer) -> None:
        """The broker has connected to another one: no limit for clients applies, and the protocol is known."""
        self._clients.connections[self] = None
        self._set_up_socket()
        if outgoing.is_encrypted:
            self._descriptor = -1
        self._peer = peer
        machine = self._machine = outgoing.make(self)
        if self._clients.memory.state is not State.AMPLE:
            machine.watch_memory(is_short=True)

    @property
    def machine(self) -> Machine | None:
        """The machine of its protocol; None before the client has said which one."""
        return self._machine

    @property
    def is_listed(self) -> bool:
        """Whether management shows it."""
        return self._outgoing is None or self._outgoing.is_listed

    @property
    def address(self) -> str:
        """The client's address and port, for the log."""
        return self._peer.address

    @property
    def is_half_open(self) -> bool:
        """Whether the connection is not open yet."""
        machine = self._machine
        return machine is None or machine.is_negotiating

    def data_received(self, data: bytes) -> None:
        """The socket has received data."""
        machine = self._machine
        if machine is None:
            self._first_bytes += data
            if self._awaits_name:
                return
            machine = self._machine = self._find_machine()
            if machine is None:
                return
            data, self._first_bytes = self._first_bytes, b""
        clients = self._clients
        clients.busy_poll.begins()
        memory = clients.memory
        memory.unprobed -= len(data)
        if memory.unprobed < 0:
            memory.probe()
        try:
            self._process(machine, data)
            self._apply_backpressure(machine, has_more=len(data) >= _FULL_READ)
        except MemoryError:
            self._out_of_memory(machine)

    def _find_machine(self) -> Machine | None:
        """The machine for the protocol of a client's first bytes.

        None if more are needed, the client is refused, or its machine is behind a layer of TLS.
        """
        clients, begin = self._clients, self._first_bytes
        if self._accepts.tls is not None and begin[0] == TLS_HELLO[0] and self._begin_tls(begin):
            return None
        if self._transport is None or self._transport.is_closing():
            return None
        if clients.settings.websocket and self._accepts.plain and self._begin_websocket(begin):
            return None
        if not clients.protocols.is_decided(begin):
            return None
        if not self._accepts.plain:
            text = "Refused %s from %s: only TLS is accepted on this port"
            clients.foreign.write(time.monotonic(), text, foreign_client(begin[:HEADER_BYTES]), self._peer.address)
            self._transport.close()
            return None
        connections = clients.protocols.find(begin)
        if connections is None:
            text = "Refused %s from %s: this broker supports %s"
            client = foreign_client(begin[:HEADER_BYTES])
            clients.foreign.write(time.monotonic(), text, client, self._peer.address, clients.protocols.names)
            self._transport.write(clients.protocols.answer)
            self._transport.close()
            return None
        machine = connections.connect(self, self._peer)
        if clients.memory.state is not State.AMPLE:
            machine.watch_memory(is_short=True)
        return machine

    def _begin_tls(self, begin: bytes) -> bool:
        """Encrypt the connection if the client's first bytes are a TLS hello. Whether they are, or may become one."""
        if not TLS_HELLO.startswith(begin[: len(TLS_HELLO)]):
            return False
        transport, contexts = self._transport, self._accepts.tls
        if len(begin) >= len(TLS_HELLO) and transport is not None and contexts is not None:
            layer = TlsLayer(self, transport, contexts.current)
            self._transport, self._first_bytes, self._descriptor = layer, b"", -1
            self._accepts = Accepts()  # for the connection inside
            transport.set_protocol(layer)
            layer.data_received(begin)
        return True

    def _begin_websocket(self, begin: bytes) -> bool:
        """Put a layer of WebSocket in between if the client's first bytes request it. Whether they do, or may do so."""
        transport, clients = self._transport, self._clients
        if transport is None or isinstance(transport, WebSocketLayer) or not REQUEST.startswith(begin[: len(REQUEST)]):
            return False
        if len(begin) < len(REQUEST):
            return True
        layer = WebSocketLayer(
            self, transport, clients.loop, clients.settings.websocket_origins, self._websocket_refused
        )
        self._transport, self._first_bytes, self._descriptor = layer, b"", -1
        self._accepts = Accepts()  # for the connection inside
        transport.set_protocol(layer)
        layer.data_received(begin)
        return True

    def _websocket_refused(self, reason: str) -> None:
        """The request for a WebSocket, or a frame of it, is refused."""
        self._clients.foreign.write(time.monotonic(), "Refused %s: WebSocket: %s", self._peer.address, reason)

    def shake_hands(self, work: Callable[[], object], done: Callable[[Any], None]) -> None:
        """Do a step of the TLS handshake in a thread, and call `done` with its result, `Refused` or `Failure`."""
        self._login = self._work.logins.shake_hands(self._network, work, done, self._has_left)

    def secured(self, session: TlsSession) -> None:
        """The TLS handshake is complete."""
        certificate = session.certificate
        user = certificate_user(certificate, self._clients.settings.realm)
        self._peer = self._peer._replace(
            security=self._peer.security._replace(
                is_encrypted=True, certificate_user=user, ssf=session.ssf, tls=session.facts
            )
        )
        _LOG.debug("Client %s: encrypted with %s", self._peer.address, session.version)
        if certificate and not user:
            _LOG.info("Client %s: the name in its certificate is not a user name", self._peer.address)

    def not_secured(self, reason: str) -> None:
        """The TLS handshake has failed, or the encrypted data is damaged."""
        self._clients.foreign.write(time.monotonic(), "Refused %s: TLS: %s", self._peer.address, reason)

    def _process(self, machine: Machine, data: bytes | None) -> None:
        """Have the machine process bytes, or if None those that it has left; apply backpressure for its journals."""
        clients = self._clients
        tick = clients.tick
        before = tick.set_aside() if tick.journals else None
        try:
            if data is None:
                machine.resume()
            else:
                machine.receive(data)
            if tick.gatherings and any(journal.is_tight for journal in tick.journals):
                tick.put_gathered()  # later they would count as those of a connection that makes room
        finally:
            written = tick.journals if before is None else tick.written_since(before)
        if written:
            clients.pressure.after(self, written)

    def _apply_backpressure(self, machine: Machine, *, has_more: bool) -> None:
        """Stop reading while the machine has unprocessed data, or until other connections have been processed."""
        if self._clients.memory.state is not State.AMPLE and machine.take_published():
            self.stop_reading(self._clients.memory)
            self._clients.held_publishers[self] = time.monotonic()
        if machine.is_paused:
            self.stop_reading(machine)
        elif machine.is_behind or has_more:
            self.stop_reading(self.catch_up)
            self._clients.loop.call_soon(self.catch_up)

    def catch_up(self) -> None:
        """Process data that was already read, or resume reading; called after other connections were processed."""
        machine = self._machine
        if machine is None or machine.is_paused or machine.is_closed:
            return  # called again at the end of the pause
        if self._clients.pressure.holds(self._reasons) or self._clients.memory in self._reasons:
            return  # called again when these reasons are removed
        if machine.is_behind:
            self._clients.busy_poll.begins()
            self._is_catching_up = True
            try:
                self._process(machine, None)
                self._apply_backpressure(machine, has_more=False)
            except MemoryError:
                self._out_of_memory(machine)
                return
            finally:
                self._is_catching_up = False
        if not machine.is_behind and not machine.is_paused:
            self.resume_reading(self.catch_up)

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory has become short, or ample again."""
        if self._machine is not None:
            self._machine.watch_memory(is_short=is_short)

    def watch_disk(self, *, is_short: bool) -> None:
        """The disk is too full for the client's messages, or no longer."""
        if self._machine is not None:
            self._machine.watch_disk(is_short=is_short)

    def watch_rules(self) -> None:
        """The authorizer has other rules."""
        if self._machine is not None:
            self._machine.watch_rules()

    def _out_of_memory(self, machine: Machine) -> None:
        """Close the connection: the client's data was processed incompletely, so later data cannot be processed."""
        memory = self._clients.memory
        memory.free_reserve()  # the text needs memory, too
        memory.exhausted(f"Client {self._peer.address}")
        if machine.is_negotiating:  # it may not even have answered with the protocol's header
            self.abort()
            return
        try:
            machine.force_close("the broker is out of memory")
        except MemoryError:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed. May be called more than once."""
        level = INFO if self._machine is not None and self._machine.user else DEBUG
        _LOG.log(level, "Client %s: disconnected", self._peer.address)
        self._clients.connections.pop(self, None)
        self._clients.half_open.remove(self._network, self)
        if self._is_counted:
            self._is_counted = False
            self._clients.broker.quotas.leave(self._host)
        self._clients.refused.pop(self, None)
        self._clients.held_publishers.pop(self, None)
        if self._login is not None:
            self._work.logins.cancel(self._login)
            self._login = None
        self._clients.pressure.forget(self)
        machine, self._machine, self._transport = self._machine, None, None
        self._reasons.clear()  # some of them refer to this object
        if machine is not None:
            machine.dismantle()
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.lost(_why_lost(machine, error))

    def pause_writing(self) -> None:
        """The socket's send buffer is full."""
        if self._machine is not None:
            self._machine.pause_sending()
        self.stop_reading(self)

    def resume_writing(self) -> None:
        """The socket's send buffer has space again."""
        self.resume_reading(self)
        if self._machine is not None:
            self._machine.resume_sending()

    # ---- reading ----

    def stop_reading(self, reason: object) -> None:
        """Stop reading until `resume_reading` was called for this reason and all others."""
        if not self._reasons and self._transport is not None:
            self._transport.pause_reading()
        self._reasons.add(reason)

    def resume_reading(self, reason: object) -> None:
        """Remove a reason for not reading; resume reading if it was the last."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # ---- for the machine ----

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a slow command, and call `done` with its error, or None."""
        self._work.run(work, done)

    def check_password(self, check: PasswordCheck, done: Callable[[Answer], None]) -> None:
        """Check a password outside the event loop, and call `done` with the result, unless the client leaves before."""
        self._login = self._work.logins.check(self._network, check, done, self._has_left)

    def _has_left(self) -> bool:
        """Whether the client has closed the socket, or its end. The event loop does not see that while it is paused."""
        if self._transport is None or self._transport.is_closing():
            return True
        if self._socket < 0:  # in memory (`direct`)
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def resumed(self) -> None:
        """The machine's pause has ended."""
        machine = self._machine
        if machine is None or machine.is_paused or self._is_catching_up:
            return
        self.resume_reading(machine)
        if machine.is_behind or self.catch_up in self._reasons:
            self.stop_reading(self.catch_up)
            self._clients.loop.call_soon(self.catch_up)

    def write(self, data: bytes) -> None:
        """Send bytes; dropped if the socket is closing.

        They are sent here and now if possible: uvloop's transports send only at the end of the event loop's iteration,
        but a peer that waits for an answer can continue while the rest of the tick is processed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._descriptor >= 0 and not transport.get_write_buffer_size():
            try:
                sent = _write(self._descriptor, data)
            except OSError:  # the socket is full; or the transport gets the same error
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def close(self) -> None:
        """Close the socket when all data is sent."""
        if self._transport is not None:
            self._transport.close()

    # ---- for the server ----

    def on_timer(self, now: float) -> None:
        """Check timeouts; called at intervals with the time of a monotonic clock, in seconds."""
        machine, transport = self._machine, self._transport
        if machine is not None:
            if self._reasons and self._is_alive():
                machine.receive(b"")
            machine.on_timer(now)
        if machine is not None and (machine.is_closed or (transport is not None and transport.is_closing())):
            self._closed = self._closed or now
            if now - self._closed > _LINGER_SECONDS:
                self.abort()
            return
        if not self.is_half_open:
            self._clients.half_open.remove(self._network, self)
            return
        is_unread = bool(self._reasons) or (isinstance(transport, TlsLayer) and transport.is_busy)
        if is_unread and self._has_left():
            self.abort()
            return
        limit = self._clients.settings.negotiate_seconds
        if now - self._opened > limit:
            text = "Client %s: disconnected: the connection was not opened within %s seconds"
            _LOG.info(text, self._peer.address, limit)
            self.abort()

    def _is_alive(self) -> bool:
        """Whether an unread client counts as alive: the broker causes its silence, or the client still reads."""
        assert self._transport is not None
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        return self._unsent < before or bool(self._reasons - {self})

    def shut_down(self, text: str = "the broker is shutting down") -> None:
        """Close the connection, since the broker is shutting down, or for another reason."""
        if self._machine is not None:
            self._machine.force_close(text)
        else:
            self.close()

    def is_of(self, host: VirtualHost) -> bool:
        """Whether the connection is open, or being closed, in a virtual host."""
        machine = self._machine
        return machine is not None and not machine.is_negotiating and machine.vhost == host.name

    def leave_host(self) -> None:
        """Close the connection, since its virtual host is being deleted."""
        machine = self._machine
        if machine is not None and not machine.is_closing and not machine.is_closed:
            machine.force_close(f"vhost '{machine.vhost}' is deleted")

    def abort(self) -> None:
        """Close the socket at once, without sending pending data."""
        if self._transport is not None:
            self._transport.abort()


@lru_cache(maxsize=_HOSTS_KEPT)
def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _shown(peer: tuple[Any, ...] | None) -> str:
    """A client's address and port; unknown if the client has already disconnected."""
    if not peer:
        return "unknown address"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_lost(machine: Machine | None, error: Exception | None) -> str:
    """Why a connection that the broker has opened has ended."""
    reason = "" if machine is None else machine.end_reason
    if not reason and isinstance(error, OSError) and error.errno is not None:
        reason = os.strerror(error.errno)
    return reason or "Closed by peer"
