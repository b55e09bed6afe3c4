"""Queues of other kinds than the plain one, as clients meet them, before and after the broker was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from qstore.broker.client import Connection, Empty, Message, NotFound, Receiver, Session
from qstore.store.disk import OsDisk
from qstore.store.inspect.offline import open_store
from qstore.tools.dump.dump import DeliveryOrder
from tests.support.dump import dump
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


def fetched(receiver: Receiver) -> list[object]:
    """Everything that a receiver gets, without accepting it."""
    found: list[object] = []
    while True:
        try:
            found.append(receiver.fetch(timeout=0).content)
        except Empty:
            return found


def send(session: Session, target: str, *messages: tuple[int, str]) -> None:
    """Send messages: a priority and a content each."""
    sender = session.sender(target)
    for priority, content in messages:
        properties = {"kind": content[0]}
        sender.send(Message(content, durable=True, priority=priority, properties=properties), sync=False)
    sender.sync()
    sender.close()


def test_a_priority_queue_keeps_its_order_after_a_kill(broker: RunningBroker) -> None:
    priorities = [8, 9, 5, 1, 2, 2, 3, 4, 9, 7, 8, 9, 9, 2]
    messages = [(priority, f"{number}") for number, priority in enumerate(priorities)]
    in_order = [content for _, content in sorted(messages, key=lambda each: -each[0])]
    with connect(broker) as connection:
        session = connection.session()
        send(session, address("jobs", "'qpid.priorities': 10"), *messages)
        receiver = session.receiver("jobs")
        taken = [receiver.fetch(timeout=0) for _ in range(4)]
        assert [message.content for message in taken] == in_order[:4]
        session.acknowledge(taken[0])
        broker.kill()
    broker.start()
    with connect(broker) as connection:
        session = connection.session()
        assert browsed(session, "jobs") == [content for _, content in messages if content != in_order[0]]
        receiver = session.receiver("jobs")
        assert fetched(receiver) == in_order[1:]
        session.release()
        send(session, "jobs", (0, "last"), (9, "early"))
        assert fetched(receiver) == [*in_order[1:4], "early", *in_order[4:], "last"]


def test_a_dump_shows_the_order_of_the_broker_whose_store_it_is(broker: RunningBroker) -> None:
    """Without a priority a message has 4 here; qpidd takes it for one of the lowest."""
    with connect(broker) as connection:
        session = connection.session()
        sender = session.sender(address("jobs", "'qpid.priorities': 10"))
        for number, priority in enumerate((None, 0, 9, 3, 5, None)):
            sender.send(Message(str(number), durable=True, priority=priority))
        in_order = fetched(session.receiver("jobs"))
        assert in_order == ["2", "4", "0", "5", "3", "1"]
        send(session, address("capped", "'x-max-priority': 3"), (0, "0"), (9, "1"), (3, "2"), (2, "3"), (1, "4"))
        assert fetched(session.receiver("capped")) == ["1", "2", "3", "4", "0"]
    broker.kill()
    found = dump(broker.data_directory, "--outstanding", "--json")
    assert [message["body"] for message in found.messages("jobs")] == in_order
    assert [message["body"] for message in found.messages("capped")] == ["1", "2", "3", "4", "0"]
    assert (
        'queue "jobs": messages without a priority are listed as by qstore\'s broker, 4; by qpidd, low' in found.errors
    )
    broker.start()


def test_a_dump_in_the_order_of_qpidd(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        sender = connection.session().sender(address("jobs", "'x-qpid-priorities': 3"))
        for priority in (None, 3, 4, 9):
            sender.send(Message("", durable=True, priority=priority))
    broker.kill()
    store = open_store(OsDisk(), str(broker.data_directory))
    (queue,) = [each for each in store.recover().queues if each.name == "jobs"]
    assert queue.journal is not None
    rids = [rid for rid, _, _, _ in queue.outstanding()]
    for is_qpidd, places in ((False, [3, 0, 2, 1]), (True, [3, 2, 0, 1])):
        order = DeliveryOrder(is_qpidd=is_qpidd)
        assert [rids.index(rid) for rid, _, _, _ in order.of(queue, queue.journal)] == places
        (notice,) = order.notices()
        first, second = ("qpidd, lowest", "qstore's broker, 4") if is_qpidd else ("qstore's broker, 4", "qpidd, lowest")
        assert notice == f'queue "jobs": messages without a priority are listed as by {first}; by {second}'
    store.close()
    broker.start()


def test_selectors_and_fair_share_on_a_priority_queue(broker: RunningBroker) -> None:
    arguments = "'qpid.priorities': 10, 'qpid.fairshare': 2, 'qpid.fairshare-9': 3"
    with connect(broker) as connection:
        session = connection.session()
        urgent = [(9, f"a{number}") for number in range(5)]
        others = [(5, f"{'ab'[number % 2]}-{number}") for number in range(6)]
        send(session, address("shared", arguments), *others, *urgent)
        receiver = session.receiver("shared; {link: {selector: \"kind = 'a'\"}}")
        assert fetched(receiver) == ["a0", "a1", "a2", "a-0", "a-2", "a3", "a4", "a-4"]
        assert fetched(session.receiver("shared")) == ["b-1", "b-3", "b-5"]


def test_a_ring_by_priority_has_the_most_urgent_after_a_kill(broker: RunningBroker) -> None:
    messages = [(number % 10, f"{number}") for number in range(200)]
    with connect(broker) as connection:
        arguments = "'qpid.priorities': 10, 'qpid.max_count': 30, 'qpid.policy_type': ring"
        send(connection.session(), address("urgent", arguments), *messages)
        broker.kill()
    broker.start()
    with connect(broker) as connection:
        found = fetched(connection.session().receiver("urgent"))
    assert found == [str(number) for number in (*range(9, 200, 10), *range(108, 200, 10))]


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


# ---- message groups: Qpid C++ Broker Book, 1.11 ----

GROUPED = "'qpid.group_header_key': 'GROUP_KEY', 'qpid.shared_msg_group': 1"


def send_grouped(session: Session, target: str, *contents: str) -> None:
    """Send messages: `A-1` is of group A, `1` of none."""
    sender = session.sender(target)
    for content in contents:
        group, dash, _ = content.partition("-")
        sender.send(Message(content, durable=True, properties={"GROUP_KEY": group} if dash else {}), sync=False)
    sender.sync()
    sender.close()


def test_a_group_is_with_one_consumer_at_a_time(broker: RunningBroker) -> None:
    """The book's example: group A does not hold up group B behind it."""
    contents = ("A-add", "A-remove", "B-add", "1", "A-add", "B-remove", "2")
    with connect(broker) as connection:
        sessions = [connection.session() for _ in range(3)]
        send_grouped(sessions[0], address("carts", GROUPED), *contents)
        receivers = [session.receiver("carts") for session in sessions]
        assert [each.fetch(PATIENCE_SECONDS).content for each in receivers] == ["A-add", "B-add", "1"]
        assert browsed(sessions[0], "carts") == ["A-remove", "A-add", "B-remove", "2"]
        assert receivers[1].fetch(PATIENCE_SECONDS).content == "B-remove"
        with pytest.raises(Empty):
            receivers[1].fetch(timeout=0)
        assert fetched(receivers[0]) == ["A-remove", "A-add"]
        assert fetched(receivers[2]) == ["2"]


