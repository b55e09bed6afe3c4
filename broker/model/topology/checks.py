"""Checks before the topology is changed: permissions, names, owners and repeated declarations.

The authorizer is asked about queues, exchanges and bindings, with their properties (`authorization`):

    durable, autodelete, exclusive, alternate     the declaration's; the object's, if it is deleted, or exists and is
                                                  declared passively
    temporary                                     whether it is exclusive and auto-delete, or becomes so: a queue that
                                                  exists may become exclusive, but not auto-delete
    owner                                         the user whose queue it is: who creates it; for a queue that exists,
                                                  the user to whom it is exclusive, or empty; if that is declared again
                                                  and is exclusive to nobody, who has created it
    policytype                                    reject, ring, ring_strict, self-destruct or flow_to_disk
    queuemaxsize, queuemaxcount                   bytes and messages; 0 for no limit. Includes the broker's default
    filemaxsize, filemaxcount                     pages of 64 KiB in a file of the journal, and files; 0 if absent
    paging, pages, pagefactor                     as given; 0 if absent

A declaration that forwards messages also requires permission to publish (`Authorization.check_forwarding`):

    a dead-letter exchange        with its x-dead-letter-routing-key; with every key if messages keep their own
    an alternate exchange         of a queue or an exchange: with every key
    qpid.queue_event_generation   the queue or exchange for events of replicated queues (--replication-queue and so on)
    a binding between exchanges   from a direct exchange: with the binding's key; from a topic exchange: with every key
                                  that it matches; from others: with every key

Redeclaring a queue or an exchange forwards nothing new, and is not checked for this.

The caller is checked before the declaration, so that unauthorized users do not learn what is wrong with it, or whether
the object exists. A value that should be a number and is not counts as the largest number.

Source: Qpid C++ Broker Book, table 1.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.arguments import as_text, is_set, plain, shown
from qstore.broker.model.authorization import EVERY_KEY, Action, ObjectType
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.queues.arguments import (
    DEAD_KEY,
    EVENT_GENERATION,
    LIFETIME,
    MAX_COUNT,
    MAX_SIZE,
    OVERFLOW,
    POLICY_TYPE,
    REJECT,
    dead_letter_arguments,
    mapped,
    policy_named,
)
from qstore.broker.model.queues.queue import Queue
from qstore.formats.broker_records.topology import MAX_NAME, problem_of_new_name
from qstore.formats.values import TypedArray, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization

_LARGEST: Final = (1 << 64) - 1
_WILDCARDS: Final = frozenset("*#")
_AUTO_DELETE: Final = ("delete-if-unused", "delete-on-close", "delete-if-unused-and-empty")

#: Property -> argument, for properties that matter only when a queue is created.
_AT_CREATION: Final[Mapping[str, str]] = {
    "filemaxsize": "qpid.file_size",
    "filemaxcount": "qpid.file_count",
    "pages": "qpid.max_pages_loaded",
    "pagefactor": "qpid.page_factor",
}


class Access:
    """Asks the authorizer of one broker.

    Args:
        authorization: checks operations.
        default_limit: the default limit of a queue, in bytes; 0 for none (`QueueFactory.default_bytes`).
        events_to: destinations of queues' events: an exchange, and a routing key, or None for any.
    """

    def __init__(
        self,
        authorization: Authorization,
        default_limit: Callable[..., int],
        events_to: Sequence[tuple[str, str | None]],
    ) -> None:
        self._authorization, self._default_limit, self._events_to = authorization, default_limit, events_to

    def declare_queue(
        self,
        caller: Caller,
        name: str,
        queue: Queue | None,
        *,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        exclusive: bool,
        alternate: str,
        arguments: TypedMap,
    ) -> None:
        """Raise UnauthorizedError unless the caller may declare a queue; `queue` is the existing one with its name."""
        if not self._authorization.is_on:
            return
        if passive and queue is not None:
            declared = self._existing(queue)
        else:
            declared = self._declared(
                durable, auto_delete, exclusive, alternate, arguments, owner=caller.user, is_new=not passive
            )
            if queue is not None:  # what the caller says of another's queue does not make it his, nor temporary
                existing = self._existing(queue)
                declared["owner"] = existing["owner"] or queue.creator
                declared["temporary"] = existing["autodelete"] and (exclusive or existing["exclusive"])
        action = Action.ACCESS if passive else Action.CREATE
        self._authorization.check(caller, action, ObjectType.QUEUE, name, **declared)
        if not passive and queue is None:
            self._check_ways(caller, name, alternate, arguments)

    def _check_ways(self, caller: Caller, name: str, alternate: str, arguments: TypedMap) -> None:
        """Check the destinations that messages of a new queue may be forwarded to."""
        if alternate:
            self._check_alternate(caller, f'queue "{name}"', alternate)
        with contextlib.suppress(InvalidArgumentError):  # the declaration itself reports this
            dead_letter = dead_letter_arguments(arguments)
            if dead_letter is not None and dead_letter.routing_key is not None:
                self._authorization.check_publish(caller, dead_letter.exchange, dead_letter.routing_key)
            elif dead_letter is not None:
                purpose = f'the dead-letter exchange of queue "{name}", which has no {DEAD_KEY},'
                self._authorization.check_forwarding(caller, dead_letter.exchange, EVERY_KEY, purpose)
        if arguments.get(EVENT_GENERATION) is None:
            return
        for exchange, key in self._events_to:
            if key is not None:
                self._authorization.check_publish(caller, exchange, key)
            else:
                purpose = f'{EVENT_GENERATION} of queue "{name}"'
                self._authorization.check_forwarding(caller, exchange, EVERY_KEY, purpose)

    def _check_alternate(self, caller: Caller, whose: str, alternate: str) -> None:
        purpose = f"the alternate exchange of {whose}"
        self._authorization.check_forwarding(caller, alternate, EVERY_KEY, purpose)

    def delete_queue(self, caller: Caller, name: str, queue: Queue | None) -> None:
        """Raise UnauthorizedError unless the caller may delete a queue; None if there is none."""
        if not self._authorization.is_on:
            return
        existing = {} if queue is None else self._existing(queue)
        what = {each: value for each, value in existing.items() if not each.startswith("queuemax")}
        self._authorization.check(caller, Action.DELETE, ObjectType.QUEUE, name, **what)

    def declare_exchange(
        self,
        caller: Caller,
        name: str,
        exchange: Exchange | None,
        *,
        passive: bool,
        type_name: str,
        durable: bool,
        auto_delete: bool,
        alternate: str,
    ) -> None:
        """Raise UnauthorizedError unless the caller may declare an exchange; `exchange` is the existing one."""
        if not self._authorization.is_on:
            return
        if passive and exchange is not None:
            what = {**_existing_exchange(exchange), "autodelete": exchange.auto_delete}
        else:
            what = {"type": type_name, "durable": durable, "autodelete": auto_delete, "alternate": alternate}
        action = Action.ACCESS if passive else Action.CREATE
        self._authorization.check(caller, action, ObjectType.EXCHANGE, name, **what)
        if alternate and not passive and exchange is None:
            self._check_alternate(caller, f'exchange "{name}"', alternate)

    def delete_exchange(self, caller: Caller, name: str, exchange: Exchange | None) -> None:
        """Raise UnauthorizedError unless the caller may delete an exchange; None if there is none."""
        if self._authorization.is_on:
            what = {} if exchange is None else _existing_exchange(exchange)
            self._authorization.check(caller, Action.DELETE, ObjectType.EXCHANGE, name, **what)

    def binding(self, caller: Caller, action: Action, exchange: str, queue: str, key: str) -> None:
        """Raise UnauthorizedError unless the caller may bind or unbind."""
        self._authorization.check(caller, action, ObjectType.EXCHANGE, exchange, queuename=queue, routingkey=key)

    def exchange_binding(
        self, caller: Caller, source: str, exchange: Exchange | None, destination: str, key: str
    ) -> None:
        """Raise UnauthorizedError unless the caller may bind an exchange to another one, the source, with a key."""
        self.binding(caller, Action.BIND, source, destination, key)
        kind = "" if exchange is None else exchange.routing_type
        if kind == "direct" or (kind == "topic" and _WILDCARDS.isdisjoint(key.split("."))):
            self._authorization.check_publish(caller, destination, key)
            return
        pattern = key if kind == "topic" else EVERY_KEY
        purpose = f'the binding of exchange "{destination}" to exchange "{source}"'
        self._authorization.check_forwarding(caller, destination, pattern, purpose)

    def _existing(self, queue: Queue) -> dict[str, Any]:
        alternate = "" if queue.alternate is None else queue.alternate.name
        owner = str(getattr(queue.owner, "user", ""))
        is_exclusive = queue.owner is not None
        return self._declared(
            queue.durable, queue.auto_delete, is_exclusive, alternate, queue.arguments, owner=owner, is_new=False
        )

    def _declared(
        self,
        durable: bool,
        auto_delete: bool,
        exclusive: bool,
        alternate: str,
        arguments: TypedMap,
        *,
        owner: str,
        is_new: bool,
    ) -> dict[str, Any]:
        has_overflow = any(name == OVERFLOW for name, _ in arguments.entries)
        with contextlib.suppress(InvalidArgumentError):  # the declaration itself reports this
            arguments = mapped(arguments)
        given = {name: as_text(typed.value) for name, typed in arguments.entries}
        lifetime, policy = given.get(LIFETIME), policy_named(given.get(POLICY_TYPE, REJECT))
        count = _number(given.get(MAX_COUNT))
        default = self._default_limit(policy, durable=durable, has_other=has_overflow or count > 0)
        is_auto_delete = auto_delete if lifetime is None else lifetime in _AUTO_DELETE
        found: dict[str, Any] = {
            "durable": durable,
            "autodelete": is_auto_delete,
            "exclusive": exclusive,
            "temporary": exclusive and is_auto_delete,
            "owner": owner,
            "alternate": alternate,
            "policytype": policy,
            "queuemaxsize": _number(given.get(MAX_SIZE, default)),
            "queuemaxcount": count,
        }
        if is_new:
            found["paging"] = is_set(given.get("qpid.paging"))
            found.update({name: _number(given.get(argument)) for name, argument in _AT_CREATION.items()})
        return found


def _existing_exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "type": exchange.type_name,
        "durable": exchange.durable,
        "alternate": "" if exchange.alternate is None else exchange.alternate.name,
    }


def _number(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(_LARGEST)):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else _LARGEST


# ---- names, owners and repeated declarations ----

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
    """Check the key of a new binding: routing keys are any bytes, but the protocols carry at most 255.

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
    """Check that a caller may see the messages of a queue, or have them moved, there or away, or removed.

    A queue that is exclusive to an AMQP 0-9-1 connection is only accessible to that connection, even for management.
    One that is exclusive to an AMQP 0-10 session can be browsed and managed, as in qpidd.

    Raises:
        ResourceLockedError: it is exclusive to another connection.
    """
    if queue.is_private and not is_owned_by(queue, caller) and caller is not BROKER and queue.owner is not None:
        raise ResourceLockedError(f'queue "{queue.name}" is exclusive to another connection')


