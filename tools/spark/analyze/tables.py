"""Stores, publishers' logs and results as DataFrames."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from qstore.store.inspect.layout import UnusableInputError
from qstore.tools.report.content import MAX_AT
from qstore.tools.spark.analyze.request import WORK, Request, UnusableRequestError
from qstore.tools.spark.analyze.stores import (
    AUDIT_TABLES,
    INVENTORY,
    OUTSTANDING_TABLE,
    WORK_TABLES,
    Job,
    write_stores,
)
from qstore.tools.spark.arrays import arrow_schema
from qstore.tools.spark.columns import TABLES, OptionError, table_columns
from qstore.tools.spark.data_source import QstoreDataSource
from qstore.tools.spark.inputs import named_inputs
from qstore.tools.spark.pipeline.effects import NEEDED

#: Message columns that are read in addition to those the pipeline needs.
DETAILS: Final = ("exchange", "routing_key", "message_id", "timestamp", "body_length")
_NARROW: Final = (*NEEDED, "file", "offset", "flush", "damage", "damage_kind", "consequence", *DETAILS)
_TASKS: Final = 4  # for each processor
_SEVERAL: Final = 8  # maximum number of files of a table with a row for each queue or finding


@dataclass(frozen=True, slots=True)
class Load:
    """A table of some stores, to be read.

    Attributes:
        paths: of the stores; also globs and URLs.
        table: name of the table.
        columns: the columns to read; None for all.
        split_bytes: largest size of a partition; None for automatic.
    """

    paths: tuple[str, ...]
    table: str = "records"
    columns: tuple[str, ...] | None = None
    split_bytes: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """As options of the data source."""
        options = {"paths": json.dumps(self.paths), "table": self.table}
        if self.columns is not None:
            options["columns"] = ",".join(self.columns)
        if self.split_bytes is not None:
            options["split_bytes"] = str(self.split_bytes)
        return options


def narrow_records(paths: tuple[str, ...], split_bytes: int | None = None) -> Load:
    """The records of some stores with the columns that the pipeline needs, and `DETAILS`."""
    return Load(paths, columns=_NARROW, split_bytes=split_bytes)


def queues_of(paths: tuple[str, ...]) -> Load:
    """The queues of some stores, without columns that require recovery: journals are not walked for it."""
    return Load(paths, "queues", tuple(column.name for column in TABLES["queues"] if column.name != "messages"))


def whole_records(paths: tuple[str, ...], split_bytes: int | None, *, bodies: bool) -> Load:
    """The records of some stores with all columns; bodies only on request."""
    names = tuple(column.name for column in TABLES["records"] if bodies or column.name != "body")
    return Load(paths, columns=names, split_bytes=split_bytes)


class Tables(NamedTuple):
    """The inputs of all steps.

    Attributes:
        records: with the columns that the pipeline needs.
        queues, files: the tables of these names.
        prepared: from `prepared_transactions`.
        found: from `operations`, for known queues.
        messages: from `messages_of`.
        totals: from `record_totals`.
        damage: from `damage`.
        use: from `peak_use`; None if it has not been computed.
    """

    records: DataFrame
    queues: DataFrame
    files: DataFrame
    prepared: DataFrame
    found: DataFrame
    messages: DataFrame
    totals: DataFrame
    damage: DataFrame
    use: DataFrame | None = None

    def known_stores(self) -> DataFrame:
        """The stores that could be read: a column store."""
        read = self.files.where("kind != 'unusable'").select("store")
        return read.union(self.queues.select("store")).union(self.totals.select("store")).distinct()

    def known_queues(self) -> DataFrame:
        """The queues in the catalogues of these stores: columns store and queue."""
        return self.queues.select("store", "queue").distinct()


def record_totals(records: DataFrame) -> DataFrame:
    """The records of each journal: what several steps need of them.

    Returns:
        store, queue, journal; records, record_bytes, enqueues, dequeues: their number and size; first_timestamp,
        last_timestamp: of the plausible ones; end: position after the last one. Damage has a row, but is not counted.
    """
    kind, stamp = sql.col("type"), sql.col("timestamp")
    is_record = kind != "damage"
    sound = sql.when(is_record & stamp.between(1, MAX_AT["time"]), stamp)
    size = sql.when(is_record, sql.col("size"))
    return records.groupBy("store", "queue", "journal").agg(
        sql.sum(is_record.cast("bigint")).alias("records"),
        sql.coalesce(sql.sum(size), sql.lit(0)).alias("record_bytes"),
        sql.sum((kind == "enqueue").cast("bigint")).alias("enqueues"),
        sql.sum((kind == "dequeue").cast("bigint")).alias("dequeues"),
        sql.min(sound).alias("first_timestamp"),
        sql.max(sound).alias("last_timestamp"),
        sql.max(sql.col("position") + size).alias("end"),
    )


class Results:
    """Reads tables of stores, writes tables as Parquet files, and holds those that were written.

    Args:
        request: defines the directory of the results.
        single: whether the data are small enough for tables of one partition, which avoids moving rows between tasks.

    Attributes:
        made: path below the directory of the results -> the table, read back.
    """

    def __init__(self, request: Request, *, single: bool) -> None:
        self._request = request
        self._single = single
        self.made: dict[str, DataFrame] = {}

    def write_stores(self, spark: SparkSession) -> None:
        """Write everything that is read by store (`stores`); results among it are in `made`.

        Raises:
            UnusableRequestError: no input is a store, or the results cannot be written.
        """
        request = self._request
        audit = AUDIT_TABLES if "audit" in request.steps else ()
        directories = {
            **{table: request.path(WORK, table) for table in WORK_TABLES},
            **{table: request.path(table) for table in INVENTORY},
            **{table: request.path("audit", table) for table in audit},
        }
        if "outstanding" in request.steps and not request.bodies:
            directories[OUTSTANDING_TABLE] = request.path("outstanding")
        export = request.path("export") if "export" in request.steps else None
        job = Job(directories, _NARROW, DETAILS, export, request.bodies)
        try:
            inputs = named_inputs({"paths": json.dumps(request.inputs)})
        except OptionError as error:
            raise UnusableRequestError(str(error)) from None
        if self._single:
            problems = list(write_stores(job, 0, inputs))
        else:
            context = spark.sparkContext
            tasks = min(len(inputs), _TASKS * context.defaultParallelism)
            works = context.parallelize(inputs, tasks)
            problems = works.mapPartitionsWithIndex(partial(write_stores, job)).collect()
        found = [each for each in problems if each is not None]
        for each in found:
            if each.is_fatal:
                raise UnusableRequestError(each.reason)
        if len(found) == len(inputs):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise UnusableRequestError(f"{found[0].reason}{more}")
        for table in audit:
            self.made[f"audit/{table}"] = self.opened(spark, "audit", table)

    def opened(self, spark: SparkSession, *names: str) -> DataFrame:
        """A table that was written."""
        rows = spark.read.parquet(self._request.path(*names))
        return rows.coalesce(1) if self._single else rows

    def loaded(self, spark: SparkSession, load: Load, *names: str) -> DataFrame:
        """A table of stores. Small data are written at once.

        Raises:
            UnusableRequestError: no input is a store.
        """
        if self._single:
            return self._read_here(spark, load, self._request.path(*names))
        return spark.read.format("qstore").options(**load.options).load()

    def read(self, spark: SparkSession, load: Load, *names: str, small: bool = False) -> DataFrame:
        """A table of stores, written and read back. Combines `loaded` and `stored`."""
        rows = self.loaded(spark, load, *names)
        return rows if self._single else self.stored(rows, *names, small=small)

    def _read_here(self, spark: SparkSession, load: Load, path: str) -> DataFrame:
        """Read in this process, without Spark, which would start worker processes."""
        source = QstoreDataSource(load.options)
        Path(path).mkdir(parents=True)
        try:
            columns = table_columns(load.table, load.options.get("columns"))
            reader = source.reader(StructType([StructField(column.name, StringType()) for column in columns]))
            with pq.ParquetWriter(str(Path(path, "part-0.parquet")), arrow_schema(columns)) as writer:
                for part in reader.partitions():
                    for batch in reader.read(part):
                        writer.write_batch(batch)
        except (UnusableInputError, OptionError) as error:
            raise UnusableRequestError(str(error)) from None
        return spark.read.schema(source.schema()).parquet(path).coalesce(1)

    def stored(self, rows: DataFrame, *names: str, small: bool = False) -> DataFrame:
        """The same rows, written and read back.

        Args:
            rows: what to write.
            names: the path below the directory of the results.
            small: whether few files are enough.
        """
        path = self._request.path(*names)
        files = 1 if self._single else _SEVERAL if small else None
        (rows if files is None else rows.coalesce(files)).write.parquet(path)
        back = rows.sparkSession.read.schema(rows.schema).parquet(path)
        self.made["/".join(names)] = again = back.coalesce(1) if self._single else back
        return again


def publisher_log(spark: SparkSession, name: str, column: str) -> DataFrame:
    """The ids of a publisher's log, in a column message_id.

    Args:
        spark: the session.
        name: path of a Parquet table, of a CSV file with a header (.csv), or of JSON lines (.json, .jsonl); or the name
            of a table in Spark's catalogue.
        column: the column of ids.

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
