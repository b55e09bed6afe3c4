"""The methods of managed objects: each does what a command of a protocol does, with its checks and its promises.

    broker      echo, create, delete, query, queueMoveMessages, getTimestampConfig, setTimestampConfig
    connection  close
    queue       purge, reroute

The other methods of the schema are answered with not-implemented. That a queue is exclusive to a client does not matter
to these. Timestamps are switched for connections that are opened later. Messages are moved as to an alternate exchange:
each is stored at its destination before it leaves its queue.

Source: the QMF schema of qpidd's broker; qpidd, Broker.cpp (the types and options of create and delete).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.management.objects import Objects, name_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
)
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.broker.model.queues.groups import GroupOrder
from qstore.formats.values import TypedMap, TypedValue
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.management.objects import ManagedObject
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.alternate import Alternate
    from qstore.broker.model.queues.consumer import Consumer
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.protocols.machine import Machine

_AT_ONCE: Final = 200  # messages that are moved before others are served
_MAX_GROUPS: Final = 1000  # in the reply to a query
_NOT_YET: Final = {
    "broker": (
        "connect", "setLogLevel", "getLogLevel", "getLogHiresTimestamp", "setLogHiresTimestamp", "queueRedirect",
        "shutdown",
    ),
    "session": ("solicitAck", "detach", "resetLifespan", "close"),
}  # fmt: skip

Arguments: TypeAlias = Mapping[str, Any]
Results: TypeAlias = dict[str, Any]
_Method: TypeAlias = "Callable[[Methods, Any, Arguments, Caller], Coroutine[Any, Any, Results]]"


class _QueueAlone:
    """Leads to one queue, as an alternate exchange does."""

    def __init__(self, queue: Queue) -> None:
        self.name, self._queue = queue.name, queue

    @property
    def alternate(self) -> None:
        """There is none."""
        return

    def route(self, message: Message) -> Route:  # noqa: ARG002
        """The queue."""
        return Route((Binding(self._queue, self.name),))


class Methods:
    """The methods of one broker's objects.

    Args:
        broker: the model.
        objects: its managed objects.
    """

    def __init__(self, broker: Broker, objects: Objects) -> None:
        self._broker, self._objects = broker, objects

    async def call(self, managed: ManagedObject, method: str, arguments: Arguments, caller: Caller) -> Results:
        """Call a method. Returns its results.

        Raises:
            NotFoundError: there is no such method.
            ModelError: it fails.
        """
        found = _METHODS.get(managed.of.name, {}).get(method)
        if found is not None:
            return await found(self, managed.target, arguments, caller)
        if method in _NOT_YET.get(managed.of.name, ()):
            raise NotImplementedByBrokerError(f"the method {method} is not implemented")
        raise NotFoundError(f"class {managed.of.name} has no method {printable(method)}")

    # ---- broker ----

    async def _echo(self, _broker: Broker, arguments: Arguments, _caller: Caller) -> Results:
        return {name: arguments[name] for name in ("sequence", "body") if name in arguments}

    async def _create(self, _broker: Broker, arguments: Arguments, caller: Caller) -> Results:
        kind, name = _text(arguments, "type"), _text(arguments, "name")
        given = arguments.get("properties")
        properties = _Properties(given if isinstance(given, TypedMap) else TypedMap(()))
        topology = self._broker.topology
        if kind == "queue":
            _check_new(name, self._broker.queues)
            await topology.declare_queue(
                name,
                durable=properties.take_flag("durable"),
                auto_delete=properties.take_flag("auto-delete"),
                alternate=properties.take_text("alternate-exchange"),
                arguments=properties.rest(strict=_flag(arguments, "strict")),
                caller=caller,
            )
        elif kind in ("exchange", "topic"):
            _check_new(name, self._broker.exchanges)
            await topology.declare_exchange(
                name,
                properties.take_text("exchange-type") or "topic",
                durable=properties.take_flag("durable"),
                auto_delete=properties.take_flag("auto-delete"),
                alternate=properties.take_text("alternate-exchange"),
                arguments=properties.rest(strict=_flag(arguments, "strict")),
                caller=caller,
            )
        elif kind == "binding":
            exchange, queue, key = _parts_of_binding(name)
            await topology.bind(queue, exchange, key, properties.rest(strict=False), caller=caller)
        else:
            raise _unknown_type(kind)
        return {}

    async def _delete(self, _broker: Broker, arguments: Arguments, caller: Caller) -> Results:
        kind, name = _text(arguments, "type"), _text(arguments, "name")
        given = arguments.get("options")
        options = {} if not isinstance(given, TypedMap) else {each: typed.value for each, typed in given.entries}
        topology = self._broker.topology
        if kind == "queue":
            await topology.delete_queue(
                name, if_unused=_flag(options, "if_unused"), if_empty=_flag(options, "if_empty"), caller=caller
            )
        elif kind in ("exchange", "topic"):
            await topology.delete_exchange(name, if_unused=_flag(options, "if_unused"), caller=caller)
        elif kind == "binding":
            exchange, queue, key = _parts_of_binding(name)
            await topology.unbind(queue, exchange, key, caller=caller)
        else:
            raise _unknown_type(kind)
        return {}

    async def _query(self, _broker: Broker, arguments: Arguments, _caller: Caller) -> Results:
        kind, name = _text(arguments, "type"), _text(arguments, "name")
        if kind.lower() not in self._objects.classes:
            raise _unknown_type(kind)
        found = self._objects.find(name_of(kind.lower(), name))
        if found is None:
            raise NotFoundError(f"Object not found: {printable(name)}")
        results = self._objects.values(found)
        if found.of.name == "queue" and isinstance(found.target.order, GroupOrder):
            results["qpid.message_group_queue"] = _groups(found.target.order)
        return {"results": results}

    async def _move(self, _broker: Broker, arguments: Arguments, caller: Caller) -> Results:
        source = self._broker.topology.find_queue(_text(arguments, "srcQueue"))
        target = self._broker.topology.find_queue(_text(arguments, "destQueue"))
        self._broker.authorization.check(caller, Action.MOVE, ObjectType.QUEUE, source.name, queuename=target.name)
        if source is target:
            raise InvalidArgumentError(f'queue "{source.name}" is both source and destination')
        await self._move_all(source, _QueueAlone(target), _count(arguments, "qty"), _wants(arguments))
        return {}

    async def _timestamps(self, _broker: Broker, _arguments: Arguments, _caller: Caller) -> Results:
        return {"receive": self._broker.has_timestamps}

    async def _set_timestamps(self, _broker: Broker, arguments: Arguments, _caller: Caller) -> Results:
        self._broker.has_timestamps = _flag(arguments, "receive")
        return {}

    # ---- connection ----

    async def _close(self, machine: Machine, _arguments: Arguments, _caller: Caller) -> Results:
        machine.force_close("closed by management")
        self._broker.tick.schedule()
        return {}

    # ---- queue ----

    async def _purge(self, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
        self._broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
        is_written, wants = False, _wants(arguments)
        for entry in _chosen(queue, _count(arguments, "request"), wants):
            if queue.acquire(entry, is_consumed=False):
                is_written = queue.dequeue(entry) or is_written
                queue.counters.purged += 1
        self._broker.tick.schedule()
        if is_written:
            done = _Waiting()
            self._broker.tick.when_synced(done.one_more())
            await done.all()
        return {}

    async def _reroute(self, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
        uses_alternate = _flag(arguments, "useAltExchange")
        exchange = queue.alternate if uses_alternate else None
        if not uses_alternate:
            exchange = self._broker.topology.find_exchange(_text(arguments, "exchange"))
        if exchange is None:
            raise PreconditionFailedError(f'queue "{queue.name}" has no alternate exchange')
        self._broker.authorization.check(
            caller, Action.REROUTE, ObjectType.QUEUE, queue.name, exchangename=exchange.name
        )
        await self._move_all(queue, exchange, _count(arguments, "request"), _wants(arguments))
        return {}

    async def _move_all(
        self, queue: Queue, exchange: Alternate[Queue], count: int, wants: Callable[[Message], bool] | None
    ) -> None:
        """Move so many messages, or all if it is 0, and wait until they are there and have left.

        Raises:
            ModelError: one could not be moved; those before it were.
        """
        waiting = _Waiting()
        for number, entry in enumerate(_chosen(queue, count, wants), 1):
            if not queue.acquire(entry, is_consumed=False):
                continue
            try:
                self._broker.router.move(queue, entry, exchange, waiting.one_more())
            except ModelError:
                queue.release(entry, is_redelivered=False)
                waiting.cancel_one()
                await waiting.all()
                raise
            queue.counters.rerouted += 1
            if number % _AT_ONCE == 0:
                await waiting.all()
        await waiting.all()


class _Waiting:
    """Waits until several things are done."""

    def __init__(self) -> None:
        self._left = 0
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None

    def one_more(self) -> Callable[[Exception | None], None]:
        """What is to be called when one more is done."""
        self._left += 1
        return self._done

    def cancel_one(self) -> None:
        """One of them was not begun."""
        self._left -= 1

    def _done(self, error: Exception | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left and self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def all(self) -> None:
        """Wait for all, and for others to be served. Raises the first error."""
        if self._left:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
            self._future = None
        else:
            await asyncio.sleep(0)
        if self._error is not None:
            raise self._error


class _Properties:
    """The properties of an object that is created: some are taken, the rest are its arguments."""

    def __init__(self, properties: TypedMap) -> None:
        self._left = dict(properties.entries)

    def take_flag(self, name: str) -> bool:
        """A flag; False if it is not given."""
        typed = self._left.pop(name, None)
        return typed is not None and _flag({name: typed.value}, name)

    def take_text(self, name: str) -> str:
        """A text; empty if it is not given."""
        typed = self._left.pop(name, None)
        return "" if typed is None else _text({name: typed.value}, name)

    def rest(self, *, strict: bool) -> TypedMap:
        """The properties that are left.

        Raises:
            InvalidArgumentError: `strict`, and one of them is neither qpidd's nor somebody's extension.
        """
        unknown = [name for name in self._left if not name.startswith(("qpid.", "x-", "no-local", "alternate"))]
        if strict and unknown:
            raise InvalidArgumentError(f"unknown property: {printable(unknown[0])}")
        return TypedMap(tuple(self._left.items()))


def _groups(order: GroupOrder) -> Results:
    """The first groups of a queue, and the consumers to which they belong; empty for one that is free."""
    states = [
        {"group_id": group.name, "msg_count": group.size, "timestamp": 0, "consumer": _name_of(group.owner)}
        for group in order.groups[:_MAX_GROUPS]
    ]
    return {"group_header_key": order.header, "group_state": states}


def _name_of(consumer: Consumer | None) -> str:
    return "" if consumer is None else str(getattr(consumer, "destination", "")) or "a consumer"


def _chosen(queue: Queue, count: int, wants: Callable[[Message], bool] | None) -> Iterator[Entry]:
    """So many of the messages that are available now, or all if it is 0."""
    end, left = queue.next_position, count
    for entry in queue.available():
        if entry.position >= end or (count and not left):
            return
        if wants is None or wants(entry.message):
            left -= 1
            yield entry


def _wants(arguments: Arguments) -> Callable[[Message], bool] | None:
    """The filter that the arguments have; None for all messages. Raises InvalidArgumentError."""
    given = arguments.get("filter")
    if not isinstance(given, TypedMap) or not given.entries:
        return None
    kind, parameters = given.get("filter_type"), given.get("filter_params")
    if kind is None or _as_text(kind.value) != "header_match_str" or parameters is None:
        raise InvalidArgumentError("the filter has another type than header_match_str")
    if not isinstance(parameters.value, TypedMap):
        raise InvalidArgumentError("filter_params is not a map")
    key = _text(_plain(parameters.value), "header_key")
    value = _text(_plain(parameters.value), "header_value")
    return lambda message: message.header_text(key) == value


def _plain(table: TypedMap) -> dict[str, Any]:
    return {name: typed.value for name, typed in table.entries}


def _check_new(name: str, existing: Mapping[str, object]) -> None:
    if name in existing:
        raise PreconditionFailedError(f"Object already exists: {printable(name)}")


def _unknown_type(kind: str) -> ModelError:
    return InvalidArgumentError(f"unknown object type: {printable(kind)}")


def _parts_of_binding(name: str) -> tuple[str, str, str]:
    """Exchange, queue and key, from `exchange/queue/key`. Raises InvalidArgumentError."""
    parts = name.split("/", 2)
    if len(parts) < 2:
        raise InvalidArgumentError(f"the name of a binding is EXCHANGE/QUEUE/KEY, not {printable(name)}")
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


def _as_text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _text(arguments: Arguments, name: str) -> str:
    value = _as_text(arguments.get(name, ""))
    if not isinstance(value, str):
        raise InvalidArgumentError(f"the argument {name} is no text")
    return value


def _flag(arguments: Arguments, name: str) -> bool:
    value = _as_text(arguments.get(name, False))
    if isinstance(value, str):
        return value.lower() in ("true", "yes", "1")
    return bool(value)


def _count(arguments: Arguments, name: str) -> int:
    value = arguments.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgumentError(f"the argument {name} is no number")
    return value


_METHODS: Final[Mapping[str, Mapping[str, _Method]]] = {
    "broker": {
        "echo": Methods._echo,
        "create": Methods._create,
        "delete": Methods._delete,
        "query": Methods._query,
        "getTimestampConfig": Methods._timestamps,
        "setTimestampConfig": Methods._set_timestamps,
        "queueMoveMessages": Methods._move,
    },
    "connection": {"close": Methods._close},
    "queue": {"purge": Methods._purge, "reroute": Methods._reroute},
}


def values_of(arguments: TypedMap) -> dict[str, Any]:
    """Arguments by name; maps stay as they are."""
    return {name: typed.value if isinstance(typed, TypedValue) else typed for name, typed in arguments.entries}
