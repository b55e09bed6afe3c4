"""Node policies: what is made for a link of AMQP 1.0 whose name no node has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotAllowedError,
    NotFoundError,
    ResourceLimitExceededError,
    UnauthorizedError,
)
from qstore.broker.model.node_policies import QUEUE_POLICY, TOPIC_POLICY, NodePolicies, read_policy
from qstore.broker.model.topology.changes import ChangeOrder
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.broker_records.topology import GeneralObject
from qstore.formats.pattern_steps import MAX_STEPS, steps_of
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import World
from tests.support.sections_peer import ACCEPTED, address


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> LinksClient:
    return LinksClient(world).open()


def make(world: World, kind: str, pattern: str, **given: Any) -> None:
    entries = {name.replace("_", "-"): each for name, each in given.items() if name != "arguments"}
    properties = typed_map({**entries, **given.get("arguments", {})})
    asyncio.run(world.broker.node_policies.create(kind, pattern, properties, BROKER))


def condition(client: LinksClient, name: str, handle: int = 9, **options: Any) -> str:
    last = client.attach(name, handle, **options)[-1]
    return str(last.fields["error"].fields["condition"]) if last.name == "detach" else ""


# ---- queues ----


def test_a_link_to_a_name_that_matches_makes_a_queue(world: World, client: LinksClient) -> None:
    make(world, QUEUE_POLICY, "^jobs-", arguments={"qpid.max_count": 7})
    assert condition(client, "other") == "amqp:not-found"
    client.sender("jobs-1")
    client.receiver("jobs-2", 1)
    queues = world.broker.default_host.queues
    for name in ("jobs-1", "jobs-2"):
        assert queues[name].arguments.get("qpid.max_count") is not None
        assert (queues[name].durable, queues[name].auto_delete, queues[name].is_kept_until_empty) == (False, True, True)


def test_a_queue_ends_when_it_is_unused_and_empty_unless_its_policy_says_otherwise(
    world: World, client: LinksClient
) -> None:
    make(world, QUEUE_POLICY, "^jobs-")
    make(world, QUEUE_POLICY, "^kept-", arguments={"qpid.lifetime-policy": "manual"})
    make(world, QUEUE_POLICY, "^stays-", auto_delete=False)
    queues = world.broker.default_host.queues
    for handle, name in enumerate(("jobs-1", "kept-1", "stays-1")):
        client.sender(name, handle)
        client.publish(handle=handle, durable=False)
    client.receiver("jobs-1", 3)
    (first,) = client.messages()
    client.do("disposition", 0, role=True, first=first.id, settled=True, state=None)
    for handle in (3, 1, 2):
        client.do("detach", handle=handle, closed=True)
    client.sync()
    assert "jobs-1" in queues, "a link sends to it"
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert "jobs-1" in queues, "the message was released"
    client.take()
    client.receiver("jobs-1", 4)
    (again,) = client.messages()
    client.do("disposition", 0, role=True, first=again.id, settled=True, state=ACCEPTED)
    client.do("detach", handle=4, closed=True)
    client.sync()
    assert set(queues) >= {"kept-1", "stays-1"}
    assert "jobs-1" not in queues


def test_the_longest_pattern_that_matches_applies(world: World, client: LinksClient) -> None:
    make(world, QUEUE_POLICY, "jobs", arguments={"qpid.max_count": 1})
    make(world, TOPIC_POLICY, "jobs-large", exchange_type="fanout")
    client.sender("jobs-large-1")
    client.sender("my-jobs", 1)
    assert world.broker.default_host.exchanges["jobs-large-1"].type_name == "fanout"
    assert "my-jobs" in world.broker.default_host.queues


def test_what_is_there_needs_no_policy(world: World, client: LinksClient) -> None:
    make(world, QUEUE_POLICY, ".")
    client.sender("amq.topic")
    assert set(world.broker.default_host.queues) == set()
    assert condition(client, "/queues/none") == "amqp:not-found"
    on_demand = {"capabilities": ("create-on-demand", "topic")}
    client.sender("asked", 1, terminus=on_demand)
    assert "asked" in world.broker.default_host.exchanges


def test_two_links_at_once_share_what_is_made(world: World) -> None:
    make(world, QUEUE_POLICY, "^jobs-")
    clients = [LinksClient(world).open(), LinksClient(world).open()]
    for each in clients:
        target = {"address": address("jobs-1")}
        each.do(
            "attach", name="l", handle=0, role=False, initial_delivery_count=0, source=Composite("source", {}),
            target=Composite("target", target),
        )  # fmt: skip
    assert [[found.name for found in each.take("attach", "detach")] for each in clients] == [["attach"], ["attach"]]


# ---- exchanges ----


def test_a_topic_ends_with_its_last_link(world: World, client: LinksClient) -> None:
    make(world, TOPIC_POLICY, "^news", exchange_type="fanout")
    exchanges = world.broker.default_host.exchanges
    client.sender("news").receiver("news", 1).receiver("news", 2)
    client.publish(b"x", durable=False)
    assert len(client.messages()) == 2
    for handle in (1, 2):
        client.do("detach", handle=handle, closed=True)
        client.sync()
    assert "news" in exchanges
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert "news" not in exchanges


@pytest.mark.parametrize(
    ("given", "stays"),
    [
        ({"auto_delete": False}, True),
        ({"durable": True}, True),
        ({"arguments": {"qpid.lifetime-policy": "manual"}}, True),
        ({"durable": True, "arguments": {"qpid.lifetime-policy": "delete-if-unused"}}, False),
        ({"durable": True, "auto_delete": True}, False),
    ],
)
def test_whether_a_topic_stays(world: World, client: LinksClient, given: dict[str, Any], stays: bool) -> None:
    make(world, TOPIC_POLICY, "^news", **given)
    client.receiver("news")
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert ("news" in world.broker.default_host.exchanges) is stays


def test_the_queues_of_subscriptions_have_the_other_arguments(world: World, client: LinksClient) -> None:
    arguments = {"qpid.max_count": 7, "qpid.policy_type": "ring", "qpid.msg_sequence": 1}
    make(world, TOPIC_POLICY, "news|amq", alternate_exchange="amq.fanout", arguments=arguments)
    client.receiver("news")
    client.receiver("amq.topic", 1)
    host = world.broker.default_host
    assert host.exchanges["news"].sent is not None
    of_news, of_standard = host.queues["test_link-0"], host.queues["test_link-1"]
    assert of_news.alternate is host.exchanges["amq.fanout"]
    assert of_news.arguments.get("qpid.policy_type") is not None
    assert of_news.arguments.get("qpid.msg_sequence") is None
    assert of_standard.arguments.get("qpid.max_count") is None


# ---- making and deleting ----


def test_patterns_are_unique_and_deleted_by_their_kind(world: World, client: LinksClient) -> None:
    policies = world.broker.node_policies
    make(world, QUEUE_POLICY, "a-")
    for kind in (QUEUE_POLICY, TOPIC_POLICY):
        with pytest.raises(NotAllowedError, match="a QueuePolicy with the name a- already exists"):
            make(world, kind, "a-")
    with pytest.raises(NotFoundError, match="No such TopicPolicy: a-"):
        asyncio.run(policies.delete(TOPIC_POLICY, "a-", BROKER))
    client.sender("a-1")
    asyncio.run(policies.delete(QUEUE_POLICY, "a-", BROKER))
    assert condition(client, "a-2") == "amqp:not-found"
    assert "a-1" in world.broker.default_host.queues


@pytest.mark.parametrize(
    ("kind", "pattern", "given"),
    [
        (QUEUE_POLICY, "", {}),
        (QUEUE_POLICY, "(", {}),
        (QUEUE_POLICY, "(a+)+$", {}),
        (QUEUE_POLICY, "a", {"qpid.max_count": "many"}),
        (QUEUE_POLICY, "a", {"qpid.lifetime-policy": "for ever"}),
        (QUEUE_POLICY, "a", {"alternate-exchange": 5}),
        (TOPIC_POLICY, "a", {"exchange-type": "none"}),
        (TOPIC_POLICY, "a", {"qpid.filter": "a = 1"}),
    ],
)
def test_what_is_not_valid_is_refused(world: World, kind: str, pattern: str, given: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        asyncio.run(world.broker.node_policies.create(kind, pattern, typed_map(given), BROKER))
    assert not world.broker.node_policies.policies


def test_there_is_a_maximum(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.model.node_policies.MAX_POLICIES", 1)
    make(world, QUEUE_POLICY, "a")
    with pytest.raises(ResourceLimitExceededError, match="1 node policies"):
        make(world, QUEUE_POLICY, "b")


class Rules:
    """Refuses one operation."""

    checks_publish = False

    def __init__(self, *refused: object) -> None:
        self.refused = refused

    def allows(self, _caller: Any, action: Action, kind: ObjectType, name: str, _properties: Any) -> bool:
        return (action, kind, name) != self.refused


@pytest.mark.parametrize(("kind", "of"), [(QUEUE_POLICY, ObjectType.QUEUE), (TOPIC_POLICY, ObjectType.EXCHANGE)])
def test_who_may_not_create_or_delete_what_has_the_name_may_not_change_policies(
    world: World, client: LinksClient, kind: str, of: ObjectType
) -> None:
    policies, caller = world.broker.node_policies, client.machine
    world.broker.authorization.authorizer = Rules(Action.CREATE, of, "a-*")  # type: ignore[assignment]
    with pytest.raises(UnauthorizedError):
        asyncio.run(policies.create(kind, "a-*", TypedMap(), caller))
    world.broker.authorization.authorizer = Rules(Action.DELETE, of, "a-*")  # type: ignore[assignment]
    asyncio.run(policies.create(kind, "a-*", TypedMap(), caller))
    with pytest.raises(UnauthorizedError):
        asyncio.run(policies.delete(kind, "a-*", caller))


def test_what_a_policy_makes_needs_the_permission_of_its_user(world: World, client: LinksClient) -> None:
    make(world, QUEUE_POLICY, "^jobs-")
    world.broker.authorization.authorizer = Rules(Action.CREATE, ObjectType.QUEUE, "jobs-1")  # type: ignore[assignment]
    assert condition(client, "jobs-1") == "amqp:unauthorized-access"
    assert condition(client, "jobs-2", 8) == ""


def test_access_is_checked_again_after_waiting_for_another_declaration(
    world: World, client: LinksClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the exchange is there, its name with a key is that of another node."""
    BasicClient(world).open().call("exchange.declare", exchange="news", type="topic")
    exchanges = world.broker.default_host.exchanges
    declared = exchanges.pop("news")

    async def made(_changes: ChangeOrder) -> None:
        exchanges["news"] = declared

    monkeypatch.setattr(ChangeOrder, "made", made)
    world.broker.authorization.authorizer = Rules(Action.ACCESS, ObjectType.EXCHANGE, "news")  # type: ignore[assignment]
    assert condition(client, "news/key") == "amqp:unauthorized-access"


