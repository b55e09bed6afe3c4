"""Removes the files that journals have given back, or that deleted queues had: few at a time, in the background.

Hundreds of files that are removed at once stop the syncs of all others for some 450 ms on a disk that is mounted with
`discard`. So at most 64 go at each look, and all of them only if the disk is short of room. When the store is closed,
those that were given back go too; those of deleted queues as far as two seconds are enough.

Until then those that were given back are listed as spare in the info file of their journal (`growth`). After a
kill the next start removes them, and a ring that grows meanwhile may take their numbers: then they are its files again.
"""

from __future__ import annotations

import sys
from functools import partial

from qstore.store.disk import WritableDisk
from qstore.store.environment import Background
from qstore.store.journal.write.growth import remove_spare
from qstore.store.live.held_directories import MAX_REMOVED, HeldDirectories
from qstore.store.live.queue_journal import QueueJournal


class SpareFiles:
    """The files that are still to be removed.

    Args:
        disk: where they are.
        background: removes them, in the order of the other changes of journals.
        held: has the directories of deleted queues.
    """

    __slots__ = ("_background", "_disk", "_held", "_is_removing", "_waiting")

    def __init__(self, disk: WritableDisk, background: Background, held: HeldDirectories) -> None:
        self._disk, self._background, self._held = disk, background, held
        self._waiting: dict[QueueJournal, list[int]] = {}
        self._is_removing = False

    def add(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """A journal has given files back: they are spare, on the disk too."""
        self._waiting.setdefault(journal, []).extend(reversed(numbers))

    def taken(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """New files of a journal will have these numbers. To be called before the background creates them."""
        waiting = self._waiting.get(journal)
        if waiting is not None:
            again = set(numbers)
            waiting[:] = [number for number in waiting if number not in again]

    def look(self) -> None:
        """Begin to remove some, if those before are gone. Call it about every half second."""
        if not self._is_removing:
            self._remove(MAX_REMOVED)

    def remove_all(self) -> None:
        """Begin to remove all of them: their room is needed."""
        self._remove(sys.maxsize)

    def will_close(self) -> None:
        """Begin to remove what is left: the store is about to be closed."""
        self._remove(sum(map(len, self._waiting.values())))
        self._background.run(self._held.remove_for_a_while, self._removed, self._removed)

    def _remove(self, most: int) -> None:
        parts = []
        while most and self._waiting:
            journal, numbers = next(iter(self._waiting.items()))
            chosen = [numbers.pop() for _ in range(min(most, len(numbers)))]
            if not numbers:
                del self._waiting[journal]
            parts.append(partial(remove_spare, self._disk, journal.directory, journal.base_name, chosen))
            most -= len(chosen)
        if most and self._held.has_long:
            parts.append(partial(self._held.remove_some, most))
        if parts:
            self._is_removing = True
            self._background.run(lambda: [part() for part in parts], self._removed, self._removed)

    def _removed(self, _: object) -> None:
        self._is_removing = False
