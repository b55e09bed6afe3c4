"""The store's facade on a real directory: what is done is found again when it is opened the next time."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import qstore.store.log_lines as log_lines
from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link, Queue
from qstore.formats.rhm import store_file
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.disk import OsWritableFile, WritableFile
from qstore.store.environment import Environment, system_environment, tool_environment
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError, StoreError, ThresholdError
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import Level
from qstore.store.parameters import StoreParameters
from qstore.store.sync import HelperProcessSync, supervision
from tests.support.compiled import replaces
from tests.support.opened_store import GEOMETRY, PARAMETERS, Calls, OpenedStore, enqueued
from tests.support.processes import PATIENCE_SECONDS, children_of, is_running, stop_process
from tests.support.sync_files import IO_URING

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
    """The transaction is done for the other queue, and the store stays clean."""
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


# ---- the store as a whole: its start, its end, its event loop, what is under way, and what it leaves behind ----


# ---- start and end ----


def test_truncating(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    first_id = opened.store.store_id
    opened.enqueue(opened.make_queue("orders"), b"message")
    opened.store.close()
    parameters = StoreParameters(truncate=True, tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
    opened = OpenedStore(environment, path, parameters)
    assert f"Store truncated; dir={path}" in opened.texts
    assert (opened.store.topology.queues, opened.recovered()) == ({}, {})
    assert opened.store.store_id != first_id
    opened.store.close()
    assert sorted(os.listdir(path)) == ["rhm", "rhm.lock"]
    assert os.listdir(path / "rhm" / "jrnl") == []


def test_the_lines_of_a_start(environment: Environment, path: Path) -> None:
    parameters = StoreParameters(mst_log=True, num_jfiles=4, jfile_size_pgs=1, tpl_num_jfiles=4, tpl_jfile_size_pgs=1)
    opened = OpenedStore(environment, path, parameters)
    opened.enqueue(opened.make_queue("orders"), b"message")
    opened.make_queue("empty\n")
    assert opened.store.close()
    lines = [text for text in opened.texts if not text.startswith(">")]
    assert [line for line in lines if line.startswith("MST")] == [
        "MST-1001 : Created : qstore.MessageStore",
        f"MST-1002 : Store location : {path}",
        "MST-1004 : Recovery Start",
        "MST-1006 : Recovery Complete",
        "MST-1003 : Closed",
    ]
    rest = [line for line in lines if not line.startswith("MST")]
    assert rest[-3:] == [
        f"Store module initialized; dir={path}",
        'Journal "orders": Created',
        'Journal "empty\\n": Created',
    ]

    opened = OpenedStore(environment, path, parameters)
    opened.store.close()
    assert [line for line in opened.texts if line.startswith(("MST", "Recovered", "Store"))] == [
        "MST-1001 : Created : qstore.MessageStore",
        f"MST-1002 : Store location : {path}",
        "MST-1004 : Recovery Start",
        "MST-1004 : Recovery Start : orders",
        'Recovered queue "orders": 1 messages recovered; 0 messages in-doubt.',
        "MST-1005 : Recovered 1 message for queue orders",
        "MST-1006 : Recovery Complete : orders",
        "MST-1004 : Recovery Start : empty\\n",
        'Recovered queue "empty\\n": 0 messages recovered; 0 messages in-doubt.',
        "MST-1005 : Recovered 0 messages for queue empty\\n",
        "MST-1006 : Recovery Complete : empty\\n",
        "MST-1006 : Recovery Complete",
        f"Store module initialized; dir={path}",
        "MST-1003 : Closed",
    ]


def test_file_modes_do_not_depend_on_the_umask(environment: Environment, path: Path) -> None:
    """RocksDB's files have modes of their own; their directory keeps other users out."""
    before = os.umask(0)
    try:
        opened = OpenedStore(environment, path)
        opened.enqueue(opened.make_queue("orders"), b"message")
        opened.store.close({1: [1]})
    finally:
        os.umask(before)
    modes = {each.relative_to(path): stat.S_IMODE(each.stat().st_mode) for each in (path, *path.rglob("*"))}
    assert Path("rhm/DELIVERED") in modes
    for name, mode in modes.items():
        if (path / name).is_dir():
            assert mode == 0o700, name
        elif name.parent != Path("rhm/catalogue"):
            assert mode == 0o600, name


