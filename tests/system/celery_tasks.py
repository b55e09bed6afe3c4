"""Tasks for a Celery worker; broker, result backend and the directory of `meet` come from the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tasks", broker=os.environ["CELERY_TEST_BROKER"], backend=os.environ["CELERY_TEST_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_default_queue_type=os.environ.get("CELERY_TEST_QUEUE_TYPE", "classic"),
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_chord_retry_interval=0.1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
)


if topic := os.environ.get("CELERY_TEST_TOPIC"):  # an exchange over which Celery delays tasks of quorum queues
    app.conf.update(task_default_exchange=topic, task_default_exchange_type="topic")


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(acks_late=False)
def early(number: int) -> int:
    """Acknowledged before it runs."""
    return 2 * number


@app.task(bind=True, max_retries=3)
def second_time(self: Any, number: int, countdown: float = 0.05) -> int:
    """Succeeds when it is retried."""
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    return number


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(rate_limit="1200/m")
def limited(number: int) -> int:
    return number


@app.task
def meet(place: str, name: str, count: int) -> list[str]:
    """Leaves its name in a directory, and waits until as many as `count` have done so."""
    (Path(place) / name).touch()
    while len(there := sorted(os.listdir(place))) < count:
        time.sleep(0.01)
    return there
