"""The client's end of an AMQP 0-9-1 connection: negotiates until it is open, then opens channels.

    header        the protocol header is in the output from the beginning
    negotiation   start, secure, tune and open are answered; the lower of both ends' limits applies
    open          `ConnectionOwner.on_open`: channels can be opened
    blocked       the broker asks for no more messages (connection.blocked): `is_blocked`; nothing is withheld here
    end           `ConnectionOwner.on_closed`, once; every channel ends before

A channel sends methods. Those that have an answer are sent at once, and their answers come in order: each call has a
function that gets the values of the answer, or the error that ended the channel.

    publish       after `confirm_select` messages are numbered from 1. The broker confirms or refuses each number once,
                  in runs (`ChannelOwner.on_confirmed`)
                  One message that is sent many times is encoded once (`encode_message`, `publish_encoded`)
    deliveries    method and content are passed on as bytes (`ChannelOwner.on_delivery`); `decode_deliver` reads the
                  fields that all need. A channel with a `run_owner` passes on those that are alike together

Errors have the classes of the broker's end (`errors`): a SoftError has closed one channel, a HardError the connection.
Their codes say what was wrong. Nothing here waits, and nothing is sent before the owner takes `output`.

Sources: AMQP 0-9-1, all classes; RabbitMQ, "Protocol extensions", "Consumer Acknowledgements and Publisher Confirms"
and "Blocked Connection Notifications".
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from qstore import __version__
from qstore.broker.model.completion import Done
from qstore.broker.model.message import Buffer, Content
from qstore.broker.protocols.amqp_0_9_1.assembly import DeliveryAssembler, MixedRun
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError, HardError, SoftError, encode_close, malformed
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME, content_frames
from qstore.broker.protocols.assembly import Budget, ProtocolError
from qstore.broker.protocols.connection import NORMAL, Connection, Phase
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    FRAME,
    FRAME_END,
    FRAME_MIN_SIZE,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import ACK, decode_ack, decode_method, encode_ack, encode_method
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map

MAX_CHANNELS: Final = 2_047
"""Channels that a client opens at most on one connection, as RabbitMQ's clients do."""

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "exchange_exchange_bindings": True,
}
"""The extensions that this client knows."""

_NAME_SIZE_AT: Final = 4  # in basic.deliver, after class and method
_TAG_BYTES: Final = 8
_END: Final = bytes((FRAME_END,))
_PUBLISH_BEGIN: Final = encode_method("basic.publish")[:6]  # class, method, ticket

Values: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Values, CodedError | None], None]
"""Gets the values of an answer, or the error that ended the channel before it came; then the values are empty."""


class Delivered(NamedTuple):
    """The fields of basic.deliver.

    Attributes:
        consumer_tag: the consumer.
        delivery_tag: the number to settle it by.
        redelivered: whether it may have been delivered before.
        routed: exchange and routing key, as bytes of basic.deliver and of basic.publish.
    """

    consumer_tag: bytes
    delivery_tag: int
    redelivered: bool
    routed: bytes

    @property
    def key(self) -> str:
        """The routing key."""
        return self.routed[2 + self.routed[0] :].decode("utf-8", "surrogateescape")


def decode_deliver(payload: bytes) -> Delivered:
    """Read a basic.deliver, without decoding exchange and routing key.

    Raises:
        Amqp091Error: it is too short.
    """
    tag_at = _NAME_SIZE_AT + 1 + payload[_NAME_SIZE_AT] if len(payload) > _NAME_SIZE_AT else 0
    routed_at = tag_at + _TAG_BYTES + 1
    if len(payload) < routed_at + 2:
        raise Amqp091Error("basic.deliver ends within its fields", len(payload))
    return Delivered(
        payload[_NAME_SIZE_AT + 1 : tag_at],
        int.from_bytes(payload[tag_at : tag_at + _TAG_BYTES], "big"),
        payload[routed_at - 1] & 1 != 0,
        payload[routed_at:],
    )


