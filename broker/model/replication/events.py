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
    qpid.replication.journal          int64   with record: the number of the queue in the store of the source
    qpid.replication.again            int32   with 1: 1 if the event may have been sent before
    qpid.replication.live             string  with 2: which stored messages the source has; see `Inventory`

The first event has the content and the other headers of the message, the second has no content. The headers from
source on are extensions of this broker: record ids stay valid over a restart of the source, where positions and event
numbers begin anew. What does not know them takes an inventory for the dequeue of a message that it does not have.

A copy has one more header, `qpid.replication.copy`, the text `SOURCE/NUMBER/SEAL`: the `MessageId` of the message, and
a keyed hash of it and of the queue (`CopySeal`). So the copies are known after a restart, and no client can make one.

Sources: Qpid C++ Broker Book, 1.7.1; qpidd 0.16, replication/constants.h.
"""

from __future__ import annotations

import hmac
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qstore.broker.model.configuration import Configuration, Record
from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.broker_records.topology import REPLICATION_KEY
from qstore.formats.named_tuple import NamedTuple
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
JOURNAL: Final = "qpid.replication.journal"
AGAIN: Final = "qpid.replication.again"
LIVE: Final = "qpid.replication.live"
COPY: Final = "qpid.replication.copy"
POSITION: Final = {ENQUEUED: "qpid.replication.queue.position", DEQUEUED: "qpid.replication.message"}
HEADERS: Final = (TYPE, QUEUE, NUMBER, SOURCE, RECORD, JOURNAL, AGAIN, LIVE, *POSITION.values())

MAX_RANGES: Final = 500
"""Ranges of record ids in one inventory: some 20 kB."""

MAX_SOURCE: Final = 255
"""Characters that identify a source: each copy has them in memory."""

_KEY_RECORD: Final = Record(REPLICATION_KEY, ("copies",))
_KEY_BYTES: Final = 16
_MAX_DIGITS: Final = 20
_LAST_RECORD: Final = (1 << 63) - 1
_RANGES: Final = re.compile(r"(\d{1,19})-(\d{1,19})(?::((?:\d{1,19}-\d{1,19},)*\d{1,19}-\d{1,19})?)?")


class MessageId(NamedTuple):
    """Identifies a message of one queue.

    Attributes:
        source: the run of the source, empty if it does not send it; `#` and the queue's number if the message is stored
            there.
        number: its record id at the source if it is stored there, otherwise its position.
    """

    source: str
    number: int

    @property
    def is_stored(self) -> bool:
        """Whether the message is stored at the source."""
        return self.source.startswith("#")

    @property
    def text(self) -> str:
        """It as text: `SOURCE/NUMBER`."""
        return f"{self.source}/{self.number}"


def stored_id(journal: int, record: int) -> MessageId:
    """Identifies a stored message, by the number of its queue in the store and its record id."""
    return MessageId(f"#{journal}", record)


class CopySeal:
    """Makes and reads the header of copies, with a secret of the broker, which is a configuration record.

    Without it, a user who may publish to the queue could forge the copy of a message that is still to come.

    Args:
        configuration: has the record.
    """

    __slots__ = ("_configuration", "_key", "_new_key")

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._key = b""
        self._new_key = secrets.token_bytes(_KEY_BYTES)  # becomes the key if there is none

    async def prepare(self) -> None:
        """Store the secret, unless there is one. Copies that are made without this are unknown after a restart.

        Raises:
            InternalError: it cannot be stored.
            InvalidArgumentError: there are too many configuration records.
        """
        if not self._stored_key():
            await self._configuration.change({_KEY_RECORD: {"key": self._new_key.hex()}})

    def header(self, queue: str, message: MessageId) -> str:
        """The value of the header `qpid.replication.copy` of a message on a queue."""
        return f"{message.text}/{self._hash(queue, message)}"

    def read(self, queue: str, header: str) -> MessageId | None:
        """The id of the copy on a queue that has this header; None if this broker has not made it."""
        text, _, seal = header.rpartition("/")
        source, separator, number = text.rpartition("/")
        if not separator or not number.isascii() or not number.isdigit() or len(number) > _MAX_DIGITS:
            return None
        message = MessageId(source, int(number))
        is_own = hmac.compare_digest(seal.encode("utf-8", "replace"), self._hash(queue, message).encode())
        return message if is_own else None

    def _hash(self, queue: str, message: MessageId) -> str:
        self._key = self._key or self._stored_key() or self._new_key
        data = f"{queue}\0{message.text}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, data, "sha256")[:_KEY_BYTES].hex()

    def _stored_key(self) -> bytes:
        value = (self._configuration.get(_KEY_RECORD) or {}).get("key")
        try:
            return bytes.fromhex(value) if isinstance(value, str) else b""
        except ValueError:
            return b""


class Inventory(NamedTuple):
    """Which stored messages with record ids from `first` to `last` are on the queue of the source.

    Its header is the text `FIRST-LAST:A-B,C-D`, with the ranges of record ids that are there.

    Attributes:
        source: as in `MessageId`.
        first, last: as above.
        begins, ends: the first and the last record ids of the ranges, ascending.
    """

    source: str
    first: int
    last: int
    begins: list[int]
    ends: list[int]

    @property
    def text(self) -> str:
        """The value of its header."""
        ranges = ",".join(f"{begin}-{end}" for begin, end in zip(self.begins, self.ends, strict=True))
        return f"{self.first}-{self.last}:{ranges}"

    def denies(self, message: MessageId) -> bool:
        """Whether it says that a message is not there."""
        if message.source != self.source or not self.first <= message.number <= self.last:
            return False
        index = bisect_right(self.begins, message.number) - 1
        return index < 0 or self.ends[index] < message.number


def inventories(source: str, records: Iterable[int]) -> Iterator[Inventory]:
    """The inventories of a queue whose stored messages have these record ids, ascending: they cover all record ids."""
    first = 1
    begins: list[int] = []
    ends: list[int] = []
    for record in records:
        if ends and record == ends[-1] + 1:
            ends[-1] = record
            continue
        if len(begins) == MAX_RANGES:
            yield Inventory(source, first, ends[-1], begins, ends)
            first, begins, ends = ends[-1] + 1, [], []
        begins.append(record)
        ends.append(record)
    yield Inventory(source, first, _LAST_RECORD, begins, ends)


def _read_inventory(source: str, text: str) -> Inventory:
    found = _RANGES.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"an event of a replicated queue: {LIVE} is not valid")
    begins, ends = [], []
    for each in filter(None, (found[3] or "").split(",")):
        begin, _, end = each.partition("-")
        begins.append(int(begin))
        ends.append(int(end))
    return Inventory(source, int(found[1]), int(found[2]), begins, ends)


class Event(NamedTuple):
    """An event.

    Attributes:
        type: ENQUEUED or DEQUEUED.
        queue: the name of the queue.
        message: the message.
        source: the run of the source; empty if it does not send it.
        number: the number of the event; 0 if it has none.
        is_again: whether the event may have been sent before.
        inventory: what the source has, in place of the dequeue of a message; None otherwise.
    """

    type: int
    queue: str
    message: MessageId
    source: str
    number: int
    is_again: bool = False
    inventory: Inventory | None = None

    def headers(self, position: int) -> dict[str, TypedValue | None]:
        """The headers of the event; `position` is that of the message."""
        headers: dict[str, TypedValue | None] = {
            TYPE: TypedValue(INT32, self.type),
            QUEUE: TypedValue(STR16, self.queue),
            NUMBER: TypedValue(INT64, self.number),
            POSITION[self.type]: TypedValue(INT64, position),
            SOURCE: TypedValue(STR16, self.source),
        }
        is_stored = self.message.is_stored
        headers[RECORD] = TypedValue(INT64, self.message.number) if is_stored else None
        headers[JOURNAL] = TypedValue(INT64, int(self.message.source[1:])) if is_stored else None
        headers[AGAIN] = TypedValue(INT32, 1) if self.is_again else None
        headers[LIVE] = None if self.inventory is None else TypedValue(STR16, self.inventory.text)
        headers[COPY] = None  # of a message that is a copy itself
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
    if len(source) > MAX_SOURCE:
        raise InvalidArgumentError(f"an event of a replicated queue: {SOURCE} has more than {MAX_SOURCE} characters")
    if headers.get(RECORD) is not None:
        journal = 0 if headers.get(JOURNAL) is None else _integer(headers, JOURNAL)
        identity = stored_id(journal, _integer(headers, RECORD))
    else:
        identity = MessageId(source, _integer(headers, POSITION[kind]))
    number = 0 if headers.get(NUMBER) is None else _integer(headers, NUMBER)
    is_again = message.was_redelivered or headers.get(AGAIN) is not None
    inventory = None
    if kind == DEQUEUED and headers.get(LIVE) is not None:
        inventory = _read_inventory(identity.source, _text(headers, LIVE))
    return Event(kind, _text(headers, QUEUE), identity, source, number, is_again, inventory)


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
