"""Snapshots of a real store: real files, RocksDB, threads; the copy opens, is sound, and holds what was appended."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.store.environment import Environment, system_environment, tool_environment
from qstore.store.errors import StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.snapshot import Snapshot, copy_snapshot
from tests.support.profiles import today
from tests.support.store_lab import GEOMETRY, PARAMETERS, Lab, check_sound, lab, read

ENVIRONMENTS: Final = pytest.mark.parametrize("environment", [tool_environment, system_environment])


@ENVIRONMENTS
def test_copy_holds_records_appended_before_the_snapshot(
    environment: Callable[[], Environment], tmp_path: Path
) -> None:
    for seed in today(range(4), 2):
        path = tmp_path / str(seed)
        path.mkdir()
        with lab(path, environment(), seed) as made:
            made.work(1 + seed * 1000)
            made.transaction(["orders", "bills"], b"in doubt")
            coming, going = made.prepared[b"in doubt"]
            snapshot, content = made.snapshot()
            made.work(30)
            made.transaction(["bills"], b"later")
            copy = made.copy(snapshot)
            check_sound(copy)
            snapshot.release()
        found, doubt = read(copy)
        for name, messages in coming.items():
            content[name].update(messages)
        assert found == content
        pending = {(name, rid) for name, messages in coming.items() for rid in messages}
        assert {xid: {place[:2] for place in places} for xid, places in doubt.items()} == {
            b"in doubt": pending | set(going)
        }
        assert [name for name in os.listdir(path) if name.startswith("checkpoint")] == []


def test_a_copy_continues_as_the_store_would(tmp_path: Path) -> None:
    """The copy takes records over several laps, and is then as sound as the store."""
    with lab(tmp_path) as made:
        made.work(3000)
        snapshot, content = made.snapshot()
        copy = made.copy(snapshot)
    again = Lab(copy, tool_environment(), 7)
    for queue in again.store.recovered_queues:
        name = queue.record.name
        again.content[name] = {message.rid: message.data for message in again.store.messages(queue)}
        again.journals[name] = queue.journal
    again.store.end_recovery()
    assert again.content == content
    assert again.store.store_id == made.store.store_id
    again.work(4000)
    expected = again.content
    assert again.store.close()
    check_sound(copy)
    with MessageStore.open(tool_environment(), str(copy), PARAMETERS, "0.1.0", log=lambda _: None) as store:
        assert store.was_clean
        for queue in store.recovered_queues:
            assert {each.rid: each.data for each in store.messages(queue)} == expected[queue.record.name]


def test_it_is_copied_by_a_thread_while_the_store_works(tmp_path: Path) -> None:
    with lab(tmp_path, system_environment(), 3) as made:
        made.work(2000)
        snapshot, content = made.snapshot()
        errors: list[Exception] = []
        steps: list[tuple[int, int]] = []
        copied = threading.Event()

        def copy() -> None:
            try:
                copy_snapshot(made.environment, snapshot, str(tmp_path / "copy"), lambda *step: steps.append(step))
            except Exception as error:
                errors.append(error)
            copied.set()

        thread = threading.Thread(target=copy)
        thread.start()
        while not copied.is_set():
            made.work(1, 100)
        thread.join()
        assert steps == sorted(steps)
        if errors:
            assert snapshot.overtaken, errors
        else:
            assert steps[-1][0] == steps[-1][1] > 0
            assert read(tmp_path / "copy")[0] == content
        snapshot.release()


def test_everything_is_private(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        with lab(tmp_path) as made:
            made.work(50)
            snapshot, _ = made.snapshot()
            copy = made.copy(snapshot)
    finally:
        os.umask(mask)
    modes = {(os.path.isdir(each), each.stat().st_mode & 0o777) for each in (copy, *copy.rglob("*"))}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_files_have_their_space(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        made.work(50)
        copy = made.copy(made.snapshot()[0])
    for file in copy.rglob("*.jdat"):
        assert file.stat().st_blocks * 512 >= file.stat().st_size > 65536


def test_exchanges_and_bindings_are_those_of_the_cut(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        numbers: list[int | None] = []
        made.store.changes.create_exchange(
            Exchange("before", durable=True, type="topic"), lambda number, _: numbers.append(number)
        )
        made.wait(lambda: numbers)
        (number,) = numbers
        assert number is not None
        queue_id = made.journals["orders"].queue_id
        done: list[object] = []
        made.store.changes.create_binding(number, Binding(queue_id, "orders", "key"), lambda made, _: done.append(made))
        made.wait(lambda: done)
        snapshot, _ = made.snapshot()
        made.store.changes.create_exchange(
            Exchange("after", durable=True, type="topic"), lambda number, _: numbers.append(number)
        )
        made.store.changes.delete_exchange(number, lambda _, error: done.append(error))
        made.wait(lambda: len(numbers) == 2 and len(done) == 2)
        copy = made.copy(snapshot)
    with MessageStore.open(tool_environment(), str(copy), PARAMETERS, "0.1.0", log=lambda _: None) as store:
        assert [each.name for each in store.topology.exchanges.values()] == ["before"]
        assert [each.record.key for each in store.topology.bindings] == ["key"]


class TestQueuesThatComeAndGo:
    def test_a_queue_made_after_the_cut_is_not_in_the_copy(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            made.work(50)
            snapshot, content = made.snapshot()
            made.create("new")
            made.enqueue("new", 10)
            copy = made.copy(snapshot)
        assert read(copy)[0] == content

    def test_a_queue_that_was_being_made_is_empty(self, tmp_path: Path) -> None:
        with lab(tmp_path, system_environment()) as made:
            journals: list[QueueJournal | None] = []
            taken: list[Snapshot | None] = []
            made.store.changes.create_queue(Queue("new"), GEOMETRY, lambda journal, _: journals.append(journal))
            made.store.snapshot(str(tmp_path / "checkpoint"), lambda snapshot, _: taken.append(snapshot))
            made.wait(lambda: journals and taken)
            assert taken[0] is not None
            copy = made.copy(taken[0])
            (new,) = [each for each in taken[0].journals if each.cut is None]
            assert new.directory.endswith("jrnl/4")
            check_sound(copy)
        assert read(copy)[0] == made.content | {"new": {}}

    @ENVIRONMENTS
    def test_a_queue_deleted_after_the_cut_is_in_the_copy(
        self, environment: Callable[[], Environment], tmp_path: Path
    ) -> None:
        with lab(tmp_path, environment()) as made:
            made.work(300)
            snapshot, content = made.snapshot()
            other, _ = made.snapshot()
            path = Path(made.journals["orders"].directory)
            made.delete("orders")
            made.work(50)
            assert path.is_dir()
            copy = made.copy(snapshot)
            snapshot.release()
            made.store._background.wait()
            assert path.is_dir()
            other.release()
            made.store._background.wait()
            assert not path.exists()
            made.delete("bills")
            made.store._background.wait()
            assert sorted(os.listdir(path.parent)) == ["3"]
        assert read(copy)[0] == content

    def test_one_that_was_being_deleted_is_not(self, tmp_path: Path) -> None:
        with lab(tmp_path, system_environment()) as made:
            made.work(100)
            held = threading.Event()
            made.store._background.run(held.wait, lambda _: None, lambda _: None)
            deleted: list[Exception | None] = []
            taken: list[Snapshot | None] = []
            content = {name: dict(messages) for name, messages in made.content.items() if name != "orders"}
            journal = made.journals.pop("orders")
            made.store.changes.delete_queue(journal, lambda _, error: deleted.append(error))
            made.wait(lambda: made.store._flusher.is_idle)
            journal.writer.failed(OSError(errno.ENOENT, "its files may be gone"))
            made.store.snapshot(str(tmp_path / "checkpoint"), lambda snapshot, _: taken.append(snapshot))
            made.wait(lambda: made.store._flusher.is_idle)
            held.set()
            made.wait(lambda: deleted and taken)
            assert taken[0] is not None
            copy = made.copy(taken[0])
            check_sound(copy)
        assert read(copy)[0] == content

    def test_directories_go_when_the_store_is_closed(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            made.work(50)
            snapshot, _ = made.snapshot()
            made.delete("orders")
        assert snapshot.is_released
        assert sorted(os.listdir(tmp_path / "store/rhm/jrnl")) == ["2", "3"]
        assert sorted(os.listdir(tmp_path)) == ["store"]
        snapshot.release()
        with pytest.raises(StoreError, match="was released before it was copied"):
            made.copy(snapshot)

    def test_one_that_is_taken_while_the_store_is_closed_is_refused(self, tmp_path: Path) -> None:
        errors: list[Exception | None] = []
        with lab(tmp_path, system_environment()) as made:
            made.store.snapshot(str(tmp_path / "checkpoint"), lambda _, error: errors.append(error))
        assert [str(error) for error in errors] == ["a snapshot cannot be taken: the store is being closed"]
        assert os.listdir(tmp_path) == ["store"]
