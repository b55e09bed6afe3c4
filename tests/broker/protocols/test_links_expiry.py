"""AMQP 1.0: when subscriptions and dynamic nodes end, by the expiry policy and the time-out of their links."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qstore.broker.model.caller import BROKER
from qstore.broker.model.queues.queue import Queue
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links import selector
from tests.broker.protocols.world import World
from tests.support.sections_peer import Received

TIMEOUT = 60
EVENTS = ("detach", "end", "close")
POLICIES = ("link-detach", "session-end", "connection-close", "never")
SUBSCRIPTION = "test_l"


@pytest.fixture
def world() -> World:
    return World()


def attach(client: LinksClient, node: str | None = "amq.fanout", handle: int = 1, **terminus: Any) -> Received:
    """Attach the link `l`, which receives."""
    channel = terminus.pop("channel", 0)
    came = client.attach(node, handle, receives=True, name="l", terminus=terminus, channel=channel)
    assert [each.name for each in came] == ["attach"], came
    return came[0]


def source_of(attached: Received) -> tuple[str, int, int]:
    """Expiry policy, time-out and durability as the broker has answered them."""
    fields = attached.fields["source"].fields
    return fields["expiry_policy"], fields["timeout"], fields["durable"]


def has(world: World, name: str = SUBSCRIPTION) -> bool:
    """Whether a queue is there, once those that are due are deleted."""
    host = world.broker.default_host
    for queue in host.idle_queues.take_due():
        asyncio.run(host.topology.delete_if_unused(queue))
    world.run()
    return name in host.queues


def queue_of(world: World, name: str = SUBSCRIPTION) -> Queue:
    return world.broker.default_host.queues[name]


def do(client: LinksClient, event: str) -> None:
    if event == "detach":
        client.do("detach", handle=1, closed=False)
    else:
        client.do(event)
    client.take()


def publish(world: World, body: bytes, exchange: str = "amq.fanout") -> None:
    client = LinksClient(world).open(container_id="publisher").sender(exchange)
    client.publish(body, durable=False)
    client.do("close")
    client.sync()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("last", EVENTS)
@pytest.mark.parametrize("durable", [0, 1])
def test_a_subscription_ends_with_the_event_of_its_policy(world: World, policy: str, last: str, durable: int) -> None:
    client = LinksClient(world).open()
    answered = source_of(attach(client, expiry_policy=policy, durable=durable))
    assert answered == (policy, 0, durable if policy == "never" else 0)
    for event in EVENTS[: EVENTS.index(last) + 1]:
        assert has(world)
        do(client, event)
        assert has(world) == (POLICIES.index(policy) > EVENTS.index(event))
        if not has(world):
            return


@pytest.mark.parametrize("policy", POLICIES[:3])
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_timeout_begins_with_the_event(world: World, policy: str, is_lost: bool) -> None:
    client = LinksClient(world).open()
    answered = source_of(attach(client, expiry_policy=policy, timeout=TIMEOUT, durable=2))
    assert answered == (policy, TIMEOUT, 1)
    assert queue_of(world).durable
    if is_lost:
        client.machine.closed()
        world.run()
    else:
        for event in EVENTS[: POLICIES.index(policy) + 1]:
            world.now += 10 * TIMEOUT
            assert has(world)
            do(client, event)
    world.now += TIMEOUT - 1
    assert has(world)
    world.now += 1
    assert not has(world)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("timeout", [0, TIMEOUT])
@pytest.mark.parametrize("channel", [0, 1])
def test_a_link_that_is_attached_again_has_what_has_come_meanwhile(
    world: World, policy: str, timeout: int, channel: int
) -> None:
    terminus = {"expiry_policy": policy, "timeout": timeout}
    client = LinksClient(world).open(0, 1)
    attach(client, **terminus)
    do(client, "detach")
    publish(world, b"1")
    world.now += timeout // 2
    attach(client, **terminus, channel=channel)
    client.credit(5, 1, channel)
    is_kept = policy != "link-detach" or timeout > 0
    assert [each.content[-1:] for each in client.messages()] == [b"1"] * is_kept
    world.now += 2 * TIMEOUT
    assert has(world), "it is attached"
    client.do("detach", channel, handle=1, closed=True)
    client.sync()
    assert not has(world)


def test_another_connection_of_the_container_takes_over_what_a_session_keeps(world: World) -> None:
    first, second = LinksClient(world).open(), LinksClient(world).open()
    attach(first)
    do(first, "detach")
    stranger = LinksClient(world).open(container_id="other")
    came = stranger.attach(SUBSCRIPTION, 1, receives=True)
    assert came[-1].fields["error"].fields["condition"] == "amqp:resource-locked"
    attach(second)
    do(first, "close")
    assert has(world)
    do(second, "end")
    assert not has(world)


def test_a_session_that_ends_leaves_what_its_connection_keeps(world: World) -> None:
    client = LinksClient(world).open(0, 1)
    attach(client, expiry_policy="connection-close")
    do(client, "end")
    publish(world, b"1")
    attach(client, expiry_policy="connection-close", channel=1)
    client.credit(1, 1, 1)
    assert len(client.messages()) == 1
    client.machine.closed()
    assert not has(world)


def test_a_shared_subscription_ends_with_the_last_of_its_links(world: World) -> None:
    shared = {"capabilities": ("shared", "global"), "expiry_policy": "session-end"}
    first, second = LinksClient(world).open(), LinksClient(world).open(container_id="other")
    attach(first, **shared)
    attach(second, **shared)
    do(first, "detach")
    do(second, "end")
    assert has(world, "l")
    do(first, "end")
    assert not has(world, "l")


def test_a_link_to_something_else_ends_what_was_kept(world: World) -> None:
    make_queue(world)
    client = LinksClient(world).open()
    attach(client)
    do(client, "detach")
    attach(client, "q")
    assert not has(world)


def test_a_link_with_another_selector_begins_anew(world: World) -> None:
    client = LinksClient(world).open()
    attach(client, timeout=TIMEOUT)
    do(client, "end")
    publish(world, b"1")
    client = LinksClient(world).open()
    attach(client, timeout=TIMEOUT, filter=selector("a = 1"))
    client.credit(1, 1)
    assert client.messages() == []


def test_a_subscription_that_expires_is_not_one_that_never_does(world: World) -> None:
    client = LinksClient(world).open()
    attach(client, timeout=TIMEOUT)
    do(client, "detach")
    came = client.attach("amq.fanout", 2, receives=True, name="l", terminus={"durable": 2, "expiry_policy": "never"})
    assert came[-1].fields["error"].fields["condition"] == "amqp:resource-locked"


def test_a_durable_subscription_stays_one_that_never_expires(world: World) -> None:
    client = LinksClient(world).open()
    attach(client, durable=2, expiry_policy="never")
    do(client, "detach")
    assert source_of(attach(client, durable=2))[0] == "never"
    do(client, "close")
    assert has(world)


def test_a_client_without_a_container_keeps_nothing(world: World) -> None:
    client = LinksClient(world).open(container_id="")
    assert source_of(attach(client, expiry_policy="session-end", timeout=TIMEOUT)) == ("link-detach", 0, 0)
    do(client, "detach")
    assert not has(world, "_l")


# ---- dynamic nodes ----


def dynamic(client: LinksClient, **terminus: Any) -> str:
    attached = attach(client, None, dynamic=True, **terminus)
    name = attached.fields["source"].fields["address"].value
    assert isinstance(name, str)
    return name


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dynamic_node_ends_with_the_event_of_its_policy(world: World, policy: str) -> None:
    client = LinksClient(world).open()
    name = dynamic(client, expiry_policy=policy)
    for event in EVENTS:
        do(client, event)
        assert has(world, name) == (POLICIES.index(policy) > EVENTS.index(event))
        if not has(world, name):
            return


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("timeout", [0, TIMEOUT])
def test_a_dynamic_node_belongs_to_the_link_that_is_attached_to_it_again(
    world: World, policy: str, timeout: int
) -> None:
    client = LinksClient(world).open()
    name = dynamic(client, expiry_policy=policy, timeout=timeout)
    do(client, "detach")
    is_kept = policy != "link-detach" or timeout > 0
    assert has(world, name) == is_kept
    if not is_kept:
        return
    assert source_of(attach(client, name, expiry_policy=policy, timeout=timeout))[0] == policy
    world.now += 2 * TIMEOUT
    assert has(world, name)
    client.do("detach", handle=1, closed=True)
    client.sync()
    assert not has(world, name)


def test_a_dynamic_node_with_a_timeout_is_kept_for_it(world: World) -> None:
    client = LinksClient(world).open()
    name = dynamic(client, timeout=TIMEOUT)
    other = LinksClient(world).open(container_id="other").receiver(name, 2)
    other.do("detach", handle=2, closed=True)
    other.sync()
    world.now += 2 * TIMEOUT
    assert has(world, name), "its own link is attached"
    client.machine.closed()
    world.run()
    world.now += TIMEOUT - 1
    assert has(world, name)
    world.now += 1
    assert not has(world, name)


def test_a_dynamic_node_does_not_end_with_the_link_of_another_client(world: World) -> None:
    client = LinksClient(world).open()
    name = dynamic(client, expiry_policy="never")
    do(client, "close")
    other = LinksClient(world).open(container_id="other")
    attach(other, name)
    other.do("detach", handle=1, closed=True)
    other.sync()
    assert has(world, name)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_nodes_that_others_have_deleted_are_forgotten(world: World, policy: str) -> None:
    client, topology = LinksClient(world).open(), world.broker.default_host.topology
    kept = client.machine._shared.resumable
    for number in range(350):
        terminus = {"dynamic": True, "expiry_policy": policy}
        (attached,) = client.attach(None, 1, receives=True, name=f"l{number}", terminus=terminus)
        do(client, "detach")
        if number:
            name = attached.fields["source"].fields["address"].value
            asyncio.run(topology.delete_queue(name, caller=BROKER))
            world.run()
        else:
            first = attached.fields["source"].fields["address"].value
    assert len(kept._nodes) <= 110
    assert sum(map(len, kept._held.values())) == (0 if policy == "never" else len(kept._nodes))
    for event in EVENTS[1:]:
        do(client, event)
        assert has(world, first) == (POLICIES.index(policy) > EVENTS.index(event))
    assert not kept._held


def test_a_session_holds_nothing_of_links_that_were_closed(world: World) -> None:
    client = LinksClient(world).open()
    kept = client.machine._shared.resumable
    for _ in range(3):
        attach(client)
        do(client, "detach")
        assert len(kept._held) == 1
        attach(client)
        assert not kept._held
        client.do("detach", handle=1, closed=True)
        client.take()


# ---- unsettled deliveries ----


@pytest.mark.parametrize("policy", POLICIES[:3])
def test_the_time_of_unsettled_deliveries_begins_with_the_event(world: World, policy: str) -> None:
    make_queue(world)
    LinksClient(world).open(container_id="publisher").sender("q").publish(durable=False)
    client = LinksClient(world).open()
    assert source_of(attach(client, "q", expiry_policy=policy, timeout=TIMEOUT)) == (policy, TIMEOUT, 0)
    client.credit(1, 1)
    assert len(client.messages()) == 1
    timer = client.machine._shared.on_timer
    for event in EVENTS[: POLICIES.index(policy) + 1]:
        world.now += 10 * TIMEOUT
        timer(world.now)
        world.run()
        assert queue_of(world, "q").available_count == 0
        do(client, event)
    timer(world.now + TIMEOUT - 1)
    world.run()
    assert queue_of(world, "q").available_count == 0
    timer(world.now + TIMEOUT)
    world.run()
    assert queue_of(world, "q").available_count == 1
