"""Records cut out of qpidd's stores, byte by byte: what is left resolves as the formats page says, section 8.3.

The broker took record ids from one counter, and in these three stores they ascend in every journal. So "the broker was
killed while it wrote record N" is: of record N the first bytes are there, and of every later one nothing, in any
journal. `HISTORIES` tells what each transaction did; `CUTS` is the table of section 8.3, once for each record of it
that these stores have.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formats.rhm.geometry import SECTOR_SIZE
from formats.rhm.records import COMMIT_DECISION, TAIL_SIZE, Kind, RecordHeader
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

FLAGS_OFFSET: Final = 6
NEVER: Final = 1 << 63  # a record id that none has: nothing is cut

# States of a transaction that is over, besides the four that the dump shows.
COMMITTED, ABORTED = "committed", "aborted"
IN_DOUBT, COMMITTING, ABORTING, UNPREPARED = "in-doubt", "committing", "aborting", "unprepared"


class Transaction(NamedTuple):
    """One transaction: its kind, its first record id, how it ended, and its messages by queue."""

    kind: str
    first: int
    end: str
    enqueues: Mapping[str, Iterable[int]]
    dequeues: Mapping[str, Iterable[int]]


class History(NamedTuple):
    """What a store was told: messages of each queue before all transactions, the transactions in order, and last
    the messages that followed them, by record id."""

    first: Mapping[str, int]
    transactions: Mapping[str, Transaction]
    last: Mapping[int, tuple[str, int]]


HISTORIES: Final = {
    "legacy-c-localtx": History(
        {"c.q1": 12, "c.q2": 12},
        {
            "tx1": Transaction("local", 25, COMMITTED, {"c.q1": range(100, 105)}, {"c.q1": range(3)}),
            "tx3": Transaction(
                "local", 37, COMMITTED, {"c.q1": range(120, 123), "c.q2": range(120, 123)}, {"c.q2": range(4)}
            ),
        },
        {52: ("c.q1", 130), 53: ("c.q2", 130)},
    ),
    "legacy-c-midcommit3": History(
        {"c.q1": 50, "c.q2": 50},
        {
            "tx": Transaction(
                "local",
                101,
                COMMITTED,
                {"c.q1": range(1000, 2200), "c.q2": range(1000, 2200)},
                {"c.q1": range(25)},
            )
        },
        {},
    ),
    "legacy-d-dtx": History(
        {"d.q1": 10, "d.q2": 10, "d.q3": 10},
        {
            "p1": Transaction(
                "dtx", 31, IN_DOUBT, {"d.q1": range(100, 103), "d.q2": [100]}, {"d.q1": range(2), "d.q2": [0]}
            ),
            "p2": Transaction("dtx", 39, IN_DOUBT, {}, {"d.q1": range(2, 5)}),
            "p3": Transaction("dtx", 43, IN_DOUBT, {"d.q3": range(300, 305)}, {}),
            "c1": Transaction("dtx", 49, COMMITTED, {"d.q2": range(200, 203)}, {"d.q2": [1, 2]}),
            "r1": Transaction("dtx", 58, ABORTED, {"d.q2": range(210, 213)}, {"d.q2": [3, 4]}),
            "o1": Transaction("local", 67, COMMITTED, {"d.q3": [320, 321]}, {"d.q3": [0]}),
        },
        {74: ("d.q1", 150)},
    ),
}


class Cut(NamedTuple):
    """The kill came while record `rid`, of `kind` in journal `journal`, was written for `transaction`: which is in the
    state `torn` if the record is not whole, `whole` if it is."""

    store: str
    rid: int
    kind: Kind
    journal: str
    transaction: str
    torn: str
    whole: str


def _cuts(store: str, *rows: tuple[int, Kind, str, str, str, str]) -> list[Cut]:
    return [Cut(store, *row) for row in rows]


CUTS: Final = [
    *_cuts(
        "legacy-c-localtx",
        # not in the TPL: dropped; enqueue only, local: committed
        (33, Kind.ENQUEUE, "tpl", "tx1", UNPREPARED, COMMITTING),
        (34, Kind.DEQUEUE, "tpl", "tx1", COMMITTING, COMMITTING),
        (35, Kind.COMMIT, "c.q1", "tx1", COMMITTING, COMMITTING),
        (36, Kind.COMMIT, "tpl", "tx1", COMMITTING, COMMITTED),
        (47, Kind.ENQUEUE, "tpl", "tx3", UNPREPARED, COMMITTING),
        (48, Kind.DEQUEUE, "tpl", "tx3", COMMITTING, COMMITTING),
        (49, Kind.COMMIT, "c.q1", "tx3", COMMITTING, COMMITTING),
        (50, Kind.COMMIT, "c.q2", "tx3", COMMITTING, COMMITTING),
        (51, Kind.COMMIT, "tpl", "tx3", COMMITTING, COMMITTED),
    ),
    *_cuts(
        "legacy-c-midcommit3",
        (2526, Kind.ENQUEUE, "tpl", "tx", UNPREPARED, COMMITTING),
        (2527, Kind.DEQUEUE, "tpl", "tx", COMMITTING, COMMITTING),
        (2528, Kind.COMMIT, "c.q1", "tx", COMMITTING, COMMITTING),
        (2529, Kind.COMMIT, "c.q2", "tx", COMMITTING, COMMITTING),
        (2530, Kind.COMMIT, "tpl", "tx", COMMITTING, COMMITTED),
    ),
    *_cuts(
        "legacy-d-dtx",
        # enqueue only, distributed: in doubt
        (38, Kind.ENQUEUE, "tpl", "p1", UNPREPARED, IN_DOUBT),
        (42, Kind.ENQUEUE, "tpl", "p2", UNPREPARED, IN_DOUBT),
        (48, Kind.ENQUEUE, "tpl", "p3", UNPREPARED, IN_DOUBT),
        # enqueue and dequeue flagged to commit: completed
        (54, Kind.ENQUEUE, "tpl", "c1", UNPREPARED, IN_DOUBT),
        (55, Kind.DEQUEUE, "tpl", "c1", IN_DOUBT, COMMITTING),
        (56, Kind.COMMIT, "d.q2", "c1", COMMITTING, COMMITTING),
        (57, Kind.COMMIT, "tpl", "c1", COMMITTING, COMMITTED),
        # enqueue and dequeue not flagged: aborted
        (63, Kind.ENQUEUE, "tpl", "r1", UNPREPARED, IN_DOUBT),
        (64, Kind.DEQUEUE, "tpl", "r1", IN_DOUBT, ABORTING),
        (65, Kind.ABORT, "d.q2", "r1", ABORTING, ABORTING),
        (66, Kind.ABORT, "tpl", "r1", ABORTING, ABORTED),
        # committed in one phase: local
        (70, Kind.ENQUEUE, "tpl", "o1", UNPREPARED, COMMITTING),
        (71, Kind.DEQUEUE, "tpl", "o1", COMMITTING, COMMITTING),
        (72, Kind.COMMIT, "d.q3", "o1", COMMITTING, COMMITTING),
        (73, Kind.COMMIT, "tpl", "o1", COMMITTING, COMMITTED),
    ),
]
cut_id = "{0.store}-{0.rid}-{0.transaction}".format


# ---- what is to be expected ----

Messages = dict[str, list[tuple[int, str]]]
Transactions = list[tuple[str, str]]


def expected_messages(history: History, states: Mapping[str, str], rid: int) -> Messages:
    """Each queue's messages and their states, with the transactions in `states` and nothing from `rid` on."""
    queues = {queue: dict.fromkeys(range(count), "outstanding") for queue, count in history.first.items()}
    for name, state in states.items():
        transaction = history.transactions[name]
        for queue, numbers in transaction.dequeues.items():
            for number in numbers:
                if state in (COMMITTED, COMMITTING):
                    del queues[queue][number]
                elif state == IN_DOUBT:
                    queues[queue][number] = "in-doubt-dequeue"
        for queue, numbers in transaction.enqueues.items():
            if state in (COMMITTED, COMMITTING):
                queues[queue].update(dict.fromkeys(numbers, "outstanding"))
            elif state == IN_DOUBT:
                queues[queue].update(dict.fromkeys(numbers, "in-doubt-enqueue"))
    for last, (queue, number) in history.last.items():
        if last < rid:
            queues[queue][number] = "outstanding"
    return {queue: list(messages.items()) for queue, messages in queues.items()}


