"""What tools for RabbitMQ show of clients and queues, and qpidd's classes lack.

    clientConnection     the limits that it has negotiated, and its TLS
    clientSession        how it publishes and consumes, and what its open transactions have
    clientSubscription   its prefetch, and whether it gets messages
    queueHead            of queues only that have something to tell: the consumer that gets messages alone, and when the
                         first message was created

Each object has the key of the one of qpidd's class that it completes. A console asks for them when it shows them:
everything is derived from what is there at that moment. The time of a first message that is out of memory is not read
from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final, cast

from qstore.broker.management.objects.client import connections, sessions, subscriptions
from qstore.broker.management.objects.queue import find_queue
from qstore.broker.management.schema import ClassName, ManagedClass, prop, stat
from qstore.broker.model.queues.entry import END, HELD, OUT, RUN
from qstore.broker.model.residency.references import Reference
from qstore.broker.model.run import RunEntry
from qstore.broker.protocols.consumer import SendingConsumer
from qstore.broker.security.tls import TlsFacts
from qstore.formats.named_tuple import NamedTuple

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ListedSession, ManagedBroker
    from qstore.broker.management.objects.client import Subscribed
    from qstore.broker.model.queues.consumers import Consumer
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.protocols.machine import ConnectionLimits, Machine, SessionModes

_PACKAGE: Final = "qstore"
_NO_TLS: Final = TlsFacts()
_LATEST: Final = 1 << 63


class _Limited(NamedTuple):
    peer: str
    limits: ConnectionLimits
    has_tls: bool
    tls: TlsFacts


class _Mode(NamedTuple):
    key: str
    modes: SessionModes


class _Consuming(NamedTuple):
    key: str
    prefetch: int
    is_active: bool
    is_single: bool


class QueueHead(NamedTuple):
    """What there is to tell of a queue.

    Attributes:
        key: of its object.
        host: its virtual host.
        exclusive: its exclusive consumer; empty for none.
        single_active: the consumer that gets all messages, if there is one at a time; else empty.
        created_at: when its first message was created, in whole seconds since 1970; None if that is unknown.
    """

    key: str
    host: str
    exclusive: str
    single_active: str
    created_at: int | None


def _limited(machine: Machine) -> _Limited:
    tls = machine.tls
    return _Limited(machine.peer, machine.limits, tls is not None, tls or _NO_TLS)


def _mode(listed: ListedSession) -> _Mode:
    return _Mode(listed.key, listed.session.modes)


def _consumings(managed: ManagedBroker) -> Iterator[tuple[str, tuple[str, Subscribed]]]:
    return ((key, (key, each)) for key, each in subscriptions(managed))


def _consuming(found: tuple[str, Subscribed]) -> _Consuming:
    key, (_, subscription) = found
    queue, consumer = subscription.queue, cast("Consumer", subscription)
    return _Consuming(key, subscription.prefetch, queue.is_active(consumer), queue.single_active is consumer)


def _name(consumer: Consumer | None) -> str:
    return consumer.destination if isinstance(consumer, SendingConsumer) else ""


def _created_at(queue: Queue) -> int | None:
    """When the first message was created, in whole seconds since 1970; None if that is unknown."""
    entry = queue.order.first
    if entry.state in (END, OUT):
        return None
    if isinstance(entry, RunEntry):
        message = entry.run.template
    elif entry.state in (RUN, HELD):
        return None
    else:
        message = entry.message
    if isinstance(message, Reference):
        return None
    created = message.properties().created_at
    return int(created) if created is not None and 0 <= created < _LATEST else None


def _head(queue: Queue) -> QueueHead | None:
    """What there is to tell of a queue; None for nothing."""
    exclusive, active, created_at = _name(queue.exclusive_consumer), _name(queue.single_active), _created_at(queue)
    if not exclusive and not active and created_at is None:
        return None
    return QueueHead(queue.full_name, queue.host, exclusive, active, created_at)


async def _look_at_heads(managed: ManagedBroker) -> None:
    """Look at all queues, in time slices: most have nothing to tell, others a header to decode, for up to 25 ms."""
    found: dict[str, QueueHead] = {}
    for queue in list(managed.broker.all_queues()):
        if managed.slices.is_over:
            await managed.slices.next()
        head = _head(queue)
        if head is not None:
            found[head.key] = head
    managed.queue_heads = found


def _find_head(managed: ManagedBroker, key: str) -> QueueHead | None:
    queue = find_queue(managed, key)
    return None if queue is None else _head(queue)


# fmt: off
CLIENT_CONNECTION_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "clientConnection"),
    properties=(
        prop("address", "sstr", "RC index", of("peer")),
        prop("channelMax", "uint32", "RO", of("limits.channels"), "Highest number of a channel; 0 if it is unknown"),
        prop("frameMax", "uint32", "RO", of("limits.frame_bytes"), "Size of a frame; 0 if it is unknown", "octet"),
        prop("heartbeat", "uint32", "RO", of("limits.heartbeat"), "Interval of heartbeats; 0 for none", "second"),
        prop("tls", "bool", "RO", of("has_tls"), "Whether it is encrypted with TLS"),
        prop("tlsVersion", "sstr", "RO", of("tls.version"), "TLSv1.2 or TLSv1.3; empty if it is unknown"),
        prop("tlsCipher", "sstr", "RO", of("tls.cipher"), "Cipher suite, by OpenSSL's name; likewise"),
        prop("peerSubject", "lstr", "RO", of("tls.subject"), "Name in the client's certificate; empty for none"),
        prop("peerIssuer", "lstr", "RO", of("tls.issuer"), "Name of its issuer; empty for none"),
        prop("peerValidity", "sstr", "RO", of("tls.validity"), "When it is valid; empty for none"),
    ),
    objects=connections, look=_limited, belongs=lambda machine: (machine.vhost, machine.user),
)
CLIENT_SESSION_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "clientSession"),
    properties=(
        prop("name", "sstr", "RC index", of("key")),
        prop("confirms", "bool", "RO", of("modes.confirms"), "The client learns which of its messages are stored"),
        prop("transactional", "bool", "RO", of("modes.is_transactional"), "It publishes and settles in transactions"),
        prop("prefetch", "uint32", "RO", of("modes.prefetch"), "Of each later consumer; 0 for no limit", "message"),
        prop("sharedPrefetch", "uint32", "RO", of("modes.shared_prefetch"),
             "Of all its consumers together; 0 for no limit", "message"),
    ),
    statistics=(
        stat("txnPublished", "count64", of("modes.published"), "Published in open transactions", "message"),
        stat("txnSettled", "count64", of("modes.settled"), "Deliveries settled in open transactions", "message"),
    ),
    objects=sessions, look=_mode, belongs=lambda listed: (listed.session.vhost, listed.session.user),
)
CLIENT_SUBSCRIPTION_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "clientSubscription"),
    properties=(
        prop("key", "lstr", "RC index", of("key"), "That of the subscription"),
        prop("prefetch", "uint32", "RO", of("prefetch"), "Messages that it may have unsettled; 0 for no limit",
             "message"),
        prop("active", "bool", "RO", of("is_active"), "It gets messages: it does not wait for another one to end"),
        prop("singleActive", "bool", "RO", of("is_single"), "It gets all messages of a queue with one active consumer"),
    ),
    objects=_consumings, look=_consuming,
    belongs=lambda found: (found[1].attached.session.vhost, found[1].attached.session.user),
)
QUEUE_HEAD_CLASS: Final = ManagedClass(
    ClassName(_PACKAGE, "queueHead"),
    properties=(
        prop("key", "lstr", "RC index", of("key"), "That of the queue"),
        prop("exclusiveConsumer", "lstr", "RO", of("exclusive"), "Name of its exclusive consumer; empty for none"),
        prop("singleActiveConsumer", "lstr", "RO", of("single_active"),
             "Name of the consumer that gets all messages, if there is one at a time; else empty"),
        prop("headCreatedAt", "uint64", "RO optional", of("created_at"),
             "When its first message was created, in seconds since 1970", "second"),
    ),
    objects=lambda managed: managed.queue_heads.items(), find=_find_head, prepare=_look_at_heads,
    belongs=lambda head: (head.host, ""),
)
# fmt: on
