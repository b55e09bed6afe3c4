"""The firewall of a real broker: networks, names of hosts, virtual hosts, and SIGHUP."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from pika import BlockingConnection, ConnectionParameters
from pika.exceptions import AMQPConnectionError, ProbableAccessDeniedError

from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER
from tests.support.processes import PATIENCE_SECONDS, comes
from tests.support.running_broker import BrokerMaker
from tests.system.shovels import managing


def is_served(port: int, source: str) -> bool:
    """Whether the broker answers a client with this address."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, source_address=(source, 0)) as client:
        try:
            client.sendall(PROTOCOL_HEADER)
            return client.recv(1) == b"\x01"
        except ConnectionError:
            return False


def opens(port: int, vhost: str) -> bool:
    try:
        BlockingConnection(ConnectionParameters("127.0.0.1", port, vhost)).close()
    except (AMQPConnectionError, ProbableAccessDeniedError):
        return False
    return True


def test_networks_decide_and_the_file_is_read_again(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file = tmp_path / "firewall"
    file.write_text("default allow\ndeny network 127.0.0.2, 127.0.1.0/24\n")
    broker = make_broker("--firewall-file", str(file)).start()
    served = {each: is_served(broker.port, each) for each in ("127.0.0.1", "127.0.0.2", "127.0.1.9")}
    assert served == {"127.0.0.1": True, "127.0.0.2": False, "127.0.1.9": False}
    assert broker.has_logged("the firewall denies connections from its host")
    file.write_text("deny network 127.0.0.0/8 x\n")
    os.kill(broker.pid, signal.SIGHUP)
    assert comes(lambda: broker.has_logged("the previous firewall stays in force"))
    assert is_served(broker.port, "127.0.0.1")
    file.write_text("default deny\nallow network 127.0.0.2\n")
    os.kill(broker.pid, signal.SIGHUP)
    assert comes(lambda: not is_served(broker.port, "127.0.0.1"))
    assert is_served(broker.port, "127.0.0.2")


def test_the_name_of_the_host_decides_and_without_one_nobody_gets_in(make_broker: BrokerMaker, tmp_path: Path) -> None:
    try:
        if socket.gethostbyaddr("127.0.0.1")[0] != "localhost":
            pytest.skip("127.0.0.1 is not localhost")
    except OSError:
        pytest.skip("127.0.0.1 has no name")
    file = tmp_path / "firewall"
    file.write_text("default deny\nallow host local.*\n")
    broker = make_broker("--firewall-file", str(file)).start()
    assert is_served(broker.port, "127.0.0.1")
    assert not is_served(broker.port, "127.0.0.99")
    broker.stop()
    file.write_text("deny host *.evil.example\n")
    broker.start()
    assert is_served(broker.port, "127.0.0.1")
    assert not is_served(broker.port, "127.0.0.99")


def test_a_virtual_host_has_rules_of_its_own(make_broker: BrokerMaker, tmp_path: Path) -> None:
    file = tmp_path / "firewall"
    file.write_text("vhost blue allow network 127.0.0.1\nvhost red deny network 127.0.0.1\n")
    (tmp_path / "rules").write_text("acl allow all all\n")
    rules = ("--acl-file", str(tmp_path / "rules"), "--mgmt-enable", "yes")
    broker = make_broker("--firewall-file", str(file), *rules).start()
    with managing(broker.port) as console:
        for each in ("blue", "red"):
            console.call("broker", "create", {"type": "vhost", "name": each, "properties": {}, "strict": True})
        assert {each: opens(broker.port, each) for each in ("/", "blue", "red")} == {
            "/": True,
            "blue": True,
            "red": False,
        }
        file.write_text(file.read_text() + "default deny\n")
        os.kill(broker.pid, signal.SIGHUP)
        assert comes(lambda: not opens(broker.port, "/"))
        assert opens(broker.port, "blue")  # its own rules come first
        assert list(console.query("vhost"))  # which was connected before
    broker.restart()
    assert {each: opens(broker.port, each) for each in ("/", "blue", "red")} == {"/": False, "blue": True, "red": False}


def test_a_wrong_file_keeps_the_broker_from_starting(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = make_broker("--firewall-file", str(tmp_path / "firewall"))
    for text, reason in ((None, "cannot be read"), ("allow all\n", "line 1: not")):
        if text is not None:
            (tmp_path / "firewall").write_text(text)
        broker.launch()
        assert broker.stop(0) == 1
        assert reason in broker.log_text()
