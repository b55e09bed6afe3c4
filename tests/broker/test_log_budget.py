"""Log lines that peers can cause are limited; those left out are counted."""

from __future__ import annotations

import pytest

from qstore.broker.log.logs import MAX_LINES, PERIOD_SECONDS, WARNING, LogBudget, log_of


def test_a_flood_is_cut_off_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "Security")
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(1000):
        budget.write(100.0, "login %d", number)
    budget.on_timer(100.0 + PERIOD_SECONDS - 1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"login {number}" for number in range(MAX_LINES)]
    caplog.clear()
    budget.on_timer(100.0 + PERIOD_SECONDS)
    budget.write(100.0 + PERIOD_SECONDS, "login %d", 1000)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{1000 - MAX_LINES} more failed logins within 60 seconds; log level debug+ shows each of them"),
        ("WARNING", "login 1000"),
    ]


def test_a_line_now_and_then_is_always_written(caplog: pytest.LogCaptureFixture) -> None:
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(10 * MAX_LINES):
        budget.write(number * PERIOD_SECONDS / MAX_LINES, "%s", "x")
    assert [record.getMessage() for record in caplog.records] == ["x"] * (10 * MAX_LINES)


def test_debug_shows_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "Security")
    budget = LogBudget(log_of("Security"), WARNING, "failed logins")
    for number in range(100):
        budget.write(0.0, "login %d", number)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING"] * MAX_LINES + ["DEBUG"] * (100 - MAX_LINES)
