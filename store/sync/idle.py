"""Decides when an idle broker may wait for the disk itself.

A sync by a helper costs two context switches, about as much as the sync itself on an idle machine. So the owner of an
idle event loop passes that information, and the sync is made at once. A disk that stalls must not block the loop: after
a slow sync the helper does all of them for a while, longer each time that it happens again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qstore.store.sync.driver import sync_all
from qstore.store.writable_disk import WritableFile

_LONG: Final = 5_000_000  # nanoseconds: a sync that takes longer is slow
_FIRST_PAUSE: Final = 250_000_000
_MAX_PAUSE: Final = 64_000_000_000


class IdleSync:
    """Syncs at once, as long as the disk is fast.

    Args:
        clock: returns nanoseconds.
    """

    __slots__ = ("_clock", "_not_before", "_pause")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._pause = _FIRST_PAUSE
        self._not_before = 0

    @property
    def is_quick(self) -> bool:
        """Whether the event loop may wait for the disk."""
        return self._clock() >= self._not_before

    def sync(self, files: Sequence[WritableFile]) -> OSError | None:
        """Sync the files; returns the first error."""
        began = self._clock()
        error = sync_all(files)
        ended = self._clock()
        if ended - began > _LONG:
            self._not_before = ended + self._pause
            self._pause = min(2 * self._pause, _MAX_PAUSE)
        elif ended - self._not_before > 2 * self._pause:
            self._pause = _FIRST_PAUSE
        return error
