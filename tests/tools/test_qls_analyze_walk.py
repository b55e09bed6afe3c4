"""The walk of `qpid-qls-analyze`: from file to file, and where it ends (formats/qls/README.md, 4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.formats.qls.records import RecordHeader
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind
from qstore.tools.qpid_qls_analyze import Show
from tests.support.linear_builder import DIRECTORY, LinearBuilder, reset_file
from tests.support.memory_disk import MemoryDisk
from tests.tools.qls_analyze_runs import (
    FILLERS,
    SHOW,
    TRUNCATED,
    U64,
    analyse,
    analysed,
    filling,
    journal,
    journal_of_three,
    met,
    path_of,
)

# ---- files ----


def test_a_record_that_continues_in_the_next_file() -> None:
    result = analyse(journal(30, 3, 1))
    assert met(result) == [
        "0x1:0x00000000 F 1",
        "0x1:0x00001000 E 1",
        "0x2:0x00000000 F 2",
        "0x1:0x00001f00 E 2",
        "0x2:0x00001080 E 3",
    ]
    assert result.files() == [("0x1", 2), ("0x2", 1)]
    assert (result.code, result.err) == (0, "")


def test_a_record_that_fills_files_from_beginning_to_end() -> None:
    """Their first record offset is 0; the original passes over them, and the journal ends there."""
    result = analyse(journal(1, 31 + 2 * 32, 1, 31 + 32 + 5, 1))
    assert [line for line in met(result) if " E " in line] == [
        "0x1:0x00001000 E 1",
        "0x1:0x00001080 E 2",
        "0x4:0x00001000 E 3",
        "0x4:0x00001080 E 4",
        "0x6:0x00001280 E 5",
    ]
    assert result.files() == [("0x1", 2), ("0x2", 0), ("0x3", 0), ("0x4", 2), ("0x5", 0), ("0x6", 1)]
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("kind", [Kind.ENQUEUE, Kind.DEQUEUE, Kind.COMMIT, Kind.ABORT])
@pytest.mark.parametrize("there", [0, 1, 12, 23, 24])
def test_a_tail_over_two_files_is_completed(kind: Kind, there: int) -> None:
    """`there` bytes of the tail are in the first file; the original never completes it."""
    builder = LinearBuilder("q", data_size=4)
    builder.fill(30)
    header = RecordHeader(kind, rid=7)
    size = 2 * BLOCK_SIZE - there - header.header_size
    xid = b"" if kind is Kind.ENQUEUE else b"x" * size
    data = b"d" * size if kind is Kind.ENQUEUE else b""
    builder.append(header._replace(xid_size=len(xid), data_size=len(data)), xid, data)
    builder.enqueue(8, b"next")
    builder.flush()
    result = analyse(builder)
    shown = [line for line in result.walked() if "rid=0x7]" in line and " [F " not in line]
    assert len(shown) == 1
    assert shown[0].startswith("0x1:0x00001f00: [")
    assert " cs=0x" in shown[0]
    assert (result.code, result.err) == (0, "")
    assert result.report()[0] == f"{2 if kind is Kind.ENQUEUE else 1} enqueued records found:"


def test_xid_and_data_may_be_split_anywhere() -> None:
    show = Show(walked=True, xids=True, data=True)
    for lead in range(29, 32):
        for xid_size in range(1, 280, 13):
            builder = LinearBuilder("q", data_size=4)
            builder.fill(lead)
            builder.enqueue(1, b"d" * (3 * BLOCK_SIZE - 64 - xid_size), xid=b"x" * xid_size)
            line = next(line for line in analysed(builder.disk(), show).walked() if ": [E " in line)
            assert line.count("x" * min(xid_size, 25)) >= 1
            assert "\\" not in line
            assert "[E cs=0x" in line


def test_the_first_file_may_begin_with_the_rest_of_a_record() -> None:
    """The file before it went back to the pool."""
    builder = journal(30, 3, 1, first_number=5)
    disk = builder.disk()
    del disk.files[path_of(builder, 0)]
    result = analysed(disk, SHOW)
    assert met(result) == ["0x6:0x00000000 F 2", "0x6:0x00001080 E 3"]
    assert (result.code, result.err) == (0, "")


def test_the_first_file_may_hold_nothing_but_the_middle_of_a_record() -> None:
    builder = journal(31, 1 + 32 + 5, 1)
    disk = builder.disk()
    del disk.files[path_of(builder, 0)]
    result = analysed(disk, SHOW)
    assert met(result) == ["0x2:0x00000000 F 2", "0x3:0x00000000 F 2", "0x3:0x00001280 E 3"]
    assert result.files() == [("0x2", 0), ("0x3", 1)]
    assert (result.code, result.err) == (0, "")


def test_files_come_in_the_order_of_their_numbers() -> None:
    builder = journal(*[32] * 40)
    assert builder.names() != sorted(builder.names())
    result = analyse(builder)
    assert [line.split()[2] for line in met(result) if " E " in line] == [f"{rid:x}" for rid in range(1, 41)]


def test_a_file_that_was_taken_and_never_written_to_is_left_out() -> None:
    builder = journal(3)
    disk = builder.disk()
    disk.files[f"{DIRECTORY}/{'0' * 36}.jrnl"] = reset_file(4)
    result = analysed(disk, SHOW)
    assert result == analyse(builder)
    assert (result.code, result.files()) == (0, [("0x1", 1)])


def test_a_number_that_is_left_out() -> None:
    """After a crash within a record that had reached into a new file, that file went back to the pool."""
    first, second = journal(30), LinearBuilder("q", data_size=4, first_number=3, seed=1)
    record = first.enqueue(2, filling(5))
    second.append(RecordHeader(Kind.FILLER))
    second.enqueue(3, filling(1))
    content = bytearray(second.disk().files[f"{DIRECTORY}/{second.names()[0]}"])
    rest = 3 * BLOCK_SIZE
    content[0x1000 : 0x1000 + rest] = first.files()[1][0x1000 : 0x1000 + rest]
    content[40:48] = U64.pack(0x1180)
    disk = first.disk()
    del disk.files[path_of(first, 1)]
    disk.files[f"{DIRECTORY}/{second.names()[0]}"] = content
    result = analysed(disk, SHOW)
    assert record.size == 5 * BLOCK_SIZE
    assert met(result)[:4] == ["0x1:0x00000000 F 1", "0x1:0x00001000 E 1", "0x3:0x00000000 F 0", "0x1:0x00001f00 E 2"]
    assert (result.code, result.files()) == (0, [("0x1", 2), ("0x3", 0)])


def test_files_of_different_sizes() -> None:
    first, second = LinearBuilder("q", data_size=4), LinearBuilder("q", data_size=8, first_number=2, seed=1)
    first.enqueue(1, filling(32))
    for rid in range(2, 7):
        second.enqueue(rid, filling(12))
    disk = MemoryDisk({**first.disk().files, **second.disk().files})
    result = analysed(disk, SHOW)
    assert result.files() == [("0x1", 1), ("0x2", 5)]
    assert [line for line in result.report() if line.endswith(".jrnl ")][1].split()[3] == "8k"
    assert result.code == 0


def test_a_file_with_0_nanoseconds_is_one_as_any_other() -> None:
    builder = journal(3)
    builder.patch(0, 56, bytes(8))
    assert analyse(builder).files() == [("0x1", 1)]


def test_a_name_in_a_header_is_not_compared() -> None:
    builder = journal(3)
    builder.patch(0, 74, b"z")
    assert analyse(builder).report()[0] == "1 enqueued records found:"


# ---- the end ----


@pytest.mark.parametrize(
    ("offset", "content", "records", "invalid"),
    [
        (0x1080, bytes(4), 1, False),  # unwritten
        (0x1080, b"ABCD", 1, False),  # unknown magics
        (0x1080, b"RHMe", 1, False),
        (0x1080, b"QLSf", 1, False),
        (0x1088, b"zz", 1, False),  # another serial,
        (0x1084, b"\7\0\0\0zzzzzzzz", 1, False),  # and another version
        (0x1090, b"\x77", 1, True),  # another rid
        (0x10A8, b"z", 1, True),  # the data
        (0x10A8 + 300, b"zz", 1, True),  # the tail: its magic,
        (0x10AC + 300, b"zz", 1, True),  # its checksum,
        (0x10B0 + 300, b"zz", 1, True),  # its serial,
        (0x10B8 + 300, b"zz", 1, True),  # its rid
        (0x10A0, U64.pack(301), 1, True),  # a size that is not so
        (0x1000, bytes(128), 0, False),
        (0x1029, b"z", 0, True),
        (0x1229, b"zz", 2, True),
        (0x1208, b"zz", 2, False),
        (0x12A1, b"zz", 3, True),
    ],
)
def test_a_torn_record_ends_the_walk(offset: int, content: bytes, records: int, invalid: bool) -> None:
    builder = journal_of_three()
    builder.patch(0, offset, content)
    result = analyse(builder)
    assert (result.code, result.err) == (0, "")
    shown = [line for line in result.walked() if line and " [F " not in line and FILLERS not in line]
    assert len(shown) == records + invalid
    assert ["[INVALID RECORD TAIL] " in line for line in shown] == [False] * records + [True] * invalid
    assert result.counts()["Total record count"] == records + invalid
    end = (0x1000, 0x1080, 0x1200, 0x1280)[records]
    expected = [f"0x1:0x{end:08x}: {(0x2000 - end) // 128} {FILLERS} 0x00002000"] if records else []
    assert [line for line in result.walked() if FILLERS in line] == expected
    assert [line for line in result.report() if FILLERS in line] == expected


def test_the_missing_fillers_are_reported_while_records_are_shown_and_in_the_report() -> None:
    builder = journal_of_three()
    builder.patch(0, 0x1080, bytes(4))
    assert analysed(builder.disk()).out.count(FILLERS) == 1
    assert analysed(builder.disk(), Show(walked=True)).out.count(FILLERS) == 2
    assert analysed(builder.disk(), Show(recovered=True)).out.count(FILLERS) == 1
    assert FILLERS not in analyse(journal_of_three()).out
    assert FILLERS not in analyse(journal(32)).out


def test_records_of_a_former_life_are_not_met() -> None:
    """The file's former life left records, and they carry another serial."""
    old = LinearBuilder("q", data_size=4, seed=1)
    for rid in range(32):
        old.enqueue(rid, b"old")
    builder = LinearBuilder("q", data_size=4)
    builder.enqueue(100, b"new")
    builder.patch(0, 0x1080, old.files()[0][0x1080:])
    result = analyse(builder)
    assert [line.split()[1:] for line in met(result)] == [["F", "64"], ["E", "64"]]
    assert result.code == 0


