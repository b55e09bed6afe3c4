"""The HTTP API beside that of a real RabbitMQ 3.10: the same calls in the same order, the same statuses and fields."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from click.testing import CliRunner

from qstore.tools.qstore_passwd import command as qstore_passwd
from tests.support.processes import PATIENCE_SECONDS
from tests.support.rabbitmq import IS_INSTALLED, NOT_INSTALLED, RabbitMQ, one_rabbitmq
from tests.support.running_broker import BrokerMaker, make_broker
from tests.system.test_console import RunningConsole
from tests.tools.web.test_rabbitmq_fields import STATUSES

__all__ = ["make_broker"]

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=NOT_INSTALLED)

Calls = tuple[tuple[str, str, Any], ...]
_POLICY: Final = {"pattern": "^p", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
_ALL: Final = {"configure": ".*", "write": ".*", "read": ".*"}
_USER: Final = {"password": "secret", "tags": "monitoring"}
_TOPIC: Final = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
_PUBLISH: Final = {
    "properties": {"delivery_mode": 2},
    "routing_key": "s1",
    "payload": "hi",
    "payload_encoding": "string",
}
_GET: Final = {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}
_ALTERNATE: Final = {"alternate-exchange": "amq.fanout"}
_DEFINED: Final = {"name": "d1", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
CALLS: Final[Calls] = (
    *((method, path, body) for _, method, path, body in STATUSES),
    # virtual hosts
    ("PUT", "vhosts/side", {"description": "beside", "tags": "a,b"}), ("PUT", "vhosts/side", {}),
    ("GET", "vhosts", None),
    ("GET", "vhosts/side", None), ("GET", "vhosts/side/permissions", None), ("GET", "vhosts/none/permissions", None),
    ("GET", "vhosts/side/topic-permissions", None), ("GET", "vhost-limits", None),
    ("PUT", "vhost-limits/side/max-queues", {"value": 9}), ("PUT", "vhost-limits/side/max-connections", {"value": -1}),
    ("PUT", "vhost-limits/side/nonsense", {"value": 1}), ("GET", "vhost-limits/side", None),
    ("DELETE", "vhost-limits/side/max-queues", None),
    # users and permissions
    ("PUT", "users/ann", _USER), ("PUT", "users/ann", _USER), ("PUT", "users/none", {"tags": ""}),
    ("PUT", "users/bob", {"password": "x"}), ("GET", "users", None), ("GET", "users/ann", None),
    ("GET", "users/without-permissions", None), ("PUT", "permissions/side/ann", _ALL),
    ("PUT", "permissions/side/ann", {"configure": "(", "write": "", "read": ""}),
    ("PUT", "permissions/side/ann", {"configure": ""}), ("PUT", "permissions/none/ann", _ALL),
    ("GET", "permissions", None), ("GET", "permissions/side/ann", None), ("GET", "permissions/side/zoe", None),
    ("GET", "users/ann/permissions", None), ("PUT", "topic-permissions/side/ann", _TOPIC),
    ("GET", "topic-permissions", None), ("GET", "topic-permissions/side/ann", None),
    ("GET", "users/ann/topic-permissions", None), ("DELETE", "topic-permissions/side/ann", None),
    ("DELETE", "permissions/side/ann", None), ("DELETE", "permissions/side/ann", None),
    ("POST", "users/bulk-delete", {"users": ["none"]}), ("GET", "whoami", None),
    # policies and parameters
    ("PUT", "policies/%2F/p", _POLICY), ("PUT", "policies/%2F/p", _POLICY),
    ("PUT", "policies/%2F/bad", {"pattern": "(", "definition": {"max-length": 1}}),
    ("PUT", "policies/%2F/bad", {"pattern": "a", "definition": {"nonsense": 1}}),
    ("PUT", "policies/%2F/bad", {"definition": {"max-length": 1}}), ("PUT", "policies/none/p", _POLICY),
    ("GET", "policies/%2F", None), ("GET", "policies/%2F/p", None),
    ("PUT", "operator-policies/%2F/op", {"pattern": "^p", "definition": {"max-length": 4}}),
    ("PUT", "operator-policies/%2F/op", {"pattern": "^p", "definition": {"alternate-exchange": "x"}}),
    ("GET", "operator-policies", None), ("GET", "operator-policies/%2F/op", None),
    ("DELETE", "operator-policies/%2F/op", None), ("DELETE", "operator-policies/%2F/op", None),
    ("PUT", "parameters/nonsense/%2F/x", {"value": {}}), ("GET", "parameters/nonsense", None),
    ("GET", "parameters/nonsense/%2F/x", None), ("PUT", "global-parameters/g", {"value": {"a": [1]}}),
    ("GET", "global-parameters/g", None), ("DELETE", "global-parameters/g", None),
    ("DELETE", "global-parameters/g", None), ("GET", "global-parameters", None),
    # queues, exchanges, bindings with other arguments
    ("PUT", "queues/%2F/s1", {"durable": True, "arguments": {"x-message-ttl": 60_000, "x-queue-type": "classic"}}),
    ("PUT", "queues/%2F/p1", {"durable": True}), ("PUT", "queues/side/s1", {"durable": True}),
    ("PUT", "queues/%2F/s2", {"arguments": {"x-message-ttl": -1}}), ("PUT", "queues/%2F/s2", {"arguments": []}),
    ("PUT", "queues/%2F/s2", {"durable": False, "arguments": {"x-queue-type": "quorum"}}),
    ("PUT", "queues/%2F/s2", {"durable": True, "arguments": {"x-queue-type": "nonsense"}}),
    ("GET", "queues/%2F/s1", None), ("GET", "queues/%2F/p1", None), ("GET", "queues/%2F", None),
    ("GET", "queues?page=1&page_size=1&sort=name&sort_reverse=true", None),
    ("GET", "queues?page=1&page_size=10&name=s.&use_regex=true&columns=name,vhost", None),
    ("GET", "queues/%2F/s1/bindings", None), ("POST", "exchanges/%2F/amq.default/publish", _PUBLISH),
    ("POST", "exchanges/%2F/amq.default/publish", {**_PUBLISH, "routing_key": "nowhere"}),
    ("POST", "exchanges/%2F/amq.default/publish", {**_PUBLISH, "payload": "aGk=", "payload_encoding": "base64"}),
    ("POST", "queues/%2F/s1/get", _GET), ("POST", "queues/%2F/s1/get", {**_GET, "ackmode": "nonsense"}),
    ("POST", "queues/%2F/s1/get", {**_GET, "ackmode": "ack_requeue_false"}), ("POST", "queues/%2F/s1/actions", {}),
    ("PUT", "exchanges/%2F/sx", {"type": "headers", "durable": True, "arguments": _ALTERNATE}),
    ("GET", "exchanges/%2F/sx", None), ("GET", "exchanges", None), ("GET", "exchanges/side", None),
    ("POST", "bindings/%2F/e/sx/q/s1", {"arguments": {"x-match": "any", "k": "v"}}),
    ("GET", "exchanges/%2F/sx/bindings/source", None), ("GET", "exchanges/%2F/sx/bindings/destination", None),
    ("GET", "bindings", None), ("GET", "bindings/%2F", None), ("GET", "bindings/none", None),
    ("GET", "bindings/%2F/e/sx/q/none", None),
    # connections, channels, consumers, and the broker itself
    ("GET", "connections", None), ("GET", "connections?page=1&page_size=5", None), ("GET", "channels", None),
    ("GET", "consumers", None), ("GET", "consumers/%2F", None), ("GET", "vhosts/%2F/connections", None),
    ("GET", "vhosts/%2F/channels", None), ("GET", "connections/username/guest", None), ("GET", "channels/none", None),
    ("GET", "overview", None), ("GET", "nodes", None), ("GET", "nodes/none", None), ("GET", "cluster-name", None),
    ("PUT", "cluster-name", {"name": "beside"}), ("GET", "cluster-name", None), ("GET", "extensions", None),
    ("GET", "definitions", None), ("GET", "definitions/side", None), ("GET", "definitions/none", None),
    ("POST", "definitions", {"queues": [_DEFINED]}),
    ("POST", "definitions", {"queues": [{"name": "d2"}]}), ("GET", "feature-flags", None), ("GET", "user-limits", None),
    ("GET", "health/checks/local-alarms", None), ("GET", "health/checks/virtual-hosts", None),
    ("GET", "health/checks/certificate-expiration/1/months", None),
    ("GET", "health/checks/certificate-expiration/1/nonsense", None),
    ("GET", "health/checks/node-is-mirror-sync-critical", None), ("GET", "auth", None),
    # the end
    ("DELETE", "queues/%2F/s1?if-empty=true", None), ("DELETE", "queues/%2F/p1", None),
    ("DELETE", "policies/%2F/p", None),
    ("DELETE", "exchanges/%2F/sx", None), ("DELETE", "users/ann", None), ("DELETE", "users/ann", None),
    ("DELETE", "vhosts/side", None), ("DELETE", "vhosts/side", None),
)  # fmt: skip
"""In this order: what one leaves is there for the next."""


def ask(port: int, method: str, path: str, body: Any) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", data, method=method)
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        content, status = error.read(), error.code
    with contextlib.suppress(ValueError):
        return status, json.loads(content)
    return status, None


def fields(value: Any) -> set[str]:
    """The fields of an answer, or of what it lists."""
    rows = value.get("items", [value]) if isinstance(value, dict) else value if isinstance(value, list) else []
    return {name for row in rows if isinstance(row, dict) for name in row}


def has_statistics(port: int) -> bool:
    """Whether every kind of row has what RabbitMQ collects at an interval, and not only what it knows at once."""
    return all(
        any(name in row for row in ask(port, "GET", path, None)[1])
        for path, name in (
            ("queues", "idle_since"), ("queues", "message_stats"), ("channels", "idle_since"),
            ("connections", "recv_oct_details"), ("exchanges", "message_stats"), ("vhosts", "messages_details"),
            ("nodes", "mem_used_details"),
        )
    )  # fmt: skip


def answers(port: int, amqp_port: int) -> list[tuple[int, set[str]]]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare("watched")
    channel.basic_consume("watched", lambda *_: None, consumer_tag="tag")
    channel.basic_publish("", "watched", b"x")
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while not has_statistics(port):
            assert time.monotonic() < end
            time.sleep(0.1)
        found = []
        for call in CALLS:
            status, value = ask(port, *call)
            found.append((status, fields(value) if status < 300 else set()))
        return found
    finally:
        connection.close()


OTHER_STATUSES: Final = {
    ("POST", "queues/%2F/s1/get"): (500, 400),  # an unknown ackmode
    ("GET", "nodes/none"): (500, 404),
    ("POST", "definitions"): (400, 204),  # a queue without a virtual host is one of "/"
}
"""Call -> statuses of RabbitMQ and of this broker, where they differ."""
LEFT_OUT: Final = frozenset((
    "backing_queue_status", "garbage_collection", "metrics_gc_queue_length", "pending_raft_commands",
    "release_series_support_status", "javascript", "desc", "doc_url", "name", "provided_by", "stability", "state",
))  # fmt: skip
"""Fields of Erlang, of RabbitMQ's releases and of its extensions and feature flags."""
OF_ERLANG: Final = ("context_switches", "gc_", "io_", "mnesia_", "msg_store_", "queue_index_", "ra_", "reductions")
"""What begins the names of further ones."""


