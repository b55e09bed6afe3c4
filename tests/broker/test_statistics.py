"""The statistics of the QMF schema are true."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from qstore.broker.management.managed_broker import ListedSession
from qstore.broker.management.objects.client import CONNECTION_CLASS, SESSION_CLASS, SUBSCRIPTION_CLASS
from qstore.broker.management.objects.exchange import BINDING_CLASS, EXCHANGE_CLASS
from qstore.broker.management.objects.queue import QUEUE_CLASS
from qstore.broker.model.counters import Watermark
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.topic import TopicExchange
from qstore.broker.model.queues.entry import AVAILABLE
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_10.frames import FRAME, PROTOCOL_HEADER, decode_frame
from qstore.formats.values import typed_map
from tests.broker.exchange_parts import FakeMessage, fake_queues
from tests.broker.protocols.world import Client, World, header
from tests.support.management_console import broker_statistics, statistics


def queue_of(world: World, name: str = "q") -> dict[str, Any]:
    return statistics(QUEUE_CLASS, world.broker.default_host.queues[name])


def matched(exchange: Exchange) -> int:
    found = [statistics(BINDING_CLASS, SimpleNamespace(binding=each)) for each in exchange.bindings]
    return sum(each["msgMatched"] for each in found)


def connection_of(client: Client) -> dict[str, Any]:
    found = statistics(CONNECTION_CLASS, client.machine)
    assert not found.pop("closing")
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What is not as before, by how much; without watermarks."""
    numbers = {name: value for name, value in after.items() if isinstance(value, int)}
    return {name: value - before[name] for name, value in numbers.items() if value != before[name]}


