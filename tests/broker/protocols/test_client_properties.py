"""Equal client properties of connections of AMQP 0-9-1 are decoded once."""

from __future__ import annotations

import pytest

from qstore.broker.protocols.amqp_0_9_1.connection import _CLIENTS_KEPT, _kept_client
from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.methods import START_OK, decode_method, decode_start_ok
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.support.basic_peer import BasicWire


def start_ok(**properties: object) -> bytes:
    wire = BasicWire()
    frame = wire.encode(
        "connection.start-ok", 0, client_properties=typed_map(properties), mechanism="PLAIN", response=b"\0u\0p",
        locale="en_US",
    )  # fmt: skip
    return frame[7:-1]


def test_it_is_the_method_with_an_encoded_table() -> None:
    payload = start_ok(product="x", capabilities={"basic.nack": True})
    table, values = decode_start_ok(payload)
    method, expected = decode_method(payload)
    assert payload.startswith(START_OK + table)
    assert method.name == "connection.start-ok"
    assert _kept_client(table).properties == expected.pop("client_properties")
    assert _kept_client(table).capabilities == {"basic.nack"}
    assert values == expected


@pytest.mark.parametrize("size", range(1, 60, 7))
def test_what_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(Amqp091Error):
        decode_start_ok(start_ok(product="x" * 30)[: 4 + size])


def test_connections_of_a_program_share_its_properties() -> None:
    world = World()
    one, same = BasicClient(world, product="p").open(), BasicClient(world, product="p").open()
    other = BasicClient(world, product="q").open()
    assert one.machine.client_properties is same.machine.client_properties
    assert one.machine.client_properties != other.machine.client_properties
    assert one.machine.capabilities == other.machine.capabilities != frozenset()


def test_few_and_small_properties_are_kept() -> None:
    """A peer that has not logged in may send them."""
    _kept_client.cache_clear()
    world = World()
    for number in range(_CLIENTS_KEPT + 5):
        BasicClient(world, product=f"p{number}").open()
    large = BasicClient(world, product="p" * 2000).open()
    assert _kept_client.cache_info().currsize == _CLIENTS_KEPT
    assert _kept_client.cache_info().misses == _CLIENTS_KEPT + 5
    assert large.machine.client_properties.get("product") is not None


def test_properties_that_are_no_table_close_the_connection() -> None:
    client = BasicClient(World())
    client.send(client.version.header)
    payload = start_ok(product="x" * 30)
    wrong = payload[:8] + b"\xff" + payload[9:]  # the first name ends beyond the table
    client.send(b"\x01\x00\x00" + len(wrong).to_bytes(4, "big") + wrong + b"\xce")
    assert client.take()[-1].name == "connection.close"
    assert client.machine.phase is Phase.CLOSING
