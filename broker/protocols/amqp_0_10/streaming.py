"""Commands that are too large to be put into the output of a connection at once.

Their frames are made when the socket takes them, a portion in each turn, straight from the pieces of the content. While
a session has such a stream, whatever else it sends on the command track waits behind it. So do the controls whose place
among the commands says something: gap counts on from the last of them; completed says that what a command had sent, a
result or a message that flush or stop waits for, is on its way before it; and after detach there are none. Other
controls, and the other sessions of the connection, do not wait.

Source: AMQP 0-10, transport (assemblies: frames of different channels, and of the tracks of one, may alternate).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from broker.model.content import Buffer, Content
from broker.protocols.amqp_0_10.large_frames import content_frames, is_large
from broker.protocols.amqp_0_10.session import Session, Transport
from formats.amqp_0_10.commands import encode_control
from formats.amqp_0_10.frames import encode_command_frames, encode_control_frame

#: Controls whose place among the commands says something.
_IN_ORDER: Final = frozenset(("session.completed", "session.detach", "session.gap"))


class Stream:
    """What a session sends, as long as it has more than its connection takes at once.

    Attributes:
        frames: how many frames were taken.
    """

    __slots__ = ("_waiting", "frames")

    def __init__(self) -> None:
        self.frames = 0
        self._waiting: deque[Iterator[tuple[Buffer, ...]]] = deque()

    def add(self, frames: Iterable[tuple[Buffer, ...]]) -> None:
        """These go out after all that waits."""
        self._waiting.append(iter(frames))

    @property
    def is_over(self) -> bool:
        """Whether nothing waits any more."""
        return not self._waiting

    def take(self, output: list[Buffer], most: int) -> int:
        """Put frames into `output`: one, and those that follow until there are `most` bytes. Returns how many."""
        waiting = self._waiting
        taken = 0
        while waiting:
            for frame in waiting[0]:
                output += frame
                self.frames += 1
                taken += sum(map(len, frame))
                if taken >= most:
                    return taken
            waiting.popleft()
        return taken


class StreamTransport(Transport, Protocol):
    """A connection that sends in portions what is in `streams`, by channel."""

    streams: dict[int, Stream]


class StreamingSession(Session):
    """A session that puts a large command into a stream.

    Attributes:
        connection: what it is attached to, or was.
    """

    connection: StreamTransport

    __slots__ = ("_stream", "connection")

    def __init__(self, name: bytes) -> None:
        super().__init__(name, 0, None)
        self._stream: Stream | None = None

    @property
    def is_streaming(self) -> bool:
        """Whether a command has to go out before any other can."""
        return self._stream is not None

    def stream_began(self) -> None:
        """A command goes out in portions."""

    def stream_ended(self) -> None:
        """It is out, and so is what was sent after it."""
        self._stream = None

    def detached(self) -> None:
        """As `Session.detached`: what is not out is forgotten."""
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
            self._stream.add((frame,) for frame in frames)
        connection.has_output()

    def send_control(self, control: str, /, **values: Any) -> None:
        """As `Session.send_control`; one whose place among the commands says something waits for those before it."""
        if self._stream is None or control not in _IN_ORDER:
            super().send_control(control, **values)
        else:
            self._stream.add([(encode_control_frame(self.channel, encode_control(control, **values)),)])
