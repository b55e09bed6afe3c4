"""Records -> what each of them does to the messages of its journal, and when.

Recovery (`store.journal.recovery`) goes through a journal in order. Here the records of a transaction find their end by
themselves: the next commit or abort of their xid that stands behind them in the journal. Where there is none the
transaction is open, and the prepared list decides (`prepared`). So each record has a *time*, a place in the journal:

    enqueue, dequeue                      its own place
    in a transaction that is committed    the place of the commit
    open, and rolled forward or in doubt  `AT_THE_END`, behind everything
    rolled back, or never prepared        none: it does nothing

At the same time enqueues come before dequeues, as a commit applies them. What then holds of a message follows from
least and greatest times alone (`messages`), and no order of rows is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from tools.spark.pipeline.prepared import (
    COMMITTING,
    ENDS,
    IN_DOUBT,
    OPERATIONS,
    PREPARED_LIST,
    UNPREPARED,
    is_transient,
    kept_here,
    kind_is,
    prepared_transactions,
)

AT_THE_END: Final = 1 << 61  # a place behind every journal
#: Columns that name a journal.
JOURNAL: Final = ("store", "format", "queue", "journal")
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
#: Columns of the records that all of this needs.
NEEDED: Final = (*JOURNAL, "position", "type", "rid", "dequeued_rid", "xid", "prepared", "flags", "size")
_PASSED_ON: Final = ("flush", "timestamp")  # where the records have them


def operations(records: DataFrame, prepared_lists: DataFrame | None = None, also: Sequence[str] = ()) -> DataFrame:
    """Enqueues and dequeues of the queues' journals, and what became of each.

    Args:
        records: columns `NEEDED`; of flush and timestamp, what there is.
        prepared_lists: records of the prepared lists, read for themselves (with the data source's option `queue` =
            "TplStore" that costs next to nothing); None to look for them among `records`, which are then read twice.
        also: more columns, to be passed on.

    Returns:
        store, format, queue, journal, rid (of a dequeue that of its message), type, xid, moved, position, size, flush
        and timestamp (null where the records have none), `also`, fate, time, branch. fate: null of a plain record, else
        committed, aborted, committing, aborting, in-doubt, unprepared. branch: of what is in doubt.
    """
    kind = sql.col("type")
    target = sql.when(kind == "dequeue", sql.col("dequeued_rid")).when(kind == "enqueue", sql.col("rid"))
    passed = [
        sql.col(name) if name in records.columns else sql.lit(None).cast("bigint").alias(name) for name in _PASSED_ON
    ]
    narrow = (
        records.where(kind_is(*OPERATIONS, *ENDS))
        .where((kept_here("queue") != PREPARED_LIST) & ~is_transient())
        .select(
            *JOURNAL,
            target.alias("rid"),
            "type",
            "xid",
            sql.array_contains("flags", "moved").alias("moved"),
            "position",
            "size",
            *passed,
            *also,
        )
    )
    found = narrow.withColumn("end", _end_of_transaction()).where(kind.isin(*OPERATIONS))
    decisions = prepared_transactions(records if prepared_lists is None else prepared_lists).select(
        "store", "xid", "outcome", "branch"
    )
    return (
        found.join(sql.broadcast(decisions), ["store", "xid"], "left")
        .withColumn("fate", _fate())
        .select(*narrow.columns, "fate", _time().alias("time"), _branch().alias("branch"))
    )


def effects(found: DataFrame) -> DataFrame:
    """Operations that have an effect, each as numbers that can be summed up by message.

    Returns:
        The columns of a journal, rid, size and timestamp (of enqueues), flush, position, transactional; and times, each
        null unless the row is of that kind: added, pending (in doubt), moved (the place of a later copy), removed;
        locked: the branch in doubt that would dequeue the message.
    """
    is_enqueue, time = sql.col("type") == "enqueue", sql.col("time")
    doubtful = sql.col("branch").isNotNull()
    return found.where(time.isNotNull()).select(
        *JOURNAL,
        "rid",
        "position",
        "flush",
        "branch",
        sql.col("xid").isNotNull().alias("transactional"),
        is_enqueue.alias("is_enqueue"),
        sql.when(is_enqueue, sql.col("size")).alias("size"),
        sql.when(is_enqueue, sql.col("timestamp")).alias("timestamp"),
        sql.when(is_enqueue & ~doubtful, time).alias("added"),
        sql.when(is_enqueue & doubtful, time).alias("pending"),
        sql.when(is_enqueue & sql.col("moved"), sql.col("position")).alias("moved"),
        sql.when(~is_enqueue & ~doubtful, time).alias("removed"),
        sql.when(~is_enqueue & doubtful, sql.col("branch")).alias("locked"),
    )


def _end_of_transaction() -> Column:
    """Of a record in a transaction, the place of the commit or abort that ends it, twice, and one more for a commit.

    Rows are read backwards, so that the last end that was passed is the next one in the journal. They are sorted by the
    first column first, which is a number: long names, the same in most rows, are hardly ever compared.
    """
    is_end = sql.col("type").isin(*ENDS)
    coded = sql.col("position") * 2 + (sql.col("type") == "commit").cast("bigint")
    plain = sql.when(sql.col("xid").isNull(), sql.col("rid"))  # by itself: plain records have no end
    backwards = Window.partitionBy(plain, "xid", "journal", "store").orderBy(sql.col("position").desc())
    passed = backwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return sql.last(sql.when(is_end & sql.col("xid").isNotNull(), coded), ignorenulls=True).over(passed)


def _is_commit() -> Column:
    return sql.col("end").bitwiseAND(1) == 1


def _fate() -> Column:
    ended = sql.when(_is_commit(), COMMITTED).otherwise(ABORTED)
    return (
        sql.when(sql.col("xid").isNull(), sql.lit(None).cast("string"))
        .when(sql.col("end").isNotNull(), ended)
        .otherwise(sql.coalesce("outcome", sql.lit(UNPREPARED)))
    )


def _time() -> Column:
    fate = sql.col("fate")
    return (
        sql.when(sql.col("xid").isNull(), sql.col("position"))
        .when(fate == COMMITTED, sql.shiftright("end", 1))
        .when(fate.isin(COMMITTING, IN_DOUBT), sql.lit(AT_THE_END))
    )


def _branch() -> Column:
    return sql.when(sql.col("fate") == IN_DOUBT, sql.col("branch"))
