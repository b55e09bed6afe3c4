"""Journals that the catalogue does not know: made queues again, kept aside or removed; killed at every step of that."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from qstore.formats.broker_records.topology import decode_queue
from qstore.formats.catalogue import Kind, QueueEntry, decode
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import decode_jinf, encode_jinf
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.errors import StoreDamagedError
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage
from qstore.store.repair.resize import StoreResize
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.simulated_key_value import SimulatedKeyValue
from tests.faults.store_simulation import PATH, Shop, names_in, simulated_environment

pytestmark = pytest.mark.usefixtures("tiny_blocks")

ROOT: Final = f"{PATH}/rhm"
MESSAGES: Final = [b"%d" % number * 40 for number in range(6)]
HELD: Final = "6 messages and 1 open transaction"


def lost(*names: str, clean: bool = True, change: Callable[[SimulatedDisk], None] | None = None) -> SimulatedDisk:
    """A store with three queues, of which the catalogue, and its copy, have lost these."""
    disk = SimulatedDisk()
    shop = Shop(disk, 3)
    for data in MESSAGES:
        for number in range(2):  # the third is empty
            shop.enqueue(f"queue-{number}", data)
        assert shop.flush("queue-0", "queue-1") is None
    branch = shop.enqueues(b"branch", "queue-0", "queue-1")
    assert shop.ask(partial(shop.store.transactions.prepare, b"x", branch, [])) is None
    if clean:
        assert shop.store.close()
    disk.crash(power_loss=False)
    key_value = SimulatedKeyValue.open(disk, f"{ROOT}/catalogue")
    catalogue = Catalogue(key_value)
    for queue in list(catalogue.queues()):
        if decode_queue(queue.record).name in names:
            catalogue.delete_queue(queue.queue_id)
    key_value.close()
    disk.remove(f"{ROOT}/topology")
    disk.sync_directory(ROOT)
    if change is not None:
        change(disk)
    disk.crash(power_loss=False)
    return disk


def damage_info(disk: SimulatedDisk) -> None:
    disk.flip(f"{ROOT}/jrnl/1/JournalData.jinf", 20)


def check(disk: SimulatedDisk, found: dict[str, list[bytes]]) -> None:
    """A start gives these queues, and so does the next one."""
    shop = Shop(disk)
    assert shop.found == found
    assert shop.store.transactions.in_doubt == [b"x"]
    for name in found:
        shop.enqueue(name, b"more")
    assert shop.transaction(b"all", *found) is None
    assert shop.store.close()
    again = Shop(disk)
    assert again.critical() == []
    assert {name: len(kept) for name, kept in again.found.items()} == {
        name: len(kept) + 2 for name, kept in found.items()
    }
    assert names_in(again.store, "orphans") == []


WHOLE: Final = [*MESSAGES, b"branch"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_that_only_its_journal_knows_is_made_again(clean: bool) -> None:
    disk = lost("queue-0", "queue-1", clean=clean)
    shop = Shop(disk)
    reported = [text for text in shop.critical() if "the queue is recreated" in text]
    assert len(reported) == 2
    assert f'{ROOT}/jrnl/1: queue "queue-0" is not in the catalogue, but its journal holds {HELD}' in reported[0]
    assert "bindings" in reported[0]
    assert [queue.record.name for queue in shop.store.topology.queues.values()] == ["queue-0", "queue-1", "queue-2"]
    check(lost("queue-0", "queue-1", clean=clean), {"queue-0": WHOLE, "queue-1": WHOLE, "queue-2": []})


def test_an_unknown_empty_journal_was_being_created() -> None:
    check(lost("queue-2"), {"queue-0": WHOLE, "queue-1": WHOLE})


def test_a_queue_whose_info_file_is_damaged_too_gets_a_name() -> None:
    check(lost("queue-0", change=damage_info), {"queue-1": WHOLE, "queue-2": [], "lost.found.1": WHOLE})


def take_name(disk: SimulatedDisk) -> None:
    """Another queue has the name by now."""
    key_value = SimulatedKeyValue.open(disk, f"{ROOT}/catalogue")
    entries = [decode(key, value) for key, value in key_value.items(Kind.QUEUE.prefix)]
    entry = next(each for each in entries if isinstance(each, QueueEntry) and each.queue_id == 3)
    record = entry.record.replace(b"queue-2", b"queue-0")
    Catalogue(key_value).replace_queue(entry._replace(record=record))
    key_value.close()
    inode = disk.tree.inode(f"{ROOT}/jrnl/3/JournalData.jinf")
    info = decode_jinf(bytes(inode.content))._replace(queue_name="queue-0", queue_record=record)
    inode.content, inode.durable = bytearray(encode_jinf(info)), bytearray(encode_jinf(info))


def test_a_queue_whose_name_is_taken_gets_another_one() -> None:
    check(lost("queue-0", change=take_name), {"queue-1": WHOLE, "queue-0": [], "lost.found.1": WHOLE})


def test_a_store_with_a_lost_queue_is_refused_as_it_is() -> None:
    disk = lost("queue-0", clean=False)
    before = disk.names(f"{ROOT}/jrnl")
    with pytest.raises(StoreDamagedError, match=f'queue "queue-0" is not in the catalogue, .* holds {HELD}') as caught:
        Shop(disk, on_damage=OnDamage.REFUSE)
    assert "\n" not in str(caught.value)
    assert disk.names(f"{ROOT}/jrnl") == before
    assert not disk.is_directory(f"{ROOT}/orphans")


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("change", [None, damage_info, take_name], ids=["as it is", "info damaged", "name taken"])
def test_a_crash_while_a_queue_is_made_again(change: Callable[[SimulatedDisk], None] | None, power_loss: bool) -> None:
    disk = lost("queue-0", change=change)
    rng = random.Random(7)
    visited = 0

    def visit(call: Call) -> None:
        nonlocal visited
        visited += 1
        shop = Shop(call.killed(rng.getrandbits(32), power_loss=power_loss))
        assert sorted(map(len, shop.found.values())) == [0, 7, 7]
        assert WHOLE in shop.found.values()
        assert shop.store.close()

    disk.watch = visit
    Shop(disk)
    assert visited > 5


def copied(disk: SimulatedDisk, source: str, target: str) -> None:
    disk.make_directory(target)
    for name in disk.names(source):
        old = disk.open(f"{source}/{name}")
        new = disk.create(f"{target}/{name}", 0)
        new.write(0, old.read(0, old.size))
        new.sync()
        new.close()
        old.close()
    disk.sync_directory(target)


def test_the_copy_of_a_journal_in_use_is_kept_aside_or_refused_as_configured() -> None:
    """The same queue, the same incarnation: nothing shows which is newer."""

    def change(disk: SimulatedDisk) -> None:
        copied(disk, f"{ROOT}/jrnl/1", f"{ROOT}/jrnl/9")
        disk.sync_directory(f"{ROOT}/jrnl")

    with pytest.raises(StoreDamagedError, match=f'unused second journal of queue "queue-0", with {HELD}'):
        Shop(lost(change=change), on_damage=OnDamage.REFUSE)
    shop = Shop(lost(change=change))
    assert names_in(shop.store, "orphans") == ["9-0"]
    assert shop.found["queue-0"] == WHOLE
    assert any('moved to the directory "orphans"' in text for text in shop.critical())


def test_a_replaced_journal_is_not_damage() -> None:
    """A resize was killed after its switch, before the old journal was moved."""

    def change(disk: SimulatedDisk) -> None:
        environment = simulated_environment(disk, random.Random(1))
        with StoreResize(environment, PATH, "test") as resize:
            resize.resize(resize.plan(["queue-0"], lambda *_: Geometry(10, 4096)))
        disk.rename(f"{ROOT}/resized/1-0", f"{ROOT}/jrnl/1")
        disk.sync_directory(f"{ROOT}/jrnl")
        disk.sync_directory(f"{ROOT}/resized")

    shop = Shop(lost(change=change), on_damage=OnDamage.REFUSE)
    assert shop.critical() == []
    assert shop.found["queue-0"] == WHOLE
    assert [line.text for line in shop.lines if line.level is Level.WARNING and "journal of queue" in line.text] == []
    reported = [line.text for line in shop.lines if line.level is Level.NOTICE and "journal of queue" in line.text]
    assert len(reported) == 1
    assert f'unused second journal of queue "queue-0", with {HELD}' in reported[0]
    assert "1-0" in names_in(shop.store, "resized")
    assert names_in(shop.store, "orphans") == []
