"""When a journal refuses enqueues: qpidd's RHM_IORES_ENQCAPTHRESH, at about 80 % of a ring.

Each format has its own rule; all have a *limit*, the bytes that may be in use, and the bytes in use.

    version 1   formats/rhm/README.md, 3.5. The writer may not come so close to a file in which a live record
                begins that less than a reserve is free before it: 20 % of the ring, rounded up to blocks, and at least
                one file.
                In use is everything from the beginning of the oldest live record's file to the end of the journal, so
                one old message retains everything written after it, needed or not.
    version 2   The blocks of the live records, and one more for the dequeue of each, may be 80 % of the ring. Their
                offsets do not matter, since old ones are copied forward.
    linear      no ring, no limit: files are added as long as the disk has room.

qpidd's algorithm counts, file by file, how far the record to be enqueued and the reserve reach. It accepts exactly
those that end a reserve's length or more before the first file with live records, which is what is computed here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from qstore.store.journal.format import JournalFormat

THRESHOLD_PERCENT: Final = 80  # of a ring (MRG 2 Messaging User Guide, 6.3)
NEAR_PERCENT: Final = 80  # of the limit


class Threshold(NamedTuple):
    """How far a journal is from refusing enqueues.

    Attributes:
        limit: maximum bytes in use.
        used: bytes in use.
    """

    limit: int
    used: int

    @property
    def room(self) -> int:
        """Bytes of blocks that enqueues may still fill. Version 2 needs one block more for each."""
        return max(self.limit - self.used, 0)

    @property
    def fill(self) -> float:
        """The bytes in use as a fraction of the limit; 1.0 for a limit of 0. Six decimals."""
        return round(self.used / self.limit, 6) if self.limit > 0 else 1.0

    @property
    def is_near(self) -> bool:
        """Whether 80 % or more of the limit is in use."""
        return self.used * 100 >= self.limit * NEAR_PERCENT

    @property
    def is_reached(self) -> bool:
        """Whether no message at all can be enqueued."""
        return self.room < BLOCK_SIZE


def enqueue_limit(geometry: Geometry, journal_format: JournalFormat) -> int | None:
    """Maximum bytes in use in a ring; None if there is no limit."""
    if journal_format is JournalFormat.LINEAR:
        return None
    if journal_format is JournalFormat.VERSION_1:
        blocks = geometry.capacity // BLOCK_SIZE
        reserve = -(-blocks * (100 - THRESHOLD_PERCENT) // 100) * BLOCK_SIZE
        return geometry.capacity - max(reserve, geometry.data_size)
    return geometry.capacity * THRESHOLD_PERCENT // 100


def threshold(
    geometry: Geometry, journal_format: JournalFormat, *, oldest: int | None, end: int, live: int, live_bytes: int
) -> Threshold | None:
    """How far a ring is from refusing enqueues; None if nothing is ever refused.

    Args:
        geometry: the ring's.
        journal_format: its format.
        oldest: log offset of the oldest live record; None if there is none.
        end: log offset where the journal ends.
        live: number of live records.
        live_bytes: bytes of their blocks.
    """
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return None
    if journal_format is JournalFormat.VERSION_1:
        return Threshold(limit, _held_back(geometry, oldest, end))
    return Threshold(limit, live_bytes + live * BLOCK_SIZE)


def _held_back(geometry: Geometry, oldest: int | None, end: int) -> int:
    """Version 1: bytes from the beginning of the oldest live record's file to where the writer continues."""
    position = -(-end // SECTOR_SIZE) * SECTOR_SIZE  # it begins with fillers up to a sector's end
    present = position - position % geometry.data_size
    first = present if oldest is None else oldest - oldest % geometry.data_size
    return position - first


def depth_held(
    geometry: Geometry, journal_format: JournalFormat, *, record: Fraction, per_message: Fraction
) -> int | None:
    """Minimum number of messages that an empty journal accepts before it refuses more; None if it never does.

    Args:
        geometry: the ring's.
        journal_format: its format.
        record: bytes of blocks of a message's enqueue record.
        per_message: bytes by which the journal grows for each message, fillers, commits and so on included.
    """
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return None
    if journal_format is JournalFormat.VERSION_1:
        # In the worst case the first message is at the end of its file, and all of that file is in use.
        return int(max(limit - geometry.data_size, 0) / per_message)
    return int(limit / (record + BLOCK_SIZE))
