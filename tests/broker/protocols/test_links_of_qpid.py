"""AMQP 1.0 as the clients of Qpid C++ use it: what they assert of a node, in which order their frames come, names."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.values import Described, Value
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_replies_between_protocols import message_properties
from tests.broker.protocols.world import World
from tests.support.sections_peer import RECEIVER

ON_DEMAND = "create-on-demand"
Properties = tuple[tuple[Value, Value], ...]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> LinksClient:
    return LinksClient(world).open()


def properties(**given: object) -> Properties:
    """Node properties as Qpid's client sends them: texts are strings."""
    kinds: dict[type, str] = {bool: "boolean", int: "int", str: "string"}
    return tuple(
        (Value("symbol", name.replace("_", "-")), each if isinstance(each, Value) else Value(kinds[type(each)], each))
        for name, each in given.items()
    )


def answered(client: LinksClient, name: str, asked: Properties, *capabilities: str, handle: int = 0) -> dict[str, Any]:
    """What the broker says of the properties of a node; the link ends."""
    terminus = {"capabilities": capabilities, "dynamic_node_properties": asked}
    found = client.attach(name, handle, terminus=terminus)[0].fields["target"].fields
    client.do("detach", handle=handle, closed=True)
    client.take()
    return {key.value.replace("-", "_"): typed for key, typed in found.get("dynamic_node_properties") or ()}


def condition(client: LinksClient, name: str | None, handle: int = 9, **options: Any) -> str:
    """Why a link is refused; empty if it is not."""
    last = client.attach(name, handle, **options)[-1]
    if last.name == "detach":
        client.do("detach", handle=handle, closed=True)
        client.take()
        return str(last.fields["error"].fields["condition"])
    client.do("detach", handle=handle, closed=True)
    client.take()
    return ""


# ---- properties of nodes ----


def test_the_properties_of_a_queue_that_is_there_are_told_as_they_are(world: World, client: LinksClient) -> None:
    make_queue(world, durable=True, alternate_exchange="amq.fanout", arguments={"qpid.max_count": 5, "colour": "red"})
    asked = {"supported_dist_modes": "move", "durable": False, "auto_delete": True, "alternate_exchange": "amq.topic"}
    told = answered(client, "q", properties(**asked, exclusive=True, exchange_type="topic", colour="red"))
    assert told == {
        "supported_dist_modes": Value("string", "move"), "durable": Value("boolean", True),
        "auto_delete": Value("boolean", False), "alternate_exchange": Value("string", "amq.fanout"),
        "exclusive": Value("boolean", False),
    }  # fmt: skip
    arguments = tuple((Value("symbol", name), Value("int", 7)) for name in ("qpid.max_count", "qpid.max_size"))
    told = answered(client, "q", arguments)
    assert {name: typed.value for name, typed in told.items()} == {"qpid.max_count": 5}


def test_a_link_to_an_exchange_that_is_there_needs_no_properties(client: LinksClient) -> None:
    assert condition(client, "amq.fanout", terminus={"capabilities": (ON_DEMAND, "topic")}) == ""


def test_the_properties_of_an_exchange_that_is_there_are_told_as_they_are(client: LinksClient) -> None:
    made = properties(exchange_type="direct", auto_delete=True)
    sequence = ((Value("symbol", "qpid.msg_sequence"), Value("boolean", True)),)
    client.sender("news", 1, terminus={"capabilities": (ON_DEMAND, "topic"), "dynamic_node_properties": made})
    told = answered(client, "news", properties(supported_dist_modes="copy", exchange_type="fanout", durable=True))
    assert {name: typed.value for name, typed in told.items()} == {
        "supported_dist_modes": "copy", "exchange_type": "direct", "durable": False,
    }  # fmt: skip
    assert answered(client, "news", sequence) == {}
    assert answered(client, "news", properties(alternate_exchange="amq.fanout")) == {}


