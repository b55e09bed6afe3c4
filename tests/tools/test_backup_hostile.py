"""Backups that are cut off at any byte, or have another one anywhere: refused, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qstore.store.backup.repository import DiskRepository, backup_names, check_mark, read_manifest, verify_chunks
from qstore.store.disk import OsWritableDisk
from qstore.store.errors import StoreError
from tests.tools.test_backup import made, store

__all__ = ["store"]


def is_refused(path: Path, content: bytes, read: Callable[[], object], same: object = ...) -> bool:
    """Whether a file with this content is refused, in one line; or has the `same` meaning.

    Some changes of zstd's output leave what it unpacks to as it was: a match that is found elsewhere, too.
    """
    path.write_bytes(content)
    problem = ""
    try:
        if read() == same:
            return True
    except StoreError as error:
        problem = str(error)
    assert "\n" not in problem
    return bool(problem)


@pytest.mark.parametrize("part", ["the mark", "the manifest", "a chunk"])
def test_every_byte_counts(tmp_path: Path, store: Path, part: str) -> None:
    place = tmp_path / "place"
    made(store, place)
    repository = DiskRepository(OsWritableDisk(), str(place))
    (name,) = backup_names(repository)
    manifest = read_manifest(repository, name)
    path, read = {
        "the mark": (place / "qstore-backup.json", lambda: check_mark(repository)),
        "the manifest": (next(place.glob("backups/*.manifest")), lambda: read_manifest(repository, name)),
        "a chunk": (
            min(place.glob("chunks/*/*"), key=lambda chunk: chunk.stat().st_size),
            lambda: verify_chunks(repository, manifest, lambda _: None),
        ),
    }[part]
    whole = path.read_bytes().removesuffix(b"}\n") + b"}" if part == "the mark" else path.read_bytes()
    assert not is_refused(path, whole, read)
    assert [end for end in range(len(whole)) if not is_refused(path, whole[:end], read)] == []
    changed = [whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :] for at in range(len(whole))]
    assert [at for at, content in enumerate(changed) if not is_refused(path, content, read, manifest)] == []
    assert is_refused(path, whole + b"x", read)
