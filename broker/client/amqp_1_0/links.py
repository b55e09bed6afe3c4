"""Senders and receivers over AMQP 1.0: from an address to source and target, their outcomes and credit.

    address                             source or target
    ----------------------------------  ---------------------------------------------------------------------------
    name                                address; `<null>` is a null address: messages have their own (`x-amqp-to`)
    #                                   dynamic: a node that the broker names; it ends with the link, unless
                                        node.properties has a lifetime-policy
    subject                             of a sender: the subject of messages without one; of a receiver: the filter
                                        legacy-amqp-topic-binding, or -direct-binding without * and #
    create                              capability create-on-demand, and dynamic-node-properties
    assert                              what the broker answers has the capabilities, properties and filters asked for
    mode: browse                        distribution mode copy; unreliable unless the address says otherwise
    node.type, durable, capabilities    capabilities; with create also properties (supported-dist-modes, durable)
    node.properties, x-declare          dynamic-node-properties; x-declare's type is exchange-type
    link.name                           name of the link; unique if there is none
    link.durable, timeout               durability and timeout: the subscription stays when the receiver is closed, for
                                        ever (expiry policy `never`) if it is reliable and has no timeout
    link.reliability                    sender settle mode: settled for unreliable and at-most-once
    link.selector, filter               filters

What AMQP 1.0 has no words for is refused: the option delete, x-bindings, x-subscribe and link.x-declare.

**Receivers.** The broker is asked to settle after the receiver (receiver settle mode second): so an acknowledgement is
confirmed, as with 0-10, when it is on its disk. A peer that answers with another mode confirms nothing, except for
RabbitMQ, which refuses that mode and settles all the same. At the end of its timeout a fetch drains the link. Messages
that were fetched and not acknowledged return to their queue when their receiver is closed.

Source: docs/amqp-1.0.txt of Qpid C++, and what its AddressHelper does; AMQP 1.0, part "messaging", section 3.5.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.client.address import (
    RECEIVER,
    SENDER,
    Filter,
    Target,
    address_target,
    make_unique,
    parse_address,
    warn_of_idle,
)
from qstore.broker.client.amqp_1_0.message import decode_sections, encode_message
from qstore.broker.client.errors import (
    AddressError,
    AssertionFailed,
    LinkError,
    LinkRedirected,
    MessageRejected,
    MessageReleased,
    MessagingError,
    NotFound,
)
from qstore.broker.client.links import (
    Delivery,
    ReceiverCore,
    SenderCore,
    Transfer,
    ranges_of,
)
from qstore.broker.client.message import Message
from qstore.broker.protocols.amqp_1_0.client_connection import (
    FIRST,
    SECOND,
    SETTLED,
    UNSETTLED,
    ClientLink,
    ReceivingLink,
    SendingLink,
    error_text,
    redirect_of,
)
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import Composite, encode_composite, section_list
from qstore.formats.amqp_1_0.neutral import value_of
from qstore.formats.amqp_1_0.values import Amqp10Error, Described, Value
from qstore.formats.errors import FormatError
from qstore.formats.values import typed_value

if TYPE_CHECKING:
    from qstore.broker.client.amqp_1_0.session import Session
    from qstore.broker.model.message import Content

_RABBITMQ: Final = "RabbitMQ"
_NULL: Final = "<null>"
_DYNAMIC: Final = "#"
_CREATE: Final = "create-on-demand"
_DIST_MODES: Final = "supported-dist-modes"
_LIFETIME: Final = "lifetime-policy"
_LIFETIMES: Final = {
    "delete-on-close": "delete-on-close",
    "delete-if-unused": "delete-on-no-links",
    "delete-if-empty": "delete-on-no-messages",
    "delete-if-unused-and-empty": "delete-on-no-links-or-messages",
}
_FILTERS: Final = 0x0000468C00000000
_DIRECT, _TOPIC, _SELECTOR = _FILTERS, _FILTERS + 1, _FILTERS + 4
_UNSETTLED_STATE: Final = 2
_DURABLE_SECONDS: Final = 120  # as in qpid::messaging

RELEASED: Final = Composite("released", {})
RETURNED: Final = Composite("modified", {"delivery_failed": True})


# ---- from addresses to termini ----


class Terminus:
    """What an address means for one side of a link.

    Args:
        text: the address.
        role: SENDER or RECEIVER.

    Attributes:
        target: the address.
        is_dynamic: whether the broker names the node.
        settle_mode: the sender's.

    Raises:
        AddressError: it is invalid, or has options that AMQP 1.0 does not have.
    """

    def __init__(self, text: str, role: str) -> None:
        address = parse_address(text)
        target = address_target(address)
        if target.only_0_10:
            raise AddressError(f"AMQP 1.0 has no {target.only_0_10}", text)
        self.is_dynamic = target.name == _DYNAMIC
        self.target: Target = target if self.is_dynamic else make_unique(address, target)
        if target.reliable is None and target.browse:
            self.target = self.target._replace(reliable=False)
        if not self.is_dynamic:
            warn_of_idle(text, self.target, role)
        self._role = role
        self.settle_mode = SETTLED if self.target.reliable is False else UNSETTLED
        self._filters = (*self._own_filters(), *target.filters) if role == RECEIVER else ()
        try:
            self._properties = {name: _property_value(name, value) for name, value in self._node_properties()}
            for each in self._filters:
                encode_composite("source", {"filter": (_filter_entry(each),)})
        except FormatError as error:
            raise AddressError(f"it cannot be encoded: {error.what}", text) from None

    def _own_filters(self) -> Iterator[Filter]:
        target = self.target
        if target.selector is not None:
            yield Filter("selector", _SELECTOR, target.selector)
        if target.subject:
            is_pattern = "*" in target.subject or "#" in target.subject
            yield Filter("subject-filter", _TOPIC if is_pattern else _DIRECT, target.subject)

    def _node_properties(self) -> Iterator[tuple[str, Any]]:
        target, declare = self.target, self.target.node_declare
        if target.node_type is not None:
            yield _DIST_MODES, "copy" if target.node_type == "topic" else "move"
        if target.node_durable:
            yield "durable", True
        found: dict[str, Any] = {
            "durable": declare.durable, "auto-delete": declare.auto_delete, "exclusive": declare.exclusive,
            "alternate-exchange": declare.alternate_exchange, "exchange-type": declare.type,
            **(declare.arguments or {}), **(target.properties or {}),
        }  # fmt: skip
        if self.is_dynamic and _LIFETIME not in found and declare.auto_delete is None:
            found[_LIFETIME] = "delete-on-close"
        yield from ((name, value) for name, value in found.items() if value is not None)

    @property
    def _creates(self) -> bool:
        return self._role in self.target.create and not self.is_dynamic

    @property
    def _capabilities(self) -> tuple[str, ...]:
        """Those that the broker must have."""
        target = self.target
        found = [*target.capabilities, *([target.node_type] if target.node_type else ())]
        return (*found, "durable") if target.node_durable else tuple(found)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the source or target."""
        target = self.target
        has_properties = self.is_dynamic or self._creates or self._role in target.asserts
        name = None if self.is_dynamic or target.name == _NULL else Value("string", target.name)
        fields: dict[str, Any] = {
            "address": name,
            "dynamic": self.is_dynamic or None,
            "capabilities": (*self._capabilities, *((_CREATE,) if self._creates else ())),
        }
        if has_properties and self._properties:
            entries = self._properties.items()
            fields["dynamic_node_properties"] = tuple((Value("symbol", key), value) for key, value in entries)
        if target.link_durable:
            fields["durable"] = _UNSETTLED_STATE
        if self._role == RECEIVER:
            usual = _DURABLE_SECONDS if target.link_durable and target.reliable is not True else None
            fields["timeout"] = target.timeout if target.timeout is not None else usual
            if target.link_durable and fields["timeout"] is None:
                fields["expiry_policy"] = Value("symbol", "never")
            fields["distribution_mode"] = "copy" if target.browse else None
            if self._filters:
                fields["filter"] = tuple(map(_filter_entry, self._filters))
        return fields

    def check_answer(self, answer: Mapping[str, Any]) -> None:
        """Check what the broker has answered, if the address asserts it. Raises AssertionFailed."""
        target = self.target
        if self._role not in target.asserts:
            return
        missing = sorted(set(self._capabilities) - set(answer.get("capabilities") or ()))
        if missing:
            raise AssertionFailed(f"{target.name!r} does not have the capabilities {', '.join(missing)}")
        in_use = {
            value.value.descriptor.value
            for _, value in answer.get("filter") or ()
            if isinstance(value.value, Described)
        }
        unused = [each.name for each in self._filters if not in_use & _descriptors(each)]
        if unused:
            raise AssertionFailed(f"{target.name!r}: the broker does not use the filters {', '.join(unused)}")
        actual = {key.value: value for key, value in answer.get("dynamic_node_properties") or ()}
        for name, value in self._properties.items() if actual else ():
            if not _is_same(value, actual.get(name)):
                raise AssertionFailed(f"{target.name!r} does not have the property {name} that the address asserts")


