"""Limits of a backup's effort: niceness, and a limit of what it reads in a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qstore.store.backup.create as chunks
from qstore.store.backup.create import ChunkWriter, Effort
from qstore.store.backup.repository import CHUNK_SIZE, DiskRepository
from qstore.store.backup.sources import Read, SourceFile
from qstore.store.disk import OsWritableDisk


def niceness() -> int:
    """That of this thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


class _Repository(DiskRepository):
    """Notes the niceness of the threads that write."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsWritableDisk(), str(path))
        self.found: set[int] = set()

    def put(self, name: str, content: bytes) -> None:
        self.found.add(niceness())
        super().put(name, content)


@contextmanager
def opened() -> Iterator[Read]:
    """A file in which no chunk is as another one."""
    yield lambda _, length: os.urandom(1024) + bytes(length - 1024)


class _Clock:
    """Time passes only in sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def write(place: _Repository, effort: Effort, count: int) -> tuple[int, int]:
    """Write a file of `count` chunks. Returns how often `alive` was called, and the bytes that were new."""
    calls = 0

    def alive() -> None:
        nonlocal calls
        calls += 1

    lock = place.lock()
    try:
        with ChunkWriter(place, set(), effort, lambda _: None) as writer:
            writer.alive = alive
            writer.write(SourceFile("file", count * CHUNK_SIZE, opened), [])
            writer.finish()
            return calls, writer.new
    finally:
        lock.release()


@pytest.mark.parametrize("wanted", [0, 7, 19])
def test_the_threads_stand_back(tmp_path: Path, wanted: int) -> None:
    place, before = _Repository(tmp_path / "place"), niceness()
    assert write(place, Effort(2, wanted), 3)[1] == 3 * CHUNK_SIZE
    assert place.found == {max(before, wanted)}
    assert niceness() == before


def test_no_more_is_read_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(chunks, "time", clock)
    write(_Repository(tmp_path / "place"), Effort(2), 3)
    assert clock.now == 0
    calls, _ = write(_Repository(tmp_path / "slow"), Effort(2, 0, CHUNK_SIZE // 20), 3)
    assert clock.now == pytest.approx(60)
    assert calls >= 12  # the broker releases a snapshot of which it hears nothing for 30 seconds
