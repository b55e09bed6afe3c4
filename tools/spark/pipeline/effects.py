"""Records -> the effect of each on the messages of its journal, and when.

Recovery (`store.journal.recovery`) reads a journal in order. Here each record of a transaction is matched with its end
independently: the next commit or abort of its xid after it in the journal. If there is none the transaction is open,
and the prepared list decides (`prepared`). So each record has a *time*, a position in the journal:

    enqueue, dequeue                      its own position
    in a committed transaction            the position of the commit
    open, and rolled forward or in doubt  `AT_THE_END`, after everything
    rolled back, or never prepared        none: no effect

At the same time enqueues come before dequeues, as a commit applies them. The state of a message then follows from
minimum and maximum times alone (`messages`), and no order of rows is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from qstore.tools.spark.pipeline.prepared import (
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

AT_THE_END: Final = 1 << 61  # a position after the end of every journal
#: Columns that identify a journal.
JOURNAL: Final = ("store", "format", "queue", "journal")
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
#: Columns of the records that the pipeline needs.
NEEDED: Final = (*JOURNAL, "position", "type", "rid", "dequeued_rid", "xid", "prepared", "flags", "size")
_PASSED_ON: Final = ("flush", "timestamp")  # if the records have them


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
        .select(*narrow.columns, "fate", _time().alias("time"), _branch().alias("branch"), _ended().alias("ended"))
    )


def known_operations(records: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """As `operations`, from records that have the columns of their outcome (`tools.spark.outcomes`)."""
    target = sql.when(sql.col("type") == "dequeue", sql.col("dequeued_rid")).otherwise(sql.col("rid"))
    is_moved = sql.array_contains("flags", "moved").alias("moved")
    passed = (*JOURNAL, target.alias("rid"), "type", "xid", is_moved, "position", "size", *_PASSED_ON, *also)
    own = records.where(kind_is(*OPERATIONS) & (kept_here("queue") != PREPARED_LIST) & ~is_transient())
    return own.select(*passed, "fate", "time", "branch", "ended")


def effects(found: DataFrame) -> DataFrame:
    """Operations that have an effect, each as numbers that can be aggregated by message.

    Returns:
        The columns of a journal, rid, size and timestamp (of enqueues), flush, position, transactional; and times, each
        null unless the row is of that kind: added, pending (in doubt), moved (position of a later copy), removed;
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
    """For records in a transaction, the position of the commit or abort that ends it.

    The value has that position twice, and a third time for a commit. Rows are read backwards, so that the last end seen
    is the next one in the journal. They are sorted by the first column first, which is a number: long names, the same
    in most rows, are rarely compared.
    """
    is_end = sql.col("type").isin(*ENDS)
    coded = sql.col("position") * 2 + (sql.col("type") == "commit").cast("bigint")
    plain = sql.when(sql.col("xid").isNull(), sql.col("rid"))  # these have no end
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


def _ended() -> Column:
    return sql.shiftright("end", 1)


def _branch() -> Column:
    return sql.when(sql.col("fate") == IN_DOUBT, sql.col("branch"))