_SYMBOLS: Final[Mapping[int | str, str]] = {
    _DIRECT: "apache.org:legacy-amqp-direct-binding:string",
    _TOPIC: "apache.org:legacy-amqp-topic-binding:string",
    _SELECTOR: "apache.org:selector-filter:string",
}


def _descriptors(one: Filter) -> set[int | str]:
    """What a broker may answer for a filter."""
    return {one.descriptor, _SYMBOLS.get(one.descriptor, "")}


def _is_same(asked: Value, found: Value | None) -> bool:
    if found is None:
        return False
    one, other = asked.value, found.value
    if isinstance(one, Described) and isinstance(other, Described):
        return bool(one.descriptor.value == other.descriptor.value)
    return str(one) == str(other)


def _property_value(name: str, value: Any) -> Value:
    """A property of a node. Raises FormatError."""
    if name != _LIFETIME:
        return value_of(typed_value(value))
    symbol = f"amqp:{_LIFETIMES[value]}:list" if value in _LIFETIMES else str(value)
    return Value("described", Described(Value("symbol", symbol), Value("list", ())))


def _filter_entry(one: Filter) -> tuple[Value, Value]:
    kind = "ulong" if isinstance(one.descriptor, int) else "symbol"
    described = Described(Value(kind, one.descriptor), value_of(typed_value(one.value)))
    return Value("symbol", one.name), Value("described", described)


