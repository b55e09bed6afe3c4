"""Brings what journals gathered onto the disk, and tells those who wait for it.

`start` writes the next step of each journal that has something to write and is idle, and submits it to the sync driver;
`collect` takes what the driver has synced, goes on with the next steps, and calls whoever waited. While a journal's
flush is on its way, the next one gathers in it: group commit without a timer. Nothing here waits, but `drain`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from store.queue_journal import Barrier, Done, QueueJournal
from store.sync.driver import SyncDriver, SyncDriverError
from store.sync.idle import IdleSync


class Flusher:
    """The flushes of all journals of a store.

    Args:
        driver: who waits for the disk. The flusher closes it.
        clock: gives nanoseconds.

    Attributes:
        dirty: the journals that were appended to since their last flush began, in order. Whoever appends adds.
        failure: why nothing is synced any more: the driver has died; None if it has not.
    """

    def __init__(self, driver: SyncDriver, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._driver = driver
        self._idle = IdleSync(clock)
        self.dirty: dict[QueueJournal, None] = {}
        self.failure: SyncDriverError | None = None
        self._under_way: dict[int, QueueJournal] = {}
        self._tickets = 0
        self._due: deque[tuple[Done, Exception | None]] = deque()
        self._is_calling = False

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something to do; -1 where there never is one."""
        return self._driver.fileno()

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
        if is_idle and not self._under_way and len(self.dirty) == 1 and self._idle.is_quick:
            self._do_now(self.dirty.popitem()[0])
        else:
            self._begin_dirty()
        if self._due or (self._under_way and self._driver.fileno() < 0):
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
        files = journal.begin()
        if not files:
            self._tell((journal,))
            return
        self._tickets += 1
        self._under_way[self._tickets] = journal
        if self.failure is not None:
            self._fail(self.failure)
            return
        try:
            self._driver.submit(self._tickets, files)
        except SyncDriverError as error:
            self._fail(error)

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
                waits_itself = self._driver.fileno() < 0
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
                for ticket, error in completions:
                    journal = self._under_way.pop(ticket, None)
                    if journal is None:
                        continue  # the driver died when the journal of one before it went on
                    journal.finish(error)
                    self._tell((journal,))
                    if journal.writer.is_dirty:
                        self.dirty[journal] = None  # those that go on do so together, with all there is by then
                timeout = 0.0
        except SyncDriverError as error:
            self._fail(error)

    def _fail(self, error: SyncDriverError) -> None:
        """The driver is dead: what was under way may be on the disk or not, and so the journals have failed."""
        self.failure = error
        journals = list(self._under_way.values())
        self._under_way.clear()
        for journal in journals:
            journal.finish(OSError(0, str(error)))
        self._tell(journals)

    def _tell(self, journals: Iterable[QueueJournal]) -> None:
        for journal in journals:
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
            self._advance(None)
            self.dirty.update(dict.fromkeys(chosen))
            self._begin_dirty()

    def hold_back(self, journal: QueueJournal) -> None:
        """Wait until `journal` has no more unsynced than its bound."""
        self._begin_dirty()
        while journal.writer.failure is None and journal.writer.unsynced > journal.bound:
            self._advance(None)
            self._begin_dirty()

    def forget(self, journal: QueueJournal) -> None:
        """The queue of a journal is gone: nobody has to wait for it any more."""
        self.dirty.pop(journal, None)
        self._tell((journal,))

    def close(self) -> None:
        """Let the driver go."""
        self._driver.close()
