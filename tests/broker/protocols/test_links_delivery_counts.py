"""How often a message has returned, and whether it was acquired before, as consumers of all protocols see it."""

from __future__ import annotations

import pytest

from qstore.broker.model.queues import queue as queue_module
from qstore.broker.model.queues.queue import DELIVERY_COUNT
from qstore.formats.amqp_1_0.composites import Composite
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.compiled import replaces
from tests.support.sections_peer import ACCEPTED, RELEASED, Delivered

FAILED = Composite("modified", {"delivery_failed": True})


@pytest.fixture
def world() -> World:
    return World()


def publish(world: World, count: int, name: str = "q") -> None:
    client = LinksClient(world).open().sender(name)
    for number in range(count):
        client.publish(b"%d" % number, settled=True)
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def counted(found: list[Delivered]) -> list[tuple[int, bool]]:
    """The delivery count of each, and whether it is the first to be acquired."""
    return [(each.header.get("delivery_count") or 0, bool(each.header["first_acquirer"])) for each in found]


@pytest.mark.parametrize("has_journal", [False, True])
def test_each_delivery_that_fails_is_counted(world: World, has_journal: bool) -> None:
    _ = world.durable_queue("q") if has_journal else make_queue(world)
    publish(world, 1)
    client = LinksClient(world).open().receiver("q", 1)
    found = []
    for number in range(5):
        client.credit(1, 1, seen=number)
        (delivered,) = client.messages()
        found.append(delivered)
        client.settle(FAILED, number)
    assert counted(found) == [(0, True), (1, False), (2, False), (3, False), (4, False)]
    assert list(world.store.counted.values()) == [5] * has_journal
    client.credit(1, 1, seen=5)
    client.messages()
    client.settle(ACCEPTED, 5)
    client.sync()
    queue = world.broker.default_host.queues["q"]
    assert queue.returns == {}
    assert list(world.store.counted.values()) == [None] * has_journal


def test_a_message_that_was_released_was_acquired_before_and_has_not_failed(world: World) -> None:
    make_queue(world)
    publish(world, 1)
    client = LinksClient(world).open().receiver("q", 1)
    outcomes = [RELEASED, RELEASED, FAILED, RELEASED, FAILED]
    found = []
    for number, outcome in enumerate([*outcomes, ACCEPTED]):
        client.credit(1, 1, seen=number)
        found += client.messages()
        client.settle(outcome, number)
    assert counted(found) == [(0, True), (0, False), (0, False), (1, False), (1, False), (2, False)]
    client.sync()
    assert world.broker.default_host.queues["q"].returns == {}


@pytest.mark.parametrize("outcome", [RELEASED, FAILED], ids=["released", "failed"])
@pytest.mark.parametrize("returned", [[0], [3, 4], [19], [5, 6, 7, 12]])
def test_the_others_of_a_run_stay_together(world: World, outcome: Composite, returned: list[int]) -> None:
    """Those that have returned are delivered with their numbers, in their places."""
    world.paged_queue("q")
    publish(world, 20)
    client = LinksClient(world).open().receiver("q", 1)
    first = 0
    for turn in range(2):
        client.credit(20, 1, seen=first)
        found = client.messages()
        assert len(found) == 20
        expected = (turn, not turn) if outcome is FAILED else (0, not turn)
        assert {counted(found)[number] for number in returned} == {expected}
        for number, each in enumerate(found):
            state = outcome if number in returned else Composite("released", {})
            client.settle(state, each.id)
        client.sync()
        first += 20
    client.credit(20, 1, seen=first)
    found = client.messages()
    assert [each.content[-2:].lstrip(b"\x01\x02") for each in found] == [b"%d" % number for number in range(20)]
    last = (2, False) if outcome is FAILED else (0, False)
    assert [counted(found)[number] for number in range(20)] == [
        last if number in returned else (0, False) for number in range(20)
    ]


def test_what_is_known_of_returns_is_found_again_by_record_id(world: World) -> None:
    """As at a start, from entries, runs and stretches."""
    queue = world.paged_queue("q")
    publish(world, 40)
    rids = [entry.rid for entry in queue.entries()]
    counts = {rids[0]: 3, rids[17]: 2, rids[39]: 0, max(rids) + 1: 9}
    queue.recover_returns(counts)
    client = LinksClient(world).open().receiver("q", 1)
    client.credit(40, 1)
    found = counted(client.messages())
    assert [found[number] for number in (0, 17, 39)] == [(3, False), (2, False), (0, False)]
    assert set(found[1:17] + found[18:39]) == {(0, True)}
    assert dict(queue.last_returns()) == {rids[0]: 4, rids[17]: 3}, "a consumer holds all of them"


def test_those_that_consumers_hold_return_with_the_end_of_the_broker(world: World) -> None:
    queue = world.durable_queue("q")
    publish(world, 3)
    rids = [entry.rid for entry in queue.entries()]
    client = LinksClient(world).open().receiver("q", 1)
    client.credit(3, 1)
    assert len(client.messages()) == 3
    client.settle(FAILED, 0)
    client.settle(RELEASED, 1)
    client.sync()
    assert dict(queue.last_returns()) == {rids[1]: 0}
    client.credit(2, 1, seen=3)
    assert len(client.messages()) == 2
    assert dict(queue.last_returns()) == {rids[0]: 2}
    queue.delivery_limit = 20
    assert dict(queue.last_returns()) == {rids[0]: 1, rids[1]: 1, rids[2]: 1}


@replaces
def test_the_counts_of_a_queue_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_COUNTED", 2)
    make_queue(world)
    publish(world, 4)
    client = LinksClient(world).open().receiver("q", 1)
    for turn in range(3):
        client.credit(4, 1, seen=4 * turn)
        assert len(client.messages()) == 4
        client.settle(FAILED, 4 * turn, 4 * turn + 3)
        client.sync()
    client.credit(4, 1, seen=12)
    assert counted(client.messages()) == [(3, False), (3, False), (1, False), (1, False)]


def test_other_protocols_are_told_of_queues_with_a_limit(world: World) -> None:
    queue = make_queue(world)
    publish(world, 1)
    client = LinksClient(world).open().receiver("q", 1)
    for number in range(2):
        client.credit(1, 1, seen=number)
        client.messages()
        client.settle(FAILED, number)
    client.sync()
    (entry,) = queue.entries()
    assert queue.as_returned(entry) is entry.message
    queue.delivery_limit = 20
    shown = queue.as_returned(entry).properties().headers.get(DELIVERY_COUNT)
    assert shown is not None
    assert shown.value == queue.returns[entry.position] == 2
