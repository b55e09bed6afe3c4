"""Confirms and transactions of AMQP 0-9-1 on a disk that waits until a test says so."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_0_9_1.acknowledgements import Confirms
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE, METHOD, OVERHEAD, decode_frame
from qstore.formats.amqp_0_9_1.methods import decode_method
from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.world import World

TRANSIENT = Properties()


@pytest.fixture
def client(world: World) -> BasicClient:
    world.durable_queue("d")
    client = BasicClient(world).open()
    client.call("queue.declare", queue="t")
    assert client.call("confirm.select").name == "confirm.select-ok"
    return client


def confirmed(client: BasicClient) -> list[tuple[str, int, bool]]:
    """What was confirmed or refused since the last call: method, tag and `multiple`."""
    found = client.take("basic.ack", "basic.nack")
    return [(each.name[6:], each.values["delivery_tag"], each.values["multiple"]) for each in found]


def test_a_stored_message_is_confirmed_when_it_is_on_the_disk(world: World, client: BasicClient) -> None:
    for _ in range(3):
        client.publish("d")
    assert confirmed(client) == []
    world.store.end_flush()
    assert confirmed(client) == [("ack", 3, True)]
    client.publish("d")
    client.sync()
    world.store.end_flush()
    assert confirmed(client) == [("ack", 4, False)]


def test_the_loop_learns_which_publishers_wait_for_the_disk(world: World, client: BasicClient) -> None:
    """Those that send one message after each confirm send nothing more before it has synced."""
    asked: list[int] = []
    world.broker.tick.is_idle = lambda waiting, _flushes: bool(asked.append(waiting))

    def waiting_after(count: int) -> int:
        client.send(b"".join(client.message("d", b"%d" % number, PERSISTENT) for number in range(count)))
        world.run()
        waiting = asked[-1]
        world.store.end_flush()
        world.run()
        return waiting

    assert waiting_after(1) == 0, "nothing is known of it yet"
    assert waiting_after(1) == 1
    assert waiting_after(2) == 0
    assert waiting_after(1) == 1


def test_a_confirm_goes_before_the_delivery_if_the_publisher_waits_for_it(world: World, client: BasicClient) -> None:
    """What the consumer waits for comes first, unless the publisher's messages come right after their confirms."""
    client.machine.monotonic = lambda: world.now
    other = BasicClient(world).open()
    other.call("basic.consume", queue="d", consumer_tag="c")
    written: list[BasicClient] = []
    for each in (client, other):
        each.host.write = partial(_note, written, each)  # type: ignore[method-assign]

    def is_confirmed_first(pause: float) -> bool:
        world.now += pause
        client.publish("d")
        world.run()
        written.clear()
        world.store.end_flush()
        world.run()
        assert {*written} == {client, other}
        return written[0] is client

    seconds = [0.001, 0.0001, 0.0001, 0.001, 0.0001, 0.0001]
    assert [is_confirmed_first(pause) for pause in seconds] == [False, True, True, False, True, True]
    assert [is_confirmed_first(0.0001) for _ in range(20)] == [True] * 20
    assert [is_confirmed_first(0.001) for _ in range(5)] == [True, True, True, False, False]
    assert not any(is_confirmed_first(pause) for pause in (0.001, 0.0001, 0.0001, 0.001, 0.0001))


def test_the_loop_learns_of_publishers_that_wait_for_each_confirm(world: World, client: BasicClient) -> None:
    """It may wait for the disk itself if nobody else sends anything (`network/busy_poll`)."""
    seen: list[int] = []
    world.broker.tick.is_idle = lambda waiting, _flushes: bool(seen.append(waiting))
    other = BasicClient(world).open()
    other.call("confirm.select")

    def waiting(*publishers: BasicClient) -> int:
        """How many, of those that publish a message together; then it is confirmed."""
        seen.clear()
        for each in publishers:
            each.publish("d")
        world.run()
        most = max(seen)
        while world.store.flushes:
            world.store.end_flush()
            world.run()
        return most

    assert waiting(client) == 0, "it may go on sending"
    assert waiting(client) == 1
    assert waiting(client, other) == 1, "the first message of the other one"
    assert waiting(client, other) == 2
    assert waiting(client, client, other) == 1
    assert waiting(client, other) == 2
    client.publish("d")
    world.run()
    assert waiting(client) == 0, "it has not waited for the last confirm"


def _note(written: list[BasicClient], client: BasicClient, data: bytes) -> None:
    assert data
    written.append(client)


