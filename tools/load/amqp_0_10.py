"""Channels of AMQP 0-10: sessions of the client's machine."""

from __future__ import annotations

import struct
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qstore.broker.client.amqp_0_10.machine import WireConnection, WireSession
from qstore.broker.client.errors import NotFound, SessionError
from qstore.broker.client.message import Message, encode_message
from qstore.broker.protocols.amqp_0_10.session import State, wrap
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import FRAME, encode_command_frames
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.values import typed_map
from qstore.tools.load.channel import Done, Encoded, LoadChannel, Queue, Route, Style
from qstore.tools.load.loop import Line

_DESTINATION: Final = "load"
_UNLIMITED: Final = 0xFFFFFFFF
_ROOM: Final = 1 << 62
_SYNC_AT: Final = FRAME.size + 3  # of a command's first frame: its sync bit
_ACCEPT: Final = encode_command("message.accept", transfers=((0, 0),))[:-8]
_pack_range: Final = struct.Struct(">II").pack
_REPORTS: Final = 4  # how often completions are sent for each prefetch count, if nothing is accepted


class TransferChannel(LoadChannel):
    """A session of AMQP 0-10. Confirms are completions: the last message of what is put at once asks for them."""

    _wire: WireSession

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        assert isinstance(line.wire, WireConnection)
        self._connection = line.wire
        self._routes: Sequence[Route] = ()
        self._payloads: list[bytes] = []
        self._confirms = False
        self._sent: deque[list[int]] = deque()  # runs of numbers of messages that are not completed
        self._calls: dict[int, tuple[Callable[[], None], Done]] = {}  # by number: when it is completed; if it fails
        self._opening: Done | None = None
        self._closing: Done | None = None
        self._acknowledges = True
        self._prefetch = self._unreported = 0
        self._is_settled = False  # whether completions are due

    def open(self, done: Done) -> None:
        """As `LoadChannel.open`."""
        self._opening = done
        self._wire = self._connection.begin_session(f"load.{uuid.uuid4()}".encode(), self)
        self.line.after_input.append(self._after_input)

    def close(self, done: Done) -> None:
        """As `LoadChannel.close`."""
        self._closing = done
        self._wire.detach()
        self.line.loop.has_output(self.line)

    def _after_input(self) -> None:
        wire, failure = self._wire, self._wire.failure
        opening, closing = self._opening, self._closing
        if opening is not None and (failure is not None or wire.state is State.ATTACHED):
            self._opening = None
            opening(failure)
        if closing is not None and wire.state is State.DETACHED:
            self._closing = None
            self.line.after_input.remove(self._after_input)
            closing(None)
        elif failure is not None and closing is None:
            calls, self._calls = self._calls, {}
            for _, failed in calls.values():
                failed(failure)
            if not calls and isinstance(failure, SessionError):
                self.line.loop.failed(failure)
        elif self._is_settled and wire.is_usable:
            self._is_settled = False
            wire.send_completed()

    # ---- calls ----

    def _call(self, done: Done, command: str, /, **values: Any) -> None:
        """Send a command, and call back when the broker has completed it, or has ended the session because of it."""
        number = self._wire.send(command, sync=True, **values)
        self._calls[number] = lambda: done(None), done

    def _ask(self, done: Callable[[Mapping[str, Any]], None], failed: Done, command: str, /, **values: Any) -> None:
        number = self._wire.send(command, sync=True, **values)
        self._calls[number] = lambda: done(self._wire.results.pop(number, {})), failed

    def declare_queue(self, queue: Queue, done: Done) -> None:
        """As `LoadChannel.declare_queue`."""
        self._call(
            done, "queue.declare", queue=queue.name, durable=queue.durable, exclusive=queue.exclusive,
            auto_delete=queue.auto_delete, arguments=typed_map(queue.arguments) if queue.arguments else None,
        )  # fmt: skip

    def check_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.check_queue`."""

        def looked(found: Mapping[str, Any]) -> None:
            done(None if found.get("queue") else NotFound(f"there is no queue {name!r}"))

        self._ask(looked, done, "queue.query", queue=name)

    def purge_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.purge_queue`."""
        self._call(done, "queue.purge", queue=name)

    def delete_queue(self, name: str, done: Done) -> None:
        """As `LoadChannel.delete_queue`."""
        self._call(done, "queue.delete", queue=name)

    def bind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """As `LoadChannel.bind`."""
        self._call(done, "exchange.bind", queue=queue, exchange=exchange, binding_key=key)

    def unbind(self, queue: str, exchange: str, key: str, done: Done) -> None:
        """As `LoadChannel.unbind`."""
        self._call(done, "exchange.unbind", queue=queue, exchange=exchange, binding_key=key)

    # ---- publishing ----

    def publish_to(self, routes: Sequence[Route], *, confirms: bool, done: Done) -> None:
        """As `LoadChannel.publish_to`."""
        self._routes, self._confirms = routes, confirms
        self._payloads = [
            encode_command(
                "message.transfer", destination=route.exchange, accept_mode=AcceptMode.NONE,
                acquire_mode=AcquireMode.PRE_ACQUIRED,
            )
            for route in routes
        ]  # fmt: skip
        done(None)

    def encode(self, route: int, body: bytes, style: Style) -> Encoded:
        """As `LoadChannel.encode`."""
        message = Message(body, properties=style.headers, durable=style.persistent, priority=style.priority)
        header, body = encode_message(message, self._routes[route].key, None)
        max_frame = self._connection.max_frame
        frames = encode_command_frames(self._wire.channel, self._payloads[route], header, body, max_frame)
        return Encoded(b"".join(frames), len(frames[0]) + len(frames[1]) + FRAME.size, route)

    def room(self, route: int) -> int:  # noqa: ARG002 – as the others have it
        """As `LoadChannel.room`: the broker stops reading."""
        return _ROOM

    def put(self, message: Encoded, times: int, each: int = 1) -> None:
        """As `LoadChannel.put`."""
        data = message.data * times
        if self._confirms and each == 1:
            at = len(data) - len(message.data) + _SYNC_AT
            data = b"".join((data[:at], b"\1", data[at + 1 :]))
        self._wire.send_encoded(data, times * each)
        self._note_sent(times * each)
        if self._confirms and each > 1:
            self._wire.send("execution.sync", sync=True)

    def _note_sent(self, count: int) -> None:
        last = self._wire.sent - 1
        sent = self._sent
        if not self._confirms:
            return
        if sent and sent[-1][1] == last - count:
            sent[-1][1] = last
        else:
            sent.append([last - count + 1, last])

    # ---- consuming ----

    def consume(self, queue: str, prefetch: int, *, acknowledges: bool, done: Done, limit: int = 0) -> None:
        """As `LoadChannel.consume`; with a limit, all credit is given at once."""
        self._acknowledges, self._prefetch = acknowledges, prefetch
        self._wire.run_owner = self
        send = self._wire.send
        send(
            "message.subscribe", queue=queue, destination=_DESTINATION,
            accept_mode=AcceptMode.EXPLICIT if acknowledges else AcceptMode.NONE,
            acquire_mode=AcquireMode.PRE_ACQUIRED,
        )  # fmt: skip
        mode = FlowMode.CREDIT if limit else FlowMode.WINDOW
        send("message.set-flow-mode", destination=_DESTINATION, flow_mode=mode)
        send("message.flow", destination=_DESTINATION, unit=CreditUnit.BYTE, value=_UNLIMITED)
        credit = limit or prefetch or _UNLIMITED
        self._call(done, "message.flow", destination=_DESTINATION, unit=CreditUnit.MESSAGE, value=credit)

    def accept(self, first: int, last: int) -> None:
        """As `LoadChannel.accept`."""
        self._wire.send_payload(_ACCEPT + _pack_range(wrap(first), wrap(last)))
        self._wire.ledger.complete([[first, last]])
        self._is_settled = True

    def cancel(self, done: Done) -> None:
        """As `LoadChannel.cancel`."""
        self._call(done, "message.cancel", destination=_DESTINATION)

    # ---- transactions ----

    def select_transactions(self, done: Done) -> None:
        """As `LoadChannel.select_transactions`."""
        self._call(done, "tx.select")

    def commit(self, done: Done) -> None:
        """As `LoadChannel.commit`."""
        self._call(done, "tx.commit")

    # ---- as the owner of the session ----

    def on_settled(self, first: int, last: int) -> None:
        """As `SessionEvents.on_settled`."""
        sent, count = self._sent, 0
        while sent and sent[0][0] <= last:
            run = sent[0]
            begin = max(run[0], first)
            if begin > run[0]:  # completed out of order: what is before it is completed later
                end = min(run[1], last)
                if end < begin:
                    break
                count += end - begin + 1
                sent.popleft()
                rest = [[run[0], begin - 1], [end + 1, run[1]]]
                sent.extendleft(each for each in reversed(rest) if each[0] <= each[1])
                break
            end = min(run[1], last)
            count += end - begin + 1
            run[0] = end + 1
            if run[0] > run[1]:
                sent.popleft()
        if count and self.confirms is not None:
            self.confirms.on_confirmed(count, is_accepted=True)
        if self._calls:
            for number in [number for number in self._calls if first <= number <= last]:
                self._calls.pop(number)[0]()

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:  # noqa: ARG002
        """As `SessionEvents.on_transfer`."""
        if self.deliveries is not None:
            self.deliveries.on_message(number, body)
        self._note_received(number, number)

    def on_transfers(self, first: int, header: bytes, bodies: Bodies) -> None:  # noqa: ARG002
        """As `RunOwner.on_transfers`."""
        if self.deliveries is not None:
            self.deliveries.on_messages(first, bodies, 0)
        self._note_received(first, first + bodies.count - 1)

    def _note_received(self, first: int, last: int) -> None:
        if not self._acknowledges:
            self._wire.ledger.complete([[first, last]])
            self._unreported += last - first + 1
            if self._unreported * _REPORTS >= self._prefetch:
                self._unreported, self._is_settled = 0, True
