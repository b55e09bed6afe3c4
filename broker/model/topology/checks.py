"""Checks of names, owners and repeated declarations, before the topology is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qstore.broker.log.logs import INFO, NOTICE, log_of
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.queues.argument_table import as_text, shown, unsupported_arguments
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import TypedMap

_LOG: Final = log_of("Model")

#: Prefixes reserved for standard queues and exchanges: AMQP 0-10, reserved-prefix and reserved-names; qpidd.
QUEUE_NAMES: Final = ("amq.",)
EXCHANGE_NAMES: Final = ("amq.", "qpid.")


def check_name(what: str, name: str, reserved: tuple[str, ...]) -> None:
    """Check the name of a new queue or exchange.

    Raises:
        InvalidArgumentError: it is empty.
        NotAllowedError: it is reserved.
    """
    if not name:
        raise InvalidArgumentError(f"No {what} name specified")
    if name.startswith(reserved):
        raise NotAllowedError(
            f'{what} "{name}" cannot be created: names beginning with {" or ".join(reserved)} are reserved'
        )


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
    existing, declared = ({name: as_text(typed.value) for name, typed in each.entries} for each in arguments)
    for name in dict.fromkeys((*existing, *declared)):
        properties[name] = existing.get(name), declared.get(name)
    for name, (current, received) in properties.items():
        if current != received:
            difference = f"received {_quoted(received)} but current is {_quoted(current)}"
            raise PreconditionFailedError(f"inequivalent arg '{name}' for {what}: {difference}")


def _quoted(value: object) -> str:
    """A value as RabbitMQ's errors have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return shown(value) if isinstance(value, str) else f"'{shown(value)}'"


class UnsupportedArguments:
    """Refuses the arguments of queues that ask for missing features, and logs those that are ignored."""

    def __init__(self) -> None:
        self._reported: set[str] = set()  # keys of ignored arguments already logged as notices

    def check(self, name: str, arguments: TypedMap) -> None:
        """Check the arguments of a queue; each that is ignored is a notice the first time.

        Raises:
            NotImplementedByBrokerError: one asks for a feature that is refused.
        """
        found = unsupported_arguments(arguments)
        for each in found:
            if each.is_refused:
                raise NotImplementedByBrokerError(f'queue "{name}": {each}')
        for each in found:
            level = INFO if each.row.key in self._reported else NOTICE
            self._reported.add(each.row.key)
            _LOG.log(level, 'Queue "%s": %s', name, each)
