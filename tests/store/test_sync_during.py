"""Files that are synced while something else is done."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from qstore.store.disk import OsWritableDisk, OsWritableFile


def files_in(directory: Path, count: int) -> list[OsWritableFile]:
    disk = OsWritableDisk()
    return [disk.create(str(directory / f"file-{number}"), 4096) for number in range(count)]


def test_work_is_done_while_each_file_is_being_synced(tmp_path: Path) -> None:
    files = files_in(tmp_path, 3)
    worked, began, synced = threading.Event(), threading.Semaphore(0), list[int]()

    def sync(descriptor: int) -> None:
        began.release()
        assert worked.wait(10)
        synced.append(descriptor)

    def work() -> None:
        assert all(began.acquire(timeout=10) for _ in files)
        worked.set()

    with patch.object(os, "fdatasync", sync):
        assert OsWritableDisk().sync_during(files, work) is None
    assert sorted(synced) == sorted(file.fileno() for file in files)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_all_files_are_synced_however_many_they_are(tmp_path: Path, count: int) -> None:
    files, synced, done = files_in(tmp_path, count), set[int](), list[str]()
    with (
        patch.object(os, "fdatasync", synced.add),
        patch.object(OsWritableDisk, "_sync_at_once", lambda *_: False),
    ):
        assert OsWritableDisk().sync_during(files, lambda: done.append("work")) is None
    assert synced == {file.fileno() for file in files}
    assert done == ["work"]


def test_without_threads_files_are_synced_first(tmp_path: Path) -> None:
    files, done = files_in(tmp_path, 2), list[object]()
    with (
        patch.object(os, "fdatasync", done.append),
        patch.object(threading.Thread, "start", side_effect=RuntimeError),
    ):
        assert OsWritableDisk().sync_during(files, lambda: done.append("work")) is None
    assert done == [*(file.fileno() for file in files), "work"]


def test_an_error_of_a_sync_is_returned_and_one_of_the_work_is_raised_after_the_syncs(tmp_path: Path) -> None:
    files, synced = files_in(tmp_path, 2), list[int]()

    def fails(descriptor: int) -> None:
        synced.append(descriptor)
        raise OSError(errno.EIO, "broken")

    def refuses() -> None:
        raise ValueError("refused")

    with patch.object(os, "fdatasync", fails):
        error = OsWritableDisk().sync_during(files, lambda: None)
        assert error is not None
        assert error.errno == errno.EIO
        assert len(synced) == 2
        with pytest.raises(ValueError, match="refused"):
            OsWritableDisk().sync_during(files, refuses)
    assert len(synced) == 4
