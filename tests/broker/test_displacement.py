"""Ring queues, last value queues, and queues that destroy themselves: which messages leave when others arrive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.wired_broker import PlainMessage
from tests.support.fake_store import Model


def ring(model: Model, size: int, policy: str = "ring", **more: Any) -> Queue:
    arguments = typed_map({"qpid.max_count": size, "qpid.policy_type": policy, **more})
    return model.queue("q", durable=True, arguments=arguments)


def last_values(model: Model, **arguments: Any) -> Queue:
    return model.queue("q", durable=True, arguments=typed_map(arguments or {"qpid.last_value_queue_key": "key"}))


def keyed(model: Model, body: bytes, key: int | None, header: str = "key") -> PlainMessage:
    message = model.message("q", body)
    if key is not None:
        message.numbers = {header: key}
    return message


def put(model: Model, body: bytes, key: int | None = None, header: str = "key") -> None:
    model.broker.router.publish(keyed(model, body, key, header), model.broker.default_host.exchanges[""])


def bodies(queue: Queue) -> list[bytes]:
    return [bytes(entry.message.body) for entry in queue.entries()]


def stored(queue: Queue) -> list[bytes]:
    return [data.partition(b"\0")[2] for data in queue.journal.live.values()]


# ---- ring ----


@pytest.mark.parametrize("policy", ["ring", "ring_strict", "ring-strict"])
def test_the_oldest_messages_make_room(policy: str) -> None:
    model = Model()
    queue = ring(model, 3, policy)
    model.publish("q", b"1", b"2", b"3", b"4", b"5")
    assert bodies(queue) == stored(queue) == [b"3", b"4", b"5"]
    assert queue.totals.discarded == 2
    assert len(model.store.waiting) == 0  # all of it is in the flush to come
    model.sync()
    assert queue.journal.synced >= set(queue.journal.live)


def test_a_ring_by_bytes() -> None:
    model = Model()
    queue = model.queue("q", arguments=typed_map({"qpid.max_size": 10, "qpid.policy_type": "ring"}))
    model.publish("q", b"1234", b"123456", b"1")
    assert bodies(queue) == [b"123456", b"1"]
    with pytest.raises(ResourceLimitExceededError, match='larger than the maximum depth of queue "q": 11 of 10 bytes'):
        model.publish("q", b"12345678901")
    assert bodies(queue) == [b"123456", b"1"]
    assert queue.refused == 1


def test_ring_discards_a_message_held_by_a_consumer() -> None:
    model = Model()
    queue = ring(model, 2)
    model.publish("q", b"1", b"2")
    consumer = model.consumer(queue, 1)
    model.sync()
    model.publish("q", b"3")
    model.sync()
    assert (bodies(queue), consumer.bodies) == ([b"2", b"3"], [b"1"])
    (held,) = consumer.entries
    queue.release(held, is_redelivered=True)
    assert bodies(queue) == [b"2", b"3"]
    assert queue.dequeue(held)  # completed once its removal is on the disk
    assert queue.acquired_count == 0


def test_strict_ring_keeps_a_message_held_by_a_consumer() -> None:
    model = Model()
    queue = ring(model, 2, "ring_strict")
    model.publish("q", b"1", b"2")
    consumer = model.consumer(queue, 1)
    model.sync()
    with pytest.raises(ResourceLimitExceededError, match="a consumer holds its oldest message"):
        model.publish("q", b"3")
    assert bodies(queue) == [b"1", b"2"]
    queue.release(consumer.entries[0], is_redelivered=True)
    model.publish("q", b"3")
    assert bodies(queue) == [b"2", b"3"]


def test_a_transaction_fills_a_ring_at_commit() -> None:
    model = Model()
    queue = ring(model, 2)
    model.publish("q", b"1", b"2")
    transaction = model.broker.begin_transaction(0)
    for body in (b"3", b"4", b"5"):
        transaction.publish(model.message("q", body), model.broker.default_host.exchanges[""])
    results: list[object] = []
    transaction.commit(results.append)
    assert bodies(queue) == [b"1", b"2", b"3", b"4", b"5"]  # until the commit is on the disk nothing is lost
    model.sync()
    assert results == [None]
    assert bodies(queue) == stored(queue) == [b"4", b"5"]


# ---- ring, with an alternate exchange ----


def with_alternate(model: Model, queue: Queue, *destinations: Queue) -> None:
    """The alternate exchange of a queue, which leads to others."""
    exchange = model.broker.default_host.exchanges["amq.fanout"]
    for destination in destinations:
        exchange.bind(destination, "")
    queue.alternate = exchange


def test_displaced_message_goes_to_the_alternate_exchange() -> None:
    model = Model()
    queue, others = ring(model, 2), model.queue("others", durable=True)
    with_alternate(model, queue, others)
    model.publish("q", b"1", b"2", b"3", b"4")
    assert bodies(others) == [b"1", b"2"]
    assert bodies(queue) == stored(queue) == [b"1", b"2", b"3", b"4"]  # they leave once they are stored there
    model.sync()
    assert bodies(queue) == [b"3", b"4"]
    model.sync()
    assert (stored(queue), stored(others)) == ([b"3", b"4"], [b"1", b"2"])
    assert (queue.totals.discarded, queue.acquired_count) == (2, 0)
    model.publish("q", b"5")
    model.sync()
    assert (bodies(queue), bodies(others)) == ([b"4", b"5"], [b"1", b"2", b"3"])


def test_transient_displaced_message_is_moved_at_once() -> None:
    model = Model()
    queue, others = ring(model, 2), model.queue("others")
    with_alternate(model, queue, others)
    model.publish("q", b"1", b"2", b"3", persistent=False)
    assert (bodies(queue), bodies(others)) == ([b"2", b"3"], [b"1"])


def test_an_alternate_exchange_without_room_or_queues() -> None:
    model = Model()
    queue, others = ring(model, 2), model.queue("others", arguments=typed_map({"qpid.max_count": 1}))
    with_alternate(model, queue, others)
    model.publish("q", b"1", b"2", b"3", b"4")
    model.sync()
    assert (bodies(queue), bodies(others)) == ([b"3", b"4"], [b"1"])  # the second was discarded
    model.broker.default_host.exchanges["amq.fanout"].unbind(others, "")
    model.publish("q", b"5")
    model.sync()
    assert (bodies(queue), bodies(others)) == ([b"4", b"5"], [b"1"])
    assert queue.totals.discarded == 3


def test_alternate_exchanges_in_a_circle_end() -> None:
    model = Model()
    queue = ring(model, 2)
    other = model.queue("other", durable=True, arguments=typed_map({"qpid.max_count": 2, "qpid.policy_type": "ring"}))
    with_alternate(model, queue, queue, other)
    other.alternate = queue.alternate
    for number in range(20):
        model.publish("q", b"%d" % number)
        model.sync()
        assert (queue.message_count, other.message_count) == (min(number + 1, 2), min(max(number - 1, 0), 2))


def test_message_moved_by_a_ring_can_still_be_accepted() -> None:
    model = Model()
    queue, others = ring(model, 2), model.queue("others", durable=True)
    with_alternate(model, queue, others)
    model.publish("q", b"1", b"2")
    consumer = model.consumer(queue, 1)
    model.sync()
    model.publish("q", b"3")
    assert queue.dequeue(consumer.entries[0])
    model.sync()
    model.sync()
    assert (bodies(queue), stored(queue), bodies(others)) == ([b"2", b"3"], [b"2", b"3"], [b"1"])


# ---- last value ----


def test_the_book_s_example() -> None:
    model = Model()
    queue = last_values(model)
    for number, key in enumerate([1, 2, 3, 4, 2, 1]):
        put(model, b"%d" % number, key)
    assert bodies(queue) == stored(queue) == [b"2", b"3", b"4", b"5"]  # keys 3 4 2 1
    assert queue.totals.replaced == 2


def test_messages_without_the_key_stay() -> None:
    model = Model()
    queue = last_values(model)
    put(model, b"1")
    put(model, b"2", 7)
    put(model, b"3")
    put(model, b"4", 7)
    assert bodies(queue) == [b"1", b"3", b"4"]


def test_acquired_value_is_replaced_on_release() -> None:
    model = Model()
    queue = last_values(model)
    put(model, b"1", 7)
    consumer = model.consumer(queue, 1)
    model.sync()
    put(model, b"2", 7)
    assert bodies(queue) == [b"1", b"2"]
    queue.release(consumer.entries[0], is_redelivered=True)
    assert bodies(queue) == [b"2"]
    model.sync()
    assert stored(queue) == [b"2"]


def test_released_value_without_a_newer_one_stays() -> None:
    model = Model()
    queue = last_values(model)
    put(model, b"1", 7)
    consumer = model.consumer(queue, 1)
    model.sync()
    queue.release(consumer.entries[0], is_redelivered=True)
    assert bodies(queue) == [b"1"]
    put(model, b"2", 7)
    assert bodies(queue) == [b"2"]


def test_accepted_value_is_not_replaced() -> None:
    model = Model()
    queue = last_values(model)
    put(model, b"1", 7)
    consumer = model.consumer(queue, 1)
    model.sync()
    queue.dequeue(consumer.entries[0])
    put(model, b"2", 7)
    assert bodies(queue) == [b"2"]
    assert queue.totals.replaced == 0


@pytest.mark.parametrize(
    ("argument", "left"), [("qpid.last_value_queue", [b"1", b"3"]), ("qpid.last_value_queue_no_browse", [b"3"])]
)
def test_the_deprecated_arguments(argument: str, left: list[bytes]) -> None:
    model = Model()
    queue = last_values(model, **{argument: 1})
    put(model, b"1", 7, "qpid.LVQ_key")
    browser = model.consumer(queue, acquires=False)
    model.sync()
    assert browser.bodies == [b"1"]
    browser.credit = 0
    for body in (b"2", b"3"):
        put(model, body, 7, "qpid.LVQ_key")
    assert bodies(queue) == left


def test_a_browser_sees_each_last_value() -> None:
    model = Model()
    queue = last_values(model)
    browser = model.consumer(queue, acquires=False)
    for number, key in enumerate([1, 2, 1, 1]):
        put(model, b"%d" % number, key)
        model.sync()
    assert browser.bodies == [b"0", b"1", b"2", b"3"]
    assert bodies(queue) == [b"1", b"3"]


def test_a_last_value_ring() -> None:
    model = Model()
    queue = ring(model, 2, **{"qpid.last_value_queue_key": "key"})
    for number, key in enumerate([1, 2, 1, 3]):
        put(model, b"%d" % number, key)
    assert bodies(queue) == stored(queue) == [b"2", b"3"]


@given(
    st.lists(
        st.one_of(st.integers(0, 3), st.sampled_from(["take", "release", "accept", "purge", "commit"])), max_size=60
    )
)
def test_last_values_against_a_plain_model(steps: list[Any]) -> None:
    """Available messages: at most one of each key, the newest of those that are there."""
    model = Model()
    queue = last_values(model)
    held: list[Entry] = []
    key_of: dict[bytes, int] = {}
    for number, step in enumerate(steps):
        body = b"%d" % number
        if isinstance(step, int):
            key_of[body] = step
            put(model, body, step)
        elif step == "commit":
            key_of[body] = 0
            transaction = model.broker.begin_transaction(0)
            transaction.publish(keyed(model, body, 0), model.broker.default_host.exchanges[""])
            model.broker.end_transaction(transaction)
            transaction.commit(lambda _error: None)
            model.sync()
        elif step == "take":
            consumer = model.consumer(queue, 1)
            model.sync()
            held += consumer.entries
            queue.remove_consumer(consumer)
        elif step == "purge":
            queue.purge(1)
        elif held and step == "release":
            queue.release(held.pop(), is_redelivered=True)
        elif held:
            queue.dequeue(held.pop(0))
        model.sync()
        available = [bytes(entry.message.body) for entry in queue.available()]
        keys = [key_of[each] for each in available]
        assert len(set(keys)) == len(keys)
        newest = {key_of[bytes(entry.message.body)]: entry for entry in queue.entries()}
        assert all(newest[key_of[each]].message.body == each for each in available)
        assert sorted(stored(queue)) == sorted(bodies(queue))


# ---- self-destruct ----


def test_a_queue_that_exceeds_its_limit_is_deleted_once() -> None:
    model = Model()
    asked: list[str] = []
    model.broker.default_host.self_destruct = asked.append
    queue = ring(model, 2, "self-destruct")
    model.publish("q", b"1", b"2")
    assert asked == []
    model.publish("q", b"3", b"4")
    assert asked == ["q"]
    assert bodies(queue) == [b"1", b"2", b"3", b"4"]


# ---- numbers ----


def numbers_of(queue: Queue, header: str) -> list[object]:
    found = [entry.message.headers().get(header) for entry in queue.entries()]
    return [None if typed is None else typed.value for typed in found]


@pytest.mark.parametrize(
    ("arguments", "header"),
    [({"qpid.queue_msg_sequence": "n"}, "n"), ({"qpid.insert_sequence_numbers": 1}, "qpid.msg_sequence")],
)
def test_numbers_on_the_queue_have_gaps_where_messages_were_discarded(arguments: dict[str, Any], header: str) -> None:
    model = Model()
    queue = ring(model, 2, **arguments)
    other = model.queue("other", durable=True)
    for each in (queue, other):
        model.broker.default_host.exchanges["amq.fanout"].add(Binding(each, "", EMPTY_MAP))
    model.publish("", b"1", b"2", b"3", exchange="amq.fanout")
    assert numbers_of(queue, header) == [2, 3]
    assert numbers_of(other, header) == [None] * 3
    assert stored(queue) == [b"2", b"3"]


def test_a_queue_that_was_not_deleted_before_a_crash_goes_with_the_next_message() -> None:
    model = Model()
    asked: list[str] = []
    queue = ring(model, 1, "self-destruct")
    for number in (1, 2):
        queue.enter(model.message("q", b"%d" % number), number)
    model.broker.default_host.self_destruct = asked.append
    queue.end_recovery()
    assert asked == []
    model.publish("q", b"3")
    assert asked == ["q"]
