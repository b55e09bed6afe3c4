"""Every state that a kill leaves of `qstore-recover`: what is under the destination's name, and what is beside it.

Under the name there is nothing, or all of it. What is beside it is never taken for a whole store without a word: tools
that read tell it, what writes refuses it, and the same recovery, run again, begins anew. Only what is whole may be used
as it is.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from qstore.store.environment import tool_environment
from qstore.store.errors import StoreError
from qstore.store.live.message_store import MessageStore
from qstore.store.repair.resize import StoreResize
from qstore.tools import qstore_quarantine, qstore_recover
from tests.faults.copied_states import CopyingDisk
from tests.support.dump import dump
from tests.support.fixtures import snapshot
from tests.support.opened_store import PARAMETERS, OpenedStore
from tests.support.planted_damage import Original, check, lost, version_2_store
from tests.support.profiles import is_due
from tests.support.recover_runs import Recovery, expected_states, invoke, recover, states

pytestmark = pytest.mark.usefixtures("nothing_is_synced")

BUILDING, BUILT = "RECOVERING", "RECOVERED"
AGAIN: Final = "run qstore-recover again"
STARTED: Final = {"rhm", "rhm.new", "quarantine"}
EXPECTED: Final = expected_states(lost("third"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return version_2_store(tmp_path_factory.mktemp("original") / "store")


@pytest.fixture
def damaged(original: Original, tmp_path: Path) -> Path:
    """A store with a message that cannot be saved, and goes into the quarantine."""
    planted = original.copy(tmp_path / "store")
    planted.patch(original.spot("third"), bytes(512))
    return planted.path


def watched_recovery(source: Path, root: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The states of the directory in which `new` is made by a recovery of `source`."""
    out = root / "out"
    out.mkdir()
    disk = CopyingDisk(out, root / "states")
    with monkeypatch.context() as patch:
        patch.setattr(qstore_recover, "tool_environment", lambda: tool_environment()._replace(disk=disk))
        assert invoke(source, out / "new", "--to-version", str(version)).report.code == 1
    assert sorted(os.listdir(out / "new")) == ["quarantine", "rhm"]
    return disk.states


def start(path: Path) -> None:
    MessageStore.open(tool_environment(), str(path), PARAMETERS, "0.1.0", log=lambda _: None).close()


def resize(path: Path) -> None:
    with StoreResize(tool_environment(), str(path), "0.1.0"):
        pass


def assert_complete(original: Original, recovery: Recovery) -> None:
    assert states(original, recovery.dump()) == EXPECTED
    (entry,) = (recovery.path / "quarantine/index.jsonl").read_text().splitlines()
    assert '"queue":"orders"' in entry
    assert sorted(os.listdir(recovery.path)) == ["quarantine", "rhm"]
    assert os.listdir(recovery.path.parent) == [recovery.path.name]


def assert_refused_by_writers(path: Path) -> None:
    """The start, a resize and an injection leave it as it is."""
    before = snapshot(path)
    for what in (start, resize):
        with pytest.raises(StoreError, match=AGAIN) as caught:
            what(path)
        assert "\n" not in str(caught.value)
    injection = inject(path / "quarantine", path)
    assert (injection.exit_code, injection.stdout) == (2, "")
    if (path / "quarantine/index.jsonl").is_file():
        assert AGAIN in injection.stderr
    assert {name: each for name, each in snapshot(path).items() if name != "."}.keys() == before.keys() - {"."}


def inject(quarantine: Path, store: Path) -> Result:
    arguments = ["inject", str(quarantine), "1", "--store", str(store), "--force"]
    return CliRunner().invoke(qstore_quarantine.command, arguments, catch_exceptions=False)


def assert_not_taken_for_a_store(path: Path, root: Path) -> None:
    """Readers tell that it is not whole, and what to do; what they read of it is at most a part."""
    for name in ("", "rhm", "rhm.new"):
        if not (path / name).is_dir():
            continue
        for found in (check(path / name), dump(path / name, "--outstanding", "--json")):
            reported = found.errors + "".join(
                f"{line['what']}: {line['consequence']}" for line in found.lines("damage")
            )
            assert found.code in (1, 2), (path, name)
            assert AGAIN in reported, (path, name, reported)
        taken = recover(path / name, root / "taken")
        assert taken.report.code in (1, 2)
        assert AGAIN in taken.report.errors + taken.loss()
        shutil.rmtree(taken.path, ignore_errors=True)
    for info in path.glob("rhm*/jrnl/**/JournalData.jinf"):
        if list(info.parent.glob("*.jdat")):
            assert AGAIN in str(check(info.parent).lines("damage"))


