"""Lets the journals of a running store grow before they run short of room, and gives files back that they do not need.

    low         fewer blocks than `low_room` are left below the threshold: files are added in the background, so that
                publishers do not notice. As many as half of the ring, 4 at least and 64 at most; fewer, but 4 at
                least, if the disk has no room for them
    tight       it runs low, but the disk has no room for more files: its publishers are slowed down
    short       a record does not fit, because the background was too slow, or the record is very long: its publisher
                waits until there are files enough
    pinned      the same, because a snapshot pins files: if there cannot be more files, the pin is broken; if only they
                make room run low, the journal is not tight
    idle        for some seconds, half of the ring or more was not needed: files are removed, down to twice of what is
                needed, and never below the number with which the journal was created; from the disk little by little
                (`SpareFiles`)

A journal grows up to its own limit, and as long as the disk keeps the share free that the option disk-free-limit says.
Beyond that it refuses enqueues at the threshold, like one of fixed size. The prepared list does not grow.

**Removal.** Hundreds of files that are removed at once stop the syncs of all others for some 450 ms on a disk that is
mounted with `discard`. So those that journals have given back, and those of deleted queues with many files, go few at a
time: at most 64 at each look, and all that were given back if the disk is short of room. When the store is closed,
these go too; those of deleted queues as far as two seconds are enough.

Files that were given back are listed as spare in the info file of their journal until then. After a kill the next start
removes them, and a ring that grows meanwhile may take their numbers: then they are its files again. The directory of a
deleted queue has the mark of the deletion until then: what a kill leaves, the next start takes over.

**Held directories.** A snapshot of the store names journals whose queues may be deleted before it is copied. While it
is held, directories stay; they are removed when the last snapshot is released. All of this happens in the background,
in order of the catalogue's changes: so a queue whose directory is removed before a hold is not in the catalogue copy
made after it. After a crash such a directory is missing in the catalogue, as after a crash in the middle of a deletion.
"""

from __future__ import annotations

import posixpath
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.values import TypedMap
from qstore.store.disk import WritableDisk
from qstore.store.environment import Background
from qstore.store.errors import disk_advice
from qstore.store.journal.directory import DELETED
from qstore.store.journal.write.growth import RingChange, RingUnknownError, make_ring_change, remove_spare
from qstore.store.journal.write.storage import remove_journal
from qstore.store.live.commit import Flusher
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level, LogLine, Outage, journal_has_files
from qstore.store.parameters import ParameterError, StoreParameters, queue_max_files

MIN_STEP: Final = 4  # files added at once ...
MAX_STEP: Final = 64
_IDLE_LOOKS: Final = 10  # looks at which files were not needed before they are removed
_SPARE_FILES: Final = 4  # that a ring has in addition to what its live records need


