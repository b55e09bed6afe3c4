"""A library for programs that are to be managed: their objects, methods and events, for consoles of QMF version 2.

    from qstore.broker.management.agent_library import Agent, Argument, Method, Property, event_class, object_class

    NAME, CELSIUS = Property("name", "sstr", "RC", is_index=True), Property("celsius", "double", is_statistic=True)
    CALIBRATE = Method("calibrate", (Argument("by", "double", "I"), Argument("celsius", "double", "O")))
    SENSOR = object_class("com.example", "sensor", [NAME, CELSIUS], [CALIBRATE])
    ALARM = event_class("com.example", "tooHot", [NAME, CELSIUS])

    def calibrate(sensor, arguments, user):
        sensor.add("celsius", arguments["by"])
        return {"celsius": sensor["celsius"]}

    with Agent("localhost", vendor="example.com", product="sensors") as agent:
        attic = agent.add(SENSOR, "attic", {"name": "attic", "celsius": 20.5}, {"calibrate": calibrate})
        attic["celsius"] = 45.0
        agent.raise_event(ALARM, {"name": "attic", "celsius": 45.0}, severity=4)

The agent answers in a thread of its own: it is located, describes its classes and objects, calls methods one at a
time, grants subscriptions, and sends heartbeats. A method gets its object, the arguments by name, and the name of the
user if the request has one, which the broker has checked; it returns its results, or raises `RefusedError`. Who may
send requests is up to the broker's access rules: to publish to `qmf.default.direct` with the agent's name as the key.

**Objects outside.** A program that has its objects elsewhere gives the agent a `WorkQueue`. Then calls, queries of
objects and subscriptions become items, which the program takes from the queue, and answers from any thread:

    work = WorkQueue(notify=wake_up)
    with Agent("localhost", vendor="example.com", product="sensors", work=work) as agent:
        agent.register(SENSOR)
        item = work.next(timeout=10)
        if item.kind is WorkKind.QUERY:
            found = [agent.data(SENSOR, row.name, {"name": row.name, "celsius": row.celsius}) for row in database]
            item.add(each for each in found if item.query.selects(each))
            item.complete()
        elif item.kind is WorkKind.METHOD_CALL:
            item.respond({"celsius": 21.5})

Objects may be changed by any thread. What consoles can make an agent keep is limited: subscriptions, and requests: its
queue at the broker is a ring, which drops the oldest ones, and takes none that is larger than a request may be; if the
program takes no items, more are refused.

Source: Qpid wiki, "QMFv2 API Proposal" and "QMF Map Message Protocol" (seed 004, lines 19258-19551, 21760-22083).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeAlias

from qstore.broker.client.address import CLIENT_LOGGER, parse_address, queue_address
from qstore.broker.client.blocking import Connection, Sender, Session
from qstore.broker.client.errors import (
    AddressError,
    ContentError,
    Empty,
    LinkError,
    MessagingError,
    NotFound,
    SessionError,
)
from qstore.broker.client.message import APP_ID, Message
from qstore.broker.management.console.schema import Argument, Method, Property, Schema
from qstore.broker.management.console.values import SEVERITIES, NoAgentError, SchemaId
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.predicate import PredicateError, parse_predicate
from qstore.formats.qmf.v1 import QMF_TYPES

__all__ = [
    "Agent",
    "Argument",
    "ManagedData",
    "Method",
    "ObjectQuery",
    "Property",
    "RefusedError",
    "Schema",
    "WorkItem",
    "WorkKind",
    "WorkQueue",
    "WorkSubscription",
    "event_class",
    "object_class",
]

_logger: Final = logging.getLogger(CLIENT_LOGGER)

DIRECT: Final = "qmf.default.direct"
TOPIC: Final = "qmf.default.topic"
LOCATE_KEY: Final = "console.request.agent_locate"
MAX_SUBSCRIPTIONS: Final = 100
MAX_QUERY_NAMES: Final = 1000  # names and values in the query of a subscription
MAX_REQUEST_BYTES: Final = 4 << 20
MAX_WORK: Final = 1000  # items that the program has not taken
MAX_WORK_BYTES: Final = 64 << 20  # of their requests
DURATIONS: Final = (10, 600, 86_400)  # seconds: the shortest, the usual, the longest
MIN_INTERVAL: Final = 1.0  # seconds
_VALUE_BYTES: Final = 100  # what a value takes besides its characters
_CAPACITY: Final = 20
_PORTION: Final = 25
_MAX_SENDERS: Final = 50
_TICK: Final = 0.5
_NO_SUBSCRIPTION: Final = "there is no such subscription"
_UNKNOWN_OBJECT, _UNKNOWN_METHOD, _INVALID, _EXCEPTION = 1, 2, 4, 7
"""Codes of exceptions, as the broker's agent has them."""

Handler: TypeAlias = "Callable[[ManagedData, dict[str, Any], str], Mapping[str, Any] | None]"
"""Carries out a method on an object, with its arguments, for a user. Returns its results."""


