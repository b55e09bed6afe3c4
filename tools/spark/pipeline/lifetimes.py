"""How long messages stayed on a queue, and the throughput of each queue.

A journal does not record when a record was written. What is known is reported separately:

    positions     bytes that were written to the journal between a message's enqueue and its dequeue
    flushes       qstore: flushes between them, within one run of the broker (a restart skips numbers)
    timestamp     seconds since 1970, if the publisher or the broker set one
    files         when the file of the record was started: so enqueue and dequeue are known to within the time in which
    a
                  file was filled
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from qstore.formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.tools.spark.pipeline.effects import AT_THE_END, JOURNAL
from qstore.tools.spark.pipeline.messages import count_of, is_in_doubt, is_live, is_outstanding

_NANOSECONDS: Final = 1_000_000_000
#: Percentiles of the waits; the names of the columns end with them.
PERCENTILES: Final = (50, 90, 99)
_ACCURACY: Final = 1000  # accuracy of a percentile: one in this many of its rank


def lifetimes(found: DataFrame, files: DataFrame | None = None) -> DataFrame:
    """A row for each message that a journal has: its lifetime on the queue.

    Args:
        found: from `messages`.
        files: the table of files; None to omit times of files.

    Returns:
        store, format, queue, journal, rid, state; enqueued, dequeued: positions, for a transaction's record that of its
        commit, null while on the queue; distance: bytes between them; enqueued_flush, dequeued_flush; timestamp in
        seconds; size; transactional; enqueued_written, dequeued_written: when their files were started, nanoseconds
        since
        1970; waited: seconds between these, at least 0.
    """
    lives = found.where(sql.col("state").isNotNull()).select(
        *JOURNAL,
        "rid",
        "state",
        _place("added", sql.col("position")).alias("enqueued"),
        _place("removed", sql.lit(None)).alias("dequeued"),
        sql.col("added_flush").alias("enqueued_flush"),
        sql.col("removed_flush").alias("dequeued_flush"),
        "timestamp",
        "size",
        "transactional",
    )
    lives = lives.withColumn("distance", sql.col("dequeued") - sql.col("enqueued"))
    unknown = sql.lit(None).cast("bigint")
    if files is None:
        lives = lives.withColumns({"enqueued_written": unknown, "dequeued_written": unknown})
    else:
        lives = _with_time(_with_time(lives, files, "enqueued"), files, "dequeued")
    waited = (sql.col("dequeued_written") - sql.col("enqueued_written")) / _NANOSECONDS
    return lives.withColumn("waited", sql.when(waited.isNotNull(), sql.greatest(waited, sql.lit(0.0))))


def waits(lives: DataFrame) -> DataFrame:
    """How long the dequeued messages of each queue waited.

    Args:
        lives: from `lifetimes`.

    Returns:
        store, queue, measured (number of messages); distance_50, distance_90, distance_99 (percentiles, to within a
        thousandth), distance_most in bytes of journal; waited_50 and so on in seconds, null if no file has a time.
    """
    gone = lives.where(sql.col("dequeued").isNotNull())
    measured = [each for name in ("distance", "waited") for each in _percentiles(name)]
    return gone.groupBy("store", "queue").agg(sql.count("*").alias("measured"), *measured)


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
    seconds = sql.col("last_timestamp") - sql.col("first_timestamp")
    summed = lives.groupBy("store", "queue").agg(
        sql.count("*").alias("recorded"),
        count_of(is_outstanding()).alias("outstanding"),
        count_of(is_in_doubt()).alias("in_doubt"),
        count_of(~is_live()).alias("dequeued"),
        count_of(sql.col("transactional")).alias("transactional"),
        sql.sum("size").alias("recorded_bytes"),
        sql.avg("size").alias("mean_size"),
        sql.min("size").alias("least_size"),
        sql.max("size").alias("largest_size"),
        sql.min("timestamp").alias("first_timestamp"),
        sql.max("timestamp").alias("last_timestamp"),
        sql.count("timestamp").alias("stamped"),
    )
    per_second = sql.when(seconds > 0, sql.col("stamped") / seconds)
    return summed.withColumn("stamped_per_second", per_second).drop("stamped")


def data_size(size: Column) -> Column:
    """Size of a file's data area in bytes, for a row that has the journal's format."""
    header = sql.when(sql.col("format") == "linearstore", LINEAR_HEADER_SIZE).otherwise(FILE_HEADER_SIZE)
    return size - header


def _place(time: str, at_the_end: Column) -> Column:
    return sql.when(sql.col(time) < AT_THE_END, sql.col(time)).when(sql.col(time).isNotNull(), at_the_end)


def _with_time(lives: DataFrame, files: DataFrame, name: str) -> DataFrame:
    """Adds the time at which the file that contains a position was started."""
    known = files.where((sql.col("kind") == "journal file") & sql.col("size").isNotNull())
    sizes = known.groupBy("store", "journal").agg(sql.max("size").alias("file_size"))
    begun = known.select(
        "store", "journal", sql.col("age").alias("file_age"), sql.col("written").alias(f"{name}_written")
    )
    age = sql.floor(sql.col(name) / data_size(sql.col("file_size"))).cast("int")
    return (
        lives.join(sql.broadcast(sizes), ["store", "journal"], "left")
        .withColumn("file_age", age)
        .join(sql.broadcast(begun), ["store", "journal", "file_age"], "left")
        .select(*lives.columns, f"{name}_written")
    )


def _percentiles(name: str) -> list[Column]:
    of = [sql.percentile_approx(name, share / 100, _ACCURACY).alias(f"{name}_{share}") for share in PERCENTILES]
    return [*of, sql.max(name).alias(f"{name}_most")]
