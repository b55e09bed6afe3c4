"""Paging files are removed piece by piece, also at a stop, and after a kill by the next process; others' files stay."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from qstore.broker.model.residency.page_file import PageFile
from qstore.broker.model.residency.paging_directory import (
    HURRIED_FILES,
    MAX_BYTES,
    MAX_FILES,
    STOP_SECONDS,
    PagingDirectory,
    Removal,
)
from qstore.broker.protocols.stored_messages import restore_message
from tests.support.paging_disk import LateRuns, MemoryPagingDisk, MemoryPagingFile, entry_of, message_of

PATH = "/paging"


class KilledError(Exception):
    """The process is gone."""


class MortalDisk(MemoryPagingDisk):
    """A disk whose user is killed before one of its changes.

    Attributes:
        life: changes until then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.life = 1 << 30

    def _change(self) -> None:
        if not self.life:
            raise KilledError
        self.life -= 1

    def create(self, path: str, size: int) -> MemoryPagingFile:
        self._change()
        return super().create(path, size)

    def make_directory(self, path: str) -> None:
        self._change()
        super().make_directory(path)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self._change()
        super().remove_directory(path)


class SlowClock:
    """Each time that it is asked, it is later."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def process(disk: MemoryPagingDisk, clock: Callable[[], float] = lambda: 0.0, **options: Any) -> PagingDirectory:
    directory = PagingDirectory(disk, PATH, random_bits=random.Random(7).getrandbits, clock=clock, **options)
    directory.restore = restore_message
    directory.prepare()
    return directory


def page_out(directory: PagingDirectory, count: int, mark: bytes = b"") -> list[tuple[PageFile, list[int]]]:
    """`count` files with one message each."""
    files = [PageFile(directory, f"q{number}") for number in range(count)]
    return [(file, list(file.keep([entry_of(message_of(mark + b"%d" % n))]))) for n, file in enumerate(files)]


def read_back(files: list[tuple[PageFile, list[int]]]) -> list[Any]:
    return [message and message.body for file, keys in files for message in file.load(keys)]  # type: ignore[attr-defined]


def test_a_stop_that_has_removed_long_enough_leaves_the_rest_to_the_next_process() -> None:
    disk, count = MemoryPagingDisk(), 20 * MAX_FILES
    first = process(disk, SlowClock(STOP_SECONDS / 4))
    page_out(first, count)
    first.close()
    left = len(disk.contents)
    assert count - 5 * MAX_FILES < left < count

    second = process(disk)  # which has removed nothing yet
    assert len(disk.contents) == left
    files = page_out(second, 3, b"new ")
    seen = []
    while len(disk.contents) > 3:
        seen.append(len(disk.contents))
        second.look()
    assert all(before - after <= max(MAX_FILES, before // 16) for before, after in pairwise(seen))
    assert read_back(files) == [b"new 0", b"new 1", b"new 2"]
    second.look()
    assert disk.names(PATH) == ["2.run"]
    second.close()
    assert (disk.contents, disk.directories) == ({}, {PATH})


def test_nothing_grows_from_process_to_process() -> None:
    disk = MemoryPagingDisk()
    for _ in range(20):
        directory = process(disk, SlowClock(STOP_SECONDS / 4))
        page_out(directory, 2 * MAX_FILES)
        for _ in range(3):
            directory.look()
        directory.close()
        assert len(disk.contents) <= 2 * MAX_FILES
    assert len(disk.names(PATH)) <= 2


@pytest.mark.parametrize("life", range(60))
def test_next_process_removes_pages_of_a_killed_one(life: int) -> None:
    disk = MortalDisk()
    disk.life = 12
    with pytest.raises(KilledError):
        page_out(process(disk), 20, b"old ")
    disk.open_files.clear()
    disk.life = life
    try:  # while it removes what the first has left
        directory = process(disk)
        for number in range(4):
            page_out(directory, 3, b"middle ")[number % 3][0].close()
            directory.look()
        directory.close()
    except KilledError:
        disk.open_files.clear()
    disk.life = 1 << 30
    directory = process(disk)
    files = page_out(directory, 5, b"new ")
    for _ in range(4):
        directory.look()
    assert read_back(files) == [b"new %d" % number for number in range(5)]
    assert len(disk.contents) == 5
    assert len(disk.names(PATH)) == 1
    directory.close()
    assert (disk.contents, disk.directories) == ({}, {PATH})


def test_files_of_earlier_versions_and_of_others() -> None:
    disk = MemoryPagingDisk()
    disk.make_directory(PATH)
    for name in ("1.pages", "2.pages", "notes", "x.run"):
        disk.contents[f"{PATH}/{name}"] = bytearray(b"old")
    disk.make_directory(f"{PATH}/7.run")
    disk.contents[f"{PATH}/7.run/1.pages"] = bytearray(b"old")
    disk.contents[f"{PATH}/7.run/mine"] = bytearray(b"of somebody")
    directory = process(disk)
    files = page_out(directory, 1)
    for _ in range(4):
        directory.look()
    assert read_back(files) == [b"0"]
    directory.close()
    assert set(disk.contents) == {f"{PATH}/notes", f"{PATH}/x.run", f"{PATH}/7.run/mine"}


def test_a_long_file_is_cut_off_piece_by_piece() -> None:
    class LongFile(MemoryPagingFile):
        def truncate(self, size: int) -> None:
            sizes.append(size)

    class LongDisk(MemoryPagingDisk):
        def size_of(self, path: str) -> int:
            return sizes[-1]

        def open_writable(self, path: str) -> MemoryPagingFile:
            return LongFile(self, path)

    sizes = [3 * MAX_BYTES + 5]
    disk = LongDisk()
    disk.contents["/a"] = disk.contents["/b"] = bytearray()
    runs = LateRuns()
    removal = Removal(disk, ".pages", runs)
    removal.add("/a")
    runs.go_on()
    while removal.is_waiting:
        removal.look()
        removal.look()  # one at a time
        assert len(runs.waiting) == 1
        runs.go_on()
    assert sizes == [3 * MAX_BYTES + 5, 2 * MAX_BYTES + 5, MAX_BYTES + 5, 5]
    assert list(disk.contents) == ["/b"]


def test_a_disk_that_is_short_of_room_gets_it_sooner() -> None:
    disk = MemoryPagingDisk(1 << 30)
    directory = process(disk)
    page_out(directory, 10 * MAX_FILES)
    again = process(disk)
    again.look()
    assert 9 * MAX_FILES <= len(disk.contents) < 10 * MAX_FILES
    disk.contents["/other"] = bytearray((1 << 30) * 92 // 100)  # 5 % are kept free, and it hurries at 10 %
    again.look()
    assert set(disk.contents) == {"/other"}
    assert 10 * MAX_FILES < HURRIED_FILES


def test_page_file_that_cannot_be_removed_is_left() -> None:
    class StubbornDisk(MemoryPagingDisk):
        def remove(self, path: str) -> None:
            if path.endswith("/3.pages"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().remove(path)

    disk = StubbornDisk()
    directory = process(disk)
    page_out(directory, 5)
    directory.close()
    assert list(disk.contents) == [f"{PATH}/1.run/3.pages"]
    page_out(process(disk), 3)
    assert len(disk.contents) == 4


def test_a_thread_that_has_not_reported_loses_nothing() -> None:
    disk, runs = MemoryPagingDisk(), LateRuns()
    page_out(process(disk), 5)
    directory = process(disk, run=runs)
    directory.look()
    directory.close()  # the threads have ended, and their results were not delivered
    assert (disk.contents, disk.directories) == ({}, {PATH})
