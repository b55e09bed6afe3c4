"""When a journal refuses enqueues: qpidd's RHM_IORES_ENQCAPTHRESH, which comes at about 80 % of a ring.

Each format has its own rule; what they share is a *limit*, bytes that may be in use, and what is in use of it.

    version 1   formats/rhm/README.md, 3.5. The writer may not come so close to a file in which a live record
                begins that less than a reserve is free before it: 20 % of the ring, rounded up to blocks, and at least
                one file.
                In use is everything from the beginning of the oldest live record's file to the end of the journal, so
                one old message holds back all that was written after it, needed or not.
    version 2   The blocks of the live records, and one more for the dequeue of each, may be 80 % of the ring. Where
                they stand does not matter, since old ones are copied forward.
    linear      no ring, no limit: files are added as long as the disk has room.

qpidd's algorithm counts, file by file, how far the record to be enqueued and the reserve reach. It accepts exactly
those that end a reserve's length or more before the first file with live records, which is what is computed here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from store.journal.format import JournalFormat

THRESHOLD_PERCENT: Final = 80  # of a ring (MRG 2 Messaging User Guide, 6.3)
NEAR_PERCENT: Final = 80  # of the limit


class Threshold(NamedTuple):
    """How far a journal is from refusing enqueues.

    Attributes:
        limit: bytes that may be in use.
        used: bytes that are.
    """

    limit: int
    used: int

    @property
    def room(self) -> int:
        """Bytes of blocks that enqueues may still take. Version 2 takes one block more for each."""
        return max(self.limit - self.used, 0)

    @property
    def fill(self) -> float:
        """What is in use, as a share of the limit; 1.0 where there is no limit to divide by. Six decimals."""
        return round(self.used / self.limit, 6) if self.limit > 0 else 1.0

    @property
    def is_near(self) -> bool:
        """Whether 80 % or more of the limit is in use."""
        return self.used * 100 >= self.limit * NEAR_PERCENT

    @property
    def is_reached(self) -> bool:
        """Whether no message at all can be enqueued any more."""
        return self.room < BLOCK_SIZE


def enqueue_limit(geometry: Geometry, journal_format: JournalFormat) -> int | None:
    """Bytes that may be in use in a ring; None where there is no limit."""
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
    """How far a ring is from refusing enqueues; None where nothing ever is refused.

    Args:
        geometry: of the ring.
        journal_format: its format.
        oldest: place of the oldest live record in the journal's stream; None if there is none.
        end: place where the journal ends.
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
    """Version 1: bytes from the beginning of the oldest live record's file to where the writer goes on."""
    position = -(-end // SECTOR_SIZE) * SECTOR_SIZE  # it begins with fillers up to a sector's end
    present = position - position % geometry.data_size
    first = present if oldest is None else oldest - oldest % geometry.data_size
    return position - first


def depth_held(
    geometry: Geometry, journal_format: JournalFormat, *, record: Fraction, per_message: Fraction
) -> int | None:
    """How many messages an empty journal takes, at least, before it refuses more; None where it never does.

    Args:
        geometry: of the ring.
        journal_format: its format.
        record: bytes of blocks of a message's enqueue record.
        per_message: bytes by which the journal grows for each message, fillers, commits and so on included.
    """
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return None
    if journal_format is JournalFormat.VERSION_1:
        # At worst the first message stands at the end of its file, and all of that file is in use.
        return int(max(limit - geometry.data_size, 0) / per_message)
    return int(limit / (record + BLOCK_SIZE))
