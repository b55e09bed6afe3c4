"""A broker process with a queue that compresses: after a kill all messages are there, unchanged."""

from __future__ import annotations

from qstore.store.environment import tool_environment
from qstore.store.inspect.offline import open_store
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import BrokerMaker

_BODIES = [b'{"number": %d}' % number * 60 for number in range(300)]


def test_compressed_messages_survive_a_kill(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with RawPeer(broker.port) as peer:
        for name, arguments in (("packed", {"qpid.compress": "zstd"}), ("plain", {})):
            peer.declare(name, arguments=arguments)
            for body in _BODIES:
                peer.publish(name, body)
        peer.sync()
        peer.end()
    broker.kill()
    store = open_store(tool_environment().disk, str(broker.data_directory))
    ends = {queue.name: queue.end.place for queue in store.recover().queues if queue.end is not None}
    store.close()
    assert 0 < ends["packed"] < ends["plain"] / 2
    broker.start()
    with RawPeer(broker.port) as peer:
        for name in ("packed", "plain"):
            peer.subscribe(name, destination=name)
            assert [delivery.body for delivery in peer.take(len(_BODIES))] == _BODIES
        peer.end()
    assert broker.stop() == 0