def test_delivered_messages_come_back_as_redelivered(environment: Environment, path: Path, tmp_path: Path) -> None:
    opened = OpenedStore(environment, path)
    orders, bills = opened.make_queue("orders"), opened.make_queue("bills")
    rids = [opened.enqueue(orders, b"message") for _ in range(5)]
    other = opened.enqueue(bills, b"message")
    assert opened.store.close({orders.queue_id: [rids[3], rids[1], 999], 77: [1]})

    opened = OpenedStore(environment, path)
    assert opened.store.was_clean
    found = opened.recovered()
    assert [message.rid for message in found["orders"] if message.redelivered] == [rids[1], rids[3]]
    assert [(message.rid, message.redelivered) for message in found["bills"]] == [(other, False)]
    shutil.copytree(path, tmp_path / "killed")  # as it would be found if the process was killed now
    assert opened.store.close()

    opened = OpenedStore(environment, path)
    assert not any(message.redelivered for messages in opened.recovered().values() for message in messages)
    opened.store.close()

    opened = OpenedStore(environment, tmp_path / "killed")
    assert not opened.store.was_clean
    found = opened.recovered()
    assert [len(messages) for messages in found.values()] == [5, 1]
    assert all(message.redelivered for messages in found.values() for message in messages)
    assert opened.store.close()


