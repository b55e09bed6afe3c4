"""A message in its AMQP 1.0 form: as received, as stored, and converted from another protocol's.

The sections before the body, exchange, routing key and body are kept as received; only delivery-annotations, which are
for one hop, are dropped. Of the sections only those fields that queues need are read; all others are decoded on demand.

The section header is the only one that a broker changes. Consumers get a new one:

    durable, priority    as the sender set them
    ttl                  the milliseconds that are left
    first-acquirer       whether no consumer has had it before, as far as that is known: after a crash it never is
    delivery-count       the sender's number, and how often it has returned to the queue after a delivery that has
                         failed: at least that after a crash, and at least 1 (`queues.queue`)

A message expires at the end of its ttl or at its absolute-expiry-time, whichever is earlier. That is stored with it. It
is stored as `u32 header size | u32 mark | u64 expiration | exchange | routing key | sections`
(formats/broker_records/README.md, 1.8); messages that qpidd stored have neither of the fields.

Headers that the broker adds, for example to a dead letter, are message-annotations, because the sender's sections never
change. In turn, annotations are headers for routing, selectors and consumers of other protocols; an application
property of the same name takes precedence, except over x-death, which is of the broker (`deaths`).

README.md has the mapping between the protocols, in both directions.

Source: the AMQP 1.0 specification as XML, part "messaging".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final
from uuid import UUID

from qstore.broker.model.dead_letters import X_DEATH
from qstore.broker.model.errors import HeaderTooLargeError, InvalidArgumentError
from qstore.broker.model.message import (
    CORRELATION_ID_HEADER,
    PLAIN_HANDLING,
    Content,
    Handling,
    LargeContent,
    Message,
    NewMessage,
    Properties,
    ReplyAddress,
    content_of,
    pieces_of,
)
from qstore.broker.model.queues.stream_log import OFFSET
from qstore.broker.model.run import KeyedRun, MessageRun
from qstore.broker.model.schedule import MAX_TIME
from qstore.broker.protocols.amqp_1_0.addresses import NodeKind, reply_text, strict_node, without_url
from qstore.broker.protocols.amqp_1_0.deaths import ANNOTATIONS, DEATHS, annotation_of, header_of, is_deaths
from qstore.broker.protocols.message import CONTENT_TYPES, MESSAGE_ID_HEADER, SUBJECT_HEADER, NativeMessage
from qstore.formats.amqp_0_10.maps import check_amount
from qstore.formats.amqp_0_10.maps import read_value as read_typed
from qstore.formats.amqp_0_10.types import Amqp010Error, wire_type_of
from qstore.formats.amqp_1_0.composites import encode_composite, list_bounds, section_list
from qstore.formats.amqp_1_0.neutral import is_simple, map_value, neutral_map, value_of
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    BODY_DESCRIPTORS,
    DATA,
    DESCRIPTOR_BYTES,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    VALUE,
    Sections,
    data_section,
    encode_section,
    has_too_many_values,
    section_value,
    section_value_at,
    split_sections,
)
from qstore.formats.amqp_1_0.values import Amqp10Error, Value, plain_key
from qstore.formats.broker_records import amqp_1_0_messages as records
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, header_size
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import (
    EMPTY_MAP,
    LIST,
    MAP,
    MAX_VALUES,
    STR16,
    UINT32,
    VBIN16,
    Family,
    TypedMap,
    TypedValue,
    is_utf8,
)

MAX_HEADER: Final = 0xFFFF
"""Bytes of the sections before the body that the broker makes or changes."""

MAX_KEY: Final = 255
"""Bytes of a routing key."""

_MOST_BYTES: Final = 4  # of a character
_MAX_TTL: Final = (1 << 32) - 1
_MAX_COUNT: Final = (1 << 32) - 1
_MAX_PRIORITY: Final = 255
_HEADERS_KEPT: Final = 1024
_EXPIRY_AT: Final = 8  # number of absolute-expiry-time among the properties
_FEATURE: Final = "x-"
_EXCHANGE: Final = "x-exchange"
_KEY: Final = "x-routing-key"
_COMPLEX: Final = "x-opt-"
_NULL: Final = Value("null", None)

DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
DELIVERY: Final = b"x-opt-delivery-"
"""How the names of both begin; that of no other annotation that the broker knows does."""

_WITH_ANNOTATIONS: Final = 4  # pieces of a large message in which its annotations are

_GROUP_AT: Final = 10  # number of group-id among the properties
GROUP_HEADER: Final = "JMSXGroupID"
GROUP_SEQUENCE_HEADER: Final = "JMSXGroupSeq"
"""The headers with the group of a message and its place there, as JMS names them; those of other protocols have them
among their headers."""

APP_ID_HEADER: Final = "x-amqp-app-id"
"""The application property for an app id, which AMQP 1.0 does not have."""


class HeaderFields(NamedTuple):
    """The fields of a section header that the broker uses.

    Attributes:
        is_durable: whether a durable queue stores the message.
        priority: its priority; 4 if it is absent.
        ttl: milliseconds; None if it is absent.
        delivery_count: how often it was delivered before it arrived.
    """

    is_durable: bool = False
    priority: int = 4
    ttl: int | None = None
    delivery_count: int = 0


NO_HEADER: Final = HeaderFields()


@lru_cache(maxsize=_HEADERS_KEPT)
def read_header(section: bytes) -> HeaderFields:
    """Decode a section header; most messages of a publisher have the same. Raises Amqp10Error."""
    fields = section_list("header", section, 0, len(section))
    return HeaderFields(fields["durable"], fields["priority"], fields.get("ttl"), fields["delivery_count"])


@lru_cache(maxsize=_HEADERS_KEPT)
def encode_header(is_durable: bool, priority: int, ttl: int | None, is_first: bool, count: int) -> bytes:
    """A section header; a default is left out."""
    fields = {
        "durable": is_durable,
        "priority": None if priority == NO_HEADER.priority else priority,
        "ttl": ttl,
        "first_acquirer": is_first,
        "delivery_count": count or None,
    }
    return encode_composite("header", fields)


class SectionMessage(NativeMessage):
    """A message of AMQP 1.0.

    Args:
        header: its sections before the body, without delivery-annotations.
        body: the other sections.
        sections: where the former are.
        exchange, routing_key: as in `Message`.
        routed: both, encoded as they are stored; empty for a message that qpidd stored.
        fields: of its section header.
        handling, expires_at: as in `Message`.

    Attributes:
        sections, routed, fields: as above.
    """

    __slots__ = ("fields", "routed", "sections")

    def __init__(
        self,
        header: bytes,
        body: Content,
        sections: Sections,
        exchange: str,
        routing_key: str,
        routed: bytes,
        fields: HeaderFields,
        handling: Handling,
        expires_at: float,
    ) -> None:
        self.header, self.body, self.sections, self.head = header, body, sections, None
        self.exchange, self.routing_key, self.routed = exchange, routing_key, routed
        self.size = len(header) + len(body)
        self.fields, self.is_persistent = fields, fields.is_durable
        self.handling, self.expires_at = handling, expires_at
        self._crc = -1

    # ---- stored ----

    def stored_begin(self) -> bytes:
        """As `NativeMessage.stored_begin`."""
        return records.encode_begin(ceil(self.expires_at * 1000), self.routed, self.size)

    def stored_head(self, body_size: int) -> bytes:
        """As `Message.stored_head`: all bodies of a run have the same size."""
        return records.encode_begin(0, self.routed, len(self.header) + body_size) + self.header

    def with_body(self, body: bytes, field: SizeField | None) -> SectionMessage:
        """As `Message.with_body`."""
        assert field is None
        return SectionMessage(
            self.header, body, self.sections, self.exchange, self.routing_key, self.routed, self.fields, self.handling,
            0.0,
        )  # fmt: skip

    def head_in(self, data: bytes, begin: int, end: int) -> bytes | None:
        """As `Message.head_in`, with the descriptor of its body: no other section begins there in one like it.

        A field of the stored data has the size of the message, so that all of them have the same.
        """
        head = super().head_in(data, begin, end)
        if head is None:
            return None
        lead = data[begin + len(head) : begin + len(head) + DESCRIPTOR_BYTES]
        return head + lead if lead in BODY_DESCRIPTORS else None

    def contents_of(self, bodies: Bodies, lead: bytes) -> Bodies | None:
        """As `Message.contents_of`: without the head of the data section, if each has just one, of the same size."""
        size, begin = bodies.largest, bodies.at + bodies.start(0)
        head = b""
        for head_bytes in (_SMALL_HEAD, _LARGE_HEAD):
            content = size + len(lead) - head_bytes
            if content >= 0 and len(found := data_section(content)) == head_bytes:
                head = found
        if not head or not head.startswith(lead):
            return None
        head, stride = head[len(lead) :], size + bodies.gap
        end = begin + stride * (bodies.count - 1) + 1
        for at in range(len(head)):
            if bodies.data[begin + at : end + at : stride] != head[at : at + 1] * bodies.count:
                return None
        kept = size - len(head)
        return Bodies(bodies.data, bodies.at + len(head), bodies.starts, bodies.gap + len(head), kept, kept)

    # ---- delivered ----

    def delivered_header(self, *, was_acquired: bool, returns: int, now: float, is_annotated: bool = False) -> bytes:
        """The sections before the body, as a consumer gets them.

        Args:
            was_acquired: whether a consumer may have had it before.
            returns: how often it has returned to its queue after a delivery that has failed.
            now: seconds since 1970.
            is_annotated: whether it has the annotations of RabbitMQ (`annotated`).
        """
        fields, ttl = self.fields, None
        if self.expires_at:
            ttl = min(max(0, ceil((self.expires_at - now) * 1000)), _MAX_TTL)
        count = min(fields.delivery_count + returns, _MAX_COUNT)
        make = encode_header if ttl is None else encode_header.__wrapped__
        own = make(fields.is_durable, min(self.handling.priority, _MAX_PRIORITY), ttl, not was_acquired, count)
        return own + (self.annotated() if is_annotated else self.header[self.sections.header[1] :])

    def annotated(self) -> bytes:
        """The sections before the body, but for the header, with RabbitMQ's annotations of exchange and routing key."""
        changes = {_EXCHANGE: TypedValue(STR16, self.exchange), _KEY: TypedValue(STR16, self.routing_key)}
        try:
            header, sections = self._annotated(changes)
        except HeaderTooLargeError:
            header, sections = self.header, self.sections
        return header[sections.header[1] :]

    # ---- properties ----

    def section_properties(self) -> dict[str, Any]:
        """The fields of its section properties; empty if there is none, or it cannot be decoded."""
        begin, end = self.sections.properties
        try:
            return section_list("properties", self.header, begin, end) if end else {}
        except Amqp10Error:
            return {}

    def _pairs(self, bounds: tuple[int, int]) -> tuple[tuple[Value, Value], ...]:
        """The entries of a section that is a map; empty if there is none, or it cannot be decoded."""
        if not bounds[1]:
            return ()
        try:
            found: tuple[tuple[Value, Value], ...] = section_value(self.header, bounds).value
        except Amqp10Error:
            return ()
        return found

    def _map(self, bounds: tuple[int, int]) -> TypedMap:
        """The same, as neutral values."""
        pairs = self._pairs(bounds)
        return neutral_map(pairs) if pairs else EMPTY_MAP

    def annotations(self) -> TypedMap:
        """Its message-annotations."""
        return self._map(self.sections.annotations)

    def application_properties(self) -> TypedMap:
        """Its application properties."""
        return self._map(self.sections.application)

    def _group(self) -> Sequence[tuple[str, TypedValue]]:
        """Its group-id and group-sequence as headers."""
        begin, end = self.sections.properties
        try:
            at = section_value_at(self.header, begin, end) if end else 0
            if not end or list_bounds("properties", self.header, at, end)[0] <= _GROUP_AT:
                return ()
        except Amqp10Error:
            return ()
        fields, found = self.section_properties(), []
        if fields.get("group_id") is not None:
            found.append((GROUP_HEADER, TypedValue(STR16, fields["group_id"])))
        if fields.get("group_sequence") is not None:
            found.append((GROUP_SEQUENCE_HEADER, TypedValue(UINT32, fields["group_sequence"])))
        return found

    def headers(self) -> TypedMap:
        """Its application properties, and with other names its message-annotations and its group."""
        own, annotations = self.application_properties(), self.annotations()
        others = (*annotations.entries, *self._group())
        if not others:
            return own
        deaths = annotations.get(DEATHS)
        if deaths is not None and is_deaths(deaths):
            others = (*(each for each in others if each[0] not in _OF_DEATHS), (X_DEATH, header_of(deaths)))
            own = TypedMap(tuple(each for each in own.entries if each[0] != X_DEATH))
        names = set(own)
        return TypedMap((*own.entries, *(entry for entry in others if entry[0] not in names)))

    def properties(self) -> Properties:
        """Its properties."""
        fields = self.section_properties()
        created, to = fields.get("creation_time"), _plain(fields.get("to"))
        return Properties(
            message_id=_plain(fields.get("message_id")),
            correlation_id=_plain(fields.get("correlation_id")),
            user_id=fields.get("user_id"),
            reply_to=_reply_address(_plain(fields.get("reply_to"))),
            content_type=fields.get("content_type"),
            content_encoding=fields.get("content_encoding"),
            subject=fields.get("subject"),
            created_at=None if created is None else created / 1000,
            ttl=self.fields.ttl,
            headers=self.headers(),
            to=to if isinstance(to, str) and to else None,
        )

    def content(self) -> Content | TypedValue:
        """Its content: the bytes of data sections, or a value of at most `MAX_VALUES`. Raises BrokerRecordError."""
        body = self.body
        if isinstance(body, LargeContent) and _is_large_data(body.pieces[0], 0, len(body)):
            return _from(body.pieces, _LARGE_HEAD)
        whole = bytes(records.MARK_BYTES) + b"".join(pieces_of(body))
        decoded = records.decode_sections(whole)
        assert decoded.amqp_1_0 is not None
        is_data = all(each.code in (DATA, FOOTER) for each in decoded.amqp_1_0.sections)
        if not is_data and has_too_many_values(whole, records.MARK_BYTES, len(whole)):
            raise BrokerRecordError(f"a body of more than {MAX_VALUES:,} values", records.MARK_BYTES)
        return records.content_of(whole, decoded.amqp_1_0)

    # ---- changed ----

    def _with(
        self, header: bytes, sections: Sections, exchange: str, routing_key: str, routed: bytes, expires_at: float
    ) -> SectionMessage:
        return SectionMessage(
            header, self.body, sections, exchange, routing_key, routed, self.fields, self.handling, expires_at
        )

    def expiring_at(self, moment: float) -> SectionMessage:
        """As `Message.expiring_at`."""
        routed = self.routed or records.encode_routed(self.exchange, self.routing_key)
        return self._with(self.header, self.sections, self.exchange, self.routing_key, routed, moment)

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> SectionMessage:
        """As `Message.readdressed`."""
        try:
            routed = records.encode_routed(exchange, routing_key)
        except BrokerRecordError as error:
            raise InvalidArgumentError(f"the message cannot be sent to exchange {exchange!a}: {error}") from error
        header, sections = self._annotated(changes)
        return self._with(header, sections, exchange, routing_key, routed, 0.0)

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> SectionMessage:
        """As `Message.with_headers`: they are message-annotations."""
        header, sections = self._annotated(changes)
        return self._with(header, sections, self.exchange, self.routing_key, self.routed, self.expires_at)

    def _annotated(self, changes: Mapping[str, TypedValue | None]) -> tuple[bytes, Sections]:
        """The sections before the body with other message-annotations. Raises HeaderTooLargeError."""
        if not changes:
            return self.header, self.sections
        old = self.sections
        replaced = _OF_DEATHS.union(changes) if X_DEATH in changes else changes
        section = _annotations_section(
            [(name, value) for name, value in changes.items() if value is not None],
            tuple(each for each in self._pairs(old.annotations) if plain_key(each[0]) not in replaced),
        )
        begin, end = old.annotations if old.annotations[1] else (old.header[1], old.header[1])
        header = self.header[:begin] + section + self.header[end:]
        if len(header) > max(MAX_HEADER, len(self.header)):
            raise HeaderTooLargeError(len(header), MAX_HEADER)
        return header, split_sections(header)


