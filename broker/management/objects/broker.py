"""The class broker: the broker itself.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.management.methods import broker as methods
from qstore.broker.management.methods import creation, logging, moving
from qstore.broker.management.objects.element import ManagedClass, always, arg, method, prop, stat, table
from qstore.broker.management.objects.names import BROKER, BROKER_NAME, SYSTEM

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.counters import QueueTotals


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


_PROPERTIES: Final = (
    prop("name", "sstr", "RC index", always(BROKER_NAME), "Index for the broker at this agent"),
    prop(
        "systemRef",
        "objId",
        "RO parent",
        lambda view: SYSTEM.reference(str(view.managed.system_id)),
        "System ID",
        "",
        "System",
    ),
    prop("port", "uint16", "RO", of("managed.port"), "TCP Port for AMQP Service"),
    prop("workerThreads", "uint16", "RO", always(1), "Thread pool size"),
    prop("maxConns", "uint16", "RO", of("broker.settings.max_connections"), "Maximum allowed connections"),
    prop("connBacklog", "uint16", "RO", of("broker.settings.backlog"), "Connection backlog limit for listening socket"),
    prop("stagingThreshold", "uint32", "RO", of("broker.settings.staging_bytes"), "Deprecated"),
    prop(
        "mgmtPublish",
        "bool",
        "RO",
        of("broker.settings.management_publish"),
        "Broker's management agent sends unsolicited data on the publish interval",
    ),
    prop("mgmtPubInterval", "uint16", "RW", of("managed.interval"), "Interval for management broadcasts", "second"),
    prop("version", "sstr", "RO", of("managed.version"), "Running software version"),
    prop(
        "dataDir",
        "lstr",
        "RO optional",
        of("broker.settings.data_directory"),
        "Persistent configuration storage location",
    ),
)
_STATISTICS: Final = (
    stat("uptime", "deltaTime", of("managed.uptime")),
    stat("queueCount", "count64", lambda view: len(view.broker.queues), "Number of queues in the broker", "queue"),
    stat("msgTotalEnqueues", "count64", of("totals.messages_enqueued"), "Total messages enqueued to broker", "message"),
    stat(
        "msgTotalDequeues", "count64", of("totals.messages_dequeued"), "Total messages dequeued from broker", "message"
    ),
    stat("byteTotalEnqueues", "count64", of("totals.bytes_enqueued"), "Total bytes enqueued to broker", "octet"),
    stat("byteTotalDequeues", "count64", of("totals.bytes_dequeued"), "Total bytes dequeued from broker", "octet"),
    stat("msgDepth", "count64", of("totals.messages"), "Current number of messages on queues in broker", "message"),
    stat("byteDepth", "count64", of("totals.bytes"), "Current number of bytes on queues in broker", "octet"),
    stat(
        "msgPersistEnqueues",
        "count64",
        of("totals.persistent_messages_enqueued"),
        "Total persistent messages enqueued to broker",
        "message",
    ),
    stat(
        "msgPersistDequeues",
        "count64",
        of("totals.persistent_messages_dequeued"),
        "Total persistent messages dequeued from broker",
        "message",
    ),
    stat(
        "bytePersistEnqueues",
        "count64",
        of("totals.persistent_bytes_enqueued"),
        "Total persistent bytes enqueued to broker",
        "octet",
    ),
    stat(
        "bytePersistDequeues",
        "count64",
        of("totals.persistent_bytes_dequeued"),
        "Total persistent bytes dequeued from broker",
        "octet",
    ),
    stat(
        "msgTxnEnqueues",
        "count64",
        of("totals.txn_messages_enqueued"),
        "Total transactional messages enqueued to broker",
        "message",
    ),
    stat(
        "msgTxnDequeues",
        "count64",
        of("totals.txn_messages_dequeued"),
        "Total transactional messages dequeued from broker",
        "message",
    ),
    stat(
        "byteTxnEnqueues",
        "count64",
        of("totals.txn_bytes_enqueued"),
        "Total transactional bytes enqueued to broker",
        "octet",
    ),
    stat(
        "byteTxnDequeues",
        "count64",
        of("totals.txn_bytes_dequeued"),
        "Total transactional bytes dequeued from broker",
        "octet",
    ),
    stat("msgFtdEnqueues", "count64", of("totals.messages_out"), "Deprecated", "message"),
    stat("msgFtdDequeues", "count64", of("totals.messages_in"), "Deprecated", "message"),
    stat("byteFtdEnqueues", "count64", of("totals.bytes_out"), "Deprecated", "octet"),
    stat("byteFtdDequeues", "count64", of("totals.bytes_in"), "Deprecated", "octet"),
    stat("msgFtdDepth", "count64", of("totals.messages_on_disk"), "Deprecated", "message"),
    stat("byteFtdDepth", "count64", of("totals.bytes_on_disk"), "Deprecated", "octet"),
    stat("releases", "count64", of("totals.releases"), "Acquired messages reinserted into the queue", "message"),
    stat("acquires", "count64", of("totals.acquires"), "Messages acquired from the queue", "message"),
    stat(
        "discardsNoRoute",
        "count64",
        of("broker.router.unroutable"),
        "Messages discarded due to no-route from exchange",
        "message",
    ),
    stat("discardsTtl", "count64", of("totals.expired"), "Messages discarded due to TTL expiration", "message"),
    stat("discardsRing", "count64", of("totals.discarded"), "Messages discarded due to ring-queue overflow", "message"),
    stat("discardsLvq", "count64", of("totals.replaced"), "Messages discarded due to LVQ insert", "message"),
    stat(
        "discardsOverflow",
        "count64",
        of("totals.refused"),
        "Messages discarded due to reject-policy overflow",
        "message",
    ),
    stat(
        "discardsSubscriber", "count64", of("totals.rejected"), "Messages discarded due to subscriber reject", "message"
    ),
    stat("discardsPurge", "count64", of("totals.purged"), "Messages discarded due to management purge", "message"),
    stat("reroutes", "count64", of("totals.rerouted"), "Messages dequeued to management re-route", "message"),
    stat("abandoned", "count64", of("broker.removal.abandoned"), "Messages left in a deleted queue", "message"),
    stat(
        "abandonedViaAlt",
        "count64",
        of("broker.removal.abandoned_moved"),
        "Messages routed to alternate exchange from a deleted queue",
        "message",
    ),
)
_METHODS: Final = (
    method(
        "echo",
        "Request a response to test the path to the management broker",
        (
            arg("sequence", "uint32", "IO"),
            arg("body", "lstr", "IO"),
        ),
        methods.echo,
    ),
    method(
        "connect",
        "Establish a connection to another broker",
        (
            arg("host", "sstr", "I"),
            arg("port", "uint32", "I"),
            arg("durable", "bool", "I"),
            arg("authMechanism", "sstr", "I"),
            arg("username", "sstr", "I"),
            arg("password", "sstr", "I"),
            arg("transport", "sstr", "I"),
        ),
        methods.connect,
    ),
    method(
        "queueMoveMessages",
        "Move messages from one queue to another",
        (
            arg("srcQueue", "sstr", "I", "Source queue"),
            arg("destQueue", "sstr", "I", "Destination queue"),
            arg("qty", "uint32", "I", "# of messages to move. 0 means all messages"),
            arg("filter", "map", "I", "if specified, move only those messages matching this filter"),
        ),
        moving.move_messages,
    ),
    method("setLogLevel", "Set the log level", (arg("level", "sstr", "I"),), logging.set_level),
    method("getLogLevel", "Get the current log level", (arg("level", "sstr", "O"),), logging.get_level),
    method(
        "getTimestampConfig",
        "Get the message timestamping configuration",
        (arg("receive", "bool", "O", "True if received messages are timestamped."),),
        methods.get_timestamps,
    ),
    method(
        "setTimestampConfig",
        "Set the message timestamping configuration",
        (arg("receive", "bool", "I", "Set true to enable timestamping received messages."),),
        methods.set_timestamps,
    ),
    method(
        "create",
        "Create an object of the specified type",
        (
            arg("type", "sstr", "I", "The type of object to create"),
            arg("name", "sstr", "I", "The name of the object to create"),
            arg("properties", "map", "I", "Type specific object properties"),
            arg("strict", "bool", "I", "If specified, treat unrecognised object properties as an error"),
        ),
        creation.create,
    ),
    method(
        "delete",
        "Delete an object of the specified type",
        (
            arg("type", "sstr", "I", "The type of object to delete"),
            arg("name", "sstr", "I", "The name of the object to delete"),
            arg("options", "map", "I", "Type specific object options for deletion"),
        ),
        creation.delete,
    ),
    method(
        "query",
        "Query the current state of an object.",
        (
            arg("type", "sstr", "I", "The type of object to query."),
            arg("name", "sstr", "I", "The name of the object to query"),
            arg("results", "map", "O", "A snapshot of the object's state."),
        ),
        methods.query,
    ),
    method(
        "getLogHiresTimestamp",
        "Get the high resolution timestamp in logs",
        (arg("logHires", "bool", "O", "True if high resolution timestamp in logs is enabled."),),
        logging.get_hires,
    ),
    method(
        "setLogHiresTimestamp",
        "Set the high resolution timestamp in logs",
        (arg("logHires", "bool", "I", "True to enable enable high resolution timestamp in logs."),),
        logging.set_hires,
    ),
    method(
        "queueRedirect",
        "Enable/disable delivery redirect for indicated queues",
        (
            arg("sourceQueue", "sstr", "I", "Source queue."),
            arg("targetQueue", "sstr", "I", "Redirect target queue. Blank disables redirect."),
        ),
        methods.redirect,
    ),
    method("shutdown", "Shutdown the broker", (), methods.shut_down),
)

BROKER_CLASS: Final = ManagedClass(
    BROKER.package,
    BROKER.name,
    _PROPERTIES,
    _STATISTICS,
    table(_METHODS),
    objects=_objects,
    look=_look,
    created=started,
    prepare=_sum_up,
)
