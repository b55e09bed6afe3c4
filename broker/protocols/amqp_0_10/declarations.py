"""The commands of classes exchange and queue: decodes their fields and calls the model.

Declarations change the topology, which takes time: each is a coroutine without a result. Queries are answered at once
with a struct.

Source: AMQP 0-10, classes exchange and queue.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from qstore.broker.model.arguments import alternate_in, shown
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.formats.amqp_0_10.commands import encode_result
from qstore.formats.values import EMPTY_MAP

_Values = dict[str, Any]


async def _declare_exchange(session: ServerSession, values: _Values) -> None:
    name, arguments = values["exchange"] or "", values["arguments"] or EMPTY_MAP
    alternate, named = values["alternate_exchange"] or "", "" if values["passive"] else alternate_in(arguments)
    if alternate and named not in ("", alternate):
        raise InvalidArgumentError(f"the alternate exchange is {shown(alternate)}, but its argument is {shown(named)}")
    await session.broker.topology.declare_exchange(
        name,
        values["type"] or "",
        passive=values["passive"],
        durable=values["durable"],
        auto_delete=values["auto_delete"],
        alternate=alternate or named,
        arguments=arguments,
        caller=session,
    )


async def _delete_exchange(session: ServerSession, values: _Values) -> None:
    await session.broker.topology.delete_exchange(
        values["exchange"] or "", if_unused=values["if_unused"], caller=session
    )


async def _bind(session: ServerSession, values: _Values) -> None:
    await session.broker.topology.bind(
        values["queue"] or "",
        values["exchange"] or "",
        values["binding_key"] or "",
        values["arguments"] or EMPTY_MAP,
        caller=session,
    )


async def _unbind(session: ServerSession, values: _Values) -> None:
    await session.broker.topology.unbind(
        values["queue"] or "", values["exchange"] or "", values["binding_key"] or "", caller=session
    )


async def _declare_queue(session: ServerSession, values: _Values) -> None:
    queue = await session.broker.topology.declare_queue(
        values["queue"] or "",
        passive=values["passive"],
        durable=values["durable"],
        exclusive=values["exclusive"],
        auto_delete=values["auto_delete"],
        alternate=values["alternate_exchange"] or "",
        arguments=values["arguments"] or EMPTY_MAP,
        caller=session,
    )
    if queue.owner is session:
        session.add_exclusive_queue(queue)


async def _delete_queue(session: ServerSession, values: _Values) -> None:
    await session.broker.topology.delete_queue(
        values["queue"] or "", if_unused=values["if_unused"], if_empty=values["if_empty"], caller=session
    )


def _query_exchange(session: ServerSession, values: _Values) -> bytes:
    name = values["name"] or ""
    session.broker.authorization.check(session, Action.ACCESS, ObjectType.EXCHANGE, name)
    exchange = session.broker.exchanges.get(name)
    if exchange is None:
        return encode_result("exchange.query", not_found=True)
    return encode_result(
        "exchange.query", type=exchange.type_name, durable=exchange.durable, arguments=exchange.arguments
    )


def _query_bound(session: ServerSession, values: _Values) -> bytes:
    exchange, queue, key = values["exchange"] or "", values["queue"], values["binding_key"]
    session.broker.authorization.check(
        session, Action.ACCESS, ObjectType.EXCHANGE, exchange, queuename=queue or "", routingkey=key or ""
    )
    result = session.broker.topology.bound(exchange, queue, key, values["arguments"])
    return encode_result("exchange.bound", **result._asdict())


def _query_queue(session: ServerSession, values: _Values) -> bytes:
    name = values["queue"] or ""
    session.broker.authorization.check(session, Action.ACCESS, ObjectType.QUEUE, name)
    queue = session.broker.queues.get(name)
    if queue is None:
        queue = session.broker.replies.queues.get(name)  # clients look for the reply address before they send there
    if queue is None:
        return encode_result("queue.query")
    return encode_result(
        "queue.query",
        queue=queue.name,
        alternate_exchange=None if queue.alternate is None else queue.alternate.name,
        durable=queue.durable,
        exclusive=queue.owner is not None,
        auto_delete=queue.auto_delete,
        arguments=queue.arguments,
        message_count=queue.available_count,
        subscriber_count=queue.consumer_count,
    )


#: Command -> function.
DECLARATIONS: Final[dict[str, Callable[[ServerSession, _Values], Coroutine[Any, Any, None]]]] = {
    "exchange.declare": _declare_exchange,
    "exchange.delete": _delete_exchange,
    "exchange.bind": _bind,
    "exchange.unbind": _unbind,
    "queue.declare": _declare_queue,
    "queue.delete": _delete_queue,
}

#: Command -> function that returns the encoded result.
QUERIES: Final[dict[str, Callable[[ServerSession, _Values], bytes]]] = {
    "exchange.query": _query_exchange,
    "exchange.bound": _query_bound,
    "queue.query": _query_queue,
}
