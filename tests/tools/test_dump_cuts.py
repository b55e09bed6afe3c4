"""Records cut out of qpidd's stores, byte by byte: what is left resolves as formats/rhm/README.md, 6.2, says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import SECTOR_SIZE
from qstore.formats.rhm.records import COMMIT_DECISION, TAIL_SIZE, Kind, RecordHeader
from tests.support.dump import Dump, dump
from tests.support.fixtures import (
    CopyFactory,
    CopyOpener,
    PlacedRecord,
    StoreCopy,
    StoreOpener,
    records_of,
    written_files,
)
from tests.support.profiles import examples, today
from tests.tools.transaction_histories import (
    ABORTING,
    COMMITTING,
    CUTS,
    HISTORIES,
    NEVER,
    UNPREPARED,
    Cut,
    History,
    Messages,
    cut_id,
    expected_messages,
    expected_transactions,
    states_before,
)

FLAGS_OFFSET: Final = 6
LARGE: Final = "legacy-c-midcommit3"  # 2,475 messages: a dump of it takes ten times as long as of the others


def check(dumped: Dump, history: History, states: Mapping[str, str], rid: int = NEVER) -> None:
    """Hold a dump against the expectation: messages in order, their states, the counts, the transactions."""
    expected = expected_messages(history, states, rid)
    shown: Messages = {queue: [] for queue in expected}
    for line in dumped.lines("message"):
        shown[line["queue"]].append((line["headers"]["sn"], line["state"]))
    assert shown == expected
    deliverable = {queue: sum(state == "outstanding" for _, state in messages) for queue, messages in expected.items()}
    assert {line["name"]: line["messages"] for line in dumped.lines("queue")} == deliverable
    lines = dumped.lines("transaction")
    assert sorted((line["type"], line["state"]) for line in lines) == expected_transactions(history, states)


# ---- cutting ----


@cache
def records_by_file(root: Path) -> dict[Path, list[PlacedRecord]]:
    """Each written journal file of a store, by its path below `root`, and its records; their data left out."""
    return {
        file.relative_to(root): [record._replace(data=b"") for record in records_of(file)]
        for file in written_files(root)
    }


def tail_end(header: RecordHeader) -> int:
    """Bytes of a record without its padding."""
    return header.tail_offset + (TAIL_SIZE if header.has_tail else 0)


def crash_at(factory: CopyFactory, copy: StoreCopy, rid: int, keep: int, fill: int) -> bool:
    """Cut off record `rid` after `keep` bytes, and every later one at its beginning.

    Args:
        factory: where the copy came from.
        copy: the store to change.
        rid: the record that was being written.
        keep: how many bytes of it are there.
        fill: what stands in the rest of its flush, 0 or 0xff; beyond, all is zero.

    Returns:
        Whether the record is whole nevertheless.
    """
    whole = False
    for relative, records in records_by_file(factory.source.path).items():
        first = next((record for record in records if record.header.rid >= rid), None)
        if first is None:
            continue
        content = (copy.path / relative).read_bytes()
        cut, flush_end = first.offset, first.offset
        if first.header.rid == rid:
            cut += keep
            flush_end = (first.offset + first.header.size + SECTOR_SIZE - 1) & -SECTOR_SIZE
        changed = content[:cut] + bytes([fill]) * (flush_end - cut)
        changed += bytes(len(content) - len(changed))
        if first.header.rid == rid:
            end = first.offset + tail_end(first.header)
            whole = changed[first.offset : end] == content[first.offset : end]
        copy.replace(copy.path / relative, changed)
    return whole


def cut_flush(factory: CopyFactory, copy: StoreCopy, record: PlacedRecord, keep: int, fill: int) -> Path:
    """Overwrite the rest of one flush after `keep` bytes of `record`, and leave what follows it; the file's path."""
    file = copy.path / record.file.relative_to(factory.source.path)
    content = file.read_bytes()
    flush_end = (record.offset + record.header.size + SECTOR_SIZE - 1) & -SECTOR_SIZE
    start = record.offset + keep
    copy.replace(file, content[:start] + bytes([fill]) * (flush_end - start) + content[flush_end:])
    return file


def find(factory: CopyFactory, rid: int, kind: Kind, journal: str) -> PlacedRecord:
    """The one record of that rid and kind in a journal."""
    (record,) = (
        record
        for file, records in records_by_file(factory.source.path).items()
        for record in records
        if (record.header.rid, record.header.kind, file.parent.name) == (rid, kind, journal)
    )
    return record


