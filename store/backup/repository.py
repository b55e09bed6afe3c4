"""Where backups are kept: named objects, each written whole or not at all.

    qstore-backup.json      {"format": "qstore-backup", "version": 1}: the kind of directory
    chunks/<2 digits>/<id>  a piece of a file, compressed with zstd; its id is the SHA-256 of its plain bytes, in hex
    backups/<id>.manifest   the files and chunks of a backup; written last: without it there is no backup

Chunks are shared by all backups of a repository, of one store or of many. A kill leaves chunks that no
manifest names: the next backup uses them, or `keep_latest` removes them.

A manifest has a checksum:

    SHA-256 of the rest before compression, in hex | newline | JSON, compressed with zstd

    key          value
    -----------  ---------------------------------------------------------------------------------------------------
    format       "qstore-backup"; version: 1
    id           the backup's: a number, which orders the backups, the time, and a random number
    created      seconds since 1970
    software     version of the software that wrote it
    store        the store's path; kind: "legacystore", "linearstore" or "qstore"; root: "rhm" or "qls", its directory
    based_on     id of the backup whose unchanged journals were not read again; null for a full one
    live         whether the store was running
    journals     qstore, running or closed cleanly: of each journal its id, incarnation and last flush
    directories  paths below the root, each after the one that contains it
    files        path, size, the ids of its chunks, in order, its mark and its version: see `sources`
    links        symbolic links of a linearstore: path and target, both below the root

Nothing in a manifest is trusted: paths stay below the root, sizes fit their chunks, links lead to files of the backup.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from threading import Lock
from typing import Any, Final, Protocol

import zstandard
from orjson import JSONDecodeError, dumps, loads

from qstore.formats.named_tuple import NamedTuple
from qstore.store.disk import DiskLock, WritableDisk, read_whole
from qstore.store.errors import StoreError
from qstore.store.repair.stopped_store import reported_errors

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
MAX_UNSYNCED: Final = 64 << 20  # bytes: the most that a kill costs


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
        """Sync the written files, and give them their names. Other threads can continue to write."""
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


# ---- its content ----


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
        OSError: it cannot be read. Otherwise the errors of `alive`.
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
    """The decompressed data. Raises ValueError if it is damaged, or states more than `limit` bytes."""
    try:
        stated = zstandard.get_frame_parameters(content).content_size
        if stated > limit:
            raise ValueError("it states an impossible size")
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


# ---- manifests ----

MAX_MANIFEST: Final = 1 << 28  # bytes: of some ten terabytes of store
MAX_FILE: Final = 1 << 44
_DIGEST_BYTES: Final = 64
ROOTS: Final = ("rhm", "qls")


class BackupFile(NamedTuple):
    """A file: its path below the root, its size, the ids of its chunks, its mark and its version (`SourceFile`)."""

    path: str
    size: int
    chunks: list[str]
    mark: str = ""
    version: str = ""


class BackupLink(NamedTuple):
    """A symbolic link: its path and its target, both below the root."""

    path: str
    target: str


@dataclass(slots=True)
class Manifest:
    """A backup: see the module's table."""

    id: str
    created: int
    software: str
    store: str
    kind: str
    root: str
    based_on: str | None = None
    journals: list[list[int]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    files: list[BackupFile] = field(default_factory=list)
    links: list[BackupLink] = field(default_factory=list)
    live: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> set[str]:
        """The ids of all chunks."""
        return {digest for file in self.files for digest in file.chunks}


def write_manifest(repository: Repository, manifest: Manifest) -> None:
    """Write a manifest: from then on there is the backup. Raises StoreError, OSError."""
    # Names of files need not be UTF-8: this module writes and reads half characters, unlike others.
    fields = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content = json.dumps(fields, separators=(",", ":")).encode()
    if len(content) > MAX_MANIFEST:
        raise StoreError(f"{manifest.store}: has too many files for one backup")
    repository.put(f"{BACKUPS}/{manifest.id}{MANIFEST}", sha256(content).hexdigest().encode() + b"\n" + packed(content))
    repository.sync()


def read_manifest(repository: Repository, identity: str) -> Manifest:
    """Read a manifest. Raises StoreError: it does not exist or is damaged; OSError."""
    where = f"{repository.path}: backup {identity}"
    try:
        raw = repository.get(f"{BACKUPS}/{identity}{MANIFEST}", MAX_MANIFEST + 1)
    except FileNotFoundError:
        raise StoreError(f"{where}: no such backup; qstore-restore --list shows the backups") from None
    try:
        content = unpacked(raw[_DIGEST_BYTES + 1 :], MAX_MANIFEST)
        if sha256(content).hexdigest().encode() + b"\n" != raw[: _DIGEST_BYTES + 1]:
            raise ValueError("its checksum does not match")
        return _decoded(json.loads(content), identity)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{where}: the manifest is damaged: {error}") from None


def _decoded(fields: Any, identity: str) -> Manifest:
    """A manifest. Raises ValueError, TypeError, KeyError."""
    if fields.pop("format") != FORMAT or fields.pop("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}, which this software reads")
    files = [BackupFile(*each) for each in fields.pop("files")]
    links = [BackupLink(*each) for each in fields.pop("links")]
    manifest = Manifest(**fields, files=files, links=links)
    texts = (manifest.id, manifest.software, manifest.store, manifest.kind)
    numbers = type(manifest.created) is int and type(manifest.live) is bool
    if not all(isinstance(text, str) for text in texts) or not numbers:
        raise TypeError("a field is malformed")
    if manifest.id != identity or manifest.root not in ROOTS:
        raise ValueError("it belongs to another backup")
    _check_tree(manifest)
    return manifest


def _check_tree(manifest: Manifest) -> None:
    """Check that everything stays below the root, once, in directories that the backup has."""
    known: dict[str, bool] = {"": True}  # path -> whether it is a directory
    places = [(path, True) for path in manifest.directories]
    places += [(file.path, False) for file in manifest.files] + [(link.path, False) for link in manifest.links]
    for path, is_directory in places:
        if not is_safe(path) or path in known or not known.get(path.rpartition("/")[0]):
            raise ValueError(f"{path!r} is not a path within a store")
        known[path] = is_directory
    for path, size, chunks, mark, version in manifest.files:
        if not isinstance(mark, str) or not isinstance(version, str):
            raise TypeError("a mark is malformed")
        if type(size) is not int or not 0 <= size <= MAX_FILE or len(chunks) != -(-size // CHUNK_SIZE):
            raise ValueError(f"{path!r} does not have the size of its chunks")
        if not all(map(is_digest, chunks)):
            raise ValueError(f"{path!r} has chunks without ids")
    for link in manifest.links:
        if known.get(link.target) is not False:
            raise ValueError(f"{link.path!r} leads to something that is not in the backup")
    for each in manifest.journals:
        if len(each) != len(("id", "incarnation", "flush")) or any(type(number) is not int for number in each):
            raise ValueError("the journals are malformed")


def is_safe(path: object) -> bool:
    """Whether a path stays below the directory to which it is relative."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


# ---- verification: every chunk is present, and its bytes match its id ----


def plain_chunk(repository: Repository, digest: str, size: int) -> bytes:
    """The bytes of a chunk, verified.

    Args:
        repository: its repository.
        digest: its id.
        size: its bytes.

    Raises:
        StoreError: it is missing or damaged.
        OSError: it cannot be read.
    """
    raw = read_chunk(repository, digest)
    try:
        content = unpacked(raw, CHUNK_SIZE)
    except ValueError as error:
        raise StoreError(f"{repository.path}: chunk {digest} is damaged: {error}") from None
    if len(content) != size or sha256(content).hexdigest() != digest:
        raise StoreError(f"{repository.path}: chunk {digest} is damaged: its content differs from what was backed up")
    return content


def sizes_of(size: int, count: int) -> list[int]:
    """The bytes of each of a file's chunks."""
    return [min(CHUNK_SIZE, size - number * CHUNK_SIZE) for number in range(count)]


def verify_chunks(repository: Repository, manifest: Manifest, advance: Callable[[int], None]) -> None:
    """Read all chunks of a backup, each once. Raises StoreError, OSError."""
    seen: set[str] = set()
    for file in manifest.files:
        for digest, size in zip(file.chunks, sizes_of(file.size, len(file.chunks)), strict=True):
            if digest not in seen:
                seen.add(digest)
                plain_chunk(repository, digest, size)
            advance(size)


# ---- retention: which backups are kept, and which data are removed with the others ----


class Removed(NamedTuple):
    """The removed backups, by id, and the number of removed chunks."""

    backups: list[str]
    chunks: int


def keep_latest(repository: Repository, store: str, count: int) -> Removed:
    """Keep the latest `count` backups of the store that was at the path `store`, and remove its others.

    Their manifests go first, and are gone durably before the chunks that no backup needs any more.

    Args:
        repository: the backups, locked.
        store: the path, as manifests have it.
        count: at least 1.

    Raises:
        StoreError: a manifest is damaged: then nothing is removed.
    """
    assert count > 0
    with reported_errors(repository.path):
        manifests = [read_manifest(repository, identity) for identity in backup_names(repository)]
        old = [each.id for each in manifests if each.store == store][:-count]
        for identity in old:
            repository.remove(f"{BACKUPS}/{identity}{MANIFEST}")
        repository.sync()
        needed = {digest for each in manifests if each.id not in old for digest in each.chunks}
        unneeded = known_chunks(repository) - needed
        for digest in sorted(unneeded):
            repository.remove(chunk_name(digest))
        repository.sync()
    return Removed(old, len(unneeded))
