"""The client's end of a connection: SASL, open, sessions, links in both directions; a state machine without I/O.

    client                              broker
    AMQP 3 1 0 0                  ->                           left out with `choose_mechanism` None, and so is SASL
                                  <-    AMQP 3 1 0 0, sasl-mechanisms
    sasl-init                     ->
                (sasl-challenge, sasl-response as often as the mechanism requires)
                                  <-    sasl-outcome
    AMQP 0 1 0 0, open            ->
                                  <-    AMQP 0 1 0 0, open                           `on_open`
    begin                         ->
                                  <-    begin                                        `SessionOwner.on_begun`
    attach                        ->
                                  <-    attach; a refused link is detached at once   `LinkOwner.on_attached`, `on_ended`

**Numbers.** Each end numbers its deliveries in a session from 0 on. Here they are not limited to the 32 bits that they
have on the wire. What was sent settled has a number, too, but gets no outcome.

**Credit.** A `SendingLink` sends while `can_send` is true: the broker has given credit, the session's window is open,
and nothing waits for it. A message whose frames exceed the window waits, and is sent as the window opens. A
`ReceivingLink` sets what the broker may send (`set_credit`); more than that ends the connection.

**Many messages.** `SendingLink.transfer_many` sends one message several times, and encodes it once. Messages that are
received and differ only in their bodies go together to the `run_owner` of their link, if it has one.

**Outcomes.** The broker's disposition for what was sent goes to `SessionOwner.on_outcome`, that for what was received
to `on_settled`.

Source: AMQP 1.0, parts "transport", "messaging" and "security".
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from qstore import __version__
from qstore.broker.model.message import Buffer, Content
from qstore.broker.protocols.amqp_1_0.assembly import FrameAssembler, link_of
from qstore.broker.protocols.amqp_1_0.errors import ConditionError, Ends, condition_of, error_value
from qstore.broker.protocols.amqp_1_0.message import is_one_section
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
    difference,
    transfer_frames,
    transfer_heads,
)
from qstore.broker.protocols.assembly import Budget, ProtocolError
from qstore.broker.protocols.connection import NORMAL, Connection, Phase
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.table import layer_of
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import (
    CHOICES,
    OUTCOMES,
    PERFORMATIVES,
    SASL_FRAMES,
    Composite,
    encode_composite,
)
from qstore.formats.amqp_1_0.frames import (
    AMQP,
    AMQP_HEADER,
    FRAME,
    HEARTBEAT_FRAME,
    MIN_MAX_FRAME,
    SASL,
    SASL_HEADER,
    encode_frame,
)
from qstore.formats.amqp_1_0.neutral import value_of
from qstore.formats.amqp_1_0.sections import data_section, split_sections
from qstore.formats.amqp_1_0.values import Amqp10Error, Value
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import typed_value
from qstore.formats.wording import printable

MAX_FRAME: Final = 131_072
"""Maximum size of a frame that is accepted, as by the broker."""

WINDOW: Final = 4_096
"""Transfer frames that the broker may send before the window is renewed."""

SENDER, RECEIVER = False, True
"""The roles of a link's ends."""

UNSETTLED, SETTLED = 0, 1
"""Sender settle modes."""

FIRST, SECOND = 0, 1
"""Receiver settle modes: the receiver settles, or the sender after it."""

_TOP_UPS: Final = 4  # how often credit is given for each capacity of messages
_MAX_CHANNEL: Final = 255
_MAX_HANDLE: Final = 65_535
_UNLIMITED: Final = (1 << 31) - 1


class SessionOwner(Protocol):
    """What a session is for."""

    def on_begun(self) -> None:
        """The session has begun."""

    def on_ended(self, error: Composite | None) -> None:
        """It has ended, with the broker's error; or its connection has, which reports why itself."""

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """Messages that were sent are settled, with this outcome; None for none."""

    def on_settled(self, first: int, last: int) -> None:
        """The broker has settled messages that were received."""


class LinkOwner(Protocol):
    """What a link is for."""

    def on_attached(self) -> None:
        """The broker has attached it: its `answer` has what it really is."""

    def on_ended(self, error: Composite | None) -> None:
        """The broker has refused it, or detached it, by itself or as it was asked to."""

    def on_credit(self) -> None:
        """Its credit has changed; a receiving link may be drained."""

    def on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        """A message was received, with its number in the session."""


class RunOwner(Protocol):
    """Hears of messages that differ only in their bodies."""

    def on_messages(self, first: int, bodies: Bodies, *, is_settled: bool) -> None:
        """Messages were received.

        Args:
            first: the number of the first in the session; those of the others follow.
            bodies: their data sections, all of one size.
            is_settled: whether they are settled.
        """


