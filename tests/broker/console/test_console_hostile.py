"""Agents and brokers that send a console malformed or endless data: it ends with an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.client import ConnectionFailedError, Message
from qstore.broker.management.console import (
    AgentError,
    AgentInfo,
    AnswerError,
    Console,
    Event,
    ManagementError,
    NoAnswerError,
)
from qstore.broker.management.console.schema import MAX_ELEMENTS, read_replies, read_schema, sequence_of
from qstore.broker.management.console.values import (
    read_agent,
    read_data,
    read_event,
    read_exception,
    read_object_id,
    read_schema_id,
)
from tests.broker.console.conftest import OddAgent, Said
from tests.support.profiles import examples

RESPONSE = "_query_response"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Said(RESPONSE, b"\xff\xff\xff\xff", content_type="amqp/list"), "is not a list"),
        (Said(RESPONSE, {"a": 1}), "is not a list"),
        (Said(RESPONSE, [1]), "an object must be a map"),
        (Said(RESPONSE, [{}]), "an object's values must be a map"),
        (Said(RESPONSE, [{"_values": {}, "_object_id": 3}]), "identity must be a map"),
        (Said(RESPONSE, [{"_values": {}, "_object_id": {"_object_name": 3}}]), "_object_name must be a string"),
        (Said(RESPONSE, [{"_values": {}, "_create_ts": "now"}]), "_create_ts must be an integer"),
        (Said("_method_response", {}), "instead of _query_response"),
        (Said("", []), "instead of _query_response"),
        (Said("_exception", []), "must be a map"),
        (Said("_exception", b"\0", content_type="amqp/map"), "invalid map"),
    ],
)
def test_a_malformed_answer(console: Console, odd_agent: Callable[..., OddAgent], answer: Said, expected: str) -> None:
    agent = odd_agent(answer)
    with pytest.raises(AnswerError, match=expected):
        list(console.query("queue", agent=agent.name))
    assert console.find("broker")


def test_an_agent_that_grants_no_time_is_not_refreshed_without_end(
    console: Console, odd_agent: Callable[..., OddAgent]
) -> None:
    agent = odd_agent(Said("_subscribe_response", {"_subscription_id": "s", "_duration": 0}))
    with console.subscribe("queue", agent=agent.name) as changes:
        assert changes.next(0.5) is None
    console.agents(0.3)
    opcodes = [each.properties["qmf.opcode"] for each in agent.requests]
    assert opcodes.count("_subscribe_refresh_indication") == 0


def test_an_exception_without_words(console: Console, odd_agent: Callable[..., OddAgent]) -> None:
    agent = odd_agent(Said("_exception", {"_values": {"reason": "a\x1b[2Jb"}}))
    with pytest.raises(AgentError, match=r"^reason: a\\x1b\[2Jb$"):
        console.call("x.y:z:w", "m", agent=agent.name)


def test_an_answer_without_end(
    console: Console, odd_agent: Callable[..., OddAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.broker.management.console.core.MAX_OBJECTS", 10)
    agent = odd_agent(*[Said(RESPONSE, [{"_values": {}}] * 3, {"partial": None})] * 5)
    with pytest.raises(AnswerError, match="more than 10 objects"):
        list(console.query("queue", agent=agent.name))
    assert console.find("broker")


def test_classes_without_end(
    console: Console, odd_agent: Callable[..., OddAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.broker.management.console.core.MAX_CLASSES", 5)
    agent = odd_agent(*[Said(RESPONSE, [{"_class_name": "c"}] * 3, {"partial": None})] * 3)
    with pytest.raises(AnswerError, match="more than 5 classes"):
        console.classes(agent=agent.name)


def test_unfetched_answers_are_bounded(
    console: Console, odd_agent: Callable[..., OddAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.broker.management.console.core.MAX_WAITING", 1000)
    agent = odd_agent(*[Said(RESPONSE, [{"_values": {"a": "x" * 300}}], {"partial": None})] * 9)
    query = console.query("queue", agent=agent.name)
    next(query)
    with pytest.raises(NoAnswerError):
        console.call("broker", "echo", agent="nobody", timeout=0.5)
    with pytest.raises(AnswerError, match="were not fetched"):
        list(query)
    monkeypatch.undo()
    assert console.find("broker")


def test_an_answer_that_is_too_large(url: str, odd_agent: Callable[..., OddAgent]) -> None:
    agent = odd_agent(Said(RESPONSE, [{"_values": {"a": "x" * 60_000}}] * 4))
    console = Console(url, timeout=20, max_message_bytes=100_000)
    with pytest.raises(ConnectionFailedError), console:
        list(console.query("queue", agent=agent.name))
    assert not console.connection.is_open


def test_indications_that_are_none(console: Console, url: str) -> None:
    headers = {"qmf.opcode": "_data_indication", "qmf.content": "_event"}
    good = [{"_schema_id": {"_class_name": "c"}, "_values": {"a": 1}, "_severity": 99}]
    with console.indications() as indications:
        sender = console.connection.session().sender("qmf.default.topic; {node: {type: topic}}")
        for content in ([3], good, {"a": 1}):
            sender.send(Message(content, subject="agent.ind.event.x", properties=headers))
        sender.send(Message("hello", subject="agent.ind.event.x"))
        sender.send(
            Message({}, subject="agent.ind.heartbeat.x", properties={"qmf.opcode": "_agent_heartbeat_indication"})
        )
        found: list[Any] = []
        while len(found) < 4:
            try:
                event = indications.next(20)
            except AnswerError as error:
                found.append(str(error))
            else:
                if isinstance(event, AgentInfo):
                    continue  # the broker's own heartbeat, which comes every ten seconds
                assert isinstance(event, Event)
                found += [] if event.agent else [event.severity_name]
    assert found == ["an event must be a map", "99", found[2], "an agent's values must be a map"]
    assert "is not a list" in found[2]


# ---- reading ----

_WORDS = """_values _object_id _schema_id _object_name _agent_name _agent_epoch _package_name _class_name _type _hash
_name _create_ts _severity _timestamp _subtypes _properties _methods _arguments _access _unit _desc _index error_text
error_code _dir _subtype a"""
_NAMES = st.sampled_from(sorted(_WORDS.split()))
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.uuids()
    | st.sampled_from(["_event", "_data", "qmfMethod", "TYPE_INT"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(_NAMES, _ANYTHING, max_size=8) | _ANYTHING)
@examples(600)
def test_anything_is_read_or_refused(value: object) -> None:
    for read in (read_data, read_agent, read_schema, read_exception, read_object_id, read_schema_id):
        try:
            repr(read(value))
        except AnswerError:
            continue
    with contextlib.suppress(AnswerError):
        assert isinstance(read_event(value, "").severity_name, str)


def test_a_schema_has_limits() -> None:
    many = [{"_name": "a"}] * (MAX_ELEMENTS + 1)
    with pytest.raises(AnswerError, match="elements, more than"):
        read_schema({"_schema_id": {"_class_name": "c"}, "_properties": many})


def _version_1_schema() -> bytes:
    of = b"\1\1p\1c" + bytes(16)
    prop = b"\0\0\0\x1c\0\0\0\2\4name\x95\0\1a\4type\x02\3" + b"\6access"
    return of + b"\0\1\0\0\0\1" + prop


@given(
    st.binary(max_size=80) | st.lists(st.integers(0, 255), max_size=8).map(lambda at: _version_1_schema() + bytes(at))
)
@examples(400)
def test_any_bytes_of_version_1_are_read_or_refused(content: bytes) -> None:
    for opcode in b"pqsz":
        try:
            repr(read_replies(b"AM2" + bytes([opcode]) + bytes(4) + content))
        except ManagementError:
            continue
    try:
        read_replies(content)
    except ManagementError:
        assert not content.startswith(b"AM2x")


def test_several_replies_in_one_message() -> None:
    package, end = b"AM2p\0\0\0\7\3a.b", b"AM2z\0\0\0\7\0\0\0\0\2OK"
    replies = read_replies(package + package + end + b"AM2?\0\0\0\0rest")
    assert replies == [("p", 7, "a.b"), ("p", 7, "a.b"), ("z", 7, (0, "OK"))]
    assert sequence_of(package) == 7
    assert sequence_of(b"AM3p\0\0\0\7") is None
    assert sequence_of(b"AM2p") is None
