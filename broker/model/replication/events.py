"""The events of a replicated queue that one broker sends another: messages with these application headers.

    header                            type    value
    --------------------------------  ------  -------------------------------------------------------------------
    qpid.replication.type             int32   1: a message was enqueued; 2: it was dequeued
    qpid.replication.target_queue     string  the queue
    qpid.replication.seqno            int64   the number of the event, from 1 in each run of the source
    qpid.replication.queue.position   int64   with 1: the position of the message on its queue
    qpid.replication.message          int64   with 2: likewise
    qpid.replication.source           string  identifies the run of the source
    qpid.replication.record           int64   the record id of the message at the source, if it is stored there

The first event has the content and the other headers of the message, the second has no content. The last two headers
are extensions of this broker: they stay valid over a restart of the source, where positions and event numbers begin
anew.

Sources: Qpid C++ Broker Book, 1.7.1; qpidd 0.16, replication/constants.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.values import INT32, INT64, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

ENQUEUED: Final = 1
DEQUEUED: Final = 2

TYPE: Final = "qpid.replication.type"
QUEUE: Final = "qpid.replication.target_queue"
NUMBER: Final = "qpid.replication.seqno"
SOURCE: Final = "qpid.replication.source"
RECORD: Final = "qpid.replication.record"
POSITION: Final = {ENQUEUED: "qpid.replication.queue.position", DEQUEUED: "qpid.replication.message"}
HEADERS: Final = (TYPE, QUEUE, NUMBER, SOURCE, RECORD, *POSITION.values())


class MessageId(NamedTuple):
    """Identifies a message of one queue.

    Attributes:
        source: the run of the source; empty if the message is stored there, or if the source does not send it.
        number: its record id at the source if it is stored there, otherwise its position.
    """

    source: str
    number: int


class Event(NamedTuple):
    """An event.

    Attributes:
        type: ENQUEUED or DEQUEUED.
        queue: the name of the queue.
        message: the message.
        source: the run of the source; empty if it does not send it.
        number: the number of the event; 0 if it has none.
    """

    type: int
    queue: str
    message: MessageId
    source: str
    number: int

    def headers(self, position: int) -> dict[str, TypedValue | None]:
        """The headers of the event; `position` is that of the message."""
        headers: dict[str, TypedValue | None] = {
            TYPE: TypedValue(INT32, self.type),
            QUEUE: TypedValue(STR16, self.queue),
            NUMBER: TypedValue(INT64, self.number),
            POSITION[self.type]: TypedValue(INT64, position),
            SOURCE: TypedValue(STR16, self.source),
        }
        if not self.message.source:
            headers[RECORD] = TypedValue(INT64, self.message.number)
        return headers


def read_event(message: Message) -> Event | None:
    """The event that a message is; None for other messages.

    Raises:
        InvalidArgumentError: its headers are not those of an event.
    """
    headers = message.headers()
    if headers.get(TYPE) is None:
        return None
    kind = _integer(headers, TYPE)
    if kind not in POSITION:
        raise InvalidArgumentError(f"{TYPE} is {kind}, not {ENQUEUED} or {DEQUEUED}")
    source = "" if headers.get(SOURCE) is None else _text(headers, SOURCE)
    if headers.get(RECORD) is not None:
        identity = MessageId("", _integer(headers, RECORD))
    else:
        identity = MessageId(source, _integer(headers, POSITION[kind]))
    number = 0 if headers.get(NUMBER) is None else _integer(headers, NUMBER)
    return Event(kind, _text(headers, QUEUE), identity, source, number)


def _integer(headers: TypedMap, name: str) -> int:
    typed = headers.get(name)
    value = None if typed is None else typed.value
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"an event of a replicated queue: {name} is not a number")
    return value


def _text(headers: TypedMap, name: str) -> str:
    typed = headers.get(name)
    value = None if typed is None else typed.value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise InvalidArgumentError(f"an event of a replicated queue: {name} is not a string")
    return value
