"""RabbitMQ's definitions, read and written: what both sides know arrives, and everything else is listed."""

from __future__ import annotations

import contextlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client import Connection, Message
from qstore.broker.management.console import Console
from qstore.broker.model.configuration import record_of
from qstore.broker.model.policies import Policy, recorded_policy
from qstore.broker.model.queues.arguments import check_type, read_arguments
from qstore.formats.broker_records.topology import Exchange, GeneralObject, Queue
from qstore.formats.values import typed_map
from qstore.store.importing.plan import LEDGER_QUEUES
from qstore.tools.interchange.definitions import (
    DefinitionOptions,
    DefinitionsWriter,
    Unmapped,
    queue_arguments_to_qstore,
    queue_arguments_to_rabbitmq,
    read_definitions,
)
from qstore.tools.interchange.items import InterchangeError
from tests.support.dump import dump
from tests.support.fixtures import StoreFixture
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.interchange_runs import bring, export, write_lines
from tests.tools.shell_runs import objects
from tests.tools.test_interchange import simple_lines
from tests.tools.test_interchange_broker import drained

__all__ = ["make_broker"]

DEFINITIONS: dict[str, Any] = {
    "rabbit_version": "3.13.7",
    "rabbitmq_version": "3.13.7",
    "product_name": "RabbitMQ",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"]}],
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
    "policies": [{"vhost": "/", "name": "ha", "pattern": "^a", "definition": {"max-length": 5}}],
    "queues": [
        {
            "name": "orders", "vhost": "/", "durable": True, "auto_delete": False,
            "arguments": {
                "x-queue-type": "classic", "x-max-length": 1000, "x-max-length-bytes": 1 << 20,
                "x-overflow": "reject-publish", "x-dead-letter-exchange": "dead", "x-queue-mode": "lazy",
                "x-dead-letter-routing-key": "order",
            },
        },
        {"name": "urgent", "vhost": "/", "durable": True, "arguments": {"x-max-priority": 4, "x-max-length": 10}},
        {"name": "quorum", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "quorum", "x-expires": 1000}},
        {"name": "stream", "vhost": "/", "durable": True, "arguments": {
            "x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1 << 30,
            "x-stream-max-segment-size-bytes": 1 << 20,
        }},
        {"name": "short", "vhost": "/", "durable": True, "arguments": {"x-max-length": 0, "x-message-ttl": 0}},
        {"name": "gone", "vhost": "/", "durable": False, "arguments": {}},
        {"name": "amq.gen-x", "vhost": "/", "durable": True, "arguments": {}},
        {"name": "elsewhere", "vhost": "other", "durable": True, "arguments": {}},
    ],
    "exchanges": [
        {"name": "dead", "vhost": "/", "type": "fanout", "durable": True, "auto_delete": False, "internal": False,
         "arguments": {}},
        {"name": "events", "vhost": "/", "type": "topic", "durable": True, "internal": True,
         "arguments": {"alternate-exchange": "dead"}},
        {"name": "sized", "vhost": "/", "type": "headers", "durable": True, "arguments": {}},
        {"name": "late", "vhost": "/", "type": "x-delayed-message", "durable": True, "arguments": {}},
    ],
    "bindings": [
        {"source": "events", "vhost": "/", "destination": "orders", "destination_type": "queue",
         "routing_key": "order.#", "arguments": {}},
        {"source": "amq.topic", "vhost": "/", "destination": "orders", "destination_type": "queue",
         "routing_key": "a.*", "arguments": {}},
        {"source": "sized", "vhost": "/", "destination": "urgent", "destination_type": "queue", "routing_key": "",
         "arguments": {"x-match": "any", "size": 3, "colour": "red"}},
        {"source": "events", "vhost": "/", "destination": "sized", "destination_type": "exchange", "routing_key": "#",
         "arguments": {}},
        {"source": "late", "vhost": "/", "destination": "orders", "destination_type": "queue", "routing_key": "",
         "arguments": {}},
    ],
}  # fmt: skip
LISTED = [
    'exchange "events": internal: clients can publish to it',
    'exchange "late": type x-delayed-message is not known: it is left out, with its bindings',
    'queue "short": x-max-length 0 is not known',
    'queue "gone": it is not durable: it is left out, with its bindings',
    'queue "amq.gen-x": names beginning with amq. are reserved: it is left out, with its bindings',
    "users: 1 of them",
]
ONWARD = {"kind": "exchange_binding", "source": "events", "destination": "sized", "key": "#", "arguments": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "definitions.json").write_text(json.dumps(DEFINITIONS, indent=1))
    return tmp_path / "definitions.json"


def topology(store: Path) -> dict[str, list[dict[str, Any]]]:
    lines = dump(store, "--topology", "--json").lines()
    return {
        kind: [line for line in lines if line["kind"] == kind]
        for kind in ("queue", "exchange", "binding", "exchange_binding")
    }


