"""Grows the journals of a running store before they run short of room, and removes files that they do not need.

    low         fewer blocks than `low_room` are left below the threshold: files are added in the background, so that
                publishers do not notice. Half of the ring is added, at least 4 and at most 64 files; fewer, but at
                least 4, if the disk has no room for more
    tight       it runs low, but the disk has no room for more files: its publishers are slowed down
    short       a record does not fit, because the background was too slow, or the record is very long: its publisher
                waits until there are enough files
    pinned      a record does not fit because a snapshot pins files: if files cannot be added, the pin is broken; if
                only pinned files make room run low, the journal is not tight
    idle        for some seconds, half of the ring or more was not needed: files are removed, down to twice the number
                needed, and never below the number that the journal was created with; from the disk gradually
                (`SpareFiles`)

A journal grows up to its own limit, while the disk keeps the share free that the option disk-free-limit says. Beyond
that it refuses enqueues at the threshold, like one of fixed size. The prepared list does not grow. Journals that run
low at the same time grow together, and share their syncs (`make_ring_changes`).

**Removal.** Removing hundreds of files at once stops the syncs of all others for some 450 ms on a disk mounted with
`discard`. So spare files of journals, and files of deleted queues with many, are removed a few at a time: at most 64 at
each check, but all spare ones if the disk is short of room. When the store is closed, spare files are removed too, and
those of deleted queues for up to two seconds.

Until then, spare files are listed in the info file of their journal. After a kill the next start removes them. A ring
that grows meanwhile may take their numbers: then they are its files again. The directory of a deleted queue has the
mark of the deletion until then: after a kill the next start continues its removal.

**Held directories.** A snapshot of the store names journals whose queues may be deleted before it is copied. While it
is held, directories stay; they are removed when the last snapshot is released. All of this happens in the background,
in order of the catalogue's changes: so a queue whose directory is removed before a hold is not in the catalogue copy
made after it. After a crash such a directory is missing in the catalogue, as after a crash in the middle of a deletion.
"""

from __future__ import annotations

import posixpath
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.values import TypedMap
from qstore.store.disk import WritableDisk
from qstore.store.environment import Background
from qstore.store.errors import disk_advice
from qstore.store.journal.directory import DELETED
from qstore.store.journal.write.growth import (
    JournalChange,
    RingChange,
    RingUnknownError,
    make_ring_changes,
    remove_spare,
)
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.commit import Flusher
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level, LogLine, Outage, journal_has_files
from qstore.store.parameters import ParameterError, StoreParameters, queue_max_files

MIN_STEP: Final = 4  # files added at once ...
MAX_STEP: Final = 64
_IDLE_LOOKS: Final = 10  # checks at which files were not needed before they are removed
_SPARE_FILES: Final = 4  # files of a ring in addition to those that its live records need


