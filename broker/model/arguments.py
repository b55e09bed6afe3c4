"""The arguments of queues, exchanges, bindings and subscriptions: one table of all known names.

    EFFECT     the argument does what the row says; `queues/arguments` and others read it
    REFUSED    the declaration is refused, with the argument's name and advice
    IGNORED    the declaration is accepted, and it is logged once for each name that it has no effect, and why

The rule: if without the feature a queue would lose, reorder or duplicate messages, deliver them to the wrong consumer,
or lack a copy that a user relies on, its argument is refused, so that users do not discover the problem from their
messages. Arguments for tuning or monitoring are ignored. A row of these two kinds applies only to values that request
the feature: "no" requests nothing. A row may apply only in one protocol, or only `where` the argument has an effect,
such as for bindings of a headers exchange; elsewhere it is ignored.

What others take from an argument, such as a limit that another one needs, is in `queues/idle_arguments`.

Names without a row are unknown: they are stored with the object, and ignored in the same way (Qpid C++ Broker Book,
1.2.1.4), except that AMQP 0-9-1 refuses those that begin with "x-", with which its clients request features of
RabbitMQ. In a binding to a headers exchange, names that do not begin with "x-" are headers, unless they are refused.

Sources: qpidd, QueueSettings.cpp, QueueFactory.cpp and HeadersExchange.cpp; Qpid C++ Broker Book, 1.2, 1.3, 1.6 to 1.8,
1.11 and 1.12; MRG 2 Messaging User Guide, 2 and 3; Qpid wiki, "Qpid extensions to AMQP"; Qpid Java Broker Book, 5;
RabbitMQ, "Queues", "Exchanges" and "Consumers" (optional arguments).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from qstore.broker.log.logs import INFO, NOTICE, log_of
from qstore.broker.model.errors import InvalidArgumentError, NotImplementedByBrokerError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap

_LOG: Final = log_of("Model")
_MAX_REPORTED: Final = 1000  # names, which clients choose
_MAX_LINES: Final = 20  # in the log, for one declaration

AMQP_0_10: Final = "AMQP 0-10"
AMQP_0_9_1: Final = "AMQP 0-9-1"
AMQP_1_0: Final = "AMQP 1.0"


class Of(Enum):
    """The kind of object that has arguments."""

    QUEUE = "queue"
    EXCHANGE = "exchange"
    BINDING = "binding"
    SUBSCRIPTION = "subscription"


class Effect(Enum):
    """The effect of an argument."""

    EFFECT = auto()
    IGNORED = auto()
    REFUSED = auto()


_Asks: TypeAlias = Callable[[object], bool]


class Applied(NamedTuple):
    """What policies give a queue or exchange in addition to its arguments (`model/policies`).

    Attributes:
        policy, operator_policy: the names of the policies; empty for none.
        definition: theirs, merged.
        user: that of the first policy (`Policy.user`).
    """

    policy: str = ""
    operator_policy: str = ""
    definition: Mapping[str, str | int] = MappingProxyType({})
    user: str = ""


NO_POLICY: Final = Applied()

# ---- values ----


def as_text(value: object) -> object:
    """Bytes as text: by default the C++ client sends strings as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def plain(arguments: TypedMap) -> dict[str, object]:
    """Name -> value; bytes as text."""
    return {name: as_text(typed.value) for name, typed in arguments.entries}


def shown(value: object) -> str:
    """A value for a log line or error: printable, and truncated to 64 characters."""
    text = ascii(value)
    return text if len(text) <= 64 else f"{text[:64]}..."


def is_set(value: object) -> bool:
    """Whether a value is neither empty nor a spelling of "no"."""
    return not (isinstance(value, str) and value.lower() in ("", "0", "false", "no", "none")) and bool(value)


_OFF: Final = frozenset(("0", "false", "no", "off"))


def is_switched_on(arguments: TypedMap, name: str) -> bool:
    """Whether an argument of an exchange or a binding is present, and not a spelling of "no".

    In the sources these switches have the values 1 or true, and the last one has no value: presence is enough.
    """
    typed = arguments.get(name)
    if typed is None:
        return False
    value = as_text(typed.value)
    if isinstance(value, str):
        return value.lower() not in _OFF
    return value is None or bool(value)


def alternate_in(arguments: TypedMap) -> str:
    """The exchange that the argument alternate-exchange of an exchange names; empty for none.

    Raises:
        InvalidArgumentError: it is not a string.
    """
    typed = arguments.get(ALTERNATE)
    value = "" if typed is None else as_text(typed.value)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{ALTERNATE} is {shown(value)}, not the name of an exchange")
    return value


