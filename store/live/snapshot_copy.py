"""Copies a snapshot: a backup, which is a whole store in another directory.

    rhm/STORE         written last, and not clean: the copy opens as after a crash
        catalogue/    a copy of the snapshot's
        topology      the same in its second form
        jrnl/<id>/    the part of each journal before the cut
        tpl/          likewise

It is built in `rhm.new` under the target's lock, synced, and renamed to `rhm` when it is complete, as every new store.
So a partial copy is never taken for a store; a crash leaves an incomplete one, which the next copy to that directory
removes. Journals that the store had set aside (`orphans`, `quarantine`) are not copied, nor is a converted store.

A journal's files in the copy, with the same sizes as in the store:

    file                                     in the copy
    ---------------------------------------  ------------------------------------------------------------------
    has live records, or is after one   its header, its bytes up to the cut, zeros
    dead: older than those                   a header that states that no record begins in it, zeros
    never entered                            its creation header, if the journal has such headers, and zeros

The dead ones are not read, since they may be overwritten at any time; but if they were blank, the ring would appear
never to have wrapped, or to have lost a file. If one is dead, files that were never entered count as dead too, as files
of a lap before the first: then the ring is full, like every ring with dead files.

The bytes are not verified: damage is copied unchanged, and reported when the copy is opened or checked.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

import qstore.store.outage as outage
from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.file_header import FileHeader, decode_file_header, encode_file_header
from qstore.formats.rhm.geometry import DATA_OFFSET, FILE_HEADER_SIZE
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf, is_plain_ring
from qstore.store.catalogue.store_directory import LOCK, StoreDirectory, remove_tree
from qstore.store.disk import read_whole
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.journal.directory import INFO_SUFFIX, data_path
from qstore.store.journal.write.storage import write_creation_header
from qstore.store.key_value import CatalogueError
from qstore.store.live.snapshot import JournalSnapshot, Snapshot
from qstore.store.unfinished import DISCARDED, NEW
from qstore.store.writable_disk import WritableDisk, WritableFile

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
        raise StoreError(f"{target}: the snapshot cannot be copied: {error}; {outage.advice()}") from error


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
        info = journal.base_name + INFO_SUFFIX
        content = read_whole(self._disk, posixpath.join(journal.directory, info), MAX_JINF_SIZE)
        described, content = _with_ring(content, journal)
        self._write(posixpath.join(target, info), len(content), lambda file: file.write(0, content))
        first = self._header(journal, journal.cut.first) if journal.cut is not None and journal.size else None
        created = described if described is not None and described.creation_headers else None
        for place, number in enumerate(journal.ring.numbers):
            index = journal.file_at(place)
            if index is not None:
                fill = partial(self._fill, journal, first, index)
            else:
                fill = partial(_fill_unentered, created, number)
            self._write(data_path(target, journal.base_name, number), journal.geometry.file_size, fill)
        self._disk.sync_directory(target)

    def _write(self, path: str, size: int, fill: Callable[[WritableFile], None]) -> None:
        """Create a file, fill it, and sync it."""
        with closing(self._disk.create(path, size)) as file:
            fill(file)
            file.sync()

    def _fill(self, journal: JournalSnapshot, first: FileHeader | None, index: int, file: WritableFile) -> None:
        """Fill file `index`, counted over all laps; `first` is the header of the oldest file copied."""
        size = journal.bytes_in(index)
        if not size:
            assert first is not None
            number, indicator = journal.ring.number(index), journal.ring.indicator(index)
            header = replace(first, overwrite_indicator=indicator, file_number=number, first_record_offset=0, slot=0)
            file.write(0, encode_file_header(header))
            return
        file.write(0, encode_file_header(replace(self._header(journal, index), slot=0)))
        with closing(self._disk.open(journal.path_of(index))) as source:
            for offset in range(DATA_OFFSET, DATA_OFFSET + size, _CHUNK):
                content = source.read(offset, min(_CHUNK, DATA_OFFSET + size - offset))
                self._check(journal)  # after reading: if the pin did not hold until now, the content is undefined
                file.write(offset, content)
                self._copied += len(content)
                self._progress(self._copied, self._total)

    def _header(self, journal: JournalSnapshot, index: int) -> FileHeader:
        """The header of a file to be copied."""
        path = journal.path_of(index)
        sector = read_whole(self._disk, path, FILE_HEADER_SIZE)
        self._check(journal)
        number, indicator = journal.ring.number(index), journal.ring.indicator(index)
        try:
            header = decode_file_header(sector)
        except RhmError as error:
            raise StoreError(f"{path}: {error.what}: the journal is damaged and cannot be copied") from error
        if header is None or (header.file_number, header.overwrite_indicator) != (number, indicator):
            raise StoreError(f"{path}: the header belongs to another file: the journal is damaged and cannot be copied")
        return header

    def _check(self, journal: JournalSnapshot) -> None:
        if self._snapshot.is_released:
            raise StoreError(f"{self._directory.path}: the snapshot was released before it was copied; take a new one")
        if not journal.holds:
            raise StoreError(
                f"{journal.directory}: the journal ran short of room and was overwritten before it was copied; "
                "take another snapshot when there is less traffic, or use larger journals"
            )


def _with_ring(content: bytes, journal: JournalSnapshot) -> tuple[JournalInfo | None, bytes]:
    """An info file, decoded and as bytes, with the ring of the snapshot; None and unchanged if it is damaged."""
    try:
        info = decode_jinf(content)
    except RhmError:
        return None, content
    numbers = tuple(journal.ring.numbers)
    ring = () if is_plain_ring(numbers) else numbers
    if (info.geometry, info.ring, info.spare) != (journal.geometry, ring, ()):
        info = replace(info, geometry=journal.geometry, ring=ring, spare=())
        content = encode_jinf(info)
    return info, content


def _fill_unentered(created: JournalInfo | None, number: int, file: WritableFile) -> None:
    if created is not None:
        write_creation_header(file, created, number)
