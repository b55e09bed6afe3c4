"""Journal writers that each break one rule; the crash matrix has to catch every one of them.

no sync                    nothing is ever synced
completion before sync     a record is called durable when it is written
lost dequeue               a dequeue that would begin a file is not written
wrong overwrite indicator  every lap has the same
flushes overlap            flush n + 1 is written before flush n is synced
compaction without a sync  a file counts as free when its records are copied, not when the copies are on the disk

And with rings that grow and shrink:

files in use before they are in the ring   as if the info file was written at once
no boundary                                free files before those removed look as if the oldest followed them
ring in use before it is synced            a change that a kill interrupted is not synced by the next life
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from qstore.formats.rhm.file_header import SLOT_SIZE, decode_file_header, encode_header_slot
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.store.journal.write.compaction import Compactor, blocks_in_passing
from qstore.store.journal.write.flushes import FlushQueue, JournalOwner, Step, Write, WriteBatch
from qstore.store.journal.write.growth import UNENTERED
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import FileRing, RingSpace
from qstore.store.journal.write.version_2_writer import Version2Writer, WriterState, open_writer
from tests.faults.journal_simulation import JournalLife
from tests.faults.simulated_disk import SimulatedDisk


class NeverSyncs(JournalLife):
    """No sync."""

    def _sync(self) -> None:
        self._syncs = []


class CompletesBeforeSync(JournalLife):
    """Completion before sync."""

    def begin(self) -> Step | None:
        step = super().begin()
        if self.writer.is_under_way:
            self.model.settle(self.writer.synced + 1)
        return step


class LosesDequeue(JournalLife):
    """Lost dequeue."""

    def dequeue(self, rid: int, target: int, xid: bytes = b"") -> bool:
        writer = self.writer
        if xid or writer.batch.position != writer.batch.file_end:
            return super().dequeue(rid, target, xid)
        writer.check_dequeue(target)
        return self._do("dequeue", target, xid, b"", lambda: writer.records.dequeued(target))


class _SameIndicator(Version2Writer):
    __slots__ = ()

    def next_flush(self) -> Step | None:
        step = super().next_flush()
        return None if step is None else step._replace(writes=[_with_indicator_0(write) for write in step.writes])


def _with_indicator_0(write: Write) -> Write:
    if write.offset >= DATA_OFFSET:
        return write
    header = decode_file_header(bytes(write.content).ljust(2 * SLOT_SIZE, b"\0"))
    assert header is not None
    return write._replace(content=encode_header_slot(replace(header, overwrite_indicator=0)))


class SameIndicator(JournalLife):
    """Wrong overwrite indicator."""

    @staticmethod
    def open_writer(identity: JournalOwner, geometry: Geometry, ring: FileRing, **options: Any) -> Version2Writer:
        made = open_writer(identity, geometry, ring, **options)
        return _SameIndicator(identity, ring, made.batch, made.flushes, made.space, made.records, made.compactor)


class OverlapsFlushes(JournalLife):
    """Flushes overlap."""

    def begin(self) -> Step | None:
        """The next step is handed out as if the last one were synced; what is called durable is right all the same."""
        outstanding, self._syncs = self._syncs, []
        step = super().begin()
        self._syncs = [*outstanding, *self._syncs]
        if step is not None and len(self._syncs) < 6:
            self.writer.flushed()
        return step

    def finish(self) -> None:
        self._sync()
        self._syncs = []
        if self.writer.is_under_way:
            self.writer.flushed()
        self.storage.trim()
        self.model.settle(self.writer.synced)

    def drain(self) -> None:
        for _ in range(1000):
            if self.begin() is None and not self._syncs:
                return
            if self.writer.is_under_way or not self.writer.is_dirty:
                self.finish()


class _EagerSpace(RingSpace):
    """Where a file is free at once, none has to be kept for compaction."""

    __slots__ = ()

    def compaction_needs(self, largest: int, escorts: int) -> int:
        return super().compaction_needs(largest, escorts) - self.file + largest


class _EagerRecords(LiveRecords):
    __slots__ = ("_flushes",)

    def __init__(self, batch: WriteBatch, space: RingSpace, state: WriterState, flushes: FlushQueue) -> None:
        super().__init__(batch, space, state.live, state.transactions)
        self._flushes = flushes

    def moved(self, rid: int, place: int, blocks: int) -> None:
        super().moved(rid, place, blocks)
        self._space.release([self._batch.removed.pop()])
        self._space.reclaim(self._flushes.synced_place)


class FreesEarly(JournalLife):
    """Compaction without a sync."""

    @staticmethod
    def open_writer(identity: JournalOwner, geometry: Geometry, ring: FileRing, **options: Any) -> Version2Writer:
        made = open_writer(identity, geometry, ring, **options)
        batch, flushes, in_passing = made.batch, made.flushes, blocks_in_passing(options["page"])
        chunk = max(geometry.data_size // BLOCK_SIZE, in_passing)
        space = _EagerSpace(geometry, 512, chunk)
        records = _EagerRecords(batch, space, options["state"], flushes)
        compactor = Compactor(batch, flushes, space, records, options["read"], in_passing=in_passing, chunk=chunk)
        return Version2Writer(identity, ring, batch, flushes, space, records, compactor)


class GrowsEarly(JournalLife):
    """The new files are used before the info file says that there are any."""

    def begin_change(self, files: int) -> bool:
        if self.writer.growth.change is not None or not super().begin_change(files):
            return False
        self.writer.growth.end(is_made=True)
        self.writer.ring_changed()
        return True

    def make_change(self) -> None:
        """Never."""


class ForgetsBoundary(JournalLife):
    """Free files before those removed still look as if they were followed by the oldest."""

    def begin_change(self, files: int) -> bool:
        begun = super().begin_change(files)
        change = self.writer.growth.change
        if begun and change is not None and change.removed:
            self.writer.growth.change = change._replace(boundary=UNENTERED)
        return begun


class ForgetsToSync(JournalLife):
    """A change that a crash interrupted is used before it is synced."""

    def __init__(self, disk: SimulatedDisk, seed: int = 0) -> None:
        watch, disk.sync_directory = disk.sync_directory, lambda path: None  # type: ignore[method-assign]
        try:
            super().__init__(disk, seed)
        finally:
            disk.sync_directory = watch  # type: ignore[method-assign]


BROKEN: Final[dict[str, type[JournalLife]]] = {
    "no sync": NeverSyncs,
    "completion before sync": CompletesBeforeSync,
    "lost dequeue": LosesDequeue,
    "wrong overwrite indicator": SameIndicator,
    "flushes overlap": OverlapsFlushes,
    "compaction without a sync": FreesEarly,
}

BROKEN_GROWTH: Final[dict[str, type[JournalLife]]] = {
    "files in use before they are in the ring": GrowsEarly,
    "no boundary": ForgetsBoundary,
    "ring in use before it is synced": ForgetsToSync,
}