@pytest.mark.parametrize("asked", [0x2B, 0x2C, 0x2D, 0x2E])
@pytest.mark.parametrize(("lifetime", "told"), [("delete-if-unused", 0x2C), ("delete-if-unused-and-empty", 0x2E)])
def test_the_lifetime_policy_of_a_node_is_told(
    world: World, client: LinksClient, lifetime: str, told: int, asked: int
) -> None:
    make_queue(world, auto_delete=True, arguments={"qpid.lifetime-policy": lifetime})
    policy = Value("described", Described(Value("ulong", asked), Value("list", ())))
    found = answered(client, "q", properties(lifetime_policy=policy))["lifetime_policy"]
    same = {"delete-if-unused": (0x2C,), "delete-if-unused-and-empty": (0x2D, 0x2E)}[lifetime]
    assert found.value.descriptor.value == (asked if asked in same else told)


def test_a_queue_that_stays_has_no_lifetime_policy(world: World, client: LinksClient) -> None:
    make_queue(world)
    policy = Value("described", Described(Value("ulong", 0x2C), Value("list", ())))
    assert answered(client, "q", properties(lifetime_policy=policy)) == {}


@pytest.mark.parametrize(
    "asked",
    [
        {"lifetime_policy": Value("described", Described(Value("ulong", 0x99), Value("list", ())))},
        {"lifetime_policy": "for-ever"},
        {"supported_dist_modes": Value("map", ((Value("string", "move"), Value("string", "copy")),))},
    ],
)
def test_unknown_properties_of_a_node_that_is_there_are_not_told(
    world: World, client: LinksClient, asked: dict[str, Any]
) -> None:
    """They were asked for, and have no effect: the link works."""
    make_queue(world, auto_delete=True)
    told = answered(client, "q", properties(**asked))
    assert {name: typed.type_name for name, typed in told.items()}.items() <= {
        ("lifetime_policy", "described"), ("supported_dist_modes", "string"),
    }  # fmt: skip
    assert all(typed != asked[name] for name, typed in told.items())
    client.sender("q")
    assert client.machine.sessions


# ---- a queue and an exchange of one name ----


def test_a_queue_and_an_exchange_may_have_one_name(world: World, client: LinksClient) -> None:
    for handle, (kind, mode) in enumerate((("queue", "move"), ("topic", "copy"))):
        asked = {"capabilities": (ON_DEMAND, kind), "dynamic_node_properties": properties(supported_dist_modes=mode)}
        client.sender("both", handle, terminus=asked)
    host = world.broker.default_host
    assert "both" in host.queues
    assert host.exchanges["both"].type_name == "topic"
    client.publish(b"to the queue", durable=False)
    client.publish(b"to the exchange", handle=1, durable=False)
    client.sync()
    assert host.queues["both"].message_count == 1


def test_an_exchange_of_another_type_is_refused(client: LinksClient) -> None:
    asked = {"capabilities": (ON_DEMAND, "topic"), "dynamic_node_properties": properties(exchange_type="fanout")}
    assert condition(client, "amq.topic", terminus=asked) == "amqp:precondition-failed"
    assert condition(client, "amq.fanout", terminus=asked) == ""


@pytest.mark.parametrize("receives", [False, True])
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_link_finds_what_another_client_has_declared_just_before(
    world: World, client: LinksClient, kind: str, receives: bool
) -> None:
    """The C++ client of 0-10 does not wait for the queue of a subscription."""
    modern = world.open_client(name=b"modern")
    modern.sync()
    modern.command(f"{kind}.declare", **{kind: "new"}, **({"type": "fanout"} if kind == "exchange" else {}))
    assert [each.name for each in client.attach("new", receives=receives)] == ["attach", "flow"][: 2 - receives]


# ---- auto-delete exchanges ----


