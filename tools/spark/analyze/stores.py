"""Stores, each read once -> the Parquet files of an analysis that have a row for each record or message.

A task of Spark reads some stores, works out what became of their records (`tools.spark.outcomes`), and writes the files
itself: in Spark, the same rows would be converted, shuffled and sorted by store, queue and journal, which took five
times as long as everything here.

    queues, files          the inventory, and which journals belong to queues
    work: records          the columns that the pipeline needs, and the outcome of each record
    work: messages         as `pipeline.messages`, of queues in the catalogue
    work: prepared         as `prepared_transactions`
    outstanding            without bodies
    audit/lifetimes, depth, gaps, duplicates
    export                 all records with all columns, as `pipeline.export`
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.journal.files import JournalFormat
from qstore.tools.spark.arrays import array, arrow_schema
from qstore.tools.spark.batches import read_stretch
from qstore.tools.spark.columns import TABLES, Column, table_columns
from qstore.tools.spark.inputs import Input
from qstore.tools.spark.outcomes import (
    DEPTH,
    DUPLICATES,
    GAPS,
    LIFETIMES,
    MESSAGES,
    OUTCOME,
    OUTSTANDING,
    PREPARED,
    USE,
    Decision,
    Outcomes,
    Records,
    decisions,
    depth_rows,
    duplicate_ids,
    gaps,
    lifetime_rows,
    message_rows,
    messages,
    outcomes,
    outstanding_rows,
    use_row,
)
from qstore.tools.spark.pipeline.export import DIRECTORIES, directory_name
from qstore.tools.spark.pipeline.prepared import PREPARED_LIST
from qstore.tools.spark.plan import Stretch, stretches
from qstore.tools.spark.selection import Selection
from qstore.tools.spark.store_tables import read_store

RECORDS: Final = "records"
PREPARED_TABLE: Final = "prepared"
#: Tables of the job that are in the directory of work.
WORK_TABLES: Final = (RECORDS, "messages", PREPARED_TABLE, "use")
#: Tables that are results of the step audit.
AUDIT_TABLES: Final = ("lifetimes", "depth", "gaps", "duplicates")
OUTSTANDING_TABLE: Final = "outstanding"
#: Tables that are results themselves.
INVENTORY: Final = ("queues", "files")
_WHOLE: Final = 1 << 62  # a journal is not split
_BATCH_BYTES: Final = 16 << 20  # of rows that are written at once


@dataclass(frozen=True, slots=True)
class Job:
    """What is read and written.

    Attributes:
        directories: table -> the directory of its files.
        columns: names of the columns of the table of records.
        details: those of them that outstanding messages have.
        export: directory of the export; None for none.
        bodies: whether bodies are exported.
    """

    directories: Mapping[str, str]
    columns: tuple[str, ...]
    details: tuple[str, ...]
    export: str | None
    bodies: bool


class Unusable(NamedTuple):
    """Why an input is no store, or, if `is_fatal`, why nothing more can be written."""

    reason: str
    is_fatal: bool = False


def write_stores(job: Job, number: int, sources: Iterable[Input]) -> Iterator[Unusable | None]:
    """Write the files of some stores.

    Args:
        job: what to write.
        number: distinguishes these files from those of other tasks.
        sources: the stores.

    Yields:
        For each input None, or why it could not be used.
    """
    collected = gc.isenabled()
    gc.disable()  # rows contain no cycles; to look for some takes a fifth of the time: 23.7 and 19.0 µs for each record
    try:
        tables = _Tables(job, number)
        try:
            for index, source in enumerate(sources):
                yield _written(job, tables, f"{number:05}-{index:05}", source)
        finally:
            tables.close()
    except OSError as error:
        yield Unusable(f"{error.filename or 'the results cannot be written'}: {error.strerror or error}", is_fatal=True)
    finally:
        if collected:
            gc.enable()


def _written(job: Job, tables: _Tables, name: str, source: Input) -> Unusable | None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for table in INVENTORY:
        batches = list(read_store(source, table, tables.own_columns[table], Selection()))
        tables.write_table(table, pa.Table.from_batches(batches, schema=tables.schema(table)))
        rows[table] = [row for batch in batches for row in batch.to_pylist()]
    try:
        found = stretches([source], None, _WHOLE)
    except UnusableInputError as error:
        return Unusable(str(error))
    journals = {row["journal"]: row for row in rows["queues"] if row["journal"] is not None}
    files: dict[str, list[dict[str, Any]]] = {}
    for row in rows["files"]:
        if row["kind"] == "journal file" and row["size"] is not None:
            files.setdefault(row["journal"], []).append(row)
    _Store(job, tables, name, source, journals, files).write(found)
    return None


class _Tables:
    """The files of a task, one for each table."""

    def __init__(self, job: Job, number: int) -> None:
        self.own_columns = {
            RECORDS: table_columns(RECORDS, ",".join(job.columns)),
            "queues": tuple(column for column in TABLES["queues"] if column.name != "messages"),
            "files": TABLES["files"],
        }
        self._schemas = {
            RECORDS: pa.schema([*arrow_schema(self.own_columns[RECORDS]), *OUTCOME]),
            "messages": MESSAGES, PREPARED_TABLE: PREPARED, "lifetimes": LIFETIMES, "depth": DEPTH, "gaps": GAPS,
            "duplicates": DUPLICATES, "use": USE,
            OUTSTANDING_TABLE: pa.schema([*OUTSTANDING, *arrow_schema(table_columns(RECORDS, ",".join(job.details)))]),
            **{table: arrow_schema(self.own_columns[table]) for table in INVENTORY},
        }  # fmt: skip
        self._files: dict[str, Any] = {}
        for table, directory in job.directories.items():
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._files[table] = pq.ParquetWriter(f"{directory}/part-{number:05}.parquet", self._schemas[table])

    def schema(self, table: str) -> Any:
        """The schema of a table."""
        return self._schemas[table]

    def write(self, table: str, columns: Sequence[Any]) -> None:
        """Write rows, given as columns."""
        if table in self._files:
            self.write_table(table, pa.Table.from_arrays(list(columns), schema=self._schemas[table]))

    def write_table(self, table: str, rows: Any) -> None:
        """Write rows."""
        if rows.num_rows:
            self._files[table].write_table(rows)

    def has(self, table: str) -> bool:
        """Whether a table is wanted."""
        return table in self._files

    def close(self) -> None:
        """Complete the files."""
        for file in self._files.values():
            file.close()


class _Store:
    """Reads and writes one store.

    Args:
        job: what to write.
        tables: where to.
        name: distinguishes its files in the export.
        source: the store.
        journals: path of each journal that belongs to a queue in the catalogue -> the queue's row.
        files: path of each journal -> the rows of its files.
    """

    def __init__(
        self, job: Job, tables: _Tables, name: str, source: Input, journals: Mapping[str, dict[str, Any]],
        files: Mapping[str, list[dict[str, Any]]],
    ) -> None:  # fmt: skip
        self._job, self._tables, self._name, self._journals, self._files = job, tables, name, journals, files
        self._columns = tables.own_columns[RECORDS]
        if job.export is not None:
            self._columns = tuple(column for column in TABLES[RECORDS] if job.bodies or column.name != "body")
        self._path = _shown(source.path)
        self._decided: dict[str, Decision] = {}
        self._rids: list[Any] = []
        self._queues: dict[str, list[tuple[Records, Outcomes]]] = {}

    def write(self, found: Sequence[Stretch]) -> None:
        """Read the stretches, each a whole journal, and write everything; the prepared list comes first."""
        for index, stretch in enumerate(sorted(found, key=lambda each: not _is_prepared_list(each))):
            self._journal(index, stretch)
        for queue in list(self._queues):  # of several journals, of which some have no records
            self._write_twice(queue)
        if self._rids and self._tables.has("gaps"):
            after = gaps(self._rids)
            self._tables.write("gaps", [pa.array([self._path] * len(after[0]), pa.string()), *after])

    def _journal(self, index: int, stretch: Stretch) -> None:
        exported = _Export(self._job, f"{self._name}-{index:05}", self._columns)
        batches = []
        disk, _ = stretch.source.disk()
        for batch in read_stretch(stretch, disk, self._columns, Selection()):
            exported.add(batch)
            batches.append(batch.select(list(self._job.columns)))
        exported.close()
        if not batches:
            return
        records = Records(batches)
        self._rids.append(_rids(records))
        if stretch.journal is None or _is_prepared_list(stretch):
            if stretch.journal is not None:
                self._prepared(records)
            nothing = [pa.nulls(len(records.kinds), field.type) for field in OUTCOME]
            self._tables.write(RECORDS, [*records.table.columns, *nothing])
            return
        found = outcomes(records, self._decided)
        self._tables.write(RECORDS, [*records.table.columns, *found.arrays()])
        if records.table.column("journal")[0].as_py() in self._journals:
            self._messages(records, found)

    def _prepared(self, records: Records) -> None:
        found = decisions(records)
        self._decided = {xid: decision for xid, _, decision in found}
        rows = [(self._path, xid, two_phase, *decision) for xid, two_phase, decision in found]
        self._tables.write(PREPARED_TABLE, _columns(rows, PREPARED))

    def _messages(self, records: Records, found: Outcomes) -> None:
        placed = [records.table.column(name)[0] for name in ("store", "format", "queue", "journal")]
        rows = message_rows(messages(records, found))
        self._tables.write("messages", [*_repeated(placed, len(rows)), *_columns(rows, MESSAGES, 4)])
        self._wanted_messages(placed, rows, records)
        header = LINEAR_HEADER_SIZE if placed[1].as_py() == JournalFormat.LINEAR.label else FILE_HEADER_SIZE
        data_size = max(self._journals[placed[3].as_py()]["file_size"] - header, 1)
        use = [use_row(rows, records, found, data_size)] if rows else []
        self._tables.write("use", [*_repeated(placed, len(use)), *_columns(use, USE, 4)])
        if not self._tables.has("depth"):
            return
        depth = list(depth_rows(rows))
        self._tables.write("depth", [*_repeated(placed, len(depth)), *_columns(depth, DEPTH, 4)])
        _, _, queue, journal = (each.as_py() for each in placed)
        twice = [(self._path, queue, "record id", None, row[0], row[0], row[7]) for row in rows if row[7] > 1]
        self._tables.write("duplicates", _columns(twice, DUPLICATES))
        # The same message id may be in several journals of a queue.
        name = self._journals[journal]["queue"]
        self._queues.setdefault(name, []).append((records, found))
        if len(self._queues[name]) == sum(each["queue"] == name for each in self._journals.values()):
            self._write_twice(name)

    def _write_twice(self, queue: str) -> None:
        """Write the message ids that a queue has more than once."""
        ids = duplicate_ids(self._queues.pop(queue))
        rows = [(self._path, queue, "message id", name, min(rids), max(rids), len(rids)) for name, rids in ids.items()]
        self._tables.write("duplicates", _columns(rows, DUPLICATES))

    def _wanted_messages(self, placed: list[Any], rows: list[tuple[Any, ...]], records: Records) -> None:
        """Those that are outstanding, and all with their lifetimes."""
        _, journal_format, _, journal = (each.as_py() for each in placed)
        if self._tables.has(OUTSTANDING_TABLE):
            branches = {decision.branch: xid for xid, decision in self._decided.items()}
            by_position = journal_format == JournalFormat.VERSION_1.label
            there = list(outstanding_rows(rows, branches, by_position=by_position))
            rows_of = {
                place: index for index, (place, kind) in enumerate(zip(records.positions, records.kinds, strict=True))
                if kind == "enqueue"
            }  # fmt: skip
            indexes = pa.array([rows_of[row[3]] for row in there], pa.int64())
            details = [records.table.column(name).take(indexes) for name in self._job.details]
            columns = [*_repeated(placed, len(there)), *_columns(there, OUTSTANDING, 4), *details]
            self._tables.write(OUTSTANDING_TABLE, columns)
        if self._tables.has("lifetimes"):
            files = self._files.get(journal, [])
            written = {row["age"]: row["written"] for row in files if row["written"] is not None}
            is_linear = journal_format == JournalFormat.LINEAR.label
            header = LINEAR_HEADER_SIZE if is_linear else FILE_HEADER_SIZE
            size = max((row["size"] for row in files), default=header) - header
            lives = list(lifetime_rows(rows, written, size))
            self._tables.write("lifetimes", [*_repeated(placed, len(lives)), *_columns(lives, LIFETIMES, 4)])


def _is_prepared_list(stretch: Stretch) -> bool:
    return stretch.journal is not None and stretch.journal.name == PREPARED_LIST


def _rids(records: Records) -> Any:
    kinds = ("enqueue", "dequeue", "commit", "abort")
    return pa.array(
        [rid for rid, kind in zip(records.rids, records.kinds, strict=True) if rid is not None and kind in kinds],
        pa.int64(),
    )


def _repeated(values: Sequence[Any], count: int) -> list[Any]:
    return [pa.repeat(value, count) for value in values]


def _columns(rows: Sequence[tuple[Any, ...]], schema: Any, skipped: int = 0) -> list[Any]:
    """Rows as the columns of a schema after the first ones."""
    fields = list(schema)[skipped:]
    if not rows:
        return [pa.nulls(0, field.type) for field in fields]
    return [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), fields, strict=True)]


class _Export:
    """The file of a journal in the export, or that of the damage of a store."""

    def __init__(self, job: Job, name: str, columns: tuple[Column, ...]) -> None:
        self._directory, self._name = job.export, name
        self._schema = arrow_schema(columns)
        self._file: Any = None
        self._held: list[Any] = []
        self._size = 0

    def add(self, batch: Any) -> None:
        """Add rows."""
        if self._directory is not None:
            self._held.append(batch)
            self._size += batch.nbytes
            if self._size >= _BATCH_BYTES:
                self._flush()

    def close(self) -> None:
        """Complete the file."""
        if self._held:
            self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            assert self._directory is not None
            names = [self._held[0][name][0].as_py() for name in ("store", "queue")]
            parts = [f"{key}={directory_name(name)}" for key, name in zip(DIRECTORIES, names, strict=True)]
            directory = Path(self._directory, *parts)
            directory.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(str(directory / f"part-{self._name}.parquet"), self._schema)
        self._file.write_table(pa.Table.from_batches(self._held))
        self._held, self._size = [], 0


def _shown(name: str) -> str:
    return str(array("string", [name])[0].as_py())
