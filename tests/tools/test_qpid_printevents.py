"""`qpid-printevents`: events of brokers as lines and as JSON, across lost connections."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstore.broker.client import ConnectError
from qstore.broker.management.console import AgentInfo, Console, Event, SchemaId
from qstore.tools import qpid_printevents
from qstore.tools.console.broker import BrokerOptions
from qstore.tools.qpid_printevents import Happened, of_connection, of_event, of_heartbeat, watch
from tests.support.processes import PATIENCE_SECONDS
from tests.tools.management_runs import Runs, broker, system_log, url  # noqa: F401 (fixtures)


@pytest.fixture
def events(url: str) -> Runs:  # noqa: F811
    return Runs(qpid_printevents.command, url)


@pytest.fixture
def busy(url: str) -> Iterator[None]:  # noqa: F811
    """Queues come and go all the time."""
    is_over = threading.Event()

    def work() -> None:
        with Console(url) as console:
            while not is_over.wait(0.02):
                console.call("broker", "create", type="queue", name="a b")
                console.call("broker", "delete", type="queue", name="a b")

    thread = threading.Thread(target=work)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("busy")
def test_events_are_lines(events: Runs, url: str) -> None:  # noqa: F811
    lines = events.lines("-n", "8")
    assert re.fullmatch(rf".* 20\d\d NOTIC qpid-printevents:brokerConnected broker={url}", lines[0])
    assert len(lines) == 9
    assert any(
        re.search(r" INFO  org.apache.qpid.broker:queueDeclare .*qName='a b' .*disp=created", line) for line in lines
    )
    assert any(line.endswith(f" broker={url}") for line in events.lines("-n", "8", url, url)[2:])


@pytest.mark.usefixtures("busy")
def test_events_are_json(events: Runs, url: str) -> None:  # noqa: F811
    connected, *found = events.json("-n", "8")
    assert (connected["kind"], connected["broker"]) == ("connected", url)
    assert {each["kind"] for each in found} == {"event"}
    deleted = next(each for each in found if each["name"] == "queueDelete")
    assert (deleted["values"]["qName"], deleted["severity"]) == ("a b", 6)
    assert deleted["timestamp"] > 10**18


@pytest.mark.usefixtures("busy")
def test_events_go_to_the_systems_log(events: Runs, system_log: socket.socket) -> None:  # noqa: F811
    assert events.lines("-n", "4", "--syslog", "local0") == []
    found = [system_log.recv(65536).decode() for _ in range(5)]
    assert re.match(r"<133>qpid-printevents\[\d+\]: NOTIC qpid-printevents:brokerConnected broker=", found[0])
    assert any(
        re.match(r"<134>qpid-printevents\[\d+\]: INFO  org.apache.qpid.broker:queueDeclare ", each) for each in found
    )


def test_there_is_no_log_of_the_system(
    events: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qstore.tools.console.syslog._ADDRESS", f"{tmp_path}/none")
    assert events.fails("--syslog") == f"qpid-printevents: {tmp_path}/none: No such file or directory\n"


def test_the_end_after_some_time(events: Runs) -> None:
    seconds = 0.2
    while "brokerConnected" not in events.text("--duration", str(seconds)):  # it was not fast enough to say more
        assert seconds < PATIENCE_SECONDS
        seconds *= 2


def test_no_broker(events: Runs) -> None:
    assert (
        events.fails("127.0.0.1:1") == "qpid-printevents: 127.0.0.1:1: connection refused: is a broker running there?\n"
    )


def _watched(url: str, show: Callable[[Happened], bool]) -> None:  # noqa: F811
    options = BrokerOptions(url, {}, 10)
    asyncio.run(watch([options], show, print, has_heartbeats=True, seconds=60))


def test_a_lost_connection_is_opened_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(qpid_printevents, "_FIRST", 0.01)
    kinds: list[str] = []

    def cut() -> None:
        with Console(url) as console:
            for connection in console.query("connection"):
                if connection["address"] != own_address(console):
                    console.call(connection, "close")

    def show(happened: Happened) -> bool:
        if happened.kind in ("connected", "disconnected"):
            kinds.append(happened.kind)
            if kinds == ["connected"]:
                threading.Timer(0.2, cut).start()
        return kinds.count("connected") == 2

    _watched(url, show)
    assert kinds == ["connected", "disconnected", "connected"]


def own_address(console: Console) -> str:
    """The address of the console's own connection, which is the youngest."""
    return str(max(console.query("connection"), key=lambda each: int(each["address"].rpartition(":")[2]))["address"])


def test_a_broker_that_is_never_there() -> None:
    with pytest.raises(ConnectError):
        _watched("127.0.0.1:1", lambda _: False)


# ---- lines ----


def test_lines() -> None:
    event = Event(SchemaId("p", "c", True), {"a": 1, "b": "x\ny", "c": {"d": 1}}, "agent", 0, 4)
    line = of_event(event, "host").line(has_broker=True)
    assert line == rf"{time.ctime(0)} WARN  p:c a=1 b=x\x0ay c={{d:1}} broker=host"
    assert of_event(event._replace(severity=99), "host").line(has_broker=False).split()[5] == "99"
    agent = AgentInfo("v:p:i", "v", "p", "i", 1, 10, 0, {})
    assert of_heartbeat(agent, "host").line(has_broker=False).endswith("agentHeartbeat agent=v:p:i interval=10")
    lost = of_connection("host", is_open=False, reason="it is gone")
    assert lost.line(has_broker=False).endswith("brokerDisconnected broker=host reason='it is gone'")
    assert lost.as_json()["kind"] == "disconnected"
