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

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19553-20121).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from qstore.broker.management.remote_agents import agent_key
from qstore.broker.management.request import NOT_IMPLEMENTED, OK, UNKNOWN_OBJECT, UnknownObjectError, status_of, text_of
from qstore.broker.management.schema import PACKAGE, Reference
from qstore.broker.model.errors import InvalidArgumentError, ModelError
from qstore.broker.model.message import NewMessage
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.qmf.v1 import (
    EMPTY,
    EVENT,
    QMF_TYPES,
    TABLE,
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
    from qstore.broker.management.schema import Argument, ManagedClass, Method, Property, Statistic
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.events import Event

MAX_BYTES: Final = 60_000
_MAX_IN_BODY: Final = 100
_SCHEMA_KEY: Final = "schema.package"
_BANKS: Final = "1.0"
_TEXTS: Final = {OK: "OK", UNKNOWN_OBJECT: "UnknownObject", NOT_IMPLEMENTED: "NotImplemented"}


class Qmf1:
    """Version 1, as one broker speaks it.

    Args:
        managed: the broker.
        registry: its known objects.
        outbox: puts messages on queues.
        agents: the attached agents.
        name: the agent's name in version 2; empty if it does not speak that.
    """

    def __init__(
        self, managed: ManagedBroker, registry: Registry, outbox: Outbox, agents: RemoteAgents, name: str
    ) -> None:
        self._managed, self._registry, self._outbox, self._agents = managed, registry, outbox, agents
        self._headers = typed_map({"qmf.agent": name}) if name else EMPTY_MAP

    # ---- requests ----

    async def carry_out(self, body: bytes, request: Request) -> None:
        """Carry out the requests of a body, and answer them."""
        offset = 0
        for _ in range(_MAX_IN_BODY):
            if offset >= len(body):
                return
            try:
                message = decode_message(body, offset)
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
            self._reply(request, [_end(sequence, NOT_IMPLEMENTED)])
            return len(body)
        return message.end

    def refuse(self, body: bytes, request: Request, error: ModelError) -> None:
        """Answer the first request of a body that cannot be carried out."""
        try:
            message = decode_message(body)
        except QmfError:
            return
        status, text = status_of(error), str(error)
        opcode = "m" if message.opcode == "M" else "z"
        self._reply(request, [encode_message(opcode, message.sequence, status, text)])

    def _reply(self, request: Request, messages: Iterable[bytes]) -> None:
        """Send replies, unless the request has no reply address."""
        if request.reply_to is not None:
            for content in messages:
                self._send(request.reply_to.exchange, request.reply_to.routing_key, content, request.caller)

    # ---- requests for the schema ----

    def _broker(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        yield encode_message("b", sequence, self._managed.identity.instance)

    def _packages(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        own = [each.package for each in (*CLASSES, *EVENT_CLASSES)]
        for package in dict.fromkeys((*own, *self._agents.packages)):
            yield encode_message("p", sequence, package)
        yield _end(sequence, OK)

    def _classes(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        package = fields["package"]
        for of in CLASSES:
            if of.package == package:
                yield encode_message("q", sequence, TABLE, of.package, of.name, of.hash.bytes)
        for event in EVENT_CLASSES:
            if event.package == package:
                yield encode_message("q", sequence, EVENT, event.package, event.name, event.hash.bytes)
        for key, each in self._agents.classes(package):
            yield encode_message("q", sequence, each.kind, *key)
        yield _end(sequence, OK)

    def _schema(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        key = package, name, class_hash = fields["package"], fields["class"], fields["hash"]
        for of in CLASSES:
            if (of.package, of.name, of.hash.bytes) == key:
                yield encode_message("s", sequence, TABLE, package, name, class_hash, rest=_class_schema(of))
                return
        for event in EVENT_CLASSES:
            if (event.package, event.name, event.hash.bytes) == key:
                yield encode_message("s", sequence, EVENT, package, name, class_hash, rest=_event_schema(event))
                return
        remote = self._agents.find(key)
        if remote is None:
            yield _end(sequence, UNKNOWN_OBJECT)
        else:
            yield encode_message("s", sequence, remote.kind, package, name, class_hash, rest=remote.schema or b"")

    # ---- requests for objects ----

    async def _get(self, sequence: int, fields: dict[str, Any], request: Request) -> None:
        query = {name: typed.value for name, typed in fields["query"].entries}
        try:
            classes, found = self._asked_for(query, request)
        except ModelError as error:
            self._reply(request, [_end(sequence, status_of(error), text_of(error))])
            return
        batch, slices = _Batch(), self._managed.slices
        await prepare(self._managed, classes)
        for each in found:
            values, known = each.of.values(each.target), self._registry.known(each)
            full = batch.add(self._object("g", sequence, each.of, known, values, deleted=0.0))
            if full or slices.is_over:
                self._reply(request, [full or batch.take()])
                await slices.next()
        full = batch.add(_end(sequence, OK))
        self._reply(request, [each for each in (full, batch.take()) if each])

    def _asked_for(
        self, query: dict[str, Any], request: Request
    ) -> tuple[Iterable[ManagedClass], Iterable[ManagedObject]]:
        class_name, package, identity = _text(query, "_class"), _text(query, "_package"), query.get("_objectid")
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
            parts.append(_presence(of, values[0]))
            for row, value in zip(of.properties, values[0], strict=True):
                if value is not None or not row.is_optional:
                    parts.append(_value(row.type, value, id_of))
        if opcode != "c":
            parts += [_value(row.type, value, id_of) for row, value in zip(of.statistics, values[1], strict=True)]
        key = of.package, of.name, of.hash.bytes
        times = _ns(self._managed.broker.clock()), _ns(known.created), _ns(deleted)
        return encode_message(opcode, sequence, *key, *times, known.id, rest=b"".join(parts))

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
                arguments, end = _arguments(method, body, message.end)
            results = await call(self._managed, found, fields["method"], arguments, request.caller)
            rest = b"" if method is None else _results(method.arguments, results)
            reply = encode_message("m", sequence, OK, _TEXTS[OK], rest=rest)
        except ModelError as error:
            reply = encode_message("m", sequence, status_of(error), text_of(error))
        self._reply(request, [reply])
        return end

    # ---- requests of attached agents ----

    def _attach(self, sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        peer = request.caller.remote_host
        agent = self._agents.attach(peer, fields["label"], fields["system"], fields["agent_bank"])
        if agent is not None:
            yield encode_message("a", sequence, agent.broker_bank, agent.agent_bank)

    def _take_package(self, _sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        """An agent announces a package, which means nothing without its classes."""
        return iter(())

    def _take_class(self, _sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        agent = self._agents.of_peer(request.caller.remote_host)
        key = fields["package"], fields["class"], fields["hash"]
        is_own = any(key[0] == each.package for each in CLASSES)
        if agent is None or fields["kind"] not in (TABLE, EVENT) or is_own:
            return
        number = self._agents.announced(agent, fields["kind"], key)
        if number is not None:
            yield encode_message("S", number, *key)

    def _take_schema(self, sequence: int, fields: dict[str, Any], schema: bytes, request: Request) -> None:
        """An agent describes a class: it is announced to consoles if its user may publish to them."""
        self._managed.broker.authorization.check_publish(request.caller, VERSION_1, _SCHEMA_KEY)
        agent = self._agents.of_peer(request.caller.remote_host)
        key = fields["package"], fields["class"], fields["hash"]
        if agent is not None and self._agents.described(agent, sequence, key, schema):
            announced = encode_message("p", 0, key[0]) + encode_message("q", 0, fields["kind"], *key)
            if self._is_heard(_SCHEMA_KEY):
                self._send(VERSION_1, _SCHEMA_KEY, announced)

    # ---- unsolicited publications ----

    def publish_events(self, of: EventClass, events: Iterable[Timed]) -> None:
        """Publish events of a class, if a queue is bound for them."""
        key, batch = f"console.event.{_BANKS}.{of.package}.{of.name}", _Batch()
        if not self._is_heard(key):
            return
        for event, raised in events:
            with suppress(QmfError):
                if full := batch.add(_event(of, event, raised)):
                    self._send(VERSION_1, key, full)
        if rest := batch.take():
            self._send(VERSION_1, key, rest)

    def publish_heartbeat(self, now: float) -> None:
        """Publish a heartbeat, if a queue is bound for it."""
        key = f"console.heartbeat.{_BANKS}"
        if self._is_heard(key):
            self._send(VERSION_1, key, encode_message("h", 0, _ns(now)))

    def console_added(self, agent: RemoteAgent) -> None:
        """Ask an attached agent to publish everything, since a console has come."""
        self._send(VERSION_1, agent_key(agent), encode_message("x", 0))

    def changes_of(self, of: ManagedClass) -> Changes1 | None:
        """Where the changed objects of a class go; None if no queue is bound for them."""
        key = f"console.obj.{_BANKS}.{of.package}.{of.name}"
        return Changes1(self, key, of) if self._is_heard(key) else None

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
    """Messages that are collected into one body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> bytes:
        """Add a message. Returns the body that is full without it, or nothing."""
        full = b""
        if self._size + len(message) > MAX_BYTES:
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
    """The changed objects of a class, on their way to a key."""

    def __init__(self, codec: Qmf1, key: str, of: ManagedClass) -> None:
        self._codec, self._key, self._of, self._batch = codec, key, of, _Batch()

    def add(self, known: Known, deleted: float, *, has_properties: bool, has_statistics: bool) -> None:
        """Publish the changes of an object, as last read."""
        assert known.values is not None
        for opcode, has_changed in (("c", has_properties), ("i", has_statistics and bool(self._of.statistics))):
            if has_changed:
                with suppress(QmfError):
                    self._publish(
                        self._batch.add(self._codec._object(opcode, 0, self._of, known, known.values, deleted=deleted))
                    )

    def flush(self) -> None:
        """Publish the rest."""
        self._publish(self._batch.take())

    def _publish(self, body: bytes) -> None:
        if body:
            self._codec._send(VERSION_1, self._key, body)


# ---- reading requests ----


def _end(sequence: int, status: int, text: str = "") -> bytes:
    return encode_message("z", sequence, status, text or _TEXTS.get(status, "Error"))


def _arguments(method: Method, body: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """The arguments of a call, and where they end. Raises InvalidArgumentError."""
    arguments: dict[str, Any] = {}
    for each in method.arguments:
        if "I" in each.direction:
            try:
                arguments[each.name], offset = decode(each.type, body, offset)
            except QmfError as error:
                raise InvalidArgumentError(f"the argument {each.name} cannot be read: {error}") from None
    return arguments, offset


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


def _presence(of: ManagedClass, values: Sequence[Any]) -> bytes:
    present = [value is not None for row, value in zip(of.properties, values, strict=True) if row.is_optional]
    bits = sum(1 << at for at, is_there in enumerate(present) if is_there)
    return bits.to_bytes((len(present) + 7) // 8, "little")


def _value(kind: str, value: Any, id_of: Callable[[str], ObjectId]) -> bytes:
    if value is None:
        value = EMPTY[kind]
    elif isinstance(value, Reference):
        value = id_of(value.name)
    return encode(kind, value)


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


@cache
def _class_schema(of: ManagedClass) -> bytes:
    parts = [struct.pack(">HHH", len(of.properties), len(of.statistics), len(of.methods))]
    parts += [_map(_property(each, of.package)) for each in of.properties]
    parts += [_map(_statistic(each)) for each in of.statistics]
    for method in of.methods.values():
        parts.append(_map({"name": method.name, "argCount": _small(len(method.arguments)), "desc": method.description}))
        parts += [_map(_argument(each)) for each in method.arguments]
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
