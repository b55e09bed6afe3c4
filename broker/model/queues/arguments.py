"""The arguments of a queue's declaration, parsed once.

    no-local                  the queue drops messages from its owner's connection; any value sets it
    qpid.filter               the queue drops messages that this selector does not match (`selectors`)
    qpid.trace.id             the queue adds this name to the header x-qpid.trace of each message (`limits`)
    qpid.trace.exclude, qpid.trace.excludes
                              the queue drops messages with one of these names in that header; a list with commas
    qpid.auto_delete_timeout  seconds that an unused auto-delete queue is kept
    qpid.lifetime-policy      overrides the declared auto-delete: manual is no, delete-if-unused is yes, and with
                              delete-if-unused-and-empty an unused queue is kept as long as it has messages
    qpid.browse-only          1: all consumers are browsers
    qpid.max_count            limit of messages on the queue; 0 for no limit
    qpid.max_size             limit of bytes of headers and content; 0 for no limit. Default: the broker's limit
    qpid.policy_type          what happens at these two limits: reject (the default), ring, ring_strict, self-destruct,
                              flow_to_disk
    qpid.paging               1: few messages are in memory, the others in a paging file; not for last value queues,
                              priorities and groups
    qpid.max_pages_loaded     how many pages of it are in memory (4); needs qpid.paging
    qpid.page_factor          the size of a page in units of 4,096 bytes (1); likewise
    qpid.compress             zstd: messages are compressed on disk; none: they are not
    qpid.deliver_before_sync  1: a stored message is delivered while its record is written; its publisher gets the
                              confirm after the sync. 0: both after the sync. By default the broker's option applies
    qpid.last_value_queue_key        a last value queue, by the header of that name (`last_value`)
    qpid.last_value_queue            likewise, by the header qpid.LVQ_key; deprecated. Any value sets it
    qpid.last_value_queue_no_browse  likewise
    qpid.queue_msg_sequence          header in which consumers find a message's number on the queue, from 1
    qpid.insert_sequence_numbers, qpid.msg_sequence     likewise, the header qpid.msg_sequence; 1 for yes
    qpid.priorities           number of priority levels, 0 and 1 for none (`priority`); more than 10 count as 10
    qpid.fairshare            messages of one level before lower levels get their turn; 0 for no limit (`priority`)
    qpid.fairshare-N          likewise for level N only, counted from 0, the lowest
    x-qpid-priorities, x-qpid-fairshare, x-qpid-fairshare-N
                              other names for these
    qpid.group_header_key            message groups, by the header of that name (`groups`); only together with
    qpid.shared_msg_group            1: each group may go to any consumer, to one at a time
    qpid.flow_stop_count, qpid.flow_stop_size, qpid.flow_resume_count, qpid.flow_resume_size
                              the thresholds of flow control, in messages and bytes (`flow_control`)
    x-qpid-capacity, x-qpid-flow-resume-capacity          other names for qpid.flow_stop_size and qpid.flow_resume_size
    qpid.alert_count, qpid.alert_size, qpid.alert_count_down, qpid.alert_size_down, qpid.alert_repeat_gap
                              the thresholds of alerts, and the seconds between two of them (`flow_control`)
    qpid.alert_count_up, x-qpid-maximum-message-count     other names for qpid.alert_count
    qpid.alert_size_up, x-qpid-maximum-message-size       other names for qpid.alert_size
    x-qpid-minimum-alert-repeat-gap                       another name for qpid.alert_repeat_gap
    qpid.max_consumers        the most consumers that the queue may have; 0 for no limit
    qpid.alert_message_size, qpid.alert_message_age, qpid.slow_consumer_...     see `patrol`

Those of RabbitMQ's classic queues are mapped to these:

    x-max-length         qpid.max_count
    x-max-length-bytes   qpid.max_size
    x-overflow           what happens at these: drop-head, the default, is qpid.policy_type ring; reject-publish is
                         reject, but without flow control, and only publishers with confirms get an answer;
                         reject-publish-dlx likewise, and the message goes to the dead-letter exchange
    x-message-ttl        milliseconds that a message may be on the queue
    x-dead-letter-exchange, x-dead-letter-routing-key
                         where messages go that are rejected, expire or are displaced (`broker.model.dead_letters`)
    x-dead-letter-strategy
                         at-most-once; or at-least-once, for quorum queues with a dead-letter exchange and x-overflow
                         reject-publish: a dead message stays until another queue has it
    x-expires            milliseconds after which an unused queue is deleted: no consumers, not declared again, no
                         basic.get
    x-max-priority       qpid.priorities, but the priorities from 0 to this number, at most 255, are the levels, and
                         higher ones count as this; 0 for no priorities
    x-queue-type         classic; quorum: a durable queue that counts how often a message returns, without replicas; or
                         stream: messages stay when they are consumed (`stream`)
    x-delivery-limit     how often it may; then it is dead-lettered, or dropped. -1: without limit; 20 by default. Only
                         for quorum queues
    x-single-active-consumer  true: one consumer at a time gets messages (`consumers`)

Of streams only, where x-max-length-bytes is what they keep:

    x-max-age            how long they keep messages: a number with a unit, Y, M, D, h, m or s
    x-stream-max-segment-size-bytes   the largest segment; messages are dropped by segments
    x-stream-keep-unread how long they keep messages for the name of a consumer that is not there: likewise

A length limit cannot be given by both of its names. Of other names of one feature the first one counts, and the log
says so, as of every argument that has no effect beside the others (`idle_arguments`).

A count is a non-negative whole number, or a string of digits; strings may arrive as bytes. The table in
`model/arguments` has all arguments, including those refused or ignored, and the maximum of each count. The queue keeps
all its arguments as received.

Sources: Qpid C++ Broker Book, 1.2.1; MRG 2 Messaging User Guide, 3; Qpid wiki, "Qpid extensions to AMQP"; qpidd,
QueueSettings.cpp (fair share requires levels; a last value queue has none); RabbitMQ, "Queue Length
Limit", "Time-To-Live and Expiration", "Dead Letter Exchanges", "Priority Queue Support" and "Consumers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from qstore.broker.model.arguments import COUNTS, LIFETIMES, NO_LOCAL, QUEUE_TYPE, as_text, is_set, plain, shown
from qstore.broker.model.arguments import SEQUENCE as OLD_SEQUENCE
from qstore.broker.model.errors import InvalidArgumentError, PreconditionFailedError
from qstore.broker.model.queues.flow_control import REPEAT_GAP, AlertArguments, FlowArguments
from qstore.broker.model.queues.patrol import SLOW_POLICIES, PatrolArguments
from qstore.broker.model.queues.priority import MAX_LEVELS
from qstore.broker.model.selectors.selector import Selector, read_selector
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.page_file import PAGE_UNIT
from qstore.formats.values import STR16, UINT64, TypedMap, TypedValue

MAX_COUNT: Final = "qpid.max_count"
MAX_SIZE: Final = "qpid.max_size"
POLICY_TYPE: Final = "qpid.policy_type"
FILTER: Final = "qpid.filter"
AUTO_DELETE_TIMEOUT: Final = "qpid.auto_delete_timeout"
LIFETIME: Final = "qpid.lifetime-policy"
BROWSE_ONLY: Final = "qpid.browse-only"
UNTIL_EMPTY: Final = "delete-if-unused-and-empty"

REJECT: Final = "reject"
FLOW_TO_DISK: Final = "flow_to_disk"
RING: Final = "ring"
RING_STRICT: Final = "ring_strict"
SELF_DESTRUCT: Final = "self-destruct"
POLICIES: Final = (REJECT, FLOW_TO_DISK, RING, RING_STRICT, SELF_DESTRUCT)
_SPELLINGS: Final = {"ring-strict": RING_STRICT, "flow-to-disk": FLOW_TO_DISK}  # as qpid-config spells them
LAST_VALUE_KEY: Final = "qpid.last_value_queue_key"
LAST_VALUE: Final = "qpid.last_value_queue"
LAST_VALUE_NO_BROWSE: Final = "qpid.last_value_queue_no_browse"
SEQUENCE: Final = "qpid.queue_msg_sequence"
INSERT_SEQUENCE: Final = "qpid.insert_sequence_numbers"
GROUP_HEADER: Final = "qpid.group_header_key"
SHARED_GROUPS: Final = "qpid.shared_msg_group"
GROUP_TIMESTAMP: Final = "qpid.group_timestamp"
EVENT_GENERATION: Final = "qpid.queue_event_generation"
PAGING: Final = "qpid.paging"
MAX_PAGES: Final = "qpid.max_pages_loaded"
PAGE_FACTOR: Final = "qpid.page_factor"
COMPRESS: Final = "qpid.compress"
DELIVER_BEFORE_SYNC: Final = "qpid.deliver_before_sync"
DEFAULT_PAGES: Final = 4
_COMPRESS_WORDS: Final = {"none": False, "zstd": True}
OLD_KEY: Final = "qpid.LVQ_key"
"""The header with the key of the deprecated last value queues."""

PRIORITIES: Final = ("qpid.priorities", "x-qpid-priorities")
FAIR_SHARE: Final = ("qpid.fairshare", "x-qpid-fairshare")

_MAX_DIGITS: Final = 20  # of 2^64
_MAX_HEADER_NAME: Final = 255  # bytes

ALERT_AGE: Final = ("qpid.alert_message_age", "x-qpid-maximum-message-age")
MAX_CONSUMERS: Final = "qpid.max_consumers"
SLOW_POLICY: Final = "qpid.slow_consumer_policy"
SLOW_THRESHOLDS: Final = ("qpid.slow_consumer_count", "qpid.slow_consumer_size", "qpid.slow_consumer_age")
DELETES_DURABLE: Final = "qpid.slow_consumer_delete_durable"
FLOW_STOP_SIZE: Final = ("qpid.flow_stop_size", "x-qpid-capacity")
FLOW_RESUME_SIZE: Final = ("qpid.flow_resume_size", "x-qpid-flow-resume-capacity")
ALERT_COUNT: Final = ("qpid.alert_count", "qpid.alert_count_up", "x-qpid-maximum-message-count")
ALERT_SIZE: Final = ("qpid.alert_size", "qpid.alert_size_up", "x-qpid-maximum-message-size")
ALERT_GAP: Final = ("qpid.alert_repeat_gap", "x-qpid-minimum-alert-repeat-gap")

MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
OVERFLOW: Final = "x-overflow"
HIGHEST_PRIORITY: Final = "x-max-priority"
SINGLE_ACTIVE: Final = "x-single-active-consumer"
LENGTHS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
REJECT_PUBLISH: Final = "reject-publish"
REJECT_DEAD: Final = "reject-publish-dlx"
_POLICIES: Final = {"drop-head": "ring", REJECT_PUBLISH: "reject", REJECT_DEAD: "reject"}
_STOPS: Final = ("qpid.flow_stop_count", "qpid.flow_stop_size")

DEAD_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_KEY: Final = "x-dead-letter-routing-key"
DEAD_STRATEGY: Final = "x-dead-letter-strategy"
AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"

DELIVERY_LIMIT: Final = "x-delivery-limit"

MAX_AGE: Final = "x-max-age"
SEGMENT_BYTES: Final = "x-stream-max-segment-size-bytes"
KEEP_UNREAD: Final = "x-stream-keep-unread"
OF_STREAMS: Final = (MAX_AGE, SEGMENT_BYTES, KEEP_UNREAD)
MAX_SEGMENT_BYTES: Final = 3_000_000_000
"""The largest value of x-stream-max-segment-size-bytes, as in RabbitMQ."""

_UNITS: Final = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}
_interval: Final = re.compile(r"(\d{1,10})([YMDhms])", re.ASCII).fullmatch

NAMES: Final = frozenset(
    (
        DELIVERY_LIMIT, MESSAGE_TTL, EXPIRES, OVERFLOW, HIGHEST_PRIORITY, SINGLE_ACTIVE, DEAD_EXCHANGE, DEAD_KEY,
        DEAD_STRATEGY, *LENGTHS,
    )
)  # fmt: skip
"""The arguments of RabbitMQ's classic queues."""

