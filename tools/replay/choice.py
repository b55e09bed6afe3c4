"""From which message on a queue is replayed, and which of those that follow: a sink in front of another one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, header_size
from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.store.importing.intake import ImportedMessage
from qstore.store.journal.enqueue_map import LIVE, PENDING
from qstore.tools.interchange.items import ItemSink

if TYPE_CHECKING:
    from qstore.broker.model.selectors.selector import Selector


@dataclass(frozen=True, slots=True)
class Choice:
    """What is replayed: from the first message on that fulfils all of the first four, if they are given.

    Attributes:
        queue: the queue in the source.
        target: the queue on which the messages are put.
        rid: the first message's record id is this one or a later one.
        message_id: its message id.
        header: name and value, as text, of an application header that it has.
        since: its timestamp is this one or a later one, in seconds since 1970.
        until: it ends before the first message with a later timestamp.
        selector: only messages that it selects.
        limit: only so many.
    """

    queue: str
    target: str
    rid: int | None = None
    message_id: str | None = None
    header: tuple[str, str] | None = None
    since: int | None = None
    until: int | None = None
    selector: Selector | None = None
    limit: int | None = None

    @property
    def text(self) -> str:
        """All of it, for the ledger."""
        selector = None if self.selector is None else self.selector.text
        return repr((self.queue, self.target, self.rid, self.message_id, self.header, self.since, self.until, selector,
                     self.limit))  # fmt: skip


@dataclass(slots=True)
class Replayed:
    """What passed.

    Attributes:
        seen: number of messages of the queue, up to the last one.
        messages: number of those that are replayed.
        rids: record ids of the first and the last of them; 0 if the source has none.
        expired: number of those whose time is over: a broker drops them.
        digest: of all of them.
    """

    seen: int = 0
    messages: int = 0
    rids: list[int] = field(default_factory=list)
    expired: int = 0
    digest: Any = field(default_factory=sha256)


class ReplaySink:
    """Passes on the messages that are replayed, as messages of the target; nothing else.

    Args:
        sink: receives them.
        choice: which.

    Attributes:
        replayed: what passed.
        queues: the names of the queues that were seen.
    """

    def __init__(self, sink: ItemSink, choice: Choice) -> None:
        self._sink, self._choice = sink, choice
        self._has_begun, self._has_ended = False, False
        self._now = time.time()
        self.replayed = Replayed()
        self.queues: set[str] = set()

    def queue(self, queue: Queue) -> None:
        """Only its name counts."""
        self.queues.add(queue.name)

    def exchange(self, exchange: Exchange) -> None:
        """Not replayed."""

    def binding(self, exchange: str, binding: Binding) -> None:
        """Not replayed."""

    def other(self, general: Link | Bridge | GeneralObject) -> None:
        """Not replayed."""

    def branch(self, xid: bytes) -> None:
        """Not replayed."""

    def message(self, message: ImportedMessage) -> None:
        """Pass on a message, if it is one of the queue's, and was delivered or can be."""
        choice, replayed = self._choice, self.replayed
        self.queues.add(message.queue)
        if message.queue != choice.queue or message.state == PENDING or self._has_ended:
            return
        replayed.seen += 1
        header = _header(message.data)
        if not self._has_begun:
            if not _begins(choice, message.rid, header):
                return
            self._has_begun = True
        moment = None if header is None else moment_of(header)
        if choice.until is not None and moment is not None and moment > choice.until:
            self._has_ended = True
            return
        if choice.selector is not None and not _selects(choice.selector, message):
            return
        self._pass(message, header)

    def _pass(self, message: ImportedMessage, header: MessageHeader | None) -> None:
        replayed = self.replayed
        if replayed.messages == self._choice.limit:
            self._has_ended = True
            return
        replayed.messages += 1
        replayed.rids[1:] = [message.rid]
        expires = None if header is None else header.expiration
        replayed.expired += bool(expires and expires < self._now)
        replayed.digest.update(b"%d %d " % (message.rid, len(message.data)))
        replayed.digest.update(message.data)
        self._sink.message(message._replace(queue=self._choice.target, rid=0, state=LIVE, xid=b"", is_redelivered=True))


def moment_of(header: MessageHeader) -> int | None:
    """When a message was sent, in seconds since 1970; None if it does not tell."""
    if header.amqp_1_0 is not None and header.amqp_1_0.creation_time is not None:
        return header.amqp_1_0.creation_time // 1000
    return header.timestamp


def _header(data: bytes) -> MessageHeader | None:
    """The decoded header; None if it cannot be decoded."""
    try:
        end = HEADER_SIZE_BYTES + header_size(data)
        return decode_message_header(data[HEADER_SIZE_BYTES:end]) if end <= len(data) else None
    except BrokerRecordError:
        return None


def _begins(choice: Choice, rid: int, header: MessageHeader | None) -> bool:
    if choice.rid is not None and rid < choice.rid:
        return False
    if choice.message_id is None and choice.header is None and choice.since is None:
        return True
    if header is None:
        return False
    if choice.message_id is not None and (header.message_id or "").lower() != choice.message_id.lower():
        return False
    if choice.header is not None:
        name, value = choice.header
        if name not in header.headers or _text(header.headers[name]) != value:
            return False
    moment = moment_of(header)
    return choice.since is None or (moment is not None and moment >= choice.since)


def _text(value: Any) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _selects(selector: Selector, message: ImportedMessage) -> bool:
    try:
        return selector.matches(Candidate(restore_message(message.data), is_redelivered=message.is_redelivered))
    except BrokerRecordError:
        return False
