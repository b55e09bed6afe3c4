"""Sectors, files, info files and the prepared list of legacystores harmed, and records copied over others."""

from __future__ import annotations

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
    VERSION_1_DIRECTORIES,
    Finding,
    Original,
    Plant,
    Planted,
    Spot,
    back,
    copy_record,
    earlier_file,
    examine,
    exchange,
    lost,
    overwrite,
    remove,
    resize,
    version_1_store,
    zero,
)

INFO: Final = f"{VERSION_1_DIRECTORIES['orders']}/JournalData.jinf"
BILLS_INFO: Final = f"{VERSION_1_DIRECTORIES['bills']}/JournalData.jinf"
LOST_FILE: Final = "records in it are lost"
BY_FILES: Final = "name and geometry are taken from the journal's files"
NO_PREPARED_LIST: Final = "their enqueues are omitted, and the messages that they dequeued are kept"

#: What `orders` loses with its first file, and what is left undone with its second; with a file of `bills`.
ORDERS_0: Final = {**lost("third", "fourth", "sixth", "local put", "branch put")}
ORDERS_1: Final = {
    **lost("decided put", "closing put", "ninth", "tenth", "open"),
    **back("fifth", "seventh", "eighth"),
    "fourth": OUTSTANDING,
}
BILLS_1: Final = {**lost("bill 34", "bill 35", "bill 36"), **back("bill 26", "bill 27", "bill 28", "bill 29")}
BILLS_2: Final = {**lost("bill 37", "bill 38", "bill 39"), **back("bill 30", "bill 31", "bill 32", "bill 33")}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_1_store(tmp_path_factory.mktemp("version-1") / "store")


def rewrite(file: str, old: bytes, new: bytes) -> Callable[[Planted], None]:
    """Plants other text in an info file."""

    def do(planted: Planted) -> None:
        content = bytes(planted.read(file))
        assert old in content
        planted.write(file, content.replace(old, new, 1))

    return do


def earlier(number: int, bills: int) -> Callable[[Planted], None]:
    """A file of `bills` as it was when so many bills had come."""
    return lambda planted: planted.write(planted.original.files["bills"][number], earlier_file(1, number, bills))


# ---- sectors and whole files ----

MISSING: Final = [
    ("orders", 0, ORDERS_0),
    ("orders", 3, {}),
    ("bills", 1, BILLS_1),
    ("bills", 2, {**BILLS_2, **lost("bill 36")}),
    ("bills", 3, {}),
    ("prepared", 0, {"branch": UNPREPARED, "fourth": OUTSTANDING, "branch put": None}),
    ("prepared", 1, {"decided": IN_DOUBT, "decided put": IN_DOUBT_PUT, "fifth": IN_DOUBT_TAKE}),
]
ZEROS: Final = "file is all zeros, as if never written, but the later file "
IN_PLACE: Final = "the header is trusted, because the records match it"
OF_ANOTHER: Final = "the file is from an earlier lap or from another journal; its records are read nevertheless"
NO_HEADER: Final = "message header cannot be decoded: a message of 1 bytes has no room"