def test_shared_definitions_survive_import_and_export(tmp_path: Path, file: Path) -> None:
    result = bring(file, tmp_path / "store")
    assert result.exit_code == 1, result.output
    assert [line.removeprefix("notice: ") for line in result.stderr.splitlines()] == LISTED
    found = topology(tmp_path / "store")
    assert {line["name"]: line["arguments"] for line in found["queue"] if "vhost" not in line} == {
        "orders": DEFINITIONS["queues"][0]["arguments"],
        "urgent": DEFINITIONS["queues"][1]["arguments"],
        "quorum": {"x-queue-type": "quorum", "x-expires": 1000},
        "stream": {
            "x-queue-type": "stream",
            "x-max-age": "7D",
            "x-max-length-bytes": 1 << 30,
            "x-stream-max-segment-size-bytes": 1 << 20,
        },
        "short": {"x-message-ttl": 0},
    }
    assert {(line["name"], line["type"]) for line in found["exchange"]} >= {("events", "topic"), ("sized", "headers")}
    assert {(line["exchange"], line["queue"], line["key"]) for line in found["binding"]} == {
        ("events", "orders", "order.#"), ("amq.topic", "orders", "a.*"), ("sized", "urgent", ""),
    }  # fmt: skip
    assert found["exchange_binding"] == [ONWARD]
    assert ONWARD in objects(tmp_path / "store", "list bindings events")
    back = tmp_path / "back.definitions.json"
    assert export(tmp_path / "store", back, "--strict").exit_code == 0
    written = json.loads(back.read_bytes())
    queues = {each["name"]: each["arguments"] for each in written["queues"] if each["vhost"] == "/"}
    wanted = {each["name"]: dict(each["arguments"]) for each in DEFINITIONS["queues"]}
    assert queues == {
        "orders": wanted["orders"],
        "urgent": wanted["urgent"],
        "quorum": {"x-queue-type": "quorum", "x-expires": 1000},
        "stream": {
            "x-queue-type": "stream",
            "x-max-age": "7D",
            "x-max-length-bytes": 1 << 30,
            "x-stream-max-segment-size-bytes": 1 << 20,
        },
        "short": {"x-message-ttl": 0},
    }
    assert sorted(each["routing_key"] for each in written["bindings"]) == ["", "#", "a.*", "order.#"]
    (onward,) = (each for each in written["bindings"] if each["destination_type"] == "exchange")
    assert (onward["source"], onward["destination"], onward["routing_key"]) == ("events", "sized", "#")
    assert {each["name"]: each["arguments"] for each in written["exchanges"]}["events"] == {
        "alternate-exchange": "dead"
    }
    assert bring(back, tmp_path / "again", "--strict").exit_code == 0
    assert topology(tmp_path / "again") == found


