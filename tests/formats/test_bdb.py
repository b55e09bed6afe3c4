from __future__ import annotations

import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.formats.bdb import (
    BdbError,
    Btree,
    Lsn,
    UnsupportedDatabaseError,
    analyse_log,
    contradictions,
    salvage,
    why_recovery,
)
from qstore.formats.bdb.log import log_records
from qstore.formats.bdb.pages import checksum
from tests.formats.bdb_files import (
    DUPLICATE_LEAF,
    FILE_ID,
    INTERNAL,
    LEAF,
    RECNO_INTERNAL,
    RECNO_LEAF,
    BdbFile,
    Log,
    child,
    inline,
    one_leaf,
    reference,
    slow_checksum,
)
from tests.support.profiles import examples

Pairs = list[tuple[bytes, bytes]]


def read(buffer: bytes) -> Pairs:
    return list(Btree(buffer).items())


def rescue(buffer: bytes) -> tuple[Pairs, list[BdbError]]:
    damage: list[BdbError] = []
    return list(salvage(buffer, damage.append)), damage


def tall_file(order: str = "<", checksummed: bool = False) -> tuple[BdbFile, Pairs]:
    """Two leaves below a root, with all that a qpidd file may hold: duplicates, overflow and deleted items."""
    file = BdbFile(order=order, checksummed=checksummed)

    def item(data: bytes, deleted: bool = False) -> bytes:
        return inline(data, deleted, order)

    file.page(1, INTERNAL, [child(2, order=order), child(3, b"m", order)], level=2)
    left: list[bytes | int] = [item(b"a"), item(b"1"), 0, item(b"2"), item(b"b"), reference(3, 4, 700, order)]
    left += [item(b"c"), item(b"gone", deleted=True)]
    file.page(2, LEAF, left, following=3)
    right = [reference(3, 6, 300, order), item(b""), item(b"n"), reference(2, 7, 0, order)]
    right += [item(b"o"), reference(2, 10, 0, order)]
    file.page(3, LEAF, right, previous=2)
    file.overflow(4, b"x" * 400, following=5)
    file.overflow(5, b"y" * 300)
    file.overflow(6, b"m" * 300)
    file.page(7, INTERNAL, [child(8, order=order), child(9, b"q", order)], level=2)
    file.page(8, DUPLICATE_LEAF, [item(b"p"), item(b"pp", deleted=True)], following=9)
    file.page(9, DUPLICATE_LEAF, [item(b"q"), item(b"r")], previous=8)
    file.page(10, RECNO_INTERNAL, [struct.pack(order + "II", 11, 2)], level=2)
    file.page(11, RECNO_LEAF, [item(b"z"), item(b"s")])
    pairs = [(b"a", b"1"), (b"a", b"2"), (b"b", b"x" * 400 + b"y" * 300), (b"m" * 300, b"")]
    pairs += [(b"n", b"p"), (b"n", b"q"), (b"n", b"r"), (b"o", b"z"), (b"o", b"s")]
    return file, pairs


# ---- reading what is sound ----


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("checksummed", [False, True])
def test_every_kind_of_item_is_read_in_cursor_order(order: str, checksummed: bool) -> None:
    file, pairs = tall_file(order, checksummed)
    assert read(file.build()) == pairs
    assert rescue(file.build()) == (pairs, [])


def test_an_empty_database() -> None:
    assert read(one_leaf([])) == []


def test_the_metadata_and_the_page_lsn() -> None:
    tree = Btree(one_leaf([(b"k", b"v")], lsn=(3, 77)))
    assert (tree.metadata.page_size, tree.metadata.root_page, tree.metadata.version) == (4096, 1, 9)
    assert tree.page_lsn(1) == Lsn(3, 77)
    assert tree.page_lsn(0) == Lsn(0, 1)
    assert tree.page_lsn(2) is None


@given(st.binary(max_size=10_000))
def test_the_checksum(data: bytes) -> None:
    assert checksum(data) == slow_checksum(data)


def test_the_checksum_of_the_first_record_of_a_real_log() -> None:
    # From the log of a real environment: previous 0, length 28, checksum 0x3e0934b4.
    body = bytes.fromhex("88090400130000000000a00000000000")
    assert checksum(body) ^ 0 ^ 28 == 0x3E0934B4


