"""A dry run of a publish: who would get a message, over QMF and over the HTTP API, on a broker that runs."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from pika.exceptions import ChannelClosedByBroker

from qstore.broker.management.console import AgentError
from qstore.broker.management.console.blocking import Console
from tests.support.running_broker import BrokerMaker, make_broker
from tests.system.shovels import channel_to
from tests.tools.web.console_runs import ADMIN, ALL, ask, broker_with_users, console_on

__all__ = ["make_broker"]


def topology(port: int) -> None:
    with channel_to(port) as channel:
        for name in ("a", "b", "red", "x", "rest"):
            channel.queue_declare(name)
        channel.exchange_declare("t", "topic", arguments={"alternate-exchange": "amq.fanout"})
        channel.queue_bind("a", "t", "a.*")
        channel.queue_bind("b", "t", "*.b")
        channel.queue_bind("red", "t", "#", {"x-filter-jms-selector": "colour = 'red'"})
        channel.queue_bind("rest", "amq.fanout", "")
        channel.exchange_declare("xml", "xml")
        channel.queue_bind("x", "xml", "k", {"xquery": "//n > 5"})


def test_the_method_says_who_would_get_a_message(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    topology(broker.port)
    with Console(f"127.0.0.1:{broker.port}") as console:
        (routing,) = console.query("routing", package="qstore")

        def found(exchange: str, key: str, **more: object) -> tuple[int, list[str]]:
            answer = console.call(routing, "dryRun", {"exchange": exchange, "routingKey": key, **more})
            return answer["recipients"], sorted(answer["queues"])

        assert found("t", "a.b") == (2, ["a", "b"])
        assert found("t", "a.c", headers={"colour": "red"}) == (2, ["a", "red"])
        assert found("t", "other") == (1, ["rest"])
        assert found("", "a") == (1, ["a"])
        assert found("", "nobody") == (0, [])
        assert found("xml", "k", content="<a><n>7</n></a>") == (1, ["x"])
        assert found("xml", "k", content="<a><n>3</n></a>") == (0, [])
        for arguments in ({"exchange": "none"}, {"exchange": "t", "vhost": "none"}, {"exchange": "t", "headers": 5}):
            with pytest.raises(AgentError):
                console.call(routing, "dryRun", {"routingKey": "k", **arguments})
        exchange = console.find("exchange:t")
        assert (exchange.get("msgReceives"), exchange.get("msgDrops")) == (0, 0)
    with channel_to(broker.port) as channel:
        assert [channel.queue_declare(name, passive=True).method.message_count for name in ("a", "rest", "x")] == [
            0
        ] * 3
    assert broker.stop() == 0


async def test_the_http_api_declares_exchanges_of_all_types(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        types = [each["name"] for each in (await ask(client, 200, "GET", "overview"))["exchange_types"]]
        assert {"xml", "x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history"} <= set(types)
        for kind in types:
            arguments = {"x-delayed-type": "direct"} if kind == "x-delayed-message" else {}
            body = {"type": kind, "durable": True, "arguments": arguments}
            await ask(client, 201, "PUT", f"exchanges/%2F/of-{kind}", body)
            assert (await ask(client, 200, "GET", f"exchanges/%2F/of-{kind}"))["type"] == kind
        await ask(client, 400, "PUT", "exchanges/%2F/none", {"type": "x-none"})
        policy = {"pattern": "^few", "definition": {"max-consumers": 1}, "apply-to": "queues"}
        await ask(client, 201, "PUT", "policies/%2F/few", policy)
        await ask(client, 201, "PUT", "queues/%2F/few.x", {})
    with channel_to(broker.port) as channel:
        channel.basic_consume("few.x", lambda *_: None)
        with pytest.raises(ChannelClosedByBroker, match="limit of its consumers, 1"):
            channel.basic_consume("few.x", lambda *_: None)


async def test_the_http_api_has_a_dry_run_that_needs_the_permission_to_publish(
    make_broker: BrokerMaker, tmp_path: Path
) -> None:
    running = broker_with_users(make_broker, tmp_path, root="administrator")
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "users/bob", {"password": "bob's", "tags": "management"})
        for name in ("root", "bob"):
            await ask(client, 201, "PUT", f"permissions/%2F/{name}", ALL)
        await ask(
            client, 201, "PUT", "topic-permissions/%2F/bob", {"exchange": "amq.topic", "write": "^b", "read": ".*"}
        )
        await ask(client, 201, "PUT", "queues/%2F/q", {})
        await ask(client, 201, "POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "#.x"})
        body = {"properties": {}, "routing_key": "b.x", "payload": "", "payload_encoding": "string"}
        path = "exchanges/%2F/amq.topic/dry-run"
        assert await ask(client, 200, "POST", path, body, user=("bob", "bob's")) == {"recipients": 1, "queues": ["q"]}
        await ask(client, 401, "POST", path, {**body, "routing_key": "e.x"}, user=("bob", "bob's"))
        other = {**body, "routing_key": "e.y", "payload": b64encode(b"\xff").decode(), "payload_encoding": "base64"}
        assert await ask(client, 200, "POST", path, other) == {"recipients": 0, "queues": []}
        assert await ask(client, 200, "POST", "exchanges/%2F/amq.default/dry-run", {**body, "routing_key": "q"}) == {
            "recipients": 1, "queues": ["q"],
        }  # fmt: skip
        await ask(client, 404, "POST", "exchanges/%2F/none/dry-run", body)
        await ask(client, 400, "POST", path, {"routing_key": "b.x"})
        assert (await ask(client, 200, "GET", "queues/%2F/q")).get("messages", 0) == 0
