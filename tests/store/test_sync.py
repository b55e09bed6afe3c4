"""The sync drivers: one contract for all, and what belongs to each; syncs in the background."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from qstore.store.disk import OsWritableDisk, OsWritableFile, SyncGroup, WritableFile
from qstore.store.environment import Background, InlineBackground, ThreadBackground, tool_environment
from qstore.store.errors import StoreError, disk_advice
from qstore.store.key_value import CatalogueError, WatchedKeyValue
from qstore.store.log_lines import Level, LogLine, Outage
from qstore.store.sync import (
    SYNC_DRIVERS,
    Completion,
    HelperProcessSync,
    InlineSync,
    IoUringSync,
    SyncDriver,
    SyncDriverError,
    ThreadSync,
    choose_sync_driver,
    helper,
    io_uring,
    process,
)
from qstore.store.sync.supervision import StartingDriver
from tests.support.compiled import replaces
from tests.support.memory_disk import MemoryKeyValue
from tests.support.opened_store import OpenedStore
from tests.support.processes import PATIENCE_SECONDS, comes, is_running, stop_process
from tests.support.sync_files import IO_URING, FileMaker, PipeFile, collect, has_io_uring, needs_io_uring

ROOT = Path(__file__).parents[2]


class FaultyFile(PipeFile):
    """A file whose sync fails in a way that no disk knows."""

    def sync(self) -> None:
        raise RuntimeError("a fault of the program")


@pytest.fixture(params=[IO_URING, "process", "thread", "inline"])
def driver(request: pytest.FixtureRequest) -> Iterator[SyncDriver]:
    driver = choose_sync_driver(request.param)
    yield driver
    driver.close()


@pytest.fixture
def helped() -> Iterator[HelperProcessSync]:
    driver = HelperProcessSync()
    yield driver
    driver.close()


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def stop(driver: HelperProcessSync) -> None:
    """Hold the helper still."""
    stop_process(driver.pid)
    tasks = Path(f"/proc/{driver.pid}/task")
    assert comes(
        lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    )


# The contract of all drivers.


def test_a_ticket_comes_back_once(driver: SyncDriver, make_files: FileMaker) -> None:
    driver.submit(7, make_files(1))
    assert driver.completed(None) == [(7, None)]
    assert driver.completed(0.0) == []
    assert driver.completed(None) == []


@pytest.mark.parametrize(("tickets", "each"), [(3, 1), (50, 3), (1500, 1), (2, 600)])
def test_many_tickets_of_many_files(driver: SyncDriver, make_files: FileMaker, tickets: int, each: int) -> None:
    files = make_files(max(each, 20))
    for ticket in range(tickets):
        driver.submit(ticket << 40, [files[(ticket + number) % len(files)] for number in range(each)])
    assert collect(driver, tickets) == [(ticket << 40, None) for ticket in range(tickets)]


@pytest.mark.parametrize("count", [1, 100])
def test_an_error_belongs_to_its_ticket(
    driver: SyncDriver, make_files: FileMaker, pipe_file: PipeFile, count: int
) -> None:
    files: list[WritableFile] = list(make_files(count))
    driver.submit(1, files)
    driver.submit(2, [*files, pipe_file, *files])
    driver.submit(3, [pipe_file])
    driver.submit(4, files)
    errors = [error for _, error in collect(driver, 4)]
    assert [error and error.errno for error in errors] == [None, errno.EINVAL, errno.EINVAL, None]
    assert "pipe" in str(errors[1])


@pytest.mark.parametrize("count", [1, 100])
def test_a_file_that_is_closed_is_an_error(driver: SyncDriver, make_files: FileMaker, count: int) -> None:
    closed, *others = make_files(count + 1)
    closed.close()
    driver.submit(1, [closed])
    driver.submit(2, others)
    driver.submit(3, [*others, closed])
    assert [error and error.errno for _, error in collect(driver, 3)] == [errno.EBADF, None, errno.EBADF]


def test_syncing_a_closed_file_is_an_error_of_the_system(make_files: FileMaker) -> None:
    (file,) = make_files(1)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        file.sync()
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename.endswith("/0")


def test_closing_with_tickets_outstanding(driver: SyncDriver, make_files: FileMaker) -> None:
    files = make_files(100)
    for ticket in range(500):
        driver.submit(ticket, files[ticket % 100 :][:3])
    driver.close()
    driver.close()
    with pytest.raises(SyncDriverError, match="is closed"):
        driver.submit(1, files)


@pytest.mark.parametrize("driver", [IO_URING, "process", "thread"], indirect=True)
def test_the_descriptor_is_readable_exactly_while_completions_wait(driver: SyncDriver, make_files: FileMaker) -> None:
    files = make_files(2)
    for ticket in range(20):
        assert not is_readable(driver.fileno())
        driver.submit(ticket, files[: 1 + ticket % 2])
        assert is_readable(driver.fileno(), PATIENCE_SECONDS)
        assert is_readable(driver.fileno())
        assert collect(driver, 1) == [(ticket, None)]


def test_the_inline_driver_has_no_descriptor(make_files: FileMaker) -> None:
    assert InlineSync().fileno() == -1


@pytest.mark.parametrize("driver", [IO_URING, "process", "thread"], indirect=True)
def test_on_an_event_loop(driver: SyncDriver, make_files: FileMaker) -> None:
    files = make_files(200)

    async def run() -> list[Completion]:
        loop = asyncio.get_running_loop()
        done: list[Completion] = []
        finished = loop.create_future()

        def completed() -> None:
            done.extend(driver.completed())
            if len(done) == 400:
                finished.set_result(None)

        loop.add_reader(driver.fileno(), completed)
        for ticket in range(400):
            driver.submit(ticket, [files[ticket % 200]])
        await asyncio.wait_for(finished, PATIENCE_SECONDS)
        loop.remove_reader(driver.fileno())
        return done

    assert sorted(asyncio.run(run())) == [(ticket, None) for ticket in range(400)]


def test_no_descriptor_is_left(driver: SyncDriver, make_files: FileMaker, pipe_file: PipeFile) -> None:
    files: list[WritableFile] = [*make_files(100), pipe_file]
    before = len(os.listdir("/proc/self/fd"))
    for ticket in range(1000):
        driver.submit(ticket, [files[ticket % len(files)]])
    collect(driver, 1000)
    left = len(os.listdir("/proc/self/fd")) - before
    assert left == 0 or (left == 1 and isinstance(driver, IoUringSync))  # the helper, which so many steps may start
    if isinstance(driver, HelperProcessSync):
        assert len(os.listdir(f"/proc/{driver.pid}/fd")) == 4


@pytest.mark.parametrize("name", [IO_URING, "process", "thread"])
def test_closing_lets_everything_go(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    choose_sync_driver(name).close()
    assert len(os.listdir("/proc/self/fd")) == before


# Threads.


def test_a_fault_in_a_thread_is_not_silence(make_files: FileMaker) -> None:
    driver = ThreadSync()
    file = FaultyFile()
    driver.submit(1, [file])
    assert is_readable(driver.fileno(), PATIENCE_SECONDS)
    with pytest.raises(SyncDriverError, match=r"RuntimeError.*a fault of the program"):
        driver.completed(None)
    with pytest.raises(SyncDriverError, match="a fault of the program"):
        driver.submit(2, make_files(1))
    assert is_readable(driver.fileno())
    driver.close()
    file.close()


# The helper process.


def is_dead(driver: HelperProcessSync, files: list[OsWritableFile]) -> bool:
    """Whether the driver knows it; it is given something to wait for."""
    try:
        driver.submit(2, files)
        driver.completed(None)
    except SyncDriverError:
        return True
    return False


def assert_dead(driver: HelperProcessSync, files: list[OsWritableFile], match: str) -> None:
    """Every call reports what happened, in one line, and an event loop is woken."""
    for _ in range(2):
        with pytest.raises(SyncDriverError, match=match) as caught:
            driver.completed(None)
        assert "\n" not in str(caught.value)
        assert is_readable(driver.fileno())
        with pytest.raises(SyncDriverError, match=match):
            driver.submit(3, files)


def test_a_helper_killed_at_work(helped: HelperProcessSync, make_files: FileMaker) -> None:
    files = make_files(100)
    stop(helped)
    for ticket in range(1000):
        helped.submit(ticket, [files[ticket % 100]])
    assert helped.completed() == []
    assert helped.completed(0.01) == []
    os.kill(helped.pid, signal.SIGKILL)
    assert_dead(helped, files, "killed by signal 9")


def test_a_helper_killed_at_rest(helped: HelperProcessSync, make_files: FileMaker) -> None:
    os.kill(helped.pid, signal.SIGKILL)
    assert is_readable(helped.fileno(), PATIENCE_SECONDS)
    assert_dead(helped, make_files(1), "killed by signal 9")


def test_submitting_to_a_dead_helper(helped: HelperProcessSync, make_files: FileMaker) -> None:
    os.kill(helped.pid, signal.SIGKILL)
    assert is_readable(helped.fileno(), PATIENCE_SECONDS)
    with pytest.raises(SyncDriverError, match="killed by signal 9"):
        helped.submit(1, make_files(1))
    assert_dead(helped, make_files(1), "killed by signal 9")


def test_answers_that_came_before_the_death_are_given(helped: HelperProcessSync, make_files: FileMaker) -> None:
    files = make_files(1)
    helped.submit(1, files)
    assert is_readable(helped.fileno(), PATIENCE_SECONDS)
    os.kill(helped.pid, signal.SIGKILL)
    hung_up = select.poll()
    hung_up.register(helped.fileno(), select.POLLHUP)
    assert hung_up.poll(PATIENCE_SECONDS * 1000)
    assert helped.completed(None) == [(1, None)]
    assert_dead(helped, files, "killed by signal 9")


@pytest.mark.parametrize(
    ("program", "match"),
    [
        ("connection.send(b'')", "ended"),
        ("raise SystemExit(3)", "exit status 3"),
        ("connection.send(bytes(11))", "sent an invalid answer, 0000"),
        ("connection.send(bytes(24))", "sent an invalid answer"),
        ("connection.send(b'\\xff' * 12)", "sent an invalid answer, ffff"),
        ("connection.send(bytes(12)); connection.send(bytes(12))", "sent an invalid answer"),
    ],
)
def test_a_helper_that_makes_no_sense(
    make_files: FileMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, match: str
) -> None:
    path = tmp_path / "helper.py"
    path.write_text(
        "import socket, sys\nconnection = socket.socket(fileno=int(sys.argv[1]))\n"
        f"connection.send({helper.GREETING!r})\nconnection.recv(9)\n{program}\nwhile connection.recv(9): pass\n"
    )
    monkeypatch.setattr(helper, "__file__", str(path))
    driver = HelperProcessSync()
    files = make_files(1)
    driver.submit(1, files)
    assert comes(lambda: is_dead(driver, files))
    assert_dead(driver, files, match)
    driver.close()


@pytest.mark.parametrize(
    ("program", "match"),
    [
        ("", "did not start.*exit status 0"),
        ("raise SystemExit(1)", "did not start.*exit status 1"),
        ("connection.send(b'qstore-sync 2')", "did not start.*qstore-sync 2"),
        ("connection.recv(1)", "did not start: sent nothing for 1"),
    ],
)
def test_a_helper_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, match: str
) -> None:
    path = tmp_path / "helper.py"
    path.write_text(f"import socket, sys\nconnection = socket.socket(fileno=int(sys.argv[1]))\n{program}\n")
    monkeypatch.setattr(helper, "__file__", str(path))
    monkeypatch.setattr(process, "START_SECONDS", 1.0 if "recv" in program else PATIENCE_SECONDS)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SyncDriverError, match=match):
        HelperProcessSync()
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_tickets_than_the_helper_takes_wait(helped: HelperProcessSync, make_files: FileMaker) -> None:
    files = make_files(100)
    stop(helped)
    for ticket in range(5000):
        helped.submit(ticket, [files[ticket % 100]])
    assert helped.completed() == []
    os.kill(helped.pid, signal.SIGCONT)
    assert collect(helped, 5000) == [(ticket, None) for ticket in range(5000)]


def test_a_file_closed_too_early_is_never_another_file(helped: HelperProcessSync, make_files: FileMaker) -> None:
    """Those at the helper are synced, those that wait here are errors, and their neighbours are not."""
    files = make_files(helper.THREADS + 60)
    stop(helped)
    for ticket, file in enumerate(files):
        helped.submit(ticket, [file])
    closed = {*range(helper.THREADS), *range(helper.THREADS, len(files), 7)}
    for ticket in closed:
        files[ticket].close()
    others = [PipeFile() for _ in closed]  # These get the numbers of the closed ones, and would answer EINVAL.
    os.kill(helped.pid, signal.SIGCONT)
    errors = {ticket: error.errno for ticket, error in collect(helped, len(files)) if error}
    assert errors == dict.fromkeys(range(helper.THREADS, len(files), 7), errno.EBADF)
    for other in others:
        other.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_helper_survives_signals_that_end_its_parent(
    helped: HelperProcessSync, make_files: FileMaker, number: int
) -> None:
    os.kill(helped.pid, number)
    helped.submit(1, make_files(1))
    assert helped.completed(None) == [(1, None)]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_the_helper_inherits_nothing(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    driver = HelperProcessSync()
    assert len(os.listdir(f"/proc/{driver.pid}/fd")) == 4
    assert os.readlink(f"/proc/{driver.pid}/cwd") == "/"
    os.close(descriptor)
    driver.close()


@pytest.mark.parametrize("outstanding", [0, 1000])
def test_the_helper_ends_when_its_parent_is_killed(tmp_path: Path, outstanding: int) -> None:
    program = f"""
