"""AMQP 1.0: the node for management, as clients of RabbitMQ 4 use it."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.authorization import Action
from qstore.broker.protocols.amqp_1_0.management import LISTED_AT_ONCE, MAX_ANSWERS, MAX_REQUEST, MAX_WAITING
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_1_0.composites import encode_composite, section_list
from qstore.formats.amqp_1_0.sections import VALUE, encode_section, section_value, split_sections
from qstore.formats.amqp_1_0.values import Value, plain_value
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links import restricted
from tests.broker.protocols.world import World
from tests.support.sections_peer import address

REQUESTS, ANSWERS = 0, 1


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> LinksClient:
    return paired(LinksClient(world).open())


def paired(client: LinksClient, *, credit: int = 1_000) -> LinksClient:
    """A client with both links."""
    client.sender("/management", REQUESTS, name="pair")
    return client.receiver("/management", ANSWERS, name="pair", credit=credit, snd_settle_mode=1)


def value(content: object) -> Value:
    if isinstance(content, dict):
        return Value("map", tuple((Value("string", key), value(each)) for key, each in content.items()))
    if isinstance(content, list):
        return Value("list", tuple(map(value, content)))
    kind = {bool: "boolean", str: "string", int: "int", type(None): "null"}[type(content)]
    return Value(kind, content)


def send(client: LinksClient, method: str, path: str, body: object = None) -> None:
    properties = {"message_id": Value("string", "m"), "to": address(path), "subject": method}
    sections = encode_composite("properties", properties), encode_section(VALUE, value(body))
    client.publish(message=b"".join(sections), handle=REQUESTS, settled=True)


def ask(client: LinksClient, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request; returns the status and the body of its answer."""
    send(client, method, path, body)
    (found,) = client.messages()
    assert found.fields["settled"]
    return read(found.content)


def read(content: bytes) -> tuple[int, Any]:
    sections = split_sections(content)
    fields = section_list("properties", content, *sections.properties)
    assert fields["correlation_id"] == Value("string", "m")
    return int(fields["subject"]), plain_value(section_value(content, (sections.body_at, len(content))))


def test_queues_are_declared_looked_at_and_deleted(world: World, client: LinksClient) -> None:
    status, body = ask(client, "PUT", "/queues/a%2Fb", {"durable": False, "arguments": {"x-max-length": 5}})
    assert (status, body["name"], body["durable"], body["message_count"]) == (201, "a/b", False, 0)
    assert ask(client, "PUT", "/queues/a%2Fb", {"durable": False, "arguments": {"x-max-length": 5}})[0] == 200
    status, text = ask(client, "PUT", "/queues/a%2Fb", {"durable": False, "arguments": {"x-max-length": 6}})
    assert status == 409
    assert "x-max-length" in text
    client.sender("/queues/a%2Fb", 2)
    client.publish(b"x", 2, durable=False)
    client.publish(b"x", 2, durable=False)
    client.take()
    status, body = ask(client, "GET", "/queues/a%2Fb")
    assert (status, body["message_count"], body["arguments"]) == (200, 2, {"x-max-length": 5})
    assert ask(client, "DELETE", "/queues/a%2Fb/messages") == (200, {"message_count": 2})
    assert ask(client, "DELETE", "/queues/a%2Fb") == (200, {"message_count": 0})
    assert ask(client, "DELETE", "/queues/a%2Fb") == (200, {"message_count": 0})
    assert ask(client, "GET", "/queues/a%2Fb")[0] == 404
    assert "a/b" not in world.broker.default_host.queues


def test_exchanges_and_bindings(world: World, client: LinksClient) -> None:
    make_queue(world)
    for name in ("x", "y"):
        assert ask(client, "PUT", f"/exchanges/{name}", {"durable": False, "type": "topic"}) == (204, None)
    assert ask(client, "PUT", "/exchanges/x", {"durable": False, "type": "fanout"})[0] in (403, 409)
    bind = {"source": "x", "destination_queue": "q", "binding_key": "k.#", "arguments": {}}
    assert ask(client, "POST", "/bindings", bind) == (204, None)
    assert ask(client, "POST", "/bindings", {"source": "x", "destination_exchange": "y", "binding_key": "z"})[0] == 204
    status, found = ask(client, "GET", "/bindings?src=x&dstq=q&key=k.%23")
    assert status == 200
    assert [(each["destination_queue"], each["binding_key"]) for each in found] == [("q", "k.#")]
    client.sender("/exchanges/x/k.1", 2)
    client.publish(b"x", 2, durable=False)
    assert client.outcomes() == [(6, 6, "accepted")]
    assert ask(client, "DELETE", "/bindings/src=x;dstq=q;key=k.%23;args=") == (204, None)
    assert ask(client, "DELETE", "/bindings/src=x;dste=y;key=z;args=") == (204, None)
    client.publish(b"x", 2, durable=False)
    assert client.outcomes()[-1][2] == "released"
    assert ask(client, "DELETE", "/exchanges/x") == (204, None)
    assert "x" not in world.broker.default_host.exchanges


