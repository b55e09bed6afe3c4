"""Virtual hosts of a real broker: over the API, by clients of both protocols, after a kill and in the store's tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection, ConnectionFailedError, MessagingError
from qstore.broker.management.console import AgentError, Console
from qstore.tools import qpid_config, qstore_dump
from qstore.tools.web.resources import Api
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.tools.web.console_runs import ADMIN, ALL, ask, broker_with_users, console_on

__all__ = ["make_broker"]


@pytest.fixture
def running(make_broker: BrokerMaker, tmp_path: Path) -> RunningBroker:
    """A broker whose user root is an administrator; bob is not."""
    return broker_with_users(make_broker, tmp_path, root="administrator", bob="management")


def connect(running: RunningBroker, vhost: str, user: str = "root") -> pika.BlockingConnection:
    login = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", running.port, vhost, login))


def refusal(running: RunningBroker, vhost: str, user: str = "root") -> str:
    """Why a connection of AMQP 0-9-1 is refused."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530") as refused:
        connect(running, vhost, user)
    return str(refused.value)


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(work, *arguments)


async def test_a_host_has_its_own_queues_exchanges_and_bindings(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue%2Fsky", {"description": "above", "tags": "a,b"})
        await ask(client, 204, "PUT", "vhosts/blue%2Fsky", {"description": "above", "tags": ["a"]})
        row = await ask(client, 200, "GET", "vhosts/blue%2Fsky")
        assert (row["name"], row["description"], row["tags"]) == ("blue/sky", "above", ["a"])
        for vhost, count in (("%2F", 1), ("blue%2Fsky", 2)):
            await ask(client, 201, "PUT", f"queues/{vhost}/q", {"durable": True})
            await ask(client, 204, "PUT", f"queues/{vhost}/q", {"durable": True})
            await ask(client, 201, "PUT", f"exchanges/{vhost}/x", {"type": "fanout", "durable": True})
            await ask(client, 201, "POST", f"bindings/{vhost}/e/x/q/q", {"routing_key": "k"})
            message = {"properties": {"delivery_mode": 2}, "routing_key": "", "payload_encoding": "string"}
            for number in range(count):
                message["payload"] = f"{vhost} {number}"
                assert await ask(client, 200, "POST", f"exchanges/{vhost}/x/publish", message) == {"routed": True}
        for vhost, count in (("%2F", 1), ("blue%2Fsky", 2)):
            queue = await ask(client, 200, "GET", f"queues/{vhost}/q")
            assert (queue["name"], queue["messages"]) == ("q", count)
            found = await ask(client, 200, "GET", f"queues/{vhost}/q/bindings")
            assert {(each["source"], each["destination"]) for each in found} == {("", "q"), ("x", "q")}
            assert {each["vhost"] for each in found} == {queue["vhost"]}
        listed = await ask(client, 200, "GET", "queues")
        assert [(each["vhost"], each["name"]) for each in listed] == [("/", "q"), ("blue/sky", "q")]
        got = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
        found = await ask(client, 200, "POST", "queues/blue%2Fsky/q/get", got)
        assert [each["payload"] for each in found] == ["blue%2Fsky 0", "blue%2Fsky 1"]
        journals = await ask(client, 200, "GET", "qstore/journals")
        assert [(each["vhost"], each["name"]) for each in journals] == [("/", "q"), ("blue/sky", "q")]
        await ask(client, 204, "DELETE", "queues/blue%2Fsky/q/contents")
        await ask(client, 204, "DELETE", "queues/blue%2Fsky/q")
        await ask(client, 404, "GET", "queues/blue%2Fsky/q")
        await ask(client, 200, "GET", "queues/%2F/q")
        await ask(client, 404, "GET", "queues/none/q")


async def test_a_deleted_host_takes_everything_along(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {})
        await ask(client, 201, "PUT", "queues/blue/q", {"durable": True})
        await ask(client, 201, "PUT", "policies/blue/p", {"pattern": ".*", "definition": {"max-length": 5}})
        for vhost in ("%2F", "blue"):
            await ask(client, 201, "PUT", f"permissions/{vhost}/root", ALL)
        await ask(client, 204, "PUT", "vhost-limits/blue/max-queues", {"value": 1})
        connection = await in_thread(connect, running, "blue")
        modern = Connection(f"root/root@127.0.0.1:{running.port}/blue", connect_timeout=20)
        await in_thread(modern.open)
        await ask(client, 204, "DELETE", "vhosts/blue")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'blue' is deleted"):
            await in_thread(connection.process_data_events, 20)
        with pytest.raises(MessagingError):
            await in_thread(lambda: modern.session().sender("q").send("x"))
        await in_thread(modern.close)
        assert "vhost 'blue' not found" in await in_thread(refusal, running, "blue")
        assert [each["name"] for each in await ask(client, 200, "GET", "vhosts")] == ["/"]
        for path in ("queues", "policies", "vhost-limits"):
            assert await ask(client, 200, "GET", path) == []
        assert [each["vhost"] for each in await ask(client, 200, "GET", "permissions")] == ["/"]
        await ask(client, 404, "DELETE", "vhosts/blue")
        await ask(client, 400, "DELETE", "vhosts/%2F")
        await ask(client, 201, "PUT", "vhosts/blue", {})
        assert [each["name"] for each in await ask(client, 200, "GET", "queues/blue")] == []


async def test_permissions_are_those_of_one_host(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {})
        for vhost in ("%2F", "blue"):
            await ask(client, 201, "PUT", f"permissions/{vhost}/root", ALL)
        assert "access to vhost 'blue' refused for user 'bob@QPID'" in await in_thread(refusal, running, "blue", "bob")
        await ask(client, 201, "PUT", "permissions/blue/bob", {**ALL, "configure": "^bob"})
        connection = await in_thread(connect, running, "blue", "bob")
        await in_thread(lambda: connection.channel().queue_declare("bob1"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            await in_thread(lambda: connection.channel().queue_declare("other"))
        await in_thread(connection.close)
        await in_thread(refusal, running, "/", "bob")
        await ask(client, 400, "PUT", "permissions/none/bob", ALL)
        await ask(client, 404, "PUT", "policies/none/p", {"pattern": ".*", "definition": {"max-length": 5}})


def by_management(running: RunningBroker, user: str) -> tuple[dict[str, list[Any]], list[str]]:
    """The names of objects that a user sees by QMF; and what the user is refused of what concerns the host blue."""
    secret, broker, refused = "blue\x1fsecret", "broker:amqp-broker", list[str]()
    with Console(f"{user}/{user}@127.0.0.1:{running.port}") as console:
        seen = {of: [each.values for each in console.query(of)] for of in _SEEN}
        clients = [each for each in console.query("connection") if each.values["authIdentity"] == "root@QPID"]
        attempts: dict[str, tuple[Any, str, dict[str, Any]]] = {
            "query queue": (broker, "query", {"type": "queue", "name": secret}),
            "query exchange": (broker, "query", {"type": "exchange", "name": "blue\x1fx"}),
            "purge": (f"queue:{secret}", "purge", {"request": 0}),
            "reroute": (f"queue:{secret}", "reroute", {"request": 0, "useAltExchange": False, "exchange": "x"}),
            **{f"close {number}": (each, "close", {}) for number, each in enumerate(clients)},
        }
        for name, (target, method, arguments) in attempts.items():
            try:
                console.call(target, method, **arguments)
            except AgentError:
                refused.append(name)
    return seen, refused


_SEEN = ("queue", "exchange", "binding", "policy", "connection", "session", "subscription", "vhost", "journal")


async def test_users_see_what_is_in_virtual_hosts_that_they_have_a_permission_for(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {})
        for vhost, user in (("%2F", "root"), ("blue", "root"), ("%2F", "bob")):
            await ask(client, 201, "PUT", f"permissions/{vhost}/{user}", ALL)
        await ask(client, 201, "PUT", "queues/%2F/own", {"durable": True})
        await ask(client, 201, "PUT", "queues/blue/secret", {"durable": True})
        await ask(client, 201, "PUT", "exchanges/blue/x", {"type": "topic"})
        await ask(client, 201, "POST", "bindings/blue/e/x/q/secret", {"routing_key": "k"})
        await ask(client, 201, "PUT", "policies/blue/p", {"pattern": "none", "definition": {"max-length": 5}})
        roots, bobs = await in_thread(connect, running, "blue"), await in_thread(connect, running, "/", "bob")
        await in_thread(lambda: roots.channel().basic_consume("secret", lambda *_: None))
        seen, refused = await in_thread(by_management, running, "bob")
        assert "blue" not in str(seen)
        assert {each["authIdentity"] for each in seen["connection"]} == {"bob@QPID"}
        assert refused == ["query queue", "query exchange", "purge", "reroute"]
        bob = ("bob", "bob")

        async def has_clients() -> bool:
            users = {each["user"] for each in await ask(client, 200, "GET", "connections")}
            return users >= {"root", "bob"} and bool(await ask(client, 200, "GET", "consumers"))

        async with asyncio.timeout(60):
            while not await has_clients():
                await asyncio.sleep(0.2)
        for path in ("queues", "exchanges", "bindings", "policies", "vhosts", "channels", "consumers", "connections"):
            assert "blue" not in str(await ask(client, 200, "GET", path, user=bob)), path
        assert [each["name"] for each in await ask(client, 200, "GET", "queues", user=bob)] == ["own"]
        assert {each["user"] for each in await ask(client, 200, "GET", "connections", user=bob)} == {"bob"}
        for path in ("queues/blue", "queues/blue/secret", "exchanges/blue/x", "bindings/blue", "policies/blue"):
            await ask(client, 401, "GET", path, user=bob)
        with monkeypatch.context() as patched:  # another console has made it a moment ago

            async def known(_api: Api) -> list[str]:
                return ["/"]

            patched.setattr(Api, "vhosts", known)
            for path in ("queues/blue", "queues/blue/secret", "exchanges/blue/x", "bindings/blue"):
                await ask(client, 404, "GET", path, user=bob)
        (root,) = [
            each["name"]
            for each in await ask(client, 200, "GET", "connections")
            if each["user"] == "root" and each["vhost"] == "blue"
        ]
        await ask(client, 401, "GET", f"connections/{quote(root, safe='')}", user=bob)
        await ask(client, 401, "DELETE", f"connections/{quote(root, safe='')}", user=bob)
        await in_thread(roots.process_data_events)
        assert roots.is_open
        await ask(client, 204, "PUT", "users/bob", {"password": "bob", "tags": "monitoring"})
        seen, refused = await in_thread(by_management, running, "bob")
        assert "blue" in str(seen)
        assert [each for each in refused if each.startswith("close")], "only administrators close others' connections"
        await in_thread(roots.process_data_events)
        await in_thread(roots.close)
        await in_thread(bobs.close)


async def test_a_policymaker_may_not_use_the_upstream_of_an_administrator(
    make_broker: BrokerMaker, tmp_path: Path
) -> None:
    running = broker_with_users(make_broker, tmp_path, root="administrator", bob="policymaker")
    bob = ("bob", "bob")
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        for user in ("root", "bob"):
            await ask(client, 201, "PUT", f"permissions/%2F/{user}", ALL)
        await ask(client, 201, "PUT", "parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://127.0.0.1:1"}})
        policy = {"pattern": "^news$", "apply-to": "exchanges", "definition": {"federation-upstream": "up"}}
        await ask(client, 401, "PUT", "policies/%2F/p", policy, bob)
        await ask(client, 201, "PUT", "policies/%2F/p", policy)


async def test_limits_of_a_host_hold(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {})
        await ask(client, 204, "PUT", "vhost-limits/blue/max-connections", {"value": 1})
        await ask(client, 204, "PUT", "vhost-limits/blue/max-queues", {"value": 1})
        await ask(client, 400, "PUT", "vhost-limits/blue/max-colours", {"value": 1})
        await ask(client, 404, "PUT", "vhost-limits/none/max-queues", {"value": 1})
        wanted = {"vhost": "blue", "value": {"max-connections": 1, "max-queues": 1}}
        assert await ask(client, 200, "GET", "vhost-limits") == [wanted]
        assert await ask(client, 200, "GET", "vhost-limits/%2F") == []
        await ask(client, 400, "PUT", "vhost-limits/blue/max-queues", {"value": "many"})
    running.kill()
    running.start()
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        assert await ask(client, 200, "GET", "vhost-limits") == [wanted]
        connection = await in_thread(connect, running, "blue")
        assert "connection limit (1) is reached" in await in_thread(refusal, running, "blue")
        await in_thread(lambda: connection.channel().queue_declare("q"))
        await in_thread(lambda: connection.channel().queue_declare("q"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="the limit of its virtual host"):
            await in_thread(lambda: connection.channel().queue_declare("r"))
        await in_thread(connection.close)
        await ask(client, 204, "DELETE", "vhost-limits/blue/max-connections")
        both = [await in_thread(connect, running, "blue") for _ in range(2)]
        for each in both:
            await in_thread(each.close)


async def test_definitions_take_several_hosts_to_another_broker(
    running: RunningBroker, make_broker: BrokerMaker
) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {"description": "above"})
        for vhost in ("%2F", "blue"):
            await ask(client, 201, "PUT", f"queues/{vhost}/q", {"durable": True})
            await ask(client, 201, "POST", f"bindings/{vhost}/e/amq.topic/q/q", {"routing_key": vhost})
        await ask(client, 201, "PUT", "policies/blue/p", {"pattern": ".*", "definition": {"max-length": 5}})
        await ask(client, 204, "PUT", "vhost-limits/blue/max-queues", {"value": 7})
        exported = await ask(client, 200, "GET", "definitions")
    exported = {**exported, "users": []}
    other = make_broker().start()
    async with console_on(f"127.0.0.1:{other.port}") as client:
        await ask(client, 204, "POST", "definitions", exported, ("guest", "guest"))
        again = await client.get("definitions")
        for kind in ("vhosts", "queues", "bindings", "policies", "parameters"):
            assert again[kind] == exported[kind], kind
        queue = await client.becomes("queues/blue/q")
        assert queue["policy"] == "p"


async def test_what_a_host_has_survives_a_kill_and_tools_show_it(running: RunningBroker, tmp_path: Path) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "vhosts/blue", {})
        for vhost in ("%2F", "blue"):
            await ask(client, 201, "PUT", f"queues/{vhost}/q", {"durable": True})
            message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload_encoding": "string"}
            message["payload"] = vhost
            await ask(client, 200, "POST", f"exchanges/{vhost}/amq.default/publish", message)
    running.kill()
    store = str(running.data_directory)
    shown = CliRunner().invoke(qstore_dump.command, ["--topology", "--outstanding", store, "--queue", "blue/q"])
    assert shown.exit_code == 0, shown.output
    assert "blue/q" in shown.output
    assert "%2F" not in shown.output
    shown = CliRunner().invoke(qstore_dump.command, ["--topology", store, "--queue", "blue/none"])
    assert 'there is no queue "blue/none"' in shown.output
    running.start()
    url = f"root/root@127.0.0.1:{running.port}"
    made = CliRunner().invoke(qpid_config.command, ["queues", "-b", url, "--virtual-host", "blue", "--json"])
    assert made.exit_code == 0, made.output
    assert [json.loads(line)["name"] for line in made.output.splitlines()] == ["blue/q"]
    for words in (["add", "queue", "new"], ["bind", "amq.topic", "new", "k"], ["unbind", "amq.topic", "new", "k"]):
        made = CliRunner().invoke(qpid_config.command, [*words, "-b", url, "--virtual-host", "blue"])
        assert made.exit_code == 0, made.output
    connection = connect(running, "blue")
    channel = connection.channel()
    assert channel.queue_declare("new", passive=True).method.queue == "new"
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)] == [b"blue", None]
    connection.close()
    with Connection(f"root/root@127.0.0.1:{running.port}/blue") as modern:
        assert modern.is_open
        modern.session().sender("new").send("x")


