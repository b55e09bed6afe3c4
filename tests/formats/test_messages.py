"""Stored messages: qpidd's own bytes, round trips, AMQP 1.0 sections, hostile bytes."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_9_1.methods import encode_routed as encode_short_strings
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.amqp_1_0.values import (
    MAX_DEPTH,
    Amqp10Error,
    Described,
    Value,
    encode_value,
    plain_value,
    read_value,
)
from qstore.formats.broker_records import amqp_0_9_1_messages, amqp_1_0_messages
from qstore.formats.broker_records.amqp_1_0_messages import MAX_DECODED_SECTION, content_of, encode_routed
from qstore.formats.broker_records.message_header import MessageHeader, UnknownStruct
from qstore.formats.broker_records.messages import (
    decode_message_header,
    encode_message,
    frames_problem,
    header_size,
    header_structs,
)
from qstore.formats.broker_records.variable_fields import variable_fields
from qstore.formats.errors import BrokerRecordError
from qstore.formats.plain import plain_map
from qstore.formats.values import TYPES, TypedValue, typed_map
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS
from tests.formats.plain_tables import map_types
from tests.support.profiles import examples

METHOD = bytes.fromhex("0b01001d0001000100000000 0401010101000a".replace(" ", "")) + b"amq.direct"
HEADER_FRAME = bytes.fromhex("0302004e0001000100000000")
MESSAGE_PROPERTIES = (
    bytes.fromhex("0000002604031401")
    + b"\0\x02c1\x0atext/plain"
    + bytes.fromhex("0000000f000000010161310000000000000001")
)
DELIVERY_PROPERTIES = bytes.fromhex("00000014040118030702") + b"\x0aamq.direct\x02k1"
VECTOR = METHOD + HEADER_FRAME + MESSAGE_PROPERTIES + DELIVERY_PROPERTIES
VECTOR_1_0 = (
    bytes.fromhex("0000000000 5370c00402415000 005374c10602a10161 54010053 77a107".replace(" ", "")) + b"hello10"
)


def decode_data(data: bytes) -> tuple[MessageHeader, bytes]:
    content = 4 + header_size(data)
    return decode_message_header(data[4:content]), data[content:]


def frames(*structs: bytes) -> bytes:
    body = b"".join(structs)
    return METHOD + struct.pack(">BBHBBHI", 3, 2, 12 + len(body), 0, 1, 1, 0) + body


def test_the_0_10_vector() -> None:
    assert len(VECTOR) == 0x6B
    header = decode_message_header(VECTOR)
    assert header == MessageHeader(
        protocol="0-10", exchange="amq.direct", routing_key="k1", message_id=None, delivery_mode=2, priority=7,
        ttl=None, timestamp=None, expiration=None, discard_unroutable=False, immediate=False, redelivered=False,
        content_type="text/plain", content_encoding=None, correlation_id=b"c1", reply_to=None, user_id=None,
        app_id=None, content_length=None, headers={"a": 1}, header_types={"a": "int64"}, resume_id=None,
        resume_ttl=None, destination="amq.direct", accept_mode=None, acquire_mode=None, unknown_structs=(),
        amqp_1_0=None,
    )  # fmt: skip


def test_the_0_10_vector_is_made_again() -> None:
    data = encode_message(
        b"hello",
        destination="amq.direct",
        message_properties={"correlation_id": b"c1", "content_type": "text/plain", "application_headers": {"a": 1}},
        delivery_properties={"priority": 7, "delivery_mode": 2, "exchange": "amq.direct", "routing_key": "k1"},
        channel=1,
        sync=True,
    )
    assert data == b"\0\0\0\x6b" + VECTOR + b"hello"


def test_the_header_frame_is_marked_as_the_last_segment_where_no_content_follows() -> None:
    marks = [
        encode_message(content, last_segment=last_segment)[4 + 19]
        for content, last_segment in ((b"x", None), (b"", None), (b"", False), (b"x", True))
    ]
    assert marks == [0x03, 0x07, 0x03, 0x07]


NAMES = st.text(max_size=20) | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
U8, U64 = st.integers(0, 255), st.integers(0, 2**64 - 1)
HEADERS = st.dictionaries(NAMES, st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.none(), max_size=3)
DELIVERY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "discard_unroutable": st.booleans(), "immediate": st.booleans(), "redelivered": st.booleans(), "priority": U8,
    "delivery_mode": U8, "ttl": U64, "timestamp": U64, "expiration": U64, "exchange": NAMES, "routing_key": NAMES,
    "resume_id": NAMES, "resume_ttl": U64,
}  # fmt: skip
MESSAGE_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "content_length": U64, "message_id": st.uuids(), "correlation_id": st.binary(max_size=20),
    "reply_to": st.tuples(NAMES, NAMES), "content_type": NAMES, "content_encoding": NAMES,
    "user_id": st.binary(max_size=20), "app_id": st.binary(max_size=20), "application_headers": HEADERS,
}  # fmt: skip


@given(
    st.fixed_dictionaries({}, optional=DELIVERY_FIELDS),
    st.fixed_dictionaries({}, optional=MESSAGE_FIELDS),
    NAMES,
    st.binary(max_size=20),
    U8,
)
def test_every_combination_of_fields_comes_back(
    delivery: dict[str, Any], message: dict[str, Any], destination: str, body: bytes, channel: int
) -> None:
    data = encode_message(
        body, destination=destination, delivery_properties=delivery, message_properties=message, channel=channel
    )
    header, content = decode_data(data)
    assert content == body
    expected = {name: value for name, value in (delivery | message).items() if name != "application_headers"}
    if "message_id" in expected:
        expected["message_id"] = str(expected["message_id"])
    table = typed_map(message.get("application_headers", {}))
    expected |= {"protocol": "0-10", "destination": destination, "unknown_structs": ()}
    expected |= {"headers": plain_map(table), "header_types": map_types(table)}
    expected.setdefault("exchange", destination)
    for flag in ("discard_unroutable", "immediate", "redelivered"):
        expected.setdefault(flag, False)
    assert header._asdict() == dict.fromkeys(MessageHeader._fields) | expected


def test_frame_bits_channel_and_order_of_the_structs_do_not_matter() -> None:
    other = frames(DELIVERY_PROPERTIES, MESSAGE_PROPERTIES)
    for position in (0, 6, 7, len(METHOD), len(METHOD) + 6):
        other = other[:position] + b"\x07" + other[position + 1 :]
    assert decode_message_header(other) == decode_message_header(VECTOR)


def test_the_destination_stands_in_for_a_missing_exchange() -> None:
    assert decode_message_header(METHOD).exchange == "amq.direct"
    assert decode_data(encode_message(b"", destination=None))[0].exchange == ""
    accepted = b"\x0b\x01\0\x14\0\1\0\0\0\0\0\0\x04\x01\x01\0\x06\x00\x01\x02"
    header = decode_message_header(accepted)
    assert (header.destination, header.accept_mode, header.acquire_mode) == (None, 1, 2)


def test_unknown_structs_are_stepped_over_and_listed() -> None:
    fragment = bytes.fromhex("000000040402 0300".replace(" ", ""))
    foreign = bytes.fromhex("00000007 7a7a ffff 616263".replace(" ", ""))
    header = decode_message_header(frames(fragment, MESSAGE_PROPERTIES, foreign, DELIVERY_PROPERTIES))
    first = len(METHOD) + 12
    second = first + len(fragment) + len(MESSAGE_PROPERTIES)
    assert header.unknown_structs == (UnknownStruct(0x0402, first, 8), UnknownStruct(0x7A7A, second, 11))
    assert header._replace(unknown_structs=()) == decode_message_header(VECTOR)


def test_of_two_structs_of_one_kind_the_last_counts() -> None:
    def message_id(number: int) -> bytes:
        return bytes.fromhex("00000014 0403 0200") + bytes([number]) * 16

    for _ in range(2):  # the second time from what the first remembered
        header = decode_message_header(frames(message_id(1), message_id(2), DELIVERY_PROPERTIES))
        assert header.message_id == str(uuid.UUID(bytes=b"\2" * 16))
        header = decode_message_header(frames(message_id(1), DELIVERY_PROPERTIES, message_id(2)))
        assert header.message_id == str(uuid.UUID(bytes=b"\2" * 16))


def test_unknown_fields_after_the_known_ones_are_stepped_over() -> None:
    longer = bytes.fromhex("00000009 0401 10f0 02 01020304".replace(" ", ""))
    assert decode_message_header(frames(longer)).delivery_mode == 2
    with pytest.raises(BrokerRecordError, match="delivery-properties does not end where"):
        decode_message_header(frames(bytes.fromhex("00000009 0401 1000 02 01020304".replace(" ", ""))))


@examples(400)
@given(st.data())
def test_hostile_headers_are_read_or_refused(data: st.DataObject) -> None:
    header = bytearray(data.draw(st.sampled_from([VECTOR, VECTOR_1_0])))
    for _ in range(data.draw(st.integers(0, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    hostile = bytes(header[: data.draw(st.integers(0, len(header)))])
    for raw in (hostile, bytes(4) + data.draw(st.binary(max_size=60)), data.draw(st.binary(max_size=60))):
        offset = 0
        try:
            decode_message_header(raw)
        except BrokerRecordError as error:
            offset = error.offset
        assert 0 <= offset <= len(raw)


@pytest.mark.parametrize("cut", [cut for cut in range(len(VECTOR)) if cut != len(METHOD)])
def test_every_truncation_is_refused(cut: int) -> None:
    with pytest.raises(BrokerRecordError):
        decode_message_header(VECTOR[:cut])


def test_bytes_after_the_header_frame_are_refused() -> None:
    with pytest.raises(BrokerRecordError):
        decode_message_header(VECTOR + b"\0")


def test_a_message_without_room_for_its_header_size_is_refused() -> None:
    assert header_size(b"\0\0\1\0rest") == 256
    with pytest.raises(BrokerRecordError, match="3 bytes"):
        header_size(b"\0\0\0")


@pytest.mark.parametrize(
    "fields",
    [
        {"message_properties": {"no_such_field": 1}},
        {"message_properties": {"message_id": "not a uuid"}},
        {"delivery_properties": {"priority": 256}},
        {"delivery_properties": {"exchange": "x" * 256}},
        {"delivery_properties": {"exchange": "\ud800"}},
        {"message_properties": {"application_headers": {"x": "y" * 65535}}},
    ],
)
def test_invalid_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BrokerRecordError):
        encode_message(b"", **fields)


@pytest.mark.parametrize("destination", ["x" * 256, "\ud800"])
def test_a_destination_that_is_no_short_string_is_refused(destination: str) -> None:
    with pytest.raises(BrokerRecordError):
        encode_message(b"", destination=destination)


def test_the_structs_of_a_header_are_found() -> None:
    assert header_structs(VECTOR) == MESSAGE_PROPERTIES + DELIVERY_PROPERTIES
    assert header_structs(METHOD) == b""
    for wrong in (VECTOR[:-1], VECTOR + b"\0", VECTOR[:5], VECTOR[: len(METHOD) + 5], METHOD + METHOD):
        with pytest.raises(BrokerRecordError):
            header_structs(wrong)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (VECTOR, None),
        (METHOD, None),
        (VECTOR_1_0, None),
        (b"\0\0\x09\x01" + bytes(10), None),
        (b"\0\0\x01\x00" + bytes(10), None),
        (VECTOR[:-1], f"frames of {len(METHOD)} and 78 bytes in a header of {len(VECTOR) - 1}"),
        (METHOD + METHOD, f"frames of {len(METHOD)} and {len(METHOD)} bytes in a header of {2 * len(METHOD)}"),
        (VECTOR[len(METHOD) :], "the first frame is of type 2, not a method"),
        (VECTOR[:3], "7 bytes of data do not contain the frames of a message"),
        (VECTOR[: len(METHOD) + 3], f"{len(METHOD) + 7} bytes of data do not contain the frames of a message"),
        (b"", "4 bytes of data do not contain the frames of a message"),
    ],
)
def test_the_quick_check_of_the_frames(header: bytes, problem: str | None) -> None:
    data = len(header).to_bytes(4, "big") + header
    assert frames_problem(data, len(data)) == problem


def test_the_quick_check_compares_the_header_with_the_data() -> None:
    assert frames_problem(b"\0\0\0\x6b" + VECTOR, 100) == "a header of 107 bytes in 100 bytes of data"
    assert frames_problem(b"\0\0\0", 3) == "3 bytes of data do not contain the frames of a message"


# ---- fields in which headers of one layout differ ----


@examples(200)
@given(
    st.fixed_dictionaries({}, optional=DELIVERY_FIELDS), st.fixed_dictionaries({}, optional=MESSAGE_FIELDS), st.data()
)
def test_headers_that_differ_in_variable_fields_have_the_same_layout(
    delivery: dict[str, Any], message: dict[str, Any], data: st.DataObject
) -> None:
    encoded = encode_message(b"", delivery_properties=delivery, message_properties=message)
    header = encoded[4 : 4 + header_size(encoded)]
    fields = variable_fields(header)
    ends = [(each.begin, each.end) for each in fields]
    assert ends == sorted(ends)
    other = bytearray(header)
    for begin, end in ends:
        other[begin:end] = data.draw(st.binary(min_size=end - begin, max_size=end - begin))
    assert [each[:5] for each in variable_fields(bytes(other))] == [each[:5] for each in fields]
    for whole in (header, bytes(other)):
        decoded = decode_message_header(whole)
        assert [name for name, value in zip(decoded._fields, decoded, strict=True) if value is None] == [
            name for name, value in zip(decoded._fields, decode_message_header(header), strict=True) if value is None
        ]
        for each in fields:
            (value,) = struct.unpack(f">{each.form}", whole[each.begin : each.end])
            value = value if each.decode is None else each.decode(value)
            assert value == (getattr(decoded, each.name) if each.key is None else decoded.headers[each.key])


def test_headers_whose_fields_are_repeated_have_no_variable_ones() -> None:
    assert [each.name for each in variable_fields(VECTOR)] == [
        "correlation_id", "content_type", "headers", "priority", "delivery_mode", "exchange", "routing_key"
    ]  # fmt: skip
    assert variable_fields(frames(DELIVERY_PROPERTIES, DELIVERY_PROPERTIES)) == ()
    table = bytes.fromhex("0000000c 00000002 0161 01 01 0161 01 02")
    properties = (4 + len(table)).to_bytes(4, "big") + bytes.fromhex("0403 0001") + table
    assert decode_message_header(frames(properties)).headers == {"a": 2}
    assert variable_fields(frames(properties)) == ()
    foreign = bytes.fromhex("00000007 7a7a ffff 616263".replace(" ", ""))
    assert variable_fields(frames(foreign)) == ()


# ---- AMQP 0-9-1 ----


def basic(properties: Properties, *, expires_ms: int = 0, exchange: str = "x", key: str = "k", size: int = 5) -> bytes:
    content_header = encode_header(size, properties)
    routed = encode_short_strings(exchange, key)
    return amqp_0_9_1_messages.encode_begin(expires_ms, routed, len(content_header)) + content_header


def test_the_0_9_1_vector() -> None:
    raw = bytes.fromhex(
        "00000901 0000018bcfe56801 0178 026b31"  # mark, expiration, exchange, routing key
        "003c 0000 0000000000000005 3980"  # class, weight, size of the body, flags
        "00000007 0161 49 00000001 02 04 04 31353030 02 ff6d"
    )
    headers = typed_map({"a": TypedValue(TYPES["int32"], 1)})
    properties = Properties(headers=headers, delivery_mode=2, priority=4, expiration="1500", message_id="\udcffm")
    assert basic(properties, expires_ms=1_700_000_000_001, key="k1") == len(raw).to_bytes(4, "big") + raw
    assert decode_message_header(raw) == MessageHeader(
        protocol="0-9-1", exchange="x", routing_key="k1", message_id="\udcffm", delivery_mode=2, priority=4,
        ttl=1500, timestamp=None, expiration=1_700_000_001, discard_unroutable=False, immediate=False,
        redelivered=False, content_type=None, content_encoding=None, correlation_id=None, reply_to=None, user_id=None,
        app_id=None, content_length=5, headers={"a": 1}, header_types={"a": "int32"}, resume_id=None, resume_ttl=None,
        destination=None, accept_mode=None, acquire_mode=None, unknown_structs=(), amqp_1_0=None,
    )  # fmt: skip


@given(PROPERTY_SETS, st.integers(0, 2**64 - 1), NAMES, NAMES)
def test_every_combination_of_0_9_1_properties_comes_back(
    properties: Properties, expires_ms: int, exchange: str, key: str
) -> None:
    raw = basic(properties, expires_ms=expires_ms, exchange=exchange, key=key, size=7)
    header = decode_message_header(raw[4:])
    assert header_size(raw) == len(raw) - 4
    assert (header.exchange, header.routing_key, header.content_length) == (exchange, key, 7)
    assert header.expiration == (-(-expires_ms // 1000) or None)
    for name in ("message_id", "delivery_mode", "priority", "timestamp", "content_type", "reply_to", "correlation_id"):
        assert getattr(header, name) == getattr(properties, name)
    for name in ("user_id", "app_id"):
        text = getattr(properties, name)
        assert getattr(header, name) == (None if text is None else text.encode("utf-8", "surrogateescape"))
    assert header.headers == plain_map(properties.headers or typed_map({}))


def test_every_truncation_of_a_0_9_1_message_is_refused() -> None:
    raw = basic(Properties(headers=typed_map({"a": 1}), expiration="1", message_id="m"))[4:]
    for cut in range(len(amqp_0_9_1_messages.MARK), len(raw)):
        with pytest.raises(BrokerRecordError) as caught:
            decode_message_header(raw[:cut])
        assert 0 <= caught.value.offset <= cut


@pytest.mark.parametrize(
    ("expiration", "ttl"),
    [(None, None), ("0", 0), ("1500", 1500), ("1.5", None), ("-1", None), ("", None), ("²", None), ("1" * 21, None)],
)
def test_the_time_to_live_of_a_0_9_1_message_is_a_number(expiration: str | None, ttl: int | None) -> None:
    assert decode_message_header(basic(Properties(expiration=expiration))[4:]).ttl == ttl


# ---------------------------------------------------------------------------------------------- AMQP 1.0


def test_the_1_0_vector() -> None:
    header = decode_message_header(VECTOR_1_0)
    assert header.amqp_1_0 is not None
    assert (header.protocol, header.exchange) == ("1.0", None)
    assert (header.delivery_mode, header.priority) == (2, 0)
    assert (header.headers, header.header_types) == ({"a": 1}, {"a": "int"})
    names = [section.name for section in header.amqp_1_0.sections]
    assert names == ["header", "application-properties", "amqp-value"]
    ends = [section.offset + section.size for section in header.amqp_1_0.sections]
    assert [section.offset for section in header.amqp_1_0.sections] == [4, *ends[:-1]]
    assert ends[-1] == len(VECTOR_1_0)
    assert [VECTOR_1_0[offset : offset + size] for offset, size in header.amqp_1_0.body_sections] == [b"hello10"]


def list8(*items: bytes) -> bytes:
    body = b"".join(items)
    return bytes([0xC0, 1 + len(body), len(items)]) + body


def map8(*items: bytes) -> bytes:
    return b"\xc1" + list8(*items)[1:]


def text(content: str, constructor: int = 0xA1) -> bytes:
    return bytes([constructor, len(content)]) + content.encode()


def section(code: int, value: bytes) -> bytes:
    return bytes([0, 0x53, code]) + value


def test_properties_and_body_of_a_1_0_message() -> None:
    properties = list8(
        b"\x53\x07", b"\xa0\x02me", text("to"), text("subject"), text("reply"), b"\x98" + uuid.UUID(int=1).bytes,
        text("text/plain", 0xA3), text("gzip", 0xA3), b"\x83" + bytes(7) + b"\x05", b"\x83" + b"\xff" * 8,
        text("group"), b"\x52\x09", text("replies"),
    )  # fmt: skip
    symbolic = b"\0" + text("amqp:data:binary", 0xA3) + b"\xb0\0\0\0\x02cd"
    foreign = b"\0" + text("acme:note", 0xA3) + b"\x40"
    message = (
        bytes(4) + section(0x73, properties) + section(0x75, b"\xa0\x02ab") + symbolic + foreign
        + section(0x76, list8(b"\x41"))
    )  # fmt: skip
    header = decode_message_header(message)
    assert (header.message_id, header.user_id, header.reply_to) == ("7", b"me", "reply")
    assert header.correlation_id == "00000000-0000-0000-0000-000000000001"
    assert (header.content_type, header.content_encoding) == ("text/plain", "gzip")
    extra = header.amqp_1_0
    assert extra is not None
    assert (extra.to, extra.subject, extra.group_id, extra.group_sequence) == ("to", "subject", "group", 9)
    assert (extra.reply_to_group_id, extra.absolute_expiry_time, extra.creation_time) == ("replies", 5, -1)
    assert [(part.code, part.name) for part in extra.sections] == [
        (0x73, "properties"), (0x75, "data"), (0x75, "data"), (None, "acme:note"), (0x76, "amqp-sequence")
    ]  # fmt: skip
    assert [message[at : at + size] for at, size in extra.body_sections] == [b"ab", b"cd", list8(b"\x41")]


@pytest.mark.parametrize(
    ("encoded", "message_id"),
    [
        (b"\x80" + b"\xff" * 8, str(2**64 - 1)),
        (b"\x98" + bytes(16), "00000000-0000-0000-0000-000000000000"),
        (b"\xa0\x02\xff\x00", "ff00"),
        (b"\xa1\x02id", "id"),
        (b"\x40", None),
    ],
)
def test_message_ids_of_all_types_are_text(encoded: bytes, message_id: str | None) -> None:
    assert decode_message_header(bytes(4) + section(0x73, list8(encoded))).message_id == message_id


@pytest.mark.parametrize(
    "sections",
    [
        b"\x40",
        b"\0\x53",
        section(0x70, b"\x41"),
        section(0x74, b"\xc0\x01\x00"),
        section(0x70, list8(*[b"\x40"] * 6)),
        section(0x73, list8(b"\x41")),
        section(0x75, b"\xa0\x05abc"),
    ],
)
def test_1_0_messages_that_are_none(sections: bytes) -> None:
    with pytest.raises(BrokerRecordError):
        decode_message_header(bytes(4) + sections)


def test_a_1_0_section_beyond_the_limit_is_refused() -> None:
    for size, allowed in ((MAX_DECODED_SECTION - 9 - 7, True), (MAX_DECODED_SECTION, False)):
        value = b"\xa1\x01k\xb0" + struct.pack(">I", size - 1) + bytes(size - 1)
        message = bytes(4) + section(0x74, b"\xd1" + struct.pack(">II", 4 + len(value), 2) + value)
        if allowed:
            assert decode_message_header(message).header_types == {"k": "binary"}
        else:
            with pytest.raises(BrokerRecordError, match="application-properties is larger"):
                decode_message_header(message)


@pytest.mark.parametrize(
    ("encoded", "type_name", "value", "plain"),
    [
        ("40", "null", None, None),
        ("41", "boolean", True, True),
        ("42", "boolean", False, False),
        ("5600", "boolean", False, False),
        ("5601", "boolean", True, True),
        ("50ff", "ubyte", 255, 255),
        ("60ffff", "ushort", 65535, 65535),
        ("70ffffffff", "uint", 2**32 - 1, 2**32 - 1),
        ("52ff", "uint", 255, 255),
        ("43", "uint", 0, 0),
        ("80ffffffffffffffff", "ulong", 2**64 - 1, 2**64 - 1),
        ("53ff", "ulong", 255, 255),
        ("44", "ulong", 0, 0),
        ("51ff", "byte", -1, -1),
        ("61ffff", "short", -1, -1),
        ("71ffffffff", "int", -1, -1),
        ("54ff", "int", -1, -1),
        ("81ffffffffffffffff", "long", -1, -1),
        ("55ff", "long", -1, -1),
        ("723fc00000", "float", 1.5, 1.5),
        ("823ff8000000000000", "double", 1.5, 1.5),
        ("82fff0000000000000", "double", float("-inf"), "-Infinity"),
        ("7441424344", "decimal32", b"ABCD", "41424344"),
        ("844142434445464748", "decimal64", b"ABCDEFGH", "4142434445464748"),
        ("94" + "41" * 16, "decimal128", b"A" * 16, "41" * 16),
        ("730001f600", "char", "\U0001f600", "\U0001f600"),
        ("830000000000000001", "timestamp", 1, 1),
        ("98" + "00" * 15 + "01", "uuid", uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("a00141", "binary", b"A", "A"),
        ("b00000000100", "binary", b"\0", "00"),
        ("a102c3bc", "string", "ü", "ü"),
        ("a102fffe", "string", b"\xff\xfe", "fffe"),
        ("b10000000141", "string", "A", "A"),
        ("a30141", "symbol", "A", "A"),
        ("b30000000141", "symbol", "A", "A"),
        ("45", "list", (), []),
        ("c0020141", "list", (Value("boolean", True),), [True]),
        ("d0000000050000000141", "list", (Value("boolean", True),), [True]),
        ("c106025207a10141", "map", ((Value("uint", 7), Value("string", "A")),), {"7": "A"}),
        ("d1000000060000000243 42", "map", ((Value("uint", 0), Value("boolean", False)),), {"0": False}),
        ("e006 02 60 0001 0002", "array", (Value("ushort", 1), Value("ushort", 2)), [1, 2]),
        ("f0 00000009 00000002 60 0001 0002", "array", (Value("ushort", 1), Value("ushort", 2)), [1, 2]),
        ("005301 5202", "described", Described(Value("ulong", 1), Value("uint", 2)), 2),
        ("e006 01 005301 52 02", "array", (Value("described", Described(Value("ulong", 1), Value("uint", 2))),), [2]),
    ],
)
def test_1_0_values(encoded: str, type_name: str, value: Any, plain: Any) -> None:
    raw = bytes.fromhex(encoded.replace(" ", ""))
    assert read_value(raw, 0, len(raw)) == (Value(type_name, value), len(raw))
    assert plain_value(Value(type_name, value)) == plain
    for cut in range(len(raw)):
        with pytest.raises(Amqp10Error):
            read_value(raw, 0, cut)


@pytest.mark.parametrize("encoded", ["e0046000010002", "c0020241", "c0030141 41", "c10201 41", "c000", "01", "0040"])
def test_1_0_values_that_are_none(encoded: str) -> None:
    raw = bytes.fromhex(encoded.replace(" ", ""))
    with pytest.raises(Amqp10Error):
        read_value(raw, 0, len(raw))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_1_0_value_or_refused(raw: bytes) -> None:
    for hostile in (raw, b"\xd0" + struct.pack(">I", len(raw)) + raw, b"\xf0" + struct.pack(">I", len(raw)) + raw):
        try:
            value, end = read_value(hostile, 0, len(hostile))
        except Amqp10Error as error:
            end = error.offset
        else:
            assert end > 0
            plain_value(value)
        assert 0 <= end <= len(hostile)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 50, 20_000])
def test_1_0_nesting_is_limited(depth: int) -> None:
    nested = b"\x45"
    for _ in range(min(depth, 100)):
        nested = b"\xd0" + struct.pack(">II", 4 + len(nested), 1) + nested
    for hostile in (nested, b"\0" * depth + b"\x40", b"\0\x40" * depth + b"\x40"):
        with pytest.raises(Amqp10Error, match="nested more than"):
            read_value(hostile, 0, len(hostile))


def test_1_0_arrays_of_nothing_are_limited() -> None:
    for count, allowed in ((16, True), (17, False), (2**32 - 1, False)):
        encoded = b"\xf0" + struct.pack(">IIB", 5, count, 0x40)
        if allowed:
            assert len(read_value(encoded, 0, len(encoded))[0].value) == count
        else:
            with pytest.raises(Amqp10Error, match="take no bytes"):
                read_value(encoded, 0, len(encoded))


@given(st.integers(0, 2**64 - 1), NAMES, NAMES)
def test_a_1_0_message_of_this_broker_says_where_it_was_published(expires_ms: int, exchange: str, key: str) -> None:
    sections = VECTOR_1_0[4:]
    raw = amqp_1_0_messages.encode_begin(expires_ms, encode_routed(exchange, key), len(sections)) + sections
    header = decode_message_header(raw[4:])
    assert header_size(raw) == len(raw) - 4
    assert (header.exchange, header.routing_key) == (exchange, key)
    assert header.expiration == (-(-expires_ms // 1000) or None)
    assert header.headers == {"a": 1}
    assert header.amqp_1_0 is not None
    assert content_of(raw[4:], header.amqp_1_0) == TypedValue(TYPES["str16"], "hello10")
    for cut in range(4, len(raw) - 4 - len(sections)):
        with pytest.raises(BrokerRecordError):
            decode_message_header(raw[4 : 4 + cut])


def test_the_form_of_qpidd_says_nothing_of_it() -> None:
    assert amqp_1_0_messages.encode_begin(7, b"", 9) == b"\0\0\0\x0d" + bytes(4)
    with pytest.raises(BrokerRecordError, match="longer than 255"):
        encode_routed("x", "k" * 256)


def described(value: Value) -> bytes:
    return encode_value(Value("described", Described(Value("symbol", "com.example:a"), value)))


ONE, TWO = Value("uint", 1), Value("uint", 2)
NEUTRAL_ONE, NEUTRAL_TWO = TypedValue(TYPES["uint32"], 1), TypedValue(TYPES["uint32"], 2)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"", b""),
        (section(0x75, b"\xa0\x02ab") + section(0x75, b"\xb0\0\0\0\x01c"), b"abc"),
        (section(0x77, encode_value(ONE)), NEUTRAL_ONE),
        (section(0x77, described(ONE)), NEUTRAL_ONE),
        (b"\0\x80" + bytes(7) + b"\x77" + described(ONE), NEUTRAL_ONE),
        (
            section(0x76, encode_value(Value("list", (ONE,)))) + section(0x76, encode_value(Value("list", (TWO,)))),
            TypedValue(TYPES["list"], (NEUTRAL_ONE, NEUTRAL_TWO)),
        ),
        (section(0x77, b"\x41") + section(0x78, b"\xc1\1\0"), TypedValue(TYPES["boolean"], True)),
    ],
)
def test_the_content_of_a_1_0_message(body: bytes, content: bytes | TypedValue) -> None:
    raw = bytes(4) + body
    message = decode_message_header(raw).amqp_1_0
    assert message is not None
    assert content_of(raw, message) == content


@pytest.mark.parametrize(
    "body",
    [
        section(0x77, b"\x41") + section(0x77, b"\x41"),
        section(0x75, b"\xa0\0") + section(0x77, b"\x41"),
        section(0x76, b"\x41"),
        section(0x77, b"\xc0\1\1"),  # a list that ends before its item
    ],
)
def test_1_0_messages_without_content_are_refused(body: bytes) -> None:
    raw = bytes(4) + body
    message = decode_message_header(raw).amqp_1_0
    assert message is not None
    with pytest.raises(BrokerRecordError):
        content_of(raw, message)


def test_strings_of_a_1_0_message_that_are_not_text_are_kept() -> None:
    raw = bytes(4) + section(0x73, list8(b"\x40", b"\x40", b"\xa1\1\xff"))
    message = decode_message_header(raw).amqp_1_0
    assert message is not None
    assert message.to == "\udcff"
    with pytest.raises(BrokerRecordError, match="section properties is a map, not a list"):
        decode_message_header(bytes(4) + section(0x73, map8()))
    with pytest.raises(BrokerRecordError, match="section application-properties is a list, not a map"):
        decode_message_header(bytes(4) + section(0x74, list8()))
