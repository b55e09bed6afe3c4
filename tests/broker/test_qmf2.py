"""QMF version 2 at a broker: schemas, conditions, what is published, and types on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.management.classes import CLASSES
from qstore.broker.management.events import EVENT_CLASSES
from qstore.broker.management.outbox import DIRECT, TOPIC
from qstore.broker.model.memory import MemoryCeiling
from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.structs import ReplyTo
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.values import MAX_VALUES, typed_map
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console, pass_time, take

PACKAGE = "org.apache.qpid.broker"


async def ask(console: Console, what: str, **query: Any) -> list[Any]:
    """The elements of all replies to a query."""
    replies = await console.ask("_query_request", {"_what": what, **query})
    assert {each.headers["qmf.opcode"] for each in replies} == {"_query_response"}, replies
    return [each for reply in replies for each in reply.content]


def test_ids_of_all_classes_and_of_one() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        found = await ask(console, "SCHEMA_ID")
        assert len(found) == len(CLASSES) + len(EVENT_CLASSES)
        (queue,) = await ask(console, "SCHEMA_ID", _schema_id={"_class_name": "Queue"})
        assert (queue["_package_name"], queue["_class_name"], queue["_type"]) == (PACKAGE, "queue", "_data")
        found = await ask(console, "SCHEMA_ID", _where=["eq", "_type", ["quote", "_event"]])
        assert len(found) == len(EVENT_CLASSES)
        found = await ask(console, "SCHEMA_ID", _schema_id={"_package_name": "org.apache.qpid.ha"})
        assert {each["_class_name"] for each in found} == {"haBroker", "membersUpdate"}

    play_with_console(scene)


def test_schemas() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        (schema,) = await ask(console, "SCHEMA", _schema_id={"_class_name": "queue", "_package_name": PACKAGE})
        properties = {each["_name"]: each for each in schema["_properties"]}
        assert properties["name"] == {
            "_name": "name", "_type": "TYPE_STRING", "_subtype": "sstr", "_access": "RC", "_index": True,
            "_optional": False,
        }  # fmt: skip
        assert properties["vhostRef"]["_references"] == "Vhost"
        assert (properties["msgDepth"]["_subtype"], properties["msgDepth"]["_unit"]) == ("uint64", "message")
        assert "consumerCountHigh" in properties
        purge = schema["_methods"][0]
        assert (purge["_name"], [each["_name"] for each in purge["_arguments"]]) == ("purge", ["request", "filter"])
        assert purge["_arguments"][0]["_dir"] == "I"
        (event,) = await ask(console, "SCHEMA", _schema_id={"_class_name": "queueDelete"})
        assert [each["_name"] for each in event["_properties"]] == ["rhost", "user", "qName"]
        everything = await ask(console, "SCHEMA")
        assert len(everything) == len(CLASSES) + len(EVENT_CLASSES)

    play_with_console(scene)


CONDITIONS: list[tuple[list[Any], set[str]]] = [
    (["eq", "name", ["quote", "a1"]], {"a1"}),
    (["re_match", "name", ["quote", "^a"]], {"a1", "a2"}),
    (["and", ["eq", "_class_name", ["quote", "queue"]], ["gt", "msgDepth", 0]], {"a2"}),
    (["and", ["exists", "altExchange"], ["eq", "_class_name", ["quote", "queue"]]], {"a1"}),
    (["eq", "altExchange", ["quote", f"{PACKAGE}:exchange:amq.fanout"]], {"a1"}),
    (["false"], set()),
]


@pytest.mark.parametrize(("condition", "names"), CONDITIONS)
def test_objects_that_fulfil_a_condition(condition: list[Any], names: set[str]) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("a1", alternate="amq.fanout")
        await stage.topology.declare_queue("a2")
        await stage.publish("", "a2", b"1", persistent=False)
        console.events.purge()
        for query in ({"_schema_id": {"_class_name": "queue"}}, {}):
            found = await ask(console, "OBJECT", _where=condition, **query)
            assert {each["_values"]["name"] for each in found if "creator" in each["_values"]} == names
        found = await ask(console, "OBJECT_ID", _where=condition, _schema_id={"_class_name": "queue"})
        assert {each["_object_name"] for each in found} == {f"{PACKAGE}:queue:{name}" for name in names}

    play_with_console(scene)


def test_the_agent_is_located_by_a_condition() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for product, count in (("qpidd", 1), ("other", 0)):
            condition = ["eq", "_product", ["quote", product]]
            replies = await console.ask("_agent_locate_request", condition)
            assert [each.headers["qmf.opcode"] for each in replies] == ["_agent_locate_response"] * count
        (reply,) = await console.ask("_agent_locate_request", ["fly"])
        assert reply.headers["qmf.opcode"] == "_exception"
        (reply,) = await console.ask("_subscribe_everything", {})
        assert reply.values["error_code"] == 4

    play_with_console(scene)


def test_types_are_those_of_the_schema() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        console.send("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "broker"}})
        await console.settle()
        (entry,) = console.replies.available()
        body: Any = entry.message.body  # type: ignore[attr-defined]
        ((found,), _) = read_value(BY_NAME["list"], body, 0, len(body))
        described = dict(found.value.entries)
        types = {name: typed.type.name for name, typed in described["_values"].value.entries}
        expected = {
            "name": "str16", "systemRef": "map", "port": "uint16", "mgmtPublish": "boolean", "uptime": "uint64",
            "queueCount": "uint64", "stagingThreshold": "uint32",
        }  # fmt: skip
        assert {name: types[name] for name in expected} == expected
        assert described["_create_ts"].value == round(stage.broker.started_at * 1e9)

    play_with_console(scene)


# ---- what is published ----


def test_objects_are_published_when_they_change_and_end() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        async def later() -> list[dict[str, Any]]:
            pass_time(stage.broker, 10)
            console.agent.on_timer()
            await console.settle()
            replies = take(stage.broker.default_host.queues["data"])
            assert {each.headers["qmf.content"] for each in replies} <= {"_data"}
            assert all(each.key.startswith("agent.ind.data.org_apache_qpid_broker.queue.") for each in replies)
            return [each for reply in replies for each in reply.content if each["_values"]["name"] == "q"]

        await stage.topology.declare_queue("q")
        await stage.topology.declare_queue("data")
        await stage.topology.bind("data", TOPIC, "agent.ind.data.org_apache_qpid_broker.queue.#")
        (first,) = await later()
        assert first["_delete_ts"] == 0
        assert await later() == []
        await stage.publish("", "q", b"12345", persistent=False)
        (changed,) = await later()
        assert changed["_values"]["msgDepth"] == 1
        await stage.topology.delete_queue("q")
        (ended,) = await later()
        assert ended["_delete_ts"] > ended["_create_ts"] > 0
        assert await later() == []

    play_with_console(scene)


def test_high_and_low_marks_restart_with_each_interval() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q")
        for key in ("1", "2"):
            await stage.topology.bind("q", "amq.topic", key)
        await stage.topology.unbind("q", "amq.topic", "1")
        for expected in ((2, 3, 1), (2, 2, 2)):
            (found,) = await ask(console, "OBJECT", _object_id={"_object_name": f"{PACKAGE}:queue:q"})
            values = found["_values"]
            assert (values["bindingCount"], values["bindingCountHigh"], values["bindingCountLow"]) == expected
            pass_time(stage.broker, 10)
            console.agent.on_timer()
            await console.settle()

    play_with_console(scene)


def test_without_publications_objects_that_are_gone_are_forgotten_nevertheless() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        stage.broker.settings = stage.broker.settings._replace(management_publish=False)
        await stage.topology.declare_queue("q")
        await stage.topology.declare_queue("data")
        await stage.topology.bind("data", TOPIC, "agent.ind.data.#")
        assert len(await console.query("queue")) == 4
        registry: Any = console.agent._registry
        (of,) = (each for each in CLASSES if each.name == "queue")
        assert set(registry.of_class(of)) == set(stage.broker.default_host.queues)
        await stage.topology.delete_queue("q")
        pass_time(stage.broker, 10)
        console.agent.on_timer()
        await console.settle()
        assert set(registry.of_class(of)) == set(stage.broker.default_host.queues)
        assert take(stage.broker.default_host.queues["data"]) == []

    play_with_console(scene)


def test_a_console_that_does_not_read_costs_its_queue_only() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("deaf", arguments=typed_map({"qpid.max_count": 3}))
        await stage.topology.bind("deaf", DIRECT, "deaf")
        await stage.topology.bind("deaf", TOPIC, "#")
        query = {"_what": "OBJECT", "_schema_id": {"_class_name": "exchange"}}
        for _ in range(10):
            console.send("_query_request", query, reply_to=ReplyTo(DIRECT, "deaf"))
        await console.settle()
        assert stage.broker.default_host.queues["deaf"].message_count == 3
        assert console.agent._outbox.lost >= 7
        assert len(await console.query("broker")) == 1

    play_with_console(scene)


def test_full_broker_drops_its_answers() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        ample = stage.broker.memory
        stage.broker.memory = MemoryCeiling(1, lambda: 1, lambda: 1)
        stage.broker.memory.count()
        assert await console.ask("_agent_locate_request", {}) == []
        stage.broker.memory = ample
        assert len(await console.ask("_agent_locate_request", {})) == 1

    play_with_console(scene)


def test_a_request_of_too_many_values_is_refused() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for values, is_refused in ((MAX_VALUES - 100, False), (MAX_VALUES, True)):
            (reply,) = await console.ask("_query_request", {"_what": "SCHEMA_ID", "_where": ["or"] + [True] * values})
            opcode = reply.headers["qmf.opcode"]
            assert opcode == "_exception"
            assert ("more than 4,096 values" in reply.content["_values"]["error_text"]) is is_refused

    play_with_console(scene)
