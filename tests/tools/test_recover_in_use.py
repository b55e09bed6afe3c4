"""A store that a broker has is not recovered: it changes while it is read."""

from __future__ import annotations

import os
from pathlib import Path

from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.environment import tool_environment
from tests.support.fixtures import snapshot
from tests.support.planted_damage import version_2_store
from tests.support.recover_runs import recover


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