@contextmanager
def journals_of(factory: CopyFactory) -> Iterator[StoreCopy]:
    """A private copy without the Berkeley DB files, whose recovery would take most of the time: the journals know
    their queues' names."""
    with factory.copy() as copy:
        shutil.rmtree(copy.path / "rhm" / "dat")
        yield copy


def dump_copy(copy: StoreCopy) -> Dump:
    return dump(copy.path, "--outstanding", "--json", "--body", "none")


def check_cut(factory: CopyFactory, cut: Cut, keep: int, fill: int) -> None:
    history = HISTORIES[cut.store]
    with journals_of(factory) as copy:
        whole = crash_at(factory, copy, cut.rid, keep, fill)
        dumped = dump_copy(copy)
    states = {**states_before(history, cut.rid), cut.transaction: cut.whole if whole else cut.torn}
    assert dumped.code == 0, dumped.errors  # a torn tail is no damage
    assert dumped.lines("damage") == []
    check(dumped, history, states, cut.rid)


@pytest.fixture(scope="module")
def factories(copies: CopyOpener) -> dict[str, CopyFactory]:
    return {name: copies(name) for name in HISTORIES}


# ---- tests ----


@pytest.mark.parametrize("name", HISTORIES)
def test_the_histories_are_those_of_the_manifests(open_fixture: StoreOpener, name: str) -> None:
    history, store = HISTORIES[name], open_fixture(name)
    states = {transaction: history.transactions[transaction].end for transaction in history.transactions}
    expected = expected_messages(history, states, NEVER)
    outstanding = {
        queue: [number for number, state in messages if state == "outstanding"] for queue, messages in expected.items()
    }
    assert outstanding == store.sequence_numbers()
    check(dump(store.path, "--outstanding", "--json", "--body", "none"), history, states)


@pytest.mark.parametrize("cut", CUTS, ids=cut_id)
def test_the_table_names_the_records(factories: dict[str, CopyFactory], cut: Cut) -> None:
    factory = factories[cut.store]
    assert find(factory, cut.rid, cut.kind, cut.journal).xid
    for records in records_by_file(factory.source.path).values():
        rids = [record.header.rid for record in records]
        assert rids == sorted(rids)