# ---- what both have ----


def error_of(name: str, error: Composite | None, role: str) -> LinkError:
    """The broker's error as one of a sender or receiver."""
    if error is None:
        return LinkError(f"the broker has detached {name!r}")
    if error.fields["condition"] == Condition.NOT_FOUND:
        description = error.fields.get("description") or "no such queue or exchange"
        return NotFound(f"{name!r}: {description}; create it, or use create: always in the address of the {role}")
    text, target = f"{name!r}: {error_text(error)}", redirect_of(error)
    return LinkError(text) if target is None else LinkRedirected(text, *target)


class _Attachment:
    """A link, and what has become of it; the owner of the machine's link.

    Attributes:
        link: the machine's.
        error: the broker's, once it has ended.
        is_over: whether it has ended.
    """

    link: ClientLink

    def __init__(self, on_end: Any, on_message: Any = None, on_credit: Any = None) -> None:
        self._end, self._message, self._credit = on_end, on_message, on_credit
        self.error: Composite | None = None
        self.is_over = False

    def on_attached(self) -> None:
        """As `LinkOwner.on_attached`."""

    def on_ended(self, error: Composite | None) -> None:
        """As `LinkOwner.on_ended`."""
        self.error, self.is_over = error, True
        self._end(error)

    def on_credit(self) -> None:
        """As `LinkOwner.on_credit`."""
        if self._credit is not None:
            self._credit()

    def on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        """As `LinkOwner.on_message`."""
        if self._message is not None:
            self._message(number, content, is_settled=is_settled)


async def _attach(session: Session, attachment: _Attachment, terminus: Terminus, role: str) -> None:
    """Wait for the broker's answer to attach. Raises LinkError, SessionError and InterruptedByLoss."""
    link, name = attachment.link, terminus.target.name
    await session.driver.wait(lambda: link.is_attached or attachment.is_over or not session.wire.is_usable)
    session.check_wire()
    if attachment.is_over:
        raise error_of(name, attachment.error, role)
    answer = link.answer.get("target" if role == SENDER else "source")
    fields = answer.fields if isinstance(answer, Composite) else {}
    address = fields.get("address")
    if terminus.is_dynamic and isinstance(address, Value):
        terminus.target = terminus.target._replace(name=str(address.value))
    try:
        terminus.check_answer(fields)
    except AssertionFailed:
        await _detach(session, attachment, is_closed=True)
        raise


async def _detach(session: Session, attachment: _Attachment, *, is_closed: bool) -> None:
    """Detach, and wait for the broker. Raises SessionError and InterruptedByLoss."""
    if not attachment.is_over and session.wire.is_usable:
        attachment.link.detach(is_closed=is_closed)
        await session.driver.wait(lambda: attachment.is_over or not session.wire.is_usable)
        session.check_wire()


