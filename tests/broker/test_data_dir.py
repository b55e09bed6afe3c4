"""The data directory."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qstore.broker.process.held_files import (
    DataDirectory,
    DataDirectoryError,
    PidFile,
    default_data_directory,
    holder_of,
    lock_path,
    user_directory,
)
from qstore.broker.process.paging import Paging
from tests.broker.holder import kill, start_holder

NOBODY = 65534


def test_a_directory_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    held = DataDirectory(str(tmp_path / "a" / "data"))
    assert held.path == str(tmp_path / "a" / "data")
    assert Path(held.path).stat().st_mode & 0o777 == 0o700
    assert Path(held.path, "lock").read_text() == f"{os.getpid()}\n"
    held.release()
    assert Path(held.path, "lock").read_text() == ""


def test_an_existing_directory_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    DataDirectory(str(tmp_path)).release()
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held = DataDirectory("data")
    assert held.path == str(tmp_path / "data")
    held.release()


def test_one_broker_at_a_time_has_a_directory(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    wanted = rf"^Cannot lock {tmp_path}/lock: Resource temporarily unavailable; process {process.pid} is using it: "
    with pytest.raises(DataDirectoryError, match=wanted):
        DataDirectory(str(tmp_path))
    kill(process)
    DataDirectory(str(tmp_path)).release()


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked" / "lock").mkdir(parents=True)
    for name, text in (("file", "File exists"), ("file/below", "File exists"), ("locked", "Is a directory")):
        with pytest.raises(DataDirectoryError, match=f"the data directory cannot be used: {text}; choose another"):
            DataDirectory(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not write")
def test_a_directory_that_must_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data").mkdir(0o755)
    program = (
        "import os, sys\n"
        "from qstore.broker.process.held_files import DataDirectory\n"
        f"os.setuid({NOBODY})\n"
        "DataDirectory(sys.argv[1])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert "the data directory cannot be used: Permission denied; choose another" in ended.stderr


def test_default_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_directory() == "/home/somebody/.qpidd"
    assert default_data_directory(is_daemon=False) == "/home/somebody/.qpidd"
    assert default_data_directory(is_daemon=True) == "/var/lib/qpidd"
    assert lock_path("/a") == "/a/lock"


def test_letting_go_on_a_file_system_that_has_become_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released nevertheless, which is visible, and the caller gets what stays behind."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    held, pid_file = DataDirectory(str(tmp_path)), PidFile(str(tmp_path / "pid"))
    monkeypatch.setattr(os, "ftruncate", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    errors = [held.release(), pid_file.release(remove=True)]
    assert [(error.errno, error.filename) for error in errors if error] == [
        (errno.EROFS, str(tmp_path / "lock")),
        (errno.EROFS, str(tmp_path / "pid")),
    ]
    assert [holder_of(str(tmp_path / name)) for name in ("lock", "pid")] == [None, None]


def test_a_pid_file_that_has_replaced_the_own_one_is_not_removed(tmp_path: Path) -> None:
    held = PidFile(str(tmp_path / "pid"))
    (tmp_path / "pid").rename(tmp_path / "moved")
    assert not held.is_in_place
    (tmp_path / "pid").write_text("1\n")
    assert held.release(remove=True) is None
    assert (tmp_path / "pid").read_text() == "1\n"


def test_a_paging_directory_that_has_replaced_the_own_one_is_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "paging"
    loop = asyncio.new_event_loop()
    paging = Paging(str(path), loop)
    paging.directory.create()
    path.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", path)
    before = sorted(path.rglob("*"))
    assert len(before) == 3  # the lock, the directory of this run, its file
    paging.close()
    loop.close()
    assert sorted(path.rglob("*")) == before
