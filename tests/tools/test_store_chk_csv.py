"""`qpid-store-chk -c FILE -t N`: a journal compared with a test's expectations."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.records import EXTERNAL, TRANSIENT
from qstore.tools.qpid_store_chk import CsvFileError, read_test
from tests.support.journal_builder import JournalBuilder
from tests.support.memory_disk import MemoryDisk
from tests.tools.store_chk_runs import SMALL, Run, command, written


def line(
    number: object = 1,
    messages: object = 3,
    sizes: tuple[object, object] = (5, 5),
    xids: tuple[object, object] = (0, 0),
    flags: tuple[str, str, str] = ("FALSE", "FALSE", "FALSE"),
) -> str:
    """One line of a test file; flags are dequeued, transient, external."""
    cells = [f"column {index}" for index in range(22)]
    cells[0], cells[5], cells[7:9], cells[9:11], cells[11:14] = str(number), str(messages), sizes, xids, flags
    return ",".join(map(str, cells)) + "\n"


def plain(journal: JournalBuilder) -> None:
    for _ in range(3):
        journal.enqueue(b"hello")


def transient(journal: JournalBuilder) -> None:
    for _ in range(3):
        journal.enqueue(b"hello", flags=TRANSIENT)


def external(journal: JournalBuilder) -> None:
    for _ in range(3):
        journal.enqueue(size=5, flags=EXTERNAL)


def transactional(journal: JournalBuilder) -> None:
    for _ in range(3):
        journal.enqueue(b"hello", xid=b"abcd")
    journal.commit(b"abcd")


def dequeued(journal: JournalBuilder) -> None:
    plain(journal)
    for rid in (1, 2, 3):
        journal.dequeue(rid)


def nothing(journal: JournalBuilder) -> None:
    assert not journal.records


DEQUEUED, IS_TRANSIENT, IS_EXTERNAL = ("TRUE", "FALSE", "0"), ("FALSE", "1", "FALSE"), ("0", "FALSE", "TRUE")
BUILDERS = {build.__name__: build for build in (plain, transient, external, transactional, dequeued, nothing)}


def run_test(tmp_path: Path, journal: str, text: str, *options: str, number: int = 1) -> Run:
    """Check a journal against test `number` in a file that holds `text`."""
    builder = JournalBuilder(1, SMALL)
    BUILDERS[journal](builder)
    file = tmp_path / "tests.csv"
    file.write_text(text)
    return command(*options, "-c", file, "-t", str(number), written(builder, tmp_path / "j"))


@pytest.mark.parametrize(
    ("journal", "text"),
    [
        ("plain", line()),
        ("plain", line(sizes=(1, 9), xids=(4, 100))),
        ("plain", line(sizes=(0, 0))),
        ("plain", line(flags=DEQUEUED)),
        ("transient", line(flags=IS_TRANSIENT)),
        ("external", line(flags=IS_EXTERNAL)),  # there are no data whose size could be compared
        ("transactional", line(xids=(4, 4))),
        ("dequeued", line(flags=DEQUEUED)),
        ("nothing", line(messages=0)),
        ("plain", '"Test","a head"\n\nnumber,more\n' + line(2, messages=9) + line() + line(messages=9)),
        ("plain", line().rstrip("\n")),
        ("plain", line(" 1 ", " 3", (" +5", "5"))),
    ],
)
def test_as_expected(tmp_path: Path, journal: str, text: str) -> None:
    result = run_test(tmp_path, journal, text)
    assert (result.code, result.err) == (0, "")
    assert result == command(tmp_path / "j")


@pytest.mark.parametrize(
    ("journal", "text", "message"),
    [
        ("plain", line(messages=4), "Incorrect number of messages: expected 4, found 3"),
        ("nothing", line(messages=4), "Incorrect number of messages: expected 4, found 0"),
        ("plain", line(sizes=(6, 6)), "Message length mismatch: expected 6; found 5"),
        ("transactional", line(xids=(9, 9)), "Message XID mismatch: expected 9; found 4"),
        ("plain", line(xids=(9, 9)), "Message XID mismatch: expected 9; found 0"),
        ("plain", line(flags=IS_EXTERNAL), "External flag mismatch: expected True"),
        ("external", line(), "External flag mismatch: expected False"),
        ("plain", line(flags=IS_TRANSIENT), "Transaction mismatch: expected True"),
        ("transient", line(), "Transaction mismatch: expected False"),
        ("plain", line(flags=("FALSE", "false", "FALSE")), "Transaction mismatch: expected True"),
        ("plain", line(flags=("FALSE", "", "FALSE")), "Transaction mismatch: expected True"),
        ("dequeued", line(), "WARNING: Dequeue record rid=4 found in non-dequeue test - ignoring."),
        # What is wrong first is told.
        ("transactional", line(sizes=(9, 9), xids=(9, 9), flags=IS_EXTERNAL), "External flag mismatch: expected True"),
        ("transactional", line(sizes=(9, 9), xids=(9, 9)), "Message length mismatch: expected 9; found 5"),
        ("transactional", line(xids=(9, 9), flags=IS_TRANSIENT), "Message XID mismatch: expected 9; found 4"),
    ],
)
def test_not_as_expected(tmp_path: Path, journal: str, text: str, message: str) -> None:
    result = run_test(tmp_path, journal, text)
    assert (result.code, result.err) == (1, f"[CSV 1] {message}\n")
    assert not result.is_complete
    quiet = run_test(tmp_path, journal, text, "-q")
    assert (quiet.code, quiet.out, quiet.err) == (1, "", result.err)


def test_a_record_that_is_not_as_expected_is_not_shown(tmp_path: Path) -> None:
    result = run_test(tmp_path, "plain", line(sizes=(6, 6)), "-r")
    assert result.lines[-1] == " * fro ok: 0x200"
    result = run_test(tmp_path, "plain", line(messages=9), "-r")
    assert result.lines[-1] == ' > 0x00000380: ["RHMx"]  '


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "1,2,3\n",
        line(2),
        f'"{line()}',
        line().replace("1,", '"1",', 1),
        line(messages="x"),
        line(messages=""),
        line(messages="3.0"),
        line(sizes=("0x5", 5)),
        line(xids=(0, "")),
        ",".join(line().split(",")[:20]) + "\n",
        line().replace(",", ";"),
    ],
)
def test_a_test_that_is_not_there(tmp_path: Path, text: str) -> None:
    result = run_test(tmp_path, "plain", text)
    assert (result.code, result.err) == (1, "")
    assert result.out == f'ERROR: Test 1 not found in CSV file "{tmp_path}/tests.csv"\n'
    assert run_test(tmp_path, "plain", text, "-q") == result


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    directory = written(JournalBuilder(1, SMALL), tmp_path / "j")
    for file in (tmp_path / "none", tmp_path, ""):
        result = command("-c", file, "-t", "1", directory)
        assert (result.code, result.out, result.err) == (1, f'ERROR: Unable to open CSV file "{file}"\n', "")


def test_one_of_the_two_options_alone_means_nothing(tmp_path: Path) -> None:
    directory = written(JournalBuilder(1, SMALL), tmp_path / "j")
    assert command("-c", "/no/such", directory) == command("-t", "7", directory) == command(directory)


@given(st.binary(max_size=300) | st.text('0123456789,\n"', max_size=300).map(str.encode))
def test_any_file_gives_a_test_or_an_error(content: bytes) -> None:
    disk = MemoryDisk({"/tests.csv": content})
    with suppress(CsvFileError):
        assert read_test(disk, "/tests.csv", 1).number == 1
    assert disk.open_now == 0
