"""The class broker: the broker itself, and its methods for operators.

`create` and `delete` do what the commands of a protocol do:

    type               its name               properties
    -----------------  ---------------------  -----------------------------------------------------------------
    queue              NAME                   durable, auto-delete, exclusive, alternate-exchange, and arguments
    exchange, topic    NAME                   exchange-type, durable, auto-delete, alternate-exchange, and arguments
    binding            EXCHANGE/QUEUE[/KEY]   arguments
    exchange_binding   SOURCE/DESTINATION[/KEY]   arguments, also as options of delete

`exclusive` is ignored, with a line in the log: the queue would be exclusive to a console that goes away. With
`strict`, an argument that the broker does not know (`model/arguments`) and that is not an extension (`x-…`) is an
error. `federation` has the properties of link and bridge, `interlink` those of domain, incoming and outgoing. There are
no policies of AMQP 1.0: both methods are refused for them, with the reason. In qpidd, too, these belong to a module of
their own; a topic is an exchange without it.

    delete             options
    -----------------  -------------------------------------
    queue              if_unused, if_empty
    exchange, topic    if_unused

A `subscription`, whose name is the key of its object, is closed: permission to call its method `close` is needed, as
if it had one.
Objects of another virtual host than "/" have its name as the property, or option, `qstore.virtual-host`.

Other options are refused: a misspelt one would delete what it should have kept.

Source: the QMF schema of qpidd's broker; qpidd, Broker.cpp (the types and options of create and delete).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import LogError, Rules, log_of
from qstore.broker.management.objects.access import TYPES, create_access, delete_access
from qstore.broker.management.objects.client import close_subscription
from qstore.broker.management.objects.federation import connect, create_federated, delete_federated
from qstore.broker.management.objects.interlink import KINDS as INTERLINKS
from qstore.broker.management.objects.interlink import create_interlink, delete_interlink
from qstore.broker.management.objects.queue import move_messages
from qstore.broker.management.request import Arguments
from qstore.broker.management.schema import (
    BROKER,
    BROKER_NAME,
    SYSTEM,
    ClassName,
    ManagedClass,
    always,
    arg,
    method,
    prop,
    shown_name,
    stat,
)
from qstore.broker.model.arguments import Of, rows_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import in_host
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
)
from qstore.broker.model.node_policies import KINDS as NODE_POLICIES
from qstore.broker.model.queues.groups import GroupOrder
from qstore.broker.model.topology.checks import check_private
from qstore.formats.broker_records.topology import DEFAULT_HOST, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, TypedValue, typed_map
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.log.sinks import Logging
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.schema import Results
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.counters import MessageSizes, QueueTotals
    from qstore.broker.model.queues.consumers import Consumer


class _View(NamedTuple):
    """A broker, and the sums of its queues' counters."""

    managed: ManagedBroker
    broker: Broker
    totals: QueueTotals


def _look(managed: ManagedBroker) -> _View:
    return _View(managed, managed.broker, managed.totals)


async def _sum_up(managed: ManagedBroker) -> None:
    await managed.sum_up()


def started(managed: ManagedBroker) -> float:
    """When the broker was started."""
    return managed.broker.started_at


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, ManagedBroker]]:
    return ((BROKER_NAME, managed),)


# ---- create and delete ----

HOST_PROPERTY: Final = "qstore.virtual-host"
"""The property of create, and the option of delete, with the virtual host of the object; without it the default one."""
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": ("if_unused", "if_empty", HOST_PROPERTY),
    "exchange": ("if_unused", HOST_PROPERTY),
    "topic": ("if_unused", HOST_PROPERTY),
    "binding": (HOST_PROPERTY,),
    "subscription": (),
    "link": (),
    "bridge": (),
    **dict.fromkeys(INTERLINKS, ()),
    **dict.fromkeys(NODE_POLICIES, ()),
}
"""Type -> the options of delete."""
_EXTENSION: Final = "x-"
_WITHOUT_CRITERIA: Final = ("direct", "topic", "fanout")
"""Types of exchanges to whose bindings a property that is unknown means nothing."""

_LOG: Final = log_of("Management")


