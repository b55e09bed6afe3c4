"""QMF version 1: requests are answered, and unsolicited publications encoded, in binary form.

    request   replies
    --------  ---------------------------------------------------------------------
    B         b: the broker's id
    P         p for each package; z
    Q         q for each class of a package; z
    S         s: the schema; z if there is no such class
    G         g for each object; z
    M         m: the result
    A         a: the banks of an agent (`remote_agents`)
    p, q, s   from an attached agent: its packages, its classes, a schema
    others    z: not implemented

A body may contain several requests. Whatever follows a request that cannot be read is ignored. Replies about the schema
are messages of their own, since old consoles ignore anything after an event's.

    key on qpid.management
    -------------------------------     ------------------------------------------
    console.obj.1.0.PACKAGE.CLASS       objects that have changed
    console.event.1.0.PACKAGE.EVENT     an event
    console.heartbeat.1.0               a heartbeat
    schema.package                      new packages and classes of attached agents
    agent.1.BANK                        to an attached agent

Nothing is encoded for which no queue is bound. Several messages go into one AMQP message, up to `MAX_BYTES`.

`qmf.console` takes the header `qmf.agent` for the name of an agent of version 2, and drops events and updates that have
it. That is right if the agent speaks version 2 as well: the console gets them that way, and would see everything twice.
If it does not (`mgmt-qmf2=no`), the messages have no application headers, as those of qpidd.

An object is its values in the order of the schema, without names. It begins with the presence of its optional
properties: a bit for each, the first one the lowest, in as many bytes as are needed; absent ones are left out. A value
that a class must have and an object lacks is the empty one of its type.

The schema of a class is maps in binary form; consoles of version 2 request it in this form as well:

    class    u16 properties | u16 statistics | u16 methods | a map for each property and statistic | for each method a
             map, and one for each of its arguments
    event    u16 arguments | a map for each argument

    map      of                      keys
    -------  ----------------------  ------------------------------------------------------------
             property                name, type, access, index, optional; unit, desc, refPackage, refClass
             statistic               name, type; unit, desc
             method                  name, argCount; desc
             argument                name, type, and of a method dir (I, O, IO); desc

    access   1 read, set when created; 2 read and written; 3 read

AM1, the form of Qpid M3, is the same but for the layout of messages (`formats.qmf.v1`) and:

    key on qpid.management, with the broker's id
    -----------------------------------------------     ---------------------------------------------------------
    mgmt.ID.prop.PACKAGE.CLASS, .stat.PACKAGE.CLASS     properties and statistics of objects that have changed
    mgmt.ID.schema.PACKAGE.CLASS                        the schema of each class, soon after a console has bound a queue
    mgmt.ID.heartbeat                                   a heartbeat
    agent.BANK                                          to an agent; those of banks 0 to 9 are requests to the broker

The broker's package is "qpid" there, and dots in other packages are written `_` in keys. AM1 has no message for
events, and one message in a body. Properties, arguments and results of types that it does not have (list, object,
array) are left out. Classes of attached agents are seen in the form in which these have described them.

Sources: Qpid wiki, "QMF Protocol" (seed 004, lines 19553-20121); Qpid management, design and protocol (seed 001, lines
105-160, 275-359, 371-901).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.classes import (
    CLASSES,
    ManagedObject,
    all_of,
    call,
    check_query,
    classes_named,
    prepare,
)
from qstore.broker.management.events import EVENT_CLASSES
from qstore.broker.management.outbox import VERSION_1
from qstore.broker.management.remote_agents import ClassKey, agent_key
from qstore.broker.management.request import NOT_IMPLEMENTED, OK, UNKNOWN_OBJECT, UnknownObjectError, status_of, text_of
from qstore.broker.management.schema import PACKAGE, ManagedClass, Reference
from qstore.broker.model.errors import InvalidArgumentError, ModelError
from qstore.broker.model.message import NewMessage
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.qmf.v1 import (
    EMPTY,
    EVENT,
    MAX_CODE_OF_AM1,
    QMF_TYPES,
    TABLE,
    Dialect,
    Message,
    ObjectId,
    QmfError,
    decode,
    decode_message,
    encode,
    encode_message,
)
from qstore.formats.values import EMPTY_MAP, TYPES, TypedValue, typed_map, typed_value

if TYPE_CHECKING:
    from qstore.broker.management.events import EventClass, Timed
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.publisher import Known, Registry
    from qstore.broker.management.remote_agents import RemoteAgent, RemoteAgents
    from qstore.broker.management.request import Request
    from qstore.broker.management.schema import Argument, Method, Property, Statistic
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.events import Event

MAX_BYTES: Final = 60_000
_MAX_IN_BODY: Final = 100
_SCHEMA_KEY: Final = "schema.package"
_BANKS: Final = "1.0"
_PACKAGE_OF_AM1: Final = "qpid"
OWN_BANKS_OF_AM1: Final = range(10)
"""The banks of requests to the broker itself."""
_TEXTS: Final = {OK: "OK", UNKNOWN_OBJECT: "UnknownObject", NOT_IMPLEMENTED: "NotImplemented"}


class Qmf1:
    """Version 1, as one broker speaks it, in one of its forms.

    Args:
        managed: the broker.
        registry: its known objects.
        outbox: puts messages on queues.
        agents: the attached agents.
        name: the agent's name in version 2; empty if it does not speak that.
        dialect: the form.
    """

    def __init__(
        self,
        managed: ManagedBroker,
        registry: Registry,
        outbox: Outbox,
        agents: RemoteAgents,
        name: str,
        dialect: Dialect = Dialect.AM2,
    ) -> None:
        self._managed, self._registry, self._outbox, self._agents = managed, registry, outbox, agents
        self._dialect, self._is_am1 = dialect, dialect is Dialect.AM1
        self._max_bytes = 0 if self._is_am1 else MAX_BYTES
        self._mgmt = f"mgmt.{managed.identity.instance}"  # the beginning of the keys of AM1
        self._headers = typed_map({"qmf.agent": name}) if name else EMPTY_MAP

    # ---- requests ----

    async def carry_out(self, body: bytes, request: Request) -> None:
        """Carry out the requests of a body, and answer them."""
        offset = 0
        for _ in range(_MAX_IN_BODY):
            if offset >= len(body):
                return
            try:
                message = decode_message(body, offset, self._dialect)
                offset = await self._carry_out_one(message, body, request)
            except QmfError:
                return

    async def _carry_out_one(self, message: Message, body: bytes, request: Request) -> int:
        """Carry out one request. Returns where it ends."""
        opcode, sequence, fields = message.opcode, message.sequence, message.fields
        if opcode == "M":
            return await self._call(message, body, request)
        if opcode == "G":
            await self._get(sequence, fields, request)
        elif opcode == "s":
            self._take_schema(sequence, fields, body[message.end :], request)
            return len(body)
        elif opcode in _SIMPLE:
            self._reply(request, _SIMPLE[opcode](self, sequence, fields, request))
        else:
            self._reply(request, [self._end(sequence, NOT_IMPLEMENTED)])
            return len(body)
        return message.end

    def _encode(self, opcode: str, sequence: int, *values: Any, rest: bytes = b"") -> bytes:
        """The bytes of a message. Raises QmfError."""
        return encode_message(opcode, sequence, *values, rest=rest, dialect=self._dialect)

    def _end(self, sequence: int, status: int, text: str = "") -> bytes:
        return self._encode("z", sequence, status, text or _TEXTS.get(status, "Error"))

    def _class(self, opcode: str, sequence: int, kind: int, key: ClassKey, rest: bytes = b"") -> bytes:
        """A message about a class."""
        return self._encode(opcode, sequence, *(() if self._is_am1 else (kind,)), *key, rest=rest)

    def _package_of(self, of: ManagedClass | EventClass) -> str:
        """The name of the package of a class."""
        return _PACKAGE_OF_AM1 if self._is_am1 and of.package == PACKAGE else of.package

    def _key_of(self, of: ManagedClass | EventClass) -> ClassKey:
        return self._package_of(of), of.name, of.hash.bytes

    def _event_classes(self) -> Sequence[EventClass]:
        return () if self._is_am1 else EVENT_CLASSES

    def refuse(self, body: bytes, request: Request, error: ModelError) -> None:
        """Answer the first request of a body that cannot be carried out."""
        try:
            message = decode_message(body, dialect=self._dialect)
        except QmfError:
            return
        status, text = status_of(error), str(error)
        opcode = "m" if message.opcode == "M" else "z"
        self._reply(request, [self._encode(opcode, message.sequence, status, text)])

    def _reply(self, request: Request, messages: Iterable[bytes]) -> None:
        """Send replies, unless the request has no reply address."""
        if request.reply_to is not None:
            for content in messages:
                self._send(request.reply_to.exchange, request.reply_to.routing_key, content, request.caller)

    # ---- requests for the schema ----

    def _broker(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        yield self._encode("b", sequence, self._managed.identity.instance)

    def _packages(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        classes: list[ManagedClass | EventClass] = [*CLASSES, *self._event_classes()]
        own = map(self._package_of, classes)
        for package in dict.fromkeys((*own, *self._agents.packages(self._dialect))):
            yield self._encode("p", sequence, package)
        yield self._end(sequence, OK)

    def _classes(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        package = fields["package"]
        own: list[ManagedClass | EventClass] = [*CLASSES, *self._event_classes()]
        for of in own:
            if self._package_of(of) == package:
                yield self._class("q", sequence, TABLE if isinstance(of, ManagedClass) else EVENT, self._key_of(of))
        for key, each in self._agents.classes(package, self._dialect):
            yield self._class("q", sequence, each.kind, key)
        yield self._end(sequence, OK)

    def _schema(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        key = fields["package"], fields["class"], fields["hash"]
        for of in CLASSES:
            if self._key_of(of) == key:
                yield self._class("s", sequence, TABLE, key, _class_schema(of, self._dialect))
                return
        for event in self._event_classes():
            if self._key_of(event) == key:
                yield self._class("s", sequence, EVENT, key, _event_schema(event))
                return
        remote = self._agents.find(key, self._dialect)
        if remote is None:
            yield self._end(sequence, UNKNOWN_OBJECT)
        else:
            yield self._class("s", sequence, remote.kind, key, remote.schema or b"")

    # ---- requests for objects ----

    async def _get(self, sequence: int, fields: dict[str, Any], request: Request) -> None:
        query = {name: typed.value for name, typed in fields["query"].entries}
        try:
            classes, found = self._asked_for(query, request)
        except ModelError as error:
            self._reply(request, [self._end(sequence, status_of(error), text_of(error))])
            return
        batch, slices = _Batch(self._max_bytes), self._managed.slices
        await prepare(self._managed, classes)
        for each in found:
            values, known = each.of.values(each.target), self._registry.known(each)
            full = batch.add(self._object("g", sequence, each.of, known, values, deleted=0.0))
            if full or slices.is_over:
                self._reply(request, [full or batch.take()])
                await slices.next()
        full = batch.add(self._end(sequence, OK))
        self._reply(request, [each for each in (full, batch.take()) if each])

    def _asked_for(
        self, query: dict[str, Any], request: Request
    ) -> tuple[Iterable[ManagedClass], Iterable[ManagedObject]]:
        class_name, package, identity = _text(query, "_class"), _text(query, "_package"), query.get("_objectid")
        if self._is_am1:
            if query.get("_agent") not in (None, self._managed.identity.instance):
                raise InvalidArgumentError("the query is for another agent than this broker")
            package, identity = PACKAGE if package in ("", _PACKAGE_OF_AM1) else package, None
        check_query(self._managed, request.caller, "", class_name)
        if identity is not None:
            object_id = identity if isinstance(identity, ObjectId) else _object_id(identity)
            found = None if object_id is None else self._registry.find(object_id)
            if found is not None and not found.of.is_seen_by(self._managed, request.caller, found.target):
                found = None
            return ((), ()) if found is None else ((found.of,), (found,))
        if not class_name:
            raise InvalidArgumentError("the query has neither _class nor _objectid")
        classes = classes_named(package or None, class_name)
        return classes, all_of(self._managed, classes, request.caller)

    def _object(
        self,
        opcode: str,
        sequence: int,
        of: ManagedClass,
        known: Known,
        values: tuple[Sequence[Any], Sequence[Any]],
        *,
        deleted: float,
    ) -> bytes:
        """The message of an object: its properties (c), its statistics (i), or both (g).

        Raises:
            QmfError: a value cannot be encoded.
        """
        id_of, parts = self._registry.id_of, []
        if opcode != "i":
            rows = [(row, value) for row, value in zip(of.properties, values[0], strict=True) if self._has(row.type)]
            parts.append(_presence([value is not None for row, value in rows if row.is_optional]))
            for row, value in rows:
                if value is not None or not row.is_optional:
                    parts.append(self._value(row.type, value, id_of))
        if opcode != "c":
            parts += [
                self._value(counted.type, value, id_of)
                for counted, value in zip(of.statistics, values[1], strict=True)
                if self._has(counted.type)
            ]
        times = _ns(self._managed.broker.clock()), _ns(known.created), _ns(deleted)
        return self._encode(opcode, sequence, *self._key_of(of), *times, known.id, rest=b"".join(parts))

    def _has(self, kind: str) -> bool:
        return _has_type(kind, self._dialect)

    def _value(self, kind: str, value: Any, id_of: Callable[[str], ObjectId]) -> bytes:
        """The bytes of a value. Raises QmfError: it cannot be encoded."""
        if value is None:
            value = EMPTY[kind]
        elif isinstance(value, Reference):
            value = id_of(value.name)
        return encode("objId64" if kind == "objId" and self._is_am1 else kind, value)

    # ---- method calls ----

    async def _call(self, message: Message, body: bytes, request: Request) -> int:
        """Call a method. Returns where the request ends: at the end of the body, if there is no such method."""
        sequence, fields, end = message.sequence, message.fields, len(body)
        try:
            found = self._registry.find(fields["object"])
            if found is None or not found.of.is_seen_by(self._managed, request.caller, found.target):
                raise UnknownObjectError("UnknownObject")
            method = found.of.methods.get(fields["method"])
            arguments: dict[str, Any] = {}
            if method is not None:
                arguments, end = self._arguments(method, body, message.end)
            results = await call(self._managed, found, fields["method"], arguments, request.caller)
            rest = b"" if method is None else _results(filter(self._carries, method.arguments), results)
            reply = self._encode("m", sequence, OK, _TEXTS[OK], rest=rest)
        except ModelError as error:
            reply = self._encode("m", sequence, status_of(error), text_of(error))
        self._reply(request, [reply])
        return end

    def _carries(self, argument: Argument) -> bool:
        return self._has(argument.type)

    def _arguments(self, method: Method, body: bytes, offset: int) -> tuple[dict[str, Any], int]:
        """The arguments of a call, and where they end. Raises InvalidArgumentError."""
        arguments: dict[str, Any] = {}
        for each in filter(self._carries, method.arguments):
            if "I" in each.direction:
                try:
                    arguments[each.name], offset = decode(each.type, body, offset)
                except QmfError as error:
                    raise InvalidArgumentError(f"the argument {each.name} cannot be read: {error}") from None
        return arguments, offset

    # ---- requests of attached agents ----

    def _attach(self, sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        if request.caller.is_closed:
            return
        peer = request.caller.remote_host
        agent = self._agents.attach(peer, fields["label"], fields["system"], fields["agent_bank"], self._dialect)
        if agent is not None:
            yield self._encode("a", sequence, agent.broker_bank, agent.agent_bank)

    def _take_package(self, _sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        """An agent announces a package, which means nothing without its classes."""
        return iter(())

    def _take_class(self, _sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        agent = self._agents.of_peer(request.caller.remote_host)
        key, kind = (fields["package"], fields["class"], fields["hash"]), fields.get("kind", TABLE)
        is_own = any(key[0] in (each.package, self._package_of(each)) for each in CLASSES)
        if agent is None or kind not in (TABLE, EVENT) or is_own:
            return
        number = self._agents.announced(agent, kind, key)
        if number is not None:
            yield self._encode("S", number, *key)

    def _take_schema(self, sequence: int, fields: dict[str, Any], schema: bytes, request: Request) -> None:
        """An agent describes a class: it is announced to consoles if its user may publish to them."""
        key = fields["package"], fields["class"], fields["hash"]
        routing_key = f"{self._mgmt}.schema.{_part(key[0])}.{key[1]}" if self._is_am1 else _SCHEMA_KEY
        self._managed.broker.authorization.check_publish(request.caller, VERSION_1, routing_key)
        agent, kind = self._agents.of_peer(request.caller.remote_host), fields.get("kind", TABLE)
        if agent is not None and self._agents.described(agent, sequence, key, schema) and self._is_heard(routing_key):
            batch = _Batch(self._max_bytes)
            announced = [batch.add(self._encode("p", 0, key[0])), batch.add(self._class("q", 0, kind, key))]
            for content in filter(None, (*announced, batch.take())):
                self._send(VERSION_1, routing_key, content)

    # ---- unsolicited publications ----

    def publish_events(self, of: EventClass, events: Iterable[Timed]) -> None:
        """Publish events of a class, if a queue is bound for them."""
        key, batch = f"console.event.{_BANKS}.{of.package}.{of.name}", _Batch(self._max_bytes)
        if self._is_am1 or not self._is_heard(key):
            return
        for event, raised in events:
            with suppress(QmfError):
                if full := batch.add(_event(of, event, raised)):
                    self._send(VERSION_1, key, full)
        if rest := batch.take():
            self._send(VERSION_1, key, rest)

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if a queue is bound for it."""
        key = f"{self._mgmt}.heartbeat" if self._is_am1 else f"console.heartbeat.{_BANKS}"
        if self._is_heard(key):
            self._send(VERSION_1, key, self._encode("h", 0, _ns(now)))

    async def publish_schemas(self) -> None:
        """Publish the schemas of all classes for which a queue is bound, as AM1 has it."""
        for of in CLASSES:
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            key = self._mgmt_key("schema", of)
            if self._is_heard(key):
                schema = _class_schema(of, self._dialect)
                self._send(VERSION_1, key, self._class("s", 0, TABLE, self._key_of(of), schema))

    def _mgmt_key(self, kind: str, of: ManagedClass) -> str:
        return f"{self._mgmt}.{kind}.{_part(self._package_of(of))}.{of.name}"

    def console_added(self, agent: RemoteAgent) -> None:
        """Ask an attached agent to publish everything, since a console has come."""
        self._send(VERSION_1, agent_key(agent), self._encode("x", 0))

    def changes_of(self, of: ManagedClass) -> Changes1 | None:
        """Where the changed objects of a class go; None if no queue is bound for them."""
        if self._is_am1:
            keys = {"c": self._mgmt_key("prop", of), "i": self._mgmt_key("stat", of)}
        else:
            keys = dict.fromkeys("ci", f"console.obj.{_BANKS}.{of.package}.{of.name}")
        keys = {opcode: key for opcode, key in keys.items() if self._is_heard(key)}
        return Changes1(self, keys, of) if keys else None

    def _is_heard(self, key: str) -> bool:
        return self._outbox.is_heard(VERSION_1, key)

    def _send(self, exchange: str, key: str, content: bytes, reply_for: Caller | None = None) -> None:
        new = NewMessage(key, self._headers, content=content, exchange=exchange)
        self._outbox.send(new, reply_for=reply_for)


