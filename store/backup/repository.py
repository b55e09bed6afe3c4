"""Where backups are kept: named objects, each written whole or not at all.

    qstore-backup.json      {"format": "qstore-backup", "version": 1}: what this is
    chunks/<2 digits>/<id>  a piece of a file, compressed with zstd; its id is the SHA-256 of its plain bytes, in hex
    backups/<id>.manifest   what a backup consists of (`manifest`); written last: without it there is no backup

Chunks are shared by all backups of a repository, of one store or of many. What a kill leaves are chunks that no
manifest names: the next backup uses them, or `retention` removes them.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol

import zstandard
from orjson import JSONDecodeError, dumps, loads

from qstore.store.disk import DiskLock, WritableDisk, read_whole
from qstore.store.errors import StoreError

FORMAT: Final = "qstore-backup"
VERSION: Final = 1
CHUNK_SIZE: Final = 4 << 20  # bytes of a file in a chunk
MARK: Final = "qstore-backup.json"
CHUNKS, BACKUPS = "chunks", "backups"
MANIFEST: Final = ".manifest"
_LOCK: Final = "lock"
_PARTIAL: Final = ".partial"
_MAX_MARK: Final = 4096
_MAX_CHUNK: Final = CHUNK_SIZE + (1 << 16)  # bytes of a compressed chunk that cannot be compressed
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LEVEL: Final = 1
MAX_UNSYNCED: Final = 64 << 20  # bytes: what a kill costs at most


class Repository(Protocol):
    """A place for objects, by names like `chunks/ab/...`. Every method may raise OSError."""

    path: str

    def lock(self) -> DiskLock:
        """Keep other processes from changing it, as far as it can. Raises StoreError."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durable after `sync`; one of this name is replaced."""

    def get(self, name: str, limit: int) -> bytes:
        """An object; at most its first `limit` bytes. Raises FileNotFoundError."""

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, without it; none if it does not exist."""

    def remove(self, name: str) -> None:
        """Remove an object."""

    def sync(self) -> None:
        """Make everything written so far durable."""


class DiskRepository:
    """A repository in a directory. `put` may be called by several threads.

    Objects are synced many at a time, and only then get their names: one sync of many new files takes hardly longer
    than that of one.

    Args:
        disk: where it is.
        path: the directory, which is created by `lock`; its parent exists.
        max_unsynced: bytes that are synced together; few are gentle to others who write to the disk.

    Attributes:
        path: as above.
    """

    def __init__(self, disk: WritableDisk, path: str, max_unsynced: int = MAX_UNSYNCED) -> None:
        self._disk, self.path, self._max_unsynced = disk, path, max_unsynced
        self._changed: dict[str, None] = {}
        self._known: set[str] = set()
        self._lock, self._unsynced, self._unsynced_bytes = Lock(), list[str](), 0

    def lock(self) -> DiskLock:
        """Create the directory if it is missing, and lock it."""
        parent = posixpath.dirname(self.path.rstrip("/")) or "."
        if not self._disk.is_directory(parent):
            raise StoreError(f"{parent}: no such directory; create it first")
        self._make(self.path)
        try:
            return self._disk.lock(posixpath.join(self.path, _LOCK))
        except BlockingIOError:
            raise StoreError(f"{self.path}: another process is changing these backups; try again later") from None

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        path = posixpath.join(self.path, name)
        folder = posixpath.dirname(path)
        self._make(folder)
        partial = path + _PARTIAL
        if self._disk.is_file(partial):
            self._disk.remove(partial)
        with contextlib.closing(self._disk.create(partial, len(content))) as file:
            file.write(0, content)
        with self._lock:
            self._unsynced.append(path)
            self._unsynced_bytes += len(content)
            is_due = self._unsynced_bytes >= self._max_unsynced
        if is_due:
            self._settle()

    def _settle(self) -> None:
        """Sync what was written, and give it its names. Others can go on writing."""
        with self._lock:
            paths, self._unsynced, self._unsynced_bytes = self._unsynced, [], 0
        for path in paths:
            with contextlib.closing(self._disk.open_writable(path + _PARTIAL)) as file:
                file.sync()
        for path in paths:
            self._disk.rename(path + _PARTIAL, path)
            self._changed[posixpath.dirname(path)] = None

    def _make(self, folder: str) -> None:
        """Create a folder, and those above it, if they are missing."""
        if folder in self._known or self._disk.is_directory(folder):
            self._known.add(folder)
            return
        parent = posixpath.dirname(folder.rstrip("/")) or "."
        if parent != folder and not self._disk.is_directory(parent):
            self._make(parent)
        with contextlib.suppress(FileExistsError):  # by another thread
            self._disk.make_directory(folder)
        self._known.add(folder)
        self._changed[parent] = None

    def get(self, name: str, limit: int) -> bytes:
        """An object."""
        return read_whole(self._disk, posixpath.join(self.path, name), limit)

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder."""
        path = posixpath.join(self.path, folder)
        names = self._disk.names(path) if self._disk.is_directory(path) else []
        return [name for name in names if not name.endswith(_PARTIAL)]

    def remove(self, name: str) -> None:
        """Remove an object."""
        path = posixpath.join(self.path, name)
        self._disk.remove(path)
        self._changed[posixpath.dirname(path)] = None

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._settle()
        for folder in sorted(self._changed, reverse=True):
            self._disk.sync_directory(folder)
        self._changed.clear()


