"""Packs records into a new journal of version 1, qpidd's: legal geometries, capacity, and where flushes end.

A geometry is legal for qpidd if it has 4 to 64 files of 1 to 32,767 pages (formats/rhm/README.md, 1.2). The content
must leave the same space free as enqueues, 20 % of the ring or one file (section 3.6), so that qpidd accepts more
messages and has room for the records that remove them.

Fillers are needed if a flush does not end with a sector. So a flush waits for a record that ends there, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import RecordHeader
from qstore.store.environment import Environment
from qstore.store.journal.write.flushes import Step
from qstore.store.journal.write.space import reserve_blocks
from qstore.store.journal.write.version_1_writer import Version1Ring
from qstore.store.recovery.journal_content import (
    FLUSH_BYTES,
    MAX_VERSION_1_PAGES,
    WRITE_BYTES,
    JournalContent,
    nearest_geometries,
)

_FEWEST_FILES: Final = 4
SECTOR_BLOCKS: Final = SECTOR_SIZE // BLOCK_SIZE
_MAX_GATHERED: Final = 2 * FLUSH_BYTES  # if no earlier record ends with a sector


class Version1Packer:
    """Packs the records of one journal. It never wraps, so only the current batch is kept in memory.

    Args:
        environment: provides the clock.
        info: the requested journal.

    Attributes:
        limit: blocks that may be filled, so that qpidd can continue the journal.
    """

    __slots__ = ("_ring", "limit")

    def __init__(self, environment: Environment, info: JournalInfo) -> None:
        self.limit = info.geometry.capacity // BLOCK_SIZE - reserve_blocks(info.geometry)
        self._ring = Version1Ring(info.geometry, page=WRITE_BYTES, clock=environment.clock)

    def enqueue(self, rid: int, data: bytes, _crc: int) -> None:
        """Append a message outside of any transaction; version 1 does not store its checksum."""
        self._ring.enqueue(rid, data)

    def append(self, header: RecordHeader, xid: bytes, parts: Sequence[bytes]) -> None:
        """Append any record."""
        self._ring.append(header, xid, parts)

    def seal(self) -> bool:
        """Do nothing: a clean close leaves no record in version 1."""
        return False

    @property
    def position(self) -> int:
        """Blocks filled so far."""
        return self._ring.position

    @property
    def is_flush_due(self) -> bool:
        """Whether enough is collected for a flush."""
        gathered = self._ring.unsynced
        return gathered >= FLUSH_BYTES and (gathered >= _MAX_GATHERED or not self._ring.position % SECTOR_BLOCKS)

    def next_flush(self) -> Step | None:
        """The next step; None if nothing is to be written."""
        return self._ring.next_flush()

    def flushed(self) -> None:
        """The step is written, or will be before any other."""
        self._ring.flushed()


def padded_blocks(blocks: int) -> int:
    """Maximum blocks for records of `blocks` blocks, with the fillers after each flush but the last."""
    return blocks + (SECTOR_BLOCKS - 1) * (blocks * BLOCK_SIZE // _MAX_GATHERED)


def legal_geometry(geometry: Geometry) -> Geometry:
    """The nearest geometry that is legal in version 1 and not smaller, except for the largest files."""
    files = min(max(geometry.files, _FEWEST_FILES), MAX_FILES)
    return Geometry.from_pages(files, min(-(-geometry.data_size // PAGE_SIZE), MAX_VERSION_1_PAGES))


def fits(content: JournalContent, geometry: Geometry) -> bool:
    """Whether a journal holds `content` and leaves the required space free. Records are no longer than in version 2."""
    flushes = content.blocks * BLOCK_SIZE // FLUSH_BYTES + 2
    return content.blocks + flushes * SECTOR_BLOCKS + reserve_blocks(geometry) <= geometry.capacity // BLOCK_SIZE


def geometries(content: JournalContent, info: JournalInfo) -> Iterator[Geometry]:
    """The geometries that hold `content`, the nearest to that of `info`, made legal, first."""
    return nearest_geometries(
        legal_geometry(info.geometry), MAX_VERSION_1_PAGES, lambda geometry: fits(content, geometry)
    )
