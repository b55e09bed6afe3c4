"""Changes of exchanges, queues and bindings, with every check, over the store; and questions about them.

Changes come one after the other, whoever asks for them, and each is made to its end, even if whoever asked is gone by
then. What is durable goes to the store first: the model changes when the store has it on the disk, and stays as it was
if the store cannot. Without a store, durable things are made all the same, and kept by nobody.

Deleting a queue is the exception, since it must not get messages while the store deletes it: it leaves the exchanges
first, gives its messages to its alternate exchange, which keeps them before they leave the queue, and comes back with
its bindings if anything of that fails.

Rules, where AMQP 0-10 (classes exchange and queue) leaves a choice, and their sources (MRG: MRG 2 Messaging User Guide;
Book: Qpid C++ Broker Book):

    declared again      type and alternate exchange must agree, where they are given; all else is ignored  (XML, sticky)
    exclusive           nobody else may declare, bind, unbind, delete, purge or subscribe; anybody may ask  (MRG, 3)
    delete              first if-empty, then if-unused, then exclusive                                      (MRG, 3)
    arguments           those that nobody knows are kept, and mean nothing                             (Book, 1.2.1.4)
    names               "amq." is reserved for both, "qpid." for exchanges
    auto-delete         a queue goes with its owner, if it has one, else with its last consumer (MRG, 3); an exchange
                        with its last binding, unless it is an alternate exchange
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from broker.log.logs import INFO, NOTICE, log_of
from broker.model.authorization import Action, ObjectType
from broker.model.caller import BROKER, Caller
from broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    ResourceLockedError,
)
from broker.model.events import Bind, ExchangeDeclare, ExchangeDelete, QueueDeclare, QueueDelete, Unbind
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding
from broker.model.exchanges.types import STANDARD_EXCHANGES, exchange_type
from broker.model.queues.argument_table import unmet
from broker.model.queues.arguments import read_arguments
from broker.model.queues.queue import Queue
from broker.model.topology.bindings import BindingMaker
from broker.model.topology.deletion import QueueRemoval
from broker.model.topology.kept_wiring import KeptWiring
from broker.model.topology.serial_executor import OneByOne
from broker.model.topology.wiring_checks import (
    EXCHANGE_NAMES,
    QUEUE_NAMES,
    check_alternate,
    check_name,
    check_owner,
    check_type,
)
from formats.values import EMPTY_MAP, TypedMap
from formats.wording import plural

if TYPE_CHECKING:
    from broker.model.authorization import Authorization
    from broker.model.events import Events
    from broker.model.queues.composition import QueueFactory
    from broker.model.queues.idle import IdleQueues

_LOG: Final = log_of("Model")

_Made = TypeVar("_Made")
_Asked = ParamSpec("_Asked")


class BoundReply(NamedTuple):
    """What is not there of a binding that was asked for; all False: it is. 0-10: struct exchange-bound-result."""

    exchange_not_found: bool = False
    queue_not_found: bool = False
    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


def _one_by_one(
    change: Callable[Concatenate[Wiring, _Asked], Coroutine[Any, Any, _Made]],
) -> Callable[Concatenate[Wiring, _Asked], Coroutine[Any, Any, _Made]]:
    """A change that waits for those before it, and that nobody who is gone can break off."""

    @functools.wraps(change)
    async def asked(self: Wiring, /, *arguments: _Asked.args, **named: _Asked.kwargs) -> _Made:
        return await self._changes.do(lambda: change(self, *arguments, **named))

    return asked


class Wiring:
    """Changes the exchanges, queues and bindings of one broker.

    In all of it a `caller` is who asks: the authorizer is asked about it first, and it can have a queue for itself
    alone.

    Args:
        queues: name -> queue.
        exchanges: name -> exchange.
        factory: makes queues.
        idle_queues: auto-delete queues that stay for a while.
        kept: what the store keeps.
        removal: removes queues.
        bindings: makes and removes bindings.
        authorization: says who may do what.
        events: are told of every change.
    """

    def __init__(
        self,
        queues: dict[str, Queue],
        exchanges: dict[str, Exchange],
        *,
        factory: QueueFactory,
        idle_queues: IdleQueues,
        kept: KeptWiring,
        removal: QueueRemoval,
        bindings: BindingMaker,
        authorization: Authorization,
        events: Events,
    ) -> None:
        self._queues, self._exchanges, self._factory, self._idle_queues = queues, exchanges, factory, idle_queues
        self._kept, self._removal, self._bindings = kept, removal, bindings
        self._authorization, self._events = authorization, events
        self._changes = OneByOne()
        self._told: set[str] = set()  # rows of the table of arguments

    async def finish(self) -> None:
        """Wait until no change is under way: before the store is closed."""
        await self._changes.finish()

    # ---- by name ----

    def find_queue(self, name: str) -> Queue:
        """The queue of this name.

        Raises:
            InvalidArgumentError: the name is empty.
            NotFoundError: there is none.
        """
        if not name:
            raise InvalidArgumentError("No queue name specified")
        queue = self._queues.get(name)
        if queue is None:
            raise NotFoundError(f"Queue not found: {name}")
        return queue

    def find_exchange(self, name: str) -> Exchange:
        """The exchange of this name; the default one cannot be named. Raises as `find_queue`."""
        if not name:
            raise InvalidArgumentError("No exchange name specified; the default exchange takes no changes")
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFoundError(f"Exchange not found: {name}")
        return exchange

    # ---- queues ----

    @_one_by_one
    async def declare_queue(
        self,
        name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        alternate: str = "",
        arguments: TypedMap = EMPTY_MAP,
        caller: Caller = BROKER,
    ) -> Queue:
        """Make a queue, or see that there is one like this.

        Args:
            name: its name.
            passive: make none.
            durable: keep it.
            exclusive: it is the caller's alone.
            auto_delete: it goes when it is not used any more.
            alternate: the exchange for messages that are rejected, or left over; empty for none.
            arguments: kept with it; those of the store say how large its journal is.
            caller: who asks; the name of its user is kept with the queue.

        Raises:
            InvalidArgumentError: the name is empty, or an argument cannot be understood.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such alternate exchange, or, if passive, no such queue.
            NotAllowedError: the name is reserved, or the queue has another alternate exchange.
            NotImplementedByBrokerError: an argument asks for a kind of queue that is not there.
            ResourceLockedError: it is somebody else's, or in use and cannot become exclusive.
            InternalError: the store cannot keep it.
        """
        queue = self.find_queue(name) if passive else self._queues.get(name)
        is_new = queue is None
        self._authorization.check(
            caller, Action.CREATE if is_new else Action.ACCESS, ObjectType.QUEUE, name,
            durable=durable, autodelete=auto_delete, exclusive=exclusive, alternate=alternate, arguments=arguments,
        )  # fmt: skip
        wanted = self.find_exchange(alternate) if alternate else None
        if queue is None:
            queue = await self._make_queue(name, durable, auto_delete, alternate, arguments, caller.user)
            queue.alternate, queue.creator = wanted, caller.user
            self._queues[name] = queue
            self._exchanges[""].binding_count.set(len(self._queues))
        else:
            if exclusive or not passive:
                check_owner(queue, caller)
            check_alternate(queue, wanted)
        if exclusive and queue.owner is not _owner(caller):
            if passive or queue.consumer_count:
                raise ResourceLockedError(f'queue "{name}" is in use, and cannot become exclusive')
            queue.owner = _owner(caller)
        host, user = caller.remote_host, caller.user
        self._events.emit(QueueDeclare(host, user, name, durable, exclusive, auto_delete, alternate, arguments, is_new))
        return queue

    async def _make_queue(
        self, name: str, durable: bool, auto_delete: bool, alternate: str, arguments: TypedMap, user: str
    ) -> Queue:
        check_name("queue", name, QUEUE_NAMES)
        asked = read_arguments(arguments)
        self._check_unmet(name, arguments)
        journal = await self._kept.make_queue(name, alternate, arguments, user, auto_delete) if durable else None
        return self._factory.make(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments, asked=asked, journal=journal
        )

    def _check_unmet(self, name: str, arguments: TypedMap) -> None:
        """Refuse what would not be the queue that is asked for; log, once for each argument, what has no effect."""
        found = unmet(arguments)
        for each in found:
            if each.is_refused:
                raise NotImplementedByBrokerError(f'queue "{name}": {each}')
        for each in found:
            level = INFO if each.row.key in self._told else NOTICE
            self._told.add(each.row.key)
            _LOG.log(level, 'Queue "%s": %s', name, each)

    @_one_by_one
    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, caller: Caller = BROKER
    ) -> None:
        """Delete a queue with its bindings; its messages go to its alternate exchange, if it has one.

        Args:
            name: its name.
            if_unused: only if it has no consumers.
            if_empty: only if it has no messages, those that consumers hold included.
            caller: who asks.

        Raises:
            InvalidArgumentError: the name is empty.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such queue.
            PreconditionFailedError: it is not empty, or used.
            ResourceLockedError: it is somebody else's.
            ResourceLimitExceededError: there is no room for its messages where they are to go.
            InternalError: the store cannot delete it.
        """
        queue = self.find_queue(name)
        self._authorization.check(
            caller, Action.DELETE, ObjectType.QUEUE, name,
            durable=queue.durable, autodelete=queue.auto_delete, exclusive=queue.owner is not None,
            alternate="" if queue.alternate is None else queue.alternate.name,
        )  # fmt: skip
        if if_empty and not queue.is_empty:
            raise PreconditionFailedError(
                f'queue "{name}" is not empty: it has {plural(queue.message_count, "message")}'
            )
        if if_unused and queue.consumer_count:
            users = plural(queue.consumer_count, "consumer")
            raise PreconditionFailedError(f'queue "{name}" is in use: it has {users}')
        check_owner(queue, caller)
        await self._delete_queue(queue, caller)

    @_one_by_one
    async def delete_if_unused(self, queue: Queue) -> None:
        """An auto-delete queue has lost its owner or a consumer: delete it, if nobody is left.

        Nobody asked for that, so that errors are only logged.
        """
        if not queue.auto_delete or not queue.is_unused or self._queues.get(queue.name) is not queue:
            return
        if queue in self._idle_queues:
            return  # it was used since this was asked for, and has its time again
        try:
            await self._delete_queue(queue, BROKER)
        except ModelError as error:
            _LOG.error('Auto-delete queue "%s" stays: %s', queue.name, error)

    async def _delete_queue(self, queue: Queue, caller: Caller) -> None:
        left = await self._removal.remove(queue)
        self._events.emit(QueueDelete(caller.remote_host, caller.user, queue.name))
        self._idle_queues.forget(queue)
        for exchange in left:
            await self._delete_if_unbound(exchange)

    # ---- exchanges ----

    @_one_by_one
    async def declare_exchange(
        self,
        name: str,
        type_name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: str = "",
        arguments: TypedMap = EMPTY_MAP,
        caller: Caller = BROKER,
    ) -> Exchange:
        """Make an exchange, or see that there is one like this.

        Args:
            name: its name.
            type_name: the name of its type; for one that is there it may be empty.
            passive: make none.
            durable: keep it.
            auto_delete: it goes with its last binding.
            alternate: the exchange for messages that it has no queue for; empty for none.
            arguments: kept with it.
            caller: who asks.

        Raises:
            InvalidArgumentError: the name is empty.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such type or alternate exchange, or, if passive, no such exchange.
            NotAllowedError: the name is reserved, or the exchange has another type or alternate exchange.
            InternalError: the store cannot keep it.
        """
        exchange = self.find_exchange(name) if passive else self._exchanges.get(name)
        is_new = exchange is None
        self._authorization.check(
            caller, Action.CREATE if is_new else Action.ACCESS, ObjectType.EXCHANGE, name,
            type=type_name, durable=durable, autodelete=auto_delete, alternate=alternate,
        )  # fmt: skip
        wanted = self.find_exchange(alternate) if alternate else None
        if exchange is None or not name:
            check_name("exchange", name, EXCHANGE_NAMES)
            make = exchange_type(type_name)
            exchange = make(name, durable=durable, auto_delete=auto_delete, alternate=wanted, arguments=arguments)
            if durable:
                await self._kept.make_exchange(exchange)
            self._exchanges[name] = exchange
        else:
            check_type(exchange, type_name)
            check_alternate(exchange, wanted)
        host, user = caller.remote_host, caller.user
        self._events.emit(
            ExchangeDeclare(host, user, name, type_name, alternate, durable, auto_delete, arguments, is_new)
        )
        return exchange

    @_one_by_one
    async def delete_exchange(self, name: str, *, if_unused: bool = False, caller: Caller = BROKER) -> None:
        """Delete an exchange with its bindings.

        Args:
            name: its name.
            if_unused: only if no queue is bound to it.
            caller: who asks.

        Raises:
            InvalidArgumentError: the name is empty.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such exchange.
            NotAllowedError: every broker has it, or it is the alternate exchange of another, or of a queue.
            PreconditionFailedError: queues are bound to it.
            InternalError: the store cannot delete it.
        """
        exchange = self.find_exchange(name)
        self._authorization.check(
            caller, Action.DELETE, ObjectType.EXCHANGE, name,
            type=exchange.type_name, durable=exchange.durable,
            alternate="" if exchange.alternate is None else exchange.alternate.name,
        )  # fmt: skip
        if name in STANDARD_EXCHANGES:
            raise NotAllowedError(f'exchange "{name}" is one that every broker has, and cannot be deleted')
        if self._is_alternate(exchange):
            raise NotAllowedError(f'exchange "{name}" is in use as an alternate exchange')
        if if_unused and exchange.has_bindings:
            raise PreconditionFailedError(f'exchange "{name}" is in use: queues are bound to it')
        await self._delete_exchange(exchange, caller)

    async def _delete_exchange(self, exchange: Exchange, caller: Caller) -> None:
        await self._kept.delete_exchange(exchange)
        del self._exchanges[exchange.name]
        exchange.delete()
        self._events.emit(ExchangeDelete(caller.remote_host, caller.user, exchange.name))

    async def _delete_if_unbound(self, exchange: Exchange) -> None:
        """Delete an auto-delete exchange that has lost its last binding. Errors are only logged."""
        if exchange.auto_delete and not exchange.has_bindings and not self._is_alternate(exchange):
            try:
                await self._delete_exchange(exchange, BROKER)
            except ModelError as error:
                _LOG.error('Auto-delete exchange "%s" stays: %s', exchange.name, error)

    def _is_alternate(self, exchange: Exchange) -> bool:
        """Whether a queue or another exchange has it as alternate exchange."""
        return any(each.alternate is exchange for each in self._exchanges.values()) or any(
            each.alternate is exchange for each in self._queues.values()
        )

    @_one_by_one
    async def keep_standard_exchanges(self) -> None:
        """Have the store keep the exchanges that every broker has, so that it can keep bindings to them.

        Raises:
            InternalError: the store cannot keep them.
        """
        for name in STANDARD_EXCHANGES:
            exchange = self._exchanges[name]
            if exchange.store_id is None:
                await self._kept.make_exchange(exchange)

    # ---- bindings ----

    @_one_by_one
    async def bind(
        self,
        queue_name: str,
        exchange_name: str,
        key: str,
        arguments: TypedMap = EMPTY_MAP,
        *,
        caller: Caller = BROKER,
    ) -> Binding | None:
        """Bind a queue to an exchange. Returns the binding; None if it was there.

        Raises:
            InvalidArgumentError: a name is empty, or the exchange needs other arguments.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such queue or exchange.
            NotAllowedError: the queue is bound under this key with other arguments, and they matter.
            ResourceLockedError: the queue is somebody else's.
            InternalError: the store cannot keep it.
        """
        queue, exchange = self.find_queue(queue_name), self.find_exchange(exchange_name)
        self._authorization.check(
            caller, Action.BIND, ObjectType.EXCHANGE, exchange_name, queuename=queue_name, routingkey=key
        )
        check_owner(queue, caller)
        binding = await self._bindings.bind(queue, exchange, key, arguments)
        if binding is not None:
            host, user = caller.remote_host, caller.user
            self._events.emit(Bind(host, user, exchange_name, queue_name, key, arguments))
        return binding

    @_one_by_one
    async def unbind(self, queue_name: str, exchange_name: str, key: str, *, caller: Caller = BROKER) -> Binding:
        """Remove a binding. Returns what it was.

        Raises:
            InvalidArgumentError: a name is empty.
            UnauthorizedError: the caller may not.
            NotFoundError: there is no such queue, exchange or binding.
            ResourceLockedError: the queue is somebody else's.
            InternalError: the store cannot delete it.
        """
        queue, exchange = self.find_queue(queue_name), self.find_exchange(exchange_name)
        self._authorization.check(
            caller, Action.UNBIND, ObjectType.EXCHANGE, exchange_name, queuename=queue_name, routingkey=key
        )
        check_owner(queue, caller)
        binding = await self._bindings.unbind(queue, exchange, key)
        self._events.emit(Unbind(caller.remote_host, caller.user, exchange_name, queue_name, key))
        await self._delete_if_unbound(exchange)
        return binding

    # ---- questions ----

    def bound(
        self, exchange_name: str, queue_name: str = "", key: str | None = None, arguments: TypedMap | None = None
    ) -> BoundReply:
        """Whether there is a binding like this. What is empty or None does not matter: clients send either."""
        exchange, queue = self._exchanges.get(exchange_name), self._queues.get(queue_name)
        queue_not_found = bool(queue_name) and queue is None
        if exchange is None or queue_not_found:
            return BoundReply(exchange is None, queue_not_found)
        return BoundReply(False, False, *exchange.bound(queue, key or None, arguments or None))


def _owner(caller: Caller) -> Caller | None:
    """Whose an exclusive queue is: nobody's, if the broker itself has declared it."""
    return None if caller is BROKER else caller
