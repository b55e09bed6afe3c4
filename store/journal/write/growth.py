"""Adds files to the ring of a version-2 journal that is being written, and gives back those that it does not need.

A change of the ring is planned here, and made on the disk elsewhere (`ring_change`), for which the writer does not
wait; it takes effect here when it is on the disk. Until then the writer goes on with the files that it has, but does
not enter the *anchor* again, the file before which the ring changes: `file_ring` says why.

A new file comes before the oldest one that is in use. What readers see of it (formats/rhm/README.md, 8.7):

    the oldest file is the first of the ring    it was never entered: it comes after the last file, which is entered
                                                before it
    any other                                   it was entered in the lap of the oldest file, by the same flush, and is
                                                a boundary: nothing in it, and nothing before it, is needed any more

Where files are removed, the free file before them becomes such a boundary, or what it holds would appear to be followed
by the oldest file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qstore.formats.rhm.file_header import other_slot
from qstore.formats.rhm.geometry import MAX_RING_FILES
from qstore.store.journal.write.file_ring import FileRing
from qstore.store.journal.write.flushes import FlushQueue
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import RingSpace
from qstore.store.journal.write.write_batch import WriteBatch

UNENTERED: Final = -1  # the new files follow the last file of the ring, and have never been entered
_KEPT_AHEAD: Final = 2  # free files after the current one that are not removed: the batch may be about to enter them


class RingChange(NamedTuple):
    """A change of a ring that is to be made on the disk.

    Attributes:
        before: the numbers of its files in their order until now.
        after: the same after the change.
        added: the numbers of the files to create.
        removed: the numbers of the files to remove.
        anchor: the number of the file after the new ones, or after the boundary; UNENTERED if new ones follow the last.
        indicator: the overwrite indicator of the new ones, if there is an anchor.
        boundary: the number of the last free file before those to be removed that was entered; UNENTERED for none.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    anchor: int = UNENTERED
    indicator: int = 0
    boundary: int = UNENTERED


class RingGrowth:
    """The changes of one ring, one at a time.

    Args:
        ring, batch, flushes, space, records: the parts of the journal's writer.
        wasted: number of files after the current one that a torn flush had entered before the writer resumed.

    Attributes:
        change: the change that is being made on the disk; None if none is.
    """

    __slots__ = ("_batch", "_flushes", "_records", "_ring", "_space", "_wasted", "change")

    def __init__(
        self,
        ring: FileRing,
        batch: WriteBatch,
        flushes: FlushQueue,
        space: RingSpace,
        records: LiveRecords,
        wasted: int,
    ) -> None:
        self._ring, self._batch, self._flushes = ring, batch, flushes
        self._space, self._records = space, records
        self.change: RingChange | None = None
        self._wasted = batch.index + wasted  # the last of them: their order tells that they are

    def begin(self, files: int) -> RingChange | None:
        """Plan to add so many files. Returns None if that is not possible at the moment."""
        anchor = self._fix_anchor()
        if anchor is None:
            return None
        ring = self._ring
        taken = set(ring.numbers)
        if len(taken) + files > MAX_RING_FILES:
            return None
        numbers = tuple([number for number in range(len(taken) + files) if number not in taken][:files])
        of_lap = ring.place(anchor) > 0
        return self._begun(
            anchor,
            RingChange(
                tuple(ring.numbers),
                tuple(ring.with_inserted(anchor, numbers).numbers),
                added=numbers,
                anchor=ring.number(anchor) if of_lap else UNENTERED,
                indicator=ring.indicator(anchor),
            ),
        )

    def begin_removal(self, files: int) -> RingChange | None:
        """Plan to remove at most so many free files. Returns None if none can be removed at the moment."""
        self._space.reclaim(self._flushes.synced_place)  # a snapshot may have been released since the last flush
        anchor, space, ring = self._fix_anchor(), self._space, self._ring
        current = self._batch.index
        if anchor is None or current < self._wasted or current != (self._flushes.synced_place - 1) // space.file:
            return None  # a file that is entered, but whose header is not on the disk, would be neither free nor used
        end = anchor + space.files
        files = min(files, end - current - 1 - _KEPT_AHEAD - 1)  # one more, which can be the boundary
        if files < 1:
            return None
        numbers = tuple(ring.number(index) for index in range(end - files, end))
        after = tuple(ring.without(anchor, numbers).numbers)
        kept = [index for index in range(current + 1, end - files) if ring.number(index) in self._batch.slots]
        boundary = max(kept, default=0)
        if boundary and boundary <= current + _KEPT_AHEAD:
            return None  # the batch may be about to enter it
        change = RingChange(
            tuple(ring.numbers),
            after,
            removed=numbers,
            anchor=self._next_entered(boundary) if boundary else UNENTERED,
            boundary=ring.number(boundary) if boundary else UNENTERED,
        )
        self._resize((boundary or end - files) - anchor)  # the boundary must not be entered either
        return self._begun(anchor, change)

    def end(self, *, is_made: bool) -> None:
        """The change is on the disk; or it is not, and never will be."""
        change, space = self.change, self._space
        assert change is not None
        anchor, self.change, space.anchor = space.anchor, None, -1
        if not is_made:
            self._resize(len(change.before))
            return
        if change.added:
            self._ring.insert(anchor, change.added)
            if change.anchor != UNENTERED:
                self._batch.slots.update(dict.fromkeys(change.added, 0))
        else:
            self._ring.remove(anchor, change.removed)
            slots = self._batch.slots
            for number in change.removed:
                slots.pop(number, None)
            if change.boundary in slots:
                slots[change.boundary] = other_slot(slots[change.boundary])
        self._resize(len(change.after))

    def _fix_anchor(self) -> int | None:
        """The oldest file, whose header is on the disk; None if the writer could enter it again before the change."""
        space, file = self._space, self._space.file
        if self.change is not None:
            return None
        anchor = min(space.oldest, max(self._flushes.synced_place - 1, 0) // file)
        return None if self._batch.position > (anchor + space.files) * file else anchor

    def _begun(self, anchor: int, change: RingChange) -> RingChange:
        self._space.anchor = anchor
        self.change = change
        return change

    def _next_entered(self, index: int) -> int:
        """The number of the next file after a free one that was entered."""
        ring, slots = self._ring, self._batch.slots
        index += 1
        while ring.number(index) not in slots:
            index += 1
        return ring.number(index)

    def _resize(self, files: int) -> None:
        space = self._space
        before = space.threshold
        space.resize(files)
        self._records.room += space.threshold - before
