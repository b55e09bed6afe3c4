"""Bits flipped in a legacystore's records and file headers: what `qstore-check` says, and that it is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.planted_damage import (
    ABORTING,
    COMMITTING,
    IN_DOUBT,
    IN_DOUBT_PUT,
    IN_DOUBT_TAKE,
    OUTSTANDING,
    SKIPPED,
    UNPREPARED,
    XIDS,
    Finding,
    Original,
    Plant,
    Row,
    back,
    examine,
    flip,
    flips,
    flips_of_the_day,
    lost,
    version_1_store,
    zero,
)

NOTHING_READ: Final = "no data loss: this part is not used"
BY_NUMBER: Final = "the file's position is derived from its number"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_1_store(tmp_path_factory.mktemp("version-1") / "store")


def test_the_undamaged_store(original: Original, tmp_path: Path) -> None:
    examine(original, Plant("nothing", lambda planted: None), tmp_path / "store")


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


def tail_flips(record: str, kind: str, tail_at: int, changes: dict[str, str | None]) -> Iterator[Plant]:
    broken = f"{kind} record without its tail"
    rows = [(f"{name} in the tail", tail_at + at, 1, 0, broken, SKIPPED) for name, at in (("magic", 0), ("rid", 4))]
    return flips(record, kind, rows, changes)


UNDONE: Final[dict[str, str | None]] = {**lost("local put"), **back("first"), "local": UNPREPARED}
NOT_DOUBTFUL: Final[dict[str, str | None]] = {"branch": UNPREPARED, "fourth": OUTSTANDING, "branch put": None}
UNDECIDED: Final[dict[str, str | None]] = {
    "decided": IN_DOUBT,
    "decided put": IN_DOUBT_PUT,
    "fifth": IN_DOUBT_TAKE,
}
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


@pytest.mark.parametrize("plant", flips_of_the_day(RECORDS), ids=str)
def test_a_record(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


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
            careful=[Finding((record, told), f"padding of {kind} record is not filled", NOTHING_READ)],
        )
        for record, kind, at, told in (
            ("third", "enqueue", 380, 303),
            ("take second", "dequeue", 32, 32),
            ("local take", "dequeue", 127, 68),
            ("local commit", "commit", 60, 60),
            ("aborted abort", "abort", 100, 60),
        )
    ),
]


@pytest.mark.parametrize("plant", CONTENTS, ids=str)
def test_contents_and_padding(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


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
        [Finding((journal, number, told), what, consequence)],
    )
    for (journal, number), rows in FIRST_RECORD.items()
    for name, at, mask, told, what, consequence in (*HEADER, *rows)
]


@pytest.mark.parametrize("plant", flips_of_the_day(HEADERS), ids=str)
def test_a_file_header(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


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


@pytest.mark.parametrize("plant", NO_DAMAGE, ids=str)
def test_what_a_crash_or_a_clock_leaves(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")


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


@pytest.mark.parametrize("plant", UNSEEN, ids=str)
def test_what_leaves_no_trace(original: Original, plant: Plant, tmp_path: Path) -> None:
    examine(original, plant, tmp_path / "store")
