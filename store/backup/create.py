"""Makes a backup of a store that is not running, of any format: the bytes of its files, in chunks.

    1. the tree of the store is listed, and each file cut into chunks of 4 MiB
    2. chunks that the repository does not have are compressed and written
    3. with `verify`, all of them are read back
    4. the manifest is written: only now there is a backup

An incremental backup writes only chunks that are new, like every backup; and it does not even read journals that were
not written to since the one before: a qstore store that was closed cleanly records the last flush of each journal, and
one with the same id, incarnation and last flush has the same bytes.

After a kill the next backup finds the chunks that were written, and writes the others.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from qstore.store.backup.manifest import BackupFile, BackupLink, Manifest, is_safe, read_manifest, write_manifest
from qstore.store.backup.repository import (
    CHUNK_SIZE,
    Repository,
    backup_names,
    check_mark,
    chunk_name,
    known_chunks,
    packed,
)
from qstore.store.backup.verify import verify_chunks
from qstore.store.catalogue.store_directory import LOCK
from qstore.store.disk import Disk
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, StoreLockedError
from qstore.store.inspect.layout import StoreKind, StoreLayout, find_layout
from qstore.store.recovery.close_record import closing_of
from qstore.store.repair.stopped_store import BUILDING, told_errors
from qstore.store.unfinished import unfinished_stores

_KINDS: Final = {StoreKind.LEGACY: "rhm", StoreKind.VERSION_2: "rhm", StoreKind.LINEAR: "qls"}
_LEFT_OUT: Final = frozenset((BUILDING,))  # no part of a store
_DATA_SUFFIX: Final = ".jdat"
_NUMBER: Final = re.compile(r"[0-9]{6,12}")
_WAITING: Final = 8  # chunks in memory

#: Called with the name of each stage and its bytes, and then with numbers of bytes that are done.
Stage = Callable[[str, int], None]
Advance = Callable[[int], None]


class BackupResult(NamedTuple):
    """A backup that was made.

    Attributes:
        manifest: its manifest.
        written: bytes of new chunks, compressed.
        new, reused: bytes of files in chunks that were written, and in those that were there or not read again.
    """

    manifest: Manifest
    written: int
    new: int
    reused: int


class StoreBackup:
    """One backup.

    Args:
        environment: clock and random numbers, and the disk for the store's lock.
        source: reads the store.
        path: the store directory.
        repository: where it goes, locked.
        software_version: recorded in it.
        workers: threads that compress and write; 0 for none.
        stage, advance: receive progress.
    """

    def __init__(
        self,
        environment: Environment,
        source: Disk,
        path: str,
        repository: Repository,
        software_version: str,
        *,
        workers: int = 0,
        stage: Stage = lambda *_: None,
        advance: Advance = lambda _: None,
    ) -> None:
        self._environment, self._source, self._path = environment, source, path
        self._repository, self._software = repository, software_version
        self._workers, self._stage, self._advance = workers, stage, advance
        self._written = self._new = self._reused = 0

    def run(self, *, full: bool = False, verify: bool = False) -> BackupResult:
        """Make it.

        Args:
            full: read all journals, whatever their flush numbers say.
            verify: read all of its chunks back before it counts.

        Raises:
            StoreError: it cannot be made; there is no new backup.
        """
        with told_errors(self._path):
            layout = find_layout(self._source, self._path)
            if layout.kind not in _KINDS:
                raise StoreError(f"{self._path}: this is no whole store, but: {layout.kind.value}")
            check_mark(self._repository, create=True)
            with self._held(layout):
                return self._made(layout, full=full, verify=verify)

    @contextlib.contextmanager
    def _held(self, layout: StoreLayout) -> Iterator[None]:
        """Keep a broker from starting on a qstore store in the meantime, as far as its disk permits."""
        directory = self._directory(layout)
        path, lock = posixpath.join(directory, LOCK), None
        if layout.kind is StoreKind.VERSION_2:
            unfinished = unfinished_stores(self._source, directory)
            if unfinished:
                where, state = next(iter(unfinished.items()))
                raise StoreError(f"{state.notice(where)}: start and stop the broker first")
            if self._source.is_file(path):
                try:
                    lock = self._environment.disk.lock(path)
                except BlockingIOError:
                    text = "a broker is running on this store: stop it first"
                    raise StoreLockedError(f"{self._path}: {text}") from None
                except OSError as error:
                    if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                        raise
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _directory(self, layout: StoreLayout) -> str:
        """The directory that contains `rhm` or `qls`."""
        real = self._source.real_path(layout.path)
        parts = real.split("/")
        root = _KINDS[layout.kind]
        return "/".join(parts[: parts.index(root)]) or "/" if root in parts else real

    def _made(self, layout: StoreLayout, *, full: bool, verify: bool) -> BackupResult:
        root = _KINDS[layout.kind]
        top = posixpath.join(self._directory(layout), root)
        seconds = self._environment.clock() // 1_000_000_000
        identity = self._next_identity(seconds)
        store = self._source.real_path(self._path)
        manifest = Manifest(identity, seconds, self._software, store, layout.kind.value, root)
        closing = closing_of(self._source, layout)
        if closing.is_clean:
            manifest.journals = [[each.journal_id, each.incarnation, each.flush] for each in closing.journals.values()]
        before = None if full or not manifest.journals else self._before(store)
        unchanged = {} if before is None else _unchanged(before, manifest)
        if before is not None and unchanged:
            manifest.based_on = before.id
        files = sorted(self._tree(top, "", manifest))
        self._stage("backing up", sum(self._size(posixpath.join(top, path)) for path in files))
        known = known_chunks(self._repository)
        pool = ThreadPoolExecutor(self._workers) if self._workers else None
        try:
            writer = _ChunkWriter(self._repository, known, pool)
            for path in files:
                manifest.files.append(self._file(top, path, unchanged, writer))
            writer.wait(0)
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        self._repository.sync()
        if verify:
            self._stage("verifying", manifest.size)
            verify_chunks(self._repository, manifest, self._advance)
        write_manifest(self._repository, manifest)
        return BackupResult(manifest, writer.written, self._new, self._reused)

    def _next_identity(self, seconds: int) -> str:
        """An id that follows those of all other backups: their order does not depend on clocks."""
        names = backup_names(self._repository)
        number = 1 + max((int(found[0]) for name in names if (found := _NUMBER.match(name))), default=0)
        moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")
        return f"{number:06d}-{moment}-{self._environment.random_bits(16):04x}"

    def _before(self, store: str) -> Manifest | None:
        """The latest readable backup of the same store."""
        for identity in reversed(backup_names(self._repository)):
            try:
                manifest = read_manifest(self._repository, identity)
            except StoreError:
                continue  # a damaged one is reported when it is verified
            if manifest.store == store and manifest.journals:
                return manifest
        return None

    def _size(self, path: str) -> int:
        with contextlib.closing(self._source.open(path)) as file:
            return file.size

    def _tree(self, top: str, below: str, manifest: Manifest) -> Iterator[str]:
        """The files below a directory; directories and links go to the manifest. Raises StoreError, OSError."""
        for name in self._source.names(posixpath.join(top, below) if below else top):
            path = f"{below}/{name}" if below else name
            full = posixpath.join(top, path)
            target = self._source.link_target(full)
            if not below and name in _LEFT_OUT:
                continue
            if target is not None:
                manifest.links.append(BackupLink(path, self._target(top, full, target)))
            elif self._source.is_directory(full):
                manifest.directories.append(path)
                yield from self._tree(top, path, manifest)
            elif self._source.is_file(full):
                yield path
            else:
                raise StoreError(f"{full}: is neither a file nor a directory: remove it, or move it elsewhere")

    def _target(self, top: str, link: str, target: str) -> str:
        """The target of a link below the root: that of a linearstore is absolute, and was made where it was first."""
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        root = posixpath.basename(top)
        parts = absolute.split("/")
        if absolute.startswith(top + "/"):
            found = absolute[len(top) + 1 :]
        elif root in parts:
            found = "/".join(parts[len(parts) - parts[::-1].index(root) :])
        else:
            found = ""
        if not is_safe(found) or not self._source.is_file(posixpath.join(top, found)):
            raise StoreError(f"{link}: leads to {target}, which is not a file of this store")
        return found

    def _file(self, top: str, path: str, unchanged: Mapping[str, BackupFile], writer: _ChunkWriter) -> BackupFile:
        full = posixpath.join(top, path)
        old = unchanged.get(path)
        with contextlib.closing(self._source.open(full)) as file:
            if old is not None and old.size == file.size:
                self._reused += file.size
                self._advance(file.size)
                return old
            chunks = []
            for offset in range(0, file.size, CHUNK_SIZE):
                content = file.read(offset, min(CHUNK_SIZE, file.size - offset))
                if len(content) < min(CHUNK_SIZE, file.size - offset):
                    raise StoreError(f"{full}: became shorter while it was read: is a broker running?")
                digest = sha256(content).hexdigest()
                chunks.append(digest)
                is_new = writer.write(digest, content)
                self._new += len(content) if is_new else 0
                self._reused += 0 if is_new else len(content)
                self._advance(len(content))
            size = file.size
        if self._size(full) != size:
            raise StoreError(f"{full}: changed while it was read: is a broker running?")
        return BackupFile(path, size, chunks)


class _ChunkWriter:
    """Compresses and writes chunks that are not known, in threads if there are any."""

    def __init__(self, repository: Repository, known: set[str], pool: ThreadPoolExecutor | None) -> None:
        self._repository, self._known, self._pool = repository, known, pool
        self._waiting: deque[Future[int]] = deque()
        self.written = 0

    def write(self, digest: str, content: bytes) -> bool:
        """Write a chunk. Returns whether it is new. Raises OSError."""
        if digest in self._known:
            return False
        self._known.add(digest)
        if self._pool is None:
            self.written += self._put(digest, content)
        else:
            self.wait(_WAITING)
            self._waiting.append(self._pool.submit(self._put, digest, content))
        return True

    def _put(self, digest: str, content: bytes) -> int:
        compressed = packed(content)
        self._repository.put(chunk_name(digest), compressed)
        return len(compressed)

    def wait(self, most: int) -> None:
        """Wait until at most `most` chunks are not written. Raises OSError."""
        while len(self._waiting) > most:
            self.written += self._waiting.popleft().result()


def _unchanged(before: Manifest, now: Manifest) -> dict[str, BackupFile]:
    """The data files of journals that were not written to since the backup `before`, by path."""
    known = {tuple(each) for each in before.journals}
    same = {f"jrnl/{number}" if number else "tpl" for number, *rest in now.journals if (number, *rest) in known}
    return {
        file.path: file
        for file in before.files
        if file.path.endswith(_DATA_SUFFIX) and posixpath.dirname(file.path) in same
    }
