"""Metrics for Prometheus: RabbitMQ's names where the thing is the same, `qstore_…` for what only this broker has.

    /metrics                          sums, as RabbitMQ's by default
    /metrics/per-object               each queue, connection and exchange by itself
    /metrics/detailed?family=…        only these families, each object by itself, as `rabbitmq_detailed_…`;
                                      vhost=… (repeatable) limits them to virtual hosts

`TABLES` has a row for each metric: its kind, name, family, what it means, and how it is read from the rows of the API.
Counters start at 0 with the broker. A scrape takes the sample that the collector takes at its interval anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from qstore import __version__
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.web import federation, health, rows

if TYPE_CHECKING:
    from qstore.broker.management.console import Data
    from qstore.tools.web.resources import Api

Row = dict[str, Any]
Read = Callable[[Row], float]

PER_OBJECT: Final = "/metrics/per-object"
DETAILED: Final = "/metrics/detailed"
TOTALS: Final = "/metrics"
_PREFIX: Final = "rabbitmq_"
_DETAILED_PREFIX: Final = "rabbitmq_detailed_"


class Row_(NamedTuple):  # noqa: N801
    """A metric of objects of one kind.

    Attributes:
        is_counter: whether it only grows.
        name: without a prefix.
        family: of `/metrics/detailed`.
        text: what it means.
        read: from the row of an object.
        prefix: of the name.
    """

    is_counter: bool
    name: str
    family: str
    text: str
    read: Read
    prefix: str = _PREFIX


def _gauge(name: str, family: str, text: str, read: Read) -> Row_:
    return Row_(False, name, family, text, read)


def _counter(name: str, family: str, text: str, read: Read) -> Row_:
    return Row_(True, name, family, text, read)


def _of(name: str) -> Read:
    return lambda row: row.get(name) or 0


def _stat(name: str) -> Read:
    return lambda row: row.get("message_stats", {}).get(name, 0)


_COARSE: Final = "queue_coarse_metrics"
_QUEUE: Final = "queue_metrics"
_COUNT: Final = "queue_consumer_count"
_DELIVERY: Final = "queue_delivery_metrics"

# fmt: off
QUEUES: Final = (
    _gauge("queue_messages_ready", _COARSE, "Messages ready to be delivered to consumers", _of("messages_ready")),
    _gauge("queue_messages_unacked", _COARSE, "Messages delivered to consumers but not yet acknowledged",
           _of("messages_unacknowledged")),
    _gauge("queue_messages", _COARSE, "Sum of ready and unacknowledged messages - total queue depth", _of("messages")),
    _gauge("queue_consumers", _COUNT, "Consumers on a queue", _of("consumers")),
    _gauge("queue_process_memory_bytes", _QUEUE, "Memory of a queue's messages in bytes", _of("memory")),
    _gauge("queue_messages_ram", _QUEUE, "Ready and unacknowledged messages stored in memory", _of("messages_ram")),
    _gauge("queue_messages_ram_bytes", _QUEUE, "Size of messages stored in memory", _of("message_bytes_ram")),
    _gauge("queue_messages_ready_ram", _QUEUE, "Ready messages stored in memory", _of("messages_ready_ram")),
    _gauge("queue_messages_unacked_ram", _QUEUE, "Unacknowledged messages stored in memory",
           _of("messages_unacknowledged_ram")),
    _gauge("queue_messages_persistent", _QUEUE, "Persistent messages", _of("messages_persistent")),
    _gauge("queue_messages_persistent_bytes", _QUEUE, "Size of persistent messages", _of("message_bytes_persistent")),
    _gauge("queue_messages_bytes", _QUEUE, "Size of ready and unacknowledged messages", _of("message_bytes")),
    _gauge("queue_messages_ready_bytes", _QUEUE, "Size of ready messages", _of("message_bytes_ready")),
    _gauge("queue_messages_unacked_bytes", _QUEUE, "Size of unacknowledged messages",
           _of("message_bytes_unacknowledged")),
    _gauge("queue_messages_paged_out", _QUEUE, "Messages paged out to disk", _of("messages_paged_out")),
    _gauge("queue_messages_paged_out_bytes", _QUEUE, "Size of messages paged out to disk",
           _of("message_bytes_paged_out")),
    _counter("queue_messages_published", _DELIVERY, "Messages published to queues", _stat("publish")),
    _counter("queue_messages_delivered", _DELIVERY, "Messages delivered to consumers", _stat("deliver")),
    _counter("queue_messages_redelivered", _DELIVERY, "Messages put back on a queue", _stat("redeliver")),
    _counter("queue_messages_acked", _DELIVERY, "Messages acknowledged by consumers", _stat("ack")),
)

CONNECTIONS: Final = (
    _counter("connection_incoming_bytes", "connection_coarse_metrics", "Bytes received on a connection",
             _of("recv_oct")),
    _counter("connection_outgoing_bytes", "connection_coarse_metrics", "Bytes sent on a connection", _of("send_oct")),
    _counter("connection_incoming_packets", "connection_metrics", "Frames received on a connection", _of("recv_cnt")),
    _counter("connection_outgoing_packets", "connection_metrics", "Frames sent on a connection", _of("send_cnt")),
    _gauge("connection_channels", "connection_metrics", "Channels on a connection", _of("channels")),
)

CHANNELS: Final = (
    _gauge("channel_consumers", "channel_metrics", "Consumers on a channel", _of("consumer_count")),
    _gauge("channel_messages_unacked", "channel_metrics", "Delivered but not yet acknowledged messages",
           _of("messages_unacknowledged")),
    _gauge("channel_messages_unconfirmed", "channel_metrics", "Messages published but not yet confirmed",
           _of("messages_unconfirmed")),
    _gauge("channel_messages_uncommitted", "channel_metrics", "Messages published in open transactions",
           _of("messages_uncommitted")),
    _gauge("channel_acks_uncommitted", "channel_metrics", "Acknowledgements in open transactions",
           _of("acks_uncommitted")),
    _gauge("consumer_prefetch", "channel_metrics", "Limit of unacknowledged messages for each consumer",
           _of("prefetch_count")),
    _gauge("channel_prefetch", "channel_metrics",
           "Total limit of unacknowledged messages for all consumers on a channel", _of("global_prefetch_count")),
)

EXCHANGES: Final = (
    _counter("exchange_messages_published_in", "exchange_metrics", "Messages published to an exchange",
             _stat("publish_in")),
    _counter("exchange_messages_published_out", "exchange_metrics", "Messages that an exchange has put on queues",
             _stat("publish_out")),
)

JOURNALS: Final = (
    Row_(False, "journal_fill_ratio", "journal_metrics", "Share of a journal's files that is in use", _of("fill"),
         "qstore_"),
    Row_(False, "journal_records", "journal_metrics", "Records that are needed", _of("records"), "qstore_"),
    Row_(False, "journal_capacity_bytes", "journal_metrics", "Size of a journal's files", _of("capacity"), "qstore_"),
    Row_(True, "journal_enqueues", "journal_metrics", "Messages written to a journal", _of("enqueues"), "qstore_"),
    Row_(True, "journal_dequeues", "journal_metrics", "Removals written to a journal", _of("dequeues"), "qstore_"),
    Row_(True, "journal_waits_for_room", "journal_metrics", "Appends that had to wait for room in a journal",
         _of("waits_for_room"), "qstore_"),
    Row_(False, "journal_open_transactions", "journal_metrics", "Transactions open in a journal",
         _of("open_transactions"), "qstore_"),
)
# fmt: on


_PROTOCOLS: Final[Mapping[str, str]] = {
    "AMQP 0-8": "amqp08",
    "AMQP 0-9": "amqp09",
    "AMQP 0-9-1": "amqp091",
    "AMQP 1.0": "amqp10",
    "AMQP 0-10": "amqp010",
}
"""RabbitMQ's names of protocols; 0-10 is not among them."""
_NOT_COUNTED: Final = (
    "received_confirm", "confirmed", "unroutable_returned", "delivered_consume_auto_ack", "delivered_get_manual_ack",
    "delivered_get_auto_ack", "get_empty",
)  # fmt: skip
"""Counters of RabbitMQ, which its dashboards ask for."""