import time
from qstore.store.sync import HelperProcessSync
from qstore.store.disk import OsWritableDisk
driver = HelperProcessSync()
file = OsWritableDisk().create({str(tmp_path / "file")!r}, 4096)
for ticket in range({outstanding}):
    driver.submit(ticket, [file])
print(driver.pid, flush=True)
time.sleep({PATIENCE_SECONDS * 2})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    assert comes(lambda: not is_running(pid))


# The choice.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", IoUringSync if has_io_uring() else HelperProcessSync),
        pytest.param("io-uring", IoUringSync, marks=needs_io_uring),
        ("process", HelperProcessSync),
        ("thread", ThreadSync),
        ("inline", InlineSync),
    ],
)
def test_the_choice(name: str, kind: type[SyncDriver]) -> None:
    assert name in SYNC_DRIVERS
    driver = choose_sync_driver(name)
    assert type(driver) is kind
    driver.close()


@replaces
def test_threads_where_there_is_no_io_uring_and_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_uring, "MACHINE", "another")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    driver = choose_sync_driver("auto")
    assert type(driver) is ThreadSync
    driver.close()


def test_a_helper_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SyncDriverError, match=r"^/nowhere/python: cannot start a sync helper: No such file"):
        choose_sync_driver("process")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_driver_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="'uring' is unknown: choose one of auto, io-uring, process, thread, inline"):
        choose_sync_driver("uring")


