"""Node's amqplib, unchanged, against a real broker: what it can do, and a broker that is killed under its load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import NodeClient, nothing_answered_is_lost
from tests.support.running_broker import BrokerMaker, RunningBroker, one_broker

broker = pytest.fixture(scope="module")(one_broker)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeClient]:
    client = NodeClient("amqplib_client.js", ("amqplib@2.3.1",), tmp_path_factory.mktemp("amqplib"))
    yield client
    client.close()


def test_amqplib_works_unchanged(client: NodeClient, broker: RunningBroker) -> None:
    results = client.scenarios(broker.port)
    assert len(results) == 15
    assert {name: error for name, error in results.items() if error is not None} == {}


def test_nothing_confirmed_is_lost(client: NodeClient, make_broker: BrokerMaker, tmp_path: Path) -> None:
    nothing_answered_is_lost(client, make_broker().start(), tmp_path)
