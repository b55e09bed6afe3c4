"""How full each journal was at most, and how large it should be.

What is observed, records' sizes and the deepest that a queue was, comes from Spark; a row for each queue then goes
through the published formulas (`store.sizing`) on the driver. A journal that has gone round shows only its latest lap:
what was before it is not in the figures.

    version 1   in use is what lies from the file of the oldest live record to the end; at most that was the longest way
                from a message's file to its dequeue
    version 2   in use are live bytes, and one block more for each message
    linear      no limit
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sql

from formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, SECTOR_SIZE, Geometry
from store.journal.format import JournalFormat
from store.sizing import LOCAL_XID_SIZE, JournalTooLargeError, LineSize, MessageProfile, RingSize, size_for
from store.threshold import NEAR_PERCENT, enqueue_limit
from tools.spark.pipeline.depth import depth, peaks
from tools.spark.pipeline.effects import AT_THE_END, JOURNAL
from tools.spark.pipeline.lifetimes import data_size
from tools.spark.pipeline.messages import DEQUEUED

_FORMATS: Final = {each.label: each for each in JournalFormat}

_ARROW_TYPES: Final = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip

#: The result's columns.
SCHEMA: Final = (
    "store string, format string, queue string, journal string, messages bigint, depth bigint, peak_depth bigint, "
    "mean_size double, largest_size bigint, transactional double, live_bytes bigint, peak_bytes bigint, files int, "
    "pages double, capacity bigint, enqueue_limit bigint, used bigint, peak_used bigint, fill double, "
    "peak_fill double, near_threshold boolean, recommended_bytes bigint, num_jfiles int, jfile_size_pgs bigint, "
    "pool_files bigint, large_enough boolean, problem string"
)
#: As Arrow has them: rows of Python's would go to Spark through one more process.
_ARROW: Final = pa.schema(
    [(name, _ARROW_TYPES[kind]) for name, kind in (column.split() for column in SCHEMA.split(", "))]
)


def sizing(found: DataFrame, queues: DataFrame, series: DataFrame | None = None) -> DataFrame:
    """A row for each journal of a queue.

    Args:
        found: of `messages`.
        queues: the table of queues.
        series: of `depth`; None to make it.

    Returns:
        Columns of `SCHEMA`. messages: all that the journal has; depth: those that are there; pages, capacity,
        enqueue_limit, used: of the present journal, where it has a limit; fill, peak_fill: of that limit, 1.0 where
        enqueues are refused, which is at about 80 % of the ring; near_threshold: at or above 80 % of it at the peak;
        num_jfiles and jfile_size_pgs, or pool_files of a linearstore: what to configure for peak_depth; problem: why
        nothing can be.
    """
    geometry = queues.where(sql.col("journal").isNotNull()).select("store", "journal", "files", "file_size")
    observed = (
        _observed(found, geometry)
        .join(peaks(depth(found) if series is None else series), list(JOURNAL), "left")
        .join(sql.broadcast(geometry), ["store", "journal"])
        .withColumn("data_size", data_size(sql.col("file_size")))
    )
    rows = [_sized(row) for row in observed.orderBy("store", "queue").collect()]
    return found.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _ARROW), SCHEMA)


def _observed(found: DataFrame, geometry: DataFrame) -> DataFrame:
    file_bytes = data_size(sql.col("file_size"))
    placed = found.join(sql.broadcast(geometry), ["store", "journal"])
    is_there = sql.col("state").isNotNull() & (sql.col("state") != DEQUEUED)
    begin = sql.col("added") - sql.col("added") % file_bytes
    gone = sql.when(sql.col("removed") < AT_THE_END, sql.col("removed"))
    return placed.groupBy(*JOURNAL).agg(
        _count(sql.col("state").isNotNull()).alias("messages"),
        _count(is_there).alias("depth"),
        sql.sum("size").alias("bytes"),
        sql.max("size").alias("largest_size"),
        _count(sql.col("transactional") & sql.col("state").isNotNull()).alias("in_transactions"),
        sql.coalesce(sql.sum(sql.when(is_there, sql.col("size"))), sql.lit(0)).alias("live_bytes"),
        sql.max(gone - begin).alias("longest"),
        sql.min(sql.when(is_there, sql.col("position") - sql.col("position") % file_bytes)).alias("oldest_file"),
        sql.max(sql.greatest(sql.col("position") + sql.col("size"), sql.col("last_position"))).alias("end"),
    )


def _count(condition: Column) -> Column:
    return sql.coalesce(sql.sum(condition.cast("bigint")), sql.lit(0))


class _Fill(NamedTuple):
    """What is, and was at most, in use of what may be."""

    limit: int | None
    used: int | None
    peak: int | None

    def share(self, of: int | None) -> float | None:
        return None if of is None or not self.limit else round(of / self.limit, 6)


def _sized(row: Row) -> dict[str, Any]:
    journal_format = _FORMATS[row["format"]]
    geometry = Geometry(max(row["files"], 1), max(row["data_size"] // SECTOR_SIZE, 1) * SECTOR_SIZE)
    fill = _fill(row, journal_format, geometry)
    recommended, choice, problem = _recommended(row, journal_format, geometry)
    ring = choice if isinstance(choice, RingSize) else None
    bounded = journal_format is not JournalFormat.LINEAR
    return dict(
        {name: row[name] for name in JOURNAL},
        messages=row["messages"],
        depth=row["depth"],
        peak_depth=row["peak"] or 0,
        mean_size=row["bytes"] / row["messages"] if row["messages"] else None,
        largest_size=row["largest_size"],
        transactional=row["in_transactions"] / row["messages"] if row["messages"] else None,
        live_bytes=row["live_bytes"],
        peak_bytes=row["peak_bytes"] or 0,
        files=row["files"],
        pages=geometry.data_size / PAGE_SIZE,
        capacity=geometry.capacity,
        enqueue_limit=fill.limit,
        used=fill.used,
        peak_used=fill.peak,
        fill=fill.share(fill.used),
        peak_fill=fill.share(fill.peak),
        near_threshold=None if fill.limit is None else (fill.peak or 0) * 100 >= fill.limit * NEAR_PERCENT,
        recommended_bytes=recommended,
        num_jfiles=None if ring is None else ring.files,
        jfile_size_pgs=None if ring is None else ring.pages,
        pool_files=choice.files if isinstance(choice, LineSize) else None,
        large_enough=geometry.capacity >= recommended if recommended is not None and bounded else None,
        problem=problem,
    )


def _fill(row: Row, journal_format: JournalFormat, geometry: Geometry) -> _Fill:
    limit = enqueue_limit(geometry, journal_format)
    if limit is None:
        return _Fill(None, None, None)
    if journal_format is JournalFormat.VERSION_1:
        used = 0 if row["oldest_file"] is None else row["end"] - row["oldest_file"]
        return _Fill(limit, used, max(used, row["longest"] or 0))
    used = row["live_bytes"] + row["depth"] * BLOCK_SIZE
    return _Fill(limit, used, max(used, row["peak_reserved"] or 0))


def _recommended(
    row: Row, journal_format: JournalFormat, geometry: Geometry
) -> tuple[int | None, RingSize | LineSize | None, str | None]:
    messages, peak = row["messages"], max(row["peak"] or 0, row["depth"])
    if not messages or not peak:
        return None, None, None
    share = Fraction(row["in_transactions"], messages)
    profile = MessageProfile(Fraction(row["bytes"], messages), share, LOCAL_XID_SIZE if share else 0)
    try:
        size = size_for(profile, peak, journal_format, geometry.data_size)
    except JournalTooLargeError as error:
        return None, None, str(error)
    return size.recommended, size.choice, None