async def create(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Create an object."""
    kind, name = arguments.text("type"), arguments.text("name")
    properties, strict = _Properties(arguments.typed_map("properties")), arguments.flag("strict")
    if kind not in _OF_HOSTS:
        return await _create_other(managed, kind, name, arguments, caller)
    host = managed.broker.virtual_hosts.get(properties.take_text(HOST_PROPERTY) or DEFAULT_HOST)
    caller = in_host(caller, host.name)
    if kind == "queue":
        _check_new(name, host.queues)
        if properties.take_flag("exclusive"):
            _LOG.notice('Queue "%s": exclusive is ignored: the console that creates it cannot own it', printable(name))
        await host.topology.declare_queue(
            name,
            durable=properties.take_flag("durable"),
            auto_delete=properties.take_flag("auto-delete"),
            alternate=properties.take_text("alternate-exchange"),
            arguments=properties.rest(Of.QUEUE, strict=strict),
            caller=caller,
        )
    elif kind in ("exchange", "topic"):
        _check_new(name, host.exchanges)
        await host.topology.declare_exchange(
            name,
            properties.take_text("exchange-type") or "topic",
            durable=properties.take_flag("durable"),
            auto_delete=properties.take_flag("auto-delete"),
            alternate=properties.take_text("alternate-exchange"),
            arguments=properties.rest(Of.EXCHANGE, strict=strict),
            caller=caller,
        )
    elif kind == "binding":
        exchange, queue, key = _parts_of_binding(name)
        found = host.exchanges.get(exchange)
        strict = strict and found is not None and found.type_name in _WITHOUT_CRITERIA
        await host.topology.bind(queue, exchange, key, properties.rest(Of.BINDING, strict=strict), caller=caller)
    elif kind == "exchange_binding":
        bound = _parts_of_binding(name, "SOURCE/DESTINATION/KEY")
        await host.exchange_bindings.bind(*bound, properties.rest(Of.BINDING, strict=False), caller=caller)
    return {}


_OF_HOSTS: Final = ("queue", "exchange", "topic", "binding", "exchange_binding")
"""The types of objects that a virtual host has."""
_FEDERATED: Final = ("link", "bridge")


async def _create_other(managed: ManagedBroker, kind: str, name: str, arguments: Arguments, caller: Caller) -> Results:
    if kind in TYPES:
        await create_access(managed, kind, name, arguments.typed_map("properties"), caller)
    elif kind in _FEDERATED:
        properties, strict = arguments.typed_map("properties"), arguments.flag("strict")
        await create_federated(managed, kind, name, properties, strict=strict, caller=caller)
    elif kind in INTERLINKS:
        properties, strict = arguments.typed_map("properties"), arguments.flag("strict")
        await create_interlink(managed, kind, name, properties, strict=strict, caller=caller)
    elif kind in NODE_POLICIES:
        await managed.broker.node_policies.create(kind, name, arguments.typed_map("properties"), caller)
    else:
        raise _unknown_type(kind)
    return {}


async def delete(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Delete an object."""
    kind, name = arguments.text("type"), arguments.text("name")
    if kind in TYPES:
        await delete_access(managed, kind, name, arguments.typed_map("options"), caller)
        return {}
    options = arguments.map("options")
    known = _OPTIONS.get(kind)
    unknown = [] if known is None else [each for each in options if each not in known]
    if unknown:
        raise InvalidArgumentError(f"unknown option of delete: {printable(unknown[0])}")
    if kind == "subscription":
        await close_subscription(managed, name, caller)
        return {}
    if kind in _FEDERATED:
        await delete_federated(managed, kind, name, caller)
        return {}
    if kind in INTERLINKS:
        await delete_interlink(managed, kind, name, caller)
        return {}
    if kind in NODE_POLICIES:
        await managed.broker.node_policies.delete(kind, name, caller)
        return {}
    host = managed.broker.default_host
    if kind in _OPTIONS:
        host = managed.broker.virtual_hosts.get(options.text(HOST_PROPERTY) or DEFAULT_HOST)
    caller = in_host(caller, host.name)
    if kind == "queue":
        await host.topology.delete_queue(
            name, if_unused=options.flag("if_unused"), if_empty=options.flag("if_empty"), caller=caller
        )
    elif kind in ("exchange", "topic"):
        await host.topology.delete_exchange(name, if_unused=options.flag("if_unused"), caller=caller)
    elif kind == "binding":
        exchange, queue, key = _parts_of_binding(name)
        await host.topology.unbind(queue, exchange, key, caller=caller)
    elif kind == "exchange_binding":
        bound = _parts_of_binding(name, "SOURCE/DESTINATION/KEY")
        given = _Properties(arguments.typed_map("options"))
        host = managed.broker.virtual_hosts.get(given.take_text(HOST_PROPERTY) or DEFAULT_HOST)
        await host.exchange_bindings.unbind(
            *bound, given.rest(Of.BINDING, strict=False), caller=in_host(caller, host.name)
        )
    else:
        raise _unknown_type(kind)
    return {}


def _of_host(host: str, full: str) -> tuple[str, str]:
    """The virtual host and the name in a full name, which must be of that host, or empty."""
    other, name = split_name(full)
    if name and other != host:
        raise InvalidArgumentError(f'"{shown_name(full)}" is of another virtual host than "{host}"')
    return host, name


def _of_hosts(path: str) -> Callable[[ManagedBroker], int]:
    """The sum of an attribute of all virtual hosts."""
    value = of(path)
    return lambda managed: sum(value(host) for host in managed.broker.hosts.values())


class _Properties:
    """The properties of an object that is created: some are taken, the rest are its arguments."""

    def __init__(self, properties: TypedMap) -> None:
        self._left: dict[str, TypedValue] = dict(properties.entries)

    def take_flag(self, name: str) -> bool:
        """A flag; False if it is not given."""
        typed = self._left.pop(name, None)
        return typed is not None and Arguments({name: typed.value}).flag(name)

    def take_text(self, name: str) -> str:
        """A text; empty if it is not given."""
        typed = self._left.pop(name, None)
        return "" if typed is None else Arguments({name: typed.value}).text(name)

    def rest(self, of: Of, *, strict: bool) -> TypedMap:
        """The remaining properties: the arguments of the new object.

        Raises:
            InvalidArgumentError: `strict`, and one of them is neither known nor an extension.
        """
        unknown = [name for name in self._left if not rows_of(of, name) and not name.startswith(_EXTENSION)]
        if strict and unknown:
            raise InvalidArgumentError(f"unknown property: {printable(unknown[0])}")
        return TypedMap(tuple(self._left.items()))


def _unknown_type(kind: str) -> ModelError:
    """There are no objects of that type."""
    return InvalidArgumentError(f"unknown object type: {printable(kind)}")


def _check_new(name: str, existing: Mapping[str, object]) -> None:
    if name in existing:
        raise PreconditionFailedError(f"Object already exists: {printable(name)}")


def _parts_of_binding(name: str, form: str = "EXCHANGE/QUEUE/KEY") -> tuple[str, str, str]:
    """The three parts of a name of this form. Raises InvalidArgumentError."""
    parts = name.split("/", 2)
    if len(parts) < 2:
        raise InvalidArgumentError(f"the name of a binding is {form}, not {printable(name)}")
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


# ---- query ----

_MAX_GROUPS: Final = 1000  # in the reply to a query


async def query(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """The values of an object; of a queue with message groups, also the first groups."""
    kind, name = arguments.text("type"), arguments.text("name")
    classes = [each for each in managed.classes if each.name.lower() == kind.lower()]
    if not classes:
        raise _unknown_type(kind)
    if kind.lower() in ("queue", "exchange"):
        host, local = split_name(name)
        managed.broker.authorization.check(in_host(caller, host), Action.ACCESS, ObjectType(kind.lower()), local)
    for managed_class in classes:
        target = managed_class.target(managed, name)
        if target is not None and managed_class.is_seen_by(managed, caller, target):
            if managed_class.prepare is not None:
                await managed_class.prepare(managed)
            results: Results = {**managed_class.map_of(*managed_class.values(target))}
            if managed_class.name == "queue" and isinstance(target.order, GroupOrder):
                check_private(target, caller)  # the names of groups are values of headers
                results["qpid.message_group_queue"] = _groups(target.order)
            return {"results": results}
    raise NotFoundError(f"Object not found: {printable(name)}")


def _groups(order: GroupOrder) -> Results:
    """The first groups of a queue, and the consumers to which they belong; empty for one that is free."""
    states = [
        {"group_id": group.name, "msg_count": group.size, "timestamp": 0, "consumer": _name_of(group.owner)}
        for group in order.groups[:_MAX_GROUPS]
    ]
    return {"group_header_key": order.header, "group_state": states}


def _name_of(consumer: Consumer | None) -> str:
    return "" if consumer is None else str(getattr(consumer, "destination", "")) or "a consumer"


# ---- the log ----

_MAX_RULES: Final = 100
_MAX_RULE_CHARACTERS: Final = 200
_split: Final = re.compile(r"[\s,]+").split


async def get_level(managed: ManagedBroker, _broker: object, _arguments: Arguments, _caller: Caller) -> Results:
    """Which lines are shown."""
    rules = _log(managed).rules
    return {"level": ",".join([*rules.enabled, *(f"!{each}" for each in rules.disabled)])}


async def set_level(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change which lines are shown."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    parts = [each for each in _split(arguments.text("level")) if each]
    if not parts or len(parts) > _MAX_RULES or max(len(each) for each in parts) > _MAX_RULE_CHARACTERS:
        raise InvalidArgumentError("give the argument level one to 100 rules, such as notice+ or !debug-:Network")
    try:
        rules = Rules(
            [each for each in parts if not each.startswith("!")], [each[1:] for each in parts if each.startswith("!")]
        )
    except LogError as error:
        raise InvalidArgumentError(str(error)) from None
    _log(managed).select(rules)
    return {}


async def get_hires(managed: ManagedBroker, _broker: object, _arguments: Arguments, _caller: Caller) -> Results:
    """Whether the time of a line has microseconds."""
    return {"logHires": _log(managed).has_microseconds}


async def set_hires(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change whether the time of a line has microseconds."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    _log(managed).show_microseconds(is_on=arguments.flag("logHires"))
    return {}


def _log(managed: ManagedBroker) -> Logging:
    if managed.log is None:
        raise NotImplementedByBrokerError("the log of this broker cannot be changed")
    return managed.log


# ---- the other methods ----

_FOR_THE_ANSWER: Final = 0.2  # seconds


async def echo(_managed: ManagedBroker, _broker: object, arguments: Arguments, _caller: Caller) -> Results:
    """Return the data sent. Raises InvalidArgumentError: it has other types."""
    sequence, body = arguments.count("sequence"), arguments.text("body")
    return {name: value for name, value in (("sequence", sequence), ("body", body)) if name in arguments}


async def get_timestamps(managed: ManagedBroker, _broker: object, _arguments: Arguments, caller: Caller) -> Results:
    """Whether messages get their time of arrival."""
    managed.broker.authorization.check(caller, Action.ACCESS, ObjectType.BROKER, "")
    return {"receive": managed.broker.has_timestamps}


async def set_timestamps(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change whether messages get their time of arrival, from the next message of each client on."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    managed.broker.has_timestamps = arguments.flag("receive")
    for machine in managed.machines():
        machine.set_timestamps(is_on=managed.broker.has_timestamps)
    return {}


async def redirect(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Put the messages for a queue on another one from now on, or no longer."""
    source, target = arguments.text("sourceQueue"), arguments.text("targetQueue")
    host, source = split_name(source)
    _, target = _of_host(host, target)
    managed.broker.virtual_hosts.get(host).redirections.redirect(source, target, in_host(caller, host))
    return {}


async def shut_down(managed: ManagedBroker, _broker: object, _arguments: Arguments, caller: Caller) -> Results:
    """End the broker, as by SIGTERM, when the answer had time to be sent."""
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")
    asyncio.get_running_loop().call_later(_FOR_THE_ANSWER, managed.shut_down)
    return {}


# ---- the table ----


# fmt: off
BROKER_CLASS: Final = ManagedClass(
    BROKER,
    properties=(
        prop("name", "sstr", "RC index", always(BROKER_NAME), "Index for the broker at this agent"),
        prop("systemRef", "objId", "RO parent", lambda view: SYSTEM.reference(str(view.managed.system_id)), "System ID",
             "", "System"),
        prop("port", "uint16", "RO", of("managed.port"), "TCP Port for AMQP Service"),
        prop("workerThreads", "uint16", "RO", always(1), "Thread pool size"),
        prop("maxConns", "uint16", "RO", of("broker.settings.max_connections"), "Maximum allowed connections"),
        prop("connBacklog", "uint16", "RO", of("broker.settings.backlog"),
             "Connection backlog limit for listening socket"),
        prop("stagingThreshold", "uint32", "RO", of("broker.settings.staging_bytes"), "Deprecated"),
        prop("mgmtPublish", "bool", "RO", of("broker.settings.management_publish"),
             "Broker's management agent sends unsolicited data on the publish interval"),
        prop("mgmtPubInterval", "uint16", "RW", of("managed.interval"), "Interval for management broadcasts", "second"),
        prop("version", "sstr", "RO", of("managed.version"), "Running software version"),
        prop("dataDir", "lstr", "RO optional", of("broker.settings.data_directory"),
             "Persistent configuration storage location"),
    ),
    statistics=(
        stat("uptime", "deltaTime", of("managed.uptime")),
        stat("queueCount", "count64", of("broker.queue_count"), "Number of queues in the broker", "queue"),
        stat("msgTotalEnqueues", "count64", of("totals.messages_enqueued"), "Total messages enqueued to broker",
             "message"),
        stat("msgTotalDequeues", "count64", of("totals.messages_dequeued"), "Total messages dequeued from broker",
             "message"),
        stat("byteTotalEnqueues", "count64", of("totals.bytes_enqueued"), "Total bytes enqueued to broker", "octet"),
        stat("byteTotalDequeues", "count64", of("totals.bytes_dequeued"), "Total bytes dequeued from broker", "octet"),
        stat("msgDepth", "count64", of("totals.messages"), "Current number of messages on queues in broker", "message"),
        stat("byteDepth", "count64", of("totals.bytes"), "Current number of bytes on queues in broker", "octet"),
        stat("msgPersistEnqueues", "count64", of("totals.persistent_messages_enqueued"),
             "Total persistent messages enqueued to broker", "message"),
        stat("msgPersistDequeues", "count64", of("totals.persistent_messages_dequeued"),
             "Total persistent messages dequeued from broker", "message"),
        stat("bytePersistEnqueues", "count64", of("totals.persistent_bytes_enqueued"),
             "Total persistent bytes enqueued to broker", "octet"),
        stat("bytePersistDequeues", "count64", of("totals.persistent_bytes_dequeued"),
             "Total persistent bytes dequeued from broker", "octet"),
        stat("msgTxnEnqueues", "count64", of("totals.txn_messages_enqueued"),
             "Total transactional messages enqueued to broker", "message"),
        stat("msgTxnDequeues", "count64", of("totals.txn_messages_dequeued"),
             "Total transactional messages dequeued from broker", "message"),
        stat("byteTxnEnqueues", "count64", of("totals.txn_bytes_enqueued"),
             "Total transactional bytes enqueued to broker", "octet"),
        stat("byteTxnDequeues", "count64", of("totals.txn_bytes_dequeued"),
             "Total transactional bytes dequeued from broker", "octet"),
        stat("msgFtdEnqueues", "count64", of("totals.messages_out"), "Deprecated", "message"),
        stat("msgFtdDequeues", "count64", of("totals.messages_in"), "Deprecated", "message"),
        stat("byteFtdEnqueues", "count64", of("totals.bytes_out"), "Deprecated", "octet"),
        stat("byteFtdDequeues", "count64", of("totals.bytes_in"), "Deprecated", "octet"),
        stat("msgFtdDepth", "count64", of("totals.messages_on_disk"), "Deprecated", "message"),
        stat("byteFtdDepth", "count64", of("totals.bytes_on_disk"), "Deprecated", "octet"),
        stat("releases", "count64", of("totals.releases"), "Acquired messages reinserted into the queue", "message"),
        stat("acquires", "count64", of("totals.acquires"), "Messages acquired from the queue", "message"),
        stat("discardsNoRoute", "count64", of("broker.router.unroutable"),
             "Messages discarded due to no-route from exchange", "message"),
        stat("discardsTtl", "count64", of("totals.expired"), "Messages discarded due to TTL expiration", "message"),
        stat("discardsRing", "count64", of("totals.discarded"), "Messages discarded due to ring-queue overflow",
             "message"),
        stat("discardsLvq", "count64", of("totals.replaced"), "Messages discarded due to LVQ insert", "message"),
        stat("discardsOverflow", "count64", of("totals.refused"), "Messages discarded due to reject-policy overflow",
             "message"),
        stat("discardsSubscriber", "count64", of("totals.rejected"), "Messages discarded due to subscriber reject",
             "message"),
        stat("discardsPurge", "count64", of("totals.purged"), "Messages discarded due to management purge", "message"),
        stat("reroutes", "count64", of("totals.rerouted"), "Messages dequeued to management re-route", "message"),
        stat("abandoned", "count64", _of_hosts("removal.abandoned"), "Messages left in a deleted queue", "message"),
        stat("abandonedViaAlt", "count64", _of_hosts("removal.abandoned_moved"),
             "Messages routed to alternate exchange from a deleted queue", "message"),
    ),
    methods=(
        method("echo", "Request a response to test the path to the management broker", (
            arg("sequence", "uint32", "IO"),
            arg("body", "lstr", "IO"),
        ), echo),
        method("connect", "Establish a connection to another broker", (
            arg("host", "sstr", "I"),
            arg("port", "uint32", "I"),
            arg("durable", "bool", "I"),
            arg("authMechanism", "sstr", "I"),
            arg("username", "sstr", "I"),
            arg("password", "sstr", "I"),
            arg("transport", "sstr", "I"),
        ), connect),
        method("queueMoveMessages", "Move messages from one queue to another", (
            arg("srcQueue", "sstr", "I", "Source queue"),
            arg("destQueue", "sstr", "I", "Destination queue"),
            arg("qty", "uint32", "I", "# of messages to move. 0 means all messages"),
            arg("filter", "map", "I", "if specified, move only those messages matching this filter"),
        ), move_messages),
        method("setLogLevel", "Set the log level", (arg("level", "sstr", "I"),), set_level),
        method("getLogLevel", "Get the current log level", (arg("level", "sstr", "O"),), get_level),
        method("getTimestampConfig", "Get the message timestamping configuration", (
            arg("receive", "bool", "O", "True if received messages are timestamped."),
        ), get_timestamps),
        method("setTimestampConfig", "Set the message timestamping configuration", (
            arg("receive", "bool", "I", "Set true to enable timestamping received messages."),
        ), set_timestamps),
        method("create", "Create an object of the specified type", (
            arg("type", "sstr", "I", "The type of object to create"),
            arg("name", "sstr", "I", "The name of the object to create"),
            arg("properties", "map", "I", "Type specific object properties"),
            arg("strict", "bool", "I", "If specified, treat unrecognised object properties as an error"),
        ), create),
        method("delete", "Delete an object of the specified type", (
            arg("type", "sstr", "I", "The type of object to delete"),
            arg("name", "sstr", "I", "The name of the object to delete"),
            arg("options", "map", "I", "Type specific object options for deletion"),
        ), delete),
        method("query", "Query the current state of an object.", (
            arg("type", "sstr", "I", "The type of object to query."),
            arg("name", "sstr", "I", "The name of the object to query"),
            arg("results", "map", "O", "A snapshot of the object's state."),
        ), query),
        method("getLogHiresTimestamp", "Get the high resolution timestamp in logs", (
            arg("logHires", "bool", "O", "True if high resolution timestamp in logs is enabled."),
        ), get_hires),
        method("setLogHiresTimestamp", "Set the high resolution timestamp in logs", (
            arg("logHires", "bool", "I", "True to enable enable high resolution timestamp in logs."),
        ), set_hires),
        method("queueRedirect", "Enable/disable delivery redirect for indicated queues", (
            arg("sourceQueue", "sstr", "I", "Source queue."),
            arg("targetQueue", "sstr", "I", "Redirect target queue. Blank disables redirect."),
        ), redirect),
        method("shutdown", "Shutdown the broker", (), shut_down),
    ),
    objects=_objects, look=_look, created=started, prepare=_sum_up,
)
# fmt: on


# ---- sizes of messages: this broker's own ----


def _sizes(managed: ManagedBroker) -> Iterable[tuple[str, tuple[str, MessageSizes]]]:
    return [(protocol, (protocol, sizes)) for protocol, sizes in managed.broker.message_sizes.items()]


# fmt: off
MESSAGE_SIZES_CLASS: Final = ManagedClass(
    ClassName("qstore", "messageSizes"),
    properties=(
        prop("brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", "qpid.Broker"),
        prop("protocol", "sstr", "RO index", lambda view: view[0]),
    ),
    statistics=(
        stat("messages", "count64", lambda view: view[1].messages, "Messages that publishers have sent", "message"),
        stat("bytes", "count64", lambda view: view[1].bytes, "Bytes of all", "octet"),
        stat("sizes", "map", lambda view: typed_map(view[1].by_bound()),
             "Number of messages by size: key is the largest in bytes"),
    ),
    objects=_sizes,
)
# fmt: on
