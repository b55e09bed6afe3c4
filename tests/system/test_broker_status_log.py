"""The operational log of a real broker: each of its messages, in its format, at the right moment."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from qstore.broker.client import Connection, Message
from qstore.broker.log.status_log import STATUS_MESSAGES
from qstore.broker.management.console import AgentError, Console
from qstore.formats.values import typed_map
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS, comes
from tests.support.running_broker import BrokerMaker, RunningBroker

_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} MESSAGE ((?:\[ [^\]]* \] ){0,2})([A-Z]{3}-1\d{3}) : (.*)")
_CLIENT = r"\[ con:\d+\(anonymous@QPID@127\.0\.0\.1:\d+/\) \] "
_SESSION = r"\[ con:\d+\(anonymous@QPID@127\.0\.0\.1:\d+/\)/ch:\d+ \] "

_GUEST = _SESSION.replace("anonymous", "guest")


def lines(broker: RunningBroker) -> list[str]:
    """What the last life of a broker has written: actor, subject, id and text."""
    found = [_LINE.fullmatch(line) for line in broker.log.read_text().splitlines() if " MESSAGE " in line]
    assert all(found)
    reported = [f"{line[1]}{line[2]} : {line[3]}" for line in found if line is not None]
    begins = [number for number, line in enumerate(reported) if line.startswith("BRK-1001")]
    return reported[max(0, begins[-1] - 2) :] if begins else reported


def assert_in_order(reported: list[str], *patterns: str) -> None:
    """Each pattern has a line, after that of the one before."""
    rest = iter(reported)
    for pattern in patterns:
        assert any(re.fullmatch(pattern, line) for line in rest), f"{pattern}\n" + "\n".join(reported)


def life_of_clients(broker: RunningBroker) -> None:
    """A client creates and deletes one of each."""
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session("work")
        do: Any = session.invoke
        arguments = typed_map({"qpid.priorities": 5})
        do("exchange.declare", exchange="x", type="headers", durable=True)
        do("queue.declare", queue="some", durable=True, auto_delete=True, arguments=arguments)
        matches = typed_map({"x-match": "all", "colour": "red"})
        do("exchange.bind", queue="some", exchange="x", binding_key="k", arguments=matches)
        do("exchange.bind", queue="some", exchange="amq.topic", binding_key="a.#")
        do("message.subscribe", queue="some", destination="d", acquire_mode=1, accept_mode=1)
        do("message.flow", destination="d", unit=0, value=5)
        do("message.stop", destination="d")
        do("message.stop", destination="d")
        do("message.flow", destination="d", unit=0, value=5)
        do("exchange.unbind", queue="some", exchange="amq.topic", binding_key="a.#")
        do("message.cancel", destination="d")
        do("queue.declare", queue="other")
        do("queue.delete", queue="other")
        do("exchange.delete", exchange="x")


def flow_control_and_management(broker: RunningBroker) -> None:
    """A publisher waits for a queue that another client purges; a subscription is stopped; a console asks."""
    with (
        closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as publisher,
        closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))) as other,
    ):
        channel, purging = publisher.channel(), other.channel()
        channel.basic_qos(prefetch_count=3)
        channel.queue_declare("full", arguments={"qpid.flow_stop_count": 2, "qpid.flow_resume_count": 1})
        for _ in range(4):
            channel.basic_publish("", "full", b"x")
        publisher.process_data_events(0)
        assert comes(lambda: broker.has_logged("CHN-1005"))
        purging.queue_purge("full")
        channel.queue_delete("full")
    with Console(f"127.0.0.1:{broker.port}") as console:
        assert list(console.query("broker"))


def test_every_message_is_written(make_broker: BrokerMaker, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    configuration = tmp_path / "qpidd.conf"
    configuration.write_text("log-status=yes\n")
    broker = make_broker("--config", str(configuration), "--ssl-cert", certificates.server(), "--ssl-port", "0").start()
    life_of_clients(broker)
    flow_control_and_management(broker)
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        for name, count in (("none", 0), ("one", 1), ("two", 2)):
            sender = session.sender(f"{name}; {{create: always, node: {{durable: true}}}}")
            for number in range(count):
                sender.send(Message(str(number), durable=True))
    assert broker.stop() == 0
    first = lines(broker)
    assert_in_order(
        first, *(re.escape(each) for each in (
            f"BRK-1006 : Using configuration : {configuration}",
            f"BRK-1007 : Using logging configuration : {configuration}",
        )), r"BRK-1001 : Startup : Version: \S+ Build: (compiled|pure Python)", "MNG-1001 : Startup",
        re.escape(f"MNG-1006 : Using SSL Keystore : {certificates.server()}"),
        r"\[ vh\(/\) \] VHT-1001 : Created : /", r"\[ vh\(/\)/ms \] MST-1001 : Created : Store",
        rf"\[ vh\(/\)/ms \] MST-1002 : Store location : {broker.data_directory}.*",
        r"\[ vh\(/\)/ms \] MST-1004 : Recovery Start", r"\[ vh\(/\)/ms \] MST-1006 : Recovery Complete",
        r"\[ vh\(/\)/ex\(amq\.direct\) \] EXH-1001 : Create : Durable Type:direct Name:amq\.direct",
        rf"BRK-1002 : Starting : Listening on TCP, TCP/SSL port {broker.port}",
        rf"MNG-1002 : Starting : QMF agent : Listening on port {broker.port}", "MNG-1004 : Ready", "BRK-1004 : Ready",
        rf"{_CLIENT}CON-1001 : Open : Client ID \S.* : Protocol Version : 0-10",
        rf"{_SESSION}CHN-1001 : Create : Prefetch 0",
        rf"{_SESSION}\[ vh\(/\)/ex\(x\) \] EXH-1001 : Create : Durable Type:headers Name:x",
        rf"{_SESSION}\[ vh\(/\)/qu\(some\) \] QUE-1001 : Create : AutoDelete Durable Priority:5 Owner:anonymous@QPID",
        rf"{_SESSION}\[ vh\(/\)/ex\(x\)/qu\(some\)/bd\(k\) \] BND-1001 : Create : Arguments : x-match=all colour=red",
        rf"{_SESSION}\[ vh\(/\)/ex\(amq\.topic\)/qu\(some\)/bd\(a\.#\) \] BND-1001 : Create",
        rf"{_SESSION}\[ sub:1:qu\(some\) \] SUB-1001 : Create : Durable Arguments : Browser",
        rf"{_SESSION}CHN-1002 : Flow Stopped", rf"{_SESSION}CHN-1002 : Flow Started",
        rf"{_SESSION}\[ vh\(/\)/ex\(amq\.topic\)/qu\(some\)/bd\(a\.#\) \] BND-1002 : Deleted",
        rf"{_SESSION}\[ sub:1:qu\(some\) \] SUB-1002 : Close",
        r"\[ vh\(/\)/ex\(x\)/qu\(some\)/bd\(k\) \] BND-1002 : Deleted",
        r"\[ vh\(/\)/qu\(some\) \] QUE-1002 : Deleted",
        rf"{_SESSION}CHN-1003 : Close", rf"{_CLIENT}CON-1002 : Close",
        rf"BRK-1003 : Shutting down : TCP, TCP/SSL port {broker.port}",
        rf"MNG-1003 : Shutting down : QMF agent : port {broker.port}",
        r"\[ vh\(/\)/ms \] MST-1003 : Closed", r"\[ vh\(/\) \] VHT-1002 : Closed", "MNG-1005 : Stopped",
        "BRK-1005 : Stopped",
    )  # fmt: skip
    assert_in_order(
        first,
        rf"{_SESSION}\[ vh\(/\)/qu\(other\) \] QUE-1001 : Create : Transient Owner:anonymous@QPID",
        rf"{_SESSION}\[ vh\(/\)/qu\(other\) \] QUE-1002 : Deleted",
        rf"{_SESSION}\[ vh\(/\)/ex\(x\) \] EXH-1002 : Deleted",
    )
    assert sum("CHN-1002" in line for line in first) == 2
    assert_in_order(
        first,
        rf"{_GUEST}CHN-1004 : Prefetch Size \(bytes\) 0 : Count 3",
        r"\[ vh\(/\)/qu\(full\) \] QUE-1003 : Overfull : Size : 3 messages, Capacity : 2",
        rf"{_GUEST}CHN-1005 : Flow Control Enforced \(Queue full\)",
        r"\[ vh\(/\)/qu\(full\) \] QUE-1004 : Underfull : Size : 0 messages, Resume Capacity : 1",
        rf"{_GUEST}CHN-1006 : Flow Control Removed",
        rf"{_CLIENT}MNG-1007 : Open : User anonymous@QPID",
        rf"{_CLIENT}MNG-1008 : Close",
    )
    assert_in_order(
        first,
        rf"{_SESSION}\[ sub:1:qu\(some\) \] SUB-1003 : State : SUSPENDED",
        rf"{_SESSION}\[ sub:1:qu\(some\) \] SUB-1003 : State : ACTIVE",
    )
    broker.start()
    assert broker.stop() == 0
    second = lines(broker)
    for name, recovered in (("none", "0 messages"), ("one", "1 message"), ("two", "2 messages")):
        assert_in_order(
            second, r"\[ vh\(/\)/ms \] MST-1004 : Recovery Start",
            rf"\[ vh\(/\)/ms \] MST-1004 : Recovery Start : {name}",
            rf"\[ vh\(/\)/ms \] MST-1005 : Recovered {recovered} for queue {name}",
            rf"\[ vh\(/\)/ms \] MST-1006 : Recovery Complete : {name}",
            r"\[ vh\(/\)/ms \] MST-1006 : Recovery Complete",
        )  # fmt: skip
    written = {number for line in (*first, *second) if (number := line.rpartition("] ")[2].partition(" ")[0])}
    assert written == STATUS_MESSAGES.keys()
    assert len(written) == 42


def test_management_switches_it(make_broker: BrokerMaker) -> None:
    broker = make_broker("--mgmt-pub-interval", "1").start()
    life_of_clients(broker)
    assert lines(broker) == []
    with Console(f"127.0.0.1:{broker.port}") as console:
        (log,) = console.query("log")
        assert log["status"] is False
        console.call(log, "setStatus", status=True)
        (log,) = console.query("log")
        assert log["status"] is True
        life_of_clients(broker)
        console.call("broker", "create", type="queue", name="managed", properties={})
        console.call(log, "setStatus", status=False)
        with pytest.raises(AgentError, match="give the argument status"):
            console.call(log, "setStatus")
        life_of_clients(broker)
        console.call(log, "setStatusRules", rules=["qpid.* = OFF", "qpid.virtualhost.*.queue.chosen = INFO"])
        (log,) = console.query("log")
        assert log["statusRules"] == ["qpid.* = OFF", "qpid.virtualhost.*.queue.chosen = INFO"]
        console.call(log, "setStatus", status=True)
        for name in ("chosen", "hidden"):
            console.call("broker", "create", type="queue", name=name, properties={})
        console.call(log, "setStatus", status=False)
    assert broker.stop() == 0
    reported = lines(broker)
    assert sum("CON-1001" in line for line in reported) == sum("CON-1002" in line for line in reported) == 1
    actor = r"\[ mng:anonymous@QPID\(127\.0\.0\.1:\d+\) \] "
    assert_in_order(
        reported,
        r".* SUB-1001 : Create : Durable Arguments : Browser",
        rf"{actor}\[ vh\(/\)/qu\(managed\) \] QUE-1001 : Create : Transient Owner:anonymous@QPID",
    )
    assert [line.rpartition("qu(")[2] for line in reported if "chosen" in line or "hidden" in line] == [
        "chosen) ] QUE-1001 : Create : Transient Owner:anonymous@QPID"
    ]
    assert not any("Ready" in line or ("Stopped" in line[-8:] and "BRK" in line) for line in reported)


def test_statistics_are_logged_at_intervals(make_broker: BrokerMaker) -> None:
    broker = make_broker("--log-statistics", "1,3600").start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        session = connection.session()
        receiver = session.receiver("orders; {create: always, node: {durable: true}}")
        sender = session.sender("orders")
        for _ in range(5):
            sender.send(Message("x" * 1000, durable=True))
        for _ in range(5):
            receiver.fetch(timeout=PATIENCE_SECONDS)
        session.acknowledge()
        for text in (
            "broker: ", "store: ", 'virtual host "/": ', 'queue "orders": ', 'exchange "": ', 'connection "127.0.0.1:',
            'session "anonymous@QPID.', 'subscription "anonymous@QPID.',
        ):  # fmt: skip
            assert broker.has_logged(f" s: {text}"), text
        assert broker.has_logged('queue "orders": is idle; so far in 5 messages (')
    assert "Statistics of 3" not in broker.log_text()
    assert broker.stop() == 0
