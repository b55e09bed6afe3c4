"""Methods that take messages off a queue: purge, reroute, and move to another queue.

Messages are moved as to an alternate exchange: each is stored at its destination before it leaves its queue, and the
method succeeds when all of that is on the disk. A message that cannot be moved stays; those before it were moved. What
a rerouted message has passed (`x-qpid.trace`) is cleared, so that a federation takes it. Others are served in between.

The caller needs the right to move or reroute, and to publish to the destination with the keys that each message has.
Queues that are exclusive to a session of AMQP 0-10 are no exception; those that are exclusive to a connection of AMQP
0-9-1 are left to that connection.

Source: the QMF schema of qpidd's broker; qpidd, Queue.cpp (the filter, and the trace).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from qstore.broker.management.methods.arguments import Wants, count, flag, text, wants
from qstore.broker.management.methods.waiting import Waiting
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, ModelError, PreconditionFailedError
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.broker.model.exchanges.topic_index import MAX_STEPS
from qstore.broker.model.settlement import MOVED_AT_ONCE, Selection
from qstore.broker.model.topology.checks import check_private
from qstore.formats.values import STR16, TypedValue

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.alternate import Alternate
    from qstore.broker.model.queues.queue import Queue

_TRACE: Final = "x-qpid.trace"
_NO_TRACE: Final = TypedValue(STR16, "")


class _QueueAlone:
    """Leads to one queue, as an alternate exchange does."""

    def __init__(self, queue: Queue) -> None:
        self.name, self._queue = queue.name, queue

    @property
    def steps(self) -> int:
        """None: there is one queue."""
        return 0

    @property
    def alternate(self) -> None:
        """There is none."""
        return

    def route(self, message: Message) -> Route:  # noqa: ARG002
        """The queue."""
        return Route((Binding(self._queue, self.name),))


async def move_messages(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Move messages from one queue to another."""
    topology = managed.broker.topology
    source, target = text(arguments, "srcQueue"), text(arguments, "destQueue")
    managed.broker.authorization.check(caller, Action.MOVE, ObjectType.QUEUE, source, queuename=target)
    managed.broker.authorization.check_publish(caller, "", target)
    queue, destination = topology.find_queue(source), topology.find_queue(target)
    check_private(queue, caller)
    if queue is destination:
        raise InvalidArgumentError(f'queue "{source}" is both source and destination')
    await _move_all(managed, queue, _QueueAlone(destination), count(arguments, "qty"), wants(arguments))
    return {}


async def reroute(managed: ManagedBroker, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
    """Move messages from a queue to an exchange."""
    uses_alternate, name = flag(arguments, "useAltExchange"), text(arguments, "exchange")
    if uses_alternate:
        name = "" if queue.alternate is None else queue.alternate.name
    managed.broker.authorization.check(caller, Action.REROUTE, ObjectType.QUEUE, queue.name, exchangename=name)
    exchange = queue.alternate if uses_alternate else managed.broker.topology.find_exchange(name)
    if exchange is None:
        raise PreconditionFailedError(f'queue "{queue.name}" has no alternate exchange')
    check_private(queue, caller)
    await _move_all(managed, queue, exchange, count(arguments, "request"), wants(arguments), caller)
    return {}


async def purge(managed: ManagedBroker, queue: Queue, arguments: Arguments, caller: Caller) -> Results:
    """Remove messages from a queue."""
    tick = managed.broker.tick
    managed.broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    check_private(queue, caller)
    waiting, selection = Waiting(), Selection(queue, count(arguments, "request"), wants(arguments))
    while not selection.is_over:
        is_written = False
        for entry in selection.portion():
            if queue.acquire(entry, is_consumed=False):
                is_written = queue.dequeue(entry) or is_written
                queue.counters.purged += 1
        if is_written:
            tick.when_synced(waiting.one_more())
        tick.schedule()
        await waiting.all()
    return {}


async def _move_all(
    managed: ManagedBroker,
    queue: Queue,
    exchange: Alternate[Queue],
    number: int,
    selects: Wants | None,
    rerouter: Caller | None = None,
) -> None:
    """Move so many messages, or all if it is 0, and wait until they are there and have left.

    Those that are rerouted for the user `rerouter` are published by their keys: it is asked for each, and the trace of
    each is cleared.

    Raises:
        ModelError: one could not be moved; those before it were.
    """
    router, waiting, selection = managed.broker.router, Waiting(), Selection(queue, number, selects, MOVED_AT_ONCE)
    failures: list[ModelError] = []
    authorization = managed.broker.authorization
    while not selection.is_over and not failures:
        before = exchange.steps
        for entry in selection.portion():
            if exchange.steps - before > MAX_STEPS:
                await asyncio.sleep(0)
                before = exchange.steps
            if not queue.acquire(entry, is_consumed=False):
                continue
            done = waiting.one_more()
            try:
                message = entry.message if rerouter is None else _without_trace(entry.message)
                if rerouter is not None and authorization.authorizer.checks_publish:
                    message = message.whole()
                    for each in (message, *message.under_further_keys()):
                        authorization.check_publish(rerouter, exchange.name, each.routing_key)
                router.move(queue, entry, exchange, done, message)
            except ModelError as error:
                queue.release(entry, is_redelivered=False)
                waiting.cancel_one()
                failures.append(error.with_traceback(None))
                break
            queue.counters.rerouted += 1
        await waiting.all()
    if failures:
        raise failures.pop()


def _without_trace(message: Message) -> Message:
    return message.with_headers({_TRACE: _NO_TRACE}) if message.header_text(_TRACE) else message
