"""The QMF console on a real broker: requests and answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.client import Connection, ConnectionClosedError, ContentError, Message
from qstore.broker.management.console import (
    AgentError,
    AgentInfo,
    Console,
    Data,
    Event,
    NoAgentError,
    NoAnswerError,
    NoObjectError,
    ObjectId,
    SchemaId,
    aio,
)
from qstore.formats.values import UINT32, TypedValue
from tests.broker.console.conftest import OddAgent, Said
from tests.support.running_broker import RunningBroker

WAITS = (0.2, 2.0, 20.0)  # for agents to answer: longer where none has, because the machine is busy

QUEUE = "org.apache.qpid.broker:queue:"


@pytest.fixture
def queue(console: Console) -> Any:
    console.call("broker", "create", type="queue", name="orders", properties={"qpid.max_count": 7})
    yield "orders"
    with contextlib.suppress(AgentError):
        console.call("broker", "delete", type="queue", name="orders")


def test_objects_of_a_class(console: Console, queue: str) -> None:
    names = [each["name"] for each in console.query("queue")]
    assert queue in names
    (found,) = console.query("queue", where=["eq", "name", ["quote", queue]])
    assert found.class_name == "queue"
    assert found.key == queue
    assert found["arguments"] == {"qpid.max_count": 7}
    assert found.get("absent", 3) == 3
    assert found.schema_id == SchemaId("org.apache.qpid.broker", "queue", False, found.schema_id.hash)
    assert found.created > 0
    assert found.deleted == 0


def test_a_console_that_is_not_open_reports_it(url: str) -> None:
    for console in (Console(url), Console("127.0.0.1:1")):
        with pytest.raises(ConnectionClosedError, match="the console is not open"):
            list(console.query("queue"))
        with pytest.raises(ConnectionClosedError, match="the console is not open"):
            console.call("broker", "echo")
        with pytest.raises(ConnectionClosedError, match="the console is not open"):
            console.agents()
    with Connection(url) as connection:
        borrowed = Console(connection)
        with pytest.raises(ConnectionClosedError, match="the console is not open"):
            borrowed.find("broker")
        borrowed.close()
        with borrowed:
            assert borrowed.find("broker")["name"] == "amqp-broker"


def test_values_have_their_types(console: Console, queue: str) -> None:
    found = console.find(f"queue:{queue}")
    types = {name: typed.type.name for name, typed in found.typed_values.entries}
    assert types.keys() == found.values.keys()
    assert types["name"].startswith("str")
    assert types["durable"] == "boolean"


def test_one_object_by_each_of_its_names(console: Console, queue: str) -> None:
    by_key = console.find(f"queue:{queue}")
    assert by_key.object_id is not None
    for target in (QUEUE + queue, ObjectId(QUEUE + queue), by_key, by_key.object_id):
        assert console.find(target).key == queue
    assert console.find("broker").class_name == "broker"
    with pytest.raises(NoObjectError, match="queue:nosuch"):
        console.find("queue:nosuch")


def test_conditions_that_are_none_are_refused(console: Console) -> None:
    with pytest.raises(ContentError, match="invalid condition"):
        list(console.query("queue", where=["nonsense"]))


def test_a_query_that_is_left_early_leaves_nothing_behind(console: Console) -> None:
    for _ in console.query(where=["true"]):
        break
    assert console.call("broker", "echo", sequence=1, body="b") == {"sequence": 1, "body": "b"}
    assert not console._core._requests


def test_methods(console: Console, queue: str) -> None:
    assert console.call("broker", "echo", sequence=TypedValue(UINT32, 3), body="x")["sequence"] == 3
    with pytest.raises(AgentError, match="already exists") as raised:
        console.call("broker", "create", type="queue", name=queue)
    assert raised.value.code == 4
    assert raised.value.values["error_code"] == 4
    with pytest.raises(AgentError):
        console.call(f"queue:{queue}", "nosuch")
    with Connection.establish(f"127.0.0.1:{console.connection._core.endpoint.port}") as connection:
        connection.session().sender(queue).send(Message("x"))
    console.call(f"queue:{queue}", "purge", request=0)
    assert console.find(f"queue:{queue}")["msgDepth"] == 0


def test_agents_and_schemas(console: Console) -> None:
    (agent,) = next(filter(None, map(console.agents, WAITS)))
    assert agent.name == f"{agent.vendor}:{agent.product}:{agent.instance}"
    assert console.find("broker", agent=agent.name)["name"]
    classes = console.classes("org.apache.qpid.broker")
    assert {"queue", "exchange", "broker", "bind"} <= {each.name for each in classes}
    assert console.classes("no.such.package") == []
    schema = console.schema("queue")
    properties = {each.name: each for each in schema.properties}
    assert properties["name"].is_index
    assert {"msgDepth", "byteDepth"} <= properties.keys()
    purge = next(each for each in schema.methods if each.name == "purge")
    assert purge.arguments[0].name == "request"
    assert console.schema(schema.id) == console.schema("org.apache.qpid.broker:queue") == schema
    assert {each.name for each in console.schema("queueDeclare").properties} >= {"qName", "user"}
    with pytest.raises(NoObjectError):
        console.schema("nosuch")


def test_schemas_by_version_1(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, schema = set(console.classes()), console.schema("queue")
    declared = console.schema("queueDeclare")

    async def refuse(*_: object) -> list[Any]:
        raise AgentError("not supported")

    monkeypatch.setattr("qstore.broker.management.console.core.ConsoleCore._items_of", refuse)
    assert set(console.classes()) == classes
    found = console.schema("queue")
    assert [each.name for each in found.properties] == [each.name for each in schema.properties]
    assert [each.is_statistic for each in found.properties] == [each.is_statistic for each in schema.properties]
    assert [each.name for each in found.methods] == [each.name for each in schema.methods]
    assert [each.name for each in console.schema("queueDeclare").properties] == [
        each.name for each in declared.properties
    ]
    with pytest.raises(AgentError):
        console.schema(SchemaId("no.such", "class"))


def test_binary_is_text(console: Console, odd_agent: Callable[..., OddAgent]) -> None:
    values = {"a": b"x", "b": [b"y", {"c": b"\xff"}]}
    agent = odd_agent(Said("_query_response", [{"_values": values}]))
    (found,) = console.query("c", agent=agent.name, where=["eq", "a", ["quote", "x"]])
    assert found.values == {"a": "x", "b": ["y", {"c": b"\xff"}]}


def test_events(console: Console) -> None:
    with console.indications(heartbeats=False) as indications:
        console.call("broker", "create", type="queue", name="seen")
        console.call("broker", "delete", type="queue", name="seen")
        found: list[Event] = []
        while len(found) < 2:
            event = indications.next(20)
            assert isinstance(event, Event)
            found += [event] if event.values.get("qName") == "seen" else []
    declared, deleted = found
    assert (declared.name, deleted.name) == ("queueDeclare", "queueDelete")
    assert declared.severity_name == "inform"
    assert declared.agent.startswith("apache.org:qpidd:")
    assert deleted.timestamp >= declared.timestamp > 0


def test_objects_that_have_changed(broker: RunningBroker) -> None:
    with Console(f"127.0.0.1:{broker.port}", timeout=20) as console:
        with console.indications(events=False, heartbeats=False, objects=True) as indications:
            console.call("broker", "create", type="queue", name="changed")
            while True:
                found = indications.next(20)
                assert isinstance(found, Data)
                if found.key == "changed":
                    break
        console.call("broker", "delete", type="queue", name="changed")
    assert found["name"] == "changed"


def test_events_until_none_comes(console: Console) -> None:
    events = console.events(timeout=0.2)
    assert all(event.name in ("bind", "subscribe") for event in events)
    with console.indications(events=False) as indications:
        assert indications.next(0) is None


def test_a_connection_of_the_caller_stays_open(url: str) -> None:
    with Connection(url) as connection:
        for _ in range(2):
            with Console(connection) as console:
                assert console.find("broker")
            assert connection.is_open


def test_missing_answer_raises_after_the_timeout(console: Console) -> None:
    with pytest.raises(NoAnswerError, match=r"no answer from the agent nobody within 0\.1 seconds"):
        console.call("broker", "echo", agent="nobody", timeout=0.1)


def test_a_broker_without_management(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.management.console.core.DIRECT", "qmf.absent")
    console = Console(url)
    with pytest.raises(NoAgentError, match="management by QMF version 2 is switched off"):
        console.open()
    assert not console.connection.is_open


async def test_the_same_calls_for_asyncio(url: str) -> None:
    async with aio.Console(url, timeout=20) as console:
        assert [each["name"] async for each in console.query("broker")] == [(await console.find("broker"))["name"]]
        calls = (console.call("broker", "echo", sequence=number, body="x") for number in range(50))
        assert [each["sequence"] for each in await asyncio.gather(*calls)] == list(range(50))
        found: list[AgentInfo] = []
        for seconds in WAITS:
            found = found or await console.agents(seconds)
        (agent,) = found
        assert {each.name for each in await console.classes(agent=agent.name)} >= {"queue"}
        assert (await console.schema("exchange")).methods == ()
        assert {event.name async for event in console.events(timeout=0.1)} <= {"bind", "subscribe"}
        with pytest.raises(AgentError):
            await console.call("broker", "delete", type="queue", name="nosuch")
    async with aio.Connection(url) as connection:
        async with aio.Console(connection) as console:
            assert await console.find("broker")
        assert connection.is_open
    with pytest.raises(NoAnswerError):
        async with aio.Console(url, timeout=0.1) as console:
            await console.find("x.y:z:w", agent="nobody")


SCHEMA_ID = {"_package_name": "p", "_class_name": "c", "_type": "_data"}


def test_another_agent_is_asked_by_its_own_names(console: Console, odd_agent: Callable[..., OddAgent]) -> None:
    data = {"_values": {"a": 1}, "_object_id": {"_object_name": "n", "_agent_epoch": 2}, "_schema_id": SCHEMA_ID}
    agent = odd_agent(Said("_query_response", [data], {"partial": None}), Said("_query_response", [data]))
    first, second = console.query("c", package="p", agent=agent.name)
    assert first.object_id == ObjectId("n", "", 2)
    assert (first["a"], second["a"], first.key) == (1, 1, "n")
    assert agent.requests[0].content["_schema_id"] == {"_package_name": "p", "_class_name": "c"}
    assert agent.requests[0].properties["qmf.opcode"] == "_query_request"


@pytest.mark.parametrize(
    "schema",
    [
        {
            "_schema_id": SCHEMA_ID,
            "_properties": [{"_name": "a", "_type": "TYPE_INT", "_access": "RO", "_unit": "octet", "_index": True}],
            "_methods": [
                {"_name": "m", "_desc": "d", "_arguments": [{"_name": "x", "_type": "TYPE_STRING", "_dir": "I"}]}
            ],
        },
        {
            "_schema_id": SCHEMA_ID,
            "_values": {
                "a": {"_type": "TYPE_INT", "_access": "RO", "_unit": "octet", "_index": True},
                "m": {"_desc": "d", "_arguments": {"x": {"_type": "TYPE_STRING", "_dir": "I"}}},
            },
            "_subtypes": {"a": "qmfProperty", "m": "qmfMethod"},
        },
    ],
)
def test_schemas_in_both_forms(console: Console, odd_agent: Callable[..., OddAgent], schema: dict[str, Any]) -> None:
    agent = odd_agent(Said("_query_response", [schema]))
    found = console.schema(SchemaId("p", "c"), agent=agent.name)
    (prop,) = found.properties
    assert (prop.name, prop.type, prop.access, prop.unit, prop.is_index) == ("a", "int", "RO", "octet", True)
    (method,) = found.methods
    assert (method.name, method.description) == ("m", "d")
    assert [(each.name, each.type, each.direction) for each in method.arguments] == [("x", "string", "I")]


# ---- subscriptions ----


def test_a_subscription_has_the_objects_and_what_changes(console: Console, queue: str, url: str) -> None:
    with console.subscribe("queue", where=["eq", "name", ["quote", queue]], interval=1) as changes:
        first = changes.next(60)
        assert first is not None
        assert (first["name"], first["msgDepth"]) == (queue, 0)
        assert changes.next(1.5) is None
        with Connection.establish(url) as connection:
            connection.session().sender(queue).send(Message("x"))
        changed = changes.next(60)
        assert changed is not None
        assert changed["msgDepth"] == 1
        console.call("broker", "delete", type="queue", name=queue)
        while True:
            gone = changes.next(60)
            assert gone is not None
            if gone.deleted:
                break
        assert gone.key == queue
    assert not console._core._requests


@pytest.mark.replaces
def test_a_subscription_is_refreshed(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.broker.management.console.core._DURATION", 10)
    sent: list[str] = []
    send = console._core.send

    async def noted(opcode: str, *args: Any, **more: Any) -> Any:
        sent.append(opcode)
        return await send(opcode, *args, **more)

    console._core.send = noted  # type: ignore[method-assign]
    with console.subscribe("broker", interval=3600) as changes:
        assert changes.next(60) is not None
        changes._source._refresh_at = 0.0  # type: ignore[attr-defined]
        assert changes.next(0.2) is None
        assert changes._source._refresh_at > 0
    assert sent == ["_subscribe_request", "_subscribe_refresh_indication", "_subscribe_cancel_indication"]


def test_a_subscription_that_is_refused(console: Console) -> None:
    with pytest.raises(AgentError, match="at most 16,384 bytes"):
        console.subscribe("x" * 20_000)
    with pytest.raises(ContentError, match="invalid condition"):
        console.subscribe("queue", where=["nonsense"])
    assert not console._core._requests


def test_a_subscription_for_asyncio(url: str) -> None:
    async def scene() -> None:
        async with aio.Console(url, timeout=20) as console:
            found = [each async for each in console.subscribe("broker", interval=3600, timeout=0.5)]
            assert [each["name"] for each in found] == ["amqp-broker"]

    asyncio.run(scene())
