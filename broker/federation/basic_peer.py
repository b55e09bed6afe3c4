"""The broker as a client of a broker over AMQP 0-9-1: a side (`peer`) with a channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.federation.peer import Choose, PeerMachine, PeerNetwork, PeerSide, SideEvents
from qstore.broker.federation.uri import AmqpUri
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_9_1.client_connection import ClientChannel, ClientConnection, Values
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError, HardError
from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker


class BasicPeer(ClientConnection):
    """The client's end of a connection.

    Args:
        side: its owner.
        machine: its machine.
        choose: chooses the mechanism.
        uri: the broker, as its URI describes it.
        name: the connection's name, which the other broker shows.
        max_message_bytes: as of `ClientConnection`.
    """

    def __init__(
        self,
        side: Side,
        machine: PeerMachine,
        choose: Choose,
        uri: AmqpUri,
        name: str,
        max_message_bytes: int,
    ) -> None:
        self._machine = machine
        super().__init__(
            side, choose, virtual_host=uri.vhost, client_properties={"connection_name": name},
            heartbeat=uri.heartbeat, max_message_bytes=max_message_bytes,
        )  # fmt: skip

    def has_output(self) -> None:
        """Send the output at the end of the tick."""
        self._machine.has_output()

    def resume(self) -> None:
        """As `Connection.resume`."""
        super().resume()
        self._machine.wire_resumed()

    def on_closed(self) -> None:
        """The connection is closed or lost."""
        super().on_closed()
        self._machine.wire_closed()

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        if self.phase is Phase.OPEN:
            self._error = HardError(ReplyCode.CONNECTION_FORCED, text)
            self.close(ReplyCode.CONNECTION_FORCED, text)
        else:
            self.lost(text)


class SideOwner(SideEvents, Protocol):
    """What a side is for."""

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_delivery`."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_returned`."""


class Side(PeerSide):
    """A connection to a broker, with a channel; its arguments are those of `PeerSide`.

    Attributes:
        basic: its connection; None before there is one.
    """

    basic: BasicPeer | None

    def __init__(
        self,
        owner: SideOwner,
        broker: Broker,
        network: PeerNetwork,
        uris: Sequence[AmqpUri],
        user: str,
        name: str,
    ) -> None:
        super().__init__(owner, broker, network, uris, user, name)
        self.basic = None
        self._owner = owner
        self._channel: ClientChannel | None = None

    @property
    def channel(self) -> ClientChannel:
        """Its channel."""
        assert self._channel is not None
        return self._channel

    def make_wire(self, machine_of: Callable[[str], PeerMachine], choose: Choose) -> PeerMachine:
        """As `PeerSide.make_wire`."""
        machine, limit = machine_of("AMQP 0-9-1"), self._broker.settings.max_message_bytes
        wire = self.wire = self.basic = BasicPeer(self, machine, choose, self.uri, self._name, limit)
        machine.connect(wire)
        return machine

    def force_close(self, text: str) -> None:
        """As `PeerSide.force_close`."""
        if self.basic is not None:
            self.basic.force_close(text)

    # ---- what happens to it ----

    def on_open(self) -> None:
        """As `ConnectionOwner.on_open`."""
        assert self.basic is not None
        self._channel = self.basic.open_channel(self)
        self.opened()

    def on_closed(self, error: HardError | None) -> None:
        """As `ConnectionOwner.on_closed`; without an error the network knows why."""
        if error is not None:
            self.lost(str(error))

    def on_blocked(self, reason: str) -> None:
        """As `ConnectionOwner.on_blocked`."""
        self.blocked = reason
        self.look()

    def has_output(self) -> None:
        """As `ConnectionOwner.has_output`: the connection knows by itself."""

    def on_channel_closed(self, error: CodedError | None) -> None:
        """As `ChannelOwner.on_channel_closed`; the end of the connection is reported by itself."""
        if error is not None and not isinstance(error, HardError):
            self.fail(str(error))

    def on_cancelled(self, consumer_tag: str) -> None:  # noqa: ARG002 – there is one consumer
        """As `ChannelOwner.on_cancelled`."""
        self.fail("the broker has cancelled the consumer: its queue was deleted")

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_delivery`."""
        if not self.delivers:
            self.fail("the broker has sent an unexpected message")
        elif not self._is_over:
            self._owner.on_delivery(payload, header, body)

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""
        if not self._is_over:
            self._owner.on_confirmed(first, last, is_accepted=is_accepted)

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_returned`."""
        if not self._is_over:
            self._owner.on_returned(values, header, body)

    # ---- topology ----

    def on_other_channel(
        self,
        call: Callable[[ClientChannel, Callable[[Values, CodedError | None], None]], None],
        done: Callable[[Values, CodedError | None], None],
    ) -> None:
        """Make a call on a channel of its own, which an error closes, and close it."""
        assert self.basic is not None
        try:
            channel = self.basic.open_channel(NO_OWNER)
        except ValueError as error:
            self.fail(str(error))
            return

        def answered(values: Values, error: CodedError | None) -> None:
            if error is None:
                channel.close()
            if not self._is_over and not isinstance(error, HardError):  # otherwise the connection has ended
                done(values, error)

        call(channel, answered)

    def ensure_queue(self, name: str, arguments: TypedMap, done: Callable[[int], None]) -> None:
        """Make sure that a queue exists: one that does not is declared, durable. Calls back with its messages."""

        def looked(values: Values, error: CodedError | None) -> None:
            if error is not None and error.code == ReplyCode.NOT_FOUND:
                self.on_other_channel(
                    lambda channel, answer: channel.declare_queue(name, answer, durable=True, arguments=arguments),
                    partial(self._queue_found, done),
                )
            else:
                self._queue_found(done, values, error)

        self.on_other_channel(lambda channel, answer: channel.declare_queue(name, answer, passive=True), looked)

    def _queue_found(self, done: Callable[[int], None], values: Values, error: CodedError | None) -> None:
        if error is None:
            done(int(values["message_count"]))
        else:
            self.fail(str(error))

    def check_exchange(self, name: str, done: Callable[[], None]) -> None:
        """Make sure that an exchange exists."""
        if not name:
            done()
            return

        def looked(_values: Values, error: CodedError | None) -> None:
            if error is None:
                done()
            else:
                self.fail(str(error))

        self.on_other_channel(
            lambda channel, answer: channel.declare_exchange(name, "direct", answer, passive=True), looked
        )

    def expect(self, done: Callable[[Values], None]) -> Callable[[Values, CodedError | None], None]:
        """The function for an answer on the channel, whose error is reported by itself."""

        def answered(values: Values, error: CodedError | None) -> None:
            if error is None and not self._is_over:
                done(values)

        return answered


class _NoOwner:
    """The owner of channels that only make one call."""

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        pass

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        pass

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        pass

    def on_cancelled(self, consumer_tag: str) -> None:
        pass

    def on_channel_closed(self, error: CodedError | None) -> None:
        pass


NO_OWNER: Final = _NoOwner()
