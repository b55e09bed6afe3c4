"""Copies of a directory in every state that a kill could leave of work on it.

The disk is a real one, and so is the catalogue: before and after each change of a name in the directory the whole of it
is copied, as a kill would leave it there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from qstore.store.disk import OsLock, OsWritableDisk

_MARKS: Final = ("STORE", "CONVERTED", "RECOVERING", "RECOVERED", "rhm.lock", "deleted", "topology")
_SUFFIXES: Final = (".jinf", ".db", ".raw")


class CopyingDisk(OsWritableDisk):
    """Copies a directory before each change of names in it, if its directories and marks are not those of a copy.

    Args:
        watched: the directory.
        copies: a directory for the copies, which are numbered.
        note: called with each new copy.
    """

    def __init__(self, watched: Path, copies: Path, note: Callable[[Path], None] = lambda _: None) -> None:
        super().__init__()
        self._watched, self._copies, self._note = watched, copies, note
        self._seen: set[frozenset[str]] = set()
        self.states: list[Path] = []

    def look(self) -> None:
        """Copy it, if it is worth it."""
        if not self._watched.exists():
            return
        shape = frozenset(filter(None, map(self._told, self._watched.rglob("*"))))
        if shape in self._seen:
            return
        self._seen.add(shape)
        self.states.append(self._copies / f"{len(self.states):03}")
        shutil.copytree(self._watched, self.states[-1], symlinks=True, copy_function=_copy)
        self._note(self.states[-1])

    def _told(self, path: Path) -> str:
        """What makes a state another one: directories, marks, sizes of an index and of RocksDB's log; no data files."""
        name = str(path.relative_to(self._watched))
        if "/catalogue" in name and not path.is_dir():
            return f"{name} {path.stat().st_size}" if path.suffix == ".log" else ""
        if path.name.startswith("index.jsonl"):
            return f"{name} {path.stat().st_size}"
        return name if path.is_dir() or path.name in _MARKS or path.suffix in _SUFFIXES else ""

    def rename(self, source: str, target: str) -> None:
        self.look()
        super().rename(source, target)
        self.look()

    def remove(self, path: str) -> None:
        self.look()
        super().remove(path)
        self.look()

    def remove_directory(self, path: str) -> None:
        self.look()
        super().remove_directory(path)
        self.look()

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self.look()

    def sync_directory(self, path: str) -> None:
        self.look()
        super().sync_directory(path)

    def lock(self, path: str) -> OsLock:
        lock = super().lock(path)
        self.look()
        return lock


def _copy(source: str, target: str) -> None:
    """Copy a file. What was allocated and not written is a hole in the copy: journals are nearly nothing else."""
    with open(source, "rb") as file, open(target, "wb") as copy:
        size = os.fstat(file.fileno()).st_size
        for start, end in _extents(file.fileno(), size):
            file.seek(start)
            copy.seek(start)
            copy.write(file.read(end - start))
        copy.truncate(size)
    shutil.copystat(source, target)


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end
