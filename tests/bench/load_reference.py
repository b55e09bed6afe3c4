"""Reference for a broker's metrics: servers on the same event loop that do next to nothing.

    python -m tests.bench.load_reference echo|sink

They say their port on the standard output and run until they are killed. `echo` sends back what it gets: the price of
the bytes alone. `sink` answers a load generator as a broker does, but keeps and routes nothing: it completes what is
published, and delivers one message again and again as the window allows. It tells what the generator can do at most.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, cast

import click
import uvloop

from qstore.formats.amqp_0_10.commands import decode_control, encode_control
from qstore.formats.amqp_0_10.frames import (
    COMMAND,
    CONTROL,
    FRAME,
    LAST_FRAME,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    encode_control_frame,
)
from qstore.formats.values import TypedMap
from tests.support.raw_peer import transfer_frames

_SUBSCRIBE: Final = b"\x04\x07"
_COMPLETED: Final = b"\x02\x0a"
_WINDOW: Final = 1000
_last_of = struct.Struct(">I").unpack_from


def _control(name: str, channel: int = 0, /, **values: object) -> bytes:
    return encode_control_frame(channel, encode_control(name, **values))


_ANSWERS: Final = {
    b"\x01\x02": _control("connection.tune", channel_max=100, max_frame_size=65535, heartbeat_min=0, heartbeat_max=0),
    b"\x01\x07": _control("connection.open-ok"),
}
_START: Final = PROTOCOL_HEADER + _control(
    "connection.start", server_properties=TypedMap(), mechanisms=["ANONYMOUS"], locales=["en_US"]
)


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Sink(asyncio.Protocol):
    """The trivial broker of one connection."""

    def __init__(self) -> None:
        self._left = b""
        self._begun = False
        self._commands = 0
        self._delivered = 0
        self._delivery = transfer_frames("queue", b"x" * 100, durable=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._left + data
        offset, end, commands = 0, len(data), self._commands
        if not self._begun and end >= len(PROTOCOL_HEADER):
            self._begun, offset = True, len(PROTOCOL_HEADER)
            self._transport.write(_START)
        while end - offset >= FRAME.size:
            flags, segment, size = data[offset], data[offset + 1], data[offset + 2] << 8 | data[offset + 3]
            if end - offset < size:
                break
            if segment == CONTROL:
                self._control(data[offset + FRAME.size : offset + size])
            else:
                commands += flags & (LAST_SEGMENT | LAST_FRAME) == LAST_SEGMENT | LAST_FRAME
                if segment == COMMAND and data[offset + 12 : offset + 14] == _SUBSCRIBE:
                    self._deliver(_WINDOW)
            offset += size
        self._left = data[offset:]
        if commands > self._commands:
            self._commands = commands
            self._transport.write(_control("session.completed", 1, commands=((0, commands - 1),)))

    def _control(self, payload: bytes) -> None:
        code = payload[:2]
        if code == _COMPLETED:
            self._deliver(_last_of(payload, len(payload) - 4)[0] + 1 + _WINDOW - self._delivered)
        elif code in _ANSWERS:
            self._transport.write(_ANSWERS[code])
        elif code == b"\x02\x01":
            self._transport.write(_control("session.attached", 1, name=decode_control(payload)[1]["name"]))

    def _deliver(self, count: int) -> None:
        self._delivered += count
        self._transport.write(self._delivery * count)


async def _serve(kind: str) -> None:
    factory = Echo if kind == "echo" else Sink
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@click.command()
@click.argument("kind", type=click.Choice(["echo", "sink"]))
def main(kind: str) -> None:
    """Serve until killed."""
    uvloop.run(_serve(kind))


if __name__ == "__main__":
    main()