def _always(_value: object) -> bool:
    return True


def _above_ten(value: object) -> bool:
    text = str(value)
    return text.isdecimal() and (len(text) > _MAX_DIGITS or int(text) > 10)


def _none_of(*values: object) -> _Asks:
    return lambda value: value not in values


def _other_lifetime(value: object) -> bool:
    return is_set(value) and value not in LIFETIMES


def _is_not_string(value: object) -> bool:
    return not isinstance(value, str)


def _is_selector(value: object) -> bool:
    return not (value is None or (isinstance(value, str) and not value.strip()))


# ---- names that others need ----

NO_LOCAL: Final = "no-local"
QUEUE_TYPE: Final = "x-queue-type"
PRIORITIES: Final = ("x-priority", "rabbitmq:priority")
"""Names of an argument of subscriptions: in AMQP 1.0, where they are properties of links, RabbitMQ has another one."""
SELECTOR: Final = "x-apache-selector"
JMS_SELECTOR: Final = "x-filter-jms-selector"
"""The Java client's name for it, which it also sends without a selector."""
NO_CONSUME: Final = "x-filter-no-consume"
AUTO_CLOSE: Final = "x-filter-auto-close"
SYNC_FREQUENCY: Final = "qpid.sync_frequency"
"""Of the routes of qpidd: after how many messages they want to be asked to accept; they accept nothing unasked."""
MATCH: Final = "x-match"
INTERNAL: Final = "x-internal"
ALTERNATE: Final = "alternate-exchange"
INTERNAL_PURPOSE: Final = "x-internal-purpose"
BOUND_FROM: Final = "x-bound-from"
FED_OP: Final = "qpid.fed.op"
FED_ORIGIN: Final = "qpid.fed.origin"
FED_TAGS: Final = "qpid.fed.tags"
FED_ARGUMENTS: Final = (FED_OP, FED_ORIGIN, FED_TAGS, "qpid.replicate")
"""Arguments of bindings that are no criteria of a headers exchange. Brokers of a cluster add the last one."""
SEQUENCE: Final = "qpid.msg_sequence"
INITIAL_VALUE: Final = "qpid.ive"
OF_SUBSCRIPTION: Final = "qstore.subscription"
"""An argument of the queues that the broker makes for subscriptions of AMQP 1.0."""
DELAYED_TYPE: Final = "x-delayed-type"
HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
HISTORY_LENGTH: Final = "x-recent-history-length"
XQUERY: Final = "xquery"
EXCLUSIVE_BINDING: Final = "qpid.exclusive-binding"
LIFETIMES: Final = {
    "manual": False, "delete-if-unused": True, "delete-on-close": True, "delete-if-unused-and-empty": True,
}  # fmt: skip
"""Values of qpid.lifetime-policy, and whether the queue is auto-delete."""

DURABLE: Final = "durable"
AUTO_DELETE: Final = "auto-delete"
EXCLUSIVE: Final = "exclusive"
REPLICATING: Final = "replicating"
DELETES_SLOW: Final = "deletes-slow"
DIRECT: Final = "direct"
_HEADERS, _XML = "headers", "xml"

_MAX_DIGITS: Final = 20
_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1
MAX_MILLISECONDS: Final = 315_360_000_000
"""The maximum of a time: ten years of 365 days, as in RabbitMQ 3.10.8."""
MAX_PRIORITY: Final = 255
"""The maximum of x-max-priority."""


# ---- the table ----


class Row(NamedTuple):
    """One argument.

    Attributes:
        of: the kind of object that has it.
        key: its name; with a star at the end, all names with that prefix.
        effect: its effect on a declaration.
        says: what it does; if it is REFUSED or IGNORED, what happens instead, and the alternative.
        asks: whether a value requests this; bytes are passed as text.
        maximum: the largest count; None if the value is not a count.
        protocol: the only one in which the row applies; empty for all.
        where: where it has an effect, a key of `_WHERE`, such as for durable or auto-delete queues, or the type of a
            binding's exchange; empty for everywhere.
    """

    of: Of
    key: str
    effect: Effect
    says: str
    asks: _Asks = _always
    maximum: int | None = None
    protocol: str = ""
    where: str = ""


def _does(
    of: Of, key: str, says: str, maximum: int | None = None, *, protocol: str = "", where: str = "",
    asks: _Asks = _always,
) -> Row:  # fmt: skip
    return Row(of, key, Effect.EFFECT, says, asks, maximum, protocol, where)


