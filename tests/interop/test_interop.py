"""Every client library at hand sends to every other one, and to itself: the five test cases of the specification.

The soak run repeats all of them, with all sizes, and prints for each round what it took: the kit's throughput rates and
latency samples.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from qstore.tools.load import throughput
from qstore.tools.load.protocols import Broker
from tests.interop import soak_kit
from tests.interop.client import CONTROL, DUMMY, P2P, TESTS, Headers, body_of
from tests.interop.coordinator import Case, CoordinationError, Coordinator, Outcome, cases, write_junit
from tests.interop.links import DIRECT, LINKS, Mail, Pika
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker

__all__ = ["make_broker"]


class Clients:
    """The processes of all clients of a broker."""

    def __init__(self, broker: RunningBroker, names: tuple[str, ...] = tuple(LINKS)) -> None:
        command = [sys.executable, "-m", "tests.interop.client"]
        port = ["-b", "127.0.0.1", "-p", str(broker.port)]
        self.processes = {
            name: subprocess.Popen([*command, name, *port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name in names
        }
        for process in self.processes.values():  # IOP-9: until each of them is ready
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                for each in self.processes.values():
                    each.kill()
                errors = {name: each.communicate()[1][-1000:] for name, each in self.processes.items()}
                pytest.fail(f"not all clients have started: {errors}")

    def close(self) -> dict[str, int]:
        """Wait until they have ended, or kill them. Returns their exit codes."""
        codes = {}
        for name, process in self.processes.items():
            try:
                process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            codes[name] = process.returncode
        return codes


@pytest.fixture
def broker(make_broker: BrokerMaker) -> RunningBroker:
    return make_broker("--max-connections", "500").start()


def run_all(broker: RunningBroker, clients: Clients, *, is_thorough: bool) -> list[Outcome]:
    coordinator = Coordinator("127.0.0.1", broker.port)
    try:
        names = coordinator.enlist(LINKS)
        return [coordinator.run(each) for each in cases(names, is_thorough=is_thorough)]
    finally:
        coordinator.close()
        assert set(clients.close().values()) == {0}


def test_every_client_with_every_other_one(broker: RunningBroker, tmp_path: Path) -> None:
    outcomes = run_all(broker, Clients(broker), is_thorough=False)
    assert [f"{each.case}: {each.failure}" for each in outcomes if each.failure] == []
    assert len(outcomes) == len(TESTS) * len(LINKS) ** 2
    write_junit(tmp_path / "interop.xml", outcomes)
    suite = ElementTree.parse(tmp_path / "interop.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == (str(len(outcomes)), "0", len(outcomes))


class Meddler(Coordinator):
    """A coordinator that publishes a message of its own to the queue of each test."""

    def __init__(self, host: str, port: int, other: Coordinator) -> None:
        super().__init__(host, port)
        self._keys = other._keys

    def _ask(self, client: str, identity: str, expected: str, headers: Headers) -> Headers:
        if headers["CONTROL_TYPE"] == "START":
            stray = Mail({"CLIENT_NAME": "stray", "NUMBER": 0}, body_of(0, 256), identity)
            self._link.send(DIRECT, f"iop-{identity}", stray)
        return super()._ask(client, identity, expected, headers)


def test_what_is_wrong_fails(broker: RunningBroker) -> None:
    clients = Clients(broker, ("pika", "proton"))
    coordinator = Coordinator("127.0.0.1", broker.port, {"P2P_NUM_MESSAGES": 3})
    coordinator.enlist(("pika", "proton"))
    right = coordinator.run(Case(P2P, "pika", "proton"))
    assert (right.failure, right.messages) == ("", 3)
    meddler = Meddler("127.0.0.1", broker.port, coordinator)
    meddled = meddler.run(Case(P2P, "pika", "proton"))
    meddler.leave()
    assert "50 of 50 sent, 49 of 50 received" in meddled.failure
    clients.processes["proton"].kill()
    clients.processes["proton"].wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.interop.coordinator.ANSWER_SECONDS", 1.0)
        assert "proton does not answer ASSIGN_ROLE" in coordinator.run(Case(DUMMY, "pika", "proton")).failure
        with pytest.raises(CoordinationError, match="not enlisted: none"):
            coordinator.enlist(("pika", "none"))
    coordinator.close()
    assert clients.close()["pika"] == 0


def test_clients_without_a_part_hear_of_the_coordinator(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    clients, coordinator = Clients(broker, ("pika",)), Coordinator("127.0.0.1", broker.port)
    coordinator.enlist(("pika",))
    idle = Pika("127.0.0.1", broker.port)
    idle.subscribe(CONTROL)
    monkeypatch.setattr("tests.interop.coordinator.INVITE_SECONDS", 0.0)
    assert [coordinator.run(Case(DUMMY, "pika", "pika")).failure for _ in range(2)] == ["", ""]
    for _ in range(2):
        mail = idle.receive(PATIENCE_SECONDS)
        assert mail is not None
        assert mail.headers == {"CONTROL_TYPE": "INVITE"}
    idle.close()
    coordinator.close()
    assert clients.close() == {"pika": 0}


# ---- the soak kit ----


def short(case: soak_kit.SoakCase) -> soak_kit.SoakCase:
    """A case with few messages and clients, at any rate."""
    consumers = tuple(sorted({min(each, 3) for each in case.consumers}))
    sizes = tuple(sorted({case.sizes[0], case.sizes[-1]}))
    return replace(case, consumers=consumers, sizes=sizes, messages=24, rate=0.0, seconds=0.0, producers=2)


def test_every_case_of_the_soak_kit_gets_all_of_its_messages(broker: RunningBroker) -> None:
    cases = list(soak_kit.cases())
    assert len({case.name for case in cases}) == len(cases) == 86
    for number, case in enumerate(today(cases, 12)):
        target = Broker(f"127.0.0.1:{broker.port}", soak_kit.PROTOCOLS[number % 2], {})
        rows = list(soak_kit.rows_of(target, short(case)))
        assert len(rows) == len(short(case).consumers) * len(short(case).sizes)
        for row in rows:
            assert row["consumed"] == 24 * (row["consumers"] if case.is_topic else 1), row


def test_a_lost_message_fails_a_case_of_the_soak_kit(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up = throughput.set_up
    monkeypatch.setattr(soak_kit, "_STALL_SECONDS", 1.0)
    monkeypatch.setattr(throughput, "set_up", lambda target, load: set_up(target, replace(load, exchange="")))
    target = Broker(f"127.0.0.1:{broker.port}", soak_kit.PROTOCOLS[0], {})
    case = next(case for case in soak_kit.cases() if case.name == "TTBT-AA-Qpid")
    with pytest.raises(soak_kit.SoakError, match="consumed 0 of 72"):
        list(soak_kit.rows_of(target, short(case)))


def test_the_command_of_the_soak_kit(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"127.0.0.1:{broker.port}"
    assert soak_kit.main(["-b", url, "-t", "TQR-Qpid-0[12]", "-c", "2", "-n", "30", "-d", "0", "-r", "2"]) == 0
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert tuple(head) == soak_kit.COLUMNS
    assert [row[0] for row in rows] == ["TQR-Qpid-01", "TQR-Qpid-02"] * 2
    assert {(row[2], row[4], row[5]) for row in rows} == {("2", "30", "30")}


@pytest.mark.soak
def test_the_matrix_of_the_soak_kit(broker: RunningBroker) -> None:
    seconds = os.environ.get("QSTORE_SOAK_SECONDS", "60")
    assert soak_kit.main(["-b", f"127.0.0.1:{broker.port}", "-d", seconds]) == 0


@pytest.mark.soak
def test_soak(broker: RunningBroker) -> None:
    end = time.monotonic() + float(os.environ.get("QSTORE_SOAK_SECONDS", "300"))
    clients, number = Clients(broker), 0
    coordinator = Coordinator("127.0.0.1", broker.port, {"P2P_NUM_MESSAGES": 200, "PUBSUB_NUM_MESSAGES": 50})
    names = coordinator.enlist(LINKS)
    while number == 0 or time.monotonic() < end:
        number += 1
        outcomes = []
        for each in cases(names, is_thorough=True):
            outcomes.append(outcome := coordinator.run(each))
            assert not outcome.failure, f"{each}: {outcome.failure}"  # a client that has ended fails all that follow
        seconds = sum(each.seconds for each in outcomes)
        rate = sum(each.messages for each in outcomes) / seconds
        latency = 1000 * median(each.seconds for each in outcomes if each.case.test == DUMMY) / 4  # control messages
        memory = broker.resident_bytes() >> 20
        print(f"round {number}: {len(outcomes)} cases, {rate:,.0f} messages/s, {latency:.1f} ms, {memory:,} MiB")
    coordinator.close()
    assert set(clients.close().values()) == {0}
