"""`qpid-qls-analyze`: options, exit codes, and whole outputs of small stores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.rhm.records import TRANSIENT
from tests.support import forked
from tests.support.fixtures import snapshot
from tests.support.linear_builder import LinearBuilder, add_pooled_files, make_tree
from tests.tools.qls_analyze_runs import command, written

USAGE: Final = "qpid-qls-analyze: error: "


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A queue with three messages, one of them in a transaction that is open; a prepared list that knows of it."""
    queue = LinearBuilder("orders", data_size=4)
    queue.enqueue(1, b"one")
    queue.enqueue(2, b"two", xid=b"x1")
    queue.enqueue(3, b"three")
    queue.dequeue(4, 3, xid=b"x1")
    queue.dequeue(5, 1)
    queue.flush()
    prepared = LinearBuilder("TplStore", data_size=4)
    prepared.enqueue(6, b"\0", xid=b"x1")
    prepared.flush()
    return written(tmp_path / "store", queue, prepared)


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: DIR"),
        (["--efp"], "the following arguments are required: DIR"),
        (["/no/such"], 'Journal path "/no/such" does not exist'),
        ([""], 'Journal path "" does not exist'),
        (["a\0b"], 'Journal path "a\\x00b" does not exist'),
        (["a\nb"], 'Journal path "a\\x0ab" does not exist'),
        (["x" * 5000], 'Journal path "xxx'),
        (["--bogus", "/"], "unrecognized arguments: --bogus"),
        (["/", "b"], "unrecognized arguments: b"),
        (["--show-rec", "/"], "ambiguous option: --show-rec could match "),
        (["/"], '"/" is no linearstore: neither jrnl2 nor tpl2 nor pNNN is in it'),
        (["/etc/passwd"], '"/etc/passwd" is no linearstore'),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1].startswith(USAGE + message)
    assert result.err.startswith("usage: qpid-qls-analyze [-h]")


def test_the_directory_above_is_not_the_store_but_named(store: Path) -> None:
    result = command(store.parent)
    assert result.code == 2
    assert result.err.endswith(f"; try {store}\n")


def test_version() -> None:
    result = command("--version")
    assert (result.code, result.out, result.err) == (0, "qpid-qls-analyze 1.0\n", "")
    assert command("--version", "/no/such") == result


def test_help_shows_options_and_examples() -> None:
    result = command("-h")
    assert (result.code, result.err) == (0, "")
    for option in ("efp", "show-recovered-recs", "show-recovery-recs", "show-all-recs", "show-xids", "show-data"):
        assert f"  --{option} " in result.out or f"  --{option}\n" in result.out
    for option in ("stats", "txtest", "txn", "version"):
        assert f"  --{option} " in result.out
    assert len([line for line in result.lines if line.startswith("  qpid-qls-analyze ")]) == 3


def test_long_options_may_be_shortened_and_follow_the_directory(store: Path) -> None:
    assert command(store, "--show-a", "--st") == command("--show-all-recs", "--stats", store)


# ---- output ----

RECONCILIATION: Final = """\
Transaction reconciliation report:
==================================
Transaction Prepared List (TPL) contains 1 open transaction(s):
  xid(2)='"x1"' [Prepared, neither committed nor aborted - assuming commit]

Open transactions found in queues:
----------------------------------
orders contains 1 open transaction(s):
  xid(2)='"x1"' - Assuming commit after prepare

Creating commit records for the following prepared transactions in TPL:
  xid(2)='"x1"'

"""


def table(*rows: str) -> str:
    return "".join(
        f"{row}\n"
        for row in ("file_num enq_cnt p_no   efp journal_file", "-------- ------- ---- ----- ------------", *rows, "")
    )


@pytest.fixture
def names(store: Path) -> tuple[str, str]:
    """The names of the files: the prepared list's and the queue's."""
    return os.listdir(store / "tpl2")[0], os.listdir(store / "jrnl2" / "orders")[0]


def test_default_output(store: Path, names: tuple[str, str]) -> None:
    result = command(store)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "Recovering tpl2... done\nRecovering orders... done\n\n"
        + RECONCILIATION
        + 'Journal "tpl2":\n===============\nNo enqueued records found.\n1 outstanding transaction(s).\n'
        + table(f"     0x1       1    1    4k {names[0]} ")
        + 'Journal "orders":\n=================\n1 enqueued records found.\n1 outstanding transaction(s).\n'
        + table(f"     0x1       2    1    4k {names[1]} ")
    )