class _Kind(NamedTuple):
    """The objects of a table.

    Attributes:
        table: their metrics.
        labels: names of their labels.
        values: from the row of an object to the values of its labels.
    """

    table: tuple[Row_, ...]
    labels: tuple[str, ...]
    values: Callable[[Row], Sequence[str]]


TABLES: Final[Mapping[str, _Kind]] = {
    "queue": _Kind(QUEUES, ("vhost", "queue"), lambda row: (row["vhost"], row["name"])),
    "connection": _Kind(CONNECTIONS, ("vhost", "connection"), lambda row: (row["vhost"], row["name"])),
    "channel": _Kind(CHANNELS, ("vhost", "channel"), lambda row: (row["vhost"], row["name"])),
    "exchange": _Kind(EXCHANGES, ("vhost", "exchange"), lambda row: (row["vhost"], row["name"])),
    "journal": _Kind(JOURNALS, ("vhost", "queue"), lambda row: (row.get("vhost", "/"), row["name"])),
}
FAMILIES: Final = frozenset(each.family for kind in TABLES.values() for each in kind.table)


class _Given:
    """Metrics that are there: what a registry collects from."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(each: Row_, labels: Sequence[str], prefix: str) -> Any:
    kind = CounterMetricFamily if each.is_counter else GaugeMetricFamily
    return kind((prefix if each.prefix == _PREFIX else each.prefix) + each.name, each.text, labels=labels)


def _objects(kind: _Kind, found: Sequence[Row], families: frozenset[str], prefix: str) -> Iterator[Metric]:
    """Each object by itself."""
    labels = [kind.values(row) for row in found]
    for each in kind.table:
        if each.family in families:
            metric, read = _metric(each, kind.labels, prefix), each.read
            for values, row in zip(labels, found, strict=True):
                metric.add_metric(values, read(row))
            yield metric


def _sums(kind: _Kind, found: Sequence[Row]) -> Iterator[Metric]:
    for each in kind.table:
        metric = _metric(each, (), _PREFIX)
        total = sum(each.read(row) for row in found)
        if each.name.endswith("_ratio"):  # the fullest one is what matters
            total = max((each.read(row) for row in found), default=0)
        metric.add_metric((), total)
        yield metric


async def exposition(
    api: Api, path: str, families: Sequence[str], vhosts: Sequence[str], accept: str
) -> tuple[bytes, str]:
    """The metrics of a path, and their content type. Raises KeyError if there is no such path, UnavailableError."""
    if path == DETAILED:
        wanted, prefix = FAMILIES.intersection(families), _DETAILED_PREFIX
    elif path in (PER_OBJECT, TOTALS):
        wanted, prefix = FAMILIES, _PREFIX
    else:
        raise KeyError(path)
    found = await _rows(api, frozenset(wanted))
    if vhosts:
        found = {name: [row for row in each if row.get("vhost") in vhosts] for name, each in found.items()}
    metrics: list[Metric] = []
    if path != DETAILED:
        metrics += await _broker(api, "aggregated" if path == TOTALS else "per-object")
    for name, kind in TABLES.items():
        if path == TOTALS:
            metrics += _sums(kind, found[name])
        else:
            metrics += _objects(kind, found[name], frozenset(wanted), prefix)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(metrics))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


async def _rows(api: Api, families: frozenset[str]) -> dict[str, list[Row]]:
    """The rows of the kinds that have one of these families."""
    from qstore.tools.web.resources import journal_row

    found: dict[str, list[Row]] = {name: [] for name in TABLES}

    def has(name: str) -> bool:
        return any(each.family in families for each in TABLES[name].table)

    if has("queue"):
        found["queue"] = await api.queue_rows(api.collector.interval)
    if has("connection"):
        found["connection"] = await api.connection_rows(api.collector.interval, is_brief=True)
    if has("channel"):
        found["channel"] = [row for _, row in await api.channel_rows(api.collector.interval)]
    if has("exchange"):
        found["exchange"] = await api.exchange_rows(api.collector.interval)
    if has("journal"):
        found["journal"] = [journal_row(data) for data in await api.collector.get("journal", api.collector.interval)]
    return found


def _plain(kind: Any, name: str, text: str, value: float) -> Metric:
    metric: Metric = kind(name, text)
    metric.add_metric((), value)  # type: ignore[attr-defined]
    return metric


async def _broker(api: Api, endpoint: str) -> list[Metric]:
    """The metrics of the broker itself.

    Args:
        api: the API.
        endpoint: RabbitMQ's word for what is scraped; its dashboards show one of them.
    """
    from qstore.tools.web.resources import API_VERSION, node_row

    age = api.collector.interval
    node, seen = await node_row(api, age), await api.collector.get("broker", age)
    data = next(iter(seen))
    churn = api.collector.churn
    security = next(iter(await api.collector.get("security", 5)), None)
    transactions = await api.collector.get("transaction", 5)
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    channels = await api.channel_rows(age, is_brief=True)
    connections = await api.connection_rows(age, is_brief=True)
    queues = await api.queue_rows(age)
    found_alarms = {each.resource for each in await health.alarms(api, age)}
    found = [
        _plain(gauge, "rabbitmq_connections", "Connections currently open", len(connections)),
        _plain(gauge, "rabbitmq_channels", "Channels currently open", len(channels)),
        _plain(gauge, "rabbitmq_consumers", "Consumers currently connected",
               sum(row["consumer_count"] for _, row in channels)),
        _plain(gauge, "rabbitmq_queues", "Queues available", len(queues)),
        _plain(gauge, "rabbitmq_process_open_fds", "Open file descriptors", node["fd_used"]),
        _plain(gauge, "rabbitmq_process_max_fds", "Open file descriptors limit", node["fd_total"]),
        _plain(gauge, "rabbitmq_process_open_tcp_sockets", "Open TCP sockets", node["sockets_used"]),
        _plain(gauge, "rabbitmq_process_max_tcp_sockets", "Open TCP sockets limit", node["sockets_total"]),
        _plain(gauge, "rabbitmq_process_resident_memory_bytes", "Memory used in bytes", node["mem_used"]),
        _plain(gauge, "rabbitmq_disk_space_available_bytes", "Disk space available in bytes", node["disk_free"]),
        _plain(gauge, "rabbitmq_resident_memory_limit_bytes", "Limit of the memory of all messages in bytes",
               node["mem_limit"]),
        _plain(gauge, "rabbitmq_disk_space_available_limit_bytes", "Free disk space low watermark in bytes",
               node["disk_free_limit"]),
        _plain(gauge, "rabbitmq_erlang_uptime_seconds", "Uptime of the broker", node["uptime"] / 1000),
        _plain(gauge, "rabbitmq_alarms_memory_used_watermark", "is 1 if the memory watermark alarm is in effect",
               "memory" in found_alarms),
        _plain(gauge, "rabbitmq_alarms_free_disk_space_watermark", "is 1 if the disk space alarm is in effect",
               not found_alarms.isdisjoint(("disk", "store"))),
        _plain(gauge, "rabbitmq_alarms_file_descriptor_limit", "is 1 if the descriptor limit alarm is in effect",
               "file_descriptor" in found_alarms),
        _plain(counter, "rabbitmq_connections_opened", "Connections opened, as seen in samples",
               churn.get("connection_created", 0)),
        _plain(counter, "rabbitmq_connections_closed", "Connections closed or terminated, likewise",
               churn.get("connection_closed", 0)),
        _plain(counter, "rabbitmq_channels_opened", "Channels opened, likewise", churn.get("session_created", 0)),
        _plain(counter, "rabbitmq_channels_closed", "Channels closed, likewise", churn.get("session_closed", 0)),
        _plain(counter, "rabbitmq_queues_created", "Queues created, likewise", churn.get("queue_created", 0)),
        _plain(counter, "rabbitmq_queues_declared", "Queues declared, likewise", churn.get("queue_created", 0)),
        _plain(counter, "rabbitmq_queues_deleted", "Queues deleted, likewise", churn.get("queue_closed", 0)),
        _plain(counter, "rabbitmq_auth_attempts_failed", "Logins that have failed",
               rows.number(security, "failedLogins")),
        _plain(counter, "rabbitmq_global_messages_received", "Messages put on queues",
               rows.number(data, "msgTotalEnqueues")),
        _plain(counter, "rabbitmq_global_messages_routed", "Messages routed to queues",
               rows.number(data, "msgTotalEnqueues")),
        _plain(counter, "rabbitmq_global_messages_delivered", "Messages delivered to consumers",
               rows.number(data, "acquires")),
        _plain(counter, "rabbitmq_global_messages_redelivered", "Messages put back on queues",
               rows.number(data, "releases")),
        _plain(counter, "rabbitmq_global_messages_acknowledged", "Messages acknowledged by consumers",
               rows.message_stats(seen, data)["ack"]),
        _plain(counter, "rabbitmq_global_messages_unroutable_dropped", "Messages that were not routed to any queue",
               rows.number(data, "discardsNoRoute")),
        _plain(gauge, "rabbitmq_global_consumers", "Consumers currently connected",
               sum(row["consumer_count"] for _, row in channels)),
        _plain(gauge, "rabbitmq_global_publishers", "Connections that have published",
               sum(row["messages_received"] > 0 for row in connections)),
        _plain(counter, "rabbitmq_global_messages_delivered_consume_manual_ack",
               "Messages delivered to consumers, with or without acknowledgement", rows.number(data, "acquires")),
        *(_plain(counter, f"rabbitmq_global_messages_{name}", "Always 0: this broker does not count them separately", 0)
          for name in _NOT_COUNTED),
        _plain(gauge, "qstore_transactions_in_doubt", "Prepared branches of distributed transactions",
               sum(each.get("state") == "PREPARED" for each in transactions)),
        _plain(gauge, "qstore_paged_out_messages", "Messages whose content is on disk only",
               rows.number(data, "msgFtdDepth")),
        _plain(counter, "qstore_paged_out_messages_written", "Messages paged out so far",
               rows.number(data, "msgFtdEnqueues")),
        _plain(counter, "qstore_paged_out_messages_read", "Messages read back so far",
               rows.number(data, "msgFtdDequeues")),
        _plain(counter, "qstore_console_sampling_seconds", "Time that the console has waited for the broker's answers",
               api.collector.seconds),
    ]  # fmt: skip
    alarms = GaugeMetricFamily("qstore_alarms", "is 1 if this alarm is in effect", labels=("resource",))
    for resource in health.RESOURCES:
        alarms.add_metric((resource,), resource in found_alarms)
    version = GaugeMetricFamily("rabbitmq_build_info", "Versions", labels=("rabbitmq_version", "qstore_version"))
    version.add_metric((API_VERSION, str(data.get("version") or __version__)), 1)
    labels = ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint")
    identity = GaugeMetricFamily("rabbitmq_identity_info", "Names", labels=labels)
    vhost = next(iter(await api.collector.get("vhost", 60)), None)
    tag = "" if vhost is None else str(vhost.get("federationTag"))
    identity.add_metric((node["name"], node["name"], tag, endpoint), 1)
    discards = CounterMetricFamily("qstore_messages_discarded", "Messages discarded", labels=("reason",))
    for reason in ("NoRoute", "Ttl", "Ring", "Lvq", "Overflow", "Subscriber", "Purge"):
        discards.add_metric((reason.lower(),), rows.number(data, f"discards{reason}"))
    allocated = next(iter(await api.collector.get("memory", 5)), None)
    memory = GaugeMetricFamily("qstore_memory_bytes", "Memory of the broker by what it is", labels=("kind",))
    memory.add_metric(("messages",), max(0, rows.number(data, "byteDepth") - rows.number(data, "byteFtdDepth")))
    memory.add_metric(("allocated",), rows.number(allocated, "malloc_uordblks"))
    memory.add_metric(("allocated_unused",), rows.number(allocated, "malloc_fordblks"))
    memory.add_metric(("mapped",), rows.number(allocated, "malloc_hblkhd"))
    of_shovels = await federation.metrics(api, age)
    sizes = await _message_sizes(api, age)
    return [*found, alarms, version, identity, discards, memory, sizes, *of_shovels, *await _flushes(api)]


async def _message_sizes(api: Api, age: float) -> Metric:
    """The sizes of messages, by protocol, as RabbitMQ 4 has them."""
    metric = HistogramMetricFamily(
        "rabbitmq_message_size_bytes", "Size of messages received from publishers", labels=("protocol",)
    )
    for data in await api.collector.get("messageSizes", age):
        _add_histogram(metric, (_PROTOCOLS.get(data.key, data.key),), data, "sizes", "bytes", 1)
    return metric


async def _flushes(api: Api) -> list[Metric]:
    """The flushes of the store: how long their syncs took, and how large they were."""
    data = next(iter(await api.collector.get("flushes", 5)), None)
    if data is None:
        return []
    sync = "From the writing of a batch to its sync in a journal"
    return [
        _histogram("qstore_store_sync_seconds", sync, data, "latencies", "nanoseconds", 1e9),
        _histogram("qstore_store_flush_bytes", "Bytes of a batch", data, "sizes", "bytes", 1),
    ]


def _histogram(name: str, text: str, data: Data, counts: str, total: str, unit: float) -> Metric:
    """A histogram without labels."""
    metric = HistogramMetricFamily(name, text)
    _add_histogram(metric, (), data, counts, total, unit)
    return metric


def _add_histogram(
    metric: HistogramMetricFamily, labels: Sequence[str], data: Data, counts: str, total: str, unit: float
) -> None:
    """Add a histogram from the counts of each class by its upper bound."""
    given = data.get(counts) or {}
    buckets, below = list[tuple[str, float]](), 0
    for bound in sorted(int(each) for each in given if each != "inf"):
        below += given[str(bound)]
        buckets.append((repr(bound / unit), below))
    buckets.append(("+Inf", below + given.get("inf", 0)))
    metric.add_metric(labels, buckets=buckets, sum_value=rows.number(data, total) / unit)
