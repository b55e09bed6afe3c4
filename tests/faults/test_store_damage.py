"""A store that was damaged while closed: what can be read is kept, or the store is refused unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import OnDamage
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import PATH, Shop, TinyParameters, simulated_environment
from tests.support.profiles import is_due

pytestmark = pytest.mark.usefixtures("tiny_blocks")


def image(disk: SimulatedDisk, path: str = "/") -> dict[str, bytes]:
    """All files below a directory."""
    found: dict[str, bytes] = {}
    for name in disk.names(path):
        below = f"{path.rstrip('/')}/{name}"
        if disk.is_directory(below):
            found[below] = b""
            found.update(image(disk, below))
        else:
            file = disk.open(below)
            found[below] = file.read(0, file.size)
            file.close()
    return found


def stocked(clean: bool = True) -> SimulatedDisk:
    """A store with two queues of twelve messages, and a branch in doubt over both; another one was aborted."""
    disk = SimulatedDisk()
    shop = Shop(disk, 2)
    for number in range(12):
        for name in ("queue-0", "queue-1"):
            shop.enqueue(name, b"%d" % number * 40)
            assert shop.flush(name) is None
    enqueues = shop.enqueues(b"branch", "queue-0", "queue-1")
    transactions = shop.store.transactions
    for xid in (b"x", b"y"):
        assert shop.ask(partial(transactions.prepare, xid, enqueues, [])) is None
    assert shop.ask(partial(transactions.abort_prepared, b"y")) is None
    assert shop.flush("queue-0", "queue-1") is None
    if clean:
        assert shop.store.close()
    disk.crash(power_loss=False)
    return disk


def damage_journal(disk: SimulatedDisk) -> None:
    disk.flip(f"{PATH}/rhm/jrnl/1/JournalData.0000.jdat", 512 + 512 * 3 + 60)


def damage_list(disk: SimulatedDisk) -> None:
    disk.flip(f"{PATH}/rhm/tpl/tpl.0000.jdat", 512 + 40)


def lose_journal(disk: SimulatedDisk) -> None:
    for name in disk.names(f"{PATH}/rhm/jrnl/1"):
        disk.remove(f"{PATH}/rhm/jrnl/1/{name}")
    disk.remove_directory(f"{PATH}/rhm/jrnl/1")
    disk.sync_directory(f"{PATH}/rhm/jrnl")
    disk.crash(power_loss=False)


def lose_list(disk: SimulatedDisk) -> None:
    for name in disk.names(f"{PATH}/rhm/tpl"):
        disk.remove(f"{PATH}/rhm/tpl/{name}")
    disk.remove_directory(f"{PATH}/rhm/tpl")
    disk.sync_directory(f"{PATH}/rhm")
    disk.crash(power_loss=False)


DAMAGES = [damage_journal, damage_list, lose_journal, lose_list]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_that_is_refused_stays_as_it_is(damage: Callable[[SimulatedDisk], None]) -> None:
    disk = stocked()
    damage(disk)
    before = image(disk)
    with pytest.raises(StoreDamagedError, match="on-damage is refuse") as caught:
        Shop(disk, on_damage=OnDamage.REFUSE)
    assert "\n" not in str(caught.value)
    assert image(disk) == before


def check_damaged(damage: Callable[[SimulatedDisk], None], shop: Shop) -> None:
    """The rest of a damaged store is there, and it works on."""
    whole = [b"%d" % number * 40 for number in range(12)]
    expected = {
        damage_journal: [*whole[:3], *whole[4:]],
        lose_journal: [],
    }.get(damage, whole)
    branch = [] if damage is lose_list else [b"branch"]
    if damage is damage_list:
        branch = shop.found["queue-1"][12:]  # the prepare record itself may be what is damaged
        assert branch in ([], [b"branch"])
    assert shop.found["queue-1"] == [*whole, *branch]
    assert shop.found["queue-0"] == [*expected, *(branch if damage is not lose_journal else [])]
    assert shop.store.transactions.in_doubt == ([b"x"] if branch else [])
    shop.enqueue("queue-0", b"more")
    assert shop.transaction(b"both", "queue-0", "queue-1") is None
    assert shop.store.close()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_the_readable_rest_of_a_damaged_store_is_kept(damage: Callable[[SimulatedDisk], None], clean: bool) -> None:
    disk = stocked(clean)
    damage(disk)
    before = image(disk)
    shop = Shop(disk)
    assert shop.critical() != []
    aside = {name: content for name, content in image(disk).items() if "/quarantine/" in name}
    if damage is damage_journal:
        old = {name: content for name, content in before.items() if "/jrnl/1/" in name}
        assert {
            name.replace("/quarantine/1-0/", "/jrnl/1/"): content for name, content in aside.items() if content
        } == old
    assert bool(aside) == (damage in (damage_journal, damage_list))
    check_damaged(damage, shop)
    again = Shop(disk)
    assert again.critical() == []
    assert again.found["queue-1"][-1] == b"both"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_crash_while_damage_is_set_aside_loses_nothing_more(damage: Callable[[SimulatedDisk], None]) -> None:
    disk = stocked()
    damage(disk)
    rng = random.Random(5)
    visited = 0
    due = is_due(3)

    def visit(call: Call) -> None:
        nonlocal visited
        for power_loss in (False, True) if due() else ():
            left = call.killed(rng.getrandbits(32), power_loss=power_loss)
            check_damaged(damage, Shop(left))
            visited += 1

    disk.watch = visit
    Shop(disk)
    assert visited > 0


def test_a_catalogue_of_another_store_is_refused_in_one_line() -> None:
    disk, other = stocked(), SimulatedDisk()
    environment = simulated_environment(other, random.Random(99))
    MessageStore.open(environment, PATH, TinyParameters(), "test", log=lambda _: None).close()
    folder = disk.tree.folder(f"{PATH}/rhm/catalogue")
    folder.database = other.tree.folder(f"{PATH}/rhm/catalogue").database
    with pytest.raises(StoreError, match="the catalogue is that of another store"):
        Shop(disk)


def test_a_damaged_catalogue_is_refused_in_one_line() -> None:
    disk = stocked()
    damage_entry(disk)
    before = image(disk)
    with pytest.raises(StoreDamagedError, match="on-damage is refuse: see qstore-check") as caught:
        Shop(disk, on_damage=OnDamage.REFUSE)
    assert "\n" not in str(caught.value)
    assert image(disk) == before


def damage_entry(disk: SimulatedDisk) -> None:
    folder = disk.tree.folder(f"{PATH}/rhm/catalogue")
    assert folder.database is not None
    key = next(key for key in folder.database if key.startswith(b"q"))
    folder.database[key] = b"\xff" + folder.database[key][1:]
