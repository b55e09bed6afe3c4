"""Attached agents of version 1, as consoles of version 2 see them: located, queried, called; hostile answers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from qstore.broker.management import agent, proxies, qmf2
from qstore.broker.management.outbox import TOPIC, VERSION_1
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.events import ClientDisconnect
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_10.maps import encode_map
from qstore.formats.qmf.v1 import ObjectId, decode_message, encode, encode_message
from qstore.formats.values import EMPTY_MAP, TYPES, TypedValue, typed_map
from tests.broker.test_qmf1 import bodies, later
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import Console, Reply, take

_AGENT, _STRANGER = Publisher("192.0.2.9:9"), Publisher("192.0.2.66:6")
_HASH = bytes(range(16))
_KEY = ("com.example", "sensor", _HASH)
_NAME = f"qmf1:my_sensors:{UUID(int=5)}-10"
_ATTIC = ObjectId(0, 1, 1, 10, 7)


def small(value: int) -> TypedValue:
    return TypedValue(TYPES["uint8"], value)


def element(name: str, kind: int, **more: Any) -> bytes:
    return encode_map(typed_map({"name": name, "type": small(kind), **more}))


FULL = {"access": small(1), "index": small(1), "optional": small(0)}
SCHEMA = (
    struct.pack(">HHH", 3, 1, 1)
    + element("name", 6, **FULL)
    + element("place", 6, **(FULL | {"optional": small(1)}), desc="Where")
    + element("parent", 10, **FULL)
    + element("celsius", 13, unit="degree")
    + encode_map(typed_map({"name": "calibrate", "argCount": small(2), "desc": "Correct it"}))
    + element("by", 13, dir="I")
    + element("celsius", 13, dir="O")
)


def found(sequence: int, number: int, celsius: float, place: str | None = None) -> bytes:
    """An answer to a query: one object."""
    rest = bytes([0 if place is None else 1]) + encode("sstr", f"n{number}")
    rest += b"" if place is None else encode("sstr", place)
    rest += encode("objId", _ATTIC) + encode("double", celsius)
    return encode_message("g", sequence, *_KEY, 3, 1, 0, _ATTIC._replace(number=number), rest=rest)


class Stand:
    """An attached agent, and what it is asked."""

    def __init__(self, stage: Wired, console: Console) -> None:
        self.stage, self.console = stage, console
        self.queue: Queue

    async def attach(self) -> None:
        self.say(encode_message("A", 1, "my sensors", UUID(int=5), 0, 0), key="broker")
        await self.console.settle()
        bodies(self.console.replies)
        self.queue = await self.stage.topology.declare_queue("agent")
        await self.stage.topology.bind("agent", VERSION_1, "agent.1.10")
        self.say(encode_message("q", 1, 1, *_KEY), key="broker", reply_to=True)
        await self.console.settle()
        (wanted,) = bodies(self.console.replies)
        self.say(encode_message("s", decode_message(wanted).sequence, 1, *_KEY, rest=SCHEMA), key="broker")
        await self.console.settle()
        bodies(self.queue)

    def say(
        self, body: bytes, key: str = proxies.REPLY_KEY, publisher: Publisher = _AGENT, reply_to: bool = False
    ) -> None:
        more: dict[str, Any] = {} if reply_to or key == "broker" else {"reply_to": None}
        self.console.send(None, body, exchange=VERSION_1, key=key, publisher=publisher, **more)

    async def ask(self, opcode: str, content: Any, answer: Callable[[int], list[bytes]] = lambda _: []) -> list[Reply]:
        """A console asks it; it answers each request. Returns what the console gets."""
        self.console.send(opcode, content, key=_NAME)
        for _ in range(2000):
            await asyncio.sleep(0)
            for body in bodies(self.queue):
                for each in answer(decode_message(body).sequence):
                    self.say(each)
            if not self.console.is_busy:
                break
        await self.console.settle()
        return take(self.console.replies)


def play(scene: Callable[[Stand], Awaitable[None]]) -> None:
    async def staged(stage: Wired, console: Console) -> None:
        stand = Stand(stage, console)
        await stand.attach()
        await scene(stand)

    play_with_console(staged)


QUERY = {"_what": "OBJECT", "_schema_id": {"_class_name": "sensor"}}
CALL = {
    "_object_id": {"_object_name": f"com.example:sensor:{_ATTIC}"},
    "_method_name": "calibrate",
    "_arguments": {"by": 1.5},
}


def test_agents_are_located_and_have_heartbeats() -> None:
    async def scene(stand: Stand) -> None:
        replies = await stand.console.ask("_agent_locate_request", [])
        assert [each.values["_name"] for each in replies] == [stand.console.agent.name, _NAME]
        assert replies[1].headers["qmf.agent"] == _NAME
        (only,) = await stand.console.ask("_agent_locate_request", ["eq", "_vendor", ["quote", "qmf1"]])
        assert only.values["_label"] == "my sensors"
        (only,) = await stand.ask("_agent_locate_request", [])
        assert only.values["_name"] == _NAME
        heard = await stand.stage.topology.declare_queue("heard")
        await stand.stage.topology.bind("heard", TOPIC, "agent.ind.heartbeat.qmf1.#")
        await later(stand.stage, stand.console, 10)
        (beat,) = take(heard)
        assert beat.headers["qmf.opcode"] == "_agent_heartbeat_indication"
        assert beat.values["_name"] == beat.headers["qmf.agent"] == _NAME

    play(scene)


def test_classes_and_schemas_are_those_that_it_has_announced() -> None:
    async def scene(stand: Stand) -> None:
        (reply,) = await stand.ask("_query_request", {"_what": "SCHEMA_ID"})
        assert reply.content == [
            {"_package_name": "com.example", "_class_name": "sensor", "_type": "_data", "_hash": str(UUID(bytes=_HASH))}
        ]
        (reply,) = await stand.ask("_query_request", {"_what": "SCHEMA", "_schema_id": {"_class_name": "sensor"}})
        (schema,) = reply.content
        assert [each["_name"] for each in schema["_properties"]] == ["name", "place", "parent", "celsius"]
        name, place, parent, celsius = schema["_properties"]
        assert name == {
            "_name": "name", "_type": "TYPE_STRING", "_subtype": "sstr", "_access": "RC", "_index": True,
            "_optional": False,
        }  # fmt: skip
        assert (place["_optional"], place["_desc"], parent["_type"]) == (True, "Where", "TYPE_MAP")
        assert (celsius["_unit"], celsius["_statistic"]) == ("degree", True)
        (method,) = schema["_methods"]
        assert (method["_name"], method["_desc"]) == ("calibrate", "Correct it")
        assert [(each["_name"], each["_dir"]) for each in method["_arguments"]] == [("by", "I"), ("celsius", "O")]
        (reply,) = await stand.ask("_query_request", {"_what": "SCHEMA", "_schema_id": {"_class_name": "other"}})
        assert reply.content == []

    play(scene)


def test_objects() -> None:
    def answer(sequence: int) -> list[bytes]:
        first = found(sequence, 1, 20.5) + found(sequence, 2, 30.5, "attic")
        more = [found(sequence, number, 1.0) for number in range(10, 40)]
        return [first, *more, encode_message("z", sequence, 0, "OK")]

    async def scene(stand: Stand) -> None:
        replies = await stand.ask("_query_request", QUERY, answer)
        assert [len(each.content) for each in replies] == [25, 7]
        first, second = replies[0].content[:2]
        assert first["_object_id"] == {"_object_name": "com.example:sensor:0-1-1-10-1", "_agent_name": _NAME}
        assert first["_values"] == {"name": "n1", "parent": {"_object_name": "0-1-1-10-7"}, "celsius": 20.5}
        assert second["_values"]["place"] == "attic"
        assert (first["_update_ts"], first["_create_ts"], first["_delete_ts"]) == (3, 1, 0)
        (reply,) = await stand.ask("_query_request", QUERY | {"_where": ["gt", "celsius", 25]}, answer)
        assert [each["_values"]["name"] for each in reply.content] == ["n2"]
        (reply,) = await stand.ask(
            "_query_request", {"_what": "OBJECT_ID", "_where": ["eq", "place", ["quote", "attic"]]}, answer
        )
        assert [each["_object_name"] for each in reply.content] == ["com.example:sensor:0-1-1-10-2"]

    play(scene)


def test_one_object_is_asked_for_by_its_id() -> None:
    async def scene(stand: Stand) -> None:
        def answer(sequence: int) -> list[bytes]:
            return [found(sequence, 7, 20.5) + encode_message("z", sequence, 0, "OK")]

        query = {"_what": "OBJECT", "_object_id": {"_object_name": f"com.example:sensor:{_ATTIC}"}}
        (reply,) = await stand.ask("_query_request", query, answer)
        assert [each["_values"]["name"] for each in reply.content] == ["n7"]

    play(scene)


@pytest.mark.parametrize("name", ["", "nonsense", f"com.example:harmless:{_ATTIC}", "com.example:sensor:0-1-1-10-8"])
def test_an_object_with_another_name_than_was_asked_for_is_not_shown(name: str) -> None:
    """Whoever may ask for one name gets nothing else, whatever the agent answers."""

    async def scene(stand: Stand) -> None:
        def answer(sequence: int) -> list[bytes]:
            return [found(sequence, 7, 20.5) + encode_message("z", sequence, 0, "OK")]

        (reply,) = await stand.ask("_query_request", {"_what": "OBJECT", "_object_id": {"_object_name": name}}, answer)
        assert (reply.headers["qmf.opcode"], reply.content) == ("_query_response", [])

    play(scene)


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        (_NAME, True), (_NAME.replace("-10", "-010"), False), (_NAME.replace("-10", "-11"), False),
        (_NAME.replace("-10", "-\u0661\u0660"), False), (_NAME.replace("my", "your"), False), ("qmf1:", False),
        ("qmf1:-" + "9" * 5000, False),
    ],
)  # fmt: skip
def test_an_agent_is_found_by_its_whole_name(name: str, is_found: bool) -> None:
    async def scene(stand: Stand) -> None:
        assert (stand.console.agent._qmf2.proxies.find(name) is not None) is is_found

    play(scene)


def test_methods() -> None:
    def answer(sequence: int) -> list[bytes]:
        return [encode_message("m", sequence, 0, "OK", rest=encode("double", 22.0))]

    async def scene(stand: Stand) -> None:
        (reply,) = await stand.ask("_method_request", CALL, answer)
        assert reply.headers["qmf.opcode"] == "_method_response"
        assert reply.content == {"_arguments": {"celsius": 22.0}}
        for more, code in (
            ({"_arguments": {}}, 4), ({"_arguments": {"by": 1.5, "x": 1}}, 4), ({"_method_name": "nonsense"}, 2),
            ({"_object_id": {"_object_name": "com.example:other:0-1-1-10-7"}}, 1),
            ({"_object_id": {"_object_name": "nonsense"}}, 1), ({"_arguments": {"by": "hot"}}, 4),
        ):  # fmt: skip
            (reply,) = await stand.ask("_method_request", CALL | more)
            assert (reply.headers["qmf.opcode"], reply.values["error_code"]) == ("_exception", code), more
            assert reply.headers["qmf.agent"] == _NAME
        (reply,) = await stand.ask("_method_request", CALL, lambda number: [encode_message("m", number, 4, "too hot")])
        assert (reply.values["error_code"], reply.values["error_text"]) == (4, "too hot")

    play(scene)


@pytest.mark.parametrize(
    "body",
    [
        lambda number: encode_message("z", number, 7, "broken"),
        lambda number: encode_message("h", number, 5),
        lambda number: found(number, 1, 2.0)[:-3],
        lambda number: encode_message("g", number, "com.example", "other", _HASH, 3, 1, 0, _ATTIC),
        lambda number: b"AM2g" + struct.pack(">I", number),
    ],
)
@pytest.mark.replaces
def test_answers_that_cannot_be_read_are_exceptions(
    body: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "TIMEOUT", 0.05)

    async def scene(stand: Stand) -> None:
        (reply,) = await stand.ask("_query_request", QUERY, lambda number: [body(number)])
        assert (reply.headers["qmf.opcode"], reply.values["error_code"]) == ("_exception", 7)
        assert not stand.console.agent._qmf2.proxies._pending

    play(scene)


@pytest.mark.replaces
def test_answers_of_others_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "TIMEOUT", 0.05)

    async def scene(stand: Stand) -> None:
        def answer(sequence: int) -> list[bytes]:
            stand.say(encode_message("m", sequence, 0, "OK", rest=encode("double", 99.0)), publisher=_STRANGER)
            return []

        (reply,) = await stand.ask("_method_request", CALL, answer)
        assert "has not answered within" in reply.values["error_text"]

    play(scene)


def test_an_agent_that_goes_has_no_more_answers() -> None:
    async def scene(stand: Stand) -> None:
        def answer(_sequence: int) -> list[bytes]:
            stand.stage.broker.events.emit(ClientDisconnect(_AGENT.remote_host, "", EMPTY_MAP))
            return []

        (reply,) = await stand.ask("_query_request", QUERY, answer)
        assert reply.values["error_text"] == "the agent is gone"
        assert [each.values["_name"] for each in await stand.console.ask("_agent_locate_request", [])] == [
            stand.console.agent.name
        ]

    play(scene)


@pytest.mark.replaces
def test_answers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "MAX_ANSWER_BYTES", 500)

    async def scene(stand: Stand) -> None:
        (reply,) = await stand.ask("_query_request", QUERY, lambda number: [found(number, 1, 2.0) * 2] * 9)
        assert "the answer has more than" in reply.values["error_text"]

    play(scene)


@pytest.mark.parametrize("right", ["query", "method", "publish"])
def test_the_user_of_the_console_needs_the_rights(right: str) -> None:
    async def scene(stand: Stand) -> None:
        authorization = stand.stage.broker.authorization
        asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

        def refuse(*args: Any, **more: Any) -> None:
            if right != "publish" or args[1] == VERSION_1:
                asked.append((args[1:], more))
                raise UnauthorizedError("no")

        if right == "publish":
            authorization.check_publish = refuse  # type: ignore[method-assign,assignment]
        else:
            authorization.check = refuse  # type: ignore[method-assign,assignment]
        opcode, content = ("_query_request", QUERY) if right == "query" else ("_method_request", CALL)
        (reply,) = await stand.ask(opcode, content, lambda _: pytest.fail("the agent was asked"))
        assert reply.headers["qmf.opcode"] == "_exception"
        expected = {
            "query": {"schemaclass": "sensor"},
            "method": {"schemapackage": "com.example", "schemaclass": "sensor"},
            "publish": {},
        }
        assert [more for _, more in asked] == [expected[right]]
        if right == "publish":
            assert asked[0] == ((VERSION_1, "agent.1.10"), {})

    play(scene)


# ---- many agents, large classes ----


class Slices:
    """Time slices that are always over, counted."""

    is_over = True

    def __init__(self) -> None:
        self.count = 0

    async def next(self) -> None:
        self.count += 1
        await asyncio.sleep(0)


async def describe(stand: Stand, name: str, schema: bytes) -> None:
    key = ("com.example", name, _HASH)
    stand.say(encode_message("q", 1, 1, *key), key="broker", reply_to=True)
    await stand.console.settle()
    (wanted,) = bodies(stand.console.replies)
    stand.say(encode_message("s", decode_message(wanted).sequence, 1, *key, rest=schema), key="broker")
    await stand.console.settle()


def test_large_classes_are_described_in_time_slices_and_few_in_a_message() -> None:
    async def scene(stand: Stand) -> None:
        for number in range(5):
            await describe(stand, f"large{number}", struct.pack(">HHH", 200, 0, 0) + element("x", 6) * 200)
        stand.console.managed.slices = slices = Slices()  # type: ignore[assignment]
        replies = await stand.ask("_query_request", {"_what": "SCHEMA"})
        assert [len(each.content) for each in replies] == [3, 2, 1]
        assert ["partial" in each.headers for each in replies] == [True, True, False]
        assert slices.count >= 6

    play(scene)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (struct.pack(">HHH", 501, 0, 0) + element("x", 6) * 501, "more than 500 elements"),
        (
            struct.pack(">HHH", 250, 0, 1) + element("x", 6) * 250
            + encode_map(typed_map({"name": "m", "argCount": small(250)})) + element("x", 6) * 250,
            "more than 500 elements",
        ),
        (struct.pack(">HHH", 1, 0, 0) + element("x", 6, **{f"n{each}": "" for each in range(15)}), "too many names"),
    ],
)  # fmt: skip
def test_classes_are_limited(schema: bytes, what: str) -> None:
    async def scene(stand: Stand) -> None:
        await describe(stand, "large", schema)
        (reply,) = await stand.ask("_query_request", {"_what": "SCHEMA", "_schema_id": {"_class_name": "large"}})
        assert what in reply.values["error_text"]

    play(scene)


def test_many_agents_are_located_and_have_heartbeats_in_time_slices() -> None:
    async def scene(stand: Stand) -> None:
        for number in range(20):
            stand.say(encode_message("A", 1, f"more {number}", UUID(int=6), 0, 0), key="broker")
        await stand.console.settle()
        bodies(stand.console.replies)
        heard = await stand.stage.topology.declare_queue("heard")
        await stand.stage.topology.bind("heard", TOPIC, "agent.ind.heartbeat.qmf1.#")
        stand.console.managed.slices = slices = Slices()  # type: ignore[assignment]
        assert len(await stand.console.ask("_agent_locate_request", [])) == 22
        assert slices.count >= 21
        slices.count = 0
        await later(stand.stage, stand.console, 10)
        assert len(take(heard)) == 21
        assert slices.count >= 21

    play(scene)


def test_what_an_agent_of_version_1_lacks_is_refused() -> None:
    async def scene(stand: Stand) -> None:
        for opcode in ("_subscribe_request", "_nonsense"):
            (reply,) = await stand.ask(opcode, {})
            assert reply.values["error_code"] == 4
        (reply,) = await stand.ask("_query_request", {"_what": "NONSENSE"})
        assert reply.values["error_code"] == 4

    play(scene)


# ---- what agents publish unasked ----

EVENT_KEY = ("com.example", "tooHot", bytes(range(1, 17)))
EVENT_SCHEMA = struct.pack(">H", 2) + element("name", 6) + element("celsius", 13)
TOO_HOT = encode_message("e", 0, *EVENT_KEY, 7, 4, rest=encode("sstr", "attic") + encode("double", 45.0))


async def listening(stand: Stand) -> Queue:
    """A queue that gets all indications of the agent, which has also announced an event."""
    stand.say(encode_message("q", 1, 2, *EVENT_KEY), key="broker", reply_to=True)
    await stand.console.settle()
    (wanted,) = bodies(stand.console.replies)
    stand.say(encode_message("s", decode_message(wanted).sequence, 2, *EVENT_KEY, rest=EVENT_SCHEMA), key="broker")
    heard = await stand.stage.topology.declare_queue("heard")
    await stand.stage.topology.bind("heard", TOPIC, "agent.ind.event.#")
    await stand.stage.topology.bind("heard", TOPIC, "agent.ind.data.#")
    await stand.console.settle()
    take(heard)
    return heard


async def published(stand: Stand, heard: Queue, key: str, body: bytes, publisher: Publisher = _AGENT) -> list[Reply]:
    stand.say(body, key=key, publisher=publisher)
    await stand.console.settle()
    return [each for each in take(heard) if each.headers["qmf.agent"] == _NAME]


def test_events_and_objects_reach_consoles_of_both_versions() -> None:
    async def scene(stand: Stand) -> None:
        heard, old = await listening(stand), await stand.stage.topology.declare_queue("old")
        await stand.stage.topology.bind("old", VERSION_1, "console.event.1.10.#")
        (event,) = await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT)
        assert bodies(old) == [TOO_HOT]
        assert event.key == f"agent.ind.event.com_example.tooHot.warn.{_NAME.replace(':', '.')}"
        assert (event.headers["qmf.opcode"], event.headers["qmf.content"]) == ("_data_indication", "_event")
        (only,) = event.content
        assert only["_values"] == {"name": "attic", "celsius": 45.0}
        assert (only["_severity"], only["_timestamp"], only["_schema_id"]["_type"]) == (4, 7, "_event")
        properties = b"\1" + encode("sstr", "n7") + encode("sstr", "roof") + encode("objId", _ATTIC)
        body = encode_message("c", 0, *_KEY, 3, 1, 0, _ATTIC, rest=properties)
        body += encode_message("i", 0, *_KEY, 3, 1, 0, _ATTIC, rest=encode("double", 21.5))
        (data,) = await published(stand, heard, "console.obj.1.10.com.example.sensor", body + found(0, 8, 2.5))
        assert data.key == f"agent.ind.data.com_example.sensor.{_NAME.replace(':', '.')}"
        first, second, third = data.content
        assert first["_values"].keys() == {"name", "place", "parent"}
        assert second["_values"] == {"celsius": 21.5}
        assert first["_object_id"] == second["_object_id"]
        assert first["_object_id"]["_agent_name"] == _NAME
        assert third["_values"].keys() == {"name", "parent", "celsius"}

    play(scene)


@pytest.mark.parametrize(
    ("key", "body", "publisher"),
    [
        ("console.event.1.10.com.example.tooHot", TOO_HOT, _STRANGER),
        ("console.event.1.11.com.example.tooHot", TOO_HOT, _AGENT),
        ("console.event.1.10.com.example.tooHot", TOO_HOT[:-3], _AGENT),
        ("console.event.1.10.com.example.tooHot", encode_message("z", 1, 0, "no"), _AGENT),
        ("console.event.1.10.com.example.tooHot", encode_message("e", 0, *_KEY, 7, 4, rest=TOO_HOT), _AGENT),
        ("console.event.1.10.com.example.tooHot", encode_message("e", 0, "x", "y", _HASH, 7, 4), _AGENT),
        ("console.event.1.x.com.example.tooHot", TOO_HOT, _AGENT),
        ("console.event.1.", TOO_HOT, _AGENT),
    ],
)
def test_what_is_not_an_agents_own_or_cannot_be_read_does_not_reach_consoles_of_version_2(
    key: str, body: bytes, publisher: Publisher
) -> None:
    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        assert await published(stand, heard, key, body, publisher) == []
        assert len(await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT)) == 1

    play(scene)


def test_an_agent_needs_the_right_to_publish_to_consoles_of_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        asked: list[tuple[Any, str, str]] = []

        def check(caller: Any, exchange: str, key: str) -> None:
            asked.append((caller, exchange, key))
            if exchange == TOPIC:
                raise UnauthorizedError("no")

        monkeypatch.setattr(stand.stage.broker.authorization, "check_publish", check)
        assert await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT) == []
        assert asked[-1][:2] == (_AGENT, TOPIC)

    play(scene)


def test_publications_with_many_values_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As answers are: to encode all of them at once would hold up the event loop."""

    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        monkeypatch.setattr(qmf2, "_PORTION_VALUES", 4)
        events = await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT * 5)
        assert [len(each.content) for each in events] == [2, 2, 1]

    play(scene)


def test_publications_that_come_faster_than_they_are_read_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        monkeypatch.setattr(proxies, "MAX_OVERHEARD_BYTES", 3 * len(TOO_HOT))
        for _ in range(5):
            stand.say(TOO_HOT, key="console.event.1.10.com.example.tooHot")
        await stand.console.settle()
        assert len(take(heard)) == 3
        assert len(await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT)) == 1

    play(scene)


def test_what_comes_after_a_failure_reaches_consoles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an allocation that fails while several publications wait."""

    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        own = stand.console.agent._qmf2.proxies

        async def fail(*_arguments: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(proxies.Proxies, "_publish_again", fail)
            for _ in range(3):
                own.overheard(_AGENT, "console.event.1.10.com.example.tooHot", TOO_HOT)
            with pytest.raises(MemoryError):
                await own.publish_overheard()
        assert len(await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT)) == 1

    play(scene)


def test_what_is_larger_than_a_request_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stand: Stand) -> None:
        heard = await listening(stand)
        monkeypatch.setattr(agent, "_MAX_REQUEST_BYTES", 1_000)
        assert await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT * 20) == []
        assert len(await published(stand, heard, "console.event.1.10.com.example.tooHot", TOO_HOT)) == 1

    play(scene)