def test_the_helper_imports_little() -> None:
    """Each of these takes a quarter of a MiB or more, and some milliseconds of a start."""
    code = f"import sys; exec(open({helper.__file__!r}).read(), {{'__name__': 'helper'}}); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True)
    assert {"_socket", "_thread"} <= (modules := set(run.stdout.split()))
    assert not modules & {"socket", "threading", "typing", "enum", "re"}


# ---- one sync for many files: the helper's side of a request that many files came with ----


@pytest.fixture
def own_files(make_files: FileMaker) -> list[int]:
    return [file.fileno() for file in make_files(40)]


def test_many_files_of_an_ext4_are_synced_at_once(own_files: list[int], tmp_path: Path) -> None:
    name = subprocess.run(["df", "--output=fstype", tmp_path], capture_output=True, check=True, text=True).stdout
    expected = [0] * 40 if name.split()[-1] == "ext4" else None
    assert helper.FileSystemSync().sync(own_files) == expected


def test_files_of_several_file_systems_are_not(own_files: list[int], pipe_file: PipeFile) -> None:
    assert helper.FileSystemSync().sync([*own_files, pipe_file.fileno()]) is None


@pytest.mark.parametrize(
    ("release", "tells"), [("4.19.0", False), ("5.7.9-x", False), ("5.8-rc1", True), ("6.1", True)]
)
def test_syncfs_is_not_used_where_it_reports_no_errors(
    monkeypatch: pytest.MonkeyPatch, pipe_file: PipeFile, release: str, tells: bool
) -> None:
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", release, "", "")))
    assert (helper.FileSystemSync().sync([pipe_file.fileno()]) is not None) == tells