_MAX_TRACE: Final = 4096  # characters
TRACE_ID: Final = "qpid.trace.id"
TRACE_EXCLUDES: Final = ("qpid.trace.exclude", "qpid.trace.excludes")

_MAX_NAME: Final = 255  # bytes


class DeadLetterArguments(NamedTuple):
    """Where dead messages go.

    Attributes:
        exchange: name of the exchange; empty for the default exchange.
        routing_key: their new key; None to keep their own.
        is_at_least_once: whether each of them stays on its queue until another one has it.
    """

    exchange: str
    routing_key: str | None = None
    is_at_least_once: bool = False


class QueueArguments(NamedTuple):
    """The parsed arguments.

    Attributes:
        max_messages: limit of messages; 0 for no limit.
        max_bytes: limit of bytes of headers and content, 0 for no limit; None if not given.
        policy: what happens at these limits.
        no_local: whether the queue drops messages from its owner's connection.
        auto_delete_seconds: how long an unused auto-delete queue is kept.
        last_value_key: the header by whose value a message displaces another; empty for none.
        keeps_browsed: whether messages that were browsed are not displaced.
        sequence_header: the header with a message's number on the queue; empty for none.
        group_header: the header with the name of a message's group; empty for no groups.
        filter: selects the messages that the queue accepts; None for all.
        flow: the thresholds of flow control.
        alerts: the thresholds of alerts.
        auto_delete: overrides the declaration's auto-delete; None not to.
        is_kept_until_empty: whether an unused auto-delete queue is kept as long as it has messages.
        is_browse_only: whether all consumers are browsers.
        levels: number of priority levels, at most 10, or 256 if `is_capped`; below 2 for none.
        fair_share: for each level, from the lowest, the messages of one turn, 0 for no limit; empty without limits.
        event_generation: events sent for messages: 0 none, 1 when enqueued, 2 when enqueued and dequeued.
        pages: pages of its paging file that are in memory; 0 if it is not a paged queue.
        page_bytes: bytes of a page.
        compresses: whether messages are compressed on disk.
        message_ttl: milliseconds that a message may be on the queue; None for no limit.
        expires: milliseconds after which an unused queue is deleted; 0 for never.
        is_capped: whether each priority is a level, and those above count as the highest.
        dead_letter: where its dead messages go; None if they are dropped.
        is_single_active: whether one consumer at a time gets messages.
        overflow: the value of x-overflow; empty if it is not given.
        delivery_limit: how often a message of a quorum queue may return; None if not given, -1 for no limit.
        is_quorum: whether it is declared as a quorum queue.
        trace_id: the name that is added to the trace of messages; empty for none.
        trace_excludes: names in the trace with which messages are dropped.
        is_early: whether a stored message is delivered before its record is on the disk; None if not given.
        keeps_place: whether a message of a last value queue takes the place of the one that it displaces.
        max_consumers: the most consumers that it may have; 0 for no limit.
        patrol: what is watched by the time.
        is_stream: whether it is declared as a stream.
        max_age: seconds that a stream keeps messages; 0 for no limit.
        segment_bytes: bytes of its largest segment; 0 if not given.
        keep_unread: seconds that it keeps messages for a name that no consumer has; 0 for none.
    """

    max_messages: int = 0
    max_bytes: int | None = None
    policy: str = REJECT
    no_local: bool = False
    auto_delete_seconds: int = 0
    last_value_key: str = ""
    keeps_browsed: bool = False
    sequence_header: str = ""
    group_header: str = ""
    filter: Selector | None = None
    flow: FlowArguments = FlowArguments()
    alerts: AlertArguments = AlertArguments()
    auto_delete: bool | None = None
    is_kept_until_empty: bool = False
    is_browse_only: bool = False
    levels: int = 0
    fair_share: tuple[int, ...] = ()
    event_generation: int = 0
    pages: int = 0
    page_bytes: int = PAGE_UNIT
    compresses: bool = False
    message_ttl: int | None = None
    expires: int = 0
    is_capped: bool = False
    dead_letter: DeadLetterArguments | None = None
    is_single_active: bool = False
    overflow: str = ""
    is_early: bool | None = None
    delivery_limit: int | None = None
    is_quorum: bool = False
    trace_id: str = ""
    trace_excludes: frozenset[str] = frozenset()
    is_stream: bool = False
    max_age: float = 0.0
    segment_bytes: int = 0
    keep_unread: float = 0.0
    keeps_place: bool = False
    max_consumers: int = 0
    patrol: PatrolArguments = PatrolArguments()

    @property
    def keeps_dead(self) -> bool:
        """Whether each dead message stays on the queue until another one has it."""
        is_wanted = self.dead_letter is not None and self.dead_letter.is_at_least_once
        return is_wanted and self.is_quorum and self.overflow == REJECT_PUBLISH


