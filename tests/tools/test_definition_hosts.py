"""Definitions with several virtual hosts: into stores and running brokers, and back; and what JSON says of hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection, Empty, Message
from qstore.tools.qstore_passwd import command as passwd
from qstore.tools.qstore_replay import command as replay
from tests.support.dump import dump
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.interchange_runs import bring, export
from tests.tools.shell_runs import shell

__all__ = ["make_broker"]

NAMES = ("/", "blue", "grün/2")


def definitions() -> dict[str, Any]:
    """Each host has a queue and an exchange of the same names, a binding, an alternate exchange and a policy."""
    found: dict[str, Any] = {
        "rabbitmq_version": "3.10.8",
        "vhosts": [{"name": "/"}, {"name": "blue", "description": "for tests", "tags": ["a", "b"]}, {"name": "grün/2"}],
        "parameters": [
            {"vhost": "blue", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 7}},
        ],
        "global_parameters": [{"name": "cluster_name", "value": "x"}, {"name": "site", "value": {"a": [1, None]}}],
        "queues": [], "exchanges": [], "bindings": [], "policies": [],
    }  # fmt: skip
    for number, host in enumerate(NAMES, 1):
        arguments = {"x-max-length": number, "x-dead-letter-exchange": "shop"}
        found["queues"].append(
            {"name": "orders", "vhost": host, "durable": True, "auto_delete": False, "arguments": arguments}
        )
        found["exchanges"] += [
            {"name": "shop", "vhost": host, "type": "topic", "durable": True, "auto_delete": False, "internal": False,
             "arguments": {"alternate-exchange": "rest"}},
            {"name": "rest", "vhost": host, "type": "fanout", "durable": True, "auto_delete": False, "internal": False,
             "arguments": {}},
        ]  # fmt: skip
        found["bindings"] += [
            {"source": "shop", "vhost": host, "destination": "orders", "destination_type": "queue",
             "routing_key": f"k{number}", "arguments": {}},
            {"source": "amq.topic", "vhost": host, "destination": "orders", "destination_type": "queue",
             "routing_key": "t", "arguments": {}},
            {"source": "shop", "vhost": host, "destination": "rest", "destination_type": "exchange",
             "routing_key": "#", "arguments": {}},
        ]  # fmt: skip
        found["policies"].append(
            {"vhost": host, "name": "p", "pattern": "^x", "apply-to": "queues", "priority": number,
             "definition": {"max-length": 5}}
        )  # fmt: skip
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(definitions()))
    return path


def same(written: Path) -> None:
    """What was exported is what was imported."""
    back, given = json.loads(written.read_bytes()), definitions()
    for key in ("queues", "exchanges", "bindings", "policies", "parameters"):
        fields = set(given[key][0])
        rows = [{name: value for name, value in row.items() if name in fields} for row in back[key]]
        assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, map(_ordered(rows), given[key]))), key
    assert {"name": "site", "value": {"a": [1, None]}} in back["global_parameters"]
    assert [each["name"] for each in back["vhosts"]] == sorted(NAMES)
    assert {"name": "blue", "description": "for tests", "tags": ["a", "b"]} in back["vhosts"]


def _ordered(rows: list[dict[str, Any]]) -> Any:
    """The fields of a row in the order that the others have."""
    return lambda row: {name: row[name] for name in rows[0]}


def test_a_store_gets_all_hosts_and_gives_them_back(tmp_path: Path, file: Path) -> None:
    planned = bring(file, tmp_path / "store", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "6 exchanges" in planned.output or "9 exchanges" in planned.output
    assert not (tmp_path / "store").exists()
    assert "blue/orders" in planned.output
    assert bring(file, tmp_path / "store").exit_code == 0
    assert export(tmp_path / "store", tmp_path / "back.json", "--format", "definitions").exit_code == 0
    same(tmp_path / "back.json")


def test_json_has_the_host_in_a_field_of_its_own(tmp_path: Path, file: Path) -> None:
    assert bring(file, tmp_path / "store").exit_code == 0
    lines = dump(tmp_path / "store", "--topology", "--json").lines()
    assert "\x1f" not in json.dumps(lines, ensure_ascii=False).replace("\\u001f", "\x1f")
    queues = [
        (line.get("vhost", "/"), line["name"], line["alternate_exchange"]) for line in lines if line["kind"] == "queue"
    ]
    assert sorted(queues) == sorted((host, "orders", None) for host in NAMES)
    bound = {(line.get("vhost", "/"), line["exchange"], line["queue"]) for line in lines if line["kind"] == "binding"}
    assert bound == {(host, exchange, "orders") for host in NAMES for exchange in ("shop", "amq.topic")}
    assert "blue/orders" in dump(tmp_path / "store", "--topology").text


def test_a_dry_run_says_that_permissions_need_an_administrator(make_broker: BrokerMaker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert CliRunner().invoke(passwd, ["--stdin", str(users), "bob"], input="bob\n").exit_code == 0
    broker = make_broker("--auth", "yes", "--user-file", os.fspath(users)).start()
    url = f"amqp://bob/bob@127.0.0.1:{broker.port}"
    file = tmp_path / "definitions.json"
    permission = {"user": "bob", "vhost": "/", "configure": "", "write": "", "read": ""}
    file.write_text(json.dumps({"rabbit_version": "3.12.0", "queues": [], "permissions": [permission]}))
    for options in (["--dry-run"], []):
        done = bring(file, url, *options)
        assert done.exit_code == 1, done.output
        assert 'permission "bob" is left out' in done.output
        assert "qstore-passwd --tags administrator" in done.output


def test_a_running_broker_gets_all_hosts_and_gives_them_back_with_messages(
    make_broker: BrokerMaker, tmp_path: Path, file: Path
) -> None:
    users = tmp_path / "users"
    made = CliRunner().invoke(passwd, ["--tags", "administrator", "--stdin", str(users), "root"], input="root\n")
    assert made.exit_code == 0, made.output
    login = ("--auth", "yes", "--user-file", os.fspath(users))
    broker = make_broker(*login).start()
    url = f"amqp://root/root@127.0.0.1:{broker.port}"
    planned = bring(file, url, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "2 virtual hosts would be created: blue, grün/2" in planned.output
    assert "6 exchanges, 9 bindings" in planned.output
    done = bring(file, url)
    assert done.exit_code == 0, done.output
    assert "2 virtual hosts created" in done.output
    assert "6 exchanges, 9 bindings" in done.output
    with Connection(url, virtual_host="blue") as connection:
        connection.session().sender("shop/k2").send(Message(b"to blue", durable=True))
    assert "nothing to do" in bring(file, url).output
    assert export(url, tmp_path / "back.json", "--format", "definitions").exit_code == 0
    same(tmp_path / "back.json")

    assert export(url, tmp_path / "all.jsonl").exit_code == 0
    other = make_broker(*login).start()
    target = f"amqp://root/root@127.0.0.1:{other.port}"
    result = bring(tmp_path / "all.jsonl", target)
    assert result.exit_code == 0, result.output
    with Connection(target, virtual_host="blue") as connection:
        assert connection.session().receiver("orders").fetch(5).content == b"to blue"
    with Connection(target) as connection, pytest.raises(Empty):
        connection.session().receiver("orders").fetch(0)


def test_names_that_no_host_can_have_are_left_out_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    queues = [{"name": "q", "vhost": host, "durable": True, "arguments": {}} for host in ("a\x1fb", "x" * 300, "/")]
    path.write_text(json.dumps({"rabbitmq_version": "3.10.8", "queues": queues}))
    result = bring(path, tmp_path / "store")
    assert result.exit_code == 1, result.output
    assert result.output.count("it is left out, with what it has") == 2


@pytest.fixture
def shovels(tmp_path: Path) -> Path:
    r"""A store with the virtual host `a\x`, and with a shovel whose URIs have passwords."""
    uris = ["amqp://bob:sec%2Fret@one/a%5Cx", "AMQPS://:sec:ret@two?heartbeat=5", "amqp:///%2F"]
    value = {"src-uri": uris, "src-queue": "q", "dest-uri": uris[0], "dest-queue": "r"}
    path = tmp_path / "shovels.json"
    path.write_text(json.dumps({
        "rabbitmq_version": "3.10.8", "vhosts": [{"name": "/"}, {"name": "a\\x"}],
        "queues": [{"name": name, "vhost": "a\\x", "durable": True, "arguments": {"x-odd": 1}} for name in ("q", "r")],
        "bindings": [
            {"source": "amq.match", "vhost": "a\\x", "destination": "q", "destination_type": "queue",
             "routing_key": "k", "arguments": {"x-match": match, "n": 1}} for match in ("all", "any")
        ],
        "parameters": [{"vhost": "a\\x", "component": "shovel", "name": "s", "value": value}],
    }))  # fmt: skip
    result = bring(path, tmp_path / "store")
    assert result.exit_code == 1, result.output
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.zst", "e.tar.zst", "e.definitions.json"])
def test_passwords_in_uris_are_exported_on_request_only(shovels: Path, tmp_path: Path, name: str) -> None:
    without = export(shovels, tmp_path / name)
    assert "the secrets of 1 link, parameter or key are left out; --with-passwords exports them" in without.output
    again = tmp_path / "again"
    for options, secrets in (((), 0), (("--with-passwords",), 3)):
        (tmp_path / name).unlink()
        export(shovels, tmp_path / name, *options)
        bring(tmp_path / name, again)
        text = tmp_path / "text.jsonl"
        assert export(again, text, "--with-passwords").exit_code == 0
        assert len(re.findall("sec(?:%2F|:)ret@", text.read_text())) == secrets
        assert "amqp://bob" in text.read_text()
        text.unlink()
        shutil.rmtree(again)


def test_a_dump_shows_no_passwords(shovels: Path) -> None:
    for options in ((), ("--json",)):
        shown = dump(shovels, "--topology", *options).out.decode()
        assert "amqp://bob@one/a%5Cx" in shown
        assert not re.search("sec.{1,3}ret", shown)


def test_a_dump_shows_the_keys_that_clients_have_bound(shovels: Path) -> None:
    bindings = [line for line in dump(shovels, "--topology", "--json").lines() if line["kind"] == "binding"]
    assert [line["key"] for line in bindings] == ["k", "k"]
    assert sum("stored_key" in line for line in bindings) == 1


def test_names_in_notices_are_escaped_once(shovels: Path, tmp_path: Path, make_broker: BrokerMaker) -> None:
    assert export(shovels, tmp_path / "e.jsonl").exit_code == 0
    url = f"amqp://guest/guest@127.0.0.1:{make_broker().start().port}"
    planned = bring(tmp_path / "e.jsonl", url, "--dry-run")
    assert "1 virtual host would be created: a\\x5cx" in planned.output
    assert "x5cx5cx" not in planned.output


def test_queues_of_virtual_hosts_are_named_as_people_see_them(shovels: Path, tmp_path: Path) -> None:
    r"""Host, slash and name, with the escapes of the output."""
    name = r"a\x5cx/q"
    assert "there is no queue" in shell(shovels, "select nosuch").output
    assert shell(shovels, f"inject '{name}' body=hello", "select '" + name + "'", options=("--yes",)).exit_code == 0
    assert [line["body"] for line in dump(shovels, "--outstanding", "--json", "--queue", name).lines("message")] == [
        "hello"
    ]
    moved = shell(shovels, rf"move '{name}' to 'a\x5cx/r'", options=("--yes",))
    assert (moved.exit_code, r"to queue a\x/r" in moved.output) == (0, True), moved.output
    replayed = [str(shovels), str(tmp_path / "new"), "--create", "--all", "--queue"]
    refused = CliRunner().invoke(replay, [*replayed, r"a\x5cx/r"])
    assert refused.exit_code == 2
    assert r"is one of a virtual host: write a\x5cx\x1fr" in refused.output
    assert CliRunner().invoke(replay, [*replayed, r"a\x5cx\x1fr"]).exit_code == 0
    topology = dump(tmp_path / "new", "--topology", "--json").lines()
    assert [line["vhost"] for line in topology if line["kind"] == "queue"] == [r"a\x"]
    assert [line["type"] for line in topology if line["kind"] == "object"][-1] == "qstore.virtual-host"


def test_what_parameters_cannot_do_is_listed(tmp_path: Path) -> None:
    """A negative limit is none, as in RabbitMQ."""
    value = {"max-connections": -1, "max-queues": 3, "max-colours": 2}
    parameters = [
        {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": value},
        {"vhost": "v", "component": "federation-upstream", "name": "u", "value": {"uri": "amqp://x:secret@y"}},
    ]
    path = tmp_path / "d.json"
    path.write_text(json.dumps({"rabbitmq_version": "3.12.1", "vhosts": [{"name": "v"}], "parameters": parameters}))
    for options in (("--dry-run",), ()):
        result = bring(path, tmp_path / "store", *options)
        assert result.exit_code == 1
        notices = " ".join(result.output.split())
        assert 'parameter "u" of virtual host "v": component federation-upstream is not known' in notices
        assert 'limits of virtual host "v": max-colours 2 is not known' in notices
        assert "max-connections" not in result.output
    objects = dump(tmp_path / "store", "--topology", "--json").lines("object")
    assert [each["properties"] for each in objects if "limits" in each["name"]] == [{"max-queues": 3}]
    assert not [each for each in objects if each["type"] == "qstore.parameter"]
