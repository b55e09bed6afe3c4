"""Stores, each read once -> the Parquet files of an analysis, and what its summary and report need of each store.

A task of Spark reads some stores and writes the files itself. A store is read journal by journal, the prepared list
first; the walk feeds recovery (`recovery`) and the columns of the export at the same time, and every other table is
made of these columns before the next journal is read (`audit`):

    queues, files          the inventory, and which journals belong to queues
    outstanding            messages that a restart would deliver, or that are in doubt
    audit/...              lifetimes, waits, rates, depth, anomalies
    sizing
    export                 all records with all columns
    work: enqueued         message ids, to compare them with those of a publisher or of another store

What is handed back is a few rows for each queue, for the summary and the report. When Spark's queries made the same
tables of rows that were written for them, Java alone took 37 s of processor time for 30 stores of 1.36 GiB.

Memory: the messages of a journal are independent of each other, so those of a large one are made in `portions`, and
what is to be in the order of the journal (depth, use) is put into portions by position. The outcomes of transactions,
and recovery, are found while it is read.
"""

from __future__ import annotations

import gc
import heapq
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.tools.report.content import MAX_AT, MAX_EXAMPLES, FindingKind
from qstore.tools.spark import audit
from qstore.tools.spark.audit import NAMES, QUEUE, named
from qstore.tools.spark.columns import (
    CODED,
    CODED_TYPE,
    TABLES,
    Column,
    Selection,
    array,
    arrow_schema,
    table_columns,
)
from qstore.tools.spark.inputs import Input, Output
from qstore.tools.spark.portions import Portions, by_last_character, portions_of, remainders
from qstore.tools.spark.records import read_places, read_stretch
from qstore.tools.spark.recovery import (
    FATES,
    IN_DOUBT,
    IN_DOUBT_DEQUEUE,
    IN_DOUBT_ENQUEUE,
    JOURNAL,
    KEPT,
    NEEDED,
    PREPARED_LIST,
    Decision,
    Fates,
    decisions,
    is_kind,
    kept,
    kept_places,
    messages_among,
    one,
    spread,
    targets,
)
from qstore.tools.spark.store_tables import read_tables
from qstore.tools.spark.stretches import Stretch, stretches

RECORDS: Final = "records"
#: Tables that are always written.
INVENTORY: Final = ("queues", "files")
#: Message columns of the table outstanding.
DETAILS: Final = ("exchange", "routing_key", "message_id", "timestamp", "body_length")
OUTSTANDING: Final = "outstanding"
ENQUEUED: Final = "enqueued"
SIZING: Final = "sizing"
_NAMED: Final = tuple((name, pa.string()) for name in QUEUE)
_STORE: Final = _NAMED[:1]
#: Tables of the step audit -> their columns.
AUDIT: Final = {
    "lifetimes": named(audit.LIFETIMES, NAMES),
    "rates": named(audit.RATES, _NAMED),
    "waits": named(audit.WAITS, _NAMED),
    "depth": named(audit.DEPTH, NAMES),
    "duplicates": named(audit.DUPLICATES, _NAMED),
    "gaps": named(audit.GAPS, _STORE),
    "dangling": named(audit.ODD, NAMES),
    "overwritten": named(audit.ODD, NAMES),
    "transactions": named(audit.TRANSACTIONS, _STORE),
    "damage": audit.DAMAGE,
}
#: Those whose rows the summary counts -> metric.
_COUNTED: Final = {
    "duplicates": "duplicates",
    "gaps": "gaps",
    "dangling": "dangling_dequeues",
    "overwritten": "overwritten_dequeues",
    "transactions": "transactions",
}
_MAX_RUNS: Final = 1 << 20  # runs of record ids of a store that are held before they are joined
_WHOLE: Final = 1 << 62  # a journal is not split
_BATCH_BYTES: Final = 16 << 20  # of rows that are written at once
#: Columns that are read for recovery and the tables.
_READ: Final = (*NEEDED, "file", "offset", "flush", "damage", "damage_kind", "consequence", *DETAILS)
#: Those that are held until a journal is complete.
_HELD: Final = (
    "position", "type", "rid", "dequeued_rid", "xid", "prepared", "flags", "size", "flush", "timestamp", "message_id",
)  # fmt: skip
#: What of `audit.LIFETIMES` is summed up for a queue.
_OF_LIVES: Final = ["state", "dequeued", "timestamp", "size", "transactional", "distance", "waited"]
_LIVES: Final = pa.schema([audit.LIFETIMES.field(name) for name in _OF_LIVES])
_BINS: Final = 24  # of sizes that differ little
_POWERS_FROM: Final = 16  # times the least size: from there on bins are powers of 2