_OF_DEATHS: Final = frozenset((X_DEATH, DEATHS))  # both names: earlier versions have stored the former


def _annotations_section(
    entries: Sequence[tuple[str, TypedValue]], kept: tuple[tuple[Value, Value], ...] = ()
) -> bytes:
    """Message-annotations; their names are symbols, or strings where they are not ASCII. Empty for none.

    Args:
        entries: those to encode; x-death becomes x-opt-deaths.
        kept: further ones, before them.
    """
    pairs = kept
    for name, typed in entries:
        if name == X_DEATH and is_deaths(typed):
            pairs += ((Value("symbol", DEATHS), annotation_of(typed)),)
        else:
            pairs += ((Value("symbol" if name.isascii() else "string", name), value_of(typed)),)
    return encode_section(MESSAGE_ANNOTATIONS, Value("map", pairs)) if pairs else b""


def _plain(value: Any) -> Any:
    """A message id or an address; None if it is absent, or of a type that it cannot have."""
    if not isinstance(value, Value):
        return None
    return value.value if value.type_name in ("ulong", "uuid", "binary", "string") else None


def _reply_address(address: object) -> ReplyAddress | None:
    if not isinstance(address, str):
        return None
    address = without_url(address)
    try:
        node = strict_node(address)
    except InvalidArgumentError:
        node = None
    if node is None:
        name, slash, key = address.partition("/")
        return ReplyAddress(name, key) if slash and name else ReplyAddress("", address)
    return ReplyAddress("", node.name) if node.kind is NodeKind.QUEUE else ReplyAddress(node.name, node.key or "")