class TestQueue:
    @pytest.fixture
    def client(self) -> Client:
        client = World().open_client()
        client.declare("q")
        return client

    def test_a_queue_that_is_new(self, client: Client) -> None:
        found = queue_of(client.world)
        assert found.pop("creator") == "anonymous@QPID"
        assert found.pop("bindingCount").value == 1
        assert found.pop("consumerCount").value == 0
        assert found.pop("redirectPeer") == ""
        assert found.pop("unackedMessages").value == 0
        assert found.pop("messageLatency").number == 0
        assert found.pop("enqueueTxnCount").value == found.pop("dequeueTxnCount").high == 0
        assert set(found.values()) == {0}

    def test_a_message_comes_and_goes(self, client: Client) -> None:
        client.publish("q", b"12345")
        client.sync()
        here = queue_of(client.world)
        size = here["byteDepth"]
        assert size > 5
        assert (here["msgDepth"], here["msgTotalEnqueues"], here["byteTotalEnqueues"]) == (1, 1, size)
        assert [here[name] for name in ("msgDepthHigh", "msgDepthLow", "byteDepthHigh", "byteDepthLow")] == [
            1, 0, size, 0,
        ]  # fmt: skip
        client.subscribe("q")
        taken = queue_of(client.world)
        assert changed(here, taken) == {"acquires": 1}
        client.command("message.accept", transfers=((0, 0),))
        client.sync()
        gone = queue_of(client.world)
        assert changed(taken, gone) == {
            "msgDepth": -1, "byteDepth": -size, "msgTotalDequeues": 1, "byteTotalDequeues": size,
        }  # fmt: skip

    @pytest.mark.parametrize("is_durable", [False, True])
    @pytest.mark.parametrize("is_persistent", [False, True])
    def test_persistent_messages(self, is_durable: bool, is_persistent: bool) -> None:
        world = World()
        client = world.open_client()
        if is_durable:
            world.durable_queue("q")
        else:
            client.declare("q")
        client.publish("q", b"x", delivery_mode=1 + is_persistent)
        client.sync()
        found = queue_of(world)
        size = found["byteDepth"]
        count = int(is_persistent)
        assert (found["msgPersistEnqueues"], found["bytePersistEnqueues"]) == (count, count * size)
        assert (found["msgPersistDequeues"], found["bytePersistDequeues"]) == (0, 0)
        world.broker.default_host.queues["q"].purge()
        found = queue_of(world)
        assert (found["msgPersistDequeues"], found["bytePersistDequeues"]) == (count, count * size)
        assert (found["msgTotalDequeues"], found["discardsPurge"], found["acquires"]) == (1, 1, 0)

    def test_a_message_that_is_released(self, client: Client) -> None:
        client.publish("q", b"x")
        client.subscribe("q", messages=1)
        before = queue_of(client.world)
        client.command("message.release", transfers=((0, 0),))
        client.sync()
        assert changed(before, queue_of(client.world)) == {"releases": 1}

    def test_a_message_that_a_browser_acquires(self, client: Client) -> None:
        client.publish("q", b"x")
        client.subscribe("q", acquire_mode=1)
        before = queue_of(client.world)
        client.command("message.acquire", transfers=((0, 0),))
        client.sync()
        assert changed(before, queue_of(client.world)) == {"acquires": 1}

    @pytest.mark.parametrize("has_alternate", [False, True])
    def test_a_message_that_is_rejected(self, has_alternate: bool) -> None:
        client = World().open_client()
        client.declare("q", alternate_exchange="amq.fanout" if has_alternate else "")
        client.declare("dead")
        client.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
        client.publish("q", b"x")
        client.subscribe("q")
        before = broker_statistics(client.world.broker)
        client.command("message.reject", transfers=((0, 0),))
        client.command("message.reject", transfers=((0, 0),))
        client.sync()
        found = queue_of(client.world)
        assert (found["discardsSubscriber"], found["msgTotalDequeues"]) == (1, 1)
        assert queue_of(client.world, "dead")["msgTotalEnqueues"] == int(has_alternate)
        assert changed(before, broker_statistics(client.world.broker))["discardsSubscriber"] == 1

    def test_a_message_whose_time_is_over(self, client: Client) -> None:
        client.publish("q", b"x", b"y", ttl=1000)
        client.sync()
        client.world.now += 2.0
        assert client.world.broker.expire() == 2
        found = queue_of(client.world)
        assert (found["discardsTtl"], found["msgTotalDequeues"], found["msgDepth"], found["acquires"]) == (2, 2, 0, 0)

    def test_a_message_that_there_is_no_room_for(self) -> None:
        client = World().open_client()
        client.declare("q", arguments=typed_map({"qpid.max_count": 1, "qpid.policy_type": "reject"}))
        client.publish("q", b"x", b"y")
        client.sync()
        found = queue_of(client.world)
        assert (found["discardsOverflow"], found["msgTotalEnqueues"]) == (1, 1)
        default = statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges[""])
        assert default["msgReceives"] == 1  # one that was refused did not come

    def test_transactions(self, client: Client) -> None:
        client.command("tx.select")
        client.publish("q", b"x")
        client.sync()
        assert queue_of(client.world)["msgTotalEnqueues"] == 0
        client.command("tx.commit")
        client.sync()
        found = queue_of(client.world)
        size = found["byteDepth"]
        assert (found["msgTxnEnqueues"], found["byteTxnEnqueues"], found["msgTotalEnqueues"]) == (1, size, 1)
        client.subscribe("q")
        client.command("message.accept", transfers=((0, 0),))
        client.sync()
        assert statistics(SESSION_CLASS, ListedSession(client.machine, 0, client.session()))["unackedMessages"] == 1
        client.command("tx.commit")
        client.sync()
        found = queue_of(client.world)
        assert (found["msgTxnDequeues"], found["byteTxnDequeues"], found["msgDepth"]) == (1, size, 0)
        assert statistics(SESSION_CLASS, ListedSession(client.machine, 0, client.session()))["unackedMessages"] == 0

    def test_high_and_low_water_marks(self, client: Client) -> None:
        queue = client.world.broker.default_host.queues["q"]

        def marks() -> list[int]:
            found = queue_of(client.world)
            unacked = found["unackedMessages"]
            depth, size = (found["msgDepthLow"], found["msgDepthHigh"]), (found["byteDepthLow"], found["byteDepthHigh"])
            return [*depth, size[0] // one, size[1] // one, unacked.low, unacked.high]

        client.publish("q", b"x")
        client.sync()
        one = queue.message_bytes
        client.publish("q", b"y", b"z")
        client.sync()
        assert marks() == [0, 3, 0, 3, 0, 0]
        queue.marks.begin_interval(queue)
        assert marks() == [3, 3, 3, 3, 0, 0]
        client.subscribe("q")
        assert marks() == [3, 3, 3, 3, 0, 3]
        client.command("message.accept", transfers=((0, 1),))
        client.sync()
        assert marks() == [1, 3, 1, 3, 0, 3]
        client.command("message.accept", transfers=((2, 2),))
        client.publish("q", b"w")  # in one read with what empties the queue
        client.sync()
        assert marks() == [0, 3, 0, 3, 0, 3]
        queue.marks.begin_interval(queue)
        assert marks() == [1, 1, 1, 1, 1, 1]

    def test_a_ring_that_stays_full_has_its_size_as_low_water_mark(self) -> None:
        client = World().open_client()
        client.declare("q", arguments=typed_map({"qpid.max_count": 3, "qpid.policy_type": "ring"}))
        client.publish("q", b"1", b"2", b"3")
        client.sync()
        queue = client.world.broker.default_host.queues["q"]
        queue.marks.begin_interval(queue)
        client.publish("q", b"4", b"5")
        client.sync()
        found = queue_of(client.world)
        assert (found["msgDepthLow"], found["msgDepthHigh"]) == (3, 3)

    def test_transactions_that_enqueue_and_dequeue_are_counted(self, client: Client) -> None:
        def counts(kind: str) -> tuple[int, ...]:
            found = queue_of(client.world)
            count = found[f"{kind}TxnCount"]
            ended = [found[f"{kind}Txn{each}"] for each in ("Starts", "Commits", "Rejects")]
            return (*ended, count.value, count.low, count.high)

        client.command("tx.select")
        client.sync()
        assert counts("enqueue") == (0, 0, 0, 0, 0, 0)
        client.publish("q", b"x", b"y")
        client.sync()
        assert counts("enqueue") == (1, 0, 0, 1, 0, 1)
        client.command("tx.rollback")
        client.sync()
        assert counts("enqueue") == (1, 0, 1, 0, 0, 1)
        client.publish("q", b"x", b"y")
        client.command("tx.commit")
        client.sync()
        assert counts("enqueue") == (2, 1, 1, 0, 0, 1)
        assert counts("dequeue") == (0, 0, 0, 0, 0, 0)
        client.subscribe("q")
        client.command("message.accept", transfers=((0, 0),))
        client.command("message.accept", transfers=((1, 1),))
        client.sync()
        assert counts("dequeue") == (1, 0, 0, 1, 0, 1)
        client.command("tx.commit")
        client.publish("q", b"z")
        client.sync()
        assert counts("dequeue") == (1, 1, 0, 0, 0, 1)
        assert counts("enqueue") == (3, 1, 1, 1, 0, 1)
        client.machine.closed()
        assert counts("enqueue") == (3, 1, 2, 0, 0, 1)

    def test_a_commit_that_is_refused_counts_as_rejected(self) -> None:
        client = World().open_client()
        client.declare("q", arguments=typed_map({"qpid.max_count": 1, "qpid.policy_type": "reject"}))
        client.command("tx.select")
        client.publish("q", b"x", b"y")
        client.command("tx.commit")
        client.sync()
        found = queue_of(client.world)
        assert (found["enqueueTxnStarts"], found["enqueueTxnRejects"], found["enqueueTxnCount"].value) == (1, 1, 0)

    def test_consumers_and_bindings_with_their_marks(self, client: Client) -> None:
        client.subscribe("q", to="a")
        client.subscribe("q", to="b")
        client.command("message.cancel", destination="a")
        client.command("exchange.bind", queue="q", exchange="amq.topic", binding_key="k")
        client.sync()
        found = queue_of(client.world)
        assert (found["consumerCount"].value, found["consumerCount"].low, found["consumerCount"].high) == (1, 0, 2)
        assert found["bindingCount"].value == 2
        bound = statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges["amq.topic"])["bindingCount"]
        assert (bound.value, bound.low, bound.high) == (1, 0, 1)
        assert statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges[""])["bindingCount"].value == 1
        client.command("queue.delete", queue="q")
        client.sync()
        assert (bound.value, bound.high) == (0, 1)
        assert statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges[""])["bindingCount"].value == 0


