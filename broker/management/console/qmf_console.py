"""The names and callbacks of Python's `qmf.console`, for scripts that were written for it, on this package's console.

    from qstore.broker.management.console.qmf_console import Console, Session    # instead of: from qmf.console import …

    session = Session()
    broker = session.addBroker("amqp://localhost")
    for queue in session.getObjects(_class="queue", _package="org.apache.qpid.broker"):
        print(queue.name, queue.msgDepth)
    session.delBroker(broker)

A `Session` has brokers, each with one `Console` of QMF version 2. If it was given an object with callbacks, or is to
manage connections, a thread for each broker connects, again and again if it manages them, and calls the callbacks with
what arrives. `update`, methods and queries may be called from callbacks, too.

Agents publish an object as a whole: `objectProps` is called when it is new or its properties have changed, and
`objectStats` when its statistics have, with all of its values. An identity of an object (`getObjectId`) is a name.

Source: Qpid C++ Broker Book, 2.3 (seed 000, lines 3935-4368).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from qstore.broker.client.errors import MessagingError
from qstore.broker.management.console import blocking
from qstore.broker.management.console.schema import Method, Property, Schema
from qstore.broker.management.console.values import (
    AgentError,
    AgentInfo,
    AnswerError,
    Data,
    Event,
    ManagementError,
    NoObjectError,
    ObjectId,
    SchemaId,
)
from qstore.formats.named_tuple import NamedTuple

_TICK: Final = 0.5  # seconds between looks at whether a thread is to end
_RETRIES: Final = (1.0, 2.0, 4.0, 8.0, 15.0)  # seconds between attempts to connect
_CALLS_AT_ONCE: Final = 4
_MAX_REMEMBERED: Final = 100_000
"""Objects whose values are remembered, to tell which part of them has changed."""
_MISSED_HEARTBEATS: Final = 3


class ClassKey(NamedTuple):
    """Identifies a class of objects or events."""

    id: SchemaId

    def getPackageName(self) -> str:
        return self.id.package

    def getClassName(self) -> str:
        return self.id.name

    def getHash(self) -> Any:
        return self.id.hash

    def __str__(self) -> str:
        return f"{self.id.package}:{self.id.name}"


class SchemaMethod:
    """A method of a class."""

    def __init__(self, of: Method) -> None:
        self.name, self.desc, self.arguments = of.name, of.description, list(of.arguments)

    def __repr__(self) -> str:
        """As a function: the arguments that it takes."""
        return f"{self.name}({', '.join(each.name for each in self.arguments if 'I' in each.direction)})"


class SchemaProperty:
    """A property or statistic of a class."""

    def __init__(self, of: Property) -> None:
        self.name, self.type, self.access, self.unit, self.desc = of.name, of.type, of.access, of.unit, of.description
        self.index, self.optional = of.is_index, of.is_optional

    def __repr__(self) -> str:
        return self.name


class MethodResult:
    """The outcome of a call.

    Attributes:
        status: 0, or the number of the error.
        text: OK, or the reason.
        outArgs: the results by name, which are attributes, too.
    """

    def __init__(self, status: int, text: str, outArgs: dict[str, Any]) -> None:
        self.status, self.text, self.outArgs = status, text, outArgs

    def __getattr__(self, name: str) -> Any:
        if name in self.outArgs:
            return self.outArgs[name]
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"{self.text} ({self.status}) - {self.outArgs}"


class Object:
    """A managed object, as it was when it was received. Its values are attributes, and so are its methods."""

    def __init__(self, broker: Broker, data: Data, schema: Schema) -> None:
        self._broker, self._data, self._schema = broker, data, schema

    def getBroker(self) -> Broker:
        return self._broker

    def getClassKey(self) -> ClassKey:
        return ClassKey(self._schema.id)

    def getSchema(self) -> Schema:
        return self._schema

    def getObjectId(self) -> ObjectId:
        assert self._data.object_id is not None
        return self._data.object_id

    def getIndex(self) -> str:
        """Its name among the objects of its class."""
        return self._data.key

    def getTimestamps(self) -> tuple[int, int, int]:
        """When it was sent, created and deleted, in nanoseconds since 1970; 0 if it was not."""
        return self._data.updated, self._data.created, self._data.deleted

    def isDeleted(self) -> bool:
        return self._data.deleted != 0

    def getProperties(self) -> list[tuple[SchemaProperty, Any]]:
        return list(self._elements(is_statistic=False))

    def getStatistics(self) -> list[tuple[SchemaProperty, Any]]:
        return list(self._elements(is_statistic=True))

    def _elements(self, *, is_statistic: bool) -> Iterator[tuple[SchemaProperty, Any]]:
        for each in self._schema.properties:
            if each.is_statistic is is_statistic and (each.name in self._data.values or not each.is_optional):
                yield SchemaProperty(each), self._data.get(each.name)

    def getMethods(self) -> list[SchemaMethod]:
        return [SchemaMethod(each) for each in self._schema.methods]

    def update(self) -> None:
        """Get its values as they are now.

        Raises:
            NoObjectError: it is gone.
            MessagingError: the broker does not answer.
        """
        self._data = self._broker._opened().find(self._data)

    def __getattr__(self, name: str) -> Any:
        if name in self._data.values:
            return self._data.values[name]
        for each in self._schema.methods:
            if each.name == name:
                return lambda *args, **more: self._call(each, args, more)
        if any(each.name == name for each in self._schema.properties):
            return None
        raise AttributeError(f"class {self._schema.id.name} has neither a value nor a method {name}")

    def _call(self, method: Method, args: Sequence[Any], more: dict[str, Any]) -> Any:
        """Call a method: its arguments in order, or by name; `_async` and `_timeout`. Returns its result or number."""
        is_async, timeout = more.pop("_async", False), more.pop("_timeout", None)
        names = [each.name for each in method.arguments if "I" in each.direction]
        if len(args) > len(names) or more.keys() & set(names[: len(args)]) or more.keys() - set(names):
            raise TypeError(f"{method.name} takes the arguments {', '.join(names) or '(none)'}")
        arguments = dict(zip(names, args, strict=False)) | more
        if is_async:
            return self._broker._call_later(self._data, method.name, arguments, timeout)
        return self._broker._result(self._data, method.name, arguments, timeout)

    def __repr__(self) -> str:
        return f"{self.getClassKey()}[{self.getObjectId().name}] {self.getIndex()}"


class ReceivedEvent:
    """An event."""

    def __init__(self, of: Event) -> None:
        self._event = of

    def getClassKey(self) -> ClassKey:
        return ClassKey(self._event.schema_id)

    def getArguments(self) -> dict[str, Any]:
        return self._event.values

    def getTimestamp(self) -> int:
        """Nanoseconds since 1970."""
        return self._event.timestamp

    def getSeverity(self) -> str:
        return self._event.severity_name.upper()

    def __repr__(self) -> str:
        """A line: time, severity, class, arguments."""
        at = time.asctime(time.localtime(self._event.timestamp / 1e9))
        given = "".join(f" {name}={value}" for name, value in self._event.values.items())
        return f"{at} {self.getSeverity()} {self.getClassKey()}{given}"


class Agent:
    """An agent."""

    def __init__(self, broker: Broker, info: AgentInfo) -> None:
        self._broker, self._info = broker, info
        self.epoch, self.label = info.epoch, info.name

    def getBroker(self) -> Broker:
        return self._broker

    def getAgentBank(self) -> str:
        """Its name: in version 2 agents have no banks."""
        return self._info.name

    def __repr__(self) -> str:
        return f"Agent({self._info.name})"


class Console:
    """What happens, for a subclass to override: here each of these does nothing."""

    def brokerConnected(self, broker: Broker) -> None:
        """A connection to a broker is open."""

    def brokerConnectionFailed(self, broker: Broker) -> None:
        """An attempt to connect has failed; `broker.getError()` has the reason."""

    def brokerDisconnected(self, broker: Broker) -> None:
        """A connection to a broker is lost."""

    def brokerInfo(self, broker: Broker) -> None:
        """The id of a broker is known."""

    def newPackage(self, name: str) -> None:
        """A package was not known before."""

    def newClass(self, kind: int, classKey: ClassKey) -> None:
        """A class was not known before; kind 1 is one of objects, 2 of events."""

    def newAgent(self, agent: Agent) -> None:
        """An agent was not known before."""

    def delAgent(self, agent: Agent) -> None:
        """An agent has sent no heartbeat for three intervals."""

    def objectProps(self, broker: Broker, record: Object) -> None:
        """An object is new, or its properties have changed."""

    def objectStats(self, broker: Broker, record: Object) -> None:
        """An object's statistics have changed."""

    def event(self, broker: Broker, event: ReceivedEvent) -> None:
        """An event has come."""

    def heartbeat(self, agent: Agent, timestamp: int) -> None:
        """An agent has sent a heartbeat."""

    def methodResponse(self, broker: Broker, seq: int, response: MethodResult) -> None:
        """A call with `_async` has ended. This may come before the call has returned its number."""


