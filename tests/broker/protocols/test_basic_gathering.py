"""Messages of several publishers, who use many routing keys in turns, become one run on each queue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from qstore.broker.model.queues.entry import RUN
from qstore.broker.model.run import MAX_RUN
from qstore.broker.protocols.amqp_0_9_1 import gathering
from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.read_together import bodies, runs_on
from tests.broker.protocols.test_basic_runs import KEPT, KEYS, MixedSide, learn
from tests.support.compiled import replaces

LEARNED = 48
TRANSIENT = Properties()


class Publisher:
    """One of several clients of a broker, with a channel that confirms."""

    def __init__(self, side: MixedSide, number: int) -> None:
        self.client = BasicClient(side.world).open()
        self.client.call("confirm.select")
        self._number = number
        for _ in range(2):
            self.publish(KEYS, LEARNED // 2)  # the broker sorts them from now on
        side.rest()
        for key in KEYS:
            self.client.method("queue.purge", queue=key)
            side.rest()
        self.client.sync()
        self.client.received.clear()

    def publish(self, keys: tuple[str, ...], count: int, properties: Properties = PERSISTENT) -> list[bytes]:
        """What one read brings."""
        sent = [bytes([self._number, number]) for number in range(count)]
        self.client.send(
            b"".join(
                self.client.message(keys[number % len(keys)], body, properties) for number, body in enumerate(sent)
            )
        )
        return sent

    def confirmed(self) -> list[tuple[str, int]]:
        self.client.sync()
        return [(each.name, each.values["delivery_tag"]) for each in self.client.received if each.name in KEPT]


@pytest.fixture
def side() -> MixedSide:
    return MixedSide(reads_together=True)


@pytest.fixture
def publishers(side: MixedSide) -> list[Publisher]:
    return [Publisher(side, number) for number in range(3)]


def on(side: MixedSide, queue: str) -> list[bytes]:
    return [body for _, body, *_ in side.messages(queue)]


def test_messages_of_several_publishers_are_one_run_on_each_queue(side: MixedSide, publishers: list[Publisher]) -> None:
    sent = [publisher.publish(KEYS, 7) for publisher in publishers]
    assert [side.queue(key).message_count for key in KEYS] == [0, 0, 0]
    side.rest()
    for number, key in enumerate(KEYS):
        own = [body for each in sent for body in each[number :: len(KEYS)]]
        assert runs_on(side.queue(key)) == [(RUN, len(own))]
        assert on(side, key) == own
    assert [publisher.confirmed() for publisher in publishers] == [[("basic.ack", LEARNED + 7)]] * 3


def test_no_message_is_confirmed_before_all_are_on_the_disk(side: MixedSide, publishers: list[Publisher]) -> None:
    for publisher in publishers:
        publisher.publish(KEYS, 7)
    publishers[0].client.sync()
    assert [publisher.confirmed() for publisher in publishers] == [[]] * 3
    side.world.store.end_flush()
    assert [publisher.confirmed() for publisher in publishers] == [[("basic.ack", LEARNED + 7)]] * 3


def test_a_method_on_the_same_connection_finds_the_messages_before_it(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one, two, _ = publishers
    one.publish(KEYS, 12)
    two.publish(KEYS, 12)
    two.client.method("queue.purge", queue="t")
    side.rest()
    two.client.sync()
    purged = [each.values["message_count"] for each in two.client.received if each.name == "queue.purge-ok"]
    assert purged == [8]
    assert on(side, "t") == []
    assert len(on(side, "d")) == 8


@pytest.mark.parametrize("kind", ["single", "run", "batch", "wrong frame"])
def test_later_messages_of_a_publisher_stay_behind_its_earlier_ones(
    side: MixedSide, publishers: list[Publisher], kind: str
) -> None:
    one = publishers[0]
    sent = one.publish(KEYS, 12)[::3]
    later = bodies(6, size=3)
    if kind == "single":
        one.client.publish("d", later[0])
        later = later[:1]
    elif kind == "run":
        one.client.send(b"".join(one.client.message("d", body) for body in later))
    elif kind == "batch":
        one.client.send(b"".join(one.client.message(key, body) for body in later for key in KEYS))
    else:
        one.client.send(b"\x09\0\1\0\0\0\0\xce")
        later = []
    side.rest()
    assert on(side, "d") == sent + later


def test_a_consumer_gets_none_of_its_own_connection(side: MixedSide, publishers: list[Publisher]) -> None:
    one, two, three = publishers
    sent = [publisher.publish(KEYS, 12)[1::3] for publisher in publishers]
    side.rest()
    two.client.call("basic.consume", queue="t", no_local=True, no_ack=True)
    assert [each.body for each in two.client.take("basic.deliver")] == sent[0] + sent[2]
    assert on(side, "t") == sent[1]
    one.client.call("basic.consume", queue="t", no_ack=True)
    assert [each.body for each in one.client.take("basic.deliver")] == sent[1]
    assert not three.client.take("basic.deliver")


def test_a_part_of_a_run_knows_the_publishers_of_its_messages(side: MixedSide, publishers: list[Publisher]) -> None:
    sent = [publisher.publish(KEYS, 30)[1::3] for publisher in publishers]
    side.rest()
    publishers[0].client.method("basic.qos", prefetch_count=15)
    publishers[0].client.call("basic.consume", queue="t", consumer_tag="first")
    assert [each.body for each in publishers[0].client.take("basic.deliver")] == sent[0] + sent[1][:5]
    two = publishers[1].client
    two.call("basic.consume", queue="t", no_local=True, no_ack=True)
    assert [each.body for each in two.take("basic.deliver")] == sent[2]


def test_messages_without_room_are_refused_by_their_own_numbers(side: MixedSide, publishers: list[Publisher]) -> None:
    one, two, _ = publishers
    side.queue("e").journal = journal = object()
    side.world.store.room[journal] = 5
    one.publish(("d", "e"), 8)
    two.publish(("d", "e"), 8)
    side.rest()
    assert on(side, "e") == [bytes([0, 1]), bytes([0, 3]), bytes([0, 5]), bytes([0, 7]), bytes([1, 1])]
    assert {tag for name, tag in one.confirmed() if name == "basic.nack"} == set()
    assert {tag for name, tag in two.confirmed() if name == "basic.nack"} == {LEARNED + 4, LEARNED + 6, LEARNED + 8}
    assert len(on(side, "d")) == 8


def test_messages_for_a_queue_that_is_deleted_meanwhile_go_where_others_go(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one, two, _ = publishers
    one.publish(KEYS, 12)
    two.client.method("queue.delete", queue="t")
    side.world._do(*side.world.work.pop(0))
    side.rest()
    assert len(on(side, "d")) == len(on(side, "e")) == 4
    assert one.confirmed()[-1] == ("basic.ack", LEARNED + 12)


def test_messages_go_where_bindings_lead_when_they_are_put_on_queues(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one, two, _ = publishers
    for key in KEYS:
        two.client.call("queue.bind", queue=key, exchange="amq.direct", routing_key=key)
    sent = [one.client.message(KEYS[number % 3], bytes([number]), exchange="amq.direct") for number in range(36)]
    for _ in range(2):
        one.client.send(b"".join(sent))
        side.rest()
    for key in KEYS:
        two.client.method("queue.purge", queue=key)
        side.rest()
    one.client.send(b"".join(sent))
    assert [side.queue(key).message_count for key in KEYS] == [0, 0, 0]
    two.client.method("queue.unbind", queue="t", exchange="amq.direct", routing_key="t")
    while side.world.work:
        side.world._do(*side.world.work.pop(0))
    side.rest()
    assert [side.queue(key).message_count for key in KEYS] == [12, 0, 12]
    assert one.confirmed()[-1] == ("basic.ack", LEARNED + 3 * 36)


def test_messages_of_a_channel_that_ends_meanwhile_are_on_their_queues(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one, two, _ = publishers
    sent = one.publish(KEYS, 12) + two.publish(KEYS, 12)
    one.client.machine.dismantle()
    side.rest()
    assert on(side, "d") == sent[::3]
    assert two.confirmed() == [("basic.ack", LEARNED + 12)]


def wait_for_room(side: MixedSide, publisher: Publisher, then: bytes) -> BasicClient:
    """Have a publisher wait for a stopped queue, with more in its input. Returns who can make room."""
    consumer = BasicClient(side.world).open()
    consumer.call("queue.declare", queue="s", arguments={"qpid.flow_stop_count": 1})
    client = publisher.client
    client.call("channel.open", 2)
    client.send(b"".join(client.message("s", b"m", TRANSIENT, channel=2) for _ in range(2)) + then)
    client.sync()
    assert client.machine.is_paused
    return consumer


def test_what_is_gathered_while_a_tick_ends_is_not_confirmed_before_it_is_on_the_disk(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one = publishers[0]
    odd = one.client.message("d", b"", Properties(delivery_mode=2, content_type="odd"))  # the next two are taken singly
    sent = [one.client.message(("d", "e")[number % 2], bytes([number])) for number in range(60)]
    consumer = wait_for_room(side, one, odd + b"".join(sent))
    consumer.method("basic.consume", queue="s", no_ack=True)
    assert one.confirmed() == []
    assert [side.queue(key).message_count for key in ("d", "e")] == [31, 30]
    side.rest()
    assert {tag for _, tag in one.confirmed()} >= {LEARNED + 61}
    assert {name for name, _ in one.confirmed()} == {"basic.ack"}


def test_transient_messages_that_are_gathered_while_a_tick_ends_do_not_wait_for_other_work(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one = publishers[0]
    for _ in range(2):
        one.publish(KEYS, 24, TRANSIENT)  # the broker sorts them from now on
    side.rest()
    before = [side.queue(key).message_count for key in KEYS]
    sent = [one.client.message(KEYS[number % 3], bytes([number]), TRANSIENT) for number in range(60)]
    consumer = wait_for_room(side, one, b"".join(sent))
    consumer.method("basic.consume", queue="s", no_ack=True)
    assert one.confirmed()[-1] == ("basic.ack", LEARNED + 48 + 60)
    assert [side.queue(key).message_count for key in KEYS] == [count + 20 for count in before]


def test_very_many_messages_for_a_queue_are_several_runs(side: MixedSide, publishers: list[Publisher]) -> None:
    several = [*publishers, *(Publisher(side, number) for number in range(3, 12))]
    sent = [publisher.publish(("d", "e"), 250) for publisher in several]
    side.rest()
    for number, key in enumerate(("d", "e")):
        counts = [count for state, count in runs_on(side.queue(key)) if state == RUN]
        assert sum(counts) == 12 * 125
        assert max(counts) <= MAX_RUN
        assert on(side, key) == [body for each in sent for body in each[number::2]]
    assert [publisher.confirmed()[-1] for publisher in several] == [("basic.ack", LEARNED + 250)] * 12


@replaces
def test_very_many_bytes_do_not_wait_for_the_end_of_the_tick(
    side: MixedSide, publishers: list[Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MAX_GATHERED", 20)
    publishers[0].publish(KEYS, 12)
    publishers[1].publish(KEYS, 12)
    publishers[2].publish(KEYS, 12)
    assert side.queue("d").message_count == 8
    side.rest()
    assert side.queue("d").message_count == 12


def test_a_publisher_without_confirms_has_its_messages_on_the_queues_at_once(side: MixedSide) -> None:
    client = BasicClient(side.world).open()
    for _ in range(2):
        client.send(b"".join(client.message(key, b"m") for key in KEYS * 4))
    assert [side.queue(key).message_count for key in KEYS] == [8, 8, 8]


def test_few_messages_are_not_sorted(side: MixedSide, publishers: list[Publisher]) -> None:
    learn(side, *KEYS)
    publishers[0].publish(KEYS, 2)
    assert [side.queue(key).message_count for key in KEYS] == [1, 1, 0]


def test_where_few_messages_come_together_they_are_gathered_only_now_and_then(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one = publishers[0]
    one.publish(KEYS, 5)
    side.rest()  # fewer than three for each queue
    is_gathered = []
    for _ in range(30):
        before = sum(side.queue(key).message_count for key in KEYS)
        one.publish(KEYS, 60)
        is_gathered.append(sum(side.queue(key).message_count for key in KEYS) - before < 12)
        side.rest()
    assert not any(is_gathered[:8])
    assert all(is_gathered[-10:])
    assert sum(side.queue(key).message_count for key in KEYS) == 5 + 30 * 60


def several_queues(side: MixedSide) -> tuple[str, ...]:
    names = tuple(f"several {number}" for number in range(8))
    for name in names:
        side.world.durable_queue(name)
    return names


def published_at_once(side: MixedSide, publisher: Publisher, keys: tuple[str, ...], count: int) -> int:
    """Publish messages. Returns how many were on their queues before the tick has ended."""
    before = sum(side.queue(key).message_count for key in keys)
    publisher.publish(keys, count)
    found = sum(side.queue(key).message_count for key in keys) - before
    side.rest()
    return found


def test_as_long_as_few_messages_come_together_they_are_gathered_less_and_less_often(
    side: MixedSide, publishers: list[Publisher]
) -> None:
    one, keys = publishers[0], several_queues(side)
    tried = [number for number in range(500) if published_at_once(side, one, keys, 15) < 15]
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert len(pauses) >= 2
    assert all(3 * earlier < 2 * later for earlier, later in pairwise(pauses))
    while published_at_once(side, one, KEYS, 60):
        pass  # gathered again, as soon as there are more
    again = [number for number in range(100) if published_at_once(side, one, keys, 15) < 15]
    assert again[1] - again[0] <= pauses[0]


@replaces
def test_few_messages_of_a_publisher_without_confirms_do_not_end_the_gathering_of_others(
    side: MixedSide, publishers: list[Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_MIN_ALIKE", 2)
    client, keys = BasicClient(side.world).open(), several_queues(side)
    client.send(b"".join(client.message(key, b"m") for key in keys * 3))
    assert published_at_once(side, publishers[0], KEYS, 60) == 0


class Crowd:
    """Publishers that do all kinds of things, one of which waits for a stopped queue now and then.

    Attributes:
        sent: of each publisher, queue and body of each message, in order.
        confirmed: of each publisher, numbers of its messages.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.side = MixedSide(reads_together=True)
        self.consumer = BasicClient(self.side.world).open()
        self.consumer.call("queue.declare", queue="s", arguments={"qpid.flow_stop_count": 3})
        self.clients = [BasicClient(self.side.world).open(1, 2) for _ in range(3)]
        for client in self.clients:
            client.call("confirm.select")
        self.clients[0].call("tx.select", 2)
        for client in self.clients:
            client.received.clear()
        self.sent: list[list[tuple[str, bytes]]] = [[] for _ in self.clients]
        self.confirmed: list[set[int]] = [set() for _ in self.clients]

    def act(self) -> None:
        """One of all the things that may happen."""
        kind = self.random.random()
        if kind < 0.6:
            self.publish(self.random.randrange(len(self.clients)))
        elif kind < 0.75:
            self.side.world.run()
        elif kind < 0.9 and self.side.world.store.flushes:
            self.side.world.store.end_flush()
        else:
            self.consumer.call("basic.consume", queue="s", no_ack=True, consumer_tag="c")
            self.look()
            self.consumer.method("basic.cancel", consumer_tag="c")

    def publish(self, number: int) -> None:
        """What one or two reads bring."""
        data = b"".join(frames for _ in range(self.random.randrange(1, 4)) for frames in self._input(number))
        at = self.random.choice((0, self.random.randrange(len(data))))
        self.clients[number].send(data[:at])
        self.clients[number].send(data[at:])

    def _input(self, number: int) -> Iterator[bytes]:
        client, sent = self.clients[number], self.sent[number]
        if self.random.random() < 0.3:
            yield client.message("s", b"", TRANSIENT, channel=2)
            yield client.encode("tx.commit", 2) if number == 0 else b""
        keys = self.random.sample(("d", "e", "t"), self.random.randrange(1, 4))
        properties = self.random.choice((PERSISTENT, Properties(delivery_mode=2, content_type="odd")))
        for place in range(self.random.choice((1, 3, 20, 60))):
            body = b"%d.%05d" % (number, len(sent))
            sent.append((keys[place % len(keys)], body))
            yield client.message(sent[-1][0], body, properties)

    def look(self) -> None:
        """Read what was confirmed: that is on its queue, and its record in the journal.

        So are all messages of who does not wait.
        """
        self.side.world.run()
        stored = {data[-7:] for data in self.side.world.store.enqueued}
        found = {key: set(on(self.side, key)) for key in ("d", "e", "t")}
        for client, sent, confirmed in zip(self.clients, self.sent, self.confirmed, strict=True):
            client.sync()
            for each in client.received:
                assert each.name not in ("basic.nack", "channel.close", "connection.close")
                if each.name == "basic.ack":
                    last = each.values["delivery_tag"]
                    confirmed.update(range(1 if each.values["multiple"] else last, last + 1))
            client.received.clear()
            assert client.machine.is_paused or all(body in found[key] for key, body in sent)
            for tag in confirmed:
                key, body = sent[tag - 1]
                assert body in found[key]
                assert key == "t" or body in stored


@pytest.mark.parametrize("seed", range(10))
def test_what_is_confirmed_is_on_its_queue_whatever_happens(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(100):
        crowd.act()
        if crowd.random.random() < 0.3:
            crowd.look()
    crowd.consumer.method("basic.consume", queue="s", no_ack=True)
    crowd.side.rest()
    crowd.look()
    assert [len(confirmed) for confirmed in crowd.confirmed] == [len(sent) for sent in crowd.sent]
    for key in ("d", "e", "t"):
        found = on(crowd.side, key)
        for number, sent in enumerate(crowd.sent):
            own = [body for body in found if body.startswith(b"%d." % number)]
            assert own == [body for queue, body in sent if queue == key]
