"""The driver with io_uring: writes and syncs by threads of the kernel, where the system has it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.store.disk import OsWritableDisk, OsWritableFile
from qstore.store.live.commit import FLUSHES_AT_ONCE
from qstore.store.sync import (
    Completion,
    FileWrite,
    HelperProcessSync,
    IoUringSync,
    SyncDriverError,
    ThreadSync,
    choose_sync_driver,
    helper,
    io_uring,
    process,
)
from tests.support.compiled import replaces
from tests.support.processes import PATIENCE_SECONDS, children_of, is_running, stop_process
from tests.support.sync_files import FileMaker, collect, needs_io_uring

ROOT = Path(__file__).parents[2]
SIZE = 4 << 20


pytestmark = needs_io_uring


@pytest.fixture(scope="module")
def driver() -> Iterator[IoUringSync]:
    driver = IoUringSync()
    yield driver
    driver.close()


@pytest.fixture
def own() -> Iterator[IoUringSync]:
    driver = IoUringSync()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OsWritableFile]:
    file = OsWritableDisk().create(str(tmp_path_factory.mktemp("io_uring") / "journal"), SIZE)
    yield file
    file.close()


def a_write(file: OsWritableFile, offset: int, *pieces: bytes, is_all: bool = False) -> FileWrite:
    return FileWrite(file, offset, pieces, sum(map(len, pieces)), is_all=is_all)


@given(
    st.lists(
        st.tuples(st.integers(0, 60_000), st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=6)),
        min_size=1,
        max_size=70,
    )
)
def test_writes_of_a_step_are_done_in_order(
    driver: IoUringSync, file: OsWritableFile, writes: list[tuple[int, list[bytes]]]
) -> None:
    expected = bytearray(file.read(0, 100_000))
    for offset, pieces in writes:
        content = b"".join(pieces)
        expected[offset : offset + len(content)] = content
    driver.submit(1, [file], [a_write(file, offset, *pieces) for offset, pieces in writes])
    assert collect(driver, 1) == [(1, None)]
    assert file.read(0, 100_000) == bytes(expected)


@pytest.mark.parametrize("is_all", [False, True])
@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 5000])
def test_a_write_of_many_pieces(driver: IoUringSync, file: OsWritableFile, count: int, is_all: bool) -> None:
    pieces = [b"%07d;" % (number + 10 * is_all) for number in range(count)]
    driver.submit(1, [file], [a_write(file, 512, *pieces, is_all=is_all)])
    assert collect(driver, 1) == [(1, None)]
    assert file.read(512, count * 8) == b"".join(pieces)


def test_a_write_that_is_all_there_is_to_sync_is_one_request(own: IoUringSync, make_files: FileMaker) -> None:
    (file,) = make_files(1)
    for ticket, (is_all, requests) in enumerate([(True, 1), (False, 2)]):
        own.submit(ticket, [file], [a_write(file, 0, b"small", is_all=is_all)])
        assert [chain.submitted for chain in own._chains.values()] == [requests]
        assert collect(own, 1) == [(ticket, None)]


def test_steps_of_many_files_at_once(own: IoUringSync, make_files: FileMaker) -> None:
    files, ticket, taken = make_files(100), 0, 0
    done: list[Completion] = []
    for round_ in range(20):
        for number, file in enumerate(files):
            content = b"%d of %d" % (number, round_)
            if own.takes_writes:
                own.submit(ticket, [file], [a_write(file, 0, content)])
                taken += 1
            else:
                file.write(0, content)
                own.submit(ticket, [file])
            ticket += 1
        done += collect(own, ticket - len(done))
        assert all(file.read(0, 9).startswith(b"%d of %d" % (number, round_)) for number, file in enumerate(files))
    assert sorted(done, key=lambda completion: completion[0]) == [(number, None) for number in range(2000)]
    assert 20 * io_uring.MAX_CHAINS <= taken < 2000


def test_the_bytes_are_kept_and_files_may_be_closed(own: IoUringSync, tmp_path: Path) -> None:
    """The numbers of closed files are used again at once, by files that nothing may be written to."""
    disk = OsWritableDisk()
    for number in range(60):
        file = disk.create(str(tmp_path / f"{number}"), SIZE)
        own.submit(number, [file], [a_write(file, 0, b"%07d " % number * 100_000)])
        file.close()
        other = disk.create(str(tmp_path / f"other {number}"), 100_000)
        collect(own, 1)
        assert other.read(0, 100_000) == bytes(100_000)
        other.close()
    for number in range(60):
        assert (tmp_path / f"{number}").read_bytes()[:800_000] == b"%07d " % number * 100_000


def test_a_write_that_is_refused(own: IoUringSync, tmp_path: Path, make_files: FileMaker) -> None:
    path = tmp_path / "read-only"
    path.write_bytes(b"as it was")
    read_only = OsWritableFile(str(path), os.O_RDONLY)
    (sound,) = make_files(1)
    own.submit(
        1, [sound, read_only], [a_write(sound, 0, b"first"), a_write(read_only, 0, b"no"), a_write(sound, 9, b"no")]
    )
    own.submit(2, [sound], [a_write(sound, 20, b"other")])
    errors = dict(collect(own, 2))
    assert errors[2] is None
    assert isinstance(errors[1], OSError)
    assert (errors[1].errno, errors[1].filename) == (errno.EBADF, str(path))
    assert path.read_bytes() == b"as it was"
    assert (sound.read(0, 5), sound.read(20, 5)) == (b"first", b"other")
    assert b"no" not in sound.read(0, 25)
    read_only.close()


@pytest.mark.parametrize("is_all", [False, True])
def test_a_write_that_is_done_in_part(own: IoUringSync, tmp_path: Path, is_all: bool) -> None:
    """The rest is tried, and what follows is not written: here the rest is refused."""
    file = OsWritableFile(str(tmp_path / "limited"), os.O_RDWR | os.O_CREAT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        first = a_write(file, 6_000, b"x" * 3_000, b"y" * 3_000, is_all=is_all)
        own.submit(1, [file], [first] if is_all else [first, a_write(file, 0, b"no")])
        ((ticket, error),) = collect(own, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ticket == 1
    assert error is not None
    assert error.errno == errno.EFBIG
    assert file.read(0, 20_000) == bytes(6_000) + b"x" * 3_000 + b"y" * 1_000
    file.close()


def test_a_file_that_is_closed_before(own: IoUringSync, make_files: FileMaker) -> None:
    closed, open_ = make_files(2)
    closed.close()
    own.submit(1, [open_, closed], [a_write(open_, 0, b"no"), a_write(closed, 0, b"no")])
    ((_, error),) = collect(own, 1)
    assert error is not None
    assert error.errno == errno.EBADF


def test_without_further_descriptors(own: IoUringSync, make_files: FileMaker) -> None:
    (file,) = make_files(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        own.submit(1, [file], [a_write(file, 0, b"written all the same")])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert collect(own, 1) == [(1, None)]
    assert file.read(0, 20) == b"written all the same"


def test_no_descriptor_is_left_by_writes(own: IoUringSync, make_files: FileMaker) -> None:
    files = make_files(20)
    before = len(os.listdir("/proc/self/fd"))
    for ticket in range(300):
        own.submit(ticket, files[:2], [a_write(file, ticket, b"x") for file in files[:2]])
        collect(own, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_waits_for_pending_writes(tmp_path: Path) -> None:
    driver = IoUringSync()
    files = [OsWritableDisk().create(str(tmp_path / f"{number}"), SIZE) for number in range(io_uring.MAX_CHAINS)]
    for number, file in enumerate(files):
        driver.submit(number, [file], [a_write(file, 0, b"%07d " % number * 100_000)])
    driver.close()
    for number, file in enumerate(files):
        assert file.read(0, 800_000) == b"%07d " % number * 100_000
        file.close()
    with pytest.raises(SyncDriverError, match="is closed"):
        driver.completed()


_CHILD: Final = """
import fcntl, os, sys
from qstore.store.sync import FileWrite, IoUringSync
from qstore.store.disk import OsWritableDisk
lock = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
file = OsWritableDisk().create(sys.argv[1] + "/journal", 128 << 20)
driver = IoUringSync()
driver.submit(1, [file], [FileWrite(file, 0, [b"x" * (1 << 17)] * 1000, 1000 << 17)])
print("submitted", flush=True)
driver.completed(None)
"""


@pytest.mark.parametrize("milliseconds", [0, 3, 10])
def test_nothing_is_written_once_the_lock_of_a_killed_process_is_free(tmp_path: Path, milliseconds: int) -> None:
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"submitted\n"
        time.sleep(milliseconds / 1000)
        child.kill()
        with (tmp_path / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            written = (tmp_path / "journal").read_bytes().rfind(b"x")
            time.sleep(0.1)
            assert (tmp_path / "journal").read_bytes().rfind(b"x") == written


def test_successor_waits_for_pending_writes(tmp_path: Path) -> None:
    driver = IoUringSync()
    file = OsWritableDisk().create(str(tmp_path / "journal"), SIZE)
    driver.submit(1, [file], [a_write(file, 0, b"a" * 2_000_000)])
    driver.kill("is of no use")
    successor = driver.successor()
    driver.close()
    assert file.read(0, 2_000_000) == b"a" * 2_000_000
    assert isinstance(successor, IoUringSync)
    successor.submit(1, [file], [a_write(file, 0, b"b" * 2_000_000)])
    assert collect(successor, 1) == [(1, None)]
    assert file.read(0, 2_000_000) == b"b" * 2_000_000
    successor.close()
    file.close()


@replaces
def test_there_is_no_successor_while_the_kernel_still_writes(
    own: IoUringSync, make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = make_files(1)
    monkeypatch.setattr(io_uring, "DRAIN_SECONDS", 0.0)
    own.submit(1, [file], [a_write(file, 0, b"a" * 2_000_000)])
    own.kill("is of no use")
    with pytest.raises(SyncDriverError, match="the kernel has not ended 1 writes within 0 seconds"):
        own.successor()


@replaces
def test_requests_that_the_kernel_refuses(
    own: IoUringSync, make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = make_files(1)
    own.submit(1, [file], [a_write(file, 0, b"before")])
    collect(own, 1)

    def refuse(number: int, *_arguments: object) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patched:
        patched.setattr(io_uring, "_call", refuse)
        patched.setattr(io_uring, "_PAUSE_SECONDS", 0.0)
        with pytest.raises(SyncDriverError, match="io_uring fails: Device or resource busy"):
            own.submit(2, [file], [a_write(file, 0, b"refused")])
    with pytest.raises(SyncDriverError, match="io_uring fails"):
        own.completed()
    successor = own.successor()
    assert type(successor) is HelperProcessSync  # the kernel may refuse again
    assert file.read(0, 6) == b"before"
    successor.submit(2, [file])
    assert collect(successor, 1) == [(2, None)]
    successor.close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    successor = own.successor()
    assert type(successor) is ThreadSync
    successor.close()


@replaces
def test_the_successor_where_io_uring_was_disabled_meanwhile(own: IoUringSync, monkeypatch: pytest.MonkeyPatch) -> None:
    own.kill("is of no use")
    monkeypatch.setattr(io_uring, "MACHINE", "another")
    successor = own.successor()
    assert type(successor) is HelperProcessSync
    successor.close()


# ---- the helper, for more than the kernel is given ----


def keep_busy(driver: IoUringSync, files: list[OsWritableFile], seconds: float, at_once: int = 300) -> None:
    """Have that many steps under way, until a helper has started or the time is over; each comes back once."""
    under_way, ticket, end = set[int](), 0, time.monotonic() + seconds
    while under_way or (time.monotonic() < end and not driver._has_helper):
        while len(under_way) < at_once and time.monotonic() < end and not driver._has_helper:
            under_way.add(ticket)
            driver.submit(ticket, [files[ticket % len(files)]])
            ticket += 1
        for done, error in driver.completed(1.0):
            under_way.remove(done)
            assert error is None
        assert time.monotonic() < end + PATIENCE_SECONDS
    assert driver.completed() == []


def start_helper(driver: IoUringSync, files: list[OsWritableFile]) -> HelperProcessSync:
    keep_busy(driver, files, PATIENCE_SECONDS)
    assert driver._has_helper
    assert driver._helper is not None
    return driver._helper


def test_the_kernel_takes_all_steps_that_a_store_has_under_way(own: IoUringSync, make_files: FileMaker) -> None:
    """Steps that wait for others take several times as long where a sync takes milliseconds."""
    (file,) = make_files(1)
    for ticket in range(FLUSHES_AT_ONCE):
        assert own.takes_writes
        own.submit(ticket, [file], [a_write(file, ticket, b"x")])
    assert collect(own, FLUSHES_AT_ONCE) == [(ticket, None) for ticket in range(FLUSHES_AT_ONCE)]


@replaces
def test_few_steps_at_once_are_done_without_a_helper(
    own: IoUringSync, make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, children = make_files(20), children_of(os.getpid())
    keep_busy(own, files, 0.3, io_uring.MAX_CHAINS + io_uring.MAX_WAITING)
    many = io_uring.MAX_CHAINS + 2 * io_uring.MAX_WAITING
    monkeypatch.setattr(io_uring, "HELPED_AFTER", 1.0)  # a busy disk takes 0.02 for some of them
    for number in range(20 * many):  # many, but not for long
        own.submit(number, [files[number % 20]])
        if number % many == many - 1:
            collect(own, many)
    assert children_of(os.getpid()) == children
    assert own.describe() == "io_uring"
    assert not own.is_stopped


def test_many_steps_at_once_start_a_helper_and_do_not_wait_for_it(own: IoUringSync, make_files: FileMaker) -> None:
    files, children = make_files(20), set(children_of(os.getpid()))
    helper = start_helper(own, files)
    assert set(children_of(os.getpid())) - children == {helper.pid}
    assert own.describe() == f"io_uring and sync helper process {helper.pid}"
    stop_process(helper.pid)
    for ticket in range(io_uring.MAX_CHAINS + 1):
        own.submit(ticket, [files[0]])
    assert collect(own, io_uring.MAX_CHAINS) == [(ticket, None) for ticket in range(io_uring.MAX_CHAINS)]
    assert own.completed(0.1) == []
    assert own.is_stopped
    os.kill(helper.pid, signal.SIGCONT)
    assert collect(own, 1) == [(io_uring.MAX_CHAINS, None)]


_SILENT: Final = "import os, sys; os.read(int(sys.argv[1]), 1)"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", _SILENT, None])
def test_without_a_helper_the_kernel_goes_on(
    own: IoUringSync,
    make_files: FileMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | None,
) -> None:
    """It fails to start, never says that it has, or there is none."""
    children = set(children_of(os.getpid()))
    if program is None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    else:
        (tmp_path / "helper.py").write_text(program)
        monkeypatch.setattr(helper, "__file__", str(tmp_path / "helper.py"))
    keep_busy(own, make_files(20), 0.5)
    assert own._not_before > time.monotonic()  # it was tried
    assert own.describe() == "io_uring"
    own.close()
    assert set(children_of(os.getpid())) == children


@replaces
def test_a_helper_that_never_says_that_it_has_started_is_killed(
    own: IoUringSync, make_files: FileMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper.py").write_text(_SILENT)
    monkeypatch.setattr(helper, "__file__", str(tmp_path / "helper.py"))
    monkeypatch.setattr(process, "START_SECONDS", 0.1)
    files, children = make_files(20), set(children_of(os.getpid()))
    keep_busy(own, files, 0.5)
    assert own._helper is None
    assert set(children_of(os.getpid())) == children
    monkeypatch.undo()
    keep_busy(own, files, 0.1)
    assert own._helper is None  # not again at once
    own._not_before = 0.0
    assert is_running(start_helper(own, files).pid)


def test_a_driver_without_a_helper_that_is_killed(own: IoUringSync, make_files: FileMaker) -> None:
    assert not select.select([own.fileno()], [], [], 0)[0]
    own.kill("has synced nothing for 10 seconds")
    assert select.select([own.fileno()], [], [], 0)[0]
    for _ in range(2):
        with pytest.raises(SyncDriverError, match=r"^io_uring has synced nothing for 10 seconds$"):
            own.completed()
        with pytest.raises(SyncDriverError, match=r"^io_uring has synced nothing for 10 seconds$"):
            own.submit(1, make_files(1))
    assert select.select([own.fileno()], [], [], 0)[0]
    successor = own.successor()
    assert type(successor) is IoUringSync
    successor.close()


def test_a_driver_with_a_helper_that_is_killed(own: IoUringSync, make_files: FileMaker) -> None:
    helper = start_helper(own, make_files(20))
    own.kill("is of no use")
    assert not is_running(helper.pid)
    with pytest.raises(SyncDriverError, match=f"^io_uring and sync helper process {helper.pid} is of no use$"):
        own.completed()


def test_the_death_of_a_helper_that_has_nothing_to_do_is_noticed(own: IoUringSync, make_files: FileMaker) -> None:
    """Not in the call that returns what the kernel has done, or in the one after it; but then."""
    files = make_files(20)
    helper = start_helper(own, files)
    helper._process.kill()
    helper._process.wait()
    own.submit(1, files[:1], [a_write(files[0], 0, b"x")])
    time.sleep(0.2)
    assert own.completed() == [(1, None)]
    assert own.completed() == []
    with pytest.raises(SyncDriverError, match="helper"):
        own.completed()


def test_the_death_of_a_helper_is_noticed_while_the_kernel_is_busy(own: IoUringSync, make_files: FileMaker) -> None:
    """Each look has results of the kernel, so that none is left for the helper."""
    files = make_files(20)
    helper = start_helper(own, files)
    helper._process.kill()
    helper._process.wait()

    def write_on() -> None:
        for ticket in range(100):
            own.submit(ticket, files[:1], [a_write(files[0], 0, b"x")])
            select.select([own._ring.fileno()], [], [], 10)
            assert own.completed() == [(ticket, None)]

    with pytest.raises(SyncDriverError, match="helper"):
        write_on()


def test_a_large_message_is_not_kept_in_memory(own: IoUringSync, make_files: FileMaker) -> None:
    (file,) = make_files(1)
    content = bytes(100_000)
    before = sys.getrefcount(content)
    own.submit(1, [file], [a_write(file, 0, content)])
    collect(own, 1)
    assert sys.getrefcount(content) == before


@replaces
def test_results_beside_a_chain_that_cannot_go_on(
    own: IoUringSync, make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses the rest of one step; the results of others were taken with it."""
    files = make_files(2)
    own.submit(1, [files[0]], [a_write(files[0], number, b"x") for number in range(100)])
    own.submit(2, [files[1]], [a_write(files[1], 0, b"y")])
    time.sleep(0.2)  # the results of both are there

    def refuse(_number: int, *_arguments: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as patched:
        patched.setattr(io_uring, "_call", refuse)
        with pytest.raises(SyncDriverError, match="io_uring fails: Invalid argument"):
            own.completed()
    began = time.monotonic()
    own.successor().close()
    assert time.monotonic() - began < io_uring.DRAIN_SECONDS


@replaces
def test_a_moment_without_memory_is_waited_for(
    own: IoUringSync, make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = make_files(1)
    left, call = [errno.EAGAIN, errno.ENOMEM, errno.EINTR], io_uring._call

    def refuse(number: int, *arguments: int) -> int:
        if left:
            raise OSError(left.pop(), "for now")
        return call(number, *arguments)

    monkeypatch.setattr(io_uring, "_call", refuse)
    own.submit(1, [file], [a_write(file, 0, b"later")])
    assert collect(own, 1) == [(1, None)]
    assert file.read(0, 5) == b"later"


@replaces
@pytest.mark.parametrize("how", ["machine", "system", "kernel"])
def test_systems_without_it_have_a_helper_process(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, *_arguments: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if how == "machine":
        monkeypatch.setattr(io_uring, "MACHINE", "another")
    elif how == "system":
        monkeypatch.setattr(io_uring, "_call", refuse)
    else:
        monkeypatch.setitem(io_uring._NEEDED, "something new", 1 << 31)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SyncDriverError, match="io_uring is not available: "):
        choose_sync_driver("io-uring")
    assert len(os.listdir("/proc/self/fd")) == before
    driver = choose_sync_driver("auto")
    assert type(driver) is HelperProcessSync
    driver.close()