def test_an_exclusive_queue_ends_with_its_session(world: World, client: LinksClient) -> None:
    assert ask(client, "PUT", "/queues/own", {"exclusive": True, "durable": False})[0] == 201
    other = paired(LinksClient(world).open())
    assert ask(other, "DELETE", "/queues/own")[0] == 409
    client.receiver("/queues/own", 5)
    client.do("end")
    client.sync()
    assert "own" not in world.broker.default_host.queues


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", "/queues/q", None, 400),
        ("GET", "/nothing", None, 400),
        ("PUT", "/queues/%zz", {}, 400),
        ("PUT", "/queues/a", {"durable": "yes"}, 400),
        ("PUT", "/queues/a", {"arguments": {"x-no-such": 1}}, 400),
        ("POST", "/bindings", {"source": "none", "destination_queue": "q", "binding_key": ""}, 404),
        ("POST", "/bindings", {"source": 1}, 400),
    ],
)
def test_what_cannot_be_done_has_a_status(
    client: LinksClient, method: str, path: str, body: object, status: int
) -> None:
    found, text = ask(client, method, path, body)
    assert found == status
    assert text


@pytest.mark.parametrize(
    ("action", "method", "path"),
    [
        (Action.CREATE, "PUT", "/queues/new"),
        (Action.ACCESS, "GET", "/queues/q"),
        (Action.DELETE, "DELETE", "/queues/q"),
        (Action.PURGE, "DELETE", "/queues/q/messages"),
        (Action.CREATE, "PUT", "/exchanges/new"),
        (Action.DELETE, "DELETE", "/exchanges/x"),
        (Action.BIND, "POST", "/bindings"),
        (Action.UNBIND, "DELETE", "/bindings/src=amq.topic;dstq=q;key=k;args="),
        (Action.ACCESS, "GET", "/bindings?src=amq.topic"),
    ],
)
def test_every_operation_is_authorized_as_its_user(world: World, action: Action, method: str, path: str) -> None:
    make_queue(world)
    client = paired(restricted(world, action))
    body = {"source": "amq.topic", "destination_queue": "q", "binding_key": "k"} if method == "POST" else {}
    assert ask(client, method, path, body)[0] == 403


def test_requests_without_a_link_for_answers_are_refused(world: World) -> None:
    client = LinksClient(world).open().sender("/management", REQUESTS)
    send(client, "GET", "/queues/q")
    assert client.error("detach") == "amqp:not-found"


def test_requests_and_waiting_answers_are_limited(world: World) -> None:
    client = paired(LinksClient(world).open(), credit=0)
    client.publish(bytes(MAX_REQUEST), REQUESTS)
    assert client.outcomes() == [(0, 0, "rejected")]
    for number in range(MAX_WAITING + 1):
        send(client, "GET", "/queues/q")
        if number % 400 == 399:
            client.take()
    assert client.error("detach") == "amqp:resource-limit-exceeded"
    client.credit(3, ANSWERS)
    assert len(client.messages()) == 3


def test_an_answer_may_have_several_frames(world: World) -> None:
    client = LinksClient(world)
    client.max_frame = 512
    paired(client.open())
    name = "n" * 200
    assert ask(client, "PUT", f"/queues/{name}", {"durable": False, "arguments": {"qpid.x": name}})[1]["name"] == name
    client.sync()
    assert all(len(each.content) < 512 for each in client.received)


def test_a_body_without_content_may_come_first(client: LinksClient) -> None:
    """As RabbitMQ's client for Python sends it."""
    properties = {"message_id": Value("string", "m"), "to": address("/queues/q"), "subject": "GET"}
    client.publish(message=b"\0Sw@" + encode_composite("properties", properties), handle=REQUESTS, settled=True)
    (found,) = client.messages()
    assert read(found.content)[0] == 404


