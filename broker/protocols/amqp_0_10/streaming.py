"""Commands that are too large to be added to a connection's output at once.

Their frames are built when the socket accepts them, a portion in each tick, straight from the pieces of the content.
While a session has such a stream, its other commands wait until the stream was sent. So do controls whose position
among the commands is significant: gap counts on from the last command; completed implies that a result, or the messages
of flush or stop, were sent before it; and no command may follow detach. Other controls, and the other sessions of the
connection, do not wait.

Source: AMQP 0-10, transport (assemblies: frames of different channels, and of the tracks of one, may alternate).
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from qstore.broker.model.content import Content
from qstore.broker.protocols.amqp_0_10.large_frames import content_frames, is_large
from qstore.broker.protocols.amqp_0_10.session import Session, Transport
from qstore.broker.protocols.streams import Stream
from qstore.formats.amqp_0_10.frames import encode_command_frames, encode_control_frame

#: Controls whose position among the commands is significant.
_IN_ORDER: Final = frozenset(("session.completed", "session.detach", "session.gap"))


class StreamTransport(Transport, Protocol):
    """A connection that sends `streams` in portions, by channel."""

    streams: dict[int, Stream]


ConnectionT_co = TypeVar("ConnectionT_co", bound=StreamTransport, covariant=True)


class StreamingSession(Session, Generic[ConnectionT_co]):
    """A session that sends large commands as a stream.

    Attributes:
        connection: the connection that it is attached to, or was last.
    """

    connection: ConnectionT_co

    __slots__ = ("_stream", "connection")

    def __init__(self, name: bytes) -> None:
        super().__init__(name, 0, None)
        self._stream: Stream | None = None

    @property
    def is_streaming(self) -> bool:
        """Whether a stream must be sent before any other command."""
        return self._stream is not None

    def stream_began(self) -> None:
        """A command is sent as a stream."""

    def stream_ended(self) -> None:
        """The stream, with everything appended to it, was sent."""
        self._stream = None

    def detached(self) -> None:
        """As `Session.detached`; the rest of the stream is discarded."""
        super().detached()
        self._stream = None

    def _write(self, payload: bytes, header: bytes | None, body: Content | None) -> None:
        if self._stream is None and not is_large(body):
            super()._write(payload, header, body)
            return
        connection = self.connection
        connection.transfers_sent += header is not None
        if self._stream is None:
            self._stream = connection.streams[self.channel] = Stream()
            self.stream_began()
        if body:
            self._stream.add(content_frames(self.channel, payload, header, body, connection.max_frame))
        else:
            empty = None if body is None else b""
            frames = encode_command_frames(self.channel, payload, header, empty, connection.max_frame)
            self._stream.add(zip(frames))
        connection.has_output()

    def send_encoded_control(self, control: str, payload: bytes) -> None:
        """As `Session.send_encoded_control`; a control whose position is significant waits for the stream."""
        if self._stream is None or control not in _IN_ORDER:
            super().send_encoded_control(control, payload)
        else:
            self._stream.add([(encode_control_frame(self.channel, payload),)])