def states_before(history: History, rid: int) -> dict[str, str]:
    """How the transactions stand that began before record `rid`, if all of them came to their end."""
    return {name: transaction.end for name, transaction in history.transactions.items() if transaction.first < rid}


def expected_transactions(history: History, states: Mapping[str, str]) -> Transactions:
    """Kind and state of each transaction that is not over."""
    return sorted(
        (history.transactions[name].kind, state) for name, state in states.items() if state not in (COMMITTED, ABORTED)
    )


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


@pytest.mark.parametrize("cut", CUTS, ids=cut_id)
def test_cut_at_the_ends_of_each_part(factories: dict[str, CopyFactory], cut: Cut) -> None:
    header = find(factories[cut.store], cut.rid, cut.kind, cut.journal).header
    for keep, fill in (
        (0, 0),
        (header.header_size, 0xFF),
        (header.tail_offset, 0),
        (tail_end(header) - TAIL_SIZE + 4, 0xFF),
        (tail_end(header) - 1, 0xFF),
        (tail_end(header), 0),
    ):
        check_cut(factories[cut.store], cut, keep, fill)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.sampled_from(CUTS), keep=st.integers(0, SECTOR_SIZE), fill=st.sampled_from([0, 0xFF]))
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
    """The TPL's dequeue is there, and no queue has its commit or abort yet: the dequeue's flag tells which it is."""
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
    """Later flushes are whole, so this is no torn tail: it is told, and what follows is read all the same."""
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
