"""Files that sync drivers are given."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from qstore.store.disk import OsWritableFile
from qstore.store.sync import Completion, SyncDriver
from qstore.store.sync.io_uring import KernelRing
from tests.support.processes import PATIENCE_SECONDS


class PipeFile(OsWritableFile):
    """A file that cannot be synced: a pipe's end, EINVAL."""

    def __init__(self) -> None:
        self._path = "pipe"
        self._size = 0
        self._descriptor, self._other = os.pipe()

    def close(self) -> None:
        super().close()
        os.close(self._other)


FileMaker = Callable[[int], list[OsWritableFile]]
"""Makes that many files, each with something to sync."""


def collect(driver: SyncDriver, count: int) -> list[Completion]:
    """That many tickets, in their order, when they have come back; no others come."""
    done: list[Completion] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(done) < count:
        assert time.monotonic() < end
        done += driver.completed(1.0)
    assert driver.completed() == []
    return sorted(done, key=lambda completion: completion[0])


def has_io_uring() -> bool:
    """Whether this system has io_uring, and allows it."""
    try:
        KernelRing(4, 8).close()
    except OSError:
        return False
    return True


needs_io_uring = pytest.mark.skipif(not has_io_uring(), reason="this system has no io_uring, or does not allow it")
IO_URING = pytest.param("io-uring", marks=needs_io_uring)
