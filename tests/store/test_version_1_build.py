"""Stores of version 1 that are built from any other: read back by the reader and by Berkeley DB's programs."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.broker_records.topology import (
    Binding,
    Exchange,
    GeneralObject,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
)
from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, PAGE_SIZE, Geometry
from qstore.formats.rhm.jinf import JournalInfo, decode_jinf
from qstore.formats.rhm.records import Kind, RecordHeader
from qstore.store.builders.journal_build import JournalBuild, build_journal, fits, legal_geometry
from qstore.store.builders.version_1_build import (
    encode_databases,
    hash_directory,
    journal_path,
    version_1_info,
    why_misread,
    write_databases,
)
from qstore.store.catalogue.berkeley import read_environment
from qstore.store.disk import OsDisk, OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.inspect.check import check_store
from qstore.store.inspect.offline import open_store
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, JournalRecovery
from qstore.store.journal.write.space import reserve_blocks
from qstore.store.journal.write.version_1_writer import Version1Ring, Version1Writer, state_of
from qstore.store.recovery.journal_content import JournalContent
from tests.support.fixtures import StoreFixture, StoreOpener, snapshot
from tests.support.journal_builder import StoreBuilder
from tests.support.old_store import Content, OldStore, Watcher, build_version_1, content_of, converted
from tests.support.profiles import examples

BRANCH = encode_dtx_xid(9, b"gid", b"bid")
OTHER_BRANCH = encode_dtx_xid(9, b"gid", b"other")
ONE_PAGE = Geometry.from_pages(4, 1)
needs_programs = pytest.mark.skipif(
    shutil.which("db5.3_recover") is None, reason="needs db5.3_verify, db5.3_dump and db5.3_recover: db5.3-util"
)


class Made(NamedTuple):
    """A store that was built, its content, and the notices."""

    path: Path
    watcher: Watcher
    notices: list[str]


def made(source: Path, path: Path, *, destination: str | None = None) -> Made:
    """The store at `source`, built anew at `path`."""
    path.mkdir()
    opened = open_store(OsDisk(), str(source))
    try:
        watcher = Watcher()
        notices = build_version_1(str(path), opened.recover(), watcher, destination=destination)
    finally:
        opened.close()
    return Made(path, watcher, notices)


def rids_of(path: Path) -> dict[str, list[int]]:
    opened = open_store(OsDisk(), str(path))
    rids = {queue.name: [rid for rid, *_ in queue.outstanding()] for queue in opened.recover().queues}
    opened.close()
    return rids


def without_sequence(content: Content) -> Content:
    """Bindings have an order in version 2, but none in version 1."""
    return content._replace(bindings=sorted(content.bindings, key=repr))


def assert_sound(path: Path, *, messages_too: bool = False) -> None:
    """Nothing is wrong with the store at `path`; but for transactions in doubt there is nothing to say of it.

    With `messages_too` they are those of a broker.
    """
    opened = open_store(OsDisk(), str(path))
    if messages_too:
        check = check_store(OsDisk(), opened)
        damage, notices = check.damage, check.notices
    else:
        opened.recover()
        damage, notices = opened.damage, opened.notices
    opened.close()
    assert damage == []
    assert [notice for notice in notices if "in doubt" not in notice] == []


# ---- what qpidd left behind ----


def test_a_store_of_qpidd_comes_back_as_it_was(qpidd_store: StoreFixture, tmp_path: Path) -> None:
    before = content_of(qpidd_store.path)
    new = made(qpidd_store.path, tmp_path / "new")
    assert content_of(new.path) == before
    assert_sound(new.path, messages_too=True)
    assert new.watcher.damage == new.notices == []
    assert {name: result.messages for name, result in new.watcher.results.items()} == {
        name: len(messages) for name, messages in before.queues.items()
    }
    assert sum(result.in_doubt for result in new.watcher.results.values()) == sum(
        xid is not None for messages in before.queues.values() for _, xid, _ in messages
    )


def test_messages_recovered_by_qpidd_are_kept(legacy_store: StoreFixture, tmp_path: Path) -> None:
    new = content_of(made(legacy_store.path, tmp_path / "new").path)
    theirs = {queue["name"]: len(queue["messages"]) for queue in legacy_store.recovered["queues"]}
    kept = {name: sum(state == LIVE for state, _, _ in messages) for name, messages in new.queues.items()}
    assert {name: kept[name] for name in theirs} == theirs


def test_record_ids_stay(qpidd_store: StoreFixture, tmp_path: Path) -> None:
    assert rids_of(made(qpidd_store.path, tmp_path / "new").path) == rids_of(qpidd_store.path)


def test_new_record_ids_are_above_those_of_messages(open_fixture: StoreOpener, tmp_path: Path) -> None:
    source = open_fixture("legacy-d-dtx").path
    highest = max(rid for rids in rids_of(source).values() for rid in rids)
    opened = open_store(OsDisk(), str(made(source, tmp_path / "new").path))
    recovered = opened.recover()
    assert recovered.prepared_list is not None
    assert recovered.prepared_list.recovery is not None
    prepares = [operation.rid for each in recovered.prepared_list.recovery.transactions for operation in each]
    assert len(prepares) == 3
    assert min(prepares) > highest
    opened.close()


def test_journals_are_where_qpidd_has_them(legacy_store: StoreFixture, tmp_path: Path) -> None:
    new = made(legacy_store.path, tmp_path / "new", destination="/var/lib/qpidd").path

    def infos(path: Path) -> dict[str, JournalInfo]:
        return {str(file.relative_to(path)): decode_jinf(file.read_bytes()) for file in path.glob("rhm/jrnl/**/*.jinf")}

    ours, theirs = infos(new), infos(legacy_store.path)
    assert ours.keys() == theirs.keys()
    for name, info in ours.items():
        other = theirs[name]
        assert (info.queue_name, info.base_name, info.directory, info.geometry) == (
            other.queue_name,
            other.base_name,
            other.directory,
            other.geometry,
        )
    assert (new / "rhm" / "tpl").exists() == bool(content_of(new).in_doubt)


def test_the_databases_have_the_same_rows(legacy_store: StoreFixture, tmp_path: Path) -> None:
    before = read_environment(OsDisk(), str(legacy_store.path / "rhm" / "dat"))
    after = read_environment(OsDisk(), str(made(legacy_store.path, tmp_path / "new").path / "rhm" / "dat"))
    assert (after.complete, after.recovered, after.notices, after.damage) == (True, False, (), ())
    assert (after.queues, after.exchanges, after.bindings, after.general) == (
        before.queues,
        before.exchanges,
        before.bindings,
        before.general,
    )


@needs_programs
def test_berkeley_db_takes_the_environment(legacy_store: StoreFixture, tmp_path: Path) -> None:
    directory = made(legacy_store.path, tmp_path / "new").path / "rhm" / "dat"
    before = read_environment(OsDisk(), str(directory))
    files = sorted(directory.glob("*.db"))
    assert len(files) == 6
    subprocess.run(["db5.3_verify", *files], check=True, capture_output=True)
    subprocess.run(["db5.3_recover", "-h", directory], check=True, capture_output=True)
    for file in files:
        dumped = subprocess.run(["db5.3_dump", "-h", directory, file.name], check=True, capture_output=True).stdout
        values = [bytes.fromhex(line) for line in dumped.decode().splitlines() if line.startswith(" ")]
        rows = tuple(zip(values[::2], values[1::2], strict=True))
        assert rows == getattr(before, file.stem, ())


def test_new_files_are_private(open_fixture: StoreOpener, tmp_path: Path) -> None:
    for path in (made(open_fixture("legacy-d-dtx").path, tmp_path / "new").path / "rhm").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# ---- stores of version 2 ----


@pytest.fixture
def builder(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "store")


def test_a_store_of_version_2(builder: StoreBuilder, tmp_path: Path) -> None:
    for number in range(5):
        builder.orders.enqueue(b"order %d" % number)
        builder.bills.enqueue(b"bill %d" % number)
    builder.orders.dequeue(2)
    builder.orders.dequeue(3, xid=BRANCH)
    builder.bills.enqueue(b"pending", xid=BRANCH)
    builder.bills.enqueue(b"not prepared", xid=OTHER_BRANCH)
    builder.prepared.enqueue(b"\1", xid=BRANCH)
    source = builder.write()
    before = content_of(source)
    new = made(source, tmp_path / "new")
    after = content_of(new.path)
    assert without_sequence(after) == without_sequence(before)
    assert after.in_doubt == [(BRANCH, True, 1, 1)]
    assert after.queues["orders"][1] == (LOCKED, BRANCH, b"order 2")
    assert after.queues["bills"][-1] == (PENDING, BRANCH, b"pending")
    assert rids_of(new.path) == rids_of(source)
    assert_sound(new.path)


def test_an_empty_store(builder: StoreBuilder, tmp_path: Path) -> None:
    source = builder.write()
    new = made(source, tmp_path / "new")
    assert without_sequence(content_of(new.path)) == without_sequence(content_of(source))
    assert not (new.path / "rhm" / "tpl").exists()
    for file in new.path.glob("rhm/jrnl/**/*.jdat"):
        assert file.stat().st_size == PAGE_SIZE + DATA_OFFSET
        assert not any(file.read_bytes())
    assert_sound(new.path)


def test_there_and_back(builder: StoreBuilder, tmp_path: Path) -> None:
    for number in range(20):
        builder.orders.enqueue(b"order %d" % number * number)
    builder.orders.dequeue(7, xid=BRANCH)
    builder.prepared.enqueue(b"\1", xid=BRANCH)
    source = builder.write()
    new = made(source, tmp_path / "new").path
    converted(new)
    assert content_of(new) == content_of(source)
    again = made(new, tmp_path / "again").path
    assert content_of(again) == content_of(source)


def test_the_source_is_only_read(builder: StoreBuilder, tmp_path: Path) -> None:
    builder.orders.enqueue(b"m")
    source = builder.write()
    before = snapshot(source / "rhm" / "jrnl")
    made(source, tmp_path / "new")
    assert snapshot(source / "rhm" / "jrnl") == before


# ---- order, ids, transactions ----


def test_the_order_is_that_of_recovery(old: OldStore, path: Path, tmp_path: Path) -> None:
    for rid in (5, 3, 9, 1):
        old.queue("orders").enqueue(b"m%d" % rid, rid=rid)
    new = made(old.write(path), tmp_path / "new").path
    assert rids_of(new) == {"orders": [5, 3, 9, 1]}


@pytest.mark.parametrize("strange", [0, 1 << 63, (1 << 64) - 1])
def test_ids_that_qpidd_cannot_have_given_out_are_replaced(
    strange: int, old: OldStore, path: Path, tmp_path: Path
) -> None:
    orders, bills = old.queue("orders"), old.queue("bills")
    for rid in (7, strange, 8):
        orders.enqueue(b"m%d" % rid, rid=rid)
    bills.enqueue(b"bill", rid=7)
    orders.dequeue(8, xid=BRANCH, rid=20)
    old.prepared.enqueue(b"\1", xid=BRANCH)
    new = made(old.write(path), tmp_path / "new").path
    assert content_of(new).queues == content_of(path).queues
    assert rids_of(new) == {"bills": [5], "orders": [1, 2, 3]}  # 4 is the removal


def test_decided_transactions_keep_their_outcome(old: OldStore, path: Path, tmp_path: Path) -> None:
    orders = old.queue("orders")
    locked, gone, free = (orders.enqueue(data).header.rid for data in (b"locked", b"gone", b"free"))
    orders.dequeue(locked, xid=BRANCH)
    orders.dequeue(gone, xid=b"local")
    orders.dequeue(free, xid=b"never prepared")
    orders.enqueue(b"passing", xid=OTHER_BRANCH, rid=50)
    orders.dequeue(50, xid=OTHER_BRANCH)
    old.prepared.enqueue(b"\1", xid=BRANCH)
    old.prepared.enqueue(b"\0", xid=b"local")
    old.prepared.enqueue(b"\1", xid=OTHER_BRANCH)
    new = made(old.write(path), tmp_path / "new").path
    content = content_of(new)
    assert content.queues == {
        "orders": [(LOCKED, BRANCH, b"locked"), (LIVE, None, b"free"), (LOCKED, OTHER_BRANCH, b"passing")]
    }
    assert content.in_doubt == [(BRANCH, True, 0, 1), (OTHER_BRANCH, True, 1, 1)]


def test_branches_that_touched_no_queue_and_many_of_them(old: OldStore, path: Path, tmp_path: Path) -> None:
    old.prepared = type(old.prepared)(1, Geometry(4, 1 << 20), queue_name="TplStore", base_name="tpl")
    old.queue("orders").enqueue(b"m")
    branches = [encode_dtx_xid(9, b"gid%d" % number, b"b" * 100) for number in range(1000)]
    for branch in branches:
        old.prepared.enqueue(b"\1", xid=branch)
    new = made(old.write(path), tmp_path / "new").path
    assert content_of(new).in_doubt == [(branch, True, 0, 0) for branch in branches]
    assert_sound(new)


# ---- topology ----


def test_queues_without_a_catalogue_get_ids(old: OldStore, path: Path, tmp_path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    old.queue("bills")
    records = content_of(made(old.write(path), tmp_path / "new").path).records
    assert records == {2: Queue("orders"), 3: Queue("bills")}


def test_topology_stays_except_for_entries_dropped_in_recovery(old: OldStore, path: Path, tmp_path: Path) -> None:
    old.queue("orders")
    old.queues = {300: Queue("orders", owner="anonymous")}
    old.exchanges = {2: Exchange("x", True, "topic"), 700: Exchange("y", True, "direct")}
    old.bindings = [(2, Binding(300, "orders", key)) for key in ("a", "b")]
    old.bindings += [(700, Binding(300, "orders", "a")), (9, Binding(300, "orders", "stale"))]
    old.general = {4: GeneralObject("domain", "d")}
    before = content_of(old.write(path))
    assert len(before.bindings) == 3
    new = made(path, tmp_path / "new").path
    assert without_sequence(content_of(new)) == without_sequence(before)
    assert_sound(new)


@needs_programs
def test_a_large_catalogue(tmp_path: Path) -> None:
    """Enough that all trees have several levels, also those of one exchange's bindings."""
    queues = {number: Queue(f"queue.{number}", owner="o" * (number % 256)) for number in range(2, 10_002)}
    exchanges = {number: Exchange(f"exchange.{number}", True, "topic") for number in range(2, 2_002)}
    bindings = [
        (2 + number % 3, Binding(number, queue.name, key * 50)) for number, queue in queues.items() for key in "ab"
    ]
    general = {number: GeneralObject("domain", "d" * (number % 3000)) for number in range(2, 1_002)}
    files = encode_databases(queues, exchanges, [*bindings, *bindings], general, tool_environment().random_bits)
    directory = tmp_path / "dat"
    write_databases(OsWritableDisk(), str(directory), files)
    environment = read_environment(OsDisk(), str(directory))
    assert (environment.complete, environment.damage) == (True, ())

    def rows(records: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
        return sorted((number.to_bytes(8, "little"), record) for number, record in records)

    assert list(environment.queues) == rows((number, encode_queue(each)) for number, each in queues.items())
    assert list(environment.exchanges) == rows((number, encode_exchange(each)) for number, each in exchanges.items())
    assert list(environment.bindings) == rows((number, encode_binding(each)) for number, each in bindings)
    assert list(environment.general) == rows((number, encode_general(each)) for number, each in general.items())
    subprocess.run(["db5.3_verify", *directory.glob("*.db")], check=True, capture_output=True)
    subprocess.run(["db5.3_recover", "-h", directory], check=True, capture_output=True)
    assert read_environment(OsDisk(), str(directory)) == environment


def test_files_of_one_environment_have_ids_of_their_own() -> None:
    files = encode_databases({}, {}, [], {}, tool_environment().random_bits)
    assert len({content[52:72] for name, content in files.items() if name.endswith(".db")}) == 6


# ---- size ----


def test_a_geometry_is_made_legal() -> None:
    assert legal_geometry(Geometry(1, 4096)) == ONE_PAGE
    assert legal_geometry(Geometry(8, PAGE_SIZE + 512, 4096)) == Geometry.from_pages(8, 2)
    assert legal_geometry(Geometry.from_pages(64, 32768)) == Geometry.from_pages(64, 32767)
    assert legal_geometry(Geometry.from_pages(5, 24)) == Geometry.from_pages(5, 24)


@pytest.mark.parametrize("count", [1, 700, 1530, 1540, 5000])
def test_a_journal_is_as_large_as_it_has_to_be(count: int, old: OldStore, path: Path, tmp_path: Path) -> None:
    """Messages of one block each; 4 files of 512 take 1,536. What is left free is what enqueues leave free."""
    builder = old.queue("orders", Geometry(4, 1 << 20))
    for number in range(count):
        builder.enqueue(b"%d" % number)
    old.queues = {2: Queue("orders")}
    new = made(old.write(path), tmp_path / "new")
    geometry = new.watcher.results["orders"].geometry
    assert geometry.data_size == 1 << 20
    assert (geometry.files == 4) == (count * BLOCK_SIZE < 3 << 20)
    assert [data for *_, data in content_of(new.path).queues["orders"]] == [b"%d" % number for number in range(count)]
    _assert_takes_more(new.path / "rhm" / "jrnl" / journal_path("orders"))


def _assert_takes_more(directory: Path) -> None:
    """qpidd's rules let the journal be written on: a message more, and the removal of each."""
    journal = open_journal(OsDisk(), str(directory))
    recovery = JournalRecovery()
    state = state_of(journal, recovery, journal.walk(recovery))
    geometry = journal.files.geometry
    assert state.position + reserve_blocks(geometry) <= geometry.capacity // BLOCK_SIZE
    writer = Version1Writer("q", geometry, page=4096, clock=lambda: 0, state=state)
    rids = sorted(state.enqueued)
    for at, rid in enumerate(rids):
        writer.dequeue(rids[-1] + 1 + at, rid)
    writer.enqueue(rids[-1] + 1 + len(rids), [b"more"])
    journal.close()


def test_a_journal_grows_if_more_comes_than_was_counted(tmp_path: Path) -> None:
    environment = tool_environment()
    info = version_1_info(environment, "q", "/d", "JournalData", ONE_PAGE, 4096, 16)
    calls = []

    def fill(build: JournalBuild) -> None:
        calls.append(build)
        for rid in range(1, 6):
            build.message(rid, [b"m" * 100_000], BRANCH if rid == 3 else b"")
        build.removal(BRANCH, 6, 1)

    made = build_journal(environment, str(tmp_path / "q"), info, JournalContent(), fill)
    assert made.geometry == Geometry.from_pages(10, 1)
    assert len(calls) == 7
    journal = open_journal(OsDisk(), str(tmp_path / "q"))
    recovery = JournalRecovery()
    assert journal.walk(recovery) is not None
    assert [rid for rid, _, _ in recovery.messages.in_place_order()] == [1, 2, 4, 5]
    assert journal.damage + recovery.damage == []
    journal.close()


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60))
def test_plain_messages_are_laid_as_all_records_are(messages: list[tuple[int, bool]]) -> None:
    """Over all ends of files and laps, with flushes between them."""

    def ring() -> Version1Ring:
        return Version1Ring(Geometry(4, 4096), page=1024, clock=lambda: 5)

    def flushed(ring: Version1Ring) -> list[tuple[int, int, bytes]]:
        written = []
        while (step := ring.next_flush()) is not None:
            written += [(write.file, write.offset, bytes(write.content)) for write in step.writes]
            ring.flushed()
        return written

    fast, slow = ring(), ring()
    for rid, (size, flush) in enumerate(messages, 1):
        data = bytes(size)
        fast.enqueue(rid, data)
        slow.append(RecordHeader(Kind.ENQUEUE, 1, 0, rid, 0, size), b"", [data])
        assert fast.position == slow.position
        if flush:
            assert flushed(fast) == flushed(slow)
    assert flushed(fast) == flushed(slow)


