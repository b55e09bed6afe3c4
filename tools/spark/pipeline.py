"""The analysis of the table of records: functions from DataFrames to DataFrames.

    records = spark.read.format("qstore").load("/fleet/*/qpidd")
    queues = spark.read.format("qstore").option("table", "queues").load("/fleet/*/qpidd")

    outstanding(records, queues)          what a restart would deliver
    lifetimes(records), depth(…), waits(…), rates(…)
    duplicates, gaps, dangling, open_transactions, damage, checksum failures
    reconcile(left, right, on=…)          the differences between two tables of ids
    sizing(records, queues)               how large each journal should be
    export(records, path)                 Parquet by store and queue

Spark does not tell a Python data source which columns it needs: read the records with `option("columns", …)`, naming
those of `NEEDED` and any others, or every body is read.

The functions group rows by journal, queue or store, and each group is worked on by a Python worker: the rows of a
journal go through the store's own recovery (`recovery`), and the tables are those of an analysis (`audit`). A group is
in the worker's memory, without bodies. Only keys and numbers are shuffled; bodies are joined back by position, on
request. `outstanding` and `messages` pass over the records once; functions that take messages may pass over them more
often. To compute several tables of a large fleet, write records without bodies, and then the messages, to Parquet, and
continue from there. `qstore-analyze` has the same tables from one pass over the journals, without Spark's rows.

No function collects rows on the driver except `sizing`, which collects one per queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from qstore.store.journal.files import JournalFormat
from qstore.store.journal.recovery import JournalRecovery, OpenTransaction, Outcome
from qstore.tools.spark import audit
from qstore.tools.spark.audit import NAMES, OVERWRITTEN, QUEUE, named
from qstore.tools.spark.recovery import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    DEQUEUED,
    IN_DOUBT,
    IN_DOUBT_DEQUEUE,
    IN_DOUBT_ENQUEUE,
    JOURNAL,
    KEPT,
    MESSAGES,
    NEEDED,
    OUTCOME,
    OUTSTANDING,
    PREPARED,
    PREPARED_LIST,
    UNDONE,
    UNPREPARED,
    Decision,
    decisions,
    has_flag,
    kept,
    one,
    outcomes,
    prepared_table,
    replayed,
    targets,
)
from qstore.tools.spark.recovery import messages as messages_in
from qstore.tools.spark.stores import DIGEST, DIRECTORIES, SHOWN_NAME

__all__ = [
    "ABORTED", "ABORTING", "COMMITTED", "COMMITTING", "DEQUEUED", "IN_DOUBT", "IN_DOUBT_DEQUEUE", "IN_DOUBT_ENQUEUE",
    "NEEDED", "OUTSTANDING", "PREPARED_LIST", "UNPREPARED", "damage", "dangling", "depth", "duplicates", "export",
    "gaps", "in_doubt_transactions", "lifetimes", "messages", "messages_of", "open_transactions", "operations",
    "outstanding", "overwritten", "peak_use", "peaks", "prepared_transactions", "rates", "reconcile", "sizing", "waits",
]  # fmt: skip
ENDS: Final = ("commit", "abort")
OPERATIONS: Final = ("enqueue", "dequeue")
_PLACE: Final = ("store", "journal", "position")
_PASSED_ON: Final = ("flush", "timestamp")  # if the records have them
_LONG, _STRING = pa.int64(), pa.string()
_OF_QUEUE: Final = tuple((name, _STRING) for name in QUEUE)
_OF_STORE: Final = _OF_QUEUE[:1]

#: Of one group: its key and its rows -> the rows of the result, without the names of the group.
_Work = Callable[[tuple[Any, ...], Any], Any]


def _by(rows: DataFrame, names: Sequence[tuple[str, Any]], work: _Work, schema: Any) -> DataFrame:
    """The results of groups, with their names in front."""
    whole = named(schema, names)

    def of_group(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        found = work(key, table)
        first = [pa.repeat(pa.scalar(each.as_py(), _STRING), found.num_rows) for each in key]
        return pa.table([*first, *found.columns], schema=whole)

    # `GroupedData.applyInArrow` does the same, but refuses to without pandas, which it does not use.
    kind = PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF
    apply = UserDefinedFunction(of_group, returnType=from_arrow_schema(whole), evalType=kind)
    grouped: Any = rows.groupBy(*(name for name, _ in names))
    columns: Any = apply(*(rows[name] for name in rows.columns))
    return DataFrame(grouped._jgd.flatMapGroupsInArrow(columns._jc), rows.sparkSession)


def _row(found: Mapping[str, Any] | None, schema: Any) -> Any:
    return pa.Table.from_pylist([] if found is None else [dict(found)], schema)


# ---- what recovery makes of the records ----


def prepared_transactions(records: DataFrame) -> DataFrame:
    """The transactions that are open in the prepared lists, and what recovery does with each.

    The result is as small as the prepared lists: Spark is told to broadcast it.

    Args:
        records: columns store, queue, type, position, rid, dequeued_rid, xid, prepared, flags.

    Returns:
        store, xid; two_phase: dtx, local, or null if only a dequeue is left; outcome: in-doubt, committing, aborting;
        branch: a number that identifies the transaction within its store. One that is not here was never prepared.
    """
    needed = ("store", "type", "position", "rid", "dequeued_rid", "xid", "prepared", "flags")
    listed = records.where((kept_here("queue") == PREPARED_LIST) & kind_is(*OPERATIONS, *ENDS)).select(*needed)
    return _by(listed, _OF_STORE, lambda _, rows: prepared_table(decisions(replayed(rows), rows)), PREPARED)


def operations(records: DataFrame, prepared_lists: DataFrame | None = None, also: Sequence[str] = ()) -> DataFrame:
    """Enqueues and dequeues in the queues' journals, and the outcome of each.

    Args:
        records: columns `NEEDED`; flush and timestamp if available.
        prepared_lists: records of the prepared lists, read separately (which is cheap with the data source's option
            `queue` = "TplStore"); None to select them from `records`, which are then read twice.
        also: additional columns to pass through.

    Returns:
        store, format, queue, journal, rid (of a dequeue that of its message), type, xid, moved, position, size, flush
        and timestamp (null if the records have none), `also`, fate, time, branch, ended. fate: null outside
        transactions, else committed, aborted, committing, aborting, in-doubt, unprepared. branch: for operations in
        doubt. ended: the position of the commit or abort.
    """
    narrow, schema = _narrow(records, records, prepared_lists, also)
    plain = [field for field in schema if field.name not in (*JOURNAL, *_DECISION, "dequeued_rid", "flags")]
    result = pa.schema([*plain, ("moved", pa.bool_()), *OUTCOME])

    def of_journal(_key: tuple[Any, ...], rows: Any) -> Any:
        rows, _, _, found = _recovered(rows)
        is_operation = pc.is_in(rows["type"], pa.array(OPERATIONS))
        columns = {
            **{name: rows[name] for name in rows.column_names},
            "rid": targets(rows),
            "moved": has_flag(rows, "moved"),
        }
        columns |= dict(zip(OUTCOME.names, found, strict=True))
        return pa.table([columns[field.name] for field in result], schema=result).filter(is_operation)

    found = _by(narrow, NAMES, of_journal, result)
    return found.select(*JOURNAL, "rid", "type", "xid", "moved", "position", "size", *_PASSED_ON, *also, *OUTCOME.names)


def messages(records: DataFrame, prepared_lists: DataFrame | None = None) -> DataFrame:
    """The messages of each journal, including dequeued ones, and dequeues of missing messages.

    Args:
        records: as for `operations`.
        prepared_lists: likewise.

    Returns:
        store, format, queue, journal, rid; state: outstanding, in-doubt-enqueue, in-doubt-dequeue, dequeued, or null
        if the journal has only dequeues of it; position: of the effective enqueue record; size: bytes of
        that record on disk; added, removed: times (`recovery`); branch: the transaction in doubt; enqueues, dequeues:
        numbers of records, without compaction copies; transactional: whether any was in a transaction;
        timestamp; added_flush, removed_flush; dequeue_position, last_position: the
        first dequeue record, and the last record of all.
    """
    narrow, _ = _narrow(records, records, prepared_lists, ())

    def of_journal(_key: tuple[Any, ...], rows: Any) -> Any:
        rows, _, recovery, found = _recovered(rows)
        return messages_in(rows, found, recovery)

    return _by(narrow, NAMES, of_journal, MESSAGES)


def messages_of(found: DataFrame) -> DataFrame:
    """The same, from `operations`."""

    def of_journal(_key: tuple[Any, ...], rows: Any) -> Any:
        flags = pa.array([["moved"] if moved else [] for moved in rows["moved"].to_pylist()], pa.list_(_STRING))
        rows = rows.append_column("flags", flags).append_column("dequeued_rid", rows["rid"])
        recovery = replayed(_with_ends(rows))
        recovery.resolve(_fates(rows))
        return messages_in(rows, [one(rows[name]) for name in OUTCOME.names], recovery)

    needed = ("rid", "type", "xid", "moved", "position", "size", *_PASSED_ON, *OUTCOME.names)
    return _by(found.select(*JOURNAL, *needed), NAMES, of_journal, MESSAGES)


#: Columns of an operation's decision, by the prepared list.
_DECISION: Final = ("two_phase", "outcome", "branch")


def _narrow(
    some: DataFrame, records: DataFrame, prepared_lists: DataFrame | None, also: Sequence[str]
) -> tuple[DataFrame, Any]:
    """Some records, of the queues' journals, with the decisions about their transactions; and their Arrow schema."""
    passed = [
        sql.col(name) if name in records.columns else sql.lit(None).cast("bigint").alias(name) for name in _PASSED_ON
    ]
    own = some.where(kind_is(*OPERATIONS, *ENDS) & (kept_here("queue") != PREPARED_LIST)).where(~is_transient())
    columns = ("position", "type", "rid", "dequeued_rid", "xid", "flags", "size")
    narrow = own.select(*JOURNAL, *columns, *passed, *also)
    decided = prepared_transactions(records if prepared_lists is None else prepared_lists)
    joined = narrow.join(sql.broadcast(decided), ["store", "xid"], "left").select(*narrow.columns, *_DECISION)
    return joined, to_arrow_schema(joined.schema)


