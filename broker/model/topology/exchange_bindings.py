"""Bindings between exchanges: created, removed and recovered.

A binding is stored if both its exchanges are, as an object of its own (`formats.broker_records.topology`). It
takes effect once it is on the disk. Deleting either exchange deletes it, in the same batch of the catalogue; a source
that is auto-delete is deleted with its last binding, whether to a queue or to an exchange.

Sources: RabbitMQ, "Exchange to Exchange Bindings".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import ArgumentCheck, Of
from qstore.broker.model.authorization import Action
from qstore.broker.model.caller import BROKER, Caller
from qstore.broker.model.errors import ModelError, NotFoundError
from qstore.broker.model.events import ExchangeBind, ExchangeUnbind
from qstore.broker.model.exchanges.onward import ExchangeBinding, check_binding, refresh
from qstore.broker.model.topology.checks import check_key, find_exchange
from qstore.broker.model.topology.serial_executor import SerialExecutor, serialized
from qstore.formats.broker_records.topology import exchange_binding_of
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.events import Events
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.topology.access import Access
    from qstore.broker.model.topology.topology_storage import TopologyStorage

_LOG: Final = log_of("Model")


class ExchangeBindings:
    """The bindings between the exchanges of one broker.

    Args:
        exchanges: name -> exchange.
        storage: stores the topology.
        access: checks operations.
        events: emits an event for every change.
        arguments: checks the arguments of bindings.

    Attributes:
        changes: runs these and all other changes of the topology, one at a time.
        unbound: deletes an exchange that has lost a binding, if it is to be deleted with its last one.
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
        self.changes = SerialExecutor()
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
            NotImplementedByBrokerError: exchanges of a type cannot be bound to each other, or an argument asks for
                something that bindings do not have.
            InternalError: the arguments have no valid criteria, or the store cannot store it.
        """
        self._access.exchange_binding(caller, source_name, self._exchanges.get(source_name), destination_name, key)
        source, destination = self._find(source_name, destination_name)
        check_key(key)
        binding = ExchangeBinding(source, destination, key, arguments)
        what = f'binding of exchange "{destination_name}" to exchange "{source_name}"'
        self._arguments.check(Of.BINDING, what, arguments, (source.type_name,))
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
        self.ended((binding,), caller)
        await self.unbound(source)

    def _find(self, source: str, destination: str) -> tuple[Exchange, Exchange]:
        return find_exchange(self._exchanges, source), find_exchange(self._exchanges, destination)

    def of(self, exchange: Exchange) -> list[ExchangeBinding]:
        """The bindings that an exchange is the source or the destination of."""
        every = (binding for each in self._exchanges.values() for binding in each.onward or ())
        return [binding for binding in every if exchange in (binding.source, binding.destination)]

    def ended(self, bindings: Collection[ExchangeBinding], caller: Caller) -> list[Exchange]:
        """The store has deleted bindings. Returns their sources that are still there."""
        for binding in bindings:
            binding.source.unbind_exchange(binding)
            names = binding.source.name, binding.destination.name, binding.key
            self._events.emit(ExchangeUnbind(caller.remote_host, caller.user, *names), caller)
        refresh(self._exchanges.values())
        sources = dict.fromkeys(binding.source.name for binding in bindings)
        return [self._exchanges[name] for name in sources if name in self._exchanges]


async def _stays(_exchange: Exchange) -> None:
    """The exchange stays."""


def recover_exchange_bindings(store: Store, exchanges: Mapping[str, Exchange]) -> None:
    """Recreate the bindings between exchanges that a store has; delete those whose exchanges it does not have.

    Args:
        store: the store.
        exchanges: name -> exchange; all of them.
    """
    for number, record in store.topology.general.items():
        stored = exchange_binding_of(record)
        if stored is None:
            continue
        source, destination = exchanges.get(stored.source), exchanges.get(stored.destination)
        if source is None or destination is None or source.store_id is None or destination.store_id is None:
            store.changes.delete_general(number, _forgotten)
            continue
        binding = ExchangeBinding(source, destination, stored.key, stored.arguments, number)
        try:
            check_binding(binding)
            if source.onward is None or source.onward.find(binding) is None:
                source.bind_exchange(binding)
        except ModelError as error:
            _LOG.error('A binding of exchange "%s" was not recovered: %s', destination.name, error)
    refresh(exchanges.values())


def _forgotten(_made: None, error: Exception | None) -> None:
    if error is not None:
        _LOG.warning("A binding of a deleted exchange could not be deleted from the store: %s", error)
