"""A client of AMQP 1.0 for tests that must not depend on the broker's or a library's: `basic_peer` is for 0-9-1.

`FrameWire` is one end of a connection as bytes: performatives in, frames out, and back. It knows `formats/amqp_1_0` and
nothing of `broker/`, has no socket and answers nothing by itself. `LinksPeer` is one on a blocking socket.
"""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_1_0.composites import Composite, encode_composite, read_composite
from qstore.formats.amqp_1_0.frames import AMQP, AMQP_HEADER, SASL, decode_frame, encode_frame
from qstore.formats.amqp_1_0.sections import data_section
from qstore.formats.amqp_1_0.values import Value
from tests.support.processes import PATIENCE_SECONDS

MAX_FRAME: Final = 1 << 20
MAX_WINDOW: Final = (1 << 31) - 1

ACCEPTED: Final = Composite("accepted", {})
RELEASED: Final = Composite("released", {})
REJECTED: Final = Composite("rejected", {})
SENDER, RECEIVER = False, True


class Received(NamedTuple):
    """A performative that came, with the content of a transfer."""

    channel: int
    name: str
    fields: dict[str, Any]
    content: bytes


class Delivered(NamedTuple):
    """A message that came: its first transfer, and its content from all of them."""

    fields: dict[str, Any]
    content: bytes

    @property
    def id(self) -> int:
        found: int = self.fields["delivery_id"]
        return found

    @property
    def header(self) -> dict[str, Any]:
        """The fields of its section header."""
        return read_composite(self.content, 0, len(self.content))[0].fields

    @property
    def body(self) -> bytes:
        """All after its section header."""
        return self.content[read_composite(self.content, 0, len(self.content))[1] :]


def content(body: bytes, *, durable: bool = True, header: dict[str, Any] | None = None, **properties: Any) -> bytes:
    """A message with one data section."""
    sections = encode_composite("header", {"durable": durable, **(header or {})})
    if properties:
        sections += encode_composite("properties", properties)
    return sections + data_section(len(body)) + body


def address(text: str) -> Value:
    return Value("string", text)


class FrameWire:
    """One end of a connection.

    Attributes:
        headers: the protocol headers that have come.
        received: what has come, heartbeats as performatives with an empty name.
        max_frame: bytes of a frame that is sent.
    """

    def __init__(self) -> None:
        self.headers: list[bytes] = []
        self.received: list[Received] = []
        self.max_frame = 4_096
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Read what has come."""
        data, at = self._rest + data, 0
        while at < len(data):
            if data.startswith(b"AMQP", at) and at + 8 <= len(data):
                self.headers.append(data[at : at + 8])
                at += 8
                continue
            frame = decode_frame(data, at, MAX_FRAME)
            if frame is None:
                break
            at += frame.size
            if not frame.body:
                self.received.append(Received(frame.channel, "", {}, b""))
                continue
            performative, end = read_composite(frame.body, 0, len(frame.body))
            self.received.append(Received(frame.channel, *performative, frame.body[end:]))
        self._rest = data[at:]

    @staticmethod
    def encode(name: str, channel: int = 0, body: bytes = b"", /, **fields: Any) -> bytes:
        """The frame of a performative."""
        kind = SASL if name.startswith("sasl-") else AMQP
        return encode_frame(channel, encode_composite(name, fields) + body, kind)

    def transfers(self, handle: int, number: int, message: bytes, *, channel: int = 0, **fields: Any) -> list[bytes]:
        """The frames of a message."""
        most = self.max_frame - 100
        parts = [message[at : at + most] for at in range(0, len(message), most)] or [b""]
        first = {"delivery_id": number & 0xFFFFFFFF, "delivery_tag": b"%d" % number, **fields}
        frames = []
        for place, part in enumerate(parts):
            more = place < len(parts) - 1
            values = {"handle": handle, "more": more or None, **(first if not place else {})}
            frames.append(self.encode("transfer", channel, part, **values))
        return frames

    def deliveries(self) -> list[Delivered]:
        """Remove and return the messages that have come whole."""
        found: list[Delivered] = []
        parts: dict[tuple[int, int], tuple[dict[str, Any], bytes]] = {}
        left = []
        for each in self.received:
            if each.name != "transfer":
                left.append(each)
                continue
            key = each.channel, each.fields["handle"]
            fields, before = parts.pop(key, (each.fields, b""))
            if each.fields["more"]:
                parts[key] = fields, before + each.content
            else:
                found.append(Delivered(fields, before + each.content))
        self.received = left
        return found


class LinksPeer(FrameWire):
    """A client on a blocking socket, with one session on channel 0. It reads nothing after it has opened.

    Args:
        port: of the broker on 127.0.0.1.

    Attributes:
        socket: as above.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(AMQP_HEADER)
        self.do("open", container_id="test", max_frame_size=MAX_FRAME)
        self.do("begin", next_outgoing_id=0, incoming_window=MAX_WINDOW, outgoing_window=MAX_WINDOW)
        while "begin" not in [each.name for each in self.received]:
            self.feed(self.socket.recv(1 << 16))

    def do(self, name: str, channel: int = 0, /, **fields: Any) -> None:
        """Send a performative."""
        self.socket.sendall(self.encode(name, channel, **fields))

    @classmethod
    def attachment(
        cls, node: str | None, handle: int = 0, *, receives: bool = False, terminus: dict[str, Any] | None = None,
        **fields: Any,
    ) -> bytes:  # fmt: skip
        """The frame that attaches a link."""
        own = {"address": None if node is None else address(node), **(terminus or {})}
        return cls.encode(
            "attach", name=f"link-{handle}", handle=handle, role=RECEIVER if receives else SENDER,
            source=Composite("source", own if receives else {}), target=Composite("target", {} if receives else own),
            initial_delivery_count=None if receives else 0, **fields,
        )  # fmt: skip

    @classmethod
    def flow(cls, handle: int | None = None, credit: int | None = None, **fields: Any) -> bytes:
        """The frame that gives credit on a link, or opens the window."""
        values: dict[str, Any] = {"next_incoming_id": 0, "incoming_window": MAX_WINDOW, "next_outgoing_id": 0}
        values |= {"outgoing_window": MAX_WINDOW, "handle": handle, "link_credit": credit}
        return cls.encode("flow", **(values | {"delivery_count": None if handle is None else 0} | fields))
