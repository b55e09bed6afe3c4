"""`qpid-qls-analyze` on the stores of a real qpidd: what it shows is what that qpidd recovered."""

from __future__ import annotations

import re
from typing import Final

import pytest

from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage
from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import open_store
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader
from tests.support.fixtures import LINEAR_STORES, StoreFixture, StoreOpener, snapshot
from tests.tools.qls_analyze_runs import Run, command

EVERYTHING: Final = (
    "--efp",
    "--show-all-recs",
    "--show-recovered-recs",
    "--show-data",
    "--show-xids",
    "--stats",
)


@pytest.fixture(scope="module", params=LINEAR_STORES)
def store(request: pytest.FixtureRequest, open_fixture: StoreOpener) -> StoreFixture:
    return open_fixture(request.param)


def enqueued(run: Run, name: str) -> int:
    first = run.report(name)[0].split()[0]
    return 0 if first == "No" else int(first)


def test_remaining_messages_match_those_recovered_by_qpidd(store: StoreFixture) -> None:
    """A restarted linearstore commits what is prepared and drops what is not: --txn says so."""
    result = command("--txn", store.path / "qls")
    assert (result.code, result.err) == (0, "")
    recovered = {queue["name"]: len(queue["messages"]) for queue in store.recovered["queues"]}
    assert {name: enqueued(result, name) for name in recovered} == recovered
    for name in recovered:
        assert result.report(name)[1] == "No outstanding transactions found."
        assert sum(count for _, count in result.files(name)) == recovered[name]


def test_every_option_at_once(store: StoreFixture) -> None:
    """Records, fillers and counts agree, everything is reported, and nothing is changed."""
    before = snapshot(store.path)
    result = command(*EVERYTHING, store.path / "qls")
    assert snapshot(store.path) == before
    assert (result.code, result.err) == (0, "")
    assert result.is_complete
    for name in (place.name for place in open_store(OsDisk(), str(store.path)).journals):
        counts = result.counts(name)
        walked = [line for line in result.walked(name) if line and "[F v=2" not in line]
        walked = [line for line in walked if "filler records required" not in line]
        torn = [line for line in walked if "[INVALID RECORD TAIL]" in line]
        letters = [line.split(": [", 1)[1][0] for line in walked if line not in torn]
        assert counts["Total record count"] == len(walked)
        assert counts["Filler_record_count"] == letters.count("X")
        assert counts["Enqueue_count"] == letters.count("E")
        assert counts["Dequeue_count"] == letters.count("D")
        assert counts["Transaction_commit_count"] == letters.count("C")
        assert counts["Transaction_abort_count"] == letters.count("A")
        assert len(torn) == (store.name == "linear-c-midcommit1")
        assert enqueued(result, name) == len([line for line in result.report(name) if line.startswith("  0x")])


def all_records(journal: Journal) -> list[tuple[int, RecordHeader]]:
    """Place and header of each record but fillers, as the store's own reader meets them."""

    class Sink:
        def __init__(self) -> None:
            self.met: list[tuple[int, RecordHeader]] = []

        def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
            raise AssertionError("every record was asked for")

        def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
            raise AssertionError("every record was asked for")

        def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
            if header.kind is not Kind.FILLER:
                self.met.append((place, header))

        def damaged(self, damage: Damage) -> None:
            raise AssertionError(damage)

    sink = Sink()
    journal.walk(sink, every_record=True)
    journal.close()
    return sink.met


def test_records_stand_where_the_reader_finds_them(store: StoreFixture) -> None:
    """The reader of the store, which is other code, meets the same records with the same ids at the same places."""
    result = command("--show-recovery-recs", store.path / "qls")
    pattern = re.compile(r"0x([0-9a-f]+):0x([0-9a-f]{8}): \[([EDCA]) v=2 f=0x[0-9a-f]{4} rid=0x([0-9a-f]+)\]")
    for journal in open_store(OsDisk(), str(store.path)).journals:
        shown = [found.groups() for line in result.walked(journal.name) if (found := pattern.match(line))]
        met = []
        for place, header in all_records(journal):
            file, offset = journal.stream.locate(place)
            met.append((f"{file.number:x}", f"{offset:08x}", header.kind.label[0].upper(), f"{header.rid:x}"))
        torn = len(shown) - len(met)
        assert torn == (store.name == "linear-c-midcommit1")
        assert shown[: len(met)] == met


def test_a_commit_that_was_interrupted_before_it_was_prepared(open_fixture: StoreOpener) -> None:
    result = command(open_fixture("linear-c-midcommit1").path / "qls")
    assert result.reconciliation[0] == "Transaction Prepared List (TPL) contains 0 open transaction(s):"
    ignored = [line for line in result.reconciliation if line.endswith(" - Ignoring, not in prepared transaction list")]
    assert len(ignored) == 2
    assert result.report("c.q1")[1] == "1 outstanding transaction(s)."
    assert result.files("c.q1") == [("0x1", 156)]


def test_distributed_transactions_in_doubt(open_fixture: StoreOpener) -> None:
    """In the order of the prepared list; each id is the 0-10 encoding, last byte first."""
    result = command(open_fixture("linear-d-dtx").path / "qls")
    xids = [f"xid(26)='0x3{n}7001002d7262073{n}702d6469672d7866090b00000000070406'" for n in (1, 2, 3)]
    assert result.reconciliation == [
        "Transaction Prepared List (TPL) contains 3 open transaction(s):",
        *(f"  {xid} [Prepared, neither committed nor aborted - assuming commit]" for xid in xids),
        "Open transactions found in queues:",
        "d.q1 contains 2 open transaction(s):",
        f"  {xids[0]} - Assuming commit after prepare",
        f"  {xids[1]} - Assuming commit after prepare",
        "d.q2 contains 1 open transaction(s):",
        f"  {xids[0]} - Assuming commit after prepare",
        "d.q3 contains 1 open transaction(s):",
        f"  {xids[2]} - Assuming commit after prepare",
        "Creating commit records for the following prepared transactions in TPL:",
        *(f"  {xid}" for xid in xids),
    ]


def test_pools(store: StoreFixture) -> None:
    lines = command("--efp", store.path / "qls").lines
    row = next(line for line in lines if line.endswith(f"{store.path}/qls/p001"))
    assert row.split()[:4] == ["1", "2" if store.name == "linear-a-clean" else "1", "0", "0"]
    taken = {
        path.parent.parent.name.removesuffix("k"): len(list(path.parent.iterdir()))
        for path in (store.path / "qls").glob("p001/efp/*k/in_use/*.jrnl")
    }
    rows = [line.split() for line in lines if f"{store.path}/qls/p001/efp/" in line]
    assert {row[0]: int(row[3]) for row in rows} == taken
    assert [int(row[0]) for row in rows] == sorted(map(int, taken))
    assert all(row[1:3] == ["0", "0"] and row[5:7] == ["0", "0"] for row in rows)
    assert all(int(row[4]) == int(row[0]) * int(row[3]) for row in rows)
