"""Copies a snapshot: a backup, which is a whole store in another directory.

    rhm/STORE         written last, and not clean: the copy opens as after a crash
        catalogue/    a copy of the snapshot's
        topology      the same in its second form
        jrnl/<id>/    the part of each journal before the cut
        tpl/          likewise

It is built in `rhm.new` under the target's lock, synced, and renamed to `rhm` when it is complete, as every new store.
So a partial copy is never taken for a store; a crash leaves an incomplete one, which the next copy to that directory
removes. Journals that the store had set aside (`orphans`, `quarantine`) are not copied, nor is a converted store.

What a journal's files have is described in `journal_image`.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from qstore.formats.rhm.geometry import DATA_OFFSET
from qstore.store.catalogue.store_directory import LOCK, StoreDirectory, remove_tree
from qstore.store.disk import WritableDisk, WritableFile
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, disk_advice
from qstore.store.key_value import CatalogueError
from qstore.store.live.journal_image import ImageFile, JournalImage
from qstore.store.live.snapshot import JournalSnapshot, Snapshot
from qstore.store.unfinished import DISCARDED, NEW

#: Called periodically with the bytes of journals copied so far, and in total.
Progress = Callable[[int, int], None]

_CHUNK: Final = 1 << 20
_LEFT: Final = frozenset((LOCK, NEW, DISCARDED))  # what an interrupted copy may leave


def copy_snapshot(environment: Environment, snapshot: Snapshot, target: str, progress: Progress | None = None) -> None:
    """Copy a snapshot, from any thread; the store continues to run.

    Args:
        environment: disk, clock and so on.
        snapshot: the snapshot, which must be held until this returns.
        target: the directory of the copy, which must not exist, or be empty; its parent must exist.
        progress: receives the progress.

    Raises:
        StoreError: it cannot be copied; nothing is left of the copy.
    """
    disk = environment.disk
    directory = StoreDirectory(environment, target, snapshot.software_version)
    try:
        before = _names_before(disk, target)
        try:
            _copy_to(environment, snapshot, directory, progress or (lambda _, __: None))
        except BaseException:
            with contextlib.suppress(OSError):  # the remains are not a store
                _remove(disk, directory, before)
            raise
    except OSError as error:
        raise _told(target, error) from error
    except CatalogueError as error:
        raise StoreError(f"{target}: the snapshot cannot be copied: {error}; {disk_advice()}") from error


def _names_before(disk: WritableDisk, target: str) -> list[str] | None:
    """The names in `target`; None if it does not exist. StoreError if it is more than an interrupted copy."""
    if not disk.is_directory(target):
        return None
    names = disk.names(target)
    strange = [name for name in names if name not in _LEFT]
    if strange:
        raise StoreError(f"{target}: is not empty ({strange[0]}); choose a new or empty directory")
    return names


def _copy_to(environment: Environment, snapshot: Snapshot, directory: StoreDirectory, progress: Progress) -> None:
    lock = directory.lock()
    try:
        directory.finish_interrupted()
        if environment.disk.is_directory(directory.root):
            raise StoreError(f"{directory.path}: already contains a complete copy; choose another directory")
        new = directory.in_the_making
        _Copy(environment, snapshot, new, progress).make()
        directory.finish_new(new, snapshot.store_id)
    finally:
        lock.release()


def _remove(disk: WritableDisk, directory: StoreDirectory, before: list[str] | None) -> None:
    """Remove the parts of the copy; first of all its name as a store, if it has it already."""
    try:
        directory.discard()
    except OSError:
        remove_tree(disk, directory.root)  # renaming may fail on a full disk; nothing uses this store yet
    if disk.is_directory(directory.in_the_making.root):
        remove_tree(disk, directory.in_the_making.root)
    if before is None:
        remove_tree(disk, directory.path)
    elif LOCK not in before:
        disk.remove(directory.below(LOCK))


def _told(target: str, error: OSError) -> StoreError:
    advice = "; free some space, or choose a directory on another disk" if error.errno == errno.ENOSPC else ""
    return StoreError(f"{error.filename or target}: the snapshot cannot be copied: {error.strerror or error}{advice}")


class _Copy:
    """One copy being made in `directory`."""

    def __init__(
        self, environment: Environment, snapshot: Snapshot, directory: StoreDirectory, progress: Progress
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._snapshot, self._directory, self._progress = snapshot, directory, progress
        self._journals = snapshot.all_journals
        self._copied, self._total = 0, sum(journal.size for journal in self._journals)

    def make(self) -> None:
        """Copy everything but the STORE file. Raises StoreError, CatalogueError, OSError."""
        for journal in self._journals:
            self._check(journal)
        self._disk.make_directory(self._directory.root)
        self._disk.make_directory(self._directory.part("jrnl"))
        for journal in self._journals:
            self._copy_journal(journal)
        opened = self._environment.open_key_value(self._snapshot.catalogue, create=False)
        try:
            opened.checkpoint(self._directory.catalogue)
            self._directory.write_topology(self._snapshot.store_id, opened)
        finally:
            opened.close()

    def _copy_journal(self, journal: JournalSnapshot) -> None:
        name = posixpath.basename(journal.directory)
        target = self._directory.journal(int(name)) if journal.queue_id else self._directory.prepared_list
        self._disk.make_directory(target)
        image = JournalImage(self._disk, journal, lambda: self._check(journal))
        self._write(posixpath.join(target, image.info_name), len(image.info), lambda file: file.write(0, image.info))
        for each in image.files():
            self._write(posixpath.join(target, each.name), each.size, partial(self._fill, journal, each))
        self._disk.sync_directory(target)

    def _write(self, path: str, size: int, fill: Callable[[WritableFile], None]) -> None:
        """Create a file, fill it, and sync it."""
        with closing(self._disk.create(path, size)) as file:
            fill(file)
            file.sync()

    def _fill(self, journal: JournalSnapshot, image: ImageFile, file: WritableFile) -> None:
        """Fill a file of a journal's copy."""
        if image.head:
            file.write(0, image.head)
        with image.open(self._disk) as source:
            for offset in range(DATA_OFFSET, DATA_OFFSET + image.copied, _CHUNK):
                content = image.read(source, offset, min(_CHUNK, DATA_OFFSET + image.copied - offset))
                self._check(journal)  # after reading: if the pin did not hold until now, the content is undefined
                file.write(offset, content)
                self._copied += len(content)
                self._progress(self._copied, self._total)

    def _check(self, journal: JournalSnapshot) -> None:
        if self._snapshot.is_released:
            raise StoreError(f"{self._directory.path}: the snapshot was released before it was copied; take a new one")
        if not journal.holds:
            raise StoreError(
                f"{journal.directory}: the journal ran short of room and was overwritten before it was copied; "
                "take another snapshot when there is less traffic, or use larger journals"
            )
