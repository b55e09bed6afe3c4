"""How full each journal was at its peak, and how large it should be.

The observations, records' sizes and the peak depth of a queue, come from Spark; a row for each queue is then processed
by the published formulas (`store.inspect.sizing`) on the driver. A journal that has wrapped around shows only its
latest lap: earlier records are not in the metrics.

    version 1   in use is everything from the file of the oldest live record to the end; the peak is the longest
                distance from a message's file to its dequeue
    version 2   in use are live bytes, plus one block for each message
    linear      no limit

A record is live from where it was written, whenever its transaction was committed, and until the commit of its dequeue;
that of a transaction that was rolled back until then.

The space in use now, and its limit, are those of `store.journal.write.threshold`, as in qstore-check; names are those
of `tools.metrics`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as sql

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.store.inspect.sizing import (
    LOCAL_XID_SIZE,
    JournalTooLargeError,
    LineSize,
    MessageProfile,
    RingSize,
    size_for,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import Threshold, threshold
from qstore.tools.spark.pipeline.depth import depth, peaks
from qstore.tools.spark.pipeline.effects import ABORTED, AT_THE_END, JOURNAL
from qstore.tools.spark.pipeline.lifetimes import data_size
from qstore.tools.spark.pipeline.messages import count_of, is_in_doubt, is_live, is_outstanding

_FORMATS: Final = {each.label: each for each in JournalFormat}

_ARROW_TYPES: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip

#: The columns of the result.
SCHEMA: Final = (
    "store string, format string, queue string, journal string, recorded bigint, outstanding bigint, in_doubt bigint, "
    "depth bigint, peak_depth bigint, mean_size double, largest_size bigint, transactional double, live_bytes bigint, "
    "peak_bytes bigint, files int, pages double, capacity bigint, live_share double, limit bigint, used bigint, "
    "peak_used bigint, fill double, peak_fill double, near_threshold boolean, peak_near_threshold boolean, "
    "recommended_bytes bigint, num_jfiles int, jfile_size_pgs bigint, "
    "pool_files bigint, large_enough boolean, problem string"
)
#: As Arrow types: Python rows would be sent to Spark through an extra process.
_ARROW: Final = pa.schema(
    [(name, _ARROW_TYPES[kind]) for name, kind in (column.split() for column in SCHEMA.split(", "))]
)

#: Values taken from the messages of a journal; null if it has none.
_OBSERVED: Final = (
    "recorded", "outstanding", "in_doubt", "bytes", "largest_size", "in_transactions", "live_bytes", "longest",
    "oldest", "end", "peak", "peak_bytes", "peak_reserved", "reserved",
)  # fmt: skip


def sizing(
    found: DataFrame,
    queues: DataFrame,
    series: DataFrame | None = None,
    *,
    records: DataFrame | None = None,
    use: DataFrame | None = None,
) -> DataFrame:
    """A row for each queue's journal, including empty ones.

    Args:
        found: from `messages`.
        queues: the table of queues.
        series: from `depth`; None to compute it.
        records: columns store, journal, type, position, size; None to take the last record of a message for a journal's
            last, which can change the used space of a version 1 journal by some blocks.
        use: from `peak_use`; None to compute it without transactions that were rolled back.

    Returns:
        Columns of `SCHEMA`, named as in `tools.metrics`. num_jfiles and jfile_size_pgs, or pool_files of a linearstore:
        the configuration for peak_depth; problem: why there is none.
    """
    known = queues.where(sql.col("journal").isNotNull()).dropDuplicates(["store", "journal"])
    geometry = known.select("store", "journal", "files", "file_size")
    peak = peaks(depth(found) if series is None else series)
    peak = peak.join((peak_use(found, queues) if use is None else use), list(JOURNAL), "left")
    measured = _observed(found, geometry, records).join(peak, list(JOURNAL), "left").drop("queue")
    of_format = sql.coalesce(measured["format"], known["format"]).alias("format")
    observed = (
        known.join(measured, ["store", "journal"], "left")
        .select("store", "journal", "queue", "files", "file_size", of_format, *_OBSERVED)
        .where(sql.col("format").isin(*_FORMATS))  # otherwise it is empty, and its format unknown
        .withColumn("data_size", data_size(sql.col("file_size")))
        .fillna(0, [name for name in _OBSERVED if name not in ("oldest", "largest_size")])
    )
    rows = [_sized(row) for row in observed.orderBy("store", "queue").collect()]
    return found.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _ARROW), SCHEMA)


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
    geometry = queues.where(sql.col("journal").isNotNull()).select("store", "journal", "file_size")
    begun = sql.least("position", "added")
    lives = found.where(sql.col("state").isNotNull()).select(*JOURNAL, begun.alias("begun"), "removed", "size")
    if operations is not None:
        is_undone = (sql.col("type") == "enqueue") & (sql.col("fate") == ABORTED)
        undone = operations.where(is_undone).select(*JOURNAL, "position", "ended", "size")
        lives = lives.union(undone)
    file_bytes = data_size(sql.col("file_size"))
    gone = sql.when(sql.col("removed") < AT_THE_END, sql.col("removed"))
    placed = lives.join(sql.broadcast(geometry.dropDuplicates(["store", "journal"])), ["store", "journal"])
    longest = placed.groupBy(*JOURNAL).agg(
        sql.max(gone - sql.col("begun") + sql.col("begun") % file_bytes).alias("longest")
    )
    bytes_ = sql.coalesce("size", sql.lit(0)) + BLOCK_SIZE
    change = sql.array(
        sql.struct(sql.col("begun").alias("at"), bytes_.alias("change")),
        sql.struct(sql.col("removed").alias("at"), (-bytes_).alias("change")),
    )
    changes = lives.select(*JOURNAL, sql.explode(change).alias("change")).select(*JOURNAL, "change.*")
    running = (
        Window.partitionBy(*JOURNAL)
        .orderBy("at", sql.col("change").desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    summed = changes.where(sql.col("at").isNotNull()).withColumn("held", sql.sum("change").over(running))
    return summed.groupBy(*JOURNAL).agg(sql.max("held").alias("reserved")).join(longest, list(JOURNAL), "left")


def _observed(found: DataFrame, geometry: DataFrame, records: DataFrame | None) -> DataFrame:
    placed = found.join(sql.broadcast(geometry), ["store", "journal"])
    observed = placed.groupBy(*JOURNAL).agg(
        count_of(sql.col("state").isNotNull()).alias("recorded"),
        count_of(is_outstanding()).alias("outstanding"),
        count_of(is_in_doubt()).alias("in_doubt"),
        sql.sum("size").alias("bytes"),
        sql.max("size").alias("largest_size"),
        count_of(sql.col("transactional") & sql.col("state").isNotNull()).alias("in_transactions"),
        sql.coalesce(sql.sum(sql.when(is_live(), sql.col("size"))), sql.lit(0)).alias("live_bytes"),
        sql.min(sql.when(is_live(), sql.col("position"))).alias("oldest"),
        sql.max(sql.greatest(sql.col("position") + sql.col("size"), sql.col("last_position"))).alias("last"),
    )
    if records is None:
        return observed.withColumnRenamed("last", "end")
    end = sql.max(sql.col("position") + sql.col("size")).alias("end")
    ends = records.where(sql.col("type") != "damage").groupBy("store", "journal").agg(end)
    return observed.join(sql.broadcast(ends), ["store", "journal"], "left")


def _sized(row: Row) -> dict[str, Any]:
    journal_format = _FORMATS[row["format"]]
    geometry = Geometry(max(row["files"], 1), max(row["data_size"] // SECTOR_SIZE, 1) * SECTOR_SIZE)
    depth = row["outstanding"] + row["in_doubt"]
    now = threshold(
        geometry,
        journal_format,
        oldest=row["oldest"],
        end=row["end"],
        live=depth,
        live_bytes=row["live_bytes"],
    )
    peak = None if now is None else _at_peak(row, journal_format, now)
    recommended, choice, problem = _recommended(row, journal_format, geometry, 0 if peak is None else peak.used)
    ring = choice if isinstance(choice, RingSize) else None
    return dict(
        {name: row[name] for name in JOURNAL},
        recorded=row["recorded"],
        outstanding=row["outstanding"],
        in_doubt=row["in_doubt"],
        depth=depth,
        peak_depth=max(row["peak"], 0),
        mean_size=row["bytes"] / row["recorded"] if row["recorded"] else None,
        largest_size=row["largest_size"],
        transactional=row["in_transactions"] / row["recorded"] if row["recorded"] else None,
        live_bytes=row["live_bytes"],
        peak_bytes=row["peak_bytes"],
        files=row["files"],
        pages=geometry.data_size / PAGE_SIZE,
        capacity=geometry.capacity,
        live_share=round(row["live_bytes"] / geometry.capacity, 6),
        limit=None if now is None else now.limit,
        used=None if now is None else now.used,
        peak_used=None if peak is None else peak.used,
        fill=None if now is None else now.fill,
        peak_fill=None if peak is None else peak.fill,
        near_threshold=None if now is None else now.is_near,
        peak_near_threshold=None if peak is None else peak.is_near,
        recommended_bytes=recommended,
        num_jfiles=None if ring is None else ring.files,
        jfile_size_pgs=None if ring is None else ring.pages,
        pool_files=choice.files if isinstance(choice, LineSize) else None,
        large_enough=_large_enough(geometry, peak, recommended, problem),
        problem=problem,
    )


def _at_peak(row: Row, journal_format: JournalFormat, now: Threshold) -> Threshold:
    """The peak of the space in use, as far as the journal shows; at least the present value."""
    most = row["longest"]
    if journal_format is not JournalFormat.VERSION_1:
        most = max(row["peak_reserved"], row["reserved"])
    return now._replace(used=max(now.used, most))


def _large_enough(
    geometry: Geometry, peak: Threshold | None, recommended: int | None, problem: str | None
) -> bool | None:
    """Whether the journal has the recommended size and did not come near its threshold; None for a linearstore."""
    if peak is None:
        return None
    if problem is not None or peak.is_near:
        return False
    return None if recommended is None else geometry.capacity >= recommended


def _recommended(
    row: Row, journal_format: JournalFormat, geometry: Geometry, used: int
) -> tuple[int | None, RingSize | LineSize | None, str | None]:
    """The size for the peak depth, and for the bytes in use at the peak."""
    messages, peak = row["recorded"], max(row["peak"], row["outstanding"] + row["in_doubt"])
    if not messages or not peak:
        return None, None, None
    share = Fraction(row["in_transactions"], messages)
    profile = MessageProfile(Fraction(row["bytes"], messages), share, LOCAL_XID_SIZE if share else 0)
    try:
        size = size_for(profile, peak, journal_format, geometry.data_size, used=used)
    except JournalTooLargeError as error:
        return None, None, str(error)
    return size.recommended, size.choice, None
