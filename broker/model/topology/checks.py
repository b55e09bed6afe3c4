"""Checks of names, owners and repeated declarations, before the topology is changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Final

from qstore.broker.model.arguments import plain, shown
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.queues.queue import Queue
from qstore.formats.broker_records.topology import MAX_NAME, problem_of_new_name
from qstore.formats.values import TypedArray, TypedMap

#: Prefixes reserved for standard queues and exchanges: AMQP 0-10, reserved-prefix and reserved-names; qpidd.
QUEUE_NAMES: Final = ("amq.",)
EXCHANGE_NAMES: Final = ("amq.", "qpid.")


def check_name(what: str, name: str, reserved: tuple[str, ...]) -> None:
    """Check the name of a new queue or exchange.

    Raises:
        InvalidArgumentError: it is empty, or impossible (`problem_of_new_name`).
        NotAllowedError: it is reserved.
    """
    if not name:
        raise InvalidArgumentError(f"No {what} name specified")
    problem = problem_of_new_name(name)
    if problem:
        raise InvalidArgumentError(f"{what} {shown(name)} cannot be created: {problem}")
    if name.startswith(reserved):
        raise NotAllowedError(
            f'{what} "{name}" cannot be created: names beginning with {" or ".join(reserved)} are reserved'
        )


def check_awaited(what: str, alternate: str) -> None:
    """Check the name of an alternate exchange that does not exist, and may be declared later.

    Raises:
        InvalidArgumentError: there can be no exchange with that name.
    """
    problem = problem_of_new_name(alternate)
    if problem:
        raise InvalidArgumentError(f"the alternate exchange {shown(alternate)} of {what} cannot exist: {problem}")


def check_key(key: str) -> None:
    """Check the key of a new binding: routing keys are any bytes, but a protocol carries 255 at most.

    Raises:
        InvalidArgumentError: it is longer.
    """
    size = len(key.encode("utf-8", "surrogateescape"))
    if size > MAX_NAME:
        raise InvalidArgumentError(f"the binding key {shown(key)} has {size:,} bytes, more than {MAX_NAME}")


def find_exchange(exchanges: Mapping[str, Exchange], name: str) -> Exchange:
    """The exchange with a name, which cannot be the default one.

    Raises:
        InvalidArgumentError: the name is empty.
        NotFoundError: there is none.
    """
    if not name:
        raise InvalidArgumentError("No exchange name specified; the default exchange cannot be changed")
    exchange = exchanges.get(name)
    if exchange is None:
        raise NotFoundError(f"Exchange not found: {name}", kind="exchange", name=name)
    return exchange


def check_owner(queue: Queue, caller: Caller) -> None:
    """Check that a queue is not exclusive to another caller; the broker itself may use all queues.

    Raises:
        ResourceLockedError: it is exclusive to another caller.
    """
    if caller is not BROKER and queue.owner is not None and queue.owner is not caller:
        raise ResourceLockedError(f'queue "{queue.name}" is exclusive to another session')


def check_private(queue: Queue, caller: Caller) -> None:
    """Check that a caller may see the messages of a queue, or have them moved or removed.

    A queue that is exclusive to a connection of AMQP 0-9-1 is that connection's alone, also for management. One that is
    exclusive to a session of AMQP 0-10 can be browsed, and managed, as in qpidd.

    Raises:
        ResourceLockedError: it is exclusive to another connection.
    """
    if queue.is_private and not is_owned_by(queue, caller) and caller is not BROKER and queue.owner is not None:
        raise ResourceLockedError(f'queue "{queue.name}" is exclusive to another connection')


def is_owned_by(queue: Queue, caller: Caller) -> bool:
    """Whether a queue is exclusive to a caller, or to the connection over which management was called."""
    owner = queue.owner
    return owner is not None and (owner is caller or getattr(owner, "publisher", None) is caller)


def check_type(exchange: Exchange, type_name: str) -> None:
    """Check that an exchange is of the declared type; empty for any.

    Raises:
        NotAllowedError: it has another type.
    """
    if type_name and exchange.type_name != type_name:
        raise NotAllowedError(f'exchange "{exchange.name}" is of type "{exchange.type_name}", not "{type_name}"')


def check_alternate(declared: Exchange | Queue, wanted: Exchange | None) -> None:
    """Check that a queue or exchange has the declared alternate exchange; None for any.

    Raises:
        NotAllowedError: it has another, or none.
    """
    if wanted is not None and declared.alternate is not wanted:
        what = "exchange" if isinstance(declared, Exchange) else "queue"
        has = "no alternate exchange" if declared.alternate is None else f'alternate "{declared.alternate.name}"'
        raise NotAllowedError(f'{what} "{declared.name}" has {has}, not "{wanted.name}"')


def owner_of(caller: Caller) -> Caller | None:
    """The owner of a queue declared exclusive: none, if the broker itself has declared it."""
    return None if caller is BROKER else caller


def check_queue_alike(queue: Queue, durable: bool, auto_delete: bool, exclusive: bool, arguments: TypedMap) -> None:
    """Raise PreconditionFailedError unless a queue was declared like this."""
    _check_alike(
        f"queue '{queue.name}' in vhost '/'",
        (queue.arguments, arguments),
        durable=(queue.durable, durable),
        auto_delete=(queue.auto_delete, auto_delete),
        exclusive=(queue.owner is not None, exclusive),
    )


def check_exchange_alike(
    exchange: Exchange, type_name: str, durable: bool, auto_delete: bool, arguments: TypedMap
) -> None:
    """Raise PreconditionFailedError unless an exchange was declared like this."""
    _check_alike(
        f"exchange '{exchange.name}' in vhost '/'",
        (exchange.arguments, arguments),
        type=(exchange.type_name, type_name),
        durable=(exchange.durable, durable),
        auto_delete=(exchange.auto_delete, auto_delete),
    )


def _check_alike(what: str, arguments: tuple[TypedMap, TypedMap], **properties: tuple[object, object]) -> None:
    """Compare what exists with a declaration; numbers whatever their width. Raises PreconditionFailedError."""
    existing, declared = map(plain, arguments)
    for name in dict.fromkeys((*existing, *declared)):
        properties[name] = existing.get(name), declared.get(name)
    for name, (current, received) in properties.items():
        if current != received or isinstance(current, bool) is not isinstance(received, bool):
            ours, theirs = _quoted(current), _quoted(received)
            if ours == theirs:
                ours, theirs = (f"the value {_quoted(each)} of type {_type_of(each)}" for each in (current, received))
            difference = f"received {theirs} but current is {ours}"
            raise PreconditionFailedError(f"inequivalent arg '{name}' for {what}: {difference}")


_TYPES: Final = {str: "longstr", bool: "bool", int: "long", float: "double", NoneType: "void", TypedMap: "table"}
"""The types of values by the names of AMQP 0-9-1, as in RabbitMQ's errors."""


def _type_of(value: object) -> str:
    return _TYPES.get(type(value), "array" if isinstance(value, list | tuple | TypedArray) else type(value).__name__)


def _quoted(value: object) -> str:
    """A value as RabbitMQ's errors have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return shown(value) if isinstance(value, str) else f"'{shown(value)}'"
