"""The manifest of a backup: what it consists of, with a checksum.

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
    files        path, size, the ids of its chunks, in order, its mark and its version: see `source`
    links        symbolic links of a linearstore: path and target, both below the root

Nothing in a manifest is believed: paths stay below the root, sizes fit their chunks, links lead to files of the backup.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from qstore.store.backup.repository import (
    BACKUPS,
    CHUNK_SIZE,
    FORMAT,
    MANIFEST,
    VERSION,
    Repository,
    is_digest,
    packed,
    unpacked,
)
from qstore.store.errors import StoreError

MAX_MANIFEST: Final = 1 << 28  # bytes: of some ten terabytes of store
MAX_FILE: Final = 1 << 44
_DIGEST_BYTES: Final = 64
ROOTS: Final = ("rhm", "qls")


class BackupFile(NamedTuple):
    """A file: its path below the root, its size, the ids of its chunks, its mark and its version (`source`)."""

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
    """Read a manifest. Raises StoreError: there is none, or it is damaged; OSError."""
    where = f"{repository.path}: backup {identity}"
    try:
        raw = repository.get(f"{BACKUPS}/{identity}{MANIFEST}", MAX_MANIFEST + 1)
    except FileNotFoundError:
        raise StoreError(f"{where}: there is none; qstore-restore --list shows the backups") from None
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
        raise TypeError("a field is not what it must be")
    if manifest.id != identity or manifest.root not in ROOTS:
        raise ValueError("it is that of another backup")
    _check_tree(manifest)
    return manifest


def _check_tree(manifest: Manifest) -> None:
    """Check that everything stays below the root, once, in directories that the backup has."""
    known: dict[str, bool] = {"": True}  # path -> whether it is a directory
    places = [(path, True) for path in manifest.directories]
    places += [(file.path, False) for file in manifest.files] + [(link.path, False) for link in manifest.links]
    for path, is_directory in places:
        if not is_safe(path) or path in known or not known.get(path.rpartition("/")[0]):
            raise ValueError(f"{path!r} is not a place within a store")
        known[path] = is_directory
    for path, size, chunks, mark, version in manifest.files:
        if not isinstance(mark, str) or not isinstance(version, str):
            raise TypeError("a mark is not what it must be")
        if type(size) is not int or not 0 <= size <= MAX_FILE or len(chunks) != -(-size // CHUNK_SIZE):
            raise ValueError(f"{path!r} does not have the size of its chunks")
        if not all(map(is_digest, chunks)):
            raise ValueError(f"{path!r} has chunks without ids")
    for link in manifest.links:
        if known.get(link.target) is not False:
            raise ValueError(f"{link.path!r} leads to something that is not in the backup")
    for each in manifest.journals:
        if len(each) != len(("id", "incarnation", "flush")) or any(type(number) is not int for number in each):
            raise ValueError("the journals are not what they must be")


def is_safe(path: object) -> bool:
    """Whether a path stays below the directory to which it is relative."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