@dataclass(frozen=True, slots=True)
class Job:
    """What is read and written.

    Attributes:
        directories: table -> the directory, or URL, of its files.
        export: directory of the export; None for none.
        bodies: whether the tables outstanding and export have bodies.
        report: whether a report needs sizes and findings.
        every_journal: whether the table enqueued has journals that no catalogue knows, too.
    """

    directories: Mapping[str, str]
    export: str | None = None
    bodies: bool = False
    report: bool = False
    every_journal: bool = False


class Finding(NamedTuple):
    """Instances of a kind of finding: their number, and of the first ones where and text."""

    kind: str
    number: int
    examples: list[tuple[str, str]]


@dataclass(slots=True)
class Found:
    """What became of an input.

    Attributes:
        store: its path.
        problem: why it could not be used; None if it could.
        is_fatal: whether nothing more can be written.
        format: of its queues' journals.
        totals: metrics; they are summed over the stores.
        queues: a row for each queue in the catalogue, with what the steps say of it.
        sized: rows of `audit.SIZING`.
        findings: queue, or None for those that belong to none -> its findings.
    """

    store: str
    problem: str | None = None
    is_fatal: bool = False
    format: str | None = None
    totals: dict[str, int] = field(default_factory=dict)
    queues: list[dict[str, Any]] = field(default_factory=list)
    sized: list[dict[str, Any]] = field(default_factory=list)
    findings: dict[str | None, list[Finding]] = field(default_factory=dict)


