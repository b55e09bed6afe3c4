"""Frames of AMQP 1.0: 8 bytes, an extended header, and the body.

    size u32 | doff u8 | type u8 | channel u16 | extended header, up to 4 x doff bytes | body

The type is 0 for AMQP and 1 for SASL, whose frames have no channel. A frame without a body is a heartbeat. A connection
begins with a protocol header of eight bytes, once for SASL, if it is used, and once for AMQP.

Source: the AMQP 1.0 specification as XML, part "transport", section 2.2 and 2.3; "security", section 5.3.
"""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.amqp_1_0.values import Amqp10Error
from qstore.formats.named_tuple import NamedTuple

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

FRAME: Final = struct.Struct(">IBBH")
AMQP: Final = 0
SASL: Final = 1
MIN_MAX_FRAME: Final = 512
"""Bytes of a frame that every peer accepts."""

_DOFF: Final = FRAME.size // 4
HEARTBEAT_FRAME: Final = FRAME.pack(FRAME.size, _DOFF, AMQP, 0)


class Frame(NamedTuple):
    """A frame.

    Attributes:
        type: AMQP or SASL.
        channel: its channel.
        size: its bytes, header included.
        body: its body.
    """

    type: int
    channel: int
    size: int
    body: bytes


def encode_frame(channel: int, body: bytes, kind: int = AMQP) -> bytes:
    """A frame without an extended header."""
    return FRAME.pack(FRAME.size + len(body), _DOFF, kind, channel) + body


def frame_body_at(size: int, doff: int, max_frame: int) -> int:
    """Where the body of a frame begins. Raises Amqp10Error if its header is not valid."""
    if size > max_frame:
        raise Amqp10Error(f"a frame of {size} bytes; the maximum is {max_frame}")
    if doff < _DOFF or doff * 4 > size:
        raise Amqp10Error(f"a frame of {size} bytes whose body begins at {doff * 4}")
    return doff * 4


def decode_frame(data: bytes, at: int, max_frame: int) -> Frame | None:
    """The frame at a position; None if it is incomplete. Raises Amqp10Error."""
    if at + FRAME.size > len(data):
        return None
    size, doff, kind, channel = FRAME.unpack_from(data, at)
    body_at = frame_body_at(size, doff, max_frame)
    if at + size > len(data):
        return None
    return Frame(kind, channel, size, data[at + body_at : at + size])
