"""Builds a journal of version 2 as fast as the disk takes it: what a store is recovered or converted into.

`journal_build` goes through the writer that a running queue has, which remembers each message so that it can be
dequeued. Whoever copies a journal whole needs nothing of that: here records are only gathered into flushes and written,
so memory is bounded by a few flushes, whatever the journal holds. The caller sees to it that there is room, and that
what is to be removed is there.

Nothing is synced until all is written: each file once. The directory means nothing to anybody until then. With
`beside`, another thread writes one flush while the next one gathers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from formats.checksum import extend_crc32c
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, HEADER_2, PADDINGS, ROUND_UP, data_crc, word
from formats.rhm.jinf import JournalInfo
from formats.rhm.records import TAIL, Kind
from formats.wording import printable
from store.builders.journal_build import JournalTooSmallError
from store.environment import Environment
from store.journal.write.flushes import FlushQueue
from store.journal.write.step import Step
from store.journal.write.storage import JournalStorage, create_journal
from store.journal.write.write_batch import Identity, WriteBatch
from store.recovery.journal_content import FLUSH_BYTES, described

_ENQUEUE: Final = word(Kind.ENQUEUE, 2)
_DEQUEUE: Final = word(Kind.DEQUEUE, 2)
_FLUSH_BLOCKS: Final = FLUSH_BYTES // BLOCK_SIZE
_WRITE_BYTES: Final = 1 << 20  # of one write
_MOST_WAITING: Final = 2  # flushes that are gathered and not yet written


class BulkWriter:
    """Appends records, and remembers none of them.

    Args:
        batch: takes the records.
        flushes: takes the flushes.
    """

    __slots__ = ("_batch", "_flushes")

    def __init__(self, batch: WriteBatch, flushes: FlushQueue) -> None:
        self._batch, self._flushes = batch, flushes

    def enqueue(self, rid: int, data: bytes, crc: int) -> None:
        """Append a message outside of any transaction; `crc` is the `data_crc` of it."""
        batch, size = self._batch, len(data)
        blocks = (size + ROUND_UP) >> BLOCK_SHIFT
        end = batch.position + blocks
        if end > batch.file_end:
            batch.append(_ENQUEUE, rid, b"", size, (data,), size, crc)
            return
        pieces = batch.pieces
        batch.last = len(pieces)
        head = HEADER_2.pack(_ENQUEUE, rid, 0, batch.low_number, size)
        tail = TAIL.pack(extend_crc32c(crc, head + batch.salt), rid)
        pieces += (head, data, tail, PADDINGS[(blocks << BLOCK_SHIFT) - size - FIXED_SIZE])
        batch.position = end

    def enqueue_parts(self, rid: int, parts: Sequence[bytes], xid: bytes) -> None:
        """Append a message in parts, enqueued by the transaction `xid` if there is one."""
        size = sum(map(len, parts))
        self._batch.append(_ENQUEUE, rid, xid, size, parts, size, data_crc(parts))

    def dequeue(self, rid: int, target: int, xid: bytes) -> None:
        """Append the removal of `target` by the transaction `xid`."""
        self._batch.append(_DEQUEUE, rid, xid, target)

    def seal(self) -> bool:
        """Close the journal cleanly. Returns whether that takes a flush."""
        if not self._batch.needs_seal:
            return False
        for flush in self._batch.seal():
            self._flushes.add(flush)
        return True

    @property
    def position(self) -> int:
        """Blocks that were appended."""
        return self._batch.position

    @property
    def is_flush_due(self) -> bool:
        """Whether enough is gathered for a flush."""
        return self._batch.position - self._batch.start >= _FLUSH_BLOCKS

    def next_flush(self) -> Step | None:
        """The next step; None if nothing waits to be written."""
        if self._batch.pieces and self._flushes.is_empty:
            self._flushes.add(self._batch.close())
        return self._flushes.next_step()

    def flushed(self) -> None:
        """All of the step is written, or will be before any other."""
        self._flushes.step_synced()


class BulkBuild:
    """One journal that is built.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's, which is made.
        info: what the journal is to be.
        beside: whether another thread writes; the disk must allow that.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, environment: Environment, directory: str, info: JournalInfo, *, beside: bool = False) -> None:
        create_journal(environment.disk, directory, info)
        self._info = info
        self._storage = JournalStorage(environment.disk, directory, info.base_name, info.geometry)
        self._blocks = info.geometry.capacity // BLOCK_SIZE
        batch = WriteBatch(
            Identity(f'queue "{printable(info.queue_name)}"', info.queue_id, info.incarnation),
            info.geometry,
            alignment=info.flush_alignment,
            position=0,
            flush=0,
            is_sealed=False,
            salts={},
            slots={},
            salt=lambda: environment.random_bits(64),
            clock=environment.clock,
        )
        self._writer = BulkWriter(batch, FlushQueue(info.geometry, page=_WRITE_BYTES, synced=0, place=0))
        self._touched: dict[int, None] = {}  # numbers of the files that something was written to
        self._thread = ThreadPoolExecutor(1) if beside else None
        self._waiting: deque[Future[None]] = deque()

    def enqueue(self, rid: int, data: bytes, crc: int) -> None:
        """A message outside of any transaction; `crc` is the `data_crc` of it. Raises as `message`."""
        writer = self._writer
        writer.enqueue(rid, data, crc)
        if writer.is_flush_due:
            self._drain()

    def message(self, rid: int, parts: Sequence[bytes], xid: bytes = b"") -> None:
        """A message, enqueued by the open transaction `xid` if there is one.

        Raises:
            JournalTooSmallError: it does not fit.
            OSError: it cannot be written.
        """
        self._writer.enqueue_parts(rid, parts, xid)
        if self._writer.is_flush_due:
            self._drain()

    def removal(self, xid: bytes, rid: int, target: int) -> None:
        """The dequeue of the message `target`, which is there, by the open transaction `xid`. Raises as `message`."""
        self._writer.dequeue(rid, target, xid)
        if self._writer.is_flush_due:
            self._drain()

    def finish(self, *, seal: bool = False) -> None:
        """Have all of it on the disk, with or without the seal of a clean close, and let the files go.

        Raises:
            JournalTooSmallError: it does not fit.
            OSError: it cannot be written.
        """
        self._drain()
        if seal and self._writer.seal():
            self._drain()
        self._wait(0)
        for number in self._touched:
            self._storage.file(number).sync()
            self._storage.trim()
        self.close()

    def close(self) -> None:
        """Let the files go, whatever is in them. Twice is allowed."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._waiting.clear()
        self._storage.close()

    def _drain(self) -> None:
        """Have written what is gathered."""
        writer = self._writer
        if writer.position > self._blocks:
            name, geometry = printable(self._info.queue_name), self._info.geometry
            raise JournalTooSmallError(f'queue "{name}": its messages do not fit into {described(geometry)}')
        while (step := writer.next_flush()) is not None:
            self._touched.update(dict.fromkeys(step.files))
            if self._thread is None:
                self._write(step)
            else:
                self._wait(_MOST_WAITING)
                self._waiting.append(self._thread.submit(self._write, step))
            writer.flushed()

    def _write(self, step: Step) -> None:
        self._storage.write(step)
        self._storage.trim()

    def _wait(self, most: int) -> None:
        """Wait until at most so many flushes are not yet written. Raises what writing raised."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()
