"""The console for asyncio: the same calls as in `blocking`, as coroutines and asynchronous iterators.

    async with Console("localhost:5672") as console:
        async for queue in console.query("queue"):
            print(queue["name"])
        await console.call("broker", "echo", sequence=1, body="hello")
        async for event in console.events():
            print(event.name)

`blocking` documents the arguments and errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Any

from qstore.broker.client.aio import Connection
from qstore.broker.client.errors import MessagingError
from qstore.broker.management.console.core import DEFAULT_TIMEOUT, MAX_MESSAGE_BYTES, ConsoleCore, Indication
from qstore.broker.management.console.schema import Schema
from qstore.broker.management.console.values import AgentInfo, Data, Event, ObjectId, SchemaId


class Console:
    """A console. See `blocking.Console`."""

    def __init__(
        self, broker: str | Connection = "localhost", *, timeout: float = DEFAULT_TIMEOUT, **options: Any
    ) -> None:
        self._is_owner = isinstance(broker, str)
        options.setdefault("max_message_bytes", MAX_MESSAGE_BYTES)
        self.connection = Connection(broker, **options) if isinstance(broker, str) else broker
        self._core = ConsoleCore(self.connection._core, timeout)

    async def open(self) -> None:
        """Connect, unless that is done."""
        if not self.connection.is_open:
            await self.connection.open()
        try:
            await self._core.open()
        except BaseException:
            if self._is_owner:
                await self.connection.close(0)
            raise

    async def close(self) -> None:
        """End it, and its connection if it has opened that."""
        if self._is_owner:
            await self.connection.close(self._core.timeout)
        else:
            await self._core.close()

    async def __aenter__(self) -> Console:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif self._is_owner:
            await self.connection.close(0)

    async def query(
        self,
        class_name: str | None = None,
        *,
        package: str | None = None,
        object_id: Data | ObjectId | str | None = None,
        where: list[Any] | None = None,
        agent: str | None = None,
    ) -> AsyncGenerator[Data, None]:
        """Objects, as they arrive."""
        found = await self._core.query(class_name, package, object_id, where, agent)
        try:
            while (portion := await found.portion()) is not None:
                for each in portion:
                    yield each
        finally:
            found.close()

    async def subscribe(
        self,
        class_name: str | None = None,
        *,
        package: str | None = None,
        object_id: Data | ObjectId | str | None = None,
        where: list[Any] | None = None,
        agent: str | None = None,
        interval: float = 10.0,
        timeout: float | None = None,
    ) -> AsyncGenerator[Data, None]:
        """Objects, and then what changes of them, until nothing comes for `timeout` seconds; None: forever."""
        found = await self._core.subscribe(class_name, package, object_id, where, agent, interval=interval)
        try:
            while (each := await found.next(timeout)) is not None:
                yield each
        finally:
            with contextlib.suppress(MessagingError):
                await found.close()

    async def find(self, target: Data | ObjectId | str, *, agent: str | None = None) -> Data:
        """One object."""
        return await self._core.find(target, agent)

    async def call(
        self,
        target: Data | ObjectId | str,
        method: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        agent: str | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Call a method of an object, and return its results."""
        return await self._core.call(target, method, {**(arguments or {}), **more}, agent, timeout)

    async def agents(self, wait: float = 1.0) -> list[AgentInfo]:
        """All agents that answer within `wait` seconds."""
        return await self._core.agents(wait)

    async def classes(self, package: str | None = None, *, agent: str | None = None) -> list[SchemaId]:
        """The classes of objects and events that an agent knows."""
        return await self._core.classes(package, agent)

    async def schema(self, of: SchemaId | str, *, agent: str | None = None) -> Schema:
        """The schema of a class."""
        return await self._core.schema(of, agent)

    async def indications(
        self,
        *,
        events: bool = True,
        heartbeats: bool = True,
        objects: bool = False,
        of: Iterable[tuple[str, str]] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Indication, None]:
        """Publications of agents from now on, until none comes for `timeout` seconds; None: forever."""
        found = await self._core.stream(events=events, heartbeats=heartbeats, objects=objects, of=of)
        try:
            while (each := await found.next(timeout)) is not None:
                yield each
        finally:
            with contextlib.suppress(MessagingError):
                await found.close()

    async def events(self, timeout: float | None = None) -> AsyncGenerator[Event, None]:
        """Events from now on, until none comes for `timeout` seconds; None: forever."""
        async for each in self.indications(heartbeats=False, timeout=timeout):
            if isinstance(each, Event):
                yield each
