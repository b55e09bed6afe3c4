"""Verifies backups: every chunk is there, and has the bytes that its id says."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from qstore.store.backup.manifest import Manifest
from qstore.store.backup.repository import CHUNK_SIZE, Repository, read_chunk, unpacked
from qstore.store.errors import StoreError


def plain_chunk(repository: Repository, digest: str, size: int) -> bytes:
    """The bytes of a chunk, verified.

    Args:
        repository: has it.
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
        raise StoreError(f"{repository.path}: chunk {digest} is damaged: it has other bytes than were backed up")
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
