"""The core of a console: requests to agents and their answers, over a session of the client.

A request goes to an agent by its name, or to the broker's own by `broker`, on the exchange `qmf.default.direct`; the
answers come to the console's own queue, with the request's correlation id. An answer may be several messages: all but
the last have the header `partial`. Several requests may wait at the same time: each takes all answers that have
come, and leaves those to other requests for them.

What an answer may take is limited: a message by the connection's `max_message_bytes`, prefetched messages by
`CAPACITY`, answers for requests that do not fetch them by `MAX_WAITING`, and the objects of a query by `MAX_OBJECTS`.

Like the client's core, this waits only by the client's driver, so that both of its interfaces use it.

Sources: Qpid wiki, "QMFv2 Map Message Protocol"; the keys as qpidd's agent has them.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from qstore.broker.client.connection import ConnectionCore, Driver
from qstore.broker.client.errors import ConnectionClosedError, ConnectionFailedError, ContentError, Empty, NotFound
from qstore.broker.client.links import ReceiverCore, SenderCore
from qstore.broker.client.message import APP_ID, Message
from qstore.broker.client.session import SessionCore
from qstore.broker.management.console.schema import Schema, read_replies, read_schema, request_bytes, sequence_of
from qstore.broker.management.console.values import (
    AgentError,
    AgentInfo,
    Answer,
    AnswerError,
    Data,
    Event,
    NoAgentError,
    NoAnswerError,
    NoObjectError,
    ObjectId,
    SchemaId,
    count,
    mapping,
    read_agent,
    read_data,
    read_event,
    read_exception,
    read_schema_id,
    text,
    texts,
)
from qstore.formats.amqp_0_10.maps import python_list
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.predicate import Condition, PredicateError, parse_predicate

DIRECT: Final = "qmf.default.direct"
TOPIC: Final = "qmf.default.topic"
VERSION_1: Final = "qpid.management"
REPLIES_1: Final = "amq.direct"
"""The sender of replies of version 1."""
_LINK: Final = "{node: {type: topic}, link: {reliability: unreliable}}"
BROKER: Final = "broker"
"""The key of the broker's own agent."""
PACKAGE: Final = "org.apache.qpid.broker"
_OWN_PACKAGE: Final = "qstore"
LOCATE_KEY: Final = "console.request.agent_locate"
CAPACITY: Final = 20
"""Messages that are prefetched."""
MAX_OBJECTS: Final = 1_000_000
"""Objects of one query."""
MAX_WAITING: Final = 64 << 20
"""Bytes of answers that were not fetched."""
DEFAULT_TIMEOUT: Final = 60.0
_MIN_DURATION: Final = 10  # seconds: an agent that grants less is not refreshed more often
_DURATION: Final = 600  # seconds of a subscription, which is refreshed when half of them are over
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Of one answer; a connection that a console opens has this as its `max_message_bytes`."""
MAX_CLASSES: Final = 10_000
"""Packages, and classes of a package."""


class Reply(NamedTuple):
    """A message of an answer.

    Attributes:
        message: the message.
        opcode: its kind; empty for one of version 1.
        is_last: whether no other follows.
    """

    message: Message
    opcode: str
    is_last: bool


class Request:
    """A request that waits for its answer.

    Attributes:
        number: its number, which is its correlation id.
        agent: whom it was sent to, for errors.
        arrived: messages that have come for it.
        size: their bytes.
        is_dropped: whether too many of them were not fetched.
        wire: the session on which it was sent.
    """

    def __init__(self, number: int, agent: str, wire: object) -> None:
        self.number, self.agent = number, agent
        self.arrived: deque[Message] = deque()
        self.size = 0
        self.is_dropped = False
        self.wire = wire

    def add(self, message: Message) -> None:
        """A message has come."""
        if not self.is_dropped:
            self.arrived.append(message)
            self.size += len(message.body)

    def take(self) -> Message:
        """Fetch the first message."""
        message = self.arrived.popleft()
        self.size -= len(message.body)
        return message

    def drop(self) -> None:
        """Keep none of its messages, since too many are not fetched."""
        self.arrived.clear()
        self.size, self.is_dropped = 0, True


class ConsoleCore:
    """A console on one connection.

    Args:
        connection: the connection.
        timeout: seconds that an answer may take, and each further message of it.
    """

    _opened: SessionCore | None = None
    _replies: ReceiverCore
    _direct: SenderCore
    _topic: SenderCore

    def __init__(self, connection: ConnectionCore, timeout: float) -> None:
        self._connection, self.timeout = connection, timeout
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._version_1: SenderCore | None = None
        self._key = f"console.{uuid.uuid4()}"
        self._reply_to = f"{DIRECT}/{self._key}; {{node: {{type: topic}}}}"

    @property
    def queue(self) -> str:
        """The name of its queue for answers."""
        return self._key

    async def open(self) -> None:
        """Open its session, and its queue for answers.

        Raises:
            NoAgentError: the broker has no management.
            MessagingError: the connection or the session has failed.
        """
        session = await self._connection.session(None, is_transactional=False)
        link = f"{{node: {{type: topic}}, link: {{name: '{self._key}', reliability: unreliable}}}}"
        try:
            self._replies = await session.receiver(f"{DIRECT}/{self._key}; {link}", CAPACITY)
            self._direct = await session.sender(f"{DIRECT}; {_LINK}", CAPACITY)
            self._topic = await session.sender(f"{TOPIC}; {_LINK}", CAPACITY)
        except NotFound:
            await session.close(session.driver.now())
            raise NoAgentError(
                f"the broker has no exchange {DIRECT}: management by QMF version 2 is switched off there"
            ) from None
        self._opened = session

    @property
    def _session(self) -> SessionCore:
        if self._opened is None:
            raise ConnectionClosedError("the console is not open: use it in a with block, or call open() first")
        return self._opened

    async def close(self) -> None:
        """Close its session, if it is open."""
        if self._opened is not None:
            await self._session.close(self._session.driver.now() + self.timeout)

    @property
    def driver(self) -> Driver:
        """The driver of its connection."""
        return self._connection.driver

    # ---- requests ----

    async def send(
        self, opcode: str, content: Mapping[str, Any] | list[Any], agent: str, *, to_all: bool = False
    ) -> Request:
        """Send a request to an agent, or to all agents. It has to be ended by `end`."""
        request = self._begin(agent)
        key = LOCATE_KEY if to_all else agent
        message = Message(
            content,
            subject=key,
            reply_to=self._reply_to,
            correlation_id=str(request.number),
            properties={"method": "request", "qmf.opcode": opcode, APP_ID: "qmf2"},
        )
        await self._put(self._topic if to_all else self._direct, message, request)
        return request

    async def send_version_1(self, opcode: str, agent: str, package: str = "", of: SchemaId | None = None) -> Request:
        """Send a request of version 1, which the broker's own agent takes. It has to be ended by `end`.

        Raises:
            NoAgentError: the broker has no management by version 1.
        """
        if self._version_1 is None:
            try:
                self._version_1 = await self._session.sender(f"{VERSION_1}; {_LINK}", CAPACITY)
            except NotFound:
                raise NoAgentError(f"the broker has no exchange {VERSION_1}") from None
        session, key = self._session, self._key
        await session.command("exchange.bind", {"queue": key, "exchange": REPLIES_1, "binding_key": key})
        request = self._begin(agent)
        body = request_bytes(opcode, request.number, package, of)
        await self._put(self._version_1, Message(body, subject=agent, reply_to=self._reply_to), request)
        return request

    def _begin(self, agent: str) -> Request:
        session = self._session
        self._replies.check()
        request = Request(next(self._numbers), agent, session.wire)
        self._requests[request.number] = request
        return request

    async def _put(self, sender: SenderCore, message: Message, request: Request) -> None:
        try:
            await sender.send(message, sync=False, timeout=self.timeout)
        except BaseException:
            self.end(request)
            raise

    def end(self, request: Request) -> None:
        """Forget a request: later answers to it are ignored."""
        self._requests.pop(request.number, None)

    # ---- answers ----

    async def next_message(self, request: Request, timeout: float | None = None) -> Message:
        """The next message of the answer to a request.

        Raises:
            NoAnswerError: none arrived in time.
            AnswerError: the answer is too long or cannot be read.
            MessagingError: the connection or the session has failed.
        """
        seconds = self.timeout if timeout is None else timeout
        session, replies = self._session, self._replies
        deadline = self._session.driver.now() + seconds
        while not request.arrived:
            replies.check()
            if request.is_dropped:
                raise AnswerError(f"more than {MAX_WAITING >> 20} MiB of answers were not fetched")
            if session.wire is not request.wire:
                raise ConnectionFailedError("the connection was lost, and with it the answer to a request")
            message = replies.try_fetch()
            if message is not None:
                self._take(message)
                continue
            if not await session.wait(lambda: self._is_decided(request), deadline):
                raise NoAnswerError(f"no answer from the agent {request.agent} within {seconds:g} seconds")
        return request.take()

    def _is_decided(self, request: Request) -> bool:
        """Whether something has arrived, or nothing can arrive any more."""
        replies = self._replies
        is_lost = replies.failure is not None or self._session.wire is not request.wire
        return bool(request.arrived or replies.incoming or request.is_dropped) or is_lost

    def _take(self, message: Message) -> None:
        """Leave a message for the request that it answers."""
        try:
            identity: Any = message.correlation_id
        except ContentError as error:
            raise AnswerError(str(error)) from None
        if identity is None:
            sequence = sequence_of(message.body)
            identity = None if sequence is None else str(sequence)
        request = self._requests.get(int(identity)) if isinstance(identity, str) and _is_number(identity) else None
        if request is None:
            return
        request.add(message)
        if sum(each.size for each in self._requests.values()) > MAX_WAITING:
            max(self._requests.values(), key=lambda each: each.size).drop()
        self._session.driver.changed()

    async def next_reply(self, request: Request, expected: str, timeout: float | None = None) -> Reply:
        """The next message of an answer of version 2.

        Raises:
            AgentError: the agent has refused the request.
            AnswerError: it is another message than `expected`.
            MessagingError: as `next_message`.
        """
        message = await self.next_message(request, timeout)
        try:
            headers = message.properties
            opcode = headers.get("qmf.opcode")
            if opcode == "_exception":
                raise read_exception(message.content)
        except ContentError as error:
            raise AnswerError(str(error)) from None
        if opcode != expected:
            raise AnswerError(f"the agent {request.agent} has answered {opcode!r} instead of {expected}")
        return Reply(message, expected, "partial" not in headers)

    # ---- objects ----

    async def query(
        self,
        class_name: str | None,
        package: str | None,
        object_id: Data | ObjectId | str | None,
        where: list[Any] | None,
        agent: str | None,
    ) -> Query:
        """Ask for objects. See `blocking.Console.query`."""
        content, condition, agent = _query_content(class_name, package, object_id, where, agent)
        return Query(self, await self.send("_query_request", content, agent), condition)

    async def subscribe(
        self,
        class_name: str | None,
        package: str | None,
        object_id: Data | ObjectId | str | None,
        where: list[Any] | None,
        agent: str | None,
        *,
        interval: float,
    ) -> Subscription:
        """Ask for objects, and for what changes of them. See `blocking.Console.subscribe`."""
        query, condition, agent = _query_content(class_name, package, object_id, where, agent)
        content = {"_query": query, "_interval": round(interval * 1000), "_duration": _DURATION}
        request = await self.send("_subscribe_request", content, agent)
        try:
            granted = mapping(
                _content((await self.next_reply(request, "_subscribe_response")).message), "a subscription"
            )
            return Subscription(
                self, request, condition, text(granted, "_subscription_id"), count(granted, "_duration")
            )
        except BaseException:
            self.end(request)
            raise

    async def find(self, target: Data | ObjectId | str, agent: str | None) -> Data:
        """One object, by its name. See `blocking.Console.find`."""
        asked = await self.query(None, None, target, None, agent)
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
        self,
        target: Data | ObjectId | str,
        method: str,
        arguments: Mapping[str, Any],
        agent: str | None,
        timeout: float | None,
    ) -> dict[str, Any]:
        """Call a method. See `blocking.Console.call`."""
        wanted = object_name(target)
        content = {"_object_id": wanted.as_map(), "_method_name": method, "_arguments": dict(arguments)}
        request = await self.send("_method_request", content, agent or wanted.agent or BROKER)
        try:
            reply = await self.next_reply(request, "_method_response", timeout)
            results = mapping(_content(reply.message), "a result").get("_arguments", {})
            return mapping(texts(results), "the results")
        finally:
            self.end(request)

    async def agents(self, wait: float) -> list[AgentInfo]:
        """All agents that answer in time. See `blocking.Console.agents`."""
        request = await self.send("_agent_locate_request", [], "agents", to_all=True)
        found: dict[str, AgentInfo] = {}
        driver = self.driver
        deadline = driver.now() + wait
        try:
            while len(found) < MAX_CLASSES:
                left = deadline - driver.now()
                reply = await self.next_reply(request, "_agent_locate_response", max(0.0, left))
                agent = read_agent(_content(reply.message))
                found[agent.name] = agent
        except NoAnswerError:
            pass
        finally:
            self.end(request)
        return list(found.values())

    # ---- schemas ----

    async def classes(self, package: str | None, agent: str | None) -> list[SchemaId]:
        """The classes of an agent. See `blocking.Console.classes`."""
        key = agent or BROKER
        try:
            found = [read_schema_id(each) for each in await self._items_of({"_what": "SCHEMA_ID"}, key)]
        except AgentError:
            found = await self._classes_by_version_1(key)
        return [each for each in found if package is None or each.package == package]

    async def schema(self, of: SchemaId | str, agent: str | None) -> Schema:
        """The schema of a class. See `blocking.Console.schema`."""
        key = agent or BROKER
        if isinstance(of, str):
            package, _, name = of.rpartition(":")
            wanted = [each for each in await self.classes(package or None, agent) if each.name.lower() == name.lower()]
            if not wanted:
                raise NoObjectError(f"there is no class {of}")
            of = wanted[0]
        try:
            items = await self._items_of({"_what": "SCHEMA", "_schema_id": of.as_map()}, key)
        except AgentError:
            found: list[Schema] = await self._replies_by_version_1("S", key, "s", of=of)
            return found[0]
        if not items:
            raise NoObjectError(f"the agent {key} has no class {of.name}")
        return read_schema(items[0])

    async def _items_of(self, content: Mapping[str, Any], agent: str) -> list[Any]:
        """The whole answer to a query for schemas, or their ids."""
        request = await self.send("_query_request", content, agent)
        found: list[Any] = []
        try:
            is_last = False
            while not is_last:
                reply = await self.next_reply(request, "_query_response")
                found += _items(reply.message)
                is_last = reply.is_last
                if len(found) > MAX_CLASSES:
                    raise AnswerError(f"the agent {agent} has sent more than {MAX_CLASSES:,} classes")
        finally:
            self.end(request)
        return found

    async def _classes_by_version_1(self, agent: str) -> list[SchemaId]:
        found: list[SchemaId] = []
        for package in await self._replies_by_version_1("P", agent, "p"):
            found += await self._replies_by_version_1("Q", agent, "q", package)
        return found

    async def _replies_by_version_1(
        self, opcode: str, agent: str, expected: str, package: str = "", of: SchemaId | None = None
    ) -> list[Any]:
        """The contents of the replies to a request of version 1, up to its end."""
        request = await self.send_version_1(opcode, agent, package, of)
        found: list[Any] = []
        try:
            while len(found) <= MAX_CLASSES:
                message = await self.next_message(request)
                for answered, _, content in read_replies(message.body):
                    if answered == "z":
                        code, text = content
                        if code:
                            raise AgentError(text or f"error {code}", code)
                        return found
                    if answered != expected:
                        raise AnswerError(f"the agent {agent} has answered {answered!r} instead of {expected!r}")
                    found.append(content)
                if expected == "s" and found:
                    return found
        finally:
            self.end(request)
        raise AnswerError(f"the agent {agent} has sent more than {MAX_CLASSES:,} classes")

    # ---- indications ----

    async def stream(
        self, *, events: bool, heartbeats: bool, objects: bool, of: Iterable[tuple[str, str]] | None = None
    ) -> Stream:
        """Receive agents' publications. See `blocking.Console.indications`."""
        wanted = {"event": events, "heartbeat": heartbeats, "data": objects and of is None}
        keys = [f"agent.ind.{name}.#" for name, is_wanted in wanted.items() if is_wanted]
        if objects and of is not None:
            keys += [f"agent.ind.data.{package.replace('.', '_')}.{name}.#" for package, name in of]
        return Stream(await self._subscribe(tuple(dict.fromkeys(keys))))

    async def _subscribe(self, keys: tuple[str, ...]) -> ReceiverCore:
        """A receiver for agents' publications with these keys.

        Its queue is a ring: a console that is too slow misses the oldest indications.
        """
        bindings = ", ".join(f"{{exchange: '{TOPIC}', key: '{key}'}}" for key in keys)
        declare = f"{{arguments: {{qpid.policy_type: ring, qpid.max_size: {MAX_WAITING}}}}}"
        link = f"reliability: unreliable, x-declare: {declare}, x-bindings: [{bindings}]"
        return await self._session.receiver(f"{TOPIC}; {{node: {{type: topic}}, link: {{{link}}}}}", CAPACITY)


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
            AnswerError: it is not a list of objects, or there are too many.
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
        return found if condition is None else [each for each in found if condition(names_of(each))]

    def close(self) -> None:
        """End it; later publications are ignored."""
        self._is_over = True
        self._core.end(self._request)