def test_output_of_everything(store: Path, names: tuple[str, str]) -> None:
    """All options, but for what is said of the pools; fillers are shown by their number."""
    result = command("--show-all-recs", "--show-recovered-recs", "--show-data", "--show-xids", "--stats", store)
    assert (result.code, result.err) == (0, "")
    fillers = [line for line in result.lines if line.endswith(": [X]")]
    assert len(fillers) == 31 + 27
    assert fillers[-1] == "0x1:0x00001f80: [X]"
    out = "".join(f"{line}\n" for line in result.lines if line not in fillers)
    header = "f=0x0000 rid=0x{} fnum=0x1 fro=0x00001000 p=1 s=4k t=Tue Nov 14 22:13:20.123456789 2023 "
    counts = "Total record count: {}\nTransient record count: 0\nFiller_record_count: {}\nEnqueue_count: {}\n"
    counts += "Dequeue_count: {}\nTransaction_record_count: {}\nTransaction_enqueue_count: 1\n"
    counts += "Transaction_dequeue_count: {}\nTransaction_commit_count: 0\nTransaction_abort_count: 0\n"
    counts += "Transaction_operation_count: {}\n\n"
    two = "0x1:0x00001080: [E v=2 f=0x0000 rid=0x2] xid(2)='\"x1\"' data(3)='\"two\"' [E cs=0 rid=0x2]  \n"
    three = "0x1:0x00001100: [E v=2 f=0x0000 rid=0x3]  data(5)='\"three\"' [E cs=0 rid=0x3]  \n"
    gone = "0x1:0x00001180: [D v=2 f=0x0000 rid=0x4] drid=0x3 xid(2)='\"x1\"' [D cs=0 rid=0x4]  \n"
    prepared = "0x1:0x00001000: [E v=2 f=0x0000 rid=0x6] xid(2)='\"x1\"' data(1)='\\00' [E cs=0 rid=0x6]  \n"
    checksum = {line.split(" cs=")[0]: line.split(" cs=")[1].split()[0] for line in result.lines if " cs=" in line}

    def summed(line: str) -> str:
        before, _, after = line.partition(" cs=")
        return f"{before} cs={checksum[before]} {after.split(' ', 1)[1]}"

    two, three, gone, prepared = map(summed, (two, three, gone, prepared))
    one = summed("0x1:0x00001000: [E v=2 f=0x0000 rid=0x1]  data(3)='\"one\"' [E cs=0 rid=0x1]  \n")
    assert out == (
        "Recovering tpl2... 0x1:0x00000000: [F v=2 "
        + header.format("6]")
        + f"\n{prepared}done\n\n"
        + "Recovering orders... 0x1:0x00000000: [F v=2 "
        + header.format("1]")
        + f"\n{one}{two}{three}{gone}"
        + "0x1:0x00001200: [D v=2 f=0x0000 rid=0x5] drid=0x1    \ndone\n\n\n"
        + RECONCILIATION
        + 'Journal "tpl2":\n===============\n'
        + counts.format(32, 31, 1, 0, 1, 0, 1)
        + "No enqueued records found.\n1 outstanding transaction(s):\n"
        + f"  xid(2)='\"x1\"' containing 1 operations:\n    {prepared}"
        + table(f"     0x1       1    1    4k {names[0]} ")
        + 'Journal "orders":\n=================\n'
        + counts.format(32, 27, 3, 2, 2, 1, 2)
        + f"1 enqueued records found:\n  {three[:-1]} [LOCKED]\n1 outstanding transaction(s):\n"
        + f"  xid(2)='\"x1\"' containing 2 operations:\n    {two}    {gone}"
        + table(f"     0x1       2    1    4k {names[1]} ")
    )


def test_recovery_records_are_all_but_fillers(store: Path) -> None:
    every, material = command("--show-all-recs", store), command("--show-recovery-recs", store)
    assert [line for line in every.lines if not line.endswith("[X]")] == material.lines
    assert command("--show-all-recs", "--show-recovery-recs", store) == every