_CALLBACKS: Final = tuple(name for name in vars(Console) if not name.startswith("_"))


class DebugConsole(Console):
    """Prints all that happens."""

    def __getattribute__(self, name: str) -> Any:
        if name in _CALLBACKS:
            return lambda *args: print(f"{name}:", *args)  # noqa: T201
        return super().__getattribute__(name)


class Broker:
    """A broker of a session."""

    def __init__(self, session: Session, url: str, timeout: float, options: dict[str, Any]) -> None:
        self._session, self._url, self._timeout, self._options = session, url, timeout, options
        self._console: blocking.Console | None = None
        self._error: Exception | None = None
        self._id: str | None = None
        self._schemas: dict[SchemaId, Schema] = {}
        self._packages: set[str] = set()
        self._agents: dict[str, tuple[Agent, float]] = {}
        self._values: dict[ObjectId, tuple[list[Any], list[Any]]] = {}
        self._numbers = itertools.count(1)
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, "qmf-call")
        self._is_over, self._are_bindings_new = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    # ---- as scripts see it ----

    def getUrl(self) -> str:
        return self._url

    def getBrokerId(self) -> str | None:
        """The id of the broker; None before it is connected."""
        return self._id

    def isConnected(self) -> bool:
        return self._console is not None

    def getError(self) -> Exception | None:
        """Why it is not connected."""
        return self._error

    def __repr__(self) -> str:
        place = self._url.removeprefix("amqps:").removeprefix("amqp:").removeprefix("//").rpartition("@")[2]
        place = place if ":" in place else f"{place}:5672"
        return f"Broker connected at: {place}" if self.isConnected() else f"Disconnected Broker {place}"

    # ---- the connection ----

    def _opened(self) -> blocking.Console:
        console = self._console
        if console is None:
            raise RuntimeError(f"{self}: {self._error or 'not connected yet'}")
        return console

    def _connect(self) -> None:
        """Raises MessagingError."""
        console = blocking.Console(self._url, timeout=self._timeout, **self._options)
        console.open()
        try:
            self._id = str(console.find("broker").get("systemRef", ""))
            self._console, self._error = console, None
            self._notify("brokerConnected", self)
            self._notify("brokerInfo", self)
            for each in console.classes():
                self._know(each)
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        console, self._console = self._console, None
        if console is not None:
            try:
                console.close()
            except (MessagingError, OSError) as error:
                self._error = error

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="qmf-broker", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self._is_over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._calls.shutdown()
        self._disconnect()

    def _serve(self) -> None:
        """Connect, and pass on what arrives, until the end."""
        failures = 0
        while not self._is_over.is_set():
            try:
                if self._console is None:
                    self._connect()
                failures = 0
                self._receive()
            except (MessagingError, OSError) as error:
                was_connected = self._console is not None
                self._disconnect()
                self._error = error
                self._notify("brokerDisconnected" if was_connected else "brokerConnectionFailed", self)
                if not self._session._manages:
                    return
                self._is_over.wait(_RETRIES[min(failures, len(_RETRIES) - 1)])
                failures += 1

    def _receive(self) -> None:
        """Pass on what arrives, until the end or new bindings."""
        session = self._session
        self._are_bindings_new.clear()
        if not (session._events or session._heartbeats or (session._objects and session._classes() != [])):
            self._is_over.wait(_TICK)
            return
        with self._opened().indications(
            events=session._events, heartbeats=session._heartbeats, objects=session._objects, of=session._classes()
        ) as arriving:
            while not self._is_over.is_set() and not self._are_bindings_new.is_set():
                found = None
                with contextlib.suppress(AnswerError):  # anybody who may publish to the exchange can send one
                    found = arriving.next(_TICK)
                if isinstance(found, Event):
                    self._notify("event", self, ReceivedEvent(found))
                elif isinstance(found, AgentInfo):
                    self._heard(found)
                elif isinstance(found, Data):
                    self._changed(found)
                self._look_for_lost_agents()

    # ---- callbacks ----

    def _notify(self, name: str, *args: Any) -> None:
        if self._session._console is not None:
            getattr(self._session._console, name)(*args)

    def _know(self, of: SchemaId) -> None:
        if of.package not in self._packages:
            self._packages.add(of.package)
            self._notify("newPackage", of.package)
        self._notify("newClass", 2 if of.is_event else 1, ClassKey(of))

    def _heard(self, info: AgentInfo) -> None:
        agent = self._agents[info.name][0] if info.name in self._agents else Agent(self, info)
        is_new = info.name not in self._agents
        lasts = _MISSED_HEARTBEATS * max(1, info.heartbeat_interval)
        self._agents[info.name] = agent, time.monotonic() + lasts
        if is_new:
            self._notify("newAgent", agent)
        self._notify("heartbeat", agent, info.timestamp)

    def _look_for_lost_agents(self) -> None:
        now = time.monotonic()
        for name in [name for name, (_, ends) in self._agents.items() if ends < now]:
            self._notify("delAgent", self._agents.pop(name)[0])

    def _changed(self, data: Data) -> None:
        found = self._object(data)
        if found is None or data.object_id is None:
            return
        values = [value for _, value in found.getProperties()], [value for _, value in found.getStatistics()]
        before = self._values.pop(data.object_id, None)
        if not data.deleted:
            self._values[data.object_id] = values
            if len(self._values) > _MAX_REMEMBERED:
                del self._values[next(iter(self._values))]
        if before is None or before[0] != values[0] or data.deleted:
            self._notify("objectProps", self, found)
        if before is None or before[1] != values[1] or data.deleted:
            self._notify("objectStats", self, found)

    def _object(self, data: Data) -> Object | None:
        """The object with its schema, which is fetched once; None if its agent does not describe it."""
        if data.schema_id is None or data.object_id is None:
            return None
        schema = self._schemas.get(data.schema_id)
        if schema is None:
            try:
                schema = self._opened().schema(data.schema_id, agent=data.object_id.agent or None)
            except ManagementError:
                return None
            self._schemas[data.schema_id] = schema
        return Object(self, data, schema)

    # ---- calls ----

    def _result(self, data: Data, method: str, arguments: dict[str, Any], timeout: float | None) -> MethodResult:
        try:
            return MethodResult(0, "OK", self._opened().call(data, method, arguments, timeout=timeout))
        except AgentError as error:
            return MethodResult(error.code or 7, str(error), {})

    def _call_later(self, data: Data, method: str, arguments: dict[str, Any], timeout: float | None) -> int:
        number = next(self._numbers)

        def call() -> None:
            try:
                result = self._result(data, method, arguments, timeout)
            except (MessagingError, RuntimeError) as error:
                result = MethodResult(7, str(error), {})
            self._notify("methodResponse", self, number, result)

        self._calls.submit(call)
        return number


