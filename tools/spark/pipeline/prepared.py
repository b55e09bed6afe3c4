"""The transaction prepared list as a table: what recovery does with each transaction that is open in it.

The rules are those of `store.recovery.prepared`: a prepare that is not closed by a commit or abort record decides, by
the dequeue of it that follows, or that does not.

    enqueue only, distributed    in-doubt
    enqueue only, local          committing
    enqueue, dequeue             committing if the dequeue is flagged, else aborting
    not in this table            never prepared

The result has columns store, xid, two_phase (dtx, local, or null where only a dequeue is left), outcome, and branch: a
number that stands for the transaction within its store. It is small, as are the prepared lists: Spark is told to send
it everywhere.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

PREPARED_LIST: Final = "TplStore"  # how the table of records calls the prepared list
IN_DOUBT: Final = "in-doubt"
COMMITTING: Final = "committing"
ABORTING: Final = "aborting"
UNPREPARED: Final = "unprepared"
ENDS: Final = ("commit", "abort")
OPERATIONS: Final = ("enqueue", "dequeue")


def prepared_transactions(records: DataFrame) -> DataFrame:
    """The transactions that are open in the prepared lists.

    Args:
        records: columns store, queue, type, position, rid, dequeued_rid, xid, prepared, flags.
    """
    position = sql.col("position")
    listed = records.where((kept_here("queue") == PREPARED_LIST) & kind_is(*OPERATIONS, *ENDS)).where(~is_transient())
    kind = sql.col("type")
    whole = Window.partitionBy("store", "xid")
    closed = sql.max(sql.when(kind.isin(*ENDS), position)).over(whole)
    still_open = (
        listed.where(sql.col("xid").isNotNull())
        .withColumn("closed", closed)
        .where(kind.isin(*OPERATIONS) & (position > sql.coalesce("closed", sql.lit(-1))))
    )
    prepare = sql.max(sql.when(kind == "enqueue", sql.struct("position", "rid", "prepared"))).over(whole)
    is_about = sql.col("prepare").isNull() | (sql.col("dequeued_rid") == sql.col("prepare.rid"))
    is_commit = sql.array_contains("flags", "commit").alias("is_commit")
    decision = sql.max(sql.when((kind == "dequeue") & is_about, sql.struct(position, is_commit)))
    return (
        still_open.withColumn("prepare", prepare)
        .groupBy("store", "xid")
        .agg(
            sql.max("prepare.prepared").alias("two_phase"),
            decision.alias("decision"),
            sql.max("position").alias("branch"),
        )
        .select("store", "xid", "two_phase", _outcome().alias("outcome"), "branch")
    )


def kept_here(name: str) -> Column:
    """A column of the records as a filter has to name it, so that Spark does not push the filter down.

    Where records were loaded with the option `pushdown`, Spark (4.3) keeps what was pushed down with the DataFrame that
    was loaded, and not with the place where it is used: of two filters on the same records, one holds for both, and
    rows are lost. The functions here use records more than once.
    """
    return sql.coalesce(name, sql.lit(""))


def kind_is(*kinds: str) -> Column:
    """Whether a record is of one of these types; not pushed down."""
    return kept_here("type").isin(*kinds)


def is_transient() -> Column:
    """Whether a record is an enqueue that recovery ignores."""
    return (sql.col("type") == "enqueue") & sql.array_contains("flags", "transient")


def _outcome() -> Column:
    decided = sql.when(sql.col("decision.is_commit"), COMMITTING).otherwise(ABORTING)
    undecided = sql.when(sql.col("two_phase") == "dtx", IN_DOUBT).otherwise(COMMITTING)
    return sql.when(sql.col("decision").isNotNull(), decided).otherwise(undecided)