def step_of(files: int) -> int:
    """How many files a ring of `files` gets at once."""
    return min(max(files // 2, MIN_STEP), MAX_STEP)


class Expansion:
    """Changes the rings of a store's journals.

    Args:
        disk: where they are.
        path: a directory on the same disk.
        parameters: the store's options.
        background: makes the changes.
        flusher: flushes journals.
        held: has the directories of deleted queues.
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
        self._grown: dict[QueueJournal, int] = {}  # and for how many looks half of the ring was not needed
        self._results: dict[QueueJournal, Exception | None] = {}  # of changes made, that the writer has not heard of

    def adopt(self, journal: QueueJournal, arguments: TypedMap) -> None:
        """Let a journal grow as far as the arguments of its queue's declaration say."""
        try:
            given = {name: typed.value for name, typed in arguments.entries}
            journal.max_files, _ = queue_max_files(given, self._parameters, journal.geometry)
        except ParameterError:  # of a store that another software wrote
            journal.max_files, _ = queue_max_files({}, self._parameters, journal.geometry)
        journal.runs_low = self._grow
        if journal.geometry.files > journal.initial_files:
            self._grown[journal] = 0
        _set_low_room(journal)

    def make_room(self, journal: QueueJournal) -> str | None:
        """Add files now, because a record does not fit.

        Returns:
            Why there are no more files, in words for the publisher, empty if the journal does not grow; None if there
            are more.
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
        if journal.writer.growth.change is None:  # what is in the batch prevents it
            self._flusher.drain((journal,))
            self._grow(journal)
        error = self._wait(journal)
        return error if journal.geometry.files > files or error else ""

    def _wait(self, journal: QueueJournal) -> str | None:
        """Wait for the change that is being made, if there is one. Returns in words for the publisher why it failed."""
        if journal.writer.growth.change is None:
            return None
        self._background.wait()
        error = self._finish(journal)
        return None if error is None else f"Its journal cannot grow: {error}"

    def look(self) -> None:
        """Begin to give back files that are not needed. Call it about every half second."""
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
        """Remove the files that are waiting for that: the store is about to be closed."""
        self._spare.will_close()

    # ---- one change ----

    def _grow(self, journal: QueueJournal) -> None:
        """Begin to add files, if there is no reason against it."""
        files = journal.geometry.files
        count = min(step_of(files), journal.max_files - files)
        if count > 0 and not journal.is_leaving and self._short_of_disk(journal) is None:
            count = max(1, min(count, self._files_that_fit(journal, self._space())))
            self._begin(journal, journal.writer.growth.begin(count))

    def _begin(self, journal: QueueJournal, change: RingChange | None) -> None:
        if change is None:
            return
        journal.writer.ring_changed()
        self._spare.taken(journal, change.added)
        make = partial(make_ring_change, self._disk, journal.directory, journal.base_name, change)

        def work() -> None:
            try:
                make()
            except (OSError, RhmError, RingUnknownError) as error:
                self._results[journal] = error
            else:
                self._results[journal] = None

        def done(_: object) -> None:
            self._finish(journal)

        self._background.run(work, done, done)

    def _finish(self, journal: QueueJournal) -> str | None:
        """Tell the writer what became of a change, unless it knows. Returns the error, if there was one."""
        growth = journal.writer.growth
        change = growth.change
        if change is None or journal not in self._results:
            return None
        error = self._results.pop(journal)
        if isinstance(error, RingUnknownError):
            journal.writer.failed(error.error)
            self._flusher.when_synced((journal,), lambda _: None)  # it logs the failure, and tells the waiters
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

    def _space(self) -> tuple[int, int] | None:
        """Bytes that are free on the disk, and in all; None if it does not say."""
        try:
            return self._disk.space(self._path)
        except OSError:
            return None

    def _files_that_fit(self, journal: QueueJournal, space: tuple[int, int] | None) -> int:
        """How many files of a journal a disk with that space has room for; as many as any step has if it is unknown."""
        if space is None:
            return MAX_STEP
        free, total = space
        return (free - total * self._parameters.disk_free_limit // 100) // journal.geometry.file_size

    def _short_of_disk(self, journal: QueueJournal) -> str | None:
        """Why the disk has no room for more files; None if it has, or does not say."""
        space = self._space()
        is_short = self._files_that_fit(journal, space) < MIN_STEP
        writer = journal.writer
        needs_none = writer.space.is_pinned and writer.records.room >= journal.low_room  # if the pins are broken
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
    """The number of files below which a ring does not shrink: twice of what its live records need."""
    geometry = journal.geometry
    needed = journal.writer.records.blocks * BLOCK_SIZE // geometry.data_size
    return max(journal.initial_files, 2 * needed + _SPARE_FILES)


def _set_low_room(journal: QueueJournal) -> None:
    """Determine below which room the journal needs more files: a quarter of the ring, 4 files at least, 32 at most."""
    files = journal.geometry.files
    is_limited = files >= journal.max_files
    journal.writer.space.spares_pins = not is_limited
    room = min(max(files // 4, min(MIN_STEP, files // 2)), MAX_STEP // 2) * journal.geometry.data_size // BLOCK_SIZE
    journal.low_room = -1 if is_limited else room


class SpareFiles:
    """The files that are still to be removed.

    Args:
        disk: where they are.
        background: removes them, in the order of the other changes of journals.
        held: has the directories of deleted queues.
    """

    __slots__ = ("_background", "_disk", "_held", "_is_removing", "_waiting")

    def __init__(self, disk: WritableDisk, background: Background, held: HeldDirectories) -> None:
        self._disk, self._background, self._held = disk, background, held
        self._waiting: dict[QueueJournal, list[int]] = {}
        self._is_removing = False

    def add(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """A journal has given files back: they are spare, on the disk too."""
        self._waiting.setdefault(journal, []).extend(reversed(numbers))

    def taken(self, journal: QueueJournal, numbers: tuple[int, ...]) -> None:
        """New files of a journal will have these numbers. To be called before the background creates them."""
        waiting = self._waiting.get(journal)
        if waiting is not None:
            again = set(numbers)
            waiting[:] = [number for number in waiting if number not in again]

    def look(self) -> None:
        """Begin to remove some, if those before are gone. Call it about every half second."""
        if not self._is_removing:
            self._remove(MAX_REMOVED)

    def remove_all(self) -> None:
        """Begin to remove all of them: their room is needed."""
        self._remove(sys.maxsize)

    def will_close(self) -> None:
        """Begin to remove what is left: the store is about to be closed."""
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
"""Files that are removed at once: hundreds stop the syncs of all others for some 450 ms on a disk with `discard`."""

CLOSE_NS: Final = 2_000_000_000  # that the removal takes when a store is closed


class HeldDirectories:
    """Removes directories, except while they are held. All but `has_long` is for the background's thread.

    Args:
        disk: where they are.
        log: receives log lines.
        clock: returns nanoseconds.
        remains: directories of which the removal was begun by an earlier process.
    """

    __slots__ = ("_clock", "_disk", "_holders", "_log", "_long", "_names", "_waiting")

    def __init__(
        self, disk: WritableDisk, log: Callable[[LogLine], None], clock: Callable[[], int], remains: Iterable[str] = ()
    ) -> None:
        self._disk, self._log, self._clock = disk, log, clock
        self._holders = 0
        self._waiting: list[str] = []
        self._long = deque(remains)  # those that are removed little by little
        self._names: list[str] = []  # what is to be removed of the first

    @property
    def has_long(self) -> bool:
        """Whether there are journals to be removed little by little. Thread-safe."""
        return bool(self._long)

    def hold(self) -> None:
        """Keep all directories to be removed from now on until `let_go`."""
        self._holders += 1

    def let_go(self) -> None:
        """End one hold."""
        self._holders -= 1
        if not self._holders:
            waiting, self._waiting = self._waiting, []
            for directory in waiting:
                self._remove(directory)

    def remove(self, directory: str) -> None:
        """Remove a journal's directory, now or later. Errors are logged."""
        if self._holders:
            self._waiting.append(directory)
        else:
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        try:
            if len(self._disk.names(directory)) > MAX_REMOVED:
                self._long.append(directory)
                return
            remove_journal(self._disk, directory)
            self._disk.sync_directory(posixpath.dirname(directory))
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
        """The store is about to be closed: what this does not remove, the next start takes over."""
        end = self._clock() + CLOSE_NS
        while self._long and self._clock() < end:
            self.remove_some(MAX_REMOVED)

    def _remove_part(self, directory: str, most: int) -> int:
        """Remove files of the first. Returns how many were chosen."""
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