def test_strict_imports_and_writes_nothing(tmp_path: Path, file: Path) -> None:
    result = bring(file, tmp_path / "store", "--strict")
    assert result.exit_code == 2
    assert f"cannot be mapped: {LISTED[0]}, and {len(LISTED) - 1} more" in result.output
    assert not (tmp_path / "store" / "rhm").exists()
    fields = {"qpid.policy_type": "self-destruct", "qpid.max_count": 3, "qpid.last_value_queue_key": "k"}
    lines = [
        {"kind": "export", "format": "qstore-export", "version": 1},
        {"kind": "queue", "name": "q", "arguments": fields},
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bring(tmp_path / "q.jsonl", tmp_path / "store", "--edited").exit_code == 0
    target = tmp_path / "definitions2.json"
    assert export(tmp_path / "store", target, "--format", "definitions", "--strict").exit_code == 2
    assert not target.exists()
    result = export(tmp_path / "store", target, "--format", "definitions")
    assert result.exit_code == 1
    assert result.stderr.count("notice: queue") == 2
    assert json.loads(target.read_bytes())["queues"][0]["arguments"] == {
        "x-max-length": 3,
        "x-overflow": "reject-publish",
    }


def test_delayed_exchanges_survive_import_and_export(tmp_path: Path, make_broker: BrokerMaker) -> None:
    arguments = {"x-delayed-type": "headers", "alternate-exchange": "amq.fanout"}
    exchange = {"name": "late", "vhost": "/", "type": "x-delayed-message", "durable": True, "arguments": arguments}
    definitions = {"exchanges": [exchange], "queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {}}],
                   "bindings": [{"source": "late", "vhost": "/", "destination": "q", "destination_type": "queue",
                                 "routing_key": "k", "arguments": {"x-match": "all", "a": 1}}]}  # fmt: skip
    (tmp_path / "late.definitions.json").write_text(json.dumps({"rabbit_version": "3.13.7", **definitions}))
    broker = make_broker().start()
    url = f"amqp://127.0.0.1:{broker.port}"
    assert bring(tmp_path / "late.definitions.json", url, "--strict").exit_code == 0
    assert export(url, tmp_path / "back.definitions.json", "--strict").exit_code == 0
    written = json.loads((tmp_path / "back.definitions.json").read_bytes())
    (found,) = written["exchanges"]
    assert (found["type"], found["arguments"]) == ("x-delayed-message", arguments)
    assert [each["name"] for each in written["queues"]] == ["q"]
    assert written["bindings"][0]["arguments"] == {"x-match": "all", "a": 1}
    broker.stop()
    assert export(broker.data_directory, tmp_path / "stored.definitions.json", "--strict").exit_code == 0
    assert json.loads((tmp_path / "stored.definitions.json").read_bytes())["queues"] == written["queues"]


def test_exchanges_of_plugins_survive_import_and_export(tmp_path: Path, make_broker: BrokerMaker) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "x-consistent-hash": {"hash-header": "h"}, "x-modulus-hash": {}, "x-random": {},
        "x-recent-history": {"x-recent-history-length": 7},
    }  # fmt: skip
    exchanges = [
        {"name": kind, "vhost": "/", "type": kind, "durable": True, "arguments": arguments}
        for kind, arguments in kinds.items()
    ]
    long = {"name": "long", "vhost": "/", "type": "x-recent-history", "durable": True,
            "arguments": {"x-recent-history-length": 5000}}  # fmt: skip
    bindings = [
        {
            "source": kind,
            "vhost": "/",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "2",
            "arguments": {},
        }
        for kind in kinds
    ]
    queues = [{"name": "q", "vhost": "/", "durable": True, "arguments": {}}]
    definitions = {"rabbit_version": "3.13.7", "exchanges": [*exchanges, long], "queues": queues, "bindings": bindings}
    (tmp_path / "in.definitions.json").write_text(json.dumps(definitions))
    broker = make_broker().start()
    url = f"amqp://127.0.0.1:{broker.port}"
    result = bring(tmp_path / "in.definitions.json", url)
    assert "x-recent-history-length 5000: at most 500 are kept" in result.stderr
    assert export(url, tmp_path / "back.definitions.json", "--strict").exit_code == 0
    written = json.loads((tmp_path / "back.definitions.json").read_bytes())
    found = {each["name"]: (each["type"], each["arguments"]) for each in written["exchanges"]}
    assert found.pop("long") == ("x-recent-history", {"x-recent-history-length": 500})
    assert found == {kind: (kind, arguments) for kind, arguments in kinds.items()}
    assert [each["name"] for each in written["queues"]] == ["q"]
    assert sorted(each["source"] for each in written["bindings"] if each["source"]) == sorted(kinds)
    broker.stop()
    assert export(broker.data_directory, tmp_path / "stored.definitions.json", "--strict").exit_code == 0
    assert json.loads((tmp_path / "stored.definitions.json").read_bytes())["queues"] == written["queues"]


def test_with_a_broker(tmp_path: Path, file: Path, make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    url = f"amqp://127.0.0.1:{broker.port}"
    result = bring(file, url, "--vhost", "/")
    assert result.exit_code == 1, result.output
    assert 'vhost "other": 1 object of another virtual host' in result.stderr
    assert ONWARD in objects(url, "list bindings events")
    with Connection(url.removeprefix("amqp://")) as connection:
        session = connection.session()
        arguments = dict(session.invoke("queue.query", queue="urgent")["arguments"].entries)
        assert arguments["x-max-priority"].value == 4
        assert dict(session.invoke("queue.query", queue="short")["arguments"].entries)["x-message-ttl"].value == 0
        declared = {"x-max-length": 7, "x-message-ttl": 9, "x-expires": 100_000}
        session.invoke("queue.declare", queue="declared", durable=True, arguments=typed_map(declared))
        assert session.invoke("exchange.query", name="sized")["type"] == "headers"
    result = export(url, tmp_path / "back.definitions.json")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "back.definitions.json").read_bytes())
    assert {each["name"] for each in written["queues"]} == {"orders", "urgent", "quorum", "stream", "short", "declared"}
    assert {"name": "declared", "vhost": "/", "durable": True, "auto_delete": False, "arguments": declared} in written[
        "queues"
    ]
    assert {each["name"] for each in written["exchanges"]} == {"dead", "events", "sized"}
    onward = [each for each in written["bindings"] if each["destination_type"] == "exchange"]
    assert [(each["source"], each["destination"], each["routing_key"]) for each in onward] == [("events", "sized", "#")]


def test_rabbitmq_clients_can_redeclare_imported_objects(tmp_path: Path, file: Path, make_broker: BrokerMaker) -> None:
    """A second declaration with the same arguments is not refused."""
    broker = make_broker().start()
    assert bring(file, f"amqp://127.0.0.1:{broker.port}", "--vhost", "/").exit_code == 1
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        for queue in DEFINITIONS["queues"][:2]:
            channel.queue_declare(queue["name"], durable=True, arguments=queue["arguments"])
        for exchange in (DEFINITIONS["exchanges"][0], {**DEFINITIONS["exchanges"][1], "internal": False}):
            name, kind, arguments = exchange["name"], exchange["type"], exchange["arguments"]
            channel.exchange_declare(name, kind, durable=True, internal=exchange["internal"], arguments=arguments)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="PRECONDITION_FAILED"):
            channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 4, "x-max-length": 11})


