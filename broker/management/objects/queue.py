"""The class queue.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final, NamedTuple

from qstore.broker.management.methods import moving
from qstore.broker.management.objects.element import (
    ManagedClass,
    Samples,
    always,
    arg,
    level,
    method,
    prop,
    stat,
    table,
)
from qstore.broker.management.objects.names import EXCHANGE, QUEUE, VHOST_REFERENCE

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Reference
    from qstore.broker.model.queues.counters import QueueTotals
    from qstore.broker.model.queues.queue import Queue


class _View(NamedTuple):
    """A queue and its counters."""

    queue: Queue
    totals: QueueTotals


def _look(queue: Queue) -> _View:
    return _View(queue, queue.totals)


def _alternate(view: _View) -> Reference | None:
    alternate = view.queue.alternate
    return None if alternate is None else EXCHANGE.reference(alternate.name)


def _redirect_peer(view: _View) -> str:
    peer = view.queue.redirect_peer
    return "" if peer is None else peer.name


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Queue]]:
    return list(managed.broker.queues.items())


def _find(managed: ManagedBroker, key: str) -> Queue | None:
    return managed.broker.queues.get(key)


def _created(queue: Queue) -> float:
    return queue.created_at


def _stored_id(queue: Queue) -> int:
    return 0 if queue.journal is None else int(queue.journal.queue_id)


_PROPERTIES: Final = (
    prop("vhostRef", "objId", "RC index parent", always(VHOST_REFERENCE), "", "", "Vhost"),
    prop("name", "sstr", "RC index", of("queue.name")),
    prop("durable", "bool", "RC", of("queue.durable")),
    prop("autoDelete", "bool", "RC", of("queue.auto_delete")),
    prop("exclusive", "bool", "RO", lambda view: view.queue.owner is not None),
    prop("arguments", "map", "RO", of("queue.arguments"), "Arguments supplied in queue.declare"),
    prop("altExchange", "objId", "RO optional", _alternate, "", "", "Exchange"),
)
_STATISTICS: Final = (
    stat("msgTotalEnqueues", "count64", of("totals.messages_enqueued"), "Total messages enqueued", "message"),
    stat("msgTotalDequeues", "count64", of("totals.messages_dequeued"), "Total messages dequeued", "message"),
    stat("msgTxnEnqueues", "count64", of("totals.txn_messages_enqueued"), "Transactional messages enqueued", "message"),
    stat("msgTxnDequeues", "count64", of("totals.txn_messages_dequeued"), "Transactional messages dequeued", "message"),
    stat(
        "msgPersistEnqueues",
        "count64",
        of("totals.persistent_messages_enqueued"),
        "Persistent messages enqueued",
        "message",
    ),
    stat(
        "msgPersistDequeues",
        "count64",
        of("totals.persistent_messages_dequeued"),
        "Persistent messages dequeued",
        "message",
    ),
    stat("msgDepth", "count64", of("totals.messages"), "Current size of queue in messages", "message"),
    stat("byteDepth", "count64", of("totals.bytes"), "Current size of queue in bytes", "octet"),
    stat("byteTotalEnqueues", "count64", of("totals.bytes_enqueued"), "Total messages enqueued", "octet"),
    stat("byteTotalDequeues", "count64", of("totals.bytes_dequeued"), "Total messages dequeued", "octet"),
    stat("byteTxnEnqueues", "count64", of("totals.txn_bytes_enqueued"), "Transactional messages enqueued", "octet"),
    stat("byteTxnDequeues", "count64", of("totals.txn_bytes_dequeued"), "Transactional messages dequeued", "octet"),
    stat(
        "bytePersistEnqueues",
        "count64",
        of("totals.persistent_bytes_enqueued"),
        "Persistent messages enqueued",
        "octet",
    ),
    stat(
        "bytePersistDequeues",
        "count64",
        of("totals.persistent_bytes_dequeued"),
        "Persistent messages dequeued",
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
    stat("consumerCount", "hilo32", of("queue.consumer_marks"), "Current consumers on queue", "consumer"),
    stat("bindingCount", "hilo32", of("queue.binding_count"), "Current bindings", "binding"),
    stat("unackedMessages", "hilo32", level(of("queue.acquired_count")), "Deprecated", "message"),
    stat("messageLatency", "mmaTime", always(Samples()), "Deprecated", "nanosecond"),  # measured: no message
    stat("flowStopped", "bool", of("queue.watch.is_stopped"), "Flow control active."),
    stat(
        "flowStoppedCount",
        "count32",
        of("queue.watch.stopped_count"),
        "Number of times flow control was activated for this queue",
    ),
    stat("redirectPeer", "sstr", _redirect_peer, "Partner queue for redirected pair"),
    stat("redirectSource", "bool", lambda view: view.queue.is_redirect_source, "This queue is the redirect source"),
    stat("creator", "sstr", of("queue.creator"), "userId of creator of the queue"),
)
_METHODS: Final = (
    method(
        "purge",
        "Discard all or some messages on a queue",
        (
            arg("request", "uint32", "I", "0 for all messages or n>0 for n messages"),
            arg("filter", "map", "I", "if specified, purge only those messages matching this filter"),
        ),
        moving.purge,
    ),
    method(
        "reroute",
        "Remove all or some messages on this queue and route them to an exchange",
        (
            arg("request", "uint32", "I", "0 for all messages or n>0 for n messages"),
            arg(
                "useAltExchange",
                "bool",
                "I",
                "Iff true, use the queue's configured alternate exchange; iff false, use exchange named in the "
                "'exchange' argument",
            ),
            arg("exchange", "sstr", "I", "Name of the exchange to route the messages through"),
            arg("filter", "map", "I", "if specified, reroute only those messages matching this filter"),
        ),
        moving.reroute,
    ),
)

QUEUE_CLASS: Final = ManagedClass(
    QUEUE.package, QUEUE.name, _PROPERTIES, _STATISTICS, table(_METHODS), objects=_objects, find=_find, look=_look,
    stored_id=_stored_id, created=_created,
)  # fmt: skip
