"""Sectors, files, links and pools of a linearstore harmed; what is no damage; and what leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.linear_builder import LinearBuilder
from tests.support.planted_damage import (
    SKIPPED,
    UNPREPARED,
    Finding,
    Original,
    Plant,
    Planted,
    Spot,
    back,
    copy_record,
    examine,
    exchange,
    linear_store,
    lost,
    overwrite,
    resize,
    zero,
)
from tests.support.planted_linear import (
    BILLS,
    DIRECTORY,
    NO_LIST,
    ORDERS_0,
    ORDERS_1,
    gap,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return linear_store(tmp_path_factory.mktemp("linear") / "store")


def former_life(number: int) -> Callable[[Planted], None]:
    """Puts the sixth file of `bills`, long given back, in the place of another."""

    def do(planted: Planted) -> None:
        builder = planted.original.histories["bills"].builder
        assert isinstance(builder, LinearBuilder)
        planted.write(planted.original.files["bills"][number], builder.files()[5])

    return do


def former_record(planted: Planted) -> None:
    """A record of another serial, as a file's former life leaves it, where there should be one of this life."""
    builder = planted.original.histories["bills"].builder
    assert isinstance(builder, LinearBuilder)
    planted.patch(planted.original.spot("third"), builder.files()[5][0x1000:0x1180])


# ---- sectors and whole files ----

PLACE_UNKNOWN: Final = "the file's position is unknown; records in it are lost"
FILES: Final = [
    Plant("zeroed sector: enqueue", zero("third", 4096), [Finding("third", "unwritten space", SKIPPED)], lost("third")),
    Plant("zeroed block", zero("third", 128), [Finding("third", "unwritten space", SKIPPED)], lost("third")),
    Plant(
        "zeroed block within a body",
        zero(("bill 36", 1024), 128),
        [Finding("bill 36", "enqueue record fails its checksum", SKIPPED)],
        lost("bill 36"),
    ),
    Plant(
        "zeroed page",
        zero(("orders", 0, 4096), 65536),
        [Finding(("orders", 0, 4096), "unwritten space", "512 blocks, up to 0x1000 of file 2, are skipped")],
        ORDERS_0,
    ),
    *(
        Plant(
            f"zeroed file: {journal} {number}",
            zero((journal, number, 0), size),
            [
                Finding((journal, number, 0), "not a file header: magic 0x00000000", PLACE_UNKNOWN),
                *(gap(number) if journal == "bills" else []),
            ],
            changes,
        )
        for journal, number, size, changes in (
            ("orders", 0, 69632, ORDERS_0),
            ("orders", 1, 69632, ORDERS_1),
            ("prepared", 0, 69632, NO_LIST),
            *(("bills", number, 20480, changes) for number, changes in BILLS.items()),
        )
    ),
    Plant(
        "files of two journals exchanged",
        exchange(("orders", 0), ("prepared", 0)),
        [
            Finding(
                ("orders", 0, 72),
                'file of queue "TplStore" in the journal of queue "c.q1"',
                "belong to another journal",
            ),
            Finding(
                ("prepared", 0, 72),
                'file of queue "c.q1" in the journal of queue "TplStore"',
                "belong to another journal",
            ),
        ],
        {**NO_LIST, **ORDERS_0, "fifth": None},
    ),
    Plant(
        "a file copied over the next",
        overwrite(("bills", 17), ("bills", 18)),
        [Finding(("bills", 18, None), "second copy of file 18, ", "it is not read"), *gap(18)],
        BILLS[18],
    ),
    Plant(
        "a file's former life, at the head",
        former_life(17),
        [Finding(Spot(DIRECTORY, None), "files 7 to 18 are missing", "records in them are lost")],
        {**BILLS[17], **back("bill 12")},
    ),
    Plant(
        "a file's former life, in the middle",
        former_life(19),
        gap(19),
        {**BILLS[19], **back("bill 12")},
    ),
    Plant(
        "a file's former life, at the end",
        former_life(20),
        [Finding(Spot(DIRECTORY, None), "files 7 to 17 are missing", "records in them are lost")],
        {**BILLS[20], **back("bill 12")},
    ),
    Plant(
        "a record of a file's former life",
        former_record,
        [Finding("third", " record with serial 0x", SKIPPED)],
        lost("third"),
    ),
    Plant(
        "cut within a record",
        resize("orders", 0, 0x10100),
        [
            Finding(
                ("orders", 0, 0x10100),
                "file size is 65,792 bytes, but the journal's geometry requires 69,632",
                "beyond its end",
            ),
            Finding("branch put", "enqueue record of 384 bytes runs past the end of a file", SKIPPED),
        ],
        lost("branch put"),
    ),
    Plant(
        "cut within the last file",
        resize("bills", 20, 0x3100),
        [Finding(("bills", 20, 0x3100), "file size is 12,544 bytes", "records beyond its end are lost")],
        {**lost("bill 39"), **back("bill 33")},
    ),
    Plant(
        "cut to 100 bytes",
        resize("orders", 0, 100),
        [Finding(("orders", 0, 100), "file size is 100 bytes", "records beyond its end are lost")],
        ORDERS_0,
    ),
    Plant(
        "cut to nothing",
        resize("orders", 0, 0),
        [Finding(("orders", 0, 0), "truncated file header", "the file's position is unknown")],
        ORDERS_0,
    ),
    Plant(
        "made longer",
        resize("bills", 19, 20481),
        [Finding(("bills", 19, 20480), "file size is 20,481 bytes", "the excess is not read")],
    ),
]


@pytest.mark.parametrize("plant", FILES, ids=str)
def test_sectors_and_files(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- records in another's place ----

STAYS_OPEN: Final = "nothing is changed; if the intended transaction exists, it stays open"
FIRST_IS_KEPT: Final = "the first of the two is kept"
COPIES: Final = [
    Plant(f"{source} over {target}", copy_record(source, target), [Finding(told, what, consequence)], changes)
    for source, target, told, what, consequence, changes in (
        ("third", "fourth", "fourth", "duplicate record id: it is already enqueued", FIRST_IS_KEPT, lost("fourth")),
        ("fourth", "third", "fourth", "duplicate record id: it is already enqueued", FIRST_IS_KEPT, lost("third")),
        ("third", "ninth", "ninth", "enqueue record with serial 0x", SKIPPED, lost("ninth")),
        (
            "bill 38",
            "bill 39",
            "bill 39",
            "duplicate record id: it is already enqueued",
            FIRST_IS_KEPT,
            lost("bill 39"),
        ),
        ("take second", "take seventh", "take seventh", "dequeue record with serial", SKIPPED, back("seventh")),
        ("local commit", "aborted abort", "aborted abort", "is not open", STAYS_OPEN, {"aborted": UNPREPARED}),
    )
]


@pytest.mark.parametrize("plant", COPIES, ids=str)
def test_a_record_copied_over_another(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")
