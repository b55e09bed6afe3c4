"""Frames of AMQP 0-9-1.

    type u8 | channel u16 | size u32 | payload | 0xce

The size is that of the payload. A method is one frame; if it has content, a header frame follows on the same channel,
and as many body frames as its body size needs, none for an empty body. Channel 0 is the connection's. A connection
begins with the protocol header, sent by the client; a server that does not speak the version answers with its own, and
closes.

Source: the AMQP 0-9-1 specification, 4.2 and 2.3.5, and its XML (constants).
"""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.named_tuple import NamedTuple

#: "AMQP", 0, version 0-9-1.
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

#: Type, channel, size of the payload.
FRAME: Final = struct.Struct(">BHI")
FRAME_END: Final = 0xCE
#: Bytes of a frame beside its payload.
OVERHEAD: Final = FRAME.size + 1

#: The size that every peer accepts before a maximum is negotiated, and the smallest maximum that may be negotiated.
FRAME_MIN_SIZE: Final = 4096

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
_TYPES: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))

_END: Final = bytes((FRAME_END,))
#: A heartbeat; it is on channel 0 and has no payload.
HEARTBEAT_FRAME: Final = FRAME.pack(HEARTBEAT, 0, 0) + _END


class Frame(NamedTuple):
    """One frame."""

    type: int
    channel: int
    payload: bytes


def decode_frame(buffer: bytes, offset: int, max_frame: int) -> Frame | None:
    """The frame at `offset`, or None if it is incomplete.

    The next frame begins at offset + OVERHEAD + the bytes of the payload.

    Args:
        buffer: received bytes.
        offset: where the frame begins.
        max_frame: the negotiated maximum size of a frame in bytes, all of it.

    Raises:
        Amqp091Error: its type or end is not valid, or it is larger than `max_frame`.
    """
    if len(buffer) - offset < FRAME.size:
        return None
    frame_type, channel, size = FRAME.unpack_from(buffer, offset)
    if frame_type not in _TYPES:
        raise Amqp091Error(f"unknown frame type {frame_type}", offset)
    if size + OVERHEAD > max_frame:
        raise Amqp091Error(f"a frame of {size + OVERHEAD} bytes; the maximum is {max_frame}", offset)
    start = offset + FRAME.size
    stop = start + size
    if stop >= len(buffer):
        return None
    if buffer[stop] != FRAME_END:
        raise Amqp091Error(f"a frame ends with 0x{buffer[stop]:02x} instead of 0x{FRAME_END:02x}", stop)
    return Frame(frame_type, channel, buffer[start:stop])


def encode_frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """One frame.

    Raises:
        Amqp091Error: a number does not fit.
    """
    try:
        return FRAME.pack(frame_type, channel, len(payload)) + payload + _END
    except struct.error as error:
        raise Amqp091Error(f"a payload of {len(payload)} bytes on channel {channel} does not fit: {error}") from None


def encode_content(channel: int, method: bytes, header: bytes, body: bytes, max_frame: int) -> list[bytes]:
    """The frames of a method with content; joined, the bytes to send. The body is not copied if one frame holds it.

    Args:
        channel: the channel.
        method: the method, from `methods.encode_method`.
        header: the content header, from `properties.encode_header`.
        body: the body.
        max_frame: the negotiated maximum size of a frame in bytes, all of it; at least FRAME_MIN_SIZE.

    Raises:
        Amqp091Error: the content header does not fit a frame.
    """
    room = max_frame - OVERHEAD
    if len(header) > room:
        raise Amqp091Error(f"a content header of {len(header)} bytes does not fit a frame of {max_frame}")
    parts = [encode_frame(METHOD, channel, method) + encode_frame(HEADER, channel, header)]
    for start in range(0, len(body), room):
        part = body if len(body) <= room else body[start : start + room]
        parts += (FRAME.pack(BODY, channel, len(part)), part, _END)
    return parts