# ---- what is not supported is refused by name ----


@pytest.mark.parametrize(
    ("offset", "patch", "what"),
    [
        (12, struct.pack("<I", 0x61561), "hash"),
        (12, struct.pack(">I", 0x42253), "queue"),
        (12, struct.pack("<I", 0x74582), "heap"),
        (12, struct.pack("<I", 0x40988), "log"),
        (16, struct.pack("<I", 10), "version 10"),
        (24, b"\1", "encryption"),
        (36, struct.pack("<I", 2), "partitioned"),
        (48, struct.pack("<I", 0x02), "recno"),
        (48, struct.pack("<I", 0x20), "several named databases"),
        (48, struct.pack("<I", 0x80), "compressed"),
    ],
)
def test_other_kinds_are_refused_by_name(offset: int, patch: bytes, what: str) -> None:
    file, _ = tall_file()
    file.patches[offset] = patch
    with pytest.raises(UnsupportedDatabaseError, match=what) as raised:
        Btree(file.build())
    assert raised.value.offset == offset
    pairs, damage = rescue(file.build())
    assert pairs == []
    assert [what in str(error) for error in damage] == [True]


@pytest.mark.parametrize(
    ("buffer", "what"),
    [
        (b"", "too short"),
        (bytes(4096), "magic"),
        (b"SQLite format 3\0" * 64, "magic"),
    ],
)
def test_buffer_without_a_database_is_refused(buffer: bytes, what: str) -> None:
    with pytest.raises(BdbError, match=what):
        Btree(buffer)
    assert rescue(buffer)[0] == []


# ---- damage: (what is done to the tall file, the error, what can still be read) ----


def patched(page: int, offset: int, patch: bytes) -> Callable[[bytearray], None]:
    def patch_it(data: bytearray) -> None:
        start = 512 * page + offset
        data[start : start + len(patch)] = patch

    return patch_it


