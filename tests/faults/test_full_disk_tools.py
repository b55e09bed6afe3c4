"""The tools on a disk that runs full at any call: one line, the room given back, all messages there, and once more.

`tests/support/profiles.py` says at which of the calls.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from qstore.formats.rhm.geometry import Geometry
from qstore.store.disk import OsWritableDisk, OsWritableFile
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.unfinished import RECOVERED
from qstore.tools.qstore_generate import command as generate
from qstore.tools.qstore_resize import command as resize_store
from tests.faults.full_disk import FULL
from tests.support.dump import Dump, dump
from tests.support.fixtures import Snapshot, snapshot
from tests.support.journal_builder import JournalBuilder
from tests.support.planted_damage import Original, version_1_store, version_2_store
from tests.support.profiles import is_nightly, today
from tests.support.recover_runs import invoke
from tests.tools.test_resize_drop_in import resize

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

TAKE: Final = ("create", "make_directory")
KEEP: Final = ("rename", "sync_directory")
FILE: Final = ("write", "sync")


class FullDisk:
    """Counts the calls that may need room, and has them fail from one on; where `takes`, only those that do always.

    Attributes:
        calls: how many there were.
    """

    def __init__(self, full_from: int, *, takes: bool) -> None:
        self._full_from, self._takes = full_from, takes
        self.calls = 0

    @contextmanager
    def in_use(self) -> Iterator[FullDisk]:
        with pytest.MonkeyPatch.context() as patch:
            names = TAKE if self._takes else TAKE + KEEP
            for name in names:
                patch.setattr(OsWritableDisk, name, self._failing(getattr(OsWritableDisk, name)))
            for name in () if self._takes else FILE:
                patch.setattr(OsWritableFile, name, self._failing(getattr(OsWritableFile, name)))
            yield self

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(this: Any, *arguments: Any) -> Any:
            self.calls += 1
            if self.calls > self._full_from:
                path = this._path if isinstance(this, OsWritableFile) else str(arguments[0])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return call(this, *arguments)

        return counted


def moments(run: Callable[[], object], most: int, *, takes: bool) -> Iterator[FullDisk]:
    """Disks that run full at some of the calls; never at the last. `run` is done once, on one with room."""
    disk = FullDisk(1 << 30, takes=takes)
    with disk.in_use():
        run()
    for number in today(range(disk.calls - 1), most):
        yield FullDisk(number, takes=takes)


def assert_reported(text: str, where: Path) -> None:
    assert text.count("\n") == 1
    assert str(where) in text
    assert FULL in text
    assert "free some space" in text


def bodies(path: Path) -> Counter[tuple[str, str, str]]:
    """Messages that a restart would deliver."""
    shown: Dump = dump(path, "--outstanding", "--json")
    assert (shown.code, shown.lines("damage")) == (0, [])
    return Counter((line["queue"], line["state"], line["body_sha256"]) for line in shown.lines("message"))


# ---- qstore-recover ----


@pytest.mark.parametrize("takes", [True, False], ids=["new files", "everything"])
@pytest.mark.parametrize(("make", "version"), [(version_1_store, "2"), (version_2_store, "1")], ids=["to 2", "to 1"])
def test_recover(make: Callable[[Path], Original], version: str, takes: bool, tmp_path: Path) -> None:
    source = make(tmp_path / "source").path
    target = tmp_path / "new" / "store"
    target.parent.mkdir()
    options = ("--to-version", version, "--orphans", "aside")

    def run() -> int:
        return invoke(source, target, *options).report.code

    failed = 0
    code = run()
    expected = bodies(target)
    shutil.rmtree(target)
    for disk in moments(run, 6, takes=takes):
        for each in target.parent.iterdir():
            shutil.rmtree(each)
        with disk.in_use():
            report = invoke(source, target, *options).report
        failed += 1
        assert report.code == 2
        assert_reported(report.errors, target.parent)
        left = list(target.parent.iterdir())
        if left and not takes:  # where not even the mark of a complete store could be renamed any more
            (remains,) = left
            assert (remains / RECOVERED).exists()
        else:
            assert not left
    assert failed >= 3
    if target.exists():
        shutil.rmtree(target)
    assert run() == code
    assert bodies(target) == expected


# ---- qpid-store-resize ----


def old_journal(path: Path) -> Path:
    builder = JournalBuilder(1, Geometry.from_pages(4, 1), queue_name="orders")
    for number in range(20):
        builder.enqueue(b"%d" % number * 300)
    builder.flush()
    builder.write_to(path)
    return path


def held(path: Path) -> list[tuple[int, bytes]]:
    """The messages of a sound journal, by record id."""
    with closing(open_journal(OsWritableDisk(), str(path))) as journal:
        recovery = JournalRecovery()
        journal.walk(recovery)
        assert [*journal.damage, *recovery.damage] == []
        places = ((rid, journal.data_of_enqueue(place)) for rid, place, _ in recovery.messages.in_rid_order())
        return [(rid, b"".join(journal.data_chunks(*data))) for rid, data in places]


def files_in(path: Path) -> Snapshot:
    """All that is in a directory, but not when names in it were last changed."""
    return {name: found for name, found in snapshot(path).items() if name != "."}


ARGUMENTS: Final[list[tuple[str, ...]]] = [(), ("-B", "new"), ("-n", "-o", "old"), ("-n", "-B", "new")]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
@pytest.mark.parametrize("takes", [True, False], ids=["new files", "everything"])
def test_qpid_store_resize(takes: bool, arguments: tuple[str, ...], tmp_path: Path) -> None:
    original = old_journal(tmp_path / "original")
    expected = held(original)
    assert len(expected) == 20
    before = files_in(original)

    def run() -> None:
        assert resize("-q", "-N", 5, "-s", 1, *arguments, shutil.copytree(original, tmp_path / "whole")).code == 0

    seen: Counter[str] = Counter()
    for number, disk in enumerate(moments(run, 20, takes=takes)):
        path = Path(shutil.copytree(original, tmp_path / f"journal-{number}"))
        with disk.in_use():
            failed = resize("-q", "-N", 5, "-s", 1, *arguments, path)
        if failed.code == 0:
            seen["done"] += 1
            assert held(path) == expected
            continue
        assert failed.code == 1
        assert_reported(failed.err, path)
        unchanged = files_in(path) == before
        seen["unchanged" if unchanged else "begun"] += 1
        assert unchanged or "-n" in arguments or held(path) == expected
        again = resize("-q", "-N", 5, "-s", 1, *arguments, path)
        assert (again.code, again.err) == (0, "")
        assert held(path) == expected
        assert not (path / "_resize.new").exists()
        assert len(list(path.glob("*.jdat"))) == (9 if "-n" in arguments else 5)
        shutil.rmtree(path)
    assert seen["unchanged"] > 0, seen
    # Where nothing can be renamed, what was moved stays moved; with -n and -B the old files do not move.
    may_begin = not takes and arguments != ("-n", "-B", "new")
    assert may_begin or not seen["begun"], seen
    assert seen["begun"] or not may_begin or not is_nightly(), seen
    assert seen["done"] <= 1, "the last call, when all is in its place"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("full_from", [27, 31])
def test_leftovers_of_an_earlier_run_get_the_owner_of_the_journal(full_from: int, tmp_path: Path) -> None:
    path = old_journal(tmp_path / "journal")
    for file in path.iterdir():
        os.chown(file, 12345, 12346)
    with FullDisk(full_from, takes=False).in_use():
        assert resize("-q", "-N", 5, "-s", 1, path).code == 1
    assert len(list((path / "bak").glob("*.jdat"))) == 4, "it was stopped while it moved files"
    assert resize("-q", "-N", 5, "-s", 1, path).code == 0
    assert {(file.stat().st_uid, file.stat().st_gid) for file in path.glob("Journal*")} == {(12345, 12346)}
    assert len(list(path.glob("Journal*"))) == 6


# ---- qstore-resize ----


@pytest.mark.parametrize("takes", [True, False], ids=["new files", "everything"])
def test_qstore_resize(takes: bool, tmp_path: Path) -> None:
    original = version_2_store(tmp_path / "original").path
    expected = bodies(original)

    def invoked(path: Path) -> Dump:
        result = CliRunner().invoke(resize_store, [str(path), "--num-jfiles", "5"], catch_exceptions=False)
        return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    def run() -> None:
        assert invoked(Path(shutil.copytree(original, tmp_path / "whole"))).code == 0

    for number, disk in enumerate(moments(run, 4, takes=takes)):
        path = Path(shutil.copytree(original, tmp_path / f"store-{number}"))
        with disk.in_use():
            failed = invoked(path)
        assert failed.code == 2
        *critical, told = failed.errors.splitlines(keepends=True)
        assert_reported(told, path)
        assert all("second copy of the topology cannot be written" in line for line in critical)
        assert bodies(path) == expected
        assert invoked(path).code == 0
        assert bodies(path) == expected
        shutil.rmtree(path)


# ---- qstore-generate ----


@pytest.mark.parametrize("format_", ["qstore", "legacystore", "linearstore"])
@pytest.mark.parametrize("exists", [False, True])
def test_generate(format_: str, exists: bool, tmp_path: Path) -> None:
    out = tmp_path / "place" / "fleet"
    out.parent.mkdir()

    def run() -> Dump:
        arguments = [str(out), "--format", format_, "--stores", "2", "--queues", "1", "--messages", "40"]
        result = CliRunner().invoke(generate, arguments, catch_exceptions=False)
        return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    for disk in moments(run, 3, takes=False):
        if out.exists():
            shutil.rmtree(out)
        if exists:
            out.mkdir()
        with disk.in_use():
            failed = run()
        assert failed.code == 2
        assert_reported(failed.errors, out)
        assert out.exists() is exists
        assert not exists or list(out.iterdir()) == []
    assert run().code == 0
