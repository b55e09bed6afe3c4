"""Changes the geometry of journals of a store that is not running: more or fewer, larger or smaller files.

A journal is not changed in place. A new one is built next to it from the recovered content of the old one: the same
record ids, and so the same order, and every open transaction, in doubt or not. Then the two are switched:

    step                                                            the next start, after a crash in or after this step
    --------------------------------------------------------------  ----------------------------------------------------
    1. build all new journals in resized.new, read them back,       uses the old journals and ignores that directory
       mark them as "deleted"
    2. move them into jrnl under new ids                            uses the old ones, and removes those that are marked
    3. the catalogue's batch: the queue has the other journal       uses the new journal, and removes the mark
    4. remove the mark; move the old journal into `resized`         uses the new one. If it finds the old one in its old
                                                                    place, it moves it into `resized`

Steps 3 and 4 are done for one queue after the other. The prepared list has no number: it is moved to `tpl.new` in step
2, and in step 3 the old one is moved into `resized` and the new one is renamed; a start that finds `tpl.new` alone
finishes that (`start`).

Everything that needs room on the disk, except the catalogue's batches, is done before step 2. If a step fails, journals
that no queue can have are removed at once; with the one whose batch failed the next start proceeds as in the table.

Whether everything fits is known before step 1; if not, no journal is changed. The content is that found by recovery
before anything is resolved: every existing message, and the enqueues and dequeues of all open transactions, since
whether they were prepared is stored elsewhere. By the rules of `space` it must have been possible to enqueue these
messages in the new ring, with room for all of their later records.

Old journals stay in `resized` until `discard_old`. Damaged journals are refused: the next start, or
qstore-recover, rebuilds them.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Final

from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.close_record import ClosedJournal
from qstore.formats.rhm.geometry import BLOCK_SIZE, MAX_FILES, MAX_PAGES, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, TPL_BASE_NAME, JournalInfo, decode_jinf
from qstore.formats.wording import plural, printable
from qstore.store.builders.journal_copy import Rebuilt, rebuild
from qstore.store.catalogue.store_directory import remove_tree
from qstore.store.disk import Disk, read_whole
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, advice, disk_advice
from qstore.store.journal.directory import INFO_SUFFIX, NotAJournalError
from qstore.store.journal.write.storage import mark_deleted, remove_journal, unmark_deleted
from qstore.store.key_value import CatalogueError
from qstore.store.live.queue_journal import TPL_NAME
from qstore.store.log_lines import LogLine
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_content import JournalContent, content_of, described, fitting_geometry, larger_files
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_directory
from qstore.store.repair.stopped_store import BUILDING, StoppedStore
from qstore.store.unfinished import KEPT, NEW_LIST, Unfinished, unfinished_list

#: Chooses a journal's geometry: called with its name and its present one; None to leave it unchanged.
Choose = Callable[[str, Geometry], Geometry | None]


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """The plan for one journal.

    Attributes:
        name: the queue's, or "TplStore".
        source: the journal, which is sound.
        info: its info file.
        before, after: its geometries; the same if nothing is to be done.
        live_bytes: bytes of blocks of everything that is kept.
        fits: whether that fits into `after`.
        would_fit: if not, the nearest geometries into which it would; none if the largest is too small.
        entry: the queue's entry in the catalogue; None for the prepared list.
    """

    name: str
    source: RecoveredJournal
    info: JournalInfo
    before: Geometry
    after: Geometry
    live_bytes: int
    fits: bool
    would_fit: tuple[Geometry, ...]
    entry: QueueEntry | None

    @property
    def is_change(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    @property
    def messages(self) -> int:
        """Number of messages to move, those that open transactions enqueue included."""
        return self.source.messages

    @property
    def transactions(self) -> int:
        """Number of open transactions to move."""
        return len(self.source.recovery.transactions)


def plan_of(source: RecoveredJournal, name: str, entry: QueueEntry | None, choose: Choose) -> JournalPlan:
    """Plan a journal, whose files are closed.

    Args:
        source: the journal.
        name: the queue's, or "TplStore".
        entry: the queue's entry in the catalogue; None for the prepared list.
        choose: chooses the new geometry.
    """
    content = content_of(source.journal, source.recovery, is_prepared_list=entry is None)
    source.journal.close()
    info = source.journal.info
    assert info is not None  # it is damage if there is none
    before = source.journal.files.geometry
    after = choose(name, before) or before
    alignment = info.flush_alignment
    fits = after == before or content.fits(after, alignment)
    would_fit = () if fits else larger_geometries(content, after, alignment)
    return JournalPlan(name, source, info, before, after, content.blocks * BLOCK_SIZE, fits, would_fit, entry)


def read_journal(disk: Disk, path: str, name: str, closing: Closing) -> RecoveredJournal:
    """Recover a sound journal of version 2.

    Args:
        disk: reads it.
        path: its directory.
        name: the queue's, or "TplStore".
        closing: the record of its closing.

    Raises:
        StoreDamagedError: it is damaged.
        OSError: it cannot be read.
    """
    if not disk.is_directory(path):
        raise _refused(path, f'"{printable(name)}" has no journal')
    try:
        found = recover_directory(disk, path, name, closing)
    except NotAJournalError as error:
        raise _refused(path, f"there is no journal: {error}") from None
    if found.damage:
        found.journal.close()
        raise _refused(found.damage[0].where, found.damage[0].what)
    return found


def _refused(where: str, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{where}: {what}; nothing was changed: start the broker, which rebuilds damaged journals from their "
        "readable content, or use qstore-recover"
    )


def larger_geometries(content: JournalContent, geometry: Geometry, alignment: int) -> tuple[Geometry, ...]:
    """Geometries into which `content` fits though not into `geometry`: more files, or the same number of larger ones.

    Returns:
        At most one of either kind; one with more and larger files if neither suffices; none if the largest is too
        small.
    """

    def fits(candidate: Geometry) -> bool:
        return content.fits(candidate, alignment)

    more = (Geometry(files, geometry.data_size) for files in range(geometry.files + 1, MAX_FILES + 1))
    found = [*islice(filter(fits, more), 1), *islice(larger_files(geometry, MAX_PAGES, fits), 1)]
    if not found:
        largest = fitting_geometry(content, geometry, alignment)
        return () if largest is None else (largest,)
    return tuple(found)


# ---- the resize ----

_VERSION_1: Final = (
    "resize its journals with qpid-store-resize, or convert it first, with qpidd --load-module store or with "
    "qstore-recover"
)

#: Called with a journal's name before it is built.
Progress = Callable[[str], None]


class _Built(NamedTuple):
    """A new journal.

    Attributes:
        plan: its plan.
        path: where it is.
        moved: the queue's entry once it has this journal; None for the prepared list.
        closed: its entry for the record of the store's clean close.
    """

    plan: JournalPlan
    path: str
    moved: QueueEntry | None
    closed: ClosedJournal


class StoreResize(AbstractContextManager["StoreResize"]):
    """A locked store of version 2 whose journals are to be resized.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: of this program.
        read_only: only `plan` will be called: nothing is written, and `environment` opens the catalogue read-only.
        log: receives warnings.

    Raises:
        StoreLockedError, StoreDamagedError, StoreError: as `StoppedStore`.
    """

    def __init__(
        self,
        environment: Environment,
        path: str,
        software_version: str,
        *,
        read_only: bool = False,
        log: Callable[[LogLine], None] = lambda _: None,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._store = StoppedStore(
            environment, path, software_version, version_1=_VERSION_1, read_only=read_only, log=log
        )
        self._directory, self._catalogue = self._store.directory, self._store.catalogue
        self._entries, self._errors = self._store.entries, self._store.errors

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.__exit__(kind, error, trace)

    @property
    def queues(self) -> Collection[str]:
        """The names of the queues, by id."""
        return self._entries.keys()

    # ---- planning ----

    def plan(self, names: Collection[str], choose: Choose, *, prepared_list: bool = False) -> list[JournalPlan]:
        """Read journals, and plan their change.

        Args:
            names: names of existing queues.
            choose: chooses the new geometry of each.
            prepared_list: whether to include the prepared list.

        Raises:
            StoreDamagedError: a journal is damaged.
            StoreError: a journal cannot be read.
        """
        plans = []
        with self._errors():
            for name in names:
                entry = self._entries[name]
                plans.append(self._plan(name, self._directory.journal(entry.journal_id), entry, choose))
            if prepared_list:
                is_new = unfinished_list(self._disk, self._directory.root) is Unfinished.NEW_LIST  # read only
                path = self._directory.part(NEW_LIST) if is_new else self._directory.prepared_list
                plans.append(self._plan(TPL_NAME, path, None, choose))
        return plans

    def _plan(self, name: str, path: str, entry: QueueEntry | None, choose: Choose) -> JournalPlan:
        return plan_of(self._read(path, name), name, entry, choose)

    def _read(self, path: str, name: str) -> RecoveredJournal:
        return read_journal(self._disk, path, name, self._store.closing)

    # ---- resizing ----

    def resize(self, plans: Sequence[JournalPlan], progress: Progress | None = None) -> dict[str, str]:
        """Apply the plans: all of them, or nothing if a journal cannot be built.

        Args:
            plans: all of which fit.
            progress: called for each journal.

        Returns:
            Name -> path of the old journal, of those that were changed.

        Raises:
            StoreError: it failed. The text states whether anything was changed.
        """
        assert all(plan.fits for plan in plans)
        changes = [plan for plan in plans if plan.is_change]
        if not changes:
            return {}
        with self._errors():
            built = self._build_all(changes, progress or (lambda _: None))
        kept: dict[str, str] = {}
        try:
            self._switch_all(built, kept)
            self._store.record([each.closed for each in built])
        except (OSError, CatalogueError) as error:
            self._discard_built(built[len(kept) + 1 :])
            raise self._half_done(error, kept, len(built)) from error
        return kept

    def _half_done(self, error: OSError | CatalogueError, kept: Collection[str], count: int) -> StoreError:
        """The error of a resize that failed during the switch."""
        text, hint, where = str(error), f"; {disk_advice()}", self._directory.path
        if isinstance(error, OSError):
            text, hint, where = error.strerror or text, advice(error), error.filename or where
        done = ", ".join(map(printable, kept)) or "no queue"
        rest = ", and for one more this is unknown: the next start finds the complete old or new one"
        return StoreError(f"{where}: {text}{hint}; {done} had been switched before{rest * (len(kept) < count)}")

    def _build_all(self, plans: Sequence[JournalPlan], progress: Progress) -> list[_Built]:
        """Build the new journals, and move them where the switch needs them. On failure nothing is left of them."""
        built: list[_Built] = []
        try:
            self._disk.make_directory(self._directory.part(BUILDING))
            for plan in plans:
                progress(plan.name)
                built.append(self._build(plan))
            self._place(built)
        except BaseException:
            self._discard_built(built)
            raise
        return built

    def _place(self, built: Sequence[_Built]) -> None:
        """Move all new journals to their final directories, marked, and create one for the old ones."""
        directory, disk = self._directory, self._disk
        kept, building = directory.part(KEPT), directory.part(BUILDING)
        if not disk.is_directory(kept):
            disk.make_directory(kept)
        for each in built:
            if each.moved is not None:
                mark_deleted(disk, each.path)
        for each in built:
            disk.rename(each.path, self._place_of(each))
        for path in (directory.part("jrnl"), directory.root, building):
            disk.sync_directory(path)

    def _place_of(self, built: _Built) -> str:
        """The directory of a new journal at its switch."""
        moved, directory = built.moved, self._directory
        return directory.part(NEW_LIST) if moved is None else directory.journal(moved.journal_id)

    def _discard_built(self, built: Sequence[_Built]) -> None:
        """Remove new journals whose switch did not begin, and files only they need; as far as the disk permits."""
        directory, disk = self._directory, self._disk
        for each in built:
            if each.moved is not None and disk.is_directory(self._place_of(each)):
                with contextlib.suppress(OSError):  # the next start repeats it
                    remove_journal(disk, self._place_of(each))
        with contextlib.suppress(OSError):  # the next run repeats it
            if unfinished_list(disk, directory.root) is Unfinished.UNUSED_LIST:
                remove_tree(disk, directory.part(NEW_LIST))
        with contextlib.suppress(OSError):  # likewise
            if disk.is_directory(directory.part(BUILDING)):
                remove_tree(disk, directory.part(BUILDING))
        with contextlib.suppress(OSError):  # likewise
            if disk.is_directory(directory.part(KEPT)) and not disk.names(directory.part(KEPT)):
                disk.remove_directory(directory.part(KEPT))

    def _build(self, plan: JournalPlan) -> _Built:
        info = self._store.info_of(plan.info, plan.after)
        moved, name = None, posixpath.basename(self._directory.prepared_list)
        if plan.entry is not None:
            moved = self._catalogue.moved_journal(plan.entry, self._directory.has_journal)
            name = str(moved.journal_id)
            info = info._replace(incarnation=moved.incarnation, queue_name=plan.name, queue_record=moved.record)
        else:
            info = info._replace(incarnation=info.incarnation + 1)
        path = posixpath.join(self._directory.part(BUILDING), name)
        journal, recovery = plan.source.journal, plan.source.recovery
        rebuilt = rebuild(self._environment, path, info, journal, recovery, seal=True)
        journal.close()
        if rebuilt.info.geometry != plan.after:
            raise StoreError(
                f'"{printable(plan.name)}": its messages need {described(rebuilt.info.geometry)}; nothing was changed'
            )
        walked = self._verify(plan, path, rebuilt)
        queue_id, journal_id = (0, 0) if moved is None else (moved.queue_id, moved.journal_id)
        closed = ClosedJournal(queue_id, journal_id, info.incarnation, walked.flush, walked.messages)
        return _Built(plan, path, moved, closed)

    def _verify(self, plan: JournalPlan, path: str, rebuilt: Rebuilt) -> RecoveredJournal:
        """Read the new journal as the next start will. Returns its content; it is closed again."""
        walked = self._read(path, plan.name)
        walked.journal.close()
        found = walked.messages
        whole = (found, len(walked.recovery.transactions)) == (rebuilt.messages, rebuilt.transactions)
        if rebuilt.unreadable or rebuilt.messages < plan.messages or not whole:
            raise StoreDamagedError(
                f"{plan.source.journal.path}: of {plural(plan.messages, 'message')} {found:,} were found in "
                "the new journal: the disk returns other data now; nothing was changed; run qstore-check"
            )
        return walked

    def _switch_all(self, built: Sequence[_Built], kept: dict[str, str]) -> None:
        """Switch all journals. Raises OSError, CatalogueError."""
        for each in built:
            kept[each.plan.name] = self._switch(each)
        remove_tree(self._disk, self._directory.part(BUILDING))
        self._disk.sync_directory(self._directory.root)

    def _switch(self, built: _Built) -> str:
        """Do the committing step of one switch, and the steps after it. Returns the path of the old journal."""
        directory, old = self._directory, built.plan.source.journal.path
        if built.moved is None:
            kept = directory.set_aside(old, KEPT)
            self._disk.rename(directory.part(NEW_LIST), old)
            self._disk.sync_directory(directory.root)
            return kept
        self._catalogue.replace_queue(built.moved)
        unmark_deleted(self._disk, directory.journal(built.moved.journal_id))
        return directory.set_aside(old, KEPT)

    # ---- old journals ----

    def discard_old(self, names: Collection[str] | None = None, *, prepared_list: bool = False) -> list[str]:
        """Remove old journals of earlier resizes.

        Args:
            names: of these queues; None for all of them.
            prepared_list: with names, whether to include the prepared list's.

        Returns:
            Their paths.

        Raises:
            StoreError: one cannot be removed.
        """
        directory, disk = self._directory, self._disk
        parent = directory.part(KEPT)
        if not disk.is_directory(parent):
            return []
        wanted = None if names is None else {self._entries[name].queue_id for name in names}
        if wanted is not None and prepared_list:
            wanted.add(0)
        removed = []
        with self._errors():
            for path in [posixpath.join(parent, name) for name in disk.names(parent)]:
                if wanted is None or self._owner(path) in wanted:
                    remove_tree(disk, path)
                    removed.append(path)
            if disk.names(parent):
                disk.sync_directory(parent)
            else:
                disk.remove_directory(parent)
                disk.sync_directory(directory.root)
        return removed

    def _owner(self, path: str) -> int | None:
        """The number of the queue that had this journal, 0 for the prepared list; None if unknown."""
        for base in (DEFAULT_BASE_NAME, TPL_BASE_NAME):
            try:
                return decode_jinf(
                    read_whole(self._disk, posixpath.join(path, base + INFO_SUFFIX), MAX_JINF_SIZE)
                ).queue_id
            except (OSError, RhmError):
                continue
        return None
