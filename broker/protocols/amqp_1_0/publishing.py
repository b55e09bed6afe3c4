"""Decodes the messages that are published over one connection, and publishes them.

    queue                   the message goes to the queue, through the default exchange
    exchange, with a key    it is routed with this key
    exchange                with its subject
    no address              with the address in its field `to` (anonymous terminus)

A message with a delivery time in the future waits for it (`model/schedule`), and has the outcome `accepted` when it is
stored there.

A message that no queue takes has the outcome `released` if its address is in RabbitMQ's form, as there; else it is
dropped and `accepted`, as in qpidd. One that is refused has the outcome `rejected` with the error; one that its user
may not publish ends the link with `amqp:unauthorized-access`, as in qpidd. A sender that has settled its message learns
nothing of the outcome, but an error other than a full queue ends its link.

Source: AMQP 1.0, part "messaging", section 3.2 and 3.4; docs/amqp-1.0.txt of Qpid C++; RabbitMQ, "AMQP 1.0".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.message import Content, Handling, Message
from qstore.broker.model.run import MessageRun
from qstore.broker.protocols.amqp_1_0.addresses import Node, NodeKind, check_access, target_of
from qstore.broker.protocols.amqp_1_0.message import (
    DELIVERY,
    NO_HEADER,
    HeaderFields,
    SectionMessage,
    delivery_time,
    expiry_of,
    fields_of,
    is_one_section,
    split_message,
    subject_key,
)
from qstore.broker.protocols.publishing import PublishChecks
from qstore.formats.amqp_1_0.composites import section_list
from qstore.formats.amqp_1_0.sections import NO_SECTIONS, Sections, has_too_many_values
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.broker_records.amqp_1_0_messages import encode_routed
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies
from qstore.formats.values import MAX_VALUES

if TYPE_CHECKING:
    from qstore.broker.model.transactions.local import LocalTransaction
    from qstore.broker.protocols.amqp_1_0.session import Session

_REMEMBERED: Final = 1024
ACCEPTED: Final = "accepted"
RELEASED: Final = "released"


class Publishing(PublishChecks):
    """Decodes the messages of one connection.

    Args:
        publisher: identifies it.
        checks_user_ids, checks_publish: as in `PublishChecks`.

    Attributes:
        publisher: as above.
    """

    __slots__ = ("_fields", "_handlings", "_header", "_routed", "_sections", "publisher")

    def __init__(self, publisher: object, *, checks_user_ids: bool, checks_publish: bool) -> None:
        super().__init__(checks_user_ids=checks_user_ids, checks_publish=checks_publish)
        self.publisher = publisher
        self._handlings: dict[int, Handling] = {}
        self._routed: dict[tuple[str, str], bytes] = {}
        self._header = b""  # of the last message that does not expire at a time of its own; empty for none
        self._sections, self._fields = NO_SECTIONS, NO_HEADER

    def user_id_of(self, message: Message) -> str | None:
        """As `PublishChecks.user_id_of`. Raises Amqp10Error: its properties cannot be decoded."""
        assert isinstance(message, SectionMessage)
        begin, end = message.sections.properties
        if not end:
            return None
        user_id: bytes | None = section_list("properties", message.header, begin, end).get("user_id")
        return None if not user_id else user_id.decode("utf-8", "replace")

    def foreign_user_id(self, user_id: str, user: str) -> Exception:
        """As `PublishChecks.foreign_user_id`."""
        return NotAllowedError(f"the message's user-id {user_id!a:.64} is not that of the connection, {user!a:.64}")

    def read(self, content: Content, clock: Callable[[], float]) -> SectionMessage:
        """A message as it was received; it is not addressed yet.

        Raises:
            Amqp10Error: it cannot be decoded.
            InvalidArgumentError: it has too many properties.
        """
        header = self._header
        if (
            header
            and isinstance(content, bytes)
            and content.startswith(header)
            and is_one_section(content, len(header))
        ):
            return self._message(header, content[len(header) :], self._sections, self._fields, 0.0, clock)
        header, body, sections = split_message(content)
        fields = fields_of(header, sections)
        if len(header) > MAX_VALUES and has_too_many_values(header, 0, len(header)):
            raise InvalidArgumentError(f"the message has more than {MAX_VALUES:,} properties, or values in them")
        expiry = expiry_of(header, sections)
        if not expiry:
            self._header, self._sections, self._fields = header, sections, fields
        return self._message(header, body, sections, fields, expiry, clock)

    def _message(
        self,
        header: bytes,
        body: Content,
        sections: Sections,
        fields: HeaderFields,
        expiry: float,
        clock: Callable[[], float],
    ) -> SectionMessage:
        handling = self._handlings.get(fields.priority)
        if handling is None:
            handling = Handling(publisher=self.publisher, priority=fields.priority)
            self._handlings[fields.priority] = handling
        expires_at = _end(fields, expiry, clock)
        return SectionMessage(header, body, sections, "", "", b"", fields, handling, expires_at)

    def template(self, data: bytes, begin: int, end: int) -> SectionMessage | None:
        """The last message but for its body, if another has the same sections before one of bytes or text; else None.

        It is not addressed yet.

        Args:
            data: has the message.
            begin: where it begins.
            end: where it ends.
        """
        header = self._header
        if not header or self._fields.ttl or not data.startswith(header, begin):
            return None
        if DELIVERY in header or not is_one_section(data[begin:end], len(header)):
            return None
        return self._message(header, b"", self._sections, self._fields, 0.0, _no_time)

    def address(self, message: SectionMessage, exchange: str, routing_key: str) -> None:
        """Set where a message that was just read is published to. Raises InvalidArgumentError."""
        routed = self._routed.get((exchange, routing_key))
        if routed is None:
            try:
                routed = encode_routed(exchange, routing_key)
            except BrokerRecordError as error:
                raise InvalidArgumentError(error.what) from error
            if len(self._routed) >= _REMEMBERED:
                self._routed.clear()
            self._routed[exchange, routing_key] = routed
        message.exchange, message.routing_key, message.routed = exchange, routing_key, routed


def _no_time() -> float:
    """The clock for a message without a ttl."""
    return 0.0


def _end(fields: HeaderFields, expiry: float, clock: Callable[[], float]) -> float:
    """When a message expires; 0.0 for never. A ttl of 0 is none, as in qpidd."""
    if not fields.ttl:
        return expiry
    end = clock() + fields.ttl / 1000
    return min(end, expiry) if expiry else end


def publish_run(session: Session, node: Node, template: SectionMessage, bodies: Bodies) -> int:
    """Publish messages of one link that differ only in their bodies, all of one size.

    Args:
        session: the session.
        node: the target of the link.
        template: has all that they have in common (`Publishing.template`).
        bodies: their bodies.

    Returns:
        How many were published; if it is 0, the first must be published by itself.
    """
    broker, publishing = session.broker, session.connection.publishing
    if node.kind is NodeKind.QUEUE:
        publishing.address(template, "", node.name)
    elif node.key is not None:
        publishing.address(template, node.name, node.key)
    else:
        publishing.address(template, node.name, subject_key(template))
    exchange = session.virtual_host.exchanges.get(template.exchange)
    if exchange is None or exchange.is_internal or (publishing.has_rare and not publishing.covers(template)):
        return 0
    return broker.router.publish_run(MessageRun(template, bodies, None, len(template.header)), exchange)


def publish(
    session: Session, node: Node | None, content: Content, number: int, transaction: LocalTransaction | None
) -> str:
    """Publish a message.

    Args:
        session: the session.
        node: the target of its link; None if each message has its own.
        content: the message.
        number: its number in the session.
        transaction: the one that it is part of; None for none.

    Returns:
        Its outcome, unless its completion fails.

    Raises:
        Amqp10Error: it cannot be decoded.
        ModelError: it is refused.
    """
    broker, connection, host = session.broker, session.connection, session.virtual_host
    publishing, router = connection.publishing, broker.router
    message = publishing.read(content, broker.clock)
    if node is None:
        node = _node_of(session, message)
    if node.kind is NodeKind.QUEUE:
        publishing.address(message, "", node.name)
    elif node.key is not None:
        publishing.address(message, node.name, node.key)
    else:
        publishing.address(message, node.name, subject_key(message))
    exchange = host.exchanges.get(message.exchange)
    if exchange is None:
        raise NotFoundError(f'there is no exchange "{message.exchange}"', kind="exchange", name=message.exchange)
    if exchange.is_internal:
        raise UnauthorizedError(f'exchange "{exchange.name}" is internal')
    if publishing.has_rare:
        if session.rate is not None:
            session.rate.take(1, session.connection)
        publishing.check(message, exchange, broker, connection, in_transaction=transaction is not None)
    outcome = ACCEPTED
    due = delivery_time(message, broker.clock()) if message.sections.annotations[1] else 0.0
    if due and (exchange.receiver is None or exchange.receiver is host.schedule):
        _schedule(session, message, due, number, transaction)
        return outcome
    if transaction is not None:
        route = router.route(message, exchange)
        transaction.publish_to(message, exchange, route)
        return outcome if route.queues or not node.is_strict or exchange.receiver is not None else RELEASED
    if not node.is_strict or (exchange.receiver is not None and exchange.receiver.takes(message)):
        is_waiting = router.publish(message, exchange)
    else:
        route = router.route(message, exchange)
        if not route.queues:
            outcome = RELEASED
        is_waiting = router.publish_to(message, exchange, route)
    if is_waiting:
        session.hold(number, is_stored=message.is_persistent)
    return outcome


def _schedule(
    session: Session, message: SectionMessage, due: float, number: int, transaction: LocalTransaction | None
) -> None:
    """Have a message delivered later; the arguments are those of `publish`. Raises ModelError: it is refused."""
    host, router = session.virtual_host, session.broker.router
    schedule, default = host.schedule, host.exchanges[""]
    if schedule.queue is None:
        raise ResourceLimitExceededError("the message has too many annotations before that of its delivery time")
    waiting = schedule.waiting(message, due, message.expires_at)
    if transaction is not None:
        transaction.publish_to(waiting, default, schedule)
    elif router.publish_to(waiting, default, schedule):
        session.hold(number, is_stored=message.is_persistent)


def _node_of(session: Session, message: SectionMessage) -> Node:
    """The node in the field `to` of a message. Raises ModelError."""
    to = message.section_properties().get("to")
    address = to.value if isinstance(to, Value) and isinstance(to.value, str) else ""
    if not address:
        raise InvalidArgumentError("a message for an anonymous terminus has no address in its field to")
    node = target_of(session.virtual_host, address)
    if node is None:
        check_access(session, address)
        raise NotFoundError(f'there is no queue or exchange "{address[:256]}"')
    return node
