"""One journal under crashes, and the broken writers that the simulation has to catch.

Each day has other histories: see `tests/support/profiles.py`.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Final

import pytest

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import decode_file_header
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import FIXED_SIZE
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.store.errors import JournalError, JournalFailedError
from qstore.store.journal.directory import data_path
from tests.faults.broken_writers import BROKEN, BROKEN_GROWTH, BROKEN_RUNS
from tests.faults.journal_simulation import DIRECTORY, JournalCrashes, JournalLife, Shape, make
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import Planted
from tests.support.compiled import replaces
from tests.support.profiles import is_nightly, seeds_of_the_day, times

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
    "two files",
    "three files, many transactions",
    "a stuck message, transactions",
    "first in, first out",
    "records of half a file",
    "alignment and sector 4096",
    "runs",
    "runs and a stuck message",
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
        "a range is released where it begins": 11,
        "a slice loses its tail": 11,
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


def test_files_that_a_torn_flush_entered_in_vain() -> None:
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
