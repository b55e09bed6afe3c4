"""The source of a backup: a tree of files, read in pieces, by several threads.

`StoppedSource` is a store that is not running, of any format, as it is on the disk: its files are backed up byte for
byte. For a qstore store that was closed cleanly, the record of the close has the last flush of each journal.

`RunningSource` is the snapshot of a running store: the files that a copy of it has. Another process holds the snapshot
(`live/snapshot` describes the data on the disk). It receives the journals that were read, and answers which of them
may have been overwritten before that. Journals with the least room left are read first.

    mark of a file    of one that was full at the cut: the SHA-256 of its header, which has a random salt and the
                      number of the flush that entered it. Nothing in it changes until it is entered again; but if it
                      was restored when it was not full yet, it has the same header and another version
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from qstore.formats.named_tuple import NamedTuple
from qstore.store.backup.repository import BackupLink, is_safe
from qstore.store.catalogue.store_directory import LOCK
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.disk import Disk, read_whole
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, StoreLockedError
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_layout
from qstore.store.journal.directory import INFO_SUFFIX
from qstore.store.live.snapshot import CUT, CutDescription, ImageFile, JournalImage, JournalSnapshot, decode_cut
from qstore.store.recovery.close_record import closing_of
from qstore.store.repair.stopped_store import BUILDING
from qstore.store.unfinished import CATALOGUE, ROOT, STORE, unfinished_stores

#: Reads bytes of an open file: (offset, number). Raises OSError, StoreError.
Read: TypeAlias = Callable[[int, int], bytes]


class SourceFile(NamedTuple):
    """A file.

    Attributes:
        path: its path below the root.
        size: its bytes.
        open: opens it; raises OSError.
        mark: with the same path, mark and version it is the same as in an earlier backup; empty if that is unknown.
        version: see `store.disk.Disk.version`; empty for a file that is read in any case.
    """

    path: str
    size: int
    open: Callable[[], AbstractContextManager[Read]]
    mark: str = ""
    version: str = ""


class SourceJournal(NamedTuple):
    """The data files of one journal, or any other files.

    Attributes:
        key: number of its directory (0: the prepared list), incarnation and last flush, if it is known that it has the
            same content as in an earlier backup with these numbers and the same versions of its files; None if not.
        files: its files.
        queue_id: the number of its queue, if the store is running (0: the prepared list); None for other files.
    """

    key: tuple[int, int, int] | None
    files: Sequence[SourceFile]
    queue_id: int | None = None


class Source(Protocol):
    """A store at one moment.

    Attributes:
        store, kind, root: as of a `Manifest`.
        is_live: whether the store is running.
        directories: those below the root, each after the one that it is in.
        links: the symbolic links.
        size: bytes of all files.
    """

    store: str
    kind: str
    root: str
    is_live: bool
    directories: list[str]
    links: list[BackupLink]
    size: int

    def parts(self) -> Iterable[SourceJournal]:
        """All files, in the order in which they are to be read. Raises StoreError, OSError."""

    def was_read(self, part: SourceJournal) -> None:
        """All files of a part were read, and none of it is needed any more. Raises StoreError, OSError."""

    def alive(self) -> None:
        """The backup is still being made: called at least every few seconds. Raises StoreError."""

    def is_confirmed(self, part: SourceJournal) -> bool:
        """Whether the data read of it are known to be right, even if the source turns out to be overtaken."""

    def check(self) -> None:
        """Everything was read. Raises StoreError if it was not a store at one moment."""


# ---- a store that is not running ----

_KINDS: Final = {StoreKind.LEGACY: "rhm", StoreKind.VERSION_2: "rhm", StoreKind.LINEAR: "qls"}
_LEFT_OUT: Final = frozenset((BUILDING,))  # no part of a store
_DATA_SUFFIX: Final = ".jdat"


@contextlib.contextmanager
def stopped_store(environment: Environment, disk: Disk, path: str) -> Iterator[StoppedSource]:
    """A store that is not running; a broker cannot start on it meanwhile.

    Args:
        environment: the disk for the store's lock.
        disk: reads the store.
        path: the store directory.

    Raises:
        StoreError: it is not a store, or is in use.
        OSError: it cannot be read.
    """
    layout = find_layout(disk, path)
    if layout.kind not in _KINDS:
        raise StoreError(f"{path}: not a complete store, but: {layout.kind.value}")
    with _held(environment, disk, path, layout):
        yield StoppedSource(disk, path, layout)


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


class StoppedSource:
    """A `Source`: the files of a store that is not running.

    Args:
        disk: reads it.
        path: the store directory.
        layout: its files.

    Raises:
        StoreError: it contains something that is not part of a store.
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


