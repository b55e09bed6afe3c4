"""A queue replicates that of another broker, which is killed meanwhile; a client transfers the events."""

from __future__ import annotations

import pytest

from qstore.broker.client import Connection, Empty, Message, MessagingError, Session
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker

_SMALL = ("--num-jfiles", "4", "--jfile-size-pgs", "1")
_DURABLE = "create: always, node: {durable: true"
_REPLICATED = f"orders; {{{_DURABLE}, x-declare: {{arguments: {{'qpid.queue_event_generation': 2}}}}}}}}"


def connect(broker: RunningBroker) -> Connection:
    return Connection(f"127.0.0.1:{broker.port}")


def browsed(broker: RunningBroker) -> list[object]:
    found: list[object] = []
    with connect(broker) as connection:
        receiver = connection.session().receiver("orders; {mode: browse}")
        while True:
            try:
                found.append(receiver.fetch(timeout=0).content)
            except Empty:
                return found


def carry(source: Session, target: Session) -> int:
    """Take the events from the replication queue to the replication exchange. Returns how many."""
    receiver, sender, count = source.receiver("events"), target.sender("replication"), 0
    while True:
        try:
            event = receiver.fetch(timeout=0)
        except Empty:
            receiver.close()
            return count
        sender.send(event)
        source.acknowledge(event)
        count += 1


def bridge(source: RunningBroker, target: RunningBroker) -> int:
    with connect(source) as one, connect(target) as other:
        return carry(one.session(), other.session())


def test_a_queue_follows_that_of_another_broker(make_broker: BrokerMaker) -> None:
    source = make_broker(*_SMALL, "--replication-queue", "events", "--load-module", "replicating_listener.so")
    target = make_broker(*_SMALL, "--load-module", "/usr/lib64/qpid/daemon/replication_exchange.so")
    source.start()
    target.start()
    assert 'there is no queue "events"; create it, or see --create-replication-queue' in source.log_text()
    with connect(target) as connection:
        session = connection.session()
        session.sender(f"orders; {{{_DURABLE}}}}}").close()
        node = "node: {type: topic, durable: true, x-declare: {type: replication}}"
        session.sender(f"replication; {{create: always, {node}}}").close()
        with pytest.raises(MessagingError, match="queues cannot be bound to it"):
            session.receiver("replication")
    with connect(source) as connection:
        session = connection.session()
        session.sender(f"events; {{{_DURABLE}}}}}").close()
        sender = session.sender(_REPLICATED)
        for number in range(100):
            sender.send(Message(str(number), durable=True), sync=False)
        sender.sync()
        receiver = session.receiver("orders")
        for _ in range(30):
            session.acknowledge(receiver.fetch(timeout=PATIENCE_SECONDS))
    assert bridge(source, target) == 130
    assert browsed(target) == browsed(source) == [str(number) for number in range(30, 100)]
    with connect(source) as connection:
        session = connection.session()
        session.sender("orders").send(Message("while the bridge is down", durable=True))
        source.kill()
    source.start()
    assert 'events of replicated queues go to queue "events"' in source.log_text()
    with connect(source) as connection:  # what was there before the kill is known by its record ids
        session = connection.session()
        receiver = session.receiver("orders")
        for _ in range(30):
            session.acknowledge(receiver.fetch(timeout=PATIENCE_SECONDS))
    assert bridge(source, target) == 31 + 1 + 71  # after a kill, with the inventory and what may be missing
    assert browsed(target) == browsed(source) == [*map(str, range(60, 100)), "while the bridge is down"]
    assert (source.stop(), target.stop()) == (0, 0)
