"""Sectors, files, info files, catalogue and STORE file of a version-2 store harmed, and records copied over others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.planted_damage import (
    IN_DOUBT,
    IN_DOUBT_PUT,
    IN_DOUBT_TAKE,
    OUTSTANDING,
    SKIPPED,
    UNPREPARED,
    Finding,
    Original,
    Plant,
    Planted,
    back,
    copy_record,
    earlier_file,
    examine,
    exchange,
    flip,
    lost,
    overwrite,
    remove,
    resize,
    version_2_store,
    zero,
)

LOST_FILE: Final = "records in it are lost"
Changes = dict[str, str | None]
ORDERS_0: Final[Changes] = lost("third", "fourth", "sixth", "local put", "branch put")
ORDERS_1: Final[Changes] = {
    **lost("decided put", "closing put", "ninth", "tenth", "open"),
    **back("fifth", "seventh", "eighth"),
    "fourth": OUTSTANDING,
}
BILLS_1: Final[Changes] = {**lost("bill 34", "bill 35", "bill 36"), **back("bill 29")}
BILLS_2: Final[Changes] = {
    **lost("bill 36", "bill 37", "bill 38", "bill 39"),
    **back("bill 30", "bill 31", "bill 32", "bill 33"),
}
NOT_DOUBTFUL: Final[Changes] = {"branch": UNPREPARED, "fourth": OUTSTANDING, "branch put": None}
UNDECIDED: Final[Changes] = {"decided": IN_DOUBT, "decided put": IN_DOUBT_PUT, "fifth": IN_DOUBT_TAKE}
UNDONE: Final[Changes] = {**lost("local put"), **back("first"), "local": UNPREPARED}
#: Of the record that begins in `bills` 1 and goes on in 2.
CUT_OFF: Final = Finding("bill 36", "enqueue record of 1,024 bytes runs past the end of a file", SKIPPED)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_2_store(tmp_path_factory.mktemp("version-2") / "store")


def earlier(number: int, bills: int) -> Callable[[Planted], None]:
    """A file of `bills` as it was when so many bills had come."""
    return lambda planted: planted.write(planted.original.files["bills"][number], earlier_file(2, number, bills))


# ---- sectors and whole files ----

ZEROS: Final = "file is all zeros, as if never written, but the later file "
NO_SEAL: Final = "the store was closed cleanly, but the journal ends without a seal"
IN_PLACE: Final = "the header is trusted, because the records match it"
STRAY: Final = "it is not read; the file's own records are lost"

MISSING: Final[list[tuple[str, int, Changes, list[Finding]]]] = [
    ("orders", 0, ORDERS_0, []),
    ("bills", 0, {}, []),
    ("bills", 1, BILLS_1, []),
    ("bills", 2, BILLS_2, [CUT_OFF]),
    ("prepared", 0, NOT_DOUBTFUL, []),
]
FILES: Final = [
    Plant("zeroed sector: enqueue", zero("third", 512), [Finding("third", "unwritten space", SKIPPED)], lost("third")),
    Plant(
        "zeroed sector: end of a record in the next file",
        zero(("bill 36", 512), 512),
        [Finding("bill 36", "enqueue record without its tail", SKIPPED)],
        lost("bill 36"),
    ),
    Plant(
        "zeroed block within a body",
        zero(("bill 36", 384), 128),
        [Finding("bill 36", "enqueue record fails its checksum", SKIPPED)],
        lost("bill 36"),
    ),
    Plant("zeroed sector: commit", zero("local commit", 512), [Finding("local commit", "unwritten", SKIPPED)], UNDONE),
    Plant(
        "zeroed data",
        zero(("orders", 0, 512), 8192),
        [Finding(("orders", 0, 512), "unwritten space", "64 blocks, up to 0x200 of file 1, are skipped")],
        ORDERS_0,
    ),
    *(
        Plant(
            f"zeroed file: {journal} {number}",
            zero((journal, number, 0), 8704 if journal == "orders" else 4608),
            [Finding((journal, number, 0), ZEROS, LOST_FILE), *besides],
            changes,
        )
        for journal, number, changes, besides in MISSING
    ),
    *(
        Plant(
            f"zeroed file, the last: {journal}",
            zero((journal, 1, 0), 8704 if journal == "orders" else 4608),
            [Finding((journal, 1, 512), NO_SEAL, "records at its end are lost")],
            changes,
        )
        for journal, changes in (("orders", ORDERS_1), ("prepared", UNDECIDED))
    ),
    *(
        Plant(
            f"missing file: {journal} {number}",
            remove(journal, number),
            [
                Finding((journal, number, None), f"file {number} of 4 cannot be opened: No such file", LOST_FILE),
                *besides,
            ],
            changes,
        )
        for journal, number, changes, besides in (
            *MISSING,
            ("orders", 1, ORDERS_1, []),
            ("orders", 3, {}, []),
            ("bills", 3, {}, []),
            ("prepared", 1, UNDECIDED, []),
        )
    ),
    *(
        Plant(
            f"exchanged files: {journal} {one} and {other}",
            exchange((journal, one), (journal, other)),
            [
                Finding((journal, one, 44), f"file number {other}, but the file name states {one}", IN_PLACE),
                Finding((journal, other, 44), f"file number {one}, but the file name states {other}", IN_PLACE),
            ],
        )
        for journal, one, other in (("orders", 0, 1), ("bills", 1, 2), ("bills", 0, 3), ("bills", 2, 3))
    ),
    Plant(
        "files of two journals exchanged",
        exchange(("bills", 1), ("prepared", 1)),
        [
            Finding(("bills", 1, 0), "file of queue id 0, incarnation 1 in the journal", "belong to another"),
            Finding(
                ("prepared", 1, 0), "file of queue id 2, incarnation 1 in the journal", "belong to another journal"
            ),
        ],
        {**BILLS_1, **UNDECIDED},
    ),
    Plant(
        "a file copied over the next",
        overwrite(("bills", 0), ("bills", 1)),
        [Finding(("bills", 1, 44), "number 0, but the file name states 1", "is not read, because file 0 exists")],
        BILLS_1,
    ),
    *(
        Plant(
            f"a file of an earlier lap: {number}, {bills} bills",
            earlier(number, bills),
            [Finding(("bills", number, 8), f"first flush number {flush} is not between", STRAY), *besides],
            changes,
        )
        for number, bills, flush, changes, besides in (
            (0, 27, 25, {}, []),
            (1, 27, 32, BILLS_1, []),
            (1, 8, 4, BILLS_1, []),
            (2, 22, 11, BILLS_2, [CUT_OFF]),
            (3, 22, 18, {}, []),
        )
    ),
    Plant(
        "the oldest file as it was two laps before",
        earlier(0, 8),
        [
            Finding(
                ("bills", 0, 8), "is of flush 3, but the next file's first record is of flush 60", "from an earlier lap"
            )
        ],
        back("bill 0", "bill 1", "bill 2"),
    ),
    Plant(
        "cut within a record",
        resize("orders", 0, 0x2080),
        [
            Finding(
                ("orders", 0, 0x2080),
                "file size is 8,320 bytes, but the journal's geometry requires 8,704",
                "beyond its end",
            ),
            Finding("branch put", "enqueue record of 384 bytes runs past the end of a file", SKIPPED),
        ],
        lost("branch put"),
    ),
    *(
        Plant(
            f"cut to {size} bytes",
            resize("orders", 0, size),
            [Finding(("orders", 0, size), f"file size is {size} bytes", "records beyond its end are lost")],
            ORDERS_0,
        )
        for size in (0, 40, 256, 512)
    ),
    Plant(
        "made longer",
        resize("bills", 2, 5000),
        [Finding(("bills", 2, 4608), "file size is 5,000 bytes", "the excess is not read")],
    ),
]


@pytest.mark.parametrize("plant", FILES, ids=str)
def test_sectors_and_files(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- records in another's place: in the same file the flush number tells, in another the salt ----

COPIES: Final = [
    Plant(f"{source} over {target}", copy_record(source, target), [Finding(target, what, SKIPPED)], changes)
    for source, target, what, changes in (
        ("third", "fourth", "enqueue record of flush 3, where one of flush 4 is due", lost("fourth")),
        ("fourth", "third", "enqueue record of flush 4, where one of flush 3 is due", lost("third")),
        ("bill 35", "bill 34", "enqueue record of flush 65, where one of flush 63 is due", lost("bill 34")),
        ("bill 34", "bill 35", "enqueue record of an older flush", lost("bill 35")),
        ("third", "ninth", "enqueue record fails its checksum", lost("ninth")),
        ("ninth", "third", "enqueue record fails its checksum", lost("third")),
        ("take second", "take seventh", "dequeue record fails its checksum", back("seventh")),
        ("paid 29", "paid 31", "dequeue record fails its checksum", back("bill 31")),
        ("local commit", "aborted abort", "commit record of an older flush", {"aborted": UNPREPARED}),
        ("aborted abort", "local commit", "abort record of flush 13, where one of flush 10 is due", UNDONE),
    )
]


@pytest.mark.parametrize("plant", COPIES, ids=str)
def test_a_record_copied_over_another(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- what is no damage: in a store that was left, not closed ----


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_2_store(tmp_path_factory.mktemp("left") / "store", clean=False)


def empty_orphan(planted: Planted) -> None:
    """A queue's journal that was built when the broker died, before the catalogue knew it."""
    shutil.copytree(planted.path / "rhm/jrnl/1", planted.path / "rhm/jrnl/3")
    for file in (planted.path / "rhm/jrnl/3").glob("*.jdat"):
        planted.write(str(file.relative_to(planted.path)), bytes(8704))


