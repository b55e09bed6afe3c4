"""A recovered store under the broker: `qpidd --data-dir DEST` delivers what qpidd itself recovered."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.fixtures import StoreOpener
from tests.support.raw_peer import RawPeer
from tests.support.recover_runs import recover
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.test_dump_fixtures import recovered

__all__ = ["make_broker"]


@pytest.mark.parametrize("name", ["legacy-c-localtx", "legacy-d-dtx", "linear-b-crash1"])
def test_the_broker_delivers_it(name: str, open_fixture: StoreOpener, make_broker: BrokerMaker) -> None:
    fixture = open_fixture(name)
    broker = make_broker()
    broker.directory.mkdir(parents=True)
    assert recover(fixture.path, broker.data_directory).report.code == 0
    broker.start()
    with RawPeer(broker.port) as peer:
        for queue in recovered(fixture)["queues"]:
            assert peer.message_count(queue["name"]) == queue["message_count"]
            peer.subscribe(queue["name"], destination=queue["name"], acquire_mode=1, accept_mode=1)
            deliveries = peer.take(queue["message_count"])
            assert [hashlib.sha256(delivery.body).hexdigest() for delivery in deliveries] == [
                message["body_sha256"] for message in queue["messages"]
            ]
        peer.end()
    assert broker.stop() == 0
