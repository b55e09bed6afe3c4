"""Subscriptions of QMF version 2: what is indicated and when, how they end, whose they are, and their limits."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.management import subscriptions
from qstore.broker.management.outbox import DIRECT
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.events import ClientDisconnect
from qstore.formats.values import EMPTY_MAP
from tests.broker.wired_broker import Wired, play_with_console
from tests.support.management_console import CONSOLE, Console, Reply, pass_time, take

QUEUES = {"_what": "OBJECT", "_schema_id": {"_class_name": "queue"}, "_where": ["re_match", "name", ["quote", "^q"]]}
OTHER = Publisher("192.0.2.8:2")
OTHER.user = "other@QPID"


async def later(stage: Wired, console: Console, seconds: float) -> list[Reply]:
    """What has come to the console so much later."""
    pass_time(stage.broker, seconds)
    console.agent.on_timer()
    await console.settle()
    return take(console.replies)


async def subscribe(console: Console, query: dict[str, Any] = QUEUES, **more: Any) -> str:
    (reply,) = await console.ask("_subscribe_request", {"_query": query, **more})
    assert reply.headers["qmf.opcode"] == "_subscribe_response", reply
    assert reply.headers["method"] == "response"
    name = reply.content["_subscription_id"]
    assert isinstance(name, str)
    return name


def names(replies: list[Reply]) -> list[str]:
    assert all(each.headers["qmf.opcode"] == "_data_indication" for each in replies)
    return [each["_object_id"]["_object_name"].rpartition(":")[2] for reply in replies for each in reply.content]


def test_the_first_indication_has_all_and_later_ones_what_has_changed() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for name in ("q1", "q2", "other"):
            await stage.topology.declare_queue(name)
        console.send("_subscribe_request", {"_query": QUEUES, "_interval": 5000})
        await console.settle()
        (granted,) = take(console.replies)
        assert (granted.content["_duration"], granted.content["_interval"]) == (600, 5000)
        first = await later(stage, console, 0)
        assert sorted(names(first)) == ["q1", "q2"]
        assert {each.correlation_id for each in first} == {granted.correlation_id}
        assert first[0].headers["qmf.content"] == "_data"
        assert first[0].headers["method"] == "indication"
        assert await later(stage, console, 5) == []
        await stage.publish("", "q2", b"12345", persistent=False)
        assert await later(stage, console, 4) == []
        (changed,) = await later(stage, console, 1)
        assert names([changed]) == ["q2"]
        assert changed.content[0]["_values"]["msgDepth"] == 1
        await stage.topology.declare_queue("q3")
        shown = [each for reply in await later(stage, console, 5) for each in reply.content]
        found = {each["_object_id"]["_object_name"].rpartition(":")[2]: each["_values"] for each in shown}
        marks = {"msgDepthLow": 1, "byteDepthLow": 5}  # of q2, if their interval has ended meanwhile
        assert found.pop("q2", marks) in (marks, changed.content[0]["_values"] | marks)
        assert [*found] == ["q3"]

    play_with_console(scene)


def test_an_object_that_is_gone_is_told_once() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q1")
        await subscribe(console, _interval=1000)
        await later(stage, console, 0)
        await stage.topology.delete_queue("q1")
        (reply,) = await later(stage, console, 1)
        assert names([reply]) == ["q1"]
        assert reply.content[0]["_delete_ts"] > 0
        assert reply.content[0]["_schema_id"]["_class_name"] == "queue"
        assert await later(stage, console, 1) == []

    play_with_console(scene)


def test_an_object_that_no_longer_fulfils_the_query_is_not_told_until_it_does_again() -> None:
    query = QUEUES | {"_where": ["and", ["gt", "msgDepth", 0], ["re_match", "name", ["quote", "^q"]]]}

    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q1")
        await subscribe(console, query, _interval=1000)
        (first,) = await later(stage, console, 0)
        assert first.content == []
        await stage.publish("", "q1", b"12345", persistent=False)
        assert names(await later(stage, console, 1)) == ["q1"]
        stage.broker.default_host.queues["q1"].purge()
        assert await later(stage, console, 1) == []
        await stage.publish("", "q1", b"12345", persistent=False)
        assert names(await later(stage, console, 1)) == ["q1"]

    play_with_console(scene)


def test_ids_alone() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q1")
        await subscribe(console, QUEUES | {"_what": "OBJECT_ID"}, _interval=1000)
        (first,) = await later(stage, console, 0)
        assert first.content == [{"_object_name": "org.apache.qpid.broker:queue:q1"}]
        assert first.headers["qmf.content"] == "_object_id"
        await stage.publish("", "q1", b"12345", persistent=False)
        assert await later(stage, console, 1) == []

    play_with_console(scene)


def test_many_objects_come_in_portions() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        for number in range(60):
            await stage.topology.declare_queue(f"q{number}")
        await subscribe(console)
        replies = await later(stage, console, 0)
        assert [len(each.content) for each in replies] == [25, 25, 10]
        assert len(set(names(replies))) == 60

    play_with_console(scene)


# ---- the end ----


def test_a_subscription_ends_with_its_duration_unless_it_is_refreshed() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        name = await subscribe(console, _duration=20, _interval=1000)
        await later(stage, console, 15)
        (reply,) = await console.ask("_subscribe_refresh_indication", {"_subscription_id": name, "_duration": 30})
        assert reply.content == {"_subscription_id": name, "_duration": 30, "_interval": 1000}
        await stage.topology.declare_queue("q1")
        assert names(await later(stage, console, 29)) == ["q1"]
        await stage.topology.declare_queue("q2")
        assert await later(stage, console, 1) == []
        assert len(console.agent._qmf2.subscriptions) == 0
        (reply,) = await console.ask("_subscribe_refresh_indication", {"_subscription_id": name})
        assert reply.values["error_code"] == 1

    play_with_console(scene)


def test_a_subscription_is_cancelled() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        name = await subscribe(console)
        assert await console.ask("_subscribe_cancel_indication", {"_subscription_id": name}) == []
        assert await later(stage, console, 0) == []
        (reply,) = await console.ask("_subscribe_cancel_indication", {"_subscription_id": name})
        assert reply.headers["qmf.opcode"] == "_exception"

    play_with_console(scene)


def test_a_subscription_ends_with_its_connection() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await subscribe(console)
        stage.broker.events.emit(ClientDisconnect(OTHER.remote_host, "", EMPTY_MAP))
        assert len(console.agent._qmf2.subscriptions) == 1
        stage.broker.events.emit(ClientDisconnect(CONSOLE.remote_host, "", EMPTY_MAP))
        assert len(console.agent._qmf2.subscriptions) == 0

    play_with_console(scene)


def test_a_request_of_a_connection_that_is_closed_by_then_makes_no_subscription() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        gone = Publisher("192.0.2.9:3")
        console.send("_subscribe_request", {"_query": QUEUES}, publisher=gone)
        gone.is_closed = True
        stage.broker.events.emit(ClientDisconnect(gone.remote_host, "", EMPTY_MAP))
        await console.settle()
        assert len(console.agent._qmf2.subscriptions) == 0

    play_with_console(scene)


@pytest.mark.parametrize("opcode", ["_subscribe_refresh_indication", "_subscribe_cancel_indication"])
def test_a_subscription_belongs_to_its_user(opcode: str) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        name = await subscribe(console)
        (reply,) = await console.ask(opcode, {"_subscription_id": name}, publisher=OTHER)
        assert reply.values["error_code"] == 1
        assert len(console.agent._qmf2.subscriptions) == 1

    play_with_console(scene)


def test_each_sweep_asks_whether_the_user_may_still_query() -> None:
    async def scene(stage: Wired, console: Console) -> None:
        await stage.topology.declare_queue("q1")
        await subscribe(console, _interval=1000)
        asked: list[object] = []

        def refuse(_caller: object, _action: object, _of: object, _name: str, **given: str) -> None:
            asked.append(given["schemaclass"])
            raise UnauthorizedError("no")

        stage.broker.authorization.check = refuse  # type: ignore[method-assign,assignment]
        (reply,) = await later(stage, console, 0)
        assert asked == ["queue"]
        assert reply.headers["qmf.opcode"] == "_exception"
        assert "unauthorized-access" in reply.values["error_text"]
        assert len(console.agent._qmf2.subscriptions) == 0

    play_with_console(scene)


# ---- limits ----


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({}, "the request has no _query"),
        ({"_query": 5}, "the request has no _query"),
        ({"_query": {"_what": "SCHEMA"}}, "a subscription is to OBJECT or OBJECT_ID"),
        ({"_query": {"_what": "OBJECT"}}, "neither _object_id nor _schema_id nor _where"),
        ({"_query": QUEUES, "_duration": "long"}, "_duration must be a number"),
        ({"_query": QUEUES, "_interval": True}, "_interval must be a number"),
        ({"_query": QUEUES | {"x": "y" * subscriptions.MAX_QUERY_BYTES}}, "at most 16,384 bytes"),
    ],
)
def test_what_cannot_be_subscribed_to(content: dict[str, Any], what: str) -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        (reply,) = await console.ask("_subscribe_request", content)
        assert what in reply.values["error_text"]
        assert len(console.agent._qmf2.subscriptions) == 0

    play_with_console(scene)


def test_numbers_are_the_nearest_that_are_allowed() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for given, expected in (((1, 1), (10, 1000)), ((1e9, 1e12), (86_400, 3_600_000)), ((0, 0), (600, 10_000))):
            content = {"_query": QUEUES, "_duration": given[0], "_interval": given[1]}
            (reply,) = await console.ask("_subscribe_request", content)
            assert (reply.content["_duration"], reply.content["_interval"]) == expected

    play_with_console(scene)


def test_subscriptions_of_a_connection_and_of_all_are_limited() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        for _ in range(subscriptions.MAX_OF_CONNECTION):
            await subscribe(console)
        (reply,) = await console.ask("_subscribe_request", {"_query": QUEUES})
        assert "too many subscriptions" in reply.values["error_text"]
        (reply,) = await console.ask("_subscribe_request", {"_query": QUEUES}, publisher=OTHER)
        assert reply.headers["qmf.opcode"] == "_subscribe_response"

    play_with_console(scene)


@pytest.mark.replaces
def test_watched_objects_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_WATCHED", 3)

    async def scene(stage: Wired, console: Console) -> None:
        for number in range(2):
            await stage.topology.declare_queue(f"q{number}")
        await subscribe(console)
        assert len(names(await later(stage, console, 0))) == 2
        second = await subscribe(console)
        replies = await later(stage, console, 0)
        assert "watch too many objects" in replies[-1].values["error_text"]
        assert len(console.agent._qmf2.subscriptions) == 1
        (reply,) = await console.ask("_subscribe_cancel_indication", {"_subscription_id": second})
        assert reply.values["error_code"] == 1

    play_with_console(scene)


def test_a_subscription_without_a_reply_to_is_none() -> None:
    async def scene(_stage: Wired, console: Console) -> None:
        console.send("_subscribe_request", {"_query": QUEUES}, exchange=DIRECT, reply_to=None)
        await console.settle()
        assert len(console.agent._qmf2.subscriptions) == 0

    play_with_console(scene)
