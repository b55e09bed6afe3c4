"""Snapshots of a real store: real files, RocksDB, threads; the copy opens, is sound, and holds what was appended."""

from __future__ import annotations

import errno
import os
import random
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from formats.broker_records.wiring import Binding, Exchange, Queue
from formats.rhm.geometry import Geometry
from store.disk import OsFile
from store.environment import Environment, system_environment, tool_environment
from store.errors import StoreError, StoreLockedError
from store.journal.gathering import data_crc
from store.journal.step import JournalFullError
from store.key_value import RocksKeyValue
from store.layout import find_layout
from store.log_lines import Level, LogLine
from store.message_store import MessageStore
from store.offline import OfflineStore
from store.parameters import StoreParameters
from store.queue_journal import QueueJournal
from store.snapshot import Snapshot
from store.snapshot_copy import copy_snapshot
from store.transactions import Dequeue, Enqueue
from store.writable_disk import OsWritableDisk
from tools.qstore_check import command as check

PARAMETERS: Final = StoreParameters(wcache_page_size=4, tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
GEOMETRY: Final = Geometry.from_pages(4, 1)  # 256 KiB
MOST_TURNS: Final = 2000
Content = dict[str, dict[int, bytes]]


class Lab:
    """A store, and what it must hold.

    Attributes:
        store: the store.
        content: queue -> record id -> data.
        prepared: xid -> what it would enqueue, and dequeue: (queue, record id).
    """

    def __init__(self, path: Path, environment: Environment, seed: int = 0) -> None:
        self.path, self.environment, self.rng = path, environment, random.Random(seed)
        self.lines: list[LogLine] = []
        self.store = MessageStore(environment, str(path), PARAMETERS, "0.1.0", log=self.lines.append)
        self.content: Content = {}
        self.journals: dict[str, QueueJournal] = {}
        self.prepared: dict[bytes, tuple[Content, list[tuple[str, int]]]] = {}

    def wait(self, reached: Callable[[], object]) -> None:
        """Until it is so."""
        for _ in range(MOST_TURNS):
            if reached():
                return
            self.store.start()
            self.store.collect()
            if self.store.fileno() >= 0:
                select.select((self.store.fileno(),), (), (), 0.05)
        raise AssertionError("never called back")

    def create(self, name: str, geometry: Geometry = GEOMETRY) -> QueueJournal:
        """Make a queue."""
        made: list[tuple[QueueJournal | None, Exception | None]] = []
        self.store.changes.create_queue(Queue(name), geometry, lambda journal, error: made.append((journal, error)))
        self.wait(lambda: made)
        journal, error = made[0]
        assert journal is not None, error
        self.content[name], self.journals[name] = {}, journal
        return journal

    def delete(self, name: str) -> None:
        """Delete a queue."""
        done: list[Exception | None] = []
        self.store.changes.delete_queue(self.journals.pop(name), lambda _, error: done.append(error))
        self.wait(lambda: done)
        assert done == [None]
        del self.content[name]

    def enqueue(self, name: str, size: int) -> int:
        """Enqueue a message."""
        data = self.rng.randbytes(size)
        rid = self.store.append.enqueue(self.journals[name], (data,), size, data_crc((data,)))
        self.content[name][rid] = data
        return rid

    def dequeue(self, name: str, rid: int) -> None:
        """Dequeue a message."""
        self.store.append.dequeue(self.journals[name], rid)
        del self.content[name][rid]

    def free(self, name: str) -> list[int]:
        """Messages that no prepared transaction holds."""
        held = {target for _, dequeues in self.prepared.values() for target in dequeues}
        return [rid for rid in self.content[name] if (name, rid) not in held]

    def transaction(self, names: list[str], xid: bytes = b"") -> None:
        """A local transaction that comes to its end, or a branch that stays in doubt."""
        done: list[Exception | None] = []
        data = {name: self.rng.randbytes(self.rng.randint(0, 700)) for name in names}
        enqueues = [Enqueue(self.journals[name], (each,), len(each), data_crc((each,))) for name, each in data.items()]
        going = [(name, self.rng.choice(self.free(name))) for name in names if self.free(name)]
        dequeues = [Dequeue(self.journals[name], rid) for name, rid in going]
        if xid:
            rids = self.store.transactions.prepare(xid, enqueues, dequeues, done.append)
        else:
            rids = self.store.transactions.commit(enqueues, dequeues, done.append)
        coming = {name: {rid: data[name]} for name, rid in zip(names, rids, strict=True)}
        if xid:
            self.prepared[xid] = coming, going
        else:
            for name, messages in coming.items():
                self.content[name].update(messages)
            for name, rid in going:
                del self.content[name][rid]
        self.wait(lambda: done)
        assert done == [None]

    def work(self, steps: int, largest: int = 2000) -> None:
        """Some traffic."""
        names = list(self.journals)
        for _ in range(steps):
            name, chance = self.rng.choice(names), self.rng.random()
            free = self.free(name)
            if chance < 0.02:
                self.transaction(self.rng.sample(names, min(len(names), self.rng.choice((1, 2)))))
            elif len(free) < 20 or (chance < 0.5 and len(free) < 60):
                self.enqueue(name, self.rng.choice((self.rng.randint(0, 300), self.rng.randint(0, largest))))
            else:
                self.dequeue(name, free[0] if chance < 0.8 else self.rng.choice(free))
            if self.rng.random() < 0.05:
                self.store.start()
                self.store.collect()

    def snapshot(self) -> tuple[Snapshot, Content]:
        """Take one, and what it must hold."""
        taken: list[tuple[Snapshot | None, Exception | None]] = []
        content = {name: dict(messages) for name, messages in self.content.items()}
        checkpoint = str(self.path.parent / f"checkpoint-{self.rng.getrandbits(64):x}")
        self.store.snapshot(checkpoint, lambda snapshot, error: taken.append((snapshot, error)))
        self.wait(lambda: taken)
        snapshot, error = taken[0]
        assert snapshot is not None, error
        return snapshot, content

    def copy(self, snapshot: Snapshot, name: str = "copy") -> Path:
        """Copy it beside the store."""
        copy_snapshot(self.environment, snapshot, str(self.path.parent / name))
        return self.path.parent / name


@contextmanager
def lab(path: Path, environment: Environment | None = None, seed: int = 0) -> Iterator[Lab]:
    """A store with three queues, one of them with large files."""
    made = Lab(path / "store", environment or tool_environment(), seed)
    with made.store:
        for name, geometry in (("orders", GEOMETRY), ("bills", GEOMETRY), ("logs", Geometry.from_pages(4, 16))):
            made.create(name, geometry)
        yield made
    assert [line.text for line in made.lines if line.level in (Level.WARNING, Level.CRITICAL)] == []


class OvertakingDisk(OsWritableDisk):
    """Lets something happen before the records of a file are read.

    Attributes:
        reads: the files whose records were read.
        before: file -> what happens.
    """

    def __init__(self) -> None:
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


def read(path: Path) -> tuple[Content, dict[bytes, set[tuple[str, int, int]]]]:
    """What a store holds: messages, and those in doubt by their branch: (queue, record id, state)."""
    lines: list[LogLine] = []
    content: Content = {}
    doubt: dict[bytes, set[tuple[str, int, int]]] = {}
    with MessageStore(tool_environment(), str(path), PARAMETERS, "0.1.0", log=lines.append) as store:
        assert not store.was_clean
        for queue in store.recovered_queues:
            name = queue.record.name
            content[name] = {}
            for message in store.messages(queue):
                content[name][message.rid] = message.data
                if message.xid is not None:
                    doubt.setdefault(message.xid, set()).add((name, message.rid, message.state))
        assert set(store.transactions.in_doubt) >= set(doubt)
    assert [line.text for line in lines if line.level in (Level.WARNING, Level.CRITICAL)] == []
    return content, doubt


def check_sound(path: Path) -> None:
    """The offline check reports nothing."""
    store = OfflineStore(tool_environment().disk, find_layout(tool_environment().disk, str(path)))
    store.recover()
    store.close()
    assert store.damage == []
    result = CliRunner().invoke(check, [str(path)])
    assert result.exit_code == 0, result.output


ENVIRONMENTS: Final = pytest.mark.parametrize("environment", [tool_environment, system_environment])


@ENVIRONMENTS
def test_a_copy_holds_what_was_appended_before(environment: Callable[[], Environment], tmp_path: Path) -> None:
    for seed in range(4):
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


def test_a_copy_goes_on_as_the_store_would(tmp_path: Path) -> None:
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
    with MessageStore(tool_environment(), str(copy), PARAMETERS, "0.1.0", log=lambda _: None) as store:
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
    with MessageStore(tool_environment(), str(copy), PARAMETERS, "0.1.0", log=lambda _: None) as store:
        assert [each.name for each in store.wiring.exchanges.values()] == ["before"]
        assert [each.record.key for each in store.wiring.bindings] == ["key"]


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
            made.store.changes.delete_queue(made.journals.pop("orders"), lambda _, error: deleted.append(error))
            made.wait(lambda: made.store._flusher.is_idle)
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
        with pytest.raises(StoreError, match="let go"):
            made.copy(snapshot)

    def test_one_that_is_taken_while_the_store_is_closed_is_refused(self, tmp_path: Path) -> None:
        errors: list[Exception | None] = []
        with lab(tmp_path, system_environment()) as made:
            made.store.snapshot(str(tmp_path / "checkpoint"), lambda _, error: errors.append(error))
        assert [str(error) for error in errors] == ["a snapshot cannot be taken: the store is being closed"]
        assert os.listdir(tmp_path) == ["store"]


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
            assert made.journals["orders"].writer.relocated > 10
            assert first in made.journals["orders"].writer.live
            (overtaken,) = snapshot.overtaken
            assert overtaken.directory == made.journals["orders"].directory
            with pytest.raises(
                StoreError, match=r"/jrnl/1: the journal ran short of room before it was copied"
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
                for _ in range(2000):
                    made.dequeue("logs", made.enqueue("logs", 1500))
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
            environment = replace(made.environment, disk=disk)
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

    def test_what_was_released_is_overwritten(self, tmp_path: Path) -> None:
        with lab(tmp_path) as made:
            snapshot, _ = made.snapshot()
            oldest = made.journals["orders"].writer._space
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
            with pytest.raises(StoreError, match=r"copy: there is something already \(letter\); name a directory"):
                made.copy(snapshot)
            assert (tmp_path / "copy" / "letter").read_text() == "mine"
            assert os.listdir(tmp_path / "copy") == ["letter"]
            with pytest.raises(StoreError, match="there is something already"):
                made.copy(snapshot, "store")
            (tmp_path / "empty").mkdir()
            made.copy(snapshot, "empty")
            with pytest.raises(StoreError, match=r"there is something already \(rhm\)"):
                made.copy(snapshot, "empty")
            with pytest.raises(StoreError, match=r"missing/copy: the store directory cannot be used: No such file"):
                made.copy(snapshot, "missing/copy")
            (tmp_path / "file").write_text("")
            with pytest.raises(StoreError, match=r"/file: the store directory cannot be used: it is no directory"):
                made.copy(snapshot, "file")
        assert read(tmp_path / "empty")[0] == content

    def test_nobody_else_may_have_it(self, tmp_path: Path) -> None:
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
            with pytest.raises(StoreError, match=r"copy: the snapshot cannot be copied: .*no file CURRENT"):
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
                (bytes(512), "header is not its own"),
                (b"RHMf\2" + bytes(507), "file header fails its checksum"),
            ):
                path.write_bytes(header + content[512:])
                with pytest.raises(StoreError, match=f"{path.name}: .*{what}.*: the journal is damaged"):
                    made.copy(snapshot)
            path.write_bytes(content)
            made.copy(snapshot)
