"""Damage planted in a linearstore, and what `qstore-check` must report of it: see `test_check_damage`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.linear_builder import LinearBuilder
from tests.support.planted_damage import (
    COMMITTING,
    LOST_FILE,
    NOT_DOUBTFUL,
    NOTHING_READ,
    ORDERS_0,
    ORDERS_1,
    SKIPPED,
    UNDECIDED,
    UNDONE,
    UNPREPARED,
    Changes,
    Finding,
    Original,
    Plant,
    Planted,
    Row,
    Spot,
    back,
    copy_record,
    exchange,
    flip,
    flips,
    flips_of_the_day,
    lost,
    overwrite,
    resize,
    zero,
)

# ---- what is lost with each file, and its links ----

NO_LIST: Final[Changes] = {
    **lost("branch put", "decided put"),
    **back("fourth", "fifth"),
    "branch": UNPREPARED,
    "decided": UNPREPARED,
}
#: What is lost with each file of `bills`; `bill 36` goes on from the second in the third.
BILLS: Final[dict[int, Changes]] = {
    17: lost("bill 34"),
    18: lost("bill 35", "bill 36"),
    19: lost("bill 36", "bill 37"),
    20: {**lost("bill 38", "bill 39"), **back("bill 33")},
}
DIRECTORY: Final = "qls/jrnl2/c.q2"


def link(original: Original, journal: str, number: int) -> str:
    """The link to a file, below the store directory."""
    directory = {"orders": "qls/jrnl2/c.q1", "bills": DIRECTORY, "prepared": "qls/tpl2"}[journal]
    return f"{directory}/{PurePosixPath(original.files[journal][number]).name}"


def remove(journal: str, number: int) -> Callable[[Planted], None]:
    return lambda planted: planted.remove(planted.original.files[journal][number])


def unlink(journal: str, number: int) -> Callable[[Planted], None]:
    return lambda planted: planted.remove(link(planted.original, journal, number))


def remove_with_link(journal: str, number: int) -> Callable[[Planted], None]:
    def do(planted: Planted) -> None:
        unlink(journal, number)(planted)
        remove(journal, number)(planted)

    return do


def gap(number: int) -> list[Finding]:
    """What is said of the files around one that is lost."""
    missing = Finding(Spot(DIRECTORY, None), f"file {number + 1} is missing", LOST_FILE)
    cut_off = Finding("bill 36", "enqueue record without its tail", SKIPPED)
    return {18: [missing], 19: [missing, cut_off]}.get(number, [])


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
            [Finding((journal, number, 74 + name_size(journal) if name == "padding" else reported), what, consequence)],
        )
        for (journal, number), rows in FIRST_RECORD.items()
        for name, at, mask, reported, what, consequence in (*FILE_HEADER, *rows)
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


# ---- records in another's place ----

STAYS_OPEN: Final = "nothing is changed; if the intended transaction exists, it stays open"
FIRST_IS_KEPT: Final = "the first of the two is kept"
COPIES: Final = [
    Plant(f"{source} over {target}", copy_record(source, target), [Finding(reported, what, consequence)], changes)
    for source, target, reported, what, consequence, changes in (
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


# ---- links, and the files that they mean ----

NO_LINK: Final = "the journal's directory has no link to this file"
NEEDED: Final = "the file is read at its position in the journal, because messages in it or before it are outstanding"
NO_PREPARED_LIST: Final = "prepared transactions are treated as never prepared"
SECOND: Final = "00000000-0000-4000-8000-000000000000.jrnl"
IN_USE: Final = "qls/p001/efp/16k/in_use"


def second_copy(planted: Planted, *, linked: bool) -> None:
    planted.write(f"{IN_USE}/{SECOND}", planted.read(planted.original.files["bills"][18]))
    if linked:
        (planted.path / DIRECTORY / SECOND).symlink_to(f"/var/lib/qpidd/{IN_USE}/{SECOND}")


def to_partition_2(planted: Planted) -> None:
    name = PurePosixPath(planted.original.files["bills"][18]).name
    directory = planted.path / IN_USE.replace("p001", "p002")
    directory.mkdir(parents=True)
    (planted.path / IN_USE / name).rename(directory / name)


def plants_of_links(original: Original) -> list[Plant]:
    """Those that name a link, whose name is known only with the store."""
    dangling = [
        Plant(
            f"file missing: {journal} {number}",
            remove(journal, number),
            [
                Finding(
                    Spot(link(original, journal, number), None),
                    "link points to a file that is not in the store",
                    LOST_FILE,
                ),
                *(gap(number) if journal == "bills" else []),
            ],
            changes,
        )
        for journal, number, changes in (
            ("orders", 0, ORDERS_0),
            ("orders", 1, ORDERS_1),
            ("prepared", 0, NO_LIST),
            *(("bills", number, changes) for number, changes in BILLS.items()),
        )
    ]
    moved = IN_USE.replace("p001", "p002") + "/" + PurePosixPath(original.files["bills"][18]).name
    return [
        *dangling,
        Plant(
            "the files of a pool missing",
            lambda planted: planted.remove(IN_USE),
            [
                Finding(Spot(link(original, "bills", number), None), "link points to a file that is not in", LOST_FILE)
                for number in BILLS
            ],
            lost(*(f"bill {number}" for number in range(34, 40))),
        ),
        Plant(
            "a file in another partition",
            to_partition_2,
            [
                Finding(
                    Spot(moved, 26),
                    "states partition 1, but the file is in partition 2",
                    "no data loss: its records are read",
                )
            ],
        ),
    ]


LINKS: Final = [
    *(
        Plant(
            f"link missing: {journal} {number}",
            unlink(journal, number),
            [Finding((journal, number, None), NO_LINK, consequence)],
        )
        for journal, number, consequence in (
            ("orders", 0, NEEDED),
            ("orders", 1, "the file is read at its position in the journal"),
            ("prepared", 0, NEEDED),
            ("bills", 17, NEEDED),
            ("bills", 18, "the file is read at its position in the journal"),
            ("bills", 20, "the file is read at its position in the journal"),
        )
    ),
    *(
        Plant(f"file and link missing: bills {number}", remove_with_link("bills", number), gap(number), BILLS[number])
        for number in (18, 19)
    ),
    Plant(
        "the queue's directory missing",
        lambda planted: planted.remove(DIRECTORY),
        [Finding(("bills", number, None), NO_LINK, NEEDED) for number in BILLS],
    ),
    Plant(
        "the prepared list's directory missing",
        lambda planted: planted.remove("qls/tpl2"),
        [Finding(("prepared", 0, None), NO_LINK, NEEDED)],
    ),
    Plant(
        "the prepared list missing",
        lambda planted: (remove("prepared", 0)(planted), planted.remove("qls/tpl2")),  # type: ignore[arg-type]
        [Finding(Spot("", None), "the transaction prepared list is missing, but journals hold", NO_PREPARED_LIST)],
        NO_LIST,
    ),
    Plant(
        "a second copy with a link",
        lambda planted: second_copy(planted, linked=True),
        [Finding(("bills", 18, None), "second copy of file 19, ", "it is not read")],
    ),
    Plant(
        "a second copy without one",
        lambda planted: second_copy(planted, linked=False),
        [Finding(Spot(f"{IN_USE}/{SECOND}", None), "second file with number 19, without a link", "it is not read")],
    ),
]


# ---- the pool ----

POOL: Final = "qls/p001/efp/16k"
NOT_TAKEN: Final = "no journal can take the file"


def waiting(original: Original) -> str:
    """A file that waits in the pool, below the store directory."""
    return f"{POOL}/{min(path.name for path in (original.path / POOL).glob('*.jrnl'))}"


def plants_of_pool(original: Original) -> list[Plant]:
    file = waiting(original)
    half_reset = "file header is neither reset nor that of a journal file"
    rows = [
        ("magic", 0, 1, 0, "not a file header: magic 0x", NOT_TAKEN),
        ("version", 4, 1, 4, "unsupported journal version 3", NOT_TAKEN),
        ("flags", 6, 1, 6, "file header with unknown flags", "no data loss: this part is not used"),
        ("serial", 8, 1, 8, half_reset, "no data loss: qpidd resets the file"),
        ("rid", 16, 1, 16, half_reset, "no data loss: qpidd resets the file"),
        ("sectors", 24, 1, 24, "a file header of 0 sectors", NOT_TAKEN),
        ("partition", 26, 1, 26, "states partition 0, but the file is in partition 1", NOT_TAKEN),
        ("reserved", 28, 1, 28, "reserved field", "no data loss: this part is not used"),
        ("size", 32, 4, 32, "the pool is for another size", NOT_TAKEN),
        ("seconds", 48, 1, 48, half_reset, "no data loss: qpidd resets the file"),
        ("nanoseconds", 56, 1, 56, half_reset, "no data loss: qpidd resets the file"),
        ("number", 64, 1, 64, half_reset, "no data loss: qpidd resets the file"),
        ("size of the name", 72, 1, 72, half_reset, "no data loss: qpidd resets the file"),
    ]
    return [
        *(
            Plant(name, flip(Spot(file, at), mask), [Finding(Spot(file, reported), what, consequence)])
            for name, at, mask, reported, what, consequence in rows
        ),
        Plant(
            "longer",
            lambda planted: planted.write(file, planted.read(file) + bytes(4096)),
            [Finding(Spot(file, 20480), "file size is 24,576 bytes, but the pool's files have 20,480", NOT_TAKEN)],
        ),
        # What a crash, or qpidd's next start, explains.
        *(
            Plant(
                f"cut to {size} bytes",
                lambda planted, size=size: planted.write(file, planted.read(file)[:size]),
                notice="as if qpidd had been stopped while creating the file; no journal can take the file",
            )
            for size in (0, 100, 8192)
        ),
        Plant(
            "not reset",
            lambda planted: planted.write(file, planted.read(planted.original.files["bills"][17])),
            notice='still has the header written for queue "c.q2"; qpidd resets it',
        ),
        Plant(
            "returned",
            lambda planted: (planted.path / file).rename(planted.path / POOL / "returned" / Path(file).name),  # type: ignore[arg-type,return-value]
            notice="was being returned to the pool; qpidd leaves it there",
        ),
        Plant(
            "taken and not yet linked",
            lambda planted: (planted.path / file).rename(planted.path / IN_USE / Path(file).name),  # type: ignore[arg-type,return-value]
            notice="taken from the pool, but no journal has a link to it; it is not read",
        ),
    ]


# ---- all of it ----

#: What is damaged -> how.
PLANTS: Final[dict[str, Sequence[Plant]]] = {
    "a record": flips_of_the_day(RECORDS),
    "a file header": flips_of_the_day(HEADERS),
    "what a crash or a clock leaves": NO_DAMAGE,
    "what leaves no trace": UNSEEN,
    "sectors and files": FILES,
    "a record copied over another": COPIES,
    "links": LINKS,
}