@pytest.mark.parametrize("cut", today(CUTS, -(-len(CUTS) // 2)), ids=cut_id)
def test_cut_at_the_ends_of_each_part(factories: dict[str, CopyFactory], cut: Cut) -> None:
    header = find(factories[cut.store], cut.rid, cut.kind, cut.journal).header
    places = [
        (0, 0),
        (tail_end(header) - 1, 0xFF),
        (tail_end(header), 0),
        (header.header_size, 0xFF),
        (header.tail_offset, 0),
        (tail_end(header) - TAIL_SIZE + 4, 0xFF),
    ]
    for keep, fill in places[: 3 if cut.store == LARGE else 6]:
        check_cut(factories[cut.store], cut, keep, fill)


@examples(60, suppress=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.sampled_from([cut for cut in CUTS if cut.store != LARGE]),
    keep=st.integers(0, SECTOR_SIZE),
    fill=st.sampled_from([0, 0xFF]),
)
def test_cut_anywhere(factories: dict[str, CopyFactory], cut: Cut, keep: int, fill: int) -> None:
    factory = factories[cut.store]
    size = find(factory, cut.rid, cut.kind, cut.journal).header.size
    check_cut(factory, cut, keep % (size + 1), fill)


@pytest.mark.parametrize(
    ("store", "decision", "crash", "transaction", "state"),
    [
        ("legacy-c-localtx", 34, 35, "tx1", ABORTING),
        ("legacy-c-localtx", 48, 49, "tx3", ABORTING),
        ("legacy-c-midcommit3", 2527, 2528, "tx", ABORTING),
        ("legacy-d-dtx", 55, 56, "c1", ABORTING),
        ("legacy-d-dtx", 64, 65, "r1", COMMITTING),
        ("legacy-d-dtx", 71, 72, "o1", ABORTING),
    ],
)
def test_the_flag_decides(
    factories: dict[str, CopyFactory], store: str, decision: int, crash: int, transaction: str, state: str
) -> None:
    """The TPL's dequeue is there, and no queue has its commit or abort yet: the dequeue's flag says which it is."""
    history, factory = HISTORIES[store], factories[store]
    record = find(factory, decision, Kind.DEQUEUE, "tpl")
    with journals_of(factory) as copy:
        crash_at(factory, copy, crash, 0, 0)
        file = copy.path / record.file.relative_to(factory.source.path)
        content = bytearray(file.read_bytes())
        content[record.offset + FLAGS_OFFSET] ^= COMMIT_DECISION
        copy.replace(file, bytes(content))
        dumped = dump_copy(copy)
    assert dumped.code == 0, dumped.errors
    check(dumped, history, {**states_before(history, crash), transaction: state}, crash)


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut.rid in (47, 49, 38, 56, 64, 72)], ids=cut_id)
def test_counts_of_an_open_transaction(factories: dict[str, CopyFactory], cut: Cut) -> None:
    """While no queue has its commit or abort, all its enqueues and dequeues are open; its xid is that on disk."""
    factory = factories[cut.store]
    with journals_of(factory) as copy:
        crash_at(factory, copy, cut.rid, 0, 0)
        dumped = dump_copy(copy)
    transaction = HISTORIES[cut.store].transactions[cut.transaction]
    xid = find(factory, cut.rid, cut.kind, cut.journal).xid
    (line,) = [line for line in dumped.lines("transaction") if line["xid"] == xid.hex()]
    assert (line["type"], line["state"]) == (transaction.kind, cut.torn)
    assert line["enqueues"] == sum(len(list(numbers)) for numbers in transaction.enqueues.values())
    assert line["dequeues"] == sum(len(list(numbers)) for numbers in transaction.dequeues.values())


@pytest.mark.parametrize(("keep", "fill"), [(0, 0), (0, 0xFF), (4, 0), (30, 0xFF), (45, 0)])
@pytest.mark.parametrize(
    ("store", "rid", "kind", "journal", "changed"),
    [
        # A decided transaction whose end is lost in the TPL: it would be completed once more.
        ("legacy-d-dtx", 57, Kind.COMMIT, "tpl", {"c1": COMMITTING}),
        ("legacy-d-dtx", 66, Kind.ABORT, "tpl", {"r1": ABORTING}),
        # A dequeue lost in the TPL, and the end that followed it is there: closed.
        ("legacy-d-dtx", 55, Kind.DEQUEUE, "tpl", {}),
        ("legacy-d-dtx", 64, Kind.DEQUEUE, "tpl", {}),
        # The TPL is done with it, and a queue is not: dropped there.
        ("legacy-d-dtx", 56, Kind.COMMIT, "d.q2", {"c1": UNPREPARED}),
        ("legacy-c-localtx", 35, Kind.COMMIT, "c.q1", {"tx1": UNPREPARED}),
        # The TPL does not know it any more.
        ("legacy-d-dtx", 38, Kind.ENQUEUE, "tpl", {"p1": UNPREPARED}),
        ("legacy-d-dtx", 48, Kind.ENQUEUE, "tpl", {"p3": UNPREPARED}),
    ],
)
def test_a_flush_destroyed_in_the_middle_is_damage(
    factories: dict[str, CopyFactory],
    store: str,
    rid: int,
    kind: Kind,
    journal: str,
    changed: dict[str, str],
    keep: int,
    fill: int,
) -> None:
    """Later flushes are whole, so this is not a torn tail: it is reported, and what follows is read nevertheless."""
    history, factory = HISTORIES[store], factories[store]
    record = find(factory, rid, kind, journal)
    with journals_of(factory) as copy:
        file = cut_flush(factory, copy, record, keep, fill)
        dumped = dump_copy(copy)
    assert dumped.code == 1
    (damage,) = dumped.lines("damage")
    assert damage["file"].endswith(str(file.relative_to(copy.path)))
    assert damage["offset"] == record.offset
    assert damage["what"]
    assert damage["consequence"]
    check(dumped, history, {**states_before(history, NEVER), **changed})


def test_without_the_prepared_list_nothing_was_prepared(factories: dict[str, CopyFactory]) -> None:
    store = "legacy-d-dtx"
    history, factory = HISTORIES[store], factories[store]
    with journals_of(factory) as copy:
        for file in (copy.path / "rhm" / "tpl").iterdir():
            file.unlink()
        (copy.path / "rhm" / "tpl").rmdir()
        dumped = dump_copy(copy)
    check(
        dumped,
        history,
        {**states_before(history, NEVER), "p1": UNPREPARED, "p2": UNPREPARED, "p3": UNPREPARED},
    )
