"""The catalogue's second copy under crashes, and the catalogue restored from it whatever became of it.

A store makes, binds and deletes, with a copy that is soon full and written anew, and is killed at each call that
changes the disk. What is left is opened as it is: no false damage. And it is opened after its catalogue was emptied,
put back to an earlier state, removed, or damaged in an entry: everything that was acknowledged is there, and it is
told. Restoring is killed too. `tests/support/profiles.py` says which histories are run.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from typing import Final
from unittest.mock import patch

import pytest

from qstore.formats.catalogue import Kind
from qstore.store.catalogue.opening import MirroredKeyValue
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.parameters import OnDamage
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.simulator import BrokenPromiseError
from tests.faults.store_simulation import (
    PATH,
    Model,
    Shop,
    StoreLife,
    TinyParameters,
    simulated_environment,
    tiny_rid_blocks,
)
from tests.support.profiles import is_nightly, seeds_of_the_day

CATALOGUE: Final = f"{PATH}/rhm/catalogue"
COPY: Final = f"{PATH}/rhm/topology"
Database = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    """Little room: a new copy is written after every few changes. Every queue has a journal from the stock."""
    with (
        tiny_rid_blocks(),
        patch("qstore.store.catalogue.store_directory.MIN_ROOM", 1024),
        patch("qstore.store.live.journal_stock.SINGLY", 0),
        patch("qstore.store.live.journal_stock.MAX_MADE", 3),
        patch("qstore.store.live.journal_stock._QUIET_LOOKS", 2),
    ):
        yield


def database(disk: SimulatedDisk) -> Database | None:
    """What the catalogue holds, if there is one."""
    if not disk.is_directory(CATALOGUE):
        return None
    return disk.tree.folder(CATALOGUE).database


def lose_catalogue(disk: SimulatedDisk) -> None:
    disk.remove(f"{CATALOGUE}/CURRENT")
    disk.remove_directory(CATALOGUE)
    disk.sync_directory(f"{PATH}/rhm")


def damage(disk: SimulatedDisk, rng: random.Random, older: Database) -> bool:
    """Damage the catalogue in some way. Returns whether anything was changed."""
    content = database(disk)
    if content is None or not content or not disk.is_file(COPY):
        return False
    way = rng.choice(("gone", "empty", "older", "flipped"))
    if way == "gone":
        lose_catalogue(disk)
    elif way == "older":
        if batch_of(older) >= batch_of(content) - 1:  # the last batch may be one that nobody was told of
            return False
        content.clear()
        content.update(older)
    elif way == "empty":
        content.clear()
    else:
        key = rng.choice(sorted(content))
        content[key] = bytes([content[key][0] ^ 1]) + content[key][1:]
    disk.crash(power_loss=False)
    return True


class Run:
    """One store with much topology, killed at each call."""

    def __init__(self, seed: int, share: float) -> None:
        self.rng, self.share = random.Random(seed), share
        self.disk, self.model = SimulatedDisk(seed), Model()
        self.life: StoreLife | None = None
        self.older: Database = {}
        self.killed = self.restored = self.killed_restoring = 0

    def lives(self, count: int, steps: int) -> None:
        for _ in range(count):
            self.disk.watch = self.visit
            self.life = None
            self.life = StoreLife(self.disk, self.model, self.rng, must_be_clean=self.model.is_closed)
            for _ in range(steps):
                life = self.life
                deeds = (life.create_queue, life.delete_queue, life.change_topology, life.change_topology, life.enqueue)
                self.rng.choice((*deeds, life.flush, life.store.look, life.store.collect, life.quiesce))()
            self.life.close()
            self.model = self.life.model
            self.disk.watch = None
            self.disk.crash(power_loss=self.rng.random() < 0.5)

    def visit(self, call: Call) -> None:
        chance = random.Random(self.rng.getrandbits(64))
        if chance.random() >= self.share:
            return
        if chance.random() < 0.1:
            self.older = dict(database(self.disk) or {})
        if self.life is not None:
            self.life.highest()
        model = self.model if self.life is None else self.life.model
        seed, power_loss = chance.getrandbits(32), chance.random() < 0.7
        self.killed += 1
        try:
            StoreLife(call.killed(seed, power_loss=power_loss), model, chance)
            self.damaged(call.killed(seed, power_loss=power_loss), model, chance)
        except BrokenPromiseError as error:
            error.add_note(f"killed in call {call.number}, {call.name} {call.path}, power loss: {power_loss}")
            raise

    def damaged(self, disk: SimulatedDisk, model: Model, chance: random.Random) -> None:
        if not damage(disk, chance, self.older):
            return
        is_damaged: bool | None = True
        if chance.random() < 0.6:
            disk.kill_at = chance.randrange(25)
            try:
                StoreLife(disk, model, chance, is_damaged=True)
            except Killed:
                self.killed_restoring += 1
            is_damaged = None
            disk.crash(power_loss=chance.random() < 0.6)
        life = StoreLife(disk, model, chance, is_damaged=is_damaged)
        self.restored += 1
        life.quiesce()
        life.close()
        disk.crash(power_loss=True)
        StoreLife(disk, life.model, chance, must_be_clean=True)


def test_no_crash_loses_topology_and_none_is_taken_for_damage() -> None:
    renewed = 0
    renew = MirroredKeyValue.renew

    def counted(self: MirroredKeyValue) -> None:
        nonlocal renewed
        renewed += 1
        renew(self)

    killed = restored = killed_restoring = 0
    with patch.object(MirroredKeyValue, "renew", counted):
        for seed in seeds_of_the_day(2):
            run = Run(seed, share=0.13)
            run.lives(3, 40)
            killed, restored = killed + run.killed, restored + run.restored
            killed_restoring += run.killed_restoring
    assert killed > 50
    assert restored > 0
    assert renewed > 0
    assert killed_restoring > 5 or not is_nightly()


def _appended_first(self: MirroredKeyValue, changes: dict[bytes, bytes | None]) -> None:
    """The copy has the batch before the catalogue."""
    if self._file is None:
        self.renew()
    self._keep(changes)
    self._key_value.write(changes)


def _not_synced(self: MirroredKeyValue, changes: dict[bytes, bytes | None]) -> None:
    """The copy's record is written, and left to the system."""
    file = self._file
    self._key_value.write(changes)
    with patch.object(file, "sync", lambda: None) if file is not None else patch.object(random, "seed"):
        self._keep(changes)


