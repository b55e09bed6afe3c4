"""exchange.bind and exchange.unbind of AMQP 0-9-1."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.test_basic_channel import failed
from tests.broker.protocols.world import World

TRANSIENT = Properties()


@pytest.fixture
def client() -> BasicClient:
    client = BasicClient(World()).open()
    client.call("exchange.declare", exchange="a", type="topic")
    client.call("exchange.declare", exchange="b", type="headers", internal=True)
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="b", arguments={"n": 1})
    return client


def link(client: BasicClient, name: str = "bind", **values: Any) -> str:
    values = {"source": "a", "destination": "b", "routing_key": "x.*", **values}
    return client.call(f"exchange.{name}", **values).name


def test_messages_follow_a_binding(client: BasicClient) -> None:
    assert link(client) == link(client) == "exchange.bind-ok"
    for headers in ({"n": 1}, {"n": 2}):
        client.publish("x.y", str(headers).encode(), Properties(headers=typed_map(headers)), exchange="a")
    assert client.call("basic.get", queue="q").body == b"{'n': 1}"
    assert client.call("basic.get", queue="q").name == "basic.get-empty"
    assert link(client, "unbind") == link(client, "unbind") == "exchange.unbind-ok"
    client.publish("x.y", b"", Properties(headers=typed_map({"n": 1})), exchange="a")
    assert client.call("basic.get", queue="q").name == "basic.get-empty"
    client.take()
    client.method("exchange.bind", source="a", destination="b", nowait=True)
    assert client.take("exchange.bind-ok") == []


def test_a_mandatory_message_comes_back_from_the_end_of_a_chain(client: BasicClient) -> None:
    link(client)
    client.publish("x.y", b"back", TRANSIENT, exchange="a", mandatory=True)
    (returned,) = client.take("basic.return")
    assert returned.body == b"back"


def test_from_a_headers_exchange_the_arguments_count(client: BasicClient) -> None:
    client.call("exchange.declare", exchange="c", type="fanout")
    client.call("queue.bind", queue="q", exchange="c")
    link(client, source="b", destination="c", arguments={"m": 1})
    link(client, source="b", destination="c", arguments={"m": 2})
    link(client)
    for number in (1, 2, 3):
        client.publish("x.y", b"%d" % number, Properties(headers=typed_map({"m": number})), exchange="a")
    assert [client.call("basic.get", queue="q").body for _ in range(2)] == [b"1", b"2"]
    assert client.call("basic.get", queue="q").name == "basic.get-empty"
    link(client, "unbind", source="b", destination="c", arguments={"m": 1})
    assert client.call("exchange.delete", exchange="c").name == "exchange.delete-ok"


def test_an_exchange_with_such_a_binding_is_in_use(client: BasicClient) -> None:
    link(client)
    assert failed(client, "exchange.delete", exchange="a", if_unused=True)[1] == 406
    client.method("channel.close-ok")
    client.call("channel.open")
    assert client.call("exchange.delete", exchange="b").name == "exchange.delete-ok"
    assert client.call("exchange.delete", exchange="a", if_unused=True).name == "exchange.delete-ok"


@pytest.mark.parametrize(
    ("values", "code"),
    [({"source": ""}, 403), ({"destination": ""}, 403), ({"source": "no"}, 404), ({"destination": "no"}, 404)],
)
def test_impossible_exchange_binding_is_refused(client: BasicClient, values: dict[str, str], code: int) -> None:
    closed = failed(client, "exchange.bind", **{"source": "a", "destination": "b", **values})
    assert closed[:2] == ("channel.close", code)


def test_binding_needs_the_rights_to_bind_and_to_publish(client: BasicClient) -> None:
    asked: list[tuple[object, ...]] = []

    class Rules:
        checks_publish = True
        is_refused = ""

        def allows(self, _caller: object, action: Action, kind: ObjectType, name: str, properties: Any) -> bool:
            asked.append((action, kind, name, dict(properties)))
            return self.is_refused != "bind"

        def publishing(self, _caller: object, exchange: str, key: str) -> Publishing:
            asked.append((Action.PUBLISH, exchange, key))
            return Publishing.REFUSED if self.is_refused == "publish" else Publishing.ALWAYS

        def allows_forwarding(self, _caller: object, exchange: str, pattern: str) -> bool:
            asked.append((Action.PUBLISH, exchange, f"every key of {pattern}"))
            return self.is_refused != "publish"

    rules = Rules()
    client.world.broker.authorization.authorizer = rules
    assert link(client) == "exchange.bind-ok"
    properties = {"queuename": "b", "routingkey": "x.*"}
    assert asked == [(Action.BIND, ObjectType.EXCHANGE, "a", properties), (Action.PUBLISH, "b", "every key of x.*")]
    asked.clear()
    assert link(client, "unbind") == "exchange.unbind-ok"
    assert asked == [(Action.UNBIND, ObjectType.EXCHANGE, "a", properties)]
    for rules.is_refused in ("bind", "publish"):
        assert failed(client, "exchange.bind", source="a", destination="b")[1] == 403
        client.method("channel.close-ok")
        client.call("channel.open")
