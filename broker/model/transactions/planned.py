"""The plan of a transaction: checked as a whole, written to the store, and begun on the queues.

A transaction that is refused has changed nothing. Most are planned, written and begun in one turn of the event loop
(`Planned`). Large ones take several turns (`LargePlan`):

    mark      the accepted messages are marked as leaving: they can no longer be settled
    check     the limit of each queue is checked for all messages that it gets
    publish   a portion of the messages is written to the store, and takes its places on the queues in the same turn;
              a message for very many queues is divided: each portion puts it on some of them
    accept    a portion of the dequeues is written to the store
    end       when all portions are written, the store writes the commit point

Nothing of it is visible before the commit point is on the disk, and after an earlier crash nothing is left. The
messages keep their order on each queue, but messages that others publish meanwhile may be between two portions. Limits
are checked again before each portion. If one cannot be written, everything is undone, in turns too (`undo`): the store
aborts the transaction, messages leave their places, and the accepted messages are acquired, as before.

A queue that is deleted meanwhile gets nothing more, and the messages that it already got are deleted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.model.errors import InternalError, ModelError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.message import Message, StoredForm
from qstore.broker.model.queues.entry import ACQUIRED, GONE, LEAVING, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.router import MAX_CHECKED
from qstore.broker.model.settlement import AT_ONCE
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.work import QUEUES_AT_ONCE, Work

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import SentMessages
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Done, Store
    from qstore.broker.model.tick import Portion, Tick

Enqueues: TypeAlias = list[tuple[Any, list[StoredForm]]]
Dequeues: TypeAlias = list[tuple[Any, int]]

WRITTEN_AT_ONCE: Final = 500
"""Messages of a large transaction that are written in one turn, counted once for each of their queues: some 3 ms in
pure Python."""

BYTES_AT_ONCE: Final = 256 * 1024
"""Bytes of messages after which a turn ends: checksums and writes to files take some 0.3 ms for them."""

Rids: TypeAlias = dict[Queue, list[int]]
"""Queue -> the record ids of the messages that it gets; 0 for each that is not stored."""


class Planned:
    """The plan of one transaction.

    Args:
        work: its work.
        router: of the broker.

    Attributes:
        published: queue -> the messages that it gets, in order.
        accepted: the messages to remove from queues.

    Raises:
        ResourceLimitExceededError: a queue has no room.
        ResourceDeletedError: a queue with accepted messages is being deleted.
        InvalidArgumentError: an exchange numbers messages, and cannot decode the headers of one.
    """

    __slots__ = ("_work", "accepted", "published")

    def __init__(self, work: Work, router: Router) -> None:
        for place, sent in work.sent.items():
            work.messages[place] = sent.number(work.messages[place])
        self._work = work
        self.published = _by_queue(work.messages, work.routes)
        self.accepted = [
            (queue, entry)
            for entry, queue in work.accepted.items()
            if not queue.is_deleted and entry.state in (ACQUIRED, MOVING)
        ]
        for queue, messages in self.published.items():
            if queue.limit is not None:
                queue.check_room_for(len(messages), sum([message.size for message in messages]))
        for entry, queue in work.accepted.items():
            _check_deletion(entry, queue, router)

    def write(self, store: Store, tick: Tick, done: Done, xid: bytes | None = None, user: str = "") -> Rids | None:
        """Write the records of durable queues: commit them, or prepare the branch `xid`, even if it has no records.

        Args:
            store: the store.
            tick: records which journals were written to, and that a transaction waits for the disk.
            done: called once, when that is on the disk or has failed, and not before this returns.
            xid: None for a local transaction.
            user: the branch's user.

        Returns:
            The record ids; None if nothing was written.

        Raises:
            ResourceLimitExceededError: there is no room.
            InternalError: a journal cannot be written.
        """
        enqueues = _stored(self.published)
        dequeues = [(queue.journal, entry.rid) for queue, entry in self.accepted if entry.rid]
        if xid is None and not enqueues and not dequeues:
            return None
        try:
            if xid is None:
                written = store.transactions.commit(enqueues, dequeues, done)
            else:
                written = store.transactions.prepare(xid, enqueues, dequeues, done, user)
        except store.errors as error:
            raise _refusal(store, error) from error
        tick.transactions_under_way += 1
        journals = tick.journals
        for journal, _ in enqueues:
            journals.setdefault(journal, False)
        for journal, _ in dequeues:
            journals.setdefault(journal, False)
        tick.schedule()
        return _rids_by_queue(self.published, enqueues, written)

    def begin(self, effects: Effects, rids: Rids | None) -> None:
        """Begin it on the queues; `rids` are the record ids of the published messages."""
        _place(self.published, effects, rids or {})
        for _, entry in self.accepted:
            entry.state = LEAVING
        effects.accepted = self.accepted
        for place, sent in self._work.sent.items():
            sent.keep(self._work.messages[place])


class LargePlan:
    """The plan of a large transaction, executed in turns.

    Args:
        work: its work.
        router, store, tick: of the broker.
        effects: collects its effects on the queues.
        placed_on: called with each queue before the first message is put on it.
        xid: the xid of a branch to be prepared; empty for a local transaction.
        user: whose branch it is.
    """

    def __init__(
        self,
        work: Work,
        router: Router,
        store: Store | None,
        tick: Tick,
        effects: Effects,
        placed_on: Callable[[Queue], None] = lambda _: None,
        xid: bytes = b"",
        user: str = "",
    ) -> None:
        self._work, self._router, self._store, self._tick = work, router, store, tick
        self._effects, self._placed_on = effects, placed_on
        self._xid, self._user = xid, user
        self._large: Any = None  # the store's transaction; None before it is begun
        self._accepting: dict[Queue, bool] = {}  # queues with accepted messages -> whether any of these is stored
        self._limited: dict[Queue, list[int]] = {}  # limited queue -> number and bytes of messages to come
        self._last: dict[SentMessages, Message] = {}
        self._numbered = 0  # messages that exchanges have numbered, if they do

    def write(self) -> Iterator[Portion]:
        """Write the transaction and begin it, except for its end.

        Raises:
            ResourceLimitExceededError, InternalError, ResourceDeletedError, InvalidArgumentError: as `Planned`; `undo`
                must follow.
        """
        self._tick.transactions_under_way += 1
        yield from self._mark()
        yield from self._check()
        if self._xid and self._store is not None:
            self._begin_stored()
        for begin, routes in self._portions():
            self._publish(begin, routes)
            yield self._wait()
        for accepted in self._accepted_portions():
            self._check_deletions()
            dequeues = [(queue.journal, entry.rid) for queue, entry in accepted if entry.rid and not queue.is_deleted]
            if dequeues:
                self._append([], dequeues)
            yield self._wait()
        self._check_deletions()

    def end(self, done: Done) -> None:
        """Have the store write the commit point; `done` is called as by `Planned.write`, or before this returns.

        Raises:
            InternalError: a journal cannot be written; `undo` must follow.
        """
        store, tick = self._store, self._tick
        if self._large is not None:
            assert store is not None
            try:
                store.transactions.end_large(self._large, self._ended(done))
            except store.errors as error:
                raise _refusal(store, error) from error
            tick.schedule()
        for sent, message in self._last.items():
            sent.keep(message)
        if self._large is None:
            self._ended(done)(None)

    def _ended(self, done: Done) -> Done:
        def ended(error: Exception | None) -> None:
            self._tick.transactions_under_way -= 1
            done(error)

        return ended

    def undo(self) -> Iterator[Portion]:
        """Undo a transaction that cannot be written. Its accepted messages are part of its work again."""
        if self._large is not None:
            assert self._store is not None
            yield partial(self._store.transactions.abort_large, self._large)
        yield from self._effects.return_to(self._work)
        self._tick.transactions_under_way -= 1

    # ---- steps ----

    def _mark(self) -> Iterator[None]:
        accepted, router = self._work.accepted, self._router
        while entries := list(islice(accepted, AT_ONCE)):
            for entry in entries:
                queue = accepted[entry]
                _check_deletion(entry, queue, router)
                del accepted[entry]
                if queue.is_deleted or entry.state not in (ACQUIRED, MOVING):
                    continue
                entry.state = LEAVING
                self._effects.accepted.append((queue, entry))
                self._accepting[queue] = self._accepting.get(queue, False) or entry.rid != 0
            yield

    def _check(self) -> Iterator[None]:
        limited = self._limited
        for begin, routes in self._portions():
            for queue, messages in _grouped(self._work.messages[begin : begin + len(routes)], routes).items():
                if queue.limit is not None and not queue.is_deleted:
                    left = limited.setdefault(queue, [0, 0])
                    left[0] += len(messages)
                    left[1] += sum([message.size for message in messages])
            yield
        for number, (queue, (count, size)) in enumerate(limited.items()):
            queue.check_room_for(count, size)
            if not (number + 1) % MAX_CHECKED:
                yield

    def _publish(self, begin: int, routes: list[Sequence[Queue]]) -> None:
        """Write a portion of the messages, and put them on these queues."""
        work, end = self._work, begin + len(routes)
        if work.sent:
            for place in range(max(begin, self._numbered), end):
                sent = work.sent.get(place)
                if sent is not None:
                    work.messages[place] = self._last[sent] = sent.number(work.messages[place])
            self._numbered = end
        published = _by_queue(work.messages[begin:end], routes)
        for queue, messages in published.items():
            if queue in self._limited:
                left = self._limited[queue]
                queue.check_room_for(*left)
                left[0] -= len(messages)
                left[1] -= sum([message.size for message in messages])
        enqueues = _stored(published)
        rids = _rids_by_queue(published, enqueues, self._append(enqueues, [])) if enqueues else {}
        for queue in published:
            if queue not in self._effects.published:
                self._placed_on(queue)
        _place(published, self._effects, rids)

    def _portions(self) -> Iterator[tuple[int, list[Sequence[Queue]]]]:
        """The portions: index of the first message, and for each message the queues that it is put on.

        A message for more than `QUEUES_AT_ONCE` queues has portions of its own, each for some of its queues.
        """
        messages, routes = self._work.messages, self._work.routes
        begin = places = size = 0
        queues: set[Queue] = set()
        last: Sequence[Queue] = ()
        for number in range(len(messages)):
            route = routes[number]
            is_new = route is not last
            if begin < number and is_new and len(queues.union(route)) > QUEUES_AT_ONCE:
                yield begin, routes[begin:number]
                begin, places, size = number, 0, 0
                queues.clear()
            if len(route) > QUEUES_AT_ONCE:
                for first in range(0, len(route), QUEUES_AT_ONCE):
                    yield number, [route[first : first + QUEUES_AT_ONCE]]
                begin, places, size, last = number + 1, 0, 0, ()
                queues.clear()
                continue
            places += len(route) or 1
            size += messages[number].size
            if is_new:
                queues.update(route)
                last = route
            if places >= WRITTEN_AT_ONCE or size >= BYTES_AT_ONCE:
                yield begin, routes[begin : number + 1]
                begin, places, size, last = number + 1, 0, 0, ()
                queues.clear()
        if begin < len(messages):
            yield begin, routes[begin:]

    def _accepted_portions(self) -> Iterator[list[tuple[Queue, Entry]]]:
        """The accepted messages that are dequeued in one turn each."""
        portion: list[tuple[Queue, Entry]] = []
        queues: set[Queue] = set()
        for each in self._effects.accepted:
            portion.append(each)
            queues.add(each[0])
            if len(portion) >= WRITTEN_AT_ONCE or len(queues) >= QUEUES_AT_ONCE:
                yield portion
                portion = []
                queues.clear()
        if portion:
            yield portion

    def _begin_stored(self) -> None:
        assert self._store is not None
        try:
            self._large = self._store.transactions.begin_large(self._xid, self._user)
        except self._store.errors as error:
            raise _refusal(self._store, error) from error

    def _append(self, enqueues: Enqueues, dequeues: Dequeues) -> list[int]:
        """Have the store append a portion."""
        store = self._store
        assert store is not None
        if self._large is None:
            self._begin_stored()
        try:
            return store.transactions.append_portion(self._large, enqueues, dequeues)
        except store.errors as error:
            raise _refusal(store, error) from error

    def _wait(self) -> Portion:
        """The condition to wait for before the next portion."""
        if self._large is None:
            return None
        assert self._store is not None
        return partial(self._store.transactions.when_written, self._large)

    def _check_deletions(self) -> None:
        """Raise ResourceDeletedError if a queue with stored messages that are accepted is being deleted."""
        for queue, is_stored in self._accepting.items():
            if is_stored and queue.is_deleted and queue.deletion is not None:
                raise _is_deleted(queue)


def _by_queue(messages: list[Message], routes: list[Sequence[Queue]]) -> dict[Queue, list[Message]]:
    """The messages for each queue that is not deleted, as they are put on it."""
    first = routes[0] if routes else ()
    is_sole = len(first) == 1 and routes.count(first) == len(routes)  # usually all messages go to one queue
    published = {first[0]: messages} if is_sole else _grouped(messages, routes)
    for queue in list(published):
        if queue.is_deleted:
            del published[queue]
        elif queue.changes_messages:
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


def _stored(published: dict[Queue, list[Message]]) -> Enqueues:
    """The messages for each queue that are stored."""
    enqueues: Enqueues = []
    for queue, messages in published.items():
        if queue.journal is not None:
            forms = [message.stored_form() for message in messages if queue.stores(message)]
            if forms:
                enqueues.append((queue.journal, forms))
    return enqueues


def _rids_by_queue(published: dict[Queue, list[Message]], enqueues: Enqueues, written: list[int]) -> Rids:
    if len(published) == 1:
        for queue, messages in published.items():
            if len(written) == len(messages):
                return {queue: written}
    rids: Rids = {}
    at = number = 0
    for queue, messages in published.items():
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


def _place(published: dict[Queue, list[Message]], effects: Effects, rids: Rids) -> None:
    """Put messages on their queues, where they are not visible yet."""
    for queue, messages in published.items():
        entries = effects.published.setdefault(queue, [])
        of_queue = rids.get(queue)
        for number, message in enumerate(messages):
            entries.append(queue.add_uncommitted(message, of_queue[number] if of_queue else 0))
        queue.watch.update(queue)


def _refusal(store: Store, error: Exception) -> ModelError:
    """The error for the client."""
    is_full = isinstance(error, store.full_error)
    return ResourceLimitExceededError(str(error)) if is_full else InternalError(str(error))


def _check_deletion(entry: Entry, queue: Queue, router: Router) -> None:
    """Refuse to accept a stored message that leaves with its deleted queue: a crash could bring it back separately.

    Raises:
        ResourceDeletedError: the store is deleting the queue of the message, or it was just moved from there.
    """
    is_leaving = queue.deletion is not None and entry.rid and entry.state == ACQUIRED
    if is_leaving or (entry.state == GONE and router.is_moving(entry)):
        raise _is_deleted(queue)


def _is_deleted(queue: Queue) -> ResourceDeletedError:
    return ResourceDeletedError(f"Queue {queue.name} is being deleted, with messages of the transaction")
