"""A snapshot for another process, which reads the store's files itself: the backup of a running broker is made from it.

    rhm.snapshots/<number>/catalogue/   the catalogue's copy
                           topology     the same in its second form
                           STORE        the mark of the copy: not clean
                           CUT          how much of each journal belongs to the snapshot (`cut_file`)

The reader finds all of that, copies the journals (`journal_image`), and says for each of them when it is done with it;
the answer to that tells whether the journal's pin has held all the time. The messages never pass through the process
that has the store open: it goes on as before, except that its journals grow while they are pinned.

When the snapshot is released, its directory is removed. What a kill leaves of it is removed by the next start.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final, TypeAlias

from qstore.formats.rhm import store_file
from qstore.formats.topology_copy import encode_snapshot
from qstore.store.catalogue.store_directory import EPOCH, MIN_ROOM, StoreDirectory, remove_tree
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.disk import write_new
from qstore.store.environment import Background, Environment
from qstore.store.live.cut_file import encode_cut
from qstore.store.live.snapshot import JournalSnapshot, Snapshot, Snapshots
from qstore.store.unfinished import SNAPSHOTS, STORE

CUT: Final = "CUT"


class SharedSnapshot:
    """A snapshot that another process reads.

    Args:
        snapshot: the snapshot.
        directory: the directory of the store.
        name: the path of its own directory below that.
        remove: removes that directory.

    Attributes:
        directory, name: as above.
    """

    def __init__(self, snapshot: Snapshot, directory: str, name: str, remove: Callable[[], None]) -> None:
        self.directory, self.name = directory, name
        self._snapshot, self._remove = snapshot, remove
        self._journals: dict[int, JournalSnapshot] = {each.queue_id: each for each in snapshot.all_journals}

    def copied(self, queue_ids: Iterable[int]) -> list[int]:
        """The journals of these queues (0: the prepared list) were read, and are not needed any more.

        Returns:
            Those of which a part may have been overwritten before, or that are not in the snapshot.
        """
        overtaken = []
        for queue_id in queue_ids:
            journal = self._journals.pop(queue_id, None)
            if journal is None or not journal.holds or self._snapshot.is_released:
                overtaken.append(queue_id)
            if journal is not None:
                journal.let_go()
        return overtaken

    def release(self) -> None:
        """Release the snapshot, and remove its directory. May be called twice."""
        if not self._snapshot.is_released:
            self._snapshot.release()
            self._remove()


#: Called once, with a snapshot, or with None and the error.
Shared: TypeAlias = Callable[[SharedSnapshot | None, Exception | None], None]


class SharedSnapshots:
    """Takes the snapshots of one store that other processes read.

    Args:
        environment: disk and clock.
        directory: the store's.
        snapshots: takes them.
        background: makes and removes their directories.
    """

    def __init__(
        self, environment: Environment, directory: StoreDirectory, snapshots: Snapshots, background: Background
    ) -> None:
        self._environment, self._directory, self._background = environment, directory, background
        self._snapshots = snapshots
        self._taken = 0

    def take(self, done: Shared) -> None:
        """Take a snapshot of everything appended so far."""
        self._taken += 1
        name = f"{SNAPSHOTS}/{self._taken}"
        path = self._directory.below(SNAPSHOTS, str(self._taken))

        def begin() -> None:
            for each in (self._directory.below(SNAPSHOTS), path):
                if not self._environment.disk.is_directory(each):
                    self._environment.disk.make_directory(each)

        def describe(snapshot: Snapshot, entries: Mapping[bytes, bytes]) -> None:
            self._describe(path, snapshot, entries)

        def remove() -> None:
            self._background.run(lambda: self._remove(path), lambda _: None, lambda _: None)

        def taken(snapshot: Snapshot | None, error: Exception | None) -> None:
            if snapshot is None:
                remove()
                done(None, error)
            else:
                done(SharedSnapshot(snapshot, self._directory.path, name, remove), None)

        self._background.run(begin, lambda _: None, lambda _: None)  # if it fails, so does the copy of the catalogue
        self._snapshots.take(posixpath.join(path, "catalogue"), taken, describe)

    def _describe(self, path: str, snapshot: Snapshot, entries: Mapping[bytes, bytes]) -> None:
        """Write what the other process needs besides the catalogue. Raises OSError."""
        disk = self._environment.disk
        content = encode_snapshot(snapshot.store_id, batch_of(entries), entries)
        write_new(disk, posixpath.join(path, TOPOLOGY), content + bytes(max(MIN_ROOM, len(content))))
        marked_at = EPOCH + timedelta(microseconds=self._environment.clock() // 1000)
        mark = store_file.StoreFile(snapshot.store_id, False, marked_at, snapshot.software_version, False)
        write_new(disk, posixpath.join(path, STORE), store_file.encode(mark))
        write_new(disk, posixpath.join(path, CUT), encode_cut(snapshot, self._directory.root))

    def _remove(self, path: str) -> None:
        disk = self._environment.disk
        with contextlib.suppress(OSError):  # the next start removes the rest
            if disk.is_directory(path):
                remove_tree(disk, path)
            if not disk.names(posixpath.dirname(path)):
                disk.remove_directory(posixpath.dirname(path))
