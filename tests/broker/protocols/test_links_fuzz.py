"""AMQP 1.0: whatever bytes a client sends, the broker answers with an error, serves others, and keeps nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_1_0.composites import BY_NAME, PERFORMATIVES, Composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER, SASL_HEADER, encode_frame
from qstore.formats.amqp_1_0.values import Value
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.formats.test_amqp_1_0 import composites
from tests.support.sections_peer import ACCEPTED, content

frames = st.sampled_from(sorted(PERFORMATIVES)).flatmap(composites)


def world_with_client() -> tuple[World, LinksClient]:
    world = World()
    make_queue(world)
    client = LinksClient(world).open()
    client.sender("q").receiver("q", 1)
    return world, client


def check_others(world: World) -> None:
    """Another client is served, and nothing is left of incomplete messages."""
    other = LinksClient(world).open().sender("q")
    other.publish(durable=False)
    assert other.outcomes() == [(0, 0, "accepted")]


@given(st.lists(st.tuples(frames, st.integers(0, 3), st.binary(max_size=20)), max_size=8))
def test_any_performatives(performatives: list[tuple[Composite, int, bytes]]) -> None:
    world, client = world_with_client()
    for (name, fields), channel, body in performatives:
        client.send(client.encode(name, channel, body if name == "transfer" else b"", **fields))
    world.run()
    client.machine.dismantle()
    world.run()
    check_others(world)
    assert world.links_connections.budget.used == 0  # type: ignore[attr-defined]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes(data: bytes, is_open: bool) -> None:
    world, client = world_with_client()
    if not is_open:
        client = LinksClient(world)
        client.send(random.Random(data).choice([SASL_HEADER, AMQP_HEADER]))
    client.send(data)
    world.run()
    client.machine.dismantle()
    world.run()
    check_others(world)


@given(st.data())
def test_damaged_conversations(data: st.DataObject) -> None:
    world, client = world_with_client()
    sent = bytearray(b"".join(client.transfers(0, 0, content(bytes(9_000), durable=False))))
    sent += client.encode("disposition", role=True, first=0, last=9, settled=True, state=ACCEPTED)
    sent += client.encode("flow", incoming_window=5, next_incoming_id=0, next_outgoing_id=0, outgoing_window=1)
    sent += client.encode("detach", handle=1, closed=True)
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    client.send(bytes(sent))
    world.run()
    client.machine.dismantle()
    world.run()
    check_others(world)
    assert world.links_connections.budget.used == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_each_described_type_in_a_frame(name: str) -> None:
    world, client = world_with_client()
    client.send(encode_frame(0, BY_NAME[name].head + b"\x45"))
    world.run()
    assert client.machine.phase in (Phase.OPEN, Phase.CLOSING, Phase.CLOSED)
    check_others(world)


def test_numbers_wrap_around() -> None:
    world, client = world_with_client()
    del client
    sender = LinksClient(world).start()
    sender.do("begin", next_outgoing_id=0xFFFFFFFE, incoming_window=10, outgoing_window=10)
    sender.sync()
    sender.take()
    sender.do(
        "attach", name="l", handle=0, role=False, source=Composite("source", {}), initial_delivery_count=0xFFFFFFFF,
        target=Composite("target", {"address": value("q")}),
    )  # fmt: skip
    sender.take()
    for number in range(0xFFFFFFFE, 0x100000003):
        for frame in sender.transfers(0, number, content(b"x", durable=False)):
            sender.send(frame)
    assert sender.outcomes() == [(0xFFFFFFFE, 2, "accepted")]


def value(text: str) -> Value:
    return Value("string", text)