def test_an_auto_delete_exchange_stays_as_long_as_a_link_sends_to_it(world: World, client: LinksClient) -> None:
    made = {"capabilities": (ON_DEMAND, "topic"), "dynamic_node_properties": properties(auto_delete=True)}
    client.receiver("news", 0, terminus=made)
    client.sender("news", 1)
    client.sender("news", 2)
    client.do("detach", handle=0, closed=True)
    client.publish(b"x", handle=1, durable=False)
    assert client.outcomes() == [(0, 0, "accepted")]
    client.do("detach", handle=1, closed=True)
    client.sync()
    assert "news" in world.broker.default_host.exchanges
    client.do("detach", handle=2, closed=True)
    client.do("attach", name="l", handle=3, role=False, initial_delivery_count=0, source=Composite("source", {}),
              target=Composite("target", {"address": Value("string", "news")}))  # fmt: skip
    came = [each for each in client.take("attach", "detach") if each.fields["handle"] in (2, 3)]
    assert [each.name for each in came] == ["detach", "attach", "detach"]
    assert came[-1].fields["error"].fields["condition"] == "amqp:not-found"
    assert "news" not in world.broker.default_host.exchanges


def test_an_auto_delete_exchange_stays_as_long_as_it_has_bindings(world: World, client: LinksClient) -> None:
    made = {"capabilities": (ON_DEMAND, "topic"), "dynamic_node_properties": properties(auto_delete=True)}
    client.sender("news", terminus=made)
    client.receiver("news", 1)
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert "news" in world.broker.default_host.exchanges
    client.do("end")
    client.sync()
    assert "news" not in world.broker.default_host.exchanges


@pytest.mark.parametrize("ends", ["end", "close", "connection"])
def test_an_exchange_ends_with_the_session_of_its_last_sender(world: World, client: LinksClient, ends: str) -> None:
    made = {"capabilities": (ON_DEMAND, "topic"), "dynamic_node_properties": properties(auto_delete=True)}
    client.sender("news", terminus=made)
    if ends == "connection":
        client.machine.closed()
    else:
        client.do(ends)
    world.run()
    assert "news" not in world.broker.default_host.exchanges


# ---- the order of frames ----


def test_what_is_released_in_the_read_of_a_drain_comes_first(world: World, client: LinksClient) -> None:
    """Proton writes the flow that drains a link before the disposition that releases a message."""
    make_queue(world)
    client.sender("q", 1)
    for body in (b"a", b"b"):
        client.publish(body, handle=1, durable=False)
    client.receiver("q", credit=0)
    client.credit(1)
    (first,) = client.messages()
    window: dict[str, Any] = {"next_incoming_id": 1, "incoming_window": 1000, "next_outgoing_id": 2}
    flow = client.encode(
        "flow", 0, **window, outgoing_window=1000, handle=0, delivery_count=1, link_credit=1, drain=True
    )
    released = Composite("modified", {"delivery_failed": True})
    end = client.encode("disposition", 0, role=RECEIVER, first=first.id, settled=True, state=released)
    client.send(flow + end)
    assert [each.body for each in client.messages()][-1:] == [first.body]


# ---- access ----


class Rules:
    """Allows what is listed, and to publish with any key but `secret`."""

    checks_publish = True

    def __init__(self, *allowed: tuple[Action, ObjectType, str]) -> None:
        self._allowed = allowed

    def allows(self, _caller: Any, action: Action, kind: ObjectType, name: str, _properties: Any) -> bool:
        return kind is ObjectType.CONNECTION or (action, kind, name) in self._allowed

    def publishing(self, _caller: Any, _exchange: str, routing_key: str) -> Publishing:
        return Publishing.REFUSED if routing_key == "secret" else Publishing.ALWAYS

    def allows_forwarding(self, _caller: Any, _exchange: str, _pattern: str) -> bool:
        return True


def ruled(world: World, *allowed: tuple[ObjectType, str]) -> LinksClient:
    """A client that may access this, and nothing else."""
    make_queue(world)
    rules = Rules(*((Action.ACCESS, *each) for each in allowed))
    world.broker.authorization.authorizer = rules
    return LinksClient(world).open()


REFUSED = "amqp:unauthorized-access"
QUEUE, EXCHANGE = ObjectType.QUEUE, ObjectType.EXCHANGE


