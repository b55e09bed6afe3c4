"""The snapshot of a running store: the files that a copy of it has.

Another process holds the snapshot (`live/shared_snapshot` says what there is on the disk), and is told when a journal
was read: then it answers whether that could be overwritten before. Journals that have least room left are read first.

    mark of a file    of one that was full at the cut: the SHA-256 of its header, which has a random salt and the
                      number of the flush that entered it. Nothing in it changes until it is entered again; but if it
                      was restored when it was not full yet, it has the same header and another version
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

from qstore.store.backup.manifest import BackupLink
from qstore.store.backup.source import Read, SourceFile, SourceJournal
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.disk import Disk, read_whole
from qstore.store.errors import StoreError
from qstore.store.inspect.layout import StoreKind
from qstore.store.journal.directory import INFO_SUFFIX
from qstore.store.live.cut_file import CutDescription, decode_cut
from qstore.store.live.journal_image import ImageFile, JournalImage
from qstore.store.live.shared_snapshot import CUT
from qstore.store.live.snapshot import JournalSnapshot
from qstore.store.unfinished import CATALOGUE, ROOT, STORE

_MAX_CUT: Final = 1 << 28  # bytes
_MAX_UNSAID: Final = 50  # journals that were read, and of which the broker was not told
_MAX_UNSAID_SECONDS: Final = 0.1  # for which a journal stays pinned, and may have to grow, after it was read
_ALIVE_SECONDS: Final = 5.0

#: Tells that the journals of these queues were read. Returns those that may have been overwritten before.
Copied = Callable[[Sequence[int]], Collection[int]]


class OvertakenError(StoreError):
    """A part of the snapshot was overwritten before it was read: another one is needed.

    Args:
        text: what happened.
        queue_ids: the queues whose journals were overwritten.
    """

    def __init__(self, text: str, queue_ids: Collection[int]) -> None:
        super().__init__(text)
        self.queue_ids = frozenset(queue_ids)


class RunningStore:
    """A `Source`: the snapshot of a running store.

    Args:
        disk: reads it.
        directory: the directory of the store.
        name: the snapshot's own directory, below that.
        copied: see `Copied`.
        end: tells that the snapshot is not needed any more.
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
            raise StoreError(f"{path}: {text} (--store-dir tells another path to them)") from None
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

    # ---- what there is ----

    def parts(self) -> Iterator[SourceJournal]:
        """The journals, and then everything else."""
        for journal in self._journals:
            try:
                key, files = self._journal(journal)
            except (StoreError, OSError) as error:
                self._tell_overtaken(journal, error)
                raise
            yield SourceJournal(key, files, journal.queue_id)
        own = [SourceFile(name, size, partial(self._open_own, name)) for name, size in self._sizes.items()]
        yield SourceJournal(None, own)

    def _tell_overtaken(self, journal: JournalSnapshot, error: Exception) -> None:
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

    # ---- what was read ----

    def was_read(self, part: SourceJournal) -> None:
        """A part was read. Raises OvertakenError."""
        if part.queue_id is not None:
            self._read.append(part.queue_id)
            if len(self._read) > _MAX_UNSAID or part.queue_id in self._first:
                self._say()
            else:
                self.alive()

    def alive(self) -> None:
        """Say what was read, and from time to time that the snapshot is needed. Raises StoreError if it is gone."""
        if time.monotonic() - self._said_at > (_MAX_UNSAID_SECONDS if self._read else _ALIVE_SECONDS):
            self._say()

    def check(self) -> None:
        """Say what was read, and that the snapshot is not needed any more. Raises OvertakenError, StoreError."""
        self._say()
        self._end()

    def is_confirmed(self, part: SourceJournal) -> bool:
        """Whether a journal is known to have been read before it could be overwritten."""
        return part.queue_id in self._confirmed

    def _say(self) -> None:
        """Say what was read. Raises OvertakenError; StoreError if the snapshot is gone."""
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
