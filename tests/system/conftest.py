"""Fixtures of the system tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running_broker import make_broker
from tests.support.temporary import directory_on_disk
from tests.system.broker_canary import canary, hostile_broker

__all__ = ["canary", "hostile_broker", "make_broker", "tmp_path"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own; on a disk, as a broker's data are."""
    with directory_on_disk() as path:
        yield path