_SIMPLE: Final = {
    "B": Qmf1._broker,
    "P": Qmf1._packages,
    "Q": Qmf1._classes,
    "S": Qmf1._schema,
    "A": Qmf1._attach,
    "p": Qmf1._take_package,
    "q": Qmf1._take_class,
}
"""Requests that are answered at once."""


class _Batch:
    """Messages that are collected into one body, of at most so many bytes; 0 if it has one message."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> bytes:
        """Add a message. Returns the body that is full without it, or nothing."""
        full = b""
        if self._size + len(message) > self._max_bytes:
            full = self.take()
        self._parts.append(message)
        self._size += len(message)
        return full

    def take(self) -> bytes:
        """The body; empty if there is none."""
        body = b"".join(self._parts)
        self._parts, self._size = [], 0
        return body


class Changes1:
    """The changed objects of a class, on their way to the keys of their properties (c) and statistics (i)."""

    def __init__(self, codec: Qmf1, keys: Mapping[str, str], of: ManagedClass) -> None:
        self._codec, self._keys, self._of = codec, keys, of
        self._batches = {key: _Batch(codec._max_bytes) for key in keys.values()}

    def add(self, known: Known, deleted: float, *, has_properties: bool, has_statistics: bool) -> None:
        """Publish the changes of an object, as last read."""
        assert known.values is not None
        for opcode, has_changed in (("c", has_properties), ("i", has_statistics and bool(self._of.statistics))):
            if has_changed and opcode in self._keys:
                with suppress(QmfError):
                    content = self._codec._object(opcode, 0, self._of, known, known.values, deleted=deleted)
                    key = self._keys[opcode]
                    self._publish(key, self._batches[key].add(content))

    def flush(self) -> None:
        """Publish the rest."""
        for key, batch in self._batches.items():
            self._publish(key, batch.take())

    def _publish(self, key: str, body: bytes) -> None:
        if body:
            self._codec._send(VERSION_1, key, body)


# ---- reading requests ----


def _text(query: dict[str, Any], name: str) -> str:
    value = query.get(name, "")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _object_id(value: Any) -> ObjectId | None:
    if isinstance(value, bytes) and len(value) == 16:
        return ObjectId.decode(value)
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return ObjectId.parse(text) if isinstance(text, str) else None


# ---- values ----


def _presence(present: Sequence[bool]) -> bytes:
    bits = sum(1 << at for at, is_there in enumerate(present) if is_there)
    return bits.to_bytes((len(present) + 7) // 8, "little")


def _has_type(kind: str, dialect: Dialect) -> bool:
    """Whether a form has this type."""
    return dialect is Dialect.AM2 or QMF_TYPES[kind].code <= MAX_CODE_OF_AM1


def _part(name: str) -> str:
    """A name as a part of a routing key of AM1."""
    return name.replace(".", "_")


def _event(of: EventClass, event: Event, now: float) -> bytes:
    """The message of an event. Raises QmfError: a value cannot be encoded."""
    rest = b"".join(
        encode(argument.type, value) for argument, value in zip(of.arguments, of.values(event), strict=True)
    )
    return encode_message("e", 0, of.package, of.name, of.hash.bytes, _ns(now), of.number, rest=rest)


def _results(arguments: Iterable[Argument], values: dict[str, Any]) -> bytes:
    """The results of a method. Raises QmfError: a value cannot be encoded."""
    found = ((each.type, values.get(each.name, EMPTY[each.type])) for each in arguments if "O" in each.direction)
    return b"".join(
        encode(kind, typed_value(value).value if isinstance(value, dict | list) else value) for kind, value in found
    )


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


# ---- schemas ----

_ACCESS: Final = {"RC": 1, "RW": 2, "RO": 3}
_DIRECTIONS: Final = {"I": 1, "O": 2, "IO": 3}
"""In AM1."""


@cache
def _class_schema(of: ManagedClass, dialect: Dialect) -> bytes:
    is_am1 = dialect is Dialect.AM1
    properties = [each for each in of.properties if _has_type(each.type, dialect)]
    statistics = [each for each in of.statistics if _has_type(each.type, dialect)]
    counts = len(properties), len(statistics), len(of.methods), *((0,) if is_am1 else ())
    parts = [struct.pack(f">{len(counts)}H", *counts)]
    parts += [_map(_property(each, of.package)) for each in properties]
    parts += [_map(_statistic(each)) for each in statistics]
    for method in of.methods.values():
        arguments = [each for each in method.arguments if _has_type(each.type, dialect)]
        parts.append(_map({"name": method.name, "argCount": _small(len(arguments)), "desc": method.description}))
        for each in map(_argument, arguments):
            parts.append(_map(each | {"dir": _small(_DIRECTIONS[each["dir"]])} if is_am1 else each))
    return b"".join(parts)


@cache
def _event_schema(of: EventClass) -> bytes:
    maps = [_map(_argument(each)) for each in of.arguments]
    return struct.pack(">H", len(maps)) + b"".join(maps)


def _small(value: int) -> TypedValue:
    return TypedValue(TYPES["uint8"], value)


def _type(name: str) -> TypedValue:
    return _small(QMF_TYPES[name].code)


def _property(of: Property, package: str) -> dict[str, Any]:
    reference = {}
    if of.references:
        own, _, name = of.references.rpartition(":")
        other, _, short = name.rpartition(".")
        reference = {"refPackage": own or (PACKAGE if other == "qpid" else package), "refClass": short.lower()}
    return {
        "name": of.name,
        "type": _type(of.type),
        "access": _small(_ACCESS[of.access]),
        "index": _small(of.is_index),
        "optional": _small(of.is_optional),
        "unit": of.unit,
        "desc": of.description,
        **reference,
    }


def _statistic(of: Statistic) -> dict[str, Any]:
    return {"name": of.name, "type": _type(of.type), "unit": of.unit, "desc": of.description}


def _argument(of: Argument) -> dict[str, Any]:
    return {"name": of.name, "type": _type(of.type), "dir": of.direction, "desc": of.description}


def _map(fields: dict[str, Any]) -> bytes:
    """A map without empty texts."""
    return encode_map(typed_map({name: value for name, value in fields.items() if value != ""}))
