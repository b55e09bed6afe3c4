"""A broker without a network: its model and its topology, with a store or without one, on the test's event loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from qstore.broker.model.broker import Broker
from qstore.broker.model.events import Listener
from qstore.broker.model.message import PLAIN_HANDLING, Message, Properties, StoredForm
from qstore.broker.model.queues.consumers import TAKEN_LAST
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.store_protocol import Store
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import TypedMap, TypedValue, typed_map
from qstore.store.errors import StoreError
from qstore.store.module import Module
from tests.support.management_console import Console, take

OPTIONS = {
    "auto-expand": "no",
    "num-jfiles": "4",
    "jfile-size-pgs": "1",
    "wcache-page-size": "4",
    "wcache-num-pages": "4",
}


class Somebody:
    """A caller."""

    def __init__(self, user: str = "somebody", remote_host: str = "192.0.2.1:5") -> None:
        self.user, self.remote_host, self.vhost = user, remote_host, "/"


class PlainMessage(Message):
    """A message that is a routing key and a body."""

    __slots__ = ("_crc", "numbers")

    def __init__(self, key: str, body: bytes, *, persistent: bool = True, store: Store | None = None) -> None:
        self.exchange, self.routing_key, self.body = "", key, body
        self.size = len(body)
        self.is_persistent, self.handling, self.expires_at = persistent, PLAIN_HANDLING, 0.0
        self._crc = None if store is None else store.crc
        self.numbers: dict[str, Any] = {}

    def stored_form(self) -> StoredForm:
        assert self._crc is not None
        data = self.routing_key.encode() + b"\0" + self.body
        return (data,), len(data), self._crc((data,))

    def headers(self) -> TypedMap:
        return typed_map(self.numbers)

    def properties(self) -> Properties:
        return Properties(headers=self.headers())

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> PlainMessage:
        changed = self.with_headers(changes)
        changed.exchange, changed.routing_key, changed.expires_at = exchange, routing_key, 0.0
        return changed

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> PlainMessage:
        changed = copy.copy(self)
        changed.numbers = {name: value for name, value in self.numbers.items() if name not in changes}
        changed.numbers |= {name: typed.value for name, typed in changes.items() if typed is not None}
        return changed


class Taker:
    """A consumer that takes one message on demand."""

    def __init__(self) -> None:
        self.acquires, self.is_waiting = True, False
        self.cursor: Any = None
        self.taken: list[Entry] = []
        self.is_notified = False

    @property
    def kind(self) -> str:
        return "takes all"

    @property
    def has_credit(self) -> bool:
        return not self.taken

    def deliver(self, entry: Entry) -> int:
        self.taken.append(entry)
        return TAKEN_LAST

    def queue_deleted(self) -> None:
        self.is_notified = True

    def fail(self, error: Exception) -> None:
        raise error


class Wired:
    """The model and the topology of a broker that is open."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.store = broker, broker.store
        self.topology = broker.default_host.topology

    def message(self, key: str, body: bytes, *, persistent: bool = True) -> PlainMessage:
        return PlainMessage(key, body, persistent=persistent, store=self.store)

    async def publish(self, exchange: str, key: str, *bodies: bytes, persistent: bool = True) -> None:
        """Publish messages, until they are on the disk."""
        for body in bodies:
            self.broker.router.publish(
                self.message(key, body, persistent=persistent), self.broker.default_host.exchanges[exchange]
            )
        await self.synced()

    async def synced(self) -> None:
        """Until all that was written so far is on the disk."""
        future: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.broker.tick.when_synced(future.set_result)
        assert await future is None

    def bodies(self, queue: str) -> list[bytes]:
        """The messages on a queue that are not acquired."""
        return [entry.message.body for entry in self.broker.default_host.queues[queue].available()]

    def bindings(self) -> set[tuple[str, str, str]]:
        """Exchange, queue, key."""
        return {
            (exchange.name, binding.queue.name, binding.key)
            for exchange in self.broker.default_host.exchanges.values()
            for binding in exchange.bindings
        }

    async def consumer(self, queue: Queue) -> Taker:
        """One more consumer, when it has been offered what there is."""
        taker = Taker()
        queue.add_consumer(taker)
        queue.wake(taker)
        await self.synced()
        return taker


@asynccontextmanager
async def wired(path: Path | None = None, *listeners: Listener) -> AsyncIterator[Wired]:
    """A broker; with a path, one that has the store there, which is recovered first and closed afterwards."""
    loop = asyncio.get_running_loop()
    store = None if path is None else Module().open(OPTIONS, str(path), "0", lambda line: None)
    broker = Broker(BrokerSettings(), store, loop.call_soon)
    for listener in listeners:
        broker.events.listen(listener)
    if store is not None:
        loop.add_reader(store.fileno(), store.collect)
        store.is_watched(loop.call_soon, loop.call_later)

        def restore(data: bytes, begin: int = 0, end: int = -1, /) -> Message:
            key, _, body = (data if end < 0 else data[begin:end]).partition(b"\0")
            return PlainMessage(key.decode(), body, store=store)

        broker.recover(restore)
    found = Wired(broker)
    try:
        await found.topology.store_standard_exchanges()
        yield found
        await found.topology.finish()
        await found.broker.configuration.finish()
    finally:
        if store is not None:
            loop.remove_reader(store.fileno())
            broker.close()


Scene = Callable[[Wired], Awaitable[None]]


def play(path: Path | None, *scenes: Scene) -> None:
    """Each scene with a broker of its own, one after the other, on the same store."""

    async def on_stage(scene: Scene) -> None:
        async with wired(path) as stage:
            await scene(stage)

    for scene in scenes:
        asyncio.run(on_stage(scene))


def play_with_console(scene: Callable[[Wired, Console], Awaitable[None]], path: Path | None = None) -> None:
    """A scene with a broker, and a console that has had no event yet."""

    async def on_stage() -> None:
        async with wired(path) as stage:
            console = Console(stage)
            await console.open()
            take(console.events)
            await scene(stage, console)

    asyncio.run(on_stage())


def failing(*arguments: Any) -> None:
    """A change of the store that fails."""
    arguments[-1](None, StoreError("the disk is broken"))
