"""Builds a new journal from known content as fast as the disk permits: used by everything that copies journals.

No reader sees the journal before it is complete: the directory has no meaning before the caller gives it one, and a
crash leaves at worst a directory to remove. So nothing is asynchronous, records are not remembered, and memory is
bounded by a few flushes, whatever the size of the journal. Each file is synced once, when everything is written. With
`beside`, another thread writes one flush while the next one is collected.

The layout of a record, and where a flush ends, depend on the format: `Version2Packer`, `Version1Packer`. The caller
ensures that messages to be removed exist.

The content is counted before the journal is built, and a geometry is chosen that holds it (`journal_content`). If it
does not fit after all, which should never happen, the next larger geometry is tried. In version 1, a geometry is legal
for qpidd if it has 4 to 64 files of 1 to 32,767 pages (formats/rhm/README.md, 1.2); and the content must leave the same
space free as enqueues, 20 % of the ring or one file (section 3.6), so that qpidd accepts more messages and has room for
the records that remove them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeAlias

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, ROUND_UP, data_crc, word
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.rhm.records import COMMIT_DECISION, COMPRESSED, Kind, RecordHeader
from qstore.formats.wording import printable
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.journal.write.flushes import FlushQueue, JournalOwner, Step, WriteBatch
from qstore.store.journal.write.space import FileRing, reserve_blocks
from qstore.store.journal.write.storage import JournalStorage, create_journal, remove_journal
from qstore.store.journal.write.version_1_writer import Version1Ring
from qstore.store.recovery.journal_content import (
    FLUSH_BYTES,
    MAX_VERSION_1_PAGES,
    WRITE_BYTES,
    JournalContent,
    described,
    nearest_geometries,
    too_much,
    version_2_geometries,
)

# ---- version 2 ----

_ENQUEUE: Final = word(Kind.ENQUEUE, 2)
_FLUSH_BLOCKS: Final = FLUSH_BYTES // BLOCK_SIZE


class Version2Packer:
    """Packs the records of one journal: one after another, in flushes, without remembering any of them.

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


# ---- version 1 ----

_FEWEST_FILES: Final = 4
SECTOR_BLOCKS: Final = SECTOR_SIZE // BLOCK_SIZE
_MAX_GATHERED: Final = 2 * FLUSH_BYTES  # if no earlier record ends with a sector


