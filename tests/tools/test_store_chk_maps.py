"""`qpid-store-chk` on enqueues, dequeues and transactions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import Geometry
from qstore.tools.drop_in import Show, xid_key
from tests.support.fixtures import StoreFixture, StoreOpener, journal_directory
from tests.support.journal_builder import JournalBuilder
from tests.support.profiles import examples
from tests.tools.store_chk_runs import SMALL, Run, check, command


def history(steps: str) -> JournalBuilder:
    """A journal of steps: `e5`, `e5X`, `d5`, `d5X`, `cX`, `aX`: rid or dequeued rid, then the transaction id."""
    journal = JournalBuilder(1, SMALL)
    for number, step in enumerate(steps.split()):
        rid, xid = re.sub(r"\D", "", step), step[1:].strip("0123456789").encode()
        match step[0]:
            case "e":
                journal.enqueue(b"m", rid=int(rid), xid=xid)
            case "d":
                journal.dequeue(int(rid), rid=100 + number, xid=xid)
            case "c":
                journal.commit(xid, rid=100 + number)
            case "a":
                journal.abort(xid, rid=100 + number)
    return journal


def kept(result: Run) -> str:
    """Rids of what remains, with a `*` where it is locked."""
    rids = [re.findall(r" rid=0x(\w+)\]", line)[0] + "*" * line.endswith("(locked)") for line in result.remaining]
    return " ".join(rids)


NOT_FOUND = "WARNING: transactional dequeues not found in enqueue map; rids="


@pytest.mark.parametrize(
    ("steps", "remaining", "warnings"),
    [
        ("e1 e2 d1", "2", []),
        ("e9 e3 e1", "1 3 9", []),
        ("e1 d1 e1", "1", []),
        ("e1 d77", "1", ["ERROR: Deleting non-existent rid from EnqMap: rid=0x4d"]),
        ("e1 d1 d1", "", ["ERROR: Deleting non-existent rid from EnqMap: rid=0x1"]),
        ("e1X", "", []),
        ("e1X cX", "1", []),
        ("e1X aX", "", []),
        ("e1 d1X", "1*", []),
        ("e1 d1X cX", "", []),
        ("e1 d1X aX", "1", []),
        ("e1 d1X aX d1X cX", "", []),
        # The other transaction's enqueue is locked where it waits, and stays so when it is committed.
        ("e5X d5Y cX cY", "", []),
        ("e5X d5Y cX", "5*", []),
        ("e5X d5Y cX aY", "5", []),
        ("e5X d5Y cY cX", "5*", [f"{NOT_FOUND}['0x5']"]),
        ("e5X aX d5Y d5Z", "", []),
        ("e5X d5Y aX cY", "", [f"{NOT_FOUND}['0x5']"]),
        # Both in one transaction.
        ("e1X d1X", "", []),
        ("e1X d1X cX", "", []),
        ("e1X d1X aX", "", []),
        ("d5X e5X d5X cX", "", [f"{NOT_FOUND}['0x5']"]),
        ("d5X e5X d5X aX", "", []),
        ("d5X e5X cX", "5", [f"{NOT_FOUND}['0x5']"]),
        ("e5 e5X d5X aX", "5", []),
        ("e5 d5X e5X cX", "5", []),
        ("e5X d5 cX", "5", ["ERROR: Deleting non-existent rid from EnqMap: rid=0x5"]),
        ("d6X d7X d7X d9X cX", "", [f"{NOT_FOUND}['0x6', '0x7', '0x7', '0x9']"]),
        ("e1 cX", "1", ['WARNING: xid(1)="X"  not found in transaction map']),
        ("e1 aX", "1", ['WARNING: xid(1)="X"  not found in transaction map']),
    ],
)
def test_remaining_records_follow_from_steps(steps: str, remaining: str, warnings: list[str]) -> None:
    result = check(history(steps))
    assert (result.code, result.err) == (0, "")
    assert kept(result) == remaining
    assert result.warnings == warnings


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("e1 e1", "Adding duplicate record to EnqMap: rid=0x1"),
        ("e1 e1X cX", "Adding duplicate record to EnqMap: rid=0x1"),
        ("e5X e5X cX", "Adding duplicate record to EnqMap: rid=0x5"),
        ("e5X d5X e5 cX", "Adding duplicate record to EnqMap: rid=0x5"),
        ("e20 d20X d20", "Deleting locked record from EnqMap: rid=0x14"),
        ("e1 d1X d1Y", "Locking record which is already locked in EnqMap: rid=0x1"),
        ("e1 d1X d1X", "Locking record which is already locked in EnqMap: rid=0x1"),
        ("e1X d1Y d1X", "Locking record which is already locked in EnqMap: rid=0x1"),
        ("d5X e5 cX", "Unlocking record which is not locked in EnqMap: rid=0x5"),
        ("d5X e5 aX", "Unlocking record which is not locked in EnqMap: rid=0x5"),
        ("d77X aX", "Operation on non-existent record: operation=unlock; rid=0x4d"),
        ("e5X d5Y aY", "Operation on non-existent record: operation=unlock; rid=0x5"),
    ],
)
def test_contradictions_end_the_check(steps: str, message: str) -> None:
    journal = history(steps)
    result = check(journal)
    last = next(record for record in reversed(journal.records) if record.header.has_tail or record.header.dequeued_rid)
    assert (result.code, result.is_complete) == (1, False)
    assert result.err == f"{message} (/store/jrnl/q/JournalData.0000.jdat at offset 0x{last.offset:x})"
    assert len(result.records) == len(steps.split()) - 1
    quiet = check(journal, Show.NOTHING)
    assert (quiet.code, quiet.out, quiet.err) == (1, "", result.err)


def test_a_waiting_duplicate_is_not_yet_a_contradiction() -> None:
    result = check(history("e1 e1X"))
    assert (result.code, kept(result), len(result.incomplete)) == (0, "1", 2)


def test_counts() -> None:
    result = check(history("e1 e2X e3X d1 cX aY e4"))
    begin = result.lines.index(" === REPORT ====")
    assert result.lines[begin + 2 : begin + 9] == [
        "Records:             2 non-transactional",
        "                     2 transactional",
        "                     4 total",
        "",
        "Transactions:        1 aborts",
        "                     1 commits",
        "                     2 total",
    ]
    assert result.counted == (4, 8)


def test_transient_and_external_records_remain() -> None:
    journal = JournalBuilder(1, SMALL)
    journal.enqueue(b"m", flags=0x10)
    journal.enqueue(size=1 << 40, flags=0x20)
    journal.enqueue(size=7, flags=0x30)
    result = check(journal)
    flags = [line.rpartition("] ")[2] for line in result.remaining]
    assert flags == ["*TRANSIENT*", "*EXTERNAL*", "*TRANSIENT,EXTERNAL*"]
    assert "data(" not in result.remaining[1]


def test_open_transactions_come_in_the_order_of_their_first_records() -> None:
    result = check(history("e1bbb e2aaa e3ccc e4bbb"))
    assert [line for line in result.incomplete if line.startswith(" Total")] == [
        ' Total: 2 records for xid(3)="bbb" ',
        ' Total: 1 records for xid(3)="aaa" ',
        ' Total: 1 records for xid(3)="ccc" ',
    ]
    rids = [re.findall(r"rid=0x(\w)\] xid", line) for line in result.incomplete if line.startswith("  fid=")]
    assert rids == [["1"], ["4"], ["2"], ["3"]]
    at = result.lines.index("WARNING: Incomplete transactions found, 3 xids remain containing a total of 4 records.")
    assert result.lines[at - 1] == ""


@pytest.mark.parametrize("size", [1, 128, 129, 70_000])
def test_transaction_ids_of_any_size(size: int) -> None:
    """Their ends distinguish them, however large they are."""
    journal = JournalBuilder(1, Geometry(4, 1 << 20))
    ids = [b"%b%b" % (b"i" * (size - 1), end) for end in (b"a", b"b")]
    for xid in ids:
        journal.enqueue(b"m", xid=xid)
    journal.commit(ids[0])
    result = check(journal)
    assert kept(result) == "1"
    assert len(result.incomplete) == 2
    assert f"xid({size})=" in result.incomplete[1]


def test_little_is_kept_of_a_large_transaction_id() -> None:
    content = bytes(1 << 20)
    size, key = xid_key(lambda offset, length: content[offset : offset + length], len(content))
    assert (size, len(key)) == (1 << 20, 32)


@examples(150)
@given(
    st.lists(
        st.tuples(st.sampled_from("edca"), st.integers(1, 4), st.sampled_from(["", "X", "Y"])).filter(
            lambda step: step[0] in "ed" or step[2]
        ),
        max_size=14,
    )
)
def test_any_history_gives_a_report_or_one_line(steps: list[tuple[str, int, str]]) -> None:
    result = check(history(" ".join(f"{kind}{rid if kind in 'ed' else ''}{xid}" for kind, rid, xid in steps)))
    assert result.is_complete == (result.code == 0) == (result.err == "")
    assert "\n" not in result.err
    if result.code == 0:
        assert result.counted[0] == sum(kind == "e" for kind, _, _ in steps)


# ---- stores of the real qpidd ----


def test_remaining_messages_match_those_recovered_by_qpidd(legacy_store: StoreFixture) -> None:
    """But for locked messages, which are in doubt: those qpidd does not deliver."""
    for queue in legacy_store.recovered["queues"]:
        result = command("-r", journal_directory(legacy_store.path, queue["name"]))
        assert (result.code, result.err) == (0, "")
        if not any("owi=True" in line for line in result.lines):  # not wrapped: all enqueues are still there
            assert result.warnings == []
        locked = [line for line in result.remaining if line.endswith(" (locked)")]
        assert len(result.remaining) - len(locked) == len(queue["messages"])
        assert result.counted[0] >= len(result.remaining)
        assert result.counted[1] == len(result.records)
        for option in ([], ["-v"]):
            assert command(*option, journal_directory(legacy_store.path, queue["name"])).counted == result.counted


@pytest.mark.parametrize(("queue", "transactions", "locked"), [("d.q1", 2, 5), ("d.q2", 1, 1), ("d.q3", 1, 0)])
def test_distributed_transactions_in_doubt(dtx: StoreFixture, queue: str, transactions: int, locked: int) -> None:
    result = command(journal_directory(dtx.path, queue))
    assert sum(line.startswith(" Total: ") for line in result.incomplete) == transactions
    assert sum(line.endswith(" (locked)") for line in result.remaining) == locked


def test_the_prepared_list_of_distributed_transactions(dtx: StoreFixture) -> None:
    result = command("-b", "tpl", dtx.path / "rhm" / "tpl")
    assert result.code == 0
    assert result.remaining == []
    assert sum(line.startswith(" Total: 1 records for xid(26)=") for line in result.incomplete) == len(
        dtx.recovered["in_doubt_xids"]
    )
    assert result.counted == (6, 44)


def test_a_wrapped_journal_of_qpidd(open_fixture: StoreOpener) -> None:
    store = open_fixture("legacy-e-wrap-clean")
    result = command("-v", journal_directory(store.path, "e.q1"))
    read = [line.rpartition("/")[2] for line in result.walked if line.startswith("* Reading ")]
    assert read == [f"JournalData.{number:04x}.jdat" for number in (1, 2, 3, 0)]
    assert any(line.startswith("  * JournalData.0001.jdat: owi=True  rid=0x15e5, fro=0x200 ") for line in result.lines)
    assert result.counted == (176, 766)
