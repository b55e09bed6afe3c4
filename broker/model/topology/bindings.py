"""Creates, removes and recovers bindings: of queues, and between exchanges.

**Of queues.**

    1. the store has the binding on the disk
    2. the last messages of its exchange are offered to it, if the exchange keeps any (`qpid.ive`, x-recent-history)
    3. it takes effect, and in the same step the bindings that it replaces end (`qpid.exclusive-binding`)
    4. the store deletes the replaced bindings

If the broker is killed before 1, it has the old bindings after a restart; after 4 the new one. In between the store has
both. `recover_bindings` recreates the bindings in their original order, so that the new one replaces the others again,
and then the store deletes those.

The initial value is enqueued like any message: a durable queue stores it, if it is persistent. If a full queue refuses
it, the binding is created nevertheless, and the failure is logged. A binding that already exists under the same key has
received its messages and is not offered it, nor are recovered bindings.

**Between exchanges.** A binding is stored if both its exchanges are, as an object of its own
(`formats.broker_records.topology`). It takes effect once it is on the disk. Deleting either exchange deletes it, in
the same batch of the catalogue; a source that is auto-delete is deleted with its last binding, whether to a queue or
to an exchange.

Sources: RabbitMQ, "Exchange to Exchange Bindings".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import DIRECT, FED_OP, FED_ORIGIN, FED_TAGS, ArgumentCheck, IdleArgument, Of
from qstore.broker.model.authorization import Action
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import InternalError, ModelError, NotFoundError
from qstore.broker.model.events import ExchangeBind, ExchangeUnbind
from qstore.broker.model.exchanges.exchange import Exchange, ExchangeBinding, SentMessages, check_binding, refresh
from qstore.broker.model.exchanges.matching import STEPS_PER_MESSAGE
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.store_protocol import Store
from qstore.broker.model.topology.changes import ChangeOrder, TopologyStorage, serialized
from qstore.broker.model.topology.checks import check_dependency, check_key, find_exchange
from qstore.formats.broker_records.topology import exchange_binding_of
from qstore.formats.catalogue import BindingEntry
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.events import Events
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.topology.checks import Access


_OF_ROUTES: Final = (FED_OP, FED_ORIGIN, FED_TAGS)
_NO_ROUTE: Final = "routes of other brokers bind queues, and no exchanges"

STEPS_AT_ONCE: Final = 5_000
"""Steps of matching, or as much other work, with which messages are offered to a binding in one turn: some 3 ms."""

BYTES_PER_STEP: Final = 256
"""Bytes of a message that take as long to put on a queue as one step."""

MAX_TURNS: Final = 500
"""Turns in which messages are offered to a binding, however many come meanwhile."""


class BindingMaker:
    """Creates and removes the bindings of one broker.

    Args:
        router: offers initial values to queues.
        tick: scheduled afterwards.
        storage: stores the topology.
        clock: seconds since 1970.
    """

    def __init__(self, router: Router, tick: Tick, storage: TopologyStorage, clock: Callable[[], float]) -> None:
        self._router, self._tick, self._storage, self._clock = router, tick, storage, clock

    async def bind(
        self, queue: Queue, exchange: Exchange, key: str, arguments: TypedMap
    ) -> tuple[Binding | None, list[Binding]]:
        """Bind a queue. Returns the binding, or None if it already existed, and the bindings that it has replaced.

        Raises:
            As `Exchange.prepare`.
            InternalError: the store cannot store it.
        """
        binding = exchange.prepare(queue, key, arguments)
        if binding is None:
            return None, []
        await self._storage.create_binding(exchange, binding)
        sent = exchange.sent
        if sent is not None and all(each.queue is not queue for each in exchange.replaced_by(key, arguments)):
            await self._offer(exchange, sent, binding)
        replaced = exchange.put(binding)
        for each in replaced:
            await self._forget(each)
        return binding, replaced

    async def unbind(self, queue: Queue, exchange: Exchange, key: str) -> Binding:
        """Remove a binding, and return it.

        Raises:
            NotFoundError: there is no such binding.
            InternalError: the store cannot delete it.
        """
        binding = exchange.find_binding(queue, key)
        if binding is None:
            raise NotFoundError(f'queue "{queue.name}" is not bound to exchange "{exchange.name}" with key "{key}"')
        await self._storage.delete_binding(binding)
        exchange.remove(binding)
        return binding

    async def _offer(self, exchange: Exchange, sent: SentMessages, binding: Binding) -> None:
        """Put the messages that an exchange keeps on the queue of a new binding that is to take effect, in turns.

        Those that come meanwhile are among them: after the last turn, in which all that is left is put there, the
        binding takes effect at once.
        """
        alone, queue = exchange.with_only(binding), binding.queue
        after, turns = -1, MAX_TURNS
        while True:
            left = STEPS_AT_ONCE + alone.steps
            for position, message in sent.offered(after):
                after = position
                try:
                    if not 0 < message.expires_at <= self._clock() and alone.route(message).queues:
                        self._router.put(message, (queue,))
                except ModelError as error:
                    text = 'Queue "%s" did not get an earlier message of "%s": %s'
                    _LOG.warning(text, queue.name, exchange.name, error)
                    return
                left -= STEPS_PER_MESSAGE + message.size // BYTES_PER_STEP
                if left < alone.steps and turns:
                    break
            else:
                self._tick.schedule()
                return
            turns -= 1
            self._tick.schedule()
            await asyncio.sleep(0)

    async def _forget(self, replaced: Binding) -> None:
        try:
            await self._storage.delete_binding(replaced)
        except InternalError as error:
            _LOG.error(
                'A replaced binding of queue "%s" stays in the store until the next start: %s',
                replaced.queue.name,
                error,
            )


def recover_bindings(store: Store, exchanges: Mapping[str, Exchange], queues: Mapping[int, Queue]) -> None:
    """Recreate the bindings of a store.

    Args:
        store: the store, which deletes duplicates and replaced bindings.
        exchanges: full name -> exchange.
        queues: id in the store -> queue.
    """
    for found in store.topology.bindings:
        exchange, queue = exchanges.get(found.exchange.name), queues.get(found.record.queue_id)
        if exchange is None or queue is None:
            continue
        try:
            binding = exchange.prepare(queue, found.record.key, found.record.arguments)
        except ModelError as error:
            _LOG.error('A binding of queue "%s" was not recovered: %s', queue.name, error)
            continue
        if binding is None:  # a fanout exchange has one binding per queue, but qpidd stores each key
            _forget_entries(store, (found.entry,))
            continue
        binding.entry = found.entry
        _forget_entries(store, (each.entry for each in exchange.put(binding)))


def _forget_entries(store: Store, entries: Iterable[BindingEntry | None]) -> None:
    for entry in entries:
        if entry is not None:
            store.changes.delete_binding(entry, _forgotten)


def _forgotten(_made: None, error: Exception | None) -> None:
    if error is not None:
        _LOG.warning("A replaced binding could not be deleted from the store: %s", error)


# ---- between exchanges ----

_LOG: Final = log_of("Model")

_ENDED_AT_ONCE: Final = 1_000
"""Bindings between exchanges that end in one turn: some 2 ms."""


class ExchangeBindings:
    """The bindings between the exchanges of one virtual host.

    Args:
        exchanges: name -> exchange.
        storage: stores the topology.
        access: checks operations.
        events: emits an event for every change.
        arguments: checks the arguments of bindings.

    Attributes:
        changes: runs these and all other changes of the topology, in order.
        strict_durability: as in `Topology`.
        unbound: deletes an auto-delete exchange that has lost its last binding.
    """

    def __init__(
        self,
        exchanges: Mapping[str, Exchange],
        storage: TopologyStorage,
        access: Access,
        events: Events,
        arguments: ArgumentCheck,
    ) -> None:
        self._exchanges, self._storage = exchanges, storage
        self._access, self._events, self._arguments = access, events, arguments
        self.changes = ChangeOrder()
        self.strict_durability = False
        self.unbound: Callable[[Exchange], Awaitable[None]] = _stays

    @serialized
    async def bind(
        self,
        source_name: str,
        destination_name: str,
        key: str,
        arguments: TypedMap = EMPTY_MAP,
        *,
        caller: Caller = BROKER,
    ) -> bool:
        """Bind an exchange, the destination, to another one, the source. Returns False if there is such a binding.

        Raises:
            UnauthorizedError: the caller may not bind to the source, or not publish to the destination with each key
                that the binding matches.
            InvalidArgumentError: a name is empty, the key is too long, or the arguments cannot be stored.
            NotFoundError: there is no such exchange.
            NotImplementedByBrokerError: exchanges of this type cannot be bound to each other, or an argument is not
                supported for bindings.
            InternalError: the arguments have no valid criteria, or the store cannot store it.
        """
        self._access.exchange_binding(caller, source_name, self._exchanges.get(source_name), destination_name, key)
        source, destination = self._find(source_name, destination_name)
        check_key(key)
        if self.strict_durability:
            check_dependency(f'exchange "{destination_name}"', destination.durable, source)
        binding = ExchangeBinding(source, destination, key, arguments)
        what = f'binding of exchange "{destination_name}" to exchange "{source_name}"'
        where = (source.type_name,) if source.type_name != DIRECT else ()
        self._arguments.check(Of.BINDING, what, arguments, where)
        told = [(name, typed.value) for name, typed in arguments.entries if name in _OF_ROUTES]
        self._arguments.idle(what, [IdleArgument(name, value, _NO_ROUTE) for name, value in told])
        check_binding(binding)
        if source.onward is not None and source.onward.find(binding) is not None:
            return False
        await self._storage.create_exchange_binding(binding)
        source.bind_exchange(binding)
        refresh(self._exchanges.values())
        host, user = caller.remote_host, caller.user
        self._events.emit(ExchangeBind(host, user, source_name, destination_name, key, arguments), caller)
        return True

    @serialized
    async def unbind(
        self,
        source_name: str,
        destination_name: str,
        key: str,
        arguments: TypedMap = EMPTY_MAP,
        *,
        caller: Caller = BROKER,
    ) -> None:
        """Remove a binding.

        Raises:
            UnauthorizedError: the caller may not.
            InvalidArgumentError: a name is empty.
            NotFoundError: there is no such exchange or binding.
            InternalError: the store cannot delete it.
        """
        self._access.binding(caller, Action.UNBIND, source_name, destination_name, key)
        source, destination = self._find(source_name, destination_name)
        wanted = ExchangeBinding(source, destination, key, arguments)
        binding = None if source.onward is None else source.onward.find(wanted)
        if binding is None:
            text = f'exchange "{destination_name}" is not bound to exchange "{source_name}" with key "{key}"'
            raise NotFoundError(text)
        await self._storage.delete_exchange_binding(binding)
        await self.ended((binding,), caller)
        await self.unbound(source)

    def _find(self, source: str, destination: str) -> tuple[Exchange, Exchange]:
        return find_exchange(self._exchanges, source), find_exchange(self._exchanges, destination)

    def of(self, exchange: Exchange) -> list[ExchangeBinding]:
        """The bindings with an exchange as source or destination."""
        every = (binding for each in self._exchanges.values() for binding in each.onward or ())
        return [binding for binding in every if exchange in (binding.source, binding.destination)]

    async def ended(self, bindings: Collection[ExchangeBinding], caller: Caller) -> list[Exchange]:
        """End bindings that the store has deleted, in portions. Returns their sources that still exist."""
        for number, binding in enumerate(bindings, 1):
            if not number % _ENDED_AT_ONCE:
                await asyncio.sleep(0)
            binding.source.unbind_exchange(binding)
            names = binding.source.name, binding.destination.name, binding.key
            self._events.emit(ExchangeUnbind(caller.remote_host, caller.user, *names), caller)
        refresh(self._exchanges.values())
        sources = dict.fromkeys(binding.source.name for binding in bindings)
        return [self._exchanges[name] for name in sources if name in self._exchanges]


async def _stays(_exchange: Exchange) -> None:
    """Nothing to do: the exchange stays."""


def recover_exchange_bindings(store: Store, exchanges: Mapping[str, Exchange]) -> None:
    """Recreate the bindings between exchanges that a store has; delete those whose exchanges it does not have.

    Args:
        store: the store.
        exchanges: full name -> exchange; all of them.
    """
    for number, record in store.topology.general.items():
        stored = exchange_binding_of(record)
        if stored is None:
            continue
        source, destination = exchanges.get(stored.source), exchanges.get(stored.destination)
        if source is None or destination is None or source.store_id is None or destination.store_id is None:
            store.changes.delete_general(number, _forgotten_between_exchanges)
            continue
        binding = ExchangeBinding(source, destination, stored.key, stored.arguments, number)
        try:
            check_binding(binding)
            if source.onward is None or source.onward.find(binding) is None:
                source.bind_exchange(binding)
        except ModelError as error:
            _LOG.error('A binding of exchange "%s" was not recovered: %s', destination.name, error)
    refresh(exchanges.values())


def _forgotten_between_exchanges(_made: None, error: Exception | None) -> None:
    if error is not None:
        _LOG.warning("A binding of a deleted exchange could not be deleted from the store: %s", error)
