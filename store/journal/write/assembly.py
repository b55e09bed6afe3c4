"""Puts the parts of a version-2 journal's writer together."""

from __future__ import annotations

from collections.abc import Callable

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.store.journal.write.compaction import MAX_COPIED_BLOCKS, Compactor, blocks_in_passing
from qstore.store.journal.write.file_ring import FileRing
from qstore.store.journal.write.flushes import FlushQueue
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import RingSpace
from qstore.store.journal.write.version_2_writer import Version2Writer
from qstore.store.journal.write.write_batch import JournalOwner, WriteBatch
from qstore.store.journal.write.writer_state import WriterState


def open_writer(
    owner: JournalOwner,
    geometry: Geometry,
    ring: FileRing | None = None,
    *,
    alignment: int,
    page: int,
    state: WriterState,
    read: Callable[[int, int], bytes],
    salt: Callable[[], int],
    clock: Callable[[], int],
) -> Version2Writer:
    """Create the writer of one journal.

    Args:
        owner: whose journal it is.
        geometry: number and size of the files.
        ring: their order, which changes when the journal grows; 0, 1, 2 and so on by default.
        alignment: bytes to which flushes are padded.
        page: maximum bytes of one write.
        state: the existing content. The writer takes it over.
        read: reads bytes of the stream: (block, number of bytes). Used for compaction.
        salt: returns 64 random bits.
        clock: returns nanoseconds since the epoch.
    """
    ring = FileRing(range(geometry.files)) if ring is None else ring
    batch = WriteBatch(
        owner,
        geometry,
        ring,
        alignment=alignment,
        position=state.position,
        flush=state.flush,
        is_sealed=state.is_sealed,
        salts=state.salts,
        slots=state.slots,
        salt=salt,
        clock=clock,
    )
    in_passing = blocks_in_passing(page)
    chunk = max(min(geometry.data_size // BLOCK_SIZE, MAX_COPIED_BLOCKS), in_passing)
    flushes = FlushQueue(geometry, ring, page=page, synced=state.flush, place=state.position)
    space = RingSpace(geometry, alignment, chunk)
    records = LiveRecords(batch, space, state.live, state.transactions, state.resting)
    compactor = Compactor(batch, flushes, space, records, read, in_passing=in_passing, chunk=chunk)
    return Version2Writer(
        owner, ring, batch, flushes, space, records, compactor, last_flush=state.last_flush, wasted=state.wasted
    )