class RefusedError(Exception):
    """A request is refused: the text goes to the console, and so does the code."""

    def __init__(self, text: str, code: int = _EXCEPTION) -> None:
        super().__init__(text)
        self.code = code


# ---- classes ----


def object_class(package: str, name: str, properties: Iterable[Property], methods: Iterable[Method] = ()) -> Schema:
    """A class of objects. Raises ValueError: a type is unknown."""
    return _schema(package, name, tuple(properties), tuple(methods), is_event=False)


def event_class(package: str, name: str, arguments: Iterable[Property]) -> Schema:
    """A class of events. Raises ValueError: a type is unknown."""
    return _schema(package, name, tuple(arguments), (), is_event=True)


def _schema(
    package: str, name: str, properties: tuple[Property, ...], methods: tuple[Method, ...], *, is_event: bool
) -> Schema:
    kinds = [each.type for each in properties] + [one.type for each in methods for one in each.arguments]
    if unknown := [kind for kind in kinds if kind not in QMF_TYPES]:
        raise ValueError(f"{unknown[0]!r} is not a type of QMF: {', '.join(QMF_TYPES)}")
    digest = hashlib.md5(repr((package, name, properties, methods)).encode(), usedforsecurity=False)
    return Schema(SchemaId(package, name, is_event, uuid.UUID(bytes=digest.digest())), properties, methods)


def _typed(name: str, kind: str, description: str) -> dict[str, Any]:
    found = {"_name": name, "_type": QMF_TYPES[kind].kind, "_subtype": kind}
    return found | ({"_desc": description} if description else {})


def _described(of: Schema) -> dict[str, Any]:
    """A class, as consoles get it."""
    properties = [
        _typed(each.name, each.type, each.description)
        | {"_index": each.is_index, "_optional": each.is_optional}
        | ({"_access": each.access} if each.access else {})
        | ({"_unit": each.unit} if each.unit else {})
        | ({"_statistic": True} if each.is_statistic else {})
        for each in of.properties
    ]
    methods = [
        {
            "_name": each.name,
            "_desc": each.description,
            "_arguments": [
                _typed(one.name, one.type, one.description) | {"_dir": one.direction} for one in each.arguments
            ],
        }
        for each in of.methods
    ]
    return {"_schema_id": of.id.as_map(), "_properties": properties, "_methods": methods}


# ---- objects ----


class ManagedData:
    """An object of an agent. Its values are read and set like those of a dict, by any thread.

    Attributes:
        schema: its class.
        name: its name within the agent: PACKAGE:CLASS:KEY.
    """

    def __init__(
        self, agent: Agent, schema: Schema, key: str, values: Mapping[str, Any], methods: Mapping[str, Handler]
    ):
        self._agent, self.schema, self._values, self._methods = agent, schema, dict(values), dict(methods)
        self.name = f"{schema.id.package}:{schema.id.name}:{key}"
        self._created = self._updated = time.time_ns()
        self._deleted = 0

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set({name: value})

    def set(self, values: Mapping[str, Any]) -> None:
        """Set several values together. Raises KeyError: the class has no such property."""
        known = {each.name for each in self.schema.properties}
        if unknown := [name for name in values if name not in known]:
            raise KeyError(f"class {self.schema.id.name} has no property {unknown[0]}")
        with self._agent._lock:
            self._values |= values
            self._updated = time.time_ns()

    def add(self, name: str, delta: float) -> None:
        """Add to a number."""
        with self._agent._lock:
            self[name] = self._values[name] + delta

    def destroy(self) -> None:
        """Remove it: subscriptions indicate it once more, as deleted."""
        with self._agent._lock:
            self._deleted = time.time_ns()
            self._agent._objects.pop(self.name, None)

    def _as_map(self) -> dict[str, Any]:
        return {
            "_object_id": {"_object_name": self.name, "_agent_name": self._agent.name},
            "_schema_id": self.schema.id.as_map(),
            "_values": dict(self._values),
            "_create_ts": self._created,
            "_update_ts": self._updated,
            "_delete_ts": self._deleted,
        }


class _Subscription:
    """A subscription of a console.

    Attributes:
        request: whose reply-to gets the indications.
        query: what it is about.
        user: whose it is.
        interval, duration: in seconds.
        ends, next: when it ends and is looked at, by the monotonic clock.
        seen: the objects at the last look, by name, with the time of their last change.
    """

    def __init__(self, request: Message, query: dict[str, Any], user: str, interval: float, duration: float) -> None:
        self.request, self.query, self.user, self.interval, self.duration = request, query, user, interval, duration
        self.next = time.monotonic()
        self.ends = self.next + duration
        self.seen: dict[str, tuple[ManagedData, int]] | None = None


# ---- the agent ----


