"""Opens the journals of a store, a single journal, or a single file, of any format."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.inspect.layout import JournalPlace, StoreKind, StoreLayout
from qstore.store.journal.directory import (
    INFO_SUFFIX,
    NotAJournalError,
    UnmadeJournalError,
    open_file,
    open_journal,
    open_line,
    open_linear_file,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import FilePool, PooledFile, linear_file_names, queue_name_of, read_file_pool
from qstore.store.journal.write.storage import is_withdrawn

TPL_NAME: Final = "TplStore"


@dataclass(slots=True)
class OpenedJournals:
    """The journals of a store.

    Attributes:
        prepared_list: the transaction prepared list's; None if there is none.
        journals: the queues'.
        orphans, quarantine: version 2: journals that were moved aside.
        pool: the files of a linearstore's partitions; None for the other stores.
        damage: what could not be opened.
        notices: one line each for the user, about things that are not damage.
    """

    prepared_list: Journal | None = None
    journals: list[Journal] = field(default_factory=list)
    orphans: list[Journal] = field(default_factory=list)
    quarantine: list[Journal] = field(default_factory=list)
    pool: FilePool | None = None
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def open_journals(disk: Disk, layout: StoreLayout) -> OpenedJournals:
    """Open every journal of `layout`.

    Raises:
        NotAJournalError, OSError: the journal or file at the layout's own path cannot be opened.
    """
    return _Opening(disk, layout).all()


class _Opening:
    def __init__(self, disk: Disk, layout: StoreLayout) -> None:
        self._disk = disk
        self._layout = layout
        self._opened = OpenedJournals()
        self._taken: dict[str, PooledFile] = {}
        self._unlinked: dict[str, list[PooledFile]] = defaultdict(list)
        self._waiting: dict[str, list[PooledFile]] = defaultdict(list)
        self._queues = frozenset((TPL_NAME, *(place.name for place in layout.journals)))

    def all(self) -> OpenedJournals:
        layout, opened = self._layout, self._opened
        if layout.pools is not None:
            self._read_pool(layout.pools)
        if layout.kind is StoreKind.FILE:
            self._file(_open_single(self._disk, layout.path))
        if layout.prepared_list is not None and not self._disk.is_directory(layout.prepared_list):
            kind = DamageKind.PREPARED_LIST_NO_DIRECTORY
            opened.damage.append(Damage(layout.prepared_list, None, None, kind))
        elif layout.prepared_list is not None:
            opened.prepared_list = self._open(JournalPlace(layout.prepared_list, TPL_NAME), Effect.COUNT_AS_UNPREPARED)
        elif layout.kind is StoreKind.LINEAR and self._unlinked.get(TPL_NAME):
            opened.prepared_list = self._lost_directory("tpl2", TPL_NAME)
        for place in layout.journals:
            journal = self._open(place, Effect.MESSAGES_LOST)
            if journal is not None:
                self._file(journal)
        self._journals_without_directory()
        for path in layout.orphans:
            self._kept(path, opened.orphans, "a directory that no queue has, moved aside")
        for path in layout.quarantine:
            self._kept(path, opened.quarantine, "quarantined as damaged")
        return opened

    def _kept(self, path: str, journals: list[Journal], what: str) -> None:
        """A journal that was moved aside; an unreadable one is reported."""
        if self._disk.is_file(posixpath.join(path, "CURRENT")):
            text = f"{path}: a damaged catalogue that was restored; remove it when it is no longer needed"
            self._opened.notices.append(text)
            return
        try:
            journals.append(open_journal(self._disk, path, name=posixpath.basename(path)))
        except (NotAJournalError, OSError):
            text = f"{path}: {what}; it has no readable journal; remove it when it is no longer needed"
            self._opened.notices.append(text)

    def _file(self, journal: Journal) -> None:
        """A journal or file that was given directly may be the prepared list's; a queue may have its name."""
        alone = self._layout.kind in (StoreKind.JOURNAL, StoreKind.FILE)
        linear = journal.format is JournalFormat.LINEAR
        if alone and (journal.name == TPL_NAME if linear else journal.base_name == TPL_BASE_NAME):
            self._opened.prepared_list = journal
        else:
            self._opened.journals.append(journal)

    def _open(self, place: JournalPlace, effect: Effect) -> Journal | None:
        if self._layout.kind is StoreKind.VERSION_2 and is_withdrawn(self._disk, place.directory):
            return None  # recovery reports it, if the queue is in the catalogue
        try:
            journal = self._open_directory(place)
        except (NotAJournalError, OSError) as error:
            if place.directory == self._layout.path:
                raise
            is_queue = place.directory != self._layout.prepared_list  # which is created with the store
            if isinstance(error, UnmadeJournalError) and is_queue and self._layout.kind is StoreKind.VERSION_2:
                self._opened.notices.append(f"{error}: its creation was interrupted; the next start removes it")
                return None  # if it is in the catalogue, it is reported as missing
            self._opened.damage.append(_unreadable(place.directory, error, effect))
            return None
        self._opened.notices.extend(journal.notices)
        journal.notices.clear()
        return journal

    # ---- linearstore ----

    def _open_directory(self, place: JournalPlace) -> Journal:
        linear = self._layout.kind is StoreKind.LINEAR or self._layout.pools is not None
        if not linear and not linear_file_names(self._disk.names(place.directory)):
            journal = open_journal(self._disk, place.directory, name=place.name)
            if self._layout.kind is StoreKind.LEGACY and journal.format is JournalFormat.VERSION_1:
                _believe_directory(journal, place.name)
            return journal
        if self._layout.kind is StoreKind.LOOSE:
            return open_line(self._disk, place.directory, None, self._taken, follow_links=True)
        if self._layout.kind is not StoreKind.JOURNAL or place.directory != self._layout.path:
            unlinked = self._unlinked.pop(place.name, ())
            return open_line(
                self._disk, place.directory, place.name, self._taken, unlinked, self._queues,
                follow_links=False, waiting=self._waiting[place.name],
            )  # fmt: skip
        # A single journal: its directory may have been copied anywhere, so the name is taken from its files.
        journal = open_line(self._disk, place.directory, None, self._taken, follow_links=self._layout.pools is None)
        if not journal.files.files and journal.damage:
            raise NotAJournalError(f"{place.directory}: {journal.damage[0].what}; pass the whole store")
        return journal

    def _read_pool(self, root: str) -> None:
        pool = self._opened.pool = read_file_pool(self._disk, root)
        self._opened.damage.extend(pool.damage)
        self._taken = pool.taken
        if self._layout.kind is StoreKind.LINEAR:
            directories = [place.directory for place in self._layout.journals]
            if self._layout.prepared_list is not None:
                directories.append(self._layout.prepared_list)
            pool.linked.update(name for directory in directories for name in self._linked(directory))
            for name in sorted(pool.taken.keys() - pool.linked):
                queue = queue_name_of(self._disk, pool.taken[name].path)
                if queue is not None:
                    self._unlinked[queue].append(pool.taken[name])
            for file in pool.waiting:
                queue = queue_name_of(self._disk, file.path)
                if queue is not None:
                    self._waiting[queue].append(file)

    def _linked(self, directory: str) -> list[str]:
        try:
            return linear_file_names(self._disk.names(directory))
        except OSError:
            return []  # reported when the journal is opened

    def _journals_without_directory(self) -> None:
        """Files that no journal links, of queues without a directory."""
        for queue in sorted(self._unlinked):
            if queue != TPL_NAME and self._unlinked[queue]:
                self._opened.journals.append(self._lost_directory(posixpath.join("jrnl2", queue), queue))

    def _lost_directory(self, below: str, queue: str) -> Journal:
        assert self._layout.pools is not None
        directory = posixpath.join(self._layout.pools, below)
        unlinked = self._unlinked.pop(queue)
        journal = open_line(self._disk, directory, queue, self._taken, unlinked, self._queues, follow_links=False)
        self._opened.notices.extend(journal.notices)
        journal.notices.clear()
        return journal


def _unreadable(directory: str, error: NotAJournalError | OSError, effect: Effect) -> Damage:
    if isinstance(error, OSError):
        return Damage(directory, None, None, DamageKind.JOURNAL_UNREADABLE, effect, reason=error.strerror)
    return Damage(directory, None, None, DamageKind.JOURNAL_BROKEN, effect, problem=str(error))


def _believe_directory(journal: Journal, name: str) -> None:
    """In qpidd's store a directory has its queue's name, which counts; an info file with another name is damage.

    But resizing leaves the old journal in a subdirectory of the new one.
    """
    if journal.name != name and not name.startswith(journal.name + "/"):
        path = posixpath.join(journal.path, journal.base_name + INFO_SUFFIX)
        kind = DamageKind.INFO_FILE_QUEUE_NAME
        journal.damage.append(Damage(path, None, None, kind, recorded=journal.name, queue=name))
        journal.name = name


def _open_single(disk: Disk, path: str) -> Journal:
    """A single file, by its magic: of a ring or of a line."""
    opened = disk.open(path)
    try:
        linear = opened.read(0, 3) == b"QLS"
    finally:
        opened.close()
    return open_linear_file(disk, path) if linear else open_file(disk, path)
