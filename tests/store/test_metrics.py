"""The metrics that management shows: every one that the schema has, and what they count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import data_crc
from qstore.store.environment import tool_environment
from qstore.store.errors import JournalFullError
from qstore.store.live.message_store import JournalMetrics, MessageStore, StoreMetrics, journal_metrics, store_metrics
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.live.reading import as_bytes
from qstore.store.log_lines import LogLine
from qstore.store.parameters import StoreParameters

#: The schema's properties and statistics, but for references to objects.
STORE: Final = (
    "location defaultInitialFileCount defaultDataFileSize tplIsInitialized tplDirectory tplWritePageSize tplWritePages "
    "tplInitialFileCount tplDataFileSize tplCurrentFileCount tplTransactionDepth tplTxnPrepares tplTxnCommits "
    "tplTxnAborts tplOutstandingAIOs"
)
JOURNAL: Final = (
    "name directory baseFileName writePageSize writePages readPageSize readPages initialFileCount autoExpand "
    "currentFileCount maxFileCount dataFileSize recordDepth enqueues dequeues txn txnEnqueues txnDequeues txnCommits "
    "txnAborts outstandingAIOs freeFileCount availableFileCount writeWaitFailures writeBusyFailures readRecordCount "
    "readBusyFailures writePageCacheDepth readPageCacheDepth"
)
MESSAGE: Final = (b"a message",)


def ignore(_: LogLine) -> None:
    """Log lines are tested elsewhere."""


def spelled(name: str) -> str:
    return re.sub(r"([A-Z]+)", lambda found: "_" + found[1].lower(), name.replace("AIOs", "Aios"))


@pytest.mark.parametrize(("metrics", "names"), [(StoreMetrics, STORE), (JournalMetrics, JOURNAL)])
def test_every_name_of_the_schema_is_there(metrics: type[StoreMetrics | JournalMetrics], names: str) -> None:
    assert [spelled(name) for name in names.split()] == list(metrics._fields)


def queue(store: MessageStore, name: str) -> QueueJournal:
    made: list[QueueJournal | None] = []
    store.changes.create_queue(Queue(name), Geometry.from_pages(4, 1), lambda journal, error: made.append(journal))
    store.collect()
    assert made[0] is not None
    return made[0]


def test_metrics_count_records_and_transactions(tmp_path: Path) -> None:
    parameters = StoreParameters()
    with MessageStore.open(tool_environment(), str(tmp_path / "s"), parameters, "0.1.0", log=ignore) as store:
        one, other = queue(store, "one"), queue(store, "other")
        assert not store_metrics(store).tpl_is_initialized
        size, crc = len(MESSAGE[0]), data_crc(MESSAGE)
        first, second, third = (store.append.enqueue(one, MESSAGE, size, crc) for _ in range(3))
        store.append.dequeue(one, first)
        errors: list[Exception | None] = []
        store.transactions.commit([(other, [(MESSAGE, size, crc)])], [(one, second)], errors.append)
        store.start()
        store.transactions.prepare(b"x", [], [(one, third)], errors.append)
        store.start()
        store.collect()
        assert errors == [None, None]

        found = journal_metrics(store, one)
        assert (found.name, found.directory, found.base_file_name) == ("one", one.directory, "JournalData")
        assert (found.initial_file_count, found.data_file_size) == (4, 65536)
        assert (found.record_depth, found.enqueues, found.dequeues) == (1, 3, 3)
        assert (found.txn, found.txn_enqueues, found.txn_dequeues) == (1, 0, 2)
        assert (found.txn_commits, found.txn_aborts, found.outstanding_aios) == (1, 0, 0)
        assert journal_metrics(store, other).txn_enqueues == journal_metrics(store, other).record_depth == 1

        assert (found.free_file_count, found.available_file_count, found.write_page_cache_depth) == (3, 3, 0)
        counted = (
            found.write_wait_failures,
            found.write_busy_failures,
            found.read_record_count,
            found.read_busy_failures,
        )
        assert counted == (0, 0, 0, 0)

        whole = store_metrics(store)
        assert whole.tpl_is_initialized
        assert (whole.default_initial_file_count, whole.default_data_file_size) == (8, 24)
        assert (whole.tpl_transaction_depth, whole.tpl_txn_prepares) == (1, 2)
        assert (whole.tpl_txn_commits, whole.tpl_txn_aborts) == (1, 0)
        store.transactions.abort_prepared(b"x", errors.append)
        for _ in range(5):  # outcomes, which nobody waits for
            store.start()
            store.collect()
        assert store_metrics(store)[-5:] == (0, 2, 1, 1, 0)
        assert journal_metrics(store, one).txn_aborts == 1


def test_metrics_count_waits_refusals_and_reads(tmp_path: Path) -> None:
    parameters = StoreParameters(auto_expand=False, wcache_page_size=4, wcache_num_pages=4)
    with MessageStore.open(tool_environment(), str(tmp_path / "s"), parameters, "0.1.0", log=ignore) as store:
        one, message = queue(store, "one"), (bytes(5_000),)
        rids = [store.append.enqueue(one, message, len(message[0]), data_crc(message))]
        found = journal_metrics(store, one)
        assert found.write_page_cache_depth == -(-one.unsynced // found.write_page_size) > 0
        with pytest.raises(JournalFullError):
            rids.extend(store.append.enqueue(one, message, len(message[0]), data_crc(message)) for _ in range(100))
        found = journal_metrics(store, one)
        assert (found.free_file_count, found.available_file_count) == (0, 0)
        assert found.write_busy_failures == 1
        assert found.write_wait_failures > 0
        store.start()
        while one.unsynced:
            store.collect()
        got: list[object] = []
        store.read(one, rids[:3], as_bytes, got.extend)
        while not got:
            store.collect(0.01)
        assert got == [message[0]] * 3
        found = journal_metrics(store, one)
        assert (found.read_record_count, found.read_busy_failures in (0, 1)) == (3, True)
