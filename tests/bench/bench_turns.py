"""The longest turn of the broker's event loop during operations whose size a peer chooses.

    python -m tests.bench.bench_turns [--messages 100000] [--only NAME ...] [--durable] [--json]

A broker runs in this process on an event loop that measures each of its iterations, in processor time of its thread,
so that other processes, the disk and the clients, which are threads, do not count. For every operation the table has
the longest iteration and the processor time of the whole, until nothing is left to do and the loop comes to rest. The
goal is that no turn takes more than 20 ms, whatever the number.
A collection of garbage counts as part of the turn in which it happens: 45 ms with 100,000 messages in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import orjson
from rich.console import Console as Screen
from rich.table import Table

from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.exchanges.exchange import ExchangeBinding, refresh
from qstore.broker.model.message import MAX_KEYS
from qstore.broker.model.policies import POLICY, Policy
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.selectors.grammar import MAX_TOKENS
from qstore.broker.model.selectors.selector import compile_selector
from qstore.broker.protocols.amqp_0_9_1.channel import MAX_CONSUMERS
from qstore.broker.security.permissions import PERMISSION, Permissions
from qstore.formats.amqp_0_9_1.methods import AMQP_0_9, AMQP_0_9_1, Version
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, BranchId, encode_struct
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.values import MAX_VALUES, TypedMap, typed_map
from qstore.store.disk import WritableFile
from qstore.store.sync import Completion, FileWrite
from tests.support.basic_peer import BasicPeer
from tests.support.management_console import Console
from tests.support.raw_peer import RawPeer, transfer_frames
from tests.support.sections_peer import ACCEPTED, RECEIVER, REJECTED, RELEASED, LinksPeer, content
from tests.support.served import HeldDriver, Served, client, served

_GOAL: Final = 0.020
"""Seconds that a turn may take."""
_PATIENCE_SECONDS: Final = 60.0  # for one operation
_AT_ONCE: Final = 1_000  # messages or bindings made before the loop goes on, while a scenario is prepared
_REST: Final = 20  # iterations in which nothing changes: the loop is at rest


class MeasuringLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its iterations.

    Attributes:
        longest: processor time of the longest iteration, in seconds.
        turns: how many there were.
    """

    longest = 0.0
    turns = 0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # of CPython
        self.longest = max(self.longest, time.thread_time() - began)
        self.turns += 1


