"""Decides when an idle broker may wait for the disk itself.

A sync by a helper costs two context switches, about as much as the sync itself on an idle machine. So the owner of an
idle event loop passes that information, and the sync is made at once. A disk that stalls must not block the loop: after
a slow sync the helper does all of them for 25 times as long as the loop was blocked, at least 250 ms. So slow syncs
block it for 4 % of the time at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qstore.store.disk import WritableFile
from qstore.store.sync.driver import sync_all

_LONG: Final = 5_000_000  # nanoseconds: a sync that takes longer is slow
_PAUSES: Final = 25  # how many times as long as a slow sync the pause after it is
_MIN_PAUSE: Final = 250_000_000


class IdleSync:
    """Syncs at once, as long as the disk is fast.

    Args:
        clock: returns nanoseconds.
    """

    __slots__ = ("_clock", "_not_before")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
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
            self._not_before = ended + max(_MIN_PAUSE, _PAUSES * (ended - began))
        return error