def _wire_name(target: Target) -> str:
    return target.link_name or f"{target.name}_{uuid.uuid4()}"


# ---- senders ----


class Sender(SenderCore):
    """A sender. Raises AddressError: the address is invalid."""

    session: Session
    _attachment: _Attachment | None = None

    def __init__(self, session: Session, address: str, capacity: int) -> None:
        self._terminus = Terminus(address, SENDER)
        super().__init__(session, self._terminus.target, capacity)
        self._name = _wire_name(self.target)

    @property
    def _link(self) -> SendingLink:
        assert self._attachment is not None
        link = self._attachment.link
        assert isinstance(link, SendingLink)
        return link

    async def attach(self) -> None:
        """As `SenderCore.attach`."""
        terminus, session = self._terminus, self.session
        wire = session.wire
        session.check_wire()
        attachment = _Attachment(self._on_ended)
        try:
            attachment.link = wire.session.attach_sender(
                self._name, attachment, snd_settle_mode=terminus.settle_mode, rcv_settle_mode=FIRST,
                source=Composite("source", {"address": Value("string", self._name)}),
                target=Composite("target", terminus.fields),
            )  # fmt: skip
        except (ValueError, Amqp10Error) as error:
            raise LinkError(f"{self.target.name!r} cannot be attached: {error}") from None
        await _attach(session, attachment, terminus, SENDER)
        self._attachment, self.target = attachment, terminus.target

    def _on_ended(self, error: Composite | None) -> None:
        if self._attachment is not None and self._attachment.is_over and not self._is_detaching:
            self.failure = self.failure or error_of(self.target.name, error, SENDER)
            self.session.drop_unsettled(self)

    _is_detaching = False

    @property
    def has_credit(self) -> bool:
        """As `SenderCore.has_credit`."""
        return self._attachment is not None and self._link.can_send

    def make_transfer(self, message: Message) -> Transfer:
        """As `SenderCore.make_transfer`."""
        return Transfer(self, *encode_message(message, self.subject_of(message)))

    def mark_redelivered(self, transfer: Transfer) -> None:
        """As `SenderCore.mark_redelivered`: it was sent before."""
        fields = section_list("header", transfer.header, 0, len(transfer.header))
        transfer.header = encode_composite("header", {**fields, "delivery_count": (fields["delivery_count"] or 0) + 1})

    def transmit(self, transfer: Transfer, *, sync: bool) -> int:  # noqa: ARG002 – the broker completes by itself
        """As `SenderCore.transmit`."""
        return self._link.transfer(
            transfer.header, transfer.body, is_settled=self.target.reliable is False, state=self.session.state_of()
        )

    def ask_completion(self) -> None:
        """As `SenderCore.ask_completion`: the broker does that by itself."""

    @property
    def must_detach(self) -> bool:
        """As `SenderCore.must_detach`."""
        return self._attachment is not None and not self._attachment.is_over

    def unfinished_node(self) -> list[str]:
        """As `SenderCore.unfinished_node`: nothing."""
        return []

    async def finish_node(self) -> None:
        """As `SenderCore.finish_node`."""
        if self._attachment is not None:
            self._is_detaching = True
            await _detach(self.session, self._attachment, is_closed=not self.target.link_durable)


# ---- receivers ----


