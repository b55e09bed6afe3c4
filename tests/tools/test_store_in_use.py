"""Stores that a broker has open: tools name the process, do not recover them, and never delay a broker's start."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.environment import tool_environment
from qstore.store.inspect.layout import holder_of_lock
from qstore.tools import qstore_check, qstore_dump, qstore_size
from tests.support.fixtures import CopyOpener, snapshot
from tests.support.planted_damage import version_2_store
from tests.support.raw_peer import RawPeer
from tests.support.recover_runs import recover
from tests.support.running_broker import BrokerMaker, make_broker

__all__ = ["make_broker"]

COMMANDS = {
    "check": (qstore_check.command, []),
    "dump": (qstore_dump.command, ["--outstanding"]),
    "size": (qstore_size.command, ["--from"]),
}


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_store_that_a_broker_has_open(make_broker: BrokerMaker, tool: str) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        peer.declare("q")
        peer.publish("q", b"x")
        peer.sync()
    command, options = COMMANDS[tool]
    arguments = [*options, str(broker.data_directory)]
    found = CliRunner().invoke(command, arguments)
    assert found.exit_code == 0, found.output
    assert f"{broker.data_directory}: process {broker.pid} has this store open" in found.output.replace("\n", " ")
    assert "not closed cleanly" not in found.output
    broker.kill()
    found = CliRunner().invoke(command, arguments)
    assert "has this store open" not in found.output
    assert "not closed cleanly" in found.output
    broker.start()
    assert broker.stop() == 0
    assert "closed cleanly" not in CliRunner().invoke(command, arguments).output


def test_a_store_of_qpidd_that_a_process_has_open(copies: CopyOpener) -> None:
    code = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with copies("legacy-a-clean").copy() as copy:
        command = [sys.executable, "-c", code, str(copy.path / "lock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as qpidd:
            assert qpidd.stdout is not None
            qpidd.stdout.readline()
            found = CliRunner().invoke(qstore_check.command, [str(copy.path), "--json"])
            assert f"process {qpidd.pid} has this store open" in found.output
            qpidd.communicate(b"\n")
        assert "has this store open" not in CliRunner().invoke(qstore_check.command, [str(copy.path)]).output


def test_looking_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of_lock(path) is None
    path.touch()
    assert holder_of_lock(path) is None
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert holder_of_lock(path) is None, "one that only looks has it"
        fcntl.flock(held, fcntl.LOCK_EX)
        assert holder_of_lock(path) == os.getpid()
    assert holder_of_lock(path) is None


def test_a_file_of_the_same_number_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device numbers differ from those in the list on some file systems: then the process's own files tell."""
    path, other = tmp_path / "lock", tmp_path / "other"
    path.touch()
    listed = tmp_path / "locks"
    monkeypatch.setattr("qstore.store.inspect.layout._LOCKS", listed)
    inode = path.stat().st_ino
    listed.write_text(
        f"1: FLOCK  ADVISORY  WRITE {os.getpid()} ff:ff:{inode} 0 EOF\n2: -> FLOCK ADVISORY WRITE 1 0:0:1 0\n"
    )
    assert holder_of_lock(path) is None
    with path.open():
        assert holder_of_lock(path) == os.getpid()
    with other.open("w"):
        assert holder_of_lock(path) is None


# ---- A store that a broker has is not recovered: it changes while it is read ----


def test_a_store_that_a_broker_has(tmp_path: Path) -> None:
    store = version_2_store(tmp_path / "store").copy(tmp_path / "copy").path
    lock = StoreDirectory(tool_environment(), str(store), "").lock()
    before = snapshot(store)
    for source in (store, store / "rhm", store / "rhm" / "jrnl" / "1"):
        recovery = recover(source, tmp_path / "new")
        assert recovery.report.code == 2
        assert "a broker is running on this store" in recovery.report.errors
    lock.release()
    assert snapshot(store) == before
    assert recover(store, tmp_path / "new").report.code == 0
    assert os.path.lexists(store / "rhm.lock")
