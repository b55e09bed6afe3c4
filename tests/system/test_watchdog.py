"""The watchdog kills a broker whose event loop hangs, and no other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from qstore import Connection, Message
from qstore.broker.process.service_manager import watchdog_seconds
from tests.support.processes import PATIENCE_SECONDS, children_of, goes
from tests.support.running_broker import BrokerMaker, RunningBroker

BLOCKS = """
import signal, sys, time
from qstore.broker.model.broker import Broker
from qstore.broker.process.command import run

def in_c():
    sum(range(10 ** 15))  # keeps the interpreter's lock

signal.signal(signal.SIGUSR1, lambda *_: {how})
recover = Broker.recover

def slowly(*arguments):
    time.sleep({start})
    recover(*arguments)

Broker.recover = slowly
sys.exit(run(sys.argv[1:]))
"""
INTERVAL = 1


def blocking(broker: RunningBroker, how: str = "time.sleep(1000)", start: float = 0.0) -> RunningBroker:
    """A broker whose event loop blocks at SIGUSR1, and that takes so long to recover its store."""
    broker.program = (sys.executable, "-c", BLOCKS.format(how=how, start=start))
    return broker


def watchdog_of(broker: RunningBroker) -> int:
    (found,) = [pid for pid in children_of(broker.pid) if Path(f"/proc/{pid}/comm").read_text() == "qpidd-watchdog\n"]
    return found


def check_service(broker: RunningBroker) -> None:
    Connection.establish(f"127.0.0.1:{broker.port}", connect_timeout=PATIENCE_SECONDS).close()


@pytest.mark.parametrize("how", ["time.sleep(1000)", "in_c()"])
def test_a_broker_whose_event_loop_stands_still_is_killed(make_broker: BrokerMaker, tmp_path: Path, how: str) -> None:
    log = tmp_path / "qpidd.log"
    broker = blocking(make_broker("--watchdog-interval", str(INTERVAL), "--log-to-file", str(log)), how).start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        sender = connection.session().sender("q; {create: always, node: {durable: true}}")
        sender.send(Message("kept", durable=True), sync=True)
    watchdog, pid = watchdog_of(broker), broker.pid
    os.kill(pid, signal.SIGUSR1)
    assert broker.stop(0) == -signal.SIGKILL
    assert goes(watchdog)
    text = f"critical Watchdog: the event loop of process {pid} has not run for {INTERVAL} seconds (the process is "
    assert text in log.read_text()
    assert text in broker.log_text()
    broker.program = ()
    broker.start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        assert connection.session().receiver("q").fetch(timeout=PATIENCE_SECONDS).content == "kept"


def test_a_broker_that_is_stopped_by_a_signal_or_debugger_is_left_alone(make_broker: BrokerMaker) -> None:
    broker = make_broker("--watchdog-interval", str(INTERVAL)).start()
    for _ in range(2):
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(2.5 * INTERVAL)
        os.kill(broker.pid, signal.SIGCONT)
        check_service(broker)
    assert broker.stop() == 0
    assert "Watchdog" not in broker.log_text()


def test_a_watchdog_that_was_stopped_itself_does_not_count_that_time(make_broker: BrokerMaker) -> None:
    broker = make_broker("--watchdog-interval", str(INTERVAL)).start()
    watchdog = watchdog_of(broker)
    for pid in (watchdog, broker.pid):  # as when the machine is suspended
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5 * INTERVAL)
    for pid in (watchdog, broker.pid):
        os.kill(pid, signal.SIGCONT)
    check_service(broker)
    time.sleep(1.5 * INTERVAL)
    assert broker.stop() == 0


def test_a_start_may_take_longer_than_the_interval(make_broker: BrokerMaker) -> None:
    broker = blocking(make_broker("--watchdog-interval", str(INTERVAL)), start=3.0 * INTERVAL).start()
    check_service(broker)
    time.sleep(1.5 * INTERVAL)
    assert broker.stop() == 0


def test_the_watchdog_ends_with_the_broker(make_broker: BrokerMaker) -> None:
    broker = make_broker("--watchdog-interval", "86400").start()
    watchdog_of(broker)
    broker.kill()  # checks that no child is left
    broker.start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(watchdog_of(broker), number)  # as they are sent to a process group
    check_service(broker)
    watchdog_of(broker)
    assert broker.stop() == 0


def test_a_watchdog_that_ends_is_missed(make_broker: BrokerMaker) -> None:
    broker = make_broker("--watchdog-interval", str(INTERVAL)).start()
    os.kill(watchdog_of(broker), signal.SIGKILL)
    assert broker.has_logged("error The watchdog has ended (Broken pipe): a broker that hangs will not be killed")
    check_service(broker)
    assert broker.stop() == 0


def test_the_watchdog_is_off_by_default(make_broker: BrokerMaker) -> None:
    broker = make_broker("--load-module", "watchdog.so").start()
    names = [Path(f"/proc/{pid}/comm").read_text() for pid in children_of(broker.pid)]
    assert "qpidd-watchdog\n" not in names


def test_the_watchdog_keeps_nothing_of_the_broker_open(make_broker: BrokerMaker) -> None:
    """Neither its sockets nor the lock of its data directory."""
    broker = make_broker("--watchdog-interval", "5").start()
    watchdog = watchdog_of(broker)
    kinds = [os.readlink(each) for each in Path(f"/proc/{watchdog}/fd").iterdir()]
    assert not [each for each in kinds if each.startswith("socket:") or str(broker.data_directory) in each]


def test_a_service_manager_hears_from_the_event_loop(make_broker: BrokerMaker, tmp_path: Path) -> None:
    broker = blocking(make_broker())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_SECONDS)
        broker.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        broker.start()
        assert manager.recv(100).startswith(b"READY=1")
        for _ in range(3):
            assert manager.recv(100) == b"WATCHDOG=1"
        os.kill(broker.pid, signal.SIGUSR1)
        time.sleep(1.0)
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while manager.recv(100):
                pass
        manager.settimeout(1.0)
        with pytest.raises(TimeoutError):
            manager.recv(100)


@pytest.mark.parametrize(
    ("given", "process", "seconds"),
    [("60000000", "", 60.0), ("60000000", "own", 60.0), ("60000000", "1", 0.0), ("", "", 0.0), ("x", "", 0.0)],
)
def test_how_often_a_service_manager_wants_to_hear(
    monkeypatch: pytest.MonkeyPatch, given: str, process: str, seconds: float
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", given)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if process == "own" else process)
    assert watchdog_seconds() == seconds
