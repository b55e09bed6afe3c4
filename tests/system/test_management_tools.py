"""The management commands as processes, on one broker: changes, output, and how they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.client.conftest import BrokerOnOnePort
from tests.support import forked
from tests.support.forked import Forked
from tests.support.processes import PATIENCE_SECONDS, send_when_it_waits
from tests.support.running_broker import BrokerMaker, RunningBroker
from tests.tools.test_commands import command


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = BrokerOnOnePort(tmp_path_factory.mktemp("broker"), "--mgmt-pub-interval", "1")
    running.start()
    yield running
    running.close()


def run(broker: RunningBroker, name: str, *arguments: str, code: int = 0) -> str:
    """What a command prints. It has to end with this code, and with one line about what is wrong."""
    ended = forked.run(
        [*command(name), *arguments, "-b", f"127.0.0.1:{broker.port}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    if name in ("qpid-config", "qpid-stat", "qpid-tool"):
        assert len(ended.stderr.splitlines()) == (code == 1)
    return str(ended.stdout + ended.stderr)


class Events:
    """`qpid-printevents` at work."""

    def __init__(self, broker: RunningBroker, *options: str) -> None:
        self.process = Forked(
            [*command("qpid-printevents"), f"127.0.0.1:{broker.port}", "--json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def until(self, name: str, **values: Any) -> dict[str, Any]:
        """The next event with this name and these arguments."""
        while True:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, "qpid-printevents has ended"
            event: dict[str, Any] = json.loads(line)
            if event["name"] == name and values.items() <= event["values"].items():
                return event


@pytest.fixture
def events(broker: RunningBroker) -> Iterator[Events]:
    watching = Events(broker)
    yield watching
    watching.process.kill()
    watching.process.communicate()


def test_the_life_of_a_queue(broker: RunningBroker, events: Events) -> None:
    events.until("brokerConnected")
    run(broker, "qpid-config", "add", "queue", "orders", "--durable", "--max-queue-count", "5000")
    declared = events.until("queueDeclare", qName="orders")
    assert (declared["values"]["durable"], declared["values"]["disp"]) == (True, "created")
    run(broker, "qpid-config", "bind", "amq.topic", "orders", "new.#")
    assert events.until("bind", qName="orders", key="new.#")["severity"] == 6
    run(broker, "spout", "amq.topic", "hello", "-S", "new.one", "-c", "20", "-d")
    assert re.search(r"^  orders +Y +20 +20 +0 ", run(broker, "qpid-stat", "-q"), re.MULTILINE)
    assert "OK: purge" in run(broker, "qpid-tool", "-e", "call queue:orders purge 5")
    assert len(run(broker, "drain", "-c", "10", "orders").splitlines()) == 10
    stats = run(broker, "qpid-queue-stats", "-f", "orders", "-i", "0.1", "-n", "1", "--json")
    assert json.loads(stats)["depth"] == 5
    assert "not empty" in run(broker, "qpid-config", "del", "queue", "orders", code=1)

    broker.restart()
    events.until("brokerDisconnected")
    events.until("brokerConnected")
    assert json.loads(run(broker, "qpid-stat", "-q", "orders", "--json"))["msgDepth"] == 5
    run(broker, "qpid-config", "del", "queue", "orders", "--force")
    events.until("queueDelete", qName="orders")
    send_when_it_waits(events.process, signal.SIGINT)
    assert events.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT


def test_heartbeats_of_agents(broker: RunningBroker) -> None:
    watching = Events(broker, "--agent-heartbeats")
    assert watching.until("agentHeartbeat")["agent"].startswith("apache.org:qpidd:")
    watching.process.kill()
    watching.process.communicate()


def test_a_reader_that_ends_early_ends_the_command_silently(broker: RunningBroker) -> None:
    shell = f"{subprocess.list2cmdline(command('qpid-stat'))} -e -b 127.0.0.1:{broker.port} | head -1"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ended.stdout, ended.stderr) == ("Exchanges\n", "")


def test_a_broker_without_management(make_broker: BrokerMaker) -> None:
    broker = make_broker()
    broker.start("--mgmt-enable", "no")
    assert "management by QMF version 2 is switched off" in run(broker, "qpid-stat", "-q", code=1)


def test_a_broker_is_shut_down(make_broker: BrokerMaker) -> None:
    broker = make_broker()
    broker.start()
    assert run(broker, "qpid-config", "shutdown") == ""
    assert broker.stop(0) == 0
