"""The data directory, and files with a process id."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.daemon import DaemonError, end, find, hold_pid_file, pid_path
from broker.data_dir import DataDirectory, DataDirectoryError, default_data_directory, lock_path, user_directory
from broker.pid_file import PidFile, holder_of
from tests.system.processes import goes

HOLDER = """
import sys
from broker.pid_file import PidFile
held = PidFile(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
NOBODY = 65534


def start_holder(path: Path) -> subprocess.Popen[bytes]:
    """A process that holds a file until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


# ---- pid files ----


def test_a_file_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    assert holder_of(str(path)) is None
    held = PidFile(str(path))
    assert path.read_text() == f"{os.getpid()}\n"
    assert holder_of(str(path)) == os.getpid()
    with pytest.raises(BlockingIOError):
        PidFile(str(path))
    held.release(remove=False)
    assert holder_of(str(path)) is None
    again = PidFile(str(path))
    again.release(remove=True)
    assert not path.exists()


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    process = start_holder(path)
    assert holder_of(str(path)) == process.pid
    with pytest.raises(BlockingIOError):
        PidFile(str(path))
    kill(process)
    assert path.read_text() == f"{process.pid}\n"  # and it is nobody's all the same
    assert holder_of(str(path)) is None
    PidFile(str(path)).release(remove=True)


def test_looking_does_not_keep_anybody_from_taking_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        fcntl.flock(file, fcntl.LOCK_UN)
        assert process.communicate()[0] == b"held\n"


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1 2", b"9" * 100])
def test_a_file_that_is_held_and_tells_no_number(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pid"
    path.write_bytes(content)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DaemonError, match="does not tell its number"):
            find([str(path)])


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pid").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        PidFile(str(tmp_path / "pid"))
    assert not (tmp_path / "other").exists()


def test_the_pid_file_of_a_port(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "run"
    held = hold_pid_file(str(directory), 5672)
    path = directory / "qpidd.5672.pid"
    assert held.path == str(path) == pid_path(str(directory), 5672)
    assert find([str(tmp_path / "none"), str(path)]) == os.getpid()
    with pytest.raises(DaemonError, match=r"Cannot lock .*qpidd\.5672\.pid: Resource temporarily unavailable"):
        hold_pid_file(str(directory), 5672)
    hold_pid_file(str(directory), 5673).release(remove=True)
    held.release(remove=True)
    with pytest.raises(DaemonError, match="--pid-dir"):
        hold_pid_file("/proc/none", 1)


def test_a_process_is_ended(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "pid")
    end(process.pid, 30.0)
    assert process.wait() == -15
    process.communicate()
    end(process.pid, 0.0)  # it is gone: nothing is to be done


def test_a_process_that_does_not_end() -> None:
    program = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(DaemonError, match=r"has not ended within 0\.05 s"):
        end(process.pid, 0.05)
    kill(process)
    assert goes(process.pid)


# ---- the data directory ----


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    held = DataDirectory(str(tmp_path / "a" / "data"))
    assert held.path == str(tmp_path / "a" / "data")
    assert Path(held.path).stat().st_mode & 0o777 == 0o700
    assert Path(held.path, "lock").read_text() == f"{os.getpid()}\n"
    held.release()
    assert Path(held.path, "lock").read_text() == ""


def test_one_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    DataDirectory(str(tmp_path)).release()
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held = DataDirectory("data")
    assert held.path == str(tmp_path / "data")
    held.release()


def test_one_broker_has_it_at_a_time(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "lock")
    wanted = rf"^Cannot lock {tmp_path}/lock: Resource temporarily unavailable; process {process.pid} has it: "
    with pytest.raises(DataDirectoryError, match=wanted):
        DataDirectory(str(tmp_path))
    kill(process)
    DataDirectory(str(tmp_path)).release()


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked" / "lock").mkdir(parents=True)
    for name, text in (("file", "File exists"), ("file/below", "File exists"), ("locked", "Is a directory")):
        with pytest.raises(DataDirectoryError, match=f"the data directory cannot be used: {text}; give another"):
            DataDirectory(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not write")
def test_a_directory_that_must_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data").mkdir(0o755)
    program = (
        f"import os, sys\nfrom broker.data_dir import DataDirectory\nos.setuid({NOBODY})\nDataDirectory(sys.argv[1])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert "the data directory cannot be used: Permission denied; give another" in ended.stderr


def test_default_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_directory() == "/home/somebody/.qpidd"
    assert default_data_directory(is_daemon=False) == "/home/somebody/.qpidd"
    assert default_data_directory(is_daemon=True) == "/var/lib/qpidd"
    assert lock_path("/a") == "/a/lock"
