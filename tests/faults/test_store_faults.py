"""The whole store on a disk that fails, is full or lies, and with a sync driver that dies.

Waiters are notified, promises hold, unaffected journals work on; and the next start, on a sound disk, finds what the
model allows.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

import qstore.store.live.growth as growth
from qstore.formats.rhm.geometry import Geometry
from qstore.store.disk import WritableFile
from qstore.store.errors import StoreError
from qstore.store.sync import supervision
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import (
    PATH,
    GrowingLife,
    Model,
    Shop,
    SlowSync,
    StoreCrashes,
    StoreLife,
)
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("tiny_blocks")


# ---- by chance ----


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("life_class", [StoreLife, GrowingLife])
@pytest.mark.parametrize("seed", today(range(40), 10))
def test_a_failing_call_is_reported_and_breaks_no_promise(
    seed: int, life_class: type[StoreLife], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    life = life_class(disk, Model(), rng)
    life.work(40)
    life.faults = True
    disk.fail_at[disk.calls + rng.randrange(60)] = code
    life.work(50)
    life.quiesce()
    if rng.random() < 0.5:
        life.close()
    disk.crash(power_loss=rng.random() < 0.5)
    after = life_class(disk, life.model, rng, must_be_clean=life.model.is_closed)
    after.work(20)
    after.quiesce()
    after.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("seed", today(range(3), 1))
def test_any_call_of_a_start_may_fail(seed: int, code: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    life = StoreLife(disk, Model(), rng)
    life.work(60 if seed else 0)
    life.highest()
    disk.crash(power_loss=False)
    for number in range(200):
        broken = disk.copy(seed)
        broken.fail_at[number] = code
        with contextlib.suppress(StoreError):  # nothing else
            StoreLife(broken, life.model, rng, faults=True)
        is_over = broken.calls <= number
        broken.crash(power_loss=rng.random() < 0.5)
        StoreLife(broken, life.model, rng).close()
        if is_over:
            return
    raise AssertionError("a start without an end")


class DyingSync(SlowSync):
    """Dies at its `after`th call."""

    def __init__(self, rng: random.Random, after: int) -> None:
        super().__init__(rng)
        self._left = after

    def _live(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise SyncDriverError("the sync driver has died")

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Begin, or die."""
        self._live()
        super().submit(ticket, files, writes)

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """End some, or die."""
        self._live()
        return super().completed(timeout)