def test_a_client_of_0_10_without_a_known_host_is_in_the_default_one_unless_hosts_are_strict(
    make_broker: BrokerMaker,
) -> None:
    lax, strict = make_broker().start(), make_broker("--virtual-hosts", "strict").start()
    with Connection(f"127.0.0.1:{lax.port}/none") as connection:
        connection.session().sender("q; {create: always}").send("x")
    with Connection(f"127.0.0.1:{lax.port}") as connection:
        assert connection.session().receiver("q").fetch(10).content == "x"
    with Connection(f"127.0.0.1:{strict.port}/") as connection:
        assert connection.is_open
    with pytest.raises(ConnectionFailedError, match='there is no virtual host "none"'):
        Connection(f"127.0.0.1:{strict.port}/none").open()


async def test_hosts_are_listed_with_the_columns_that_are_asked_for(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "queues/%2F/q", {"durable": True})
        body = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        await ask(client, 200, "POST", "exchanges/%2F/amq.default/publish", body)
        names = await ask(client, 200, "GET", "vhosts?columns=name,description")
        assert names == [{"name": "/", "description": "Default virtual host"}]
        for path in ("vhosts?columns=name,messages", "vhosts?columns=name,messages&sort=messages"):
            assert await ask(client, 200, "GET", path) == [{"name": "/", "messages": 1}]
        assert (await ask(client, 200, "GET", "vhosts/%2F?columns=name"))["messages"] == 1
