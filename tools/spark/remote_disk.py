"""File systems of fsspec (object stores, archives, other machines) as a `store.disk.Disk`.

Random access is slow there, and the journal's readers read small adjacent pieces: so a file is fetched in blocks, of
which the last few are cached. There are no links; directories may exist only as parts of names.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

BLOCK: Final = 4 << 20  # bytes per fetch
_KEPT: Final = 3  # cached blocks per open file

_T = TypeVar("_T")


def _call(path: str, function: Callable[[], _T]) -> _T:
    """Call a file system. Some raise exceptions of their own, but readers expect OSError with a file name."""
    try:
        return function()
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), path) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


class RemoteFile:
    """A `ReadableFile` on a file system of fsspec."""

    __slots__ = ("_blocks", "_path", "_size", "_system")

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        details = _call(path, lambda: system.info(path))
        if details.get("type") != "file":
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._size = int(details.get("size") or 0)
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file. Raises OSError."""
        end = min(offset + length, self._size)
        parts = []
        while offset < end:
            number, start = divmod(offset, BLOCK)
            part = self._block(number)[start : start + end - offset]
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Release the cached blocks."""
        self._blocks.clear()

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            begin, end = number * BLOCK, min((number + 1) * BLOCK, self._size)
            block = bytes(_call(self._path, lambda: self._system.cat_file(self._path, start=begin, end=end)))
            while len(self._blocks) >= _KEPT:
                self._blocks.popitem(last=False)
        self._blocks[number] = block
        return block


class RemoteDisk:
    """The `Disk` for a file system of fsspec; paths are those of that file system, without its protocol."""

    __slots__ = ("_system",)

    def __init__(self, system: Any) -> None:
        self._system = system

    def open(self, path: str) -> RemoteFile:
        """Open the file at `path` for reading. Raises OSError."""
        return RemoteFile(self._system, path)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted. Raises OSError."""
        if not self.is_directory(directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        found = _call(directory, lambda: self._system.ls(directory, detail=False))
        names = {posixpath.basename(str(path).rstrip("/")) for path in found}
        return sorted(names - {"", posixpath.basename(directory.rstrip("/"))} if directory in found else names - {""})

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory. Raises OSError."""
        return bool(_call(path, lambda: self._system.isdir(path)))

    def is_file(self, path: str) -> bool:
        """Whether `path` is a file. Raises OSError."""
        return bool(_call(path, lambda: self._system.isfile(path)))

    def real_path(self, path: str) -> str:
        """Normalized path; there are no links."""
        return posixpath.normpath(path)

    def link_target(self, _path: str) -> str | None:
        """None: there are no links."""
        return None

    def version(self, _path: str) -> str:
        """Unknown."""
        return ""

    def fetch(self, directory: str, target: Path) -> None:
        """Copy the files in a directory to an existing local one. Raises OSError."""
        for name in self.names(directory):
            path = posixpath.join(directory, name)
            if self.is_file(path):
                file = self.open(path)
                with (target / name).open("wb") as out:
                    for offset in range(0, file.size, BLOCK):
                        out.write(file.read(offset, BLOCK))
