"""Helpers of the tests of management commands: a broker, and each command run on it in this process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker, one_broker


class Runs:
    """Runs one command on one broker."""

    def __init__(self, command: click.Command, url: str) -> None:
        self._command, self._url = command, url

    def result(self, *arguments: str, stdin: str | None = None) -> Result:
        """However it ends."""
        return CliRunner().invoke(self._command, ["-b", self._url, *arguments], input=stdin)

    def text(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints, where it is fine."""
        result = self.result(*arguments, stdin=stdin)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def lines(self, *arguments: str) -> list[str]:
        """The same as lines."""
        return self.text(*arguments).splitlines()

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """Its JSON objects."""
        return [json.loads(line) for line in self.lines("--json", *arguments)]

    def fails(self, *arguments: str, code: int = 1) -> str:
        """What it complains about."""
        result = self.result(*arguments)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.stderr


broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def system_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What commands take for the system's log."""
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(path)
        found.settimeout(PATIENCE_SECONDS)
        monkeypatch.setattr("qstore.tools.console.syslog._ADDRESS", path)
        yield found