def _refused(of: Of, key: str, says: str, asks: _Asks = is_set, *, protocol: str = "") -> Row:
    return Row(of, key, Effect.REFUSED, says, asks, None, protocol)


def _ignored(of: Of, key: str, says: str, asks: _Asks = is_set, *, protocol: str = "") -> Row:
    return Row(of, key, Effect.IGNORED, says, asks, None, protocol)


_QUEUE, _EXCHANGE, _BINDING, _SUBSCRIPTION = Of.QUEUE, Of.EXCHANGE, Of.BINDING, Of.SUBSCRIPTION

_TEN_LEVELS: Final = "it has 10 levels, one for each priority"
_NO_COPY: Final = "its messages and state are not replicated to other brokers"
_RING_JOURNAL: Final = "its journal is sized by qpid.file_count and qpid.file_size"
_NO_MIRROR: Final = "queues are not mirrored by their arguments; RabbitMQ has ignored this one since 3.0"
_ONE_NODE: Final = "there is one node, and so one copy of the queue"
_PLACEMENT: Final = "the placement of a queue does not change its behaviour"
_FILTER_OF_QUEUE: Final = "it is an argument of queues; a binding has x-filter-jms-selector"
_BROWSING: Final = "it browses: messages that it gets stay on the queue"
_FILTER: Final = "AMQP 1.0 has the filter selector-filter, and messages that do not match would be delivered"

