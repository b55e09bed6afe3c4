"""A version-2 journal that is written in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.headers import FIXED_SIZE, data_crc
from qstore.store.errors import JournalBusyError, JournalFullError
from qstore.store.journal.write.flushes import JournalOwner, Step
from qstore.store.journal.write.version_2_writer import WriterState, new_state, open_writer

MAX_BUSY: Final = 100  # times in a row that a record may have to wait for a flush
CLOCK: Final = 1_700_000_000 * 10**9 + 7  # nanoseconds


class MemoryRing:
    """A journal in memory that never fails.

    Attributes:
        writer: the writer, which `restart` replaces.
        files: contents of the files, by number.
        steps: all steps that were written.
        rid: the last record id that was used.
        counts: what happened.
    """

    def __init__(self, geometry: Geometry, alignment: int = 512, page: int = 4096, seed: int = 0) -> None:
        self.geometry, self.alignment, self.page = geometry, alignment, page
        self.files = [bytearray(geometry.file_size) for _ in range(geometry.files)]
        self.rid = 0
        self.steps: list[Step] = []
        self._salts = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._begin(new_state())

    def _begin(self, state: WriterState) -> None:
        self.writer = open_writer(
            JournalOwner('queue "q"', 7, 1),
            self.geometry,
            alignment=self.alignment,
            page=self.page,
            state=state,
            read=self.read,
            salt=lambda: self._salts.getrandbits(64),
            clock=lambda: CLOCK,
        )

    def read(self, block: int, size: int) -> bytes:
        index, rest = divmod(block * BLOCK_SIZE, self.geometry.data_size)
        content = b""
        while len(content) < size:
            file = self.files[index % self.geometry.files]
            content += file[DATA_OFFSET + rest :][: size - len(content)]
            index, rest = index + 1, 0
        return content

    def step(self) -> bool:
        step = self.writer.next_flush()
        if step is None:
            return False
        self.steps.append(step)
        for write in step.writes:
            file, offset, content = write.file, write.offset, write.content
            self.files[file][offset : offset + len(content)] = bytes(content)
        return True

    def drain(self) -> None:
        if self.writer.is_under_way:
            self.writer.flushed()
        steps = 0
        while self.step():
            self.writer.flushed()
            steps += 1
            assert steps < 1000

    def restart(self, *, sealed: bool = False) -> None:
        """The next process takes it up with all that is live."""
        self.drain()
        writer = self.writer
        if sealed:
            sealed = writer.seal() and writer.batch_number > 1
            self.drain()
        live = dict(sorted(writer.live.items(), key=lambda entry: entry[1]))
        state = WriterState(
            writer.batch.position,
            writer.synced,
            writer.last_flush,
            sealed,
            writer.batch.salts,
            writer.batch.slots,
            live,
            writer.transactions,
        )
        self.counts["relocated"] += writer.compactor.copied
        self._begin(state)

    def do(self, append: Callable[[int], None]) -> None:
        self.rid += 1
        for _ in range(MAX_BUSY):
            try:
                append(self.rid)
            except JournalBusyError:
                self.drain()
            else:
                return
        raise AssertionError("busy for ever")

    def enqueue(self, blocks: int, xid: bytes = b"") -> bool:
        """Add a message of this many blocks. Returns False if there is no room."""
        return self.enqueue_data(bytes(max(0, blocks * BLOCK_SIZE - FIXED_SIZE - len(xid))), xid)

    def enqueue_data(self, data: bytes, xid: bytes = b"") -> bool:
        """A message. False: there is no room."""
        crc = data_crc((data,))
        try:
            if xid:
                self.do(lambda rid: self.writer.enqueue_in(xid, rid, (data,), len(data), crc))
            else:
                self.do(lambda rid: self.writer.enqueue(rid, (data,), len(data), crc))
        except JournalFullError:
            self.counts["refused"] += 1
            return False
        return True

    def decide(self, xid: bytes, target: int) -> None:
        """A dequeue as the transaction prepared list has it: the decision is to commit."""
        self.do(lambda rid: self.writer.dequeue_in(xid, rid, target, commit_decision=True))

    def dequeue(self, target: int) -> None:
        self.do(lambda rid: self.writer.dequeue(rid, target))

    def dequeue_in(self, xid: bytes, target: int) -> None:
        try:
            self.do(lambda rid: self.writer.dequeue_in(xid, rid, target))
            self.counts["dequeues in transactions"] += 1
        except JournalFullError:
            self.counts["refused in transactions"] += 1

    def end(self, xid: bytes, *, commits: bool) -> None:
        self.do(lambda rid: (self.writer.commit if commits else self.writer.abort)(xid, rid))

    @property
    def free(self) -> list[int]:
        writer = self.writer
        dequeues = {rid for each in writer.transactions.values() for rid in each.dequeues.values()}
        return [rid for rid in writer.live if rid not in dequeues and not writer.records.is_locked(rid)]

    @property
    def laps(self) -> float:
        return self.writer.batch.position * BLOCK_SIZE / self.geometry.capacity

    @property
    def fill(self) -> int:
        """Blocks that count against the threshold."""
        return sum(packed & 0xFFFFFF for packed in self.writer.live.values()) + len(self.free)