# ---- what is in it ----


def check_mark(repository: Repository, *, create: bool = False) -> None:
    """Check that this is a repository of a known version.

    Args:
        repository: the repository.
        create: whether to make an empty one of it if it has no backups yet.

    Raises:
        StoreError: it is something else, or of another version.
        OSError: it cannot be read or written.
    """
    try:
        content = repository.get(MARK, _MAX_MARK)
    except FileNotFoundError:
        if not create:
            raise StoreError(f"{repository.path}: there are no backups here") from None
        strange = [name for name in repository.names("") if name not in (_LOCK, CHUNKS, BACKUPS)]
        if strange:
            raise StoreError(f"{repository.path}: is not empty ({strange[0]}), and has no backups") from None
        repository.put(MARK, dumps({"format": FORMAT, "version": VERSION}) + b"\n")
        repository.sync()
        return
    try:
        fields = loads(content)
    except JSONDecodeError:
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise StoreError(f"{repository.path}: {MARK} is damaged, or this is not a directory of backups")
    if fields.get("version") != VERSION:
        raise StoreError(f"{repository.path}: these backups are of another version; this software reads {VERSION}")


def backup_names(repository: Repository) -> list[str]:
    """The ids of the backups, the oldest first. Raises OSError."""
    names = repository.names(BACKUPS)
    return sorted(name.removesuffix(MANIFEST) for name in names if name.endswith(MANIFEST))


def chunk_name(digest: str) -> str:
    """The name of a chunk."""
    return f"{CHUNKS}/{digest[:2]}/{digest}"


def known_chunks(repository: Repository, alive: Callable[[], None] = lambda: None) -> set[str]:
    """The ids of all chunks.

    Args:
        repository: has them.
        alive: called again and again; from a distant place this may take a minute.

    Raises:
        OSError: it cannot be read. Otherwise what `alive` raises.
    """
    found: set[str] = set()
    for folder in repository.names(CHUNKS):
        alive()
        found.update(name for name in repository.names(f"{CHUNKS}/{folder}") if is_digest(name))
    return found


def is_digest(text: object) -> bool:
    """Whether that is the id of a chunk."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def packed(content: bytes) -> bytes:
    """A chunk or a manifest, compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def unpacked(content: bytes, limit: int) -> bytes:
    """What was compressed. Raises ValueError if it is damaged, or states more than `limit` bytes."""
    try:
        stated = zstandard.get_frame_parameters(content).content_size
        if stated > limit:
            raise ValueError("it states a size that it cannot have")
        return zstandard.ZstdDecompressor().decompress(content, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def read_chunk(repository: Repository, digest: str) -> bytes:
    """A chunk, compressed. Raises StoreError, OSError."""
    try:
        content = repository.get(chunk_name(digest), _MAX_CHUNK + 1)
    except FileNotFoundError:
        raise StoreError(f"{repository.path}: chunk {digest} is missing: run qstore-restore --verify") from None
    if len(content) > _MAX_CHUNK:
        raise StoreError(f"{repository.path}: chunk {digest} is damaged: it is too large")
    return content
