"""Who is told, and when, how far a start is."""

from __future__ import annotations

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.process.start_report import EXTENSION_SECONDS, StartReport


def test_the_manager_each_second_and_the_log_each_five(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    now = 0.0
    made: list[int] = []
    notified: list[str] = []
    report = StartReport(clock=lambda: now, notify=notified.append)

    def text() -> str:
        made.append(step)
        return f"step {step}"

    for step in range(130):
        now = step / 10
        report(text)
    assert made == list(range(10, 130, 10))
    assert notified == [f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS}000000\nSTATUS=Starting: step {at}" for at in made]
    assert [each.getMessage() for each in caplog.records] == ["Starting: step 50", "Starting: step 100"]
