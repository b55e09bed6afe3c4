"""Stores, publishers' logs and results as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tools.spark.analyze.request import UnusableRequestError
from tools.spark.columns import TABLES
from tools.spark.pipeline.effects import NEEDED

#: What is taken from each message beside what the pipeline needs.
DETAILS: Final = ("exchange", "routing_key", "message_id", "timestamp", "body_length")
_NARROW: Final = (*NEEDED, "file", "offset", "flush", "damage", "consequence", *DETAILS)
_SEVERAL: Final = 8  # files of a table that has a row for each queue or finding, at most


def read_stores(
    spark: SparkSession,
    paths: Sequence[str],
    table: str = "records",
    *,
    columns: Sequence[str] | None = None,
    split_bytes: int | None = None,
) -> DataFrame:
    """A table of some stores.

    Args:
        spark: the session.
        paths: of the stores; globs and URLs too.
        table: which.
        columns: only these are read; None for all.
        split_bytes: bytes of a partition, at most; None to choose.
    """
    reader = spark.read.format("qstore").option("table", table)
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    if split_bytes is not None:
        reader = reader.option("split_bytes", split_bytes)
    return reader.load(list(paths))


def narrow_records(spark: SparkSession, paths: Sequence[str], split_bytes: int | None = None) -> DataFrame:
    """The records of some stores with what the pipeline needs, and `DETAILS`."""
    return read_stores(spark, paths, columns=_NARROW, split_bytes=split_bytes)


def whole_records(spark: SparkSession, paths: Sequence[str], split_bytes: int | None, *, bodies: bool) -> DataFrame:
    """The records of some stores with all that is in them, bodies only where they are asked for."""
    names = [column.name for column in TABLES["records"] if bodies or column.name != "body"]
    return read_stores(spark, paths, columns=names, split_bytes=split_bytes)


def stored(rows: DataFrame, path: str, *, small: bool = False) -> DataFrame:
    """The same rows, written as Parquet and read again.

    Args:
        rows: what to write.
        path: where.
        small: whether few files will do.
    """
    (rows.coalesce(_SEVERAL) if small else rows).write.parquet(path)
    return rows.sparkSession.read.parquet(path)


def publisher_log(spark: SparkSession, name: str, column: str) -> DataFrame:
    """The ids of a publisher's log, in a column message_id.

    Args:
        spark: the session.
        name: path of a Parquet table, of a CSV file with a header (.csv), or of JSON lines (.json, .jsonl); or the name
            of a table that Spark knows.
        column: which has the ids.

    Raises:
        UnusableRequestError: there is no such table or column.
    """
    try:
        match Path(name).suffix.lower():
            case ".csv":
                log = spark.read.option("header", "true").csv(name)
            case ".json" | ".jsonl":
                log = spark.read.json(name)
            case _ if "/" in name or Path(name).exists():
                log = spark.read.parquet(name)
            case _:
                log = spark.table(name)
        if column not in log.columns:
            raise UnusableRequestError(f'{name}: no column "{column}"; it has {", ".join(log.columns)}')
        return log.select(log[f"`{column}`"].cast("string").alias("message_id"))
    except PySparkException as error:
        what = (error.getMessage() or str(error)).splitlines()[0]
        raise UnusableRequestError(f"{name}: cannot be read as a table: {what}") from None
