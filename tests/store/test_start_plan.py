"""The plan of a start for each journal of a store, before it changes anything."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from unittest.mock import patch

import pytest

from qstore.formats.catalogue import QueueEntry
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import Damage, DamageKind
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.journal.directory import DELETED
from qstore.store.parameters import OnDamage
from qstore.store.recovery.close_record import read_closing
from qstore.store.start.plan import Need, PlannedJournal, StartPlan, plan_queue, plan_start
from qstore.store.unfinished import MAKING, NEW_LIST
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.faults.store_simulation import PATH, Shop, names_in, simulated_environment

pytestmark = pytest.mark.usefixtures("tiny_blocks")

JOURNAL, OTHER, LIST = f"{PATH}/rhm/jrnl/1", f"{PATH}/rhm/jrnl/2", f"{PATH}/rhm/tpl"


def stocked(*, is_clean: bool = True) -> SimulatedDisk:
    """A store with two queues of twelve messages."""
    disk = SimulatedDisk()
    shop = Shop(disk, 2)
    for number in range(12):
        for name in ("queue-0", "queue-1"):
            shop.enqueue(name, b"%d" % number * 40)
            assert shop.flush(name) is None
    if is_clean:
        assert shop.store.close()
    disk.crash(power_loss=False)
    return disk


def entries_of(disk: SimulatedDisk) -> list[QueueEntry]:
    key_value = SimulatedKeyValue.open(disk, f"{PATH}/rhm/catalogue")
    entries = list(Catalogue(key_value).queues())
    key_value.close()
    return entries


def plan_of(disk: SimulatedDisk) -> StartPlan:
    """The plan; that nothing was done to the disk for it."""
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), PATH, "test")
    entries, mark = entries_of(disk), directory.read_mark()
    calls: list[str] = []
    disk.watch = lambda call: calls.append(call.name)
    plan = plan_start(disk, directory, entries, *read_closing(disk, directory.root, mark))
    disk.watch = None
    assert calls == []
    return plan


def journals_of(plan: StartPlan) -> list[PlannedJournal]:
    return [plan.prepared_list, *(each.journal for each in plan.queues)]


def remove(disk: SimulatedDisk, directory: str, *, only: str = "") -> None:
    for name in disk.names(directory):
        if name.endswith(only):
            disk.remove(f"{directory}/{name}")
    if not only:
        disk.remove_directory(directory)


def damage_journal(disk: SimulatedDisk) -> None:
    disk.flip(f"{JOURNAL}/JournalData.0000.jdat", 512 + 512 * 3 + 60)


def lose_journal(disk: SimulatedDisk) -> None:
    remove(disk, JOURNAL)


def withdraw_journal(disk: SimulatedDisk) -> None:
    disk.create(f"{JOURNAL}/{DELETED}", 0).close()
    remove(disk, JOURNAL, only=".jinf")


def lose_list(disk: SimulatedDisk) -> None:
    remove(disk, LIST)


def leave_new_list(disk: SimulatedDisk) -> None:
    disk.rename(LIST, f"{PATH}/rhm/{NEW_LIST}")


def nothing(_disk: SimulatedDisk) -> None:
    """A sound store."""


@pytest.mark.parametrize(
    ("happened", "list_needs", "queue_needs"),
    [
        (nothing, Need.RESUME, Need.RESUME),
        (damage_journal, Need.RESUME, Need.REBUILD),
        (lose_journal, Need.RESUME, Need.MAKE),
        (withdraw_journal, Need.RESUME, Need.REPLACE),
        (lose_list, Need.MAKE, Need.RESUME),
        (leave_new_list, Need.FINISH, Need.RESUME),
    ],
)
def test_plan_states_the_need_of_each_journal(
    happened: Callable[[SimulatedDisk], None], list_needs: Need, queue_needs: Need
) -> None:
    disk = stocked()
    happened(disk)
    plan = plan_of(disk)
    assert plan.was_clean
    assert plan.damage == ()
    assert plan.prepared_list.need is list_needs
    assert [(each.record.name, each.journal.need) for each in plan.queues] == [
        ("queue-0", queue_needs),
        ("queue-1", Need.RESUME),
    ]
    for planned in journals_of(plan):
        assert (planned.found is not None) == (planned.need in (Need.RESUME, Need.REBUILD))
    plan.close()
    assert disk.open_now == 0


@pytest.mark.parametrize("happened", [damage_journal, lose_journal, withdraw_journal, lose_list, leave_new_list])
def test_applied_plan_leaves_nothing_to_do(happened: Callable[[SimulatedDisk], None]) -> None:
    disk = stocked()
    happened(disk)
    assert Shop(disk).store.close()
    disk.crash(power_loss=False)
    plan = plan_of(disk)
    assert [each.need for each in journals_of(plan)] == [Need.RESUME] * 3
    plan.close()


def test_a_queue_that_the_catalogue_lost_is_damage_of_the_store() -> None:
    disk = stocked()
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), PATH, "test")
    (kept, _), mark = entries_of(disk), directory.read_mark()
    plan = plan_start(disk, directory, [kept], *read_closing(disk, directory.root, mark))
    assert [each.kind for each in plan.damage] == [DamageKind.QUEUE_GONE]
    plan.close()


def test_a_plan_that_cannot_be_made_leaves_no_file_open() -> None:
    disk = stocked()
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), PATH, "test")
    (first, second), closed = entries_of(disk), read_closing(disk, directory.root, directory.read_mark())
    with pytest.raises(StoreDamagedError, match=f"queue {second.queue_id}: "):
        plan_start(disk, directory, [first, second._replace(record=b"\xff")], *closed)
    assert disk.open_now == 0


def test_a_sound_journal_of_another_name_is_rebuilt() -> None:
    disk = stocked()
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), PATH, "test")
    entry, _ = entries_of(disk)
    closing = plan_of(disk).closing
    renamed = Damage(JOURNAL, None, None, DamageKind.UNKNOWN_QUEUE_UNNAMED, renamed="lost.found.1")
    planned = plan_queue(disk, directory, entry, closing, renamed)
    assert planned.journal.need is Need.REBUILD
    assert planned.journal.found is not None
    assert planned.journal.found.damage == [renamed]
    planned.journal.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("happened", [nothing, damage_journal, lose_journal, withdraw_journal, lose_list])
def test_a_start_that_fails_at_any_call_leaves_no_file_open(
    happened: Callable[[SimulatedDisk], None], *, is_clean: bool
) -> None:
    stocked_disk = stocked(is_clean=is_clean)
    happened(stocked_disk)
    sound, calls, failed = stocked_disk.copy(0), list[int](), 0
    sound.watch = lambda call: calls.append(call.number)
    Shop(sound)
    for number in calls:
        disk = stocked_disk.copy(0)
        disk.fail_at[number] = errno.EIO
        try:
            Shop(disk)
        except StoreError:
            failed += 1
            assert disk.open_now == 0
    assert failed > 2


@pytest.mark.parametrize("power_loss", [False, True])
def test_killed_rebuild_loses_nothing(*, power_loss: bool) -> None:
    """The next start rebuilds the journal once more; it plans with the incarnations that it finds, not with its own."""
    disk, visited = stocked(), 0
    damage_journal(disk)
    expected = Shop(disk.copy(0)).found

    def visit(call: Call) -> None:
        nonlocal visited
        visited += 1
        shop = Shop(call.killed(call.number, power_loss=power_loss))
        assert shop.found == expected
        assert [text for text in shop.critical() if "kept aside" in text] == []
        assert names_in(shop.store, "orphans") == []

    disk.watch = visit
    Shop(disk)
    assert visited > 20


def test_leftovers_are_in_the_plan() -> None:
    disk = stocked()
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), PATH, "test")
    entries, mark = entries_of(disk), directory.read_mark()
    lost_path = directory.journal(entries[1].journal_id)
    disk.make_directory(f"{PATH}/rhm/jrnl/strange")
    disk.sync_directory(f"{PATH}/rhm/jrnl")
    plan = plan_start(disk, directory, entries[:1], *read_closing(disk, directory.root, mark))
    assert [(each.record.name, each.journal.path, each.journal.need) for each in plan.lost] == [
        ("queue-1", lost_path, Need.RESUME)
    ]
    assert plan.leftovers.removed == [f"{PATH}/rhm/jrnl/strange"]
    assert plan.leftovers.highest_rid > 0
    assert [each.kind for each in plan.all_damage] == [DamageKind.QUEUE_GONE, DamageKind.UNKNOWN_QUEUE]
    plan.close()
    assert disk.open_now == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_store_that_is_refused_stays_as_it_is(*, is_lost: bool) -> None:
    """Even what a start would do before it finds the damage: here, give the first queue another journal."""
    disk = stocked(is_clean=False)
    withdraw_journal(disk)
    if is_lost:
        remove(disk, OTHER)
    else:
        disk.flip(f"{OTHER}/JournalData.0000.jdat", 512 + 512 * 3 + 60)
    before = {name: disk.names(f"{PATH}/rhm/jrnl/{name}") for name in disk.names(f"{PATH}/rhm/jrnl")}
    with pytest.raises(StoreDamagedError, match="on-damage is refuse"):
        Shop(disk, on_damage=OnDamage.REFUSE)
    assert {name: disk.names(f"{PATH}/rhm/jrnl/{name}") for name in disk.names(f"{PATH}/rhm/jrnl")} == before


def test_a_journal_begun_in_place_of_a_lost_one_is_not_a_leftover() -> None:
    disk = stocked()
    lose_journal(disk)
    disk.make_directory(JOURNAL + MAKING)
    disk.sync_directory(f"{PATH}/rhm/jrnl")
    plan = plan_of(disk)
    assert plan.leftovers.removed == plan.leftovers.aside == []
    plan.close()
    assert Shop(disk).found["queue-0"] == []
    assert not disk.is_directory(JOURNAL + MAKING)


def test_a_start_decodes_the_record_of_each_queue_once() -> None:
    shop = Shop(SimulatedDisk(1))
    assert shop.make("first") is None
    assert shop.store.close()
    shop.disk.crash(power_loss=False)
    with patch("qstore.store.start.plan.decode_queue", side_effect=AssertionError):
        assert Shop(shop.disk).found == {"first": []}
