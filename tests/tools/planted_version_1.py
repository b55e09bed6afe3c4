"""Damage planted in a legacystore, and what `qstore-check` must report of it: see `test_check_damage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tests.support.planted_damage import (
    ABORTING,
    COMMITTING,
    IN_DOUBT,
    IN_DOUBT_PUT,
    LOST_FILE,
    NOT_DOUBTFUL,
    NOTHING_READ,
    ORDERS_0,
    OUTSTANDING,
    SKIPPED,
    UNDECIDED,
    UNDONE,
    UNPREPARED,
    VERSION_1_DIRECTORIES,
    XIDS,
    Changes,
    Finding,
    Plant,
    Planted,
    Row,
    Spot,
    back,
    copy_record,
    earlier_file,
    exchange,
    flip,
    flips,
    flips_of_the_day,
    lost,
    overwrite,
    remove,
    resize,
    zero,
)

BY_NUMBER: Final = "the file's position is derived from its number"


# ---- one bit in a record's header, xid or tail ----

#: In every kind of record.
COMMON: Final[list[Row]] = [
    ("magic", 0, 1, 0, "no record here: magic 0x", SKIPPED),
    ("version", 4, 2, 0, "unsupported journal version 3 in {} record", SKIPPED),
    ("byte order", 5, 1, 0, "byte 5 of {} record is that of a big-endian writer", SKIPPED),
    ("overwrite indicator", 6, 1, 0, "{} record of another lap", SKIPPED),
]
UNKNOWN_FLAGS: Final[list[Row]] = [
    ("flag 6", 6, 0x40, 6, "{} record has unknown flags 0x0040", "the flags are ignored"),
    ("flag 8", 7, 1, 6, "{} record has unknown flags 0x0100", "the flags are ignored"),
]
OWN_RID: Final[list[Row]] = [
    ("rid", 8, 1, 0, "{} record without its tail", SKIPPED),
    ("high byte of rid", 15, 0x40, 0, "{} record without its tail", SKIPPED),
]
ENQUEUE: Final[list[Row]] = [
    *COMMON,
    *OWN_RID,
    ("external flag", 6, 0x20, 0, "enqueue record without its tail", SKIPPED),
    ("xid size", 16, 1, 0, "enqueue record without its tail", SKIPPED),
    ("high byte of xid size", 20, 1, 0, "enqueue record with an xid of 4,294,967", SKIPPED),
    ("data size", 24, 1, 0, "enqueue record without its tail", SKIPPED),
    ("high byte of data size", 28, 1, 0, "bytes runs past the journal's end", SKIPPED),
]
DEQUEUE: Final[list[Row]] = [*COMMON, ("xid size", 24, 1, 0, "dequeue record without its tail", SKIPPED)]
END_OF_TRANSACTION: Final[list[Row]] = [
    *COMMON,
    *OWN_RID,
    ("xid size", 16, 1, 0, "{} record without its tail", SKIPPED),
]


def tail_flips(record: str, kind: str, tail_at: int, changes: Changes) -> Iterator[Plant]:
    broken = f"{kind} record without its tail"
    rows = [(f"{name} in the tail", tail_at + at, 1, 0, broken, SKIPPED) for name, at in (("magic", 0), ("rid", 4))]
    return flips(record, kind, rows, changes)


NO_TARGET: Final = "nothing is removed; if the intended message still exists, it is delivered again"
STAYS_OPEN: Final = "nothing is changed; if the intended transaction exists, it stays open"


def other_xid(name: str) -> str:
    """The xid with its first bit flipped, as the dump shows it."""
    xid = XIDS[name]
    return (bytes([xid[0] ^ 1]) + xid[1:]).hex()


RECORDS: Final = [
    # A plain enqueue, a transactional one, one that goes on in the next file.
    *flips("third", "enqueue", ENQUEUE, lost("third")),
    *flips("third", "enqueue", UNKNOWN_FLAGS, {}),
    *tail_flips("third", "enqueue", 291, lost("third")),
    *flips("local put", "enqueue", ENQUEUE, lost("local put")),
    *tail_flips("local put", "enqueue", 315, lost("local put")),
    *flips("bill 36", "enqueue", ENQUEUE, lost("bill 36")),
    *tail_flips("bill 36", "enqueue", 891, lost("bill 36")),
    # A flag alone makes recovery ignore a record.
    *(
        Plant(
            f"{record}: transient flag",
            flip((record, 6), 0x10),
            [
                Finding(
                    (record, 6), "record is flagged transient, but its message is persistent", "the record is ignored"
                )
            ],
            lost(record),
        )
        for record in ("third", "local put", "bill 36")
    ),
    # Dequeues: nothing verifies which message a plain one removes but that there must be such a message.
    *flips("take second", "dequeue", DEQUEUE, back("second")),
    *flips("take second", "dequeue", UNKNOWN_FLAGS, {}),
    Plant(
        "take second: dequeued rid",
        flip(("take second", 16), 2),
        [Finding("take second", "dequeue of record 0x0, which is not enqueued", NO_TARGET)],
        back("second"),
    ),
    *(
        Plant(
            f"{record}: high byte of dequeued rid",
            flip((record, 20)),
            [Finding(record, "dequeue of record 0x1000000", NO_TARGET)],
            back(again),
        )
        for record, again in (("take second", "second"), ("paid 30", "bill 30"))
    ),
    *flips("local take", "dequeue", [*DEQUEUE, *OWN_RID], back("first")),
    *tail_flips("local take", "dequeue", 56, back("first")),
    Plant(
        "local take: dequeued rid",
        flip(("local take", 16)),
        [Finding("local take", "dequeue of record 0x0, which is not enqueued", NO_TARGET)],
        back("first"),
    ),
    Plant(
        "branch take: dequeued rid",
        flip(("branch take", 17)),
        [Finding("branch take", "dequeue of record 0x104, which is not enqueued", NO_TARGET)],
        back("fourth"),
    ),
    *flips("local commit", "commit", END_OF_TRANSACTION, UNDONE),
    *flips("local commit", "commit", UNKNOWN_FLAGS, {}),
    *tail_flips("local commit", "commit", 48, UNDONE),
    Plant(
        "local commit: xid",
        flip(("local commit", 24), 0x40),
        [Finding("local commit", "commit of transaction 41", STAYS_OPEN)],
        UNDONE,
    ),
    *flips("aborted abort", "abort", END_OF_TRANSACTION, {"aborted": UNPREPARED}),
    *flips("aborted abort", "abort", UNKNOWN_FLAGS, {}),
    *tail_flips("aborted abort", "abort", 48, {"aborted": UNPREPARED}),
    Plant(
        "aborted abort: xid",
        flip(("aborted abort", 24), 0x40),
        [Finding("aborted abort", "abort of transaction 42", STAYS_OPEN)],
        {"aborted": UNPREPARED},
    ),
    # The transaction prepared list.
    *flips("branch prepare", "enqueue", ENQUEUE, NOT_DOUBTFUL),
    *tail_flips("branch prepare", "enqueue", 52, NOT_DOUBTFUL),
    Plant(
        "branch prepare: transient flag",
        flip(("branch prepare", 6), 0x10),
        [Finding(("branch prepare", 6), "flagged transient, but the prepared list holds no", "is ignored")],
        NOT_DOUBTFUL,
    ),
    *flips("decided prepare", "enqueue", COMMON, {}),
    Plant(
        "decided prepare: xid",
        flip(("decided prepare", 32)),
        [Finding("decided decide", "dequeue of record 0x1b, which is not enqueued", "nothing is removed")],
        {other_xid("decided"): IN_DOUBT},
    ),
    *flips("decided decide", "dequeue", [*DEQUEUE, *OWN_RID], UNDECIDED),
    *tail_flips("decided decide", "dequeue", 52, UNDECIDED),
    Plant(
        "decided decide: dequeued rid",
        flip(("decided decide", 17)),
        [Finding("decided decide", "dequeue of record 0x11b, which is not enqueued", "nothing is removed")],
        UNDECIDED,
    ),
    *flips("local done", "commit", END_OF_TRANSACTION, {"local": COMMITTING}),
    *tail_flips("local done", "commit", 48, {"local": COMMITTING}),
]


# ---- what is in a message, and behind a record ----

_HEADER_LOST: Final = "message header cannot be decoded: "
_AS_IT_IS: Final = "the message is delivered unchanged: a consumer may fail on it"

CONTENTS: Final = [
    *(
        Plant(
            f"{record}: message header, {name}",
            flip((record, 32 + xid + at)),
            [Finding(record, _HEADER_LOST + what, _AS_IT_IS)],
            spoiled=[record],
        )
        for record, xid in (("third", 0), ("local put", 24), ("bill 36", 0))
        for name, at, what in (
            ("size", 3, "frames of 29 and "),
            ("type of the first frame", 5, "the first frame is of type 0, not a method"),
            ("size of the first frame", 7, "frames of 28 and "),
            ("type of the second frame", 34, "frames of 29 and "),
        )
    ),
    Plant(
        "third: message header, command",
        flip(("third", 32 + 4 + 12)),
        careful=[Finding("third", _HEADER_LOST + "the first frame is not a message.transfer", _AS_IT_IS)],
        spoiled=["third"],
    ),
    *(
        Plant(
            f"{record}: padding",
            flip((record, at)),
            careful=[Finding((record, reported), f"padding of {kind} record is not filled", NOTHING_READ)],
        )
        for record, kind, at, reported in (
            ("third", "enqueue", 380, 303),
            ("take second", "dequeue", 32, 32),
            ("local take", "dequeue", 127, 68),
            ("local commit", "commit", 60, 60),
            ("aborted abort", "abort", 100, 60),
        )
    ),
]


# ---- file headers ----

#: In every file's header, whichever place it has in the ring.
HEADER: Final[list[Row]] = [
    ("magic", 0, 1, 0, "not a file header: magic 0x", BY_NUMBER),
    ("version", 4, 2, 4, "unsupported journal version 3 in file header", BY_NUMBER),
    ("byte order", 5, 1, 5, "byte 5 of file header should be 0, is 1", BY_NUMBER),
    ("overwrite indicator", 6, 1, 6, "contradicts the other files", "read at the position that the other files imply"),
    ("flag 6", 6, 0x40, 6, "file header with unknown flags 0x0040", NOTHING_READ),
    ("number", 16, 1, 16, "but the file name and the logical number state", "the file name is trusted"),
    ("high byte of number", 17, 1, 16, "file header states file number 25", "the file name is trusted"),
    ("logical number", 18, 1, 18, "file header's logical number", NOTHING_READ),
    ("reserved", 20, 1, 20, "reserved field of the file header is 0x00000001", NOTHING_READ),
    ("nanoseconds", 43, 0x40, 40, "file header's time has 1073741824 nanoseconds", NOTHING_READ),
    ("end", 44, 1, 44, "last field of the file header is 0x00000001", NOTHING_READ),
    ("padding", 511, 1, 48, "file header's sector is not padded with 0xff", NOTHING_READ),
]
_FROM_RECORDS: Final = "no data loss: the preceding records lead to the right offset"
FIRST_RECORD: Final[dict[tuple[str, int], list[Row]]] = {
    ("orders", 0): [  # the very first file
        ("first record, odd", 24, 1, 24, "first record offset 0x201 is outside the file", "is searched for"),
        (
            "first record",
            25,
            4,
            24,
            "first record is at 0x600, but one begins earlier, at 0x200",
            "reading begins there",
        ),
        (
            "first record, none",
            25,
            2,
            24,
            "no record begins in the file, but one begins at 0x200",
            "reading begins there",
        ),
        ("first record, beyond", 28, 1, 24, "offset 0x100000200 is outside the file", "is searched for"),
    ],
    ("bills", 0): [  # one in the middle of the ring
        ("first record, odd", 24, 1, 24, "first record is at 0x201, but it is at 0x200", _FROM_RECORDS),
        ("first record", 25, 4, 24, "first record is at 0x600, but it is at 0x200", _FROM_RECORDS),
        ("first record, beyond", 28, 1, 24, "first record is at 0x100000200, but it is at 0x200", _FROM_RECORDS),
    ],
    ("bills", 2): [  # one that another record goes on in
        ("first record", 24, 0x80, 24, "first record is at 0x480, but it is at 0x400", _FROM_RECORDS),
    ],
    ("bills", 3): [  # the oldest of the ring
        ("first record, odd", 24, 1, 24, "first record offset 0x201 is outside the file", "is searched for"),
        (
            "first record",
            25,
            0xC,
            24,
            "is at 0xe00, but one begins earlier, at 0x200",
            "reading begins there",
        ),
    ],
    ("prepared", 0): [
        (
            "first record",
            25,
            4,
            24,
            "first record is at 0x600, but one begins earlier, at 0x200",
            "reading begins there",
        ),
    ],
}
HEADERS: Final = [
    Plant(
        f"{journal} {number}: {name}",
        flip((journal, number, at), mask),
        [Finding((journal, number, reported), what, consequence)],
    )
    for (journal, number), rows in FIRST_RECORD.items()
    for name, at, mask, reported, what, consequence in (*HEADER, *rows)
]


# ---- what is no damage ----

NO_DAMAGE: Final = [
    Plant(
        "the last record's tail",
        flip(("tenth", 291)),
        changes=lost("tenth"),
        notice="torn tail of record 0x27 at 0x1600: enqueue record without its tail; recovery cuts it off",
    ),
    Plant(
        "the last record cut off",
        zero(("tenth", 256), 256),
        changes=lost("tenth"),
        notice="torn tail of record 0x27",
    ),
    Plant("the last flush not written", zero("tenth", 512), changes=lost("tenth")),
    Plant(
        "the last record's magic",
        flip("tenth"),
        changes=lost("tenth"),
        notice="data follows that is not a valid record",
    ),
    Plant(
        "the last record's lap",
        flip(("tenth", 6)),
        changes=lost("tenth"),
        notice="data follows that is not a valid record",
    ),
    Plant("a file header's rid", flip(("orders", 0, 8)), notice="file header names record 0x0; the file begins with"),
    Plant("a file header's time, earlier", flip(("bills", 0, 35), 0x40), notice="older than that of the previous file"),
    Plant("a file header's time, later", flip(("bills", 0, 35), 0x80), notice="newer than that of the next file"),
]


# ---- what leaves no trace ----

#: A legacystore has no checksums. Tails verify kinds, record ids and sizes; nothing verifies the rest.
UNSEEN: Final = [
    Plant("content", flip(("third", 200)), spoiled=["third"]),
    Plant("zeros within content", zero(("bill 36", 384), 128), spoiled=["bill 36"]),
    Plant("a message's property", flip(("third", 32 + 4 + 29 + 24)), spoiled=["third"]),
    # A plain dequeue has no tail: another message that is there may as well be meant. Its own id nobody uses.
    Plant(
        "which message a plain dequeue removes",
        flip(("take second", 16)),
        changes={**back("second"), **lost("third")},
    ),
    Plant("the id of a plain dequeue", flip(("take second", 8))),
    Plant("the decision's flag where it means nothing", flip(("take second", 6), 0x10)),
    # In a ring that went round a dequeue of an overwritten message is normal.
    Plant("a dequeue of what may be overwritten", flip(("paid 30", 16), 0x40), changes=back("bill 30")),
    # Another transaction's id: one that was never prepared, which a crash leaves as well.
    Plant(
        "the xid of an enqueue", flip(("local put", 32)), changes={**lost("local put"), other_xid("local"): UNPREPARED}
    ),
    Plant("the xid of a dequeue", flip(("local take", 32)), changes={**back("first"), other_xid("local"): UNPREPARED}),
    Plant(
        "the xid of a prepared transaction",
        flip(("branch prepare", 32)),
        changes={**NOT_DOUBTFUL, other_xid("branch"): IN_DOUBT},
    ),
    Plant(
        "whether a prepared transaction is distributed",
        flip(("branch prepare", 51)),
        changes={"branch": COMMITTING, "fourth": None, "branch put": OUTSTANDING},
    ),
    Plant(
        "a decision",
        flip(("decided decide", 6), 0x10),
        changes={"decided": ABORTING, "decided put": None, "fifth": OUTSTANDING},
    ),
]

INFO: Final = f"{VERSION_1_DIRECTORIES['orders']}/JournalData.jinf"
BILLS_INFO: Final = f"{VERSION_1_DIRECTORIES['bills']}/JournalData.jinf"
BY_FILES: Final = "name and geometry are taken from the journal's files"
NO_PREPARED_LIST: Final = "their enqueues are omitted, and the messages that they dequeued are kept"

#: What `orders` loses with its first file, and what is left undone with its second; with a file of `bills`.
BILLS_1: Final = {**lost("bill 34", "bill 35", "bill 36"), **back("bill 26", "bill 27", "bill 28", "bill 29")}
BILLS_2: Final = {**lost("bill 37", "bill 38", "bill 39"), **back("bill 30", "bill 31", "bill 32", "bill 33")}


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
    ("prepared", 0, NOT_DOUBTFUL),
    ("prepared", 1, UNDECIDED),
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
        UNDONE,
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


# ---- records in another's place ----

NOT_ENQUEUED: Final = "nothing is removed; if the intended message still exists, it is delivered again"
FIRST_IS_KEPT: Final = "the first of the two is kept"

COPIES: Final = [
    Plant(
        f"{source} over {target}",
        copy_record(source, target),
        [Finding(reported, what, consequence)],
        changes,
    )
    for source, target, reported, what, consequence, changes in (
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
            UNDONE,
        ),
    )
]


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


# ---- all of it ----

#: What is damaged -> how.
PLANTS: Final[dict[str, Sequence[Plant]]] = {
    "a record": flips_of_the_day(RECORDS),
    "contents and padding": CONTENTS,
    "a file header": flips_of_the_day(HEADERS),
    "what a crash or a clock leaves": NO_DAMAGE,
    "what leaves no trace": UNSEEN,
    "sectors and files": [*FILES, *PREPARED],
    "a record copied over another": COPIES,
    "an info file": [*INFOS, *MORE_INFOS],
}
