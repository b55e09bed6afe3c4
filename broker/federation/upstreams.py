"""Federated exchanges and queues, as RabbitMQ's users know them: policies say which have which upstreams.

    parameter federation-upstream        a broker, and how to get messages from it (`Upstream`)
    parameter federation-upstream-set    a list of upstreams, each perhaps with other values; `all` is the set of all
    policy                               federation-upstream, federation-upstream-set or federation-upstream-pattern

For each upstream of a federated exchange or queue there is a link: a connection to the upstream, one to this broker
itself, and a `Carrier` between them. It does what it does as the user who has set the parameter of the upstream.

    STARTING    both sides connect; then what the link needs at the upstream is declared
    RUNNING     messages flow
    ERROR       a side has failed; STARTING again after `reconnect-delay`, never if that is 0

Exchange: the link has a durable queue at the upstream, `federation: EXCHANGE -> BROKER`, which collects messages while
the brokers cannot reach each other (within `expires` and `message-ttl`). An internal exchange that is bound to it has
what is bound to the exchange here, so that only wanted messages come. Each start makes a new internal exchange, called
A or B in turns, and deletes the other one when the new one is complete: bindings that vanished in the meantime are
gone, and no message is missed. What the internal exchanges of others are bound with is passed on, too, as far as
`max-hops` of the links reaches (`x-bound-from`).

Queue: messages come only while a consumer here is ready, and no message is (`Queue.has_idle_taker`): the link consumes
then, with a negative priority. Consumers of such a priority are other brokers' links: they do not count here, or
messages would go round where queues are upstreams of each other.

The header `x-received-from` has an entry for each hop. A message that has made `max-hops` of them, or has been at this
broker, is not published to a federated exchange. A broker's name is the global parameter `cluster_name`; without one it
is its tag in a federation, which is permanent.

When an upstream or policy is gone, the link deletes its queue and exchange at the upstream, if it is connected.

Source: RabbitMQ, "Federation Plugin", "Federated Exchanges", "Federated Queues", "Federation Reference", and what its
plugin declares and sends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.federation.basic_peer import NO_OWNER, Side
from qstore.broker.federation.carrier import AckMode, Carrier, read_delay, read_flag, read_text, unpublished
from qstore.broker.federation.peer import PeerNetwork, PeerSide
from qstore.broker.federation.uri import AmqpUri, parse_uris
from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import BOUND_FROM, INTERNAL, INTERNAL_PURPOSE, Applied
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Caller, Client
from qstore.broker.model.errors import InvalidArgumentError, ModelError, NotFoundError, UnauthorizedError
from qstore.broker.model.events import (
    Event,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueDeclare,
    QueueDelete,
)
from qstore.broker.model.exchanges.exchange import Exchange, ExchangeBinding
from qstore.broker.model.exchanges.origins import Wanted
from qstore.broker.model.patterns import compile_pattern
from qstore.broker.model.policies import UPSTREAM, UPSTREAM_PATTERN, UPSTREAM_SET, Policy
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_9_1.client_connection import Delivered, Values, decode_deliver, encode_publish
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError
from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.methods import encode_method, encode_routed
from qstore.formats.amqp_0_9_1.properties import decode_header, encode_header
from qstore.formats.checksum import extend_crc32c
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, LIST, MAP, TypedMap, TypedValue, typed_map
from qstore.formats.wording import printable

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.message import Content
    from qstore.broker.model.parameters import Key, Parameter

_LOG: Final = log_of("Network")

MAX_LINKS: Final = 1_000
"""Links of one broker: each has two connections."""

MAX_SET: Final = 100
"""Upstreams of one set."""

MAX_HOPS: Final = 100
MAX_NUMBER: Final = (1 << 31) - 1

RECEIVED_FROM: Final = "x-received-from"
_PURPOSE: Final = typed_map({INTERNAL_PURPOSE: "federation"})

_WATCHED: Final = (ExchangeDeclare, QueueDeclare, ExchangeDelete, QueueDelete, ExchangeBind, ExchangeUnbind)
_QUIET_SECONDS: Final = 60.0  # after the log has said that there are MAX_LINKS
_LOOK_SECONDS: Final = 0.1  # between looks whether a consumer of a federated queue is ready
_AT_ONCE: Final = 100  # bindings in one turn: some milliseconds
_TARGETS_KEPT: Final = 1024
_MAX_NAME: Final = 253  # bytes of a queue's name, for that of the internal exchange has two more
_SCANNED: Final = 2_000  # queues in one turn: about a millisecond


class Kind(Enum):
    """What can be federated."""

    EXCHANGE = "exchange"
    QUEUE = "queue"


class LinkState(Enum):
    """The state of a link; the value is its name in management."""

    STARTING = "starting"
    RUNNING = "running"
    ERROR = "error"


# ---- parameters ----


class Upstream(NamedTuple):
    """An upstream of one exchange or queue.

    Attributes:
        name: the name of its parameter.
        user: who has set it.
        uris: the broker, and alternatives.
        exchange, queue: names at the upstream; empty for the same as here.
        consumer_tag: of the consumer of a queue.
        prefetch: unacknowledged messages at most.
        delay: seconds before a link starts again; 0 for never.
        max_hops: brokers that a message passes at most.
        expires, ttl: of the queue at the upstream, in milliseconds; None for never.
        queue_type: its type; empty for the upstream's default.
        ack_mode: when a message is acknowledged at the upstream.
        keeps: whether what the link has made at the upstream stays there when it is not federated any more.
    """

    name: str
    user: str
    uris: tuple[AmqpUri, ...]
    exchange: str
    queue: str
    consumer_tag: str
    prefetch: int
    delay: float
    max_hops: int
    expires: int | None
    ttl: int | None
    queue_type: str
    ack_mode: AckMode
    keeps: bool


def _number(low: int, high: int) -> Callable[[str, object], int]:
    def read(what: str, value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise InvalidArgumentError(f"{what} must be a number from {low} to {high:,}")
        return value

    return read


def _one_of(*texts: str) -> Callable[[str, object], str]:
    def read(what: str, value: object) -> str:
        if value not in texts:
            raise InvalidArgumentError(f"{what} must be one of {', '.join(texts)}")
        return str(value)

    return read


def _distrust(what: str, value: object) -> bool:
    if value is not False:
        raise InvalidArgumentError(f"{what} can only be false: the user id of a message is that of this broker's user")
    return False


def _uris(what: str, value: object) -> object:
    parse_uris(what, value)
    return value


#: Key -> function that checks and reads its value.
_KEYS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "uri": _uris,
    "exchange": read_text,
    "queue": read_text,
    "consumer-tag": read_text,
    "prefetch-count": _number(1, 65_535),
    "reconnect-delay": read_delay,
    "max-hops": _number(1, MAX_HOPS),
    "expires": _number(1, MAX_NUMBER),
    "message-ttl": _number(0, MAX_NUMBER),
    "queue-type": _one_of("classic", "quorum"),
    "ack-mode": _one_of(*(each.value for each in AckMode)),
    "trust-user-id": _distrust,
    "ha-policy": read_text,
    "bind-nowait": read_flag,
    "channel-use-mode": _one_of("multiple", "single"),
    "resource-cleanup-mode": _one_of("default", "never"),
}

#: Keys that are checked, and have no effect, and why.
_IGNORED_KEYS: Final[Mapping[str, str]] = {
    "ha-policy": "queues are not mirrored by their arguments",
    "bind-nowait": "bindings are sent without waiting for answers in any case, in turns",
    "channel-use-mode": "a link publishes on a channel of its own, and asks on others",
}


def _read(what: str, value: object, also: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what} must be an object")
    found: dict[str, Any] = {}
    for key, each in value.items():
        if key in also:
            continue
        if key not in _KEYS:
            shown = printable(str(key))[:64]
            raise InvalidArgumentError(f"{what} has no key {shown!a}; there are {', '.join((*also, *_KEYS))}")
        found[key] = _KEYS[key](key, each)
    return found


def read_upstream(host: str, name: str, value: object, user: str, over: Mapping[str, Any] | None = None) -> Upstream:
    """Read the value of the parameter of an upstream.

    Args:
        host: the parameter's virtual host, which is also that of a URI without one.
        name: its name.
        value: its value.
        user: who has set it.
        over: checked values, which replace those.

    Raises:
        InvalidArgumentError: it is not valid.
    """
    found = {**_read("an upstream", value), **(over or {})}
    if "uri" not in found:
        raise InvalidArgumentError("Key 'uri' not found: an upstream needs it")
    return Upstream(
        name, user, parse_uris("uri", found["uri"], host), found.get("exchange", ""), found.get("queue", ""),
        found.get("consumer-tag", f"federation-link-{name}"[:255]), found.get("prefetch-count", 1000),
        found.get("reconnect-delay", 5.0), found.get("max-hops", 1), found.get("expires"), found.get("message-ttl"),
        found.get("queue-type", ""), AckMode(found.get("ack-mode", AckMode.ON_CONFIRM.value)),
        found.get("resource-cleanup-mode") == "never",
    )  # fmt: skip


def read_set(value: object) -> list[tuple[str, dict[str, Any]]]:
    """The names of a set's upstreams, with the values that replace theirs.

    Raises:
        InvalidArgumentError: it is not valid.
    """
    if not isinstance(value, list) or not 0 < len(value) <= MAX_SET:
        raise InvalidArgumentError(f"a set must be a list of 1 to {MAX_SET} objects, each with the key upstream")
    found = []
    for each in value:
        over = _read("an element of a set", each, ("upstream",))
        if "uri" in over:
            raise InvalidArgumentError("an element of a set has no uri: that is the upstream's")
        found.append((read_text("upstream", each.get("upstream")), over))
    return found


# ---- one link ----

LinkKey: TypeAlias = tuple[str, Kind, str, str, str]
"""Virtual host, kind and name of the federated object, name of the upstream, and the object's name there."""