@pytest.mark.parametrize("version", [2, 1])
def test_each_state(
    original: Original, damaged: Path, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[tuple[bool | str, ...]] = set()
    looked_at = set()
    due = is_due(3)
    for state in watched_recovery(damaged, tmp_path, version, monkeypatch):
        beside, path = state / "new.recovering", state / "new"
        marks = {each.name for each in (*beside.glob("RECOVER*"), *path.glob("RECOVER*"))}
        assert len(marks) < 2
        found.add((path.exists(), *marks))
        if not due():
            continue
        if path.exists():
            assert not beside.exists()
            assert states(original, dump(path, "--outstanding", "--json")) == EXPECTED
            assert (path / "quarantine/index.jsonl").is_file()
            assert check(path).code == 0
            continue
        assert beside.exists()
        if BUILT in marks:
            assert_usable(original, beside, state / "copy")
        elif STARTED & {*os.listdir(beside)}:
            assert marks == {BUILDING}
            shape = frozenset(str(each.relative_to(beside)) for each in beside.glob("*/*"))
            if shape not in looked_at:
                assert_not_taken_for_a_store(beside, tmp_path)
                assert_refused_by_writers(beside)
            looked_at.add(shape)
        assert_complete(original, recover(damaged, path, "--to-version", str(version)))
    assert found == {(False,), (False, BUILDING), (False, BUILT), (True, BUILT), (True,)}


def assert_usable(original: Original, path: Path, copy: Path) -> None:
    """It is whole, and says so; a start takes it as it is, and the mark away."""
    checked = check(path)
    assert (checked.code, checked.lines("damage")) == (0, [])
    assert any(f"{BUILT}: " in line["text"] and "complete store" in line["text"] for line in checked.lines("notice"))
    assert states(original, dump(path, "--outstanding", "--json")) == EXPECTED
    shutil.copytree(path, copy)
    start(copy)
    assert BUILT not in os.listdir(copy)
    assert states(original, dump(copy, "--outstanding", "--json")) == EXPECTED
    shutil.rmtree(copy)


def built_beside(damaged: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recovery that was killed when all was built."""
    found = watched_recovery(damaged, root, 2, monkeypatch)
    return next(state for state in found if (state / "new.recovering" / BUILT).is_file())


def test_a_store_that_was_used_is_not_removed(damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker was started on a whole store that had not got its name yet."""
    state = built_beside(damaged, tmp_path, monkeypatch)
    opened = OpenedStore(tool_environment(), state / "new.recovering")
    opened.recovered()
    journal = opened.journal("orders")
    opened.enqueue(journal, b"new")
    opened.flush(journal)
    assert opened.store.close()
    before = snapshot(state / "new.recovering")
    refused = invoke(damaged, state / "new")
    assert refused.report.code == 2
    assert "new.recovering: contains a store that is in use" in refused.report.errors
    assert "\n" not in refused.report.errors.rstrip("\n")
    assert snapshot(state / "new.recovering") == before
    assert os.listdir(state) == ["new.recovering"]


@pytest.mark.parametrize("name", ["", "rhm", "rhm/jrnl/1"])
def test_recovery_over_its_own_source_is_refused(
    damaged: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is gone, and all that is left is what a recovery had built, to be recovered to the same place."""
    state = built_beside(damaged, tmp_path, monkeypatch)
    beside = state / "new.recovering"
    before = snapshot(beside)
    refused = invoke(beside / name, state / "new")
    assert refused.report.code == 2
    assert "choose another directory" in refused.report.errors
    assert snapshot(beside) == before
    taken = recover(beside / name, state / "other")
    assert taken.report.code in (0, 1)
    assert taken.summary["messages"] > 0
