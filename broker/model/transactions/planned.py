"""What a transaction is about to do: checked as a whole, then written to the store, then begun on the queues.

A transaction that is refused has changed nothing. Where one accepts very many messages, they are marked as leaving in
turns before that (`Leaving`), so that what has to happen in one step does not look at each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from qstore.broker.model.errors import InternalError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.message import Message, StoredForm
from qstore.broker.model.queues.entry import ACQUIRED, GONE, LEAVING, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.work import Work

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Done, Store
    from qstore.broker.model.tick import Tick

Enqueues: TypeAlias = list[tuple[Any, list[StoredForm]]]
Dequeues: TypeAlias = list[tuple[Any, int]]

Rids: TypeAlias = dict[Queue, list[int]]
"""For each queue the record ids of the messages that it gets, 0 for each that is not stored."""


class Leaving:
    """The accepted messages of a transaction that are marked before it is planned: nobody else can settle them.

    They are taken out of its work, so that nothing has to be freed at once.

    Args:
        work: the work of the transaction.
        router: of the broker.

    Attributes:
        accepted: those that are on a queue.
        dequeues: of these, those that are stored.
    """

    __slots__ = ("_queues", "_router", "_work", "accepted", "dequeues")

    def __init__(self, work: Work, router: Router) -> None:
        self._work, self._router = work, router
        self._queues: dict[Queue, bool] = {}  # -> whether stored messages of it are accepted
        self.accepted: list[tuple[Queue, Entry]] = []
        self.dequeues: Dequeues = []

    def mark(self) -> Iterator[None]:
        """Mark them, in turns.

        Raises:
            ResourceDeletedError: a queue with accepted messages is being deleted. Some may be marked.
        """
        accepted, router = self._work.accepted, self._router
        while entries := list(islice(accepted, AT_ONCE)):
            for entry in entries:
                queue = accepted[entry]
                _check_deletion(entry, queue, router)
                del accepted[entry]
                if queue.is_deleted or entry.state not in (ACQUIRED, MOVING):
                    continue
                entry.state = LEAVING
                self.accepted.append((queue, entry))
                if entry.rid:
                    self.dequeues.append((queue.journal, entry.rid))
                    self._queues[queue] = True
                else:
                    self._queues.setdefault(queue, False)
            yield

    def undo(self) -> Iterator[None]:
        """The transaction cannot be committed: they are acquired, as before, and part of its work again."""
        while self.accepted:
            for queue, entry in self.accepted[-AT_ONCE:]:
                if not queue.is_gone:
                    entry.state = ACQUIRED
                    self._work.accepted[entry] = queue
            del self.accepted[-AT_ONCE:]
            yield

    def check(self) -> None:
        """Look again at the queues: the transaction is planned now. Raises as `mark`."""
        deleted = [queue for queue in self._queues if queue.is_deleted]
        for queue in deleted:
            if queue.deletion is not None and self._queues[queue]:
                raise _is_deleted(queue)
        if deleted:
            self.accepted = [each for each in self.accepted if not each[0].is_deleted]
            self.dequeues = [(queue.journal, entry.rid) for queue, entry in self.accepted if entry.rid]


class Planned:
    """What one transaction is about to do.

    Args:
        work: its work.
        router: of the broker.
        leaving: its accepted messages, if they are marked already.

    Attributes:
        published: for each queue the messages that it gets, in order.
        accepted: the messages to remove from queues.

    Raises:
        ResourceLimitExceededError: a queue has no room.
        ResourceDeletedError: a queue with accepted messages is being deleted.
        InvalidArgumentError: an exchange numbers messages, and cannot decode the headers of one.
    """

    __slots__ = ("_leaving", "_work", "accepted", "published")

    def __init__(self, work: Work, router: Router, leaving: Leaving | None = None) -> None:
        for place, sent in work.sent.items():
            work.messages[place] = sent.number(work.messages[place])
        self._work = work
        self.published = _by_queue(work.messages, work.routes)
        self._leaving = leaving
        if leaving is not None:
            leaving.check()
            self.accepted = leaving.accepted
        else:
            self.accepted = [
                (queue, entry)
                for entry, queue in work.accepted.items()
                if not queue.is_deleted and entry.state in (ACQUIRED, MOVING)
            ]
        for queue, messages in self.published.items():
            if queue.limit is not None:
                queue.check_room_for(len(messages), sum([message.size for message in messages]))
        if leaving is None:
            for entry, queue in work.accepted.items():
                _check_deletion(entry, queue, router)

    def write(self, store: Store, tick: Tick, told: Done, xid: bytes | None = None, user: str = "") -> Rids | None:
        """Write the records of durable queues: commit them, or prepare the branch `xid`, even if it has no records.

        Args:
            store: the store.
            tick: records which journals were written to, and that a transaction waits for the disk.
            told: called when that is on the disk or has failed, once, and not before this returns.
            xid: None for a local transaction.
            user: whose branch it is.

        Returns:
            The record ids; None if nothing was written.

        Raises:
            ResourceLimitExceededError: there is no room.
            InternalError: a journal cannot be written.
        """
        enqueues: Enqueues = []
        for queue, messages in self.published.items():
            if queue.journal is not None:
                forms = [message.stored_form() for message in messages if queue.stores(message)]
                if forms:
                    enqueues.append((queue.journal, forms))
        if self._leaving is not None:
            dequeues = self._leaving.dequeues
        else:
            dequeues = [(queue.journal, entry.rid) for queue, entry in self.accepted if entry.rid]
        if xid is None and not enqueues and not dequeues:
            return None
        try:
            if xid is None:
                written = store.transactions.commit(enqueues, dequeues, told)
            else:
                written = store.transactions.prepare(xid, enqueues, dequeues, told, user)
        except store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        except store.errors as error:
            raise InternalError(str(error)) from error
        tick.transactions_under_way += 1
        journals = tick.journals
        for journal, _ in enqueues:
            journals.setdefault(journal, False)
        for journal, _ in dequeues:
            journals.setdefault(journal, False)
        tick.is_urgent = True
        tick.schedule()
        return self._rids_by_queue(enqueues, written)

    def _rids_by_queue(self, enqueues: Enqueues, written: list[int]) -> Rids:
        if len(self.published) == 1:
            for queue, messages in self.published.items():
                if len(written) == len(messages):
                    return {queue: written}
        rids: Rids = {}
        at = number = 0
        for queue, messages in self.published.items():
            count = 0
            if number < len(enqueues) and enqueues[number][0] is queue.journal:
                count = len(enqueues[number][1])
                number += 1
            if count == len(messages):
                rids[queue] = written[at : at + count]
            elif count:
                stored = iter(written[at : at + count])
                rids[queue] = [next(stored) if queue.stores(message) else 0 for message in messages]
            at += count
        return rids

    def begin(self, effects: Effects, rids: Rids | None) -> None:
        """Begin it on the queues; `rids` are the record ids of the published messages."""
        published = effects.published
        for queue, messages in self.published.items():
            entries = published[queue] = []
            of_queue = None if rids is None else rids.get(queue)
            for number, message in enumerate(messages):
                entries.append(queue.add_uncommitted(message, of_queue[number] if of_queue else 0))
            queue.watch.update(queue)
        if self._leaving is None:
            for _, entry in self.accepted:
                entry.state = LEAVING
        effects.accepted = self.accepted
        for place, sent in self._work.sent.items():
            sent.keep(self._work.messages[place])


def _by_queue(messages: list[Message], routes: list[Sequence[Queue]]) -> dict[Queue, list[Message]]:
    """The messages for each queue that is not deleted, as they are put on it."""
    first = routes[0] if routes else ()
    is_sole = len(first) == 1 and routes.count(first) == len(routes)  # most often they all go to one queue
    published = {first[0]: messages} if is_sole else _grouped(messages, routes)
    for queue in list(published):
        if queue.is_deleted:
            del published[queue]
        elif queue.message_ttl is not None:
            published[queue] = [queue.limited(message) for message in published[queue]]
    return published


def _grouped(messages: list[Message], routes: list[Sequence[Queue]]) -> dict[Queue, list[Message]]:
    """The messages for each queue."""
    published: dict[Queue, list[Message]] = {}
    last: Queue | None = None
    of_last: list[Message] = []
    for message, queues in zip(messages, routes, strict=True):
        for queue in queues:
            if queue is not last:
                last = queue
                known = published.get(queue)
                if known is None:
                    known = published[queue] = []
                of_last = known
            of_last.append(message)
    return published


def _check_deletion(entry: Entry, queue: Queue, router: Router) -> None:
    """Refuse to accept a stored message that leaves with its deleted queue: a crash could bring back only these.

    Raises:
        ResourceDeletedError: the store is deleting the queue of the message, or it was just moved from there.
    """
    is_leaving = queue.deletion is not None and entry.rid and entry.state == ACQUIRED
    if is_leaving or (entry.state == GONE and router.is_moving(entry)):
        raise _is_deleted(queue)


def _is_deleted(queue: Queue) -> ResourceDeletedError:
    return ResourceDeletedError(f"Queue {queue.name} is being deleted, with messages of the transaction")
