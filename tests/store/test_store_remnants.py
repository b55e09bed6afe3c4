"""Leftovers of a crash or a damaged catalogue: remnants of queues, ids that were not reserved, bindings."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import qstore.store.live.growth as growth
from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.disk import OsDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.key_value import CatalogueError
from qstore.store.live.growth import HeldDirectories
from qstore.store.live.journal_stock import SINGLY
from qstore.store.log_lines import Level
from tests.support.opened_store import GEOMETRY, Calls, OpenedStore


def found_by_check(path: Path) -> tuple[list[str], list[str]]:
    """Damage and notices."""
    disk = OsDisk()
    store = open_store(disk, str(path))
    checked = check_store(disk, store, paranoid=True)
    store.close()
    return [entry.what for entry in checked.damage], list(checked.notices)


@pytest.mark.parametrize("left", ["everything", "half of it", "the mark"])
def test_a_deletion_that_was_cut_short(path: Path, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"x")
    opened.flush(journal)
    monkeypatch.setattr(HeldDirectories, "add", lambda self, directory: None)
    calls = Calls()
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls)
    assert calls == [(None, None)]
    directory = path / "rhm/jrnl/1"
    names = sorted(name.name for name in directory.iterdir())
    assert "deleted" in names
    gone = {"everything": [], "half of it": names[:3], "the mark": [name for name in names if name != "deleted"]}
    for name in gone[left]:
        (directory / name).unlink()
    opened.store.close()

    damage, notices = found_by_check(path)
    assert damage == []
    if left != "the mark":
        assert any("left from a queue that was being deleted" in notice for notice in notices)
    again = OpenedStore(tool_environment(), path)
    assert not directory.exists()
    assert not [line for line in again.lines if line.level is Level.CRITICAL]
    assert not (path / "rhm/orphans").exists()
    again.store.close()


def test_journals_that_are_left_for_the_same_reason_are_one_notice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenedStore(tool_environment(), path)
    journals = [opened.make_queue(name) for name in ("a", "b", "c")]
    monkeypatch.setattr(HeldDirectories, "add", lambda self, directory: None)
    for journal in journals:
        calls = Calls()
        opened.store.changes.delete_queue(journal, calls)
        opened.wait(calls)
    opened.store.close()
    _, notices = found_by_check(path)
    (notice,) = [each for each in notices if "left from a queue that was being deleted" in each]
    assert notice.startswith(f"{path}/rhm/jrnl: 3 journals (1, 2, 3), each of them a journal which")


@pytest.mark.parametrize("is_written", [False, True])
def test_a_queue_that_the_catalogue_refuses_gives_back_its_space(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """Whether a failed batch is on the disk is unknown until the next start."""
    opened = OpenedStore(tool_environment(), path)
    commit = Catalogue.commit

    def refuse(self: Catalogue) -> None:
        if is_written:
            commit(self)
        raise CatalogueError("RocksDB cannot write: No space left on device")

    monkeypatch.setattr(Catalogue, "commit", refuse)
    for number in range(3):
        calls = Calls()
        opened.store.changes.create_queue(Queue(f"refused{number}"), GEOMETRY, calls)
        opened.wait(calls)
        assert isinstance(calls[0][1], StoreError)
    left = [each for each in (path / "rhm/jrnl").rglob("*") if each.is_file()]
    assert sum(each.stat().st_blocks for each in left) == 0
    monkeypatch.undo()
    opened.make_queue("orders")
    opened.store.close()

    damage, notices = found_by_check(path)
    assert damage == []
    assert sum("queue that was refused" in notice for notice in notices) == 3 * is_written
    again = OpenedStore(tool_environment(), path)
    assert not [line for line in again.lines if line.level is Level.CRITICAL]
    assert len(again.recovered()) == 1 + 3 * is_written
    again.store.close()
    assert found_by_check(path)[0] == []


def test_a_deletion_that_did_not_happen(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"x")
    opened.flush(journal)
    opened.store.close()
    (path / "rhm/jrnl/1/deleted").touch()
    again = OpenedStore(tool_environment(), path)
    assert [message.data for message in again.recovered()["orders"]] == [b"x"]
    assert not (path / "rhm/jrnl/1/deleted").exists()
    again.store.close()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("files", [0, 1, 4])
def test_a_creation_that_was_cut_short(path: Path, files: int, begun: bool) -> None:
    """After some files, or while one more is being made: it has its name, and no size yet."""
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    opened.store.close()
    directory = path / "rhm/jrnl/2"
    directory.mkdir()
    for number in range(files):
        shutil.copy(path / f"rhm/jrnl/1/JournalData.000{number}.jdat", directory)
    if begun:
        (directory / f"JournalData.000{files}.jdat").touch()
    damage, notices = found_by_check(path)
    assert damage == []
    assert files + begun == 0 or any("the next start removes it" in notice for notice in notices)
    again = OpenedStore(tool_environment(), path)
    assert not directory.exists()
    again.store.close()


def test_a_journal_that_lost_all_its_bytes_is_missed(path: Path) -> None:
    """It looks as one that was being made; but the catalogue knows it."""
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    opened.store.close()
    for file in (path / "rhm/jrnl/1").iterdir():
        file.unlink()
    (path / "rhm/jrnl/1/JournalData.0000.jdat").touch()
    damage, _ = found_by_check(path)
    assert 'queue "orders" has no journal' in damage


@pytest.mark.parametrize("has_copy", [False, True])
@pytest.mark.parametrize("how", ["lost", "empty"])
def test_record_ids_go_on_above_those_in_use(path: Path, how: str, has_copy: bool) -> None:
    """The catalogue's newest changes are gone, with them the reservation of the ids that are in use."""
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("orders")
    opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    journal = opened.journal("orders")
    used = [opened.enqueue(journal, b"x") for _ in range(3)]
    opened.flush(journal)
    killed = path.with_name("killed")
    shutil.copytree(path, killed)
    opened.store.close()
    for log in (killed / "rhm/catalogue").glob("*.log"):
        if how == "lost":
            log.unlink()
        else:
            log.write_bytes(b"")
    if not has_copy:
        (killed / "rhm/topology").unlink()

    again = OpenedStore(tool_environment(), killed)
    reported = "the catalogue went back in time" if has_copy else "the catalogue has lost its last changes"
    assert any(reported in line.text and line.level is Level.CRITICAL for line in again.lines)
    new = again.enqueue(again.journal("orders"), b"y")
    assert new > max(used)
    again.flush(again.journal("orders"))
    assert again.journal("orders").depth == 4
    again.store.close()