FILES: Final = [
    Plant("zeroed sector: enqueue", zero("third", 512), [Finding("third", "unwritten space", SKIPPED)], lost("third")),
    Plant(
        "zeroed sector: end of a record in the next file",
        zero(("bill 36", 512), 512),
        [Finding("bill 36", "enqueue record without its tail", SKIPPED)],
        lost("bill 36"),
    ),
    Plant(
        "zeroed sector: commit",
        zero("local commit", 512),
        [Finding("local commit", "unwritten space", SKIPPED)],
        {**lost("local put"), **back("first"), "local": UNPREPARED},
    ),
    *(
        Plant(
            f"zeroed file header: {journal} {number}",
            zero((journal, number, 0), 512),
            [
                Finding(
                    (journal, number, 0),
                    "file header is missing, but the file holds data",
                    "is derived from its number",
                )
            ],
        )
        for journal, number in (("orders", 0), ("orders", 1), ("bills", 0), ("bills", 3), ("prepared", 0))
    ),
    Plant(
        "zeroed data",
        zero(("orders", 0, 512), 8192),
        [Finding(("orders", 0, 512), "unwritten space", "64 blocks, up to 0x200 of file 1, are skipped")],
        ORDERS_0,
    ),
    *(
        Plant(
            f"zeroed file: {journal} {number}",
            zero((journal, number, 0), 4608 if journal != "orders" else 8704),
            [Finding((journal, number, 0), ZEROS, LOST_FILE)],
            changes,
        )
        for journal, number, changes in MISSING
        if (journal, number) not in (("orders", 3), ("bills", 3), ("prepared", 1))
    ),
    Plant(
        "zeroed file: the last of the ring, and the oldest",
        zero(("bills", 3, 0), 4608),
        [Finding(("bills", 3, 0), ZEROS[:-15] + "6 dequeued messages cannot be found in the journal", "are lost")],
    ),
    *(
        Plant(
            f"missing file: {journal} {number}",
            remove(journal, number),
            [Finding((journal, number, None), f"file {number} of 4 cannot be opened: No such file", LOST_FILE)],
            changes,
        )
        for journal, number, changes in MISSING
    ),
    *(
        Plant(
            f"exchanged files: {journal} {one} and {other}",
            exchange((journal, one), (journal, other)),
            [
                Finding((journal, one, 16), f"file number {other}, but the file name states {one}", IN_PLACE),
                Finding((journal, other, 16), f"file number {one}, but the file name states {other}", IN_PLACE),
            ],
        )
        for journal, one, other in (("orders", 0, 1), ("bills", 0, 1), ("bills", 1, 2), ("bills", 0, 3))
    ),
    Plant(
        "a file copied over the next",
        overwrite(("bills", 0), ("bills", 1)),
        [Finding(("bills", 1, 16), "number 0, but the file name states 1", "is not read, because file 0 exists")],
        BILLS_1,
    ),
    Plant(
        "file of another queue, newer than the rest of its own",
        overwrite(("prepared", 0), ("bills", 0)),
        [
            Finding(("bills", 0, 8), "older than that of the previous file", OF_ANOTHER),
            Finding(("bills", 0, 0xE00), NO_HEADER, "the message is delivered unchanged"),
            Finding(("bills", 0, 0x1000), NO_HEADER, "the message is delivered unchanged"),
        ],
        {"c.q2 24": IN_DOUBT_PUT, "c.q2 27": OUTSTANDING},
    ),
    *(
        Plant(
            f"a file of the lap before: {number}",
            earlier(number, 27),
            [
                Finding(
                    ("bills", number, 6), "the file's records have it too: they belong to another lap", "are not read"
                )
            ],
            changes,
        )
        for number, changes in ((0, {}), (1, BILLS_1))
    ),
    Plant(
        "a file of two laps before",
        earlier(0, 8),
        [Finding(("bills", 0, 8), "older than that of the previous file", OF_ANOTHER)],
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
    Plant(
        "cut within the last record",
        resize("orders", 1, 0x1480),
        [Finding(("orders", 1, 0x1480), "file size is 5,248 bytes", "records beyond its end are lost")],
        lost("ninth", "tenth"),
    ),
    *(
        Plant(
            f"cut to {size} bytes",
            resize("orders", 0, size),
            [Finding(("orders", 0, size), f"file size is {size:,} bytes", "records beyond its end are lost")],
            ORDERS_0,
        )
        for size in (0, 40, 256, 512)
    ),
    *(
        Plant(
            f"made longer: {journal} {number}",
            resize(journal, number, size + extra),
            [Finding((journal, number, size), f"file size is {size + extra:,} bytes", "the excess is not read")],
        )
        for journal, number, size, extra in (("orders", 0, 8704, 8704), ("bills", 2, 4608, 100))
    ),
]


PREPARED: Final = [
    Plant(
        "the prepared list missing",
        lambda planted: planted.remove("rhm/tpl"),
        [Finding(Spot("", None), "the transaction prepared list is missing, but", NO_PREPARED_LIST)],
        {
            **lost("branch put", "decided put"),
            **back("fourth", "fifth"),
            "branch": UNPREPARED,
            "decided": UNPREPARED,
        },
    ),
    Plant(
        "a queue's journal without files",
        lambda planted: [remove("bills", number)(planted) for number in range(4)],
        [Finding(("bills", number, None), "cannot be opened: No such file", LOST_FILE) for number in range(4)],
        lost(*(f"bill {number}" for number in range(34, 40))),
    ),
]


@pytest.mark.parametrize("plant", [*FILES, *PREPARED], ids=str)
def test_sectors_and_files(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- records in another's place ----

NOT_ENQUEUED: Final = "nothing is removed; if the intended message still exists, it is delivered again"
STAYS_OPEN: Final = "nothing is changed; if the intended transaction exists, it stays open"
FIRST_IS_KEPT: Final = "the first of the two is kept"

COPIES: Final = [
    Plant(
        f"{source} over {target}",
        copy_record(source, target),
        [Finding(told, what, consequence)],
        changes,
    )
    for source, target, told, what, consequence, changes in (
        ("third", "fourth", "fourth", "duplicate record id: it is already enqueued", FIRST_IS_KEPT, lost("fourth")),
        ("third", "ninth", "ninth", "duplicate record id: it is already enqueued", FIRST_IS_KEPT, lost("ninth")),
        ("fourth", "third", "fourth", "duplicate record id: it is already enqueued", FIRST_IS_KEPT, lost("third")),
        (
            "bill 35",
            "bill 37",
            "bill 37",
            "duplicate record id: it is already enqueued",
            FIRST_IS_KEPT,
            lost("bill 37"),
        ),
        ("take second", "take seventh", "take seventh", "was already dequeued", NOT_ENQUEUED, back("seventh")),
        ("take seventh", "take second", "take second", "is not enqueued", NOT_ENQUEUED, back("second")),
        (
            "paid 29",
            "paid 31",
            "paid 31",
            "dequeue of record 0x5c, which was already dequeued",
            NOT_ENQUEUED,
            back("bill 31"),
        ),
        ("local commit", "aborted abort", "aborted abort", "is not open", STAYS_OPEN, {"aborted": UNPREPARED}),
        (
            "aborted abort",
            "local commit",
            "local commit",
            "is not open",
            STAYS_OPEN,
            {**lost("local put"), **back("first"), "local": UNPREPARED},
        ),
    )
]


@pytest.mark.parametrize("plant", COPIES, ids=str)
def test_a_record_copied_over_another(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


# ---- info files ----

INFOS: Final = [
    Plant(name, do, [Finding(Spot(INFO, offset), what, consequence)])
    for name, do, offset, what, consequence in (
        ("empty", lambda planted: planted.write(INFO, b""), 0, "journal info file is empty", BY_FILES),
        ("zeros", lambda planted: planted.write(INFO, bytes(900)), 0, "journal info file is empty", BY_FILES),
        ("missing", lambda planted: planted.remove(INFO), None, "cannot be read: No such file", BY_FILES),
        ("version", rewrite(INFO, b'version value="1"', b'version value="3"'), 0, "version 3 in journal", BY_FILES),
        ("a name flipped", rewrite(INFO, b"<number_j", b"<nulber_j"), 0, "has no value for number_jrnl", BY_FILES),
        ("fewer files", rewrite(INFO, b'jrnl_files value="4"', b'jrnl_files value="2"'), None, "2 files", "are used"),
        ("too many", rewrite(INFO, b'jrnl_files value="4"', b'jrnl_files value="80"'), 0, "80 files is out", BY_FILES),
        ("smaller", rewrite(INFO, b'sblks value="16"', b'sblks value="8"'), None, "files of 4,608 bytes", "are used"),
        ("larger", rewrite(INFO, b'sblks value="16"', b'sblks value="80"'), None, "there are 4 of 8,704", "are used"),
        ("base name", rewrite(INFO, b'"JournalData"', b'"JourmalData"'), None, '"JourmalData"', "are used"),
        (
            "queue",
            rewrite(INFO, b'id_string value="c.q1"', b'id_string value="c.q9"'),
            None,
            'info file states queue "c.q9", but the directory belongs to "c.q1"',
            "the directory is trusted",
        ),
    )
]
MORE_INFOS: Final = [
    Plant(
        "more files",
        rewrite(INFO, b'jrnl_files value="4"', b'jrnl_files value="5"'),
        [Finding(Spot(INFO.replace(".jinf", ".0004.jdat"), None), "file 4 of 5 cannot be opened", LOST_FILE)],
    ),
    Plant(
        "another queue's",
        lambda planted: planted.write(INFO, planted.read(BILLS_INFO)),
        [
            Finding(Spot(INFO, None), "files of 4,608 bytes, but there are 4 of 8,704", "are used"),
            Finding(
                Spot(INFO, None),
                'info file states queue "c.q2", but the directory belongs to',
                "the directory is trusted",
            ),
        ],
    ),
]


@pytest.mark.parametrize("plant", [*INFOS, *MORE_INFOS], ids=str)
def test_an_info_file(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")
