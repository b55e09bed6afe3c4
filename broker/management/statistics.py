"""The statistics of the QMF schema: for each class, the name of each and how it is read from the object.

    Queue, Exchange, Binding      objects of the model
    Broker                        the model
    Connection                    the broker's end of one, whatever its protocol
    Session, Subscription         those of AMQP 0-10; others need the same attributes (`SessionCounts`, `Delivering`)

A statistic of a hilo type is a `Watermark`, whose interval management begins; uptime is in nanoseconds. All others are
numbers or text. A class is read at one moment: `read` looks at its object once.

Left out (`LEFT_OUT` has each of them with its reason) is what the schema calls unused or deprecated, and what belongs
to features that this broker does not have: ring and last-value queues, flow control, redirection of queues, reroute by
management, closing of connections by management.

Where the schema leaves a choice it is as in qpidd: bytes are those of headers and content; an exchange receives also
what comes to it as an alternate exchange; of two bindings that would send a message to the same queue only the first
matches; each queue counts its binding to the default exchange.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from broker.model.broker import Broker
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding, RoutedCounts
from broker.model.queues.counters import QueueTotals
from broker.model.queues.queue import Queue
from broker.model.watermark import Watermark
from broker.protocols.machine import ConnectionCounts, Machine

Value: TypeAlias = int | str | Watermark


class SessionCounts(Protocol):
    """A session, or what another protocol has instead.

    Attributes:
        txn_starts, txn_commits, txn_rejects: its local transactions.
    """

    txn_starts: int
    txn_commits: int
    txn_rejects: int

    @property
    def unsettled_count(self) -> int:
        """Messages that the client has, and has not settled."""


class Delivering(Protocol):
    """A subscription."""

    @property
    def delivered(self) -> int:
        """How many messages it has delivered."""


class QueueView(NamedTuple):
    """A queue, and what it has counted."""

    queue: Queue
    totals: QueueTotals


class ExchangeView(NamedTuple):
    """An exchange, and what it has counted."""

    exchange: Exchange
    counts: RoutedCounts


class BrokerView(NamedTuple):
    """A broker, and what its queues have counted."""

    broker: Broker
    totals: QueueTotals


_Object = TypeVar("_Object")
_View = TypeVar("_View")


class Statistics(Generic[_Object, _View]):
    """The statistics of one class.

    Args:
        look: looks at an object.
        readers: name -> how it is read from what `look` has seen.

    Attributes:
        names: the names.
    """

    def __init__(self, look: Callable[[_Object], _View], readers: Mapping[str, Callable[[_View], Value]]) -> None:
        self._look, self._readers = look, readers
        self.names = frozenset(readers)

    def read(self, managed: _Object) -> dict[str, Value]:
        """The statistics of an object, as they are now."""
        view = self._look(managed)
        return {name: reader(view) for name, reader in self._readers.items()}


#: What queues count, and the broker for all of them.
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
_NO_RING: Final = "there are no ring queues"
_NO_LVQ: Final = "there are no last-value queues"
_NO_REROUTE: Final = "management cannot reroute messages"
_NO_FLOW_CONTROL: Final = "queues do not stop their publishers"
_NO_REDIRECT: Final = "queues cannot be redirected"
_FLOW_TO_DISK: Final = dict.fromkeys(
    ("msgFtdEnqueues", "msgFtdDequeues", "byteFtdEnqueues", "byteFtdDequeues", "msgFtdDepth", "byteFtdDepth"),
    "deprecated in the schema: no message is flowed to the disk",
)
_DISCARDS: Final = {"discardsRing": _NO_RING, "discardsLvq": _NO_LVQ, "reroutes": _NO_REROUTE}

#: Class -> the statistics of the schema that are not there -> why.
LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "Broker": {**_FLOW_TO_DISK, **_DISCARDS},
    "Queue": {
        **_FLOW_TO_DISK,
        **_DISCARDS,
        "unackedMessages": _DEPRECATED,
        "messageLatency": _DEPRECATED,
        "flowStopped": _NO_FLOW_CONTROL,
        "flowStoppedCount": _NO_FLOW_CONTROL,
        "redirectPeer": _NO_REDIRECT,
        "redirectSource": _NO_REDIRECT,
    },
    "Exchange": {"producerCount": "unused, as the schema says"},
    "Connection": {"closing": "management cannot close connections"},
    "Session": {"clientCredit": _DEPRECATED, "framesOutstanding": _DEPRECATED},
}
