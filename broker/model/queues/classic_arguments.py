"""Arguments of RabbitMQ's classic queues, mapped on this broker's own.

    x-max-length         qpid.max_count
    x-max-length-bytes   qpid.max_size
    x-overflow           what happens at these: drop-head, the default, is qpid.policy_type ring; reject-publish is
                         reject, without flow control before it
    x-message-ttl        milliseconds that a message may be on the queue
    x-expires            milliseconds after which a queue is deleted that nobody uses: no consumers, not declared again,
                         no basic.get
    x-max-priority       qpid.priorities, but the priorities from 0 to this number, at most 255, are the levels, and
                         higher ones count as this; 0 for no priorities

Both names of one feature cannot be given together. Sources: RabbitMQ, "Queue Length Limit", "Time-To-Live and
Expiration" and "Priority Queue Support".
"""

from __future__ import annotations

from typing import Final

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.argument_table import as_text, shown
from qstore.formats.values import STR16, UINT64, TypedMap, TypedValue

MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
OVERFLOW: Final = "x-overflow"
HIGHEST_PRIORITY: Final = "x-max-priority"
_LENGTHS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
_POLICY: Final = "qpid.policy_type"
_POLICIES: Final = {"drop-head": "ring", "reject-publish": "reject"}
_STOPS: Final = ("qpid.flow_stop_count", "qpid.flow_stop_size")

NAMES: Final = frozenset((MESSAGE_TTL, EXPIRES, OVERFLOW, HIGHEST_PRIORITY, *_LENGTHS))
"""The arguments that are mapped here, or read by `arguments`."""

MAX_MILLISECONDS: Final = (1 << 32) - 1
"""Of a time: 49 days, RabbitMQ's limit."""


def mapped(arguments: TypedMap) -> TypedMap:
    """The arguments of a queue with those of its length under the broker's own names.

    Raises:
        InvalidArgumentError: one is given twice, or x-overflow is not valid.
    """
    given = {name: typed for name, typed in arguments.entries if name in NAMES}
    if not given:
        return arguments
    entries = [entry for entry in arguments.entries if entry[0] not in NAMES]
    names = {name for name, _ in entries}
    lengths = [(own, name, given[name]) for name, own in _LENGTHS.items() if name in given]
    for own, name, typed in lengths:
        if own in names:
            raise InvalidArgumentError(f"{name} and {own} cannot be given for the same queue")
        if typed.value == 0:
            raise InvalidArgumentError(f"{name} is 0: a queue that keeps no message is not supported")
        entries.append((own, typed))
    policy = as_text(given[OVERFLOW].value) if OVERFLOW in given else "drop-head"
    if policy not in _POLICIES:
        raise InvalidArgumentError(f"{OVERFLOW} is {shown(policy)}, not one of {', '.join(_POLICIES)}")
    if lengths or OVERFLOW in given:
        if _POLICY in names:
            raise InvalidArgumentError(f"{OVERFLOW} and {_POLICY} cannot be given for the same queue")
        entries.append((_POLICY, TypedValue(STR16, _POLICIES[str(policy)])))
    if policy == "reject-publish":
        entries += [(name, TypedValue(UINT64, 0)) for name in _STOPS if name not in names]
    return TypedMap(tuple(entries))