TABLE: Final = (
    # Limits.
    _does(_QUEUE, "qpid.max_count", "the limit of messages; 0 for none", _U64),
    _does(_QUEUE, "qpid.max_size", "the limit of bytes of headers and content; 0 for none", _U64),
    _does(_QUEUE, "qpid.policy_type", "at the limits: reject, ring, ring_strict, self-destruct or flow_to_disk"),
    _does(_QUEUE, "x-max-length", "the limit of messages", _U64),
    _does(_QUEUE, "x-max-length-bytes", "the limit of bytes", _U64),
    _does(_QUEUE, "x-overflow", "at the limits: drop-head, reject-publish or reject-publish-dlx"),
    # Flow control and alerts.
    _does(_QUEUE, "qpid.flow_stop_count", "messages above which publishers wait; 0 for none", _U32),
    _does(_QUEUE, "qpid.flow_resume_count", "messages below which they continue", _U32),
    _does(_QUEUE, "qpid.flow_stop_size", "bytes above which publishers wait; 0 for none", _U64),
    _does(_QUEUE, "qpid.flow_resume_size", "bytes below which they continue", _U64),
    _does(_QUEUE, "x-qpid-capacity", "another name for qpid.flow_stop_size", _U64),
    _does(_QUEUE, "x-qpid-flow-resume-capacity", "another name for qpid.flow_resume_size", _U64),
    _does(_QUEUE, "qpid.alert_count", "messages at which an alert is raised", _U64),
    _does(_QUEUE, "qpid.alert_count_up", "another name for qpid.alert_count", _U64),
    _does(_QUEUE, "x-qpid-maximum-message-count", "another name for qpid.alert_count", _U64),
    _does(_QUEUE, "qpid.alert_size", "bytes at which an alert is raised", _U64),
    _does(_QUEUE, "qpid.alert_size_up", "another name for qpid.alert_size", _U64),
    _does(_QUEUE, "x-qpid-maximum-message-size", "another name for qpid.alert_size", _U64),
    _does(_QUEUE, "qpid.alert_count_down", "messages at which the alert ends", _U64),
    _does(_QUEUE, "qpid.alert_size_down", "bytes at which the alert ends", _U64),
    _does(_QUEUE, "qpid.alert_repeat_gap", "seconds between two alerts", _U64),
    _does(_QUEUE, "x-qpid-minimum-alert-repeat-gap", "another name for qpid.alert_repeat_gap", _U64),
    _does(_QUEUE, "qpid.alert_message_size", "bytes of a message above which an alert is raised", _U64),
    _does(_QUEUE, "qpid.alert_message_age", "milliseconds of the oldest message, likewise", MAX_MILLISECONDS),
    _does(_QUEUE, "x-qpid-maximum-message-age", "another name for qpid.alert_message_age", MAX_MILLISECONDS),
    # Consumers.
    _does(_QUEUE, "qpid.max_consumers", "the most consumers; 0 for no limit", _U32),
    _does(_QUEUE, "qpid.slow_consumer_policy", "disconnect, delete or cycle, if there is too much for the consumers"),
    _does(_QUEUE, "qpid.slow_consumer_count", "messages that are too much", _U64),
    _does(_QUEUE, "qpid.slow_consumer_size", "bytes that are too much", _U64),
    _does(_QUEUE, "qpid.slow_consumer_age", "milliseconds of the oldest message that are too much", MAX_MILLISECONDS),
    _does(
        _QUEUE, "qpid.slow_consumer_delete_durable", "with the policy delete, durable queues are deleted, too",
        where=DELETES_SLOW, asks=is_set,
    ),
    # The order of messages.
    _does(_QUEUE, "qpid.priorities", "priority levels, at most 10; 0 and 1 for none", _U32),
    _ignored(_QUEUE, "qpid.priorities", _TEN_LEVELS, _above_ten),
    _does(_QUEUE, "x-qpid-priorities", "another name for qpid.priorities", _U32),
    _ignored(_QUEUE, "x-qpid-priorities", _TEN_LEVELS, _above_ten),
    _does(_QUEUE, "qpid.fairshare", "messages of one level before lower levels get their turn; 0 for no limit", _U32),
    _does(_QUEUE, "qpid.fairshare-*", "likewise, for one level"),
    _does(_QUEUE, "x-qpid-fairshare", "another name for qpid.fairshare", _U32),
    _does(_QUEUE, "x-qpid-fairshare-*", "likewise, for one level"),
    _does(_QUEUE, "x-max-priority", "the highest priority", MAX_PRIORITY),
    _does(_QUEUE, "qpid.last_value_queue_key", "the header by whose value a message displaces another"),
    _does(_QUEUE, "qpid.last_value_queue", "likewise, the header qpid.LVQ_key"),
    _does(_QUEUE, "qpid.last_value_queue_no_browse", "likewise"),
    _does(_QUEUE, "qpid.group_header_key", "the header with the name of a message's group"),
    _does(_QUEUE, "qpid.shared_msg_group", "needed for message groups"),
    _ignored(_QUEUE, "qpid.group_timestamp", "the state of message groups is not reported"),
    _refused(_QUEUE, "x-qpid-sorted-key", "messages are not sorted by a header; use qpid.priorities for priorities"),
    _refused(_QUEUE, "qpid.queue_sort_key", "messages are not sorted by a header; use qpid.priorities for priorities"),
    # Messages.
    _does(_QUEUE, NO_LOCAL, "drops messages from its owner's connection", where=EXCLUSIVE),
    _does(_QUEUE, "qpid.filter", "drops messages that this selector does not match"),
    _does(_QUEUE, "qpid.browse-only", "makes all consumers browsers"),
    _does(_QUEUE, "qpid.queue_msg_sequence", "the header in which messages are numbered"),
    _does(_QUEUE, "qpid.insert_sequence_numbers", "numbers messages in the header qpid.msg_sequence"),
    _does(_QUEUE, SEQUENCE, "another name for qpid.insert_sequence_numbers"),
    _does(
        _QUEUE, "qpid.queue_event_generation", "which events go to another broker: 1 or 2", 2, where=REPLICATING,
        asks=is_set,
    ),
    _does(_QUEUE, "x-message-ttl", "milliseconds that a message may be on the queue", MAX_MILLISECONDS),
    _does(_QUEUE, "x-dead-letter-exchange", "where messages go that are rejected, expire or are displaced"),
    _does(_QUEUE, "x-dead-letter-routing-key", "their new routing key"),
    _does(_QUEUE, "x-dead-letter-strategy", "at-least-once: each stays on its quorum queue until another queue has it"),
    _does(_QUEUE, "x-single-active-consumer", "one consumer at a time gets messages"),
    _refused(_QUEUE, ALTERNATE, "use x-dead-letter-exchange, or the field alternate-exchange of AMQP 0-10"),
    _refused(_QUEUE, "x-qpid-dlq-enabled", "name a dead-letter exchange with x-dead-letter-exchange"),
    _refused(
        _QUEUE, "x-qpid-maximum-delivery-count",
        "deliveries are not counted; have consumers reject what they cannot process",
    ),
    _does(_QUEUE, "x-delivery-limit", "how often a message of a quorum queue may return"),
    _refused(_QUEUE, "x-message-deduplication", "duplicates are not removed"),
    _does(_QUEUE, "x-max-age", "how long a stream keeps messages: a number with a unit, Y, M, D, h, m or s"),
    _does(_QUEUE, "x-stream-max-segment-size-bytes", "the largest segment of a stream; whole ones are dropped"),
    _does(_QUEUE, "x-stream-keep-unread", "how long a stream keeps messages for the name of a consumer that is gone"),
    _ignored(_QUEUE, "x-stream-filter-size-bytes", "filters look at each message, and not at a Bloom filter", _always),
    _ignored(_QUEUE, "x-initial-cluster-size", _ONE_NODE, _always),
    _ignored(_QUEUE, "x-initial-group-size", _ONE_NODE, _always),  # so clients of RabbitMQ name this one and the next
    _ignored(_QUEUE, "x-deliver-limit", "the argument's name is x-delivery-limit", _always),
    _refused(_QUEUE, "qpid.ensure_nondestructive_consumers", "qpid.browse-only makes all consumers browsers"),
    _refused(_QUEUE, "qpid.default_filters", "use qpid.filter to drop messages, or x-apache-selector in subscriptions"),
    _refused(_QUEUE, "qpid.message_durability", "a durable queue stores persistent messages, and no others"),
    _does(_QUEUE, "qpid.trace.id", "adds this name to the trace of messages, the brokers that they have passed"),
    _does(_QUEUE, "qpid.trace.exclude", "drops messages with one of these names in their trace"),
    _does(_QUEUE, "qpid.trace.excludes", "another name for qpid.trace.exclude"),
    # Lifetime.
    _does(_QUEUE, "qpid.auto_delete_timeout", "seconds that it is kept while unused", _U32, where=AUTO_DELETE),
    _does(_QUEUE, "qpid.lifetime-policy", "manual, delete-if-unused, or delete-if-unused-and-empty"),
    _refused(
        _QUEUE, "qpid.lifetime-policy", "it can be deleted when it is unused, or unused and empty", _other_lifetime
    ),
    _does(_QUEUE, "x-expires", "milliseconds after which it is deleted if unused", MAX_MILLISECONDS),
    _does(_QUEUE, OF_SUBSCRIPTION, "links of AMQP 1.0 that subscribe to an exchange use it, and delete it"),
    # Memory and disk.
    _does(_QUEUE, "qpid.paging", "few of its messages are in memory"),
    _does(_QUEUE, "qpid.max_pages_loaded", "how many of its pages are in memory", _U32),
    _does(_QUEUE, "qpid.page_factor", "the size of a page, in units of 4,096 bytes", 1 << 14),
    _does(_QUEUE, "qpid.compress", "compresses messages on disk: zstd or none"),
    _does(_QUEUE, "qpid.deliver_before_sync", "delivers messages before they are on the disk", where=DURABLE),
    _does(_QUEUE, "qpid.file_count", "initial number of files of its journal", where=DURABLE),
    _does(_QUEUE, "qpid.file_size", "the size of each, in pages of 64 KiB", where=DURABLE),
    _does(_QUEUE, "qpid.auto_expand", "whether its journal may grow", where=DURABLE),
    _does(_QUEUE, "qpid.auto_expand_max_jfiles", "files that it may grow to", where=DURABLE),
    _does(_QUEUE, "qpid.max_journal_size", "MiB that it may grow to", where=DURABLE),
    _ignored(_QUEUE, "qpid.efp_partition_num", _RING_JOURNAL),
    _ignored(_QUEUE, "qpid.efp_pool_file_size", _RING_JOURNAL),
    _ignored(_QUEUE, "qpid.wcache-page-size", "the broker's option wcache-page-size applies to all queues"),
    _ignored(_QUEUE, "qpid.wcache-num-pages", "the number of write cache pages is not configurable"),
    # Copies and placement.
    _refused(_QUEUE, "qpid.replicate", _NO_COPY),
    _ignored(_QUEUE, "qpid.persist_last_node", "the broker is standalone, never the last node of a cluster"),
    _does(_QUEUE, INTERNAL_PURPOSE, "a link of another broker's federation has made it, and it is not federated"),
    _ignored(_QUEUE, "x-ha-policy", _NO_MIRROR),
    _ignored(_QUEUE, "x-ha-policy-params", _NO_MIRROR),
    _does(_QUEUE, QUEUE_TYPE, "classic; quorum, which counts how often messages return; or stream, which keeps them"),
    _refused(_QUEUE, QUEUE_TYPE, "it is 'classic', 'quorum' or 'stream'", _none_of("classic", "quorum", "stream")),
    _ignored(_QUEUE, "x-quorum-initial-group-size", _ONE_NODE, _always),
    _ignored(_QUEUE, "x-quorum-target-group-size", _ONE_NODE, _always),
    _ignored(_QUEUE, "x-max-in-memory-length", "messages leave memory by themselves", _always),
    _ignored(_QUEUE, "x-max-in-memory-bytes", "messages leave memory by themselves", _always),
    _ignored(_QUEUE, "x-queue-mode", _PLACEMENT, _always),
    _refused(_QUEUE, "x-queue-mode", "it is 'default' or 'lazy'", _none_of("default", "lazy")),
    _ignored(_QUEUE, "x-queue-version", _PLACEMENT, _always),
    _refused(_QUEUE, "x-queue-version", "it is 1 or 2", _none_of(1, 2)),
    _ignored(_QUEUE, "x-queue-master-locator", _PLACEMENT, _always),
    _refused(_QUEUE, "x-queue-master-locator", "it must be a string", _is_not_string),
    _ignored(_QUEUE, "x-queue-leader-locator", _PLACEMENT, _always),
    _refused(_QUEUE, "x-queue-leader-locator", "it must be a string", _is_not_string),
    # Exchanges.
    _does(_EXCHANGE, SEQUENCE, "numbers messages in the header qpid.msg_sequence"),
    _does(_EXCHANGE, INITIAL_VALUE, "offers its last message to each new binding"),
    _does(_EXCHANGE, INTERNAL, "clients of AMQP 0-9-1 cannot publish to it"),
    _does(_EXCHANGE, ALTERNATE, "where messages go that match no queue"),
    _refused(_EXCHANGE, "qpid.replicate", _NO_COPY),
    _does(_EXCHANGE, DELAYED_TYPE, "how an exchange of type x-delayed-message routes: direct, fanout, headers, topic"),
    _does(_EXCHANGE, HASH_HEADER, "the header by which an exchange of type x-consistent-hash divides messages"),
    _does(_EXCHANGE, HASH_PROPERTY, "likewise, the property: correlation_id, message_id or timestamp"),
    _does(_EXCHANGE, HISTORY_LENGTH, "how many messages an exchange of type x-recent-history keeps, at most 500"),
    _ignored(_EXCHANGE, "qpid.sequence_counter", "numbers begin at 0 after a restart"),
    _does(_EXCHANGE, INTERNAL_PURPOSE, "a link of another broker's federation has made it, and it is not federated"),
    # Bindings.
    _does(_BINDING, EXCLUSIVE_BINDING, "replaces all others with its key", where=DIRECT),
    _does(_BINDING, MATCH, "all or any", where=_HEADERS),
    _does(_BINDING, XQUERY, "the query that decides which messages match", where=_XML),
    _does(_BINDING, JMS_SELECTOR, "selects the messages for which it counts"),
    _does(_BINDING, SELECTOR, "another name for x-filter-jms-selector"),
    _refused(_BINDING, "qpid.filter", _FILTER_OF_QUEUE, _is_selector),
    _ignored(_BINDING, "qpid.replicate", _NO_COPY),
    _does(_BINDING, BOUND_FROM, "the brokers whose federated exchanges ask for the messages"),
    _does(_BINDING, FED_OP, "another broker's route binds, or takes a binding back: B, U, R, M or S"),
    _does(_BINDING, FED_ORIGIN, "the broker whose clients want the messages"),
    _does(_BINDING, FED_TAGS, "the brokers that the binding has passed"),
    # Subscriptions.
    _does(_SUBSCRIPTION, PRIORITIES[0], "consumers of higher priority get messages first"),
    _does(_SUBSCRIPTION, PRIORITIES[1], "another name for x-priority, of clients of AMQP 1.0"),
    _does(_SUBSCRIPTION, SELECTOR, "selects the messages that it gets", protocol=AMQP_0_10),
    _does(_SUBSCRIPTION, SELECTOR, "likewise", protocol=AMQP_0_9_1),
    _refused(_SUBSCRIPTION, SELECTOR, _FILTER, _is_selector, protocol=AMQP_1_0),
    _does(_SUBSCRIPTION, JMS_SELECTOR, "another name for x-apache-selector", protocol=AMQP_0_10),
    _does(_SUBSCRIPTION, JMS_SELECTOR, "likewise", protocol=AMQP_0_9_1),
    _refused(_SUBSCRIPTION, JMS_SELECTOR, _FILTER, _is_selector, protocol=AMQP_1_0),
    _does(_SUBSCRIPTION, NO_CONSUME, _BROWSING, protocol=AMQP_0_9_1),
    _does(_SUBSCRIPTION, NO_CONSUME, _BROWSING, protocol=AMQP_0_10),
    _refused(_SUBSCRIPTION, NO_CONSUME, "AMQP 1.0 has the distribution mode copy for browsing", protocol=AMQP_1_0),
    _does(_SUBSCRIPTION, AUTO_CLOSE, "it ends when there is nothing for it on the queue", protocol=AMQP_0_9_1),
    _refused(_SUBSCRIPTION, AUTO_CLOSE, "AMQP 0-10 has message.flush to learn of that", protocol=AMQP_0_10),
    _refused(_SUBSCRIPTION, AUTO_CLOSE, "AMQP 1.0 has the field drain to learn of that", protocol=AMQP_1_0),
    _does(_SUBSCRIPTION, "x-stream-offset", "where a consumer of a stream begins"),
    _does(_SUBSCRIPTION, "x-stream-filter", "the filter values of the messages that a consumer of a stream gets"),
    _does(_SUBSCRIPTION, "x-stream-match-unfiltered", "has it get messages without a filter value, too"),
    _does(_SUBSCRIPTION, "x-stream-consumer-name", "the name under which its offset is kept"),
    _does(_SUBSCRIPTION, "x-stream-automatic-offset-tracking", "takes its tag as that name"),
    _refused(_SUBSCRIPTION, "x-credit", "AMQP 0-10 has credit; AMQP 0-9-1 has basic.qos", _always),
    _refused(_SUBSCRIPTION, "qpid.ha-replicating-subscription", _NO_COPY, _always),
    _ignored(_SUBSCRIPTION, "x-cancel-on-ha-failover", "there is no failover to another broker"),
    _does(_SUBSCRIPTION, SYNC_FREQUENCY, "has the client asked to answer each message at once", protocol=AMQP_0_10),
    _ignored(_SUBSCRIPTION, SYNC_FREQUENCY, "AMQP 0-9-1 has publisher confirms", protocol=AMQP_0_9_1),
    _ignored(_SUBSCRIPTION, SYNC_FREQUENCY, "receivers of AMQP 1.0 settle by themselves", protocol=AMQP_1_0),
)  # fmt: skip


