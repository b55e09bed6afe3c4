"""A broker for all tests of the client, and a connection to it by each face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.client.faces import Face
from tests.support.running_broker import RunningBroker
from tests.support.running_broker import make_broker as make_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    running.start()
    yield running
    running.close()


@pytest.fixture(params=["blocking", "asyncio"])
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
