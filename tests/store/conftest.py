"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.writable_disk import OsWritableDisk, OsWritableFile
from tests.support.sync_files import FileMaker, PipeFile


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