def test_groups_go_on_when_everything_is_acknowledged_or_released(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        one, two = connection.session(), connection.session()
        send_grouped(one, address("carts", GROUPED), *(f"A-{number}" for number in range(5)))
        first, second = one.receiver("carts"), two.receiver("carts")
        taken = [first.fetch(PATIENCE_SECONDS) for _ in range(2)]
        assert [message.content for message in taken] == ["A-0", "A-1"]
        with pytest.raises(Empty):
            second.fetch(timeout=0)
        one.acknowledge(taken[0])
        with pytest.raises(Empty):
            second.fetch(timeout=0)
        one.acknowledge(taken[1])
        assert second.fetch(PATIENCE_SECONDS).content == "A-2"
        with pytest.raises(Empty):
            first.fetch(timeout=0)
        two.release()
        assert first.fetch(PATIENCE_SECONDS).content == "A-2"


def test_a_transaction_keeps_a_group_until_its_commit(broker: RunningBroker) -> None:
    with connect(broker) as connection:
        one, two = connection.session(transactional=True), connection.session()
        send_grouped(two, address("carts", GROUPED), "A-0", "A-1")
        first, second = one.receiver("carts"), two.receiver("carts")
        one.acknowledge(first.fetch(PATIENCE_SECONDS))
        with pytest.raises(Empty):
            second.fetch(timeout=0)
        one.commit()
        assert second.fetch(PATIENCE_SECONDS).content == "A-1"


def test_groups_keep_their_order_after_a_kill(broker: RunningBroker) -> None:
    contents = [f"{'ABC'[number % 3]}-{number}" for number in range(12)]
    with connect(broker) as connection:
        session = connection.session()
        send_grouped(session, address("carts", GROUPED), *contents)
        receiver = session.receiver("carts")
        for content in contents[:3]:
            message = receiver.fetch(PATIENCE_SECONDS)
            assert message.content == content
            session.acknowledge(message)
        broker.kill()
    broker.start()
    with connect(broker) as connection:
        one, two = connection.session(), connection.session()
        first, second = one.receiver("carts"), two.receiver("carts")
        assert first.fetch(PATIENCE_SECONDS).content == "A-3"
        assert second.fetch(PATIENCE_SECONDS).content == "B-4"
        assert fetched(first) == ["C-5", "A-6", "C-8", "A-9", "C-11"]
        assert fetched(second) == ["B-7", "B-10"]


def test_the_default_group(make_broker: BrokerMaker) -> None:
    """A message whose header has that name is of the same group as those without the header."""
    broker = make_broker("--default-msg-group", "EMPTY-GROUP").start()
    with connect(broker) as connection:
        one, two = connection.session(), connection.session()
        sender = one.sender(address("carts", GROUPED))
        for properties in ({}, {"GROUP_KEY": "EMPTY-GROUP"}, {"GROUP_KEY": "other"}):
            sender.send(Message(str(len(properties)), properties=properties))
        first, second = one.receiver("carts"), two.receiver("carts")
        first.fetch(PATIENCE_SECONDS)
        assert second.fetch(PATIENCE_SECONDS).properties["GROUP_KEY"] == "other"
        with pytest.raises(Empty):
            second.fetch(timeout=0)
    assert broker.stop() == 0
