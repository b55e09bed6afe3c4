"""The classes store and journal: the store, and the journal of each durable queue. A broker without a store has none.

They are shown as objects of qpidd's legacystore, whose journals are files as this store's are. The classes of its
linearstore exist for consoles that query them, without objects: those would be the same ones again.

Sources: the QMF schemas of qpidd's two stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter as of
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.management.schema import (
    BROKER,
    BROKER_NAME,
    JOURNAL,
    QUEUE,
    ClassName,
    ManagedClass,
    always,
    arg,
    level,
    method,
    not_available,
    prop,
    shown_name,
    stat,
)
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, HELD, RUN
from qstore.broker.model.run import RunEntry
from qstore.formats.broker_records.topology import split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import typed_map, typed_value

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.model.queues.queue import Queue

_LEGACY: Final = "org.apache.qpid.legacystore"
_LINEAR: Final = "org.apache.qpid.linearstore"
_EXPAND: Final = not_available(
    "a journal grows by itself up to its maximum (qpid.auto_expand_max_jfiles, --auto-expand-max-jfiles); "
    "see also qstore-resize"
)


# ---- store ----


def _stores(managed: ManagedBroker) -> Iterable[tuple[str, Any]]:
    store = managed.broker.store
    return () if store is None else ((BROKER.name_of(BROKER_NAME), store),)


def _look_at_store(store: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = store.metrics()
    return found


# fmt: off
_TPL_PROPERTIES: Final = (
    prop("tplIsInitialized", "bool", "RO", of("tpl_is_initialized"),
         "Transaction prepared list has been initialized by a transactional prepare"),
    prop("tplDirectory", "sstr", "RO", of("tpl_directory"), "Transaction prepared list directory"),
    prop("tplWritePageSize", "uint32", "RO", of("tpl_write_page_size"),
         "Page size in transaction prepared list write-page-cache", "byte"),
    prop("tplWritePages", "uint32", "RO", of("tpl_write_pages"),
         "Number of pages in transaction prepared list write-page-cache", "wpage"),
)
_TPL_STATISTICS: Final = (
    stat("tplTransactionDepth", "hilo32", level(of("tpl_transaction_depth")),
         "Number of currently enqueued prepared transactions", "txn"),
    stat("tplTxnPrepares", "count64", of("tpl_txn_prepares"), "Total transaction prepares on transaction prepared list",
         "record"),
    stat("tplTxnCommits", "count64", of("tpl_txn_commits"), "Total transaction commits on transaction prepared list",
         "record"),
    stat("tplTxnAborts", "count64", of("tpl_txn_aborts"), "Total transaction aborts on transaction prepared list",
         "record"),
)

STORE_CLASS: Final = ManagedClass(
    ClassName(_LEGACY, "store"),
    properties=(
        prop("brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", "qpid.Broker"),
        prop("location", "sstr", "RO", of("location"), "Logical directory on disk"),
        prop("defaultInitialFileCount", "uint16", "RO", of("default_initial_file_count"),
             "Default number of files initially allocated to each journal", "file"),
        prop("defaultDataFileSize", "uint32", "RO", of("default_data_file_size"),
             "Default size of each journal data file", "RdPg"),
        *_TPL_PROPERTIES,
        prop("tplInitialFileCount", "uint16", "RO", of("tpl_initial_file_count"),
             "Number of files initially allocated to transaction prepared list journal", "file"),
        prop("tplDataFileSize", "uint32", "RO", of("tpl_data_file_size"),
             "Size of each journal data file in transaction prepared list journal", "byte"),
        prop("tplCurrentFileCount", "uint32", "RO", of("tpl_current_file_count"),
             "Number of files currently allocated to transaction prepared list journal", "file"),
    ),
    statistics=(
        *_TPL_STATISTICS,
        stat("tplOutstandingAIOs", "hilo32", level(of("tpl_outstanding_aios")), "Deprecated", "aio_op"),
    ),
    objects=_stores, look=_look_at_store,
)

LINEAR_STORE_CLASS: Final = ManagedClass(
    ClassName(_LINEAR, "store"),
    properties=(
        prop("brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", "qpid.Broker"),
        prop("storeDir", "sstr", "RO", of("location"), "Logical directory on disk"),
        *_TPL_PROPERTIES,
    ),
    statistics=(
        stat("tplTransactionDepth", "hilo32", level(of("tpl_transaction_depth")),
             "Number of currently enqueued prepared transactions", "txn"),
        stat("tplTxnPrepares", "count64", of("tpl_txn_prepares"),
             "Total transaction prepares on transaction prepared list", "record"),
        stat("tplTxnCommits", "count64", of("tpl_txn_commits"),
             "Total transaction commits on transaction prepared list", "record"),
        stat("tplTxnAborts", "count64", of("tpl_txn_aborts"), "Total transaction aborts on transaction prepared list",
             "record"),
    ),
)
# fmt: on


# ---- flushes: this broker's own ----


def _look_at_flushes(store: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = store.flush_metrics()
    return found


# fmt: off
FLUSHES_CLASS: Final = ManagedClass(
    ClassName("qstore", "flushes"),
    properties=(
        prop("brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", "qpid.Broker"),
    ),
    statistics=(
        stat("flushes", "count64", of("flushes"), "Write batches that were synced"),
        stat("nanoseconds", "count64", of("nanoseconds"), "Total time from writing to sync",
             "nanosecond"),
        stat("bytes", "count64", of("size"), "Bytes of all", "octet"),
        stat("latencies", "map", lambda view: typed_map(view["latencies"]),
             "Number of write batches by duration: key is the longest in nanoseconds"),
        stat("sizes", "map", lambda view: typed_map(view["sizes"]),
             "Number of write batches by size: key is the largest in bytes"),
    ),
    objects=_stores, look=_look_at_flushes,
)
# fmt: on


# ---- journal ----


def _journals(managed: ManagedBroker) -> Iterator[tuple[str, Any]]:
    for queue in list(managed.broker.all_queues()):
        if queue.journal is not None:
            yield queue.full_name, (managed.broker.store, queue.journal)


def _find_journal(managed: ManagedBroker, key: str) -> Any:
    host, name = split_name(key)
    own = managed.broker.hosts.get(host)
    queue = None if own is None else own.queues.get(name)
    return None if queue is None or queue.journal is None else (managed.broker.store, queue.journal)


def _look_at_journal(target: Any) -> Mapping[str, Any]:
    store, journal = target
    found: Mapping[str, Any] = store.journal_metrics(journal)
    return found


def _stored_id(target: Any) -> int:
    return int(target[1].queue_id)


# fmt: off
_JOURNAL_STATISTICS: Final = (
    stat("recordDepth", "hilo32", level(of("record_depth")), "Number of currently enqueued records (durable messages)",
         "record"),
    stat("enqueues", "count64", of("enqueues"), "Total enqueued records on journal", "record"),
    stat("dequeues", "count64", of("dequeues"), "Total dequeued records on journal", "record"),
    stat("txn", "count32", of("txn"), "Total open transactions (xids) on journal", "record"),
    stat("txnEnqueues", "count64", of("txn_enqueues"), "Total transactional enqueued records on journal", "record"),
    stat("txnDequeues", "count64", of("txn_dequeues"), "Total transactional dequeued records on journal", "record"),
    stat("txnCommits", "count64", of("txn_commits"), "Total transactional commit records on journal", "record"),
    stat("txnAborts", "count64", of("txn_aborts"), "Total transactional abort records on journal", "record"),
    stat("outstandingAIOs", "hilo32", level(of("outstanding_aios")),
         "Number of currently outstanding AIO requests in Async IO system", "aio_op"),
)

JOURNAL_CLASS: Final = ManagedClass(
    JOURNAL,
    properties=(
        prop("queueRef", "objId", "RO general", lambda view: QUEUE.reference(view["name"]), "", "", "qpid.Queue"),
        prop("name", "sstr", "RO index", lambda view: shown_name(view["name"])),
        prop("directory", "sstr", "RO", of("directory"), "Directory containing journal files"),
        prop("baseFileName", "sstr", "RO", of("base_file_name"), "Base filename prefix for journal"),
        prop("writePageSize", "uint32", "RO", of("write_page_size"), "Page size in write-page-cache", "byte"),
        prop("writePages", "uint32", "RO", of("write_pages"), "Number of pages in write-page-cache", "wpage"),
        prop("readPageSize", "uint32", "RO", of("read_page_size"), "Page size in read-page-cache", "byte"),
        prop("readPages", "uint32", "RO", of("read_pages"), "Number of pages in read-page-cache", "rpage"),
        prop("initialFileCount", "uint16", "RO", of("initial_file_count"),
             "Number of files initially allocated to this journal", "file"),
        prop("autoExpand", "bool", "RO", of("auto_expand"), "Deprecated"),
        prop("currentFileCount", "uint16", "RO", of("current_file_count"),
             "Number of files currently allocated to this journal", "file"),
        prop("maxFileCount", "uint16", "RO", of("max_file_count"), "Deprecated", "file"),
        prop("dataFileSize", "uint32", "RO", of("data_file_size"), "Size of each journal data file", "byte"),
    ),
    statistics=(
        *_JOURNAL_STATISTICS,
        stat("freeFileCount", "hilo32", level(of("free_file_count")), "Deprecated", "file"),
        stat("availableFileCount", "hilo32", level(of("available_file_count")), "Deprecated", "file"),
        stat("writeWaitFailures", "count64", of("write_wait_failures"), "Deprecated", "record"),
        stat("writeBusyFailures", "count64", of("write_busy_failures"), "Deprecated", "record"),
        stat("readRecordCount", "count64", of("read_record_count"), "Deprecated", "record"),
        stat("readBusyFailures", "count64", of("read_busy_failures"), "Deprecated", "record"),
        stat("writePageCacheDepth", "hilo32", level(of("write_page_cache_depth")), "Deprecated", "wpage"),
        stat("readPageCacheDepth", "hilo32", level(of("read_page_cache_depth")), "Deprecated", "rpage"),
    ),
    methods=(
        method("expand", "Increase number of files allocated for this journal", (
            arg("by", "uint32", "I", "Number of files to increase journal size by"),
        ), _EXPAND),
    ),
    objects=_journals, find=_find_journal, look=_look_at_journal, stored_id=_stored_id,
    belongs=lambda target: (split_name(target[1].name)[0], ""),
)
# fmt: on


# ---- the files of a journal: this broker's own ----


class _Files(NamedTuple):
    """The files of a journal, and its queue."""

    name: str
    found: Mapping[str, Any]
    state: str


def _queues_with_journals(managed: ManagedBroker) -> Iterator[tuple[str, Any]]:
    for queue in list(managed.broker.all_queues()):
        if queue.journal is not None:
            yield queue.full_name, (managed.broker.store, queue)


def _find_queue_with_journal(managed: ManagedBroker, key: str) -> Any:
    host, name = split_name(key)
    own = managed.broker.hosts.get(host)
    queue = None if own is None else own.queues.get(name)
    return None if queue is None or queue.journal is None else (managed.broker.store, queue)


def _look_at_files(target: Any) -> _Files:
    store, queue = target
    found = store.journal_files(queue.journal)
    return _Files(queue.full_name, found, _state_of(queue, found["rid"]) if found["held_by"] == "message" else "")


_LOOKED_AT: Final = 1000  # entries of a queue
_STATES: Final = {AVAILABLE: "waiting", RUN: "waiting", ACQUIRED: "delivered", HELD: "delivered"}


def _state_of(queue: Queue, rid: int) -> str:
    """Whether a message, which is one of the first, waits or was delivered."""
    for entry in islice(queue.order.parts(), _LOOKED_AT):
        count = entry.count if isinstance(entry, RunEntry) else 1
        if entry.rid and entry.rid <= rid < entry.rid + count:
            return _STATES.get(entry.state, "unknown")
    return "unknown"


# fmt: off
JOURNAL_FILES_CLASS: Final = ManagedClass(
    ClassName("qstore", "journalFiles"),
    properties=(
        prop("queueRef", "objId", "RO general", lambda view: QUEUE.reference(view.name), "", "", "Queue"),
        prop("name", "sstr", "RO index", lambda view: shown_name(view.name)),
    ),
    statistics=(
        stat("files", "list", lambda view: tuple([typed_value(each) for each in view.found["files"]]),
             "Numbers of its files, starting with the oldest in use"),
        stat("live", "list", lambda view: tuple([typed_value(each) for each in view.found["live"]]),
             "Number of live records in each of them"),
        stat("used", "uint32", lambda view: view.found["used"], "Number of files that cannot be overwritten", "file"),
        stat("oldestRid", "uint64", lambda view: view.found["rid"], "The record that holds the oldest file"),
        stat("oldestFile", "int32", lambda view: view.found["file"], "Its file; -1 if there is no live record"),
        stat("oldestOffset", "int64", lambda view: view.found["offset"], "Its offset there; -1 likewise", "octet"),
        stat("heldBy", "sstr", lambda view: view.found["held_by"],
             "What holds the oldest file: message, transaction, snapshot, unsynced, or nothing"),
        stat("messageState", "sstr", lambda view: view.state,
             "State of the message that holds it: waiting, delivered (and not acknowledged), or unknown"),
    ),
    objects=_queues_with_journals, find=_find_queue_with_journal, look=_look_at_files,
    belongs=lambda target: (target[1].host, ""),
)

LINEAR_JOURNAL_CLASS: Final = ManagedClass(
    ClassName(_LINEAR, "journal"),
    properties=(
        prop("queueRef", "objId", "RO general", lambda view: QUEUE.reference(view["name"]), "", "", "qpid.Queue"),
        prop("queueName", "sstr", "RC index", lambda view: shown_name(view["name"])),
        prop("directory", "sstr", "RO", of("directory"), "Directory containing journal files"),
        prop("writePageSize", "uint32", "RO", of("write_page_size"), "Deprecated", "byte"),
        prop("writePages", "uint32", "RO", of("write_pages"), "Deprecated", "wpage"),
    ),
    statistics=(
        stat(
            "recordDepth",
            "hilo32",
            level(of("record_depth")),
            "Number of currently enqueued records (durable messages)",
            "record",
        ),
        stat("enqueues", "count64", of("enqueues"), "Total enqueued records on journal", "record"),
        stat("dequeues", "count64", of("dequeues"), "Total dequeued records on journal", "record"),
        stat("txn", "count32", of("txn"), "Total open transactions (xids) on journal", "record"),
        stat("txnEnqueues", "count64", of("txn_enqueues"), "Total transactional enqueued records on journal", "record"),
        stat("txnDequeues", "count64", of("txn_dequeues"), "Total transactional dequeued records on journal", "record"),
        stat("txnCommits", "count64", of("txn_commits"), "Total transactional commit records on journal", "record"),
        stat("txnAborts", "count64", of("txn_aborts"), "Total transactional abort records on journal", "record"),
        stat(
            "outstandingAIOs",
            "hilo32",
            level(of("outstanding_aios")),
            "Number of currently outstanding AIO requests in Async IO system",
            "aio_op",
        ),
    ),
)
# fmt: on