@pytest.mark.parametrize("seed", today(range(60), 15))
def test_all_waiters_get_the_error_of_a_driver_that_dies(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    model = Model()
    if rng.random() < 0.8:
        life = StoreLife(disk, model, rng)
        life.work(40)
        life.highest()
        model = life.model
        disk.crash(power_loss=False)
    driver: Callable[[], SyncDriver] = lambda: DyingSync(rng, rng.randrange(1, 40))  # noqa: E731
    with contextlib.suppress(StoreError):  # nothing else
        life = StoreLife(disk, model, rng, faults=True, driver=driver)
        life.work(60)
        life.quiesce()
        for _ in range(100):
            life.enqueue()
            life.flush()
            life.quiesce()
            if life.store.failure is not None:
                break
        if life.queues():
            assert isinstance(life.store.failure, SyncDriverError)
            life.close()
            assert not life.model.is_closed
        model = life.model
    disk.crash(power_loss=rng.random() < 0.5)
    StoreLife(disk, model, rng).close()


class LosingSync(DyingSync):
    """Dies as well, and takes with it that some of its syncs have failed; the next one lives a while, too.

    What has failed is gone from the disk's memory, and a second sync of the same files reports success. A
    successor syncs something before it dies: after two in a row that did not, the store gives up.
    """

    def __init__(self, rng: random.Random, disk: SimulatedDisk, *, is_first: bool = True) -> None:
        super().__init__(rng, rng.randrange(1, 60))
        self._disk, self._may_die = disk, is_first

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """End some, or die."""
        completions = super().completed(timeout)
        self._may_die = self._may_die or bool(completions)
        return completions

    def _live(self) -> None:
        if not self._may_die:
            self._left = max(self._left, 2)
        try:
            super()._live()
        except SyncDriverError:
            self._write()
            for step in self._under_way:
                for file, token in step.syncs:
                    if self._rng.random() < 0.5:
                        self._disk.fail_at[self._disk.calls] = errno.EIO
                        with contextlib.suppress(OSError):
                            file.finish_sync(token)  # type: ignore[attr-defined]
            self._under_way.clear()
            raise

    def successor(self) -> SyncDriver:
        """Another one."""
        return LosingSync(self._rng, self._disk, is_first=False)


@pytest.mark.parametrize("seed", today(range(60), 15))
def test_a_driver_that_dies_with_unreported_syncs_loses_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_AT_ONCE_SECONDS", 0.0)
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    model = Model()
    for _ in range(3):
        life = StoreLife(disk, model, rng, driver=partial(LosingSync, rng, disk), must_be_clean=model.is_closed)
        life.work(80)
        life.quiesce()
        assert life.store.failure is None
        if rng.random() < 0.3:
            life.close()
        model = life.model
        disk.crash(power_loss=rng.random() < 0.7)
    StoreLife(disk, model, rng, must_be_clean=model.is_closed).close()


@pytest.mark.parametrize("seed", today(range(8), 1))
def test_kills_at_each_call_while_drivers_die_and_are_replaced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_AT_ONCE_SECONDS", 0.0)
    replaced = 0

    class CountedSync(LosingSync):
        """Counts the successors."""

        def successor(self) -> SyncDriver:
            nonlocal replaced
            replaced += 1
            return CountedSync(self._rng, self._disk, is_first=False)

    crashes = StoreCrashes(share=0.5, driver=CountedSync)
    crashes.run(1000 + seed, lives=2)
    assert replaced > 0
    assert crashes.kill_points > 50


# ---- one by one ----


def fail_once(disk: SimulatedDisk, name: str, part: str, code: int) -> None:
    """The next call of that name on a path with that part fails."""
    left = [None]

    def watch(call: Call) -> None:
        if left and call.name == name and part in call.path:
            left.pop()
            disk.fail_at[call.number] = code

    disk.watch = watch


@pytest.mark.parametrize("call", ["write", "sync"])
def test_other_journals_work_on_when_one_fails(call: str) -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 3)
    fail_once(disk, call, "/jrnl/1/", errno.EIO)
    shop.enqueue("queue-0", b"lost?")
    shop.enqueue("queue-1", b"kept")
    failed = shop.flush("queue-0", "queue-1")
    assert 'queue "queue-0"' in str(failed)
    assert "failed" in str(failed)
    assert shop.flush("queue-1") is None
    shop.enqueue("queue-2", b"kept too")
    assert shop.flush("queue-2") is None
    assert 'queue "queue-0"' in str(shop.flush("queue-0"))
    with pytest.raises(Exception, match="accepts no more records"):
        shop.enqueue("queue-0", b"refused")
    assert shop.store.failure is None
    assert not shop.store.close()
    disk.crash(power_loss=True)
    assert {name: Shop(disk).found[name] for name in ("queue-1",)} == {"queue-1": [b"kept"]}


@pytest.mark.parametrize("distributed", [False, True])
def test_a_transaction_over_a_journal_that_fails_is_aborted_in_the_others(distributed: bool) -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 3)
    rid = shop.enqueue("queue-1", b"old")
    assert shop.flush("queue-1") is None
    fail_once(disk, "sync", "/jrnl/1/", errno.EIO)
    enqueues = shop.enqueues(b"new", "queue-0", "queue-1")
    dequeues = [(shop.journals["queue-1"], rid)]
    transactions = shop.store.transactions
    if distributed:
        assert shop.ask(lambda done: transactions.prepare(b"x", enqueues, dequeues, done)) is not None
        assert transactions.in_doubt == []
    else:
        assert shop.ask(lambda done: transactions.commit(enqueues, dequeues, done)) is not None
    shop.store.append.dequeue(shop.journals["queue-1"], rid)  # nobody holds it any more
    assert shop.flush("queue-1") is None
    disk.crash(power_loss=False)
    assert Shop(disk).found == {"queue-0": [], "queue-1": [], "queue-2": []}