def is_owned_by(queue: Queue, caller: Caller) -> bool:
    """Whether a queue is exclusive to a caller, or to the connection of a management request."""
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
    is_policys = isinstance(declared, Exchange) and declared.has_policy_alternate
    alternate = None if is_policys else declared.alternate
    if wanted is not None and alternate is not wanted:
        what = "exchange" if isinstance(declared, Exchange) else "queue"
        has = "no alternate exchange" if alternate is None else f'alternate "{alternate.name}"'
        raise NotAllowedError(f'{what} "{declared.name}" has {has}, not "{wanted.name}"')


def check_dependency(what: str, is_durable: bool, exchange: Exchange | None) -> None:
    """Check that something durable does not depend on an exchange that is not.

    Raises:
        NotAllowedError: it does.
    """
    if is_durable and exchange is not None and not exchange.durable:
        text = f'durable {what} cannot depend on exchange "{exchange.name}", which is not durable'
        raise NotAllowedError(f"{text}: the broker has --strict-durability")


def owner_of(caller: Caller) -> Caller | None:
    """The owner of a queue declared exclusive: none, if the broker itself has declared it."""
    return None if caller is BROKER else caller


def check_queue_alike(queue: Queue, durable: bool, auto_delete: bool, exclusive: bool, arguments: TypedMap) -> None:
    """Raise PreconditionFailedError unless a queue was declared like this."""
    _check_alike(
        f"queue '{queue.name}' in vhost '{queue.host}'",
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
        f"exchange '{exchange.name}' in vhost '{exchange.host}'",
        (exchange.arguments, arguments),
        type=(exchange.type_name, type_name),
        durable=(exchange.durable, durable),
        auto_delete=(exchange.auto_delete, auto_delete),
    )


def _check_alike(what: str, arguments: tuple[TypedMap, TypedMap], **properties: tuple[object, object]) -> None:
    """Compare an existing object with a declaration; numbers of any width. Raises PreconditionFailedError."""
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
    """A value as RabbitMQ's errors print it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return shown(value) if isinstance(value, str) else f"'{shown(value)}'"
