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

And with runs of messages, as contexts in which the code has the bug:

the last of a run is not kept              nor found, though it is written
the first of a run stays                   when the messages of a range are dequeued, and one after them goes
one too many goes                          of a range that is dequeued
a range is dequeued from the second on     on the disk
a range is released where it begins        though it reaches into the next file, over a rotation
a slice loses its tail                     when messages are dequeued in the middle of a run
the last body of a run is the first        in a run that is so long that it is not copied
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.file_header import SLOT_SIZE, decode_file_header, encode_header_slot
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.store.journal.write.compaction import Compactor, blocks_in_passing
from qstore.store.journal.write.flushes import (
    _LONG_RUN,
    FlushQueue,
    JournalOwner,
    RecordBuffer,
    Step,
    Write,
    WriteBatch,
)
from qstore.store.journal.write.growth import UNENTERED
from qstore.store.journal.write.live_records import LiveRecords, RestingRecords
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, FileRing, RingSpace
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
        return None if step is None else Step([_with_indicator_0(write) for write in step.writes], step.files)


def _with_indicator_0(write: Write) -> Write:
    if write.offset >= DATA_OFFSET:
        return write
    header = decode_file_header(bytes(write.content).ljust(2 * SLOT_SIZE, b"\0"))
    assert header is not None
    return Write(write.file, write.offset, encode_header_slot(header._replace(overwrite_indicator=0)))


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


# ---- runs ----


def _without_last(self: RestingRecords, first: int, count: int, place: int, blocks: int) -> bool:
    return _sound_add_run(self, first, count - 1, place, blocks)


_sound_add_run = RestingRecords.add_run


def _from_second(self: RestingRecords, rid: int, count: int) -> tuple[int, int]:
    if count > 1 and self.get(rid) and self.get(rid + count):
        return _sound_take_run(self, rid + 1, count)
    return _sound_take_run(self, rid, count)


def _one_more(self: RestingRecords, rid: int, count: int) -> tuple[int, int]:
    taken, packed = _sound_take_run(self, rid, count + 1)
    return min(taken, count), packed


def _without_tail(self: RestingRecords, rid: int, count: int) -> tuple[int, int]:
    chunks = len(self._chunks)
    taken, packed = _sound_take_run(self, rid, count)
    if len(self._chunks) > chunks:
        end = rid + taken
        while self.take(end):
            end += 1
    return taken, packed


_sound_take_run = RestingRecords.take_run


def _dequeues_from_second(self: RecordBuffer, rid: int, flush: int, target: int, count: int, salt: bytes) -> None:
    _sound_append_dequeues(self, rid, flush, target + 1, count, salt)


_sound_append_dequeues = RecordBuffer.append_dequeues


def _in_first_file(self: RingSpace, counts: dict[int, int], place: int, blocks: int, count: int) -> None:
    index = place // self.file
    counts[index] = counts.get(index, 0) + count


def _first_body_again(
    self: RecordBuffer, rid: int, flush: int, head: bytes, field: SizeField | None, bodies: Bodies, *rest: Any
) -> None:
    first, count, blocks, last, salt = rest
    if blocks < _LONG_RUN or not bodies.is_even:
        _sound_append_run(self, rid, flush, head, field, bodies, *rest)
        return
    _sound_append_run(self, rid, flush, head, field, bodies, first, count - 1, blocks - last, last, salt)
    _sound_append_run(self, rid + count - 1, flush, head, field, bodies, first, 1, last, last, salt)


_sound_append_run = RecordBuffer.append_run


def _as_large_as_the_first(self: RestingRecords, first: int, packed: array[int]) -> bool:
    step = packed[0] & SIZE_MASK
    places = [packed[0] + ((number * step) << SIZE_BITS) for number in range(len(packed))]
    return _sound_add_several(self, first, array("Q", places))


_sound_add_several = RestingRecords.add_several


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

BROKEN_RUNS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "the last of a run is not kept": partial(patch.object, RestingRecords, "add_run", _without_last),
    "the first of a run stays": partial(patch.object, RestingRecords, "take_run", _from_second),
    "one too many goes": partial(patch.object, RestingRecords, "take_run", _one_more),
    "a range is dequeued from the second on": partial(
        patch.object, RecordBuffer, "append_dequeues", _dequeues_from_second
    ),
    "a range is released where it begins": partial(patch.object, RingSpace, "count_run", _in_first_file),
    "a slice loses its tail": partial(patch.object, RestingRecords, "take_run", _without_tail),
    "the last body of a run is the first": partial(patch.object, RecordBuffer, "append_run", _first_body_again),
    "all of a run are as large as its first": partial(
        patch.object, RestingRecords, "add_several", _as_large_as_the_first
    ),
}
