"""One message's place on one queue.

Entries are linked in the order in which the messages came. One that is taken stays where it is, so that it can come
back to its place; one that is gone is unlinked, and only those who stand at it still see what followed it. At the end
of each queue stands an entry without a message; it becomes the next message's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.model.message import Message

AVAILABLE: Final = 0  # it waits to be delivered
ACQUIRED: Final = 1  # a consumer, or a transaction, has it
GONE: Final = 2  # it is not on the queue any more
END: Final = 3  # the entry at the end, which has no message
UNCOMMITTED: Final = 4  # its transaction is being committed: it is not on the queue yet, but has its place
LEAVING: Final = 5  # it is being moved, or its removal committed: whoever had it can do nothing with it any more


class Entry:
    """A message's place.

    Attributes:
        message: the message.
        position: its number on the queue, counted from 1.
        rid: its record id in the queue's journal; 0 where it is not kept there.
        state: AVAILABLE, ACQUIRED, GONE, END, UNCOMMITTED or LEAVING.
        is_redelivered: whether it was delivered before, and has to say so.
        next, previous: its neighbours.
    """

    __slots__ = ("is_redelivered", "message", "next", "position", "previous", "rid", "state")

    message: Message
    position: int
    rid: int
    state: int
    is_redelivered: bool
    next: Entry
    previous: Entry


def end_entry(position: int) -> Entry:
    """The entry at the end of a queue whose next message gets `position`."""
    entry = Entry()
    entry.position = position
    entry.rid = 0
    entry.state = END
    entry.is_redelivered = False
    return entry
