"""Attached agents of version 1, as consoles of version 2 see them: the broker speaks for each of them.

    version 2                                  version 1, to and from the agent
    -----------------------------------------  ---------------------------------------------------------------
    _agent_locate_request, heartbeats          none: as long as the agent is attached
    _query_request SCHEMA_ID, SCHEMA           none: the schemas that the agent has announced
    _query_request OBJECT, OBJECT_ID           G for the object, or for each class; g for each object; z
    _method_request                            M; m
    agent.ind.event.…, _data_indication        console.event.1.BANK.…: e
    agent.ind.data.…, _data_indication         console.obj.1.BANK.…, in AM1 mgmt.SYSTEM.…: c, i and g

An agent has the name `qmf1:LABEL:SYSTEM-BANK` on `qmf.default.direct`, and an object the name PACKAGE:CLASS:ID, with
its id in version 1. The broker's requests go to the agent's key on `qpid.management`; the answers to the key
`broker.replies` there, where the broker takes them, if they come from the connection of the agent that was asked.

The agent cannot see on whose behalf it is asked. So the broker asks for it whether the user may query (lookup 9 of the
access rules), may call the method (lookup 8), and may publish to the agent's key.

Agents of AM1, the form of Qpid M3, are located, queried and called likewise, in their form. An object of theirs is
found among those of its class, also before a method is called: the call does not say the class, which the permission
is for. What they publish has the keys mgmt.SYSTEM.prop.PACKAGE.CLASS and mgmt.SYSTEM.stat.…, which name the system of
the agent.

Limits: requests under way, the time and the bytes of an answer, the elements of a class. All of it is done in time
slices. An answer about one object has that object, or none, whatever the agent sends.

What an agent publishes unasked is routed to consoles of version 1, and overheard here: its events and objects are
published again for those of version 2, if any is bound for them and the agent's user may publish there, too. An object
has the values that the agent has sent: properties, statistics, or both. What is sent in a transaction of AMQP is not
overheard. If more comes than is done in time, the rest is dropped, with a line in the log.

Source: Qpid wiki, "QMFv2 Project Page" (seed 004, lines 20616-20640), "QMF Protocol" (19895-20043).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.management.classes import check_query
from qstore.broker.management.events import SEVERITIES
from qstore.broker.management.outbox import TOPIC, VERSION_1
from qstore.broker.management.remote_agents import agent_key
from qstore.broker.management.request import (
    Arguments,
    ForbiddenError,
    UnknownMethodError,
    UnknownObjectError,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.message import NewMessage, ReplyAddress
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.v1 import (
    BY_CODE,
    EVENT,
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
    typed,
)
from qstore.formats.values import EMPTY_MAP, UINT64, TypedMap, TypedValue, typed_map
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.outbox import Outbox
    from qstore.broker.management.qmf2 import Portions, Qmf2
    from qstore.broker.management.remote_agents import ClassKey, RemoteAgent, RemoteAgents, RemoteClass
    from qstore.broker.management.request import Request
    from qstore.broker.model.caller import Caller
    from qstore.formats.qmf.predicate import Condition

REPLY_KEY: Final = "broker.replies"
MAX_PENDING: Final = 50
MAX_ANSWER_BYTES: Final = 4 << 20
TIMEOUT: Final = 10.0
"""Seconds without any message of an answer."""
MAX_OVERHEARD_BYTES: Final = 4 << 20
"""Of publications of agents that wait to be published again."""
_MGMT: Final = "mgmt"
_OVERHEARD: Final = ("console.event.1.", "console.obj.1.", f"{_MGMT}.")
_KINDS_OF_AM1: Final = ("prop", "stat")
_WORDS: Final = dict(SEVERITIES.values())
_VENDOR: Final = "qmf1"
_MAX_DIGITS: Final = 9  # of a bank, which has 28 bits
_ACCESS: Final = {1: "RC", 2: "RW", 3: "RO"}
_MAX_ELEMENTS: Final = 500
"""Properties, statistics, methods and arguments of a class: to read a schema takes some milliseconds."""
_MAX_NAMES: Final = 16  # in the map of an element
_IS_AM1: Final = " am1"
"""The key of an element that an agent of AM1 has described: no schema has a name that begins with a space."""
_DIRECTIONS: Final = {1: "I", 2: "O", 3: "IO"}
"""Of arguments in AM1, where they are numbers."""


class _Class(NamedTuple):
    """A class as its schema of version 1 has it: the maps of its elements."""

    properties: tuple[dict[str, Any], ...]
    statistics: tuple[dict[str, Any], ...]
    methods: tuple[tuple[dict[str, Any], tuple[dict[str, Any], ...]], ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        arguments = sum(1 + len(each) for _, each in self.methods)
        return len(self.properties) + len(self.statistics) + arguments


class _Pending:
    """A request that an agent has not answered yet: whose answer it is, and what has come."""

    def __init__(self, peer: str) -> None:
        self.peer, self.bytes = peer, 0
        self.bodies: asyncio.Queue[bytes | None] = asyncio.Queue()


class Proxies:
    """The attached agents of one broker, for consoles of version 2.

    Args:
        managed: the broker.
        agents: the agents.
        outbox: puts messages on queues.
        codec: sends replies.
    """

    def __init__(self, managed: ManagedBroker, agents: RemoteAgents, outbox: Outbox, codec: Qmf2) -> None:
        self._managed, self._agents, self._outbox, self._codec = managed, agents, outbox, codec
        self._pending: dict[int, _Pending] = {}
        self._sequence = 0
        self._overheard: deque[tuple[RemoteAgent, Caller, bytes]] = deque()
        self._overheard_bytes = 0
        self._dropped = LogBudget(log_of("Management"), WARNING, "publications of agents for consoles of version 2")

    # ---- agents ----

    def find(self, name: str) -> RemoteAgent | None:
        """The agent with this name."""
        bank = name.rpartition("-")[2]
        if not name.startswith(f"{_VENDOR}:") or not bank.isdecimal() or len(bank) > _MAX_DIGITS:
            return None
        agent = self._agents.of_bank(int(bank))
        return agent if agent is not None and name_of(agent) == name else None

    def attributes(self) -> Iterator[dict[str, Any]]:
        """What consoles learn of each agent."""
        return map(self._attributes, self._agents)

    def _attributes(self, agent: RemoteAgent) -> dict[str, Any]:
        name = name_of(agent)
        vendor, product, instance = name.split(":")
        return {
            "_vendor": vendor,
            "_product": product,
            "_instance": instance,
            "_name": name,
            "_label": agent.label,
            "_timestamp": TypedValue(UINT64, round(self._managed.broker.clock() * 1e9)),
            "_heartbeat_interval": self._managed.interval,
            "_epoch": 1,
        }

    async def publish_heartbeats(self) -> None:
        """Publish a heartbeat of each agent, if a queue is bound for it."""
        for agent in self._agents:
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            key = f"agent.ind.heartbeat.{name_of(agent).replace(':', '.')}"
            if self._outbox.is_heard(TOPIC, key):
                self._codec.heartbeat(key, self._attributes(agent), self._managed.broker.clock())

    def disconnected(self, peer: str) -> None:
        """A connection is closed: nothing comes from its agents any more."""
        for each in self._pending.values():
            if each.peer == peer:
                each.bodies.put_nowait(None)

    def received(self, caller: Caller, body: bytes) -> None:
        """A message with answers. Those to nobody's request, and from others than the agent, are ignored."""
        try:
            sequence = decode_message(body, dialect=Dialect(body[:3])).sequence
        except (QmfError, ValueError):
            return
        pending = self._pending.get(sequence)
        if pending is not None and pending.peer == caller.remote_host and pending.bytes <= MAX_ANSWER_BYTES:
            pending.bytes += len(body)
            pending.bodies.put_nowait(body)

    # ---- what agents publish unasked ----

    def overhears(self, key: str) -> bool:
        """Whether a message with this key is a publication of an agent, to be given to `overheard`."""
        return key.startswith(_OVERHEARD) and bool(self._publishers_of(key))

    def _publishers_of(self, key: str) -> list[RemoteAgent]:
        """The agents whose key this may be."""
        first, *parts = key.split(".", 4)
        if first == _MGMT:
            is_of_object = len(parts) == 4 and parts[1] in _KINDS_OF_AM1
            of_am1 = (each for each in self._agents if each.dialect is Dialect.AM1) if is_of_object else ()
            return [each for each in of_am1 if str(each.system_id) == parts[0].lower()]
        bank = parts[2]
        agent = self._agents.of_bank(int(bank)) if bank.isdecimal() and len(bank) <= _MAX_DIGITS else None
        return [agent] if agent is not None and agent.dialect is Dialect.AM2 else []

    def _publisher_of(self, key: str, peer: str) -> RemoteAgent | None:
        """The agent that has published something with this key on its connection."""
        return next((each for each in self._publishers_of(key) if each.peer == peer), None)

    def overheard(self, caller: Caller, key: str, body: bytes) -> bool:
        """A message that an agent has published. Returns whether `publish_overheard` is to be run for it."""
        agent, is_first = self._publisher_of(key, caller.remote_host), not self._overheard
        if agent is None or not self._is_heard(agent, key):
            return False
        if self._overheard_bytes + len(body) > MAX_OVERHEARD_BYTES:
            text = 'A publication of management agent "%s" does not reach consoles of version 2: there are too many'
            self._dropped.write(self._managed.broker.monotonic(), text, printable(agent.label))
            return False
        self._overheard.append((agent, caller, body))
        self._overheard_bytes += len(body)
        return is_first

    def _is_heard(self, agent: RemoteAgent, key: str) -> bool:
        """Whether a queue is bound for what an agent has published with this key, as far as the key tells."""
        package, _, name = key.split(".", 4 if agent.dialect is Dialect.AM2 else 3)[-1].rpartition(".")
        of, words = (package, name, b""), _WORDS.values() if key.startswith(_OVERHEARD[0]) else ("",)
        return any(self._outbox.is_heard(TOPIC, _indication_key(of, word, agent)) for word in words)

    async def publish_overheard(self) -> None:
        """Publish what was overheard."""
        try:
            while self._overheard:
                agent, caller, body = self._overheard[0]
                try:
                    await self._publish_again(agent, caller, body)
                except ModelError as error:
                    text = 'A publication of management agent "%s" does not reach consoles of version 2: %s'
                    self._dropped.write(self._managed.broker.monotonic(), text, printable(agent.label), error)
                self._overheard.popleft()
                self._overheard_bytes -= len(body)
        finally:  # also if memory is exhausted: the next one begins anew
            self._overheard.clear()
            self._overheard_bytes = 0

    async def _publish_again(self, agent: RemoteAgent, caller: Caller, body: bytes) -> None:
        """Publish the events and objects of a message. Raises ModelError: unreadable, or not allowed."""
        at, name, last = 0, name_of(agent), ""
        portions: Portions | None = None
        while at < len(body):
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            message = _decoded(body, at, agent.dialect)
            if message.opcode not in "ecig":
                raise _unreadable(f"it has published {message.opcode}")
            key = message.fields["package"], message.fields["class"], message.fields["hash"]
            found = self._agents.find(key, agent.dialect)
            if found is None or found.bank != agent.agent_bank:
                raise _unreadable("it has not described the class of what it has published")
            of, is_event = _class_of(found), message.opcode == "e"
            if is_event is not (found.kind == EVENT):
                raise _unreadable("it has published an event as an object, or the reverse")
            values, at = _values(of, body, message.end, "" if is_event else message.opcode)
            severity = message.fields["severity"] if is_event else 0
            if severity not in _WORDS:
                raise _unreadable("an event has an unknown severity")
            to = _indication_key(key, _WORDS[severity] if is_event else "", agent)
            if portions is not None and to != last:
                portions.flush()
                portions = None
            last = to
            if not self._outbox.is_heard(TOPIC, to):
                continue
            if portions is None:
                self._managed.broker.authorization.check_publish(caller, TOPIC, to)
                portions = self._codec.announcements(to, "_event" if is_event else "_data", name)
            described = _event(key, message, values, severity) if is_event else _data(key, message, values, name)
            portions.add(described, len(values))
        if portions is not None:
            portions.flush()

    # ---- requests ----

    async def carry_out(self, agent: RemoteAgent, opcode: str, asked: Any, request: Request) -> None:
        """Carry out a request for an agent, and answer it. Raises ModelError."""
        given = asked if isinstance(asked, TypedMap) else TypedMap()
        if opcode == "_query_request":
            await self._query(agent, given, request)
        elif opcode == "_method_request":
            await self._call(agent, given, request)
        elif opcode == "_agent_locate_request":
            values = self._attributes(agent)
            self._codec.reply(request, "_agent_locate_response", {"_values": values}, agent=values["_name"])
        else:
            raise InvalidArgumentError(f"an agent of version 1 has no {printable(opcode)}")

    async def _query(self, agent: RemoteAgent, asked: TypedMap, request: Request) -> None:
        query = self._codec.read_query(asked)
        classes = [
            (key, each)
            for key, each in self._agents.of_agent(agent)
            if query.package in (None, key[0]) and (query.name is None or query.name.lower() == key[1].lower())
        ]
        if query.is_of_classes:
            await self._describe(agent, classes, query, request)
            return
        check_query(self._managed, request.caller, query.object_name or "", query.name or "")
        if query.object_name is None:
            queries = [{"_class": key[1], "_package": key[0]} for key, each in classes if each.kind == TABLE]
        else:
            wanted = _object_of(query.object_name)
            package, _, class_name = query.object_name.rpartition(":")[0].partition(":")
            by_class = {"_class": class_name, "_package": package}
            asked_for = {"_objectid": str(wanted)} if agent.dialect is Dialect.AM2 else by_class
            queries = [] if wanted is None else [asked_for]
        name = name_of(agent)
        answer = self._codec.answer(request, "_data" if query.is_whole else "_object_id", name)
        for each in queries:
            async with aclosing(self._get(agent, typed_map(each), request.caller)) as objects:
                async for key, message, values in objects:
                    described = _data(key, message, values, name)
                    identity = described["_object_id"]
                    if query.object_name not in (None, identity["_object_name"]):
                        continue  # the caller may ask for another one
                    if query.condition is None or query.condition(_selectable(key, message, values)):
                        answer.add(described if query.is_whole else identity, len(values))
        answer.flush()

    async def _describe(
        self, agent: RemoteAgent, classes: list[tuple[ClassKey, RemoteClass]], query: Query, request: Request
    ) -> None:
        """Answer a query for classes."""
        answer = self._codec.answer(request, "_schema" if query.is_whole else "_schema_id", name_of(agent))
        for key, each in classes:
            if query.hash not in (None, UUID(bytes=key[2])):
                continue
            if self._managed.slices.is_over:
                await self._managed.slices.next()
            if query.is_whole:
                of = _class_of(each)
                answer.add(_schema_map(key, each.kind, of), of.size)
            else:
                answer.add(_schema_id(key, each.kind))
        answer.flush()

    async def _has(self, agent: RemoteAgent, wanted: ObjectId, of: ClassKey, caller: Caller) -> bool:
        """Whether an agent has the object, and it is of that class, which a call of AM1 does not say to the agent."""
        query = typed_map({"_class": of[1], "_package": of[0]})
        async with aclosing(self._get(agent, query, caller)) as objects:
            found = [key async for key, message, _ in objects if message.fields["object"] == wanted]
        return any(key[:2] == of[:2] for key in found)

    async def _get(
        self, agent: RemoteAgent, query: TypedMap, caller: Caller
    ) -> AsyncGenerator[tuple[ClassKey, Message, dict[str, Any]], None]:
        """The objects that an agent has: the class, the message, and the values of each. Raises ModelError."""
        async with aclosing(self._ask(agent, "G", query, caller=caller)) as bodies:
            async for body in bodies:
                at = 0
                while at < len(body):
                    if self._managed.slices.is_over:
                        await self._managed.slices.next()
                    message = _decoded(body, at, agent.dialect)
                    if message.opcode == "z":
                        if message.fields["status"]:
                            raise InternalError(f"the agent has refused it: {printable(message.fields['text'])}")
                        return
                    if message.opcode != "g":
                        raise _unreadable(f"it has answered a query with {message.opcode}")
                    key = message.fields["package"], message.fields["class"], message.fields["hash"]
                    found = self._agents.find(key, agent.dialect)
                    if found is None:
                        raise _unreadable("it has not described the class of an object")
                    values, at = _values(_class_of(found), body, message.end)
                    yield key, message, values

    async def _call(self, agent: RemoteAgent, asked: TypedMap, request: Request) -> None:
        name, method, given = self._codec.read_call(asked)
        wanted = _object_of(name)
        package, _, class_name = name.rpartition(":")[0].partition(":")
        keys = [key for key, each in self._agents.of_agent(agent) if key[:2] == (package, class_name)]
        if wanted is None or not keys:
            raise UnknownObjectError(f"there is no object {printable(name)}")
        caller = request.caller
        try:
            self._managed.broker.authorization.check(
                caller, Action.ACCESS, ObjectType.METHOD, method, schemapackage=package, schemaclass=class_name
            )
        except UnauthorizedError as error:
            raise ForbiddenError(str(error)) from None
        key = keys[0]
        described = self._agents.find(key, agent.dialect)
        methods = () if described is None else _class_of(described).methods
        arguments = next((each for found, each in methods if found.get("name") == method), None)
        if arguments is None:
            raise UnknownMethodError(f"class {printable(class_name)} has no method {printable(method)}")
        rest = _encoded(arguments, Arguments(given))
        names = (*key, method) if agent.dialect is Dialect.AM2 else (method,)
        if agent.dialect is Dialect.AM1 and not await self._has(agent, wanted, key, caller):
            raise UnknownObjectError(f"there is no object {printable(name)}")
        async with aclosing(self._ask(agent, "M", wanted, *names, rest=rest, caller=caller)) as bodies:
            body = await anext(bodies)
        message = _decoded(body, 0, agent.dialect)
        if message.opcode != "m":
            raise _unreadable(f"it has answered a call with {message.opcode}")
        status, at = message.fields["status"], message.end
        if status:
            raise _refused(status, message.fields["text"])
        results: dict[str, Any] = {}
        for each in arguments:
            if "O" in str(each.get("dir", "")):
                results[str(each.get("name"))], at = _decoded_value(each, body, at)
        self._codec.reply(request, "_method_response", {"_arguments": results}, agent=name_of(agent))

    async def _ask(
        self, agent: RemoteAgent, opcode: str, *values: Any, caller: Caller, rest: bytes = b""
    ) -> AsyncGenerator[bytes, None]:
        """Send an agent a request. Yields the messages of its answer, without an end. Raises ModelError."""
        key = agent_key(agent)
        self._managed.broker.authorization.check_publish(caller, VERSION_1, key)
        if len(self._pending) >= MAX_PENDING:
            raise ResourceLimitExceededError("too many requests for agents at the same time")
        if not self._outbox.is_heard(VERSION_1, key):
            raise NotFoundError("the agent takes no requests")
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        sequence, pending = self._sequence, _Pending(agent.peer)
        self._pending[sequence] = pending
        try:
            content = encode_message(opcode, sequence, *values, rest=rest, dialect=agent.dialect)
            reply_to = ReplyAddress(VERSION_1, REPLY_KEY)
            self._outbox.send(NewMessage(key, EMPTY_MAP, content=content, exchange=VERSION_1, reply_to=reply_to))
            while True:
                try:
                    body = await asyncio.wait_for(pending.bodies.get(), TIMEOUT)
                except TimeoutError:
                    raise InternalError(f"the agent has not answered within {TIMEOUT:g} seconds") from None
                if body is None:
                    raise InternalError("the agent is gone")
                if pending.bytes > MAX_ANSWER_BYTES:
                    raise ResourceLimitExceededError(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
                yield body
        finally:
            del self._pending[sequence]


class Query(NamedTuple):
    """A query of version 2.

    Attributes:
        is_of_classes: whether it is one of schemas, not of objects.
        is_whole: whether they are described, not only named.
        package, name, hash: of the class; None for any.
        object_name: of the one object that is wanted; None for all.
        condition: which of them.
    """

    is_of_classes: bool
    is_whole: bool
    package: str | None
    name: str | None
    hash: Any
    object_name: str | None
    condition: Condition | None


# ---- names ----


def name_of(agent: RemoteAgent) -> str:
    """The name of an agent in version 2."""
    label = re.sub(r"[^\w-]+", "_", agent.label, flags=re.ASCII)[:100] or "agent"
    return f"{_VENDOR}:{label}:{agent.system_id}-{agent.agent_bank}"


def _indication_key(key: ClassKey, word: str, agent: RemoteAgent) -> str:
    """The key of indications of objects of a class; of events, if there is a word for their severity."""
    package, kind = key[0].replace(".", "_"), f"event.{{}}.{{}}.{word}" if word else "data.{}.{}"
    return f"agent.ind.{kind.format(package, key[1])}.{name_of(agent).replace(':', '.')}"


def _object_of(name: str) -> ObjectId | None:
    """The id in an object's name; None if it has none."""
    parts = name.split(":")
    return ObjectId.parse(parts[2]) if len(parts) == 3 else None


# ---- schemas ----


def _limited(elements: int) -> int:
    if elements > _MAX_ELEMENTS:
        raise _unreadable(f"a schema has more than {_MAX_ELEMENTS} elements")
    return elements


def _class_of(found: RemoteClass) -> _Class:
    """A class that an agent has described. Raises ModelError: it cannot be read."""
    return _class(found.kind, found.schema or b"", found.dialect)


@lru_cache(maxsize=64)
def _class(kind: int, schema: bytes, dialect: Dialect = Dialect.AM2) -> _Class:
    """Read a schema. Raises ModelError: it cannot be read."""
    is_am1 = dialect is Dialect.AM1
    try:
        counts, at = [], 0
        for _ in range(1 if kind == EVENT else 4 if is_am1 else 3):
            count, at = decode("uint16", schema, at)
            counts.append(count)
        elements = _limited(sum(counts))
        parts: list[list[dict[str, Any]]] = []
        for count in counts[:2]:
            found = []
            for _ in range(count):
                element, at = _map(schema, at, is_am1=is_am1)
                found.append(element)
            parts.append(found)
        methods = []
        for _ in range(counts[2] if len(counts) > 2 else 0):
            element, at = _map(schema, at)
            arguments = []
            size = element.get("argCount", 0)
            if not isinstance(size, int) or size < 0:
                raise _unreadable("a method has no number of arguments")
            elements = _limited(elements + size)
            for _ in range(size):
                argument, at = _map(schema, at, is_am1=is_am1)
                arguments.append(argument)
            methods.append((element, tuple(arguments)))
    except QmfError as error:
        raise _unreadable(error.what) from None
    return _Class(tuple(parts[0]), tuple(parts[1]) if len(parts) > 1 else (), tuple(methods))


def _map(schema: bytes, at: int, *, is_am1: bool = False) -> tuple[dict[str, Any], int]:
    if decode("uint32", schema, at + 4)[0] > _MAX_NAMES:
        raise _unreadable("an element of a schema has too many names")
    value, end = decode("map", schema, at)
    found = {name: each.value for name, each in value.entries}
    if is_am1:
        found[_IS_AM1] = True
        found["dir"] = _DIRECTIONS.get(found.get("dir", 0), "")
    return found, end


def _kind(element: Mapping[str, Any]) -> str:
    """The type of an element. Raises ModelError: it is unknown, or needs another schema."""
    found = BY_CODE.get(element.get("type", 0))
    if found is None:
        raise _unreadable("a schema has a type that is unknown")
    return found.name


def _wire(element: Mapping[str, Any]) -> str:
    """The type of an element's values on the wire. Raises ModelError, likewise."""
    kind = _kind(element)
    return "objId64" if kind == "objId" and _IS_AM1 in element else kind


def _schema_id(key: ClassKey, kind: int) -> dict[str, Any]:
    package, name, class_hash = key
    of = "_event" if kind == EVENT else "_data"
    return {"_package_name": package, "_class_name": name, "_type": of, "_hash": UUID(bytes=class_hash)}


def _schema_map(key: ClassKey, kind: int, found: _Class) -> dict[str, Any]:
    """A class, as version 2 describes it. Raises ModelError."""
    properties = [_element(each) for each in found.properties]
    properties += [_element(each) | {"_statistic": True} for each in found.statistics]
    methods = [
        {
            "_name": str(each.get("name", "")),
            "_desc": str(each.get("desc", "")),
            "_arguments": [*map(_element, arguments)],
        }
        for each, arguments in found.methods
    ]
    more = {} if kind == EVENT else {"_methods": methods}
    return {"_schema_id": _schema_id(key, kind), "_properties": properties} | more


def _element(of: Mapping[str, Any]) -> dict[str, Any]:
    kind = _kind(of)
    found: dict[str, Any] = {"_name": str(of.get("name", "")), "_type": QMF_TYPES[kind].kind, "_subtype": kind}
    if of.get("access") in _ACCESS:
        found["_access"] = _ACCESS[of["access"]]
        found |= {"_index": bool(of.get("index")), "_optional": bool(of.get("optional"))}
    for name, mine in (("unit", "_unit"), ("desc", "_desc"), ("dir", "_dir")):
        if of.get(name):
            found[mine] = str(of[name])
    return found


# ---- values ----


def _decoded(body: bytes, at: int, dialect: Dialect = Dialect.AM2) -> Message:
    try:
        return decode_message(body, at, dialect)
    except QmfError as error:
        raise _unreadable(error.what) from None


def _decoded_value(element: Mapping[str, Any], body: bytes, at: int) -> tuple[TypedValue, int]:
    """A value, as version 2 carries it, and where it ends. Raises ModelError."""
    kind = _kind(element)
    try:
        value, end = decode(_wire(element), body, at)
        return _carried(kind, value), end
    except QmfError as error:
        raise _unreadable(error.what) from None


def _carried(kind: str, value: Any) -> TypedValue:
    if kind == "objId":
        return TypedValue(QMF_TYPES[kind].amqp, typed_map({"_object_name": str(value)}))
    if kind == "object":
        return _carried(*value)
    if kind == "array":
        return TypedValue(QMF_TYPES[kind].amqp, tuple(_carried(*each) for each in value))
    return typed(kind, value)


def _values(of: _Class, body: bytes, at: int, opcode: str = "g") -> tuple[dict[str, Any], int]:
    """The values of an object (g; only its properties: c; its statistics: i) or an event, and where they end.

    Raises:
        ModelError: they cannot be read.
    """
    optional = [each for each in of.properties if each.get("optional")] if opcode in ("c", "g") else []
    size = (len(optional) + 7) // 8
    bits = int.from_bytes(body[at : at + size], "little")
    absent = {id(each) for number, each in enumerate(optional) if not bits >> number & 1}
    at += size
    found: dict[str, Any] = {}
    elements = (() if opcode == "i" else of.properties) + (() if opcode == "c" else of.statistics)
    for each in elements:
        if id(each) not in absent:
            found[str(each.get("name", ""))], at = _decoded_value(each, body, at)
    return found, at


def _encoded(arguments: tuple[dict[str, Any], ...], given: Arguments) -> bytes:
    """The arguments of a call. Raises ModelError: one is missing, unknown or of another type."""
    wanted = [each for each in arguments if "I" in str(each.get("dir", ""))]
    if unknown := given.keys() - {str(each.get("name")) for each in wanted}:
        raise InvalidArgumentError(f"the method has no argument {printable(min(unknown))}")
    parts = []
    for each in wanted:
        name, kind = str(each.get("name")), _kind(each)
        if name not in given:
            raise InvalidArgumentError(f"the argument {printable(name)} is missing")
        value = given[name]
        if kind in ("sstr", "lstr"):
            value = given.text(name)
        try:
            parts.append(encode(_wire(each), value))
        except QmfError as error:
            raise InvalidArgumentError(f"the argument {printable(name)}: {error.what}") from None
    return b"".join(parts)


def _data(key: ClassKey, message: Message, values: dict[str, Any], agent: str) -> dict[str, Any]:
    """An object, as version 2 describes it."""
    fields = message.fields
    return {
        "_object_id": {"_object_name": f"{key[0]}:{key[1]}:{fields['object']}", "_agent_name": agent},
        "_schema_id": _schema_id(key, TABLE),
        "_values": values,
        "_create_ts": TypedValue(UINT64, fields["created"]),
        "_update_ts": TypedValue(UINT64, fields["sampled"]),
        "_delete_ts": TypedValue(UINT64, fields["deleted"]),
    }


def _event(key: ClassKey, message: Message, values: dict[str, Any], severity: Any) -> dict[str, Any]:
    """An event, as version 2 describes it."""
    return {
        "_schema_id": _schema_id(key, EVENT),
        "_values": values,
        "_timestamp": TypedValue(UINT64, message.fields["timestamp"]),
        "_severity": severity,
    }


def _selectable(key: ClassKey, message: Message, values: Mapping[str, TypedValue]) -> dict[str, Any]:
    """The values of an object, as a condition sees them."""
    names = {"_object_name": f"{key[0]}:{key[1]}:{message.fields['object']}"}
    names |= {"_package_name": key[0], "_class_name": key[1]}
    plain = {name: str(each.value) if isinstance(each.value, UUID) else each.value for name, each in values.items()}
    return plain | names


# ---- errors ----


def _unreadable(what: str) -> ModelError:
    return InternalError(f"the agent cannot be understood: {what}")


def _refused(status: int, text: str) -> ModelError:
    """The error of an agent."""
    kinds: dict[int, type[ModelError]] = {
        1: UnknownObjectError, 2: UnknownMethodError, 4: InvalidArgumentError, 6: ForbiddenError,
    }  # fmt: skip
    return kinds.get(status, InternalError)(printable(text) or f"error {status}")