def test_a_tail_that_covers_only_the_later_part_ends_the_walk() -> None:
    """As for qpidd and the original; `qstore-check` takes such a record for what it is."""
    builder = LinearBuilder("q", data_size=16)
    builder.enqueue(1, b"a" * 9000, waited_at=8192)
    builder.enqueue(2, b"b")
    result = analyse(builder)
    assert result.report()[0] == "No enqueued records found."
    assert "[INVALID RECORD TAIL]" in result.walked()[1]


@pytest.mark.parametrize(
    ("append", "shown"),
    [
        (lambda b: b.enqueue(7, b"d" * 5000), f"[E v=2 f=0x0000 rid=0x7] xid(0) data(5000) {TRUNCATED}"),
        (lambda b: b.enqueue(7, b"d" * 50, xid=b"x" * 150), f"[E v=2 f=0x0000 rid=0x7] xid(150) data(50) {TRUNCATED}"),
        (lambda b: b.dequeue(7, 3, xid=b"x" * 150), f"[D v=2 f=0x0000 rid=0x7] xid(150) drid=0x3 {TRUNCATED}"),
        (lambda b: b.commit(7, b"x" * 150), f"[C v=2 f=0x0000 rid=0x7] xid(150) {TRUNCATED}"),
        (lambda b: b.abort(7, b"x" * 150), f"[A v=2 f=0x0000 rid=0x7] xid(150) {TRUNCATED}"),
    ],
)
def test_a_record_without_its_rest(append: Callable[[LinearBuilder], object], shown: str) -> None:
    """Nothing of a Python object is printed, as by the original."""
    builder = journal(31)
    append(builder)
    disk = builder.disk()
    for index in range(1, len(builder.files())):
        del disk.files[path_of(builder, index)]
    result = analysed(disk, SHOW)
    assert result.walked()[2] == f"0x1:0x00001f80: {shown}"
    assert result.walked()[3] == f"0x1:0x00001f80: 1 {FILLERS} 0x00002000"
    assert result.counts()["Total record count"] == 2
    assert result.report()[0] == "1 enqueued records found:"
    assert (result.code, result.err) == (0, "")
    assert TRUNCATED not in analysed(disk).out


