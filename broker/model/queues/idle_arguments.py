"""Arguments of queues that have no effect beside the others: they are accepted, and the log says why they are idle.

`model/arguments` has what each argument does by itself. Here is one table (`RULES`) of what others take from it: the
lower threshold of an alert that is never raised, two names of one feature, a threshold above the queue's limit. Such a
declaration is not refused, as clients of other brokers make them; and a policy that comes later may give the queue the
limit that an argument lacks, or take one away. What counts is what applies to the queue when it is declared: its
arguments, its policies and the broker's options.

A value that asks for nothing, such as 0, is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from qstore.broker.model.arguments import AUTO_DELETE, LIFETIMES, IdleArgument, as_text, is_set, plain
from qstore.broker.model.arguments import SEQUENCE as OLD_SEQUENCE
from qstore.broker.model.queues.arguments import (
    ALERT_AGE,
    ALERT_COUNT,
    ALERT_GAP,
    ALERT_SIZE,
    BROWSE_ONLY,
    COMPRESS,
    DELETES_DURABLE,
    DELIVERY_LIMIT,
    FAIR_SHARE,
    FLOW_RESUME_SIZE,
    FLOW_STOP_SIZE,
    GROUP_HEADER,
    INSERT_SEQUENCE,
    KEEP_UNREAD,
    LAST_VALUE,
    LAST_VALUE_KEY,
    LAST_VALUE_NO_BROWSE,
    LIFETIME,
    MAX_PAGES,
    OVERFLOW,
    POLICY_TYPE,
    PRIORITIES,
    REJECT,
    RING,
    RING_STRICT,
    SEGMENT_BYTES,
    SEQUENCE,
    SHARED_GROUPS,
    SINGLE_ACTIVE,
    SLOW_THRESHOLDS,
    QueueArguments,
)
from qstore.broker.model.queues.flow_control import AlertThresholds, FlowThresholds
from qstore.broker.model.queues.limits import Capacity
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap


class Fit(NamedTuple):
    """What applies to a queue that is being declared.

    Attributes:
        parsed: its arguments and policies, together.
        capacity: the most that it holds; without limits none.
        is_limited: whether anything happens at a limit.
        flow, alerts: the thresholds.
        segment_bytes: the largest segment, if it is a stream.
        is_durable: whether it has a journal.
        has_files: whether its messages can leave memory into a file or a journal.
        is_auto_delete: as its declaration says, without its arguments.
        min_bytes, max_bytes: what a queue may have in memory at least, and at most.
    """

    parsed: QueueArguments
    capacity: Capacity
    is_limited: bool
    flow: FlowThresholds
    alerts: AlertThresholds
    segment_bytes: int
    is_durable: bool
    has_files: bool
    is_auto_delete: bool
    min_bytes: int
    max_bytes: int


_Idle: TypeAlias = Callable[[Fit, int], bool]


class Rule(NamedTuple):
    """When arguments are idle.

    Attributes:
        names: the arguments.
        is_idle: whether they have no effect, given the queue and the value, or 0 for a value that is not a number.
        says: why, and what to do.
        asks: whether a value asks for something.
    """

    names: tuple[str, ...]
    is_idle: _Idle
    says: str
    asks: Callable[[object], bool] = is_set


def _any(_value: object) -> bool:
    return True


def _no_reject(value: object) -> bool:
    return value not in ("", REJECT)


def _no_drop(value: object) -> bool:
    return value not in ("", "drop-head")


_ROOM: Final = "the queue has no limit; give {}, or set a policy"
_COUNT_LIMIT, _SIZE_LIMIT = "qpid.max_count or x-max-length", "qpid.max_size or x-max-length-bytes"
_BROWSERS: Final = f"all its consumers browse, because of {BROWSE_ONLY}"
_LEVELS: Final = tuple(f"{each}-*" for each in FAIR_SHARE)
_ABOVE: Final = "the queue never has so much, because of its limit"
_EXPIRED: Final = "no message is so old, because of x-message-ttl"


def _is_above(count: int, limit: int) -> bool:
    return 0 < limit < count


def _is_at(count: int, limit: int) -> bool:
    return 0 < limit <= count


def _has_ring(fit: Fit) -> bool:
    return fit.is_limited and fit.parsed.policy in (RING, RING_STRICT)


def _lives(fit: Fit) -> int:
    """Milliseconds that messages may be on the queue; 0 without limit."""
    return fit.parsed.message_ttl or 0


RULES: Final = (
    # At the limits.
    Rule((POLICY_TYPE,), lambda fit, _: not fit.is_limited, _ROOM.format(f"{_COUNT_LIMIT}, {_SIZE_LIMIT}"), _no_reject),
    Rule((OVERFLOW,), lambda fit, _: not fit.is_limited, _ROOM.format("x-max-length, x-max-length-bytes"), _no_drop),
    # Flow control.
    Rule(
        ("qpid.flow_resume_count",), lambda fit, _: not fit.flow.stop_count,
        f"publishers never wait for a number of messages; give qpid.flow_stop_count, {_COUNT_LIMIT}, or set a policy",
        _any,
    ),
    Rule(
        FLOW_RESUME_SIZE, lambda fit, _: not fit.flow.stop_bytes,
        f"publishers never wait for a size; give {FLOW_STOP_SIZE[0]}, {_SIZE_LIMIT}, or set a policy", _any,
    ),
    Rule(("qpid.flow_stop_count",), lambda fit, value: _is_at(value, fit.capacity.messages), _ABOVE),
    Rule(FLOW_STOP_SIZE, lambda fit, value: _is_at(value, _bytes(fit)), _ABOVE),
    # Alerts.
    Rule(
        ("qpid.alert_count_down",), lambda fit, _: not fit.alerts.count_up,
        f"there is no alert for a number of messages; give {ALERT_COUNT[0]}, {_COUNT_LIMIT}, or set a policy",
    ),
    Rule(
        ("qpid.alert_size_down",), lambda fit, _: not fit.alerts.size_up,
        f"there is no alert for a size; give {ALERT_SIZE[0]}, {_SIZE_LIMIT}, or set a policy",
    ),
    Rule(
        ("qpid.alert_count_down",), lambda fit, value: _is_at(value, fit.alerts.count_up),
        "it is not below the number of messages of the alert, and half of that counts",
    ),
    Rule(
        ("qpid.alert_size_down",), lambda fit, value: _is_at(value, fit.alerts.size_up),
        "it is not below the size of the alert, and half of that counts",
    ),
    Rule(
        ALERT_GAP, lambda fit, _: not _has_alerts(fit),
        f"there is no alert; give {ALERT_COUNT[0]}, {ALERT_SIZE[0]}, a limit, or set a policy", _any,
    ),
    Rule(ALERT_COUNT, lambda fit, value: _is_above(value, fit.capacity.messages), _ABOVE),
    Rule(ALERT_SIZE, lambda fit, value: _is_above(value, _bytes(fit)), _ABOVE),
    Rule(("qpid.alert_message_size",), lambda fit, value: _is_at(value, _bytes(fit)), _ABOVE),
    Rule(ALERT_AGE, lambda fit, value: _is_at(value, _lives(fit)), _EXPIRED),
    # Slow consumers.
    Rule((SLOW_THRESHOLDS[0],), lambda fit, value: _is_at(value, fit.capacity.messages), _ABOVE),
    Rule((SLOW_THRESHOLDS[1],), lambda fit, value: _is_at(value, _bytes(fit)), _ABOVE),
    Rule((SLOW_THRESHOLDS[2],), lambda fit, value: _is_at(value, _lives(fit)), _EXPIRED),
    Rule((DELETES_DURABLE,), lambda fit, _: not fit.is_durable and fit.parsed.patrol.slow_policy == "delete",
         "the queue is not durable, and is deleted anyway"),
    # Queues whose consumers browse.
    Rule((SINGLE_ACTIVE, GROUP_HEADER, SHARED_GROUPS, DELIVERY_LIMIT, *FAIR_SHARE, *_LEVELS),
         lambda fit, _: fit.parsed.is_browse_only, _BROWSERS),
    Rule((*PRIORITIES, "x-max-priority"), lambda fit, _: fit.parsed.is_browse_only and not _has_ring(fit),
         f"{_BROWSERS}, in the order of arrival"),
    # Lifetime, memory and disk.
    Rule(
        (AUTO_DELETE,), lambda fit, _: fit.is_auto_delete and fit.parsed.auto_delete is False,
        f"{LIFETIME} says manual",
    ),
    Rule((MAX_PAGES,), lambda fit, _: fit.parsed.pages * fit.parsed.page_bytes < fit.min_bytes,
         "a queue has at least 1 MiB of messages in memory; give more, or a larger qpid.page_factor"),
    Rule((MAX_PAGES,), lambda fit, _: fit.parsed.pages * fit.parsed.page_bytes > fit.max_bytes,
         "--queue-memory is less"),
    Rule((COMPRESS,), lambda fit, _: not fit.has_files,
         "its messages do not go to the disk; declare it durable, or give the broker a paging-dir"),
    # Streams.
    Rule((KEEP_UNREAD,), lambda fit, _: not fit.parsed.max_bytes and not fit.parsed.max_age,
         "the stream drops nothing; give x-max-age or x-max-length-bytes, or set a policy", _any),
    Rule((SEGMENT_BYTES,), lambda fit, value: value > fit.segment_bytes,
         "segments are smaller, an eighth of x-max-length-bytes at most"),
)  # fmt: skip
"""All of them. A name with a star stands for all with that prefix."""

_NAMES: Final = frozenset(name for rule in RULES for name in rule.names)
_BEGINNINGS: Final = tuple(name[:-1] for name in _NAMES if name.endswith("*"))

_SAME: Final = (
    FLOW_STOP_SIZE,
    FLOW_RESUME_SIZE,
    ALERT_COUNT,
    ALERT_SIZE,
    ALERT_GAP,
    ALERT_AGE,
    PRIORITIES,
    FAIR_SHARE,
    (LAST_VALUE_KEY, LAST_VALUE_NO_BROWSE, LAST_VALUE),
    (SEQUENCE, INSERT_SEQUENCE, OLD_SEQUENCE),
)
"""Names of one feature: the first of them that is given counts."""

_SWITCHES: Final = (INSERT_SEQUENCE, OLD_SEQUENCE)
_MAX_DIGITS: Final = 20  # of 2^64; Python refuses to read some thousands


def idle_arguments(arguments: TypedMap, fit: Fit) -> list[IdleArgument]:
    """The arguments of a declaration that have no effect beside the others."""
    given = plain(arguments)
    if fit.is_auto_delete and LIFETIMES.get(str(given.get(LIFETIME))) is False:
        given[AUTO_DELETE] = True
    found = {each.name: each for each in _named_twice(given)}
    for name, value in given.items():
        for rule in _rules_of(name):
            if name not in found and rule.asks(value) and rule.is_idle(fit, _number(value)):
                found[name] = IdleArgument(name, value, rule.says)
    return list(found.values())


def _named_twice(given: Mapping[str, object]) -> list[IdleArgument]:
    """Other names of a feature with another value than that which counts."""
    found = []
    for names in (*_SAME, *_levels_of(given)):
        there = [name for name in names if name in given and (name not in _SWITCHES or is_set(given[name]))]
        for name in there[1:]:
            is_alike = name in _SWITCHES and there[0] in _SWITCHES
            if not is_alike and str(given[name]) != str(given[there[0]]):
                found.append(IdleArgument(name, given[name], f"{there[0]} is given, too, and counts"))
    return found


def _levels_of(given: Mapping[str, object]) -> list[tuple[str, ...]]:
    """The names of the fair share of single levels."""
    beginning = f"{FAIR_SHARE[0]}-"
    levels = [name.removeprefix(beginning) for name in given if name.startswith(beginning)]
    return [tuple(f"{each}-{level}" for each in FAIR_SHARE) for level in levels]


def _rules_of(name: str) -> list[Rule]:
    if name not in _NAMES and not name.startswith(_BEGINNINGS):
        return []
    return [
        rule
        for rule in RULES
        if any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in rule.names)
    ]


def _number(value: object) -> int:
    text = as_text(value)
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    return value if isinstance(value, int) else 0


def _bytes(fit: Fit) -> int:
    """The limit in bytes of headers and content; 0 if it counts more than these."""
    return 0 if fit.capacity.overhead else fit.capacity.bytes


def _has_alerts(fit: Fit) -> bool:
    patrol = fit.parsed.patrol
    return any((fit.alerts.count_up, fit.alerts.size_up, patrol.message_size, patrol.message_age))
