"""`qstore-check` on sound stores, and as a command: output, exit codes, and what it never does."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.tools.qstore_check import command
from tests.support.dump import dump
from tests.support.fixtures import StoreFixture, StoreOpener, journal_file, snapshot, unpack
from tests.support.forked import Forked

JOURNAL_FIELDS = {
    "kind", "role", "queue", "path", "format", "files", "file_size", "enqueues", "dequeues", "commits", "aborts",
    "open_transactions", "highest_rid", "torn", "sealed", "damage", "outstanding", "in_doubt_enqueues",
    "in_doubt_dequeues", "capacity", "live_bytes", "live_share", "span", "limit", "used", "fill", "near_threshold",
    "oldest",
}  # fmt: skip
STORE_FIELDS = {
    "kind", "path", "format", "paranoid", "queues", "orphans", "records", "outstanding", "in_doubt", "transactions",
    "damage", "notices",
}  # fmt: skip

Line = dict[str, Any]


def check(*arguments: str | os.PathLike[str]) -> tuple[int, list[Line], str]:
    """Run with --json: exit code, objects, standard error."""
    options = ["--json", *(os.fspath(argument) for argument in arguments)]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["kind"] == kind]


# ---- the fourteen stores ----


@pytest.mark.parametrize("options", [[], ["--paranoid"]], ids=["once", "twice"])
def test_stores_of_qpidd_show_no_damage(qpidd_store: StoreFixture, options: list[str]) -> None:
    code, lines, errors = check(qpidd_store.path, *options)
    assert (code, of_kind(lines, "damage"), errors) == (0, [], "")
    (store,) = of_kind(lines, "store")
    assert store["format"] == ("legacystore" if qpidd_store.name.startswith("legacy") else "linearstore")
    assert store["paranoid"] == bool(options)


def test_counts_match_those_of_the_dump(qpidd_store: StoreFixture) -> None:
    _, lines, _ = check(qpidd_store.path)
    outstanding = dump(qpidd_store.path, "--outstanding", "--json", "--body", "none")
    states = Counter((line["queue"], line["state"]) for line in outstanding.lines("message"))
    records = Counter((line["queue"], line["type"]) for line in dump(qpidd_store.path, "--json").lines("record"))
    for journal in of_kind(lines, "journal"):
        assert set(journal) == JOURNAL_FIELDS
        queue = journal["queue"]
        for field, kind in (
            ("enqueues", "enqueue"),
            ("dequeues", "dequeue"),
            ("commits", "commit"),
            ("aborts", "abort"),
        ):
            assert journal[field] == records[queue, kind], (queue, field)
        if journal["role"] == "queue":
            assert journal["outstanding"] == states[queue, "outstanding"]
            assert journal["in_doubt_enqueues"] == states[queue, "in-doubt-enqueue"]
            assert journal["in_doubt_dequeues"] == states[queue, "in-doubt-dequeue"]
    assert of_kind(lines, "transaction") == outstanding.lines("transaction")
    (store,) = of_kind(lines, "store")
    assert set(store) == STORE_FIELDS
    assert store["records"] == sum(count for (_, kind), count in records.items() if kind != "filler")
    assert store["outstanding"] == sum(count for (_, state), count in states.items() if state == "outstanding")


def test_the_oldest_live_record(qpidd_store: StoreFixture) -> None:
    """It is the first outstanding one in the order in which the records stand in the journal.

    In the prepared list it is the first transaction that is open.
    """
    _, lines, _ = check(qpidd_store.path)
    open_xids = {line["xid"] for line in dump(qpidd_store.path, "--transactions", "--json").lines("transaction")}
    live = {
        (line["queue"], line["rid"]): line["state"]
        for line in dump(qpidd_store.path, "--outstanding", "--json").lines("message")
    }
    expected: dict[str, Line] = {}
    for record in dump(qpidd_store.path, "--json", "--type", "enqueue").lines("record"):
        key = record["queue"], record["rid"]
        if record["queue"] == "TplStore" and record["xid"] in open_xids:
            live[key] = "outstanding"
        if key in live and record["queue"] not in expected:
            expected[record["queue"]] = {
                "rid": record["rid"], "file": record["file"], "offset": record["offset"], "state": live[key],
            }  # fmt: skip
    found = {journal["queue"]: journal["oldest"] for journal in of_kind(lines, "journal") if journal["oldest"]}
    assert found == expected


def test_crash_leftovers_are_notices(open_fixture: StoreOpener) -> None:
    code, lines, _ = check(open_fixture("legacy-c-midcommit1").path)
    assert code == 0
    notices = [line["text"] for line in of_kind(lines, "notice")]
    assert sum("torn tail of record" in notice for notice in notices) == 2
    assert {journal["torn"] for journal in of_kind(lines, "journal")} == {True}
    (transaction,) = of_kind(lines, "transaction")
    assert transaction["state"] == "unprepared"


def test_nothing_is_written(tmp_path: Path) -> None:
    for name in ("legacy-d-dtx", "linear-d-dtx"):
        store = unpack(name, tmp_path)
        before = snapshot(store.path)
        assert check(store.path, "--paranoid")[0] == 0
        assert snapshot(store.path) == before


# ---- parts of a store ----


def test_one_journal_and_one_file(open_fixture: StoreOpener) -> None:
    store = open_fixture("legacy-d-dtx")
    file = journal_file(store.path, "d.q1")
    for path, kind in ((file.parent, "journal"), (file, "journal file")):
        code, lines, _ = check(path)
        assert code == 0
        (whole,) = of_kind(lines, "store")
        assert whole["format"] == kind
        assert [journal["outstanding"] for journal in of_kind(lines, "journal") if journal["role"] == "queue"] == [6]


def test_one_linear_journal_and_one_file(open_fixture: StoreOpener) -> None:
    store = open_fixture("linear-d-dtx")
    directory = store.path / "qls/jrnl2/d.q1"
    (link,) = directory.iterdir()
    (file,) = store.path.glob(f"qls/p*/efp/*/in_use/{link.name}")
    for path in (directory, file):
        code, lines, _ = check(path)
        assert code == 0
        (journal,) = [journal for journal in of_kind(lines, "journal") if journal["role"] == "queue"]
        assert (journal["queue"], journal["outstanding"]) == ("d.q1", 6)
        assert journal["in_doubt_dequeues"] + journal["in_doubt_enqueues"] == 8


# ---- several paths, and paths that are none ----


def test_several_stores(open_fixture: StoreOpener) -> None:
    paths = [open_fixture(name).path for name in ("legacy-a-clean", "linear-a-clean")]
    code, lines, _ = check(*paths)
    assert code == 0
    assert [line["path"] for line in of_kind(lines, "store")] == [str(path) for path in paths]


def test_the_worst_of_several_decides(open_fixture: StoreOpener, tmp_path: Path) -> None:
    sound = open_fixture("legacy-c-localtx").path
    code, lines, errors = check(sound, tmp_path / "nothing", sound)
    assert code == 2
    assert len(of_kind(lines, "store")) == 2
    assert errors == f"qstore-check: {tmp_path}/nothing: no such directory or regular file\n"


@pytest.mark.parametrize("arguments", [[], ["--no-such-option", "."]])
def test_a_wrong_command_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage" in result.stderr


# ---- for people ----


def report(*arguments: str | os.PathLike[str]) -> str:
    result = CliRunner().invoke(command, [os.fspath(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_report(open_fixture: StoreOpener) -> None:
    path = open_fixture("legacy-d-dtx").path
    lines = report(path).splitlines()
    assert lines[0] == f"{path}: legacystore"
    assert lines[1].split()[:4] == ["QUEUE", "RECORDS", "OUTSTANDING", "IN"]
    assert lines[1].split()[-4:] == ["OLDEST", "LIVE", "RECORD", "DAMAGE"]
    (first,) = [line for line in lines if line.startswith("d.q1")]
    assert first.split()[:6] == ["d.q1", "19", "6", "8", "2", "0.2%"]
    assert "0x1 in JournalData.0000.jdat at 0x200 (in-doubt-dequeue)" in first
    assert sum("transaction" in line and "in-doubt" in line for line in lines) == 3
    assert lines[-1].startswith("3 queues, 74 records in ")
    assert lines[-1].endswith(": no damage")


def test_help_has_examples() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert result.stdout.count("\n  qstore-check ") >= 4
    assert "Exit codes" in result.stdout


def test_on_a_terminal(open_fixture: StoreOpener) -> None:
    """A process of its own with a terminal for its streams: the report fits and no control sequence is damaged."""
    path = open_fixture("linear-d-dtx").path
    leader, follower = pty.openpty()
    arguments = [sys.executable, "-m", "qstore.tools.qstore_check", str(path)]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONDONTWRITEBYTECODE": "1"}
    with Forked(arguments, stdin=follower, stdout=follower, stderr=follower, env=environment) as run:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:
            pass  # the terminal's other end is closed
        assert run.wait(60) == 0
    os.close(leader)
    assert b"no damage" in shown
    assert b"Traceback" not in shown