class SyncedInThread(HeldDriver):
    """A sync driver whose syncs count for another thread, as those of a real broker do."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(1)
        self._done: deque[Completion] = deque()

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        self._pool.submit(self._do, ticket, files)

    def _do(self, ticket: int, files: Sequence[WritableFile]) -> None:
        self._done.append((ticket, self._sync(files)))
        os.eventfd_write(self._event, 1)

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        select.select([self._event], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        self._pool.shutdown()
        super().close()


class Measured(NamedTuple):
    """One row.

    Attributes:
        name: of the operation.
        count: messages, bindings or objects that it is about.
        longest, total: processor time in seconds: of the longest turn, and of all.
    """

    name: str
    count: int
    longest: float
    total: float


class Stage:
    """A broker that listens, and what is done to it.

    Args:
        found: the broker.
        count: how many messages, bindings or objects.
        durable: whether queues and messages are.
    """

    def __init__(self, found: Served, count: int, *, durable: bool) -> None:
        self.found, self.broker, self.count, self.durable = found, found.broker, count, durable
        self.host = self.broker.default_host
        self.longest = self.total = 0.0
        self._clients: list[Any] = []

    # ---- measuring ----

    async def measure(self, work: Callable[[], Awaitable[object]], until: Callable[[], bool]) -> None:
        """Measure an operation, until something is so and the loop is at rest."""
        gc.collect()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuringLoop)
        await asyncio.sleep(0.05)
        loop.longest, began = 0.0, time.thread_time()
        await work()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not until():
                await asyncio.sleep(0.001)
        for _ in range(_REST):
            await asyncio.sleep(0.001)
        self.longest, self.total = loop.longest, time.thread_time() - began

    # ---- preparing ----

    async def basic(self, version: Version = AMQP_0_9_1) -> BasicPeer:
        """A client of AMQP 0-9-1, or an older version."""
        peer = await client(BasicPeer, self.found.port, version=version)
        self._clients.append(peer.socket)
        return peer

    async def peer(self) -> RawPeer:
        """A client of AMQP 0-10."""
        peer = await client(RawPeer, self.found.port)
        self._clients.append(peer.socket)
        return peer

    def close(self) -> None:
        """Close all clients."""
        for each in self._clients:
            with contextlib.suppress(OSError):
                each.close()

    async def queue(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Queue:
        """A queue."""
        return await self.host.topology.declare_queue(
            name, durable=self.durable, arguments=typed_map(arguments or {}), **more
        )

    async def filled(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        basic: bool = True,
        properties: Properties | None = None,
        size: int = 16,
        **more: Any,
    ) -> Queue:
        """A queue `q` with the messages."""
        await self.queue("q", arguments, **more)
        return await self.fill("q", basic=basic, properties=properties, size=size)

    async def fill(
        self, name: str, *, basic: bool = True, properties: Properties | None = None, size: int = 16
    ) -> Queue:
        """Publish the messages to a queue."""
        queue = self.host.queues[name]
        if basic:
            publisher = await self.basic()
            made = properties or Properties(delivery_mode=2 if self.durable else 1)
            message = publisher.message(name, b"x" * size, made)
            await client(publisher.socket.sendall, message * self.count)
        else:
            peer = await self.peer()
            message = transfer_frames(name, b"x" * size, durable=self.durable)
            await client(peer.socket.sendall, message * self.count)
        await self.found.until(lambda: queue.messages_enqueued >= self.count)
        await asyncio.sleep(0.1)
        return queue

    def drain(self, sock: Any) -> None:
        """Read and forget what comes to a client, in a thread."""

        def read() -> None:
            with contextlib.suppress(OSError):
                sock.settimeout(None)
                while sock.recv(1 << 20):
                    pass

        threading.Thread(target=read, daemon=True).start()

    async def holding(
        self, name: str, *, transactional: bool = False, version: Version = AMQP_0_9_1
    ) -> tuple[BasicPeer, Any]:
        """A client of 0-9-1 that has all messages of a queue, unacknowledged; and its channel in the broker."""
        peer = await self.basic(version)
        if transactional:
            await client(peer.call, "tx.select")
        queue = self.host.queues[name]
        await client(peer.send, "basic.consume", 1, queue=name, consumer_tag="c")
        self.drain(peer.socket)
        await self.found.until(lambda: queue.available_count == 0)
        machine: Any = next(
            each for each in self.found.server.clients.machines() if any(c.unsettled for c in each.sessions.values())
        )
        return peer, machine.channels[1]

    async def holding_0_10(self, name: str, *, setup: Callable[[RawPeer], None] = lambda _: None) -> RawPeer:
        """A client of 0-10 that has all messages of a queue."""
        peer = await self.peer()
        await client(setup, peer)
        queue = self.host.queues[name]
        await client(peer.subscribe, name)
        self.drain(peer.socket)
        await self.found.until(lambda: queue.available_count == 0)
        return peer

    def frames(self, peer: RawPeer, name: str, **values: Any) -> Callable[[], Awaitable[None]]:
        """Sends one command of 0-10."""
        frames = peer.command_frames(name, **values)
        return lambda: client(peer.socket.sendall, frames)

    async def bindings(self, exchange: str, queues: int = 1, make: Callable[[int], TypedMap] | None = None) -> None:
        """Bind queues to an exchange, once for each message."""
        found = self.host.exchanges[exchange]
        for number in range(self.count):
            queue = self.host.queues[f"q{number % queues}"]
            binding = found.prepare(queue, f"key.{number}", make(number) if make else TypedMap())
            assert binding is not None
            found.put(binding)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)


Scenario = Callable[[Stage], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}
"""Name -> what is done."""


def _scenario(name: str) -> Callable[[Scenario], Scenario]:
    def add(work: Scenario) -> Scenario:
        SCENARIOS[name] = work
        return work

    return add


# ---- settlement, 0-9-1 ----


async def _dead_letters(stage: Stage) -> None:
    await stage.host.topology.declare_exchange("dlx", "fanout", durable=stage.durable)
    await stage.queue("dead")
    await stage.host.topology.bind("dead", "dlx", "")
    await stage.queue("q", {"x-dead-letter-exchange": "dlx"})


def _send(peer: BasicPeer, name: str, **values: Any) -> Callable[[], Awaitable[None]]:
    return lambda: client(peer.send, name, 1, **values)


@_scenario("0-9-1 nack all into a dead-letter exchange")
async def _nack_dead(stage: Stage) -> None:
    await _dead_letters(stage)
    await stage.fill("q")
    peer, _ = await stage.holding("q")
    dead = stage.host.queues["dead"]
    work = _send(peer, "basic.nack", delivery_tag=0, multiple=True, requeue=False)
    await stage.measure(work, lambda: dead.message_count == stage.count)


@_scenario("0-9-1 tx.commit of that nack")
async def _commit_nack_dead(stage: Stage) -> None:
    await _dead_letters(stage)
    await stage.fill("q")
    peer, _ = await stage.holding("q", transactional=True)
    dead = stage.host.queues["dead"]

    def work() -> None:
        peer.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
        peer.send("tx.commit")

    await stage.measure(lambda: client(work), lambda: dead.message_count == stage.count)


async def _long_messages(stage: Stage, **properties: Any) -> None:
    """Few messages with many headers each on the queue `q`; no two are alike."""
    stage.count = 90
    publisher = await stage.basic()
    headers = typed_map({f"{number:x}": number for number in range(4_000)})
    frames = [
        publisher.message("q", b"x", Properties(headers=headers, message_id=str(number), **properties))
        for number in range(stage.count)
    ]
    await client(publisher.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: stage.host.queues["q"].messages_enqueued == stage.count)


@_scenario("0-9-1 nack of messages with 4,000 headers each into a dead-letter exchange")
async def _nack_long_headers(stage: Stage) -> None:
    await _dead_letters(stage)
    await _long_messages(stage)
    peer, _ = await stage.holding("q")
    dead = stage.host.queues["dead"]
    work = _send(peer, "basic.nack", delivery_tag=0, multiple=True, requeue=False)
    await stage.measure(work, lambda: dead.message_count == stage.count)


@_scenario("expiry of messages with 4,000 headers each into a dead-letter exchange")
async def _expire_long_headers(stage: Stage) -> None:
    await _dead_letters(stage)
    dead, now = stage.host.queues["dead"], stage.broker.clock()
    await _long_messages(stage, expiration="60000")

    async def work() -> None:
        stage.broker.expiries._clock = lambda: now + 100.0
        stage.broker.expiries._ring(stage.broker.expiries._timer)

    await stage.measure(work, lambda: dead.message_count == stage.count)


@_scenario("messages with 4,000 headers each that one large one displaces")
async def _displace_long_headers(stage: Stage) -> None:
    await stage.queue("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await stage.queue("q", {**to_dead, "x-max-length-bytes": 10_000_000, "x-overflow": "drop-head"})
    await _long_messages(stage)
    peer = await stage.basic()
    dead = stage.host.queues["dead"]
    large = peer.message("q", bytes(9_900_000))
    await stage.measure(lambda: client(peer.socket.sendall, large), lambda: dead.message_count > 80)


@_scenario("0-10 accept of every second message of many, in one command")
async def _accept_ranges(stage: Stage) -> None:
    stage.count = 14_000
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q")
    ranges = tuple((number, number) for number in range(0, stage.count, 2))
    await stage.measure(
        stage.frames(peer, "message.accept", transfers=ranges), lambda: queue.message_count == stage.count // 2
    )


@_scenario("0-9-1 nack all, dropped")
async def _nack_drop(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q")
    work = _send(peer, "basic.nack", delivery_tag=0, multiple=True, requeue=False)
    await stage.measure(work, lambda: queue.message_count == 0)


@_scenario("0-9-1 nack all, requeued")
async def _nack_requeue(stage: Stage) -> None:
    queue = await stage.filled()
    peer, channel = await stage.holding("q")
    await client(peer.send, "basic.cancel", 1, consumer_tag="c")
    await stage.found.until(lambda: not channel.consumers)
    work = _send(peer, "basic.nack", delivery_tag=0, multiple=True, requeue=True)
    await stage.measure(work, lambda: queue.available_count == stage.count)


@_scenario("0-9-1 ack all")
async def _ack(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q")
    work = _send(peer, "basic.ack", delivery_tag=0, multiple=True)
    await stage.measure(work, lambda: queue.message_count == 0)


@_scenario("0-9-1 ack up to the last tag")
async def _ack_tag(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q")
    work = _send(peer, "basic.ack", delivery_tag=stage.count - 1, multiple=True)
    await stage.measure(work, lambda: queue.message_count == 1)


@_scenario("0-9-1 recover")
async def _recover(stage: Stage) -> None:
    queue = await stage.filled()
    peer, channel = await stage.holding("q")
    await client(peer.send, "basic.cancel", 1, consumer_tag="c")
    await stage.found.until(lambda: not channel.consumers)
    work = _send(peer, "basic.recover", requeue=True)
    await stage.measure(work, lambda: queue.available_count == stage.count)


@_scenario("0-9-1 recover with a consumer")
async def _recover_again(stage: Stage) -> None:
    queue = await stage.filled()
    peer, channel = await stage.holding("q")
    work = _send(peer, "basic.recover", requeue=True)
    await stage.measure(work, lambda: queue.available_count == 0 and channel.last_tag == 2 * stage.count)


@_scenario("0-9-1 cancel")
async def _cancel(stage: Stage) -> None:
    await stage.filled()
    peer, channel = await stage.holding("q")
    work = _send(peer, "basic.cancel", consumer_tag="c")
    await stage.measure(work, lambda: not channel.consumers)


@_scenario("0-9-1 close of a channel")
async def _close_channel(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q")
    work = _send(peer, "channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    await stage.measure(work, lambda: queue.available_count == stage.count)


@_scenario("0-9-1 loss of a connection")
async def _lose_connection(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q")
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: queue.available_count == stage.count)


@_scenario("0-9-1 tx: ack all, commit")
async def _tx_commit(stage: Stage) -> None:
    queue = await stage.filled()
    peer, _ = await stage.holding("q", transactional=True)

    def work() -> None:
        peer.send("basic.ack", delivery_tag=0, multiple=True)
        peer.send("tx.commit")

    await stage.measure(lambda: client(work), lambda: queue.message_count == 0)


@_scenario("0-9-1 tx: ack all, rollback")
async def _tx_rollback(stage: Stage) -> None:
    await stage.filled()
    peer, channel = await stage.holding("q", transactional=True)

    def work() -> None:
        peer.send("basic.ack", delivery_tag=0, multiple=True)
        peer.send("tx.rollback")

    await stage.measure(lambda: client(work), lambda: len(channel.unsettled) == stage.count)


@_scenario("0-9-1 consumers that close at once")
async def _close_empty(stage: Stage) -> None:
    """They wait for the credit of one message, and then find nothing on their queue."""
    peer, count = await stage.basic(), MAX_CONSUMERS - 1

    def prepare() -> None:
        peer.call("queue.declare", queue="one")
        peer.call("queue.declare", queue="none")
        peer.call("basic.qos", prefetch_count=1, **{"global": True})
        peer.socket.sendall(peer.message("one", b"x"))
        peer.send("basic.consume", queue="one")
        peer.expect("basic.consume-ok")
        peer.expect("basic.deliver")
        arguments = typed_map({"x-filter-auto-close": True})
        for _ in range(count):
            peer.send("basic.consume", queue="none", arguments=arguments, nowait=True)
        peer.call("queue.declare", queue="none", passive=True)

    await client(prepare)
    queue = stage.host.queues["none"]
    assert queue.consumer_count == count
    await stage.measure(
        lambda: client(peer.send, "basic.ack", 1, delivery_tag=0, multiple=True), lambda: not queue.consumer_count
    )


@_scenario("0-9 tx: ack all, rollback")
async def _older_tx_rollback(stage: Stage) -> None:
    await stage.filled()
    peer, channel = await stage.holding("q", transactional=True, version=AMQP_0_9)
    sent = channel.last_tag

    def work() -> None:
        peer.send("basic.ack", delivery_tag=0, multiple=True)
        peer.send("tx.rollback")

    def is_over() -> bool:
        return len(channel.unsettled) == stage.count and channel.last_tag == sent + stage.count

    await stage.measure(lambda: client(work), is_over)


async def _published(stage: Stage, exchange: str, key: str) -> BasicPeer:
    """A client of 0-9-1 that has published the messages in a transaction."""
    peer = await stage.basic()
    await client(peer.call, "tx.select")
    properties = Properties(delivery_mode=2 if stage.durable else 1)
    message = peer.message(key, b"x" * 16, properties, exchange=exchange)
    machine: Any = next(iter(stage.found.server.clients.machines()))
    channel = machine.channels[1]
    stage.drain(peer.socket)
    await client(peer.socket.sendall, message * stage.count)
    await stage.found.until(lambda: len(channel.transaction.messages) == stage.count)
    return peer


@_scenario("0-9-1 tx: publish, commit")
async def _tx_publish(stage: Stage) -> None:
    queue = await stage.queue("q")
    peer = await _published(stage, "", "q")
    await stage.measure(_send(peer, "tx.commit"), lambda: queue.available_count == stage.count)


@_scenario("0-9-1 tx: publish to three queues, commit")
async def _tx_publish_fanout(stage: Stage) -> None:
    queues = [await stage.queue(f"q{number}") for number in range(3)]
    for queue in queues:
        await stage.host.topology.bind(queue.name, "amq.fanout", "")
    peer = await _published(stage, "amq.fanout", "")
    await stage.measure(_send(peer, "tx.commit"), lambda: all(queue.available_count == stage.count for queue in queues))


class _NoRoom:
    """A limit that is reached."""

    refused = 0

    def check_all(self, queue: Queue, count: int, size: int) -> None:
        self.refused += 1
        raise ResourceLimitExceededError(f"no room for {count} messages of {size} bytes on {queue.name}")


@_scenario("0-9-1 tx: publish, refused in the middle")
async def _tx_refused(stage: Stage) -> None:
    queue = await stage.queue("q", {"x-max-length": stage.count + 100, "x-overflow": "reject-publish"})
    peer = await _published(stage, "", "q")
    limit: Any = _NoRoom()

    async def work() -> None:
        await client(peer.send, "tx.commit")
        await stage.found.until(lambda: queue.message_count > stage.count // 2)
        queue.limit = limit  # as if others had used the room meanwhile

    await stage.measure(work, lambda: bool(limit.refused) and queue.message_count == 0)


@_scenario("0-9-1 tx: publish, rollback")
async def _tx_publish_rollback(stage: Stage) -> None:
    await stage.queue("q")
    peer = await _published(stage, "", "q")
    machine: Any = next(iter(stage.found.server.clients.machines()))
    channel = machine.channels[1]
    await stage.measure(_send(peer, "tx.rollback"), lambda: not channel.transaction.messages)


@_scenario("0-9-1 get behind acquired messages")
async def _get(stage: Stage) -> None:
    await stage.filled()
    peer, channel = await stage.holding("q")
    other = await stage.basic()
    stage.drain(other.socket)

    def work() -> None:
        peer.send("basic.cancel", 1, consumer_tag="c")
        peer.send("basic.reject", delivery_tag=1, requeue=True)
        other.send("basic.get", queue="q")
        other.send("basic.get", queue="q")

    await stage.measure(lambda: client(work), lambda: not channel.consumers)


@_scenario("0-9-1 delivery of empty messages, not acknowledged")
async def _deliver(stage: Stage) -> None:
    queue = await stage.filled(size=0)
    peer = await stage.basic()
    stage.drain(peer.socket)
    work = _send(peer, "basic.consume", queue="q", consumer_tag="c", no_ack=True)
    await stage.measure(work, lambda: queue.message_count == 0)


# ---- settlement, 0-10 ----


def _all(stage: Stage) -> tuple[tuple[int, int], ...]:
    return ((0, stage.count + 10),)  # results of commands are numbered, too


@_scenario("0-10 reject all to an alternate exchange")
async def _reject_alternate(stage: Stage) -> None:
    await stage.host.topology.declare_exchange("alt", "fanout", durable=stage.durable)
    await stage.queue("dead")
    await stage.host.topology.bind("dead", "alt", "")
    await stage.filled(alternate="alt", basic=False)
    peer = await stage.holding_0_10("q")
    dead = stage.host.queues["dead"]
    work = stage.frames(peer, "message.reject", transfers=_all(stage))
    await stage.measure(work, lambda: dead.message_count == stage.count)


@_scenario("0-10 reject all into a dead-letter exchange")
async def _reject_dead(stage: Stage) -> None:
    await _dead_letters(stage)
    await stage.fill("q", basic=False)
    peer = await stage.holding_0_10("q")
    dead = stage.host.queues["dead"]
    work = stage.frames(peer, "message.reject", transfers=_all(stage))
    await stage.measure(work, lambda: dead.message_count == stage.count)


@_scenario("0-10 release all")
async def _release(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q")
    await client(peer.socket.sendall, peer.command_frames("message.stop", destination="d"))
    await asyncio.sleep(0.1)
    work = stage.frames(peer, "message.release", transfers=_all(stage))
    await stage.measure(work, lambda: queue.available_count == stage.count)


@_scenario("0-10 accept all")
async def _accept(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q")
    work = stage.frames(peer, "message.accept", transfers=_all(stage))
    await stage.measure(work, lambda: queue.message_count == 0)


@_scenario("0-10 acquire all browsed")
async def _acquire(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.peer()
    await client(peer.subscribe, "q", acquire_mode=1)
    stage.drain(peer.socket)
    await asyncio.sleep(1.0 + stage.count / 50_000)
    work = stage.frames(peer, "message.acquire", transfers=_all(stage))
    await stage.measure(work, lambda: queue.available_count < stage.count)


@_scenario("0-10 end of a session")
async def _end_session(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q")
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: queue.available_count == stage.count)


@_scenario("0-10 tx: accept all, commit")
async def _tx_accept(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q", setup=lambda peer: peer.call("tx.select") and None)

    frames = peer.command_frames("message.accept", transfers=_all(stage)) + peer.command_frames("tx.commit", sync=True)
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count == 0)


@_scenario("0-10 tx: accept all, rollback, end")
async def _tx_accept_rollback(stage: Stage) -> None:
    queue = await stage.filled(basic=False)
    peer = await stage.holding_0_10("q", setup=lambda peer: peer.call("tx.select") and None)
    frames = peer.command_frames("message.accept", transfers=_all(stage)) + peer.command_frames("tx.rollback")

    def work() -> None:
        peer.socket.sendall(frames)
        peer.socket.shutdown(2)

    await stage.measure(lambda: client(work), lambda: queue.available_count == stage.count)


_XID: Final = BranchId(1, b"xid", b"")


async def _branch(stage: Stage) -> tuple[Queue, RawPeer, bytes]:
    queue = await stage.filled(basic=False)

    def setup(peer: RawPeer) -> None:
        peer.call("dtx.select")
        peer.call("dtx.start", xid=_XID)

    peer = await stage.holding_0_10("q", setup=setup)
    frames = peer.command_frames("message.accept", transfers=_all(stage)) + peer.command_frames("dtx.end", xid=_XID)
    return queue, peer, frames


@_scenario("0-10 dtx: accept all, prepare, commit")
async def _dtx_commit(stage: Stage) -> None:
    queue, peer, frames = await _branch(stage)
    frames += peer.command_frames("dtx.prepare", sync=True, xid=_XID)
    decision = peer.command_frames("dtx.commit", sync=True, xid=_XID)
    await stage.measure(_two_phases(stage, peer, frames, decision), lambda: queue.message_count == 0)


def _two_phases(stage: Stage, peer: RawPeer, frames: bytes, decision: bytes) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await client(peer.socket.sendall, frames)
        await stage.found.until(lambda: bool(stage.broker.distributed.in_doubt))
        await client(peer.socket.sendall, decision)

    return work


@_scenario("0-10 dtx: accept all, roll back")
async def _dtx_roll_back(stage: Stage) -> None:
    queue, peer, frames = await _branch(stage)
    frames += peer.command_frames("message.stop", destination="d")
    frames += peer.command_frames("dtx.rollback", sync=True, xid=_XID)
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.available_count == stage.count)


@_scenario("0-10 dtx: accept all, prepare, roll back")
async def _dtx_prepare_roll_back(stage: Stage) -> None:
    queue, peer, frames = await _branch(stage)
    frames += peer.command_frames("message.stop", destination="d")
    frames += peer.command_frames("dtx.prepare", sync=True, xid=_XID)
    decision = peer.command_frames("dtx.rollback", sync=True, xid=_XID)
    await stage.measure(_two_phases(stage, peer, frames, decision), lambda: queue.available_count == stage.count)


async def _published_0_10(stage: Stage, *begin: tuple[str, dict[str, Any]]) -> tuple[Queue, RawPeer]:
    """A queue, and a client of 0-10 that publishes the messages for it in a transaction."""
    queue = await stage.queue("q")
    peer = await stage.peer()
    for name, values in begin:
        await client(peer.call, name, **values)
    stage.drain(peer.socket)
    await client(peer.socket.sendall, transfer_frames("q", b"x" * 16, durable=stage.durable) * stage.count)
    peer.sent += stage.count
    return queue, peer


@_scenario("0-10 tx: publish, commit")
async def _tx_transfer(stage: Stage) -> None:
    queue, peer = await _published_0_10(stage, ("tx.select", {}))
    await stage.found.until(lambda: any(len(each.messages) == stage.count for each in stage.broker.transactions))
    await stage.measure(stage.frames(peer, "tx.commit", sync=True), lambda: queue.available_count == stage.count)


async def _branch_published(stage: Stage) -> tuple[Queue, RawPeer, bytes]:
    queue, peer = await _published_0_10(stage, ("dtx.select", {}), ("dtx.start", {"xid": _XID}))
    branches = stage.broker.distributed.branches
    await stage.found.until(lambda: any(len(each.work.messages) == stage.count for each in branches.values()))
    frames = peer.command_frames("dtx.end", xid=_XID) + peer.command_frames("dtx.prepare", sync=True, xid=_XID)
    return queue, peer, frames


@_scenario("0-10 dtx: publish, prepare, commit")
async def _dtx_transfer(stage: Stage) -> None:
    queue, peer, frames = await _branch_published(stage)
    decision = peer.command_frames("dtx.commit", sync=True, xid=_XID)
    await stage.measure(_two_phases(stage, peer, frames, decision), lambda: queue.available_count == stage.count)


@_scenario("0-10 dtx: publish, prepare, roll back")
async def _dtx_transfer_roll_back(stage: Stage) -> None:
    queue, peer, frames = await _branch_published(stage)
    decision = peer.command_frames("dtx.rollback", sync=True, xid=_XID)
    await stage.measure(_two_phases(stage, peer, frames, decision), lambda: queue.message_count == 0)


# ---- whole queues ----


@_scenario("queue.purge")
async def _purge(stage: Stage) -> None:
    queue = await stage.filled()
    await stage.measure(_send(await stage.basic(), "queue.purge", queue="q"), lambda: queue.message_count == 0)


@_scenario("queue.purge of a priority queue")
async def _purge_priority(stage: Stage) -> None:
    queue = await stage.filled({"x-max-priority": 5})
    await stage.measure(_send(await stage.basic(), "queue.purge", queue="q"), lambda: queue.message_count == 0)


@_scenario("queue.purge of a paged queue")
async def _purge_paged(stage: Stage) -> None:
    queue = await stage.filled(size=200)
    if queue.residency is not None:
        queue.residency.relieve(1 << 40, is_urgent=True)
    await stage.measure(_send(await stage.basic(), "queue.purge", queue="q"), lambda: queue.message_count == 0)


@_scenario("queue.delete")
async def _delete(stage: Stage) -> None:
    await stage.filled()
    await stage.measure(_send(await stage.basic(), "queue.delete", queue="q"), lambda: "q" not in stage.host.queues)


@_scenario("queue.delete with an alternate exchange")
async def _delete_alternate(stage: Stage) -> None:
    await stage.host.topology.declare_exchange("alt", "fanout", durable=stage.durable)
    dead = await stage.queue("dead")
    await stage.host.topology.bind("dead", "alt", "")
    await stage.filled(alternate="alt")
    await stage.measure(
        _send(await stage.basic(), "queue.delete", queue="q"), lambda: dead.message_count == stage.count
    )


async def _console(stage: Stage) -> Console:
    class Found:
        broker = stage.broker
        topology = stage.host.topology

    console = Console(Found())
    await console.open()
    return console


@_scenario("QMF purge")
async def _qmf_purge(stage: Stage) -> None:
    queue = await stage.filled()
    console = await _console(stage)
    await stage.measure(lambda: console.do("purge", "queue:q", request=0, filter={}), lambda: queue.message_count == 0)


@_scenario("QMF queueMoveMessages")
async def _qmf_move(stage: Stage) -> None:
    await stage.queue("q")
    other = await stage.queue("other")
    await stage.fill("q")
    console = await _console(stage)
    arguments = {"srcQueue": "q", "destQueue": "other", "qty": 0, "filter": {}}
    await stage.measure(
        lambda: console.do("queueMoveMessages", **arguments), lambda: other.message_count == stage.count
    )


@_scenario("QMF reroute")
async def _qmf_reroute(stage: Stage) -> None:
    await stage.queue("q")
    other = await stage.queue("other")
    await stage.host.topology.bind("other", "amq.fanout", "")
    await stage.fill("q")
    console = await _console(stage)
    arguments = {"request": 0, "useAltExchange": False, "exchange": "amq.fanout", "filter": {}}
    await stage.measure(
        lambda: console.do("reroute", "queue:q", **arguments), lambda: other.message_count == stage.count
    )


@_scenario("QMF list of bindings")
async def _qmf_list(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.direct")
    console = await _console(stage)

    async def work() -> None:
        console.send("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "binding"}})
        await console.settle()

    await stage.measure(work, lambda: True)


# ---- time ----


@_scenario("expiry of all at the head")
async def _expire_head(stage: Stage) -> None:
    queue = await stage.filled(properties=Properties(delivery_mode=2 if stage.durable else 1, expiration="600000"))
    _all_expire(queue)
    await stage.measure(_nothing, lambda: queue.message_count == 0)


def _all_expire(queue: Queue) -> None:
    now = queue._clock()
    queue._clock = lambda: now + 3600.0
    queue.expire()


async def _nothing() -> None:
    """Wait only."""


@_scenario("expiry of all, with a consumer")
async def _expire_consumer(stage: Stage) -> None:
    queue = await stage.filled(properties=Properties(delivery_mode=2 if stage.durable else 1, expiration="600000"))
    now = queue._clock()
    queue._clock = lambda: now + 3600.0
    peer = await stage.basic()
    stage.drain(peer.socket)
    work = _send(peer, "basic.consume", queue="q", consumer_tag="c")
    await stage.measure(work, lambda: queue.message_count == 0)


@_scenario("expiry of all into a dead-letter exchange, with a consumer")
async def _expire_dead(stage: Stage) -> None:
    await _dead_letters(stage)
    queue = await stage.fill("q", properties=Properties(delivery_mode=2 if stage.durable else 1, expiration="600000"))
    now = queue._clock()
    queue._clock = lambda: now + 3600.0
    peer = await stage.basic()
    stage.drain(peer.socket)
    work = _send(peer, "basic.consume", queue="q", consumer_tag="c")
    await stage.measure(work, lambda: queue.message_count == 0)


@_scenario("the purge interval, priority queue")
async def _expire_interval(stage: Stage) -> None:
    queue = await stage.filled(
        {"x-max-priority": 5}, properties=Properties(delivery_mode=2 if stage.durable else 1, expiration="600000")
    )
    now = queue._clock()
    queue._clock = lambda: now + 3600.0

    stage.broker.clock = queue._clock

    async def work() -> None:
        stage.broker.expire()

    await stage.measure(work, lambda: queue.message_count == 0)


# ---- bindings ----


@_scenario("unbind one of many")
async def _unbind(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.direct")
    peer = await stage.basic()
    exchange = stage.host.exchanges["amq.direct"]
    queue = stage.host.queues["q0"]
    work = _send(peer, "queue.unbind", queue="q0", exchange="amq.direct", routing_key="key.5")
    await stage.measure(work, lambda: exchange.find_binding(queue, "key.5") is None)


@_scenario("deletion of an exchange with many bindings")
async def _delete_exchange(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.host.topology.declare_exchange("ex", "direct")
    await stage.bindings("ex")
    exchange = stage.host.exchanges["ex"]
    peer = await stage.basic()
    work = _send(peer, "exchange.delete", exchange="ex")
    await stage.measure(work, lambda: not exchange.has_bindings)


@_scenario("deletion of a queue with many bindings")
async def _delete_bound(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.direct")
    peer = await stage.basic()
    exchange = stage.host.exchanges["amq.direct"]
    work = _send(peer, "queue.delete", queue="q0")
    await stage.measure(work, lambda: not exchange.has_bindings)


async def _publish_one(stage: Stage, exchange: str, key: str) -> None:
    peer = await stage.basic()
    frames = peer.message(key, b"x", Properties(), exchange=exchange)
    router = stage.broker.router
    before = router.unroutable
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: router.unroutable > before)


@_scenario("publish to a topic exchange with many bindings")
async def _topic(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.topic")
    await _publish_one(stage, "amq.topic", "key.no")


@_scenario("publish to a headers exchange with many bindings")
async def _headers(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.match", make=lambda number: typed_map({"x-match": "all", "a": number}))
    await _publish_one(stage, "amq.match", "")


_READ_TOGETHER: Final = 200
"""Messages of a client that the broker reads in one go."""


async def _publish_keys(stage: Stage, exchange: str, make: Callable[[int], str]) -> None:
    """Publish messages with ever new routing keys, in mode of confirms: none of them closes the channel."""
    peer = await stage.basic()
    await client(peer.call, "confirm.select")
    frames = [peer.message(make(number), b"x", Properties(), exchange=exchange) for number in range(_READ_TOGETHER)]
    machine: Any = next(each for each in stage.found.server.clients.machines() if each.channels)
    stage.drain(peer.socket)
    await stage.measure(
        lambda: client(peer.socket.sendall, b"".join(frames)),
        lambda: machine.channels[1].confirms.published == _READ_TOGETHER,
    )


@_scenario("new routing keys through a chain of 1,000 exchanges")
async def _chain(stage: Stage) -> None:
    names = [f"x{number}" for number in range(1_000)]
    for name in names:
        await stage.host.topology.declare_exchange(name, "fanout")
    chain = [stage.host.exchanges[name] for name in names]
    for source, destination in pairwise(chain):
        source.bind_exchange(ExchangeBinding(source, destination, ""))
    refresh(chain)
    await stage.queue("q0")
    await stage.host.topology.bind("q0", names[-1], "")
    await _publish_keys(stage, names[0], lambda number: f"key.{number}")


@_scenario("new routing keys against hostile patterns")
async def _hostile(stage: Stage) -> None:
    queue, exchange, chance = (
        await stage.queue("q0"),
        stage.host.exchanges["amq.topic"],
        random.Random(1),
    )
    for number in range(min(stage.count, 20_000)):
        exchange.bind(queue, ".".join(chance.choice("#*a") for _ in range(40)))
        if not number % _AT_ONCE:
            await asyncio.sleep(0)
    await _publish_keys(stage, "amq.topic", lambda number: ".".join(["a"] * 120 + [str(number)]))


# ---- the order ----


@_scenario("selector over a long queue")
async def _selector(stage: Stage) -> None:
    await stage.filled(basic=False)
    compile_selector("color = 'red'")  # the grammar is loaded for the first one: another scenario
    peer = await stage.peer()
    stage.drain(peer.socket)
    await stage.measure(
        lambda: client(peer.subscribe, "q", arguments=typed_map({"x-apache-selector": "color = 'red'"})),
        lambda: True,
    )


@_scenario("ring of all, displaced by larger messages")
async def _ring(stage: Stage) -> None:
    queue = await stage.filled(
        {"qpid.policy_type": "ring", "qpid.max_size": stage.count * 80, "qpid.max_count": 0}, size=16
    )
    size = stage.count * 70
    peer = await stage.basic()
    frames = peer.message("q", b"x" * size, Properties())
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count <= stage.count // 2)


# ---- many queues ----


_MANY: Final = 10_000
"""Queues, or consumers: a tenth of the messages that other scenarios have."""
_MANY_DURABLE: Final = 1_000
"""Likewise, durable ones: to create them takes some 20 ms each."""


async def _queues(stage: Stage, exchange: str = "amq.fanout", **more: Any) -> list[Queue]:
    """Many queues, bound to an exchange."""
    count = stage.count = min(stage.count, _MANY_DURABLE if stage.durable else _MANY)
    made: list[Queue] = []
    for first in range(0, count, _AT_ONCE):
        names = [f"q{number}" for number in range(first, min(first + _AT_ONCE, count))]
        made += await asyncio.gather(*(stage.queue(name, **more) for name in names))
        if exchange:
            await asyncio.gather(*(stage.host.topology.bind(name, exchange, "k") for name in names))
    return made


def _all_have(queues: list[Queue], count: int = 1) -> Callable[[], bool]:
    return lambda: all(queue.message_count >= count for queue in queues)


@_scenario("0-9-1 publish to many queues")
async def _fanout(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.basic()
    await client(peer.call, "confirm.select")
    frames = peer.message("k", b"x", Properties(delivery_mode=2), exchange="amq.fanout")

    def work() -> None:
        peer.socket.sendall(frames)
        peer.expect("basic.ack")

    await stage.measure(lambda: client(work), _all_have(queues))


@_scenario("0-10 publish to many queues")
async def _fanout_0_10(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.peer()
    frames = transfer_frames("k", b"x", exchange="amq.fanout")
    await stage.measure(lambda: client(peer.socket.sendall, frames), _all_have(queues))


@_scenario("publish to many queues with a TTL")
async def _fanout_ttl(stage: Stage) -> None:
    queues = await _queues(stage, arguments={"x-message-ttl": 600_000})
    peer = await stage.basic()
    frames = peer.message("k", b"x", Properties(delivery_mode=2), exchange="amq.fanout")
    await stage.measure(lambda: client(peer.socket.sendall, frames), _all_have(queues))


@_scenario("several messages to many queues")
async def _fanout_several(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.basic()
    frames = peer.message("k", b"x", Properties(delivery_mode=2), exchange="amq.fanout")
    await stage.measure(lambda: client(peer.socket.sendall, frames * 5), _all_have(queues, 5))


@_scenario("publish to many queues with consumers")
async def _fanout_consumers(stage: Stage) -> None:
    queues = await _queues(stage)
    consumer = await stage.basic()
    stage.drain(consumer.socket)
    frames = b"".join(
        consumer.encode("basic.consume", queue=queue.name, consumer_tag=queue.name, nowait=True) for queue in queues
    )
    await client(consumer.socket.sendall, frames)
    await stage.found.until(lambda: all(queue.consumer_count for queue in queues))
    peer = await stage.basic()
    publish = peer.message("k", b"x", Properties(delivery_mode=2), exchange="amq.fanout")
    await stage.measure(
        lambda: client(peer.socket.sendall, publish), lambda: all(queue.acquired_count == 1 for queue in queues)
    )


@_scenario("0-9-1 reject into an exchange with many queues")
async def _reject_fanout(stage: Stage) -> None:
    queues = await _queues(stage)
    await stage.queue("q", {"x-dead-letter-exchange": "amq.fanout"})
    peer = await stage.basic()
    await client(peer.socket.sendall, peer.message("q", b"x"))
    await client(peer.send, "basic.consume", 1, queue="q", consumer_tag="c")
    await client(peer.expect, "basic.consume-ok")
    await client(peer.expect, "basic.deliver")
    work = _send(peer, "basic.nack", delivery_tag=1, multiple=False, requeue=False)
    await stage.measure(work, _all_have(queues))


@_scenario("0-10 reject to an alternate exchange with many queues")
async def _reject_fanout_0_10(stage: Stage) -> None:
    queues = await _queues(stage)
    queue = await stage.queue("q", alternate="amq.fanout")
    peer = await stage.peer()
    await client(peer.socket.sendall, transfer_frames("q", b"x", durable=True))
    peer.sent += 1
    await stage.found.until(lambda: queue.message_count == 1)
    await client(peer.subscribe, "q")
    await stage.found.until(lambda: queue.available_count == 0)
    work = stage.frames(peer, "message.reject", transfers=((0, 100),))
    await stage.measure(work, _all_have(queues))


@_scenario("expiry into an exchange with many queues")
async def _expire_fanout(stage: Stage) -> None:
    queues = await _queues(stage)
    queue = await stage.queue("q", {"x-dead-letter-exchange": "amq.fanout"})
    peer = await stage.basic()
    message = peer.message("q", b"x", Properties(delivery_mode=2, expiration="600000"))
    await client(peer.socket.sendall, message)
    await stage.found.until(lambda: queue.message_count == 1)
    stage.broker.tick.schedule()
    now = queue._clock()
    queue._clock = stage.broker.clock = lambda: now + 3600.0

    async def work() -> None:
        stage.broker.expire()

    await stage.measure(work, _all_have(queues))


@_scenario("deletion of a queue with an alternate exchange with many queues")
async def _delete_fanout(stage: Stage) -> None:
    queues = await _queues(stage)
    queue = await stage.queue("q", alternate="amq.fanout")
    peer = await stage.basic()
    await client(peer.socket.sendall, peer.message("q", b"x"))
    await stage.found.until(lambda: queue.message_count == 1)
    await stage.measure(_send(peer, "queue.delete", queue="q"), _all_have(queues))


@_scenario("0-9-1 tx: publish to many queues, commit")
async def _tx_fanout(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.basic()
    await client(peer.call, "tx.select")
    await client(peer.socket.sendall, peer.message("k", b"x", Properties(delivery_mode=2), exchange="amq.fanout"))
    await asyncio.sleep(0.2)
    await stage.measure(_send(peer, "tx.commit"), lambda: all(queue.available_count == 1 for queue in queues))


@_scenario("0-10 tx: publish to many queues, commit")
async def _tx_fanout_0_10(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.peer()
    await client(peer.call, "tx.select")
    await client(peer.socket.sendall, transfer_frames("k", b"x", exchange="amq.fanout"))
    peer.sent += 1
    await asyncio.sleep(0.2)
    work = stage.frames(peer, "tx.commit", sync=True)
    await stage.measure(work, lambda: all(queue.available_count == 1 for queue in queues))


@_scenario("0-10 message.flow of many subscriptions")
async def _flow(stage: Stage) -> None:
    queues = await _queues(stage)
    peer = await stage.peer()
    publish = transfer_frames("k", b"x", exchange="amq.fanout")
    await client(peer.socket.sendall, publish)
    peer.sent += 1
    await stage.found.until(_all_have(queues))
    stage.drain(peer.socket)
    frames = b"".join(
        peer.command_frames(
            "message.subscribe", queue=queue.name, destination=queue.name, accept_mode=0, acquire_mode=0
        )
        for queue in queues
    )
    await client(peer.socket.sendall, frames)
    await stage.found.until(lambda: all(queue.consumer_count for queue in queues))
    flow = b"".join(
        peer.command_frames("message.flow", destination=queue.name, unit=unit, value=100_000)
        for queue in queues
        for unit in (0, 1)
    )
    await stage.measure(
        lambda: client(peer.socket.sendall, flow), lambda: all(queue.acquired_count == 1 for queue in queues)
    )


@_scenario("declarations of many queues")
async def _declare(stage: Stage) -> None:
    stage.count = min(stage.count, 1_000 if stage.durable else _MANY)
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("queue.declare", queue=f"q{number}", durable=stage.durable) for number in range(stage.count)
    )
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: f"q{stage.count - 1}" in stage.host.queues)


@_scenario("bindings of many queues, one after the other")
async def _bind(stage: Stage) -> None:
    await _queues(stage, "")
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("queue.bind", queue=f"q{number}", exchange="amq.topic", routing_key="a.#")
        for number in range(stage.count)
    )
    last = stage.host.queues[f"q{stage.count - 1}"]
    exchange = stage.host.exchanges["amq.topic"]
    await stage.measure(
        lambda: client(peer.socket.sendall, frames), lambda: exchange.find_binding(last, "a.#") is not None
    )


@_scenario("bind to an exchange with many bindings")
async def _bind_one(stage: Stage) -> None:
    queues = await _queues(stage, "amq.topic")
    exchange = stage.host.exchanges["amq.topic"]
    exchange.find("k")
    peer = await stage.basic()
    work = _send(peer, "queue.bind", queue="q0", exchange="amq.topic", routing_key="#")
    await stage.measure(work, lambda: exchange.find_binding(queues[0], "#") is not None)


@_scenario("first message to an exchange with many queues, after a bind")
async def _first_route(stage: Stage) -> None:
    queues = await _queues(stage, "amq.topic")
    peer = await stage.basic()
    exchange = stage.host.exchanges["amq.topic"]

    async def work() -> None:
        exchange.find("k")

    await stage.measure(work, lambda: bool(queues and peer))


@_scenario("deletion of many queues, one after the other")
async def _delete_many(stage: Stage) -> None:
    await _queues(stage)
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(peer.encode("queue.delete", queue=f"q{number}") for number in range(stage.count))
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: not stage.host.queues)


@_scenario("loss of a connection with many exclusive queues")
async def _exclusive(stage: Stage) -> None:
    stage.count = min(stage.count, _MANY)
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("queue.declare", queue=f"q{number}", exclusive=True)
        + peer.encode("queue.bind", queue=f"q{number}", exchange="amq.fanout")
        for number in range(stage.count)
    )
    await client(peer.socket.sendall, frames)
    await stage.found.until(lambda: len(stage.host.queues) == stage.count)
    await asyncio.sleep(0.1)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not stage.host.queues)


@_scenario("0-10 end of a session with many exclusive queues")
async def _exclusive_0_10(stage: Stage) -> None:
    stage.count = min(stage.count, _MANY)
    peer = await stage.peer()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.command_frames("queue.declare", queue=f"q{number}", exclusive=True, auto_delete=True)
        for number in range(stage.count)
    )
    await client(peer.socket.sendall, frames)
    await stage.found.until(lambda: len(stage.host.queues) == stage.count)
    await asyncio.sleep(0.1)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not stage.host.queues)


async def _consumed(stage: Stage, *, same: bool) -> BasicPeer:
    """A client with many consumers, of one queue or of as many."""
    if same:
        stage.count = min(stage.count, _MANY)
        await stage.queue("q0")
    else:
        await _queues(stage)
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("basic.consume", queue="q0" if same else f"q{number}", consumer_tag=f"c{number}", nowait=True)
        for number in range(stage.count)
    )
    await client(peer.socket.sendall, frames)
    queues = list(stage.host.queues.values())
    await stage.found.until(lambda: sum(queue.consumer_count for queue in queues) == stage.count)
    await asyncio.sleep(0.1)
    return peer


@_scenario("many consumers of one queue")
async def _consume(stage: Stage) -> None:
    stage.count = min(stage.count, _MANY)
    queue = await stage.queue("q0")
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("basic.consume", queue="q0", consumer_tag=f"c{number}", nowait=True)
        for number in range(stage.count)
    )
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.consumer_count == stage.count)


@_scenario("loss of a connection with many consumers of one queue")
async def _lose_consumers(stage: Stage) -> None:
    peer = await _consumed(stage, same=True)
    queue = stage.host.queues["q0"]
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not queue.consumer_count)


@_scenario("loss of a connection with many consumers of many queues")
async def _lose_consumers_of_many(stage: Stage) -> None:
    peer = await _consumed(stage, same=False)
    queues = list(stage.host.queues.values())
    work = lambda: client(peer.socket.shutdown, 2)  # noqa: E731
    await stage.measure(work, lambda: not any(queue.consumer_count for queue in queues))


@_scenario("deletion of a queue with many consumers")
async def _delete_consumed(stage: Stage) -> None:
    await _consumed(stage, same=True)
    other = await stage.basic()
    await stage.measure(_send(other, "queue.delete", queue="q0"), lambda: not stage.host.queues)


@_scenario("deletion of an exchange bound to many queues")
async def _delete_fanout_exchange(stage: Stage) -> None:
    await stage.host.topology.declare_exchange("ex", "fanout")
    await _queues(stage, "ex")
    exchange = stage.host.exchanges["ex"]
    await stage.measure(_send(await stage.basic(), "exchange.delete", exchange="ex"), lambda: not exchange.has_bindings)


@_scenario("deletion of an exchange in the middle of a graph")
async def _delete_in_graph(stage: Stage) -> None:
    names = await _exchange_chain(stage, 1_000)
    peer = await stage.basic()
    work = _send(peer, "exchange.delete", exchange=names[500])
    await stage.measure(work, lambda: names[500] not in stage.host.exchanges)


@_scenario("a binding in a graph of 1,000 exchanges")
async def _bind_in_graph(stage: Stage) -> None:
    names = await _exchange_chain(stage, 1_000)
    source = stage.host.exchanges[names[-1]]
    peer = await stage.basic()
    await client(peer.call, "exchange.declare", exchange="last", type="fanout")
    work = _send(peer, "exchange.bind", source=names[-1], destination="last")
    await stage.measure(work, lambda: source.onward is not None)


@_scenario("deletion of an exchange bound to 10,000 exchanges")
async def _delete_star(stage: Stage) -> None:
    stage.count = min(stage.count, _MANY)
    await stage.host.topology.declare_exchange("centre", "fanout")
    centre = stage.host.exchanges["centre"]
    for number in range(stage.count):
        await stage.host.topology.declare_exchange(f"x{number}", "fanout")
        centre.bind_exchange(ExchangeBinding(centre, stage.host.exchanges[f"x{number}"], ""))
    refresh(stage.host.exchanges.values())
    peer = await stage.basic()
    work = _send(peer, "exchange.delete", exchange="centre")
    await stage.measure(work, lambda: "centre" not in stage.host.exchanges)


async def _exchange_chain(stage: Stage, length: int) -> list[str]:
    """Fanout exchanges, each bound to the next; a queue is bound to the last."""
    names = [f"x{number}" for number in range(length)]
    for name in names:
        await stage.host.topology.declare_exchange(name, "fanout")
    chain = [stage.host.exchanges[name] for name in names]
    for source, destination in pairwise(chain):
        source.bind_exchange(ExchangeBinding(source, destination, ""))
    refresh(chain)
    await stage.queue("q0")
    await stage.host.topology.bind("q0", names[-1], "")
    return names


@_scenario("CC keys")
async def _keys(stage: Stage) -> None:
    stage.count = MAX_KEYS
    await stage.queue("q0")
    await stage.host.topology.bind("q0", "amq.direct", "k")
    peer = await stage.basic()
    queue = stage.host.queues["q0"]
    keys = [f"key.{number}" for number in range(stage.count)]
    frames = peer.message("k", b"x", Properties(headers=typed_map({"CC": keys})), exchange="amq.direct")
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count == 1)


@_scenario("CC keys through a chain of exchanges")
async def _copies(stage: Stage) -> None:
    stage.count = 560
    names = await _exchange_chain(stage, 3)
    peer = await stage.basic()
    queue = stage.host.queues["q0"]
    keys = [f"key.{number}" for number in range(stage.count)]
    frames = peer.message("k", b"x", Properties(headers=typed_map({"CC": keys})), exchange=names[0])
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count == 1)


@_scenario("a message through a chain of 5,000 exchanges")
async def _long_chain(stage: Stage) -> None:
    stage.count = 5_000
    names = await _exchange_chain(stage, stage.count)
    peer = await stage.basic()
    queue = stage.host.queues["q0"]
    frames = peer.message("k", b"x", Properties(), exchange=names[0])
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count == 1)


@_scenario("ever new routing keys")
async def _new_keys(stage: Stage) -> None:
    stage.count = 40_000
    await stage.host.topology.declare_exchange("ex", "topic")
    for number in range(4):
        await stage.queue(f"q{number}", {"qpid.policy_type": "ring", "qpid.max_count": 1})
        await stage.host.topology.bind(f"q{number}", "ex", "#")
    peer = await stage.basic()
    frames = [peer.message(f"key.{number}", b"", Properties(), exchange="ex") for number in range(stage.count)]
    queue = stage.host.queues["q0"]
    await stage.measure(
        lambda: client(peer.socket.sendall, b"".join(frames)), lambda: queue.messages_enqueued == stage.count
    )


@_scenario("ever new routing keys through a chain of 1,000 exchanges")
async def _new_keys_in_chain(stage: Stage) -> None:
    stage.count = 500
    names = await _exchange_chain(stage, 1_000)
    peer = await stage.basic()
    frames = [peer.message(f"key.{number}", b"", Properties(), exchange=names[0]) for number in range(stage.count)]
    queue = stage.host.queues["q0"]
    await stage.measure(
        lambda: client(peer.socket.sendall, b"".join(frames)), lambda: queue.messages_enqueued == stage.count
    )


@_scenario("0-9-1 a message with many values in its headers")
async def _many_headers(stage: Stage) -> None:
    stage.count = MAX_VALUES - 1
    await stage.queue("q")
    await stage.host.topology.bind("q", "amq.match", "", typed_map({"x-match": "all", "a": 1}))
    peer = await stage.basic()
    headers = typed_map({f"{number:x}": number for number in range(stage.count)})
    frames = peer.message("k", b"x", Properties(headers=headers), exchange="amq.match")
    router = stage.broker.router
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: router.unroutable > 0)


@_scenario("0-9-1 a message with too many values in its headers")
async def _too_many_headers(stage: Stage) -> None:
    stage.count = 130_000
    peer = await stage.basic()
    headers = typed_map({"list": [None] * stage.count})
    frames = peer.message("k", b"x", Properties(headers=headers), exchange="amq.match")

    def work() -> None:
        peer.socket.sendall(frames)
        peer.expect("channel.close")

    await stage.measure(lambda: client(work), lambda: True)


@_scenario("QMF request with too many values")
async def _too_many_asked(stage: Stage) -> None:
    stage.count = 500_000
    peer = await stage.peer()
    stage.drain(peer.socket)
    body = encode_map(typed_map({"_what": "OBJECT", "_where": [True] * stage.count}))
    delivery = encode_struct(DELIVERY_PROPERTIES, {"routing_key": "broker"})
    asked = {"content_type": "amqp/map", "application_headers": typed_map({"qmf.opcode": "_query_request"})}
    header = delivery + encode_struct(MESSAGE_PROPERTIES, asked)
    frames = peer.command_frames(
        "message.transfer", header=header, body=body, destination="qmf.default.direct", accept_mode=1, acquire_mode=0
    )
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: True)


@_scenario("a selector of the greatest length")
async def _longest_selector(stage: Stage) -> None:
    stage.count = MAX_TOKENS
    await stage.queue("q")
    peer = await stage.peer()
    stage.drain(peer.socket)
    text = "=".join(["a"] * 2) + " and a=a" * ((stage.count - 3) // 4)
    await stage.measure(
        lambda: client(peer.subscribe, "q", arguments=typed_map({"x-apache-selector": text})),
        lambda: stage.host.queues["q"].consumer_count == 1,
    )


@_scenario("loss of a connection with consumers of many auto-delete queues")
async def _auto_delete(stage: Stage) -> None:
    queues = await _queues(stage, auto_delete=True)
    peer = await stage.basic()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("basic.consume", queue=queue.name, consumer_tag=queue.name, nowait=True) for queue in queues
    )
    await client(peer.socket.sendall, frames)
    await stage.found.until(lambda: all(queue.consumer_count for queue in queues))
    await asyncio.sleep(0.1)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not stage.host.queues)


@_scenario("0-10 end of a session with subscriptions to many auto-delete queues")
async def _auto_delete_0_10(stage: Stage) -> None:
    queues = await _queues(stage, auto_delete=True)
    peer = await stage.peer()
    stage.drain(peer.socket)
    frames = b"".join(
        peer.command_frames(
            "message.subscribe", queue=queue.name, destination=queue.name, accept_mode=0, acquire_mode=0
        )
        for queue in queues
    )
    await client(peer.socket.sendall, frames)
    await stage.found.until(lambda: all(queue.consumer_count for queue in queues))
    await asyncio.sleep(0.1)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not stage.host.queues)


@_scenario("x-expires of many queues at once")
async def _expire_queues(stage: Stage) -> None:
    queues = await _queues(stage, arguments={"x-expires": 3_600_000})
    await asyncio.sleep(0.1)
    now = stage.broker.monotonic()

    async def work() -> None:
        stage.host.idle_queues._monotonic = lambda: now + 7_200.0

    await stage.measure(work, lambda: not any(queue.name in stage.host.queues for queue in queues))


@_scenario("loss of a connection with many channels")
async def _channels(stage: Stage) -> None:
    stage.count = 2_000
    await stage.queue("q")
    peer = await client(BasicPeer, stage.found.port, channel_max=stage.count)
    stage.drain(peer.socket)
    frames = b"".join(
        peer.encode("channel.open", number) + peer.encode("basic.consume", number, queue="q", nowait=True)
        for number in range(2, stage.count)
    )
    await client(peer.socket.sendall, frames)
    queue = stage.host.queues["q"]
    await stage.found.until(lambda: queue.consumer_count == stage.count - 2)
    await asyncio.sleep(0.1)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not queue.consumer_count)


@_scenario("the first selector of a process")
async def _first_selector(stage: Stage) -> None:
    await stage.queue("q")
    peer = await stage.peer()
    stage.drain(peer.socket)
    await stage.measure(
        lambda: client(peer.subscribe, "q", arguments=typed_map({"x-apache-selector": "color = 'red'"})),
        lambda: stage.host.queues["q"].consumer_count == 1,
    )


# ---- AMQP 1.0 ----

_LINKS: Final = 5_000


async def _links_peer(stage: Stage) -> tuple[LinksPeer, Any]:
    """A client of AMQP 1.0, and its session in the broker."""
    peer = await client(LinksPeer, stage.found.port)
    stage._clients.append(peer.socket)
    stage.drain(peer.socket)
    machine: Any = next(each for each in stage.found.server.clients.machines() if each.protocol == "AMQP 1.0")
    return peer, machine.all_sessions[0]


async def _holding_links(stage: Stage, links: int = 1) -> tuple[LinksPeer, Any]:
    """A client of AMQP 1.0 with links from the queue `q`, of which the first holds all messages; and its session."""
    await stage.filled()
    peer, session = await _links_peer(stage)
    frames = [peer.attachment("q", number, receives=True) for number in range(links)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == links)
    await client(peer.socket.sendall, peer.flow(0, stage.count))
    await stage.found.until(lambda: len(session.unsettled) == stage.count)
    return peer, session


def _sends(peer: LinksPeer, *frames: bytes) -> Callable[[], Awaitable[None]]:
    return lambda: client(peer.socket.sendall, b"".join(frames))


def _outcome(state: Composite, first: int, last: int, *, settled: bool = False) -> bytes:
    return LinksPeer.encode("disposition", role=RECEIVER, first=first, last=last, settled=settled, state=state)


_MODIFIED: Final = Composite("modified", {"delivery_failed": True})

for _state in (ACCEPTED, REJECTED, RELEASED, _MODIFIED):

    @_scenario(f"1.0 {_state.name}: all in one disposition")
    async def _settle_all(stage: Stage, state: Composite = _state) -> None:
        peer, session = await _holding_links(stage)
        await stage.measure(_sends(peer, _outcome(state, 0, 0xFFFFFFFF >> 1)), lambda: not session.unsettled)

    @_scenario(f"1.0 {_state.name}: what is left of all, every second one, in one disposition")
    async def _settle_gaps(stage: Stage, state: Composite = _state) -> None:
        peer, session = await _holding_links(stage)
        singly = [_outcome(ACCEPTED, number, number, settled=True) for number in range(0, stage.count, 2)]
        await client(peer.socket.sendall, b"".join(singly))
        await stage.found.until(lambda: len(session.unsettled) == stage.count // 2)
        await stage.measure(_sends(peer, _outcome(state, 0, stage.count)), lambda: not session.unsettled)


@_scenario("1.0 rejected into a dead-letter exchange: all in one disposition")
async def _reject_links(stage: Stage) -> None:
    await _dead_letters(stage)
    await stage.fill("q")
    peer, session = await _links_peer(stage)
    await client(peer.socket.sendall, peer.attachment("q", receives=True) + peer.flow(0, stage.count))
    await stage.found.until(lambda: len(session.unsettled) == stage.count)
    dead = stage.host.queues["dead"]
    await stage.measure(_sends(peer, _outcome(REJECTED, 0, stage.count)), lambda: dead.message_count == stage.count)


@_scenario("1.0 dispositions of every second message, of all")
async def _dispositions(stage: Stage) -> None:
    peer, session = await _holding_links(stage)
    frames = [_outcome(RELEASED, number, stage.count) for number in range(0, stage.count, 50)]
    await stage.measure(_sends(peer, *frames), lambda: not session.unsettled)


@_scenario("1.0 detach with all messages unsettled")
async def _detach_all(stage: Stage) -> None:
    peer, session = await _holding_links(stage)
    await stage.measure(_sends(peer, peer.encode("detach", handle=0, closed=True)), lambda: not session.unsettled)


@_scenario("1.0 end of a session with all messages unsettled")
async def _end_all(stage: Stage) -> None:
    peer, _ = await _holding_links(stage)
    queue = stage.host.queues["q"]
    await stage.measure(_sends(peer, peer.encode("end")), lambda: queue.available_count == stage.count)


@_scenario("1.0 end of a session with many links")
async def _end_links(stage: Stage) -> None:
    peer, _ = await _holding_links(stage, _LINKS)
    queue = stage.host.queues["q"]
    await stage.measure(_sends(peer, peer.encode("end")), lambda: queue.available_count == stage.count)


@_scenario("1.0 detach of many links beside unsettled messages")
async def _detach_many(stage: Stage) -> None:
    peer, session = await _holding_links(stage, _LINKS)
    frames = [peer.encode("detach", handle=number, closed=True) for number in range(1, _LINKS)]
    await stage.measure(_sends(peer, *frames), lambda: len(session.links) == 1)


@_scenario("1.0 deletion of a queue with many links")
async def _delete_under_links(stage: Stage) -> None:
    _, session = await _holding_links(stage, _LINKS)
    await stage.measure(lambda: stage.host.topology.delete_queue("q"), lambda: not session.links)


@_scenario("1.0 a window that opens and closes, with many links")
async def _windows(stage: Stage) -> None:
    peer, session = await _links_peer(stage)
    await stage.queue("q")
    frames = [peer.attachment("q", number, receives=True) + peer.flow(number, 100) for number in range(_LINKS)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == _LINKS)
    frames = [peer.flow(incoming_window=0), peer.flow()] * 1_000
    await stage.measure(_sends(peer, *frames, peer.flow(0, 77)), lambda: session.links[0].credit == 77)


@_scenario("1.0 drain of many links, with a closed window")
async def _drains(stage: Stage) -> None:
    await stage.filled()
    peer, session = await _links_peer(stage)
    frames = [peer.attachment("q", number, receives=True) for number in range(_LINKS)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == _LINKS)
    frames = [peer.flow(number, 10, drain=True, incoming_window=0) for number in range(_LINKS)]
    await stage.measure(_sends(peer, *frames), lambda: len(session._drains) == _LINKS)


@_scenario("1.0 drain of many links from a long queue")
async def _drains_open(stage: Stage) -> None:
    await stage.filled()
    peer, session = await _links_peer(stage)
    frames = [peer.attachment("q", number, receives=True) for number in range(100)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == 100)
    frames = [peer.flow(number, stage.count // 100, drain=True) for number in range(100)]
    await stage.measure(_sends(peer, *frames), lambda: len(session.unsettled) == stage.count)


@_scenario("1.0 browse of all messages of 0-9-1")
async def _browse_links(stage: Stage) -> None:
    await stage.filled()
    peer, session = await _links_peer(stage)
    attach = peer.attachment("q", receives=True, terminus={"distribution_mode": "copy"}, snd_settle_mode=1)
    await stage.measure(
        _sends(peer, attach, peer.flow(0, stage.count)), lambda: session.next_delivery == stage.count
    )  # fmt: skip


@_scenario("1.0 loss of a connection with many dynamic nodes")
async def _dynamic_nodes(stage: Stage) -> None:
    peer, session = await _links_peer(stage)
    frames = [peer.attachment(None, number, terminus={"dynamic": True}) for number in range(_LINKS)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == _LINKS)
    await stage.measure(lambda: client(peer.socket.shutdown, 2), lambda: not stage.host.queues)


@_scenario("1.0 end of a session with many dynamic nodes that it receives from")
async def _dynamic_sources(stage: Stage) -> None:
    peer, session = await _links_peer(stage)
    frames = [peer.attachment(None, number, receives=True, terminus={"dynamic": True}) for number in range(_LINKS)]
    await client(peer.socket.sendall, b"".join(frames))
    await stage.found.until(lambda: len(session.links) == _LINKS)
    await stage.measure(_sends(peer, peer.encode("end")), lambda: not stage.host.queues)


@_scenario("1.0 a message of 100,000 transfers")
async def _transfers(stage: Stage) -> None:
    queue = await stage.queue("q")
    peer, session = await _links_peer(stage)
    await client(peer.socket.sendall, peer.attachment("q"))
    await stage.found.until(lambda: bool(session.links))
    parts = [content(b""), *[b""] * (stage.count - 1)]
    first = peer.encode("transfer", 0, content(b""), handle=0, delivery_id=0, delivery_tag=b"0", more=True)
    more = peer.encode("transfer", 0, b"", handle=0, more=True)

    async def work() -> None:
        left = len(parts)
        await client(peer.socket.sendall, first)
        while left > 0:
            await stage.found.until(lambda: session._incoming_window > 2_000)
            await client(peer.socket.sendall, more * min(left, 2_000))
            left -= 2_000
        await client(peer.socket.sendall, peer.encode("transfer", 0, b"", handle=0))

    await stage.measure(work, lambda: queue.message_count == 1)


@_scenario("1.0 refused messages that are complete in another order")
async def _interleaved(stage: Stage) -> None:
    await stage.queue("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    publisher = await stage.basic()
    await client(publisher.socket.sendall, publisher.message("q", b"x"))
    peer, session = await _links_peer(stage)
    stage.count = 1_900
    links = [peer.attachment("q", number) for number in range(stage.count)]
    await client(peer.socket.sendall, b"".join(links))
    await stage.found.until(lambda: len(session.links) == stage.count)
    first = [
        peer.encode("transfer", 0, content(b"a"), handle=n, delivery_id=n, delivery_tag=b"0", more=True)
        for n in range(stage.count)
    ]
    await client(peer.socket.sendall, b"".join(first))
    await asyncio.sleep(0.5)
    last = [peer.encode("transfer", 0, b"b", handle=n) for n in reversed(range(stage.count))]
    await stage.measure(_sends(peer, *last), lambda: session.received == stage.count)


@_scenario("1.0 attach with an unsettled map of the largest frame")
async def _unsettled_map(stage: Stage) -> None:
    await stage.queue("q")
    peer, session = await _links_peer(stage)
    entries = tuple((Value("binary", b"%d" % n), Value("null", None)) for n in range(2_000))
    frames = [peer.attachment("q", number, unsettled=entries) for number in range(20)]
    await stage.measure(_sends(peer, *frames), lambda: len(session.links) == 20)


@_scenario("1.0 attach of many links, one after the other")
async def _attach_many(stage: Stage) -> None:
    await stage.queue("q")
    peer, session = await _links_peer(stage)
    frames = [peer.attachment("q", number, receives=True) + peer.flow(number, 10) for number in range(_LINKS)]
    await stage.measure(_sends(peer, *frames), lambda: len(session.links) == _LINKS)


# ---- deliveries ----


@_scenario("0-10 browse of all messages of 0-9-1")
async def _browse(stage: Stage) -> None:
    await stage.queue("q")
    await stage.fill("q")
    peer = await stage.peer()
    stage.drain(peer.socket)
    machine: Any = next(each for each in stage.found.server.clients.machines() if each.protocol == "AMQP 0-10")
    work = lambda: client(peer.subscribe, "q", acquire_mode=1, accept_mode=1)  # noqa: E731
    await stage.measure(work, lambda: machine.counts.messages_sent == stage.count)


@_scenario("50 browsers in 50 connections")
async def _browsers(stage: Stage) -> None:
    stage.count = min(stage.count, 20_000)
    await stage.queue("q")
    await stage.fill("q", basic=False)
    peers = [await stage.peer() for _ in range(50)]
    for peer in peers:
        stage.drain(peer.socket)

    async def work() -> None:
        for peer in peers:
            await client(peer.subscribe, "q", acquire_mode=1, accept_mode=1)

    def is_done() -> bool:
        return sum(each.counts.messages_sent == stage.count for each in stage.found.server.clients.machines()) == 50

    await stage.measure(work, is_done)


@_scenario("0-9-1 messages with 4,000 headers each, for a headers exchange")
async def _long_headers(stage: Stage) -> None:
    stage.count = 200
    queue = await stage.queue("q")
    await stage.broker.default_host.topology.bind("q", "amq.match", "", typed_map({"x-match": "any", "1": 1}))
    peer = await stage.basic()
    headers = typed_map({f"{number:x}": number for number in range(4_000)})
    frames = peer.message("k", b"x", Properties(headers=headers), exchange="amq.match") * stage.count
    await stage.measure(lambda: client(peer.socket.sendall, frames), lambda: queue.message_count == stage.count)


# ---- configuration ----


@_scenario("a policy beside 10,000 others")
async def _policy(stage: Stage) -> None:
    stage.count = 10_000
    records = stage.broker.configuration._records
    for number in range(stage.count):
        values: dict[str, str | int] = {
            "pattern": f"^a{number}$",
            "apply-to": "queues",
            "priority": 0,
            "=max-length": 3,
        }
        records[Record(POLICY, ("/", f"p{number}"))] = values
    stage.broker.policies.recover()
    policy = Policy("/", "p", "^q", "queues", 0, {"max-length": 5})
    await stage.measure(lambda: stage.broker.policies.set(policy), lambda: True)


@_scenario("a permission beside 10,000 others")
async def _permission(stage: Stage) -> None:
    stage.count = 10_000
    for number in range(stage.count):
        values: dict[str, str | int] = dict.fromkeys(("configure", "write", "read"), f"^u{number}\\.")
        stage.broker.configuration._records[Record(PERMISSION, (f"u{number}", "/"))] = values
    permissions = Permissions(stage.broker.configuration, lambda _user: ())
    given = dict.fromkeys(("configure", "write", "read"), ".*")
    await stage.measure(lambda: permissions.set("new", "/", given), lambda: True)


@_scenario("deletion of a virtual host with 10,000 exchanges")
async def _delete_host(stage: Stage) -> None:
    stage.count = _MANY
    await stage.broker.virtual_hosts.create("blue")
    topology = stage.broker.hosts["blue"].topology
    for number in range(stage.count):
        await topology.declare_exchange(f"x{number}", "topic")
    await stage.measure(lambda: stage.broker.virtual_hosts.delete("blue"), lambda: "blue" not in stage.broker.hosts)


@_scenario("queue.delete beside 20,000 exchanges")
async def _delete_beside(stage: Stage) -> None:
    stage.count = 20_000
    for number in range(stage.count):
        await stage.broker.default_host.topology.declare_exchange(f"x{number}", "topic")
    await stage.queue("q")
    peer = await stage.basic()
    await stage.measure(_send(peer, "queue.delete", queue="q"), lambda: not stage.broker.default_host.queues)


# ---- management ----


@_scenario("QMF question for one of many bindings")
async def _qmf_binding(stage: Stage) -> None:
    await stage.queue("q0")
    await stage.bindings("amq.direct")
    console = await _console(stage)
    name = "org.apache.qpid.broker:binding:org.apache.qpid.broker:exchange:amq.direct,org.apache.qpid.broker:queue:q0,"

    async def work() -> None:
        console.send("_query_request", {"_what": "OBJECT", "_object_id": {"_object_name": f"{name}key.7"}})
        await console.settle()

    await stage.measure(work, lambda: True)


@_scenario("QMF list of queues")
async def _qmf_queues(stage: Stage) -> None:
    await _queues(stage)
    console = await _console(stage)

    async def work() -> None:
        console.send("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "queue"}})
        await console.settle()

    await stage.measure(work, lambda: True)


@_scenario("QMF updates of all queues")
async def _qmf_updates(stage: Stage) -> None:
    queues = await _queues(stage)
    await stage.host.topology.declare_queue("console")
    await stage.host.topology.bind("console", "qmf.default.topic", "agent.ind.data.#")
    console = stage.host.queues["console"]
    agent: Any = stage.host.exchanges["qmf.default.topic"].receiver
    agent = agent._agent
    await asyncio.sleep(0.1)

    async def work() -> None:
        agent._next_sweep = 0.0
        agent.on_timer()

    await stage.measure(work, lambda: console.message_count >= len(queues) // 25 and not agent._publisher.is_under_way)


@_scenario("QMF events to many queues")
async def _qmf_events(stage: Stage) -> None:
    queues = await _queues(stage, "")
    exchange = stage.host.exchanges["qmf.default.topic"]
    for queue in queues:
        exchange.bind(queue, "agent.ind.event.#")
    await stage.measure(_send(await stage.basic(), "queue.declare", queue="other"), _all_have(queues))


# ---- running ----


@asynccontextmanager
async def _stage(count: int, *, durable: bool) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory() as directory:
        settings: dict[str, Any] = {"queue_limit_bytes": 0}
        path = Path(directory) / "store" if durable else None
        async with served(path, SyncedInThread, **settings) as found:
            found.broker.expiries._call_later = asyncio.get_running_loop().call_later
            stage = Stage(found, count, durable=durable)
            try:
                yield stage
            finally:
                stage.close()
                await asyncio.sleep(0.05)


async def _run(name: str, count: int, *, durable: bool) -> Measured:
    async with _stage(count, durable=durable) as stage:
        await SCENARIOS[name](stage)
        return Measured(name, stage.count, stage.longest, stage.total)


def measure(name: str, count: int, *, durable: bool) -> Measured:
    """Measure one operation."""
    with asyncio.Runner(loop_factory=MeasuringLoop) as runner:
        return runner.run(_run(name, count, durable=durable))


@click.command()
@click.option("--messages", type=int, multiple=True, default=(100_000,), show_default=True)
@click.option("--only", multiple=True, help="A part of an operation's name.")
@click.option("--durable", is_flag=True, help="Durable queues and persistent messages.")
@click.option("--json", "as_json", is_flag=True)
def main(messages: tuple[int, ...], only: tuple[str, ...], *, durable: bool, as_json: bool) -> None:
    """Measure the longest turn of the event loop."""
    names = [name for name in SCENARIOS if not only or any(each in name for each in only)]
    rows: list[Measured] = []
    for name in names:
        for count in messages:
            try:
                row = measure(name, count, durable=durable)
            except Exception as error:
                Screen(stderr=True).print(f"{name}: {type(error).__name__}: {error}")
                continue
            rows.append(row)
            Screen(stderr=True).print(f"{name:<60} {row.count:>8,} {row.longest * 1e3:10.1f} ms {row.total:8.2f} s")
    if as_json:
        print(orjson.dumps([row._asdict() for row in rows]).decode())
        return
    table = Table("operation", "number", "longest turn, ms", "processor time, s")
    for row in rows:
        mark = "" if row.longest <= _GOAL else " !"
        table.add_row(row.name, f"{row.count:,}", f"{row.longest * 1e3:.1f}{mark}", f"{row.total:.2f}")
    Screen().print(table)


if __name__ == "__main__":
    main()