def lacking(theirs: set[str], ours: set[str]) -> list[str]:
    """The fields that RabbitMQ has, and that are neither here nor left out."""
    return sorted(name for name in theirs - ours - LEFT_OUT if not name.startswith(OF_ERLANG))


@pytest.fixture
def rabbitmq() -> Iterator[RabbitMQ]:
    yield from one_rabbitmq("rabbitmq_management")


def test_the_same_calls_have_the_same_statuses_and_fields(
    rabbitmq: RabbitMQ, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    theirs = answers(rabbitmq.management_port, rabbitmq.port)
    users, credentials = tmp_path / "users", tmp_path / "secret"
    words = ["--tags", "administrator", "--stdin", str(users), "guest"]
    assert CliRunner().invoke(qstore_passwd, words, input="guest\n").exit_code == 0
    credentials.write_text("guest:guest\n")
    credentials.chmod(0o600)
    broker = make_broker("--auth", "yes", "--user-file", str(users)).start()
    console = RunningConsole("-b", f"127.0.0.1:{broker.port}", "--no-history", "--credentials-file", str(credentials))
    try:
        assert console.ask("PUT", "/api/permissions/%2F/guest", _ALL)[0] == 201  # as RabbitMQ has it from the beginning
        ours = answers(console.port, broker.port)
    finally:
        console.process.kill()
        console.process.communicate()
    assert len(CALLS) >= 150
    statuses, missing = [], []
    for (method, path, body), (wanted, their_fields), (status, own_fields) in zip(CALLS, theirs, ours, strict=True):
        if status != wanted and OTHER_STATUSES.get((method, path)) != (wanted, status):
            statuses.append(f"{method} {path} {body}: {status} instead of {wanted}")
        if status == wanted and (names := lacking(their_fields, own_fields)):
            missing.append(f"{method} {path}: {names}")
    assert (statuses, missing) == ([], [])
