"""Histories of one journal that die at every call: the crash matrix.

A history is a life of random records and flushes. Before each call that changes the disk it is asked what the next life
would find if the process died during that call, by a SIGKILL and by a power loss: it must find what the model allows,
report no damage, and be able to go on. Some of those next lives have histories of their own, which die in turn, from
their first call on: those that taking up makes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE, Geometry
from tests.faults.journal_harness import Content, DamagedError, JournalLife, make
from tests.faults.simulated_disk import SECTOR, Call, SimulatedDisk

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

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.files, self.blocks * BLOCK_SIZE)


class WrongContentError(AssertionError):
    """The next life found what the model does not allow."""


@dataclass(slots=True)
class CrashMatrix:
    """Histories of one shape.

    Args:
        shape: of the journal.
        life_class: the life; tests hand in broken ones.
        share: of the calls, those at which the process dies.
        continued: of the next lives, those that go on and die again.

    Attributes:
        counts: what was seen: `kills`, `crashes in a row: 2`, `laps`, and so on.
    """

    shape: Shape
    life_class: type[JournalLife] = JournalLife
    share: float = 1.0
    continued: float = 0.04
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, seed: int, operations: int) -> None:
        """One history. Raises AssertionError where a crash leaves what it must not."""
        disk = SimulatedDisk(seed, sector=self.shape.sector, powersafe=self.shape.powersafe)
        make(disk, self.shape.geometry, self.shape.alignment)
        _History(self, random.Random(seed), f"seed {seed}", crashes=0, rid=0).run(disk, operations)

    def check_shape(self, least: dict[str, int]) -> None:
        """Assert that what makes the matrix worth anything did happen."""
        missed = {name: (self.counts[name], count) for name, count in least.items() if self.counts[name] < count}
        assert not missed, f"(seen, expected) {missed} of {dict(self.counts)}"


class _History:
    """One life's part of a history."""

    def __init__(self, matrix: CrashMatrix, rng: random.Random, path: str, *, crashes: int, rid: int) -> None:
        self.matrix, self.rng, self.path, self.crashes = matrix, rng, path, crashes
        self.rid = rid  # the last one that was used, in whichever life
        self.life: JournalLife | None = None

    def next_rid(self) -> int:
        self.rid += 1
        return self.rid

    # ---- lives ----

    def run(self, disk: SimulatedDisk, operations: int, allowed: JournalLife | None = None) -> None:
        """Take the journal up and go on. `allowed`: the life before, if this one follows a crash."""
        disk.watch = lambda call: self._die(call, self.life or allowed)
        self._take_up(disk)
        for _ in range(operations):
            self._operate()
        assert self.life is not None
        disk.watch = None
        self._end(self.life)

    def _take_up(self, disk: SimulatedDisk) -> None:
        self.life = self.matrix.life_class(disk, self.rng.getrandbits(32))
        self.rid = max(self.rid, self.life.highest_rid)
        self.matrix.counts["in doubt at start"] += len(self.life.now.open)
        for xid in list(self.life.now.open):
            if self.rng.random() < 0.7:  # the rest stays: in doubt
                self.life.abort(self.next_rid(), xid)

    def _end(self, life: JournalLife) -> None:
        counts = self.matrix.counts
        counts.update(life.counts)
        counts["laps"] += life.lap
        counts["relocated"] += life.writer.compactor.copied
        counts["moved dequeues"] += life.moved_dequeues
        counts["refused"] += sum(life.refused.values())

    def _die(self, call: Call, before: JournalLife | None) -> None:
        """The process might die now: by both ways, and then begin again."""
        matrix, rng = self.matrix, self.rng
        if rng.random() >= matrix.share:
            return
        for power_loss in (False, True):
            seed = rng.getrandbits(32)
            path = (
                f"{self.path}, {'power loss' if power_loss else 'kill'} {seed} at {call.number} {call.name} {call.path}"
            )
            matrix.counts["kills"] += 1
            matrix.counts[f"kills at {call.name}"] += 1
            matrix.counts[f"crashes in a row: {self.crashes + 1}"] += 1
            after = call.killed(seed, power_loss=power_loss)
            goes_on = self.crashes + 1 < MAX_CRASHES and rng.random() < matrix.continued * 5**self.crashes
            twin = after.copy(seed) if goes_on else None
            self._check(after, path, before)
            if twin is not None:
                history = _History(matrix, random.Random(seed), path, crashes=self.crashes + 1, rid=self.rid)
                history.run(twin, rng.randrange(30), before)

    def _check(self, disk: SimulatedDisk, path: str, before: JournalLife | None) -> None:
        try:
            life = self.matrix.life_class(disk)
        except Exception as error:
            raise DamagedError(f"{path}: {type(error).__name__}: {error}") from error
        self.matrix.counts["torn"] += life.end is not None and life.end.torn
        if before is None:
            assert life.content == Content({}, {}), path
        elif not before.model.may_be(life.content):
            raise WrongContentError(f"{path}: {described(life.content)}; durable: {described(before.model.durable)}")

    # ---- operations ----

    def _operate(self) -> None:
        life, rng, shape = self.life, self.rng, self.matrix.shape
        assert life is not None
        if shape.grows and rng.random() < shape.grows:
            self._change_ring(life)
            return
        chance = rng.random()
        if chance < 0.68:
            if rng.random() < shape.transactions:
                self._transact(life)
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
        else:
            self._close(life)

    def _data(self) -> bytes:
        largest = self.matrix.shape.largest
        return self.rng.randbytes(
            self.rng.choice((self.rng.randint(0, min(largest, 80)), self.rng.randint(0, largest)))
        )

    def _dequeue(self, life: JournalLife, xid: bytes = b"") -> None:
        free = life.free
        if not free:
            return
        order = self.matrix.shape.order
        at = {"first": 0, "last": -1, "any": self.rng.randrange(len(free)), "stuck": min(1, len(free) - 1)}[order]
        life.dequeue(self.next_rid(), free[at], xid)

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
                self.matrix.counts["own dequeues"] += life.dequeue(self.next_rid(), rng.choice(own), xid)
        elif life.now.open:
            (life.commit if chance < 0.93 else life.abort)(self.next_rid(), rng.choice(list(life.now.open)))

    def _change_ring(self, life: JournalLife) -> None:
        rng, files = self.rng, life.geometry.files
        if life.writer.growth.change is not None:
            life.make_change()
        elif files < self.matrix.shape.most and rng.random() < 0.6:
            life.begin_change(rng.randint(1, 3))
        elif files > self.matrix.shape.files:
            life.begin_change(-rng.randint(1, files - self.matrix.shape.files))

    def _close(self, life: JournalLife) -> None:
        """A clean close, and the next start."""
        sealed = life.close()
        self._end(life)
        self.matrix.counts["seals"] += sealed
        self._take_up(life.disk)
        assert self.life is not None
        assert self.life.content == life.model.durable, self.path
        assert self.life.end is None or self.life.end.sealed == sealed, self.path


def described(content: Content) -> str:
    """Its record ids."""
    transactions = {xid: (list(enqueues), sorted(dequeues)) for xid, (enqueues, dequeues) in content.open.items()}
    return f"{sorted(content.live)} {transactions or ''}"