#: No arguments given.
NO_ARGUMENTS: Final = QueueArguments()


def policy_named(value: object) -> object:
    """The policy that a value of qpid.policy_type names; the value itself if it names none."""
    return _SPELLINGS.get(value, value) if isinstance(value, str) else value


def read_arguments(arguments: TypedMap) -> QueueArguments:
    """Parse the arguments of a declaration.

    Raises:
        InvalidArgumentError: one is not valid.
    """
    classic = {name: as_text(typed.value) for name, typed in arguments.entries if name in NAMES}
    dead_letter = dead_letter_arguments(arguments)
    if POLICY_TYPE in arguments and is_stream(arguments):
        raise InvalidArgumentError(f"{POLICY_TYPE} is for other queues: a stream drops its oldest messages")
    arguments = mapped(arguments)
    given = plain(arguments)
    sent = {own: name for name, own in LENGTHS.items() if name in classic}  # errors say the name that the client sent
    counts = {
        name: _count(sent.get(name, name), given[name], maximum) for name, maximum in COUNTS.items() if name in given
    }
    policy = policy_named(given.get(POLICY_TYPE, REJECT))
    if policy not in POLICIES:
        raise InvalidArgumentError(f"{POLICY_TYPE} is {shown(policy)}, not one of {', '.join(POLICIES)}")
    levels = _levels(given, counts, classic)
    last_value_key, keeps_browsed = _last_value(given)
    group_header = _group_header(given)
    if levels > 1 and last_value_key:
        raise InvalidArgumentError(f"a last value queue has no priorities, but it has {levels} levels of them")
    if group_header and last_value_key:
        raise InvalidArgumentError(f"a last value queue has no message groups, but {GROUP_HEADER} is {group_header}")
    if group_header and levels > 1:
        raise InvalidArgumentError(f"a priority queue has no message groups, but {GROUP_HEADER} is {group_header}")
    _check_paging(given | classic, counts, levels, last_value_key, group_header)
    return QueueArguments(
        counts.get(MAX_COUNT, 0),
        counts.get(MAX_SIZE),
        policy,
        NO_LOCAL in given,
        counts.get(AUTO_DELETE_TIMEOUT, 0),
        last_value_key,
        keeps_browsed,
        _name_of_header(SEQUENCE, given) or (OLD_SEQUENCE if _numbers(given) else ""),
        group_header,
        read_selector(arguments, FILTER),
        FlowArguments(
            counts.get("qpid.flow_stop_count"),
            counts.get("qpid.flow_resume_count"),
            _first(counts, FLOW_STOP_SIZE),
            _first(counts, FLOW_RESUME_SIZE),
            (_given_name(counts, FLOW_STOP_SIZE), _given_name(counts, FLOW_RESUME_SIZE)),
        ),
        AlertArguments(
            _first(counts, ALERT_COUNT),
            _first(counts, ALERT_SIZE),
            counts.get("qpid.alert_count_down"),
            counts.get("qpid.alert_size_down"),
            _gap(counts),
        ),
        LIFETIMES.get(str(given.get(LIFETIME))),
        given.get(LIFETIME) == UNTIL_EMPTY,
        is_set(given.get(BROWSE_ONLY)),
        levels if HIGHEST_PRIORITY in classic else min(levels, MAX_LEVELS),
        _fair_share(given, levels, _first(counts, FAIR_SHARE) or 0),
        counts.get(EVENT_GENERATION, 0),
        (counts.get(MAX_PAGES) or DEFAULT_PAGES) if is_set(given.get(PAGING)) else 0,
        (counts.get(PAGE_FACTOR) or 1) * PAGE_UNIT,
        _compresses(given),
        _count(MESSAGE_TTL, classic[MESSAGE_TTL], COUNTS[MESSAGE_TTL]) if MESSAGE_TTL in classic else None,
        _expires(classic),
        HIGHEST_PRIORITY in classic,
        dead_letter,
        _is_single_active(classic.get(SINGLE_ACTIVE, False)),
        str(classic.get(OVERFLOW, "")),
        is_set(given[DELIVER_BEFORE_SYNC]) if DELIVER_BEFORE_SYNC in given else None,
        _delivery_limit(classic),
        is_quorum(arguments),
        _trace_id(given),
        _trace_excludes(given),
        given.get(QUEUE_TYPE) == "stream",
        read_interval(MAX_AGE, given[MAX_AGE]) if MAX_AGE in given else 0.0,
        _count(SEGMENT_BYTES, given[SEGMENT_BYTES], MAX_SEGMENT_BYTES) if SEGMENT_BYTES in given else 0,
        read_interval(KEEP_UNREAD, given[KEEP_UNREAD]) if KEEP_UNREAD in given else 0.0,
        last_value_key == OLD_KEY and not _name_of_header(LAST_VALUE_KEY, given),
        counts.get(MAX_CONSUMERS, 0),
        _patrol(given, counts),
    )