@pytest.mark.parametrize("broken", [_appended_first, _not_synced])
def test_a_copy_that_is_kept_wrongly_is_detected(broken: Callable[..., None]) -> None:
    with patch.object(MirroredKeyValue, "write", broken), pytest.raises(BrokenPromiseError):
        run_all(range(40))


def run_all(seeds: range) -> None:
    for seed in seeds:
        Run(seed, share=0.5).lives(3, 40)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_of_the_copy_is_reported_and_bounds_the_loss(code: int) -> None:
    """The change that meets the failure is on the disk; no other is made until the copy can be written again."""
    disk, _ = stocked()
    shop = Shop(disk)

    def fails(call: Call) -> None:
        if call.path.startswith(COPY):
            disk.fail_at[call.number] = code

    disk.watch = fails
    assert shop.make("first") is None
    (line,) = shop.critical()
    assert "queues, exchanges and bindings cannot be changed until it is" in line
    assert f"{COPY}: the second copy of the topology cannot be written: {os.strerror(code)}; " in line
    error = shop.make("second")
    assert isinstance(error, StoreError)
    assert f"the second copy of the topology cannot be written: {os.strerror(code)}" in str(error)
    disk.watch = None
    assert shop.make("third") is None
    assert ["the catalogue cannot be written" in text for text in shop.critical()] == [False, True]
    assert shop.store.close()
    disk.crash(power_loss=True)
    lose_catalogue(disk)
    again = Shop(disk)
    assert sorted(again.found) == ["first", "queue-1", "queue-2", "third"]


def stocked() -> tuple[SimulatedDisk, Model]:
    disk, model, rng = SimulatedDisk(3), Model(), random.Random(3)
    life = StoreLife(disk, model, rng)
    for deed in (life.create_queue, life.create_queue, life.create_exchange, life.quiesce, life.bind, life.enqueue):
        deed()
    life.quiesce()
    life.close()
    disk.crash(power_loss=False)
    return disk, life.model


@pytest.mark.parametrize("way", ["gone", "older"])
def test_where_damage_is_refused_a_lost_catalogue_is_too(way: str) -> None:
    disk, _ = stocked()
    content = database(disk)
    assert content is not None
    if way == "gone":
        lose_catalogue(disk)
    else:
        census = content[Kind.CENSUS.prefix]
        content.pop(next(key for key in content if key[:1] == Kind.BINDING.prefix))
        assert content[Kind.CENSUS.prefix] == census
    environment = simulated_environment(disk, random.Random(1))
    parameters = TinyParameters(on_damage=OnDamage.REFUSE)
    with pytest.raises(StoreDamagedError, match="on-damage is refuse: see qstore-check /store, and start with"):
        MessageStore.open(environment, PATH, parameters, "test", log=lambda _: None)


@pytest.mark.parametrize("copy", ["removed", "cut", "emptied"])
def test_without_catalogue_and_copy_all_queues_are_there_and_the_rest_is_reported(copy: str) -> None:
    disk, model = stocked()
    lose_catalogue(disk)
    if copy == "removed":
        disk.remove(COPY)
    else:
        inode = disk.tree.inode(COPY)
        inode.content = inode.durable = bytearray(700 if copy == "cut" else 0)
    disk.sync_directory(f"{PATH}/rhm")
    rng = random.Random(1)
    lines = []
    store = MessageStore.open(simulated_environment(disk, rng), PATH, TinyParameters(), "test", log=lines.append)
    found = {queue.record.name: [each.data for each in store.messages(queue)] for queue in store.recovered_queues}
    store.end_recovery()
    assert found == {name: list(queue.available) for name, queue in model.queues.items()}
    assert sum(map(len, found.values())) > 0
    assert store.topology.exchanges == {}
    assert any("bindings and links are lost and must be declared again" in line.text for line in lines)
    assert store._ids.next > model.highest_rid
    assert store.close()
    disk.crash(power_loss=True)
    reported: list[object] = []
    again = MessageStore.open(simulated_environment(disk, rng), PATH, TinyParameters(), "test", log=reported.append)
    assert {queue.record.name for queue in again.recovered_queues} == set(found)
    assert not [line for line in reported if getattr(line, "level", "") == "critical"]


def test_a_queue_that_was_deleted_does_not_come_back_without_the_catalogue() -> None:
    """Its directory is still there, with the mark."""
    disk, _ = stocked()
    journal = f"{PATH}/rhm/jrnl/1"
    disk.create(f"{journal}/deleted", 0).close()
    disk.sync_directory(journal)
    lose_catalogue(disk)
    disk.remove(COPY)
    disk.sync_directory(f"{PATH}/rhm")
    store = MessageStore.open(
        simulated_environment(disk, random.Random(1)), PATH, TinyParameters(), "test", log=lambda _: None
    )
    assert [queue.queue_id for queue in store.recovered_queues] == [2]
    assert not disk.is_directory(journal)
