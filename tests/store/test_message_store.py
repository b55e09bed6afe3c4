"""The store's facade on a real directory: what is done is found again when it is opened the next time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.environment import Environment
from qstore.store.errors import JournalError, JournalFullError, StoreError
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.live.queue_journal import QueueJournal
from tests.support.opened_store import Calls, OpenedStore, enqueued

ORDERS = Queue("orders", owner="somebody")
EXCHANGE = Exchange("trade", True, "topic")
LINK = Link("link.v2", "far", "far.example", 5672, "tcp", True, "PLAIN", "guest", "guest")
BRIDGE = Bridge(
    "bridge.v2", "over", "far", None, None, True, "trade", "trade", "#", False, False, "tag", "", False, 0, 100
)
DOMAIN = GeneralObject("domain", "far away")


# ---- topology ----


def test_topology_is_found_again(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    journal = opened.make_queue("orders")
    changes = opened.store.changes
    changes.create_exchange(EXCHANGE, calls)
    changes.create_exchange(Exchange("audit", True, "fanout"), calls)
    opened.wait(calls, 2)
    (trade, _), (audit, _) = calls
    for exchange, key in ((trade, "a.*"), (trade, "b.*"), (audit, "")):
        changes.create_binding(exchange, Binding(journal.queue_id, "orders", key), calls)
    for record in (LINK, BRIDGE, DOMAIN):
        changes.create_general(record, calls)
    opened.wait(calls, 8)
    assert [error for _, error in calls] == [None] * 8
    assert opened.store.close()

    opened = OpenedStore(environment, path)
    topology = opened.store.topology
    assert [queue.record.name for queue in topology.queues.values()] == ["orders"]
    assert topology.exchanges == {trade: EXCHANGE, audit: Exchange("audit", True, "fanout")}
    found = sorted((binding.exchange.name, binding.record.key) for binding in topology.bindings)
    assert found == [("audit", ""), ("trade", "a.*"), ("trade", "b.*")]
    assert sorted(map(str, topology.general.values())) == sorted(map(str, (LINK, BRIDGE, DOMAIN)))
    assert (topology.damage, topology.notices) == ([], [])
    opened.store.close()


def test_deletion_removes_bindings_too(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    changes = opened.store.changes
    queues = [opened.make_queue(name) for name in ("one", "two", "three")]
    for name in ("first", "second"):
        changes.create_exchange(Exchange(name, True, "direct"), calls)
    opened.wait(calls, 2)
    first, second = (exchange for exchange, _ in calls)
    for exchange in (first, second):
        for queue in queues:
            changes.create_binding(exchange, Binding(queue.queue_id, queue.name, queue.name), calls)
    changes.create_general(LINK, calls)
    changes.create_general(DOMAIN, calls)
    opened.wait(calls, 10)
    of_three, link = calls[7][0], calls[8][0]
    del calls[:]
    for number in range(5):
        opened.enqueue(queues[0], b"m%d" % number)
    changes.delete_queue(queues[0], calls)
    changes.delete_exchange(first, calls)
    changes.delete_binding(of_three, calls)
    changes.delete_general(link, calls)
    opened.wait(calls, 4)
    assert calls == [(None, None)] * 4
    opened.store._background.wait()
    assert sorted(os.listdir(path / "rhm" / "jrnl")) == ["2", "3"]
    assert sorted(opened.store.journals) == [2, 3]
    assert opened.store.close()

    opened = OpenedStore(environment, path)
    topology = opened.store.topology
    assert sorted(queue.record.name for queue in topology.queues.values()) == ["three", "two"]
    assert [exchange.name for exchange in topology.exchanges.values()] == ["second"]
    assert [(binding.exchange.name, binding.record.key) for binding in topology.bindings] == [("second", "two")]
    assert list(topology.general.values()) == [DOMAIN]
    assert opened.make_queue("one").queue_id == 4  # a number is never used again
    opened.store.close()


def test_changes_that_cannot_be_made(environment: Environment, path: Path) -> None:
    """An error each, one line that says what was asked; and the next change is made."""
    opened, calls = OpenedStore(environment, path), Calls()
    changes = opened.store.changes
    changes.delete_exchange(7, calls)
    changes.create_binding(7, Binding(9, "nobody's", "key"), calls)
    changes.delete_general(7, calls)
    changes.create_exchange(EXCHANGE, calls)
    opened.wait(calls, 4)
    errors = [error for _, error in calls]
    assert [type(error) for error in errors] == [StoreError, StoreError, StoreError, type(None)]
    assert str(errors[0]) == "exchange cannot be deleted: cannot be deleted: exchange 7 does not exist"
    assert str(errors[1]).startswith('binding of queue "nobody\'s" cannot be created: ')
    assert not any("\n" in str(error) for error in errors)
    assert opened.store.close()


# ---- messages ----


def test_messages_are_found_again_in_order(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    orders, bills = opened.make_queue("orders"), opened.make_queue("bills")
    rids = [opened.enqueue(orders, b"order %d" % number) for number in range(100)]
    for rid in rids[10:90]:
        opened.store.append.dequeue(orders, rid)
    opened.enqueue(bills, b"")
    big = os.urandom(40_000)
    opened.store.append.enqueue(bills, (big[:7], b"", big[7:]), len(big), data_crc((big,)))
    opened.flush(orders, bills)
    assert (orders.depth, bills.depth) == (20, 2)
    assert (orders.enqueues, orders.dequeues) == (100, 80)
    assert opened.store.close()

    opened = OpenedStore(environment, path)
    found = opened.recovered()
    assert [message.rid for message in found["orders"]] == rids[:10] + rids[90:]
    assert [message.data for message in found["orders"]] == [b"order %d" % n for n in (*range(10), *range(90, 100))]
    assert [message.data for message in found["bills"]] == [b"", big]
    assert {message.state for message in found["orders"]} == {LIVE}
    assert opened.enqueue(opened.journal("orders"), b"new") > max(rids)
    opened.store.close()


def test_laps_of_a_ring(environment: Environment, path: Path) -> None:
    """Twenty times what the journal holds, with one message that stays."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    first = opened.enqueue(journal, b"the first")
    last = [opened.enqueue(journal, bytes([number]) * 1000) for number in range(50)]
    for number in range(5000):
        opened.store.append.dequeue(journal, last.pop(0))
        last.append(opened.enqueue(journal, bytes([number % 256]) * 1000))
        if number % 10 == 0:
            opened.store.start()
            opened.store.collect()
    opened.flush(journal)
    assert journal.writer.compactor.copied > 0
    assert journal.load(first) == b"the first"
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    found = opened.recovered()["orders"]
    assert [message.rid for message in found] == [first, *last]
    assert [message.data for message in found[-2:]] == [bytes([n % 256]) * 1000 for n in (4998, 4999)]
    opened.store.close()


