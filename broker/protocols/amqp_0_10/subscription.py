"""One consumer of a queue: its credit, and how messages go out to it.

    flow mode   credit, when the client has completed transfers
    credit      what was given is used up, and no more comes by itself
    window      what was used comes back

Credit is counted in messages and in bytes, of header and content; a subscription without either gets nothing, and the
value 0xffffffff is without end. To begin with the mode is window and there is no credit.

`deliver` is the way of every message that goes out: it puts the frames of a transfer into the connection's output. What
does not change from one to the next is kept encoded, by the length of header and body.

Source: AMQP 0-10, message.subscribe, flow, set-flow-mode, flush, stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.model.content import Content
from broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from broker.model.queues.entry import Entry
from broker.model.queues.queue import Queue
from broker.protocols.amqp_0_10.conversion import as_transfer
from broker.protocols.amqp_0_10.session import Transport
from broker.protocols.amqp_0_10.transfer import TransferMessage
from formats.amqp_0_10.codes import AcceptMode, CreditUnit, FlowMode
from formats.amqp_0_10.commands import encode_command
from formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    encode_frame,
)

UNLIMITED: Final = 0xFFFFFFFF
_WHOLE: Final = FIRST_FRAME | LAST_FRAME
_HEADS_KEPT: Final = 1024


class DeliveringTransport(Transport, Protocol):
    """A connection that messages go out to.

    Attributes:
        room: bytes that may be sent before others have their turn.
    """

    room: int


class DeliveringSession(Protocol):
    """What a subscription needs of the session that its messages go out by.

    Attributes:
        sent: number of the next transfer.
    """

    sent: int

    @property
    def can_send(self) -> bool:
        """Whether the connection takes messages; else `wake` is called when it does."""

    @property
    def is_failed(self) -> bool:
        """Whether it is over."""

    @property
    def is_resumable(self) -> bool:
        """Whether it keeps what it sends, so that `send_payload` has to see it."""

    @property
    def most_plain_bytes(self) -> int:
        """A message as large as that fits one frame, header and body each."""

    @property
    def channel(self) -> int:
        """The channel that it is attached by."""

    @property
    def transport(self) -> Transport | None:
        """The connection; None while it is not attached."""

    @property
    def connection(self) -> DeliveringTransport:
        """The connection, or the last one."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds since 1970."""

    @property
    def publisher(self) -> object:
        """What messages that come over its connection are known by."""

    def send_payload(self, payload: bytes, header: bytes | None = None, body: Content | None = None) -> int:
        """Send a command that is encoded. Returns its number."""

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """A message was sent."""

    def subscription_lost(self, subscription: Subscription) -> None:
        """The queue of a subscription was deleted."""


