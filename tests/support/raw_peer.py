"""A peer of AMQP 0-10 over a plain blocking socket, for tests that must not depend on the broker's own client.

It knows `formats/amqp_0_10` and nothing of `broker/`. A `RawConnection` negotiates, and cuts what comes in into frames.

One `RawPeer` is one connection with one session; what comes in is kept as it is: the commands that the broker has
completed, deliveries, results, exceptions. Nothing happens by itself: a test reads with `process` or with what waits
for something, and says what it accepts. Deliveries are completed when they are accepted or released, or by
`complete`: that is what moves a window of credit.

Large messages are sent and received frame by frame, so that the peer never holds a whole one. Each frame of their
content begins with its offset: one that is left out, doubled or exchanged changes the checksum.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from qstore.formats.amqp_0_10.commands import (
    Command,
    decode_command,
    decode_control,
    decode_result,
    encode_command,
    encode_control,
)
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    encode_command_frames,
    encode_control_frame,
    encode_frame,
)
from qstore.formats.amqp_0_10.structs import (
    DELIVERY_PROPERTIES,
    MESSAGE_PROPERTIES,
    PackedStruct,
    decode_struct,
    encode_struct,
)
from qstore.formats.values import TypedMap, typed_map
from tests.support.processes import PATIENCE_SECONDS

_RECEIVE: Final = 256 << 10


class PeerGoneError(Exception):
    """The broker has closed the socket, or reset it."""


class ConnectionClosedError(Exception):
    """The broker closed the connection by `connection.close`; its code and text are the arguments."""


class Frame(NamedTuple):
    """A frame that came in."""

    flags: int
    segment: int
    track: int
    channel: int
    payload: bytes


class RawConnection:
    """A socket that sends and receives frames; `connect` negotiates.

    Attributes:
        frames: those that came in and were not looked at.
        frame_limit: bytes of a frame at most, as tuned.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        try:
            self.socket.connect((host, port))
        except OSError as error:
            self.socket.close()
            raise PeerGoneError(error) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames: deque[Frame] = deque()
        self.frame_limit = 65535
        self._pending = b""

    def close(self) -> None:
        """Close the socket without another word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_bytes(self, content: bytes) -> None:
        """Raises: PeerGoneError."""
        try:
            self.socket.sendall(content)
        except OSError as error:
            raise PeerGoneError(error) from None

    def receive(self, seconds: float | None = None) -> bool:
        """Read from the socket once; False if nothing came in that time (0: without waiting).

        Raises:
            PeerGoneError: there is nothing more to come.
        """
        self.socket.settimeout(PATIENCE_SECONDS if seconds is None else seconds)
        try:
            more = self.socket.recv(_RECEIVE)
        except (TimeoutError, BlockingIOError):
            assert seconds is not None, "the broker says nothing"
            return False
        except OSError as error:
            raise PeerGoneError(error) from None
        finally:
            if self.socket.fileno() >= 0:
                self.socket.settimeout(PATIENCE_SECONDS)
        if not more:
            raise PeerGoneError("closed")
        self._cut(self._pending + more if self._pending else more)
        return True

    def _cut(self, content: bytes) -> None:
        """Frames out of bytes; what is left waits."""
        offset, length = 0, len(content)
        while length - offset >= FRAME.size:
            flags, segment, size, _, track, channel, _ = FRAME.unpack_from(content, offset)
            assert size >= FRAME.size, f"the broker sent a frame of {size} bytes"
            if length - offset < size:
                break
            self.frames.append(Frame(flags, segment, track, channel, content[offset + FRAME.size : offset + size]))
            offset += size
        self._pending = content[offset:]

    def next_frame(self) -> Frame:
        """The next frame, whenever it comes."""
        while not self.frames:
            self.receive()
        return self.frames.popleft()

    def send_control(self, name: str, channel: int = 0, /, **values: Any) -> None:
        """Send one control."""
        self.send_bytes(encode_control_frame(channel, encode_control(name, **values)))

    def expect(self, name: str) -> dict[str, Any]:
        """The next frame's fields; it is this control."""
        frame = self.next_frame()
        assert frame.segment == CONTROL
        control, values = decode_control(frame.payload)
        if control.name == "connection.close":
            raise ConnectionClosedError(values["reply_code"], values["reply_text"])
        assert control.name == name, f"{control.name}: {values}"
        return values

    def exchange_headers(self, header: bytes = PROTOCOL_HEADER) -> bytes:
        """Send a protocol header; the eight bytes that come back."""
        self.send_bytes(header)
        answer = b""
        while len(answer) < len(PROTOCOL_HEADER):
            try:
                more = self.socket.recv(len(PROTOCOL_HEADER) - len(answer))
            except OSError as error:
                raise PeerGoneError(error) from None
            if not more:
                raise PeerGoneError(f"closed after {answer!r}")
            answer += more
        return answer

    def open(self, mechanism: str = "ANONYMOUS", response: bytes = b"", heartbeat: int = 0) -> None:
        """Negotiate version, security and limits, and open the connection."""
        answer = self.exchange_headers()
        assert answer == PROTOCOL_HEADER, answer
        start = self.expect("connection.start")
        assert mechanism in start["mechanisms"], start
        self.send_control(
            "connection.start-ok", client_properties=TypedMap(), mechanism=mechanism, response=response, locale="en_US"
        )
        tune = self.expect("connection.tune")
        self.frame_limit = tune["max_frame_size"] or 65535
        self.send_control(
            "connection.tune-ok", channel_max=tune["channel_max"], max_frame_size=self.frame_limit, heartbeat=heartbeat
        )
        self.send_control("connection.open", virtual_host="")
        self.expect("connection.open-ok")