def test_purging(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    journal = opened.make_queue("orders")
    rids = [opened.enqueue(journal, b"message") for _ in range(300)]
    opened.store.purge(journal, rids[:299], calls)
    opened.wait(calls)
    assert (calls, journal.depth) == ([None], 1)
    opened.store.close()
    opened = OpenedStore(environment, path)
    assert [message.rid for message in opened.recovered()["orders"]] == rids[299:]
    opened.store.close()


def test_loading_a_message(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    rids = [opened.enqueue(journal, bytes([number]) * number * 50) for number in range(60)]
    assert journal.load(rids[-1]) == bytes([59]) * 59 * 50  # it is not on the disk yet
    opened.flush(journal)
    for number, rid in reversed(list(enumerate(rids))):
        assert journal.load(rid) == bytes([number]) * number * 50
    opened.store.append.dequeue(journal, rids[5])
    with pytest.raises(JournalError, match=f'^queue "orders": record 0x{rids[5]:x} does not exist$'):
        journal.load(rids[5])
    opened.store.close()


def test_dequeue_of_a_missing_record_is_refused(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    rid = opened.enqueue(journal, b"message")
    opened.store.append.dequeue(journal, rid)
    for target in (rid, 12345):
        with pytest.raises(
            JournalError, match=f'^queue "orders": record 0x{target:x} does not exist and cannot be dequeued$'
        ):
            opened.store.append.dequeue(journal, target)
    assert opened.store.close()


def fill(opened: OpenedStore, journals: Sequence[QueueJournal], data: bytes) -> list[list[int]]:
    """Send messages to all of the queues until one is refused. Returns the record ids of each message."""
    sent: list[list[int]] = []

    def send_on() -> None:
        while True:
            sent.append(opened.store.append.enqueue_all(journals, (data,), len(data), data_crc((data,))))

    with pytest.raises(JournalFullError, match=f'^Enqueue capacity threshold exceeded on queue "{journals[-1].name}"'):
        send_on()
    return sent


def test_a_message_to_several_queues_or_to_none(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    wide, narrow = opened.make_queue("wide", Geometry.from_pages(8, 4)), opened.make_queue("narrow")
    data = b"x" * 20_000
    sent = fill(opened, (wide, narrow), data)
    assert len(sent) > 5
    assert len({rid for rids in sent for rid in rids}) == 2 * len(sent)
    assert (wide.depth, narrow.depth) == (len(sent), len(sent))
    opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"wide": [data] * len(sent), "narrow": [data] * len(sent)}
    opened.store.close()


def test_the_threshold_and_draining(environment: Environment, path: Path) -> None:
    """Full at 80 %, every message can be dequeued, and then as many fit again."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    counts = []
    for _ in range(4):
        sent = fill(opened, (journal,), b"x" * 900)
        for (rid,) in sent:
            opened.store.append.dequeue(journal, rid)
        opened.flush(journal)
        assert journal.depth == 0
        counts.append(len(sent))
    data_bytes = 4 * 65536
    assert all(0.6 * data_bytes < count * (1024 + 128) <= 0.8 * data_bytes for count in counts), counts
    assert opened.store.close()


# ---- transactions ----


def test_transactions_over_one_queue_and_over_three(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    queues = [opened.make_queue(name) for name in ("one", "two", "three")]
    old = [opened.enqueue(queue, b"old") for queue in queues]
    for touched in (queues[:1], queues):
        puts = [enqueued(queue, b"of %d" % len(touched)) for queue in touched]
        rids = opened.store.transactions.commit(puts, [], calls)
        assert len(rids) == len(touched)
    opened.store.transactions.commit([], [(queue, rid) for queue, rid in zip(queues, old, strict=True)], calls)
    opened.store.transactions.commit([], [], calls)
    opened.wait(calls, 4)
    assert calls == [None] * 4
    assert opened.store.transactions.in_doubt == []
    opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"one": [b"of 1", b"of 3"], "two": [b"of 3"], "three": [b"of 3"]}
    opened.store.close()


def test_a_transaction_that_cannot_be_done_writes_nothing(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    rid = opened.enqueue(one, b"message")
    commit = opened.store.transactions.commit
    with pytest.raises(JournalError, match="record 0x999 does not exist and cannot be dequeued"):
        commit([enqueued(one, b"new"), enqueued(two, b"new")], [(one, rid), (two, 0x999)], calls)
    with pytest.raises(JournalFullError, match='Enqueue capacity threshold exceeded on queue "two"'):
        commit([enqueued(one, b"new"), *[enqueued(two, b"x" * 9000)] * 40], [(one, rid)], calls)
    assert (one.depth, two.depth, one.open_transactions, two.open_transactions) == (1, 0, 0, 0)
    assert calls == []
    opened.store.append.dequeue(one, rid)  # nothing holds it
    assert opened.store.close()


def test_branches(environment: Environment, path: Path) -> None:
    """Prepared, left open over a restart, then one is committed and the other aborted."""
    opened, calls = OpenedStore(environment, path), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    old = [opened.enqueue(one, b"old %d" % number) for number in range(3)]
    for number, xid in enumerate((b"first", b"second")):
        puts = [enqueued(one, xid), enqueued(two, xid)]
        assert len(opened.store.transactions.prepare(xid, puts, [(one, old[number])], calls)) == 2
    opened.wait(calls, 2)
    assert calls == [None, None]
    assert sorted(opened.store.transactions.in_doubt) == [b"first", b"second"]
    with pytest.raises(StoreError, match=f"^transaction {b'first'.hex()} is already prepared$"):
        opened.store.transactions.prepare(b"first", [], [], calls)
    with pytest.raises(JournalError, match="is locked by an open transaction"):
        opened.store.append.dequeue(one, old[0])
    assert opened.store.close()

    opened, calls = OpenedStore(environment, path), Calls()
    transactions = opened.store.transactions
    assert sorted(transactions.in_doubt) == [b"first", b"second"]
    found = opened.recovered()
    assert [(message.data, message.state, message.xid) for message in found["one"]] == [
        (b"old 0", LOCKED, b"first"),
        (b"old 1", LOCKED, b"second"),
        (b"old 2", LIVE, None),
        (b"first", PENDING, b"first"),
        (b"second", PENDING, b"second"),
    ]
    transactions.commit_prepared(b"first", calls)
    transactions.abort_prepared(b"second", calls)
    opened.wait(calls, 2)
    assert calls == [None, None]
    assert transactions.in_doubt == []
    for decide in (transactions.commit_prepared, transactions.abort_prepared):
        for xid in (b"first", b"never"):
            with pytest.raises(StoreError, match=f"^transaction {xid.hex()} is not prepared$"):
                decide(xid, calls)
    assert opened.store.close()

    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"one": [b"old 1", b"old 2", b"first"], "two": [b"first"]}
    assert opened.store.transactions.in_doubt == []
    opened.store.close()


def test_commit_callback_may_dequeue_at_once(environment: Environment, path: Path) -> None:
    """What a transaction brought is on its queues when its callback is called, and what it did not take is free."""
    opened, calls = OpenedStore(environment, path), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    transactions, rids = opened.store.transactions, list[int]()

    def committed(error: Exception | None) -> None:
        assert error is None
        for journal, rid in zip((one, two), rids, strict=True):
            opened.store.append.dequeue(journal, rid)
        opened.store.flush((one, two), calls)

    rids += transactions.commit([enqueued(one, b"new"), enqueued(two, b"new")], [], committed)
    opened.wait(calls)
    del rids[:]
    rids += transactions.prepare(b"xid", [enqueued(one, b"new"), enqueued(two, b"new")], [], calls)
    opened.wait(calls, 2)
    transactions.commit_prepared(b"xid", committed)
    opened.wait(calls, 3)
    assert (one.depth, two.depth) == (0, 0)
    assert opened.store.close()


def test_a_queue_that_is_deleted_with_a_transaction_under_way(environment: Environment, path: Path) -> None:
    """The transaction is done for the other queue, and the store is as clean as ever."""
    opened, calls, deleted = OpenedStore(environment, path), Calls(), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    opened.store.transactions.commit([enqueued(one, b"local"), enqueued(two, b"local")], [], calls)
    opened.store.transactions.prepare(b"xid", [enqueued(one, b"branch"), enqueued(two, b"branch")], [], calls)
    opened.store.changes.delete_queue(two, deleted)
    opened.wait(deleted)
    opened.wait(calls, 2)
    assert deleted == [(None, None)]
    opened.store.transactions.commit_prepared(b"xid", calls)
    opened.wait(calls, 3)
    assert calls == [None] * 3
    assert opened.store.close()
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"one": [b"local", b"branch"]}
    assert opened.store.transactions.in_doubt == []
    assert opened.store.close()
