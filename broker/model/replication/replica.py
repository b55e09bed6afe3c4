"""The destination of replication: applies events, so that a queue of this broker follows the one at the source.

    enqueued    the message is put on the queue with the name of the source's, unless its copy is there
    dequeued    its copy is removed, unless a consumer of this broker holds it
    inventory   all copies of messages that the source no longer has are removed

An event is applied on behalf of its publisher, who needs the right to publish to the queue by the default exchange, or,
for the others, to purge the queue.

Events come in their order, and some of the last ones come again: after a restart of either broker, or when the link was
lost. One that was received before is recognized by its number, or by the copy; it is completed when the records of the
first one are on the disk. The copy of a message that has been dequeued, too, may come back until its dequeue event
follows; it is marked as redelivered then. One for a queue that does not exist, or for a message without a copy, is
ignored: the message was enqueued before replication began.

Each copy has its identity as a header, with a seal of this broker (`events.CopySeal`). After a restart of this broker,
the first event for a queue finds the copies that there are, in turns; it and those that come meanwhile are applied
afterwards.

Source: Qpid C++ Broker Book, 1.7.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import ModelError, NotImplementedByBrokerError, UnauthorizedError
from qstore.broker.model.queues.due import is_brokers_own
from qstore.broker.model.queues.entry import GONE, Entry
from qstore.broker.model.queues.limits import Displacement
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.replication.events import (
    COPY,
    ENQUEUED,
    HEADERS,
    CopySeal,
    Event,
    Inventory,
    MessageId,
    read_event,
)
from qstore.broker.model.router import Fanout
from qstore.formats.values import STR16, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.exchanges.exchange import Put
    from qstore.broker.model.message import Message

_LOG: Final = log_of("Broker")
_MAX_SOURCES: Final = 100
_MAX_NAMED: Final = 100

MAX_LOOKED_AT: Final = 200
"""Messages that one turn looks at to find copies: some milliseconds if their headers are decoded."""

MAX_APPLIED: Final = 100
"""Events that one turn applies."""


class Mirror(Displacement):
    """Knows the copies on one queue, and applies events to it; displaces none.

    Args:
        queue: the queue.
        seal: makes and reads the header of copies.

    Attributes:
        queue: as above.
    """

    __slots__ = ("_arriving", "_copies", "_ids", "_is_busy", "_last", "_seal", "_waiting", "queue")

    def __init__(self, queue: Queue, seal: CopySeal) -> None:
        self.queue, self._seal = queue, seal
        self._arriving: MessageId | None = None  # is being put on the queue
        self._copies: dict[MessageId, Entry] = {}
        self._ids: dict[Entry, MessageId] = {}
        self._last: dict[str, int] = {}  # source -> the number of its last event
        self._is_busy = False  # work is done in turns: events wait
        self._waiting: deque[tuple[Event, Message, Fanout]] = deque()

    @property
    def refers_to_entries(self) -> bool:
        """True: it references the copies."""
        return True

    def begin(self, put: Put) -> None:
        """Find the copies that are on the queue already, in turns: the queue has just got this mirror."""
        if not self.queue.is_empty:
            self._is_busy = True
            self.queue.do_in_turns(self._work(put, is_new=True))

    def receive(self, event: Event, message: Message, put: Put) -> bool | Fanout:
        """Apply an event, perhaps in later turns.

        Args:
            event: the event.
            message: the message that it is.
            put: puts messages on queues.

        Returns:
            Whether its completion must wait for the records of this tick, or what it must wait for.

        Raises:
            ModelError: as `put`; the same event can be applied later.
        """
        if not self._is_busy and event.inventory is None:
            return self._apply(event, message, put)
        fanout = Fanout()
        self._waiting.append((event, message, fanout))
        if not self._is_busy:
            self._is_busy = True
            self.queue.do_in_turns(self._work(put, is_new=False))
        return fanout

    def _apply(self, event: Event, message: Message, put: Put) -> bool | Fanout:
        """Apply an event that is not an inventory. Returns and raises as `receive`."""
        if self._is_known(event):
            return self.queue.await_records()
        result = self._enqueue(event, message, put) if event.type == ENQUEUED else self._dequeue(event.message)
        self._applied(event)
        return result

    def _is_known(self, event: Event) -> bool:
        return 0 < event.number <= self._last.get(event.source, 0)

    def _applied(self, event: Event) -> None:
        if event.number:
            self._last[event.source] = event.number
            if len(self._last) > _MAX_SOURCES:
                del self._last[next(iter(self._last))]

    def _enqueue(self, event: Event, message: Message, put: Put) -> bool | Fanout:
        if event.message in self._copies:
            return self.queue.await_records()
        header = self._seal.header(self.queue.name, event.message)
        copied = message.with_headers(dict.fromkeys(HEADERS) | {COPY: TypedValue(STR16, header)})
        self._arriving = event.message
        try:
            result = put(copied, (self.queue,))
        finally:
            self._arriving = None
        copy = self._copies.get(event.message)
        if copy is not None and event.is_again:
            copy.is_redelivered = True
        return result

    def _dequeue(self, identity: MessageId) -> bool:
        entry = self._copies.get(identity)
        if entry is None:
            return self.queue.await_records()
        if not self.queue.acquire(entry, is_consumed=False):
            return False
        return self.queue.dequeue(entry)

    # ---- in turns ----

    def _work(self, put: Put, *, is_new: bool) -> Iterator[None]:
        """Find the copies if the mirror is new, and apply the events that wait."""
        if is_new:
            yield from self._look(self._find)
        while self._waiting:
            event, _, fanout = self._waiting[0]
            if event.inventory is None:
                self._apply_waiting(put)
            else:
                if not self._is_known(event):
                    yield from self._look(partial(self._keep, event.inventory))
                    self._applied(event)
                self._waiting.popleft()
                self.queue.await_records()
                self._end([fanout])
            yield
        self._is_busy = False

    def _look(self, look: Callable[[Entry], None]) -> Iterator[None]:
        """Look at all entries of the queue, in turns; it may remove them."""
        last: Entry | None = None
        position, is_done = 0, False
        while not is_done and not self.queue.is_deleted:
            is_done = True
            for count, entry in enumerate(self.queue.order.since(last, position), 1):
                position = entry.position
                look(entry)
                if entry.state != GONE:
                    last = entry
                if count == MAX_LOOKED_AT:
                    is_done = False
                    break
            yield

    def _keep(self, inventory: Inventory, entry: Entry) -> None:
        """Remove a copy that an inventory does not have."""
        identity = self._ids.get(entry)
        if identity is not None and inventory.denies(identity):
            with suppress(ModelError):  # it stays until the next inventory
                self._dequeue(identity)

    def _apply_waiting(self, put: Put) -> None:
        """Apply some of the events that wait, up to an inventory. An error ends all of them: they come again."""
        applied: list[Fanout] = []
        error: Exception | None = None
        while self._waiting and self._waiting[0][0].inventory is None and len(applied) < MAX_APPLIED:
            event, message, fanout = self._waiting.popleft()
            try:
                result = self._apply(event, message, put)
            except (ModelError, MemoryError) as failure:
                error = failure.with_traceback(None)
                fanout.end(error)
                break
            if isinstance(result, Fanout):
                result.when_done(fanout.end)
            else:
                applied.append(fanout)
        if error is not None:
            failed, self._waiting = self._waiting, deque()
            for _, _, fanout in failed:
                fanout.end(error)
        self._end(applied)

    def _end(self, applied: list[Fanout]) -> None:
        """Complete events when the records of this tick are on the disk."""

        def ended(error: Exception | None) -> None:
            for fanout in applied:
                fanout.end(error)

        if applied:
            self.queue.when_synced(ended)

    # ---- the queue ----

    def _find(self, entry: Entry) -> None:
        """Note a message that was on the queue already, if it is a copy."""
        text = None if entry in self._ids else entry.message.header_text(COPY)
        identity = None if text is None else self._seal.read(self.queue.name, text)
        if identity is not None and identity not in self._copies:
            self._note(entry, identity)

    def _note(self, entry: Entry, identity: MessageId) -> None:
        self._copies[identity] = entry
        self._ids[entry] = identity

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Note the copy that an event puts on the queue. Messages of others are none, whatever their headers."""
        identity, self._arriving = self._arriving, None
        if identity is not None:
            self._note(entry, identity)

    def recovered(self, queue: Queue) -> None:
        """Nothing to do: it is made after the start."""

    def removed(self, entry: Entry) -> None:
        """Forget a copy."""
        identity = self._ids.pop(entry, None)
        if identity is not None:
            del self._copies[identity]


