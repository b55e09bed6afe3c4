"""Links: one direction each, between a client and a node of the broker.

    IncomingLink     the client sends messages to a target; the broker gives credit (`session`)
    OutgoingLink     the broker sends messages of a source: a consumer of a queue

**Outgoing.** A message is sent when the client has given credit for it, the window of the session is open and the
connection has room. It is settled at once if the client has asked for that (sender settle mode `settled`) or browses
(distribution mode `copy`), and removed from the queue then; otherwise it waits for its outcome.

A message that exceeds the client's max-message-size is not for this link, as one that its selector does not match: it
stays on the queue, for other consumers.

`deliver` handles every outgoing message (`transfers` has its frames), `deliver_run` many that differ only in their
bodies: these stay together until something else than an acceptance of them comes. If they came over another protocol,
what they have in common is converted once, and each body becomes a data section. Those of a stream get their offsets
where two conversions with different ones differ; messages with small ones, which AMQP 1.0 shortens, are sent singly. A
message that exceeds a frame of the client is sent as a stream (`output`), whose frames take the session's window.

Source: AMQP 1.0, part "transport", section 2.6 and 2.7; part "messaging", section 3.5.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import Buffer, Content, Message
from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream, StreamRun
from qstore.broker.model.queues.stream_log import place_of_number, with_sentinel
from qstore.broker.model.run import MessageRun, RunEntry
from qstore.broker.protocols.amqp_1_0.fetched import QueuelessLink
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections, run_as_sections, template_as_sections
from qstore.broker.protocols.amqp_1_0.resuming import LINK_DETACH, RECEIVED, Resumption, Tracked, rest_at
from qstore.broker.protocols.amqp_1_0.transfers import (
    DOFF,
    FALSE,
    ID_AT,
    MASK,
    MORE,
    TAG_AT,
    TAG_BYTES,
    TAIL,
    TRUE,
    UINT,
    VBIN8,
    ZERO,
    transfer_frames,
    transfer_heads,
)
from qstore.broker.protocols.consumer import HeldRun, SelectorCheck, SendingConsumer, with_numbers
from qstore.broker.protocols.message import native_of
from qstore.broker.protocols.output import (
    CONVERSION_OF_HEADER,
    COST_OF_CONVERSION,
    COST_OF_MESSAGE,
)
from qstore.broker.protocols.output import Stream as OutputStream
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.frames import AMQP, FRAME, encode_frame
from qstore.formats.kernels import write_deliveries
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.federation.relay import Relay
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.protocols.amqp_1_0.addresses import Node
    from qstore.broker.protocols.amqp_1_0.session import Session
    from qstore.broker.protocols.amqp_1_0.transactions import OpenTransaction, Retired

CREDIT: Final = 1_000
"""Messages that a client may send on a link before the broker gives it more credit."""

MAX_UNSETTLED: Final = 262_144
"""Messages that one session may have unsettled, whatever the credit of its links."""

NO_ANNOTATIONS: Final = "message-annotations of the outcome modified are implemented if their names begin with x-"

ANY_SIZE: Final = 1 << 62
"""A maximum size of messages that none has: the client has set no limit."""

SETTLED: Final = 1  # sender-settle-mode

_MAX_SHORT: Final = 127  # a long up to that has an encoding of its own, of two bytes

_COST_OF_RESUMED: Final = 2_000
"""Bytes of room for a delivery that is resumed, and settled if the client has an outcome: some 130 take 8 ms."""

_TAG_BITS: Final = 24  # of the tags of a link that can be resumed, by which they differ from earlier ones

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
        ends: the addresses of its source and its target, for management.
        delivery_count: how many messages it has had, from the client's first number on.
        first_count: that number.
        credit: messages that the client may still send.
        is_partial: whether a message is incomplete.
        owned: queues that end with its target.
        policy: the number of its target's expiry policy, if it has any such queues (`resuming`).
        is_control: whether its target is the coordinator of transactions.
        is_management: whether its target is the node for management.
        state: that of the message that has begun last, until it is complete.
        settles_first: whether the broker settles messages: the receiver settles first.
        tracked: tag -> message that is not settled, if the sender settles, or the link can be resumed.
        resumption: for a link that can be resumed; else None.
        relay: passes its messages on, if its target is in a domain; else None.
        kept: its target, if that is an auto-delete exchange, or a queue with a lifetime: it stays as long as the link;
            else None.
    """

    __slots__ = (
        "address", "credit", "delivery_count", "ends", "first_count", "handle", "is_control", "is_management",
        "is_partial", "kept", "name", "node", "owned", "policy", "relay", "resumption", "session", "settles_first",
        "state", "tracked",
    )  # fmt: skip

    def __init__(self, session: Session, handle: int, name: str, node: Node | None, address: str) -> None:
        self.session, self.handle, self.name, self.node, self.address = session, handle, name, node, address
        self.ends = ("", address)
        self.delivery_count = self.first_count = self.credit = 0
        self.is_partial = self.is_control = self.is_management = False
        self.state: object = None
        self.owned: list[Queue] = []
        self.policy = LINK_DETACH
        self.settles_first = True
        self.tracked: dict[bytes, Tracked] = {}
        self.resumption: Resumption | None = None
        self.relay: Relay | None = None
        self.kept: Queue | Exchange | None = None

    # ---- as a link that is relayed ----

    def relay_has_room(self) -> None:
        """As `RelayedLink.relay_has_room`."""
        self.session.look_for_credit(self)

    def relay_settles(self, number: int, outcome: Composite) -> None:
        """As `RelayedLink.relay_settles`."""
        self.session.settle_relayed(number, outcome)

    def relay_blocked(self, *, is_blocked: bool) -> None:
        """As `RelayedLink.relay_blocked`."""
        if is_blocked:
            self.session.connection.pause()
        else:
            self.session.connection.unpause()

    def relay_failed(self, error: Exception) -> None:
        """As `RelayedLink.relay_failed`."""
        self.session.fail_relayed(self, error)

    @property
    def is_tracked(self) -> bool:
        """Whether it has `tracked` messages."""
        return not self.settles_first or self.resumption is not None


