"""`qpid-store-chk`: options, exit codes and output on small journals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.rhm.geometry import Geometry
from tests.support import forked
from tests.support.dump import ROOT
from tests.support.fixtures import snapshot
from tests.support.journal_builder import JournalBuilder
from tests.support.processes import PATIENCE_SECONDS
from tests.tools.store_chk_runs import SMALL, command, written

USAGE: Final = "Usage: qpid-store-chk [options] DIR\n\nqpid-store-chk: error: "


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three messages, one of them in a transaction that was committed, one dequeued in another that was not."""
    builder = JournalBuilder(1, SMALL)
    builder.enqueue(b"one")
    builder.enqueue(b"two", xid=b"x1")
    builder.enqueue(b"three")
    builder.commit(b"x1")
    builder.dequeue(1)
    builder.dequeue(3, xid=b"x2")
    return written(builder, tmp_path / "j")


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No journal directory argument"),
        (["-q", "-v"], "No journal directory argument"),
        (["a", "b"], "Too many positional arguments: ['a', 'b']"),
        (["/no/such"], 'Journal path "/no/such" does not exist'),
        ([""], 'Journal path "" does not exist'),
        (["x" * 5000], f'Journal path "{"x" * 5000}" does not exist'),
        (["-q", "-r", "/"], "Quiet (-q/--quiet) and record (-r/--records) options are mutually exclusive"),
        (["-v", "--quiet", "/no"], "Quiet (-q/--quiet) and verbose (-v/--verbose) options are mutually exclusive"),
        (["--bogus", "/"], "no such option: --bogus"),
        (["-t", "abc", "/"], "option -t: invalid integer value: 'abc'"),
        (["--ver", "/"], "ambiguous option: --ver (--verbose, --version?)"),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    result = command(*arguments)
    assert (result.code, result.out, result.err) == (2, "", f"{USAGE}{message}\n")


def test_version() -> None:
    assert command("--version") == command("--version", "/no/such")
    assert (command("--version").code, command("--version").out) == (0, "qpid-store-chk 1.0\n")


def test_help_shows_options_and_examples() -> None:
    result = command("-h")
    assert result.code == 0
    for option in ("--version", "-h", "-b BFN", "-c CSVFN", "-q", "-r", "-t TNUM", "-v"):
        assert f"  {option}" in result.out
    examples = [line for line in result.lines if line.startswith("  qpid-store-chk ")]
    assert len(examples) == 2


def test_long_options_may_be_shortened_and_follow_the_directory(journal: Path) -> None:
    assert command(journal, "--rec") == command("-r", journal) == command("--records", journal)


# ---- output ----

REPORT: Final = """

 === REPORT ====

Records:             2 non-transactional
                     1 transactional
                     3 total

Transactions:        0 aborts
                     1 commits
                     1 total

Remaining enqueued records (sorted by rid):\x20
  fid=0 0x00000280: ["RHMe" v=1 e=0 f=0x0000 rid=0x2] xid(2)="x1" data(3)="two"  ["RHMe" rid=0x2]\x20
  fid=0 0x00000300: ["RHMe" v=1 e=0 f=0x0000 rid=0x3] data(5)="three"  ["RHMe" rid=0x3]  (locked)
WARNING: Enqueue-Dequeue mismatch, 2 enqueued records remain.

Incomplete transactions:\x20
  fid=0 0x00000480: ["RHMd" v=1 e=0 f=0x0000 rid=0x6] xid(2)="x2" drid=0x3
 Total: 1 records for xid(2)="x2"\x20

WARNING: Incomplete transactions found, 1 xids remain containing a total of 1 records.

3 enqueues, 8 journal records processed.
"""


def analysed(directory: Path) -> str:
    """The first two blocks of the output."""
    return f"""\
Journal info file {directory}/JournalData.jinf:
  journal_version = 1
  id_string = q
  directory = /store/jrnl/q/
  base_filename = JournalData
  seconds = 1700000000
  nanoseconds = 0
  string =\x20
  number_jrnl_files = 4
  auto_expand = False
  jrnl_file_size_sblks = 8
  JRNL_SBLK_SIZE = 4
  JRNL_DBLK_SIZE = 128
  wcache_pgsize_sblks = 64
  wcache_num_pages = 32
  JRNL_RMGR_PAGE_SIZE = 128
  JRNL_RMGR_PAGES = 16

Journal files analyzed in directory {directory} (* = earliest full):
  * JournalData.0000.jdat: owi=False rid=0x1, fro=0x200 ts=Tue Nov 14 22:13:20.000000000 2023
    JournalData.0001.jdat: <empty>
    JournalData.0002.jdat: <empty>
    JournalData.0003.jdat: <empty>

"""


def test_default_output(journal: Path) -> None:
    result = command(journal)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{analysed(journal)}Recovering journals .{REPORT}"


def test_verbose_output(journal: Path) -> None:
    walked = f"Recovering journals...\n* Reading {journal}/JournalData.0000.jdat\n"
    assert command("-v", journal).out == f"{analysed(journal)}{walked}{REPORT}"


