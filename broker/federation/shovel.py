"""Shovels: each takes messages from a queue or exchange of one broker, and publishes them to another, or to this one.

A shovel is a parameter of the component `shovel` (`model/parameters`), with RabbitMQ's keys (`_KEYS`). Its two sides
are connections over AMQP 0-9-1, 1.0 or 0-10 (`shovel_ends`); one that leads to this broker has no socket, and is
authorized as the user who has set the parameter.

    STARTING     both sides connect; then queues and exchanges are looked up, and queues that do not exist are declared
    RUNNING      messages flow
    TERMINATED   a side has failed; STARTING again after `reconnect-delay`, never if that is 0
    (gone)       the parameter was deleted, by a user or after `src-delete-after` messages

The links through domains (`interlinks`) are shovels, too, without a parameter.

A `Carrier` acknowledges messages at the source, as `ack-mode` says. In on-confirm mode at most `src-prefetch-count`
messages are unconfirmed. A message that the destination refuses goes back to the source after `reconnect-delay`. One
that the destination's queue no longer takes (basic.return, because the queue is gone) ends both connections, before it
is acknowledged.

While the destination takes no more (its socket is full, it is short of memory or disk), the source is not read.

Source: RabbitMQ, "Configuring Dynamic Shovels" (keys, defaults, headers), and what its plugin answers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.basic_peer import Side
from qstore.broker.federation.carrier import AckMode, Carrier, read_delay, read_flag, read_text, unpublished
from qstore.broker.federation.link_peer import LinkSide
from qstore.broker.federation.peer import PeerNetwork, PeerSide
from qstore.broker.federation.shovel_ends import (
    BasicDestination,
    BasicSource,
    Destination,
    LinkDestination,
    LinkSource,
    Source,
    TransferDestination,
    TransferSource,
    basic_message,
    read_section_properties,
)
from qstore.broker.federation.transfer_peer import TransferSide
from qstore.broker.federation.uri import AmqpUri, parse_uris
from qstore.broker.log.logs import log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Client
from qstore.broker.model.errors import InvalidArgumentError, ModelError, NotFoundError
from qstore.broker.protocols.amqp_0_9_1.client_connection import Delivered, decode_deliver
from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.properties import Properties, decode_header, encode_header
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, LIST, TypedMap, TypedValue, UntypedValueError, typed_map, typed_value
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.message import Content, Message
    from qstore.broker.model.parameters import Key, Parameter
    from qstore.broker.protocols.amqp_0_9_1.client_connection import Values

_LOG: Final = log_of("Network")

COMPONENT: Final = "shovel"

BASIC, LINKS, TRANSFERS = "amqp091", "amqp10", "amqp010"
"""Protocols of a side: AMQP 0-9-1 and 1.0, with RabbitMQ's names, and 0-10."""

PROTOCOLS: Final = (BASIC, LINKS, TRANSFERS)

MAX_ADDRESS: Final = 1024
"""Bytes of an address of AMQP 1.0."""

QUEUE_LENGTH: Final = -1
"""In the place of a number of messages: as many as the queue has at the start."""

DEFAULT_PREFETCH: Final = 1000
DEFAULT_DELAY: Final = 5.0

MAX_SHOVELS: Final = 1000
"""Shovels of one broker: each has two connections."""

MAX_PREFETCH: Final = 65_535

SHOVELLED: Final = "x-shovelled"
SHOVELLED_AT: Final = "x-shovelled-timestamp"

_TARGETS_KEPT: Final = 1024
_MAX_DOUBLINGS: Final = 16  # of the delay; the most delay is reached before
_BY_LINKS: Final = frozenset(("shovelled-by", "shovel-type", "shovel-name"))  # with AMQP 1.0, as in RabbitMQ


class ShovelState(Enum):
    """The state of a shovel; the value is its name in management."""

    STARTING = "starting"
    RUNNING = "running"
    TERMINATED = "terminated"


# ---- definitions ----


