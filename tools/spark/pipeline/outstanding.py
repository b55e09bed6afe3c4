"""What a restart would deliver: the messages that recovery preserves."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from qstore.tools.spark.pipeline.effects import JOURNAL
from qstore.tools.spark.pipeline.messages import is_live, messages
from qstore.tools.spark.pipeline.prepared import kind_is, prepared_transactions

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
    """The outstanding messages, and those in doubt: the messages that `qstore-dump --outstanding` shows.

    Args:
        records: the table of records, of whole stores. Columns that are not in `effects.NEEDED` are unused but cost
        time:
            read it with `option("columns", …)`.
        queues: the table of queues: journals that are not in it, because their catalogue lacks them, are left out.
            None to include every journal.
        prepared_lists: as for `operations`.
        details: records from which `columns` are taken; None for `records`.
        columns: to be added to each message: message_id, exchange and so on, joined back by position.
        with_body: add the body too.

    Returns:
        store, format, queue, journal, rid; state: outstanding, in-doubt-enqueue or in-doubt-dequeue; xid: for messages
        in
        doubt; position; size; delivery: sorts a queue's messages in recovery order, ignoring priorities;
        then `columns`.
    """
    lists = records if prepared_lists is None else prepared_lists
    prepared = prepared_transactions(lists).cache()  # a few rows; Spark computes them again for `messages`
    found = recovered_messages(messages(records, lists), prepared, queues)
    wanted = [*columns, *(["body"] if with_body and "body" not in columns else [])]
    return with_columns(found, records if details is None else details, wanted)


def recovered_messages(found: DataFrame, prepared: DataFrame, queues: DataFrame | None = None) -> DataFrame:
    """`outstanding` from tables that were already computed.

    Args:
        found: from `messages`.
        prepared: from `prepared_transactions`.
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
    """The rows whose journal belongs to a queue in its store's catalogue."""
    known = queues.where(sql.col("journal").isNotNull()).select("store", "journal").distinct()
    return rows.join(sql.broadcast(known), ["store", "journal"], "left_semi").select(*rows.columns)


def with_columns(rows: DataFrame, records: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Rows that have a store, a journal and a position, with columns of the messages that begin there."""
    new = [name for name in columns if name not in rows.columns]
    if not new:
        return rows
    enqueues = records.where(kind_is("enqueue")).select(*_PLACE, *new)
    return rows.join(enqueues, list(_PLACE), "left").select(*rows.columns, *new)
