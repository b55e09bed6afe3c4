"""Publishes a message that a channel has received.

    mandatory    a message for which there is no queue is returned: 312 no-route
    immediate    is not implemented, as in RabbitMQ: it closes the connection (540)
    confirm      the message is numbered, and confirmed when it is done (`confirms`); refused if a queue has no room
    transaction  it is published at commit, and returned then

Without confirms, a message that a queue has no room for closes the channel: 311 content-too-large; unless the queue was
declared with x-overflow, then it is dropped. So does one that takes too many steps to route: 406 precondition-failed.
If it is put on a queue that flow control has stopped, the client is not read until the queue has drained; unless the
connection has consumers, whose acknowledgements may be what drains the queue.

Source: AMQP 0-9-1, basic.publish and its constants; RabbitMQ, "Publishers".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.content import Content
from qstore.broker.model.errors import QueueOverflowError, ResourceLimitExceededError, RoutingLimitError
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.copied_message import CopiedMessage
from qstore.broker.protocols.amqp_0_9_1.errors import SoftError
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing, Target
from qstore.broker.protocols.amqp_0_9_1.reply_codes import missing
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import user_id_of

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange


def publish(channel: Channel, payload: bytes, header: bytes, body: Content) -> None:
    """Publish a message.

    Args:
        channel: the channel; it is open.
        payload: its basic.publish.
        header: its content header, whose fixed part was checked.
        body: its body.

    Raises:
        SoftError, ModelError: it is not accepted, and the channel must be closed.
        HardError: it is `immediate`.
        Amqp091Error: its basic.publish or its header cannot be decoded.
    """
    broker = channel.broker
    publishing = channel.connection.publishing
    target = publishing.targets.get(payload)
    if target is None:
        target = publishing.read_target(payload)
    exchange = broker.exchanges.get(target.exchange)
    if exchange is None:
        raise missing("exchange", target.named)
    if exchange.is_internal:
        text = f"cannot publish to internal exchange '{target.named}' in vhost '/'"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text)
    message = publishing.read(target, header, body, broker.clock, channel.reply_to)
    if publishing.has_rare:
        _check(channel, publishing, message, exchange)
    confirms = channel.confirms
    number = 0
    if confirms is not None:
        number = confirms.published = confirms.published + 1
        broker.tick.workers[channel] = None
    elif channel.transaction is not None:
        _publish_at_commit(channel, target, message, exchange)
        return
    _publish_now(channel, target, message, exchange, number)


def _publish_now(channel: Channel, target: Target, message: BasicMessage, exchange: Exchange, number: int) -> None:
    confirms, router = channel.confirms, channel.broker.router
    try:
        if target.is_mandatory or isinstance(message, CopiedMessage):
            is_waiting = _publish_or_return(channel, target, message, exchange)
        else:
            is_waiting = router.publish(message, exchange)
    except ResourceLimitExceededError as error:
        if confirms is None:
            if isinstance(error, QueueOverflowError):
                return
            if isinstance(error, RoutingLimitError):
                raise
            raise SoftError(ReplyCode.CONTENT_TOO_LARGE, str(error)) from error
        confirms.refuse(number)
        return
    if not is_waiting:
        return
    if confirms is not None:
        if router.stops:
            channel.hold(number, is_stored=message.is_persistent)
        else:
            confirms.ledger.hold(number)
    elif router.stops:
        if channel.connection.has_consumers:
            router.stops.clear()
        else:
            channel.hold_input()


def _publish_or_return(channel: Channel, target: Target, message: BasicMessage, exchange: Exchange) -> bool:
    router = channel.broker.router
    if exchange.receiver is not None and exchange.receiver.takes(message):
        return router.publish(message, exchange)
    route = router.route(message, exchange)
    if not route.queues and target.is_mandatory:
        channel.send_content(_return(target), message)
    return router.publish_to(message, exchange, route)


def _publish_at_commit(channel: Channel, target: Target, message: BasicMessage, exchange: Exchange) -> None:
    router, transaction = channel.broker.router, channel.transaction
    assert transaction is not None
    if not target.is_mandatory:
        transaction.publish(message, exchange)
        return
    route = router.route(message, exchange)
    if not route.queues:
        channel.returns.append((_return(target), message))
    transaction.publish_to(message, exchange, route)


def _return(target: Target) -> bytes:
    """The basic.return of a message without a queue."""
    return encode_method(
        "basic.return",
        reply_code=ReplyCode.NO_ROUTE,
        reply_text="NO_ROUTE",
        exchange=target.named,
        routing_key=target.routing_key,
    )


def _check(channel: Channel, publishing: Publishing, message: BasicMessage, exchange: Exchange) -> None:
    """The rare checks of a message. Raises SoftError or UnauthorizedError."""
    broker, connection = channel.broker, channel.connection
    if publishing.is_memory_short:
        publishing.has_published = True
        broker.check_memory(message, exchange, in_transaction=channel.transaction is not None)
    if publishing.checks_user_ids:
        user_id = user_id_of(message.header)
        if user_id and user_id not in (connection.user, connection.user.rpartition("@")[0]):
            text = f"user_id property set to '{user_id}' but authenticated user was '{connection.user}'"
            raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
    if publishing.checks_publish:
        further = message.keys if isinstance(message, CopiedMessage) else ()
        for key in (message.routing_key, *further):
            place = message.exchange, key
            if place not in publishing.allowed and broker.authorization.check_publish(connection, *place):
                publishing.allow(place)
