"""`qpid-qls-analyze`: maps, open transactions, reconciliation (formats/qls/README.md, 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.formats.rhm.records import COMMIT_DECISION, TRANSIENT
from qstore.tools.qpid_qls_analyze import Show
from tests.support.linear_builder import LinearBuilder
from tests.tools.qls_analyze_runs import Run, analysed, command, written

PREPARED = "[Prepared, neither committed nor aborted - assuming commit]"
COMMITTING = "[Prepared, but interrupted during commit phase]"
ABORTING = "[Prepared, but interrupted during abort phase]"


def queue(name: str = "q", *xids: bytes, first: int = 100) -> LinearBuilder:
    """Two messages outside of transactions; one in each of `xids`, the first of which takes the first message."""
    builder = LinearBuilder(name, data_size=8)
    builder.enqueue(first, b"a")
    builder.enqueue(first + 1, b"b")
    for number, xid in enumerate(xids):
        builder.enqueue(first + 10 + number, b"tx", xid=xid)
    if xids:
        builder.dequeue(first + 50, first, xid=xids[0])
    builder.flush()
    return builder


def prepared_list(*parts: tuple[bytes, bool | None]) -> LinearBuilder:
    """Transactions, each with the decision; None for none."""
    builder = LinearBuilder("TplStore", data_size=8)
    for rid, (xid, decision) in enumerate(parts, start=1):
        builder.enqueue(rid, b"\1", xid=xid)
        if decision is not None:
            builder.dequeue(50 + rid, rid, xid=xid, flags=COMMIT_DECISION if decision else 0)
    builder.flush()
    return builder


def recovered(run: Run, name: str = "q") -> list[int]:
    """The rids of the records that remain."""
    lines = run.report(name)
    return [int(line.partition("rid=0x")[2].partition("]")[0], 16) for line in lines if line.startswith("  0x")]


# ---- reconciliation ----


@pytest.mark.parametrize(
    ("decision", "in_list", "in_queue", "rids"),
    [
        (None, PREPARED, "Assuming commit after prepare", [101, 110]),
        (True, COMMITTING, "Completing interrupted commit operation", [101, 110]),
        (False, ABORTING, "Completing interrupted abort operation", [100, 101]),
    ],
)
def test_a_prepared_transaction(
    tmp_path: Path, decision: bool | None, in_list: str, in_queue: str, rids: list[int]
) -> None:
    qls = written(tmp_path, prepared_list((b"x1", decision)), queue("q", b"x1"))
    result = command("--show-recovered-recs", qls)
    assert result.code == 0
    assert result.reconciliation == [
        "Transaction Prepared List (TPL) contains 1 open transaction(s):",
        f"  xid(2)='\"x1\"' {in_list}",
        "Open transactions found in queues:",
        "q contains 1 open transaction(s):",
        f"  xid(2)='\"x1\"' - {in_queue}",
        "Creating commit records for the following prepared transactions in TPL:",
        "  xid(2)='\"x1\"'",
    ]
    assert recovered(result) == [100, 101]
    assert [line.endswith(" [LOCKED]") for line in result.report()[1:3]] == [True, False]
    assert result.files() == [("0x1", 3)]
    operations = 1 if decision is None else 2
    assert f"  xid(2)='\"x1\"' containing {operations} operations:" in result.report("tpl2")
    resolved = command("--show-recovered-recs", "--txn", qls)
    assert resolved.reconciliation == result.reconciliation
    assert recovered(resolved) == rids
    assert not any(line.endswith(" [LOCKED]") for line in resolved.lines)
    assert resolved.files() == [("0x1", 2)]
    for name in ("q", "tpl2"):
        assert "No outstanding transactions found." in resolved.report(name)
    assert resolved.report("tpl2")[0] == "No enqueued records found."
    assert resolved.files("tpl2") == [("0x1", 0)]


def test_a_transaction_that_was_never_prepared(tmp_path: Path) -> None:
    qls = written(tmp_path, queue("q", b"x1"))
    result = command(qls)
    assert result.reconciliation == [
        "Transaction Prepared List (TPL) contains 0 open transaction(s):",
        "Open transactions found in queues:",
        "q contains 1 open transaction(s):",
        "  xid(2)='\"x1\"' - Ignoring, not in prepared transaction list",
    ]
    assert recovered(command("--show-recovered-recs", "--txn", qls)) == [100, 101]


def test_a_transaction_that_was_completed_in_the_list_is_not_in_it(tmp_path: Path) -> None:
    prepared = prepared_list((b"x1", True), (b"x2", False))
    prepared.commit(80, b"x1")
    prepared.abort(81, b"x2")
    qls = written(tmp_path, prepared, queue("q", b"x1"))
    lines = command(qls).reconciliation
    assert lines[0] == "Transaction Prepared List (TPL) contains 0 open transaction(s):"
    assert lines[-1].endswith(" - Ignoring, not in prepared transaction list")


def test_many_transactions_come_in_the_order_of_their_first_records(tmp_path: Path) -> None:
    parts = [(b"x2", None), (b"x1", True), (b"x9", False), (b"x3", None)]
    qls = written(
        tmp_path,
        prepared_list(*parts),
        queue("q1", b"x3", b"x8", b"x1"),
        queue("q2", b"x9", b"x2", first=300),
        queue("q3", first=500),
    )
    result = command(qls)
    assert [line.split() for line in result.reconciliation if line.startswith("  ") or " contains " in line] == [
        line.split()
        for line in (
            "Transaction Prepared List (TPL) contains 4 open transaction(s):",
            f"xid(2)='\"x2\"' {PREPARED}",
            f"xid(2)='\"x1\"' {COMMITTING}",
            f"xid(2)='\"x9\"' {ABORTING}",
            f"xid(2)='\"x3\"' {PREPARED}",
            "q1 contains 3 open transaction(s):",
            "xid(2)='\"x3\"' - Assuming commit after prepare",
            "xid(2)='\"x8\"' - Ignoring, not in prepared transaction list",
            "xid(2)='\"x1\"' - Completing interrupted commit operation",
            "q2 contains 2 open transaction(s):",
            "xid(2)='\"x9\"' - Completing interrupted abort operation",
            "xid(2)='\"x2\"' - Assuming commit after prepare",
            *(f"xid(2)='\"{xid.decode()}\"'" for xid, _ in parts),
        )
    ]
    resolved = command("--txn", "--show-recovered-recs", qls)
    assert recovered(resolved, "q1") == [101, 110, 112]
    assert recovered(resolved, "q2") == [300, 301, 311]
    assert recovered(resolved, "q3") == [500, 501]


def test_a_prepared_transaction_that_no_queue_knows(tmp_path: Path) -> None:
    result = command(written(tmp_path, prepared_list((b"x1", None)), queue("q")))
    assert result.reconciliation == [
        "Transaction Prepared List (TPL) contains 1 open transaction(s):",
        f"  xid(2)='\"x1\"' {PREPARED}",
        "Open transactions found in queues:",
        "Creating commit records for the following prepared transactions in TPL:",
        "  xid(2)='\"x1\"'",
    ]


@pytest.mark.parametrize("flags", [(0, COMMIT_DECISION), (COMMIT_DECISION, 0)])
def test_of_two_decisions_the_abort_counts(tmp_path: Path, flags: tuple[int, int]) -> None:
    prepared = LinearBuilder("TplStore", data_size=8)
    prepared.enqueue(1, b"\1", xid=b"x1")
    for rid, flag in enumerate(flags, start=2):
        prepared.dequeue(rid, 1, xid=b"x1", flags=flag)
    result = command(written(tmp_path, prepared, queue("q", b"x1")))
    assert result.code == 0
    assert result.reconciliation[1].endswith(ABORTING)


def test_long_xids_are_distinguished(tmp_path: Path) -> None:
    one, other = b"\0" * 5000 + b"1", b"\0" * 5000 + b"2"
    qls = written(tmp_path, prepared_list((one, None)), queue("q", one, other))
    lines = [line.partition(" - ")[2] for line in command(qls).reconciliation if " - " in line and "TPL" not in line]
    assert lines[1:] == ["Assuming commit after prepare", "Ignoring, not in prepared transaction list"]


# ---- the maps ----


def history(write: Callable[[LinearBuilder], object], show: Show | None = None) -> Run:
    builder = LinearBuilder("q", data_size=8)
    write(builder)
    builder.flush()
    return analysed(builder.disk(), show or Show(recovered=True, walked=True))


def taken_and_committed(q: LinearBuilder) -> None:
    q.enqueue(1, b"a")
    q.dequeue(2, 1, xid=b"x")
    q.commit(3, b"x")


def taken_and_aborted(q: LinearBuilder) -> None:
    q.enqueue(1, b"a")
    q.dequeue(2, 1, xid=b"x")
    q.abort(3, b"x")


def put_and_committed(q: LinearBuilder) -> None:
    q.enqueue(5, b"a", xid=b"x")
    q.enqueue(2, b"b")
    q.commit(9, b"x")


def put_and_aborted(q: LinearBuilder) -> None:
    q.enqueue(5, b"a", xid=b"x")
    q.enqueue(2, b"b")
    q.abort(9, b"x")


def put_and_taken_within(q: LinearBuilder) -> None:
    q.enqueue(1, b"a", xid=b"x")
    q.dequeue(2, 1, xid=b"x")
    q.commit(3, b"x")


def put_and_taken_within_and_aborted(q: LinearBuilder) -> None:
    q.enqueue(1, b"a", xid=b"x")
    q.dequeue(2, 1, xid=b"x")
    q.abort(3, b"x")


def taken_in_between(q: LinearBuilder) -> None:
    q.enqueue(1, b"a")
    q.dequeue(2, 1, xid=b"x")
    q.dequeue(3, 1)
    q.commit(4, b"x")


def taken_twice(q: LinearBuilder) -> None:
    q.enqueue(1, b"a")
    q.dequeue(2, 1, xid=b"x")
    q.dequeue(3, 1, xid=b"y")
    q.abort(4, b"x")
    q.abort(5, b"y")


def taken_before_its_commit(q: LinearBuilder) -> None:
    q.enqueue(1, b"a", xid=b"x")
    q.dequeue(2, 1, xid=b"y")
    q.abort(3, b"y")
    q.commit(4, b"x")


def transient(q: LinearBuilder) -> None:
    q.enqueue(1, b"a", flags=TRANSIENT)
    q.enqueue(2, b"a", flags=TRANSIENT, xid=b"x")


@pytest.mark.parametrize(
    ("write", "rids", "in_file"),
    [
        (taken_and_committed, [], 0),
        (taken_and_aborted, [1], 1),
        (put_and_committed, [2, 5], 2),
        (put_and_aborted, [2], 1),
        (put_and_taken_within, [], 0),
        (put_and_taken_within_and_aborted, [], 0),
        (taken_in_between, [], 0),
        (taken_twice, [1], 1),
        (taken_before_its_commit, [1], 1),
        (transient, [], 0),
    ],
)
def test_remaining_records_follow_from_transactions(
    write: Callable[[LinearBuilder], object], rids: list[int], in_file: int
) -> None:
    result = history(write)
    assert (result.code, result.err) == (0, "")
    assert recovered(result) == rids
    assert "[LOCKED]" not in result.out
    assert result.files() == [("0x1", in_file)]
    assert "No outstanding transactions found." in result.report()


def test_a_dequeue_locks_while_its_transaction_is_open() -> None:
    def write(q: LinearBuilder) -> None:
        q.enqueue(1, b"a")
        q.enqueue(2, b"b")
        q.dequeue(3, 2, xid=b"x")
        q.dequeue(4, 77, xid=b"x")

    result = history(write)
    lines = result.report()
    assert [line.endswith("]   [LOCKED]") for line in lines[1:3]] == [False, True]
    assert lines[3:5] == ["1 outstanding transaction(s):", "  xid(1)='\"x\"' containing 2 operations:"]
    assert lines[5].startswith("    0x1:0x00001100: [D v=2 f=0x0000 rid=0x3] drid=0x2 xid(1) [D cs=0x")
    assert lines[5].endswith(" rid=0x3]  ")
    assert lines[6].endswith(" rid=0x4]  <NOT IN EMAP>")
    assert result.walked()[4].endswith(" rid=0x4]  <NOT IN EMAP>")


def test_a_transaction_is_known_by_its_id_alone_when_it_restarts() -> None:
    def write(q: LinearBuilder) -> None:
        q.enqueue(1, b"a", xid=b"x")
        q.commit(2, b"x")
        q.commit(3, b"x")
        q.enqueue(4, b"b", xid=b"x")

    result = history(write)
    assert recovered(result) == [1]
    assert result.walked()[3].endswith(" rid=0x3] <NOT IN TMAP>")
    assert "1 outstanding transaction(s):" in result.report()


def test_dequeue_in_the_prepared_list_gives_no_warning() -> None:
    """In the prepared list the dequeue of what its transaction enqueued is as it should be."""
    builder = LinearBuilder("TplStore", data_size=8)
    builder.enqueue(1, b"\0", xid=b"x")
    builder.dequeue(2, 1, xid=b"x", flags=COMMIT_DECISION)
    builder.dequeue(3, 99)
    builder.commit(4, b"x")
    builder.flush()
    result = analysed(builder.disk("/store/qls/tpl2"), Show(walked=True))
    assert [line.endswith(("<NOT IN EMAP>", "<NOT IN TMAP>")) for line in result.walked("tpl2")[2:5]] == [
        False,
        True,
        False,
    ]
