"""The management agent of the broker, QMF version 2: answers requests, and publishes events and heartbeats.

    exchange             key                           what
    -------------------  ----------------------------  ---------------------------------------------------------
    qmf.default.direct   broker, or the agent's name   requests: `_agent_locate_request`, `_query_request`,
                                                       `_method_request`; they are not routed to queues
    qmf.default.topic    console.request.agent_locate  `_agent_locate_request`, which other agents get, too
    qpid.management      broker, or schema.…           requests of QMF version 1 for the schema (`schema_requests`)
    qmf.default.topic    agent.ind.event.PACKAGE.EVENT.SEVERITY.VENDOR.PRODUCT.INSTANCE    events
    qmf.default.topic    agent.ind.heartbeat.VENDOR.PRODUCT.INSTANCE                       heartbeats

A request is a message whose content is a map, and whose application header `qmf.opcode` says what it is. Its reply goes
to its reply-to, with its correlation id; a request without a reply-to is carried out and not answered. Consoles of
version 2 ask for the schema in the form of version 1, by any of these keys. What cannot be
done is answered by `_exception`. A query is answered in portions, with the header `partial` on all but the last, and
other clients are served in between. Events are encoded only if a queue is bound for them.

Sources: the QMF schema of qpidd's broker; Qpid wiki, "QMFv2"; qpidd, ManagementAgent.cpp (keys and headers).
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from qstore.broker.management.event_table import EVENTS
from qstore.broker.management.methods import Methods, values_of
from qstore.broker.management.objects import ManagedObject, Objects, Reference
from qstore.broker.management.schema import PACKAGE
from qstore.broker.management.schema_requests import MAGIC, SchemaRequests
from qstore.broker.model.caller import BROKER, Caller, Publisher
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.events import Event
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.broker.model.exchanges.types import MANAGEMENT_EXCHANGES
from qstore.broker.model.message import MakeMessage, Message, NewMessage, ReplyAddress
from qstore.formats.amqp_0_10.maps import decode_map
from qstore.formats.errors import FormatError
from qstore.formats.values import LIST, MAP, UINT64, TypedMap, TypedValue, typed_map, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.exchanges.exchange import Put
    from qstore.broker.model.queues.queue import Queue

DIRECT, TOPIC, VERSION_1 = MANAGEMENT_EXCHANGES
_LOCATE_KEY: Final = "console.request.agent_locate"
_ALIAS: Final = "broker"
_VENDOR, _PRODUCT = "apache.org", "qpidd"
_APP_ID: Final = b"qmf2"
_PORTION: Final = 25
"""Objects in one message of a reply, after which others are served."""
_MAX_REQUESTS: Final = 100
"""Requests that are carried out at the same time."""
_MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 0xFFFF
_DEEP: Final = 2
"""Events that are raised while an event of an event is published are not published."""
_CODES: Final = {
    NotFoundError: 4, InvalidArgumentError: 4, PreconditionFailedError: 4, NotImplementedByBrokerError: 3,
    UnauthorizedError: 6,
}  # fmt: skip
"""The error codes of what cannot be done: invalid parameter, not implemented, forbidden; the others are exceptions."""
_EXCEPTION: Final = 7

Run: TypeAlias = Callable[[Coroutine[Any, Any, None], Callable[[ModelError | None], None]], None]
"""Runs a coroutine, and calls back with its error, or None."""


class _Request(NamedTuple):
    """A request.

    Attributes:
        opcode: what it is.
        content: its content.
        caller: who has sent it.
        reply_to: where its reply goes; None if nobody waits for it.
        correlation_id: of its reply.
    """

    opcode: str
    content: TypedMap
    caller: Caller
    reply_to: ReplyAddress | None
    correlation_id: bytes | None


class Agent:
    """The agent of one broker.

    Args:
        broker: the model.
        objects: its managed objects.
        make_message: encodes messages.
        run: runs what takes time.

    Attributes:
        name: its name: vendor, product and instance.
    """

    def __init__(self, broker: Broker, objects: Objects, make_message: MakeMessage, run: Run) -> None:
        self._broker, self._objects, self._make_message, self._run = broker, objects, make_message, run
        self._methods = Methods(broker, objects)
        self._instance = str(uuid.uuid4())
        self._under_way = 0
        self._depth = 0
        self.name = f"{_VENDOR}:{_PRODUCT}:{self._instance}"
        self._suffix = f"{_VENDOR.replace('.', '_')}.{_PRODUCT}.{self._instance}"
        self._direct = self._exchange(DIRECT, DirectExchange, {_ALIAS, self.name}, is_shared=False)
        self._topic = self._exchange(TOPIC, TopicExchange, {_LOCATE_KEY}, is_shared=True)
        self._exchange(VERSION_1, TopicExchange, {_ALIAS}, is_shared=False)
        self._schema_requests = SchemaRequests(uuid.UUID(self._instance))
        broker.events.listen(self.publish_event)

    def _exchange(self, name: str, make: type[Exchange], keys: set[str], *, is_shared: bool) -> Exchange:
        """The exchange with this name, which is created unless a store had it; the agent takes messages with `keys`."""
        exchange = self._broker.exchanges.setdefault(name, make(name))
        exchange.receiver = _Requests(self, exchange, frozenset(keys), is_shared=is_shared)
        exchange.routes_by_key = False
        return exchange

    # ---- requests ----

    def request(self, message: Message) -> None:
        """Begin to carry out a request. What is none is ignored."""
        if message.size > _MAX_REQUEST_BYTES:
            return
        properties = message.properties()
        opcode = message.header_text("qmf.opcode")
        if opcode is None:
            self._answer_schema_request(message, properties.reply_to)
            return
        publisher = message.handling.publisher
        correlation_id = properties.correlation_id
        request = _Request(
            opcode,
            _content_of(message, properties.content_type),
            publisher if isinstance(publisher, Publisher) else BROKER,
            properties.reply_to,
            correlation_id.encode() if isinstance(correlation_id, str) else correlation_id
            if isinstance(correlation_id, bytes) else None,
        )  # fmt: skip
        if request.caller is BROKER:
            return
        if self._under_way >= _MAX_REQUESTS:
            self._refuse(request, ResourceLimitExceededError("too many management requests at the same time"))
            return
        self._under_way += 1

        def done(error: ModelError | None) -> None:
            self._under_way -= 1
            if error is not None:
                self._refuse(request, error)

        self._run(self._carry_out(request), done)

    def _answer_schema_request(self, message: Message, reply_to: ReplyAddress | None) -> None:
        body = message.body
        if reply_to is None or not isinstance(body, bytes) or not body.startswith(MAGIC):
            return
        exchange = self._broker.exchanges.get(reply_to.exchange)
        if exchange is not None:
            headers = typed_map({"qmf.agent": self.name})
            for reply in self._schema_requests.answer(body):
                self._put(NewMessage(reply_to.routing_key, headers, content=reply, exchange=exchange.name), exchange)

    async def _carry_out(self, request: _Request) -> None:
        if request.opcode == "_agent_locate_request":
            self._reply(request, "_agent_locate_response", {"_values": self._attributes()}, method="indication")
        elif request.opcode == "_query_request":
            await self._query(request)
        elif request.opcode == "_method_request":
            await self._call(request)
        else:
            raise InvalidArgumentError(f"unknown opcode: {printable(request.opcode)}")

    def _refuse(self, request: _Request, error: ModelError) -> None:
        values = {"error_code": _CODES.get(type(error), _EXCEPTION), "error_text": str(error)}
        self._reply(request, "_exception", {"_values": values}, method="indication")

    async def _query(self, request: _Request) -> None:
        what = _value(request.content, "_what")
        if what != "OBJECT":
            raise InvalidArgumentError(f"query of {printable(str(what))} is not supported, only of OBJECT")
        objects = iter(self._asked_for(request.content))
        while request.reply_to is not None:
            portion = list(itertools.islice(objects, _PORTION))
            is_last = len(portion) < _PORTION
            more = {} if is_last else {"partial": None}
            described = [self._described(each) for each in portion]
            self._reply(request, "_query_response", described, {"qmf.content": "_data", **more})
            if is_last:
                return
            await asyncio.sleep(0)

    def _asked_for(self, content: TypedMap) -> Iterable[ManagedObject]:
        identity = _value(content, "_object_id")
        if isinstance(identity, TypedMap):
            found = self._objects.find(str(_value(identity, "_object_name")))
            return () if found is None else (found,)
        schema = _value(content, "_schema_id")
        if not isinstance(schema, TypedMap):
            raise InvalidArgumentError("the query has neither _object_id nor _schema_id")
        package, name = _value(schema, "_package_name"), _value(schema, "_class_name")
        if package not in (None, PACKAGE):
            return ()
        if isinstance(name, str):
            return self._objects.of_class(name)
        return (each for of in self._objects.classes for each in self._objects.of_class(of))

    def _described(self, managed: ManagedObject) -> dict[str, Any]:
        now = _nanoseconds(self._broker.clock())
        return {
            "_object_id": {"_object_name": managed.name, "_agent_name": self.name},
            "_schema_id": _schema_id(managed.of.name, "_data", managed.of.hash),
            "_values": _encodable(self._objects.values(managed)),
            "_create_ts": _nanoseconds(self._broker.started_at),
            "_update_ts": now,
            "_delete_ts": _nanoseconds(0),
        }

    async def _call(self, request: _Request) -> None:
        identity, method = _value(request.content, "_object_id"), _value(request.content, "_method_name")
        if not isinstance(identity, TypedMap) or not isinstance(method, str):
            raise InvalidArgumentError("the request has no _object_id, or no _method_name")
        name = str(_value(identity, "_object_name"))
        managed = self._objects.find(name)
        if managed is None:
            raise NotFoundError(f"there is no object {printable(name)}")
        given = _value(request.content, "_arguments")
        arguments = values_of(given) if isinstance(given, TypedMap) else {}
        results = await self._methods.call(managed, method, arguments, request.caller)
        self._reply(request, "_method_response", {"_arguments": _encodable(results)})

    def _reply(
        self,
        request: _Request,
        opcode: str,
        content: Mapping[str, Any] | Sequence[Any],
        headers: Mapping[str, Any] | None = None,
        *,
        method: str = "response",
    ) -> None:
        """Send a reply, if it is waited for and there is room for it."""
        if request.reply_to is None:
            return
        exchange = self._broker.exchanges.get(request.reply_to.exchange)
        if exchange is None:
            return
        self._send(
            exchange, request.reply_to.routing_key, opcode, content, {"method": method, **(headers or {})},
            correlation_id=request.correlation_id,
        )  # fmt: skip

    # ---- events and heartbeats ----

    def publish_event(self, event: Event) -> None:
        """Publish an event, if anybody is bound for it."""
        table = EVENTS.get(type(event))
        if table is None:
            return
        key = f"agent.ind.event.{PACKAGE.replace('.', '_')}.{table.name}.{table.severity.word}.{self._suffix}"
        if self._depth >= _DEEP or not self._topic.match(key).queues:
            return
        values: dict[str, Any] = dict(zip(table.arguments, event, strict=True))
        if "disp" in values:
            values["disp"] = "created" if values["disp"] else "existing"
        content = {
            "_schema_id": _schema_id(table.name, "_event", table.hash),
            "_values": _encodable(values),
            "_timestamp": _nanoseconds(self._broker.clock()),
            "_severity": table.severity.value,
        }
        self._depth += 1
        try:
            headers = {"method": "indication", "qmf.content": "_event"}
            self._send(self._topic, key, "_data_indication", [content], headers)
        finally:
            self._depth -= 1

    def publish_heartbeat(self) -> None:
        """Publish a heartbeat, if anybody is bound for it. It expires after two intervals."""
        key = f"agent.ind.heartbeat.{self._suffix}"
        if self._topic.match(key).queues:
            content = {"_values": self._attributes()}
            expires_at = self._broker.clock() + 2 * self._broker.settings.heartbeat_seconds
            headers = {"method": "indication"}
            self._send(self._topic, key, "_agent_heartbeat_indication", content, headers, expires_at=expires_at)

    def _attributes(self) -> dict[str, Any]:
        return {
            "_vendor": _VENDOR,
            "_product": _PRODUCT,
            "_instance": self._instance,
            "_name": self.name,
            "_timestamp": _nanoseconds(self._broker.clock()),
            "_heartbeat_interval": self._broker.settings.heartbeat_seconds,
            "_epoch": 1,
        }

    def _send(
        self,
        exchange: Exchange,
        key: str,
        opcode: str,
        content: Mapping[str, Any] | Sequence[Any],
        headers: Mapping[str, Any],
        *,
        correlation_id: bytes | None = None,
        expires_at: float = 0.0,
    ) -> None:
        """Send a message; it is lost if there is no room for it."""
        body = typed_value(content)
        assert body.type in (MAP, LIST)
        new = NewMessage(
            key,
            typed_map({"qmf.opcode": opcode, "qmf.agent": self.name, **headers}),
            content=body,
            exchange=exchange.name,
            app_id=_APP_ID,
            correlation_id=correlation_id,
            expires_at=expires_at,
        )
        self._put(new, exchange)

    def _put(self, new: NewMessage, exchange: Exchange) -> None:
        message = self._make_message(new)
        try:
            route = self._broker.router.route(message, exchange)
            self._broker.router.put(message, route.queues)
            self._broker.router.count(message, route)
        except (ModelError, MemoryError):
            return
        self._broker.tick.schedule()


class _Requests:
    """Takes the requests that are published to one exchange.

    Args:
        agent: carries them out.
        exchange: the exchange.
        keys: their routing keys.
        is_shared: whether they are routed to queues, too.
    """

    def __init__(self, agent: Agent, exchange: Exchange, keys: frozenset[str], *, is_shared: bool) -> None:
        self._agent, self._exchange, self._keys, self._is_shared = agent, exchange, keys, is_shared

    def takes(self, message: Message) -> bool:
        """Whether it is for the agent."""
        return message.routing_key in self._keys

    def check_transaction(self) -> None:
        """Requests are carried out at once, whether or not they are part of a transaction."""

    def receive(self, message: Message, queues: Mapping[str, Queue], put: Put) -> bool:  # noqa: ARG002
        """Take a request."""
        self._agent.request(message)
        return put(message, self._exchange.route(message).queues) if self._is_shared else False


def _content_of(message: Message, content_type: str | None) -> TypedMap:
    """The content of a request; empty if it is no map."""
    if content_type != "amqp/map":
        return TypedMap(())
    body = message.body
    try:
        return decode_map(body) if isinstance(body, bytes) else TypedMap(())
    except FormatError:
        return TypedMap(())


def _value(content: TypedMap, name: str) -> Any:
    typed = content.get(name)
    value = None if typed is None else typed.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _nanoseconds(seconds: float) -> TypedValue:
    return TypedValue(UINT64, max(0, round(seconds * 1e9)))


def _schema_id(name: str, kind: str, schema_hash: uuid.UUID) -> dict[str, Any]:
    return {"_package_name": PACKAGE, "_class_name": name, "_type": kind, "_hash": schema_hash}


def _encodable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a map can carry them: references as maps, text that is not too long."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Reference):
            found[name] = {"_object_name": value.name}
        elif isinstance(value, str) and len(value) > _MAX_TEXT // 4:
            found[name] = value.encode()[:_MAX_TEXT].decode("utf-8", "ignore")
        elif isinstance(value, dict):
            found[name] = _encodable(value)
        else:
            found[name] = value
    return found
