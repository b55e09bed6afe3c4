"""Every method of AMQP 0-9-1, as one table, and the codec derived from it.

    class u16 | method u16 | fields, see `fields`

Names are the specification's, with underscores in those of fields; a name that is a Python keyword ("global" in
basic.qos) is passed as **{...}. The XML has older names for basic.recover-async (there basic.recover) and basic.recover
(basic.recover-sync). Extensions of RabbitMQ, which its clients use if the server's capabilities list them, are in
the table, too.

**Older versions** have the same frames, content headers and, but for some numbers, methods:

    version             AMQP 0-9-1    AMQP 0-9         AMQP 0-8, which calls itself 8-0
    header              0 0 9 1       1 1 0 9          1 1 8 0
    connection.close    50, 51        50, 51           60, 61
    channel.open-ok     channel id    channel id       no fields
    basic.recover       110, 111      102, 101         100, 101
      without answer    100           100              none
    access.request      none          10, 11           10, 11: tickets, which mean nothing
    not implemented                   file, stream, dtx, tunnel; of 0-9 message, of 0-8 test
    extensions          RabbitMQ's    none             queue.unbind, RabbitMQ's

0-8 is as Apache changed it. As it was published, it has the header 1 1 9 1, with which Python's amqplib begins;
basic.consume has no arguments then, and basic.recover (100) no answer.

Sources: the AMQP 0-9-1, 0-9 and 0-8 specifications as XML (`<method>`; the latter two with the changes of Apache Qpid);
RabbitMQ, "Protocol extensions"; amqplib 1.0.2, `client_0_8`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from qstore.formats.amqp_0_9_1.codes import Amqp091Error, MissingClassError
from qstore.formats.amqp_0_9_1.frames import FRAME, FRAME_END, METHOD, PROTOCOL_HEADER
from qstore.formats.amqp_0_9_1.tables import Field, decode_fields, encode_fields, make_fields, read_short_text, sized
from qstore.formats.named_tuple import NamedTuple


class Method(NamedTuple):
    """A method.

    Attributes:
        name: class and name, as in "queue.declare".
        code: class << 16 | number.
        fields: its fields.
        has_content: a content header and a body follow it.
        is_extension: it is RabbitMQ's.
    """

    name: str
    code: int
    fields: tuple[Field, ...]
    has_content: bool = False
    is_extension: bool = False

    @property
    def class_id(self) -> int:
        """The number of its class."""
        return self.code >> 16

    @property
    def method_id(self) -> int:
        """Its number in the class."""
        return self.code & 0xFFFF


def _method(class_id: int, method_id: int, name: str, fields: str = "", *, has_content: bool = False) -> Method:
    return Method(name, class_id << 16 | method_id, make_fields(fields), has_content)


def _extension(class_id: int, method_id: int, name: str, fields: str = "") -> Method:
    return Method(name, class_id << 16 | method_id, make_fields(fields), is_extension=True)


_CLOSE: Final = "reply_code:short reply_text:shortstr class_id:short method_id:short"
_ROUTED: Final = "exchange:shortstr routing_key:shortstr"
_EXCHANGE_BINDING: Final = (
    "ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table"
)

METHODS: Final = (
    _method(
        10, 10, "connection.start",
        "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr",
    ),
    _method(
        10, 11, "connection.start-ok", "client_properties:table mechanism:shortstr response:longstr locale:shortstr"
    ),
    _method(10, 20, "connection.secure", "challenge:longstr"),
    _method(10, 21, "connection.secure-ok", "response:longstr"),
    _method(10, 30, "connection.tune", "channel_max:short frame_max:long heartbeat:short"),
    _method(10, 31, "connection.tune-ok", "channel_max:short frame_max:long heartbeat:short"),
    _method(10, 40, "connection.open", "virtual_host:shortstr capabilities:shortstr insist:bit"),
    _method(10, 41, "connection.open-ok", "known_hosts:shortstr"),
    _method(10, 50, "connection.close", _CLOSE),
    _method(10, 51, "connection.close-ok"),
    _extension(10, 60, "connection.blocked", "reason:shortstr"),
    _extension(10, 61, "connection.unblocked"),
    _extension(10, 70, "connection.update-secret", "new_secret:longstr reason:shortstr"),
    _extension(10, 71, "connection.update-secret-ok"),
    _method(20, 10, "channel.open", "out_of_band:shortstr"),
    _method(20, 11, "channel.open-ok", "channel_id:longstr"),
    _method(20, 20, "channel.flow", "active:bit"),
    _method(20, 21, "channel.flow-ok", "active:bit"),
    _method(20, 40, "channel.close", _CLOSE),
    _method(20, 41, "channel.close-ok"),
    _method(
        40, 10, "exchange.declare",
        """ticket:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit nowait:bit
        arguments:table""",
    ),
    _method(40, 11, "exchange.declare-ok"),
    _method(40, 20, "exchange.delete", "ticket:short exchange:shortstr if_unused:bit nowait:bit"),
    _method(40, 21, "exchange.delete-ok"),
    _method(40, 22, "exchange.bound", "exchange:shortstr routing_key:shortstr queue:shortstr"),
    _method(40, 23, "exchange.bound-ok", "reply_code:short reply_text:shortstr"),
    _extension(40, 30, "exchange.bind", _EXCHANGE_BINDING),
    _extension(40, 31, "exchange.bind-ok"),
    _extension(40, 40, "exchange.unbind", _EXCHANGE_BINDING),
    _extension(40, 51, "exchange.unbind-ok"),
    _method(
        50, 10, "queue.declare",
        """ticket:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit
        arguments:table""",
    ),
    _method(50, 11, "queue.declare-ok", "queue:shortstr message_count:long consumer_count:long"),
    _method(
        50, 20, "queue.bind",
        "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table",
    ),
    _method(50, 21, "queue.bind-ok"),
    _method(50, 30, "queue.purge", "ticket:short queue:shortstr nowait:bit"),
    _method(50, 31, "queue.purge-ok", "message_count:long"),
    _method(50, 40, "queue.delete", "ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit"),
    _method(50, 41, "queue.delete-ok", "message_count:long"),
    _method(
        50, 50, "queue.unbind", "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table"
    ),
    _method(50, 51, "queue.unbind-ok"),
    _method(60, 10, "basic.qos", "prefetch_size:long prefetch_count:short global:bit"),
    _method(60, 11, "basic.qos-ok"),
    _method(
        60, 20, "basic.consume",
        """ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit
        arguments:table""",
    ),
    _method(60, 21, "basic.consume-ok", "consumer_tag:shortstr"),
    _method(60, 30, "basic.cancel", "consumer_tag:shortstr nowait:bit"),
    _method(60, 31, "basic.cancel-ok", "consumer_tag:shortstr"),
    _method(60, 40, "basic.publish", f"ticket:short {_ROUTED} mandatory:bit immediate:bit", has_content=True),
    _method(60, 50, "basic.return", f"reply_code:short reply_text:shortstr {_ROUTED}", has_content=True),
    _method(
        60, 60, "basic.deliver", f"consumer_tag:shortstr delivery_tag:longlong redelivered:bit {_ROUTED}",
        has_content=True,
    ),
    _method(60, 70, "basic.get", "ticket:short queue:shortstr no_ack:bit"),
    _method(
        60, 71, "basic.get-ok", f"delivery_tag:longlong redelivered:bit {_ROUTED} message_count:long", has_content=True
    ),
    _method(60, 72, "basic.get-empty", "cluster_id:shortstr"),
    _method(60, 80, "basic.ack", "delivery_tag:longlong multiple:bit"),
    _method(60, 90, "basic.reject", "delivery_tag:longlong requeue:bit"),
    _method(60, 100, "basic.recover-async", "requeue:bit"),
    _method(60, 110, "basic.recover", "requeue:bit"),
    _method(60, 111, "basic.recover-ok"),
    _extension(60, 120, "basic.nack", "delivery_tag:longlong multiple:bit requeue:bit"),
    _extension(85, 10, "confirm.select", "nowait:bit"),
    _extension(85, 11, "confirm.select-ok"),
    _method(90, 10, "tx.select"),
    _method(90, 11, "tx.select-ok"),
    _method(90, 20, "tx.commit"),
    _method(90, 21, "tx.commit-ok"),
    _method(90, 30, "tx.rollback"),
    _method(90, 31, "tx.rollback-ok"),
)  # fmt: skip

BY_NAME: Final[dict[str, Method]] = {method.name: method for method in METHODS}
BY_CODE: Final[dict[int, Method]] = {method.code: method for method in METHODS}


class Version(NamedTuple):
    """A version of the protocol.

    Attributes:
        name: as in "AMQP 0-9-1".
        header: the protocol header.
        number: major and minor number, in connection.start.
        by_name: name -> method.
        by_code: code -> method.
        missing: number -> name of classes that are not implemented.
        is_older: whether it is older than AMQP 0-9-1.
    """

    name: str
    header: bytes
    number: tuple[int, int]
    by_name: dict[str, Method]
    by_code: dict[int, Method]
    missing: dict[int, str]
    is_older: bool


AMQP_0_9_1: Final = Version("AMQP 0-9-1", PROTOCOL_HEADER, (0, 9), BY_NAME, BY_CODE, {}, is_older=False)


def _older(name: str, header: bytes, number: tuple[int, int], missing: dict[int, str], *changed: Method) -> Version:
    """An older version, with methods that are other ones there, or have the code 0 if there are none."""
    methods = {each.name: each for each in METHODS if not each.is_extension} | {each.name: each for each in changed}
    by_code = {each.code: each for each in methods.values() if each.code}
    by_name = {each.name: each for each in by_code.values()}
    return Version(name, header, number, by_name, by_code, missing, is_older=True)


_MISSING: Final = {70: "file", 80: "stream", 100: "dtx", 110: "tunnel"}
_ACCESS: Final = (
    _method(30, 10, "access.request", "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit"),
    _method(30, 11, "access.request-ok", "ticket:short"),
)

_CHANGED_IN_0_8: Final = (
    *_ACCESS,
    _method(10, 60, "connection.close", _CLOSE),
    _method(10, 61, "connection.close-ok"),
    _method(20, 11, "channel.open-ok"),
)

AMQP_0_9: Final = _older(
    "AMQP 0-9", b"AMQP\x01\x01\x00\x09", (0, 9), _MISSING | {120: "message"},
    *_ACCESS,
    _method(60, 102, "basic.recover", "requeue:bit"),
    _method(60, 101, "basic.recover-ok"),
)  # fmt: skip
AMQP_0_8: Final = _older(
    "AMQP 0-8", b"AMQP\x01\x01\x08\x00", (8, 0), _MISSING | {120: "test"},
    *_CHANGED_IN_0_8,
    _method(60, 100, "basic.recover", "requeue:bit"),
    _method(60, 101, "basic.recover-ok"),
    _method(0, 0, "basic.recover-async"),
)  # fmt: skip
AMQP_0_8_PUBLISHED: Final = _older(
    "AMQP 0-8", b"AMQP\x01\x01\x09\x01", (8, 0), AMQP_0_8.missing,
    *_CHANGED_IN_0_8,
    _method(
        60, 20, "basic.consume",
        "ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit",
    ),
    _method(60, 100, "basic.recover-async", "requeue:bit"),
    _method(0, 0, "basic.recover"),
    _method(0, 0, "basic.recover-ok"),
)  # fmt: skip

_CODE: Final = struct.Struct(">I")
PUBLISH: Final = _CODE.pack(BY_NAME["basic.publish"].code)
"""The bytes with which basic.publish begins."""
ACK: Final = _CODE.pack(BY_NAME["basic.ack"].code)
"""Likewise, basic.ack."""
START_OK: Final = _CODE.pack(BY_NAME["connection.start-ok"].code)
"""Likewise, connection.start-ok."""
_FIELDS_AFTER_PROPERTIES: Final = BY_NAME["connection.start-ok"].fields[1:]

_DELIVER_HEAD: Final = PUBLISH[:2] + BY_NAME["basic.deliver"].method_id.to_bytes(2, "big")
_GET_OK_HEAD: Final = _CODE.pack(BY_NAME["basic.get-ok"].code)
_TAG: Final = struct.Struct(">QB")
_ACK: Final = struct.Struct(">IQB")
_ACK_HEAD: Final = FRAME.size + 4  # bytes of a frame before the tag
_ACK_FRAME: Final = struct.Struct(f">{_ACK_HEAD}sQBB")
ACK_FRAME_SIZE: Final = _ACK_FRAME.size
_LAST_TAG: Final = (1 << 64) - 1
_ALL_BYTES: Final = bytes(range(256))
_ACK_CODE: Final = BY_NAME["basic.ack"].code
_NACK_CODE: Final = BY_NAME["basic.nack"].code
_TICKET_END: Final = 6  # of class, method and ticket


class Publish(NamedTuple):
    """The fields of basic.publish that mean something."""

    exchange: str
    routing_key: str
    is_mandatory: bool
    is_immediate: bool


# --------------------------------------------------------------------------------------------- encoding


def encode_method(method_name: str, version: Version = AMQP_0_9_1, /, **values: Any) -> bytes:
    """The payload of a method's frame.

    Args:
        method_name: of the method.
        version: the peer's.
        values: its fields; those that are not given are 0, empty or false.

    Raises:
        Amqp091Error: there is no such method or field, or a field cannot carry its value.
    """
    method = version.by_name.get(method_name)
    if method is None:
        raise Amqp091Error(f"there is no method {method_name}")
    return _CODE.pack(method.code) + encode_fields(method.fields, values)


def encode_ack(delivery_tag: int, *, multiple: bool) -> bytes:
    """As `encode_method` of basic.ack, which confirms what was published."""
    return _ACK.pack(_ACK_CODE, delivery_tag, multiple)


def ack_head(channel: int) -> bytes:
    """What the frames of basic.ack on a channel begin with."""
    return FRAME.pack(METHOD, channel, _ACK.size) + ACK


def encode_ack_frame(head: bytes, delivery_tag: int, *, multiple: bool) -> bytes:
    """As `encode_ack`, with its frame, given its `ack_head`. Compiled, it takes a quarter of the time of a `struct`."""
    return head + (delivery_tag << 16 | multiple << 8 | FRAME_END).to_bytes(10, "big")


def encode_nack(delivery_tag: int) -> bytes:
    """As `encode_method` of basic.nack, for a published message that is lost."""
    return _ACK.pack(_NACK_CODE, delivery_tag, 0)


def decode_ack(payload: bytes) -> tuple[int, bool]:
    """Delivery tag and `multiple` of a basic.ack; for a payload that begins with ACK.

    Raises:
        Amqp091Error: it has another size.
    """
    if len(payload) != _ACK.size:
        raise Amqp091Error(f"basic.ack has {len(payload)} bytes, not {_ACK.size}", len(payload))
    _, tag, bits = _ACK.unpack(payload)
    return tag, bits & 1 != 0


def count_acks(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Basic.ack methods that follow each other, without `multiple` and with consecutive delivery tags.

    Args:
        data: frames.
        at: where the frame of the first begins, which begins with ACK.
        end: where to stop, at the latest.

    Returns:
        The first delivery tag, and how many there are.
    """
    first = expected = _ACK_FRAME.unpack_from(data, at)[1]
    head, left = data[at : at + _ACK_HEAD], (end - at) // ACK_FRAME_SIZE
    while left > 0 and expected <= _LAST_TAG:
        low = expected & 0xFF
        count = min(left, 256 - low)  # up to where more than the last byte of the tag changes
        wanted = bytearray(_ACK_FRAME.pack(head, expected, 0, FRAME_END) * count)
        wanted[_ACK_HEAD + 7 :: ACK_FRAME_SIZE] = _ALL_BYTES[low : low + count]
        if data[at : at + len(wanted)] != wanted:
            return first, expected - first + _equal_acks(data, at, bytes(wanted))
        expected += count
        at += len(wanted)
        left -= count
    return first, expected - first


