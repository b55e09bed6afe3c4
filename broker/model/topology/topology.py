"""Changes exchanges, queues and bindings, with all checks, in the store and the model; and answers queries.

Changes of the same queue or exchange run one after the other (`changes`), each to its end even if its caller
has disconnected. Durable objects are stored first: the model changes when they are on the disk, and stays unchanged if
the store fails. Without a store, durable objects are created, but not persisted.

Deleting a queue is the exception, because it must not get messages while the store deletes it: it is first removed from
the exchanges, and its messages move to its alternate exchange, where they are stored before they leave the queue; if a
step fails, the queue and its bindings are restored.

Rules where AMQP 0-10 (classes exchange and queue) leaves a choice, and their sources (MRG: MRG 2 Messaging User Guide;
Book: Qpid C++ Broker Book):

    redeclaration       type and alternate exchange must agree, if given; all else is ignored  (XML, sticky)
    exclusive           other callers may not declare, bind, unbind, delete, purge or subscribe, but may query  (MRG, 3)
                        and browse  (qpidd); queues declared by AMQP 0-9-1 are private, and cannot be browsed either
    delete              checks in this order: if-empty, if-unused, exclusive  (MRG, 3)
    arguments           unsupported ones are refused, unknown ones are stored  (`model/arguments`)
    names               1 to 255 bytes of text; "amq." is reserved for both, "qpid." for exchanges; but Qpid's C++
                        clients name the queue of a subscription EXCHANGE_UUID, as amq.topic_9f3c…, and qpidd allows it
    auto-delete         a queue is deleted with its owner, if it has one, else with its last consumer  (MRG, 3); an
                        exchange with its last binding, unless it is an alternate exchange
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.log.logs import DEBUG, log_of
from qstore.broker.model.arguments import (
    AUTO_DELETE,
    DELETES_SLOW,
    DURABLE,
    EXCLUSIVE,
    EXCLUSIVE_BINDING,
    FED_OP,
    FED_ORIGIN,
    FED_TAGS,
    REPLICATING,
    ArgumentCheck,
    IdleArgument,
    Of,
    plain,
    shown,
)
from qstore.broker.model.authorization import Action
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from qstore.broker.model.events import (
    Bind,
    BindingRemoved,
    ExchangeDeclare,
    ExchangeDelete,
    QueueDeclare,
    QueueDelete,
    Unbind,
)
from qstore.broker.model.exchanges.delayed import DELAYED
from qstore.broker.model.exchanges.exchange import BoundReply, Exchange, refresh, with_internal
from qstore.broker.model.exchanges.history import RecentHistoryExchange, history_arguments, history_name
from qstore.broker.model.exchanges.origins import BIND, MARK, REORIGIN, SWEEP, UNBIND, text_of
from qstore.broker.model.exchanges.replication import ReplicationExchange
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.exchanges.types import (
    PROTECTED_EXCHANGES,
    STANDARD_EXCHANGES,
    exchange_type,
    join_host,
    load_type,
    misplaced,
    must_load,
)
from qstore.broker.model.queues.arguments import QueueArguments
from qstore.broker.model.queues.arguments import check_type as check_queue_type
from qstore.broker.model.queues.due import HISTORY, WAITING
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.schedule import ARGUMENTS
from qstore.broker.model.topology.bindings import BindingMaker, ExchangeBindings
from qstore.broker.model.topology.changes import TopologyStorage, of_one_queue, serialized
from qstore.broker.model.topology.checks import (
    EXCHANGE_NAMES,
    QUEUE_NAMES,
    check_alternate,
    check_awaited,
    check_dependency,
    check_exchange_alike,
    check_key,
    check_name,
    check_owner,
    check_queue_alike,
    check_type,
    find_exchange,
    owner_of,
)
from qstore.broker.model.topology.deletion import (
    BINDINGS_AT_ONCE,
    DELETED_AT_ONCE,
    QueueRemoval,
    in_portions,
    unbind_all,
)
from qstore.formats.values import EMPTY_MAP, TypedMap
from qstore.formats.wording import plural

if TYPE_CHECKING:
    from qstore.broker.model.events import Events
    from qstore.broker.model.queues.composition import QueueFactory
    from qstore.broker.model.queues.expiry import IdleQueues
    from qstore.broker.model.quotas import Quotas
    from qstore.broker.model.replication.events import CopySeal
    from qstore.broker.model.schedule import Schedule
    from qstore.broker.model.topology.checks import Access

_LOG: Final = log_of("Model")

_DELETED_AT_ONCE: Final = 100
"""Queues of a virtual host that are deleted together."""

#: Changes that follow from another one.
Following: TypeAlias = "Sequence[asyncio.Task[None]]"


class Topology:
    """Changes the exchanges, queues and bindings of one virtual host.

    `caller` requests an operation: the authorizer checks it first, and queues can be exclusive to it.

    Args:
        queues: name -> queue.
        exchanges: name -> exchange.
        make_queue: creates a queue of its virtual host (`QueueFactory.make`).
        idle_arguments: the arguments of a queue that have no effect beside the others (`QueueFactory.idle_arguments`).
        factory: reads the arguments of queues.
        idle_queues: unused auto-delete queues whose timeout is running.
        storage: stores the topology.
        removal: deletes queues.
        bindings: creates and removes bindings.
        bound_exchanges: likewise, between exchanges.
        access: checks operations.
        quotas: limits the queues of each user.
        events: emits an event for every change.
        arguments: checks the arguments of declarations.
        schedule: the messages that wait for their delivery time.
        seal: makes and reads the header of copies of replicated messages.

    Attributes:
        changes: runs the changes, in order.
        awaiting: exchange or queue -> the name of its alternate exchange, which does not exist yet; it is set when an
            exchange with that name is declared.
        exchange_created: called with each new exchange.
        strict_durability: whether what is durable may not depend on exchanges that are not.
        max_queues: the most queues that the virtual host may have; None for no limit.
    """

    def __init__(
        self,
        queues: dict[str, Queue],
        exchanges: dict[str, Exchange],
        *,
        make_queue: Callable[..., Queue],
        idle_arguments: Callable[..., list[IdleArgument]],
        factory: QueueFactory,
        idle_queues: IdleQueues,
        storage: TopologyStorage,
        removal: QueueRemoval,
        bindings: BindingMaker,
        bound_exchanges: ExchangeBindings,
        access: Access,
        quotas: Quotas,
        events: Events,
        arguments: ArgumentCheck,
        schedule: Schedule,
        seal: CopySeal,
    ) -> None:
        self._schedule, self._seal = schedule, seal
        self._queues, self._exchanges, self._idle_queues = queues, exchanges, idle_queues
        self._make, self._idle_arguments, self._factory = make_queue, idle_arguments, factory
        self._storage, self._removal, self._bindings = storage, removal, bindings
        self._bound_exchanges, bound_exchanges.unbound = bound_exchanges, self._delete_if_unbound
        self._quotas, self._events = quotas, events
        self._access = access
        self.changes = bound_exchanges.changes
        self._arguments = arguments
        self.awaiting: dict[Exchange | Queue, str] = {}
        self.max_queues: int | None = None
        self.strict_durability = False
        self._being_made = 0
        self.exchange_created: Callable[[Exchange], None] = lambda _exchange: None

    async def finish(self) -> None:
        """Wait until no change is pending. Called before the store is closed."""
        await self.changes.finish()

    # ---- by name ----

    def find_queue(self, name: str) -> Queue:
        """The queue with this name.

        Raises:
            InvalidArgumentError: the name is empty.
            NotFoundError: there is none.
        """
        if not name:
            raise InvalidArgumentError("No queue name specified")
        queue = self._queues.get(name)
        if queue is None:
            raise NotFoundError(f"Queue not found: {name}", kind="queue", name=name)
        return queue

    def find_exchange(self, name: str) -> Exchange:
        """The exchange with this name, which cannot be the default one. Raises as `find_queue`."""
        return find_exchange(self._exchanges, name)

    # ---- queues ----

    @of_one_queue
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
        is_exact: bool = False,
        must_be_new: bool = False,
        is_server_named: bool = False,
        is_private: bool = False,
    ) -> Queue:
        """Create a queue, or check that it exists as declared.

        Args:
            name: its name.
            passive: only check.
            durable: store it.
            exclusive: make it exclusive to the caller.
            auto_delete: delete it when it becomes unused.
            alternate: the exchange for rejected messages, and those left at deletion; empty for none.
            arguments: stored with it; some set the size of its journal.
            caller: the caller; its user name is stored with the queue.
            is_exact: whether an existing queue must have been declared with the same properties and arguments.
            must_be_new: whether there must be no such queue yet: one that is made at the same time counts.
            is_server_named: whether the name was chosen by the broker, and may be a reserved one.
            is_private: whether others may not even browse it if it is exclusive (`check_private`). It ends with its
                owner then, so that one which exists does not become exclusive.

        Raises:
            PreconditionFailedError: with `is_exact`, the queue was declared differently; with `must_be_new`, it exists.
            InvalidArgumentError: the name is empty, or an argument is not valid.
            UnauthorizedError: the caller is not allowed to.
            NotFoundError: there is no such alternate exchange, or, if passive, no such queue.
            NotAllowedError: the name is reserved, or the queue has another alternate exchange.
            NotImplementedByBrokerError: an argument requests an unsupported kind of queue.
            ResourceLockedError: it is exclusive to another caller, or in use and cannot become exclusive.
            InternalError: the store cannot store it.
        """
        queue = self._queues.get(name)
        is_new = queue is None
        self._access.declare_queue(
            caller, name, queue, passive=passive, durable=durable, auto_delete=auto_delete, exclusive=exclusive,
            alternate=alternate, arguments=arguments,
        )  # fmt: skip
        if passive:
            queue = self.find_queue(name)
        wanted = self.find_exchange(alternate) if alternate else None
        if self.strict_durability and queue is None:
            check_dependency(f'queue "{name}"', durable, wanted)
        if queue is None:
            self._check_room(name)
            self._quotas.check_queue(caller, name)
            if not is_server_named:
                exchange, *after = name.split("_", 1)
                check_name("queue", name, () if after and exchange in self._exchanges else QUEUE_NAMES)
            self._quotas.queue_created(caller.user)  # it counts from now on: others are declared at the same time
            self._being_made += 1
            try:
                parsed = self._factory.read(name, arguments, durable=durable)
                check_queue_type(
                    name, parsed, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                    is_server_named=is_server_named, has_alternate=bool(alternate),
                )  # fmt: skip
                if parsed.is_stream:
                    await self._factory.forget_stream(self._storage.host, name)
                queue = await self._make_queue(
                    name, durable, auto_delete, alternate, arguments, parsed, caller.user, is_exclusive=exclusive
                )
            except BaseException:
                self._quotas.queue_deleted(caller.user)
                raise
            finally:
                self._being_made -= 1
            queue.alternate, queue.creator = wanted, caller.user
            self._queues[name] = queue
            self._exchanges[""].binding_count.set(len(self._queues))
        else:
            if must_be_new:
                raise PreconditionFailedError(f'queue "{name}" exists')
            if exclusive or not passive:
                check_owner(queue, caller)
            check_alternate(queue, wanted)
            if is_exact and not passive:
                check_queue_alike(queue, durable, auto_delete, exclusive, arguments)
            elif not passive:
                self._kept(f'queue "{name}"', queue, durable, auto_delete, arguments)
        if exclusive and queue.owner is not owner_of(caller):
            if passive or queue.consumer_count or (is_private and not is_new):
                state = "in use" if passive or queue.consumer_count else "shared"
                raise ResourceLockedError(f'queue "{name}" is {state} and cannot become exclusive')
            queue.owner, queue.is_private = owner_of(caller), is_private
        self._idle_queues.used(queue)
        host, user = caller.remote_host, caller.user
        event = QueueDeclare(host, user, name, durable, exclusive, auto_delete, alternate, arguments, is_new)
        self._events.emit(event, caller)
        return queue

    def _check_room(self, name: str) -> None:
        """Raise PreconditionFailedError if the virtual host may not have another queue."""
        if self.max_queues is not None and len(self._queues) + self._being_made >= self.max_queues:
            limit = f"the limit of its virtual host, {plural(self.max_queues, 'queue')}, is reached"
            raise PreconditionFailedError(f'queue "{name}" cannot be declared: {limit}')

    async def _make_queue(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        alternate: str,
        arguments: TypedMap,
        parsed: QueueArguments,
        user: str,
        *,
        is_exclusive: bool = False,
    ) -> Queue:
        is_auto_delete = auto_delete if parsed.auto_delete is None else parsed.auto_delete
        conditions = (
            (DURABLE, durable and self._factory.has_store), (AUTO_DELETE, is_auto_delete), (EXCLUSIVE, is_exclusive),
            (REPLICATING, self._factory.listener is not None), (DELETES_SLOW, parsed.patrol.slow_policy == "delete"),
        )  # fmt: skip
        given = [name for name, is_so in conditions if is_so]
        self._arguments.check(Of.QUEUE, f'queue "{name}"', arguments, given)
        if arguments.entries:
            idle = self._idle_arguments(name, arguments, durable=durable, auto_delete=auto_delete)
            self._arguments.idle(f'queue "{name}"', idle)
        journal = await self._storage.create_queue(name, alternate, arguments, user, auto_delete) if durable else None
        return self._make(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments, parsed=parsed, journal=journal
        )

    @serialized
    async def open_schedule(self) -> None:
        """Make the queue for messages that wait for their delivery time, unless there is one.

        Raises:
            PreconditionFailedError: the virtual host may not have another queue.
            InternalError: the store cannot store it.
        """
        await self._open_schedule()

    async def open_own_queues(self) -> None:
        """After a restart: make what exchanges need and a crash has prevented: the broker's own queues, and its seal.

        Such queues that no exchange needs are deleted.

        Raises:
            InternalError: the store fails.
        """
        if any(each.type_name == DELAYED for each in self._exchanges.values()):
            await self.open_schedule()
        await self._open_histories()
        if any(isinstance(each, ReplicationExchange) for each in self._exchanges.values()):
            await self._seal.prepare()

    @serialized
    async def _open_histories(self) -> None:
        for exchange in list(self._exchanges.values()):
            if isinstance(exchange, RecentHistoryExchange) and exchange.history.queue is None:
                exchange.history.queue = await self._open_history(exchange)
        kept = {each.history.queue for each in self._exchanges.values() if isinstance(each, RecentHistoryExchange)}
        for queue in [each for name, each in self._queues.items() if name.startswith(HISTORY) and each not in kept]:
            await self._delete_or_log(queue)

    async def _open_schedule(self) -> None:
        if WAITING not in self._queues:
            await self._make_own_queue(WAITING, ARGUMENTS, durable=True)

    async def _open_history(self, exchange: RecentHistoryExchange) -> Queue:
        """The queue of a new exchange. Raises as `open_schedule`, or InvalidArgumentError: its name is too long."""
        name = history_name(exchange.name)
        left = self._queues.get(name)
        if left is not None:  # its deletion has failed
            await self._delete_queue(left, BROKER)
        return await self._make_own_queue(name, history_arguments(exchange.arguments), durable=exchange.durable)

    async def _make_own_queue(self, name: str, arguments: TypedMap, *, durable: bool) -> Queue:
        self._check_room(name)
        parsed = self._factory.read(name, arguments, durable=durable)
        queue = await self._make_queue(name, durable, False, "", arguments, parsed, BROKER.user)
        self._queues[name] = queue
        self._exchanges[""].binding_count.set(len(self._queues))
        event = QueueDeclare(BROKER.remote_host, BROKER.user, name, durable, True, False, "", arguments, True)
        self._events.emit(event, BROKER)
        return queue

    async def delete_queue(
        self,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        counts_held: bool = True,
        caller: Caller = BROKER,
    ) -> None:
        """Delete a queue with its bindings; its messages move to its alternate exchange, if it has one.

        Args:
            name: its name.
            if_unused: only if it has no consumers.
            if_empty: only if it has no messages.
            counts_held: whether those that consumers hold count for `if_empty`; clients of RabbitMQ expect that they
                do not.
            caller: the caller.

        Raises:
            InvalidArgumentError: the name is empty.
            UnauthorizedError: the caller is not allowed to.
            NotFoundError: there is no such queue.
            PreconditionFailedError: it is not empty, or used.
            ResourceLockedError: it is exclusive to another caller.
            ResourceLimitExceededError: there is no room for its messages at their destination.
            InternalError: the store cannot delete it.
        """
        await _ended(
            await self._delete_if(name, if_unused=if_unused, if_empty=if_empty, counts_held=counts_held, caller=caller)
        )

    @of_one_queue
    async def _delete_if(
        self, name: str, *, if_unused: bool, if_empty: bool, counts_held: bool, caller: Caller
    ) -> Following:
        self._access.delete_queue(caller, name, self._queues.get(name))
        queue = self.find_queue(name)
        count = queue.message_count if counts_held else queue.available_count
        if if_empty and count:
            raise PreconditionFailedError(f'queue "{name}" is not empty: it has {plural(count, "message")}')
        if if_unused and queue.consumer_count:
            users = plural(queue.consumer_count, "consumer")
            raise PreconditionFailedError(f'queue "{name}" is in use: it has {users}')
        check_owner(queue, caller)
        return await self._delete_queue(queue, caller)

    async def delete_if_unused(self, queue: Queue) -> None:
        """Delete a queue that is auto-delete, or has expired, if it is unused. Errors are logged."""
        await _ended(await self.changes.do(lambda: self._delete_unused(queue), queue.name))

    async def _delete_unused(self, queue: Queue) -> Following:
        has_expired = queue.expires_seconds > 0 and not queue.consumer_count
        if not (has_expired or (queue.auto_delete and queue.is_unused)) or self._queues.get(queue.name) is not queue:
            return ()
        if self._idle_queues.keeps(queue):
            return ()
        return await self._delete_or_log(queue)

    async def self_destruct(self, name: str) -> None:
        """Delete a queue that has exceeded its limit. Errors are logged: no client waits for this."""
        await _ended(await self._destroy(name))

    @of_one_queue
    async def _destroy(self, name: str) -> Following:
        queue = self._queues.get(name)
        if queue is None:
            return ()
        _LOG.warning('Queue "%s" has exceeded its limit and is deleted, according to its policy', name)
        return await self._delete_or_log(queue)

    async def _delete_or_log(self, queue: Queue) -> Following:
        try:
            return await self._delete_queue(queue, BROKER)
        except ModelError as error:
            _LOG.error('Queue "%s" was not deleted: %s', queue.name, error)
        return ()

    async def _delete_queue(self, queue: Queue, caller: Caller) -> Following:
        left = await self._removal.remove(queue)
        self.awaiting.pop(queue, None)
        self._quotas.queue_deleted(queue.creator)
        for exchange, bindings in left.items():
            await self._emit_removed(exchange, bindings, caller)
        self._events.emit(QueueDelete(caller.remote_host, caller.user, queue.name), caller)
        if _LOG.is_on(DEBUG):
            _log_statistics("queue", queue.name, queue.totals._asdict())
        self._idle_queues.forget(queue)
        return self._were_left(left)

    # ---- exchanges ----

    @serialized
    async def declare_exchange(
        self,
        name: str,
        type_name: str,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: str = "",
        internal: bool = False,
        arguments: TypedMap = EMPTY_MAP,
        caller: Caller = BROKER,
        is_exact: bool = False,
    ) -> Exchange:
        """Create an exchange, or check that it exists as declared.

        Args:
            name: its name.
            type_name: the name of its type; may be empty for an existing one.
            passive: only check.
            durable: store it.
            auto_delete: delete it with its last binding.
            alternate: the exchange for messages that match no queue; empty for none. With `is_exact` it may be
                declared later.
            internal: whether clients of AMQP 0-9-1 cannot publish to it; stored as an argument.
            arguments: stored with it.
            caller: the caller.
            is_exact: whether an existing exchange must have been declared with the same properties and arguments.

        Raises:
            InvalidArgumentError: the name is empty, or the alternate exchange's name is invalid.
            UnauthorizedError: the caller is not allowed to.
            NotFoundError: there is no such type or alternate exchange, or, if passive, no such exchange.
            InvalidArgumentError: also if the type needs other arguments.
            NotAllowedError: the name is reserved, or the exchange has another type or alternate exchange.
            PreconditionFailedError: with `is_exact`, the exchange was declared differently.
            NotImplementedByBrokerError: an argument is not supported for exchanges.
            InternalError: the store cannot store it.
        """
        if internal:
            arguments = with_internal(arguments)
        exchange = self._exchanges.get(name)
        is_new = exchange is None
        self._access.declare_exchange(
            caller, name, exchange, passive=passive, type_name=type_name, durable=durable, auto_delete=auto_delete,
            alternate=alternate,
        )  # fmt: skip
        if passive:
            exchange = self.find_exchange(name)
        is_later = is_exact and alternate not in self._exchanges
        wanted = self.find_exchange(alternate) if alternate and not is_later else None
        if exchange is None or not name:
            check_name("exchange", name, EXCHANGE_NAMES)
            if self.strict_durability:
                check_dependency(f'exchange "{name}"', durable, wanted)
            if must_load(type_name):
                await asyncio.to_thread(load_type, type_name)
            make = exchange_type(type_name, arguments)
            if is_later:
                check_awaited(f'exchange "{name}"', alternate)
            self._arguments.check(Of.EXCHANGE, f'exchange "{name}"', arguments)
            for misplaced_name, its_type in misplaced(type_name, arguments):
                why = f"it is for exchanges of type {its_type}, and this one is of type {type_name}"
                self._arguments.field_ignored(f'Exchange "{name}"', "argument", misplaced_name, why)
            exchange = make(name, durable=durable, auto_delete=auto_delete, alternate=wanted, arguments=arguments)
            join_host(exchange, self._exchanges[""].host, self._queues, self._schedule, self._seal)
            if type_name == DELAYED:
                await self._open_schedule()
            if isinstance(exchange, RecentHistoryExchange):
                exchange.history.queue = await self._open_history(exchange)
            if isinstance(exchange, ReplicationExchange):
                await self._seal.prepare()
            if durable:
                await self._storage.create_exchange(exchange, alternate)
            self._exchanges[name] = exchange
            if is_later:
                self.awaiting[exchange] = alternate
            self._link_users(exchange)
            self.exchange_created(exchange)
        else:
            if is_exact and not passive:
                check_exchange_alike(exchange, type_name, durable, auto_delete, arguments)
            check_type(exchange, type_name)
            check_alternate(exchange, wanted)
            if not passive and not is_exact:
                self._kept(f'exchange "{name}"', exchange, durable, auto_delete, arguments)
        host, user = caller.remote_host, caller.user
        self._events.emit(
            ExchangeDeclare(host, user, name, type_name, alternate, durable, auto_delete, arguments, is_new), caller
        )
        return exchange

    def _link_users(self, exchange: Exchange) -> None:
        """Make a new exchange the alternate exchange of those that await one with its name."""
        users = [user for user, name in self.awaiting.items() if name == exchange.name] if self.awaiting else []
        for user in users:
            del self.awaiting[user]
            user.alternate = exchange
        if users:
            refresh(self._exchanges.values())

    def _kept(self, what: str, found: Queue | Exchange, durable: bool, auto_delete: bool, arguments: TypedMap) -> None:
        """Log properties that an existing queue or exchange keeps although it is declared differently."""
        current = {DURABLE: found.durable, AUTO_DELETE: found.auto_delete, **plain(found.arguments)}
        asked = {name: True for name, is_asked in ((DURABLE, durable), (AUTO_DELETE, auto_delete)) if is_asked}
        self._arguments.kept(what, current, asked | plain(arguments))

    @serialized
    async def delete_exchange(
        self, name: str, *, if_unused: bool = False, is_awaited: bool = False, caller: Caller = BROKER
    ) -> None:
        """Delete an exchange with its bindings.

        Args:
            name: its name.
            if_unused: only if no queue or exchange is bound to it.
            is_awaited: whether it may be the alternate exchange of other exchanges. These have none until it is
                declared again.
            caller: the caller.

        Raises:
            InvalidArgumentError: the name is empty.
            UnauthorizedError: the caller is not allowed to.
            NotFoundError: there is no such exchange.
            NotAllowedError: it is a standard exchange, or the alternate exchange of a queue or, without `is_awaited`,
                of an exchange.
            PreconditionFailedError: queues or exchanges are bound to it.
            InternalError: the store cannot delete it.
        """
        self._access.delete_exchange(caller, name, self._exchanges.get(name))
        exchange = self.find_exchange(name)
        if name in PROTECTED_EXCHANGES:
            raise NotAllowedError(f'exchange "{name}" is a standard exchange and cannot be deleted')
        if self._is_alternate_of_queue(exchange) or (not is_awaited and self._is_alternate(exchange)):
            raise NotAllowedError(f'exchange "{name}" is in use as an alternate exchange')
        if if_unused and exchange.has_bindings:
            raise PreconditionFailedError(f'exchange "{name}" is in use: queues or exchanges are bound to it')
        await self._delete_exchange(exchange, caller)

    async def _delete_exchange(self, exchange: Exchange, caller: Caller) -> None:
        others = self._bound_exchanges.of(exchange)
        await self._storage.delete_exchange(exchange, others)
        del self._exchanges[exchange.name]
        self.awaiting.pop(exchange, None)
        for user in self._exchanges.values():
            if user.alternate is exchange:
                user.alternate = None
                self.awaiting[user] = exchange.name
        sources = await self._bound_exchanges.ended(others, caller)
        for number, queue in enumerate(exchange.bound_queues, 1):
            await self._emit_removed(exchange, await unbind_all(exchange, queue), caller)
            if not number % BINDINGS_AT_ONCE:
                await asyncio.sleep(0)
        exchange.delete()
        self._events.emit(ExchangeDelete(caller.remote_host, caller.user, exchange.name), caller)
        if _LOG.is_on(DEBUG):
            _log_statistics("exchange", exchange.name, asdict(exchange.counts))
        if isinstance(exchange, RecentHistoryExchange) and exchange.history.queue is not None:
            await self._delete_or_log(exchange.history.queue)
        for source in sources:
            await self._delete_if_unbound(source)

    async def clear(self) -> None:
        """Delete all queues and exchanges, also the standard ones, of a virtual host that is being deleted.

        No message is moved anywhere.

        Raises:
            InternalError: the store cannot delete them.
        """
        while self._queues:
            names = list(self._queues)
            deleted = [self._delete_of_host(name) for name in names[:_DELETED_AT_ONCE]]
            failed = [each for each in await asyncio.gather(*deleted, return_exceptions=True) if each is not None]
            if failed:
                raise failed[0]
        await self.finish()
        await self._clear_exchanges()

    @of_one_queue
    async def _delete_of_host(self, name: str) -> None:
        queue = self._queues.get(name)
        if queue is not None:
            queue.alternate = None
            await self._delete_queue(queue, BROKER)

    @serialized
    async def _clear_exchanges(self) -> None:
        for number, exchange in enumerate([each for each in self._exchanges.values() if each.name], 1):
            await self._storage.delete_exchange(exchange, exchange.onward or ())  # others to it go with their sources
            del self._exchanges[exchange.name]
            exchange.alternate, exchange.onward = None, None
            exchange.forget_routes()
            exchange.delete()
            self._events.emit(ExchangeDelete(BROKER.remote_host, BROKER.user, exchange.name), BROKER)
            if not number % DELETED_AT_ONCE:
                await asyncio.sleep(0)

    async def _emit_removed(self, exchange: Exchange, bindings: list[Binding], caller: Caller) -> None:
        """Emit events for bindings that have ended without a request, in portions."""
        async for each in in_portions(bindings):
            self._events.emit(BindingRemoved(exchange.name, each.queue.name, each.key), caller)

    async def delete_if_left(self, exchange: Exchange) -> None:
        """Delete an auto-delete exchange that has lost its last sender, unless it has bindings. Errors are logged."""
        await _ended(self._were_left((exchange,)))

    def _were_left(self, exchanges: Iterable[Exchange]) -> Following:
        """Exchanges have lost bindings of a queue. Returns the changes that follow, which delete them if need be."""
        unbound = [exchange for exchange in exchanges if exchange.auto_delete and not exchange.is_in_use]
        return [self.changes.start(partial(self._delete_if_unbound, exchange)) for exchange in unbound]

    async def _delete_if_unbound(self, exchange: Exchange) -> None:
        """Delete an auto-delete exchange that has lost its last binding or sender. Errors are only logged."""
        if self._exchanges.get(exchange.name) is not exchange:
            return
        if exchange.auto_delete and not exchange.is_in_use and not self._is_alternate(exchange):
            try:
                await self._delete_exchange(exchange, BROKER)
            except ModelError as error:
                _LOG.error('Auto-delete exchange "%s" was not deleted: %s', exchange.name, error)

    def _is_alternate(self, exchange: Exchange) -> bool:
        """Whether it is the alternate exchange of a queue or an exchange."""
        declared = (each for each in self._exchanges.values() if not each.has_policy_alternate)
        return any(each.alternate is exchange for each in declared) or self._is_alternate_of_queue(exchange)

    def _is_alternate_of_queue(self, exchange: Exchange) -> bool:
        return any(each.alternate is exchange for each in self._queues.values())

    @serialized
    async def store_standard_exchanges(self) -> None:
        """Store the standard exchanges, so that bindings to them can be stored.

        Raises:
            InternalError: the store cannot store them.
        """
        for name in STANDARD_EXCHANGES:
            exchange = self._exchanges[name]
            if exchange.store_id is None:
                await self._storage.create_exchange(exchange)

    # ---- bindings ----

    async def bind(
        self,
        queue_name: str,
        exchange_name: str,
        key: str,
        arguments: TypedMap = EMPTY_MAP,
        *,
        caller: Caller = BROKER,
        asked_key: str | None = None,
    ) -> Binding | None:
        """Bind a queue to an exchange. Returns the binding; None if it already existed.

        Args:
            queue_name: the queue.
            exchange_name: the exchange.
            key: the binding key.
            arguments: stored with it.
            caller: the caller.
            asked_key: the key given by the caller, if the protocol has changed it.

        Raises:
            InvalidArgumentError: a name is empty, the key is too long, or the exchange needs other arguments.
            UnauthorizedError: the caller is not allowed to, or may not unbind the other queues whose bindings end.
            NotFoundError: there is no such queue or exchange.
            NotAllowedError: the queue is bound with this key and different arguments, which matter to the exchange.
            NotImplementedByBrokerError: an argument is not supported for bindings.
            ResourceLockedError: the queue, or another one whose binding ends, is exclusive to another caller.
            InternalError: the store cannot store it.
        """

        def work() -> Coroutine[Any, Any, Binding | None]:
            return self._bind(queue_name, exchange_name, key, arguments, caller, asked_key)

        replaces = arguments.get(EXCLUSIVE_BINDING) is not None  # bindings of other queues
        return await self.changes.do(work, None if replaces else queue_name)

    async def _bind(
        self,
        queue_name: str,
        exchange_name: str,
        key: str,
        arguments: TypedMap,
        caller: Caller,
        asked_key: str | None,
    ) -> Binding | None:
        self._access.binding(caller, Action.BIND, exchange_name, queue_name, key if asked_key is None else asked_key)
        queue, exchange = self.find_queue(queue_name), self.find_exchange(exchange_name)
        check_owner(queue, caller)
        check_key(key)
        if self.strict_durability:
            check_dependency(f'queue "{queue_name}"', queue.durable, exchange)
        what = f'binding of queue "{queue_name}" to exchange "{exchange_name}"'
        self._arguments.check(Of.BINDING, what, arguments, (exchange.routing_type,))
        for each in exchange.replaced_by(key, arguments):
            if each.queue is not queue:
                self._access.binding(caller, Action.UNBIND, exchange_name, each.queue.name, key)
                check_owner(each.queue, caller)
        operation = text_of(arguments, FED_OP)
        if operation not in ("", BIND, UNBIND, REORIGIN, MARK, SWEEP):
            raise InvalidArgumentError(f"{FED_OP} is {shown(operation)}, which no route of a broker says")
        if operation in (UNBIND, REORIGIN, MARK, SWEEP):
            await self._withdraw(queue, exchange, key, arguments, caller, operation)
            return None
        existing = exchange.find_binding(queue, key) if operation else None
        if existing is not None:
            exchange.federate().add(existing, text_of(arguments, FED_ORIGIN), text_of(arguments, FED_TAGS))
            return None
        if operation:
            exchange.federate()
        binding, replaced = await self._bindings.bind(queue, exchange, key, arguments)
        if binding is not None:
            if exchange.selectors.keys() == {binding}:  # the first one: it uses more than the key from now on
                refresh(self._exchanges.values())
            host, user = caller.remote_host, caller.user
            self._events.emit(Bind(host, user, exchange_name, queue_name, key, arguments), caller)
            await self._emit_removed(exchange, replaced, caller)
        return binding

    async def _withdraw(
        self, queue: Queue, exchange: Exchange, key: str, arguments: TypedMap, caller: Caller, operation: str
    ) -> None:
        """Another broker takes back what it has bound for an origin, or asks for everything that is wanted here."""
        if operation == REORIGIN:
            exchange.federate().announce_again()
            return
        if operation == MARK:
            exchange.federate().mark(queue, exchange.bindings_of(queue))
            return
        if operation == SWEEP:
            for number, (old, marked) in enumerate(exchange.federate().take_marked(queue), 1):
                await self._withdraw_origin(old, exchange, marked, caller)
                if not number % BINDINGS_AT_ONCE:
                    await asyncio.sleep(0)
            return
        binding, origin = exchange.find_binding(queue, key), text_of(arguments, FED_ORIGIN)
        if not origin:  # a binding of a client here
            self._access.binding(caller, Action.UNBIND, exchange.name, queue.name, key)
        if binding is not None:
            await self._withdraw_origin(binding, exchange, origin, caller)

    async def _withdraw_origin(self, binding: Binding, exchange: Exchange, origin: str, caller: Caller) -> None:
        queue, key = binding.queue, binding.key
        if exchange.find_binding(queue, key) is binding and exchange.federate().withdraw(binding, origin):
            await self._bindings.unbind(queue, exchange, key)
            self._events.emit(Unbind(caller.remote_host, caller.user, exchange.name, queue.name, key), caller)

    async def unbind(
        self, queue_name: str, exchange_name: str, key: str, *, caller: Caller = BROKER, asked_key: str | None = None
    ) -> Binding:
        """Remove a binding, and return it. The arguments are those of `bind`.

        Raises:
            InvalidArgumentError: a name is empty.
            UnauthorizedError: the caller is not allowed to.
            NotFoundError: there is no such queue, exchange or binding.
            ResourceLockedError: the queue is exclusive to another caller.
            InternalError: the store cannot delete it.
        """
        binding, following = await self._unbind(queue_name, exchange_name, key, caller, asked_key)
        await _ended(following)
        return binding

    @of_one_queue
    async def _unbind(
        self, queue_name: str, exchange_name: str, key: str, caller: Caller, asked_key: str | None
    ) -> tuple[Binding, Following]:
        self._access.binding(caller, Action.UNBIND, exchange_name, queue_name, key if asked_key is None else asked_key)
        queue, exchange = self.find_queue(queue_name), self.find_exchange(exchange_name)
        check_owner(queue, caller)
        binding = await self._bindings.unbind(queue, exchange, key)
        self._events.emit(Unbind(caller.remote_host, caller.user, exchange_name, queue_name, key), caller)
        return binding, self._were_left((exchange,))

    # ---- queries ----

    def bound(
        self, exchange_name: str, queue_name: str = "", key: str | None = None, arguments: TypedMap | None = None
    ) -> BoundReply:
        """Whether a binding exists. Empty or None matches anything, because clients send either."""
        exchange, queue = self._exchanges.get(exchange_name), self._queues.get(queue_name)
        queue_not_found = bool(queue_name) and queue is None
        if exchange is None or queue_not_found:
            return BoundReply(exchange is None, queue_not_found)
        return BoundReply(False, False, *exchange.bound(queue, key or None, arguments or None))


async def _ended(following: Following) -> None:
    """Wait for the changes that follow from another one; they continue even if the caller is cancelled."""
    if following:
        await asyncio.wait(following)


def _log_statistics(what: str, name: str, counts: Mapping[str, int]) -> None:
    """Log what was counted of a thing that is deleted; what is 0 is left out."""
    found = [f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if value]
    _LOG.debug('Statistics of deleted %s "%s": %s', what, name, ", ".join(found) or "nothing was counted")
