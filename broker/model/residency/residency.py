"""The residency of one queue's messages: moves messages out of memory, and back.

A queue has a memory budget; beyond it, and when the broker's memory is short, messages leave memory in one of two ways:

    stretches    up to 512 messages after those that are delivered next, with their entries (`stretch`); for FIFO
                 orders whose entries nothing else refers to
    references   single messages, whose entries stay (`references`); for all other orders, and for messages that are
                 passed over

Stored messages of queues that handle runs do not wait for that: beyond some MiB, those that are not next for consumers
rest (`rest`), as stretches. Their content is in the journal, and in the system's page cache, anyway. A queue that
nobody takes messages from keeps less: reading them back costs a consumer that keeps pace with publishers more than
their memory is worth, but not one that comes later.

Only available messages leave memory, and only those before the first that waits for the disk. Consumers of stretches
have the next ones read back while they still work on the previous ones (`serve`), so they rarely wait.

Memory is freed in portions, when the tick notices that the queue is over budget. A walk over the whole queue, in search
of messages that can leave memory, is made only after enough messages have arrived, or come back, to make it cheap for
each. Messages that have come back until then take at most as much memory as the references of the entries that the walk
passes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from functools import partial
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Final

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.entry import AVAILABLE, END, GONE, OUT, RUN, Entry
from qstore.broker.model.residency.references import READ_AHEADS, REFERENCE_BYTES, Reference, References, Tally
from qstore.broker.model.residency.stretch import (
    BYTES_PER_MESSAGE,
    MAX_SPAN,
    PORTIONS,
    Portions,
    Stretch,
    can_join,
    index_stretches,
)
from qstore.broker.model.run import MIN_RUN, MessageRun, RunEntry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.barriers import Barriers
    from qstore.broker.model.queues.consumers import Consumers
    from qstore.broker.model.queues.fifo import Fifo
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.residency.sources import ContentSource, JournalSource, Loaded, LoadedRuns


_by_position: Final = attrgetter("position")


class Residency(Tally):
    """Manages the messages of one queue that are out of memory.

    Args:
        stored: has the messages that are in the queue's journal; None if it has none.
        others: has those that are not; None if they stay in memory.
        budget: bytes of memory that the queue's messages may take.
        staging: larger messages leave memory if they are not consumed at once; 0 for none.
        has_stretches: whether entries can leave memory: the order is FIFO, and nothing refers to entries.
        portions: the sizes of portions.

    Attributes:
        budget: as above.
        staging: as above; beyond all sizes for none.
        rest_at: `rest` is called after a tick in which the queue's messages take more than this, and decides.
        stage_at: `stage` is called after a tick in which the queue has grown by more than this.
        references: the single messages out of memory.
    """

    __slots__ = (
        "_ahead", "_barriers", "_consumers", "_has_read", "_has_stretches", "_order", "_others", "_portions", "_queue",
        "_read_to", "_referred_to", "_rest_from", "_staged_to", "_stored", "_stretches", "_tail", "_walk_at",
        "_was_urgent", "budget", "references", "rest_at", "stage_at", "staging",
    )  # fmt: skip

    _queue: Queue
    _order: Fifo
    _consumers: Consumers
    _barriers: Barriers

    def __init__(
        self,
        stored: JournalSource | None,
        others: ContentSource | None,
        budget: int,
        *,
        has_stretches: bool,
        staging: int = 0,
        portions: Portions = PORTIONS,
    ) -> None:
        super().__init__()
        self._portions = portions
        self.references = References(stored, others, self)
        self._stored, self._others, self.budget = stored, others, budget
        self.staging = self.stage_at = staging or sys.maxsize
        rests = has_stretches and stored is not None
        self.rest_at = min(portions.rest, portions.rest_unserved) if rests else sys.maxsize
        self._rest_from = 0  # value of `_happened` from which on stored messages are looked for that can rest
        self._staged_to = 0  # up to this position large messages were moved out
        self._has_stretches = has_stretches
        self._stretches: list[Stretch] = []  # by position
        self._referred_to = 0  # up to this position messages became references, as far as they could
        self._tail: tuple[int, int] | None = None  # newest position and barrier at the last failed attempt
        self._walk_at = 0  # value of `_happened` at which the next walk over the queue is due
        self._was_urgent = False  # whether the last walk was urgent
        self._has_read = False
        self._read_to = 0  # up to this position messages were read back for takers
        self._ahead = 0  # how often the system is to read ahead: the disk has been slow

    def attach(self, queue: Queue, consumers: Consumers, barriers: Barriers) -> None:
        """The queue is made."""
        self._queue, self._order, self._consumers, self._barriers = queue, queue.order, consumers, barriers
        self.references.attach(queue)
        self._order.pager = self

    def close(self) -> None:
        """The queue was deleted."""
        self._order.pager = None
        self._stretches.clear()
        self.references.close()
        for source in (self._stored, self._others):
            if source is not None:
                source.close()

    @property
    def has_failed(self) -> bool:
        """Whether the last messages to be moved out had to stay."""
        return any(source is not None and source.has_failed for source in (self._stored, self._others))

    # ---- out ----

    def keep_within_budget(self) -> None:
        """Move messages out of memory if the queue is over budget."""
        excess = self._queue.memory - self.budget
        if excess > 0:
            self.relieve(excess)

    def rest(self) -> None:
        """Move stored messages out of memory that are not next for consumers, if there are enough for a stretch."""
        if self._queue.is_deleted or not self._folds or not self._queue.takes_runs:
            return
        portions = self._portions
        if self._consumers.takers and self._queue.memory <= portions.rest:
            return
        order, last = self._order, self._stretches[-1] if self._stretches else None
        begin = order.cursor.position + portions.window
        end = min(self._barriers.limit, order.next_position)
        if end - (begin if last is None else max(begin, last.last + 1)) < portions.largest:
            return
        if self._happened() < self._rest_from:
            return
        entry = last.next if last is not None and last.last >= begin else self._after_window(portions.window)
        if not self._fold_from(entry, sys.maxsize, portions.largest, portions.smallest, is_stored=True):
            resident = self._queue.message_count - (self.messages_out - self.messages_in)
            self._rest_from = self._happened() + max(portions.patience, resident // 8)

    def stage(self) -> None:
        """Move large new messages out of memory, as references, unless they were consumed."""
        limit, entry = self._barriers.limit, self._order.last
        newest = entry.position
        chosen: list[Entry] = []
        while entry.position > self._staged_to:
            is_settled = entry.state == AVAILABLE and entry.position < limit
            if is_settled and entry.message.size > self.staging and self.references.gain(entry):
                chosen.append(entry)
            entry = entry.previous
        chosen.reverse()
        self.references.put_out(chosen)
        self._staged_to = max(self._staged_to, min(newest, limit - 1))
        self.stage_at = self.staging if newest < limit else -sys.maxsize  # some wait for the disk: try again

    def relieve(self, excess: int, *, is_urgent: bool = False) -> int:
        """Move messages out of memory.

        Those of a queue that is being deleted stay: the files of its journal may be gone already.

        Args:
            excess: bytes to free.
            is_urgent: whether the broker is short of memory, so that everything not being consumed is moved out.

        Returns:
            Bytes that were freed.
        """
        if self._queue.is_deleted:
            return 0
        window, least, smallest, freed = self._portions.window, self._portions.largest, self._portions.smallest, 0
        if is_urgent:
            least = smallest = self._portions.least
            self.references.release_read_ahead()
            window = self._portions.smallest if self._consumers.takers else 0
        if self._folds:
            if self._stretches:
                tail = (self._order.last.position, self._barriers.limit)
                if is_urgent or tail != self._tail:
                    freed = self._fold_from(self._stretches[-1].next, excess, least, smallest)
                    self._tail = None if freed >= excess or self.has_failed else tail
            if freed < excess and self._may_walk(is_urgent=is_urgent):
                freed += self._fold_from(self._after_window(window), excess - freed, least, smallest)
                resident = self._queue.message_count - (self.messages_out - self.messages_in)
                self._walked(resident + len(self._stretches), is_enough=freed >= excess, is_urgent=is_urgent)
        if freed < excess:
            freed += self._refer(excess - freed, is_urgent=is_urgent)
        return freed

    def _may_walk(self, *, is_urgent: bool) -> bool:
        """Whether enough messages have arrived since the last walk that found little.

        Or more can leave memory now, because that walk was not urgent.
        """
        return self._happened() >= self._walk_at or (is_urgent and not self._was_urgent)

    def _walked(self, steps: int, *, is_enough: bool, is_urgent: bool) -> None:
        """Note a walk that has passed `steps` entries, and has found enough or not."""
        if not is_enough:
            self._was_urgent = is_urgent
            self._walk_at = self._happened() + max(self._portions.patience, steps // 8)

    def _happened(self) -> int:
        """Messages that have arrived or come back; large ones count as several."""
        queue, portions = self._queue, self._portions
        size = queue.bytes_enqueued + self.bytes_in
        return (
            queue.messages_enqueued
            + queue.counters.releases
            + self.messages_in
            + size * portions.patience // portions.bytes
        )

    @property
    def _folds(self) -> bool:
        """Whether entries after the cursor can leave memory."""
        return self._has_stretches and not self._queue.refers_to_entries

    def _fold_from(self, entry: Entry, excess: int, least: int, smallest: int, *, is_stored: bool = False) -> int:
        """Make stretches of the messages from an entry on.

        Args:
            entry: the entry.
            excess: bytes to free.
            least: minimum number of messages in the last stretch.
            smallest: minimum number of messages in the others.
            is_stored: only of those that are stored.

        Returns:
            Bytes that were freed.
        """
        freed, cursor, limit = 0, self._order.cursor.position, self._barriers.limit
        shown = {id(browser.cursor) for browser in self._consumers.browsers}
        largest, most_bytes = self._portions.largest, self._portions.bytes
        run: list[Entry] = []
        size = 0
        while freed < excess:
            if isinstance(entry, RunEntry) and entry.state == RUN and entry.position < limit:
                leaves = entry.rid != 0 and id(entry) not in shown
                if run:
                    # Between two runs that were received one after the other is a message of which each had a part.
                    if len(run) >= smallest or size >= most_bytes or (leaves and run[0].rid):
                        freed += self._fold(run)
                    run, size = [], 0
                if leaves:
                    following, gained = self._fold_part(entry, min(limit - entry.position, largest))
                    entry, freed = following, freed + gained
                    continue
                if is_stored:
                    entry = entry.next
                    continue
                was_shown = id(entry) in shown
                entry = self._order.unfold_run(entry)
                if was_shown:
                    shown.add(id(entry))  # the browser is at it now
            is_end = entry.state == END or entry.position >= limit
            can_leave = not is_end and entry.state == AVAILABLE and entry.position >= cursor and id(entry) not in shown
            if can_leave and (entry.rid or not is_stored):
                if not run or can_join(entry, run[0]):
                    run.append(entry)
                    size += entry.message.size
                    entry = entry.next
                    if len(run) < largest and size < most_bytes:
                        continue
            elif not run and not is_end:
                entry = entry.next
                continue
            if len(run) >= (least if is_end else smallest) or size >= most_bytes:
                freed += self._fold(run)
            run, size = [], 0
            if is_end:
                break
        return freed

    def _after_window(self, window: int) -> Entry:
        """The entry after those that stay in memory, because they are next, or were just read for takers."""
        entry, left, room = self._order.cursor, window, self.budget // 2
        kept_to = self._read_to if self._consumers.takers else 0
        most = window + 2 * self._portions.largest
        while most > 0 and entry.state != END and ((left > 0 and room > 0) or entry.position <= kept_to):
            if entry.state == AVAILABLE:
                left -= 1
                most -= 1
                room -= entry.message.size + MESSAGE_OVERHEAD
            elif entry.state == OUT:
                left -= self._portions.largest
                most -= self._portions.largest
            elif isinstance(entry, RunEntry) and entry.state == RUN:
                left -= entry.count
                most -= entry.count
                room -= entry.size + MESSAGE_OVERHEAD * entry.count
            entry = entry.next
        return entry

    def _fold(self, run: list[Entry]) -> int:
        """Move consecutive messages out of memory as a stretch. Returns the bytes freed."""
        is_stored = run[0].rid != 0
        source = self._stored if is_stored else self._others
        if source is None:
            return 0
        keys = self._keys_of(run, source, is_stored=is_stored)
        if not all(keys):
            kept = next(number for number, key in enumerate(keys) if not key)
            source.forget([key for key in keys[kept:] if key])
            run, keys = run[:kept], keys[:kept]
            if len(run) < self._portions.least:
                source.forget(keys)
                return 0
        first, last = keys[0], keys[-1]
        if is_stored and last - first == len(keys) - 1 and all(map(eq, keys, range(first, last))):
            keys = range(first, last + 1)
        stretch = Stretch(run[0].position, keys, [entry.message.size for entry in run], is_stored=is_stored)
        stretch.set_details(run)
        freed = 0
        for entry in run:
            message = entry.message
            if isinstance(message, Reference):
                freed += REFERENCE_BYTES - BYTES_PER_MESSAGE
            else:
                freed += message.size + MESSAGE_OVERHEAD - BYTES_PER_MESSAGE
                self.messages_out += 1
                self.bytes_out += message.size
        self._place(run, stretch, freed)
        return freed

    def _fold_part(self, run: RunEntry, count: int) -> tuple[Entry, int]:
        """Move the first `count` stored messages of an available run, or all, out as a stretch.

        Returns:
            The entry after them, and the bytes freed.
        """
        if count < run.count:
            run = self._order.split(run, count)
        following, size, of_runs = run.next, run.size, run.run
        keys = range(run.rid, run.rid + run.count)
        assert self._stored is not None
        self._stored.keep_stored(keys)
        if of_runs.bodies.is_even:
            sizes = array("I", (of_runs.largest,)) * run.count
        else:
            sizes = array("I", [of_runs.size(number, 1) for number in range(run.first, run.first + run.count)])
        stretch = Stretch(run.position, keys, sizes, is_stored=True)
        if run.is_redelivered:
            stretch.set_redelivered(range(run.count))
        freed = size + run.count * (MESSAGE_OVERHEAD - BYTES_PER_MESSAGE)
        self.messages_out += run.count
        self.bytes_out += size
        self._place([run], stretch, freed)
        return following, freed

    def _place(self, entries: Sequence[Entry], stretch: Stretch, freed: int) -> None:
        """Put a stretch in the place of consecutive entries, or into the one before them."""
        self.memory_out += freed
        before = entries[0].previous
        if isinstance(before, Stretch) and self._fits(stretch, before):
            before.extend(stretch)
            self._order.fold(entries, before)
        else:
            self._order.fold(entries, stretch)
            insort(self._stretches, stretch, key=_by_position)

    def _fits(self, stretch: Stretch, before: Stretch) -> bool:
        """Whether a stretch can be merged into the previous one: many small ones take more memory."""
        return (
            before.is_stored is stretch.is_stored
            and not before.is_fetched
            and before.count + stretch.count <= self._portions.largest
            and before.size + stretch.size <= self._portions.bytes
            and stretch.last - before.position <= MAX_SPAN
        )

    def _keys_of(self, run: list[Entry], source: ContentSource, *, is_stored: bool) -> Sequence[int]:
        """The keys of messages to be moved out, some of which may be out already."""
        if is_stored:
            return source.keep(run)
        for entry in run:
            if isinstance(entry.message, Reference):
                break
        else:
            return source.keep(run)
        keys = []
        for entry in run:
            message = entry.message
            keys.append(message.key if isinstance(message, Reference) else source.keep([entry])[0])
        return keys

    # ---- recovery ----

    @property
    def takes_index(self) -> bool:
        """Whether recovery may add messages that were not read (`recover`)."""
        return self._folds

    def measure(self, rid: int, stored: int) -> int:
        """Bytes by which the message `rid` is smaller than its record of `stored` bytes; 0 if it cannot be read."""
        message = None if self._stored is None else self._stored.load([rid])[0]
        return 0 if message is None else stored - message.size

    def recover(self, rids: Sequence[int], sizes: Sequence[int], redelivered: Sequence[int]) -> None:
        """Append messages that recovery has found in the journal and not read (`index_stretches`)."""
        for stretch in index_stretches(self._order.next_position, rids, sizes, redelivered, self._portions.largest):
            self.messages_out += stretch.count
            self.bytes_out += stretch.size
            self.memory_out += stretch.size + (MESSAGE_OVERHEAD - BYTES_PER_MESSAGE) * stretch.count
            before = self._stretches[-1] if self._stretches else None
            if before is not None and before.last + 1 == stretch.position and self._fits(stretch, before):
                before.extend(stretch)
                self._order.append_stretch(before, stretch.count)
            else:
                self._order.append_stretch(stretch, stretch.count)
                self._stretches.append(stretch)
            self._queue.messages_enqueued += stretch.count
            self._queue.bytes_enqueued += stretch.size

    # ---- references ----

    def _refer(self, excess: int, *, is_urgent: bool) -> int:
        """Move single messages out of memory, the newest first; their entries stay. Returns the bytes freed."""
        entry = self._order.cursor.previous if self._folds else self._order.last
        limit, expected = self._barriers.limit, 0
        if not is_urgent:
            excess = max(excess, min(self._portions.together, self.budget // 8))
        chosen: list[Entry] = []
        newest = min(entry.position, limit - 1)
        can_go = self._queue.available_count - (self.messages_out - self.messages_in) - self.references.kept_count
        is_walk = can_go > 0 and self._may_walk(is_urgent=is_urgent)
        if is_walk:
            self._referred_to = 0
        steps = 0
        while entry.position > self._referred_to and expected < excess:
            steps += 1
            if entry.state == AVAILABLE and entry.position < limit and (gain := self.references.gain(entry)):
                chosen.append(entry)
                expected += gain
            entry = entry.previous
        chosen.reverse()
        freed = self.references.put_out(chosen)
        if is_walk:
            self._walked(steps, is_enough=freed >= excess, is_urgent=is_urgent)
        self._referred_to = max(self._referred_to, newest)
        return freed

    # ---- back in ----

    def serve(self) -> None:
        """Have stretches read back that consumers wait for, or will soon. Called after a dispatch."""
        for browser in self._consumers.browsers:
            if browser.is_waiting and isinstance(browser.cursor, Stretch):
                self._fetch(browser.cursor)
        if not self._stretches or not self._consumers.takers:
            return
        cursor = self._order.cursor
        at = bisect_left(self._stretches, cursor.position, key=_by_position)
        for stretch in self._stretches[at : at + 2]:
            ahead = self._portions.ahead * stretch.count // (stretch.size + 1)  # fewer if messages are large
            if stretch.position >= cursor.position + min(self._portions.window, ahead + 1):
                break
            self._read_to = max(self._read_to, stretch.last)
            self._fetch(stretch)

    def is_behind(self, *, is_ready: bool) -> bool:
        """Whether a consumer waits for messages being read back, or already read if `is_ready`."""
        cursors = [self._order.cursor, *(each.cursor for each in self._consumers.browsers)]
        if self.references.is_reading or (is_ready and self._has_read):
            return True
        return any(isinstance(at, Stretch) and at.is_fetched for at in cursors)

    def _fetch(self, stretch: Stretch) -> None:
        if stretch.is_fetched:
            return
        stretch.is_fetched = True
        source = self._stored if stretch.is_stored else self._others
        assert source is not None
        following = stretch.next
        if stretch.is_stored and self._stored is not None and self._queue.takes_runs:
            self._stored.fetch_runs(stretch.keys, self.staging, partial(self._fetched, stretch))
        else:
            source.fetch(stretch.keys, partial(self._fetched, stretch))  # either may unfold it at once
        if stretch.is_fetched:
            self._ahead = READ_AHEADS
        if self._ahead and isinstance(following, Stretch) and following.is_stored is stretch.is_stored:
            self._ahead -= 1
            source.will_need(following.keys)

    def _fetched(self, stretch: Stretch, messages: LoadedRuns) -> None:
        """Unfold a stretch that was read back, unless it was unfolded meanwhile, or the queue deleted."""
        stretch.is_fetched = False
        if stretch.state == OUT and self._order.pager is self:
            self.unfold(stretch, messages)
            self._has_read = True
            self._queue.mark_ready()

    def unfold(self, stretch: Stretch, messages: LoadedRuns | None = None) -> Entry:
        """Put the entries of a stretch in its place, with references for messages that are not given.

        Returns:
            The first of them.
        """
        entries = self._entries_of(stretch, messages or [None] * stretch.count)
        self._order.unfold(stretch, entries)
        del self._stretches[bisect_left(self._stretches, stretch.position, key=_by_position)]
        stretch.state = GONE
        self._consumers.removed(stretch, entries[0])
        return entries[0]

    def _entries_of(self, stretch: Stretch, loaded: LoadedRuns) -> list[Entry]:
        """Count the messages of a stretch that is unfolded. Returns their entries."""
        entries: list[Entry] = []
        singles: list[Message | None] = []
        number = 0
        for each in loaded:
            if not isinstance(each, MessageRun):
                singles.append(each)
                number += 1
                continue
            if singles:
                entries += self._single_entries(stretch, number - len(singles), singles)
                singles = []
            entries += self._run_entries(stretch, number, each)
            number += each.count
        if singles:
            entries += self._single_entries(stretch, number - len(singles), singles)
        return entries

    def _single_entries(self, stretch: Stretch, first: int, loaded: Loaded) -> list[Entry]:
        """Count messages of a stretch. Returns an entry for each, with a reference for those that are None."""
        is_stored, expiries, references = stretch.is_stored, stretch.expiries, self.references
        are_numbered = bool(self._queue.sequence_header)
        messages: list[Message] = []
        missing: set[int] = set()
        keys = stretch.keys[first : first + len(loaded)]
        size, came = 0, sum(stretch.sizes[first : first + len(loaded)])
        for number, message in enumerate(loaded, first):
            if message is None:
                item = stretch.item(number)
                message = references.reference(item, is_stored=is_stored)
                missing.add(number - first)
                came -= item.size
            else:
                if are_numbered:
                    message = references.numbered(message, stretch.item(number).position) or message
                if expiries is not None and expiries[number]:  # what is stored is in whole seconds
                    message.expires_at = expiries[number]
                size += message.size
            messages.append(message)
        self._have_come(len(loaded) - len(missing), size, came)
        self.memory_out -= (REFERENCE_BYTES - BYTES_PER_MESSAGE) * len(missing)
        if len(missing) < len(keys) and (source := self._stored if is_stored else self._others) is not None:
            source.forget([key for number, key in enumerate(keys) if number not in missing] if missing else keys)
        return stretch.entries(first, messages)

    def _run_entries(self, stretch: Stretch, first: int, run: MessageRun) -> list[Entry]:
        """Count messages of a stretch. Returns as few entries for them as there can be."""
        entries: list[Entry] = []
        for begin, end in stretch.parts(first, first + run.count):
            count = end - begin
            if count < MIN_RUN:
                messages: Loaded = [run.message(number - first) for number in range(begin, end)]
                entries += self._single_entries(stretch, begin, messages)
                continue
            estimated = stretch.size if count == stretch.count else sum(stretch.sizes[begin:end])
            self._have_come(count, run.size(begin - first, count), estimated)
            position, rid, was_delivered = stretch.position_of(begin), stretch.keys[begin], stretch.was_delivered(begin)
            entries.append(RunEntry(run, begin - first, count, position, rid, is_redelivered=was_delivered))
        return entries

    def _have_come(self, count: int, size: int, estimated: int) -> None:
        """Count messages that are back in memory, and correct their size, which was estimated at the start."""
        self._queue.bytes_enqueued += size - estimated
        self.messages_in += count
        self.bytes_in += estimated
        self.memory_out -= estimated + (MESSAGE_OVERHEAD - BYTES_PER_MESSAGE) * count

    def revive(self, former: Entry) -> None:
        """Put a folded entry in its place again, if its message is available; otherwise mark it as GONE."""
        at = bisect_right(self._stretches, former.position, key=_by_position) - 1
        if at < 0:
            entry = self._order.first
        elif self._stretches[at].last < former.position:
            entry = self._stretches[at].next
        else:
            entry = self.unfold(self._stretches[at])
        while entry.state != END:
            if isinstance(entry, RunEntry) and entry.position <= former.position < entry.position + entry.count:
                if entry.state != RUN:
                    return  # a consumer has it
                entry = self._order.unfold_run(entry)
            elif entry.position < former.position:
                entry = entry.next
            else:
                break
        if entry.position != former.position or entry.state in (END, OUT):
            former.state = GONE
        elif entry.state == AVAILABLE:
            if isinstance(entry.message, Reference) and not isinstance(former.message, Reference):
                self.references.removed(entry.message)  # back in memory
            else:
                former.message = entry.message
            former.is_redelivered = entry.is_redelivered
            self._order.substitute(entry, former)
            self._consumers.removed(entry, former)

    def fold_before(self, after: Entry) -> None:
        """Fold the references directly before an entry into a stretch again, after they were visited."""
        cursor, entry = self._order.cursor.position, after.previous
        shown = {id(browser.cursor) for browser in self._consumers.browsers}
        run: list[Entry] = []
        while (
            len(run) < self._portions.largest
            and entry.state == AVAILABLE
            and entry.position >= cursor
            and id(entry) not in shown
            and isinstance(entry.message, Reference)
            and (not run or (entry.rid != 0) is (run[0].rid != 0))
        ):
            run.append(entry)
            entry = entry.previous
        if len(run) >= self._portions.smallest:
            run.reverse()
            self._fold(run)
