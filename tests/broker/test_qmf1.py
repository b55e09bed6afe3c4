"""QMF version 1 at a broker: the schema, objects, methods, what is published, agents of others; and hostile bytes."""

from __future__ import annotations

import asyncio
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.management import remote_agents
from qstore.broker.management.classes import CLASSES, classes_named
from qstore.broker.management.events import EVENT_CLASSES
from qstore.broker.management.outbox import DIRECT, VERSION_1
from qstore.broker.management.schema import ManagedClass
from qstore.broker.model.caller import Publisher
from qstore.broker.model.events import ClientDisconnect
from qstore.broker.model.message import NewMessage
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.structs import ReplyTo
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.plain import plain_map
from qstore.formats.qmf.v1 import (
    FIELDS,
    MAGIC,
    Dialect,
    Message,
    ObjectId,
    decode,
    decode_message,
    encode,
    encode_message,
)
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.wired_broker import Wired, play_with_console, wired
from tests.support.management_console import REPLIES, Console, pass_time

PACKAGE = "org.apache.qpid.broker"
_AGENT = Publisher("192.0.2.9:9")
_HASH = bytes(range(16))


def bodies(queue: Queue) -> list[bytes]:
    """The bodies on a queue, which are gone then."""
    found = [bytes(entry.message.body) for entry in queue.available()]  # type: ignore[attr-defined]
    queue.purge()
    return found


class Reply:
    """A message, with what follows its fields."""

    def __init__(self, body: bytes, message: Message) -> None:
        self.opcode, self.sequence, self.fields = message.opcode, message.sequence, message.fields
        self.rest = body[message.end :]


async def ask(console: Console, opcode: str, *values: Any, rest: bytes = b"", **options: Any) -> list[Reply]:
    """Send a request with the sequence 77. Returns all replies, one of each body."""
    console.send(None, encode_message(opcode, 77, *values, rest=rest), exchange=VERSION_1, **options)
    await console.settle()
    return [Reply(body, decode_message(body)) for body in bodies(console.replies)]


def maps(content: bytes, count: int) -> tuple[list[dict[str, Any]], int]:
    """`count` maps, and where they end."""
    found, at = [], 0
    for _ in range(count):
        value, at = read_value(BY_NAME["map"], content, at, len(content))
        found.append(plain_map(value))
    return found, at


def class_of(name: str) -> ManagedClass:
    (found,) = classes_named(PACKAGE, name)
    return found


def values_in(of: ManagedClass, content: bytes, opcode: str = "g") -> dict[str, Any]:
    """The values of an object by name, and that nothing follows them."""
    optional = [each.name for each in of.properties if each.is_optional]
    found: dict[str, Any] = {}
    at = 0
    if opcode != "i":
        at = (len(optional) + 7) // 8
        bits = int.from_bytes(content[:at], "little")
        absent = {name for number, name in enumerate(optional) if not bits >> number & 1}
        for each in of.properties:
            if each.name not in absent:
                found[each.name], at = decode(each.type, content, at)
    if opcode != "c":
        for counted in of.statistics:
            found[counted.name], at = decode(counted.type, content, at)
    assert at == len(content)
    return found


# ---- the schema ----


def test_broker_packages_and_classes() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        (reply,) = await ask(console, "B")
        assert (reply.opcode, reply.sequence) == ("b", 77)
        assert reply.fields["broker"] == console.managed.identity.instance
        replies = await ask(console, "P")
        assert [each.opcode for each in replies] == ["p"] * (len(replies) - 1) + ["z"]
        packages = [each.fields["package"] for each in replies[:-1]]
        assert packages[0] == PACKAGE
        assert set(packages) == {each.package for each in (*CLASSES, *EVENT_CLASSES)}
        replies = await ask(console, "Q", PACKAGE)
        reported = [(each.fields["kind"], each.fields["class"], each.fields["hash"]) for each in replies[:-1]]
        expected = [(1, each.name, each.hash.bytes) for each in CLASSES if each.package == PACKAGE]
        expected += [(2, each.name, each.hash.bytes) for each in EVENT_CLASSES if each.package == PACKAGE]
        assert reported == expected
        (end,) = await ask(console, "Q", "org.example")
        assert (end.opcode, end.fields) == ("z", {"status": 0, "text": "OK"})
        (end,) = await ask(console, "h", 7)
        assert end.fields == {"status": 3, "text": "NotImplemented"}

    play_with_console(scene)


