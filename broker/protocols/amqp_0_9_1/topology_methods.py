"""The methods of classes exchange and queue: decode their fields and call the model.

They change the topology, which takes time: each runs as a coroutine with the connection's input paused, and is answered
when it is done. Where the model leaves a choice, the rules are those that RabbitMQ's clients rely on:

    declared again    everything must agree: type, durability, arguments and so on; else 406 precondition-failed
    exclusive         a queue belongs to the connection, ends with it, and is stored nowhere
    no name           the broker names the queue; later methods of the channel may leave the name out
    not there         deleting or unbinding what does not exist is done already
    alternate         an exchange may be declared before its alternate exchange, and survives it
    if-empty          messages that consumers hold unacknowledged do not count: they end with the queue

Source: AMQP 0-9-1, classes exchange and queue; RabbitMQ, "Queues" and "Exchanges".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from qstore.broker.model.arguments import ALTERNATE
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import NotAllowedError, NotFoundError
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.types import EXCHANGE_TYPES
from qstore.broker.model.replies import REPLY_TO
from qstore.broker.protocols.amqp_0_9_1.arguments import (
    alternate_of,
    binding_arguments,
    exchange_name,
    queue_arguments,
    with_exchange_name,
)
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError
from qstore.broker.protocols.amqp_0_9_1.headers_keys import headers_key
from qstore.broker.protocols.amqp_0_9_1.reply_codes import locked, missing
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.values import TypedMap

_Values = dict[str, Any]
_Work = Coroutine[Any, Any, None]

SERVER_NAMED: Final = "amq.gen-"


def _run(channel: Channel, work: _Work, reply: str, values: _Values, payload: bytes) -> None:
    """Run a coroutine, and send a reply without fields, if it is wanted."""
    channel.run(work, partial(_reply, channel, reply, values), payload)


def _reply(channel: Channel, reply: str, values: _Values) -> None:
    if not values.get("nowait"):
        channel.send(reply)


# ---- exchanges ----


def _declare_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    name, type_name, arguments = exchange_name(values["exchange"]), values["type"], values["arguments"]
    if not name:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    if not values["passive"] and type_name not in EXCHANGE_TYPES:
        raise HardError(ReplyCode.COMMAND_INVALID, f"invalid exchange type '{type_name}'")
    work = channel.broker.topology.declare_exchange(
        name,
        "" if values["passive"] else type_name,
        passive=values["passive"],
        durable=values["durable"],
        auto_delete=values["auto_delete"],
        internal=values["internal"],
        alternate="" if values["passive"] else alternate_of(arguments),
        arguments=with_exchange_name(arguments, ALTERNATE),
        caller=channel.connection,
        is_exact=True,
    )
    _run(channel, _ignoring_result(work), "exchange.declare-ok", values, payload)


async def _ignoring_result(work: Coroutine[Any, Any, Any]) -> None:
    await work


def _delete_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    name = exchange_name(values["exchange"])
    if not name:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    work = channel.broker.topology.delete_exchange(
        name, if_unused=values["if_unused"], is_awaited=True, caller=channel.connection
    )
    _run(channel, _unless_gone(work), "exchange.delete-ok", values, payload)


async def _unless_gone(work: _Work) -> None:
    """Do what has no effect on something that does not exist."""
    try:
        await work
    except NotFoundError:
        return


# ---- queues ----


def _declare_queue(channel: Channel, values: _Values, payload: bytes) -> None:
    name, passive = values["queue"], values["passive"]
    if name.startswith(REPLY_TO):
        _declare_replies(channel, name, nowait=values["nowait"])
        return
    is_server_named = not name and not passive
    if is_server_named:
        name = SERVER_NAMED + secrets.token_urlsafe(16)
    else:
        _check_access(channel, name, exclusive=None if passive else values["exclusive"])
    arguments = values["arguments"] if passive else queue_arguments(values["arguments"])
    found: list[tuple[int, int]] = []

    async def declare() -> None:
        connection = channel.connection
        queue = await channel.broker.topology.declare_queue(
            name,
            passive=passive,
            durable=values["durable"] and not values["exclusive"],
            exclusive=values["exclusive"] and not passive,
            auto_delete=values["auto_delete"],
            arguments=arguments,
            caller=connection,
            is_exact=True,
            is_server_named=is_server_named,
            is_private=True,
        )
        if queue.owner is connection and not passive:
            connection.own(queue)
        found.append((queue.available_count, queue.consumer_count))

    def reply() -> None:
        channel.last_queue = name
        if not values["nowait"]:
            messages, consumers = found[0]
            channel.send("queue.declare-ok", queue=name, message_count=messages, consumer_count=consumers)

    channel.run(declare(), reply, payload)


def _check_access(channel: Channel, name: str, *, exclusive: bool | None) -> None:
    """Raise an error if a queue cannot be declared over this connection, or there can be none with that name.

    Args:
        channel: the channel.
        name: the name.
        exclusive: whether the queue is to be exclusive; None if that does not matter.
    """
    if not name:
        raise missing("queue", name)
    queue = channel.broker.queues.get(name)
    if queue is None:
        return
    is_owned = queue.owner is not None
    if queue.owner not in (None, channel.connection) or exclusive not in (None, is_owned):
        channel.broker.authorization.check(channel.connection, Action.ACCESS, ObjectType.QUEUE, name)
        raise locked(name)


def _declare_replies(channel: Channel, name: str, *, nowait: bool) -> None:
    """Declare a reply queue: only whether it is there can be found out."""
    if not channel.broker.replies.has(name):
        raise missing("queue", name)
    if not nowait:
        channel.send("queue.declare-ok", queue=name, message_count=0, consumer_count=1)


def _delete_queue(channel: Channel, values: _Values, payload: bytes) -> None:
    name, topology = channel.queue_name(values["queue"]), channel.broker.topology
    queue = channel.broker.queues.get(name)
    count = 0 if queue is None else queue.available_count
    work = topology.delete_queue(
        name,
        if_unused=values["if_unused"],
        if_empty=values["if_empty"],
        counts_held=False,
        caller=channel.connection,
    )

    def reply() -> None:
        if not values["nowait"]:
            channel.send("queue.delete-ok", message_count=count)

    channel.run(_unless_gone(work), reply, payload)


# ---- bindings ----


def _bound(channel: Channel, values: _Values) -> tuple[str, str, str, TypedMap, str]:
    """Queue, exchange, key, arguments and given key of a binding. Raises SoftError."""
    given, key = values["queue"], values["routing_key"]
    name = channel.queue_name(given)
    if not values["exchange"]:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    exchange, queue = channel.broker.exchanges.get(exchange_name(values["exchange"])), channel.broker.queues.get(name)
    key = key if given or key else name
    if not isinstance(exchange, HeadersExchange):
        return name, exchange_name(values["exchange"]), key, values["arguments"], key
    arguments = binding_arguments(exchange.type_name, values["arguments"])
    own_key = key if queue is None else headers_key(exchange, queue, key, arguments)
    return name, exchange.name, own_key, arguments, key


def _bind(channel: Channel, values: _Values, payload: bytes) -> None:
    _run(channel, _bind_in_turn(channel, values, _bound(channel, values)), "queue.bind-ok", values, payload)


async def _bind_in_turn(channel: Channel, values: _Values, bound: tuple[str, str, str, TypedMap, str]) -> None:
    """Bind a queue after all changes that were under way."""
    bind = partial(channel.broker.topology.bind, caller=channel.connection, asked_key=bound[-1])
    try:
        await bind(*bound[:-1])
    except NotAllowedError:  # unless one of them has taken the key, with other arguments
        again = _bound(channel, values)
        if again == bound:
            raise
        await bind(*again[:-1])


def _unbind(channel: Channel, values: _Values, payload: bytes) -> None:
    queue, name, key, _, given = _bound(channel, values)
    work = channel.broker.topology.unbind(queue, name, key, caller=channel.connection, asked_key=given)
    _run(channel, _unless_gone(_ignoring_result(work)), "queue.unbind-ok", values, payload)


def _ends(channel: Channel, values: _Values) -> tuple[str, str, str, TypedMap]:
    """Source, destination, key and arguments of a binding between exchanges. Raises SoftError."""
    source, destination = exchange_name(values["source"]), exchange_name(values["destination"])
    if not source or not destination:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    exchange = channel.broker.exchanges.get(source)
    arguments = binding_arguments("" if exchange is None else exchange.type_name, values["arguments"])
    return source, destination, values["routing_key"], arguments


def _bind_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    work = channel.broker.exchange_bindings.bind(*_ends(channel, values), caller=channel.connection)
    _run(channel, _ignoring_result(work), "exchange.bind-ok", values, payload)


def _unbind_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    work = channel.broker.exchange_bindings.unbind(*_ends(channel, values), caller=channel.connection)
    _run(channel, _unless_gone(work), "exchange.unbind-ok", values, payload)


#: Method -> function.
TOPOLOGY_METHODS: Final[dict[str, Callable[[Channel, _Values, bytes], None]]] = {
    "exchange.declare": _declare_exchange,
    "exchange.delete": _delete_exchange,
    "exchange.bind": _bind_exchange,
    "exchange.unbind": _unbind_exchange,
    "queue.declare": _declare_queue,
    "queue.delete": _delete_queue,
    "queue.bind": _bind,
    "queue.unbind": _unbind,
}