class LinkStatus(NamedTuple):
    """What management shows of a link.

    Attributes:
        id: identifies it.
        host, kind, name: the exchange or queue.
        upstream: the upstream's name.
        remote: the name of the exchange or queue there.
        uri: the broker, without user and password.
        state, since, error: its state, when that began in seconds since 1970, and why it has failed.
        consumer_tag: of the consumer at the upstream.
        forwarded, pending: messages published here, and those not acknowledged at the upstream yet.
        failures: how often it has failed.
    """

    id: str
    host: str
    kind: str
    name: str
    upstream: str
    remote: str
    uri: str
    state: LinkState
    since: float
    error: str
    consumer_tag: str
    forwarded: int
    pending: int
    failures: int


class UpstreamLink(ABC):
    """A link. It is the owner of its two sides.

    Args:
        upstreams: all of them.
        key: identifies it.
        upstream: its upstream.
    """

    def __init__(self, upstreams: Upstreams, key: LinkKey, upstream: Upstream) -> None:
        self._upstreams, self.key, self.upstream = upstreams, key, upstream
        self._state, self._since, self._error = LinkState.STARTING, upstreams.clock(), ""
        self._source: Side | None = None
        self._dest: Side | None = None
        self._carrier: Carrier | None = None
        self._timer: Any = None
        self._open = self._forwarded = self._failures = 0
        self._is_gone = False
        self._is_warned = False  # of messages that cannot be published, since it runs
        self._payloads: dict[bytes, bytes] = {}
        self._logged = ""  # the failure that was logged last
        self._names: tuple[str, ...] = ()  # of this broker

    @property
    def status(self) -> LinkStatus:
        """Its status."""
        host, kind, name, upstream, remote = self.key
        uri = (self.upstream.uris[0] if self._source is None else self._source.uri).shown
        number = extend_crc32c(0, repr((host, kind.value, name, upstream, remote)).encode())
        return LinkStatus(
            f"{number:08x}", host, kind.value, name, upstream, remote, uri, self._state, self._since, self._error,
            self.upstream.consumer_tag, self._forwarded, 0 if self._carrier is None else self._carrier.pending,
            self._failures,
        )  # fmt: skip

    def __str__(self) -> str:
        host, kind, name, upstream, _ = self.key
        of = f'{kind.value} "{printable(name)}" of virtual host "{printable(host)}"'
        return f'The federation of {of} with upstream "{printable(upstream)}"'

    # ---- its life ----

    def start(self) -> None:
        """Connect both sides."""
        self._timer = None
        self._become(LinkState.STARTING)
        self._open = 0
        upstreams, upstream = self._upstreams, self.upstream
        broker, network, user = upstreams.broker, upstreams.network, upstream.user
        name = f"Federation link (upstream: {upstream.name}, {self.key[1].value}: {self.key[2]})"
        own = AmqpUri("tcp", "", 5672, self.key[0], None, None, None, None)
        self._source = Side(self, broker, network, upstream.uris, user, name)
        self._dest = Side(self, broker, network, (own,), user, name)
        self._source.connect()
        if self._dest is not None:  # otherwise the source has failed at once
            self._dest.connect()

    def restart(self) -> None:
        """Start again now, unless it is to end."""
        if not self._is_gone:
            self._end()
            self.start()

    def stop(self, *, is_for_good: bool = False) -> None:
        """End it; for good if the object is not federated with this upstream any more."""
        is_clean = self.upstream.keeps or self._source is None or self._state is not LinkState.RUNNING
        if is_for_good and not is_clean and self._source is not None:
            self._clean_up(self._source)
        self._is_gone = True
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._carrier is not None:
            self._carrier.stop()
            self._carrier = None
        self._ended()
        sides, self._source, self._dest = (self._source, self._dest), None, None
        for side in sides:
            if side is not None:
                side.close()

    def _become(self, state: LinkState, error: str = "") -> None:
        self._state, self._since, self._error = state, self._upstreams.clock(), error

    def fail(self, reason: str) -> None:
        """It has failed."""
        if self._is_gone or self._state is LinkState.ERROR:
            return
        self._failures += 1
        if reason != self._logged:
            self._logged = reason
            _LOG.warning("%s has failed: %s", self, printable(reason))
        self._become(LinkState.ERROR, reason)
        self._end()
        if self.upstream.delay:
            self._timer = self._upstreams.call_later(self.upstream.delay, self.start)

    # ---- its sides ----

    def side_open(self, side: PeerSide) -> None:  # noqa: ARG002 – both are needed
        """As `SideOwner.side_open`."""
        self._open += 1
        source, dest = self._source, self._dest
        if self._open < 2 or source is None or dest is None:
            return
        self._names = self._upstreams.names
        if self.upstream.ack_mode is AckMode.ON_CONFIRM:
            dest.channel.confirm_select(dest.expect(lambda _values: self._set_up(source)))
        else:
            self._set_up(source)

    def side_failed(self, side: PeerSide, reason: str) -> None:
        """As `SideOwner.side_failed`."""
        if side is self._source:
            self.fail(f"upstream {side.uri.shown}: {reason}")
        elif side is self._dest:
            self.fail(f"this broker: {reason}")

    def side_changed(self, side: PeerSide) -> None:
        """As `SideOwner.side_changed`: read from the upstream only while this broker takes messages."""
        if side is self._dest and self._source is not None:
            self._source.hold(is_held=side.is_full)

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `SideOwner.on_confirmed`."""
        if self._carrier is not None:
            self._carrier.on_confirmed(first, last, is_accepted=is_accepted)

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:  # noqa: ARG002
        """As `SideOwner.on_returned`: the queue here is gone."""
        self.fail(f"this broker: a message was returned: {values['reply_text']}")

    @abstractmethod
    def _set_up(self, source: Side) -> None:
        """Both sides are open: make what is needed at the upstream."""

    @abstractmethod
    def _clean_up(self, source: Side) -> None:
        """Delete it."""

    @abstractmethod
    def _ended(self) -> None:
        """The sides end now."""

    # ---- messages ----

    def _limit_and_run(self, source: Side, then: Callable[[], None]) -> None:
        """Everything is there: run."""
        dest, upstreams, upstream = self._dest, self._upstreams, self.upstream
        if dest is None:
            return
        self._carrier = Carrier(
            source, dest, upstream.ack_mode, upstream.delay, upstreams.call_soon, upstreams.call_later,
            _nothing, _ignored,
        )  # fmt: skip
        if upstream.ack_mode is not AckMode.NO_ACK:
            source.channel.qos(upstream.prefetch, source.expect(_ignored))
        source.delivers = True
        self._is_warned = False
        self._logged = ""
        self._become(LinkState.RUNNING)
        _LOG.info("%s runs: %s", self, source.uri.shown)
        if dest.is_full:
            source.hold(is_held=True)
        then()

    def _consume(self, source: Side, queue: str, tag: str, arguments: TypedMap = EMPTY_MAP) -> None:
        no_ack = self.upstream.ack_mode is AckMode.NO_ACK
        source.channel.consume(queue, tag, source.expect(_ignored), no_ack=no_ack, arguments=arguments)

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `SideOwner.on_delivery`: publish a message here."""
        carrier = self._carrier
        if carrier is None:
            return  # it stays unacknowledged, and returns to its queue
        is_acknowledged = self.upstream.ack_mode is not AckMode.NO_ACK
        try:
            delivered = decode_deliver(payload)
        except Amqp091Error as error:
            self.fail(f"a delivery of the upstream cannot be read: {error}")
            return
        try:
            changed = self._passed(delivered, header)
            if changed is None:
                carrier.drop(delivered.delivery_tag)
                return
            publish = self._payloads.get(delivered.routed)
            if publish is None:
                if len(self._payloads) >= _TARGETS_KEPT:
                    self._payloads.clear()
                publish = self._payloads[delivered.routed] = self._target(delivered)
            carrier.carry(delivered.delivery_tag, publish, changed, body, is_acknowledged=is_acknowledged)
        except Amqp091Error as error:
            if is_acknowledged:
                carrier.refuse(delivered.delivery_tag)
            if not self._is_warned:
                self._is_warned = True
                _LOG.warning("%s: %s", self, unpublished(delivered.key, error, is_lost=not is_acknowledged))
            return
        self._forwarded += 1

    def _passed(self, delivered: Delivered, header: bytes) -> bytes | None:
        """The content header with the hop of this link; None if the message is not to be published."""
        size, properties = decode_header(header)
        headers = properties.headers or EMPTY_MAP
        known = headers.get(RECEIVED_FROM)
        earlier = known.value if known is not None and isinstance(known.value, tuple) else ()
        hops = self._hops(delivered, earlier)
        if hops is None:
            return None
        entries = dict(headers.entries)
        entries[RECEIVED_FROM] = TypedValue(LIST, hops)
        return encode_header(
            size, properties._replace(headers=TypedMap(tuple(entries.items())), user_id=None)
        )  # fmt: skip

    @abstractmethod
    def _hops(self, delivered: Delivered, earlier: tuple[TypedValue, ...]) -> tuple[TypedValue, ...] | None:
        """The entries of `x-received-from`; None if the message is not to be published."""

    @abstractmethod
    def _target(self, delivered: Delivered) -> bytes:
        """basic.publish for a message."""

    def _peer_name(self, source: Side) -> str:
        """The name of the upstream's broker."""
        assert source.basic is not None
        properties = source.basic.server_properties
        return _text_in(properties, "cluster_name") if "cluster_name" in properties else source.uri.shown


