"""`qstore-recover`: where it writes, what it reports, exit codes, and what becomes of transactions in doubt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from qstore.formats.broker_records.xids import encode_dtx_xid
from qstore.tools.qstore_recover import command
from tests.support.dump import dump
from tests.support.fixtures import StoreFixture, snapshot
from tests.support.planted_damage import (
    IN_DOUBT,
    OUTSTANDING,
    XIDS,
    Original,
    linear_store,
    version_1_store,
    version_2_store,
    zero,
)
from tests.support.recover_runs import expected_states, outside, recover, run_recover, states

MAKERS: Final[dict[str, Callable[[Path], Original]]] = {
    "version 1": version_1_store,
    "version 2": version_2_store,
    "linear": linear_store,
}
BRANCH: Final = XIDS["branch"].hex()


@pytest.fixture(scope="module", params=MAKERS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return MAKERS[request.param](tmp_path_factory.mktemp("original") / "store")


# ---- where it writes ----


def test_an_empty_directory_will_do(local: StoreFixture, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert recover(local.path, tmp_path / "new").report.code == 0
    assert (tmp_path / "new/rhm/STORE").is_file()


def occupied(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("mine")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize(
    "make", [occupied, lambda path: path.write_text("mine"), dangling], ids=["full", "file", "link"]
)
def test_existing_destination_is_left_alone(local: StoreFixture, make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "new"
    make(path)
    before = snapshot(tmp_path)
    recovery = recover(local.path, path)
    assert recovery.report.code == 2
    assert str(path) in recovery.report.errors
    assert snapshot(tmp_path) == before


def test_a_parent_that_is_missing(local: StoreFixture, tmp_path: Path) -> None:
    result = run_recover(local.path, tmp_path / "no" / "new")
    assert result.code == 2
    assert len(result.errors.splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", ["store", "store/new", "store/rhm/new", "store/rhm/jrnl/1/new", "link/new"])
def test_the_destination_may_not_be_in_the_source(where: str, tmp_path: Path) -> None:
    store = version_2_store(tmp_path / "store").path
    (tmp_path / "link").symlink_to(store / "rhm")
    before = snapshot(tmp_path)
    for source in (store, store / "rhm"):
        recovery = recover(source, tmp_path / where)
        assert recovery.report.code == 2
        assert recovery.report.errors.startswith("qstore-recover: ")
    assert snapshot(tmp_path) == before


def test_a_source_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no store")
    for name in ("empty", "text", "missing"):
        recovery = recover(tmp_path / name, tmp_path / "new")
        assert recovery.report.code == 2
        assert recovery.report.lines() == []
        assert name in recovery.report.errors
        assert len(recovery.report.errors.splitlines()) == 1


def test_a_read_only_source(local: StoreFixture, tmp_path: Path) -> None:
    """Not even the directories of the source need to be writable; the user who runs this is root or not."""
    assert not os.stat(local.path).st_mode & 0o222
    assert recover(local.path, tmp_path / "new").report.code == 0


def test_the_lock_of_a_broker_is_not_touched(tmp_path: Path) -> None:
    """The lock file of the source stays as it is; a missing one is not made."""
    original = version_2_store(tmp_path / "store")
    assert recover(original.path, tmp_path / "new").report.code == 0  # asserts that the tree is as it was
    assert dump(original.path, "--outstanding").code == 0


# ---- what it reports ----

QUEUE_FIELDS: Final = {"kind", "name", "messages", "in_doubt", "torn_tail", "quarantined", "geometry"}
FIELDS: Final = {
    "queue": QUEUE_FIELDS,
    "transaction": {"kind", "xid", "state", "resolved"},
    "damage": {"kind", "file", "offset", "rid", "what", "consequence"},
    "summary": {"kind", "queues", "messages", "lost"},
    "orphan": {"kind"},
    "exchange": {"kind", "name"},
    "binding": {"kind", "exchange", "queue"},
    "notice": {"kind", "text"},
}


def test_the_fields_of_the_report(original: Original, tmp_path: Path) -> None:
    planted = original.copy(tmp_path / "store")
    zero("third", 512)(planted)
    recovery = recover(planted.path, tmp_path / "new")
    lines = recovery.report.lines()
    assert {"queue", "transaction", "damage", "summary"} <= {line["kind"] for line in lines} <= set(FIELDS)
    for line in lines:
        assert FIELDS[line["kind"]] <= set(line), line
    assert recovery.report.code == 1
    assert recovery.summary["lost"] >= 1
    names = {original.histories[name].queue for name in ("orders", "bills")}
    assert {line["name"] for line in recovery.report.lines("queue")} == names
    orders = recovery.queue(original.histories["orders"].queue)
    assert (orders["messages"], orders["in_doubt"]) == (6, 2)
    assert len(orders["quarantined"]) == 1
    assert recovery.queue(original.histories["bills"].queue)["quarantined"] == []


def test_without_json_it_is_for_people(original: Original, tmp_path: Path) -> None:
    planted = original.copy(tmp_path / "store")
    zero("third", 512)(planted)
    result = CliRunner().invoke(command, [str(planted.path), str(tmp_path / "new")], catch_exceptions=False)
    assert result.exit_code == 1
    assert "damage: " in result.stdout
    assert original.spot("third").file in result.stdout
    assert BRANCH[-12:] in result.stdout.replace("\n", "")
    for name in ("orders", "bills"):
        assert original.histories[name].queue in result.stdout


def test_quiet_prints_only_losses(original: Original, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(original.path), str(tmp_path / "new"), "-q"], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_dry_run_writes_nothing(original: Original, tmp_path: Path) -> None:
    planted = original.copy(tmp_path / "store")
    zero("third", 512)(planted)
    before = snapshot(tmp_path)
    recovery = recover(planted.path, tmp_path / "new", "--dry-run")
    assert snapshot(tmp_path) == before
    assert recovery.report.code == 1
    done = recover(planted.path, tmp_path / "new")
    for kind in ("transaction", "damage", "orphan"):
        assert recovery.report.lines(kind) == done.report.lines(kind)
    for line in done.report.lines("queue"):
        assert recovery.queue(line["name"])["messages"] == line["messages"]
    assert recovery.summary["messages"] == done.summary["messages"]


def test_dry_run_of_a_sound_store_writes_nothing(original: Original, tmp_path: Path) -> None:
    assert recover(original.path, tmp_path / "new", "--dry-run").report.code == 0
    assert os.listdir(tmp_path) == []


# ---- transactions in doubt ----

COMMITTED: Final = {"branch": None, "branch put": OUTSTANDING, "fourth": None}
ROLLED_BACK: Final = {"branch": None, "branch put": None, "fourth": OUTSTANDING}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ((), {}),
        (("--resolve", f"{BRANCH}=commit"), COMMITTED),
        (("--resolve", f"{BRANCH}=rollback"), ROLLED_BACK),
        (("--resolve", f"{BRANCH.upper()}=commit"), COMMITTED),
        (("--resolve-all", "commit"), COMMITTED),
        (("--resolve-all", "rollback"), ROLLED_BACK),
        (("--resolve-all", "rollback", "--resolve", f"{BRANCH}=commit"), COMMITTED),
    ],
    ids=["by default", "commit", "rollback", "upper case", "all commit", "all rollback", "one and the others"],
)
def test_in_doubt_transactions_are_resolved_as_asked(
    original: Original, options: tuple[str, ...], changes: dict[str, str | None], tmp_path: Path
) -> None:
    recovery = recover(original.path, tmp_path / "new", *options)
    assert recovery.report.code == 0
    assert states(original, recovery.dump()) == expected_states(changes)
    (line,) = [line for line in recovery.report.lines("transaction") if line["xid"] == BRANCH]
    assert line["state"] == IN_DOUBT
    assert bool(line["resolved"]) == bool(options)


@pytest.mark.parametrize(
    "options",
    [
        ("--resolve", "no hex=commit"),
        ("--resolve", f"{BRANCH}=perhaps"),
        ("--resolve", BRANCH),
        ("--resolve", f"{encode_dtx_xid(9, b'gid', b'another').hex()}=commit"),
        ("--resolve", f"{XIDS['decided'].hex()}=rollback"),
        ("--resolve", f"{BRANCH}=commit", "--resolve", f"{BRANCH}=rollback"),
        ("--resolve-all", "perhaps"),
        ("--orphans", "perhaps"),
        ("--to-version", "3"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant(original: Original, options: tuple[str, ...], tmp_path: Path) -> None:
    """A transaction that is not in doubt cannot be resolved: nothing is written, so that it can be tried again."""
    recovery = recover(original.path, tmp_path / "new", *options)
    assert recovery.report.code == 2
    assert recovery.report.errors
    assert os.listdir(tmp_path) == []


def test_all_of_several(dtx: StoreFixture, tmp_path: Path) -> None:
    """Three ways from one store: what is in doubt becomes one more message or one less."""
    shown = dump(dtx.path, "--outstanding", "--json")
    doubtful = {line["xid"] for line in shown.lines("transaction") if line["state"] == IN_DOUBT}
    assert len(doubtful) > 1
    counts = {}
    for word in ("commit", "rollback"):
        recovery = recover(dtx.path, tmp_path / word, "--resolve-all", word)
        assert recovery.report.code == 0
        after = recovery.dump()
        assert after.lines("transaction") == []
        counts[word] = sum(line["messages"] for line in after.lines("queue"))
        assert recovery.summary["messages"] == counts[word]
    by_state = dict.fromkeys((OUTSTANDING, "in-doubt-enqueue", "in-doubt-dequeue"), 0)
    for line in shown.lines("message"):
        by_state[line["state"]] += 1
    assert counts["commit"] == by_state[OUTSTANDING] + by_state["in-doubt-enqueue"]
    assert counts["rollback"] == by_state[OUTSTANDING] + by_state["in-doubt-dequeue"]


def test_twice_over(original: Original, tmp_path: Path) -> None:
    """A recovered store recovers into one like it."""
    first = recover(original.path, tmp_path / "first")
    second = recover(first.path, tmp_path / "second")
    assert second.report.code == 0
    assert states(original, second.dump()) == states(original, first.dump()) == expected_states({})


def test_nothing_is_written_beside_it(original: Original, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    before = outside(tmp_path, tmp_path / "beside/new")
    assert recover(original.path, tmp_path / "beside/new").report.code == 0
    assert outside(tmp_path, tmp_path / "beside/new") == before


def test_damage_is_quarantined_raw(original: Original, tmp_path: Path) -> None:
    """What was cut out can be had back byte for byte."""
    planted = original.copy(tmp_path / "store")
    zero(("third", 0), 128)(planted)
    recovery = recover(planted.path, tmp_path / "new")
    spot = original.spot("third")
    assert spot.offset is not None
    raw = [path.read_bytes() for path in (recovery.path / "quarantine").rglob("*.raw")]
    damaged = bytes(planted.read(spot.file)[spot.offset : spot.offset + 384])
    assert any(damaged in content for content in raw)
