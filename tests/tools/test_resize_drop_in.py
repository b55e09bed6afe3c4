"""`qpid-store-resize` as it is run; the expected output is that of qpidd's own tool."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import decode_jinf
from qstore.tools.qpid_store_resize import run
from qstore.tools.qstore_dump import command as dump
from tests.support.fixtures import CopyOpener, StoreFixture, journal_directory, snapshot
from tests.support.journal_builder import JournalBuilder
from tests.tools.drop_in_runs import DropInRun, outcome


def resize(*arguments: object) -> DropInRun:
    return DropInRun(*outcome(run, [str(each) for each in arguments]))


def dumped(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(dump, [str(path), "--outstanding", "--json"])
    return [json.loads(line) for line in result.stdout.splitlines()]


def journal(path: Path, count: int, size: int, geometry: Geometry | None = None) -> Path:
    builder = JournalBuilder(1, geometry or Geometry.from_pages(4, 2), queue_name="orders")
    for number in range(count):
        builder.enqueue(bytes([number % 256]) * size)
    builder.flush()
    builder.write_to(path)
    return path


def test_every_journal_of_every_store(legacy_store: StoreFixture, copies: CopyOpener) -> None:
    with copies(legacy_store.name).copy() as copy:
        path = copy.path
        before = dumped(path)
        for info in sorted(path.rglob("*.jinf")):
            result = resize("-b", info.stem, "-N", 6, "-s", 60, info.parent)
            assert result.code == 0, result.err
            assert result.out.splitlines()[-1].endswith(" records to new journal.")
        after = dumped(path)
        keep = [line for line in before if line["kind"] != "damage"]
        assert sorted(map(json.dumps, after)) == sorted(map(json.dumps, keep))


def test_verbose_output_lists_each_step(copies: CopyOpener) -> None:
    with copies("legacy-d-dtx").copy() as copy:
        directory = journal_directory(copy.path, "d.q1")
        result = resize("-v", "-N", 4, "-s", 2, "-o", "old", directory)
        assert (result.code, result.err) == (0, "")
        out = result.out.splitlines()
        assert out[:9] == [
            f"Journal dir: {directory}",
            "Options: Base filename: JournalData",
            "         New base filename: None",
            "         Old base filename: old",
            "         Pushdown: None",
            "         No. journal files: 4",
            "         Journal file size: 2 64kiB blocks",
            "         Show records flag: None",
            "         Verbose flag: True",
        ]
        at = out.index("Recovering journals...")
        assert out[at : at + 4] == [
            "Recovering journals...",
            f"* Reading {directory}/JournalData.0000.jdat",
            "",
            f"Journal info file {directory}/JournalData.jinf:",
        ]
        assert out[-12:] == [
            "11 enqueued records found.",
            "2 outstanding transactions found.",
            f"* Creating new pushdown directory {directory}/bak",
            "* Renaming old journal files using base name old",
            "* Assembling 11 records from emap",
            "* Assembling 2 records from tmap",
            "* Transferring records to new journal files",
            f"* Opening file {directory}/JournalData.0000.jdat   (19 records + 3 filler(s))",
            *(f"* Opening file {directory}/JournalData.000{number}.jdat   (empty)" for number in (1, 2, 3)),
            "Transferred 19 records to new journal.",
        ]
        assert f"* Pushdown directory {directory}/bak exists, deleting content\n" in resize("-v", directory).out


def test_quiet_and_dots(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", 3, 300)
    result = resize(path)
    assert "\nRecovering journals .\n3 enqueued records found.\nNo outstanding transactions found.\n" in result.out
    assert resize("-q", path) == DropInRun(0, "", "")
    assert "Recovering" not in resize(journal(tmp_path / "empty", 0, 0)).out


def test_records_where_the_original_fails(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", 2, 5)
    result = resize("-r", path)
    assert result.code == 0
    assert result.out.splitlines()[-5:] == [
        "2 enqueued records found:",
        '   0x00000200: ["RHMe" v=1 e=0 f=0x0000 rid=0x1] data(5)="\\00\\00\\00\\00\\00"  ["RHMe" rid=0x1] ',
        '   0x00000280: ["RHMe" v=1 e=0 f=0x0000 rid=0x2] data(5)="\\01\\01\\01\\01\\01"  ["RHMe" rid=0x2] ',
        "No outstanding transactions found.",
        "Transferred 2 records to new journal.",
    ]


def test_too_small_changes_nothing(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", 100, 3000)
    before = snapshot(path)
    result = resize("-N", 4, "-s", 1, path)
    assert result.code == 1
    assert result.err.startswith("Ran out of journal space while writing records: 100 records take ")
    assert result.err.endswith("sizes that suffice: -N 5 -s 1, or -N 4 -s 2\n")
    assert "Transferred" not in result.out
    assert snapshot(path) == before


def test_nearly_full_is_done_and_reported(tmp_path: Path) -> None:
    path = journal(tmp_path / "j", 70, 3000)
    result = resize("-N", 4, "-s", 1, path)
    assert (result.code, result.out.splitlines()[-1]) == (1, "Transferred 70 records to new journal.")
    text = "will likely not allow enqueuing of new records until some existing records are dequeued.\n"
    assert result.err == f"WARNING: Journal orders is 82.2% full and {text}"
    assert decode_jinf((path / "JournalData.jinf").read_bytes()).geometry == Geometry.from_pages(4, 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "No directory"),
        (("-N", 3), "Number of files (3) is out of range (4-64)"),
        (("-s", 32769), "File size (32769) is out of range (1-32768)"),
        (("-s", "x"), "option -s: invalid integer value: 'x'"),
        (("-q", "-r"), "Quiet (-q/--quiet) and record (-r/--records) options are mutually exclusive"),
        (("-q", "-v"), "Quiet (-q/--quiet) and verbose (-v/--verbose) options are mutually exclusive"),
        (("-n",), "If (-n/--no-pushdown) is used, then at least one of (-B/--new-base-filename) and (-o/--old-base"),
        (("-n", "-o", "JournalData"), "cannot have the same base name"),
        (("-B", "../x"), "is not a file name"),
    ],
)
def test_usage(tmp_path: Path, arguments: tuple[object, ...], text: str) -> None:
    path = journal(tmp_path / "j", 1, 5)
    if not arguments:
        result, text = resize(), "No journal directory argument"
    else:
        result = resize(*arguments, path)
    assert result.code == 2
    assert text in result.err
    assert "bak" not in os.listdir(path)


def test_positional_arguments(tmp_path: Path) -> None:
    assert "Too many positional arguments: ['a', 'b']" in resize("a", "b").err
    assert f'Journal path "{tmp_path}/x" does not exist' in resize(tmp_path / "x").err
    assert resize("--version") == DropInRun(0, "qpid-store-resize 1.0\n", "")


def test_no_journal_there(tmp_path: Path) -> None:
    result = resize(tmp_path)
    assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1)
    assert result.err.startswith(f"{tmp_path}/JournalData.jinf: No such file")


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_a_broker_has_the_store(tmp_path: Path, lock: Any) -> None:
    path = journal(tmp_path / "rhm" / "jrnl" / "0001" / "orders", 1, 5)
    with (tmp_path / "lock").open("w") as file:
        child = os.fork() if lock is fcntl.lockf else 0
        if lock is fcntl.flock:
            lock(file, fcntl.LOCK_EX)
            assert resize(path) == DropInRun(1, "", f"{tmp_path}/lock: a broker has the store open; stop it first\n")
        elif child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            os._exit(_child_holds_it_while_resizing(tmp_path, path))
    if lock is fcntl.flock:
        assert resize(path).code == 0


def _child_holds_it_while_resizing(tmp_path: Path, path: Path) -> int:
    """A POSIX lock is a process's: its child is refused. Returns 0 if it is."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        child = os.fork()
        if not child:
            os._exit(0 if resize(path).code == 1 else 1)
        return 0 if os.waitpid(child, 0)[1] == 0 else 1