class Session:
    """Consoles of brokers.

    Args:
        console: its methods are called with what happens; None for no callbacks.
        rcvObjects, rcvEvents, rcvHeartbeats: whether they are called for changed objects, events and heartbeats.
        manageConnections: connect in the background, and again when a connection is lost.
        userBindings: objects only of the classes that `bindPackage` and `bindClass` name.
    """

    def __init__(
        self,
        console: Console | None = None,
        rcvObjects: bool = True,
        rcvEvents: bool = True,
        rcvHeartbeats: bool = True,
        manageConnections: bool = False,
        userBindings: bool = False,
    ) -> None:
        if userBindings and not (console is not None and rcvObjects):
            raise ValueError("userBindings needs a console, and rcvObjects")
        self._console, self._manages, self._has_bindings = console, manageConnections, userBindings
        self._objects = console is not None and rcvObjects
        self._events = console is not None and rcvEvents
        self._heartbeats = console is not None and rcvHeartbeats
        self._bound: list[tuple[str, str]] = []
        self._brokers: list[Broker] = []

    def _classes(self) -> list[tuple[str, str]] | None:
        return list(self._bound) if self._has_bindings else None

    # ---- brokers ----

    def addBroker(self, target: str = "localhost", timeout: float | None = None, **options: Any) -> Broker:
        """Add a broker by its URL, `[amqp://][USER/PASSWORD@]HOST[:PORT]`; options are those of the client.

        Raises:
            MessagingError: it cannot be reached, unless the session manages connections.
        """
        broker = Broker(self, target, 60.0 if timeout is None else timeout, options)
        if not self._manages:
            try:
                broker._connect()
            except BaseException:
                broker._calls.shutdown()
                raise
        self._brokers.append(broker)
        if self._manages or self._objects or self._events or self._heartbeats:
            broker._start()
        return broker

    def delBroker(self, broker: Broker) -> None:
        """Disconnect from a broker."""
        if broker in self._brokers:
            self._brokers.remove(broker)
            broker._end()

    def close(self) -> None:
        """Disconnect from all brokers."""
        for each in list(self._brokers):
            self.delBroker(each)

    def _connected(self, broker: Broker | None = None) -> list[Broker]:
        return [each for each in self._brokers if each.isConnected() and broker in (None, each)]

    # ---- objects ----

    def getObjects(self, **query: Any) -> list[Object]:
        """Objects of all brokers by `_class`, `_package`, `_objectId`, `_broker`, and values: `name="orders"`.

        Raises:
            MessagingError: a broker does not answer.
        """
        wanted, package, name = query.pop("_class", None), query.pop("_package", None), query.pop("_objectId", None)
        broker, found = query.pop("_broker", None), list[Object]()
        if unknown := [key for key in query if key.startswith("_")]:
            raise TypeError(f"getObjects has no argument {unknown[0]}")
        for each in self._connected(broker):
            for data in each._opened().query(
                wanted, package=package, object_id=name, where=None if wanted or name else ["true"]
            ):
                one = each._object(data)
                if one is not None and all(data.get(key) == value for key, value in query.items()):
                    found.append(one)
        return found

    def bindPackage(self, packageName: str) -> None:
        """Receive the objects of a package."""
        self.bindClass(packageName, "*")

    def bindClass(self, pname: str, cname: str = "*") -> None:
        """Receive the objects of a class; `*` for all of the package."""
        if not self._has_bindings:
            raise RuntimeError("bindings need userBindings=True")
        self._bound.append((pname, cname))
        for each in self._brokers:
            each._are_bindings_new.set()

    # ---- schemas and agents ----

    def getPackages(self) -> list[str]:
        return sorted({each.package for each in self._all_classes()})

    def getClasses(self, packageName: str) -> list[ClassKey]:
        return [ClassKey(each) for each in self._all_classes() if each.package == packageName]

    def getSchema(self, classKey: ClassKey) -> Schema | None:
        """The schema of a class; None if no broker has it."""
        for each in self._connected():
            try:
                return each._opened().schema(classKey.id)
            except NoObjectError:
                continue
        return None

    def getAgents(self, broker: Broker | None = None) -> list[Agent]:
        return [Agent(each, info) for each in self._connected(broker) for info in each._opened().agents()]

    def _all_classes(self) -> list[SchemaId]:
        return list(dict.fromkeys(of for each in self._connected() for of in each._opened().classes()))
