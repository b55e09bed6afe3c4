"""The encryption of one connection, sans-I/O, for both ends: bytes of the socket in, plain bytes out, and back.

    begin()            a client's hello is ready to be taken; the server waits for one
    receive(data)      what came from the socket -> the plain bytes in it, so far as they are complete
    send(data)         plain bytes to encrypt; not before `is_established`
    take_output()      what must be written to the socket
    close()            tells the peer that nothing more comes

Memory: OpenSSL keeps at most one incomplete record (16 KiB) and one handshake message, whose size it limits; what is
complete is returned at once. The output grows only by what is sent, and by one answer for each received record.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from qstore.broker.security.tls.errors import TlsError, tls_reason

_RECORD: Final = 16 * 1024  # bytes: the plain content of a record at most (RFC 8446, section 5.1)


class TlsSession:
    """One connection.

    Args:
        context: certificates and versions.
        is_server: whether this is the broker's end.
        host: the name that the server's certificate must have, for the client's end.

    Attributes:
        is_established: whether the handshake is complete.
        is_over: whether the peer has told that nothing more comes.
    """

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self.is_established = self.is_over = False

    def begin(self) -> None:
        """Begin the handshake: the client has a hello to send. Raises TlsError."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the socket. Returns plain bytes.

        Raises:
            TlsError: the handshake has failed, or the data is damaged. `take_output` may have the reason for the peer.
        """
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
            if not self.is_established:
                return b""
        parts: list[bytes] = []
        read = self._object.read
        try:
            while True:
                part = read(_RECORD)
                if not part:
                    self.is_over = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_over = True
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None
        self.is_established = True

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt plain bytes. Raises TlsError."""
        if not data:
            return
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise TlsError(tls_reason(error)) from None

    def take_output(self) -> bytes:
        """Take the bytes to write to the socket."""
        return self._outgoing.read()

    def close(self) -> None:
        """Tell the peer that nothing more comes, if the handshake is complete."""
        if self.is_established:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                return  # the peer has not answered yet, and need not

    @property
    def certificate(self) -> dict[str, Any]:
        """The peer's verified certificate, as `ssl` describes it; empty if it has none."""
        return self._object.getpeercert() or {}

    @property
    def version(self) -> str:
        """Version and cipher, for the log."""
        cipher = self._object.cipher()
        return f"{self._object.version()}, {cipher[0] if cipher else 'no cipher'}"