class Definition(NamedTuple):
    """What a shovel does: the values of its parameter.

    Attributes:
        src_uris, dest_uris: the brokers of the two sides, each with alternatives.
        src_protocol, dest_protocol: of `PROTOCOLS`.
        src_address, dest_address: with AMQP 1.0, the addresses of the two sides; None with another protocol.
        src_queue: the queue to consume; None for an exchange.
        src_exchange, src_key: the exchange to which an exclusive queue is bound, and the key; None for a queue.
        dest_queue: the queue to publish to; None for an exchange.
        dest_exchange, dest_key: the exchange and key; None for those of each message.
        src_arguments, dest_arguments: of a queue that has to be declared.
        consumer_arguments: of basic.consume.
        prefetch: unacknowledged messages at most.
        delete_after: messages after which the shovel is deleted; QUEUE_LENGTH; None for never.
        ack_mode: as above.
        delay: seconds before it starts again; 0 for never.
        most_delay: the delay doubles with each failure in a row, up to this; 0 for one that stays the same.
        properties: replace those of messages, with AMQP 0-9-1.
        section, application, annotations: likewise, with AMQP 1.0: fields of the section properties, and entries.
        adds_headers, adds_timestamp: whether messages get the header `x-shovelled`, or one with the time.
    """

    src_uris: tuple[AmqpUri, ...]
    dest_uris: tuple[AmqpUri, ...]
    src_protocol: str
    dest_protocol: str
    src_address: str | None
    dest_address: str | None
    src_queue: str | None
    src_exchange: str | None
    src_key: str
    dest_queue: str | None
    dest_exchange: str | None
    dest_key: str | None
    src_arguments: TypedMap
    dest_arguments: TypedMap
    consumer_arguments: TypedMap
    prefetch: int
    delete_after: int | None
    ack_mode: AckMode
    delay: float
    properties: Mapping[str, Any]
    section: Mapping[str, Any]
    application: TypedMap
    annotations: TypedMap
    adds_headers: bool
    adds_timestamp: bool
    most_delay: float = 0.0

    def source(self, uri: str) -> Mapping[str, str]:
        """Where messages come from, as management shows it."""
        place = _place(uri, self.src_queue, self.src_exchange, self.src_key, self.src_address)
        return place if self.src_protocol == BASIC else {**place, "protocol": self.src_protocol}

    def destination(self, uri: str) -> Mapping[str, str]:
        """Where messages go, likewise."""
        place = _place(uri, self.dest_queue, self.dest_exchange, self.dest_key, self.dest_address)
        return place if self.dest_protocol == BASIC else {**place, "protocol": self.dest_protocol}

    @property
    def changes_sections(self) -> bool:
        """Whether it changes sections of AMQP 1.0."""
        return bool(self.section or self.application or self.annotations)


def _place(
    uri: str, queue: str | None, exchange: str | None, key: str | None, address: str | None
) -> Mapping[str, str]:
    key = key if queue is None and address is None else None
    found = {"uri": uri, "queue": queue, "exchange": exchange, "exchange-key": key, "address": address}
    return {name: text for name, text in found.items() if text}


