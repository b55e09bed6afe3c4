"""Hostile clients of AMQP 0-9-1: the broker answers with an error or goes on; it never fails or leaks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_9_1.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, encode_frame
from qstore.formats.amqp_0_9_1.methods import METHODS, Method, encode_method
from qstore.formats.amqp_0_9_1.properties import encode_header
from qstore.formats.amqp_0_9_1.tables import Field
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.formats.amqp_0_9_1_values import PROPERTY_SETS

_NAMES = st.sampled_from(["", "q", "other", "amq.direct", "amq.match", "e", "c", "nowhere"])
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 9),
    "short": st.integers(0, 3),
    "long": st.integers(0, 3),
    "longlong": st.integers(0, 6),
    "timestamp": st.integers(0, 9),
    "shortstr": _NAMES,
    "longstr": st.binary(max_size=5),
    "table": st.sampled_from([EMPTY_MAP, typed_map({"x-match": "any", "a": 1}), typed_map({"x-new": {"b": [1]}})]),
}
_TYPES = st.sampled_from(["direct", "fanout", "headers", "nothing"])


def _field(method: Method, field: Field) -> st.SearchStrategy[Any]:
    if (method.name, field.name) == ("exchange.declare", "type"):
        return _TYPES
    return st.just(0) if field.name == "prefetch_size" else _FIELDS[field.type_name]


def _method(method: Method) -> st.SearchStrategy[bytes]:
    values = {field.name: _field(method, field) for field in method.fields}
    return st.fixed_dictionaries(values).map(lambda given: encode_method(method.name, **given))


_USUAL = [each for each in METHODS if not each.has_content and each.class_id != 10 and not each.name.endswith("-ok")]
_PAYLOADS = st.sampled_from(_USUAL).flatmap(_method)
_ANY_PAYLOADS = st.sampled_from(METHODS).flatmap(_method)
_CHANNELS = st.integers(1, 2)
_PUBLISHES = st.builds(
    lambda channel, key, exchange, mandatory, properties, body, size: b"".join(
        (
            encode_frame(
                METHOD, channel, encode_method("basic.publish", exchange=exchange, routing_key=key, mandatory=mandatory)
            ),
            encode_frame(HEADER, channel, encode_header(len(body) if size < 0 else size, properties)),
            encode_frame(BODY, channel, body) if body else b"",
        )
    ),
    _CHANNELS, _NAMES, _NAMES, st.booleans(), PROPERTY_SETS, st.binary(max_size=9), st.sampled_from([-1] * 9 + [0, 5]),
)  # fmt: skip
_ACTIONS = st.one_of(
    st.builds(encode_frame, st.just(METHOD), _CHANNELS, _PAYLOADS),
    _PUBLISHES,
    st.builds(encode_frame, st.integers(0, 9), st.integers(0, 3), _ANY_PAYLOADS | st.binary(max_size=30)),
    st.binary(max_size=20),
)


def _is_in_order(world: World, client: BasicClient) -> None:
    """Nothing is held for a connection that has ended, and every message is somewhere."""
    world.run()
    client.machine.dismantle()
    world.run()
    assert client.machine.phase is Phase.CLOSED
    assert client.machine._assembler.pending_bytes == 0
    for queue in world.broker.default_host.queues.values():
        assert queue.acquired_count == 0
        assert queue.consumer_count == 0
        assert queue.owner is None
    assert not world.broker.transactions


@given(st.lists(_ACTIONS, max_size=25), st.integers(1, 400))
def test_an_open_connection(actions: list[bytes], step: int) -> None:
    world = World()
    client = BasicClient(world).open(1, 2)
    client.call("queue.declare", queue="q")
    data = b"".join(actions)
    for at in range(0, len(data), step):
        client.send(data[at : at + step])
        client.sync()
    _is_in_order(world, client)


@given(st.binary(max_size=80), st.booleans())
def test_a_connection_that_begins(data: bytes, has_header: bool) -> None:
    world = World()
    client = BasicClient(world)
    client.send((PROTOCOL_HEADER if has_header else b"") + data)
    _is_in_order(world, client)
