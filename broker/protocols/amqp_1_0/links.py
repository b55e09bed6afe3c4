"""Links: one direction each, between a client and a node of the broker.

    IncomingLink     the client sends messages to a target; the broker gives credit (`session`)
    OutgoingLink     the broker sends messages of a source: a consumer of a queue

**Outgoing.** A message is sent when the client has given credit for it, the window of the session is open and the
connection has room. It is settled at once if the client has asked for that (sender settle mode `settled`) or browses
(distribution mode `copy`), and removed from the queue then; otherwise it waits for its outcome.

A message that exceeds the client's max-message-size is not for this link, as one that its selector does not match: it
stays on the queue, for other consumers.

`deliver` handles every outgoing message (`transfers` has its frames). A message that exceeds a frame of the client is
sent as a stream (`output`), whose frames take the session's window.

Source: AMQP 1.0, part "transport", section 2.6 and 2.7; part "messaging", section 3.5.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.message import Buffer
from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_1_0.management import AnswerLink
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections
from qstore.broker.protocols.amqp_1_0.transfers import (
    DOFF,
    FALSE,
    MASK,
    MORE,
    TAG_BYTES,
    TAIL,
    TRUE,
    UINT,
    VBIN8,
    ZERO,
    transfer_frames,
    transfer_heads,
)
from qstore.broker.protocols.consumer import SelectorCheck, SendingConsumer
from qstore.broker.protocols.message import native_of
from qstore.broker.protocols.output import (
    CONVERSION_OF_HEADER,
    COST_OF_CONVERSION,
    COST_OF_MESSAGE,
    Stream,
)
from qstore.formats.amqp_1_0.composites import encode_composite
from qstore.formats.amqp_1_0.frames import AMQP, FRAME
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.protocols.amqp_1_0.addresses import Node
    from qstore.broker.protocols.amqp_1_0.session import Session
    from qstore.broker.protocols.amqp_1_0.transactions import OpenTransaction, Retired
    from qstore.formats.amqp_1_0.composites import Composite

CREDIT: Final = 1_000
"""Messages that a client may send on a link before the broker gives it more credit."""

MAX_UNSETTLED: Final = 262_144
"""Messages that one session may have unsettled, whatever the credit of its links."""

NO_ANNOTATIONS: Final = "message-annotations of the outcome modified are implemented if their names begin with x-"

ANY_SIZE: Final = 1 << 62
"""A maximum size of messages that none has: the client has set no limit."""

SETTLED: Final = 1  # sender-settle-mode

_pack_frame: Final = FRAME.pack
_pack_tail: Final = TAIL.pack
_DOFF: Final = DOFF
_MASK: Final = MASK
_UINT: Final = UINT
_VBIN8: Final = VBIN8
_TAG_BYTES: Final = TAG_BYTES
_ZERO: Final = ZERO
_TRUE: Final = TRUE
_FALSE: Final = FALSE


def has_foreign_annotations(state: Composite) -> bool:
    """Whether an outcome sets message-annotations whose names are not for extensions."""
    given = state.fields.get("message_annotations") if state.name == "modified" else None
    return any(not isinstance(key.value, str) or not key.value.startswith("x-") for key, _ in given or ())


class IncomingLink:
    """A link on which the client sends messages.

    Args:
        session: its session.
        handle, name: of the client.
        node: its target; None if each message has its own.
        address: the address of its target, as the client gave it or the broker made it.

    Attributes:
        session, handle, name, node, address: as above.
        delivery_count: how many messages it has had, from the client's first number on.
        credit: messages that the client may still send.
        is_partial: whether a message is incomplete.
        owned: queues that end with it.
        is_control: whether its target is the coordinator of transactions.
        is_management: whether its target is the node for management.
        state: that of the message that has begun last, until it is complete.
    """

    __slots__ = (
        "address", "credit", "delivery_count", "handle", "is_control", "is_management", "is_partial", "name", "node",
        "owned", "session", "state",
    )  # fmt: skip

    def __init__(self, session: Session, handle: int, name: str, node: Node | None, address: str) -> None:
        self.session, self.handle, self.name, self.node, self.address = session, handle, name, node, address
        self.delivery_count = self.credit = 0
        self.is_partial = self.is_control = self.is_management = False
        self.state: object = None
        self.owned: list[Queue] = []


class Delivery:
    """A message that was sent and waits for its outcome.

    Attributes:
        link: its link.
        entry: its place on the queue of the link.
        retired: what becomes of it with a transaction; None if it is part of none.
    """

    __slots__ = ("entry", "link", "retired")

    def __init__(self, link: OutgoingLink, entry: Entry) -> None:
        self.link, self.entry = link, entry
        self.retired: Retired | None = None


class OutgoingLink(SendingConsumer):
    """A link on which the broker sends messages.

    Args:
        session: its session.
        handle, name: of the client.
        queue: the queue that it consumes.
        acquires: whether it acquires messages, or browses them.
        settles: whether messages are settled when they are sent.
        selector: decides which messages it gets; None for all.
        no_local: whether it gets no messages that were published over its own connection.
        max_message: bytes of a message that the client accepts. Larger ones are left to other consumers.
        default: see below.
        arguments: those of its subscription.

    Attributes:
        session, handle, name: as above.
        delivery_count: messages sent, and credit that was drained.
        credit: messages that the client has still asked for.
        is_draining: whether it wants what there is, and no more credit.
        is_attached: whether it may send.
        default: the outcome of messages that are settled without one.
        owned: queues that end with it.
        is_durable: whether its queue is a durable subscription, which ends when the client closes the link.
        delivered: messages sent.
        transaction: the one in which it acquires messages; None for none.
        unsettled: the numbers of its deliveries that are not settled, in ascending order.
    """

    __slots__ = (
        "_head", "_head_with_more", "_kind", "_max_message", "_selector", "credit", "default", "delivered",
        "delivery_count", "handle", "is_attached", "is_draining", "is_durable", "name", "no_local", "owned", "session",
        "settles", "transaction", "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        handle: int,
        name: str,
        queue: Queue,
        *,
        acquires: bool,
        settles: bool,
        selector: SelectorCheck | None,
        no_local: bool,
        max_message: int,
        default: Composite,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        super().__init__(name, queue, acquires=acquires, is_accepting=not settles, arguments=arguments)
        self.session, self.handle, self.name, self.default = session, handle, name, default
        self.settles, self.no_local, self._selector = settles, no_local, selector
        self._max_message = max_message
        self.is_windowed = False
        self.delivery_count = self.credit = self.delivered = 0
        self.is_attached = True
        self.is_draining = self.is_durable = False
        self.owned: list[Queue] = []
        self.transaction: OpenTransaction | None = None
        self.unsettled: dict[int, None] = {}
        self._head, self._head_with_more = transfer_heads(handle)
        text = None if selector is None else selector.text
        self._kind = "AMQP 1.0", text, session.connection.publisher if no_local else None, max_message

    @property
    def kind(self) -> Hashable:
        """Equal for links that decline the same messages."""
        return self._kind

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`."""
        return self.credit > 0

    @property
    def is_blocked(self) -> bool:
        """Whether it has credit, but the connection or the session cannot take more now."""
        return self.credit > 0 and (not self.session.can_send or self.session.connection.room <= 0)

    def wake(self) -> None:
        """Mark it as ready, if it can take messages."""
        if self.is_waiting or self.credit <= 0 or not self.is_attached or not self.session.can_send:
            return
        if not self.queue.is_deleted:
            self.queue.wake(self)

    # ---- messages ----

    def deliver(self, entry: Entry) -> int:
        """Send a message, if there is credit for it. Returns as `Consumer.deliver` does."""
        selector, session = self._selector, self.session
        connection = session.connection
        if self.credit <= 0 or connection.room <= 0 or not session.can_send or not self.is_attached:
            return REFUSED
        if selector is None:
            return self._deliver(entry)
        result = self._deliver(entry) if selector.admits(entry) else NOT_FOR_ME
        selector.answered(entry, connection, is_refused=result == REFUSED)
        return result

    def _deliver(self, entry: Entry) -> int:
        session = self.session
        connection = session.connection
        message = native_of(entry.message, SectionMessage, as_sections)
        if message is not entry.message:  # it was converted, or cannot be
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * (
                0 if message is None else len(message.header)
            )
            connection.has_output()  # renews its room
        if message is None or (self.no_local and message.handling.publisher is connection.publisher):
            return NOT_FOR_ME
        returns = self.queue.returns_of(entry) if entry.is_redelivered else 0
        sections = message.delivered_header(
            is_redelivered=entry.is_redelivered,
            returns=returns,
            now=session.broker.clock(),
            is_annotated=connection.is_emulating,
        )
        body = message.body
        size = len(sections) + len(body)
        if size > self._max_message:
            return NOT_FOR_ME
        number = session.next_delivery
        session.next_delivery = number + 1
        head, settled = self._head, _TRUE if self.settles else _FALSE
        tail = _pack_tail(_UINT, number & _MASK, _VBIN8, _TAG_BYTES, number, _ZERO, settled)
        transaction = self.transaction
        if transaction is not None:
            head, tail = b"", self._transactional(transaction, number, is_more=False)
        frame = FRAME.size + len(head) + len(tail) + size
        if frame <= connection.max_frame and isinstance(body, bytes):
            start = _pack_frame(frame, _DOFF, AMQP, session.channel)
            connection.output += (start, head, tail, sections, body)
            connection.frames_sent += 1
            session.sent_frame()
        else:
            with_more = self._head_with_more + tail + MORE
            if transaction is not None:
                with_more = self._transactional(transaction, number, is_more=True)
            frames = transfer_frames(session.channel, connection.max_frame, head + tail, with_more, sections, body)
            session.stream(self, frames)
        connection.messages_sent += 1
        connection.room -= size + COST_OF_MESSAGE
        connection.has_output()
        self.delivered += 1
        self.delivery_count = (self.delivery_count + 1) & _MASK
        self.credit -= 1
        if self.settles:
            if transaction is not None and self.acquires:
                session.transactions.accept_later(transaction, self.queue, entry)
                if session.is_full:
                    session.can_send = False
            elif self.acquires:
                session.dequeue(self.queue, entry)
        else:
            if transaction is not None:
                transaction.acquire(number, session.unsettled)
            session.unsettled[number] = Delivery(self, entry)
            self.unsettled[number] = None
            if len(session.unsettled) >= MAX_UNSETTLED:
                session.can_send = False
        return TAKEN if self.credit > 0 and connection.room > 0 and session.can_send else TAKEN_LAST

    def _transactional(self, transaction: OpenTransaction, number: int, *, is_more: bool) -> bytes:
        """The performative of a message that is acquired in a transaction."""
        fields = {
            "handle": self.handle,
            "delivery_id": number & _MASK,
            "delivery_tag": number.to_bytes(_TAG_BYTES, "big"),
            "message_format": 0,
            "settled": self.settles,
            "more": is_more or None,
            "state": transaction.state_of(),
        }
        return encode_composite("transfer", fields)

    def queue_deleted(self) -> None:
        """The queue was deleted: detach the link, unless it has ended meanwhile."""
        if self.is_attached:
            self.session.link_lost(self)


Link = IncomingLink | OutgoingLink | AnswerLink


class TransferStream(Stream):
    """The frames of a message that does not fit one, as far as the session's window is open.

    Args:
        session: the session.
        link: the link.
    """

    __slots__ = ("_session", "link")

    def __init__(self, session: Session, link: OutgoingLink) -> None:
        super().__init__()
        self._session, self.link = session, link

    @property
    def is_sent(self) -> bool:
        """Whether everything was sent."""
        return not self._waiting

    @property
    def is_over(self) -> bool:
        """As `Stream.is_over`; also if nothing more can be sent now."""
        return not self._waiting or self._session.window <= 0

    def take(self, output: list[Buffer], max_bytes: int) -> int:
        """As `Stream.take`."""
        waiting, session = self._waiting, self._session
        taken = 0
        while waiting and session.window > 0 and taken < max_bytes:
            frame: Any = next(waiting[0], None)
            if frame is None:
                waiting.popleft()
                continue
            output += frame
            self.frames += 1
            session.sent_frame()
            taken += sum(map(len, frame))
        return taken