def test_each_file_is_asked_for_its_own_error(monkeypatch: pytest.MonkeyPatch, pipe_file: PipeFile) -> None:
    """A pipe's file system can be synced, the pipe itself has nothing to ask: ESPIPE."""
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    assert helper.FileSystemSync().sync([pipe_file.fileno()] * 2) == [errno.ESPIPE] * 2


def test_after_a_failed_syncfs_each_file_is_synced_by_itself(
    monkeypatch: pytest.MonkeyPatch, own_files: list[int]
) -> None:
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    at_once = helper.FileSystemSync()
    monkeypatch.setattr(at_once, "_libc", SimpleNamespace(syncfs=lambda descriptor: -1))
    assert at_once.sync(own_files) is None


def test_a_file_system_that_cannot_be_synced_at_once_is_synced_file_by_file(
    monkeypatch: pytest.MonkeyPatch, make_files: FileMaker, pipe_file: PipeFile
) -> None:
    """The helper's side alone, in this process, as on a file system that is not ext4."""
    asked: list[int] = []

    def sync_file(descriptor: int) -> int:
        asked.append(descriptor)
        return 0

    monkeypatch.setattr(helper, "sync_file", sync_file)
    monkeypatch.setattr(helper.FileSystemSync, "sync", lambda _, descriptors: None)
    descriptors = [file.fileno() for file in make_files(100)]
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        assert helper.Helper(far).sync(descriptors) == [0] * 100
    assert sorted(asked) == sorted(descriptors)


