"""What management shows of a store and of its journals: the properties and statistics of the schema's two classes.

The names are those of the schema (package org.apache.qpid.legacystore), in this house's spelling. What the schema calls
deprecated or not wired up is left out, but for what a journal has in a natural sense. Everything is counted in plain
integers where it happens, and read here when somebody asks.

There are no read pages here (a body is read where it stands), journals do not expand by themselves, and what the schema
calls outstanding AIO requests are flushes on their way to the disk.
"""

from __future__ import annotations

from typing import NamedTuple

from formats.rhm.geometry import PAGE_SIZE
from store.live.message_store import MessageStore
from store.live.queue_journal import QueueJournal


class StoreFigures(NamedTuple):
    """The class Store. Sizes are bytes, but for `default_data_file_size`, which counts pages of 64 KiB."""

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


class JournalFigures(NamedTuple):
    """The class Journal. Sizes are bytes; enqueues and dequeues count those of transactions too."""

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


def store_figures(store: MessageStore) -> StoreFigures:
    """Those of a store that is open."""
    parameters, prepared_list, transactions = store.parameters, store.prepared_list, store.transactions
    geometry = prepared_list.geometry
    return StoreFigures(
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


def journal_figures(store: MessageStore, journal: QueueJournal) -> JournalFigures:
    """Those of one queue's journal."""
    parameters, geometry = store.parameters, journal.geometry
    return JournalFigures(
        name=journal.name,
        directory=journal.directory,
        base_file_name=journal.base_name,
        write_page_size=parameters.page_bytes,
        write_pages=parameters.write_cache_bytes // parameters.page_bytes,
        read_page_size=0,
        read_pages=0,
        initial_file_count=geometry.files,
        auto_expand=False,
        current_file_count=geometry.files,
        max_file_count=geometry.files,
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
    )
