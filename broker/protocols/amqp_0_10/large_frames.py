"""The frames of a command with large content, built from the pieces of the content without copying.

Source: AMQP 0-10, transport (frames, segments).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.broker.model.content import Buffer, Content, LargeContent, pieces_of
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    encode_frame,
)

MAX_AT_ONCE: Final = 256 * 1024  # bytes; larger content is sent in portions of this size

_WHOLE: Final = FIRST_FRAME | LAST_FRAME


def is_large(body: Content | None) -> bool:
    """Whether a body is sent in portions, from its pieces."""
    return isinstance(body, LargeContent) or (body is not None and len(body) > MAX_AT_ONCE)


def content_frames(
    channel: int, payload: bytes, header: bytes | None, body: Content, max_frame: int
) -> Iterator[tuple[Buffer, ...]]:
    """The frames of a command and its content, in order, each as the buffers to write.

    Args:
        channel: the session's.
        payload: the command; with its frame header it fits `max_frame`.
        header: the header segment; None for none.
        body: the body segment, not empty; its bytes are not copied.
        max_frame: maximum frame size in bytes.
    """
    room = max_frame - FRAME.size
    yield (encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, channel, payload),)
    segments = [(HEADER, 0, header)] if header is not None else []
    for segment, place, content in (*segments, (BODY, LAST_SEGMENT, body)):
        left = len(content)
        place |= FIRST_FRAME
        if not left:
            yield (FRAME.pack(place | LAST_FRAME, segment, FRAME.size, 0, TRACK_COMMAND, channel, 0),)
        for piece in pieces_of(content):
            for start in range(0, len(piece), room):
                size = min(room, len(piece) - start)
                left -= size
                flags = place if left else place | LAST_FRAME
                head = FRAME.pack(flags, segment, FRAME.size + size, 0, TRACK_COMMAND, channel, 0)
                yield head, piece if size == len(piece) else memoryview(piece)[start : start + size]
                place &= ~FIRST_FRAME