def is_one_section(content: bytes, at: int) -> bool:
    """Whether from a position to its end there is one section with bytes or text, as most messages have."""
    size, head = len(content) - at, content[at : at + _KIND_BYTES]
    if head in _SHORT_HEADS:
        return size >= _SMALL_HEAD and content[at + _KIND_BYTES] == size - _SMALL_HEAD
    if head not in _LONG_HEADS or size < _LARGE_HEAD:
        return False
    return int.from_bytes(content[at + _KIND_BYTES : at + _LARGE_HEAD], "big") == size - _LARGE_HEAD


_KIND_BYTES: Final = 4  # descriptor and type of a section
_SHORT_HEADS: Final = frozenset((b"\0Su\xa0", b"\0Sw\xa0", b"\0Sw\xa1"))
"""Those of a data section, and of an amqp-value that is a binary or a string, with sizes of one byte."""
_LONG_HEADS: Final = frozenset((b"\0Su\xb0", b"\0Sw\xb0", b"\0Sw\xb1"))


def _is_large_data(first: bytes, at: int, end: int) -> bool:
    """Whether from a position in the first piece to the end of all there is one data section with a long size."""
    size = end - at - _LARGE_HEAD
    return size > _MAX_SMALL and first.startswith(data_section(size), at)


_SMALL_HEAD: Final = len(data_section(0))
_LARGE_HEAD: Final = len(data_section(1 << 16))
_MAX_SMALL: Final = 0xFF  # bytes of a section with a short size