U16, U32 = struct.Struct("<H").pack, struct.Struct("<I").pack
ALL = set(tall_file()[1])
LEFT = {pair for pair in ALL if pair[0] in (b"a", b"b")}
DAMAGE: dict[str, tuple[Callable[[bytearray], None], str, set[tuple[bytes, bytes]]]] = {
    "page size": (patched(0, 20, U32(1000)), "page size is 1000", ALL),
    "root outside": (patched(0, 88, U32(99)), "page 99 is outside", ALL),
    "root is the metadata": (patched(0, 88, U32(0)), "page 0 is outside", ALL),
    "root is an overflow page": (patched(0, 88, U32(4)), "OVERFLOW does not belong", ALL),
    "child is its parent": (patched(1, 504, U32(1)), "referenced twice", ALL),
    "wrong number": (patched(2, 8, U32(3)), "has the page number 3", ALL - LEFT),
    "wrong type": (patched(2, 25, b"\x63"), "unknown type 99", ALL - LEFT),
    "wrong level": (patched(2, 24, b"\x02"), "on level 2", ALL),
    "broken chain": (patched(3, 12, U32(9)), "page 9 in the chain", ALL),
    "too many entries": (patched(3, 20, U16(300)), "claims 300 entries", LEFT),
    "odd entries": (patched(3, 20, U16(5)), "key without data", ALL - {(b"o", b"z"), (b"o", b"s")}),
    "entry outside": (patched(3, 28, U16(511)), "entry 1 of page 3 is at 511", ALL - {(b"m" * 300, b"")}),
    "shared data": (patched(2, 32, U16(504)), "shares its data", ALL - {(b"a", b"2")}),
    "unknown item": (patched(2, 508 + 2, b"\x09"), "unknown type 9", ALL - {(b"a", b"1"), (b"a", b"2")}),
    "item too long": (patched(2, 508, U16(9)), "extends beyond page 2", ALL - {(b"a", b"1"), (b"a", b"2")}),
    "items overlap": (patched(2, 504, U16(3)), "overlap", ALL - {(b"a", b"1")}),
    "overflow loop": (patched(5, 16, U32(4)), "referenced twice", ALL - {(b"b", b"x" * 400 + b"y" * 300)}),
    "overflow too long": (patched(5, 16, U32(6)), "longer than its 700", ALL - {(b"b", b"x" * 400 + b"y" * 300)}),
    "overflow too short": (patched(4, 16, U32(0)), "ends after 400 of 700", ALL - {(b"b", b"x" * 400 + b"y" * 300)}),
    "overflow over its page": (patched(6, 22, U16(500)), "claims 500 bytes", ALL - {(b"m" * 300, b"")}),
    "duplicates in duplicates": (patched(9, 508 + 2, b"\x02"), "extends beyond page 9", ALL - {(b"n", b"q")}),
    "duplicates' leaf": (patched(8, 25, b"\x05"), "LEAF does not belong", ALL - {(b"n", b"p")}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_and_the_rest_rescued(name: str) -> None:
    harm, what, readable = DAMAGE[name]
    data = bytearray(tall_file()[0].build())
    harm(data)
    with pytest.raises(BdbError, match=what) as raised:
        read(bytes(data))
    assert 0 <= raised.value.offset < len(data)
    pairs, damage = rescue(bytes(data))
    assert any(error.what == raised.value.what for error in damage)
    assert readable <= set(pairs)


def test_checksum_finds_a_flipped_bit() -> None:
    file, _ = tall_file(checksummed=True)
    data = bytearray(file.build())
    data[512 * 4 + 100] ^= 1
    with pytest.raises(BdbError, match="checksum of page 4"):
        read(bytes(data))
    data = bytearray(file.build())
    data[60] ^= 1
    with pytest.raises(BdbError, match="checksum of the metadata"):
        read(bytes(data))


def test_a_lost_root_loses_no_pair() -> None:
    file, pairs = tall_file()
    data = bytearray(file.build())
    data[512:1024] = bytes(512)
    rescued, damage = rescue(bytes(data))
    assert rescued == pairs
    assert [error.offset for error in damage] == [512 + 8]


def test_a_lost_metadata_page_loses_no_pair() -> None:
    file, pairs = tall_file()
    data = bytearray(file.build())
    data[:512] = bytes(512)
    rescued, damage = rescue(bytes(data))
    assert rescued == pairs
    assert [error.offset for error in damage] == [12]


def test_a_forged_file_yields_no_more_than_it_holds() -> None:
    # A leaf full of references to one chain: reading it again and again would yield 60 MB from 2 MB.
    file = BdbFile(page_size=65536)
    file.page(1, LEAF, [part for index in range(30) for part in (inline(b"%d" % index), reference(3, 2, 2_000_000))])
    for number in range(2, 34):
        file.overflow(number, bytes(65_000), following=number + 1 if number < 33 else 0)
    pairs, damage = rescue(file.build())
    assert pairs == []
    assert len(damage) == 30


@examples(150)
@given(st.data())
def test_flips_and_cuts_give_pairs_or_bdb_errors(data: st.DataObject) -> None:
    order, checksummed = data.draw(st.sampled_from("<>")), data.draw(st.booleans())
    file, pairs = tall_file(order, checksummed)
    buffer = bytearray(file.build())
    for _ in range(data.draw(st.integers(1, 4))):
        # The headers are where it hurts: half of the flips go there.
        place = data.draw(st.one_of(st.integers(0, len(buffer) - 1), st.integers(0, 11 * 46)))
        position = place if place % 2 else place // 46 * 512 + place % 46
        buffer[min(position, len(buffer) - 1)] ^= 1 << data.draw(st.integers(0, 7))
    del buffer[data.draw(st.one_of(st.just(len(buffer)), st.integers(0, len(buffer)))) :]
    started = time.process_time()
    strict: Pairs = []
    error: BdbError | None = None
    try:
        for pair in Btree(bytes(buffer)).items():
            strict.append(pair)
    except BdbError as raised:
        error = raised
    rescued, damage = rescue(bytes(buffer))
    if error is None:
        assert (rescued, damage) == (strict, [])
    else:
        assert damage
        assert damage[0].what == error.what
        assert rescued[: len(strict)] == strict
    assert sum(len(value) for _, value in rescued) <= len(buffer)
    assert time.process_time() - started < 2
    if checksummed and error is None:
        assert strict == pairs


# ---- the log ----


def reason(*logs: bytes, lsns: dict[tuple[str, int], Lsn] | None = None, first: int = 1) -> str | None:
    """Why files with these LSNs cannot be read as they are."""
    found = lsns or {}
    newest: dict[str, tuple[int, Lsn]] = {}
    for (name, page), lsn in found.items():
        newest[name] = max((page, lsn), newest.get(name, (page, lsn)), key=lambda each: each[1])

    def page_lsn(name: str, page: int) -> Lsn | None:
        return found.get((name, page))

    summary = analyse_log(enumerate(logs, start=first))
    for each in contradictions(summary, page_lsn, newest, dict.fromkeys(newest, FILE_ID)):
        return each.what
    return why_recovery(summary, page_lsn)


def committed_log() -> tuple[Log, int]:
    log = Log()
    log.register(0, "queues.db")
    log.addrem(9, 0, 1)
    last = log.addrem(9, 0, 1)
    log.commit(9)
    return log, last


def test_the_records_of_a_log() -> None:
    log, last = committed_log()
    records = list(log_records(log.build()))
    assert [(record.type, record.transaction) for record in records] == [(2, 0), (41, 9), (41, 9), (10, 9)]
    assert records[2].offset == last


def test_a_page_behind_the_log_needs_recovery() -> None:
    log, last = committed_log()
    page = ("queues.db", 1)
    assert reason(log.build(), lsns={page: Lsn(1, last)}) is None
    assert reason(log.build(), lsns={page: Lsn(1, last - 1)}) == "queues.db: page 1 is older than the log"
    assert reason(log.build(), lsns={page: Lsn(0, 1)}) is not None
    assert reason(log.build()) is not None


def test_a_change_that_was_not_committed_counts_where_it_is_on_the_page() -> None:
    log, last = committed_log()
    open_change = log.addrem(10, 0, 1)
    page = ("queues.db", 1)
    assert reason(log.build(), lsns={page: Lsn(1, last)}) is None
    assert "not committed" in str(reason(log.build(), lsns={page: Lsn(1, open_change)}))
    log.record(12, 11, 10, 1, open_change)  # 10 was a child of 11, which commits
    log.commit(11)
    assert reason(log.build(), lsns={page: Lsn(1, open_change)}) is None
    assert "is older" in str(reason(log.build(), lsns={page: Lsn(1, last)}))


def test_checkpoint_settles_earlier_records() -> None:
    log = Log()
    log.record(999, 3)
    log.register(0, "queues.db")
    change = log.addrem(9, 0, 1)
    log.commit(9)
    assert "type 999" in str(reason(log.build()))
    log.checkpoint(1, change)
    assert "is older" in str(reason(log.build()))
    log.checkpoint(1, len(log.data))
    assert reason(log.build()) is None


def told(log: Log, lsns: dict[tuple[str, int], Lsn], file_id: bytes = FILE_ID) -> list[tuple[str, int | None]]:
    """What contradicts the log in files with these LSNs."""
    newest = {name: (page, lsn) for (name, page), lsn in lsns.items()}
    found = contradictions(
        analyse_log([(1, log.build())]),
        lambda name, page: lsns.get((name, page)),
        newest,
        dict.fromkeys(newest, file_id),
    )
    return [(each.name, each.page) for each in found]


def test_a_crash_does_not_explain_a_file_older_than_the_checkpoint() -> None:
    log, last = committed_log()
    older, page = Lsn(1, last - 1), ("queues.db", 1)
    assert told(log, {page: older}) == []  # the change may be nowhere but in the log
    log.checkpoint(1, last)
    assert told(log, {page: older}) == []
    log.checkpoint(1, len(log.data))
    assert told(log, {page: older}) == [page]
    assert told(log, {("queues.db", 2): older}) == [page], "the file does not reach that far"
    assert told(log, {page: Lsn(1, last)}) == []
    assert told(log, {("general.db", 1): older}) == [], "of another file the log says nothing"
    log.record(50, 12, 0, 1, 0, 1, 0, b"header", 0, 1)  # the page is given back
    log.commit(12)
    assert told(log, {page: older}) == []


def test_a_crash_does_not_explain_a_page_newer_than_the_log() -> None:
    log, _ = committed_log()
    page = ("queues.db", 1)
    assert told(log, {page: Lsn(1, log.last)}) == []
    assert told(log, {page: Lsn(1, log.last + 1)}) == [page]
    assert told(log, {page: Lsn(2, 0)}) == [page]


def test_a_file_of_another_environment_has_another_id() -> None:
    log, last = committed_log()
    page = {("queues.db", 1): Lsn(1, last)}
    assert told(log, page, b"another id".ljust(20, b"\0")) == [("queues.db", None)]
    log.register(0, "queues.db", file_id=b"another id".ljust(20, b"\0"))  # made anew under the same name
    assert told(log, page, b"another id".ljust(20, b"\0")) == []


def test_log_with_unknown_records_proves_nothing() -> None:
    log, last = committed_log()
    log.checkpoint(1, len(log.data))
    log.record(999, 0)
    assert told(log, {("queues.db", 1): Lsn(1, last - 1)}) == []


def test_a_freed_page_is_not_asked_for() -> None:
    log, _ = committed_log()
    metadata = log.record(50, 12, 0, 1, 0, 1, 0, b"header", 0, 1)
    log.commit(12)
    assert reason(log.build(), lsns={("queues.db", 0): Lsn(1, metadata)}) is None
    assert "page 0 is older" in str(reason(log.build(), lsns={("queues.db", 0): Lsn(1, metadata - 1)}))


def test_files_that_were_made_in_an_open_transaction_need_recovery() -> None:
    log = Log()
    log.record(143, 5, b"__db.1\0", b"", 1, 0o660)
    log.record(146, 5, b"__db.1\0", b"queues.db\0", b"", b"id", 1)
    assert "not committed" in str(reason(log.build()))
    log.commit(5)
    assert reason(log.build()) is None
    assert analyse_log([(1, log.build())]).names == {"__db.1", "queues.db", ""}


def test_a_database_that_is_not_open_is_a_doubt() -> None:
    log, _ = committed_log()
    log.register(0, "queues.db", action=2)
    log.addrem(13, 0, 1)
    assert "not open in the log" in str(reason(log.build()))


def test_later_log_files_carry_on() -> None:
    first, _ = committed_log()
    second = Log(previous=first.last)
    last = second.addrem(14, 0, 1)
    second.commit(14)
    page = ("queues.db", 1)
    assert reason(first.build(), second.build(), lsns={page: Lsn(2, last)}) is None
    assert reason(first.build(), second.build(), lsns={page: Lsn(1, 4000)}) is not None
    stranger = Log(previous=first.last + 1)
    assert ", not at" in str(reason(first.build(), stranger.build(), lsns={page: Lsn(2, last)}))
    summary = analyse_log([(1, first.build()), (3, second.build())])
    assert [(number, "missing" in error.what) for number, error in summary.damage] == [(2, True)]


def test_a_log_whose_first_files_are_gone_needs_a_checkpoint() -> None:
    log = Log(previous=1234)
    log.register(0, "queues.db")
    assert "first files are missing" in str(reason(log.build(), first=2))
    log.checkpoint(2, len(log.data))
    assert reason(log.build(), first=2) is None


def test_another_version_needs_recovery() -> None:
    assert "version 17" in str(reason(Log(version=17).build()))


def test_interior_damage_is_distinguished_from_a_torn_tail() -> None:
    log, last = committed_log()
    data = bytearray(log.build())
    data[last + 30] ^= 4
    summary = analyse_log([(1, bytes(data))])
    assert [(number, error.offset) for number, error in summary.damage] == [(1, last)]
    assert summary.torn == []
    torn = log.build()[: len(log.data) - 20]
    summary = analyse_log([(1, torn + bytes(100))])
    assert [(number, error.offset) for number, error in summary.torn] == [(1, log.last)]
    assert summary.damage == []


@examples(150)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 7)), min_size=1, max_size=3), st.integers(0, 4096))
@example([(28, 0)], 28)  # cut behind the file's first record
def test_a_changed_log_is_never_taken_for_a_sound_one(flips: list[tuple[int, int]], size: int) -> None:
    log, last = committed_log()
    data = bytearray(log.build())
    for position, bit in set(flips):
        data[position % len(log.data)] ^= 1 << bit
    del data[max(size, 1) :]
    sound = {("queues.db", 1): Lsn(1, last)}
    unchanged = log.build().startswith(bytes(data)) and len(data) >= len(log.data)
    assert (reason(bytes(data), lsns=sound) is None) == unchanged


