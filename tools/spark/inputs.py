"""Inputs: paths, globs and URLs, how each is opened, and the disk that reads those that are not local.

A path with a protocol ("s3://…", "memory://…") is read through fsspec, every other one from the local disk. Inputs are
values that can be sent to another machine, which opens the store again.

At a URL random access is slow, and the journal's readers read small adjacent pieces: so a file is fetched in blocks, of
which the last few are cached. There are no links; directories may exist only as parts of names.
"""

from __future__ import annotations

import dataclasses
import errno
import glob
import json
import os
import posixpath
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from qstore.formats.named_tuple import NamedTuple
from qstore.store.disk import Disk, OsDisk
from qstore.store.inspect.layout import StoreLayout, UnusableInputError, find_layout
from qstore.store.inspect.offline import OfflineStore
from qstore.store.journal.directory import NotAJournalError
from qstore.tools.spark.columns import OptionError

BLOCK: Final = 4 << 20  # bytes per fetch
_KEPT: Final = 3  # cached blocks per open file

_T = TypeVar("_T")


def _call(path: str, function: Callable[[], _T]) -> _T:
    """Call a file system. Some raise exceptions of their own, but readers expect OSError with a file name."""
    try:
        return function()
    except FileNotFoundError as error:  # of some without a number
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
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


# ---- inputs ----

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")
_GLOB: Final = re.compile(r"[*?\[]")


class Input(NamedTuple):
    """A path that was named, or matched by a glob.

    Attributes:
        path: the displayed path: a local one, or a URL.
        storage_options: options for fsspec: sorted pairs.
    """

    path: str
    storage_options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_remote(self) -> bool:
        """Whether fsspec reads it."""
        return _URL.match(self.path) is not None

    def disk(self) -> tuple[Disk, str]:
        """The disk to read from, and the path on it.

        Raises:
            OSError: the file system cannot be reached.
            OptionError: fsspec, or a package that it needs for the protocol, is not installed.
        """
        if not self.is_remote:
            return OsDisk(), self.path
        system, path = _file_system(self)
        return RemoteDisk(system), path.rstrip("/") or "/"

    def shown(self, path: str) -> str:
        """A path of this input's disk as displayed."""
        if not self.is_remote:
            return path
        system, _ = _file_system(self)
        return str(system.unstrip_protocol(path))


def _file_system(source: Input) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(source.path, **dict(source.storage_options))
    except ImportError as error:
        raise OptionError(
            f"{source.path}: {error}; pip install 'qstore[spark]' and the package for this protocol"
        ) from None
    except ValueError as error:
        raise OptionError(f"{source.path}: {error}") from None
    return system, str(path)


class Output:
    """A file of results that is being written; its directory is created.

    Args:
        path: a local path, or a URL.

    Attributes:
        file: where to write: the path, or an open file.

    Raises:
        OSError: it cannot be written.
        OptionError: as of `Input.disk`.
    """

    def __init__(self, path: str) -> None:
        self.file: Any = path
        self._opened: Any = None
        target = Input(path)
        if not target.is_remote:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return
        system, name = _file_system(target)
        _call(name, lambda: system.makedirs(posixpath.dirname(name), exist_ok=True))
        self.file = self._opened = _call(name, lambda: system.open(name, "wb"))

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        if self._opened is not None:
            _call("", self._opened.close)


def named_inputs(options: Mapping[str, str]) -> list[Input]:
    """The inputs in the options `path` or `paths`, globs resolved, without duplicates.

    Raises:
        OptionError: there are none, or an option cannot be parsed.
    """
    patterns = named_patterns(options)
    storage_options = _storage_options(options.get("storage_options"))
    found: dict[str, Input] = {}
    for pattern in patterns:
        for path in _matches(Input(pattern, storage_options)):
            found.setdefault(path, Input(path, storage_options))
    if not found:
        raise OptionError(f"no input: nothing matches {', '.join(patterns)}")
    return list(found.values())


def named_patterns(options: Mapping[str, str]) -> list[str]:
    """The paths, globs and URLs in the options `path` and `paths`.

    Raises:
        OptionError: there are none, or one of these options, or `storage_options`, cannot be parsed.
    """
    _storage_options(options.get("storage_options"))
    patterns: list[Any] = [options["path"]] if "path" in options else []
    if "paths" in options:
        try:
            paths = json.loads(options["paths"])
        except ValueError:
            paths = None
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise OptionError(f"option paths: must be a JSON list of paths, not {options['paths']!r}")
        patterns += paths
    if not patterns:
        raise OptionError("no input: name a path, a glob, or a list of them, in load(…) or OPTIONS (path …)")
    if not all(patterns):
        raise OptionError("no input: a path is empty")
    return patterns


def _storage_options(text: str | None) -> tuple[tuple[str, Any], ...]:
    if text is None:
        return ()
    try:
        return tuple(sorted(json.loads(text).items()))
    except (ValueError, AttributeError):
        raise OptionError("option storage_options: must be a JSON object") from None


def _matches(pattern: Input) -> list[str]:
    """The paths that match a pattern. An existing file of exactly that name takes precedence."""
    if not _GLOB.search(pattern.path):
        return [pattern.path]
    if not pattern.is_remote:
        return [pattern.path] if Path(pattern.path).exists() else sorted(glob.glob(pattern.path))  # noqa: PTH207  # any path, absolute or not
    system, path = _file_system(pattern)
    return sorted(str(system.unstrip_protocol(match)) for match in system.glob(path))


def layout_of(source: Input) -> tuple[Disk, StoreLayout]:
    """The layout of the store at an input.

    Raises:
        UnusableInputError: nothing that could be read as a store.
        OSError: it cannot be read.
    """
    disk, path = source.disk()
    return disk, find_layout(disk, path)


@contextmanager
def opened(source: Input) -> Iterator[OfflineStore]:
    """The store at an input, with its catalogue, which is copied first if it is remote.

    Raises:
        UnusableInputError: nothing that could be read as a store.
        OSError: it cannot be read.
    """
    disk, layout = layout_of(source)
    with tempfile.TemporaryDirectory(prefix="qstore-catalogue-") as name:
        if isinstance(disk, RemoteDisk) and layout.catalogue is not None:
            disk.fetch(layout.catalogue, Path(name))
            layout = dataclasses.replace(layout, catalogue=name)
        try:
            store = OfflineStore(disk, layout)
        except NotAJournalError as error:
            raise UnusableInputError(str(error)) from None
        try:
            yield store
        finally:
            store.close()
