"""Compares two tables of ids: of two stores, or of a publisher's log and a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

MISSING: Final = "missing"
UNEXPECTED: Final = "unexpected"
TWICE: Final = "twice"
FEWER: Final = "fewer"


def reconcile(left: DataFrame, right: DataFrame, *, on: str | Sequence[str]) -> DataFrame:
    """Ids that one side has more often than the other, or both more than once.

    Null ids are ignored. A message that a store never had, and one that was consumed and overwritten, cannot be told
    apart: neither is in its journals. `lifetimes` shows how far back these reach.

    Args:
        left: the expected ids, such as a publisher's log.
        right: the actual ids, such as a store's enqueues.
        on: columns that form the id; both sides have them.

    Returns:
        The columns of `on`; left, right: how often each side has it; verdict: missing (not on the right), unexpected
        (not on the left), twice (more than once on the right), fewer (more often on the left). Ids that both sides have
        once have no row.
    """
    names = [on] if isinstance(on, str) else list(on)
    both = _counted(left, names, "left").join(_counted(right, names, "right"), names, "full")
    counts = {side: sql.coalesce(side, sql.lit(0)) for side in ("left", "right")}
    verdict = (
        sql.when(sql.col("right") == 0, MISSING)
        .when(sql.col("left") == 0, UNEXPECTED)
        .when(sql.col("left") > sql.col("right"), FEWER)
        .when(sql.col("right") > 1, TWICE)
    )
    return both.withColumns(counts).withColumn("verdict", verdict).where(sql.col("verdict").isNotNull())


def _counted(side: DataFrame, names: list[str], name: str) -> DataFrame:
    return side.select(*names).dropna().groupBy(*names).agg(sql.count("*").alias(name))