def _recovered(rows: Any) -> tuple[Any, dict[str, Decision], JournalRecovery, list[Any]]:
    """A journal's rows in order, the decisions about its transactions, its recovery, and the outcomes."""
    rows = rows.take(pc.sort_indices(rows["position"])).combine_chunks()
    open_now = rows.filter(pc.is_valid(rows["outcome"])).select(["xid", *_DECISION]).to_pylist()
    decided = {row["xid"]: Decision(row["outcome"], row["branch"], row["two_phase"]) for row in open_now}
    recovery = replayed(rows)
    left_open: list[OpenTransaction] = recovery.resolve(
        {bytes.fromhex(xid): Outcome(each.outcome) for xid, each in decided.items()}
    )
    return rows, decided, recovery, outcomes(rows, decided, left_open)


def _with_ends(rows: Any) -> Any:
    """Operations with the commits and aborts that ended their transactions."""
    names = ["type", "rid", "dequeued_rid", "xid", "flags", "position"]
    ended = rows.filter(pc.is_valid(rows["ended"])).select(["xid", "ended", "fate"])
    ends = {(row["xid"], row["ended"]): row["fate"] for row in ended.to_pylist()}
    made = [
        {"type": "commit" if fate == COMMITTED else "abort", "rid": 0, "dequeued_rid": None, "xid": xid, "flags": [],
         "position": place}
        for (xid, place), fate in ends.items()
    ]  # fmt: skip
    own = rows.select(names)
    return pa.concat_tables([own, pa.Table.from_pylist(made, own.schema)])