def test_contents_are_shown_with_records_only(store: Path) -> None:
    assert command("--show-xids", "--show-data", "--txtest", store) == command(store)
    lines = command("--show-recovery-recs", store).walked("orders")
    assert lines[2].startswith("0x1:0x00001080: [E v=2 f=0x0000 rid=0x2] xid(2) data(3) [E cs=0x")
    lines = command("--show-recovery-recs", "--show-xids", store).walked("orders")
    assert " xid(2)='\"x1\"' data(3) [E " in lines[2]
    lines = command("--show-recovery-recs", "--show-data", store).walked("orders")
    assert " xid(2) data(3)='\"two\"' [E " in lines[2]


def test_resolved(store: Path, names: tuple[str, str]) -> None:
    result = command("--txn", "--show-recovered-recs", store)
    assert result.out[: result.out.index('Journal "')] == command(store).out.split('Journal "')[0]
    assert result.report("tpl2")[:2] == ["No enqueued records found.", "No outstanding transactions found."]
    count, record, transactions = result.report("orders")[:3]
    assert (count, transactions) == ("1 enqueued records found:", "No outstanding transactions found.")
    assert record.startswith("  0x1:0x00001080: [E v=2 f=0x0000 rid=0x2] xid(2) data(3) [E ")
    assert (result.files("orders"), result.files("tpl2")) == ([("0x1", 1)], [("0x1", 0)])


def test_a_store_without_journals(tmp_path: Path) -> None:
    qls = make_tree(tmp_path)
    empty = "No enqueued records found.\nNo outstanding transactions found.\n"
    expected = """
Transaction reconciliation report:
==================================
Transaction Prepared List (TPL) contains 0 open transaction(s):

Open transactions found in queues:
----------------------------------

"""
    assert command(qls).out == f'Recovering tpl2... done\n{expected}Journal "tpl2":\n===============\n{empty}{table()}'
    (qls / "tpl2").rmdir()
    assert (command(qls).code, command(qls).out) == (0, expected)
    (qls / "jrnl2" / "orders").mkdir()
    assert command(qls).out == (
        f'Recovering orders... done\n{expected}Journal "orders":\n=================\n{empty}{table()}'
    )


def test_counts(tmp_path: Path) -> None:
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"a", flags=TRANSIENT, xid=b"t")
    queue.enqueue(2, b"b", flags=TRANSIENT)
    queue.enqueue(3, b"c", xid=b"x")
    queue.enqueue(4, b"d", xid=b"y")
    queue.enqueue(5, b"e")
    queue.dequeue(6, 5, xid=b"x")
    queue.dequeue(7, 99)
    queue.commit(8, b"x")
    queue.abort(9, b"y")
    queue.abort(10, b"unknown")
    queue.flush()
    assert command("--stats", written(tmp_path, queue)).counts() == {
        "Total record count": 32,
        "Transient record count": 2,
        "Filler_record_count": 22,
        "Enqueue_count": 3,
        "Dequeue_count": 2,
        "Transaction_record_count": 6,
        "Transaction_enqueue_count": 2,
        "Transaction_dequeue_count": 1,
        "Transaction_commit_count": 1,
        "Transaction_abort_count": 2,
        "Transaction_operation_count": 3,
    }


# ---- names ----


def test_journals_are_sorted_and_their_names_underlined_by_bytes(tmp_path: Path) -> None:
    queues = []
    for name in ("b", "a", "B", "é", "10", "9", "a/b"):
        queue = LinearBuilder(name, data_size=4)
        queue.enqueue(1, b"m")
        queues.append(queue)
    result = command(written(tmp_path, *queues))
    titles = [line.removeprefix("Recovering ").removesuffix("... done") for line in result.lines[:8]]
    assert titles == ["tpl2", "10", "9", "B", "a", "a/b", "b", "é"]
    assert [line for line in result.lines if line.startswith("Journal ")] == [f'Journal "{name}":' for name in titles]
    assert result.lines[result.lines.index('Journal "é":') + 1] == "=" * 13


def test_names_are_shown_on_one_line_as_they_are(tmp_path: Path) -> None:
    queue = LinearBuilder("a\n\x1b[2J\udcff", data_size=4)
    queue.enqueue(1, b"m")
    result = command(written(tmp_path, queue))
    assert (result.code, result.err) == (0, "")
    assert result.lines[1] == "Recovering a\\x0a\\x1b[2J\udcff... done"