def test_when_the_prepared_list_fails_nothing_that_needs_it_is_begun() -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 2)
    fail_once(disk, "sync", "/tpl/", errno.EIO)
    assert "TplStore" in str(shop.transaction(b"who knows", "queue-0", "queue-1"))
    with pytest.raises(Exception, match="TplStore"):
        shop.transaction(b"refused", "queue-0", "queue-1")
    with pytest.raises(Exception, match="TplStore"):
        shop.store.transactions.prepare(b"x", shop.enqueues(b"refused", "queue-0"), [], print)
    assert shop.transaction(b"one journal", "queue-0") is None
    disk.crash(power_loss=False)
    found = Shop(disk).found
    whole = [b"who knows"]
    assert found in (
        {"queue-0": [b"one journal"], "queue-1": []},
        {"queue-0": [*whole, b"one journal"], "queue-1": whole},
    )


def test_a_queue_for_which_there_is_no_room_leaves_nothing_behind() -> None:
    disk = SimulatedDisk(capacity=210_000)
    shop = Shop(disk, 2)
    used = disk.tree.used
    error = shop.make("large", Geometry(6, 65536))
    assert isinstance(error, StoreError)
    assert 'queue "large" cannot be created' in str(error)
    assert "free some space" in str(error)
    assert disk.tree.used == used
    assert disk.names(f"{PATH}/rhm/jrnl") == ["1", "2"]
    assert shop.make("small") is None
    assert shop.store.close()


def test_a_store_for_which_there_is_no_room_leaves_nothing_in_the_way() -> None:
    disk = SimulatedDisk(capacity=8000)
    with pytest.raises(StoreError, match="free some space on that disk"):
        Shop(disk)
    disk.tree.capacity = 1 << 30
    shop = Shop(disk, 1)
    assert shop.store.close()


def test_a_catalogue_that_cannot_be_written_reports_it_each_time() -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 1)
    fail_once(disk, "batch", "", errno.EIO)
    for name in ("first", "second"):
        assert f'queue "{name}" cannot be created' in str(shop.make(name))
    shop.enqueue("queue-0", b"kept")
    assert shop.flush("queue-0") is None
    disk.crash(power_loss=True)
    again = Shop(disk)
    assert again.found.pop("queue-0") == [b"kept"]
    assert again.found in ({}, {"first": []})  # a batch that fails may be found
    assert again.critical() == []
    assert set(disk.names(f"{PATH}/rhm/jrnl")) == {str(number) for number in again.store.journals}


# ---- a queue that is deleted while a transaction is open in it ----


@pytest.mark.parametrize("commits", [False, True])
def test_a_branch_outlives_one_of_its_queues(commits: bool) -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 2)
    transactions = shop.store.transactions
    enqueues = shop.enqueues(b"branch", "queue-0", "queue-1")
    assert shop.ask(lambda done: transactions.prepare(b"x", enqueues, [], done)) is None
    deleted: list[Exception | None] = []
    shop.store.changes.delete_queue(shop.journals["queue-0"], lambda _, error: deleted.append(error))
    assert shop.wait(deleted) is None
    decide = transactions.commit_prepared if commits else transactions.abort_prepared
    assert shop.ask(lambda done: decide(b"x", done)) is None
    assert shop.flush("queue-1") is None
    shop.ask(lambda done: shop.store.flush([shop.store.prepared_list], done))
    assert shop.store.prepared_list.open_transactions == 0
    assert shop.ask(lambda done: transactions.prepare(b"x", shop.enqueues(b"again", "queue-1"), [], done)) is None
    assert shop.store.close()
    again = Shop(disk)
    assert again.found == {"queue-1": [b"branch", b"again"] if commits else [b"again"]}
    assert again.store.transactions.in_doubt == [b"x"]


def test_the_xid_of_a_branch_that_was_aborted_may_come_again() -> None:
    disk = SimulatedDisk()
    shop = Shop(disk, 1)
    transactions = shop.store.transactions
    assert shop.ask(lambda done: transactions.prepare(b"x", shop.enqueues(b"first", "queue-0"), [], done)) is None
    assert shop.ask(lambda done: transactions.abort_prepared(b"x", done)) is None
    assert shop.ask(lambda done: transactions.prepare(b"x", shop.enqueues(b"second", "queue-0"), [], done)) is None
    assert shop.store.close()
    assert Shop(disk).critical() == []
