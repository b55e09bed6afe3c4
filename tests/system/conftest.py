"""Fixtures of the system tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.forked import Forked
from tests.support.running_broker import make_broker
from tests.support.temporary import directory_on_disk
from tests.system.broker_canary import canary, hostile_broker

__all__ = ["canary", "hostile_broker", "make_broker", "tmp_path"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own; on a disk, as a broker's data are."""
    with directory_on_disk() as path:
        yield path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory of the brokers of `start`."""
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Forked]]:
    """Starts qpidd with options, and with variables in its environment; what is left of it in the end is killed."""
    started: list[Forked] = []

    def start_it(*options: str, **variables: str) -> Forked:
        process = Forked(
            [sys.executable, "-m", "qstore.broker.process.qpidd", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"HOME": str(home)} | variables,
        )  # fmt: skip
        started.append(process)
        return process

    yield start_it
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
