"""Damage planted in linearstores: what `qstore-check` says, and that it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.planted_damage import (
    COMMITTING,
    IN_DOUBT,
    IN_DOUBT_PUT,
    IN_DOUBT_TAKE,
    OUTSTANDING,
    SKIPPED,
    UNPREPARED,
    Finding,
    Original,
    Plant,
    Row,
    back,
    examine,
    exchange,
    flip,
    flips,
    flips_of_the_day,
    linear_store,
    lost,
    zero,
)
from tests.support.planted_linear import remove_with_link

NOTHING_READ: Final = "no data loss: this part is not used"
Changes = dict[str, str | None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return linear_store(tmp_path_factory.mktemp("linear") / "store")


def test_the_undamaged_store(original: Original, tmp_path: Path) -> None:
    examine(original, Plant("nothing", lambda planted: None), tmp_path / "store")


# ---- one bit, anywhere in a record ----

HEADER: Final[list[Row]] = [
    ("magic", 0, 1, 0, "no record here: magic 0x", SKIPPED),
    ("version", 4, 1, 0, "unsupported journal version 3 in {} record", SKIPPED),
    ("serial", 8, 1, 0, "{} record with serial 0x", SKIPPED),
    ("high byte of serial", 15, 0x80, 0, "{} record with serial 0x", SKIPPED),
]
CHECKED: Final[list[Row]] = [
    *HEADER,
    ("flag 0", 6, 1, 0, "{} record fails its checksum", SKIPPED),
    ("transient flag", 6, 0x10, 0, "{} record fails its checksum", SKIPPED),
    ("rid", 16, 1, 0, "{} record without its tail", SKIPPED),
    ("high byte of rid", 23, 0x80, 0, "{} record without its tail", SKIPPED),
]
ENQUEUE: Final[list[Row]] = [
    *CHECKED,
    ("external flag", 6, 0x20, 0, "enqueue record without its tail", SKIPPED),
    ("xid size", 24, 1, 0, "enqueue record without its tail", SKIPPED),
    ("high byte of xid size", 29, 1, 0, "enqueue record with an xid of 1,099,511,627", SKIPPED),
    ("data size", 32, 0x10, 0, "enqueue record without its tail", SKIPPED),
    ("high byte of data size", 37, 1, 0, "bytes runs past the journal's end", SKIPPED),
    ("message header", 40 + 40, 1, 0, "enqueue record fails its checksum", SKIPPED),
    ("body", 200, 1, 0, "enqueue record fails its checksum", SKIPPED),
]
DEQUEUE: Final[list[Row]] = [
    *CHECKED,
    ("dequeued rid", 24, 1, 0, "dequeue record fails its checksum", SKIPPED),
    ("xid size", 32, 1, 0, "dequeue record without its tail", SKIPPED),
    ("xid", 40, 1, 0, "dequeue record fails its checksum", SKIPPED),
]
END_OF_TRANSACTION: Final[list[Row]] = [
    *CHECKED,
    ("xid size", 24, 1, 0, "{} record without its tail", SKIPPED),
    ("xid", 32, 1, 0, "{} record fails its checksum", SKIPPED),
]
#: A plain dequeue has no checksum.
PLAIN_DEQUEUE: Final[list[Row]] = [*HEADER, ("xid size", 32, 1, 0, "dequeue record without its tail", SKIPPED)]
UNKNOWN_FLAGS: Final[list[Row]] = [
    ("flag 0", 6, 1, 6, "dequeue record has unknown flags 0x0001", "the flags are ignored"),
    ("flag 8", 7, 1, 6, "dequeue record has unknown flags 0x0100", "the flags are ignored"),
]


def tail(at: int) -> list[Row]:
    return [
        ("magic in the tail", at, 1, 0, "{} record without its tail", SKIPPED),
        ("checksum", at + 4, 1, 0, "{} record fails its checksum", SKIPPED),
        ("serial in the tail", at + 8, 1, 0, "{} record fails its checksum", SKIPPED),
        ("rid in the tail", at + 16, 1, 0, "{} record without its tail", SKIPPED),
    ]


UNDONE: Final[Changes] = {**lost("local put"), **back("first"), "local": UNPREPARED}
NOT_DOUBTFUL: Final[Changes] = {"branch": UNPREPARED, "fourth": OUTSTANDING, "branch put": None}
UNDECIDED: Final[Changes] = {"decided": IN_DOUBT, "decided put": IN_DOUBT_PUT, "fifth": IN_DOUBT_TAKE}
NO_TARGET: Final = "nothing is removed; if the intended message still exists, it is delivered again"

RECORDS: Final = [
    *flips("third", "enqueue", [*ENQUEUE, *tail(299)], lost("third")),
    *flips("local put", "enqueue", [*ENQUEUE, ("xid", 41, 1, 0, "fails its checksum", SKIPPED)], lost("local put")),
    *flips("bill 36", "enqueue", [*ENQUEUE, *tail(4599)], lost("bill 36")),
    *flips("take second", "dequeue", PLAIN_DEQUEUE, back("second")),
    *flips("take second", "dequeue", UNKNOWN_FLAGS, {}),
    *flips("paid 30", "dequeue", PLAIN_DEQUEUE, {}),  # its message was given back with its file
    *(
        Plant(
            f"take second: dequeued rid {at}",
            flip(("take second", at), mask),
            [Finding("take second", f"dequeue of record {rid}, which is not enqueued", NO_TARGET)],
            back("second"),
        )
        for at, mask, rid in ((24, 2, "0x0"), (28, 1, "0x100000002"))
    ),
    *flips("local take", "dequeue", [*DEQUEUE, *tail(64)], back("first")),
    *flips("local commit", "commit", [*END_OF_TRANSACTION, *tail(56)], UNDONE),
    *flips("aborted abort", "abort", [*END_OF_TRANSACTION, *tail(56)], {"aborted": UNPREPARED}),
    *flips("branch prepare", "enqueue", [*CHECKED, ("data", 59, 1, 0, "fails its checksum", SKIPPED)], NOT_DOUBTFUL),
    *flips("decided decide", "dequeue", [*DEQUEUE, *tail(60)], UNDECIDED),
    *flips("local done", "commit", END_OF_TRANSACTION, {"local": COMMITTING}),
    *(
        Plant(
            f"{record}: padding",
            flip((record, 127)),
            careful=[Finding((record, used), "padding of ", NOTHING_READ)],
        )
        for record, used in (("take second", 40), ("local take", 88), ("local commit", 80))
    ),
]


@pytest.mark.parametrize("plant", flips_of_the_day(RECORDS), ids=str)
def test_a_record(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- file headers ----

BY_RECORDS: Final = "the file's position is derived from its records"
BY_NUMBER: Final = "there is no such queue; the file is read at the position that its number gives"
FILE_HEADER: Final[list[Row]] = [
    ("magic", 0, 1, 0, "not a file header: magic 0x", BY_RECORDS),
    ("version", 4, 1, 4, "unsupported journal version 3 in file header", BY_RECORDS),
    ("flags", 6, 1, 6, "file header with unknown flags 0x0001", NOTHING_READ),
    ("serial", 8, 1, 8, "file header has serial 0x", "the records' serial is used"),
    ("sectors", 24, 1, 24, "a file header of 0 sectors instead of 1", BY_RECORDS),
    (
        "partition",
        26,
        1,
        26,
        "states partition 0, but the file is in partition 1",
        "no data loss: its records are read",
    ),
    ("reserved", 28, 1, 28, "reserved field of the file header is 0x00000001", NOTHING_READ),
    ("size, odd", 32, 1, 32, "file header has a data size of ", BY_RECORDS),
    ("size", 32, 4, 32, "bytes, but the journal's other sizes imply ", "the header is not trusted"),
    ("high byte of size", 36, 1, 32, "file header has a data size of 42949", BY_RECORDS),
    ("nanoseconds", 59, 0x40, 56, "file header's time has ", NOTHING_READ),
    ("name", 74, 1, 72, 'file of queue "', BY_NUMBER),
    ("size of the name", 72, 1, 72, 'file of queue "', BY_NUMBER),
    ("padding", 200, 1, 0, "file header's sector is not padded with zeros", NOTHING_READ),
]
_ON_ORDER: Final = "no data loss: the preceding records lead to the right offset"
FIRST_RECORD: Final[dict[tuple[str, int], list[Row]]] = {
    ("orders", 0): [
        ("first record, odd", 40, 1, 40, "first record offset 0x1001 is outside the file", "is searched for"),
        (
            "first record",
            41,
            0x20,
            40,
            "first record is at 0x3000, but one begins earlier, at 0x1000",
            "reading begins there",
        ),
        ("first record, none", 41, 0x10, 40, "no record begins in the file, but one begins at", "reading begins there"),
        ("no number", 64, 1, 64, "file header has no file number", BY_RECORDS),
        ("high byte of number", 65, 1, 64, "file number 257 contradicts", "the file is read as number 1"),
    ],
    ("bills", 17): [  # the head of the line
        (
            "first record",
            41,
            0x20,
            40,
            "first record is at 0x3000, but one begins earlier, at 0x1000",
            "reading begins there",
        ),
        ("number", 64, 1, 64, "file number 19 contradicts", "the file is read as number 18"),
        ("high byte of number", 65, 1, 64, "file number 274 contradicts", "the file is read as number 18"),
    ],
    ("bills", 18): [
        ("first record", 41, 0x20, 40, "first record is at 0x3000, but it is at 0x1000", _ON_ORDER),
        ("number", 64, 1, 64, "file number 18 contradicts", "the file is read as number 19"),
        ("high byte of number", 65, 1, 64, "file number 275 contradicts", "the file is read as number 19"),
    ],
    ("bills", 20): [  # the end of the line
        ("first record", 41, 0x20, 40, "first record is at 0x3000, but it is at 0x1000", _ON_ORDER),
        ("number", 64, 1, 64, "file number 20 contradicts", "the file is read as number 21"),
    ],
    ("prepared", 0): [
        (
            "first record",
            41,
            0x20,
            40,
            "first record is at 0x3000, but one begins earlier, at 0x1000",
            "reading begins there",
        ),
    ],
}


def name_size(journal: str) -> int:
    return len("TplStore" if journal == "prepared" else "c.q1")


HEADERS: Final = [
    *(
        Plant(
            f"{journal} {number}: {name}",
            flip((journal, number, at), mask),
            [Finding((journal, number, 74 + name_size(journal) if name == "padding" else told), what, consequence)],
        )
        for (journal, number), rows in FIRST_RECORD.items()
        for name, at, mask, told, what, consequence in (*FILE_HEADER, *rows)
    ),
    *(
        Plant(
            f"{journal} {number}: zeroed",
            zero((journal, number, 0), 4096),
            [Finding((journal, number, 0), "not a file header: magic 0x00000000", BY_RECORDS)],
        )
        for journal, number in FIRST_RECORD
    ),
]


@pytest.mark.parametrize("plant", flips_of_the_day(HEADERS), ids=str)
def test_a_file_header(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- what is no damage ----

NO_DAMAGE: Final = [
    Plant("the last flush not written", zero("tenth", 4096), changes=lost("tenth")),
    Plant(
        "the last record's checksum",
        flip(("tenth", 299 + 4)),
        changes=lost("tenth"),
        notice="torn tail of record 0x27 at 0xb000: enqueue record fails its checksum; recovery cuts it off",
    ),
    Plant("the end of the last record", zero(("tenth", 256), 256), changes=lost("tenth"), notice="torn tail"),
    Plant(
        "a file header's rid", flip(("bills", 18, 17)), notice="file header names record 0x167; the file begins with"
    ),
    Plant("a file header's time", flip(("bills", 18, 51), 0x40), notice="older than that of the previous file"),
]


@pytest.mark.parametrize("plant", NO_DAMAGE, ids=str)
def test_what_a_crash_or_a_clock_leaves(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- what leaves no trace ----

UNSEEN: Final = [
    # A plain dequeue has no checksum: another message that is there may as well be meant. Its own id nobody uses.
    Plant(
        "which message a plain dequeue removes", flip(("take second", 24)), changes={**back("second"), **lost("third")}
    ),
    Plant("the id of a plain dequeue", flip(("take second", 16))),
    Plant("the decision's flag where it means nothing", flip(("take second", 6), 0x10)),
    # The message may have been given back with its file.
    Plant("a dequeue of what may be given back", flip(("paid 33", 24), 0x40), changes=back("bill 33")),
    # What a file's former life left behind has another serial too, or is no record at all.
    Plant("the last record's serial", flip(("tenth", 8)), changes=lost("tenth")),
    Plant("the last record's magic", flip("tenth"), changes=lost("tenth")),
    # Files are given back at the head of a line, and taken at its end.
    Plant("the first file, link and all", remove_with_link("bills", 17), changes=lost("bill 34")),
    Plant(
        "the last file, link and all",
        remove_with_link("bills", 20),
        changes={**lost("bill 38", "bill 39"), **back("bill 33")},
    ),
    # The names of files mean nothing.
    Plant("two files of one queue exchanged", exchange(("bills", 17), ("bills", 18))),
    # Where the file before gives the whole record, fillers follow in this one, and may be of any age.
    Plant("the first record's place behind a record that goes on", flip(("bills", 19, 41), 0x10)),
    Plant("the number of a line's only file", flip(("prepared", 0, 65))),
]


@pytest.mark.parametrize("plant", UNSEEN, ids=str)
def test_what_leaves_no_trace(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")
