"""Number of messages on each queue, over the length of its journal.

The journal is divided into equal parts, *buckets*. Within each the changes are applied in order, so that its peak is
exact; the buckets of a journal are then summed. So one large journal uses all cores.

A ring that has wrapped around has dequeues of messages whose enqueues are overwritten. These were on the queue at the
present beginning of the journal, so their number is the initial depth. Their sizes are unknown, and count as zero.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.tools.spark.pipeline.effects import JOURNAL

BUCKETS: Final = 200


def depth(found: DataFrame, buckets: int = BUCKETS) -> DataFrame:
    """The series of each journal; buckets without changes have no row.

    Args:
        found: from `messages`.
        buckets: number of parts of a journal.

    Returns:
        store, format, queue, journal, bucket (from 0), begin, end (positions); enqueues, dequeues that take effect in
        it,
        bytes (of these enqueues' records); depth and live_bytes at its end; peak and peak_bytes: the maxima within it;
        peak_reserved: the maximum of live bytes plus one block for each message, which the threshold of version 2
        counts.
    """
    assert buckets > 0
    width = sql.greatest(sql.ceil(sql.col("length") / buckets), sql.lit(1))
    bucket = sql.least(sql.floor(sql.col("at") / sql.col("width")), sql.lit(buckets - 1)).cast("int")
    lengths = _lengths(found).withColumn("width", width)
    placed = (
        found.join(sql.broadcast(lengths), list(JOURNAL))
        .select(*JOURNAL, "width", "before", sql.explode(_changes()).alias("change"))
        .select(*JOURNAL, "width", "before", "change.*")
        .withColumn("bucket", bucket)
    )
    return _summed_up(_in_buckets(placed))


def peaks(series: DataFrame) -> DataFrame:
    """The peaks of each journal: store, format, queue, journal, peak, peak_bytes, peak_reserved.

    Args:
        series: from `depth`.
    """
    most = [sql.max(name).alias(name) for name in ("peak", "peak_bytes", "peak_reserved")]
    return series.groupBy(*JOURNAL).agg(*most)


def _lengths(found: DataFrame) -> DataFrame:
    """For each journal the position after its last known record, and how many messages precede its beginning."""
    last = sql.greatest(sql.col("position") + sql.col("size"), sql.col("last_position") + BLOCK_SIZE)
    is_missed = sql.col("state").isNull() & sql.col("removed").isNotNull()
    return found.groupBy(*JOURNAL).agg(
        sql.coalesce(sql.max(last), sql.lit(1)).alias("length"),
        sql.sum(is_missed.cast("bigint")).alias("before"),
    )


def _changes() -> Column:
    """The changes by a message: position, and difference in messages, bytes and reserved bytes."""
    at_most = sql.col("length")
    size = sql.coalesce("size", sql.lit(0))
    comes = sql.struct(
        sql.least("added", at_most).alias("at"),
        sql.lit(1).cast("bigint").alias("count"),
        size.alias("bytes"),
        (size + BLOCK_SIZE).alias("reserved"),
    )
    goes = sql.struct(
        sql.least("removed", at_most).alias("at"),
        sql.lit(-1).cast("bigint").alias("count"),
        (-size).alias("bytes"),
        sql.when(sql.col("state").isNull(), sql.lit(0)).otherwise(-size - BLOCK_SIZE).alias("reserved"),
    )
    return sql.filter(
        sql.array(
            sql.when(sql.col("state").isNotNull(), comes),
            sql.when(sql.col("removed").isNotNull(), goes),
        ),
        lambda change: change.isNotNull(),
    )


def _in_buckets(placed: DataFrame) -> DataFrame:
    """Each bucket separately, starting from zero."""
    running = (
        Window.partitionBy(*JOURNAL, "bucket")
        .orderBy("at", sql.col("count").desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    counted = placed.withColumns({f"running_{name}": sql.sum(name).over(running) for name in _COUNTED})
    is_enqueue = sql.col("count") > 0
    return counted.groupBy(*JOURNAL, "bucket").agg(
        sql.max("width").alias("width"),
        sql.max("before").alias("before"),
        sql.sum(is_enqueue.cast("bigint")).alias("enqueues"),
        sql.sum((~is_enqueue).cast("bigint")).alias("dequeues"),
        sql.sum(sql.when(is_enqueue, sql.col("bytes")).otherwise(0)).alias("enqueued_bytes"),
        *(sql.sum(name).alias(f"net_{name}") for name in _COUNTED),
        *(sql.max(f"running_{name}").alias(f"most_{name}") for name in _COUNTED),
    )


_COUNTED: Final = ("count", "bytes", "reserved")


def _summed_up(buckets: DataFrame) -> DataFrame:
    earlier = (
        Window.partitionBy(*JOURNAL).orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    summed = buckets.withColumns(
        {f"held_{name}": sql.coalesce(sql.sum(f"net_{name}").over(earlier), sql.lit(0)) for name in _COUNTED}
    ).withColumn("held_count", sql.col("held_count") + sql.col("before"))

    def peak(name: str) -> Column:
        return sql.col(f"held_{name}") + sql.greatest(sql.col(f"most_{name}"), sql.lit(0))

    return summed.select(
        *JOURNAL,
        "bucket",
        (sql.col("bucket") * sql.col("width")).alias("begin"),
        ((sql.col("bucket") + 1) * sql.col("width")).alias("end"),
        "enqueues",
        "dequeues",
        sql.col("enqueued_bytes").alias("bytes"),
        (sql.col("held_count") + sql.col("net_count")).alias("depth"),
        (sql.col("held_bytes") + sql.col("net_bytes")).alias("live_bytes"),
        peak("count").alias("peak"),
        peak("bytes").alias("peak_bytes"),
        peak("reserved").alias("peak_reserved"),
    )
