"""AMQP over WebSocket: a protocol for the socket, a transport for its connection, as `tls_layer` is for TLS.

    socket  ->  asyncio's transport  (->  TlsLayer)  ->  WebSocketLayer  ->  SocketConnection  ->  machine

A connection whose first bytes are `GET ` puts this layer in between (`SocketConnection`), so other connections pay
nothing for it. What clients send in binary messages is one stream of bytes, as on a socket: frames are handed over as
they arrive, and neither frames nor messages are collected, so their lengths need no limit. Limits of
connections and logins are those of other connections: there is one socket, and its peer is the client.

    opening request      at most MAX_REQUEST_BYTES, within the time that a client has to open its connection
    control frames       at most 125 bytes each; of the pings of one turn the last is answered
    frames of one turn   FRAMES_IN_A_TURN; the rest waits for other connections

A page of any website can have its visitor's browser connect to a broker that only the browser reaches, so a request
with an origin, as browsers send it, is refused unless the settings name that origin. Other clients send none.

Source: RFC 6455; OASIS "AMQP WebSocket Binding (WSB) Version 1.0", which names the subprotocol `amqp`; Azure's and
Rhea's clients offer `AMQPWSB10` too, and clients of AMQP 0-9-1 none.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from qstore.broker.network.socket_connection import SocketConnection

REQUEST: Final = b"GET "
"""The first bytes of a request to open one."""
MAX_REQUEST_BYTES: Final = 8192
FRAMES_IN_A_TURN: Final = 1000
MAX_CONTROL_BYTES: Final = 125

_SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10  # RFC 6455, section 5.2
_NORMAL, _PROTOCOL_ERROR, _UNSUPPORTED = 1000, 1002, 1003  # RFC 6455, section 7.4.1


class WebSocketError(Exception):
    """A request is refused, or a frame violates the protocol. The code is HTTP's or that of a close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def accept(request: bytes, origins: Collection[str]) -> bytes:
    """The response that opens the connection.

    Args:
        request: the header of the request, without the empty line at its end.
        origins: those that browsers may have; `*` is any.

    Raises:
        WebSocketError: it is refused, with the status of the response.
    """
    lines = request.decode("latin-1").split("\r\n")
    if not lines[0].endswith(" HTTP/1.1"):
        raise WebSocketError(400, "a WebSocket is opened with HTTP/1.1")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise WebSocketError(400, "the request has a malformed header field")
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    if fields.get("upgrade", "").lower() != "websocket" or "upgrade" not in _list_of(fields, "connection"):
        raise WebSocketError(426, "this port accepts AMQP, and AMQP over WebSocket")
    if fields.get("sec-websocket-version") != "13":
        raise WebSocketError(426, "only version 13 of WebSocket is supported")
    origin = fields.get("origin")
    if origin is not None and origin not in origins and "*" not in origins:
        raise WebSocketError(403, "the origin is not one of --websocket-origin")
    key = fields.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise WebSocketError(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    answer = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    answer.append("Sec-WebSocket-Accept: " + base64.b64encode(digest).decode())
    offered = _list_of(fields, "sec-websocket-protocol")
    if offered:
        chosen = next((each for each in _SUBPROTOCOLS if each.lower() in offered), None)
        if chosen is None:
            raise WebSocketError(400, "the subprotocol amqp is not among those that are offered")
        answer.append(f"Sec-WebSocket-Protocol: {chosen}")
    return "\r\n".join([*answer, "", ""]).encode()


def _list_of(fields: dict[str, str], name: str) -> list[str]:
    return [each.strip().lower() for each in fields.get(name, "").split(",") if each.strip()]


class Frames:
    """Decodes a client's frames.

    Args:
        control: called with the opcode and the content of each control frame.

    Attributes:
        is_closed: whether a close frame has been received; nothing after it is decoded.
        is_behind: whether frames are left after those of one turn.
    """

    def __init__(self, control: Callable[[int, bytes], None]) -> None:
        self._control = control
        self._data = b""
        self._left = 0  # bytes of a data frame's payload that have not been received
        self._mask = b""  # of the next byte of it, and on
        self._is_within = False  # a message, of which a frame was not the last one
        self.is_closed = self.is_behind = False

    def receive(self, data: bytes) -> bytes:
        """Decode; what the data frames of one turn hold. `receive(b"")` goes on with the next ones.

        Raises:
            WebSocketError: with the code of the close frame.
        """
        data = self._data + data
        pieces: list[bytes] = []
        place, end, frames = 0, len(data), 0
        self.is_behind = False
        while not self.is_closed:
            if self._left:
                piece = data[place : place + self._left]
                if not piece:
                    break
                pieces.append(_unmasked(piece, self._mask))
                place += len(piece)
                self._left -= len(piece)
                turned = len(piece) % 4
                self._mask = self._mask[turned:] + self._mask[:turned]
                continue
            if frames >= FRAMES_IN_A_TURN:
                self.is_behind = True
                break
            header = self._header(data, place, end)
            if header is None:
                break
            opcode, size, begin = header
            if opcode < _CLOSE:
                self._left, self._mask, place = size, data[begin - 4 : begin], begin
            elif begin + size > end:
                break
            else:
                place = begin + size
                self.is_closed = opcode == _CLOSE
                self._control(opcode, _unmasked(data[begin:place], data[begin - 4 : begin]))
            frames += 1
        self._data = b"" if self.is_closed else data[place:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _header(self, data: bytes, place: int, end: int) -> tuple[int, int, int] | None:
        """Opcode, size and begin of the payload of the frame at a place; None if more bytes are needed."""
        if end - place < 2:
            return None
        first, second = data[place], data[place + 1]
        opcode, is_last, size = first & 15, first >= 128, second & 127
        if first & 0x70:
            raise WebSocketError(_PROTOCOL_ERROR, "reserved bits are set")
        if second < 128:
            raise WebSocketError(_PROTOCOL_ERROR, "a frame is not masked")
        if opcode in (_CLOSE, _PING, _PONG):
            if size > MAX_CONTROL_BYTES or not is_last:
                raise WebSocketError(_PROTOCOL_ERROR, "a control frame is too long or in parts")
        elif opcode == _TEXT:
            raise WebSocketError(_UNSUPPORTED, "AMQP is sent in binary messages")
        elif opcode not in (_CONTINUATION, _BINARY) or (opcode == _CONTINUATION) != self._is_within:
            raise WebSocketError(_PROTOCOL_ERROR, "a frame of this kind is not expected")
        more = {126: 2, 127: 8}.get(size, 0)
        begin = place + 2 + more + 4
        if begin > end:
            return None
        if more:
            size = int.from_bytes(data[place + 2 : place + 2 + more])
            if size >> 63:
                raise WebSocketError(_PROTOCOL_ERROR, "the length of a frame is not valid")
        if opcode < _CLOSE:
            self._is_within = not is_last
        return opcode, size, begin


def _unmasked(data: bytes, mask: bytes) -> bytes:
    """Each byte xor the byte of the mask at its place, as one number: 30 times as fast as byte by byte."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")


def frame(opcode: int, payload: bytes | bytearray | memoryview) -> bytes:
    """A frame of the broker: a whole message, not masked."""
    size = len(payload)
    if size < 126:
        header = bytes((0x80 | opcode, size))
    elif size < 1 << 16:
        header = bytes((0x80 | opcode, 126)) + size.to_bytes(2)
    else:
        header = bytes((0x80 | opcode, 127)) + size.to_bytes(8)
    return header + payload


class WebSocketLayer(asyncio.Transport, asyncio.Protocol):
    """See above.

    Args:
        connection: the connection inside.
        transport: that of the socket, or its layer of TLS; `set_protocol` is called with this layer by the caller.
        loop: the event loop.
        origins: those that browsers may have.
        refused: called with the reason when the request or a frame is refused.
    """

    def __init__(
        self,
        connection: SocketConnection,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        origins: Collection[str],
        refused: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._connection, self._socket, self._loop = connection, transport, loop
        self._origins, self._refused = origins, refused
        self._frames = Frames(self._control)
        self._request = b""
        self._ping: bytes | None = None  # the last one, if it was not answered yet
        self._is_open = self._has_closed = False

    # ---- for the socket's transport ----

    def data_received(self, data: bytes) -> None:
        """Decode; hand over what is complete."""
        if self._has_closed:
            return
        if not self._is_open:
            self._request += data
            end = self._request.find(b"\r\n\r\n", 0, MAX_REQUEST_BYTES)
            if end < 0:
                if len(self._request) >= MAX_REQUEST_BYTES:
                    self._refuse(WebSocketError(431, "the request is too long"))
                return
            try:
                answer = accept(self._request[:end], self._origins)
            except WebSocketError as error:
                self._refuse(error)
                return
            data, self._request, self._is_open = self._request[end + 4 :], b"", True
            self._socket.write(answer)
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        try:
            content = self._frames.receive(data)
        except WebSocketError as error:
            self._refused(str(error))
            self._end(error.code)
            return
        if self._ping is not None:
            self._socket.write(frame(_PONG, self._ping))
            self._ping = None
        if content:
            self._connection.data_received(content)
        if self._frames.is_behind and not self._socket.is_closing():
            self._connection.stop_reading(self)
            self._loop.call_soon(self._go_on)
        if self._frames.is_closed:
            self._end(_NORMAL)

    def _go_on(self) -> None:
        """Decode the frames that were left; called after other connections were processed."""
        if not self._socket.is_closing() and not self._has_closed:
            self._receive(b"")
            if not self._frames.is_behind:
                self._connection.resume_reading(self)

    def _refuse(self, error: WebSocketError) -> None:
        """Answer the request with an error."""
        self._refused(str(error))
        self._has_closed, self._request = True, b""
        text = f"{error}\n".encode()
        upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" if error.code == 426 else ""
        head = f"HTTP/1.1 {error.code} Refused\r\nConnection: close\r\n{upgrade}Content-Type: text/plain\r\n"
        self._socket.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        self._socket.close()

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self._ping = payload

    def _end(self, code: int) -> None:
        """Send a close frame, and close the socket when all is sent."""
        if not self._has_closed and not self._socket.is_closing():
            self._has_closed = True
            if self._is_open:
                self._socket.write(frame(_CLOSE, code.to_bytes(2)))
            self._socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket's send buffer is full."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket's send buffer has space again."""
        self._connection.resume_writing()

    # ---- for the connection ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as one message."""
        if not self._has_closed:
            self._socket.write(frame(_BINARY, data))

    def close(self) -> None:
        """Close the socket when all data is sent."""
        self._end(_NORMAL)

    def abort(self) -> None:
        """Close the socket at once."""
        self._socket.abort()

    def is_closing(self) -> bool:
        """Whether the socket is closed or being closed."""
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket's transport."""
        return self._socket.get_extra_info(name, default)
