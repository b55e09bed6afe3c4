"""How long messages stayed, and what passed through each queue.

A journal does not say when a record was written. What is known of time is told, each by itself:

    places        bytes that were written to the journal between a message's enqueue and its dequeue
    flushes       qstore: flushes between them, as long as the broker ran on (a restart leaves numbers out)
    timestamp     seconds since 1970, where the sender or the broker set one
    files         when the file was begun in which the record stands: so enqueue and dequeue are known to within the
                  time that a file took to fill
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from formats.qls.file_header import FILE_HEADER_SIZE as LINEAR_HEADER_SIZE
from formats.rhm.geometry import FILE_HEADER_SIZE
from tools.spark.pipeline.effects import AT_THE_END, JOURNAL
from tools.spark.pipeline.messages import count_of, is_in_doubt, is_live, is_outstanding

_NANOSECONDS: Final = 1_000_000_000
#: Of the waits, in per cent; the names of the columns end with them.
PERCENTILES: Final = (50, 90, 99)
_ACCURACY: Final = 1000  # of a percentile: one in so many of its rank


def lifetimes(found: DataFrame, files: DataFrame | None = None) -> DataFrame:
    """A row for each message that a journal has: from where to where it was there.

    Args:
        found: of `messages`.
        files: the table of files; None without times of files.

    Returns:
        store, format, queue, journal, rid, state; enqueued, dequeued: places, of a transaction's record that of its
        commit, null while it is there; distance: bytes between them; enqueued_flush, dequeued_flush; timestamp in
        seconds; size; transactional; enqueued_written, dequeued_written: when their files were begun, nanoseconds since
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
    """How long the messages of each queue waited, of those that were dequeued.

    Args:
        lives: of `lifetimes`.

    Returns:
        store, queue, measured (number of messages); distance_50, distance_90, distance_99 (percentiles, to within a
        thousandth), distance_most in bytes of journal; waited_50 and so on in seconds, null where no file tells a time.
    """
    gone = lives.where(sql.col("dequeued").isNotNull())
    measured = [each for name in ("distance", "waited") for each in _percentiles(name)]
    return gone.groupBy("store", "queue").agg(sql.count("*").alias("measured"), *measured)


def rates(lives: DataFrame) -> DataFrame:
    """What passed through each queue, as far as its journal still has it.

    Args:
        lives: of `lifetimes`.

    Returns:
        store, queue, recorded, outstanding, in_doubt, dequeued, transactional: numbers of messages (`tools.figures`);
        recorded_bytes: of their records; mean_size, least_size, largest_size of a record on disk; first_timestamp,
        last_timestamp; stamped_per_second: messages with a timestamp, for each second between these; null where that
        cannot be said.
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
    """Bytes of a file's data area, of a row that has the journal's format."""
    header = sql.when(sql.col("format") == "linearstore", LINEAR_HEADER_SIZE).otherwise(FILE_HEADER_SIZE)
    return size - header


def _place(time: str, at_the_end: Column) -> Column:
    return sql.when(sql.col(time) < AT_THE_END, sql.col(time)).when(sql.col(time).isNotNull(), at_the_end)


def _with_time(lives: DataFrame, files: DataFrame, name: str) -> DataFrame:
    """With the time at which the file was begun in which a place lies."""
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
