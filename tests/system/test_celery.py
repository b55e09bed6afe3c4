"""A Celery worker, unchanged, on this broker.

Celery changes the prefetch count of its running consumer: each task that waits for its time raises it by one, so that
others come past it, and so does a larger pool. The tests share one broker and one worker, which begins with one process
and a prefetch count of 1; some kill them. Tasks that are due in an hour stay where they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pytest

from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.filterwarnings("ignore")

HOUR = 3600


class Worker:
    """A worker, and the broker that it works for."""

    def __init__(self, broker: RunningBroker, directory: Path) -> None:
        self.broker, self.log = broker, directory / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "celery", "-A", "tests.system.celery_tasks", "worker", "--autoscale", "1,1",
            "--without-mingle", "--loglevel", "info",
        ]  # fmt: skip
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL for it and its pool, which is in its process group."""
        assert self._process is not None
        os.killpg(self._process.pid, 9)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """A warm shutdown."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.log_text()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def log_text(self) -> str:
        return self.log.read_text()[-4000:] + self.broker.log_text()

    def get(self, result: Any) -> Any:
        """A task's result."""
        try:
            return result.get(timeout=PATIENCE_SECONDS, interval=0.02)
        except Exception as error:
            raise AssertionError(self.log_text()) from error

    def waits(self, what: Callable[[], object], wanted: object) -> None:
        """Until it is so."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := what()) != wanted:
            assert time.monotonic() < end, f"{found} instead of {wanted}\n{self.log_text()}"
            time.sleep(0.02)

    def prefetch_count(self) -> int:
        """The prefetch count that the worker has asked for."""
        from tests.system.celery_tasks import app

        (stats,) = app.control.inspect(limit=1, timeout=PATIENCE_SECONDS).stats().values()
        return int(stats["prefetch_count"])

    def scheduled(self) -> set[str]:
        """The tasks that wait in the worker for their time."""
        from tests.system.celery_tasks import app

        (tasks,) = app.control.inspect(limit=1, timeout=PATIENCE_SECONDS).scheduled().values()
        return {each["request"]["id"] for each in tasks}

    def ready(self) -> int:
        """Tasks that the broker has not delivered."""
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.broker.port)) as connection:
            return int(connection.channel().queue_declare("celery", passive=True).method.message_count)

    def holds(self, count: int) -> int:
        """Where `count` tasks are ready, of which the first keeps the only process busy: how many are delivered."""
        from tests.system.celery_tasks import meet

        place = self.place()
        begun = [meet.delay(place, f"{number}", count + 1) for number in range(count)]
        self.waits(lambda: len(os.listdir(place)), 1)
        time.sleep(0.2)  # what else is delivered would be so by now
        held = count - self.ready()
        for number in range(count):
            (Path(place) / f"guest{number}").touch()
        for each in begun:
            self.get(each)
        return held

    def place(self) -> str:
        """An empty directory."""
        path = self.log.parent / f"place-{uuid4()}"
        path.mkdir()
        return str(path)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A broker with a worker; the environment names both."""
    directory = tmp_path_factory.mktemp("celery")
    broker = RunningBroker(directory / "broker").start()
    (directory / "results").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELERY_TEST_BROKER", f"amqp://guest:guest@127.0.0.1:{broker.port}//")
        patch.setenv("CELERY_TEST_BACKEND", f"file://{directory}/results")
        worker = Worker(broker, directory)
        worker.start()
        from tests.system.celery_tasks import app, double

        assert worker.get(double.delay(1)) == 2  # it is there, and hears what is broadcast
        yield worker
        app.close()
        worker.close()
        broker.close()


def test_the_window_is_the_prefetch_count(worker: Worker) -> None:
    assert worker.holds(4) == 1


def test_a_chord_with_retries(worker: Worker) -> None:
    from celery import chord

    from tests.system.celery_tasks import double, second_time, total

    assert worker.get(double.delay(4)) == 8
    assert worker.get(chord([double.s(1), second_time.s(5), double.s(2)])(total.s())) == 11


def test_tasks_with_a_countdown_run_when_they_are_due_and_give_the_window_back(worker: Worker) -> None:
    from tests.system.celery_tasks import double, early

    before = worker.prefetch_count()
    due = [task.apply_async((number,), countdown=0.5) for number in range(3) for task in (double, early)]
    assert worker.get(double.delay(7)) == 14
    assert [worker.get(each) for each in due] == [0, 0, 2, 2, 4, 4]
    worker.waits(worker.prefetch_count, before)
    assert worker.holds(4) == 1


def test_retries_give_the_window_back(worker: Worker) -> None:
    from tests.system.celery_tasks import second_time

    before = worker.prefetch_count()
    again = [second_time.delay(number, countdown=0.2) for number in range(6)]
    assert [worker.get(each) for each in again] == list(range(6))
    worker.waits(worker.prefetch_count, before)


def test_rate_limits(worker: Worker) -> None:
    from tests.system.celery_tasks import limited

    before = worker.prefetch_count()
    assert [worker.get(each) for each in [limited.delay(number) for number in range(8)]] == list(range(8))
    due = [limited.apply_async((number,), countdown=0.2) for number in range(4)]
    assert [worker.get(each) for each in due] == list(range(4))
    worker.waits(worker.prefetch_count, before)


