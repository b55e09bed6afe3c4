"""The sending half of a connection: its output, and telling the client that its messages wait.

Output is bounded: channels stop delivering when `room` is used up, or when the socket's buffer is full (`can_send`),
and continue when the output was written. A larger message is sent as a stream (`protocols.streams`).

Source: RabbitMQ, "Blocked Connection Notifications".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Final

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.flow_control import FlowControl
from qstore.broker.model.tick import Tick
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.channel_connection import ChannelConnection
from qstore.broker.protocols.machine import Host
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE, METHOD, OVERHEAD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method

ROOM: Final = 256 * 1024
"""Bytes sent to one connection before yielding to others: as much as is read from one at once."""

_MAX_REASON: Final = 255  # bytes


class Phase(Enum):
    """The phases of a connection."""

    HEADER = auto()  # waiting for the client's protocol header
    NEGOTIATING = auto()
    OPEN = auto()
    CLOSING = auto()  # connection.close was sent or received
    CLOSED = auto()


class Blocker(Enum):
    """What the messages of a client wait for."""

    QUEUE = auto()  # flow control
    MEMORY = auto()
    DISK = auto()


class SendingConnection(ChannelConnection):
    """A connection that sends.

    Args:
        host: the event loop and socket.
        tick: of the broker.

    Attributes:
        phase: its phase.
        channels: number -> channel, with those that wait for channel.close-ok.
        bytes_sent: bytes put into the output.
    """

    __slots__ = ("_blocked_by", "_has_sent", "_host", "_waiting", "bytes_sent", "channels", "phase")

    def __init__(self, host: Host, tick: Tick) -> None:
        self._host, self.tick = host, tick
        self.phase = Phase.HEADER
        self.capabilities: frozenset[str] = frozenset()
        self.adjusts_consumers = False
        self.output, self.room, self.can_send = [], ROOM, True
        self.max_payload = FRAME_MIN_SIZE - OVERHEAD
        self.channels: dict[int, Channel] = {}
        self.streams = {}
        self.bytes_sent = self.frames_sent = self.messages_sent = 0
        self._has_sent = False
        self._blocked_by: set[Blocker] = set()  # why its messages wait
        self._waiting = 0  # messages that wait for stopped queues

    @abstractmethod
    def forget_channel(self, channel: Channel) -> None:
        """The answer to channel.close was sent."""

    @property
    def has_consumers(self) -> bool:
        """As `ChannelConnection.has_consumers`."""
        return any(channel.consumers for channel in self.channels.values())

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """As `Host.run`."""
        self._host.run(work, done)

    # ---- telling that messages wait ----

    def publisher_waits(self, flow: FlowControl) -> None:
        """As `ChannelConnection.publisher_waits`."""
        self._waiting += 1
        if self._waiting == 1:
            self.block(Blocker.QUEUE, flow.reason)

    def publisher_goes_on(self, count: int = 1) -> None:
        """As `ChannelConnection.publisher_goes_on`."""
        self._waiting -= count
        if not self._waiting:
            self.unblock(Blocker.QUEUE)

    def block(self, blocker: Blocker, reason: str) -> None:
        """Tell the client, if it wants to know, that its messages wait."""
        if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
            self.send("connection.blocked", reason=_shortened(reason))
        self._blocked_by.add(blocker)

    def unblock(self, blocker: Blocker) -> None:
        """They no longer wait for that."""
        if blocker in self._blocked_by:
            self._blocked_by.discard(blocker)
            if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
                self.send("connection.unblocked")

    # ---- output ----

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method of the connection."""
        self.send_method(encode_method(method, **values))

    def send_method(self, payload: bytes) -> None:
        """Send an encoded method of the connection."""
        self.output.append(encode_frame(METHOD, 0, payload))
        self.frames_sent += 1
        self.has_output()

    def has_output(self) -> None:
        """Schedule the output to be sent at the end of the tick."""
        self.tick.outputs[self] = None
        self.tick.schedule()

    def write_output(self) -> None:
        """Send the collected output; channels that had no room continue in the next tick."""
        if self.streams and self.can_send:
            self._take_portions()
        data = self.take_output()
        if data:
            self._has_sent = True
            self._host.write(data)
        if self.room < ROOM:
            had_room = self.room > 0
            self.room = ROOM
            if not had_room and self.can_send:
                self.wake_channels()

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        data = b"".join(self.output)
        self.output.clear()
        self.bytes_sent += len(data)
        return data

    def _take_portions(self) -> None:
        """Add a portion of the streams, in turn, to the output; the next tick continues with the next stream."""
        streams, left = self.streams, ROOM
        share = ROOM // len(streams)
        while streams and left > 0:
            number = next(iter(streams))
            stream = streams.pop(number)
            before = stream.frames
            left -= stream.take(self.output, share)
            self.frames_sent += stream.frames - before
            if not stream.is_over:
                streams[number] = stream
            elif number in self.channels:
                self._stream_ended(self.channels[number])
        if streams:
            self.has_output()

    def _stream_ended(self, channel: Channel) -> None:
        channel.stream_ended()
        if channel.is_gone:
            self.forget_channel(channel)

    def pause_sending(self) -> None:
        """The socket's send buffer is full."""
        self.can_send = False
        for channel in self.channels.values():
            channel.can_send = False

    def resume_sending(self) -> None:
        """The socket accepts output again."""
        if self.phase is Phase.OPEN:
            self.can_send = True
            self.wake_channels()
            if self.streams:
                self.has_output()

    def wake_channels(self) -> None:
        """Messages may be sent again."""
        for channel in list(self.channels.values()):
            channel.wake_all()


def _shortened(reason: str) -> str:
    """A reason that fits into a short string."""
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")
