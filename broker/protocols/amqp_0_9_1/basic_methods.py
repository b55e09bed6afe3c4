"""The methods of classes channel, basic, confirm and tx from a client, except basic.publish and basic.ack.

Source: AMQP 0-9-1, these classes; RabbitMQ, "Consumer Prefetch", "Consumers" and "Channels" (codes of misuse).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from qstore.broker.model.arguments import AMQP_0_9_1
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import ModelError, ResourceLockedError
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.replies import REPLY_TO
from qstore.broker.model.settlement import purge, subscribe
from qstore.broker.protocols.amqp_0_9_1.acknowledgements import begin_transaction, commit, recover, refuse, roll_back
from qstore.broker.protocols.amqp_0_9_1.arguments import check_consumer_arguments
from qstore.broker.protocols.amqp_0_9_1.channel import MAX_CONSUMERS, MAX_UNACKNOWLEDGED, Channel
from qstore.broker.protocols.amqp_0_9_1.confirms import Confirms
from qstore.broker.protocols.amqp_0_9_1.consumer import BasicConsumer
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError
from qstore.formats.amqp_0_9_1.codes import ReplyCode

_Values = dict[str, Any]

_MANY_CONSUMERS: Final = 100

# ---- channel ----


def _open(channel: Channel, _values: _Values, _payload: bytes) -> None:
    raise HardError(ReplyCode.CHANNEL_ERROR, f"channel {channel.number} is open already")


def _close(channel: Channel, _values: _Values, _payload: bytes) -> None:
    channel.connection.channel_closed(channel)


def _close_ok(_channel: Channel, _values: _Values, _payload: bytes) -> None:
    """Ignore the answer to nothing."""


def _flow(channel: Channel, values: _Values, payload: bytes) -> None:
    is_active = channel.is_flowing = values["active"]
    channel.wake_all()
    _answer_in_turn(channel, partial(channel.send, "channel.flow-ok", active=is_active), payload)


# ---- consumers ----


def _qos(channel: Channel, values: _Values, payload: bytes) -> None:
    if values["prefetch_size"]:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is not implemented; prefetch_count is")
    count = values["prefetch_count"]
    if values["global"]:
        channel.set_limit(count)
    else:
        channel.prefetch = count
        if channel.connection.adjusts_consumers:
            channel.adjust_consumers(count)
    _answer_in_turn(channel, partial(channel.send, "basic.qos-ok"), payload)


def _answer_in_turn(channel: Channel, answer: Callable[[], None], payload: bytes) -> None:
    """Answer a method that has touched all consumers of the channel.

    With many of them that takes a millisecond or two, and the client may have sent a hundred such methods at once: the
    next one is read when other connections have had their turn.
    """
    if len(channel.consumers) <= _MANY_CONSUMERS:
        answer()
    else:
        channel.run(_in_next_turn(), answer, payload)


async def _in_next_turn() -> None:
    """Done as soon as it is run, which is in the next turn of the event loop."""


def _consume(channel: Channel, values: _Values, _payload: bytes) -> None:
    tag = values["consumer_tag"] or f"amq.ctag-{secrets.token_urlsafe(16)}"
    wants_replies = values["queue"] == REPLY_TO
    if not wants_replies:
        queue = channel.find_queue(values["queue"], Action.CONSUME)
    check_consumer_arguments(values["arguments"])
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
    consumer = BasicConsumer(
        channel, tag, queue, no_ack=values["no_ack"], no_local=values["no_local"],
        limit=channel.prefetch or MAX_UNACKNOWLEDGED, arguments=arguments,
    )  # fmt: skip
    try:
        subscribe(
            channel.broker, channel, queue, consumer, tag,
            exclusive=exclusive, arguments=arguments, protocol=AMQP_0_9_1,
        )  # fmt: skip
    except ResourceLockedError as error:
        text = f"queue '{queue.name}' in vhost '/' in exclusive use: {error}"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text) from error
    return consumer


def _replies_consumer(channel: Channel, tag: str, *, no_ack: bool) -> BasicConsumer:
    """The consumer of direct replies."""
    broker = channel.broker
    broker.authorization.check(channel.connection, Action.CONSUME, ObjectType.QUEUE, REPLY_TO)
    if not no_ack:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_to:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    queue = broker.replies.open()
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
    if queue.is_browse_only:
        raise SoftError(ReplyCode.ACCESS_REFUSED, f"queue '{queue.name}' has only browsers")
    if len(channel.unsettled) >= MAX_UNACKNOWLEDGED:
        text = f"more than {MAX_UNACKNOWLEDGED} unacknowledged messages on one channel"
        raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
    channel.begin_get(queue, no_ack=values["no_ack"])


def _purge(channel: Channel, values: _Values, _payload: bytes) -> None:
    queue = channel.find_queue(values["queue"], Action.PURGE)
    connection, is_told = channel.connection, not values["nowait"]
    connection.pause()

    def done(count: int, error: Exception | None) -> None:
        if error is not None:
            connection.fail(channel, error)
        elif channel.is_open and is_told:
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
    if not values["requeue"]:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "basic.recover with requeue=false is not implemented")
    recover(channel)


# ---- confirms and transactions ----


def _select_confirms(channel: Channel, values: _Values, _payload: bytes) -> None:
    if channel.transaction is not None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms()
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


#: Method -> function.
BASIC_METHODS: Final[dict[str, Callable[[Channel, _Values, bytes], None]]] = {
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
}