def test_stores_of_qpidd_have_definitions(tmp_path: Path, local: StoreFixture) -> None:
    result = export(local.path, tmp_path / "definitions.json")
    assert result.exit_code in (0, 1), result.output
    written = json.loads((tmp_path / "definitions.json").read_bytes())
    assert {each["name"] for each in written["queues"]} == {line["name"] for line in topology(local.path)["queue"]}


def test_a_virtual_host_is_chosen(tmp_path: Path, file: Path) -> None:
    assert bring(file, tmp_path / "store", "--vhost", "other", "--to-vhost", "/").exit_code == 1
    assert [line["name"] for line in topology(tmp_path / "store")["queue"]] == ["elsewhere"]
    assert "there is no virtual host 'none'" in bring(file, tmp_path / "b", "--vhost", "none").output
    two = {**DEFINITIONS, "exchanges": [], "bindings": [], "queues": [{"name": n, "vhost": n} for n in "ab"]}
    file.write_text(json.dumps(two))
    several = bring(file, tmp_path / "c", "--to-vhost", "x").output
    assert "there are several virtual hosts (/, a, b, other): choose one (--vhost)" in several


def dangling_definitions(tmp_path: Path) -> Path:
    """As RabbitMQ exports them: bindings of queues and exchanges that are not in the file."""

    def binding(source: str, target: str, kind: str = "queue") -> dict[str, Any]:
        return {"source": source, "destination": target, "destination_type": kind, "routing_key": "k"}

    bindings = [
        binding("amq.topic", "gone"), binding("nowhere", "q"), binding("amq.topic", "nowhere", "exchange"),
        binding("amq.topic", "q"), binding("amq.topic", "amq.fanout", "exchange"),
    ]  # fmt: skip
    queues = [{"name": "q", "durable": True}, {"name": "last", "durable": True}]
    (tmp_path / "dangling.json").write_text(json.dumps({"queues": queues, "bindings": bindings}))
    return tmp_path / "dangling.json"


def test_bindings_without_a_queue_or_exchange_are_left_out_by_a_broker_too(
    tmp_path: Path, make_broker: BrokerMaker
) -> None:
    url = f"amqp://127.0.0.1:{make_broker().start().port}"
    file = dangling_definitions(tmp_path)
    planned, done = bring(file, url, "--dry-run"), bring(file, url)
    assert planned.exit_code == done.exit_code == 0, done.output
    assert planned.stderr == done.stderr
    assert done.stderr.count("is left out: there is no") == 3
    for missing in ('no queue "gone"', 'no exchange "nowhere"'):
        assert missing in done.stderr
    back = tmp_path / "back.definitions.json"
    assert export(url, back).exit_code == 0
    written = json.loads(back.read_bytes())
    assert {each["name"] for each in written["queues"]} == {"q", "last"}
    assert sorted((each["source"], each["destination"]) for each in written["bindings"]) == [
        ("amq.topic", "amq.fanout"), ("amq.topic", "q"),
    ]  # fmt: skip


def test_a_missing_alternate_exchange_is_left_out_by_a_broker(tmp_path: Path, make_broker: BrokerMaker) -> None:
    url = f"amqp://127.0.0.1:{make_broker().start().port}"
    exchanges = [
        {"name": name, "type": "fanout", "durable": True, "arguments": {"alternate-exchange": alternate}}
        for name, alternate in (("a", "nowhere"), ("b", "a"), ("c", "amq.topic"))
    ]
    bindings = [{"source": "a", "destination": "q", "destination_type": "queue", "routing_key": "k"}]
    file = tmp_path / "alternates.json"
    queues = [{"name": "q", "durable": True}]
    file.write_text(json.dumps({"queues": queues, "exchanges": exchanges, "bindings": bindings}))
    planned, done = bring(file, url, "--dry-run"), bring(file, url)
    assert planned.exit_code == done.exit_code == 0, done.output
    assert planned.stderr == done.stderr
    assert 'the alternate exchange of exchange "a" is left out: there is no exchange "nowhere"' in done.stderr
    back = tmp_path / "back.definitions.json"
    assert export(url, back).exit_code == 0
    written = json.loads(back.read_bytes())
    found = {each["name"]: each["arguments"].get("alternate-exchange") for each in written["exchanges"]}
    assert found == {"a": None, "b": "a", "c": "amq.topic"}
    assert [each["source"] for each in written["bindings"]] == ["a"]


