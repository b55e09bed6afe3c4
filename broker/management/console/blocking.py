"""The console that blocks. `aio` documents the differences for asyncio.

It is thread-safe, as its connection is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from qstore.broker.client.blocking import Connection
from qstore.broker.management.console.core import (
    DEFAULT_TIMEOUT,
    MAX_MESSAGE_BYTES,
    ConsoleCore,
    Indication,
)
from qstore.broker.management.console.schema import Schema
from qstore.broker.management.console.values import AgentInfo, Data, Event, ObjectId, SchemaId

_Item = TypeVar("_Item", covariant=True)


class Console:
    """A console.

    Args:
        broker: the URL of a broker, or a connection, which stays the caller's to close.
        timeout: seconds that an answer may take.
        options: of a connection that the console opens; see `client.options`.

    Raises:
        UrlError: the URL or an option is invalid.
    """

    def __init__(
        self, broker: str | Connection = "localhost", *, timeout: float = DEFAULT_TIMEOUT, **options: Any
    ) -> None:
        self._is_owner = isinstance(broker, str)
        options.setdefault("max_message_bytes", MAX_MESSAGE_BYTES)
        self.connection = Connection(broker, **options) if isinstance(broker, str) else broker
        self._driver = self.connection._driver
        self._core = ConsoleCore(self.connection._core, timeout)

    @property
    def queue(self) -> str:
        """The name of its queue for answers."""
        return self._core.queue

    def open(self) -> None:
        """Connect, unless that is done.

        Raises:
            ConnectError: the broker cannot be reached, or has refused the connection.
            NoAgentError: it has no management by QMF version 2.
        """
        if not self.connection.is_open:
            self.connection.open()
        try:
            self._driver.run(self._core.open())
        except BaseException:
            if self._is_owner:
                self.connection.close(0)
            raise

    def close(self) -> None:
        """End it, and its connection if it has opened that."""
        if self._is_owner:
            self.connection.close(self._core.timeout)
        else:
            self._driver.run(self._core.close())

    def __enter__(self) -> Console:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._is_owner:
            self.connection.close(0)

    # ---- objects ----

    def query(
        self,
        class_name: str | None = None,
        *,
        package: str | None = None,
        object_id: Data | ObjectId | str | None = None,
        where: list[Any] | None = None,
        agent: str | None = None,
    ) -> Iterator[Data]:
        """Objects, as they arrive.

        Args:
            class_name: of this class; None for all.
            package: of this package; None for all.
            object_id: the one object with this identity: itself, its name, or CLASS:KEY. No class counts then.
            where: those that fulfil a condition, see `formats.qmf.predicate`: `["gt", "msgDepth", 10]`. It is sent to
                the agent, and checked here as well.
            agent: the agent to query; None for the broker's own.

        Raises:
            AgentError: the agent has refused the query.
            NoAnswerError, AnswerError: there was no answer, or one that cannot be read.
            ContentError: the condition is invalid.
            MessagingError: the connection or the session has failed.
        """
        found = self._driver.run(self._core.query(class_name, package, object_id, where, agent))
        try:
            while (portion := self._driver.run(found.portion())) is not None:
                yield from portion
        finally:
            with self._driver.lock:
                found.close()

    def subscribe(
        self,
        class_name: str | None = None,
        *,
        package: str | None = None,
        object_id: Data | ObjectId | str | None = None,
        where: list[Any] | None = None,
        agent: str | None = None,
        interval: float = 10.0,
    ) -> Indications[Data]:
        """Objects, and then those of them that are new, have changed, or are gone (`deleted` is not 0).

        Args:
            class_name: as for `query`.
            package: as for `query`.
            object_id: as for `query`.
            where: as for `query`.
            agent: as for `query`.
            interval: seconds after which the agent sends what has changed; agents have a minimum.

        Raises:
            AgentError: the agent has refused it, as those of qpidd do.
            MessagingError: as `query`.
        """
        asked = self._core.subscribe(class_name, package, object_id, where, agent, interval=interval)
        return Indications(self, self._driver.run(asked))

    def find(self, target: Data | ObjectId | str, *, agent: str | None = None) -> Data:
        """One object.

        Args:
            target: itself, its identity, its name, CLASS:KEY, or `broker`.
            agent: its agent; None for the one in its identity, or the broker's own.

        Raises:
            NoObjectError: there is no such object.
            MessagingError: as `query`.
        """
        return self._driver.run(self._core.find(target, agent))

    def call(
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
        """Call a method of an object, and return its results.

        Args:
            target: as for `find`.
            method: the name of the method.
            agent: as for `find`.
            timeout: seconds that it may take; None for those of the console.
            arguments: by name: Python values, or `TypedValue`s.
            more: the same.

        Raises:
            AgentError: it has failed.
            MessagingError: as `query`.
        """
        return self._driver.run(self._core.call(target, method, {**(arguments or {}), **more}, agent, timeout))

    # ---- agents and schemas ----

    def agents(self, wait: float = 1.0) -> list[AgentInfo]:
        """All agents that answer within `wait` seconds."""
        return self._driver.run(self._core.agents(wait))

    def classes(self, package: str | None = None, *, agent: str | None = None) -> list[SchemaId]:
        """The classes of objects and events that an agent knows."""
        return self._driver.run(self._core.classes(package, agent))

    def schema(self, of: SchemaId | str, *, agent: str | None = None) -> Schema:
        """The schema of a class, by its identity, its name, or PACKAGE:NAME.

        Raises:
            NoObjectError: there is no such class.
            MessagingError: as `query`.
        """
        return self._driver.run(self._core.schema(of, agent))

    # ---- events ----

    def indications(
        self,
        *,
        events: bool = True,
        heartbeats: bool = True,
        objects: bool = False,
        of: Iterable[tuple[str, str]] | None = None,
    ) -> Indications[Indication]:
        """Publications of agents from now on: events, heartbeats as `AgentInfo`, changed objects as `Data`.

        Args:
            events: whether events are received.
            heartbeats: whether heartbeats are.
            objects: whether changed objects are.
            of: packages and names of the classes of objects, `*` for any name; None for all.
        """
        wanted = self._core.stream(events=events, heartbeats=heartbeats, objects=objects, of=of)
        return Indications(self, self._driver.run(wanted))

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Events from now on, until none comes for `timeout` seconds; None: forever.

        Raises:
            AnswerError: an event cannot be read. `indications` can continue after that.
            MessagingError: the connection or the session has failed.
        """
        return self._from(self.indications(heartbeats=False), timeout)

    @staticmethod
    def _from(found: Indications[Indication], timeout: float | None) -> Iterator[Event]:
        with found:
            while isinstance(event := found.next(timeout), Event):
                yield event


class _Source(Protocol[_Item]):
    """Where indications come from: `core.Stream` or `core.Subscription`."""

    async def next(self, timeout: float | None) -> _Item | None: ...

    async def close(self) -> None: ...


class Indications(Generic[_Item]):
    """What agents send unasked, or for a subscription. Iterating over it never ends; `next` has a time limit.

    A subscription is refreshed by `next`.

    Args:
        console: its console.
        source: where they come from.
    """

    def __init__(self, console: Console, source: _Source[_Item]) -> None:
        self._source, self._driver = source, console._driver

    def next(self, timeout: float | None = None) -> _Item | None:
        """The next one; None if none comes within `timeout` seconds.

        Raises:
            AgentError: the agent has ended the subscription.
            AnswerError: one cannot be read; those after it can.
            MessagingError: the connection or the session has failed.
        """
        return self._driver.run(self._source.next(timeout))

    def close(self) -> None:
        """End it."""
        self._driver.run(self._source.close())

    def __iter__(self) -> Iterator[_Item]:
        while (found := self.next()) is not None:
            yield found

    def __enter__(self) -> Indications[_Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            self.close()
