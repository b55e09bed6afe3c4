"""The walk of `qpid-store-chk`: from file to file, and where it ends."""

from __future__ import annotations

import struct

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.tools.drop_in import Show
from tests.support.journal_builder import JournalBuilder
from tests.support.memory_disk import BadRegion
from tests.tools.store_chk_runs import SMALL, check, filling, patch, path_of

U64 = struct.Struct("<Q")


def builder(*sizes: int) -> JournalBuilder:
    """A journal of enqueues that take these numbers of blocks; a file has 32."""
    journal = JournalBuilder(1, SMALL)
    for size in sizes:
        journal.enqueue(filling(size))
    journal.flush()
    return journal


def places(lines: list[str]) -> list[tuple[str, int, int]]:
    """File, offset and rid of remaining records."""
    return [
        (words[0], int(words[1][:-1], 16), int(words[6].removeprefix("rid=0x").removesuffix("]"), 16))
        for words in (line.split() for line in lines)
    ]


# ---- files ----


def test_the_walk_begins_in_the_earliest_full_file() -> None:
    """Two messages a file; the ninth overwrote the first, and behind it stands the second."""
    result = check(builder(*[16] * 9))
    begin = next(i for i, line in enumerate(result.lines) if line.startswith("Journal files analyzed"))
    assert [line.partition(" ts=")[0] for line in result.lines[begin + 1 : begin + 5]] == [
        "    JournalData.0000.jdat: owi=True  rid=0x9, fro=0x200",
        "  * JournalData.0001.jdat: owi=False rid=0x3, fro=0x200",
        "    JournalData.0002.jdat: owi=False rid=0x5, fro=0x200",
        "    JournalData.0003.jdat: owi=False rid=0x7, fro=0x200",
    ]
    assert [rid for _, _, rid in places(result.remaining)] == [3, 4, 5, 6, 7, 8, 9]
    assert result.counted == (7, 8)
    assert result.warnings == ["WARNING: OWI mismatch - could be overwrite boundary."]
    assert "f=0x0000 rid=0x2" in result.records[-1]
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        (Show.DOTS, ["Recovering journals . ."]),
        (
            Show.FILES,
            ["Recovering journals...", f"* Reading {path_of(0)}", f"* Reading {path_of(1)}"],
        ),
    ],
)
def test_a_full_file_is_left_for_the_next_which_was_never_written(show: Show, expected: list[str]) -> None:
    result = check(builder(16, 16), show)
    assert result.walked == expected
    assert result.counted == (2, 2)


def test_a_file_that_was_never_written_is_shown_as_empty() -> None:
    assert check(builder(16, 16)).walked[-1] == f"{path_of(1)} :  0x00000000: <empty>"


def test_a_full_ring_ends_before_its_first_file() -> None:
    result = check(builder(*[16] * 8), Show.DOTS)
    assert result.walked == ["Recovering journals . . . ."]
    assert result.counted == (8, 8)
    assert (result.code, result.err) == (0, "")


def test_a_split_record_counts_for_the_file_in_which_it_ends() -> None:
    result = check(builder(30, 3))
    assert places(result.remaining) == [("fid=0", 0x200, 1), ("fid=1", 0x1100, 2)]
    shown = [line.split()[0] if line.startswith("/") else line[:16] for line in result.walked]
    # The file is entered before the record is whole; its first record is compared after that.
    assert shown == [
        path_of(0),
        " * fro ok: 0x200",
        " > 0x00000200: [",
        path_of(1),
        " > 0x00001100: [",
        " * fro ok: 0x280",
        " > 0x00000280: [",
        " > 0x00000300: [",
        " > 0x00000380: [",
    ]


def test_a_record_over_three_files_and_one_that_fills_a_file_exactly() -> None:
    result = check(builder(16, 60, 1))
    assert places(result.remaining) == [("fid=0", 0x200, 1), ("fid=2", 0xA00, 2), ("fid=2", 0x800, 3)]
    result = check(builder(16, 48, 1))
    assert places(result.remaining) == [("fid=0", 0x200, 1), ("fid=1", 0xA00, 2), ("fid=2", 0x200, 3)]
    assert " * fro ok: 0x0" not in result.walked


