"""Findings of the audit: each function returns a table of anomalies, which is empty if there are none.

Normal effects of a crash, or of a ring that has wrapped around, are not losses; the tables mark them where possible.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from qstore.store.damage import CHECKSUM_KINDS
from qstore.tools.spark.pipeline.effects import ABORTED, COMMITTED, JOURNAL
from qstore.tools.spark.pipeline.prepared import ABORTING, ENDS, IN_DOUBT, OPERATIONS, UNPREPARED, kind_is

_RIDS_IN_RANGE: Final = 20  # bits: gaps are searched in ranges of this many record ids, each independently
OVERWRITTEN: Final = "overwritten"
_CHECKSUMS: Final = tuple(sorted(kind.label for kind in CHECKSUM_KINDS))
_UNDONE: Final = (ABORTED, ABORTING, UNPREPARED)


def is_undone() -> Column:
    """Whether an operation was rolled back, or will be."""
    return sql.coalesce(sql.col("fate").isin(*_UNDONE), sql.lit(False))


def duplicates(found: DataFrame) -> DataFrame:
    """Messages that a queue has, or had, more than once.

    Args:
        found: from `operations`, with message_id among its `also`.

    Returns:
        store, queue, what: "message id" (probably sent again) or "record id" (which an intact journal never has);
        message_id; first_rid, last_rid: the lowest and the highest record id; copies. Operations that were rolled back,
        and
        compaction copies, are not counted.
    """
    kept = found.where((sql.col("type") == "enqueue") & ~sql.col("moved") & ~is_undone())
    rids = [sql.min("rid").alias("first_rid"), sql.max("rid").alias("last_rid")]
    copies = sql.count("*").alias("copies")
    by_id = kept.where(sql.col("message_id").isNotNull()).groupBy("store", "queue", "message_id").agg(*rids, copies)
    by_rid = kept.groupBy(*JOURNAL, "rid").agg(copies)
    columns = ("store", "queue", "what", "message_id", "first_rid", "last_rid", "copies")
    same_id = by_id.where(sql.col("copies") > 1).withColumn("what", sql.lit("message id"))
    same_rid = by_rid.where(sql.col("copies") > 1).withColumns(
        {
            "what": sql.lit("record id"),
            "message_id": sql.lit(None).cast("string"),
            "first_rid": sql.col("rid"),
            "last_rid": sql.col("rid"),
        }
    )
    return same_id.select(*columns).union(same_rid.select(*columns))


def gaps(records: DataFrame) -> DataFrame:
    """Record ids that no record of a store has, between its lowest and its highest.

    Rings overwrite old records, and a restart skips ids, so a gap by itself is not a loss.

    Args:
        records: columns store, type, rid.

    Returns:
        store, after, before: the record ids on either side; missing: how many are between them.
    """
    rids = records.where(kind_is(*OPERATIONS, *ENDS) & sql.col("rid").isNotNull()).select("store", "rid").distinct()
    ranged = rids.withColumn("range", sql.shiftright("rid", _RIDS_IN_RANGE))
    in_range = Window.partitionBy("store", "range").orderBy("rid")
    within = ranged.select("store", sql.col("rid").alias("after"), sql.lead("rid").over(in_range).alias("before"))
    ends = ranged.groupBy("store", "range").agg(sql.min("rid").alias("least"), sql.max("rid").alias("greatest"))
    by_range = Window.partitionBy("store").orderBy("range")
    between = ends.select("store", sql.col("greatest").alias("after"), sql.lead("least").over(by_range).alias("before"))
    missing = sql.col("before") - sql.col("after") - 1
    return within.union(between).withColumn("missing", missing).where(sql.col("missing") > 0)


def dangling(found: DataFrame) -> DataFrame:
    """Dequeues of messages that are unexpectedly missing from their journal, or that it dequeues twice.

    Args:
        found: from `messages`.

    Returns:
        store, format, queue, journal, rid (of the message), dequeues, position (of the first of these records); what:
        "unknown" (nothing explains why the message is missing) or "dequeued twice".
    """
    return _odd_dequeues(found).where(sql.col("what") != OVERWRITTEN)


def overwritten(found: DataFrame) -> DataFrame:
    """Dequeues of messages whose records a ring has overwritten, which is normal.

    Their record ids are lower than that of any enqueue in the journal. Columns as in `dangling`.
    """
    return _odd_dequeues(found).where(sql.col("what") == OVERWRITTEN)


def _odd_dequeues(found: DataFrame) -> DataFrame:
    first = found.where(sql.col("enqueues") > 0).groupBy(*JOURNAL).agg(sql.min("rid").alias("first_rid"))
    is_unknown = sql.col("state").isNull()
    what = (
        sql.when(~is_unknown, "dequeued twice")
        .when(sql.col("rid") < sql.col("first_rid"), OVERWRITTEN)
        .otherwise("unknown")
    )
    odd = found.where(is_unknown | ((sql.col("dequeues") > 1) & ~sql.col("transactional")))
    return odd.join(sql.broadcast(first), list(JOURNAL), "left").select(
        *JOURNAL, "rid", "dequeues", sql.col("dequeue_position").alias("position"), what.alias("what")
    )


def open_transactions(found: DataFrame, prepared: DataFrame) -> DataFrame:
    """The open transactions of a store.

    Args:
        found: from `operations`.
        prepared: from `prepared_transactions`.

    Returns:
        store, xid; type: dtx, local, or null if not in a prepared list; state: in-doubt, committing, aborting,
        unprepared; enqueues, dequeues: numbers of undecided ones in the queues' journals; queues: the number of these
        queues; bytes: of the enqueues' records.
    """
    is_open = sql.col("fate").isNotNull() & ~sql.col("fate").isin(COMMITTED, ABORTED)
    is_enqueue = sql.col("type") == "enqueue"
    each = found.where(is_open).groupBy("store", "xid", "queue", "journal", "type", "rid")
    undecided = each.agg(sql.max("size").alias("size")).groupBy("store", "xid")
    counted = undecided.agg(
        sql.sum(is_enqueue.cast("bigint")).alias("enqueues"),
        sql.sum((~is_enqueue).cast("bigint")).alias("dequeues"),
        sql.countDistinct("queue").alias("queues"),
        sql.sum(sql.when(is_enqueue, sql.col("size")).otherwise(0)).alias("bytes"),
    )
    numbers = [sql.coalesce(name, sql.lit(0)).alias(name) for name in ("enqueues", "dequeues", "queues", "bytes")]
    state = sql.coalesce("outcome", sql.lit(UNPREPARED)).alias("state")
    return prepared.join(counted, ["store", "xid"], "full").select(
        "store", "xid", sql.col("two_phase").alias("type"), state, *numbers
    )


def in_doubt_transactions(prepared: DataFrame) -> DataFrame:
    """Those of `prepared_transactions` that wait for their transaction manager."""
    return prepared.where(sql.col("outcome") == IN_DOUBT)


def damage(records: DataFrame, files: DataFrame | None = None) -> DataFrame:
    """All damage.

    Args:
        records: columns store, queue, file, offset, rid, type, damage, damage_kind, consequence.
        files: the table of files, which has the damage of headers and whole stores; None without that.

    Returns:
        store, queue, file, offset, rid, damage, damage_kind, consequence; checksum: whether it is a wrong checksum.
    """
    columns = ("store", "queue", "file", "offset", "rid", "damage", "damage_kind", "consequence")
    found = records.where(sql.col("damage").isNotNull()).select(*columns)
    if files is not None:
        others = files.where(sql.col("kind").isin("damage", "unusable"))
        found = found.union(others.withColumn("damage", sql.col("reason")).select(*columns)).distinct()
    return found.withColumn("checksum", sql.coalesce(sql.col("damage_kind").isin(*_CHECKSUMS), sql.lit(False)))
