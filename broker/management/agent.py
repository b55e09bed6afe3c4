"""The management agent of a broker: takes requests from its exchanges, and publishes events, heartbeats and changes.

    exchange             key                           what
    -------------------  ----------------------------  -----------------------------------------------------------
    qmf.default.direct   broker, or the agent's name   requests of version 2, and of version 1 for a schema; they are
                                                       not routed to queues
    qmf.default.topic    console.request.agent_locate  requests of version 2, which other agents get, too
    qpid.management      broker, agent.1.0, agent.0    requests of version 1, likewise not routed; in AM1 to agent.9
    $management          any                           requests of AMQP Management (`entities`), likewise not routed
    amq.direct and so on                               replies: wherever the request wants them, if its sender
                                                       may publish (`outbox`)

A request is a message with a reply-to, of version 2 of QMF if it has the application header `qmf.opcode`. It is carried
out as a task in time slices, at most `_MAX_REQUESTS` at a time; more are refused. `publisher` sends the unsolicited
publications.

Sources: the QMF schema of qpidd's broker; Qpid wiki, "QMF Protocol" and "QMF Map Message Protocol"; qpidd,
ManagementAgent.cpp (keys and headers).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.management.classes import CLASSES
from qstore.broker.management.entities import Entities, MakeAnswer, read_asked
from qstore.broker.management.events import EVENTS
from qstore.broker.management.outbox import DIRECT, ENTITIES, TOPIC, VERSION_1, Outbox
from qstore.broker.management.proxies import REPLY_KEY, name_of
from qstore.broker.management.publisher import EventPublisher, Publisher, Registry, Version
from qstore.broker.management.qmf1 import OWN_BANKS_OF_AM1, Qmf1
from qstore.broker.management.qmf2 import Qmf2
from qstore.broker.management.remote_agents import RemoteAgents
from qstore.broker.management.request import Request
from qstore.broker.model.caller import Publisher as Caller
from qstore.broker.model.errors import InvalidArgumentError, ModelError, ResourceLimitExceededError
from qstore.broker.model.events import Bind, ClientDisconnect, ConsoleOpened, Event
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.formats.amqp_0_10.maps import TooManyValuesError, check_amount, decode_map, read_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.errors import BrokerRecordError, FormatError
from qstore.formats.qmf.v1 import Dialect
from qstore.formats.values import Family, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.exchanges.exchange import Put
    from qstore.broker.model.message import MakeMessage, Message, MessageId
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.router import Fanout

_LOCATE_KEY: Final = "console.request.agent_locate"
_ALIAS: Final = "broker"
_OWN_AGENT: Final = "agent.1.0"
_DIALECTS: Final = frozenset(each.value for each in Dialect)
_MAX_REQUESTS: Final = 100
_MAX_REQUEST_BYTES: Final = 1 << 20
_SOON: Final = 0.5  # seconds after a queue was bound
_AT_LEAST: Final = 2.0  # seconds between two sweeps

Run: TypeAlias = Callable[[Coroutine[Any, Any, None], Callable[[ModelError | None], None]], None]
"""Runs a coroutine, and calls back with its error, or None."""


def _nothing(_key: str) -> bool:
    """No key is meant."""
    return False


class Agent:
    """The agent of one broker.

    Args:
        managed: the broker.
        make_message, make_answer: encode messages of QMF and of AMQP Management.
        run: runs tasks that take time.

    Attributes:
        name: its name in version 2.
    """

    def __init__(self, managed: ManagedBroker, make_message: MakeMessage, make_answer: MakeAnswer, run: Run) -> None:
        broker, settings = managed.broker, managed.broker.settings
        self._managed, self._broker, self._run = managed, broker, run
        self._agents, self._registry = RemoteAgents(), Registry(managed)
        self._outbox = outbox = Outbox(broker, make_message)
        managed.make_message = make_message
        managed.agents, managed.classes = self._agents.__iter__, CLASSES
        self._qmf2 = Qmf2(managed, self._registry, outbox, self._agents)
        self.name = self._qmf2.name
        self._qmf1 = Qmf1(
            managed, self._registry, outbox, self._agents, self.name if settings.management_version_2 else ""
        )
        self._am1 = Qmf1(managed, self._registry, outbox, self._agents, "", Dialect.AM1)
        self._entities = Entities(managed, outbox, make_answer)
        self._version_1 = {Dialect.AM2: self._qmf1, Dialect.AM1: self._am1}
        self._publishes_1, self._speaks_2 = settings.management_version_1, settings.management_version_2
        self._published: list[Version] = [self._qmf1, self._am1] if self._publishes_1 else []
        self._published += [self._qmf2] if self._speaks_2 else []
        self._publisher = Publisher(managed, self._registry, self._published)
        self._events = EventPublisher(outbox, self._published, managed.slices, lambda work: run(work, _ignore_result))
        self._under_way = 0
        self._has_schemas_to_publish = False
        self._next_sweep = self._last_sweep = 0.0
        if self._speaks_2:
            is_proxied = lambda key: self._qmf2.proxies.find(key) is not None  # noqa: E731
            self._exchange(DIRECT, DirectExchange, {_ALIAS, self.name}, is_shared=False, more=is_proxied)
            self._exchange(TOPIC, TopicExchange, {_LOCATE_KEY}, is_shared=True)
        banks = {f"agent.{bank}" for bank in OWN_BANKS_OF_AM1}
        overhears = self._qmf2.proxies.overhears if self._speaks_2 else _nothing
        own = {_ALIAS, _OWN_AGENT, REPLY_KEY, *banks}
        self._exchange(VERSION_1, TopicExchange, own, is_shared=False, overhears=overhears)
        self._exchange(ENTITIES, DirectExchange, set(), is_shared=False, more=lambda _key: True)
        broker.events.listen(self.on_event, *EVENTS, ClientDisconnect, Bind)

    def _exchange(
        self,
        name: str,
        make: type[Exchange],
        keys: set[str],
        *,
        is_shared: bool,
        more: Callable[[str], bool] = _nothing,
        overhears: Callable[[str], bool] = _nothing,
    ) -> None:
        """The exchange with this name, which is created unless a store had it; the agent takes messages with `keys`."""
        exchange = self._broker.default_host.exchanges.setdefault(name, make(name))
        exchange.receiver = _Requests(self, exchange, frozenset(keys), more, overhears, is_shared=is_shared)
        exchange.routes_by_key = False

    # ---- requests ----

    def request(self, message: Message) -> None:
        """Begin to carry out a request. Anything else is ignored. Raises UnauthorizedError."""
        caller, properties = message.handling.publisher, message.properties()
        if message.size > _MAX_REQUEST_BYTES or not isinstance(caller, Caller):
            return
        if not caller.is_console:
            caller.is_console = True
            self._broker.events.emit(ConsoleOpened(caller.user), caller.connection)
        request = _with_id(Request(caller, properties.reply_to, None), properties.correlation_id)
        if message.exchange == ENTITIES:
            self._request_of_entities(message, request)
            return
        opcode = message.header_text("qmf.opcode")
        try:
            body = message.content()
        except BrokerRecordError as error:
            if opcode is not None and self._speaks_2:
                self._check_reply(request)
                self._qmf2.refuse(request, InvalidArgumentError(f"the request cannot be decoded: {error}"))
            return
        if message.routing_key == REPLY_KEY:
            if isinstance(body, bytes):
                self._qmf2.proxies.received(caller, body)
        elif opcode is None:
            if isinstance(body, bytes) and body[:3] in _DIALECTS:
                self._check_reply(request)
                codec = self._version_1[Dialect(body[:3])]
                self._start(codec.carry_out(body, request), lambda error: codec.refuse(body, request, error))
        elif self._speaks_2:
            self._check_reply(request)
            try:
                asked = _content_of(body, properties.content_type)
            except TooManyValuesError as error:
                self._qmf2.refuse(request, InvalidArgumentError(f"the request has {error.what}"))
                return
            proxied = self._qmf2.proxies.find(message.routing_key)
            if proxied is not None:
                work = self._qmf2.proxies.carry_out(proxied, opcode, asked, request)
                self._start(work, lambda error: self._qmf2.refuse(request, error, name_of(proxied)))
                return
            self._qmf2.check(opcode, asked, caller)
            self._start(
                self._qmf2.carry_out(opcode, asked, request),
                lambda error: self._qmf2.refuse(request, error),
            )

    def _request_of_entities(self, message: Message, request: Request) -> None:
        """Begin to carry out a request of AMQP Management. Raises UnauthorizedError."""
        if request.correlation_id is None:
            request = _with_id(request, message.properties().message_id)
        self._check_reply(request)
        try:
            body, properties = message.content(), message.properties()
            content = _content_of(body, properties.content_type)
            asked = read_asked(properties.headers, content if isinstance(content, TypedMap) else TypedMap())
        except BrokerRecordError as error:
            self._entities.refuse(request, InvalidArgumentError(f"the request cannot be decoded: {error}"))
        except TooManyValuesError as error:
            self._entities.refuse(request, InvalidArgumentError(f"the request has {error.what}"))
        except ModelError as error:
            self._entities.refuse(request, error)
        else:
            self._start(self._entities.carry_out(asked, request), lambda error: self._entities.refuse(request, error))

    def overhear(self, message: Message) -> None:
        """An attached agent has published something, which is routed as well."""
        caller = message.handling.publisher
        if message.size > _MAX_REQUEST_BYTES or not isinstance(caller, Caller):
            return
        try:
            body = message.content()
        except BrokerRecordError:
            return
        proxies = self._qmf2.proxies
        if isinstance(body, bytes) and proxies.overheard(caller, message.routing_key, body):
            self._run(self._in_turn(proxies.publish_overheard()), _ignore_result)

    def _check_reply(self, request: Request) -> None:
        """Raise UnauthorizedError if the replies to a request may not go to its reply-to."""
        if request.reply_to is not None:
            self._outbox.check_reply(request.caller, request.reply_to)

    def _start(self, work: Coroutine[Any, Any, None], refuse: Callable[[ModelError], None]) -> None:
        if self._under_way >= _MAX_REQUESTS:
            work.close()
            refuse(ResourceLimitExceededError("too many management requests at the same time"))
            return
        self._under_way += 1

        def done(error: ModelError | None) -> None:
            self._under_way -= 1
            if error is not None:
                refuse(error)

        self._run(self._in_turn(work), done)

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        await self._managed.slices.next()
        await work

    # ---- unsolicited publications ----

    def on_event(self, event: Event) -> None:
        """Something has happened in the broker."""
        if isinstance(event, ClientDisconnect):
            self._agents.disconnected(event.remote_host)
            self._qmf2.subscriptions.disconnected(event.remote_host)
            self._qmf2.proxies.disconnected(event.remote_host)
            if self._managed.snapshots is not None:
                self._managed.snapshots.disconnected(event.remote_host)
        elif isinstance(event, Bind) and event.exchange in (TOPIC, VERSION_1):
            self._bound(event)
        self._events.publish(event, self._broker.clock())

    def _bound(self, event: Bind) -> None:
        """A console has bound a queue: the objects and events of its key are published soon."""
        if event.exchange == VERSION_1 and self._publishes_1:
            for agent in self._agents:
                self._version_1[agent.dialect].console_added(agent)
            self._has_schemas_to_publish = True
        if self._publisher.bound():
            self._next_sweep = min(
                self._next_sweep, max(self._broker.monotonic() + _SOON, self._last_sweep + _AT_LEAST)
            )

    def on_timer(self) -> None:
        """To be called about twice a second: heartbeats, and sweeps."""
        if self._managed.snapshots is not None:
            self._managed.snapshots.on_timer()
        now = self._broker.monotonic()
        if self._qmf2.subscriptions.is_due():
            self._run(self._in_turn(self._qmf2.subscriptions.publish()), _ignore_result)
        if now < self._next_sweep:
            return
        self._last_sweep, self._next_sweep = now, now + self._managed.interval
        if self._has_schemas_to_publish:
            self._has_schemas_to_publish = False
            self._run(self._in_turn(self._am1.publish_schemas()), _ignore_result)
        for version in self._published:
            version.publish_heartbeat(self._broker.clock())
        if self._speaks_2:
            self._run(self._qmf2.proxies.publish_heartbeats(), _ignore_result)
        if not self._publisher.is_under_way:
            self._run(self._publisher.sweep(), _ignore_result)


class _Requests:
    """Takes the requests that are published to one exchange.

    Args:
        agent: carries them out.
        exchange: the exchange.
        keys: their routing keys.
        more: whether another key is theirs, too.
        overhears: whether messages with a key are routed, and shown to the agent.
        is_shared: whether they are routed to queues, too.
    """

    def __init__(
        self,
        agent: Agent,
        exchange: Exchange,
        keys: frozenset[str],
        more: Callable[[str], bool],
        overhears: Callable[[str], bool],
        *,
        is_shared: bool,
    ) -> None:
        self._agent, self._exchange, self._keys, self._more = agent, exchange, keys, more
        self._overhears, self._is_shared = overhears, is_shared

    def takes(self, message: Message) -> bool:
        """Whether the agent gets it."""
        return self.keeps_nothing(message) or self._overhears(message.routing_key)

    def keeps_nothing(self, message: Message) -> bool:
        """Whether it is for the agent: who looks why memory is full must be heard, and may purge a queue."""
        return message.routing_key in self._keys or self._more(message.routing_key)

    def check_transaction(self) -> None:
        """Requests are carried out at once, whether or not they are part of a transaction."""

    def placed(self, message: Message) -> tuple[Message, Sequence[Queue]] | None:
        """As `Receiver.placed`: requests are carried out, and publications of agents routed."""
        return None if self.keeps_nothing(message) else (message, self._exchange.route(message).queues)

    def receive(
        self,
        message: Message,
        put: Put,
        authorization: Authorization,  # noqa: ARG002
    ) -> bool | Fanout:
        """Take a request, or show the agent a publication."""
        if not self.keeps_nothing(message):
            self._agent.overhear(message)
            return put(message, self._exchange.route(message).queues)
        self._agent.request(message)
        return put(message, self._exchange.route(message).queues) if self._is_shared else False


def _with_id(request: Request, number: MessageId | None) -> Request:
    """A request whose reply has this correlation id."""
    correlation_id = number if number is None or isinstance(number, bytes) else str(number).encode()
    return request._replace(correlation_id=correlation_id, typed_id=None if isinstance(number, bytes) else number)


def _content_of(body: object, content_type: str | None) -> TypedMap | Sequence[TypedValue]:
    """The content of a request: a map or a list; an empty map if it is neither. Raises TooManyValuesError."""
    if isinstance(body, TypedValue):  # of AMQP 1.0
        if body.type.family in (Family.MAP, Family.LIST):
            found: TypedMap | Sequence[TypedValue] = body.value
            return found
        return TypedMap()
    if isinstance(body, bytes):
        try:
            if content_type == "amqp/map":
                check_amount(BY_NAME["map"], body, 0, len(body))
                return decode_map(body)
            if content_type == "amqp/list":
                check_amount(BY_NAME["list"], body, 0, len(body))
                found, end = read_value(BY_NAME["list"], body, 0, len(body))
                return found if end == len(body) else ()
        except TooManyValuesError:
            raise
        except FormatError:
            pass
    return TypedMap()


def _ignore_result(_error: ModelError | None) -> None:
    """No request waits for unsolicited publications."""