def test_output_of_all_records(journal: Path) -> None:
    walked = f"""\
{journal}/JournalData.0000.jdat :  0x00000000: ["RHMf" v=1 e=0 f=0x0000 rid=0x1] fid=0 lid=0 fro=0x00000200\
 t=Tue Nov 14 22:13:20.000000000 2023
 * fro ok: 0x200
 > 0x00000200: ["RHMe" v=1 e=0 f=0x0000 rid=0x1] data(3)="one"  ["RHMe" rid=0x1]\x20\x20\x20
 > 0x00000280: ["RHMe" v=1 e=0 f=0x0000 rid=0x2] xid(2)="x1" data(3)="two"  ["RHMe" rid=0x2]\x20\x20\x20
 > 0x00000300: ["RHMe" v=1 e=0 f=0x0000 rid=0x3] data(5)="three"  ["RHMe" rid=0x3]\x20\x20\x20
 > 0x00000380: ["RHMc" v=1 e=0 f=0x0000 rid=0x4] xid(2)="x1"\x20\x20\x20
 > 0x00000400: ["RHMd" v=1 e=0 f=0x0000 rid=0x5] drid=0x1\x20\x20
 > 0x00000480: ["RHMd" v=1 e=0 f=0x0000 rid=0x6] xid(2)="x2" drid=0x3\x20\x20
 > 0x00000500: ["RHMx"]\x20\x20
 > 0x00000580: ["RHMx"]\x20\x20
"""
    assert command("-r", journal).out == f"{analysed(journal)}{walked}{REPORT}"
    assert command("-r", "-v", journal) == command("-r", journal)


def test_quiet_output(journal: Path) -> None:
    result = command("-q", journal)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_the_directory_is_shown_as_it_was_typed(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(f"{journal}//").lines[0] == f"Journal info file {journal}//JournalData.jinf:"
    monkeypatch.chdir(journal)
    shown = command("-v", ".")
    assert shown.lines[0] == "Journal info file ./JournalData.jinf:"
    assert "* Reading ./JournalData.0000.jdat" in shown.lines


EMPTY_REPORT: Final = """  <All journal files are empty>


 === REPORT ====

Records:             0 non-transactional
                     0 transactional
                     0 total

Transactions:        0 aborts
                     0 commits
                     0 total

No remaining enqueued records found (emap empty).

No incomplete transactions found (tmap empty).

0 enqueues, 0 journal records processed.
"""


@pytest.mark.parametrize("options", [[], ["-v"], ["-r"]])
def test_a_journal_that_was_never_written(tmp_path: Path, options: list[str]) -> None:
    result = command(*options, written(JournalBuilder(1, SMALL), tmp_path / "j"))
    assert result.code == 0
    assert result.out.endswith(f"/j (* = earliest full):\n{EMPTY_REPORT}")


def test_another_base_name(tmp_path: Path) -> None:
    builder = JournalBuilder(1, SMALL, queue_name="TplStore", base_name="tpl")
    builder.enqueue(b"\1", xid=b"x1")
    directory = written(builder, tmp_path / "tpl")
    for option in (["-b", "tpl"], ["--base-filename=tpl"], ["--base=tpl"]):
        result = command(*option, directory)
        assert result.code == 0
        assert "  id_string = TplStore" in result.lines
        assert any(line.startswith("  * tpl.0000.jdat: owi=") for line in result.lines)
        assert result.counted == (1, 4)


def test_files_are_found_by_the_base_name_in_the_info_file(tmp_path: Path) -> None:
    """The base name on the command line finds the info file; the files have the base name that the info file states."""
    directory = written(JournalBuilder(1, SMALL), tmp_path / "j")
    (directory / "JournalData.jinf").rename(directory / "old.jinf")
    assert command(directory).code == 1
    assert command("-b", "old", directory).code == 0


# ---- the info file ----


def with_info(journal: Path, old: str, new: str) -> list[str]:
    """The lines of the output after a change in the info file."""
    file = journal / "JournalData.jinf"
    file.write_bytes(file.read_bytes().replace(old.encode(), new.encode("latin-1")))
    result = command(journal)
    assert result.code == 0, result.err
    return result.lines


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ('a"b', 'a"b'),
        ("a&b<c>", "a&b<c>"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("caf\xc3\xa9", "café"),
        ("\xff", "\udcff"),
        ("0123", "0123"),
    ],
)
def test_queue_names(journal: Path, name: str, shown: str) -> None:
    assert f"  id_string = {shown}" in with_info(journal, 'id_string value="q"', f'id_string value="{name}"')


def test_auto_expand(journal: Path) -> None:
    leaf = '<auto_expand value="true" />\n    <auto_expand_max_jrnl_files value="16" />'
    lines = with_info(journal, '<auto_expand value="false" />', leaf)
    at = lines.index("  auto_expand = True")
    assert lines[at + 1] == "  auto_expand_max_jrnl_files = 16"


