"""Scripts for Python's `qmf.console`, as its tutorial has them, on a real broker."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.client import Connection, Message, MessagingError
from qstore.broker.management.console import NoObjectError
from qstore.broker.management.console.qmf_console import Broker, Console, DebugConsole, Object, Session
from tests.support.running_broker import RunningBroker

PACKAGE = "org.apache.qpid.broker"


class Told(Console):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[Any, ...]] = queue.Queue()

    def __getattribute__(self, name: str) -> Any:
        if name in vars(Console) and not name.startswith("_"):
            return lambda *args: self.arrived.put((name, *args))
        return super().__getattribute__(name)

    def until(self, wanted: Callable[[tuple[Any, ...]], bool]) -> list[tuple[Any, ...]]:
        """All that comes, up to what is wanted."""
        found: list[tuple[Any, ...]] = []
        while not found or not wanted(found[-1]):
            found.append(self.arrived.get(timeout=60))
        return found


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    found = Session()
    found.addBroker(f"amqp://{url}")
    yield found
    found.close()


def broker_of(session: Session) -> Object:
    (found,) = session.getObjects(_class="broker", _package=PACKAGE)
    return found


@pytest.fixture
def orders(session: Session) -> Iterator[Object]:
    broker_of(session).create("queue", "orders", {"qpid.max_count": 7}, True)
    (found,) = session.getObjects(_class="queue", _package=PACKAGE, name="orders")
    yield found
    broker_of(session).delete("queue", "orders", {})


def test_a_broker_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MessagingError):
        Session().addBroker("amqp://127.0.0.1:1")


def test_properties_and_statistics(session: Session, orders: Object) -> None:
    assert re.fullmatch(r"org\.apache\.qpid\.broker:queue\[.*\] orders", str(orders))
    properties = {str(name): value for name, value in orders.getProperties()}
    assert properties["name"] == orders.name == orders.getIndex() == "orders"
    assert properties["arguments"] == {"qpid.max_count": 7}
    statistics = {str(name): value for name, value in orders.getStatistics()}
    assert statistics["msgDepth"] == orders.msgDepth == 0
    assert not properties.keys() & statistics.keys()
    assert (orders.getClassKey().getPackageName(), orders.getClassKey().getClassName()) == (PACKAGE, "queue")
    current, created, deleted = orders.getTimestamps()
    assert current >= created > 0 == deleted
    with pytest.raises(AttributeError, match="neither a value nor a method nonsense"):
        _ = orders.nonsense
    assert orders.altExchange is None


def test_update(session: Session, orders: Object, url: str) -> None:
    with Connection(url) as connection:
        connection.session().sender("orders").send(Message("x"))
    assert orders.msgDepth == 0
    orders.update()
    assert orders.msgDepth == 1


def test_an_object_that_is_gone_cannot_be_updated(session: Session) -> None:
    broker_of(session).create("queue", "gone", {}, True)
    (gone,) = session.getObjects(_class="queue", name="gone")
    broker_of(session).delete("queue", "gone", {})
    with pytest.raises(NoObjectError):
        gone.update()


def test_methods(session: Session, orders: Object) -> None:
    assert "purge(request, filter)" in [str(each) for each in orders.getMethods()]
    broker = broker_of(session)
    result = broker.echo(1, "Message Body")
    assert (result.status, result.text, result.outArgs) == (0, "OK", {"sequence": 1, "body": "Message Body"})
    assert str(result).startswith("OK (0) - {")
    assert result.body == "Message Body"
    refused = broker.create("queue", "orders", {}, True)
    assert refused.status == 4
    assert "already exists" in refused.text
    for args, more in (((1, "b", 3), {}), ((1,), {"sequence": 2}), ((), {"nonsense": 1})):
        with pytest.raises(TypeError, match="echo takes the arguments sequence, body"):
            broker.echo(*args, **more)


def test_a_call_that_is_not_waited_for(url: str) -> None:
    told = Told()
    session = Session(told, rcvObjects=False, rcvEvents=False, rcvHeartbeats=False)
    broker = session.addBroker(url)
    number = broker_of(session).echo(5, "later", _async=True)
    ((*_, last),) = [told.until(lambda each: each[0] == "methodResponse")]
    assert last[1:3] == (broker, number)
    assert last[3].outArgs == {"sequence": 5, "body": "later"}
    session.close()


def test_classes_and_agents(session: Session) -> None:
    assert PACKAGE in session.getPackages()
    (key,) = [each for each in session.getClasses(PACKAGE) if each.getClassName() == "queue"]
    schema = session.getSchema(key)
    assert schema is not None
    assert "name" in [each.name for each in schema.properties]
    assert [each.getAgentBank().partition(":")[0] for each in session.getAgents()] == ["apache.org"]


def test_events_of_a_broker_whose_connection_is_managed(url: str, session: Session) -> None:
    told = Told()
    listening = Session(told, manageConnections=True, rcvObjects=False, rcvHeartbeats=False)
    broker = listening.addBroker(url)
    begun = told.until(lambda each: each[0] == "newClass")
    assert [each[0] for each in begun[:3]] == ["brokerConnected", "brokerInfo", "newPackage"]
    assert str(broker) == f"Broker connected at: {url}"
    # events count from when the queue is bound, which follows
    with contextlib.ExitStack() as ends:
        is_over = threading.Event()
        ends.callback(is_over.set)

        def declare() -> None:
            while not is_over.is_set():
                broker_of(session).create("queue", "noticed", {}, True)
                broker_of(session).delete("queue", "noticed", {})
                time.sleep(0.1)

        thread = threading.Thread(target=declare)
        thread.start()
        *_, (_, of, event) = told.until(lambda each: each[0] == "event" and "queueDelete" in str(each[2]))
    thread.join()
    assert of is broker
    assert event.getArguments()["qName"] == "noticed"
    assert re.fullmatch(
        r"\w{3} \w{3} +\d+ [\d:]{8} \d{4} INFORM org\.apache\.qpid\.broker:queueDelete rhost=.* qName=noticed",
        str(event),
    )
    listening.delBroker(broker)
    assert not broker.isConnected()


def test_indications_that_cannot_be_read_do_not_end_the_connection(url: str) -> None:
    told = Told()
    session = Session(told, rcvHeartbeats=False)
    broker = session.addBroker(url)
    stray = {"_object_id": {"_object_name": "a:b:c", "_agent_name": "broker"}, "_values": {}}
    stray["_schema_id"] = {"_package_name": "a", "_class_name": "b", "_type": "_data"}
    event = {"_schema_id": {"_package_name": "a", "_class_name": "last"}, "_values": {}, "_severity": 6}
    with Connection.establish(url) as connection:
        sender = connection.session().sender("qmf.default.topic; {node: {type: topic}}")

        def send(content: Any, kind: str) -> None:
            headers = {"qmf.opcode": "_data_indication", "qmf.content": kind}
            sender.send(Message(content, subject=f"agent.ind.{kind[1:]}.x", properties=headers))

        is_over = threading.Event()

        def publish() -> None:  # again and again, since the queue is bound some time after the connection is open
            while not is_over.wait(0.1):
                send({"no": "list"}, "_event")
                send([stray], "_data")
                send([event], "_event")

        thread = threading.Thread(target=publish)
        thread.start()
        found = told.until(lambda each: each[0] == "event" and "last" in str(each[2]))
        is_over.set()
        thread.join()
    assert "brokerDisconnected" not in [each[0] for each in found]
    assert broker.isConnected()
    session.close()


def test_objects_of_bound_classes(url: str, orders: Object) -> None:
    told = Told()
    session = Session(told, rcvEvents=False, userBindings=True)
    session.bindClass(PACKAGE, "exchange")
    session.addBroker(url)
    found = told.until(lambda each: each[0] == "objectProps")
    assert found[-1][2].getClassKey().getClassName() == "exchange"
    session.bindClass(PACKAGE, "queue")
    *_, (_, _, record) = told.until(lambda each: each[0] == "objectStats" and each[2].getIndex() == "orders")
    assert record.msgDepth == 0
    found = told.until(lambda each: each[0] == "heartbeat")
    classes = {each[2].getClassKey().getClassName() for each in found if each[0].startswith("object")}
    assert classes <= {"queue", "exchange"}
    session.close()


def test_a_lost_broker_is_reported_and_found_again(tmp_path: Path) -> None:
    running, told = RunningBroker(tmp_path), Told()
    running.start()
    session = Session(told, manageConnections=True, rcvObjects=False, rcvHeartbeats=False)
    broker = session.addBroker(f"127.0.0.1:{running.port}")
    told.until(lambda each: each[0] == "newClass")
    running.close()
    told.until(lambda each: each[0] == "brokerDisconnected")
    assert not broker.isConnected()
    assert broker.getError() is not None
    assert session.getObjects(_class="queue") == []
    told.until(lambda each: each[0] == "brokerConnectionFailed")
    session.close()


def test_what_a_session_cannot_do_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="userBindings needs a console"):
        Session(userBindings=True)
    with pytest.raises(RuntimeError, match="userBindings=True"):
        session.bindClass(PACKAGE, "queue")
    with pytest.raises(TypeError, match="no argument _nonsense"):
        session.getObjects(_class="queue", _nonsense=1)


def test_debug_console_prints_what_happens(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(DebugConsole(), rcvObjects=False, rcvEvents=False, rcvHeartbeats=False)
    broker = session.addBroker(url)
    assert isinstance(broker, Broker)
    session.close()
    printed = capsys.readouterr().out
    assert f"brokerConnected: Broker connected at: {url}\n" in printed
    assert f"newPackage: {PACKAGE}\n" in printed
