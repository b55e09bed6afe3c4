"""Progress of long work over a store: a bar on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from store.disk import Disk, ReadableFile


class _CountedFile:
    """A file that tells how much was read of it."""

    def __init__(self, file: ReadableFile, progress: ReadingProgress) -> None:
        self._file = file
        self._progress = progress

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, offset: int, length: int) -> bytes:
        chunk = self._file.read(offset, length)
        self._progress.add(len(chunk))
        return chunk

    def close(self) -> None:
        self._file.close()


class ReadingProgress:
    """A disk that shows how much was read through it.

    Args:
        disk: the disk that does the work.
        bar: where it is shown.
    """

    def __init__(self, disk: Disk, bar: Progress) -> None:
        self._disk = disk
        self._bar = bar
        self._task = bar.add_task("reading", total=None)

    def expect(self, what: str, total: int) -> None:
        """A new stretch of work begins, of `total` bytes."""
        self._bar.reset(self._task, total=total, description=what)

    def add(self, count: int) -> None:
        """So many bytes were read."""
        self._bar.advance(self._task, count)

    def open(self, path: str) -> _CountedFile:
        """Open a file for reading."""
        return _CountedFile(self._disk.open(path), self)

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


@contextmanager
def reading_progress(disk: Disk) -> Iterator[ReadingProgress | None]:
    """A progress bar for reading through `disk`; None where nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield ReadingProgress(disk, bar)
