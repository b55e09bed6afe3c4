"""The store's one scheduler of writes and syncs: it decides what is written when, and calls the waiting callbacks.

The rest of the store and the broker append records, say who waits for them (`when_synced`), and say when the input that
was there is processed (`start`, which is the end of a tick). Then `start` writes the next step of each journal that is
due, and submits it to the sync driver; one that takes writes does these too. `collect` takes the synced steps,
continues with the next ones, unless it leaves that to `start`, and calls the waiters. Nothing here blocks, except
`drain`; and `start` for one sync of a fast disk, if its caller has nothing else to do.

A journal has one step under way at a time, and a flush takes everything that was appended to it by then. So the rules
differ only in when a flush begins:

    reason                   a flush begins                     shared by                        gain
    -----------------------  ---------------------------------  -------------------------------  ---------------------
    1 a callback waits:      at `start`; if a step is under     all that is appended until       group commit without
      publishes, commits,    way, when that is synced           then; each waits for the         a timer: 400 messages
      callbacks (`awaited`)                                     flush that has its records       a sync
    2 as 1, one journal,     within `start`: the loop itself    no other: the loop would have    two context switches:
      and the loop is idle   waits for the sync                 nothing else to do; what comes   0.16 ms to a confirm
                                                                meanwhile shares the next one    instead of 0.26
    3 one waits, but not     with the next flush of each        the next to flush; a callback    one sync a message
      urgently:              journal; after `LINGER`; or as 1   of several journals is called    that is consumed
      accepts                when it is hurried                 after the last of them           instead of two: 2,005
                                                                                                 for 2,000 messages
    4 none waits:            as 3                               as 3                             as 3
      removals, outcomes
    5 transactions over      when those in the prepared list    a sync of each journal, and      57 syncs for 352
      several journals,      by then have left it, or a         then one of the list, is for     commits instead of 63
      alone in a journal     quarter more have come             all that arrived meanwhile
    6 sessions that commit   when half as many are there as     two halves: one is served        the event loop works
      one transaction        the last flush had, or none has    while the other waits for        while the disk does
      after the other        come in an iteration of the loop   the disk
    7 an append needs room   at once; the append waits          all that is appended             a bound of the
                             (`drain`, `hold_back`)                                              unsynced data
    8 nothing waits for      after 2: zeros are written ahead   the next small flushes           no flush in a hundred
      the disk               (`fill_ahead`)                                                      takes three times as
                                                                                                 long

**Rounds.** While more than `FLUSHES_APART` steps are under way, no other begins before half of them are synced; then
all that wait begin together. So the flushes of many busy journals become fewer and larger. A journal that was idle
waits at most until the disk has done half of what it was doing in any case.

At most `FLUSHES_AT_ONCE` steps are under way, unless `drain` waits. So no iteration of the event loop begins or ends
more, however many journals a peer's operation changes. Of those that linger (3, 4) as many begin at a time, so that
others do not wait for all of them.

Measured: 1 by `bench_pairs --durable`, window 1,000; 2 by `bench_latency`, one at a time, consumed, compiled, with an
`fdatasync` of 0.11 ms (for 20 publishers by `bench_confirms`, alone-20, in pure Python: 55 µs of processor time a
message instead of 71); 3 and 4 there, half of the messages at 1,000/s; 5 by `bench_transactions`, 32 sessions, 2
queues.

**2.** A sync by the driver costs two context switches, about as much as the sync itself on an idle machine. Most steps
are one system call: a write that ends when it is on the disk (`WritableFile.write_synced`). A disk that stalls must not
block the loop: after a slow sync the driver does all of them for 25 times as long as the loop was blocked, at least
250 ms. So slow syncs block it for 4 % of the time at most.

**3, 4.** Without them the removal of a message would be flushed while its publisher sends the next one, which would
wait for that flush, and then for its own. What lingers is flushed after `LINGER` at the earliest, and after twice
that at the latest: the timer takes what was there when it was started. A peer that waits for all it has sent (0-10's
sync) has everything hurried (`hurry`).

**5.** Two rounds of syncs: of each journal, and then of the prepared list. Those that arrive while others are in their
second round share the next one. So few sessions do not wait for each other, many share their syncs, and none waits for
those that come after it.

**6.** Without it all sessions would come to share one flush, and the event loop would have nothing to do while that is
on the disk. Two rounds cost more than halves would give the loop to do: transactions over several journals wait for as
many as before.

**When the sync driver dies**, a successor replaces it (`store.sync.supervision`). Acknowledged messages were synced,
and stay so. The outcome of a step that was under way is unknown, and syncing its files once more is not enough. Linux
reports a write error once to each open file description, which all processes that have it share (errseq_t; fsync(2)):
the dead helper may have received the error, while the kernel already considers the pages clean.
The same holds for a flush of the disk's cache. So the whole step is repeated: its files are reopened, so that no later
error can be reported to another process, not even to a helper that is dying but still in the kernel; its bytes, which
are still in memory, are written again, so that the pages are dirty in any case; and then the files are synced. The
bytes and their offsets are the same, so a crash in between leaves nothing that the first attempt could not have left.
Only one step of a journal is under way at a time, and every earlier step has been synced: nothing else can have been
lost with the error.

An error that a driver does report fails the journal, for the same reasons, and is not retried.

**8. Filling ahead** prepares files for small flushes, when nothing waits for the disk. The first write to a block that
is only allocated makes the next sync wait for the file system's own journal too, which takes about as long again
(`WritableFile.fill_ahead`). So zeros are written over many such blocks at once. As part of a flush, that would make one
message in some hundred wait two or three times as long as the others. So after a flush for which the event loop itself
has waited, it is done once the messages are delivered and confirmed:

    the event loop   writes the zeros to the page cache, since only one thread writes to a journal
    the background   opens the file once more, and syncs it

An error of that sync is ignored: the journal's own descriptor gets it with the next flush, because each open file
description gets a write-back error (errseq_t; fsync(2)). No record needs the zeros: a flush that is written before they
are synced is as durable without them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Final

from qstore.store.disk import WritableDisk, WritableFile
from qstore.store.environment import Background
from qstore.store.live.queue_journal import Done, QueueJournal, SyncBarrier
from qstore.store.log_lines import Level, LogLine, journal_failed
from qstore.store.sync.driver import FileWrite, SyncDriver, SyncDriverError
from qstore.store.sync.supervision import Supervision

LINGER: Final = 0.002
"""Seconds that records wait for a flush of others before they get one of their own; at most twice as long."""

FLUSHES_AT_ONCE: Final = 64
"""Steps under way: to begin and to end one takes 0.15 ms in pure Python (`bench_turns`, a transaction to 1,000 durable
queues: without it, the longest turn takes 87 ms)."""

FLUSHES_APART: Final = 3
"""Steps under way that no others wait for: beyond so many they begin in rounds."""

_LOOK_SECONDS: Final = 0.5  # between checks of a driver while waiting for it

_SLOW: Final = 5_000_000  # nanoseconds: if an idle caller waits longer, the disk is slow
_PAUSES: Final = 25  # how many times as long as that it does not wait afterwards
_MIN_PAUSE: Final = 250_000_000


_MICROSECOND: Final = 1_000
LATENCIES: Final = tuple(
    each * _MICROSECOND
    for each in (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
)
"""The upper bounds of the classes of latencies, in nanoseconds; there is one more above them."""
SIZES: Final[tuple[int, ...]] = (512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Likewise of sizes, in bytes. Without the annotation, compiled code would make a tuple at each use."""


