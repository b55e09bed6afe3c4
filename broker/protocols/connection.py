"""The engine of a connection, for every protocol and both ends of it: a state machine without I/O.

    phase          HEADER (the peer's protocol header is awaited) -> NEGOTIATING -> OPEN -> CLOSING (close was sent, or
                   received and not answered yet) -> CLOSED
    input          bytes -> `receive` -> the protocol's assembler (`assembly`) -> its own methods
    output         frames collect in `output`, until they are taken to be sent
    pausing        operations that take time pause the input (`pause` and `unpause`, which nest), so that later input
                   sees their effect
    heartbeats     by `on_timer`: one is sent after half of the interval without output; the peer is presumed dead after
                   two without input
    closing        invalid input cannot be parsed further: everything after it is ignored
    layer          a security layer of SASL begins where the protocol says (`secure`), in both directions at once: bytes
                   that were read before, but come after that place, have to be protected as well

A protocol adds its frames and their codec, the table of its commands, and how it numbers them. `broker_connection` has
what only the broker's end does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final

from qstore.broker.protocols.assembly import Assembler, ProtocolError
from qstore.broker.security.sasl.exchange import LayerError
from qstore.formats.errors import FormatError

if TYPE_CHECKING:
    from qstore.broker.model.message import Buffer
    from qstore.broker.protocols.frame_log import FrameLog
    from qstore.broker.security.sasl.exchange import SecurityLayer

NORMAL: Final = 200
"""The code of a close without an error, in 0-10 and 0-9-1."""

_MISSED_HEARTBEATS: Final = 2  # intervals without a byte after which the peer is presumed dead


class Phase(Enum):
    """The phases of a connection."""

    HEADER = auto()
    NEGOTIATING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class Connection:
    """One end of a connection.

    Attributes:
        phase: its phase.
        output: buffers to be sent.
        close_code, close_text: why it was closed, by either end; 0 if it was not.
        heartbeat: seconds between heartbeats to the peer; 0 for none.
        bytes_received, bytes_sent: including protocol headers.
        frames_sent, messages_sent: those put into `output`, except for what consumers put there directly and count
            themselves.
    """

    protocol_header: ClassVar[bytes]

    __slots__ = (
        "_assembler", "_before_layer", "_has_received", "_has_sent", "_header", "_is_deaf", "_is_securing",
        "_last_received", "_last_sent", "_layer", "_pauses", "_received_log", "_sent_log", "bytes_received",
        "bytes_sent", "close_code", "close_text", "frames_sent", "heartbeat", "messages_sent", "output", "phase",
    )  # fmt: skip

    def __init__(self) -> None:
        self.phase = Phase.HEADER
        self.output: list[Buffer] = []
        self.close_code, self.close_text = 0, ""
        self.heartbeat = 0
        self.bytes_received = self.bytes_sent = self.frames_sent = self.messages_sent = 0
        self._assembler = self.make_assembler()
        self._header = b""
        self._last_received = self._last_sent = 0.0
        self._has_received = self._has_sent = self._is_deaf = False
        self._pauses = 0
        self._layer: SecurityLayer | None = None
        self._is_securing = False  # whether it begins with what the assembler has left
        self._before_layer = 0  # buffers in `output` that are sent without it
        self._received_log: FrameLog | None = None
        self._sent_log: FrameLog | None = None

    # ---- defined by the protocol ----

    @abstractmethod
    def make_assembler(self) -> Assembler[Any, Any]:
        """The assembler of its input."""

    @abstractmethod
    def on_header(self, header: bytes) -> None:
        """The peer's protocol header was received, or enough of it to show that it is another one."""

    @abstractmethod
    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """Close the connection: the peer's bytes are not valid, and later ones are ignored."""

    @abstractmethod
    def on_silence(self, text: str) -> None:
        """Close the connection: nothing was received for too long."""

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def send_close(self, code: int, text: str, cause: bytes) -> None:
        """Send the command that closes a connection."""

    @abstractmethod
    def on_closed(self) -> None:
        """The connection is closed or lost."""

    @abstractmethod
    def has_output(self) -> None:
        """Output was added to `output`."""

    # ---- state ----

    @property
    def is_negotiating(self) -> bool:
        """Whether the connection is not open yet."""
        return self.phase in (Phase.HEADER, Phase.NEGOTIATING)

    @property
    def is_closing(self) -> bool:
        """Whether close was sent, and the other end has not answered yet."""
        return self.phase is Phase.CLOSING

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return self.phase is Phase.CLOSED

    @property
    def end_reason(self) -> str:
        """Why the connection was closed, by either end; empty if no reason was given."""
        return self.close_text

    # ---- input ----

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket; an empty read is a sign of life only."""
        self._has_received = True
        self.bytes_received += len(data)
        if not data or self.phase is Phase.CLOSED or self._is_deaf:
            return
        try:
            if self._layer is not None:
                data = self._layer.receive(data)
            if self._received_log is not None:
                self._received_log.take(data)
            if self.phase is Phase.HEADER:
                data = self._take_header(data)
            if data:
                self._assembler.receive(data)
            if self._is_securing:
                self._begin_layer()
        except (ProtocolError, FormatError, LayerError) as error:
            self._violated(error)

    def _violated(self, error: ProtocolError | FormatError | LayerError) -> None:
        self._is_deaf = True
        self.on_violation(ProtocolError(f"security layer: {error}") if isinstance(error, LayerError) else error)

    # ---- the security layer ----

    @property
    def layer_ssf(self) -> int:
        """The strength of the security layer; 0 without one."""
        return 0 if self._layer is None else self._layer.ssf

    def secure(self, layer: SecurityLayer | None) -> None:
        """Begin a security layer, unless it is None: after what is in `output`, and after the command at hand."""
        if layer is not None:
            self._layer, self._before_layer = layer, len(self.output)
            self._is_securing = self._assembler.is_paused = True

    def _begin_layer(self) -> None:
        """What was read with the command before the layer is protected by it, too: an attacker may have added it."""
        assert self._layer is not None
        self._is_securing = False
        self._assembler.convert_rest(self._layer.receive)
        if not self._pauses:
            self._assembler.resume()

    def _take_header(self, data: bytes) -> bytes:
        """The bytes after the peer's protocol header; empty if it is incomplete or wrong."""
        data = self._header + data
        expected = self.protocol_header
        if len(data) < len(expected) and expected.startswith(data):
            self._header = data
            return b""
        self._header = b""
        self.phase = Phase.NEGOTIATING
        header = data[: len(expected)]
        self.on_header(header)
        return data[len(expected) :] if header == expected else b""

    @property
    def is_paused(self) -> bool:
        """Whether input is buffered until `unpause`."""
        return self._assembler.is_paused and self.phase is not Phase.CLOSED

    @property
    def is_behind(self) -> bool:
        """As `Machine.is_behind`."""
        return self._assembler.is_behind and self.phase is not Phase.CLOSED

    @property
    def is_held(self) -> bool:
        """Whether it was paused by its owner (`pause`)."""
        return self._pauses > 0

    def limit_turns(self, at_once: int, clock: Callable[[], float]) -> None:
        """Process so many frames and messages at once at most, and no longer than a turn of the event loop may take."""
        self._assembler.max_at_once, self._assembler.clock = at_once, clock

    @property
    def received(self) -> tuple[int, int]:
        """Frames and messages received; those of a read count once it was processed."""
        return self._assembler.frames, self._assembler.messages

    def pause(self) -> None:
        """Buffer input until `unpause` was called as many times."""
        self._pauses += 1
        self._assembler.is_paused = True

    def unpause(self) -> None:
        """Undo one call of `pause`; after the last, process the buffered input."""
        self._pauses -= 1
        if not self._pauses:
            self.resume()

    def resume(self) -> None:
        """Process the buffered input, unless it is paused."""
        if self.phase is Phase.CLOSED or self._pauses or self._is_deaf:
            return
        try:
            if not self._is_securing:
                self._assembler.resume()
            if self._is_securing:  # or by one of the commands that waited
                self._begin_layer()
        except (ProtocolError, FormatError, LayerError) as error:
            self._violated(error)

    # ---- output ----

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame."""
        self.output.append(frame)
        self.frames_sent += 1
        self.has_output()

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        output = self.output
        if not output:
            return b""
        self._has_sent = True
        data = b"".join(output)
        if self._sent_log is not None:
            self._sent_log.take(data)
        if self._layer is not None:
            first, self._before_layer = self._before_layer, 0
            data = b"".join(output[:first]) + self._layer.send(b"".join(output[first:]))
        self.bytes_sent += len(data)
        output.clear()
        return data

    # ---- end ----

    def close(self, code: int = NORMAL, text: str = "", cause: bytes = b"") -> None:
        """Send the other end why the connection ends; nothing else is sent after it.

        Args:
            code: the reason.
            text: the reason as text.
            cause: the command that caused it, for protocols that name it.
        """
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self.begin_closing(code, text)
            self.send_close(code, text, cause)

    def begin_closing(self, code: int, text: str) -> None:
        """Begin to close, on request of either end."""
        self.close_code, self.close_text = code, text
        self.phase = Phase.CLOSING

    def closed(self) -> None:
        """The connection is closed or lost."""
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.CLOSED
            self._assembler.is_paused = True  # later input is ignored
            self.on_closed()
            self._assembler.close()

    def dismantle(self) -> None:
        """The socket is closed: drop references in cycles, so that the connection is freed at once."""
        self.closed()
        self._assembler.drop_receiver()

    # ---- time ----

    @property
    def max_silence(self) -> float:
        """Seconds without input after which the peer is presumed dead; 0 for none."""
        return _MISSED_HEARTBEATS * self.heartbeat

    def on_timer(self, now: float) -> None:
        """Check heartbeats; to be called at least twice in each heartbeat interval.

        Args:
            now: seconds of a monotonic clock.
        """
        if self._has_received or not self._last_received:
            self._last_received, self._has_received = now, False
        if self._has_sent or not self._last_sent:
            self._last_sent, self._has_sent = now, False
        if self.phase is not Phase.OPEN:
            return
        silence, limit = now - self._last_received, self.max_silence
        if limit and silence > limit and not self.is_paused:
            self.on_silence(f"heartbeat timeout: nothing received for {silence:.0f} seconds")
        elif self.heartbeat and now - self._last_sent >= self.heartbeat / 2:
            self.send_heartbeat()
