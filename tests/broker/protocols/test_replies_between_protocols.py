"""Requests and replies between clients of AMQP 0-10, 0-9-1 and 1.0: a reply arrives where its requester waits.

A replier knows nothing but the reply address that it has got: as an exchange and a key in 0-10, as a text in 1.0, and
as the name of a queue in 0-9-1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.structs import MESSAGE_PROPERTIES, ReplyTo, decode_struct
from qstore.formats.amqp_1_0.composites import section_list
from qstore.formats.amqp_1_0.sections import split_sections
from qstore.formats.amqp_1_0.values import Value
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import Client, World, header
from tests.support.sections_peer import address, content

LONG = "k" * 300


@pytest.fixture
def world() -> World:
    """A queue for requests, three for answers, and exchanges that lead to one of them."""
    world = World()
    client = world.open_client(name=b"maker")
    for name in ("requests", "answers", "an/swers", "an swers"):
        client.declare(name)
    client.command("exchange.declare", exchange="dir/ect", type="direct")
    client.command("exchange.declare", exchange="plain", type="fanout")
    for exchange, key in (("amq.direct", "k.1"), ("dir/ect", "k/1"), ("plain", "")):
        client.command("exchange.bind", queue="answers", exchange=exchange, binding_key=key)
    client.sync()
    assert client.exceptions == []
    return world


def ask_0_10(world: World, exchange: str, key: str) -> None:
    client = world.open_client(name=b"requester")
    reply = ReplyTo(exchange or None, key or None)
    client.command(
        "message.transfer", destination="", header=header({"reply_to": reply}, routing_key="requests"), body=b"?"
    )
    client.sync()


def ask_0_9_1(world: World, reply_to: str) -> None:
    BasicClient(world).open().publish("requests", b"?", Properties(reply_to=reply_to))
    world.run()


def ask_1_0(world: World, reply_to: str) -> None:
    client = LinksClient(world).open().sender("requests")
    client.publish(b"?", message=content(b"?", durable=False, reply_to=address(reply_to)))
    client.sync()


def message_properties(client: Client, queue: str = "requests") -> dict[str, Any]:
    """The message-properties of the message on a queue, for a client of AMQP 0-10."""
    client.subscribe(queue)
    client.sync()
    (found,) = client.deliveries
    begin = 4 + int.from_bytes(found.header[:4], "big")
    return decode_struct(MESSAGE_PROPERTIES, found.header, begin, len(found.header))


def reply_0_10(world: World) -> None:
    client = world.open_client(name=b"replier")
    reply = message_properties(client)["reply_to"]
    client.publish(reply.routing_key or "", b"!", exchange=reply.exchange or "")
    client.sync()


def reply_1_0(world: World) -> None:
    client = LinksClient(world).open().receiver("requests", 5, credit=1, snd_settle_mode=1)
    (found,) = client.messages()
    begin, end = split_sections(found.content).properties
    reply: Value = section_list("properties", found.content, begin, end)["reply_to"]
    client.sender(reply.value).publish(b"!", durable=False)
    client.sync()


def reply_by_relay(world: World) -> None:
    """As `reply_1_0`, but with the address in the message."""
    client = LinksClient(world).open().receiver("requests", 5, credit=1, snd_settle_mode=1)
    (found,) = client.messages()
    begin, end = split_sections(found.content).properties
    reply: Value = section_list("properties", found.content, begin, end)["reply_to"]
    client.sender(None).publish(b"!", durable=False, to=reply)
    assert [name for _, _, name in client.outcomes()] == ["accepted"]


def reply_0_9_1(world: World) -> None:
    client = BasicClient(world).open()
    found = client.call("basic.get", queue="requests", no_ack=True)
    assert found.properties is not None
    assert found.properties.reply_to is not None
    client.publish(found.properties.reply_to, b"!")
    client.sync()


Ask = Callable[[World], None]
REPLIERS: dict[str, Callable[[World], None]] = {
    "0-10": reply_0_10, "0-9-1": reply_0_9_1, "1.0": reply_1_0, "1.0 relay": reply_by_relay,
}  # fmt: skip


def asking(ask: Any, *arguments: str) -> Ask:
    return lambda world: ask(world, *arguments)


#: How it is asked for -> the request, and the queue of the answer.
TO_QUEUES: dict[str, tuple[Ask, str]] = {
    "0-10 queue": (asking(ask_0_10, "", "answers"), "answers"),
    "0-10 queue with slash": (asking(ask_0_10, "", "an/swers"), "an/swers"),
    "0-9-1 queue": (asking(ask_0_9_1, "answers"), "answers"),
    "0-9-1 queue with slash": (asking(ask_0_9_1, "an/swers"), "an/swers"),
    "1.0 queue": (asking(ask_1_0, "answers"), "answers"),
    "1.0 queue with slash": (asking(ask_1_0, "an/swers"), "an/swers"),
    "1.0 strict queue": (asking(ask_1_0, "/queues/an%20swers"), "an swers"),
    "1.0 URL": (asking(ask_1_0, "amqps://host/answers"), "answers"),
}
TO_EXCHANGES: dict[str, tuple[Ask, str]] = {
    "0-10 exchange": (asking(ask_0_10, "amq.direct", "k.1"), "answers"),
    "0-10 exchange with slashes": (asking(ask_0_10, "dir/ect", "k/1"), "answers"),
    "0-10 exchange alone": (asking(ask_0_10, "plain", ""), "answers"),
    "0-9-1 exchange": (asking(ask_0_9_1, "amq.direct/k.1"), "answers"),
    "1.0 exchange": (asking(ask_1_0, "amq.direct/k.1"), "answers"),
    "1.0 strict exchange": (asking(ask_1_0, "/exchanges/amq.direct/k.1"), "answers"),
    "1.0 strict exchange with slashes": (asking(ask_1_0, "/exchanges/dir%2Fect/k%2F1"), "answers"),
    "1.0 exchange alone": (asking(ask_1_0, "plain"), "answers"),
}


@pytest.mark.parametrize("replier", REPLIERS)
@pytest.mark.parametrize("how", TO_QUEUES)
def test_a_reply_to_a_queue_arrives(world: World, how: str, replier: str) -> None:
    ask, queue = TO_QUEUES[how]
    ask(world)
    REPLIERS[replier](world)
    assert world.broker.default_host.queues[queue].message_count == 1


@pytest.mark.parametrize("replier", [name for name in REPLIERS if name != "0-9-1"])
@pytest.mark.parametrize("how", TO_EXCHANGES)
def test_a_reply_to_an_exchange_arrives(world: World, how: str, replier: str) -> None:
    """Clients of AMQP 0-9-1 have to know that NAME/KEY is an exchange and a key."""
    ask, queue = TO_EXCHANGES[how]
    ask(world)
    REPLIERS[replier](world)
    assert world.broker.default_host.queues[queue].message_count == 1


@pytest.mark.parametrize("replier", REPLIERS)
def test_a_direct_reply_arrives(world: World, replier: str) -> None:
    client = BasicClient(world).open()
    client.call("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    client.publish("requests", b"?", Properties(reply_to="amq.rabbitmq.reply-to"))
    client.sync()
    client.received.clear()
    REPLIERS[replier](world)
    client.sync()
    assert [each.body for each in client.received if each.name == "basic.deliver"] == [b"!"]


def test_a_queue_of_direct_replies_is_no_source(world: World) -> None:
    client = BasicClient(world).open()
    client.call("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    (name,) = world.broker.default_host.replies.queues
    (_, detached) = LinksClient(world).open().attach(name, receives=True)
    assert detached.fields["error"].fields["condition"] == "amqp:not-found"


# ---- texts and keys of more than 255 bytes ----


def ask_long(world: World, **properties: Any) -> None:
    client = LinksClient(world).open().sender("requests")
    client.publish(b"?", message=content(b"?", durable=False, **properties))
    assert [name for _, _, name in client.outcomes()] == ["accepted"]


LONG_TEXTS = {"reply_to": address(LONG), "content_type": LONG, "content_encoding": LONG, "subject": LONG}


def test_long_texts_are_headers_in_0_10(world: World) -> None:
    ask_long(world, **LONG_TEXTS)
    found = message_properties(world.open_client(name=b"reader"))
    headers = {name: typed.value for name, typed in found["application_headers"].entries}
    assert headers == {
        "x-amqp-reply-to": LONG, "x-amqp-content-type": LONG, "x-amqp-content-encoding": LONG, "qpid.subject": LONG,
    }  # fmt: skip
    assert found.get("reply_to") is found.get("content_type") is found.get("content_encoding") is None


def test_long_texts_are_headers_in_0_9_1(world: World) -> None:
    ask_long(world, **LONG_TEXTS)
    found = BasicClient(world).open().call("basic.get", queue="requests", no_ack=True).properties
    assert found is not None
    assert found.headers is not None
    headers = {name: typed.value for name, typed in found.headers.entries}
    assert headers == {f"x-amqp-{name}": LONG for name in ("reply-to", "content-type", "content-encoding", "type")}
    assert (found.reply_to, found.content_type, found.content_encoding, found.type) == (None, None, None, None)


@pytest.mark.parametrize(
    ("node", "properties"),
    [
        (f"plain/{LONG}", {}),
        (f"/exchanges/plain/{LONG}", {}),
        (None, {"to": address(f"plain/{LONG}")}),
        (None, {"to": address(f"/queues/{LONG}")}),
    ],
)
def test_a_message_with_a_long_routing_key_in_an_address_is_rejected(
    world: World, node: str | None, properties: dict[str, Any]
) -> None:
    client = LinksClient(world).open().sender(node)
    client.publish(b"?", message=content(b"?", durable=False, **properties))
    (found,) = client.take("disposition")
    assert found.fields["state"].fields["error"].fields["condition"] == "amqp:invalid-field"
    client.publish(b"?", message=content(b"?", durable=False, to=address("answers")))  # the link goes on
    assert len(client.take("disposition")) == 1


@pytest.mark.parametrize("receives", [False, True])
def test_a_node_with_a_long_name_is_not_made(world: World, receives: bool) -> None:
    client = LinksClient(world).open()
    terminus = {"capabilities": ("create-on-demand",)}
    (_, detached) = client.attach(LONG, receives=receives, terminus=terminus)
    assert detached.fields["error"].fields["condition"] == "amqp:invalid-field"


def test_a_subscription_with_a_long_key_is_refused(world: World) -> None:
    (_, detached) = LinksClient(world).open().attach(f"amq.direct/{LONG}", receives=True)
    assert detached.fields["error"].fields["condition"] == "amqp:invalid-field"
