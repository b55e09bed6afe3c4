"""Content of a backup: what an incremental one takes from that before is what reading would have found, and nothing
comes from outside of the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstore.store.backup.create import BackupResult, StoreBackup
from qstore.store.backup.repository import DiskRepository, read_manifest
from qstore.store.backup.restore import restore
from qstore.store.backup.sources import RunningSource, stopped_store
from qstore.store.disk import OsDisk, OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.live.snapshot import SharedSnapshot
from tests.support.opened_store import Calls, OpenedStore, message

#: Backs a store up, which it closes.
Backup = Callable[[OpenedStore], BackupResult]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def repository(path: Path) -> DiskRepository:
    return DiskRepository(OsWritableDisk(), str(path.with_name("place")))


def snapshot_of(opened: OpenedStore) -> SharedSnapshot:
    taken = Calls()
    opened.store.share_snapshot(taken)
    opened.wait(taken)
    shared, error = taken[0]
    assert error is None
    assert isinstance(shared, SharedSnapshot)
    return shared


def of_snapshot(shared: SharedSnapshot) -> BackupResult:
    place = repository(Path(shared.directory))
    lock = place.lock()
    try:
        source = RunningSource(OsDisk(), shared.directory, shared.name, shared.copied, shared.release)
        return StoreBackup(tool_environment(), place, "test").run(source)
    finally:
        lock.release()


def running(opened: OpenedStore) -> BackupResult:
    return of_snapshot(snapshot_of(opened))


def running_and_closed(opened: OpenedStore) -> BackupResult:
    result = running(opened)
    opened.store.close()
    return result


def stopped(opened: OpenedStore) -> BackupResult:
    opened.store.close()
    path = opened.store.directory.path
    place = repository(Path(path))
    lock = place.lock()
    try:
        with stopped_store(tool_environment(), OsDisk(), path) as source:
            return StoreBackup(tool_environment(), place, "test").run(source)
    finally:
        lock.release()


def restored(path: Path, result: BackupResult, name: str = "restored") -> Path:
    place, target = repository(path), path.with_name(name)
    restore(OsWritableDisk(), place, read_manifest(place, result.manifest.id), str(target))
    return target


def content(path: Path) -> dict[str, list[bytes]]:
    opened = OpenedStore(tool_environment(), path)
    found = opened.recovered_data()
    opened.store.close()
    assert [text for text in opened.texts if "amage" in text] == []
    return found


def begun(path: Path, word: str) -> OpenedStore:
    """A new store with a queue, and another one without messages."""
    opened = OpenedStore(tool_environment(), path)
    opened.make_queue("idle")
    fill(opened, opened.make_queue("q"), word, 10)
    return opened


def again(path: Path) -> OpenedStore:
    opened = OpenedStore(tool_environment(), path)
    opened.store.end_recovery()
    return opened


def fill(opened: OpenedStore, journal: Any, word: str, count: int) -> list[int]:
    rids = [opened.enqueue(journal, made(word, number)) for number in range(count)]
    opened.flush(journal)
    return rids


def made(word: str, number: int) -> bytes:
    return message(f"{word} {number:03d} ".encode() * 100)


def words(word: str, count: int) -> list[bytes]:
    return [made(word, number) for number in range(count)]


@pytest.fixture(params=[running_and_closed, stopped])
def back_up(request: pytest.FixtureRequest) -> Backup:
    found: Backup = request.param
    return found


def test_a_new_store_at_the_same_path_has_the_same_numbers(path: Path, back_up: Backup) -> None:
    back_up(begun(path, "old"))
    shutil.rmtree(path)
    result = back_up(begun(path, "new"))
    assert content(restored(path, result)) == {"q": words("new", 10), "idle": []}


def test_a_restored_store_continues_with_the_same_numbers(path: Path, back_up: Backup) -> None:
    """And with the same headers: the file in which it goes on has those of the lost one."""
    first = back_up(begun(path, "begin"))
    for word in ("lost", "kept"):
        if word == "kept":
            shutil.rmtree(path)
            restored(path, first, path.name)
        opened = again(path)
        fill(opened, opened.journal("q"), word, 90)  # into the next file
        result = back_up(opened)
    assert content(restored(path, result)) == {"q": words("begin", 10) + words("kept", 90), "idle": []}


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which every file has the same inode and never changes."""
    monkeypatch.setattr(OsDisk, "version", lambda *_: "1-1")


@pytest.mark.usefixtures("untold")
def test_the_header_tells_a_full_file_that_was_entered_again(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("q")
    rids = fill(opened, journal, "first", 100)
    running(opened)
    for lap in ("second", "third"):  # past the end of the ring of 4 files of 64 KiB
        for rid in rids:
            opened.store.append.dequeue(journal, rid)
        opened.flush(journal)
        rids = fill(opened, journal, lap, 100)
    result = running_and_closed(opened)
    full = [file for file in result.manifest.files if file.mark]
    assert len(full) >= 1
    assert content(restored(path, result)) == {"q": words("third", 100)}


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    found: set[str] = set()
    really = RunningSource._open_image

    def noting(self: RunningSource, image: Any) -> Any:
        found.add(image.source)
        return really(self, image)

    monkeypatch.setattr(RunningSource, "_open_image", noting)
    return found


def test_a_full_file_is_not_read_again(path: Path, opened_files: set[str]) -> None:
    opened = begun(path, "begin")
    fill(opened, opened.journal("q"), "first", 100)
    running(opened)
    journals = {Path(each).name for each in opened_files if "/2/" in each}
    assert journals == {"JournalData.0000.jdat", "JournalData.0001.jdat"}
    opened_files.clear()
    fill(opened, opened.journal("q"), "more", 1)
    result = running_and_closed(opened)
    assert {Path(each).name for each in opened_files if each} == {"JournalData.0001.jdat"}
    assert content(restored(path, result)) == {
        "q": words("begin", 10) + words("first", 100) + words("more", 1),
        "idle": [],
    }


@pytest.mark.parametrize("name", ["jrnl/1/JournalData.jinf", "jrnl/1/JournalData.0000.jdat", "../SNAPSHOT/topology"])
def test_a_link_does_not_lead_out_of_a_running_store(path: Path, name: str) -> None:
    """A broker's user could have a backup by root, and the restore, give it files that it may not read."""
    opened = begun(path, "text")
    shared = snapshot_of(opened)
    file = path / "rhm" / name.replace("SNAPSHOT", shared.name)
    secret = file.rename(path.with_name("secret"))
    file.symlink_to(secret)
    with pytest.raises(StoreError, match="is a symbolic link, and no part of the store"):
        of_snapshot(shared)
    file.unlink()
    secret.rename(file)
    shared.release()
    opened.store.close()
    assert content(path) == {"q": words("text", 10), "idle": []}