def test_a_watermark_begins_with_each_interval() -> None:
    mark = Watermark()
    mark.change(3)
    mark.change(-1)
    assert (mark.value, mark.low, mark.high) == (2, 0, 3)
    mark.begin_interval()
    assert (mark.value, mark.low, mark.high) == (2, 2, 2)


def test_queue_counts_hold_through_random_steps() -> None:
    """Random steps on one queue, and what was counted beside it."""
    chosen = random.Random(16)
    world = World()
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.max_count": 20, "qpid.policy_type": "reject"}))
    queue: Queue = world.broker.default_host.queues["q"]
    known: Counter[str] = Counter()
    for _ in range(2_000):
        step = chosen.choice(("publish", "publish", "acquire", "dequeue", "release", "purge", "expire"))
        held = [each for each in queue.outstanding() if each.state != AVAILABLE]
        waiting = list(queue.available())
        if step == "publish" and queue.message_count < 20:
            client.publish("q", b"x" * chosen.randrange(50), delivery_mode=chosen.choice((1, 2)))
            known["msgTotalEnqueues"] += 1
        elif step == "acquire" and waiting:
            known["acquires"] += queue.acquire(chosen.choice(waiting))
        elif step == "dequeue" and held:
            queue.dequeue(chosen.choice(held))
            known["msgTotalDequeues"] += 1
        elif step == "release" and held:
            queue.release(chosen.choice(held), is_redelivered=True)
            known["releases"] += 1
        elif step == "purge":
            count, _ = queue.purge(1)
            known["discardsPurge"] += count
            known["msgTotalDequeues"] += count
        found = statistics(QUEUE_CLASS, queue)
        entries = list(queue.entries())
        assert {name: found[name] for name in known} == known
        assert queue.acquired_count == sum(each.state != AVAILABLE for each in entries)
        assert found["unackedMessages"].value == queue.acquired_count
        persistent = [each.message.size for each in entries if each.message.is_persistent]
        assert found["msgDepth"] == len(entries)
        assert found["byteDepth"] == sum(each.message.size for each in entries)
        assert found["msgPersistEnqueues"] - found["msgPersistDequeues"] == len(persistent)
        assert found["bytePersistEnqueues"] - found["bytePersistDequeues"] == sum(persistent)
    assert min(known.values()) > 10


