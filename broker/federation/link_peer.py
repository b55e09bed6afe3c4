"""The broker as a client of a broker or another container over AMQP 1.0: a side (`peer`) with a session and one link.

    source         messages arrive as far as there is credit: the prefetch count, less what is not settled
    destination    messages wait for credit; meanwhile the side is full, and its source is not read

Numbers and tags begin with 1, as those of AMQP 0-9-1 (`carrier`). A message that is refused or released is not
accepted; what is acknowledged is settled by this end.

A side whose URI has the mechanism `NO_SASL` leaves out the SASL layer, which brokers allow if they allow anonymous
logins.

A virtual host other than the default one is given as `vhost:NAME`, as RabbitMQ and this broker take it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qstore.broker.federation.peer import Choose, PeerMachine, PeerNetwork, PeerSide, SideEvents
from qstore.broker.federation.uri import AmqpUri
from qstore.broker.model.completion import Done
from qstore.broker.model.message import Content, Handling, Message
from qstore.broker.protocols.amqp_1_0.client_connection import (
    FIRST,
    SETTLED,
    UNSETTLED,
    ClientConnection,
    ClientSession,
    ReceivingLink,
    SendingLink,
    error_text,
)
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, expiry_of, fields_of, split_message
from qstore.broker.protocols.connection import NORMAL, Phase
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.values import Amqp10Error, Value
from qstore.formats.broker_records.topology import DEFAULT_HOST

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker

_ACCEPTED: Final = Composite("accepted", {})
_RETURNED: Final = Composite("modified", {"delivery_failed": True})
_HEARTBEAT: Final = 60

NO_SASL: Final = "NONE"
"""In the place of a mechanism: the SASL layer is left out."""


class LinkWire(ClientConnection):
    """The client's end of a connection.

    Args:
        side: its owner.
        machine: its machine.
        choose: chooses the mechanism.
        uri: the broker, as its URI describes it.
        name: the connection's name, which the other broker shows.
        container: the name of its container.
        max_message_bytes: as of `ClientConnection`.
    """

    def __init__(
        self, side: LinkSide, machine: PeerMachine, choose: Choose | None, uri: AmqpUri, name: str, container: str,
        max_message_bytes: int,
    ) -> None:  # fmt: skip
        self._machine, self._side = machine, side
        host = uri.host or "localhost"
        super().__init__(
            choose, container=container, host_name=host if uri.vhost == DEFAULT_HOST else f"vhost:{uri.vhost}",
            client_properties={"connection_name": name},
            heartbeat=_HEARTBEAT if uri.heartbeat is None else uri.heartbeat, max_message_bytes=max_message_bytes,
        )  # fmt: skip

    def has_output(self) -> None:
        """Send the output at the end of the tick."""
        self._machine.has_output()

    def resume(self) -> None:
        """As `Connection.resume`."""
        super().resume()
        self._machine.wire_resumed()

    def on_open(self) -> None:
        """The connection is open: begin the session."""
        self._side.on_open()

    def on_closed(self) -> None:
        """The connection is closed or lost."""
        if self.close_text and self.close_code != NORMAL:
            self._side.lost(self.close_text)
        self.end_sessions()
        self._machine.wire_closed()


class MessageOwner(SideEvents, Protocol):
    """What a side is for, in a protocol whose messages are passed on decoded."""

    def on_room(self) -> None:
        """The link has credit for messages that are sent, or less."""

    def on_message(self, tag: int, message: Message) -> None:
        """A message was received; its tag is what it is acknowledged by."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""


class SourceEvents(Protocol):
    """What hears of a source whose credit it gives itself."""

    def on_fetched(self, tag: int, message: SectionMessage, *, is_settled: bool) -> None:
        """A message was received; its tag is what it is settled by, unless the other end has settled it."""

    def on_settled(self, first: int, last: int) -> None:
        """The other end has settled messages, from one tag to another."""

    def on_drained(self) -> None:
        """The other end has given the rest of the credit back."""