def test_schemas() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        queue = class_of("queue")
        (reply,) = await ask(console, "S", PACKAGE, "queue", queue.hash.bytes)
        assert (reply.opcode, reply.fields["kind"]) == ("s", 1)
        counts = struct.unpack_from(">HHH", reply.rest)
        assert counts == (len(queue.properties), len(queue.statistics), 2)
        reported, end = maps(reply.rest[6:], counts[0] + counts[1] + 2 + 2 + 4)
        assert end == len(reply.rest) - 6
        assert reported[0] == {
            "name": "vhostRef", "type": 10, "access": 1, "index": 1, "optional": 0,
            "refPackage": PACKAGE, "refClass": "vhost",
        }  # fmt: skip
        assert reported[1] == {"name": "name", "type": 6, "access": 1, "index": 1, "optional": 0}
        assert reported[counts[0]] == {
            "name": "msgTotalEnqueues", "type": 4, "unit": "message", "desc": "Total messages enqueued",
        }  # fmt: skip
        assert reported[-5]["name"] == "reroute"
        assert reported[-5]["argCount"] == 4
        assert [(each["name"], each["type"], each["dir"]) for each in reported[-4:]] == [
            ("request", 3, "I"), ("useAltExchange", 11, "I"), ("exchange", 6, "I"), ("filter", 15, "I"),
        ]  # fmt: skip
        event = next(each for each in EVENT_CLASSES if each.name == "queueThresholdExceeded")
        (reply,) = await ask(console, "S", PACKAGE, event.name, event.hash.bytes)
        (count,) = struct.unpack_from(">H", reply.rest)
        reported, end = maps(reply.rest[2:], count)
        assert [(each["name"], each["type"]) for each in reported] == [("qName", 6), ("msgDepth", 4), ("byteDepth", 4)]
        for package, name in ((PACKAGE, "queue"), ("x", "queue"), (PACKAGE, "")):
            (reply,) = await ask(console, "S", package, name, bytes(16))
            assert (reply.opcode, reply.fields["status"]) == ("z", 1)

    play_with_console(scene)


def test_every_schema_can_be_reported() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for each in (*CLASSES, *EVENT_CLASSES):
            (reply,) = await ask(console, "S", each.package, each.name, each.hash.bytes)
            assert reply.opcode == "s"

    play_with_console(scene)


# ---- objects and methods ----


def test_objects_of_a_class_and_by_id() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q", alternate="amq.fanout")
        await stage.publish("", "q", b"12345", persistent=False)
        queue = class_of("queue")
        console.send(None, encode_message("G", 5, typed_map({"_class": "queue"})), exchange=VERSION_1)
        await console.settle()
        found = []
        for body in bodies(console.replies):  # several, if the agent has let others be served in between
            at = 0
            while at >= 0 and (message := decode_message(body, at)).opcode == "g":
                assert (message.sequence, message.fields["class"]) == (5, "queue")
                at = body.find(MAGIC, message.end)
                found.append((message.fields["object"], values_in(queue, body[message.end : at if at >= 0 else None])))
        assert (message.opcode, message.fields["text"]) == ("z", "OK")
        by_name = {values["name"]: (identity, values) for identity, values in found}
        assert set(by_name) == set(stage.broker.default_host.queues)
        identity, values = by_name["q"]
        assert (values["msgDepth"], values["byteDepth"], values["bindingCount"]) == (1, 5, 1)
        assert "altExchange" not in by_name["events"][1]
        assert (identity.sequence, identity.broker_bank, identity.agent_bank) == (1, 1, 0)
        for asked in (str(identity), identity.encoded()):
            reply = (await ask(console, "G", typed_map({"_objectid": asked})))[0]
            assert reply.fields["object"] == identity
        (reply,) = await ask(console, "G", typed_map({"_class": "none"}))
        assert (reply.opcode, reply.fields["status"]) == ("z", 0)
        (reply,) = await ask(console, "G", EMPTY_MAP)
        assert reply.fields["status"] == 4

    play_with_console(scene)


async def id_of(console: Console, class_name: str) -> tuple[ObjectId, bytes]:
    """The id of the first object of a class, and the class's hash."""
    reply = (await ask(console, "G", typed_map({"_class": class_name})))[0]
    found: ObjectId = reply.fields["object"]
    return found, reply.fields["hash"]


