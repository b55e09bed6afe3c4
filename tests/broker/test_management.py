"""The management agent: requests of every kind, what they do, and the events that consoles are sent."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management import managed_broker
from qstore.broker.management.agent import DIRECT, TOPIC
from qstore.broker.management.objects.details import QUEUE_HEAD_CLASS
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import NotAllowedError
from qstore.formats.values import typed_map
from tests.broker.wired_broker import Somebody, Wired, play_with_console
from tests.support.management_console import REPLIES, Console, pass_time, take

# ---- locate and query ----


@pytest.mark.parametrize(("exchange", "key"), [(DIRECT, "broker"), (TOPIC, "console.request.agent_locate")])
def test_the_agent_is_found(exchange: str, key: str) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        (reply,) = await console.ask("_agent_locate_request", {}, exchange=exchange, key=key)
        assert reply.headers["qmf.opcode"] == "_agent_locate_response"
        assert reply.values["_name"] == reply.headers["qmf.agent"] == console.agent.name
        assert console.agent.name.startswith("apache.org:qpidd:")
        (reply,) = await console.ask("_agent_locate_request", {}, key=console.agent.name)
        assert reply.correlation_id == b"2"

    play_with_console(scene)


def test_objects_of_a_class() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_exchange("x", "fanout", alternate="amq.fanout")
        await stage.topology.declare_queue("q", alternate="x")
        await stage.topology.bind("q", "x", "k")
        await stage.publish("x", "k", b"12345", persistent=False)
        (found,) = [each for each in await console.query("queue") if each["_values"]["name"] == "q"]
        assert found["_object_id"]["_object_name"] == "org.apache.qpid.broker:queue:q"
        assert found["_schema_id"]["_class_name"] == "queue"
        values = found["_values"]
        assert (values["msgDepth"], values["byteDepth"], values["bindingCount"], values["durable"]) == (1, 5, 2, False)
        assert values["altExchange"] == {"_object_name": "org.apache.qpid.broker:exchange:x"}
        (exchange,) = [each["_values"] for each in await console.query("Exchange") if each["_values"]["name"] == "x"]
        assert (exchange["type"], exchange["msgRoutes"]) == ("fanout", 1)
        bindings = [each["_values"] for each in await console.query("binding")]
        assert ("k", 1) in [(each["bindingKey"], each["msgMatched"]) for each in bindings]
        assert sum(each["bindingKey"] == "q" for each in bindings) == 1  # to the default exchange
        (broker,) = await console.query("broker")
        assert (broker["_values"]["version"], broker["_values"]["port"], broker["_values"]["queueCount"]) == (
            "1.2",
            5672,
            3,
        )
        for single in ("system", "vhost", "memory"):
            assert len(await console.query(single)) == 1
        assert await console.query("no such class") == []

    play_with_console(scene)


def test_each_object_is_found_by_its_name() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("a,b:c")
        await stage.topology.bind("a,b:c", "amq.topic", "#.x")
        for number in (1, 2):
            await stage.broker.default_host.exchange_bindings.bind(
                "amq.topic", "amq.direct", "k,", typed_map({"n": number})
            )
        bindings = [each["_values"] for each in await console.query("exchange_binding")]
        assert [(each["bindingKey"], each["arguments"]) for each in bindings] == [("k,", {"n": 1}), ("k,", {"n": 2})]
        assert bindings[0]["destinationRef"] == {"_object_name": "org.apache.qpid.broker:exchange:amq.direct"}
        for name in ("queue", "exchange", "binding", "exchange_binding", "broker", "system", "vhost", "memory"):
            for described in await console.query(name):
                content = {"_what": "OBJECT", "_object_id": described["_object_id"]}
                replies = await console.ask("_query_request", content)  # more than one, if the machine is slow
                found = [each["_object_id"] for reply in replies for each in reply.content]
                assert found == [described["_object_id"]]
        for name in ("org.apache.qpid.broker:queue:none", "org.apache.qpid.acl:acl:x", "", ":::", "x"):
            replies = await console.ask("_query_request", {"_what": "OBJECT", "_object_id": {"_object_name": name}})
            assert [each for reply in replies for each in reply.content] == []

    play_with_console(scene)


def test_a_long_reply_comes_in_portions_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        managed_broker, "PORTION_SECONDS", 0.0
    )  # each portion has taken long enough, however fast the machine

    async def scene(stage: Wired, console: Console) -> None:
        for number in range(100):
            await stage.topology.declare_queue(f"q{number}")
        console.send("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": "queue"}})
        iterations = 0
        while console.is_busy:
            await asyncio.sleep(0)
            iterations += 1
        assert iterations > 8
        names = [each["_values"]["name"] for reply in take(console.replies) for each in reply.content]
        assert sorted(names) == sorted(stage.broker.default_host.queues)

    play_with_console(scene)


# ---- methods ----


def test_objects_are_created_and_deleted() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        properties = {"auto-delete": True, "alternate-exchange": "amq.fanout", "qpid.max_count": 7}
        await console.do("create", type="queue", name="q", properties=properties, strict=True)
        queue = stage.broker.default_host.queues["q"]
        assert (queue.auto_delete, queue.durable, queue.alternate) == (
            True,
            False,
            stage.broker.default_host.exchanges["amq.fanout"],
        )
        assert queue.limit is not None
        assert queue.creator == "console@QPID"
        await console.do("create", type="exchange", name="x", properties={"exchange-type": "direct"}, strict=True)
        await console.do("create", type="binding", name="x/q/a/b", properties={})
        assert ("x", "q", "a/b") in stage.bindings()
        names = [reply.content[0]["_schema_id"]["_class_name"] for reply in take(console.events)]
        assert names == ["queueDeclare", "exchangeDeclare", "bind"]
        found = await console.do("query", type="queue", name="q")
        assert found["results"]["name"] == "q"
        await console.do("delete", type="binding", name="x/q/a/b")
        await console.do("delete", type="exchange", name="x", options={"if_unused": True})
        await console.do("delete", type="queue", name="q", options={"if_empty": True, "if_unused": True})
        assert not {"q"} & stage.broker.default_host.queues.keys()

    play_with_console(scene)


def test_a_durable_queue_is_stored_before_the_reply(tmp_path: Path) -> None:
    async def first(_stage: Wired, console: Console) -> None:
        await console.do("create", type="queue", name="q", properties={"durable": True})

    async def second(stage: Wired, _console: Console) -> None:
        assert stage.broker.default_host.queues["q"].durable

    play_with_console(first, tmp_path)
    play_with_console(second, tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("create", {"type": "queue", "name": REPLIES}, "Object already exists: replies"),
    ("create", {"type": "exchange", "name": "amq.direct"}, "Object already exists: amq.direct"),
    ("create", {"type": "queue", "name": "amq.q"}, "reserved"),
    ("create", {"type": "queue", "name": "q", "properties": {"colour": 1}, "strict": True}, "unknown property: colour"),
    ("create", {"type": "queue", "name": "q", "properties": {"qpid.max_count": "many"}}, "qpid.max_count"),
    (
        "create",
        {"type": "exchange", "name": "x", "properties": {"exchange-type": "none"}},
        "type not implemented: none",
    ),
    ("create", {"type": "binding", "name": "x"}, "EXCHANGE/QUEUE/KEY"),
    ("create", {"type": "binding", "name": "amq.topic/none/k"}, "none"),
    ("create", {"type": "link", "name": "x"}, "it has no network"),
    ("create", {"type": 7, "name": "x"}, "the argument type must be a string"),
    ("delete", {"type": "queue", "name": "none"}, "none"),
    ("delete", {"type": "exchange", "name": DIRECT}, "standard exchange"),
    ("delete", {"type": "session", "name": "x"}, "unknown object type: session"),
    ("query", {"type": "queue", "name": "none"}, "Object not found: none"),
    ("query", {"type": "none", "name": "none"}, "unknown object type: none"),
    ("queueMoveMessages", {"srcQueue": REPLIES, "destQueue": "none"}, "none"),
    ("queueMoveMessages", {"srcQueue": REPLIES, "destQueue": REPLIES}, "both source and destination"),
    (
        "queueMoveMessages",
        {"srcQueue": REPLIES, "destQueue": "events", "qty": -1},
        "the argument qty must be an integer",
    ),
    ("echo", {"sequence": "7"}, "the argument sequence must be an integer from 0"),
    ("setLogLevel", {"level": "info+"}, "the log of this broker cannot be changed"),
    ("fly", {}, "class broker has no method fly"),
    (
        "queueMoveMessages",
        {"srcQueue": REPLIES, "destQueue": "events", "fliter": {"filter_type": "header_match_str"}},
        "the method queueMoveMessages has no argument fliter",
    ),
    ("delete", {"type": "queue", "name": REPLIES, "options": {"ifUnused": True}}, "unknown option of delete: ifUnused"),
    ("delete", {"type": "link", "name": "l", "options": {"if_unused": True}}, "unknown option of delete: if_unused"),
    ("delete", {"type": "subscription", "name": "s", "options": {"x": 1}}, "unknown option of delete: x"),
    (
        "create",
        {"type": "binding", "name": f"amq.topic/{REPLIES}/k", "properties": {"colour": 1}, "strict": True},
        "unknown property: colour",
    ),
    ("create", {"type": "queue", "name": "a\0b"}, "its name contains the control character U+0000"),
    ("create", {"type": "queue", "name": "q" * 256}, "its name has 256 bytes, more than 255"),
    ("create", {"type": "exchange", "name": "x" * 300}, "its name has 300 bytes, more than 255"),
    ("create", {"type": "binding", "name": f"amq.topic/{REPLIES}/" + "k" * 256}, "has 256 bytes, more than 255"),
    ("create", {"type": "exchange_binding", "name": "amq.topic/amq.fanout/" + "k" * 256}, "has 256 bytes, more than"),
]


@pytest.mark.parametrize(("method", "arguments", "reported"), REFUSED)
def test_failed_method_returns_an_exception(method: str, arguments: dict[str, Any], reported: str) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        before = stage.broker.default_host.queues.keys() | stage.broker.default_host.exchanges.keys()
        reply = await console.call(method, **arguments)
        assert reply.headers["qmf.opcode"] == "_exception"
        assert reported in reply.values["error_text"]
        assert stage.broker.default_host.queues.keys() | stage.broker.default_host.exchanges.keys() == before

    play_with_console(scene)


async def fill(stage: Wired, *names: str, **options: Any) -> None:
    for name in names:
        await stage.topology.declare_queue(name, **options)


def test_messages_are_moved_rerouted_and_purged(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a", "b", durable=True)
        await stage.publish("", "a", *(b"%d" % number for number in range(10)))
        await console.do("queueMoveMessages", srcQueue="a", destQueue="b", qty=3)
        assert (stage.bodies("a")[0], stage.bodies("b")) == (b"3", [b"0", b"1", b"2"])
        await stage.topology.bind("b", "amq.fanout", "")
        await console.do("reroute", "queue:a", request=2, useAltExchange=False, exchange="amq.fanout")
        assert stage.bodies("b") == [b"0", b"1", b"2", b"3", b"4"]
        assert stage.broker.default_host.queues["a"].totals.rerouted == 5
        await console.do("purge", "queue:a", request=4)
        assert stage.bodies("a") == [b"9"]
        reply = await console.call("reroute", "queue:a", request=0, useAltExchange=True)
        assert reply.values["error_text"] == 'queue "a" has no alternate exchange'
        await console.do("queueMoveMessages", srcQueue="a", destQueue="b", qty=0)
        assert stage.bodies("b")[-1] == b"9"

    async def after(stage: Wired, _console: Console) -> None:
        assert (stage.bodies("a"), stage.bodies("b")) == ([], [b"0", b"1", b"2", b"3", b"4", b"9"])

    play_with_console(scene, tmp_path)
    play_with_console(after, tmp_path)


def test_a_filter_chooses_by_a_header() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a", "b")
        for number in range(6):
            message = stage.message("a", b"%d" % number, persistent=False)
            message.numbers = {"group": f"g{number % 2}"}
            stage.broker.router.publish(message, stage.broker.default_host.exchanges[""])
        chosen = {"filter_type": "header_match_str", "filter_params": {"header_key": "group", "header_value": "g1"}}
        await console.do("queueMoveMessages", srcQueue="a", destQueue="b", qty=2, filter=chosen)
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"0", b"2", b"4", b"5"], [b"1", b"3"])
        await console.do("purge", "queue:a", request=0, filter=chosen)
        assert stage.bodies("a") == [b"0", b"2", b"4"]
        reply = await console.call("purge", "queue:a", request=0, filter={"filter_type": "size"})
        assert "header_match_str" in reply.values["error_text"]

    play_with_console(scene)


def test_others_take_messages_while_many_are_moved() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a", "b")
        await stage.publish("", "a", *(b"%d" % number for number in range(1000)), persistent=False)
        console.send(
            "_method_request",
            {
                "_object_id": {"_object_name": "org.apache.qpid.broker:broker:amqp-broker"},
                "_method_name": "queueMoveMessages",
                "_arguments": {"srcQueue": "a", "destQueue": "b", "qty": 0},
            },
        )
        queue = stage.broker.default_host.queues["a"]
        while console.is_busy:
            await asyncio.sleep(0)
            for entry in list(islice(queue.available(), 3)):  # those that would be moved next
                queue.acquire(entry, is_consumed=True)
                queue.dequeue(entry)
        (reply,) = take(console.replies)
        assert reply.headers["qmf.opcode"] == "_method_response"
        assert stage.bodies("a") == []
        assert 0 < len(stage.bodies("b")) < 1000
        await console.do("purge", "queue:b")
        assert stage.broker.default_host.queues["b"].is_empty

    play_with_console(scene)


def test_messages_that_do_not_fit_stay() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a")
        await console.do("create", type="queue", name="b", properties={"qpid.max_count": 2})
        await stage.publish("", "a", b"1", b"2", b"3", persistent=False)
        reply = await console.call("queueMoveMessages", srcQueue="a", destQueue="b", qty=0)
        assert "Maximum depth exceeded" in reply.values["error_text"]
        assert (stage.bodies("a"), stage.bodies("b")) == ([b"3"], [b"1", b"2"])

    play_with_console(scene)


def test_queues_that_are_exclusive_are_managed_nevertheless() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a", exclusive=True, caller=Somebody())
        await fill(stage, "b")
        await stage.publish("", "a", b"1", b"2", persistent=False)
        await console.do("queueMoveMessages", srcQueue="a", destQueue="b", qty=1)
        await console.do("purge", "queue:a")
        assert (stage.bodies("a"), stage.bodies("b")) == ([], [b"1"])

    play_with_console(scene)


def test_groups_of_a_queue_and_their_owners() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        properties = {"qpid.group_header_key": "group", "qpid.shared_msg_group": 1}
        await console.do("create", type="queue", name="q", properties=properties)
        for number in range(5):
            message = stage.message("q", b"%d" % number, persistent=False)
            message.numbers = {"group": f"g{number % 2}"}
            stage.broker.router.publish(message, stage.broker.default_host.exchanges[""])
        taker = await stage.consumer(stage.broker.default_host.queues["q"])
        assert len(taker.taken) == 1
        found = (await console.do("query", type="queue", name="q"))["results"]["qpid.message_group_queue"]
        assert found["group_header_key"] == "group"
        states = [(each["group_id"], each["msg_count"], bool(each["consumer"])) for each in found["group_state"]]
        assert states == [("g0", 3, True), ("g1", 2, False)]

    play_with_console(scene)


def test_timestamps_are_switched() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        assert await console.do("getTimestampConfig") == {"receive": False}
        await console.do("setTimestampConfig", receive=True)
        assert await console.do("getTimestampConfig") == {"receive": True}
        assert stage.broker.has_timestamps

    play_with_console(scene)


@pytest.mark.parametrize(
    ("method", "arguments", "code"),
    [
        ("delete", {"type": "queue", "name": "none"}, 4),
        ("create", {"type": "queue", "name": REPLIES}, 4),
        ("connect", {}, 3),
        ("delete", {"type": "exchange", "name": DIRECT}, 7),
    ],
)
def test_codes_of_exceptions(method: str, arguments: dict[str, Any], code: int) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        assert (await console.call(method, **arguments)).values["error_code"] == code

    play_with_console(scene)


def test_methods_are_authorized_as_their_caller() -> None:
    asked: list[tuple[str, Action, ObjectType, str]] = []

    class Authorizer:
        checks_publish = False

        def allows(self, caller: Any, action: Action, object_type: ObjectType, name: str, _properties: Any) -> bool:
            asked.append((caller.user, action, object_type, name))
            return object_type is ObjectType.METHOD

    async def scene(stage: Wired, console: Console) -> None:
        await fill(stage, "a", "b")
        await stage.publish("", "a", b"1", persistent=False)
        stage.broker.authorization.authorizer = Authorizer()  # type: ignore[assignment]
        for method, target, arguments in (
            ("create", "broker:amqp-broker", {"type": "queue", "name": "c"}),
            ("delete", "broker:amqp-broker", {"type": "queue", "name": "a"}),
            ("queueMoveMessages", "broker:amqp-broker", {"srcQueue": "a", "destQueue": "b"}),
            ("purge", "queue:a", {}),
            ("reroute", "queue:a", {"exchange": "amq.fanout"}),
        ):
            reply = await console.call(method, target, **arguments)
            assert "console@QPID is not allowed to" in reply.values["error_text"]
        assert stage.bodies("a") == [b"1"]
        assert {user for user, *_ in asked} == {"console@QPID"}
        assert [action for _, action, kind, *_ in asked if kind is not ObjectType.METHOD] == [
            Action.CREATE, Action.DELETE, Action.MOVE, Action.PURGE, Action.REROUTE,
        ]  # fmt: skip
        assert [(action, name) for _, action, kind, name, *_ in asked if kind is ObjectType.METHOD] == [
            (Action.ACCESS, each) for each in ("create", "delete", "queueMoveMessages", "purge", "reroute")
        ]

    play_with_console(scene)


# ---- events and heartbeats ----


def test_events_are_published_to_bound_consoles() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q", auto_delete=True)
        (event,) = take(console.events)
        (content,) = event.content
        assert event.headers["qmf.content"] == "_event"
        assert event.key.startswith("agent.ind.event.org_apache_qpid_broker.queueDeclare.info.apache_org.qpidd.")
        assert content["_severity"] == 6
        expected = {
            "qName": "q",
            "durable": False,
            "excl": False,
            "autoDel": True,
            "altEx": "",
            "args": {},
            "disp": "created",
        }
        assert content["_values"] == {"rhost": "", "user": "", **expected}
        await stage.topology.unbind("events", TOPIC, "agent.ind.event.#")
        take(console.events)
        await stage.topology.delete_queue("q")
        assert take(console.events) == []

    play_with_console(scene)


def test_events_of_the_queue_of_events_end() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        properties = {"qpid.alert_count": 1, "qpid.alert_repeat_gap": 0}
        await console.do("create", type="queue", name="loop", properties=properties)
        await console.do("create", type="binding", name=f"{TOPIC}/loop/agent.ind.event.#")
        await stage.topology.declare_queue("q")
        assert 2 <= stage.broker.default_host.queues["loop"].message_count < 10

    play_with_console(scene)


def test_heartbeats() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        console.agent.on_timer()
        await fill(stage, "beats")
        await stage.topology.bind("beats", TOPIC, "agent.ind.heartbeat.#")
        console.agent.on_timer()  # too soon
        assert take(stage.broker.default_host.queues["beats"]) == []
        pass_time(stage.broker, 10)
        console.agent.on_timer()
        queue = stage.broker.default_host.queues["beats"]
        (entry,) = queue.available()
        assert 19 < entry.message.expires_at - stage.broker.clock() <= 20
        (beat,) = take(queue)
        assert beat.headers["qmf.opcode"] == "_agent_heartbeat_indication"
        assert beat.values["_heartbeat_interval"] == 10

    play_with_console(scene)


# ---- hostile ----


def test_invalid_request_is_ignored() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        console.send(None, {})
        console.send("_query_request", {}, publisher=None)
        console.send("_method_request", {}, reply_to=None)
        await console.settle()
        assert take(console.replies) == []
        (reply,) = await console.ask("_fly_request", {})
        assert reply.values["error_text"] == "unknown opcode: _fly_request"
        for content in (
            {},
            {"_what": "FLY"},
            {"_what": "OBJECT"},
            {"_what": "OBJECT", "_schema_id": 7},
            {"_what": "OBJECT", "_schema_id": {}, "_where": 7},
            {"_what": "OBJECT", "_schema_id": {}, "_where": ["fly"]},
            b"\xff" * 9,
        ):
            (reply,) = await console.ask("_query_request", content)
            assert reply.headers["qmf.opcode"] == "_exception"
        for content in ({}, {"_object_id": {}}, {"_object_id": {}, "_method_name": "echo"}, {"_method_name": "echo"}):
            (reply,) = await console.ask("_method_request", content)
            assert reply.headers["qmf.opcode"] == "_exception"

    play_with_console(scene)


def test_too_many_requests_are_refused() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for _ in range(150):
            console.send("_agent_locate_request", {})
        await console.settle()
        opcodes = [reply.headers["qmf.opcode"] for reply in take(console.replies)]
        assert (opcodes.count("_exception"), opcodes.count("_agent_locate_response")) == (50, 100)
        (reply,) = await console.ask("_agent_locate_request", {})
        assert reply.headers["qmf.opcode"] == "_agent_locate_response"

    play_with_console(scene)


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=8), st.binary(max_size=8)
)
_CONTENT = st.recursive(_LEAVES, lambda inner: st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6)
_WORDS = st.sampled_from(
    ["_what", "_object_id", "_schema_id", "_method_name", "_arguments", "_object_name", "_class_name", "type", "name"]
)


@given(
    st.sampled_from(["_query_request", "_method_request", "_agent_locate_request"]),
    st.dictionaries(_WORDS, st.one_of(_CONTENT, st.dictionaries(_WORDS, _CONTENT, max_size=3)), max_size=5),
)
def test_any_request_is_answered(opcode: str, content: dict[str, Any]) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        replies = await console.ask(opcode, content)
        assert replies
        assert all(reply.headers["qmf.opcode"].startswith("_") for reply in replies)

    play_with_console(scene)


def test_heads_of_queues_are_looked_at_one_in_a_slice_if_they_take_long() -> None:
    """A header of thousands of values takes some 20 ms to decode, and publishers choose how many queues have one."""

    class Slices:
        is_over, count = True, 0

        async def next(self) -> None:
            self.count += 1

    async def scene(stage: Wired, console: Console) -> None:
        for number in range(30):
            await stage.topology.declare_queue(f"q{number}")
            await stage.publish("", f"q{number}", b"1", persistent=False)
        console.managed.slices = slices = Slices()  # type: ignore[assignment]
        assert QUEUE_HEAD_CLASS.prepare is not None
        await QUEUE_HEAD_CLASS.prepare(console.managed)
        assert slices.count >= 30

    play_with_console(scene)


def test_the_exchanges_of_the_agent_stay() -> None:
    async def scene(stage: Wired, _console: Console) -> None:
        for name in (DIRECT, TOPIC):
            with pytest.raises(NotAllowedError):
                await stage.topology.delete_exchange(name)

    play_with_console(scene)
