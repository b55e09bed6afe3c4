"""AMQP 1.0: messages that stay in runs on their way to a client, and what divides these."""

from __future__ import annotations

import random

import pytest

from qstore.broker.model.run import MIN_RUN
from qstore.broker.protocols.amqp_1_0 import session as session_module
from qstore.formats.amqp_1_0.composites import Composite, encode_composite
from qstore.formats.amqp_1_0.sections import VALUE
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.world import World
from tests.support.sections_peer import ACCEPTED, REJECTED, RELEASED, Delivered, content

FAILED = Composite("modified", {"delivery_failed": True})
COUNT = 20


def fill(world: World, count: int = COUNT, queue: str = "q", *, durable: bool = False) -> None:
    """Messages in one read, most of them in a run: their bodies are the numbers from 0."""
    client = LinksClient(world).open().sender(queue)
    frames = [
        b"".join(client.transfers(0, number, content(b"%04d" % number, durable=durable), message_format=0))
        for number in range(1000, 1000 + count)
    ]
    client.send(frames[0])  # the others are like it
    client.send(b"".join(frames[1:]))
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()


def numbers(found: list[Delivered]) -> list[int]:
    return [int(each.content[-4:]) - 1000 for each in found]


def held(client: LinksClient) -> int:
    """Deliveries that are unsettled in runs."""
    return client.machine.sessions[0].held_runs.count


def left(world: World, queue: str = "q") -> int:
    return world.broker.default_host.queues[queue].message_count


@pytest.fixture
def world() -> World:
    world = World()
    make_queue(world)
    return world


def reading(world: World, count: int = COUNT, **fields: object) -> tuple[LinksClient, list[Delivered]]:
    client = LinksClient(world).open().receiver("q", credit=count, **fields)
    return client, client.messages()


def test_a_run_is_delivered_as_its_messages_would_be(world: World) -> None:
    fill(world)
    client, found = reading(world)
    assert numbers(found) == list(range(COUNT))
    assert [each.id for each in found] == list(range(COUNT))
    assert [each.fields["delivery_tag"] for each in found] == [number.to_bytes(8, "big") for number in range(COUNT)]
    assert all(each.header["first_acquirer"] for each in found)
    assert held(client) == COUNT - 1
    session = client.machine.sessions[0]
    assert (session.unsettled_count, session.subscriptions["link-0"].delivered) == (COUNT, COUNT)


def test_delivery_ids_are_consecutive_over_a_byte_and_the_end_of_numbers(world: World) -> None:
    fill(world, 700)
    client = LinksClient(world).open().receiver("q", credit=0)
    session = client.machine.sessions[0]
    session.next_delivery = (1 << 32) - 300
    client.credit(700)
    found = client.messages()
    assert [each.id for each in found] == [number & 0xFFFFFFFF for number in range((1 << 32) - 300, (1 << 32) + 400)]
    assert held(client) > 600
    client.settle(ACCEPTED, found[0].id, 0xFFFFFFFF)
    client.settle(ACCEPTED, 0, found[-1].id)
    client.sync()
    assert left(world) == 0


@pytest.mark.parametrize(("first", "last"), [(0, 19), (0, 7), (5, 9), (12, 19), (7, 7), (0, 1000)])
@pytest.mark.parametrize("settled", [False, True])
def test_a_part_of_a_run_is_accepted(first: int, last: int, settled: bool) -> None:
    world = World()
    world.durable_queue("d")
    fill(world, queue="d", durable=True)
    client = LinksClient(world).open().receiver("d", credit=COUNT)
    assert (len(client.messages()), held(client)) == (COUNT, COUNT - 1)
    client.settle(ACCEPTED, first, last, settled=settled)
    client.sync()
    end = min(last, COUNT - 1)
    assert sorted(world.store.dequeued) == [number + 1 for number in range(first, end + 1)]
    assert client.outcomes() == []  # it is not on the disk yet
    while world.store.flushes:
        world.store.end_flush()
    told = {number for begin, stop, _ in client.outcomes() for number in range(begin, stop + 1)}
    assert told == (set() if settled else set(range(first, end + 1)))
    assert left(world, "d") == COUNT - (end + 1 - first)