def _from(pieces: Sequence[bytes], at: int) -> Content:
    """What follows a position."""
    rest: list[bytes] = []
    for piece in pieces:
        if at < len(piece):
            rest.append(piece[at:] if at else piece)
        at = max(0, at - len(piece))
    return content_of(rest)


# ---- received and stored messages ----


def split_message(content: Content) -> tuple[bytes, Content, Sections]:
    """The sections before the body, without delivery-annotations, the body, and where the sections are.

    Many pieces are joined to check them, unless the body is one data section that begins in the first.

    Raises:
        Amqp10Error: it is not a message.
    """
    body: Content
    if isinstance(content, bytes):
        sections = split_sections(content)
        header, body = content[: sections.body_at], content[sections.body_at :]
    else:
        first = content.pieces[0]
        found = _before_large_data(first, len(content))
        if found is None:
            first = b"".join(content.pieces)
            found = split_sections(first)
        sections = found
        header, body = first[: sections.body_at], _from(content.pieces, sections.body_at)
    begin, end = sections.delivery
    if end:
        header = header[:begin] + header[end:]
        sections = split_sections(header)
    return header, body, sections


def _before_large_data(first: bytes, size: int) -> Sections | None:
    """The sections in the first piece of a message, if all that follows is one data section; None if it is not."""
    try:
        sections = split_sections(first, is_whole=False)
    except Amqp10Error:
        return None
    return sections if _is_large_data(first, sections.body_at, size) else None


