"""The frames of a method with content, built from the pieces of the body without copying them.

Source: AMQP 0-9-1, 2.3.5.2 and 4.2.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.broker.model.content import Buffer, Content, pieces_of
from qstore.formats.amqp_0_9_1.frames import BODY, FRAME, FRAME_END, HEADER, METHOD, encode_frame

MAX_FRAME: Final = 131_072
"""Maximum size of a frame in bytes that clients are offered; RabbitMQ's."""

_END: Final = bytes((FRAME_END,))


def content_frames(
    channel: int, method: bytes, header: bytes, body: Content, max_payload: int
) -> Iterator[tuple[Buffer, ...]]:
    """The frames, in order, each as the buffers to write.

    Args:
        channel: the channel.
        method: the method.
        header: the content header; it fits a frame.
        body: the body; no frames for an empty one.
        max_payload: maximum size of a frame's payload in bytes.
    """
    yield (encode_frame(METHOD, channel, method),)
    yield (FRAME.pack(HEADER, channel, len(header)), header, _END)
    for piece in pieces_of(body):
        for start in range(0, len(piece), max_payload):
            size = min(max_payload, len(piece) - start)
            part = piece if size == len(piece) else memoryview(piece)[start : start + size]
            yield FRAME.pack(BODY, channel, size), part, _END
