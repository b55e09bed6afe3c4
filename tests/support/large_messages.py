"""A message of any size, which a test sends and receives frame by frame: it never has it all.

Each frame of content begins with its number, so that nothing may be left out, doubled or exchanged without the checksum
being another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_0_10.commands import decode_command, encode_command
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    encode_frame,
)
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from tests.support.raw_connection import Frame
from tests.support.raw_peer import RawPeer

_FILLING: Final = bytes(range(256)) * 256
_WHOLE: Final = FIRST_FRAME | LAST_FRAME


class Content(NamedTuple):
    """What is known of a message's content.

    Attributes:
        size: its bytes.
        checksum: their CRC-32.
    """

    size: int
    checksum: int


def body_frames(size: int, *, channel: int = 1, room: int = 65535 - FRAME.size, start: int = 0) -> Iterator[bytes]:
    """The frames of a content of `size` bytes, from byte `start` on, each with at most `room` bytes of it."""
    at = start
    while at < size:
        part = min(room, size - at)
        flags = LAST_SEGMENT | (FIRST_FRAME if at == start else 0) | (LAST_FRAME if at + part == size else 0)
        yield encode_frame(flags, BODY, TRACK_COMMAND, channel, content_at(at, part))
        at += part


def content_at(at: int, size: int) -> bytes:
    """The bytes that a content has at one place: they tell where they are."""
    return (b"%016d" % at + _FILLING)[:size]


def checksum_of(size: int, room: int = 65535 - FRAME.size) -> Content:
    """What `body_frames` makes."""
    found = 0
    for at in range(0, size, room):
        found = zlib.crc32(content_at(at, min(room, size - at)), found)
    return Content(size, found)


def begin_transfer(
    peer: RawPeer, routing_key: str, *, channel: int | None = None, destination: str = "", **delivery: Any
) -> None:
    """Send the command and the header of a message; its content follows."""
    on = peer.channel if channel is None else channel
    header = encode_struct(DELIVERY_PROPERTIES, {"routing_key": routing_key, **delivery})
    command = encode_command("message.transfer", destination=destination)
    peer.send_bytes(
        encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, on, command)
        + encode_frame(_WHOLE, HEADER, TRACK_COMMAND, on, header)
    )


def publish_large(peer: RawPeer, routing_key: str, size: int, **delivery: Any) -> int:
    """Send a message of that size, as `body_frames` makes it. Returns the command's number."""
    begin_transfer(peer, routing_key, **delivery)
    for frame in body_frames(size, channel=peer.channel, room=peer.frame_limit - FRAME.size):
        peer.send_bytes(frame)
    peer.sent += 1
    return peer.sent - 1


def next_command(peer: RawPeer, name: str) -> Frame:
    """The next frame that begins a command of that name; controls and other commands are passed over."""
    while True:
        frame = peer.next_frame()
        if frame.segment == COMMAND and decode_command(frame.payload)[0].name == name:
            return frame


def receive_large(peer: RawPeer, *, most: int | None = None) -> Content:
    """Read the next message, frame by frame, and look at no other command meanwhile.

    Args:
        peer: has subscribed.
        most: stop when so many bytes have come; the message need not be at its end.
    """
    next_command(peer, "message.transfer")
    size = checksum = 0
    while True:
        frame = peer.next_frame()
        if frame.segment == CONTROL:
            continue
        if frame.segment == BODY:
            size += len(frame.payload)
            checksum = zlib.crc32(frame.payload, checksum)
        if (frame.flags & LAST_SEGMENT and frame.flags & LAST_FRAME) or (most is not None and size >= most):
            return Content(size, checksum)


def most_resident_bytes(pid: int) -> int:
    """The most memory that a process ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")