class FlushCounts:
    """What was flushed since the start, counted by flush: two clock readings and two additions each.

    Attributes:
        number: steps that were synced or have failed.
        nanoseconds: how long they took together, from their submission to their completion.
        size: their bytes.
        latencies, sizes: how many were in each class of `LATENCIES` and `SIZES`.
    """

    def __init__(self) -> None:
        self.number = self.nanoseconds = self.size = 0
        self.latencies = [0] * (len(LATENCIES) + 1)
        self.sizes = [0] * (len(SIZES) + 1)

    def note(self, nanoseconds: int, size: int) -> None:
        """A step has ended."""
        self.number += 1
        self.nanoseconds += nanoseconds
        self.size += size
        self.latencies[_class_of(nanoseconds, LATENCIES)] += 1
        self.sizes[_class_of(size, SIZES)] += 1


def _class_of(value: int, bounds: tuple[int, ...]) -> int:
    """The first class whose bound is not less. Most flushes are in one of the first few: `bisect` takes longer."""
    found = 0
    for bound in bounds:
        if value <= bound:
            break
        found += 1
    return found


class Flusher:
    """The flushes of all journals of a store.

    Args:
        driver: syncs the files. The flusher closes it.
        log: receives log lines.
        clock: returns nanoseconds.

    Attributes:
        dirty: journals that may have been appended to since their last flush began, in order. The appender adds them.
        awaited: likewise, those with waiters. `when_synced` adds them.
        failure: why nothing is synced any more: the driver has died without a successor; None while syncing works.
        listed: number of transactions over several journals that wait for the prepared list.
        synced: number of steps that were synced, or have failed.
        synced_now: the journal that an idle caller synced last, until the owner resets it, if the blocks after a small
            step are not prepared yet (`JournalStorage.fill_ahead`).
        fill: called in the event loop's next iteration when there is such a journal.
        supervision: ensures that there is a working driver.
        counts: what was flushed.
        in_next_iteration: calls a function in the event loop's next iteration; None: no flush waits for transactions.
        call_later: calls a function after a delay in seconds; None: what is not urgent waits for a flush of others.
        moved: called with the old descriptor and the new one when `fileno` changes, while both are open; -1 for none.
    """

    def __init__(
        self, driver: SyncDriver, log: Callable[[LogLine], None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._driver, self._log, self._clock = driver, log, clock
        self._not_before = 0  # from then on an idle caller may wait for the disk; 0: now
        self.counts = FlushCounts()
        self._began: dict[int, int] = {}  # when each step under way was submitted
        self.supervision = Supervision(log)
        self.moved: Callable[[int, int], None] = lambda _old, _new: None
        self.dirty: dict[QueueJournal, None] = {}
        self.awaited: dict[QueueJournal, None] = {}
        self.failure: SyncDriverError | None = None
        self.synced_now: QueueJournal | None = None
        self.fill: Callable[[], None] = lambda: None
        self.listed = self.synced = 0
        self._delisted = 0  # transactions that have left the prepared list
        self._gathered: dict[QueueJournal, int] = {}  # transactions over several journals, for the next flush of each
        self._turns: dict[QueueJournal, int] = {}  # value of `_delisted` at which these are flushed in any case
        self._pressing: dict[QueueJournal, None] = {}  # those with other waiters, too
        self._aged: dict[QueueJournal, None] = {}  # those of `dirty` when the timer was started
        self._has_timer = False
        self._failed: set[QueueJournal] = set()  # journals whose failure is logged
        self._under_way: dict[int, QueueJournal] = {}
        self._tickets = 0
        self.in_next_iteration: Callable[[Callable[[], None]], object] | None = None
        self.call_later: Callable[[float, Callable[[], None]], object] | None = None
        self._gathering: dict[QueueJournal, int] = {}  # flush waits for more -> committers at last check
        self._due: deque[tuple[Done, Exception | None]] = deque()
        self._is_calling = self._is_closed = self._is_looking = False
        self._most = FLUSHES_AT_ONCE  # journals in `awaited` wait while more steps are under way

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has work; -1 if there is none."""
        return -1 if self.failure is not None or self._is_closed else self._driver.fileno()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way or waiting."""
        return not self._under_way and not self.dirty and not self.awaited and not self._due and not self._gathering

    @property
    def is_closed(self) -> bool:
        """Whether nothing is written any more."""
        return self._is_closed

    # ---- waiting ----

    def when_synced(
        self, journals: Iterable[QueueJournal], done: Done, *, is_urgent: bool = True, is_gathered: bool = False
    ) -> None:
        """Call `done` when everything appended to `journals` so far is synced, or cannot be.

        Unless it `is_urgent`, no flush is begun for it: it waits for that of others, or for `LINGER`.
        """
        chosen = list(journals)
        barrier, failed = SyncBarrier(done, 1 + len(chosen)), []
        for journal in chosen:
            if not journal.wait(barrier, is_urgent=is_urgent):
                barrier.reached(None)
            elif is_urgent:
                self.awaited[journal] = None  # a refused record may leave a flush to write: that of a restart
                if not is_gathered:
                    self._pressing[journal] = None
            if journal.writer.failure is not None:
                failed.append(journal)
        if barrier.reached(None):
            self._due.append((done, None))
        if failed:
            self._notify(failed)

    def when_gathered(self, journals: Sequence[QueueJournal], done: Done) -> None:
        """As `when_synced`, for a transaction appended to several journals: the prepared list will follow."""
        self.has_gathered(journals)
        self.when_synced(journals, done, is_gathered=True)

    def has_gathered(self, journals: Sequence[QueueJournal]) -> None:
        """Note a transaction appended to several journals, whose next flushes another one already waits for."""
        for journal in journals:
            self._gathered[journal] = self._gathered.get(journal, 0) + 1
            journal.committers += 1

    def has_listed(self, count: int) -> None:
        """Note that `count` transactions over several journals were appended to the prepared list."""
        self.listed += count

    def has_delisted(self, count: int) -> None:
        """Note that the prepared list is synced with them, or has failed."""
        self.listed -= count
        self._delisted += count

    def call_soon(self, waiting: Iterable[Done], error: Exception | None) -> None:
        """Call each of these with `error`, after the waiter that calls this."""
        self._due.extend([(done, error) for done in waiting])

    # ---- work ----

    def hurry(self) -> None:
        """Every waiter so far is urgent from now on."""
        for journal in self.dirty:
            if journal.has_patient_waiters:
                journal.hurry()
                self.awaited[journal] = None

    def start(self, *, is_idle: bool = False) -> None:
        """Write and submit the journals that have urgent waiters. The waiters may be called before this returns.

        Args:
            is_idle: the caller has nothing else to do, so that a single journal is synced immediately.
        """
        if self._is_calling:
            return  # `collect` does it once, after all its callbacks
        is_alone = is_idle and not self._under_way and len(self.awaited) == 1
        if is_alone and self._is_quick() and self.failure is None and not self._is_closed:
            self._do_now(self.awaited.popitem()[0])
        elif self.awaited:
            self._begin_awaited()
        if self._under_way and self.fileno() < 0:
            self.collect()
        elif self._due:
            self._call_waiters()
        if self.dirty and not self._has_timer and self.call_later is not None and not self._is_closed:
            self.call_later(LINGER, self._end_lingering)
            self._has_timer, self._aged = True, dict(self.dirty)

    def start_all(self, *, is_idle: bool = False) -> None:
        """As `start`, for all journals that were appended to."""
        self.awaited.update(self.dirty)
        self.start(is_idle=is_idle)

    def _end_lingering(self) -> None:
        """Flush the records that have lingered since the timer was started. Later ones get as much time."""
        self._has_timer = False
        aged = self._aged
        if self._is_closed:
            aged.clear()
            return
        for journal in list(islice(aged, FLUSHES_AT_ONCE)):
            del aged[journal]
            journal.hurry()
            self.awaited[journal] = None
        if aged and self.call_later is not None:
            self.call_later(LINGER, self._end_lingering)
            self._has_timer = True
        self.start()

    def _is_quick(self) -> bool:
        """Whether an idle caller may wait for the disk."""
        if self._not_before and self._clock() >= self._not_before:
            self._not_before = 0
        return not self._not_before

    def _do_now(self, journal: QueueJournal) -> None:
        """Write and sync a journal, and wait for that."""
        self._take_dirty(journal)
        self._take_gathered(journal)
        writer, is_due = journal.writer, True
        while is_due and (step := journal.next_step()) is not None:
            unsynced, began = writer.unsynced, self._clock()
            error = journal.do_now(step)
            took = self._clock() - began
            journal.finish(error)
            self.counts.note(took, unsynced - writer.unsynced)
            if took > _SLOW:
                self._not_before = began + took + max(_MIN_PAUSE, _PAUSES * took)
            is_due = journal.is_due
        if writer.is_dirty:
            self.dirty[journal] = None
        if journal.storage.wants_filling:
            if self.synced_now is None and self.in_next_iteration is not None:
                self.in_next_iteration(self.fill)
            self.synced_now = journal
        self._notify((journal,))

    def _take_dirty(self, journal: QueueJournal) -> None:
        """A flush of this journal begins."""
        self.dirty.pop(journal, None)
        if self._gathering:
            self._gathering.pop(journal, None)
        if self._aged:
            self._aged.pop(journal, None)

    def _take_gathered(self, journal: QueueJournal) -> None:
        """A flush of this journal begins."""
        self._pressing.pop(journal, None)
        if self._gathered and self._gathered.pop(journal, 0):
            self._turns.pop(journal, None)

    def _begin_awaited(self, *, at_once: bool = False) -> None:
        if len(self._under_way) > self._most and not at_once and not self._is_closed:
            return
        journals, self.awaited = self.awaited, {}
        if self._is_closed:  # the files may belong to another process by now
            for journal in journals:
                journal.writer.close()
            self._notify(journals)
            return
        begun = 0
        for journal in journals:
            if not at_once and len(self._under_way) >= FLUSHES_AT_ONCE:
                break
            begun += 1
            if at_once or self.in_next_iteration is None or not self._waits_for_more(journal):
                self._begin(journal)
        self._most = max(FLUSHES_APART, len(self._under_way) >> 1)
        if begun < len(journals):  # the others are next, before those that `_begin` has added
            self.awaited = dict.fromkeys(islice(journals, begun, None)) | self.awaited

    def _waits_for_more(self, journal: QueueJournal) -> bool:
        """Whether a flush waits for more transactions."""
        count = journal.committers
        if not 0 < count < journal.answered >> 1 or journal.writer.is_under_way or journal.writer.is_half_flushed:
            return False
        if journal not in self._gathering:
            self._gathering[journal] = -1
            self._look_soon()
        return True

    def _look_for_more(self) -> None:
        """Begin the flushes that wait for more transactions, if none has arrived since the last check."""
        gathering, self._gathering = self._gathering, {}
        for journal, before in gathering.items():
            enough = journal.answered if journal in self._gathered else journal.answered >> 1
            if before < journal.committers < enough:
                self._gathering[journal] = journal.committers
            else:
                journal.answered = 0
                self.awaited[journal] = None
        self._is_looking = False
        if self._gathering:
            self._look_soon()
        self.start()

    def _look_soon(self) -> None:
        if not self._is_looking:
            assert self.in_next_iteration is not None
            self._is_looking = True
            self.in_next_iteration(self._look_for_more)

    def _begin(self, journal: QueueJournal) -> None:
        if self.listed and self._waits_for_list(journal):
            self.awaited[journal] = None
            return
        self._take_dirty(journal)
        if journal.writer.is_under_way:
            return  # it is examined again when the step is finished
        self._take_gathered(journal)
        writes: list[FileWrite] | None = [] if self._driver.takes_writes else None
        self._submit(journal, journal.begin(writes), writes or ())

    def _waits_for_list(self, journal: QueueJournal) -> bool:
        """Whether the transactions that wait for a journal are few, compared to those that wait for the list."""
        count = self._gathered.get(journal, 0)
        if not 0 < count < self.listed + self.listed // 4 or journal in self._pressing:
            return False
        writer = journal.writer
        if writer.is_under_way or writer.is_half_flushed:
            return False
        return self._delisted < self._turns.setdefault(journal, self._delisted + self.listed)

    def _submit(self, journal: QueueJournal, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        if not files:
            self._notify((journal,))
            return
        if self.failure is not None:
            self._fail((journal,), self.failure)
            return
        self._tickets += 1
        self._under_way[self._tickets] = journal
        self._began[self._tickets] = self._clock()
        try:
            self._driver.submit(self._tickets, files, writes)
        except SyncDriverError as error:
            self._replace_driver(error)

    def collect(self, timeout: float | None = 0.0, *, begins: bool = True) -> None:
        """Process the synced steps, and call the waiters.

        Args:
            timeout: seconds to wait for a sync, if anything is under way; None for no limit.
            begins: whether the next steps begin; if not, `start` must follow.
        """
        self._advance(0.0 if self._due else timeout)
        self._call_waiters(begins=begins)

    def _call_waiters(self, *, begins: bool = True) -> None:
        if self._is_calling:
            return  # called from a callback: the remaining waiters are called by the outer call
        self._is_calling = True
        try:
            while True:
                while self._due:
                    done, error = self._due.popleft()
                    done(error)
                if self.awaited and begins:  # records collected meanwhile, and those appended by callbacks
                    self._begin_awaited()
                waits_itself = begins and bool(self._under_way or self.awaited) and self.fileno() < 0
                if waits_itself:
                    self._advance(0.0)
                if not self._due and not (waits_itself and self.awaited):
                    break
        finally:
            self._is_calling = False

    def _advance(self, timeout: float | None) -> None:
        try:
            if not self._under_way and self.failure is None:
                self._driver.completed(0.0)  # nothing can be complete, but an idle driver may die
            while self._under_way and (completions := self._driver.completed(timeout)):
                self.synced += len(completions)
                for ticket, error in completions:
                    journal = self._under_way.pop(ticket)
                    unsynced = journal.writer.unsynced
                    journal.finish(error)
                    self.counts.note(self._clock() - self._began.pop(ticket), unsynced - journal.writer.unsynced)
                    self._notify((journal,))
                    if journal.writer.is_dirty:
                        # A step that is due is begun together with everything appended by then.
                        (self.awaited if journal.is_due else self.dirty)[journal] = None
                timeout = 0.0
        except SyncDriverError as error:
            self._replace_driver(error)

    def _wait(self) -> None:
        """Wait briefly for the step under way, and check that the driver is alive."""
        self._advance(_LOOK_SECONDS)
        self.look()

    def look(self) -> None:
        """Check that the driver makes progress. Call this about every second while anything is under way."""
        if self.failure is None:
            self.supervision.look(self._driver, len(self._under_way), self.synced)

    def _replace_driver(self, death: SyncDriverError) -> None:
        """Replace the dead driver. Steps under way are repeated as a whole (see the top of the module).

        If the driver was closed with the store, a successor would never be closed: the journals fail instead.
        """
        journals = list(self._under_way.values())
        self._under_way.clear()
        self._began.clear()
        if self._is_closed:
            self._fail(journals, death)
            return
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
        """Stop syncing: it is unknown whether steps under way are on the disk, so their journals have failed.

        The driver's death is logged, so the failure of each journal need not be.
        """
        self._failed.update(journals)
        for journal in journals:
            journal.finish(OSError(0, str(error)))
        self._notify(journals)

    def _notify(self, journals: Iterable[QueueJournal]) -> None:
        for journal in journals:
            failure = journal.writer.failure
            is_known = journal in self._failed or journal.is_leaving or self._is_closed
            if failure is not None and not is_known:
                self._failed.add(journal)
                self._log(journal_failed(str(failure)))
            journal.release(self._due)

    def drain(self, journals: Iterable[QueueJournal]) -> None:
        """Wait until `journals` are synced, or have failed. Waiters are called later, by `collect`."""
        chosen = dict.fromkeys(journals)
        self._press(chosen)
        while not all(journal.is_drained for journal in chosen):
            self._wait()
            self._press(chosen)

    def hold_back(self, journal: QueueJournal) -> None:
        """Wait until `journal` has no more unsynced bytes than its bound."""
        chosen: dict[QueueJournal, None] = {journal: None}
        self._press(chosen)
        while journal.writer.failure is None and journal.writer.unsynced > journal.bound:
            self._wait()
            self._press(chosen)

    def _press(self, journals: dict[QueueJournal, None]) -> None:
        """Begin the next flush of these journals; they wait for no transactions, since no waiters are called."""
        self._pressing.update(journals)
        self.awaited.update(journals)
        self._begin_awaited(at_once=True)

    def forget(self, journal: QueueJournal) -> None:
        """Forget a journal whose queue was deleted, with its waiters."""
        self._take_dirty(journal)
        self.awaited.pop(journal, None)
        self._take_gathered(journal)
        self._notify((journal,))
        self._failed.discard(journal)

    def close(self) -> None:
        """Close the driver: nothing is written any more. A driver that hangs is killed, which is logged."""
        if self.failure is None and self._driver.is_stopped:
            text = f"{self._driver.describe()} does not stop, and is killed"
            self._log(LogLine(Level.WARNING, text))
        self._is_closed = True
        self._driver.close()


def fill_ahead(journal: QueueJournal, disk: WritableDisk, background: Background) -> None:
    """Prepare the blocks after the journal's last step, if it was small and they need it."""
    if journal.is_deleted or journal.writer.is_under_way:
        return
    path = journal.storage.fill_ahead()
    if path:
        background.run(partial(_sync, disk, path), _ignore, _ignore)


def _sync(disk: WritableDisk, path: str) -> None:
    with closing(disk.open_writable(path)) as file:
        file.sync()


def _ignore(_: Exception | None) -> None:
    """Nothing to do: zeros that are not synced yet are synced by the next flush."""
