"""AMQP 1.0 messages of qpidd's stores: kept as they are, and delivered to clients of AMQP 0-10."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstore.broker.model.message import Message, Properties, ReplyAddress
from qstore.broker.protocols.amqp_0_9_1.message import as_basic
from qstore.broker.protocols.amqp_0_10.message import TransferMessage, as_transfer
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, as_sections
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties as BasicProperties
from qstore.formats.amqp_0_9_1.properties import encode_header
from qstore.formats.amqp_0_10.maps import decode_map
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import APPLICATION_PROPERTIES, VALUE, encode_section
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.broker_records.amqp_0_9_1_messages import encode_begin
from qstore.formats.broker_records.messages import decode_message_header, encode_message
from qstore.formats.errors import BrokerRecordError
from qstore.formats.plain import plain_map
from qstore.formats.values import VBIN16, TypedValue
from tests.broker.protocols.world import World
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS
from tests.formats.test_amqp_1_0 import composites, simple
from tests.formats.test_messages import DELIVERY_FIELDS, MESSAGE_FIELDS
from tests.support.compiled import replaces

ID = uuid.UUID("009d81a8-a354-5f1a-a533-f41953f85ed6")


def text(value: str) -> bytes:
    raw = value.encode()
    return b"\xa1%c%b" % (len(raw), raw)


def binary(value: bytes) -> bytes:
    return b"\xb0" + len(value).to_bytes(4, "big") + value


def compound(constructor: int, *items: bytes) -> bytes:
    body = len(items).to_bytes(4, "big") + b"".join(items)
    return bytes([constructor]) + len(body).to_bytes(4, "big") + body


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53%c%b" % (code, value)


def stored(*sections: bytes) -> bytes:
    header = b"\0\0\0\0" + b"".join(sections)
    return len(header).to_bytes(4, "big") + header


def list_of(*items: bytes) -> bytes:
    return compound(0xD0, *items)


def map_of(*items: bytes) -> bytes:
    return compound(0xD1, *items)


NULL, TRUE = b"\x40", b"\x41"
DURABLE = section(0x70, list_of(TRUE, b"\x50\x07"))
FULL = stored(
    DURABLE,
    section(
        0x73,
        list_of(
            b"\x98" + ID.bytes, binary(b"guest"), text("q"), text("news"), text("answers"), text("c-1"),
            b"\xa3\x09text/html", b"\xa3\x04gzip",
        ),
    ),
    section(0x74, map_of(text("n"), b"\x54\xff", text("id"), b"\x98" + ID.bytes, text("raw"), binary(b"\xff"))),
    section(0x75, binary(b"hello")),
    section(0x75, binary(b" world")),
)  # fmt: skip


def converted(data: bytes) -> TransferMessage:
    message = restore_message(data).converted(as_transfer)
    assert message is not None
    return message


def header_of(message: TransferMessage) -> Any:
    stored_form = b"".join(message.stored_form()[0])
    return decode_message_header(stored_form[4 : 4 + int.from_bytes(stored_form[:4], "big")])


def test_a_message_is_kept_as_it_came() -> None:
    message = restore_message(FULL)
    assert isinstance(message, SectionMessage)
    form = message.stored_form()
    assert (b"".join(form[0]), form[1], message.size) == (FULL, len(FULL), len(FULL) - 8)
    assert (message.is_persistent, message.handling.priority, message.routing_key) == (True, 7, "news")
    assert restore_message(b"".join(form[0])).stored_form() == form
    assert restore_message(b"before" + FULL + b"after", 6, 6 + len(FULL)).stored_parts() == form[:2]


def test_its_properties_are_neutral() -> None:
    properties = restore_message(FULL).properties()
    assert properties.message_id == ID
    assert (properties.correlation_id, properties.user_id) == ("c-1", b"guest")
    assert properties.reply_to == ReplyAddress("", "answers")
    assert (properties.content_type, properties.content_encoding, properties.subject) == ("text/html", "gzip", "news")
    assert [(name, typed.type.name, typed.value) for name, typed in properties.headers.entries] == [
        ("n", "int32", -1), ("id", "uuid", ID), ("raw", "vbin16", b"\xff"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reply_to", "expected"),
    [
        ("answers", ("", "answers")),
        ("amqps://host/answers", ("", "answers")),
        ("/queues/a%2Fb", ("", "a/b")),
        ("amqps://host/queues/a%2Fb", ("", "a/b")),
        ("amqp://host/amq.topic/a.b", ("amq.topic", "a.b")),
        ("amqp://host", ("amqp:", "/host")),
    ],
)
def test_where_replies_go(reply_to: str, expected: tuple[str, str]) -> None:
    properties = restore_message(stored(section(0x73, list_of(NULL, NULL, NULL, NULL, text(reply_to))))).properties()
    assert properties.reply_to == ReplyAddress(*expected)


def test_all_properties_reach_a_client_of_0_10() -> None:
    transfer = converted(FULL)
    header = header_of(transfer)
    assert transfer.body == b"hello world"
    assert (header.message_id, header.correlation_id, header.user_id) == (str(ID), b"c-1", b"guest")
    assert (header.reply_to, header.content_type, header.content_encoding) == (("", "answers"), "text/html", "gzip")
    assert (header.routing_key, header.priority, header.delivery_mode) == ("news", 7, 2)
    assert header.headers == {"n": -1, "id": str(ID), "raw": "ff", "qpid.subject": "news"}
    assert header.header_types == {"n": "int32", "id": "uuid", "raw": "vbin16", "qpid.subject": "str16"}


def test_conversion_is_cached() -> None:
    message = restore_message(FULL)
    assert message.converted(as_transfer) is message.converted(as_transfer)


def test_a_message_id_that_is_not_a_uuid_is_a_header() -> None:
    transfer = converted(stored(section(0x73, list_of(text("id-1")))))
    assert header_of(transfer).message_id is None
    assert plain_map(transfer.headers()) == {"x-amqp-message-id": "id-1"}


@pytest.mark.parametrize(
    ("sections", "content_type", "body"),
    [
        ([], None, b""),
        ([section(0x77, text("€"))], "text/plain", "€".encode()),
        ([section(0x77, binary(b"\xff"))], None, b"\xff"),
        ([section(0x77, NULL)], None, b""),
        ([section(0x77, b"\x54\x07")], "text/plain", b"7"),
        ([section(0x77, b"\x98" + ID.bytes)], "text/plain", str(ID).encode()),
    ],
)
def test_content(sections: list[bytes], content_type: str | None, body: bytes) -> None:
    transfer = converted(stored(*sections))
    assert (header_of(transfer).content_type, transfer.body) == (content_type, body)


def test_a_map_and_lists() -> None:
    transfer = converted(stored(section(0x77, map_of(text("a"), list_of(TRUE, text("x"))))))
    assert header_of(transfer).content_type == "amqp/map"
    assert isinstance(transfer.body, bytes)
    assert plain_map(decode_map(transfer.body)) == {"a": [True, "x"]}
    transfer = converted(stored(section(0x76, list_of(TRUE)), section(0x76, list_of(text("x")))))
    assert header_of(transfer).content_type == "amqp/list"
    assert transfer.body == bytes.fromhex("0000000a00000002080195000178")  # fmt: skip


def test_message_too_large_for_0_10_is_not_converted() -> None:
    long = section(0x74, map_of(*(item for n in range(300) for item in (text(f"h{n}"), binary(b"x" * 250)))))
    both = section(0x75, binary(b"x")) + section(0x77, text("y"))
    for data in (stored(long), stored(both)):
        assert restore_message(data).converted(as_transfer) is None


def test_an_expiry_time_counts_and_a_ttl_does_not() -> None:
    times = list_of(*[NULL] * 8, b"\x83" + (1_900_000_000_500).to_bytes(8, "big"))
    assert restore_message(stored(section(0x73, times))).expires_at == 1_900_000_000.5
    assert restore_message(stored(section(0x70, list_of(TRUE, NULL, b"\x52\x05")))).expires_at == 0


def test_a_number_becomes_an_annotation_and_the_rest_stays() -> None:
    before, message = restore_message(FULL), restore_message(FULL).with_number("x-number", 1)
    assert isinstance(message, SectionMessage)
    assert message.header_text("x-number") == "1"
    assert message.section_properties() == before.section_properties()  # type: ignore[attr-defined]
    again = restore_message(b"".join(message.stored_form()[0]))
    assert (again.header_text("x-number"), again.header_text("n"), again.body) == ("1", "-1", before.body)


def test_0_10_messages_are_restored_as_before() -> None:
    message: Message = restore_message(encode_message(b"x", destination=""))
    assert isinstance(message, TransferMessage)
    assert message.converted(as_transfer) is not None


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda raw: stored(raw)))
def test_hostile_records(data: bytes) -> None:
    try:
        message = restore_message(data)
    except BrokerRecordError:
        return
    assert b"".join(message.stored_form()[0])
    assert isinstance(message.properties(), Properties)
    converted_message = message.converted(as_transfer)
    assert converted_message is None or converted_message.size >= len(converted_message.header)


@given(st.integers(0, len(FULL) - 1), st.integers(1, 255))
@example(7, 174)  # no mark of 1.0 any more, and no frame of 0-10 either
def test_flipped_bytes(at: int, flip: int) -> None:
    raw = bytearray(FULL)
    raw[at] ^= flip
    try:
        message = restore_message(bytes(raw))
    except BrokerRecordError:
        return
    assert b"".join(message.stored_form()[0])
    assert isinstance(message.properties(), Properties)
    converted_message = message.converted(as_transfer)
    assert converted_message is None or converted_message.size >= len(converted_message.header)


def test_consumers_of_0_10_get_convertible_messages() -> None:
    world = World()
    client = world.open_client()
    client.declare("q")
    client.sync()
    queue = world.broker.default_host.queues["q"]
    both = section(0x75, binary(b"x")) + section(0x77, text("y"))
    for data in (stored(both), FULL, stored(both), stored(section(0x75, binary(b"last")))):
        queue.add(restore_message(data), 0)
    client.subscribe("q")
    client.sync()
    assert client.take() == [b"hello world", b"last"]
    assert queue.message_count - queue.acquired_count == 2


@replaces
def test_message_unfit_for_0_10_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Message] = []

    def look(message: Message, convert: Any) -> None:
        looks.append(message)

    monkeypatch.setattr(SectionMessage, "converted", look)
    world = World()
    client = world.open_client()
    client.declare("q")
    client.sync()
    queue = world.broker.default_host.queues["q"]
    for _ in range(50):
        queue.add(restore_message(FULL), 0)
    client.subscribe("q")
    client.sync()
    for number in range(20):
        client.publish("q", b"%d" % number)
        client.sync()
    other = world.open_client(name=b"other")
    other.subscribe("q")
    other.sync()
    assert client.take() == [b"%d" % number for number in range(20)]
    assert len(looks) == 50


# ---- no message stays on its queue because consumers of another protocol cannot get it ----


def stored_basic(properties: BasicProperties, body: bytes = b"") -> bytes:
    content_header = encode_header(len(body), properties)
    return encode_begin(0, encode_routed("x", "k"), len(content_header)) + content_header + body


@given(PROPERTY_SETS, st.binary(max_size=9))
@example(BasicProperties(timestamp=(1 << 64) - 1, message_id="\udcff", type="\udcff", correlation_id="\udcff"), b"x")
def test_messages_of_0_9_1_reach_consumers_of_the_others(properties: BasicProperties, body: bytes) -> None:
    message = restore_message(stored_basic(properties, body))
    sections, transfer = message.converted(as_sections), message.converted(as_transfer)
    assert sections is not None
    assert transfer is not None
    assert (sections.content(), transfer.body) == (body, body)
    assert sections.properties().content_type in (properties.content_type or None, None)
    again = restore_message(b"".join(sections.stored_form()[0]))
    assert again.properties() == sections.properties()  # nothing in it is not UTF-8


def test_ids_that_are_not_utf8_keep_their_bytes() -> None:
    message = restore_message(
        stored_basic(BasicProperties(message_id="\udcff", type="a\udcff", correlation_id="\udcfe"))
    )
    sections, transfer = message.converted(as_sections), message.converted(as_transfer)
    assert sections is not None
    assert transfer is not None
    properties = sections.properties()
    assert (properties.message_id, properties.correlation_id, properties.subject) == (b"\xff", b"\xfe", "a?")
    assert transfer.headers().get("x-amqp-message-id") == TypedValue(VBIN16, b"\xff")
    assert transfer.headers().get("qpid.subject") == TypedValue(VBIN16, b"a\xff")


@given(
    st.fixed_dictionaries({}, optional=DELIVERY_FIELDS), st.fixed_dictionaries({}, optional=MESSAGE_FIELDS),
    st.binary(max_size=9),
)  # fmt: skip
@example({"timestamp": 1_700_000_000_000_000_000}, {}, b"")
def test_messages_of_0_10_reach_consumers_of_the_others(
    delivery: dict[str, Any], properties: dict[str, Any], body: bytes
) -> None:
    message = restore_message(encode_message(body, delivery_properties=delivery, message_properties=properties))
    sections, basic = message.converted(as_sections), message.converted(as_basic)
    assert sections is not None
    assert basic is not None
    assert (sections.content(), basic.body) == (body, body)
    timestamp = delivery.get("timestamp", 1 << 64)
    expected = timestamp if timestamp * 1000 < 1 << 63 else None
    assert sections.section_properties().get("creation_time") == (None if expected is None else expected * 1000)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_BODIES = simple | st.lists(simple, max_size=3).map(lambda items: Value("list", tuple(items)))


@given(composites("properties"), st.lists(st.tuples(_TEXTS, simple), max_size=3), _BODIES)
@example(Composite("properties", {"creation_time": -5}), [], Value("null", None))
def test_messages_of_1_0_reach_consumers_of_0_10(
    properties: Composite, headers: list[tuple[str, Value]], body: Value
) -> None:
    entries = tuple((Value("string", name), value) for name, value in headers)
    data = stored(
        DURABLE, encode_composite(*properties), encode_section(APPLICATION_PROPERTIES, Value("map", entries)),
        encode_section(VALUE, body),
    )  # fmt: skip
    assert restore_message(data).converted(as_transfer) is not None