class TestExchange:
    def test_routed_dropped_and_matched(self) -> None:
        client = World().open_client()
        exchange = client.world.broker.default_host.exchanges["amq.topic"]
        for name, key in (("a", "x.*"), ("b", "#"), ("a", "x.y")):
            client.declare(name)
            client.command("exchange.bind", queue=name, exchange="amq.topic", binding_key=key)
        client.command("exchange.unbind", queue="b", exchange="amq.topic", binding_key="#")
        client.command("exchange.bind", queue="b", exchange="amq.topic", binding_key="x.y")
        client.publish("x.y", b"1", b"2", exchange="amq.topic")
        client.publish("x.z", b"3", exchange="amq.topic")
        client.publish("none", b"4", exchange="amq.topic")
        client.sync()
        found = statistics(EXCHANGE_CLASS, exchange)
        assert (found["msgReceives"], found["msgRoutes"], found["msgDrops"]) == (4, 5, 1)
        here = sum(queue.message_bytes for queue in client.world.broker.default_host.queues.values())
        assert (found["byteRoutes"], found["byteDrops"] > 0) == (here, True)
        assert matched(exchange) == 5
        assert broker_statistics(client.world.broker)["discardsNoRoute"] == 1

        client.declare("c")
        client.command("exchange.bind", queue="c", exchange="amq.topic", binding_key="other")
        client.sync()
        assert changed(found, statistics(EXCHANGE_CLASS, exchange)) == {}  # though its routes are forgotten
        assert matched(exchange) == 5
        client.publish("x.y", b"5", exchange="amq.topic")
        client.sync()
        assert changed(found, statistics(EXCHANGE_CLASS, exchange))["msgRoutes"] == 2
        assert matched(exchange) == 7

    def test_default_exchange_keeps_counts_of_deleted_queues(self) -> None:
        client = World().open_client()
        client.declare("q")
        client.publish("q", b"1", b"2")
        client.publish("none", b"3")
        client.command("queue.delete", queue="q")
        client.sync()
        found = statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges[""])
        assert (found["msgReceives"], found["msgRoutes"], found["msgDrops"]) == (3, 2, 1)

    def test_alternate_exchange_counts_rerouted_messages(self) -> None:
        client = World().open_client()
        client.declare("q")
        client.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
        client.command("exchange.declare", exchange="e", type="direct", alternate_exchange="amq.fanout")
        client.publish("k", b"1", exchange="e")
        client.sync()
        exchanges = client.world.broker.default_host.exchanges
        first, second = statistics(EXCHANGE_CLASS, exchanges["e"]), statistics(EXCHANGE_CLASS, exchanges["amq.fanout"])
        assert (first["msgReceives"], first["msgDrops"], first["msgRoutes"]) == (1, 1, 0)
        assert (second["msgReceives"], second["msgDrops"], second["msgRoutes"]) == (1, 0, 1)
        assert broker_statistics(client.world.broker)["discardsNoRoute"] == 0
        client.publish("k", b"2", exchange="e", discard_unroutable=True)
        client.sync()
        assert broker_statistics(client.world.broker)["discardsNoRoute"] == 1

    def test_immediate_message_without_a_consumer_is_dropped(self) -> None:
        client = World().open_client()
        client.declare("q")
        client.publish("q", b"1", immediate=True)
        client.sync()
        found = statistics(EXCHANGE_CLASS, client.world.broker.default_host.exchanges[""])
        assert (found["msgReceives"], found["msgDrops"], found["msgRoutes"]) == (1, 1, 0)

    def test_headers_are_counted_for_each_set_of_bindings(self) -> None:
        exchange = HeadersExchange("h")
        a, b = fake_queues("ab")
        first = exchange.bind(a, "1", typed_map({"x-match": "all", "x": 1}))
        second = exchange.bind(b, "2", typed_map({"x-match": "all", "y": 1}))
        assert first is not None
        assert second is not None
        given: tuple[dict[str, object], ...] = ({"x": 1}, {"x": 1, "y": 1}, {"y": 1}, {"x": 1}, {})
        for headers in given:
            message: Any = FakeMessage("", headers)
            exchange.route(message).count(10)
        assert (first.messages_matched, second.messages_matched) == (3, 2)
        counts = exchange.counts
        assert (counts.messages_received, counts.messages_routed, counts.bytes_routed) == (5, 5, 50)
        assert (counts.messages_dropped, counts.bytes_dropped) == (1, 10)
        exchange.unbind(b, "2")
        assert (first.messages_matched, second.messages_matched, exchange.counts) == (3, 2, counts)

    def test_trying_a_binding_does_not_count_it(self) -> None:
        exchange = TopicExchange("t")
        (a,) = fake_queues("a")
        binding = exchange.bind(a, "#")
        assert binding is not None
        message: Any = FakeMessage("k")
        assert exchange.with_only(binding).route(message).queues
        assert (a.binding_count.value, a.binding_count.high) == (1, 1)


