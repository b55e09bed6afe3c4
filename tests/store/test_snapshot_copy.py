"""Copying a snapshot: pins that break meanwhile, targets that cannot be used, sources that cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qstore.store.disk import OsFile, OsWritableDisk
from qstore.store.errors import JournalFullError, StoreError, StoreLockedError
from qstore.store.key_value import RocksKeyValue
from qstore.store.live.snapshot import copy_snapshot
from tests.support.store_lab import check_sound, lab, read


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
