"""First in, first out: the order of a queue's entries, and the position of its cursor.

    head <-> entry <-> entry <-> ... <-> end      linked in order of arrival
                         ^ cursor                 no entry before it is available

A new message takes the end entry, and a new end entry follows. An acquired entry stays linked, so that it can be
released at its position; a removed one is unlinked, and keeps no references into the queue.

Available entries after the cursor may be out of memory. Then an entry with the state OUT stands for many of them (a
stretch); the pager replaces it by these when they are needed (`residency`). Messages that came as a run share one
entry, with the state RUN, or HELD while a consumer has them (`model.run`); single entries replace it when something
looks at single messages.

The public methods are the interface of any order; `consumers.PerConsumerOrder` adds to it. All take constant time,
except `next_available`, which walks over entries that are not available; it passes each of them only once until an
entry before the cursor is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import (
    ACQUIRED,
    AVAILABLE,
    END,
    FOLDED,
    GONE,
    HELD,
    LEAVING,
    MOVING,
    OUT,
    RUN,
    Entry,
    end_entry,
)
from qstore.broker.model.residency.stretch import Stretch
from qstore.broker.model.run import RunEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumers import Consumer
    from qstore.broker.model.residency.residency import Residency


_PASSED: Final = (ACQUIRED, LEAVING, MOVING, HELD)  # the cursor passes these: they become available only by `put_back`


class Fifo:
    """The entries of one queue.

    Attributes:
        cursor: the entry at the cursor. Read-only outside.
        pager: manages its stretches; None if it has none.
        replaced: called with an entry that is no longer linked, and the one in its place or after it.
    """

    __slots__ = ("_end", "_head", "cursor", "pager", "replaced")

    def __init__(self) -> None:
        self._head, self._end = end_entry(0), end_entry(1)
        self._head.state = GONE
        self._head.next, self._end.previous = self._end, self._head
        self.cursor = self._end
        self.pager: Residency | None = None
        self.replaced: Callable[[Entry, Entry], None] = _ignore

    def __del__(self) -> None:
        # For a queue that was deleted with messages: the links form cycles, which would wait for the garbage
        # collector, which the server seldom runs.
        for entry in self.parts():
            del entry.next, entry.previous
        del self._head.next, self._end.previous

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in order; the one yielded last may be removed during iteration.

        Makes no copy, so that a queue can be emptied when memory is exhausted.
        """
        for part in self.parts():
            if part.state == OUT or isinstance(part, RunEntry):
                yield from self.within(part)
            else:
                yield part

    def parts(self, after: Entry | None = None) -> Iterator[Entry]:
        """As iteration, but with stretches and runs in place of their entries.

        If others are removed meanwhile, some recur.

        Args:
            after: begin after this entry, if it is still on the queue; not a stretch.
        """
        entry = self._head.next if after is None or after.state in (GONE, FOLDED) else after.next
        while entry.state != END:
            following = entry.next
            yield entry
            entry = self._head.next if following.state == GONE else following  # it has no place: begin anew

    def since(self, last: Entry | None, position: int) -> Iterator[Entry]:
        """As iteration, the entries after a position.

        Args:
            last: an entry at that position or before it: if it is still on the queue, iteration starts from it.
            position: as above.
        """
        entry = self._head.next if last is None or last.state in (GONE, FOLDED) else last.next
        while entry.state != END:
            following = entry.next
            if isinstance(entry, RunEntry):
                if following.position > position + 1:
                    following = self.unfold_run(entry)
            elif entry.state != OUT:
                if entry.position > position:
                    yield entry
            elif following.position > position + 1:
                assert self.pager is not None
                self.pager.fold_before(entry)  # a caller that stopped within a stretch left it unfolded
                for each in self.within(entry):
                    if each.position > position:
                        yield each
            entry = self._head.next if following.state == GONE else following

    def within(self, stretch: Entry) -> Iterator[Entry]:
        """The entries of a run, or of a stretch, whose messages stay out of memory.

        The one yielded last may be removed during iteration.
        """
        if isinstance(stretch, RunEntry):
            self.unfold_run(stretch)
            assert stretch.entries is not None
            for entry in stretch.entries:
                if entry.state != GONE:
                    yield entry
            return
        assert self.pager is not None
        assert isinstance(stretch, Stretch)
        end = stretch.next.position
        entry = self.pager.unfold(stretch)
        while entry.position < end:
            following = entry.next
            yield entry
            if following.state == GONE:  # the rest at the next call
                return
            entry = following
        if self.pager is not None:
            self.pager.fold_before(entry)

    @property
    def first(self) -> Entry:
        """The first entry; the end entry if there is no message."""
        return self._head.next

    @property
    def last(self) -> Entry:
        """The last entry; if there is no message, one whose position is before all others."""
        return self._end.previous

    @property
    def next_position(self) -> int:
        """The position of the next message."""
        return self._end.position

    def after(self, entry: Entry) -> Entry:
        """The entry that is probably delivered next after an available one."""
        return entry.next

    def by_turn(self, entries: list[Entry]) -> Iterable[list[Entry]]:
        """Entries, in order of arrival, split into groups that are delivered together."""
        return (entries,)

    def first_to_discard(self) -> Entry | None:
        """The oldest message that is available or held by a consumer; None if there is none."""
        entry = self._head.next
        while entry.state != END:
            if entry.state in (AVAILABLE, ACQUIRED):
                return entry
            if entry.state == OUT:
                assert self.pager is not None
                assert isinstance(entry, Stretch)
                return self.pager.unfold(entry)
            if isinstance(entry, RunEntry):
                return self.unfold_run(entry)
            entry = entry.next
        return None

    def to_purge(self) -> Iterator[Entry]:
        """All entries in the order in which a purge removes them; the one yielded last may be removed meanwhile."""
        return iter(self)

    def append(self, message: Message, rid: int) -> Entry:
        """Append an available entry for a message.

        Raises:
            MemoryError: nothing was changed: all allocations come first.
        """
        entry = self._end
        end = Entry()
        end.position = entry.position + 1
        end.state = END
        end.is_redelivered = False
        end.previous = entry
        entry.next = end
        entry.message = message
        entry.rid = rid
        entry.state = AVAILABLE
        self._end = end
        return entry

    def next_available(self, limit: int) -> Entry | None:
        """The next available entry, which the cursor then passes; None if there is none before the position `limit`."""
        entry = self.cursor
        while entry.position < limit:
            state = entry.state
            if state == AVAILABLE:
                self.cursor = entry.next
                return entry
            if state >= END:
                break
            entry = entry.next
        self.cursor = entry
        return None

    def claim(self, entry: Entry, consumer: Consumer | None) -> bool:  # noqa: ARG002
        """Whether an available entry may be acquired for a consumer; None to acquire it for no consumer."""
        return True

    def oldest(self) -> Entry:
        """The first entry that is available, or a stretch; any other if there is none or it is not known."""
        entry = self.cursor
        while entry.state in _PASSED:
            entry = entry.next
        self.cursor = entry
        return entry

    def heads(self) -> Sequence[Entry]:
        """The entries that may be next for a consumer, as far as that is known; they need not be available."""
        return (self.oldest(),)

    def put_back(self, entry: Entry) -> None:
        """Move the cursor back to an entry that is available again, if it is past it."""
        if entry.position < self.cursor.position:
            self.cursor = entry

    def remove(self, entry: Entry) -> Entry:
        """Remove an entry. Returns the one that followed it."""
        previous, following = entry.previous, entry.next
        previous.next, following.previous = following, previous
        entry.state = GONE
        if entry is self.cursor:
            self.cursor = following
        del entry.next, entry.previous  # a reference to the entry would keep all later entries alive
        return following

    def dissolve(self, at_once: int) -> Iterator[None]:
        """Remove all entries of a deleted queue, as work in turns: `at_once` in each."""
        count, head = 0, self._head
        while (entry := head.next).state != END:
            self.remove(entry)
            count += 1
            if not count % at_once:
                yield

    # ---- runs ----

    def append_run(self, run: RunEntry) -> None:
        """Append available messages of a run, whose positions begin with that of the end."""
        self._append_many(run, run.count)

    def peel(self, run: RunEntry) -> Entry:
        """Replace the first message of an available run by its own entry, which is returned."""
        if run.count == 1:
            return self.unfold_run(run)
        entry = run.single(0, AVAILABLE)
        run.skip(1)
        self._link_before(run, entry)
        return entry

    def hold(self, run: RunEntry, count: int) -> RunEntry:
        """A consumer takes the first `count` messages of the run at the cursor. Returns their entry."""
        if count == run.count:
            run.keep_only_own()
            run.state = HELD
            self.cursor = run.next
            return run
        held = run.split(count, HELD)
        self._link_before(run, held)
        self.cursor = run
        return held

    def split(self, run: RunEntry, count: int) -> RunEntry:
        """Split the first `count` messages, fewer than all, off a run. Returns their entry."""
        front = run.split(count, run.state)
        front.keep_only_own()
        self._link_before(run, front)
        return front

    def _link_before(self, following: Entry, entry: Entry) -> None:
        before = following.previous
        before.next = following.previous = entry
        entry.previous, entry.next = before, following
        if self.cursor is following:
            self.cursor = entry

    def unfold_run(self, run: RunEntry) -> Entry:
        """Put the entries of the messages of a run in its place. Returns the first."""
        state = AVAILABLE if run.state == RUN else ACQUIRED
        entries = [run.single(number, state) for number in range(run.count)]
        self.unfold(run, entries)
        run.entries, run.state = entries, GONE
        self.replaced(run, entries[0])
        return entries[0]

    def remove_first(self, run: RunEntry, count: int) -> None:
        """Remove the first `count` messages of a run that is held."""
        if count < run.count:
            run.skip(count)
        else:
            self.replaced(run, self.remove(run))
            run.count = 0

    # ---- stretches ----

    def fold(self, entries: Sequence[Entry], stretch: Entry) -> None:
        """Put a stretch in the place of consecutive entries, none of which is before the cursor.

        It may be there already, directly before them.
        """
        before, after = entries[0].previous, entries[-1].next
        for entry in entries:
            if entry is self.cursor:
                self.cursor = stretch
            entry.state = FOLDED
            del entry.next, entry.previous
        if before is not stretch:
            stretch.previous, before.next = before, stretch
        stretch.next, after.previous = after, stretch

    def unfold(self, stretch: Entry, entries: Sequence[Entry]) -> None:
        """Put the entries of a stretch in its place."""
        before, after = stretch.previous, stretch.next
        for entry in entries:
            before.next, entry.previous = entry, before
            before = entry
        before.next, after.previous = after, before
        if self.cursor is stretch:
            self.cursor = entries[0]
        del stretch.next, stretch.previous

    def substitute(self, entry: Entry, former: Entry) -> None:
        """Put the former entry of a message in the place of its present one."""
        before, after = entry.previous, entry.next
        former.previous, former.next = before, after
        before.next = after.previous = former
        former.state, entry.state = entry.state, GONE
        if self.cursor is entry:
            self.cursor = former
        del entry.next, entry.previous

    def append_stretch(self, stretch: Entry, count: int) -> None:
        """Append a stretch of that many messages, whose positions are consecutive from that of the end.

        It may be there already, as the last one: then it has got them.
        """
        if stretch is self._end.previous:
            self._end.position += count
        else:
            self._append_many(stretch, count)

    def _append_many(self, stretch: Entry, count: int) -> None:
        end, before = self._end, self._end.previous
        assert stretch.position == end.position
        stretch.previous, stretch.next = before, end
        before.next = end.previous = stretch
        if self.cursor is end:
            self.cursor = stretch
        end.position += count


def _ignore(_former: Entry, _following: Entry) -> None:
    """No consumer knows entries that are not delivered yet."""