class Subscription:
    """A subscription: objects that have changed.

    Args:
        core: the console.
        request: the request, which indications answer.
        condition: which of the objects are wanted; None for all.
        name: its name at the agent.
        duration: seconds for which it was granted.
    """

    def __init__(
        self, core: ConsoleCore, request: Request, condition: Condition | None, name: str, duration: int
    ) -> None:
        self._core, self._request, self._condition = core, request, condition
        self._name, self._duration = {"_subscription_id": name}, max(duration, _MIN_DURATION)
        self._ready: list[Data] = []
        self._refresh_at = self._next_refresh()

    def _next_refresh(self) -> float:
        return self._core.driver.now() + self._duration / 2

    async def next(self, timeout: float | None) -> Data | None:
        """The next object that has changed; None if none comes in time.

        Raises:
            AgentError: the agent has ended it.
            AnswerError: an object cannot be read.
            MessagingError: the connection or the session has failed.
        """
        core = self._core
        deadline = None if timeout is None else core.driver.now() + timeout
        while not self._ready:
            now = core.driver.now()
            if now >= self._refresh_at:
                self._refresh_at = self._next_refresh()
                core.end(await core.send("_subscribe_refresh_indication", self._name, self._request.agent))
            end = self._refresh_at if deadline is None else min(deadline, self._refresh_at)
            try:
                reply = await core.next_reply(self._request, "_data_indication", max(0.0, end - now))
            except NoAnswerError:
                if deadline is not None and core.driver.now() >= deadline:
                    return None
                continue
            self._ready = [each for each in _objects(reply.message) if self._wants(each)][::-1]
        return self._ready.pop()

    def _wants(self, data: Data) -> bool:
        return bool(data.deleted) or self._condition is None or self._condition(names_of(data))

    async def close(self) -> None:
        """End it."""
        core = self._core
        core.end(self._request)
        core.end(await core.send("_subscribe_cancel_indication", self._name, self._request.agent))


