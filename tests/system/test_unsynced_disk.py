"""The disk of `test_broker_power_loss`: what it loses, what it keeps, and how it fails."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.system.power_loss.disk import SECTOR, Call, UnsyncedDisk, build

#: What programs begin with: shorthands for files below the directory.
_PRELUDE = """
import array, os, socket, sys
os.chdir(sys.argv[1])
def put(path, content, *, sync=True, at=0):
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(file, content, at)
    if sync:
        os.fdatasync(file)
    os.close(file)
def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
"""


@pytest.fixture
def disk(tmp_path: Path) -> UnsyncedDisk:
    return UnsyncedDisk(build(tmp_path), tmp_path / "root", tmp_path / "notes")


def run(disk: UnsyncedDisk, program: str, *arguments: str) -> str:
    """What a program prints that works on the disk."""
    command = [sys.executable, "-c", _PRELUDE + program, str(disk.root), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **disk.environment}, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(disk: UnsyncedDisk) -> dict[str, bytes | None]:
    """Everything on the disk by its path; directories have no content."""
    found = disk.root.rglob("*")
    return {str(path.relative_to(disk.root)): path.read_bytes() if path.is_file() else None for path in found}


def test_synced_files_stay(disk: UnsyncedDisk) -> None:
    run(disk, "put('a', b'content'); os.mkdir('d'); put('d/b', b'more'); sync('d'); sync('.')")
    before = tree(disk)
    assert disk.lose() == 0
    assert tree(disk) == before == {"a": b"content", "d": None, "d/b": b"more"}


def test_content_that_was_not_synced_is_gone(disk: UnsyncedDisk) -> None:
    run(disk, "put('a', b'content'); put('b', b'content'); put('c', b'content'); sync('.')")
    run(disk, "put('a', b'CON', sync=False); put('b', b'longer', at=7, sync=False); os.truncate('a', 5)")
    run(disk, "open('c', 'wb').write(b'new')")
    disk.lose()
    assert tree(disk) == {"a": b"content", "b": b"content", "c": b"content"}


def test_a_sync_keeps_earlier_writes(disk: UnsyncedDisk) -> None:
    run(disk, "put('a', b'one'); sync('.'); put('a', b'two'); put('a', b'three', sync=False)")
    disk.lose()
    assert tree(disk) == {"a": b"two"}


def test_another_process_syncs_a_file_that_it_was_sent(disk: UnsyncedDisk) -> None:
    run(
        disk,
        """
ours, theirs = socket.socketpair()
put('a', b'one', sync=False)
sync('.')
if os.fork():
    file = os.open('a', os.O_RDWR)
    ours.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [file]))])
    os.wait()
else:
    _, rights, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
    os.fdatasync(int.from_bytes(rights[0][2], 'little'))
""",
    )
    assert disk.lose() == 0
    assert tree(disk) == {"a": b"one"}


def test_names_come_and_go_back(disk: UnsyncedDisk) -> None:
    run(disk, "put('old', b'old'); put('new', b'new'); put('gone', b'gone'); os.mkdir('d'); put('d/x', b'x')")
    run(disk, "sync('d'); sync('.')")
    before = tree(disk)
    run(disk, "os.replace('new', 'old'); os.unlink('gone'); put('made', b''); os.rename('d', 'e'); os.unlink('e/x')")
    run(disk, "os.rmdir('e'); os.mkdir('f')")
    assert disk.lose() == 7
    assert tree(disk) == before


def test_a_move_between_directories_is_one_step(disk: UnsyncedDisk) -> None:
    run(disk, "os.mkdir('d'); put('a', b'a'); put('b', b'b'); sync('.')")
    run(disk, "os.rename('a', 'd/a'); sync('d'); os.rename('b', 'd/b')")
    disk.lose()
    assert tree(disk) == {"d": None, "d/a": b"a", "b": b"b"}


def test_sector_by_sector(disk: UnsyncedDisk) -> None:
    run(disk, f"put('a', b'.' * {16 * SECTOR}); sync('.'); put('a', b'X' * {16 * SECTOR}, sync=False)")
    disk.lose(random.Random(3))
    content = tree(disk)["a"]
    assert content is not None
    sectors = [content[at : at + SECTOR] for at in range(0, len(content), SECTOR)]
    assert set(sectors) == {b"." * SECTOR, b"X" * SECTOR}


@pytest.mark.parametrize(
    ("call", "program"),
    today(
        [
            (Call.SYNC, "os.fdatasync(file)"),
            (Call.SYNC, "os.fsync(file)"),
            (Call.WRITE, "os.pwrite(file, b'x', 0)"),
            (Call.WRITE, "os.write(file, b'x')"),
            (Call.WRITE, "os.ftruncate(file, 9)"),
            (Call.WRITE, "os.posix_fallocate(file, 0, 9)"),
            (Call.NAME, "os.open('b', os.O_CREAT | os.O_RDWR)"),
            (Call.NAME, "os.mkdir('d')"),
            (Call.NAME, "os.rename('a', 'b')"),
            (Call.NAME, "os.unlink('a')"),
        ],
        5,
    ),
)
def test_calls_fail_as_planned(disk: UnsyncedDisk, call: Call, program: str) -> None:
    run(disk, "put('a', b'content'); sync('.')")
    disk.fail(call, errno.ENOSPC, after=0, count=1, where="/")
    printed = run(
        disk,
        f"""
file = os.open('a', os.O_RDWR)
try:
    {program}
except OSError as error:
    print(error.errno)
{program}
""",
    )
    assert printed == f"{errno.ENOSPC}\n"
    assert disk.failures(call) == 1


def test_after_a_sync_that_failed_later_ones_save_nothing(disk: UnsyncedDisk) -> None:
    """As with a kernel that has dropped the pages which it could not write."""
    run(disk, "put('a', b'one'); sync('.')")
    disk.fail(Call.SYNC, count=1)
    run(
        disk,
        """
file = os.open('a', os.O_RDWR)
os.pwrite(file, b'two', 0)
try:
    os.fdatasync(file)
except OSError:
    os.fdatasync(file)
""",
    )
    disk.lose()
    assert tree(disk) == {"a": b"one"}


def test_other_directories_are_left_alone(disk: UnsyncedDisk, tmp_path: Path) -> None:
    disk.fail(Call.WRITE)
    other = tmp_path / "other"
    run(disk, "put(sys.argv[2], b'content', sync=False)", str(other))
    assert (disk.lose(), other.read_bytes()) == (0, b"content")
