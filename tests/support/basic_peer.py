"""A client of AMQP 0-9-1 for tests that must not depend on the broker's or a library's: `raw_peer` is for 0-10.

`BasicWire` is one end of a connection as bytes: methods in, frames out, and back. It knows `formats/amqp_0_9_1` and
nothing of `broker/`, has no socket and answers nothing by itself. `BasicPeer` is one on a blocking socket.
"""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    FRAME_MIN_SIZE,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    decode_frame,
    encode_content,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import AMQP_0_9_1, Version, decode_method, encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, decode_header, encode_header
from qstore.formats.values import typed_map
from tests.support.processes import PATIENCE_SECONDS

MAX_FRAME: Final = 131_072
"""Bytes of a frame's payload at most, of those that come in."""
PERSISTENT: Final = Properties(delivery_mode=2)
_RECEIVE: Final = 512 << 10


class Received(NamedTuple):
    """A method that came, with its content if it has any."""

    channel: int
    name: str
    values: dict[str, Any]
    properties: Properties | None = None
    body: bytes = b""


class BasicWire:
    """One end of a connection.

    Args:
        version: of the protocol.

    Attributes:
        received: the methods that came and were not taken, in order.
        heartbeats: how many came.
        max_frame: bytes of a frame at most, of those that are sent.
    """

    def __init__(self, version: Version = AMQP_0_9_1) -> None:
        self.version = version
        self.received: list[Received] = []
        self.heartbeats = 0
        self.max_frame = FRAME_MIN_SIZE
        self._left = b""
        self._partial: dict[int, tuple[Received, int]] = {}  # by channel; -1 bytes before the header has come

    def encode(self, name: str, channel: int = 1, /, **values: Any) -> bytes:
        """The frame of a method."""
        values = {key: typed_map(value) if isinstance(value, dict) else value for key, value in values.items()}
        return encode_frame(METHOD, channel, encode_method(name, self.version, **values))

    def message(
        self, routing_key: str = "q", body: bytes = b"x", properties: Properties = PERSISTENT, **values: Any
    ) -> bytes:
        """The frames of a message on channel 1, or `channel`."""
        channel = values.pop("channel", 1)
        payload = encode_method("basic.publish", routing_key=routing_key, **values)
        return b"".join(encode_content(channel, payload, encode_header(len(body), properties), body, self.max_frame))

    def feed(self, data: bytes) -> None:
        """Take bytes that came."""
        data, at = self._left + data, 0
        while (frame := decode_frame(data, at, MAX_FRAME)) is not None:
            at += OVERHEAD + len(frame.payload)
            self._frame(frame.type, frame.channel, frame.payload)
        self._left = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == HEARTBEAT:
            self.heartbeats += 1
        elif kind == METHOD:
            assert channel not in self._partial, "a method within content"
            method, values = decode_method(payload, self.version)
            found = Received(channel, method.name, values)
            if method.has_content:
                self._partial[channel] = found, -1
            else:
                self.received.append(found)
        else:
            assert kind in (HEADER, BODY)
            begun, size = self._partial[channel]
            if kind == HEADER:
                size, properties = decode_header(payload)
                begun = begun._replace(properties=properties)
            else:
                begun = begun._replace(body=begun.body + payload)
            self._partial[channel] = begun, size
            if len(begun.body) == size:
                del self._partial[channel]
                self.received.append(begun)


class BasicPeer(BasicWire):
    """A connection with channel 1 that is open, and calls methods one after the other."""

    def __init__(
        self, port: int, *, max_frame: int = MAX_FRAME, channel_max: int = 1, version: Version = AMQP_0_9_1
    ) -> None:
        super().__init__(version)
        self.max_frame = max_frame
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(version.header)
        self.expect("connection.start")
        self.send("connection.start-ok", 0, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
        self.expect("connection.tune")
        self.send("connection.tune-ok", 0, channel_max=channel_max, frame_max=max_frame, heartbeat=0)
        self.call("connection.open", 0, virtual_host="/")
        self.call("channel.open")

    def send(self, name: str, channel: int = 1, /, **values: Any) -> None:
        """Send a method."""
        self.socket.sendall(self.encode(name, channel, **values))

    def expect(self, name: str) -> Received:
        """Read the next method, which is that."""
        while not self.received:
            more = self.socket.recv(_RECEIVE)
            assert more, "the broker has closed the connection"
            self.feed(more)
        found = self.received.pop(0)
        assert found.name == name, found
        return found

    def call(self, name: str, channel: int = 1, /, **values: Any) -> Received:
        """Send a method and read its answer."""
        self.send(name, channel, **values)
        return self.expect(f"{name}-ok")
