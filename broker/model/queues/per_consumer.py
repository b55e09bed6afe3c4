"""Orders that decide for each consumer which message is next: the base of those that are not first in, first out.

Ready consumers are asked in turn, those of a higher rank first (`ranking`). Each is offered the message that the order
finds for it, and if it declines that one for good, the next. A consumer for which there is nothing keeps its place
among the ready ones (`Consumers.rings`); those that are given messages go to the end, in order of the last of these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST, Consumer
from qstore.broker.model.queues.consumers import MAX_DECLINED, Consumers
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry
from qstore.broker.model.queues.fifo import Fifo

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

MAX_PASSED: Final = 100
"""Entries that are passed in search for one that is available."""

MAX_SPARE_KINDS: Final = 16
"""Kinds of consumers that an order remembers beyond those that the queue has: each costs time for every message."""


class PerConsumerOrder(Fifo, ABC):
    """The entries of one queue, of a subclass of `Entry`.

    Args:
        end: the end entry.
    """

    __slots__ = ("_has_expiring",)

    def __init__(self, end: Entry) -> None:
        super().__init__()
        self._has_expiring = False
        self._end = self._cursor = end
        self._head.next, end.previous = end, self._head

    def link(self, message: Message, rid: int, end: Entry) -> Entry:
        """Append an available entry for a message: the end entry, which is followed by a new one, `end`."""
        entry = self._end
        end.previous = entry
        entry.next = end
        entry.message = message
        entry.rid = rid
        entry.state = AVAILABLE
        self._end = end
        if message.expires_at:
            self._has_expiring = True
        return entry

    @abstractmethod
    def heads(self) -> Sequence[Entry]:
        """As of `Fifo`: available ones, if not very many before them are not available.

        There are none as long as no message has come that expires: they are looked for after each `distribute`.
        """

    @abstractmethod
    def next_for(self, consumer: Consumer, limit: int, consumers: Consumers) -> Entry | None:
        """The available entry to offer to a consumer; None if it can have none before the position `limit`.

        Args:
            consumer: one of those that are ready.
            limit: as above.
            consumers: all consumers of the queue.
        """

    def offered(self, entry: Entry, consumer: Consumer) -> None:
        """The entry of `next_for` is about to be delivered, and may be released or removed meanwhile."""

    def took(self, entry: Entry) -> None:
        """The consumer has taken the entry of `next_for`."""

    def refused(self, entry: Entry) -> None:
        """The consumer has not taken the entry of `next_for`, which is available as before."""

    @abstractmethod
    def declined(self, entry: Entry, consumer: Consumer) -> None:
        """The consumer can never take the available entry of `next_for`."""

    def has_more(self) -> bool:
        """Whether there may be something, meanwhile, for consumers for which there was nothing. Each time is new."""
        return False

    def distribute(
        self,
        consumers: Consumers,
        limit: int,
        clock: Callable[[], float],
        drop_expired: Callable[[Entry], object],
        awaits: Callable[[Entry], bool] | None,
    ) -> None:
        """Deliver while there are messages for ready consumers, and not very many are declined (`MAX_DECLINED`).

        Args:
            consumers: the queue's consumers. Their `taken` is set, and their `declined` increased.
            limit: nothing is delivered from this position on.
            clock: seconds since 1970.
            drop_expired: removes an entry that has expired.
            awaits: whether the message of an entry is being read back; None if all are in memory.
        """
        consumers.taken = 0
        takers: dict[Consumer, None] = {}
        rings = [list(ring) for ring in consumers.rings()]
        turn = deque(rings.pop(0))
        try:
            while consumers.declined < MAX_DECLINED:
                if not turn:
                    if self.has_more():
                        rings = [list(ring) for ring in consumers.rings()]
                    if not rings:
                        break
                    turn.extend(rings.pop(0))
                    continue
                consumer = turn.popleft()
                entry = self.next_for(consumer, limit, consumers) if consumer.is_waiting else None
                if entry is None:
                    continue
                if 0 < entry.message.expires_at <= clock():
                    drop_expired(entry)
                    turn.appendleft(consumer)
                    continue
                if awaits is not None and awaits(entry):
                    break
                result = self._offer(entry, consumer, consumers)
                if result == NOT_FOR_ME:
                    turn.appendleft(consumer)
                elif result != REFUSED:
                    takers.pop(consumer, None)
                    takers[consumer] = None
                    if result == TAKEN:
                        turn.append(consumer)
        finally:
            if takers:
                consumers.turn(takers)

    def _offer(self, entry: Entry, consumer: Consumer, consumers: Consumers) -> int:
        """Offer a message to a consumer. Returns as `Consumer.deliver` does."""
        entry.state = ACQUIRED
        consumers.taken += 1  # already: an error may be raised after it was delivered
        self.offered(entry, consumer)
        result = consumer.deliver(entry)
        if result in (TAKEN, TAKEN_LAST):
            self.took(entry)
        else:
            entry.state = AVAILABLE
            consumers.taken -= 1
            if result == NOT_FOR_ME:
                consumers.declined += 1
                self.declined(entry, consumer)
            self.refused(entry)
        if result in (REFUSED, TAKEN_LAST) and consumer.is_waiting:
            consumers.unready(consumer)
        return result
