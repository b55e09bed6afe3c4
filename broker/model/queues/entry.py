"""One message's place on one queue.

Entries are linked in order of arrival. An acquired entry stays linked, so that it can be released at its position; a
removed one is unlinked, and only browsers whose cursor was on it move to its successor. The end of each queue is an
entry without a message; it becomes the entry of the next message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

AVAILABLE: Final = 0  # waits to be delivered
ACQUIRED: Final = 1  # held by a consumer or a transaction
GONE: Final = 2  # removed from the queue
UNCOMMITTED: Final = 3  # its transaction is being committed: it has its position, but cannot be delivered
LEAVING: Final = 4  # its dequeue is being committed: the consumer can no longer settle it
MOVING: Final = 5  # being moved to another queue: the consumer that acquired it can still accept it
HELD: Final = 6  # a placeholder for consecutive messages that one consumer holds (`model.run`)
END: Final = 7  # the entry at the end, without a message; cursors stop at this state and those above it
FOLDED: Final = 8  # its message is in a stretch now: only a consumer that browsed it may still reference the entry
OUT: Final = 9  # a placeholder for many messages that are out of memory (`residency`)
RUN: Final = 10  # a placeholder for consecutive available messages, in the form in which they came (`model.run`)


class Entry:
    """A message's place on a queue.

    Attributes:
        message: the message.
        position: its number on the queue, counted from 1.
        rid: its record id in the queue's journal; 0 if it is not stored.
        state: AVAILABLE, ACQUIRED, GONE, UNCOMMITTED, LEAVING, MOVING, HELD, END, FOLDED, OUT or RUN.
        is_redelivered: whether it was delivered before, and its next delivery says so.
        next, previous: its neighbours.
    """

    __slots__ = ("is_redelivered", "message", "next", "position", "previous", "rid", "state")
    __deletable__ = ("next", "previous")  # mypyc must know what `del` removes

    message: Message
    position: int
    rid: int
    state: int
    is_redelivered: bool
    next: Entry
    previous: Entry


def end_entry(position: int) -> Entry:
    """The end entry of a queue whose next message gets `position`."""
    entry = Entry()
    entry.position = position
    entry.rid = 0
    entry.state = END
    entry.is_redelivered = False
    return entry
