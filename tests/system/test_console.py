"""`qstore-console` as a process, and programs that know RabbitMQ's management API, unchanged."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.tools.qstore_passwd import command as qstore_passwd
from tests.support.node import NodeClient
from tests.support.processes import PATIENCE_SECONDS, children_of
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.tools.test_commands import command

Start = Callable[..., "RunningConsole"]


class RunningConsole:
    """The command at work, on a port of its own."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*command("qstore-console"), "--listen", "127.0.0.1:0", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        said = self.process.stdout.readline() if ready else ""
        assert said.strip().isdecimal(), self.end()
        self.port = int(said)
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, user: str = "guest:guest") -> tuple[int, Any]:
        """The status and the value of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                content, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            content, status = error.read(), error.code
        return status, json.loads(content) if content else None

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """The exit status, and what it has complained about."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, errors


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[RunningConsole] = []

    def begin(broker: RunningBroker, *options: str) -> RunningConsole:
        made.append(RunningConsole("-b", f"127.0.0.1:{broker.port}", *options))
        return made[-1]

    yield begin
    for each in made:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
        each.process.communicate()


@pytest.mark.core
def test_it_serves_until_a_signal_comes(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    console = start(make_broker().start(), "--history-dir", str(tmp_path / "history"))
    assert console.ask("PUT", "/api/queues/%2F/q", {"durable": True})[0] == 201
    status, overview = console.ask("GET", "/api/overview")
    assert (status, overview["object_totals"]["queues"]) == (200, 1)
    assert console.end() == (0, "")
    assert [path.suffix for path in (tmp_path / "history").iterdir()] == [".db"]


def test_a_killed_console_loses_nothing(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    broker = make_broker().start()
    console = start(broker, "--history-dir", str(tmp_path))
    console.ask("PUT", "/api/queues/%2F/q", {"durable": True})
    body = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert console.ask("POST", "/api/exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
    console.end(signal.SIGKILL)
    broker.kill()
    broker.start()
    console = start(broker, "--history-dir", str(tmp_path))
    assert console.ask("GET", "/api/queues/%2F/q")[1]["messages"] == 1
    assert console.end()[0] == 0


def test_errors_take_one_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("user:password")
    for options, code, text in (
        (["--listen", "0.0.0.0:0"], 2, "--tls-cert"),
        (["--listen", "x:y"], 2, "not ADDRESS:PORT"),
        (["--credentials-file", str(secret)], 2, "chmod 600"),
        (["--tls-cert", str(secret)], 1, ""),
        (["-b", "rdma:x"], 1, "rdma"),
    ):
        ended = subprocess.run(
            [*command("qstore-console"), "--no-history", *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert (ended.returncode, len(ended.stderr.splitlines())) == (code, 1), ended.stderr
        assert text in ended.stderr
        assert "password" not in ended.stderr.replace("passwords", "")


def test_it_ends_with_its_parent(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    arguments = [
        *command("qstore-console"),
        "--listen",
        "127.0.0.1:0",
        "--no-history",
        "-b",
        f"127.0.0.1:{broker.port}",
    ]
    code = (
        "import os, subprocess, time; "
        f"print(subprocess.Popen({arguments!r} + ['--parent', str(os.getpid())]).pid, flush=True); time.sleep(2)"
    )
    parent = subprocess.run([arguments[0], "-c", code], capture_output=True, text=True)
    pid = int(parent.stdout.split()[0])
    end = PATIENCE_SECONDS
    while os.path.exists(f"/proc/{pid}") and end > 0:
        select.select([], [], [], 0.1)
        end -= 0.1
    assert not os.path.exists(f"/proc/{pid}")


def console_of(broker: RunningBroker, after: int = 0) -> int:
    """The port of the console that a broker has started, as the log says it for the n-th time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while len(said := re.findall(r"The console listens on port (\d+)", broker.log_text())) <= after:
        assert time.monotonic() < end, broker.log_text()
        time.sleep(0.05)
    return int(said[after])


def test_a_broker_starts_its_console_again_and_ends_it(make_broker: BrokerMaker) -> None:
    broker = make_broker("--console", "127.0.0.1:0").start()
    first = console_of(broker)
    with urllib.request.urlopen(f"http://127.0.0.1:{first}/metrics", timeout=PATIENCE_SECONDS) as answer:
        assert b"rabbitmq_queues 0" in answer.read()
    consoles = [pid for pid in children_of(broker.pid) if b"qstore_console" in command_line(pid)]
    os.kill(consoles[0], signal.SIGKILL)
    second = console_of(broker, 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{second}/metrics", timeout=PATIENCE_SECONDS) as answer:
        assert answer.status == 200
    assert broker.stop() == 0
    assert any((broker.data_directory / "console").iterdir())
    broker.start()
    console_of(broker, 2)
    broker.kill()  # which asserts that nothing is left behind


def test_a_console_that_cannot_be_used_is_not_started_again(make_broker: BrokerMaker) -> None:
    broker = make_broker("--console", "nonsense:x").start()
    assert broker.has_logged("is not started again: see --console")
    assert broker.stop() == 0


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# ---- RabbitMQ's own command ----

ADMIN = next(
    (
        path
        for pattern in ("usr/lib/rabbitmq/lib/*/plugins/*/priv/www/cli/rabbitmqadmin", "usr/sbin/rabbitmqadmin")
        for path in Path("/").glob(pattern)
    ),
    Path(os.environ.get("QSTORE_RABBITMQADMIN", "/nonexistent")),
)
needs_admin = pytest.mark.skipif(not ADMIN.exists(), reason="rabbitmqadmin is not installed: Debian's rabbitmq-server")


def admin(console: RunningConsole, *words: str, code: int = 0) -> str:
    ended = subprocess.run(
        ["python3", str(ADMIN), "--host", "127.0.0.1", "--port", str(console.port), *words],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


@needs_admin
def test_rabbitmqadmin(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    console = start(make_broker().start(), "--no-history")
    admin(console, "declare", "queue", "name=orders", "durable=true", 'arguments={"x-max-length":100}')
    admin(console, "declare", "exchange", "name=shop", "type=topic")
    admin(console, "declare", "binding", "source=shop", "destination=orders", "routing_key=new.#")
    assert "Message published" in admin(console, "publish", "exchange=shop", "routing_key=new.one", "payload=hello")
    assert "NOT routed" in admin(console, "publish", "exchange=shop", "routing_key=old", "payload=hello")
    assert "hello" in admin(console, "get", "queue=orders", "ackmode=ack_requeue_true")
    listed = json.loads(admin(console, "-f", "raw_json", "list", "queues", "name", "messages"))
    assert listed == [{"name": "orders", "messages": 1}]
    for what in ("exchanges", "bindings", "connections", "channels", "consumers", "nodes", "vhosts"):
        admin(console, "list", what)
    assert "qstore" in admin(console, "show", "overview")
    exported = tmp_path / "definitions.json"
    admin(console, "export", str(exported))
    admin(console, "purge", "queue", "name=orders")
    admin(console, "delete", "queue", "name=orders")
    assert "orders" not in admin(console, "list", "queues")
    admin(console, "import", str(exported))
    assert "orders" in admin(console, "list", "queues")
    admin(console, "delete", "queue", "name=none", code=1)


def with_users(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> RunningConsole:
    """The console of a broker with the administrator guest."""
    users, credentials = tmp_path / "users", tmp_path / "secret"
    made = CliRunner().invoke(
        qstore_passwd, ["--tags", "administrator", "--stdin", str(users), "guest"], input="guest\n"
    )
    assert made.exit_code == 0
    credentials.write_text("guest:guest\n")
    credentials.chmod(0o600)
    broker = make_broker("--auth", "yes", "--user-file", str(users)).start()
    return start(broker, "--no-history", "--credentials-file", str(credentials))


@needs_admin
def test_rabbitmqadmin_changes_users_and_policies(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    console = with_users(make_broker, start, tmp_path)
    everything = ("configure=.*", "write=.*", "read=.*")
    admin(console, "declare", "permission", "vhost=/", "user=guest", *everything)
    admin(console, "declare", "queue", "name=q", "queue_type=quorum")
    admin(console, "declare", "user", "name=bob", "password=b", "tags=monitoring")
    admin(console, "declare", "permission", "vhost=/", "user=bob", *everything)
    limit = 'definition={"max-length":5}'
    for kind in ("policy", "operator_policy"):
        admin(console, "declare", kind, "name=p", "pattern=^q", limit, "apply-to=queues")
    listed = json.loads(
        admin(console, "-f", "raw_json", "list", "queues", "name", "policy", "operator_policy", "leader")
    )
    assert [(each["policy"], each["operator_policy"]) for each in listed] == [("p", "p")]
    assert listed[0]["leader"].startswith("qstore@")
    for what in ("users", "permissions", "parameters", "policies", "operator_policies", "vhost_limits"):
        admin(console, "list", what)
    admin(console, "declare", "parameter", "component=federation", "name=f", 'value={"uri":"amqp://x"}', code=1)
    admin(console, "-V", "/", "export", str(tmp_path / "one.json"))
    for kind in ("policy", "operator_policy"):
        admin(console, "delete", kind, "name=p")
    admin(console, "-V", "/", "import", str(tmp_path / "one.json"))
    assert '"max-length": 5' in admin(console, "list", "policies")
    admin(console, "delete", "permission", "vhost=/", "user=bob")
    admin(console, "delete", "user", "name=bob")
    assert "bob" not in admin(console, "list", "users")


# ---- other programs ----


def test_rabbitmq_admin_of_npm_works_unchanged(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    client = NodeClient("rabbitmq_admin_client.js", ("rabbitmq-admin@1.2.3",), tmp_path / "npm")
    console = with_users(make_broker, start, tmp_path)
    assert json.loads(client.run(console.port)) == {
        "product": "3.10.0", "nodes": [True], "node": True, "cluster": "qstore",
        "reads": "^[oq]", "vhosts": ["/", "a/b"], "noVhost": None,
        "bindings": ["k.#", "q/1"], "between": 1, "sources": 1, "exchanges": ["orders %"],
        "published": {"routed": True},
        "messages": [["one", {"shop": 7}]], "queue": [True, {"x-max-length": 10}], "page": [1, 1],
        "definitions": ["q/1"], "connections": 0, "consumers": 0,
        "missing": ["RabbitAdminNotFoundError", 404], "bad": ["RabbitAdminBadRequestError", 400], "left": ["/"],
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_pyrabbit(make_broker: BrokerMaker, start: Start) -> None:
    api = importlib.import_module("pyrabbit2.api")
    console = start(make_broker().start(), "--no-history")
    client = api.Client(f"127.0.0.1:{console.port}", "guest", "guest")
    assert client.is_alive()
    assert client.create_queue("/", "orders", durable=True)
    assert client.create_exchange("/", "shop", "topic", durable=True)
    client.create_binding("/", "shop", "orders", "new.#")
    assert client.publish("/", "shop", "new.one", "hello")
    assert client.get_queue_depth("/", "orders") == 1
    assert client.get_messages("/", "orders", count=1, requeue=True)[0]["payload"] == "hello"
    client.purge_queue("/", "orders")
    assert [each["name"] for each in client.get_queues("/")] == ["aliveness-test", "orders"]
    assert {"shop", "amq.topic"} <= {each["name"] for each in client.get_exchanges("/")}
    assert len(client.get_queue_bindings("/", "orders")) == 2
    assert client.get_overview()["object_totals"]["queues"] == 2
    assert client.get_whoami()["name"] == "guest"
    assert client.get_all_vhosts()[0]["name"] == "/"
    client.delete_binding("/", "shop", "orders", "new.%23")
    client.delete_exchange("/", "shop")
    client.delete_queue("/", "orders")
    with pytest.raises(Exception, match="404"):
        client.get_queue("/", "orders")


def test_flower_shows_the_queues_of_celery(make_broker: BrokerMaker, start: Start, tmp_path: Path) -> None:
    broker = make_broker().start()
    console = start(broker, "--no-history")
    console.ask("PUT", "/api/queues/%2F/celery", {"durable": True})
    body = {"properties": {"delivery_mode": 2}, "routing_key": "celery", "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        console.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}//"
    command_line = [
        sys.executable, "-m", "celery", f"--broker={url}", "flower", "--address=127.0.0.1", f"--port={port}",
        f"--broker-api=http://guest:guest@127.0.0.1:{console.port}/api/",
    ]  # fmt: skip
    log = tmp_path / "flower.log"
    with log.open("w") as stream:
        flower = subprocess.Popen(command_line, cwd=tmp_path, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/broker") as answer:
                page = answer.read().decode()
                if "<td>celery</td>" in page:
                    break
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.3)
        assert re.search(r"<td>celery</td>\s*<td[^>]*>3</td>", page), page
    finally:
        flower.kill()
        flower.wait()