def _patrol(given: Mapping[str, object], counts: Mapping[str, int]) -> PatrolArguments:
    """What is watched by the time."""
    policy = given.get(SLOW_POLICY, "")
    if policy != "" and policy not in SLOW_POLICIES:
        raise InvalidArgumentError(f"{SLOW_POLICY} is {shown(policy)}, not one of {', '.join(SLOW_POLICIES)}")
    thresholds = [counts.get(name, 0) for name in SLOW_THRESHOLDS]
    if policy and not any(thresholds):
        raise InvalidArgumentError(f"{SLOW_POLICY} is given without one of {', '.join(SLOW_THRESHOLDS)}")
    if not policy and any(thresholds):
        raise InvalidArgumentError(f"{', '.join(SLOW_THRESHOLDS)} are given without {SLOW_POLICY}")
    age = _first(counts, ALERT_AGE) or 0
    return PatrolArguments(
        counts.get("qpid.alert_message_size", 0),
        age / 1000,
        str(policy),
        thresholds[0],
        thresholds[1],
        thresholds[2] / 1000,
        is_set(given.get(DELETES_DURABLE)),
        _gap(counts),
    )


def read_interval(name: str, value: object) -> float:
    """The seconds of an interval such as "5m": a number with one of the units Y, M, D, h, m, s.

    A year has 365 days and a month 30, as in RabbitMQ.

    Raises:
        InvalidArgumentError: it is none.
    """
    match = _interval(value) if isinstance(value, str) else None
    if match is None:
        text = f'{name} is {shown(value)}, not a number with a unit, Y, M, D, h, m or s, as in "5m"'
        raise InvalidArgumentError(text)
    return float(int(match[1]) * _UNITS[match[2]])