def multiple_acks(data: bytes, at: int, end: int) -> list[int]:
    """The delivery tags of basic.ack methods that follow each other, with `multiple`, as long as they ascend from 1 on.

    Args:
        data: frames.
        at: where the frame of the first begins, which begins with ACK.
        end: where to stop, at the latest.
    """
    tags: list[int] = []
    last, head = 0, data[at : at + _ACK_HEAD]
    while at + ACK_FRAME_SIZE <= end:
        begin, tag, multiple, frame_end = _ACK_FRAME.unpack_from(data, at)
        if begin != head or multiple != 1 or frame_end != FRAME_END or tag <= last:
            break
        tags.append(tag)
        last, at = tag, at + ACK_FRAME_SIZE
    return tags


def _equal_acks(data: bytes, at: int, wanted: bytes) -> int:
    """How many of these frames are in the data, from the first on; not all of them."""
    least, most = 0, len(wanted) // ACK_FRAME_SIZE
    while most - least > 1:
        count = (least + most) // 2
        if data.startswith(wanted[least * ACK_FRAME_SIZE : count * ACK_FRAME_SIZE], at + least * ACK_FRAME_SIZE):
            least = count
        else:
            most = count
    return least


def deliver_start(consumer_tag: bytes) -> bytes:
    """The constant part of each basic.deliver to a consumer.

    Args:
        consumer_tag: at most 255 bytes.
    """
    return _DELIVER_HEAD + bytes((len(consumer_tag),)) + consumer_tag


