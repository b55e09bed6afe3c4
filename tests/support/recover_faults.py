"""Disks that fail or die under `qstore-recover`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from qstore.store.disk import OsFile
from qstore.store.writable_disk import OsWritableDisk, OsWritableFile

DISK_CALLS: Final = (
    "create",
    "open_writable",
    "make_directory",
    "rename",
    "remove",
    "remove_directory",
    "sync_directory",
)
FILE_CALLS: Final = ("write", "sync")


class BadRegion(NamedTuple):
    """Bytes `start` to `end` of a file, which the system cannot read."""

    file: str
    start: int
    end: int


def break_reading(monkeypatch: pytest.MonkeyPatch, *regions: BadRegion) -> None:
    """Reads that touch one of the regions fail with EIO."""
    read = OsFile.read

    def bad_read(self: OsFile, offset: int, length: int) -> bytes:
        for file, start, end in regions:
            if self._path == file and offset < end and start < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return read(self, offset, length)

    monkeypatch.setattr(OsFile, "read", bad_read)


def limit_space(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """New files may have so many bytes together; one that is too large makes nothing."""
    create, used = OsWritableDisk.create, [0]

    def bounded(self: OsWritableDisk, path: str, count: int) -> OsWritableFile:
        if used[0] + count > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        used[0] += count
        return create(self, path, count)

    monkeypatch.setattr(OsWritableDisk, "create", bounded)


def sync_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs do nothing: where no test asks what is durable, the disk that the tests run on is spared."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """New files have their size, and no blocks until they are written: most of a small store's are never."""

    def enlarge(descriptor: int, offset: int, length: int) -> None:
        os.truncate(descriptor, max(os.fstat(descriptor).st_size, offset + length))

    monkeypatch.setattr(os, "posix_fallocate", enlarge)


class Killed(BaseException):
    """The process is gone: whatever would go on is not to do anything any more."""


class MortalDisk:
    """Counts the calls that change something, and dies at one of them: it and all later ones do nothing but raise.

    Attributes:
        calls: how many there were.
        last: the call at which it dies; None for never.
    """

    def __init__(self, last: int | None = None) -> None:
        self.calls = 0
        self.last = last

    @contextmanager
    def in_use(self) -> Iterator[MortalDisk]:
        """Everything that is written goes this way."""
        with pytest.MonkeyPatch.context() as patch:
            for holder, names in ((OsWritableDisk, DISK_CALLS), (OsWritableFile, FILE_CALLS)):
                for name in names:
                    patch.setattr(holder, name, self._mortal(getattr(holder, name)))
            yield self

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.last is not None and self.calls >= self.last:
                raise Killed
            return call(*arguments, **named)

        return counted