def test_methods() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        broker, class_hash = await id_of(console, "broker")
        key = broker, PACKAGE, "broker", class_hash
        arguments = encode("uint32", 7) + encode("lstr", "hello")
        (reply,) = await ask(console, "M", *key, "echo", rest=arguments)
        assert (reply.opcode, reply.fields) == ("m", {"status": 0, "text": "OK"})
        assert reply.rest == arguments
        create = encode("sstr", "queue") + encode("sstr", "made") + encode("map", EMPTY_MAP) + encode("bool", False)
        (reply,) = await ask(console, "M", *key, "create", rest=create)
        assert reply.fields["status"] == 0
        assert "made" in stage.broker.default_host.queues
        (reply,) = await ask(console, "M", *key, "create", rest=create)
        assert reply.fields == {"status": 4, "text": "Object already exists: made"}
        for method, rest, status in (("fly", b"", 2), ("echo", b"\0", 4), ("connect", encode_connect(), 3)):
            (reply,) = await ask(console, "M", *key, method, rest=rest)
            assert reply.fields["status"] == status
            assert reply.rest == b""
        (reply,) = await ask(console, "M", broker._replace(number=999), *key[1:], "echo", rest=arguments)
        assert reply.fields["status"] == 1

    play_with_console(scene)


def encode_connect() -> bytes:
    texts = [encode("sstr", "")] * 4
    return encode("sstr", "h") + encode("uint32", 1) + encode("bool", False) + b"".join(texts)


def test_several_requests_in_one_body() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        body = encode_message("B", 1) + encode_message("Q", 2, "org.example") + b"rubbish"
        console.send(None, body, exchange=VERSION_1)
        await console.settle()
        assert [decode_message(each).opcode for each in bodies(console.replies)] == ["b", "z"]

    play_with_console(scene)


# ---- what is published ----


async def listen(stage: Wired, *keys: str) -> Queue:
    queue = await stage.topology.declare_queue("heard")
    for key in keys:
        await stage.topology.bind("heard", VERSION_1, key)
    return queue


def split(found: list[bytes]) -> list[tuple[Message, bytes]]:
    """All messages of all bodies, each with what follows its fields."""
    messages = []
    for body in found:
        at = 0
        while at < len(body):
            message = decode_message(body, at)
            end = body.find(MAGIC, message.end)
            end = len(body) if end < 0 else end
            messages.append((message, body[message.end : end]))
            at = end
    return messages


async def later(stage: Wired, console: Console, seconds: float) -> None:
    """So much later, the agent has published what there was."""
    pass_time(stage.broker, seconds)
    console.agent.on_timer()
    await console.settle()


def test_objects_are_published_when_they_change_and_end() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q")
        await later(stage, console, 0)
        heard = await listen(stage, f"console.obj.1.0.{PACKAGE}.queue")
        await later(stage, console, 10)
        queue = class_of("queue")
        first = split(bodies(heard))
        assert {message.opcode for message, _ in first} == {"c", "i"}
        assert len(first) == 2 * len(stage.broker.default_host.queues)
        await later(stage, console, 10)  # its own messages have changed the queue that hears
        assert {message.fields["object"] for message, _ in split(bodies(heard))} <= {
            message.fields["object"] for message, _ in first
        }
        await stage.publish("", "q", b"12345", persistent=False)
        await later(stage, console, 10)
        changed = [values_in(queue, rest, "i") for message, rest in split(bodies(heard)) if message.opcode == "i"]
        assert 1 in [each["msgDepth"] for each in changed]
        await stage.topology.delete_queue("q")
        await later(stage, console, 10)
        ended = [message for message, _ in split(bodies(heard)) if message.fields["deleted"]]
        assert [message.opcode for message in ended] == ["c", "i"]
        assert ended[0].fields["created"] < ended[0].fields["deleted"]
        await later(stage, console, 10)
        assert not [message for message, _ in split(bodies(heard)) if message.fields["deleted"]]

    play_with_console(scene)


def test_everything_is_published_soon_after_a_console_has_bound_itself() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await later(stage, console, 0)
        heard = await listen(stage, "console.obj.#")
        await later(stage, console, 1)
        assert bodies(heard) == []  # two seconds between sweeps at least
        await later(stage, console, 1)
        assert {message.fields["class"] for message, _ in split(bodies(heard))} >= {"broker", "queue", "exchange"}

    play_with_console(scene)


def test_heartbeats_and_events() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await later(stage, console, 0)
        heard = await listen(stage, "console.heartbeat.#", "console.event.#")
        bodies(heard)
        await stage.topology.delete_queue("events")
        ((message, rest),) = split(bodies(heard))
        assert (message.opcode, message.fields["class"], message.fields["severity"]) == ("e", "queueDelete", 6)
        assert rest == b"".join(encode("sstr", text) for text in ("", "", "events"))
        await later(stage, console, 10)
        ((message, _),) = split(bodies(heard))
        assert (message.opcode, message.fields["timestamp"]) == ("h", round(stage.broker.clock() * 1e9))

    play_with_console(scene)


