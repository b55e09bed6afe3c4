"""Executes the methods of a client on an open channel, each by a function in one table, `METHODS`.

Those of classes exchange and queue change the topology, which takes time: each runs as a coroutine with the
connection's input paused, and is answered when it is done. Where the model leaves a choice, the rules are those that
RabbitMQ's clients rely on:

    redeclaration     everything must agree: type, durability, arguments and so on; else 406 precondition-failed
    exclusive         a queue belongs to the connection, ends with it, and is stored nowhere
    no name           the broker names the queue; later methods of the channel may omit the name
    idempotence       deleting or unbinding what does not exist succeeds
    alternate         an exchange may be declared before its alternate exchange, and survives it
    if-empty          messages that consumers hold unacknowledged do not count: they are deleted with the queue

Clients of AMQP 0-8 and 0-9, which know Apache's brokers, get the rules of these:

    redeclaration     only the type of an exchange must agree; else, and for reserved names, 530 not-allowed. A queue
                      that is not exclusive does not become so: 405 resource-locked
    no name           without a queue that was declared before: 530 not-allowed
    existence         deleting or unbinding what does not exist fails: 404 not-found
    basic.qos         a limit of all consumers of the channel together, those that exist included
    basic.recover     requeue=false, too: what the channel holds goes back to its queues, and may go to other consumers
    tx.rollback       what was acknowledged is delivered again

basic.ack is decoded here, as it is frequent. basic.publish has content, and takes another path (`publishing`).

Source: AMQP 0-9-1, all classes; RabbitMQ, "Queues", "Exchanges", "Consumer Prefetch", "Consumers" and "Channels" (codes
of misuse).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from qstore.broker.model.arguments import ALTERNATE, AMQP_0_9_1, AUTO_CLOSE, NO_CONSUME, is_switched_on
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import ModelError, NotAllowedError, NotFoundError, ResourceLockedError
from qstore.broker.model.events import SessionFlow, SessionPrefetch
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.types import is_type
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.replies import REPLY_TO
from qstore.broker.model.selectors.selector import requested_selector
from qstore.broker.model.settlement import purge, subscribe
from qstore.broker.protocols.amqp_0_9_1.acknowledgements import (
    Confirms,
    acknowledge,
    begin_transaction,
    commit,
    recover,
    refuse,
    roll_back,
)
from qstore.broker.protocols.amqp_0_9_1.arguments import (
    alternate_of,
    binding_arguments,
    check_consumer_arguments,
    exchange_name,
    headers_key,
    queue_arguments,
    with_exchange_name,
)
from qstore.broker.protocols.amqp_0_9_1.channel import MAX_CONSUMERS, MAX_UNACKNOWLEDGED, Channel
from qstore.broker.protocols.amqp_0_9_1.consumer import (
    BasicConsumer,
    SelectiveConsumer,
    StreamConsumer,
    TracedConsumer,
)
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError, locked, missing
from qstore.broker.protocols.consumer import SelectorCheck
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import ACK, decode_ack, decode_method
from qstore.formats.values import EMPTY_MAP, TypedMap

_Values = dict[str, Any]

_MANY_CONSUMERS: Final = 100
_TICKET: Final = 1  # of every realm

# ---- channel ----


def _open(channel: Channel, _values: _Values, _payload: bytes) -> None:
    raise HardError(ReplyCode.CHANNEL_ERROR, f"channel {channel.number} is already open")


def _close(channel: Channel, _values: _Values, _payload: bytes) -> None:
    channel.connection.channel_closed(channel)


def _close_ok(_channel: Channel, _values: _Values, _payload: bytes) -> None:
    """Ignore a channel.close-ok without channel.close."""


def _flow(channel: Channel, values: _Values, payload: bytes) -> None:
    was_active = channel.is_flowing
    is_active = channel.is_flowing = values["active"]
    if is_active is not was_active:
        channel.broker.events.emit(SessionFlow(is_active), channel)
    channel.wake_all()
    _answer_in_turn(channel, partial(channel.send, "channel.flow-ok", active=is_active), payload)


# ---- consumers ----


def _qos(channel: Channel, values: _Values, payload: bytes) -> None:
    if values["prefetch_size"]:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is not implemented; prefetch_count is")
    count = values["prefetch_count"]
    if values["global"] or channel.connection.version.is_older:
        channel.set_limit(count)
    else:
        channel.prefetch = count
        if channel.connection.adjusts_consumers:
            channel.adjust_consumers(count)
    channel.broker.events.emit(SessionPrefetch(0, count), channel)
    _answer_in_turn(channel, partial(channel.send, "basic.qos-ok"), payload)


def _answer_in_turn(channel: Channel, answer: Callable[[], None], payload: bytes) -> None:
    """Answer a method that has changed all consumers of the channel.

    With many of them that takes a millisecond or two, and the client may have sent a hundred such methods at once: the
    next one is read when other connections have had their turn.
    """
    if len(channel.consumers) <= _MANY_CONSUMERS:
        answer()
    else:
        channel.run(_in_next_turn(), answer, payload)


async def _in_next_turn() -> None:
    """Do nothing, so that the call is done in the next iteration of the event loop."""


def _consume(channel: Channel, values: _Values, _payload: bytes) -> None:
    tag = values["consumer_tag"] or f"amq.ctag-{secrets.token_urlsafe(16)}"
    wants_replies = values["queue"] == REPLY_TO
    if not wants_replies:
        queue = channel.find_queue(values["queue"], Action.CONSUME)
    check_consumer_arguments(values.setdefault("arguments", EMPTY_MAP))  # AMQP 0-8 as it was published has none
    if tag in channel.consumers:
        raise HardError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if len(channel.consumers) >= MAX_CONSUMERS:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"more than {MAX_CONSUMERS} consumers on one channel")
    if wants_replies:
        consumer = _replies_consumer(channel, tag, no_ack=values["no_ack"])
    else:
        consumer = _subscribed(channel, tag, queue, values)
    channel.consumers[tag] = consumer
    if not values["nowait"]:
        channel.send("basic.consume-ok", consumer_tag=tag)
    consumer.wake()


def _subscribed(channel: Channel, tag: str, queue: Queue, values: _Values) -> BasicConsumer:
    exclusive, arguments = values["exclusive"], values["arguments"]
    consumer = _make_consumer(channel, tag, queue, values)
    try:
        subscribe(
            channel.broker, channel, queue, consumer, tag,
            exclusive=exclusive, arguments=arguments, protocol=AMQP_0_9_1,
        )  # fmt: skip
    except ResourceLockedError as error:
        text = f"queue '{queue.name}' in vhost '{channel.vhost}' in exclusive use: {error}"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text) from error
    return consumer


def _check_stream_consumer(channel: Channel, queue: Stream, arguments: TypedMap, *, no_ack: bool) -> None:
    """Check that a consumer of a stream has credit, which its acknowledgements return. Raises CodedError."""
    of = f"stream '{queue.name}' in vhost '{channel.vhost}'"
    has_credit = channel.limit < MAX_UNACKNOWLEDGED if channel.connection.version.is_older else channel.prefetch
    if not has_credit:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for {of}")
    if no_ack:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, f"automatic acknowledgement not supported by {of}")
    if is_switched_on(arguments, AUTO_CLOSE):
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"{AUTO_CLOSE} is not supported by {of}, which has no end")


def _make_consumer(channel: Channel, tag: str, queue: Queue, values: _Values) -> BasicConsumer:
    arguments, limit = values["arguments"], channel.prefetch or MAX_UNACKNOWLEDGED
    no_ack, no_local = values["no_ack"], values["no_local"]
    if isinstance(queue, Stream):
        _check_stream_consumer(channel, queue, arguments, no_ack=no_ack)
    selector = requested_selector(arguments)
    browses = is_switched_on(arguments, NO_CONSUME) and not isinstance(queue, Stream)  # of which nobody takes anything
    closes = is_switched_on(arguments, AUTO_CLOSE)
    if selector is not None or browses or closes:
        check = None if selector is None else SelectorCheck(selector, channel.broker.last_candidate)
        return SelectiveConsumer(
            channel, tag, queue, no_ack=no_ack, no_local=no_local, limit=limit, arguments=arguments, check=check,
            browses=browses, closes=closes,
        )  # fmt: skip
    make = BasicConsumer if channel.broker.tick.tracer is None else TracedConsumer
    if isinstance(queue, Stream):
        make = StreamConsumer
    return make(channel, tag, queue, no_ack=no_ack, no_local=no_local, limit=limit, arguments=arguments)


def _replies_consumer(channel: Channel, tag: str, *, no_ack: bool) -> BasicConsumer:
    """The consumer of direct replies."""
    channel.broker.authorization.check(channel.connection, Action.CONSUME, ObjectType.QUEUE, REPLY_TO)
    if not no_ack:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_to:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    queue = channel.virtual_host.replies.open()
    channel.reply_to = queue.name
    consumer = BasicConsumer(channel, tag, queue, no_ack=True, no_local=False, limit=MAX_UNACKNOWLEDGED)
    queue.add_consumer(consumer)
    return consumer


def _cancel(channel: Channel, values: _Values, _payload: bytes) -> None:
    tag = values["consumer_tag"]
    consumer = channel.consumers.get(tag)
    if consumer is not None:  # otherwise it was cancelled already, for example because its queue was deleted
        channel.drop_consumer(consumer)
    if not values["nowait"]:
        channel.send("basic.cancel-ok", consumer_tag=tag)


def _cancel_ok(_channel: Channel, _values: _Values, _payload: bytes) -> None:
    """Ignore the answer to the notification about a deleted queue."""


def _get(channel: Channel, values: _Values, _payload: bytes) -> None:
    queue = channel.find_queue(values["queue"], Action.CONSUME)
    channel.broker.authorization.check(channel.connection, Action.CONSUME, ObjectType.QUEUE, queue.name)
    if isinstance(queue, Stream):
        text = f"basic.get not supported by stream '{queue.name}' in vhost '{channel.vhost}'"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    if queue.is_browse_only:
        raise SoftError(ReplyCode.ACCESS_REFUSED, f"queue '{queue.name}' has only browsers")
    if len(channel.unsettled) >= MAX_UNACKNOWLEDGED:
        text = f"more than {MAX_UNACKNOWLEDGED} unacknowledged messages on one channel"
        raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
    channel.begin_get(queue, no_ack=values["no_ack"])


def _purge(channel: Channel, values: _Values, _payload: bytes) -> None:
    queue = channel.find_queue(values["queue"], Action.PURGE)
    if isinstance(queue, Stream):
        channel.broker.authorization.check(channel.connection, Action.PURGE, ObjectType.QUEUE, queue.name)
        text = f"queue.purge not supported by stream '{queue.name}' in vhost '{channel.vhost}'"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    connection, wants_answer = channel.connection, not values["nowait"]
    connection.pause()

    def done(count: int, error: Exception | None) -> None:
        if error is not None:
            connection.fail(channel, error)
        elif channel.is_open and wants_answer:
            channel.send("queue.purge-ok", message_count=count)
        connection.unpause()

    try:
        work = purge(channel.broker, channel.connection, queue, done)
    except ModelError:
        connection.unpause()
        raise
    if work is not None:
        channel.do_in_turns(work)


# ---- settlement ----


def _nack(channel: Channel, values: _Values, _payload: bytes) -> None:
    refuse(channel, values["delivery_tag"], multiple=values["multiple"], requeue=values["requeue"])


def _reject(channel: Channel, values: _Values, _payload: bytes) -> None:
    refuse(channel, values["delivery_tag"], multiple=False, requeue=values["requeue"])


def _recover(channel: Channel, values: _Values, _payload: bytes) -> None:
    _recover_async(channel, values, _payload)
    channel.broker.tick.turns.after(channel, partial(_recovered, channel))


def _recovered(channel: Channel) -> None:
    if channel.is_open:
        channel.send("basic.recover-ok")


def _recover_async(channel: Channel, values: _Values, _payload: bytes) -> None:
    if not values["requeue"] and not channel.connection.version.is_older:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "basic.recover with requeue=false is not implemented")
    recover(channel)


# ---- confirms and transactions ----


def _select_confirms(channel: Channel, values: _Values, _payload: bytes) -> None:
    if channel.transaction is not None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number)
    if not values["nowait"]:
        channel.send("confirm.select-ok")


def _select_transaction(channel: Channel, _values: _Values, _payload: bytes) -> None:
    if channel.confirms is not None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        begin_transaction(channel)
    channel.send("tx.select-ok")


def _commit(channel: Channel, _values: _Values, _payload: bytes) -> None:
    _check_transactional(channel)
    commit(channel)


def _rollback(channel: Channel, _values: _Values, _payload: bytes) -> None:
    _check_transactional(channel)
    roll_back(channel)


def _check_transactional(channel: Channel) -> None:
    if channel.transaction is None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")


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
    if not values["passive"] and not is_type(type_name):
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"invalid exchange type '{type_name}'")
    work = channel.virtual_host.topology.declare_exchange(
        name,
        "" if values["passive"] else type_name,
        passive=values["passive"],
        durable=values["durable"],
        auto_delete=values["auto_delete"],
        internal=values["internal"],
        alternate="" if values["passive"] else alternate_of(arguments),
        arguments=with_exchange_name(arguments, ALTERNATE),
        caller=channel.connection,
        is_exact=not channel.connection.version.is_older,
    )
    _run(channel, _ignoring_result(work), "exchange.declare-ok", values, payload)


async def _ignoring_result(work: Coroutine[Any, Any, Any]) -> None:
    await work


def _delete_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    name = exchange_name(values["exchange"])
    if not name:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    work = channel.virtual_host.topology.delete_exchange(
        name, if_unused=values["if_unused"], is_awaited=True, caller=channel.connection
    )
    _run(channel, _idempotent(channel, work), "exchange.delete-ok", values, payload)


def _idempotent(channel: Channel, work: _Work) -> _Work:
    """Work that succeeds on something that does not exist, unless the client's version of AMQP has it fail."""
    return work if channel.connection.version.is_older else _unless_gone(work)


