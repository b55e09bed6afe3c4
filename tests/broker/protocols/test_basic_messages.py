"""Messages of AMQP 0-9-1: what is stored of them, and what consumers of another protocol get."""

from __future__ import annotations

import contextlib
import uuid
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.message import Handling, LargeContent, Message, NewMessage
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, as_basic
from qstore.broker.protocols.amqp_0_10.message import (
    TransferMessage,
    as_transfer,
    new_transfer,
    read_delivery_properties,
)
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.amqp_0_10.commands import decode_struct
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, ReplyTo
from qstore.formats.broker_records.messages import (
    HEADER_SIZE_BYTES,
    decode_message_header,
    encode_message,
    frames_problem,
    header_size,
)
from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError
from qstore.formats.values import EMPTY_MAP, typed_map, typed_value
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS

FULL = Properties(
    content_type="text/plain", content_encoding="gzip", headers=typed_map({"a": 1, "b": "text"}), delivery_mode=2,
    priority=7, correlation_id="c-1", reply_to="answers", expiration="60000", message_id="m-1", timestamp=1_700_000_000,
    type="order", user_id="guest", app_id="shop",
)  # fmt: skip


def basic(
    properties: Properties = FULL, body: Any = b"body", expires_at: float = 0.0, key: str = "key"
) -> BasicMessage:
    return BasicMessage(
        encode_header(len(body), properties), body, "exchange", key, encode_routed("exchange", key),
        properties.delivery_mode == 2, Handling(priority=properties.priority or 0), expires_at,
    )  # fmt: skip


def stored(message: Message) -> bytes:
    parts, size, crc = message.stored_form()
    data = b"".join(parts)
    assert len(data) == size
    assert extend_crc32c(0, data) == crc
    assert message.stored_form()[2] == crc
    return data


@given(PROPERTY_SETS, st.binary(max_size=20), st.sampled_from([0.0, 1_700_000_000.125]))
def test_stored_message_is_restored_unchanged(properties: Properties, body: bytes, expires_at: float) -> None:
    message = basic(properties, body, expires_at)
    data = stored(message)
    assert frames_problem(data[: HEADER_SIZE_BYTES + header_size(data)], len(data)) is None
    found = restore_message(data)
    assert isinstance(found, BasicMessage)
    for name in (
        "header",
        "body",
        "exchange",
        "routing_key",
        "routed",
        "is_persistent",
        "handling",
        "expires_at",
        "size",
    ):
        assert getattr(found, name) == getattr(message, name), name
    assert stored(found) == data
    within = restore_message(b"before" + data + b"after", 6, 6 + len(data))
    parts, size = within.stored_parts()
    assert (b"".join(parts), size) == (data, len(data))


def test_large_content_is_stored_in_pieces() -> None:
    pieces = (bytes(50_000), b"x" * 50_000)
    message = basic(FULL, LargeContent(pieces, 100_000))
    parts = message.stored_form()[0]
    assert parts[-2] is pieces[0]
    assert restore_message(stored(message)).body == b"".join(pieces)


@given(st.integers(0, 200), st.integers(0, 200), st.binary(max_size=5))
def test_damaged_records_are_refused_or_read(begin: int, end: int, instead: bytes) -> None:
    data = stored(basic())
    found = data[:begin] + instead + data[end:]
    try:
        message = restore_message(found)
        message.properties()
        stored(message)
    except BrokerRecordError:
        pass
    with contextlib.suppress(BrokerRecordError):
        decode_message_header(found[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + header_size(found)])


def test_stored_message_header_decodes_for_tools() -> None:
    data = stored(basic(FULL, b"body", 1_700_000_060.5))
    header = decode_message_header(data[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + header_size(data)])
    assert header.protocol == "0-9-1"
    assert (header.exchange, header.routing_key, header.delivery_mode, header.priority) == ("exchange", "key", 2, 7)
    assert (header.ttl, header.timestamp, header.expiration) == (60_000, 1_700_000_000, 1_700_000_061)
    assert (header.content_type, header.content_encoding, header.content_length) == ("text/plain", "gzip", 4)
    assert (header.correlation_id, header.reply_to, header.message_id) == ("c-1", "answers", "m-1")
    assert (header.user_id, header.app_id, header.message_type) == (b"guest", b"shop", "order")
    assert header.headers == {"a": 1, "b": "text"}


