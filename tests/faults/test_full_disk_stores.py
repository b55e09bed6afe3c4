"""A disk that runs full at any call of a start, a conversion or a copy: room is given back, and nothing is lost.

`tests/support/profiles.py` says at which of the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from qstore.store.errors import StoreError
from qstore.store.journal.directory import DELETED
from qstore.store.unfinished import CONVERTED
from tests.faults.full_disk import assert_reported, moments, sizes
from tests.faults.simulated_disk import SimulatedDisk, takes, takes_or_keeps
from tests.faults.snapshot_life import begin, check_copy, check_source, copy_it
from tests.faults.store_simulation import PATH, Shop
from tests.faults.test_conversion_crashes import STORE, assert_kept, assert_whole, old_disk, started
from tests.support.profiles import is_nightly

pytestmark = pytest.mark.usefixtures("tiny_blocks")

ROOT: Final = f"{PATH}/rhm"
KINDS: Final = [takes, takes_or_keeps]


# ---- conversion ----


@pytest.mark.parametrize("needs_room", KINDS)
def test_a_conversion(needs_room: Callable[[str], bool]) -> None:
    seen: Counter[str] = Counter()
    begun = old_disk().calls
    for number in moments(old_disk(), started, days=4):
        disk = old_disk(number)
        before = sizes(disk, STORE)
        disk.needs_room, disk.full_from = needs_room, begun + number
        try:
            started(disk)
        except (StoreError, OSError) as error:
            reported = error
        else:
            break
        if isinstance(reported, StoreError):
            assert_reported(reported, STORE)
        disk.full_from = None
        name = assert_kept(disk)
        if name == "rhm":
            assert sizes(disk, STORE) == before, (number, reported)
        seen[name] += 1
        disk.crash(power_loss=bool(number % 2))
        started(disk)
        assert_whole(disk)
    assert seen["rhm"] > 0, seen
    if is_nightly():
        assert seen["rhm"] > 100, seen
        assert seen[CONVERTED] > 10, seen


# ---- copies of snapshots ----


@pytest.mark.parametrize("needs_room", KINDS)
def test_a_copy(needs_room: Callable[[str], bool]) -> None:
    life = begin(3, 60)
    snapshot = life.take()
    life.quiesce()
    assert not snapshot.overtaken
    disk = life.disk
    before = sizes(disk, "/")
    disk.needs_room = needs_room
    for number in range(1000):
        disk.full_from = disk.calls + number
        try:
            copy_it(life, snapshot)
        except StoreError as error:
            assert_reported(error, "/")
        else:
            break
        assert sizes(disk, "/") == before, number
    else:
        raise AssertionError("a copy without an end")
    assert number > 50
    disk.full_from = None
    check_copy(disk, life.at_cut)
    life.close()
    check_source(disk, life.model, must_be_clean=True)


# ---- starts ----


def unused(disk: SimulatedDisk) -> list[str]:
    """Journals, with their files, that no queue has yet, as their mark says."""
    names = {name: disk.names(f"{ROOT}/jrnl/{name}") for name in disk.names(f"{ROOT}/jrnl")}
    return [name for name, found in names.items() if DELETED in found and len(found) > 1]


def damaged(*, catalogue: bool) -> tuple[SimulatedDisk, dict[str, list[bytes]]]:
    """A store of which a start has to build journals anew, and, if asked to, the catalogue. Returns what is in it."""
    disk = SimulatedDisk(1)
    shop = Shop(disk, 3)
    for number in range(8):
        for queue in range(2):
            shop.enqueue(f"queue-{queue}", b"%d" % number * 90)
        assert shop.flush("queue-0", "queue-1") is None
    assert shop.store.close()
    disk.crash(power_loss=False)
    for journal in (1, 2):
        disk.flip(f"{ROOT}/jrnl/{journal}/JournalData.0000.jdat", 0x200 + 512)
    for name in disk.names(f"{ROOT}/jrnl/3"):
        disk.remove(f"{ROOT}/jrnl/3/{name}")
    disk.remove_directory(f"{ROOT}/jrnl/3")
    disk.sync_directory(f"{ROOT}/jrnl")
    disk.flip(f"{ROOT}/tpl/tpl.0000.jdat", 4)
    if catalogue:
        disk.remove(f"{ROOT}/catalogue/CURRENT")
        disk.sync_directory(f"{ROOT}/catalogue")
    disk.crash(power_loss=False)
    return disk, Shop(disk.copy(1)).found


@pytest.mark.parametrize("catalogue", [False, True], ids=["journals", "catalogue too"])
@pytest.mark.parametrize("needs_room", KINDS)
def test_a_start_that_rebuilds(needs_room: Callable[[str], bool], catalogue: bool) -> None:
    seen: Counter[str] = Counter()
    original, found = damaged(catalogue=catalogue)
    assert sum(map(len, found.values())) > 8
    before = sizes(original, PATH)
    for number in moments(original.copy(0), Shop, days=6):
        disk = original.copy(number)
        disk.needs_room, disk.full_from = needs_room, number
        try:
            Shop(disk)
        except StoreError as error:
            assert_reported(error, PATH)
        else:
            break
        assert not disk.held
        disk.full_from = None
        seen["unchanged" if sizes(disk, PATH) == before else "begun"] += 1
        names = disk.names(ROOT)
        assert not any(f"{name}.new" in names and name in names for name in ("catalogue", "tpl")), number
        seen["marked"] += len(unused(disk))
        assert len(unused(disk)) <= 1
        disk.crash(power_loss=bool(number % 2))
        shop = Shop(disk)
        assert shop.found == found, number
        assert shop.store.close()
        again = Shop(disk)
        assert again.found == found
        assert again.critical() == []
    assert seen["begun"] > 0, seen
    if is_nightly():
        assert seen["begun"] > 50, seen
        assert seen["unchanged"] > (0 if catalogue else 30), seen
        assert seen["marked"] > 0, "a batch that failed"
