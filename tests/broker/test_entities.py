"""AMQP Management 1.0: the node `$management`, with requests and answers as messages of AMQP 1.0."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management import entities, managed_broker
from qstore.broker.management.classes import CLASSES
from qstore.broker.management.entities import KINDS
from qstore.broker.management.outbox import ENTITIES
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import NotAllowedError
from qstore.broker.model.message import CORRELATION_ID_HEADER, NewMessage, ReplyAddress
from qstore.broker.model.parameters import Parameter
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, new_sections
from qstore.broker.security.acl.control import control_access
from qstore.broker.security.users.user_file import Users
from qstore.broker.security.users.verifiers import Verifiers
from qstore.formats.amqp_1_0.neutral import value_of
from qstore.formats.amqp_1_0.sections import section_value
from qstore.formats.amqp_1_0.values import encode_value, plain_value
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map, typed_value
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import CONSOLE, REPLIES, Console

QUEUE, EXCHANGE = "org.apache.qpid.broker.queue", "org.apache.qpid.broker.exchange"
BINDING, BROKER = "org.apache.qpid.broker.binding", "org.apache.qpid.broker.broker"
POLICY, PARAMETER = "qstore.policy", "qstore.parameter"
_numbers = count(1)


class Answer(NamedTuple):
    status: int
    text: str
    body: Any


async def ask(
    console: Console,
    operation: str | None,
    body: Any = None,
    *,
    caller: object = CONSOLE,
    number: Any = None,
    **headers: Any,
) -> Answer:
    """Send a request; returns its answer."""
    message = request(operation, body, caller=caller, number=number, **headers)
    console.publish(message)
    await console.settle()
    (entry,) = console.replies.available()
    found = entry.message
    console.replies.purge()
    assert isinstance(found, SectionMessage)
    properties = plain_map(found.application_properties())
    own = message.properties()
    assert found.properties().correlation_id == (own.correlation_id or own.message_id)
    value = plain_value(section_value(bytes(found.body), (0, len(found.body))))
    return Answer(properties["statusCode"], properties["statusDescription"], value)


def request(
    operation: str | None, body: Any = None, *, caller: object = CONSOLE, number: Any = None, **headers: Any
) -> SectionMessage:
    correlation = next(_numbers) if number is None else number
    given = {"operation": operation, **headers, CORRELATION_ID_HEADER: correlation}
    new = NewMessage(
        "", typed_map({name: value for name, value in given.items() if value is not None}), exchange=ENTITIES,
        reply_to=ReplyAddress("", REPLIES),
    )  # fmt: skip
    message = new_sections(new, encode_value(value_of(typed_value(body))))
    message.handling = message.handling._replace(publisher=caller)
    return message


async def query(console: Console, entity_type: str | None, *names: str, **headers: Any) -> list[dict[str, Any]]:
    answer = await ask(
        console, "QUERY", {"attributeNames": list(names)}, entityType=entity_type, type="org.amqp.management",
        name="self", **headers,
    )  # fmt: skip
    assert answer.status == 200, answer
    if names:
        assert answer.body["attributeNames"] == list(names)
    return [dict(zip(answer.body["attributeNames"], row, strict=True)) for row in answer.body["results"]]


def test_queues_are_created_read_queried_and_deleted() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        attributes = {"autoDelete": True, "altExchange": "amq.fanout", "arguments": {"qpid.max_count": 7}}
        created = await ask(console, "CREATE", attributes, type=QUEUE, name="q")
        assert (created.status, created.text) == (201, "OK")
        assert (created.body["name"], created.body["type"], created.body["autoDelete"]) == ("q", QUEUE, True)
        assert created.body["altExchange"] == "org.apache.qpid.broker:exchange:amq.fanout"
        assert created.body["arguments"]["qpid.max_count"] == 7
        queue = stage.broker.default_host.queues["q"]
        assert queue.limit is not None
        await stage.publish("", "q", b"12345", persistent=False)
        for headers in ({"type": QUEUE, "name": "q"}, {"identity": created.body["identity"]}):
            read = await ask(console, "READ", **headers)
            assert (read.status, read.body["msgDepth"], read.body["byteDepth"]) == (200, 1, 5)
        found = await query(console, QUEUE, "name", "msgDepth", "type", "none")
        assert {"name": "q", "msgDepth": 1, "type": QUEUE, "none": None} in found
        assert (await ask(console, "CREATE", {}, type=QUEUE, name="q")).status == 409
        assert (await ask(console, "UPDATE", {"autoDelete": False}, type=QUEUE, name="q")).status == 501
        deleted = await ask(console, "DELETE", {"if_empty": True}, type=QUEUE, name="q")
        assert deleted.status == 500 or deleted.status == 409
        assert await ask(console, "DELETE", {}, type=QUEUE, name="q") == (204, "OK", {})
        assert "q" not in stage.broker.default_host.queues
        assert (await ask(console, "READ", type=QUEUE, name="q")).status == 404
        assert (await ask(console, "DELETE", identity=created.body["identity"])).status == 404

    play_with_console(scene)


def test_exchanges_and_bindings_by_name_and_by_identity() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        created = await ask(console, "CREATE", {"qpid-type": "direct", "type": EXCHANGE, "name": "x"})
        assert (created.status, created.body["qpid-type"]) == (201, "direct")
        await stage.topology.declare_queue("q")
        for name in ("x/q/a/b", "x/q/c"):
            assert (await ask(console, "CREATE", {}, type=BINDING, name=name)).status == 201
        assert {("x", "q", "a/b"), ("x", "q", "c")} <= stage.bindings()
        assert (await ask(console, "DELETE", type=BINDING, name="x/q/a/b")).status == 204
        (identity,) = [each["identity"] for each in await query(console, BINDING) if each["bindingKey"] == "c"]
        assert (await ask(console, "DELETE", identity=identity)).status == 204
        assert not [each for each in stage.bindings() if each[0] == "x"]
        assert (await ask(console, "DELETE", type=EXCHANGE, name="x")).status == 204

    play_with_console(scene)


def test_what_can_be_changed_keeps_the_attributes_that_are_not_given(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        control_access(stage.broker, None)
        given = {"pattern": "^q", "applyTo": "queues", "priority": 3, "definition": {"max-length": 5}}
        created = await ask(console, "CREATE", given, type=POLICY, name="p")
        assert created.status == 201, created
        assert {name: created.body[name] for name in given} == given
        identity = created.body["identity"]
        updated = await ask(console, "UPDATE", {"priority": 4}, identity=identity)
        assert (updated.status, updated.body) == (200, {**created.body, "priority": 4})
        updated = await ask(console, "UPDATE", {**updated.body, "definition": {"max-length": 6}}, identity=identity)
        assert (updated.body["definition"], updated.body["priority"]) == ({"max-length": 6}, 4)
        assert (await ask(console, "UPDATE", {"priorities": 4}, identity=identity)).status == 400
        assert (await ask(console, "UPDATE", {"name": "p"}, identity=identity)).body == updated.body
        other = await ask(console, "CREATE", {**given, "kind": "operator-policy"}, type=POLICY, name="o")
        assert other.status == 201, other
        assert [each["kind"] for each in await query(console, POLICY, "kind")] == ["policy", "operator-policy"]
        for each in (identity, other.body["identity"]):
            assert (await ask(console, "DELETE", identity=each)).status == 204
        assert await query(console, POLICY) == []
        assert (await ask(console, "UPDATE", {}, identity=identity)).status == 404

    play_with_console(scene, tmp_path)


def test_parts_of_the_results() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for number in range(10):
            await stage.topology.declare_queue(f"q{number}")
        names = [each["name"] for each in await query(console, QUEUE, "name")]
        parts = [await query(console, QUEUE, "name", offset=at, count=5) for at in (0, 5, 10, 15)]
        assert [each["name"] for part in parts for each in part] == names
        assert [len(part) for part in parts] == [5, 5, len(names) - 10, 0]
        everything = await query(console, None, "name", "type")
        assert {QUEUE, EXCHANGE, BROKER} <= {each["type"] for each in everything}

    play_with_console(scene)


def test_a_query_has_a_limit_and_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed_broker, "PORTION_SECONDS", 0.0)
    monkeypatch.setattr(entities, "MAX_ANSWER", 2_000)

    async def scene(stage: Wired, console: Console) -> None:
        for number in range(50):
            await stage.topology.declare_queue(f"q{number}")
        answer = await ask(console, "QUERY", entityType=QUEUE)
        assert (answer.status, "offset and count" in answer.text, answer.body) == (400, True, None)
        assert len(await query(console, QUEUE, "name", count=20)) == 20

    play_with_console(scene)


def test_methods_are_operations() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q")
        await stage.publish("", "q", b"1", b"2", persistent=False)
        assert await ask(console, "purge", {"request": 1}, type=QUEUE, name="q") == (200, "OK", {})
        assert stage.bodies("q") == [b"2"]
        echoed = await ask(console, "echo", {"sequence": 5, "body": "ä"}, type=BROKER, name="amqp-broker")
        assert echoed.body == {"sequence": 5, "body": "ä"}
        assert (await ask(console, "purge", {"requests": 1}, type=QUEUE, name="q")).status == 400
        assert (await ask(console, "no such", type=QUEUE, name="q")).status == 501

    play_with_console(scene)


def test_the_node_says_what_it_has() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        types = (await ask(console, "GET-TYPES")).body
        assert len(types) == len(CLASSES)
        assert types[QUEUE] == []
        attributes = (await ask(console, "GET-ATTRIBUTES", entityType=EXCHANGE)).body
        assert list(attributes) == [EXCHANGE]
        assert attributes[EXCHANGE][:3] == ["name", "identity", "type"]
        assert {"qpid-type", "msgRoutes"} <= set(attributes[EXCHANGE])
        operations = (await ask(console, "GET-OPERATIONS", entityType=QUEUE)).body
        assert operations[QUEUE]["purge"] == ["request", "filter"]
        assert (await ask(console, "GET-ANNOTATIONS", entityType=QUEUE)).body == {QUEUE: []}
        assert (await ask(console, "GET-MGMT-NODES")).body == []

    play_with_console(scene)


@pytest.mark.parametrize(
    ("operation", "body", "headers", "status"),
    [
        ("QUERY", {"attributeNames": [1]}, {"entityType": QUEUE}, 400),
        ("QUERY", {}, {"entityType": "org.apache.qpid.dispatch.router"}, 404),
        ("QUERY", {}, {"entityType": QUEUE, "offset": -1}, 400),
        ("QUERY", {}, {"entityType": 7}, 400),
        ("READ", {}, {}, 400),
        ("READ", {}, {"type": QUEUE}, 400),
        ("READ", {}, {"identity": "org.apache.qpid.broker:queue:none"}, 404),
        ("READ", {}, {"identity": "org.apache.qpid.broker:exchange:amq.topic", "type": QUEUE}, 404),
        ("CREATE", {}, {"type": QUEUE}, 400),
        ("CREATE", {}, {"type": "org.apache.qpid.broker.system", "name": "x"}, 501),
        ("CREATE", {}, {"type": "none", "name": "x"}, 404),
        ("DELETE", {}, {"type": BROKER, "name": "amqp-broker"}, 501),
        ("REGISTER", {}, {"type": "org.amqp.management", "name": "self"}, 501),
        (None, {}, {}, 400),
        ("READ", [1, 2], {"type": QUEUE, "name": "none"}, 404),
    ],
)
def test_what_cannot_be_done_is_answered(
    operation: str | None, body: Any, headers: dict[str, Any], status: int
) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        answer = await ask(console, operation, body, **headers)
        assert (answer.status, answer.body) == (status, None), answer
        assert answer.text

    play_with_console(scene)


@pytest.mark.parametrize("number", ["text", 1 << 63, UUID(int=5), b"\0\xff"])
def test_the_id_of_a_request_returns_with_its_type(number: Any) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        assert (await ask(console, "GET-MGMT-NODES", number=number)).status == 200

    play_with_console(scene)


def test_a_user_that_may_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        asked: list[tuple[Action, ObjectType]] = []

        def check(_caller: object, action: Action, kind: ObjectType, _name: str, **_properties: object) -> None:
            asked.append((action, kind))
            raise NotAllowedError("no")

        await stage.topology.declare_queue("q")
        monkeypatch.setattr(stage.broker.authorization, "check", check)
        for operation, headers in (
            ("QUERY", {"entityType": QUEUE}),
            ("READ", {"type": QUEUE, "name": "q"}),
            ("READ", {"identity": "org.apache.qpid.broker:queue:q"}),
            ("DELETE", {"type": QUEUE, "name": "q"}),
            ("CREATE", {"type": QUEUE, "name": "other"}),
            ("purge", {"type": QUEUE, "name": "q"}),
        ):
            before = len(asked)
            assert (await ask(console, operation, {}, **headers)).status == 403, operation
            assert asked[before:], operation
        assert "q" in stage.broker.default_host.queues
        assert "other" not in stage.broker.default_host.queues

    play_with_console(scene)


def test_what_is_created_is_shown_and_not_what_others_have_by_that_name(tmp_path: Path) -> None:
    """A parameter may have a password, and is seen by those who may set it."""
    path = tmp_path / "users"

    async def scene(stage: Wired, console: Console) -> None:
        Users(str(path)).put_all({"console": Verifiers(None, None, {}, {}, None).with_tags(["policymaker"])})
        stage.broker.settings = stage.broker.settings._replace(user_file=str(path))
        for host in ("blue", "red"):
            await stage.broker.virtual_hosts.create(host, {})
        records = stage.broker.configuration._records
        for host in ("/", "red"):
            everything = dict.fromkeys(("configure", "write", "read"), ".*")
            records[Record("qstore.permission", ("console", host))] = everything
        control = control_access(stage.broker, None)
        control.recovered()
        stage.broker.parameters.register("shovel", check=lambda _: None, changed=lambda *_: None)
        await stage.broker.parameters.set(Parameter("blue", "shovel", "s", {"src": "secret"}, "boss"))
        await stage.broker.hosts["blue"].topology.declare_queue("q")
        given = {"vhost": "red", "component": "shovel", "value": '"mine"'}
        created = await ask(console, "CREATE", given, type=PARAMETER, name="s")
        assert created.status == 201, created
        assert (created.body["vhost"], created.body["value"]) == ("red", '"mine"')
        read = await ask(console, "READ", type=PARAMETER, name="s")
        assert (read.status, read.body) == (200, created.body)
        for asked in ({"type": QUEUE, "name": "blue/q"}, {"identity": "org.apache.qpid.broker:queue:blue\x1fq"}):
            assert (await ask(console, "READ", **asked)).status == 404
        assert {each["name"] for each in await query(console, QUEUE, "name")} == {"events", "replies"}
        assert (await ask(console, "DELETE", type=PARAMETER, name="s")).status == 204
        assert [each.host for each in stage.broker.parameters.all()] == ["blue"]

    play_with_console(scene)


def test_an_ambiguous_name_changes_nothing(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        control_access(stage.broker, None)
        await stage.broker.virtual_hosts.create("blue", {})
        given = {"pattern": "^q", "applyTo": "queues", "definition": {"max-length": 5}}
        for more in ({}, {"vhost": "blue"}, {"kind": "operator-policy"}):
            created = await ask(console, "CREATE", given | more, type=POLICY, name="p")
            assert (created.status, created.body["kind"]) == (201, more.get("kind", "policy"))
            assert created.body["vhost"] == more.get("vhost", "/")
        for operation in ("DELETE", "UPDATE"):
            answer = await ask(console, operation, {"priority": 1}, type=POLICY, name="p")
            assert (answer.status, "give the identity" in answer.text) == (400, True)
        assert [each["priority"] for each in await query(console, POLICY, "priority")] == [0, 0, 0]

    play_with_console(scene, tmp_path)


def test_bindings_by_identity_are_the_ones_that_are_meant() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.broker.virtual_hosts.create("blue", {})
        blue = stage.broker.hosts["blue"]
        for topology in (stage.topology, blue.topology):
            for name in ("x", "x/y"):
                await topology.declare_exchange(name, "topic")
            for name in ("q", "y"):
                await topology.declare_queue(name)
            await topology.bind("q", "x", "k")
            await topology.bind("y", "x", "q/k")
            await topology.bind("q", "x/y", "k")
        found = await query(console, BINDING, "identity", "exchangeRef")
        (of_blue,) = [each["identity"] for each in found if each["exchangeRef"].endswith("blue\x1fx/y")]
        assert (await ask(console, "DELETE", identity=of_blue)).status == 400, "it would be taken for that of x and y"
        assert len(await query(console, BINDING)) == len(found)
        (of_blue,) = [
            each["identity"] for each in found
            if each["exchangeRef"].endswith("blue\x1fx") and each["identity"].endswith(",k")
        ]  # fmt: skip
        assert (await ask(console, "DELETE", identity=of_blue)).status == 204
        left = [each["identity"] for each in await query(console, BINDING, "identity")]
        assert sorted([*left, of_blue]) == sorted(each["identity"] for each in found)

    play_with_console(scene)


def test_bindings_of_exchanges_by_identity() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        kind = "qstore.exchange_binding"
        for arguments in ({}, {"x-match": "any"}):
            created = await ask(console, "CREATE", {"arguments": arguments}, type=kind, name="amq.topic/amq.fanout/k")
            assert created.status == 201, created
        found = {len(each["arguments"]): each["identity"] for each in await query(console, kind)}
        assert (await ask(console, "DELETE", identity=found[1])).status == 204
        assert [each["identity"] for each in await query(console, kind)] == [found[0]]
        assert (await ask(console, "DELETE", identity=found[0])).status == 204
        assert await query(console, kind) == []

    play_with_console(scene)


def test_an_attribute_is_answered_once_however_often_it_is_asked_for() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        body = {"attributeNames": ["arguments", "name", "arguments"] * 1_000}
        answer = await ask(console, "QUERY", body, entityType=EXCHANGE)
        assert answer.body["attributeNames"] == ["arguments", "name"]
        assert {len(row) for row in answer.body["results"]} == {2}

    play_with_console(scene)


def test_every_kind_is_a_type() -> None:
    assert set(KINDS) <= set(entities._TYPES)
    for name, kind in KINDS.items():
        assert set(kind.parts) <= set(entities._TYPES[name].rows)


def test_every_entity_can_be_read_by_its_identity(tmp_path: Path) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q", durable=True)
        everything = await query(console, None, "identity", "type", "name")
        assert len(everything) > 20
        for each in everything:
            read = await ask(console, "READ", identity=each["identity"])
            assert read.status == 200, each
            assert {name: read.body.get(name) for name in each} == each
            if each["name"]:  # the default exchange has none
                assert (await ask(console, "READ", type=each["type"], name=each["name"])).status == 200, each

    play_with_console(scene, tmp_path)


_texts = st.sampled_from(
    [
        "",
        "q",
        "é",
        "org.apache.qpid.broker:queue:q",
        ":::",
        "amqp-broker",
        QUEUE,
        EXCHANGE,
        BINDING,
        BROKER,
        POLICY,
        "none",
    ]
)
_simple = st.none() | st.booleans() | st.integers(-5, 1 << 40) | _texts | st.binary(max_size=3)
_keys = st.sampled_from(
    ["name", "type", "kind", "attributeNames", "arguments", "request", "options", "durable", "vhost"]
)
_values = st.recursive(
    _simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=8
)


@given(
    operation=st.sampled_from(
        [*["CREATE", "READ", "UPDATE", "DELETE", "QUERY", "GET-TYPES", "purge", "echo", "create"], "x"]
    ),
    headers=st.dictionaries(
        st.sampled_from(["type", "name", "identity", "entityType", "offset", "count", "locales"]), _simple, max_size=4
    ),
    body=_values,
)
def test_whatever_is_asked_has_one_answer(operation: str, headers: dict[str, Any], body: Any) -> None:
    async def scene(stage: Wired, console: Console) -> None:
        control_access(stage.broker, None)
        await stage.topology.declare_queue("q")
        answer = await ask(console, operation, body, **headers)
        assert answer.status in (200, 201, 204, 400, 403, 404, 409, 500, 501)
        assert answer.status != 500 or answer.text

    play_with_console(scene)
