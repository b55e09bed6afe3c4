"""A sync driver that starts while the store is recovered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qstore.store.environment import Background, InlineBackground, ThreadBackground, tool_environment
from qstore.store.errors import StoreError
from qstore.store.sync import InlineSync, SyncDriver, SyncDriverError
from qstore.store.sync.supervision import StartingDriver
from tests.support.opened_store import OpenedStore


class Noted(InlineSync):
    """A driver that notes that it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.mark.parametrize("make_background", [InlineBackground, ThreadBackground])
def test_it_is_taken_or_closed(make_background: Callable[[], Background]) -> None:
    driver = Noted()
    starting = StartingDriver(make_background(), lambda: driver)
    assert starting.take() is driver
    starting.close()
    assert not driver.is_closed
    starting = StartingDriver(make_background(), lambda: driver)
    starting.close()
    assert driver.is_closed


def refuse() -> SyncDriver:
    raise SyncDriverError("too many processes")


@pytest.mark.parametrize("make_background", [InlineBackground, ThreadBackground])
def test_one_that_does_not_start(make_background: Callable[[], Background]) -> None:
    starting = StartingDriver(make_background(), refuse)
    with pytest.raises(SyncDriverError, match="too many processes"):
        starting.take()
    starting.close()
    StartingDriver(make_background(), refuse).close()


def test_a_store_without_a_driver_is_not_opened(tmp_path: Path) -> None:
    environment = replace(tool_environment(), make_driver=lambda _: refuse(), make_background=ThreadBackground)
    with pytest.raises(StoreError, match="too many processes"):
        OpenedStore(environment, tmp_path / "store")


def test_a_store_that_cannot_be_opened_leaves_no_driver(tmp_path: Path) -> None:
    driver = Noted()
    environment = replace(tool_environment(), make_driver=lambda _: driver, make_background=ThreadBackground)
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    assert opened.store.close()
    (tmp_path / "store" / "rhm" / "STORE").write_bytes(b"nonsense")
    with pytest.raises(StoreError):
        OpenedStore(environment, tmp_path / "store")
    assert driver.is_closed
