"""What a transaction is about to do: checked as a whole, then written to the store, then begun on the queues.

A transaction that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from qstore.broker.model.errors import InternalError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.queues.entry import ACQUIRED, GONE, LEAVING, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.work import Work

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick

Enqueues: TypeAlias = list[tuple[Any, Sequence[bytes], int, int]]
Dequeues: TypeAlias = list[tuple[Any, int]]

Write: TypeAlias = Callable[[Enqueues, Dequeues], list[int]]
"""A transaction of the store: returns the record ids of the enqueued messages."""


class Planned:
    """What one transaction is about to do.

    Args:
        work: its work.
        router: of the broker.

    Attributes:
        published: the messages, and the queues that get them.
        accepted: the messages to remove from queues.

    Raises:
        ResourceLimitExceededError: a queue has no room.
        ResourceDeletedError: a queue with accepted messages is being deleted.
        InvalidArgumentError: an exchange numbers messages, and cannot decode the headers of one.
    """

    __slots__ = ("_work", "accepted", "published")

    def __init__(self, work: Work, router: Router) -> None:
        for place, sent in work.sent.items():
            message, queues = work.published[place]
            work.published[place] = sent.number(message), queues
        self._work = work
        self.published = [
            (queue.limited(message), queue)
            for message, queues in work.published
            for queue in queues
            if not queue.is_deleted
        ]
        self.accepted = [
            (queue, entry)
            for entry, queue in work.accepted.items()
            if not queue.is_deleted and entry.state in (ACQUIRED, MOVING)
        ]
        self._check_room()
        _check_deletions(work.accepted, router)

    def _check_room(self) -> None:
        wanted: dict[Queue, list[int]] = {}
        for message, queue in self.published:
            wanted.setdefault(queue, []).append(message.size)
        for queue, sizes in wanted.items():
            queue.check_room_for(len(sizes), sum(sizes))

    def write(self, store: Store, tick: Tick, write: Write, *, is_listed: bool) -> list[int] | None:
        """Write the records of durable queues.

        Args:
            store: the store.
            tick: records which journals were written to.
            write: writes them.
            is_listed: whether the transaction is to be in the store even if it has no records.

        Returns:
            The record id of each published message, 0 if it is not stored; None if nothing was written.

        Raises:
            ResourceLimitExceededError: there is no room.
            InternalError: a journal cannot be written.
        """
        enqueues: Enqueues = []
        is_stored: list[bool] = []
        journals = tick.journals
        for message, queue in self.published:
            stores = queue.stores(message)
            is_stored.append(stores)
            if stores:
                parts, size, crc = message.stored_form()
                enqueues.append((queue.journal, parts, size, crc))
        dequeues = [(queue.journal, entry.rid) for queue, entry in self.accepted if entry.rid]
        if not enqueues and not dequeues and not is_listed:
            return None
        try:
            written = write(enqueues, dequeues)
        except store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        except store.errors as error:
            raise InternalError(str(error)) from error
        for journal, _, _, _ in enqueues:
            journals.setdefault(journal, False)
        for journal, _ in dequeues:
            journals.setdefault(journal, False)
        tick.is_urgent = True
        tick.schedule()
        if len(written) == len(is_stored):
            return written
        rids = iter(written)
        return [next(rids) if stores else 0 for stores in is_stored]

    def begin(self, effects: Effects, rids: list[int] | None) -> None:
        """Begin it on the queues; `rids` are the record ids of the published messages."""
        published = effects.published
        each_queue: dict[Queue, None] = {}
        for number, (message, queue) in enumerate(self.published):
            published.append((queue, queue.add_uncommitted(message, rids[number] if rids else 0)))
            each_queue[queue] = None
        for queue in each_queue:
            queue.watch.update(queue)
        for _, entry in self.accepted:
            entry.state = LEAVING
        effects.accepted = self.accepted
        for place, sent in self._work.sent.items():
            sent.keep(self._work.published[place][0])


def _check_deletions(accepted: dict[Entry, Queue], router: Router) -> None:
    """Refuse to accept stored messages that leave with their deleted queue: a crash could bring back only these.

    Raises:
        ResourceDeletedError: the store is deleting the queue of such a message, or it was just moved from there.
    """
    for entry, queue in accepted.items():
        is_leaving = queue.deletion is not None and entry.rid and entry.state == ACQUIRED
        if is_leaving or (entry.state == GONE and router.is_moving(entry)):
            raise ResourceDeletedError(f"Queue {queue.name} is being deleted, with messages of the transaction")