@given(st.binary(max_size=300))
def test_records_with_any_arguments_are_understood_or_doubted(arguments: bytes) -> None:
    for kind in (2, 10, 11, 12, 14, 41, 50, 62, 143, 146):
        log = Log()
        log.record(kind, 3, *struct.unpack(f"<{len(arguments) // 4}I", arguments[: len(arguments) // 4 * 4]))
        reason(log.build())


# ---- Berkeley DB itself as the judge ----

needs_berkeley_db = pytest.mark.skipif(
    shutil.which("db5.3_load") is None or shutil.which("db5.3_dump") is None,
    reason="needs db5.3_load and db5.3_dump: Debian's db5.3-util",
)


def load(path: Path, pairs: Pairs, *options: str) -> None:
    lines = [f" {part.hex()}\n" for pair in pairs for part in pair]
    header = "VERSION=3\nformat=bytevalue\ntype=btree\n"
    text = header + "".join(f"{option}\n" for option in options) + "HEADER=END\n" + "".join(lines) + "DATA=END\n"
    subprocess.run(["db5.3_load", str(path)], input=text.encode(), check=True, capture_output=True)


def dumped(path: Path) -> Pairs:
    text = subprocess.run(["db5.3_dump", str(path)], check=True, capture_output=True).stdout.decode()
    lines = text.partition("HEADER=END\n")[2].partition("DATA=END")[0].splitlines()
    values = [bytes.fromhex(line[1:]) for line in lines]
    return list(zip(values[::2], values[1::2], strict=True))


@needs_berkeley_db
@pytest.mark.parametrize("lorder", ["1234", "4321"])
@pytest.mark.parametrize("chksum", [0, 1])
@pytest.mark.parametrize(
    "options",
    [("db_pagesize=4096",), ("db_pagesize=512", "duplicates=1"), ("db_pagesize=1024", "duplicates=1", "dupsort=1")],
    ids=["unique", "duplicates", "sorted duplicates"],
)
def test_reads_databases_made_by_berkeley_db(
    tmp_path: Path, options: tuple[str, ...], lorder: str, chksum: int
) -> None:
    chance = random.Random(7)
    keys = [chance.randbytes(chance.choice([1, 8, 8, 40])) for _ in range(150)] + [chance.randbytes(3000)]
    many = keys[:3] if len(options) > 1 else []
    pairs = [(key, chance.randbytes(chance.choice([0, 5, 30, 60]))) for key in keys]
    pairs += [(chance.choice(many or keys), b"%06d" % chance.randrange(10**6)) for _ in range(1500)]
    pairs += [(struct.pack("<Q", number), bytes(number % 90)) for number in range(1500)]
    pairs += [(chance.randbytes(8), chance.randbytes(size)) for size in (600, 5000, 70_000)]
    path = tmp_path / "test.db"
    load(path, list(dict.fromkeys(pairs)), *options, f"db_lorder={lorder}", f"chksum={chksum}")
    expected = dumped(path)
    assert len(expected) > 1500
    assert read(path.read_bytes()) == expected
    size = int(options[0].partition("=")[2])
    data = path.read_bytes()
    assert {3, 5, 7} <= {data[start + 25] for start in range(size, len(data), size)}, "the test's data are too small"


@pytest.fixture(scope="module")
def real_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bdb") / "real.db"
    pairs = [(struct.pack("<Q", number % 50), b"%05d" % number * (1 + number % 7)) for number in range(900)]
    load(path, [*pairs, (b"big", bytes(9000))], "db_pagesize=512", "duplicates=1", "dupsort=1")
    return path.read_bytes()


@needs_berkeley_db
@examples(25)
@given(data=st.data())
def test_flips_in_a_real_file(data: st.DataObject, real_file: bytes) -> None:
    buffer = bytearray(real_file)
    for _ in range(data.draw(st.integers(1, 20))):
        page = data.draw(st.integers(0, len(buffer) // 512 - 1))
        buffer[page * 512 + data.draw(st.integers(0, 60))] ^= 1 << data.draw(st.integers(0, 7))
    started = time.process_time()
    rescued, _ = rescue(bytes(buffer))
    assert sum(len(value) for _, value in rescued) <= len(buffer)
    assert time.process_time() - started < 2