def test_others_are_confirmed_at_once(client: BasicClient) -> None:
    client.publish("t")
    client.publish("d", b"x", TRANSIENT)
    client.publish("nowhere")
    assert confirmed(client) == [("ack", 3, True)]


def test_a_message_may_be_confirmed_before_earlier_ones(world: World, client: BasicClient) -> None:
    client.publish("d")
    client.publish("t")
    client.publish("t")
    client.publish("d")
    client.publish("t")
    assert confirmed(client) == [("ack", 2, False), ("ack", 3, False), ("ack", 5, False)]
    world.store.end_flush()
    assert confirmed(client) == [("ack", 1, False), ("ack", 4, False)]


def test_a_return_comes_before_its_confirm(client: BasicClient) -> None:
    client.publish("nowhere", mandatory=True)
    assert [each.name for each in client.take()][-2:] == ["basic.return", "basic.ack"]


def test_failed_write_is_nacked(world: World, client: BasicClient) -> None:
    client.publish("d")
    client.publish("d")
    client.sync()
    world.store.end_flush(OSError("the disk is gone"))
    assert confirmed(client) == [("nack", 1, False), ("nack", 2, False)]
    world.store.failing = world.store.FullError("no room")
    client.publish("d")
    assert confirmed(client) == [("nack", 3, False)]
    world.store.failing = None
    client.publish("t")
    assert confirmed(client) == [("ack", 4, False)]


@pytest.mark.parametrize("count", [1, 2])
def test_consumers_whose_messages_cannot_be_dequeued_end_and_the_queue_goes_on(
    world: World, client: BasicClient, count: int
) -> None:
    """They are removed while a message is being delivered to them."""
    for _ in range(2):
        client.publish("d")
        client.sync()
        world.store.end_flush()
    world.run()
    late = BasicClient(world).open()
    world.store.failing = world.store.FailedError("the disk is gone")
    consumers = [BasicClient(world).open() for _ in range(count)]
    for each in consumers:
        each.method("basic.consume", queue="d", consumer_tag="c", no_ack=True)
    world.run()
    for each in consumers:
        each.sync()
        assert [got.name for got in each.take("basic.deliver", "connection.close")][1:] == ["connection.close"]
    world.store.failing = None
    late.call("basic.consume", queue="d", consumer_tag="c", no_ack=True)
    client.publish("d", b"later")
    client.sync()
    world.store.end_flush()
    assert [bytes(each.body) for each in late.take("basic.deliver")][-1:] == [b"later"]


def test_a_queue_without_room(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="full", arguments={"qpid.max_count": 1, "qpid.flow_stop_count": 0})
    client.publish("full")
    client.publish("full")
    assert sorted(confirmed(client)) == [("ack", 1, False), ("nack", 2, False)]
    other = BasicClient(world).open()
    other.publish("full")
    other.sync()
    assert other.last().values["reply_code"] == 311


def test_messages_that_consumers_hold_leave_room_on_a_queue_that_refuses(client: BasicClient) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    client.call("queue.declare", queue="short", arguments=arguments)
    client.call("confirm.select")
    for _ in range(3):
        client.publish("short", properties=TRANSIENT)
    for _ in range(2):
        client.call("basic.get", queue="short")
    for _ in range(3):
        client.publish("short", properties=TRANSIENT)
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    client.publish("short", properties=TRANSIENT)
    told = client.take("basic.ack", "basic.nack")
    refused = [each.values["delivery_tag"] for each in told if each.name == "basic.nack"]
    assert refused == [3, 6, 7]
    assert client.call("queue.declare", queue="short", passive=True).values["message_count"] == 4


def test_confirms_wait_for_a_stopped_queue(client: BasicClient) -> None:
    client.call("queue.declare", queue="s", arguments={"qpid.flow_stop_count": 2, "qpid.flow_resume_count": 1})
    for _ in range(4):
        client.publish("s")
    assert confirmed(client) == [("ack", 2, True)]
    (told,) = client.take("connection.blocked")
    assert told.values == {
        "reason": 'Publishers to queue "s" wait: it has 3 messages, above its flow control threshold of 2'
    }
    assert not client.machine.is_paused, "it is read, since its confirms tell it how far it is"
    for _ in range(2):
        client.call("basic.get", queue="s", no_ack=True)
    assert confirmed(client) == []
    assert client.take("connection.unblocked") == []
    for _ in range(2):
        client.call("basic.get", queue="s", no_ack=True)
    assert len(client.take("connection.unblocked")) == 1
    assert {tag for _, tag, _ in confirmed(client)} == {3, 4}


