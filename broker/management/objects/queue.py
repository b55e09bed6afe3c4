"""The class queue, and its messages in the hands of an operator: purged, rerouted, moved to another queue.

Messages are moved as to an alternate exchange: each is stored at its destination before it leaves its queue, and the
method succeeds when all of that is on the disk. A message that cannot be moved stays; those before it were moved. The
trace of a rerouted message (`x-qpid.trace`) is cleared, so that a federation takes it. Other clients are served in
between.

The caller needs the right to move or reroute, and to publish to the destination with the keys that each message has.
Queues that are exclusive to a session of AMQP 0-10 are no exception; those that are exclusive to a connection of AMQP
0-9-1 are left to that connection.

Source: the QMF schema of qpidd's broker, and that of Qpid M3 for what it had in addition (seeds 000:3570-3640,
003:1730-1781); qpidd, Queue.cpp (the filter, and the trace).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import (
    EXCHANGE,
    JOURNAL,
    QUEUE,
    ManagedClass,
    Samples,
    always,
    arg,
    method,
    prop,
    shown_name,
    stat,
    vhost_reference,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import in_host
from qstore.broker.model.counters import TransactionCounts, Watermark
from qstore.broker.model.errors import InvalidArgumentError, ModelError, PreconditionFailedError
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.broker.model.settlement import MOVED_AT_ONCE, Selection
from qstore.broker.model.topology.checks import check_private
from qstore.formats.broker_records.topology import full_name, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import STR16, TypedValue

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments, Wants
    from qstore.broker.management.schema import Read, Reference, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.counters import QueueTotals
    from qstore.broker.model.exchanges.route import Alternate
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue

_TRACE: Final = "x-qpid.trace"
_NO_TRACE: Final = TypedValue(STR16, "")


class Waiting:
    """Waits until several things are done."""

    def __init__(self) -> None:
        self._left = 0
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None

    def one_more(self) -> Callable[[Exception | None], None]:
        """The callback for each one done."""
        self._left += 1
        return self._done

    def cancel_one(self) -> None:
        """One of them was not begun."""
        self._left -= 1

    def _done(self, error: Exception | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left and self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def all(self) -> None:
        """Wait for all, and for others to be served. Raises the first error."""
        if self._left:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        else:
            await asyncio.sleep(0)
        if self._error is not None:
            raise self._error


class _QueueAlone:
    """Leads to one queue, as an alternate exchange does."""

    def __init__(self, queue: Queue) -> None:
        self.name, self._queue = queue.name, queue

    @property
    def steps(self) -> int:
        """Always 0: routing to one queue takes no steps."""
        return 0

    @property
    def alternate(self) -> None:
        """Always None."""
        return

    def route(self, message: Message) -> Route:  # noqa: ARG002
        """The queue."""
        return Route((Binding(self._queue, self.name),))


async def move_messages(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Move messages from one queue to another."""
    (host, source), (other, target) = (split_name(arguments.text(each)) for each in ("srcQueue", "destQueue"))
    if other != host:
        raise InvalidArgumentError("messages cannot be moved to a queue of another virtual host")
    topology, caller = managed.broker.virtual_hosts.get(host).topology, in_host(caller, host)
    managed.broker.authorization.check(caller, Action.MOVE, ObjectType.QUEUE, source, queuename=target)
    managed.broker.authorization.check_publish(caller, "", target)
    queue, destination = topology.find_queue(source), topology.find_queue(target)
    check_private(queue, caller)
    check_private(destination, caller)
    if queue is destination:
        raise InvalidArgumentError(f'queue "{source}" is both source and destination')
    await _move_all(managed, queue, _QueueAlone(destination), arguments.count("qty"), arguments.filter())
    return {}