async def _unless_gone(work: _Work) -> None:
    """Await work that succeeds without effect on something that does not exist."""
    try:
        await work
    except NotFoundError:
        return


# ---- queues ----


def _declare_queue(channel: Channel, values: _Values, payload: bytes) -> None:
    name, passive = values["queue"], values["passive"]
    if name.startswith(REPLY_TO) and name not in channel.virtual_host.queues:  # one of a client of AMQP 1.0 is there
        _declare_replies(channel, name, nowait=values["nowait"])
        return
    is_server_named = not name and not passive
    if is_server_named:
        name = SERVER_NAMED + secrets.token_urlsafe(16)
    else:
        is_exact = not passive and not channel.connection.version.is_older
        _check_access(channel, name, exclusive=values["exclusive"] if is_exact else None)
    arguments = values["arguments"] if passive else queue_arguments(values["arguments"])
    found: list[tuple[int, int]] = []

    async def declare() -> None:
        connection = channel.connection
        queue = await channel.virtual_host.topology.declare_queue(
            name,
            passive=passive,
            durable=values["durable"] and not values["exclusive"],
            exclusive=values["exclusive"] and not passive,
            auto_delete=values["auto_delete"],
            arguments=arguments,
            caller=connection,
            is_exact=not connection.version.is_older,
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
        raise missing("queue", name, channel.vhost)
    queue = channel.virtual_host.queues.get(name)
    if queue is None:
        return
    is_owned = queue.owner is not None
    if queue.owner not in (None, channel.connection) or exclusive not in (None, is_owned):
        channel.broker.authorization.check(channel.connection, Action.ACCESS, ObjectType.QUEUE, name)
        raise locked(name, channel.vhost)


def _declare_replies(channel: Channel, name: str, *, nowait: bool) -> None:
    """Declare a reply queue, passively: it can only be checked for existence."""
    if not channel.virtual_host.replies.has(name):
        raise missing("queue", name, channel.vhost)
    if not nowait:
        channel.send("queue.declare-ok", queue=name, message_count=0, consumer_count=1)


def _delete_queue(channel: Channel, values: _Values, payload: bytes) -> None:
    name, topology = channel.queue_name(values["queue"]), channel.virtual_host.topology
    queue = channel.virtual_host.queues.get(name)
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

    channel.run(_idempotent(channel, work), reply, payload)


# ---- bindings ----


def _bound(channel: Channel, values: _Values) -> tuple[str, str, str, TypedMap, str]:
    """Queue, exchange, key, arguments and given key of a binding. Raises SoftError."""
    given, key = values["queue"], values["routing_key"]
    name = channel.queue_name(given)
    if not values["exchange"]:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    host = channel.virtual_host
    exchange, queue = host.exchanges.get(exchange_name(values["exchange"])), host.queues.get(name)
    key = key if given or key else name
    if not isinstance(exchange, HeadersExchange):
        return name, exchange_name(values["exchange"]), key, values["arguments"], key
    arguments = binding_arguments(exchange.routing_type, values["arguments"])
    own_key = key if queue is None else headers_key(exchange, queue, key, arguments)
    return name, exchange.name, own_key, arguments, key


def _bind(channel: Channel, values: _Values, payload: bytes) -> None:
    _run(channel, _bind_in_turn(channel, values, _bound(channel, values)), "queue.bind-ok", values, payload)


async def _bind_in_turn(channel: Channel, values: _Values, bound: tuple[str, str, str, TypedMap, str]) -> None:
    """Bind a queue after all changes that were under way."""
    bind = partial(channel.virtual_host.topology.bind, caller=channel.connection, asked_key=bound[-1])
    try:
        await bind(*bound[:-1])
    except NotAllowedError:  # one of them has taken the key, with other arguments
        again = _bound(channel, values)
        if again == bound:
            raise
        await bind(*again[:-1])


def _unbind(channel: Channel, values: _Values, payload: bytes) -> None:
    queue, name, key, _, given = _bound(channel, values)
    work = channel.virtual_host.topology.unbind(queue, name, key, caller=channel.connection, asked_key=given)
    _run(channel, _idempotent(channel, _ignoring_result(work)), "queue.unbind-ok", values, payload)


def _ends(channel: Channel, values: _Values) -> tuple[str, str, str, TypedMap]:
    """Source, destination, key and arguments of a binding between exchanges. Raises SoftError."""
    source, destination = exchange_name(values["source"]), exchange_name(values["destination"])
    if not source or not destination:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    exchange = channel.virtual_host.exchanges.get(source)
    arguments = binding_arguments("" if exchange is None else exchange.routing_type, values["arguments"])
    return source, destination, values["routing_key"], arguments


def _bind_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    work = channel.virtual_host.exchange_bindings.bind(*_ends(channel, values), caller=channel.connection)
    _run(channel, _ignoring_result(work), "exchange.bind-ok", values, payload)


def _unbind_exchange(channel: Channel, values: _Values, payload: bytes) -> None:
    work = channel.virtual_host.exchange_bindings.unbind(*_ends(channel, values), caller=channel.connection)
    _run(channel, _unless_gone(work), "exchange.unbind-ok", values, payload)


# ---- access, of AMQP 0-8 and 0-9 ----


def _grant(channel: Channel, _values: _Values, _payload: bytes) -> None:
    """Grant access to a realm: what is permitted is decided at each operation, whatever its ticket."""
    channel.send("access.request-ok", ticket=_TICKET)


#: Method -> function, of all but basic.publish and basic.ack.
METHODS: Final[dict[str, Callable[[Channel, _Values, bytes], None]]] = {
    "access.request": _grant,
    "channel.open": _open,
    "channel.close": _close,
    "channel.close-ok": _close_ok,
    "channel.flow": _flow,
    "channel.flow-ok": _close_ok,
    "basic.qos": _qos,
    "basic.consume": _consume,
    "basic.cancel": _cancel,
    "basic.cancel-ok": _cancel_ok,
    "basic.get": _get,
    "basic.nack": _nack,
    "basic.reject": _reject,
    "basic.recover": _recover,
    "basic.recover-async": _recover_async,
    "queue.purge": _purge,
    "confirm.select": _select_confirms,
    "tx.select": _select_transaction,
    "tx.commit": _commit,
    "tx.rollback": _rollback,
    "exchange.declare": _declare_exchange,
    "exchange.delete": _delete_exchange,
    "exchange.bind": _bind_exchange,
    "exchange.unbind": _unbind_exchange,
    "queue.declare": _declare_queue,
    "queue.delete": _delete_queue,
    "queue.bind": _bind,
    "queue.unbind": _unbind,
}
_MISSING: Final = frozenset(("exchange.bound",))


def do_method(channel: Channel, payload: bytes) -> None:
    """Execute a method.

    Raises:
        Amqp091Error: it cannot be decoded.
        CodedError, ModelError: it has failed.
    """
    if payload[:4] == ACK:
        tag, multiple = decode_ack(payload)
        acknowledge(channel, tag, multiple=multiple)
        return
    method, values = decode_method(payload, channel.connection.version)
    if method.name in _MISSING:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, f"{method.name} is not implemented")
    do = METHODS.get(method.name)
    if do is None:
        raise HardError(ReplyCode.COMMAND_INVALID, f"{method.name} is unexpected from a client")
    do(channel, values, payload)
