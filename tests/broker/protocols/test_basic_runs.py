"""Messages that are read together are handled as runs; a client cannot tell, whatever it does with them.

Two brokers get the same bytes. One of them reads many messages at once, which become runs; the other one reads each
message by itself. What their clients receive, what is on their queues, and what their journals hold is the same.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, compress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qstore.broker.model.exchanges.exchange as exchange_module
from qstore.broker.model import router
from qstore.broker.model.errors import RoutingLimitError
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Route
from qstore.broker.model.message import PLAIN_HANDLING
from qstore.broker.model.queues.entry import FOLDED, HELD, RUN
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.stretch import Stretch
from qstore.broker.model.run import MIN_RUN, MessageRun, RunEntry
from qstore.broker.protocols.amqp_0_9_1 import gathering
from qstore.broker.protocols.amqp_0_9_1.connection import ServerConnection
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.formats.amqp_0_9_1.frames import METHOD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_ack
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import INT32, STR16, TypedMap, TypedValue
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.read_together import QUEUES, Script, Side, assert_alike, bodies, runs_on
from tests.support.bodies import joined
from tests.support.compiled import replaces

TRANSIENT = Properties(delivery_mode=1)


class BasicSide(Side):
    """A client with a channel that confirms, and one in a transaction."""

    def __init__(self, *, reads_together: bool, most_of_run: int = 1_000_000) -> None:
        super().__init__(reads_together=reads_together, most_of_run=most_of_run)
        self.client = BasicClient(self.world).open(1, 2)
        self.client.call("queue.declare", queue="t")
        for queue in QUEUES:
            self.client.call("queue.bind", queue=queue, exchange="amq.fanout")
        self.client.call("confirm.select")
        self.client.call("tx.select", 2)
        self.client.received.clear()

    def publish(self, key: str, bodies: list[bytes], properties: Properties) -> None:
        """Publish to a queue, or to both if there is no key."""
        exchange = "" if key else "amq.fanout"
        self.send([self.client.message(key, body, properties, exchange=exchange) for body in bodies])

    def state(self) -> dict[str, Any]:
        channels = self.client.machine.channels.values()
        return super().state() | {
            "received": self.client.received,
            "unsettled": [channel.unsettled_count for channel in channels],
            "credit": [(each.credit, [one.credit for one in each.consumers.values()]) for each in channels],
        }


# ---- whatever a client does ----


def publishing() -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("publish"),
        st.sampled_from((*QUEUES, *QUEUES, "")),
        st.integers(1, 30),
        st.integers(2, 4),
        st.sampled_from((0, 0, 1, 50, 300)),
        st.sampled_from((PERSISTENT, TRANSIENT)),
    )


OPERATIONS = st.lists(
    st.one_of(
        publishing(),
        publishing(),
        st.tuples(st.just("consume"), st.sampled_from(QUEUES), st.sampled_from((1, 2)), st.integers(0, 20)),
        st.tuples(st.just("consume without ack"), st.sampled_from(QUEUES), st.sampled_from((1, 2))),
        st.tuples(st.just("cancel"), st.sampled_from(QUEUES)),
        st.tuples(st.just("ack"), st.sampled_from((1, 2)), st.floats(0, 1), st.booleans()),
        st.tuples(st.just("ack"), st.sampled_from((1, 2)), st.floats(0, 1), st.booleans()),
        st.tuples(st.just("ack in order"), st.sampled_from((1, 2)), st.integers(1, 10)),
        st.tuples(st.just("ack up to"), st.sampled_from((1, 2)), st.lists(st.integers(0, 40), min_size=2, max_size=5)),
        st.tuples(st.just("nack"), st.sampled_from((1, 2)), st.floats(0, 1), st.booleans(), st.booleans()),
        st.tuples(st.just("ack all"), st.sampled_from((1, 2))),
        st.tuples(st.just("recover"), st.sampled_from((1, 2))),
        st.tuples(st.just("commit")),
        st.tuples(st.just("rollback")),
        st.tuples(st.just("get"), st.sampled_from(QUEUES), st.booleans()),
        st.tuples(st.just("purge"), st.sampled_from(QUEUES)),
        st.tuples(st.just("look"), st.sampled_from(QUEUES)),
        st.tuples(st.just("reopen"), st.sampled_from((1, 2))),
        st.tuples(st.just("rest")),
        st.tuples(st.just("page out")),
        st.tuples(st.just("tick")),
    ),
    max_size=25,
)


class BasicScript(Script):
    """Tags are chosen from those that are not settled."""

    def publish(self, key: str, count: int, size: int, spread: int, properties: Properties) -> None:
        self.side.publish(key, bodies(count, size, self.published, spread), properties)
        self.published += count

    def consume(self, queue: str, channel: int, prefetch: int) -> None:
        self.client.method("basic.qos", channel, prefetch_count=prefetch)
        self._consume(queue, channel, no_ack=False)

    def consume_without_ack(self, queue: str, channel: int) -> None:
        self._consume(queue, channel, no_ack=True)

    def _consume(self, queue: str, channel: int, *, no_ack: bool) -> None:
        self.side.rest()  # an earlier consumer may wait for the end of a purge
        if not self.side.queue(queue).consumer_count:
            self.client.method("basic.consume", channel, queue=queue, consumer_tag=queue, no_ack=no_ack)
            self.client.sync()

    def cancel(self, queue: str) -> None:
        for number, channel in self.client.machine.channels.items():
            if queue in channel.consumers:
                self.client.method("basic.cancel", number, consumer_tag=queue)
                return

    def _tags(self, number: int) -> list[int]:
        channel = self.client.machine.channels[number]
        of_runs = [tag for run in channel.held_runs for tag in range(run.first, run.first + run.entry.count)]
        return sorted([*channel.unsettled, *of_runs])

    def _tag(self, number: int, where: float) -> int:
        tags = self._tags(number)
        return tags[int(where * (len(tags) - 1))] if tags else 0

    def ack(self, number: int, where: float, multiple: bool) -> None:
        tag = self._tag(number, where)
        if tag:
            self.client.method("basic.ack", number, delivery_tag=tag, multiple=multiple)

    def ack_in_order(self, number: int, count: int) -> None:
        acks = [encode_frame(METHOD, number, encode_ack(tag, multiple=False)) for tag in self._tags(number)[:count]]
        self.side.send(acks)

    def ack_up_to(self, number: int, steps: list[int]) -> None:
        """With ascending tags, some of which may be wrong."""
        tags = [*accumulate(steps, initial=next(iter(self._tags(number)), 1))]
        self.side.send([encode_frame(METHOD, number, encode_ack(tag, multiple=True)) for tag in tags])

    def nack(self, number: int, where: float, multiple: bool, requeue: bool) -> None:
        tag = self._tag(number, where)
        if tag:
            self.client.method("basic.nack", number, delivery_tag=tag, multiple=multiple, requeue=requeue)

    def ack_all(self, number: int) -> None:
        self.client.method("basic.ack", number, delivery_tag=0, multiple=True)

    def recover(self, number: int) -> None:
        self.client.method("basic.recover", number, requeue=True)

    def commit(self) -> None:
        self.client.method("tx.commit", 2)

    def rollback(self) -> None:
        self.client.method("tx.rollback", 2)

    def get(self, queue: str, no_ack: bool) -> None:
        self.client.method("basic.get", 1, queue=queue, no_ack=no_ack)
        self.side.rest()

    def purge(self, queue: str) -> None:
        self.client.method("queue.purge", 1, queue=queue)

    def reopen(self, number: int) -> None:
        self.client.method("channel.close", number, reply_code=200, reply_text="")
        self.side.rest()
        self.client.method("channel.open", number)
        self.client.method("confirm.select" if number == 1 else "tx.select", number)


@given(OPERATIONS, st.sampled_from((1_000_000, 7, 3)))
def test_no_client_can_tell_runs_from_single_messages(operations: list[tuple[Any, ...]], most_of_run: int) -> None:
    together = BasicSide(reads_together=True, most_of_run=most_of_run)
    singly = BasicSide(reads_together=False)
    assert_alike((BasicScript(together), BasicScript(singly)), operations)


# ---- that there are runs ----


@pytest.fixture
def side() -> BasicSide:
    return BasicSide(reads_together=True)


def test_a_run_that_goes_to_several_queues_is_one_on_each(side: BasicSide) -> None:
    side.publish("", bodies(3), PERSISTENT)
    side.rest()
    side.publish("", bodies(100), PERSISTENT)
    side.rest()
    for name in QUEUES:
        assert runs_on(side.queue(name)) == [(RUN, 100)]
    assert side.client.take("basic.ack")[-1].values["delivery_tag"] == 103


@pytest.mark.parametrize("name", QUEUES)
def test_messages_read_together_are_one_run_on_the_queue(side: BasicSide, name: str) -> None:
    side.publish(name, bodies(20), PERSISTENT)
    side.rest()
    side.publish(name, bodies(100), PERSISTENT)
    side.rest()
    assert runs_on(side.queue(name))[-1] == (RUN, 100)
    assert side.queue(name).message_count == 120


def test_a_waiting_consumer_gets_a_run_when_it_is_on_the_disk(side: BasicSide) -> None:
    side.client.call("basic.consume", queue="d")
    side.publish("d", bodies(3), PERSISTENT)
    side.rest()
    side.client.take("basic.deliver")
    side.publish("d", bodies(100), PERSISTENT)
    side.client.sync()
    assert runs_on(side.queue("d"))[-1] == (RUN, 100)
    assert side.client.take("basic.deliver") == []
    side.rest()
    assert [each.body for each in side.client.take("basic.deliver")] == bodies(100)
    assert runs_on(side.queue("d"))[-1] == (HELD, 100)


def test_a_consumer_takes_a_part_of_a_run_and_holds_it(side: BasicSide) -> None:
    side.publish("d", bodies(20), PERSISTENT)
    side.publish("d", bodies(100), PERSISTENT)
    side.rest()
    side.client.call("queue.purge", queue="d")
    side.publish("d", bodies(100), PERSISTENT)
    side.rest()
    side.client.method("basic.qos", prefetch_count=40)
    side.client.call("basic.consume", queue="d")
    assert runs_on(side.queue("d")) == [(HELD, 40), (RUN, 60)]
    deliveries = side.client.take("basic.deliver")
    assert [each.body for each in deliveries] == bodies(40)
    first = deliveries[0].values["delivery_tag"]
    side.client.method("basic.ack", delivery_tag=first + 29, multiple=True)
    side.rest()
    assert runs_on(side.queue("d")) == [(HELD, 10), (HELD, 30), (RUN, 30)]
    assert len(side.world.store.dequeued) == 120 + 30


def test_a_single_acknowledgement_splits_a_run(side: BasicSide) -> None:
    side.publish("t", bodies(20), TRANSIENT)
    side.client.call("queue.purge", queue="t")
    side.publish("t", bodies(20), TRANSIENT)
    side.client.call("basic.consume", queue="t")
    deliveries = side.client.take("basic.deliver")
    side.client.method("basic.ack", delivery_tag=deliveries[7].values["delivery_tag"])
    side.client.sync()
    assert runs_on(side.queue("t")) == [(HELD, 7), (HELD, 12)]


def test_several_ready_consumers_share_a_run(side: BasicSide) -> None:
    side.publish("t", bodies(8), TRANSIENT)
    side.client.call("queue.purge", queue="t")
    for number in range(4):
        side.client.call("basic.consume", queue="t", consumer_tag=f"c{number}")
    side.publish("t", bodies(400), TRANSIENT)
    side.client.sync()
    counts: dict[str, int] = {}
    for each in side.client.take("basic.deliver"):
        counts[each.values["consumer_tag"]] = counts.get(each.values["consumer_tag"], 0) + 1
    assert sum(counts.values()) == 400
    assert min(counts.values()) >= 60


# ---- runs that are read back ----


def paged(side: BasicSide, wanted: list[bytes]) -> Queue:
    """A queue with messages that came one by one, and are out of memory."""
    for body in wanted:
        side.publish("d", [body], PERSISTENT)
    side.rest()
    queue = side.queue("d")
    assert runs_on(queue) == []
    side.page_out()
    assert queue.residency is not None
    assert queue.residency.messages_out == len(wanted)
    return queue


@pytest.mark.parametrize("spread", [0, 200])
def test_messages_that_were_out_of_memory_are_runs(side: BasicSide, spread: int) -> None:
    wanted = bodies(100, spread=spread)
    queue = paged(side, wanted)
    side.client.method("basic.qos", prefetch_count=40)
    side.client.call("basic.consume", queue="d")
    assert runs_on(queue) == [(HELD, 40), (RUN, 60)]
    assert [each.body for each in side.client.take("basic.deliver")] == wanted[:40]
    assert queue.residency is not None
    assert (queue.residency.messages_in, queue.residency.memory_out) == (100, 0)
    for _ in range(3):
        side.client.method("basic.ack", delivery_tag=0, multiple=True)
        side.rest()
    assert [each.body for each in side.client.take("basic.deliver")] == wanted[40:]
    assert (queue.message_count, queue.message_bytes, queue.residency.memory_out) == (0, 0, 0)
    assert len(side.world.store.dequeued) == 100


def test_messages_of_an_index_are_read_together_with_their_neighbours(side: BasicSide) -> None:
    """After a start the index has those that came singly apart from runs."""
    wanted = bodies(60)
    side.publish("d", wanted, PERSISTENT)
    side.rest()
    queue = side.world.paged_queue("again")  # of the same store
    residency = queue.residency
    assert residency is not None
    size = queue.message_bytes // 60
    for rids in (range(1, 31), (31,), array("Q", range(32, 61))):
        residency.recover(rids, [size] * len(rids), ())
    assert (queue.message_count, queue.order.next_position) == (60, 61)
    side.client.method("basic.qos", prefetch_count=100)
    side.client.call("basic.consume", queue="again")
    assert runs_on(queue) == [(HELD, 60)]
    assert [each.body for each in side.client.take("basic.deliver")] == wanted
    assert (residency.messages_in, residency.memory_out) == (60, 0)


def test_a_message_between_two_runs_leaves_memory_with_them(side: BasicSide) -> None:
    """It was received in two parts, the first with the run before it and the second with the one after it."""
    wanted = bodies(61)
    side.publish("d", wanted[:30], PERSISTENT)
    side.publish("d", wanted[30:31], PERSISTENT)
    side.publish("d", wanted[31:], PERSISTENT)
    side.rest()
    queue = side.queue("d")
    assert len(runs_on(queue)) == 2
    side.page_out()
    (stretch,) = queue.order.parts()
    assert isinstance(stretch, Stretch)
    assert (stretch.count, stretch.keys) == (61, range(stretch.keys[0], stretch.keys[0] + 61))
    side.client.call("basic.consume", queue="d")
    assert runs_on(queue) == [(HELD, 61)]
    assert [each.body for each in side.client.take("basic.deliver")] == wanted


def test_unreadable_messages_split_a_run_and_stay(side: BasicSide, caplog: pytest.LogCaptureFixture) -> None:
    wanted = bodies(100)
    queue = paged(side, wanted)
    side.world.store.unreadable = {1, 30, 100}  # at both ends, and in the middle
    side.client.call("basic.consume", queue="d")
    assert [each.body for each in side.client.take("basic.deliver")] == wanted[1:29] + wanted[30:99]
    assert runs_on(queue) == [(HELD, 28), (HELD, 69)]
    assert "record 0x1e cannot be read back" in caplog.text
    side.client.method("basic.ack", delivery_tag=0, multiple=True)
    side.rest()
    assert [entry.rid for entry in queue.entries()] == [1, 30, 100]


def given_back(side: BasicSide, wanted: list[bytes], count: int) -> Queue:
    """A queue whose messages are out of memory; the first ones were delivered before."""
    queue = side.queue("d")
    side.publish("d", wanted, PERSISTENT)
    side.rest()
    side.client.method("basic.qos", prefetch_count=count)
    side.client.call("basic.consume", queue="d", consumer_tag="first")
    side.client.call("basic.cancel", consumer_tag="first")
    side.client.method("basic.nack", delivery_tag=count, multiple=True, requeue=True)
    side.rest()
    side.client.received.clear()
    side.page_out()
    return queue


def test_messages_that_were_delivered_before_are_a_run_of_their_own_and_say_so(side: BasicSide) -> None:
    wanted = bodies(60, spread=50)
    queue = given_back(side, wanted, 40)
    side.client.method("basic.qos", prefetch_count=100)
    side.client.call("basic.consume", queue="d")
    assert runs_on(queue) == [(HELD, 40), (HELD, 20)]
    deliveries = side.client.take("basic.deliver")
    assert [each.body for each in deliveries] == wanted
    assert [each.values["redelivered"] for each in deliveries] == 40 * [True] + 20 * [False]


def test_parts_of_a_run_that_was_delivered_before_say_so(side: BasicSide) -> None:
    wanted = bodies(60)
    queue = given_back(side, wanted, 40)
    side.client.method("basic.qos", prefetch_count=10)
    side.client.call("basic.consume", queue="d")
    assert runs_on(queue) == [(HELD, 10), (RUN, 30), (RUN, 20)]
    assert list(queue.delivered_rids()) == list(range(1, 41))  # also those that wait
    side.page_out()
    assert list(queue.delivered_rids()) == list(range(1, 41))
    side.client.method("basic.ack", delivery_tag=46, multiple=False)  # splits the first part
    side.client.method("basic.recover", requeue=True)
    side.rest()
    while queue.available_count:
        side.client.method("basic.ack", delivery_tag=0, multiple=True)
        side.rest()
    seen = {each.body: each.values["redelivered"] for each in side.client.take("basic.deliver")}
    expected = {body: number < 40 for number, body in enumerate(wanted)}
    assert seen == expected


def test_messages_whose_returns_are_counted_are_delivered_singly_again(side: BasicSide) -> None:
    wanted = bodies(60)
    side.queue("d").delivery_limit = 5
    given_back(side, wanted, 40)
    side.client.method("basic.qos", prefetch_count=100)
    side.client.call("basic.consume", queue="d")
    deliveries = side.client.take("basic.deliver")
    assert [each.body for each in deliveries] == wanted
    assert [each.values["redelivered"] for each in deliveries] == 40 * [True] + 20 * [False]
    headers = [each.properties.headers for each in deliveries]
    assert [each and each.get("x-delivery-count").value for each in headers] == 40 * [1] + 20 * [None]


def test_a_browsed_message_is_found_in_the_run_that_it_has_come_back_in(side: BasicSide) -> None:
    """Its entry left memory; a consumer may have the run by then."""
    wanted = bodies(60)
    queue = paged(side, wanted)
    entries = list(queue.entries())  # they are in memory as references, and leave it again
    browsed = entries[20], entries[50]
    assert {each.state for each in browsed} == {FOLDED}
    side.client.method("basic.qos", prefetch_count=40)
    side.client.call("basic.consume", queue="d")
    assert runs_on(queue) == [(HELD, 40), (RUN, 20)]
    assert not queue.acquire(browsed[0])
    assert queue.acquire(browsed[1])
    assert bytes(browsed[1].message.body) == wanted[50]
    assert runs_on(queue) == [(HELD, 40)]
    assert [entry.rid for entry in queue.entries()] == list(range(1, 61))


# ---- their memory ----


def test_a_run_keeps_little_more_than_its_own_bytes_in_memory() -> None:
    template = BasicMessage(b"header", b"", "", "q", b"", True, PLAIN_HANDLING, 0.0)
    run = MessageRun(template, joined(bodies(100), gap=6), None, 20)
    entry = RunEntry(run, 0, 100, 1, 1)
    entry.skip(70)
    assert entry.run is run
    entry.skip(10)
    assert len(entry.run.bodies.data) == 19 * 10 + 4
    assert [bytes(entry.run.message(number).body) for number in range(20)] == bodies(20, begin=80)
    assert (entry.first, entry.count, entry.position, entry.rid) == (0, 20, 81, 81)


@pytest.mark.parametrize("name", QUEUES)
def test_messages_whose_bodies_differ_in_size_are_a_run(side: BasicSide, name: str) -> None:
    side.publish(name, bodies(20, spread=50), PERSISTENT)
    side.rest()
    uneven = bodies(100, begin=20, spread=200)
    side.publish(name, uneven, PERSISTENT)
    side.rest()
    assert runs_on(side.queue(name))[-1] == (RUN, 100)
    assert side.queue(name).message_bytes == sum(map(len, [*bodies(20, spread=50), *uneven])) + 120 * 15
    side.client.method("basic.qos", prefetch_count=60)
    side.client.call("basic.consume", queue=name)
    assert runs_on(side.queue(name))[-2:] == [(HELD, 40), (RUN, 60)]
    deliveries = side.client.take("basic.deliver")
    assert [each.body for each in deliveries[20:]] == uneven[:40]
    side.client.method("basic.ack", delivery_tag=deliveries[-1].values["delivery_tag"], multiple=True)
    side.rest()
    assert [each.body for each in side.client.take("basic.deliver")] == uneven[40:]
    assert [body for _, body, *_ in side.messages(name)] == uneven[40:]


@pytest.mark.parametrize("piece", [1, 7, 50, 101, 150, 333, 1000])
def test_uneven_messages_arrive_whole_in_whatever_pieces_they_are_read(side: BasicSide, piece: int) -> None:
    wanted = bodies(60, spread=90)
    stream = b"".join([side.client.message("t", body, TRANSIENT) for body in wanted])
    for at in range(0, len(stream), piece):
        side.client.send(stream[at : at + piece])
    side.rest()
    assert side.client.take("basic.ack")[-1].values["delivery_tag"] == 60
    assert bool(runs_on(side.queue("t"))) >= (piece > 500)
    assert [body for _, body, *_ in side.messages("t")] == wanted


def test_a_run_follows_messages_of_another_size(side: BasicSide) -> None:
    """The header that it shares with those that were published last differs in the size of the body."""
    side.publish("t", bodies(20), TRANSIENT)
    side.publish("t", bodies(100, size=9), TRANSIENT)
    assert runs_on(side.queue("t"))[-1] == (RUN, 100)
    side.client.call("basic.consume", queue="t")
    assert [each.body for each in side.client.take("basic.deliver")] == bodies(20) + bodies(100, size=9)


def test_fewer_messages_than_are_worth_it_stay_single(side: BasicSide) -> None:
    side.publish("t", bodies(2), TRANSIENT)
    side.publish("t", bodies(MIN_RUN - 1), TRANSIENT)
    assert runs_on(side.queue("t")) == []


@pytest.mark.parametrize("user", ["", "anonymous", "mallory"])
def test_messages_are_runs_where_user_ids_are_checked_unless_they_have_one(side: BasicSide, user: str) -> None:
    publishing = side.client.machine.publishing
    publishing.checks_user_ids = True
    publishing.watch_memory(is_short=False)  # looks again what there is to check
    side.client.machine.user = "anonymous"
    side.publish("t", bodies(20), Properties(delivery_mode=1, user_id=user or None))
    side.rest()
    assert bool(runs_on(side.queue("t"))) is not bool(user)
    assert side.queue("t").message_count == (0 if user == "mallory" else 20)


def test_messages_of_a_run_that_fit_a_full_journal_are_confirmed_and_the_rest_refused(side: BasicSide) -> None:
    side.publish("d", bodies(3), PERSISTENT)
    side.rest()
    side.client.received.clear()
    store = side.world.store
    store.most_of_run = 5
    real, calls = store.enqueue_run, []

    def filling(*arguments: Any) -> tuple[int, int]:
        calls.append(arguments)
        if len(calls) > 2:
            store.failing = store.FullError("no")
            raise store.failing
        return real(*arguments)

    store.enqueue_run = filling  # type: ignore[method-assign]
    side.publish("d", bodies(20), PERSISTENT)
    side.rest()
    answers = [(each.name, each.values["delivery_tag"]) for each in side.client.take()]
    assert [tag for name, tag in answers if name == "basic.nack"] == list(range(14, 24))
    assert ("basic.ack", 13) in answers
    assert side.queue("d").message_count == 13


@pytest.mark.parametrize(("most_of_run", "expected"), [(7, [(RUN, 7)] * 14), (3, [])])
def test_a_run_goes_to_several_queues_as_far_as_their_journals_take_it(
    side: BasicSide, most_of_run: int, expected: list[tuple[int, int]]
) -> None:
    side.publish("", bodies(3), PERSISTENT)
    side.rest()
    side.world.store.most_of_run = most_of_run
    side.publish("", bodies(100, begin=3), PERSISTENT)
    side.rest()
    for name in QUEUES:
        assert runs_on(side.queue(name)) == expected
        assert [body for _, body, *_ in side.messages(name)] == bodies(103)
    assert side.client.take("basic.ack")[-1].values["delivery_tag"] == 103


@replaces
def test_a_run_to_many_queues_is_put_on_them_in_parts(side: BasicSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_RUN_COPIES", 40)
    side.publish("", bodies(3), PERSISTENT)
    side.rest()
    side.publish("", bodies(100, begin=3), PERSISTENT)
    side.rest()
    for name in QUEUES:
        assert [count for _, count in runs_on(side.queue(name))] == [20] * 5
        assert [body for _, body, *_ in side.messages(name)] == bodies(103)


@replaces
def test_a_run_to_very_many_queues_is_published_singly_and_in_turns(
    side: BasicSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "MAX_AT_ONCE", 1)
    side.publish("", bodies(20), PERSISTENT)
    side.rest()
    for name in QUEUES:
        assert runs_on(side.queue(name)) == []
        assert [body for _, body, *_ in side.messages(name)] == bodies(20)
    assert side.client.take("basic.ack")[-1].values["delivery_tag"] == 20


# ---- messages for several queues in turns: a run for each ----


KEYS = ("d", "t", "e")  # two durable queues, and a transient one between them
KEPT = frozenset(("basic.ack", "basic.nack"))


class MixedSide(BasicSide):
    """A client whose confirms are compared as a whole, since sorted messages are confirmed together."""

    def __init__(self, *, reads_together: bool, most_of_run: int = 1_000_000) -> None:
        super().__init__(reads_together=reads_together, most_of_run=most_of_run)
        self.world.durable_queue("e")

    def publish_in_turns(self, keys: list[str], sizes: list[bytes], properties: Properties, exchange: str = "") -> None:
        self.send(
            [
                self.client.message(keys[number % len(keys)], body, properties, exchange=exchange)
                for number, body in enumerate(sizes)
            ]
        )

    def confirmed(self) -> dict[int, bool]:
        """Of each number that was confirmed since the channel was opened, whether by basic.ack, which came first.

        Which ones were before it was closed depends on what was on the disk by then.
        """
        found: dict[int, bool] = {}
        reached = 0
        for each in self.client.received:
            if each.name == "channel.open-ok" and each.channel == 1:
                found, reached = {}, 0
            elif each.name in KEPT and each.channel == 1:
                number = each.values["delivery_tag"]
                of = range(reached + 1, number + 1) if each.values["multiple"] else [number]
                found.update((one, each.name == "basic.ack") for one in of if one not in found)
                reached = max(reached, number) if each.values["multiple"] else reached
        return found

    def messages(self, name: str) -> list[Any]:
        """As `Side.messages`, without record ids: the records of several journals are numbered in one sequence."""
        return [(position, body, bool(rid), *rest) for position, body, rid, *rest in super().messages(name)]

    def state(self) -> dict[str, Any]:
        state = super().state()
        enqueued = state["enqueued"]
        state["dequeued"] = sorted(enqueued[rid - 1] for rid in state["dequeued"])
        state["enqueued"] = sorted(enqueued)
        state["received"] = [each for each in state["received"] if each.name not in KEPT or each.channel != 1]
        return state | {"confirmed": self.confirmed()}


class MixedScript(BasicScript):
    """What is looked at within a tick may not be on its queue yet."""

    def look(self, queue: str) -> object:
        self.client.sync()
        return super().look(queue)

    def page_out(self) -> None:
        self.client.sync()
        super().page_out()

    def publish_in_turns(self, keys: list[str], count: int, spread: int, properties: Properties, exchange: str) -> None:
        self.side.publish_in_turns(keys, bodies(count, 4, self.published, spread), properties, exchange)
        self.published += count


@given(
    st.lists(
        st.one_of(
            OPERATIONS.filter(bool).map(lambda operations: operations[0]),
            st.tuples(
                st.just("publish in turns"),
                st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
                st.integers(1, 60),
                st.sampled_from((0, 0, 50)),
                st.sampled_from((PERSISTENT, PERSISTENT, TRANSIENT)),
                st.sampled_from(("", "", "amq.fanout")),
            ),
        ),
        max_size=20,
    ),
    st.sampled_from((1_000_000, 7, 3)),
)
def test_no_client_can_tell_sorted_messages_from_single_ones(operations: list[Any], most_of_run: int) -> None:
    together = MixedSide(reads_together=True, most_of_run=most_of_run)
    singly = MixedSide(reads_together=False)
    assert_alike((MixedScript(together), MixedScript(singly)), operations)


@pytest.fixture
def mixed() -> MixedSide:
    return MixedSide(reads_together=True)


def learn(mixed: MixedSide, *keys: str) -> None:
    """Publish one message with each key, and another one, so that the broker knows their basic.publish and header."""
    for key in (*keys, keys[0]):
        mixed.publish(key, bodies(1), PERSISTENT)
    mixed.rest()
    for key in keys:
        mixed.client.method("queue.purge", 1, queue=key)
    mixed.rest()
    mixed.client.received.clear()


def test_messages_for_several_queues_in_turns_are_a_run_on_each(mixed: MixedSide) -> None:
    learn(mixed, *KEYS)
    sent = bodies(60)
    mixed.publish_in_turns(list(KEYS), sent, PERSISTENT)
    mixed.rest()
    for number, key in enumerate(KEYS):
        assert max(count for state, count in runs_on(mixed.queue(key)) if state == RUN) >= 19
        assert [body for _, body, *_ in mixed.messages(key)] == sent[number::3]
    assert mixed.confirmed()[64] is True
    assert set(range(5, 65)) <= set(mixed.confirmed())


@replaces
@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_few_messages_for_each_of_several_queues_are_sorted_and_single_there(
    mixed: MixedSide, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_MIN_ALIKE", 2)
    taken: list[int] = []
    sort = ServerConnection.mixed_runs
    monkeypatch.setattr(ServerConnection, "mixed_runs", lambda *arguments: taken.append(sort(*arguments)) or taken[-1])
    for key in (*KEYS, KEYS[0]):
        mixed.publish(key, bodies(1), properties)
    mixed.rest()
    sent = bodies(11)
    mixed.publish_in_turns(list(KEYS), sent, properties)
    mixed.rest()
    assert taken == [8]
    for number, key in enumerate(KEYS):
        assert not runs_on(mixed.queue(key))
        own = sent[number::3]
        assert [body for _, body, *_ in mixed.messages(key)][-len(own) :] == own
    assert mixed.confirmed()[15] is True


def delivered(mixed: MixedSide, channel: int) -> list[tuple[int, str, bytes]]:
    """Delivery tag, routing key and body of what the consumers of a channel got."""
    return [
        (each.values["delivery_tag"], each.values["routing_key"], each.body)
        for each in mixed.client.received
        if each.name == "basic.deliver" and each.channel == channel
    ]


@pytest.mark.parametrize("spread", [0, 50])
@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_messages_with_several_keys_for_the_same_queues_are_a_run_on_each(
    mixed: MixedSide, properties: Properties, spread: int
) -> None:
    keys = ["one", "another", "third"]
    mixed.publish_in_turns(keys, bodies(4), properties, "amq.fanout")
    sent = bodies(60, 4, 0, spread)
    mixed.publish_in_turns(keys, sent, properties, "amq.fanout")
    mixed.rest()
    for queue in QUEUES:
        assert max(count for state, count in runs_on(mixed.queue(queue)) if state == RUN) >= 50
    assert set(mixed.confirmed()) == set(range(1, 65))
    for channel, queue in enumerate(QUEUES, 3):
        mixed.client.call("channel.open", channel)
        mixed.client.method("basic.consume", channel, queue=queue, consumer_tag=queue, no_ack=False)
        mixed.rest()
        wanted = [keys[number % 3] for number in (*range(4), *range(60))]
        assert delivered(mixed, channel) == list(zip(range(1, 65), wanted, [*bodies(4), *sent], strict=True))
        assert max(count for state, count in runs_on(mixed.queue(queue)) if state == HELD) >= 50
        mixed.client.method("basic.nack", channel, delivery_tag=20, multiple=True, requeue=True)
        mixed.rest()
        assert delivered(mixed, channel)[64:] == [
            (number + 64, key, body) for number, key, body in delivered(mixed, channel)[:20]
        ]
        mixed.client.method("basic.ack", channel, delivery_tag=0, multiple=True)
        mixed.rest()
        assert mixed.queue(queue).is_empty


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_messages_of_some_of_the_keys_of_a_run_are_delivered(mixed: MixedSide, properties: Properties) -> None:
    """A consumer with little credit gets slices that do not have all keys, nor the first one."""
    keys = [f"{'key' * number}-{number}" for number in range(20)]
    mixed.publish_in_turns(keys, bodies(4), properties, "amq.fanout")
    sent = bodies(60, 4, 0, 50)
    mixed.publish_in_turns(keys, sent, properties, "amq.fanout")
    mixed.rest()
    mixed.client.call("channel.open", 3)
    mixed.client.call("basic.qos", 3, prefetch_count=8)
    mixed.client.method("basic.consume", 3, queue="d", consumer_tag="d", no_ack=False)
    mixed.rest()
    held = 0
    for done in range(8, 72, 8):
        held += sum(count for state, count in runs_on(mixed.queue("d")) if state == HELD)
        mixed.client.method("basic.ack", 3, delivery_tag=done, multiple=True)
        mixed.rest()
    assert held >= 24
    wanted = [keys[number % 20] for number in (*range(4), *range(60))]
    assert delivered(mixed, 3) == list(zip(range(1, 65), wanted, [*bodies(4), *sent], strict=True))


@replaces
def test_as_many_messages_with_several_keys_are_taken_at_once_as_take_a_turn(
    mixed: MixedSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    sort = ServerConnection.mixed_runs
    monkeypatch.setattr(ServerConnection, "mixed_runs", lambda *arguments: taken.append(sort(*arguments)) or taken[-1])
    monkeypatch.setattr(router, "MAX_RUN_COPIES", 20)
    mixed.publish_in_turns(["a", "b"], bodies(4), PERSISTENT, "amq.fanout")
    sent = bodies(45)
    mixed.publish_in_turns(["a", "b"], sent, PERSISTENT, "amq.fanout")
    mixed.rest()
    assert set(taken) == {10}
    for queue in QUEUES:
        assert [body for _, body, *_ in mixed.messages(queue)] == [*bodies(4), *sent]
    assert set(mixed.confirmed()) == set(range(1, 50))


def test_a_queue_that_changes_messages_gets_those_with_several_keys_singly(mixed: MixedSide) -> None:
    mixed.client.call(
        "queue.declare", queue="short", arguments=TypedMap((("x-message-ttl", TypedValue(INT32, 60_000)),))
    )
    mixed.client.call("queue.bind", queue="short", exchange="amq.fanout")
    sent = bodies(40)
    mixed.publish_in_turns(["a", "b"], sent, PERSISTENT, "amq.fanout")
    mixed.rest()
    assert not runs_on(mixed.queue("short"))
    for queue in (*QUEUES, "short"):
        assert [body for _, body, *_ in mixed.messages(queue)] == sent


@replaces
def test_an_exchange_counts_messages_with_several_keys_whose_routes_it_forgets(
    mixed: MixedSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "MAX_ROUTES", 4)
    for queue in QUEUES:
        mixed.client.call("queue.bind", queue=queue, exchange="amq.topic", routing_key="#")
    keys = ["a", "b", "c", "d", "e"]
    for sent in (bodies(10), bodies(60)):
        mixed.publish_in_turns(keys, sent, PERSISTENT, "amq.topic")
        mixed.rest()
    topic = mixed.world.broker.default_host.exchanges["amq.topic"]
    assert topic.counts.messages_received == 70
    assert [binding.messages_matched for binding in topic.bindings] == [70] * len(QUEUES)


@replaces
@pytest.mark.parametrize("keys", [["a", "bad"], ["a", "b", "bad"]])
def test_messages_whose_key_takes_too_many_steps_are_refused_among_others(
    mixed: MixedSide, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed.client.call("queue.bind", queue="t", exchange="amq.topic", routing_key="#")
    mixed.publish_in_turns(keys, bodies(6), PERSISTENT, "amq.topic")
    mixed.rest()
    match = Exchange.match

    def match_all_but_one(exchange: Exchange, key: str) -> Route:
        if key == "bad":
            raise RoutingLimitError("too many steps")
        return match(exchange, key)

    monkeypatch.setattr(Exchange, "match", match_all_but_one)
    mixed.world.broker.default_host.exchanges["amq.topic"].forget_routes()
    mixed.publish_in_turns(keys, bodies(40), PERSISTENT, "amq.topic")
    mixed.rest()
    taken = [number % len(keys) != len(keys) - 1 for number in range(40)]
    assert mixed.confirmed() == dict(enumerate([True] * 6 + taken, 1))
    assert [body for _, body, *_ in mixed.messages("t")][6:] == list(compress(bodies(40), taken))


@pytest.mark.parametrize("selector", ["amqp.subject = 'a'", "JMSType = 'a'"])
def test_a_selector_of_the_key_chooses_among_messages_with_several_keys(mixed: MixedSide, selector: str) -> None:
    sent = bodies(40)
    mixed.publish_in_turns(["a", "b"], sent, TRANSIENT, "amq.fanout")
    mixed.rest()
    assert runs_on(mixed.queue("t"))
    arguments = TypedMap((("x-apache-selector", TypedValue(STR16, selector)),))
    mixed.client.method("basic.consume", 1, queue="t", consumer_tag="t", arguments=arguments)
    mixed.rest()
    assert [(key, body) for _, key, body in delivered(mixed, 1)] == [("a", body) for body in sent[::2]]


def test_sorted_messages_are_confirmed_when_all_are_on_the_disk(mixed: MixedSide) -> None:
    """A number may stand for a message on another queue than that of the message that was sent with it."""
    learn(mixed, *KEYS)
    mixed.publish_in_turns(list(KEYS), bodies(60), PERSISTENT)
    mixed.client.sync()
    assert runs_on(mixed.queue("t"))
    assert set(mixed.confirmed()) <= {6}  # the first two were taken by themselves
    mixed.rest()
    assert set(mixed.confirmed()) == set(range(1, 65))


def test_messages_without_room_are_refused_by_their_own_numbers(mixed: MixedSide) -> None:
    learn(mixed, "d", "e")
    mixed.queue("e").journal = journal = object()
    mixed.world.store.room[journal] = 5
    mixed.publish_in_turns(["d", "e"], bodies(40), PERSISTENT)
    mixed.rest()
    on_e = [int.from_bytes(body) for _, body, *_ in mixed.messages("e")]
    assert len(on_e) == 5
    refused = {number for number, is_done in mixed.confirmed().items() if not is_done}
    assert refused == {4 + number for number in range(40) if number % 2 and number not in on_e}
    assert len(mixed.messages("d")) == 20


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.topic"])
def test_messages_for_the_same_queue_by_different_keys_keep_their_order(mixed: MixedSide, exchange: str) -> None:
    for key in ("a", "b"):
        mixed.client.call("queue.bind", queue="d", exchange=exchange, routing_key=key)
    sent = bodies(50)
    mixed.send(
        [
            mixed.client.message("ab"[number % 2], body, PERSISTENT, exchange=exchange)
            for number, body in enumerate(sent)
        ]
    )
    mixed.rest()
    assert [body for _, body, *_ in mixed.messages("d")] == sent


def test_messages_of_a_transaction_are_not_sorted(mixed: MixedSide) -> None:
    sent = bodies(40)
    for number, body in enumerate(sent):
        mixed.client.publish("de"[number % 2], body, channel=2)
    mixed.rest()
    assert not mixed.messages("d")
    mixed.client.method("tx.commit", 2)
    mixed.rest()
    assert [body for _, body, *_ in mixed.messages("d")] == sent[::2]
    assert [body for _, body, *_ in mixed.messages("e")] == sent[1::2]
