"""Brings what journals gathered onto the disk, and tells those who wait for it.

`start` writes the next step of each journal that has something to write and is idle, and submits it to the sync driver;
`collect` takes what the driver has synced, goes on with the next steps, and calls whoever waited. While a journal's
flush is on its way, the next one gathers in it: group commit without a timer. Nothing here waits, but `drain`.

**When the sync driver dies**, a successor takes its place (`store.sync.supervision`). What was acknowledged before was
synced, and stays so. Of a step that was under way nothing may be believed, and it is not enough to sync its files once
more. Linux tells a write error once to each open file description, and a description is shared by all processes that
have it (errseq_t; fsync(2)): the dead helper may have been told, and taken the error with it, while the kernel already
holds the pages for clean. The same goes for a flush of the disk's cache. So the step is done again, all of it: its
files are opened anew, so that no error that comes from now on can go to anybody else, not even to a helper that is
dying but still in the kernel; its bytes, which are still here, are written again, so that the pages are dirty whatever
became of them; and then the files are synced. The bytes and their places are the same, so a crash in between leaves
nothing that the first attempt could not have left. Only one step of a journal is under way at a time, and every step
before it has been synced: nothing else can have been lost with the error.

An error that a driver does report fails the journal, for the same reasons, and is not tried again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from store.live.queue_journal import Barrier, Done, QueueJournal
from store.log_lines import Level, LogLine, journal_failed
from store.sync.driver import SyncDriver, SyncDriverError
from store.sync.idle import IdleSync
from store.sync.supervision import Supervision
from store.writable_disk import WritableFile

_LOOK_SECONDS: Final = 0.5  # between looks at a driver that is waited for


class Flusher:
    """The flushes of all journals of a store.

    Args:
        driver: who waits for the disk. The flusher closes it.
        log: takes lines for the log.
        clock: gives nanoseconds.

    Attributes:
        dirty: the journals that were appended to since their last flush began, in order. Whoever appends adds.
        failure: why nothing is synced any more: the driver has died, and has no successor; None if it is not so.
        synced: how many steps were synced, or have failed.
        supervision: sees to it that there is a driver, and that it works.
        moved: called with the old descriptor and the new one when `fileno` changes, while both are open; -1 for none.
    """

    def __init__(
        self, driver: SyncDriver, log: Callable[[LogLine], None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._driver, self._log = driver, log
        self._idle = IdleSync(clock)
        self.supervision = Supervision(log)
        self.moved: Callable[[int, int], None] = lambda _old, _new: None
        self.dirty: dict[QueueJournal, None] = {}
        self.failure: SyncDriverError | None = None
        self.synced = 0
        self._failed: set[QueueJournal] = set()  # those whose failure is logged
        self._under_way: dict[int, QueueJournal] = {}
        self._tickets = 0
        self._due: deque[tuple[Done, Exception | None]] = deque()
        self._is_calling = False

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something to do; -1 where there never is one."""
        return -1 if self.failure is not None else self._driver.fileno()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, or waits to be."""
        return not self._under_way and not self.dirty and not self._due

    # ---- waiting ----

    def when_synced(self, journals: Iterable[QueueJournal], done: Done) -> None:
        """Call `done` when all that was appended to `journals` so far is on the disk, or cannot be."""
        chosen = list(journals)
        barrier = Barrier(done, 1 + len(chosen))
        for journal in chosen:
            if journal.wait(barrier):
                self.dirty[journal] = None  # a record that is refused may leave a flush behind: that of a restart
            else:
                barrier.reached(None)
        last = barrier.reached(None)
        if last is not None:
            self._due.append((last, None))
        self._tell(journal for journal in chosen if journal.writer.failure is not None)

    # ---- work ----

    def start(self, *, is_idle: bool = False) -> None:
        """Write, and have synced, what the dirty journals gathered. Who waited may be called already.

        Args:
            is_idle: the caller has nothing else to do. Then what one journal gathered is synced here and now.
        """
        if self._is_calling:
            return  # `collect` does it for all who are being called, in one go
        if is_idle and not self._under_way and len(self.dirty) == 1 and self._idle.is_quick and self.failure is None:
            self._do_now(self.dirty.popitem()[0])
        else:
            self._begin_dirty()
        if self._due or (self._under_way and self.fileno() < 0):
            self.collect()

    def _do_now(self, journal: QueueJournal) -> None:
        while files := journal.begin():
            journal.finish(self._idle.sync(files))
        self._tell((journal,))

    def _begin_dirty(self) -> None:
        journals = list(self.dirty)
        self.dirty.clear()  # and not replaced: whoever appends holds it
        for journal in journals:
            self._begin(journal)

    def _begin(self, journal: QueueJournal) -> None:
        if journal.writer.is_under_way:
            return  # it is dirty again when that is finished
        self._submit(journal, journal.begin())

    def _submit(self, journal: QueueJournal, files: Sequence[WritableFile]) -> None:
        if not files:
            self._tell((journal,))
            return
        if self.failure is not None:
            self._fail((journal,), self.failure)
            return
        self._tickets += 1
        self._under_way[self._tickets] = journal
        try:
            self._driver.submit(self._tickets, files)
        except SyncDriverError as error:
            self._replace_driver(error)

    def collect(self, timeout: float | None = 0.0) -> None:
        """Go on with what is synced, and call those who waited for it.

        Args:
            timeout: seconds to wait for something, if anything is under way; None for as long as it takes.
        """
        self._advance(0.0 if self._due else timeout)
        if self._is_calling:
            return  # one of those who are being called has come here: the others get their turn below
        self._is_calling = True
        try:
            while True:
                while self._due:
                    done, error = self._due.popleft()
                    done(error)
                self._begin_dirty()  # what gathered meanwhile, and what they have appended, at once
                waits_itself = self.fileno() < 0
                if waits_itself:
                    self._advance(0.0)
                if not self._due and not (waits_itself and self.dirty):
                    break
        finally:
            self._is_calling = False

    def _advance(self, timeout: float | None) -> None:
        try:
            if not self._under_way and self.failure is None:
                self._driver.completed(0.0)  # nothing can have come, but a driver may die in its sleep
            while self._under_way and (completions := self._driver.completed(timeout)):
                self.synced += len(completions)
                for ticket, error in completions:
                    journal = self._under_way.pop(ticket)
                    journal.finish(error)
                    self._tell((journal,))
                    if journal.writer.is_dirty:
                        self.dirty[journal] = None  # those that go on do so together, with all there is by then
                timeout = 0.0
        except SyncDriverError as error:
            self._replace_driver(error)

    def _wait(self) -> None:
        """Wait for what is under way, for a moment; and see that it is not for ever."""
        self._advance(_LOOK_SECONDS)
        self.look()

    def look(self) -> None:
        """See whether the driver does anything. To be called about every second while anything is under way."""
        if self.failure is None:
            self.supervision.look(self._driver, len(self._under_way), self.synced)

    def _replace_driver(self, death: SyncDriverError) -> None:
        """The driver is dead. What was under way is done again, all of it: see the top of the module."""
        journals = list(self._under_way.values())
        self._under_way.clear()
        dead = self._driver
        try:
            self._driver = self.supervision.replace(dead, death, len(journals), self.synced)
        except SyncDriverError as error:
            self.failure = error
            self.moved(dead.fileno(), -1)
            self._fail(journals, error)
            return
        self.moved(dead.fileno(), self._driver.fileno())
        dead.close()
        for journal in journals:
            self._submit(journal, journal.begin_again())

    def _fail(self, journals: Iterable[QueueJournal], error: SyncDriverError) -> None:
        """Nothing is synced any more: what was under way may be on the disk or not, and so these journals have failed.

        The log was told of the driver's death, and need not be told of each journal's.
        """
        self._failed.update(journals)
        for journal in journals:
            journal.finish(OSError(0, str(error)))
        self._tell(journals)

    def _tell(self, journals: Iterable[QueueJournal]) -> None:
        for journal in journals:
            failure = journal.writer.failure
            if failure is not None and journal not in self._failed and not journal.is_leaving:
                self._failed.add(journal)
                self._log(journal_failed(str(failure)))
            for barrier, error in journal.reached():
                done = barrier.reached(error)
                if done is not None:
                    self._due.append((done, barrier.error))

    def drain(self, journals: Iterable[QueueJournal]) -> None:
        """Wait until `journals` have nothing unsynced, or have failed. Whoever waits is called later, by `collect`."""
        chosen = list(journals)
        self.dirty.update(dict.fromkeys(chosen))
        self._begin_dirty()
        while not all(journal.is_settled for journal in chosen):
            self._wait()
            self.dirty.update(dict.fromkeys(chosen))
            self._begin_dirty()

    def hold_back(self, journal: QueueJournal) -> None:
        """Wait until `journal` has no more unsynced than its bound."""
        self._begin_dirty()
        while journal.writer.failure is None and journal.writer.unsynced > journal.bound:
            self._wait()
            self._begin_dirty()

    def forget(self, journal: QueueJournal) -> None:
        """The queue of a journal is gone: nobody has to wait for it any more."""
        self.dirty.pop(journal, None)
        self._tell((journal,))
        self._failed.discard(journal)

    def close(self) -> None:
        """Let the driver go. One that does not run is killed, which is logged."""
        if self.failure is None and self._driver.is_stopped:
            text = f"{self._driver.describe()} does not end by itself, and is killed"
            self._log(LogLine(Level.WARNING, text))
        self._driver.close()
