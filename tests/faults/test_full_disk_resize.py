"""A store whose disk runs full at any call of a resize: what was allocated is given back, and nothing is lost.

Which calls, is a matter of the day: see `tests/support/profiles.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from qstore.store.errors import StoreError
from qstore.store.journal.directory import DELETED
from tests.faults.full_disk import assert_told, moments, sizes
from tests.faults.simulated_disk import SimulatedDisk, takes, takes_or_keeps
from tests.faults.store_simulation import PATH, names_in
from tests.faults.test_resize_crashes import Left, geometries, resize
from tests.support.profiles import is_nightly

pytestmark = pytest.mark.usefixtures("tiny_blocks")

JOURNALS = f"{PATH}/rhm/jrnl"


def outcome(left: Left, disk: SimulatedDisk) -> str:
    """What a failed resize left: nothing; marks without journals; or journals that have changed places, or may have."""
    before, now = sizes(left.disk, PATH), sizes(disk, PATH)
    if now == before:
        return "unchanged"
    more = {path: size for path, size in now.items() if before.get(path) != size}
    return "marks" if before.items() <= now.items() and not any(more.values()) else "begun"


def marked(disk: SimulatedDisk) -> list[str]:
    """The journals that are marked as deleted, and still have files."""
    names = {name: disk.names(f"{JOURNALS}/{name}") for name in disk.names(JOURNALS)}
    return [name for name, found in names.items() if DELETED in found and len(found) > 1]


@pytest.mark.parametrize("seed", [4, 7])
@pytest.mark.parametrize("needs_room", [takes, takes_or_keeps])
def test_a_resize_on_a_disk_that_runs_full(needs_room: Callable[[str], bool], seed: int) -> None:
    seen: Counter[str] = Counter()
    left = Left(seed)
    old = geometries(left.look(left.disk.copy(seed)))
    planned = resize(left.disk.copy(seed), seed)
    for number in moments(left.disk.copy(seed), lambda disk: resize(disk, seed), days=10):
        disk = left.disk.copy(number)
        disk.needs_room, disk.full_from = needs_room, number
        try:
            resize(disk, seed)
        except StoreError as error:
            told = assert_told(error, PATH)
        else:
            break
        found = outcome(left, disk)
        assert found != "begun" or "had been switched before" in told
        seen[found] += 1
        assert not disk.held
        assert len(marked(disk)) <= 1
        disk.full_from = None
        disk.crash(power_loss=bool(number % 2))
        if number % 3:
            resize(disk, seed)
            disk.crash(power_loss=True)
        life = left.look(disk, orphans=1)
        assert names_in(life.store, "orphans") == [] or left.model.left
        now = geometries(life)
        assert all(number % 3 or size in (old[name], planned.get(name)) for name, size in now.items())
    assert seen["unchanged"] > 0, seen
    assert needs_room is takes_or_keeps or not seen["marks"], seen
    if is_nightly():
        assert seen["unchanged"] > 100, seen
        assert seen["begun"] > 10, seen
        assert bool(seen["marks"]) is (needs_room is takes_or_keeps), seen