def _fates(rows: Any) -> dict[bytes, Outcome]:
    """The outcomes of open transactions."""
    still_open = rows.filter(pc.and_(pc.is_valid(rows["fate"]), pc.is_null(rows["ended"])))
    pairs = zip(still_open["xid"].to_pylist(), still_open["fate"].to_pylist(), strict=True)
    return {bytes.fromhex(xid): Outcome(fate) for xid, fate in pairs}


def kept_here(name: str) -> Column:
    """A column of the records for use in a filter that Spark must not push down.

    If records were loaded with the option `pushdown`, Spark (4.3) stores the pushed-down filters with the loaded
    DataFrame, and not with its use: of two filters on the same records, one applies to both, and rows are lost. The
    functions here use records more than once.
    """
    return sql.coalesce(name, sql.lit(""))


def kind_is(*kinds: str) -> Column:
    """Whether a record has one of these types; not pushed down."""
    return kept_here("type").isin(*kinds)


def is_transient() -> Column:
    """Whether a record is an enqueue that recovery ignores."""
    return (sql.col("type") == "enqueue") & sql.array_contains("flags", "transient")


def is_undone() -> Column:
    """Whether an operation was rolled back, or will be."""
    return sql.coalesce(sql.col("fate").isin(*UNDONE), sql.lit(False))