class LinkSide(PeerSide):
    """A connection with a session and a link.

    Args:
        owner, broker, network, uris, user, name: as of `PeerSide`.
        container: the name of its container; empty for the name of the connection.
        link: the name of its link.
    """

    _link: LinkWire | None

    def __init__(
        self,
        owner: MessageOwner,
        broker: Broker,
        network: PeerNetwork,
        uris: Sequence[AmqpUri],
        user: str,
        name: str,
        *,
        container: str = "",
        link: str = "shovel",
    ) -> None:
        super().__init__(owner, broker, network, uris, user, name)
        self._link, self._container = None, container or name
        self._channel = LinkChannel(self, owner, link)

    @property
    def channel(self) -> LinkChannel:
        """As `PeerSide.channel`."""
        return self._channel

    def make_wire(self, machine_of: Callable[[str], PeerMachine], choose: Choose) -> PeerMachine:
        """As `PeerSide.make_wire`."""
        machine, limit = machine_of("AMQP 1.0"), self._broker.settings.max_message_bytes
        chosen = None if self.uri.mechanisms == (NO_SASL,) else choose
        wire = self.wire = self._link = LinkWire(self, machine, chosen, self.uri, self._name, self._container, limit)
        machine.connect(wire)
        return machine

    @property
    def peer_container(self) -> str:
        """The name of the other end's container; empty while it is not known."""
        return "" if self._link is None else self._link.server_container

    def force_close(self, text: str) -> None:
        """As `PeerSide.force_close`."""
        wire = self._link
        if wire is not None:
            wire.close(0, text)
            wire.closed()

    def on_open(self) -> None:
        """The connection is open."""
        assert self._link is not None
        self.channel.session = self._link.begin_session(self.channel)

    @property
    def takes_messages(self) -> bool:
        """As `PeerSide.takes_messages`: whether there is credit."""
        return self.channel.takes_messages