class TestBroker:
    def test_totals_outlive_queues(self) -> None:
        world = World()
        client = world.open_client()
        for name in ("a", "b"):
            client.declare(name)
            client.publish(name, b"1", b"2", delivery_mode=2)
        client.sync()
        found = broker_statistics(world.broker)
        assert (found["queueCount"], found["msgTotalEnqueues"], found["msgDepth"]) == (2, 4, 4)
        assert found["byteDepth"] == sum(queue.message_bytes for queue in world.broker.default_host.queues.values())
        client.command("queue.delete", queue="a")
        client.sync()
        left = broker_statistics(world.broker)
        assert (left["queueCount"], left["msgTotalEnqueues"], left["msgDepth"], left["abandoned"]) == (1, 4, 2, 2)
        assert (left["msgTotalDequeues"], left["msgPersistDequeues"], left["msgPersistEnqueues"]) == (2, 2, 4)
        world.now += 1.5
        assert broker_statistics(world.broker)["uptime"] == 1_500_000_000

    def test_messages_of_a_deleted_queue_that_go_elsewhere(self) -> None:
        world = World()
        client = world.open_client()
        client.declare("left")
        client.command("exchange.bind", queue="left", exchange="amq.fanout", binding_key="")
        client.declare("q", alternate_exchange="amq.fanout")
        client.publish("q", b"1", b"2")
        client.command("queue.delete", queue="q")
        client.sync()
        found = broker_statistics(world.broker)
        assert (found["abandonedViaAlt"], found["abandoned"], found["msgDepth"]) == (2, 0, 2)
        assert (found["msgTotalEnqueues"], found["msgTotalDequeues"], found["acquires"]) == (4, 2, 0)