def _nothing() -> None:
    """Nothing follows from it."""


def _ignored(_value: object) -> None:
    """It is not needed."""


def _is_expressible(arguments: TypedMap) -> bool:
    """Whether AMQP 0-9-1 can carry some arguments."""
    try:
        encode_method("queue.declare", arguments=arguments)
    except Amqp091Error:
        return False
    return True


def _entry(values: Mapping[str, Any]) -> TypedValue:
    return TypedValue(MAP, typed_map(values))


def _table_of(typed: TypedValue) -> TypedMap | None:
    return typed.value if isinstance(typed.value, TypedMap) else None


def _text_in(table: TypedMap, name: str) -> str:
    typed = table.get(name)
    value = None if typed is None else typed.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number_in(table: TypedMap, name: str) -> int:
    typed = table.get(name)
    return typed.value if typed is not None and isinstance(typed.value, int) else 0


def _was_at(hops: tuple[TypedValue, ...], names: tuple[str, ...], host: str) -> bool:
    """Whether a list of hops has a virtual host of a broker with one of these names."""
    tables = (table for table in map(_table_of, hops) if table is not None)
    return any(_text_in(table, "cluster-name") in names and _text_in(table, "vhost") == host for table in tables)


# ---- exchanges ----


class ExchangeLink(UpstreamLink):
    """A link of an exchange. It follows the exchange's bindings (`Origins`)."""

    def __init__(self, upstreams: Upstreams, key: LinkKey, upstream: Upstream) -> None:
        super().__init__(upstreams, key, upstream)
        self._peer = ""
        self._internal = ""  # the internal exchange that is in use
        self._reasons: dict[tuple[str, TypedMap], dict[Wanted | ExchangeBinding, int]] = {}  # -> hops
        self._bound: dict[tuple[str, TypedMap], int] = {}  # what the upstream has, with its hops
        self._changed: dict[tuple[str, TypedMap], None] = {}
        self._exchange: Exchange | None = None

    @property
    def _queue(self) -> str:
        """The queue at the upstream."""
        host, _, name, _, remote = self.key
        there = self.upstream.uris[0].vhost if self._source is None else self._source.uri.vhost
        part = f":{host}:{name}" if there != host else f":{name}" if name != remote else ""
        return f"federation: {remote} -> {self._names[0]}{part}"

    # ---- at the upstream ----

    def _set_up(self, source: Side) -> None:
        host = self._upstreams.broker.hosts.get(self.key[0])
        exchange = None if host is None else host.exchanges.get(self.key[2])
        if exchange is None:
            self.fail("the exchange does not exist")
            return
        self._exchange, self._peer = exchange, self._peer_name(source)
        remote = self.key[4]
        if len(self._queue.encode()) > _MAX_NAME:
            self.fail("the name of its queue at the upstream would be too long")
            return
        if not _is_expressible(exchange.arguments):
            self.fail("AMQP 0-9-1 cannot express the arguments of the exchange")
            return

        def looked(_values: Values, error: CodedError | None) -> None:
            if error is None:
                self._declare_queue(source)
            elif error.code == ReplyCode.NOT_FOUND:
                entries = tuple(each for each in exchange.arguments.entries if each[0] != INTERNAL)
                source.on_other_channel(
                    lambda channel, done: channel.declare_exchange(
                        remote, exchange.type_name, done, durable=exchange.durable, arguments=TypedMap(entries)
                    ),
                    declared,
                )
            else:
                self.fail(f"upstream {source.uri.shown}: {error}")

        def declared(_values: Values, error: CodedError | None) -> None:
            if error is None:
                self._declare_queue(source)
            else:
                self.fail(f"upstream {source.uri.shown}: {error}")

        source.on_other_channel(
            lambda channel, done: channel.declare_exchange(remote, "direct", done, passive=True), looked
        )

    def _declare_queue(self, source: Side) -> None:
        upstream = self.upstream
        given = {"x-expires": upstream.expires, "x-message-ttl": upstream.ttl, "x-queue-type": upstream.queue_type}
        arguments = {name: value for name, value in given.items() if value not in (None, "")}
        source.channel.declare_queue(
            self._queue, source.expect(lambda _values: self._find_suffix(source)), durable=True,
            arguments=typed_map({**arguments, INTERNAL_PURPOSE: "federation"}),
        )  # fmt: skip

    def _find_suffix(self, source: Side) -> None:
        """Use the internal exchange B if A is there, and otherwise A."""
        first, second = f"{self._queue} A", f"{self._queue} B"

        def looked(_values: Values, error: CodedError | None) -> None:
            new, old = (second, first) if error is None else (first, second)
            self._delete_exchange(source, new, lambda: self._make_internal(source, new, old))

        source.on_other_channel(
            lambda channel, done: channel.declare_exchange(first, "fanout", done, passive=True), looked
        )

    def _delete_exchange(self, source: Side, name: str, then: Callable[[], None]) -> None:
        source.on_other_channel(
            lambda channel, done: channel.call("exchange.delete", done, exchange=name), lambda _values, _error: then()
        )

    def _make_internal(self, source: Side, new: str, old: str) -> None:
        self._internal = new
        source.channel.declare_exchange(
            new, "fanout", source.expect(_ignored), durable=True, auto_delete=True, internal=True, arguments=_PURPOSE
        )
        source.channel.bind_queue(self._queue, new, "", source.expect(_ignored))
        assert self._exchange is not None
        self._reasons.clear()
        self._bound.clear()
        origins = self._exchange.federate()
        self._changed.clear()
        for wanted in origins.wanted():
            self._reason(wanted.key, wanted.arguments, wanted, self.upstream.max_hops)
        self._look_onward()
        origins.followers.append(self)
        turns = self._upstreams.broker.tick.turns
        turns.do(self, self._bind_in_turns(source))
        turns.after(self, lambda: self._bindings_made(source, old))

    def _bindings_made(self, source: Side, old: str) -> None:
        """The internal exchange is complete as soon as the upstream has answered this call: it answers in order."""
        if source is self._source:
            source.channel.qos(0, source.expect(lambda _values: self._delete_exchange(source, old, run)))

        def run() -> None:
            if source is self._source:
                self._limit_and_run(source, lambda: self._consume(source, self._queue, ""))

    def _clean_up(self, source: Side) -> None:
        if source.basic is not None and source.basic.phase is Phase.OPEN:
            channel = source.basic.open_channel(NO_OWNER)
            channel.call("queue.delete", _no_answer, queue=self._queue)
            channel.call("exchange.delete", _no_answer, exchange=self._internal)

    def _ended(self) -> None:
        if self._exchange is not None and self._exchange.origins is not None:
            followers = self._exchange.origins.followers
            if self in followers:
                followers.remove(self)
        self._changed.clear()

    # ---- its bindings ----

    def _reason(self, key: str, arguments: TypedMap, reason: Wanted | ExchangeBinding, hops: int) -> None:
        """There is a reason to bind this key, or, with 0 hops, there is none any more."""
        place = key, arguments
        reasons = self._reasons.setdefault(place, {})
        if hops:
            reasons[reason] = hops
        else:
            reasons.pop(reason, None)
            if not reasons:
                del self._reasons[place]
        self._changed[place] = None

    def wanted_changed(self, wanted: Wanted) -> None:
        """As `Follower.wanted_changed`."""
        if self._exchange is None or self._source is None:
            return
        is_wanted = self._exchange.federate().tags_for(wanted, "") is not None
        self._reason(wanted.key, wanted.arguments, wanted, self.upstream.max_hops if is_wanted else 0)
        self._work()

    def announce_again(self) -> None:
        """As `Follower.announce_again`: only other protocols ask."""

    def onward_changed(self) -> None:
        """A binding of the exchange to another one has changed."""
        if self._exchange is not None and self._source is not None and self._internal:
            self._look_onward()
            self._work()

    def _look_onward(self) -> None:
        """Find the reasons that are bindings to other exchanges."""
        assert self._exchange is not None
        is_headers, is_fanout = self._exchange.routing_type == "headers", self._exchange.routing_type == "fanout"
        there = {}
        for binding in self._exchange.onward or ():
            own = tuple(each for each in binding.arguments.entries if each[0] != BOUND_FROM)
            arguments = TypedMap(own) if is_headers else EMPTY_MAP
            there[binding] = ("" if is_fanout else binding.key, arguments, self._hops_left(binding))
        for (key, arguments), reasons in list(self._reasons.items()):
            for reason in [each for each in reasons if isinstance(each, ExchangeBinding) and each not in there]:
                self._reason(key, arguments, reason, 0)
        for binding, (key, arguments, hops) in there.items():
            if hops and self._reasons.get((key, arguments), {}).get(binding) != hops:
                self._reason(key, arguments, binding, hops)

    def _hops_left(self, binding: ExchangeBinding) -> int:
        """How far a binding is passed on: one of another link loses a hop, and never goes to where it has been."""
        most = self.upstream.max_hops
        typed = binding.arguments.get(BOUND_FROM)
        if typed is None or not isinstance(typed.value, tuple) or not typed.value:
            return most
        last = _table_of(typed.value[0])
        there = self._source.uri.vhost if self._source is not None else ""
        if last is None or _was_at(typed.value, (self._peer,), there):
            return 0
        return max(0, min(_number_in(last, "hops") - 1, most))

    def _work(self) -> None:
        turns = self._upstreams.broker.tick.turns
        if self._source is not None and not turns.has(self):
            turns.do(self, self._bind_in_turns(self._source))

    def _bind_in_turns(self, source: Side) -> Iterator[None]:
        while self._changed and source is self._source:
            for place in list(self._changed)[:_AT_ONCE]:
                del self._changed[place]
                self._bind(source, place)
            yield

    def _bind(self, source: Side, place: tuple[str, TypedMap]) -> None:
        hops = max(self._reasons.get(place, {}).values(), default=0)
        if hops and not _is_expressible(place[1]):
            _LOG.warning("%s: AMQP 0-9-1 cannot express a binding, which is left out", self)
            return
        before = self._bound.pop(place, 0)
        if hops:
            self._bound[place] = hops
        if hops != before:
            for method, each in (("exchange.bind", hops), ("exchange.unbind", before)):
                if each:
                    source.channel.call(
                        method, source.expect(_ignored), destination=self._internal, source=self.key[4],
                        routing_key=place[0], arguments=self._bound_from(place[1], each),
                    )  # fmt: skip

    def _bound_from(self, arguments: TypedMap, hops: int) -> TypedMap:
        host, _, name, _, _ = self.key
        entry = {
            "cluster-name": self._names[0], "vhost": host, "exchange": f"{host}:{name} {self._internal[-1:]}",
            "hops": hops,
        }  # fmt: skip
        return TypedMap((*arguments.entries, (BOUND_FROM, TypedValue(LIST, (_entry(entry),)))))

    # ---- messages ----

    def _hops(self, delivered: Delivered, earlier: tuple[TypedValue, ...]) -> tuple[TypedValue, ...] | None:
        source = self._source
        if source is None or len(earlier) >= self.upstream.max_hops:
            return None
        if _was_at(earlier, self._names, self.key[0]):
            return None
        entry = _entry({
            "uri": source.uri.shown, "exchange": self.key[4], "redelivered": delivered.redelivered,
            "cluster-name": self._peer, "vhost": source.uri.vhost,
        })  # fmt: skip
        return (entry, *earlier)

    def _target(self, delivered: Delivered) -> bytes:
        key = delivered.routed[1 + delivered.routed[0] :]
        return encode_publish(encode_routed(self.key[2], "")[:-1] + key)