class LinkChannel:
    """The session and the link of a side, with what `carrier` needs of a channel.

    Args:
        side: the side.
        owner: what it is for.
        name: of its link.

    Attributes:
        session: the session.
        published: the number of the last message that was sent.
        outcome: that of the messages about which `on_confirmed` is called.
    """

    session: ClientSession
    outcome: Composite | None = None

    def __init__(self, side: LinkSide, owner: MessageOwner, name: str) -> None:
        self._side, self._owner, self._name = side, owner, name
        self._sending: SendingLink | None = None
        self._receiving: ReceivingLink | None = None
        self.published = 0
        self._done = Done(1)
        self._confirms = False
        self._queue: deque[tuple[bytes, Content]] = deque()  # messages that wait for credit
        self._unsettled: dict[int, None] = {}  # tags, in ascending order
        self._prefetch = 0
        self._events: SourceEvents | None = None
        self._is_draining = False
        self._attached: Callable[[], None] | None = None
        self._synchronized: Callable[[], None] | None = None

    # ---- what happens to the session and the link ----

    def on_begun(self) -> None:
        """As `SessionOwner.on_begun`."""
        self._side.opened()

    def on_ended(self, error: Composite | None) -> None:
        """The session or the link has ended."""
        wire = self._side.wire
        if wire is not None and wire.phase is Phase.OPEN:
            self._side.fail("the broker has ended the link" if error is None else error_text(error))

    def on_attached(self) -> None:
        """As `LinkOwner.on_attached`."""
        attached, self._attached = self._attached, None
        if attached is not None and not self._side.is_over:
            attached()

    def on_credit(self) -> None:
        """As `LinkOwner.on_credit`."""
        if self._side.is_over:
            return
        link, queue = self._sending, self._queue
        if link is not None:
            while queue and link.can_send:
                link.transfer(*queue.popleft(), is_settled=not self._confirms)
            self._side.look()
            self._owner.on_room()
        synchronized, self._synchronized = self._synchronized, None
        if synchronized is not None:
            synchronized()
        if self._events is not None and self._is_draining:
            assert self._receiving is not None
            if not self._receiving.is_draining:
                self._is_draining = False
                self._events.on_drained()

    # ---- as a destination ----

    def attach_target(self, address: str, *, confirms: bool, done: Callable[[], None]) -> None:
        """Attach the link, to send messages; `confirms`: whether they are confirmed."""
        self._confirms, self._attached = confirms, done
        self._sending = self.session.attach_sender(
            self._name, self, snd_settle_mode=UNSETTLED if confirms else SETTLED, rcv_settle_mode=FIRST,
            source=Composite("source", {}), target=Composite("target", {"address": Value("string", address)}),
        )  # fmt: skip

    @property
    def takes_messages(self) -> bool:
        """Whether a message would be sent at once, if it is one that is sent."""
        return self._sending is None or (not self._queue and self._sending.can_send)

    @property
    def credit(self) -> int:
        """How many messages would be sent at once."""
        link = self._sending
        return 0 if link is None or self._queue or not link.can_send else link.credit

    def publish(self, payload: bytes, header: bytes, body: Content) -> int:
        """Send a message, as soon as there is credit.

        Args:
            payload: nothing.
            header: its sections before the body.
            body: the others.

        Returns:
            its number.
        """
        del payload
        link = self._sending
        assert link is not None
        self.published += 1
        if self._queue or not link.can_send:
            self._queue.append((header, body))
        else:
            link.transfer(header, body, is_settled=not self._confirms)
        if not link.can_send:
            self._side.look()
        return self.published

    @property
    def settled_below(self) -> int:
        """All messages with numbers below this are confirmed or refused."""
        return self._done.below

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """As `SessionOwner.on_outcome`."""
        if self._side.is_over:
            return
        is_accepted, self.outcome = state is not None and state.name == "accepted", state
        for begin, end in list(self._done.missing(first + 1, last + 1)):
            self._done.add(begin, end)
            self._owner.on_confirmed(begin, end, is_accepted=is_accepted)

    def on_settled(self, first: int, last: int) -> None:
        """As `SessionOwner.on_settled`: as a rule, this end settles."""
        if self._events is not None and not self._side.is_over:
            self._events.on_settled(first + 1, last + 1)

    # ---- as a source ----

    def attach_source(self, address: str, *, prefetch: int, no_ack: bool, done: Callable[[], None]) -> None:
        """Attach the link, to receive messages."""
        self._prefetch = prefetch

        def attached() -> None:
            done()
            self._top_up()

        self._attached = attached
        self._attach(address, no_ack=no_ack, fields={})

    def attach_own_source(
        self, address: str, events: SourceEvents, fields: Mapping[str, Any], *, no_ack: bool, done: Callable[[], None]
    ) -> None:
        """As `attach_source`, but that `events` gives the credit (`ask`); `fields` are further ones of the source."""
        self._events, self._attached = events, done
        self._attach(address, no_ack=no_ack, fields=fields)

    def _attach(self, address: str, *, no_ack: bool, fields: Mapping[str, Any]) -> None:
        source = Composite("source", {"address": Value("string", address), **fields})
        self._receiving = self.session.attach_receiver(
            self._name, self, snd_settle_mode=SETTLED if no_ack else UNSETTLED, rcv_settle_mode=FIRST, source=source,
            target=Composite("target", {}),
        )  # fmt: skip

    @property
    def source(self) -> Mapping[str, Any]:
        """The fields of the source to which the link is attached, as the other end has answered."""
        found = None if self._receiving is None else self._receiving.answer.get("source")
        return found.fields if isinstance(found, Composite) else {}

    def ask(self, credit: int, *, is_draining: bool) -> None:
        """Have the source send so many messages from now on; `is_draining`: those that there are."""
        assert self._receiving is not None
        self._is_draining = is_draining
        self._receiving.set_credit(credit, drain=is_draining)

    def settle(self, tags: Sequence[int], state: Composite | None, *, is_settled: bool) -> None:
        """Send an outcome for messages; unless `is_settled`, the other end settles them (`SourceEvents.on_settled`)."""
        runs: list[tuple[int, int]] = []
        for tag in tags:
            if runs and runs[-1][1] == tag - 2:
                runs[-1] = runs[-1][0], tag - 1
            else:
                runs.append((tag - 1, tag - 1))
        self.session.settle(runs, state, is_settled=is_settled)

    def _top_up(self) -> None:
        link = self._receiving
        if link is not None and link.is_attached and self._events is None:
            free = self._prefetch - len(self._unsettled)
            if link.is_credit_due(free, self._prefetch):
                link.set_credit(free)

    def on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        """As `LinkOwner.on_message`."""
        if self._side.is_over:
            return
        try:
            message = section_message(content, self._side.now)
        except Amqp10Error as error:
            self._side.fail(f"a message cannot be read: {error}")
            return
        if self._events is not None:
            self._events.on_fetched(number + 1, message, is_settled=is_settled)
            return
        if not is_settled:
            self._unsettled[number + 1] = None
        self._owner.on_message(number + 1, message)
        if is_settled:
            self._top_up()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Accept a message, or all up to it."""
        unsettled = self._unsettled
        first = tag
        if multiple:
            first = next(iter(unsettled), tag + 1)
            while unsettled and (each := next(iter(unsettled))) <= tag:
                del unsettled[each]
        else:
            unsettled.pop(tag, None)
        if first <= tag:
            self.session.settle([(first - 1, tag - 1)], _ACCEPTED, is_settled=True)
        self._top_up()

    def nack(self, tag: int) -> None:
        """Return a message to its queue."""
        self._unsettled.pop(tag, None)
        self.session.settle([(tag - 1, tag - 1)], _RETURNED, is_settled=True)
        self._top_up()

    def synchronize(self, done: Callable[[], None]) -> None:
        """Take the credit back, and call when the broker has processed what was acknowledged: it answers in order."""
        link = self._receiving
        if link is not None:
            self._prefetch = 0
            self._synchronized = done
            link.set_credit(0, echo=True)


def section_message(content: Content, now: float) -> SectionMessage:
    """A message that was received, without an exchange; its key is its subject. Raises Amqp10Error."""
    header, body, sections = split_message(content)
    fields, expires_at = fields_of(header, sections), expiry_of(header, sections)
    if fields.ttl is not None:
        end = now + fields.ttl / 1000
        expires_at = min(expires_at, end) if expires_at else end
    handling = Handling(priority=fields.priority)
    message = SectionMessage(header, body, sections, "", "", b"", fields, handling, expires_at)
    subject: Any = message.section_properties().get("subject")
    message.routing_key = subject or ""
    return message