@pytest.mark.parametrize("has_version_2", [False, True])
def test_only_an_agent_that_speaks_version_2_names_itself_in_the_headers(has_version_2: bool) -> None:
    """`qmf.console` drops what has that header: events and updates that it gets by version 2, or else by none."""

    def headers(queue: Queue) -> list[dict[str, Any]]:
        found = [plain_map(entry.message.properties().headers) for entry in queue.available()]
        queue.purge()
        return found

    async def scene() -> None:
        async with wired() as stage:
            stage.broker.settings = stage.broker.settings._replace(management_version_2=has_version_2)
            console = Console(stage)
            for name, kind in (("qmf.default.direct", "direct"), ("qmf.default.topic", "topic")):
                await stage.topology.declare_exchange(name, kind)  # those of version 2 are not there without it
            await console.open()
            heard = await listen(stage, "console.#")
            await stage.topology.declare_queue("q")
            await later(stage, console, 10)
            published = headers(heard)
            assert len(published) > 3  # objects, events, heartbeats
            for request in (encode_message("P", 77), encode_message("S", 77, PACKAGE, "queue", queue_hash)):
                console.send(None, request, exchange=VERSION_1)
            await console.settle()
            replies = headers(console.replies)
            assert len(replies) > 2
            expected = {"qmf.agent": console.agent.name} if has_version_2 else {}
            assert [each for each in (*published, *replies) if each != expected] == []

    queue_hash = class_of("queue").hash.bytes
    asyncio.run(scene())


def test_events_without_a_binding_are_not_encoded() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        made: list[object] = []
        outbox: Any = console.agent._outbox
        make = outbox._make_message
        outbox._make_message = lambda new: made.append(new) or make(new)
        await stage.topology.unbind("events", "qmf.default.topic", "agent.ind.event.#")
        await stage.topology.declare_queue("q")
        for _ in range(3):
            await later(stage, console, 10)
        assert made == []

    play_with_console(scene)


# ---- agents of others ----


async def attach(console: Console, bank: int = 0, publisher: Publisher = _AGENT) -> list[Reply]:
    return await ask(console, "A", "sensors", UUID(int=5), 0, bank, publisher=publisher)


def test_an_agent_of_others_is_seen_and_its_schema_is_reported() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        (reply,) = await attach(console)
        assert (reply.opcode, reply.fields) == ("a", {"broker_bank": 1, "agent_bank": 10})
        (again,) = await attach(console, 77)
        assert again.fields["agent_bank"] == 10  # the same one
        (agent,) = await console.query("agent")
        assert agent["_values"]["label"] == "sensors"
        assert agent["_values"]["agentBank"] == 10
        assert await ask(console, "p", "com.example", publisher=_AGENT) == []
        heard = await listen(stage, "schema.#")
        (wanted,) = await ask(console, "q", 1, "com.example", "sensor", _HASH, publisher=_AGENT)
        assert (wanted.opcode, wanted.fields["class"]) == ("S", "sensor")
        schema = struct.pack(">HHH", 0, 0, 0)
        reported = encode_message("s", wanted.sequence, 1, "com.example", "sensor", _HASH, rest=schema)
        console.send(None, reported, exchange=VERSION_1, publisher=_AGENT)
        await console.settle()
        assert [message.opcode for message, _ in split(bodies(heard))] == ["p", "q"]
        assert "com.example" in [each.fields.get("package") for each in await ask(console, "P")]
        found = await ask(console, "Q", "com.example")
        assert [each.fields.get("class") for each in found] == ["sensor", None]
        (reply,) = await ask(console, "S", "com.example", "sensor", _HASH)
        assert reply.rest == schema
        stage.broker.events.emit(ClientDisconnect(_AGENT.remote_host, "", EMPTY_MAP))
        assert await console.query("agent") == []
        assert len(await ask(console, "Q", "com.example")) == 1

    play_with_console(scene)


def test_an_agent_whose_connection_is_closed_by_then_is_not_attached() -> None:
    """Nothing would ever remove it, and the number of agents is limited."""

    async def scene(stage: Wired, console: Console) -> None:
        gone = Publisher("192.0.2.9:3")
        console.send(None, encode_message("A", 1, "sensors", UUID(int=5), 0, 0), exchange=VERSION_1, publisher=gone)
        gone.is_closed = True
        stage.broker.events.emit(ClientDisconnect(gone.remote_host, "", EMPTY_MAP))
        await console.settle()
        assert list(console.agent._agents) == []

    play_with_console(scene)