async def reroute(managed: ManagedBroker, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
    """Move messages from a queue to an exchange."""
    uses_alternate, name = arguments.flag("useAltExchange"), arguments.text("exchange")
    caller = in_host(caller, queue.host)
    if uses_alternate:
        name = "" if queue.alternate is None else queue.alternate.name
    managed.broker.authorization.check(caller, Action.REROUTE, ObjectType.QUEUE, queue.name, exchangename=name)
    exchange = (
        queue.alternate if uses_alternate else managed.broker.virtual_hosts.get(queue.host).topology.find_exchange(name)
    )
    if exchange is None:
        raise PreconditionFailedError(f'queue "{queue.name}" has no alternate exchange')
    check_private(queue, caller)
    await _move_all(managed, queue, exchange, arguments.count("request"), arguments.filter(), caller)
    return {}


async def purge(managed: ManagedBroker, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
    """Remove messages from a queue."""
    tick, caller = managed.broker.tick, in_host(caller, queue.host)
    managed.broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    check_private(queue, caller)
    waiting, selection = Waiting(), Selection(queue, arguments.count("request"), arguments.filter())
    while not selection.is_over:
        is_written = False
        for entry in selection.portion():
            if queue.acquire(entry, is_consumed=False):
                is_written = queue.dequeue(entry) or is_written
                queue.counters.purged += 1
        if is_written:
            tick.when_synced(waiting.one_more())
        tick.schedule()
        await waiting.all()
    return {}


async def _move_all(
    managed: ManagedBroker,
    queue: Queue,
    exchange: Alternate,
    number: int,
    selects: Wants | None,
    rerouter: Caller | None = None,
) -> None:
    """Move `number` messages, or all if it is 0, and wait until they are stored there and have left the queue.

    Messages rerouted for the user `rerouter` are published by their keys: the user needs the right for each, and the
    trace of each is cleared.

    Raises:
        ModelError: one could not be moved; those before it were.
    """
    router, waiting, selection = managed.broker.router, Waiting(), Selection(queue, number, selects, MOVED_AT_ONCE)
    failures: list[ModelError] = []
    authorization = managed.broker.authorization
    while not selection.is_over and not failures:
        before = exchange.steps
        for entry in selection.portion():
            if exchange.steps - before > MAX_STEPS:
                await asyncio.sleep(0)
                before = exchange.steps
            if not queue.acquire(entry, is_consumed=False):
                continue
            done = waiting.one_more()
            try:
                message = entry.message if rerouter is None else _without_trace(entry.message)
                if rerouter is not None and authorization.authorizer.checks_publish:
                    message = message.whole()
                    for each in (message, *message.under_further_keys()):
                        authorization.check_publish(rerouter, exchange.name, each.routing_key)
                router.move(queue, entry, exchange, done, message)
            except ModelError as error:
                queue.release(entry, is_redelivered=False, was_delivered=False)
                waiting.cancel_one()
                failures.append(error.with_traceback(None))
                break
            queue.counters.rerouted += 1
        await waiting.all()
    if failures:
        raise failures.pop()


def _without_trace(message: Message) -> Message:
    return message.with_headers({_TRACE: _NO_TRACE}) if message.header_text(_TRACE) else message


# ---- the table ----


class _View(NamedTuple):
    """A queue and its counters."""

    queue: Queue
    totals: QueueTotals


def _look(queue: Queue) -> _View:
    return _View(queue, queue.totals)


def _alternate(view: _View) -> Reference | None:
    alternate = view.queue.alternate
    return None if alternate is None else EXCHANGE.reference(full_name(view.queue.host, alternate.name))


def _redirect_peer(view: _View) -> str:
    peer = view.queue.redirect_peer
    return "" if peer is None else peer.name


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Queue]]:
    return [(queue.full_name, queue) for queue in managed.broker.all_queues()]


def find_queue(managed: ManagedBroker, key: str) -> Queue | None:
    """The queue with a key; None if there is none."""
    host, name = split_name(key)
    found = managed.broker.hosts.get(host)
    return None if found is None else found.queues.get(name)


def _created(queue: Queue) -> float:
    return queue.created_at


def _stored_id(queue: Queue) -> int:
    return 0 if queue.journal is None else int(queue.journal.queue_id)


def _stored(view: _View) -> Reference | None:
    return None if view.queue.journal is None else JOURNAL.reference(view.queue.full_name)