@pytest.mark.parametrize("receives", [False, True])
@pytest.mark.parametrize("name", ["q", "amq.topic", "unknown", "/queues/q", "/queues/unknown", "amq.topic/key", "a/b"])
def test_without_access_nobody_learns_what_there_is(world: World, name: str, receives: bool) -> None:
    assert condition(ruled(world), name, receives=receives) == REFUSED


def test_without_a_kind_a_name_is_that_of_a_queue_and_of_an_exchange(world: World) -> None:
    client = ruled(world, (EXCHANGE, "amq.topic"), (QUEUE, "q"))
    assert condition(client, "amq.topic") == REFUSED
    assert condition(client, "amq.topic", terminus={"capabilities": ("topic",)}) == ""
    assert condition(client, "amq.topic/key") == ""
    assert condition(client, "/exchanges/amq.topic/key") == ""
    assert condition(client, "q") == REFUSED
    assert condition(client, "q", terminus={"capabilities": ("queue",)}) == ""
    assert condition(client, "/queues/q") == ""


def test_with_access_a_user_learns_that_there_is_nothing(world: World) -> None:
    client = ruled(world, (EXCHANGE, "unknown"), (QUEUE, "unknown"))
    assert condition(client, "unknown") == "amqp:not-found"


@pytest.mark.parametrize("name", ["known", "elsewhere"])
def test_a_message_to_an_address_without_access_ends_the_link(world: World, name: str) -> None:
    client = ruled(world, (EXCHANGE, "known"), (QUEUE, "known")).sender(None)
    client.publish(durable=False, to=Value("string", name))
    if name == "known":
        assert client.outcomes() == [(0, 0, "rejected")]
    else:
        assert client.error("detach") == REFUSED


# ---- selectors ----


def test_the_destination_of_a_message_is_the_address_that_its_sender_has_set(world: World, client: LinksClient) -> None:
    make_queue(world)
    code = Value("ulong", 0x0000468C00000004)
    chosen = Value("described", Described(code, Value("string", "JMSDestination = 'a'")))
    client.sender("q", 1)
    for to in ("a", "b", None):
        client.publish(b"x", handle=1, durable=False, to=None if to is None else Value("string", to))
    client.receiver("q", terminus={"filter": ((Value("symbol", "s"), chosen),)})
    assert len(client.messages()) == 1


# ---- long subjects ----


def test_a_subject_that_is_no_routing_key_is_cut_for_the_exchange_and_stays_whole(
    world: World, client: LinksClient
) -> None:
    subject = "a." + "x" * 252 + "äöü" * 20
    client.receiver("amq.topic/a.*")
    other = world.open_client(name=b"other")
    other.declare("other", exclusive=True)
    other.command("exchange.bind", exchange="amq.topic", queue="other", binding_key="a.*")
    client.sender("amq.topic", 1)
    client.publish(handle=1, durable=False, subject=subject)
    assert client.outcomes() == [(0, 0, "accepted")]
    (found,) = client.messages()
    assert subject.encode() in found.content
    (entry,) = world.broker.default_host.queues["other"].outstanding()
    assert entry.message.routing_key == "a." + "x" * 252


@pytest.mark.parametrize("subject", ["a." + "x" * 253, "a." + "ä" * 126 + "x", "a." + "x" * 256])
def test_other_protocols_get_a_message_with_a_long_subject(world: World, client: LinksClient, subject: str) -> None:
    basic, modern = BasicClient(world).open(), world.open_client(name=b"modern")
    basic.call("queue.declare", queue="old")
    basic.call("queue.bind", queue="old", exchange="amq.topic", routing_key="a.*")
    modern.declare("new")
    modern.command("exchange.bind", exchange="amq.topic", queue="new", binding_key="a.*")
    client.sender("amq.topic", 1)
    client.publish(b"x", handle=1, durable=False, subject=subject)
    assert client.outcomes() == [(0, 0, "accepted")]
    basic.call("basic.consume", queue="old", consumer_tag="t", no_ack=True)
    assert [each.body for each in basic.received if each.name == "basic.deliver"] == [b"x"]
    assert message_properties(modern, "new")["application_headers"].get("qpid.subject").value == subject