def test_a_queue_that_is_too_large_for_any_journal_is_refused() -> None:
    most = Geometry.from_pages(64, 32767)
    assert fits(JournalContent(blocks=most.capacity // BLOCK_SIZE // 2), most)
    assert not fits(JournalContent(blocks=most.capacity // BLOCK_SIZE * 81 // 100), most)


def test_a_message_larger_than_the_ring(old: OldStore, path: Path, tmp_path: Path) -> None:
    """It goes round no ring: more files, and where the middle of it fills one no record begins in that."""
    data = bytes(range(256)) * 4096
    old.queue("orders", Geometry(8, 1 << 18)).enqueue(b"before")
    old.queue("orders").enqueue(data)
    old.queue("orders").enqueue(b"after")
    new = made(old.write(path), tmp_path / "new")
    assert [each for *_, each in content_of(new.path).queues["orders"]] == [b"before", data, b"after"]
    assert_sound(new.path)


# ---- names ----


@pytest.mark.parametrize(("name", "directory"), [("q1", "0008"), ("q2", "0009"), ("q3", "000a"), ("", "0000")])
def test_the_hash_of_a_name(name: str, directory: str) -> None:
    """The examples of formats/rhm/README.md, 1.3."""
    assert hash_directory(name) == directory


def test_bytes_count_as_signed() -> None:
    assert hash_directory("é") == f"{((-61 * 33 - 87) & 0xFFFFFFFF) % 29:04x}"
    assert hash_directory("a\0b") == hash_directory("a")


@pytest.mark.parametrize(
    "name",
    ["", "/", "..", ".", "a/../../b", "../etc/cron.d/x", "./a", "a/.", "a\0b", "n" * 256, "n" * 4096, "é" * 128],
)
def test_names_that_no_directory_can_have_are_refused(name: str) -> None:
    with pytest.raises(StoreError) as error:
        journal_path(name)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("name", ["a/b/c", "/a", "a//b", "..a", "a..", "...", "n" * 255, "é" * 127, " ", "\udcff"])
def test_names_with_slashes_are_paths(name: str) -> None:
    first, *rest = Path(journal_path(name)).parts
    assert (first, "/".join(rest)) == (hash_directory(name), "/".join(part for part in name.split("/") if part))


def test_queues_with_strange_names(old: OldStore, path: Path, tmp_path: Path) -> None:
    names = ["a/b/c", "a", "a/b", "ünïcode", "with space", 'quote"d', "line\nend", "0008/q1", "\udcff"]
    for name in names:
        old.queue(name).enqueue(name.encode("utf-8", "surrogateescape"))
    new = made(old.write(path), tmp_path / "new")
    assert content_of(new.path).queues == content_of(path).queues
    assert sorted(content_of(new.path).queues) == sorted(names)
    assert len(new.notices) == 2, "the quote, and the end of a line"


def test_two_queues_in_one_directory_are_refused(old: OldStore, path: Path, tmp_path: Path) -> None:
    twins = ((f"{number}//q", f"{number}/q") for number in range(1000))
    first, second = next(pair for pair in twins if journal_path(pair[0]) == journal_path(pair[1]))
    old.queue("one")
    old.queues = {2: Queue(first), 3: Queue(second)}
    with pytest.raises(StoreError, match="directory of another queue"):
        made(old.write(path), tmp_path / "new")


def test_nothing_is_written_outside(old: OldStore, path: Path, tmp_path: Path) -> None:
    old.queue("one")
    old.queues = {2: Queue("one"), 3: Queue("../../../../escaped")}
    old.write(path)
    with pytest.raises(StoreError, match="not the queue's own"):
        made(path, tmp_path / "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "store"]
    assert not list(tmp_path.rglob("escaped"))


def test_names_misread_by_qpidd_are_reported() -> None:
    assert why_misread("orders", "/var/lib/qpidd/rhm/jrnl/0000/orders") is None
    assert why_misread('a"b', "/d") is not None
    assert why_misread("a\nb", "/d") is not None
    assert why_misread("journal_version", "/d") is not None
    assert why_misread("id_string", "/d/id_string") is not None
    assert why_misread("q", "/d" * 500) is not None
    assert why_misread("directory", "/seconds/directory") is None


# ---- what cannot be read ----


def test_an_existing_store_is_not_touched(old: OldStore, path: Path) -> None:
    old.queue("orders").enqueue(b"m")
    before = snapshot(old.write(path))
    opened = open_store(OsDisk(), str(path))
    with pytest.raises(FileExistsError):
        build_version_1(str(path), opened.recover(), Watcher())
    opened.close()
    assert snapshot(path) == before
