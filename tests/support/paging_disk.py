"""A disk for paging files, in memory, that is full, fails and flips bits on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from qstore.broker.model.message import Message, NewMessage
from qstore.broker.model.queues.entry import AVAILABLE, Entry
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.formats.values import EMPTY_MAP


class MemoryPagingFile:
    """An open file."""

    def __init__(self, disk: MemoryPagingDisk, path: str) -> None:
        self._disk, self._path = disk, path
        self.is_open = True

    def _content(self) -> bytearray:
        assert self.is_open, "a closed file is used"
        return self._disk.contents[self._path]

    def read(self, offset: int, length: int) -> bytes:
        self._disk.reads += 1
        if self._disk.fails_reading:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self._content()[offset : offset + length])

    def read_cached(self, offset: int, length: int) -> bytes | None:
        return self.read(offset, length) if self._disk.has_cache else None

    def read_ahead(self, offset: int, length: int) -> None:
        self._disk.read_ahead.append((offset, length))

    def write(self, offset: int, content: bytes) -> None:
        self._disk.writes += 1
        if error := self._disk.write_error:
            raise OSError(error, os.strerror(error))
        file = self._content()
        if self._disk.size + max(offset + len(content) - len(file), 0) > self._disk.capacity:
            file[offset : offset + len(content) // 2] = content[: len(content) // 2]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(file) < offset:
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(content)] = content

    def truncate(self, size: int) -> None:
        file = self._content()
        del file[size:]
        file.extend(bytes(size - len(file)))

    def close(self) -> None:
        self.is_open = False
        self._disk.open_files.discard(self)


class MemoryPagingDisk:
    """A disk.

    Attributes:
        contents: path -> content.
        open_files: the files that are open.
        capacity: bytes that it has in all.
        write_error: error number of every write; 0 for none.
        fails_reading: whether every read fails.
        has_cache: whether everything is in the page cache.
        read_ahead: what was to be read ahead.
        reads, writes: how often files were read and written to.
    """

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.contents: dict[str, bytearray] = {}
        self.directories: set[str] = set()
        self.open_files: set[MemoryPagingFile] = set()
        self.capacity = capacity
        self.write_error = 0
        self.fails_reading = False
        self.has_cache = True
        self.read_ahead: list[tuple[int, int]] = []
        self.reads = self.writes = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.contents.values()))

    def create(self, path: str, size: int) -> MemoryPagingFile:
        if path in self.contents:
            raise FileExistsError(path)
        if path.rpartition("/")[0] not in self.directories:
            raise FileNotFoundError(path)
        self.contents[path] = bytearray(size)
        return self.open_writable(path)

    def open_writable(self, path: str) -> MemoryPagingFile:
        if path not in self.contents:
            raise FileNotFoundError(path)
        file = MemoryPagingFile(self, path)
        self.open_files.add(file)
        return file

    def names(self, directory: str) -> list[str]:
        paths = (*self.contents, *self.directories)
        return [path.rpartition("/")[2] for path in paths if path.rpartition("/")[0] == directory]

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def make_directory(self, path: str) -> None:
        if path in self.directories:
            raise FileExistsError(path)
        self.directories.add(path)

    def size_of(self, path: str) -> int:
        if path not in self.contents:
            raise FileNotFoundError(path)
        return len(self.contents[path])

    def remove(self, path: str) -> None:
        if path not in self.contents:
            raise FileNotFoundError(path)
        del self.contents[path]

    def remove_directory(self, path: str) -> None:
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.directories.remove(path)

    def space(self, _path: str) -> tuple[int, int]:
        return self.capacity - self.size, self.capacity


class LateRuns:
    """A `Run` that does the work on demand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append(lambda: done(work()))

    def go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()


def message_of(body: bytes, expires_at: float = 0.0) -> Message:
    """A transient message."""
    return new_transfer(NewMessage("key", EMPTY_MAP, content=body, exchange="amq.direct", expires_at=expires_at))


def entry_of(message: Message, position: int = 1) -> Entry:
    """An entry that is on no queue."""
    entry = Entry.__new__(Entry)
    entry.message, entry.position, entry.state, entry.rid, entry.is_redelivered = message, position, AVAILABLE, 0, False
    return entry
