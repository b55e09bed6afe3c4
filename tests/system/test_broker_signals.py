"""Signals: SIGHUP reloads and never ends a broker; SIGTERM and SIGINT end it cleanly, also when they come again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from qstore.broker.security.users.user_file import Users
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker, RunningBroker


def has_logged(broker: RunningBroker, text: str, log: Path | None = None) -> bool:
    """Whether the log says so, after a while."""
    end = time.monotonic() + PATIENCE_SECONDS
    path = log or broker.log
    while time.monotonic() < end:
        if path.exists() and text in path.read_text():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.core
def test_sighup_reloads_and_the_broker_continues(make_broker: BrokerMaker, tmp_path: Path) -> None:
    users, log = tmp_path / "users", tmp_path / "qpidd.log"
    Users(str(users)).put("guest", "guest")
    broker = make_broker("--auth", "yes", "--user-file", str(users), "--log-to-file", str(log)).start()
    log.rename(tmp_path / "qpidd.log.1")
    os.kill(broker.pid, signal.SIGHUP)
    assert has_logged(broker, f"SIGHUP from process {os.getpid()}: reloading")
    assert has_logged(broker, f"{users}: the user file is valid", log)
    assert has_logged(broker, "changes of other options need a restart", log)
    users.write_text("nonsense\n")
    os.kill(broker.pid, signal.SIGHUP)
    assert has_logged(broker, f"{users}: line 1: not name:scrypt", log)
    Path(log).unlink()
    Path(log).mkdir()
    os.kill(broker.pid, signal.SIGHUP)
    assert has_logged(broker, "the log cannot be written: Is a directory")
    assert broker.is_running()
    assert broker.stop() == 0, broker.log_text()


def test_sighup_logs_only_reloaded_files(make_broker: BrokerMaker, tmp_path: Path) -> None:
    certificate, log = Path(Certificates(tmp_path).server()), tmp_path / "qpidd.log"
    broker = make_broker("--ssl-cert", str(certificate), "--ssl-port", "0", "--log-to-file", str(log)).start()
    os.kill(broker.pid, signal.SIGHUP)
    assert has_logged(broker, "Reloaded the log file and the certificate; ", log)
    certificate.write_text("nonsense")
    log.write_text("")
    os.kill(broker.pid, signal.SIGHUP)
    assert has_logged(broker, "the previous certificate stays in use", log)
    assert has_logged(broker, "Reloaded the log file; ", log)
    assert broker.stop() == 0


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGHUP, signal.SIGTERM)])
def test_shutdown_is_clean_despite_further_signals(
    make_broker: BrokerMaker, numbers: tuple[signal.Signals, ...]
) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        peer.declare("orders")
        peer.publish("orders", b"1")
        peer.sync()
        for number in numbers:
            os.kill(broker.pid, number)
        assert has_logged(broker, "shutting down")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            os.kill(broker.pid, number)
            time.sleep(0.05)
        assert broker.stop(signal.SIGINT) == 0, broker.log_text()
    assert "the broker is already shutting down" in broker.log_text()
    assert "Shut down" in broker.log_text()
    assert broker.start().stop() == 0


def test_signals_during_a_start_take_effect_after_it(make_broker: BrokerMaker) -> None:
    broker = make_broker()
    broker.start().stop()
    broker.log.unlink()
    broker.launch()
    assert has_logged(broker, "Store module initialized")
    os.kill(broker.pid, signal.SIGHUP)
    assert broker.stop() == 0, broker.log_text()
