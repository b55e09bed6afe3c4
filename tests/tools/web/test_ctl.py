"""`qstore-ctl` on a running console and broker: changes, output and errors."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qstore.tools.qstore_ctl import command
from qstore.tools.qstore_passwd import command as passwd
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.test_console import RunningConsole

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture(scope="module")
def api(broker: RunningBroker) -> Iterator[str]:
    console = RunningConsole("-b", f"127.0.0.1:{broker.port}", "--no-history")
    yield console.url
    console.end()


def run(api: str, *words: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(command, ["--api", api, *words], input=stdin)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def rows(api: str, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(api, *words, "--json").stdout.splitlines()]


DEFINITIONS = {
    "queues": [{"name": "orders", "vhost": "/", "durable": True, "arguments": {"x-max-length": 7}}],
    "exchanges": [{"name": "shop", "vhost": "/", "type": "topic", "durable": True}],
    "bindings": [
        {"source": "shop", "vhost": "/", "destination": "orders", "destination_type": "queue", "routing_key": "a.#"}
    ],
}


def test_the_life_of_a_queue(api: str, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DEFINITIONS))
    run(api, "import_definitions", str(file))
    assert {"kind": "queue", "name": "orders", "messages": 0} in rows(api, "list_queues")
    assert rows(api, "list_queues", "name", "arguments", "-p", "/")[-1]["arguments"] == {"x-max-length": 7}
    assert rows(api, "list_queues", "-p", "none") == []
    assert {"kind": "exchange", "name": "shop", "type": "topic"} in rows(api, "list_exchanges")
    assert [row["routing_key"] for row in rows(api, "list_bindings") if row["source_name"] == "shop"] == ["a.#"]
    assert [row["name"] for row in rows(api, "list_journals")] == ["orders"]
    run(api, "export_definitions", str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").stat().st_mode & 0o077 == 0
    out = json.loads((tmp_path / "out.json").read_text())
    assert [queue["name"] for queue in out["queues"]] == ["orders"]
    run(api, "purge_queue", "orders")
    run(api, "delete_queue", "orders", "--if-empty", "--if-unused")
    assert rows(api, "list_queues") == []
    run(api, "import_definitions", "-", stdin=run(api, "export_definitions", "-").stdout)
    assert run(api, "delete_queue", "orders", code=1).stderr == "qstore-ctl: Not Found\n"


def test_tables_for_people(api: str) -> None:
    heads, rule, default = run(api, "list_exchanges", "name", "type").stdout.splitlines()[:3]
    assert heads.split() == ["name", "type"]
    assert rule == f"  {'=' * (len(rule) - 2)}"
    assert default == f"{'direct':>{heads.index('type') + len('direct')}}"
    status = run(api, "status").stdout
    assert "qstore" in status
    assert "messages_ready" in status
    report = run(api, "report").stdout
    assert "\nlist_bindings\n" in report
    assert {row["kind"] for row in rows(api, "report")} >= {"status", "exchange", "vhost"}


def test_startup_is_awaited(api: str) -> None:
    run(api, "ping")
    run(api, "await_startup", "--within", "5")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = run(f"http://127.0.0.1:{port}", "await_startup", "--within", "0.6", code=1)
    assert "cannot be reached" in started.stderr


def test_connections_are_closed_by_name(api: str, broker: RunningBroker) -> None:
    from qstore.broker.client import Connection

    with Connection(f"127.0.0.1:{broker.port}", reconnect=False) as connection:
        connection.session()
        while not (found := rows(api, "list_connections", "name", "protocol")):
            time.sleep(0.2)  # a list may be a second old
        (row,) = found
        assert row["protocol"] == "AMQP 0-10"
        run(api, "close_connection", row["name"], "maintenance")
        assert rows(api, "list_connections") == []
        run(api, "close_connection", row["name"], code=1)


def test_users_permissions_and_policies(make_broker: BrokerMaker, tmp_path: Path) -> None:
    users, login = tmp_path / "users", tmp_path / "login"
    made = CliRunner().invoke(passwd, ["--tags", "administrator", "--stdin", str(users), "root"], input="secret\n")
    assert made.exit_code == 0, made.output
    login.write_text("root:secret\n")
    login.chmod(0o600)
    running = make_broker("--auth", "yes", "--user-file", str(users)).start()
    place = f"127.0.0.1:{running.port}"
    console = RunningConsole("-b", place, "--no-history", "--credentials-file", str(login))

    def ctl(*words: str, code: int = 0, stdin: str | None = None) -> Result:
        return run(console.url, "--login-file", str(login), *words, code=code, stdin=stdin)

    def listed(*words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ctl(*words, "--json").stdout.splitlines()]

    try:
        run(console.url, "status", code=1)  # as guest
        ctl("add_user", "alice", "--password-stdin", stdin="wonder\n")
        ctl("add_user", "alice", "--password-stdin", stdin="again\n", code=1)
        ctl("set_user_tags", "alice", "monitoring", "policymaker")
        ctl("change_password", "alice", "--password-stdin", stdin="land\n")
        ctl("authenticate_user", "alice", "--password-stdin", stdin="land\n")
        ctl("authenticate_user", "alice", "--password-stdin", stdin="wonder\n", code=1)
        assert {"kind": "user", "user": "alice", "tags": ["monitoring", "policymaker"]} in listed("list_users")
        for user in ("root", "alice"):
            ctl("set_permissions", user, ".*", ".*", ".*")
        ctl("set_permissions", "alice", "^alice", ".*", "")
        assert {"vhost": "/", "configure": "^alice"}.items() <= listed("list_user_permissions", "alice")[0].items()
        assert len(listed("list_permissions", "-p", "/")) == 2
        ctl("set_topic_permissions", "alice", "amq.topic", "^alice", ".*")
        assert listed("list_topic_permissions")[0]["exchange"] == "amq.topic"
        ctl("clear_topic_permissions", "alice")
        ctl("set_policy", "limits", "^orders", '{"max-length": 9}', "--apply-to", "queues", "--priority", "2")
        ctl("set_operator_policy", "roof", ".*", '{"max-length": 8}', "--apply-to", "queues")
        assert [(row["name"], row["priority"]) for row in listed("list_policies")] == [("limits", 2)]
        assert [row["definition"] for row in listed("list_operator_policies")] == [{"max-length": 8}]
        ctl("clear_policy", "limits")
        ctl("clear_operator_policy", "roof")
        assert listed("list_policies") == listed("list_operator_policies") == []
        ctl("clear_permissions", "alice")
        ctl("delete_user", "alice")
        ctl("delete_user", "alice", code=1)
        ctl("add_vhost", "other")
        assert {row["name"] for row in listed("list_vhosts")} == {"/", "other"}
        ctl("set_permissions", "-p", "other", "root", ".*", ".*", "")
        assert [row["read"] for row in listed("list_permissions", "-p", "other")] == [""]
        ctl("delete_vhost", "other")
        ctl("delete_vhost", "other", code=1)
        assert {row["name"] for row in listed("list_vhosts")} == {"/"}
        assert listed("list_permissions", "-p", "other") == []
        for word in ("wonder", "land", "secret"):
            assert word not in running.log_text()
    finally:
        assert console.end() == (0, "")


def test_wrong_command_lines_are_said_in_one_line(api: str, tmp_path: Path) -> None:
    secret = tmp_path / "login"
    secret.write_text("guest:guest")
    for words, text in (
        (["--login-file", str(secret), "status"], "chmod 600"),
        (["list_queues", "nonsense"], "no column nonsense" if rows(api, "list_queues") else ""),
        (["set_policy", "a", "b", "{"], "not JSON"),
    ):
        if text:
            assert text in run(api, *words, code=2).output
    assert "password" in run("http://guest:guest@127.0.0.1:1", "status", code=2).output
    assert "not a URL" in run("127.0.0.1:15672", "status", code=2).output
    secret.chmod(0o600)
    run(api, "--login-file", str(secret), "status")
    run(api, "authenticate_user", "guest", "--password-stdin", stdin="guest\n")


def test_parameters(api: str) -> None:
    run(api, "set_global_parameter", "site", '{"city": "Bonn"}')
    run(api, "set_cluster_name", "orders@bonn")
    assert rows(api, "list_global_parameters")[-1]["value"] == {"city": "Bonn"}
    assert rows(api, "list_global_parameters")[0]["value"] == "orders@bonn"
    run(api, "clear_global_parameter", "site")
    refused = run(api, "set_parameter", "colour", "a", '{"x": 1}', code=1)
    assert "component colour not found" in refused.stderr
    run(api, "set_parameter", "vhost-limits", "limits", '{"max-queues": 1000}', "-p", "/")
    assert rows(api, "list_parameters") == [
        {"kind": "parameter", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1000}}
    ]
    run(api, "clear_parameter", "vhost-limits", "limits")
    assert rows(api, "list_parameters") == []
    assert "not JSON" in run(api, "set_parameter", "colour", "a", "{", code=2).stderr
