"""Files with a process id, finding and ending a process by them, and the two processes of a daemon's start."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.process.daemon import DaemonError, end, find, hold_pid_file, pid_directories, pid_path
from qstore.broker.process.held_files import PidFile, holder_of
from tests.broker.holder import ROOT, kill, launch_holder, start_holder
from tests.support.processes import PATIENCE_SECONDS, goes

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
        process = launch_holder(path)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert process.communicate()[0] == b"held\n"


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1 2", b"9" * 100])
def test_a_locked_file_without_a_number(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pid"
    path.write_bytes(content)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DaemonError, match="contains no process id"):
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


def test_default_pid_directory_depends_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for user, first in ((0, "/var/run/qpidd"), (1000, "/home/somebody/.qpidd")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert pid_directories()[0] == first
        assert sorted(pid_directories()) == ["/home/somebody/.qpidd", "/var/run/qpidd"]


# ---- two processes ----

FORK: Final = """
import os, sys, time
from qstore.broker.process import daemon
try:
    forked = daemon.fork(float(sys.argv[1]))
except daemon.DaemonError as error:
    print("error", error)
    sys.exit(1)
if isinstance(forked, daemon.Started):
    print("started", forked.port, forked.process)
    sys.exit(0)
{child}
"""


def fork(child: str, wait: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Runs a program whose daemon does what `child` says."""
    return subprocess.run(
        [sys.executable, "-c", FORK.format(child=child), str(wait)],
        capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def test_the_parent_ends_when_the_child_is_ready() -> None:
    ended = fork("forked.ready(5672)\ntime.sleep(60)")
    word, port, process = ended.stdout.split()
    assert (ended.returncode, word, port) == (0, "started", "5672")
    assert os.getsid(int(process)) == int(process)
    os.kill(int(process), signal.SIGKILL)
    assert goes(int(process))


def test_the_child_inherits_no_files(tmp_path: Path) -> None:
    program = "forked.ready(1)\nopen({!r}, 'w').write(' '.join(sorted(os.listdir('/proc/self/fd'))))"
    with (tmp_path / "given").open("w") as given:
        os.set_inheritable(given.fileno(), True)
        ended = fork(program.format(str(tmp_path / "found")))
    process = int(ended.stdout.split()[2])
    assert goes(process)
    assert (tmp_path / "found").read_text() == "0 1 2 3 4"  # those of the file and of the list


@pytest.mark.parametrize(
    ("child", "text"),
    [
        ("forked.failed('Cannot lock it')", "Cannot lock it"),
        ("forked.failed('\\udcff' + 'x' * 100_000)", r"\udcffxxx"),
        ("sys.exit(3)", "exited before it was ready, with status 3; see its log"),
        ("os.kill(os.getpid(), 9)", "exited before it was ready, with status -9"),
    ],
)
def test_a_child_that_cannot_start(child: str, text: str) -> None:
    ended = fork(child)
    assert ended.returncode == 1
    assert ended.stdout.startswith(f"error {text}")
    assert ended.stdout.count("\n") == 1
    assert len(ended.stdout) < 5000


def test_a_child_that_takes_too_long(tmp_path: Path) -> None:
    ended = fork(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)", 2.0)
    assert ended.stdout.startswith(
        "error not ready within 2 s; it has been sent SIGTERM; increase the time with --wait"
    )
    assert goes(int((tmp_path / "pid").read_text()))
