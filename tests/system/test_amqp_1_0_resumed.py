"""AMQP 1.0: clients and brokers that are killed with unsettled deliveries, which the next life resumes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.client import Connection
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker
from tests.system.resuming_client import LOST, QUEUE

COUNT: Final = 4_000
KILLS: Final = 6


class Client:
    """A client of `resuming_client`, in one life after the other."""

    def __init__(self, what: str, directory: Path) -> None:
        self.what, self.journal = what, directory / what
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.system.resuming_client", self.what, str(port), str(self.journal)]
        self._process = subprocess.Popen([*command, str(COUNT)], cwd=ROOT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Wait for its end."""
        assert self._process is not None
        return self._process.wait(PATIENCE_SECONDS)

    def lines(self) -> list[list[str]]:
        text = self.journal.read_text() if self.journal.exists() else ""
        return [line.split() for line in text.splitlines()]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def wait_for(self, lines: int) -> None:
        """Until its journal has so many lines."""
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.lines()) < lines:
            assert time.monotonic() < end, f"{self.what}: {len(self.lines())} lines of {lines}"
            assert self._process is not None
            assert self._process.poll() in (None, 0)
            time.sleep(0.01)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    made = RunningBroker(tmp_path / "broker").start()
    with Connection.establish(f"127.0.0.1:{made.port}") as connection:
        connection.session().sender(f"{QUEUE}; {{create: always, node: {{durable: true}}}}")
    yield made
    made.close()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[tuple[Client, Client]]:
    made = Client("send", tmp_path), Client("receive", tmp_path)
    yield made
    for each in made:
        each.close()


def is_empty(broker: RunningBroker) -> bool:
    with Connection.establish(f"127.0.0.1:{broker.port}") as connection:
        return not connection.session().invoke("queue.query", queue=QUEUE)["message_count"]


def processed(receiver: Client) -> Counter[int]:
    return Counter(int(line[2]) for line in receiver.lines() if line[0] == "processed")


def wait_for_the_rest(receiver: Client) -> None:
    """Until everything is processed, and the broker has nothing unsettled."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        lines = receiver.lines()
        tags = {line[1] for line in lines if line[0] == "processed"}
        if len(processed(receiver)) == COUNT and tags == {line[1] for line in lines if line[0] != "processed"}:
            return
        time.sleep(0.05)
    missing = set(range(COUNT)) - set(processed(receiver))
    raise AssertionError(f"{len(missing)} messages were lost: {sorted(missing)[:10]}")


def test_a_message_is_processed_once_whichever_client_is_killed(
    broker: RunningBroker, clients: tuple[Client, Client]
) -> None:
    """Neither lost nor twice: with both settle modes second, a killed client learns what has become of each message."""
    chosen = random.Random(45)
    sender, receiver = clients
    for each in clients:
        each.start(broker.port)
    for _ in range(KILLS):
        for each in chosen.sample(clients, 2):
            each.wait_for(min(len(each.lines()) + chosen.randrange(20, 300), 2 * COUNT))
            each.kill()
            each.start(broker.port)
    assert sender.end() == 0
    wait_for_the_rest(receiver)
    assert processed(receiver) == Counter(range(COUNT))
    receiver.kill()
    assert is_empty(broker)


def test_nothing_acknowledged_is_lost_and_nothing_settled_comes_back_from_a_killed_broker(
    broker: RunningBroker, clients: tuple[Client, Client]
) -> None:
    chosen = random.Random(46)
    sender, receiver = clients
    for each in clients:
        each.start(broker.port)
    for _ in range(KILLS // 2):
        receiver.wait_for(len(receiver.lines()) + chosen.randrange(100, 600))
        broker.kill()
        assert receiver.end() == LOST
        assert sender.end() in (LOST, 0)  # it may have sent everything
        broker.start()
        for each in clients:
            each.start(broker.port)
    assert sender.end() == 0
    wait_for_the_rest(receiver)
    settled: set[str] = set()
    copies: dict[str, str] = {}
    for line in receiver.lines():
        if line[0] == "processed":
            copy = copies[line[1]] = line[3]
            assert copy not in settled, f"message {line[2]} came back after it was settled"
        elif line[0] == "settled":
            settled.add(copies[line[1]])
    receiver.kill()
    assert is_empty(broker)
