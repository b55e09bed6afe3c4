"""The statistics of the QMF schema: a table of each class's statistics and how they are read from the object.

    Queue, Exchange, Binding      objects of the model
    Broker                        the model
    Connection                    the broker's end of a connection of any protocol
    Session, Subscription         those of AMQP 0-10; others need the same attributes (`SessionCounts`, `Delivering`)

A statistic of a hilo type is a `Watermark`, whose interval is started by management; uptime is in nanoseconds. All
others are numbers or text. The statistics of an object are consistent: `read` reads the object once.

Left out (`LEFT_OUT` lists them with the reasons) are statistics that the schema calls unused or deprecated, and those
of features that this broker does not have: queue redirection, closing of connections by management.

Where the schema is ambiguous, qpidd's behaviour applies: bytes include headers and content; an exchange also counts
messages received as an alternate exchange; of two bindings that route a message to the same queue, only the first
counts a match; each queue counts its binding to the default exchange.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from qstore.broker.model.broker import Broker
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Binding, RoutedCounts
from qstore.broker.model.queues.counters import QueueTotals
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.watermark import Watermark
from qstore.broker.protocols.machine import ConnectionCounts, Machine

Value: TypeAlias = int | str | Watermark


class SessionCounts(Protocol):
    """A session, or its equivalent in another protocol.

    Attributes:
        txn_starts, txn_commits, txn_rejects: number of local transactions started, committed and rolled back.
    """

    txn_starts: int
    txn_commits: int
    txn_rejects: int

    @property
    def unsettled_count(self) -> int:
        """Number of messages delivered to the client and not settled."""


class Delivering(Protocol):
    """A subscription."""

    @property
    def delivered(self) -> int:
        """Number of messages delivered."""


class QueueView(NamedTuple):
    """A queue and its counters."""

    queue: Queue
    totals: QueueTotals


class ExchangeView(NamedTuple):
    """An exchange and its counters."""

    exchange: Exchange
    counts: RoutedCounts


class BrokerView(NamedTuple):
    """A broker and the sums of its queues' counters."""

    broker: Broker
    totals: QueueTotals


_Object = TypeVar("_Object")
_View = TypeVar("_View")


class Statistics(Generic[_Object, _View]):
    """The statistics of one class.

    Args:
        look: takes a view of an object.
        readers: name of a statistic -> function that reads it from the view.

    Attributes:
        names: the names of the statistics.
    """

    def __init__(self, look: Callable[[_Object], _View], readers: Mapping[str, Callable[[_View], Value]]) -> None:
        self._look, self._readers = look, readers
        self.names = frozenset(readers)

    def read(self, managed: _Object) -> dict[str, Value]:
        """The current statistics of an object."""
        view = self._look(managed)
        return {name: reader(view) for name, reader in self._readers.items()}


#: The counters of a queue, and of the broker for all queues.
_TOTALS: Final[Mapping[str, Callable[[QueueTotals], int]]] = {
    "msgTotalEnqueues": lambda totals: totals.messages_enqueued,
    "msgTotalDequeues": lambda totals: totals.messages_dequeued,
    "msgTxnEnqueues": lambda totals: totals.txn_messages_enqueued,
    "msgTxnDequeues": lambda totals: totals.txn_messages_dequeued,
    "msgPersistEnqueues": lambda totals: totals.persistent_messages_enqueued,
    "msgPersistDequeues": lambda totals: totals.persistent_messages_dequeued,
    "msgDepth": lambda totals: totals.messages,
    "byteDepth": lambda totals: totals.bytes,
    "byteTotalEnqueues": lambda totals: totals.bytes_enqueued,
    "byteTotalDequeues": lambda totals: totals.bytes_dequeued,
    "byteTxnEnqueues": lambda totals: totals.txn_bytes_enqueued,
    "byteTxnDequeues": lambda totals: totals.txn_bytes_dequeued,
    "bytePersistEnqueues": lambda totals: totals.persistent_bytes_enqueued,
    "bytePersistDequeues": lambda totals: totals.persistent_bytes_dequeued,
    "releases": lambda totals: totals.releases,
    "acquires": lambda totals: totals.acquires,
    "discardsTtl": lambda totals: totals.expired,
    "discardsOverflow": lambda totals: totals.refused,
    "discardsSubscriber": lambda totals: totals.rejected,
    "discardsPurge": lambda totals: totals.purged,
    "discardsRing": lambda totals: totals.discarded,
    "discardsLvq": lambda totals: totals.replaced,
    "reroutes": lambda totals: totals.rerouted,
}


