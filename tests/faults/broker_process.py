"""A whole broker in one process, without a network: its model, its store on a simulated disk, its connections.

The event loop is asyncio's, but it never waits: it is turned by hand, one iteration at a time, and has neither sockets
nor timers. What a client sends lies in its `Wire` until it is carried over, in pieces as chance cuts them; what the
broker sends is with the client at once, so that what was told before a crash was heard. Nothing depends on time or on
the system: one seed, one history.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, Final, Protocol
from unittest.mock import patch

from qstore.broker.model import memory
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues import composition
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.paging_directory import PagingDirectory
from qstore.broker.model.residency.references import Reference
from qstore.broker.model.residency.stretch import Portions, Stretch
from qstore.broker.model.run import RunEntry
from qstore.broker.model.transactions import effects, planned, work
from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections
from qstore.broker.protocols.amqp_0_9_1.connection import ServerConnection as BasicConnection
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections, ServerConnection
from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections
from qstore.broker.protocols.amqp_1_0.connection import ServerConnection as LinksConnection
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.machine import Peer
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.security.authentication import Authentication, LoginOptions, PeerSecurity
from qstore.broker.security.sasl.exchange import Answer, PasswordCheck
from qstore.broker.settings import BrokerSettings
from qstore.formats.rhm.geometry import Geometry
from qstore.store.journal.write import version_2_writer
from qstore.store.live import transactions
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level, LogLine
from qstore.store.module import PluggedStore
from qstore.store.start.started import IndexPortion, StartedQueue
from tests.faults.broker_model import Model
from tests.faults.simulated_disk import Killed, SimulatedDisk
from tests.faults.simulator import BrokenPromiseError, require
from tests.faults.store_simulation import PATH, TinyParameters, names_in, simulated_environment
from tests.support.paging_disk import MemoryPagingDisk

GEOMETRY: Final = Geometry(6, 8192)
"""Of each queue's journal: some 50 messages."""
_SMALL: Final = Geometry(4, 4096)
"""The same where messages go out of memory, or rest in the journal: so small that compaction has to move those."""
_MAX_TURNS: Final = 2000
_DUE: Final = 0.2  # the chance that timers are due
_SETTINGS: Final = BrokerSettings(auth=False)
_PAGING: Final = BrokerSettings(auth=False, queue_memory_bytes=1)
_TINY: Final = Portions(window=1, largest=3, smallest=1, least=1, bytes=1 << 20, patience=0)


@contextmanager
def tiny_portions(largest: int = _TINY.largest, rest: int = _TINY.rest) -> Iterator[None]:
    """Messages leave memory `largest` at a time, and nearly all that no consumer has.

    Stored ones of a queue do so beyond `rest` bytes, even if there is enough memory.
    """
    with patch.object(composition, "PORTIONS", _TINY._replace(largest=largest, rest=rest)):
        yield


@contextmanager
def tiny_turns() -> Iterator[None]:
    """All transactions are large: they are written, and take effect, a message at a time."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(work, "AT_ONCE", 0))
        stack.enter_context(patch.object(planned, "AT_ONCE", 1))
        stack.enter_context(patch.object(planned, "WRITTEN_AT_ONCE", 1))
        stack.enter_context(patch.object(effects, "AT_ONCE", 1))
        stack.enter_context(patch.object(transactions, "OUTCOME_STEP", 1))
        stack.enter_context(patch.object(BrokerProcess, "is_watched", True))
        stack.enter_context(patch.object(Model, "ends_in_turns", True))
        yield


def _nothing(_connection: object) -> None:
    """The process is gone."""


class SimulatedStore(PluggedStore):
    """The store as a broker has it, with tiny journals.

    Attributes:
        geometry: of each new queue's journal.
        away: record id -> data of all messages that were out of the broker's memory. Nobody can ask the dead for them.
        runs_read: the runs that were read back.
    """

    geometry: Geometry
    away: dict[int, bytes]
    runs_read: int = 0

    def read_runs(
        self, journal: QueueJournal, rids: Sequence[int], decode: Any, alike: Any, done: Callable[[list[Any]], None]
    ) -> None:
        """As always."""

        def counted(found: list[Any]) -> None:
            self.runs_read += sum(isinstance(each, tuple) for each in found)
            done(found)

        super().read_runs(journal, rids, decode, alike, counted)

    def put_away(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        """As always."""
        self._note(journal, rids)
        super().put_away(journal, rids)

    def index(self, queue: StartedQueue) -> Iterator[IndexPortion] | None:
        """As always."""
        portions = super().index(queue)
        return None if portions is None else self._noted(queue.journal, portions)

    def _noted(self, journal: QueueJournal, portions: Iterator[IndexPortion]) -> Iterator[IndexPortion]:
        for portion in portions:
            self._note(journal, portion.rids)
            yield portion

    def _note(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        for rid in rids:
            if rid not in self.away:
                self.away[rid] = journal.load(rid)

    def queue_geometry(self, arguments: Mapping[str, Any]) -> Geometry:
        """The same for all."""
        return self.geometry


class FickleDisk(MemoryPagingDisk):
    """The disk of paging files: of random size, now and then without anything in its cache, or failing to write."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        super().__init__(self._rng.choice((1 << 40, 20_000)))
        self.make_directory("/paging")
        self.random_bits = self._rng.getrandbits

    @property
    def has_cache(self) -> bool:
        """Whether a read need not wait."""
        return self._rng.random() < 0.5

    @has_cache.setter
    def has_cache(self, _value: bool) -> None:
        """It is random."""

    @property
    def write_error(self) -> int:
        """The error number of a write; 0 for none."""
        return errno.EIO if self._rng.random() < 0.1 else 0

    @write_error.setter
    def write_error(self, _value: int) -> None:
        """It is random."""