# ---- what a restart would deliver ----


def outstanding(
    records: DataFrame,
    queues: DataFrame | None = None,
    *,
    prepared_lists: DataFrame | None = None,
    details: DataFrame | None = None,
    columns: Sequence[str] = (),
    with_body: bool = False,
) -> DataFrame:
    """The outstanding messages, and those in doubt: the messages that `qstore-dump --outstanding` shows.

    Args:
        records: the table of records, of whole stores. Columns that are not in `NEEDED` are unused but cost time: read
            it with `option("columns", …)`.
        queues: the table of queues: journals that are not in it, because their catalogue lacks them, are left out.
            None to include every journal.
        prepared_lists: as for `operations`.
        details: records from which `columns` are taken; None for `records`.
        columns: to be added to each message: message_id, exchange and so on, joined back by position.
        with_body: add the body too.

    Returns:
        store, format, queue, journal, rid; state: outstanding, in-doubt-enqueue or in-doubt-dequeue; xid: for messages
        in doubt; position; size; delivery: sorts a queue's messages in recovery order, ignoring priorities;
        then `columns`.
    """
    narrow, _ = _narrow(records if queues is None else of_queues(records, queues), records, prepared_lists, ())
    by_position = JournalFormat.VERSION_1.label

    def of_journal(key: tuple[Any, ...], rows: Any) -> Any:
        rows, decided, recovery, found = _recovered(rows)
        every = messages_in(rows, found, recovery)
        return kept(every, decided, by_position=key[1].as_py() == by_position)

    wanted = [*columns, *(["body"] if with_body and "body" not in columns else [])]
    return with_columns(_by(narrow, NAMES, of_journal, KEPT), records if details is None else details, wanted)


def of_queues(rows: DataFrame, queues: DataFrame) -> DataFrame:
    """The rows whose journal belongs to a queue in its store's catalogue."""
    known = queues.where(sql.col("journal").isNotNull()).select("store", "journal").distinct()
    return rows.join(sql.broadcast(known), ["store", "journal"], "left_semi").select(*rows.columns)


