"""What messages are replayed from: a stopped store, an export, or a backup.

A backup is restored to a temporary directory, in TMPDIR, and read there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from qstore.formats.broker_records.topology import Queue
from qstore.store.backup.manifest import Manifest, read_manifest
from qstore.store.backup.repository import Repository, backup_names, check_mark
from qstore.store.backup.restore import restore
from qstore.store.damage import Damage
from qstore.store.errors import StoreError
from qstore.store.importing.intake import ImportedMessage
from qstore.store.inspect.in_use import holder_of_store
from qstore.store.inspect.layout import UnusableInputError, find_layout
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, open_store
from qstore.store.journal.enqueue_map import LIVE, PENDING
from qstore.store.journal.journal import Journal
from qstore.store.writable_disk import OsWritableDisk
from qstore.tools.backup.places import open_repository
from qstore.tools.console.progress import bytes_progress
from qstore.tools.interchange.exporting import stored_data
from qstore.tools.interchange.files import read_export
from qstore.tools.interchange.items import InterchangeError, ItemSink
from qstore.tools.replay.choice import Choice, Replayed, ReplaySink
from qstore.tools.replay.history import history

_JOURNALS: Final = (b"RHM", b"QLS")  # what their magics begin with


class Replay:
    """A replay from an opened source.

    Args:
        source: reads the source.
        choice: what is replayed.
        origin: what identifies the source in the ledger; None for the content of what is replayed.

    Attributes:
        replayed: what was read the last time.
        damage: the damage that was found.
        notices: one line each.
    """

    def __init__(self, source: _StoreSource | _ExportSource, choice: Choice, origin: str | None) -> None:
        self._source, self._choice, self._origin = source, choice, origin
        self.replayed = Replayed()
        self.damage, self.notices = source.damage, source.notices

    def read(self, sink: ItemSink) -> str:
        """Read what is replayed. Returns its identity for the ledger. Raises InterchangeError: there is nothing."""
        del self.damage[:], self.notices[:]
        passing = ReplaySink(sink, self._choice)
        self._source.read(passing, self._choice.queue)
        self.replayed = found = passing.replayed
        queue = self._choice.queue
        if queue not in passing.queues:
            raise InterchangeError(f'{self._source.title}: there is no queue "{queue}"')
        if not found.messages:
            text = f"none of {found.seen:,} messages of queue {queue} is what the replay begins with"
            raise InterchangeError(f"{self._source.title}: {text}, or selected after it")
        origin = found.digest.hexdigest() if self._origin is None else self._origin
        return hashlib.sha256(f"replay {origin} {self._choice.text}".encode("utf-8", "surrogateescape")).hexdigest()[
            :32
        ]


class _ExportSource:
    """An export of any form."""

    def __init__(self, path: str) -> None:
        self.title = self._path = path
        self.damage: list[Damage] = []
        self.notices: list[str] = []

    def read(self, sink: ReplaySink, _queue: str) -> None:
        """Read all of it: only so is it known to be whole."""
        read_export(self._path, sink)


class _StoreSource:
    """A stopped store of any format.

    Args:
        path: where it is.
        title: what it is called.
        is_whole: whether messages that were dequeued count, as far as the journal still has them.
    """

    def __init__(self, path: str, title: str, *, is_whole: bool) -> None:
        self._path, self.title, self._is_whole = path, title, is_whole
        self.damage: list[Damage] = []
        self.notices: list[str] = []

    def read(self, sink: ReplaySink, name: str) -> None:
        """Read one queue."""
        with contextlib.closing(open_store(OsWritableDisk(), self._path)) as store:
            recovered = store.recover()
            for queue in recovered.queues:
                sink.queue(queue.record or Queue(queue.name))
                if queue.name == name and queue.journal is not None:
                    self._read(store, queue, queue.journal, sink)
            self.damage += store.damage
            self.notices += store.notices

    def _read(self, store: OfflineStore, queue: RecoveredQueue, journal: Journal, sink: ReplaySink) -> None:
        for rid, place in history(store, queue, journal) if self._is_whole else _outstanding(queue):
            data = stored_data(journal, rid, place, store.damage)
            if data is not None:
                sink.message(ImportedMessage(queue.name, rid, LIVE, b"", True, data))


def _outstanding(queue: RecoveredQueue) -> Iterator[tuple[int, int]]:
    return ((rid, place) for rid, place, state, _ in queue.outstanding() if state != PENDING)


@contextlib.contextmanager
def open_replay(path: str, destination: str, choice: Choice, *, backup: str | None, is_whole: bool) -> Iterator[Replay]:
    """Open a source.

    Args:
        path: a store, an export, or the place of backups.
        destination: the store or the broker into which messages are put.
        choice: what is replayed.
        backup: of the place, this backup; None for the latest.
        is_whole: whether messages of stores count that were dequeued.

    Raises:
        UnusableInputError, StoreError, InterchangeError, OSError: it is none of these, or in use.
    """
    disk = OsWritableDisk()
    is_place = backup is not None or "://" in path
    if not is_place and Path(path).is_file() and not _is_journal(path):
        yield Replay(_ExportSource(path), choice, None)
        return
    if not is_place:
        try:
            layout = find_layout(disk, path)
        except UnusableInputError:
            if not Path(path).is_dir():
                raise
            is_place = _is_repository(path)
            if not is_place:
                raise
        else:
            holder = holder_of_store(layout)
            if holder is not None:
                raise UnusableInputError(f"{path}: process {holder} has this store open: stop the broker first")
            # What is in the queue's own journal changes by the replay, and cannot identify it.
            is_same = choice.queue == choice.target and os.path.realpath(path) == os.path.realpath(destination)
            origin = os.path.realpath(path) if is_same else None
            replay = Replay(_StoreSource(path, path, is_whole=is_whole), choice, origin)
            yield replay
            return
    with tempfile.TemporaryDirectory(prefix="qstore-replay-") as scratch:
        repository = open_repository(disk, path)
        check_mark(repository)
        manifest = _manifest(repository, path, backup)
        restored = os.path.join(scratch, "store")  # noqa: PTH118 (as the disk names it)
        with bytes_progress() as (stage, advance):
            stage("restoring", manifest.size)
            restore(disk, repository, manifest, restored, advance)
        title = f"{path}, backup {manifest.id}"
        yield Replay(_StoreSource(restored, title, is_whole=is_whole), choice, None)


def _is_journal(path: str) -> bool:
    """Whether a file begins as a journal file of either format does."""
    with Path(path).open("rb") as file:
        return file.read(len(_JOURNALS[0])) in _JOURNALS


def _is_repository(path: str) -> bool:
    try:
        check_mark(open_repository(OsWritableDisk(), path))
    except StoreError:
        return False
    return True


def _manifest(repository: Repository, path: str, wanted: str | None) -> Manifest:
    """The backup that is wanted, or the latest, if it is clear of which store."""
    if wanted is not None:
        return read_manifest(repository, wanted)
    manifests = [read_manifest(repository, identity) for identity in backup_names(repository)]
    stores = {manifest.store for manifest in manifests}
    if not manifests:
        raise StoreError(f"{path}: there is no backup")
    if len(stores) > 1:
        raise StoreError(f"{path}: there are backups of {len(stores)} stores: choose one with --backup")
    return manifests[-1]
