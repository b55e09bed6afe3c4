"""Damage planted in a store of version 2, and what `qstore-check` must report of it: see `test_check_damage`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from qstore.formats.catalogue import QueueEntry, RidReservation, encode
from qstore.formats.rhm import store_file
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import decode_jinf, encode_jinf
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.key_value import RocksKeyValue
from tests.support.planted_damage import (
    COMMITTING,
    LOST_FILE,
    NOT_DOUBTFUL,
    NOTHING_READ,
    ORDERS_0,
    ORDERS_1,
    OUTSTANDING,
    SKIPPED,
    UNDECIDED,
    UNDONE,
    UNPREPARED,
    VERSION_2_DIRECTORIES,
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

# ---- one bit, anywhere in a record ----

#: Everything is under the checksum; what is looked at before it has words of its own.
HEADER: Final[list[Row]] = [
    ("magic", 0, 1, 0, "no record here: magic 0x", SKIPPED),
    ("version", 4, 1, 0, "unsupported journal version 3 in {} record", SKIPPED),
    ("byte 5", 5, 1, 0, "byte 5 of {} record should be 0, is 1", SKIPPED),
    ("flags", 6, 1, 0, "{} record fails its checksum", SKIPPED),
    ("transient flag", 6, 0x10, 0, "{} record fails its checksum", SKIPPED),
    ("end of flush", 7, 1, 0, "{} record fails its checksum", SKIPPED),
    ("rid", 8, 1, 0, "{} record without its tail", SKIPPED),
    ("high byte of rid", 15, 0x80, 0, "{} record without its tail", SKIPPED),
    ("high byte of xid size", 18, 0x20, 0, "{} record with an xid of 2,097", SKIPPED),
    ("flush number", 20, 1, 0, "{} record fails its checksum", SKIPPED),
    ("high byte of flush number", 23, 0x40, 0, "{} record fails its checksum", SKIPPED),
]
ENQUEUE: Final[list[Row]] = [
    *HEADER,
    ("data size", 24, 0x10, 0, "enqueue record without its tail", SKIPPED),
    ("high byte of data size", 28, 1, 0, "bytes runs past the journal's end", SKIPPED),
    ("message header", 32 + 40, 1, 0, "enqueue record fails its checksum", SKIPPED),
    ("body", 200, 1, 0, "enqueue record fails its checksum", SKIPPED),
]
DEQUEUE: Final[list[Row]] = [
    *HEADER,
    ("dequeued rid", 24, 1, 0, "dequeue record fails its checksum", SKIPPED),
    ("high byte of dequeued rid", 31, 1, 0, "dequeue record fails its checksum", SKIPPED),
]
END_OF_TRANSACTION: Final[list[Row]] = [
    *HEADER,
    ("last field", 24, 1, 0, "{} record whose last header field is not 0", SKIPPED),
]
XID: Final[Row] = ("xid", 32, 1, 0, "{} record fails its checksum", SKIPPED)


def tail(at: int) -> list[Row]:
    return [
        ("checksum", at, 1, 0, "{} record fails its checksum", SKIPPED),
        ("high byte of checksum", at + 3, 0x80, 0, "{} record fails its checksum", SKIPPED),
        ("rid in the tail", at + 4, 1, 0, "{} record without its tail", SKIPPED),
        ("high byte of rid in the tail", at + 11, 0x80, 0, "{} record without its tail", SKIPPED),
    ]


RECORDS: Final = [
    *flips("third", "enqueue", [*ENQUEUE, *tail(293)], lost("third")),
    *flips("local put", "enqueue", [*ENQUEUE, XID, *tail(317)], lost("local put")),
    *flips("bill 36", "enqueue", [*ENQUEUE, *tail(892)], lost("bill 36")),
    *flips("take second", "dequeue", [*DEQUEUE, *tail(32)], back("second")),
    *flips("paid 33", "dequeue", [*DEQUEUE, *tail(32)], back("bill 33")),
    *flips("local take", "dequeue", [*DEQUEUE, XID, *tail(56)], back("first")),
    *flips("local commit", "commit", [*END_OF_TRANSACTION, XID, *tail(56)], UNDONE),
    *flips("aborted abort", "abort", [*END_OF_TRANSACTION, XID, *tail(56)], {"aborted": UNPREPARED}),
    *flips(
        "branch prepare", "enqueue", [*HEADER, XID, ("data", 51, 1, 0, "fails its checksum", SKIPPED)], NOT_DOUBTFUL
    ),
    *flips("decided decide", "dequeue", [*DEQUEUE, XID], UNDECIDED),
    *flips("local done", "commit", [*END_OF_TRANSACTION, XID], {"local": COMMITTING}),
    *(
        Plant(
            f"{record}: padding",
            flip((record, 127)),
            careful=[Finding((record, used), "padding of ", NOTHING_READ)],
        )
        for record, used in (("take second", 44), ("local commit", 68))
    ),
]


# ---- file headers, sectors, whole files ----

#: What is lost with a file's header, or with the whole file: a record that goes on in the file, besides.
BILLS_1: Final[Changes] = {**lost("bill 34", "bill 35", "bill 36"), **back("bill 29")}
BILLS_2: Final[Changes] = {**lost("bill 37", "bill 38", "bill 39"), **back("bill 30", "bill 31", "bill 32", "bill 33")}
LOST_WITH_FILES: Final[list[tuple[str, int, Changes]]] = [
    ("orders", 0, ORDERS_0),
    ("orders", 1, ORDERS_1),
    ("bills", 0, {}),
    ("bills", 1, BILLS_1),
    ("bills", 2, BILLS_2),
    ("prepared", 0, NOT_DOUBTFUL),
    ("prepared", 1, UNDECIDED),
]
NO_SALT: Final = "records that begin in the file cannot be verified and are not read"
HEADER_FIELDS: Final = [
    ("magic", 0, 0, "not a file header: magic 0x"),
    ("version", 4, 4, "unsupported journal version 3 in file header"),
    ("byte 5", 5, 5, "byte 5 of file header should be 0"),
    *(
        (name, at, 60, "file header fails its checksum")
        for name, at in (
            ("overwrite indicator", 6),
            ("first flush", 8),
            ("first record", 16),
            ("salt", 24),
            ("queue id", 32),
            ("incarnation", 40),
            ("number", 44),
            ("alignment", 46),
            ("seconds", 48),
            ("nanoseconds", 56),
            ("checksum", 60),
        )
    ),
]


def size_of(journal: str) -> int:
    return 8704 if journal == "orders" else 4608


HEADERS: Final = [
    *(
        Plant(
            f"{journal} {number}: {name}",
            flip((journal, number, at)),
            [Finding((journal, number, reported), what, NO_SALT)],
            changes,
        )
        for journal, number, changes in LOST_WITH_FILES
        for name, at, reported, what in HEADER_FIELDS
    ),
    *(
        Plant(
            f"{journal} {number}: zeroed",
            zero((journal, number, 0), 512),
            [Finding((journal, number, 0), "file header is missing, but the file holds data", NO_SALT)],
            changes,
        )
        for journal, number, changes in LOST_WITH_FILES
    ),
    Plant(
        "padding",
        flip(("bills", 1, 64)),
        [Finding(("bills", 1, 64), "file header's sector is not padded with 0xff", NOTHING_READ)],
    ),
]


# ---- info files ----

INFO: Final = f"{VERSION_2_DIRECTORIES['orders']}/JournalData.jinf"
BY_FILES: Final = "name and geometry are taken from the journal's files"


def another_size(planted: Planted) -> None:
    """An info file that is sound and has another geometry."""
    info = decode_jinf(bytes(planted.read(INFO)))
    planted.write(INFO, encode_jinf(info._replace(geometry=Geometry(2, 4096))))


def another_queue(planted: Planted) -> None:
    """The info file of `bills`, as if its files had the same size."""
    info = decode_jinf(bytes(planted.read(INFO.replace("/1/", "/2/"))))
    planted.write(INFO, encode_jinf(info._replace(geometry=Geometry(4, 8192))))


INFOS: Final = [
    Plant(name, do, [Finding(Spot(INFO, offset), what, consequence)])
    for name, do, offset, what, consequence in (
        ("empty", lambda planted: planted.write(INFO, b""), 0, "journal info file is empty", BY_FILES),
        ("missing", lambda planted: planted.remove(INFO), None, "cannot be read: No such file", BY_FILES),
        ("cut", lambda planted: planted.write(INFO, planted.read(INFO)[:100]), 0, "is not JSON", BY_FILES),
        ("a letter", flip(Spot(INFO, 20)), 0, "journal info file fails its checksum", BY_FILES),
        ("a bracket", flip(Spot(INFO, 0)), 0, "journal info file", BY_FILES),
        (
            "geometry",
            another_size,
            None,
            "2 files of 4,608 bytes, but there are 4 of 8,704",
            "number and size of the files",
        ),
        ("another queue's", another_queue, None, "info file of queue id 2, incarnation 1 in the", "are trusted"),
    )
]


# ---- the catalogue, the STORE file, the prepared list ----

STORE, CATALOGUE, TABLE = "rhm/STORE", "rhm/catalogue", "rhm/catalogue/000009.sst"
FROM_JOURNALS: Final = "exchanges and bindings are lost; the queues are restored from the journals"
NOT_CLEAN: Final = "the store counts as not closed cleanly"


def other_store(planted: Planted) -> None:
    content = store_file.decode(bytes(planted.read(STORE)))
    planted.write(STORE, store_file.encode(content._replace(store_id=UUID(int=1))))


def in_catalogue(change: Callable[[Catalogue, RocksKeyValue], None]) -> Callable[[Planted], None]:
    """Changes the catalogue; its files, which are shared with the original, are copied first."""

    def do(planted: Planted) -> None:
        directory = planted.path / CATALOGUE
        shutil.copytree(directory, planted.path / "copied")
        shutil.rmtree(directory)
        (planted.path / "copied").rename(directory)
        key_value = RocksKeyValue.open(directory)
        change(Catalogue(key_value), key_value)
        key_value.close()

    return do


def no_ids_reserved(_: Catalogue, key_value: RocksKeyValue) -> None:
    key_value.write({encode(RidReservation(0))[0]: None})


def queue_entry_flipped(_: Catalogue, key_value: RocksKeyValue) -> None:
    key, _value = encode(QueueEntry(2, 2, 1, b""))
    value = key_value.get(key)
    assert value is not None
    key_value.write({key: value[:-1] + bytes([value[-1] ^ 1])})


def queue_entry_lost(_: Catalogue, key_value: RocksKeyValue) -> None:
    key_value.write({encode(QueueEntry(2, 2, 1, b""))[0]: None})


BILLS_GONE: Final[Changes] = lost(*(f"bill {number}" for number in range(34, 40)))

STORES: Final = [
    Plant("STORE flipped", flip(Spot(STORE, 20)), [Finding(Spot(STORE, None), "STORE file", NOT_CLEAN)]),
    Plant("STORE checksum", flip(Spot(STORE, 45)), [Finding(Spot(STORE, None), "STORE file", NOT_CLEAN)]),
    Plant(
        "STORE empty", lambda planted: planted.write(STORE, b""), [Finding(Spot(STORE, None), "STORE file", NOT_CLEAN)]
    ),
    Plant(
        "STORE missing",
        lambda planted: planted.remove(STORE),
        [Finding(Spot("rhm", None), "STORE file is missing", NOT_CLEAN)],
    ),
    Plant(
        "STORE of another store",
        other_store,
        [Finding(Spot(STORE, None), "but the catalogue is that of store", NOT_CLEAN)],
    ),
    Plant(
        "catalogue missing",
        lambda planted: planted.remove(CATALOGUE),
        [Finding(Spot("rhm", None), "the catalogue is missing", FROM_JOURNALS)],
    ),
    *(
        Plant(f"catalogue: {name}", do, [Finding(Spot(f"{CATALOGUE}/{file}", None), what, FROM_JOURNALS)])
        for name, do, file, what in (
            ("table flipped", flip(Spot(TABLE, 40)), "000009.sst", "RocksDB cannot read: Corruption"),
            ("table's index flipped", flip(Spot(TABLE, 600)), "000009.sst", "RocksDB cannot open it: Corruption"),
            ("table missing", lambda planted: planted.remove(TABLE), "000009.sst", "No such file"),
            (
                "table cut",
                lambda planted: planted.write(TABLE, planted.read(TABLE)[:700]),
                "000009.sst",
                "size mismatch",
            ),
            ("CURRENT flipped", flip(Spot(f"{CATALOGUE}/CURRENT", 2)), "CURRENT", "CURRENT file corrupted"),
            (
                "CURRENT missing",
                lambda planted: planted.remove(f"{CATALOGUE}/CURRENT"),
                "CURRENT",
                "the file CURRENT is missing",
            ),
            ("manifest", flip(Spot(f"{CATALOGUE}/MANIFEST-000005", 60)), "MANIFEST-000005", "checksum mismatch"),
        )
    ),
    Plant(
        "catalogue: an entry flipped",
        in_catalogue(queue_entry_flipped),
        [Finding(Spot(CATALOGUE, None), "checksum", "the rest is read")],
    ),
    Plant(
        "catalogue: an entry lost",
        in_catalogue(queue_entry_lost),
        [
            Finding(
                Spot(CATALOGUE, None), "the census counts 2 entries of kind queue, but there are 1", "the rest is read"
            )
        ],
    ),
    Plant(
        "catalogue: record ids that are not reserved",
        in_catalogue(no_ids_reserved),
        [
            Finding(
                Spot(CATALOGUE, None), "record id 0x71 is in use, but only ids below 0x0 ", "continue above the highest"
            )
        ],
    ),
    Plant(
        "a queue's journal removed",
        lambda planted: planted.remove("rhm/jrnl/2"),
        [Finding(Spot("", None), 'queue "bills" has no journal', "its messages are lost")],
        BILLS_GONE,
    ),
    Plant(
        "a queue deleted from the catalogue",
        in_catalogue(lambda catalogue, _: catalogue.delete_queue(2)),
        [
            Finding(
                Spot("rhm/jrnl/2", None),
                'journal of queue "bills", which is not in the catalogue, holds 6 messages',
                "the messages are omitted; pass the directory itself to see them",
            )
        ],
        BILLS_GONE,
    ),
    Plant(
        "the prepared list missing",
        lambda planted: planted.remove("rhm/tpl"),
        [Finding(Spot("", None), "the transaction prepared list is missing, but", "treated as never prepared")],
        {**NOT_DOUBTFUL, "decided": UNPREPARED, "decided put": None, "fifth": OUTSTANDING},
    ),
]


COPY: Final = "rhm/topology"


CATALOGUES: Final = [plant for plant in STORES if plant.name.startswith("catalogue") and "reserved" not in plant.name]


UNUSABLE: Final = "the second copy of the catalogue is unusable"
SECOND_COPIES: Final = [
    Plant(
        f"copy {name}",
        do,
        [Finding(Spot(COPY, None), f"{UNUSABLE}: {what}", "no data loss: the catalogue is sound; the next start")],
    )
    for name, do, what in (
        ("empty", lambda planted: planted.write(COPY, b""), "topology copy: 0 bytes are too few"),
        ("header", flip(Spot(COPY, 14)), "topology copy: the header fails its checksum"),
        ("snapshot", flip(Spot(COPY, 600)), "damaged after its beginning, at offset 512: later"),
    )
]

BILLS_2_AND_CUT_OFF: Final[Changes] = {
    **lost("bill 36", "bill 37", "bill 38", "bill 39"),
    **back("bill 30", "bill 31", "bill 32", "bill 33"),
}
#: Of the record that begins in `bills` 1 and goes on in 2.
CUT_OFF: Final = Finding("bill 36", "enqueue record of 1,024 bytes runs past the end of a file", SKIPPED)


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
    ("bills", 2, BILLS_2_AND_CUT_OFF, [CUT_OFF]),
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
            (2, 22, 11, BILLS_2_AND_CUT_OFF, [CUT_OFF]),
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


# ---- records in another's place: in the same file the flush number tells, in another the salt ----

COPIES: Final = [
    Plant(f"{source} over {target}", copy_record(source, target), [Finding(target, what, SKIPPED)], changes)
    for source, target, what, changes in (
        ("third", "fourth", "enqueue record of flush 3, expected flush 4", lost("fourth")),
        ("fourth", "third", "enqueue record of flush 4, expected flush 3", lost("third")),
        ("bill 35", "bill 34", "enqueue record of flush 65, expected flush 63", lost("bill 34")),
        ("bill 34", "bill 35", "enqueue record of an older flush", lost("bill 35")),
        ("third", "ninth", "enqueue record fails its checksum", lost("ninth")),
        ("ninth", "third", "enqueue record fails its checksum", lost("third")),
        ("take second", "take seventh", "dequeue record fails its checksum", back("seventh")),
        ("paid 29", "paid 31", "dequeue record fails its checksum", back("bill 31")),
        ("local commit", "aborted abort", "commit record of an older flush", {"aborted": UNPREPARED}),
        ("aborted abort", "local commit", "abort record of flush 13, expected flush 10", UNDONE),
    )
]


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
        notice="torn tail of record 0x27 at 0x1600: enqueue record fails its checksum, and after it records of the "
        "same flush; recovery cuts it off",
    ),
    Plant("the end of the last record", zero(("tenth", 256), 256), changes=lost("tenth"), notice="torn tail of record"),
    Plant(
        "the last record's magic",
        flip("tenth"),
        changes=lost("tenth"),
        notice="torn tail at 0x1600: no record here: magic 0x654d4853, and after it records of the same flush",
    ),
    Plant(
        "the last of a ring that is full", flip(("paid 33", 8)), changes=back("bill 33"), notice="torn tail of record"
    ),
    Plant("an orphan without messages", empty_orphan, notice="which is not in the catalogue"),
]


# ---- what leaves no trace ----

UNSEEN: Final = [
    # The file as it was before the last lap entered it: a state that the journal once had, but for the seal.
    Plant(
        "the newest file as it was a lap before",
        earlier(2, 27),
        changes=BILLS_2_AND_CUT_OFF,
        notice="torn tail of record 0x6a",
    ),
    # In a store that was left, files at the end may never have been entered.
    Plant("the newest file zeroed", zero(("orders", 1, 0), 8704), changes=ORDERS_1),
]


NO_SECOND_COPY: Final = Plant(
    "copy missing", lambda planted: planted.remove(COPY), [], notice=f"{UNUSABLE}: the file is missing; the next start"
)


# ---- all of it ----

#: What is damaged -> how, in a store that was closed cleanly.
PLANTS: Final[dict[str, Sequence[Plant]]] = {
    "a record": flips_of_the_day(RECORDS),
    "a file header": flips_of_the_day(HEADERS),
    "an info file": INFOS,
    "sectors and files": FILES,
    "a record copied over another": COPIES,
    "the second copy of the catalogue": [*SECOND_COPIES, NO_SECOND_COPY],
}
#: In one that was left as after a crash.
PLANTS_OF_LEFT: Final[dict[str, Sequence[Plant]]] = {
    "what a crash leaves": NO_DAMAGE,
    "what leaves no trace": UNSEEN,
}