def write_stores(job: Job, number: int, sources: Iterable[Input]) -> Iterator[Found]:
    """Write the files of some stores.

    Args:
        job: what to write.
        number: distinguishes these files from those of other tasks.
        sources: the stores.

    Yields:
        For each input what became of it.
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
        reason = f"{error.filename or 'the results cannot be written'}: {error.strerror or error}"
        yield Found("", reason, is_fatal=True)
    finally:
        if collected:
            gc.enable()


def write_groups(job: Job, number: int, groups: Iterable[list[Input]]) -> Iterator[Found]:
    """The work of a task of Spark: `write_stores` of groups of stores."""
    return write_stores(job, number, (source for group in groups for source in group))


def _written(job: Job, tables: _Tables, name: str, source: Input) -> Found:
    rows: dict[str, list[dict[str, Any]]] = {}
    for table, batches in read_tables(source, tables.own_columns).items():
        tables.write(table, pa.Table.from_batches(batches, schema=tables.schema(table)))
        rows[table] = [row for batch in batches for row in batch.to_pylist()]
    store = _Store(job, tables, name, source, rows["queues"], rows["files"])
    try:
        store.read(stretches([source], None, _WHOLE))
    except UnusableInputError as error:
        store.found.problem = str(error)
    return store.finished()


class _Tables:
    """The files of a task, one for each table."""

    def __init__(self, job: Job, number: int) -> None:
        self.own_columns = {
            "queues": tuple(column for column in TABLES["queues"] if column.name != "messages"),
            "files": TABLES["files"],
        }
        details = table_columns(RECORDS, ",".join(details_of(job)))
        self._schemas = {
            **AUDIT,
            SIZING: audit.SIZING,
            ENQUEUED: pa.schema([("queue", pa.string()), ("message_id", pa.string())]),
            OUTSTANDING: pa.schema([*named(KEPT, NAMES), *arrow_schema(details)]),
            **{table: arrow_schema(columns) for table, columns in self.own_columns.items()},
        }
        self._files = {
            table: _File(f"{directory}/part-{number:05}.parquet", self._schemas[table])
            for table, directory in job.directories.items()
        }

    def schema(self, table: str) -> Any:
        """The schema of a table."""
        return self._schemas[table]

    def write(self, table: str, rows: Any, names: Sequence[str | None] = ()) -> None:
        """Write rows, with names as their first columns, if the table is wanted."""
        if table in self._files and rows.num_rows:
            count, file = rows.num_rows, self._files[table]
            zeros = pa.repeat(pa.scalar(0, pa.int32()), count if names else 0)
            first = [pa.DictionaryArray.from_arrays(zeros, pa.array([name], pa.string())) for name in names]
            columns = zip([*first, *rows.columns], file.schema, strict=True)
            file.write(pa.table([_with_type(column, of.type) for column, of in columns], schema=file.schema))

    def has(self, table: str) -> bool:
        """Whether a table is wanted."""
        return table in self._files

    def close(self) -> None:
        """Complete the files."""
        for file in self._files.values():
            file.close()


def details_of(job: Job) -> tuple[str, ...]:
    """The message columns of the table outstanding."""
    return (*DETAILS, "body") if job.bodies else DETAILS


def _with_type(column: Any, kind: Any) -> Any:
    """A column with or without dictionary, as it has to be."""
    if column.type == kind:
        return column
    return column.dictionary_encode() if kind == CODED_TYPE else column.cast(kind)


class _File:
    """A Parquet file, whose rows are written when there are many.

    Columns in `columns.CODED` are given with dictionaries, which Parquet has anyway: to make one of each column is a
    third of the time of writing. Readers get text.

    Attributes:
        schema: of the rows.
    """

    def __init__(self, path: str, schema: Any) -> None:
        self._output = Output(path)
        # No reader selects by these, and each has its own in every row.
        plain = {"position", "offset", "rid", "message_id", "body", "dequeued_rid", "enqueued", "dequeued"}
        coded = [field.name for field in schema if field.name not in plain and not pa.types.is_map(field.type)]
        self.schema = pa.schema(
            [field.with_type(CODED_TYPE) if field.name in CODED and field.type == pa.string() else field
             for field in schema],
            {"ARROW:schema": b64encode(schema.serialize())},
        )  # fmt: skip
        self._writer = pq.ParquetWriter(self._output.file, self.schema, use_dictionary=coded, store_schema=False)
        self._held: list[Any] = []
        self._size = 0

    def write(self, rows: Any) -> None:
        """Add rows: a table or a batch."""
        self._held += rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        self._size += rows.nbytes
        if self._size >= _BATCH_BYTES:
            self._flush()

    def close(self) -> None:
        """Complete the file."""
        try:
            self._flush()
            self._writer.close()
        finally:
            self._output.close()

    def _flush(self) -> None:
        if self._held:
            rows = pa.Table.from_batches(self._held, self.schema.remove_metadata())
            self._writer.write_table(rows.unify_dictionaries() if len(self._held) > 1 else rows)
            self._held, self._size = [], 0


# ---- one store ----


@dataclass(slots=True)
class _Queue:
    """What is known of a queue, whose name may be that of several journals."""

    journals: int
    size: int = 0  # bytes of these
    lives: Portions | None = None
    ids: Portions | None = None
    sizes: dict[int, int] | None = None
    row: dict[str, Any] = field(default_factory=dict)


class _Journal:
    """The records of a journal, and the outcomes of its transactions, in portions by message.

    Attributes:
        stretch: the whole journal.
        records, found: the portions of its records, and of `FATES`.
        recovery: of it.
        fates: finds the outcomes.
        names: its names, as in `JOURNAL`; empty without rows.
        end: the position after its last record.
    """

    def __init__(self, stretch: Stretch, records: Portions, found: Portions) -> None:
        self.stretch, self.records, self.found = stretch, records, found
        self.recovery, self.fates = JournalRecovery(), Fates()
        self.names: list[Any] = []
        self.end: int | None = None

    @property
    def count(self) -> int:
        """Number of portions."""
        return self.records.count

    @property
    def size(self) -> int:
        """Bytes of the journal."""
        return 0 if self.stretch.journal is None else self.stretch.journal.size

    def add(self, records: Any) -> None:
        """Add the next records."""
        self.records.add(records, remainders(targets(records), self.count) if self.count > 1 else None)
        if not _is_prepared_list(self.stretch):
            self.add_fates(self.fates.add(records))

    def add_fates(self, found: Any) -> None:
        """Add rows of `FATES`."""
        self.found.add(found, remainders(one(found["target"]), self.count) if self.count > 1 else None)

    def portions(self) -> Iterator[tuple[int, Any, list[Any]]]:
        """Number, records and their outcomes, of each portion."""
        for number in range(self.count):
            records, found = self.records.read(number), self.found.read(number)
            if records is None:
                continue
            yield number, records, spread(records, FATES.empty_table() if found is None else found)

    def close(self) -> None:
        """Remove temporary files."""
        self.records.close()
        self.found.close()


class _Made:
    """What is collected of a journal's messages, a portion at a time.

    Args:
        count: number of portions.
        size: bytes of the journal.

    Attributes:
        changes, reserved: from `audit.changes` and `audit.occupied`, in portions by position.
        odd: from `audit.maybe_odd`.
        seen: from `audit.seen_of`.
        first: the lowest record id that is enqueued.
        longest: from `audit.occupied`.
        branches: of each transaction in doubt, the numbers of messages that it enqueues and dequeues.
    """

    def __init__(self, count: int, size: int) -> None:
        self.changes, self.reserved, self.odd = Portions(count), Portions(count), Portions(count)
        self.seen: dict[str, Any] = {}
        self.first: int | None = None
        self.longest: int | None = None
        self.branches: dict[int, list[int]] = {}
        self._width = -(-size // count)
        self._before = self._length = 0

    def add(self, every: Any, undone: Any, data_size: int | None) -> None:
        """Add messages and undone enqueues; data_size: bytes of data in a file, None if unknown."""
        self._place(self.changes, audit.changes(every))
        if data_size is not None:
            longest, reserved = audit.occupied(every, undone, data_size)
            self.longest = max((each for each in (self.longest, longest) if each is not None), default=None)
            self._place(self.reserved, reserved)
        self._before += audit.initial_depth(every)
        self._length = max(self._length, audit.length_of(every))
        odd = audit.maybe_odd(every)
        self.odd.add(odd, pa.repeat(pa.scalar(0, pa.int64()), odd.num_rows))
        first, seen = audit.first_enqueued(every), audit.seen_of(every)
        self.first = min((each for each in (self.first, first) if each is not None), default=None)
        self.seen = audit.seen_together(self.seen, seen) if self.seen else seen
        if one(every["branch"]).null_count < every.num_rows:
            for row in every.filter(pc.is_valid(every["branch"])).select(["branch", "state"]).to_pylist():
                own = self.branches.setdefault(row["branch"], [0, 0])
                own[0] += row["state"] == IN_DOUBT_ENQUEUE
                own[1] += row["state"] == IN_DOUBT_DEQUEUE

    def series(self) -> Any:
        """The depth: rows of `audit.DEPTH`."""
        parts = list(self.changes.parts()) if self.changes.count == 1 else self.changes.parts()
        return audit.series(parts, self._before, self._length or 1)

    def close(self) -> None:
        """Remove temporary files."""
        for each in (self.changes, self.reserved, self.odd):
            each.close()

    def _place(self, portions: Portions, changes: Any) -> None:
        number = None
        if portions.count > 1:
            number = pc.min_element_wise(pc.divide(one(changes["at"]), self._width), portions.count - 1)
        portions.add(changes, number)


class _Store:
    """Reads and writes one store.

    Args:
        job: what to write.
        tables: where to.
        name: distinguishes its files in the export.
        source: the store.
        queues, files: the rows of these tables.
    """

    def __init__(
        self, job: Job, tables: _Tables, name: str, source: Input, queues: list[dict[str, Any]],
        files: list[dict[str, Any]],
    ) -> None:  # fmt: skip
        self._job, self._tables, self._name, self._source, self._inventory = job, tables, name, source, files
        self._path = shown(source.path)
        self._journals = {row["journal"]: row for row in queues if row["journal"] is not None}
        self._queues = {row["queue"]: _Queue(0, row={"store": self._path, "queue": row["queue"]}) for row in queues}
        for row in self._journals.values():
            self._queues[row["queue"]].journals += 1
            self._queues[row["queue"]].size += (row["files"] or 0) * (row["file_size"] or 0)
        self._ages: dict[str, dict[int, int]] = {}
        self._file_sizes: dict[str, int] = {}
        for row in files:
            if row["kind"] == "journal file" and row["size"] is not None:
                if row["written"] is not None:
                    self._ages.setdefault(row["journal"], {})[row["age"]] = row["written"]
                self._file_sizes[row["journal"]] = max(self._file_sizes.get(row["journal"], 0), row["size"])
        columns: tuple[str, ...] = _READ
        if job.export is not None:
            names = [column.name for column in TABLES[RECORDS] if job.bodies or column.name != "body"]
            columns = tuple(names)
        self._columns: tuple[Column, ...] = table_columns(RECORDS, ",".join(columns))
        self._held = [each for each in dict.fromkeys((*_HELD, *DETAILS)) if each in columns]
        self._decided: dict[str, Decision] = {}
        self._runs: list[Any] = []
        self._damage: list[dict[str, Any]] = []
        self._undecided: list[tuple[str, Any]] = []
        self._unread: set[str] = set(self._journals)
        self._findings: dict[tuple[str | None, FindingKind], list[tuple[str, str]]] = {}
        self._totals = dict.fromkeys(
            ("stores", "queues", "files", "journal_bytes", "records", "record_bytes", "outstanding", "in_doubt",
             "live_bytes", "transactions_in_doubt", "damage", "checksum_failures", *_COUNTED.values(),
             "near_threshold", "peak_near_threshold", "too_small"), 0,
        )  # fmt: skip
        self.found = Found(self._path, format=max((row["format"] for row in queues), default=None))

    def read(self, found: Sequence[Stretch]) -> None:
        """Read the stretches, each a whole journal, and write everything; the prepared list comes first."""
        for index, stretch in enumerate(sorted(found, key=lambda each: not _is_prepared_list(each))):
            self._journal(index, stretch)

    def finished(self) -> Found:
        """Write what is about the whole store."""
        for name in sorted(self._unread):
            self._size(self._journals[name], None, None)
        for queue in self._queues:
            self._finish_queue(queue)
        missing = audit.gaps(self._runs) if self._tables.has("gaps") else audit.GAPS.empty_table()
        self._count("gaps", missing, [self._path])
        open_now = audit.transactions(self._decided, self._undecided)
        self._count("transactions", open_now, [self._path])
        harm = audit.damage(self._damage, self._inventory)
        self._tables.write("damage", harm)
        self._finish(missing, harm)
        return self.found

    def _count(self, table: str, rows: Any, names: Sequence[str | None]) -> None:
        """Write rows of which the summary has the number."""
        self._tables.write(table, rows, names)
        self._totals[_COUNTED[table]] += rows.num_rows

    # ---- a journal ----

    def _journal(self, index: int, stretch: Stretch) -> None:
        exported = _Export(self._job, f"{self._name}-{index:05}", self._columns)
        is_list = _is_prepared_list(stretch)
        count = 1 if is_list or stretch.journal is None else portions_of(stretch.journal.size)
        journal = _Journal(stretch, Portions(count), Portions(count))
        waiting: list[Any] = []
        disk, _ = stretch.source.disk()
        try:
            for batch in read_stretch(stretch, disk, self._columns, Selection(), recovery=journal.recovery, coded=True):
                exported.add(batch)
                if batch.column("damage").null_count < batch.num_rows:
                    self._damage += batch.filter(pc.is_valid(batch.column("damage"))).to_pylist()
                if not journal.names:
                    journal.names = [batch.column(name)[0].as_py() for name in JOURNAL]
                waiting.append(batch.select(self._held))
                if count > 1:
                    self._add(journal, waiting)
            self._add(journal, waiting)
            exported.close()
            if stretch.journal is not None and journal.names:
                self._finish_journal(journal)
        finally:
            journal.close()

    def _add(self, journal: _Journal, waiting: list[Any]) -> None:
        """Add record batches to a journal, which are taken out of the list."""
        if not waiting:
            return
        records = pa.Table.from_batches(waiting).combine_chunks()
        waiting.clear()
        self._runs.append(audit.runs(audit.record_ids(records)))
        if sum(each.num_rows for each in self._runs) > _MAX_RUNS:
            self._runs = [audit.joined_runs(pa.concat_tables(self._runs))]
        self._sum_up(journal, records)
        journal.add(records)

    def _finish_journal(self, journal: _Journal) -> None:
        if _is_prepared_list(journal.stretch):
            self._decided = decisions(journal.recovery, journal.records.read(0))
            return
        known = {bytes.fromhex(xid): Outcome(each.outcome) for xid, each in self._decided.items()}
        journal.add_fates(journal.fates.rest(self._decided, journal.recovery.resolve(known)))
        if journal.names[3] in self._journals:
            self._messages(journal)
        elif self._job.every_journal:
            for _, records, fates in journal.portions():
                self._enqueued(journal.names[2], audit.kept_enqueues(records, fates[0]))

    def _sum_up(self, journal: _Journal, records: Any) -> None:
        """Totals of all records, and the position after the last one."""
        name = journal.names[2]
        sizes, stamps = one(records["size"]), one(records["timestamp"])
        is_record = pc.invert(is_kind(records, "damage"))
        count = _sum(is_record)
        size = _sum(sizes.filter(is_record))
        self._totals["records"] += count
        self._totals["record_bytes"] += size
        if name in self._queues:
            row = self._queues[name].row
            sound = stamps.filter(
                pc.fill_null(pc.and_(pc.greater_equal(stamps, 1), pc.less_equal(stamps, int(MAX_AT["time"]))), False)
            )
            first, last = pc.min(sound).as_py(), pc.max(sound).as_py()
            row["enqueues"] = row.get("enqueues", 0) + _sum(is_kind(records, "enqueue"))
            row["dequeues"] = row.get("dequeues", 0) + _sum(is_kind(records, "dequeue"))
            row["record_bytes"] = row.get("record_bytes", 0) + size
            row["first_timestamp"] = min(
                (each for each in (row.get("first_timestamp"), first) if each is not None), default=None
            )
            row["last_timestamp"] = max(
                (each for each in (row.get("last_timestamp"), last) if each is not None), default=None
            )
        end = pc.max(pc.add(one(records["position"]), sizes).filter(is_record)).as_py()
        journal.end = max((each for each in (journal.end, end) if each is not None), default=None)

    def _messages(self, journal: _Journal) -> None:
        """Write what is to be said of the messages of a journal that belongs to a queue."""
        names = journal.names
        row = self._journals[names[3]]
        queue = self._queues[row["queue"]]
        there = kept_places(journal.recovery)
        portion = remainders(there["rid"], journal.count) if journal.count > 1 else None
        header = audit.header_size(names[1])
        data_size = None if row["file_size"] is None else max(row["file_size"] - header, 1)
        made = _Made(journal.count, journal.size)
        try:
            for number, records, fates in journal.portions():
                some = there if portion is None else there.filter(pc.equal(portion, number))
                every = messages_among(records, fates, some)
                made.add(every, audit.undone_enqueues(records, fates), data_size)
                kept_ones = audit.kept_enqueues(records, fates[0])
                self._outstanding(journal, every, records)
                self._enqueued(names[2], kept_ones)
                if fates[0].null_count < len(fates[0]):
                    self._undecided.append((names[2], audit.undecided(records, fates[0])))
                self._of_queue(queue, journal, every, kept_ones)
            self._odd(row["queue"], journal, made)
            self._in_doubt(row["queue"], made.branches)
            self._size(row, journal, made)
        finally:
            made.close()
        queue.journals -= 1
        if not queue.journals:
            self._finish_queue(row["queue"])

    def _of_queue(self, queue: _Queue, journal: _Journal, every: Any, kept_ones: Any) -> None:
        """Write lifetimes and what is twice, of some messages, and keep what is to be said of their queue."""
        names = journal.names
        count = portions_of(queue.size)
        if self._tables.has("lifetimes"):
            header = audit.header_size(names[1])
            data_size = max(self._file_sizes.get(names[3], header) - header, 0)
            lives = audit.lifetimes(every, self._ages.get(names[3], {}), data_size)
            self._tables.write("lifetimes", lives, names)
            queue.lives = queue.lives or Portions(count)
            queue.lives.add(lives.select(_OF_LIVES), pa.repeat(pa.scalar(0, pa.int64()), lives.num_rows))
        if self._tables.has("duplicates"):
            self._duplicates(names[2], audit.same_record_ids(kept_ones))
            queue.ids = queue.ids or Portions(count)
            ids = audit.message_ids(kept_ones)
            queue.ids.add(ids, by_last_character(one(ids["message_id"]), count) if count > 1 else None)
        if self._job.report:
            queue.sizes = {} if queue.sizes is None else queue.sizes
            for each in pc.value_counts(one(every["size"]).filter(pc.is_valid(one(every["state"])))).to_pylist():
                queue.sizes[each["values"]] = queue.sizes.get(each["values"], 0) + each["counts"]

    def _odd(self, queue: str, journal: _Journal, made: _Made) -> None:
        for some in made.odd.pieces(0):
            odd = audit.explained(some, made.first)
            is_odd = pc.not_equal(odd["what"], audit.OVERWRITTEN)
            self._count("dangling", odd.filter(is_odd), journal.names)
            self._count("overwritten", odd.filter(pc.invert(is_odd)), journal.names)
            for each in odd.filter(is_odd).to_pylist() if self._job.report else ():
                where = f"{journal.names[3]}, place {each['position']}"
                self._note(queue, FindingKind.DANGLING, where, f"message {each['rid']}: {each['what']}")

    def _size(self, row: Mapping[str, Any], journal: _Journal | None, made: _Made | None) -> None:
        """Depth, totals and sizing of a journal; without its messages if it has no records."""
        seen, journal_format = audit.NOTHING_OBSERVED, row["format"]
        self._unread.discard(row["journal"])
        queue = self._queues[row["queue"]]
        if journal is not None and made is not None:
            journal_format = journal.names[1]
            series = made.series()
            self._tables.write("depth", series, journal.names)
            peaks = {name: pc.max(series[name]).as_py() for name in ("peak", "peak_bytes", "peak_reserved")}
            most = {"longest": made.longest, "reserved": audit.most_reserved(made.reserved.parts())}
            end = made.seen["end"] if journal.end is None else journal.end
            seen = made.seen | audit.seen_in_all(peaks, most, end)
            if peaks["peak"] is not None and self._tables.has("depth"):
                queue.row["peak"] = max(queue.row.get("peak", peaks["peak"]), peaks["peak"])
        for name in ("outstanding", "in_doubt", "live_bytes"):
            self._totals[name] += seen[name]
            queue.row[name] = queue.row.get(name, 0) + seen[name]
        if not self._tables.has(SIZING) or journal_format not in audit.FORMATS:
            return
        known = {**row, "format": journal_format, "store": self._path}
        sized = audit.sized(known | seen)
        self.found.sized.append(sized)
        self._tables.write(SIZING, pa.Table.from_pylist([sized], audit.SIZING))
        queue.row |= {name: sized[name] for name in _SHOWN if "files" not in queue.row}
        for name in ("near_threshold", "peak_near_threshold"):
            self._totals[name] += bool(sized[name])
        self._totals["too_small"] += sized["large_enough"] is False

    def _outstanding(self, journal: _Journal, every: Any, records: Any) -> None:
        if not self._tables.has(OUTSTANDING):
            return
        names, stretch = journal.names, journal.stretch
        by_position = names[1] == JournalFormat.VERSION_1.label
        there = kept(every, self._decided, by_position=by_position)
        if not there.num_rows:
            return
        wanted = details_of(self._job)
        if all(name in self._held for name in wanted):
            enqueues = pc.indices_nonzero(is_kind(records, "enqueue"))
            where = pc.index_in(one(there["position"]), one(records["position"]).take(enqueues))
            rows = records.select(wanted).take(enqueues.take(where))
            self._tables.write(
                OUTSTANDING, pa.table([*there.columns, *rows.columns], names=[*there.column_names, *wanted]), names
            )
            return
        there = there.take(pc.sort_indices(there["position"]))
        columns = table_columns(RECORDS, ",".join(wanted))
        part = stretch.journal
        assert part is not None
        disk, _ = stretch.source.disk()
        done = 0
        for rows in read_places(part, disk, columns, one(there["position"]).to_pylist()):
            some = there.slice(done, rows.num_rows)
            done += rows.num_rows
            self._tables.write(
                OUTSTANDING, pa.table([*some.columns, *rows.columns], names=[*there.column_names, *wanted]), names
            )

    def _enqueued(self, name: str, kept_ones: Any) -> None:
        if self._tables.has(ENQUEUED):
            ids = audit.message_ids(kept_ones)
            rows = pa.table(
                [pa.repeat(pa.scalar(name), ids.num_rows), ids["message_id"]], names=["queue", "message_id"]
            )
            self._tables.write(ENQUEUED, rows)

    def _duplicates(self, name: str, twice: Any) -> None:
        self._count("duplicates", twice, [self._path, name])
        for each in twice.to_pylist() if self._job.report else ():
            text = f"{each['copies']} times the same {each['what']}"
            where = f"records {each['first_rid']} to {each['last_rid']}"
            self._note(
                name,
                FindingKind.DUPLICATE,
                where,
                text if each["message_id"] is None else f"{text} {each['message_id']}",
            )

    def _in_doubt(self, name: str, held: Mapping[int, list[int]]) -> None:
        """Note each transaction in doubt that holds messages of a queue; held: as `_Made.branches`."""
        if not self._job.report:
            return
        for xid, decision in self._decided.items():
            if decision.outcome == IN_DOUBT and decision.branch in held:
                self._note(name, FindingKind.IN_DOUBT, xid, _would(*held[decision.branch]))

    # ---- a queue, and the store ----

    def _finish_queue(self, name: str) -> None:
        queue = self._queues[name]
        if queue.ids is not None:
            for ids in queue.ids.parts():
                self._duplicates(name, audit.same_message_ids(ids))
            queue.ids.close()
        if queue.lives is not None:
            lives = queue.lives.every(_LIVES)
            for table, schema, row in (
                ("rates", audit.RATES, audit.rates(lives)),
                ("waits", audit.WAITS, waited := audit.waits(lives)),
            ):
                if row is not None:
                    self._tables.write(table, pa.Table.from_pylist([row], schema), [self._path, name])
            queue.row |= waited or {}
            queue.lives.close()
        if queue.sizes is not None:
            queue.row["sizes"] = size_bins(queue.sizes)
        queue.lives, queue.ids, queue.sizes = None, None, None

    def _finish(self, missing: Any, harm: Any) -> None:
        totals, found = self._totals, self.found
        files = [row for row in self._inventory if row["kind"] == "journal file" and row["size"] is not None]
        known = any(row["kind"] != "unusable" for row in self._inventory) or self._queues or totals["records"]
        totals["stores"], totals["queues"] = int(bool(known)), len(self._queues)
        totals["files"], totals["journal_bytes"] = len(files), sum(row["size"] for row in files)
        in_doubt = [xid for xid, each in self._decided.items() if each.outcome == IN_DOUBT]
        totals["transactions_in_doubt"] = len(in_doubt)
        totals["damage"], totals["checksum_failures"] = harm.num_rows, _sum(harm["checksum"])
        if self._job.report:
            self._note_all(missing, harm, in_doubt)
        found.totals = totals
        found.queues = [queue.row for queue in self._queues.values()]
        for (name, kind), instances in self._findings.items():
            finding = Finding(kind.name, len(instances), heapq.nsmallest(MAX_EXAMPLES, instances))
            found.findings.setdefault(name, []).append(finding)

    def _note_all(self, missing: Any, harm: Any, in_doubt: list[str]) -> None:
        for row in missing.to_pylist():
            text = f"{row['missing']:,} missing between {row['after']:,} and {row['before']:,}"
            self._note(None, FindingKind.GAP, self._path, text)
        for row in harm.to_pylist():
            parts = (row["file"], _place("offset", row["offset"]), _place("record", row["rid"]))
            where = " ".join(part for part in parts if part is not None)
            text = "; ".join(part for part in (row["damage"], row["consequence"]) if part is not None)
            owner = row["queue"] if row["queue"] in self._queues else None
            self._note(owner, FindingKind.DAMAGE, where, text)
            if row["checksum"]:
                self._note(owner, FindingKind.CHECKSUM, where, text)
        named_somewhere = {
            where for (_, kind), each in self._findings.items() if kind is FindingKind.IN_DOUBT for where, _ in each
        }
        for xid in in_doubt:
            if xid not in named_somewhere:
                self._note(None, FindingKind.IN_DOUBT, xid, _would(0, 0))

    def _note(self, queue: str | None, kind: FindingKind, where: str, text: str) -> None:
        self._findings.setdefault((queue, kind), []).append((where, text))


#: Of a row of `audit.SIZING`, what the report shows of a queue.
_SHOWN: Final = (
    "files", "pages", "capacity", "limit", "peak_fill", "peak_near_threshold", "large_enough", "num_jfiles",
    "jfile_size_pgs",
)  # fmt: skip


def _is_prepared_list(stretch: Stretch) -> bool:
    return stretch.journal is not None and stretch.journal.name == PREPARED_LIST


def _sum(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)


def _place(what: str, number: int | None) -> str | None:
    return None if number is None else f"{what} {number}"


def _would(enqueues: int, dequeues: int) -> str:
    noun = "message" if enqueues == 1 else "messages"
    return f"it would enqueue {enqueues:,} {noun} and dequeue {dequeues:,}"


def shown(name: str) -> str:
    """A name as it is in tables."""
    return str(array("string", [name])[0].as_py())


def size_bins(sizes: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Messages by record size (size -> number): low, high (bytes, exclusive), messages; without empty bins.

    Sizes that are all alike are one bin of one byte. Sizes that differ by less than `_POWERS_FROM` times have bins of
    equal width in whole blocks, at most `_BINS`; others have powers of 2.
    """
    pairs = [(size, count) for size, count in sizes.items() if size > 0]
    if not pairs:
        return []
    least, most = min(pairs)[0], max(pairs)[0]
    width = 1 if least == most else -(-(most - least + BLOCK_SIZE) // (BLOCK_SIZE * _BINS)) * BLOCK_SIZE
    bins: dict[int, int] = {}
    is_narrow = most < least * _POWERS_FROM
    for size, count in pairs:
        low = least + (size - least) // width * width if is_narrow else 1 << size.bit_length() - 1
        bins[low] = bins.get(low, 0) + count
    return [(low, low + (width if is_narrow else low), count) for low, count in sorted(bins.items())]


# ---- the export ----

_NOT_PLAIN: Final = re.compile("[^A-Za-z0-9_.]+")
SHOWN_NAME: Final = 40  # characters of the name
DIGEST: Final = 12  # characters of the digest: among a million names, the chance of a collision is 1 in 500
#: The columns that name the directories of an export.
DIRECTORIES: Final = ("store_directory", "queue_directory")


def directory_name(name: str | None) -> str:
    """The name of a store's or a queue's directory in the export; "none" without a name.

    Paths and queue names are unsuitable: they contain slashes, are too long, or look like numbers, which Spark would
    convert. So a directory is named by the end of the name, reduced to plain characters, and a digest of the whole:
    `store_directory=data-qpidd-3f0a…/queue_directory=orders-91bc…`. The full names are columns of the rows.
    """
    if name is None:
        return "none"
    end = _NOT_PLAIN.sub("-", name)[-SHOWN_NAME:].lstrip("-.")
    return f"{end}-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:DIGEST]}"


class _Export:
    """The file of a journal in the export, or that of the damage of a store."""

    def __init__(self, job: Job, name: str, columns: tuple[Column, ...]) -> None:
        self._directory, self._name = job.export, name
        self._schema = arrow_schema(columns)
        self._file: _File | None = None

    def add(self, batch: Any) -> None:
        """Add rows."""
        if self._directory is None:
            return
        if self._file is None:
            names = [batch[name][0].as_py() for name in ("store", "queue")]
            parts = [f"{key}={directory_name(name)}" for key, name in zip(DIRECTORIES, names, strict=True)]
            self._file = _File("/".join([self._directory, *parts, f"part-{self._name}.parquet"]), self._schema)
        self._file.write(batch)

    def close(self) -> None:
        """Complete the file."""
        if self._file is not None:
            self._file.close()
