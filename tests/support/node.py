"""Clients of Node, installed from npm into a temporary folder.

Without node, npm or the registry, tests that need them skip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import RunningBroker

_OPTIONS = ("--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefer-offline", "--fetch-retries=0")


class NodeClient:
    """A script in `tests/system` that uses packages of npm.

    Args:
        script: its file name.
        packages: with their versions.
        folder: where they are installed; empty.
    """

    def __init__(self, script: str, packages: tuple[str, ...], folder: Path) -> None:
        self._script, self._started = str(ROOT / "tests" / "system" / script), list[subprocess.Popen[str]]()
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("node or npm is not on this machine")
        command = ["npm", "install", *_OPTIONS, "--prefix", str(folder), *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{packages}: the npm registry does not answer")
        if done.returncode:
            pytest.skip(f"{packages} cannot be installed: {done.stderr.strip()[-300:]}")
        self._environment = {**os.environ, "NODE_PATH": str(folder / "node_modules")}

    def _command(self, port: int, *arguments: str) -> list[str]:
        return ["node", self._script, str(port), *arguments]

    def run(self, port: int, *arguments: str) -> str:
        """What the script prints."""
        done = subprocess.run(
            self._command(port, *arguments), capture_output=True, text=True, check=False, env=self._environment,
            timeout=3 * PATIENCE_SECONDS, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def scenarios(self, port: int) -> dict[str, Any]:
        """The scenarios of the script, which run at the same time: the error of each, None if it passed."""
        results: dict[str, Any] = json.loads(self.run(port, "all"))
        return results

    def publish_until_killed(self, broker: RunningBroker, first: int, least: int, errors: Path) -> set[int]:
        """Publish numbers from the first on, kill the broker once `least` are answered, and return all that were."""
        with errors.open("w") as file:
            command = self._command(broker.port, "publish", str(first))
            publisher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=self._environment)
        self._started.append(publisher)
        assert publisher.stdout is not None
        answered = {int(publisher.stdout.readline()) for _ in range(least)}
        broker.kill()
        rest, _ = publisher.communicate(timeout=PATIENCE_SECONDS)
        assert publisher.returncode == 0, errors.read_text()
        return answered | {int(line) for line in rest.splitlines() if line}

    def close(self) -> None:
        """End what is left of its processes."""
        for each in self._started:
            each.kill()
            each.communicate()


def nothing_answered_is_lost(client: NodeClient, broker: RunningBroker, folder: Path) -> None:
    """Kill a broker twice while a client publishes; what it was told is stored must come back, once and in order."""
    answered = set[int]()
    for life in range(2):
        answered |= client.publish_until_killed(broker, life * 1_000_000, 300, folder / f"errors.{life}")
        broker.start()
    found = [int(line) for line in client.run(broker.port, "drain").splitlines()]
    assert answered <= set(found)
    assert found == sorted(set(found)), "each once, in order"
