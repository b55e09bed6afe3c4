"""The output of a connection: how much is collected at once, and large content that is sent in portions instead.

The frames of a command with large content are built when the socket accepts them, a portion in each tick, straight from
the pieces of the content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from qstore.broker.model.message import Buffer, Content, LargeContent, pieces_of

ROOM: Final = 256 * 1024
"""Bytes sent to one connection before yielding to others: as much as is read from one at once."""

COST_OF_MESSAGE: Final = 64
"""Bytes of a connection's room that a message takes besides its size: many small ones take time, too."""

COST_OF_CONVERSION: Final = 800
CONVERSION_OF_HEADER: Final = 8
"""Likewise, for a message of another protocol: some 35 us, and for each byte of its header, which may have very many
values. So a turn converts 300 plain messages at most, or one with a header of 40 kB (`bench_turns`)."""

LARGE: Final = 256 * 1024
"""Bytes of content beyond which it is sent in portions."""


def is_large(body: Content | None) -> bool:
    """Whether content is sent in portions, from its pieces."""
    return isinstance(body, LargeContent) or (body is not None and len(body) > LARGE)


def parts_of(content: Content, max_bytes: int) -> Iterator[Buffer]:
    """Content in parts of at most `max_bytes`, each from one of its pieces, without copying."""
    for piece in pieces_of(content):
        for start in range(0, len(piece), max_bytes):
            size = min(max_bytes, len(piece) - start)
            yield piece if size == len(piece) else memoryview(piece)[start : start + size]


class Stream:
    """The output of a session or channel that exceeds what its connection takes at once.

    Attributes:
        frames: number of frames taken.
    """

    __slots__ = ("_waiting", "frames")

    def __init__(self) -> None:
        self.frames = 0
        self._waiting: deque[Iterator[tuple[Buffer, ...]]] = deque()

    def add(self, frames: Iterable[tuple[Buffer, ...]]) -> None:
        """Append frames to the stream."""
        self._waiting.append(iter(frames))

    @property
    def is_over(self) -> bool:
        """Whether no frames are left."""
        return not self._waiting

    def take(self, output: list[Buffer], max_bytes: int) -> int:
        """Move frames to `output`: at least one, until they have `max_bytes` bytes. Returns the number of bytes."""
        waiting = self._waiting
        taken = 0
        while waiting:
            for frame in waiting[0]:
                output += frame
                self.frames += 1
                taken += sum(map(len, frame))
                if taken >= max_bytes:
                    return taken
            waiting.popleft()
        return taken