def test_a_consumer_of_0_10_gets_all_of_it() -> None:
    message = basic(FULL, b"body", 1_700_000_060.5)
    found = message.converted(as_transfer)
    assert found is not None
    assert (found.exchange, found.routing_key, found.body) == ("exchange", "key", b"body")
    assert found.expires_at == 1_700_000_060.5
    assert found.handling.priority == 7
    values = found._message_properties()
    assert values == {
        **dict.fromkeys(values),
        "content_type": "text/plain", "content_encoding": "gzip", "correlation_id": b"c-1", "user_id": b"guest",
        "app_id": b"shop", "reply_to": ReplyTo("", "answers"), "application_headers": values["application_headers"],
    }  # fmt: skip
    headers = {name: typed.value for name, typed in values["application_headers"].entries}
    assert headers == {"a": 1, "b": "text", "qpid.subject": "order", "x-amqp-message-id": "m-1"}


@given(PROPERTY_SETS)
def test_there_and_back(properties: Properties) -> None:
    """What a message has after both conversions, compared with what it had."""
    message = basic(properties)
    there = as_transfer(message)
    if there is None:
        return
    back = as_basic(restore_message(stored(there)))
    assert back is not None
    found = back.basic_properties()
    expected = properties._replace(
        delivery_mode=2 if properties.delivery_mode == 2 else 1,
        priority=min(properties.priority or 0, 9),
        expiration=None,
    )
    for name in ("delivery_mode", "priority", "content_type", "content_encoding", "reply_to", "user_id", "app_id"):
        assert (getattr(found, name) or None) == (getattr(expected, name) or None), name
    assert found.correlation_id == properties.correlation_id
    assert found.timestamp == properties.timestamp
    assert (found.type or None) == (properties.type or None)
    assert (found.message_id or "").lower().replace("-", "") == (properties.message_id or "").lower().replace("-", "")
    assert back.body == message.body


def transfer(delivery: dict[str, Any], properties: dict[str, Any], body: bytes = b"body") -> TransferMessage:
    data = encode_message(body, destination="x", delivery_properties=delivery, message_properties=properties)
    message = restore_message(data)
    assert isinstance(message, TransferMessage)
    return message


def test_a_consumer_of_0_9_1_gets_all_of_it() -> None:
    message = transfer(
        {"exchange": "e", "routing_key": "k", "delivery_mode": 2, "priority": 6, "ttl": 5000,
         "timestamp": 1_700_000_000},
        {
            "message_id": uuid.UUID(int=5), "correlation_id": b"c", "content_type": "t", "content_encoding": "e",
            "user_id": b"u", "app_id": b"a", "reply_to": ReplyTo("amq.direct", "me"),
            "application_headers": typed_map({"qpid.subject": "s", "n": 5}),
        },
    )  # fmt: skip
    found = message.converted(as_basic)
    assert found is not None
    assert (found.exchange, found.routing_key, found.body) == ("e", "k", b"body")
    values = found.basic_properties()
    assert values._replace(headers=None) == Properties(
        content_type="t", content_encoding="e", delivery_mode=2, priority=6, correlation_id="c",
        reply_to="amq.direct/me", expiration="5000", message_id=str(uuid.UUID(int=5)), timestamp=1_700_000_000,
        type="s", user_id="u", app_id="a",
    )  # fmt: skip
    assert {name: typed.value for name, typed in found.headers().entries} == {"qpid.subject": "s", "n": 5}


def test_texts_that_are_too_long_become_headers() -> None:
    message = transfer({}, {"correlation_id": b"c" * 300, "app_id": b"a" * 255})
    found = message.converted(as_basic)
    assert found is not None
    assert (found.basic_properties().correlation_id, found.basic_properties().app_id) == (None, "a" * 255)
    assert found.header_text("x-amqp-correlation-id") == "c" * 300


@pytest.mark.parametrize("content", [typed_value({"a": 1}), typed_value([1, "b"]), b"raw", None])
def test_messages_of_the_broker_are_converted(content: Any) -> None:
    sent = new_transfer(NewMessage("key", EMPTY_MAP, content=content, exchange="e"))
    found = sent.converted(as_basic)
    assert found is not None
    kinds = {"map": "amqp/map", "list": "amqp/list"}
    assert found.basic_properties().content_type == (
        None if isinstance(content, bytes | None) else kinds[content.type.name]
    )
    assert found.body == sent.body


def test_headers_are_changed() -> None:
    message = basic().with_headers({"a": None, "new": typed_value("v")})
    assert {name: typed.value for name, typed in message.headers().entries} == {"b": "text", "new": "v"}
    assert message.basic_properties()._replace(headers=None) == FULL._replace(headers=None)
    assert message.with_number("n", 5).header_text("n") == "5"


def test_remaining_time_of_a_converted_message() -> None:
    found = as_transfer(basic(FULL, b"body", 1000.0))
    assert found is not None
    header = found.header_for_delivery(is_redelivered=False, now=990.0)
    size = 4 + int.from_bytes(header[:4], "big")
    assert decode_struct(DELIVERY_PROPERTIES, header, 0, size)["ttl"] == ceil(10_000)
    assert read_delivery_properties(header[:size], "").routing_key == "key"
