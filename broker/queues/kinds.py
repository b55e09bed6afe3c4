"""Queues that do what few queues do: each kind is a class, so that the others need not ask.

    counted     holds so many messages at most
    no-local    drops what comes over the connection of whoever owns it: the session to which it is exclusive, or else
                its exclusive consumer

What is dropped was routed all the same: it goes to no alternate exchange. A message is known as its publisher's for as
long as it lives in this broker, also when it comes by way of another queue that was deleted; after a restart nobody
knows. In a transaction it has a place on the queue until the commit.

Source: inventory 003_001, section 3 (no-local).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ResourceLimitExceededError
from broker.memory import MESSAGE_OVERHEAD
from broker.queues.arguments import REJECT, QueueArguments
from broker.queues.entry import GONE, UNCOMMITTED, Entry
from broker.queues.queue import Queue

if TYPE_CHECKING:
    from broker.message import Message


class CountedQueue(Queue):
    """A queue that holds so many messages at most.

    Args:
        most_messages: how many; those that consumers hold count.
    """

    __slots__ = ("most_messages",)

    def __init__(self, *arguments: Any, most_messages: int, most_bytes: int = 0, **named: Any) -> None:
        super().__init__(*arguments, most_bytes=most_bytes or sys.maxsize, **named)  # without one nobody checks
        self.most_messages = most_messages

    def check_room(self, message: Message) -> None:
        """As `Queue.check_room`."""
        self.check_room_for(1, message.size)

    def check_room_for(self, count: int, size: int) -> None:
        """As `Queue.check_room_for`."""
        if self.message_count + count > self.most_messages:
            used = f"{self.message_count} of {self.most_messages} messages are on it"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{self.name}": {used}')
        super().check_room_for(count, size)


class NoLocalQueue(Queue):
    """A queue that drops what its owner's connection publishes."""

    __slots__ = ()

    def is_local(self, message: Message) -> bool:
        """Whether it came over the connection of whoever owns the queue now."""
        publisher = message.handling.publisher
        owner = self.owner if self.owner is not None else self.exclusive_consumer
        return publisher is not None and owner is not None and getattr(owner, "publisher", None) is publisher

    def keeps(self, message: Message) -> bool:
        """As `Queue.keeps`."""
        return super().keeps(message) and not self.is_local(message)

    def check_room(self, message: Message) -> None:
        """As `Queue.check_room`: there is always room for what is dropped."""
        if not self.is_local(message):
            super().check_room(message)

    def publish(self, message: Message) -> bool:
        """As `Queue.publish`."""
        return not self.is_local(message) and super().publish(message)

    def add(self, message: Message, rid: int) -> Entry:
        """As `Queue.add`. What is dropped has a place on no queue."""
        if not self.is_local(message):
            return super().add(message, rid)
        entry = Entry()
        entry.message, entry.rid, entry.state = message, rid, GONE
        return entry

    def add_uncommitted(self, message: Message, rid: int) -> Entry:
        """As `Queue.add_uncommitted`: what is to be dropped keeps its place until then."""
        entry = Queue.add(self, message, rid)
        entry.state = UNCOMMITTED
        return entry

    def commit(self, entry: Entry) -> None:
        """As `Queue.commit`."""
        if entry.rid == 0 and self.is_local(entry.message):
            self.remove(entry)
        else:
            super().commit(entry)


class CountedNoLocalQueue(NoLocalQueue, CountedQueue):
    """A queue that drops what its owner's connection publishes, and holds so many messages at most."""

    __slots__ = ()


#: Whether it is counted, and no-local -> its class.
_CLASSES: Final[dict[tuple[bool, bool], type[Queue]]] = {
    (False, False): Queue,
    (True, False): CountedQueue,
    (False, True): NoLocalQueue,
    (True, True): CountedNoLocalQueue,
}


def make_queue(name: str, turn: Any, asked: QueueArguments, most_bytes: int, **named: Any) -> Queue:
    """A queue as its declaration wants it.

    Args:
        name: its name.
        turn: serves it.
        asked: what the arguments of the declaration say.
        most_bytes: bytes that a queue holds at most if it does not say. What it says itself counts headers and content,
            as in qpidd; this counts what messages take in memory.
        named: all else that `Queue` has.
    """
    has_limits = asked.policy == REJECT
    overhead = MESSAGE_OVERHEAD
    if has_limits and asked.most_bytes is not None:
        most_bytes, overhead = asked.most_bytes, 0
    if has_limits and asked.most_messages:
        named["most_messages"] = asked.most_messages
    make = _CLASSES["most_messages" in named, asked.no_local]
    queue = make(name, turn, most_bytes=most_bytes, overhead=overhead, **named)
    queue.auto_delete_seconds = asked.auto_delete_seconds
    return queue
