"""Node's rhea, unchanged, against a real broker: AMQP 1.0, and a broker that is killed under its load.

It is installed from npm into a temporary folder, once for all tests; without node, npm or the registry they skip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, one_broker

_PACKAGES: Final = ("rhea@3.0.5", "rhea-promise@3.0.3")
_CLIENT: Final = str(ROOT / "tests" / "system" / "rhea_client.js")
_KILLS: Final = 2
_ACCEPTED: Final = 300  # messages in each life of the broker, at least

broker = pytest.fixture(scope="module")(one_broker)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which node finds rhea."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not on this machine")
    folder = tmp_path_factory.mktemp("rhea")
    options = ("--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefer-offline", "--fetch-retries=0")
    command = ["npm", "install", *options, "--prefix", str(folder), *_PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{_PACKAGES}: the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"{_PACKAGES} cannot be installed: {done.stderr.strip()[-300:]}")
    return {**os.environ, "NODE_PATH": str(folder / "node_modules")}


def run(node: dict[str, str], port: int, *arguments: str) -> str:
    """What a client prints."""
    command = ["node", _CLIENT, str(port), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=node, timeout=3 * PATIENCE_SECONDS, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rhea_works_unchanged(node: dict[str, str], broker: RunningBroker) -> None:
    """Each scenario of `rhea_client.js`, at the same time."""
    results = json.loads(run(node, broker.port, "all"))
    assert len(results) == 11
    assert {name: error for name, error in results.items() if error is not None} == {}


@pytest.fixture
def publishers() -> Iterator[list[subprocess.Popen[str]]]:
    """Clients that a test has started."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in started:
        each.kill()
        each.communicate()


def test_nothing_accepted_is_lost(
    node: dict[str, str], make_broker: BrokerMaker, publishers: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    broker, accepted = make_broker().start(), set[int]()
    for life in range(_KILLS):
        command = ["node", _CLIENT, str(broker.port), "publish", str(life * 1_000_000)]
        with (tmp_path / f"errors.{life}").open("w") as errors:
            publisher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=node)
        publishers.append(publisher)
        assert publisher.stdout is not None
        for _ in range(_ACCEPTED):
            accepted.add(int(publisher.stdout.readline()))
        broker.kill()
        rest, _ = publisher.communicate(timeout=PATIENCE_SECONDS)
        assert publisher.returncode == 0, (tmp_path / f"errors.{life}").read_text()
        accepted |= {int(line) for line in rest.splitlines() if line}
        broker.start()
    found = [int(line) for line in run(node, broker.port, "drain").splitlines()]
    assert accepted <= set(found)
    assert found == sorted(set(found)), "each once, in order"
