"""Channels of AMQP 0-9-1, on the client's end of the protocol that shovels use, too.

Without a user in the URL the login is ANONYMOUS where the broker offers it, and `guest` elsewhere, as RabbitMQ's
clients do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qstore.broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    HeartbeatError,
    MessagingError,
)
from qstore.broker.client.options import Destination, Endpoint, mechanism_chooser
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_9_1.client_connection import (
    ClientChannel,
    ClientConnection,
    Values,
    decode_deliver,
    encode_publish,
)
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError, HardError
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.simple import ANONYMOUS, EXTERNAL
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import encode_ack, encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.values import typed_map
from qstore.tools.load.channel import Done, Encoded, LoadChannel, Queue, Route, Style
from qstore.tools.load.loop import Line

_GUEST: Final = "guest"
_DEFAULT_HOST: Final = "/"
_TAG: Final = "load"
_PERSISTENT: Final = 2
_UNLIMITED: Final = 1 << 62


class BasicWire:
    """The client's end of one connection, as `connection.WireConnection`.

    Args:
        destination: the broker.
        endpoint: where it is.
        has_output: called whenever output was added.

    Attributes:
        connection: the machine.
        failure: why it has ended; None before, and after a close that was asked for.
    """

    def __init__(self, destination: Destination, endpoint: Endpoint, has_output: Callable[[], None]) -> None:
        options = destination.options
        self.has_output = has_output
        self.failure: MessagingError | None = None
        self._was_open = self._is_over = False
        credentials = destination.credentials(endpoint)
        as_guest = credentials._replace(user=_GUEST, password=_GUEST)

        def choose(offered: tuple[str, ...]) -> ClientMechanism:
            is_unnamed = credentials.user is None and options.sasl_mechanisms is None
            is_guest = is_unnamed and ANONYMOUS not in offered
            is_guest = is_guest and not (EXTERNAL in offered and credentials.has_certificate)
            return mechanism_chooser(options, as_guest if is_guest else credentials)(offered)

        self.connection = ClientConnection(
            self, choose, virtual_host=options.virtual_host or _DEFAULT_HOST,
            client_properties=options.client_properties, heartbeat=options.heartbeat or None,
            max_message_bytes=options.max_message_bytes,
        )  # fmt: skip

    # ---- as a connection of the client ----

    @property
    def phase(self) -> Phase:
        """As `WireConnection.phase`."""
        return self.connection.phase

    @property
    def heartbeat(self) -> int:
        """As `WireConnection.heartbeat`."""
        return self.connection.heartbeat

    def receive(self, data: bytes) -> None:
        """As `WireConnection.receive`."""
        self.connection.receive(data)

    def take_output(self) -> bytes:
        """As `WireConnection.take_output`."""
        return self.connection.take_output()

    def on_timer(self, now: float) -> None:
        """As `WireConnection.on_timer`."""
        was_open = self.phase is Phase.OPEN
        self.connection.on_timer(now)
        if was_open and self.phase is Phase.CLOSED:
            self.failure = HeartbeatError(self.connection.close_text)

    def close(self) -> None:
        """As `WireConnection.close`."""
        self.connection.close()

    def lost(self, reason: MessagingError) -> None:
        """As `WireConnection.lost`."""
        if self.phase is not Phase.CLOSED:
            if self.phase is not Phase.CLOSING:
                self.failure = reason
            self.connection.lost(str(reason))

    # ---- as the owner of the machine ----

    def on_open(self) -> None:
        """As `ConnectionOwner.on_open`."""
        self._was_open = True

    def on_closed(self, error: HardError | None) -> None:
        """As `ConnectionOwner.on_closed`."""
        if error is None or self.failure is not None:
            return
        text = str(error)
        if self._was_open:
            self.failure = ConnectionClosedError(f"the connection was closed: {text}")
        elif error.code == ReplyCode.ACCESS_REFUSED:
            self.failure = AuthenticationError(f"authentication failed: {text}")
        else:
            self.failure = ConnectError(f"the connection was not opened: {text}")

    def on_blocked(self, reason: str) -> None:
        """As `ConnectionOwner.on_blocked`: the broker does not read before it takes messages again."""


class BasicChannel(LoadChannel):
    """A channel of AMQP 0-9-1. The first message to each route is mandatory: one without a queue is noticed."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        assert isinstance(line.wire, BasicWire)
        self._connection = line.wire.connection
        self._channel: ClientChannel
        self._routes: list[tuple[bytes, bytes]] = []  # basic.publish, and the same with mandatory
        self._mandatory: dict[int, tuple[Encoded, Encoded]] = {}
        self._is_lost: Exception | None = None

    def _answer(self, done: Done) -> Callable[[Values, CodedError | None], None]:
        return lambda _values, error: done(error)

    def open(self, done: Done) -> None:
        """As `LoadChannel.open`."""
        self._channel = self._connection.open_channel(self, self._answer(done))

    def close(self, done: Done) -> None:
        """As `LoadChannel.close`."""
        self._closed = done
        self._channel.close()

    _closed: Done | None = None

    # ---- topology ----

    def declare_queue(self, queue: Queue, done: Done) -> None:
        """As `LoadChannel.declare_queue`."""
        self._channel.declare_queue(
            queue.name, self._answer(done), durable=queue.durable, exclusive=queue.exclusive,
            auto_delete=queue.auto_delete, arguments=typed_map(queue.arguments),
        )  # fmt: skip

    def check_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.check_queue`."""
        self._channel.declare_queue(name, self._answer(done), passive=True)

    def purge_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.purge_queue`."""
        self._channel.call("queue.purge", self._answer(done), queue=name)

    def delete_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.delete_queue`."""
        self._channel.call("queue.delete", self._answer(done), queue=name)

    def bind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """As `LoadChannel.bind`."""
        self._channel.bind_queue(queue, exchange, key, self._answer(done))

    def unbind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """As `LoadChannel.unbind`."""
        self._channel.call("queue.unbind", self._answer(done), queue=queue, exchange=exchange, routing_key=key)

    # ---- publishing ----

    def publish_to(self, routes: Sequence[Route], *, confirms: bool, done: Done) -> None:
        """As `LoadChannel.publish_to`."""
        self._routes = [
            (encode_publish(routed), encode_publish(routed, mandatory=True))
            for routed in (encode_routed(*route) for route in routes)
        ]
        self._untried = set(range(len(routes)))
        if confirms:
            self._channel.confirm_select(self._answer(done))
        else:
            done(None)

    def encode(self, route: int, body: bytes, style: Style) -> Encoded:
        """As `LoadChannel.encode`."""
        properties = Properties(
            delivery_mode=_PERSISTENT if style.persistent else None, priority=style.priority,
            headers=typed_map(style.headers) if style.headers else None,
        )  # fmt: skip
        header = encode_header(len(body), properties)
        data = self._channel.encode_message(self._routes[route][0], header, body)
        return Encoded(data, data.index(header) + len(header) + 1 + 7 if body else len(data), route)

    def room(self, route: int) -> int:  # noqa: ARG002 – as the others have it
        """As `LoadChannel.room`: the broker stops reading."""
        return _UNLIMITED if self._channel.is_flowing else 0

    def put(self, message: Encoded, times: int, each: int = 1) -> None:
        """As `LoadChannel.put`."""
        if message.route in self._untried:
            self._put_mandatory(message, each)
            times -= 1
        if times:
            self._channel.publish_encoded(message.data * times, times * each)

    def _put_mandatory(self, message: Encoded, each: int) -> None:
        self._untried.clear() if each > 1 else self._untried.discard(message.route)
        data = message.data
        for plain, mandatory in self._routes if each > 1 else (self._routes[message.route],):
            data = data.replace(plain, mandatory)
        self._channel.publish_encoded(data, each)

    # ---- consuming ----

    def consume(self, queue: str, prefetch: int, *, acknowledges: bool, done: Done, limit: int = 0) -> None:
        """As `LoadChannel.consume`."""
        assert not limit
        self._channel.run_owner = self

        def limited(_values: Values, error: CodedError | None) -> None:
            if error is None:
                self._channel.consume(queue, _TAG, self._answer(done), no_ack=not acknowledges)
            else:
                done(error)

        self._channel.qos(min(prefetch, 0xFFFF), limited)

    def accept(self, first: int, last: int) -> None:
        """As `LoadChannel.accept`."""
        self._channel.send_method(encode_ack(last, multiple=first != last))

    def cancel(self, done: Done) -> None:
        """As `LoadChannel.cancel`."""
        self._channel.cancel(_TAG, self._answer(done))

    # ---- transactions ----

    def select_transactions(self, done: Done) -> None:
        """As `LoadChannel.select_transactions`."""
        self._channel.call("tx.select", self._answer(done))

    def commit(self, done: Done) -> None:
        """As `LoadChannel.commit`."""
        self._channel.call("tx.commit", self._answer(done))

    # ---- as the owner of the channel ----

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:  # noqa: ARG002
        """As `ChannelOwner.on_delivery`."""
        if self.deliveries is not None:
            self.deliveries.on_message(decode_deliver(payload).delivery_tag, bytes(body))

    def on_deliveries(self, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:  # noqa: ARG002
        """As `RunOwner.on_deliveries`."""
        if self.deliveries is not None:
            self.deliveries.on_messages(first, bodies, 0)

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""
        if self.confirms is not None:
            self.confirms.on_confirmed(last - first + 1, is_accepted=is_accepted)

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:  # noqa: ARG002
        """As `ChannelOwner.on_returned`."""
        if self.confirms is not None:
            self.confirms.on_returned()

    def on_cancelled(self, consumer_tag: str) -> None:
        """As `ChannelOwner.on_cancelled`."""
        self.line.loop.failed(
            ConnectionClosedError(f"the broker has ended the consumer {consumer_tag!r}: its queue is gone")
        )

    def on_channel_closed(self, error: CodedError | None) -> None:
        """As `ChannelOwner.on_channel_closed`."""
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(error)
        elif error is not None and self.line.is_open:
            self.line.loop.failed(ConnectionClosedError(f"the broker has closed the channel: {error}"))