def encode_deliver(start: bytes, delivery_tag: int, redelivered: bool, routed: bytes) -> bytes:
    """As `encode_method` of basic.deliver.

    Args:
        start: from `deliver_start`.
        delivery_tag: of the delivery.
        redelivered: whether the message may have been delivered before.
        routed: exchange and routing key, from `encode_routed`.
    """
    return start + _TAG.pack(delivery_tag, redelivered) + routed


def encode_get_ok(delivery_tag: int, redelivered: bool, routed: bytes, message_count: int) -> bytes:
    """As `encode_method` of basic.get-ok; the arguments are as of `encode_deliver`, and the messages that are left."""
    return _GET_OK_HEAD + _TAG.pack(delivery_tag, redelivered) + routed + _CODE.pack(message_count)


def encode_routed(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key, as the last fields of basic.deliver.

    Raises:
        Amqp091Error: one is longer than 255 bytes.
    """
    return encode_fields(_ROUTED_FIELDS, {"exchange": exchange, "routing_key": routing_key})


_ROUTED_FIELDS: Final = make_fields(_ROUTED)


# --------------------------------------------------------------------------------------------- decoding


def decode_start_ok(payload: bytes) -> tuple[bytes, dict[str, Any]]:
    """The client properties of a connection.start-ok, as an encoded field table, and its other fields.

    Raises:
        Amqp091Error: the bytes are not one complete method.
    """
    start = _CODE.size
    _, stop = sized(payload, start, len(payload), "table")
    return payload[start:stop], decode_fields(_FIELDS_AFTER_PROPERTIES, payload, stop)


def decode_method(payload: bytes, version: Version = AMQP_0_9_1) -> tuple[Method, dict[str, Any]]:
    """The method in a frame's payload, and all its fields.

    Raises:
        MissingClassError: it is of a class of `Version.missing`.
        Amqp091Error: the bytes are not one complete method.
    """
    if len(payload) < _CODE.size:
        raise Amqp091Error(f"a method of {len(payload)} bytes is too short")
    code = _CODE.unpack_from(payload)[0]
    method = version.by_code.get(code)
    if method is None:
        if code >> 16 in version.missing:
            raise MissingClassError(f"class {version.missing[code >> 16]} is not implemented")
        raise Amqp091Error(f"there is no method {code & 0xFFFF} of class {code >> 16}")
    return method, decode_fields(method.fields, payload, _CODE.size)


def decode_publish(payload: bytes) -> Publish:
    """As `decode_method` of basic.publish; for a payload that begins with PUBLISH.

    Raises:
        Amqp091Error: the fields are not complete, or others follow.
    """
    end = len(payload)
    if end < _TICKET_END:
        raise Amqp091Error("basic.publish ends within its fields", end)
    exchange, offset = read_short_text(payload, _TICKET_END, end)
    routing_key, offset = read_short_text(payload, offset, end)
    if offset + 1 != end:
        raise Amqp091Error("basic.publish does not end with its last field", offset)
    bits = payload[offset]
    return Publish(exchange, routing_key, bits & 1 != 0, bits & 2 != 0)
