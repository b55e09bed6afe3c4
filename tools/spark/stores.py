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

Spark gets rows only for the summary and the report: a few for each queue. When its queries made the same tables of rows
that were written for them, Java took 37 s of processor time for 30 stores of 1.36 GiB, and now 7, which it takes to
start (`qstore-generate --stores 10 --bytes 512MiB --in-doubt 2 --damage 0.05` in each format; README of `tools`).
"""

from __future__ import annotations

import gc
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.tools.report.content import MAX_AT, MAX_EXAMPLES, FindingKind
from qstore.tools.spark import audit
from qstore.tools.spark.audit import NAMES, QUEUE, named
from qstore.tools.spark.columns import TABLES, Column, Selection, array, arrow_schema, table_columns
from qstore.tools.spark.inputs import Input, Output
from qstore.tools.spark.records import read_places, read_stretch
from qstore.tools.spark.recovery import (
    IN_DOUBT,
    IN_DOUBT_DEQUEUE,
    IN_DOUBT_ENQUEUE,
    JOURNAL,
    KEPT,
    NEEDED,
    PREPARED_LIST,
    Decision,
    decisions,
    kept,
    messages,
    one,
    outcomes,
)
from qstore.tools.spark.store_tables import read_store
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
_WHOLE: Final = 1 << 62  # a journal is not split
_BATCH_BYTES: Final = 16 << 20  # of rows that are written at once
#: Columns that are read for recovery and the tables.
_READ: Final = (*NEEDED, "file", "offset", "flush", "damage", "damage_kind", "consequence", *DETAILS)
#: Those that are held until a journal is complete.
_HELD: Final = (
    "position", "type", "rid", "dequeued_rid", "xid", "prepared", "flags", "size", "flush", "timestamp", "message_id",
)  # fmt: skip
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


def _written(job: Job, tables: _Tables, name: str, source: Input) -> Found:
    rows: dict[str, list[dict[str, Any]]] = {}
    for table in INVENTORY:
        batches = list(read_store(source, table, tables.own_columns[table], Selection()))
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
            first = [pa.repeat(pa.scalar(name, pa.string()), rows.num_rows) for name in names]
            self._files[table].write(pa.table([*first, *rows.columns], schema=self._schemas[table]))

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


class _File:
    """A Parquet file, whose rows are written when there are many."""

    def __init__(self, path: str, schema: Any) -> None:
        self._output = Output(path)
        # No reader selects by these, and each has its own in every row.
        plain = {"position", "offset", "rid", "message_id", "body", "dequeued_rid", "enqueued", "dequeued"}
        coded = [field.name for field in schema if field.name not in plain and not pa.types.is_map(field.type)]
        self._writer = pq.ParquetWriter(self._output.file, schema, use_dictionary=coded)
        self._schema = schema
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
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
            self._held, self._size = [], 0


# ---- one store ----


@dataclass(slots=True)
class _Queue:
    """What is known of a queue, whose name may be that of several journals."""

    journals: int
    lives: list[Any] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)


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
        self._rids: list[Any] = []
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
        missing = audit.gaps(self._rids) if self._rids and self._tables.has("gaps") else audit.GAPS.empty_table()
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
        batches: list[Any] = []
        names: list[Any] = []
        recovery = JournalRecovery()
        disk, _ = stretch.source.disk()
        for batch in read_stretch(stretch, disk, self._columns, Selection(), recovery=recovery):
            exported.add(batch)
            if batch.column("damage").null_count < batch.num_rows:
                self._damage += batch.filter(pc.is_valid(batch.column("damage"))).to_pylist()
            batches.append(batch.select(self._held))
            if not names:
                names = [batch.column(name)[0].as_py() for name in JOURNAL]
        exported.close()
        if not batches:
            return
        records = pa.Table.from_batches(batches).combine_chunks()
        batches.clear()
        self._rids.append(audit.record_ids(records))
        end = self._sum_up(names[2], records)
        if stretch.journal is None:
            return
        if _is_prepared_list(stretch):
            self._decided = decisions(recovery, records)
            return
        known = {bytes.fromhex(xid): Outcome(each.outcome) for xid, each in self._decided.items()}
        fates = outcomes(records, self._decided, recovery.resolve(known))
        if names[3] in self._journals:
            self._messages(names, records, fates, recovery, stretch, end)
        elif self._job.every_journal:
            self._enqueued(names[2], records, fates[0])

    def _sum_up(self, name: str | None, records: Any) -> int | None:
        """Totals of all records; returns the position after the last one."""
        kinds, sizes, stamps = one(records["type"]), one(records["size"]), one(records["timestamp"])
        is_record = pc.not_equal(kinds, "damage")
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
            row["enqueues"] = row.get("enqueues", 0) + _sum(pc.equal(kinds, "enqueue"))
            row["dequeues"] = row.get("dequeues", 0) + _sum(pc.equal(kinds, "dequeue"))
            row["record_bytes"] = row.get("record_bytes", 0) + size
            row["first_timestamp"] = min(
                (each for each in (row.get("first_timestamp"), first) if each is not None), default=None
            )
            row["last_timestamp"] = max(
                (each for each in (row.get("last_timestamp"), last) if each is not None), default=None
            )
        end: int | None = pc.max(pc.add(one(records["position"]), sizes).filter(is_record)).as_py()
        return end

    def _messages(
        self, names: list[Any], records: Any, fates: list[Any], recovery: JournalRecovery, stretch: Stretch,
        end: int | None,
    ) -> None:  # fmt: skip
        _, journal_format, name, journal = names
        every = messages(records, fates, recovery)
        row = self._journals[journal]
        queue = self._queues[row["queue"]]
        self._outstanding(names, every, records, stretch)
        self._enqueued(name, records, fates[0])
        self._count(
            "dangling",
            (odd := audit.odd_dequeues(every)).filter(is_odd := pc.not_equal(odd["what"], audit.OVERWRITTEN)),
            names,
        )
        self._count("overwritten", odd.filter(pc.invert(is_odd)), names)
        for each in odd.filter(is_odd).to_pylist() if self._job.report else ():
            where = f"{journal}, place {each['position']}"
            self._note(row["queue"], FindingKind.DANGLING, where, f"message {each['rid']}: {each['what']}")
        if fates[0].null_count < len(fates[0]):
            self._undecided.append((name, audit.undecided(records, fates[0])))
        if self._tables.has("lifetimes"):
            header = audit.header_size(journal_format)
            data_size = max(self._file_sizes.get(journal, header) - header, 0)
            lives = audit.lifetimes(every, self._ages.get(journal, {}), data_size)
            self._tables.write("lifetimes", lives, names)
            queue.lives.append(lives)
        if self._tables.has("duplicates"):
            self._duplicates(name, audit.same_record_ids(records, fates[0]))
            queue.ids.append(audit.message_ids(records, fates[0]))
        if self._job.report:
            sizes = one(every["size"]).filter(pc.is_valid(one(every["state"])))
            queue.sizes.append(sizes)
        self._in_doubt(row["queue"], every)
        self._size(row, (names, every, audit.undone_enqueues(records, fates)), end)
        queue.journals -= 1
        if not queue.journals:
            self._finish_queue(row["queue"])

    def _size(self, row: Mapping[str, Any], read: tuple[list[Any], Any, Any] | None, end: int | None) -> None:
        """Depth, totals and sizing of a journal; `read`: its names, messages and undone enqueues, if it has records."""
        seen, journal_format = audit.NOTHING_OBSERVED, row["format"]
        self._unread.discard(row["journal"])
        queue = self._queues[row["queue"]]
        if read is not None:
            names, every, undone = read
            journal_format = names[1]
            series = audit.depth(every)
            self._tables.write("depth", series, names)
            peaks = {name: pc.max(series[name]).as_py() for name in ("peak", "peak_bytes", "peak_reserved")}
            most = {}
            if row["file_size"] is not None:
                most = audit.use(every, undone, max(row["file_size"] - audit.header_size(journal_format), 1))
            seen = audit.observed(every, peaks, most, end)
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

    def _outstanding(self, names: list[Any], every: Any, records: Any, stretch: Stretch) -> None:
        if not self._tables.has(OUTSTANDING):
            return
        by_position = names[1] == JournalFormat.VERSION_1.label
        there = kept(every, self._decided, by_position=by_position)
        if not there.num_rows:
            return
        wanted = details_of(self._job)
        if all(name in self._held for name in wanted):
            enqueues = records.filter(pc.equal(records["type"], "enqueue"))
            rows = enqueues.select(wanted).take(pc.index_in(one(there["position"]), one(enqueues["position"])))
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

    def _enqueued(self, name: str, records: Any, fates: Any) -> None:
        if self._tables.has(ENQUEUED):
            ids = audit.message_ids(records, fates)
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

    def _in_doubt(self, name: str, every: Any) -> None:
        """Note each transaction in doubt that holds messages of a queue."""
        if not self._job.report or one(every["branch"]).null_count == every.num_rows:
            return
        held: dict[int, list[int]] = {}
        for row in every.filter(pc.is_valid(every["branch"])).select(["branch", "state"]).to_pylist():
            own = held.setdefault(row["branch"], [0, 0])
            own[0] += row["state"] == IN_DOUBT_ENQUEUE
            own[1] += row["state"] == IN_DOUBT_DEQUEUE
        for xid, decision in self._decided.items():
            if decision.outcome == IN_DOUBT and decision.branch in held:
                self._note(name, FindingKind.IN_DOUBT, xid, _would(*held[decision.branch]))

    # ---- a queue, and the store ----

    def _finish_queue(self, name: str) -> None:
        queue = self._queues[name]
        if queue.ids:
            ids = pa.concat_tables(queue.ids)
            self._duplicates(name, audit.same_message_ids(ids))
        if queue.lives:
            lives = pa.concat_tables(queue.lives)
            for table, schema, row in (
                ("rates", audit.RATES, audit.rates(lives)),
                ("waits", audit.WAITS, waited := audit.waits(lives)),
            ):
                if row is not None:
                    self._tables.write(table, pa.Table.from_pylist([row], schema), [self._path, name])
            queue.row |= waited or {}
        if queue.sizes:
            queue.row["sizes"] = size_bins(pa.chunked_array(queue.sizes, pa.int64()))
        queue.lives, queue.ids, queue.sizes = [], [], []

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


def size_bins(sizes: Any) -> list[tuple[int, int, int]]:
    """Messages by record size: low, high (bytes, exclusive), messages; bins without messages are left out.

    Sizes that are all alike are one bin of one byte. Sizes that differ by less than `_POWERS_FROM` times have bins of
    equal width in whole blocks, at most `_BINS`; others have powers of 2.
    """
    counted = pc.value_counts(sizes.filter(pc.greater(sizes, 0)))
    pairs = [(each["values"], each["counts"]) for each in counted.to_pylist()]
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
