"""A broker without sockets: its event loop is a list, its disk waits until a test says so, its clients are bytes.

    world = World()
    client = world.open_client()
    client.declare("q")
    client.command("message.transfer", header=header(routing_key="q"), body=b"x")
    world.run()
    client.completed, client.deliveries, client.exceptions, ...

Nothing happens between two calls of `run`: what a test sends meanwhile comes in one tick of the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.sources import JournalSource
from qstore.broker.model.run import MIN_RUN
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections, ServerConnection
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.machine import Peer
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.security.authentication import Authentication, LoginOptions, PeerSecurity
from qstore.broker.security.sasl.exchange import Answer, PasswordCheck
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.commands import (
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
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    decode_frame,
    encode_command_frames,
    encode_control_frame,
)
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, decode_struct, encode_struct
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.support.bodies import read_runs

UNLIMITED: Final = 0xFFFFFFFF
MESSAGES: Final = 0
BYTES: Final = 1
CREDIT: Final = 0
WINDOW: Final = 1
_MANY: Final = 1_000_000
_NO_VALUES: Final[dict[str, Any]] = {}


def header(message: dict[str, Any] = _NO_VALUES, /, **delivery: Any) -> bytes:
    """A header segment: delivery-properties by name, message-properties as a dict."""
    encoded = encode_struct(DELIVERY_PROPERTIES, delivery) if delivery else b""
    return encoded + (encode_struct(MESSAGE_PROPERTIES, message) if message else b"")


class Sent(NamedTuple):
    """What the broker has sent: a control, or a command with its content."""

    channel: int
    name: str
    values: dict[str, Any]
    header: bytes | None
    body: bytes


class Delivery(NamedTuple):
    """A message that came to a client."""

    number: int
    destination: str
    header: bytes
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """Its delivery-properties that are present; they come first."""
        size = 4 + int.from_bytes(self.header[:4], "big")
        values = decode_struct(DELIVERY_PROPERTIES, self.header, 0, size)
        return {name: value for name, value in values.items() if value is not None}

    @property
    def is_redelivered(self) -> bool:
        return bool(self.properties.get("redelivered"))


class SlowStore:
    """A store of which queues and sessions see only this: appends at once, flushes when the test says so."""

    class FailedError(Exception):
        """The disk has failed."""

    class FullError(Exception):
        """There is no room."""

    def __init__(self) -> None:
        self.errors = (self.FailedError, self.FullError)
        self.full_error, self.failed_error = self.FullError, self.FailedError
        self.append = self.transactions = self
        self.failing: Exception | None = None
        self.most_of_run = _MANY  # messages that one call of `enqueue_run` or `dequeue_run` takes
        self.room: dict[object, int] = {}  # journals that are nearly full -> messages that they still take
        self.enqueued: list[bytes] = []
        self.dequeued: list[int] = []
        self.unreadable: set[int] = set()
        self.reads_runs = True  # otherwise it reads each message by itself
        self.flushes: list[Callable[[Exception | None], None]] = []
        self.counted: dict[int, int | None] = {}  # record id -> how often that message has returned

    def returned(self, _journal: object, rid: int, count: int | None, /) -> None:
        self.counted[rid] = count

    def enqueue(self, journal: object, parts: Sequence[bytes], size: int, _crc: int, /) -> int:
        if self.failing is not None:
            raise self.failing
        if journal in self.room:
            if not self.room[journal]:
                raise self.FullError("full")
            self.room[journal] -= 1
        data = b"".join(parts)
        assert len(data) == size
        self.enqueued.append(data)
        return len(self.enqueued)

    def enqueue_all(self, journals: Sequence[object], parts: Sequence[bytes], size: int, crc: int, /) -> list[int]:
        return [self.enqueue(journal, parts, size, crc) for journal in journals]

    def enqueue_run(
        self, journal: object, head: bytes, field: SizeField | None, bodies: Bodies, first: int, count: int, /
    ) -> tuple[int, int]:
        count, rid = min(count, self.most_of_run, self.room.get(journal, _MANY) or 1), len(self.enqueued) + 1
        for number in range(first, first + count):
            parts = bodies.message(head, field, number)
            self.enqueue(journal, parts, sum(map(len, parts)), 0)
        return rid, count

    def enqueue_run_to_all(
        self,
        journals: Sequence[object],
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        count: int,
        least: int,
        /,
    ) -> tuple[list[int], int]:
        count = min(count, self.most_of_run)
        if count < least or self.failing is not None:
            return [], 0
        return [self.enqueue_run(journal, head, field, bodies, 0, count)[0] for journal in journals], count

    def load(self, rid: int) -> bytes:
        """The data of a message: the store is the journal of its queues, too. Raises FailedError."""
        if rid in self.unreadable:
            raise self.FailedError
        return self.enqueued[rid - 1]

    def read(self, _journal: object, rids: Sequence[int], decode: Any, done: Callable[[list[Any]], None], /) -> None:
        done(list(read_runs(rids, self.load, decode, lambda *_: None, 1)))

    def read_runs(
        self, _journal: object, rids: Sequence[int], decode: Any, alike: Any, done: Callable[[list[Any]], None], /
    ) -> None:
        done(list(read_runs(rids, self.load, decode, alike if self.reads_runs else lambda *_: None, MIN_RUN)))

    def will_read(self, _journal: object, _rids: Sequence[int], /) -> None:
        """It is fast."""

    def put_away(self, _journal: object, rids: Sequence[int], /) -> None:
        assert list(rids) == sorted(rids)

    def dequeue_run(self, journal: object, target: int, count: int, /) -> int:
        count = min(count, self.most_of_run)
        for rid in range(target, target + count):
            self.dequeue(journal, rid)
        return count

    def dequeue(self, _journal: object, target: int, /) -> None:
        if self.failing is not None:
            raise self.failing
        self.dequeued.append(target)

    def commit(
        self,
        enqueues: Sequence[tuple[object, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[object, int]],
        done: Callable[[Exception | None], None],
    ) -> list[int]:
        for journal, target in dequeues:
            self.dequeue(journal, target)
        self.flushes.append(done)
        return [self.enqueue(journal, *message) for journal, messages in enqueues for message in messages]

    def begin_large(self, xid: bytes, _user: str, /) -> list[int]:
        assert not xid
        return []

    def append_portion(
        self,
        large: list[int],
        enqueues: Sequence[tuple[object, list[tuple[Sequence[bytes], int, int]]]],
        dequeues: Sequence[tuple[object, int]],
        /,
    ) -> list[int]:
        if self.failing is not None:
            raise self.failing
        large += [target for _, target in dequeues]
        return [self.enqueue(journal, *message) for journal, messages in enqueues for message in messages]

    def when_written(self, _large: list[int], then: Callable[[], None], /) -> None:
        then()

    def end_large(self, large: list[int], done: Callable[[Exception | None], None], /) -> None:
        if self.failing is not None:
            raise self.failing
        self.dequeued += large
        self.flushes.append(done)

    def abort_large(self, _large: list[int], done: Callable[[], None], /) -> None:
        done()

    def when_synced(
        self, _journals: Iterable[object], done: Callable[[Exception | None], None], *, is_urgent: bool = True
    ) -> None:
        self.flushes.append(done)

    def drained(self, *, is_idle: bool = False, is_urgent: bool = False) -> None:
        """Nothing is written."""

    def end_flush(self, error: Exception | None = None) -> None:
        """The oldest flush is on the disk, or never will be."""
        self.flushes.pop(0)(error)


@dataclass
class Host:
    """Runs one connection."""

    world: World
    output: bytearray = field(default_factory=bytearray)
    checks: list[tuple[PasswordCheck, Callable[[Answer], None]]] = field(default_factory=list)
    is_closed: bool = False

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        self.world.work.append((work, done))

    def resumed(self) -> None:
        """What was read goes on by itself."""

    def check_password(self, check: PasswordCheck, done: Callable[[Answer], None]) -> None:
        self.checks.append((check, done))

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "the broker writes to a socket that it has closed"
        self.output += data

    def close(self) -> None:
        self.is_closed = True


class World:
    """A broker and its event loop.

    Args:
        settings: of the broker; without authentication if none are given.
        authentication: who may come in.

    Attributes:
        now: seconds of the monotonic clock, which the time of day follows.
        stepped: seconds by which the time of day was set.
    """

    def __init__(self, settings: BrokerSettings | None = None, authentication: Authentication | None = None) -> None:
        self.settings = settings or BrokerSettings(auth=False)
        self.authentication = authentication or Authentication(LoginOptions(is_on=False), None)
        self.soon: list[Callable[[], None]] = []
        self.work: list[tuple[Coroutine[Any, Any, None], Callable[[ModelError | None], None]]] = []
        self.now, self.stepped = 1_000_000.0, 0.0
        self.store = SlowStore()
        self.broker = Broker(
            self.settings,
            None,
            self.soon.append,
            lambda: self.now + self.stepped,
            monotonic=lambda: self.now,
        )
        self.connections = Amqp010Connections(self.broker, self.authentication)
        self.connections.now = lambda: self.now
        self.sessions = self.connections.sessions
        self.machines: list[ServerConnection] = []

    def run(self) -> None:
        """Until nothing is left to do but what waits for the disk."""
        for _ in range(10_000):
            if self.soon:
                self.soon.pop(0)()
            elif self.work:
                self._do(*self.work.pop(0))
            elif not self._catch_up():
                return
        raise AssertionError("the event loop never comes to rest")

    def _catch_up(self) -> bool:
        """Go on with connections that have brought more than is worked off at once. Whether there are any."""
        behind = [
            each for each in self.machines if each.is_behind and not each.is_paused and each.phase is not Phase.CLOSED
        ]
        for machine in behind:
            machine.resume()
        return bool(behind)

    def _do(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            asyncio.run(work)
        except ModelError as failed:
            error = failed
        done(error)

    def drop_work(self) -> None:
        """Forget what was not run, as a test does that is done."""
        for work, _ in self.work:
            work.close()
        self.work.clear()

    def paged_queue(self, name: str) -> Queue:
        """As `durable_queue`, with messages that `page_out` moves out of memory."""
        queue = self.durable_queue(name)
        store: Any = self.store
        source = JournalSource(store, queue.journal, name, restore_message)
        queue.residency = Residency(source, None, 1 << 40, has_stretches=True)
        queue.residency.attach(queue, queue._consumers, queue._barriers)
        return queue

    def stream(self, name: str, own: dict[str, Any] | None = None, **arguments: Any) -> Stream:
        """A stream, on the disk that waits; its arguments by their names, or without x-, and with underscores."""
        factory, store = self.broker.queue_factory, self.store
        given = {f"x-{each.replace('_', '-')}": value for each, value in arguments.items()}
        declared = typed_map({"x-queue-type": "stream", **given, **(own or {})})
        before, factory._store = factory._store, store  # type: ignore[assignment]
        factory.use_restore(restore_message)
        parsed = factory.read(name, declared, durable=True)
        made = factory.make(
            self.broker.default_host, name, durable=True, auto_delete=False, arguments=declared, parsed=parsed,
            journal=store,
        )  # fmt: skip
        factory._store = before
        assert isinstance(made, Stream)
        self.broker.tick._store = self.broker.router._store = store  # type: ignore[assignment]
        self.broker.default_host.queues[name] = made
        return made

    def durable_queue(self, name: str) -> Queue:
        """A queue with a journal, on the disk that waits."""
        queue = self.broker.queue_factory.make(
            self.broker.default_host, name, durable=True, auto_delete=False, arguments=EMPTY_MAP
        )
        self._keep(queue)
        self.broker.default_host.queues[name] = queue
        return queue

    def _keep(self, queue: Queue) -> None:
        store: Any = self.store
        queue.store, queue.journal, queue._append = store, store, store
        self.broker.store = store
        self.broker.tick._store = store
        self.broker.router._store = store

    def connect(self, *, is_local: bool = True) -> Client:
        """A client that has said nothing yet."""
        return Client(self, is_local=is_local)

    def open_client(self, *, name: bytes | None = b"session", timeout: int = 0) -> Client:
        """A client whose connection is open, with a session on channel 1 unless `name` is None."""
        client = self.connect()
        client.negotiate()
        if name is not None:
            client.attach(name, timeout=timeout)
        return client


class Clockwork(World):
    """A world with the timers of expired messages and of rates, which ring when their time has come.

    Attributes:
        timers: when each is due, and what it calls.
    """

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        super().__init__(settings)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.broker.call_later = self.broker.expiries._call_later = self._call_later

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, call))

    def wait(self, seconds: float) -> int:
        """Let time pass. Returns how many timers have rung."""
        self.run()
        end, rung = self.now + seconds, 0
        while due := [each for each in self.timers if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self.timers.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
            self.run()
            rung += 1
        self.now = end
        return rung

    def count(self, queue: str = "q") -> int:
        """Messages on a queue."""
        return self.broker.default_host.queues[queue].message_count


class Client:
    """The other end of a connection, as bytes. What has come is kept, by kind.

    Attributes:
        machine: the broker's end.
        controls: what came, as (channel, name, values), and not commands.
        deliveries: messages that came, each session's in order.
        exceptions, results: what came of execution.exception and execution.result.
        completed: numbers of our commands that the broker has said to be completed.
    """

    def __init__(self, world: World, *, is_local: bool = True) -> None:
        self.world = world
        self.host = Host(world)
        self.machine = world.connections.connect(self.host, Peer("", PeerSecurity(is_local=is_local)))
        world.machines.append(self.machine)
        self.header = b""
        self.all: list[Sent] = []
        self.controls: list[tuple[int, str, dict[str, Any]]] = []
        self.deliveries: list[Delivery] = []
        self.exceptions: list[dict[str, Any]] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.completed: set[int] = set()
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self._partial: dict[int, tuple[bytes, list[bytes] | None, list[bytes]]] = {}

    # ---- sending ----

    def send(self, data: bytes) -> None:
        """Bytes, as the socket brings them."""
        self.machine.receive(data)

    def control(self, name: str, /, *, on: int = 0, **values: Any) -> None:
        """Send a control on channel `on`."""
        self.send(encode_control_frame(on, encode_control(name, **values)))

    def command(
        self, name: str, /, *, on: int = 1, header: bytes | None = None, body: bytes = b"", **values: Any
    ) -> int:
        """Send a command on channel `on`. Returns its number."""
        number = self.sent.get(on, 0)
        self.sent[on] = number + 1
        payload = encode_command(name, **values)
        self.send(b"".join(encode_command_frames(on, payload, header, body, 65535)))
        return number

    def publish(self, key: str, *bodies: bytes, exchange: str = "", on: int = 1, **delivery: Any) -> list[int]:
        """Send messages."""
        return [
            self.command(
                "message.transfer", on=on, destination=exchange, header=header(routing_key=key, **delivery), body=body
            )
            for body in bodies
        ]

    # ---- what nearly every test does ----

    def negotiate(self, host: str = "") -> None:
        """Open the connection to a virtual host."""
        self.send(PROTOCOL_HEADER)
        self.control("connection.start-ok", client_properties={}, mechanism="ANONYMOUS", locale="en_US")
        self.control("connection.tune-ok", channel_max=100, max_frame_size=65535, heartbeat=0)
        self.control("connection.open", virtual_host=host)
        self.sync()
        assert self.controls[-1][1] == "connection.open-ok"

    def attach(self, name: bytes, *, on: int = 1, timeout: int = 0, force: bool = False, point: int = 0) -> None:
        """Attach a session and say where its commands begin."""
        self.control("session.attach", on=on, name=name, force=force)
        if timeout:
            self.control("session.request-timeout", on=on, timeout=timeout)
        self.control("session.command-point", on=on, command_id=point, command_offset=0)
        self.sent[on] = point
        self.sync()

    def declare(self, queue: str, *, on: int = 1, **values: Any) -> int:
        """Declare a queue."""
        number = self.command("queue.declare", on=on, queue=queue, **values)
        self.sync()
        return number

    def subscribe(
        self,
        queue: str,
        *,
        to: str | None = None,
        on: int = 1,
        messages: int = UNLIMITED,
        size: int = UNLIMITED,
        mode: int = CREDIT,
        **values: Any,
    ) -> None:
        """Subscribe, with credit."""
        name = queue if to is None else to
        self.command("message.subscribe", on=on, queue=queue, destination=name, **values)
        self.command("message.set-flow-mode", on=on, destination=name, flow_mode=mode)
        self.flow(name, MESSAGES, messages, on=on)
        self.flow(name, BYTES, size, on=on)
        self.sync()

    def flow(self, destination: str, unit: int, value: int, *, on: int = 1) -> None:
        """Give credit."""
        if value:
            self.command("message.flow", on=on, destination=destination, unit=unit, value=value)

    def call(self, name: str, /, *, on: int = 1, **values: Any) -> dict[str, Any]:
        """A command and its result."""
        number = self.command(name, on=on, **values)
        self.sync()
        return self.results.pop(number)

    def take(self) -> list[bytes]:
        """The bodies that have come since the last time."""
        self.sync()
        bodies = [each.body for each in self.deliveries]
        self.deliveries.clear()
        return bodies

    def session(self, name: bytes = b"session") -> ServerSession:
        """The broker's end of a session."""
        found = self.world.sessions.find(self.machine.user, self.machine.virtual_host, name)
        assert found is not None
        return found

    def failure(self) -> tuple[int, int | None]:
        """The code of the exception that has ended the session, and which command it was; the session is detached."""
        self.sync()
        assert len(self.exceptions) == 1
        assert self.names()[-1] == "session.detach"
        return self.exceptions[0]["error_code"], self.exceptions[0]["command_id"]

    def close_code(self) -> int | None:
        """The code of the connection.close that has come; None if none has."""
        self.sync()
        codes: list[int] = [values["reply_code"] for _, name, values in self.controls if name == "connection.close"]
        assert len(codes) <= 1
        return codes[0] if codes else None

    # ---- what has come ----

    def names(self) -> list[str]:
        """The names of the controls that have come."""
        return [name for _, name, _ in self.controls]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The values of the controls of one name that have come."""
        return [values for _, each, values in self.controls if each == name]

    def sync(self) -> None:
        """Let the broker work, and read what it has sent."""
        self.world.run()
        self.read()

    def read(self) -> None:
        """Read what the broker has sent."""
        data = bytes(self.host.output)
        self.host.output.clear()
        at = 0
        if not self.header and data:
            self.header, at = data[:8], 8
        while at < len(data):
            frame = decode_frame(data, at, self.machine.max_frame if self.machine.user else 65535)
            assert frame is not None, "the broker sends whole frames"
            at += FRAME.size + len(frame.payload)
            if frame.segment_type == CONTROL:
                command, values = decode_control(frame.payload)
                self._control(frame.channel, command.name, values)
            else:
                self._segment(frame.channel, frame.segment_type, frame.flags, frame.payload)

    def _control(self, channel: int, name: str, values: dict[str, Any]) -> None:
        self.all.append(Sent(channel, name, values, None, b""))
        self.controls.append((channel, name, values))
        if name == "session.command-point":
            self.received[channel] = values["command_id"]
        elif name == "session.gap":
            self.received[channel] = values["commands"][-1][1] + 1
        elif name == "session.completed":
            for first, last in values["commands"] or ():
                if last - first < _MANY:  # or a hostile client has left out very many
                    self.completed.update(range(first, last + 1))

    def _segment(self, channel: int, segment: int, flags: int, payload: bytes) -> None:
        if channel not in self._partial:
            self._partial[channel] = b"", None, []
        command, head, body = self._partial[channel]
        if segment == COMMAND:
            command += payload
        elif segment == HEADER:
            head = [*(head or []), payload]
        else:
            assert segment == BODY
            body.append(payload)
        self._partial[channel] = command, head, body
        if flags & LAST_SEGMENT and flags & LAST_FRAME:
            del self._partial[channel]
            self._command(channel, command, None if head is None else b"".join(head), b"".join(body))

    def _command(self, channel: int, payload: bytes, head: bytes | None, body: bytes) -> None:
        command, _, values = decode_command(payload)
        number = self.received[channel]
        self.received[channel] = number + 1
        self.all.append(Sent(channel, command.name, values, head, body))
        if command.name == "message.transfer":
            self.deliveries.append(Delivery(number, values["destination"] or "", head or b"", body))
        elif command.name == "execution.exception":
            self.exceptions.append(values)
        elif command.name == "execution.result":
            self.results[values["command_id"]] = decode_result(values["value"])[1]
