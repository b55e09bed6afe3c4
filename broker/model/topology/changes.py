"""Changes of exchanges, queues and bindings: the order in which they run, and the store, which has them first.

A topology change waits for the disk between its checks and its effects, so no two that concern the same may overlap:

    a change of one queue      declared, deleted, bound to an exchange or unbound: after all earlier changes of this
                               queue, and of exchanges. Those of different queues overlap, so that the store makes them
                               together
    a change of an exchange    and any other: after all earlier changes; all later ones wait for it

So the exchanges that a change of a queue finds are there until it ends. An exchange that it leaves without bindings is
deleted, if it is to be, by a change of its own that follows.

Nor may one be cancelled half-way when its client disconnects, since the store and the model would differ. So each runs
in its own task.

A binding is stored if its queue and its exchange are. Without a store every call returns at once. Once stored, an
exchange has its number in the store, a queue its journal, a binding its entry.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from qstore.broker.model.errors import InternalError, InvalidArgumentError
from qstore.broker.model.events import Event, JournalCreated
from qstore.broker.model.exchanges.exchange import Exchange, ExchangeBinding
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.store_protocol import Changed, Journal, Store
from qstore.formats.broker_records import topology as records
from qstore.formats.broker_records.topology import ExchangeBinding as StoredExchangeBinding
from qstore.formats.broker_records.topology import exchange_binding_object, full_name
from qstore.formats.errors import FormatError
from qstore.formats.values import TypedMap

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class ChangeOrder:
    """Runs changes: those of different queues side by side, all others one after the other, in the order of calls."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._last: dict[str, asyncio.Task[Any]] = {}  # queue -> the last change of it
        self._barrier: asyncio.Task[Any] | None = None  # the last change that is not of one queue

    async def do(self, work: Callable[[], Coroutine[Any, Any, _Result]], queue: str | None = None) -> _Result:
        """Run `work` in its turn. It continues even if the caller is cancelled.

        Args:
            work: the change.
            queue: the name of the only queue that it concerns; None for any other change.
        """
        task = self.start(work, queue)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # breaks a cycle: the task references its exception, whose traceback references this frame

    def start(
        self, work: Callable[[], Coroutine[Any, Any, _Result]], queue: str | None = None
    ) -> asyncio.Task[_Result]:
        """As `do`, without waiting for it."""
        if queue is None:
            before = set(self._under_way)
        else:
            before = {each for each in (self._last.get(queue), self._barrier) if each is not None}

        async def in_turn() -> _Result:
            if before:
                await asyncio.wait(before)
                before.clear()
            return await work()

        task = asyncio.create_task(in_turn())
        self._under_way.add(task)
        if queue is None:
            self._barrier = task
            self._last.clear()
        else:
            self._last[queue] = task
        task.add_done_callback(functools.partial(self._ended, queue))
        return task

    def _ended(self, queue: str | None, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if self._barrier is task:
            self._barrier = None
        elif queue is not None and self._last.get(queue) is task:
            del self._last[queue]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn if the caller was cancelled

    async def made(self) -> None:
        """Wait for the changes that have been asked for by now, perhaps in this iteration of the event loop."""
        await asyncio.sleep(0)
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    async def finish(self) -> None:
        """Wait until no work is pending."""
        while self._under_way:
            await asyncio.wait(self._under_way)


class Changing(Protocol):
    """Makes changes in order."""

    @property
    def changes(self) -> ChangeOrder:
        """The order in which they run."""


_ChangingT = TypeVar("_ChangingT", bound=Changing)


def serialized(
    change: Callable[Concatenate[_ChangingT, _Params], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_ChangingT, _Params], Coroutine[Any, Any, _Result]]:
    """Run a change after all earlier ones, to completion even if the caller is cancelled."""

    @functools.wraps(change)
    async def in_turn(self: _ChangingT, /, *arguments: _Params.args, **named: _Params.kwargs) -> _Result:
        return await self.changes.do(lambda: change(self, *arguments, **named))

    return in_turn


def of_one_queue(
    change: Callable[Concatenate[_ChangingT, str, _Params], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_ChangingT, str, _Params], Coroutine[Any, Any, _Result]]:
    """Run a change of the queue that its first argument names after all earlier ones that concern it; likewise."""

    @functools.wraps(change)
    async def in_turn(self: _ChangingT, name: str, /, *arguments: _Params.args, **named: _Params.kwargs) -> _Result:
        return await self.changes.do(lambda: change(self, name, *arguments, **named), name)

    return in_turn


# ---- in the store ----


class TopologyStorage:
    """Makes the changes of a virtual host in a store. Each raises InternalError with its text if the store fails.

    Args:
        store: the store; None without persistence.
        host: the name of the virtual host.
        emit: emits events of new journals.

    Attributes:
        host: as above.
    """

    def __init__(self, store: Store | None, host: str, emit: Callable[[Event], None]) -> None:
        self._store, self._emit, self.host = store, emit, host
        self._full = functools.partial(full_name, host)

    async def create_queue(self, name: str, alternate: str, arguments: TypedMap, user: str, auto_delete: bool) -> Any:
        """Store a queue. Returns its journal; None without a store.

        The record has room for a user name of 255 bytes: with a longer one, the queue is stored without its creator.

        Raises:
            InvalidArgumentError: an argument for the store is not valid.
            InternalError: see above.
        """
        store = self._store
        if store is None:
            return None
        try:
            geometry = store.queue_geometry({own_name: typed.value for own_name, typed in arguments.entries})
        except store.argument_error as error:
            raise InvalidArgumentError(f'queue "{name}": {error}') from error
        owner = user if records.is_storable_name(user) else ""
        record = records.Queue(self._full(name), arguments, self._full(alternate), owner, auto_delete)
        journal: Journal = await self._make(lambda done: store.changes.create_queue(record, geometry, done))
        self._emit(JournalCreated(name, journal.geometry.data_size, journal.geometry.files))
        return journal

    async def delete_queue(self, queue: Queue) -> None:
        """Delete a queue, its messages and its bindings from the store."""
        store, journal = self._store, queue.journal
        if store is not None and journal is not None:
            await self._run(lambda done: store.changes.delete_queue(journal, done))

    async def create_exchange(self, exchange: Exchange, alternate: str = "") -> None:
        """Store an exchange, with the name of its alternate exchange, which need not exist."""
        store = self._store
        if store is None:
            return
        record = records.Exchange(
            self._full(exchange.name),
            exchange.durable,
            exchange.type_name,
            exchange.arguments,
            self._full(alternate),
            exchange.auto_delete,
        )
        exchange.store_id = await self._make(lambda done: store.changes.create_exchange(record, done))

    async def delete_exchange(self, exchange: Exchange, others: Iterable[ExchangeBinding] = ()) -> None:
        """Delete an exchange and its bindings from the store; `others` are those to and from other exchanges."""
        store, number = self._store, exchange.store_id
        if store is not None and number is not None:
            objects = [binding.store_id for binding in others if binding.store_id is not None]
            if objects:
                await self._run(lambda done: store.changes.delete_exchange_with(number, objects, done))
            else:
                await self._run(lambda done: store.changes.delete_exchange(number, done))

    async def create_exchange_binding(self, binding: ExchangeBinding) -> None:
        """Store a binding between exchanges, if both are stored."""
        store, source, destination = self._store, binding.source, binding.destination
        if store is None or source.store_id is None or destination.store_id is None:
            return
        names = self._full(source.name), self._full(destination.name)
        stored = StoredExchangeBinding(*names, binding.key, binding.arguments)
        binding.store_id = await self._make(
            lambda done: store.changes.create_general(exchange_binding_object(stored), done)
        )

    async def delete_exchange_binding(self, binding: ExchangeBinding) -> None:
        """Delete a binding between exchanges from the store."""
        store, number = self._store, binding.store_id
        if store is not None and number is not None:
            await self._run(lambda done: store.changes.delete_general(number, done))

    async def create_binding(self, exchange: Exchange, binding: Binding) -> None:
        """Store a binding, if its queue and exchange are stored."""
        store, number, queue = self._store, exchange.store_id, binding.queue
        if store is None or number is None or queue.journal is None:
            return
        record = records.Binding(queue.journal.queue_id, self._full(queue.name), binding.key, binding.arguments)
        binding.entry = await self._make(lambda done: store.changes.create_binding(number, record, done))

    async def delete_binding(self, binding: Binding) -> None:
        """Delete a binding from the store."""
        store, entry = self._store, binding.entry
        if store is not None and entry is not None:
            await self._run(lambda done: store.changes.delete_binding(entry, done))

    # ---- waiting ----

    async def _make(self, ask: Callable[[Changed[_Result]], None]) -> _Result:
        """Make a change, and return its result."""
        assert self._store is not None
        return await make_in(self._store, ask)

    async def _run(self, ask: Callable[[Changed[None]], None]) -> None:
        """Make a change that has no result."""
        assert self._store is not None
        await run_in(self._store, ask)


async def make_in(store: Store, ask: Callable[[Changed[_Result]], None]) -> _Result:
    """Make a change in a store, and return its result.

    Args:
        store: the store.
        ask: asks it for the change, with what is to be called when it is made.

    Raises:
        InvalidArgumentError: the record cannot be stored.
        InternalError: the store fails.
    """
    made = await _request(store, ask)
    assert made is not None
    return made


async def run_in(store: Store, ask: Callable[[Changed[None]], None]) -> None:
    """Make a change in a store that has no result. As `make_in`."""
    await _request(store, ask)


async def _request(store: Store, ask: Callable[[Changed[_Result]], None]) -> _Result | None:
    answer: asyncio.Future[tuple[_Result | None, Exception | None]] = asyncio.get_running_loop().create_future()

    def done(made: _Result | None, error: Exception | None) -> None:
        if not answer.done():  # otherwise the waiting task was cancelled
            answer.set_result((made, error))

    try:
        ask(done)
    except FormatError as error:
        raise InvalidArgumentError(str(error)) from error
    except store.errors as error:
        raise InternalError(str(error)) from error
    made, failure = await answer
    if failure is not None:
        raise InternalError(str(failure))
    return made
