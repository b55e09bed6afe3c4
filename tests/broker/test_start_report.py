"""Reports of a start's progress, and notifications to a service manager."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from qstore.broker.log.logs import NOTICE
from qstore.broker.process import service_manager
from qstore.broker.process.service_manager import EXTENSION_SECONDS, RETRY_SECONDS, StartReport


def test_the_manager_each_second_and_the_log_each_five(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(NOTICE)
    now = 0.0
    made: list[int] = []
    notified: list[str] = []

    def notify(state: str) -> bool:
        notified.append(state)
        return True

    report = StartReport(clock=lambda: now, notify=notify)

    def text() -> str:
        made.append(step)
        return f"step {step}"

    for step in range(130):
        now = step / 10
        report(text)
    assert made == list(range(10, 130, 10))
    assert notified == [f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS}000000\nSTATUS=Starting: step {at}" for at in made]
    assert [each.getMessage() for each in caplog.records] == ["Starting: step 50", "Starting: step 100"]


def test_a_manager_that_has_gone_is_not_notified_each_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    caplog.set_level(NOTICE)
    now = 0.0
    report = StartReport(clock=lambda: now)
    seconds = 2 * int(RETRY_SECONDS)
    for step in range(seconds):
        now = float(step)
        report(lambda: "step")
    texts = [each.getMessage() for each in caplog.records]
    refused = [text for text in texts if text != "Starting: step"]
    assert len(refused) == 2
    assert all("\n" not in text and "No such file" in text for text in refused)
    assert len(texts) - len(refused) == seconds // 5 - 1


# ---- notifications to a service manager ----


@pytest.mark.parametrize("is_abstract", [False, True])
def test_progress_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool) -> None:
    name = f"@{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0") if is_abstract else name)
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        service_manager.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("name", ["", "relative", "/nowhere/notify", "/" + "x" * 200])
def test_a_service_manager_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    service_manager.notify("READY=1")
