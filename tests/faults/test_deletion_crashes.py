"""A deleted queue whose journal has many files: they go few at a time, and a kill at any step leaves no trace of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import patch

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.store.log_lines import Level
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import PATH, Shop, names_in

MOST = 3
FILES = 10
JOURNAL = f"{PATH}/rhm/jrnl/2"


@pytest.fixture(autouse=True)
def few_at_a_time() -> Iterator[None]:
    with (
        patch("qstore.store.live.growth.MAX_REMOVED", MOST),
        patch("qstore.store.live.growth.MAX_REMOVED", MOST),
        patch("qstore.store.start.apply.MAX_REMOVED", MOST),
    ):
        yield


def filled() -> tuple[SimulatedDisk, Shop]:
    disk = SimulatedDisk()
    shop = Shop(disk, 1)
    assert shop.make("deep", Geometry(FILES, 4096)) is None
    for name in ("queue-0", "deep"):
        shop.enqueue(name, name.encode())
    assert shop.flush("queue-0", "deep") is None
    return disk, shop


def delete(shop: Shop) -> None:
    deleted: list[Exception | None] = []
    shop.store.changes.delete_queue(shop.journals["deep"], lambda _, error: deleted.append(error))
    assert shop.wait(deleted) is None


def look(shop: Shop) -> None:
    shop.store.look()
    for _ in range(20):
        shop.store.collect()


def files_of(shop: Shop) -> int:
    return len(shop.disk.names(JOURNAL)) if shop.disk.is_directory(JOURNAL) else 0


def removed_in(shop: Shop) -> list[int]:
    """How many files were left after each look."""
    counts = [files_of(shop)]
    while counts[-1]:
        look(shop)
        counts.append(files_of(shop))
        assert len(counts) < 40
    return counts


def is_sound(shop: Shop, *, may_have: bool) -> None:
    reported = [line.text for line in shop.lines if line.level in (Level.CRITICAL, Level.WARNING)]
    assert reported == []
    assert names_in(shop.store, "orphans") == []
    assert shop.found["queue-0"] == [b"queue-0"]
    if "deep" in shop.found:
        assert may_have
        assert shop.found["deep"] == [b"deep"]


def test_few_files_go_at_each_look() -> None:
    disk, shop = filled()
    delete(shop)
    counts = removed_in(shop)
    assert counts[0] > FILES
    assert max(before - after for before, after in pairwise(counts)) <= MOST + 1  # and the mark
    assert shop.make("deep") is None
    assert shop.store.close()
    disk.crash(power_loss=True)
    again = Shop(disk)
    assert again.found == {"queue-0": [b"queue-0"], "deep": []}
    assert names_in(again.store, "jrnl") == ["1", "3"]


@pytest.mark.parametrize("clean", [True, False])
def test_leftovers_of_a_deletion_are_removed_after_the_next_start(clean: bool) -> None:
    disk, shop = filled()
    delete(shop)
    look(shop)
    left = files_of(shop)
    assert left > MOST
    if clean:
        with patch("qstore.store.live.growth.CLOSE_NS", 0):
            assert shop.store.close()
        assert files_of(shop) == left
    disk.crash(power_loss=True)
    again = Shop(disk)
    assert files_of(again) > MOST  # the start did not wait for that
    is_sound(again, may_have=False)
    counts = removed_in(again)
    assert max(before - after for before, after in pairwise(counts)) <= MOST + 1
    assert again.store.close()
    is_sound(Shop(disk), may_have=False)


def test_a_store_that_is_closed_removes_it() -> None:
    disk, shop = filled()
    delete(shop)
    assert files_of(shop) > MOST
    assert shop.store.close()
    assert not disk.is_directory(JOURNAL)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_kill_at_any_step(power_loss: bool) -> None:
    disk, shop = filled()
    deleted: list[Exception | None] = []
    killed: list[tuple[SimulatedDisk, bool, str]] = []

    def visit(call: Call) -> None:
        killed.append((call.killed(len(killed), power_loss=power_loss), bool(deleted), f"{call.name} {call.path}"))

    disk.watch = visit
    shop.store.changes.delete_queue(shop.journals["deep"], lambda _, error: deleted.append(error))
    shop.wait(deleted)
    removed_in(shop)
    disk.watch = None
    assert sum(name.startswith(f"remove {JOURNAL}/") for _, _, name in killed) > FILES
    for copy, is_deleted, name in killed:
        again = Shop(copy)
        try:
            is_sound(again, may_have=not is_deleted)
            if "deep" not in again.found:
                removed_in(again)
                assert names_in(again.store, "jrnl") == ["1"]
            random.Random(name).choice((again.store.close, lambda: None))()
            copy.crash(power_loss=power_loss)
            is_sound(Shop(copy), may_have=not is_deleted)
        except AssertionError as error:
            error.add_note(f"killed in {name}")
            raise