def encode_publish(routed: bytes, *, mandatory: bool = False) -> bytes:
    """basic.publish to an exchange and routing key, from `encode_routed` or a delivery."""
    return b"".join((_PUBLISH_BEGIN, routed, b"\1" if mandatory else b"\0"))


class ConnectionOwner(Protocol):
    """Hears what happens to a connection."""

    def on_open(self) -> None:
        """The connection is open."""

    def on_closed(self, error: HardError | None) -> None:
        """The connection is closed or lost, for this reason; None if this end has closed it. Called once."""

    def on_blocked(self, reason: str) -> None:
        """The broker asks for no more messages, or, if the reason is empty, takes them again."""

    def has_output(self) -> None:
        """There are bytes to send."""


class ChannelOwner(Protocol):
    """Hears what happens on a channel."""

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """A message was delivered: its basic.deliver, content header and body."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """The broker has taken, or refused, the published messages with these numbers."""

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        """A mandatory message could not be routed; its confirm follows."""

    def on_cancelled(self, consumer_tag: str) -> None:
        """The broker has ended a consumer, because its queue is gone."""

    def on_channel_closed(self, error: CodedError | None) -> None:
        """The channel is closed, for this reason; None if this end has closed it. Called once."""


class RunOwner(Protocol):
    """Hears of deliveries that are alike."""

    def on_deliveries(self, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:
        """As `DeliveryReceiver.delivered_run`; `on_delivery` was called for one like them just before."""


class ClientChannel:
    """A channel.

    Args:
        connection: its connection.
        number: its number.
        owner: hears what happens on it.

    Attributes:
        connection, number: as above.
        is_open: whether methods can be sent: from the beginning until it is closed by either end.
        is_flowing: whether the broker takes messages (channel.flow).
        published: the number of the last message; 0 before, and without confirms.
        run_owner: hears of deliveries that are alike; None: the owner hears of each.
    """

    __slots__ = (
        "_calls", "_done", "_heads", "_is_closed", "_owner", "connection", "has_confirms", "is_flowing", "is_open",
        "number", "published", "run_owner",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, number: int, owner: ChannelOwner) -> None:
        self.connection, self.number, self._owner = connection, number, owner
        self.is_open = self.is_flowing = True
        self._is_closed = self.has_confirms = False
        self.published = 0
        self.run_owner: RunOwner | None = None
        self._done = Done(1)
        self._calls: deque[tuple[str, Answer]] = deque()
        self._heads: dict[bytes, bytes] = {}  # basic.publish -> its frame

    # ---- sending ----

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method that has no answer."""
        self.send_method(encode_method(method, **values))

    def send_method(self, payload: bytes) -> None:
        """Send an encoded method."""
        self.connection.send_frame(encode_frame(METHOD, self.number, payload))

    def call(self, method: str, done: Answer, /, **values: Any) -> None:
        """Send a method that has an answer.

        Args:
            method: its name; the answer is the one with "-ok".
            done: gets the answer.
            values: its fields.

        Raises:
            Amqp091Error: a field cannot carry its value, and nothing was sent.
        """
        payload = encode_method(method, **values)
        self._calls.append((f"{method}-ok", done))
        self.send_method(payload)

    def declare_queue(
        self,
        name: str,
        done: Answer,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        """Declare a queue; its answer has `queue`, `message_count` and `consumer_count`."""
        self.call(
            "queue.declare", done, queue=name, passive=passive, durable=durable, exclusive=exclusive,
            auto_delete=auto_delete, arguments=arguments,
        )  # fmt: skip

    def declare_exchange(
        self,
        name: str,
        type_name: str,
        done: Answer,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        """Declare an exchange."""
        values = {
            "exchange": name, "type": type_name, "passive": passive, "durable": durable, "auto_delete": auto_delete,
            "internal": internal, "arguments": arguments,
        }  # fmt: skip
        self.call("exchange.declare", done, **values)

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str, done: Answer, *, arguments: TypedMap = EMPTY_MAP
    ) -> None:
        """Bind a queue to an exchange."""
        self.call(
            "queue.bind", done, queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments
        )  # fmt: skip

    def confirm_select(self, done: Answer) -> None:
        """Number messages from now on."""
        self.has_confirms = True
        self.call("confirm.select", done)

    def qos(self, prefetch: int, done: Answer) -> None:
        """Limit the unacknowledged messages of consumers that begin later; 0 for no limit."""
        self.call("basic.qos", done, prefetch_count=prefetch)

    def consume(
        self,
        queue: str,
        consumer_tag: str,
        done: Answer,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        """Begin a consumer."""
        self.call(
            "basic.consume", done, queue=queue, consumer_tag=consumer_tag, no_ack=no_ack, exclusive=exclusive,
            arguments=arguments,
        )  # fmt: skip

    def cancel(self, consumer_tag: str, done: Answer) -> None:
        """End a consumer. Messages may come until it is answered."""
        self.call("basic.cancel", done, consumer_tag=consumer_tag)

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a message, or all up to it."""
        self.send_method(encode_ack(delivery_tag, multiple=multiple))

    def nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """Return a message, or all up to it, to the queue, or drop it."""
        self.send("basic.nack", delivery_tag=delivery_tag, multiple=multiple, requeue=requeue)

    def publish(self, payload: bytes, header: bytes, body: Content) -> int:
        """Publish a message.

        Args:
            payload: its basic.publish (`encode_publish`).
            header: its content header.
            body: its body.

        Returns:
            Its number; 0 without confirms.

        Raises:
            Amqp091Error: the content header does not fit a frame of this connection.
        """
        connection, number = self.connection, self.number
        room = connection.max_payload
        if len(header) > room:
            raise Amqp091Error(f"a content header of {len(header)} bytes does not fit a frame of {room + OVERHEAD}")
        output = connection.output
        if isinstance(body, bytes) and len(body) <= room:
            head = self._heads.get(payload)
            if head is None:
                if len(self._heads) >= _HEADS_KEPT:
                    self._heads.clear()
                head = self._heads[payload] = encode_frame(METHOD, number, payload)
            if body:
                output += (
                    head, FRAME.pack(HEADER, number, len(header)), header, _END,
                    FRAME.pack(BODY, number, len(body)), body, _END,
                )  # fmt: skip
            else:
                output += (head, FRAME.pack(HEADER, number, len(header)), header, _END)
        else:
            for frame in content_frames(number, payload, header, body, room):
                output += frame
        connection.frames_sent += 3
        connection.messages_sent += 1
        connection.has_output()
        if self.has_confirms:
            self.published += 1
        return self.published

    def encode_message(self, payload: bytes, header: bytes, body: bytes) -> bytes:
        """The frames of a message, for `publish_encoded`; the arguments are those of `publish`."""
        frames = content_frames(self.number, payload, header, body, self.connection.max_payload)
        return b"".join([part for frame in frames for part in frame])

    def publish_encoded(self, frames: Buffer, count: int) -> int:
        """Publish messages.

        Args:
            frames: those of all of them (`encode_message`).
            count: how many they are.

        Returns:
            The number of the last; 0 without confirms.
        """
        connection = self.connection
        connection.output.append(frames)
        connection.frames_sent += 3 * count
        connection.messages_sent += count
        connection.has_output()
        if self.has_confirms:
            self.published += count
        return self.published

    def close(self, code: int = NORMAL, text: str = "") -> None:
        """Close the channel; `ChannelOwner.on_channel_closed` follows when the broker has answered."""
        if self.is_open:
            self.is_open = False
            self.send_method(encode_close("channel.close", code, text, b""))

    @property
    def settled_below(self) -> int:
        """All messages with numbers below this are confirmed or refused."""
        return self._done.below

    # ---- receiving, for the connection ----

    def on_deliveries(self, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:
        """Deliveries that are alike were received."""
        if self.is_open and self.run_owner is not None:
            self.run_owner.on_deliveries(first, payload, header, bodies)

    def on_method(self, name: str, values: Values) -> None:
        """A method of this channel was received.

        Raises:
            HardError: it is unexpected.
        """
        calls = self._calls
        if calls and calls[0][0] == name:
            calls.popleft()[1](values, None)
            return
        if name == "channel.close":
            self.send("channel.close-ok")
            if self.is_open:  # otherwise the answer to this end's own channel.close follows
                self.ended(SoftError(_code(values["reply_code"]), str(values["reply_text"])))
            return
        if name == "channel.close-ok" and not self.is_open:
            self.ended(None)
            return
        if not self.is_open:
            return  # it was sent before the broker saw channel.close
        if name == "basic.nack":
            self.confirmed(values["delivery_tag"], multiple=values["multiple"], is_accepted=False)
        elif name == "basic.cancel":
            tag = str(values["consumer_tag"])
            if not values["nowait"]:
                self.send("basic.cancel-ok", consumer_tag=tag)
            self._owner.on_cancelled(tag)
        elif name == "channel.flow":
            self.is_flowing = values["active"]
            self.send("channel.flow-ok", active=self.is_flowing)
        else:
            raise HardError(ReplyCode.COMMAND_INVALID, f"{name} is unexpected from a broker in this state")

    def confirmed(self, tag: int, *, multiple: bool, is_accepted: bool) -> None:
        """Messages were confirmed or refused. Raises HardError if they were not published, or were confirmed before."""
        if not self.is_open:
            return
        last = self.published if multiple and not tag else tag
        if not self.has_confirms or not 0 < last <= self.published:
            if multiple and not tag and self.has_confirms:
                return  # all of none
            raise HardError(ReplyCode.COMMAND_INVALID, f"message {tag} was not published, and is confirmed")
        done = self._done
        first = done.below if multiple else last
        for begin, end in missing_runs(done, first, last):
            done.add(begin, end)
            self._owner.on_confirmed(begin, end, is_accepted=is_accepted)

    def confirmed_run(self, first: int, count: int) -> None:
        """Messages were confirmed one by one, with consecutive numbers."""
        last = first + count - 1
        if not self.is_open:
            return
        if not self.has_confirms or not 0 < first <= last <= self.published:
            raise HardError(ReplyCode.COMMAND_INVALID, f"message {last} was not published, and is confirmed")
        for begin, end in missing_runs(self._done, first, last):
            self._done.add(begin, end)
            self._owner.on_confirmed(begin, end, is_accepted=True)

    def on_content(self, payload: bytes, header: bytes, body: Content) -> None:
        """A method with content was received.

        Raises:
            HardError: it is unexpected.
        """
        if not self.is_open:
            return
        if payload[:4] == _DELIVER:
            self._owner.on_delivery(payload, header, body)
            return
        method, values = decode_method(payload)
        if method.name != "basic.return":
            raise HardError(ReplyCode.COMMAND_INVALID, f"{method.name} is unexpected from a broker in this state")
        self._owner.on_returned(values, header, body)

    def ended(self, error: CodedError | None) -> None:
        """The channel is closed, or its connection is: fail the calls that wait for an answer, and tell the owner."""
        self.is_open = False
        if self._is_closed:
            return
        self._is_closed = True
        self.connection.forget(self)
        calls, self._calls = self._calls, deque()
        reason = error or SoftError(ReplyCode.CHANNEL_ERROR, "the channel was closed")
        for _, done in calls:
            done({}, reason)
        self._owner.on_channel_closed(error)


_HEADS_KEPT: Final = 1024
_DELIVER: Final = encode_method("basic.deliver")[:4]


def missing_runs(done: Done, first: int, last: int) -> list[tuple[int, int]]:
    """The runs of numbers from `first` to `last` that are not in a set."""
    at, found = max(first, done.below), []
    for begin, end in done.beyond:
        if begin > last:
            break
        if end < at:
            continue
        if at < begin:
            found.append((at, begin - 1))
        at = max(at, end + 1)
    if at <= last:
        found.append((at, last))
    return found


def _code(number: int) -> ReplyCode:
    """The code that a peer has sent; INTERNAL_ERROR if it is not one of AMQP 0-9-1."""
    try:
        return ReplyCode(number)
    except ValueError:
        return ReplyCode.INTERNAL_ERROR


class ClientConnection(Connection):
    """The client's end.

    Args:
        owner: hears what happens.
        choose_mechanism: selects one of the mechanisms that the broker offers. Raises ValueError if none is usable.
        virtual_host: the virtual host to open.
        client_properties: sent to the broker, besides its own.
        heartbeat: seconds between heartbeats; 0 for none, None for what the broker offers.
        max_message_bytes: limit for each incomplete message, and for all of them together.

    Attributes:
        channels: number -> channel.
        max_payload: bytes of a frame's payload, as negotiated.
        server_properties: received from the broker.
        is_blocked: whether the broker asks for no more messages.
    """

    protocol_header: ClassVar[bytes] = PROTOCOL_HEADER

    def __init__(
        self,
        owner: ConnectionOwner,
        choose_mechanism: Callable[[tuple[str, ...]], ClientMechanism],
        *,
        virtual_host: str = "/",
        client_properties: Mapping[str, Any] | None = None,
        heartbeat: int | None = None,
        max_message_bytes: int,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        super().__init__()
        self.channels: dict[int, ClientChannel] = {}
        self.max_payload = FRAME_MIN_SIZE - OVERHEAD
        self._owner = owner
        self._choose_mechanism, self._virtual_host = choose_mechanism, virtual_host
        self._client_properties: dict[str, Any] = {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "host": socket.gethostname(),
            "process": Path(sys.argv[0]).name,
            "pid": os.getpid(),
            **(client_properties or {}),
            "capabilities": CAPABILITIES,
        }
        self._wanted_heartbeat = heartbeat
        self._mechanism: ClientMechanism | None = None
        self._step = ""  # the last method of the negotiation
        self._max_channels = 0
        self.server_properties = EMPTY_MAP
        self.is_blocked = False
        self._error: HardError | None = None
        self.output.append(PROTOCOL_HEADER)

    # ---- as an end of a connection ----

    def make_assembler(self) -> DeliveryAssembler:
        """As `Connection.make_assembler`."""
        return DeliveryAssembler(self, MAX_FRAME, self._max_message_bytes, Budget(self._max_message_bytes))

    def _take_header(self, data: bytes) -> bytes:
        """All input, unless it begins with a protocol header: a broker sends none, except to refuse this one."""
        data = self._header + data
        if len(data) < len(PROTOCOL_HEADER) and data.startswith(_MAGIC[: len(data)]):
            self._header = data
            return b""
        self._header, self.phase = b"", Phase.NEGOTIATING
        if data.startswith(_MAGIC):
            self.on_header(data[: len(PROTOCOL_HEADER)])
            return b""
        return data

    def on_header(self, header: bytes) -> None:
        """The broker has answered with a protocol header: it does not speak this version."""
        self._end(HardError(ReplyCode.FRAME_ERROR, f"the peer does not speak AMQP 0-9-1: it answered {header!r}"))

    def has_output(self) -> None:
        """As `Connection.has_output`."""
        self._owner.has_output()

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method of the connection."""
        self.send_frame(encode_frame(METHOD, 0, encode_method(method, **values)))

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_frame(HEARTBEAT_FRAME)

    def send_close(self, code: int, text: str, cause: bytes) -> None:
        """As `Connection.send_close`."""
        self.send_frame(encode_frame(METHOD, 0, encode_close("connection.close", code, text, cause)))

    def fail(self, error: HardError) -> None:
        """Close the connection after an error of the peer: send the reason, and do not wait for close-ok."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self._error = error
            self.close(error.code, error.reply_text)
        self._end(error)

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        self.fail(error if isinstance(error, HardError) else malformed(error))

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.fail(HardError(ReplyCode.CONNECTION_FORCED, text))

    def lost(self, reason: str) -> None:
        """The socket was closed."""
        self._end(HardError(ReplyCode.CONNECTION_FORCED, reason))

    def _end(self, error: HardError) -> None:
        if self.phase is not Phase.CLOSED:
            if self._error is None and self.phase is not Phase.CLOSING:
                self._error = error
                self.close_code, self.close_text = error.code, str(error)
            self.closed()

    def on_closed(self) -> None:
        """As `Connection.on_closed`."""
        for channel in list(self.channels.values()):
            channel.ended(self._error)
        self._owner.on_closed(self._error)

    # ---- negotiation ----

    def _on_own_method(self, name: str, values: Values) -> None:
        """A method on channel 0."""
        if name == "connection.close":
            self._closed_by_peer(values)
        elif name == "connection.close-ok" and self.phase is Phase.CLOSING:
            self.closed()
        elif self.phase is Phase.CLOSING:
            return
        elif name == "connection.blocked":
            self.is_blocked = True
            self._owner.on_blocked(str(values["reason"]) or "no reason given")
        elif name == "connection.unblocked":
            self.is_blocked = False
            self._owner.on_blocked("")
        elif name in _NEXT.get(self._step, ()) and self.phase is Phase.NEGOTIATING:
            self._step = name
            _NEGOTIATION[name](self, values)
        else:
            raise HardError(ReplyCode.COMMAND_INVALID, f"{name} is unexpected from a broker in this state")

    def _closed_by_peer(self, values: Values) -> None:
        self.send("connection.close-ok")
        if self._error is None and self.phase is not Phase.CLOSING:
            code = values["reply_code"]
            self._error = HardError(_code(code), str(values["reply_text"]) or f"code {code}")
            self.close_code, self.close_text = code, str(values["reply_text"])
        self.closed()

    def _on_start(self, values: Values) -> None:
        self.server_properties = values["server_properties"]
        offered = tuple(values["mechanisms"].decode("ascii", "replace").split())
        try:
            mechanism = self._choose_mechanism(offered)
            response = mechanism.start()
        except ValueError as error:
            self.fail(HardError(ReplyCode.ACCESS_REFUSED, str(error)))
            return
        self._mechanism = mechanism
        self.send(
            "connection.start-ok",
            client_properties=typed_map(self._client_properties),
            mechanism=mechanism.name,
            response=response,
            locale="en_US",
        )

    def _on_secure(self, values: Values) -> None:
        assert self._mechanism is not None
        try:
            response = self._mechanism.step(values["challenge"])
        except ValueError as error:
            self.fail(HardError(ReplyCode.ACCESS_REFUSED, str(error)))
            return
        self.send("connection.secure-ok", response=response)

    def _on_tune(self, values: Values) -> None:
        assert self._mechanism is not None
        if not self._mechanism.is_complete:
            self.fail(HardError(ReplyCode.ACCESS_REFUSED, f"the broker has not completed {self._mechanism.name}"))
            return
        frame = max(FRAME_MIN_SIZE, min(values["frame_max"] or MAX_FRAME, MAX_FRAME))
        self._max_channels = min(values["channel_max"] or MAX_CHANNELS, MAX_CHANNELS)
        offered, wanted = values["heartbeat"], self._wanted_heartbeat
        if wanted is None or (offered and wanted):
            self.heartbeat = min(offered, offered if wanted is None else wanted)
        else:
            self.heartbeat = wanted
        self._assembler.max_frame, self.max_payload = frame, frame - OVERHEAD
        self.send(
            "connection.tune-ok", channel_max=self._max_channels, frame_max=frame, heartbeat=self.heartbeat
        )  # fmt: skip
        self.send("connection.open", virtual_host=self._virtual_host)

    def _on_open_ok(self, _values: Values) -> None:
        self.phase = Phase.OPEN
        self._owner.on_open()

    # ---- channels ----

    def open_channel(self, owner: ChannelOwner, done: Answer | None = None) -> ClientChannel:
        """Open a channel; methods can be sent at once, and `done` gets the answer.

        Raises:
            ValueError: all channels are in use, or the connection is not open.
        """
        if self.phase is not Phase.OPEN:
            raise ValueError("the connection is not open")
        number = next((each for each in range(1, self._max_channels + 1) if each not in self.channels), 0)
        if not number:
            raise ValueError(f"all {self._max_channels} channels of the connection are in use")
        channel = self.channels[number] = ClientChannel(self, number, owner)
        self._assembler.accept(number)
        channel.call("channel.open", done or _ignore)
        return channel

    def forget(self, channel: ClientChannel) -> None:
        """A channel is closed by both ends."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._assembler.drop(channel.number)

    # ---- input ----

    def frame(self, channel: int, payload: bytes) -> None:
        """As `CommandReceiver.frame`."""
        found = self.channels.get(channel)
        if payload[:4] == ACK and found is not None:
            tag, multiple = decode_ack(payload)
            found.confirmed(tag, multiple=multiple, is_accepted=True)
            return
        method, values = decode_method(payload)
        if not channel:
            self._on_own_method(method.name, values)
        elif found is not None:
            found.on_method(method.name, values)
        elif self.phase is Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"{method.name} on channel {channel}, which is not open")

    def acknowledged(self, channel: int, first: int, count: int) -> None:
        """As `MethodReceiver.acknowledged`: published messages are confirmed."""
        found = self.channels.get(channel)
        if found is not None:
            found.confirmed_run(first, count)
        elif self.phase is Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"basic.ack on channel {channel}, which is not open")

    def acknowledged_up_to(self, channel: int, tags: list[int]) -> int:
        """As `MethodReceiver.acknowledged_up_to`: the last one confirms all."""
        self.frame(channel, encode_ack(tags[-1], multiple=True))
        return len(tags)

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """As `CommandReceiver.command`: a message was received."""
        found = self.channels.get(channel)
        if found is not None and header is not None and body is not None:
            found.on_content(payload, header, body)
        elif found is None and self.phase is Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"content on channel {channel}, which is not open")

    def begins(self, channel: int) -> bool:
        """As `Receiver.begins`."""
        found = self.channels.get(channel)
        if found is None and self.phase is Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"content on channel {channel}, which is not open")
        return found is not None and found.is_open and self.phase is Phase.OPEN

    def run_of(self, channel: int, payload: bytes, header: bytes, *_run: Any) -> int:  # noqa: ARG002
        """As `CommandReceiver.run_of`: a client takes single messages."""
        return 0

    def mixed_runs(self, _channel: int, _header: bytes, _runs: list[MixedRun], _count: int) -> int:
        """As `MethodReceiver.mixed_runs`: likewise."""
        return 0

    def takes_runs(self, channel: int) -> bool:
        """As `DeliveryReceiver.takes_runs`."""
        found = self.channels.get(channel)
        return found is not None and found.is_open and found.run_owner is not None and self.phase is Phase.OPEN

    def delivered_run(self, channel: int, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:
        """As `DeliveryReceiver.delivered_run`."""
        self.channels[channel].on_deliveries(first, payload, header, bodies)

    def too_large(self, channel: int, size: int) -> None:
        """As `Receiver.too_large`: close the connection."""
        text = f"a message of {size} bytes on channel {channel} is larger than this client accepts"
        self.fail(HardError(ReplyCode.RESOURCE_ERROR, text))

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`."""
        self.too_large(channel, size)


_MAGIC: Final = PROTOCOL_HEADER[:4]

#: The last method of the negotiation -> those that may follow.
_NEXT: Final[dict[str, tuple[str, ...]]] = {
    "": ("connection.start",),
    "connection.start": ("connection.secure", "connection.tune"),
    "connection.secure": ("connection.secure", "connection.tune"),
    "connection.tune": ("connection.open-ok",),
}
_NEGOTIATION: Final[dict[str, Callable[[ClientConnection, Values], None]]] = {
    "connection.start": ClientConnection._on_start,
    "connection.secure": ClientConnection._on_secure,
    "connection.tune": ClientConnection._on_tune,
    "connection.open-ok": ClientConnection._on_open_ok,
}


def _ignore(_values: Values, _error: CodedError | None) -> None:
    """For calls whose answer is not needed."""