def expiry_of(header: bytes, sections: Sections) -> float:
    """The absolute-expiry-time of a message in seconds since 1970, never before; 0.0 if it has none.

    Raises:
        Amqp10Error: it cannot be decoded.
    """
    begin, end = sections.properties
    if not end or list_bounds("properties", header, section_value_at(header, begin, end), end)[0] <= _EXPIRY_AT:
        return 0.0
    expiry: int = section_list("properties", header, begin, end).get("absolute_expiry_time") or 0
    return max(expiry, 1) / 1000 if expiry else 0.0


def mentions_delivery(content: Content) -> bool:
    """Whether a message, as it was received, may have one of the annotations of `delivery_time`."""
    pieces = pieces_of(content)
    if DELIVERY not in (pieces[0] if len(pieces) == 1 else b"".join(pieces[:_WITH_ANNOTATIONS])):
        return False
    try:
        header, _, sections = split_message(content)
    except Amqp10Error:
        return False  # it is refused when it is published
    begin, end = sections.annotations
    return header.find(DELIVERY, begin, end) >= 0


def delivery_time(message: SectionMessage, now: float) -> float:
    """When a message that has just arrived is to be delivered, in seconds since 1970; 0.0 for at once.

    Args:
        message: the message.
        now: the time, likewise.

    Raises:
        InvalidArgumentError: an annotation for that is not a number of milliseconds.
    """
    begin, end = message.sections.annotations
    if not end or message.header.find(DELIVERY, begin, end) < 0:
        return 0.0
    try:
        annotations = section_value(message.header, message.sections.annotations).value
    except Amqp10Error as error:
        raise InvalidArgumentError(f"the message-annotations cannot be decoded: {error}") from error
    found = {plain_key(key): value for key, value in annotations}
    for name, since in ((DELIVERY_TIME, 0.0), (DELIVERY_DELAY, now)):
        value = found.get(name)
        if value is None or value.value is None:
            continue
        if not isinstance(value.value, int) or isinstance(value.value, bool):
            text = f"the annotation {name} is of type {value.type_name}, not a number of milliseconds"
            raise InvalidArgumentError(text)
        due: float = since + min(value.value, MAX_TIME) / 1000
        return due if due > now else 0.0
    return 0.0


