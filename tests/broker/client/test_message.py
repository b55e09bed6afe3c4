"""Messages and their content, to bytes and back."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client.errors import ContentError
from qstore.broker.client.message import (
    APP_ID,
    CONTENT_ENCODING,
    ROUTING_KEY,
    Message,
    decode_content,
    decode_header,
    decode_properties,
    encode_content,
    encode_map_of,
    encode_message,
    mark_redelivered,
)
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, decode_struct
from qstore.formats.values import typed_map
from tests.support.coded import coded

_text = st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore").decode())
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | _text
    | st.binary(max_size=20)
    | st.uuids()
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4), max_leaves=10
)


def through(message: Message, subject: str | None = None) -> Message:
    header, body = encode_message(message, "key", subject)
    return Message.received(header, body, None)


@given(_values.filter(lambda value: value is None or isinstance(value, (str, bytes, list, dict))))
def test_content_comes_back(content: Any) -> None:
    content_type, body = encode_content(content)
    assert decode_content(content_type, body) == (b"" if content is None else content)


@given(st.dictionaries(_text, _values, max_size=8))
def test_the_fast_map_is_the_same_map(values: dict[str, Any]) -> None:
    encoded = encode_map_of(values)
    assert encoded == encode_map(typed_map(values))
    assert decode_properties(encoded) == values


@given(st.dictionaries(_text, _values, max_size=5), _text, st.none() | _text)
def test_messages_come_back(properties: dict[str, Any], content: str, subject: str | None) -> None:
    received = through(Message(content, properties=properties), subject)
    assert received.content == content
    expected = dict(properties) | {ROUTING_KEY: "key"}
    expected.pop("qpid.subject", None)
    assert received.properties == expected
    assert received.subject == subject


def test_every_field_comes_back() -> None:
    identity = uuid.uuid4()
    received = through(
        Message(
            "hello",
            content_type="text/html",
            reply_to="replies",
            properties={"color": "red", APP_ID: "app", CONTENT_ENCODING: "none"},
            durable=True,
            ttl=1.5,
            priority=7,
            id=str(identity),
            correlation_id="c1",
            user_id="me",
        ),
        "news",
    )
    assert received.content == b"hello"
    assert received.content_type == "text/html"
    assert received.reply_to == "replies; {node:{type:queue}}"
    assert received.properties == {"color": "red", APP_ID: "app", CONTENT_ENCODING: "none", ROUTING_KEY: "key"}
    assert received.durable
    assert received.ttl == 1.5
    assert received.priority == 7
    assert received.id == identity
    assert received.correlation_id == "c1"
    assert received.user_id == "me"
    assert received.subject == "news"
    assert not received.redelivered


def test_a_message_without_anything() -> None:
    received = Message.received(b"", b"x", None)
    assert (received.content, received.properties, received.subject, received.durable) == (b"x", {}, None, False)


def test_reply_to_an_exchange() -> None:
    received = through(Message(reply_to="amq.topic/a.b"))
    assert received.reply_to == "amq.topic/a.b; {node:{type:topic}}"
    assert through(Message(reply_to=received.reply_to)).reply_to == received.reply_to


def test_a_received_message_may_be_sent_on() -> None:
    first = through(Message({"a": 1}, properties={"p": "v"}, durable=True))
    second = through(first)
    assert second.content == {"a": 1}
    assert second.content_type == "amqp/map"
    assert second.properties == first.properties
    assert second.durable


def test_the_mark_of_redelivery() -> None:
    header, _ = encode_message(Message("x", durable=True, ttl=1), "key", None)
    marked = decode_header(mark_redelivered(header))
    assert marked == decode_header(header) | {"redelivered": True}
    assert decode_struct(DELIVERY_PROPERTIES, header, 0, 4 + int.from_bytes(header[:4], "big"))["routing_key"] == "key"


def test_typed_values_keep_their_type() -> None:
    header, _ = encode_message(Message(properties={"sn": coded(0x22, 5)}), "", None)
    assert b"\x02sn\x22\x00\x00\x00\x05" in header


@pytest.mark.parametrize(
    "message",
    [
        Message(object()),
        Message([object()]),
        Message({1: 2}),
        Message(id="not a uuid"),
        Message(properties={"x" * 256: 1}),
        Message(properties={"n": 1 << 64}),
        Message(properties={"sn": coded(0x22, -1)}),
        Message(priority=256),
        Message(priority=-1),
        Message(ttl=-1),
        Message(ttl=-0.001),
        Message(ttl=float("nan")),
        Message(ttl=float("inf")),
        Message(ttl=1e30),
        Message(content_type="x" * 300),
    ],
)
def test_unencodable_content_is_refused(message: Message) -> None:
    with pytest.raises(ContentError):
        encode_message(message, "", None)


@pytest.mark.parametrize("content_type", ["amqp/map", "amqp/list"])
def test_content_that_is_not_of_its_type(content_type: str) -> None:
    header, _ = encode_message(Message(b"", content_type=content_type), "", None)
    with pytest.raises(ContentError):
        _ = Message.received(header, b"\0\0\0\x05xxxx", None).content


def test_text_that_is_none_comes_as_bytes() -> None:
    assert decode_content("text/plain", b"\xff") == b"\xff"


@given(st.binary(max_size=80))
def test_any_header_is_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ContentError):
        decode_header(raw)


@given(st.data())
def test_damaged_headers_are_read_or_refused(data: st.DataObject) -> None:
    header, _ = encode_message(
        Message("x", properties={"a": [1, {"b": None}]}, reply_to="a/b", id=uuid.UUID(int=5)), "key", "s"
    )
    position = data.draw(st.integers(0, len(header) - 1))
    damaged = bytearray(header[: data.draw(st.integers(0, len(header)))] or b"\0")
    damaged[position % len(damaged)] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ContentError):
        decode_header(bytes(damaged))
