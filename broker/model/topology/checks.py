"""Checks of names, owners and repeated declarations, before the topology is changed."""

from __future__ import annotations

from typing import Final

from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import InvalidArgumentError, NotAllowedError, ResourceLockedError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.queues.queue import Queue

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


def check_owner(queue: Queue, caller: Caller) -> None:
    """Check that a queue is not exclusive to another caller; the broker itself may use all queues.

    Raises:
        ResourceLockedError: it is exclusive to another caller.
    """
    if caller is not BROKER and queue.owner is not None and queue.owner is not caller:
        raise ResourceLockedError(f'queue "{queue.name}" is exclusive to another session')


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