def test_requests_for_an_agent_are_routed_and_a_new_console_is_notified() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await attach(console)
        agent = await stage.topology.declare_queue("agent")
        await stage.topology.bind("agent", VERSION_1, "agent.1.10")
        bodies(agent)
        request = encode_message("G", 1, typed_map({"_class": "sensor"}))
        console.send(None, request, exchange=VERSION_1, key="agent.1.10")
        await console.settle()
        assert bodies(agent) == [request]
        await listen(stage, "console.#")
        assert [decode_message(each).opcode for each in bodies(agent)] == ["x"]

    play_with_console(scene)


def test_invalid_schema_answers_of_an_agent_are_ignored() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        await attach(console)
        stranger = Publisher("192.0.2.66:6")
        assert await ask(console, "q", 1, "com.example", "sensor", _HASH, publisher=stranger) == []
        assert await ask(console, "q", 9, "com.example", "sensor", _HASH, publisher=_AGENT) == []
        assert await ask(console, "q", 1, PACKAGE, "queue", _HASH, publisher=_AGENT) == []  # the broker's own package
        (wanted,) = await ask(console, "q", 1, "com.example", "sensor", _HASH, publisher=_AGENT)
        for sequence, size, publisher in (
            (wanted.sequence + 1, 6, _AGENT), (wanted.sequence, 6, stranger), (wanted.sequence, 1 << 17, _AGENT),
        ):  # fmt: skip
            reported = encode_message("s", sequence, 1, "com.example", "sensor", _HASH, rest=bytes(size))
            console.send(None, reported, exchange=VERSION_1, publisher=publisher)
        await console.settle()
        assert len(await ask(console, "Q", "com.example")) == 1

    play_with_console(scene)


def test_agents_and_their_classes_are_limited() -> None:
    agents = remote_agents.RemoteAgents()
    for number in range(remote_agents.MAX_AGENTS + 5):
        agents.attach(f"peer {number}", "label", UUID(int=0), 0)
    assert len(list(agents)) == remote_agents.MAX_AGENTS
    agent = next(iter(agents))
    numbers = [agents.announced(agent, 1, ("p", str(number), _HASH)) for number in range(remote_agents.MAX_CLASSES + 5)]
    assert numbers.count(None) == 5
    large = bytes(remote_agents.MAX_SCHEMA_BYTES)
    kept = [agents.described(agent, number or 0, ("p", str(at), _HASH), large) for at, number in enumerate(numbers)]
    assert kept.count(True) == remote_agents.MAX_ALL_SCHEMAS_BYTES // len(large)
    for each in list(agents):
        agents.disconnected(each.peer)
    assert (list(agents), agents.packages(Dialect.AM2)) == ([], [])


# ---- hostile ----


@given(st.lists(st.tuples(st.sampled_from([*FIELDS, "?"]), st.binary(max_size=40)), max_size=4))
def test_any_bytes_are_answered_or_ignored(parts: list[tuple[str, bytes]]) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        body = b"".join(MAGIC + opcode.encode() + bytes(4) + content for opcode, content in parts)
        for key in ("broker", "agent.1.0", "agent.1.10", "schema.package"):
            console.send(None, body, exchange=VERSION_1, key=key)
        await console.settle()
        assert all(decode_message(each) for each in bodies(console.replies))

    play_with_console(scene)


def test_too_many_requests_are_refused() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for number in range(150):
            console.send(None, encode_message("P", number), exchange=VERSION_1)
        await console.settle()
        replies = [decode_message(each) for each in bodies(console.replies)]
        ends = {each.sequence: each.fields["status"] for each in replies if each.opcode == "z"}
        assert [ends[number] for number in range(150)] == [0] * 100 + [7] * 50

    play_with_console(scene)


def test_replies_go_nowhere_if_there_is_no_such_exchange_or_queue() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        outbox, addresses = console.agent._outbox, set[tuple[str, str]]()
        send = outbox.send

        def noted(new: NewMessage, *, reply_for: Any = None) -> None:
            if reply_for is not None:
                addresses.add((new.exchange, new.routing_key))
            send(new, reply_for=reply_for)

        outbox.send = noted  # type: ignore[method-assign]
        for reply_to in (None, ReplyTo("nonsense", REPLIES), ReplyTo(DIRECT, "nonsense")):
            console.send(None, encode_message("P", 1), exchange=VERSION_1, reply_to=reply_to)
        await console.settle()
        assert addresses == {("nonsense", REPLIES), (DIRECT, "nonsense")}
        assert bodies(console.replies) == []
        await stage.topology.delete_queue(REPLIES)
        console.send(None, encode_message("P", 1), exchange=VERSION_1)
        await console.settle()
        assert addresses >= {(DIRECT, REPLIES)}
        assert outbox.lost == 0

    play_with_console(scene)