class Receiver(ReceiverCore):
    """A receiver. Raises AddressError: the address is invalid."""

    session: Session
    _attachment: _Attachment | None = None

    def __init__(self, session: Session, address: str, capacity: int, destination: str) -> None:
        self._terminus = Terminus(address, RECEIVER)
        super().__init__(session, self._terminus.target, capacity, destination)
        self._name = _wire_name(self.target)
        nests = session.connection.options.nest_annotations
        self._decode = partial(decode_sections, nests=nests)

    @property
    def _link(self) -> ReceivingLink:
        assert self._attachment is not None
        link = self._attachment.link
        assert isinstance(link, ReceivingLink)
        return link

    # ---- attaching ----

    async def attach(self) -> None:
        """As `ReceiverCore.attach`."""
        terminus, session = self._terminus, self.session
        session.check_wire()
        attachment = _Attachment(self._on_ended, self._on_message, self._top_up)
        self._attachment = None
        try:
            attachment.link = session.wire.session.attach_receiver(
                self._name, attachment, snd_settle_mode=terminus.settle_mode,
                rcv_settle_mode=SECOND if self.is_accepting and not self._settles_in_mode_first else FIRST,
                source=Composite("source", terminus.fields),
                target=Composite("target", {"address": Value("string", self._name)}),
            )  # fmt: skip
        except (ValueError, Amqp10Error) as error:
            raise LinkError(f"{self.target.name!r} cannot be attached: {error}") from None
        await _attach(session, attachment, terminus, RECEIVER)
        self._attachment, self.target = attachment, terminus.target
        self.grant()

    def _on_ended(self, error: Composite | None) -> None:
        if self._attachment is not None and self._attachment.is_over and not self._is_closing:
            self.failure = self.failure or error_of(self.target.name, error, RECEIVER)

    @property
    def is_confirmed(self) -> bool:
        """Whether the broker confirms outcomes."""
        return self._link.is_confirmed or self._settles_in_mode_first

    @property
    def _settles_in_mode_first(self) -> bool:
        """Whether the broker is one that refuses receiver settle mode second, and settles after the receiver anyway."""
        return self.session.wire.session.connection.server_properties.get("product") == _RABBITMQ

    # ---- credit ----

    def grant(self) -> None:
        """Give the broker credit for what may be prefetched."""
        if self.capacity and self._attachment is not None and self._link.is_attached:
            self._link.set_credit(max(0, self.capacity - len(self.incoming)))

    def _top_up(self) -> None:
        """Give more credit, if it is worth it."""
        if not self.capacity or self._attachment is None or self._link.is_draining:
            return
        if self._link.is_credit_due(self.capacity - len(self.incoming), self.capacity):
            self.grant()

    def regrant(self) -> None:
        """As `ReceiverCore.regrant`."""
        if self.capacity:
            self.grant()
        else:
            self.withhold()

    def ask(self) -> None:
        """As `ReceiverCore.ask`."""
        if not self.capacity and not self.incoming and self._attachment is not None and not self._link.credit:
            self._link.set_credit(1)

    def withhold(self) -> None:
        """Take all credit back."""
        if self._attachment is not None and self._link.is_attached:
            self._link.set_credit(0)

    # ---- messages ----

    def _on_message(self, number: int, content: Content, *, is_settled: bool) -> None:
        del is_settled
        delivery = Delivery(self, self.session.wire, number)
        self.incoming.append(Message.received(bytes(content), None, delivery, self._decode))

    def on_fetched(self, message: Message) -> None:
        """As `ReceiverCore.on_fetched`."""
        del message
        self._top_up()

    async def flush(self) -> None:
        """As `ReceiverCore.flush`: drain the link."""
        session, wire = self.session, self.session.wire
        if self._attachment is None or self.incoming:
            return
        link = self._link
        link.set_credit(max(link.credit, 1), drain=True)
        await session.driver.wait(lambda: not link.is_draining or self._attachment is None or not wire.is_usable)
        session.check_wire()
        self.grant()

    def take_waiting(self) -> list[int]:
        """Discard the prefetched messages, and return the numbers of those that are not settled."""
        numbers = [message.delivery.number for message in self.incoming]
        self.incoming.clear()
        return [] if self._terminus.settle_mode == SETTLED else numbers

    # ---- closing ----

    def unfinished(self) -> list[str]:
        """As `ReceiverCore.unfinished`: nothing."""
        return []

    async def detach(self) -> None:
        """As `ReceiverCore.detach`."""
        session, attachment = self.session, self._attachment
        waiting = self.take_waiting()
        session.forget_fetched(self)
        if attachment is not None and not attachment.is_over and session.wire.is_usable:
            session.wire.session.settle(ranges_of(waiting), RELEASED, is_settled=True)
            await _detach(session, attachment, is_closed=not self.target.link_durable)


def error_of_outcome(state: Composite | None) -> MessagingError | None:
    """The error of a message with an outcome; None if it was accepted."""
    if state is None or state.name == "accepted":
        return None
    if state.name == "transactional-state":
        return error_of_outcome(state.fields.get("outcome"))
    if state.name == "rejected":
        error = state.fields.get("error")
        return MessageRejected(
            "the broker has rejected a message" + ("" if error is None else f": {error_text(error)}")
        )
    return MessageReleased("the broker has released a message: no queue has taken it")
