"""`qpid-qls-analyze` on damaged journals, and how much it reads and holds."""

from __future__ import annotations

import pytest

from qstore.tools.qpid_qls_analyze import Show
from tests.support.linear_builder import DIRECTORY, LinearBuilder
from tests.support.memory_disk import BadRegion, MemoryDisk
from tests.tools.qls_analyze_runs import (
    FILLERS,
    SHOW,
    TRUNCATED,
    U64,
    analyse,
    analysed,
    fields,
    journal,
    journal_of_three,
    met,
    path_of,
)

# ---- what no writer leaves ----


@pytest.mark.parametrize(
    ("offset", "content", "where", "what"),
    [
        (0x1084, b"\3", 0x1080, "unsupported journal version 3 in enqueue record"),
        (0x1298, bytes(8), 0x1280, "commit record without an xid"),
    ],
)
def test_contradictions_in_a_record_are_errors(offset: int, content: bytes, where: int, what: str) -> None:
    builder = journal_of_three()
    builder.patch(0, offset, content)
    result = analyse(builder)
    assert (result.code, result.problems) == (1, [f"{path_of(builder, 0)} at offset 0x{where:x}: {what}"])
    assert result.is_complete
    assert FILLERS not in result.out


@pytest.mark.parametrize(
    ("offset", "content", "what"),
    [
        (0, b"z", "not a file header: magic 0x66534c7a"),
        (4, b"\3", "unsupported journal version 3 in file header"),
        (24, b"\2", "a file header of 2 sectors instead of 1"),
        (32, b"\xff" * 8, "file header has a data size of 18446744073709551615 KiB"),
        (72, b"\xff\xff", "file header has a queue name of 65,535 bytes"),
        (64, bytes(8), "file header without a file number"),
    ],
)
def test_files_without_a_usable_header_are_left_out_and_reported(offset: int, content: bytes, what: str) -> None:
    builder = journal(32, 32, 1)
    builder.patch(1, offset, content)
    result = analyse(builder)
    assert result.code == 1
    assert result.problems == [f"{path_of(builder, 1)}: {what}"]
    assert result.files() == [("0x1", 1), ("0x3", 1)]


def test_two_files_of_one_number() -> None:
    builder = journal(32, 32)
    builder.patch(1, 64, U64.pack(1))
    first, second = sorted(builder.names())
    result = analyse(builder)
    what = f"file number 0x1, which {DIRECTORY}/{first} has too; it is not read"
    assert (result.code, result.problems) == (1, [f"{DIRECTORY}/{second}: {what}"])
    assert result.files() == [("0x1", 1)]


def test_ids_that_are_enqueued_twice() -> None:
    builder = LinearBuilder("q", data_size=4)
    builder.enqueue(1, b"a")
    builder.enqueue(1, b"b")
    builder.enqueue(2, b"c", xid=b"x")
    builder.enqueue(2, b"d")
    builder.commit(3, b"x")
    result = analyse(builder)
    assert result.code == 1
    assert result.problems == [
        f"{path_of(builder, 0)} at offset 0x1080: a record with id 0x1 is enqueued already",
        f"{path_of(builder, 0)} at offset 0x1100: a record with id 0x2 is enqueued already",
    ]
    assert [fields(line)[:26] for line in result.report()[1:3]] == [
        "[E v=2 f=0x0000 rid=0x1]  ",
        "[E v=2 f=0x0000 rid=0x2]  ",
    ]
    assert result.files() == [("0x1", 2)]


# ---- files that are too short, or cannot be read ----


@pytest.mark.parametrize("size", [0, 4, 73])
def test_a_file_without_a_whole_header(size: int) -> None:
    builder = journal(1)
    disk = builder.disk()
    disk.files[path_of(builder, 0)] = disk.files[path_of(builder, 0)][:size]
    result = analysed(disk)
    assert (result.code, result.problems) == (1, [f"{path_of(builder, 0)}: truncated file header"])
    assert (result.is_complete, result.files()) == (True, [])


