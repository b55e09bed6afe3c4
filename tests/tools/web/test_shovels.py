"""Shovels over the API: who may set them, as whom they work, and who sees their passwords."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.tools.web.console_runs import Client, console_on
from tests.tools.web.test_access import ADMIN, ALL, ask
from tests.tools.web.test_access import running as running_with_users

__all__ = ["make_broker"]

running = running_with_users
CAROL, DAVE, EVE = ("carol", "c"), ("dave", "d"), ("eve", "e")
SECRET = "very-secret"


async def wait_for(client: Client, name: str, state: str) -> dict[str, Any]:
    for _ in range(400):
        for row in await ask(client, 200, "GET", "shovels"):
            if row["name"] == name and row["state"] == state:
                return dict(row)
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is not {state}: {await ask(client, 200, 'GET', 'shovels')}")


async def add_users(client: Client) -> None:
    """Carol and Dave make policies; Eve watches."""
    for (name, password), tags in ((CAROL, "policymaker"), (DAVE, "policymaker"), (EVE, "monitoring")):
        await ask(client, 201, "PUT", f"users/{name}", {"password": password, "tags": tags})
        await ask(client, 201, "PUT", f"permissions/%2F/{name}", ALL)
    await ask(client, 201, "PUT", "permissions/%2F/root", ALL)


async def publish(client: Client, queue: str) -> None:
    body = {"properties": {"delivery_mode": 2}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    await ask(client, 200, "POST", "exchanges/%2F/amq.default/publish", body)


async def test_a_shovel_works_as_the_user_who_has_set_it(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await add_users(client)
        for queue in ("a", "b"):
            await ask(client, 201, "PUT", f"queues/%2F/{queue}", {"durable": True})
        value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp:///%2f", "dest-queue": "b"}
        path = "parameters/shovel/%2F/mine"
        for user, status in ((EVE, 401), (CAROL, 201)):
            await ask(client, status, "PUT", path, {"value": value}, user=user)
        row = await wait_for(client, "mine", "running")
        assert row.items() >= {
            "vhost": "/", "type": "dynamic", "src_uri": "amqp://", "src_queue": "a", "dest_uri": "amqp://",
            "dest_queue": "b", "src_protocol": "amqp091", "dest_protocol": "amqp091",
        }.items()  # fmt: skip
        connections: list[dict[str, Any]] = []
        while not connections:  # a list may be a second old
            connections = [each for each in await ask(client, 200, "GET", "connections") if each["user"] == "carol"]
            await asyncio.sleep(0.1)
        connection = connections[0]
        assert connection["client_properties"]["connection_name"] == "Shovel mine"
        await publish(client, "a")
        for _ in range(100):
            row = await wait_for(client, "mine", "running")
            if row["messages_forwarded"] == 1 and not row["messages_pending"]:
                break
            await asyncio.sleep(0.1)
        assert row["messages_forwarded"] == 1

        await ask(client, 204, "PUT", path, {"value": {**value, "reconnect-delay": 0}}, user=DAVE)
        await wait_for(client, "mine", "running")
        await ask(client, 204, "PUT", "permissions/%2F/dave", {**ALL, "write": "^d"})
        await publish(client, "a")
        row = await wait_for(client, "mine", "terminated")
        assert "dave@QPID is not allowed to publish exchange" in row["reason"]
        (queue,) = [each for each in await ask(client, 200, "GET", "queues/%2F") if each["name"] == "a"]
        assert queue["messages"] == 1

        await ask(client, 204, "PUT", "permissions/%2F/dave", ALL)
        await ask(client, 401, "DELETE", "shovels/vhost/%2F/mine/restart", user=EVE)
        await ask(client, 204, "DELETE", "shovels/vhost/%2F/mine/restart", user=CAROL)
        await wait_for(client, "mine", "running")
        metrics = await client.ask("GET", "/metrics", user=ADMIN)
        assert 'qstore_shovels{state="running"} 1.0' in metrics.body.decode()
        await ask(client, 401, "DELETE", "shovels/vhost/%2F/mine", user=EVE)
        await ask(client, 204, "DELETE", "shovels/vhost/%2F/mine", user=CAROL)
        await ask(client, 404, "DELETE", "shovels/vhost/%2F/mine", user=CAROL)
        assert await ask(client, 200, "GET", "shovels/%2F") == []
        assert await ask(client, 200, "GET", "parameters/shovel") == []


async def test_passwords_are_seen_only_by_those_who_may_set_them(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await add_users(client)
        uri = f"amqp://u:{SECRET}@127.0.0.1:1/v"
        value = {"src-uri": uri, "src-queue": "a", "dest-uri": ["amqp://", uri], "dest-queue": "b"}
        await ask(client, 201, "PUT", "parameters/shovel/%2F/far", {"value": value}, user=CAROL)
        row = await wait_for(client, "far", "terminated")
        assert row["src_uri"] == "amqp://127.0.0.1:1/v"
        assert (await ask(client, 200, "GET", "parameters/shovel/%2F/far", user=CAROL))["value"] == value
        for path in ("shovels", "shovels/%2F", "shovels/vhost/%2F/far"):
            assert SECRET not in str(await ask(client, 200, "GET", path, user=EVE))
        await ask(client, 401, "GET", "parameters/shovel", user=EVE)
        refused = await ask(
            client, 400, "PUT", "parameters/shovel/%2F/far", {"value": {**value, "src-uri": uri + "?x=1"}}
        )
        assert SECRET not in str(refused)
    assert SECRET not in running.log_text()


async def test_a_rule_of_the_acl_decides_who_may_create_links(make_broker: BrokerMaker, tmp_path: Path) -> None:
    rules = tmp_path / "rules.acl"
    rules.write_text("acl allow anonymous@QPID create queue\nacl deny all create link\nacl allow all all\n")
    broker = make_broker("--acl-file", str(rules)).start()
    async with console_on(f"127.0.0.1:{broker.port}") as client:
        value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
        guest = ("guest", "guest")
        refused = await ask(client, 401, "PUT", "parameters/shovel/%2F/mine", {"value": value}, user=guest)
        assert "create link" in str(refused)
        assert await ask(client, 200, "GET", "shovels", user=guest) == []


@pytest.mark.parametrize("path", ["shovels/vhost/%2F/none", "shovels/none"])
async def test_what_does_not_exist_is_not_found(running: RunningBroker, path: str) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 404, "GET", path)


async def test_federation_links_are_listed_and_restarted(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await add_users(client)
        await ask(client, 201, "PUT", "exchanges/%2F/news", {"type": "topic", "durable": True})
        value = {"uri": f"amqp://root:{SECRET}@127.0.0.1:1", "reconnect-delay": 0.1}
        path = "parameters/federation-upstream/%2F/up"
        for user, status in ((EVE, 401), (CAROL, 201)):
            await ask(client, status, "PUT", path, {"value": value}, user=user)
        policy = {"pattern": "^news$", "apply-to": "exchanges", "definition": {"federation-upstream": "up"}}
        await ask(client, 201, "PUT", "policies/%2F/federated", policy, user=CAROL)
        rows: list[dict[str, Any]] = []
        for _ in range(100):
            rows = await ask(client, 200, "GET", "federation-links/%2F/state/down", user=EVE)
            if rows and rows[0]["status"] == "error":
                break
            await asyncio.sleep(0.1)
        (row,) = rows
        assert row.items() >= {
            "vhost": "/", "type": "exchange", "exchange": "news", "upstream_exchange": "news", "upstream": "up",
            "status": "error", "uri": "amqp://127.0.0.1:1",
        }.items()  # fmt: skip
        assert "refused" in row["error"]
        assert SECRET not in str(rows)
        restart = f"federation-links/vhost/%2F/{row['id']}/any/restart"
        await ask(client, 401, "DELETE", restart, user=EVE)
        await ask(client, 204, "DELETE", restart, user=CAROL)
        await ask(client, 404, "DELETE", "federation-links/vhost/%2F/none/any/restart", user=CAROL)
        await ask(client, 404, "GET", "federation-links/elsewhere")
        await ask(client, 204, "DELETE", "policies/%2F/federated")
        for _ in range(100):
            if not await ask(client, 200, "GET", "federation-links"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the link stays")