# ---- files that are synced while something else is done ----


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
def test_any_number_of_files_is_synced(tmp_path: Path, count: int) -> None:
    files, synced, done = files_in(tmp_path, count), set[int](), list[str]()
    with (
        patch.object(os, "fdatasync", synced.add),
        patch.object(OsWritableDisk, "_sync_at_once", lambda *_: None),
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


# ---- groups of files and directories that are synced at the same time ----


def test_groups_are_synced_at_the_same_time_and_each_has_its_own_error(tmp_path: Path) -> None:
    one, two, three = files_in(tmp_path, 3)
    together = threading.Barrier(4)

    def sync(descriptor: int) -> None:
        together.wait(10)
        if descriptor == two.fileno():
            raise OSError(errno.EIO, "broken")

    with patch.object(os, "fdatasync", sync), patch.object(os, "fsync", lambda _: together.wait(10)):
        errors = OsWritableDisk().sync_each([((one,), ()), ((two,), (str(tmp_path),)), ((three,), ())])
    assert (errors[0], errors[2]) == (None, None)
    assert errors[1] is not None
    assert errors[1].errno == errno.EIO


def test_without_threads_groups_are_synced_by_the_caller(tmp_path: Path) -> None:
    files, done = files_in(tmp_path, 3), list[int]()
    with (
        patch.object(os, "fdatasync", done.append),
        patch.object(threading.Thread, "start", side_effect=RuntimeError),
    ):
        assert OsWritableDisk().sync_each([((file,), ()) for file in files]) == [None] * 3
    assert done == [file.fileno() for file in files]


def test_many_files_are_synced_at_once_and_errors_are_those_of_their_groups(tmp_path: Path) -> None:
    files, missing = files_in(tmp_path, 20), str(tmp_path / "missing")
    groups: list[SyncGroup] = [(files[:5], ()), (files[5:10], (missing,)), (files[10:], (str(tmp_path),))]
    broken = {files[3].fileno(): errno.EIO}

    def at_once(_: object, descriptors: Sequence[int]) -> list[int]:
        assert len(descriptors) == 21
        return [broken.get(descriptor, 0) for descriptor in descriptors]

    with patch.object(helper.FileSystemSync, "sync", at_once), patch.object(os, "fdatasync", None):
        errors = OsWritableDisk().sync_each(groups)
        assert [None if error is None else error.errno for error in errors] == [errno.EIO, errno.ENOENT, None]
        OsWritableDisk().sync_all(files[10:], [str(tmp_path)] * 11)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):  # a sync of the file by itself would succeed now
            OsWritableDisk().sync_all(files, (str(tmp_path),))