def fields_of(header: bytes, sections: Sections) -> HeaderFields:
    """The fields of a message's section header. Raises Amqp10Error."""
    begin, end = sections.header
    return read_header(header[begin:end]) if end else NO_HEADER


def subject_key(message: SectionMessage) -> str:
    """The routing key that its subject is: a longer one is cut, as other protocols have none of more than 255 bytes."""
    subject: str = message.section_properties().get("subject") or ""
    if len(subject) <= MAX_KEY // _MOST_BYTES:
        return subject
    raw = subject.encode("utf-8", "surrogateescape")
    return subject if len(raw) <= MAX_KEY else raw[:MAX_KEY].decode("utf-8", "ignore")


def restore_sections(data: bytes) -> SectionMessage:
    """Decode a stored message of AMQP 1.0, written by this broker or by qpidd.

    Of one that qpidd stored the exchange is unknown, because it was routed before. So is the start of its ttl: only an
    absolute expiry time makes it expire.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    end = HEADER_SIZE_BYTES + header_size(data)
    if end != len(data) or end < HEADER_SIZE_BYTES + records.MARK_BYTES:
        size = len(data) - HEADER_SIZE_BYTES
        raise BrokerRecordError(f"a header of {end - HEADER_SIZE_BYTES} bytes, but its sections take {size}", 0)
    record = records.split_record(data[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + _MAX_HEAD])
    begin = HEADER_SIZE_BYTES + record.sections_at
    try:
        content = data[begin:]
        sections = split_sections(content, is_ordered=False)
        header, body = content[: sections.body_at], content[sections.body_at :]
        fields, expiry = fields_of(header, sections), expiry_of(header, sections)
    except Amqp10Error as error:
        raise BrokerRecordError(error.what, begin + error.offset) from error
    handling = PLAIN_HANDLING if fields.priority == 4 else Handling(priority=fields.priority)
    if record.routed:
        return SectionMessage(
            header, body, sections, record.exchange or "", record.routing_key or "", record.routed, fields, handling,
            record.expires_ms / 1000,
        )  # fmt: skip
    message = SectionMessage(header, body, sections, "", "", b"", fields._replace(is_durable=True), handling, expiry)
    message.routing_key = subject_key(message)
    return message


_MAX_HEAD: Final = 12 + 2 * 256  # mark, expiration, exchange and routing key


# ---- conversion ----


def as_sections(message: Message) -> SectionMessage | None:
    """A message of another protocol in its 1.0 form; None if AMQP 1.0 cannot represent it."""
    try:
        neutral, content = _decoded(message)
        return _converted(message, neutral, _body_of(content))
    except (Amqp10Error, BrokerRecordError):
        return None


def run_as_sections(run: MessageRun) -> tuple[SectionMessage, bytes] | None:
    """What messages of a run, all of one size, have in common in their 1.0 form, and what their bodies begin with.

    None if they have to be converted singly, or AMQP 1.0 cannot represent them.
    """
    template = run.template
    if isinstance(template, SectionMessage):
        return template, run.lead
    if isinstance(run, KeyedRun):
        return None
    converted = template_as_sections(template)
    return None if converted is None else (converted, data_section(run.bodies.largest))


def template_as_sections(template: Message) -> SectionMessage | None:
    """The template of a run in its 1.0 form; None if its messages have to be converted singly."""
    return template if isinstance(template, SectionMessage) else template.converted(_template_as_sections)


def _template_as_sections(template: Message) -> SectionMessage | None:
    """The template of a run whose bodies become data sections; None if each has to be decoded."""
    try:
        neutral = template.properties()
        return None if neutral.content_type in _TYPES else _converted(template, neutral, b"")
    except (Amqp10Error, BrokerRecordError):
        return None


def _converted(message: Message, neutral: Properties, body: Content) -> SectionMessage:
    """A message of another protocol with these properties and this body. Raises Amqp10Error and BrokerRecordError."""
    header = encode_header(message.is_persistent, min(message.handling.priority, _MAX_PRIORITY), None, False, 0)
    header += _sections_of(neutral, message.routing_key if message.exchange else None)
    routed = records.encode_routed(message.exchange, message.routing_key)
    sections = split_sections(header)
    return SectionMessage(
        header, body, sections, message.exchange, message.routing_key, routed, fields_of(header, sections),
        message.handling, message.expires_at,
    )  # fmt: skip


def new_sections(new: NewMessage, body: bytes) -> SectionMessage:
    """Encode a transient message that the broker itself publishes.

    Args:
        new: all of it but its content.
        body: an encoded value, its content.

    Raises:
        Amqp10Error, BrokerRecordError: it cannot be encoded.
    """
    neutral = Properties(headers=new.headers, correlation_id=new.correlation_id, reply_to=new.reply_to)
    header = encode_header(False, PLAIN_HANDLING.priority, None, False, 0) + _sections_of(neutral)
    sections = split_sections(header)
    return SectionMessage(
        header, encode_section(VALUE, _NULL)[:-1] + body, sections, new.exchange, new.routing_key,
        records.encode_routed(new.exchange, new.routing_key), fields_of(header, sections), PLAIN_HANDLING, 0.0,
    )  # fmt: skip


def _decoded(message: Message) -> tuple[Properties, Content | TypedValue]:
    """Properties and content of a message; a map or list in the encoding of AMQP 0-10 as a value.

    Raises:
        BrokerRecordError: the content cannot be decoded.
    """
    neutral, content = message.properties(), message.content()
    kind = _TYPES.get(neutral.content_type or "")
    if kind is None or not isinstance(content, bytes):
        return neutral, content
    wire, size = wire_type_of(kind), len(content)
    try:
        check_amount(wire, content, 0, size)
        value, end = read_typed(wire, content, 0, size)
    except Amqp010Error:
        return neutral, content
    return (neutral._replace(content_type=None), TypedValue(kind, value)) if end == size else (neutral, content)


_TYPES: Final = {CONTENT_TYPES[Family.MAP]: MAP, CONTENT_TYPES[Family.LIST]: LIST}


def _body_of(content: Content | TypedValue) -> Content:
    """A content as body sections."""
    if isinstance(content, TypedValue):
        value = value_of(content)
        if value.type_name == "binary":
            content = value.value
        else:
            return encode_section(VALUE, value)
    assert not isinstance(content, TypedValue)
    head = data_section(len(content))
    if isinstance(content, bytes):
        return head + content
    return content_of((head, *content.pieces))


def _sections_of(neutral: Properties, key: str | None = None) -> bytes:
    """Message-annotations, properties and application-properties; `key` is the subject if there is none.

    Raises:
        Amqp10Error: a value cannot be encoded.
    """
    properties: list[tuple[str, TypedValue]] = []
    annotations: list[tuple[str, TypedValue]] = []
    message_id, subject = neutral.message_id, neutral.subject
    correlation_id = neutral.correlation_id
    group: dict[str, Any] = {}
    for name, typed in neutral.headers.entries:
        if name == GROUP_HEADER and isinstance(typed.value, str):
            group["group_id"] = typed.value
        elif name == GROUP_SEQUENCE_HEADER and type(typed.value) is int and 0 <= typed.value < 1 << 32:
            group["group_sequence"] = typed.value
        elif name == CORRELATION_ID_HEADER:
            correlation_id = typed.value
        elif name == MESSAGE_ID_HEADER and message_id is None:
            message_id = typed.value
        elif name == SUBJECT_HEADER and subject is None and isinstance(typed.value, str):
            subject = typed.value
        elif name == OFFSET or name in ANNOTATIONS or not is_simple(typed):
            annotations.append((name if name.startswith(_FEATURE) else _COMPLEX + name, typed))
        else:
            properties.append((name, typed))
    reply = neutral.reply_to
    fields: dict[str, Any] = {
        "message_id": _id_value(message_id),
        "user_id": neutral.user_id or None,
        "subject": subject or key or None,
        "reply_to": None if reply is None else Value("string", reply_text(*reply)),
        "correlation_id": _id_value(correlation_id),
        "content_type": _symbol(neutral.content_type),
        "content_encoding": _symbol(neutral.content_encoding),
        "creation_time": _time(neutral.created_at),
        **group,
    }
    if neutral.app_id:
        properties.append((APP_ID_HEADER, TypedValue(VBIN16, neutral.app_id)))
    encoded = _annotations_section(annotations)
    if any(value is not None for value in fields.values()):
        encoded += encode_composite("properties", fields)
    if properties:
        encoded += encode_section(APPLICATION_PROPERTIES, map_value(TypedMap(tuple(properties))))
    return encoded


def _id_value(value: object) -> Value | None:
    """A message id or correlation id."""
    match value:
        case None:
            return None
        case str():
            is_text = is_utf8(value)
            return Value("string", value) if is_text else Value("binary", value.encode("utf-8", "surrogateescape"))
        case UUID():
            return Value("uuid", value)
        case bool():
            return Value("string", str(value))
        case int() if 0 <= value < 1 << 64:
            return Value("ulong", value)
        case bytes():
            return Value("binary", value)
    return Value("string", str(value))


def _time(seconds: float | None) -> int | None:
    """A time as a timestamp; None if it has no room for it, as for one of another protocol in nanoseconds."""
    if seconds is None:
        return None
    milliseconds = int(seconds * 1000)
    return milliseconds if abs(milliseconds) < 1 << 63 else None


def _symbol(text: str | None) -> str | None:
    """A content type or encoding; None if it is not ASCII."""
    return text if text and text.isascii() else None
