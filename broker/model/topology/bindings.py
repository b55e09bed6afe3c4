"""Creating bindings, at run time and at recovery.

    1. the store has the binding on the disk
    2. it takes effect; in the same step the bindings that it replaces end (`qpid.exclusive-binding`)
    3. the last message of its exchange is offered to it, if the exchange keeps that (`qpid.ive`)
    4. the store deletes the replaced bindings

If the broker is killed before 1, it has the old bindings after a restart; after 4 the new one. In between the store has
both. `recover_bindings` recreates the bindings in their original order, so that the new one replaces the others again,
and then the store deletes those.

The initial value is enqueued like any message: a durable queue stores it, if it is persistent, and a full one refuses
it. Then the binding is created nevertheless, and the failure is logged. A binding that already existed under the same
key has received its messages and is offered nothing; nor are recovered bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import InternalError, ModelError, NotFoundError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.store_protocol import Store
from qstore.broker.model.topology.topology_storage import TopologyStorage
from qstore.formats.catalogue import BindingEntry
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.router import Router
    from qstore.broker.model.tick import Tick

_LOG: Final = log_of("Model")


class BindingMaker:
    """Creates and removes the bindings of one broker.

    Args:
        router: offers initial values to queues.
        tick: scheduled after that.
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
        replaced = exchange.put(binding)
        if exchange.sent is not None and all(each.queue is not queue for each in replaced):
            self._offer_last(exchange, binding)
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

    def _offer_last(self, exchange: Exchange, binding: Binding) -> None:
        message = None if exchange.sent is None else exchange.sent.last
        if message is None or 0 < message.expires_at <= self._clock():
            return
        if not exchange.would_route(message, binding):
            return
        queue = binding.queue
        try:
            self._router.put(message, (queue,))
        except ModelError as error:
            _LOG.warning('Queue "%s" did not get the initial value of "%s": %s', queue.name, exchange.name, error)
        self._tick.schedule()

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
        exchanges: name -> exchange.
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
