"""Tasks for a Celery worker; broker and result backend come from the environment."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

app = Celery("tasks", broker=os.environ["CELERY_TEST_BROKER"], backend=os.environ["CELERY_TEST_BACKEND"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_chord_retry_interval=0.1,
)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(bind=True, max_retries=3)
def second_time(self: Any, number: int) -> int:
    """Succeeds when it is retried."""
    if not self.request.retries:
        raise self.retry(countdown=0.05)
    return number


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)