def test_a_record_split_over_the_rings_end_is_of_the_lap_in_which_it_began() -> None:
    journal = builder(*[16] * 7, 20, 1)
    result = check(journal)
    assert places(result.remaining)[-2:] == [("fid=0", 0xA00, 8), ("fid=0", 0x400, 9)]
    assert result.warnings == []


def test_xid_data_and_tail_may_be_split_anywhere() -> None:
    """A record of three blocks, moved over the border between two files; its xid and its data are shown whole."""
    for lead in range(29, 33):
        for xid_size in range(1, 260, 13):
            journal = builder(lead)
            xid, data = b"x" * xid_size, b"d" * (3 * 128 - 44 - xid_size)
            journal.enqueue(data, xid=xid)
            result = check(journal)
            assert (result.code, result.counted[0]) == (0, 2)
            assert f' xid({xid_size})="xxx' in result.incomplete[0] or xid_size < 3
            assert f' data({len(data)})="ddd' in result.incomplete[0]
            assert "\\" not in result.incomplete[0]


def test_the_number_of_a_file_is_that_in_its_header() -> None:
    disk = patch(builder(1).disk(), 0, 16, b"\7")
    assert places(check(disk).remaining) == [("fid=7", 0x200, 1)]


# ---- the end ----


def journal_of_three() -> JournalBuilder:
    """Three enqueues of a block each, at 0x200, 0x280, 0x300, the second in a transaction; a dequeue, a commit."""
    journal = JournalBuilder(1, SMALL)
    journal.enqueue(b"aa")
    journal.enqueue(b"bb", xid=b"x1")
    journal.enqueue(b"cc")
    journal.dequeue(1, xid=b"x1")
    journal.commit(b"x1")
    journal.flush()
    return journal


@pytest.mark.parametrize(
    ("offset", "content", "records"),
    [
        (0x280, bytes(4), 1),  # unwritten
        (0x280, b"abcd\7\7", 1),  # unknown magics
        (0x280, b"RHMz\7\7", 1),
        (0x2A4, b"zzzz", 1),  # tail of the second record: its check word,
        (0x2A8, b"z", 1),  # its rid
        (0x290, U64.pack(3), 1),  # a size that is not so
        (0x298, U64.pack(1000), 1),
        (0x286, b"\x20", 1),  # external, with data
        (0x3A2, b"zz", 3),  # tails of the dequeue and of the commit
        (0x41A, b"zz", 4),
        (0x410, U64.pack(0), 4),  # a commit without xid
    ],
)
def test_a_torn_record_ends_the_walk_without_a_word(offset: int, content: bytes, records: int) -> None:
    result = check(patch(journal_of_three().disk(), 0, offset, content))
    assert (result.code, result.err) == (0, "")
    assert len(result.records) == result.counted[1] == records
    assert result.warnings == []


def test_a_torn_first_record_is_not_compared_with_the_header() -> None:
    result = check(patch(journal_of_three().disk(), 0, 0x224, b"zzzz"))
    assert len(result.walked) == 1
    assert result.counted == (0, 0)


def test_an_overwritten_record_ends_the_walk_with_a_warning() -> None:
    result = check(patch(journal_of_three().disk(), 0, 0x286, b"\1"))
    assert result.code == 0
    assert result.warnings == ["WARNING: OWI mismatch - could be overwrite boundary."]
    assert result.counted == (1, 2)  # it counts as a record, not as an enqueue
    assert places(result.remaining) == [("fid=0", 0x200, 1)]


def test_fillers_are_of_no_lap_and_of_no_version() -> None:
    result = check(patch(journal_of_three().disk(), 0, 0x280, b"RHMx\2\1\1\0"))
    assert result.records[1] == '0x00000280: ["RHMx"]'
    assert result.counted == (2, 8)


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0x284, b"\2", "Invalid header version: expected:1, actual:2."),
        (0x285, b"\1", "Endian mismatch: expected little, but current record is big"),
    ],
)
def test_a_record_of_another_kind_of_writer_is_an_error(offset: int, content: bytes, message: str) -> None:
    result = check(patch(journal_of_three().disk(), 0, offset, content))
    assert result.code == 1
    assert result.err == f"{message} ({path_of(0)} at offset 0x280)"
    assert not result.is_complete
    assert result.lines[-1].startswith(" > 0x00000200: ")