class Client(Protocol):
    """The other end of a wire: a connection's machine."""

    def receive(self, data: bytes) -> None:
        """Take what the broker has sent."""

    def take_output(self) -> bytes:
        """What is to be sent."""


class Wire:
    """A connection: the broker's machine, whose `Host` this is, and the client's, of a protocol."""

    def __init__(self, process: BrokerProcess, client: Client, protocol: str = "0-10") -> None:
        self._process, self.client = process, client
        self._on_the_way = b""
        self.is_closed = False
        peer = Peer("127.0.0.1:5", PeerSecurity(is_local=True))
        self.machine: ServerConnection | BasicConnection | LinksConnection
        self.machine = process.protocols[protocol].connect(self, peer)

    @property
    def is_over(self) -> bool:
        """Whether the broker is done with the connection."""
        return self.machine.phase is Phase.CLOSED

    # ---- what tests do to it ----

    @property
    def is_busy(self) -> bool:
        """Whether anything has not come over yet."""
        self._on_the_way += self.client.take_output()
        has_more = bool(self._on_the_way) or self.machine.is_paused or self.machine.is_behind
        return not self.is_closed and has_more

    def carry(self, count: int | None = None) -> None:
        """Bring over what the client has sent: so many bytes, or all. Nothing if the broker does not read."""
        self._on_the_way += self.client.take_output()
        if self._on_the_way and not self.machine.is_paused and not self.is_closed:
            data = self._on_the_way[:count]
            self._on_the_way = self._on_the_way[len(data) :]
            self.machine.receive(data)
        if self.machine.is_behind and not self.machine.is_paused and not self.is_closed:
            self.machine.resume()

    # ---- Host ----

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time."""
        self._process.run(work, done)

    def resumed(self) -> None:
        """What was read goes on by itself."""

    def check_password(self, check: PasswordCheck, done: Callable[[Answer], None]) -> None:
        """There are no passwords."""
        raise AssertionError("a password")

    def write(self, data: bytes) -> None:
        """The client has it. (The event loop goes on for a moment when a callback was killed: the dead say nothing.)"""
        self._process.disk.check_alive(self._process.disk.life)
        self.client.receive(data)

    def close(self) -> None:
        """The socket is closed."""
        self.is_closed = True


class BrokerProcess:
    """One process.

    Args:
        disk: where its store is.
        rng: decides when what is slow is done.
        clock: seconds since 1970.
        turned: called before each tick.
        must_be_clean: the store was closed cleanly, and nobody has opened it since.
        may_be_in_doubt: whether there may be branches of distributed transactions.
        pages: whether messages go out of memory as soon as they can, which `tiny_portions` makes soon, and a start
            reads none of those that a plain queue has.

    Attributes:
        broker, store: as they are.
        alarms: when calls are due that only `ring` does, and what: those in a second or later, and for expiry.
        wires: the connections.
        failures: what went wrong where nobody could be told.
        is_watched: whether the store does work in the event loop's iterations, and lets commits wait for others there.

    Raises:
        BrokenPromiseError: the store complains, or is not clean.
        Killed: while it started.
    """

    is_watched: ClassVar = False

    def __init__(
        self,
        disk: SimulatedDisk,
        rng: random.Random,
        clock: Callable[[], float],
        turned: Callable[[], None],
        *,
        must_be_clean: bool = False,
        may_be_in_doubt: bool = False,
        pages: bool = False,
    ) -> None:
        self.disk, self.rng, self.clock, self._turned = disk, rng, clock, turned
        self.lines: list[LogLine] = []
        self.failures: list[BaseException] = []
        self.wires: list[Wire] = []
        self._tasks: set[asyncio.Task[None]] = set()
        environment = simulated_environment(disk, rng)
        with patch.object(version_2_writer, "MAX_AWAKE", 1 if pages else version_2_writer.MAX_AWAKE):
            self.store = SimulatedStore.open(environment, PATH, TinyParameters(), "test", log=self.lines.append)
        is_out = pages or not composition.PORTIONS.rest
        self.store.geometry, self.store.away = _SMALL if is_out else GEOMETRY, {}
        reported = [line.text for line in self.lines if line.level in (Level.CRITICAL, Level.WARNING)]
        require(len(reported) <= len(names_in(self.store, "orphans")), f"damage is reported: {reported}")
        require(self.store.was_clean or not must_be_clean, "the store was closed cleanly, and is not clean")
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_exception_handler(self._failed)
        self._timers: list[Callable[[], None]] = []
        self.alarms: list[tuple[float, Callable[[], None]]] = []
        settings = _PAGING if pages else _SETTINGS
        with patch.object(memory, "_RESERVE", 1):  # nothing here runs out of memory, and making 4 MiB takes its time
            self.broker = Broker(settings, self.store, self._call_soon, clock, self._call_later, clock)
        self.broker.expiries._call_later = self._call_at
        self.broker.default_host.schedule._call_later = self._call_at
        self.broker.tick.is_idle = lambda _waiting, _flushes: rng.random() < 0.2
        self.store.is_watched(self._call_soon, self._call_later)
        if not self.is_watched:
            self.store._flusher.in_next_iteration = None
        self.broker.tick.ended = self.store.fill_ahead
        if pages:
            self.paging_disk = FickleDisk(disk.life)
            directory = PagingDirectory(self.paging_disk, "/paging", self._run_aside, self.paging_disk.random_bits)
            directory.prepare()
            self.broker.queue_factory.use_paging(directory, 0)
        authentication = Authentication(LoginOptions(is_on=False), None)
        self.modern = Amqp010Connections(self.broker, authentication)
        basic, links = Amqp091Connections(self.broker, authentication), Amqp10Connections(self.broker, authentication)
        self.modern.now = basic.now = links.now = clock
        self.protocols: dict[str, Amqp010Connections | Amqp091Connections | Amqp10Connections]
        self.protocols = {"0-10": self.modern, "0-9-1": basic, "1.0": links}
        self.sessions = self.modern.sessions
        try:
            self.broker.recover(restore_message)
            require(may_be_in_doubt or not self.broker.distributed.branches, "a transaction in doubt")
            self.run(self.broker.virtual_hosts.start(), self._kept)
            self.settle()
        except BaseException:
            self.discard()
            raise

    def _kept(self, error: ModelError | None) -> None:
        require(error is None, f"the standard exchanges cannot be kept: {error}")

    # ---- the loop ----

    def _run_aside(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """As a thread does it: the result comes in a later iteration."""
        self._call_soon(partial(done, work()))

    def _call_soon(self, callback: Callable[[], None]) -> None:
        def tick() -> None:
            self.disk.check_alive(self.disk.life)  # the dead do nothing: they would wait for a flush that cannot end
            self._turned()
            callback()

        self._loop.call_soon(tick)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds < 1:
            self._timers.append(callback)
        else:
            self._call_at(seconds, callback)

    def _call_at(self, seconds: float, callback: Callable[[], None]) -> None:
        self.alarms.append((self.clock() + seconds, callback))

    def ring(self) -> None:
        """Do the calls that are due by now."""
        due = [callback for when, callback in self.alarms if when <= self.clock()]
        self.alarms = [each for each in self.alarms if each[0] > self.clock()]
        for callback in due:
            callback()

    def _failed(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time, as the server does."""
        task = self._loop.create_task(self._run(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # which was not begun if the process died before

    async def _run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            await work
        except ModelError as failed:
            error = failed
        except Exception as failed:
            self.failures.append(failed)
            raise
        done(error)

    def tick(self) -> None:
        """One iteration of the event loop, in which timers may be due."""
        if self._timers and self.rng.random() < _DUE:
            due, self._timers = self._timers, []
            for callback in due:
                self._call_soon(callback)
        self._loop.call_soon(self._loop.stop)
        with _outside_of_loops():
            self._loop.run_forever()
        self.check()

    def collect(self, timeout: float | None = 0.0) -> None:
        """The disk has done something, perhaps."""
        self.store.collect(timeout, begins=False)
        self._turned()
        self.broker.tick.end()
        self.check()

    def check(self) -> None:
        """Raise errors that no client got. Raises Killed if the process is dead."""
        self.disk.check_alive(self.disk.life)
        for error in self.failures:
            if not isinstance(error, Killed):
                raise error

    def settle(self) -> None:
        """Until everything has come over and is done."""
        for _ in range(_MAX_TURNS):
            for wire in self.wires:
                wire.carry()
            self.tick()
            self.collect(None)
            if self.is_quiet:
                return
        raise BrokenPromiseError("something does not come to its end")

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        tick = self.broker.tick
        is_at_work = self._tasks or self._timers or tick.flushes_under_way or tick._is_scheduled or tick.turns
        store = self.store
        is_disk_at_work = (
            not store._flusher.is_idle
            or store._background.is_busy
            or store._reads.is_busy
            or store.transactions._is_stepping
        )
        return not is_at_work and not is_disk_at_work and not any(wire.is_busy for wire in self.wires)

    # ---- what it holds ----

    def bodies(self, queue: Queue) -> list[bytes]:
        """The messages of a queue, in order; those that are out of memory stay there, also when the process is dead."""
        return [body for part in queue.order.parts() for body in self._bodies(queue, part)]

    def _bodies(self, queue: Queue, part: Entry) -> list[bytes]:
        if isinstance(part, RunEntry):
            return [bytes(part.run.message(number).body) for number in range(part.first, part.first + part.count)]
        if isinstance(part, Stretch):
            keys, is_stored = list(part.keys), part.is_stored
        elif isinstance(part.message, Reference):
            keys, is_stored = [part.message.key], part.message.is_stored
        else:
            return [bytes(part.message.body)]
        if is_stored:
            return [bytes(restore_message(self.store.away[key]).body) for key in keys]
        source = None if queue.residency is None else queue.residency.references.source(is_stored=False)
        assert source is not None
        loaded = source.load(keys)
        require(None not in loaded, f"{queue.name}: messages of the paging file cannot be read back")
        return [bytes(message.body) for message in loaded if message is not None]

    # ---- connections ----

    def connect(self, client: Client, protocol: str = "0-10") -> Wire:
        """A client connects."""
        wire = Wire(self, client, protocol)
        self.wires.append(wire)
        return wire

    def cut(self, wire: Wire) -> None:
        """A connection is lost, with what has not come over."""
        self.wires.remove(wire)
        wire.machine.closed()

    # ---- the end ----

    def stop(self) -> bool:
        """SIGTERM: as the server and the life of a broker do it. Returns whether the store is marked clean."""
        for wire in self.wires:
            wire.machine.force_close("the broker is shutting down")
        self.broker.tick.end()
        for wire in self.wires:
            wire.carry()
        for wire in self.wires:
            if not wire.is_over:
                wire.machine.closed()
        self.run(self.broker.finish(), lambda _: None)
        for _ in range(_MAX_TURNS):
            if not self._tasks and not self.broker.tick.turns:
                break
            self.tick()
            self.collect(None)
        self.tick()
        self.broker.tick.end()
        is_clean = self.broker.close()
        self._loop.close()
        return is_clean

    def _forget_turns(self) -> None:
        """Work in turns ends where it is, and is not continued."""
        turns = self.broker.tick.turns
        with ExitStack() as stack:
            stack.enter_context(patch.object(ServerConnection, "resume", _nothing))
            for connection in (BasicConnection, LinksConnection):
                stack.enter_context(patch.object(connection, "unpause", _nothing))
            for pieces in [*turns._work.values(), *turns._waiting.values()]:
                for piece in pieces:
                    piece.close()  # type: ignore[attr-defined]
        turns._work.clear()
        turns._waiting.clear()

    def discard(self) -> None:
        """The process is gone: its disk has crashed, or is going to."""
        if self._loop.is_closed():
            return
        self.disk.watch, self.disk.kill_at = None, 0
        with _outside_of_loops():
            self._forget_turns()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            for _ in range(3):
                self._loop.call_soon(self._loop.stop)
                self._loop.run_forever()
        self._loop.close()


@contextmanager
def _outside_of_loops() -> Iterator[None]:
    """A broker may be looked at while another one is in the middle of its tick: loops within loops."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
