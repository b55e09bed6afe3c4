"""Which backups are kept, and what is removed with the others."""

from __future__ import annotations

from typing import NamedTuple

from qstore.store.backup.manifest import read_manifest
from qstore.store.backup.repository import BACKUPS, MANIFEST, Repository, backup_names, chunk_name, known_chunks
from qstore.store.repair.stopped_store import told_errors


class Removed(NamedTuple):
    """What was removed: the ids of backups, and a number of chunks."""

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
    with told_errors(repository.path):
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