@pytest.mark.parametrize(
    ("size", "records", "truncated"),
    [
        (76, 0, False),
        (4096, 0, False),
        (0x1003, 0, False),
        (0x1027, 0, False),
        (0x1028, 0, True),
        (0x1040, 0, True),
        (0x1041, 1, False),
        (0x1080, 1, False),
        (0x1080 + 0x28, 1, True),
        (0x1080 + 363, 1, True),
        (0x1080 + 364, 2, False),
        (0x1FFF, 4, False),
    ],
)
def test_a_file_that_is_cut_short(size: int, records: int, truncated: bool) -> None:
    builder = journal_of_three()
    disk = builder.disk()
    disk.files[path_of(builder, 0)] = disk.files[path_of(builder, 0)][:size]
    result = analysed(disk, Show(walked=True, counts=True))
    assert (result.code, result.problems) == (
        1,
        [f"{path_of(builder, 0)}: file has {size} bytes, its header says 8192"],
    )
    shown = [line for line in result.walked() if line and " [F " not in line and FILLERS not in line]
    assert [TRUNCATED in line for line in shown] == [False] * records + [True] * truncated


def test_a_record_that_continues_behind_a_file_that_is_cut_short_is_truncated() -> None:
    builder = journal(30, 36, 1)
    disk = builder.disk()
    disk.files[path_of(builder, 0)] = disk.files[path_of(builder, 0)][:0x1F80]
    result = analysed(disk, SHOW)
    assert met(result)[-1] == "0x1:0x00001f00 E 2"
    assert result.walked()[4].endswith(TRUNCATED)
    assert result.code == 1


def test_a_file_that_is_longer_than_its_header_tells() -> None:
    builder = journal(32, 1)
    disk = builder.disk()
    disk.files[path_of(builder, 0)] += b"QLSx" * 1000
    assert analysed(disk, SHOW) == analyse(builder)


def test_sectors_that_cannot_be_read() -> None:
    builder = journal(32, 1)
    for region, files in (((0x1000, 0x1200), [("0x1", 0), ("0x2", 0)]), ((0, 0x200), [("0x2", 1)])):
        disk = builder.disk()
        disk.bad_regions.append(BadRegion(path_of(builder, 0), *region))
        result = analysed(disk, SHOW)
        assert (result.code, result.problems) == (1, [f"{path_of(builder, 0)}: Input/output error"])
        assert (result.is_complete, result.files()) == (True, files)


def test_a_file_that_cannot_be_opened() -> None:
    builder = journal(32, 1)
    disk = builder.disk()
    disk.unopenable.add(path_of(builder, 0))
    result = analysed(disk, SHOW)
    assert (result.code, result.problems) == (1, [f"{path_of(builder, 0)}: Permission denied"])
    assert result.files() == [("0x2", 1)]


def test_a_journal_that_changes_while_it_is_read() -> None:
    builder = journal(1, 1)
    disk = builder.disk()

    class Overwritten(MemoryDisk):
        def open(self, path: str):  # type: ignore[no-untyped-def]
            if self.reads >= 2:  # the header, and the records
                self.files[path] = bytes(self.files[path][:0x1080]).ljust(8192, b"\0")
            return super().open(path)

    result = analysed(Overwritten(disk.files), Show(recovered=True))
    what = f"{path_of(builder, 0)} at offset 0x1080: the record changed while the journal was read"
    assert (result.code, result.problems) == (1, [what])
    assert result.lines[-1].startswith("  0x1:0x00001000: [E ")


# ---- how much is read and held ----


def test_bodies_are_not_held_and_one_file_is_open_at_a_time() -> None:
    builder = LinearBuilder("q", data_size=1024)
    for rid in range(1, 6):
        builder.enqueue(rid, b"\0" * 3_000_000)
    disk = builder.disk()
    result = analysed(disk, Show(recovered=True))
    assert result.report()[0] == "5 enqueued records found:"
    assert disk.max_open == 1
    assert disk.bytes_read < 2.5 * 15_000_000  # each record's checksum is taken when it is met, and when it is shown


def test_many_records_are_walked() -> None:
    builder = LinearBuilder("q", data_size=512)
    for rid in range(1, 6001):
        builder.enqueue(rid, b"m" * 200)
        if rid % 50 == 0:
            builder.flush()
    for rid in range(1, 5001):
        builder.dequeue(10_000 + rid, rid)
    result = analysed(builder.disk(), Show(recovered=True))
    assert result.report()[0] == "1000 enqueued records found:"
    assert sum(count for _, count in result.files()) == 1000
    assert result.code == 0
