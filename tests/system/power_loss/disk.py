"""A disk that loses what was not synced, and fails on command, under processes that know nothing of it.

`unsynced.c`, which is built where there is a compiler, is loaded into them (LD_PRELOAD) and notes what they change
below one directory; what they sync is crossed out. `UnsyncedDisk.lose` plays power loss: of what is left in the notes
it undoes everything, or what chance says, sector by sector, as a disk's cache leaves it. Names come back too: files and
directories that were made, removed or renamed in a directory that was not synced after that. That is POSIX to the
letter; ext4 keeps more.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.processes import PATIENCE_SECONDS

SECTOR: Final = 512
_SOURCE: Final = Path(__file__).with_name("unsynced.c")
_NOTE: Final = struct.Struct("=QQQ")
_FAILURE: Final = struct.Struct("=iiii")
_PATH_BYTES: Final = 64


class Call(IntEnum):
    """What may fail: `enum kind` of unsynced.c."""

    SYNC = 0
    WRITE = 1
    NAME = 2


_CONTROL_BYTES: Final = len(Call) * _FAILURE.size + _PATH_BYTES


def build(directory: Path) -> Path:
    """The library, built in `directory`. Skips the test where there is no compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = directory / "unsynced.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, _SOURCE]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True, timeout=PATIENCE_SECONDS)
    return library


class _Change(NamedTuple):
    """A change of a directory: a line of the notes.

    Attributes:
        kind: "A", "D", "R" or "M".
        directory, name: what was changed; the directory by its inode.
        to_directory, to_name: of a move.
        kept: number of the link to a file that went; 0 if there is none. Of a directory that went its inode.
    """

    kind: str
    directory: int
    name: str
    to_directory: int
    to_name: str
    kept: int


