"""The rows that the report needs, selected from the result tables; there are few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sql

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.tools.report.content import MAX_EXAMPLES, Example, FindingKind
from qstore.tools.spark.analyze.tables import Tables
from qstore.tools.spark.pipeline.findings import in_doubt_transactions
from qstore.tools.spark.pipeline.messages import (
    IN_DOUBT_DEQUEUE,
    IN_DOUBT_ENQUEUE,
    count_of,
    is_in_doubt,
    is_live,
    is_outstanding,
)
from qstore.tools.spark.pipeline.reconcile import FEWER, MISSING, TWICE

#: Store and queue; both None for findings that belong to no queue.
Key = tuple[str | None, str | None]

_QUEUE: Final = ("store", "queue")
_BINS: Final = 24  # of sizes that differ little
_POWERS_FROM: Final = 16  # times the least size: from there on bins are powers of 2
_SIZING: Final = (
    "files", "pages", "capacity", "limit", "peak_fill", "peak_near_threshold", "large_enough", "num_jfiles",
    "jfile_size_pgs",
)  # fmt: skip
_WAITS: Final = tuple(f"{name}_{of}" for name in ("distance", "waited") for of in ("50", "90", "99", "most"))


def store_rows(tables: Tables) -> list[Row]:
    """A row for each store: store, format, queues, size (bytes of its journals' files)."""
    files = tables.files.where("kind = 'journal file'").groupBy("store")
    summed = files.agg(sql.sum("size").alias("size"))
    queues = tables.queues.groupBy("store").agg(
        sql.max("format").alias("format"), sql.countDistinct("queue").alias("queues")
    )
    joined = tables.known_stores().join(summed, "store", "left").join(queues, "store", "left")
    return list(joined.orderBy("store").collect())


def queue_rows(tables: Tables, made: Mapping[str, DataFrame]) -> list[Row]:
    """A row for each queue: the content of its journal, and results of the steps; null if a step was omitted."""
    rows = tables.known_queues().join(_records(tables), list(_QUEUE), "left").join(_there(tables), list(_QUEUE), "left")
    peaks, waited = made.get("audit/depth"), made.get("audit/waits")
    rows = _with(rows, None if peaks is None else peaks.groupBy(*_QUEUE).agg(sql.max("peak").alias("peak")), ["peak"])
    rows = _with(rows, waited, ["measured", *_WAITS])
    sized = made.get("sizing")
    rows = _with(rows, None if sized is None else sized.dropDuplicates(list(_QUEUE)), list(_SIZING))
    return list(rows.collect())


def _records(tables: Tables) -> DataFrame:
    """Number of records of each kind, their bytes, and the first and last plausible timestamp."""
    summed = [sql.sum(name).alias(name) for name in ("enqueues", "dequeues", "record_bytes")]
    ends = sql.min("first_timestamp").alias("first_timestamp"), sql.max("last_timestamp").alias("last_timestamp")
    return tables.totals.groupBy(*_QUEUE).agg(*summed, *ends)


def _there(tables: Tables) -> DataFrame:
    return tables.messages.groupBy(*_QUEUE).agg(
        count_of(is_outstanding()).alias("outstanding"),
        count_of(is_in_doubt()).alias("in_doubt"),
        sql.sum(sql.when(is_live(), sql.col("size"))).alias("live_bytes"),
    )


def _with(rows: DataFrame, others: DataFrame | None, names: list[str]) -> DataFrame:
    if others is None:
        return rows.withColumns({name: sql.lit(None) for name in names})
    return rows.join(others.select(*_QUEUE, *names), list(_QUEUE), "left")


# ---- queues shown with plots ----


def only(rows: DataFrame, keys: Collection[Key]) -> DataFrame:
    """The rows of the given queues, which are few."""
    return rows.where(_is_one_of(keys))


def _is_one_of(keys: Collection[Key]) -> Column:
    each = ((sql.col("store") == store) & (sql.col("queue") == queue) for store, queue in sorted(keys, key=repr))
    return reduce(or_, each, sql.lit(False))


def depths(series: DataFrame, keys: Collection[Key]) -> DataFrame:
    """Rows of `pipeline.depth`: store, queue, begin, end, peak, depth; in order."""
    names = (*_QUEUE, "begin", "end", "peak", "depth")
    return only(series, keys).select(*names).orderBy(*_QUEUE, "begin")


def size_bins(tables: Tables, keys: Collection[Key]) -> DataFrame:
    """Messages by record size: store, queue, low, high (bytes, exclusive), messages; bins without messages have no row.

    Sizes that are all alike are one bin of one byte. Sizes that differ by less than `_POWERS_FROM` times have bins of
    equal width in whole blocks, at most `_BINS`; others have powers of 2.
    """
    sized = only(tables.messages, keys).where("state is not null and size > 0")
    extent = sized.groupBy(*_QUEUE).agg(sql.min("size").alias("least"), sql.max("size").alias("most"))
    blocks = sql.ceil((sql.col("most") - sql.col("least") + BLOCK_SIZE) / (BLOCK_SIZE * _BINS))
    width = sql.when(sql.col("least") == sql.col("most"), sql.lit(1)).otherwise(blocks * BLOCK_SIZE)
    is_narrow = sql.col("most") < sql.col("least") * _POWERS_FROM
    extent = extent.withColumn("width", sql.when(is_narrow, width))
    power = sql.expr("shiftleft(1L, length(bin(size)) - 1)")
    step = sql.col("least") + sql.floor((sql.col("size") - sql.col("least")) / sql.col("width")) * sql.col("width")
    low = sql.when(sql.col("width").isNull(), power).otherwise(step).cast("bigint")
    binned = sized.join(sql.broadcast(extent), list(_QUEUE)).withColumn("low", low)
    high = sql.col("low") + sql.coalesce("width", "low")
    counted = binned.groupBy(*_QUEUE, "low", high.alias("high")).agg(sql.count("*").alias("messages"))
    return counted.orderBy(*_QUEUE, "low")


# ---- findings ----


def counted_findings(tables: Tables, made: Mapping[str, DataFrame]) -> list[Row]:
    """Number of each kind in a queue: store, queue (both null if it is not a known queue's), kind, count."""
    return list(_owned(tables, made).groupBy(*_QUEUE, "kind").count().orderBy("kind").collect())


def examples(
    tables: Tables, made: Mapping[str, DataFrame], keys: Collection[Key]
) -> dict[tuple[Key, str], list[Example]]:
    """The first findings of each kind in the given queues, and of those without queue: queue and kind -> examples."""
    shown = _owned(tables, made).where(_is_one_of(keys) | sql.col("queue").isNull())
    first = Window.partitionBy(*_QUEUE, "kind").orderBy("where", "text")
    ranked = shown.withColumn("place", sql.row_number().over(first)).where(sql.col("place") <= MAX_EXAMPLES)
    found: dict[tuple[Key, str], list[Example]] = {}
    for row in ranked.orderBy(*_QUEUE, "kind", "place").collect():
        key = ((row["store"], row["queue"]), row["kind"])
        found.setdefault(key, []).append(Example(row["where"] or "", row["text"] or ""))
    return found


def _owned(tables: Tables, made: Mapping[str, DataFrame]) -> DataFrame:
    """All findings: store, queue, kind, where, text."""
    parts = [*_parts(made), _damage(tables.damage), _in_doubt(tables)]
    known = sql.broadcast(tables.known_queues().withColumn("known", sql.lit(True)))
    found = reduce(DataFrame.unionByName, parts).join(known, list(_QUEUE), "left")
    owner = [sql.when(sql.col("known"), sql.col(name)).alias(name) for name in _QUEUE]
    return found.select(*owner, "kind", "where", "text")


def _parts(made: Mapping[str, DataFrame]) -> Iterable[DataFrame]:
    for name, part in _PARTS.items():
        if name in made:
            yield part(made[name])


def _finding(rows: DataFrame, kind: Column | FindingKind, where: Column, text: Column) -> DataFrame:
    owner = [sql.col(name) if name in rows.columns else sql.lit(None).cast("string") for name in _QUEUE]
    name = sql.lit(kind.name) if isinstance(kind, FindingKind) else kind
    aliased = zip((*owner, name, where, text), (*_QUEUE, "kind", "where", "text"), strict=True)
    return rows.select(*(column.alias(alias) for column, alias in aliased))


def _damage(rows: DataFrame) -> DataFrame:
    place = sql.concat(sql.lit("offset "), sql.col("offset"))
    where = sql.concat_ws(" ", "file", place, sql.concat(sql.lit("record "), sql.col("rid")))
    text = sql.concat_ws("; ", "damage", "consequence")
    failures = _finding(rows.where("checksum"), FindingKind.CHECKSUM, where, text)  # damage too
    return _finding(rows, FindingKind.DAMAGE, where, text).union(failures)


def _duplicates(rows: DataFrame) -> DataFrame:
    where = sql.format_string("records %d to %d", "first_rid", "last_rid")
    text = sql.concat_ws(" ", sql.format_string("%d times the same %s", "copies", "what"), "message_id")
    return _finding(rows, FindingKind.DUPLICATE, where, text)


def _gaps(rows: DataFrame) -> DataFrame:
    text = sql.format_string("%,d missing between %d and %d", "missing", "after", "before")
    return _finding(rows.drop("queue"), FindingKind.GAP, sql.col("store"), text)


def _dangling(rows: DataFrame) -> DataFrame:
    where = sql.format_string("%s, place %d", "journal", "position")
    text = sql.format_string("message %d: %s", "rid", "what")
    return _finding(rows, FindingKind.DANGLING, where, text)


def _in_doubt(tables: Tables) -> DataFrame:
    """Transactions in doubt: a row for each queue that has messages of one; without queue if none has."""
    waiting = in_doubt_transactions(tables.prepared).select("store", "branch", "xid")
    touched = (
        tables.messages.where(sql.col("branch").isNotNull())
        .groupBy(*_QUEUE, "branch")
        .agg(
            count_of(sql.col("state") == IN_DOUBT_ENQUEUE).alias("enqueues"),
            count_of(sql.col("state") == IN_DOUBT_DEQUEUE).alias("dequeues"),
        )
    )
    rows = waiting.join(touched, ["store", "branch"], "left").fillna(0, ["enqueues", "dequeues"])
    noun = sql.when(sql.col("enqueues") == 1, "message").otherwise("messages")
    text = sql.format_string("it would enqueue %,d %s and dequeue %,d", "enqueues", noun, "dequeues")
    return _finding(rows, FindingKind.IN_DOUBT, sql.col("xid"), text)


def _verdicts(rows: DataFrame) -> DataFrame:
    verdict = sql.col("verdict")
    kind = sql.when(verdict == TWICE, FindingKind.TWICE.name).otherwise(FindingKind.MISSING.name)
    text = sql.format_string("%,d expected, %,d found", "left", "right")
    wanted = rows.where(verdict.isin(MISSING, FEWER, TWICE))
    columns = [name for name in ("queue", "message_id") if name in rows.columns]
    where = sql.concat_ws(" ", *columns)
    return _finding(wanted.drop("queue") if "queue" not in columns else wanted, kind, where, text)


#: Path of a result -> its findings.
_PARTS: Final = {
    "audit/duplicates": _duplicates,
    "audit/gaps": _gaps,
    "audit/dangling": _dangling,
    "audit/publisher": _verdicts,
    "audit/compare": _verdicts,
}
