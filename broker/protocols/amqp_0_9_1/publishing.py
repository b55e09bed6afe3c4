"""Decodes the messages that are published over one connection, and publishes them.

Most messages of a publisher go to the same exchange with the same routing key: basic.publish is decoded once, and
cached by its bytes. Messages with the content header of the previous message share its stored form.

    mandatory    a message without a matching queue is returned: 312 no-route
    immediate    is not implemented, as in RabbitMQ: it closes the connection (540)
    confirm      the message is numbered, and confirmed when it is done (`acknowledgements`); refused if a queue is full
    transaction  it is published at commit, and returned then

Without confirms, a message for which a queue has no room closes the channel with 311 content-too-large; if the queue
was declared with x-overflow, the message is dropped instead. One that takes too many steps to route closes it with 406
precondition-failed. After a message for a queue that flow control has stopped, the client is not read until the queue
has drained, unless the connection has consumers, whose acknowledgements may drain the queue.

Source: AMQP 0-9-1, basic.publish and its constants; RabbitMQ, "Publishers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.message import Content, Handling, Message
from qstore.broker.model.queues.expiry import NO_TIME, NO_TIME_STORED
from qstore.broker.model.run import MessageRun
from qstore.broker.protocols.amqp_0_9_1.arguments import exchange_name
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, SoftError, missing, refusal_of
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, CopiedMessage, handling_priority, with_keys
from qstore.broker.protocols.message import SharedHead
from qstore.broker.protocols.publishing import PublishChecks
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.methods import decode_publish, encode_method
from qstore.formats.amqp_0_9_1.properties import (
    decode_header,
    encode_header,
    has_too_many_headers,
    read_handling,
    user_id_of,
    with_reply_to,
)
from qstore.formats.broker_records.amqp_0_9_1_messages import milliseconds
from qstore.formats.kernels.bodies import Bodies, SizeField, are_equal_but
from qstore.formats.values import MAX_VALUES

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.protocols.amqp_0_9_1.channel import Channel


_REMEMBERED: Final = 2048
_ROUTED_AT: Final = 6  # in basic.publish: class, method, ticket


class Target:
    """Where basic.publish sends a message.

    Attributes:
        exchange: the exchange.
        named, routing_key: its name and the routing key, as sent.
        routed: both, encoded as in basic.deliver.
        is_mandatory: as sent.
    """

    __slots__ = ("exchange", "is_mandatory", "named", "routed", "routing_key")

    def __init__(self, payload: bytes) -> None:
        given = decode_publish(payload)
        if given.is_immediate:
            raise HardError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        self.named, self.routing_key = given.exchange, given.routing_key
        self.exchange = exchange_name(given.exchange)
        self.is_mandatory = given.is_mandatory
        self.routed = payload[_ROUTED_AT:-1]


class Publishing(PublishChecks):
    """The messages of one connection.

    Args:
        publisher: identifies the connection as their publisher.
        checks_user_ids, checks_publish: as in `PublishChecks`.

    Attributes:
        publisher: as above.
        targets: a cache: payload of basic.publish -> target.
        has_timestamps: whether messages without a timestamp get their time of arrival.
    """

    __slots__ = ("_handlings", "_last", "_last_header", "_last_target", "has_timestamps", "publisher", "targets")

    def __init__(self, publisher: object, *, checks_user_ids: bool, checks_publish: bool) -> None:
        super().__init__(checks_user_ids=checks_user_ids, checks_publish=checks_publish)
        self.publisher = publisher
        self.targets: dict[bytes, Target] = {}
        self.has_timestamps = False
        self._handlings: dict[int, Handling] = {}
        self._last_header = b""
        self._last_target: Target | None = None
        self._last: BasicMessage | None = None  # with that header and target; it does not expire

    def user_id_of(self, message: Message) -> str | None:
        """As `PublishChecks.user_id_of`."""
        assert isinstance(message, BasicMessage)
        return user_id_of(message.header)

    def foreign_user_id(self, user_id: str, user: str) -> Exception:
        """As `PublishChecks.foreign_user_id`."""
        text = f"user_id property set to '{user_id}' but authenticated user was '{user}'"
        return SoftError(ReplyCode.PRECONDITION_FAILED, text)

    def stamp(self, *, is_on: bool) -> None:
        """Set whether messages without a timestamp get their time of arrival."""
        self.has_timestamps, self._last = is_on, None

    def read_target(self, payload: bytes) -> Target:
        """The target of a basic.publish that is not in `targets`.

        Raises:
            Amqp091Error: it cannot be decoded.
            HardError: it is `immediate`.
        """
        target = Target(payload)
        if len(self.targets) >= _REMEMBERED:
            self.targets.clear()
        self.targets[payload] = target
        return target

    def read(
        self, target: Target, header: bytes, body: Content, clock: Callable[[], float], reply_to: str = ""
    ) -> BasicMessage:
        """The message with this content header, which `body_size` has checked, and body.

        Args:
            target: the target of its basic.publish.
            header: the content header.
            body: the body.
            clock: returns seconds since 1970.
            reply_to: the name of the channel's reply queue; empty if it has none.

        Raises:
            Amqp091Error: the header is not valid.
            SoftError: its expiration is not valid, it has too many headers, or it requests a direct reply without a
                reply consumer.
            InvalidArgumentError: its header CC or BCC is not valid.
        """
        last = self._last
        if last is not None and target is self._last_target and header == self._last_header:
            head = last.head
            if head is None:
                head = last.head = SharedHead()
            return BasicMessage(
                last.header, body, last.exchange, last.routing_key, last.routed, last.is_persistent, last.handling,
                0.0, head,
            )  # fmt: skip
        if len(header) > MAX_VALUES and has_too_many_headers(header):
            text = f"invalid message: it has more than {MAX_VALUES:,} headers, or values in them"
            raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
        read = read_handling(header)
        priority = handling_priority(read.priority)
        handling = self._handlings.get(priority)
        if handling is None:
            handling = self._handlings[priority] = Handling(publisher=self.publisher, priority=priority)
        expires_at = 0.0
        if read.expiration is not None:
            expires_at = _end(read.expiration, clock(), is_stored=read.is_persistent)
        kept = _stamped(header, clock()) if self.has_timestamps else header
        if read.wants_direct_reply:
            if not reply_to:
                raise SoftError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
            kept = with_reply_to(kept, reply_to)
        message = BasicMessage(
            kept, body, target.exchange, target.routing_key, target.routed, read.is_persistent, handling, expires_at
        )
        if b"CC" in kept:
            message = with_keys(message)
            if isinstance(message, CopiedMessage):
                return message
        if not expires_at and not self.has_timestamps and not read.wants_direct_reply:
            self._last, self._last_target, self._last_header = _without_body(message), target, header
        return message

    def is_last(self, target: Target, header: bytes) -> bool:
        """Whether the last message that `template` knows had this target and content header."""
        return target is self._last_target and header == self._last_header

    def template(self, target: Target, header: bytes, field: SizeField | None) -> BasicMessage | None:
        """The last message without its body, if it had this target and content header; else None.

        The headers may differ in `field`.
        """
        if self._last is None or target is not self._last_target:
            return None
        return self._last if are_equal_but(field, header, self._last_header) else None

    def base_of(self, header: bytes, field: SizeField) -> BasicMessage | None:
        """As `template`, whatever the target of the last message was."""
        last = self._last
        return None if last is None or b"CC" in header or not are_equal_but(field, header, self._last_header) else last


def _without_body(message: BasicMessage) -> BasicMessage:
    """A copy to compare the next messages with, which does not keep the body in memory."""
    return BasicMessage(
        message.header, b"", message.exchange, message.routing_key, message.routed, message.is_persistent,
        message.handling, 0.0,
    )  # fmt: skip


def _end(expiration: str, now: float, *, is_stored: bool) -> float:
    ttl = milliseconds(expiration)
    if ttl is None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"invalid expiration {expiration[:64]!a}")
    return now + (min(ttl, _MAX_TTL) / 1000 or (NO_TIME_STORED if is_stored else NO_TIME))


_MAX_TTL: Final = 1 << 53  # milliseconds: 285,000 years


def _stamped(header: bytes, now: float) -> bytes:
    """A content header with the time of arrival, unless it has a timestamp."""
    size, properties = decode_header(header)
    if properties.timestamp is not None:
        return header
    return encode_header(size, properties._replace(timestamp=int(now)))


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
    connection = channel.connection
    publishing = connection.publishing
    target = publishing.targets.get(payload)
    if target is None:
        target = publishing.read_target(payload)
    exchange = _exchange_of(channel, target)
    message = publishing.read(target, header, body, connection.clock, channel.reply_to)
    if publishing.has_rare:
        if channel.rate is not None:
            channel.rate.take(1, connection)
        in_transaction = channel.transaction is not None
        publishing.check(message, exchange, channel.broker, connection, in_transaction=in_transaction)
    confirms = channel.confirms
    number = 0
    if confirms is not None:
        number = confirms.published = confirms.published + 1
        connection.tick.workers[channel] = None
    elif channel.transaction is not None:
        _publish_at_commit(channel, target, message, exchange)
        return
    _publish_now(channel, target, message, exchange, number)


def publish_run(channel: Channel, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
    """Publish messages that differ only in their bodies.

    Args:
        channel: the channel; it is open.
        payload: their basic.publish.
        header: the content header of the first.
        bodies: their bodies.
        field: the field in the content header that gives the size of the body.

    Returns:
        How many were published; if it is 0, the first must be published by itself.
    """
    broker, confirms = channel.broker, channel.confirms
    publishing = channel.connection.publishing
    target = publishing.targets.get(payload)
    if target is None or channel.transaction is not None:
        return 0
    if bodies.is_even and publishing.is_last(target, header):
        field = None
    template = publishing.template(target, header, field)
    exchange = channel.virtual_host.exchanges.get(target.exchange)
    if template is None or exchange is None or exchange.is_internal:
        return 0
    if publishing.has_rare and not publishing.covers(template):
        return 0
    if channel.rate is not None:
        limited = channel.rate.limited(bodies)
        if limited is None:
            return 0
        bodies = limited
    run = MessageRun(template, bodies, field, len(header))
    published = broker.router.publish_run(run, exchange)
    if channel.rate is not None and published:
        channel.rate.take(published, channel.connection)
    if confirms is not None and published:
        first = confirms.published + 1
        confirms.published += published
        broker.tick.workers[channel] = None
        if broker.router.is_run_stored:
            confirms.ledger.hold_run(first, confirms.published)
    return published


def publish_numbered(channel: Channel, target: Target, header: bytes, body: bytes, number: int) -> None:
    """As `publish`, of a message outside of a transaction that has a number already; 0 without confirms."""
    broker, publishing = channel.broker, channel.connection.publishing
    exchange = _exchange_of(channel, target)
    message = publishing.read(target, header, body, broker.clock, channel.reply_to)
    if publishing.has_rare:
        publishing.check(message, exchange, broker, channel.connection, in_transaction=False)
    _publish_now(channel, target, message, exchange, number)


def _exchange_of(channel: Channel, target: Target) -> Exchange:
    exchange = channel.virtual_host.exchanges.get(target.exchange)
    if exchange is None:
        raise missing("exchange", target.named, channel.vhost)
    if exchange.is_internal:
        text = f"cannot publish to internal exchange '{target.named}' in vhost '{channel.vhost}'"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text)
    return exchange


def _publish_now(channel: Channel, target: Target, message: BasicMessage, exchange: Exchange, number: int) -> None:
    confirms, router = channel.confirms, channel.connection.router
    try:
        if target.is_mandatory or isinstance(message, CopiedMessage):
            is_waiting = _publish_or_return(channel, target, message, exchange)
        else:
            is_waiting = router.publish(message, exchange)
    except ResourceLimitExceededError as error:
        if channel.connection.publishing.tracer is not None:
            channel.connection.publishing.tracer.refused(message, error)
        if confirms is not None:
            confirms.refuse(number)
            return
        failure = refusal_of(error)
        if failure is not None:
            raise failure from error
        return
    if not is_waiting:
        return
    if router.fanout is not None:
        channel.hold_fanout(number)
    elif confirms is not None:
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
    if not target.is_mandatory or (exchange.receiver is not None and exchange.receiver.takes(message)):
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