def _no_answer(_values: Values, _error: CodedError | None) -> None:
    """The connection ends anyway."""


# ---- queues ----

_LAST: Final = typed_map({"x-priority": -1})


class QueueLink(UpstreamLink):
    """A link of a queue."""

    def __init__(self, upstreams: Upstreams, key: LinkKey, upstream: Upstream) -> None:
        super().__init__(upstreams, key, upstream)
        self._local: Queue | None = None
        self._is_consuming = False

    def _set_up(self, source: Side) -> None:
        host = self._upstreams.broker.hosts.get(self.key[0])
        queue = None if host is None else host.queues.get(self.key[2])
        if queue is None:
            self.fail("the queue does not exist")
            return
        self._local, self._is_consuming = queue, False
        if not _is_expressible(queue.arguments):
            self.fail("AMQP 0-9-1 cannot express the arguments of the queue")
            return
        source.ensure_queue(
            self.key[4], queue.arguments, lambda _count: self._limit_and_run(source, lambda: self._look(source))
        )

    def _clean_up(self, source: Side) -> None:
        """The queue at the upstream is not the link's own."""

    def _ended(self) -> None:
        """Nothing else is under way."""

    def _look(self, source: Side) -> None:
        """Consume while a consumer here is ready, and no message is."""
        queue = self._local
        if source is not self._source or queue is None or self._state is not LinkState.RUNNING:
            return
        try:
            is_idle = not queue.is_deleted and queue.has_idle_taker()
        except ModelError as error:  # the queue's journal cannot be written
            self.fail(f"this broker: {error}")
            return
        if is_idle is not self._is_consuming:
            self._is_consuming = is_idle
            if is_idle:
                self._consume(source, self.key[4], self.upstream.consumer_tag, _LAST)
            else:
                source.channel.cancel(self.upstream.consumer_tag, source.expect(_ignored))
        self._upstreams.call_later(_LOOK_SECONDS, lambda: self._look(source))

    def _hops(self, delivered: Delivered, earlier: tuple[TypedValue, ...]) -> tuple[TypedValue, ...] | None:
        source = self._source
        if source is None:
            return None
        here = {"uri": source.uri.shown, "virtual_host": source.uri.vhost, "queue": self.key[4]}
        rest, count = [], 1
        for each in earlier:
            table = _table_of(each)
            if table is not None and all(_text_in(table, name) == text for name, text in here.items()):
                count = _number_in(table, "visit-count") + 1
            else:
                rest.append(each)
        exchange_end = 1 + delivered.routed[0]
        entry = _entry({
            **here, "redelivered": delivered.redelivered,
            "exchange": delivered.routed[1:exchange_end].decode("utf-8", "replace"),
            "routing-key": delivered.routed[exchange_end + 1 :].decode("utf-8", "replace"), "visit-count": count,
        })  # fmt: skip
        return (entry, *rest[:MAX_HOPS])

    def _target(self, delivered: Delivered) -> bytes:  # noqa: ARG002 – all go to the queue
        return encode_publish(encode_routed("", self.key[2]), mandatory=True)


