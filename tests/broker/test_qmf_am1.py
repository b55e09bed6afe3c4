"""AM1, the QMF of Qpid M3, at a broker: the schema, objects, methods, what is published, agents of others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management.classes import CLASSES, classes_named
from qstore.broker.management.outbox import TOPIC, VERSION_1
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.caller import Publisher
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_10.maps import encode_map, read_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.plain import plain_map
from qstore.formats.qmf.v1 import (
    FIELDS_OF,
    MAX_CODE_OF_AM1,
    QMF_TYPES,
    Dialect,
    Message,
    ObjectId,
    decode,
    decode_message,
    encode,
    encode_message,
)
from qstore.formats.values import TYPES, TypedValue, typed_map
from tests.broker.test_qmf1 import Reply, bodies, later, listen
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console, take
from tests.support.management_console import Reply as ManagementReply

_AGENT = Publisher("192.0.2.9:9")
_STRANGER = Publisher("192.0.2.8:8")
_HASH = bytes(range(16))
AM1 = Dialect.AM1


def message(opcode: str, sequence: int, content: bytes = b"") -> bytes:
    """A message as the document draws it."""
    return b"AM1" + opcode.encode() + struct.pack(">I", sequence) + content


def small(value: int) -> TypedValue:
    return TypedValue(TYPES["uint8"], value)


def text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


async def ask(console: Console, request: bytes, key: str = "broker", **options: Any) -> list[Reply]:
    console.send(None, request, exchange=VERSION_1, key=key, **options)
    await console.settle()
    return [Reply(body, decode_message(body, dialect=AM1)) for body in bodies(console.replies)]


def split(found: list[bytes]) -> list[tuple[Message, bytes]]:
    """The message of each body, with what follows its fields."""
    read = [decode_message(body, dialect=AM1) for body in found]
    return [(each, body[each.end :]) for each, body in zip(read, found, strict=True)]


def carried(of: ManagedClass) -> tuple[list[Any], list[Any]]:
    """The properties and statistics that AM1 has types for."""

    def has(kind: str) -> bool:
        return QMF_TYPES[kind].code <= MAX_CODE_OF_AM1

    return [each for each in of.properties if has(each.type)], [each for each in of.statistics if has(each.type)]


def values_in(of: ManagedClass, content: bytes, opcode: str = "g") -> dict[str, Any]:
    """The values of an object, and that nothing follows them."""
    properties, statistics = carried(of)
    optional = [each.name for each in properties if each.is_optional]
    at, found = 0, {}
    if opcode != "i":
        at = (len(optional) + 7) // 8
        absent = {name for bit, name in enumerate(optional) if not content[bit // 8] >> bit % 8 & 1}
        for each in properties:
            if each.name not in absent:
                found[each.name], at = decode("objId64" if each.type == "objId" else each.type, content, at)
    if opcode != "c":
        for each in statistics:
            found[each.name], at = decode(each.type, content, at)
    assert at == len(content)
    return found


def class_of(name: str) -> ManagedClass:
    (found,) = classes_named("org.apache.qpid.broker", name)
    return found


# ---- ids ----


@pytest.mark.parametrize(
    ("object_id", "bits"),
    [
        (ObjectId(0, 7, 1, 0, 99), 7 << 48 | 5 << 24 | 99),
        (ObjectId(0, 7, 1, 0, 1 << 24 | 3), 7 << 48 | 6 << 24 | 3),
        (ObjectId(0, 0, 1, 0, 7 << 48 | 12), 1 << 24 | 7 << 18 | 12),
        (ObjectId(0, 0, 1, 0, 7 << 48 | 1 << 18 | 12), 5 << 24 | 7 << 18 | 12),
        (ObjectId(0, 3, 1, 10, 4), 3 << 48 | 10 << 24 | 4),
    ],
)
def test_ids_have_the_banks_of_the_document(object_id: ObjectId, bits: int) -> None:
    assert encode("objId64", object_id) == struct.pack(">Q", bits)
    assert decode("objId64", struct.pack(">Q", bits), 0) == (object_id, 8)


# ---- requests ----


def test_the_broker_its_packages_and_its_classes() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        console.send(None, message("B", 0), exchange=VERSION_1)
        await console.settle()
        assert bodies(console.replies) == [message("b", 0, console.managed.identity.instance.bytes)]
        packages = await ask(console, message("P", 4))
        assert [each.opcode for each in packages] == ["p"] * (len(packages) - 1) + ["z"]
        assert packages[0].fields["package"] == "qpid"
        console.send(None, message("Q", 5, text("qpid")), exchange=VERSION_1)
        await console.settle()
        *found, end = bodies(console.replies)
        own = [each for each in CLASSES if each.package == "org.apache.qpid.broker"]
        assert found == [message("q", 5, text("qpid") + text(each.name) + each.hash.bytes) for each in own]
        assert end == message("z", 5, bytes(4) + text("OK"))
        (end,) = await ask(console, message("h", 6, bytes(8)))
        assert end.fields["status"] == 3

    play_with_console(scene)


def test_schemas_have_the_codes_of_the_document() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for of in CLASSES:
            package = "qpid" if of.package == "org.apache.qpid.broker" else of.package
            (reply,) = await ask(console, message("S", 8, text(package) + text(of.name) + of.hash.bytes))
            assert (reply.opcode, reply.sequence, reply.fields["class"]) == ("s", 8, of.name)
            properties, statistics = carried(of)
            counts = struct.unpack_from(">4H", reply.rest)
            assert counts == (len(properties), len(statistics), len(of.methods), 0)
            maps, at = [], 8
            while at < len(reply.rest):
                value, at = read_value(BY_NAME["map"], reply.rest, at, len(reply.rest))
                maps.append(plain_map(value))
            assert [each["name"] for each in maps[: counts[0]]] == [each.name for each in properties]
            assert all(each.get("type", 1) <= 19 and each.get("dir", 1) in (1, 2, 3) for each in maps)
            methods = [each for each in maps[counts[0] + counts[1] :] if "argCount" in each]
            assert sum(1 + each["argCount"] for each in methods) == len(maps) - counts[0] - counts[1]
        (end,) = await ask(console, message("S", 8, text("qpid") + text("queue") + bytes(16)))
        assert (end.opcode, end.fields["status"]) == ("z", 1)

    play_with_console(scene)


def test_objects_of_a_class() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q", alternate="amq.fanout")
        queue = class_of("queue")
        (vhost, _) = await ask(console, message("G", 3, encode_map(typed_map({"_class": "vhost"}))))
        console.send(None, message("G", 5, encode_map(typed_map({"_class": "queue"}))), exchange=VERSION_1)
        await console.settle()
        *found, (end, _) = split(bodies(console.replies))
        assert (end.opcode, end.fields["status"], end.sequence) == ("z", 0, 5)
        assert {each.opcode for each, _ in found} == {"g"}
        values = {values["name"]: values for _, rest in found for values in [values_in(queue, rest)]}
        assert set(values) == set(stage.broker.default_host.queues)
        assert values["q"]["vhostRef"] == vhost.fields["object"]
        assert values["q"]["durable"] is False

        async def status_for(**more: Any) -> int:
            query = typed_map({"_class": "queue", **more})
            console.send(None, message("G", 5, encode_map(query)), exchange=VERSION_1)
            await console.settle()
            status = split(bodies(console.replies))[-1][0].fields["status"]
            assert isinstance(status, int)
            return status

        assert await status_for(_package="qpid") == 0
        assert await status_for(_agent=console.managed.identity.instance) == 0
        assert await status_for(_agent=UUID(int=5)) == 4

    play_with_console(scene)


@pytest.mark.parametrize("key", ["broker", "agent.0", "agent.5"])
def test_methods(key: str) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        query = encode_map(typed_map({"_class": "broker"}))
        (found, _) = split(await raw(console, message("G", 1, query)))
        identity = encode("objId64", found[0].fields["object"])
        arguments = struct.pack(">I", 77) + struct.pack(">H", 5) + b"hello"
        replies = await raw(console, message("M", 9, identity + text("echo") + arguments), key)
        assert replies == [message("m", 9, bytes(4) + text("OK") + arguments)]
        (reply,) = await ask(console, message("M", 9, identity + text("nonsense")), key)
        assert reply.fields["status"] == 2
        (reply,) = await ask(console, message("M", 9, bytes(8) + text("echo")), key)
        assert (reply.fields["status"], reply.rest) == (1, b"")

    async def raw(console: Console, request: bytes, key: str = "broker") -> list[bytes]:
        console.send(None, request, exchange=VERSION_1, key=key)
        await console.settle()
        return bodies(console.replies)

    play_with_console(scene)


# ---- publications ----


def test_properties_and_statistics_have_keys_of_their_own() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q")
        await later(stage, console, 0)
        heard = await listen(stage, f"mgmt.{console.managed.identity.instance}.prop.qpid.queue")
        await later(stage, console, 10)
        queue = class_of("queue")
        found = split(bodies(heard))
        assert {each.opcode for each, _ in found} == {"c"}
        assert "q" in [values_in(queue, rest, "c")["name"] for _, rest in found]
        await stage.topology.bind("heard", VERSION_1, "mgmt.*.stat.#")
        await stage.publish("", "q", b"12345", persistent=False)
        await later(stage, console, 10)
        changed = [(each, rest) for each, rest in split(bodies(heard)) if each.fields["class"] == "queue"]
        assert 1 in [values_in(queue, rest, "i")["msgDepth"] for each, rest in changed if each.opcode == "i"]
        await stage.topology.delete_queue("q")
        await later(stage, console, 10)
        ended = [each for each, _ in split(bodies(heard)) if each.fields["deleted"]]
        assert {each.opcode for each in ended} == {"c", "i"}

    play_with_console(scene)


def test_a_new_console_gets_all_schemas_and_heartbeats() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await later(stage, console, 0)
        instance = console.managed.identity.instance
        heard = await listen(stage, f"mgmt.{instance}.schema.#", f"mgmt.{instance}.heartbeat")
        await later(stage, console, 10)
        found = split(bodies(heard))
        assert [(each.opcode, each.sequence) for each, _ in found].count(("h", 0)) == 1
        schemas = [each.fields["class"] for each, _ in found if each.opcode == "s"]
        assert schemas == [each.name for each in CLASSES]
        await later(stage, console, 10)
        assert [each.opcode for each, _ in split(bodies(heard))] == ["h"]

    play_with_console(scene)


# ---- agents of others ----


async def announce(stage: Wired, console: Console, schema: bytes = bytes(8)) -> Queue:
    """An agent attaches itself and describes a class. Returns the queue of its requests."""
    console.send(None, message("A", 1, text("sensors") + bytes(16) + bytes(4)), exchange=VERSION_1, publisher=_AGENT)
    await console.settle()
    assert bodies(console.replies) == [message("a", 1, struct.pack(">II", 1, 10))]
    agent = await stage.topology.declare_queue("agent")
    await stage.topology.bind("agent", VERSION_1, "agent.10")
    key = text("com.example") + text("sensor") + _HASH
    (wanted,) = await ask(console, message("q", 2, key), publisher=_AGENT)
    assert (wanted.opcode, wanted.fields["class"]) == ("S", "sensor")
    await ask(console, message("s", wanted.sequence, key + schema), publisher=_AGENT)
    return agent


def test_agents_attach_and_describe_their_classes() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        heard = await listen(stage, "mgmt.*.schema.com_example.#")
        agent = await announce(stage, console)
        assert [each.opcode for each, _ in split(bodies(heard))] == ["p", "q"]
        assert bodies(agent) == [message("x", 0)]
        assert "com.example" in [each.fields.get("package") for each in await ask(console, message("P", 1))]
        (reply,) = await ask(console, message("S", 1, text("com.example") + text("sensor") + _HASH))
        assert (reply.opcode, reply.rest) == ("s", bytes(8))
        request = message("G", 1, encode_map(typed_map({"_class": "sensor"})))
        assert await ask(console, request, key="agent.10") == []
        assert bodies(agent) == [request]

    play_with_console(scene)


def test_consoles_of_the_other_form_do_not_see_these_classes() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await announce(stage, console)
        console.send(None, encode_message("Q", 1, "com.example"), exchange=VERSION_1)
        console.send(None, encode_message("S", 1, "com.example", "sensor", _HASH), exchange=VERSION_1)
        await console.settle()
        assert [decode_message(each).opcode for each in bodies(console.replies)] == ["z", "z"]

    play_with_console(scene)


_NAME = f"qmf1:sensors:{UUID(int=0)}-10"
_ATTIC = ObjectId(0, 1, 1, 10, 7)
_SENSOR = (
    struct.pack(">HHHH", 2, 1, 1, 0)
    + encode_map(typed_map({"name": "name", "type": small(6), "access": small(1), "index": small(1)}))
    + encode_map(typed_map({"name": "parent", "type": small(10), "access": small(3)}))
    + encode_map(typed_map({"name": "celsius", "type": small(13), "unit": "degree"}))
    + encode_map(typed_map({"name": "calibrate", "argCount": small(2)}))
    + encode_map(typed_map({"name": "by", "type": small(13), "dir": small(1)}))
    + encode_map(typed_map({"name": "celsius", "type": small(13), "dir": small(2)}))
)


def attic(sequence: int, number: int = 7) -> bytes:
    rest = encode("sstr", f"n{number}") + encode("objId64", _ATTIC) + encode("double", 20.5)
    fields = "com.example", "sensor", _HASH, 3, 1, 0, _ATTIC._replace(number=number)
    return encode_message("g", sequence, *fields, rest=rest, dialect=AM1)


def test_agents_answer_consoles_of_version_2() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        agent = await announce(stage, console, _SENSOR)

        async def do(opcode: str, content: Any, answers: Callable[[Any], list[bytes]]) -> list[ManagementReply]:
            console.send(opcode, content, key=_NAME)
            for _ in range(2000):
                await asyncio.sleep(0)
                for body in bodies(agent):
                    for each in answers(decode_message(body, dialect=AM1)):
                        console.send(
                            None, each, exchange=VERSION_1, key="broker.replies", publisher=_AGENT, reply_to=None
                        )
                if not console.is_busy:
                    break
            await console.settle()
            return take(console.replies)

        (located,) = await do("_agent_locate_request", {}, lambda _: [])
        assert located.values["_name"] == _NAME
        schemas = {"_what": "SCHEMA"}
        (described,) = await do("_query_request", schemas, lambda _: [])
        (of,) = described.content
        assert [each["_name"] for each in of["_properties"]] == ["name", "parent", "celsius"]
        assert [each.get("_dir") for each in of["_methods"][0]["_arguments"]] == ["I", "O"]
        name, asked = f"com.example:sensor:{_ATTIC}", list[Any]()

        def found(request: Any) -> list[bytes]:
            asked.append({key: each.value for key, each in request.fields["query"].entries})
            end = encode_message("z", request.sequence, 0, "OK", dialect=AM1)
            return [attic(request.sequence), attic(request.sequence, 8), end]

        for query, count in (
            ({"_schema_id": {"_class_name": "sensor"}}, 2),
            ({"_object_id": {"_object_name": name}}, 1),
        ):
            (reply,) = await do("_query_request", {"_what": "OBJECT", **query}, found)
            assert len(reply.content) == count
            assert asked.pop() == {"_class": "sensor", "_package": "com.example"}
            (first, *_) = reply.content
            assert first["_object_id"] == {"_object_name": name, "_agent_name": _NAME}
            assert first["_values"] == {"name": "n7", "parent": {"_object_name": str(_ATTIC)}, "celsius": 20.5}

        def called(request: Any) -> list[bytes]:
            if request.opcode == "G":
                return found(request)
            asked.append((request.fields["object"], request.fields["method"]))
            return [encode_message("m", request.sequence, 0, "OK", rest=encode("double", 22.0), dialect=AM1)]

        call = {"_object_id": {"_object_name": name}, "_method_name": "calibrate", "_arguments": {"by": 1.5}}
        (reply,) = await do("_method_request", call, called)
        assert asked.pop() == (_ATTIC, "calibrate")
        assert asked.pop() == {"_class": "sensor", "_package": "com.example"}
        assert reply.content["_arguments"] == {"celsius": 22.0}
        refused = encode_message("m", 0, 4, "too much", dialect=AM1)

        def refuses(request: Any) -> list[bytes]:
            answer = refused[:4] + struct.pack(">I", request.sequence) + refused[8:]
            return found(request) if request.opcode == "G" else [answer]

        (reply,) = await do("_method_request", call, refuses)
        assert reply.values["error_text"] == "too much"
        asked.clear()
        other = {**call, "_object_id": {"_object_name": f"com.example:sensor:{_ATTIC._replace(number=9)}"}}
        (reply,) = await do("_method_request", other, called)
        assert "there is no object" in reply.values["error_text"]
        assert asked == [{"_class": "sensor", "_package": "com.example"}], "a call would not say the class"

    play_with_console(scene)


def content(opcode: str) -> bytes:
    """What the agent publishes of the attic."""
    values = {
        "c": encode("sstr", "n7") + encode("objId64", _ATTIC),
        "i": encode("double", 20.5),
    }[opcode]
    return encode_message(opcode, 0, "com.example", "sensor", _HASH, 3, 1, 0, _ATTIC, rest=values, dialect=AM1)


_SYSTEM: Final = str(UUID(int=0))


def test_what_agents_publish_reaches_consoles_of_both_forms() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await announce(stage, console, _SENSOR)
        old = await listen(stage, "mgmt.*.prop.#")
        heard = await stage.topology.declare_queue("version 2")
        await stage.topology.bind("version 2", TOPIC, "agent.ind.data.com_example.sensor.#")

        async def publish(key: str, body: bytes, publisher: Publisher = _AGENT) -> list[ManagementReply]:
            console.send(None, body, exchange=VERSION_1, key=key, publisher=publisher, reply_to=None)
            await console.settle()
            return take(heard)

        (properties,) = await publish(f"mgmt.{_SYSTEM}.prop.com_example.sensor", content("c"))
        assert bodies(old) == [content("c")]
        assert (properties.headers["qmf.content"], properties.headers["qmf.agent"]) == ("_data", _NAME)
        (statistics,) = await publish(f"mgmt.{_SYSTEM}.stat.com_example.sensor", content("i"))
        (first,), (second,) = properties.content, statistics.content
        assert first["_values"] == {"name": "n7", "parent": {"_object_name": str(_ATTIC)}}
        assert second["_values"] == {"celsius": 20.5}
        for each in (first, second):
            name = {"_object_name": f"com.example:sensor:{_ATTIC}", "_agent_name": _NAME}
            assert each["_object_id"] == name
        for key, publisher in (
            (f"mgmt.{UUID(int=1)}.prop.com_example.sensor", _AGENT),
            (f"mgmt.{_SYSTEM}.schema.com_example.sensor", _AGENT),
            (f"mgmt.{_SYSTEM}.prop.com_example", _AGENT),
            ("mgmt.", _AGENT),
            (f"mgmt.{_SYSTEM}.prop.com_example.sensor", _STRANGER),
        ):
            assert await publish(key, content("c"), publisher) == []
        assert await publish(f"mgmt.{_SYSTEM}.prop.com_example.sensor", content("c")[:-4]) == []

    play_with_console(scene)


# ---- hostile ----


@given(st.lists(st.tuples(st.sampled_from([*FIELDS_OF[AM1], "e", "?"]), st.binary(max_size=40)), max_size=4))
def test_any_bytes_are_answered_or_ignored(parts: list[tuple[str, bytes]]) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        await ask(console, b"".join(message(opcode, 9, rest) for opcode, rest in parts))
        assert [each.opcode for each in await ask(console, message("B", 1))] == ["b"]

    play_with_console(scene)