@pytest.mark.parametrize("field", [0x1018, 0x1020])
@pytest.mark.parametrize("size", [100_000, 1 << 40, 1 << 63, (1 << 64) - 1])
def test_forged_sizes(field: int, size: int) -> None:
    builder = journal(1, 40, 1)
    builder.patch(0, field, U64.pack(size))
    disk = builder.disk()
    result = analysed(disk, SHOW)
    assert TRUNCATED in result.walked()[2]
    assert result.files() == [("0x1", 0), ("0x2", 0)]
    assert result.code == 0
    assert disk.bytes_read < 1_000_000


# ---- first record offsets ----


def test_a_first_record_that_is_not_where_the_header_says() -> None:
    builder = journal(30, 3, 1)
    builder.patch(1, 40, U64.pack(0x1180))
    for show in (Show(), Show(walked=True)):
        result = analysed(builder.disk(), show)
        error = '0x00001180: **** FRO ERROR: queue="q" fid=0x2 fro actual=0x00001080 expected=0x00001180'
        assert result.walked()[-1 if show.walked else 0] == error
        assert result.files() == [("0x1", 2), ("0x2", 0)]
        assert FILLERS not in result.out
        assert result.code == 0  # as the original


def test_the_name_in_a_header_is_shown_on_one_line() -> None:
    builder = LinearBuilder("a\nb", data_size=4)
    builder.fill(31)
    builder.enqueue(1, b"d" * 100)
    builder.enqueue(2)
    builder.patch(1, 40, bytes(8))
    assert ' **** FRO ERROR: queue="a\\x0ab" fid=0x2 ' in analysed(builder.disk()).walked()[0]