def test_only_leaves_that_are_there_are_shown(journal: Path) -> None:
    lines = with_info(journal, '    <directory value="/store/jrnl/q/" />\n', "")
    assert not [line for line in lines if line.startswith("  directory = ")]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('number_jrnl_files value="4"', 'number_jrnl_files value="99999999999"', "files is out of range"),
        ('number_jrnl_files value="4"', 'number_jrnl_files value="x"', "number_jrnl_files is not a number"),
        ('jrnl_file_size_sblks value="8"', 'jrnl_file_size_sblks value="0"', "file size of 0 sectors"),
        ('JRNL_DBLK_SIZE value="128"', 'JRNL_DBLK_SIZE value="64"', "blocks of 64 bytes"),
        ('journal_version value="1"', 'journal_version value="7"', "unsupported journal version 7"),
        ('base_filename value="JournalData"', 'base_filename value="../x"', "base_filename is not a file name"),
        ('base_filename value="JournalData"', 'base_filename value="x\0y"', "base_filename is not a file name"),
        ('base_filename value="JournalData"', 'base_filename value="other"', "other.0000.jdat: No such file"),
    ],
)
def test_info_files_that_cannot_be_used(journal: Path, old: str, new: str, what: str) -> None:
    file = journal / "JournalData.jinf"
    file.write_bytes(file.read_bytes().replace(old.encode(), new.encode()))
    result = command(journal)
    assert (result.code, result.out) == (1, "")
    assert what in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\0" * 700, b"garbage\n", b"{}", b"x" * (1 << 21)])
def test_info_files_that_are_none(journal: Path, content: bytes) -> None:
    (journal / "JournalData.jinf").write_bytes(content)
    result = command("-q", journal)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"{journal}/JournalData.jinf: ")
    assert result.err.count("\n") == 1


def test_a_journal_of_version_2_is_for_another_tool(tmp_path: Path) -> None:
    builder = JournalBuilder(2, SMALL)
    builder.enqueue(b"one")
    result = command(written(builder, tmp_path / "j"))
    assert (result.code, result.out) == (1, "")
    assert "use qstore-dump" in result.err


# ---- files ----


def test_missing_files_are_reported(journal: Path) -> None:
    """Behind the first file that was never written nothing is looked at."""
    (journal / "JournalData.0002.jdat").unlink()
    assert command(journal).code == 0
    (journal / "JournalData.0001.jdat").unlink()
    assert command(journal).err == f"{journal}/JournalData.0001.jdat: No such file or directory\n"
    (journal / "JournalData.0000.jdat").unlink()
    result = command(journal)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"{journal}/JournalData.0000.jdat: No such file or directory\n"
    shutil.rmtree(journal)
    journal.write_text("a file")
    assert command(journal).err == f"{journal}/JournalData.jinf: Not a directory\n"


def test_path_that_is_not_a_regular_file_is_refused(journal: Path) -> None:
    file = journal / "JournalData.0000.jdat"
    file.unlink()
    file.mkdir()
    assert command(journal).code == 1
    file.rmdir()
    os.mkfifo(file)
    assert command(journal).err == f"{file}: not a regular file\n"


# ---- as a process ----


def process(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process of its own."""
    command_line = [sys.executable, "-m", "qstore.tools.qpid_store_chk", *map(os.fspath, arguments)]
    return forked.run(command_line, timeout=PATIENCE_SECONDS, stderr=subprocess.PIPE, **options)


def test_exit_codes_of_the_process(journal: Path) -> None:
    fine = process(journal, stdout=subprocess.PIPE)
    assert (fine.returncode, fine.stdout.decode(), fine.stderr) == (0, command(journal).out, b"")
    assert process(stdout=subprocess.PIPE).returncode == 2
    failed = process("/", stdout=subprocess.PIPE)
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr == b"/JournalData.jinf: No such file or directory\n"


def test_output_that_cannot_be_written(journal: Path) -> None:
    with open("/dev/full", "wb") as full:
        failed = process(journal, stdout=full)
    assert (failed.returncode, failed.stderr) == (1, b"standard output: No space left on device\n")
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "qstore.tools.qpid_store_chk", str(journal)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_reader_that_goes_away_ends_it_silently(tmp_path: Path) -> None:
    builder = JournalBuilder(1, Geometry(4, 1 << 20))
    builder.enqueue_many(5000, b"m")
    directory = written(builder, tmp_path / "j")
    pipeline = f'"{sys.executable}" -m qstore.tools.qpid_store_chk -r "{directory}" | head -n 1'
    shown = subprocess.run(["sh", "-c", pipeline], cwd=ROOT, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert shown.stdout == b"Journal info file %b/JournalData.jinf:\n" % os.fsencode(directory)
    assert shown.stderr == b""


def test_names_that_are_not_utf_8_go_out_as_they_came_in(journal: Path, tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xe9"))
    journal.rename(directory)
    shown = process(directory, stdout=subprocess.PIPE)
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0] == b"Journal info file %b/JournalData.jinf:" % os.fsencode(directory)


def test_nothing_is_written(journal: Path) -> None:
    before = snapshot(journal)
    for options in ([], ["-r"], ["-v"], ["-q"]):
        assert command(*options, journal).code == 0
    assert snapshot(journal) == before
