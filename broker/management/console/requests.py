"""What a console asks agents: for objects, methods, schemas, and which agents there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from qstore.broker.client.core_receiver import ReceiverCore
from qstore.broker.client.errors import ContentError, Empty
from qstore.broker.client.message import Message
from qstore.broker.management.console import version_1
from qstore.broker.management.console.core import BROKER, MAX_OBJECTS, ConsoleCore, Request, object_name
from qstore.broker.management.console.errors import AgentError, AnswerError, NoAnswerError, NoObjectError
from qstore.broker.management.console.schema import Schema, read_schema
from qstore.broker.management.console.values import (
    AgentInfo,
    Answer,
    Data,
    Event,
    ObjectId,
    SchemaId,
    mapping,
    read_agent,
    read_data,
    read_event,
    read_schema_id,
    texts,
)
from qstore.formats.amqp_0_10.maps import python_list
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.qmf.predicate import Condition, PredicateError, parse_predicate

MAX_CLASSES: Final = 10_000
"""Packages, and classes of a package."""
Indication: TypeAlias = Event | AgentInfo | Data
"""What agents publish: an event; an agent, by its heartbeat; an object that has changed."""


class Query:
    """A query under way.

    Args:
        core: the console.
        request: the request.
        condition: which of the objects are wanted; None for all.
    """

    def __init__(self, core: ConsoleCore, request: Request, condition: Condition | None) -> None:
        self._core, self._request, self._condition = core, request, condition
        self._count = 0
        self._is_over = False

    async def portion(self) -> list[Data] | None:
        """The next objects; None at the end.

        Raises:
            AnswerError: it is no list of objects, or there are too many.
            MessagingError: as `ConsoleCore.next_reply`.
        """
        if self._is_over:
            return None
        try:
            reply = await self._core.next_reply(self._request, "_query_response")
            found = _objects(reply.message)
        except BaseException:
            self.close()
            raise
        self._count += len(found)
        if self._count > MAX_OBJECTS:
            self.close()
            raise AnswerError(f"the agent {self._request.agent} has sent more than {MAX_OBJECTS:,} objects")
        if reply.is_last:
            self.close()
        condition = self._condition
        return found if condition is None else [each for each in found if condition(_names_of(each))]

    def close(self) -> None:
        """End it; what still comes is ignored."""
        self._is_over = True
        self._core.end(self._request)


def _objects(message: Message) -> list[Data]:
    answer = Answer(message.body)
    return [read_data(each, (answer, index)) for index, each in enumerate(_items(message))]


def _items(message: Message) -> list[Any]:
    """The list that is a message's content."""
    try:
        return python_list(message.body) if message.body else []
    except Amqp010Error as error:
        raise AnswerError(f"the answer is no list: {error.what}") from None


def _names_of(data: Data) -> Mapping[str, Any]:
    """The values of an object, as a condition names them."""
    schema, identity = data.schema_id, data.object_id
    names: dict[str, Any] = {"_create_ts": data.created, "_update_ts": data.updated, "_delete_ts": data.deleted}
    if identity is not None:
        names["_object_id"] = identity.name
    if schema is not None:
        names |= {"_package_name": schema.package, "_class_name": schema.name, "_hash_str": str(schema.hash)}
    return {**data.values, **names}


async def query(
    core: ConsoleCore,
    class_name: str | None,
    package: str | None,
    object_id: Data | ObjectId | str | None,
    where: list[Any] | None,
    agent: str | None,
) -> Query:
    """Ask for objects. See `blocking.Console.query`."""
    condition = None
    content: dict[str, Any] = {"_what": "OBJECT"}
    if where is not None:
        try:
            condition = parse_predicate(where)
        except PredicateError as error:
            raise ContentError(f"invalid condition: {error.what}") from None
        content["_where"] = where
    if object_id is not None:
        wanted = object_name(object_id)
        content["_object_id"] = wanted.as_map()
        agent = agent or wanted.agent
    else:
        schema = {"_class_name": class_name, "_package_name": package}
        content["_schema_id"] = {name: each for name, each in schema.items() if each is not None}
    request = await core.send("_query_request", content, agent or BROKER)
    return Query(core, request, condition)


async def find(core: ConsoleCore, target: Data | ObjectId | str, agent: str | None) -> Data:
    """One object, by its name. See `blocking.Console.find`."""
    asked = await query(core, None, None, target, None, agent)
    found: list[Data] = []
    try:
        while (portion := await asked.portion()) is not None:
            found += portion[:1]
    finally:
        asked.close()
    if not found:
        raise NoObjectError(f"there is no object {object_name(target).name}")
    return found[0]


async def call(
    core: ConsoleCore,
    target: Data | ObjectId | str,
    method: str,
    arguments: Mapping[str, Any],
    agent: str | None,
    timeout: float | None,
) -> dict[str, Any]:
    """Call a method. See `blocking.Console.call`."""
    wanted = object_name(target)
    content = {"_object_id": wanted.as_map(), "_method_name": method, "_arguments": dict(arguments)}
    request = await core.send("_method_request", content, agent or wanted.agent or BROKER)
    try:
        reply = await core.next_reply(request, "_method_response", timeout)
        results = mapping(_content(reply.message), "a result").get("_arguments", {})
        return mapping(texts(results), "the results")
    finally:
        core.end(request)


def _content(message: Message) -> object:
    try:
        return message.content
    except ContentError as error:
        raise AnswerError(str(error)) from None