def _count(what: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_PREFETCH:
        raise InvalidArgumentError(f"{what} must be a number from 1 to {MAX_PREFETCH:,}")
    return value


def _delete_after(what: str, value: object) -> int | None:
    if value == "never":
        return None
    if value == "queue-length":
        return QUEUE_LENGTH
    if type(value) is not int or value < 1:
        raise InvalidArgumentError(f'{what} must be "never", "queue-length" or a number of messages')
    return value


def _ack_mode(what: str, value: object) -> AckMode:
    try:
        return AckMode(value)
    except ValueError:
        raise InvalidArgumentError(f"{what} must be one of {', '.join(each.value for each in AckMode)}") from None


def _protocol(what: str, value: object) -> str:
    if not isinstance(value, str) or value not in PROTOCOLS:
        raise InvalidArgumentError(f"{what} must be one of {', '.join(PROTOCOLS)}")
    return value


def _address(what: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= MAX_ADDRESS:
        raise InvalidArgumentError(f"{what} must be a string of 1 to {MAX_ADDRESS:,} bytes")
    return value


def _section(what: str, value: object) -> Mapping[str, Any]:
    found = {name.replace("-", "_"): each for name, each in _table(what, value).entries}
    try:
        return read_section_properties(found)
    except FormatError as error:
        raise InvalidArgumentError(f"{what}: {error.what}") from None


def _table(what: str, value: object) -> TypedMap:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what} must be an object")
    try:
        return typed_map(value)
    except UntypedValueError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None


_NUMBERS: Final = frozenset(("delivery_mode", "priority", "timestamp"))
_PROPERTY_NAMES: Final = {"cluster_id": "reserved", **{name: name for name in Properties._fields if name != "headers"}}
del _PROPERTY_NAMES["reserved"]


def _properties(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what} must be an object")
    found: dict[str, Any] = {}
    for name, each in value.items():
        if name not in _PROPERTY_NAMES:
            raise InvalidArgumentError(f"{what}: there is no property {name!a}; there are {', '.join(_PROPERTY_NAMES)}")
        is_valid = (type(each) is int and each >= 0) if name in _NUMBERS else isinstance(each, str)
        if not is_valid:
            raise InvalidArgumentError(f"{what}: {name} must be {'a number' if name in _NUMBERS else 'a string'}")
        found[_PROPERTY_NAMES[name]] = each
    try:
        encode_header(0, Properties(**found))
    except Amqp091Error as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    return found


#: Key -> (its usual name, function that reads its value). Keys with another usual name are those of older versions.
_KEYS: Final[Mapping[str, tuple[str, Callable[[str, object], Any]]]] = {
    "src-uri": ("src-uri", parse_uris),
    "dest-uri": ("dest-uri", parse_uris),
    "src-protocol": ("src-protocol", _protocol),
    "dest-protocol": ("dest-protocol", _protocol),
    "src-address": ("src-address", _address),
    "dest-address": ("dest-address", _address),
    "dest-properties": ("dest-properties", _section),
    "dest-application-properties": ("dest-application-properties", _table),
    "dest-message-annotations": ("dest-message-annotations", _table),
    "src-queue": ("src-queue", read_text),
    "src-queue-args": ("src-queue-args", _table),
    "src-exchange": ("src-exchange", read_text),
    "src-exchange-key": ("src-exchange-key", read_text),
    "src-consumer-args": ("src-consumer-args", _table),
    "src-prefetch-count": ("src-prefetch-count", _count),
    "prefetch-count": ("src-prefetch-count", _count),
    "src-delete-after": ("src-delete-after", _delete_after),
    "delete-after": ("src-delete-after", _delete_after),
    "dest-queue": ("dest-queue", read_text),
    "dest-queue-args": ("dest-queue-args", _table),
    "dest-exchange": ("dest-exchange", read_text),
    "dest-exchange-key": ("dest-exchange-key", read_text),
    "dest-publish-properties": ("dest-publish-properties", _properties),
    "publish-properties": ("dest-publish-properties", _properties),
    "dest-add-forward-headers": ("dest-add-forward-headers", read_flag),
    "add-forward-headers": ("dest-add-forward-headers", read_flag),
    "dest-add-timestamp-header": ("dest-add-timestamp-header", read_flag),
    "add-timestamp-header": ("dest-add-timestamp-header", read_flag),
    "ack-mode": ("ack-mode", _ack_mode),
    "reconnect-delay": ("reconnect-delay", read_delay),
}


def read_definition(value: object) -> Definition:
    """Read the value of a parameter.

    Raises:
        InvalidArgumentError: it is not valid.
    """
    if not isinstance(value, dict):
        raise InvalidArgumentError(
            "a shovel's definition must be an object with src-uri, src-queue, dest-uri and so on"
        )
    found: dict[str, Any] = {}
    for key, each in value.items():
        if key not in _KEYS:
            raise InvalidArgumentError(
                f"a shovel has no key {printable(str(key))[:64]!a}; there are {', '.join(_KEYS)}"
            )
        name, read = _KEYS[key]
        if name in found:
            raise InvalidArgumentError(f"{key} and {name} are the same: give one of them")
        found[name] = read(key, each)
    for key in ("src-uri", "dest-uri"):
        if key not in found:
            raise InvalidArgumentError(f"Key '{key}' not found: a shovel needs src-uri and dest-uri")
    _check_protocols(found)
    if "src-queue" not in found and "src-exchange" not in found and "src-address" not in found:
        raise InvalidArgumentError("Must specify 'src-exchange' or 'src-queue'")
    for one, other in (("src-exchange", "src-queue"), ("dest-exchange", "dest-queue")):
        if one in found and other in found:
            raise InvalidArgumentError(f"Cannot specify '{one}' and '{other}'")
    for key, other in (("src-queue", "src-queue-args"), ("src-exchange", "src-exchange-key")):
        if other in found and key not in found:
            raise InvalidArgumentError(f"{other} has an effect only with {key}")
    if found.get("src-delete-after") == QUEUE_LENGTH and "src-queue" not in found:
        raise InvalidArgumentError("src-delete-after can be queue-length only with src-queue")
    mode, delete_after = found.get("ack-mode", AckMode.ON_CONFIRM), found.get("src-delete-after")
    if mode is AckMode.NO_ACK and delete_after is not None and delete_after != QUEUE_LENGTH:
        raise InvalidArgumentError("Cannot specify 'no-ack' and numerical 'delete-after'")
    return Definition(
        src_uris=found["src-uri"],
        dest_uris=found["dest-uri"],
        src_protocol=found.get("src-protocol", BASIC),
        dest_protocol=found.get("dest-protocol", BASIC),
        src_address=found.get("src-address"),
        dest_address=found.get("dest-address"),
        src_queue=found.get("src-queue"),
        src_exchange=found.get("src-exchange"),
        src_key=found.get("src-exchange-key", ""),
        dest_queue=found.get("dest-queue"),
        dest_exchange=found.get("dest-exchange"),
        dest_key=found.get("dest-exchange-key"),
        src_arguments=found.get("src-queue-args", EMPTY_MAP),
        dest_arguments=found.get("dest-queue-args", EMPTY_MAP),
        consumer_arguments=found.get("src-consumer-args", EMPTY_MAP),
        prefetch=found.get("src-prefetch-count", DEFAULT_PREFETCH),
        delete_after=delete_after,
        ack_mode=mode,
        delay=found.get("reconnect-delay", DEFAULT_DELAY),
        properties=found.get("dest-publish-properties", {}),
        section=found.get("dest-properties", {}),
        application=found.get("dest-application-properties", EMPTY_MAP),
        annotations=found.get("dest-message-annotations", EMPTY_MAP),
        adds_headers=found.get("dest-add-forward-headers", False),
        adds_timestamp=found.get("dest-add-timestamp-header", False),
    )


def _check_protocols(found: Mapping[str, Any]) -> None:
    """Check that each side has only keys of its protocol, and its address. Raises InvalidArgumentError."""
    for side in ("src", "dest"):
        protocol = found.get(f"{side}-protocol", BASIC)
        for key in found:
            name = key.removeprefix(f"{side}-")
            if name != key and name in _ONLY and protocol not in _ONLY[name]:
                raise InvalidArgumentError(f"{key} has no effect with {side}-protocol {protocol}")
        if protocol == LINKS and f"{side}-address" not in found:
            raise InvalidArgumentError(f"{side}-protocol {LINKS} needs {side}-address")


#: Key without `src-` or `dest-` -> the protocols for which it has an effect, if that is not so for all.
_ONLY: Final = {
    **dict.fromkeys(("address", "properties", "application-properties", "message-annotations"), (LINKS,)),
    **dict.fromkeys(("queue", "queue-args", "exchange", "exchange-key"), (BASIC, TRANSFERS)),
    **dict.fromkeys(("consumer-args", "publish-properties"), (BASIC,)),
}


# ---- one shovel ----


class ShovelStatus(NamedTuple):
    """What management shows of a shovel.

    Attributes:
        host, name: the virtual host and name of its parameter.
        state: its state.
        since: when that began, in seconds since 1970.
        reason: why it is terminated.
        blocked: why the destination takes no messages.
        source, destination: URIs without user and password, queue, or exchange and key, or address; the protocol, if it
            is not AMQP 0-9-1.
        forwarded: messages published since the broker has started.
        pending: messages that are not acknowledged at the source yet.
        left: messages until it is deleted; -1 if it is not.
        failures: how often it was terminated.
    """

    host: str
    name: str
    state: ShovelState
    since: float
    reason: str
    blocked: str
    source: Mapping[str, str]
    destination: Mapping[str, str]
    forwarded: int
    pending: int
    left: int
    failures: int


class Names(NamedTuple):
    """What a shovel is called.

    Attributes:
        title: in the log.
        connection: its connections, as brokers show them.
        container, link: its container and its link, with AMQP 1.0.
    """

    title: str
    connection: str
    container: str
    link: str

    @classmethod
    def of(cls, key: Key) -> Names:
        """Those of the shovel of a parameter."""
        title = f'Shovel "{printable(key[2])}" of virtual host "{printable(key[0])}"'
        return cls(title, f"Shovel {key[2]}", f"Shovel {key[2]}", "shovel")


class Shovel:
    """A shovel. It is the owner of its two sides.

    Args:
        shovels: all of them.
        key: virtual host, component and name of its parameter.
        definition: what it does.
        user: the user who has set the parameter.
        names: what it is called; None for the usual names of a parameter's shovel.
    """

    def __init__(
        self, shovels: Shovels, key: Key, definition: Definition, user: str, names: Names | None = None
    ) -> None:
        self._shovels, self.key, self.definition, self._user = shovels, key, definition, user
        self._names = names or Names.of(key)
        self.state = ShovelState.STARTING
        self._since = shovels.clock()
        self._reason = ""
        self._source: PeerSide | None = None
        self._dest: PeerSide | None = None
        self._from: Source | None = None
        self._to: Destination | None = None
        self._open = 0
        self._timer: Any = None
        self._is_gone = False
        self._forwarded = self._failures = 0
        self._in_a_row = 0  # failures since it last ran
        self._reset()

    def _reset(self) -> None:
        """Nothing is under way."""
        self._carrier: Carrier | None = None
        self._left = -1  # messages that may still be published; -1 for no limit
        self._payloads: dict[bytes, bytes] = {}  # exchange and key of a message -> basic.publish
        self._changes = False
        self._is_warned = False  # of messages that cannot be published, since it runs
        self._forward_header: TypedValue | None = None

    @property
    def status(self) -> ShovelStatus:
        """Its status."""
        definition = self.definition
        source, dest = self._source, self._dest
        own = (definition.src_uris[0] if source is None else source.uri).shown
        other = (definition.dest_uris[0] if dest is None else dest.uri).shown
        return ShovelStatus(
            self.key[0], self.key[2], self.state, self._since, self._reason, "" if dest is None else dest.blocked,
            definition.source(own), definition.destination(other),
            self._forwarded, 0 if self._carrier is None else self._carrier.pending, self._left, self._failures,
        )  # fmt: skip

    # ---- its life ----

    def start(self) -> None:
        """Connect both sides."""
        self._timer = None
        self._become(ShovelState.STARTING)
        self._reset()
        self._open = 0
        shovels, definition = self._shovels, self.definition
        name = self._names.connection
        broker, network, user = shovels.broker, shovels.network, self._user
        sides: dict[str, Any] = {BASIC: Side, LINKS: self._link_side, TRANSFERS: TransferSide}
        source = sides[definition.src_protocol](self, broker, network, definition.src_uris, user, name)
        dest = sides[definition.dest_protocol](self, broker, network, definition.dest_uris, user, name)
        self._source, self._dest = source, dest
        self._from = (
            LinkSource(source, definition.src_address or "")
            if isinstance(source, LinkSide)
            else (TransferSource if isinstance(source, TransferSide) else BasicSource)(source, definition)
        )
        ends: dict[str, Any] = {BASIC: BasicDestination, LINKS: LinkDestination, TRANSFERS: TransferDestination}
        self._to = ends[definition.dest_protocol](dest, definition)
        source.connect()
        if self._dest is dest:  # otherwise the source has failed at once
            dest.connect()

    def _link_side(self, *given: Any) -> LinkSide:
        return LinkSide(*given, container=self._names.container, link=self._names.link)

    @property
    def sides(self) -> tuple[PeerSide | None, PeerSide | None]:
        """Its source and its destination; None while there is none."""
        return self._source, self._dest

    def restart(self) -> None:
        """Start again now, unless it is to be deleted."""
        if self._is_gone:
            return
        self._stop_timer()
        self._close_sides()
        self.start()

    def stop(self, *, is_abrupt: bool = False) -> None:
        """End it for good."""
        self._is_gone = True
        self._stop_timer()
        self._close_sides(is_abrupt=is_abrupt)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_sides(self, *, is_abrupt: bool = False) -> None:
        sides, self._source, self._dest = (self._source, self._dest), None, None
        self._from = self._to = None
        if self._carrier is not None:
            self._carrier.stop()
            self._carrier = None
        for side in sides:
            if side is not None and is_abrupt:
                side.abort()
            elif side is not None:
                side.close()

    def _become(self, state: ShovelState, reason: str = "") -> None:
        self.state, self._since, self._reason = state, self._shovels.clock(), reason

    def _fail(self, reason: str) -> None:
        if self._is_gone or self.state is ShovelState.TERMINATED:
            return
        self._failures += 1
        self._become(ShovelState.TERMINATED, reason)
        delay = self._next_delay()
        again = f"it starts again in {delay:g} s" if delay else "it does not start again (reconnect-delay is 0)"
        _LOG.warning("%s has failed: %s; %s", self, printable(reason), again)
        self._close_sides()
        self._reset()
        if delay:
            self._timer = self._shovels.call_later(delay, self.start)

    def _next_delay(self) -> float:
        """Seconds until it starts again, after a failure; 0 for never."""
        delay, most = self.definition.delay, self.definition.most_delay
        if most:
            delay = min(delay * 2**self._in_a_row, most)
            self._in_a_row = min(self._in_a_row + 1, _MAX_DOUBLINGS)
        return delay

    def __str__(self) -> str:
        return self._names.title

    # ---- its sides ----

    def side_open(self, side: PeerSide) -> None:  # noqa: ARG002 – both are needed
        """As `SideOwner.side_open`."""
        self._open += 1
        if self._open == 2 and self._to is not None:
            confirms = self.definition.ack_mode is AckMode.ON_CONFIRM
            self._to.look_up(confirms=confirms, done=self._look_up_source)

    def side_failed(self, side: PeerSide, reason: str) -> None:
        """As `SideOwner.side_failed`."""
        if side in (self._source, self._dest):
            which = "source" if side is self._source else "destination"
            self._fail(f"{which} {side.uri.shown}: {reason}")

    def side_changed(self, side: PeerSide) -> None:
        """As `SideOwner.side_changed`: read from the source only while the destination takes messages."""
        if side is self._dest and self._source is not None:
            self._source.hold(is_held=side.is_full)

    # ---- getting ready ----

    def _look_up_source(self) -> None:
        if self._from is not None:
            self._from.look_up(self._source_found)

    def _source_found(self, messages: int, name: str) -> None:
        """The source has so many messages; its name is that of an exclusive queue if it is an exchange."""
        after = self.definition.delete_after
        if after is not None:
            self._left = messages if after == QUEUE_LENGTH else after
        if not self._left:
            self._finish()
        else:
            self._consume(name)

    def _consume(self, name: str) -> None:
        source, dest, definition = self._source, self._dest, self.definition
        if source is None or dest is None or self._from is None:
            return
        self._prepare_messages(name)
        shovels = self._shovels
        self._carrier = Carrier(
            source, dest, definition.ack_mode, definition.delay, shovels.call_soon, shovels.call_later,
            self._look_for_end, self._went_back,
        )  # fmt: skip
        prefetch = definition.prefetch if self._left < 0 else min(definition.prefetch, self._left)
        no_ack = definition.ack_mode is AckMode.NO_ACK and self._left < 0
        self._from.consume(name, prefetch, no_ack=no_ack, done=self._running)

    def _running(self) -> None:
        self._in_a_row = 0
        self._become(ShovelState.RUNNING)
        status = self.status
        _LOG.info("%s runs from %s to %s", self, _shown(status.source), _shown(status.destination))
        if self._source is not None and self._dest is not None and self._dest.is_full:
            self._source.hold(is_held=True)

    def _prepare_messages(self, queue: str) -> None:
        """Prepare what all messages have in common."""
        definition, status = self.definition, self.status
        self._changes = bool(definition.properties) or definition.adds_headers or definition.adds_timestamp
        if definition.adds_headers:
            texts = {
                "shovelled-by": self._shovels.node, "shovel-type": "dynamic", "shovel-name": self.key[2],
                "shovel-vhost": self.key[0], "src-uri": status.source["uri"], "dest-uri": status.destination["uri"],
            }  # fmt: skip
            for prefix, place in (("src", status.source), ("dest", status.destination)):
                texts |= {f"{prefix}-{name}": text for name, text in place.items() if name not in ("uri", "protocol")}
            texts.setdefault("src-queue", queue)
            self._forward_header = typed_value(texts)

    # ---- messages ----

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `SideOwner.on_delivery`: publish a message that came over AMQP 0-9-1."""
        if not self._takes:
            return  # it stays unacknowledged, and returns to its queue
        try:
            delivered = decode_deliver(payload)
        except Amqp091Error as error:
            self._fail(f"a delivery of the source cannot be read: {error}")
            return
        to = self._to
        try:
            if isinstance(to, BasicDestination):
                publish = self._payloads.get(delivered.routed) or self._target(to, delivered)
            else:
                message = basic_message(delivered, header, body, self._shovels.clock())
                publish, header, body = self._encoded(message)
            self._carry(delivered.delivery_tag, publish, header, body)
        except FormatError as error:
            self._not_carried(delivered.delivery_tag, delivered.key, error)

    def on_room(self) -> None:
        """As `MessageOwner.on_room`: what waits for it was sent; the source is read while the side is not full."""

    def on_message(self, tag: int, message: Message) -> None:
        """As `MessageOwner.on_message`: publish a message that came over another protocol."""
        if self._takes:
            try:
                self._carry(tag, *self._encoded(message))
            except FormatError as error:
                self._not_carried(tag, message.routing_key, error)

    @property
    def _takes(self) -> bool:
        return self._carrier is not None and bool(self._left) and self.state is ShovelState.RUNNING

    def _encoded(self, message: Message) -> tuple[bytes, bytes, Content]:
        """A message as the destination publishes it. Raises FormatError."""
        assert self._to is not None
        return self._to.encode(message, self._forwarded_headers, self._shovels.clock())

    @property
    def _is_acknowledged(self) -> bool:
        return self.definition.ack_mode is not AckMode.NO_ACK or self._left >= 0

    def _carry(self, tag: int, publish: bytes, header: bytes, body: Content) -> None:
        """Publish a message. Raises FormatError: it cannot be sent."""
        carrier = self._carrier
        assert carrier is not None
        if self._changes and isinstance(self._to, BasicDestination):
            header = self._changed(header)
        carrier.carry(tag, publish, header, body, is_acknowledged=self._is_acknowledged)
        self._forwarded += 1
        if self._left > 0:
            self._left -= 1

    def _not_carried(self, tag: int, key: str, error: FormatError) -> None:
        """A message cannot be sent: it goes back."""
        is_acknowledged = self._is_acknowledged
        if is_acknowledged and self._carrier is not None:
            self._carrier.refuse(tag)
        if not self._is_warned:
            self._is_warned = True
            _LOG.warning("%s: %s", self, unpublished(key, error, is_lost=not is_acknowledged))
        if self._left > 0:
            self._left -= 1

    def _target(self, to: BasicDestination, delivered: Delivered) -> bytes:
        """basic.publish for a message; kept by its exchange and key."""
        exchange_end = 1 + delivered.routed[0]
        if len(self._payloads) >= _TARGETS_KEPT:
            self._payloads.clear()
        exchange = delivered.routed[1:exchange_end].decode("utf-8", "surrogateescape")
        found = self._payloads[delivered.routed] = to.routed(exchange, delivered.key)
        return found

    @property
    def _forwarded_headers(self) -> TypedMap:
        """What is added to the headers of messages of AMQP 0-10 and 1.0."""
        entries: list[tuple[str, TypedValue]] = []
        if self._forward_header is not None and self.definition.dest_protocol == LINKS:
            entries += [entry for entry in self._forward_header.value.entries if entry[0] in _BY_LINKS]
        elif self._forward_header is not None:
            entries.append((SHOVELLED, TypedValue(LIST, (self._forward_header,))))
        if self.definition.adds_timestamp:
            entries.append((SHOVELLED_AT, typed_value(int(self._shovels.clock()))))
        return TypedMap(tuple(entries))

    def _changed(self, header: bytes) -> bytes:
        """The content header with the properties and headers that the definition sets."""
        size, properties = decode_header(header)
        definition = self.definition
        properties = properties._replace(**definition.properties)
        entries = dict((properties.headers or EMPTY_MAP).entries)
        if self._forward_header is not None:
            known = entries.get(SHOVELLED)
            earlier = known.value if known is not None and isinstance(known.value, tuple) else ()
            entries[SHOVELLED] = TypedValue(LIST, (self._forward_header, *earlier))
        if definition.adds_timestamp:
            entries[SHOVELLED_AT] = typed_value(int(self._shovels.clock()))
        if entries:
            properties = properties._replace(headers=TypedMap(tuple(entries.items())))
        return encode_header(size, properties)

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `SideOwner.on_confirmed`."""
        if self._carrier is not None:
            self._carrier.on_confirmed(first, last, is_accepted=is_accepted)

    def _went_back(self, count: int) -> None:
        if self._left >= 0:
            self._left += count

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:  # noqa: ARG002
        """As `SideOwner.on_returned`: the destination's queue is gone. Nothing more is acknowledged."""
        assert self._dest is not None
        self._fail(f"destination {self._dest.uri.shown}: a message was returned: {values['reply_text']}")

    def _look_for_end(self) -> None:
        """If all messages were acknowledged, make sure that the source has processed that: it answers in order."""
        source, carrier = self._from, self._carrier
        if not self._left and source is not None and (carrier is None or carrier.is_idle):
            source.synchronize(self._finish)

    def _finish(self) -> None:
        """All messages were forwarded: delete the parameter."""
        self._close_sides()
        if not self._is_gone:
            self._is_gone = True
            _LOG.info("%s has forwarded all its messages (delete-after) and is deleted", self)
            self._shovels.finished(self)


def _shown(place: Mapping[str, str]) -> str:
    return " ".join(f"{name} {printable(text)}" if name != "uri" else text for name, text in place.items())


# ---- all of them ----


class Shovels:
    """The shovels of one broker: the component of parameters.

    Args:
        broker: the model.
        network: connects their sides.
        call_soon: schedules a function for the next iteration of the event loop.
        call_later: schedules a function after a delay in seconds; returns a handle with `cancel`.
        run: runs a coroutine, and calls back with its error.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        broker: Broker,
        network: PeerNetwork,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Any],
        run: Callable[[Any, Callable[[ModelError | None], None]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.broker, self.network, self.clock = broker, network, clock
        self.call_soon, self.call_later, self._run = call_soon, call_later, run
        self._shovels: dict[Key, Shovel] = {}
        self._is_on = False
        broker.parameters.register(COMPONENT, self._check, self._changed)

    @property
    def node(self) -> str:
        """The broker's name, in headers: the global parameter, or the name of the host."""
        return self.broker.parameters.cluster_name or socket.gethostname()

    def __iter__(self) -> Iterator[Shovel]:
        return iter(self._shovels.values())

    def start(self) -> None:
        """Start the shovels of the store: the broker serves clients now."""
        self._is_on = True
        for parameter in self.broker.parameters.of(COMPONENT):
            self._changed(parameter[:3], parameter)

    def close(self) -> None:
        """End all shovels: the broker stops."""
        self._is_on = False
        for shovel in self._shovels.values():
            shovel.stop()
        self._shovels.clear()

    def restart(self, host: str, name: str) -> None:
        """Restart a shovel now. Raises NotFoundError if there is none."""
        shovel = self._shovels.get((host, COMPONENT, name))
        if shovel is None:
            raise NotFoundError(f'shovel "{printable(name)}" of virtual host "{printable(host)}" does not exist')
        shovel.restart()

    def statuses(self) -> list[ShovelStatus]:
        """The status of each, by virtual host and name."""
        return [shovel.status for _, shovel in sorted(self._shovels.items(), key=lambda item: item[0])]

    def _check(self, parameter: Parameter) -> None:
        read_definition(parameter.value)
        caller = Client(parameter.user, "", "", parameter.host)
        self.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")
        if parameter[:3] not in self._shovels and len(self._shovels) >= MAX_SHOVELS:
            raise InvalidArgumentError(f"there are {MAX_SHOVELS:,} shovels; this is the maximum")

    def _changed(self, key: Key, parameter: Parameter | None) -> None:
        before = self._shovels.pop(key, None)
        if before is not None:
            before.stop()
        if parameter is None or not self._is_on:
            return
        try:
            definition = read_definition(parameter.value)
        except InvalidArgumentError as error:  # stored by another version
            _LOG.error('The shovel "%s" has no effect: %s', printable(key[2]), error)
            return
        shovel = self._shovels[key] = Shovel(self, key, definition, parameter.user)
        shovel.start()

    def finished(self, shovel: Shovel) -> None:
        """A shovel is to be deleted, with its parameter."""

        def done(error: ModelError | None) -> None:
            if error is not None and not isinstance(error, NotFoundError):
                _LOG.error("%s is not deleted: %s", shovel, error)

        host, component, name = shovel.key
        self._run(self.broker.parameters.delete(host, component, name), done)
