"""One journal under crashes, and the broken writers that the simulation has to catch.

`tests/support/profiles.py` says which histories are run.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from contextlib import nullcontext
from typing import Final

import pytest

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.headers import FIXED_SIZE
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.store.errors import JournalError, JournalFailedError
from qstore.store.journal.directory import data_path, open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.space import SIZE_BITS
from tests.faults.broken_writers import BROKEN, BROKEN_GROWTH, BROKEN_RUNS
from tests.faults.journal_simulation import (
    DIRECTORY,
    DamagedError,
    JournalCrashes,
    JournalLife,
    Shape,
    WrongContentError,
    content_of,
    make,
)
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import Planted
from tests.support.compiled import replaces
from tests.support.profiles import is_nightly, seeds_of_the_day, times, today

KILLS: Final = 140  # at least, for each of the shapes

SHAPES: Final = {
    "tiny files": Shape(4, 16, 300, "any"),
    "records longer than a file": Shape(8, 16, 4000, "last"),
    "two files": Shape(2, 64, 500, "first"),
    "three files, many transactions": Shape(3, 48, 700, "any", transactions=0.6),
    "a stuck message": Shape(4, 64, 1200, "stuck", transactions=0.0),
    "a stuck message, transactions": Shape(5, 32, 1500, "stuck", transactions=0.4),
    "first in, first out": Shape(5, 32, 1500, "first"),
    "last in, first out": Shape(4, 24, 800, "last"),
    "records of half a file": Shape(6, 32, 2000, "any"),
    "records of a block": Shape(4, 32, 90, "any", transactions=0.4),
    "alignment 4096": Shape(4, 128, 4000, "any", alignment=4096),
    "alignment and sector 4096": Shape(5, 128, 3000, "any", alignment=4096, sector=4096),
    "runs": Shape(5, 64, 700, "any", runs=0.7),
    "runs, first in, first out": Shape(4, 64, 400, "first", transactions=0.0, runs=0.9),
    "runs and a stuck message": Shape(5, 32, 700, "stuck", transactions=0.3, runs=0.5),
    "runs, alignment 4096": Shape(4, 128, 300, "any", alignment=4096, runs=0.7),
    "runs, rings that grow": Shape(4, 32, 500, "first", grows=0.08, runs=0.7),
    "rings that grow": Shape(4, 16, 300, "any", grows=0.1),
    "rings that grow, long records": Shape(3, 16, 3000, "last", transactions=0.4, grows=0.06),
    "rings that grow, first in, first out": Shape(4, 32, 1200, "first", grows=0.1),
}
CORE: Final = (
    "three files, many transactions",
    "a stuck message, transactions",
    "alignment and sector 4096",
    "runs, rings that grow",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.core if name in CORE else ()) for name in SHAPES]
)
def test_durable_records_are_found_after_every_crash(name: str) -> None:
    crashes = JournalCrashes(shape=SHAPES[name], share=0.4)
    more = times() or 10
    for seed in seeds_of_the_day(10):
        crashes.run(seed)
        if crashes.counts["kills"] >= KILLS * more:
            break
    crashes.check_counts({"kills": KILLS * more, "kills at write": 30 * more, "kills at sync": 30 * more})
    if is_nightly():
        crashes.check_counts(seen_in_many(crashes.shape))


def seen_in_many(shape: Shape) -> dict[str, int]:
    """What happens in ten times as many histories, at least so often."""
    least = {
        "crashes in a row: 2": 70,
        "crashes in a row: 3": 50,
        "torn": 100,
        "laps": 20,
        "relocated": 20,
        "seals": 5,
        "busy": 10,
    }
    if shape.grows:
        least |= {"files added": 50, "files added in the middle": 50, "files removed": 50}
    if shape.runs:
        least |= {"enqueue in a run": 50, "dequeue in a run": 50}
    if shape.transactions:
        for kind in ("enqueue", "dequeue", "commit", "abort"):
            least[f"{kind} in a transaction"] = 5
    return least


def test_rare_events_are_reached() -> None:
    """Over all shapes: records over three files, dequeues that move with their messages, transactions in doubt."""
    crashes = JournalCrashes(shape=Shape(6, 16, 4500, "stuck", transactions=0.5), share=0.1)
    crashes.run_all(range(12))
    crashes.check_counts(
        {
            "split": 50,
            "longer than a file": 20,
            "refused": 20,
            "moved dequeues": 20,
            "own dequeues": 10,
            "in doubt at start": 20,
            "crashes in a row: 2": 5,
            "torn": 50,
            "laps": 20,
            "relocated": 20,
            "seals": 5,
            "busy": 10,
        }
    )


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_many_shapes(block: int) -> None:
    for seed in range(1000 + block * 25, 1025 + block * 25):
        rng = random.Random(seed)
        alignment = rng.choice((512, 512, 512, 4096))
        blocks = rng.choice((12, 16, 16, 24, 32, 64, 128) if alignment == 512 else (32, 64, 128))
        shape = Shape(
            rng.choice((2, 3, 4, 4, 4, 5, 6, 8)),
            blocks,
            rng.choice((60, 300, 1500, blocks * 40, blocks * 128, blocks * 300)),
            rng.choice(("first", "last", "any", "stuck")),
            rng.choice((0, 0.2, 0.2, 0.5)),
            alignment,
            rng.choice((512, alignment)),
            grows=rng.choice((0, 0, 0.02, 0.05, 0.1)),
            runs=rng.choice((0, 0.3, 0.8)),
        )
        JournalCrashes(shape=shape, share=0.5).run(seed)


# A writer that overwrites what it has to keep also finds out by itself, when it relocates.
WRITERS: Final = Planted(
    dict.fromkeys(BROKEN, nullcontext),
    lambda name: JournalCrashes(shape=Shape(4, 16, 1500, "any"), life_class=BROKEN[name]),
    range(5),
    {},
    (AssertionError, JournalFailedError),
)
GROWTH: Final = Planted(
    dict.fromkeys(BROKEN_GROWTH, nullcontext),
    lambda name: JournalCrashes(
        shape=Shape(4, 16, 600, "any", grows=0.1), life_class=BROKEN_GROWTH[name], share=1.0, continued=0.8
    ),
    range(40),
    {"ring in use before it is synced": 4},
    (AssertionError, JournalFailedError, RhmError, OSError),
)


OVER_FILES: Final = Shape(8, 32, 100, "stuck", transactions=0.0, runs=0.6)  # copies of a run lie in several
RUNS: Final = Planted(
    BROKEN_RUNS,
    lambda name: JournalCrashes(
        shape=OVER_FILES if "released" in name else Shape(4, 128, 500, "any", runs=0.8), share=0.2
    ),
    range(20),
    {
        "a range is released where it begins": 16,
        "one too many goes": 2,
        "the first of a run stays": 1,
        "a slice loses its tail": 10,
        "the last body of a run is the first": 1,
    },
    (AssertionError, JournalError, RhmError),
)


@pytest.mark.core
@pytest.mark.parametrize("name", WRITERS.bugs)
def test_a_broken_writer_is_caught(name: str) -> None:
    assert WRITERS.is_found(name)


def test_a_sound_writer_is_not_caught() -> None:
    JournalCrashes(shape=Shape(4, 16, 1500, "any"), share=0.2).run(0)


@replaces
@pytest.mark.core
@pytest.mark.parametrize("name", RUNS.bugs)
def test_a_writer_with_broken_runs_is_caught(name: str) -> None:
    """A sound writer passes far more of it (`SHAPES`)."""
    assert RUNS.is_found(name)


@pytest.mark.parametrize("name", GROWTH.bugs)
def test_a_ring_that_grows_wrongly_is_caught(name: str) -> None:
    """A sound writer passes far more of it (`SHAPES`, `test_many_shapes`)."""
    assert GROWTH.is_found(name)


# ---- what the simulation found ----


def test_files_entered_by_a_torn_flush() -> None:
    """A flush over three files is torn in the second; the next life enters that one again, the third not yet."""
    vain = 0
    for seed in range(40):
        disk = SimulatedDisk(seed)
        make(disk, Geometry(5, 2048))
        life = JournalLife(disk)
        life.enqueue(1, b"one")
        life.drain()
        life.enqueue(2, bytes(4500))
        life.begin()
        life.finish()
        life.begin()
        disk.crash(power_loss=True)
        life = JournalLife(disk, seed)
        assert list(life.content.live) == [1]
        header = decode_file_header(bytes(disk.tree.inode(data_path(DIRECTORY, DEFAULT_BASE_NAME, 2)).content[:512]))
        vain += header is not None
        for rid in range(3, 60, 2):
            life.enqueue(rid, bytes(200))
            life.dequeue(rid + 1, rid)
            life.drain()
            assert JournalLife(disk.copy(0)).content == life.now, seed
    assert vain > 5


def test_a_file_entered_again_and_again() -> None:
    """Two lives die when they have entered the same file; the header of the third has to count."""
    entered = 0
    for seed in range(60):
        disk = SimulatedDisk(seed)
        make(disk, Geometry(4, 2048))
        life = JournalLife(disk)
        life.enqueue(1, bytes(2048 - FIXED_SIZE))
        life.drain()
        for rid in (2, 3):
            life = JournalLife(disk, rid)
            life.enqueue(rid, b"lost")
            life.begin()
            life.finish()
            life.begin()
            disk.crash(power_loss=True)
        life = JournalLife(disk, 4)
        entered += life.end is not None and life.end.flush == 1
        life.enqueue(4, b"kept")
        life.drain()
        assert JournalLife(disk).content == life.now, seed
        assert 1 in life.now.live
    assert entered > 5


# ---- drives that break a journal's assumptions ----
# Assumed is powersafe overwrite: a sector that is written while the power fails keeps what stood there, if what is
# written begins with the same bytes. Without it, flushes aligned to the drive's sectors:
# one crash    loses nothing that was acknowledged. But the header of a file that is being entered shares its sector
# with the one before, and where sectors are large with the first data: both may be lost, which is
# reported. Nothing in that file was needed
# two crashes  what the first one left of a flush that it tore, and recovery found, may be lost by the second: the
# flush that follows goes on in the same sector


def failure(crashes: JournalCrashes, seed: int) -> AssertionError | None:
    try:
        crashes.run(seed, steps=100)
    except AssertionError as error:
        return error
    return None


@pytest.mark.parametrize("alignment", [512, 4096])
def test_a_crash_loses_nothing_silently(alignment: int) -> None:
    shape = Shape(4, 128, 2000, "any", alignment=alignment, sector=alignment, powersafe=False)
    crashes = JournalCrashes(shape=shape, share=0.7, continued=0.0)
    reported = [error for seed in range(60) if (error := failure(crashes, seed)) is not None]
    assert reported or alignment == 512
    assert all(isinstance(error, DamagedError) and "file header" in str(error) for error in reported)
    crashes.check_counts({"kills": 300, "torn": 30})


def test_second_crash_may_lose_records_of_a_torn_flush() -> None:
    """If this fails the journal got better than the documents say: change them."""
    shape = Shape(4, 32, 1500, "any", powersafe=False)
    for seed in range(60):
        crashes = JournalCrashes(shape=shape, share=0.5, continued=1.0)
        if isinstance(failure(crashes, seed), WrongContentError):
            assert crashes.row > 1
            return
    pytest.fail("nothing is lost")


# ---- A journal on a disk that fails: errors of writes, syncs and reads, and bits that go bad ----


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
    # What is there can still be read for a repair.
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
