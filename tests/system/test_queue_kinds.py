"""Queues of other kinds than the plain one, as clients meet them, before and after the broker was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from qstore.broker.client import Connection, Empty, Message, NotFound, Session
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker


@pytest.fixture
def broker(make_broker: BrokerMaker) -> Iterator[RunningBroker]:
    broker = make_broker("--num-jfiles", "4", "--jfile-size-pgs", "1").start()
    yield broker
    assert broker.stop() == 0, broker.log_text()


def connect(broker: RunningBroker) -> Connection:
    return Connection(f"127.0.0.1:{broker.port}")


def address(name: str, arguments: str) -> str:
    return f"{name}; {{create: always, node: {{durable: true, x-declare: {{arguments: {{{arguments}}}}}}}}}"


def browsed(session: Session, name: str) -> list[object]:
    found: list[object] = []
    receiver = session.receiver(f"{name}; {{mode: browse}}")
    while True:
        try:
            found.append(receiver.fetch(timeout=0).content)
        except Empty:
            receiver.close()
            return found


def test_a_ring_has_the_newest_messages_after_a_kill(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        session = connection.session()
        sender = session.sender(address("last-ten", "'qpid.max_count': 10, 'qpid.policy_type': ring"))
        for number in range(500):
            sender.send(Message(str(number), durable=True), sync=False)
        sender.sync()
        newest = [str(number) for number in range(490, 500)]
        assert browsed(session, "last-ten") == newest
        broker.kill()
    broker.start()
    with connect(broker) as connection:
        assert browsed(connection.session(), "last-ten") == newest


def test_a_last_value_queue_has_the_last_values_after_a_kill(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        session = connection.session()
        sender = session.sender(address("prices", "'qpid.last_value_queue_key': ticker"))
        for number in range(500):
            properties = {"ticker": f"T{number % 7}"}
            sender.send(Message(str(number), durable=True, properties=properties), sync=False)
        sender.sync()
        last = [str(number) for number in range(493, 500)]
        assert browsed(session, "prices") == last
        broker.kill()
    broker.start()
    with connect(broker) as connection:
        session = connection.session()
        assert browsed(session, "prices") == last
        session.sender("prices").send(Message("500", durable=True, properties={"ticker": "T3"}))
        assert browsed(session, "prices") == [each for each in last if int(each) % 7 != 3] + ["500"]


def test_a_queue_that_destroys_itself(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        session = connection.session()
        arguments = "'qpid.max_count': 3, 'qpid.policy_type': self-destruct"
        sender = session.sender(address("short", arguments))
        for number in range(4):
            sender.send(Message(str(number), durable=True))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                connection.session().receiver("short").close()
            except NotFound:
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert 'Queue "short" has exceeded its limit and is deleted' in broker.log_text()
