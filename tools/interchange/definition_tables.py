"""RabbitMQ's definitions and qstore's objects: what corresponds to what.

    queue, RabbitMQ                     queue, qstore
    ----------------------------------  ---------------------------------------------------------------------------
    x-max-length, x-max-length-bytes,   the same; from qpid.max_count, qpid.max_size and qpid.policy_type, if the queue
    x-overflow                          was declared with these: ring is drop-head, reject is reject-publish
    x-message-ttl, x-expires,           the same
    x-single-active-consumer
    x-max-priority                      the same; from qpid.priorities, which is one more
    x-dead-letter-exchange,             the same; an alternate exchange is written as x-dead-letter-exchange, if there
    x-dead-letter-routing-key           is no other
    x-queue-type: classic               the same; of other types, a note says what they lose
    x-queue-mode, x-queue-version,      the same, without effect: where and how a queue is kept does not change what it
    x-queue-master-locator              does
    other arguments of placement        nothing

    exchange: alternate-exchange        the same, and the alternate exchange
    exchange types direct, topic,       the same
    fanout, headers
    binding from an exchange to a       the same; x-match is all or any
    queue, or to an exchange
    exchange amq.headers                amq.match, which is the same one

So what clients of RabbitMQ declare again is what is there.

Everything else is listed as not known by the other side. Sources: RabbitMQ documentation, "Schema Definition Export and
Import", "Queue Length Limit", "Priority Queue Support", "Dead Letter Exchanges", "Alternate Exchanges"; for the other
side see `broker/model/queues/arguments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qstore.broker.model.arguments import MAX_MILLISECONDS, MAX_PRIORITY
from qstore.broker.model.queues.arguments import (
    DEAD_EXCHANGE,
    DEAD_KEY,
    EXPIRES,
    HIGHEST_PRIORITY,
    MESSAGE_TTL,
    OVERFLOW,
    REJECT_DEAD,
    SINGLE_ACTIVE,
)
from qstore.broker.model.queues.priority import MAX_LEVELS
from qstore.broker.protocols.amqp_0_9_1.arguments import exchange_name, is_supported
from qstore.formats.wording import printable
from qstore.tools.interchange.items import InterchangeError

LIMITS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
OVERFLOWS: Final = {"drop-head": "ring", "reject-publish": "reject"}
_CLASSIC: Final = "classic"
_TYPE: Final = "x-queue-type"
TIMES: Final = {MESSAGE_TTL: 0, EXPIRES: 1}
"""Arguments with a time in milliseconds, and their minimum."""
WITHOUT_EFFECT: Final = (_TYPE, "x-queue-mode", "x-queue-version", "x-queue-master-locator")
DECLARED: Final = (
    *LIMITS, OVERFLOW, HIGHEST_PRIORITY, SINGLE_ACTIVE, *TIMES, DEAD_EXCHANGE, DEAD_KEY, *WITHOUT_EFFECT,
)  # fmt: skip
"""Arguments that a queue keeps as it was declared with them."""
FLOW_STOPS: Final = {"x-max-length": "qpid.flow_stop_count", "x-max-length-bytes": "qpid.flow_stop_size"}
PRIORITIES: Final = ("qpid.priorities", "x-qpid-priorities")
_MAX_NAME: Final = 255  # bytes
PLACEMENT: Final = frozenset(
    (
        *WITHOUT_EFFECT[1:], "x-queue-leader-locator", "x-quorum-initial-group-size", "x-quorum-target-group-size",
        "x-initial-cluster-size",
    )
)  # fmt: skip
JOURNAL: Final = frozenset(
    (
        "qpid.file_count", "qpid.file_size", "qpid.auto_expand", "qpid.auto_expand_max_jfiles", "qpid.max_journal_size",
        "qpid.compress", "qpid.paging", "qpid.max_pages_loaded", "qpid.page_factor",
    )
)  # fmt: skip
"""Likewise, the other way round."""
EXCHANGE_TYPES: Final = frozenset(("direct", "topic", "fanout", "headers"))
OWN_EXCHANGES: Final = frozenset(("qmf.default.topic", "qmf.default.direct", "qpid.management"))
"""Those of this broker's management."""
STANDARD_PREFIX: Final = "amq."
STANDARD: Final = {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
"""The exchanges that both sides have from the beginning, and their types."""
MATCHES: Final = frozenset(("all", "any"))


class Unmapped(list[str]):
    """What cannot be mapped: one text each, in the order in which it was found."""

    def add(self, what: str, name: str, text: str) -> None:
        """Something of an object."""
        self.append(printable(f'{what} "{name}": {text}'))


def check_mapped(unmapped: Unmapped, where: str, *, strict: bool) -> None:
    """Raise InterchangeError if something cannot be mapped, and that is not accepted."""
    if strict and unmapped:
        more = f", and {len(unmapped) - 1} more" if len(unmapped) > 1 else ""
        raise InterchangeError(f"{where}: cannot be mapped: {unmapped[0]}{more}; without --strict all are listed")


def queue_arguments_to_qstore(name: str, given: Mapping[str, Any], unmapped: Unmapped) -> dict[str, Any]:
    """The arguments of a queue of RabbitMQ."""
    kind = given.get(_TYPE, _CLASSIC)
    arguments = {key: given[key] for key in DECLARED if _is_declared(key, given.get(key))}
    if kind != _CLASSIC:
        unmapped.add("queue", name, f"{_TYPE} {kind}: it is a durable queue, without replicas and streaming")
    overflow = given.get(OVERFLOW, "drop-head")
    if OVERFLOW in given and OVERFLOW not in arguments:
        unmapped.add("queue", name, f"{OVERFLOW} {overflow}: publishers are refused instead")
        arguments[OVERFLOW] = "reject-publish"
    if DEAD_EXCHANGE in arguments:
        arguments[DEAD_EXCHANGE] = exchange_name(arguments[DEAD_EXCHANGE])
    else:
        arguments.pop(DEAD_KEY, None)
    for key, value in given.items():
        if key not in arguments and key not in PLACEMENT and key != _TYPE:
            unmapped.add("queue", name, f"{key} {value} is not known")
    return arguments


def queue_arguments_to_rabbitmq(name: str, given: Mapping[str, Any], unmapped: Unmapped) -> dict[str, Any]:
    """The arguments of a queue of qstore or qpidd."""
    arguments: dict[str, Any] = {}
    rest = {key: value for key, value in given.items() if key not in JOURNAL}
    declared = {key: rest.pop(key) for key in DECLARED if _is_declared(key, rest.get(key))}
    for key, own in LIMITS.items():
        value = rest.pop(own, None)
        if value:
            if _is_count(value):
                arguments[key] = value
            else:
                unmapped.add("queue", name, f"{own} {value} is not a number")
    policy = str(rest.pop("qpid.policy_type", "reject"))
    for key, stop in FLOW_STOPS.items():
        if policy == "reject" and key in arguments and rest.get(stop) == 0:
            del rest[stop]  # publishers are refused at the limit, and not stopped before
    if arguments:
        overflow = {own: key for key, own in OVERFLOWS.items()}.get(policy)
        if overflow is None:
            unmapped.add("queue", name, f"qpid.policy_type {policy}: publishers are refused instead")
        arguments["x-overflow"] = overflow or "reject-publish"
    for key in PRIORITIES:
        levels: Any = rest.get(key)
        if _is_count(levels) and levels > 1:
            arguments[HIGHEST_PRIORITY] = min(levels, MAX_LEVELS) - 1
            del rest[key]
    for key, value in rest.items():
        unmapped.add("queue", name, f"{key} {value} is not known")
    return arguments | declared


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) <= _MAX_NAME


def _is_time(key: str, value: object) -> bool:
    return type(value) is int and TIMES[key] <= value <= MAX_MILLISECONDS


def _is_declared(key: str, value: object) -> bool:
    """Whether this is an argument of RabbitMQ that the broker has accepted."""
    if key == OVERFLOW:
        return isinstance(value, str) and value in (*OVERFLOWS, REJECT_DEAD)
    if key in WITHOUT_EFFECT:
        return is_supported(key, value)
    if key == SINGLE_ACTIVE:
        return isinstance(value, bool)
    if key == HIGHEST_PRIORITY:
        return type(value) is int and 0 <= value <= MAX_PRIORITY
    if key in (DEAD_EXCHANGE, DEAD_KEY):
        return _is_name(value)
    return _is_time(key, value) if key in TIMES else _is_count(value) and value != 0
