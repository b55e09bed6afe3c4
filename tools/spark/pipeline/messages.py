"""Effects -> one row for each message of a journal: whether it is on the queue, since when, until when.

Only minimum and maximum times are aggregated: numbers of fixed size, which Spark combines before and after the shuffle.
A message is on the queue if the last time at which it was enqueued is later than the last at which it was dequeued, or
if a branch in doubt would enqueue it.

Its record is the first one that enqueued it, or its last compaction copy (version 2). If a damaged journal has a record
id again after its dequeue, and more than once, recovery uses the first of these and this table the last.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from qstore.tools.spark.pipeline.effects import JOURNAL, effects, operations

OUTSTANDING: Final = "outstanding"
IN_DOUBT_ENQUEUE: Final = "in-doubt-enqueue"
IN_DOUBT_DEQUEUE: Final = "in-doubt-dequeue"
DEQUEUED: Final = "dequeued"


def is_outstanding() -> Column:
    """Whether a restart would deliver a message. Null, as in the two functions below, without a message."""
    return sql.col("state") == OUTSTANDING


def is_in_doubt() -> Column:
    """Whether a transaction in doubt would enqueue or dequeue it."""
    return sql.col("state").isin(IN_DOUBT_ENQUEUE, IN_DOUBT_DEQUEUE)


def is_live() -> Column:
    """Whether its record is needed: it is outstanding or in doubt."""
    return sql.col("state") != DEQUEUED


def count_of(condition: Column) -> Column:
    """Number of rows that satisfy the condition."""
    return sql.coalesce(sql.sum(condition.cast("bigint")), sql.lit(0))


def messages(records: DataFrame, prepared_lists: DataFrame | None = None) -> DataFrame:
    """The messages of each journal, including dequeued ones, and dequeues of missing messages.

    Args:
        records: as for `operations`.
        prepared_lists: likewise.

    Returns:
        store, format, queue, journal, rid; state: outstanding, in-doubt-enqueue, in-doubt-dequeue, dequeued, or null
        if the journal has only dequeues of it; position: of the effective enqueue record; size: bytes of
        that record on disk; added, removed: times (`effects`); branch: the transaction in doubt; enqueues, dequeues:
        numbers of records, without compaction copies; transactional: whether any was in a transaction;
        timestamp; added_flush, removed_flush; dequeue_position, last_position: the
        first dequeue record, and the last record of all.
    """
    return messages_of(operations(records, prepared_lists))


def messages_of(found: DataFrame) -> DataFrame:
    """The same, from `operations`."""
    return _named(_gathered(effects(found)))


def _gathered(found: DataFrame) -> DataFrame:
    is_enqueue = sql.col("is_enqueue")
    place = sql.when(is_enqueue, sql.col("position"))
    first_copy = is_enqueue & sql.col("moved").isNull()
    return found.groupBy(*JOURNAL, "rid").agg(
        sql.min("added").alias("added"),
        sql.max("added").alias("added_last"),
        sql.max("pending").alias("pending"),
        sql.max("removed").alias("removed"),
        sql.max("moved").alias("moved"),
        sql.min(place).alias("first_place"),
        sql.max(place).alias("last_place"),
        sql.max("locked").alias("locked"),
        sql.max(sql.when(sql.col("pending").isNotNull(), sql.col("branch"))).alias("would_add"),
        sql.max("size").alias("size"),
        sql.min("timestamp").alias("timestamp"),
        sql.min(sql.when(is_enqueue, sql.col("flush"))).alias("added_flush"),
        sql.max(sql.when(sql.col("removed").isNotNull(), sql.col("flush"))).alias("removed_flush"),
        sql.min(sql.when(~is_enqueue, sql.col("position"))).alias("dequeue_position"),
        sql.max("position").alias("last_position"),
        sql.sum(first_copy.cast("bigint")).alias("enqueues"),
        sql.sum((~is_enqueue).cast("bigint")).alias("dequeues"),
        sql.max(sql.col("transactional").cast("int")).alias("in_transactions"),
    )


def _named(aggregated: DataFrame) -> DataFrame:
    is_there = _is_there()
    return aggregated.select(
        *JOURNAL,
        "rid",
        _state().alias("state"),
        _place().alias("position"),
        "size",
        sql.coalesce("added", "pending").alias("added"),
        sql.when(~is_there, sql.col("removed")).alias("removed"),
        sql.coalesce("locked", "would_add").alias("branch"),
        "enqueues",
        "dequeues",
        (sql.col("in_transactions") == 1).alias("transactional"),
        "timestamp",
        "added_flush",
        sql.when(~is_there, sql.col("removed_flush")).alias("removed_flush"),
        "dequeue_position",
        "last_position",
    )


def _is_added() -> Column:
    return sql.col("added_last").isNotNull() & (sql.col("added_last") > sql.coalesce("removed", sql.lit(-1)))


def _is_there() -> Column:
    return _is_added() | sql.col("pending").isNotNull()


def _state() -> Column:
    return (
        sql.when(_is_there() & sql.col("locked").isNotNull(), IN_DOUBT_DEQUEUE)
        .when(_is_added(), OUTSTANDING)
        .when(_is_there(), IN_DOUBT_ENQUEUE)
        .when(sql.col("added").isNotNull(), DEQUEUED)
    )


def _place() -> Column:
    used_again = _is_added() & (sql.col("added") < sql.col("removed"))
    return sql.when(used_again, sql.col("last_place")).otherwise(sql.coalesce("moved", "first_place"))