def test_a_client_is_unblocked_when_none_of_its_messages_waits(world: World, client: BasicClient) -> None:
    for queue in ("s", "u"):
        client.call("queue.declare", queue=queue, arguments={"qpid.flow_stop_count": 1, "qpid.flow_resume_count": 1})
    other = BasicClient(world).open(1, 2, 3)
    other.call("confirm.select", 3)
    for channel, queue in ((3, "s"), (3, "s"), (3, "s"), (1, "u"), (1, "u")):
        other.publish(queue, properties=TRANSIENT, channel=channel)
    (told,) = other.take("connection.blocked")
    assert '"s"' in told.values["reason"]
    client.call("queue.purge", queue="s")
    assert other.take("connection.unblocked") == [], "it still waits for the other queue"
    client.call("queue.purge", queue="u")
    assert len(other.take("connection.unblocked")) == 1
    for _ in range(3):
        other.publish("s", properties=TRANSIENT, channel=3)
    assert len(other.take("connection.blocked")) == 1
    other.call("channel.close", 3, reply_code=200, reply_text="", class_id=0, method_id=0)
    assert len(other.take("connection.unblocked")) == 1, "its messages ended with their channel"


def test_blocked_reason_is_cut_to_a_short_string(world: World, client: BasicClient) -> None:
    name = "ä" * 120
    client.call("queue.declare", queue=name, arguments={"qpid.flow_stop_count": 1})
    other = BasicClient(world).open()
    other.send(other.message(name, properties=TRANSIENT) * 2)
    (told,) = other.take("connection.blocked")
    assert told.values["reason"].startswith(f'Publishers to queue "{name[:100]}')
    assert len(told.values["reason"].encode()) <= 255


def test_a_refused_message_stops_no_other_publisher(world: World, client: BasicClient) -> None:
    """It was put on a stopped queue before the journal of another queue was full."""
    arguments = {"qpid.flow_stop_count": 1, "x-message-ttl": 60_000}
    client.call("queue.declare", queue="s", arguments=arguments)
    world.durable_queue("e")
    for queue in ("s", "e"):
        client.call("queue.bind", queue=queue, exchange="amq.fanout")
    client.publish("s")
    world.store.failing = world.store.FullError("no room")
    client.publish(exchange="amq.fanout")
    assert sorted(confirmed(client)) == [("ack", 1, False), ("nack", 2, False)]
    world.store.failing = None
    client.publish("d")
    client.sync()
    world.store.end_flush()
    assert confirmed(client) == [("ack", 3, False)]


def test_without_confirms_a_stopped_queue_stops_the_input(world: World, client: BasicClient) -> None:
    arguments = {"qpid.flow_stop_count": 2, "qpid.flow_resume_count": 1}
    client.call("queue.declare", queue="s", arguments=arguments)
    other = BasicClient(world).open()
    other.send(other.message("s") * 5)
    assert [each.name for each in other.take()] == ["connection.blocked"]
    assert other.machine.is_paused
    assert world.broker.default_host.queues["s"].message_count == 3
    for _ in range(3):
        client.call("basic.get", queue="s", no_ack=True)
    assert [each.name for each in other.take()] == ["connection.unblocked"]
    assert not other.machine.is_paused
    assert world.broker.default_host.queues["s"].message_count == 2
    other.call("basic.consume", queue="s")
    other.send(other.message("s") * 5)
    other.sync()
    assert not other.machine.is_paused, "its own acknowledgements may be what the queue waits for"


@pytest.mark.parametrize("lost", [False, True])
def test_a_held_publisher_that_goes_leaves_nothing_behind(world: World, client: BasicClient, lost: bool) -> None:
    client.call("queue.declare", queue="s", arguments={"qpid.flow_stop_count": 1})
    other = BasicClient(world).open()
    other.send(other.message("s") * 3)
    other.sync()
    assert other.machine.is_paused
    if lost:
        other.machine.dismantle()
    else:
        other.machine.force_close("so")
        other.sync()
        assert other.received[-1].name == "connection.close"
    client.call("queue.delete", queue="s")
    world.run()


def test_get_waits_for_messages_that_wait_for_the_disk(world: World) -> None:
    world.durable_queue("d")
    client = BasicClient(world).open()
    client.publish("d", b"x")
    client.method("basic.get", queue="d", no_ack=True)
    client.method("queue.declare", queue="later")
    assert client.take() == []
    world.store.end_flush()
    assert [each.name for each in client.take()] == ["basic.get-ok", "queue.declare-ok"]
    client.publish("d", b"x")
    client.method("basic.get", queue="d")
    client.sync()
    other = BasicClient(world).open()
    other.method("basic.get", queue="d")
    assert other.take() == []
    client.machine.dismantle()
    while world.store.flushes:
        world.store.end_flush()
    assert other.take()[-1].body == b"x"


