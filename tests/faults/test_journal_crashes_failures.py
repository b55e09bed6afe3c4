"""A journal on a disk that fails: errors of writes, syncs and reads, and bits that go bad."""

from __future__ import annotations

import errno
import random
from collections import Counter

import pytest

from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.store.errors import JournalFailedError
from qstore.store.journal.directory import data_path, open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.space import SIZE_BITS
from tests.faults.journal_simulation import DIRECTORY, DamagedError, JournalLife, content_of, make
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.profiles import is_nightly, today

RING = Geometry(4, 4096)


def a_disk(seed: int = 0, geometry: Geometry = RING) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    make(disk, geometry)
    return disk


def path(file: int) -> str:
    return data_path(DIRECTORY, DEFAULT_BASE_NAME, file)


def work(life: JournalLife, rng: random.Random, rid: int, operations: int) -> int:
    """Random records and flushes; the record id that is due after them."""
    for _ in range(operations):
        chance, rid, free = rng.random(), rid + 1, life.free
        if chance < 0.45:
            life.enqueue(rid, rng.randbytes(rng.randrange(300)), rng.choice((b"", b"", b"x")))
        elif chance < 0.75 and free:
            life.dequeue(rid, free[0], rng.choice((b"", b"", b"x")))
        elif chance < 0.8 and life.now.open:
            (life.commit if chance < 0.78 else life.abort)(rid, b"x")
        elif life.writer.is_under_way:
            life.finish()
        else:
            life.begin()
    return rid


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_call_nothing_is_taken_and_nothing_is_claimed(code: int) -> None:
    failed: Counter[str] = Counter()
    for seed in today(range(150), 50):
        disk, rng = a_disk(seed, Geometry(4, 2048)), random.Random(seed)
        life = JournalLife(disk, seed)
        at = disk.calls + rng.randrange(80)
        disk.fail_at = {at: code}
        disk.log = []
        with pytest.raises(OSError):  # noqa: PT011 - which one is asked below
            work(life, rng, 0, 1000)
        failed[disk.log[-1].split()[0]] += 1
        before = life.writer.synced
        assert life.writer.failure is not None
        assert "accepts no more records until the store is opened again" in str(life.writer.failure)
        with pytest.raises(JournalFailedError, match=r"a write or sync of .* failed"):
            life.enqueue(10**9, b"more")
        assert life.begin() is None
        assert not life.writer.seal()
        assert life.writer.synced == before
        after = disk.copy(seed)
        after.crash(power_loss=rng.random() < 0.5)
        found = JournalLife(after)
        assert life.model.may_be(found.content), seed
        found.enqueue(10**9 + 1, b"on it goes")
        found.drain()
        assert JournalLife(after).content == found.now
    assert min(failed["write"], failed["sync"]) >= 5


def test_each_operation_is_refused_after_a_failure() -> None:
    life = JournalLife(a_disk())
    life.enqueue(1, b"one")
    life.enqueue(2, b"two", b"x")
    life.drain()
    life.writer.failed(OSError(errno.EIO, "Input/output error", "/a/file"))
    for append in (
        lambda: life.enqueue(3, b""),
        lambda: life.enqueue(3, b"", b"x"),
        lambda: life.enqueue(3, b"", b"new"),
        lambda: life.dequeue(3, 1),
        lambda: life.dequeue(3, 1, b"x"),
        lambda: life.commit(3, b"x"),
        lambda: life.abort(3, b"x"),
        lambda: life.writer.admit_transaction(b"y", (1,), 1),
    ):
        with pytest.raises(JournalFailedError, match="a write or sync of /a/file failed: Input/output error"):
            append()
    assert set(life.writer.live) == {1, 2}
    assert set(life.writer.transactions) == {b"x"}


def stuck(disk: SimulatedDisk) -> tuple[JournalLife, int]:
    """A journal with an old message, which has to be relocated soon; and the place where it stands."""
    life = JournalLife(disk)
    life.enqueue(1, b"old" * 50)
    life.drain()
    return life, life.writer.live[1] >> SIZE_BITS


def go_round(life: JournalLife) -> None:
    for rid in range(10, 4000, 2):
        life.enqueue(rid, b"x" * 100)
        life.dequeue(rid + 1, rid)
        life.drain()


def test_a_record_that_cannot_be_read_is_not_relocated() -> None:
    disk = a_disk()
    life, place = stuck(disk)
    disk.read_fails.add((path(0), (DATA_OFFSET + place * BLOCK_SIZE) // 512))
    with pytest.raises(JournalFailedError, match=r"a record cannot be read for compaction: .*Input/output"):
        go_round(life)
    disk.read_fails.clear()
    disk.crash(power_loss=True)
    found = JournalLife(disk)
    assert found.content.live[1] == b"old" * 50
    assert life.model.may_be(found.content)


@pytest.mark.parametrize("at", [3, 8, 20, 40, 190])
def test_a_record_with_a_bad_bit_is_not_relocated(at: int) -> None:
    disk = a_disk()
    life, place = stuck(disk)
    disk.flip(path(0), DATA_OFFSET + place * BLOCK_SIZE + at)
    before = bytes(disk.tree.inode(path(0)).content)
    with pytest.raises(JournalFailedError, match="a record cannot be read for compaction"):
        go_round(life)
    # What is there can still be looked at by whoever repairs it.
    first = slice(DATA_OFFSET, DATA_OFFSET + 2 * BLOCK_SIZE)
    assert bytes(disk.tree.inode(path(0)).content)[first] == before[first]
    disk.crash(power_loss=False)
    with pytest.raises(DamagedError):
        JournalLife(disk)


def test_bad_bits_are_reported() -> None:
    """Each bit of what is synced, one at a time, in some journals: reported, or it is one that means nothing."""
    seen: Counter[str] = Counter()
    for seed in today(range(8), 2):
        disk, rng = a_disk(seed, Geometry(4, 2048)), random.Random(seed)
        life = JournalLife(disk, seed)
        work(life, rng, 0, 160)
        life.drain()
        sound = JournalLife(disk.copy(0)).content
        for _ in range(300):
            file, offset = rng.randrange(4), rng.randrange(2048 + DATA_OFFSET)
            harmed = disk.copy(0)
            harmed.flip(path(file), offset, rng.randrange(8))
            journal = open_journal(harmed, DIRECTORY)
            recovery = JournalRecovery()
            end = journal.walk(recovery)
            is_reported = bool(journal.damage or recovery.damage)
            if is_reported:
                seen["reported"] += 1
            elif content_of(journal, recovery) == sound:
                seen["means nothing"] += 1
            else:
                # A bit of the last flush makes it look torn: nothing tells that it had been synced.
                assert end is not None
                assert end.torn, (seed, file, offset)
                seen["looks torn"] += 1
    assert seen["reported"] > 0.3 * sum(seen.values())
    assert seen["looks torn"] < (0.05 if is_nightly() else 0.2) * sum(seen.values())
