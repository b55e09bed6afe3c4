"""Progress of long work over a store: a bar on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from store.disk import Disk, ReadableFile


class _CountedFile:
    """A file that tells how much was read of it."""

    def __init__(self, file: ReadableFile, disk: CountingDisk) -> None:
        self._file = file
        self._disk = disk

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, offset: int, length: int) -> bytes:
        chunk = self._file.read(offset, length)
        self._disk.add(len(chunk))
        return chunk

    def close(self) -> None:
        self._file.close()


class CountingDisk:
    """A disk that shows how much was read through it.

    Args:
        disk: the disk that does the work.
        bar: where it is shown; None where nobody would see it.
    """

    def __init__(self, disk: Disk, bar: Progress | None) -> None:
        self._disk = disk
        self._bar = bar
        self._task = None if bar is None else bar.add_task("opening", total=None)

    def expect(self, what: str, total: int) -> None:
        """A new stretch of work begins, of `total` bytes."""
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=total, description=what)

    def add(self, count: int) -> None:
        """So many bytes were read."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)

    def done(self) -> None:
        """Take the bar away: what follows is shown on the terminal itself."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def open(self, path: str) -> ReadableFile:
        """Open a file for reading."""
        return self._disk.open(path) if self._bar is None else _CountedFile(self._disk.open(path), self)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._disk.names(directory)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return self._disk.is_directory(path)

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file."""
        return self._disk.is_file(path)

    def real_path(self, path: str) -> str:
        """`path` made absolute, its links followed."""
        return self._disk.real_path(path)

    def link_target(self, path: str) -> str | None:
        """Where the symbolic link at `path` points."""
        return self._disk.link_target(path)


@contextmanager
def reading_progress(disk: Disk) -> Iterator[CountingDisk]:
    """A disk like `disk` whose reading moves a bar, on standard error where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield CountingDisk(disk, None)
        return
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield CountingDisk(disk, bar)
