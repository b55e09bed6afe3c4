"""The crash matrix of one journal, and the broken writers that it has to catch.

Each day has other histories: see `tests/support/profiles.py`.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import decode_file_header
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import FIXED_SIZE
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME
from qstore.store.errors import JournalFailedError
from qstore.store.journal.directory import data_path
from tests.faults.broken_writers import BROKEN, BROKEN_GROWTH
from tests.faults.journal_harness import DIRECTORY, JournalLife, make
from tests.faults.journal_matrix import CrashMatrix, Shape
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.profiles import is_nightly, seeds_of_the_day, times

OPERATIONS: Final = 220
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
    "rings that grow": Shape(4, 16, 300, "any", grows=0.1),
    "rings that grow, long records": Shape(3, 16, 3000, "last", transactions=0.4, grows=0.06),
    "rings that grow, first in, first out": Shape(4, 32, 1200, "first", grows=0.1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_durable_records_are_found_after_every_crash(name: str) -> None:
    matrix = CrashMatrix(SHAPES[name], share=0.2, continued=0.04)
    more = times() or 10
    for seed in seeds_of_the_day(10):
        matrix.run(seed, OPERATIONS)
        if matrix.counts["kills"] >= KILLS * more:
            break
    matrix.check_shape({"kills": KILLS * more, "kills at write": 30 * more, "kills at sync": 30 * more})
    if is_nightly():
        matrix.check_shape(seen_in_many(matrix.shape))


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
    if shape.transactions:
        for kind in ("enqueue", "dequeue", "commit", "abort"):
            least[f"{kind} in a transaction"] = 5
    return least


def test_the_matrix_reaches_what_is_rare() -> None:
    """Over all shapes: records over three files, dequeues that move with their messages, transactions in doubt."""
    matrix = CrashMatrix(Shape(6, 16, 4500, "stuck", transactions=0.5), share=0.05)
    for seed in range(12):
        matrix.run(seed, OPERATIONS)
    matrix.check_shape(
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
        )
        CrashMatrix(shape, share=0.3, continued=0.03).run(seed, 200)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_writer_is_caught(name: str) -> None:
    shape = Shape(4, 16, 1500, "any")
    matrix = CrashMatrix(shape, life_class=BROKEN[name])

    def run() -> None:
        for seed in range(5):
            matrix.run(seed, 150)

    # A writer that overwrites what it has to keep also finds out by itself, when it relocates.
    with pytest.raises((AssertionError, JournalFailedError)):
        run()


def test_a_sound_writer_is_not() -> None:
    CrashMatrix(Shape(4, 16, 1500, "any"), share=0.1).run(0, 150)


#: The seed that finds a ring that grows wrongly soonest.
FINDS_GROWTH = {
    "files in use before they are in the ring": 25,
    "no boundary": 10,
    "ring in use before it is synced": 24,
}


@pytest.mark.parametrize("name", BROKEN_GROWTH)
def test_a_ring_that_grows_wrongly_is_caught(name: str) -> None:
    """The matrix runs until it finds it; a sound writer passes far more of it (`SHAPES`, `test_many_shapes`)."""
    matrix = CrashMatrix(Shape(4, 16, 600, "any", grows=0.1), life_class=BROKEN_GROWTH[name], share=0.3, continued=0.2)

    def run() -> None:
        for seed in (FINDS_GROWTH[name], *range(40)):
            matrix.run(seed, 150)

    with pytest.raises((AssertionError, JournalFailedError, RhmError, OSError)):
        run()


# ---- what the matrix found ----


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
