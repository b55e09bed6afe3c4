"""What the store keeps of exchanges, queues and bindings: its changes, to be waited for.

A binding is kept if its queue and its exchange are. Without a store nothing is kept, and nothing is waited for. An
exchange knows its number in the store, a queue its journal, a binding its entry, once the store has them on the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from broker.model.errors import InternalError, InvalidArgumentError
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding
from broker.model.queues.queue import Queue
from broker.model.store_protocol import Changed, Store
from formats.broker_records import wiring as records
from formats.broker_records.errors import BrokerRecordError
from formats.values import TypedMap

_Made = TypeVar("_Made")


class KeptWiring:
    """Makes the changes of one store. Each raises InternalError, with the store's text, if the store cannot.

    Args:
        store: the store; None if nothing is kept.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def make_queue(self, name: str, alternate: str, arguments: TypedMap, user: str, auto_delete: bool) -> Any:
        """Keep a queue. Returns its journal; None without a store.

        Raises:
            InvalidArgumentError: an argument that the store needs cannot be understood.
            InternalError: see above.
        """
        store = self._store
        if store is None:
            return None
        try:
            geometry = store.queue_geometry({own_name: typed.value for own_name, typed in arguments.entries})
        except store.argument_error as error:
            raise InvalidArgumentError(f'queue "{name}": {error}') from error
        record = records.Queue(name, arguments, alternate, user, auto_delete)
        return await self._made(lambda done: store.changes.create_queue(record, geometry, done))

    async def delete_queue(self, queue: Queue) -> None:
        """Forget a queue, its messages and its bindings."""
        store, journal = self._store, queue.journal
        if store is not None and journal is not None:
            await self._done(lambda done: store.changes.delete_queue(journal, done))

    async def make_exchange(self, exchange: Exchange) -> None:
        """Keep an exchange."""
        store = self._store
        if store is None:
            return
        alternate = "" if exchange.alternate is None else exchange.alternate.name
        record = records.Exchange(
            exchange.name, exchange.durable, exchange.type_name, exchange.arguments, alternate, exchange.auto_delete
        )
        exchange.store_id = await self._made(lambda done: store.changes.create_exchange(record, done))

    async def delete_exchange(self, exchange: Exchange) -> None:
        """Forget an exchange and its bindings."""
        store, number = self._store, exchange.store_id
        if store is not None and number is not None:
            await self._done(lambda done: store.changes.delete_exchange(number, done))

    async def make_binding(self, exchange: Exchange, binding: Binding) -> None:
        """Keep a binding, if its ends are kept."""
        store, number, queue = self._store, exchange.store_id, binding.queue
        if store is None or number is None or queue.journal is None:
            return
        record = records.Binding(queue.journal.queue_id, queue.name, binding.key, binding.arguments)
        binding.entry = await self._made(lambda done: store.changes.create_binding(number, record, done))

    async def delete_binding(self, binding: Binding) -> None:
        """Forget a binding."""
        store, entry = self._store, binding.entry
        if store is not None and entry is not None:
            await self._done(lambda done: store.changes.delete_binding(entry, done))

    # ---- waiting ----

    async def _made(self, ask: Callable[[Changed[_Made]], None]) -> _Made:
        """What a change has made."""
        made = await self._asked(ask)
        assert made is not None
        return made

    async def _done(self, ask: Callable[[Changed[None]], None]) -> None:
        """A change that makes nothing."""
        await self._asked(ask)

    async def _asked(self, ask: Callable[[Changed[_Made]], None]) -> _Made | None:
        assert self._store is not None
        answer: asyncio.Future[tuple[_Made | None, Exception | None]] = asyncio.get_running_loop().create_future()

        def done(made: _Made | None, error: Exception | None) -> None:
            if not answer.done():  # else whoever waited was cancelled
                answer.set_result((made, error))

        try:
            ask(done)
        except BrokerRecordError as error:
            raise InvalidArgumentError(str(error)) from error
        except self._store.errors as error:
            raise InternalError(str(error)) from error
        made, failure = await answer
        if failure is not None:
            raise InternalError(str(failure))
        return made