def test_a_queue_whose_name_is_that_of_the_prepared_list(tmp_path: Path) -> None:
    """The directory says what a journal is, not the queue's name in its headers."""
    queue = LinearBuilder("TplStore", data_size=4)
    queue.enqueue(1, b"m", xid=b"x")
    queue.dequeue(2, 1, xid=b"x", flags=16)
    qls = make_tree(tmp_path)
    queue.write_plain(qls / "jrnl2" / "TplStore")
    result = command("--show-recovery-recs", qls)
    assert result.walked("TplStore")[2].endswith("  <NOT IN EMAP>")
    assert "contains 0 open transaction(s):" in result.reconciliation[0]
    shutil.rmtree(qls / "tpl2")
    (qls / "jrnl2" / "TplStore").rename(qls / "tpl2")
    result = command("--show-recovery-recs", qls)
    assert result.walked("tpl2")[2].endswith("] [COMMIT] ")
    assert "contains 1 open transaction(s):" in result.reconciliation[0]


def test_strangers_in_the_directories(store: Path) -> None:
    before = command("--efp", store)
    (store / "jrnl2" / "readme").write_text("x")
    (store / "jrnl2" / "orders" / "notes.txt").write_text("x")
    (store / "p1x").mkdir()
    (store / "p002").write_text("x")
    assert command("--efp", store) == before


# ---- links ----


def test_files_are_found_by_name_and_not_where_links_lead(tmp_path: Path) -> None:
    """A copy of a store beside the original, which its links lead to, and where the queue has another message."""
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"old")
    queue.write(tmp_path / "original", link_root=tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy", symlinks=True)
    (file,) = (tmp_path / "original" / "qls" / "p001" / "efp" / "4k" / "in_use").iterdir()
    queue.enqueue(2, b"new")
    file.write_bytes(queue.files()[0])
    assert command(tmp_path / "original" / "qls").report()[0] == "2 enqueued records found."
    assert command(tmp_path / "copy" / "qls").report()[0] == "1 enqueued records found."


def test_links_that_lead_elsewhere_are_followed_where_the_store_has_no_such_file(tmp_path: Path) -> None:
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"m")
    qls = make_tree(tmp_path)
    queue.write_plain(tmp_path / "elsewhere")
    (qls / "jrnl2" / "q").mkdir()
    (qls / "jrnl2" / "q" / queue.names()[0]).symlink_to(tmp_path / "elsewhere" / queue.names()[0])
    assert command(qls).report()[0] == "1 enqueued records found."


def test_plain_files_are_taken_before_others_of_their_names(tmp_path: Path) -> None:
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"m")
    qls = written(tmp_path, queue)
    link = qls / "jrnl2" / "q" / queue.names()[0]
    link.unlink()
    queue.enqueue(2, b"m")
    link.write_bytes(queue.files()[0])
    assert command(qls).report()[0] == "2 enqueued records found."


def test_a_link_to_nothing_is_reported(tmp_path: Path) -> None:
    queue = LinearBuilder("q", data_size=4)
    queue.enqueue(1, b"m")
    qls = written(tmp_path, queue)
    for file in (qls / "p001").rglob("*.jrnl"):
        file.unlink()
    result = command(qls)
    link = qls / "jrnl2" / "q" / queue.names()[0]
    target = f"/var/lib/qpidd/qls/p001/efp/4k/in_use/{queue.names()[0]}"
    assert (result.code, result.problems) == (1, [f"{link}: link to {target}, which is not there"])
    assert result.is_complete


# ---- the process ----


def process(*arguments: str | Path, out: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "qstore.tools.qpid_qls_analyze", *arguments], stdout=out, stderr=-1, text=True
    )


def test_as_a_process_it_changes_nothing(store: Path) -> None:
    add_pooled_files(store.parent, 2, data_size=4)
    before = snapshot(store)
    result = process("--efp", "--show-all-recs", "--txn", "--stats", store)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == command("--efp", "--show-all-recs", "--txn", "--stats", store).out
    assert snapshot(store) == before
    assert process("/no/such").returncode == 2


def test_output_that_cannot_be_written_is_reported(store: Path) -> None:
    with open("/dev/full", "w") as full:
        result = process(store, out=full.fileno())
    assert result.returncode == 1
    assert result.stderr == "qpid-qls-analyze: standard output: No space left on device\n"


def test_a_reader_that_goes_away_ends_it_silently(store: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = process("--show-all-recs", store, out=write)
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (-13, "")
