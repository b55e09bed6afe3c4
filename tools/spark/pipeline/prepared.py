"""The transaction prepared list as a table: what recovery does with each transaction that is open in it.

The rules are those of `store.recovery.prepared`: a prepare without a commit or abort record is decided by the presence
of a dequeue of it.

    enqueue only, distributed    in-doubt
    enqueue only, local          committing
    enqueue, dequeue             committing if the dequeue is flagged, else aborting
    not in this table            never prepared

The result has columns store, xid, two_phase (dtx, local, or null if only a dequeue is left), outcome, and branch: a
number that identifies the transaction within its store. It is as small as the prepared lists: Spark is told to
broadcast it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

PREPARED_LIST: Final = "TplStore"  # name of the prepared list in the table of records
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
    """A column of the records for use in a filter that Spark must not push down.

    If records were loaded with the option `pushdown`, Spark (4.3) stores the pushed-down filters with the loaded
    DataFrame, and not with its use: of two filters on the same records, one applies to both, and rows are lost. The
    functions here use records more than once.
    """
    return sql.coalesce(name, sql.lit(""))


def kind_is(*kinds: str) -> Column:
    """Whether a record has one of these types; not pushed down."""
    return kept_here("type").isin(*kinds)


def is_transient() -> Column:
    """Whether a record is an enqueue that recovery ignores."""
    return (sql.col("type") == "enqueue") & sql.array_contains("flags", "transient")


def _outcome() -> Column:
    decided = sql.when(sql.col("decision.is_commit"), COMMITTING).otherwise(ABORTING)
    undecided = sql.when(sql.col("two_phase") == "dtx", IN_DOUBT).otherwise(COMMITTING)
    return sql.when(sql.col("decision").isNotNull(), decided).otherwise(undecided)