def test_confirms_and_transactions_exclude_each_other(world: World, client: BasicClient) -> None:
    assert client.call("tx.select").values["reply_code"] == 406
    other = BasicClient(world).open()
    other.call("tx.select")
    assert other.call("confirm.select").values["reply_code"] == 406


def test_a_transaction(world: World) -> None:
    client, other = BasicClient(world).open(), BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.publish("q", b"before", TRANSIENT)
    client.call("tx.select")
    got = client.call("basic.get", queue="q")
    client.publish("q", b"in it", TRANSIENT)
    client.publish("nowhere", b"back", TRANSIENT, mandatory=True)
    client.method("basic.ack", delivery_tag=got.values["delivery_tag"])
    client.sync()
    assert other.call("basic.get", queue="q").name == "basic.get-empty"
    assert not client.take("basic.return")
    client.method("tx.commit")
    assert [each.name for each in client.take("basic.return", "tx.commit-ok")] == ["basic.return", "tx.commit-ok"]
    assert other.call("basic.get", queue="q", no_ack=True).body == b"in it"
    assert world.broker.default_host.queues["q"].is_empty


def test_a_rollback(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, TRANSIENT)
    client.call("tx.select")
    client.call("basic.qos", prefetch_count=3)
    client.call("basic.consume", queue="q")
    tags = [each.values["delivery_tag"] for each in client.take("basic.deliver")]
    client.method("basic.ack", delivery_tag=tags[0])
    client.method("basic.reject", delivery_tag=tags[1])
    client.publish("q", b"never", TRANSIENT)
    client.publish("nowhere", b"never", TRANSIENT, mandatory=True)
    assert client.call("tx.rollback").name == "tx.rollback-ok"
    assert not client.take("basic.return")
    client.method("basic.ack", delivery_tag=tags[2], multiple=True)
    assert client.call("tx.commit").name == "tx.commit-ok"
    queue = world.broker.default_host.queues["q"]
    assert queue.is_empty
    counts = queue.counters.enqueuing, queue.counters.dequeuing
    ended = [(each.starts, each.commits, each.rejects, each.pending.value) for each in counts if each is not None]
    assert ended == [(1, 0, 1, 0), (2, 1, 1, 0)]