@pytest.mark.parametrize("state", [RELEASED, FAILED, None])
def test_a_part_of_a_run_comes_back(world: World, state: Composite | None) -> None:
    fill(world)
    client, _ = reading(world)
    client.settle(state, 5, 9)
    client.sync()
    assert held(client) == COUNT - 1 - 5
    client.credit(2 * COUNT)
    found = client.messages()
    assert numbers(found) == [5, 6, 7, 8, 9]
    assert {each.header["delivery_count"] for each in found} == {1 if state is FAILED else 0}
    client.settle(ACCEPTED, 0, 100)
    client.sync()
    assert left(world) == 0


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, REJECTED, None])
def test_a_range_that_ends_before_it_begins_has_no_deliveries(world: World, state: Composite | None) -> None:
    fill(world)
    client, _ = reading(world)
    client.settle(state, 10, 5)
    client.sync()
    assert (left(world), held(client), client.machine.sessions[0].unsettled_count) == (COUNT, COUNT - 1, COUNT)
    client.settle(ACCEPTED, 0, COUNT)
    client.sync()
    assert left(world) == 0


def test_rejected_messages_of_a_run_go_to_dead_letters_in_order() -> None:
    world = World()
    make_queue(world, "dead")
    maker = world.open_client(name=b"m")
    maker.declare("q", alternate_exchange="amq.fanout")
    maker.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    maker.sync()
    fill(world)
    client, _ = reading(world)
    client.settle(RELEASED, 3, 3)  # a single one in the middle
    client.credit(COUNT + 1)
    client.messages()
    client.settle(REJECTED, 0, 100)
    client.sync()
    assert left(world) == 0
    dead = LinksClient(world).open().receiver("dead", credit=COUNT)
    assert numbers(dead.messages()) == [*(number for number in range(COUNT) if number != 3), 3]


@pytest.mark.parametrize("way", ["detach", "end", "lost"])
def test_runs_are_given_back_when_their_link_ends(world: World, way: str) -> None:
    fill(world)
    client, _ = reading(world)
    client.settle(ACCEPTED, 0, 3)
    if way == "lost":
        client.machine.closed()
    elif way == "detach":
        client.do("detach", handle=0, closed=True)
    else:
        client.do("end")
    world.run()
    _, found = reading(world)
    assert numbers(found) == list(range(4, COUNT))
    assert {each.header["delivery_count"] for each in found} == {1 if way == "lost" else 0}


def test_only_the_runs_of_a_link_that_is_detached_are_given_back(world: World) -> None:
    make_queue(world, "r")
    fill(world)
    fill(world, queue="r")
    client = LinksClient(world).open().receiver("q", 0, credit=COUNT)
    assert len(client.messages()) == COUNT
    client.receiver("r", 1, credit=COUNT)
    assert len(client.messages()) == COUNT
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert held(client) == COUNT - 1
    client.settle(ACCEPTED, 0, 2 * COUNT)
    client.sync()
    assert (left(world), left(world, "r")) == (COUNT, 0)


def test_messages_that_are_sent_settled_are_dequeued_in_runs(world: World) -> None:
    fill(world)
    client, found = reading(world, snd_settle_mode=1)
    assert (numbers(found), left(world), held(client)) == (list(range(COUNT)), 0, 0)
    assert {each.fields["settled"] for each in found} == {True}


def test_a_run_takes_no_more_than_credit_and_window(world: World) -> None:
    fill(world)
    client = LinksClient(world).open().receiver("q", credit=0)
    client.credit(9, incoming_window=7)
    assert numbers(client.messages()) == list(range(7))
    client.credit(9, incoming_window=100, next_incoming_id=7)
    assert numbers(client.messages()) == [7, 8]
    session = client.machine.sessions[0]
    session.max_unsettled = 15
    client.credit(COUNT, next_incoming_id=9)
    assert numbers(client.messages()) == list(range(9, 15))
    client.settle(ACCEPTED, 0, 8)
    assert numbers(client.messages()) == list(range(15, COUNT))


