"""Arguments of RabbitMQ's classic queues, mapped on this broker's own.

    x-max-length         qpid.max_count
    x-max-length-bytes   qpid.max_size
    x-overflow           what happens at these: drop-head, the default, is qpid.policy_type ring; reject-publish is
                         reject, without flow control before it, and only publishers with confirms are told;
                         reject-publish-dlx likewise, and the message goes to the dead-letter exchange
    x-message-ttl        milliseconds that a message may be on the queue
    x-dead-letter-exchange, x-dead-letter-routing-key
                         where messages go that are rejected, expire or are displaced (`broker.model.dead_letters`)
    x-expires            milliseconds after which a queue is deleted that nobody uses: no consumers, not declared again,
                         no basic.get
    x-max-priority       qpid.priorities, but the priorities from 0 to this number, at most 255, are the levels, and
                         higher ones count as this; 0 for no priorities
    x-single-active-consumer  true: one consumer at a time gets messages (`ranking`)

Both names of one feature cannot be given together. Sources: RabbitMQ, "Queue Length Limit", "Time-To-Live and
Expiration", "Dead Letter Exchanges", "Priority Queue Support" and "Consumers".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qstore.broker.model.arguments import as_text, shown
from qstore.broker.model.errors import InvalidArgumentError
from qstore.formats.values import STR16, UINT64, TypedMap, TypedValue

MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
OVERFLOW: Final = "x-overflow"
HIGHEST_PRIORITY: Final = "x-max-priority"
SINGLE_ACTIVE: Final = "x-single-active-consumer"
LENGTHS: Final = {"x-max-length": "qpid.max_count", "x-max-length-bytes": "qpid.max_size"}
_POLICY: Final = "qpid.policy_type"
REJECT_DEAD: Final = "reject-publish-dlx"
_POLICIES: Final = {"drop-head": "ring", "reject-publish": "reject", REJECT_DEAD: "reject"}
_STOPS: Final = ("qpid.flow_stop_count", "qpid.flow_stop_size")

DEAD_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_KEY: Final = "x-dead-letter-routing-key"

NAMES: Final = frozenset(
    (MESSAGE_TTL, EXPIRES, OVERFLOW, HIGHEST_PRIORITY, SINGLE_ACTIVE, DEAD_EXCHANGE, DEAD_KEY, *LENGTHS)
)
"""The arguments that are mapped here, or read by `arguments`."""

_MAX_NAME: Final = 255  # bytes


class DeadLetterArguments(NamedTuple):
    """Where dead messages go.

    Attributes:
        exchange: name of the exchange; empty for the default exchange.
        routing_key: the key that they get; None for their own.
    """

    exchange: str
    routing_key: str | None = None


def dead_letter_arguments(arguments: TypedMap) -> DeadLetterArguments | None:
    """Where the dead messages of a queue go; None if they are dropped.

    Raises:
        InvalidArgumentError: one of them is no name, or there is a routing key without an exchange.
    """
    exchange, key = _name(arguments, DEAD_EXCHANGE), _name(arguments, DEAD_KEY)
    if exchange is not None:
        return DeadLetterArguments(exchange, key)
    if key is not None:
        raise InvalidArgumentError(f"{DEAD_KEY} is given without {DEAD_EXCHANGE}")
    return None


def _name(arguments: TypedMap, argument: str) -> str | None:
    typed = arguments.get(argument)
    if typed is None:
        return None
    value = as_text(typed.value)
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogateescape")) > _MAX_NAME:
        raise InvalidArgumentError(f"{argument} is {shown(value)}, not a name of at most {_MAX_NAME} bytes")
    return value


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
    lengths = [(own, name, given[name]) for name, own in LENGTHS.items() if name in given]
    for own, name, typed in lengths:
        if own in names:
            raise InvalidArgumentError(f"{name} and {own} cannot be given for the same queue")
        text = str(as_text(typed.value))  # a count may be a text; "0" would mean no limit
        if text and not text.strip("0"):
            raise InvalidArgumentError(f"{name} 0 is not supported; to keep no messages set {MESSAGE_TTL} to 0")
        entries.append((own, typed))
    policy = as_text(given[OVERFLOW].value) if OVERFLOW in given else "drop-head"
    if policy not in _POLICIES:
        raise InvalidArgumentError(f"{OVERFLOW} is {shown(policy)}, not one of {', '.join(_POLICIES)}")
    if lengths or OVERFLOW in given:
        if _POLICY in names:
            raise InvalidArgumentError(f"{OVERFLOW} and {_POLICY} cannot be given for the same queue")
        entries.append((_POLICY, TypedValue(STR16, _POLICIES[str(policy)])))
    if policy in ("reject-publish", REJECT_DEAD):
        entries += [(name, TypedValue(UINT64, 0)) for name in _STOPS if name not in names]
    return TypedMap(tuple(entries))