def _trace_id(given: Mapping[str, object]) -> str:
    name = _text_of(TRACE_ID, given)
    if "," in name or " " in name:
        raise InvalidArgumentError(f"{TRACE_ID} is {shown(name)}, not a name without commas and spaces")
    return name


def _trace_excludes(given: Mapping[str, object]) -> frozenset[str]:
    lists = (_text_of(argument, given) for argument in TRACE_EXCLUDES)
    return frozenset(name for each in lists for name in each.replace(",", " ").split())


def _text_of(argument: str, given: Mapping[str, object]) -> str:
    text = given.get(argument, "")
    if not isinstance(text, str) or len(text) > _MAX_TRACE:
        raise InvalidArgumentError(f"{argument} is {shown(text)}, not a text of at most {_MAX_TRACE} characters")
    return text


def read_usable(arguments: TypedMap) -> tuple[QueueArguments, list[str]]:
    """Parse the arguments of an existing queue, leaving out invalid ones.

    An argument is left out if the others are valid without it, or at least have another error; if no single argument
    is to blame, all are left out.

    Returns:
        The arguments, and for each one left out a line that says why.
    """
    entries = arguments.entries
    if not entries:
        return NO_ARGUMENTS, []
    reasons: list[str] = []
    while True:
        try:
            return read_arguments(TypedMap(entries)), reasons
        except InvalidArgumentError as error:
            wrong = str(error)
        rests = [(*entries[:place], *entries[place + 1 :]) for place in range(len(entries))]
        errors = [_error(rest) for rest in rests]
        blamed = [place for place, error in enumerate(errors) if error is None]
        blamed = blamed or [place for place, error in enumerate(errors) if error != wrong]
        if not blamed:
            return NO_ARGUMENTS, [*reasons, f"ignoring all its arguments: {wrong}"]
        name, typed = entries[blamed[0]]
        reasons.append(f"ignoring {name} {shown(as_text(typed.value))}: {wrong}")
        entries = rests[blamed[0]]


