"""`qstore-recover --to-version 1`: stores that qpidd's rules accept, by the reader's judgement."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.formats.broker_records.topology import Queue
from tests.support.fixtures import StoreFixture, StoreOpener
from tests.support.old_store import OldStore, content_of
from tests.support.planted_damage import Original, Plant, linear_store, version_1_store, version_2_store
from tests.support.recover_runs import expected_states, facts, recover, states
from tests.tools.planted_version_1 import RECORDS

TO_VERSION_1 = ("--to-version", "1")


def test_a_store_of_qpidd_comes_back_as_it_was(qpidd_store: StoreFixture, tmp_path: Path) -> None:
    recovery = recover(qpidd_store.path, tmp_path / "new", *TO_VERSION_1)
    assert recovery.report.code == 0
    assert content_of(recovery.path) == content_of(qpidd_store.path)
    assert sorted(os.listdir(recovery.path)) == ["rhm"]
    assert not (recovery.path / "rhm" / "STORE").exists()


def test_info_files_tell_where_the_store_is(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recover(open_fixture("legacy-d-dtx").path, Path("new"), *TO_VERSION_1)
    infos = list((tmp_path / "new").rglob("*.jinf"))
    assert len(infos) == 4
    for info in infos:
        assert f'<directory value="{info.parent}/" />' in info.read_text()


def test_to_version_2_and_back(open_fixture: StoreOpener, tmp_path: Path) -> None:
    source = open_fixture("legacy-d-dtx").path
    two = recover(source, tmp_path / "two")
    one = recover(two.path, tmp_path / "one", *TO_VERSION_1)
    assert facts(one.dump()) == facts(two.dump())
    assert content_of(one.path) == content_of(source)


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_resolved_transactions_are_not_in_doubt(open_fixture: StoreOpener, tmp_path: Path, word: str) -> None:
    source = open_fixture("legacy-d-dtx").path
    one = recover(source, tmp_path / "one", "--resolve-all", word, *TO_VERSION_1)
    two = recover(source, tmp_path / "two", "--resolve-all", word)
    assert facts(one.dump()) == facts(two.dump())
    assert content_of(one.path).in_doubt == []
    assert not (one.path / "rhm" / "tpl").exists()


@pytest.mark.parametrize("make", [version_1_store, version_2_store, linear_store])
def test_a_store_with_a_known_history(make: Callable[[Path], Original], tmp_path: Path) -> None:
    original = make(tmp_path / "store")
    recovery = recover(original.path, tmp_path / "new", *TO_VERSION_1)
    assert states(original, recovery.dump()) == expected_states({})


@pytest.mark.parametrize("plant", RECORDS[::9], ids=str)
def test_damage_is_handled_as_in_version_2(plant: Plant, tmp_path: Path) -> None:
    original = version_1_store(tmp_path / "store")
    planted = original.copy(tmp_path / "planted")
    plant.do(planted)
    one = recover(planted.path, tmp_path / "one", *TO_VERSION_1)
    two = recover(planted.path, tmp_path / "two")
    assert states(original, one.dump()) == expected_states(plant.changes)
    assert one.report.code == two.report.code
    assert one.summary["lost"] == two.summary["lost"]


def test_orphans_get_queues(tmp_path: Path) -> None:
    old = OldStore()
    old.queue("orders").enqueue(b"order")
    old.queue("unknown").enqueue(b"orphan")
    old.queues = {2: Queue("orders")}
    recovery = recover(old.write(tmp_path / "store"), tmp_path / "new", "--orphans", "recover", *TO_VERSION_1)
    queues = content_of(recovery.path).queues
    assert [data for *_, data in queues.pop("orders")] == [b"order"]
    ((name, messages),) = queues.items()
    assert name.startswith("lost.found.")
    assert [data for *_, data in messages] == [b"orphan"]


@pytest.mark.parametrize("name", ["../../../escaped", "a/../b", "."])
@pytest.mark.parametrize("dry", [True, False])
def test_names_that_lead_elsewhere_are_refused(name: str, dry: bool, tmp_path: Path) -> None:
    """Version 2 keeps queues by their numbers, so there such names are no matter."""
    old = OldStore()
    old.queue("orders").enqueue(b"order")
    old.queues = {2: Queue("orders"), 3: Queue(name)}
    source = old.write(tmp_path / "store")
    recovery = recover(source, tmp_path / "new", *TO_VERSION_1, *(["--dry-run"] if dry else []))
    assert recovery.report.code == 2
    assert recovery.report.text == ""
    assert name in recovery.report.errors
    assert sorted(os.listdir(tmp_path)) == ["store"]
    assert recover(source, tmp_path / "new").report.code in (0, 1)
