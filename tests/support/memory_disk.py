"""A `store.disk.Disk` and a `store.key_value.KeyValue` in memory."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from qstore.store.key_value import CatalogueError, MapDamage


class BadRegion(NamedTuple):
    """Bytes `start` to `end` of a file, which cannot be read."""

    path: str
    start: int
    end: int


class MemoryDisk:
    """Files in a dict, open to tests that want to damage them.

    Attributes:
        files: path → content.
        unopenable: paths whose `open` fails with EACCES.
        bad_regions: where reading fails with EIO.
        open_now, max_open: descriptors in use, now and at most so far.
        reads, bytes_read: how often and how much was read.
    """

    def __init__(self, files: Mapping[str, bytes | bytearray] | None = None) -> None:
        self.files: dict[str, bytes | bytearray] = dict(files or {})
        self.unopenable: set[str] = set()
        self.bad_regions: list[BadRegion] = []
        self.open_now = 0
        self.max_open = 0
        self.reads = 0
        self.bytes_read = 0

    def open(self, path: str) -> MemoryFile:
        if path in self.unopenable:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.open_now += 1
        self.max_open = max(self.max_open, self.open_now)
        return MemoryFile(self, path)

    def names(self, directory: str) -> list[str]:
        prefix = directory.rstrip("/") + "/"
        found = {path[len(prefix) :].split("/", 1)[0] for path in self.files if path.startswith(prefix)}
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        return sorted(found)

    def is_directory(self, path: str) -> bool:
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)

    def is_file(self, path: str) -> bool:
        return posixpath.normpath(path) in self.files

    def real_path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", path))

    def link_target(self, path: str) -> str | None:
        return None

    def version(self, path: str) -> str:
        return ""


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._content = disk.files[path]
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, offset: int, length: int) -> bytes:
        assert not self._closed
        for path, start, end in self._disk.bad_regions:
            if path == self._path and offset < end and start < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        chunk = bytes(self._content[offset : offset + length])
        self._disk.reads += 1
        self._disk.bytes_read += len(chunk)
        return chunk

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_now -= 1


class MemoryKeyValue:
    """Keeps everything in a dict; `contents` is open to tests that want to damage it, `checkpoints` are by path."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.checkpoints: dict[str, MemoryKeyValue] = {}
        self.batches = 0
        self.damage: tuple[MapDamage, ...] = ()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self.contents.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        return iter(sorted((key, value) for key, value in self.contents.items() if key.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._check_open()
        self.batches += 1
        for key, value in changes.items():
            if value is None:
                self.contents.pop(key, None)
            else:
                self.contents[key] = value

    def checkpoint(self, directory: str) -> None:
        self._check_open()
        if directory in self.checkpoints:
            raise CatalogueError(f"{directory} exists")
        copy = self.checkpoints[directory] = MemoryKeyValue()
        copy.contents = self.contents.copy()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogueError("the map is closed")