def test_a_file_header_among_the_records_counts_and_the_next_sector_follows() -> None:
    result = check(patch(journal_of_three().disk(), 0, 0x280, b"RHMf\1\0\0\0" + bytes(40)))
    assert [record.split(":")[0] for record in result.records] == [
        "0x00000200",
        "0x00000280",
        "0x00000400",
        "0x00000480",
        "0x00000500",
        "0x00000580",
    ]
    assert result.counted == (1, 6)


# ---- first record offsets ----


def test_the_first_record_must_be_where_the_header_says() -> None:
    disk = patch(builder(30, 3).disk(), 1, 24, U64.pack(0x500))
    result = check(disk)
    assert result.code == 1
    assert result.err == f"File header first record offset mismatch: fro=0x500; actual offs=0x280 ({path_of(1)})"
    assert not result.is_complete
    assert check(disk, Show.DOTS).out.endswith("\nRecovering journals . .\n")
    assert check(disk, Show.NOTHING).out == ""


def test_unwritten_space_is_not_a_first_record() -> None:
    disk = patch(builder(30, 6).disk(), 1, 24, U64.pack(0x500))
    assert check(disk).counted == (2, 2)


def test_the_first_file_is_entered_where_its_header_says() -> None:
    journal = journal_of_three()
    result = check(patch(journal.disk(), 0, 24, U64.pack(0x300)))
    assert [line.split()[1] for line in result.records[:2]] == ['["RHMe"', '["RHMd"']
    for nowhere in (0x210, 0x180, 0x80):
        assert check(patch(journal.disk(), 0, 24, U64.pack(nowhere))).counted == (0, 0)
    in_header = patch(journal.disk(), 0, 24, U64.pack(0x80))
    patch(in_header, 0, 0x80, bytes(journal.files[0][0x200:0x280]))
    assert check(in_header).counted == (0, 0)
    for beyond in (0x1200, 0x2000):
        result = check(patch(journal.disk(), 0, 24, U64.pack(beyond)), Show.DOTS)
        assert (result.code, result.walked, result.counted) == (0, ["Recovering journals . ."], (0, 0))
    result = check(patch(journal.disk(), 0, 24, b"\xff" * 8))
    assert (result.code, result.is_complete) == (1, False)
    assert "first record offset 0xffffffffffffffff" in result.err


def test_a_first_file_that_a_message_fills_is_not_understood() -> None:
    """As in the original: its header is taken for a record, and what follows is not."""
    result = check(builder(16, 80, 30, 16, 1))
    assert result.walked[1] == " * fro ok: 0x0"
    assert [record.split("]")[0] for record in result.records] == ['0x00000000: ["RHMf" v=1 e=0 f=0x0000 rid=0x2']
    assert result.counted == (0, 1)


# ---- records whose rest is elsewhere ----


@pytest.mark.parametrize("show", [Show.RECORDS, Show.DOTS])
def test_a_record_torn_between_two_files_is_reported_and_left_out(show: Show) -> None:
    """A crash before the next file was written, or before all of the record was."""
    journal = builder(30, 5)
    empty = journal.disk()
    empty.files[path_of(1)] = bytes(SMALL.file_size)
    headless = patch(journal.disk(), 1, 0, bytes(512))
    half = patch(journal.disk(), 1, 0x200, bytes(1024))
    short = journal.disk()
    short.files[path_of(1)] = short.files[path_of(1)][:0x300]
    for disk in (empty, headless, half, short):
        result = check(disk, show)
        assert result.code == 1
        assert result.err.startswith(f"{path_of(0)}: the rest of the enqueue record at offset 0x1100, rid=0x2, is not")
        assert "\n" not in result.err
        assert places(result.remaining) == [("fid=0", 0x200, 1)]
        assert result.counted == (1, 1)


def test_the_rest_of_a_record_must_not_be_of_an_older_lap() -> None:
    """The last file is full of the new lap, and a message goes on in the first, which still holds the old one."""
    journal = builder(*[16] * 7, 20)
    disk = journal.disk()
    disk.files[path_of(0)] = builder(*[16] * 2).disk().files[path_of(0)]
    result = check(disk)
    # All headers tell the same lap, so the ring ends where the message goes on.
    assert (result.code, result.counted) == (0, (7, 8))