# ---- the snapshot of a running store ----

_MAX_CUT: Final = 1 << 28  # bytes
_MAX_UNREPORTED: Final = 50  # journals that were read and not yet reported to the broker
_MAX_UNREPORTED_SECONDS: Final = 0.1  # for which a journal stays pinned, and may have to grow, after it was read
_ALIVE_SECONDS: Final = 5.0

#: Reports that the journals of these queues were read. Returns those that may have been overwritten before.
Copied = Callable[[Sequence[int]], Collection[int]]


class OvertakenError(StoreError):
    """A part of the snapshot was overwritten before it was read: another one is needed.

    Args:
        text: the event.
        queue_ids: the queues whose journals were overwritten.
    """

    def __init__(self, text: str, queue_ids: Collection[int]) -> None:
        super().__init__(text)
        self.queue_ids = frozenset(queue_ids)


class RunningSource:
    """A `Source`: the snapshot of a running store.

    Args:
        disk: reads it.
        directory: the directory of the store.
        name: the snapshot's own directory, below that.
        copied: see `Copied`.
        end: called when the snapshot is not needed any more.
        first: queues whose journals are read before all others.

    Raises:
        StoreError: there is no such snapshot, or its description cannot be read.
        OSError: it cannot be read.
    """

    is_live = True
    kind, root = StoreKind.VERSION_2.value, ROOT

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: str,
        copied: Copied,
        end: Callable[[], None],
        first: Collection[int] = frozenset(),
    ) -> None:
        self._disk, self._copied, self._first = disk, copied, first
        self._end = end
        self._read: list[int] = []
        self._confirmed: set[int] = set()
        self._said_at = time.monotonic()
        self.store = disk.real_path(directory)
        self._top = posixpath.join(directory, ROOT)
        self._own = posixpath.join(directory, name)
        self._cut = self._described()
        free = self._cut.free
        self._journals = sorted(
            self._cut.journals,
            key=lambda each: (each.queue_id not in first, each.queue_id != 0, free.get(each.queue_id, 0)),
        )
        self._sizes = {name: self._size(name) for name in self._own_files()}
        journals = [self._path(each) for each in self._cut.journals]
        self.directories = [CATALOGUE, "jrnl", *sorted(journals)]
        self.links: list[BackupLink] = []
        held = sum(each.geometry.files * each.geometry.file_size for each in self._journals)
        self.size = held + sum(self._sizes.values())

    def _described(self) -> CutDescription:
        path = posixpath.join(self._own, CUT)
        try:
            return decode_cut(read_whole(self._disk, path, _MAX_CUT), self._top)
        except FileNotFoundError:
            text = "the broker's snapshot is not there: run this command where the broker's files are"
            raise StoreError(f"{path}: {text} (use --store-dir if they are at another path)") from None
        except ValueError as error:
            raise StoreError(f"{path}: the description of the snapshot cannot be read: {error}") from None

    def _own_files(self) -> list[str]:
        catalogue = posixpath.join(self._own, CATALOGUE)
        return [STORE, TOPOLOGY, *(f"{CATALOGUE}/{name}" for name in self._disk.names(catalogue))]

    def _size(self, name: str) -> int:
        with contextlib.closing(self._disk.open(self._no_link(posixpath.join(self._own, name)))) as file:
            return file.size

    def _no_link(self, path: str) -> str:
        """The same path. Raises StoreError for a symbolic link: a file from elsewhere would be in the backup."""
        if self._disk.link_target(path) is not None:
            raise StoreError(f"{path}: is a symbolic link, and no part of the store")
        return path

    def _path(self, journal: JournalSnapshot) -> str:
        return posixpath.relpath(journal.directory, self._top)

    # ---- its files ----

    def parts(self) -> Iterator[SourceJournal]:
        """The journals, and then everything else."""
        for journal in self._journals:
            try:
                key, files = self._journal(journal)
            except (StoreError, OSError) as error:
                self._report_overtaken(journal, error)
                raise
            yield SourceJournal(key, files, journal.queue_id)
        own = [SourceFile(name, size, partial(self._open_own, name)) for name, size in self._sizes.items()]
        yield SourceJournal(None, own)

    def _report_overtaken(self, journal: JournalSnapshot, error: Exception) -> None:
        if self._copied([journal.queue_id]):
            raise OvertakenError(str(error), [journal.queue_id]) from error

    def _journal(self, journal: JournalSnapshot) -> tuple[tuple[int, int, int] | None, list[SourceFile]]:
        self._no_link(posixpath.join(journal.directory, journal.base_name + INFO_SUFFIX))
        image, path = JournalImage(self._disk, journal), self._path(journal)
        number = int(posixpath.basename(path)) if journal.queue_id else 0
        key = None
        if image.described is not None and journal.cut is not None:
            key = (number, image.described.incarnation, journal.cut.flush)
        info = SourceFile(f"{path}/{image.info_name}", len(image.info), partial(_open_bytes, image.info))
        return key, [info, *(self._data_file(path, each) for each in image.files())]

    def _data_file(self, directory: str, image: ImageFile) -> SourceFile:
        mark = sha256(image.head).hexdigest()[:32] if image.is_complete else ""
        path = f"{directory}/{image.name}"
        full = self._no_link(posixpath.join(self._top, path))
        version = self._disk.version(full)  # before it is read: it may be written to then
        return SourceFile(path, image.size, partial(self._open_image, image), mark, version)

    @contextlib.contextmanager
    def _open_image(self, image: ImageFile) -> Iterator[Read]:
        with image.open(self._disk) as source:
            yield partial(image.read, source)

    @contextlib.contextmanager
    def _open_own(self, name: str) -> Iterator[Read]:
        with contextlib.closing(self._disk.open(posixpath.join(self._own, name))) as file:
            yield file.read

    # ---- reports of progress ----

    def was_read(self, part: SourceJournal) -> None:
        """A part was read. Raises OvertakenError."""
        if part.queue_id is not None:
            self._read.append(part.queue_id)
            if len(self._read) > _MAX_UNREPORTED or part.queue_id in self._first:
                self._say()
            else:
                self.alive()

    def alive(self) -> None:
        """Report the files read, and from time to time renew the snapshot. Raises StoreError if it is gone."""
        if time.monotonic() - self._said_at > (_MAX_UNREPORTED_SECONDS if self._read else _ALIVE_SECONDS):
            self._say()

    def check(self) -> None:
        """Report the files read, and release the snapshot. Raises OvertakenError, StoreError."""
        self._say()
        self._end()

    def is_confirmed(self, part: SourceJournal) -> bool:
        """Whether a journal is known to have been read before it could be overwritten."""
        return part.queue_id in self._confirmed

    def _say(self) -> None:
        """Report the files read. Raises OvertakenError; StoreError if the snapshot is gone."""
        read, self._read = self._read, []
        self._said_at = time.monotonic()
        overtaken = self._copied(read)
        self._confirmed.update(set(read).difference(overtaken))
        if overtaken:
            text = "was overwritten before it was read, and cannot grow: try again when there is less traffic"
            raise OvertakenError(f"{self.store}: the journal of queue {min(overtaken)} {text}", overtaken)


@contextlib.contextmanager
def _open_bytes(content: bytes) -> Iterator[Read]:
    yield lambda offset, length: content[offset : offset + length]