class Version1Packer:
    """Packs the records of one journal. It never wraps, so only the current batch is kept in memory.

    Fillers are needed if a flush does not end with a sector. So a flush waits for a record that ends there, up to a
    limit.

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


def version_1_geometries(content: JournalContent, info: JournalInfo) -> Iterator[Geometry]:
    """The geometries that hold `content`, the nearest to that of `info`, made legal, first."""
    return nearest_geometries(
        legal_geometry(info.geometry), MAX_VERSION_1_PAGES, lambda geometry: fits(content, geometry)
    )


# ---- a journal of either version ----

_MAX_WAITING: Final = 2  # flushes collected and not yet written


class JournalTooSmallError(StoreError):
    """The content does not fit into the journal."""


#: Lays out records in one format: bytes, log offsets and flushes.
Packer: TypeAlias = Version1Packer | Version2Packer


class _Format(NamedTuple):
    """The builder of journals of one format.

    Attributes:
        packer: lays out the records of a journal.
        geometries: the geometries that hold some content, the nearest to that of the info file first.
    """

    packer: Callable[[Environment, JournalInfo], Packer]
    geometries: Callable[[JournalContent, JournalInfo], Iterator[Geometry]]


_FORMATS: Final = {
    1: _Format(Version1Packer, version_1_geometries),
    2: _Format(
        Version2Packer, lambda content, info: version_2_geometries(content, info.geometry, info.flush_alignment)
    ),
}


class JournalBuild:
    """A journal being built, in existing, empty files (`create_journal`).

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's.
        info: the journal's info file; its version selects the format.
        limit: blocks that may be filled; the format's own limit by default.
        beside: whether another thread writes; the disk must permit that.
    """

    def __init__(
        self,
        environment: Environment,
        directory: str,
        info: JournalInfo,
        *,
        limit: int | None = None,
        beside: bool = False,
    ) -> None:
        self._info = info
        self._storage = JournalStorage(environment.disk, directory, info.base_name, info.geometry)
        self._packer = _FORMATS[info.version].packer(environment, info)
        self._limit = self._packer.limit if limit is None else limit
        self._touched: dict[int, None] = {}  # numbers of the files that were written to
        self._thread = ThreadPoolExecutor(1) if beside else None
        self._waiting: deque[Future[None]] = deque()

    @property
    def position(self) -> int:
        """Blocks filled so far."""
        return self._packer.position

    def enqueue(self, rid: int, data: bytes, crc: int) -> None:
        """Add a message outside of any transaction; `crc` is its `data_crc`. Raises as `record`."""
        packer = self._packer
        packer.enqueue(rid, data, crc)
        if packer.is_flush_due:
            self._drain()

    @property
    def version(self) -> int:
        """The version of the journal's format."""
        return self._info.version

    def message(self, rid: int, parts: Sequence[bytes], xid: bytes = b"", *, compressed: bool = False) -> None:
        """Add a message, enqueued by the open transaction `xid` if given. Raises as `record`.

        Args:
            rid: its record id.
            parts: its data.
            xid: the transaction.
            compressed: whether their content is compressed; only in version 2.
        """
        size, flags = sum(map(len, parts)), COMPRESSED if compressed else 0
        self.record(RecordHeader(Kind.ENQUEUE, self._info.version, flags, rid, len(xid), size), xid, parts)

    def removal(self, xid: bytes, rid: int, target: int, *, commit_decision: bool = False) -> None:
        """Add the dequeue of the existing message `target` by the open transaction `xid`. Raises as `record`.

        Args:
            xid: the transaction.
            rid: record id of the dequeue.
            target: that of the message.
            commit_decision: in the prepared list: the decision is to commit.
        """
        flags = COMMIT_DECISION if commit_decision else 0
        self.record(RecordHeader(Kind.DEQUEUE, self._info.version, flags, rid, len(xid), dequeued_rid=target), xid)

    def record(self, header: RecordHeader, xid: bytes, parts: Sequence[bytes] = ()) -> None:
        """Add any record of the format.

        Raises:
            JournalTooSmallError: it does not fit.
            OSError: it cannot be written.
        """
        self._packer.append(header, xid, parts)
        if self._packer.is_flush_due:
            self._drain()

    def finish(self, *, seal: bool = False) -> None:
        """Sync everything, with or without the seal of a clean close, and close the files.

        Raises:
            JournalTooSmallError: it does not fit.
            OSError: it cannot be written.
        """
        self._drain()
        if seal and self._packer.seal():
            self._drain()
        self._wait(0)
        for number in self._touched:
            self._storage.file(number).sync()
            self._storage.trim()
        self.close()

    def close(self) -> None:
        """Close the files, whatever was written. May be called twice."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._waiting.clear()
        self._storage.close()

    def _drain(self) -> None:
        """Write everything collected so far."""
        packer = self._packer
        if packer.position > self._limit:
            name, geometry = printable(self._info.queue_name), self._info.geometry
            raise JournalTooSmallError(f'queue "{name}": its messages do not fit into {described(geometry)}')
        while (step := packer.next_flush()) is not None:
            self._touched.update(dict.fromkeys(step.files))
            if self._thread is None:
                self._write(step)
            else:
                self._wait(_MAX_WAITING)
                self._waiting.append(self._thread.submit(self._write, step))
            packer.flushed()

    def _write(self, step: Step) -> None:
        self._storage.write(step)
        self._storage.trim()

    def _wait(self, most: int) -> None:
        """Wait until at most `most` flushes are not yet written. Re-raises the error of a write."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()


def build_journal(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    content: JournalContent,
    fill: Callable[[JournalBuild], None],
    *,
    seal: bool = False,
    beside: bool = False,
) -> JournalInfo:
    """Build a journal in which all content fits, synced except for the directory's own name.

    Args:
        environment: disk, clock and random numbers.
        directory: the journal's, which is created.
        info: the requested journal; its geometry is made legal, and enlarged if the content requires it.
        content: the counted content.
        fill: writes the content; called again with another geometry if this one turns out to be too small.
        seal: whether the journal ends as after a clean close; for version 2.
        beside: whether another thread writes; the disk must permit that.

    Returns:
        The info file of the journal.

    Raises:
        StoreError: it does not fit into the largest journal.
        OSError: it cannot be created or written.
    """
    disk = environment.disk
    for geometry in _FORMATS[info.version].geometries(content, info):
        chosen = info._replace(geometry=geometry)
        create_journal(disk, directory, chosen)
        try:
            with contextlib.closing(JournalBuild(environment, directory, chosen, beside=beside)) as build:
                fill(build)
                build.finish(seal=seal)
        except JournalTooSmallError:
            remove_journal(disk, directory)
        except BaseException:
            with contextlib.suppress(OSError):  # the disk may be failing
                remove_journal(disk, directory)
            raise
        else:
            return chosen
    raise too_much(info.queue_name, content, info.version)
