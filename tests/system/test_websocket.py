"""AMQP over WebSocket with Node's rhea (AMQP 1.0) and `@cloudamqp/amqp-client` (0-9-1), plain and over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.node import NodeClient
from tests.support.running_broker import BrokerMaker

_PACKAGES = ("rhea@3.0.5", "@cloudamqp/amqp-client@4.1.1", "ws@8.18.0")
_SIZES = [0, 5, 70_000, 400]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeClient]:
    client = NodeClient("websocket_client.js", _PACKAGES, tmp_path_factory.mktemp("websocket"))
    yield client
    client.close()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_clients_over_websocket(client: NodeClient, make_broker: BrokerMaker, tmp_path: Path, scheme: str) -> None:
    certificates = Certificates(tmp_path)
    tls = ("--ssl-port", "0", "--ssl-cert", certificates.server())  # the same port
    broker = make_broker("--websocket", "yes", *tls).start()
    received = json.loads(client.run(broker.port, scheme, *([certificates.trusted] if scheme == "wss" else [])))
    assert received == {"rhea": _SIZES, "amqp-client": _SIZES}
