"""One client's socket: its bytes go to a connection, a machine without I/O, and what that has to send comes back.

Backpressure is to stop reading: a socket is not read for as long as there is any reason for it (`stop_reading`), and
what was read already waits in the machine. `server` says which reasons there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from broker.log.logs import DEBUG, INFO, log_of
from broker.model.errors import ModelError
from broker.model.memory import State
from broker.network.clients import Clients
from broker.network.work import Work
from broker.protocols.detection import foreign_client
from broker.protocols.machine import Machine, Peer
from broker.protocols.table import HEADER_BYTES
from broker.security.mechanisms import Failure, PasswordCheck, Success

_LOG: Final = log_of("Network")

_FULL_READ: Final = 64 * 1024  # bytes of one read after which there is likely more
_HIGH_WATER: Final = 1024 * 1024  # bytes that wait for one socket before nothing more is put there
_LINGER_SECONDS: Final = 10.0  # for clients to read what they were sent before their connection was closed
_REFUSAL_SECONDS: Final = 5.0  # for a client that is one too many to be told so
_MOST_REFUSED: Final = 64  # clients that are told so at one time; more of them are cut off


class SocketConnection(asyncio.Protocol):
    """One socket, and the connection that it brings.

    Args:
        clients: where it belongs.
        work: runs what takes time.
    """

    def __init__(self, clients: Clients, work: Work) -> None:
        self._clients, self._work = clients, work
        self._transport: asyncio.Transport | None = None
        self._machine: Machine | None = None
        self._begun = b""  # what came before it is known which protocol it is
        self._reasons: set[object] = set()  # for not reading
        self._opened = time.monotonic()
        self._closed = 0.0
        self._unsent = 0
        self._is_catching_up = False
        self._peer = Peer("", is_local=False)

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        clients = self._clients
        peer = transport.get_extra_info("peername")
        address = _shown(peer)
        is_one_too_many = len(clients.connections) >= clients.settings.max_connections
        if is_one_too_many:
            text = "Client max connection count limit exceeded: %d; %s is refused"
            clients.too_many.write(time.monotonic(), text, clients.settings.max_connections, address)
            if len(clients.refused) >= _MOST_REFUSED:
                self._transport.abort()
                return
            clients.refused[self] = None
            clients.loop.call_later(_REFUSAL_SECONDS, self.abort)
        else:
            clients.connections[self] = None
            _LOG.debug("Client %s: connected", address)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, int(clients.settings.tcp_nodelay)
            )
        is_local = bool(peer) and ipaddress.ip_address(peer[0]).is_loopback
        refusal = "the broker has as many connections as it may have" if is_one_too_many else ""
        self._peer = Peer(address, is_local, refusal)

    def data_received(self, data: bytes) -> None:
        """The socket has brought something."""
        machine = self._machine
        if machine is None:
            data = self._begun = self._begun + data
            machine = self._machine = self._detect(data)
            if machine is None:
                return
            self._begun = b""
        self._clients.work_begins()
        try:
            self._do(machine.receive, data)
            self._look_after(machine, has_more=len(data) >= _FULL_READ)
        except MemoryError:
            self._out_of_memory(machine)

    def _detect(self, begin: bytes) -> Machine | None:
        """The machine that speaks what a client that begins so does; None if it has not said so yet, or is refused."""
        clients = self._clients
        if self._transport is None or self._transport.is_closing() or not clients.protocols.is_decided(begin):
            return None
        connections = clients.protocols.find(begin)
        if connections is None:
            text = "Refused %s from %s: this broker speaks %s"
            client = foreign_client(begin[:HEADER_BYTES])
            clients.foreign.write(time.monotonic(), text, client, self._peer.address, clients.protocols.names)
            self._transport.write(clients.protocols.answer)
            self._transport.close()
            return None
        machine = connections.connect(self, self._peer)
        if clients.broker.memory.state is not State.AMPLE:
            machine.watch_memory(is_short=True)
        return machine

    def _do(self, work: Callable[..., None], *arguments: bytes) -> None:
        """Do this, and see what it has written to which journals."""
        clients = self._clients
        turn = clients.broker.turn
        before, turn.journals = turn.journals, {}
        try:
            work(*arguments)
        finally:
            written = turn.journals
            before.update(written)
            turn.journals = before
        if written:
            clients.pressure.after(self, written)

    def _look_after(self, machine: Machine, *, has_more: bool) -> None:
        """Read on only when what was read is worked off, and others have had their turn."""
        if machine.take_published():
            self.stop_reading(self._clients.broker.memory)
            self._clients.held_publishers[self] = time.monotonic()
        if machine.is_paused:
            self.stop_reading(machine)
        elif machine.is_behind or has_more:
            self.stop_reading(self.catch_up)
            self._clients.loop.call_soon(self.catch_up)

    def catch_up(self) -> None:
        """Others have had their turn: go on with what was read, or read on."""
        machine = self._machine
        if machine is None or machine.is_paused or machine.is_closed:
            return  # the end of a pause calls this again
        if self._clients.pressure.holds(self._reasons) or self._clients.broker.memory in self._reasons:
            return  # and so do these
        if machine.is_behind:
            self._clients.work_begins()
            self._is_catching_up = True
            try:
                self._do(machine.resume)
                self._look_after(machine, has_more=False)
            except MemoryError:
                self._out_of_memory(machine)
                return
            finally:
                self._is_catching_up = False
        if not machine.is_behind and not machine.is_paused:
            self.go_on_reading(self.catch_up)

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory is short, or ample again."""
        if self._machine is not None:
            self._machine.watch_memory(is_short=is_short)

    def _out_of_memory(self, machine: Machine) -> None:
        """What the client sent was not worked off, or not all of it: nothing that follows can be."""
        self._clients.broker.memory.exhausted(f"Client {self._peer.address}")
        try:
            machine.force_close("the broker is out of memory")
        except MemoryError:
            self.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """The socket is closed."""
        level = INFO if self._machine is not None and self._machine.user else DEBUG
        _LOG.log(level, "Client %s: disconnected", self._peer.address)
        self._clients.connections.pop(self, None)
        self._clients.refused.pop(self, None)
        self._clients.held_publishers.pop(self, None)
        machine, self._machine, self._transport = self._machine, None, None
        self._reasons.clear()  # among them what holds this
        if machine is not None:
            machine.dismantle()

    def pause_writing(self) -> None:
        """The socket takes no more."""
        if self._machine is not None:
            self._machine.pause_sending()
        self.stop_reading(self)

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self.go_on_reading(self)
        if self._machine is not None:
            self._machine.resume_sending()

    # ---- reading ----

    def stop_reading(self, reason: object) -> None:
        """Read nothing until `go_on_reading` was called for this reason, and all others that there are."""
        if not self._reasons and self._transport is not None:
            self._transport.pause_reading()
        self._reasons.add(reason)

    def go_on_reading(self, reason: object) -> None:
        """One reason for not reading is gone."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # ---- for the machine ----

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time; what comes meanwhile is read later."""
        self._work.run(work, done)

    def check_password(self, check: PasswordCheck, done: Callable[[Success | Failure], None]) -> None:
        """Check a password."""
        self._work.check_password(check, done)

    def resumed(self) -> None:
        """The machine goes on after a pause."""
        machine = self._machine
        if machine is None or machine.is_paused or self._is_catching_up:
            return
        self.go_on_reading(machine)
        if machine.is_behind or self.catch_up in self._reasons:
            self.stop_reading(self.catch_up)
            self._clients.loop.call_soon(self.catch_up)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the socket when all is sent."""
        if self._transport is not None:
            self._transport.close()

    # ---- for the server ----

    def tick(self, now: float) -> None:
        """Some time has gone by."""
        machine = self._machine
        if machine is not None:
            if self._reasons and self._is_alive():
                machine.receive(b"")
            machine.tick(now)
        if machine is not None and machine.is_closed:
            self._closed = self._closed or now
            if now - self._closed > _LINGER_SECONDS:
                self.abort()
            return
        limit = self._clients.settings.negotiate_seconds
        if (machine is None or machine.is_negotiating) and now - self._opened > limit:
            text = "Client %s: not let in: it has not opened its connection within %s seconds"
            _LOG.info(text, self._peer.address, limit)
            self.abort()

    def _is_alive(self) -> bool:
        """Whether a client that is not read is not to blame for its silence, or at least reads what it is sent."""
        assert self._transport is not None
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        return self._unsent < before or bool(self._reasons - {self})

    def shut_down(self) -> None:
        """The broker stops: tell the client."""
        if self._machine is not None:
            self._machine.force_close("the broker is shut down")
        else:
            self.close()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()


def _shown(peer: tuple[Any, ...] | None) -> str:
    """A client's address and port; a client that is gone already has none."""
    if not peer:
        return "of no address"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
