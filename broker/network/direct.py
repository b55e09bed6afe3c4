"""Connections of the broker to itself, without a socket: what shovels and federation do here is done like a client's.

Both ends are served like sockets (`socket_connection`), with the same backpressure and limits. What one end writes
waits in memory until the other reads it, in a later iteration of the event loop, `_AT_ONCE` bytes at a time; more than
the buffer limit pauses the writer. The client's end logs in with EXTERNAL as the user for whom it acts
(`Link.internal_user`); so its operations are authorized as that user's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.link import Attempt, Remote
from qstore.broker.network.outgoing import OutgoingConnections
from qstore.broker.network.socket_connection import Accepts, Outgoing, SocketConnection
from qstore.broker.protocols.machine import Host, Machine

if TYPE_CHECKING:
    from qstore.broker.network.clients import Clients
    from qstore.broker.network.server import Work

_AT_ONCE: Final = 128 * 1024
_USUAL_LIMIT: Final = 64 * 1024


class _NoSocket:
    """In the place of a socket."""

    def setsockopt(self, *_option: object) -> None:
        """It has no options."""

    def fileno(self) -> int:
        """It has no descriptor."""
        return -1


class _End(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: tuple[str, str], user: str = "") -> None:
        super().__init__({"peername": address, "socket": _NoSocket(), "internal_user": user})
        self._loop = loop
        self.peer: _End | None = None
        self.protocol: asyncio.Protocol | None = None
        self._waiting: list[bytes] = []  # written by the peer
        self._waiting_bytes = 0
        self._limit = _USUAL_LIMIT
        self._is_scheduled = self._is_paused = self._is_closing = self._has_ended = self._is_full = False

    # ---- as a transport ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        peer = self.peer
        if self._is_closing or peer is None or peer._has_ended or not data:
            return
        peer._waiting.append(bytes(data))
        peer._waiting_bytes += len(data)
        peer._schedule()
        if peer._waiting_bytes > self._limit and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer is None else self.peer._waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._limit = _USUAL_LIMIT if high is None else high

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._schedule()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.get_write_buffer_size():
                self._loop.call_soon(self._end)

    def abort(self) -> None:
        self._is_closing = True
        if self.peer is not None:
            self.peer._drop()
        self._loop.call_soon(self._end)

    # ---- reading ----

    def _drop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_paused:
            self._is_scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_scheduled = False
        if self._is_paused or self._has_ended or self.protocol is None:
            return
        taken, size = 0, 0
        while taken < len(self._waiting) and size < _AT_ONCE:
            size += len(self._waiting[taken])
            taken += 1
        data = self._waiting[0] if taken == 1 else b"".join(self._waiting[:taken])
        del self._waiting[:taken]
        self._waiting_bytes -= size
        if data and not self._is_closing:
            try:
                self.protocol.data_received(data)
            except BaseException:
                self.abort()  # as asyncio does with a socket
                raise
        if self._waiting:
            self._schedule()
        peer = self.peer
        if peer is not None and not peer._has_ended:
            if peer._is_full and self._waiting_bytes <= peer._limit // 4 and peer.protocol is not None:
                peer._is_full = False
                peer.protocol.resume_writing()
            if peer._is_closing and not self._waiting:
                peer._end()

    # ---- the end ----

    def _end(self) -> None:
        """Everything written was read, or is dropped: both ends are closed."""
        for each in (self, self.peer):
            if each is not None and not each._has_ended:
                each._has_ended = each._is_closing = True
                each._drop()
                if each.protocol is not None:
                    each.protocol.connection_lost(None)
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.peer = None


class DirectAttempt:
    """A connection of the broker to itself."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._is_over = False
        self.end: _End | None = None

    def ended(self, reason: str) -> None:
        """The connection has ended. Only the first reason counts."""
        if not self._is_over:
            self._is_over = True
            self._lost(reason)

    def abort(self) -> None:
        """As `Attempt.abort`."""
        self._is_over = True
        if self.end is not None:
            self.end.abort()


class DirectConnections:
    """Connects the broker to itself.

    Args:
        clients: all connections of the broker.
        work: runs slow work.
    """

    def __init__(self, clients: Clients, work: Work) -> None:
        self._clients, self._work = clients, work
        self._count = 0

    def connect_directly(
        self, user: str, make: Callable[[Host], Machine], lost: Callable[[str], None]
    ) -> DirectAttempt:
        """As `PeerNetwork.connect_directly`."""
        loop, attempt = self._clients.loop, DirectAttempt(lost)
        self._count += 1
        address: Any = ("127.0.0.1", f"direct-{self._count}")
        ours, theirs = _End(loop, address), _End(loop, address, user)
        ours.peer, theirs.peer, attempt.end = theirs, ours, ours
        ours.protocol = SocketConnection(
            self._clients, self._work, Accepts(), Outgoing(make, attempt.ended, is_encrypted=False, is_listed=False)
        )
        theirs.protocol = SocketConnection(self._clients, self._work, Accepts())
        loop.call_soon(self._begin, theirs)
        loop.call_soon(self._begin, ours)
        return attempt

    @staticmethod
    def _begin(end: _End) -> None:
        if not end._has_ended and end.protocol is not None:
            end.protocol.connection_made(end)


class Peers:
    """Connects the broker to others and to itself: the `PeerNetwork` of shovels and federation.

    Args:
        outgoing, direct: the two ways.
    """

    def __init__(self, outgoing: OutgoingConnections, direct: DirectConnections) -> None:
        self._outgoing, self._direct = outgoing, direct

    def connect(self, remote: Remote, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> Attempt:
        """As `Network.connect`."""
        return self._outgoing.connect(remote, make, lost)

    def connect_directly(self, user: str, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> Attempt:
        """As `PeerNetwork.connect_directly`."""
        return self._direct.connect_directly(user, make, lost)
