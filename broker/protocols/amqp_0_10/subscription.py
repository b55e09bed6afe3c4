"""One consumer of a queue: its credit, and sending messages to it.

    flow mode   credit, when the client has completed transfers
    credit      stays used up
    window      is returned

Credit is counted in messages and in bytes of header and content; a subscription needs both to get messages, and the
value 0xffffffff means unlimited. Initially the mode is window and there is no credit.

`deliver` handles every outgoing message: it adds the frames of a transfer to the connection's output. Frame headers are
cached, by the length of header and body.

Source: AMQP 0-10, message.subscribe, flow, set-flow-mode, flush, stop.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeAlias

from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_10.conversion import transfer_of
from qstore.broker.protocols.amqp_0_10.delivering import DeliveringConnection, DeliveringSession
from qstore.broker.protocols.amqp_0_10.transfer import TransferMessage
from qstore.formats.amqp_0_10.codes import AcceptMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import (
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
from qstore.formats.values import EMPTY_MAP

UNLIMITED: Final = 0xFFFFFFFF
_WHOLE: Final = FIRST_FRAME | LAST_FRAME
_HEADS_KEPT: Final = 1024

ConsumingSession: TypeAlias = DeliveringSession[DeliveringConnection[Any]]
"""The session of a subscription."""


class Subscription:
    """A consumer.

    Args:
        session: its session.
        destination: its name in the session.
        queue: the queue that it consumes.
        accept_mode: whether the client accepts messages explicitly.
        acquires: whether it acquires messages, or browses them.

    Attributes:
        session, destination, queue, acquires: as above.
        is_accepting: whether messages are dequeued only when the client accepts them.
        is_windowed: whether the flow mode is window.
        epoch: how often its credit was taken away: earlier deliveries return no credit.
        message_credit, byte_credit: remaining credit.
        arguments: those with which the client has subscribed.
    """

    __slots__ = (
        "_body_heads",
        "_given",
        "_heads",
        "_unlimited",
        "acquires",
        "arguments",
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

    __deletable__ = ("cursor",)  # for the compiler

    cursor: Entry

    def __init__(
        self, session: ConsumingSession, destination: str, queue: Queue, accept_mode: int, *, acquires: bool
    ) -> None:
        self.session, self.destination, self.queue, self.acquires = session, destination, queue, acquires
        self.is_accepting = accept_mode == AcceptMode.EXPLICIT
        self.is_waiting = False
        self.is_windowed = True
        self.arguments = EMPTY_MAP
        self.epoch = 0
        self.message_credit = self.byte_credit = 0
        self._given = 0  # message credit granted, minus credit taken away
        self._unlimited = 0  # messages delivered with unlimited credit
        self.payload = encode_command(
            "message.transfer", destination=destination, accept_mode=accept_mode, acquire_mode=int(not acquires)
        )
        self._heads: dict[int, bytes] = {}
        self._body_heads: dict[int, bytes] = {}

    # ---- credit ----

    def set_flow_mode(self, mode: int) -> None:
        """Change the flow mode, which takes away all credit."""
        self.is_windowed = mode == FlowMode.WINDOW
        self.stop()

    def add_credit(self, unit: int, value: int) -> None:
        """The client grants credit."""
        if unit == CreditUnit.MESSAGE:
            self._set_message_credit(UNLIMITED if value == UNLIMITED else min(self.message_credit + value, UNLIMITED))
        else:
            self.byte_credit = UNLIMITED if value == UNLIMITED else min(self.byte_credit + value, UNLIMITED)
        self.wake()

    def _set_message_credit(self, credit: int) -> None:
        """Grant or take away credit, with its accounting. Deliveries change it directly, and are counted by that."""
        self._given += credit - self.message_credit
        self.message_credit = credit

    @property
    def delivered(self) -> int:
        """How many messages were delivered."""
        return self._given - self.message_credit + self._unlimited

    def return_credit(self, messages: int, size: int, epoch: int) -> None:
        """The client has completed transfers of that epoch: return their credit, if the mode is window."""
        if not self.is_windowed or epoch != self.epoch:
            return
        if self.message_credit != UNLIMITED:
            self._set_message_credit(self.message_credit + messages)
        if self.byte_credit != UNLIMITED:
            self.byte_credit += size
        self.wake()

    def stop(self) -> None:
        """Take away all credit: nothing is delivered until the client grants new credit."""
        self._set_message_credit(0)
        self.byte_credit = 0
        self.epoch += 1

    def cancel(self) -> None:
        """Deliver nothing any more: transfers not completed yet return no credit."""
        self.is_windowed = False
        self.stop()

    def wake(self) -> None:
        """Mark the subscription as ready, if it can take messages; while its queue is being deleted, do nothing."""
        if self.message_credit and self.byte_credit and not self.is_waiting and self.session.can_send:
            if not self.queue.is_deleted:
                self.queue.wake(self)
            elif self.queue.is_gone:
                self.session.subscription_lost(self)

    @property
    def kind(self) -> Hashable:
        """The same for all: a message that AMQP 0-10 cannot represent is declined by every one without a selector."""
        return "AMQP 0-10"

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`; False while the session is detached."""
        return bool(self.message_credit and self.byte_credit) and self.session.transport is not None

    @property
    def publisher(self) -> object:
        """Identifies messages published over its connection."""
        return self.session.publisher

    @property
    def is_blocked(self) -> bool:
        """Whether it has credit, but the connection cannot accept more now."""
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
            transfer = transfer_of(message)
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
        if not message.expires_at:
            if entry.is_redelivered:
                header = message.header_for_redelivery()
        else:
            header = message.header_for_delivery(is_redelivered=entry.is_redelivered, now=session.clock())
        number = session.sent
        if session.is_resumable or size > session.max_plain_bytes or not message.has_body:
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
            return TAKEN  # it was already removed from the queue's ring, and TAKEN_LAST would remove another consumer
        return TAKEN if credit and connection.room > 0 else TAKEN_LAST

    def forget_heads(self) -> None:
        """Clear the cached frame headers: the session has another channel."""
        self._heads.clear()
        self._body_heads.clear()

    def _make_head(self, length: int) -> bytes:
        """The command's frame and the header's frame header."""
        channel = self.session.channel
        command = encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, channel, self.payload)
        head = command + FRAME.pack(_WHOLE, HEADER, FRAME.size + length, 0, TRACK_COMMAND, channel, 0)
        if len(self._heads) < _HEADS_KEPT:
            self._heads[length] = head
        return head

    def _make_body_head(self, length: int) -> bytes:
        """The body's frame header."""
        flags = LAST_SEGMENT | _WHOLE
        head = FRAME.pack(flags, BODY, FRAME.size + length, 0, TRACK_COMMAND, self.session.channel, 0)
        if len(self._body_heads) < _HEADS_KEPT:
            self._body_heads[length] = head
        return head

    def queue_deleted(self) -> None:
        """The queue was deleted: end the session, at once or when this subscription gets credit."""
        if self.message_credit and self.byte_credit:
            self.session.subscription_lost(self)