# ---- a sync driver that starts during recovery ----


class Noted(InlineSync):
    """A driver that notes that it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.mark.parametrize("make_background", [InlineBackground, ThreadBackground])
def test_a_started_driver_is_taken_or_closed(make_background: Callable[[], Background]) -> None:
    driver = Noted()
    starting = StartingDriver(make_background(), lambda: driver)
    assert starting.take() is driver
    starting.close()
    assert not driver.is_closed
    starting = StartingDriver(make_background(), lambda: driver)
    starting.close()
    assert driver.is_closed


def refuse() -> SyncDriver:
    raise SyncDriverError("too many processes")


@pytest.mark.parametrize("make_background", [InlineBackground, ThreadBackground])
def test_a_driver_that_does_not_start(make_background: Callable[[], Background]) -> None:
    starting = StartingDriver(make_background(), refuse)
    with pytest.raises(SyncDriverError, match="too many processes"):
        starting.take()
    starting.close()
    StartingDriver(make_background(), refuse).close()


def test_a_store_without_a_driver_is_not_opened(tmp_path: Path) -> None:
    environment = tool_environment()._replace(make_driver=lambda _: refuse(), make_background=ThreadBackground)
    with pytest.raises(StoreError, match="too many processes"):
        OpenedStore(environment, tmp_path / "store")


def test_a_store_that_cannot_be_opened_leaves_no_driver(tmp_path: Path) -> None:
    driver = Noted()
    environment = tool_environment()._replace(make_driver=lambda _: driver, make_background=ThreadBackground)
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    assert opened.store.close()
    (tmp_path / "store" / "rhm" / "STORE").write_bytes(b"nonsense")
    with pytest.raises(StoreError):
        OpenedStore(environment, tmp_path / "store")
    assert driver.is_closed


# ---- outages are logged when they begin, and when they are over ----


class FailingKeyValue(MemoryKeyValue):
    """A map that can be full."""

    is_full = False

    def write(self, changes: object) -> None:
        if self.is_full:
            raise CatalogueError("/store/catalogue: RocksDB cannot write: No space left on device")
        super().write(changes)  # type: ignore[arg-type]


def test_each_outage_is_reported_when_it_begins_and_when_it_is_over() -> None:
    lines: list[LogLine] = []
    outage = Outage("it cannot be done", "it can be done again", lines.append)
    outage.worked()
    for _ in range(2):
        for _ in range(3):
            outage.failed("no room", "make room")
        for _ in range(3):
            outage.worked()
    reported = [
        LogLine(Level.CRITICAL, "it cannot be done: no room; make room"),
        LogLine(Level.NOTICE, "it can be done again"),
    ]
    assert lines == reported * 2


def test_a_catalogue_that_cannot_be_written() -> None:
    lines: list[LogLine] = []
    inner = FailingKeyValue()
    watched = WatchedKeyValue(inner, lines.append)
    watched.write({b"a": b"1"})
    inner.is_full = True
    for _ in range(2):
        with pytest.raises(CatalogueError, match="No space left"):
            watched.write({b"b": b"2"})
    assert (watched.get(b"a"), watched.get(b"b"), dict(watched.items(b""))) == (b"1", None, {b"a": b"1"})
    inner.is_full = False
    watched.write({b"b": b"2"})
    assert [line.level for line in lines] == [Level.CRITICAL, Level.NOTICE]
    assert "No space left on device; check whether the disk is full" in lines[0].text


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "the disk is failing"),
        (errno.EPERM, "check whether"),
    ],
)
def test_the_advice_is_that_for_the_error(code: int, what: str) -> None:
    assert what in disk_advice(OSError(code, os.strerror(code)))
