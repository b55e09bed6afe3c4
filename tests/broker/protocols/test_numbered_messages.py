"""A message that an exchange numbers gets a new header; the rest of it stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.protocols.amqp_0_10.message import TransferMessage, restore_transfer
from qstore.broker.protocols.amqp_0_10.publishing import TransferReader
from qstore.formats.amqp_0_10.structs import FRAGMENT_PROPERTIES, MESSAGE_PROPERTIES, decode_struct, encode_struct
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.broker.protocols.world import World, header

NAME = "qpid.msg_sequence"


def message(content: bytes, body: bytes | None = b"body") -> TransferMessage:
    return TransferReader().read(content, body, "x", lambda: 1000.0)


def stored(message: TransferMessage) -> bytes:
    parts, size, _ = message.stored_form()
    data = b"".join(parts)
    assert len(data) == size
    return data


_HEADERS = st.dictionaries(st.text(max_size=20), st.one_of(st.integers(-100, 100), st.text(max_size=20)), max_size=5)


@given(
    headers=st.one_of(st.none(), _HEADERS),
    delivery=st.fixed_dictionaries({}, optional={"routing_key": st.just("k"), "ttl": st.just(5000)}),
    number=st.integers(-(1 << 63), (1 << 63) - 1),
    body=st.one_of(st.none(), st.binary(max_size=20)),
)
def test_the_number_comes_back_and_everything_else_stays(
    headers: dict[str, Any] | None, delivery: dict[str, Any], number: int, body: bytes | None
) -> None:
    properties: dict[str, Any] = {"message_id": None, "content_type": "t"}
    if headers is not None:
        properties["application_headers"] = typed_map(headers)
    original = message(header(properties, **delivery), body)
    before = original.header, stored(original)
    numbered = original.with_number(NAME, number)
    assert plain_map(numbered.headers()) == {**plain_map(original.headers()), NAME: number}
    for name in ("body", "has_body", "routing_key", "expires_at", "is_persistent", "exchange", "handling"):
        assert getattr(numbered, name) == getattr(original, name)
    assert (original.header, stored(original)) == before
    again = restore_transfer(stored(numbered))
    assert plain_map(again.headers()) == plain_map(numbered.headers())
    assert (again.body, again.has_body, again.routing_key) == (original.body, original.has_body, original.routing_key)


def test_numbered_twice_it_has_the_second_number() -> None:
    numbered = message(b"").with_number(NAME, 1).with_number(NAME, 2)
    assert plain_map(numbered.headers()) == {NAME: 2}


def test_structs_around_it_stay_where_they_are() -> None:
    before, after = (encode_struct(FRAGMENT_PROPERTIES, {"fragment_size": size}) for size in (1, 2))
    original = message(header(routing_key="k") + before + encode_struct(MESSAGE_PROPERTIES, {"app_id": b"a"}) + after)
    numbered = original.with_number(NAME, 1)
    at, end = numbered.header.index(before) + len(before), numbered.header.index(after)
    assert numbered.header[:at] == original.header[:at]
    assert numbered.header[end:] == after
    values = decode_struct(MESSAGE_PROPERTIES, numbered.header, at, end)
    assert values["app_id"] == b"a"


@given(st.binary(max_size=40))
def test_message_properties_that_are_no_such_struct(raw: bytes) -> None:
    struct = (len(raw) + 2).to_bytes(4, "big") + b"\x04\x03" + raw
    if len(raw) < 2:
        return
    original = message(header(routing_key="k") + struct)
    try:
        numbered = original.with_number(NAME, 1)
    except InvalidArgumentError:
        return
    assert plain_map(numbered.headers())[NAME] == 1


def test_a_map_that_is_cut_off() -> None:
    broken = bytearray(encode_struct(MESSAGE_PROPERTIES, {"application_headers": typed_map({"n": 1})}))
    broken[3] -= 1
    with pytest.raises(InvalidArgumentError, match=r"qpid\.msg_sequence"):
        message(header(routing_key="k") + bytes(broken[:-1])).with_number(NAME, 1)


def test_the_number_is_stored_with_the_message() -> None:
    world = World()
    client = world.open_client()
    client.command("exchange.declare", exchange="x", type="fanout", arguments=typed_map({NAME: 1}))
    client.sync()
    exchange = world.broker.default_host.exchanges["x"]
    for name in ("q", "r"):
        exchange.bind(world.durable_queue(name), "")
    client.publish("k", b"1", b"2", exchange="x", delivery_mode=2)
    client.sync()
    kept = [restore_transfer(data) for data in world.store.enqueued]
    assert [(each.body, plain_map(each.headers())) for each in kept] == [
        (body, {NAME: number}) for number, body in enumerate((b"1", b"2")) for _ in range(2)
    ]
