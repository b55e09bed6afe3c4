"""Management's view of a store and its journals: the properties and statistics of the schema's two classes.

The names are those of the schema (package org.apache.qpid.legacystore), in snake case. Everything is counted in plain
integers where it happens, and read here on demand. What the schema means for a journal here:

    outstanding_aios         flushes under way
    free_file_count          files' worth of room that no live record takes
    available_file_count     likewise, that messages may still fill, below the threshold
    write_wait_failures      records that waited until the disk had taken others, since the write cache was full
    write_busy_failures      records for which room had to be made, or that were refused because there was none
    read_record_count        messages that were read back
    read_busy_failures       reads that had to wait for the disk, since the system had not all of it in memory
    write_page_cache_depth   pages of the write cache that are not synced
    read_page_cache_depth    0: there are no read pages, a message is read directly
"""

from __future__ import annotations

from typing import NamedTuple

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal


class StoreMetrics(NamedTuple):
    """The class Store. Sizes are bytes, except `default_data_file_size`, which counts pages of 64 KiB."""

    location: str
    default_initial_file_count: int
    default_data_file_size: int
    tpl_is_initialized: bool
    tpl_directory: str
    tpl_write_page_size: int
    tpl_write_pages: int
    tpl_initial_file_count: int
    tpl_data_file_size: int
    tpl_current_file_count: int
    tpl_transaction_depth: int
    tpl_txn_prepares: int
    tpl_txn_commits: int
    tpl_txn_aborts: int
    tpl_outstanding_aios: int


class JournalMetrics(NamedTuple):
    """The class Journal. Sizes are bytes; enqueues and dequeues include those of transactions."""

    name: str
    directory: str
    base_file_name: str
    write_page_size: int
    write_pages: int
    read_page_size: int
    read_pages: int
    initial_file_count: int
    auto_expand: bool
    current_file_count: int
    max_file_count: int
    data_file_size: int
    record_depth: int
    enqueues: int
    dequeues: int
    txn: int
    txn_enqueues: int
    txn_dequeues: int
    txn_commits: int
    txn_aborts: int
    outstanding_aios: int
    free_file_count: int
    available_file_count: int
    write_wait_failures: int
    write_busy_failures: int
    read_record_count: int
    read_busy_failures: int
    write_page_cache_depth: int
    read_page_cache_depth: int


def store_metrics(store: MessageStore) -> StoreMetrics:
    """The metrics of an open store."""
    parameters, prepared_list, transactions = store.parameters, store.prepared_list, store.transactions
    geometry = prepared_list.geometry
    return StoreMetrics(
        location=store.directory.path,
        default_initial_file_count=parameters.geometry.files,
        default_data_file_size=parameters.geometry.data_size // PAGE_SIZE,
        tpl_is_initialized=prepared_list.writer.synced > 0,
        tpl_directory=prepared_list.directory,
        tpl_write_page_size=parameters.tpl_page_bytes,
        tpl_write_pages=parameters.tpl_write_cache_bytes // parameters.tpl_page_bytes,
        tpl_initial_file_count=geometry.files,
        tpl_data_file_size=geometry.data_size,
        tpl_current_file_count=geometry.files,
        tpl_transaction_depth=prepared_list.open_transactions,
        tpl_txn_prepares=transactions.prepares,
        tpl_txn_commits=transactions.commits,
        tpl_txn_aborts=transactions.aborts,
        tpl_outstanding_aios=prepared_list.outstanding_flushes,
    )


def journal_metrics(store: MessageStore, journal: QueueJournal) -> JournalMetrics:
    """The metrics of one queue's journal."""
    parameters, geometry, records = store.parameters, journal.geometry, journal.writer.records
    blocks = geometry.data_size // BLOCK_SIZE
    return JournalMetrics(
        name=journal.name,
        directory=journal.directory,
        base_file_name=journal.base_name,
        write_page_size=parameters.page_bytes,
        write_pages=parameters.write_cache_bytes // parameters.page_bytes,
        read_page_size=0,
        read_pages=0,
        initial_file_count=journal.initial_files,
        auto_expand=journal.max_files > 0,
        current_file_count=geometry.files,
        max_file_count=max(journal.max_files, geometry.files),
        data_file_size=geometry.data_size,
        record_depth=journal.depth,
        enqueues=journal.enqueues + journal.transaction_enqueues,
        dequeues=journal.dequeues + journal.transaction_dequeues,
        txn=journal.open_transactions,
        txn_enqueues=journal.transaction_enqueues,
        txn_dequeues=journal.transaction_dequeues,
        txn_commits=journal.commits,
        txn_aborts=journal.aborts,
        outstanding_aios=journal.outstanding_flushes,
        free_file_count=max(0, geometry.files - -(-records.blocks // blocks)),
        available_file_count=max(0, records.room) // blocks,
        write_wait_failures=journal.waits,
        write_busy_failures=journal.shortages,
        read_record_count=journal.reads,
        read_busy_failures=journal.slow_reads,
        write_page_cache_depth=-(-journal.unsynced // parameters.page_bytes),
        read_page_cache_depth=0,
    )