def _indexed() -> tuple[dict[tuple[Of, str], tuple[Row, ...]], list[Row]]:
    exact: dict[tuple[Of, str], tuple[Row, ...]] = {}
    for row in TABLE:
        if not row.key.endswith("*"):
            exact[row.of, row.key] = (*exact.get((row.of, row.key), ()), row)
    return exact, [row for row in TABLE if row.key.endswith("*")]


_EXACT, _PREFIXES = _indexed()
COUNTS: Final = {row.key: row.maximum for row in TABLE if row.of is Of.QUEUE and row.maximum is not None}
"""Argument of a queue whose value is a count -> its maximum."""


def rows_of(of: Of, name: str) -> tuple[Row, ...]:
    """The rows of an argument; none if it has no meaning."""
    return _EXACT.get((of, name)) or tuple(row for row in _PREFIXES if row.of is of and name.startswith(row.key[:-1]))


def has_effect(of: Of, name: str) -> bool:
    """Whether an argument of that name does anything, with some values at least."""
    return any(row.effect is Effect.EFFECT for row in rows_of(of, name))


# ---- checking ----


class Lacking(NamedTuple):
    """An argument without the requested effect.

    Attributes:
        name, value: the argument.
        row: the row that says why; None if its name is unknown.
        where: where the argument would have an effect; empty for nowhere.
    """

    name: str
    value: Any
    row: Row | None
    where: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the declaration is refused."""
        return self.row is not None and not self.where and self.row.effect is Effect.REFUSED

    @property
    def why(self) -> str:
        """What happens instead, or what to do; empty if its name is unknown."""
        return "" if self.row is None else self.row.says

    def __str__(self) -> str:
        if self.row is None:
            return f"{shown(self.name)[1:-1]} is unknown and ignored"
        if self.where:
            return f"{self.name} is ignored: it has an effect only {_WHERE[self.where]}"
        what = "is not implemented" if self.is_refused else "is ignored"
        return f"{self.name} {shown(self.value)} {what}: {self.why}"


_WHERE: Final = {
    DURABLE: "for durable queues of a broker with a store",
    AUTO_DELETE: "for auto-delete queues",
    EXCLUSIVE: "for exclusive queues",
    REPLICATING: "for brokers with replication-queue or replication-exchange-name",
    DELETES_SLOW: "for queues with qpid.slow_consumer_policy delete",
    DIRECT: "for bindings of queues to a direct exchange",
    _HEADERS: "for bindings to a headers exchange",
    _XML: "for bindings to an XML exchange",
}


def lacking(of: Of, arguments: TypedMap, where: Collection[str] = (), protocol: str = "") -> list[Lacking]:
    """The arguments without the requested effect, in order.

    Args:
        of: the kind of object that has them.
        arguments: the arguments.
        where: the conditions that it fulfils: see `Row.where`.
        protocol: the protocol of the declaration; without one, arguments of single protocols are omitted.
    """
    found = []
    for name, typed in arguments.entries:
        rows = rows_of(of, name)
        if of is Of.BINDING and _HEADERS in where and not name.startswith(_NO_HEADER):
            rows = tuple(row for row in rows if row.effect is not Effect.EFFECT)  # all others are headers
        elif not rows:
            found.append(Lacking(name, None, None))
        value = as_text(typed.value)
        asking = [row for row in rows if row.protocol in ("", protocol) and row.asks(value)]
        asking.sort(key=lambda row: row.effect.value, reverse=True)  # REFUSED comes first
        if asking and asking[0].effect is not Effect.EFFECT:
            found.append(Lacking(name, value, asking[0]))
        elif asking and asking[0].where and asking[0].where not in where:
            found.append(Lacking(name, value, asking[0], asking[0].where))
    return found


_NO_HEADER: Final = "x-"


class IdleArgument(NamedTuple):
    """An argument that has no effect beside the others (`queues/idle_arguments`): its name, its value, and why."""

    name: str
    value: object
    says: str

    def __str__(self) -> str:
        return f"{shown(self.name)[1:-1]} {shown(self.value)} has no effect: {self.says}"


class ArgumentCheck:
    """Refuses arguments that request missing features, and logs ignored ones; each broker has one."""

    def __init__(self) -> None:
        self._reported: set[tuple[object, str]] = set()  # already logged as notices

    def check(self, of: Of, what: str, arguments: TypedMap, where: Collection[str] = (), protocol: str = "") -> None:
        """Check the arguments of a declaration; each ignored one is logged as a notice the first time.

        Args:
            of: the kind of object.
            what: the object, for errors and log lines.
            arguments: its arguments.
            where: as for `lacking`.
            protocol: as for `lacking`.

        Raises:
            NotImplementedByBrokerError: one requests a missing feature.
        """
        if not arguments.entries:
            return
        found = lacking(of, arguments, where, protocol)
        for each in found:
            if each.is_refused:
                raise NotImplementedByBrokerError(f"{what}: {each}")
        for each in found[:_MAX_LINES]:
            key = each.name if each.row is None else each.row.key
            level = self._level((of, key), is_bounded=each.row is None)
            _LOG.log(level, "%s%s: %s", what[0].upper(), what[1:], each)
        if len(found) > _MAX_LINES:
            _LOG.info("%s%s: %d more arguments are ignored", what[0].upper(), what[1:], len(found) - _MAX_LINES)

    def idle(self, what: str, found: Sequence[IdleArgument]) -> None:
        """Log arguments that have no effect beside the others; each name as a notice the first time.

        Args:
            what: the object.
            found: the arguments.
        """
        for each in found[:_MAX_LINES]:
            level = self._level(("idle", each.name), is_bounded=True)
            _LOG.log(level, "%s%s: %s", what[0].upper(), what[1:], each)

    def kept(self, what: str, current: Mapping[str, object], declared: Mapping[str, object]) -> None:
        """Log properties that an existing object keeps although it is declared otherwise; as notices the first time.

        Args:
            what: the object.
            current: its properties and arguments.
            declared: those of the declaration.
        """
        unequal = [name for name, wanted in declared.items() if current.get(name) != wanted]
        for name in unequal[:_MAX_LINES]:
            found, wanted = current.get(name), declared[name]
            difference = f"{shown(name)[1:-1]} remains {_or_none(found)} and does not become {_or_none(wanted)}"
            level = self._level((what, name), is_bounded=True)
            _LOG.log(level, "%s%s exists already: %s", what[0].upper(), what[1:], difference)

    def field_ignored(self, what: str, field: str, value: object, why: str) -> None:
        """Log that a field of a command is ignored; each value as a notice the first time."""
        level = self._level((field, shown(value)), is_bounded=True)
        _LOG.log(level, "%s: %s %s is ignored: %s", what, field, shown(value), why)

    def _level(self, key: tuple[object, str], *, is_bounded: bool) -> int:
        if key in self._reported or (is_bounded and len(self._reported) >= _MAX_REPORTED):
            return INFO
        self._reported.add(key)
        return NOTICE


def _or_none(value: object) -> str:
    return "unset" if value is None else shown(value)
