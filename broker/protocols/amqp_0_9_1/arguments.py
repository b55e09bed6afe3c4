"""The arguments of declarations, bindings and consumers: what is supported, and what is refused by name.

Names that begin with "x-" ask for features of RabbitMQ: one that this broker does not have is refused (406), never
ignored. All other names are passed on to the model, which has features of its own under names that begin with "qpid.".

    queues       x-queue-type: "classic" only; x-message-ttl, x-expires, x-max-length, x-max-length-bytes, x-overflow,
                 x-max-priority, x-dead-letter-exchange, x-dead-letter-routing-key, x-single-active-consumer
                 (`model/queues/classic_arguments`); x-queue-mode, x-queue-version, x-queue-master-locator and
                 x-queue-leader-locator are checked, and have no effect: how and where a queue is kept does not change
                 what it does; nor have x-ha-policy and x-ha-policy-params, which RabbitMQ ignores since 3.0, and which
                 applications still set: the log tells it (`model/queues/argument_table`)
    exchanges    alternate-exchange: the name of an exchange, which may be declared later
    bindings     of a headers exchange, x-match: "all", which is the default, or "any"
    consumers    x-priority: a whole number; x-cancel-on-ha-failover: without effect

Source: RabbitMQ, "Queues", "Exchanges" and "Consumers" (optional arguments).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.queues.argument_table import as_text, shown
from qstore.broker.model.queues.classic_arguments import DEAD_EXCHANGE, NAMES
from qstore.broker.model.settlement import PRIORITY
from qstore.formats.values import STR16, TypedMap, TypedValue

ALTERNATE: Final = "alternate-exchange"
HEADERS_EXCHANGE: Final = "amq.headers"
QUEUE_TYPE: Final = "x-queue-type"
_MATCH: Final = "x-match"
_FEATURE: Final = "x-"
_OF_QPID: Final = ("x-qpid-",)


def exchange_name(name: str) -> str:
    """The name of an exchange here: RabbitMQ has its standard headers exchange under two names."""
    return "amq.match" if name == HEADERS_EXCHANGE else name


def with_exchange_name(arguments: TypedMap, name: str) -> TypedMap:
    """The same arguments; an exchange that the argument `name` tells has the name that it has here."""
    told = arguments.get(name)
    if told is None or as_text(told.value) != HEADERS_EXCHANGE:
        return arguments
    here = TypedValue(STR16, exchange_name(HEADERS_EXCHANGE))
    return replace(
        arguments, entries=tuple((each, here if each == name else typed) for each, typed in arguments.entries)
    )


#: Queue argument -> whether its value is supported.
_QUEUE: Final[dict[str, Callable[[object], bool]]] = {
    QUEUE_TYPE: lambda value: value == "classic",
    "x-queue-mode": lambda value: value in ("default", "lazy"),
    "x-queue-version": lambda value: value in (1, 2),
    "x-queue-master-locator": lambda value: isinstance(value, str),
    "x-queue-leader-locator": lambda value: isinstance(value, str),
    "x-ha-policy": lambda _value: True,
    "x-ha-policy-params": lambda _value: True,
    **dict.fromkeys(NAMES, lambda _value: True),  # the model checks them
}


def is_supported(name: str, value: object) -> bool:
    """Whether a queue can have this argument of RabbitMQ with this value, as far as it is checked here."""
    found = _QUEUE.get(name)
    return found is not None and found(value)


def queue_arguments(arguments: TypedMap) -> TypedMap:
    """The arguments of a queue, with the name that its dead-letter exchange has here.

    Raises:
        InvalidArgumentError: one is not supported.
    """
    queue_type = arguments.get(QUEUE_TYPE)
    if queue_type is not None and as_text(queue_type.value) != "classic":  # before the arguments that only its type has
        raise InvalidArgumentError(_unsupported_type(as_text(queue_type.value)))
    for name, typed in arguments.entries:
        if not name.startswith(_FEATURE) or name.startswith(_OF_QPID):
            continue
        value = as_text(typed.value)
        if name not in _QUEUE:
            raise InvalidArgumentError(f"queue argument '{name}' is not supported")
        if not is_supported(name, value):
            raise InvalidArgumentError(f"queue argument '{name}' with value {shown(value)} is not supported")
    return with_exchange_name(arguments, DEAD_EXCHANGE)


def _unsupported_type(value: object) -> str:
    """Why a queue cannot have this type, and what to declare instead: the peer gets 255 bytes."""
    told = f"queue argument '{QUEUE_TYPE}' with value {shown(value)} is not supported"
    if value == "quorum":
        return f"{told}: set it to 'classic' or leave it out; durable queues confirm messages when they are on the disk"
    return f"{told}: the only type is 'classic'"


def check_consumer_arguments(arguments: TypedMap) -> None:
    """Raise InvalidArgumentError for an argument of a consumer that is not supported."""
    for name in arguments:
        if name.startswith(_FEATURE) and name not in (PRIORITY, "x-cancel-on-ha-failover"):
            raise InvalidArgumentError(f"consumer argument '{name}' is not supported")


def alternate_of(arguments: TypedMap) -> str:
    """The name of an exchange's alternate exchange; empty for none.

    Raises:
        InvalidArgumentError: an argument of the exchange is not supported, or the name is none.
    """
    for name in arguments:
        if name.startswith(_FEATURE):
            raise InvalidArgumentError(f"exchange argument '{name}' is not supported")
    typed = arguments.get(ALTERNATE)
    if typed is None:
        return ""
    value = as_text(typed.value)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"exchange argument '{ALTERNATE}' with value {shown(value)} is no name")
    return exchange_name(value)


def binding_arguments(exchange_type: str, arguments: TypedMap) -> TypedMap:
    """The arguments of a binding, with those that a headers exchange needs.

    Raises:
        InvalidArgumentError: one is not supported.
    """
    if exchange_type != "headers":
        return arguments
    typed = arguments.get(_MATCH)
    if typed is None:
        return TypedMap((*arguments.entries, (_MATCH, TypedValue(STR16, "all"))))
    value = as_text(typed.value)
    if value not in ("all", "any"):
        raise InvalidArgumentError(f"binding argument '{_MATCH}' with value {shown(value)} is not supported")
    return arguments
