"""A broker for all tests of the client, and a connection to it by each face."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.client.faces import FACES, Face
from tests.support.running_broker import RunningBroker, one_broker


class BrokerOnOnePort(RunningBroker):
    """A broker that has the same port in all its lives."""

    def command(self, *options: str) -> list[str]:
        command = super().command(*options)
        command[command.index("--port") + 1] = str(self.port)
        return command

    def wait_for_port(self) -> int:
        if not self.port:
            return super().wait_for_port()
        while True:  # a port that was not chosen is not said
            assert self.is_running(), self.log_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self.port
            time.sleep(0.01)


broker = pytest.fixture(one_broker, scope="session")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker of one test, which may kill it."""
    running = BrokerOnOnePort(tmp_path / "broker")
    running.start()
    yield running
    running.close()


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = Face(request.param)
    yield made
    made.close()


@pytest.fixture
def connection(broker: RunningBroker, face: Face) -> Any:
    return face.connect(f"127.0.0.1:{broker.port}")


@pytest.fixture
def session(connection: Any) -> Any:
    return connection.session()