def test_an_alternate_exchange_that_cannot_exist_is_listed(tmp_path: Path) -> None:
    arguments = {"alternate-exchange": "a\0b"}
    exchanges = [{"name": "e", "type": "fanout", "durable": True, "arguments": arguments}]
    file = tmp_path / "alternates.json"
    file.write_text(json.dumps({"queues": [], "bindings": [], "exchanges": exchanges}))
    done = bring(file, tmp_path / "store", "--topology")
    assert "its name contains the control character U+0000: it has none" in done.stderr
    (exchange,) = topology(tmp_path / "store")["exchange"]
    assert not exchange.get("alternate_exchange")
    assert "alternate-exchange" not in exchange.get("arguments", {})


def test_refused_definitions_are_listed_and_others_imported(tmp_path: Path, make_broker: BrokerMaker) -> None:
    url = f"amqp://127.0.0.1:{make_broker().start().port}"
    header = {"kind": "export", "format": "qstore-export", "version": 1}
    lines = [
        header,
        {"kind": "exchange", "name": "refused", "type": "no-such-type"},
        {"kind": "queue", "name": "refused", "arguments": {"qpid.max_count": "many"}},
        {"kind": "queue", "name": "taken"},
        {"kind": "binding", "exchange": "refused", "queue": "taken", "key": "k"},
        {"kind": "binding", "exchange": "amq.direct", "queue": "refused", "key": "k"},
        {"kind": "binding", "exchange": "amq.direct", "queue": "taken", "key": "k"},
    ]
    result = bring(write_lines(tmp_path / "e.jsonl", lines), url, "--edited", "--json")
    assert result.exit_code == 1, result.output
    summary = json.loads(result.stdout.splitlines()[-1])
    created = [summary[f"{kind}_created"] for kind in ("queues", "exchanges", "bindings")]
    assert (created, summary["objects_refused"]) == ([1, 0, 1], 4)
    assert result.stderr.count("is left out: ") == 4
    with Connection(url) as connection:
        assert connection.session().invoke("queue.query", queue="taken")["queue"] == "taken"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:5672", "amqp://localhost:5672"), ("amqps:[::1]:5671", "amqps://[::1]:5671"),
        ("guest@localhost:5672", "amqp://USER/PASSWORD@localhost:5672"),
        ("guest/secret@10.0.0.1:5672", "amqp://USER/PASSWORD@10.0.0.1:5672"),
        ("amqp:guest:secret@10.0.0.1:5672", "amqp://USER/PASSWORD@10.0.0.1:5672"),
    ],
)  # fmt: skip
def test_the_address_of_a_broker_is_not_a_directory(
    tmp_path: Path, file: Path, address: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = bring(file, address)
    assert done.exit_code == 2
    assert f"for the broker at this address give {url}, for a directory" in " ".join(done.stderr.split())
    assert "secret" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert bring(file, f"./{address.replace('/', '-')}").exit_code == 1  # some of it cannot be mapped


def test_messages_for_a_refused_queue_stop_the_import_before_any_is_sent(
    tmp_path: Path, make_broker: BrokerMaker
) -> None:
    url = f"amqp://127.0.0.1:{make_broker().start().port}"
    lines = simple_lines(2, "refused")
    lines[1]["arguments"] = {"qpid.max_count": "many"}
    lines.insert(1, {"kind": "queue", "name": "taken"})
    lines.insert(3, {"kind": "message", "queue": "taken", "body": "x"})
    result = bring(write_lines(tmp_path / "e.jsonl", lines), url, "--edited")
    assert result.exit_code == 2
    assert 'queue "refused": the broker has refused it' in result.stderr
    assert result.stderr.count("\n") == 1
    with Connection(url) as connection:
        assert connection.session().invoke("queue.query", queue="taken")["message_count"] == 0


def test_bindings_with_one_key_are_exported_with_the_key_of_the_client(
    tmp_path: Path, make_broker: BrokerMaker
) -> None:
    broker = make_broker().start()
    url, back = f"amqp://127.0.0.1:{broker.port}", tmp_path / "back.definitions.json"
    declared = [{"x-match": "all", "a": number} for number in range(3)]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("h", "headers", durable=True)
        for arguments in declared:
            for exchange in ("h", "amq.headers"):
                channel.queue_bind("q", exchange, "k", arguments)
        channel.queue_bind("q", "amq.topic", "k#0123456789abcdef")  # looks like one, and is none
    for place in (url, broker.data_directory):
        if place is not url:
            broker.close()
        assert export(place, back).exit_code == 0
        bound = json.loads(back.read_bytes())["bindings"]
        back.unlink()
        assert sorted(each["routing_key"] for each in bound) == [*["k"] * 6, "k#0123456789abcdef"]
        for exchange in ("h", "amq.match"):
            assert [each["arguments"] for each in bound if each["source"] == exchange] == declared


def headers_definitions() -> bytes:
    def binding(source: str, key: str = "", **arguments: Any) -> dict[str, Any]:
        arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
        return {"source": source, "destination": "q", "destination_type": "queue", "routing_key": key,
                "arguments": arguments}  # fmt: skip

    queue = {"name": "q", "durable": True, "arguments": {"x-dead-letter-exchange": "amq.headers"}}
    exchange = {"name": "h", "type": "headers", "durable": True, "arguments": {"alternate-exchange": "amq.headers"}}
    fanout = {"name": "f", "type": "fanout", "durable": True, "arguments": {}}
    onward = {**binding("amq.headers", x_match="any", a=5), "destination": "f", "destination_type": "exchange"}
    bindings = [
        binding("amq.headers", a=1), binding("amq.headers", x_match="all", a=2), binding("amq.match", "k", a=1),
        binding("h", a=1), binding("h", x_match="any", a=1, b=2), onward,
    ]  # fmt: skip
    return json.dumps({"queues": [queue], "exchanges": [exchange, fanout], "bindings": bindings}).encode()


def test_bindings_to_headers_exchanges_are_those_that_clients_would_have_declared(tmp_path: Path) -> None:
    """With one key and different arguments, without x-match, and under RabbitMQ's name of the standard exchange."""
    (tmp_path / "headers.json").write_bytes(headers_definitions())
    assert bring(tmp_path / "headers.json", tmp_path / "store", "--strict").exit_code == 0
    found = topology(tmp_path / "store")
    assert found["queue"][0]["arguments"] == {"x-dead-letter-exchange": "amq.match"}
    assert {line["name"]: line.get("alternate_exchange") for line in found["exchange"]}["h"] == "amq.match"
    bound = [(line["exchange"], line["key"].partition("#")[0], line["arguments"]) for line in found["binding"]]
    wanted = [
        ("amq.match", "", {"a": 1, "x-match": "all"}), ("amq.match", "", {"a": 2, "x-match": "all"}),
        ("amq.match", "k", {"a": 1, "x-match": "all"}),
        ("h", "", {"a": 1, "x-match": "all"}), ("h", "", {"a": 1, "b": 2, "x-match": "any"}),
    ]  # fmt: skip
    assert all(bound.count(each) == 1 for each in wanted)
    assert (
        len({(line["exchange"], line.get("stored_key", line["key"])) for line in found["binding"]})
        == len(bound)
        == len(wanted)
    )
    (onward,) = found["exchange_binding"]
    assert (onward["source"], onward["destination"], onward["arguments"]) == (
        "amq.match",
        "f",
        {"x-match": "any", "a": 5},
    )


class _Nothing:
    """Takes everything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = ("name", "vhost", "type", "durable", "auto_delete", "arguments", "source", "destination", "routing_key",
           "destination_type", "internal")  # fmt: skip
_ARGUMENTS = ("x-max-length", "x-overflow", "x-max-priority", "x-dead-letter-exchange", "x-match", "alternate-exchange")
_ENTRY = st.dictionaries(
    st.sampled_from(_FIELDS), _JSON | st.dictionaries(st.sampled_from(_ARGUMENTS), _JSON, max_size=3), max_size=6
)


@given(
    st.fixed_dictionaries({key: st.lists(_ENTRY, max_size=3) | _JSON for key in ("queues", "exchanges", "bindings")})
)
def test_hostile_definitions_are_refused_or_listed(fields: dict[str, Any]) -> None:
    content = json.dumps(fields).encode()
    with contextlib.suppress(InterchangeError):
        read_definitions(BytesIO(content), _Nothing(), DefinitionOptions(None, Unmapped()))
    with pytest.raises(InterchangeError, match="not JSON"):
        read_definitions(BytesIO(content[: len(content) // 2]), _Nothing(), DefinitionOptions(None, Unmapped()))


@pytest.mark.parametrize("key", ["queues", "exchanges", "bindings"])
def test_arguments_of_the_wrong_kind_are_refused(key: str) -> None:
    entry = {"name": "n", "type": "topic", "source": "amq.topic", "destination": "n"}
    for arguments in ([1], [[1, 2]], ["ab"], "x", 5):
        content = json.dumps({key: [{**entry, "arguments": arguments}]}).encode()
        with pytest.raises(InterchangeError, match="the arguments are not an object"):
            read_definitions(BytesIO(content), _Nothing(), DefinitionOptions(None, Unmapped()))


@pytest.mark.parametrize("key", [5, None, ["k"], {"k": 1}, "k" * 300, "\ud800"])
def test_hostile_bindings_to_headers_exchanges(key: Any) -> None:
    """Two with one key and other arguments, also such that no client of AMQP 0-9-1 can send."""
    fields = {"source": "amq.match", "destination": "q", "routing_key": key}
    for argument in ({"a": 1 << 63}, {"a": 1 << 70}, {"n" * 300: 1}, {"a": None}, {"\ud800": "\ud800"}):
        bindings = [{**fields, "arguments": {}}, {**fields, "arguments": argument}]
        content = json.dumps({"bindings": bindings}).encode()
        with contextlib.suppress(InterchangeError):
            read_definitions(BytesIO(content), _Nothing(), DefinitionOptions(None, Unmapped()))


def test_names_that_no_broker_would_take_are_left_out_with_their_bindings() -> None:
    queues = [{"name": name, "durable": True, "arguments": {}} for name in ("a\0b", "\x1b[2J")]
    content = {
        "queues": queues,
        "exchanges": [{"name": "x\n", "type": "topic", "durable": True, "arguments": {}}],
        "bindings": [{"source": "x\n", "destination": "a\0b", "routing_key": "k", "arguments": {}}],
    }
    unmapped = Unmapped()
    read_definitions(BytesIO(json.dumps(content).encode()), _Nothing(), DefinitionOptions(None, unmapped))
    assert unmapped == [
        'exchange "x\\n": its name contains the control character U+000A: it is left out',
        'queue "a\\x00b": its name contains the control character U+0000: it is left out',
        'queue "\\x1b[2J": its name contains the control character U+001B: it is left out',
    ]


def test_a_deep_binding_is_left_out() -> None:
    deep = b'{"a":' * 1000 + b"{}" + b"}" * 1000
    binding = b'{"source": "amq.topic", "destination": "q", "arguments": {"x": ' + deep + b"}}"
    unmapped = Unmapped()
    read_definitions(BytesIO(b'{"bindings": [' + binding + b"]}"), _Nothing(), DefinitionOptions(None, unmapped))
    assert [text.rpartition(": ")[2] for text in unmapped] == ["it is left out"]


def test_undecodable_names_and_own_queues_are_not_written() -> None:
    stream = BytesIO()
    writer, bad = DefinitionsWriter(stream), "a\udcff"
    writer.queue(Queue(LEDGER_QUEUES + "0123", typed_map({})))
    writer.queue(Queue("q", typed_map({}), bad))
    writer.exchange(Exchange("e", True, "topic", typed_map({}), bad))
    writer.queue(Queue(bad, typed_map({})))
    writer.finish()
    written = json.loads(stream.getvalue())
    assert [each["name"] for key in ("queues", "exchanges") for each in written[key]] == ["q", "e"]
    assert [each["arguments"] for key in ("queues", "exchanges") for each in written[key]] == [{}, {}]
    assert len(writer.unmapped) == 3


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, "at-least-once"),
        ({"x-queue-type": "classic"}, "at-most-once"),
        ({"x-overflow": "drop-head"}, "at-most-once"),
        ({"x-dead-letter-exchange": None}, "at-most-once"),
        ({"x-dead-letter-strategy": "at-most-once"}, "at-most-once"),
        ({"x-dead-letter-strategy": "never"}, None),
    ],
)
def test_the_strategy_of_dead_letters_is_kept_where_it_has_an_effect(changed: Fields, wanted: str | None) -> None:
    given = {
        "x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-exchange": "d",
        "x-dead-letter-strategy": "at-least-once",
    } | changed  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    unmapped = Unmapped()
    arguments = queue_arguments_to_qstore("q", given, unmapped)
    assert arguments.get("x-dead-letter-strategy") == wanted
    assert len(unmapped) == (wanted is None)
    parsed = read_arguments(typed_map(arguments))
    check_type("q", parsed, durable=True, exclusive=False, auto_delete=False, is_server_named=False)
    assert parsed.keeps_dead is (wanted == "at-least-once")
    assert queue_arguments_to_rabbitmq("q", arguments, unmapped).get("x-dead-letter-strategy") == wanted


def test_definitions_that_are_cut_off(tmp_path: Path, file: Path) -> None:
    content = file.read_bytes()
    for end in range(100, len(content) - 1, 397):
        file.write_bytes(content[:end])
        result = bring(file, tmp_path / "store")
        assert result.exit_code == 2, result.output
        assert result.output.count("\n") == 1
    assert not (tmp_path / "store" / "rhm").exists()


# ---- policies and permissions ----


Fields = dict[str, Any]


class _Sink:
    """Keeps the configuration records that were read."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, tuple[str, ...]], Any] = {}

    def other(self, general: GeneralObject) -> None:
        found = record_of(general)
        assert found is not None
        (kind, name), values = found
        self.records[kind, name] = recorded_policy(name, values) if "policy" in kind else values

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def policy(name: str, pattern: str, definition: Fields, **more: Any) -> Fields:
    named = {key.replace("_", "-"): value for key, value in more.items()}
    return {"vhost": "/", "name": name, "pattern": pattern, "definition": definition} | named


def read(**fields: Any) -> tuple[dict[tuple[str, tuple[str, ...]], Any], list[str]]:
    """The records, and what is listed."""
    given = {"queues": [{"name": "q", "durable": True, "arguments": {}}], **fields}
    sink, unmapped = _Sink(), Unmapped()
    read_definitions(BytesIO(json.dumps(given).encode()), sink, DefinitionOptions(None, unmapped))
    return sink.records, unmapped


def test_every_key_is_kept() -> None:
    every = {
        "message-ttl": 5, "expires": 6, "max-length": 7, "max-length-bytes": 8, "overflow": "reject-publish",
        "dead-letter-exchange": "dead", "dead-letter-routing-key": "k", "queue-mode": "lazy", "delivery-limit": 3,
        "alternate-exchange": "ae",
    }  # fmt: skip
    given = policy("all", "^orders", every, apply_to="all", priority=2)
    records, listed = read(policies=[given], operator_policies=[policy("o", "", {"max-length": 1}, apply_to="queues")])
    assert records == {
        ("qstore.policy", ("/", "all")): Policy("/", "all", "^orders", "all", 2, every),
        ("qstore.operator-policy", ("/", "o")): Policy("/", "o", "", "queues", 0, {"max-length": 1}),
    }
    assert listed == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (policy("p", "(", {"max-length": 1}), 'policy "p": its pattern is not a regular expression'),
        (policy("p", "(a+)+$", {"max-length": 1}), "too long to match"),
        (policy("p", "", {"max-length": 1}, apply_to="topics"), "it must be one of"),
        (policy("p", "", {"max-length": 1}, priority="high"), "the priority must be a whole number"),
        ({"vhost": "/", "name": "p"}, "needs a pattern"),
        (policy("p", "", {"max-aeg": "7D"}), "sets nothing that is known"),
    ],
)
def test_unusable_policies_are_listed(given: Fields, why: str) -> None:
    records, listed = read(policies=[given])
    assert records == {}
    assert why in listed[-1]
    assert listed[-1].endswith("it is left out")
    assert listed[-1].count('"p"') == 1


