"""The two ends of a shovel by protocol: what they look up and declare, and how a message of another protocol is sent.

    end                     side                              source and destination
    ----------------------  --------------------------------  -----------------------------------------------------
    `BasicSource`, ...      AMQP 0-9-1 (`basic_peer`)         a queue, which is declared if there is none; an exchange
    `LinkSource`, ...       AMQP 1.0 (`link_peer`)            an address, which exists
    `TransferSource`, ...   AMQP 0-10 (`transfer_peer`)       as AMQP 0-9-1

A message that both ends have in the same encoding is passed on as it is, but for what the shovel changes; others are
converted as for a consumer (`protocols/amqp_1_0/README.md`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.basic_peer import Side
from qstore.broker.federation.link_peer import LinkSide
from qstore.broker.federation.peer import PeerSide
from qstore.broker.federation.transfer_peer import TransferSide
from qstore.broker.model.errors import ModelError
from qstore.broker.model.message import Content, Handling, Message
from qstore.broker.protocols.amqp_0_9_1.client_connection import encode_publish
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, as_basic, handling_priority
from qstore.broker.protocols.amqp_0_10.message import TransferMessage, as_transfer
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections
from qstore.broker.protocols.message import native_of
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import decode_header
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_1_0.composites import ANY, BY_NAME, encode_composite
from qstore.formats.amqp_1_0.neutral import map_value, value_of
from qstore.formats.amqp_1_0.sections import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, encode_section, section_value
from qstore.formats.amqp_1_0.values import Value, plain_key
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.federation.shovel import Definition
    from qstore.broker.protocols.amqp_0_9_1.client_connection import Delivered, Values

_PERSISTENT: Final = 2


class UnsendableError(FormatError):
    """A message that the protocol of the destination cannot represent."""

    format_name = "AMQP"


class Encoded(NamedTuple):
    """A message as the channel of a destination publishes it: `publish(payload, header, body)`."""

    payload: bytes
    header: bytes
    body: Content


# ---- sources ----


class Source(ABC):
    """Where messages come from.

    Attributes:
        side: its side.
    """

    side: PeerSide

    @abstractmethod
    def look_up(self, done: Callable[[int, str], None]) -> None:
        """Make sure that the source exists. Calls back with its number of messages (0: unknown) and its name."""

    @abstractmethod
    def consume(self, name: str, prefetch: int, *, no_ack: bool, done: Callable[[], None]) -> None:
        """Have messages sent."""

    @abstractmethod
    def synchronize(self, done: Callable[[], None]) -> None:
        """Call back when the source has processed what was acknowledged."""


class BasicSource(Source):
    """A queue or exchange over AMQP 0-9-1."""

    side: Side

    def __init__(self, side: Side, definition: Definition) -> None:
        self.side, self._definition = side, definition

    def look_up(self, done: Callable[[int, str], None]) -> None:
        """As `Source.look_up`."""
        side, definition = self.side, self._definition
        if definition.src_queue is not None:
            queue = definition.src_queue
            side.ensure_queue(queue, definition.src_arguments, lambda messages: done(messages, queue))
            return
        exchange = definition.src_exchange or ""

        def declared(values: Values) -> None:
            name = str(values["queue"])
            side.channel.bind_queue(name, exchange, definition.src_key, side.expect(lambda _values: done(0, name)))

        side.channel.declare_queue("", side.expect(declared), exclusive=True)

    def consume(self, name: str, prefetch: int, *, no_ack: bool, done: Callable[[], None]) -> None:
        """As `Source.consume`."""
        side = self.side
        side.channel.qos(prefetch, side.expect(lambda _values: None))
        side.delivers = True
        arguments = self._definition.consumer_arguments
        side.channel.consume(name, "", side.expect(lambda _values: done()), no_ack=no_ack, arguments=arguments)

    def synchronize(self, done: Callable[[], None]) -> None:
        """As `Source.synchronize`: it answers in order."""
        self.side.channel.qos(1, self.side.expect(lambda _values: done()))


class LinkSource(Source):
    """An address over AMQP 1.0."""

    side: LinkSide

    def __init__(self, side: LinkSide, address: str) -> None:
        self.side, self._address = side, address

    def look_up(self, done: Callable[[int, str], None]) -> None:
        """As `Source.look_up`: it is found when the link is attached."""
        done(0, self._address)

    def consume(self, name: str, prefetch: int, *, no_ack: bool, done: Callable[[], None]) -> None:
        """As `Source.consume`."""
        self.side.channel.attach_source(name, prefetch=prefetch, no_ack=no_ack, done=done)

    def synchronize(self, done: Callable[[], None]) -> None:
        """As `Source.synchronize`."""
        self.side.channel.synchronize(done)


class TransferSource(Source):
    """A queue or exchange over AMQP 0-10."""

    side: TransferSide

    def __init__(self, side: TransferSide, definition: Definition) -> None:
        self.side, self._definition = side, definition

    def look_up(self, done: Callable[[int, str], None]) -> None:
        """As `Source.look_up`."""
        definition = self._definition
        if definition.src_queue is not None:
            queue = definition.src_queue
            self.side.channel.ensure_queue(queue, definition.src_arguments, lambda messages: done(messages, queue))
        else:
            exchange = definition.src_exchange or ""
            self.side.channel.bind_own_queue(exchange, definition.src_key, lambda name: done(0, name))

    def consume(self, name: str, prefetch: int, *, no_ack: bool, done: Callable[[], None]) -> None:
        """As `Source.consume`."""
        self.side.channel.subscribe(name, prefetch, no_ack=no_ack, done=done)

    def synchronize(self, done: Callable[[], None]) -> None:
        """As `Source.synchronize`."""
        self.side.channel.synchronize(done)


# ---- destinations ----


class Destination(ABC):
    """Where messages go.

    Attributes:
        side: its side.
    """

    side: PeerSide

    @abstractmethod
    def look_up(self, *, confirms: bool, done: Callable[[], None]) -> None:
        """Make sure that the destination exists; `confirms`: it is to confirm messages."""

    @abstractmethod
    def encode(self, message: Message, forwarded: TypedMap, now: float) -> Encoded:
        """A message as it is sent.

        Args:
            message: the message.
            forwarded: what is added to its headers.
            now: seconds since 1970.

        Raises:
            FormatError: it cannot be sent.
        """


class BasicDestination(Destination):
    """A queue or exchange over AMQP 0-9-1."""

    side: Side

    def __init__(self, side: Side, definition: Definition) -> None:
        self.side, self._definition = side, definition

    def look_up(self, *, confirms: bool, done: Callable[[], None]) -> None:
        """As `Destination.look_up`."""
        side, definition = self.side, self._definition

        def found() -> None:
            if confirms:
                side.channel.confirm_select(side.expect(lambda _values: done()))
            else:
                done()

        if definition.dest_queue is not None:
            side.ensure_queue(definition.dest_queue, definition.dest_arguments, lambda _messages: found())
        else:
            side.check_exchange(definition.dest_exchange or "", found)

    def routed(self, exchange: str, key: str) -> bytes:
        """basic.publish for a message with this exchange and key."""
        target = target_of(self._definition, exchange, key)
        return encode_publish(encode_routed(*target), mandatory=self._definition.dest_queue is not None)

    def encode(self, message: Message, forwarded: TypedMap, now: float) -> Encoded:  # noqa: ARG002 – in the header
        """As `Destination.encode`; the shovel changes the header, in which `forwarded` is added."""
        native: BasicMessage = _native(message, BasicMessage, as_basic)
        return Encoded(self.routed(message.exchange, message.routing_key), native.header, native.body)


def target_of(definition: Definition, exchange: str, key: str) -> tuple[str, str]:
    """The exchange and the routing key to which a message goes that came with these."""
    if definition.dest_queue is not None:
        return "", definition.dest_queue
    return (
        exchange if definition.dest_exchange is None else definition.dest_exchange,
        key if definition.dest_key is None else definition.dest_key,
    )


class LinkDestination(Destination):
    """An address over AMQP 1.0."""

    side: LinkSide

    def __init__(self, side: LinkSide, definition: Definition) -> None:
        self.side, self._definition = side, definition

    def look_up(self, *, confirms: bool, done: Callable[[], None]) -> None:
        """As `Destination.look_up`."""
        self.side.channel.attach_target(self._definition.dest_address or "", confirms=confirms, done=done)

    def encode(self, message: Message, forwarded: TypedMap, now: float) -> Encoded:
        """As `Destination.encode`."""
        native: SectionMessage = _native(message, SectionMessage, as_sections)
        definition = self._definition
        if isinstance(message, SectionMessage) and not (definition.changes_sections or forwarded):
            return Encoded(b"", message.header, message.body)
        own = native.delivered_header(was_acquired=False, returns=0, now=now)
        header = own[: len(own) - (len(native.header) - native.sections.header[1])]
        sections = native.sections
        added, annotated = forwarded.entries, definition.annotations.entries
        header += _map_section(MESSAGE_ANNOTATIONS, native, sections.annotations, annotated, "symbol")
        header += _properties_section(native, definition.section)
        header += _map_section(
            APPLICATION_PROPERTIES, native, sections.application, (*definition.application.entries, *added), "string"
        )
        return Encoded(b"", header, native.body)


def _map_section(
    code: int, message: SectionMessage, bounds: tuple[int, int], changes: tuple[tuple[str, Any], ...], key_type: str
) -> bytes:
    """A section that is a map, with entries set; as it is without any."""
    begin, end = bounds
    if not changes:
        return message.header[begin:end]
    names = {name for name, _ in changes}
    old = section_value(message.header, bounds).value if end else ()
    kept = tuple(entry for entry in old if plain_key(entry[0]) not in names)
    return encode_section(code, Value("map", kept + map_value(TypedMap(changes), key_type).value))


def _properties_section(message: SectionMessage, changes: Mapping[str, Any]) -> bytes:
    """The section properties, with fields set; as it is without any."""
    begin, end = message.sections.properties
    if not changes:
        return message.header[begin:end]
    return encode_composite("properties", {**message.section_properties(), **changes})


def read_section_properties(given: Mapping[str, TypedValue]) -> Mapping[str, Any]:
    """Fields of the section properties from plain values. Raises FormatError: there is none of a name, or its type."""
    kinds = {field.name: field.base for field in BY_NAME["properties"].fields}
    fields: dict[str, Any] = {}
    for name, typed in given.items():
        value, kind = typed.value, kinds.get(name)
        if kind is None:
            raise UnsendableError(f"AMQP 1.0 has no property {name!a:.64}")
        if kind == ANY:
            fields[name] = value_of(typed)
            continue
        if type(value) is not (int if kind in _NUMBERS else str):
            raise UnsendableError(f"the property {name} must be {'a number' if kind in _NUMBERS else 'a string'}")
        fields[name] = str(value).encode() if kind == "binary" else value
    encode_composite("properties", fields)
    return fields


_NUMBERS: Final = frozenset(("timestamp", "uint", "sequence-no"))


class TransferDestination(Destination):
    """A queue or exchange over AMQP 0-10."""

    side: TransferSide

    def __init__(self, side: TransferSide, definition: Definition) -> None:
        self.side, self._definition = side, definition

    def look_up(self, *, confirms: bool, done: Callable[[], None]) -> None:
        """As `Destination.look_up`."""
        channel, definition = self.side.channel, self._definition
        channel.confirms = confirms
        if definition.dest_queue is not None:
            channel.ensure_queue(definition.dest_queue, definition.dest_arguments, lambda _messages: done())
        else:
            channel.check_exchange(definition.dest_exchange or "", done)

    def encode(self, message: Message, forwarded: TypedMap, now: float) -> Encoded:
        """As `Destination.encode`."""
        native: TransferMessage = _native(message, TransferMessage, as_transfer)
        exchange, key = target_of(self._definition, message.exchange, message.routing_key)
        try:
            sent = native.readdressed(exchange, key, dict(forwarded.entries))
        except ModelError as error:
            raise UnsendableError(str(error)) from None
        sent.expires_at = native.expires_at
        header = sent.header_for_delivery(is_redelivered=False, now=now)
        payload = encode_command("message.transfer", destination=exchange, accept_mode=1, acquire_mode=0, sync=True)
        return Encoded(payload, header, sent.body)


def _native(message: Message, kind: Any, convert: Any) -> Any:
    """A message in the form of a protocol. Raises UnsendableError."""
    found = native_of(message, kind, convert)
    if found is None:
        raise UnsendableError("the message has no form in the protocol of the destination")
    return found


def basic_message(delivered: Delivered, header: bytes, body: Content, now: float) -> BasicMessage:
    """A message that was received over AMQP 0-9-1. Raises FormatError."""
    properties = decode_header(header)[1]
    exchange_end = 1 + delivered.routed[0]
    exchange = delivered.routed[1:exchange_end].decode("utf-8", "surrogateescape")
    key = delivered.routed[exchange_end + 1 :].decode("utf-8", "surrogateescape")
    expiration = properties.expiration or ""
    expires_at = now + int(expiration) / 1000 if expiration.isdecimal() and len(expiration) < 16 else 0.0
    handling = Handling(priority=handling_priority(properties.priority))
    return BasicMessage(
        header, body, exchange, key, delivered.routed, properties.delivery_mode == _PERSISTENT, handling, expires_at
    )
