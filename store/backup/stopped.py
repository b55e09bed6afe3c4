"""A store that is not running, of any format, as it is on the disk: its files are backed up byte for byte.

Of a qstore store that was closed cleanly, the record of the close tells the last flush of each journal.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator
from functools import partial
from typing import Final

from qstore.store.backup.manifest import BackupLink, is_safe
from qstore.store.backup.source import Read, SourceFile, SourceJournal
from qstore.store.catalogue.store_directory import LOCK
from qstore.store.disk import Disk
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, StoreLockedError
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_layout
from qstore.store.recovery.close_record import closing_of
from qstore.store.repair.stopped_store import BUILDING
from qstore.store.unfinished import unfinished_stores

_KINDS: Final = {StoreKind.LEGACY: "rhm", StoreKind.VERSION_2: "rhm", StoreKind.LINEAR: "qls"}
_LEFT_OUT: Final = frozenset((BUILDING,))  # no part of a store
_DATA_SUFFIX: Final = ".jdat"


@contextlib.contextmanager
def stopped_store(environment: Environment, disk: Disk, path: str) -> Iterator[StoppedStore]:
    """A store that is not running; a broker cannot start on it meanwhile.

    Args:
        environment: the disk for the store's lock.
        disk: reads the store.
        path: the store directory.

    Raises:
        StoreError: it is no store, or is in use.
        OSError: it cannot be read.
    """
    layout = find_layout(disk, path)
    if layout.kind not in _KINDS:
        raise StoreError(f"{path}: this is no whole store, but: {layout.kind.value}")
    with _held(environment, disk, path, layout):
        yield StoppedStore(disk, path, layout)


def _directory(disk: Disk, layout: StoreLayout) -> str:
    """The directory that contains `rhm` or `qls`."""
    real = disk.real_path(layout.path)
    parts = real.split("/")
    root = _KINDS[layout.kind]
    return "/".join(parts[: parts.index(root)]) or "/" if root in parts else real


@contextlib.contextmanager
def _held(environment: Environment, disk: Disk, path: str, layout: StoreLayout) -> Iterator[None]:
    """Keep a broker from starting on a qstore store in the meantime, as far as its disk permits."""
    directory = _directory(disk, layout)
    lock_path, lock = posixpath.join(directory, LOCK), None
    if layout.kind is StoreKind.VERSION_2:
        unfinished = unfinished_stores(disk, directory)
        if unfinished:
            where, state = next(iter(unfinished.items()))
            raise StoreError(f"{state.notice(where)}: start and stop the broker first")
        if disk.is_file(lock_path):
            try:
                lock = environment.disk.lock(lock_path)
            except BlockingIOError:
                text = "a broker is running on this store: stop it, or back it up by its URL, amqp://HOST:PORT"
                raise StoreLockedError(f"{path}: {text}") from None
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


class StoppedStore:
    """A `Source`: the files of a store that is not running.

    Args:
        disk: reads it.
        path: the store directory.
        layout: what there is.

    Raises:
        StoreError: there is something in it that is no part of a store.
        OSError: it cannot be read.
    """

    is_live = False

    def __init__(self, disk: Disk, path: str, layout: StoreLayout) -> None:
        self._disk = disk
        self.root, self.kind = _KINDS[layout.kind], layout.kind.value
        self.store = disk.real_path(path)
        self._top = posixpath.join(_directory(disk, layout), self.root)
        self.directories: list[str] = []
        self.links: list[BackupLink] = []
        closing = closing_of(disk, layout)
        self._closed = {
            f"jrnl/{each.journal_id}" if each.journal_id else "tpl": (each.journal_id, each.incarnation, each.flush)
            for each in (closing.journals.values() if closing.is_clean else ())
        }
        self._files = [(path, self._size(path)) for path in sorted(self._tree(""))]
        self.size = sum(size for _, size in self._files)

    def parts(self) -> Iterator[SourceJournal]:
        """The files of each journal, and all others."""
        journals: dict[str, list[SourceFile]] = {}
        others = []
        for path, size in self._files:
            file = SourceFile(path, size, partial(self._open, path, size))
            directory = posixpath.dirname(path)
            if path.endswith(_DATA_SUFFIX) and directory in self._closed:
                version = self._disk.version(posixpath.join(self._top, path))
                journals.setdefault(directory, []).append(file._replace(version=version))
            else:
                others.append(file)
        for directory, files in journals.items():
            yield SourceJournal(self._closed[directory], files)
        yield SourceJournal(None, others)

    def was_read(self, part: SourceJournal) -> None:
        """Nothing is to be done."""

    def alive(self) -> None:
        """Nothing is to be done."""

    def is_confirmed(self, part: SourceJournal) -> bool:
        """Always: it does not change."""
        return part.queue_id is None

    def check(self) -> None:
        """Each file is checked when it was read."""

    @contextlib.contextmanager
    def _open(self, path: str, size: int) -> Iterator[Read]:
        full = posixpath.join(self._top, path)
        with contextlib.closing(self._disk.open(full)) as file:

            def read(offset: int, length: int) -> bytes:
                content = file.read(offset, length)
                if len(content) < min(length, size - offset):
                    raise StoreError(f"{full}: became shorter while it was read: is a broker running?")
                return content

            yield read
        if self._size(path) != size:
            raise StoreError(f"{full}: changed while it was read: is a broker running?")

    def _size(self, path: str) -> int:
        with contextlib.closing(self._disk.open(posixpath.join(self._top, path))) as file:
            return file.size

    def _tree(self, below: str) -> Iterator[str]:
        """The files below a directory; directories and links are noted. Raises StoreError, OSError."""
        for name in self._disk.names(posixpath.join(self._top, below) if below else self._top):
            path = f"{below}/{name}" if below else name
            full = posixpath.join(self._top, path)
            target = self._disk.link_target(full)
            if not below and name in _LEFT_OUT:
                continue
            if target is not None:
                self.links.append(BackupLink(path, self._target(full, target)))
            elif self._disk.is_directory(full):
                self.directories.append(path)
                yield from self._tree(path)
            elif self._disk.is_file(full):
                yield path
            else:
                raise StoreError(f"{full}: is neither a file nor a directory: remove it, or move it elsewhere")

    def _target(self, link: str, target: str) -> str:
        """The target of a link below the root: that of a linearstore is absolute, and was made where it was first."""
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        root = self.root
        parts = absolute.split("/")
        if absolute.startswith(self._top + "/"):
            found = absolute[len(self._top) + 1 :]
        elif root in parts:
            found = "/".join(parts[len(parts) - parts[::-1].index(root) :])
        else:
            found = ""
        if not is_safe(found) or not self._disk.is_file(posixpath.join(self._top, found)):
            raise StoreError(f"{link}: leads to {target}, which is not a file of this store")
        return found
