"""`rhm/SYNCED` while a store runs: when it is written, its bounds, and that these are never ahead of the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qstore.formats.broker_records.topology import Exchange
from qstore.formats.rhm.close_record import SyncedJournal, SyncedStore, decode_synced
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import DamageKind
from qstore.store.disk import OsDisk
from qstore.store.environment import Environment, system_environment, tool_environment
from qstore.store.inspect.check import StoreCheck, check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.message_store import MessageStore
from qstore.store.log_lines import Level
from qstore.store.parameters import OnDamage
from qstore.store.recovery import close_record
from qstore.store.recovery.close_record import INTERVAL_SECONDS
from qstore.store.sync import Completion, InlineSync
from tests.support.opened_store import PARAMETERS, Calls, OpenedStore


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(path: Path, clock: Clock) -> Iterator[OpenedStore]:
    opened = at(OpenedStore(tool_environment(), path), clock)
    yield opened
    opened.store.close()


def at(opened: OpenedStore, clock: Clock) -> OpenedStore:
    opened.store._synced._clock = clock
    opened.store._synced._written_at = clock.now
    return opened


def recorded(path: Path) -> SyncedStore:
    return decode_synced((path / "rhm/SYNCED").read_bytes())


def look(opened: OpenedStore, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    opened.store.look()
    opened.store._background.wait()
    opened.store.collect()


def flushes(path: Path) -> dict[int, int]:
    return {each.journal_id: each.flush for each in recorded(path).journals}


def send(opened: OpenedStore, name: str, messages: int = 1) -> None:
    for _ in range(messages):
        opened.enqueue(opened.journal(name), b"message")
        opened.flush(opened.journal(name))


def test_a_new_store_has_a_record(opened: OpenedStore, path: Path) -> None:
    assert recorded(path) == SyncedStore(opened.store.store_id, 1, (SyncedJournal(0, 0, 0, 0),))


def test_synced_flush_is_recorded_after_the_interval(opened: OpenedStore, path: Path, clock: Clock) -> None:
    opened.make_queue("orders")
    look(opened, clock, INTERVAL_SECONDS)
    send(opened, "orders", 3)
    assert flushes(path) == {0: 0}
    look(opened, clock, INTERVAL_SECONDS - 0.1)
    assert flushes(path) == {0: 0}
    look(opened, clock, 0.2)
    assert flushes(path) == {0: 0, 1: 3}
    inode = (path / "rhm/SYNCED").stat().st_ino
    look(opened, clock, 10 * INTERVAL_SECONDS)
    assert (path / "rhm/SYNCED").stat().st_ino == inode


def test_a_change_of_the_topology_is_recorded_soon(opened: OpenedStore, path: Path, clock: Clock) -> None:
    calls = Calls()
    opened.store.changes.create_exchange(Exchange("trade", True, "topic"), calls)
    opened.wait(calls)
    before = recorded(path).batch
    look(opened, clock, 1.0)
    assert recorded(path).batch == opened.store._synced._batch() > before


def test_unsynced_flush_is_not_recorded(path: Path, clock: Clock) -> None:
    class Held(InlineSync):
        """Syncs, and says so only when it is let."""

        is_held = False

        def completed(self, timeout: float | None = 0.0) -> list[Completion]:
            return [] if self.is_held else super().completed(timeout)

    driver = Held()
    environment: Environment = tool_environment()._replace(make_driver=lambda _: driver)
    opened = at(OpenedStore(environment, path), clock)
    opened.make_queue("orders")
    send(opened, "orders")
    driver.is_held = True
    opened.enqueue(opened.journal("orders"), b"message")
    opened.store.flush([opened.journal("orders")], lambda _: None)
    look(opened, clock, INTERVAL_SECONDS)
    assert flushes(path)[1] == 1
    driver.is_held = False
    opened.store.collect()
    look(opened, clock, INTERVAL_SECONDS)
    assert flushes(path)[1] == 2
    opened.store.close()


def test_many_journals_are_examined_in_several_turns(
    opened: OpenedStore, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close_record, "_PORTION", 2)
    for number in range(4):
        opened.make_queue(f"queue-{number}")
        send(opened, f"queue-{number}")
    for turns in range(1, 4):
        assert len(flushes(path)) == 1
        look(opened, clock, INTERVAL_SECONDS if turns == 1 else 0.0)
    assert flushes(path) == {0: 0, 1: 1, 2: 1, 3: 1, 4: 1}


def test_a_deleted_queue_leaves_the_record(opened: OpenedStore, path: Path, clock: Clock) -> None:
    for name in ("stays", "goes"):
        opened.make_queue(name)
        send(opened, name)
    look(opened, clock, INTERVAL_SECONDS)
    assert len(flushes(path)) == 3
    calls = Calls()
    opened.store.changes.delete_queue(opened.journal("goes"), calls)
    opened.wait(calls)
    look(opened, clock, 1.0)
    assert flushes(path) == {0: 0, 1: 1}


def test_a_clean_close_records_everything(path: Path) -> None:
    opened = OpenedStore(system_environment(), path)
    opened.make_queue("orders")
    send(opened, "orders", 2)
    assert opened.store.close()
    found = recorded(path)
    assert found.batch == opened.store._synced._last[0]  # type: ignore[index]
    assert flushes(path) == {0: 0, 1: 3}  # the seal


def test_a_failure_is_logged_once_and_costs_nothing(
    opened: OpenedStore, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.make_queue("orders")
    with monkeypatch.context() as broken:

        def full(self: StoreDirectory, name: str, content: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.root}/{name}.new")

        broken.setattr(StoreDirectory, "replace", full)
        for _ in range(3):
            send(opened, "orders")
            look(opened, clock, INTERVAL_SECONDS)
    lines = [line for line in opened.lines if "how far the store is synced" in line.text]
    assert [line.level for line in lines] == [Level.CRITICAL]
    assert lines[0].text.endswith(f"{path}/rhm/SYNCED.new: No space left on device; the disk is full: free some space")
    send(opened, "orders")
    look(opened, clock, INTERVAL_SECONDS)
    assert flushes(path)[1] == 4
    assert [line.text for line in opened.lines if "recorded again" in line.text] != []


def test_a_start_whose_record_cannot_be_written_continues_with_the_old_one(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    send(opened, "orders")
    assert opened.store.close()
    old, replace_file = recorded(path), StoreDirectory.replace

    def full(self: StoreDirectory, name: str, content: bytes) -> None:
        if name == "SYNCED":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.root}/{name}.new")
        replace_file(self, name, content)

    monkeypatch.setattr(StoreDirectory, "replace", full)
    opened = at(OpenedStore(tool_environment(), path), clock)
    assert [line.level for line in opened.lines if "how far the store is synced" in line.text] == [Level.CRITICAL]
    assert recorded(path) == old
    monkeypatch.undo()
    look(opened, clock, INTERVAL_SECONDS)
    assert recorded(path) != old
    opened.store.close()


def test_a_journal_that_was_recreated_is_not_held_against_its_past(path: Path) -> None:
    """Its loss is reported once, and no later crash is taken for another one."""
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    send(opened, "orders", 5)
    assert opened.store.close()
    remove_journal(tool_environment().disk, f"{path}/rhm/jrnl/1")
    for expected in (1, 0):
        opened = OpenedStore(tool_environment(), path)
        critical = [line.text for line in opened.lines if line.level is Level.CRITICAL]
        assert ["has no journal" in text for text in critical] == [True] * expected
        opened.store.end_recovery()
        send(opened, "orders")
        opened.store._opened.close()  # as if it were killed
    refusing = replace(PARAMETERS, on_damage=OnDamage.REFUSE)
    MessageStore.open(tool_environment(), str(path), refusing, "0.1.0", log=lambda _: None).close()


def test_older_software_that_does_not_know_the_record_may_go_on(path: Path, clock: Clock) -> None:
    """It leaves a record of the past, whose bounds are lower than they could be."""
    opened = at(OpenedStore(tool_environment(), path), clock)
    opened.make_queue("orders")
    send(opened, "orders")
    look(opened, clock, INTERVAL_SECONDS)
    old = (path / "rhm/SYNCED").read_bytes()
    opened.make_queue("bills")
    for name in ("orders", "bills"):
        send(opened, name, 3)
    assert opened.store.close()
    (path / "rhm/SYNCED").write_bytes(old)
    opened = OpenedStore(tool_environment(), path, replace(PARAMETERS, on_damage=OnDamage.REFUSE))
    assert {name: len(found) for name, found in opened.recovered_data().items()} == {"orders": 4, "bills": 3}
    opened.store.close()


# ---- the end of a journal, damaged in several places ----


def flushed_in_batches(path: Path) -> OpenedStore:
    """A store whose last write batch has eight messages."""
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    for batch in range(3):
        for number in range(8):
            opened.enqueue(journal, b"%d" % number * 300)
        opened.flush(journal)
        if batch == 1:
            opened.store._synced.record()
    return opened


def damaged_last_batch(path: Path, *broken: int) -> StoreCheck:
    """Check a store, the last batch of which has these records, from 0, replaced by zeros."""
    (file,) = path.glob("rhm/jrnl/*/JournalData.0000.jdat")
    content = bytearray(file.read_bytes())
    starts = [at for at in range(0, len(content), BLOCK_SIZE) if content[at : at + 4] == b"RHMe"][-8:]
    for each in broken:
        content[starts[each] : starts[each] + 3 * BLOCK_SIZE] = bytes(3 * BLOCK_SIZE)
    file.write_bytes(content)
    disk = OsDisk()
    store = open_store(disk, str(path))
    checked = check_store(disk, store, paranoid=False)
    store.close()
    return checked


BROKEN = [(0,), (7,), (0, 7), (2, 5), (0, 3, 6), tuple(range(8))]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_last_batch_of_a_closed_store_is_damage(path: Path, broken: tuple[int, ...]) -> None:
    flushed_in_batches(path).store.close()
    assert damaged_last_batch(path, *broken).damage


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_last_batch_that_is_on_record_is_damage(path: Path, tmp_path: Path, broken: tuple[int, ...]) -> None:
    opened = flushed_in_batches(path)
    opened.store._synced.record()
    shutil.copytree(path, tmp_path / "killed")
    opened.store.close()
    (damage,) = damaged_last_batch(tmp_path / "killed", *broken).damage
    assert damage.kind is DamageKind.SYNCED_FLUSHES_LOST


@pytest.mark.parametrize("broken", BROKEN[:-1])
def test_a_broken_last_batch_that_is_not_on_record_is_a_torn_tail(
    path: Path, tmp_path: Path, broken: tuple[int, ...]
) -> None:
    """Nothing shows whether it was synced. That it is cut is told in any case, also if its first record is missing."""
    opened = flushed_in_batches(path)
    shutil.copytree(path, tmp_path / "killed")
    opened.store.close()
    checked = damaged_last_batch(tmp_path / "killed", *broken)
    assert not checked.damage
    (notice,) = [notice for notice in checked.notices if "torn tail" in notice]
    assert notice.endswith("recovery cuts it off")
    assert ("and after it records of the same flush" in notice) is (broken != (7,))
