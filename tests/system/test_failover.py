"""Clients follow the addresses that a broker announces on the exchange `amq.failover`, and reconnect to another one."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.broker.client import Connection, Empty, Message, MessagingError
from qstore.broker.management.console import Console
from qstore.tools import qpid_receive, qpid_send
from tests.support.processes import PATIENCE_SECONDS, comes
from tests.support.running_broker import BrokerMaker, RunningBroker


def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


def announced(*brokers: RunningBroker) -> str:
    return "amqp:" + ",".join(f"tcp:{url(each)}" for each in brokers)


def hosts(properties: dict[str, object]) -> list[object]:
    found = properties["amq.failover"]
    assert isinstance(found, list | tuple)
    return list(found)


@pytest.fixture
def pair(make_broker: BrokerMaker, tmp_path: Path) -> tuple[RunningBroker, RunningBroker, Path]:
    """A broker that announces another one, which runs, and its configuration file."""
    second = make_broker().start()
    file = tmp_path / "qpidd.conf"
    file.write_text(f"known-hosts-url={announced(second)}\n")
    return make_broker("--config", str(file)).start(), second, file


def reread(broker: RunningBroker, file: Path, line: str) -> None:
    """Have a broker read its configuration file again."""
    file.write_text(line)
    os.kill(broker.pid, signal.SIGHUP)


def test_addresses_are_sent_when_a_queue_is_bound_and_when_they_change(
    pair: tuple[RunningBroker, RunningBroker, Path],
) -> None:
    first, second, file = pair
    with Connection(url(first)) as connection:
        session = connection.session()
        receiver = session.receiver("amq.failover")
        message = receiver.fetch(timeout=PATIENCE_SECONDS)
        assert hosts(message.properties) == [announced(second)]
        assert message.content in ("", b"", None)
        reread(first, file, f"known-hosts-url={announced(first, second)}\n")
        assert hosts(receiver.fetch(timeout=PATIENCE_SECONDS).properties) == [announced(first, second)]
        reread(first, file, "known-hosts-url=rdma:one:5672\n")
        assert first.has_logged("the known hosts stay as they are")
        reread(first, file, "known-hosts-url=none\n")
        assert comes(lambda: first.log_text().count("Reloaded the log file and the known hosts") == 2)
        with pytest.raises(Empty):
            session.receiver("amq.failover").fetch(timeout=0.5)
        with pytest.raises(Empty):
            receiver.fetch(timeout=0)


def test_nobody_else_can_announce_addresses(pair: tuple[RunningBroker, RunningBroker, Path]) -> None:
    first, second, _ = pair
    with Connection(url(first)) as connection:
        session = connection.session()
        receiver = session.receiver("amq.failover")
        receiver.fetch(timeout=PATIENCE_SECONDS)
        forged = Message(properties={"amq.failover": ["amqp:tcp:192.0.2.1:5672"]}, subject="x")
        session.sender("amq.failover").send(forged)
        session.invoke("queue.declare", queue="full", alternate_exchange="amq.failover", auto_delete=True)
        session.sender("full").send(forged)
        session.invoke("queue.delete", queue="full")
        with pytest.raises(Empty):
            receiver.fetch(timeout=0.5)
        assert hosts(session.receiver("amq.failover").fetch(timeout=PATIENCE_SECONDS).properties) == [announced(second)]
        with pytest.raises(MessagingError):
            session.invoke("exchange.delete", exchange="amq.failover")


def test_a_client_does_not_follow_what_others_send_to_its_queue(
    pair: tuple[RunningBroker, RunningBroker, Path],
) -> None:
    first, second, _ = pair
    with Connection(url(first), failover_updates=True) as connection, Connection(url(first)) as other:
        with Console(other) as console:
            keys = [queue.key for queue in console.query("queue")]
        names = [key for key in keys if not key.startswith("console.")]
        forged = Message(properties={"amq.failover": ["amqp:tcp:192.0.2.1:5672"]})
        sender = connection.session().sender("later; {create: always}")
        for name in names:
            other.session().sender(f"{name}; {{node: {{type: queue}}}}").send(forged)
        sender.send(Message("what came before was handled"))
        endpoints = connection._core._announced
    assert names
    assert [(each.host, each.port) for each in endpoints] == [("127.0.0.1", second.port)]


def test_a_client_that_may_not_listen_works_without(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("acl deny all bind exchange name=amq.failover\nacl allow all all\n")
    broker = make_broker("--acl-file", str(file)).start()
    with Connection(url(broker), failover_updates=True) as connection:
        connection.session().sender("orders; {create: always}").send(Message("x"))


def test_a_client_reconnects_to_a_broker_that_was_announced(pair: tuple[RunningBroker, RunningBroker, Path]) -> None:
    first, second, _ = pair
    with Connection(url(first), reconnect=True, reconnect_limit=3, failover_updates=True) as connection:
        sender = connection.session().sender("orders; {create: always}")
        sender.send(Message("to the first"))
        first.kill()
        sender.send(Message("to the second"))
    with Connection(url(second)) as connection:
        assert connection.session().receiver("orders").fetch(timeout=PATIENCE_SECONDS).content == "to the second"


def test_a_client_without_announcements_does_not(pair: tuple[RunningBroker, RunningBroker, Path]) -> None:
    first, _, _ = pair
    connection = Connection(url(first), reconnect=True, reconnect_limit=3)
    connection.open()
    try:
        sender = connection.session().sender("orders; {create: always}")
        sender.send(Message("to the first"))
        first.kill()
        with pytest.raises(MessagingError, match="connection refused"):
            sender.send(Message("to nobody"))
    finally:
        with suppress(MessagingError):  # perhaps that message is not confirmed
            connection.close(timeout=0)


def test_qpid_send_and_receive_follow(pair: tuple[RunningBroker, RunningBroker, Path]) -> None:
    first, second, _ = pair
    given = ["-b", url(first), "--failover-updates", "--connection-options", "{reconnect: true, reconnect_limit: 20}"]
    killer = threading.Timer(1.0, first.kill)
    killer.start()
    words = [*given, "-a", "orders; {create: always}", "-m", "40", "--content-string", "x", "--send-rate", "20"]
    result = CliRunner().invoke(qpid_send.command, words)
    killer.join()
    assert result.exit_code == 0, result.output
    words = ["-b", url(second), "--failover-updates", "-a", "orders", "--timeout", "1"]
    received = CliRunner().invoke(qpid_receive.command, words)
    assert received.exit_code == 0, received.output
    assert received.output.count("x\n") >= 10
