"""What a restart would deliver: the messages that recovery keeps."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from tools.spark.pipeline.effects import JOURNAL
from tools.spark.pipeline.messages import is_live, messages
from tools.spark.pipeline.prepared import kind_is, prepared_transactions

_PLACE = ("store", "journal", "position")


def outstanding(
    records: DataFrame,
    queues: DataFrame | None = None,
    *,
    prepared_lists: DataFrame | None = None,
    details: DataFrame | None = None,
    columns: Sequence[str] = (),
    with_body: bool = False,
) -> DataFrame:
    """The messages that are in the queues, and those in doubt: what `qstore-dump --outstanding` shows.

    Args:
        records: the table of records; whole stores. Columns that are not in `effects.NEEDED` cost and do nothing: read
            it with `option("columns", …)`.
        queues: the table of queues: journals that it does not name, which their catalogue does not know, are left out.
            None to take every journal.
        prepared_lists: as `operations` wants them.
        details: records from which `columns` are taken; None for `records`.
        columns: to be added to each message: message_id, exchange and so on, joined back by place.
        with_body: add the body too.

    Returns:
        store, format, queue, journal, rid; state: outstanding, in-doubt-enqueue or in-doubt-dequeue; xid: of what is in
        doubt; position; size; delivery: sorts a queue's messages as recovery would have them, priorities left aside;
        then `columns`.
    """
    lists = records if prepared_lists is None else prepared_lists
    prepared = prepared_transactions(lists).cache()  # a few rows; Spark finds them again where `messages` wants them
    found = kept(messages(records, lists), prepared, queues)
    wanted = [*columns, *(["body"] if with_body and "body" not in columns else [])]
    return with_columns(found, records if details is None else details, wanted)


def kept(found: DataFrame, prepared: DataFrame, queues: DataFrame | None = None) -> DataFrame:
    """`outstanding` from what others have made already.

    Args:
        found: of `messages`.
        prepared: of `prepared_transactions`.
        queues: as for `outstanding`.
    """
    there = found.where(is_live())
    if queues is not None:
        there = of_queues(there, queues)
    delivery = sql.when(sql.col("format") == "legacystore", sql.col("position")).otherwise(sql.col("rid"))
    branches = prepared.select("store", "branch", "xid")
    return there.join(sql.broadcast(branches), ["store", "branch"], "left").select(
        *JOURNAL, "rid", "state", "xid", "position", "size", delivery.alias("delivery")
    )


def of_queues(rows: DataFrame, queues: DataFrame) -> DataFrame:
    """The rows whose journal is that of a queue that its store knows."""
    known = queues.where(sql.col("journal").isNotNull()).select("store", "journal").distinct()
    return rows.join(sql.broadcast(known), ["store", "journal"], "left_semi").select(*rows.columns)


def with_columns(rows: DataFrame, records: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Rows that have a store, a journal and a position, with columns of the messages that begin there."""
    new = [name for name in columns if name not in rows.columns]
    if not new:
        return rows
    enqueues = records.where(kind_is("enqueue")).select(*_PLACE, *new)
    return rows.join(enqueues, list(_PLACE), "left").select(*rows.columns, *new)