def _held(view: _View) -> Watermark:
    marks = view.queue.marks
    return Watermark(view.queue.acquired_count, marks.held_low, marks.held_high)


def _depth_mark(low: Read, high: Read, depth: Read) -> tuple[Read, Read]:
    """Reads the high and the low water mark of a depth, which may have passed them since they were noted."""
    return lambda view: max(high(view), depth(view)), lambda view: min(low(view), depth(view))


_HIGH, _LOW = _depth_mark(of("queue.marks.low"), of("queue.marks.high"), of("totals.messages"))
_BYTES_HIGH, _BYTES_LOW = _depth_mark(of("queue.marks.bytes_low"), of("queue.marks.bytes_high"), of("totals.bytes"))
_NO_TRANSACTIONS: Final = TransactionCounts()


def _enqueuing(name: str) -> Read:
    read = of(name)
    return lambda view: read(view.queue.counters.enqueuing or _NO_TRANSACTIONS)


def _dequeuing(name: str) -> Read:
    read = of(name)
    return lambda view: read(view.queue.counters.dequeuing or _NO_TRANSACTIONS)


# fmt: off
_OF_M3: Final = (
    stat("msgDepthHigh", "count64", _HIGH, "Current size of queue in messages (High)", "message"),
    stat("msgDepthLow", "count64", _LOW, "Current size of queue in messages (Low)", "message"),
    stat("byteDepthHigh", "count64", _BYTES_HIGH, "Current size of queue in bytes (High)", "octet"),
    stat("byteDepthLow", "count64", _BYTES_LOW, "Current size of queue in bytes (Low)", "octet"),
    stat("enqueueTxnStarts", "count64", _enqueuing("starts"), "Total enqueue transactions started", "transaction"),
    stat("enqueueTxnCommits", "count64", _enqueuing("commits"), "Total enqueue transactions committed", "transaction"),
    stat("enqueueTxnRejects", "count64", _enqueuing("rejects"), "Total enqueue transactions rejected", "transaction"),
    stat("enqueueTxnCount", "hilo32", _enqueuing("pending"), "Current pending enqueue transactions", "transaction"),
    stat("dequeueTxnStarts", "count64", _dequeuing("starts"), "Total dequeue transactions started", "transaction"),
    stat("dequeueTxnCommits", "count64", _dequeuing("commits"), "Total dequeue transactions committed", "transaction"),
    stat("dequeueTxnRejects", "count64", _dequeuing("rejects"), "Total dequeue transactions rejected", "transaction"),
    stat("dequeueTxnCount", "hilo32", _dequeuing("pending"), "Current pending dequeue transactions", "transaction"),
)
"""Statistics of Qpid M3 that the schema of later brokers lacks."""

