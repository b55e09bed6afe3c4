"""AMQP 0-9-1 and access control: what the rules refuse gets 403, is not done, and leaves the connection alone."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.replies import REPLY_TO
from qstore.broker.security.authentication import Authentication, LoginOptions, PeerSecurity
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.broker.test_acl_control import use

RULES = (
    "acl deny all create queue name=secret*",
    "acl deny all create exchange name=secret*",
    "acl deny all access queue name=hidden",
    "acl deny all delete queue name=kept",
    "acl deny all purge queue name=kept",
    "acl deny all bind exchange name=amq.direct routingkey=secret.*",
    "acl deny all unbind exchange name=amq.direct routingkey=bound",
    "acl deny all consume queue name=kept",
    f"acl deny all consume queue name={REPLY_TO}",
    "acl deny all publish exchange name=amq.direct routingkey=secret",
    "acl deny all publish exchange name=amq.default routingkey=kept",
    "acl allow all all",
)


@pytest.fixture
def client() -> BasicClient:
    world = World()
    client = BasicClient(world).open(1, 2)
    for queue in ("kept", "hidden", "open"):
        client.call("queue.declare", queue=queue)
    client.call("queue.bind", queue="open", exchange="amq.direct", routing_key="bound")
    client.publish("kept", b"first")
    client.sync()
    client.received.clear()
    use(world.broker, *RULES)
    client.machine.watch_rules()  # as the network does when there are others
    return client


def refused(client: BasicClient) -> str:
    """The text with which channel 1 was closed; channel 2 works."""
    (closed,) = client.take("channel.close", "connection.close")
    assert (closed.name, closed.channel, closed.values["reply_code"]) == ("channel.close", 1, 403)
    text: str = closed.values["reply_text"]
    assert text.startswith("ACCESS_REFUSED - ")
    assert client.call("queue.declare", 2, queue="open", passive=True).name == "queue.declare-ok"
    return text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queue.declare", {"queue": "secret-q"}),
        ("queue.declare", {"queue": "hidden", "passive": True}),
        ("exchange.declare", {"exchange": "secret-e", "type": "direct"}),
        ("queue.delete", {"queue": "kept"}),
        ("queue.purge", {"queue": "kept"}),
        ("queue.bind", {"queue": "open", "exchange": "amq.direct", "routing_key": "secret.key"}),
        ("queue.unbind", {"queue": "open", "exchange": "amq.direct", "routing_key": "bound"}),
        ("basic.consume", {"queue": "kept"}),
        ("basic.consume", {"queue": REPLY_TO, "no_ack": True}),
        ("basic.get", {"queue": "kept"}),
    ],
)
def test_refused_operation_has_no_effect(client: BasicClient, name: str, values: dict[str, Any]) -> None:
    broker = client.world.broker
    before = (
        set(broker.default_host.queues),
        set(broker.default_host.exchanges),
        broker.default_host.exchanges["amq.direct"].binding_count.value,
    )
    client.method(name, **values)
    refused(client)
    assert (
        set(broker.default_host.queues),
        set(broker.default_host.exchanges),
        broker.default_host.exchanges["amq.direct"].binding_count.value,
    ) == before
    assert broker.default_host.queues["kept"].available_count == 1
    assert broker.default_host.queues["kept"].consumer_count == 0
    assert broker.default_host.replies.queues == {}


@pytest.mark.parametrize("mode", ["", "confirm.select", "tx.select"])
def test_refused_messages_are_not_published(client: BasicClient, mode: str) -> None:
    if mode:
        client.call(mode)
        client.received.clear()
    client.publish("bound", b"allowed", Properties(), exchange="amq.direct")
    client.publish("secret", b"refused", Properties(), exchange="amq.direct")
    client.publish("bound", b"too late", Properties(), exchange="amq.direct")
    assert client.take("basic.ack", "basic.nack") == [] or mode == "confirm.select"
    refused(client)
    assert client.world.broker.default_host.queues["open"].available_count == (mode != "tx.select")


def test_messages_to_a_queue_may_be_refused(client: BasicClient) -> None:
    client.publish("open", b"allowed")
    client.publish("kept", b"refused")
    refused(client)
    queues = client.world.broker.default_host.queues
    assert (queues["open"].available_count, queues["kept"].available_count) == (1, 1)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_further_routing_keys_are_asked_for_as_well(client: BasicClient, header: str) -> None:
    client.publish("open", b"x", Properties(headers=typed_map({header: ["open", "kept"]})))
    refused(client)
    queues = client.world.broker.default_host.queues
    assert (queues["open"].available_count, queues["kept"].available_count) == (0, 1)


# ---- logins ----


def entered(security: PeerSecurity, mechanism: str, response: bytes, *, is_on: bool = True) -> BasicClient:
    """A client that has sent its start-ok."""
    world = World(authentication=Authentication(LoginOptions(is_on=is_on), None))
    client = BasicClient(world)
    client.machine.login = type(client.machine.login)(world.authentication, security)
    client.start(mechanism, response)
    return client


def test_a_client_certificate_is_a_login() -> None:
    client = entered(PeerSecurity(is_local=False, is_encrypted=True, certificate_user="anna"), "EXTERNAL", b"")
    (start,) = client.take("connection.start")
    assert start.values["mechanisms"].split() == [b"EXTERNAL"]
    assert client.take("connection.tune")
    assert client.machine.user.startswith("anna")
    assert client.machine.mechanism == "EXTERNAL"


@pytest.mark.parametrize("security", [PeerSecurity(is_local=True), PeerSecurity(is_local=False, is_encrypted=True)])
def test_without_one_external_is_refused(security: PeerSecurity) -> None:
    client = entered(security, "EXTERNAL", b"anna")
    assert client.take("connection.tune") == []
    assert client.machine.user == ""


def test_a_certificate_does_not_log_in_another_user() -> None:
    client = entered(PeerSecurity(is_local=False, is_encrypted=True, certificate_user="anna"), "EXTERNAL", b"bert")
    assert client.take("connection.tune") == []
    (closed,) = client.take("connection.close")
    assert closed.values["reply_code"] == 403
