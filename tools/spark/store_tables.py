"""The small tables: files, queues, exchanges, bindings, transactions. One task reads a whole store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from qstore.formats.broker_records.topology import split_name
from qstore.formats.qls.file_header import FileHeader as LinearHeader
from qstore.formats.rhm.file_header import FileHeader
from qstore.store.catalogue.topology import effective_bindings
from qstore.store.damage import Damage
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue
from qstore.store.journal.directory import NotAJournalError
from qstore.store.journal.files import JournalFile
from qstore.store.journal.journal import Journal
from qstore.tools.dump.rows import binding_object, exchange_object, queue_object, transaction_object
from qstore.tools.spark.columns import Column, Selection, array, arrow_schema
from qstore.tools.spark.inputs import Input, opened

Row = dict[str, Any]
Reader = Callable[[Input, OfflineStore], Iterator[Row]]

_NANOSECONDS: Final = 1_000_000_000
_ROWS: Final = 4096  # per batch


def read_store(source: Input, table: str, columns: tuple[Column, ...], selection: Selection) -> Iterator[Any]:
    """The rows of one store in one of the tables, as record batches."""
    rows = (row for _, row in _rows(source, {table: _reader(table, columns)}))
    yield from _batches((row for row in rows if "queue" not in row or selection.wants_queue(row["queue"])), columns)


def read_tables(source: Input, tables: Mapping[str, tuple[Column, ...]]) -> dict[str, list[Any]]:
    """The rows of one store, which is opened once, in several of the tables: table -> record batches."""
    rows: dict[str, list[Row]] = {table: [] for table in tables}
    for table, row in _rows(source, {table: _reader(table, columns) for table, columns in tables.items()}):
        rows[table].append(row)
    return {table: list(_batches(rows[table], columns)) for table, columns in tables.items()}


def _reader(table: str, columns: tuple[Column, ...]) -> Reader:
    names = {column.name for column in columns}
    return _unread_queues if table == "queues" and "messages" not in names else _TABLES[table]


def _batches(rows: Iterable[Row], columns: tuple[Column, ...]) -> Iterator[Any]:
    schema = arrow_schema(columns)
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= _ROWS:
            yield _batch(batch, columns, schema)
            batch = []
    if batch:
        yield _batch(batch, columns, schema)


def _batch(rows: list[Row], columns: tuple[Column, ...], schema: Any) -> Any:
    arrays = [array(column.type, [row.get(column.name) for row in rows]) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(source: Input, readers: Mapping[str, Reader]) -> Iterator[tuple[str, Row]]:
    try:
        with opened(source) as store:
            for table, read in readers.items():
                for row in read(source, store):
                    yield table, row
    except (UnusableInputError, NotAJournalError) as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.filename or source.path}: {error.strerror or error}"
    else:
        return
    if "files" in readers:
        row = {"store": source.path, "kind": "unusable", "queue": None, "file": source.path, "reason": reason}
        yield "files", row


# ---- files ----


def _files(source: Input, store: OfflineStore) -> Iterator[Row]:
    common = {"store": source.path, "format": store.layout.kind.value}
    for damage in store.damage:
        yield {**common, **_damage_row(source, damage, None)}
    for notice in store.notices:
        yield {**common, "kind": "notice", "queue": None, "reason": notice}
    remnants = store.unfinished()
    for journal in store.named_journals():
        if journal.path in remnants:
            continue
        for age, file in enumerate(journal.stream.files):
            yield {**common, **_file_row(source, journal, age, file)}
        for damage in journal.damage:
            yield {**common, **_damage_row(source, damage, journal)}


def _file_row(source: Input, journal: Journal, age: int, file: JournalFile[Any]) -> Row:
    header = file.header
    first = file.first_record(journal.stream.geometry)
    return {
        "kind": "journal file",
        "queue": journal.name,
        "journal": source.shown(journal.path),
        "file": source.shown(file.path),
        "number": file.number,
        "age": age,
        "size": file.size if file.size >= 0 else None,
        "first_record": None if first is None else first + journal.stream.geometry.header_size,
        "first_flush": header.first_flush if isinstance(header, FileHeader) and header.version != 1 else None,
        "written": None if header is None else _written(header),
    }


def _written(header: FileHeader | LinearHeader) -> int:
    return header.seconds * _NANOSECONDS + header.nanoseconds


def _damage_row(source: Input, damage: Damage, journal: Journal | None) -> Row:
    return {
        "kind": "damage",
        "queue": None if journal is None else journal.name,
        "journal": None if journal is None else source.shown(journal.path),
        "file": source.shown(damage.file),
        "offset": damage.offset,
        "rid": damage.rid,
        "reason": damage.what,
        "damage_kind": damage.kind.label,
        "consequence": damage.consequence,
    }


# ---- results of recovery ----


def _queues(source: Input, store: OfflineStore) -> Iterator[Row]:
    return (_queue_row(source, store, queue) for queue in store.recover().queues)


def _unread_queues(source: Input, store: OfflineStore) -> Iterator[Row]:
    """As `_queues`, without the number of messages, which requires a walk through the journals."""
    for name, record, journal in store.queues():
        yield _queue_row(source, store, RecoveredQueue(name, record, journal, None, None))


def _queue_row(source: Input, store: OfflineStore, queue: RecoveredQueue) -> Row:
    fields = queue_object(queue)
    journal = queue.journal
    return {
        "store": source.path,
        "format": store.layout.kind.value,
        "queue": fields["name"],
        "journal": None if journal is None else source.shown(journal.path),
        "arguments": fields["arguments"],
        "alternate_exchange": fields["alternate_exchange"],
        "files": None if journal is None else journal.files.geometry.files,
        "file_size": None if journal is None else journal.files.geometry.file_size,
        "messages": fields["messages"],
        **_host_row(fields["name"]),
    }


def _host_row(full: str) -> Row:
    host, name = split_name(full)
    return {"vhost": host, "name": name}


def _exchanges(source: Input, store: OfflineStore) -> Iterator[Row]:
    for exchange in store.topology.exchanges.values() if store.topology is not None else ():
        fields = exchange_object(exchange)
        yield {**fields, "store": source.path, "exchange": fields["name"], **_host_row(fields["name"])}


def _bindings(source: Input, store: OfflineStore) -> Iterator[Row]:
    for binding in effective_bindings(store.topology.bindings) if store.topology is not None else ():
        yield {**binding_object(binding), "store": source.path}


def _transactions(source: Input, store: OfflineStore) -> Iterator[Row]:
    for transaction in store.recover().transactions:
        fields = transaction_object(transaction)
        yield {**fields, "store": source.path, "xid_format": fields["format"]}


_TABLES: Final[dict[str, Reader]] = {
    "files": _files,
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
    "transactions": _transactions,
}