_LINKS: Final[Mapping[Kind, type[UpstreamLink]]] = {Kind.EXCHANGE: ExchangeLink, Kind.QUEUE: QueueLink}


# ---- all of them ----


class Upstreams:
    """The links of one broker's federated exchanges and queues: the component of their parameters.

    Args:
        broker: the model.
        network: connects their sides.
        call_soon: schedules a function for the next iteration of the event loop.
        call_later: schedules a function after a delay in seconds; returns a handle with `cancel`.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        broker: Broker,
        network: PeerNetwork,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Any],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.broker, self.network, self.clock = broker, network, clock
        self.call_soon, self.call_later = call_soon, call_later
        self._links: dict[tuple[str, Kind, str], dict[LinkKey, UpstreamLink]] = {}
        self._count = 0
        self._is_on = self._is_due = self._is_full = False
        self._quiet_until = 0.0  # until then it is not logged again
        self._refused: set[tuple[str, str, str]] = set()  # host, policy, upstream: the log has told them
        self._refused_before: set[tuple[str, str, str]] = set()  # likewise, before all were looked at again
        broker.parameters.register(UPSTREAM, self._check_upstream, self._changed)
        broker.parameters.register(UPSTREAM_SET, self._check_set, self._changed)
        broker.policies.checks.append(self._check_policy)

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which other brokers know this one; the first one in queues and headers."""
        name, tag = self.broker.parameters.cluster_name, self.broker.federation_tag
        return (name, tag) if name else (tag,)

    def start(self) -> None:
        """Start the links: the broker serves clients now."""
        self._is_on = True
        self.broker.events.watch(self._on_event, *_WATCHED)
        self.broker.policies.applied.append(self._look_at_all)
        self._look_at_all()

    def close(self) -> None:
        """End all links: the broker stops."""
        if self._is_on:
            self.broker.events.ignore(self._on_event)
        self._is_on = False
        for link in self._all():
            link.stop()
        self._links.clear()

    def _all(self) -> Iterator[UpstreamLink]:
        return (link for links in list(self._links.values()) for link in list(links.values()))

    def statuses(self) -> list[LinkStatus]:
        """The status of each, by virtual host, kind and name."""
        return sorted((link.status for link in self._all()), key=lambda each: each[1:6])

    def restart(self, number: str) -> None:
        """Start a link again now. Raises NotFoundError if there is none with this id."""
        for link in self._all():
            if link.status.id == number:
                link.restart()
                return
        raise NotFoundError(f'there is no federation link "{printable(number)}"')

    # ---- parameters ----

    def _check_upstream(self, parameter: Parameter) -> None:
        read_upstream(parameter.host, parameter.name, parameter.value, parameter.user)
        self._check_user(parameter)
        self._report_ignored(f'The upstream "{parameter.name}"', parameter.value)

    def _check_set(self, parameter: Parameter) -> None:
        if parameter.name == "all":
            raise InvalidArgumentError('the set "all" is that of all upstreams, and cannot be set')
        found = read_set(parameter.value)
        self._check_user(parameter)
        for _, over in found:
            self._report_ignored(f'The set of upstreams "{parameter.name}"', over)
        if self.broker.authorization.is_on:
            for name, _ in found:
                self._check_use(self.broker.parameters.get(parameter.host, UPSTREAM, name), parameter.user)

    def _report_ignored(self, what: str, given: Any) -> None:
        for key in _IGNORED_KEYS.keys() & given.keys():
            self.broker.arguments.field_ignored(printable(what), "the key", key, _IGNORED_KEYS[key])

    def _check_policy(self, policy: Policy) -> None:
        for name, _ in self._selected(policy.host, policy.definition):
            self._check_use(self.broker.parameters.get(policy.host, UPSTREAM, name), policy.user)

    def _check_use(self, upstream: Parameter | None, user: str) -> None:
        """Check that a user may use an upstream: its links publish as the one who has set it.

        Checked when a policy or a set names it, and whenever a policy is applied: the upstream may have been set or
        replaced since. "" stands for the broker and its administrators, on both sides.
        """
        if user and upstream is not None and upstream.user not in ("", user):
            raise UnauthorizedError(
                f'{user} is not allowed to use the upstream "{printable(upstream.name)}": {upstream.user} has set it, '
                "and its links publish as that user"
            )

    def _check_uses(self, upstream: Parameter, applied: Applied) -> None:
        """Check that those who have set a policy, and the set that it names, may use one of its upstreams."""
        if not self.broker.authorization.is_on:
            return
        self._check_use(upstream, applied.user)
        name = applied.definition.get(UPSTREAM_SET)
        found = None if name is None else self.broker.parameters.get(upstream.host, UPSTREAM_SET, str(name))
        if found is not None:
            self._check_use(upstream, found.user)

    def _check_user(self, parameter: Parameter) -> None:
        caller = Client(parameter.user, "", "", parameter.host)
        self.broker.authorization.check(caller, Action.CREATE, ObjectType.LINK, "")

    def _changed(self, _key: Key, _parameter: Parameter | None) -> None:
        self._look_at_all()

    def _selected(self, host: str, definition: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The names of the upstreams that a policy selects, with the values that a set replaces."""
        found: list[tuple[str, dict[str, Any]]] = []
        if UPSTREAM in definition:
            found = [(str(definition[UPSTREAM]), {})]
        elif UPSTREAM_SET in definition and definition[UPSTREAM_SET] != "all":
            parameter = self.broker.parameters.get(host, UPSTREAM_SET, str(definition[UPSTREAM_SET]))
            found = [] if parameter is None else read_set(parameter.value)
        elif UPSTREAM_SET in definition or UPSTREAM_PATTERN in definition:
            pattern = compile_pattern(UPSTREAM_PATTERN, str(definition.get(UPSTREAM_PATTERN, "")))
            all_of = self.broker.parameters.of(UPSTREAM)
            found = [(each.name, {}) for each in all_of if each.host == host and pattern.search(each.name)]
        return found

    def _upstreams_of(self, host: str, kind: Kind, name: str, applied: Applied) -> dict[LinkKey, Upstream]:
        """The upstreams that a policy gives an exchange or queue."""
        upstreams = {}
        for upstream_name, over in self._selected(host, applied.definition):
            parameter = self.broker.parameters.get(host, UPSTREAM, upstream_name)
            if parameter is None:
                continue
            try:
                self._check_uses(parameter, applied)
            except UnauthorizedError as error:
                key = (host, applied.policy, upstream_name)
                if key not in self._refused and key not in self._refused_before:
                    _LOG.warning(
                        'The policy "%s" of virtual host "%s" does not federate from all its upstreams: %s; if it '
                        "should, have that user or an administrator set the policy",
                        printable(applied.policy), printable(host), error,
                    )  # fmt: skip
                self._refused.add(key)
                continue
            upstream = read_upstream(host, parameter.name, parameter.value, parameter.user, over)
            remote = (upstream.exchange if kind is Kind.EXCHANGE else upstream.queue) or name
            upstreams[host, kind, name, upstream_name, remote] = upstream
        return upstreams

    # ---- what is federated ----

    def _on_event(self, event: Event, caller: Caller) -> None:
        if isinstance(event, ExchangeDeclare):
            if event.is_new:
                self._look_at(caller.vhost, Kind.EXCHANGE, event.exchange)
        elif isinstance(event, QueueDeclare):
            if event.is_new:
                self._look_at(caller.vhost, Kind.QUEUE, event.queue)
        elif isinstance(event, ExchangeDelete):
            self._gone(Kind.EXCHANGE, event.exchange)
        elif isinstance(event, QueueDelete):
            self._gone(Kind.QUEUE, event.queue)
        elif isinstance(event, ExchangeBind | ExchangeUnbind):
            for links in list(self._links.values()):
                for link in links.values():
                    if isinstance(link, ExchangeLink) and link.key[2] == event.source:
                        link.onward_changed()

    def _gone(self, kind: Kind, name: str) -> None:
        """One with this name is deleted. The broker itself deletes in any virtual host."""
        for place in [place for place in self._links if place[1:] == (kind, name)]:
            self._look_at(*place)

    def _look_at_all(self) -> None:
        turns = self.broker.tick.turns
        if self._is_on:
            self._is_due = True
            if not turns.has(self):
                turns.do(self, self._look_in_turns())

    def _look_in_turns(self) -> Iterator[None]:
        while self._is_due:
            self._is_due = False
            yield from self._look_once()

    def _look_once(self) -> Iterator[None]:
        count = 0
        self._refused_before, self._refused = self._refused, set()
        for place in list(self._links):
            self._look_at(*place)
            yield
        for host in list(self.broker.hosts.values()):
            found: list[Exchange | Queue] = [*host.exchanges.values(), *host.queues.values()]
            for each in found:
                if is_federated(each):
                    kind = Kind.QUEUE if isinstance(each, Queue) else Kind.EXCHANGE
                    self._look_at(host.name, kind, each.name)
                    yield
                count += 1
                if count % _SCANNED == 0:
                    yield

    def _look_at(self, host_name: str, kind: Kind, name: str) -> None:
        """Start and stop the links of one exchange or queue, as policies and parameters say now."""
        if not self._is_on:
            return
        place, host = (host_name, kind, name), self.broker.hosts.get(host_name)
        found: Exchange | Queue | None = None
        if host is not None:
            found = host.exchanges.get(name) if kind is Kind.EXCHANGE else host.queues.get(name)
        wanted: dict[LinkKey, Upstream] = {}
        if found is not None and is_federated(found):
            try:
                wanted = self._upstreams_of(host_name, kind, name, found.policy)
            except InvalidArgumentError as error:  # stored by another version
                _LOG.error('The %s "%s" is not federated: %s', kind.value, printable(name), error)
        links = self._links.get(place, {})
        for key, link in list(links.items()):
            if wanted.get(key) != link.upstream:
                link.stop(is_for_good=key not in wanted)
                del links[key]
                self._count -= 1
        for key, upstream in wanted.items():
            if key in links:
                continue
            if self._count >= MAX_LINKS:
                self._is_full = True
                now = self.broker.monotonic()
                if now >= self._quiet_until:
                    self._quiet_until = now + _QUIET_SECONDS
                    text = (
                        'The %s "%s" and perhaps others are not federated: there are %d links, and no more are possible'
                    )
                    _LOG.error(text, kind.value, printable(name), MAX_LINKS)
                break
            self._count += 1
            link = links[key] = _LINKS[kind](self, key, upstream)
            link.start()
        if links:
            self._links[place] = links
        else:
            self._links.pop(place, None)
        if self._is_full and self._count < MAX_LINKS:  # others may have found no place
            self._is_full = False
            self._look_at_all()


def is_federated(found: Exchange | Queue) -> bool:
    """Whether a policy says that it is, and it can be: what is exclusive or internal cannot."""
    definition = found.policy.definition
    if not any(key in definition for key in (UPSTREAM, UPSTREAM_SET, UPSTREAM_PATTERN)) or found.is_deleted:
        return False
    is_own = found.owner is not None if isinstance(found, Queue) else found.is_internal or not found.name
    return not is_own and found.arguments.get(INTERNAL_PURPOSE) is None
