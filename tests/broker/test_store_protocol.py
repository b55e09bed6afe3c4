"""The store satisfies the broker's Protocol: mypy checks this file, whose tests use nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import qstore.broker.model.store_protocol as protocol
from qstore.broker.model.store_protocol import Store, StoreLine, StoreModule
from qstore.formats.broker_records.topology import Binding, Exchange, Queue
from qstore.formats.catalogue import BindingEntry
from qstore.store.journal import recovery
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.module import Module, PluggedStore
from qstore.store.start.started import StartedQueue
from tests.support.bodies import joined


def as_store(store: PluggedStore) -> Store:
    """Mypy holds the store against the protocol."""
    return store


def as_journal(journal: QueueJournal) -> protocol.Journal:
    return journal


def as_recovered(queue: StartedQueue) -> protocol.RecoveredQueue:
    return queue


def as_module(module: Module) -> StoreModule:
    return module


class Log:
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: StoreLine) -> None:
        self.lines.append(f"{line.level} {line.text}")


class Waiting:
    """Callbacks of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: list[object] = []

    def done(self, error: Exception | None) -> None:
        self._results.append(error)

    def changed(self, made: object | None, error: Exception | None) -> None:
        self._results.append(made if error is None else error)

    def wait(self) -> object:
        while not self._results:
            self._store.collect(1.0)
        return self._results.pop()


def opened(path: Path, log: Log | None = None) -> Store:
    return as_module(Module()).open(
        {"auto-expand": "no", "num-jfiles": "4", "jfile-size-pgs": "1"}, str(path), "0", log or Log()
    )


def enqueue(store: Store, journal: protocol.Journal, data: bytes) -> int:
    return store.append.enqueue(journal, (data,), len(data), store.crc((data,)))


def make_queue(store: Store, name: str) -> protocol.Journal:
    waiting = Waiting(store)
    store.changes.create_queue(Queue(name), store.queue_geometry({}), waiting.changed)
    journal = waiting.wait()
    assert isinstance(journal, QueueJournal)
    return journal


def test_stored_queues_and_messages_come_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert (list(store.recovered_queues), dict(store.topology.exchanges)) == ([], {})
    store.end_recovery()
    waiting = Waiting(store)
    journal = make_queue(store, "a")
    store.changes.create_exchange(Exchange("e", durable=True, type="direct"), waiting.changed)
    exchange = waiting.wait()
    assert isinstance(exchange, int)
    store.changes.create_binding(exchange, Binding(journal.queue_id, "a", "key"), waiting.changed)
    assert isinstance(waiting.wait(), BindingEntry)
    kept = [enqueue(store, journal, data) for data in (b"one", b"two", b"three")]
    store.append.dequeue(journal, kept[1])
    store.when_synced((journal,), waiting.done)
    store.drained()
    assert waiting.wait() is None
    assert store.close({journal.queue_id: [kept[2]]})

    store = opened(tmp_path)
    assert store.was_clean
    (queue,) = store.recovered_queues
    found = [(each.rid, each.data, each.state, each.xid, each.redelivered) for each in store.messages(queue)]
    assert found == [
        (kept[0], b"one", protocol.LIVE, None, False),
        (kept[2], b"three", protocol.LIVE, None, True),
    ]
    (binding,) = store.topology.bindings
    assert (binding.exchange.name, binding.record.key) == ("e", "key")
    store.end_recovery()
    store.close()


def test_messages_of_a_run_are_there_one_by_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.end_recovery()
    journal = make_queue(store, "a")
    bodies, rids = joined([b"%03d" % number for number in range(100)]), list[int]()
    while len(rids) < 100:
        rid, several = store.append.enqueue_run(journal, b"head", None, bodies, len(rids), 100 - len(rids))
        rids += range(rid, rid + several)
    store.put_away(journal, rids)
    store.append.dequeue(journal, rids[50])
    removed = store.append.dequeue_run(journal, rids[0], 50)
    while removed < 40:
        removed += store.append.dequeue_run(journal, rids[removed], 40 - removed)
    assert [journal.load(rid) for rid in rids[60:]] == [b"head%03d" % number for number in range(60, 100)]
    store.close()

    store = opened(tmp_path)
    (queue,) = store.recovered_queues
    kept = [*range(removed, 50), *range(51, 100)]
    assert [each.data for each in store.messages(queue)] == [b"head%03d" % number for number in kept]
    store.end_recovery()
    store.close()


def test_a_transaction_over_two_queues(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.end_recovery()
    first, second = make_queue(store, "a"), make_queue(store, "b")
    old = enqueue(store, first, b"old")
    waiting = Waiting(store)
    store.when_synced((first,), waiting.done)
    store.drained()
    assert waiting.wait() is None
    parts = (b"new",)
    (rid,) = store.transactions.commit([(second, [(parts, 3, store.crc(parts))])], [(first, old)], waiting.done)
    store.drained()
    assert waiting.wait() is None
    assert (first.depth, second.depth, second.load(rid)) == (0, 1, b"new")
    store.close()


def test_a_full_journal_is_known_by_its_error(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.end_recovery()
    journal = make_queue(store, "a")
    assert issubclass(store.full_error, store.errors)
    refusal = None
    for _ in range(1000):
        try:
            enqueue(store, journal, b"x" * 1000)
        except store.full_error as error:
            refusal = str(error)
            break
    assert refusal is not None
    assert refusal.startswith('Enqueue capacity threshold exceeded on queue "a". Consume messages; or stop the broker')
    assert "qstore-resize DATA-DIR QUEUE --num-jfiles" in refusal
    store.close()


def test_a_queue_is_as_large_as_its_arguments_say(tmp_path: Path) -> None:
    log = Log()
    store = opened(tmp_path, log)
    store.end_recovery()
    assert store.queue_geometry({"qpid.file_count": 5, "x": "y"}).files == 5
    assert store.queue_geometry({"qpid.file_count": 1}).files == 4
    assert "warning parameter qpid.file_count (1) is below" in log.lines[-1]
    with pytest.raises(store.argument_error, match=r"qpid\.file_size"):
        store.queue_geometry({"qpid.file_size": "large"})
    store.close()


@pytest.mark.parametrize("values", [{"num-jfiles": "many"}, {"unknown": "1"}])
def test_options_that_cannot_be_used(tmp_path: Path, values: dict[str, str]) -> None:
    with pytest.raises(as_module(Module()).errors):
        as_module(Module()).open(values, str(tmp_path), "0", Log())


def test_a_store_needs_a_directory() -> None:
    with pytest.raises(as_module(Module()).errors, match="store-dir"):
        as_module(Module()).open({}, None, "0", Log())


def test_a_store_that_is_in_use(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(as_module(Module()).errors, match=r"^Data directory is locked by another process\.$"):
        opened(tmp_path)
    store.end_recovery()
    store.close()


def test_options_are_reported_with_their_defaults() -> None:
    options = {option.name: option for option in as_module(Module()).options}
    assert (options["num-jfiles"].kind, options["num-jfiles"].default) == ("number", "8")
    assert "4 to 64" in options["num-jfiles"].help
    assert (options["truncate"].kind, options["truncate"].default) == ("switch", "no")
    assert (options["store-dir"].alias, options["store-dir"].default) == ("store-directory", "")
    assert "refuse" in options["on-damage"].help


def test_states_are_the_store_s() -> None:
    assert (protocol.LIVE, protocol.LOCKED, protocol.PENDING) == (
        recovery.LIVE,
        recovery.LOCKED,
        recovery.PENDING,
    )
