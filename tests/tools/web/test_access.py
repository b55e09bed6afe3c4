"""Users, permissions, tags and policies over the API, on a broker with a user file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.tools.qstore_passwd import command
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.tools.web.console_runs import ADMIN, ALL, ask, broker_with_users, console_on

__all__ = ["make_broker"]


@pytest.fixture
def running(make_broker: BrokerMaker, tmp_path: Path) -> RunningBroker:
    """A broker whose user root is an administrator."""
    return broker_with_users(make_broker, tmp_path, root="administrator")


async def test_users_permissions_and_tags(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        assert await ask(client, 200, "GET", "whoami") == {"name": "root", "tags": ["administrator"]}
        await ask(client, 201, "PUT", "users/bob", {"password": "bob's", "tags": "monitoring"})
        await ask(client, 204, "PUT", "users/bob", {"password": "bob's", "tags": "management"})
        refused = await ask(client, 400, "PUT", "users/eve", {"password": "x"})
        assert refused["reason"] == "tags_not_present"
        assert (await ask(client, 200, "GET", "users/bob"))["tags"] == ["management"]
        assert {row["name"] for row in await ask(client, 200, "GET", "users/without-permissions")} == {"root", "bob"}
        for name in ("root", "bob"):
            await ask(client, 201, "PUT", f"permissions/%2F/{name}", ALL)
        await ask(client, 204, "PUT", "permissions/%2F/bob", {**ALL, "configure": "^bob"})
        await ask(client, 400, "PUT", "permissions/%2F/bob", {**ALL, "read": "("})
        await ask(client, 400, "PUT", "permissions/%2F/bob", {"configure": ".*"})
        refused = await ask(client, 400, "PUT", "permissions/%2F/nobody", ALL)
        assert refused["reason"] == "vhost_or_user_not_found"
        assert await ask(client, 200, "GET", "permissions/%2F/bob") == {
            "user": "bob", "vhost": "/", "configure": "^bob", "write": ".*", "read": ".*",
        }  # fmt: skip
        assert [row["vhost"] for row in await ask(client, 200, "GET", "users/bob/permissions")] == ["/"]

        bob = ("bob", "bob's")
        assert (await ask(client, 200, "GET", "whoami", user=bob))["tags"] == ["management"]
        await ask(client, 201, "PUT", "queues/%2F/bob1", {}, user=bob)
        await ask(client, 401, "PUT", "queues/%2F/other", {}, user=bob)
        for path in ("users", "permissions", "nodes", "definitions"):
            assert (await ask(client, 401, "GET", path, user=bob))["error"] == "not_authorised"
        await ask(client, 401, "PUT", "users/bob", {"tags": "administrator"}, user=bob)

        topic = {"exchange": "amq.topic", "write": "^bob", "read": ".*"}
        await ask(client, 201, "PUT", "topic-permissions/%2F/bob", topic)
        assert len(await ask(client, 200, "GET", "topic-permissions/%2F/bob")) == 1
        body = {"properties": {}, "routing_key": "eve.1", "payload": "", "payload_encoding": "string"}
        await ask(client, 401, "POST", "exchanges/%2F/amq.topic/publish", body, user=bob)
        await ask(client, 200, "POST", "exchanges/%2F/amq.topic/publish", {**body, "routing_key": "bob.1"}, user=bob)
        await ask(client, 204, "DELETE", "topic-permissions/%2F/bob")
        await ask(client, 404, "DELETE", "topic-permissions/%2F/bob")

        await ask(client, 204, "PUT", "qstore/users/bob/tags", {"tags": ["monitoring"]})
        await ask(client, 200, "GET", "nodes", user=bob)  # the password stays
        await ask(client, 204, "DELETE", "permissions/%2F/bob")
        await ask(client, 204, "DELETE", "users/bob")
        await ask(client, 404, "GET", "users/bob")
        await ask(client, 404, "DELETE", "users/bob")
        await ask(client, 401, "GET", "whoami", user=bob)
        assert "bob's" not in running.log_text()


async def test_policies_take_effect_and_are_shown(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 201, "PUT", "queues/%2F/orders", {})
        policy = {"pattern": "^ord", "definition": {"max-length": 2, "overflow": "drop-head"}, "apply-to": "queues"}
        await ask(client, 201, "PUT", "policies/%2F/limits", policy)
        await ask(client, 204, "PUT", "policies/%2F/limits", {**policy, "priority": 3})
        await ask(client, 201, "PUT", "operator-policies/%2F/roof", {"pattern": ".*", "definition": {"max-length": 1}})
        for bad in ({"pattern": "("}, {"definition": {"nonsense": 1}}, {"apply-to": "moons"}):
            await ask(client, 400, "PUT", "policies/%2F/bad", {**policy, **bad})
        await ask(client, 400, "PUT", "policies/%2F/bad", {"pattern": "x"})
        await ask(client, 404, "PUT", "policies/nov/bad", policy)
        assert await ask(client, 200, "GET", "policies/%2F/limits") == {
            "vhost": "/", "name": "limits", "pattern": "^ord", "apply-to": "queues", "priority": 3,
            "definition": {"max-length": 2, "overflow": "drop-head"},
        }  # fmt: skip
        assert [row["name"] for row in await ask(client, 200, "GET", "policies")] == ["limits"]
        assert [row["name"] for row in await ask(client, 200, "GET", "operator-policies")] == ["roof"]
        for _ in range(3):
            body = {"properties": {}, "routing_key": "orders", "payload": "x", "payload_encoding": "string"}
            await ask(client, 200, "POST", "exchanges/%2F/amq.default/publish", body)
        row = await ask(client, 200, "GET", "queues/%2F/orders")
        assert (row["policy"], row["operator_policy"], row["messages"]) == ("limits", "roof", 1)
        assert row["effective_policy_definition"]["max-length"] == 1
        found = await ask(client, 200, "GET", "definitions")
        assert [each["name"] for each in found["policies"]] == ["limits"]
        await ask(client, 204, "DELETE", "policies/%2F/limits")
        await ask(client, 404, "DELETE", "policies/%2F/limits")
        await ask(client, 204, "POST", "definitions", {"policies": found["policies"]})
        assert len(await ask(client, 200, "GET", "policies/%2F")) == 1
        await ask(client, 204, "DELETE", "operator-policies/%2F/roof")


RABBITMQ_HASH = "3pjcmOTaYRQ5Zq/FXgJAn1ite8T4hm8nRkpul9rKVJq1wIJ1"  # of guest, by RabbitMQ 3.10


async def test_users_move_by_definitions_and_keep_their_passwords(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        user = {"name": "hare", "password_hash": RABBITMQ_HASH, "tags": ["management"]}
        user["hashing_algorithm"] = "rabbit_password_hashing_sha256"
        permission = {"user": "hare", "vhost": "/", **ALL}
        await ask(client, 204, "POST", "definitions", {"users": [user]})
        await ask(client, 201, "PUT", "permissions/%2F/root", ALL)
        await ask(client, 204, "POST", "definitions", {"users": [user], "permissions": [permission]})
        await ask(client, 201, "PUT", "queues/%2F/q", {}, user=("hare", "guest"))
        exported = await ask(client, 200, "GET", "definitions")
        assert RABBITMQ_HASH not in str(exported)
        await ask(client, 204, "POST", "definitions", exported)
        await ask(client, 200, "GET", "whoami", user=("hare", "guest"))
        await ask(client, 200, "GET", "whoami")


async def test_definitions_have_the_hashes_of_passwords_if_an_administrator_wants_them(
    running: RunningBroker, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    user = {"name": "hare", "password_hash": RABBITMQ_HASH, "tags": ["monitoring"]}
    user["hashing_algorithm"] = "rabbit_password_hashing_sha256"
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 204, "POST", "definitions", {"users": [user]})
        await ask(client, 201, "PUT", "users/bob", {"password": "bob's", "tags": ""})
        await ask(client, 201, "PUT", "users/nobody", {"password_hash": "", "tags": ""})
        exported = await ask(client, 200, "GET", "definitions?password_hashes=true")
        users = {each["name"]: each for each in exported["users"]}
        assert users["hare"] == {**user, "limits": {}}
        assert users["bob"]["hashing_algorithm"] == "qstore_verifiers"
        assert users["nobody"]["password_hash"] == ""
        plain = await ask(client, 200, "GET", "definitions")
        assert {each["password_hash"] for each in plain["users"]} == {""}
        await ask(client, 401, "GET", "definitions?password_hashes=true", user=("hare", "guest"))
        log = (await ask(client, 200, "GET", "qstore/log"))["lines"]
        assert sum("bob was exported with the hash of its password by root" in line for line in log) == 1
    file = tmp_path / "others"
    made = CliRunner().invoke(command, ["--tags", "administrator", "--stdin", str(file), "root"], input="root\n")
    assert made.exit_code == 0
    other = make_broker("--auth", "yes", "--user-file", os.fspath(file)).start()
    async with console_on(f"127.0.0.1:{other.port}", named=ADMIN) as client:
        await ask(client, 204, "POST", "definitions", exported)
        for login, status in (("hare:guest", 200), ("bob:bob's", 200), ("bob:x", 401), ("nobody:", 401)):
            await ask(client, status, "GET", "whoami", user=tuple(login.split(":")))
        broken = {**users["bob"], "password_hash": "eA=="}
        await ask(client, 400, "POST", "definitions", {"users": [broken]})
        await ask(client, 200, "GET", "whoami", user=("bob", "bob's"))


async def test_the_default_virtual_host_stays(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 204, "PUT", "vhosts/%2F", {})
        await ask(client, 404, "DELETE", "vhosts/other")
        refused = await ask(client, 400, "DELETE", "vhosts/%2F")
        assert "is the default one and cannot be deleted" in refused["reason"]
        await ask(client, 204, "POST", "definitions", {"vhosts": [{"name": "/"}, {"name": "other"}]})
        assert [row["name"] for row in await ask(client, 200, "GET", "vhosts")] == ["/", "other"]


async def test_an_acl_file_decides_instead_of_tags(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file, rules = tmp_path / "users", tmp_path / "acl"
    for name, tags in (("root", ["--tags", "administrator"]), ("bob", []), ("eve", [])):
        CliRunner().invoke(command, [*tags, "--stdin", str(file), name], input=f"{name}\n")
    rules.write_text(
        "acl allow root@QPID all all\nacl allow bob@QPID access all\nacl allow bob@QPID create queue name=console.*\n"
        "acl allow bob@QPID consume queue name=console.*\nacl allow bob@QPID bind exchange name=qmf.*\n"
        "acl allow bob@QPID publish exchange name=qmf.*\nacl allow bob@QPID create connection\n"
        "acl allow eve@QPID create connection\nacl allow eve@QPID create queue name=eve\nacl deny all all\n"
    )
    running = make_broker("--auth", "yes", "--user-file", str(file), "--acl-file", str(rules)).start()
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        await ask(client, 200, "GET", "nodes", user=("bob", "bob"))
        refused = await ask(
            client, 401, "PUT", "policies/%2F/p", {"pattern": "x", "definition": {}}, user=("bob", "bob")
        )
        assert refused["error"] == "not_authorised"


async def test_parameters(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        refused = await ask(client, 400, "PUT", "parameters/colour/%2F/a", {"value": {}})
        assert refused["error"] == "bad_request"
        assert refused["reason"].startswith("Validation failed\n\ncomponent colour not found")
        refused = await ask(client, 400, "PUT", "parameters/colour/%2F/a", {})
        assert refused["reason"] == "[{key_missing,value}]"
        assert (await ask(client, 404, "PUT", "parameters/colour/none/a", {"value": 1}))["reason"] == "vhost_not_found"
        for path in ("parameters/colour/%2F/a", "parameters/colour/none"):
            await ask(client, 404, "GET", path)
        await ask(client, 404, "DELETE", "parameters/colour/%2F/a")
        assert await ask(client, 200, "GET", "parameters") == []
        limits = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 5}}
        await ask(client, 201, "PUT", "parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 5}})
        for path in ("parameters", "parameters/vhost-limits", "parameters/vhost-limits/%2F"):
            assert await ask(client, 200, "GET", path) == [limits]
        assert await ask(client, 200, "GET", "parameters/vhost-limits/%2F/limits") == limits
        assert (await ask(client, 200, "GET", "vhost-limits"))[0]["value"] == {"max-queues": 5}
        await ask(client, 201, "PUT", "users/bob", {"password": "bob", "tags": "management"})
        assert len(await ask(client, 200, "GET", "vhost-limits", user=("bob", "bob"))) == 1
        assert (await ask(client, 400, "GET", "definitions/none"))["reason"] == "vhost_not_found"
        await ask(client, 204, "DELETE", "parameters/vhost-limits/%2F/limits")
        assert await ask(client, 200, "GET", "vhost-limits") == []


async def test_global_parameters_name_the_broker_and_survive_a_restart(running: RunningBroker) -> None:
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        (first,) = await ask(client, 200, "GET", "global-parameters")
        assert first == {"name": "cluster_name", "value": (await ask(client, 200, "GET", "cluster-name"))["name"]}
        await ask(client, 201, "PUT", "global-parameters/site", {"value": {"city": ["Berlin", 1.5, None]}})
        await ask(client, 204, "PUT", "global-parameters/site", {"value": {"city": "Bonn"}})
        await ask(client, 204, "PUT", "cluster-name", {"name": "orders@bonn"})
        await ask(client, 201, "PUT", "global-parameters/gone", {"value": 1})
        await ask(client, 204, "DELETE", "global-parameters/gone")
        await ask(client, 404, "DELETE", "global-parameters/gone")
        await ask(client, 404, "GET", "global-parameters/gone")
        await ask(client, 201, "PUT", "users/bob", {"password": "bob", "tags": "policymaker"})
        await ask(client, 401, "PUT", "global-parameters/site", {"value": 1}, user=("bob", "bob"))
        exported = await ask(client, 200, "GET", "definitions")
    running.kill()
    running.start()
    async with console_on(f"127.0.0.1:{running.port}", named=ADMIN) as client:
        assert await ask(client, 200, "GET", "global-parameters") == exported["global_parameters"] == [
            {"name": "cluster_name", "value": "orders@bonn"}, {"name": "site", "value": {"city": "Bonn"}},
        ]  # fmt: skip
        assert (await ask(client, 200, "GET", "overview"))["cluster_name"] == "orders@bonn"
        await ask(client, 204, "DELETE", "global-parameters/site")
        await ask(client, 204, "POST", "definitions", exported)
        assert (await ask(client, 200, "GET", "global-parameters/site"))["value"] == {"city": "Bonn"}
