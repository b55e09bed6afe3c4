"""Policies of RabbitMQ's definitions: what a queue or an exchange has of them, and what is listed."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.client import Connection, Message
from qstore.formats.broker_records.topology import Exchange, Queue
from qstore.tools.interchange import definitions
from qstore.tools.interchange.definitions import DefinitionOptions, Unmapped, read_definitions
from qstore.tools.interchange.items import InterchangeError
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.interchange_runs import bring
from tests.tools.test_interchange_broker import drained

__all__ = ["make_broker"]

Fields = dict[str, Any]


class _Sink:
    """Keeps what was read."""

    def __init__(self) -> None:
        self.queues: dict[str, Fields] = {}
        self.alternates: dict[str, str] = {}

    def queue(self, queue: Queue) -> None:
        self.queues[queue.name] = {name: typed.value for name, typed in queue.arguments.entries}

    def exchange(self, exchange: Exchange) -> None:
        self.alternates[exchange.name] = exchange.alternate_exchange or ""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def policy(name: str, pattern: str, definition: Fields, **more: Any) -> Fields:
    named = {key.replace("_", "-"): value for key, value in more.items()}
    return {"vhost": "/", "name": name, "pattern": pattern, "definition": definition} | named


def read(given: list[Fields], queues: dict[str, Fields], *operator: Fields) -> tuple[_Sink, list[str]]:
    """What these policies make of these queues and of an exchange `events`; and what is listed."""
    fields = {
        "policies": given,
        "operator_policies": list(operator),
        "queues": [{"name": name, "durable": True, "arguments": each} for name, each in queues.items()],
        "exchanges": [{"name": "events", "type": "topic", "durable": True, "arguments": {}}],
    }
    sink, unmapped = _Sink(), Unmapped()
    read_definitions(BytesIO(json.dumps(fields).encode()), sink, DefinitionOptions(None, unmapped))
    return sink, unmapped


def arguments(given: list[Fields], declared: Fields, *operator: Fields) -> Fields:
    """Those of a queue `orders.eu`."""
    return read(given, {"orders.eu": declared}, *operator)[0].queues["orders.eu"]


def test_every_key() -> None:
    every = {
        "message-ttl": 5, "expires": 6, "max-length": 7, "max-length-bytes": 8, "overflow": "reject-publish",
        "dead-letter-exchange": "dead", "dead-letter-routing-key": "k", "queue-mode": "lazy",
    }  # fmt: skip
    sink, listed = read([policy("all", "^orders", every)], {"orders.eu": {}})
    assert sink.queues["orders.eu"] == {
        "x-message-ttl": 5, "x-expires": 6, "x-max-length": 7, "x-max-length-bytes": 8, "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "k",
    }  # fmt: skip
    assert listed == ['policy "all": its known settings apply to 1 queue, and not to those declared later']


@pytest.mark.parametrize(
    ("pattern", "is_found"),
    [("orders", True), ("^orders", True), ("eu$", True), ("^eu", False), (r"\.(eu|us)", True), ("", True),
     ("(?i)ORDERS", True), ("ORDERS", False), ("^(?!orders)", False), (r"^[[:alpha:]]+\.", True), ("o++r", True)],
)  # fmt: skip
def test_patterns_are_searched(pattern: str, is_found: bool) -> None:
    found = arguments([policy("p", pattern, {"message-ttl": 5})], {})
    assert found == ({"x-message-ttl": 5} if is_found else {})


@pytest.mark.parametrize(
    ("applies_to", "declared", "is_set"),
    [("all", {}, True), ("queues", {}, True), ("exchanges", {}, False), ("classic_queues", {}, True),
     ("quorum_queues", {}, False), ("quorum_queues", {"x-queue-type": "quorum"}, True), ("nonsense", {}, False),
     ("classic_queues", {"x-queue-type": "quorum"}, False), ("streams", {"x-queue-type": "stream"}, True)],
)  # fmt: skip
def test_kinds_of_queues(applies_to: str, declared: Fields, is_set: bool) -> None:
    found = arguments([policy("p", "", {"message-ttl": 5}, apply_to=applies_to)], declared)
    kept = {} if declared.get("x-queue-type") == "stream" else declared
    assert found == kept | ({"x-message-ttl": 5} if is_set else {})


def test_only_that_with_the_highest_priority_counts() -> None:
    given = [
        policy("low", "", {"message-ttl": 1, "expires": 1}),
        policy("high", "", {"message-ttl": 9}, priority=2),
        policy("higher", "^other", {"message-ttl": 3}, priority=3),
    ]
    sink, listed = read(given, {"orders.eu": {}, "other": {}})
    assert sink.queues == {"orders.eu": {"x-message-ttl": 9}, "other": {"x-message-ttl": 3}}
    assert listed[-1] == 'policy "low": it is set for nothing: it is left out'


def test_policy_and_declared_arguments_are_merged() -> None:
    given = [
        policy("p", "", {"message-ttl": 5, "max-length": 50, "dead-letter-exchange": "a", "overflow": "drop-head"})
    ]
    declared = {"x-message-ttl": 9, "x-max-length": 10, "x-dead-letter-exchange": "b", "x-overflow": "reject-publish"}
    assert arguments(given, declared) == {
        "x-message-ttl": 5, "x-max-length": 10, "x-overflow": "reject-publish", "x-dead-letter-exchange": "b",
    }  # fmt: skip


def test_the_operators_policy_is_one_more() -> None:
    given = [policy("p", "", {"message-ttl": 5, "max-length": 50})]
    limits = policy("limits", "^orders", {"message-ttl": 9, "max-length": 20, "expires": 7}, apply_to="queues")
    assert arguments(given, {}, limits) == {
        "x-message-ttl": 5, "x-max-length": 20, "x-expires": 7
    }  # fmt: skip
    listed = read(given, {"q": {}}, limits)[1]
    assert listed[-1] == 'operator policy "limits": it is set for nothing: it is left out'


def test_exchanges() -> None:
    sink, listed = read([policy("ae", "^events$", {"alternate-exchange": "dead", "message-ttl": 5})], {"events": {}})
    assert (sink.alternates, sink.queues) == ({"events": "dead"}, {"events": {"x-message-ttl": 5}})
    assert "apply to 1 queue and 1 exchange, and not to those" in listed[-1]


def test_unusable_policies_are_listed() -> None:
    given = [
        policy("ha", "", {"ha-mode": "exactly", "ha-params": 2}),
        policy("bad", "(", {"message-ttl": 5}),
        policy("number", "", {"message-ttl": 5}, priority="high"),
        policy("none", "", 5),  # type: ignore[arg-type]
        policy("odd", "orders", {"message-ttl": "soon"}, priority=1),
        policy("far", "", {"message-ttl": 5}) | {"vhost": "other"},
    ]
    sink, listed = read(given, {"orders.eu": {}})
    assert sink.queues == {"orders.eu": {}}
    for text in (
        'policy "ha": ha-mode exactly is not known',
        'policy "ha": ha-params 2 is not known',
        'policy "ha": it is set for nothing: it is left out',
        'policy "bad": its pattern is no regular expression (missing ) at position 1): it is left out',
        'policy "number": its priority or apply-to is not known: it is left out',
        'policy "none": it has no name, pattern or definition: it is left out',
        'queue "orders.eu": x-message-ttl soon is not known',
        "policies: 1 of other virtual hosts",
    ):
        assert text in listed


@pytest.mark.parametrize(("key", "value"), [("policies", 5), ("policies", [5]), ("operator_policies", {"a": 1})])
def test_lists_that_are_none(key: str, value: object) -> None:
    content = json.dumps({"queues": [], key: value}).encode()
    with pytest.raises(InterchangeError, match=key):
        read_definitions(BytesIO(content), _Sink(), DefinitionOptions(None, Unmapped()))


def test_a_pattern_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_SECONDS", 0.05)
    with pytest.raises(InterchangeError, match='policy "slow": its pattern takes too long'):
        read([policy("slow", "^(a|aa|a?)+$", {"message-ttl": 5})], {"a" * 200 + "b": {}})


@pytest.mark.parametrize(
    ("pattern", "is_left_out"),
    [
        ("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", False),
        ("^(a{2}){3}(b{2}){4}$", False),
        ("(?:a{1000}){1000}", True),
        ("(((((a{30}){30}){30}){30}){30}){30}", True),
        ("(?x)(((a{30}) {30}) {30})", True),
        ("(((a{30})(?#x){30})(?#x){30})", True),
        ("a{99999999999999999999}", True),
        ("(?V1x)(((a{30}) {30}) {30})", True),
        ("(?R)", True),
        ("(a(?1))", True),
        ("(?<n>a(?&n))", True),
        ("a" * 1001, True),
    ],
)
def test_patterns_that_take_much_memory(pattern: str, is_left_out: bool) -> None:
    """They are not even compiled."""
    listed = read([policy("p", pattern, {"message-ttl": 5})], {"q": {}})[1]
    text = "its pattern is too long, repetitive or recursive: it is left out"
    assert (listed == [f'policy "p": {text}']) is is_left_out


def test_in_a_broker(tmp_path: Path, make_broker: BrokerMaker) -> None:
    """A limit that comes from a policy is one."""
    broker = make_broker().start()
    queue = {"name": "few", "vhost": "/", "durable": True, "arguments": {}}
    fields = {"queues": [queue], "policies": [policy("limit", "^few$", {"max-length": 2})]}
    (tmp_path / "definitions.json").write_text(json.dumps(fields))
    url = f"amqp://127.0.0.1:{broker.port}"
    result = bring(tmp_path / "definitions.json", url)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert 'policy "limit": its known settings apply to 1 queue' in result.stderr
    assert bring(tmp_path / "definitions.json", tmp_path / "store", "--strict").exit_code == 2
    with Connection(url.removeprefix("amqp://")) as connection:
        sender = connection.session().sender("few")
        for text in "abc":
            sender.send(Message(text, durable=True))
    assert [message.content for message in drained(url, "few")] == ["b", "c"]
