"""Answers requests of QMF version 1.

    request   replies
    --------  ---------------------------------------------------------------------
    B         b: the broker's id
    P         p for each package; z
    Q         q for each class of a package; z
    S         s: the schema; z if there is no such class
    G         g for each object; z
    M         m: the result
    A         a: the banks of an agent (`remote_agents`)
    p, q, s   of an attached agent: its packages, its classes, a schema
    others    z: not implemented

A body may have several requests. What follows a request that cannot be read is ignored. Replies about the schema are
messages of their own, since old consoles ignore what follows an event's.

Source: Qpid wiki, "QMF Protocol" (seed 004, lines 19553-20121).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.calls import all_of, call, check_query, may_see, prepare
from qstore.broker.management.events import EVENT_CLASSES
from qstore.broker.management.objects.classes import CLASSES, ManagedObject, classes_named
from qstore.broker.management.outbox import VERSION_1
from qstore.broker.management.qmf1 import content
from qstore.broker.management.qmf1.schema import class_schema, event_schema
from qstore.broker.management.qmf1.sender import SCHEMA_KEY, Batch, Sender
from qstore.broker.management.request import NOT_IMPLEMENTED, OK, UNKNOWN_OBJECT, UnknownObjectError, status_of, text_of
from qstore.broker.model.errors import InvalidArgumentError, ModelError
from qstore.formats.qmf.v1.messages import EVENT, TABLE, Message, decode_message, encode_message
from qstore.formats.qmf.v1.object_id import ObjectId
from qstore.formats.qmf.v1.types import QmfError, decode

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import ManagedClass, Method
    from qstore.broker.management.qmf1.remote_agents import RemoteAgents
    from qstore.broker.management.registry import Registry
    from qstore.broker.management.request import Request
    from qstore.broker.management.turns import Turns

_MAX_IN_BODY: Final = 100
_TEXTS: Final = {OK: "OK", UNKNOWN_OBJECT: "UnknownObject", NOT_IMPLEMENTED: "NotImplemented"}


class Requests:
    """Answers the requests to one broker.

    Args:
        managed: the broker.
        registry: its known objects.
        sender: sends replies.
        turns: when portions of a long reply are made.
        agents: the attached agents.
    """

    def __init__(
        self, managed: ManagedBroker, registry: Registry, sender: Sender, turns: Turns, agents: RemoteAgents
    ) -> None:
        self._managed, self._registry, self._sender, self._turns = managed, registry, sender, turns
        self._agents = agents

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
            self._sender.reply(request, _SIMPLE[opcode](self, sequence, fields, request))
        else:
            self._sender.reply(request, [_end(sequence, NOT_IMPLEMENTED)])
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
        self._sender.reply(request, [encode_message(opcode, message.sequence, status, text)])

    # ---- the schema ----

    def _broker(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        yield encode_message("b", sequence, self._managed.identity.instance)

    def _packages(self, sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        for package in self.packages():
            yield encode_message("p", sequence, package)
        yield _end(sequence, OK)

    def packages(self) -> list[str]:
        """All packages, also those of attached agents."""
        own = [each.package for each in (*CLASSES, *EVENT_CLASSES)]
        return list(dict.fromkeys((*own, *self._agents.packages)))

    def _classes(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        yield from self.classes(sequence, fields["package"])
        yield _end(sequence, OK)

    def classes(self, sequence: int, package: str) -> Iterator[bytes]:
        """The classes of a package."""
        for of in CLASSES:
            if of.package == package:
                yield encode_message("q", sequence, TABLE, of.package, of.name, of.hash.bytes)
        for event in EVENT_CLASSES:
            if event.package == package:
                yield encode_message("q", sequence, EVENT, event.package, event.name, event.hash.bytes)
        for key, each in self._agents.classes(package):
            yield encode_message("q", sequence, each.kind, *key)

    def _schema(self, sequence: int, fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        key = package, name, class_hash = fields["package"], fields["class"], fields["hash"]
        for of in CLASSES:
            if (of.package, of.name, of.hash.bytes) == key:
                yield encode_message("s", sequence, TABLE, package, name, class_hash, rest=class_schema(of))
                return
        for event in EVENT_CLASSES:
            if (event.package, event.name, event.hash.bytes) == key:
                yield encode_message("s", sequence, EVENT, package, name, class_hash, rest=event_schema(event))
                return
        remote = self._agents.find(key)
        if remote is None:
            yield _end(sequence, UNKNOWN_OBJECT)
        else:
            yield encode_message("s", sequence, remote.kind, package, name, class_hash, rest=remote.schema or b"")

    # ---- objects ----

    async def _get(self, sequence: int, fields: dict[str, Any], request: Request) -> None:
        query = {name: typed.value for name, typed in fields["query"].entries}
        try:
            classes, found = self._asked_for(query, request)
        except ModelError as error:
            self._sender.reply(request, [_end(sequence, status_of(error), text_of(error))])
            return
        batch = Batch()
        await prepare(self._managed, classes)
        for each in found:
            values = each.of.values(each.target)
            known, times = self._registry.known(each), (self._managed.broker.clock(), 0.0)
            full = batch.add(
                content.object_message("g", sequence, each.of, known, values, self._registry.id_of, times=times)
            )
            if full or self._turns.is_over:
                self._sender.reply(request, [full or batch.take()])
                await self._turns.next()
        full = batch.add(_end(sequence, OK))
        self._sender.reply(request, [each for each in (full, batch.take()) if each])

    def _asked_for(
        self, query: dict[str, Any], request: Request
    ) -> tuple[Iterable[ManagedClass], Iterable[ManagedObject]]:
        class_name, package, identity = _text(query, "_class"), _text(query, "_package"), query.get("_objectid")
        check_query(self._managed, request.caller, "", class_name)
        if identity is not None:
            object_id = identity if isinstance(identity, ObjectId) else _object_id(identity)
            found = None if object_id is None else self._registry.find(object_id)
            if found is not None and not may_see(self._managed, found.of, found.target, request.caller):
                found = None
            return ((), ()) if found is None else ((found.of,), (found,))
        if not class_name:
            raise InvalidArgumentError("the query has neither _class nor _objectid")
        classes = classes_named(package or None, class_name)
        return classes, all_of(self._managed, classes, request.caller)

    # ---- methods ----

    async def _call(self, message: Message, body: bytes, request: Request) -> int:
        """Call a method. Returns where the request ends: at the end of the body, if there is no such method."""
        sequence, fields, end = message.sequence, message.fields, len(body)
        try:
            found = self._registry.find(fields["object"])
            if found is None:
                raise UnknownObjectError("UnknownObject")
            method = found.of.methods.get(fields["method"])
            arguments: dict[str, Any] = {}
            if method is not None:
                arguments, end = _arguments(method, body, message.end)
            results = await call(self._managed, found, fields["method"], arguments, request.caller)
            rest = b"" if method is None else content.results(method.arguments, results)
            reply = encode_message("m", sequence, OK, _TEXTS[OK], rest=rest)
        except ModelError as error:
            reply = encode_message("m", sequence, status_of(error), text_of(error))
        self._sender.reply(request, [reply])
        return end

    # ---- attached agents ----

    def _attach(self, sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        peer = request.caller.remote_host
        agent = self._agents.attach(peer, fields["label"], fields["system"], fields["agent_bank"])
        if agent is not None:
            yield encode_message("a", sequence, agent.broker_bank, agent.agent_bank)

    def _take_package(self, _sequence: int, _fields: dict[str, Any], _request: Request) -> Iterator[bytes]:
        """An agent has told of a package, which says nothing without its classes."""
        return iter(())

    def _take_class(self, _sequence: int, fields: dict[str, Any], request: Request) -> Iterator[bytes]:
        agent = self._agents.of_peer(request.caller.remote_host)
        key = fields["package"], fields["class"], fields["hash"]
        if agent is None or fields["kind"] not in (TABLE, EVENT) or self._is_own(key):
            return
        number = self._agents.announced(agent, fields["kind"], key)
        if number is not None:
            yield encode_message("S", number, *key)

    def _take_schema(self, sequence: int, fields: dict[str, Any], schema: bytes, request: Request) -> None:
        """An agent describes a class: consoles get it if its user may publish to them."""
        self._managed.broker.authorization.check_publish(request.caller, VERSION_1, SCHEMA_KEY)
        agent = self._agents.of_peer(request.caller.remote_host)
        key = fields["package"], fields["class"], fields["hash"]
        if agent is not None and self._agents.described(agent, sequence, key, schema):
            told = encode_message("p", 0, key[0]) + encode_message("q", 0, fields["kind"], *key)
            if self._sender.is_heard(SCHEMA_KEY):
                self._sender.publish(SCHEMA_KEY, told)

    @staticmethod
    def _is_own(key: tuple[str, str, bytes]) -> bool:
        return any(key[0] == each.package for each in CLASSES)


_SIMPLE: Final = {
    "B": Requests._broker,
    "P": Requests._packages,
    "Q": Requests._classes,
    "S": Requests._schema,
    "A": Requests._attach,
    "p": Requests._take_package,
    "q": Requests._take_class,
}
"""Requests that are answered at once."""


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