def test_a_record_of_an_older_lap_without_its_rest_ends_the_walk() -> None:
    """At the place up to which a file was overwritten stands the beginning of a split record of the lap before."""
    result = check(builder(28, 8, 28, *[16] * 4, 28))
    assert (result.code, result.err) == (0, "")
    assert result.counted == (6, 7)
    assert len(result.records) == 6
    assert [rid for _, _, rid in places(result.remaining)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("field", [0x290, 0x298])
@pytest.mark.parametrize("size", [100_000, 1 << 40, (1 << 64) - 1])
def test_forged_sizes_end_the_walk(field: int, size: int) -> None:
    disk = patch(journal_of_three().disk(), 0, field, U64.pack(size))
    result = check(disk)
    assert result.code == 0
    assert [line.split()[-1] for line in result.walked if line.startswith("/")][1:] == ["<empty>"] * 3
    assert result.counted == (1, 2)
    assert disk.bytes_read < 1_000_000


# ---- files that are too short, or cannot be read ----


@pytest.mark.parametrize(
    ("size", "records"),
    [
        (0x200, 0),
        (0x20F, 0),
        (0x22D, 0),  # the first record has 32 bytes of header, 2 of data, 12 of tail: it ends at 0x22e
        (0x22E, 1),
        (0x280, 1),
        (0x2AF, 1),  # the second has 2 bytes of xid besides
        (0x2B0, 2),
        (0x48F, 5),  # a filler: the original reads 16 bytes of it
        (0x490, 6),
        (0x1000, 8),
    ],
)
def test_a_file_cut_short_ends_the_walk(size: int, records: int) -> None:
    disk = journal_of_three().disk()
    disk.files[path_of(0)] = disk.files[path_of(0)][:size]
    result = check(disk)
    assert result.code == 0
    assert result.counted[1] == records


def test_a_full_file_cut_short_is_not_left_for_the_next() -> None:
    journal = builder(16)
    journal.enqueue(filling(16)[:-1])  # one byte of padding behind it
    journal.enqueue(b"")
    journal.flush()
    disk = journal.disk()
    assert check(disk).counted == (3, 6)
    disk.files[path_of(0)] = disk.files[path_of(0)][:-1]
    assert check(disk).counted == (2, 2)


@pytest.mark.parametrize("size", [0, 3, 7, 47])
def test_a_file_without_a_whole_header_is_an_error(size: int) -> None:
    disk = builder(30, 5).disk()
    disk.files[path_of(1)] = disk.files[path_of(1)][:size]
    result = check(disk)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"{path_of(1)}: truncated file header"


@pytest.mark.parametrize(
    ("offset", "content", "what"),
    [
        (0, b"abcd", "not a file header: magic 0x64636261"),
        (4, b"\7", "unsupported journal version 7"),
        (5, b"\1", "byte 5 of file header should be 0"),
    ],
)
def test_a_broken_file_header_is_an_error(offset: int, content: bytes, what: str) -> None:
    result = check(patch(builder(30, 5).disk(), 1, offset, content))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"{path_of(1)}: {what}")


def test_sectors_that_cannot_be_read_are_an_error() -> None:
    disk = builder(30, 5).disk()
    disk.bad_regions.append(BadRegion(path_of(1), 0x200, 0x400))
    result = check(disk, Show.DOTS)
    assert result.code == 1
    assert "Input/output error" in result.err
    assert path_of(1) in result.err
    assert result.out.endswith("\nRecovering journals . .\n")


def test_a_file_that_cannot_be_opened_is_an_error() -> None:
    disk = builder(30, 5).disk()
    disk.unopenable.add(path_of(1))
    result = check(disk)
    assert (result.code, result.out) == (1, "")
    assert "Permission denied" in result.err


# ---- how much is read and held ----


def test_bodies_are_not_read_unless_they_are_shown() -> None:
    journal = JournalBuilder(1, Geometry(4, 1 << 20))
    for _ in range(3):
        journal.enqueue(b"\0" * 1_000_000)
    journal.flush()
    disk = journal.disk()
    result = check(disk, Show.DOTS)
    assert result.counted[0] == 3
    assert len(result.remaining) == 3
    assert disk.bytes_read < 2_000_000
    assert disk.max_open <= 4


def test_many_records_are_walked() -> None:
    journal = JournalBuilder(1, Geometry(4, 1 << 20))
    journal.enqueue_many(10_000, b"m" * 200)
    for rid in range(1, 9_000):
        journal.dequeue(rid)
    result = check(journal, Show.DOTS)
    assert result.counted[0] == 10_000
    assert len(result.remaining) == 1_001
