"""A message's way: received, stored, delivered."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.message import Message
from qstore.broker.protocols.amqp_0_10 import message as of_message
from qstore.broker.protocols.amqp_0_10.message import (
    MAX_HEADER_BYTES,
    TransferMessage,
    find_struct,
    read_delivery_properties,
    restore_transfer,
    split_header,
    user_id_of,
    with_property,
    without_times,
)
from qstore.broker.protocols.amqp_0_10.publishing import TransferReader
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, decode_struct, encode_struct
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.messages import decode_message_header, encode_message, header_size
from qstore.formats.errors import BrokerRecordError
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from qstore.store.journal.recovery import LIVE
from tests.broker.protocols.world import header
from tests.support.fixtures import StoreFixture
from tests.support.old_store import content_of

NOW = 1_700_000_000.25
UNKNOWN = (6).to_bytes(4, "big") + b"\x7f\x7f\x00\x00ab"


def read(head: bytes, body: bytes | None = b"body", exchange: str = "amq.topic") -> TransferMessage:
    return TransferReader().read(head, body, exchange, lambda: NOW)


def properties(head: bytes) -> dict[str, Any]:
    """The delivery-properties at the beginning of a header, those that are present."""
    size = 4 + int.from_bytes(head[:4], "big")
    return {
        name: value for name, value in decode_struct(DELIVERY_PROPERTIES, head, 0, size).items() if value is not None
    }


# ---- what comes ----


def test_the_exchange_is_set_and_delivery_properties_come_first() -> None:
    sent = UNKNOWN + header(
        {"message_id": UUID(int=1)}, routing_key="a.b", exchange="forged", delivery_mode=2, priority=7
    )
    message = read(sent)
    found = properties(message.header)
    assert found == {"priority": 7, "delivery_mode": 2, "exchange": "amq.topic", "routing_key": "a.b"} | {
        name: False for name in ("discard_unroutable", "immediate", "redelivered") if name in found
    }
    assert find_struct(message.header, 0x0401) == (0, 4 + int.from_bytes(message.header[:4], "big"))
    at = find_struct(message.header, 0x7F7F)
    assert at is not None
    assert message.header[at[0] : at[1]] == UNKNOWN
    assert (message.routing_key, message.handling.priority, message.is_persistent) == ("a.b", 7, True)
    assert (message.expires_at, message.body) == (0.0, b"body")


def test_a_message_without_any_header() -> None:
    message = read(b"", None, "")
    assert properties(message.header)["exchange"] == ""
    assert (message.routing_key, message.handling.priority, message.is_persistent) == ("", 4, False)
    assert (message.body, message.has_body) == (b"", False)
    assert dict(plain_map(message.headers())) == {}


def test_equal_properties_are_read_once_and_shared() -> None:
    reader = TransferReader()
    messages = [
        reader.read(header({"correlation_id": b"%d" % number}, routing_key="a key"), b"", exchange, lambda: NOW)
        for number in range(3)
        for exchange in ("x", "y")
    ]
    assert [properties(message.header)["exchange"] for message in messages] == ["x", "y"] * 3
    assert messages[0].routing_key is messages[2].routing_key is messages[4].routing_key, "read once"


@pytest.mark.parametrize("body", [b"first", None])
def test_messages_with_equal_headers_are_stored_as_if_they_were_not(body: bytes | None) -> None:
    """Those with a header of their own, without a body, or of another exchange come in between."""
    plain, timed = header(routing_key="k", delivery_mode=2), header(routing_key="k", ttl=5000, delivery_mode=2)
    reader = TransferReader()
    given = [
        (plain, body, "x"), (plain, b"second", "x"), (plain, None, "x"), (plain, b"", "x"), (plain, b"third", "y"),
        (plain, b"fourth", "y"), (timed, b"fifth", "y"), (timed, b"sixth", "y"), (plain, b"seventh", "y"),
        (b"", b"", ""), (b"", b"eighth", ""),
    ]  # fmt: skip
    for head, content, exchange in given:
        message, alone = reader.read(head, content, exchange, lambda: NOW), read(head, content, exchange)
        (parts, size, crc), (own_parts, own_size, own_crc) = message.stored_form(), alone.stored_form()
        assert (b"".join(parts), size, crc) == (b"".join(own_parts), own_size, own_crc)
        assert message.stored_form()[2] == crc, "the same for another queue"
        for name in (
            "header",
            "body",
            "has_body",
            "exchange",
            "routing_key",
            "handling",
            "is_persistent",
            "expires_at",
        ):
            assert getattr(message, name) == getattr(alone, name)


def test_headers_that_come_in_turn_are_kept_once_each() -> None:
    """Also after many that are all different, for which they are not looked for all the time."""
    reader = TransferReader()
    heads = [header(routing_key=f"k{number}", delivery_mode=2) for number in range(6)]
    for turns in (3, 50, 50):
        *_, first, second, third = (
            [reader.read(head[:], b"%d" % turn, "x", lambda: NOW) for head in heads] for turn in range(turns)
        )
        assert all(one.header is two.header for one, two in zip(first, second, strict=True))
        assert all(one.head is two.head is not None for one, two in zip(second, third, strict=True))
        for message in (*second, *third):
            (parts, size, crc), (own_parts, own_size, own_crc) = (
                each.stored_form() for each in (message, read(message.header, bytes(message.body), "x"))
            )
            assert (b"".join(parts), size, crc) == (b"".join(own_parts), own_size, own_crc)
        for number in range(600):
            reader.read(header({"correlation_id": b"%d" % number}, routing_key="a key"), b"", "x", lambda: NOW)
        assert len(reader._recent) <= 8
    other = [reader.read(head[:], b"", exchange, lambda: NOW) for _ in range(2) for head in heads for exchange in "yz"]
    assert [properties(message.header)["exchange"] for message in other] == ["y", "z"] * 12


def test_headers_that_are_equal_are_kept_once() -> None:
    reader, head = TransferReader(), header(routing_key="k")
    messages = [reader.read(head[:], b"%d" % number, "x", lambda: NOW) for number in range(4)]
    assert len({id(message.header) for message in messages}) == 1


@pytest.mark.parametrize("size", [20, 60_000])
def test_reader_cache_is_bounded(size: int) -> None:
    reader = TransferReader()
    tracemalloc.start()
    try:
        for number in range(6000 if size < 100 else 600):
            resume_id = f"{number:x}".rjust(size, "0")
            reader.read(header(routing_key="k", resume_id=resume_id), b"", f"exchange {number % 100}", lambda: NOW)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 4_000_000


@pytest.mark.parametrize(
    "head",
    [
        b"\0",
        b"\0\0\0\x04\x04\x01\0",
        b"\0\0\0\x03\x04\x01\0\0",
        b"\0\0\0\x05\x04\x01\0\0",
        b"\xff\xff\xff\xff\x04\x01\0\0",
        b"\0\0\0\x04\x04\x01\x00\x01",  # a routing key that is not there
        header(routing_key="k")[:-1],
        bytes(MAX_HEADER_BYTES + 1),
    ],
)
def test_a_malformed_header(head: bytes) -> None:
    with pytest.raises(Amqp010Error):
        read(head)


def test_the_largest_header_can_be_kept_and_delivered() -> None:
    filler = (MAX_HEADER_BYTES - 4).to_bytes(4, "big") + b"\x7f\x7f\0\0" + bytes(MAX_HEADER_BYTES - 8)
    message = read(filler, b"x", "e" * 255)
    parts, size, _ = message.stored_form()
    assert restore_transfer(b"".join(parts)).header == message.header
    assert size == sum(map(len, parts))
    late = TransferMessage(message.header, b"", "e" * 255, read_delivery_properties(b"", ""), NOW + 5)
    assert len(late.header_for_delivery(is_redelivered=True, now=NOW)) <= 0xFFFF - 12


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_are_refused(head: bytes) -> None:
    try:
        message = read(head)
    except Amqp010Error:
        return
    message.headers()
    delivered = message.header_for_delivery(is_redelivered=True, now=NOW)
    assert properties(delivered)["redelivered"]
    found, others = split_header(delivered)
    assert found + others == delivered


def test_the_user_id_of_a_message() -> None:
    assert user_id_of(header({"user_id": b"anna"})) == "anna"
    assert user_id_of(header({"message_id": UUID(int=1)}, routing_key="k")) is None
    assert user_id_of(b"") is None


# ---- time to live ----


def test_a_ttl_becomes_an_expiration() -> None:
    message = read(header(ttl=1500))
    assert message.expires_at == NOW + 1.5
    assert properties(message.header)["expiration"] == 1_700_000_002
    assert properties(message.header_for_delivery(is_redelivered=False, now=NOW + 1))["ttl"] == 500
    assert properties(message.header_for_delivery(is_redelivered=False, now=NOW + 9))["ttl"] == 1


def test_an_expiration_without_a_ttl() -> None:
    message = read(header(expiration=1_700_000_010))
    assert message.expires_at == 1_700_000_010
    assert properties(message.header_for_delivery(is_redelivered=False, now=NOW + 7.75))["ttl"] == 2000


@pytest.mark.parametrize("head", [header(ttl=(1 << 64) - 1), header(expiration=(1 << 64) - 1)])
def test_the_longest_life(head: bytes) -> None:
    message = read(head)
    assert properties(message.header_for_delivery(is_redelivered=True, now=NOW))["ttl"] > 1 << 62
    parts, _, _ = message.stored_form()
    assert restore_transfer(b"".join(parts)).expires_at > NOW


DELIVERIES = st.fixed_dictionaries(
    {},
    optional={
        "discard_unroutable": st.just(True), "redelivered": st.just(True), "priority": st.integers(0, 255),
        "delivery_mode": st.integers(0, 255), "ttl": st.integers(0, 2**64 - 1), "timestamp": st.integers(0, 2**64 - 1),
        "expiration": st.integers(0, 2**64 - 1), "exchange": st.text(max_size=5), "routing_key": st.text(max_size=5),
        "resume_id": st.text(max_size=5), "resume_ttl": st.integers(0, 2**64 - 1),
    },
)  # fmt: skip


@given(DELIVERIES, st.sampled_from(["ttl", "timestamp", "expiration"]), st.integers(0, 2**64 - 1))
def test_a_property_that_is_set(properties: dict[str, Any], name: str, value: int) -> None:
    encoded = encode_struct(DELIVERY_PROPERTIES, properties)
    assert with_property(encoded, name, value) == encode_struct(DELIVERY_PROPERTIES, properties | {name: value})


@given(DELIVERIES)
def test_delivery_properties_without_times(properties: dict[str, Any]) -> None:
    encoded = encode_struct(DELIVERY_PROPERTIES, properties)
    blank, times = without_times(encoded)
    zeros = {name: 0 for name in ("timestamp", "expiration") if name in properties}
    assert blank == encode_struct(DELIVERY_PROPERTIES, properties | zeros)
    assert (times is None) == (not zeros)
    if times is not None:
        assert times.put_into(blank) == encoded
        assert times.expiration == properties.get("expiration", 0)


@given(DELIVERIES, st.integers(0, 40))
def test_delivery_properties_that_are_cut_off_stay_invalid(properties: dict[str, Any], length: int) -> None:
    encoded = encode_struct(DELIVERY_PROPERTIES, properties)
    cut = encoded[: max(8, length)]
    blank, _ = without_times(cut)
    assert len(blank) == len(cut)
    try:
        values = decode_struct(DELIVERY_PROPERTIES, cut, 0, len(cut))
    except Amqp010Error:
        with pytest.raises(Amqp010Error):
            decode_struct(DELIVERY_PROPERTIES, blank, 0, len(blank))
    else:
        assert decode_struct(DELIVERY_PROPERTIES, blank, 0, len(blank)).keys() == values.keys()


def test_messages_that_differ_in_their_times_are_read_once() -> None:
    reader = TransferReader()
    first, second = (
        reader.read(header(routing_key="k", timestamp=number, expiration=number + 7), b"", "e", lambda: NOW)
        for number in (1, 2)
    )
    assert first.routing_key is second.routing_key, "read once"
    assert [properties(message.header)["timestamp"] for message in (first, second)] == [1, 2]
    assert [properties(message.header)["expiration"] for message in (first, second)] == [8, 9]
    assert (first.expires_at, second.expires_at) == (8.0, 9.0)
    restored = restore_transfer(b"".join(second.stored_form()[0]))
    assert (restored.header, restored.expires_at) == (second.header, 9.0)


def test_the_redelivered_bit_and_nothing_else() -> None:
    message = read(header({"message_id": UUID(int=1)}, routing_key="k", redelivered=False) + UNKNOWN)
    plain = message.header_for_delivery(is_redelivered=False, now=NOW)
    marked = message.header_for_delivery(is_redelivered=True, now=NOW)
    assert plain == message.header
    assert [index for index in range(len(plain)) if plain[index] != marked[index]] == [6]
    assert properties(marked) == properties(plain) | {"redelivered": True}


# ---- what is kept ----

HEADS: dict[str, Callable[[], bytes]] = {
    "all": lambda: header(
        {"message_id": UUID(int=1), "application_headers": typed_map({"a": 1, "b": "two"})}, routing_key="k", priority=9
    ),
    "ttl": lambda: header(ttl=60_000, delivery_mode=2),
    "unknown": lambda: UNKNOWN,
    "none": lambda: b"",
}


@pytest.mark.parametrize("body", [b"", b"x", bytes(100_000), None])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_stored_transfer_is_restored_unchanged(head: Callable[[], bytes], body: bytes | None) -> None:
    message = read(head(), body)
    parts, size, _ = message.stored_form()
    data = b"".join(parts)
    assert len(data) == size
    restored = restore_transfer(data)
    assert (restored.header, restored.body, restored.has_body) == (message.header, body or b"", body is not None)
    for name in ("exchange", "routing_key", "handling", "is_persistent"):
        assert getattr(restored, name) == getattr(message, name)
    assert 0 <= restored.expires_at - message.expires_at < 1
    assert dict(plain_map(restored.headers())) == dict(plain_map(message.headers()))
    kept = decode_message_header(data[4 : 4 + header_size(data)])
    assert (kept.exchange, kept.routing_key or "") == ("amq.topic", message.routing_key)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x10abc", bytes(40), b"\0\0\0\x04\0\0\0\0" + bytes(20)])
def test_invalid_record_is_refused(data: bytes) -> None:
    with pytest.raises(BrokerRecordError):
        restore_transfer(data)


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 255))
def test_damaged_messages_are_read_or_refused(body: bytes, place: int, value: int) -> None:
    data = bytearray(encode_message(body, destination="e", delivery_properties={"routing_key": "key", "exchange": "e"}))
    data[place % len(data)] = value
    try:
        message = restore_transfer(bytes(data))
    except BrokerRecordError:
        return
    message.headers()
    message.header_for_delivery(is_redelivered=True, now=NOW)


def stored_like(kind: int, body: bytes, place: int, value: int) -> bytes:
    """Stored messages of which many begin alike; some are damaged."""
    data = bytearray(
        encode_message(
            body if kind % 5 else b"",
            destination="e",
            delivery_properties={"exchange": "e", "routing_key": "key" if kind % 3 else "other"},
            message_properties={"message_id": UUID(int=len(body))} if kind % 2 else {},
        )
    )
    data = bytearray(b"".join(restore_transfer(bytes(data)).stored_form()[0]))  # as this broker stores it
    if value:
        data[place % len(data)] = value
    return bytes(data)


@given(
    st.lists(st.tuples(st.integers(0, 29), st.binary(max_size=3), st.integers(0, 150), st.integers(0, 30)), max_size=9)
)
def test_messages_that_begin_alike_are_read_as_each_by_itself(kinds: list[tuple[int, bytes, int, int]]) -> None:
    def seen(restore: Callable[[Any], Message], data: bytes | tuple[int, int]) -> object:
        try:
            found = restore(data)
        except BrokerRecordError:
            return None
        assert isinstance(found, TransferMessage)
        names = ("header", "body", "has_body", "exchange", "routing_key", "handling", "is_persistent", "expires_at")
        parts, size = found.stored_parts()
        form = found.stored_form()
        assert (b"".join(parts), size) == (b"".join(form[0]), form[1])
        return [b"".join(parts), form[2], *(getattr(found, name) for name in names)]

    stored = [stored_like(*kind) for kind in kinds]
    whole = b"".join(stored)
    ends = [0, *accumulate(map(len, stored))]
    within = [seen(lambda data: restore_message(whole, *data), place) for place in pairwise(ends)]
    each = [seen(of_message._restore_any, data) for data in stored]
    assert [seen(restore_transfer, data) for data in stored] == within == each


def test_a_message_without_delivery_properties_that_qpidd_left() -> None:
    message = restore_transfer(encode_message(b"x", destination=""))
    assert (message.exchange, message.routing_key, message.body) == ("", "", b"x")
    assert encode_struct(DELIVERY_PROPERTIES, {"exchange": ""}) == message.header


@pytest.mark.parametrize("content", [b"", b"x", b"\x04" * 20])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_stored_transfer_without_a_header_frame(content: bytes, is_last: bool) -> None:
    whole = encode_message(b"", destination="e")
    size = int.from_bytes(whole[6:8], "big")
    flags = whole[4] | 0x04 if is_last else whole[4] & ~0x04
    message = restore_transfer(b"".join([size.to_bytes(4, "big"), bytes([flags]), whole[5 : 4 + size], content]))
    assert (message.body, message.has_body, message.routing_key) == (content, bool(content) or not is_last, "")


@pytest.mark.parametrize("size", [20, 50_000])
def test_cache_for_restored_messages_is_bounded(size: int) -> None:
    first, *more = (
        restore_transfer(encode_message(b"x", delivery_properties={"routing_key": "shared", "exchange": "e"}))
        for _ in range(2)
    )
    assert all(message.routing_key is first.routing_key for message in more), "read once"
    tracemalloc.start()
    try:
        for number in range(6000 if size < 100 else 600):
            properties = {"resume_id": f"{number:x}".rjust(size, "0"), "exchange": f"exchange {number}"}
            restore_transfer(encode_message(b"", delivery_properties=properties))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 5_000_000


def test_every_message_that_qpidd_left_is_as_qpidd_has_it(legacy_store: StoreFixture) -> None:
    kept = content_of(legacy_store.path).queues
    count = 0
    for queue in legacy_store.recovered["queues"]:
        restored = [restore_transfer(data) for state, _, data in kept[queue["name"]] if state == LIVE]
        if queue["name"] == "fx.prio":  # qpidd gives the urgent ones first
            restored.sort(key=lambda message: -message.handling.priority)
        for message, expected in zip(restored, queue["messages"], strict=True):
            assert hashlib.sha256(message.body).hexdigest() == expected["body_sha256"]
            assert (message.exchange, message.routing_key) == (expected["exchange"], expected["routing_key"])
            assert message.is_persistent == (expected["delivery_mode"] == 2)
            assert message.handling.priority == expected.get("priority", 4)
            assert plain_map(message.headers()).get("sn") == expected.get("sn")
            again = restore_transfer(b"".join(message.stored_form()[0]))
            assert (again.header, again.body, again.has_body) == (message.header, message.body, message.has_body)
            count += 1
    assert count > 0