class ClientLink:
    """A link.

    Attributes:
        session: its session.
        handle, name: its own.
        role: SENDER or RECEIVER.
        owner: hears what happens.
        delivery_count, credit: as the specification has them.
        is_attached: whether both ends have attached it, and none has detached it.
        answer: the fields of the broker's attach.
    """

    def __init__(self, session: ClientSession, handle: int, name: str, role: bool, owner: LinkOwner) -> None:
        self.session, self.handle, self.name, self.role, self.owner = session, handle, name, role, owner
        self.delivery_count = self.credit = 0
        self.is_attached = self.is_detaching = False
        self.answer: dict[str, Any] = {}

    def detach(self, *, is_closed: bool = True) -> None:
        """Close it, or detach it so that a durable subscription stays; the owner hears when the broker has."""
        if not self.is_detaching:
            self.is_attached, self.is_detaching = False, True
            self.session.send("detach", handle=self.handle, closed=is_closed)


class SendingLink(ClientLink):
    """A link on which messages are sent."""

    def __init__(self, session: ClientSession, handle: int, name: str, owner: LinkOwner) -> None:
        super().__init__(session, handle, name, SENDER, owner)
        self._head, self._head_with_more = transfer_heads(handle)

    @property
    def can_send(self) -> bool:
        """Whether a message may be sent now."""
        return self.is_attached and self.credit > 0 and self.session.has_window

    def transfer(
        self, sections: bytes, body: Content, *, is_settled: bool = False, state: Composite | None = None
    ) -> int:
        """Send a message; `can_send` is true.

        Args:
            sections: its first sections.
            body: the others.
            is_settled: whether it needs no outcome.
            state: its state, for a transaction.

        Returns:
            its number.
        """
        session = self.session
        connection = session.connection
        number = session.next_number
        session.next_number = number + 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        self.credit -= 1
        connection.messages_sent += 1
        if state is None:
            tail = TAIL.pack(UINT, number & MASK, VBIN8, TAG_BYTES, number, ZERO, TRUE if is_settled else FALSE)
            last, with_more = self._head + tail, self._head_with_more + tail + MORE
        else:
            last, with_more = (self._with_state(number, state, is_settled=is_settled, more=more) for more in (0, 1))
        frames = transfer_frames(session.channel, connection.max_frame, last, with_more, sections, body)
        session.send_frames(frames)
        return number

    def fits(self, content: bytes) -> bool:
        """Whether a message fits one frame, so that it can be sent by `transfer_many`."""
        return FRAME.size + len(self._head) + TAIL.size + len(content) <= self.session.connection.max_frame

    @property
    def room(self) -> int:
        """How many messages of one frame may be sent now."""
        return min(self.credit, self.session.window) if self.is_attached else 0

    def transfer_many(self, content: bytes, count: int, *, is_settled: bool) -> int:
        """Send a message several times: as many as there is `room` for, at most.

        Args:
            content: all its sections; it `fits`.
            count: how often, 1 at least.
            is_settled: whether they need no outcome.

        Returns:
            the number of the first.
        """
        session = self.session
        first = session.next_number
        session.next_number = first + count
        self.delivery_count = (self.delivery_count + count) & MASK
        self.credit -= count
        session.connection.messages_sent += count
        size = FRAME.size + len(self._head) + TAIL.size + len(content)
        head = FRAME.pack(size, DOFF, AMQP, session.channel) + self._head
        flag, pack = TRUE if is_settled else FALSE, TAIL.pack
        tails = [pack(UINT, each & MASK, VBIN8, TAG_BYTES, each, ZERO, flag) for each in range(first, first + count)]
        session.put_frames(b"".join((head, (content + head).join(tails), content)), count)
        return first

    def _with_state(self, number: int, state: Composite, *, is_settled: bool, more: int) -> bytes:
        fields = {
            "handle": self.handle, "delivery_id": number & MASK, "delivery_tag": number.to_bytes(TAG_BYTES, "big"),
            "message_format": 0, "settled": is_settled, "more": bool(more) or None, "state": state,
        }  # fmt: skip
        return encode_composite("transfer", fields)