def _error(entries: tuple[tuple[str, TypedValue], ...]) -> str | None:
    """Why arguments are not valid; None if they are."""
    try:
        read_arguments(TypedMap(entries))
    except InvalidArgumentError as error:
        return str(error)
    return None


def check_type(
    name: str,
    parsed: QueueArguments,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    is_server_named: bool,
    has_alternate: bool = False,
) -> None:
    """Check that a queue's type goes with the rest of its declaration, as in RabbitMQ.

    Raises:
        PreconditionFailedError: it does not.
    """
    if parsed.is_stream:
        wrong = {
            "exclusive": exclusive,
            "non-durable": not durable,
            "auto-delete": auto_delete or parsed.auto_delete is True,
            "server-named": is_server_named,
            "with an alternate exchange": has_alternate,
            **_not_for_streams(parsed),
        }
        for what, is_so in wrong.items():
            if is_so:
                raise PreconditionFailedError(f"invalid property for queue '{name}': a stream cannot be {what}")
        return
    if parsed.max_age or parsed.segment_bytes or parsed.keep_unread:
        text = f"invalid arg for queue '{name}': only {QUEUE_TYPE} 'stream' has {', '.join(OF_STREAMS)}"
        raise PreconditionFailedError(text)
    if not parsed.is_quorum and parsed.delivery_limit is not None:
        text = f"invalid arg '{DELIVERY_LIMIT}' for queue '{name}': only {QUEUE_TYPE} 'quorum' counts deliveries"
        raise PreconditionFailedError(text)
    if parsed.dead_letter is not None and parsed.dead_letter.is_at_least_once and not parsed.keeps_dead:
        needed = f"{QUEUE_TYPE} 'quorum' and {OVERFLOW} '{REJECT_PUBLISH}'"
        raise PreconditionFailedError(f"{DEAD_STRATEGY} '{AT_LEAST_ONCE}' for queue '{name}' needs {needed}")
    if not parsed.is_quorum:
        return
    wrong = {
        "exclusive": exclusive,
        "non-durable": not durable,
        "auto-delete": auto_delete,
        "server-named": is_server_named,
        f"with priorities ({HIGHEST_PRIORITY})": parsed.levels > 1,
        "a last value queue": bool(parsed.last_value_key),
        "with message groups": bool(parsed.group_header),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise PreconditionFailedError(f"invalid property for queue '{name}': a quorum queue cannot be {what}")


def _not_for_streams(parsed: QueueArguments) -> dict[str, bool]:
    """What other queues can be, and whether the arguments ask for it."""
    return {
        f"with a TTL for messages ({MESSAGE_TTL})": parsed.message_ttl is not None,
        f"one that expires ({EXPIRES})": parsed.expires > 0,
        f"with a dead-letter exchange ({DEAD_EXCHANGE})": parsed.dead_letter is not None,
        f"with priorities ({HIGHEST_PRIORITY})": parsed.levels > 1,
        "limited by a number of messages (x-max-length)": parsed.max_messages > 0,
        f"with another policy at its limit ({OVERFLOW})": bool(parsed.overflow),
        f"with a limit of deliveries ({DELIVERY_LIMIT})": parsed.delivery_limit is not None,
        "a last value queue": bool(parsed.last_value_key),
        "with message groups": bool(parsed.group_header),
        f"paged ({PAGING})": parsed.pages > 0,
        f"with a selector ({FILTER})": parsed.filter is not None,
        f"without local messages ({NO_LOCAL})": parsed.no_local,
        f"browse-only ({BROWSE_ONLY})": parsed.is_browse_only,
        "with numbered messages": bool(parsed.sequence_header),
        f"limited by a number of consumers ({MAX_CONSUMERS})": parsed.max_consumers > 0,
        f"with a policy for slow consumers ({SLOW_POLICY})": bool(parsed.patrol.slow_policy),
        "with alerts for messages": parsed.patrol.message_size > 0 or parsed.patrol.message_age > 0,
        f"with events of its messages ({EVENT_GENERATION})": parsed.event_generation > 0,
        f"traced ({TRACE_ID})": bool(parsed.trace_id or parsed.trace_excludes),
        "watched for slow consumers, or large or old messages": (
            parsed.patrol.needs_time or parsed.patrol.message_size > 0
        ),
        "with flow control": any((parsed.flow.stop_count, parsed.flow.stop_size)),
    }


def is_interval(name: str, value: object) -> bool:
    """Whether a value of this argument is an interval."""
    try:
        read_interval(name, value)
    except InvalidArgumentError:
        return False
    return True


def is_quorum(arguments: TypedMap) -> bool:
    """Whether they declare a quorum queue."""
    typed = arguments.get(QUEUE_TYPE)
    return typed is not None and as_text(typed.value) == "quorum"


def is_stream(arguments: TypedMap) -> bool:
    """Whether they declare a stream."""
    typed = arguments.get(QUEUE_TYPE)
    return typed is not None and as_text(typed.value) == "stream"


def mapped(arguments: TypedMap) -> TypedMap:
    """The arguments of a queue, with the length limits under the broker's own names.

    Raises:
        InvalidArgumentError: one is given twice, or x-overflow is not valid.
    """
    given = {name: typed for name, typed in arguments.entries if name in NAMES}
    if not given:
        return arguments
    entries = [entry for entry in arguments.entries if entry[0] not in NAMES]
    names = {name for name, _ in entries}
    lengths = [(own, name, given[name]) for name, own in LENGTHS.items() if name in given]
    for own, name, typed in lengths:
        if own in names:
            raise InvalidArgumentError(f"{name} and {own} cannot be given for the same queue")
        text = str(as_text(typed.value))  # a count may be a string; "0" would mean no limit
        if text and not text.strip("0"):
            raise InvalidArgumentError(f"{name} 0 is not supported; to keep no messages set {MESSAGE_TTL} to 0")
        entries.append((own, typed))
    policy = as_text(given[OVERFLOW].value) if OVERFLOW in given else "drop-head"
    if policy not in _POLICIES:
        raise InvalidArgumentError(f"{OVERFLOW} is {shown(policy)}, not one of {', '.join(_POLICIES)}")
    if lengths or OVERFLOW in given:
        if POLICY_TYPE in names:
            raise InvalidArgumentError(f"{OVERFLOW} and {POLICY_TYPE} cannot be given for the same queue")
        entries.append((POLICY_TYPE, TypedValue(STR16, _POLICIES[str(policy)])))
    if policy in (REJECT_PUBLISH, REJECT_DEAD):
        entries += [(name, TypedValue(UINT64, 0)) for name in _STOPS if name not in names]
    return TypedMap(tuple(entries))


def dead_letter_arguments(arguments: TypedMap) -> DeadLetterArguments | None:
    """Where the dead messages of a queue go; None if they are dropped.

    Raises:
        InvalidArgumentError: one of them is not a name, the strategy is unknown, or there is no exchange for them.
    """
    exchange, key, strategy = (_name(arguments, each) for each in (DEAD_EXCHANGE, DEAD_KEY, DEAD_STRATEGY))
    if strategy not in (None, AT_MOST_ONCE, AT_LEAST_ONCE):
        raise InvalidArgumentError(f"{DEAD_STRATEGY} is {shown(strategy)}, not {AT_MOST_ONCE} or {AT_LEAST_ONCE}")
    if exchange is not None:
        return DeadLetterArguments(exchange, key, strategy == AT_LEAST_ONCE)
    for argument, is_given in ((DEAD_KEY, key is not None), (DEAD_STRATEGY, strategy == AT_LEAST_ONCE)):
        if is_given:
            raise InvalidArgumentError(f"{argument} is given without {DEAD_EXCHANGE}")
    return None


def _name(arguments: TypedMap, argument: str) -> str | None:
    typed = arguments.get(argument)
    if typed is None:
        return None
    value = as_text(typed.value)
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogateescape")) > _MAX_NAME:
        raise InvalidArgumentError(f"{argument} is {shown(value)}, not a name of at most {_MAX_NAME} bytes")
    return value


def _levels(given: Mapping[str, object], counts: Mapping[str, int], classic: Mapping[str, object]) -> int:
    """The number of priority levels."""
    if HIGHEST_PRIORITY not in classic:
        return _first(counts, PRIORITIES) or 0
    for name in given:
        if name.startswith((*PRIORITIES, *FAIR_SHARE)):
            raise InvalidArgumentError(f"{HIGHEST_PRIORITY} and {name} cannot be given for the same queue")
    return _count(HIGHEST_PRIORITY, classic[HIGHEST_PRIORITY], COUNTS[HIGHEST_PRIORITY]) + 1


def _fair_share(given: Mapping[str, object], levels: int, default: int) -> tuple[int, ...]:
    """The limit of each level; empty if there are none."""
    if default and not levels:
        name = _given_name(given, FAIR_SHARE)
        raise InvalidArgumentError(f"{name} is {default}, but {PRIORITIES[0]} is not given")
    limits = [default] * min(levels, MAX_LEVELS)
    for argument in reversed(FAIR_SHARE):  # the first name wins where both are given
        for name, value in given.items():
            if name.startswith(f"{argument}-"):
                limit = _count(name, value, (1 << 32) - 1)
                level = _count(f"the level of {name}", name[len(argument) + 1 :], (1 << 32) - 1)
                if level >= levels:
                    raise InvalidArgumentError(f"{name} is {limit}, but {_given_name(given, PRIORITIES)} is {levels}")
                if level < MAX_LEVELS:
                    limits[level] = limit
    return tuple(limits) if any(limits) else ()


def _last_value(given: Mapping[str, object]) -> tuple[str, bool]:
    """The header with the key of a last value queue, and whether browsed messages stay."""
    key = _name_of_header(LAST_VALUE_KEY, given)
    if key:
        return key, False
    if LAST_VALUE_NO_BROWSE in given:
        return OLD_KEY, False
    return (OLD_KEY, True) if LAST_VALUE in given else ("", False)


def _group_header(given: Mapping[str, object]) -> str:
    """The header with the name of a message's group; empty without message groups."""
    header = _name_of_header(GROUP_HEADER, given)
    if not header:
        for argument in (SHARED_GROUPS, GROUP_TIMESTAMP):
            if is_set(given.get(argument)):
                raise InvalidArgumentError(f"{argument} is given without {GROUP_HEADER}")
        return ""
    if not is_set(given.get(SHARED_GROUPS)):
        raise InvalidArgumentError(f"{GROUP_HEADER} is given without {SHARED_GROUPS}")
    return header


def _numbers(given: Mapping[str, object]) -> bool:
    return is_set(given.get(INSERT_SEQUENCE)) or is_set(given.get(OLD_SEQUENCE))


def _check_paging(
    given: Mapping[str, object], counts: Mapping[str, int], levels: int, last_value_key: str, group_header: str
) -> None:
    """Refuse combinations that qpidd refuses (QueueSettings.cpp)."""
    if not is_set(given.get(PAGING)):
        for name in (MAX_PAGES, PAGE_FACTOR):
            if counts.get(name):
                raise InvalidArgumentError(f"{name} is {counts[name]}, but {PAGING} is not given")
        return
    priorities = _given_name(given, (*PRIORITIES, HIGHEST_PRIORITY))
    last_value = _given_name(given, (LAST_VALUE_KEY, LAST_VALUE_NO_BROWSE, LAST_VALUE))
    for what, argument in ((levels > 1, priorities), (last_value_key, last_value), (group_header, GROUP_HEADER)):
        if what:
            raise InvalidArgumentError(f"{PAGING} and {argument} cannot be given for the same queue")


def _compresses(given: Mapping[str, object]) -> bool:
    word = given.get(COMPRESS, "none")
    known = _COMPRESS_WORDS.get(word.strip().lower()) if isinstance(word, str) else None
    if known is None:
        raise InvalidArgumentError(f"{COMPRESS} is {shown(word)}, not one of {', '.join(_COMPRESS_WORDS)}")
    return known


def _expires(classic: Mapping[str, object]) -> int:
    if EXPIRES not in classic:
        return 0
    milliseconds = _count(EXPIRES, classic[EXPIRES], COUNTS[EXPIRES])
    if not milliseconds:
        raise InvalidArgumentError(f"{EXPIRES} is 0, not a number of milliseconds from 1")
    return milliseconds


def _delivery_limit(classic: Mapping[str, object]) -> int | None:
    value = classic.get(DELIVERY_LIMIT)
    if value is None:
        return None
    return -1 if value == -1 and not isinstance(value, bool) else _count(DELIVERY_LIMIT, value, (1 << 32) - 1)


def _is_single_active(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{SINGLE_ACTIVE} is {shown(value)}, not true or false")
    return value


def _count(name: str, value: object, maximum: int) -> int:
    count = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS:
        count = int(value)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= maximum:
        raise InvalidArgumentError(f"{name} is {shown(value)}, not a whole number from 0 to {maximum}")
    return count


def _name_of_header(argument: str, given: Mapping[str, object]) -> str:
    name = given.get(argument, "")
    if not isinstance(name, str) or len(name.encode()) > _MAX_HEADER_NAME:
        raise InvalidArgumentError(f"{argument} is {shown(name)}, not the name of a header")
    return name


def _first(counts: Mapping[str, int], names: Sequence[str]) -> int | None:
    """The first of these names that is given."""
    return next((counts[name] for name in names if name in counts), None)


def _gap(counts: Mapping[str, int]) -> int:
    given = _first(counts, ALERT_GAP)
    return REPEAT_GAP if given is None else given


def _given_name(given: Mapping[str, object], names: Sequence[str]) -> str:
    """The effective one of these names; the first if none is given."""
    return next((name for name in names if name in given), names[0])