def with_columns(rows: DataFrame, records: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Rows that have a store, a journal and a position, with columns of the messages that begin there."""
    new = [name for name in columns if name not in rows.columns]
    if not new:
        return rows
    enqueues = records.where(kind_is("enqueue")).select(*_PLACE, *new)
    return rows.join(enqueues, list(_PLACE), "left").select(*rows.columns, *new)


# ---- lifetimes ----


def lifetimes(found: DataFrame, files: DataFrame | None = None) -> DataFrame:
    """A row for each message that a journal has: its lifetime on the queue.

    Args:
        found: from `messages`.
        files: the table of files; None to omit times of files.

    Returns:
        store, format, queue, journal, rid, state; enqueued, dequeued: positions, for a transaction's record that of its
        commit, null while on the queue; enqueued_flush, dequeued_flush; timestamp in seconds; size; transactional;
        distance: bytes between enqueue and dequeue; enqueued_written, dequeued_written: when their files were started,
        nanoseconds since 1970; waited: seconds between these, at least 0.
    """
    if files is None:
        return _by(found, NAMES, lambda _, rows: audit.lifetimes(rows, {}, 0), audit.LIFETIMES)
    known = files.where((sql.col("kind") == "journal file") & sql.col("size").isNotNull())
    known = known.select(*_PLACE[:2], "age", "size", "written").groupBy(*_PLACE[:2]).agg(
        sql.max("size").alias("file_size"),
        sql.map_from_entries(sql.collect_list(
            sql.when(sql.col("written").isNotNull(), sql.struct("age", "written"))
        )).alias("written"),
    )  # fmt: skip

    def of_journal(key: tuple[Any, ...], rows: Any) -> Any:
        size = rows["file_size"][0].as_py()
        written = dict(rows["written"][0].as_py() or ())
        data_size = 0 if size is None else size - audit.header_size(key[1].as_py())
        return audit.lifetimes(rows, written, data_size)

    placed = found.join(sql.broadcast(known), list(_PLACE[:2]), "left")
    return _by(placed, NAMES, of_journal, audit.LIFETIMES)


def waits(lives: DataFrame) -> DataFrame:
    """How long the dequeued messages of each queue waited.

    Args:
        lives: from `lifetimes`.

    Returns:
        store, queue, measured (number of messages); distance_50, distance_90, distance_99 (percentiles),
        distance_most in bytes of journal; waited_50 and so on in seconds, null if no file has a time.
    """
    narrow = lives.where(sql.col("dequeued").isNotNull()).select(*QUEUE, "dequeued", "distance", "waited")
    return _by(narrow, _OF_QUEUE, lambda _, rows: _row(audit.waits(rows), audit.WAITS), audit.WAITS)


def rates(lives: DataFrame) -> DataFrame:
    """The throughput of each queue, as far as its journal still shows it.

    Args:
        lives: from `lifetimes`.

    Returns:
        store, queue, recorded, outstanding, in_doubt, dequeued, transactional: numbers of messages (`tools.metrics`);
        recorded_bytes: of their records; mean_size, least_size, largest_size of a record on disk; first_timestamp,
        last_timestamp; stamped_per_second: messages with a timestamp per second between these; null if it cannot be
        calculated.
    """
    narrow = lives.select(*QUEUE, "state", "timestamp", "size", "transactional")
    return _by(narrow, _OF_QUEUE, lambda _, rows: _row(audit.rates(rows), audit.RATES), audit.RATES)


# ---- depth and sizing ----


def depth(found: DataFrame, buckets: int = audit.BUCKETS) -> DataFrame:
    """Number of messages on each queue, over the length of its journal; buckets without changes have no row.

    Args:
        found: from `messages`.
        buckets: number of parts of a journal.

    Returns:
        store, format, queue, journal, bucket (from 0), begin, end (positions); enqueues, dequeues that take effect in
        it, bytes (of these enqueues' records); depth and live_bytes at its end; peak and peak_bytes: the maxima within
        it; peak_reserved: the maximum of live bytes plus one block for each message, which the threshold of version 2
        counts.
    """
    assert buckets > 0
    return _by(found, NAMES, lambda _, rows: audit.depth(rows, buckets), audit.DEPTH)


def peaks(series: DataFrame) -> DataFrame:
    """The peaks of each journal: store, format, queue, journal, peak, peak_bytes, peak_reserved.

    Args:
        series: from `depth`.
    """
    most = [sql.max(name).alias(name) for name in _PEAKS]
    return series.groupBy(*JOURNAL).agg(*most)


_PEAKS: Final = ("peak", "peak_bytes", "peak_reserved")


def peak_use(found: DataFrame, queues: DataFrame, operations: DataFrame | None = None) -> DataFrame:
    """The most that was in use in each journal, as the threshold of each format counts it.

    Args:
        found: from `messages`.
        queues: the table of queues.
        operations: from `operations`, for those that were rolled back; None to leave these out.

    Returns:
        store, format, queue, journal; longest: bytes from the beginning of a record's file to its removal, at most;
        reserved: bytes of live records and a block for each, at most.
    """
    names = ("state", "position", "added", "removed", "size", "ended")
    lives = found.where(sql.col("state").isNotNull()).withColumn("ended", sql.lit(None).cast("bigint"))
    lives = lives.select(*JOURNAL, *names)
    if operations is not None:
        undone = operations.where((sql.col("type") == "enqueue") & (sql.col("fate") == ABORTED))
        nothing = {
            name: sql.lit(None).cast(kind)
            for name, kind in (("state", "string"), ("added", "bigint"), ("removed", "bigint"))
        }
        lives = lives.unionByName(undone.withColumns(nothing).select(*JOURNAL, *names))
    geometry = queues.where(sql.col("journal").isNotNull()).select(*_PLACE[:2], "file_size")
    placed = lives.join(sql.broadcast(geometry.dropDuplicates(list(_PLACE[:2]))), list(_PLACE[:2]))

    def of_journal(key: tuple[Any, ...], rows: Any) -> Any:
        data_size = max(rows["file_size"][0].as_py() - audit.header_size(key[1].as_py()), 1)
        undone = rows.filter(pc.is_null(rows["state"])).select(["position", "ended", "size"])
        return _row(audit.use(rows, undone, data_size), audit.USE)

    return _by(placed, NAMES, of_journal, audit.USE)


def sizing(
    found: DataFrame,
    queues: DataFrame,
    series: DataFrame | None = None,
    *,
    records: DataFrame | None = None,
    use: DataFrame | None = None,
) -> DataFrame:
    """A row for each queue's journal, including empty ones: how full it was at its peak, how large it should be.

    Args:
        found: from `messages`.
        queues: the table of queues.
        series: from `depth`; None to compute it.
        records: columns store, journal, type, position, size; None to take the last record of a message for a journal's
            last, which can change the used space of a version 1 journal by some blocks.
        use: from `peak_use`; None to compute it without transactions that were rolled back.

    Returns:
        Columns of `audit.SIZING`, named as in `tools.metrics`. num_jfiles and jfile_size_pgs, or pool_files of a
        linearstore: the configuration for peak_depth; problem: why there is none.
    """
    known = queues.where(sql.col("journal").isNotNull()).dropDuplicates(["store", "journal"])
    most = peaks(depth(found) if series is None else series)
    most = most.join((peak_use(found, queues) if use is None else use), list(JOURNAL), "left")
    last = sql.lit(None).cast("bigint").alias("last")
    ends = known.select("store", "journal", last)
    if records is not None:
        last = sql.max(sql.col("position") + sql.col("size")).alias("last")
        ends = records.where(sql.col("type") != "damage").groupBy("store", "journal").agg(last)
    beside = most.join(ends, ["store", "journal"], "left").select(*JOURNAL, *_PEAKS, *audit.USE.names, "last")
    measured = found.join(sql.broadcast(beside), list(JOURNAL), "left")

    def of_journal(_key: tuple[Any, ...], rows: Any) -> Any:
        first = rows.slice(0, 1).to_pylist()[0]
        return _row(audit.observed(rows, first, first, first["last"]), audit.OBSERVED)

    observed = _by(measured, NAMES, of_journal, audit.OBSERVED).withColumnRenamed("format", "known").drop("queue")
    rows = known.select("store", "format", "queue", "journal", "files", "file_size")
    sized = []
    for each in rows.join(observed, ["store", "journal"], "left").orderBy("store", "queue").collect():
        row = each.asDict()
        row["format"] = row.pop("known") or row["format"]
        if row["format"] in audit.FORMATS:  # otherwise it is empty, and its format unknown
            sized.append(audit.sized(row if row["recorded"] is not None else row | audit.NOTHING_OBSERVED))
    return found.sparkSession.createDataFrame(
        pa.Table.from_pylist(sized, audit.SIZING), from_arrow_schema(audit.SIZING)
    )


# ---- findings ----


def duplicates(found: DataFrame) -> DataFrame:
    """Messages that a queue has, or had, more than once.

    Args:
        found: from `operations`, with message_id among its `also`.

    Returns:
        store, queue, what: "message id" (probably sent again) or "record id" (which an intact journal never has);
        message_id; first_rid, last_rid: the lowest and the highest record id; copies. Operations that were rolled back,
        and compaction copies, are not counted.
    """
    kept_ones = found.where((sql.col("type") == "enqueue") & ~sql.col("moved") & ~is_undone())
    rids = [sql.min("rid").alias("first_rid"), sql.max("rid").alias("last_rid"), sql.count("*").alias("copies")]
    with_id = kept_ones.where(sql.col("message_id").isNotNull())
    same_id = with_id.groupBy(*QUEUE, "message_id").agg(*rids).withColumn("what", sql.lit("message id"))
    same_rid = (
        kept_ones.groupBy(*JOURNAL, "rid")
        .agg(*rids)
        .withColumns({"what": sql.lit("record id"), "message_id": sql.lit(None).cast("string")})
    )
    columns = (*QUEUE, *audit.DUPLICATES.names)
    return same_id.select(*columns).union(same_rid.select(*columns)).where(sql.col("copies") > 1)


def gaps(records: DataFrame) -> DataFrame:
    """Record ids that no record of a store has, between its lowest and its highest.

    Rings overwrite old records, and a restart skips ids, so a gap by itself is not a loss.

    Args:
        records: columns store, type, rid.

    Returns:
        store, after, before: the record ids on either side; missing: how many are between them.
    """
    rids = records.where(kind_is(*OPERATIONS, *ENDS) & sql.col("rid").isNotNull()).select("store", "rid")
    return _by(rids, _OF_STORE, lambda _, rows: audit.gaps([audit.runs(rows["rid"])]), audit.GAPS)


def dangling(found: DataFrame) -> DataFrame:
    """Dequeues of messages that are unexpectedly missing from their journal, or that it dequeues twice.

    Args:
        found: from `messages`.

    Returns:
        store, format, queue, journal, rid (of the message), dequeues, position (of the first of these records); what:
        "unknown" (nothing explains why the message is missing) or "dequeued twice".
    """
    return _odd_dequeues(found).where(sql.col("what") != OVERWRITTEN)


def overwritten(found: DataFrame) -> DataFrame:
    """Dequeues of messages whose records a ring has overwritten, which is normal.

    Their record ids are lower than that of any enqueue in the journal. Columns as in `dangling`.
    """
    return _odd_dequeues(found).where(sql.col("what") == OVERWRITTEN)


def _odd_dequeues(found: DataFrame) -> DataFrame:
    return _by(found, NAMES, lambda _, rows: audit.odd_dequeues(rows), audit.ODD)


def open_transactions(found: DataFrame, prepared: DataFrame) -> DataFrame:
    """The open transactions of a store.

    Args:
        found: from `operations`.
        prepared: from `prepared_transactions`.

    Returns:
        store, xid; type: dtx, local, or null if not in a prepared list; state: in-doubt, committing, aborting,
        unprepared; enqueues, dequeues: numbers of undecided ones in the queues' journals; queues: the number of these
        queues; bytes: of the enqueues' records.
    """
    is_open = sql.col("fate").isNotNull() & ~sql.col("fate").isin(COMMITTED, ABORTED)
    is_enqueue = sql.col("type") == "enqueue"
    each = found.where(is_open).groupBy("store", "xid", "queue", "journal", "type", "rid")
    undecided = each.agg(sql.max("size").alias("size")).groupBy("store", "xid")
    counted = undecided.agg(
        sql.sum(is_enqueue.cast("bigint")).alias("enqueues"),
        sql.sum((~is_enqueue).cast("bigint")).alias("dequeues"),
        sql.countDistinct("queue").alias("queues"),
        sql.sum(sql.when(is_enqueue, sql.col("size")).otherwise(0)).alias("bytes"),
    )
    numbers = [sql.coalesce(name, sql.lit(0)).alias(name) for name in ("enqueues", "dequeues", "queues", "bytes")]
    state = sql.coalesce("outcome", sql.lit(UNPREPARED)).alias("state")
    return prepared.join(counted, ["store", "xid"], "full").select(
        "store", "xid", sql.col("two_phase").alias("type"), state, *numbers
    )


def in_doubt_transactions(prepared: DataFrame) -> DataFrame:
    """Those of `prepared_transactions` that wait for their transaction manager."""
    return prepared.where(sql.col("outcome") == IN_DOUBT)


def damage(records: DataFrame, files: DataFrame | None = None) -> DataFrame:
    """All damage.

    Args:
        records: columns store, queue, file, offset, rid, type, damage, damage_kind, consequence.
        files: the table of files, which has the damage of headers and whole stores; None without that.

    Returns:
        store, queue, file, offset, rid, damage, damage_kind, consequence; checksum: whether it is a wrong checksum.
    """
    columns = audit.DAMAGE.names[:-1]
    found = records.where(sql.col("damage").isNotNull()).select(*columns)
    if files is not None:
        others = files.where(sql.col("kind").isin("damage", "unusable"))
        found = found.union(others.withColumn("damage", sql.col("reason")).select(*columns)).distinct()
    is_checksum = sql.col("damage_kind").isin(*sorted(audit.CHECKSUMS))
    return found.withColumn("checksum", sql.coalesce(is_checksum, sql.lit(False)))


# ---- tables of ids ----

MISSING: Final = "missing"
UNEXPECTED: Final = "unexpected"
TWICE: Final = "twice"
FEWER: Final = "fewer"


def reconcile(left: DataFrame, right: DataFrame, *, on: str | Sequence[str]) -> DataFrame:
    """Ids that one side has more often than the other, or both more than once.

    Null ids are ignored. A message that a store never had, and one that was consumed and overwritten, cannot be told
    apart: neither is in its journals. `lifetimes` shows how far back these reach.

    Args:
        left: the expected ids, such as a publisher's log.
        right: the actual ids, such as a store's enqueues.
        on: columns that form the id; both sides have them.

    Returns:
        The columns of `on`; left, right: how often each side has it; verdict: missing (not on the right), unexpected
        (not on the left), twice (more than once on the right), fewer (more often on the left). Ids that both sides have
        once have no row.
    """
    names = [on] if isinstance(on, str) else list(on)
    both = _counted(left, names, "left").join(_counted(right, names, "right"), names, "full")
    counts = {side: sql.coalesce(side, sql.lit(0)) for side in ("left", "right")}
    verdict = (
        sql.when(sql.col("right") == 0, MISSING)
        .when(sql.col("left") == 0, UNEXPECTED)
        .when(sql.col("left") > sql.col("right"), FEWER)
        .when(sql.col("right") > 1, TWICE)
    )
    return both.withColumns(counts).withColumn("verdict", verdict).where(sql.col("verdict").isNotNull())


def _counted(side: DataFrame, names: list[str], name: str) -> DataFrame:
    return side.select(*names).dropna().groupBy(*names).agg(sql.count("*").alias(name))


# ---- export ----


def export(records: DataFrame, path: str, *, columns: Sequence[str] | None = None, mode: str = "errorifexists") -> None:
    """Write records.

    Args:
        records: what to write; bodies are written if they are among its columns.
        path: the directory, or a URL that Spark can write to.
        columns: only these; store and queue are always written.
        mode: what to do with existing data, as in Spark's writers.
    """
    names = records.columns if columns is None else list(dict.fromkeys(["store", "queue", *columns]))
    with_directories(records.select(*names)).write.mode(mode).partitionBy(*DIRECTORIES).parquet(path)


def with_directories(rows: DataFrame) -> DataFrame:
    """Rows that have a store and a queue, with the names of their directories."""
    return rows.withColumns({DIRECTORIES[0]: directory("store"), DIRECTORIES[1]: directory("queue")})


def directory(name: str) -> Column:
    """Directory name for a name; "none" without a name, as for damage that belongs to no queue."""
    column = sql.col(name)
    plain = sql.regexp_replace(column, "[^A-Za-z0-9_.]+", "-")
    end = sql.regexp_replace(sql.substring(plain, -SHOWN_NAME, SHOWN_NAME), "^[-.]+", "")
    digest = sql.substring(sql.sha2(column, 256), 1, DIGEST)
    return sql.coalesce(sql.concat(end, sql.lit("-"), digest), sql.lit("none"))
