"""First in, first out: the order of a queue's entries, and where in it the queue has got to.

    head <-> entry <-> entry <-> ... <-> end      linked in the order in which the messages came
                         ^ cursor                 no entry before it is available

A new message takes the place of the end, and another end follows. An entry that is acquired stays linked, so that it
can be put back where it was; one that is removed is unlinked, and holds nothing of the queue any more.

What another order has to offer a queue is what is public here. All of it is constant work, but for `next_available`,
which walks over what is not available, and over each such entry once until something is put back before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.model.queues.entry import AVAILABLE, END, GONE, Entry, end_entry

if TYPE_CHECKING:
    from broker.model.message import Message

_new_entry: Final = Entry.__new__


class Fifo:
    """The entries of one queue."""

    __slots__ = ("_cursor", "_end", "_head")

    def __init__(self) -> None:
        self._head, self._end = end_entry(0), end_entry(1)
        self._head.state = GONE
        self._head.next, self._end.previous = self._end, self._head
        self._cursor = self._end

    def __del__(self) -> None:
        # Of a queue that was deleted with messages: they are linked both ways, and would stay until they are collected,
        # which the server has done seldom.
        for entry in self:
            del entry.next, entry.previous
        del self._head.next, self._end.previous

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in order; the one that was yielded last may be removed meanwhile.

        No copy is made: a queue can be emptied when there is no memory left.
        """
        entry = self._head.next
        while entry.state != END:
            following = entry.next
            yield entry
            entry = following

    @property
    def first(self) -> Entry:
        """The first entry; the one at the end if there is no message."""
        return self._head.next

    @property
    def next_position(self) -> int:
        """The position that the next message gets."""
        return self._end.position

    def append(self, message: Message, rid: int) -> Entry:
        """An available entry for a message that has come.

        Raises:
            MemoryError: nothing was done: all that takes memory comes first.
        """
        entry = self._end
        end = _new_entry(Entry)
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
        """The next available entry, which the cursor passes; None if there is none before the position `limit`."""
        entry = self._cursor
        while entry.position < limit:
            state = entry.state
            if state == AVAILABLE:
                self._cursor = entry.next
                return entry
            if state == END:
                break
            entry = entry.next
        self._cursor = entry
        return None

    def put_back(self, entry: Entry) -> None:
        """An entry is available again: the cursor goes back to it, if it has passed it."""
        if entry.position < self._cursor.position:
            self._cursor = entry

    def remove(self, entry: Entry) -> Entry:
        """Remove an entry. Returns the one that followed it."""
        previous, following = entry.previous, entry.next
        previous.next, following.previous = following, previous
        entry.state = GONE
        if entry is self._cursor:
            self._cursor = following
        del entry.next, entry.previous  # or one that is still looked at would keep all that came after it
        return following