class UnsyncedDisk:
    """A directory on such a disk.

    Args:
        library: `build`.
        root: the directory. What is in it now is synced.
        notes: one beside it.

    Attributes:
        environment: variables for the processes.
    """

    def __init__(self, library: Path, root: Path, notes: Path) -> None:
        self.root, self._notes = root.resolve(), notes
        root.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "LD_PRELOAD": str(library),
            "UNSYNCED_ROOT": str(self.root),
            "UNSYNCED_NOTES": str(notes.resolve()),
        }
        self._begin()

    def _begin(self) -> None:
        """Everything is synced now, and nothing fails."""
        shutil.rmtree(self._notes, ignore_errors=True)
        self._notes.mkdir(parents=True)
        with (self._notes / "control").open("w+b") as file:
            file.truncate(_CONTROL_BYTES)
            self._control = mmap.mmap(file.fileno(), _CONTROL_BYTES)

    # ---- failing ----

    def fail(self, call: Call, error: int = errno.EIO, *, after: int = 0, count: int = -1, where: str = "") -> None:
        """From now on calls of this kind fail.

        Args:
            call: which.
            error: with this number; 0: they succeed again.
            after: so many succeed before.
            count: so many fail then; -1: all.
            where: only those on paths with this in them; it holds for all kinds.
        """
        path = where.encode().ljust(_PATH_BYTES, b"\0")
        assert len(path) == _PATH_BYTES
        self._control[len(Call) * _FAILURE.size :] = path
        # The error last: where it is 0 nobody looks at the rest.
        _FAILURE.pack_into(self._control, call * _FAILURE.size, 0, after, count, 0)
        struct.pack_into("=i", self._control, call * _FAILURE.size, error)

    def failures(self, call: Call) -> int:
        """How many calls of a kind have failed since `fail`."""
        done: int = _FAILURE.unpack_from(self._control, call * _FAILURE.size)[3]
        return done

    # ---- power loss ----

    def lose(self, source: random.Random | None = None) -> int:
        """The power was lost, and is back: all users of the directory are dead. Returns how many things were undone.

        Args:
            source: what decides, of each sector and each name, whether it had reached the disk; None: none had.
        """
        files = dict(self._inodes())
        undone = sum(self._undo_data(path, files, source) for path in self._notes.glob("data.*"))
        undone += self._undo_names(source)
        self._begin()
        return undone

    def _inodes(self) -> Iterator[tuple[int, Path]]:
        for top in (self.root, self._notes):
            for path in (top, *top.rglob("*")):
                yield path.lstat().st_ino, path

    def _undo_data(self, note: Path, files: dict[int, Path], source: random.Random | None) -> int:
        path = files.get(int(note.suffix[1:]))
        if path is None:
            return 0  # it was removed for good
        now = path.read_bytes()
        old = bytearray(now)
        for size, offset, content in reversed(list(_read_notes(note))):
            old[offset : offset + len(content)] = content
            del old[size:]
            old.extend(bytes(size - len(old)))
        if source is not None:
            old = _mixed(now, old, source)
        path.write_bytes(old)
        return old != now

    def _undo_names(self, source: random.Random | None) -> int:
        changes, synced = _read_names(self._notes / "names")
        lost = [change for at, change in enumerate(changes) if not _is_durable(at, change, synced)]
        if source is not None:  # a journaling file system loses the last ones
            lost = lost[source.randint(0, len(lost)) :]
        made_again: dict[int, int] = {}
        for change in reversed(lost):
            self._undo(change, made_again)
        return len(lost)

    def _undo(self, change: _Change, made_again: dict[int, int]) -> None:
        """Undo a change; `made_again` has the inodes of directories that are back, by those that they had before."""
        found = {path.stat().st_ino: path for path in (self.root, *self.root.rglob("*")) if path.is_dir()}
        found.update({before: found[now] for before, now in made_again.items() if now in found})
        there, target = found.get(change.directory), found.get(change.to_directory)
        if there is None:
            return  # the directory itself is not there any more
        path = there / change.name
        if change.kind == "A":
            _remove(path)
        elif change.kind == "R":
            path.mkdir(exist_ok=True)
            made_again[change.kept] = path.stat().st_ino
        elif change.kind == "D":
            self._bring_back(change.kept, path)
        elif target is not None and os.path.lexists(target / change.to_name):
            (target / change.to_name).rename(path)
            self._bring_back(change.kept, target / change.to_name)

    def _bring_back(self, kept: int, path: Path) -> None:
        if kept and not os.path.lexists(path):
            os.link(self._notes / f"kept.{kept}", path)


def _read_notes(note: Path) -> Iterator[tuple[int, int, bytes]]:
    """What a file was before each change: its size, and what stood at an offset. The last may be cut off."""
    content, at = note.read_bytes(), 0
    while at + _NOTE.size <= len(content):
        size, offset, length = _NOTE.unpack_from(content, at)
        at += _NOTE.size
        if at + length > len(content):
            return
        yield size, offset, content[at : at + length]
        at += length


def _mixed(now: bytes, old: bytearray, source: random.Random) -> bytearray:
    """Each sector, and the size, as it is or as it was."""
    mixed = bytearray(old)
    for offset in range(0, min(len(now), len(old)), SECTOR):
        if source.random() < 0.5:
            mixed[offset : offset + SECTOR] = now[offset : offset + SECTOR][: len(old) - offset]
    return mixed


def _read_names(path: Path) -> tuple[list[_Change], dict[int, int]]:
    """The changes in their order; and of each directory that was synced, how many came before."""
    changes: list[_Change] = []
    synced: dict[int, int] = {}
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        kind, directory, *rest = line.split(" ")
        if kind == "S":
            synced[int(directory)] = len(changes)
        elif kind == "M":
            changes.append(_Change(kind, int(directory), rest[0], int(rest[1]), rest[2], int(rest[3])))
        else:
            changes.append(_Change(kind, int(directory), rest[0], 0, "", int(rest[1]) if kind in "DR" else 0))
    return changes, synced


def _is_durable(at: int, change: _Change, synced: dict[int, int]) -> bool:
    """Whether a directory was synced after the change; of a move between two, which is one step, either."""
    return at < max(synced.get(change.directory, 0), synced.get(change.to_directory, 0))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