async def agents(core: ConsoleCore, wait: float) -> list[AgentInfo]:
    """All agents that answer in time. See `blocking.Console.agents`."""
    request = await core.send("_agent_locate_request", [], "agents", to_all=True)
    found: dict[str, AgentInfo] = {}
    driver = core.driver
    deadline = driver.now() + wait
    try:
        while len(found) < MAX_CLASSES:
            left = deadline - driver.now()
            reply = await core.next_reply(request, "_agent_locate_response", max(0.0, left))
            agent = read_agent(_content(reply.message))
            found[agent.name] = agent
    except NoAnswerError:
        pass
    finally:
        core.end(request)
    return list(found.values())


# ---- schemas ----


async def classes(core: ConsoleCore, package: str | None, agent: str | None) -> list[SchemaId]:
    """The classes of an agent. See `blocking.Console.classes`."""
    key = agent or BROKER
    try:
        found = [read_schema_id(each) for each in await _items_of(core, {"_what": "SCHEMA_ID"}, key)]
    except AgentError:
        found = await _classes_by_version_1(core, key)
    return [each for each in found if package is None or each.package == package]


async def _items_of(core: ConsoleCore, content: Mapping[str, Any], agent: str) -> list[Any]:
    """The whole answer to a query for schemas, or their ids."""
    request = await core.send("_query_request", content, agent)
    found: list[Any] = []
    try:
        is_last = False
        while not is_last:
            reply = await core.next_reply(request, "_query_response")
            found += _items(reply.message)
            is_last = reply.is_last
            if len(found) > MAX_CLASSES:
                raise AnswerError(f"the agent {agent} has sent more than {MAX_CLASSES:,} classes")
    finally:
        core.end(request)
    return found


async def _replies_by_version_1(core: ConsoleCore, opcode: str, content: bytes, agent: str, expected: str) -> list[Any]:
    """The contents of the replies to a request of version 1, up to its end."""
    request = await core.send_version_1(opcode, content, agent)
    found: list[Any] = []
    try:
        while len(found) <= MAX_CLASSES:
            message = await core.next_message(request)
            for reply in version_1.read_replies(message.body):
                if reply.opcode == "z":
                    code, text = reply.content
                    if code:
                        raise AgentError(text or f"error {code}", code)
                    return found
                if reply.opcode != expected:
                    raise AnswerError(f"the agent {agent} has answered {reply.opcode!r} instead of {expected!r}")
                found.append(reply.content)
            if expected == "s" and found:
                return found
    finally:
        core.end(request)
    raise AnswerError(f"the agent {agent} has sent more than {MAX_CLASSES:,} classes")


async def _classes_by_version_1(core: ConsoleCore, agent: str) -> list[SchemaId]:
    found: list[SchemaId] = []
    for package in await _replies_by_version_1(core, "P", b"", agent, "p"):
        found += await _replies_by_version_1(core, "Q", version_1.package_bytes(package), agent, "q")
    return found


async def schema(core: ConsoleCore, of: SchemaId | str, agent: str | None) -> Schema:
    """The schema of a class. See `blocking.Console.schema`."""
    key = agent or BROKER
    if isinstance(of, str):
        package, _, name = of.rpartition(":")
        wanted = [each for each in await classes(core, package or None, agent) if each.name.lower() == name.lower()]
        if not wanted:
            raise NoObjectError(f"there is no class {of}")
        of = wanted[0]
    try:
        items = await _items_of(core, {"_what": "SCHEMA", "_schema_id": of.as_map()}, key)
    except AgentError:
        found: list[Schema] = await _replies_by_version_1(core, "S", version_1.class_bytes(of), key, "s")
        return found[0]
    if not items:
        raise NoObjectError(f"the agent {key} has no class {of.name}")
    return read_schema(items[0])


# ---- indications ----


class Stream:
    """Events, heartbeats and objects that have changed, as agents publish them.

    Args:
        receiver: receives them.
    """

    def __init__(self, receiver: ReceiverCore) -> None:
        self._receiver = receiver
        self._ready: list[Indication] = []

    async def next(self, timeout: float | None) -> Indication | None:
        """The next one; None if none comes in time.

        Raises:
            AnswerError: one cannot be read; the next one may.
            MessagingError: the connection or the session has failed.
        """
        driver = self._receiver.session.driver
        deadline = None if timeout is None else driver.now() + timeout
        while not self._ready:
            try:
                message = await self._receiver.fetch(None if deadline is None else max(0.0, deadline - driver.now()))
            except Empty:
                return None
            self._ready = _indications(message)[::-1]
        return self._ready.pop()

    async def close(self) -> None:
        """End it."""
        await self._receiver.close()


def _indications(message: Message) -> list[Indication]:
    """What a message tells; nothing if it tells of something else."""
    try:
        headers = message.properties
    except ContentError as error:
        raise AnswerError(str(error)) from None
    opcode = headers.get("qmf.opcode")
    if opcode == "_agent_heartbeat_indication":
        return [read_agent(_content(message))]
    if opcode == "_data_indication" and headers.get("qmf.content") == "_event":
        agent = headers.get("qmf.agent")
        return [read_event(each, agent if isinstance(agent, str) else "") for each in _items(message)]
    if opcode == "_data_indication" and headers.get("qmf.content") == "_data":
        return list(_objects(message))
    return []


async def stream(core: ConsoleCore, *, events: bool, heartbeats: bool, objects: bool) -> Stream:
    """Receive what agents publish. See `blocking.Console.indications`."""
    wanted = {"event": events, "heartbeat": heartbeats, "data": objects}
    return Stream(await core.subscribe(tuple(f"agent.ind.{name}.#" for name, is_wanted in wanted.items() if is_wanted)))
