"""A peer of AMQP 0-10 over a plain blocking socket, for tests that must not depend on the broker's own client.

One `RawPeer` is one connection with one session; what comes in is kept as it is: the commands that the broker has
completed, deliveries, results, exceptions. Nothing happens by itself: a test reads with `process` or with what waits
for something, and says what it accepts. Deliveries are completed when they are accepted or released, or by
`complete`: that is what moves a window of credit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_0_10.commands import Command, decode_command, decode_control, decode_result, encode_command
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    encode_command_frames,
)
from qstore.formats.amqp_0_10.packing import decode_struct
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, PackedStruct, encode_struct
from qstore.formats.values import typed_map
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_connection import ConnectionClosedError, Frame, PeerGoneError, RawConnection

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
        """What `queue.query` tells."""
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
        """The next so many deliveries; AssertionError if they do not come."""
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