def test_a_policy_is_read_as_qpidd_has_stored_it() -> None:
    """Its map has strings as bytes."""
    stored = typed_map({"durable": True, "exchange-type": b"fanout", "qpid.max_count": 3})
    policy = read_policy(TOPIC_POLICY, "news", stored, 1.0)
    assert (policy.exchange_type, policy.durable, policy.auto_delete) == ("fanout", True, False)
    assert dict(policy.of_subscriptions.entries) == dict(typed_map({"qpid.max_count": 3}).entries)
    with pytest.raises(InvalidArgumentError):
        read_policy(TOPIC_POLICY, "news", typed_map({"qpid.max_count": "x"}), 1.0)


def test_policies_of_a_store_that_are_not_valid_are_logged_and_kept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    general = {
        1: GeneralObject(TOPIC_POLICY, "^a", typed_map({"exchange-type": "of-a-plug-in", "durable": True})),
        2: GeneralObject(QUEUE_POLICY, "^b(", typed_map({"durable": True})),
        3: GeneralObject(QUEUE_POLICY, "^c", typed_map({"durable": True})),
    }
    store: Any = SimpleNamespace(topology=SimpleNamespace(general=general))
    policies = NodePolicies(store, world.broker.authorization, lambda: 1.0)
    policies.recover()
    assert list(policies.policies) == ["^c"]
    assert ["is not used" in line for line in caplog.messages] == [True, True]


