"""Frames of AMQP 0-10.

    flags u8 | segment type u8 | size u16 | 0 u8 | track u8 | channel u16 | 0 u32 | payload

Big endian; the size counts the whole frame, its 12 bytes of header included. A control or a command is one or more
segments: itself, then for commands with content a header segment and a body segment. A segment is one or more
frames. Flags mark the first and last segment, and the first and last frame of a segment. Controls use track 0, commands
and their content track 1. A connection begins with the protocol header, sent by both sides, before any frame.

Source: the AMQP 0-10 specification, framing, and its XML (domains segment-type and track, MIN-MAX-FRAME-SIZE).
"""

from __future__ import annotations

import struct
from typing import Final

from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.named_tuple import NamedTuple

#: "AMQP", class 1, instance 1, version 0-10.
PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x0a"

#: Flags, segment type, size of the whole frame, 0, track, channel, 0.
FRAME: Final = struct.Struct(">BBHBBHI")

#: The size that every peer accepts before a maximum is negotiated, and the smallest maximum that may be negotiated.
MIN_MAX_FRAME_SIZE: Final = 4096
#: The largest frame that the size field can express.
MAX_FRAME_SIZE: Final = 0xFFFF

FIRST_SEGMENT: Final = 8
LAST_SEGMENT: Final = 4
FIRST_FRAME: Final = 2
LAST_FRAME: Final = 1
#: A control or command without content in one frame.
WHOLE: Final = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME

# Segment types.
CONTROL: Final = 0
COMMAND: Final = 1
HEADER: Final = 2
BODY: Final = 3

TRACK_CONTROL: Final = 0
TRACK_COMMAND: Final = 1


class Frame(NamedTuple):
    """One frame."""

    flags: int
    segment_type: int
    track: int
    channel: int
    payload: bytes


# --------------------------------------------------------------------------------------------- decoding


def decode_frame(buffer: bytes, offset: int = 0, max_frame: int = MAX_FRAME_SIZE) -> Frame | None:
    """The frame at `offset`, or None if it is incomplete.

    The next frame begins at offset + FRAME.size + the bytes of the payload.

    Args:
        buffer: received bytes.
        offset: where the frame begins.
        max_frame: the negotiated maximum frame size in bytes.

    Raises:
        Amqp010Error: the header is invalid, or the frame is larger than `max_frame`.
    """
    if len(buffer) - offset < FRAME.size:
        return None
    flags, segment_type, size, reserved, track, channel, reserved_end = FRAME.unpack_from(buffer, offset)
    if not FRAME.size <= size <= max_frame:
        raise Amqp010Error(f"frame size {size} is not in the range {FRAME.size} to {max_frame}", offset)
    if flags > WHOLE or segment_type > BODY or track > TRACK_COMMAND or reserved or reserved_end:
        head = buffer[offset : offset + FRAME.size].hex(" ")
        raise Amqp010Error(f"invalid frame header {head}", offset)
    if offset + size > len(buffer):
        return None
    return Frame(flags, segment_type, track, channel, buffer[offset + FRAME.size : offset + size])


# --------------------------------------------------------------------------------------------- encoding


def encode_frame(flags: int, segment_type: int, track: int, channel: int, payload: bytes) -> bytes:
    """One frame.

    Raises:
        Amqp010Error: the payload is longer than 65,523 bytes, or another number does not fit.
    """
    try:
        return FRAME.pack(flags, segment_type, FRAME.size + len(payload), 0, track, channel, 0) + payload
    except struct.error as error:
        raise Amqp010Error(
            f"a payload of {len(payload)} bytes on channel {channel} does not fit a frame: {error}"
        ) from None


def encode_control_frame(channel: int, payload: bytes) -> bytes:
    """The frame of a control, whose payload `commands.encode_control` makes.

    Raises:
        Amqp010Error: see `encode_frame`.
    """
    return encode_frame(WHOLE, CONTROL, TRACK_CONTROL, channel, payload)


def encode_command_frames(
    channel: int, payload: bytes, header: bytes | None, body: bytes | None, max_frame: int
) -> list[bytes]:
    """The frames of one command and its content.

    Args:
        channel: the session's channel.
        payload: the command, from `commands.encode_command`.
        header: the header segment; None omits it.
        body: the body segment; None omits it, and an empty one is an empty frame.
        max_frame: the negotiated maximum frame size in bytes, including the header.

    Raises:
        Amqp010Error: no payload fits into `max_frame`, or see `encode_frame`.
    """
    room = max_frame - FRAME.size
    if room <= 0:
        raise Amqp010Error(f"frames of {max_frame} bytes have no room for a payload")
    segments = [(COMMAND, payload)]
    if header is not None:
        segments.append((HEADER, header))
    if body is not None:
        segments.append((BODY, body))
    frames = []
    for segment_type, content in segments:
        flags = FIRST_SEGMENT if segment_type == COMMAND else 0
        if segment_type == segments[-1][0]:
            flags |= LAST_SEGMENT
        frames.extend(_split_segment(flags, segment_type, channel, content, room))
    return frames


def _split_segment(flags: int, segment_type: int, channel: int, content: bytes, room: int) -> list[bytes]:
    """The frames of one segment, each with at most `room` bytes of payload; one frame for an empty segment."""
    if len(content) <= room:
        return [encode_frame(flags | FIRST_FRAME | LAST_FRAME, segment_type, TRACK_COMMAND, channel, content)]
    frames = []
    for start in range(0, len(content), room):
        place = FIRST_FRAME if start == 0 else LAST_FRAME if start + room >= len(content) else 0
        part = content[start : start + room]
        frames.append(encode_frame(flags | place, segment_type, TRACK_COMMAND, channel, part))
    return frames