def test_unknown_keys_are_listed_and_the_others_kept() -> None:
    records, listed = read(policies=[policy("p", "", {"max-aeg": "7D", "max-length": 5, "expires": "soon"})])
    assert records["qstore.policy", ("/", "p")].definition == {"max-length": 5}
    assert listed == ['policy "p": max-aeg 7D is not known', 'policy "p": expires soon is not known']


def test_permissions_are_kept() -> None:
    own = {"user": "joe", "vhost": "/", "configure": "^joe", "write": ".*", "read": ""}
    topic = {"user": "joe", "vhost": "/", "exchange": "t", "write": "^a", "read": "^b"}
    records, listed = read(
        permissions=[own, {**own, "vhost": "other"}, {**own, "user": "eve", "read": "("}, {**own, "user": None}],
        topic_permissions=[topic],
    )
    assert records == {
        ("qstore.permission", ("joe", "/")): {"configure": "^joe", "write": ".*", "read": ""},
        ("qstore.permission", ("joe", "other")): {"configure": "^joe", "write": ".*", "read": ""},
        ("qstore.virtual-host", ("other",)): {},
        ("qstore.topic-permission", ("joe", "/", "t")): {"write": "^a", "read": "^b"},
    }
    assert len(listed) == 2
    assert all(each.startswith("permission ") and each.endswith("it is left out") for each in listed)