def test_all_patterns_together_take_no_longer_than_one_may(world: World) -> None:
    """Each of them is searched for in a name that no node has."""
    slow = [f"jobs{number}.*x" for number in range(20)]
    assert all(steps_of(pattern) <= MAX_STEPS for pattern in slow)
    assert sum(map(steps_of, slow)) > MAX_STEPS
    made = max(count for count in range(20) if sum(map(steps_of, slow[:count])) <= MAX_STEPS)
    for pattern in slow[:made]:
        make(world, QUEUE_POLICY, pattern)
    with pytest.raises(ResourceLimitExceededError, match="together"):
        make(world, QUEUE_POLICY, slow[made])
    general = {number: GeneralObject(QUEUE_POLICY, name, TypedMap()) for number, name in enumerate(slow, 1)}
    store: Any = SimpleNamespace(topology=SimpleNamespace(general=general))
    policies = NodePolicies(store, world.broker.authorization, lambda: 1.0)
    policies.recover()
    assert len(policies.policies) == made


def test_a_name_that_is_too_long_for_a_node_is_not_searched(world: World, client: LinksClient) -> None:
    """A pattern like this one takes seconds with the longest address that fits into a frame."""
    make(world, QUEUE_POLICY, "jobs.*x")
    longest = "jobs".ljust(254, "-") + "x"
    client.sender(longest)
    assert longest in world.broker.default_host.queues
    assert world.broker.node_policies.match(f"{longest}x") is None
    assert condition(client, f"{longest}x") == "amqp:not-found"


def test_answers_have_the_properties_of_what_a_policy_made(world: World, client: LinksClient) -> None:
    make(world, QUEUE_POLICY, "^jobs-", arguments={"qpid.max_count": 7})
    asked = ((Value("symbol", "qpid.max_count"), Value("long", 5)),)
    (attached, _) = client.attach("jobs-1", terminus={"dynamic_node_properties": asked})
    (told,) = attached.fields["target"].fields["dynamic_node_properties"]
    assert told[1].value == 7
