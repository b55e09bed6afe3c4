"""Policies and permissions of RabbitMQ's definitions: read as configuration records, listed, set, and written again."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.client import Connection, Message
from qstore.broker.management.console import Console
from qstore.broker.model.configuration import record_of
from qstore.broker.model.policies import Policy, recorded_policy
from qstore.formats.broker_records.topology import GeneralObject
from qstore.tools.interchange.definitions import DefinitionOptions, Unmapped, read_definitions
from qstore.tools.interchange.items import InterchangeError
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.interchange_runs import bring, export
from tests.tools.test_interchange_broker import drained

__all__ = ["make_broker"]

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
        (policy("p", "(", {"max-length": 1}), 'policy "p": policy "p": its pattern is not a regular expression'),
        (policy("p", "(a+)+$", {"max-length": 1}), "too long to match"),
        (policy("p", "", {"max-length": 1}, apply_to="streams"), "there are no streams"),
        (policy("p", "", {"max-length": 1}, priority="high"), "the priority is not a whole number"),
        ({"vhost": "/", "name": "p"}, "needs a pattern"),
        (policy("p", "", {"max-age": "7D"}), "sets nothing that is known"),
    ],
)
def test_unusable_policies_are_listed(given: Fields, why: str) -> None:
    records, listed = read(policies=[given])
    assert records == {}
    assert why in listed[-1]
    assert listed[-1].endswith("it is left out")


def test_unknown_keys_are_listed_and_the_others_kept() -> None:
    records, listed = read(policies=[policy("p", "", {"max-age": "7D", "max-length": 5, "expires": "soon"})])
    assert records["qstore.policy", ("/", "p")].definition == {"max-length": 5}
    assert listed == ['policy "p": max-age 7D is not known', 'policy "p": expires soon is not known']


def test_permissions_are_kept() -> None:
    own = {"user": "joe", "vhost": "/", "configure": "^joe", "write": ".*", "read": ""}
    topic = {"user": "joe", "vhost": "/", "exchange": "t", "write": "^a", "read": "^b"}
    records, listed = read(
        permissions=[own, {**own, "vhost": "other"}, {**own, "user": "eve", "read": "("}, {**own, "user": None}],
        topic_permissions=[topic],
    )
    assert records == {
        ("qstore.permission", ("joe", "/")): {"configure": "^joe", "write": ".*", "read": ""},
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
