"""One journal on a simulated disk, beside a model of what may be found in it after a crash.

A `JournalLife` is one process's time with the journal: it recovers, goes on writing, and keeps the model: what is
durable, and what was appended since, in order. After a crash the journal must hold the durable part and any beginning
of the rest, and nothing else, report no damage, and be able to go on: `Model.may_be`, asked by the next life.

`JournalCrashes` kills lives of random records and flushes, `JournalTraffic`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.store.errors import JournalBusyError, JournalFullError
from qstore.store.journal.directory import open_journal
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring
from qstore.store.journal.write.flushes import JournalOwner, Step
from qstore.store.journal.write.growth import (
    UNENTERED,
    JournalChange,
    RingUnknownError,
    make_ring_changes,
    remove_spare,
    settle_ring,
)
from qstore.store.journal.write.live_records import runs_of
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, FileRing
from qstore.store.journal.write.storage import JournalStorage, create_journal
from qstore.store.journal.write.version_2_writer import Version2Writer, open_writer, state_of
from tests.faults.simulated_disk import SECTOR, Call, SimulatedDisk, SimulatedWritableFile
from tests.faults.simulator import Simulator
from tests.support.bodies import joined

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
    """One process's time with the journal. What it does until it is made counts too: `disk.watch` sees it.

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

    def enqueue_run(self, rid: int, head: bytes, bodies: list[bytes]) -> int:
        """Messages with equal heads, as far as there is room. Returns how many."""
        run, done = joined(bodies, 2, before=1), 0

        def append() -> int:
            return self.writer.enqueue_run(rid + done, head, None, run, done, len(bodies) - done)

        while done < len(bodies):
            several = self._do_run("enqueue", append)
            if not several:
                break
            for number in range(done, done + several):
                self._note(Operation(self.writer.batch_number, "enqueue", rid + number, b"", head + bodies[number]))
            done += several
        return done

    def dequeue_run(self, rid: int, target: int, count: int) -> int:
        """Messages with consecutive ids, as far as there is room. Returns how many."""
        done = 0

        def append() -> int:
            return self.writer.dequeue_run(rid + done, target + done, count - done)

        while done < count:
            several = self._do_run("dequeue", append)
            if not several:
                break
            for number in range(done, done + several):
                self._note(Operation(self.writer.batch_number, "dequeue", target + number, b"", b""))
            done += several
        return done

    def _do_run(self, kind: str, append: Callable[[], int]) -> int:
        """Append a part of a run. Returns how many records that were; 0 if there is no room."""
        for _ in range(200):
            try:
                several = append()
            except JournalBusyError:
                self.counts["busy"] += 1
                self.drain()
            except JournalFullError:
                self.refused[kind] += 1
                return 0
            else:
                self.counts[f"{kind} in a run"] += several > 1
                return several
        raise AssertionError("busy for ever")

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
            packed = self.writer.records.where(operation.rid)
            assert packed is not None
            files = span(packed, self.geometry)
            self.counts["split"] += files > 1
            self.counts["longer than a file"] += files > 2

    # ---- flushes ----

    def begin(self) -> Step | None:
        """Write the next step, and begin to sync it. Raises OSError; the writer knows it then."""
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
        """Make the change that was begun. Raises OSError; the writer knows it then."""
        growth = self.writer.growth
        change = growth.change
        if change is None:
            return
        (error,) = make_ring_changes(self.disk, [JournalChange(DIRECTORY, DEFAULT_BASE_NAME, change)])
        if isinstance(error, RingUnknownError):
            self.writer.failed(error.error)
            raise error.error
        growth.end(is_made=error is None)
        self.writer.ring_changed()
        if error is not None:
            raise error
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


# ---- crashes ----

MAX_CRASHES: Final = 3  # in a row
XIDS: Final = (b"one", b"two", b"more than a block" * 9)


class Shape(NamedTuple):
    """What a journal and its traffic look like.

    Attributes:
        files: number of files.
        blocks: of each.
        largest: bytes of data of the largest message.
        order: which message is dequeued: the first, the last, any; "stuck": the second, and the first never.
        transactions: how many of the records belong to transactions.
        alignment: bytes to which flushes are padded.
        sector: bytes that the drive writes at once.
        powersafe: whether a power loss leaves alone what stood in a sector that is being written.
        grows: how many of the operations begin or end a change of the ring.
        most: files that the ring may grow to.
        runs: how many of the records outside of transactions come in runs.
    """

    files: int
    blocks: int
    largest: int
    order: str
    transactions: float = 0.2
    alignment: int = SECTOR_SIZE
    sector: int = SECTOR
    powersafe: bool = True
    grows: float = 0.0
    most: int = 24
    runs: float = 0.0

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.files, self.blocks * BLOCK_SIZE)


