"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore.store.disk import OsWritableDisk, OsWritableFile
from qstore.store.environment import Environment, system_environment, tool_environment
from tests.faults.conftest import tiny_blocks
from tests.support.old_store import OldStore
from tests.support.sync_files import FileMaker, PipeFile

__all__ = ["environment", "make_files", "old", "path", "pipe_file", "tiny_blocks"]


@pytest.fixture(params=["tool", "system"])
def environment(request: pytest.FixtureRequest) -> Environment:
    return tool_environment() if request.param == "tool" else system_environment()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def old() -> OldStore:
    """One without topology: each journal is a queue."""
    return OldStore()


@pytest.fixture
def make_files(tmp_path: Path) -> Iterator[FileMaker]:
    made: list[OsWritableFile] = []

    def make(count: int) -> list[OsWritableFile]:
        files = [OsWritableDisk().create(str(tmp_path / f"{len(made) + number}"), 4096) for number in range(count)]
        for file in files:
            file.write(0, b"x" * 512)
        made.extend(files)
        return files

    yield make
    for file in made:
        file.close()


@pytest.fixture
def pipe_file() -> Iterator[PipeFile]:
    file = PipeFile()
    yield file
    file.close()
