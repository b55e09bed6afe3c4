"""Notifications to a service manager."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from qstore.broker.process import service_manager


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
def test_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    service_manager.notify("READY=1")