def test_a_branch_has_an_id(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    with pytest.raises(StoreError, match="needs an id"):
        opened.store.transactions.prepare(b"", [], [], Calls())
    opened.store.close()


def test_a_recovered_binding_can_be_deleted(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    calls = Calls()
    opened.store.changes.create_exchange(Exchange("shop", True, "direct"), calls)
    opened.wait(calls)
    (number, _) = calls[0]
    for key in ("a", "b"):
        opened.store.changes.create_binding(number, Binding(journal.queue_id, "orders", key), calls)
    opened.wait(calls, 3)
    opened.store.close()

    opened = OpenedStore(tool_environment(), path)
    first = opened.store.topology.bindings[0]
    assert first.record.key == "a"
    assert first.entry is not None
    deleted = Calls()
    opened.store.changes.delete_binding(first.entry, deleted)
    opened.wait(deleted)
    assert deleted == [(None, None)]
    opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    assert [binding.record.key for binding in opened.store.topology.bindings] == ["b"]
    opened.store.close()


def test_the_directory_of_all_journals_is_lost(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"x")
    opened.flush(journal)
    opened.store.close()
    shutil.rmtree(path / "rhm/jrnl")
    again = OpenedStore(tool_environment(), path)
    assert any('queue "orders" has no journal' in line.text and line.level is Level.CRITICAL for line in again.lines)
    assert again.recovered() == {"orders": []}
    again.enqueue(again.journal("orders"), b"y")
    again.flush(again.journal("orders"))
    again.make_queue("bills")
    assert again.store.close()
    damage = [what for what in found_by_check(path)[0] if not what.startswith("message header")]  # "y" is no message
    assert damage == []


def test_the_prepared_list_has_a_bound_of_its_own(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    parameters = opened.store.parameters
    journal = opened.make_queue("orders")
    assert journal.bound == parameters.write_cache_bytes
    assert opened.store.prepared_list.bound == parameters.tpl_write_cache_bytes != journal.bound
    opened.store.close()


def test_a_queue_that_was_just_created_is_shown_by_name_and_its_info_file_written_at_the_next_start(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    for number in range(SINGLY + 2):
        opened.make_queue(f"queue-{number}")
    shutil.copytree(path, killed := path.with_name("killed"))  # as a kill leaves it
    opened.store.close()

    damage, notices = found_by_check(killed)
    assert damage == []
    assert sum("had just been created" in notice for notice in notices) == 2
    assert any("made for the next one" in notice for notice in notices)
    store = open_store(OsDisk(), str(killed))
    assert sorted(queue.name for queue in store.recover().queues) == sorted(f"queue-{n}" for n in range(SINGLY + 2))
    store.close()
    again = OpenedStore(tool_environment(), killed)
    assert len(again.recovered()) == SINGLY + 2
    again.store.close()
    assert found_by_check(killed) == ([], [])


def test_a_close_does_not_go_on_because_the_time_of_day_is_set_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes files of deleted queues for two seconds at most, and leaves the rest to the next start."""
    monkeypatch.setattr(growth, "MAX_REMOVED", 1)
    passed, back = itertools.count(0, growth.CLOSE_NS // 2), itertools.count(1 << 60, -growth.CLOSE_NS)
    environment = tool_environment()._replace(monotonic=lambda: next(passed), clock=lambda: next(back))
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    calls = Calls()
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls)
    opened.store.close()
    assert (path / "rhm/jrnl/1/deleted").exists()
    assert len(list((path / "rhm/jrnl/1").iterdir())) > 2
    OpenedStore(tool_environment(), path).store.close()
    assert not (path / "rhm/jrnl/1").exists()
