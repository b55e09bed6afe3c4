"""Packs records into a new journal of version 2: one after another, in flushes, without remembering any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, ROUND_UP, data_crc, word
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import Kind, RecordHeader
from qstore.formats.wording import printable
from qstore.store.environment import Environment
from qstore.store.journal.write.flushes import FlushQueue, JournalOwner, Step, WriteBatch
from qstore.store.journal.write.space import FileRing
from qstore.store.recovery.journal_content import FLUSH_BYTES, WRITE_BYTES, JournalContent, version_2_geometries

_ENQUEUE: Final = word(Kind.ENQUEUE, 2)
_FLUSH_BLOCKS: Final = FLUSH_BYTES // BLOCK_SIZE


class Version2Packer:
    """Packs the records of one journal.

    Args:
        environment: clock and random numbers.
        info: the requested journal.

    Attributes:
        limit: blocks that may be filled: all.
    """

    __slots__ = ("_batch", "_flushes", "limit")

    def __init__(self, environment: Environment, info: JournalInfo) -> None:
        self.limit = info.geometry.capacity // BLOCK_SIZE
        ring = FileRing(range(info.geometry.files))
        self._flushes = FlushQueue(info.geometry, ring, page=WRITE_BYTES, synced=0, place=0)
        self._batch = WriteBatch(
            JournalOwner(f'queue "{printable(info.queue_name)}"', info.queue_id, info.incarnation),
            info.geometry,
            ring,
            alignment=info.flush_alignment,
            position=0,
            flush=0,
            is_sealed=False,
            salts={},
            slots={},
            salt=lambda: environment.random_bits(64),
            clock=environment.clock,
        )

    def enqueue(self, rid: int, data: bytes, crc: int) -> None:
        """Append a message outside of any transaction; `crc` is its `data_crc`."""
        batch, size = self._batch, len(data)
        blocks = (size + ROUND_UP) >> BLOCK_SHIFT
        end = batch.position + blocks
        if end > batch.file_end:
            batch.append(_ENQUEUE, rid, b"", size, (data,), size, crc)
            return
        padding = (blocks << BLOCK_SHIFT) - size - FIXED_SIZE
        batch.records.append(_ENQUEUE, rid, b"", batch.low_number, size, (data,), size, crc, batch.salt, padding)
        batch.position = end

    def append(self, header: RecordHeader, xid: bytes, parts: Sequence[bytes]) -> None:
        """Append any record."""
        size = header.data_size
        datum = header.dequeued_rid if header.kind is Kind.DEQUEUE else size
        first = word(header.kind, 2, header.flags)
        self._batch.append(first, header.rid, xid, datum, parts, size, data_crc(parts))

    def seal(self) -> bool:
        """Close the journal cleanly. Returns whether that needs a flush."""
        if not self._batch.needs_seal:
            return False
        for flush in self._batch.seal():
            self._flushes.add(flush)
        return True

    @property
    def position(self) -> int:
        """Blocks filled so far."""
        return self._batch.position

    @property
    def is_flush_due(self) -> bool:
        """Whether enough is collected for a flush."""
        return self._batch.position - self._batch.start >= _FLUSH_BLOCKS

    def next_flush(self) -> Step | None:
        """The next step; None if nothing is to be written."""
        if self._flushes.is_empty and not self._batch.records.is_empty:
            self._flushes.add(self._batch.close())
        return self._flushes.next_step()

    def flushed(self) -> None:
        """The step is written, or will be before any other."""
        self._flushes.step_synced()


def geometries(content: JournalContent, info: JournalInfo) -> Iterator[Geometry]:
    """The geometries that hold `content`, the nearest to that of `info` first."""
    return version_2_geometries(content, info.geometry, info.flush_alignment)
