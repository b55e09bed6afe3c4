"""Journal writers that each break one rule; the crash matrix has to catch every one of them.

no sync                    nothing is ever synced
completion before sync     a record is called durable when it is written
lost dequeue               a dequeue that would begin a file is not written
wrong overwrite indicator  every lap has the same
flushes overlap            flush n + 1 is written before flush n is synced
relocation without a sync  a file counts as free when its records are copied, not when the copies are on the disk
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from formats.rhm.file_header import SLOT_SIZE, decode_file_header, encode_header_slot
from formats.rhm.geometry import BLOCK_SIZE, Geometry
from store.journal.space import RingSpace
from store.journal.step import Step
from store.journal.version_2_writer import Version2Writer
from tests.faults.journal_harness import JournalLife


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


class _LosesDequeue(Version2Writer):
    __slots__ = ()

    def dequeue(self, rid: int, target: int) -> None:
        if self._position == self._file_end:
            self.check_dequeue(target)
            self._drop(target, dequeues=1)
        else:
            super().dequeue(rid, target)


class LosesDequeue(JournalLife):
    """Lost dequeue."""

    writer_class = _LosesDequeue


class _SameIndicator(Version2Writer):
    __slots__ = ()

    def _enter(self, rest: int) -> None:
        super()._enter(rest)
        place, content = self._headers[self._index]
        header = decode_file_header(content.ljust(2 * SLOT_SIZE, b"\0"))
        assert header is not None
        self._headers[self._index] = (place, encode_header_slot(replace(header, overwrite_indicator=0)))


class SameIndicator(JournalLife):
    """Wrong overwrite indicator."""

    writer_class = _SameIndicator


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


class _FreesEarly(Version2Writer):
    __slots__ = ()

    def _count_state(self) -> None:
        self._space = _EagerSpace(Geometry(self._files, self._file * BLOCK_SIZE), 512, self._chunk)
        super()._count_state()

    def _move(self, rid: int, place: int, blocks: int) -> None:
        super()._move(rid, place, blocks)
        self._space.release([self._removed.pop()])
        self._space.settle(self.unsynced_place)


class FreesEarly(JournalLife):
    """Relocation without a sync."""

    writer_class = _FreesEarly


BROKEN: Final[dict[str, type[JournalLife]]] = {
    "no sync": NeverSyncs,
    "completion before sync": CompletesBeforeSync,
    "lost dequeue": LosesDequeue,
    "wrong overwrite indicator": SameIndicator,
    "flushes overlap": OverlapsFlushes,
    "relocation without a sync": FreesEarly,
}