class WrongContentError(AssertionError):
    """The next life found what the model does not allow."""


@dataclass(kw_only=True)
class JournalCrashes(Simulator):
    """Journals of one shape that are killed.

    Attributes:
        shape: of the journal.
        life_class: the life; tests hand in broken ones.
        continued: of the lives that follow a kill, how many work on and are killed in turn.

    Counted are `kills`, `kills at write`, `laps`, and so on.
    """

    shape: Shape
    life_class: type[JournalLife] = JournalLife
    continued: float = 0.2

    lives: ClassVar = 1
    steps: ClassVar = 220
    stops: ClassVar = 0.0
    steps_again: ClassVar = 30

    def disk(self, seed: int) -> SimulatedDisk:
        disk = SimulatedDisk(seed, sector=self.shape.sector, powersafe=self.shape.powersafe)
        make(disk, self.shape.geometry, self.shape.alignment)
        return disk

    def lives_again(self, rng: random.Random) -> int:
        return next((count for count in range(MAX_CRASHES - 1) if rng.random() >= self.continued), MAX_CRASHES - 1)

    def start(
        self, disk: SimulatedDisk, promises: Promises | None, rng: random.Random, *, must_be_clean: bool
    ) -> JournalTraffic:
        return JournalTraffic(self, disk, promises or Promises(None, 0), rng)

    def visited(self, call: Call) -> None:
        self.counts["kills"] += 1
        self.counts[f"kills at {call.name}"] += 1

    def seen(self, life: JournalTraffic) -> None:
        life.count()

    def check_counts(self, least: dict[str, int]) -> None:
        """Assert that what makes the histories worth anything did happen."""
        missed = {name: (self.counts[name], count) for name, count in least.items() if self.counts[name] < count}
        assert not missed, f"(seen, expected) {missed} of {dict(self.counts)}"


class Promises(NamedTuple):
    """What is allowed after a life, None if there was none; and the highest record id that was used."""

    life: JournalLife | None
    rid: int


