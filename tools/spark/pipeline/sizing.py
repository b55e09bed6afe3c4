"""How full each journal was at its peak, and how large it should be.

The observations, records' sizes and the peak depth of a queue, come from Spark; a row for each queue is then processed
by the published formulas (`store.inspect.sizing`) on the driver. A journal that has wrapped around shows only its
latest lap: earlier records are not in the metrics.

    version 1   in use is everything from the file of the oldest live record to the end; the peak is the longest
                distance from a message's file to its dequeue
    version 2   in use are live bytes, plus one block for each message
    linear      no limit

The space in use now, and its limit, are those of `store.journal.write.threshold`, as in qstore-check; names are those
of `tools.metrics`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql

from qstore.formats.rhm.geometry import PAGE_SIZE, SECTOR_SIZE, Geometry
from qstore.store.inspect.sizing import (
    LOCAL_XID_SIZE,
    JournalTooLargeError,
    LineSize,
    MessageProfile,
    RingSize,
    size_for,
)
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.write.threshold import Threshold, threshold
from qstore.tools.spark.pipeline.depth import depth, peaks
from qstore.tools.spark.pipeline.effects import AT_THE_END, JOURNAL
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
    "oldest", "end", "peak", "peak_bytes", "peak_reserved",
)  # fmt: skip


def sizing(
    found: DataFrame, queues: DataFrame, series: DataFrame | None = None, *, records: DataFrame | None = None
) -> DataFrame:
    """A row for each queue's journal, including empty ones.

    Args:
        found: from `messages`.
        queues: the table of queues.
        series: from `depth`; None to compute it.
        records: columns store, journal, type, position, size; None to take the last record of a message for a journal's
            last, which can change the used space of a version 1 journal by some blocks.

    Returns:
        Columns of `SCHEMA`, named as in `tools.metrics`. num_jfiles and jfile_size_pgs, or pool_files of a linearstore:
        the configuration for peak_depth; problem: why there is none.
    """
    known = queues.where(sql.col("journal").isNotNull()).dropDuplicates(["store", "journal"])
    geometry = known.select("store", "journal", "files", "file_size")
    peak = peaks(depth(found) if series is None else series)
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


def _observed(found: DataFrame, geometry: DataFrame, records: DataFrame | None) -> DataFrame:
    file_bytes = data_size(sql.col("file_size"))
    placed = found.join(sql.broadcast(geometry), ["store", "journal"])
    begin = sql.col("added") - sql.col("added") % file_bytes
    gone = sql.when(sql.col("removed") < AT_THE_END, sql.col("removed"))
    observed = placed.groupBy(*JOURNAL).agg(
        count_of(sql.col("state").isNotNull()).alias("recorded"),
        count_of(is_outstanding()).alias("outstanding"),
        count_of(is_in_doubt()).alias("in_doubt"),
        sql.sum("size").alias("bytes"),
        sql.max("size").alias("largest_size"),
        count_of(sql.col("transactional") & sql.col("state").isNotNull()).alias("in_transactions"),
        sql.coalesce(sql.sum(sql.when(is_live(), sql.col("size"))), sql.lit(0)).alias("live_bytes"),
        sql.max(gone - begin).alias("longest"),
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
    recommended, choice, problem = _recommended(row, journal_format, geometry)
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
        large_enough=_large_enough(journal_format, geometry, recommended, problem),
        problem=problem,
    )


def _at_peak(row: Row, journal_format: JournalFormat, now: Threshold) -> Threshold:
    """The peak of the space in use, as far as the journal shows; at least the present value."""
    most = row["longest"] if journal_format is JournalFormat.VERSION_1 else row["peak_reserved"]
    return now._replace(used=max(now.used, most))


def _large_enough(
    journal_format: JournalFormat, geometry: Geometry, recommended: int | None, problem: str | None
) -> bool | None:
    if journal_format is JournalFormat.LINEAR:
        return None
    if problem is not None:
        return False
    return None if recommended is None else geometry.capacity >= recommended


def _recommended(
    row: Row, journal_format: JournalFormat, geometry: Geometry
) -> tuple[int | None, RingSize | LineSize | None, str | None]:
    messages, peak = row["recorded"], max(row["peak"], row["outstanding"] + row["in_doubt"])
    if not messages or not peak:
        return None, None, None
    share = Fraction(row["in_transactions"], messages)
    profile = MessageProfile(Fraction(row["bytes"], messages), share, LOCAL_XID_SIZE if share else 0)
    try:
        size = size_for(profile, peak, journal_format, geometry.data_size)
    except JournalTooLargeError as error:
        return None, None, str(error)
    return size.recommended, size.choice, None