class Replica:
    """Applies the events that one exchange receives.

    The virtual host of the exchange calls `join`, and `CopySeal.prepare` before there are events.
    """

    __slots__ = ("_mirrors", "_named", "_queues", "_seal")

    def __init__(self) -> None:
        self._mirrors: dict[str, Mirror] = {}
        self._named: set[str] = set()  # missing queues that were logged

    def join(self, queues: Mapping[str, Queue], seal: CopySeal) -> None:
        """Apply events to the queues of a virtual host, by name, whose broker has this seal."""
        self._queues, self._seal = queues, seal

    def takes(self, message: Message) -> bool:  # noqa: ARG002
        """True: it takes all messages."""
        return True

    def keeps_nothing(self, message: Message) -> bool:  # noqa: ARG002
        """False: it puts messages on queues."""
        return False

    def check_transaction(self) -> None:
        """Raise NotImplementedByBrokerError: events are applied at once."""
        raise NotImplementedByBrokerError("an exchange of type replication takes no transactions")

    def placed(self, message: Message) -> None:
        """As `Receiver.placed`: events are applied."""

    def receive(self, message: Message, put: Put, authorization: Authorization) -> bool | Fanout:
        """Apply the event that a message is.

        Args:
            message: the message.
            put: puts messages on queues.
            authorization: checks the publisher.

        Returns:
            Whether its completion must wait until the records of this tick are on the disk, or what it must wait for.

        Raises:
            UnauthorizedError: its publisher may not do this to the queue.
            InvalidArgumentError: its headers are not those of an event.
            ModelError: as `put`; the same event can be applied later.
        """
        event = read_event(message)
        if event is None:
            return False
        if authorization.is_on:
            _check(authorization, message.handling.publisher, event)
        queue = self._queues.get(event.queue)
        if queue is None or queue.is_deleted or is_brokers_own(queue.name):
            self._mirrors.pop(event.queue, None)
            self._log_missing(event.queue)
            return False
        return self._mirror(queue, put).receive(event, message, put)

    def _mirror(self, queue: Queue, put: Put) -> Mirror:
        mirror = self._mirrors.get(queue.name)
        if mirror is None or mirror.queue is not queue:  # a new one of the same name
            mirror = self._mirrors[queue.name] = Mirror(queue, self._seal)
            queue.displacements = (mirror, *queue.displacements)
            mirror.begin(put)
        return mirror

    def _log_missing(self, name: str) -> None:
        if name not in self._named and len(self._named) < _MAX_NAMED:
            self._named.add(name)
            _LOG.error('Events of queue "%s" are ignored: there is no such queue here', name)


def _check(authorization: Authorization, publisher: object, event: Event) -> None:
    """Raise UnauthorizedError unless the publisher of an event may perform its operation on the queue."""
    if not isinstance(publisher, Publisher):
        raise UnauthorizedError(f'an event of queue "{event.queue}" without a known publisher is not applied')
    if event.type == ENQUEUED:
        authorization.check_publish(publisher, "", event.queue)
    else:
        authorization.check(publisher, Action.PURGE, ObjectType.QUEUE, event.queue)
