"""The management agent of a running broker: its connections, sessions and subscriptions, and how it is switched off."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

from qstore.broker.client import Connection, LinkError, Message, MessagingError, Receiver, Sender
from qstore.broker.management import console as management
from qstore.formats.qmf.v1 import decode_message, encode_message
from tests.broker.test_proxies import EVENT_KEY, EVENT_SCHEMA, TOO_HOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker

_PREFIX = "org.apache.qpid.broker"


class Console:
    """Sends requests over a connection of its own."""

    def __init__(self, broker: RunningBroker) -> None:
        self.connection = Connection(f"127.0.0.1:{broker.port}")
        self.connection.open()
        session = self.connection.session("console")
        self._replies: Receiver = session.receiver("qmf.default.direct/console")
        self._sender: Sender = session.sender("qmf.default.direct/broker")

    def ask(self, opcode: str, content: dict[str, Any]) -> Any:
        """Send a request. Returns the content of its only reply."""
        message = Message(content, reply_to="qmf.default.direct/console", properties={"qmf.opcode": opcode})
        self._sender.send(message)
        reply = self._replies.fetch(timeout=PATIENCE_SECONDS)
        assert reply.properties["qmf.opcode"] != "_exception", reply.content
        return reply.content

    def query(self, class_name: str) -> list[dict[str, Any]]:
        """The values of all objects of a class, with their names as `id`."""
        found = self.ask("_query_request", {"_what": "OBJECT", "_schema_id": {"_class_name": class_name}})
        return [each["_values"] | {"id": each["_object_id"]["_object_name"]} for each in found]

    def call(self, method: str, name: str, **arguments: Any) -> Any:
        """Call a method of an object."""
        content = {"_object_id": {"_object_name": name}, "_method_name": method, "_arguments": arguments}
        return self.ask("_method_request", content)["_arguments"]


def test_connections_are_listed_and_closed(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    console = Console(broker)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session("work")
        sender = session.sender("q; {create: always}")
        receiver = session.receiver("q; {mode: browse}")
        sender.send(Message("hello"))
        assert receiver.fetch(timeout=PATIENCE_SECONDS).content == "hello"
        (mine,) = [each for each in console.query("session") if each["name"].endswith(".work")]
        assert (mine["attached"], mine["TxnStarts"]) == (True, 0)
        peer = mine["connectionRef"]["_object_name"]
        (found,) = [each for each in console.query("connection") if each["id"] == peer]
        assert (found["authIdentity"], found["protocol"], found["saslMechanism"]) == (
            "anonymous@QPID",
            "AMQP 0-10",
            "ANONYMOUS",
        )
        assert (found["msgsFromClient"], found["msgsToClient"]) == (1, 1)
        assert found["remotePid"] > 0
        (subscription,) = [
            each for each in console.query("subscription") if each["queueRef"]["_object_name"].endswith(":q")
        ]
        assert (subscription["browsing"], subscription["acknowledged"], subscription["delivered"]) == (True, False, 1)
        assert subscription["sessionRef"] == {"_object_name": mine["id"]}
        console.call("close", peer)
        limit = time.monotonic() + PATIENCE_SECONDS
        while any(each["id"] == peer for each in console.query("connection")):
            assert time.monotonic() < limit
        with pytest.raises(MessagingError):
            sender.send(Message("too late"))
        connection.close(0)  # the last message may have been sent before the client knew: not to be reported again
    console.connection.close()
    assert broker.stop() == 0


def test_sessions_are_closed_and_the_broker_is_shut_down(make_broker: BrokerMaker) -> None:
    broker = make_broker("--mgmt-qmf1", "no", "--mgmt-publish", "no", "--log-enable", "notice+").start()
    console = Console(broker)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        sender = connection.session("work").sender("q; {create: always}")
        other = connection.session("other").sender("q")
        sender.send(Message("hello"))
        other.send(Message("hello"))
        mine = {each["name"].rpartition(".")[2]: each for each in console.query("session")}
        console.call("solicitAck", mine["work"]["id"])
        sender.send(Message("still there"))
        console.call("close", mine["work"]["id"])
        with pytest.raises(MessagingError, match="closed by management"):
            sender.send(Message("too late"))
        console.call("detach", mine["other"]["id"])
        limit = time.monotonic() + PATIENCE_SECONDS
        while any(each["id"] == mine["other"]["id"] for each in console.query("session")):
            assert time.monotonic() < limit
        connection.close(0)  # the last message may have been sent before the client knew: not to be reported again
    (found,) = console.query("broker")
    assert (found["mgmtPublish"], found["uptime"] > 0) == (False, True)
    console.call("setLogLevel", found["id"], level="debug+:Model notice+")
    assert console.call("getLogLevel", found["id"]) == {"level": "debug+:Model,notice+"}
    console.call("shutdown", found["id"])
    limit = time.monotonic() + PATIENCE_SECONDS
    while broker.is_running():
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert broker.has_logged("Shutting down, as management has asked")


def test_management_is_switched_off(make_broker: BrokerMaker) -> None:
    broker = make_broker("--mgmt-enable", "no").start()
    with Connection(f"127.0.0.1:{broker.port}") as connection, pytest.raises(LinkError):
        connection.session().sender("qmf.default.direct/broker")
    assert broker.stop() == 0


def test_a_queue_has_the_statistics_of_m3(make_broker: BrokerMaker) -> None:
    broker = make_broker("--mgmt-pub-interval", "1000").start()
    console = Console(broker)

    def queue(name: str) -> dict[str, Any]:
        (found,) = [each for each in console.query("queue") if each["name"] == name]
        return found

    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session(transactional=True)
        sender = session.sender("kept; {create: always, node: {durable: True}}")
        session.sender("brief; {create: always}")
        for number in range(3):
            sender.send(Message(str(number), durable=True))
        assert (queue("kept")["enqueueTxnStarts"], queue("kept")["enqueueTxnCountHigh"]) == (1, 1)
        session.commit()
        sender.send(Message("not", durable=True))
        session.rollback()
        receiver = session.receiver("kept")
        for _ in range(3):
            receiver.fetch(timeout=PATIENCE_SECONDS)
        session.acknowledge()
        session.commit()
        found = queue("kept")
        assert found["msgDepth"] == found["enqueueTxnCount"] == found["dequeueTxnCount"] == 0
        assert (found["msgDepthHigh"], found["msgDepthLow"], found["unackedMessagesHigh"]) == (3, 0, 3)
        assert found["byteDepthHigh"] == found["byteTotalEnqueues"] > found["byteDepthLow"] == 0
        assert [found[f"enqueueTxn{each}"] for each in ("Starts", "Commits", "Rejects")] == [2, 1, 1]
        assert [found[f"dequeueTxn{each}"] for each in ("Starts", "Commits", "Rejects")] == [1, 1, 0]
        (journal,) = console.query("journal")
        assert found["storeRef"] == {"_object_name": journal["id"]}
        assert "storeRef" not in queue("brief")
    console.connection.close()
    assert broker.stop() == 0


def test_events_of_an_agent_of_version_1_reach_consoles_of_version_2(make_broker: BrokerMaker) -> None:
    broker = make_broker("--mgmt-pub-interval", "1000").start()
    url = f"127.0.0.1:{broker.port}"
    with Connection(url) as connection, management.Console(url) as console, console.indications() as arriving:
        session = connection.session()
        answers = session.receiver("amq.direct/agent", capacity=10)

        def say(key: str, body: bytes) -> None:
            session.sender("qpid.management").send(Message(body, subject=key, reply_to="amq.direct/agent"))

        say("broker", encode_message("A", 1, "my sensors", UUID(int=5), 0, 0))
        assert decode_message(answers.fetch(timeout=PATIENCE_SECONDS).content).opcode == "a"
        say("broker", encode_message("q", 1, 2, *EVENT_KEY))
        wanted = decode_message(answers.fetch(timeout=PATIENCE_SECONDS).content)
        say("broker", encode_message("s", wanted.sequence, 2, *EVENT_KEY, rest=EVENT_SCHEMA))
        say("console.event.1.10.com.example.tooHot", TOO_HOT)
        while not isinstance(found := arriving.next(PATIENCE_SECONDS), management.Event) or found.name != "tooHot":
            assert found is not None
        assert (found.values, found.severity) == ({"name": "attic", "celsius": 45.0}, 4)
        assert found.agent == f"qmf1:my_sensors:{UUID(int=5)}-10"
    assert broker.stop() == 0
