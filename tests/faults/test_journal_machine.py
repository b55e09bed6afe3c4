"""One journal as a state machine: hypothesis chooses what is done, and at which call the process dies.

Where the seeded histories of `test_journal_crashes` visit every call, this finds short stories: hypothesis shrinks what
fails to the few steps that matter.
"""

from __future__ import annotations

import contextlib

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.store.errors import JournalFailedError
from tests.faults.journal_simulation import JournalLife, Model, make, rows_of
from tests.faults.simulated_disk import Killed, SimulatedDisk
from tests.support.profiles import examples

XIDS = st.sampled_from([b"one", b"two"])
SIZES = st.one_of(st.integers(0, 80), st.integers(0, 1500))


class JournalMachine(RuleBasedStateMachine):
    """A journal, the model of what may be found in it, and the disk that both are held against."""

    disk: SimulatedDisk
    life: JournalLife

    @initialize(
        seed=st.integers(0, 1 << 30),
        files=st.integers(3, 6),
        blocks=st.sampled_from([16, 32, 64]),
        alignment=st.sampled_from([512, 512, 4096]),
    )
    def begin(self, seed: int, files: int, blocks: int, alignment: int) -> None:
        self.disk = SimulatedDisk(seed)
        make(self.disk, Geometry(files, max(blocks, alignment // BLOCK_SIZE) * BLOCK_SIZE), alignment)
        self.life = JournalLife(self.disk, seed)
        self.rid = 0

    def next_rid(self) -> int:
        self.rid += 1
        return self.rid

    # ---- records ----

    @rule(size=SIZES, count=st.integers(1, 8))
    def enqueue(self, size: int, count: int) -> None:
        for _ in range(count):
            rid = self.next_rid()
            self.life.enqueue(rid, bytes([rid % 251]) * size)

    @rule(which=st.integers(0, 1 << 16), count=st.integers(1, 8))
    def dequeue(self, which: int, count: int) -> None:
        for _ in range(count):
            free = self.life.free
            if free:
                self.life.dequeue(self.next_rid(), free[which % len(free)])

    @rule(size=SIZES, count=st.integers(1, 40), head=st.binary(max_size=3))
    def enqueue_run(self, size: int, count: int, head: bytes) -> None:
        first = self.rid + 1
        self.rid += count
        self.life.enqueue_run(first, head, [bytes([rid % 251]) * size for rid in range(first, first + count)])

    @rule(which=st.integers(0, 1 << 16), skipped=st.integers(0, 20), count=st.integers(1, 40))
    def dequeue_run(self, which: int, skipped: int, count: int) -> None:
        rows = rows_of(self.life.free)
        if rows:
            first, end = rows[which % len(rows)]
            first = min(first + skipped, end - 1)
            rid = self.rid + 1
            self.rid += count
            self.life.dequeue_run(rid, first, min(count, end - first))

    @rule(xid=XIDS, size=SIZES)
    def enqueue_in(self, xid: bytes, size: int) -> None:
        rid = self.next_rid()
        self.life.enqueue(rid, bytes([rid % 251]) * size, xid)

    @rule(xid=XIDS, which=st.integers(0, 1 << 16))
    def dequeue_in(self, xid: bytes, which: int) -> None:
        free = self.life.free
        if free:
            self.life.dequeue(self.next_rid(), free[which % len(free)], xid)

    @precondition(lambda self: self.life.writer.transactions)
    @rule(which=st.integers(0, 7), commits=st.booleans())
    def end(self, which: int, commits: bool) -> None:
        xids = list(self.life.writer.transactions)
        done = self.life.commit if commits else self.life.abort
        done(self.next_rid(), xids[which % len(xids)])

    @rule(which=st.integers(0, 1 << 16), count=st.integers(1, 20))
    def put_away(self, which: int, count: int) -> None:
        free = sorted(self.life.free)
        if free:
            at = which % len(free)
            self.life.writer.records.put_away(free[at : at + count])

    # ---- flushes ----

    @rule()
    def step(self) -> None:
        if self.life.writer.is_under_way:
            self.life.finish()
        else:
            self.life.begin()

    @rule()
    def drain(self) -> None:
        self.life.drain()

    @rule()
    def close_and_open(self) -> None:
        sealed = self.life.close()
        before = self.life.model
        self.life = JournalLife(self.disk, self.rid)
        assert self.life.content == before.durable
        assert self.life.end is None or self.life.end.sealed or not sealed

    # ---- the end of a life ----

    @rule(power_loss=st.booleans(), calls=st.integers(0, 6), more=st.integers(0, 3))
    def die(self, power_loss: bool, calls: int, more: int) -> None:
        """At a call of what is done next, or in between; and perhaps again while it is taken up."""
        model = self.life.model
        self.disk.kill_at = self.disk.calls + calls
        with contextlib.suppress(Killed):
            self.life.drain()
        self.disk.crash(power_loss=power_loss)
        if more:
            model = self.die_again(model, more, power_loss=power_loss)
        self.life = JournalLife(self.disk, self.rid)
        assert model.may_be(self.life.content), (self.life.content, model)
        assert self.life.highest_rid <= self.rid

    def die_again(self, model: Model, calls: int, *, power_loss: bool) -> Model:
        self.disk.kill_at = calls - 1
        with contextlib.suppress(Killed):
            life = JournalLife(self.disk, self.rid)
            assert model.may_be(life.content), (life.content, model)
            model = life.model  # what recovery found is synced when it is there
            life.enqueue(self.next_rid(), b"once more")
            life.drain()
        self.disk.crash(power_loss=power_loss)
        return model

    @precondition(lambda self: not self.life.writer.is_under_way)
    @rule(code=st.sampled_from([5, 28]))
    def fail(self, code: int) -> None:
        """A call fails: the journal accepts no more, and the next life has what was durable."""
        self.life.enqueue(self.next_rid(), b"will it be there?")
        step = self.life.writer.next_flush()
        if step is None:
            return  # a ring so small takes nothing
        self.disk.fail_at = {self.disk.calls: code}
        try:
            for file in self.life.storage.write(step):
                file.sync()
        except OSError as error:
            self.life.writer.failed(error)
        self.disk.fail_at = {}
        assert isinstance(self.life.writer.failure, JournalFailedError)
        assert self.life.writer.next_flush() is None
        model = self.life.model
        self.disk.crash(power_loss=True)
        self.life = JournalLife(self.disk, self.rid)
        assert model.may_be(self.life.content)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if hasattr(self, "life"):
            kept = {rid for enqueues, _ in self.life.now.open.values() for rid in enqueues}
            records = self.life.writer.records
            assert all(records.where(rid) for rid in set(self.life.now.live) | kept)
            known = list(records.rids())
            assert len(known) == len(set(known)), "each is counted once"


TestJournal = JournalMachine.TestCase
TestJournal.settings = examples(400, stateful_step_count=40)
