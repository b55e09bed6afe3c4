"""Output that is too large to be added to a connection's output at once: it is sent in portions.

Its frames are built when the socket accepts them, a portion in each tick, straight from the pieces of the content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from qstore.broker.model.message import Buffer


class Stream:
    """The output of a session or channel that exceeds what its connection takes at once.

    Attributes:
        frames: how many frames were taken.
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