class Subscription:
    """A consumer.

    Args:
        session: whose it is.
        destination: its name in the session.
        queue: what it consumes.
        accept_mode: whether the client accepts messages.
        acquires: whether it takes messages, or only looks at them.

    Attributes:
        session, destination, queue, acquires: as above.
        is_accepting: whether messages are gone only when the client accepts them.
        is_windowed: the flow mode.
        epoch: how often its credit was taken away: what was sent before gives none back.
        message_credit, byte_credit: what is left.
    """

    __slots__ = (
        "_body_heads",
        "_given",
        "_heads",
        "_unlimited",
        "acquires",
        "byte_credit",
        "cursor",
        "destination",
        "epoch",
        "is_accepting",
        "is_waiting",
        "is_windowed",
        "message_credit",
        "payload",
        "queue",
        "session",
    )

    cursor: Entry

    def __init__(
        self, session: DeliveringSession, destination: str, queue: Queue, accept_mode: int, *, acquires: bool
    ) -> None:
        self.session, self.destination, self.queue, self.acquires = session, destination, queue, acquires
        self.is_accepting = accept_mode == AcceptMode.EXPLICIT
        self.is_waiting = False
        self.is_windowed = True
        self.epoch = 0
        self.message_credit = self.byte_credit = 0
        self._given = 0  # credit, in messages, less what was taken away
        self._unlimited = 0  # messages that were delivered without taking any
        self.payload = encode_command(
            "message.transfer", destination=destination, accept_mode=accept_mode, acquire_mode=int(not acquires)
        )
        self._heads: dict[int, bytes] = {}
        self._body_heads: dict[int, bytes] = {}

    # ---- credit ----

    def set_flow_mode(self, mode: int) -> None:
        """Change the flow mode, which takes all credit away."""
        self.is_windowed = mode == FlowMode.WINDOW
        self.stop()

    def add_credit(self, unit: int, value: int) -> None:
        """The client gives credit."""
        if unit == CreditUnit.MESSAGE:
            self._set_message_credit(UNLIMITED if value == UNLIMITED else min(self.message_credit + value, UNLIMITED))
        else:
            self.byte_credit = UNLIMITED if value == UNLIMITED else min(self.byte_credit + value, UNLIMITED)
        self.wake()

    def _set_message_credit(self, credit: int) -> None:
        """Give or take away credit. What else changes it are deliveries, which are counted that way."""
        self._given += credit - self.message_credit
        self.message_credit = credit

    @property
    def delivered(self) -> int:
        """How many messages were delivered."""
        return self._given - self.message_credit + self._unlimited

    def take_back(self, messages: int, size: int, epoch: int) -> None:
        """The client has completed transfers of that epoch: their credit comes back, if the mode is window."""
        if not self.is_windowed or epoch != self.epoch:
            return
        if self.message_credit != UNLIMITED:
            self._set_message_credit(self.message_credit + messages)
        if self.byte_credit != UNLIMITED:
            self.byte_credit += size
        self.wake()

    def stop(self) -> None:
        """Deliver nothing until there is new credit."""
        self._set_message_credit(0)
        self.byte_credit = 0
        self.epoch += 1

    def cancel(self) -> None:
        """Deliver nothing any more: no credit comes back for what is not completed yet."""
        self.is_windowed = False
        self.stop()

    def wake(self) -> None:
        """Ask the queue for messages, if any can be taken."""
        if self.message_credit and self.byte_credit and not self.is_waiting and self.session.can_send:
            if self.queue.is_deleted:
                self.session.subscription_lost(self)
            else:
                self.queue.wake(self)

    @property
    def kind(self) -> str:
        """What it cannot take cannot be said in AMQP 0-10: so it is for all subscriptions."""
        return "AMQP 0-10"

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`; a session that is not attached takes nothing."""
        return bool(self.message_credit and self.byte_credit) and self.session.transport is not None

    @property
    def publisher(self) -> object:
        """What messages that come over its connection are known by."""
        return self.session.publisher

    @property
    def is_blocked(self) -> bool:
        """Whether it has credit, and only the connection keeps it from taking more."""
        has_credit = bool(self.message_credit and self.byte_credit)
        return has_credit and (not self.session.can_send or self.session.connection.room <= 0)

    # ---- messages ----

    def deliver(self, entry: Entry) -> int:
        """Send a message, if there is credit for it. Returns as `Consumer.deliver` does."""
        session = self.session
        connection = session.connection
        credit = self.message_credit
        if not credit or connection.room <= 0 or not session.can_send:
            return REFUSED
        message = entry.message
        if not isinstance(message, TransferMessage):
            transfer = message.converted(as_transfer)
            if transfer is None:
                return NOT_FOR_ME
            message = transfer
        header, body = message.header, message.body
        size = len(header) + len(body)
        if self.byte_credit != UNLIMITED:
            if size > self.byte_credit:
                return REFUSED
            self.byte_credit -= size
        if credit != UNLIMITED:
            self.message_credit = credit = credit - 1
        else:
            self._unlimited += 1
        if entry.is_redelivered or message.expires_at:
            header = message.header_for_delivery(is_redelivered=entry.is_redelivered, now=session.clock())
        number = session.sent
        if session.is_resumable or size > session.most_plain_bytes or not message.has_body:
            session.send_payload(self.payload, header, body if message.has_body else None)
        else:
            session.sent = number + 1
            heads = self._heads
            length = len(header)
            head = heads.get(length) or self._make_head(length)
            length = len(body)
            body_head = self._body_heads.get(length) or self._make_body_head(length)
            connection.output += (head, header, body_head, body)  # type: ignore[arg-type]  # one frame: it is bytes
        session.delivered(number, self, entry, size)
        if session.is_failed:
            return TAKEN  # it does not stand in the queue's ring any more: nobody is to be taken out of it
        return TAKEN if credit and connection.room > 0 else TAKEN_LAST

    def forget_heads(self) -> None:
        """The session has another channel now."""
        self._heads.clear()
        self._body_heads.clear()

    def _make_head(self, length: int) -> bytes:
        """The command's frame, and the head of the header's."""
        channel = self.session.channel
        command = encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, channel, self.payload)
        head = command + FRAME.pack(_WHOLE, HEADER, FRAME.size + length, 0, TRACK_COMMAND, channel, 0)
        if len(self._heads) < _HEADS_KEPT:
            self._heads[length] = head
        return head

    def _make_body_head(self, length: int) -> bytes:
        """The head of the body's frame."""
        flags = LAST_SEGMENT | _WHOLE
        head = FRAME.pack(flags, BODY, FRAME.size + length, 0, TRACK_COMMAND, self.session.channel, 0)
        if len(self._body_heads) < _HEADS_KEPT:
            self._body_heads[length] = head
        return head

    def queue_deleted(self) -> None:
        """The queue is gone, and so is this, as soon as it wants something."""
        if self.message_credit and self.byte_credit:
            self.session.subscription_lost(self)