class Agent:
    """An agent of this program at one broker.

    Args:
        broker: the broker's URL.
        vendor, product: who has made the program, and what it is.
        instance: which one it is; should stay the same when it is started again. None for a new one.
        heartbeat: seconds between heartbeats.
        work: gets the requests about objects, which the program has elsewhere; None if the agent has them.
        options: of the connection; see `client.options`. With `reconnect`, it outlives a lost connection.

    Attributes:
        name: its name: VENDOR:PRODUCT:INSTANCE.
        error: why it has ended; None while it answers.

    Raises:
        UrlError: the URL or an option is invalid.
        ValueError: a name is not a word.
    """

    def __init__(
        self,
        broker: str = "localhost",
        *,
        vendor: str,
        product: str,
        instance: str | None = None,
        heartbeat: int = 30,
        work: WorkQueue | None = None,
        **options: Any,
    ) -> None:
        parts = vendor, product, instance or str(uuid.uuid4())
        if not all(re.fullmatch(r"[\w.-]+", part) for part in parts):
            raise ValueError("vendor, product and instance are words of letters, digits, dots, hyphens and underscores")
        self.name = ":".join(parts)
        self._parts, self._heartbeat, self._work, self._epoch = parts, heartbeat, work, int(time.time())
        self._suffix = ".".join(part.replace(".", "_") for part in parts)
        options.setdefault("max_message_bytes", 2 * MAX_REQUEST_BYTES)
        self._connection = Connection(broker, **options)
        self._lock = threading.RLock()
        self._schemas: dict[SchemaId, Schema] = {}
        self._objects: dict[str, ManagedData] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        self._senders: dict[tuple[str, bool], tuple[Session, Sender]] = {}
        self._next_heartbeat = 0.0
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    # ---- life ----

    def open(self) -> None:
        """Connect, and begin to answer.

        Raises:
            NoAgentError: the broker has no management by QMF version 2.
            MessagingError: the broker cannot be reached.
        """
        self._connection.open()
        try:
            self._session = self._connection.session()
            self._topic = self._session.sender(f"{TOPIC}; {{node: {{type: topic}}, link: {{reliability: unreliable}}}}")
            declare = f"{{arguments: {{qpid.policy_type: ring, qpid.max_size: {MAX_REQUEST_BYTES}}}}}"
            link = f"{{node: {{type: topic}}, link: {{reliability: unreliable, x-declare: {declare}}}}}"
            for address in (f"{DIRECT}/'{self.name}'", f"{TOPIC}/{LOCATE_KEY}"):
                self._session.receiver(f"{address}; {link}", capacity=_CAPACITY)
        except NotFound:
            self._connection.close(0)
            raise NoAgentError(f"the broker has no exchange {DIRECT}: QMF version 2 is switched off there") from None
        except BaseException:
            self._connection.close(0)
            raise
        self._thread = threading.Thread(target=self._serve, name="qmf-agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._connection.close(5)

    def __enter__(self) -> Agent:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- what it manages ----

    def register(self, schema: Schema) -> None:
        """Make a class known. `add` and `raise_event` do so, too."""
        with self._lock:
            self._schemas[schema.id] = schema

    def add(
        self, schema: Schema, key: str, values: Mapping[str, Any], methods: Mapping[str, Handler] | None = None
    ) -> ManagedData:
        """Add an object.

        Args:
            schema: its class.
            key: its name among the objects of the class.
            values: its properties and statistics.
            methods: what carries out its methods.

        Raises:
            ValueError: there is an object of that name, or the class has no such property or method.
        """
        made = self.data(schema, key, values, methods)
        with self._lock:
            if made.name in self._objects:
                raise ValueError(f"there is an object {made.name} already")
            self.register(schema)
            self._objects[made.name] = made
        return made

    def data(
        self, schema: Schema, key: str, values: Mapping[str, Any], methods: Mapping[str, Handler] | None = None
    ) -> ManagedData:
        """As `add`, but the agent does not keep the object: it is for the answer of a `WorkItem`.

        Raises:
            ValueError: the class has no such property or method.
        """
        extra = set(values) - {each.name for each in schema.properties}
        extra |= set(methods or ()) - {each.name for each in schema.methods}
        if extra:
            raise ValueError(f"class {schema.id.name} has no {min(extra)}")
        return ManagedData(self, schema, key, values, methods or {})

    def objects(self) -> list[ManagedData]:
        """The objects that it has."""
        with self._lock:
            return list(self._objects.values())

    def raise_event(self, schema: Schema, values: Mapping[str, Any], *, severity: int = 5) -> None:
        """Publish an event, of a severity from 0 (emergency) to 7 (debug). Raises MessagingError."""
        self.register(schema)
        package, word = schema.id.package.replace(".", "_"), SEVERITIES[severity]
        key = f"agent.ind.event.{package}.{schema.id.name}.{word}.{self._suffix}"
        event = {
            "_schema_id": schema.id.as_map(),
            "_values": dict(values),
            "_timestamp": time.time_ns(),
            "_severity": severity,
        }
        self._publish(key, "_data_indication", [event], kind="_event")

    # ---- the thread ----

    def _serve(self) -> None:
        try:
            while not self._is_over.is_set():
                with contextlib.suppress(Empty):
                    self._answer(self._session.next_receiver(_TICK).fetch(0))
                self._beat()
                self._indicate()
        except MessagingError as error:
            self.error = error
        except Exception as error:  # of a program's object, such as a value that has no form on the wire
            _logger.exception("The agent %s has ended: unhandled exception", self.name)
            self.error = error

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._heartbeat
            key = f"agent.ind.heartbeat.{self._suffix}"
            self._publish(key, "_agent_heartbeat_indication", {"_values": self._attributes()})

    def _attributes(self) -> dict[str, Any]:
        vendor, product, instance = self._parts
        return {
            "_vendor": vendor,
            "_product": product,
            "_instance": instance,
            "_name": self.name,
            "_timestamp": time.time_ns(),
            "_heartbeat_interval": self._heartbeat,
            "_epoch": self._epoch,
        }

    # ---- requests ----

    def _answer(self, request: Message) -> None:
        try:
            opcode, content = request.properties.get("qmf.opcode"), request.content
            self._carry_out(request, opcode, content)
        except (RefusedError, ContentError) as error:
            code = error.code if isinstance(error, RefusedError) else _INVALID
            values = {"error_code": code, "error_text": str(error)}
            with contextlib.suppress(ContentError):  # the request cannot be answered
                self._reply(request, "_exception", {"_values": values})

    def _carry_out(self, request: Message, opcode: object, content: Any) -> None:
        """Raises RefusedError."""
        if opcode == "_agent_locate_request":
            if not isinstance(content, list) or not content or _condition(content)(self._attributes()):
                self._reply(request, "_agent_locate_response", {"_values": self._attributes()})
            return
        if not isinstance(content, dict):
            raise RefusedError("the request is not a map", _INVALID)
        if self._work is not None and self._work._takes(self, request, opcode, content):
            return
        if opcode == "_query_request":
            self._query(request, content)
        elif opcode == "_method_request":
            self._reply(request, "_method_response", {"_arguments": self._call(request, content)})
        elif opcode == "_subscribe_request":
            self._reply(request, "_subscribe_response", self._subscribe(request, content))
        elif opcode == "_subscribe_refresh_indication":
            name, found = self._subscription(request, content)
            found.duration = _limited(content.get("_duration"), DURATIONS[0], found.duration, DURATIONS[2])
            found.ends = time.monotonic() + found.duration
            self._reply(request, "_subscribe_response", _granted(name, found))
        elif opcode == "_subscribe_cancel_indication":
            del self._subscriptions[self._subscription(request, content)[0]]
        else:
            raise RefusedError("the opcode is unknown", _INVALID)

    def _query(self, request: Message, query: dict[str, Any]) -> None:
        what = query.get("_what")
        if what in ("SCHEMA_ID", "SCHEMA"):
            with self._lock:
                wanted = [each for each in self._schemas.values() if _is_of(query.get("_schema_id"), each.id)]
            is_whole = what == "SCHEMA"
            found = [_described(each) if is_whole else each.id.as_map() for each in wanted]
            self._reply_in_portions(request, found, "_schema" if is_whole else "_schema_id")
            return
        described = [each for _, each in self._selected(query)]
        if what == "OBJECT_ID":
            self._reply_in_portions(request, [each["_object_id"] for each in described], "_object_id")
        else:
            self._reply_in_portions(request, described, "_data")

    def _selected(self, query: dict[str, Any]) -> Iterator[tuple[ManagedData, dict[str, Any]]]:
        """The objects of a query, and their descriptions. Raises RefusedError."""
        if query.get("_what") not in ("OBJECT", "OBJECT_ID"):
            raise RefusedError("a query is of OBJECT, OBJECT_ID, SCHEMA or SCHEMA_ID", _INVALID)
        identity, where = query.get("_object_id"), query.get("_where")
        fulfils = _condition(where) if where else None
        name = _text(identity.get("_object_name")) if isinstance(identity, dict) else None
        with self._lock:
            for each in list(self._objects.values()) if name is None else filter(None, [self._objects.get(name)]):
                if name is None and not _is_of(query.get("_schema_id"), each.schema.id):
                    continue
                described = each._as_map()
                of = each.schema.id
                names = {"_object_name": each.name, "_package_name": of.package, "_class_name": of.name}
                if fulfils is None or fulfils(described["_values"] | names):
                    yield each, described

    def _call(self, request: Message, content: dict[str, Any]) -> dict[str, Any]:
        """Call a method. Returns its results. Raises RefusedError."""
        identity, method = content.get("_object_id"), _text(content.get("_method_name"))
        name = _text(identity.get("_object_name")) if isinstance(identity, dict) else ""
        with self._lock:
            found = self._objects.get(name)
        if found is None:
            raise RefusedError(f"there is no object {name}", _UNKNOWN_OBJECT)
        handler = found._methods.get(method)
        if handler is None:
            raise RefusedError(f"class {found.schema.id.name} has no method {method}", _UNKNOWN_METHOD)
        arguments = content.get("_arguments") or {}
        (of,) = (each for each in found.schema.methods if each.name == method)
        known = {each.name for each in of.arguments if "I" in each.direction}
        if not isinstance(arguments, dict) or not arguments.keys() <= known:
            raise RefusedError(
                f"the method {method} takes the arguments {', '.join(sorted(known)) or '(none)'}", _INVALID
            )
        try:
            return dict(handler(found, arguments, _user(request)) or {})
        except RefusedError:
            raise
        except Exception as error:
            raise RefusedError(f"the method {method} has failed: {type(error).__name__}: {error}") from error

    # ---- subscriptions ----

    def _subscribe(self, request: Message, content: dict[str, Any]) -> dict[str, Any]:
        query = content.get("_query")
        if not isinstance(query, dict) or not request.reply_to or _amount(query) > MAX_QUERY_NAMES:
            raise RefusedError("a subscription needs a _query, of limited size, and a reply-to", _INVALID)
        for _ in self._selected(query):
            break
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise RefusedError("there are too many subscriptions")
        interval = _limited(content.get("_interval"), MIN_INTERVAL * 1000, self._heartbeat * 1000.0, 3.6e6) / 1000
        duration = _limited(content.get("_duration"), *DURATIONS)
        name = str(uuid.uuid4())
        self._subscriptions[name] = _Subscription(request, query, _user(request), interval, duration)
        return _granted(name, self._subscriptions[name])

    def _subscription(self, request: Message, content: dict[str, Any]) -> tuple[str, _Subscription]:
        name = _text(content.get("_subscription_id"))
        found = self._subscriptions.get(name)
        if found is None or found.user != _user(request):
            raise RefusedError(_NO_SUBSCRIPTION, _UNKNOWN_OBJECT)
        return name, found

    def _indicate(self) -> None:
        """Send to subscribers what has changed."""
        now = time.monotonic()
        if self._work is not None:
            self._work._expire(now)
        for name, each in list(self._subscriptions.items()):
            if each.ends <= now:
                del self._subscriptions[name]
            elif each.next <= now:
                each.next = now + each.interval
                with contextlib.suppress(ContentError):  # a value that no message can carry
                    self._indicate_to(each)

    def _indicate_to(self, of: _Subscription) -> None:
        selected = list(self._selected(of.query))
        before, is_whole = of.seen or {}, of.query.get("_what") == "OBJECT"
        seen = {each.name: (each, described["_update_ts"]) for each, described in selected}
        changed = [described for each, described in selected if before.get(each.name) != seen[each.name]]
        if not is_whole:
            changed = [each["_object_id"] for each in changed if each["_object_id"]["_object_name"] not in before]
        else:
            changed += [each._as_map() for each, _ in before.values() if each.name not in seen and each._deleted]
        if changed or of.seen is None:
            kind = "_data" if is_whole else "_object_id"
            for portion in _portions(changed):
                self._reply(of.request, "_data_indication", portion, kind=kind)
        of.seen = seen

    # ---- messages ----

    def _reply_in_portions(self, request: Message, found: list[Any], kind: str) -> None:
        portions = _portions(found)
        for number, portion in enumerate(portions, 1):
            self._reply(request, "_query_response", portion, kind=kind, is_partial=number < len(portions))

    def _publish(self, key: str, opcode: str, content: Any, *, kind: str = "") -> None:
        """Send something that nobody has asked for. Raises MessagingError."""
        headers = self._headers("indication", opcode, kind)
        with self._lock:
            self._topic.send(Message(content, subject=key, properties=headers), sync=False)

    def _reply(self, request: Message, opcode: str, content: Any, *, kind: str = "", is_partial: bool = False) -> None:
        """Answer a request, if it has an address for that. Raises ContentError: a value cannot be sent."""
        is_response = opcode not in ("_exception", "_data_indication")
        headers = self._headers("response" if is_response else "indication", opcode, kind)
        if is_partial:
            headers["partial"] = True
        try:
            address = parse_address(request.reply_to or "")
        except AddressError:
            return
        message = Message(content, subject=address.subject, correlation_id=request.correlation_id, properties=headers)
        key = address.name, address.subject is not None
        with self._lock:
            for _ in range(2):
                try:
                    self._sender(key).send(message, sync=False)
                except (LinkError, AddressError, ValueError):
                    return  # what it names is gone: nobody waits there
                except SessionError:  # an earlier reply came to nothing, or was refused
                    self._forget(key)
                else:
                    return

    def _headers(self, method: str, opcode: str, kind: str) -> dict[str, Any]:
        headers = {"method": method, "qmf.opcode": opcode, "qmf.agent": self.name, APP_ID: "qmf2"}
        return headers | ({"qmf.content": kind} if kind else {})

    def _sender(self, key: tuple[str, bool]) -> Sender:
        """A sender of replies to a queue or an exchange. Each has a session of its own, which a reply may end."""
        name, is_exchange = key
        found = self._senders.pop(key, None)
        if found is None:
            if len(self._senders) >= _MAX_SENDERS:
                self._forget(next(iter(self._senders)))
            options = {"node": {"type": "topic" if is_exchange else "queue"}, "link": {"reliability": "unreliable"}}
            session = self._connection.session()
            try:
                found = session, session.sender(queue_address(name, options))
            except BaseException:
                with contextlib.suppress(MessagingError):
                    session.close()
                raise
        self._senders[key] = found
        return found[1]

    def _forget(self, key: tuple[str, bool]) -> None:
        if key in self._senders:
            with contextlib.suppress(MessagingError):
                self._senders.pop(key)[0].close()


# ---- objects outside ----


class WorkKind(Enum):
    """What a console asks for."""

    METHOD_CALL = "call"
    QUERY = "query"
    SUBSCRIBE = "subscribe"
    RESUBSCRIBE = "resubscribe"
    UNSUBSCRIBE = "unsubscribe"


class ObjectQuery(NamedTuple):
    """Which objects a console asks for.

    Attributes:
        package, class_name: of their class; empty for any.
        object_name: of the only one; None for all.
        asked: the query as it came.
    """

    package: str
    class_name: str
    object_name: str | None
    asked: Mapping[str, Any]

    def selects(self, one: ManagedData) -> bool:
        """Whether an object is one of them. Raises RefusedError: the condition is not valid."""
        is_named = _is_of(self.asked.get("_schema_id"), one.schema.id)
        if self.object_name is not None:
            is_named = one.name == self.object_name
        return is_named and _fulfils(self.asked, one)


class WorkItem:
    """Something that a console asks for, to be answered once: by `respond`, `complete`, `grant` or `refuse`.

    Attributes:
        kind: what it is; UNSUBSCRIBE needs no answer.
        user: who asks, as the broker has checked; empty if unknown.
        object_name, method, arguments: of METHOD_CALL.
        query: of QUERY and SUBSCRIBE.
        interval, duration: seconds that the console asks for, of SUBSCRIBE; of RESUBSCRIBE only the latter.
        subscription: of RESUBSCRIBE and UNSUBSCRIBE.
        is_answered: whether it was answered.
    """

    def __init__(
        self,
        kind: WorkKind,
        agent: Agent,
        request: Message | None,
        *,
        object_name: str = "",
        method: str = "",
        arguments: Mapping[str, Any] | None = None,
        query: ObjectQuery | None = None,
        interval: float = 0.0,
        duration: float = 0.0,
        subscription: WorkSubscription | None = None,
    ) -> None:
        self.kind, self.object_name, self.method, self.query = kind, object_name, method, query
        self.arguments: Mapping[str, Any] = arguments or {}
        self.interval, self.duration, self.subscription = interval, duration, subscription
        self.user = (subscription.user if subscription is not None else "") if request is None else _user(request)
        self.is_answered = request is None
        self._agent, self._request, self._found = agent, request, list[Any]()
        self._size = 0 if request is None else _size(request.content)

    def respond(self, results: Mapping[str, Any] | None = None) -> None:
        """The method is done. Raises ValueError: there is nothing to respond to."""
        self._answer_as(WorkKind.METHOD_CALL, "_method_response", {"_arguments": dict(results or {})})

    def add(self, objects: Iterable[ManagedData]) -> None:
        """Send objects that the query selects; others may follow. Raises ValueError as `respond`."""
        self._check(WorkKind.QUERY)
        self._found += _shown_as(self.query, objects)
        while len(self._found) > _PORTION:
            portion, self._found = self._found[:_PORTION], self._found[_PORTION:]
            self._send("_query_response", portion, kind=self._content, is_partial=True)

    def complete(self) -> None:
        """There are no more. Raises ValueError as `respond`."""
        self._answer_as(WorkKind.QUERY, "_query_response", self._found, content_kind=self._content)

    def grant(self, *, interval: float | None = None, duration: float | None = None) -> WorkSubscription:
        """Grant a subscription, or its refresh.

        Args:
            interval: seconds between two indications; None for that asked for. It is limited.
            duration: likewise, seconds until it is over.

        Returns:
            The subscription, to which the program indicates objects, in each interval until it is over.

        Raises:
            RefusedError: there are too many, or it has ended meanwhile; the console was told so.
            ValueError: as `respond`.
        """
        if self.kind is WorkKind.RESUBSCRIBE and self.subscription is not None:
            self._check(self.kind)
            granted = self.subscription
        else:
            self._check(WorkKind.SUBSCRIBE)
            assert self._request is not None
            assert self.query is not None
            granted = WorkSubscription(self._agent, self._request, self.query, self.user)
        granted.interval = _limited(interval or self.interval or granted.interval, MIN_INTERVAL, 30, 3600)
        granted.duration = _limited(duration or self.duration or granted.duration, *DURATIONS)
        granted.ends = time.monotonic() + granted.duration
        work = self._agent._work
        assert work is not None
        try:
            work._keep(granted)
        except RefusedError as error:
            self.refuse(str(error), error.code)
            raise
        values = {
            "_subscription_id": granted.name,
            "_duration": round(granted.duration),
            "_interval": round(granted.interval * 1000),
        }
        self._answer_as(self.kind, "_subscribe_response", values)
        return granted

    def refuse(self, text: str, code: int = _EXCEPTION) -> None:
        """Refuse it, with a text and a code for the console. Raises ValueError as `respond`."""
        self._answer_as(self.kind, "_exception", {"_values": {"error_code": code, "error_text": text}})

    @property
    def _content(self) -> str:
        assert self.query is not None
        return "_object_id" if self.query.asked.get("_what") == "OBJECT_ID" else "_data"

    def _check(self, kind: WorkKind) -> None:
        if self.kind is not kind:
            raise ValueError(f"the item is a {self.kind.value}, not a {kind.value}")
        if self.is_answered:
            raise ValueError(f"the {self.kind.value} is answered already")

    def _answer_as(self, kind: WorkKind, opcode: str, content: Any, *, content_kind: str = "") -> None:
        self._check(kind)
        self._send(opcode, content, kind=content_kind)
        self.is_answered = True

    def _send(self, opcode: str, content: Any, *, kind: str = "", is_partial: bool = False) -> None:
        assert self._request is not None
        self._agent._reply(self._request, opcode, content, kind=kind, is_partial=is_partial)


class WorkSubscription:
    """A subscription of a console to objects that the program has.

    Attributes:
        name: its id.
        query: what it is about.
        user: whose it is.
        interval, duration: seconds, as granted.
        ends: when it is over, by the monotonic clock.
        is_over: whether the console has cancelled it, or its time is over.
    """

    def __init__(self, agent: Agent, request: Message, query: ObjectQuery, user: str) -> None:
        self.name, self.query, self.user = str(uuid.uuid4()), query, user
        self.interval = self.duration = self.ends = 0.0
        self.is_over = False
        self._agent, self._request = agent, request

    def indicate(self, objects: Iterable[ManagedData]) -> None:
        """Send the console objects that are new, have changed, or are destroyed."""
        kind = "_object_id" if self.query.asked.get("_what") == "OBJECT_ID" else "_data"
        if not self.is_over:
            for portion in _portions(_shown_as(self.query, objects)):
                self._agent._reply(self._request, "_data_indication", portion, kind=kind)


class WorkQueue:
    """What consoles ask for, until the program takes it.

    Args:
        notify: called by the agent's thread when the queue has an item and had none; it must return at once, and may
            not call the agent. If it raises an exception, that is logged (`qstore.client`), and the item stays.
    """

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self._notify = notify
        self._items: queue.Queue[WorkItem] = queue.Queue(MAX_WORK)
        self._subscriptions: dict[str, WorkSubscription] = {}
        self._lock = threading.Lock()
        self._bytes = 0  # of the items

    def __len__(self) -> int:
        """Number of items that wait."""
        return self._items.qsize()

    def next(self, timeout: float | None = None) -> WorkItem | None:
        """Take the oldest item; wait for one for `timeout` seconds (None: for ever). None if there is none."""
        try:
            item = self._items.get(timeout=timeout) if timeout != 0 else self._items.get_nowait()
        except queue.Empty:
            return None
        with self._lock:
            self._bytes -= item._size
        return item

    def _takes(self, agent: Agent, request: Message, opcode: object, content: dict[str, Any]) -> bool:
        """Make a request an item, unless the agent can answer it. Raises RefusedError."""
        identity = content.get("_object_id")
        name = _text(identity.get("_object_name")) if isinstance(identity, dict) else ""
        item: WorkItem
        if opcode == "_query_request" and content.get("_what") in ("OBJECT", "OBJECT_ID"):
            item = WorkItem(WorkKind.QUERY, agent, request, query=_object_query(content))
        elif opcode == "_method_request":
            arguments = content.get("_arguments") or {}
            if not isinstance(arguments, dict):
                raise RefusedError("the arguments are not a map", _INVALID)
            method = _text(content.get("_method_name"))
            item = WorkItem(WorkKind.METHOD_CALL, agent, request, object_name=name, method=method, arguments=arguments)
        elif opcode == "_subscribe_request":
            query = content.get("_query")
            if not isinstance(query, dict) or not request.reply_to or _amount(query) > MAX_QUERY_NAMES:
                raise RefusedError("a subscription needs a _query, of limited size, and a reply-to", _INVALID)
            interval = _limited(content.get("_interval"), MIN_INTERVAL * 1000, 30_000, 3.6e6) / 1000
            duration = _limited(content.get("_duration"), *DURATIONS)
            item = WorkItem(
                WorkKind.SUBSCRIBE, agent, request,
                query=_object_query(query), interval=interval, duration=duration,
            )  # fmt: skip
        elif opcode == "_subscribe_refresh_indication":
            found = self._subscription(request, content)
            duration = _limited(content.get("_duration"), DURATIONS[0], found.duration, DURATIONS[2])
            item = WorkItem(WorkKind.RESUBSCRIBE, agent, request, subscription=found, duration=duration)
        elif opcode == "_subscribe_cancel_indication":
            self._end(self._subscription(request, content))
            return True
        else:
            return False
        self._put(item)
        return True

    def _put(self, item: WorkItem) -> None:
        with self._lock:
            if self._items.full() or self._bytes + item._size > MAX_WORK_BYTES:
                raise RefusedError("too many requests wait for the program")
            self._bytes += item._size
            self._items.put_nowait(item)
        # Looked at afterwards: meanwhile the program may have taken all others. Only this thread adds any.
        if self._notify is not None and self._items.qsize() <= 1:
            try:
                self._notify()
            except Exception:
                _logger.exception("The program's notify() has failed; its items wait in the queue")

    def _subscription(self, request: Message, content: dict[str, Any]) -> WorkSubscription:
        found = self._subscriptions.get(_text(content.get("_subscription_id")))
        if found is None or found.user != _user(request):
            raise RefusedError(_NO_SUBSCRIPTION, _UNKNOWN_OBJECT)
        return found

    def _keep(self, of: WorkSubscription) -> None:
        """Keep a subscription that is granted. Raises RefusedError."""
        with self._lock:
            if of.is_over:
                raise RefusedError(_NO_SUBSCRIPTION, _UNKNOWN_OBJECT)
            if of.name not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
                raise RefusedError("there are too many subscriptions")
            self._subscriptions[of.name] = of

    def _end(self, of: WorkSubscription) -> None:
        """End a subscription; the program is told, if it takes items."""
        of.is_over = True
        with self._lock:
            self._subscriptions.pop(of.name, None)
        with contextlib.suppress(RefusedError):
            self._put(WorkItem(WorkKind.UNSUBSCRIBE, of._agent, None, subscription=of))

    def _expire(self, now: float) -> None:
        for each in list(self._subscriptions.values()):
            if each.ends <= now:
                self._end(each)


def _object_query(asked: dict[str, Any]) -> ObjectQuery:
    """Read a query for objects. Raises RefusedError."""
    identity, of = asked.get("_object_id"), asked.get("_schema_id")
    name = _text(identity.get("_object_name")) if isinstance(identity, dict) else None
    of = of if isinstance(of, dict) else {}
    if asked.get("_where"):
        _condition(asked["_where"])
    return ObjectQuery(_text(of.get("_package_name")), _text(of.get("_class_name")), name, asked)


def _fulfils(query: Mapping[str, Any], one: ManagedData) -> bool:
    """Whether an object fulfils the condition of a query, if it has one. Raises RefusedError."""
    where, of = query.get("_where"), one.schema.id
    names = {"_object_name": one.name, "_package_name": of.package, "_class_name": of.name}
    return not where or bool(_condition(where)(one._as_map()["_values"] | names))


def _shown_as(query: ObjectQuery | None, objects: Iterable[ManagedData]) -> list[Any]:
    """Objects as the query wants them: whole, or their names."""
    described = [each._as_map() for each in objects]
    is_named = query is not None and query.asked.get("_what") == "OBJECT_ID"
    return [each["_object_id"] for each in described] if is_named else described


# ---- reading requests ----


def _portions(found: Sequence[Any]) -> list[list[Any]]:
    return [list(found[at : at + _PORTION]) for at in range(0, len(found), _PORTION)] or [[]]


def _condition(where: object) -> Callable[[Mapping[str, Any]], Any]:
    try:
        return parse_predicate(where if isinstance(where, list) else [where])
    except PredicateError as error:
        raise RefusedError(f"the condition is invalid: {error}", _INVALID) from None


def _is_of(wanted: object, of: SchemaId) -> bool:
    """Whether a class is the one in a query; any, if the query names none."""
    if not isinstance(wanted, dict):
        return True
    package, name = _text(wanted.get("_package_name")), _text(wanted.get("_class_name"))
    return (
        package in ("", of.package) and name.lower() in ("", of.name.lower()) and wanted.get("_hash") in (None, of.hash)
    )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _user(request: Message) -> str:
    return _text(request.user_id)


def _amount(value: object) -> int:
    """Names and values in a map or list."""
    if isinstance(value, dict):
        return sum(1 + _amount(each) for each in value.values())
    return sum(map(_amount, value)) if isinstance(value, list) else 1


def _size(value: object) -> int:
    """About how many bytes a request takes in memory."""
    if isinstance(value, dict):
        return sum(_size(name) + _size(each) for name, each in value.items())
    return _VALUE_BYTES + (sum(map(_size, value)) if isinstance(value, list) else _length(value))


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0


def _limited(value: object, low: float, usual: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value or value != value:
        value = usual
    return min(max(value, low), high)


def _granted(name: str, of: _Subscription) -> dict[str, Any]:
    return {"_subscription_id": name, "_duration": round(of.duration), "_interval": round(of.interval * 1000)}
