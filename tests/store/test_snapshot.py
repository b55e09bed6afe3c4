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
from qstore.store.disk import OsFile, OsWritableDisk
from qstore.store.environment import Environment, system_environment, tool_environment
from qstore.store.errors import JournalFullError, StoreError, StoreLockedError
from qstore.store.key_value import RocksKeyValue
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


# ---- copying a snapshot: pins that break meanwhile, targets that cannot be used, sources that cannot be read ----


class OvertakingDisk(OsWritableDisk):
    """Lets something happen before the records of a file are read.

    Attributes:
        reads: the files whose records were read.
        before: file -> what happens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    def open(self, path: str) -> OsFile:
        name = "/".join(Path(path).parts[-2:])
        disk = self

        class File(OsFile):
            def read(self, offset: int, length: int) -> bytes:
                if offset >= 512 and name.endswith(".jdat"):
                    disk.reads.append(name)
                    disk.before.pop(name, lambda: None)()
                return super().read(offset, length)

        return File(path)


class TestPins:
    def test_traffic_is_never_refused_and_overtakes_the_snapshot(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            made.work(200)
            first = made.enqueue("orders", 500)  # stays, so that it is copied forward
            snapshot, _ = made.snapshot()
            refused = 0
            for number in range(40_000):  # 50 laps and more
                rid = made.enqueue("orders", 200)
                try:
                    made.dequeue("orders", rid)
                except JournalFullError:
                    refused += 1
                if number % 20 == 0:
                    made.store.start()
            assert refused == 0
            assert made.journals["orders"].writer.compactor.copied > 10
            assert first in made.journals["orders"].writer.live
            (overtaken,) = snapshot.overtaken
            assert overtaken.directory == made.journals["orders"].directory
            with pytest.raises(
                StoreError, match=r"/jrnl/1: the journal ran short of room and was overwritten"
            ) as caught:
                made.copy(snapshot)
            assert "\n" not in str(caught.value)
            assert not (tmp_path / "copy").exists()
            snapshot.release()
            later, content = made.snapshot()
            copy = made.copy(later)
            check_sound(copy)
        assert read(copy)[0] == content

    def test_a_pin_that_breaks_while_it_is_copied_is_seen(self, tmp_path: Path) -> None:
        """After each piece that is copied the ring goes round."""
        with lab(tmp_path) as made:
            made.work(2000)

            def overtake(copied: int, total: int) -> None:
                assert 0 < copied <= total
                for number in range(4000):
                    made.dequeue("logs", made.enqueue("logs", 1500))
                    if number % 20 == 0:
                        made.store.start()

            snapshot, _ = made.snapshot()
            with pytest.raises(StoreError, match="/jrnl/3: the journal ran short of room"):
                copy_snapshot(made.environment, snapshot, str(tmp_path / "copy"), overtake)
            assert not (tmp_path / "copy").exists()

    def test_a_pin_that_breaks_while_a_file_is_read_is_seen(self, tmp_path: Path) -> None:
        """Even if it is the last piece of a journal that is read."""
        with lab(tmp_path) as made:
            for name in made.journals:
                made.enqueue(name, 100)
            snapshot, _ = made.snapshot()
            disk = OvertakingDisk()
            environment = made.environment._replace(disk=disk)
            copy_snapshot(environment, snapshot, str(tmp_path / "first"))
            assert disk.reads == [f"{number}/JournalData.0000.jdat" for number in (1, 2, 3)]

            def overtake() -> None:
                for number in range(4000):
                    made.dequeue("logs", made.enqueue("logs", 1500))
                    if number % 20 == 0:
                        made.store.start()

            disk.before[disk.reads[-1]] = overtake
            with pytest.raises(StoreError, match="/jrnl/3: the journal ran short of room"):
                copy_snapshot(environment, snapshot, str(tmp_path / "copy"))
            assert not (tmp_path / "copy").exists()

    def test_released_snapshot_lets_files_be_overwritten(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            snapshot, _ = made.snapshot()
            oldest = made.journals["orders"].writer.space
            for _ in range(300):
                made.dequeue("orders", made.enqueue("orders", 100))
                made.store.start()
            assert oldest.oldest == 0
            snapshot.release()
            made.dequeue("orders", made.enqueue("orders", 100))
            made.store.start()
            assert oldest.oldest > 0


class TestTargets:
    def test_there_must_be_nothing(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            made.work(50)
            snapshot, content = made.snapshot()
            (tmp_path / "copy").mkdir()
            (tmp_path / "copy" / "letter").write_text("mine")
            with pytest.raises(StoreError, match=r"copy: is not empty \(letter\); choose a new"):
                made.copy(snapshot)
            assert (tmp_path / "copy" / "letter").read_text() == "mine"
            assert os.listdir(tmp_path / "copy") == ["letter"]
            with pytest.raises(StoreError, match="is not empty"):
                made.copy(snapshot, "store")
            (tmp_path / "empty").mkdir()
            made.copy(snapshot, "empty")
            with pytest.raises(StoreError, match=r"is not empty \(rhm\)"):
                made.copy(snapshot, "empty")
            with pytest.raises(StoreError, match=r"missing/copy: the store directory cannot be used: No such file"):
                made.copy(snapshot, "missing/copy")
            (tmp_path / "file").write_text("")
            with pytest.raises(StoreError, match=r"/file: the store directory cannot be used: it is not a directory"):
                made.copy(snapshot, "file")
        assert read(tmp_path / "empty")[0] == content

    def test_locked_destination_is_refused(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            snapshot, _ = made.snapshot()
            (tmp_path / "copy").mkdir()
            lock = made.environment.disk.lock(str(tmp_path / "copy" / "rhm.lock"))
            with pytest.raises(StoreLockedError):
                made.copy(snapshot)
            assert os.listdir(tmp_path / "copy") == ["rhm.lock"]
            lock.release()
            made.copy(snapshot)

    def test_an_interrupted_copy_leaves_nothing(self, tmp_path: Path) -> None:
        def interrupt(copied: int, total: int) -> None:
            raise KeyboardInterrupt

        with lab(tmp_path) as made:
            made.work(100)
            snapshot, _ = made.snapshot()
            with pytest.raises(KeyboardInterrupt):
                copy_snapshot(made.environment, snapshot, str(tmp_path / "copy"), interrupt)
            assert not (tmp_path / "copy").exists()

    def test_a_catalogue_that_cannot_be_copied(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with lab(tmp_path) as made:
            snapshot, _ = made.snapshot()
            (Path(snapshot.catalogue) / "CURRENT").unlink()
            with pytest.raises(StoreError, match=r"copy: the snapshot cannot be copied: .*file CURRENT is missing"):
                made.copy(snapshot)
            assert not (tmp_path / "copy").exists()

            def fail(*_: object) -> None:
                raise OSError(errno.EIO, "Input/output error", "somewhere")

            monkeypatch.setattr(RocksKeyValue, "checkpoint", fail)
            errors: list[Exception | None] = []
            made.store.snapshot(str(tmp_path / "checkpoint"), lambda _, error: errors.append(error))
            made.wait(lambda: errors)
            assert str(errors[0]) == "a snapshot cannot be taken: somewhere: Input/output error"

    def test_a_file_header_that_is_not_its_own(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            made.work(100)
            snapshot, _ = made.snapshot()
            journal = next(each for each in snapshot.journals if each.size)
            assert journal.cut is not None
            path = Path(journal.path_of(journal.cut.first))
            content = path.read_bytes()
            for header, what in (
                (bytes(512), "header belongs to another file"),
                (b"RHMf\2" + bytes(507), "file header fails its checksum"),
            ):
                path.write_bytes(header + content[512:])
                with pytest.raises(StoreError, match=f"{path.name}: .*{what}.*: the journal is damaged"):
                    made.copy(snapshot)
            path.write_bytes(content)
            made.copy(snapshot)