# ---- one connection with one session ----


UNLIMITED: Final = 0xFFFFFFFF
"""A credit without end."""

_STRUCTS: Final[dict[int, PackedStruct]] = {0x0401: DELIVERY_PROPERTIES, 0x0403: MESSAGE_PROPERTIES}
_REDELIVERED: Final = 4
"""The flag in the first flag byte of delivery-properties."""
_decode_repeated = lru_cache(maxsize=256)(decode_command)
"""The commands of deliveries are the same bytes again and again."""


class SessionEndedError(Exception):
    """The broker detached the session. `code` is the execution exception's error code, None if there was none."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Delivery(NamedTuple):
    """A message that came in.

    Attributes:
        number: its command id.
        destination: the subscription's name.
        header: the header segment.
        body: the body segment.
    """

    number: int
    destination: str
    header: bytes
    body: bytes

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked it so."""
        return any(code == 0x0401 and flags & _REDELIVERED for code, flags, _, _ in _structs(self.header))

    def properties(self) -> dict[str, Any]:
        """The fields of delivery-properties and message-properties that are present."""
        return header_fields(self.header)


def _structs(header: bytes) -> Iterable[tuple[int, int, int, int]]:
    """The structs of a header segment: code, first flag byte, and where each begins and ends."""
    offset = 0
    while offset < len(header):
        end = offset + 4 + int.from_bytes(header[offset : offset + 4], "big")
        yield int.from_bytes(header[offset + 4 : offset + 6], "big"), header[offset + 6], offset, end
        offset = end


def header_fields(header: bytes) -> dict[str, Any]:
    """The fields of the structs of a header segment."""
    fields: dict[str, Any] = {}
    for code, _, offset, end in _structs(header):
        fields.update(decode_struct(_STRUCTS[code], header, offset, end))
    return {name: value for name, value in fields.items() if value is not None}


class NumberSet:
    """Command ids, most of them from 0 on without a hole."""

    def __init__(self) -> None:
        self.below = 0
        self._beyond: set[int] = set()

    def add_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, last in ranges:
            if first <= self.below:
                self.below = max(self.below, last + 1)
            else:
                assert last - first < 1 << 20, "the broker claims what cannot be"
                self._beyond.update(range(first, last + 1))
        while self.below in self._beyond:
            self._beyond.discard(self.below)
            self.below += 1

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self._beyond


