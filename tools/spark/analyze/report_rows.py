"""What the report needs, taken from tables in rows that are few."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sql

from tools.report.content import MAX_AT, MAX_EXAMPLES, Example, FindingKind
from tools.spark.analyze.tables import Tables
from tools.spark.pipeline.messages import IN_DOUBT_DEQUEUE, IN_DOUBT_ENQUEUE, OUTSTANDING
from tools.spark.pipeline.prepared import IN_DOUBT
from tools.spark.pipeline.reconcile import FEWER, MISSING, TWICE

#: Store and queue; nothing and nothing for what belongs to no queue.
Key = tuple[str | None, str | None]

_QUEUE: Final = ("store", "queue")
_SIZING: Final = (
    "files", "pages", "capacity", "enqueue_limit", "peak_used", "near_threshold", "large_enough", "num_jfiles",
    "jfile_size_pgs",
)  # fmt: skip
_WAITS: Final = tuple(f"{name}_{of}" for name in ("distance", "waited") for of in ("50", "90", "99", "most"))


def store_rows(tables: Tables) -> list[Row]:
    """A row for each store: store, format, queues, files, size (bytes)."""
    files = tables.files.where("kind = 'journal file'").groupBy("store")
    summed = files.agg(sql.count("*").alias("files"), sql.sum("size").alias("size"))
    queues = tables.queues.groupBy("store").agg(
        sql.max("format").alias("format"), sql.countDistinct("queue").alias("queues")
    )
    joined = summed.join(queues, "store", "full").withColumn("files", sql.coalesce("files", sql.lit(0)))
    return list(joined.orderBy("store").collect())


def queue_rows(tables: Tables, made: Mapping[str, DataFrame]) -> list[Row]:
    """A row for each queue: what its journal holds, and what the steps tell of it; null where they were left out."""
    rows = _known(tables.queues).join(_records(tables), list(_QUEUE), "left").join(_there(tables), list(_QUEUE), "left")
    peaks, waited = made.get("audit/depth"), made.get("audit/waits")
    rows = _with(rows, None if peaks is None else peaks.groupBy(*_QUEUE).agg(sql.max("peak").alias("peak")), ["peak"])
    waited = None if waited is None else waited.withColumnRenamed("dequeued", "waits")
    rows = _with(rows, waited, ["waits", *_WAITS])
    sized = made.get("sizing")
    rows = _with(rows, None if sized is None else sized.dropDuplicates(list(_QUEUE)), list(_SIZING))
    return list(rows.collect())


def _known(queues: DataFrame) -> DataFrame:
    return queues.select(*_QUEUE).distinct()


def _records(tables: Tables) -> DataFrame:
    """Numbers of records of each kind, their bytes, and the first and last timestamp that can be one."""
    kind, stamp = sql.col("type"), sql.col("timestamp")
    sound = sql.when(stamp.between(1, MAX_AT["time"]), stamp)
    return (
        tables.records.where("type != 'damage'")
        .groupBy(*_QUEUE)
        .agg(
            sql.sum((kind == "enqueue").cast("bigint")).alias("enqueues"),
            sql.sum((kind == "dequeue").cast("bigint")).alias("dequeues"),
            sql.sum("size").alias("bytes"),
            sql.min(sound).alias("first_timestamp"),
            sql.max(sound).alias("last_timestamp"),
        )
    )


def _there(tables: Tables) -> DataFrame:
    is_there, state = sql.col("state") == OUTSTANDING, sql.col("state")
    return tables.messages.groupBy(*_QUEUE).agg(
        sql.sum(is_there.cast("bigint")).alias("outstanding"),
        sql.sum(sql.when(is_there, sql.col("size"))).alias("outstanding_bytes"),
        sql.sum(state.isin(IN_DOUBT_ENQUEUE, IN_DOUBT_DEQUEUE).cast("bigint")).alias("in_doubt"),
    )


def _with(rows: DataFrame, others: DataFrame | None, names: list[str]) -> DataFrame:
    if others is None:
        return rows.withColumns({name: sql.lit(None) for name in names})
    return rows.join(others.select(*_QUEUE, *names), list(_QUEUE), "left")


# ---- of the queues that are shown with plots ----


def only(rows: DataFrame, keys: Collection[Key]) -> DataFrame:
    """The rows of some queues, which are few."""
    return rows.where(_is_one_of(keys))


def _is_one_of(keys: Collection[Key]) -> Column:
    each = ((sql.col("store") == store) & (sql.col("queue") == queue) for store, queue in sorted(keys, key=repr))
    return reduce(or_, each, sql.lit(False))


def depths(series: DataFrame, keys: Collection[Key]) -> DataFrame:
    """Of `pipeline.depth`: store, queue, begin, end, peak, depth; in order."""
    names = (*_QUEUE, "begin", "end", "peak", "depth")
    return only(series, keys).select(*names).orderBy(*_QUEUE, "begin")


def size_bins(tables: Tables, keys: Collection[Key]) -> DataFrame:
    """Messages by the size of their records: store, queue, low (a power of 2; the bin ends at its double), messages."""
    sized = only(tables.messages, keys).where("state is not null and size > 0")
    low = sql.expr("shiftleft(1L, length(bin(size)) - 1)")
    return sized.groupBy(*_QUEUE, low.alias("low")).agg(sql.count("*").alias("messages")).orderBy(*_QUEUE, "low")


# ---- findings ----


def counted_findings(tables: Tables, made: Mapping[str, DataFrame]) -> list[Row]:
    """How many of each kind a queue has: store, queue (both null where it is no known queue's), kind, count."""
    found = _owned(tables, made)
    return [] if found is None else found.groupBy(*_QUEUE, "kind").count().orderBy("kind").collect()


def examples(
    tables: Tables, made: Mapping[str, DataFrame], keys: Collection[Key]
) -> dict[tuple[Key, str], list[Example]]:
    """The first of each kind that some queues have, and of those that belong to none: queue and kind -> examples."""
    found = _owned(tables, made)
    if found is None:
        return {}
    shown = found.where(_is_one_of(keys) | sql.col("queue").isNull())
    first = Window.partitionBy(*_QUEUE, "kind").orderBy("where", "text")
    ranked = shown.withColumn("place", sql.row_number().over(first)).where(sql.col("place") <= MAX_EXAMPLES)
    told: dict[tuple[Key, str], list[Example]] = {}
    for row in ranked.orderBy(*_QUEUE, "kind", "place").collect():
        key = ((row["store"], row["queue"]), row["kind"])
        told.setdefault(key, []).append(Example(row["where"] or "", row["text"] or ""))
    return told


def _owned(tables: Tables, made: Mapping[str, DataFrame]) -> DataFrame | None:
    """All findings: store, queue, kind, where, text."""
    parts = list(_parts(made))
    if not parts:
        return None
    known = sql.broadcast(_known(tables.queues).withColumn("known", sql.lit(True)))
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
    kind = sql.when(sql.col("checksum"), FindingKind.CHECKSUM.name).otherwise(FindingKind.DAMAGE.name)
    place = sql.concat(sql.lit("offset "), sql.col("offset"))
    where = sql.concat_ws(" ", "file", place, sql.concat(sql.lit("record "), sql.col("rid")))
    return _finding(rows, kind, where, sql.concat_ws("; ", "damage", "consequence"))


def _duplicates(rows: DataFrame) -> DataFrame:
    where = sql.format_string("records %d to %d", "first_rid", "last_rid")
    text = sql.concat_ws(" ", sql.format_string("%d times the same %s", "copies", "what"), "message_id")
    return _finding(rows, FindingKind.DUPLICATE, where, text)


def _gaps(rows: DataFrame) -> DataFrame:
    text = sql.format_string("%d missing between %d and %d", "missing", "after", "before")
    return _finding(rows.drop("queue"), FindingKind.GAP, sql.col("store"), text)


def _dangling(rows: DataFrame) -> DataFrame:
    where = sql.format_string("%s, place %d", "journal", "position")
    text = sql.format_string("message %d: %s", "rid", "what")
    return _finding(rows.where("what != 'overwritten'"), FindingKind.DANGLING, where, text)


def _transactions(rows: DataFrame) -> DataFrame:
    where = sql.concat_ws(" ", "store", "xid")
    text = sql.format_string("%s: %d enqueues and %d dequeues", "type", "enqueues", "dequeues")
    return _finding(rows.where(sql.col("state") == IN_DOUBT), FindingKind.IN_DOUBT, where, text)


def _verdicts(rows: DataFrame) -> DataFrame:
    verdict = sql.col("verdict")
    kind = sql.when(verdict == TWICE, FindingKind.TWICE.name).otherwise(FindingKind.MISSING.name)
    text = sql.format_string("%d expected, %d found", "left", "right")
    wanted = rows.where(verdict.isin(MISSING, FEWER, TWICE))
    columns = [name for name in ("queue", "message_id") if name in rows.columns]
    where = sql.concat_ws(" ", *columns)
    return _finding(wanted.drop("queue") if "queue" not in columns else wanted, kind, where, text)


#: Path of a result -> what it says of findings.
_PARTS: Final = {
    "audit/damage": _damage,
    "audit/duplicates": _duplicates,
    "audit/gaps": _gaps,
    "audit/dangling": _dangling,
    "audit/transactions": _transactions,
    "audit/publisher": _verdicts,
    "audit/compare": _verdicts,
}