Indication: TypeAlias = Event | AgentInfo | Data
"""A publication of an agent: an event; an agent, by its heartbeat; an object that has changed."""


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


# ---- requests ----


def _query_content(
    class_name: str | None,
    package: str | None,
    object_id: Data | ObjectId | str | None,
    where: list[Any] | None,
    agent: str | None,
) -> tuple[dict[str, Any], Condition | None, str]:
    """The content of a query, its condition, and whom it is for. Raises ContentError."""
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
    return content, condition, agent or BROKER


# ---- reading answers ----


def _objects(message: Message) -> list[Data]:
    answer = Answer(message.body)
    return [read_data(each, (answer, index)) for index, each in enumerate(_items(message))]


def _items(message: Message) -> list[Any]:
    """The list that is a message's content."""
    try:
        return python_list(message.body) if message.body else []
    except Amqp010Error as error:
        raise AnswerError(f"the answer is not a list: {error.what}") from None


def _content(message: Message) -> object:
    try:
        return message.content
    except ContentError as error:
        raise AnswerError(str(error)) from None


def _indications(message: Message) -> list[Indication]:
    """The publications in a message; empty if it has none."""
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


def names_of(data: Data) -> Mapping[str, Any]:
    """The values of an object, as a condition names them."""
    schema, identity = data.schema_id, data.object_id
    names: dict[str, Any] = {"_create_ts": data.created, "_update_ts": data.updated, "_delete_ts": data.deleted}
    if identity is not None:
        names["_object_id"] = identity.name
    if schema is not None:
        names |= {"_package_name": schema.package, "_class_name": schema.name, "_hash_str": str(schema.hash)}
    return {**data.values, **names}


def object_name(target: Data | ObjectId | str) -> ObjectId:
    """The object that is meant: by itself, its identity, its whole name, CLASS:KEY, or `broker`.

    Raises:
        AnswerError: it is data without an object.
    """
    if isinstance(target, Data):
        if target.object_id is None:
            raise AnswerError("these values are not an object of an agent")
        return target.object_id
    if isinstance(target, ObjectId):
        return target
    if target == BROKER:
        target = "broker:amqp-broker"
    package = target.partition(":")[0]
    return ObjectId(target if "." in package or package == _OWN_PACKAGE else f"{PACKAGE}:{target}")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20