QUEUE_CLASS: Final = ManagedClass(
    QUEUE,
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda view: vhost_reference(view.queue.host), "", "", "Vhost"),
        prop("name", "sstr", "RC index", lambda view: shown_name(view.queue.full_name)),
        prop("durable", "bool", "RC", of("queue.durable")),
        prop("autoDelete", "bool", "RC", of("queue.auto_delete")),
        prop("exclusive", "bool", "RO", lambda view: view.queue.owner is not None),
        prop("arguments", "map", "RO", of("queue.arguments"), "Arguments supplied in queue.declare"),
        prop("altExchange", "objId", "RO optional", _alternate, "", "", "Exchange"),
        prop("storeRef", "objId", "RO optional", _stored, "Reference to persistent queue (if durable)", "",
             "org.apache.qpid.legacystore:journal"),
    ),
    statistics=(
        stat("msgTotalEnqueues", "count64", of("totals.messages_enqueued"), "Total messages enqueued", "message"),
        stat("msgTotalDequeues", "count64", of("totals.messages_dequeued"), "Total messages dequeued", "message"),
        stat("msgTxnEnqueues", "count64", of("totals.txn_messages_enqueued"), "Transactional messages enqueued",
             "message"),
        stat("msgTxnDequeues", "count64", of("totals.txn_messages_dequeued"), "Transactional messages dequeued",
             "message"),
        stat("msgPersistEnqueues", "count64", of("totals.persistent_messages_enqueued"), "Persistent messages enqueued",
             "message"),
        stat("msgPersistDequeues", "count64", of("totals.persistent_messages_dequeued"), "Persistent messages dequeued",
             "message"),
        stat("msgDepth", "count64", of("totals.messages"), "Current size of queue in messages", "message"),
        stat("byteDepth", "count64", of("totals.bytes"), "Current size of queue in bytes", "octet"),
        stat("byteTotalEnqueues", "count64", of("totals.bytes_enqueued"), "Total messages enqueued", "octet"),
        stat("byteTotalDequeues", "count64", of("totals.bytes_dequeued"), "Total messages dequeued", "octet"),
        stat("byteTxnEnqueues", "count64", of("totals.txn_bytes_enqueued"), "Transactional messages enqueued", "octet"),
        stat("byteTxnDequeues", "count64", of("totals.txn_bytes_dequeued"), "Transactional messages dequeued", "octet"),
        stat("bytePersistEnqueues", "count64", of("totals.persistent_bytes_enqueued"), "Persistent messages enqueued",
             "octet"),
        stat("bytePersistDequeues", "count64", of("totals.persistent_bytes_dequeued"), "Persistent messages dequeued",
             "octet"),
        stat("msgFtdEnqueues", "count64", of("totals.messages_out"), "Deprecated", "message"),
        stat("msgFtdDequeues", "count64", of("totals.messages_in"), "Deprecated", "message"),
        stat("byteFtdEnqueues", "count64", of("totals.bytes_out"), "Deprecated", "octet"),
        stat("byteFtdDequeues", "count64", of("totals.bytes_in"), "Deprecated", "octet"),
        stat("msgFtdDepth", "count64", of("totals.messages_on_disk"), "Deprecated", "message"),
        stat("byteFtdDepth", "count64", of("totals.bytes_on_disk"), "Deprecated", "octet"),
        stat("releases", "count64", of("totals.releases"), "Acquired messages reinserted into the queue", "message"),
        stat("acquires", "count64", of("totals.acquires"), "Messages acquired from the queue", "message"),
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
        stat("consumerCount", "hilo32", of("queue.consumer_marks"), "Current consumers on queue", "consumer"),
        stat("bindingCount", "hilo32", of("queue.binding_count"), "Current bindings", "binding"),
        stat("unackedMessages", "hilo32", _held, "Deprecated", "message"),
        stat("messageLatency", "mmaTime", always(Samples()), "Deprecated", "nanosecond"),
        stat("flowStopped", "bool", of("queue.watch.is_stopped"), "Flow control active."),
        stat("flowStoppedCount", "count32", of("queue.watch.stopped_count"),
             "Number of times flow control was activated for this queue"),
        stat("redirectPeer", "sstr", _redirect_peer, "Partner queue for redirected pair"),
        stat("redirectSource", "bool", lambda view: view.queue.is_redirect_source, "This queue is the redirect source"),
        stat("creator", "sstr", of("queue.creator"), "userId of creator of the queue"),
        *_OF_M3,
    ),
    methods=(
        method("purge", "Discard all or some messages on a queue", (
            arg("request", "uint32", "I", "0 for all messages or n>0 for n messages"),
            arg("filter", "map", "I", "if specified, purge only those messages matching this filter"),
        ), purge),
        method("reroute", "Remove all or some messages on this queue and route them to an exchange", (
            arg("request", "uint32", "I", "0 for all messages or n>0 for n messages"),
            arg("useAltExchange", "bool", "I",
                "Iff true, use the queue's configured alternate exchange; iff false, use exchange named in the "
                "'exchange' argument"),
            arg("exchange", "sstr", "I", "Name of the exchange to route the messages through"),
            arg("filter", "map", "I", "if specified, reroute only those messages matching this filter"),
        ), reroute),
    ),
    objects=_objects, find=find_queue, look=_look, stored_id=_stored_id, created=_created,
    belongs=lambda queue: (queue.host, ""),
)
# fmt: on