def test_clients_that_insist_are_told_that_this_is_rabbitmq() -> None:
    world = World(BrokerSettings(auth=False, rabbitmq_version="4.1.0"))
    client = LinksClient(world).start()
    (opened,) = client.take("open")
    properties = {plain_value(key): plain_value(each) for key, each in opened.fields["properties"]}
    assert (properties["product"], properties["version"]) == ("RabbitMQ", "4.1.0")
    make_queue(world)
    client.do("begin", next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    client.take()
    client.sender("q").receiver("q", 1)
    client.publish(b"x", durable=False)
    (found,) = client.messages()
    sections = split_sections(found.content)
    annotations = plain_value(section_value(found.content, sections.annotations))
    assert annotations == {"x-exchange": "", "x-routing-key": "q"}


def test_a_volatile_queue_has_an_address_of_rabbitmq(world: World, client: LinksClient) -> None:
    terminus = {"dynamic": True, "capabilities": ("rabbitmq:volatile-queue",)}
    (attached,) = client.attach(None, 3, receives=True, terminus=terminus)
    found = attached.fields["source"].fields["address"].value
    assert found.startswith("/queues/amq.rabbitmq.reply-to.")
    client.sender(found, 4)
    basic = BasicClient(world).open()
    name = found.removeprefix("/queues/")
    assert basic.call("queue.declare", queue=name, passive=True).name == "queue.declare-ok"
    basic.publish(name, b"reply")
    client.credit(1, 3)
    (reply,) = client.messages()
    assert reply.content.endswith(b"reply")


def bind_many(world: World, count: int, **arguments: str) -> None:
    make_queue(world)
    client = paired(LinksClient(world).open(), credit=count)
    for number in range(count):
        binding = {"source": "amq.direct", "destination_queue": "q", "binding_key": str(number)}
        send(client, "POST", "/bindings", {**binding, "arguments": arguments})
        if number % 400 == 399:
            client.take()
    client.sync()


def test_bindings_are_listed_in_turns(world: World, client: LinksClient) -> None:
    bind_many(world, 3 * LISTED_AT_ONCE)
    send(client, "GET", "/bindings?src=amq.direct&dstq=q")
    send(client, "GET", "/queues/q")
    assert world.broker.tick.turns.has(client.machine.all_sessions[0])
    listed, queue = client.messages()
    status, bindings = read(listed.content)
    assert (status, len(bindings)) == (200, 3 * LISTED_AT_ONCE)
    assert bindings[7] == {"source": "amq.direct", "destination_queue": "q", "binding_key": "7", "arguments": {}}
    assert read(queue.content)[1]["name"] == "q"
    assert ask(client, "GET", "/bindings?src=amq.direct&key=8")[1] == [{**bindings[7], "binding_key": "8"}]
    assert ask(client, "GET", "/bindings?src=amq.direct&dstq=none") == (200, [])


def test_waiting_answers_are_limited_by_their_size(world: World) -> None:
    bind_many(world, 4, long="x" * 60_000)
    client = paired(LinksClient(world).open(), credit=0)
    for _ in range(10):
        send(client, "GET", "/bindings?src=amq.direct")
    assert client.error("detach") == "amqp:resource-limit-exceeded"
    client.credit(10, ANSWERS)
    assert sum(len(each.content) for each in client.messages()) < 2 * MAX_ANSWERS


def test_an_answer_has_a_size(world: World, client: LinksClient) -> None:
    bind_many(world, 20, long="x" * 60_000)
    status, text = ask(client, "GET", "/bindings?src=amq.direct")
    assert status == 400
    assert "name a queue" in text


def test_an_exclusive_queue_ends_with_a_session_that_ended_before_it_was_declared(world: World) -> None:
    client = paired(LinksClient(world).open())
    send(client, "PUT", "/queues/mine", {"exclusive": True})
    client.machine.closed()
    world.run()
    assert "mine" not in world.broker.default_host.queues


def test_an_answer_above_the_size_that_its_link_accepts_detaches_the_link(world: World) -> None:
    client = LinksClient(world).open()
    client.sender("/management", REQUESTS, name="pair")
    client.receiver("/management", ANSWERS, name="pair", credit=9, snd_settle_mode=1, max_message_size=120)
    assert ask(client, "DELETE", "/queues/none") == (200, {"message_count": 0})
    send(client, "PUT", "/queues/a", {"durable": False})
    assert client.error("detach") == "amqp:link:message-size-exceeded"
    assert client.messages() == []
