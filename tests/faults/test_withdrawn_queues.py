"""A queue that is refused because the catalogue cannot be written, killed at every call while its space is given back.

Nobody knows then whether the catalogue's batch is on the disk. Whichever it is, the next start, the kill of that start
and the one after it find a sound store: no message missing, no damage, no journal that no queue has.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable

import pytest

from qstore.store.log_lines import Level
from qstore.store.unfinished import Unfinished
from tests.faults.simulated_disk import Call, SimulatedDisk, takes, takes_or_keeps
from tests.faults.store_simulation import PATH, Shop, names_in
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("tiny_blocks")

JOURNALS = f"{PATH}/rhm/jrnl"
KEPT = [b"kept" * 100, b"too"]


def begun(seed: int) -> Shop:
    """A store with a queue that holds messages."""
    shop = Shop(SimulatedDisk(seed), 1)
    for data in KEPT:
        shop.enqueue("queue-0", data)
    assert shop.flush("queue-0") is None
    return shop


def refuse(seed: int, *, power_loss: bool, code: int = errno.ENOSPC) -> list[SimulatedDisk]:
    """Have a queue refused, because its batch fails. Returns what a kill leaves, at each call, and behind the last."""
    shop, disks = begun(seed), []

    def watch(call: Call) -> None:
        if call.name == "batch":
            shop.disk.fail_at[call.number] = code
        disks.append(call.killed(call.number, power_loss=power_loss))

    shop.disk.watch = watch
    error = shop.make("refused")
    assert 'queue "refused" cannot be created' in str(error)
    assert os.strerror(code) in str(error)
    shop.disk.crash(power_loss=power_loss)
    return [*disks, shop.disk]


def look(disk: SimulatedDisk, seen: Counter[str]) -> None:
    """Start, use and stop the store, twice."""
    for name in ("refused", "another"):
        shop = started(disk, seen)
        if name not in shop.journals:
            assert shop.make(name) is None
        rid = shop.enqueue(name, b"used")
        assert shop.flush(name) is None
        shop.store.append.dequeue(shop.journals[name], rid)
        assert shop.flush(name) is None
        assert shop.store.close()


def started(disk: SimulatedDisk, seen: Counter[str]) -> Shop:
    """The store, as it must be."""
    shop = Shop(disk)
    reported = [line.text for line in shop.lines if line.level in (Level.CRITICAL, Level.WARNING)]
    assert reported == []
    found = dict(shop.found)
    assert found.pop("queue-0") == KEPT
    assert set(found) <= {"refused", "another"}
    assert not any(found.values())
    seen["there" if "refused" in found else "not there"] += 1
    seen["withdrawn"] += any(Unfinished.WITHDRAWN_JOURNAL.value in line.text for line in shop.lines)
    in_use = {each.directory.rsplit("/", 1)[1] for each in shop.store.journals.values()}
    assert set(disk.names(JOURNALS)) == in_use
    for part in ("orphans", "quarantine"):
        assert names_in(shop.store, part) == []
    return shop


@pytest.mark.parametrize(
    ("code", "power_loss"),
    today([(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EIO, False), (errno.EIO, True)], 1),
)
def test_a_kill_at_every_call(code: int, power_loss: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(5):
        for disk in refuse(seed, power_loss=power_loss, code=code):
            look(disk, seen)
    assert seen["there"] > 50, seen
    assert seen["not there"] > 50, seen
    assert seen["withdrawn"] > 10, seen


@pytest.mark.parametrize("power_loss", today([False, True], 1))
def test_a_kill_at_every_call_of_the_start_behind_it(power_loss: bool) -> None:
    seen: Counter[str] = Counter()
    for disk in refuse(1, power_loss=power_loss):
        killed: list[SimulatedDisk] = []
        disk.watch = lambda call, killed=killed: killed.append(call.killed(call.number, power_loss=power_loss))  # type: ignore[misc]
        before = seen["withdrawn"]
        started(disk, seen)
        if seen["withdrawn"] > before:
            for each in killed:
                started(each, seen)
    assert seen["withdrawn"] > 30, seen


@pytest.mark.parametrize("needs_room", [takes, takes_or_keeps])
def test_on_a_full_disk_the_space_is_given_back_at_once(needs_room: Callable[[str], bool]) -> None:
    """From any call on: where nothing can be renamed and synced it may stay until the next start."""
    kept = 0
    for number in range(200):
        shop = begun(number)
        used, names = shop.disk.tree.used, shop.disk.names(JOURNALS)
        begin = shop.disk.calls
        shop.disk.needs_room, shop.disk.full_from = needs_room, begin + number
        error = shop.make("refused")
        if error is None:
            assert number > 10
            break
        assert "No space left on device" in str(error)
        assert "\n" not in str(error)
        kept += shop.disk.tree.used > used + 1024
        assert needs_room is takes_or_keeps or shop.disk.tree.used <= used + 1024, (number, shop.disk.names(JOURNALS))
        assert set(names) <= set(shop.disk.names(JOURNALS))
        assert shop.flush("queue-0") is None or needs_room is takes_or_keeps
        shop.disk.full_from = None
        shop.disk.crash(power_loss=bool(number % 2))
        look(shop.disk, Counter())
    else:
        raise AssertionError("a queue that is never made")
    assert kept <= 1
