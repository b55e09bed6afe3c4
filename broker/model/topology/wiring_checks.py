"""What is asked of names, owners and declarations that come again, before the wiring is changed."""

from __future__ import annotations

from typing import Final

from broker.model.caller import BROKER, Caller
from broker.model.errors import InvalidArgumentError, NotAllowedError, ResourceLockedError
from broker.model.exchanges.exchange import Exchange
from broker.model.queues.queue import Queue

#: What names cannot begin with, but for those that are there: AMQP 0-10, reserved-prefix and reserved-names; qpidd.
QUEUE_NAMES: Final = ("amq.",)
EXCHANGE_NAMES: Final = ("amq.", "qpid.")


def check_name(what: str, name: str, reserved: tuple[str, ...]) -> None:
    """Whether something that is to be made may have this name.

    Raises:
        InvalidArgumentError: it is empty.
        NotAllowedError: it is reserved.
    """
    if not name:
        raise InvalidArgumentError(f"No {what} name specified")
    if name.startswith(reserved):
        raise NotAllowedError(
            f'{what} "{name}" cannot be made: names beginning with {" or ".join(reserved)} are reserved'
        )


def check_owner(queue: Queue, caller: Caller) -> None:
    """Whether a queue is free for this caller; for the broker itself all are.

    Raises:
        ResourceLockedError: it is somebody else's alone.
    """
    if caller is not BROKER and queue.owner is not None and queue.owner is not caller:
        raise ResourceLockedError(f'queue "{queue.name}" is exclusive to another session')


def check_type(exchange: Exchange, type_name: str) -> None:
    """Whether an exchange is of the type that a declaration names; empty for any.

    Raises:
        NotAllowedError: it is of another.
    """
    if type_name and exchange.type_name != type_name:
        raise NotAllowedError(f'exchange "{exchange.name}" is of type "{exchange.type_name}", and not "{type_name}"')


def check_alternate(declared: Exchange | Queue, wanted: Exchange | None) -> None:
    """Whether a queue or exchange has the alternate exchange that a declaration names; None for any.

    Raises:
        NotAllowedError: it has another, or none.
    """
    if wanted is not None and declared.alternate is not wanted:
        what = "exchange" if isinstance(declared, Exchange) else "queue"
        has = "no alternate exchange" if declared.alternate is None else f'alternate "{declared.alternate.name}"'
        raise NotAllowedError(f'{what} "{declared.name}" has {has}, and not "{wanted.name}"')
