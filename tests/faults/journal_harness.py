"""One journal on a simulated disk, beside a model of what may be found in it after a crash.

A `JournalLife` is one process's time with the journal: it recovers, goes on writing, and keeps the model: what is
durable, and what was appended since, in order. After a crash the journal must hold the durable part and any beginning
of the rest, and nothing else: `Model.may_be`, asked by whoever opens the journal next.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.store.errors import JournalBusyError, JournalFullError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring
from qstore.store.journal.write.flushes import JournalOwner, Step
from qstore.store.journal.write.growth import UNENTERED, RingUnknownError, make_ring_change, remove_spare, settle_ring
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, FileRing
from qstore.store.journal.write.storage import JournalStorage, create_journal
from qstore.store.journal.write.version_2_writer import Version2Writer, open_writer, state_of
from tests.faults.simulated_disk import SimulatedDisk, SimulatedWritableFile

DIRECTORY: Final = "/jrnl"
PAGE: Final = 1024


class Content(NamedTuple):
    """What a journal holds.

    Attributes:
        live: record id -> data of each message that is enqueued, whether locked or not.
        open: xid -> messages that it would enqueue, and those that it would dequeue.
    """

    live: dict[int, bytes]
    open: dict[bytes, tuple[dict[int, bytes], frozenset[int]]]


class Operation(NamedTuple):
    """One record that was appended."""

    flush: int
    kind: str
    rid: int
    xid: bytes
    data: bytes


@dataclass(slots=True)
class Model:
    """What is durable, and what was appended since."""

    durable: Content = field(default_factory=lambda: Content({}, {}))
    pending: deque[Operation] = field(default_factory=deque)

    def settle(self, synced: int) -> None:
        """Flushes up to `synced` are on the disk."""
        while self.pending and self.pending[0].flush <= synced:
            self.durable = applied(self.durable, self.pending.popleft())

    def may_be(self, found: Content) -> bool:
        """Whether a journal with that content may be found after a crash."""
        content = self.durable
        if found == content:
            return True
        for operation in self.pending:
            content = applied(content, operation)
            if found == content:
                return True
        return False


def applied(content: Content, operation: Operation) -> Content:
    """The content after one more record."""
    live, opened = dict(content.live), dict(content.open)
    _, kind, rid, xid, data = operation
    enqueues, dequeues = opened.get(xid, ({}, frozenset()))
    if kind == "enqueue" and xid:
        opened[xid] = ({**enqueues, rid: data}, dequeues)
    elif kind == "enqueue":
        live[rid] = data
    elif kind == "dequeue" and xid:
        opened[xid] = (enqueues, dequeues | {rid})
    elif kind == "dequeue":
        del live[rid]
    else:
        del opened[xid]
        if kind == "commit":
            live.update(enqueues)
            for target in dequeues:
                del live[target]
    return Content(live, opened)


def make(disk: SimulatedDisk, geometry: Geometry, alignment: int = 512) -> None:
    """An empty journal."""
    info = JournalInfo(
        2, "q", DEFAULT_BASE_NAME, geometry, queue_id=7, incarnation=1, flush_alignment=alignment, creation_headers=True
    )
    create_journal(disk, DIRECTORY, info)
    disk.sync_directory("/")


class DamagedError(AssertionError):
    """Recovery reported damage, or found what cannot be."""


class JournalLife:
    """One process's time with the journal. What it does until it is made counts too: `disk.watch` is told of it.

    Args:
        disk: where it is.
        seed: of the salts.

    Attributes:
        content: what recovery found.
        end: where the journal ended; None if nothing was ever written.
        highest_rid: the highest record id that recovery met.
        now: what the journal holds if all that was appended reaches the disk.
        refused: records refused for want of room, by kind.
        counts: what happened: `busy` and the like.
        moved_dequeues: transactions' dequeues that were copied forward with their messages.
    """

    open_writer: Callable[..., Version2Writer] = staticmethod(open_writer)

    def __init__(self, disk: SimulatedDisk, seed: int = 0) -> None:
        self.disk = disk
        journal = open_journal(disk, DIRECTORY)
        recovery = JournalRecovery()
        end = journal.walk(recovery)
        damage = [*journal.damage, *recovery.damage]
        if damage:
            raise DamagedError(f"damage reported: {damage}")
        if recovery.messages.duplicate_count:
            raise DamagedError(f"duplicates: {recovery.messages.duplicates}")
        self.end = end
        self.highest_rid = recovery.highest_rid
        self.content = content_of(journal, recovery)
        state = state_of(journal, recovery, end)
        journal.close()
        self.geometry = journal.files.geometry
        assert journal.info is not None
        assert isinstance(journal.files, Ring)
        ring = FileRing(journal.files.numbers, state.origin, state.lap)
        settle_ring(disk, DIRECTORY, journal.info)
        self.storage = JournalStorage(disk, DIRECTORY, DEFAULT_BASE_NAME, self.geometry, ring)
        self.storage.sync_end(state.position)
        self.moved_dequeues = 0
        rng = random.Random(seed)
        self.writer = self.open_writer(
            JournalOwner('queue "q"', 7, 1),
            self.geometry,
            ring,
            alignment=journal.info.flush_alignment,
            page=PAGE,
            state=state,
            read=self.storage.read,
            salt=lambda: rng.getrandbits(64),
            clock=lambda: 1,
        )
        self.model = Model(durable=self.content)
        self.now = self.content
        self.refused: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._places: dict[int, int] = {}
        self._syncs: list[tuple[SimulatedWritableFile, int]] = []

    @property
    def free(self) -> list[int]:
        """Messages that may be dequeued, oldest record id first."""
        locked = {rid for _, dequeues in self.now.open.values() for rid in dequeues}
        return [rid for rid in sorted(self.now.live) if rid not in locked]

    @property
    def lap(self) -> int:
        """How often the ring was gone round."""
        return max(0, self.writer.batch.position - 1) * BLOCK_SIZE // self.geometry.capacity

    # ---- records ----

    def enqueue(self, rid: int, data: bytes, xid: bytes = b"") -> bool:
        writer, crc = self.writer, data_crc((data,))
        if xid:
            return self._do("enqueue", rid, xid, data, lambda: writer.enqueue_in(xid, rid, (data,), len(data), crc))
        return self._do("enqueue", rid, xid, data, lambda: writer.enqueue(rid, (data,), len(data), crc))

    def dequeue(self, rid: int, target: int, xid: bytes = b"") -> bool:
        if xid:
            return self._do("dequeue", target, xid, b"", lambda: self.writer.dequeue_in(xid, rid, target))
        return self._do("dequeue", target, xid, b"", lambda: self.writer.dequeue(rid, target))

    def commit(self, rid: int, xid: bytes) -> bool:
        return self._do("commit", rid, xid, b"", lambda: self.writer.commit(xid, rid))

    def abort(self, rid: int, xid: bytes) -> bool:
        return self._do("abort", rid, xid, b"", lambda: self.writer.abort(xid, rid))

    def _do(self, kind: str, rid: int, xid: bytes, data: bytes, append: Callable[[], None]) -> bool:
        for _ in range(200):
            try:
                append()
            except JournalBusyError:
                self.counts["busy"] += 1
                self.drain()
            except JournalFullError:
                self.refused[kind + (" in a transaction" if xid else "")] += 1
                return False
            else:
                self._note(Operation(self.writer.batch_number, kind, rid, xid, data))
                return True
        raise AssertionError("busy for ever")

    def _note(self, operation: Operation) -> None:
        """A record was appended."""
        self.model.pending.append(operation)
        self.now = applied(self.now, operation)
        self.counts[operation.kind + (" in a transaction" if operation.xid else "")] += 1
        if operation.kind == "enqueue":
            packed = self.writer.live[operation.rid]
            files = span(packed, self.geometry)
            self.counts["split"] += files > 1
            self.counts["longer than a file"] += files > 2

    # ---- flushes ----

    def begin(self) -> Step | None:
        """Write the next step, and begin to sync it. Raises OSError; the writer has been told then."""
        step = self.writer.next_flush()
        if step is not None:
            self._count_moved()
            try:
                self._syncs = [(file, file.begin_sync()) for file in self.storage.write(step)]
            except OSError as error:
                self.writer.failed(error)
                raise
        return step

    def _count_moved(self) -> None:
        """See whether dequeues of open transactions stand elsewhere than at the last step."""
        live = self.writer.live
        places = {rid: live[rid] for each in self.writer.transactions.values() for rid in each.dequeues.values()}
        self.moved_dequeues += sum(1 for rid, place in places.items() if self._places.get(rid, place) != place)
        self._places = places

    def finish(self) -> None:
        """The step that was begun is synced. Raises as `begin`."""
        self._sync()
        self.writer.flushed()
        self.storage.trim()
        self.model.settle(self.writer.synced)

    def _sync(self) -> None:
        try:
            for file, token in self._syncs:
                file.finish_sync(token)
        except OSError as error:
            self.writer.failed(error)
            raise

    def drain(self) -> None:
        """Finish the step under way, if there is one, and write all that is gathered."""
        if self.writer.is_under_way:
            self.finish()
        for _ in range(1000):
            if self.begin() is None:
                return
            self.finish()
        raise AssertionError("never drained")

    # ---- files ----

    def begin_change(self, files: int) -> bool:
        """Begin to add so many files, or to remove them if negative. Returns whether that is possible."""
        growth = self.writer.growth
        change = growth.begin(files) if files > 0 else growth.begin_removal(-files)
        self.writer.ring_changed()
        return change is not None

    def make_change(self) -> None:
        """Make the change that was begun. Raises OSError; the writer has been told then."""
        growth = self.writer.growth
        change = growth.change
        if change is None:
            return
        try:
            make_ring_change(self.disk, DIRECTORY, DEFAULT_BASE_NAME, change)
        except RingUnknownError as error:
            self.writer.failed(error.error)
            raise error.error from None
        except OSError:
            growth.end(is_made=False)
            self.writer.ring_changed()
            raise
        growth.end(is_made=True)
        self.writer.ring_changed()
        self.storage.forget(change.removed)
        remove_spare(self.disk, DIRECTORY, DEFAULT_BASE_NAME, change.removed)
        self.geometry = Geometry(len(change.after), self.geometry.data_size)
        self.counts["files added"] += len(change.added)
        self.counts["files added in the middle"] += len(change.added) if change.anchor != UNENTERED else 0
        self.counts["files removed"] += len(change.removed)

    def close(self) -> bool:
        """Close cleanly. Returns whether the journal is sealed."""
        self.drain()
        sealed = self.writer.seal()
        self.drain()
        self.storage.close()
        return sealed


def span(packed: int, geometry: Geometry) -> int:
    """In how many files a record lies."""
    place, last = packed >> SIZE_BITS, (packed >> SIZE_BITS) + (packed & SIZE_MASK) - 1
    file = geometry.data_size // BLOCK_SIZE
    return last // file - place // file + 1


def content_of(journal: Journal, recovery: JournalRecovery) -> Content:
    """What a walk found, with the messages' data."""

    def data(place: int) -> bytes:
        at, size = journal.data_of_enqueue(place)
        return journal.stream.read(at, size)

    live = {rid: data(place) for rid, place, _ in recovery.messages.in_rid_order()}
    opened = {}
    for transaction in recovery.transactions:
        operations = list(transaction)
        enqueues = {each.rid: data(each.place) for each in operations if each.is_enqueue}
        opened[transaction.xid] = (enqueues, frozenset(each.rid for each in operations if not each.is_enqueue))
    return Content(live, opened)
