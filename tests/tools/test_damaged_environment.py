"""A broken Berkeley DB file is damage to every command that reads a store; a missing program is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

import qstore.store.catalogue.berkeley
from qstore.store.errors import StoreDamagedError
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage
from qstore.tools.qstore_size import command as size
from tests.store.test_conversion_damage import REFUSE
from tests.support.dump import dump
from tests.support.fixtures import StoreFixture, StoreOpener, set_writable
from tests.support.old_store import PARAMETERS, content_of, converted
from tests.support.planted_damage import check
from tests.support.recover_runs import recover

# What the log of both has is in no database file yet: without recovery there is no queue.
STORES: Final = {"legacy-b-crash1": "rhm/dat", "linear-b-crash1": "qls/dat2"}


def copied(fixture: StoreFixture, path: Path) -> Path:
    shutil.copytree(fixture.path, path, symlinks=True)
    set_writable(path, writable=True)
    return path


@pytest.fixture(params=STORES)
def broken(request: pytest.FixtureRequest, open_fixture: StoreOpener, tmp_path: Path) -> tuple[Path, Path]:
    """A store one of whose files recovery fails at, and one that is as it was."""
    sound = open_fixture(request.param)
    path = copied(sound, tmp_path / "broken")
    (path / STORES[request.param] / "config.db").write_bytes(b"")
    return path, sound.path


def test_it_is_reported_and_the_topology_is_there(broken: tuple[Path, Path], tmp_path: Path) -> None:
    path, sound = broken
    checked = check(path)
    assert checked.code == 1
    (damage,) = checked.lines("damage")
    assert damage["file"].endswith("/config.db")
    shown, expected = (dump(each, "--outstanding", "--json") for each in (path, sound))
    assert (shown.code, expected.code) == (1, 0)
    for kind in ("queue", "exchange", "binding", "message"):
        assert shown.lines(kind) == expected.lines(kind)
    recovery = recover(path, tmp_path / "recovered")
    assert recovery.report.code == 0, "the log has all of it"
    assert recovery.report.lines("damage")
    assert CliRunner().invoke(size, ["--from", str(path)], catch_exceptions=False).exit_code == 1


def test_it_is_a_loss_where_the_program_cannot_make_up_for_it(
    broken: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sound = broken
    monkeypatch.setattr(qstore.store.catalogue.berkeley, "find_recovery_program", lambda: None)
    assert check(path).code == 1
    assert check(sound).code == 0, "it is the program alone that is missing"
    assert recover(path, tmp_path / "recovered").report.code == 1
    assert recover(sound, tmp_path / "other").report.code == 0


def test_a_failing_recovery_is_reported(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "recover"
    program.write_text("#!/bin/sh\necho 'BDB1521 Recovery function for LSN 1 17246 failed' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(qstore.store.catalogue.berkeley, "find_recovery_program", lambda: str(program))
    checked = check(open_fixture("legacy-b-crash1").path)
    assert checked.code == 1
    assert "BDB1521" in checked.lines("damage")[0]["what"]


# ---- conversion ----


@pytest.mark.parametrize("has_program", [True, False])
def test_a_broker_that_is_to_refuse_damage_refuses_it(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_program: bool
) -> None:
    path = copied(open_fixture("legacy-b-crash1"), tmp_path / "store")
    (path / "rhm/dat/mappings.db").write_bytes(b"")
    if not has_program:
        monkeypatch.setattr(qstore.store.catalogue.berkeley, "find_recovery_program", lambda: None)
    with pytest.raises(StoreDamagedError, match=r"mappings\.db.*on-damage is refuse"):
        converted(path, REFUSE)


@pytest.mark.parametrize("has_program", [True, False])
def test_otherwise_the_queues_whose_journals_are_there_are_converted(
    open_fixture: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_program: bool
) -> None:
    sound = content_of(open_fixture("legacy-b-crash1").path)
    path = copied(open_fixture("legacy-b-crash1"), tmp_path / "store")
    (path / "rhm/dat/queues.db").write_bytes(bytes(8192))
    if not has_program:
        monkeypatch.setattr(qstore.store.catalogue.berkeley, "find_recovery_program", lambda: None)
    assert PARAMETERS.on_damage is OnDamage.QUARANTINE
    lines: list[LogLine] = []
    converted(path, log=lines.append)
    assert [line for line in lines if line.level is Level.CRITICAL and "queues.db" in line.text]
    content = content_of(path)
    assert content.queues == sound.queues
    assert len(sound.queues) == 2
    assert (content.bindings == sound.bindings) == has_program