NO_DAMAGE: Final = [
    Plant("nothing", lambda planted: None, notice="STORE: the store was not closed cleanly"),
    Plant("the last flush not written", zero("tenth", 512), changes=lost("tenth")),
    Plant(
        "the last record's checksum",
        flip(("tenth", 293)),
        changes=lost("tenth"),
        notice="torn tail of record 0x27 at 0x1600: enqueue record fails its checksum; recovery cuts it off",
    ),
    Plant("the end of the last record", zero(("tenth", 256), 256), changes=lost("tenth"), notice="torn tail of record"),
    Plant(
        "the last record's magic",
        flip("tenth"),
        changes=lost("tenth"),
        notice="data follows that is not a valid record",
    ),
    Plant(
        "the last of a ring that is full", flip(("paid 33", 8)), changes=back("bill 33"), notice="torn tail of record"
    ),
    Plant("an orphan without messages", empty_orphan, notice="which is not in the catalogue"),
]


@pytest.mark.parametrize("plant", NO_DAMAGE, ids=str)
def test_what_a_crash_leaves(left: Original, plant: Plant, tmp_path: Path) -> None:
    examine(left, plant, tmp_path / "store")


# ---- what leaves no trace ----

UNSEEN: Final = [
    # The file as it was before the last lap entered it: a state that the journal once had, but for the seal.
    Plant(
        "the newest file as it was a lap before",
        earlier(2, 27),
        changes=BILLS_2,
        notice="torn tail of record 0x6a",
    ),
    # In a store that was left, files at the end may never have been entered.
    Plant("the newest file zeroed", zero(("orders", 1, 0), 8704), changes=ORDERS_1),
]


@pytest.mark.parametrize("plant", UNSEEN, ids=str)
def test_what_leaves_no_trace(left: Original, plant: Plant, tmp_path: Path) -> None:
    examine(left, plant, tmp_path / "store")
