"""Clients of AMQP 0-8 and 0-9 at real brokers: what they commit survives a kill, also for other clients."""

from __future__ import annotations

import socket

import pytest

from qstore import Connection
from qstore.formats.amqp_0_9_1.methods import AMQP_0_8, AMQP_0_8_PUBLISHED, AMQP_0_9, Version
from tests.support.basic_peer import BasicPeer
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker


def commit_and_publish(peer: BasicPeer) -> None:
    """Commit a hundred messages, and publish another one."""
    peer.call("queue.declare", queue="q", durable=True)
    peer.call("tx.select")
    for number in range(100):
        peer.socket.sendall(peer.message("q", b"%d" % number))
    peer.call("tx.commit")
    peer.socket.sendall(peer.message("q", b"uncommitted"))


@pytest.mark.parametrize("version", [AMQP_0_8, AMQP_0_8_PUBLISHED, AMQP_0_9], ids=["0-8", "0-8 as published", "0-9"])
def test_committed_messages_survive_a_kill(make_broker: BrokerMaker, version: Version) -> None:
    broker = make_broker().start()
    peer = BasicPeer(broker.port, version=version)
    with peer.socket:
        commit_and_publish(peer)
        broker.kill()
    broker.start()
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        receiver = connection.session().receiver("q")
        assert [receiver.fetch(timeout=10).content for _ in range(100)] == [b"%d" % number for number in range(100)]
        assert receiver.available() == 0


def test_older_versions_can_be_refused(make_broker: BrokerMaker) -> None:
    broker = make_broker().start("--protocols", "0-10 0-9-1 1.0")
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(AMQP_0_8.header)
        assert client.recv(8) == b"AMQP\x01\x01\x00\x0a"
    broker.stop()
    assert "Refused an AMQP 0-8 client" in broker.log_text()
