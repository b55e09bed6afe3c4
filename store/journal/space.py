"""The space of a version-2 ring: what is held, what is free, and what may still be written.

Places count blocks through an endless stream: place // blocks per file is the file, counted over all laps, and that
modulo the number of files is its number in the ring. The writer stands at `position`; the oldest file that holds a
live record is `oldest`, and the writer must not enter the file that comes round to it. What lies between is free:

    free = (oldest + files) × file - position

A record is live from its enqueue until the dequeue, or the outcome of the transaction, that removes it is *synced*. A
transactional dequeue is kept like a live record until its transaction is over.

Three rules keep the ring from filling up with a message that nobody can remove (DESIGN, "Fill"):

    threshold    live blocks, one more for the dequeue of each live record, and what open transactions need for their
                 outcome are at most 80 % of the ring, or the enqueue is refused
    drain        the free blocks hold a flush of its own for the dequeue of each live record; dequeues keep that true
    compaction   or: the free blocks hold a whole file and the longest record, so that the oldest file's live records
                 can be copied forward and the file be freed; and what is live leaves that much free for good

An enqueue is taken if, after it, the first and one of the others hold. So dequeues always fit: under the second by
themselves, under the third after compaction, of which each full turn squeezes out all that is dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formats.rhm.geometry import BLOCK_SIZE, Geometry
from store.threshold import THRESHOLD_PERCENT

#: A live record's place and size as one number: place << SIZE_BITS | blocks.
SIZE_BITS: Final = 24
MAX_BLOCKS: Final = (1 << SIZE_BITS) - 1  # of one record: 2 GiB less a block
SIZE_MASK: Final = MAX_BLOCKS

_SPARE_FLUSHES: Final = 64  # seals, restarts and so on for which there is room, in a large ring


class RingSpace:
    """Which files of one ring are held, and how much is free.

    Args:
        geometry: number and size of the files, of which there are two at least.
        alignment: bytes to which flushes are padded.
        chunk: blocks that one flush relocates at most.

    Attributes:
        files: number of files.
        file: blocks in one.
        flush: blocks of the smallest flush, which is also what padding may add to a larger one.
        oldest: the oldest file that holds a live record, or the one in which the first unsynced flush begins.
        largest: blocks of the longest record that is live, or longer.
        threshold: blocks that enqueues may fill, reserves included.
        margin: blocks kept for seals, restarts and the like.
    """

    __slots__ = ("_held", "_turn", "file", "files", "flush", "largest", "margin", "oldest", "threshold")

    def __init__(self, geometry: Geometry, alignment: int, chunk: int) -> None:
        if geometry.files < 2:
            raise ValueError(f"a ring that is written has at least two files, not {geometry.files}")
        self.files = geometry.files
        self.file = geometry.data_size // BLOCK_SIZE
        self.flush = alignment // BLOCK_SIZE
        self.oldest = 0
        self.largest = 1
        self.threshold = geometry.capacity * THRESHOLD_PERCENT // 100 // BLOCK_SIZE
        self.margin = max(4 * self.flush, min(_SPARE_FLUSHES * self.flush, self.file // 8))
        # Padding of the flushes of one turn of compaction.
        self._turn = self.margin + self.flush * self.files * (-(-self.file // chunk) + 1)
        self._held: dict[int, int] = {}

    # ---- what is held ----

    def hold(self, place: int, blocks: int) -> None:
        """A record is written at `place`: each file that it touches is held once more."""
        held = self._held
        for index in range(place // self.file, (place + blocks - 1) // self.file + 1):
            held[index] = held.get(index, 0) + 1

    def hold_in(self, index: int, count: int) -> None:
        """So many records more are written within the file `index`."""
        self._held[index] = self._held.get(index, 0) + count

    def release(self, records: Iterable[int]) -> None:
        """What these records, packed, were removed by is synced."""
        held, file = self._held, self.file
        for packed in records:
            place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
            first = place // file
            held[first] -= 1
            for index in range(first + 1, (place + blocks - 1) // file + 1):
                held[index] -= 1

    def settle(self, unsynced: int) -> None:
        """Let go of the files at the head that nothing holds, up to the one in which the place `unsynced` lies."""
        held, last = self._held, unsynced // self.file
        while self.oldest < last and not held.get(self.oldest):
            held.pop(self.oldest, None)
            self.oldest += 1

    @property
    def end(self) -> int:
        """The place that may not be passed."""
        return (self.oldest + self.files) * self.file

    # ---- what may be written ----

    def compaction_needs(self, largest: int) -> int:
        """Blocks that have to be free for compaction to go on, whatever is in the oldest file."""
        return self.file + largest + self.margin

    def compacts(self, live: int, largest: int) -> bool:
        """Whether compaction can free `compaction_needs` for good where so many blocks are live."""
        return live <= (self.files - 1) * self.file - largest - self._turn

    def drains(self, free: int, records: int, outcomes: int) -> bool:
        """Whether `free` blocks hold the dequeue of each live record and the outcomes of open transactions."""
        return free >= self.flush * records + outcomes + self.margin
