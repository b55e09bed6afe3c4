"""Pinned journals on a simulated disk: what is pinned stays, and a pin never has a record refused."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.store.journal.write.flushes import Step
from qstore.store.journal.write.space import Cut
from tests.faults.journal_simulation import JournalCrashes, JournalLife, Shape, make
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.profiles import today


class PinningLife(JournalLife):
    """Pins the journal at random, and looks whether what is pinned stays as it is."""

    def __init__(self, disk: SimulatedDisk, seed: int = 0) -> None:
        super().__init__(disk, seed)
        self.chance = random.Random(seed)
        self.pinned: list[tuple[Cut, bytes]] = []

    def begin(self) -> Step | None:
        self.look()
        step = super().begin()
        self.look()
        return step

    def finish(self) -> None:
        super().finish()
        self.look()
        if self.chance.random() < 0.15 and len(self.pinned) < 3:
            cut = self.writer.cut()
            self.pinned.append((cut, self._read(cut)))
            self.counts["pinned"] += 1
        elif self.pinned and self.chance.random() < 0.05:
            self.pinned.pop(self.chance.randrange(len(self.pinned)))[0].pin.holds = False

    def look(self) -> None:
        """Compare."""
        for cut, content in list(self.pinned):
            if not cut.pin.holds:
                self.pinned.remove((cut, content))
                self.counts["broken"] += 1
            else:
                assert self._read(cut) == content, f"{cut}: overwritten though it was pinned"

    def _read(self, cut: Cut) -> bytes:
        start = cut.first * self.geometry.data_size // 128
        return self.storage.read(start, (cut.end - start) * 128) if cut.end > start else b""


def crashes_of(shape: Shape) -> JournalCrashes:
    """Histories of pinned journals that die."""
    crashes = JournalCrashes(shape=shape, life_class=PinningLife, share=0.1)
    crashes.run_all(today(range(8), 4))
    return crashes


@pytest.mark.parametrize(
    "shape",
    [Shape(4, 16, 300, "any"), Shape(4, 64, 1200, "stuck"), Shape(8, 16, 4000, "last"), Shape(3, 48, 700, "any", 0.6)],
)
def test_pinned_files_stay_until_the_pin_is_broken_and_crashes_change_nothing(shape: Shape) -> None:
    seen = crashes_of(shape).counts
    assert seen["pinned"] > 20
    assert seen["broken"] > 5
    assert seen["laps"] > 2
    assert seen["kills"] > 40


@pytest.mark.parametrize("order", ["first", "any", "stuck"])
def test_a_pin_never_has_a_removal_refused(order: str) -> None:
    refused: Counter[str] = Counter()
    pinned = broken = 0
    for life_class in (JournalLife, PinningLife):
        for seed in today(range(12), 4):
            life = traffic(life_class, seed, order)
            pinned += life.counts["pinned"]
            broken += life.counts["broken"]
            for kind, count in life.refused.items():
                refused[f"{life_class.__name__} {kind}"] += count
    assert pinned > 30
    assert broken > 15
    assert [kind for kind in refused if "dequeue" in kind or "commit" in kind or "abort" in kind] == []
    assert refused["PinningLife enqueue"] <= refused["JournalLife enqueue"] * 1.1 + 20, refused


def traffic(life_class: type[JournalLife], seed: int, order: str) -> JournalLife:
    """A ring at its threshold, round and round."""
    disk, rng = SimulatedDisk(seed), random.Random(seed)
    make(disk, Geometry(8, 64 * 512))
    life = life_class(disk, seed)
    rid = 0
    for _ in range(1500):
        rid += 1
        filled = life.enqueue(rid, rng.randbytes(rng.randint(0, 900))) and rng.random() < 0.6
        free = life.free
        if free and not filled:
            rid += 1
            life.dequeue(
                rid, free[{"first": 0, "any": rng.randrange(len(free)), "stuck": min(1, len(free) - 1)}[order]]
            )
        if rng.random() < 0.2:
            life.drain()
    return life
