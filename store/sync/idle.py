"""When a broker that has nothing else to do may wait for the disk itself.

A sync by a helper costs two changes of process, which on an idle machine is about as much as the sync. So the owner of
an event loop that is idle says so, and the sync is made there and then. A disk that stalls must not stop the loop with
it: after a sync that took long the helper does them all for a while, longer each time that it happens again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from store.sync.driver import sync_all
from store.writable_disk import WritableFile

_LONG: Final = 5_000_000  # nanoseconds: a sync that takes longer is one too long
_FIRST_PAUSE: Final = 250_000_000
_LONGEST_PAUSE: Final = 64_000_000_000


class IdleSync:
    """Syncs at once, as long as the disk is quick.

    Args:
        clock: gives nanoseconds.
    """

    __slots__ = ("_clock", "_not_before", "_pause")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._pause = _FIRST_PAUSE
        self._not_before = 0

    @property
    def is_quick(self) -> bool:
        """Whether the disk may be waited for."""
        return self._clock() >= self._not_before

    def sync(self, files: Sequence[WritableFile]) -> OSError | None:
        """Sync the files; the first error."""
        began = self._clock()
        error = sync_all(files)
        ended = self._clock()
        if ended - began > _LONG:
            self._not_before = ended + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        elif ended - self._not_before > 2 * self._pause:
            self._pause = _FIRST_PAUSE
        return error
