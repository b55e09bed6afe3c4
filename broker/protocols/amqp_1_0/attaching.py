"""Attaches links: which node a source or a target means, and what is made for it.

    queue                     the link consumes it, or sends to it
    exchange as a target      messages are routed by it
    exchange as a source      a subscription: a queue, bound to the exchange, that the link consumes
    dynamic                   a new node; it ends with the link, unless its lifetime policy says otherwise
    /management               requests and answers (`management`)
    create-on-demand          a capability: the node is made if there is none; it stays
    a name without a node     the node that a policy makes for it (`model/node_policies`)
    NODE@DOMAIN               the node in a domain, to or from which messages are relayed (`federation/relay`)
    null as a target          anonymous terminus: each message has its own address

**Subscriptions.** The queue is named CONTAINER_LINK, or LINK if it is shared and global; of the name of the link only
what precedes a `|` counts, as JMS clients need it. It collects messages until the source expires, or the link is
closed. Its selector is that of the queue, too, which drops what it does not match; a link with another one begins the
subscription anew, as in JMS, unless it is in use. The capability `shared` allows several links to consume it, and with
`global` also those of other containers. The argument `OF_SUBSCRIPTION` marks it: a queue without it that has the name
by chance is neither used nor deleted.

**Expiry.** When the queue of a subscription and a dynamic node end, unless the client closes the link before:

    never                     never: the queue of the subscription is durable
    others                    with the event that the policy names (`resuming`): the queue does not outlive the broker
    others, with a timeout    so many seconds after that: the queue is auto-delete with a timeout, and durable if the
                              source is. After a restart of the broker its time begins again, unless the link is
                              attached

A dynamic node that outlives its link is marked by the argument `OF_SUBSCRIPTION`, too, with the link that it ends with:
it does so again if the same client attaches that link to its address, also after a restart.

**Binding keys.** That of the address or of a filter; otherwise every message of a topic exchange or a headers exchange
matches, and elsewhere the empty key.

    filter                          effect
    ------------------------------  --------------------------------------------------------------------------------
    selector-filter                 only messages that the selector matches
    no-local-filter                 no messages that were published over the same connection
    legacy-amqp-direct-binding,     the binding key of a subscription
    legacy-amqp-topic-binding
    legacy-amqp-headers-binding     the binding arguments of a subscription to a headers exchange
    xquery-filter                   the query of a subscription to an XML exchange; true() without it
    properties-filter,              only messages with these properties (`filters`); their names begin with amqp:
    application-properties-filter
    sql-filter                      only messages for which the condition in SQL is true (`filters`); as amqp:sql-filter
    rabbitmq:stream-offset-spec,    of a stream: the arguments x-stream-offset, x-stream-filter and
    rabbitmq:stream-filter,         x-stream-match-unfiltered of its consumer
    rabbitmq:stream-match-unfiltered

**Streams.** A link whose source is durable, or never expires, has a name as of a subscription, under which its offset
is kept; it is forgotten when the client closes the link. Properties of the link are arguments as well.

**Resuming.** A terminus with a timeout keeps its unsettled deliveries for so many seconds after it was detached, in
whatever way; one that never expires and whose durability is unsettled-state keeps them for `NEVER_SECONDS`, unless it
is shared (`resuming`).

What a client asks for is answered as it really is: fields of source and target that have another value than asked for
say so. What cannot be done is refused with a condition, never ignored.

Sources: AMQP 1.0, part "messaging", section 3.5; docs/amqp-1.0.txt of Qpid C++; the filters of Apache at
www.amqp.org/specification/1.0/filters.
"""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.arguments import (
    ALTERNATE,
    AMQP_1_0,
    EXCLUSIVE,
    OF_SUBSCRIPTION,
    SELECTOR,
    XQUERY,
    Of,
    as_text,
    has_effect,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.queues.arguments import AUTO_DELETE_TIMEOUT, FILTER, LIFETIME, UNTIL_EMPTY
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import FILTER as STREAM_FILTER
from qstore.broker.model.queues.stream import MATCH_UNFILTERED, NAME, START, Stream
from qstore.broker.model.replies import PREFIX as REPLY_PREFIX
from qstore.broker.model.selectors.selector import Selector, read_selector
from qstore.broker.model.settlement import subscribe
from qstore.broker.protocols.amqp_1_0.addresses import (
    IS_QUEUE,
    IS_TOPIC,
    QUEUES,
    Node,
    NodeKind,
    check_access,
    node_of,
    strict_node,
    without_url,
)
from qstore.broker.protocols.amqp_1_0.errors import ConditionError
from qstore.broker.protocols.amqp_1_0.fetched import FetchLink, QueuelessLink
from qstore.broker.protocols.amqp_1_0.filters import (
    APPLICATION_FILTER,
    PROPERTIES_FILTER,
    SQL_FILTER,
    PropertyFilter,
    read_property_filter,
    read_sql_filter,
)
from qstore.broker.protocols.amqp_1_0.links import (
    ANY_SIZE,
    NO_ANNOTATIONS,
    SETTLED,
    IncomingLink,
    Link,
    OutgoingLink,
    has_foreign_annotations,
)
from qstore.broker.protocols.amqp_1_0.management import ADDRESS as MANAGEMENT
from qstore.broker.protocols.amqp_1_0.management import AnswerLink
from qstore.broker.protocols.amqp_1_0.resuming import (
    LINK_DETACH,
    NEVER,
    NEVER_SECONDS,
    POLICIES,
    LinkKey,
    Resumption,
    read_unsettled,
)
from qstore.broker.protocols.amqp_1_0.transactions import COORDINATOR, OFFERED
from qstore.broker.protocols.consumer import MessageCondition, SelectorCheck
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import BY_CODE, BY_NAME, OUTCOMES, Composite
from qstore.formats.amqp_1_0.neutral import neutral_map, neutral_value, value_of
from qstore.formats.amqp_1_0.values import Described, Value, plain_key
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import STR16, TYPES, UINT32, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.protocols.amqp_1_0.session import Session

CREATE: Final = "create-on-demand"
SHARED: Final = "shared"
GLOBAL: Final = "global"
DURABLE: Final = "durable"
AUTO_DELETE: Final = "auto-delete"

_OF_ARTEMIS: Final = {"anycast": IS_QUEUE, "multicast": IS_TOPIC}
_VOLATILE: Final = "rabbitmq:volatile-queue"  # a queue for answers, whose name and address are in RabbitMQ's form

_PAIRED: Final = "paired"  # clients of RabbitMQ say it of their links to and from /management
_MAX_IGNORED: Final = 20  # lines in the log for one link

_RECEIVER: Final = True
_SECOND: Final = 1  # receiver-settle-mode
_CONFIGURATION: Final = 1  # terminus-durability
_UNSETTLED_STATE: Final = 2

Unsettled = tuple[tuple[tuple[Value, Value], ...], bool]
"""A map of unsettled deliveries, and whether it is incomplete."""

_COPY: Final = "copy"
_MOVE: Final = "move"
_LIFETIME_POLICY: Final = "lifetime-policy"
_DIST_MODES: Final = "supported-dist-modes"
_EXCHANGE_TYPE: Final = "exchange-type"
_DYNAMIC_PREFIX: Final = "amq.dyn-"
_MARK: Final = OF_SUBSCRIPTION, TypedValue(STR16, "yes")
_ANY_CONTENT: Final = TypedValue(STR16, "true()")
_MATCH_ALL: Final = TypedMap((("x-match", TypedValue(STR16, "all")),))

#: Lifetime policy -> the lifetime that a queue has (`queues/arguments`); None if it ends with its link.
_LIFETIMES: Final = {
    "delete-on-close": None,
    "delete-on-no-links": "delete-if-unused",
    "delete-on-no-messages": "delete-if-unused-and-empty",
    "delete-on-no-links-or-messages": "delete-if-unused-and-empty",
}


class Filter(NamedTuple):
    """A filter.

    Attributes:
        name: as in the table above.
        code: the number of its descriptor; 0 for none.
        type_name: its type.
        symbol: the symbol of its descriptor; empty for `apache.org:` with the name and the type.
    """

    name: str
    code: int
    type_name: str
    symbol: str = ""


_OF_STREAMS: Final = {
    "rabbitmq:stream-offset-spec": START,
    "rabbitmq:stream-filter": STREAM_FILTER,
    "rabbitmq:stream-match-unfiltered": MATCH_UNFILTERED,
}
"""The filters of streams, and the arguments of consumers that they are."""

_FILTERS: Final = (
    Filter("legacy-amqp-direct-binding", 0x0000468C00000000, "string"),
    Filter("legacy-amqp-topic-binding", 0x0000468C00000001, "string"),
    Filter("legacy-amqp-headers-binding", 0x0000468C00000002, "map"),
    Filter("no-local-filter", 0x0000468C00000003, "list"),
    Filter("selector-filter", 0x0000468C00000004, "string"),
    Filter("xquery-filter", 0x0000468C00000005, "string"),
    Filter(PROPERTIES_FILTER, 0x173, "map", f"amqp:{PROPERTIES_FILTER}"),
    Filter(APPLICATION_FILTER, 0x174, "map", f"amqp:{APPLICATION_FILTER}"),
    Filter(SQL_FILTER, 0x120, "string", f"amqp:{SQL_FILTER}"),
    *(Filter(name, 0, "any", name) for name in _OF_STREAMS),
)
_BY_DESCRIPTOR: Final[dict[object, Filter]] = {
    **{each.code: each for each in _FILTERS if each.code},
    **{each.symbol or f"apache.org:{each.name}:{each.type_name}": each for each in _FILTERS},
}


class Filters(NamedTuple):
    """The filters of a source.

    Attributes:
        selector: None for none.
        no_local: as in the table above.
        key, arguments: of a binding; None if no filter sets them.
        query: that of a binding to an XML exchange; None for none.
        properties, application: the wanted values of the filters on properties; empty for none.
        sql: None for none.
        of_streams: arguments of a consumer of a stream.
    """

    selector: Selector | None = None
    no_local: bool = False
    key: str | None = None
    arguments: TypedMap | None = None
    query: TypedValue | None = None
    properties: Mapping[str, Value] = MappingProxyType({})
    application: Mapping[str, Value] = MappingProxyType({})
    sql: Selector | None = None
    of_streams: tuple[tuple[str, TypedValue], ...] = ()

    @property
    def condition(self) -> MessageCondition | None:
        """What decides which messages a link gets; None for all."""
        selectors = tuple(each for each in (self.selector, self.sql) if each is not None)
        if self.properties or self.application or len(selectors) > 1:
            return PropertyFilter(self.properties, self.application, selectors)
        return selectors[0] if selectors else None


def read_filters(entries: tuple[tuple[Value, Value], ...]) -> Filters:
    """The filters in a filter set. Raises ConditionError or InvalidArgumentError."""
    filters = Filters()
    for name, typed in entries:
        if typed.value is None:
            continue
        content = typed.value
        if not isinstance(content, Described):
            raise ConditionError(Condition.INVALID_FIELD, f"filter {plain_key(name)!a:.256} has no descriptor")
        found = _BY_DESCRIPTOR.get(content.descriptor.value)
        if found is None:
            text = f"filter {plain_key(name)!a:.256} with descriptor {plain_key(content.descriptor)!a:.256}"
            raise ConditionError(Condition.NOT_IMPLEMENTED, f"{text} is not implemented")
        value = content.value
        if found.name == "no-local-filter":
            filters = filters._replace(no_local=True)
        elif found.name == PROPERTIES_FILTER:
            filters = filters._replace(properties=read_property_filter(found.name, value))
        elif found.name == APPLICATION_FILTER:
            filters = filters._replace(application=read_property_filter(found.name, value))
        elif found.name in _OF_STREAMS:
            argument = _OF_STREAMS[found.name], _stream_value(value)
            filters = filters._replace(of_streams=(*filters.of_streams, argument))
        elif found.type_name == "map":
            if value.type_name != "map":
                raise ConditionError(Condition.INVALID_FIELD, f"filter {found.name} is not a map")
            filters = filters._replace(arguments=neutral_map(value.value))
        elif not isinstance(value.value, str):
            raise ConditionError(Condition.INVALID_FIELD, f"filter {found.name} is not a string")
        elif found.name == "selector-filter":
            selector = read_selector(TypedMap(((SELECTOR, neutral_value(value)),)), SELECTOR)
            filters = filters._replace(selector=selector)
        elif found.name == SQL_FILTER:
            filters = filters._replace(sql=read_sql_filter(value.value))
        elif found.name == "xquery-filter":
            filters = filters._replace(query=neutral_value(value))
        else:
            filters = filters._replace(key=value.value)
    return filters


def _stream_value(value: Value) -> TypedValue:
    """The value of a filter of streams; a time in seconds, as in arguments."""
    if value.type_name == "timestamp":
        return TypedValue(TYPES["datetime"], value.value // 1000)
    return neutral_value(value)


class NodeProperties(NamedTuple):
    """The properties of a node that is made.

    Attributes:
        is_exchange: whether it is an exchange, not a queue.
        exchange_type: its type, if it is.
        is_durable, is_auto_delete: as declared.
        is_exclusive: whether no other session may consume from it; others may send to it and browse it.
        alternate: the name of its alternate exchange; empty for none.
        ends_with_link: whether it ends with the link that has made it.
        is_dynamic: whether the broker has chosen its name, which may be a reserved one.
        arguments: all others.
    """

    is_exchange: bool = False
    exchange_type: str = "topic"
    is_durable: bool = False
    is_auto_delete: bool = False
    is_exclusive: bool = False
    alternate: str = ""
    ends_with_link: bool = False
    is_dynamic: bool = False
    arguments: TypedMap = TypedMap()


class Attach:
    """A link that a client attaches.

    Args:
        session: its session.
        fields: of the client's attach.

    Attributes:
        session: as above.
        handle, name: of the client.
        is_source: whether the client receives: the broker has the source.
        terminus: the fields of the broker's terminus, as the client asked for it; None if there is none.
        node: what its address means; None for an anonymous terminus.
        is_made: whether its node was made for it.
        is_control: whether its target is the coordinator of transactions.
        is_management: whether it is a link to or from the node for management.
        is_relayed: whether its address is in a domain.
    """

    def __init__(self, session: Session, fields: dict[str, Any]) -> None:
        self.session, self._fields = session, fields
        self.handle: int = fields["handle"]
        self.name: str = fields["name"]
        self.is_source: bool = fields["role"] is _RECEIVER
        self.terminus: dict[str, Any] | None = None
        self.node: Node | None = None
        self.filters = Filters()
        self.address: str | None = None
        self.queue: Queue | None = None
        self.owned: list[Queue] = []
        self._kept: Queue | None = None  # a durable subscription that was made for the link
        self._is_durable = self.is_made = False
        self._offset_name = ""  # under which a stream keeps the offset of the link
        self.kind_name = "source" if self.is_source else "target"
        self.is_control = self.is_management = self.is_relayed = False
        self.unsettled: Unsettled | None = None  # what the broker tells, if the link is resumed

    # ---- what the client asks for ----

    def read(self) -> None:
        """Read the terminus. Raises ConditionError or ModelError."""
        terminus = self._fields.get(self.kind_name)
        if not self.is_source and isinstance(terminus, Composite) and terminus.name == COORDINATOR:
            self.is_control, self.terminus = True, {}
            return
        if not isinstance(terminus, Composite) or terminus.name != self.kind_name:
            raise ConditionError(Condition.INVALID_FIELD, f"the link has no {self.kind_name}")
        self.terminus = terminus.fields
        address = self.terminus.get("address")
        if address is not None and (not isinstance(address, Value) or not isinstance(address.value, str)):
            raise ConditionError(Condition.INVALID_FIELD, "the address is not a string, or not valid UTF-8")
        self.address = None if address is None else address.value
        self.is_management = self.address == MANAGEMENT
        if self.is_source:
            self.filters = read_filters(self.terminus.get("filter") or ())
            mode = self.terminus.get("distribution_mode")
            if mode not in (None, _COPY, _MOVE):
                raise ConditionError(Condition.NOT_IMPLEMENTED, f"distribution mode {mode!a:.64} is not implemented")

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Those that the client asks for."""
        found: tuple[str, ...] = (self.terminus or {}).get("capabilities") or ()
        return found

    @property
    def wanted(self) -> tuple[str, ...]:
        """The same, by one name each."""
        return tuple(_OF_ARTEMIS.get(name, name) for name in self.capabilities)

    def _asks(self, name: str) -> bool:
        return name in self.wanted

    def node_properties(self, *, is_dynamic: bool) -> NodeProperties:
        """The properties of a node to make. Raises ConditionError."""
        assert self.terminus is not None
        properties = NodeProperties(
            is_exchange=self._asks(IS_TOPIC) and not self._asks(IS_QUEUE),
            is_durable=self._asks(DURABLE),
            is_auto_delete=self._asks(AUTO_DELETE),
            ends_with_link=is_dynamic,
            is_dynamic=is_dynamic,
        )
        arguments: list[tuple[str, TypedValue]] = []
        for key, typed in self.terminus.get("dynamic_node_properties") or ():
            name = plain_key(key)
            if name == _LIFETIME_POLICY:
                policy = _lifetime_of(typed)
                properties = properties._replace(ends_with_link=policy is None)
                if policy is not None:
                    properties = properties._replace(is_auto_delete=True)
                    arguments.append((LIFETIME, TypedValue(STR16, policy)))
            elif name == _DIST_MODES:
                modes = _dist_modes_of(typed)
                properties = properties._replace(is_exchange=_COPY in modes and _MOVE not in modes)
            elif name == DURABLE:
                properties = properties._replace(is_durable=_boolean_of(name, typed))
            elif name == AUTO_DELETE:
                properties = properties._replace(is_auto_delete=_boolean_of(name, typed))
            elif name == EXCLUSIVE:
                properties = properties._replace(is_exclusive=_boolean_of(name, typed))
            elif name == _EXCHANGE_TYPE:
                properties = properties._replace(exchange_type=_text_of(name, typed), is_exchange=True)
            elif name == ALTERNATE:
                properties = properties._replace(alternate=_text_of(name, typed))
            else:
                arguments.append((name, neutral_value(typed)))
        return properties._replace(arguments=TypedMap(tuple(arguments)))

    def lacks(self, node: Node) -> bool:
        """Whether a node is not what the link is to make: a queue, and it wants an exchange, which may have its name.

        Raises:
            PreconditionFailedError: it wants an exchange of another type.
        """
        if CREATE not in self.wanted or not self._asks(IS_TOPIC) or self._asks(IS_QUEUE) or node.is_strict:
            return False
        if node.kind is NodeKind.QUEUE:
            return True
        found = self._found
        asked = {
            plain_key(key): typed.value for key, typed in (self.terminus or {}).get("dynamic_node_properties") or ()
        }
        wanted = asked.get(_EXCHANGE_TYPE)
        if wanted is not None and isinstance(found, Exchange) and found.type_name != wanted:
            text = f'exchange "{node.name}" is of type {found.type_name}, and not {wanted!a:.64}'
            raise PreconditionFailedError(text)
        return False

    def properties_by_policy(self) -> NodeProperties | None:
        """The properties of a node that a policy makes for the address, which no node has; None for none."""
        session, name = self.session, without_url(self.address or "")
        if session.vhost != DEFAULT_HOST or strict_node(name) is not None:
            return None
        policy = session.broker.node_policies.match(name)
        if policy is None:
            return None
        return NodeProperties(
            is_exchange=bool(policy.exchange_type),
            exchange_type=policy.exchange_type,
            is_durable=policy.durable,
            is_auto_delete=policy.auto_delete,
            alternate=policy.alternate,
            arguments=policy.arguments,
        )

    # ---- domains ----

    def leads_to_domain(self) -> bool:
        """Whether the address, which no node has, is one in a domain. Raises UnauthorizedError or ConditionError."""
        session = self.session
        interlinks = session.connection.interlinks
        if interlinks is None or interlinks.domain_in(self.address or "", session.vhost) is None:
            return False
        session.broker.authorization.check(session, Action.CREATE, ObjectType.LINK, "")
        self.is_relayed = True
        return True

    # ---- making nodes ----

    async def make_node(self, name: str, properties: NodeProperties) -> None:
        """Make a queue or an exchange. Raises ModelError; PreconditionFailedError if there is such a queue."""
        session = self.session
        topology = session.virtual_host.topology
        self.is_made = True
        if properties.ends_with_link:
            properties = self._as_kept(properties)
        if properties.is_exchange:
            await topology.declare_exchange(
                name, properties.exchange_type, durable=properties.is_durable,
                auto_delete=properties.is_auto_delete or properties.ends_with_link, alternate=properties.alternate,
                arguments=properties.arguments, caller=session,
            )  # fmt: skip
            self.node = Node(NodeKind.EXCHANGE, name)
            return
        queue = await topology.declare_queue(
            name, durable=properties.is_durable, auto_delete=properties.is_auto_delete,
            exclusive=properties.is_exclusive, alternate=properties.alternate, arguments=properties.arguments,
            caller=session, must_be_new=True, is_server_named=properties.is_dynamic,
        )  # fmt: skip
        self.node = Node(NodeKind.QUEUE, name)
        if properties.ends_with_link:
            self._own(queue)

    def _as_kept(self, properties: NodeProperties) -> NodeProperties:
        """The properties of a dynamic node with what it needs to outlive its link."""
        if self.policy != NEVER and not self.timeout:
            return properties
        entries = {**dict(properties.arguments.entries), OF_SUBSCRIPTION: TypedValue(STR16, self.subscription_name)}
        if self.policy != NEVER and not properties.is_exchange:
            entries.setdefault(AUTO_DELETE_TIMEOUT, TypedValue(UINT32, self.timeout))
            properties = properties._replace(is_auto_delete=True)
        return properties if properties.is_exchange else properties._replace(arguments=TypedMap(tuple(entries.items())))

    def _own(self, queue: Queue) -> None:
        """A queue ends with the link, once its terminus expires."""
        if queue not in self.owned:
            self.owned.append(queue)
            queue.keepers += 1

    def _claim(self, name: str) -> None:
        """Take over what was kept of the link: the queue of that name. Others end."""
        for queue in self.session.connection.resumable.take_nodes(self.key):
            if queue.name == name:
                self.owned.append(queue)
            else:
                self.session.let_go(queue)

    async def make_dynamic(self, properties: NodeProperties) -> None:
        """Make a node with a name of the broker. Raises ModelError."""
        is_strict = _VOLATILE in self.capabilities and not properties.is_exchange
        prefix = REPLY_PREFIX if is_strict else "topic-" if properties.is_exchange else _DYNAMIC_PREFIX
        name = f"{prefix}{secrets.token_urlsafe(16)}"
        await self.make_node(name, properties)
        self.address = f"{QUEUES}{name}" if is_strict else name
        await self.make_subscription()

    async def make_on_demand(self, properties: NodeProperties) -> None:
        """Make a node with the client's name, unless another client has made it meanwhile. Raises ModelError."""
        assert self.address is not None
        try:
            await self.make_node(without_url(self.address), properties)
        except PreconditionFailedError:
            self.node = node_of(self.session.virtual_host, self.address, self.wanted)
            if self.node is None:
                raise
            self.is_made = False
        await self.make_subscription()

    async def look_again(self) -> None:
        """Find a node that another client has declared just now. Raises ModelError."""
        host, address = self.session.virtual_host, self.address or ""
        await host.topology.changes.made()
        check_access(self.session, address, self.wanted)  # what is there now may need other permissions
        node = self.node = node_of(host, address, self.wanted)
        if node is None:
            raise NotFoundError(f'there is no queue or exchange "{address[:256]}"')
        if self.is_source and node.kind is NodeKind.EXCHANGE:
            self.check_source(node)
            await self.make_subscription()

    def check_source(self, exchange: Node) -> None:
        """Check that an exchange can be a source. Raises InvalidArgumentError."""
        if exchange.is_strict:
            raise InvalidArgumentError("an exchange cannot be a source: use the address of a queue that is bound to it")

    async def make_subscription(self) -> None:
        """Make the queue of a subscription, if the link receives from an exchange. Raises ModelError."""
        node, session = self.node, self.session
        if not self.is_source or node is None or node.kind is not NodeKind.EXCHANGE:
            return
        topology = session.virtual_host.topology
        exchange = topology.find_exchange(node.name)
        name = self.subscription_name
        self._claim(name)
        self._is_durable = self._never_expires
        self.queue = queue = await self._subscription_queue(name, exchange.name)
        if not self._is_durable:
            self._own(queue)
        key, arguments = self._binding_of(exchange)
        await topology.bind(name, exchange.name, key, arguments, caller=session)

    async def _subscription_queue(self, name: str, exchange: str) -> Queue:
        """The queue of a subscription, which is made unless it is there. Raises ModelError."""
        session = self.session
        queues = session.virtual_host.queues
        queue = queues.get(name)
        if queue is not None and queue.arguments.get(OF_SUBSCRIPTION) is None:
            raise ResourceLockedError(f'queue "{name}" exists, and is not a subscription')
        if queue is not None and queue.auto_delete:
            if self._is_durable:
                raise ResourceLockedError(f'there is a subscription with the name "{name}" that expires')
            if self._has_other_selector(queue) and not queue.consumer_count:
                await session.virtual_host.topology.delete_queue(name, caller=session)
                self.owned.clear()
                return await self._subscription_queue(name, exchange)
        if queue is not None and not queue.auto_delete:
            if self._asks_for_durable:
                self._is_durable = True  # it was made as one that never expires, and stays so
            if self._is_durable and not self._has_other_selector(queue):
                return queue
            if self._is_durable and not queue.consumer_count:
                await session.virtual_host.topology.delete_queue(name, caller=session)
                return await self._subscription_queue(name, exchange)
            if self._is_durable:
                raise ResourceLockedError(f'subscription "{name}" is in use with another selector')
            raise ResourceLockedError(f'there is a durable subscription with the name "{name}"')
        arguments = [_MARK]
        if self.filters.selector is not None:  # what it does not match must not collect there
            arguments.append((FILTER, TypedValue(STR16, self.filters.selector.text)))
        timeout = 0 if self._is_durable else self.timeout
        if timeout:
            arguments.append((AUTO_DELETE_TIMEOUT, TypedValue(UINT32, timeout)))
        policy = session.broker.node_policies.of_subscriptions(exchange) if session.vhost == DEFAULT_HOST else None
        if policy is not None:
            arguments = list({**dict(policy.of_subscriptions.entries), **dict(arguments)}.items())
        is_durable = self._is_durable or (timeout > 0 and self._asks_for_durable)
        try:
            made = await session.virtual_host.topology.declare_queue(
                name, durable=is_durable, exclusive=not self._is_durable and not self._asks(SHARED),
                auto_delete=not self._is_durable, alternate="" if policy is None else policy.alternate,
                arguments=TypedMap(tuple(arguments)), caller=session, must_be_new=queue is None,
            )  # fmt: skip
        except PreconditionFailedError:
            if queue is not None or name not in queues:
                raise
            return await self._subscription_queue(name, exchange)  # another client has made it meanwhile
        if self._is_durable:
            self._kept = made
        return made

    def _has_other_selector(self, queue: Queue) -> bool:
        """Whether the queue of a durable subscription has the messages of another selector.

        That ends the subscription, as in JMS. Queues of earlier versions have no selector; their links have it alone.
        """
        typed, selector = queue.arguments.get(FILTER), self.filters.selector
        return typed is not None and typed.value != (None if selector is None else selector.text)

    # ---- when the terminus expires ----

    @property
    def _asks_for_durable(self) -> bool:
        return bool((self.terminus or {})["durable"])

    @property
    def _never_expires(self) -> bool:
        """Whether a subscription stays until its link is closed."""
        return (self.terminus or {}).get("expiry_policy") == POLICIES[NEVER]

    @property
    def policy(self) -> int:
        """The number of the expiry policy; a link of a client without a container cannot be attached again."""
        if not self.session.connection.container:
            return LINK_DETACH
        return POLICIES.index((self.terminus or {})["expiry_policy"])

    @property
    def timeout(self) -> int:
        """Seconds from the event that the policy names to the end of the terminus."""
        if not self.session.connection.container:
            return 0
        seconds: int = (self.terminus or {})["timeout"]
        return min(seconds, self.session.broker.settings.session_timeout_max_seconds)

    @property
    def subscription_name(self) -> str:
        """The name of the queue of a subscription."""
        name = self.name.partition("|")[0]
        if self._asks(SHARED) and (self._asks(GLOBAL) or not self.session.connection.container):
            return name
        return f"{self.session.connection.container}_{name}"

    def _binding_of(self, exchange: Exchange) -> tuple[str, TypedMap]:
        """The key and the arguments of a subscription's binding."""
        filters, key = self.filters, self.filters.key
        if key is None:
            assert self.node is not None
            key = self.node.key
        arguments = filters.arguments or TypedMap()
        if exchange.routing_type == "headers":
            return key or self.subscription_name, arguments or _MATCH_ALL
        if exchange.routing_type == "xml":
            return key or "", TypedMap(((XQUERY, filters.query or _ANY_CONTENT),))
        if filters.query is not None:
            raise InvalidArgumentError(f"xquery-filter needs an exchange of type xml, and {exchange.name!a} is not one")
        if arguments:
            text = f"legacy-amqp-headers-binding needs a headers exchange, and {exchange.name!a} is not one"
            raise InvalidArgumentError(text)
        if key is None:
            key = "#" if exchange.routing_type == "topic" else ""
        return key, arguments

    def abandon(self) -> None:
        """The link is refused after all: give up what was made for it."""
        for queue in self.owned:
            self.session.let_go(queue)
        self.owned.clear()
        if self._kept is not None and not self._kept.consumer_count:
            self.session.disown(self._kept)

    # ---- the link ----

    def make(self) -> Link:
        """Make the link; everything for it is there. Raises ModelError or ConditionError."""
        if not self.is_source or self.is_management:
            self._ignore_properties()
        if self.queue is None and not self.is_relayed:
            self._claim_node()
        if self.is_source and self.is_management:
            return AnswerLink(self.session, self.handle, self.name, self._max_message)
        link: IncomingLink | OutgoingLink | FetchLink
        if self.is_source and self.is_relayed:
            link = self._make_fetching()
        else:
            link = self._make_outgoing() if self.is_source else self._make_incoming()
        own, other = self.address or "", _address_of(self._fields.get("target" if self.is_source else "source"))
        link.ends = (own, other) if self.is_source else (other, own)
        return link

    def _claim_node(self) -> None:
        """A link to a queue ends with it, if it is a dynamic node that was made for the link."""
        node, session = self.node, self.session
        name = "" if node is None or node.kind is not NodeKind.QUEUE else node.name
        self._claim(name)
        queue = session.virtual_host.queues.get(name)
        mark = None if queue is None or self.is_made else queue.arguments.get(OF_SUBSCRIPTION)
        if queue is None or mark is None or mark.value != self.subscription_name or queue.creator != session.user:
            return
        if session.connection.container and queue.name != self.subscription_name:
            self._own(queue)

    # ---- resuming ----

    @property
    def key(self) -> LinkKey:
        """What the link is known by."""
        session = self.session
        container = session.connection.container
        return LinkKey(session.virtual_host.name, session.user, container, self.name, self.is_source)

    @property
    def kept_seconds(self) -> int:
        """How long the unsettled deliveries of the link are kept when it is suspended; 0 if it cannot be resumed."""
        terminus = self.terminus
        if not terminus or self.owned or self.is_management or not self.session.connection.container:
            return 0
        if self.is_relayed:
            return 0
        if self.is_source and (self._fields["snd_settle_mode"] == SETTLED or self.is_browsing):
            return 0
        seconds, is_kept = self.timeout, terminus["durable"] == _UNSETTLED_STATE and self._never_expires
        if not seconds and is_kept and not self._asks(SHARED):
            seconds = min(NEVER_SECONDS, self.session.broker.settings.session_timeout_max_seconds)
        return seconds

    @property
    def _settles_first(self) -> bool:
        """Whether the broker settles what it receives before its sender does, whatever that has asked for.

        The mode second avoids duplicates when a link is resumed. Azure's clients ask for it on links that cannot be,
        and wait for outcomes that are settled.
        """
        return self._fields["rcv_settle_mode"] != _SECOND or self.is_control or not self.kept_seconds

    @property
    def told(self) -> dict[bytes, Composite | None] | None:
        """The deliveries that the client has not settled, if it resumes the link."""
        given = self._fields.get("unsettled")
        return None if given is None else read_unsettled(given)

    @property
    def is_incomplete(self) -> bool:
        """Whether the client has more of them."""
        return bool(self._fields["incomplete_unsettled"])

    @property
    def _properties(self) -> TypedMap:
        return neutral_map(self._fields.get("properties") or ())

    def _ignore_properties(self) -> None:
        """Log the properties of a link that is not a subscription, whose arguments they would be."""
        for name in list(self._properties)[:_MAX_IGNORED]:
            if not self.is_management or name != _PAIRED:
                why = "only links on which a client receives from a queue or an exchange have properties"
                self.session.broker.arguments.field_ignored(f'Link "{self.name}"', "property", name, why)

    def _make_incoming(self) -> IncomingLink:
        session, node = self.session, self.node
        if node is not None:
            exchange, key = ("", node.name) if node.kind is NodeKind.QUEUE else (node.name, node.key)
            if key is not None:
                session.broker.authorization.check_publish(session.connection, exchange, key)
        link = IncomingLink(session, self.handle, self.name, node, self.address or "")
        link.delivery_count = link.first_count = self._fields.get("initial_delivery_count") or 0
        link.owned, link.policy = self.owned, self.policy if self.owned else LINK_DETACH
        link.is_control, link.is_management = self.is_control, self.is_management
        if self.is_relayed:
            assert session.connection.interlinks is not None
            link.relay = session.connection.interlinks.relay(link.address, link, session)
        if not self.is_control and not self.is_management:
            link.settles_first = self._settles_first
            if self.kept_seconds:
                link.resumption = Resumption(self.key, self.kept_seconds, link.address, self.policy)
        found = self._found
        if isinstance(found, Exchange) and found.auto_delete:
            link.kept = found
            found.senders += 1
        elif isinstance(found, Queue) and found.auto_delete and found.arguments.get(LIFETIME) is not None:
            link.kept = found
            found.keepers += 1
        return link

    def _make_fetching(self) -> FetchLink:
        terminus, interlinks = self.terminus, self.session.connection.interlinks
        assert terminus is not None
        assert interlinks is not None
        settles = self._fields["snd_settle_mode"] == SETTLED
        link = FetchLink(self.session, self.handle, self.name, self._max_message, settles=settles)
        kept = {name: terminus[name] for name in ("filter", "distribution_mode") if terminus.get(name)}
        link.fetch = interlinks.fetch(self.address or "", link, self.session, kept, settles=settles)
        return link

    def _make_outgoing(self) -> OutgoingLink:
        session, fields = self.session, self.terminus
        assert fields is not None
        queue = self.queue
        if queue is None:
            assert self.node is not None
            queue = self._find_queue(self.node.name)
            if self.filters.key is not None or self.filters.arguments is not None:
                text = "legacy-amqp bindings are implemented for exchanges, not for queues"
                raise ConditionError(Condition.NOT_IMPLEMENTED, text)
        is_browsing = self.is_browsing or queue.is_browse_only
        settles = self._fields["snd_settle_mode"] == SETTLED
        condition = self.filters.condition
        link = OutgoingLink(
            session,
            self.handle,
            self.name,
            queue,
            acquires=not is_browsing,
            settles=settles,
            selector=None if condition is None else SelectorCheck(condition, session.broker.last_candidate),
            no_local=self.filters.no_local,
            max_message=self._max_message,
            default=self._default_outcome(fields.get("default_outcome")),
            arguments=self._arguments_of(queue),
        )
        is_exclusive = self._is_durable and not self._asks(SHARED)
        subscribe(
            session.broker, session, queue, link, self.name, exclusive=is_exclusive, arguments=link.arguments,
            protocol=AMQP_1_0,
        )  # fmt: skip
        session.virtual_host.idle_queues.used(queue)
        link.owned, link.policy = self.owned, self.policy if self.owned else LINK_DETACH
        link.is_durable = self._is_durable
        link.keeps_offset = self._offset_name
        can_resume = link.acquires and not queue.auto_delete and not isinstance(queue, Stream)
        if can_resume and self.kept_seconds:
            link.resume(Resumption(self.key, self.kept_seconds, queue, self.policy))
        return link

    def _arguments_of(self, queue: Queue) -> TypedMap:
        """The arguments of a subscription to a queue: the properties of the link, and the filters of streams."""
        entries = dict((*self._properties.entries, *self.filters.of_streams))
        if isinstance(queue, Stream) and NAME not in entries and (self._asks_for_durable or self._never_expires):
            self._offset_name = self.subscription_name
            entries[NAME] = TypedValue(STR16, self._offset_name)
        return TypedMap(tuple(entries.items()))

    @property
    def _max_message(self) -> int:
        """Bytes of a message that the client accepts; 0 means that it has no limit."""
        return min(self._fields.get("max_message_size") or ANY_SIZE, ANY_SIZE)

    @property
    def is_browsing(self) -> bool:
        """Whether the link leaves the messages on the queue: a subscription has its own, and takes them."""
        return self.queue is None and (self.terminus or {}).get("distribution_mode") == _COPY

    @staticmethod
    def _default_outcome(given: Any) -> Composite:
        if given is None:
            return Composite("released", {})
        if not isinstance(given, Composite) or given.name not in OUTCOMES:
            raise ConditionError(Condition.NOT_IMPLEMENTED, "unknown default outcome")
        if has_foreign_annotations(given):
            raise ConditionError(Condition.NOT_IMPLEMENTED, NO_ANNOTATIONS)
        return given

    def _find_queue(self, name: str) -> Queue:
        """The queue with a name, if the session may use it; an unauthorized user does not learn why it may not."""
        session = self.session
        queue = session.virtual_host.queues.get(name)
        if queue is not None and (queue.owner in (None, session) or (self.is_browsing and not queue.is_private)):
            return queue
        session.broker.authorization.check(session, Action.CONSUME, ObjectType.QUEUE, name)
        if queue is None:
            raise NotFoundError(f'there is no queue "{name}"', kind="queue", name=name)
        raise ResourceLockedError(f'queue "{name}" is exclusive to another session')

    # ---- the answer ----

    def answer(self, link: Link | None) -> dict[str, Any]:
        """The fields of the broker's attach; None for a link that is refused."""
        fields = self._fields
        values: dict[str, Any] = {
            "name": self.name,
            "handle": self.handle,
            "role": not fields["role"],
            "snd_settle_mode": fields["snd_settle_mode"],
            "rcv_settle_mode": fields["rcv_settle_mode"],
        }
        if not self.is_source and self._settles_first:
            values["rcv_settle_mode"] = 0
        other = "target" if self.is_source else "source"
        if isinstance(fields.get(other), Composite):
            values[other] = fields[other]
        if self.is_source:
            values["initial_delivery_count"] = 0
        if link is None:
            return values
        if self.is_control:
            values["target"] = Composite(COORDINATOR, {"capabilities": OFFERED})
            return values
        if not self.is_source:
            values["max_message_size"] = self.session.broker.settings.max_message_bytes
        values[self.kind_name] = Composite(self.kind_name, self._actual(link))
        if self.unsettled is not None:
            values["unsettled"], values["incomplete_unsettled"] = self.unsettled
        return values

    def _actual(self, link: Link) -> dict[str, Any]:
        """The fields of the broker's terminus as it is."""
        assert self.terminus is not None
        actual = dict(self.terminus)
        actual["address"] = None if self.address is None else Value("string", self.address)
        actual["capabilities"] = self._actual_capabilities(link)
        actual["dynamic_node_properties"] = self._actual_properties(link)
        if isinstance(link, OutgoingLink):
            actual["distribution_mode"] = _MOVE if link.acquires else _COPY
            actual["default_outcome"] = link.default
            actual["outcomes"] = tuple(f"amqp:{name}:list" for name in OUTCOMES)
        if self._offset_name:
            return actual
        resumption = None if isinstance(link, QueuelessLink) else link.resumption
        policy, durable, actual["timeout"] = LINK_DETACH, 0, 0
        if resumption is not None:
            policy = LINK_DETACH if resumption.policy == NEVER else resumption.policy
            actual["timeout"] = resumption.seconds
        if self._is_durable:
            policy, durable = NEVER, self.terminus["durable"]
        elif not isinstance(link, QueuelessLink) and link.owned:
            policy, queue = link.policy, link.owned[0]
            durable = min(self.terminus["durable"], _CONFIGURATION) if queue.durable else 0
            actual["timeout"] = 0 if policy == NEVER else queue.auto_delete_seconds
        actual["durable"], actual["expiry_policy"] = durable, POLICIES[policy]
        return actual

    @property
    def _found(self) -> Queue | Exchange | None:
        """The queue or the exchange that is the node; None if it has neither, such as for direct replies."""
        if self.node is None:
            return None
        host, name = self.session.virtual_host, self.node.name
        return host.queues.get(name) if self.node.kind is NodeKind.QUEUE else host.exchanges.get(name)

    def _actual_properties(self, link: Link) -> tuple[tuple[Value, Value], ...]:
        """Those of the node properties asked for that the node has, with the values that it has.

        They are told of nodes that were there, too, as Qpid's clients check what they assert by them. Texts have the
        type of those asked for: Qpid's C++ client reads no symbols.
        """
        asked, node = (self.terminus or {}).get("dynamic_node_properties") or (), self._found
        if not asked or node is None:
            return ()
        is_owned = not isinstance(link, QueuelessLink) and node in link.owned
        actual: list[tuple[Value, Value]] = []
        for key, typed in asked:
            value = _actual_property(node, plain_key(key), typed, is_owned=is_owned)
            if value is not None:
                actual.append((key, value))
        return tuple(actual)

    def _actual_capabilities(self, link: Link) -> tuple[str, ...]:
        """Those of the capabilities asked for that the node has."""
        if self.node is None:
            return ()
        found, is_queue = self._found, self.node.kind is NodeKind.QUEUE
        has: Mapping[str, bool] = {
            IS_QUEUE: is_queue,
            IS_TOPIC: not is_queue,
            DURABLE: found is not None and found.durable,
            AUTO_DELETE: found is not None and found.auto_delete,
            CREATE: True,
            SHARED: isinstance(link, OutgoingLink) and link.queue.exclusive_consumer is None,
            GLOBAL: isinstance(link, OutgoingLink),
        }
        return tuple(name for name in self.capabilities if has.get(_OF_ARTEMIS.get(name, name), False))


def _address_of(terminus: object) -> str:
    """The address of the client's own terminus; empty if it has none."""
    address = terminus.fields.get("address") if isinstance(terminus, Composite) else None
    return address.value if isinstance(address, Value) and isinstance(address.value, str) else ""


def _boolean_of(name: str, typed: Value) -> bool:
    """A property of a node that is a boolean. Raises ConditionError."""
    if not isinstance(typed.value, bool):
        raise ConditionError(Condition.INVALID_FIELD, f"{name} is not a boolean, but of type {typed.type_name}")
    return typed.value


def _text_of(name: str, typed: Value) -> str:
    """A property of a node that is a string or a symbol. Raises ConditionError."""
    if not isinstance(typed.value, str):
        raise ConditionError(Condition.INVALID_FIELD, f"{name} is not a string, but of type {typed.type_name}")
    return typed.value


def _dist_modes_of(typed: Value) -> list[object]:
    """The distribution modes that a node is to support: one, or several. Raises ConditionError."""
    modes = typed.value
    if modes is None or isinstance(modes, str):
        return [modes]
    if not isinstance(modes, tuple) or not all(isinstance(each, Value) for each in modes):
        raise ConditionError(Condition.INVALID_FIELD, f"{_DIST_MODES} is neither a symbol nor a list of symbols")
    return [each.value for each in modes]


def _lifetime_of(typed: Value) -> str | None:
    """The lifetime that a lifetime policy means; None if the node ends with its link. Raises ConditionError."""
    name = _lifetime_name(typed)
    if name not in _LIFETIMES:
        raise ConditionError(Condition.NOT_IMPLEMENTED, f"lifetime policy {name!a:.64} is not implemented")
    return _LIFETIMES[name]


def _lifetime_name(typed: Value) -> str:
    """The name of a lifetime policy, which may be unknown."""
    content = typed.value
    descriptor = content.descriptor.value if isinstance(content, Described) else None
    kind = BY_CODE.get(descriptor) if isinstance(descriptor, int) else None
    return kind.name if kind is not None else str(descriptor).removeprefix("amqp:").removesuffix(":list")


def _actual_property(node: Queue | Exchange, name: str, asked: Value, *, is_owned: bool) -> Value | None:
    """The value that a property of a node has; None if it has none.

    Args:
        node: the node.
        name: that of the property.
        asked: the value that a client asks for.
        is_owned: whether the node ends with the client's link.
    """
    is_queue = isinstance(node, Queue)
    text: object = None
    if name == _LIFETIME_POLICY:
        return _actual_lifetime(node, asked, is_owned=is_owned)
    if name == _DIST_MODES:
        modes = asked.value if is_queue and isinstance(asked.value, tuple) else (None,)
        if all(isinstance(each, Value) and each.value in (_COPY, _MOVE) for each in modes):
            return asked
        text = _MOVE if is_queue else _COPY
    elif name == DURABLE:
        return Value("boolean", node.durable)
    elif name == AUTO_DELETE:
        return Value("boolean", node.auto_delete or is_owned)
    elif name == EXCLUSIVE:
        return Value("boolean", isinstance(node, Queue) and node.owner is not None)
    elif name == ALTERNATE:
        text = None if node.alternate is None else node.alternate.name
    elif name == _EXCHANGE_TYPE:
        text = node.type_name if isinstance(node, Exchange) else None
    else:
        typed = node.arguments.get(name)
        if typed is None or not has_effect(Of.QUEUE if is_queue else Of.EXCHANGE, name):
            return None
        text = as_text(typed.value)
        if not isinstance(text, str):
            return value_of(typed)
    return None if text is None else Value("symbol" if asked.type_name == "symbol" else "string", text)


def _actual_lifetime(node: Queue | Exchange, asked: Value, *, is_owned: bool) -> Value | None:
    """The lifetime policy of a node; None if it stays. One of several with the same effect is that asked for."""
    if is_owned:
        lifetime = None
    elif not node.auto_delete:
        return None
    else:
        is_kept = isinstance(node, Queue) and node.is_kept_until_empty
        lifetime = UNTIL_EMPTY if is_kept else "delete-if-unused"
    if _LIFETIMES.get(_lifetime_name(asked), "") == lifetime:
        return asked
    name = next(each for each, effect in reversed(_LIFETIMES.items()) if effect == lifetime)
    return Value("described", Described(Value("ulong", BY_NAME[name].code), Value("list", ())))


def prepare(attach: Attach) -> Coroutine[Any, Any, None] | None:
    """Find the node of a link. Returns the work that makes what it needs; None if that is there.

    Raises:
        ConditionError, ModelError: it is refused.
    """
    attach.read()
    terminus, session = attach.terminus, attach.session
    assert terminus is not None
    if attach.is_control or attach.is_management:
        return None
    if terminus["dynamic"]:
        if attach.address is not None:
            raise ConditionError(Condition.INVALID_FIELD, "a dynamic terminus with an address")
        return attach.make_dynamic(attach.node_properties(is_dynamic=True))
    if not attach.address:
        if attach.is_source:
            raise ConditionError(Condition.INVALID_FIELD, "a source without an address")
        return None
    check_access(session, attach.address, attach.wanted)
    node = attach.node = node_of(session.virtual_host, attach.address, attach.wanted)
    if node is None or attach.lacks(node):
        if CREATE in attach.wanted:
            return attach.make_on_demand(attach.node_properties(is_dynamic=False))
        properties = attach.properties_by_policy()
        if properties is not None:
            return attach.make_on_demand(properties)
        if attach.leads_to_domain():
            return None
        return attach.look_again()
    if not attach.is_source or node.kind is NodeKind.QUEUE:
        return None
    attach.check_source(node)
    return attach.make_subscription()