class RawPeer(RawConnection):
    """A connection with one attached session.

    Attributes:
        sent: the id of the next command sent.
        completed: ids of the commands that the broker has completed.
        deliveries: messages that came in and were not taken.
        results: command id -> the struct that `execution.result` carried, as its fields.
        on_delivery: takes the deliveries instead of `deliveries`.
    """

    def __init__(
        self, port: int, *, name: bytes | None = None, channel: int = 1, receive_buffer: int | None = None
    ) -> None:
        super().__init__(port, receive_buffer=receive_buffer)
        self.name = name or os.urandom(8).hex().encode()
        self.channel = channel
        self.sent = 0
        self.completed = NumberSet()
        self.deliveries: deque[Delivery] = deque()
        self.on_delivery: Callable[[Delivery], None] = self.deliveries.append
        self.results: dict[int, dict[str, Any]] = {}
        self._received = 0
        self._exception: dict[str, Any] | None = None
        self._command: tuple[Command, dict[str, Any]] | None = None
        self._beginning = b""  # of a command in several frames
        self._segments: dict[int, list[bytes]] = {HEADER: [], BODY: []}
        try:
            self.open()
            self.attach()
        except BaseException:
            self.close()
            raise

    # ---- the session ----

    def attach(self) -> None:
        """Attach a new session, and say where its commands begin."""
        self.send_control("session.attach", self.channel, name=self.name)
        while True:
            frame = self.next_frame()
            control, values = decode_control(frame.payload)
            if control.name == "connection.close":  # the broker stops
                raise ConnectionClosedError(values["reply_code"], values["reply_text"])
            assert frame.channel == self.channel
            if control.name == "session.attached":
                break
            assert control.name == "session.command-point", f"{control.name}: {values}"
        self.send_control("session.request-timeout", self.channel, timeout=0)
        self.send_control("session.command-point", self.channel, command_id=0, command_offset=0)

    def end(self) -> None:
        """Detach the session and close the connection, as a client does that is done."""
        self.send_control("session.detach", self.channel, name=self.name)
        self.send_control("connection.close", reply_code=200, reply_text="")
        with contextlib.suppress(PeerGoneError, ConnectionClosedError):
            while True:
                with contextlib.suppress(SessionEndedError):
                    self.process()
        self.close()

    def command_frames(
        self, name: str, /, *, header: bytes | None = None, body: bytes = b"", sync: bool = False, **values: Any
    ) -> bytes:
        """The bytes of one command."""
        payload = encode_command(name, sync=sync, **values)
        return b"".join(encode_command_frames(self.channel, payload, header, body, self.frame_limit))

    def send_command(
        self, name: str, /, *, header: bytes | None = None, body: bytes = b"", sync: bool = False, **values: Any
    ) -> int:
        """Send one command; its id."""
        self.send_bytes(self.command_frames(name, header=header, body=body, sync=sync, **values))
        self.sent += 1
        return self.sent - 1

    def call(self, name: str, /, **values: Any) -> dict[str, Any]:
        """Send one command, wait until it is completed, and tell its result's fields; none if it has no result.

        Raises:
            SessionEndedError: it failed.
        """
        number = self.send_command(name, sync=True, **values)
        self.wait_for(number)
        return self.results.pop(number, {})

    def wait_for(self, number: int) -> None:
        """Until the broker has completed that command."""
        end = time.monotonic() + PATIENCE_SECONDS
        while number not in self.completed:
            assert time.monotonic() < end, f"command {number} is not completed"
            self.process()

    def sync(self) -> None:
        """Until the broker has completed all commands."""
        self.call("execution.sync")
        self.wait_for(self.sent - 1)
        assert self.completed.below == self.sent

    def process(self, seconds: float | None = None) -> bool:
        """Read once and handle all frames that are there; False if nothing came in that time.

        Raises:
            PeerGoneError, ConnectionClosedError, SessionEndedError: what can still be said is over.
        """
        came = bool(self.frames) or self.receive(seconds)
        while self.frames:
            frame = self.frames.popleft()
            if frame.segment == CONTROL:
                self._control(*decode_control(frame.payload))
            else:
                self._segment(frame)
        return came

    def _control(self, control: Command, values: Mapping[str, Any]) -> None:
        if control.name == "session.completed":
            if values["commands"]:
                self.completed.add_ranges(values["commands"])
            if values["timely_reply"]:
                self.send_control("session.known-completed", self.channel, commands=values["commands"])
        elif control.name == "session.detached" or control.name == "session.detach":
            error = self._exception or {"error_code": None, "description": str(values)}
            raise SessionEndedError(error["error_code"], error["description"] or "")
        elif control.name == "connection.close":
            self.send_control("connection.close-ok")
            raise ConnectionClosedError(values["reply_code"], values["reply_text"])
        elif control.name == "session.flush":
            self.complete()

    def _segment(self, frame: Frame) -> None:
        assert frame.channel == self.channel
        if frame.segment == COMMAND:
            self._beginning += frame.payload
            if not frame.flags & LAST_FRAME:
                return
            command, _, values = _decode_repeated(self._beginning)
            self._command, self._beginning = (command, values), b""
            self._segments = {HEADER: [], BODY: []}
        else:
            self._segments[frame.segment].append(frame.payload)
        if frame.flags & LAST_SEGMENT and frame.flags & LAST_FRAME:
            assert self._command is not None
            command, values = self._command
            self._command = None
            self._received += 1
            self._handle(command.name, values, self._received - 1)

    def _handle(self, name: str, values: dict[str, Any], number: int) -> None:
        if name == "message.transfer":
            header, body = b"".join(self._segments[HEADER]), b"".join(self._segments[BODY])
            self.on_delivery(Delivery(number, values["destination"], header, body))
        elif name == "execution.result":
            self.results[values["command_id"]] = decode_result(values["value"])[1] if values["value"] else {}
        elif name == "execution.exception":
            self._exception = values

    # ---- messages ----

    def transfer_frames(self, routing_key: str, body: bytes, **options: Any) -> bytes:
        """The bytes of one message, see `transfer_frames`."""
        return transfer_frames(routing_key, body, channel=self.channel, frame_limit=self.frame_limit, **options)

    def publish(self, routing_key: str, body: bytes, **options: Any) -> int:
        """Send one message, see `transfer_frames`; the command's id."""
        self.send_bytes(self.transfer_frames(routing_key, body, **options))
        self.sent += 1
        return self.sent - 1

    def publish_all(self, frames: Sequence[bytes]) -> range:
        """Send messages whose frames are made; the commands' ids."""
        self.send_bytes(b"".join(frames))
        self.sent += len(frames)
        return range(self.sent - len(frames), self.sent)

    def declare(
        self, queue: str, *, durable: bool = True, arguments: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Declare a queue and wait for it."""
        self.call("queue.declare", queue=queue, durable=durable, arguments=typed_map(arguments or {}), **more)

    def message_count(self, queue: str) -> int:
        """The result of `queue.query`."""
        return int(self.call("queue.query", queue=queue)["message_count"])

    def subscribe(
        self,
        queue: str,
        destination: str = "d",
        *,
        accept_mode: int = 0,
        acquire_mode: int = 0,
        window: bool = True,
        messages: int = UNLIMITED,
        octets: int = UNLIMITED,
        **more: Any,
    ) -> None:
        """Subscribe with credit. `accept_mode` 0 is explicit, `acquire_mode` 1 is to browse."""
        frames = [
            self.command_frames(
                "message.subscribe",
                queue=queue,
                destination=destination,
                accept_mode=accept_mode,
                acquire_mode=acquire_mode,
                **more,
            ),
            self.command_frames("message.set-flow-mode", destination=destination, flow_mode=int(window)),
            self.command_frames("message.flow", destination=destination, unit=1, value=octets),
            self.command_frames("message.flow", destination=destination, unit=0, value=messages),
        ]
        self.publish_all(frames)

    def take(self, count: int, seconds: float = PATIENCE_SECONDS) -> list[Delivery]:
        """The next `count` deliveries; AssertionError if they do not come."""
        end = time.monotonic() + seconds
        while len(self.deliveries) < count:
            assert time.monotonic() < end, f"{len(self.deliveries)} of {count} deliveries came"
            self.process(max(0.001, end - time.monotonic()))
        return [self.deliveries.popleft() for _ in range(count)]

    def take_all(self, quiet: float = 0.3) -> list[Delivery]:
        """All deliveries until none comes for `quiet` seconds; without limits of credit the broker has no more then."""
        while self.process(quiet):
            pass
        taken = list(self.deliveries)
        self.deliveries.clear()
        return taken

    def accept(self, deliveries: Iterable[Delivery], *, sync: bool = False) -> int:
        """Accept, and complete all that came; the id of the accept."""
        transfers = ranges_of(delivery.number for delivery in deliveries)
        number = self.send_command("message.accept", transfers=transfers, sync=sync)
        self.complete()
        return number

    def release(self, deliveries: Iterable[Delivery], *, set_redelivered: bool = False) -> int:
        """Give back, and complete all that came; the id of the release."""
        transfers = ranges_of(delivery.number for delivery in deliveries)
        number = self.send_command("message.release", transfers=transfers, set_redelivered=set_redelivered)
        self.complete()
        return number

    def complete(self) -> None:
        """Tell the broker that all it sent is completed."""
        if self._received:
            self.send_control("session.completed", self.channel, commands=((0, self._received - 1),))


def transfer_frames(
    routing_key: str,
    body: bytes,
    *,
    exchange: str = "",
    durable: bool = True,
    sync: bool = False,
    properties: Mapping[str, Any] | None = None,
    channel: int = 1,
    frame_limit: int = 65535,
    **delivery: Any,
) -> bytes:
    """The bytes of one message.transfer. `properties` are message-properties, `delivery` more delivery-properties."""
    fields = {"delivery_mode": 2 if durable else 1, "routing_key": routing_key, **delivery}
    header = encode_struct(DELIVERY_PROPERTIES, fields)
    if properties is not None:
        header += encode_struct(MESSAGE_PROPERTIES, properties)
    payload = encode_command("message.transfer", sync=sync, destination=exchange, accept_mode=1, acquire_mode=0)
    return b"".join(encode_command_frames(channel, payload, header, body, frame_limit))


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ranges of first and last, both included."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


# ---- large messages, frame by frame ----


_FILLING: Final = bytes(range(256)) * 256
_WHOLE: Final = FIRST_FRAME | LAST_FRAME


class Content(NamedTuple):
    """What is known of a message's content.

    Attributes:
        size: its bytes.
        checksum: their CRC-32.
    """

    size: int
    checksum: int


def body_frames(size: int, *, channel: int = 1, room: int = 65535 - FRAME.size, start: int = 0) -> Iterator[bytes]:
    """The frames of a content of `size` bytes, from byte `start` on, each with at most `room` bytes of it."""
    at = start
    while at < size:
        part = min(room, size - at)
        flags = LAST_SEGMENT | (FIRST_FRAME if at == start else 0) | (LAST_FRAME if at + part == size else 0)
        yield encode_frame(flags, BODY, TRACK_COMMAND, channel, content_at(at, part))
        at += part


def content_at(at: int, size: int) -> bytes:
    """The bytes that a content has at one place: they tell where they are."""
    return (b"%016d" % at + _FILLING)[:size]


def checksum_of(size: int, room: int = 65535 - FRAME.size) -> Content:
    """What `body_frames` makes."""
    found = 0
    for at in range(0, size, room):
        found = zlib.crc32(content_at(at, min(room, size - at)), found)
    return Content(size, found)


def begin_transfer(
    peer: RawPeer, routing_key: str, *, channel: int | None = None, destination: str = "", **delivery: Any
) -> None:
    """Send the command and the header of a message; its content follows."""
    on = peer.channel if channel is None else channel
    header = encode_struct(DELIVERY_PROPERTIES, {"routing_key": routing_key, **delivery})
    command = encode_command("message.transfer", destination=destination)
    peer.send_bytes(
        encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, on, command)
        + encode_frame(_WHOLE, HEADER, TRACK_COMMAND, on, header)
    )


def publish_large(peer: RawPeer, routing_key: str, size: int, **delivery: Any) -> int:
    """Send a message of that size, as `body_frames` makes it. Returns the command's number."""
    begin_transfer(peer, routing_key, **delivery)
    for frame in body_frames(size, channel=peer.channel, room=peer.frame_limit - FRAME.size):
        peer.send_bytes(frame)
    peer.sent += 1
    return peer.sent - 1


def next_command(peer: RawPeer, name: str) -> Frame:
    """The next frame that begins a command of that name; controls and other commands are passed over."""
    while True:
        frame = peer.next_frame()
        if frame.segment == COMMAND and decode_command(frame.payload)[0].name == name:
            return frame


def receive_large(peer: RawPeer, *, most: int | None = None) -> Content:
    """Read the next message, frame by frame, and look at no other command meanwhile.

    Args:
        peer: has subscribed.
        most: stop when so many bytes have come; the message need not be at its end.
    """
    next_command(peer, "message.transfer")
    size = checksum = 0
    while True:
        frame = peer.next_frame()
        if frame.segment == CONTROL:
            continue
        if frame.segment == BODY:
            size += len(frame.payload)
            checksum = zlib.crc32(frame.payload, checksum)
        if (frame.flags & LAST_SEGMENT and frame.flags & LAST_FRAME) or (most is not None and size >= most):
            return Content(size, checksum)