class JournalTraffic:
    """Random records, flushes and changes of the ring, in one process's time with a journal."""

    def __init__(self, simulator: JournalCrashes, disk: SimulatedDisk, promises: Promises, rng: random.Random) -> None:
        self.simulator, self.rng = simulator, rng
        self.rid = promises.rid  # the last one that was used, in whichever life
        self._take_up(disk)
        found = self.life.content
        if promises.life is None:
            assert found == Content({}, {})
        elif not promises.life.model.may_be(found):
            raise WrongContentError(f"{described(found)}; durable: {described(promises.life.model.durable)}")
        simulator.counts["in doubt at start"] += len(self.life.now.open)
        for xid in list(self.life.now.open):
            if rng.random() < 0.7:  # the rest stays: in doubt
                self.life.abort(self.next_rid(), xid)

    def _take_up(self, disk: SimulatedDisk) -> None:
        try:
            self.life = self.simulator.life_class(disk, self.rng.getrandbits(32))
        except Exception as error:
            raise DamagedError(f"{type(error).__name__}: {error}") from error
        self.rid = max(self.rid, self.life.highest_rid)
        self.simulator.counts["torn"] += self.life.end is not None and self.life.end.torn

    def next_rid(self) -> int:
        self.rid += 1
        return self.rid

    # ---- as a life ----

    def work(self, steps: int) -> None:
        """Random operations."""
        for _ in range(steps):
            self._operate()

    def promises(self) -> Promises:
        """What the next life may find."""
        return Promises(self.life, self.rid)

    def stop(self) -> bool:
        """Close the journal; a seal promises nothing to the next life."""
        self.life.close()
        return False

    def discard(self) -> None:
        """The process is gone: its disk crashes."""

    def count(self) -> None:
        """Add what was seen to the simulator's counts."""
        counts, life = self.simulator.counts, self.life
        counts.update(life.counts)
        counts["laps"] += life.lap
        counts["relocated"] += life.writer.compactor.copied
        counts["moved dequeues"] += life.moved_dequeues
        counts["refused"] += sum(life.refused.values())

    # ---- operations ----

    def _operate(self) -> None:
        life, rng, shape = self.life, self.rng, self.simulator.shape
        if shape.grows and rng.random() < shape.grows:
            self._change_ring(life)
            return
        chance = rng.random()
        if chance < 0.68:
            if rng.random() < shape.transactions:
                self._transact(life)
            elif shape.runs and rng.random() < shape.runs:
                self._run(life)
            elif rng.random() < (0.6 if self.rid // 40 % 2 else 0.45):
                life.enqueue(self.next_rid(), self._data())
            else:
                self._dequeue(life)
        elif chance < 0.86:
            if life.writer.is_under_way:
                life.finish()
            else:
                life.begin()
        elif chance < 0.98:
            life.drain()
            if shape.runs:
                check_held(life.writer)
        else:
            self._close(life)

    def _data(self) -> bytes:
        largest = self.simulator.shape.largest
        return self.rng.randbytes(
            self.rng.choice((self.rng.randint(0, min(largest, 80)), self.rng.randint(0, largest)))
        )

    def _dequeue(self, life: JournalLife, xid: bytes = b"") -> None:
        free = life.free
        if not free:
            return
        order = self.simulator.shape.order
        at = {"first": 0, "last": -1, "any": self.rng.randrange(len(free)), "stuck": min(1, len(free) - 1)}[order]
        life.dequeue(self.next_rid(), free[at], xid)

    def _run(self, life: JournalLife) -> None:
        """Messages of a run come, or consecutive ones go: from either end of a run, or from its middle."""
        rng = self.rng
        if rng.random() < (0.6 if self.rid // 40 % 2 else 0.45):
            size, count, first = len(self._data()), rng.choice((1, 2, 5, 30, 60)), self.rid + 1
            self.rid += count
            spread = rng.choice((0, 0, 100))
            bodies = [rng.randbytes(size + rng.randint(0, spread)) for _ in range(count)]
            life.enqueue_run(first, b"head" * rng.randint(0, 3), bodies)
            return
        rows = rows_of(life.free)
        if rows:
            first, end = rng.choice(rows)
            begin = rng.choice((first, first, rng.randrange(first, end)))
            count, rid = rng.randint(1, rng.choice((end - begin, min(end - begin, 5)))), self.rid + 1
            self.rid += count
            life.dequeue_run(rid, begin, count)

    def _transact(self, life: JournalLife) -> None:
        rng, xid = self.rng, self.rng.choice(XIDS)
        chance = rng.random()
        if chance < 0.4:
            life.enqueue(self.next_rid(), self._data(), xid)
        elif chance < 0.7:
            self._dequeue(life, xid)
        elif chance < 0.8:  # of what the transaction itself enqueued
            enqueued, dequeued = life.now.open.get(xid, ({}, frozenset()))
            own = [rid for rid in enqueued if rid not in dequeued]
            if own:
                self.simulator.counts["own dequeues"] += life.dequeue(self.next_rid(), rng.choice(own), xid)
        elif life.now.open:
            (life.commit if chance < 0.93 else life.abort)(self.next_rid(), rng.choice(list(life.now.open)))

    def _change_ring(self, life: JournalLife) -> None:
        rng, files = self.rng, life.geometry.files
        if life.writer.growth.change is not None:
            life.make_change()
        elif files < self.simulator.shape.most and rng.random() < 0.6:
            life.begin_change(rng.randint(1, 3))
        elif files > self.simulator.shape.files:
            life.begin_change(-rng.randint(1, files - self.simulator.shape.files))

    def _close(self, life: JournalLife) -> None:
        """A clean close, and the next start."""
        sealed = life.close()
        self.count()
        self.simulator.counts["seals"] += sealed
        self._take_up(life.disk)
        assert self.life.content == life.model.durable
        assert self.life.end is None or self.life.end.sealed == sealed


def check_held(writer: Version2Writer) -> None:
    """Assert that the files of a writer that has synced everything are held by the live records, and nothing else."""
    held: Counter[int] = Counter()
    for rid in writer.records.rids():
        packed = writer.records.where(rid)
        assert packed is not None
        place, end = packed >> SIZE_BITS, (packed >> SIZE_BITS) + (packed & SIZE_MASK)
        held.update(range(place // writer.space.file, (end - 1) // writer.space.file + 1))
    assert {index: count for index, count in writer.space._held.items() if count} == held


def rows_of(rids: list[int]) -> list[tuple[int, int]]:
    """The ranges of consecutive ones among ascending record ids: the first, and the one after the last."""
    runs = runs_of(rids)
    return list(zip(runs[::2], runs[1::2], strict=True))


def described(content: Content) -> str:
    """Its record ids."""
    transactions = {xid: (list(enqueues), sorted(dequeues)) for xid, (enqueues, dequeues) in content.open.items()}
    return f"{sorted(content.live)} {transactions or ''}"
