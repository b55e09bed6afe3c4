"""The sizes of the messages that publishers have sent, by protocol."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qstore.broker.model.counters import MESSAGE_SIZES, MessageSizes
from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.bodies import joined
from tests.support.sections_peer import content

SIZES = (0, 1, 99, 100, 101, 1_000, 1_001, 9_999, 10_000, 10_001, 100_000, 100_001, 5)
ALIKE = (100, 100, 100, 100, 100, 101, 101, 101, 99, 5000, 100, 100)


def expected(sizes: tuple[int, ...]) -> tuple[int, list[int]]:
    bounds = (-1, *MESSAGE_SIZES, 1 << 60)
    counts = [sum(low < size <= high for size in sizes) for low, high in pairwise(bounds)]
    return sum(sizes), counts


def counted(world: World, protocol: str) -> tuple[int, list[int]]:
    sizes = world.broker.message_sizes[protocol]
    return sizes.bytes, sizes.counts


def cut(data: bytes, piece: int) -> list[bytes]:
    return [data[at : at + piece] for at in range(0, len(data), piece)]


@pytest.mark.parametrize("piece", [1 << 20, 700, 97])
@pytest.mark.parametrize("keys", [("q",), ("q", "other"), ("q", "other", "third", "fourth")])
@pytest.mark.parametrize("sizes", [SIZES, ALIKE, ALIKE * 20])
def test_messages_are_counted_by_the_sizes_of_their_bodies(
    sizes: tuple[int, ...], keys: tuple[str, ...], piece: int
) -> None:
    world = World()
    client = BasicClient(world).open(1)
    for key in keys:
        client.call("queue.declare", queue=key)
    frames = [client.message(keys[at % len(keys)], bytes(size), Properties()) for at, size in enumerate(sizes)]
    for data in cut(b"".join(frames), piece):
        client.send(data)
        client.sync()
    client.machine.on_timer(world.now)
    assert counted(world, "AMQP 0-9-1") == expected(sizes)


@pytest.mark.parametrize("sizes", [SIZES, ALIKE, ALIKE * 20])
def test_transfers_of_0_10_are_counted(sizes: tuple[int, ...]) -> None:
    world = World()
    client = world.open_client()
    client.declare("q")
    client.publish("q", *(bytes(size) for size in sizes))
    client.sync()
    client.machine.on_timer(world.now)
    assert counted(world, "AMQP 0-10") == expected(sizes)


def test_all_sections_of_messages_of_1_0_are_counted() -> None:
    world = World()
    make_queue(world)
    client = LinksClient(world).open()
    client.sender("q")
    for size in SIZES:
        client.publish(bytes(size))
    client.sync()
    client.machine.closed()
    assert counted(world, "AMQP 1.0") == expected(tuple(len(content(bytes(size))) for size in SIZES))


@pytest.mark.parametrize("count", [0, 3, 7])
def test_a_run_is_counted_by_classes(count: int) -> None:
    sizes = (90, 2_000, 100, 101, 1_001, 99, 7_000)
    found = MessageSizes()
    found.add_run(joined([bytes(size) for size in sizes]), count)
    assert (found.bytes, found.counts) == expected(sizes[:count])
    assert found.messages == count
    assert found.by_bound()["100"] == sum(size <= 100 for size in sizes[:count])
