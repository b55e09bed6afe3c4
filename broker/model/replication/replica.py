"""The destination of replication: applies events, so that a queue of this broker follows the one at the source.

    enqueued    the message is put on the queue with the name of the source's
    dequeued    its copy is removed, unless a consumer of this broker holds it

An event is applied on behalf of its publisher, who needs the right to publish to the queue by the default exchange, or,
for a dequeue, to purge the queue.

An event that was received before is recognized by its number, and ignored. One for a queue that does not exist, or for
a message without a copy, is ignored too: the message was enqueued before replication began, or before a restart of this
broker, which keeps copies and event numbers only in memory.

Source: Qpid C++ Broker Book, 1.7.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import NotImplementedByBrokerError, UnauthorizedError
from qstore.broker.model.queues.entry import AVAILABLE, Entry
from qstore.broker.model.queues.limits import Displacement
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.replication.events import ENQUEUED, HEADERS, Event, MessageId, read_event

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.exchanges.exchange import Put
    from qstore.broker.model.message import Message

_LOG: Final = log_of("Broker")
_MAX_SOURCES: Final = 100
_MAX_NAMED: Final = 100


class Mirror(Displacement):
    """Knows the copies on one queue; displaces none.

    Args:
        queue: the queue.

    Attributes:
        queue: as above.
    """

    __slots__ = ("_copies", "_expected", "_ids", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._copies: dict[MessageId, Entry] = {}
        self._ids: dict[Entry, MessageId] = {}
        self._expected: MessageId | None = None

    @property
    def refers_to_entries(self) -> bool:
        """True: it references the copies."""
        return True

    def enqueue(self, identity: MessageId, message: Message, put: Put) -> bool:
        """Put a copy on the queue. Returns and raises as `put`."""
        self._expected = identity
        try:
            return put(message, (self.queue,))
        finally:
            self._expected = None

    def dequeue(self, identity: MessageId) -> bool:
        """Remove a copy. Returns whether its completion must wait for the disk.

        Raises:
            InternalError: the journal cannot be written.
        """
        entry = self._copies.get(identity)
        if entry is None or entry.state != AVAILABLE:
            return False
        self.queue.acquire(entry, is_consumed=False)
        return self.queue.dequeue(entry)

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Note the copy that was just put on the queue."""
        if self._expected is not None:
            self._copies[self._expected] = entry
            self._ids[entry] = self._expected
            self._expected = None

    def recovered(self, queue: Queue) -> None:
        """Nothing to do: copies from before the start are not known."""

    def removed(self, entry: Entry) -> None:
        """Forget a copy."""
        identity = self._ids.pop(entry, None)
        if identity is not None:
            del self._copies[identity]


class Replica:
    """Applies the events that one exchange receives.

    Attributes:
        queues: name -> queue, of its virtual host; set when the exchange is created there.
        applied, ignored: numbers of messages with and without effect.
    """

    __slots__ = ("_last", "_mirrors", "_named", "applied", "ignored", "queues")

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # source -> the number of its last event
        self._mirrors: dict[str, Mirror] = {}
        self._named: set[str] = set()  # missing queues that were logged
        self.queues: Mapping[str, Queue] = {}
        self.applied = self.ignored = 0

    def takes(self, message: Message) -> bool:  # noqa: ARG002
        """True: it takes all messages."""
        return True

    def keeps_nothing(self, message: Message) -> bool:  # noqa: ARG002
        """False: it puts messages on queues."""
        return False

    def check_transaction(self) -> None:
        """Raise NotImplementedByBrokerError: events are applied at once."""
        raise NotImplementedByBrokerError("an exchange of type replication takes no transactions")

    def receive(self, message: Message, put: Put, authorization: Authorization) -> bool:
        """Apply the event that a message is.

        Args:
            message: the message.
            put: puts messages on queues.
            authorization: checks the publisher.

        Returns:
            Whether its completion must wait until the records of this tick are on the disk.

        Raises:
            UnauthorizedError: its publisher may not do this to the queue.
            InvalidArgumentError: its headers are not those of an event.
            ModelError: as `put`; the same event can be applied later.
        """
        event = read_event(message)
        if event is None:
            self.ignored += 1
            return False
        if authorization.is_on:
            _check(authorization, message.handling.publisher, event)
        if self._is_known(event):
            self.ignored += 1
            return False
        queue = self.queues.get(event.queue)
        if queue is None:
            self._mirrors.pop(event.queue, None)
            self._log_missing(event.queue)
            self.ignored += 1
            return False
        mirror = self._mirror(queue)
        if event.type == ENQUEUED:
            is_promised = mirror.enqueue(event.message, message.with_headers(dict.fromkeys(HEADERS)), put)
        else:
            is_promised = mirror.dequeue(event.message)
        if event.number:
            self._last[event.source] = event.number
            if len(self._last) > _MAX_SOURCES:
                del self._last[next(iter(self._last))]
        self.applied += 1
        return is_promised

    def _is_known(self, event: Event) -> bool:
        """Whether an event was received before."""
        return 0 < event.number <= self._last.get(event.source, 0)

    def _mirror(self, queue: Queue) -> Mirror:
        mirror = self._mirrors.get(queue.name)
        if mirror is None or mirror.queue is not queue:  # a new one of the same name
            mirror = self._mirrors[queue.name] = Mirror(queue)
            queue.displacements = (mirror, *queue.displacements)
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
