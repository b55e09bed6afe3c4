"""Agents of other programs, made with the library, as consoles see them over a real broker."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qstore.broker.client import Connection, Message, MessagingError
from qstore.broker.management import agent_library
from qstore.broker.management.agent_library import (
    MAX_REQUEST_BYTES,
    MAX_SUBSCRIPTIONS,
    MAX_WORK,
    Agent,
    Argument,
    ManagedData,
    Method,
    Property,
    RefusedError,
    WorkItem,
    WorkKind,
    WorkQueue,
    WorkSubscription,
    event_class,
    object_class,
)
from qstore.broker.management.console import AgentError, AgentInfo, Console, Event, NoObjectError
from tests.support.processes import PATIENCE_SECONDS

SENSOR = object_class(
    "com.example",
    "sensor",
    [
        Property("name", "sstr", "RC", is_index=True),
        Property("celsius", "double", unit="degree", description="Temperature", is_statistic=True),
    ],
    [
        Method("calibrate", (Argument("by", "double", "I"), Argument("celsius", "double", "O")), "Correct it"),
        Method("fail", ()),
    ],
)
ALARM = event_class("com.example", "tooHot", [Property("name", "sstr")])


def calibrate(sensor: ManagedData, arguments: dict[str, Any], _user: str) -> dict[str, Any]:
    if arguments["by"] > 10:
        raise RefusedError("that is too much", 4)
    sensor.add("celsius", arguments["by"])
    return {"celsius": sensor["celsius"]}


def fail(_sensor: ManagedData, _arguments: dict[str, Any], _user: str) -> None:
    raise ZeroDivisionError("oops")


@pytest.fixture
def agent(url: str) -> Iterator[Agent]:
    with Agent(url, vendor="example.com", product="sensors", heartbeat=1) as opened:
        yield opened


@pytest.fixture
def attic(agent: Agent) -> ManagedData:
    values = {"name": "attic", "celsius": 20.5}
    return agent.add(SENSOR, "attic", values, {"calibrate": calibrate, "fail": fail})


def test_consoles_find_it_by_its_name_and_by_a_heartbeat(console: Console, agent: Agent) -> None:
    assert agent.name in [each.name for each in console.agents(2.0)]
    with console.indications(events=False) as arriving:
        while True:
            found = arriving.next(60)
            assert isinstance(found, AgentInfo)
            if found.name == agent.name:
                break
    assert (found.vendor, found.product, found.heartbeat_interval) == ("example.com", "sensors", 1)


def test_objects_and_classes(console: Console, agent: Agent, attic: ManagedData) -> None:
    for number in range(60):
        agent.add(SENSOR, f"n{number}", {"name": f"n{number}", "celsius": float(number)})
    found = {each["name"]: each for each in console.query("sensor", agent=agent.name)}
    assert len(found) == 61
    assert found["attic"]["celsius"] == 20.5
    assert found["attic"].key == "attic"
    hot = console.query("sensor", where=["gt", "celsius", 55], agent=agent.name)
    assert sorted(each["name"] for each in hot) == ["n56", "n57", "n58", "n59"]
    assert [each["name"] for each in console.query(object_id=found["attic"])] == ["attic"]
    assert list(console.query("nonsense", agent=agent.name)) == []
    assert console.classes(agent=agent.name) == [SENSOR.id]
    assert console.schema("sensor", agent=agent.name) == SENSOR
    attic["celsius"] = 3.5
    assert console.find(found["attic"])["celsius"] == 3.5
    attic.destroy()
    with pytest.raises(NoObjectError):
        console.find(found["attic"])


def test_methods(console: Console, agent: Agent, attic: ManagedData) -> None:
    assert console.call(attic.name, "calibrate", by=1.5, agent=agent.name) == {"celsius": 22.0}
    assert attic["celsius"] == 22.0
    for method, arguments, code, text in (
        ("calibrate", {"by": 11.0}, 4, "that is too much"),
        ("calibrate", {"nonsense": 1}, 4, "takes the arguments by"),
        ("fail", {}, 7, "ZeroDivisionError: oops"),
        ("nonsense", {}, 2, "no method nonsense"),
    ):
        with pytest.raises(AgentError, match=text) as refused:
            console.call(attic.name, method, arguments, agent=agent.name)
        assert refused.value.code == code
    with pytest.raises(AgentError, match="no object") as refused:
        console.call("com.example:sensor:none", "calibrate", by=1.0, agent=agent.name)
    assert refused.value.code == 1
    assert agent.error is None


def test_events(console: Console, agent: Agent) -> None:
    with console.indications(heartbeats=False) as arriving:
        agent.raise_event(ALARM, {"name": "attic"}, severity=4)
        while not isinstance(found := arriving.next(60), Event) or found.name != "tooHot":
            assert found is not None
    assert (found.name, found.values, found.severity_name) == ("tooHot", {"name": "attic"}, "warning")
    assert found.agent == agent.name
    assert console.classes(agent=agent.name) == [ALARM.id]


class Subscriber:
    """A console that subscribes."""

    def __init__(self, url: str, agent: Agent) -> None:
        self._connection, self._agent = Connection.establish(url), agent
        self._session = self._connection.session()
        self._replies = self._session.receiver("subscriber; {create: always, delete: always}", capacity=100)
        self._requests = self._session.sender("qmf.default.direct; {node: {type: topic}}")

    def ask(self, opcode: str, content: Any) -> None:
        headers = {"qmf.opcode": opcode, "x-amqp-0-10.app-id": "qmf2"}
        self._requests.send(Message(content, subject=self._agent.name, reply_to="subscriber", properties=headers))

    def next(self, opcode: str) -> Any:
        found = self._replies.fetch(60)
        self._session.acknowledge()
        assert found.properties["qmf.opcode"] == opcode, found.content
        return found.content

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def subscriber(url: str, agent: Agent) -> Iterator[Subscriber]:
    found = Subscriber(url, agent)
    yield found
    found.close()


QUERY = {"_what": "OBJECT", "_schema_id": {"_class_name": "sensor"}}


def test_subscriptions(agent: Agent, attic: ManagedData, subscriber: Subscriber) -> None:
    subscriber.ask("_subscribe_request", {"_query": QUERY, "_interval": 1, "_duration": 60})
    granted = subscriber.next("_subscribe_response")
    assert (granted["_duration"], granted["_interval"]) == (60, 1000)
    (first,) = subscriber.next("_data_indication")
    assert first["_values"] == {"name": "attic", "celsius": 20.5}
    attic["celsius"] = 21.0
    (changed,) = subscriber.next("_data_indication")
    assert changed["_values"]["celsius"] == 21.0
    attic.destroy()
    (gone,) = subscriber.next("_data_indication")
    assert gone["_delete_ts"] > 0
    name = {"_subscription_id": granted["_subscription_id"]}
    subscriber.ask("_subscribe_refresh_indication", name | {"_duration": 90})
    assert subscriber.next("_subscribe_response")["_duration"] == 90
    subscriber.ask("_subscribe_cancel_indication", name)
    subscriber.ask("_subscribe_refresh_indication", name)
    assert "no such subscription" in subscriber.next("_exception")["_values"]["error_text"]


def test_subscriptions_are_limited(agent: Agent, subscriber: Subscriber) -> None:
    query = QUERY | {"_what": "OBJECT_ID"}
    for _ in range(MAX_SUBSCRIPTIONS):
        subscriber.ask("_subscribe_request", {"_query": query, "_interval": 3_600_000})
    subscriber.ask("_subscribe_request", {"_query": query})
    opcodes: list[str] = []
    while opcodes.count("_exception") == 0:
        found = subscriber._replies.fetch(60)
        opcodes.append(str(found.properties["qmf.opcode"]))
    assert opcodes.count("_subscribe_response") == MAX_SUBSCRIPTIONS


@pytest.mark.parametrize(
    ("opcode", "content"),
    [
        ("_nonsense", {}),
        ("_query_request", [1]),
        ("_query_request", {"_what": "NONSENSE"}),
        ("_query_request", QUERY | {"_where": ["nonsense"]}),
        ("_agent_locate_request", ["nonsense"]),
        ("_method_request", {}),
        ("_subscribe_request", {"_query": 5}),
        ("_subscribe_request", {"_query": QUERY | {"x": list(range(2000))}}),
        ("_subscribe_cancel_indication", {}),
    ],
)
def test_what_cannot_be_is_refused_and_the_agent_goes_on(
    subscriber: Subscriber, agent: Agent, opcode: str, content: Any
) -> None:
    subscriber.ask(opcode, content)
    assert subscriber.next("_exception")["_values"]["error_code"] in (1, 4)
    subscriber.ask("_agent_locate_request", [])
    assert subscriber.next("_agent_locate_response")["_values"]["_name"] == agent.name


def test_a_request_that_is_too_large_does_not_reach_the_agent(url: str, agent: Agent, console: Console) -> None:
    connection = Connection.establish(url)
    sender = connection.session().sender("qmf.default.direct; {node: {type: topic}}")
    with pytest.raises(MessagingError, match="larger than the maximum depth"):
        sender.send(Message(b"x" * (MAX_REQUEST_BYTES + 1), subject=agent.name))
    with contextlib.suppress(MessagingError):
        connection.close(0)
    assert console.classes(agent=agent.name) == []
    assert agent.error is None


def test_replies_to_nowhere_are_dropped(agent: Agent, console: Console, subscriber: Subscriber) -> None:
    for address in ("gone", "no.exchange/key", "qmf.default.direct/nobody", '"it\'s gone"'):
        subscriber._requests.send(
            Message({}, subject=agent.name, reply_to=address, properties={"qmf.opcode": "_nonsense"})
        )
    assert console.classes(agent=agent.name) == []
    assert agent.error is None


def test_an_exchange_for_replies_that_is_gone_does_not_end_the_agent(
    agent: Agent, console: Console, subscriber: Subscriber
) -> None:
    console.call("broker", "create", type="exchange", name="passing", properties={"exchange-type": "direct"})
    request = Message({}, subject=agent.name, reply_to="passing/key", properties={"qmf.opcode": "_nonsense"})
    subscriber._requests.send(request)
    assert console.classes(agent=agent.name) == []
    console.call("broker", "delete", type="exchange", name="passing")
    for _ in range(5):
        subscriber._requests.send(request)
        assert console.classes(agent=agent.name) == []
    assert agent.error is None
    assert len(agent._connection._core.sessions) <= 3  # for requests, and for replies to each of the two


def test_results_and_values_that_cannot_be_sent_are_refused(console: Console, agent: Agent, attic: ManagedData) -> None:
    attic._methods["fail"] = lambda *_: {"x": object()}
    with pytest.raises(AgentError) as refused:
        console.call(attic.name, "fail", agent=agent.name)
    assert refused.value.code == 4
    attic["celsius"] = object()
    with pytest.raises(AgentError):
        list(console.query("sensor", agent=agent.name))
    with pytest.raises(MessagingError):
        agent.raise_event(ALARM, {"name": object()})
    assert agent.error is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: object_class("p", "c", [Property("x", "nonsense")]),
        lambda: Agent("localhost", vendor="a:b", product="c"),
        lambda: Agent("localhost", vendor="", product="c"),
    ],
)
def test_what_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"not a type|are words of"):
        make()


def test_values_are_those_of_the_class(agent: Agent, attic: ManagedData) -> None:
    with pytest.raises(KeyError, match="no property nonsense"):
        attic["nonsense"] = 1
    with pytest.raises(ValueError, match="no nonsense"):
        agent.add(SENSOR, "b", {"nonsense": 1})
    with pytest.raises(ValueError, match="already"):
        agent.add(SENSOR, "attic", {})
    assert agent.objects() == [attic]


def test_an_agent_that_has_lost_its_connection_says_why(url: str) -> None:
    agent = Agent(url, vendor="v", product="p")
    agent.open()
    agent._connection.close(0)
    for _ in range(200):
        if agent.error is not None:
            break
        time.sleep(0.05)
    assert agent.error is not None
    agent.close()


# ---- objects outside of the agent ----


class Thermometers:
    """A program with objects of its own, which takes one item after the other in a thread."""

    def __init__(self, url: str) -> None:
        self.celsius = {"attic": 20.5, **{f"n{number}": float(number) for number in range(60)}}
        self.notified = threading.Event()
        self.work = WorkQueue(self.notified.set)
        self.agent = Agent(url, vendor="example.com", product="outside", work=self.work)
        self.agent.register(SENSOR)
        self.taken: list[WorkItem] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Thermometers:
        self.agent.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self.agent.close()

    def objects(self) -> list[ManagedData]:
        return [self.agent.data(SENSOR, name, {"name": name, "celsius": at}) for name, at in self.celsius.items()]

    def _run(self) -> None:
        while not self._is_over:
            item = self.work.next(timeout=0.05)
            if item is not None:
                self.taken.append(item)
                self._do(item)

    def _do(self, item: WorkItem) -> None:
        if item.kind is WorkKind.QUERY:
            assert item.query is not None
            item.add(filter(item.query.selects, self.objects()))
            item.complete()
        elif item.kind is WorkKind.METHOD_CALL and item.method == "calibrate":
            name = item.object_name.rpartition(":")[2]
            self.celsius[name] += item.arguments["by"]
            item.respond({"celsius": self.celsius[name]})
        elif item.kind is WorkKind.METHOD_CALL:
            item.refuse("it cannot be done", 4)
        elif item.kind is WorkKind.SUBSCRIBE:
            assert item.query is not None
            item.grant(interval=1).indicate(filter(item.query.selects, self.objects()))
        elif item.kind is WorkKind.RESUBSCRIBE:
            item.grant(duration=100)


@pytest.fixture
def outside(url: str) -> Iterator[Thermometers]:
    with Thermometers(url) as opened:
        yield opened


def test_queries_and_calls_are_answered_by_the_program(console: Console, outside: Thermometers) -> None:
    name = outside.agent.name
    found = {each["name"]: each for each in console.query("sensor", agent=name)}
    assert len(found) == 61
    assert outside.notified.is_set()
    hot = console.query("sensor", where=["gt", "celsius", 55], agent=name)
    assert sorted(each["name"] for each in hot) == ["n56", "n57", "n58", "n59"]
    assert console.call(found["attic"], "calibrate", {"by": 1.5}) == {"celsius": 22.0}
    assert console.find(found["attic"])["celsius"] == 22.0
    with pytest.raises(AgentError, match="it cannot be done"):
        console.call(found["attic"], "fail")
    assert console.classes(agent=name) == [SENSOR.id]
    assert {each.kind for each in outside.taken} == {WorkKind.QUERY, WorkKind.METHOD_CALL}
    with pytest.raises(ValueError, match="answered already"):
        outside.taken[0].complete()
    with pytest.raises(ValueError, match="is a query"):
        outside.taken[0].respond()


def test_the_program_indicates_to_subscriptions(console: Console, outside: Thermometers) -> None:
    where = ["eq", "name", ["quote", "attic"]]
    with console.subscribe("sensor", where=where, agent=outside.agent.name) as subscription:
        assert subscription.next(30)["celsius"] == 20.5
        (granted,) = outside.work._subscriptions.values()
        assert not granted.is_over
        granted.indicate([outside.agent.data(SENSOR, "attic", {"name": "attic", "celsius": 21.0})])
        assert subscription.next(30)["celsius"] == 21.0
        granted.ends = 0.0
        limit = time.monotonic() + 60
        while not granted.is_over:
            assert time.monotonic() < limit
            time.sleep(0.01)
    while outside.taken[-1].kind is not WorkKind.UNSUBSCRIBE:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert outside.taken[-1].subscription is granted


def test_a_program_that_takes_nothing_has_more_refused(url: str, console: Console) -> None:
    work = WorkQueue()
    with Agent(url, vendor="example.com", product="idle", work=work) as agent:
        agent.register(SENSOR)
        for _ in range(MAX_WORK):
            work._put(WorkItem(WorkKind.UNSUBSCRIBE, agent, None))
        with pytest.raises(AgentError, match="too many requests wait"):
            list(console.query("sensor", agent=agent.name))
    assert len(work) == MAX_WORK
    assert work.next(0) is not None


def test_a_program_that_empties_the_queue_just_before_an_item_comes_is_notified(agent: Agent) -> None:
    class Emptied(queue.Queue[WorkItem]):
        def put_nowait(self, item: WorkItem) -> None:
            self.queue.clear()  # as the program's thread may do at any time
            super().put_nowait(item)

    notified: list[int] = []
    work = WorkQueue(lambda: notified.append(len(work)))
    work._items = Emptied()
    for number in (1, 2):
        work._put(WorkItem(WorkKind.UNSUBSCRIBE, agent, None))
        assert notified == [1] * number


def test_a_notification_that_fails_is_logged_and_the_agent_goes_on(
    url: str, console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    work = WorkQueue(fail)
    with Agent(url, vendor="example.com", product="failing", work=work) as agent:
        agent.register(SENSOR)
        threading.Thread(target=lambda: work.next(PATIENCE_SECONDS).complete(), daemon=True).start()
        assert list(console.query("sensor", agent=agent.name)) == []
        assert agent.error is None
        assert any(each.name == agent.name for each in console.agents())
    assert "notify() has failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_what_ends_the_agent_is_logged_and_kept(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Agent(url, vendor="example.com", product="broken") as agent:
        agent._indicate = lambda: 1 / 0  # type: ignore[method-assign]
        assert agent._thread is not None
        agent._thread.join(PATIENCE_SECONDS)
        assert isinstance(agent.error, ZeroDivisionError)
    assert "has ended: unhandled exception" in caplog.text


def test_a_subscription_that_has_ended_cannot_be_refreshed(agent: Agent, subscriber: Subscriber) -> None:
    agent._work = work = WorkQueue()
    query = agent_library._object_query({"_what": "OBJECT"})
    granted = WorkSubscription(agent, Message({}), query, "")
    request = Message({}, reply_to="subscriber", properties={"qmf.opcode": "_subscribe_refresh_indication"})
    item = WorkItem(WorkKind.RESUBSCRIBE, agent, request, subscription=granted, duration=100.0)
    work._end(granted)
    with pytest.raises(RefusedError, match="there is no such subscription"):
        item.grant()
    assert "no such subscription" in subscriber.next("_exception")["_values"]["error_text"]
    assert item.is_answered


def test_requests_that_wait_take_a_limited_amount_of_memory(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    monkeypatch.setattr(agent_library, "MAX_WORK_BYTES", 20_000)
    work = WorkQueue()
    for content in ({"text": "x" * 9_000}, {"list": [1, 2] * 45}):
        work._put(WorkItem(WorkKind.METHOD_CALL, agent, Message(content)))
    large = WorkItem(WorkKind.METHOD_CALL, agent, Message({"text": b"x" * 9_000}))
    with pytest.raises(RefusedError, match="too many requests wait"):
        work._put(large)
    assert work.next(0) is not None
    work._put(large)
    assert len(work) == 2