class Wire:
    """What a client and its broker have sent each other, counted from the bytes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.incoming, self.outgoing = bytearray(), bytearray()
        send, write = client.machine.receive, client.host.write

        def received(data: bytes) -> None:
            self.incoming += data
            send(data)

        def wrote(data: bytes) -> None:
            self.outgoing += data
            write(data)

        client.send = received  # type: ignore[method-assign]
        client.host.write = wrote  # type: ignore[method-assign]

    def counted(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name, data in (("FromClient", self.incoming), ("ToClient", self.outgoing)):
            at, frames, messages = len(PROTOCOL_HEADER), 0, 0
            while (frame := decode_frame(bytes(data), at, 65535)) is not None:
                at += FRAME.size + len(frame.payload)
                frames += 1
                messages += frame.segment_type == 1 and frame.payload[:2] == b"\x04\x01" and bool(frame.flags & 8)
            counts |= {f"bytes{name}": len(data), f"frames{name}": frames, f"msgs{name}": messages}
        return counts


class TestConnection:
    @pytest.mark.parametrize("timeout", [0, 100])
    def test_frames_bytes_and_messages_both_ways(self, timeout: int) -> None:
        world = World()
        client = world.connect()
        wire = Wire(client)
        client.negotiate()
        client.attach(b"session", timeout=timeout)
        client.declare("q")
        client.subscribe("q")
        client.publish("q", b"plain", b"", b"x" * 200_000, b"y" * 700_000)
        client.sync()
        client.command("message.transfer", destination="", header=header(routing_key="q"))
        client.send(b"")
        client.sync()
        assert connection_of(client) == wire.counted()
        assert wire.counted()["msgsFromClient"] == wire.counted()["msgsToClient"] == 5
        subscribed = SimpleNamespace(subscription=client.session().subscriptions["q"])
        assert statistics(SUBSCRIPTION_CLASS, subscribed) == {"delivered": 5}
        client.control("session.detach", on=1, name=b"session")
        client.sync()
        assert connection_of(client) == wire.counted()

    def test_a_session_that_moves_to_another_connection(self) -> None:
        world = World()
        first = world.open_client(timeout=100)
        first.declare("q")
        first.subscribe("q")
        first.publish("q", b"1", b"2")
        first.sync()
        second = world.connect()
        wire = Wire(second)
        second.negotiate()
        second.attach(b"session", timeout=100, force=True, point=first.sent[1])
        second.publish("q", b"3")
        second.sync()
        assert connection_of(second) == wire.counted()
        assert wire.counted()["msgsToClient"] == 3  # two of them once more


class TestSubscription:
    @pytest.mark.parametrize("mode", [0, 1])
    def test_delivered_with_any_credit(self, mode: int) -> None:
        client = World().open_client()
        client.declare("q")
        client.subscribe("q", messages=2, mode=mode)
        client.publish("q", *[b"x"] * 10)
        client.sync()
        subscription = client.session().subscriptions["q"]
        assert subscription.delivered == 2
        client.control("session.completed", on=1, commands=((0, 1),))
        client.flow("q", 0, 1)
        client.sync()
        expected = len(client.deliveries)
        assert subscription.delivered == expected
        client.command("message.stop", destination="q")
        client.sync()
        assert subscription.delivered == expected
        client.flow("q", 0, 0xFFFFFFFF)
        client.flow("q", 1, 0xFFFFFFFF)
        client.sync()
        assert subscription.delivered == len(client.deliveries) == 10


class TestSession:
    def test_transactions(self) -> None:
        client = World().open_client()
        client.declare("q")
        session = client.session()

        def read() -> list[Any]:
            found = statistics(SESSION_CLASS, ListedSession(client.machine, 0, session))
            return [found[name] for name in ("TxnStarts", "TxnCommits", "TxnRejects", "TxnCount")]

        assert read() == [0, 0, 0, 0]
        client.command("tx.select")
        client.sync()
        assert read() == [1, 0, 0, 1]
        client.command("tx.commit")
        client.sync()
        assert read() == [2, 1, 0, 1]
        client.command("tx.rollback")
        client.sync()
        assert read() == [3, 1, 1, 1]
        client.control("session.detach", on=1, name=b"session")
        client.sync()
        assert read() == [3, 1, 2, 0]

    def test_a_transaction_that_is_refused(self) -> None:
        client = World().open_client()
        client.declare("q", arguments=typed_map({"qpid.max_count": 1, "qpid.policy_type": "reject"}))
        session = client.session()
        client.command("tx.select")
        client.publish("q", b"1", b"2")
        client.command("tx.commit")
        client.sync()
        found = statistics(SESSION_CLASS, ListedSession(client.machine, 0, session))
        assert (found["TxnStarts"], found["TxnCommits"], found["TxnCount"]) == (2, 0, 0)
        assert queue_of(client.world)["discardsOverflow"] == 2
        assert queue_of(client.world)["msgTotalEnqueues"] == 0
