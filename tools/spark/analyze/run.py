"""The steps of an analysis.

    stores -> work: records    what the pipeline needs of each record, and ids: the only pass over the journals, but
                               for the table of queues, for bodies and for the export
           -> work: messages   a row for each message
           -> outstanding, audit/…, sizing, export; queues, files; queues.csv, summary.json

Each arrow ends in Parquet files, so that nothing is computed twice and memory is what one partition takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tools.spark.analyze.request import Request
from tools.spark.analyze.summary import Summary
from tools.spark.analyze.tables import DETAILS, narrow_records, publisher_log, read_stores, stored, whole_records
from tools.spark.pipeline.depth import depth
from tools.spark.pipeline.effects import operations
from tools.spark.pipeline.export import export
from tools.spark.pipeline.findings import damage, dangling, duplicates, gaps, is_undone, open_transactions
from tools.spark.pipeline.lifetimes import lifetimes, rates, waits
from tools.spark.pipeline.messages import messages_of
from tools.spark.pipeline.outstanding import kept, of_queues, with_columns
from tools.spark.pipeline.prepared import kind_is, prepared_transactions
from tools.spark.pipeline.reconcile import reconcile
from tools.spark.pipeline.sizing import sizing

Stage = Callable[[str], None]


class _Tables(NamedTuple):
    """What all steps start from.

    Attributes:
        records: what the pipeline needs.
        queues, files: the tables of these names.
        prepared: of `prepared_transactions`.
        found: of `operations`, of the queues that are known.
        messages: of `messages_of`.
    """

    records: DataFrame
    queues: DataFrame
    files: DataFrame
    prepared: DataFrame
    found: DataFrame
    messages: DataFrame


def analyze(spark: SparkSession, request: Request, stage: Stage) -> Summary:
    """Do what is asked for.

    Args:
        spark: the session.
        request: what is asked for; its directory is there and empty.
        stage: is told what comes next.

    Raises:
        UnusableRequestError: a publisher's log cannot be used.
        PySparkException: Spark, or what it reads, fails.
    """
    log = None
    if request.publisher_log is not None:
        log = publisher_log(spark, request.publisher_log, request.publisher_id)
    stage("reading journals")
    tables = _tables(spark, request, stage)
    summary = Summary()
    summary.add_records(tables.records, tables.queues, damage(tables.records, tables.files))
    if "outstanding" in request.steps:
        stage("outstanding")
        summary.add_outstanding(_outstanding(spark, request, tables))
    if "audit" in request.steps:
        _audit(request, tables, summary, stage)
    if "sizing" in request.steps:
        stage("sizing")
        series = spark.read.parquet(request.path("audit", "depth")) if "audit" in request.steps else None
        rows = sizing(tables.messages, tables.queues, series)
        summary.add_sizing(stored(rows, request.path("sizing"), small=True))
    if log is not None:
        stage("reconciling with the publisher's log")
        ids = _enqueued(tables.found).select("message_id")
        summary.add_verdicts("publisher", _stored_audit(request, "publisher", reconcile(log, ids, on="message_id")))
    if request.compare:
        stage("reconciling with the other store")
        other = _enqueued(operations(narrow_records(spark, request.compare, request.split_bytes), also=("message_id",)))
        both = reconcile(_enqueued(tables.found), other, on=("queue", "message_id"))
        summary.add_verdicts("compare", _stored_audit(request, "compare", both))
    if "export" in request.steps:
        stage("export")
        whole = whole_records(spark, request.inputs, request.split_bytes, bodies=request.bodies)
        export(whole, request.path("export"))
    return summary


def _tables(spark: SparkSession, request: Request, stage: Stage) -> _Tables:
    raw = narrow_records(spark, request.inputs, request.split_bytes)
    records = stored(raw, request.work("records"))
    queues = stored(read_stores(spark, request.inputs, "queues"), request.path("queues"), small=True)
    files = stored(read_stores(spark, request.inputs, "files"), request.path("files"), small=True)
    stage("following messages")
    prepared = prepared_transactions(records)
    found = of_queues(operations(records, also=("message_id",)), queues)
    return _Tables(records, queues, files, prepared, found, stored(messages_of(found), request.work("messages")))


def _outstanding(spark: SparkSession, request: Request, tables: _Tables) -> DataFrame:
    there = with_columns(kept(tables.messages, tables.prepared), tables.records, DETAILS)
    if request.bodies:
        columns = ("store", "journal", "position", "type", "body")
        bodies = read_stores(spark, request.inputs, columns=columns, split_bytes=request.split_bytes)
        there = with_columns(there, bodies, ("body",))
    return stored(there, request.path("outstanding"))


def _audit(request: Request, tables: _Tables, summary: Summary, stage: Stage) -> None:
    stage("audit: lifetimes")
    lives = _stored_audit(request, "lifetimes", lifetimes(tables.messages, tables.files), small=False)
    small: dict[str, Callable[[], DataFrame]] = {
        "rates": lambda: rates(lives),
        "waits": lambda: waits(lives),
        "depth": lambda: depth(tables.messages),
        "duplicates": lambda: duplicates(tables.found),
        "gaps": lambda: gaps(tables.records),
        "dangling": lambda: dangling(tables.messages),
        "transactions": lambda: open_transactions(tables.found, tables.prepared),
        "damage": lambda: damage(tables.records, tables.files),
    }
    for name, make in small.items():
        stage(f"audit: {name}")
        summary.add_audit(name, _stored_audit(request, name, make()))


def _stored_audit(request: Request, name: str, rows: DataFrame, *, small: bool = True) -> DataFrame:
    return stored(rows, request.path("audit", name), small=small)


def _enqueued(found: DataFrame) -> DataFrame:
    """The enqueues that hold, each once."""
    first = found.where(kind_is("enqueue") & ~is_undone()).where("not moved and message_id is not null")
    return first.select("queue", "message_id")
