"""Links on which a client receives what is on no queue of this broker.

    AnswerLink    answers of management (`management`)
    FetchLink     messages of a node in a domain, `NODE@DOMAIN` as a source (`federation/relay`)

**A link from a domain.** Its credit goes on to the domain, `MAX_UNSETTLED` at most, less what is not settled yet:
the broker keeps nothing that the client has not asked for. What has come waits for the session's window; while that is
more than `MAX_BYTES`, the domain is not read.

An outcome of the client goes on to the domain, which settles the message; then the client's delivery is settled. The
domain gives messages without an outcome to others when the link ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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
from qstore.broker.protocols.output import COST_OF_MESSAGE
from qstore.formats.amqp_1_0.frames import AMQP, FRAME

if TYPE_CHECKING:
    from qstore.broker.federation.relay import Fetch
    from qstore.broker.model.message import Content
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.protocols.amqp_1_0.message import SectionMessage
    from qstore.broker.protocols.amqp_1_0.session import Session
    from qstore.formats.amqp_1_0.composites import Composite

MAX_UNSETTLED: Final = 1_000
"""Messages of a domain that one link may have: those that wait, and those that the client has not settled."""

MAX_BYTES: Final = 1 << 20
"""Bytes of messages that wait on a link until the client takes them; the last one may exceed it."""

_TOP_UPS: Final = 4  # credit is given anew for a fourth of `MAX_UNSETTLED`


def among(known: Mapping[int, object], first: int, last: int) -> list[int]:
    """The keys from one to another, inclusive; many more may be named than there are."""
    if last - first < len(known):
        return [each for each in range(first, last + 1) if each in known]
    return [each for each in known if first <= each <= last]


class QueuelessLink(ABC):
    """A link without a queue.

    Args:
        session: its session.
        handle, name: of the client.
        max_message: bytes of a message that the client accepts.

    Attributes:
        session, handle, name, max_message: as above.
        delivery_count, credit: as of `OutgoingLink`.
        is_attached: whether it may send.
        owned: none.
    """

    __slots__ = ("credit", "delivery_count", "handle", "is_attached", "max_message", "name", "owned", "session")

    def __init__(self, session: Session, handle: int, name: str, max_message: int) -> None:
        self.session, self.handle, self.name, self.max_message = session, handle, name, max_message
        self.delivery_count = self.credit = 0
        self.is_attached = True
        self.owned: list[Queue] = []

    @abstractmethod
    def wake(self) -> None:
        """Send what waits, as far as credit and window allow."""

    @abstractmethod
    def on_credit(self, *, is_draining: bool) -> None:
        """The client has set the credit; `is_draining`: it wants what there is, and no more credit."""

    def close(self) -> None:
        """The link has ended."""
        self.is_attached = False


class FetchLink(QueuelessLink):
    """A link from a node in a domain.

    Args:
        session, handle, name, max_message: as of `QueuelessLink`.
        settles: whether messages are sent settled.

    Attributes:
        settles: as above.
        ends, delivered: as of `OutgoingLink`.
        fetch: fetches the messages; must be set at once.
    """

    __slots__ = (
        "_asked", "_bytes", "_head", "_head_with_more", "_is_drained", "_is_draining", "_numbers", "_states", "_tags",
        "_waiting", "delivered", "ends", "fetch", "settles",
    )  # fmt: skip

    fetch: Fetch

    def __init__(self, session: Session, handle: int, name: str, max_message: int, *, settles: bool) -> None:
        super().__init__(session, handle, name, max_message)
        self.settles, self.ends, self.delivered = settles, ("", ""), 0
        self._head, self._head_with_more = transfer_heads(handle)
        self._waiting: deque[tuple[int, bytes, Content, bool]] = deque()  # as `_send` takes them
        self._bytes = self._asked = 0
        self._tags: dict[int, int] = {}  # number of the delivery -> tag, of those that are not settled
        self._numbers: dict[int, int] = {}  # and back
        self._states: dict[int, Composite] = {}  # number -> outcome that the domain has not settled yet
        self._is_draining = self._is_drained = False

    # ---- credit ----

    def on_credit(self, *, is_draining: bool) -> None:
        """As `QueuelessLink.on_credit`."""
        self._is_draining, self._is_drained = is_draining, False
        self.wake()
        self._ask(is_exact=True)

    def fetch_ready(self) -> None:
        """As `FetchedLink.fetch_ready`."""
        self._ask(is_exact=True)

    @property
    def _wanted(self) -> int:
        """How many messages the client may still be sent, beside those that wait."""
        return max(0, self.credit - len(self._waiting))

    def _ask(self, *, is_exact: bool = False) -> None:
        """Have the domain send as much as the client may get, if that is other or clearly more than it may now."""
        if not self.is_attached:
            return
        if self._is_draining and not self._wanted:
            if self._asked and self.fetch.ask(0, is_draining=False):  # the client has lowered its credit
                self._asked = 0
            self._drained()
            return
        credit = max(0, min(self._wanted, MAX_UNSETTLED - len(self._tags) - len(self._waiting)))
        more = credit - self._asked
        is_due = is_exact or (more > 0 and (not self._asked or more * _TOP_UPS >= MAX_UNSETTLED))
        if is_due and self.fetch.ask(credit, is_draining=self._is_draining):
            self._asked = credit

    def fetch_drained(self) -> None:
        """As `FetchedLink.fetch_drained`."""
        if not self._is_draining:
            return
        if self._asked or not self._wanted:
            self._asked = 0
            self._drained()
        else:
            self._ask()  # all that it was asked for has come: there may be more

    def _drained(self) -> None:
        """The domain has no more for the client: give its credit back, once what waits is sent."""
        self._is_drained = True
        self.wake()

    # ---- messages ----

    def fetch_has(self, tag: int, message: SectionMessage, *, is_settled: bool) -> None:
        """As `FetchedLink.fetch_has`."""
        size = len(message.header) + len(message.body)
        if size > self.max_message:
            self.fetch.fail(f"a message has {size:,} bytes, and the client accepts {self.max_message:,}")
            return
        self._asked = max(0, self._asked - 1)
        self._waiting.append((tag, message.header, message.body, is_settled or self.settles))
        self._bytes += size
        self.wake()
        self._ask()

    def wake(self) -> None:
        """As `QueuelessLink.wake`."""
        session, connection = self.session, self.session.connection
        while self._waiting and self.credit > 0 and session.can_send and connection.room > 0 and self.is_attached:
            self._send(*self._waiting.popleft())
        if self._waiting and self.is_attached and connection.room <= 0:
            connection.has_output()  # renews its room
            session.resume_later()
        self.fetch.hold(is_held=self._bytes > MAX_BYTES)
        if self._is_drained and not self._waiting and self.is_attached:
            self._is_draining = self._is_drained = False
            session.give_back(self)

    def _send(self, tag: int, header: bytes, body: Content, is_settled: bool) -> None:
        """Send a message, with its tag at the domain. It is settled if the client wants it so, or the domain has."""
        session, connection = self.session, self.session.connection
        number, size = session.next_delivery, len(header) + len(body)
        session.next_delivery = number + 1
        tail = TAIL.pack(UINT, number & MASK, VBIN8, TAG_BYTES, number, ZERO, TRUE if is_settled else FALSE)
        frame = FRAME.size + len(self._head) + len(tail) + size
        if frame <= connection.max_frame and isinstance(body, bytes):
            start = FRAME.pack(frame, DOFF, AMQP, session.channel)
            connection.output += (start, self._head, tail, header, body)
            connection.frames_sent += 1
            session.sent_frame()
        else:
            last, with_more = self._head + tail, self._head_with_more + tail + MORE
            frames = transfer_frames(session.channel, connection.max_frame, last, with_more, header, body)
            session.stream(self, frames)
        connection.messages_sent += 1
        connection.room -= size + COST_OF_MESSAGE
        connection.has_output()
        self._bytes -= size
        self.delivered += 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        self.credit -= 1
        if not is_settled:
            session.fetched[number] = self
            self._tags[number], self._numbers[tag] = tag, number

    # ---- outcomes ----

    def settle(self, numbers: list[int], state: Composite | None, *, is_settled: bool) -> None:
        """The client has an outcome for deliveries; unless it has settled them, it waits for that of the domain."""
        self.fetch.settle([self._tags[number] for number in numbers], state, is_settled=is_settled)
        for number in numbers:
            if is_settled:
                self._forget(number)
            elif state is not None:
                self._states[number] = state
        self._ask()

    def fetch_settles(self, first: int, last: int) -> None:
        """As `FetchedLink.fetch_settles`."""
        session = self.session
        for number in [self._numbers[tag] for tag in among(self._numbers, first, last)]:
            session.tell_settled([number], self._states.get(number), None)
            self._forget(number)
        self._ask()

    def _forget(self, number: int) -> None:
        del self._numbers[self._tags.pop(number)]
        self._states.pop(number, None)
        self.session.fetched.pop(number, None)

    # ---- its end ----

    def close(self) -> None:
        """As `QueuelessLink.close`; the domain has again what has no outcome."""
        super().close()
        for number in list(self._tags):
            self._forget(number)
        self._waiting.clear()
        self._bytes = 0
        self.fetch.close()

    def relay_failed(self, error: Exception) -> None:
        """As `FetchedLink.relay_failed`."""
        self.session.fail_relayed(self, error)