def test_revoked_tasks_never_run_and_give_the_window_back(worker: Worker) -> None:
    from tests.system.celery_tasks import app, double

    before = worker.prefetch_count()
    due = [double.apply_async((number,), countdown=1) for number in range(3)]
    app.control.revoke([each.id for each in due], reply=True, timeout=PATIENCE_SECONDS, limit=1)
    for each in due:
        worker.waits(lambda each=each: each.state, "REVOKED")
    worker.waits(worker.prefetch_count, before)
    assert worker.holds(3) == 1


def test_a_larger_pool_gets_more_at_once(worker: Worker) -> None:
    """Three tasks that wait for each other."""
    from tests.system.celery_tasks import app, meet

    before, place = worker.prefetch_count(), worker.place()
    meeting = [meet.delay(place, f"{number}", 3) for number in range(3)]
    worker.waits(lambda: len(os.listdir(place)), 1)
    app.control.autoscale(3, 1, reply=True, timeout=PATIENCE_SECONDS, limit=1)
    assert [worker.get(each) for each in meeting] == [["0", "1", "2"]] * 3
    app.control.autoscale(1, 1, reply=True, timeout=PATIENCE_SECONDS, limit=1)
    worker.waits(worker.prefetch_count, before)
    assert worker.holds(4) == 1


def test_a_task_comes_past_those_that_are_due_in_an_hour(worker: Worker) -> None:
    from tests.system.celery_tasks import double

    before = worker.prefetch_count()
    for number in range(4):
        double.apply_async((number,), countdown=HOUR)
    assert worker.get(double.delay(7)) == 14
    assert worker.prefetch_count() == before + 4
    assert worker.holds(3) == 1


def test_tasks_of_a_killed_worker_run_on_the_next_one(worker: Worker) -> None:
    from tests.system.celery_tasks import double

    before = worker.prefetch_count()
    for number in range(2):
        double.apply_async((number,), countdown=HOUR)
    due = [double.apply_async((number,), countdown=3) for number in range(3)]
    worker.waits(worker.ready, 0)
    worker.kill()
    worker.start()
    assert [worker.get(each) for each in due] == [0, 2, 4]
    assert worker.get(double.delay(7)) == 14
    worker.waits(worker.prefetch_count, before + 2)


def test_nothing_is_lost_when_the_broker_is_killed(worker: Worker) -> None:
    """Tasks that the worker held when the connection broke it may run twice."""
    from tests.system.celery_tasks import double, second_time

    for number in range(2):
        double.apply_async((number,), countdown=HOUR)
    due = [double.apply_async((number,), countdown=2) for number in range(3)]
    worker.waits(worker.ready, 0)
    retried = [second_time.delay(number, countdown=1) for number in range(3)]
    # Celery rejects a task for good that cannot send its retry.
    worker.waits(lambda: "PENDING" in [each.state for each in retried], wanted=False)
    waiting = [double.delay(number) for number in range(20)]
    port = str(worker.broker.port)
    worker.broker.kill()
    worker.broker.launch("--port", port)  # the worker tries until it listens
    assert [worker.get(each) for each in waiting] == [2 * number for number in range(20)]
    assert [worker.get(each) for each in due] == [0, 2, 4]
    assert [worker.get(each) for each in retried] == [0, 1, 2]
    assert worker.get(double.delay(7)) == 14


def test_tasks_held_by_a_stopped_worker_are_ready_again(worker: Worker) -> None:
    from tests.system.celery_tasks import app, double

    before = len(worker.scheduled())
    for number in range(2):
        double.apply_async((number,), countdown=HOUR)
    worker.waits(lambda: len(worker.scheduled()), before + 2)
    worker.stop()
    worker.waits(worker.ready, before + 2)
    app.control.purge()
    worker.start()
    assert worker.get(double.delay(7)) == 14


@pytest.mark.parametrize("topic", ["", "tasks"])
def test_tasks_of_a_quorum_queue_run(tmp_path: Path, topic: str) -> None:
    """With a topic exchange, those with a countdown pass 28 queues with at-least-once dead letters."""
    from celery import Celery

    broker = RunningBroker(tmp_path / "broker").start()
    (tmp_path / "results").mkdir()
    worker = Worker(broker, tmp_path)
    try:
        with pytest.MonkeyPatch.context() as patch:
            address, results = f"amqp://guest:guest@127.0.0.1:{broker.port}//", f"file://{tmp_path}/results"
            patch.setenv("CELERY_TEST_BROKER", address)
            patch.setenv("CELERY_TEST_BACKEND", results)
            patch.setenv("CELERY_TEST_QUEUE_TYPE", "quorum")
            patch.setenv("CELERY_TEST_TOPIC", topic)
            worker.start()
            with Celery("sender", broker=address, backend=results) as app:
                app.conf.update(task_default_queue_type="quorum", broker_transport_options={"confirm_publish": True})
                if topic:
                    app.conf.update(task_default_exchange=topic, task_default_exchange_type="topic")
                sent = [app.send_task("tests.system.celery_tasks.double", (number,)) for number in range(20)]
                assert [worker.get(each) for each in sent] == [2 * number for number in range(20)]
                retried = app.send_task("tests.system.celery_tasks.second_time", (7, 1))
                assert worker.get(retried) == 7
                name = "tests.system.celery_tasks.double"
                due = [app.send_task(name, (number,), countdown=1.5) for number in range(3)]
                assert [worker.get(each) for each in due] == [0, 2, 4]
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare("celery", durable=True, arguments=arguments)
    finally:
        worker.close()
        broker.close()