class ReceivingLink(ClientLink):
    """A link on which messages are received.

    Attributes:
        run_owner: hears of messages that differ only in their bodies; None: the owner hears of each.
        is_draining: whether the broker was asked for what there is, and to give the rest of the credit back.
    """

    def __init__(self, session: ClientSession, handle: int, name: str, owner: LinkOwner) -> None:
        super().__init__(session, handle, name, RECEIVER, owner)
        self.run_owner: RunOwner | None = None
        self.is_draining = False
        self._received = self._allowed = 0  # messages that have come; the most that the broker may have sent

    @property
    def allowed(self) -> int:
        """How many messages may still come."""
        return self._allowed - self._received

    def begins(self, count: int = 1) -> None:
        """Messages begin. Raises ConditionError: they exceed all credit, also what was taken back meanwhile."""
        self._received += count
        self.delivery_count = (self.delivery_count + count) & MASK
        self.credit = max(0, self.credit - count)
        if self._received > self._allowed:
            text = "more messages than the credit of the link allows"
            raise ConditionError(Condition.TRANSFER_LIMIT_EXCEEDED, text, Ends.CONNECTION)

    @property
    def is_confirmed(self) -> bool:
        """Whether the broker confirms outcomes: it settles after the receiver."""
        return bool(self.answer.get("rcv_settle_mode") == SECOND)

    def is_credit_due(self, free: int, most: int) -> bool:
        """Whether to give credit for `free` messages, of `most` at a time: for a fourth of them at once.

        RabbitMQ 3 would send more than that if messages were on their way to the link: it gets credit when all of them
        have come.
        """
        if self.session.connection.counts_late:
            return not self.credit and free > 0
        return (free - self.credit) * _TOP_UPS >= most

    def set_credit(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Set how many messages the broker may send from now on; `echo`: it is to answer (`LinkOwner.on_credit`)."""
        self.credit, self.is_draining = credit, drain
        self._allowed = max(self._allowed, self._received + credit)
        self.session.send_flow(self, drain=drain, echo=echo)


class ClientSession:
    """A session.

    Args:
        channel: its channel.
        connection: its connection.
        owner: hears what happens.

    Attributes:
        channel, connection: as above.
        is_begun: whether both ends have begun it, and none has ended it.
        is_ended: whether the broker has ended it, or its connection is closed.
        error: the broker's; None for none.
        next_number: the number of the next message that is sent.
        received: how many messages have begun to arrive.
    """

    def __init__(self, channel: int, connection: ClientConnection, owner: SessionOwner) -> None:
        self.channel, self.connection, self._owner = channel, connection, owner
        self.is_begun = self.is_ended = self._is_ending = False
        self.error: Composite | None = None
        self.next_number = self.received = 0
        self._links: dict[int, ClientLink] = {}
        self._remote: dict[int, ClientLink] = {}  # handle of the broker -> link
        self._names: dict[tuple[str, bool], ClientLink] = {}  # those that the broker has not attached yet
        self._window = self._next_outgoing = self._next_incoming = 0
        self._incoming_window = WINDOW
        self._first_id = 0  # the delivery-id of the first message that was received
        self._waiting: deque[tuple[Buffer, ...]] = deque()  # frames beyond the window

    @property
    def has_window(self) -> bool:
        """Whether the broker's window is open, and nothing waits for it."""
        return self._window > 0 and not self._waiting

    @property
    def window(self) -> int:
        """How many frames may be sent now."""
        return 0 if self._waiting else max(self._window, 0)

    @property
    def is_usable(self) -> bool:
        """Whether links can be attached and used."""
        return self.is_begun and not self._is_ending

    # ---- output ----

    def send(self, performative: str, /, **values: Any) -> None:
        """Send a performative."""
        self.connection.send_frame(encode_frame(self.channel, encode_composite(performative, values)))

    def begin(self) -> None:
        """Begin it."""
        self.send(
            "begin", next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=_UNLIMITED, handle_max=_MAX_HANDLE
        )

    def end(self, error: Composite | None = None) -> None:
        """End it; the owner hears when the broker has."""
        if not self._is_ending and not self.is_ended:
            self._is_ending, self.is_begun = True, False
            self.send("end", error=error)

    def send_frames(self, frames: Any) -> None:
        """Send the frames of a message, as far as the window is open."""
        waiting = self._waiting
        for frame in frames:
            if self._window > 0 and not waiting:
                self._put(frame)
            else:
                waiting.append(frame)
        self.connection.has_output()

    def _put(self, frame: tuple[Buffer, ...]) -> None:
        self._window -= 1
        self._next_outgoing = (self._next_outgoing + 1) & MASK
        self.connection.output += frame
        self.connection.frames_sent += 1

    def put_frames(self, frames: bytes, count: int) -> None:
        """Send frames of transfers, not more than the `window`."""
        self._window -= count
        self._next_outgoing = (self._next_outgoing + count) & MASK
        self.connection.output.append(frames)
        self.connection.frames_sent += count
        self.connection.has_output()

    def send_flow(
        self, link: ReceivingLink | SendingLink | None = None, *, drain: bool = False, echo: bool = False
    ) -> None:
        """Send flow, of the session or of a link."""
        values: dict[str, Any] = {
            "next_incoming_id": self._next_incoming,
            "incoming_window": self._incoming_window,
            "next_outgoing_id": self._next_outgoing,
            "outgoing_window": _UNLIMITED,
        }
        if link is not None:
            values |= {
                "handle": link.handle, "delivery_count": link.delivery_count, "link_credit": link.credit,
                "drain": drain or None, "echo": echo or None,
            }  # fmt: skip
        self.send("flow", **values)

    def settle(self, runs: Sequence[tuple[int, int]], state: Composite | None, *, is_settled: bool) -> None:
        """Send an outcome for messages that were received; unless `is_settled`, the broker settles them."""
        for first, last in runs:
            self.send(
                "disposition",
                role=RECEIVER,
                first=(first + self._first_id) & MASK,
                last=None if first == last else (last + self._first_id) & MASK,
                settled=is_settled,
                state=state,
            )

    # ---- links ----

    def attach_sender(self, name: str, owner: LinkOwner, **values: Any) -> SendingLink:
        """Attach a link on which messages are sent; `values` are further fields of attach. Raises ValueError."""
        link = SendingLink(self, self._free_handle(), name, owner)
        self._attach(link, initial_delivery_count=0, **values)
        return link

    def attach_receiver(self, name: str, owner: LinkOwner, **values: Any) -> ReceivingLink:
        """Attach a link on which messages are received, as `attach_sender`."""
        link = ReceivingLink(self, self._free_handle(), name, owner)
        self._attach(link, max_message_size=self.connection.max_message_bytes, **values)
        return link

    def _free_handle(self) -> int:
        for handle in range(min(_MAX_HANDLE, self.connection.max_handle) + 1):
            if handle not in self._links:
                return handle
        raise ValueError(f"a session has {len(self._links):,} links at most")

    def _attach(self, link: ClientLink, **values: Any) -> None:
        encoded = encode_composite("attach", {"name": link.name, "handle": link.handle, "role": link.role, **values})
        self._links[link.handle] = self._names[link.name, link.role] = link
        self.connection.send_frame(encode_frame(self.channel, encoded))

    # ---- input ----

    def on(self, performative: Composite) -> None:
        """A frame was received, other than a transfer. Raises ConditionError."""
        name, fields = performative
        if name == "flow":
            self._on_flow(fields)
        elif name == "disposition":
            self._on_disposition(fields)
        elif name == "attach":
            self._on_attach(fields)
        elif name == "detach":
            self._on_detach(fields)
        else:
            self._on_end(fields)

    def on_begin(self, fields: dict[str, Any]) -> None:
        """The broker has begun it."""
        self._window = fields["incoming_window"]
        self._next_incoming = fields["next_outgoing_id"]
        self.is_begun = not self._is_ending
        self._owner.on_begun()

    def _on_end(self, fields: dict[str, Any]) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.send("end")
        self.connection.forget(self)
        self.ended(fields.get("error"))

    def ended(self, error: Composite | None) -> None:
        """It has ended, or its connection has."""
        if self.is_ended:
            return
        self.is_ended, self.is_begun, self.error = True, False, error
        for link in self._links.values():
            link.is_attached = False
        self._links.clear()
        self._remote.clear()
        self._names.clear()
        self._waiting.clear()
        self._owner.on_ended(error)

    def _on_attach(self, fields: dict[str, Any]) -> None:
        link = self._names.pop((fields["name"], not fields["role"]), None)
        if link is None:
            raise ConditionError(Condition.NOT_ALLOWED, "a link that was not asked for", Ends.CONNECTION)
        self._remote[fields["handle"]] = link
        link.answer = fields
        kind = "target" if link.role is SENDER else "source"
        if fields.get(kind) is None:
            return  # it is refused: detach follows
        if isinstance(link, ReceivingLink):
            link.delivery_count = fields.get("initial_delivery_count") or 0
        link.is_attached = not link.is_detaching
        link.owner.on_attached()

    def _link(self, handle: int) -> ClientLink:
        link = self._remote.get(handle)
        if link is None:
            raise ConditionError(Condition.UNATTACHED_HANDLE, f"handle {handle} is not attached", Ends.CONNECTION)
        return link

    def _on_detach(self, fields: dict[str, Any]) -> None:
        link = self._link(fields["handle"])
        self.connection.forget_link(self, fields["handle"])
        link.is_attached = False
        if not link.is_detaching:
            link.is_detaching = True
            self.send("detach", handle=link.handle, closed=True)
        del self._remote[fields["handle"]], self._links[link.handle]
        link.owner.on_ended(fields.get("error"))

    def _on_flow(self, fields: dict[str, Any]) -> None:
        self._window = fields["incoming_window"] - difference(self._next_outgoing, fields.get("next_incoming_id", 0))
        waiting = self._waiting
        if waiting and self._window > 0:
            while waiting and self._window > 0:
                self._put(waiting.popleft())
            self.connection.has_output()
        if fields.get("handle") is None:
            for link in list(self._links.values()):
                if link.role is SENDER and link.is_attached:
                    link.owner.on_credit()
            if fields["echo"]:
                self.send_flow()
            return
        link = self._link(fields["handle"])
        if isinstance(link, SendingLink):
            self._on_credit(link, fields)
        elif isinstance(link, ReceivingLink):
            count = fields.get("delivery_count")
            if count is not None:
                link.credit = max(0, link.credit - max(0, difference(count, link.delivery_count)))
                link.delivery_count = count
            link.is_draining = link.is_draining and link.credit > 0
            link.owner.on_credit()
            if fields["echo"]:
                self.send_flow(link, drain=link.is_draining and link.credit > 0)

    def _on_credit(self, link: SendingLink, fields: dict[str, Any]) -> None:
        credit = fields.get("link_credit")
        if credit is not None:
            link.credit = max(0, credit - difference(link.delivery_count, fields.get("delivery_count", 0)))
        if link.is_attached:
            link.owner.on_credit()
        if fields["drain"] and link.credit:
            link.delivery_count, link.credit = (link.delivery_count + link.credit) & MASK, 0
            self.send_flow(link, drain=True)
        elif fields["echo"]:
            self.send_flow(link)

    def _on_disposition(self, fields: dict[str, Any]) -> None:
        first, last = fields["first"], fields.get("last")
        state, is_settled = fields.get("state"), fields["settled"]
        outcome = state if isinstance(state, Composite) else None
        if fields["role"] is RECEIVER:
            begin = self._number(first, self.next_number)
            end = min(begin if last is None else self._number(last, self.next_number), self.next_number - 1)
            is_terminal = outcome is not None and outcome.name in _TERMINAL
            if not is_settled and not is_terminal:
                return
            if not is_settled:
                self.send("disposition", role=SENDER, first=first, last=last, settled=True)
            self._owner.on_outcome(max(begin, 0), end, outcome)
        elif is_settled:
            begin = self._number((first - self._first_id) & MASK, self.received)
            end = begin if last is None else self._number((last - self._first_id) & MASK, self.received)
            self._owner.on_settled(max(begin, 0), min(end, self.received - 1))

    @staticmethod
    def _number(delivery_id: int, following: int) -> int:
        """The number of a delivery-id, of which `following` is the next."""
        return following + difference(delivery_id, following & MASK)

    # ---- messages ----

    def takes(self, transfer: dict[str, Any], *, is_first: bool) -> bool:
        """As `FrameReceiver.takes`. Raises ConditionError."""
        if self._incoming_window < 1:
            raise ConditionError(Condition.WINDOW_VIOLATION, "more transfers than the window allows", Ends.CONNECTION)
        self._count_frames(1)
        link = self._link(transfer["handle"])
        if not isinstance(link, ReceivingLink):
            raise ConditionError(Condition.NOT_ALLOWED, "a transfer on a link for sending", Ends.CONNECTION)
        if is_first:
            self._begins(link, transfer)
        return not link.is_detaching

    def _count_frames(self, count: int) -> None:
        """Count frames of transfers that were received, and open the window again."""
        self._next_incoming = (self._next_incoming + count) & MASK
        self._incoming_window -= count
        if self._incoming_window < WINDOW // 2:
            self._incoming_window = WINDOW
            self.send_flow()

    def begin_run(self, transfer: dict[str, Any], data: bytes, begin: int, end: int) -> ReceivedRun | None:
        """As `FrameReceiver.begin_run`: if the owner of the link takes runs, and the body is one data section."""
        link = self._remote.get(transfer["handle"])
        if not isinstance(link, ReceivingLink) or link.is_detaching or link.run_owner is None:
            return None
        if not self.received or transfer.get("delivery_id") != (self._first_id + self.received) & MASK:
            return None
        try:
            content = data[begin:end]
            body_at = split_sections(content).body_at
        except Amqp10Error:
            return None
        if not content.startswith(_DATA, body_at) or not is_one_section(content, body_at):
            return None
        return ReceivedRun(
            self, link, link.run_owner, transfer, begin + body_at, min(link.allowed, self._incoming_window)
        )

    def take_run(self, incoming: ReceivedRun, bodies: Bodies) -> int:
        """As `FrameReceiver.transferred_run`."""
        count, first = bodies.count, self.received
        self.received += count
        incoming.link.begins(count)
        self._count_frames(count)
        incoming.owner.on_messages(first, bodies, is_settled=bool(incoming.transfer.get("settled")))
        return count

    def _begins(self, link: ReceivingLink, transfer: dict[str, Any]) -> None:
        delivery_id = transfer.get("delivery_id")
        if delivery_id is None:
            raise ConditionError(Condition.INVALID_FIELD, "a transfer without delivery-id", Ends.CONNECTION)
        if not self.received:
            self._first_id = delivery_id
        if delivery_id != (self._first_id + self.received) & MASK:
            text = f"delivery-id {delivery_id} instead of {(self._first_id + self.received) & MASK}"
            raise ConditionError(Condition.INVALID_FIELD, text, Ends.CONNECTION)
        self.received += 1
        link.begins()

    def transferred(self, transfer: dict[str, Any], content: Content) -> None:
        """As `FrameReceiver.transferred`."""
        link = self._remote.get(transfer["handle"])
        if isinstance(link, ReceivingLink) and not link.is_detaching:
            number = self._number((transfer["delivery_id"] - self._first_id) & MASK, self.received)
            link.owner.on_message(number, content, is_settled=bool(transfer.get("settled")))


class ReceivedRun:
    """Messages that differ only in their bodies, as an `Incoming` of the assembler.

    Attributes:
        session, link, owner: of whom they are.
        transfer: the fields of the first transfer.
        body_at, most: as of `Incoming`.
    """

    __slots__ = ("body_at", "link", "most", "owner", "session", "transfer")

    def __init__(
        self,
        session: ClientSession,
        link: ReceivingLink,
        owner: RunOwner,
        transfer: dict[str, Any],
        body_at: int,
        most: int,
    ) -> None:
        self.session, self.link, self.owner, self.transfer = session, link, owner, transfer
        self.body_at, self.most = body_at, most


_DATA: Final = data_section(0)[:3]
_TERMINAL: Final = frozenset((*OUTCOMES, "declared", "transactional-state"))


class ClientConnection(Connection):
    """The client's end.

    Args:
        choose_mechanism: selects one of the mechanisms that the broker offers. Raises ValueError if none is usable.
            None: SASL is left out.
        container: the name of the client's container.
        host_name: the name of the broker's host, or of a virtual host.
        client_properties: sent to the broker, besides its own.
        heartbeat: seconds that the broker may be silent, half of what is waited for; 0 for any time.
        max_message_bytes: limit for each incomplete message, and for all of them together.
        budget: as of `FrameAssembler`.

    Attributes:
        max_frame: maximum size in bytes of a frame that is sent.
        max_message_bytes: as above.
        max_handle: the highest handle of a link.
        is_logged_in: whether the broker has accepted the login.
        server_properties: received from the broker.
        server_container: the name of the broker's container.
        redirect: where the broker wants the connection to go, if it has closed it for that reason.
    """

    protocol_header: ClassVar[bytes] = SASL_HEADER

    def __init__(
        self,
        choose_mechanism: Callable[[tuple[str, ...]], ClientMechanism] | None,
        *,
        container: str,
        host_name: str = "",
        client_properties: Mapping[str, Any] | None = None,
        heartbeat: int = 0,
        max_message_bytes: int,
        budget: Budget | None = None,
    ) -> None:
        self.max_message_bytes, self._given_budget = max_message_bytes, budget
        super().__init__()
        self.max_frame, self.max_handle, self._max_channel = MIN_MAX_FRAME, _MAX_HANDLE, 0
        self.is_logged_in = self._is_offered = self._is_open_sent = self._is_header_due = False
        self.server_properties: Mapping[str, Any] = {}
        self.server_container = ""
        self.redirect: Redirect | None = None
        self._choose_mechanism, self._container, self._host_name = choose_mechanism, container, host_name
        self._wanted_heartbeat = heartbeat
        self._properties: dict[str, Any] = {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "host": socket.gethostname(),
            "qpid.client_process": Path(sys.argv[0]).name,
            "qpid.client_pid": os.getpid(),
            **(client_properties or {}),
        }
        self._mechanism: ClientMechanism | None = None
        self._own: dict[int, ClientSession] = {}  # channel -> session
        self._remote: dict[int, ClientSession] = {}  # channel of the broker -> session
        if choose_mechanism is None:
            self.phase, self.is_logged_in = Phase.NEGOTIATING, True
            self._send_open()
        else:
            self.output.append(SASL_HEADER)

    # ---- callbacks ----

    def on_open(self) -> None:
        """The connection is open: sessions can begin."""

    def on_closed(self) -> None:
        """The connection is closed or lost."""

    def has_output(self) -> None:
        """Output was added to `output`."""

    # ---- as an end of a connection ----

    def make_assembler(self) -> FrameAssembler:
        """As `Connection.make_assembler`."""
        limit = self.max_message_bytes
        return FrameAssembler(self, MAX_FRAME, limit, self._given_budget or Budget(limit))

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_frame(HEARTBEAT_FRAME)

    @property
    def max_silence(self) -> float:
        """As `Connection.max_silence`: what was said in open, twice."""
        return 2.0 * self._wanted_heartbeat

    def send_close(self, code: int, text: str, cause: bytes) -> None:  # noqa: ARG002 – it is in the cause
        """As `Connection.send_close`; the cause is the encoded performative."""
        if self._is_open_sent:
            self.send_frame(encode_frame(0, cause or encode_composite("close", {})))

    def fail(self, error: Exception) -> None:
        """Close the connection after a fatal error: send the reason, and do not wait for the answer."""
        self.close(0, f"{condition_of(error)}: {error}", encode_composite("close", {"error": error_value(error)}))
        self.closed()

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        self.fail(error)

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.close(0, text, encode_composite("close", {}))
        self.closed()

    def begins(self, channel: int) -> bool:  # noqa: ARG002 – for other protocols
        """As `Receiver.begins`."""
        return True

    def too_large(self, channel: int, size: int) -> None:
        """As `Receiver.too_large`: close the connection."""
        handle = link_of(channel)[1]
        text = f"a message on handle {handle} has {size} bytes or more; the limit is {self.max_message_bytes}"
        self.fail(ConditionError(Condition.MESSAGE_SIZE_EXCEEDED, text, Ends.CONNECTION))

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`."""
        self.too_large(channel, size)

    def end_sessions(self) -> None:
        """The connection is closed: so are its sessions."""
        for session in list(self._own.values()):
            session.ended(None)
        self._own.clear()
        self._remote.clear()

    @property
    def counts_late(self) -> bool:
        """Whether the broker counts messages against credit only when they reach the link: RabbitMQ 3 does."""
        properties = self.server_properties
        return properties.get("product") == "RabbitMQ" and str(properties.get("version", "")).startswith("3.")

    # ---- negotiation ----

    @property
    def is_authenticating(self) -> bool:
        """Whether a mechanism was offered or chosen, and the broker has not accepted the login yet."""
        return self._is_offered and not self.is_logged_in

    def on_header(self, header: bytes) -> None:
        """The broker's first protocol header: that of SASL."""
        if header != SASL_HEADER:
            self._refuse_header(header)

    def on_protocol_header(self, header: bytes) -> None:
        """As `FrameReceiver.on_protocol_header`: that of AMQP, once."""
        if header != AMQP_HEADER or not self._is_header_due:
            self._refuse_header(header)
        self._is_header_due = False

    def _refuse_header(self, header: bytes) -> None:
        wanted = "SASL" if header == SASL_HEADER else "no SASL" if header == AMQP_HEADER else ""
        self.close_code = 1
        self.close_text = f"the peer does not speak AMQP 1.0: it answered {header!r}"
        if wanted:
            self.close_text = f"the broker wants a connection with {wanted}: see sasl_mechanisms"
        self.closed()

    def _send_open(self) -> None:
        self._is_open_sent = self._is_header_due = True
        self.output.append(AMQP_HEADER)
        entries = tuple((Value("symbol", name), value_of(typed_value(each))) for name, each in self._properties.items())
        encoded = encode_composite(
            "open",
            {
                "container_id": self._container,
                "hostname": self._host_name or None,
                "max_frame_size": MAX_FRAME,
                "channel_max": _MAX_CHANNEL,
                "idle_time_out": 1000 * self._wanted_heartbeat or None,
                "properties": entries,
            },
        )
        self.send_frame(encode_frame(0, encoded))

    def _on_sasl(self, performative: Composite) -> None:
        name, fields = performative
        mechanism = self._mechanism
        try:
            self._is_offered = True
            if name == "sasl-mechanisms" and mechanism is None and self._choose_mechanism is not None:
                chosen = self._mechanism = self._choose_mechanism(fields["sasl_server_mechanisms"])
                self._send_sasl(
                    "sasl-init", mechanism=chosen.name, initial_response=chosen.start(),
                    hostname=self._host_name or None,
                )  # fmt: skip
            elif name == "sasl-challenge" and mechanism is not None:
                self._send_sasl("sasl-response", response=mechanism.step(fields["challenge"]))
            elif name == "sasl-outcome" and mechanism is not None:
                self._end_sasl(mechanism, fields)
            else:
                raise ConditionError(Condition.FRAMING_ERROR, f"{name} is unexpected from a broker", Ends.CONNECTION)
        except ValueError as error:
            self._refuse(str(error))

    def _end_sasl(self, mechanism: ClientMechanism, fields: dict[str, Any]) -> None:
        """Raises ValueError."""
        code = fields["code"]
        if code != _CODES["ok"]:
            raise ValueError(_REASONS[code])
        additional = fields.get("additional_data")
        if not mechanism.is_complete and additional:
            mechanism.step(additional)
        if not mechanism.is_complete:
            raise ValueError(f"the broker has not completed {mechanism.name}")
        self.is_logged_in = True
        self.secure(layer_of(mechanism))
        self._send_open()

    def _refuse(self, text: str) -> None:
        self.close_code, self.close_text = 1, text
        self.closed()

    def _send_sasl(self, performative: str, /, **values: Any) -> None:
        self.send_frame(encode_frame(0, encode_composite(performative, values), SASL))

    # ---- input ----

    def empty_frame(self, kind: int) -> None:
        """As `FrameReceiver.empty_frame`."""
        if kind != AMQP:
            raise ConditionError(Condition.FRAMING_ERROR, f"an empty frame of type {kind}", Ends.CONNECTION)

    def performative(self, kind: int, channel: int, performative: Composite) -> None:
        """As `FrameReceiver.performative`."""
        name, fields = performative
        if self.phase is Phase.CLOSED:
            return
        if kind == SASL and name in SASL_FRAMES and not self.is_logged_in:
            self._on_sasl(performative)
        elif kind != AMQP or name not in PERFORMATIVES or not self._is_open_sent or self._is_header_due:
            raise ConditionError(Condition.FRAMING_ERROR, f"{name} is unexpected from a broker", Ends.CONNECTION)
        elif name == "close":
            self._on_close(fields)
        elif self.phase is Phase.CLOSING:
            return
        elif name == "open":
            self._on_open(fields)
        elif name == "begin":
            self._on_begin(channel, fields)
        else:
            self._session(channel, name).on(performative)

    def _on_open(self, fields: dict[str, Any]) -> None:
        if self.phase is not Phase.NEGOTIATING:
            raise ConditionError(Condition.ILLEGAL_STATE, "open was received twice", Ends.CONNECTION)
        self.max_frame = max(MIN_MAX_FRAME, min(fields["max_frame_size"], MAX_FRAME))
        self._max_channel = min(fields["channel_max"], _MAX_CHANNEL)
        idle = (fields.get("idle_time_out") or 0) / 1000
        self.heartbeat = max(1, int(idle)) if idle else 0
        if self._wanted_heartbeat:
            self.heartbeat = min(self.heartbeat or self._wanted_heartbeat, self._wanted_heartbeat)
        self.server_container = fields["container_id"]
        self.server_properties = {str(key.value): each.value for key, each in fields.get("properties") or ()}
        self.phase = Phase.OPEN
        self.on_open()

    def _on_close(self, fields: dict[str, Any]) -> None:
        if self.phase is not Phase.CLOSING:
            error = fields.get("error")
            self.redirect = redirect_of(error)
            self.begin_closing(0 if error else NORMAL, error_text(error) if error else "closed by the broker")
            self.send_frame(encode_frame(0, encode_composite("close", {})))
        self.closed()

    def _on_begin(self, channel: int, fields: dict[str, Any]) -> None:
        session = self._own.get(fields.get("remote_channel", -1))
        if session is None or channel in self._remote:
            raise ConditionError(Condition.NOT_ALLOWED, "a session that was not asked for", Ends.CONNECTION)
        self._remote[channel] = session
        self.max_handle = min(self.max_handle, fields["handle_max"])
        session.on_begin(fields)

    def _session(self, channel: int, what: str) -> ClientSession:
        session = self._remote.get(channel)
        if session is None:
            raise ConditionError(Condition.NOT_ALLOWED, f"{what} on channel {channel} without begin", Ends.CONNECTION)
        return session

    def takes(self, channel: int, transfer: dict[str, Any], *, is_first: bool) -> bool:
        """As `FrameReceiver.takes`."""
        return self.phase is Phase.OPEN and self._session(channel, "transfer").takes(transfer, is_first=is_first)

    def begin_run(
        self, channel: int, transfer: dict[str, Any], data: bytes, begin: int, end: int
    ) -> ReceivedRun | None:
        """As `FrameReceiver.begin_run`."""
        session = self._remote.get(channel)
        return (
            None if session is None or self.phase is not Phase.OPEN else session.begin_run(transfer, data, begin, end)
        )

    def transferred_run(self, incoming: ReceivedRun, bodies: Bodies) -> int:
        """As `FrameReceiver.transferred_run`."""
        return incoming.session.take_run(incoming, bodies)

    def transferred(self, channel: int, transfer: dict[str, Any], content: Content) -> None:
        """As `FrameReceiver.transferred`."""
        session = self._remote.get(channel)
        if session is not None and self.phase is Phase.OPEN:
            session.transferred(transfer, content)

    # ---- sessions ----

    def begin_session(self, owner: SessionOwner) -> ClientSession:
        """Begin a session. Raises ValueError: all channels are in use."""
        for channel in range(self._max_channel + 1):
            if channel not in self._own:
                session = self._own[channel] = ClientSession(channel, self, owner)
                session.begin()
                return session
        raise ValueError(f"all {self._max_channel + 1} channels of the connection are in use")

    def forget(self, session: ClientSession) -> None:
        """A session has ended."""
        self._own.pop(session.channel, None)
        for channel in [channel for channel, each in self._remote.items() if each is session]:
            del self._remote[channel]
            assert isinstance(self._assembler, FrameAssembler)
            self._assembler.forget_channel(channel)

    def forget_link(self, session: ClientSession, handle: int) -> None:
        """The broker has detached a link: discard its incomplete message."""
        assert isinstance(self._assembler, FrameAssembler)
        for channel, each in self._remote.items():
            if each is session:
                self._assembler.forget_link(channel << 32 | handle)


_CODES: Final = CHOICES["sasl-code"]
_REASONS: Final = {
    _CODES["auth"]: "the broker has refused the user or the password",
    _CODES["sys"]: "the broker has failed",
    _CODES["sys-perm"]: "the broker has failed, and will again",
    _CODES["sys-temp"]: "the broker has failed for now: try again later",
}


def error_text(error: Composite) -> str:
    """An error of the broker, for people."""
    condition, description = error.fields["condition"], error.fields.get("description")
    text = f"{condition}: {description}" if description else str(condition)
    target = redirect_of(error)
    return text if target is None else f"{text} ({target})"


class Redirect(NamedTuple):
    """Where the other end wants a connection or a link to go instead. Nobody follows it unasked: it gets the password.

    Attributes:
        host: the host to connect to; empty if it is not said.
        port: its port; 0 if it is not said.
        address: the node there, of a link; empty if it is not said.
    """

    host: str
    port: int
    address: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"to {host}:{self.port}" if self.port else f"to {host}" if host else "elsewhere"
        return f"redirected {place}" + (f", address {printable(self.address)}" if self.address else "")


def redirect_of(error: Composite | None) -> Redirect | None:
    """Where an error of the broker redirects to; None if it is not about that."""
    if error is None or error.fields["condition"] not in _REDIRECTS:
        return None
    info = {str(key.value): each.value for key, each in error.fields.get("info") or ()}
    host, port = info.get("network-host") or info.get("hostname") or "", info.get("port")
    address = info.get("address") or ""
    return Redirect(
        printable(host)[:_MAX_SHOWN] if isinstance(host, str) else "",
        port if type(port) is int and 0 < port < 1 << 16 else 0,
        address[:_MAX_SHOWN] if isinstance(address, str) else "",
    )


_REDIRECTS: Final = (Condition.CONNECTION_REDIRECT, Condition.LINK_REDIRECT)
_MAX_SHOWN: Final = 256
