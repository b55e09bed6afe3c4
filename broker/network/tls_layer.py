"""Encryption between a socket and its connection: a protocol for the first one, a transport for the second.

    socket  ->  asyncio's transport  ->  TlsLayer  ->  SocketConnection  ->  machine

A connection whose first bytes are a TLS hello puts this layer in between (`SocketConnection`), so plain connections pay
nothing for it. Backpressure is that of the plain transport: reading stops and resumes there, and its buffer has the
encrypted output. One read is decrypted as a whole; the output of one tick is encrypted as a whole.

The handshake takes milliseconds, so its steps are made in a thread (`login_checks`), one after the other. The socket is
not read meanwhile, and nothing else uses the session.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

from qstore.broker.security.sasl.exchange import Failure, Refused
from qstore.broker.security.tls import TlsError, TlsSession

if TYPE_CHECKING:
    from qstore.broker.network.socket_connection import SocketConnection


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """See above.

    Args:
        connection: the connection inside.
        transport: the socket's transport; `set_protocol` is called with this layer by the caller.
        context: the certificate and key.

    Attributes:
        is_busy: whether a step of the handshake is being made, or waits for that.
    """

    def __init__(self, connection: SocketConnection, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connection, self._socket = connection, transport
        self._inner: asyncio.Protocol = connection
        self._session = TlsSession(context, is_server=True)
        self.is_busy = self._is_paused = False

    # ---- for the socket's transport ----

    def data_received(self, data: bytes) -> None:
        """Decrypt; hand over the complete records."""
        session = self._session
        if not session.is_established:
            assert not self.is_busy
            self.is_busy = True
            self._socket.pause_reading()
            self._connection.shake_hands(partial(_step, session, data), self._shaken)
            return
        try:
            plain = session.receive(data)
        except TlsError as error:
            self._fail(str(error))
            return
        self._received(plain)

    def _received(self, plain: bytes) -> None:
        self._flush()
        if plain:
            self._inner.data_received(plain)
        if self._session.is_over:
            self.close()

    def _shaken(self, result: bytes | TlsError | Refused | Failure) -> None:
        """A step of the handshake was made, or not."""
        self.is_busy = False
        if self._socket.is_closing():
            return
        if not isinstance(result, bytes):
            self._fail(result.reason if isinstance(result, Refused | Failure) else str(result))
            return
        if self._session.is_established:
            self._flush()
            self._connection.secured(self._session)
        self._received(result)
        if not self._is_paused and not self._socket.is_closing():
            self._socket.resume_reading()

    def _fail(self, reason: str) -> None:
        if not self._socket.is_closing():
            self._connection.not_secured(reason)
            self._flush()  # the alert that tells the peer why
            self._socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket's send buffer is full."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The socket's send buffer has space again."""
        self._inner.resume_writing()

    def _flush(self) -> None:
        output = self._session.take_output()
        if output:
            self._socket.write(output)

    # ---- for the connection ----

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand what is decrypted to a layer above this one."""
        assert isinstance(protocol, asyncio.Protocol)
        self._inner = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        try:
            self._session.send(data)
        except TlsError as error:
            self._fail(str(error))
            return
        self._socket.write(self._session.take_output())

    def close(self) -> None:
        """Close the socket when all data is sent."""
        if self.is_busy:
            self._socket.abort()
        elif not self._socket.is_closing():
            self._session.close()
            self._flush()
            self._socket.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._socket.abort()

    def is_closing(self) -> bool:
        """Whether the socket is closed or being closed."""
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._is_paused = True
        if not self.is_busy:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._is_paused = False
        if not self.is_busy:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that are not sent yet."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket's transport."""
        return self._socket.get_extra_info(name, default)


def _step(session: TlsSession, data: bytes) -> bytes | TlsError:
    """Process what was received in a handshake. Returns plain bytes that followed it."""
    try:
        return session.receive(data)
    except TlsError as error:
        return error
