"""The arguments of declarations, bindings and consumers as RabbitMQ's clients mean them; and the keys of bindings.

Names that begin with "x-" request features of RabbitMQ: one without a row in the table (`model/arguments`) is refused
by name (406), never ignored, and so is one whose row says so. All other names are passed on to the model.

    exchanges    alternate-exchange: the name of an exchange, which may be declared later
    bindings     to a headers exchange, x-match: "all", the default, or "any"

In AMQP 0-9-1, bindings of a queue with the same key and different arguments are different bindings; in the model,
those to a headers exchange need different keys (`exchanges/headers`), which match nothing. The second one gets a key of
its own: the client's, `#`, and a digest of the arguments, so that unbinding with the same key and arguments finds it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from typing import Final

from qstore.broker.model.arguments import (
    AMQP_0_9_1,
    MATCH,
    QUEUE_TYPE,
    Of,
    alternate_in,
    as_text,
    lacking,
    rows_of,
    shown,
)
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.types import HEADERS_NAMES
from qstore.broker.model.queues.arguments import DEAD_EXCHANGE
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_9_1.tables import encode_value
from qstore.formats.values import STR16, TypedMap, TypedValue

_FEATURE: Final = "x-"
_OF_QPID: Final = ("x-qpid-",)


def exchange_name(name: str) -> str:
    """The broker's name of an exchange: RabbitMQ has two names for its standard headers exchange."""
    own, other = HEADERS_NAMES
    return own if name == other else name


def with_exchange_name(arguments: TypedMap, name: str) -> TypedMap:
    """The same arguments, with the broker's name of the exchange that the argument `name` names."""
    given = arguments.get(name)
    own, other = HEADERS_NAMES
    if given is None or as_text(given.value) != other:
        return arguments
    here = TypedValue(STR16, own)
    return replace(
        arguments, entries=tuple((each, here if each == name else typed) for each, typed in arguments.entries)
    )


def is_supported(name: str, value: object) -> bool:
    """Whether a queue can have this argument of RabbitMQ with this value, according to the table."""
    given = TypedMap(((name, TypedValue(STR16, value)),))
    return bool(rows_of(Of.QUEUE, name)) and not any(each.is_refused for each in lacking(Of.QUEUE, given))


def queue_arguments(arguments: TypedMap) -> TypedMap:
    """The arguments of a queue, with the broker's name of its dead-letter exchange.

    Raises:
        InvalidArgumentError: one is not supported.
    """
    _check(Of.QUEUE, "queue", arguments)
    return with_exchange_name(arguments, DEAD_EXCHANGE)


def _check(of: Of, what: str, arguments: TypedMap) -> None:
    """Raise InvalidArgumentError for an unsupported argument of RabbitMQ; an unsupported queue type is named first."""
    missing = [each for each in lacking(of, arguments, (), AMQP_0_9_1) if each.is_refused and _is_feature(each.name)]
    missing.sort(key=lambda each: each.name != QUEUE_TYPE)  # the others may be arguments of that type only
    for each in missing:
        text = f"{what} argument '{each.name}' with value {shown(each.value)} is not supported"
        raise InvalidArgumentError(f"{text}: {each.why}")
    for name in arguments:
        if _is_feature(name) and not rows_of(of, name):
            raise InvalidArgumentError(f"{what} argument {shown(name)} is not supported")


def _is_feature(name: str) -> bool:
    """Whether a name requests a feature of RabbitMQ."""
    return name.startswith(_FEATURE) and not name.startswith(_OF_QPID)


def check_consumer_arguments(arguments: TypedMap) -> None:
    """Raise InvalidArgumentError for an argument of a consumer that is not supported."""
    _check(Of.SUBSCRIPTION, "consumer", arguments)


def alternate_of(arguments: TypedMap) -> str:
    """The name of an exchange's alternate exchange; empty for none.

    Raises:
        InvalidArgumentError: an argument of the exchange is not supported, or the name is not valid.
    """
    _check(Of.EXCHANGE, "exchange", arguments)
    return exchange_name(alternate_in(arguments))


def binding_arguments(exchange_type: str, arguments: TypedMap) -> TypedMap:
    """The arguments of a binding, completed for a headers exchange.

    Raises:
        InvalidArgumentError: one is not supported.
    """
    if exchange_type != "headers":
        return arguments
    typed = arguments.get(MATCH)
    if typed is None:
        return TypedMap((*arguments.entries, (MATCH, TypedValue(STR16, "all"))))
    value = as_text(typed.value)
    if value not in ("all", "any"):
        raise InvalidArgumentError(f"binding argument '{MATCH}' is {shown(value)}, not 'all' or 'any'")
    return arguments


_DIGITS: Final = 16
_has_digest: Final = re.compile(rf".*#[0-9a-f]{{{_DIGITS}}}", re.DOTALL).fullmatch
_MAX_KEY: Final = 255  # bytes


def headers_key(exchange: HeadersExchange, queue: Queue, key: str, arguments: TypedMap) -> str:
    """The key in the model of a binding, existing or new, with this key and these arguments."""
    own = own_key(key, arguments)
    if exchange.find_binding(queue, own) is not None:
        return own
    binding = exchange.find_binding(queue, key)
    return key if binding is None or exchange.is_equivalent(binding, arguments) else own


def own_key(key: str, arguments: TypedMap) -> str:
    """The key in the model of a further binding with this key and other arguments."""
    ordered = TypedMap(tuple(sorted(arguments.entries, key=lambda entry: entry[0])))
    digest = sha256(key.encode("utf-8", "surrogateescape") + encode_value("table", ordered)).hexdigest()[:_DIGITS]
    kept = key.encode("utf-8", "surrogateescape")[: _MAX_KEY - _DIGITS - 1].decode("utf-8", "ignore")
    return f"{kept}#{digest}"


def client_key(key: str) -> str:
    """The client's key of a binding that may have a key of its own in the model.

    The digest is not compared, because exports of running brokers lack the types of arguments. A key that was too long
    to be kept whole is returned truncated.
    """
    return key[: -_DIGITS - 1] if _has_digest(key) else key
