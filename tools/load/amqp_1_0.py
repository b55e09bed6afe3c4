"""Channels of AMQP 1.0: sessions of the client's machine, each with links to the queues that it uses.

An exchange is the address of a link, and the routing key the subject of its messages; without an exchange the routing
key is the address. Queues are declared as addresses with `create: always` do it; what AMQP 1.0 has no words for, such
as bindings, is refused.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from qstore.broker.client.address import RECEIVER, SENDER
from qstore.broker.client.amqp_1_0.links import Terminus, error_of
from qstore.broker.client.amqp_1_0.machine import WireConnection, WireSession
from qstore.broker.client.amqp_1_0.message import encode_message
from qstore.broker.client.errors import MessagingError, SessionError, UnsupportedError
from qstore.broker.client.message import Message
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_1_0.client_connection import FIRST, SETTLED, UNSETTLED, ReceivingLink, SendingLink
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.sections import section_head_size, split_sections
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.kernels.bodies import Bodies
from qstore.tools.load.channel import Done, Encoded, LoadChannel, Queue, Route, Style
from qstore.tools.load.loop import Line

_CREDIT: Final = 10_000
"""Credit of a consumer without a limit."""
_ACCEPTED: Final = Composite("accepted", {})


class _Link:
    """A link, and what waits for it."""

    link: Any

    def __init__(self, channel: LinkChannel, name: str, role: str, attached: Done) -> None:
        self._channel, self._name, self._role = channel, name, role
        self._attached: Done | None = attached
        self.detached: Done | None = None

    def on_attached(self) -> None:
        """As `LinkOwner.on_attached`."""
        attached, self._attached = self._attached, None
        if attached is not None:
            attached(None)

    def on_ended(self, error: Composite | None) -> None:
        """As `LinkOwner.on_ended`."""
        attached, self._attached = self._attached, None
        detached, self.detached = self.detached, None
        if detached is not None:
            detached(None)
        elif attached is not None:
            attached(error_of(self._name, error, self._role))
        elif self._channel.line.is_open:
            self._channel.line.loop.failed(error_of(self._name, error, self._role))

    def on_credit(self) -> None:
        """As `LinkOwner.on_credit`."""
        if self._channel.confirms is not None:
            self._channel.confirms.on_room()

    def on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        """As `LinkOwner.on_message`."""
        data = bytes(content)
        at = split_sections(data).body_at
        self._channel.on_message(number, data[at + section_head_size(data, at) :], is_settled=is_settled)

    def on_messages(self, first: int, bodies: Bodies, *, is_settled: bool) -> None:
        """As `RunOwner.on_messages`."""
        self._channel.on_messages(first, bodies, is_settled=is_settled)


class LinkChannel(LoadChannel):
    """A session of AMQP 1.0. Credit is given for messages that are not settled yet, less than `prefetch`."""

    joins = False
    _wire: WireSession

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        assert isinstance(line.wire, WireConnection)
        self._connection = line.wire
        self._routes: Sequence[Route] = ()
        self._sending: list[SendingLink] = []
        self._confirms = False
        self._receiving: _Link | None = None
        self._temporary: dict[str, _Link] = {}
        self._prefetch = self._unsettled = 0
        self._opening: Done | None = None
        self._closing: Done | None = None
        self._names = (f"{uuid.uuid4()}-{number}" for number in itertools.count())

    def open(self, done: Done) -> None:
        """As `LoadChannel.open`."""
        self._opening = done
        self._wire = self._connection.open_session(self)
        self.line.after_input.append(self._after_input)

    def close(self, done: Done) -> None:
        """As `LoadChannel.close`."""
        self._closing = done
        self._wire.session.end()
        self.line.loop.has_output(self.line)

    def _after_input(self) -> None:
        wire = self._wire
        if self._opening is not None and wire.is_decided:
            opening, self._opening = self._opening, None
            opening(wire.failure)
        if wire.session.is_ended or wire.failure is not None:
            self.line.after_input.remove(self._after_input)
            closing, self._closing = self._closing, None
            if closing is not None:
                closing(None)
            elif isinstance(wire.failure, SessionError):
                self.line.loop.failed(wire.failure)

    # ---- topology ----

    def _attach(self, address: str, role: str, done: Done, *, mode: int, fields: dict[str, Any] | None = None) -> _Link:
        """Attach a link to an address in the syntax of the client, or with these fields of its source or target."""
        link = _Link(self, address, role, done)
        session, name = self._wire.session, next(self._names)
        found = Terminus(address, role).fields if fields is None else fields
        if role == SENDER:
            link.link = session.attach_sender(
                name, link, snd_settle_mode=mode, rcv_settle_mode=FIRST, source=Composite("source", {}),
                target=Composite("target", found),
            )  # fmt: skip
        else:
            link.link = session.attach_receiver(
                name, link, snd_settle_mode=mode, rcv_settle_mode=FIRST, source=Composite("source", found),
                target=Composite("target", {}),
            )  # fmt: skip
        return link

    def _detach(self, link: _Link, done: Done) -> None:
        link.detached = done
        link.link.detach()

    def declare_queue(self, queue: Queue, done: Done) -> None:
        """As `LoadChannel.declare_queue`. One that is exclusive has a name from the broker, and ends with its link."""
        if queue.exclusive:
            link = self._attach("#", RECEIVER, done, mode=UNSETTLED)
            self._temporary[queue.name] = link
            return
        declare: dict[str, Any] = {"auto-delete": queue.auto_delete} if queue.auto_delete else {}
        declare["arguments"] = dict(queue.arguments)
        node = {"type": "queue", "durable": queue.durable, "x-declare": declare}
        address = f"{json.dumps(queue.name)}; {{create: always, node: {json.dumps(node)}}}"

        def attached(error: Exception | None) -> None:
            if error is None:
                self._detach(link, done)
            else:
                done(error)

        link = self._attach(address, SENDER, attached, mode=UNSETTLED)

    def check_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.check_queue`."""

        def attached(error: Exception | None) -> None:
            if error is None:
                self._detach(link, done)
            else:
                done(error)

        link = self._attach(name, SENDER, attached, mode=UNSETTLED, fields=_address(name))

    def purge_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.purge_queue`."""
        done(_unsupported(f"purge the queue {name!r}"))

    def delete_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.delete_queue`."""
        link = self._temporary.pop(name, None)
        if link is None:
            done(_unsupported(f"delete the queue {name!r}"))
        else:
            self._detach(link, done)

    def bind(self, queue: str, exchange: str, key: str, done: Done) -> None:  # noqa: ARG002
        """As `LoadChannel.bind`."""
        done(_unsupported(f"bind the queue {queue!r} to {exchange!r}"))

    def unbind(self, queue: str, exchange: str, key: str, done: Done) -> None:  # noqa: ARG002
        """As `LoadChannel.unbind`."""
        done(_unsupported(f"unbind the queue {queue!r} from {exchange!r}"))

    # ---- publishing ----

    def publish_to(self, routes: Sequence[Route], *, confirms: bool, done: Done) -> None:
        """As `LoadChannel.publish_to`."""
        self._routes, self._confirms = routes, confirms
        self._attach_next(0, done)

    def _attach_next(self, number: int, done: Done) -> None:
        if number == len(self._routes):
            done(None)
            return
        route = self._routes[number]

        def attached(error: Exception | None) -> None:
            if error is None:
                self._sending.append(link.link)
                self._attach_next(number + 1, done)
            else:
                done(error)

        name = route.exchange or route.key
        mode = UNSETTLED if self._confirms else SETTLED
        link = self._attach(name, SENDER, attached, mode=mode, fields=_address(name))

    def encode(self, route: int, body: bytes, style: Style) -> Encoded:
        """As `LoadChannel.encode`."""
        found = self._routes[route]
        message = Message(body, properties=style.headers, durable=style.persistent, priority=style.priority)
        sections, rest = encode_message(message, found.key if found.exchange else None)
        content = sections + rest
        at = split_sections(content).body_at
        return Encoded(content, at + section_head_size(content, at), route)

    def room(self, route: int) -> int:
        """As `LoadChannel.room`."""
        link = self._sending[route]
        return link.room

    def put(self, message: Encoded, times: int, each: int = 1) -> None:
        """As `LoadChannel.put`."""
        assert each == 1
        link = self._sending[message.route]
        if link.fits(message.data):
            link.transfer_many(message.data, times, is_settled=not self._confirms)
            return
        for _ in range(times):  # what exceeds the window waits
            link.transfer(message.data, b"", is_settled=not self._confirms)

    # ---- consuming ----

    def consume(self, queue: str, prefetch: int, *, acknowledges: bool, done: Done, limit: int = 0) -> None:
        """As `LoadChannel.consume`."""
        assert not limit
        self._prefetch = prefetch or _CREDIT

        def attached(error: Exception | None) -> None:
            done(error)
            if error is None:
                self._top_up()

        mode = UNSETTLED if acknowledges else SETTLED
        self._receiving = self._attach(queue, RECEIVER, attached, mode=mode, fields=_address(queue))
        self._receiving.link.run_owner = self._receiving

    def _top_up(self) -> None:
        if self._receiving is None:
            return
        link: ReceivingLink = self._receiving.link
        if link.is_attached:
            free = self._prefetch - self._unsettled
            if link.is_credit_due(free, self._prefetch):
                link.set_credit(free)

    def accept(self, first: int, last: int) -> None:
        """As `LoadChannel.accept`."""
        self._wire.session.settle([(first, last)], _ACCEPTED, is_settled=True)
        self._unsettled -= last - first + 1
        self._top_up()

    def cancel(self, done: Done) -> None:
        """As `LoadChannel.cancel`."""
        assert self._receiving is not None
        self._detach(self._receiving, done)

    # ---- transactions ----

    def select_transactions(self, done: Done) -> None:
        """As `LoadChannel.select_transactions`."""
        done(UnsupportedError("transactions are not measured over AMQP 1.0: use another protocol"))

    def commit(self, done: Done) -> None:
        """As `LoadChannel.commit`."""
        self.select_transactions(done)

    # ---- as the owner of the session and its links ----

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """As `SessionEvents.on_outcome`."""
        if self.confirms is not None:
            is_accepted = state is not None and state.name == "accepted"
            self.confirms.on_confirmed(last - first + 1, is_accepted=is_accepted)

    def on_broker_settled(self, first: int, last: int) -> None:
        """As `SessionEvents.on_broker_settled`: this end settles."""

    def on_message(self, number: int, body: bytes, *, is_settled: bool) -> None:
        """A message was received."""
        if not is_settled:
            self._unsettled += 1
        if self.deliveries is not None:
            self.deliveries.on_message(number, body)
        if is_settled:
            self._top_up()

    def on_messages(self, first: int, bodies: Bodies, *, is_settled: bool) -> None:
        """Messages were received that differ only in their bodies."""
        if not is_settled:
            self._unsettled += bodies.count
        if self.deliveries is not None:
            self.deliveries.on_messages(first, bodies, section_head_size(bodies.data, bodies.at + bodies.start(0)))
        if is_settled:
            self._top_up()


def _address(name: str) -> dict[str, Any]:
    """The fields of a source or target with an address as it is."""
    return {"address": Value("string", name)}


def _unsupported(what: str) -> MessagingError:
    return UnsupportedError(f"AMQP 1.0 has no words to {what}: use another protocol, or --predeclared")