class Delivery:
    """A message that was sent and waits for its outcome.

    Attributes:
        link: its link.
        entry: its place on the queue of the link.
        retired: what becomes of it with a transaction; None if it is part of none.
        tag: the tag of one that was resumed; None for that of its number.
    """

    __slots__ = ("entry", "link", "retired", "tag")

    def __init__(self, link: OutgoingLink, entry: Entry, tag: bytes | None = None) -> None:
        self.link, self.entry, self.tag = link, entry, tag
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
        ends: the addresses of its source and its target, for management.
        delivery_count: messages sent, and credit that was drained.
        credit: messages that the client has still asked for.
        is_draining: whether it wants what there is, and no more credit.
        is_attached: whether it may send.
        default: the outcome of messages that are settled without one.
        owned: queues that end with its source.
        policy: the number of its source's expiry policy, if it has any such queues (`resuming`).
        is_durable: whether its queue is a durable subscription, which ends when the client closes the link.
        keeps_offset: the name under which a stream keeps its offset, until the client closes it; empty for none.
        delivered: messages sent.
        transaction: the one in which it acquires messages; None for none.
        unsettled: the numbers of its deliveries that are not settled, in ascending order.
        resumption: for a link that can be resumed; else None.
    """

    __slots__ = (
        "_head", "_head_with_more", "_kind", "_max_message", "_placed", "_selector", "_stream", "_tags", "credit",
        "default", "delivered", "delivery_count", "ends", "handle", "is_attached", "is_draining", "is_durable",
        "keeps_offset", "name", "no_local", "owned", "policy", "resumption", "session", "settles", "transaction",
        "unsettled",
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
        self.ends = (queue.name, "")
        self.delivery_count = self.credit = self.delivered = 0
        self.is_attached = True
        self.is_draining = self.is_durable = False
        self.keeps_offset = ""
        self.owned: list[Queue] = []
        self.policy = LINK_DETACH
        self.transaction: OpenTransaction | None = None
        self.unsettled: dict[int, None] = {}
        self.resumption: Resumption | None = None
        self._stream = queue if isinstance(queue, Stream) else None
        self._placed: tuple[Message | None, int] = (None, 0)  # the last run of a stream: `_offset_from_end`
        self._tags = 0  # added to the number of a delivery, its tag
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
        if self.resumption is not None and not self._resume(self.resumption):
            return
        if not self.queue.is_deleted:
            self.queue.wake(self)

    # ---- resumed deliveries ----

    def resume(self, resumption: Resumption) -> None:
        """Make it a link that can be resumed: its tags are not those of an earlier session."""
        self.resumption = resumption
        self._tags = secrets.randbits(_TAG_BITS) << 8 * _TAG_BYTES - _TAG_BITS

    def tag_of(self, number: int, delivery: Delivery) -> bytes:
        """The tag of a delivery."""
        return delivery.tag or (self._tags + number).to_bytes(_TAG_BYTES, "big")

    def _resume(self, resumption: Resumption) -> bool:
        """Resume deliveries, as far as there is credit. Returns whether new messages may follow."""
        session, waiting = self.session, resumption.to_send
        while waiting and self.credit > 0 and session.can_send and session.connection.room > 0 and self.is_attached:
            self._resume_one(resumption, *waiting.popleft())
        if waiting and self.is_attached and session.connection.room <= 0:
            session.connection.has_output()  # renews its room
            session.resume_later()
        can_take = self.is_attached and self.credit > 0 and session.can_send
        return not waiting and not resumption.is_partial and can_take

    def _resume_one(self, resumption: Resumption, tag: bytes, state: Composite | None) -> None:
        session, connection = self.session, self.session.connection
        entry: Entry = resumption.waiting.pop(tag)
        number = session.next_delivery
        session.next_delivery = number + 1
        fields: dict[str, Any] = {
            "handle": self.handle,
            "delivery_id": number & _MASK,
            "delivery_tag": tag,
            "message_format": 0,
            "settled": False,
            "resume": True,
        }
        sections: bytes = b""
        body: Content = b""
        has_outcome = state is not None and state.name != RECEIVED
        is_too_large = False
        if has_outcome:
            fields["state"] = state
        else:
            message = native_of(entry.message, SectionMessage, as_sections)
            assert message is not None, "it was delivered before"
            sections = self._sections(message, entry)
            body = message.body
            connection.room -= len(sections) + len(body)
            is_too_large = len(sections) + len(body) > self._max_message
            if is_too_large:
                sections = body = b""
                fields |= {"settled": True, "aborted": True}
            elif state is not None:
                sections, body, begin = _rest(sections, body, state.fields)
                fields["state"] = Composite(RECEIVED, begin)
        last = connection.encoded("transfer", fields)
        size = len(sections) + len(body)
        connection.messages_sent += 1
        connection.room -= _COST_OF_RESUMED
        self.delivery_count = (self.delivery_count + 1) & _MASK
        self.credit -= 1
        if is_too_large:
            connection.resumable.give_back(self.queue, [entry])
        else:
            session.unsettled[number] = Delivery(self, entry, tag)
            self.unsettled[number] = None
        if FRAME.size + len(last) + size <= connection.max_frame and isinstance(body, bytes):
            connection.send_frame(encode_frame(session.channel, last + sections + body))
            session.sent_frame()
        else:
            with_more = encode_composite("transfer", {**fields, "more": True})
            frames = transfer_frames(session.channel, connection.max_frame, last, with_more, sections, body)
            session.stream(self, frames)
        if has_outcome:
            assert state is not None
            session.settle_resumed(number, state)
        if session.is_full:
            session.can_send = False

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
        sections = self._sections(message, entry)
        body = message.body
        size = len(sections) + len(body)
        if size > self._max_message:
            return NOT_FOR_ME
        number = session.next_delivery
        session.next_delivery = number + 1
        head, settled = self._head, _TRUE if self.settles else _FALSE
        tail = _pack_tail(_UINT, number & _MASK, _VBIN8, _TAG_BYTES, self._tags + number, _ZERO, settled)
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
            if len(session.unsettled) + session.held_runs.count >= session.max_unsettled:
                session.can_send = False
        return TAKEN if self.credit > 0 and connection.room > 0 and session.can_send else TAKEN_LAST

    def _sections(self, message: SectionMessage, entry: Entry) -> bytes:
        """The sections before the body of a message."""
        was_acquired, returns, counted = entry.is_redelivered, int(entry.is_redelivered), self.queue.returns
        if counted and (count := counted.get(entry.position)) is not None:
            was_acquired, returns = True, max(count, returns)
        session = self.session
        return message.delivered_header(
            was_acquired=was_acquired, returns=returns, now=session.broker.clock(),
            is_annotated=session.connection.is_emulating,
        )  # fmt: skip

    # ---- messages in runs ----

    def room_for(self, run: MessageRun) -> int:
        """As `Consumer.room_for`."""
        session, bodies = self.session, run.bodies
        connection = session.connection
        if connection.room <= 0 or not session.can_send or not self.is_attached:
            return 0
        if run.template.expires_at or not bodies.is_even:
            return 0
        if not self.acquires or self.transaction is not None:
            return 0
        if self.no_local and run.template.handling.publisher is connection.publisher:
            return 0
        found = run_as_sections(run)
        if found is None:
            return 0
        message, lead = found
        if self._stream is not None and not self._has_offsets(self._stream, run.template, message):
            return 0
        size = len(self._sections_of_run(message, is_redelivered=True)) + len(lead) + bodies.largest
        if size > self._max_message or FRAME.size + len(self._head) + TAIL.size + size > connection.max_frame:
            return 0
        if self._selector is not None and not self._selector.admits_run(run, connection):
            return 0
        most = min(self.credit, session.window, _MASK + 1 - (session.next_delivery & _MASK))
        if not self.settles:
            most = min(most, session.max_unsettled - session.unsettled_count)
        return min(most, -(-connection.room // (run.largest + COST_OF_MESSAGE)))

    @property
    def numbers_runs(self) -> bool:
        """As `Reader.numbers_runs`."""
        return True

    def _has_offsets(self, stream: Stream, template: Message, message: SectionMessage) -> bool:
        """Whether messages of a run of a stream can get their offsets: no selector examines these, and all are long.

        Args:
            stream: the stream.
            template: that of the run.
            message: the same in its 1.0 form.
        """
        if self._selector is not None or stream.readers[self].next_offset <= _MAX_SHORT:
            return False
        if self._placed[0] is not template:
            self._placed = template, self._offset_from_end(template, message)
        return self._placed[1] > 0

    def _offset_from_end(self, template: Message, message: SectionMessage) -> int:
        """How many bytes before the end of the sections of a template its offset begins; 0 if it has none."""
        try:
            other = template_as_sections(with_sentinel(template))
        except InvalidArgumentError:
            return 0
        if other is None:
            return 0
        one = self._sections_of_run(message, is_redelivered=False)
        place = place_of_number(one, self._sections_of_run(other, is_redelivered=False))
        return len(one) - place if place >= 0 else 0

    def _sections_of_run(self, message: SectionMessage, *, is_redelivered: bool) -> bytes:
        """The sections before the bodies of a run, of whose messages no further returns are known."""
        session = self.session
        return message.delivered_header(
            was_acquired=is_redelivered, returns=int(is_redelivered), now=session.broker.clock(),
            is_annotated=session.connection.is_emulating,
        )  # fmt: skip

    def deliver_run(self, run: RunEntry) -> int:
        """As `Consumer.deliver_run`."""
        session, messages, count = self.session, run.run, run.count
        connection, bodies = session.connection, messages.bodies
        found = run_as_sections(messages)
        assert found is not None, "room_for has found it"
        message, lead = found
        if message is not messages.template:
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * len(message.header)
        sections = self._sections_of_run(message, is_redelivered=run.is_redelivered) + lead
        number, settled = session.next_delivery, _TRUE if self.settles else _FALSE
        session.next_delivery = number + count
        first_id, head = number & _MASK, self._head
        size = FRAME.size + len(head) + TAIL.size + len(sections) + bodies.largest
        tag = self._tags + number
        tail = _pack_tail(_UINT, first_id, _VBIN8, _TAG_BYTES, tag, _ZERO, settled)
        before = b"".join((_pack_frame(size, _DOFF, AMQP, session.channel), head, tail, sections))
        tail_at = FRAME.size + len(head)
        frames = write_deliveries(
            before, tail_at + TAG_AT, tag, (), bodies.data, bodies.at, bodies.starts, bodies.gap, run.first, count,
            b"", tail_at + ID_AT, first_id,
        )  # fmt: skip
        if isinstance(run, StreamRun) and run.number_at >= 0:
            at = len(before) - len(lead) - self._placed[1]
            frames = with_numbers(frames, at, run.position - 1, bodies, run.first, count)
        connection.output.append(frames)
        connection.frames_sent += count
        connection.messages_sent += count
        session.sent_frames(count)
        connection.room -= run.size + count * COST_OF_MESSAGE
        connection.has_output()
        self.delivered += count
        self.delivery_count = (self.delivery_count + count) & _MASK
        self.credit -= count
        if self.settles:
            session.dequeue_run(self.queue, run)
        else:
            session.held_runs.add(HeldRun(self.queue, run, self, number))
            if session.is_full:
                session.can_send = False
        return TAKEN if self.credit > 0 and connection.room > 0 and session.can_send else TAKEN_LAST

    def _transactional(self, transaction: OpenTransaction, number: int, *, is_more: bool) -> bytes:
        """The performative of a message that is acquired in a transaction."""
        fields = {
            "handle": self.handle,
            "delivery_id": number & _MASK,
            "delivery_tag": (self._tags + number).to_bytes(_TAG_BYTES, "big"),
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

    def fail(self, error: Exception) -> None:
        """As `Consumer.fail`: detach the link."""
        if self.is_attached:
            self.session.fail_link(self.handle, error)


def _rest(sections: bytes, body: Content, received: dict[str, Any]) -> tuple[bytes, Content, dict[str, int]]:
    """What a client has not received of a message, and where that begins: all of a very large one."""
    section, offset = received["section_number"], received["section_offset"]
    if isinstance(body, bytes):
        whole = sections + body
        at = rest_at(whole, section, offset)
        if at:
            return b"", whole[at:], {"section_number": section, "section_offset": offset}
    return sections, body, {"section_number": 0, "section_offset": 0}


Link = IncomingLink | OutgoingLink | QueuelessLink


class TransferStream(OutputStream):
    """The frames of a message that does not fit one, as far as the session's window is open.

    Args:
        session: the session.
        link: the link.
    """

    __slots__ = ("_session", "link")

    def __init__(self, session: Session, link: OutgoingLink | QueuelessLink) -> None:
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