def test_a_file_between_two_records_is_entered_where_its_header_says() -> None:
    builder = journal(32, 1, 1, 1)
    builder.patch(1, 40, U64.pack(0x1080))
    assert [line.split()[2] for line in met(analyse(builder)) if " E " in line] == ["1", "3", "4"]


@pytest.mark.parametrize("offset", [1, 0x80, 0xF80, 0x1001, 0x1040, 0x2001, 0x2080, 1 << 40, 2**64 - 1])
def test_offsets_at_which_no_record_can_begin(offset: int) -> None:
    for index in (0, 1):
        builder = journal(32, 1)
        builder.patch(index, 40, U64.pack(offset))
        result = analyse(builder)
        what = f"no record can begin at the first record offset 0x{offset:x}"
        assert (result.code, result.problems) == (1, [f"{path_of(builder, index)}: {what}"])
        assert result.is_complete
        assert result.files() == [("0x1", index), ("0x2", 0)]


@pytest.mark.parametrize("offset", [0, 0x2000])
def test_a_header_that_tells_of_no_record_where_one_must_begin(offset: int) -> None:
    builder = journal(32, 1)
    builder.patch(1, 40, U64.pack(offset))
    result = analyse(builder)
    assert result.code == 1
    assert result.problems[0].startswith(f"{path_of(builder, 1)}: its header says that no record begins in it")
    assert result.report()[0] == "1 enqueued records found:"