def test_the_clean_mark(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    assert not store_file.decode((path / "rhm" / "STORE").read_bytes()).clean_close
    assert opened.store.close()
    assert store_file.decode((path / "rhm" / "STORE").read_bytes()).clean_close
    opened = OpenedStore(environment, path, PARAMETERS)
    assert opened.store.was_clean
    assert not store_file.decode((path / "rhm" / "STORE").read_bytes()).clean_close
    assert opened.store.close()


def test_nothing_stays_open(environment: Environment, path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        opened = OpenedStore(environment, path)
        opened.recovered()
        for name in ("a", "b", "c"):
            journal = opened.make_queue(f"{name}{number}")
            opened.enqueue(journal, b"message")
            opened.flush(journal)
        opened.store.fileno()
        assert opened.store.close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_only_header_of_a_journal_without_records_is_synced_by_the_next_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process wrote it, and did not sync it: the next one goes over the empty place before it."""
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    synced: list[WritableFile] = []
    monkeypatch.setattr(OsWritableFile, "sync", lambda file: synced.append(file))
    journal.storage.sync_end(0)
    assert synced == []
    opened.enqueue(journal, b"message")
    (file,) = journal.begin()
    journal.storage.sync_end(0)
    assert synced == [file]
    monkeypatch.undo()
    journal.finish(None)
    opened.store.close()


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("qstore.store.live.message_store.write_delivered", marks=replaces),
        "qstore.store.catalogue.store_directory.StoreDirectory.mark",
    ],
)
def test_a_disk_that_is_full_at_the_end(
    environment: Environment, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """All messages are there, but the store is not clean, and says so."""
    before = len(os.listdir("/proc/self/fd"))
    opened = OpenedStore(environment, path)
    opened.enqueue(opened.make_queue("orders"), b"message")

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(what, full)
        assert not opened.store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    (text,) = [line.text for line in opened.lines if line.level is Level.CRITICAL]
    assert text.startswith("the store cannot be closed cleanly: ")
    assert text.endswith("No space left on device: 'somewhere'")
    opened = OpenedStore(environment, path)
    assert not opened.store.was_clean
    assert [(message.data, message.redelivered) for message in opened.recovered()["orders"]] == [(b"message", True)]
    assert opened.store.close()


# ---- at work ----


def assert_bounded(journal: QueueJournal, largest: int) -> None:
    """One record may be over the bound, and what fills up the last block of a flush."""
    assert journal.writer.unsynced <= PARAMETERS.write_cache_bytes + largest + 4096


def test_unsynced_bytes_are_bounded(environment: Environment, path: Path) -> None:
    """Endless appends are held back, messages and removals alike, whatever their size."""
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders", Geometry.from_pages(8, 16))
    for size in (0, 10, 100, 1000, 20_000):
        for _ in range(3000 if size < 1000 else 30):
            opened.enqueue(journal, b"x" * size)
            assert_bounded(journal, size + 256)
    for rid in list(journal.writer.live):
        opened.store.append.dequeue(journal, rid)
        assert_bounded(journal, 128)
    assert opened.store.close()


@pytest.mark.parametrize("sync", ["process", "thread", "inline"])
def test_on_an_event_loop(path: Path, sync: str) -> None:
    """The loop sleeps until the descriptor is readable, and everything comes by that way."""
    parameters = replace(PARAMETERS, sync=sync)
    opened, calls = OpenedStore(system_environment(), path, parameters), Calls()
    store = opened.store

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(store.fileno(), store.collect)

        async def waited(begin: Callable[[Callable[..., None]], object]) -> object:
            future = loop.create_future()
            begin(lambda *result: future.set_result(result))
            store.start()
            result = await asyncio.wait_for(future, PATIENCE_SECONDS)
            assert result[-1] is None
            return result[0]

        journals = []
        for name in ("one", "two"):
            journal = await waited(lambda done, name=name: store.changes.create_queue(Queue(name), GEOMETRY, done))  # type: ignore[misc]
            assert isinstance(journal, QueueJournal)
            journals.append(journal)
        for number in range(100):
            rid = opened.enqueue(journals[number % 2], b"message")
            await waited(lambda done: store.flush(journals, done))
            if number % 3 == 0:
                await waited(
                    lambda done: store.transactions.commit(
                        [enqueued(each, b"more") for each in journals],
                        [(journals[number % 2], rid)],  # noqa: B023
                        done,
                    )
                )
        await waited(lambda done: store.changes.create_exchange(Exchange("trade", True, "direct"), done))
        await waited(lambda done: store.transactions.prepare(b"xid", [enqueued(journals[0], b"in")], [], done))
        await waited(lambda done: store.transactions.commit_prepared(b"xid", done))
        await waited(lambda done: store.changes.delete_queue(journals[1], done))
        loop.remove_reader(store.fileno())

    asyncio.run(run())
    assert calls == []
    assert store.close()
    opened = OpenedStore(tool_environment(), path)
    assert opened.recovered_data()["one"].count(b"more") == 34
    opened.store.close()


def test_an_event_loop_that_has_nothing_to_do_sleeps(path: Path) -> None:
    opened, calls = OpenedStore(system_environment(), path), Calls()
    journal = opened.make_queue("orders")
    opened.flush(journal)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def woken() -> None:
            opened.store.collect()
            calls(1)

        loop.add_reader(opened.store.fileno(), woken)
        for _ in range(5):
            await asyncio.sleep(0.005)
        loop.remove_reader(opened.store.fileno())

    asyncio.run(run())
    assert len(calls) <= 1
    opened.store.close()


def open_with_helper(path: Path) -> tuple[OpenedStore, QueueJournal, int]:
    """A store with a queue, and its helper's process id."""
    children = set(children_of(os.getpid()))
    opened = OpenedStore(system_environment(), path, replace(PARAMETERS, sync="process"))
    journal = opened.make_queue("orders")
    opened.flush(journal)
    (helper,) = set(children_of(os.getpid())) - children
    return opened, journal, helper


def is_waking(opened: OpenedStore, seconds: float = 0.0) -> bool:
    """Whether the store's descriptor is readable."""
    return bool(select.select([opened.store.fileno()], [], [], seconds)[0])


def collect_until_notified(opened: OpenedStore) -> None:
    """Until a critical line is logged; what is done in the background may wake the store before."""
    while not any(line.level == Level.CRITICAL for line in opened.lines):
        assert is_waking(opened, PATIENCE_SECONDS)
        opened.store.collect()


def collect_until_quiet(opened: OpenedStore) -> None:
    """Until nothing wakes the store any more, as a dead helper would do for ever."""
    end = time.monotonic() + PATIENCE_SECONDS
    while is_waking(opened):
        assert time.monotonic() < end
        opened.store.collect()


def test_a_helper_that_dies_at_rest_is_replaced(path: Path) -> None:
    opened, journal, helper = open_with_helper(path)
    os.kill(helper, signal.SIGKILL)
    collect_until_notified(opened)
    assert opened.store.failure is None
    collect_until_quiet(opened)
    (line,) = [line for line in opened.lines if line.level == Level.CRITICAL]
    assert f"sync helper process {helper} ended (killed by signal 9)" in line.text
    opened.enqueue(journal, b"message")
    opened.flush(journal)
    opened.make_queue("another")
    assert opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    assert opened.store.was_clean
    assert opened.store.close()


def test_a_helper_that_dies_at_work_is_replaced_wherever_that_is_noticed(path: Path) -> None:
    """While others wait for the descriptor, for room, or for the store to be closed."""
    opened, journal, helper = open_with_helper(path)
    children = set(children_of(os.getpid())) - {helper}
    messages = [b"%d" % number for number in range(12)]
    for number, message in enumerate(messages):
        (helper,) = set(children_of(os.getpid())) - children
        stop_process(helper)
        opened.enqueue(journal, message)
        calls = Calls()
        opened.store.flush((journal,), calls)
        os.kill(helper, signal.SIGKILL)
        if number % 3 == 0:
            opened.wait(calls)
            assert calls == [None]
        elif number % 3 == 1:
            opened.store._flusher.drain((journal,))
    assert opened.store.close()
    opened = OpenedStore(tool_environment(), path)
    assert opened.recovered_data()["orders"] == messages
    assert opened.store.close()


def test_without_another_helper_the_store_fails_and_changes_of_topology_continue(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, journal, helper = open_with_helper(path)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    os.kill(helper, signal.SIGKILL)
    collect_until_notified(opened)
    assert "/nowhere/python: cannot start a sync helper" in str(opened.store.failure)
    assert "/nowhere/python" in opened.lines[-1].text
    assert opened.lines[-1].level == Level.CRITICAL
    calls = Calls()
    opened.enqueue(journal, b"message")
    opened.store.flush((journal,), calls)
    opened.wait(calls)
    assert isinstance(calls[0], JournalFailedError)
    opened.make_queue("another")
    collect_until_quiet(opened)
    assert not opened.store.close()
    assert sum("the store was not closed cleanly" in text for text in opened.texts) == 1
    opened = OpenedStore(tool_environment(), path)
    assert not opened.store.was_clean
    assert opened.store.close()


@pytest.mark.parametrize("is_dirty", [True, False])
def test_a_helper_that_is_stopped_does_not_hold_up_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_dirty: bool
) -> None:
    monkeypatch.setattr(supervision, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(supervision, "SLOW_SECONDS", 0.5)
    opened, journal, helper = open_with_helper(path)
    stop_process(helper)
    if is_dirty:
        opened.enqueue(journal, b"message")
    assert opened.store.close()
    assert any(f"{helper} (stopped)" in text for text in opened.texts)
    assert not is_running(helper)
    opened = OpenedStore(tool_environment(), path)
    assert opened.store.was_clean
    assert opened.recovered_data()["orders"] == [b"message"] * is_dirty
    assert opened.store.close()


def test_helpers_that_are_all_stopped_do_not_hold_up_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is killed, and its successor, which does nothing either; what was not synced is not called clean."""
    monkeypatch.setattr(supervision, "PATIENCE_SECONDS", 0.6)
    opened, journal, helper = open_with_helper(path)
    stop_process(helper)
    successor = HelperProcessSync.successor

    def stopped(driver: HelperProcessSync) -> HelperProcessSync:
        made = successor(driver)
        stop_process(made.pid)
        return made

    monkeypatch.setattr(HelperProcessSync, "successor", stopped)
    calls = Calls()
    opened.enqueue(journal, b"message")
    opened.store.flush((journal,), calls)
    assert not opened.store.close()
    assert isinstance(calls[0], JournalFailedError)
    opened = OpenedStore(tool_environment(), path)
    assert not opened.store.was_clean
    assert opened.store.close()


def test_a_helper_that_is_stopped_while_the_store_is_used_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PATIENCE_SECONDS", 0.3)
    opened, journal, helper = open_with_helper(path)
    stop_process(helper)
    calls = Calls()
    opened.enqueue(journal, b"message")
    opened.store.flush((journal,), calls)
    end = time.monotonic() + PATIENCE_SECONDS
    while not calls and time.monotonic() < end:
        opened.store.look()
        opened.store.collect()
        time.sleep(0.01)
    assert calls == [None]
    assert not is_running(helper)
    assert opened.store.close()


def test_the_tools_store_has_no_descriptor(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    assert opened.store.fileno() == -1
    opened.store.close()


def test_closing_with_everything_under_way(environment: Environment, path: Path) -> None:
    """Whatever was asked for is finished, and everybody is called, before the store is closed."""
    opened, calls = OpenedStore(environment, path), Calls()
    one, two = opened.make_queue("one"), opened.make_queue("two")
    store = opened.store
    made: list[QueueJournal | None] = []
    for number in range(20):
        rid = opened.enqueue(one, b"plain %d" % number)
        store.flush((one, two), calls)
        store.transactions.commit([enqueued(one, b"both"), enqueued(two, b"both")], [(one, rid)], calls)
        store.transactions.prepare(b"branch %d" % number, [enqueued(two, b"in doubt")], [], calls)
    store.changes.create_queue(Queue("three"), GEOMETRY, lambda journal, error: made.append(journal))
    store.changes.create_exchange(Exchange("trade", True, "direct"), lambda number, error: made.append(None))
    opened.enqueue(two, b"nobody waits")
    assert store.close()
    assert calls == [None] * 60
    assert len(made) == 2
    opened = OpenedStore(environment, path)
    found = opened.recovered()
    assert [message.data for message in found["one"]] == [b"both"] * 20
    live = [message.data for message in found["two"] if message.xid is None]
    assert live == [b"both"] * 20 + [b"nobody waits"]
    assert len(opened.store.transactions.in_doubt) == 20
    assert found["three"] == []
    assert len(opened.store.topology.exchanges) == 1
    opened.store.close()


@pytest.mark.parametrize("sync", [IO_URING, "process", "thread", "inline"])
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_closed_store_writes_nothing_more(path: Path, sync: str, *, is_idle: bool) -> None:
    """An event loop may call what it was asked to before: another process may have the store by then."""
    opened = OpenedStore(system_environment(), path, replace(PARAMETERS, sync=sync))
    store, told = opened.store, Calls()
    journals = [opened.make_queue(name) for name in ("one", "two")]
    rids = [opened.enqueue(journal, b"message") for journal in journals]
    opened.flush(*journals)
    assert store.fileno() >= 0 or sync == "inline"
    assert store.close()
    before = {file: file.read_bytes() for file in path.rglob("*.jdat")}
    for journal, rid in zip(journals, rids, strict=True):
        with pytest.raises(JournalFailedError, match="the store is closed"):
            opened.enqueue(journal, b"too late")
        with pytest.raises(JournalFailedError, match="the store is closed"):
            store.append.dequeue(journal, rid)
    store.flush(journals[:1], told, is_idle=is_idle)
    store.flush(journals, told, is_idle=is_idle)
    store.start(is_idle=is_idle)
    store.drained(is_idle=is_idle, is_urgent=True)
    store.collect()
    store.look()
    assert [type(error) for error in told] == [JournalFailedError] * 2
    assert store.fileno() == -1
    assert {file: file.read_bytes() for file in path.rglob("*.jdat")} == before
    assert opened.texts[-1:] != [str(told[0])]


def test_callbacks_that_append_again(environment: Environment, path: Path) -> None:
    """A chain of a hundred flushes, each asked for by the callback of the one before; half of it while closing."""
    opened, called = OpenedStore(environment, path), Calls()
    journal = opened.make_queue("orders")

    def again(error: Exception | None) -> None:
        called(error)
        if len(called) < 100:
            opened.enqueue(journal, b"%d" % len(called))
            opened.store.flush((journal,), again)

    again(None)
    opened.wait(called, 50)
    assert opened.store.close()
    assert called == [None] * 100
    opened = OpenedStore(environment, path)
    assert opened.recovered_data() == {"orders": [b"%d" % number for number in range(1, 100)]}
    opened.store.close()


def test_a_callback_that_raises_does_not_keep_the_store_from_closing(environment: Environment, path: Path) -> None:
    opened, calls = OpenedStore(environment, path), Calls()
    journal = opened.make_queue("orders")

    def faulty(*arguments: object) -> None:
        raise RuntimeError("a fault of the program")

    opened.store.changes.create_exchange(Exchange("one", True, "direct"), faulty)
    opened.store.changes.create_exchange(Exchange("two", True, "direct"), calls)
    with pytest.raises(RuntimeError, match="a fault of the program"):
        opened.wait(calls)
    opened.wait(calls)
    opened.enqueue(journal, b"message")
    assert opened.store.close()


def test_two_stores_in_one_process(environment: Environment, tmp_path: Path) -> None:
    stores = [OpenedStore(environment, tmp_path / name) for name in ("left", "right")]
    queues = [opened.make_queue("orders") for opened in stores]
    data = (b"one ", b"message")
    for number in range(50):
        for opened, journal in zip(stores, queues, strict=True):
            rid = opened.store.append.enqueue(journal, data, 11, data_crc(data))
            assert rid == number + 1
            if number % 10 == 0:
                opened.flush(journal)
    assert [opened.store.close() for opened in stores] == [True, True]
    assert stores[0].store.store_id != stores[1].store.store_id
    for name in ("left", "right"):
        opened = OpenedStore(environment, tmp_path / name)
        assert opened.recovered_data() == {"orders": [b"one message"] * 50}
        opened.store.close()


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (JournalFullError("whatever it says"), log_lines.journal_full("orders")),
        (ThresholdError("Journal full, it says"), log_lines.threshold_exceeded("orders")),
    ],
)
def test_refusal_is_logged_by_its_type_and_not_its_text(
    path: Path, refusal: JournalFullError, line: log_lines.LogLine
) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    heard: list[tuple[str, bool]] = []
    opened.store.on_refusal(lambda name, is_full: heard.append((name, is_full)))

    def refuse() -> None:
        raise refusal

    opened.lines.clear()
    with pytest.raises(type(refusal)):
        opened.store.append.with_room(journal, refuse)
    assert opened.lines == [line]
    assert heard == [("orders", type(refusal) is JournalFullError)]


def test_a_refusal_is_logged_once_until_something_is_taken(path: Path) -> None:
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("orders")
    rids: list[int] = []

    def fill() -> None:
        while True:
            rids.append(opened.enqueue(journal, b"x" * 1000))

    with pytest.raises(JournalFullError, match="Enqueue capacity threshold exceeded"):
        fill()
    refusals = [line for line in opened.lines if "threshold exceeded" in line.text]
    assert refusals == [log_lines.threshold_exceeded("orders")]
    for _ in range(3):
        with pytest.raises(JournalFullError):
            opened.enqueue(journal, b"x" * 1000)
    assert opened.texts.count(refusals[0].text) == 1
    for rid in rids[:20]:
        opened.store.append.dequeue(journal, rid)
    with pytest.raises(JournalFullError):
        fill()
    assert opened.texts.count(refusals[0].text) == 2
    opened.store.close()


# ---- a directory that is moved while the store is open ----


def _content(directory: Path) -> dict[str, bytes]:
    files = (each for each in directory.rglob("*") if each.is_file())
    return {str(each.relative_to(directory)): each.read_bytes() for each in files}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("part", ["", "rhm", "rhm/catalogue", "rhm/jrnl", "rhm/tpl"])
@pytest.mark.parametrize("kind", ["nothing", "empty directory", "file", "copy"])
def test_what_replaces_a_directory_of_an_open_store_is_not_changed(
    environment: Environment, path: Path, kind: str, part: str
) -> None:
    opened = OpenedStore(environment, path)
    for name in ("orders", "invoices", "letters", "bills", "notes", "replies"):  # with more, journals are in stock
        journal = opened.make_queue(name)
    place, moved = path / part, path.with_name("moved")
    place.rename(moved)
    if kind == "empty directory":
        place.mkdir()
    elif kind == "file":
        place.write_text("a file")
    elif kind == "copy":
        shutil.copytree(moved, place)
    before = _content(place)
    calls = Calls()
    opened.store.changes.create_queue(Queue("later"), GEOMETRY, calls)
    opened.store.changes.delete_queue(journal, calls)
    opened.wait(calls, 2)
    assert all("was moved, replaced or removed" in str(error) for _, error in calls)
    opened.store.look()
    (line,) = (each for each in opened.lines if "while the store is open" in each.text)
    assert line.level is Level.CRITICAL
    assert str(path) in line.text
    assert not opened.store.close()
    assert opened.texts.count(line.text) == 1
    assert _content(place) == before
    assert place.is_dir() == (kind in ("empty directory", "copy"))
    _remove(place)
    moved.rename(place)
    path.rename(path.with_name("again"))  # in this process, RocksDB holds its lock of the old path
    again = OpenedStore(environment, path.with_name("again"))
    assert not again.store.was_clean
    assert len(again.store.recovered_queues) == 6
    assert again.store.close()


def test_a_directory_that_was_put_back_is_closed_cleanly(environment: Environment, path: Path) -> None:
    opened = OpenedStore(environment, path)
    path.rename(path.with_name("moved"))
    opened.store.look()
    path.with_name("moved").rename(path)
    assert opened.store.close()
    again = OpenedStore(environment, path)
    assert again.store.was_clean
    assert again.store.close()


@pytest.mark.parametrize("part", ["", "rhm", "rhm/jrnl"])
def test_a_journal_that_enters_its_next_file_does_not_write_to_another_store(
    environment: Environment, path: Path, part: str
) -> None:
    opened = OpenedStore(environment, path)
    journal = opened.make_queue("orders")
    opened.enqueue(journal, b"message")
    opened.flush(journal)
    place = path / part
    place.rename(path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), place)
    before = _content(place)
    flushed = Calls()
    for number in range(1, 12):
        opened.enqueue(journal, bytes(GEOMETRY.data_size // 5))
        opened.store.flush((journal,), flushed)
        opened.wait(flushed, number)
        if flushed[-1] is not None:
            break
    assert flushed[0] is None  # in the file that is open
    assert "was moved, replaced or removed" in str(flushed[-1])
    assert not opened.store.close()
    assert _content(place) == before
