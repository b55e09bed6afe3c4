"""A Celery worker, unchanged, on this broker: a chord, retries, late acknowledgements, and a kill in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker


@pytest.fixture
def worker(make_broker: BrokerMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    """A broker with a worker; the environment names both."""
    broker = make_broker().start()
    (tmp_path / "results").mkdir()
    monkeypatch.setenv("CELERY_TEST_BROKER", f"amqp://guest:guest@127.0.0.1:{broker.port}//")
    monkeypatch.setenv("CELERY_TEST_BACKEND", f"file://{tmp_path}/results")
    command = [sys.executable, "-m", "celery", "-A", "tests.system.celery_tasks", "worker", "--pool", "solo"]
    with (tmp_path / "worker.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=log, stderr=log)
    yield broker
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.filterwarnings("ignore")
def test_a_chord_with_retries_survives_a_kill(worker: RunningBroker, tmp_path: Path) -> None:
    from celery import chord

    from tests.system.celery_tasks import app, double, second_time, total

    def get(result: Any) -> Any:
        try:
            return result.get(timeout=PATIENCE_SECONDS, interval=0.05)
        except Exception as error:
            raise AssertionError((tmp_path / "worker.log").read_text()[-4000:] + worker.log_text()) from error

    assert get(double.delay(4)) == 8
    first = chord([double.s(1), second_time.s(5), double.s(2)])(total.s())
    assert get(first) == 11
    waiting = [double.delay(number) for number in range(20)]
    port = str(worker.port)
    worker.kill()
    worker.launch("--port", port)  # the worker tries until it listens
    assert [get(each) for each in waiting] == [2 * number for number in range(20)]
    app.close()