def _of_totals(reader: Callable[[QueueTotals], int]) -> Callable[[QueueView | BrokerView], int]:
    return lambda view: reader(view.totals)


QUEUE: Final = Statistics[Queue, QueueView](
    lambda queue: QueueView(queue, queue.totals),
    {
        **{name: _of_totals(reader) for name, reader in _TOTALS.items()},
        "consumerCount": lambda view: view.queue.consumer_marks,
        "bindingCount": lambda view: view.queue.binding_count,
        "creator": lambda view: view.queue.creator,
        "flowStopped": lambda view: view.queue.watch.is_stopped,
        "flowStoppedCount": lambda view: view.queue.watch.stopped_count,
    },
)

EXCHANGE: Final = Statistics[Exchange, ExchangeView](
    lambda exchange: ExchangeView(exchange, exchange.counts),
    {
        "bindingCount": lambda view: view.exchange.binding_count,
        "msgReceives": lambda view: view.counts.messages_received,
        "msgDrops": lambda view: view.counts.messages_dropped,
        "msgRoutes": lambda view: view.counts.messages_routed,
        "byteReceives": lambda view: view.counts.bytes_received,
        "byteDrops": lambda view: view.counts.bytes_dropped,
        "byteRoutes": lambda view: view.counts.bytes_routed,
    },
)

BINDING: Final = Statistics[Binding, Binding](
    lambda binding: binding, {"msgMatched": lambda binding: binding.messages_matched}
)

BROKER: Final = Statistics[Broker, BrokerView](
    lambda broker: BrokerView(broker, broker.totals),
    {
        **{name: _of_totals(reader) for name, reader in _TOTALS.items()},
        "uptime": lambda view: round(max(0.0, view.broker.clock() - view.broker.started_at) * 1e9),
        "queueCount": lambda view: len(view.broker.queues),
        "discardsNoRoute": lambda view: view.broker.router.unroutable,
        "abandoned": lambda view: view.broker.removal.abandoned,
        "abandonedViaAlt": lambda view: view.broker.removal.abandoned_moved,
    },
)

CONNECTION: Final = Statistics[Machine, ConnectionCounts](
    lambda connection: connection.counts,
    {
        "framesFromClient": lambda counts: counts.frames_received,
        "framesToClient": lambda counts: counts.frames_sent,
        "bytesFromClient": lambda counts: counts.bytes_received,
        "bytesToClient": lambda counts: counts.bytes_sent,
        "msgsFromClient": lambda counts: counts.messages_received,
        "msgsToClient": lambda counts: counts.messages_sent,
    },
)

SESSION: Final = Statistics[SessionCounts, SessionCounts](
    lambda session: session,
    {
        "unackedMessages": lambda session: session.unsettled_count,
        "TxnStarts": lambda session: session.txn_starts,
        "TxnCommits": lambda session: session.txn_commits,
        "TxnRejects": lambda session: session.txn_rejects,
        "TxnCount": lambda session: session.txn_starts - session.txn_commits - session.txn_rejects,
    },
)

SUBSCRIPTION: Final = Statistics[Delivering, Delivering](
    lambda subscription: subscription, {"delivered": lambda subscription: subscription.delivered}
)

#: Class -> its statistics.
CLASSES: Final[Mapping[str, Statistics[Any, Any]]] = {
    "Broker": BROKER,
    "Queue": QUEUE,
    "Exchange": EXCHANGE,
    "Binding": BINDING,
    "Subscription": SUBSCRIPTION,
    "Connection": CONNECTION,
    "Session": SESSION,
}

_DEPRECATED: Final = "deprecated in the schema, and not set by qpidd"
_NO_REDIRECT: Final = "queues cannot be redirected"
_FLOW_TO_DISK: Final = dict.fromkeys(
    ("msgFtdEnqueues", "msgFtdDequeues", "byteFtdEnqueues", "byteFtdDequeues", "msgFtdDepth", "byteFtdDepth"),
    "deprecated in the schema: flow to disk is not supported",
)

#: Class -> statistic of the schema that is left out -> reason.
LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "Broker": _FLOW_TO_DISK,
    "Queue": {
        **_FLOW_TO_DISK,
        "unackedMessages": _DEPRECATED,
        "messageLatency": _DEPRECATED,
        "redirectPeer": _NO_REDIRECT,
        "redirectSource": _NO_REDIRECT,
    },
    "Exchange": {"producerCount": "unused according to the schema"},
    "Connection": {"closing": "management cannot close connections"},
    "Session": {"clientCredit": _DEPRECATED, "framesOutstanding": _DEPRECATED},
}