@pytest.mark.parametrize("key", ["policies", "operator_policies", "permissions", "topic_permissions"])
@pytest.mark.parametrize("value", [5, [5]])
def test_lists_that_are_none(key: str, value: object) -> None:
    with pytest.raises(InterchangeError, match=key):
        read(**{key: value})


def test_in_a_store_and_a_broker(tmp_path: Path, make_broker: BrokerMaker) -> None:
    limits = policy("limits", "^orders", {"max-length": 2}, apply_to="queues", priority=1)
    definitions = {
        "vhosts": [{"name": "/"}],
        "queues": [{"name": "orders", "vhost": "/", "durable": True, "arguments": {}}],
        "policies": [limits],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    assert bring(file, tmp_path / "store").exit_code == 0
    back = tmp_path / "back.definitions.json"
    assert export(tmp_path / "store", back, "--strict").exit_code == 0
    assert json.loads(back.read_bytes())["policies"] == [limits]

    broker = make_broker().start()
    url = f"amqp://127.0.0.1:{broker.port}"
    result = bring(back, url)
    assert result.exit_code == 0, result.output
    with Connection(url.removeprefix("amqp://")) as connection:
        with connection.session() as session:
            sender = session.sender("orders")
            for number in range(4):
                sender.send(Message(str(number), durable=True))
            session.sync()
        with Console(connection) as console:
            (applied,) = list(console.query("appliedPolicy"))
            assert (applied["name"], applied["policy"]) == ("orders", "limits")
    again = tmp_path / "again.definitions.json"
    assert export(url, again).exit_code == 0
    assert json.loads(again.read_bytes())["policies"] == [limits]
    assert [message.content for message in drained(url, "orders")] == ["2", "3"]


def test_the_summary_is_broken_between_words_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"queues": [{"name": "q", "durable": True, "arguments": {}}]}))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    result = bring("definitions.json", "store")
    assert result.exit_code == 0, result.output
    *_, begin, end = result.output.splitlines()
    assert begin.startswith("0 messages, 0 exchanges, 0 bindings and 0 transactions in doubt imported into")
    assert end.strip().endswith("record ids are kept")
    assert max(len(begin), len(end)) <= 80
