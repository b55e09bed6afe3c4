"""Resolves inputs: paths, globs and URLs, and how each is opened.

A path with a protocol ("s3://…", "memory://…") is read through fsspec, every other one from the local disk. Inputs are
values that can be sent to another machine, which opens the store again.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.store.disk import Disk, OsDisk
from qstore.store.inspect.layout import StoreLayout, UnusableInputError, find_layout
from qstore.store.inspect.offline import OfflineStore
from qstore.store.journal.directory import NotAJournalError
from qstore.tools.spark.columns import OptionError
from qstore.tools.spark.remote_disk import RemoteDisk

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


def named_inputs(options: Mapping[str, str]) -> list[Input]:
    """The inputs in the options `path` or `paths`, globs resolved, without duplicates.

    Raises:
        OptionError: there are none, or an option cannot be parsed.
    """
    storage_options = _storage_options(options.get("storage_options"))
    patterns = [options["path"]] if "path" in options else []
    if "paths" in options:
        try:
            patterns += [str(path) for path in json.loads(options["paths"])]
        except (ValueError, TypeError):
            raise OptionError("option paths: must be a JSON list of paths") from None
    if not patterns:
        raise OptionError("no input: name a path, a glob, or a list of them in load(…)")
    found: dict[str, Input] = {}
    for pattern in patterns:
        for path in _matches(Input(pattern, storage_options)):
            found.setdefault(path, Input(path, storage_options))
    if not found:
        raise OptionError(f"no input: nothing matches {', '.join(patterns)}")
    return list(found.values())


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