def test_messages_settled_in_an_open_transaction_return(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.publish("q", b"x", TRANSIENT)
    client.publish("q", b"y", TRANSIENT)
    client.call("tx.select")
    for _ in range(2):
        client.call("basic.get", queue="q")
    client.method("basic.ack", delivery_tag=1)
    client.method("basic.nack", delivery_tag=2)
    client.machine.dismantle()
    world.run()
    assert world.broker.default_host.queues["q"].available_count == 2


def test_a_rejected_message_leaves_at_commit(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.publish("q", b"x", TRANSIENT)
    client.call("tx.select")
    client.call("basic.get", queue="q")
    client.method("basic.nack", delivery_tag=1, requeue=False)
    client.sync()
    assert world.broker.default_host.queues["q"].message_count == 1
    client.call("tx.commit")
    assert world.broker.default_host.queues["q"].is_empty


def begun_commit(world: World, *, requeue: bool) -> BasicClient:
    """A client that has begun to commit: messages 1 and 2 of queue d are accepted, 3 and 4 refused."""
    client = BasicClient(world).open()
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("d", body)
    client.sync()
    world.store.end_flush()
    client.call("tx.select")
    for _ in range(4):
        client.call("basic.get", queue="d")
    client.method("basic.ack", delivery_tag=2, multiple=True)
    client.method("basic.nack", delivery_tag=4, multiple=True, requeue=requeue)
    client.method("tx.commit")
    client.sync()
    client.received.clear()
    return client


@pytest.mark.parametrize(("requeue", "left"), [(True, 2), (False, 0)])
def test_a_commit_of_a_client_that_is_gone_is_complete(world: World, requeue: bool, left: int) -> None:
    queue = world.durable_queue("d")
    client = begun_commit(world, requeue=requeue)
    client.machine.dismantle()
    world.run()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    assert (queue.message_count, queue.available_count) == (left, left)


def test_after_a_failed_commit_everything_is_available(world: World) -> None:
    queue = world.durable_queue("d")
    client = begun_commit(world, requeue=False)
    world.store.end_flush(world.store.FullError("no room"))
    assert client.take()[-1].values["reply_code"] == 406
    assert (queue.message_count, queue.available_count) == (4, 4)
    assert not client.machine.is_paused


def test_messages_that_cannot_move_after_a_commit_are_available(world: World) -> None:
    queue = world.durable_queue("d")
    other = BasicClient(world).open()
    other.call("exchange.declare", exchange="alternate", type="fanout")
    other.call("queue.declare", queue="full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other.call("queue.bind", queue="full", exchange="alternate")
    other.publish("full", b"x", TRANSIENT)
    queue.alternate = world.broker.default_host.exchanges["alternate"]
    client = begun_commit(world, requeue=False)
    world.store.end_flush()
    committed, closed = client.take()
    assert (committed.name, closed.name) == ("tx.commit-ok", "channel.close")
    assert (queue.message_count, queue.available_count) == (2, 2)
    assert not client.machine.is_paused


def test_memory_is_short(world: World) -> None:
    client = BasicClient(World(BrokerSettings(auth=False, memory_bytes=100_000))).open()
    client.call("queue.declare", queue="q")
    client.publish("q", b"x", TRANSIENT)
    client.machine.watch_memory(is_short=True)
    (told,) = client.take("connection.blocked")
    assert told.values["reason"].startswith("The broker is short of memory (--broker-memory)")
    client.publish("q", b"x", TRANSIENT)
    assert client.machine.take_published()
    client.machine.watch_memory(is_short=False)
    assert client.take("connection.unblocked")
    fresh = BasicClient(client.world).open()
    fresh.machine.watch_memory(is_short=True)
    assert fresh.take() == []
    fresh.publish("q", b"x", TRANSIENT)  # the first message of a client that has only consumed so far
    assert fresh.machine.take_published()
    assert fresh.take("connection.blocked")


@given(st.lists(st.sampled_from(["plain", "held", "late", "refused"]), max_size=30), st.randoms(use_true_random=False))
def test_each_number_is_reported_once(kinds: list[str], random: object) -> None:
    """Whatever waits for how long: each is confirmed or refused, and none before it is done."""
    confirms = Confirms(7)
    ledger, waiting, told = confirms.ledger, [], {}
    done = set()

    def take() -> None:
        for data in confirms.take():
            frame = decode_frame(bytes(data), 0, FRAME_MIN_SIZE)
            assert frame is not None
            assert frame[:2] == (METHOD, 7)
            assert len(frame.payload) + OVERHEAD == len(data)
            method, values = decode_method(frame.payload)
            tag = values["delivery_tag"]
            covered = range(1, tag + 1) if values["multiple"] else (tag,)
            for number in covered:
                assert number in done, f"{number} is told before it is done"
                told.setdefault(number, method.name)

    for kind in kinds:
        number = confirms.published = confirms.published + 1
        if kind == "held":
            ledger.hold(number)
        elif kind == "late":
            ledger.postpone(number)
            waiting.append([[number, number]])
        elif kind == "refused":
            confirms.refuse(number)
            done.add(number)
        else:
            done.add(number)
        if random.random() < 0.4:  # type: ignore[attr-defined]
            runs = ledger.complete_below(number + 1)
            if runs:
                waiting.append(runs)
            take()
        if waiting and random.random() < 0.3:  # type: ignore[attr-defined]
            runs = waiting.pop(random.randrange(len(waiting)))  # type: ignore[attr-defined]
            if runs[0][0] < ledger.processed:
                done |= {each for first, last in runs for each in range(first, last + 1)}
                ledger.complete(runs)
                take()
            else:
                waiting.append(runs)
    runs = ledger.complete_below(confirms.published + 1)
    for each in (*waiting, runs):
        done |= {number for first, last in each for number in range(first, last + 1)}
        ledger.complete(each)
    take()
    assert told == {number: "basic.nack" if kind == "refused" else "basic.ack" for number, kind in enumerate(kinds, 1)}
    assert confirms.ledger.done.below > confirms.published
    assert confirms.take() == []


def test_a_commit_that_is_refused_counts_as_rejected(world: World) -> None:
    client = BasicClient(world).open()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.call("queue.declare", queue="q", arguments=arguments)
    client.call("tx.select")
    client.publish("q", b"1", TRANSIENT)
    client.publish("q", b"2", TRANSIENT)
    client.method("tx.commit")
    world.run()
    queue = world.broker.default_host.queues["q"]
    counts = queue.counters.enqueuing
    assert counts is not None
    assert (counts.starts, counts.commits, counts.rejects, counts.pending.value) == (1, 0, 1, 0)
    assert queue.is_empty
