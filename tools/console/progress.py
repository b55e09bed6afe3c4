"""Progress of long operations: a bar on standard error if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from qstore.store.disk import Disk, ReadableFile
from qstore.tools.console.command import pipe_signal_waits


class Bar:
    """A progress bar for one task.

    Args:
        progress: the display that draws it.
        task: the task.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begin(self, what: str, total: float | None = None) -> None:
        """Start a new phase of `total` steps, if the number is known."""
        self._progress.reset(self._task, total=total, description=what)

    def advance(self, count: float) -> None:
        """Add completed steps."""
        self._progress.advance(self._task, count)

    def set(self, done: float, total: float) -> None:
        """Set the completed and the total number of steps."""
        self._progress.update(self._task, completed=done, total=total)

    def stop(self) -> None:
        """Remove the bar, because other output follows on the terminal."""
        self._progress.stop()


@contextmanager
def progress_bar(what: str, *columns: ProgressColumn, total: float | None = None) -> Iterator[Bar | None]:
    """A bar that lasts until the block ends; None if standard error is not a terminal.

    Args:
        what: label of the operation.
        columns: shown to the right of the bar.
        total: number of steps, if known.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with (
        pipe_signal_waits(),
        Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console, transient=True) as progress,
    ):
        yield Bar(progress, progress.add_task(what, total=total))


def _of_bytes() -> tuple[ProgressColumn, ...]:
    return DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()


@contextmanager
def writing_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a callback that takes the bytes written and `total`, and moves a bar."""
    with progress_bar(what, *_of_bytes(), total=total) as bar:
        yield (lambda _: None) if bar is None else bar.advance


@contextmanager
def bytes_progress() -> Iterator[tuple[Callable[[str, int], None], Callable[[int], None]]]:
    """Yields two callbacks: one begins a stage of a number of bytes, the other takes numbers of bytes done."""
    with progress_bar("opening", *_of_bytes()) as bar:
        if bar is None:
            yield (lambda *_: None), (lambda _: None)
        else:
            yield bar.begin, bar.advance


@contextmanager
def reading_progress(disk: Disk) -> Iterator[CountingDisk]:
    """A disk like `disk` whose reads move a bar."""
    with progress_bar("opening", *_of_bytes()) as bar:
        yield CountingDisk(disk, bar)


class _CountedFile:
    """A file that counts the bytes read from it."""

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
        disk: the underlying disk.
        bar: the progress bar; None if there is no terminal.
    """

    def __init__(self, disk: Disk, bar: Bar | None) -> None:
        self._disk = disk
        self._bar = bar

    def expect(self, what: str, total: int) -> None:
        """Start a new phase of `total` bytes."""
        if self._bar is not None:
            self._bar.begin(what, total)

    def add(self, count: int) -> None:
        """Add bytes that were read."""
        if self._bar is not None:
            self._bar.advance(count)

    def done(self) -> None:
        """Remove the bar, because other output follows on the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def open(self, path: str) -> ReadableFile:
        """Open a file for reading."""
        return self._disk.open(path) if self._bar is None else _CountedFile(self._disk.open(path), self)

    def names(self, directory: str) -> list[str]:
        """Sorted names in a directory."""
        return self._disk.names(directory)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return self._disk.is_directory(path)

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file."""
        return self._disk.is_file(path)

    def real_path(self, path: str) -> str:
        """Absolute path with symbolic links resolved."""
        return self._disk.real_path(path)

    def link_target(self, path: str) -> str | None:
        """Target of the symbolic link at `path`."""
        return self._disk.link_target(path)

    def version(self, path: str) -> str:
        """What changes when a file is written to or replaced."""
        return self._disk.version(path)
