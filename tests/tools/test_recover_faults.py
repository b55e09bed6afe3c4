"""`qstore-recover` over disks that cannot be read in places, are full, fail, or go away half way."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from qstore.formats.rhm.geometry import SECTOR_SIZE, Geometry
from qstore.store.disk import OsWritableFile
from tests.support import forked
from tests.support.dump import dump
from tests.support.journal_builder import JournalBuilder
from tests.support.planted_damage import (
    OUTSTANDING,
    Original,
    back,
    linear_store,
    lost,
    version_1_store,
    version_2_store,
)
from tests.support.processes import PATIENCE_SECONDS
from tests.support.recover_runs import (
    BadRegion,
    Killed,
    MortalDisk,
    Recovery,
    break_reading,
    expected_states,
    limit_space,
    recover,
    states,
)

MAKERS: Final[dict[str, Callable[[Path], Original]]] = {
    "version 1": version_1_store,
    "version 2": version_2_store,
    "linear": linear_store,
}


@pytest.fixture(scope="module", params=MAKERS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return MAKERS[request.param](tmp_path_factory.mktemp("original") / "store")


@pytest.fixture(scope="module")
def version_2(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_2_store(tmp_path_factory.mktemp("original") / "store")


# ---- what the system cannot read ----


def region(original: Original, record: str, at: int, size: int) -> BadRegion:
    file, offset = original.spot(record, at)
    assert offset is not None
    return BadRegion(str(original.path / file), offset, offset + size)


@pytest.mark.parametrize(("at", "size"), [(0, 32), (100, 10), (0, 384)], ids=["header", "body", "all"])
def test_a_bad_sector_costs_the_message_in_it(
    original: Original, at: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = region(original, "third", at, size)
    break_reading(monkeypatch, bad)
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    assert states(original, recovery.dump()) == expected_states(lost("third"))
    assert recovery.report.code == 1
    assert any(bad.file == line["file"] for line in recovery.report.lines("damage"))
    assert "Input/output error" in recovery.loss()


def test_a_bad_sector_in_a_dequeue_brings_a_message_back(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_reading(monkeypatch, region(original, "take seventh", 0, 32))
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    assert states(original, recovery.dump()) == expected_states(back("seventh"))
    assert recovery.report.code == 1


def test_a_bad_sector_in_the_prepared_list(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_reading(monkeypatch, region(original, "branch prepare", 0, 32))
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    expected = {"branch": None, "branch put": None, "fourth": OUTSTANDING}
    assert states(original, recovery.dump()) == expected_states(expected)
    assert recovery.report.code == 1


def test_two_bad_sectors(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_reading(monkeypatch, region(original, "third", 0, 32), region(original, "bill 35", 40, 100))
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    assert states(original, recovery.dump()) == expected_states(lost("third", "bill 35"))


def test_a_bad_sector_where_a_journal_seems_to_end_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No good record follows, so only the sector itself shows that there was one."""
    builder = JournalBuilder(2, Geometry(4, 8192), queue_id=7, queue_name="q")
    for body in (b"kept" * 100, b"unreadable" * 100):
        builder.enqueue(body)
        builder.flush()
    builder.write_to(tmp_path / "journal")
    file = tmp_path / "journal" / "JournalData.0000.jdat"
    begin = file.read_bytes().index(b"unreadable") // SECTOR_SIZE * SECTOR_SIZE
    break_reading(monkeypatch, BadRegion(str(file), begin, begin + 2 * SECTOR_SIZE))
    recovery = recover(tmp_path / "journal", tmp_path / "new")
    assert recovery.summary["messages"] == 1
    assert [line["offset"] for line in recovery.report.lines("damage")] == [begin]
    assert recovery.report.code == 1


def test_a_file_that_is_unreadable(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other journals, and the other files of this one, go on."""
    break_reading(monkeypatch, BadRegion(str(original.path / original.files["orders"][0]), 0, 1 << 40))
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    found = states(original, recovery.dump())
    assert found.keys() >= {f"bill {number}" for number in range(34, 40)}
    assert found.keys() >= {"closing put", "ninth", "tenth"}
    assert recovery.report.code == 1


def test_an_info_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = version_1_store(tmp_path / "original")
    break_reading(monkeypatch, BadRegion(str(original.path / "rhm/jrnl/0004/c.q1/JournalData.jinf"), 0, 1 << 20))
    recovery = recover_unreadable(original, tmp_path / "new", monkeypatch)
    assert states(original, recovery.dump()) == expected_states({})


def recover_unreadable(original: Original, path: Path, monkeypatch: pytest.MonkeyPatch) -> Recovery:
    """Recover over the broken disk; what is looked at afterwards is on a good one."""
    recovery = recover(original.path, path)
    monkeypatch.undo()
    return recovery


# ---- what the system cannot write ----


def test_a_full_disk(original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and nothing is left."""
    limit_space(monkeypatch, 100_000)
    recovery = recover(original.path, tmp_path / "new")
    assert recovery.report.code == 2
    assert os.strerror(errno.ENOSPC) in recovery.report.errors
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_write_or_sync_that_fails(
    version_2: Original, call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again and believed."""
    made, calls = getattr(OsWritableFile, call), [0]

    def failing(self: OsWritableFile, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        made(self, *arguments)

    monkeypatch.setattr(OsWritableFile, call, failing)
    recovery = recover(version_2.path, tmp_path / "new")
    assert calls[0] >= number
    assert recovery.report.code == 2
    assert "Input/output error" in recovery.report.errors
    assert os.listdir(tmp_path) == []


# ---- killed ----

STEPS: Final = 12


def run(source: Path, path: Path, disk: MortalDisk) -> Recovery | None:
    """None where it was killed."""
    with disk.in_use():
        try:
            return recover(source, path)
        except Killed:
            return None


def test_killed_at_any_step_it_leaves_nothing_by_that_name(version_2: Original, tmp_path: Path) -> None:
    """DEST is whole or not there, and the next run makes it."""
    planted = version_2.copy(tmp_path / "store")
    planted.patch(version_2.spot("third"), bytes(512))  # so that there is a quarantine too
    whole = MortalDisk()
    assert run(planted.path, tmp_path / "whole", whole) is not None
    expected = expected_states(lost("third"))
    for step in range(STEPS):
        path = tmp_path / f"new{step}"
        last = 1 + (whole.calls - 1) * step // (STEPS - 1)
        assert run(planted.path, path, MortalDisk(last)) is None
        if os.path.lexists(path):
            assert states(version_2, dump(path, "--outstanding", "--json")) == expected
            shutil.rmtree(path)
        assert states(version_2, recover(planted.path, path).dump()) == expected


KILL: Final = """
import os, signal
from qstore.store.disk import OsWritableFile
sync, calls = OsWritableFile.sync, []
def dying(self):
    calls.append(self)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(self)
OsWritableFile.sync = dying
from qstore.tools.qstore_recover import main
main()
"""


def test_a_process_that_is_killed(version_2: Original, tmp_path: Path) -> None:
    path = tmp_path / "new"
    arguments = [sys.executable, "-c", KILL, str(version_2.path), str(path)]
    assert forked.run(arguments, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
    assert not os.path.lexists(path)
    assert recover(version_2.path, path).report.code == 0


def test_control_c_leaves_nothing(version_2: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = OsWritableFile.sync, [0]

    def interrupted(self: OsWritableFile) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        sync(self)

    monkeypatch.setattr(OsWritableFile, "sync", interrupted)
    recovery = recover(version_2.path, tmp_path / "new")
    assert recovery.report.code != 0
    assert os.listdir(tmp_path) == []
