"""The source of replication: puts an event on the replication queue for each message of a replicated queue.

Events are put there in the order in which they happen, each with its number. An event of a persistent message is
persistent, so that a durable replication queue keeps it. Publishers do not wait for events: if one cannot be put on the
replication queue, the log tells that events are missing, and how many there were when it is possible again.

Source: Qpid C++ Broker Book, 1.7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import ModelError
from qstore.broker.model.message import MakeMessage, Message, NewMessage
from qstore.broker.model.replication.events import DEQUEUED, ENQUEUED, Event, MessageId
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.entry import Entry

_LOG: Final = log_of("Broker")


class ReplicatingListener:
    """Makes and sends events.

    Args:
        source: identifies this run of the broker.
        send: puts an event on the replication queue. Raises ModelError.
        make_message: encodes messages.
        queue: the name of the replication queue, of which no events are sent; None if an exchange gets the events.
    """

    def __init__(
        self, source: str, send: Callable[[Message], None], make_message: MakeMessage, queue: str | None = None
    ) -> None:
        self._source, self._send, self._make_message, self._queue = source, send, make_message, queue
        self._number = 0
        self._missing = 0
        self._is_sending = False

    def enqueued(self, queue: str, entry: Entry) -> None:
        """Send the event that a message was enqueued."""
        if not self._is_sending and queue != self._queue:
            self._deliver(ENQUEUED, queue, entry)

    def dequeued(self, queue: str, entry: Entry) -> None:
        """Send the event that a message was dequeued."""
        if not self._is_sending and queue != self._queue:
            self._deliver(DEQUEUED, queue, entry)

    def _deliver(self, kind: int, queue: str, entry: Entry) -> None:
        self._is_sending = True  # a queue that the exchange leads to may be one that generates events
        try:
            self._send(self._event(kind, queue, entry))
        except (ModelError, MemoryError) as error:
            self._missing += 1
            if self._missing == 1:
                _LOG.error('Events are missing from replication, the first of queue "%s": %s', queue, error)
        else:
            if self._missing:
                _LOG.error("%d events are missing from replication; it goes on with the next ones", self._missing)
                self._missing = 0
        finally:
            self._is_sending = False

    def _event(self, kind: int, queue: str, entry: Entry) -> Message:
        self._number += 1
        message, rid, position = entry.message, entry.rid, entry.position
        identity = MessageId("", rid) if rid else MessageId(self._source, position)
        headers = Event(kind, queue, identity, self._source, self._number).headers(position)
        if kind == ENQUEUED:
            return message.with_headers(headers)
        present = {name: value for name, value in headers.items() if value is not None}
        return self._make_message(NewMessage(queue, TypedMap(tuple(present.items())), message.is_persistent))