def test_what_does_not_fit_is_not_sent_in_runs(world: World) -> None:
    fill(world)
    client = LinksClient(world).open().receiver("q", credit=COUNT, max_message_size=10)
    assert client.messages() == []
    client.receiver("q", 1, credit=COUNT, properties=())
    assert numbers(client.messages()) == list(range(COUNT))


def test_a_run_may_be_retired_in_a_transaction(world: World) -> None:
    fill(world)
    client, _ = reading(world)
    client.do("attach", name="c", handle=3, role=False, target=Composite("coordinator", {}), initial_delivery_count=0)
    client.sync()

    def command(name: str, **fields: object) -> bytes:
        return bytes((0, 0x53, VALUE)) + encode_composite(name, fields)

    client.received.clear()
    client.publish(message=command("declare"), handle=3)
    (declared,) = client.take("disposition")
    txn_id = declared.fields["state"].fields["txn_id"]
    client.settle(Composite("transactional-state", {"txn_id": txn_id, "outcome": ACCEPTED}), 4, 11, settled=True)
    client.sync()
    assert left(world) == COUNT
    client.publish(message=command("discharge", txn_id=txn_id, fail=False), handle=3)
    client.sync()
    assert left(world) == COUNT - 8
    client.settle(ACCEPTED, 0, 100)
    client.sync()
    assert left(world) == 0


@pytest.mark.parametrize("seed", range(12))
def test_each_message_is_accepted_once_or_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever parts of runs are settled, how and in which order: also in turns."""
    chosen = random.Random(seed)
    world = World()
    make_queue(world)
    if chosen.random() < 0.5:
        monkeypatch.setattr(session_module, "RUNS_AT_ONCE", MIN_RUN)
        monkeypatch.setattr(session_module, "AT_ONCE", 3)
    count = 200
    fill(world, count)
    client = LinksClient(world).open().receiver("q", credit=0)
    seen, handle, at_attach = 0, 0, 0
    open_ones: dict[int, int] = {}  # delivery-id -> number
    accepted: list[int] = []
    for _ in range(120):
        what = chosen.choice(("credit", "credit", "accept", "accept", "release", "fail", "none", "detach"))
        if what == "credit":
            client.credit(chosen.randrange(1, 60), handle, seen=seen - at_attach)
        elif what == "detach":
            if chosen.random() < 0.3:
                client.do("detach", handle=handle, closed=True)
                assert len(client.take("detach")) == 1
                open_ones.clear()
                handle, at_attach = handle + 1, seen
                client.receiver("q", handle, credit=0)
        elif open_ones:
            first = chosen.choice(list(open_ones)) - chosen.randrange(3)
            last = first + chosen.randrange(40)
            state = {"accept": ACCEPTED, "release": RELEASED, "fail": FAILED, "none": None}[what]
            client.settle(state, max(0, first), max(0, last), settled=state is None or chosen.random() < 0.5)
            for delivery_id in [each for each in open_ones if first <= each <= last]:
                number = open_ones.pop(delivery_id)
                if state is ACCEPTED:
                    accepted.append(number)
        found = client.messages()
        seen += len(found)
        for each, number in zip(found, numbers(found), strict=True):
            assert number not in accepted
            open_ones[each.id] = number
    session = client.machine.sessions[0]
    assert session.unsettled_count == len(open_ones)
    assert len(accepted) == len(set(accepted))
    assert left(world) == count - len(accepted)
    client.machine.closed()
    world.run()
    _, rest = reading(world, count)
    assert sorted(numbers(rest)) == sorted(set(range(count)) - set(accepted))
    assert numbers(rest) == sorted(numbers(rest))
