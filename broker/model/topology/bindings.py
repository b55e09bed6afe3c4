"""How a binding comes to be, live and at recovery.

    1. the store has it on the disk
    2. it is in force; in the same step those whose place it takes are not (`qpid.exclusive-binding`)
    3. the last message of its exchange is offered to it, if the exchange keeps that (`qpid.ive`)
    4. the store forgets those that were replaced

A broker that is killed before 1 has the old bindings after a restart, and after 4 the new one. In between the store has
both. `recover_bindings` makes the bindings again in the order in which they were first made, so that the new one takes
the others' place as it did before, and then the store forgets those.

The initial value goes to the queue like any message: a durable queue keeps it, if it is persistent, and a full one does
not get it. Then the binding is made all the same, and the log tells. A binding that was there already, under the same
key, has had its messages and is offered nothing; nor are bindings that are recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from broker.log.logs import log_of
from broker.model.errors import InternalError, ModelError, NotFoundError
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding
from broker.model.queues.queue import Queue
from broker.model.store_protocol import Store
from broker.model.topology.kept_wiring import KeptWiring
from formats.catalogue import BindingEntry
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.router import Router
    from broker.model.turn import Turn

_LOG: Final = log_of("Model")


class BindingMaker:
    """Makes and removes the bindings of one broker.

    Args:
        router: offers initial values to queues.
        turn: is to have an end when it did.
        kept: what the store keeps.
        clock: seconds since 1970.
    """

    def __init__(self, router: Router, turn: Turn, kept: KeptWiring, clock: Callable[[], float]) -> None:
        self._router, self._turn, self._kept, self._clock = router, turn, kept, clock

    async def bind(self, queue: Queue, exchange: Exchange, key: str, arguments: TypedMap) -> Binding | None:
        """Bind a queue. Returns the binding; None if it was there.

        Raises:
            As `Exchange.prepare`.
            InternalError: the store cannot keep it.
        """
        binding = exchange.prepare(queue, key, arguments)
        if binding is None:
            return None
        await self._kept.make_binding(exchange, binding)
        replaced = exchange.put(binding)
        if exchange.sent is not None and all(each.queue is not queue for each in replaced):
            self._offer_last(exchange, binding)
        for each in replaced:
            await self._forget(each)
        return binding

    async def unbind(self, queue: Queue, exchange: Exchange, key: str) -> Binding:
        """Remove a binding. Returns what it was.

        Raises:
            NotFoundError: there is no such binding.
            InternalError: the store cannot delete it.
        """
        binding = exchange.find_binding(queue, key)
        if binding is None:
            raise NotFoundError(f'queue "{queue.name}" is not bound to exchange "{exchange.name}" with key "{key}"')
        await self._kept.delete_binding(binding)
        exchange.remove(binding)
        return binding

    def _offer_last(self, exchange: Exchange, binding: Binding) -> None:
        message = None if exchange.sent is None else exchange.sent.last
        if message is None or 0 < message.expires_at <= self._clock():
            return
        if not exchange.is_asked_for(message, binding):
            return
        queue = binding.queue
        try:
            self._router.put(message, (queue,))
        except ModelError as error:
            _LOG.warning('Queue "%s" goes without the initial value of "%s": %s', queue.name, exchange.name, error)
        self._turn.schedule()

    async def _forget(self, replaced: Binding) -> None:
        try:
            await self._kept.delete_binding(replaced)
        except InternalError as error:
            _LOG.error('A replaced binding of queue "%s" stays until the next start: %s', replaced.queue.name, error)


def recover_bindings(store: Store, exchanges: Mapping[str, Exchange], queues: Mapping[int, Queue]) -> None:
    """Make the bindings that a store kept.

    Args:
        store: the store, which forgets those that are there twice, or were replaced.
        exchanges: name -> exchange.
        queues: id in the store -> queue.
    """
    for found in store.wiring.bindings:
        exchange, queue = exchanges.get(found.exchange.name), queues.get(found.record.queue_id)
        if exchange is None or queue is None:
            continue
        try:
            binding = exchange.prepare(queue, found.record.key, found.record.arguments)
        except ModelError as error:
            _LOG.error('A binding of queue "%s" is left out: %s', queue.name, error)
            continue
        if binding is None:  # a fanout exchange knows a queue once, and qpidd stores each key
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
        _LOG.warning("A binding that is stored beside its successor stays so: %s", error)