def step_of(files: int) -> int:
    """The number of files added at once to a ring of `files`."""
    return min(max(files // 2, MIN_STEP), MAX_STEP)


class Expansion:
    """Changes the rings of a store's journals.

    Args:
        disk: where they are.
        path: a directory on the same disk.
        parameters: the store's options.
        background: makes the changes.
        flusher: flushes journals.
        held: the directories of deleted queues.
        log: receives log lines.
    """

    __slots__ = (
        "_background", "_disk", "_flusher", "_grown", "_log", "_outage", "_parameters", "_path", "_results", "_spare",
    )  # fmt: skip

    def __init__(
        self,
        disk: WritableDisk,
        path: str,
        parameters: StoreParameters,
        background: Background,
        flusher: Flusher,
        held: HeldDirectories,
        log: Callable[[LogLine], None],
    ) -> None:
        self._disk, self._path, self._parameters = disk, path, parameters
        self._background, self._flusher, self._log = background, flusher, log
        self._spare = SpareFiles(disk, background, held)
        self._outage = Outage("journals cannot grow", "journals can grow again", log)
        self._grown: dict[QueueJournal, int] = {}  # journal -> checks for which half of the ring was not needed
        self._results: dict[QueueJournal, Exception | None] = {}  # of finished changes, not reported yet

    def adopt(self, journal: QueueJournal, arguments: TypedMap) -> None:
        """Let a journal grow as far as its queue's arguments allow."""
        try:
            given = {name: typed.value for name, typed in arguments.entries}
            journal.max_files, _ = queue_max_files(given, self._parameters, journal.geometry)
        except ParameterError:  # written by other software
            journal.max_files, _ = queue_max_files({}, self._parameters, journal.geometry)
        journal.runs_low = self._grow
        if journal.geometry.files > journal.initial_files:
            self._grown[journal] = 0
        _set_low_room(journal)

    def make_room(self, journal: QueueJournal) -> str | None:
        """Add files now, because a record does not fit.

        Returns:
            Why no files were added, as text for the publisher, empty if the journal does not grow; None if some were.
        """
        files, change = journal.geometry.files, journal.writer.growth.change
        error = self._wait(journal)
        if change is not None and change.added and (journal.geometry.files > files or error):
            return error
        if not journal.max_files:
            return ""
        files = journal.geometry.files
        if files >= journal.max_files:
            size = journal.max_files * journal.geometry.file_size >> 20
            return f"Consume messages: its journal has reached its limit of {journal.max_files:,} files ({size} MiB)"
        if (reason := self._short_of_disk(journal)) is not None:
            return reason
        self._grow(journal)
        if journal.writer.growth.change is None:  # the contents of the batch prevent it
            self._flusher.drain((journal,))
            self._grow(journal)
        error = self._wait(journal)
        return error if journal.geometry.files > files or error else ""

    def _wait(self, journal: QueueJournal) -> str | None:
        """Wait for the change under way, if any. Returns why it failed, as text for the publisher."""
        if journal.writer.growth.change is None:
            return None
        self._background.wait()
        error = self._finish(journal)
        return None if error is None else f"Its journal cannot grow: {error}"

    def look(self) -> None:
        """Begin to give back files that are not needed. Call this about every half second."""
        for journal, looks in list(self._grown.items()):
            spare = journal.geometry.files - _files_kept(journal)
            if journal.is_deleted or journal.writer.failure is not None:
                del self._grown[journal]
            elif spare <= 0 or journal.writer.growth.change is not None or journal.writer.space.is_pinned:
                self._grown[journal] = 0
            elif looks < _IDLE_LOOKS:
                self._grown[journal] = looks + 1
            else:
                self._begin(journal, journal.writer.growth.begin_removal(spare))
        self._spare.look()

    def will_close(self) -> None:
        """Begin to remove spare files: the store is about to be closed."""
        self._spare.will_close()

    # ---- one change ----

    def _grow(self, journal: QueueJournal) -> None:
        """Begin to add files, unless something prevents it."""
        if journal.writer.growth.change is not None:
            return  # to be asked again after the next flush
        files = journal.geometry.files
        count = min(step_of(files), journal.max_files - files)
        if count > 0 and not journal.is_leaving and self._short_of_disk(journal) is None:
            count = max(1, min(count, self._files_that_fit(journal, self.space())))
            self._begin(journal, journal.writer.growth.begin(count))

    def _begin(self, journal: QueueJournal, change: RingChange | None) -> None:
        if change is None:
            return
        journal.writer.ring_changed()
        self._spare.taken(journal, change.added)

        def done(_: object) -> None:
            self._finish(journal)

        self._background.run_together(self._make, (journal, change), done, done)

    def _make(self, changes: Sequence[tuple[QueueJournal, RingChange]]) -> Sequence[None]:
        """Make changes of several journals. Called by the background's thread."""
        on_disk = [JournalChange(journal.directory, journal.base_name, change) for journal, change in changes]
        errors = make_ring_changes(self._disk, on_disk)
        self._results.update(zip((journal for journal, _ in changes), errors, strict=True))
        return [None] * len(changes)

    def _finish(self, journal: QueueJournal) -> str | None:
        """Report a finished change to the writer, unless it knows. Returns the error, if any."""
        growth = journal.writer.growth
        change = growth.change
        if change is None or journal not in self._results:
            return None
        error = self._results.pop(journal)
        if isinstance(error, RingUnknownError):
            journal.writer.failed(error.error)
            self._flusher.when_synced((journal,), lambda _: None)  # which logs the failure, and notifies the waiters
            return str(error.error.strerror)
        growth.end(is_made=error is None)
        journal.writer.ring_changed()
        if error is None:
            self._changed(journal, change)
            return None
        if journal.is_leaving or journal.is_deleted:
            return None
        if isinstance(error, OSError):
            reason, to_do = error.strerror or str(error), disk_advice(error)
        else:
            reason, to_do = str(error), "run qstore-check when the broker is stopped"
        self._outage.failed(reason, to_do)
        return reason

    def _changed(self, journal: QueueJournal, change: RingChange) -> None:
        journal.storage.forget(change.removed)
        if change.removed:
            self._spare.add(journal, change.removed)
        files = len(change.after)
        journal.geometry = Geometry(files, journal.geometry.data_size)
        if files > journal.initial_files:
            self._grown[journal] = 0
        else:
            self._grown.pop(journal, None)
        _set_low_room(journal)
        if change.added:
            self._outage.worked()
        self._log(journal_has_files(journal.name, files, journal.geometry.files * journal.geometry.file_size))

    def space(self) -> tuple[int, int] | None:
        """Free and total bytes of the disk; None if unknown."""
        try:
            return self._disk.space(self._path)
        except OSError:
            return None

    def _files_that_fit(self, journal: QueueJournal, space: tuple[int, int] | None) -> int:
        """The number of files of a journal that the disk has room for; enough for any step if that is unknown."""
        if space is None:
            return MAX_STEP
        free, total = space
        return (free - total * self._parameters.disk_free_limit // 100) // journal.geometry.file_size

    def _short_of_disk(self, journal: QueueJournal) -> str | None:
        """Why the disk has no room for more files; None if it has, or that is unknown."""
        space = self.space()
        is_short = self._files_that_fit(journal, space) < MIN_STEP
        writer = journal.writer
        needs_none = writer.space.is_pinned and writer.records.room >= journal.low_room  # enough once pins are broken
        journal.is_tight = is_short and not needs_none
        if not is_short or space is None:
            return None
        self._spare.remove_all()
        free, total = space
        percent = self._parameters.disk_free_limit
        reason = f"the disk has {free >> 20} MiB free, and keeps {percent} % of {total >> 20} MiB free"
        if not needs_none:
            self._outage.failed(reason, "free some space, or consume messages (disk-free-limit)")
        return f"Consume messages: its journal cannot grow: {reason}"


def _files_kept(journal: QueueJournal) -> int:
    """The number of files below which a ring does not shrink: twice the number that its live records need."""
    geometry = journal.geometry
    needed = journal.writer.records.blocks * BLOCK_SIZE // geometry.data_size
    return max(journal.initial_files, 2 * needed + _SPARE_FILES)


def _set_low_room(journal: QueueJournal) -> None:
    """Set the room below which the journal needs more files: a quarter of the ring, at least 4 files, at most 32."""
    files = journal.geometry.files
    is_limited = files >= journal.max_files
    journal.writer.space.spares_pins = not is_limited
    room = min(max(files // 4, min(MIN_STEP, files // 2)), MAX_STEP // 2) * journal.geometry.data_size // BLOCK_SIZE
    journal.low_room = -1 if is_limited else room


class SpareFiles:
    """The files still to be removed.

    Args:
        disk: where they are.
        background: removes them, in the order of the other changes of journals.
        held: the directories of deleted queues.
    """

    __slots__ = ("_background", "_disk", "_held", "_is_removing", "_waiting")

    def __init__(self, disk: WritableDisk, background: Background, held: HeldDirectories) -> None:
        self._disk, self._background, self._held = disk, background, held
        self._waiting: dict[QueueJournal, list[int]] = {}
        self._is_removing = False

    def add(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """Add files that a journal has given back: they are spare, on the disk too."""
        self._waiting.setdefault(journal, []).extend(reversed(numbers))

    def taken(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """Forget numbers that new files of a journal will have. Call this before the background creates them."""
        waiting = self._waiting.get(journal)
        if waiting is not None:
            again = set(numbers)
            waiting[:] = [number for number in waiting if number not in again]

    def look(self) -> None:
        """Begin to remove some, if the previous ones are gone. Call this about every half second."""
        if not self._is_removing:
            self._remove(MAX_REMOVED)

    def remove_all(self) -> None:
        """Begin to remove all of them, because their room is needed."""
        self._remove(sys.maxsize)

    def will_close(self) -> None:
        """Begin to remove the rest: the store is about to be closed."""
        self._remove(sum(map(len, self._waiting.values())))
        self._background.run(self._held.remove_for_a_while, self._removed, self._removed)

    def _remove(self, most: int) -> None:
        parts = []
        while most and self._waiting:
            journal, numbers = next(iter(self._waiting.items()))
            chosen = [numbers.pop() for _ in range(min(most, len(numbers)))]
            if not numbers:
                del self._waiting[journal]
            parts.append(partial(remove_spare, self._disk, journal.directory, journal.base_name, chosen))
            most -= len(chosen)
        if most and self._held.has_long:
            parts.append(partial(self._held.remove_some, most))
        if parts:
            self._is_removing = True
            self._background.run(lambda: [part() for part in parts], self._removed, self._removed)

    def _removed(self, _: object) -> None:
        self._is_removing = False


MAX_REMOVED: Final = 64
"""Files removed at once: hundreds stop the syncs of all others for some 450 ms on a disk with `discard`."""

CLOSE_NS: Final = 2_000_000_000  # the most that the removal takes when a store is closed


class HeldDirectories:
    """Removes directories, except while they are held. All but `has_long` is called by the background's thread.

    Args:
        disk: where they are.
        log: receives log lines.
        clock: returns nanoseconds of a clock that is never stepped.
        remains: directories whose removal was begun by an earlier process.
    """

    __slots__ = ("_clock", "_disk", "_due", "_holders", "_log", "_long", "_names", "_waiting")

    def __init__(
        self, disk: WritableDisk, log: Callable[[LogLine], None], clock: Callable[[], int], remains: Iterable[str] = ()
    ) -> None:
        self._disk, self._log, self._clock = disk, log, clock
        self._holders = 0
        self._waiting: list[str] = []  # until nothing is held
        self._due: list[str] = []
        self._long = deque(remains)  # those removed gradually
        self._names: list[str] = []  # files of the first that are still to be removed

    @property
    def has_long(self) -> bool:
        """Whether there are journals to be removed gradually. Thread-safe."""
        return bool(self._long)

    def hold(self) -> None:
        """Keep all directories to be removed from now on until `let_go`."""
        self._holders += 1

    def let_go(self) -> None:
        """End one hold."""
        self._holders -= 1
        if not self._holders:
            self._due += self._waiting
            self._waiting.clear()
            self.remove_due()

    def add(self, directory: str) -> None:
        """A queue was deleted: the directory of its journal is to be removed, by `remove_due` or later."""
        (self._waiting if self._holders else self._due).append(directory)

    def remove_due(self) -> None:
        """Remove directories that are not held. Errors are logged.

        It need not be synced: the next start removes what a crash brings back.
        """
        while self._due:
            self._remove(self._due.pop(0))

    def _remove(self, directory: str) -> None:
        try:
            if len(self._disk.names(directory)) > MAX_REMOVED:
                self._long.append(directory)
                return
            remove_journal(self._disk, directory)
        except OSError as error:
            self._failed(directory, error)

    def remove_some(self, most: int) -> None:
        """Remove at most `most` files of long journals."""
        while most > 0 and self._long:
            directory = self._long[0]
            try:
                most -= self._remove_part(directory, most)
            except OSError as error:
                self._failed(directory, error)
                self._end()

    def remove_for_a_while(self) -> None:
        """Remove files for a limited time, since the store is about to be closed; the next start removes the rest."""
        end = self._clock() + CLOSE_NS
        while self._long and self._clock() < end:
            self.remove_some(MAX_REMOVED)

    def _remove_part(self, directory: str, most: int) -> int:
        """Remove files of the first directory. Returns how many were chosen."""
        if not self._names:
            self._names = [name for name in self._disk.names(directory) if name != DELETED]
        chosen = self._names[-most:]
        for name in chosen:
            self._disk.remove(posixpath.join(directory, name))
        del self._names[-most:]
        if not self._names:
            self._end()
            remove_journal(self._disk, directory)  # the mark
            self._disk.sync_directory(posixpath.dirname(directory))
        return max(len(chosen), 1)

    def _end(self) -> None:
        self._long.popleft()
        self._names = []

    def _failed(self, directory: str, error: OSError) -> None:
        text = f"{directory}: the journal of a deleted queue cannot be removed: {error.strerror}"
        self._log(LogLine(Level.WARNING, text))
